"""How strongly a key is heard: shares inside the window, and what is left outside."""

from __future__ import annotations

import math

import numpy as np
import torch

from utils.doctor.windows.notes import NEVER, Ask, N, WindowNotes, band, picture

EQUAL = f"{N} tokens, window=3, all scores equal"


def sums(case: WindowNotes, weights: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """With equal scores, each of m keys should get 1 / m; in which rows are all shares equal?"""
    sums, keys = weights.sum(1), seen.sum(1)
    highest, lowest = np.where(seen, weights, -1).max(1), np.where(seen, weights, 9).min(1)
    even = highest - lowest < 1e-3
    if np.abs(sums - 1).max() < 1e-3:
        if not even.all():
            sentence = f"In rows {np.flatnonzero(~even).tolist()} equal scores do not get equal shares."
            cure = "Hide what lies beyond the ends: clamping an index repeats the last key."
            case.fault(
                "keys counted several times", sentence, cure, EQUAL, *picture(weights, seen / keys[:, None])
            )
        return even
    _unlike_one(case, weights, seen)
    return np.ones_like(even)


def _unlike_one(case: WindowNotes, weights: np.ndarray, seen: np.ndarray) -> None:
    sums, keys = weights.sum(1), seen.sum(1)
    shown = (EQUAL, *picture(weights, seen / np.maximum(keys, 1)[:, None]))
    if np.abs(weights.sum(0) - 1).max() < 1e-3:
        sentence = "Columns of weights sum to 1 instead of rows: keys hand out shares."
        case.fault("softmax over queries", sentence, "softmax(scores, dim=-1).", *shown)
        return
    share = weights[np.arange(N), seen.argmax(1)]
    total = f"sum to {sums.min():.3g} ... {sums.max():.3g}, not to 1."
    if not np.allclose(share, share[0], rtol=1e-3) or share[0] >= 0.5:
        cure = "Divide by the sum over the window, or use softmax."
        case.fault("no normalisation", f"Rows of weights {total}", cure, *shown)
        return
    among = round(1 / share[0])
    if among == N:
        kind, of = "not renormalised", f"all {N} keys"
        cure = "Hide keys before the softmax, with -inf, not after it."
    else:
        kind, of = "padding gets a share", f"{among} keys, also where there are fewer"
        cure = "Hide the padding with -inf before the softmax; a key of zeros has the score 0."
    case.fault(kind, f"Shares were made among {of}: rows {total}", cure, *shown)


def outside(case: WindowNotes, weights: np.ndarray, seen: np.ndarray) -> None:
    """Keys outside the window must have no share at all."""
    inside = np.where(seen, weights, 0).max(1, keepdims=True)
    share = np.where(seen, 0, weights / inside).max()
    if share > NEVER:
        sentence = (
            f"Keys outside the window have {share:.2g} of a share: their score is {math.log(share):.3g}, not "
            "-inf."
        )
        case.fault("fill too weak", sentence, "scores.masked_fill(~window, float('-inf')).", EQUAL)


def shares(case: WindowNotes, ask: Ask, seen: np.ndarray, causal: bool | None) -> None:
    """Inside the window: are logarithms of weights as far apart as scores?"""
    q = torch.randn(N, 4, generator=torch.Generator().manual_seed(2))
    k = torch.randn(N, 4, generator=torch.Generator().manual_seed(3))
    weights, scores = ask(q, k, 3, causal), (q @ k.T / 2).double().numpy()
    where = seen if seen.any() else np.ones_like(seen)
    if not np.isfinite(weights).all():
        case.fault("not finite", "Some weights are NaN or infinite.")
        return
    if (weights[where] <= 0).any():
        sentence = (
            f"Weights inside the window go down to {weights[where].min():.3g}: scores were used without "
            "softmax."
        )
        case.fault("no softmax", sentence, "softmax(scores, dim=-1) before the product with v.")
        return
    rows = [(row, keys) for row, keys in enumerate(where) if keys.any()]
    moves = [scores[row, keys] - scores[row, keys].mean() for row, keys in rows]
    logs = [np.log(weights[row, keys]) for row, keys in rows]
    x, y = np.concatenate(moves), np.concatenate([log - log.mean() for log in logs])
    if not x.any():  # every token sees one key only: nothing to compare
        return
    slope = float((x * y).sum() / (x * x).sum())
    if np.abs(y - slope * x).max() > 0.02 * max(1.0, np.abs(y).max()):
        sentence = "Weights inside the window do not follow exp(q . k)."
        case.fault("weights are no softmax of scores", sentence)
    elif abs(slope) < 1e-3:
        sentence = "Inside the window all keys get the same, whatever queries and keys are."
        case.fault("scores without effect", sentence, "softmax(q @ k.mT / sqrt(d_k)) inside the window.")
    elif abs(slope - 1) > 0.01:
        kind = "scale missing" if abs(slope - 2) < 0.02 else "wrong scale"
        sentence = f"Scores are {slope:.3g} times q . k / sqrt(d_k), with d_k = 4."
        case.fault(kind, sentence, "Divide by math.sqrt(q.shape[-1]).")
    else:
        case.tried.append("weights inside the window, against a softmax of scores")


def twice(case: WindowNotes, weights: np.ndarray) -> bool:
    """A second softmax of weights 1 / m and 0 makes them differ by exp(1 / m)."""
    row = weights[N // 2]
    inside = row > (row.max() + row.min()) / 2
    ratio = max(1e-9, row.max()) / max(1e-9, row.min())
    found = bool(inside.any()) and abs(math.log(ratio) - 1 / inside.sum()) < 1e-3
    if found:
        sentence = "Softmax is taken twice: hidden keys, whose weight is 0, get exp(0) = 1 by the second."
        case.fault("softmax twice", sentence, "Take it once.")
    return found


def ignored(case: WindowNotes, ask: Ask, causal: bool | None) -> None:
    """Everything is seen while all scores are 0: no window, or one whose hidden scores are 0 too."""
    q = torch.randn(N, 4, generator=torch.Generator().manual_seed(1)) * 3
    weights = np.maximum(ask(q, q.flip(0), 3, causal), 1e-300)
    logs = np.log(weights) - (q @ q.flip(0).T / 2).double().numpy()
    kept = np.abs(logs - np.diag(logs)[:, None]) < 1e-2
    proof = picture(kept, band(-3, 3 if np.triu(kept, 1).any() and not causal else 0))
    if np.array_equal(kept, np.tril(np.ones_like(kept))) or kept.all():
        sentence = "Tokens at any distance are seen."
        case.fault("window ignored", sentence, "Apply the window.", "", *proof)
        return
    sentence = (
        "The score of a hidden key is 0 instead of minus infinity, be it by a multiplied mask or by a tiny "
        "fill: with equal scores it gets a full share."
    )
    cure = "scores.masked_fill(~window, float('-inf')) before the softmax."
    case.fault("hidden scores near zero", sentence, cure, "", *proof)
