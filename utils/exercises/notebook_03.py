"""The exercises of notebook 03, and the mistakes that people make with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from utils.attention import causal_mask, padding_mask, scaled_dot_product_attention, softmax
from utils.exercises.check import Exercise

_GENERATOR = torch.Generator().manual_seed(0)


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=_GENERATOR, dtype=torch.float64)


SQUARE = (_random(2, 4, 3), _random(2, 4, 3), _random(2, 4, 3))  # B=2, n=4, d=3
LONG = (_random(2, 4, 3), _random(2, 6, 3), _random(2, 6, 2))  # n_q=4, n_k=6, d_v=2
CAUSAL, ALL = causal_mask(4), torch.ones(4, 4, dtype=torch.bool)
PADDING = padding_mask(torch.tensor([2, 4]), 4)  # (2, 1, 4)
EMPTY = torch.tensor([[True, True, False], [False, False, False]])

State = dict[str, Tensor]
Step = Callable[[State], State]


def mix(state: State) -> State:
    """Mix the values in the shares."""
    return state | {"output": state["shares"] @ state["v"]}


def score(state: State) -> State:
    """Every query with every key."""
    return state | {"scores": state["q"] @ state["k"].mT}


def share(state: State) -> State:
    """Softmax over the keys."""
    return state | {"shares": softmax(state["scores"])}


def divide(state: State) -> State:
    """By sqrt(d_k)."""
    return state | {"scores": state["scores"] / math.sqrt(state["k"].shape[-1])}


def forbid(state: State) -> State:
    """Minus infinity where the mask is False."""
    return state | {"scores": state["scores"].masked_fill(~state["mask"], -math.inf)}


STEPS = (mix, score, share, divide, forbid)


def _in_order(*order: Step) -> Callable[..., Tensor]:
    def attend(state: State, *steps: Step) -> Tensor:
        for step in order:
            state = step(state)
        return state["output"]

    return attend


def _state(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> State:
    return {"q": q, "k": k, "v": v, "mask": mask}


def _mask(lengths: Tensor, n: int) -> Tensor:
    return causal_mask(n) & padding_mask(lengths, n)


def _masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    return softmax(scores.masked_fill(~mask, -math.inf))


def _attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    return scaled_dot_product_attention(query, key, value, mask, causal)[0]


BUG_CASES: dict[str, tuple[Any, ...]] = {
    "everything allowed": (*SQUARE, ALL),
    "a causal mask": (*SQUARE, CAUSAL),
    "a padding mask": (*SQUARE, PADDING),
    "more keys than queries": (*LONG, torch.ones(4, 6, dtype=torch.bool)),
    "ten times larger": (10 * SQUARE[0], SQUARE[1], SQUARE[2], CAUSAL),
}

EXERCISES = {
    "03-order": Exercise(
        right=_in_order(score, divide, forbid, share, mix),
        cases={
            "everything allowed": (_state(*SQUARE, ALL), *STEPS),
            "a causal mask": (_state(*SQUARE, CAUSAL), *STEPS),
        },
        mistakes={
            "Nothing can be mixed before there are shares: mix comes last, and score first.": _in_order(
                *STEPS
            ),
            "The shares are dealt out before anything is forbidden, so the mask has no effect.": _in_order(
                score, divide, share, forbid, mix
            ),
            "The shares are dealt out before the scores are divided.": _in_order(
                score, forbid, share, divide, mix
            ),
            "The shares are dealt out before the scores are divided and forbidden.": _in_order(
                score, share, divide, forbid, mix
            ),
            "There are no scores yet to divide, forbid or share out: score comes first.": _in_order(
                divide, score, forbid, share, mix
            ),
        },
    ),
    "03-mask": Exercise(
        right=_mask,
        cases={
            "two sentences": (torch.tensor([2, 4]), 4),
            "three sentences of three": (torch.tensor([1, 2, 3]), 3),
            "an empty sentence": (torch.tensor([0, 5]), 5),
        },
        mistakes={
            "The causal part is missing: nobody may look ahead.": lambda lengths, n: padding_mask(
                lengths, n
            ).expand(-1, n, n),
            "The padding is not hidden.": lambda lengths, n: causal_mask(n).expand(len(lengths), n, n),
            "The padding is hidden along the queries: rows instead of columns.": lambda lengths, n: (
                causal_mask(n) & padding_mask(lengths, n).mT
            ),
            "The triangle is the wrong one: word i may attend to words 0 ... i.": lambda lengths, n: (
                causal_mask(n).T & padding_mask(lengths, n)
            ),
            "A word may attend to itself: the diagonal is missing.": lambda lengths, n: (
                causal_mask(n).tril(-1) & padding_mask(lengths, n)
            ),
            "True and False are exchanged: True means may attend.": lambda lengths, n: ~_mask(lengths, n),
            "One real word too many: a length of 2 means words 0 and 1.": lambda lengths, n: (
                causal_mask(n) & padding_mask((lengths + 1).clamp(max=n), n)
            ),
            "`|` allows what either allows; both must: `&`.": lambda lengths, n: (
                causal_mask(n) | padding_mask(lengths, n)
            ),
        },
    ),
    "03-masked-softmax": Exercise(
        right=_masked_softmax,
        cases={
            "everything allowed": (SQUARE[0], torch.ones(3, dtype=torch.bool)),
            "a causal mask": (_random(4, 4), CAUSAL),
            "an empty row": (_random(2, 3), EMPTY),
            "scores of a thousand": (torch.tensor([[1000.0, 999.0, 0.0]]), torch.tensor([True, True, False])),
            "a forbidden score that is large": (torch.tensor([[1000.0, 0.0]]), torch.tensor([False, True])),
        },
        mistakes={
            "An empty row gives NaN: set the shares of forbidden keys to 0 after the softmax.": lambda s, m: (
                torch.softmax(s.masked_fill(~m, -math.inf), -1)
            ),
            "An empty row gets equal shares where it should get none.": lambda s, m: torch.softmax(
                s.masked_fill(~m, -1e9), -1
            ),
            "The mask acts after the softmax: the rest must be shared out anew.": lambda s, m: (
                torch.softmax(s, -1) * m
            ),
            "Multiplying by 0 makes a score 0, and the power of 0 is 1: use minus infinity.": lambda s, m: (
                torch.softmax(s * m, -1)
            ),
            "True means may attend here; you hide what is True.": lambda s, m: _masked_softmax(s, ~m),
            "The mask has no effect.": lambda s, m: torch.softmax(s, -1),
            "exp(1000) is too large: subtract the largest allowed score first.": lambda s, m: (
                (e := torch.exp(s).masked_fill(~m, 0.0)) / e.sum(-1, keepdim=True).clamp(min=1e-30)
            ),
        },
    ),
    "03-attention": Exercise(
        right=_attention,
        cases={
            "no mask": SQUARE,
            "more keys than queries": LONG,
            "a padding mask": (*SQUARE, PADDING),
            "causal": (*SQUARE, None, True),
            "both": (*SQUARE, PADDING, True),
            "causal, more keys than queries": (*LONG, None, True),
            "a row with nothing allowed": (*SQUARE, CAUSAL.tril(-1)),
        },
        doctor={"kind": "attention", "mask": "keep"},
    ),
    "03-bug-1": Exercise(right=_attention, cases=BUG_CASES),
    "03-bug-2": Exercise(right=_attention, cases=BUG_CASES),
    "03-bug-3": Exercise(right=_attention, cases=BUG_CASES),
}
