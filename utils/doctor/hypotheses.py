"""One attention with every known mistake as a switch, so that a patient can be compared with all of them.

The patient's outputs are held against the outputs of each combination of switches; the combination that
gives the same numbers is what the patient does. Everything here is wrong on purpose but for the defaults.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache

import torch
from torch import Tensor

# What a mask may do to the scores: name -> (scores, keep) -> scores
FILLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "minus infinity": lambda s, keep: s.masked_fill(~keep, -math.inf),
    "-1000000000": lambda s, keep: s.masked_fill(~keep, -1e9),
    "a billion subtracted": lambda s, keep: s - 1e9 * (~keep),
    "zero": lambda s, keep: s.masked_fill(~keep, 0.0),
    "-1": lambda s, keep: s.masked_fill(~keep, -1.0),
    "-10": lambda s, keep: s.masked_fill(~keep, -10.0),
    "-100": lambda s, keep: s.masked_fill(~keep, -100.0),
    "-1000": lambda s, keep: s.masked_fill(~keep, -1e3),
    "-10000": lambda s, keep: s.masked_fill(~keep, -1e4),
    "-100000": lambda s, keep: s.masked_fill(~keep, -1e5),
    "the smallest positive number": lambda s, keep: s.masked_fill(~keep, torch.finfo(torch.float32).tiny),
    "plus infinity": lambda s, keep: s.masked_fill(~keep, math.inf),
    "added as 0 and 1": lambda s, keep: s + keep.to(s.dtype),
    "minus ten added": lambda s, keep: s - 10.0 * (~keep),
    "minus ten thousand added": lambda s, keep: s - 1e4 * (~keep),
    "ignored": lambda s, keep: s,
}

SCALES: dict[str, Callable[[Tensor, Tensor, Tensor, int], float]] = {
    "sqrt(d_k)": lambda q, k, v, h: 1 / math.sqrt(k.shape[-1]),
    "none": lambda q, k, v, h: 1.0,
    "sqrt(d_model)": lambda q, k, v, h: 1 / math.sqrt(k.shape[-1] * h),
    "d_k": lambda q, k, v, h: 1 / k.shape[-1],
    "d_model": lambda q, k, v, h: 1 / (k.shape[-1] * h),
    "multiplied": lambda q, k, v, h: math.sqrt(k.shape[-1]),
    "multiplied by d_k": lambda q, k, v, h: float(k.shape[-1]),
    "sqrt(seq_len)": lambda q, k, v, h: 1 / math.sqrt(k.shape[-2]),
    "sqrt(n_q)": lambda q, k, v, h: 1 / math.sqrt(q.shape[-2]),
    "seq_len": lambda q, k, v, h: 1 / k.shape[-2],
    "sqrt(d_v)": lambda q, k, v, h: 1 / math.sqrt(v.shape[-1]),
    "sqrt(num_heads)": lambda q, k, v, h: 1 / math.sqrt(h),
    "d_k^(1/4)": lambda q, k, v, h: k.shape[-1] ** -0.25,
    "after softmax": lambda q, k, v, h: 1.0,
}
SOFTMAXES = (
    "keys",
    "queries",
    "heads",
    "batch",
    "all",
    "none",
    "sigmoid",
    "twice",
    "base 2",
    "sum",
    "squares",
    "sums of other rows",
    "everything",
    "logarithm",
)
ROLES = (
    "right",
    "key reshaped",
    "query and key swapped",
    "key for value",
    "query for value",
    "value for key",
    "query for key",
    "key for query",
    "key and value swapped",
)
AFTER = {"after": 0.0, "after, minus infinity": -math.inf, "after, a low number": -1e9}  # weights so masked
CAUSALS = ("right", "upper", "strict upper", "no self", "one ahead", "ignored", "bottom-right")
MASK_AXES = ("right", "query rows", "head order", "other sample", "first sample")


@dataclass(frozen=True)
class Hypothesis:
    """What a patient may do. The defaults are right; every other value is a mistake or a convention.

    softmax  over what scores are shared out, or by what else
    scale    what scores are divided by (SCALES), or a number in words that they are multiplied by
    roles    which input serves as what
    always   "no", or the causal mask that is applied unasked
    when     mask "before" softmax, or "after" (weights set to 0, not shared out again)
    fill     what masked scores become (FILLS)
    keep     what True means: "attend" or "hide"
    axis     along what a padding mask is laid
    causal   which triangle, when causality is asked for
    """

    softmax: str = "keys"
    scale: str = "sqrt(d_k)"
    roles: str = "right"
    always: str = "no"
    when: str = "before"
    fill: str = "minus infinity"
    keep: str = "attend"
    axis: str = "right"
    causal: str = "right"
    causal_when: str = "before"
    causal_fill: str = "minus infinity"

    def deviations(self) -> dict[str, str]:
        """The switches that are not at their default."""
        default = Hypothesis()
        return {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if getattr(self, f.name) != getattr(default, f.name)
        }


@cache
def unmasked() -> tuple[Hypothesis, ...]:
    """Everything that shows without a mask, the likeliest first."""
    combinations = [
        Hypothesis(softmax=softmax, scale=scale, roles=roles)
        for roles in ROLES
        for softmax in SOFTMAXES
        for scale in SCALES
    ]
    return tuple(sorted(combinations, key=lambda h: len(h.deviations())))


@lru_cache(maxsize=256)
def with_mask(base: Hypothesis) -> tuple[Hypothesis, ...]:
    """Everything that a mask may do to this base."""
    found = [
        replace(base, when=when, fill=fill, keep=keep, axis=axis)
        for when, fills in (("before", FILLS), *((when, ("minus infinity",)) for when in AFTER))
        for fill in fills
        for keep in ("attend", "hide")
        for axis in MASK_AXES
    ]
    return tuple(sorted(found, key=lambda h: len(h.deviations())))


@lru_cache(maxsize=256)
def with_causal(base: Hypothesis) -> tuple[Hypothesis, ...]:
    """Everything that a causal flag may do to this base."""
    found = [
        replace(base, causal=causal, causal_when=when, causal_fill=fill)
        for when, fills in (("before", FILLS), ("after", ("minus infinity",)))
        for fill in fills
        for causal in CAUSALS
        if fill != "ignored" and (causal != "ignored" or (when, fill) == ("before", "minus infinity"))
    ]
    return tuple(sorted(found, key=lambda h: len(h.deviations())))


def attend(
    h: Hypothesis, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """What a patient with these habits returns: output (B, H, n_q, d_v), weights (B, H, n_q, n_k).

    q, k, v  (B, H, n, d)
    keep     boolean, broadcasts to (B, H, n_q, n_k): True = may attend
    Raises RuntimeError where such a patient would stop, because shapes do not fit.
    """
    heads = q.shape[1]
    factor = SCALES[h.scale](q, k, v, heads) if h.scale in SCALES else float(h.scale)
    q, k, v = _roles(h.roles, q, k, v)
    keys = k.reshape(*k.shape[:-2], k.shape[-1], k.shape[-2]) if h.roles == "key reshaped" else k.mT
    scores = q @ keys * factor
    after, hidden = torch.ones((), dtype=scores.dtype), torch.zeros((), dtype=torch.bool)
    triangle = h.causal if causal else h.always
    if triangle not in ("no", "ignored"):
        allowed = causal_keep(triangle, *scores.shape[-2:])
        if h.causal_when == "before":
            scores = FILLS[h.causal_fill](scores, allowed)
        else:
            after = after * allowed
    if keep is not None:
        keep = _laid(h.axis, keep if h.keep == "attend" else ~keep, scores)
        if h.when == "before":
            scores = FILLS[h.fill](scores, keep)
        else:
            hidden = ~keep
    weights = (_shares(h.softmax, scores) * after).masked_fill(hidden, AFTER.get(h.when, 0.0))
    if h.scale == "after softmax":
        weights = weights / math.sqrt(k.shape[-1])
    return weights @ v, weights


def causal_keep(triangle: str, n_q: int, n_k: int) -> Tensor:
    """(n_q, n_k) boolean: the triangles that people build."""
    ones = torch.ones(n_q, n_k, dtype=torch.bool)
    return {
        "right": ones.tril(),
        "upper": ones.triu(),
        "strict upper": ones.triu(1),
        "no self": ones.tril(-1),
        "one ahead": ones.tril(1),
        "bottom-right": ones.tril(n_k - n_q),
    }[triangle]


def _roles(roles: str, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return {
        "right": (q, k, v),
        "key reshaped": (q, k, v),
        "query and key swapped": (k, q, v),
        "key for value": (q, k, k),
        "query for value": (q, k, q),
        "value for key": (q, v, v),
        "query for key": (q, q, v),
        "key for query": (k, k, v),
        "key and value swapped": (q, v, k),
    }[roles]


def _shares(softmax: str, scores: Tensor) -> Tensor:
    axis = {"keys": -1, "queries": -2, "heads": 1, "batch": 0}
    if softmax in axis:
        return torch.softmax(scores, axis[softmax])
    if softmax == "all":
        return torch.softmax(scores.flatten(-2), -1).view_as(scores)
    if softmax == "everything":
        return torch.softmax(scores.flatten(), 0).view_as(scores)
    if softmax == "logarithm":
        return torch.log_softmax(scores, -1)
    if softmax == "twice":
        return torch.softmax(torch.softmax(scores, -1), -1)
    if softmax == "base 2":
        return torch.softmax(scores * math.log(2), -1)
    if softmax == "sums of other rows":  # keepdims is missing: sums of rows are laid along the columns
        exps = (scores - scores.amax((-2, -1), keepdim=True)).exp()
        return exps / exps.sum(-1)[..., None, :]
    if softmax == "sum":
        return scores / scores.sum(-1, keepdim=True)
    if softmax == "squares":
        return scores**2 / (scores**2).sum(-1, keepdim=True)
    return torch.sigmoid(scores) if softmax == "sigmoid" else scores


def _laid(axis: str, keep: Tensor, scores: Tensor) -> Tensor:
    """The mask along the axes where the patient lays it."""
    batch, heads = scores.shape[:2]
    if axis == "query rows":
        return keep.mT
    if axis == "head order":  # tiled m0, m1, m0, m1 where the layer has b0h0, b0h1, b1h0, b1h1
        full = keep.expand(batch, heads, *keep.shape[-2:])
        order = torch.arange(batch * heads) % batch
        return full[order, 0].view(batch, heads, *keep.shape[-2:])
    if axis == "other sample":
        return keep.roll(1, 0)
    if axis == "first sample":
        return keep[:1]
    return keep
