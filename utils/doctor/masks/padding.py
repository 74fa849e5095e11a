"""Masks that hide padding."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from utils.doctor import call as caller
from utils.doctor.call import Hangs, Trouble, Unfit, first_answer, named, required
from utils.doctor.masks.names import HEAD_NAMES, ID_NAMES, LENGTH_NAMES, PAD_NAMES, SIZE_NAMES, known
from utils.doctor.masks.values import Guess, Marks, MaskNotes, array, line_up, read
from utils.doctor.report import CONVENTION, FAULT, NOT_SEPARABLE, Finding

LENGTHS = (2, 5, 3)


def padding(case: MaskNotes, patient: Callable) -> None:
    """Examine f(lengths, n) or f(ids, pad_id)."""
    real, ask, takes_pad = padding_input(patient, case.means)
    mask = array(ask(0))
    if not takes_pad and mask.min() == mask.max():
        mask = _own_pad(case, ask, mask)
    found = _judged(case, mask, real)
    if takes_pad and found:
        _other_pad(case, ask, mask)


def _judged(case: MaskNotes, mask: np.ndarray, real: np.ndarray) -> bool:
    """Compare a mask of sequences with these real tokens with what is known; False for another shape."""
    if mask.shape == (5, 3):
        case.fault("wrong shape", "The mask comes as (n, B).", "Put the batch first: mask.T.")
        return False
    marks = _shape(case, read(case, _heads(case, mask)))
    if marks is None:
        return False
    shown = f"sequences of 2, 5 and 3 real tokens, padded to {real.shape[1]}"
    found, _ = line_up(case, marks, _padding_guesses(real, marks.marked.shape), shown)
    if found is None and not _shows_padding(marks, real):
        sentence = "No query sees padding, but some real tokens are hidden in a way not known here."
        case.add(Finding("a pattern of its own", NOT_SEPARABLE, sentence, "", shown))
    elif found is None:
        sentence = "What is marked fits neither the real tokens nor the padding in any way known here."
        cure = "real = torch.arange(n) < lengths[:, None], then real[:, None, :]."
        case.fault("no padding mask", sentence, cure, shown)
    elif not found.kind:
        case.tried.append(shown)
    return True


def _shows_padding(marks: Marks, real: np.ndarray) -> bool:
    """Does a real query see a padded key, whichever way the marks are read?"""
    n = real.shape[1]
    marked = np.broadcast_to(marks.marked, (len(real), n, n))
    pairs = real[:, :, None] & ~real[:, None, :]
    readings = [~marked] if marks.says == "hide" else [marked, ~marked]
    return all((keep & pairs).any() or not (keep & ~pairs).any() for keep in readings)


def mask_name(patient: Callable) -> str | None:
    """The argument that takes a mask of real tokens, if the patient cannot do without."""
    return next((name for name in required(patient) if name.lower().endswith("mask")), None)


def _known(patient: Callable) -> dict[str, Any]:
    """Required arguments whose names say what they want, whichever way tokens are given."""
    heads = {name: 2 for name in required(patient) if name.lower() in HEAD_NAMES}
    return heads | known(patient, (3, 5))


Answer = Callable[..., Any]


def padding_input(patient: Callable, means: str | None = None) -> tuple[np.ndarray, Answer, bool]:
    """Which tokens are real (3, 5); pad_id -> mask, whatever the arguments' names; is there a pad_id?"""
    real = np.arange(5)[None, :] < np.array(LENGTHS)[:, None]
    if mask_name(patient):
        return real, _from_mask(means, patient, real), False
    by_length, pad = (named(patient, names) for names in (LENGTH_NAMES, PAD_NAMES))
    size = next((name for name in required(patient)[1:] if name.lower() in SIZE_NAMES), None)
    extra = _known(patient)
    twins = [name for name in required(patient) if name.lower() in ID_NAMES][1:]  # queries' and keys' tokens
    needed = len([r for r in required(patient) if r not in extra and r not in twins])

    def with_lengths(pad_id: int, kind: Callable) -> Any:
        loose = [] if size or needed < 2 else [5]
        rest = {size: 5} if size else {}
        return caller.call(patient, kind(LENGTHS), *loose, **rest, **extra)

    def with_ids(pad_id: int, kind: Callable) -> Any:
        ids = kind(np.where(real, np.arange(3, 18).reshape(3, 5), pad_id))
        loose = [] if pad or needed < 2 else [pad_id]
        rest = {pad: pad_id} if pad else {}
        return caller.call(patient, ids, *loose, **rest, **{name: ids for name in twins}, **extra)

    def enough(way: tuple[Answer, Callable]) -> None:
        shape = array(way[0](0, way[1])).shape
        if math.prod(shape) < real.size:
            raise Trouble(f"returns the shape {shape} for 3 sequences of 5 tokens")

    inputs = [] if pad or named(patient, ID_NAMES) else [with_lengths]
    inputs += [] if by_length else [with_ids]
    ways = list(itertools.product(inputs, (torch.as_tensor, np.asarray)))
    try:
        (ask, kind), _ = first_answer(ways, enough)
    except (Hangs, Unfit):
        raise
    except Trouble:
        (ask, kind), _ = first_answer(ways, lambda way: array(way[0](0, way[1])))
    return real, lambda pad_id: ask(pad_id, kind), ask is with_ids and bool(pad or needed > 1)


