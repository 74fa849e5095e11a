"""Examining attention to a local window: who influences whom, and how strongly.

With the identity as value, the output is the matrix of weights. With queries of zeros all scores
are equal, so that a row shows which keys are seen and among how many the shares were made. With
other queries it shows whether the shares are those of a softmax of the scores.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from utils.doctor import call as caller
from utils.doctor.call import Hangs, Trouble
from utils.doctor.encoders import named, numbers, required
from utils.doctor.report import CONVENTION, FAULT, Finding, Matrices, Report

SPECIES = "local attention"
WINDOWS = [
    *("window", "w", "window_size", "sliding_window", "local_window", "left_window", "half_window", "win"),
    *("size", "radius", "r", "span", "width", "bandwidth", "context", "block_size", "neighbors", "k_size"),
]
CAUSAL = ["is_causal", "causal", "autoregressive", "masked", "unidirectional"]
N = 12  # 2, 3 and 4 divide it, for those who cut into blocks
MIDDLE = N // 2
SHOWN = f"{N} tokens, window=3"
NEVER = 1e-12  # a share below this is none


@dataclass
class Examination:
    """What is known so far."""

    ask: Callable[..., np.ndarray]
    causal: bool | None
    counts_self: bool | None
    findings: list[Finding] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)

    def say(
        self,
        kind: str,
        verdict: str,
        sentence: str,
        cure: str = "",
        shown: str = "",
        matrices: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> None:
        """Note a finding, once."""
        if kind not in [f.kind for f in self.findings]:
            proof = (Matrices("weight of key j for query i", *matrices),) if matrices else ()
            self.findings.append(Finding(kind, verdict, sentence, cure, shown, proof))


def examine(
    patient: Callable,
    name: str = "patient",
    *,
    is_causal: bool | None = None,
    counts_self: bool | None = None,
) -> Report:
    """Examine f(q, k, v, window[, causal]).

    is_causal    for a patient without such an argument: whether looking back only was meant.
                 None: either is right
    counts_self  True: window=3 was meant to be 3 keys in all looking back, the token itself among them;
                 False: 3 neighbours on each side besides it. None: any known way to count is right
    """
    began = time.perf_counter()
    case = Examination(lambda *a: np.zeros(0), is_causal, counts_self)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            _examine(case, patient)
    except Hangs as trouble:
        case.say("hangs", FAULT, f"It {trouble}.", "Look for a loop without an end.")
    except Trouble as trouble:
        case.say("crashes", FAULT, f"{N} tokens and window=3 give no result: {trouble}.")
    order = {FAULT: 0, CONVENTION: 2}
    found = tuple(sorted(case.findings, key=lambda f: order.get(f.verdict, 1)))
    return Report(name, SPECIES, found, tuple(case.tried), (), time.perf_counter() - began)


def _examine(case: Examination, patient: Callable) -> None:
    q = torch.randn(N, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).float()
    case.ask, takes_causal = _asker(case, patient, q)
    first = case.ask(q, q.flip(0), 3, True)
    if not np.array_equal(first, case.ask(q, q.flip(0), 3, True), equal_nan=True):
        case.say(
            "random on each call",
            FAULT,
            "The same input gives different outputs.",
            "No dropout in a function.",
        )
        return
    modes = (False, True) if takes_causal else (case.causal,)
    readings = {causal: _mode(case, causal) for causal in modes}
    if takes_causal and None not in readings.values() and len(set(readings.values())) > 1:
        case.say(
            "window counted in two ways",
            FAULT,
            f"Looking both ways the window is {readings[False]}, looking back only it is {readings[True]}.",
            "Count neighbours the same way in both modes.",
        )
    _small_inputs(case, modes[-1])
    _integers(case, patient, takes_causal)


def _asker(case: Examination, patient: Callable, q: Tensor) -> tuple[Callable[..., np.ndarray], bool]:
    """(q, k, window, causal) -> weights (n, n), however the patient is called; and has it `causal`?"""
    window, causal = named(patient, WINDOWS), named(patient, CAUSAL)
    if window is None and len(required(patient)) < 4:
        raise Trouble(
            "it has no argument for the window that is called window, w, window_size, size or radius"
        )
    trouble: Trouble | None = None
    for square in (False, True):  # with d_v different from d_k, then alike
        for axes in (0, 1, 2):

            def ask(
                q: Tensor, k: Tensor, w: int, looks_back: bool | None, axes: int = axes, square: bool = square
            ) -> np.ndarray:
                n = len(q)
                if square:
                    pad = torch.zeros(n, max(0, n - q.shape[1]))
                    factor = math.sqrt(n / q.shape[1]) if n > q.shape[1] else 1.0
                    q, k = torch.cat([q * factor, pad], 1), torch.cat([k, pad], 1)
                inputs = [
                    t.reshape(*[1] * axes, *t.shape)
                    for t in (q, k, torch.eye(n, q.shape[1] if square else n))
                ]
                given = {window: w} if window else {}
                given |= {causal: bool(looks_back)} if causal else {}
                out = numbers(caller.call(patient, *inputs, *([] if window else [w]), **given))
                if out is None or out.size < n * n or out.shape[-2:] != inputs[2].shape[-2:]:
                    raise Trouble(f"returns {'no array' if out is None else f'the shape {out.shape}'}")
                return out.reshape(n, -1)[:, :n]

            try:
                ask(q, q, 3, False)
            except Hangs:
                raise
            except Trouble as error:
                trouble = trouble or error
                continue
            if square and trouble is not None:
                case.say(
                    "d_v must equal d_k",
                    FAULT,
                    f"Values of width {N} with keys of width {q.shape[1]} end in {trouble}.",
                    "Take the output's width from v: v.shape[-1].",
                )
            return ask, causal is not None
    raise trouble or Trouble("no shape of input worked")


# -- who sees whom -------------------------------------------------------------------------------


def _mode(case: Examination, causal: bool | None) -> str | None:
    """Examine one mode; returns the way in which the window is counted, where that is a known one."""
    zeros = torch.zeros(N, 4)
    weights = {w: case.ask(zeros, zeros, w, causal) for w in (2, 3, 4)}
    if not all(np.isfinite(t).all() for t in weights.values()):
        rows = np.flatnonzero(~np.isfinite(weights[3]).all(1))
        case.say(
            "not finite", FAULT, f"Rows {rows.tolist()} are NaN or infinite.", "Let each token see itself."
        )
        return None
    seen = {w: _seen(t) for w, t in weights.items()}
    if not any(s.any() for s in seen.values()):
        _shares(case, seen[3], causal)
        return None
    stripped = _special_tokens(case, seen)
    count, known = _pattern(case, stripped, causal)
    if known:
        _sums(case, weights[3], seen[3])
        _outside(case, weights[3], seen[3])
        _shares(case, seen[3], causal)
    return count


def _seen(weights: np.ndarray) -> np.ndarray:
    """Which keys have a full share, compared with the largest of the row."""
    largest = np.abs(weights).max(1, keepdims=True)
    return (np.abs(weights) > 0.5 * largest) & (largest > NEVER)


def band(n: int, lowest: int, highest: int) -> np.ndarray:
    """True where lowest <= column - row <= highest."""
    apart = np.arange(n)[None, :] - np.arange(n)[:, None]
    return (lowest <= apart) & (apart <= highest)


def _special_tokens(case: Examination, seen: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Set aside what every later query sees, whatever the window; the rest is the window."""
    hubs = [j for j in (0, 1) if all(s[j:, j].all() for s in seen.values())]
    if not hubs or all(s[MIDDLE, :MIDDLE].all() for s in seen.values()):
        return seen
    rest = {w: _without(s, hubs) for w, s in seen.items()}
    case.say(
        "global token",
        FAULT,
        f"Key {', '.join(map(str, hubs))} is seen from any distance, not only inside the window.",
        "Apply the window to every key, or say that the token is meant to be global.",
        SHOWN,
        (seen[3].astype(float), rest[3].astype(float)),
    )
    return rest


