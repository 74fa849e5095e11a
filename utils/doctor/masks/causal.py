"""Masks that hide the future."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from utils.doctor import call as caller
from utils.doctor.call import Trouble, parameters, required
from utils.doctor.masks.names import SIZE_NAMES, SMALL_NAMES, known
from utils.doctor.masks.values import Guess, MaskNotes, array, line_up, read
from utils.doctor.report import CONVENTION, NOT_SEPARABLE, Finding


def causal(case: MaskNotes, patient: Callable) -> None:
    """Examine f(n) or f(n_q, n_k)."""
    names = [*SIZE_NAMES, *SMALL_NAMES, "dtype", "device"]
    case.certain = all(name.lower() in names for name in required(patient)) and bool(required(patient))
    guess = reading = None
    for n in (5, 8, 2, 1):
        loose, given = sizes(patient, n)
        mask = _one_of_a_batch(case, array(caller.call(patient, *loose, **given)), n)
        if tuple(s for s in mask.shape if s != 1) != ((n, n) if n > 1 else ()):
            sentence = f"n={n} gives {mask.shape} instead of ({n}, {n})."
            case.fault("wrong shape", sentence, "torch.ones(n, n).")
            return
        if n >= 5:  # smaller ones look alike
            marks = read(case, mask.reshape(n, n))
            guess, reading = line_up(case, marks, _causal_guesses(n), f"n = {n}")
        elif n == 1 and guess and not guess.kind and (_marked(mask).item() == (reading == "hide")):
            case.fault("single token hidden", "With n=1 the only token may not see itself.")
    if guess is None:
        # prefixes, blocks, strides, documents ...: which of them was meant, nobody but the author knows
        sentence = (
            "Neither what is marked nor the rest is a triangle or a window known here: it has a pattern of "
            "its own, or is wrong."
        )
        cure = "If only the future was to be hidden: torch.ones(n, n).tril()."
        case.add(Finding("a pattern of its own", NOT_SEPARABLE, sentence, cure))
    elif not guess.kind:
        case.tried.append("n = 1, 2, 5 and 8 against the triangle j <= i")
    _two_windows(case, patient)
    _two_sizes(case, patient)


def _one_of_a_batch(case: MaskNotes, mask: np.ndarray, n: int) -> np.ndarray:
    """(n, n) out of (..., n, n) where all are alike, as some take a number of sequences too."""
    if mask.ndim > 2:
        sentence = f"The mask has the shape {mask.shape}, with axes for batch and heads."
        case.convention("extra axes", sentence)
    rows = mask.reshape(-1, n, n) if mask.ndim > 2 and mask.shape[-2:] == (n, n) else mask[None]
    return (
        rows[0]
        if np.array_equal(rows, np.repeat(rows[:1], len(rows), 0), equal_nan=rows.dtype.kind == "f")
        else mask
    )


def _marked(mask: np.ndarray) -> np.ndarray:
    """Which entries are marked; 0 times infinity was noted before."""
    return np.nan_to_num(mask) != 0


def _two_windows(case: MaskNotes, patient: Callable) -> None:
    """For windows of 2 and 4: how far do they reach back and ahead?"""
    loose, given = sizes(patient, 9)
    window = next((name for name in given if name.lower() in SMALL_NAMES), None)
    if window is None:
        return
    backs, aheads = [], []
    for w in (2, 4):
        marked = _marked(_one_of_a_batch(case, array(caller.call(patient, *loose, **given | {window: w})), 9))
        seen = np.flatnonzero((marked if not marked[0, -1] else ~marked)[4])
        backs.append(4 - int(seen.min(initial=4)))
        aheads.append(int(seen.max(initial=4)) - 4)
    proof = (
        f"{window}=2 and {window}=4 reach {backs[0]} and {backs[1]} back, {aheads[0]} and {aheads[1]} ahead"
    )
    if backs[0] < backs[1] and aheads == [1, 1]:
        case.drop("hides what is far", "a pattern of its own")
        sentence = "Token i sees token i + 1, whatever the window: it should look back only."
        case.fault("sees one token ahead", sentence, "Add the condition j <= i.", proof)
    elif backs[0] < backs[1] and [a + 1 for a in aheads] == backs and aheads[0]:
        case.drop("hides what is far", "a pattern of its own")
        sentence = "The window reaches one token less far ahead than back."
        case.fault("sides differ", sentence, "A slice or range excludes its end: i + window + 1.", proof)


def sizes(patient: Callable, n: int) -> tuple[list[int], dict[str, Any]]:
    """Arguments for n tokens: by position what may be a length, by name what is known to be none."""
    names = [p.name for p in parameters(patient)]
    given = {name: 2 for name in names if name.lower() in SMALL_NAMES} | known(patient, (1, n))
    lengths = [name for name in required(patient) if name not in given]
    if given and not lengths and len(required(patient)) == 1 and required(patient)[0].lower() in SMALL_NAMES:
        return [n], {}  # block_size, say, is the only size
    if given and not lengths and not required(patient):
        lengths = [name for name in names if name not in given][:1]
    first = [name for name in given if name in required(patient)]
    if lengths and first and required(patient).index(first[0]) < required(patient).index(lengths[-1]):
        return [], {**{name: n for name in lengths}, **given}  # (window, n): by position they would clash
    return [n] * (len(lengths) or not given), given


def _causal_guesses(n: int) -> Iterator[Guess]:
    ones = np.ones((n, n), bool)
    lower = np.tril(ones)
    yield Guess("", lower)
    yield Guess(
        "diagonal excluded",
        np.tril(ones, -1),
        "A token may not see itself, and the first one sees nothing at all: its softmax is NaN.",
        "Keep j <= i: torch.ones(n, n).tril(), or hide triu(diagonal=1).",
    )
    yield Guess(
        "sees one token ahead",
        np.tril(ones, 1),
        "Token i sees token i + 1, the one that it should predict.",
        "The diagonal belongs to what is kept: tril() or triu(diagonal=1), not tril(diagonal=1) or "
        "triu(diagonal=2).",
    )
    cure = "Take the lower triangle: tril()."
    yield Guess("hides nothing", ones, "Every token sees every other one.", cure)
    yield Guess("hides everything", ~ones, "No token sees any other.", cure)
    for offset, itself in ((0, "itself and "), (1, "")):
        sentence = f"The triangle lies on the wrong side: a token sees {itself}the future, but not the past."
        cure = "Keep the lower triangle: tril() instead of triu()."
        yield Guess("upper triangle", np.triu(ones, offset), sentence, cure)
    yield Guess("sees only itself", np.eye(n, dtype=bool), "Each token sees itself and no other.")
    for w in (1, 2, 3):
        sentence = f"Tokens more than {w} away are hidden: a window."
        for ahead in (0, w):
            near = np.tril(ones, ahead) & np.triu(ones, -w)
            yield Guess("hides what is far", near, sentence, verdict=CONVENTION)
    for w in (2, 3):
        sentence = f"The first {w} tokens are seen by every token, the others only by later ones: a prefix."
        prefix = lower | (np.arange(n) < w)
        yield Guess("a prefix seen by all", prefix, sentence, verdict=CONVENTION)


def _two_sizes(case: MaskNotes, patient: Callable) -> None:
    """n_q and n_k: where does the diagonal start?"""
    try:
        names = [p.name for p in parameters(patient) if p.name not in ("device", "dtype")]
        mask = array(caller.call(patient, 3, 5)) if len(names) > 1 else None
    except Trouble:
        return
    if mask is None:
        return
    shape = tuple(s for s in mask.shape if s != 1)
    if shape == (5, 3):
        case.fault("wrong shape", "n_q=3, n_k=5 gives (5, 3): rows are queries.", "torch.ones(n_q, n_k).")
    if shape != (3, 5):
        return  # the second argument is not n_k
    marked = mask.reshape(3, 5) != 0
    for keep in (marked, ~marked):
        if np.array_equal(keep, np.tril(np.ones((3, 5)))):
            sentence = "With fewer queries than keys, query 0 sees key 0 only, as in PyTorch."
            cure = "Decoding with a cache, the last query should see all keys: tril(diagonal=n_k - n_q)."
            case.convention("diagonal from the top left", sentence, cure)
            return
        if np.array_equal(keep, np.tril(np.ones((3, 5)), 2)):
            case.convention(
                "diagonal from the bottom right",
                "With fewer queries than keys, the last query sees all keys, as decoding with a cache needs.",
                "PyTorch's is_causal aligns top left.",
            )
            return