def _own_pad(case: MaskNotes, ask: Answer, mask: np.ndarray) -> np.ndarray:
    """Another id may stand for padding in code that is not told it."""
    for pad in (1, 2):
        other = array(ask(pad))
        if other.min() != other.max():
            sentence = f"The id {pad} is hidden as padding; 0 counts as a token."
            case.convention("padding is another id", sentence)
            return other
    return mask


def _from_mask(means: str | None, patient: Callable, real: np.ndarray) -> Answer:
    """The patient's answer to a mask of real tokens, in the dtype that it turns into a mask best.

    An argument whose name speaks of padding may want the padding marked instead, as in PyTorch.
    """
    name = mask_name(patient)
    given = _known(patient)
    for other in required(patient):  # models hand such helpers what they have at hand
        low = other.lower()
        if other != name and low in ID_NAMES:
            given[other] = torch.arange(3, 18).reshape(3, 5)
        elif low in (*SIZE_NAMES, "tgt_len", "src_len"):
            given[other] = 5
        elif low == "inputs_embeds":
            given[other] = torch.zeros(3, 5, 4)
        elif low.startswith("past"):
            given[other] = 0
    turned = [real, ~real] if "pad" in name.lower() else [real]
    best, fewest, trouble = None, math.inf, None
    for marked, dtype in itertools.product(turned, (torch.long, torch.float32, torch.bool)):

        def ask(pad_id: int, marked: np.ndarray = marked, dtype: torch.dtype = dtype) -> Any:
            return caller.call(patient, **{name: torch.as_tensor(marked).to(dtype)}, **given)

        try:
            scratch = MaskNotes(means=means)
            _judged(scratch, array(ask(0)), real)
        except (Hangs, Unfit):
            raise
        except Trouble as error:
            trouble = trouble or error
            continue
        faults = sum(finding.verdict == FAULT for finding in scratch.findings)
        if faults < fewest:
            best, fewest = ask, faults
    if best is None:
        raise trouble
    return best


def _heads(case: MaskNotes, mask: np.ndarray) -> np.ndarray:
    """(B * heads, ...) without heads: nn.MultiheadAttention wants those of one sequence side by side."""
    if mask.shape[0] != 6:
        return mask
    if np.array_equal(mask[:3], mask[3:]):
        sentence = (
            "The mask repeats the whole batch for each head: sequence 0's second head gets sequence 1's mask."
        )
        cure = "mask.repeat_interleave(heads, dim=0) instead of mask.repeat(heads, 1, 1)."
        case.fault("heads before batch", sentence, cure)
        return mask[:3]
    return mask[::2] if np.array_equal(mask[::2], mask[1::2]) else mask


def _shape(case: MaskNotes, marks: Marks) -> Marks | None:
    """(B, ..., 1 or n, n): as (B, n or 1, n), or (B, n, 1) for a mask of queries."""
    shape, marked = marks.marked.shape, marks.marked
    if shape == (3, 5):
        return Marks(marked[:, None, :], marks.says)
    if shape[-2:] == (5, 5) and set(shape[:-2]) <= {1}:
        return Marks(np.broadcast_to(marked.reshape(5, 5), (3, 5, 5)), marks.says)
    if len(shape) >= 3 and shape[0] == 3 and set(shape[-2:]) <= {1, 5} and set(shape[1:-2]) <= {1}:
        if len(shape) > 3:
            case.convention("extra axes", f"The mask has the shape {shape}, with an axis for heads.")
        return Marks(marked.reshape(3, *shape[-2:]), marks.says)
    sentence = (
        f"3 sequences of 5 tokens give the shape {shape}, which does not broadcast to (B, n_q, n_k) sequence "
        "by sequence."
    )
    case.fault("wrong shape", sentence, "real[:, None, :] is (B, 1, n_k); with heads real[:, None, None, :].")
    return None


