"""Masks that hide the future."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from utils.doctor import call as caller
from utils.doctor.call import Trouble
from utils.doctor.masks.names import SIZE_NAMES, SMALL_NAMES
from utils.doctor.masks.values import Guess, MaskNotes, array, line_up, read
from utils.doctor.positions.patients import required
from utils.doctor.report import CONVENTION, FAULT, NOT_SEPARABLE


def causal(case: MaskNotes, patient: Callable) -> None:
    """Examine f(n) or f(n_q, n_k)."""
    known = [*SIZE_NAMES, *SMALL_NAMES, "dtype", "device"]
    case.certain = all(name.lower() in known for name in required(patient)) and bool(required(patient))
    guess = reading = None
    for n in (5, 8, 2, 1):
        loose, given = sizes(patient, n)
        mask = array(caller.call(patient, *loose, **given))
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
        # prefixes, blocks, strides, documents ...: which of them was meant, nobody but the author knows
        case.say(
            "a pattern of its own",
            NOT_SEPARABLE,
            "Neither what is marked nor the rest is a triangle or a window known here: it has a pattern of "
            "its own, or is wrong.",
            "If only the future was to be hidden: torch.ones(n, n).tril().",
        )
    elif not guess.kind:
        case.tried.append("n = 1, 2, 5 and 8 against the triangle j <= i")
    _two_sizes(case, patient)


def sizes(patient: Callable, n: int) -> tuple[list[int], dict[str, Any]]:
    """Arguments for n tokens: by position what may be a length, by name what is known to be none."""
    given: dict[str, Any] = {}
    with contextlib.suppress(TypeError, ValueError):
        for name in inspect.signature(patient).parameters:
            if name.lower() in SMALL_NAMES:
                given[name] = 2
    for name in required(patient):
        if name.lower().endswith("shape"):
            given[name] = (1, n)
        elif name in ("dtype", "device"):
            given[name] = torch.float32 if name == "dtype" else "cpu"
    lengths = [name for name in required(patient) if name not in given]
    if given and not lengths and not required(patient):
        lengths = [name for name in inspect.signature(patient).parameters if name not in given][:1]
    first = [name for name in given if name in required(patient)]
    if lengths and first and required(patient).index(first[0]) < required(patient).index(lengths[-1]):
        return [], {**{name: n for name in lengths}, **given}  # (window, n): by position they would clash
    return [n] * (len(lengths) or not given), given


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
    prefixes = [
        Guess(
            "a prefix seen by all",
            np.tril(ones) | (np.arange(n) < w)[None, :],
            CONVENTION,
            f"The first {w} tokens are seen by every token, the others only by later ones: a prefix.",
        )
        for w in (2, 3)
    ]
    alone = Guess("sees only itself", np.eye(n, dtype=bool), FAULT, "Each token sees itself and no other.")
    return [
        Guess("", np.tril(ones)),
        itself,
        ahead,
        nothing,
        everything,
        turned,
        strict,
        alone,
        *windows,
        *prefixes,
    ]


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