def _without(seen: np.ndarray, hubs: list[int]) -> np.ndarray:
    """The same with rows and columns of the hubs cut to the band of the others."""
    others = seen.copy()
    others[:, hubs] = False
    inside = band(N, *_edges(others))
    others[:, hubs] = seen[:, hubs] & inside[:, hubs]
    others[hubs] = seen[hubs] & inside[hubs]
    return others


def _edges(seen: np.ndarray) -> tuple[int, int]:
    """How far back and ahead a token in the middle looks."""
    columns = np.flatnonzero(seen[MIDDLE])
    return (int(columns[0]) - MIDDLE, int(columns[-1]) - MIDDLE) if len(columns) else (0, 0)


def _pattern(case: Examination, seen: dict[int, np.ndarray], causal: bool | None) -> tuple[str | None, bool]:
    """Name the pattern; returns the way of counting, and whether the pattern is a known one."""
    edges = {w: _edges(s) for w, s in seen.items()}
    if all(s[np.tril_indices(N)].all() for s in seen.values()):
        _ignored(case, causal)
        return None, False
    if _is_ring(seen, edges):
        case.say(
            "wraps around",
            FAULT,
            "The first tokens see the last ones: the window runs around the ends, as torch.roll does.",
            "Pad instead of rolling, and hide the padding.",
            SHOWN,
            (seen[3].astype(float), band(N, *edges[3]).astype(float)),
        )
        seen = {w: band(N, *edges[w]) for w in seen}
    if not all(np.array_equal(s, band(N, *edges[w])) for w, s in seen.items()):
        return None, _no_band(case, seen, edges, causal)
    lows, highs = [-edges[w][0] for w in (2, 3, 4)], [edges[w][1] for w in (2, 3, 4)]
    side = _direction(case, lows, highs, causal, seen)
    sides = lows if side == "back" else highs if side == "ahead" else None
    return _counting(case, lows, highs, sides, seen, causal), True