def _padding_guesses(real: np.ndarray, shape: tuple[int, ...]) -> Iterator[Guess]:
    """What padding masks are known to be, as (3, 5), spread to the axes of the mask at hand."""
    n, lengths = real.shape[1], real.sum(1)[:, None]
    place = np.arange(n)[None, :]
    lower = np.tril(np.ones(shape[-2:], bool))
    yield from _spread(Guess("", real), shape)
    if shape[-2:] == (n, n):
        sentence = "The mask hides the future; padding is left to another mask."
        keep = np.broadcast_to(lower, shape)
        yield Guess("hides the future only", keep, sentence, verdict=CONVENTION)
    for guess in (
        Guess(
            "padding on the left",
            place >= n - lengths,
            "Padding is expected before the real tokens.",
            "Right only if sequences are padded so.",
            CONVENTION,
        ),
        Guess(
            "one padded token visible",
            place < lengths + 1,
            "The first padded token of each sequence may still be attended to.",
            "arange(n) < lengths, not <=.",
        ),
        Guess(
            "last token hidden",
            place < lengths - 1,
            "The last real token of each sequence is hidden.",
            "arange(n) < lengths, not < lengths - 1.",
        ),
        Guess("hides nothing", real | True, "Padding may be attended to."),
        Guess("hides everything", real & False, "No token may be attended to."),
        Guess(
            "padding inverted",
            ~real,
            "Real tokens are hidden, and padding may be attended to.",
            "Turn it: mask = ~mask, or != instead of ==.",
        ),
    ):
        yield from _spread(guess, shape)
    if shape[-2:] == (n, n):
        yield from _wrong_triangles(real, shape)


def _wrong_triangles(real: np.ndarray, shape: tuple[int, ...]) -> Iterator[Guess]:
    """The padding is right, but the triangle that hides the future is not, or how the two were joined."""
    keys, ones = np.broadcast_to(real[:, None, :], shape), np.ones(shape[-2:], bool)
    cure = "Keep the lower triangle: tril(), without an offset."
    for kind, triangle, but in (
        ("upper triangle", np.triu(ones), "of real tokens the past instead of the future"),
        ("upper triangle", np.triu(ones, 1), "so are a token itself and its past"),
        ("diagonal excluded", np.tril(ones, -1), "a token may not see itself"),
        ("sees one token ahead", np.tril(ones, 1), "token i sees token i + 1"),
    ):
        yield Guess(kind, keys & triangle, f"Padding is hidden, but {but}.", cure)
    yield Guess(
        "padding or future: joined with or",
        keys | np.tril(ones),
        "A token is seen if it is real or lies in the past, so that real tokens of the future are seen.",
        "Join what is kept with &, what is hidden with |.",
    )


ROWS = "Rows of padded queries are hidden, while every real query still sees the padded keys."
ROWS_CURE = "The tokens belong on the last axis: real[:, None, :] instead of real[:, :, None]."


def _spread(guess: Guess, shape: tuple[int, ...]) -> Iterator[Guess]:
    """The same tokens as keys, as queries, as both; for the right tokens, all but the keys are mistakes."""
    keys, queries = guess.keep[:, None, :], guess.keep[:, :, None]
    if shape[-1] == 1:
        if not guess.kind:
            yield Guess("query rows hidden instead of keys", queries, ROWS, ROWS_CURE)
        return
    keys = np.broadcast_to(keys, shape)
    yield replace(guess, keep=keys)
    if shape[-2] == 1:
        return
    lower = np.tril(np.ones(shape[-2:], bool))
    yield replace(guess, keep=keys & lower)
    if guess.kind:
        return
    yield Guess("query rows hidden instead of keys", np.broadcast_to(queries, shape), ROWS, ROWS_CURE)
    both = "Rows of padded queries are empty too: their softmax is NaN unless it is caught."
    kind, cure = "padded queries see nothing", "Hiding the keys is enough."
    yield Guess(kind, keys & queries, both, cure, CONVENTION)
    yield Guess(kind, keys & queries & lower, both, "", CONVENTION)
    cure = "Hide padded keys for every query: real[:, None, :]."
    yield Guess(
        "padded tokens see each other",
        keys == queries,
        "Whether two tokens are both real or both padding was compared: padded queries attend to padding.",
        cure,
    )
    yield Guess(
        "a token is hidden only if query and key are padding",
        keys | queries,
        "Real queries still see padded keys.",
        cure,
    )


def _other_pad(case: MaskNotes, ask: Answer, mask: np.ndarray) -> None:
    """The same batch with another id for padding must give the same mask."""
    try:
        other = array(ask(1))
    except Trouble:
        return
    if other.shape == mask.shape and not np.array_equal(other, mask, equal_nan=mask.dtype.kind == "f"):
        sentence = "With pad_id=1 the mask is another one: 0 is written into the code."
        case.fault("pad_id is ignored", sentence, "ids != pad_id instead of ids != 0.", "pad_id = 1")
