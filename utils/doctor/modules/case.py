"""One module under examination: what is known of it so far, and how to ask it under given weights."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from utils.doctor.call import Hangs, Trouble
from utils.doctor.modules.adapt import Answer, Style, ask, heads_of, probe
from utils.doctor.modules.lineup import Frame, Suspect, fit_scale, identify, reference, same
from utils.doctor.modules.weights import duplicate, inner_widths, maps, randomise, set_identity

FUSED_LAYOUTS = ("blocks", "head by head", "feature by feature")


@dataclass(frozen=True)
class Case:
    """A module in eval mode that nobody else uses, and what the line-up told about it.

    frame    heads and widths; suspect  the combination that gives the module's numbers, or None
    fused    how a matrix for q, k and v together is laid out (weights.set_identity)
    remembers  whether an earlier call matters, so that each call needs a copy of its own
    copies   those made so far
    silent   the map that is 0 instead, for it comes after attention, in a step with a nonlinearity
    """

    module: nn.Module
    style: Style
    frame: Frame
    suspect: Suspect | None = None
    fused: str = "blocks"
    silent: str | None = None
    remembers: bool = True
    copies: dict[tuple, nn.Module] = field(default_factory=dict, compare=False, repr=False)

    def copy(self, weights: str) -> nn.Module:
        """A copy with "identity" or "random" weights."""
        module = duplicate(self.module)
        self.fill(module, weights)
        return module

    def fill(self, module: nn.Module, weights: str) -> None:
        """Set a copy's weights to "identity" or "random" ones."""
        if weights == "identity":
            silent = maps(module).get(self.silent, ())
            set_identity(module, self.style.widths, self.frame.heads, self.fused)
            for weight in silent:
                weight.tensor.data.zero_()
        else:
            randomise(module)

    def ask(self, inputs: tuple[Tensor, ...], weights: str = "identity", **kwargs: Any) -> Answer:
        """What a copy answers that has seen nothing before."""
        key = (weights, self.frame.heads, self.fused, self.silent)
        module = None if self.remembers else self.copies.get(key)
        if module is None:
            module = self.copies[key] = self.copy(weights)
        with torch.no_grad():
            return ask(module, self.style, *inputs, **kwargs)

    def wanted(self, inputs: tuple[Tensor, ...], suspect: Suspect | None = None, **kwargs: Any) -> Tensor:
        """What the suspect returns under identity weights; without one, what is right."""
        return reference(suspect or self.right, self.frame, *inputs, **kwargs)[0]

    @property
    def right(self) -> Suspect:
        """The module without its mistakes, but with its conventions."""
        if self.suspect is None:
            return Suspect()
        layout, inside = self.suspect.layout, self.suspect.inside
        keep = {n: v for n, v in vars(layout).items() if n not in layout.deviations()}
        if layout.split == "view" or layout.split == "none":
            keep.pop("merge", None)
        always = "no" if inside.always == "no" else "right"
        return Suspect(replace(type(layout)(), **keep), replace(type(inside)(), always=always))

    @property
    def batch(self) -> int:
        """A number of samples that differs from the number of heads."""
        return 1 if self.style.axes == "nd" else 2 if self.frame.heads == 3 else 3

    def probe(self, tokens: int | None = None, batch: int | None = None, seed: int = 0) -> tuple[Tensor, ...]:
        """Random inputs."""
        return probe(self.style, batch or self.batch, tokens, seed)


def first_case(module: nn.Module, style: Style, heads: int | None, remembers: bool = True) -> Case:
    """The module with the likeliest number of heads. Raises Trouble if there is none that fits."""
    return next(_cases(module, style, heads, remembers))[0]