def _is_ring(seen: dict[int, np.ndarray], edges: dict[int, tuple[int, int]]) -> bool:
    apart = np.arange(N)[None, :] - np.arange(N)[:, None]
    around = {w: (apart - low) % N <= high - low for w, (low, high) in edges.items()}
    return (
        all(np.array_equal(s, around[w]) for w, s in seen.items())
        and max(h - lo for lo, h in edges.values()) > 0
    )


def _direction(
    case: Examination, lows: list[int], highs: list[int], causal: bool | None, seen: dict[int, np.ndarray]
) -> str:
    """Back, ahead or both; what does not fit `causal` is noted."""
    wanted = band(N, -3, 0 if causal else 3)
    shown, matrices = SHOWN, (seen[3].astype(float), wanted.astype(float))
    if min(lows) >= 0 and max(highs) <= 0:
        if causal is False:
            case.say(
                "looks back only",
                FAULT,
                "Nothing ahead is seen although looking both ways was asked for.",
                "With causal=False let j run to i + window.",
                shown,
                matrices,
            )
        return "back"
    if max(lows) <= 0 < min(highs):
        case.say(
            "window looks ahead",
            FAULT,
            f"Token i sees i ... i + {highs[1]}: the window lies on the future's side.",
            "Look back: i - window <= j <= i.",
            shown,
            matrices,
        )
        return "ahead"
    if causal:
        if max(highs) <= 1:
            case.say(
                "sees one token ahead",
                FAULT,
                "Token i sees token i + 1 although it should only look back.",
                "Cut at j <= i: tril() without diagonal=1.",
                shown,
                matrices,
            )
            return "back"
        case.say(
            "sees the future",
            FAULT,
            f"Token i sees up to i + {highs[1]} although it should only look back.",
            "Add the condition j <= i.",
            shown,
            matrices,
        )
    return "both"


