"""Masks that hide padding."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from utils.doctor import call as caller
from utils.doctor.call import Hangs, Trouble
from utils.doctor.masks.names import HEAD_NAMES, ID_NAMES, LENGTH_NAMES, PAD_NAMES, SIZE_NAMES
from utils.doctor.masks.values import Guess, Marks, MaskNotes, array, line_up, read
from utils.doctor.notes import Unfit
from utils.doctor.positions.patients import named, required
from utils.doctor.report import CONVENTION, FAULT, NOT_SEPARABLE

LENGTHS = (2, 5, 3)


def padding(case: MaskNotes, patient: Callable) -> None:
    """Examine f(lengths, n) or f(ids, pad_id)."""
    real, ask, takes_pad = _padding_input(case, patient)
    mask = array(ask(0))
    found = _judged(case, mask, real)
    if takes_pad and found:
        _other_pad(case, ask, mask)


def _judged(case: MaskNotes, mask: np.ndarray, real: np.ndarray) -> bool:
    """Compare a mask of sequences with these real tokens with what is known; False for another shape."""
    if mask.shape[-1] == 3 and mask.shape[0] == 5 and mask.ndim == 2:
        case.say("wrong shape", FAULT, "The mask comes as (n, B).", "Put the batch first: mask.T.")
        return False
    heads = _heads(case, mask, real)
    marks = read(case, mask if heads is None else heads)
    shaped = _shape(case, marks, real)
    if shaped is None:
        return False
    shown = f"sequences of 2, 5 and 3 real tokens, padded to {real.shape[1]}"
    found, _ = line_up(case, shaped, _padding_guesses(real, shaped.marked.shape), shown)
    if found is None and not _shows_padding(shaped, real):
        case.say(
            "a pattern of its own",
            NOT_SEPARABLE,
            "No query sees padding, but some real tokens are hidden in a way not known here.",
            "",
            shown,
        )
    elif found is None:
        case.say(
            "no padding mask",
            FAULT,
            "What is marked fits neither the real tokens nor the padding in any way known here.",
            "real = torch.arange(n) < lengths[:, None], then real[:, None, :].",
            shown,
        )
    elif not found.kind:
        case.tried.append(shown)
    return True


def _shows_padding(marks: Marks, real: np.ndarray) -> bool:
    """Does a real query see a padded key, whichever way the marks are read?"""
    n = real.shape[1]
    marked = np.broadcast_to(marks.marked, (len(real), *[n, n]))
    pairs = real[:, :, None] & ~real[:, None, :]
    readings = [~marked] if marks.says == "hide" else [marked, ~marked]
    return all((keep & pairs).any() or not (keep & ~pairs).any() for keep in readings)


def mask_name(patient: Callable) -> str | None:
    """The argument that takes a mask of real tokens, if the patient cannot do without."""
    return next((name for name in required(patient) if name.lower().endswith("mask")), None)


def _known(patient: Callable, skip: str | None = None) -> dict[str, Any]:
    """Required arguments whose names say what they want, whichever way tokens are given."""
    given: dict[str, Any] = {}
    for name in required(patient):
        low = name.lower()
        if name == skip:
            continue
        if low in HEAD_NAMES:
            given[name] = 2
        elif low == "dtype":
            given[name] = torch.float32
        elif low == "device":
            given[name] = "cpu"
        elif low.endswith("shape"):
            given[name] = (3, 5)
    return given


Answer = Callable[[int], Any]


def _padding_input(case: MaskNotes, patient: Callable) -> tuple[np.ndarray, Answer, bool]:
    """Which tokens are real (3, 5); pad_id -> mask, whatever the arguments' names; is there a pad_id?"""
    real = np.arange(5)[None, :] < np.array(LENGTHS)[:, None]
    if mask_name(patient):
        return real, _from_mask(case, patient, real), False
    by_length, pad, size = (named(patient, names) for names in (LENGTH_NAMES, PAD_NAMES, SIZE_NAMES))
    extra = _known(patient)
    twins = [name for name in required(patient) if name.lower() in ID_NAMES][1:]  # queries' and keys' tokens
    needed = len([r for r in required(patient) if r not in extra and r not in twins])
    trouble: Trouble | None = None
    for way in ("lengths", "ids"):
        if (way == "ids" and by_length) or (way == "lengths" and (pad or named(patient, ID_NAMES))):
            continue

        def ask(pad_id: int, way: str = way) -> Any:
            if way == "lengths":
                first = torch.tensor(LENGTHS)
                rest = {size: 5} if size else {}
                loose = [] if size or needed < 2 else [5]
            else:
                ids = torch.arange(3, 18).reshape(3, 5)
                first = torch.where(torch.as_tensor(real), ids, torch.tensor(pad_id))
                rest = {pad: pad_id} if pad else {}
                rest |= {name: first for name in twins}
                loose = [] if pad or needed < 2 else [pad_id]
            return caller.call(patient, first, *loose, **rest, **extra)

        try:
            array(ask(0))
            return real, ask, way == "ids" and bool(pad or needed > 1)
        except (Hangs, Unfit):
            raise
        except Trouble as error:
            trouble = trouble or error
    raise trouble or Trouble("takes neither lengths nor ids")


