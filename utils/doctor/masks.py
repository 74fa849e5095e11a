"""Examining a function that builds a mask: for the future, or for padding.

Its values say which entries are marked and how (True, 1, minus infinity ...). The marked entries are
compared with what mask builders are known to produce, in both readings: marked may attend, marked is hidden.
"""

from __future__ import annotations

import inspect
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from utils.doctor import call as caller
from utils.doctor.call import Hangs, Trouble
from utils.doctor.encoders import named, required
from utils.doctor.report import CONVENTION, FAULT, Finding, Matrices, Report

SPECIES = "mask builder"
LENGTH_NAMES = [
    "lengths",
    "lens",
    "seq_lens",
    "seq_lengths",
    "valid_lens",
    "valid_len",
    "valid_lengths",
    "x_len",
]
ID_NAMES = [
    "ids",
    "input_ids",
    "tokens",
    "token_ids",
    "seq",
    "src",
    "tgt",
    "trg",
    "x",
    "batch",
    "inputs",
    "seq_q",
]
PAD_NAMES = ["pad_id", "pad", "pad_idx", "padding_idx", "pad_token_id", "pad_token", "padding_id"]
SIZE_NAMES = [
    "n",
    "n_k",
    "max_len",
    "maxlen",
    "max_length",
    "seq_len",
    "length",
    "size",
    "sz",
    "t",
    "l",
    "n_q",
]
HEAD_NAMES = ["heads", "num_heads", "n_heads", "h", "n_head", "nhead"]
LENGTHS = (2, 5, 3)
HALF_RANGE = 65504.0  # float16 ends here
STRONG = -50.0  # exp of this is 2e-22


@dataclass
class Examination:
    """What is known so far."""

    means: str | None
    findings: list[Finding] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)

    def say(self, kind: str, verdict: str, sentence: str, cure: str = "", shown: str = "",
            matrices: tuple[np.ndarray, np.ndarray] | None = None) -> None:  # fmt: skip
        """Note a finding, once."""
        if kind not in [f.kind for f in self.findings]:
            proof = (Matrices("1 = may attend", *(m.astype(float) for m in matrices)),) if matrices else ()
            self.findings.append(Finding(kind, verdict, sentence, cure, shown, proof))


@dataclass(frozen=True)
class Guess:
    """A mask as somebody may have built it: what is kept, and what to say of it."""

    kind: str
    keep: np.ndarray
    verdict: str = FAULT
    sentence: str = ""
    cure: str = ""


def examine(
    patient: Callable, name: str = "patient", *, means: str | None = None, species: str | None = None
) -> Report:
    """Examine a builder of masks: f(n), f(n_q, n_k), f(lengths, n) or f(ids, pad_id).

    means    what a marked entry (True, 1) was meant to say: "keep" (may attend) or "hide".
             None: either, if the mask is right in one reading
    species  "causal" or "padding", where the names of the arguments do not tell
    """
    began = time.perf_counter()
    if means not in (None, "keep", "hide") or species not in (None, "causal", "padding"):
        raise ValueError(
            f"means is 'keep', 'hide' or None, species 'causal', 'padding' or None: {means}, {species}"
        )
    case = Examination(means)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            if (species or _kind_of(patient)) == "causal":
                _causal(case, patient)
            else:
                _padding(case, patient)
    except Hangs as trouble:
        case.say("hangs", FAULT, f"It {trouble}.", "Look for a loop without an end.")
    except Trouble as trouble:
        case.say("crashes", FAULT, f"No input gave a mask: {trouble}.")
    order = {FAULT: 0, CONVENTION: 2}
    found = tuple(sorted(case.findings, key=lambda f: order.get(f.verdict, 1)))
    return Report(name, SPECIES, found, tuple(case.tried), (), time.perf_counter() - began)


def _kind_of(patient: Callable) -> str:
    """By the names of its arguments, or by what it accepts."""
    if named(patient, LENGTH_NAMES) or named(patient, PAD_NAMES):
        return "padding"
    if named(patient, SIZE_NAMES) and not named(patient, ID_NAMES):
        return "causal"
    try:
        if _array(caller.call(patient, *[5] * max(1, len(required(patient))))).size >= 25:
            return "causal"
    except Hangs:
        raise
    except Trouble:
        pass
    return "padding"


