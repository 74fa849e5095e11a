"""One attention with every known mistake as a switch, so that a patient can be compared with all of them.

The patient's outputs are held against the outputs of each combination of switches; the combination that
gives the same numbers is what the patient does. Everything here is wrong on purpose but for the defaults.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
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
    "plus a billion": lambda s, keep: s.masked_fill(~keep, 1e9),
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


# What else people do to the scores before they are shared out; a number in words: they are clipped to +- it
BENDS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda s: s,
    "negated": torch.neg,
    "absolute": torch.abs,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "floor": torch.floor,
}


def _by_sums_of_other_rows(scores: Tensor) -> Tensor:
    """As without keepdims: the sums of rows are laid along the columns."""
    exps = (scores - scores.amax((-2, -1), keepdim=True)).exp()
    return exps / exps.sum(-1)[..., None, :]


# What scores are shared out over, or by what else: name -> scores -> weights
SOFTMAXES: dict[str, Callable[[Tensor], Tensor]] = {
    "keys": lambda s: s.softmax(-1),
    "queries": lambda s: s.softmax(-2),
    "heads": lambda s: s.softmax(1),
    "batch": lambda s: s.softmax(0),
    "all": lambda s: s.flatten(-2).softmax(-1).view_as(s),
    "none": lambda s: s,
    "sigmoid": torch.sigmoid,
    "twice": lambda s: s.softmax(-1).softmax(-1),
    "base 2": lambda s: (s * math.log(2)).softmax(-1),
    "sum": lambda s: s / s.sum(-1, keepdim=True),
    "squares": lambda s: s**2 / (s**2).sum(-1, keepdim=True),
    "sums of other rows": _by_sums_of_other_rows,
    "everything": lambda s: s.flatten().softmax(0).view_as(s),
    "logarithm": lambda s: s.log_softmax(-1),
}
# The same, so rare that only functions are compared with it
RARE: dict[str, Callable[[Tensor], Tensor]] = {
    "one more": lambda s: s.exp() / (1 + s.exp().sum(-1, keepdim=True)),
}
# Which input serves as query, key and value
ROLES: dict[str, Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]] = {
    "right": lambda q, k, v: (q, k, v),
    "key reshaped": lambda q, k, v: (q, k, v),
    "query and key swapped": lambda q, k, v: (k, q, v),
    "key for value": lambda q, k, v: (q, k, k),
    "query for value": lambda q, k, v: (q, k, q),
    "value for key": lambda q, k, v: (q, v, v),
    "query for key": lambda q, k, v: (q, q, v),
    "key for query": lambda q, k, v: (k, k, v),
    "key and value swapped": lambda q, k, v: (q, v, k),
}
ALL_ROLES = ROLES | {"query and value swapped": lambda q, k, v: (v, k, q)}
AFTER = {"after": 0.0, "after, minus infinity": -math.inf, "after, a low number": -1e9}  # weights so masked
# The triangles that people build of (n_q, n_k) ones
CAUSALS: dict[str, Callable[[Tensor], Tensor]] = {
    "right": lambda ones: ones.tril(),
    "upper": lambda ones: ones.triu(),
    "strict upper": lambda ones: ones.triu(1),
    "no self": lambda ones: ones.tril(-1),
    "one ahead": lambda ones: ones.tril(1),
    "ignored": lambda ones: ones,
    "bottom-right": lambda ones: ones.tril(ones.shape[1] - ones.shape[0]),
}


def _in_head_order(keep: Tensor, batch: int, heads: int) -> Tensor:
    """Tiled m0, m1, m0, m1 where the layer has b0h0, b0h1, b1h0, b1h1."""
    full = keep.expand(batch, heads, *keep.shape[-2:])
    return full[torch.arange(batch * heads) % batch, 0].view_as(full)


# Along what a mask is laid: name -> (keep, batch, heads) -> keep
MASK_AXES: dict[str, Callable[[Tensor, int, int], Tensor]] = {
    "right": lambda keep, batch, heads: keep,
    "query rows": lambda keep, batch, heads: keep.mT,
    "head order": _in_head_order,
    "other sample": lambda keep, batch, heads: keep.roll(1, 0),
    "first sample": lambda keep, batch, heads: keep[:1],
}


@dataclass(frozen=True)
class Hypothesis:
    """What a patient may do. The defaults are right; every other value is a mistake or a convention.

    softmax  over what scores are shared out, or by what else (SOFTMAXES)
    scale    what scores are divided by (SCALES), or a number in words that they are multiplied by
    bend     what else is done to them (BENDS), or a number in words that they are clipped to
    roles    which input serves as what (ROLES)
    always   "no", or the causal mask that is applied unasked
    when     mask "before" softmax, or "after" (weights set to 0, not shared out again)
    fill     what masked scores become (FILLS), or this number in words
    keep     what True means: "attend" or "hide"
    axis     along what a padding mask is laid (MASK_AXES)
    causal   which triangle, when causality is asked for (CAUSALS)
    """

    softmax: str = "keys"
    scale: str = "sqrt(d_k)"
    bend: str = "none"
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
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}


def simplest_first(hypotheses: Iterable[Hypothesis]) -> tuple[Hypothesis, ...]:
    """In the order in which they are tried: fewer deviations are likelier."""
    return tuple(sorted(hypotheses, key=lambda h: len(h.deviations())))


@cache
def unmasked() -> tuple[Hypothesis, ...]:
    """Everything that shows without a mask."""
    switches = itertools.product(ROLES, SOFTMAXES, SCALES)
    rare = [Hypothesis(bend=bend, scale=scale) for bend in BENDS for scale in ("sqrt(d_k)", "none")]
    rare += [Hypothesis(softmax=s) for s in RARE] + [
        Hypothesis(roles=roles) for roles in ALL_ROLES if roles not in ROLES
    ]
    usual = [Hypothesis(softmax=s, scale=scale, roles=roles) for roles, s, scale in switches]
    return simplest_first([*usual, *rare])


@lru_cache(maxsize=256)
def with_mask(base: Hypothesis) -> tuple[Hypothesis, ...]:
    """Everything that a mask may do to this base."""
    rules = [("before", fill) for fill in FILLS] + [(when, "minus infinity") for when in AFTER]
    return simplest_first(
        replace(base, when=when, fill=fill, keep=keep, axis=axis)
        for (when, fill), keep, axis in itertools.product(rules, ("attend", "hide"), MASK_AXES)
    )


@lru_cache(maxsize=256)
def with_causal(base: Hypothesis) -> tuple[Hypothesis, ...]:
    """Everything that a causal flag may do to this base."""
    usual = ("before", "minus infinity")
    rules = [("before", fill) for fill in FILLS if fill != "ignored"] + [("after", "minus infinity")]
    return simplest_first(
        replace(base, causal=causal, causal_when=when, causal_fill=fill)
        for (when, fill), causal in itertools.product(rules, CAUSALS)
        if causal != "ignored" or (when, fill) == usual
    )


@cache
def always_masked() -> tuple[Hypothesis, ...]:
    """Causal without being asked: with one more mistake, or with one in the mask."""
    triangles = [triangle for triangle in CAUSALS if triangle != "ignored"]
    found = [replace(h, always=t) for t in triangles for h in unmasked() if len(h.deviations()) <= 1]
    masked = [h for h in with_causal(Hypothesis()) if h.causal in triangles]
    return simplest_first([*found, *(replace(h, always=h.causal, causal="right") for h in masked)])


def attend(
    h: Hypothesis, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """What a patient with these habits returns: output (B, H, n_q, d_v), weights (B, H, n_q, n_k).

    q, k, v  (B, H, n, d)
    keep     boolean, broadcasts to (B, H, n_q, n_k): True = may attend
    Raises RuntimeError where such a patient would stop, because shapes do not fit.
    """
    by = factor(h, q, k, v)
    q, k, v = ALL_ROLES[h.roles](q, k, v)
    keys = k.reshape(*k.shape[:-2], k.shape[-1], k.shape[-2]) if h.roles == "key reshaped" else k.mT
    scores = _bent(q @ keys * by, h.bend)
    after, hidden = torch.ones((), dtype=scores.dtype), torch.zeros((), dtype=torch.bool)
    triangle = h.causal if causal else h.always
    if triangle != "no":
        allowed = causal_keep(triangle, *scores.shape[-2:])
        if h.causal_when == "before":
            scores = _filled(scores, allowed, h.causal_fill)
        else:
            after = after * allowed
    if keep is not None:
        keep = MASK_AXES[h.axis](keep if h.keep == "attend" else ~keep, *scores.shape[:2])
        if h.when == "before":
            scores = _filled(scores, keep, h.fill)
        else:
            hidden = ~keep
    weights = ((SOFTMAXES | RARE)[h.softmax](scores) * after).masked_fill(hidden, AFTER.get(h.when, 0.0))
    if h.scale == "after softmax":
        weights = weights / math.sqrt(k.shape[-1])
    return weights @ v, weights


def factor(h: Hypothesis, q: Tensor, k: Tensor, v: Tensor) -> float:
    """What scores are multiplied by."""
    return SCALES[h.scale](q, k, v, q.shape[1]) if h.scale in SCALES else float(h.scale)


def is_number(value: str) -> bool:
    """Whether the value of a switch is a number in words."""
    return value.lstrip("-").replace(".", "").isdigit()


def _bent(scores: Tensor, bend: str) -> Tensor:
    return BENDS[bend](scores) if bend in BENDS else scores.clamp(-float(bend), float(bend))


def _filled(scores: Tensor, keep: Tensor, fill: str) -> Tensor:
    return FILLS[fill](scores, keep) if fill in FILLS else scores.masked_fill(~keep, float(fill))


def causal_keep(triangle: str, n_q: int, n_k: int) -> Tensor:
    """(n_q, n_k) boolean, True = may attend: one of CAUSALS."""
    return CAUSALS[triangle](torch.ones(n_q, n_k, dtype=torch.bool))