def _from_mask(case: MaskNotes, patient: Callable, real: np.ndarray) -> Answer:
    """The patient's answer to a mask of real tokens, in the dtype that it turns into a mask best.

    An argument whose name speaks of padding may want the padding marked instead, as in PyTorch.
    """
    name = mask_name(patient)
    given = _known(patient, name)
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
            scratch = MaskNotes(means=case.means)
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


def _heads(case: MaskNotes, mask: np.ndarray, real: np.ndarray) -> np.ndarray | None:
    """(B * heads, ...): nn.MultiheadAttention wants the heads of one sequence side by side."""
    if mask.shape[0] != 6:
        return None
    pieces = mask.reshape(6, -1)
    if np.array_equal(pieces[:3], pieces[3:]):
        case.say(
            "heads before batch",
            FAULT,
            "The mask repeats the whole batch for each head: sequence 0's second head gets sequence "
            "1's mask.",
            "mask.repeat_interleave(heads, dim=0) instead of mask.repeat(heads, 1, 1).",
        )
        return mask[:3]
    return mask[::2] if np.array_equal(pieces[::2], pieces[1::2]) else None


def _shape(case: MaskNotes, marks: Marks, real: np.ndarray) -> Marks | None:
    """(B, ..., 1 or n, n): as (B, n or 1, n), or (B, n, 1) for a mask of queries."""
    shape, marked = marks.marked.shape, marks.marked
    if shape == (3, 5):
        return Marks(marked[:, None, :], marks.says)
    if shape == (5, 5) or (shape[-2:] == (5, 5) and set(shape[:-2]) == {1}):
        return Marks(np.broadcast_to(marked.reshape(5, 5), (3, 5, 5)), marks.says)
    if len(shape) >= 3 and shape[0] == 3:
        core = marked.reshape(3, *[s for s in shape[1:-2] if s != 1], *shape[-2:])
        if core.ndim == 3 and shape[-1] in (1, 5) and shape[-2] in (1, 5):
            if len(shape) > 3:
                case.say("extra axes", CONVENTION, f"The mask has the shape {shape}, with an axis for heads.")
            return Marks(core, marks.says)
    case.say(
        "wrong shape",
        FAULT,
        f"3 sequences of 5 tokens give the shape {shape}, which does not broadcast to (B, n_q, n_k) "
        "sequence by sequence.",
        "real[:, None, :] is (B, 1, n_k); with heads real[:, None, None, :].",
    )
    return None


ROWS = "Rows of padded queries are hidden, while every real query still sees the padded keys."


ROWS_CURE = "The tokens belong on the last axis: real[:, None, :] instead of real[:, :, None]."


