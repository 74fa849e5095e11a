"""The line-up: a patient's answers beside those of every hypothesis, on the same small inputs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache

import numpy as np
import torch
from torch import Tensor

from utils.doctor.call import Trouble
from utils.doctor.functions import words
from utils.doctor.functions.adapt import Patient
from utils.doctor.hypotheses import ALL_ROLES, Hypothesis, attend, is_number
from utils.doctor.notes import Notes, alike
from utils.doctor.report import FAULT, Finding, Matrices

NEAR = 2e-3  # largest difference, relative to the largest number, that counts as the same: float32 is enough
ROUGH = 0.15  # the same for the mean over many calls of a patient that answers at random
CALLS = 100


@dataclass(frozen=True)
class Shape:
    """The sizes that a patient is asked with: pairwise different, where it allows that."""

    n_q: int = 5
    n_k: int = 7
    d_v: int = 6
    d_k: int = 4
    batch: int = 2
    heads: int = 3

    def other(self) -> Shape:
        """Other sizes, equal where these are: what was so by chance in one is not in both."""
        d_v = 10 if self.d_v == self.d_k else 5
        return Shape(self.n_q + 4, self.n_k + 4, d_v, 10, 7, 2)

    def lead(self, axes: int) -> tuple[int, int]:
        """Sequences and heads, for inputs with so many axes."""
        return (self.batch if axes > 2 else 1, self.heads if axes > 3 else 1)


SHAPES = (Shape(), Shape(d_v=4), Shape(7, 7, 6), Shape(7, 7, 4), Shape(4, 4, 4))


@dataclass
class Case(Notes):
    """One examination in progress: the patient, and what is known of it.

    shape    the sizes that it takes
    meaning  what True means in its mask, if that is known: "keep", "hide" or "added"
    random   whether it answers at random
    naive    whether large scores overflow
    base     what it does without a mask
    mask     what it does with one
    causal   what it does with its causal flag
    """

    patient: Patient | None = None
    shape: Shape = SHAPES[0]
    meaning: str | None = None
    random: bool = False
    naive: bool = False
    base: Hypothesis | None = None
    mask: Hypothesis | None = None
    causal: Hypothesis | None = None

    def square(self) -> Case:
        """The same case with as many queries as keys; what is noted in one is noted in both."""
        return replace(self, shape=replace(self.shape, n_q=self.shape.n_k))

    def inputs(self, kind: str = "plain") -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of the sizes and axes that the patient takes."""
        return inputs(self.shape, self.patient.style.axes, kind)

    def ask(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """The patient's output; the mean of many where it answers at random."""
        if not self.random:
            return self.patient(q, k, v, keep, causal)[0]
        torch.manual_seed(0)
        return torch.stack([self.patient(q, k, v, keep, causal)[0] for _ in range(CALLS)]).mean(0)

    def answer(self, kind: str = "plain", masked: str = "") -> Tensor:
        """The patient's output for one of the inputs; masked: "", "padding", "pairs" or "causal"."""
        keep = keeps(masked, self.shape, self.patient.style.axes)
        return self.ask(*self.inputs(kind), keep, masked == "causal")

    def answers(self, masked: str) -> dict[str, Tensor]:
        """Its outputs for all inputs that tell fills apart. Of very low scores, a naive softmax is 0 / 0."""
        return {kind: self.answer(kind, masked) for kind in (("plain",) if self.naive else ("plain", "low"))}

    def expected(self, h: Hypothesis, kind: str = "plain", masked: str = "") -> Tensor | None:
        """What a patient with these habits would answer; None where it would stop."""
        return expected(h, self.shape, self.patient.style.axes, kind, masked)

    @property
    def near(self) -> float:
        """How near counts as the same."""
        return ROUGH if self.random else 1e-5 if self.naive else NEAR


@cache
def inputs(shape: Shape, axes: int, kind: str) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value, float64. kind: "plain", "low" (all scores near -20000) or "large" (far apart)."""
    generator = torch.Generator().manual_seed(3)
    q, k, v = (
        torch.randn(*shape.lead(axes), *size, generator=generator, dtype=torch.float64)
        for size in ((shape.n_q, shape.d_k), (shape.n_k, shape.d_k), (shape.n_k, shape.d_v))
    )
    if kind == "low":
        q, k = levelled(q, k, -40_000.0)
    return (300 * q, 300 * k, v) if kind == "large" else (q, k, v)


@cache
def keeps(masked: str, shape: Shape, axes: int) -> Tensor | None:
    """A mask, True = may attend, where one is given.

    "padding"  (B, 1, 1, n_k): another key is hidden in each sequence
    "pairs"    (B, H, n_q, n_k): other keys for each query in each head, at least one
    """
    if masked == "padding":
        keep = torch.ones(shape.lead(axes)[0], 1, 1, shape.n_k, dtype=torch.bool)
        keep[0, ..., -2:] = False
        keep[1:, ..., 1] = False
        return keep
    if masked == "pairs":
        generator = torch.Generator().manual_seed(5)
        keep = torch.rand(*shape.lead(axes), shape.n_q, shape.n_k, generator=generator) < 0.6
        keep[..., 0] |= ~keep.any(-1)
        return keep
    return None


@lru_cache(maxsize=20_000)  # every measured scale is a new hypothesis
def expected(h: Hypothesis, shape: Shape, axes: int, kind: str, masked: str) -> Tensor | None:
    """As in Case."""
    try:
        return attend(h, *inputs(shape, axes, kind), keeps(masked, shape, axes), masked == "causal")[0]
    except RuntimeError:
        return None


def line_up(
    hypotheses: Iterable[Hypothesis], answers: dict[str, Tensor], case: Case, masked: str = ""
) -> Iterator[Hypothesis]:
    """The hypotheses that give the patient's answers, in the order given: the simplest first."""
    for h in hypotheses:
        pairs = ((case.expected(h, kind, masked), found) for kind, found in answers.items())
        if all(wanted is not None and same(found, wanted, case.near) for wanted, found in pairs):
            yield h


def first(found: Iterable[Hypothesis]) -> Hypothesis | None:
    """The simplest, if there is any."""
    return next(iter(found), None)


def same(found: Tensor, wanted: Tensor, near: float = NEAR) -> bool:
    """Equal but for rounding; NaN where NaN is wanted."""
    if found.shape != wanted.shape or not torch.equal(found.isnan(), wanted.isnan()):
        return False
    found, wanted = found.nan_to_num(posinf=1e30, neginf=-1e30), wanted.nan_to_num(posinf=1e30, neginf=-1e30)
    return bool((found - wanted).abs().max() <= near * max(1e-9, float(wanted.abs().max())))


def report(case: Case, h: Hypothesis, skip: set[str] = frozenset()) -> None:
    """Say what each switch that is off its default means, with the weights that show it."""
    for switch, value in h.deviations().items():
        if switch not in skip:
            found = words.finding(switch, value)
            case.add(_shown(case, found, h, switch) if found.verdict == FAULT else found)


def levelled(q: Tensor, k: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """The same with all q @ k.mT near this level (exactly there, if all other features are zero)."""
    q, k = q.clone(), k.clone()
    q[..., 0], k[..., 0] = abs(level) ** 0.5, math.copysign(abs(level) ** 0.5, level)
    return q, k


def _shown(case: Case, finding: Finding, h: Hypothesis, switch: str) -> Finding:
    """The finding with what the patient answers for a few tokens: with the identity as value, its weights."""
    n, number = (4, "four") if case.shape == SHAPES[-1] else (3, "three")
    generator = torch.Generator().manual_seed(1)
    q, k, v = (
        torch.randn(2, 2, n, 4, generator=generator, dtype=torch.float64).round(decimals=1) for _ in range(3)
    )
    fill = h.causal_fill if switch == "causal_fill" else h.fill
    low = finding.kind.endswith("fill too weak") and is_number(fill)  # which only lower scores show
    if low:
        q, k = levelled(q, k, 4 * float(fill))
    masked = switch in ("when", "fill", "keep", "axis")
    keep = torch.ones(2, 1, 1, n, dtype=torch.bool) if masked else None
    if masked:
        keep[0, ..., -1] = keep[1, ..., 1] = False
    asked = switch.startswith("causal") and h.always == "no"

    def heads_of_first(value: Tensor) -> list[tuple[np.ndarray, np.ndarray]]:
        found = case.ask(q, k, value, keep, asked)[0].numpy()
        wanted = attend(Hypothesis(), q, k, value, keep, asked or h.always != "no")[0][0].numpy()
        return list(zip(found, wanted, strict=False))  # it may take no heads

    what, (_, key, value) = "output", ALL_ROLES[h.roles]("q", "k", "v")
    try:
        pairs = heads_of_first(v)
        if value == "v" != key and switch != "roles":  # the values do nothing but get mixed
            weights = heads_of_first(torch.eye(n, 4, dtype=torch.float64).expand_as(v))
            if not any(np.isinf(found).any() for found, _ in weights):  # infinity * 0 is no number
                what, pairs = "weights", [(found[:, :n], wanted[:, :n]) for found, wanted in weights]
    except Trouble:
        return finding
    telling = [pair for pair in pairs if not alike(*pair)]
    if not telling:
        return finding
    heads = ", one of two heads" if case.patient.style.axes == 4 else ""
    with_ = " with the last key masked" if masked else " with causality" if asked else ""
    shown_by = (
        f"{number} tokens of width 4{heads}{with_}{f', all scores near {2 * float(fill):g}' if low else ''}"
    )
    return replace(finding, shown_by=shown_by, evidence=(Matrices(what, *telling[0]),))


def corner(matrix: Tensor) -> np.ndarray:
    """Of the first matrix of a batch, for the eye."""
    return matrix[0, 0, :4, :4].numpy()