# -- values --------------------------------------------------------------------------------------


def _array(value: Any) -> np.ndarray:
    value = value[0] if isinstance(value, tuple) and value else value
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = value.float().numpy() if value.dtype == torch.bfloat16 else value.numpy()
    value = np.asarray(value)
    if value.dtype.kind not in "biuf":
        raise Trouble("returns no array of numbers")
    return value


@dataclass(frozen=True)
class Marks:
    """Which entries of a mask are marked, and what a mark says, where its value tells: "hide", or None."""

    marked: np.ndarray
    says: str | None


def _read(case: Examination, mask: np.ndarray) -> Marks:
    """Booleans, zeros and ones, or numbers to be added; oddities of the numbers are noted."""
    if mask.dtype == bool:
        return Marks(mask, None)
    wide = mask.astype(float)
    if np.isnan(wide).any():
        case.say(
            "not finite",
            FAULT,
            f"{np.isnan(wide).sum()} of {wide.size} entries are NaN: 0 times infinity is no number.",
            "torch.zeros(...).masked_fill(hidden, float('-inf')).",
        )
        wide = np.where(np.isnan(wide), 0.0, wide)
    values = set(np.unique(wide).tolist())
    if values <= {0.0, 1.0}:
        case.say(
            "zeros and ones",
            CONVENTION,
            f"The mask holds 0 and 1 as {mask.dtype}: added to scores it would hide nothing.",
            "mask.bool(), and masked_fill where it is used.",
        )
        return Marks(wide == 1, None)
    case.say(
        "added to scores", CONVENTION, "The mask is made of numbers to be added: 0 leaves a score as it is."
    )
    fill = max((v for v in values if v != 0), key=abs)
    if len(values - {0.0}) > 1:
        case.say(
            "several fills",
            FAULT,
            f"Hidden entries hold different numbers: {sorted(values)[:4]}.",
            "Combine masks as booleans, with & or |, and fill once.",
        )
    _fill(case, fill)
    return Marks(wide != 0, "hide")


def _fill(case: Examination, fill: float) -> None:
    line = "masked_fill(hidden, float('-inf'))."
    if abs(fill) < 1e-3:
        case.say(
            "fill near zero",
            FAULT,
            f"The fill is {fill:g}, which is nearly 0: a hidden key keeps its score (was {fill:g} "
            "meant as a power of ten "
            "with the other sign?).",
            line,
        )
    elif fill > 0:
        case.say("fill is positive", FAULT, f"{fill:g} is added to hidden scores: they win.", line)
    elif fill > STRONG:
        share = np.exp(fill)
        sentence = (
            f"The fill is {fill:g}: against an equal score a hidden key still gets {share:.2g} of a share."
        )
        case.say("fill too weak", FAULT, sentence, line)
    elif np.isfinite(fill) and fill < -HALF_RANGE:
        case.say(
            "fill overflows float16",
            CONVENTION,
            f"The fill {fill:.3g} is beyond float16, which ends at -65504: fine in float32.",
            "float('-inf'), or torch.finfo(scores.dtype).min.",
        )


def _line_up(
    case: Examination, marks: Marks, guesses: Iterable[Guess], shown: str
) -> tuple[Guess | None, str | None]:
    """The first guess that fits, the right one first, and its reading: the one that was meant, or either."""
    guesses, meant = list(guesses), marks.says or case.means
    readings = {"keep": marks.marked, "hide": ~marks.marked}
    for guess, reading in itertools.product(guesses, [meant] if meant else ["keep", "hide"]):
        if not np.array_equal(readings[reading], guess.keep):
            continue
        if reading == "hide" and meant is None:
            case.say(
                "marked means hidden",
                CONVENTION,
                "True (or 1) marks what is hidden, as in nn.MultiheadAttention; "
                "F.scaled_dot_product_attention reads True as 'may attend'.",
                "Turn it with ~mask where the other meaning is wanted.",
            )
        if guess.kind:
            proof = tuple(keep.reshape(-1, keep.shape[-1]) for keep in (guess.keep, guesses[0].keep))
            proof = proof if proof[0].shape == proof[1].shape else None
            case.say(guess.kind, guess.verdict, guess.sentence, guess.cure, shown, proof)
        return guess, reading
    return None, None