def _counting(
    case: Examination,
    lows: list[int],
    highs: list[int],
    sides: list[int] | None,
    seen: dict[int, np.ndarray],
    causal: bool | None,
) -> str | None:
    """How do 2, 3, 4 become the numbers of neighbours? Four ways are in use, everything else is off."""
    if sides is None and "sees one token ahead" not in [f.kind for f in case.findings] and lows != highs:
        return _unlike_sides(case, lows, highs, seen)
    reach = lows if sides is None else sides
    ways = {
        (2, 3, 4): "neighbours on each side, the token itself not counted",
        (1, 2, 3): "keys, the token itself counted",
        (1, 1, 2): "both sides together",
        (0, 1, 1): "both sides together",
    }
    way = ways.get(tuple(reach))
    if way is None:
        by = reach[1] - 3
        word = "wide" if by > 0 else "narrow"
        case.say(
            f"window too {word}",
            FAULT,
            f"window=2, 3, 4 reach {reach[0]}, {reach[1]}, {reach[2]} tokens far: no known way to "
            "count gives that.",
            "Compare with < and <= once more: i - j <= window.",
            SHOWN,
            (seen[3].astype(float), band(N, -3, 0 if causal or max(highs) <= 0 else 3).astype(float)),
        )
        return None
    if reach == [2, 3, 4] and case.counts_self:
        _meant(case, "window too wide", reach, "i - j < window")
    elif reach == [1, 2, 3] and case.counts_self is False:
        _meant(case, "window too narrow", reach, "i - j <= window")
    elif reach in ([1, 1, 2], [0, 1, 1]) and case.counts_self is not None:
        _meant(case, "window too narrow", reach, "|i - j| <= window")
    elif reach == [1, 2, 3] and case.counts_self is None:
        case.say(
            "window counts the token itself", CONVENTION, "window=3 reaches 2 tokens far: it counts itself."
        )
    elif reach in ([1, 1, 2], [0, 1, 1]) and case.counts_self is None:
        case.say("window counts both sides", CONVENTION, f"window=4 reaches {reach[2]} tokens to each side.")
    case.tried.append("who sees whom, with windows of 2, 3 and 4")
    return way


def _meant(case: Examination, kind: str, reach: list[int], condition: str) -> None:
    case.say(
        kind,
        FAULT,
        f"window=3 reaches {reach[1]} tokens far, which is not what was meant.",
        f"Write {condition}.",
    )


def _unlike_sides(
    case: Examination, lows: list[int], highs: list[int], seen: dict[int, np.ndarray]
) -> str | None:
    total = [a + b + 1 for a, b in zip(lows, highs, strict=True)]
    if total == [2, 3, 4]:  # an even number of keys cannot lie evenly around a token
        case.say(
            "window is the number of keys",
            CONVENTION,
            "window=4 is 4 keys in all: 2 on one side, 1 on the other.",
        )
        return "keys in all"
    case.say(
        "sides differ",
        FAULT,
        f"window=3 reaches {lows[1]} tokens back but {highs[1]} ahead.",
        "An end is excluded: range(i - w, i + w + 1), or w + 1 in a slice.",
        SHOWN,
        (seen[3].astype(float), band(N, -3, 3).astype(float)),
    )
    return None


def _ignored(case: Examination, causal: bool | None) -> None:
    """Everything is seen while all scores are 0: no window, or one whose hidden scores are 0 too."""
    q = torch.randn(N, 4, generator=torch.Generator().manual_seed(1)) * 3
    weights = np.maximum(case.ask(q, q.flip(0), 3, causal), 1e-300)
    logs = np.log(weights) - (q @ q.flip(0).T / 2).double().numpy()
    kept = np.abs(logs - np.diag(logs)[:, None]) < 1e-2
    proof = (kept.astype(float), band(N, -3, 0 if causal else 3).astype(float))
    if np.array_equal(kept, np.tril(np.ones_like(kept))) or kept.all():
        case.say("window ignored", FAULT, "Tokens at any distance are seen.", "Apply the window.", "", proof)
    else:
        case.say(
            "hidden scores near zero",
            FAULT,
            "The score of a hidden key is 0 instead of minus infinity, be it by a multiplied mask or "
            "by a tiny fill: "
            "with equal scores it gets a full share.",
            "scores.masked_fill(~window, float('-inf')) before the softmax.",
            "",
            proof,
        )


