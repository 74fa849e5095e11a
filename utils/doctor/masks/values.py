"""What a mask says: which entries are marked, how, and which known mask that is."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from utils.doctor.call import Trouble, Unfit
from utils.doctor.notes import Notes
from utils.doctor.report import FAULT, Finding, Matrices

HALF_RANGE = 65504.0  # float16 ends here
STRONG = -50.0  # exp of this is 2e-22


@dataclass
class MaskNotes(Notes):
    """What is noted of a mask builder; `means` as in `masks.examine`."""

    means: str | None = None


@dataclass(frozen=True)
class Guess:
    """A mask as somebody may have built it: what is kept, and what to say of it."""

    kind: str
    keep: np.ndarray
    sentence: str = ""
    cure: str = ""
    verdict: str = FAULT


@dataclass(frozen=True)
class Marks:
    """Which entries of a mask are marked, and what a mark says, where its value tells: "hide", or None."""

    marked: np.ndarray
    says: str | None


def array(value: Any) -> np.ndarray:
    """A mask as a numpy array; Trouble if it is none."""
    if isinstance(value, tuple) and sum(isinstance(v, Tensor | np.ndarray) for v in value) > 1:
        raise Unfit(f"it returns {len(value)} results, and masks are examined one by one")
    value = value[0] if isinstance(value, tuple) and value else value
    if isinstance(value, Tensor):
        if value.is_meta:
            raise Trouble("returns a tensor without numbers")
        value = value.detach().to_dense().cpu()
        value = value.float().numpy() if value.dtype == torch.bfloat16 else value.numpy()
    value = np.asarray(value)
    if value.dtype.kind not in "biuf" or not value.ndim or not value.size:
        raise Trouble("returns no array of numbers")
    if len(np.unique(value)) > 4:
        raise Unfit(
            "it returns many different numbers, a bias to be added to scores (ALiBi, distances), no mask"
        )
    return value


def read(case: MaskNotes, mask: np.ndarray) -> Marks:
    """Booleans, zeros and ones, or numbers to be added; oddities of the numbers are noted."""
    if mask.dtype == bool:
        return Marks(mask, None)
    wide = mask.astype(float)
    nans = np.isnan(wide)
    if nans.any():
        sentence = f"{nans.sum()} of {wide.size} entries are NaN: 0 times infinity is no number."
        case.fault("not finite", sentence, "torch.zeros(...).masked_fill(hidden, float('-inf')).")
        wide[nans] = 0.0
    values = set(np.unique(wide).tolist())
    if len(values) > 4:
        raise Unfit(
            f"its {len(values)} different numbers are a bias to be added to scores (ALiBi, distances)"
        )
    if values <= {0.0, 1.0}:
        sentence = f"The mask holds 0 and 1 as {mask.dtype}: added to scores it would hide nothing."
        case.convention("zeros and ones", sentence, "mask.bool(), and masked_fill where it is used.")
        return Marks(wide == 1, None)
    case.convention("added to scores", "The mask is made of numbers to be added: 0 leaves a score as it is.")
    if len({max(v, STRONG) for v in values} - {0.0}) > 1:  # two strong ones are as good as one
        sentence = f"Hidden entries hold different numbers: {sorted(values)[:4]}."
        case.fault("several fills", sentence, "Combine masks as booleans, with & or |, and fill once.")
    _fill(case, max((v for v in values if v != 0), key=abs))
    return Marks(wide != 0, "hide")


def _fill(case: MaskNotes, fill: float) -> None:
    line = "masked_fill(hidden, float('-inf'))."
    if abs(fill) < 1e-3:
        sentence = (
            f"The fill is {fill:g}, which is nearly 0: a hidden key keeps its score (was {fill:g} meant as a "
            "power of ten with the other sign?)."
        )
        case.fault("fill near zero", sentence, line)
    elif fill > 0:
        case.fault("fill is positive", f"{fill:g} is added to hidden scores: they win.", line)
    elif fill > STRONG:
        sentence = (
            f"The fill is {fill:g}: against an equal score a hidden key still gets {np.exp(fill):.2g} of a "
            "share."
        )
        case.fault("fill too weak", sentence, line)
    elif np.isfinite(fill) and fill < -HALF_RANGE:
        sentence = f"The fill {fill:.3g} is beyond float16, which ends at -65504: fine in float32."
        cure = "float('-inf'), or torch.finfo(scores.dtype).min."
        case.convention("fill overflows float16", sentence, cure)


def line_up(
    case: MaskNotes, marks: Marks, guesses: Iterable[Guess], shown: str
) -> tuple[Guess | None, str | None]:
    """The first guess that fits, the right one first, and its reading: the one that was meant, or either."""
    guesses, meant = list(guesses), marks.says or case.means
    readings = {"keep": marks.marked, "hide": ~marks.marked}
    for guess, reading in itertools.product(guesses, [meant] if meant else ["keep", "hide"]):
        if not np.array_equal(readings[reading], guess.keep):
            continue
        if reading == "hide" and meant is None:
            case.convention(
                "marked means hidden",
                "True (or 1) marks what is hidden, as in nn.MultiheadAttention; "
                "F.scaled_dot_product_attention reads True as 'may attend'.",
                "Turn it with ~mask where the other meaning is wanted.",
            )
        if guess.kind:  # shown for the first sequence
            found, wanted = (
                (keep if keep.ndim == 2 else keep[0]).astype(float) for keep in (guess.keep, guesses[0].keep)
            )
            proof = (Matrices("1 = may attend", found, wanted),) if found.shape == wanted.shape else ()
            case.add(Finding(guess.kind, guess.verdict, guess.sentence, guess.cure, shown, proof))
        return guess, reading
    return None, None
