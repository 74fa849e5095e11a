"""The line-up: a patient's answers beside those of every hypothesis, on the same small inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache

import torch
from torch import Tensor

from utils.doctor.functions import words
from utils.doctor.functions.adapt import Patient
from utils.doctor.hypotheses import Hypothesis, attend
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


SHAPES = (Shape(), Shape(d_v=4), Shape(7, 7, 6), Shape(7, 7, 4), Shape(4, 4, 4))


@dataclass
class Case:
    """One examination in progress: the patient, the sizes it takes, what was found and tried."""

    patient: Patient
    shape: Shape
    findings: list[Finding] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)
    not_tried: list[str] = field(default_factory=list)
    random: bool = False
    naive: bool = False
    mask: Hypothesis | None = None
    base: Hypothesis | None = None

    def ask(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """The patient's output; the mean of many where it answers at random."""
        if not self.random:
            return self.patient(q, k, v, keep, causal)[0]
        torch.manual_seed(0)
        return torch.stack([self.patient(q, k, v, keep, causal)[0] for _ in range(CALLS)]).mean(0)

    @property
    def near(self) -> float:
        """How near counts as the same."""
        return ROUGH if self.random else 1e-5 if self.naive else NEAR

    @property
    def kinds(self) -> tuple[str, ...]:
        """The inputs that tell fills apart. Of very low scores, exp is 0 and a naive softmax 0 / 0."""
        return ("plain",) if self.naive else ("plain", "low")


@cache
def inputs(shape: Shape, axes: int, kind: str) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value, float64. kind: "plain", "low" (all scores near -20000) or "large" (far apart)."""
    generator = torch.Generator().manual_seed(3)
    batch = {4: (2, 3), 3: (2, 1), 2: (1, 1)}[axes]
    q, k, v = (
        torch.randn(*batch, *size, generator=generator, dtype=torch.float64)
        for size in ((shape.n_q, 4), (shape.n_k, 4), (shape.n_k, shape.d_v))
    )
    if kind == "low":
        q[..., 0], k[..., 0] = 200.0, -200.0
    return (300 * q, 300 * k, v) if kind == "large" else (q, k, v)


@cache
def scattered(shape: Shape, axes: int) -> Tensor:
    """(B, H, n_q, n_k), True = may attend: other keys for each query in each head, at least one."""
    batch = {4: (2, 3), 3: (2, 1), 2: (1, 1)}[axes]
    generator = torch.Generator().manual_seed(5)
    keep = torch.rand(*batch, shape.n_q, shape.n_k, generator=generator) < 0.6
    keep[..., 0] |= ~keep.any(-1)
    return keep


@cache
def padding(shape: Shape, axes: int) -> Tensor:
    """(B, 1, 1, n_k), True = may attend: another key is hidden in each sequence."""
    keep = torch.ones({4: 2, 3: 2, 2: 1}[axes], 1, 1, shape.n_k, dtype=torch.bool)
    keep[0, ..., -2:] = False
    if len(keep) > 1:
        keep[1, ..., 1] = False
    return keep


@lru_cache(maxsize=20_000)  # every measured scale is a new hypothesis
def expected(h: Hypothesis, shape: Shape, axes: int, kind: str, masked: str) -> Tensor | None:
    """What a patient with these habits answers; None where it would stop."""
    q, k, v = inputs(shape, axes, kind)
    keep = {"padding": padding, "pairs": scattered}.get(masked, lambda *_: None)(shape, axes)
    try:
        return attend(h, q, k, v, keep, masked == "causal")[0]
    except RuntimeError:
        return None


def line_up(
    hypotheses: Iterable[Hypothesis], answers: dict[str, Tensor], case: Case, masked: str = ""
) -> Iterator[Hypothesis]:
    """The hypotheses that give the patient's answers, in the order given: the simplest first."""
    axes, shape = case.patient.style.axes, case.shape
    for h in hypotheses:
        pairs = ((expected(h, shape, axes, kind, masked), found) for kind, found in answers.items())
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
            case.findings.append(_shown(found, h, switch) if found.verdict == FAULT else found)


def _shown(finding: Finding, h: Hypothesis, switch: str) -> Finding:
    """The finding with the weights of three tokens, found and wanted."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (
        torch.randn(2, 2, 3, 4, generator=generator, dtype=torch.float64).round(decimals=1) for _ in range(3)
    )
    masked = switch in ("when", "fill", "keep", "axis")
    causal = switch.startswith("causal") or switch == "always"
    keep = torch.tensor([[True, True, False], [True, False, True]])[:, None, None] if masked else None
    try:
        found = attend(h, q, k, v, keep, causal)[1][0, 0]
    except RuntimeError:
        return finding
    wanted = attend(Hypothesis(), q, k, v, keep, causal)[1][0, 0]
    if switch == "roles":
        found, wanted = attend(h, q, k, v)[0][0, 0], attend(Hypothesis(), q, k, v)[0][0, 0]
    what = "output" if switch == "roles" else "weights"
    with_ = " with the last key masked" if masked else " with causality" if causal else ""
    shown_by = f"three tokens of width 4, one of two heads{with_}"
    return replace(finding, shown_by=shown_by, evidence=(Matrices(what, found.numpy(), wanted.numpy()),))


def small(matrix: Tensor) -> object:
    """The corner of the first matrix of a batch, for the eye."""
    return matrix[0, 0, :4, :4].numpy()