def _no_band(
    case: Examination, seen: dict[int, np.ndarray], edges: dict[int, tuple[int, int]], causal: bool | None
) -> bool:
    """Blocks, or a band that is wrong at its ends; True for blocks."""
    wanted = band(N, -3, 0 if causal or not np.triu(seen[3], 1)[4].any() else 3)
    shown, proof = SHOWN, (seen[3].astype(float), wanted.astype(float))
    token = np.arange(N)
    for w_block in (lambda w: w, lambda w: w + 1, lambda w: 2 * w, lambda w: 2 * w + 1):
        same = {w: (token[:, None] // w_block(w)) == (token[None, :] // w_block(w)) for w in seen}
        if all(np.array_equal(s, same[w]) or np.array_equal(s, np.tril(same[w])) for w, s in seen.items()):
            case.say(
                "blocks instead of a sliding window",
                FAULT,
                f"Tokens see only their own block of {w_block(3)}: the first of a block does not see "
                "its neighbour.",
                "Let each block see the one before it too, and hide what is too far.",
                shown,
                proof,
            )
            return True
    if np.array_equal(seen[3][4:-4], band(N, *edges[3])[4:-4]):
        kind, sentence = (
            "wrong at the edges",
            "In the middle there is a window, but the first or last rows have another.",
        )
    else:
        kind, sentence = (
            "no window",
            "What is seen is neither a band along the diagonal nor a pattern known here.",
        )
    case.say(kind, FAULT, sentence, "Compare the two matrices row by row.", shown, proof)
    return False


# -- how strongly ------------------------------------------------------------------------------------


def _sums(case: Examination, weights: np.ndarray, seen: np.ndarray) -> None:
    """With equal scores, each of m keys should get 1 / m."""
    sums, keys = weights.sum(1), seen.sum(1)
    if np.abs(sums - 1).max() < 1e-3:
        return
    share = weights[np.arange(N), seen.argmax(1)]
    right = seen / np.maximum(keys, 1)[:, None]
    if np.allclose(share, share[0], rtol=1e-3) and share[0] < 0.5:
        among = round(1 / share[0])
        of = f"all {N} keys" if among == N else f"{among} keys, also where there are fewer"
        if among == N:
            kind = "not renormalised"
            cure = "Hide keys before the softmax, with -inf, not after it."
        else:
            kind = "padding gets a share"
            cure = "Hide the padding with -inf before the softmax; a key of zeros has the score 0."
        case.say(
            kind,
            FAULT,
            f"Shares were made among {of}: rows sum to {sums.min():.3g} ... {sums.max():.3g}, not to 1.",
            cure,
            f"{N} tokens, window=3, all scores equal",
            (weights, right),
        )
    else:
        case.say(
            "no normalisation",
            FAULT,
            f"Rows of weights sum to {sums.min():.3g} ... {sums.max():.3g}, not to 1.",
            "Divide by the sum over the window, or use softmax.",
            f"{N} tokens, window=3, all scores equal",
            (weights, right),
        )


def _outside(case: Examination, weights: np.ndarray, seen: np.ndarray) -> None:
    """Keys outside the window must have no share at all."""
    inside = np.where(seen, weights, 0).max(1, keepdims=True)
    share = np.where(seen, 0, weights / inside).max()
    if share > NEVER:
        case.say(
            "fill too weak",
            FAULT,
            f"Keys outside the window have {share:.2g} of a share: their score is "
            f"{math.log(share):.3g}, not -inf.",
            "scores.masked_fill(~window, float('-inf')).",
            f"{N} tokens, window=3, all scores equal",
            (np.where(seen, 0, weights), np.zeros_like(weights)),
        )


def _shares(case: Examination, seen: np.ndarray, causal: bool | None) -> None:
    """Inside the window: are logarithms of weights as far apart as scores?"""
    q = torch.randn(N, 4, generator=torch.Generator().manual_seed(2))
    k = torch.randn(N, 4, generator=torch.Generator().manual_seed(3))
    weights, scores = case.ask(q, k, 3, causal), (q @ k.T / 2).double().numpy()
    where = seen if seen.any() else np.ones_like(seen)
    if not np.isfinite(weights).all():
        case.say("not finite", FAULT, "Some weights are NaN or infinite.")
        return
    if (weights[where] <= 0).any():
        case.say(
            "no softmax",
            FAULT,
            f"Weights inside the window go down to {weights[where].min():.3g}: scores were used "
            "without softmax.",
            "softmax(scores, dim=-1) before the product with v.",
        )
        return
    moves, found = [], []
    for row, keys in enumerate(where):
        moves.append(scores[row, keys] - scores[row, keys].mean())
        logs = np.log(weights[row, keys])
        found.append(logs - logs.mean())
    x, y = np.concatenate(moves), np.concatenate(found)
    slope = float((x * y).sum() / (x * x).sum())
    if np.abs(y - slope * x).max() > 0.02 * max(1.0, np.abs(y).max()):
        case.say(
            "weights are no softmax of scores", FAULT, "Weights inside the window do not follow exp(q . k)."
        )
    elif abs(slope - 1) > 0.01:
        kind = "scale missing" if abs(slope - 2) < 0.02 else "wrong scale"
        case.say(
            kind,
            FAULT,
            f"Scores are {slope:.3g} times q . k / sqrt(d_k), with d_k = 4.",
            "Divide by math.sqrt(q.shape[-1]).",
        )
    else:
        case.tried.append("weights inside the window, against a softmax of scores")


# -- small and odd inputs ------------------------------------------------------------------------------


def _small_inputs(case: Examination, causal: bool | None) -> None:
    for n, w, kind, words in (
        (13, 3, "length must be a multiple of the window", "13 tokens with window=3"),
        (3, 5, "short input crashes", "3 tokens with window=5"),
    ):
        try:
            out = case.ask(torch.zeros(n, 4), torch.zeros(n, 4), w, causal)
            if not np.isfinite(out).all():
                case.say("not finite", FAULT, f"{words} give NaN or infinity.")
        except Trouble as trouble:
            refused = str(trouble).startswith(("ValueError", "AssertionError")) and "broadcast" not in str(
                trouble
            )
            verdict = CONVENTION if refused else FAULT
            case.say(
                kind, verdict, f"{words} end in {trouble}.", "Pad at the end, and hide the padding.", words
            )


def _integers(case: Examination, patient: Callable, takes_causal: bool) -> None:
    """Integers may be refused, but not rounded; and the inputs must stay as they are."""
    window, causal = named(patient, WINDOWS), named(patient, CAUSAL)
    options = {causal: True} if causal else {}
    whole = [torch.randint(-2, 3, (1, 1, 8, 4), generator=torch.Generator().manual_seed(s)) for s in range(3)]
    floats = [t.float() for t in whole]

    def ask(inputs: list[Tensor]) -> Any:
        given = {window: 2} if window else {}
        return caller.call(lambda: patient(*inputs, *([] if window else [2]), **given, **options))

    before = [t.clone() for t in floats]
    try:
        wanted = numbers(ask(floats))
    except Trouble:
        return  # other axes are wanted: examined with those already
    if any(not torch.equal(a, b) for a, b in zip(before, floats, strict=True)):
        case.say(
            "writes into its input", FAULT, "After the call q, k or v have changed.", "Copy before writing."
        )
    try:
        found = numbers(ask(whole))
    except Trouble:
        return  # refused
    if found is not None and wanted is not None and not np.allclose(found, wanted, atol=1e-3):
        case.say(
            "integer input is rounded",
            FAULT,
            f"Integers give an output that is off by {np.abs(found - wanted).max():.3g}: a buffer has "
            "their dtype.",
            "Make buffers in a float dtype, or refuse integers.",
        )