def _padding_guesses(real: np.ndarray, shape: tuple[int, ...]) -> Iterator[Guess]:
    """What padding masks are known to be, as (3, 5), spread to the axes of the mask at hand."""
    n, lengths = real.shape[1], real.sum(1)
    place = np.arange(n)[None, :]
    more, less = place < (lengths + 1)[:, None], place < (lengths - 1)[:, None]
    left = place >= (n - lengths)[:, None]
    for guess in (
        Guess("", real),
        Guess(
            "padding on the left",
            left,
            CONVENTION,
            "Padding is expected before the real tokens.",
            "Right only if sequences are padded so.",
        ),
        Guess(
            "one padded token visible",
            more,
            FAULT,
            "The first padded token of each sequence may still be attended to.",
            "arange(n) < lengths, not <=.",
        ),
        Guess(
            "last token hidden",
            less,
            FAULT,
            "The last real token of each sequence is hidden.",
            "arange(n) < lengths, not < lengths - 1.",
        ),
        Guess("hides nothing", real | True, FAULT, "Padding may be attended to."),
        Guess("hides everything", real & False, FAULT, "No token may be attended to."),
        Guess(
            "padding inverted",
            ~real,
            FAULT,
            "Real tokens are hidden, and padding may be attended to.",
            "Turn it: mask = ~mask, or != instead of ==.",
        ),
    ):
        yield from _spread(guess, shape)
        if not guess.kind and shape[-2:] == (n, n):
            lower = np.broadcast_to(np.tril(np.ones((n, n), bool)), shape)
            sentence = "The mask hides the future; padding is left to another mask."
            yield Guess("hides the future only", lower, CONVENTION, sentence)
    if shape[-2:] == (n, n):
        yield from _wrong_triangles(real, shape)


def _wrong_triangles(real: np.ndarray, shape: tuple[int, ...]) -> Iterator[Guess]:
    """The padding is right, but the triangle that hides the future is not, or how the two were joined."""
    keys, ones = np.broadcast_to(real[:, None, :], shape), np.ones(shape[-2:], bool)
    lower = "Keep the lower triangle: tril(), without an offset."
    for kind, triangle, sentence in (
        (
            "upper triangle",
            np.triu(ones),
            "Padding is hidden, but of real tokens the past instead of the future.",
        ),
        ("upper triangle", np.triu(ones, 1), "Padding is hidden, but so are a token itself and its past."),
        ("diagonal excluded", np.tril(ones, -1), "Padding is hidden, but a token may not see itself."),
        ("sees one token ahead", np.tril(ones, 1), "Padding is hidden, but token i sees token i + 1."),
    ):
        yield Guess(kind, keys & triangle, FAULT, sentence, lower)
    yield Guess(
        "padding or future: joined with or",
        keys | np.tril(ones),
        FAULT,
        "A token is seen if it is real or lies in the past, so that real tokens of the future are seen.",
        "Join what is kept with &, what is hidden with |.",
    )


def _spread(guess: Guess, shape: tuple[int, ...]) -> Iterator[Guess]:
    """The same tokens as keys, as queries, as both."""
    keys, queries = guess.keep[:, None, :], guess.keep[:, :, None]

    def wide(keep: np.ndarray) -> np.ndarray:
        return np.broadcast_to(keep, shape)

    if shape[-1] == 1:
        if not guess.kind:
            yield Guess("query rows hidden instead of keys", queries, FAULT, ROWS, ROWS_CURE)
        return
    yield Guess(guess.kind, wide(keys), guess.verdict, guess.sentence, guess.cure)
    if shape[-2] == 1:
        return
    lower = np.tril(np.ones(shape[-2:], bool))
    yield Guess(guess.kind, wide(keys & lower), guess.verdict, guess.sentence, guess.cure)
    if guess.kind:
        return
    yield Guess("query rows hidden instead of keys", wide(queries), FAULT, ROWS, ROWS_CURE)
    both = "Rows of padded queries are empty too: their softmax is NaN unless it is caught."
    yield Guess(
        "padded queries see nothing", wide(keys & queries), CONVENTION, both, "Hiding the keys is enough."
    )
    yield Guess("padded queries see nothing", wide(keys & queries & lower), CONVENTION, both)
    yield Guess(
        "padded tokens see each other",
        wide(keys == queries),
        FAULT,
        "Whether two tokens are both real or both padding was compared: padded queries attend to padding.",
        "Hide padded keys for every query: real[:, None, :].",
    )
    yield Guess(
        "a token is hidden only if query and key are padding",
        wide(keys | queries),
        FAULT,
        "Real queries still see padded keys.",
        "Hide padded keys for every query: real[:, None, :].",
    )


def _other_pad(case: MaskNotes, ask: Callable[[int], Any], mask: np.ndarray) -> None:
    """The same batch with another id for padding must give the same mask."""
    try:
        other = array(ask(1))
    except Trouble:
        return
    if other.shape == mask.shape and not np.array_equal(other, mask, equal_nan=mask.dtype.kind == "f"):
        case.say(
            "pad_id is ignored",
            FAULT,
            "With pad_id=1 the mask is another one: 0 is written into the code.",
            "ids != pad_id instead of ids != 0.",
            "pad_id = 1",
        )
