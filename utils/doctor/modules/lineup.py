"""What a module may do around attention: how it cuts and joins heads, along which axis, between what norms.

Like hypotheses.py, this is wrong on purpose but for the defaults. A module whose maps are all the identity
is held against each combination of both files; the one that gives the same numbers is what it does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property, lru_cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.doctor.hypotheses import ROLES, SCALES, SOFTMAXES, Hypothesis, attend
from utils.doctor.modules.weights import eye

# (B, n, m) -> (B, h, n, d_k)
SPLITS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "right": lambda x, h: x.unflatten(-1, (h, -1)).transpose(1, 2),
    "view": lambda x, h: x.reshape(x.shape[0], h, x.shape[1], -1),
    "none": lambda x, h: x.unflatten(-1, (h, -1)),
    "interleaved": lambda x, h: x.unflatten(-1, (-1, h)).permute(0, 3, 1, 2),
}
ONE_SPLIT = ("q by view", "k by view", "v by view")  # the other two are cut as they should be
# (B, h, n, d_k) -> (B, n, m)
MERGES: dict[str, Callable[[Tensor], Tensor]] = {
    "right": lambda x: x.transpose(1, 2).flatten(2),
    "view": lambda x: x.reshape(x.shape[0], x.shape[2], -1),
    "interleaved": lambda x: x.permute(0, 2, 3, 1).flatten(2),
    "last axes swapped": lambda x: x.mT.reshape(x.shape[0], x.shape[2], -1),
    "across samples": lambda x: x.transpose(0, 1).reshape(x.shape[0], x.shape[2], -1),
    "batch for heads": lambda x: _batch_for_heads(x),
    "mean": lambda x: x.mean(1),
    "sum": lambda x: x.sum(1),
}
ACTS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "none": ("", lambda x: x),
    "relu on q, k, v": ("qkv", torch.relu),
    "relu on q, k": ("qk", torch.relu),
    "relu on v": ("v", torch.relu),
    "relu on q": ("q", torch.relu),
    "relu on k": ("k", torch.relu),
    "tanh on q, k, v": ("qkv", torch.tanh),
    "gelu on q, k, v": ("qkv", F.gelu),
}
OUTERS = (
    "none", "skip", "post", "pre", "norm first", "norm last", "pre, norm last", "sandwich", "branch norm",
    "skip from norm", "double skip", "no attention",
)  # fmt: skip
NORMED_FIRST = ("pre", "norm first", "pre, norm last", "sandwich", "skip from norm")
ALWAYS = ("no", "right", "upper", "strict upper", "no self", "one ahead")
# Fills that hide, unless scores are as large
STRONG = ("-1000000000", "a billion subtracted", "-10000", "-100000", "minus ten thousand added")
COUPLES = (("right", "right"), ("view", "view"), ("none", "view"))  # cuts and joins that go together
CAUSAL_FILLS = ("minus infinity", "-10000", "zero", "-10", "the smallest positive number", "added as 0 and 1")
CONVENTIONS = {
    "split": ("interleaved",),
    "merge": ("interleaved",),
    "outer": (*OUTERS[1:-2],),
}


@dataclass(frozen=True)
class Layout:
    """What happens around attend(). The defaults are right.

    split  how features are cut into heads       merge  how heads are joined
    axis   along which axis it attends           act    what is done to q, k, v after their maps
    outer  residual connection and norm
    """

    split: str = "right"
    merge: str = "right"
    axis: str = "tokens"
    act: str = "none"
    outer: str = "none"

    def deviations(self) -> dict[str, str]:
        """The switches that are not at their default and no convention either."""
        default = Layout()
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        if self.split == "view" and self.merge == "view":
            found["merge"] = "right"  # it undoes the view
        if self.split == "none" and self.merge == "view":
            found["merge"] = "right"
        return {
            name: value
            for name, value in found.items()
            if value != getattr(default, name) and value not in CONVENTIONS.get(name, ())
        }


@dataclass(frozen=True)
class Frame:
    """What is known of a module before the line-up.

    heads   h
    inner   features of q, k, v after their maps
    out     features of the output
    norm    the patient's own norm, or None
    """

    heads: int
    inner: tuple[int, int, int]
    out: int
    norm: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True)
class Suspect:
    """One combination: what is done around attention, and what is done inside."""

    layout: Layout = field(default_factory=Layout)
    inside: Hypothesis = field(default_factory=Hypothesis)

    @cached_property
    def cost(self) -> float:
        """How unlikely: mistakes count, conventions count a little."""
        faults = len(self.layout.deviations()) + len(inside_faults(self.inside))
        changed = sum(getattr(self.layout, f.name) != getattr(Layout(), f.name) for f in fields(Layout))
        strong = self.inside.causal_fill in STRONG
        return faults + 0.1 * changed + 0.1 * (self.inside.always != "no") + 0.05 * strong


def inside_faults(inside: Hypothesis) -> dict[str, str]:
    """The deviations inside attention, less the causal mask, which is a convention where it is right."""
    found = inside.deviations()
    if found.get("always") == "right":
        del found["always"]
    if found.get("causal_fill") in STRONG:
        del found["causal_fill"]
    return found


def reference(
    suspect: Suspect,
    frame: Frame,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep: Tensor | None = None,
    causal: bool = False,
    gains: tuple[float, float] = (1.0, 1.0),
    cache: dict | None = None,
) -> tuple[Tensor, Tensor]:
    """What such a module returns when all its maps are the identity.

    returns  output (B, n, out), weights (B, h, n, n)

    gains  factors on the scores and on the values, for asking what one map is used for
    cache  a dictionary for what several suspects have in common, of one and the same input
    """
    layout, inside = suspect.layout, suspect.inside
    inner_norm = layout.outer in NORMED_FIRST
    key = (layout.split, layout.axis, layout.act, inner_norm, inside)
    if cache is None or key not in cache:
        asked = [_norm(x, frame) for x in (q, k, v)] if inner_norm else [q, k, v]
        found = _attention(layout, inside, frame, asked, keep, causal, gains)
        if cache is not None:
            cache[key] = found
    else:
        found = cache[key]
    heads, weights = found
    merged = MERGES[layout.merge](heads)
    if layout.split == "none" and layout.merge in ("right", "view"):
        merged = (
            heads.flatten(2)
            if layout.merge == "right"
            else heads.transpose(1, 2).reshape(heads.shape[0], heads.shape[1], -1)
        )
    if layout.axis == "batch":
        merged = merged.transpose(0, 1)
    output = merged if merged.shape[-1] == frame.out else merged @ _fitted(frame.out, merged.shape[-1])
    return _outer(layout.outer, q, output, frame), weights


def _attention(
    layout: Layout,
    inside: Hypothesis,
    frame: Frame,
    asked: list[Tensor],
    keep: Tensor | None,
    causal: bool,
    gains: tuple[float, float],
) -> tuple[Tensor, Tensor]:
    targets, act = ACTS[layout.act]
    parts = []
    for name, x, inner, gain in zip("qkv", asked, frame.inner, (gains[0], 1.0, gains[1]), strict=True):
        x = (x if x.shape[-1] == inner else x @ _fitted(inner, x.shape[-1])) * gain
        x = act(x) if name in targets else x
        x = x.transpose(0, 1) if layout.axis == "batch" else x
        split = SPLITS["view" if layout.split[0] == name else "right"]
        split = SPLITS.get(layout.split, split)
        heads = frame.heads
        if inner < frame.inner[0] and (inner * heads) % frame.inner[0] == 0 and name in "kv" and heads > 1:
            shared = frame.inner[0] // inner  # several query heads read one key head
            if frame.inner[1] == frame.inner[2]:
                parts.append(split(x, heads // shared).repeat_interleave(shared, 1))
                continue
        parts.append(split(x, heads))
    return attend(inside, *parts, keep, causal)


def _batch_for_heads(x: Tensor) -> Tensor:
    batch, heads, n, d_k = x.shape
    return x.reshape(heads, batch, n, d_k).permute(1, 2, 0, 3).flatten(2)


def _norm(x: Tensor, frame: Frame) -> Tensor:
    if frame.norm is None:
        return F.layer_norm(x, x.shape[-1:])
    with torch.no_grad():
        return frame.norm(x)


def _outer(outer: str, x: Tensor, found: Tensor, frame: Frame) -> Tensor:
    """Residual connection and norm around what attention found."""
    if outer in ("none", "norm first"):
        return found
    if outer in ("double skip", "no attention"):
        return 2 * x + found * (outer == "double skip")
    if outer == "norm last":
        return _norm(found, frame)
    if outer == "skip from norm":
        return _norm(x, frame) + found
    if outer in ("branch norm", "sandwich"):
        return x + _norm(found, frame)
    return _norm(x + found, frame) if outer in ("post", "pre, norm last") else x + found


@lru_cache
def suspects(norm: bool, itself: bool, heads: bool, mistakes: int = 2) -> tuple[Suspect, ...]:
    """Every combination of up to so many mistakes, with each convention; the likeliest first.

    norm    whether norms are tried        itself  whether query, key and value are one and the same
    heads   whether there is more than one head
    """
    roles = ("right", "key reshaped") if itself else ROLES
    layouts = {
        "split": (*SPLITS, *ONE_SPLIT) if heads else ("right",),
        "merge": tuple(MERGES) if heads else ("right", "last axes swapped"),
        "axis": ("tokens", "batch"),
        "act": tuple(ACTS),
    }
    insides = {
        "scale": tuple(s for s in SCALES if heads or s != "sqrt(num_heads)"),
        "softmax": SOFTMAXES,
        "roles": roles,
    }
    insides |= {"causal_fill": CAUSAL_FILLS, "causal_when": ("before", "after")}
    found: dict[Suspect, None] = {}
    for outer in OUTERS if norm else ("none", "skip", "double skip", "no attention"):
        for always in ALWAYS:
            for split, merge in COUPLES if heads else COUPLES[:1]:
                base = Suspect(Layout(split, merge, outer=outer), Hypothesis(always=always))
                depth = max(0, mistakes - int(base.cost))
                allowed = layouts if outer in ("none", "skip", "post", "pre", "norm first") else {}
                found.update(
                    dict.fromkeys(_varied(base, allowed, insides if outer != "no attention" else {}, depth))
                )
    return tuple(sorted(found, key=lambda s: s.cost))


def _varied(
    base: Suspect, layouts: dict[str, tuple[str, ...]], insides: dict[str, tuple[str, ...]], depth: int
) -> Iterator[Suspect]:
    """The base and everything up to `depth` switches away from it, each switch once."""
    yield base
    if depth == 0:
        return
    names = list(layouts) + list(insides)
    for i, name in enumerate(names):
        later_layouts = {n: layouts[n] for n in names[i + 1 :] if n in layouts}
        later_insides = {n: insides[n] for n in names[i + 1 :] if n in insides}
        if name.startswith("causal") and base.inside.always == "no":
            continue
        for value in layouts.get(name) or insides[name]:
            part = base.layout if name in layouts else base.inside
            if value == getattr(part, name):
                continue
            changed = replace(part, **{name: value})
            varied = replace(base, **{"layout" if name in layouts else "inside": changed})
            yield from _varied(varied, later_layouts, later_insides, depth - 1)


@cache
def _fitted(wide: int, given: int) -> Tensor:
    """What an identity map from `given` to `wide` features multiplies by."""
    return eye(wide, given).T


def same(found: Tensor, wanted: Tensor, tolerance: float = 2e-4) -> bool:
    """Equal up to rounding; a token without numbers in one has none in the other either."""
    if found.shape != wanted.shape:
        return False
    sound = found.isfinite().all(-1)
    if not torch.equal(sound, wanted.isfinite().all(-1)):
        return False
    found, wanted = found[sound], wanted[sound]
    if not found.numel():
        return True
    size = max(float(wanted.abs().max()), 1e-3)
    return bool((found - wanted).abs().max() <= tolerance * size)


def fit_scale(
    found: Tensor,
    frame: Frame,
    inputs: tuple[Tensor, ...],
    itself: bool,
    deadline: float = math.inf,
) -> Suspect | None:
    """The combination with a scale that is in no list: what the scores are multiplied by is measured."""
    shapes = ALWAYS if frame.norm is None else ("no", "right")
    unscaled = [replace(_UNSCALED, always=a) for a in shapes]
    plain = [
        s
        for s in suspects(frame.norm is not None, itself, frame.heads > 1)
        if s.inside.scale == "none" and s.inside in unscaled and not s.layout.deviations()
    ]

    def error(suspect: Suspect, scale: float) -> float:
        if time.process_time() > deadline:
            return math.inf
        try:
            wanted = reference(suspect, frame, *inputs, gains=(scale, 1.0))[0]
        except RuntimeError:
            return math.inf
        gap = float((found - wanted).abs().max()) if wanted.shape == found.shape else math.inf
        return gap if math.isfinite(gap) else math.inf

    starts = sorted(((error(s, x), i, x) for i, s in enumerate(plain) for x in _SCALE_GRID))
    for index in list(dict.fromkeys(i for _, i, _ in starts))[:4]:
        suspect, best = plain[index], next(x for _, i, x in starts if i == index)
        step = 10**0.25
        while step > 1 + 1e-7:
            best = min((best / step, best, best * step), key=partial(error, suspect))
            step = step**0.6
        scale = _known(best, frame, inputs) or f"{best:.7g}"
        measured = replace(suspect, inside=replace(suspect.inside, scale=scale))
        if error(suspect, best) < math.inf and same(found, reference(measured, frame, *inputs)[0]):
            return measured
    return None


def _known(scale: float, frame: Frame, inputs: tuple[Tensor, ...]) -> str | None:
    """The name of the rule that gives this scale."""
    d_k, d_v = frame.inner[0] // frame.heads, frame.inner[2] // frame.heads
    shaped = [x.new_zeros(1, 1, x.shape[1], d) for x, d in zip(inputs, (d_k, d_k, d_v), strict=True)]
    near = [n for n, rule in SCALES.items() if abs(rule(*shaped, frame.heads) / scale - 1) < 1e-3]
    return near[0] if near else None


_UNSCALED = Hypothesis(scale="none")
_SCALE_GRID = tuple(10 ** (e / 2) for e in range(-5, 5))


def identify(
    found: Tensor,
    frame: Frame,
    inputs: tuple[Tensor, ...],
    itself: bool,
    limit: float = math.inf,
    budget: int = 12000,
    deadline: float = math.inf,
) -> Suspect | None:
    """The likeliest combination that gives these numbers. At most `budget` are tried, none above `limit`.

    deadline  when to give up, on this process's own clock, which other programs do not make go faster
    """
    if not found.isfinite().all(-1).any():
        return None  # without numbers everything is alike
    cache: dict = {}
    failed: set = set()
    likely = suspects(frame.norm is not None, itself, frame.heads > 1, min(int(min(limit, 9)), 2))
    for tried, suspect in enumerate(likely):
        if tried > budget or suspect.cost > limit or (tried % 16 == 0 and time.process_time() > deadline):
            return None
        key = (suspect.layout.split, suspect.layout.axis, suspect.inside)
        if key in failed:  # to raise costs more than to compute
            continue
        try:
            wanted, _ = reference(suspect, frame, *inputs, cache=cache)
        except RuntimeError:
            if suspect.layout.merge == "right":
                failed.add(key)
            continue
        if same(found, wanted):
            return suspect
    return None