# -- the future ------------------------------------------------------------------------------------


def _causal(case: Examination, patient: Callable) -> None:
    needed = max(1, len(required(patient)))
    guess = reading = None
    for n in (5, 8, 2, 1):
        mask = _array(caller.call(patient, *[n] * needed))
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
            marks = _read(case, mask.reshape(n, n))
            guess, reading = _line_up(case, marks, _causal_guesses(n), f"n = {n}")
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
    return [Guess("", np.tril(ones)), itself, ahead, nothing, everything, turned, strict]


def _two_sizes(case: Examination, patient: Callable) -> None:
    """n_q and n_k: where does the diagonal start?"""
    try:
        names = [p for p in inspect.signature(patient).parameters if p not in ("device", "dtype")]
        mask = _array(caller.call(patient, 3, 5)) if len(names) > 1 else None
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


# -- padding ---------------------------------------------------------------------------------------


def _padding(case: Examination, patient: Callable) -> None:
    real, ask = _padding_input(patient)
    mask = _array(ask(0))
    if mask.shape[-1] == 3 and mask.shape[0] == 5 and mask.ndim == 2:
        case.say("wrong shape", FAULT, "The mask comes as (n, B).", "Put the batch first: mask.T.")
        return
    heads = _heads(case, mask, real)
    marks = _read(case, mask if heads is None else heads)
    shaped = _shape(case, marks, real)
    if shaped is None:
        return
    shown = f"sequences of 2, 5 and 3 real tokens, padded to {real.shape[1]}"
    found, _ = _line_up(case, shaped, _padding_guesses(real, shaped.marked.shape), shown)
    if found is None:
        case.say(
            "no padding mask",
            FAULT,
            "What is marked fits neither the real tokens nor the padding in any way known here.",
            "real = torch.arange(n) < lengths[:, None], then real[:, None, :].",
            shown,
        )
    elif not found.kind:
        case.tried.append(shown)
    _other_pad(case, ask, mask)


def _padding_input(patient: Callable) -> tuple[np.ndarray, Callable[[int], Any]]:
    """Which tokens are real (3, 5), and pad_id -> mask, however the arguments are called."""
    real = np.arange(5)[None, :] < np.array(LENGTHS)[:, None]
    by_length, pad, size = (named(patient, names) for names in (LENGTH_NAMES, PAD_NAMES, SIZE_NAMES))
    extra = {h: 2 for h in [named(patient, HEAD_NAMES)] if h in required(patient)}
    trouble: Trouble | None = None
    for way in ("lengths", "ids"):
        if (way == "ids" and by_length) or (way == "lengths" and (pad or named(patient, ID_NAMES))):
            continue

        def ask(pad_id: int, way: str = way) -> Any:
            if way == "lengths":
                first = torch.tensor(LENGTHS)
                rest = {size: 5} if size else {}
                needed = len([r for r in required(patient) if r not in extra])
                loose = [] if size or needed < 2 else [5]
            else:
                ids = torch.arange(3, 18).reshape(3, 5)
                first = torch.where(torch.as_tensor(real), ids, torch.tensor(pad_id))
                rest = {pad: pad_id} if pad else {}
                needed = len([r for r in required(patient) if r not in extra])
                loose = [] if pad or needed < 2 else [pad_id]
            return caller.call(patient, first, *loose, **rest, **extra)

        try:
            _array(ask(0))
            return real, ask
        except Hangs:
            raise
        except Trouble as error:
            trouble = trouble or error
    raise trouble or Trouble("takes neither lengths nor ids")


def _heads(case: Examination, mask: np.ndarray, real: np.ndarray) -> np.ndarray | None:
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


def _shape(case: Examination, marks: Marks, real: np.ndarray) -> Marks | None:
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


ROWS = "Rows of padded queries are hidden, while every real query still sees the padded keys."
ROWS_CURE = "The tokens belong on the last axis: real[:, None, :] instead of real[:, :, None]."


def _other_pad(case: Examination, ask: Callable[[int], Any], mask: np.ndarray) -> None:
    """The same batch with another id for padding must give the same mask."""
    try:
        other = _array(ask(1))
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