def line_up(
    module: nn.Module,
    style: Style,
    heads: int | None,
    remembers: bool = True,
    deadline: float = math.inf,
    limit: float = math.inf,
) -> Case:
    """Hold the module against every suspect, for every number of heads that it may have.

    The frames are tried with no mistake at first, then with one, then with two.

    limit     how unlikely a suspect may be
    deadline  when to give up, on this process's own clock, which other programs do not make go faster
    """
    cases = []
    for case in itertools.islice(_cases(module, style, heads, remembers), 24):
        cases.append(case)
        if right := _identified([case], 0.9, deadline):
            return right
        if time.process_time() > deadline:
            break
    if limit < 1.9:
        return cases[0][0]
    return (
        _with_silent_map(cases[:1], 0.9, deadline)
        or _identified(cases, 1.9, deadline)
        or _with_measured_scale(cases[:8], deadline)
        or _with_silent_map(cases[:1], 1.9, deadline)
        or _identified(cases[:2], 2.9, deadline)
        or cases[0][0]
    )


def _identified(cases: _Frames, limit: float, deadline: float) -> Case | None:
    for case, found, inputs in cases:
        suspect = identify(found, case.frame, inputs, case.style.itself, limit, deadline=deadline)
        if suspect is not None:
            return replace(case, suspect=suspect)
    return None


_Frames = list[tuple["Case", Tensor, tuple[Tensor, ...]]]


def _with_measured_scale(cases: _Frames, deadline: float) -> Case | None:
    for case, found, inputs in cases:
        suspect = fit_scale(found, case.frame, inputs, case.style.itself, deadline)
        if suspect is not None and _holds(replace(case, suspect=suspect)):
            return replace(case, suspect=suspect)
    return None


def _holds(case: Case) -> bool:
    """Whether the suspect gives the module's numbers for other tokens, and another number of them, too."""
    for tokens, seed in ((None, 7), (case.style.tokens - 1, 8)):
        inputs = case.probe(tokens, seed=seed)
        try:
            answer = case.ask(inputs)
        except Trouble:
            continue
        if not same(answer.output, case.wanted(after(inputs, answer), case.suspect), 1e-3):
            return False
    return True


def _with_silent_map(cases: _Frames, limit: float, deadline: float) -> Case | None:
    """With one of the maps 0: behind attention there may be a step x + f(x) that is then without effect."""
    for case, _, inputs in cases:
        for group in list(maps(case.module))[::-1][:6]:
            if _part_of_attention(case.module, group):
                continue
            quiet = replace(case, silent=group)
            try:
                answer = quiet.ask(inputs)
            except Trouble:
                continue
            suspect = identify(
                answer.output, case.frame, after(inputs, answer), case.style.itself, limit, deadline=deadline
            )
            if suspect is not None and suspect.layout.outer not in ("double skip", "no attention"):
                return replace(quiet, suspect=suspect)
    return None


def _part_of_attention(module: nn.Module, group: str) -> bool:
    """Whether a map lies in a part that has maps enough for an attention: there it is no step behind one."""
    part = ".".join(group.split(".")[:-2])
    return bool(part) and sum(other.startswith(f"{part}.") for other in maps(module)) >= 3


def _cases(
    module: nn.Module, style: Style, heads: int | None, remembers: bool
) -> Iterator[tuple[Case, Tensor, tuple[Tensor, ...]]]:
    norm = norm_of(module, style.widths)
    trouble: Trouble | None = None
    any_case = False
    for fused in FUSED_LAYOUTS if is_fused(module, style.widths[0]) else FUSED_LAYOUTS[:1]:
        for inner in _inner(module, style.widths[0]):
            for h in [heads] if heads else heads_of(module, inner[0]):
                if not _divides(h, inner):
                    continue
                case = Case(module, style, Frame(h, inner, 0, norm), None, fused, None, remembers)
                inputs = case.probe()
                try:
                    answer = case.ask(inputs)
                except Hangs:
                    raise
                except (Trouble, RuntimeError) as error:
                    trouble = error if isinstance(error, Trouble) else Trouble(str(error))
                    continue
                any_case = True
                case = replace(case, frame=replace(case.frame, out=answer.output.shape[-1]))
                yield case, answer.output, after(inputs, answer)
    if not any_case:
        raise trouble or Trouble("has no number of heads that fits its width")


