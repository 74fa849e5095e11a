"""Masks that hide the future."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np

from utils.doctor import call as caller
from utils.doctor.call import Trouble
from utils.doctor.masks.values import Guess, MaskNotes, array, line_up, read
from utils.doctor.positions.patients import required
from utils.doctor.report import CONVENTION, FAULT


def causal(case: MaskNotes, patient: Callable) -> None:
    """Examine f(n) or f(n_q, n_k)."""
    needed = max(1, len(required(patient)))
    guess = reading = None
    for n in (5, 8, 2, 1):
        mask = array(caller.call(patient, *[n] * needed))
        shape = tuple(s for s in mask.shape if s != 1)
        if shape != ((n, n) if n > 1 else ()):
            case.say(
                "wrong shape", FAULT, f"n={n} gives {mask.shape} instead of ({n}, {n}).", "torch.ones(n, n)."
            )
            return
        if mask.ndim > 2:
            case.say(
                "extra axes",
                CONVENTION,
                f"The mask has the shape {mask.shape}, with axes for batch and heads.",
            )
        if n >= 5:  # smaller ones look alike
            marks = read(case, mask.reshape(n, n))
            guess, reading = line_up(case, marks, _causal_guesses(n), f"n = {n}")
        elif n == 1 and guess is not None and not guess.kind and (mask.item() != 0) == (reading == "hide"):
            case.say("single token hidden", FAULT, "With n=1 the only token may not see itself.")
    if guess is None:
        case.say("no causal mask", FAULT, "Neither what is marked nor the rest is a triangle known here.")
    elif not guess.kind:
        case.tried.append("n = 1, 2, 5 and 8 against the triangle j <= i")
    _two_sizes(case, patient)


def _causal_guesses(n: int) -> list[Guess]:
    ones = np.ones((n, n), bool)
    itself = Guess(
        "diagonal excluded",
        np.tril(ones, -1),
        FAULT,
        "A token may not see itself, and the first one sees nothing at all: its softmax is NaN.",
        "Keep j <= i: torch.ones(n, n).tril(), or hide triu(diagonal=1).",
    )
    turned = Guess(
        "upper triangle",
        np.triu(ones),
        FAULT,
        "The triangle lies on the wrong side: a token sees itself and the future, but not the past.",
        "Keep the lower triangle: tril() instead of triu().",
    )
    strict = Guess(
        "upper triangle", np.triu(ones, 1), FAULT, turned.sentence.replace("itself and ", ""), turned.cure
    )
    ahead = Guess(
        "sees one token ahead",
        np.tril(ones, 1),
        FAULT,
        "Token i sees token i + 1, the one that it should predict.",
        "The diagonal belongs to what is kept: tril() or triu(diagonal=1), not tril(diagonal=1) or "
        "triu(diagonal=2).",
    )
    nothing = Guess(
        "hides nothing", ones, FAULT, "Every token sees every other one.", "Take the lower triangle: tril()."
    )
    everything = Guess(
        "hides everything", ~ones, FAULT, "No token sees any other.", "Take the lower triangle: tril()."
    )
    windows = [
        Guess(
            "hides what is far",
            keep,
            CONVENTION,
            f"Tokens more than {w} away are hidden: a window.",
        )
        for w in (1, 2, 3)
        for keep in (np.tril(ones) & np.triu(ones, -w), np.tril(ones, w) & np.triu(ones, -w))
    ]
    alone = Guess("sees only itself", np.eye(n, dtype=bool), FAULT, "Each token sees itself and no other.")
    return [Guess("", np.tril(ones)), itself, ahead, nothing, everything, turned, strict, alone, *windows]


def _two_sizes(case: MaskNotes, patient: Callable) -> None:
    """n_q and n_k: where does the diagonal start?"""
    try:
        names = [p for p in inspect.signature(patient).parameters if p not in ("device", "dtype")]
        mask = array(caller.call(patient, 3, 5)) if len(names) > 1 else None
    except (Trouble, TypeError, ValueError):
        return
    if mask is None or mask.size not in (15, 25, 9):
        return
    shape = tuple(s for s in mask.shape if s != 1)
    if shape == (5, 3):
        case.say(
            "wrong shape", FAULT, "n_q=3, n_k=5 gives (5, 3): rows are queries.", "torch.ones(n_q, n_k)."
        )
    if shape != (3, 5):
        return  # the second argument is not n_k
    marked = mask.reshape(3, 5)
    marked = marked if marked.dtype == bool else marked != 0
    ones = np.ones((3, 5), bool)
    for keep in (marked, ~marked):
        if np.array_equal(keep, np.tril(ones)):
            case.say(
                "diagonal from the top left",
                CONVENTION,
                "With fewer queries than keys, query 0 sees key 0 only, as in PyTorch.",
                "Decoding with a cache, the last query should see all keys: tril(diagonal=n_k - n_q).",
            )
            return
        if np.array_equal(keep, np.tril(ones, 2)):
            case.say(
                "diagonal from the bottom right",
                CONVENTION,
                "With fewer queries than keys, the last query sees all keys, as decoding with a cache needs.",
                "PyTorch's is_causal aligns top left.",
            )
            return