def _divides(h: int, inner: tuple[int, int, int]) -> bool:
    """Whether h heads can be cut from these widths; fewer key heads than query heads are fine."""
    q, k, v = inner
    if q % h:
        return False
    return k % h == 0 == v % h or (k % (q // h) == 0 and k == v)


def after(inputs: tuple[Tensor, ...], answer: Answer) -> tuple[Tensor, ...]:
    """The inputs as the module left them, should it have written into them."""
    if len(answer.input_after) == 1:
        return (answer.input_after[0],) * 3
    if len(answer.input_after) == 2:
        return (answer.input_after[0], answer.input_after[1], answer.input_after[1])
    return answer.input_after


def _inner(module: nn.Module, width: int) -> list[tuple[int, int, int]]:
    widths = inner_widths(module, width)
    found = [(m, m, m) for m in widths]
    mixed = [m for m in widths if m <= max(widths[0], width)]  # not those of heads as wide as the input
    for a in mixed:
        for b in mixed:
            if a != b:
                found += [(a, b, b), (b, b, a)] if a > b else [(b, b, a)]
    return list(dict.fromkeys(found))


def is_fused(module: nn.Module, width: int) -> bool:
    """Whether one matrix makes queries, keys and values."""
    return any(
        p.ndim == 2 and max(p.shape) % 3 == 0 and max(p.shape) > min(p.shape) and width in p.shape
        for p in module.parameters()
    )


def norm_of(module: nn.Module, widths: tuple[int, ...]) -> Callable[[Tensor], Tensor] | None:
    """The norms inside, with gain 1 and shift 0, as one function of (B, n, d); None if there is none.

    The patient's own are taken, for there are many: with one or the other standard deviation, with none.
    """
    found: dict[int, Callable[[Tensor], Tensor]] = {}
    for width in dict.fromkeys(widths):
        for sub in module.modules():
            if sub is not module and width not in found and _is_norm(sub, width):
                found[width] = _blank(sub, width)
    first = next(iter(found.values()), None)
    return None if first is None else lambda x: found.get(x.shape[-1], first)(x)


def _blank(norm: nn.Module, width: int) -> Callable[[Tensor], Tensor]:
    norm = duplicate(norm)
    set_identity(norm, (width,), 1)
    return (lambda x: norm(x.mT).mT) if isinstance(norm, nn.GroupNorm) else norm


def _is_norm(sub: nn.Module, width: int) -> bool:
    return scales_away(sub, width) and (isinstance(sub, nn.GroupNorm) or not mixes(sub, width))


def scales_away(sub: nn.Module, width: int) -> bool:
    """Whether it gives the same for its input and for a hundredfold of it, and not the input."""
    weights = list(sub.parameters())
    if any(w.ndim != 1 or w.numel() not in (1, width) for w in weights) or len(list(sub.children())):
        return False
    if not weights and "norm" not in type(sub).__name__.lower():
        return False
    x = torch.randn(2, 4, width, generator=torch.Generator().manual_seed(0))
    x = x.mT if isinstance(sub, nn.GroupNorm) else x
    try:
        with torch.no_grad():
            one, other = sub(x), sub(100 * x)
    except Exception:  # it takes something else
        return False
    return isinstance(one, Tensor) and same(one, other, 1e-3) and not same(one, x)


def mixes(norm: nn.Module, width: int) -> bool:
    """Whether what it makes of one token depends on the others."""
    x = torch.randn(2, 4, width, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return not same(norm(x)[:1, :1], norm(torch.cat([x[:, :1], -x[:, 1:].flip(-1)], 1))[:1, :1], 1e-3)


def influence(output: Callable[[Tensor], Tensor], x: Tensor) -> np.ndarray:
    """(n, n): how much the output at token i changes when token j is changed, in the first sample."""
    base = output(x)
    columns = []
    for j in range(x.shape[1]):
        changed = x.clone()
        changed[0, j] += torch.linspace(0.5, 1.5, x.shape[-1])
        columns.append((output(changed) - base)[0].abs().mean(-1))
    return torch.stack(columns, -1).nan_to_num().numpy()
