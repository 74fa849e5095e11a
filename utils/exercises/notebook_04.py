"""The exercises of notebook 04, and the mistakes that people make with them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from utils.attention import scaled_dot_product_attention, softmax
from utils.exercises.check import Exercise
from utils.multihead import merge_heads, split_heads

_GENERATOR = torch.Generator().manual_seed(0)


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=_GENERATOR, dtype=torch.float64)


TOKENS, BATCH = _random(3, 12), _random(2, 5, 12)
PACKED = _random(18, 6)
MEMORY, REAL = _random(2, 6, 12), torch.tensor([[True] * 6, [True] * 2 + [False] * 4])
MAPS = softmax(_random(3, 4, 6, 6)).numpy()
MAPS[1, 2] = softmax(2 * torch.eye(6, dtype=torch.float64).roll(1, 1)).numpy()  # mostly the next word
MAPS[2, 1] = softmax(2 * torch.eye(6, dtype=torch.float64).roll(-1, 1)).numpy()  # mostly the one before


def _unpack(packed: Tensor) -> tuple[Tensor, ...]:
    return tuple(part.T for part in packed.chunk(3))


def _attention(scale: float) -> Callable[..., Tensor]:
    """Attention in three heads that differs from its sibling, so that exchanging the two is noticed."""

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        q, k, v = (split_heads(x, 3) for x in (scale * query, key, value))
        return merge_heads(scaled_dot_product_attention(q, k, v, attn_mask, is_causal)[0])

    return attend


def _decoder(x: Tensor, memory: Tensor, real: Tensor, first: Callable, second: Callable) -> Tensor:
    x = first(x, x, x, is_causal=True)
    return second(x, memory, memory, attn_mask=real[:, None, None])


def _search(maps: np.ndarray, offset: int = 1) -> tuple[int, int]:
    return _place(np.diagonal(maps, offset, axis1=-2, axis2=-1).mean(axis=-1))


def _place(found: np.ndarray) -> tuple[int, int]:
    layer, head = np.unravel_index(found.argmax(), found.shape)
    return int(layer), int(head)


def _shape_of(module: type, x: Tensor) -> np.ndarray:
    """The shape of what an attempt's module returns."""
    return np.array(module(12, 3).double()(x).shape)


BOTH = (BATCH, MEMORY, REAL, _attention(1.0), _attention(2.0))
EXERCISES = {
    "04-split": Exercise(
        right=split_heads,
        cases={"three tokens": (TOKENS, 2), "a batch": (BATCH, 3), "one head": (BATCH, 1)},
        mistakes={
            "A bare view has the right shape, but tokens are mixed: cut the last axis, then exchange axes.": (
                lambda x, h: x.reshape(*x.shape[:-2], h, x.shape[-2], -1)
            ),
            "The axes are not exchanged yet: heads come before tokens.": lambda x, h: x.unflatten(
                -1, (h, -1)
            ),
            "The last axis must be cut as (num_heads, d_k); you cut it as (d_k, num_heads).": lambda x, h: (
                x.unflatten(-1, (-1, h)).movedim(-1, -3)
            ),
            "Inside each head, tokens and features are exchanged.": lambda x, h: split_heads(x, h).mT,
            "Axes are counted from the front, which fits only one number of axes: count from the end.": (
                lambda x, h: x.unflatten(-1, (h, -1)).transpose(0, 1)
            ),
        },
    ),
    "04-merge": Exercise(
        right=merge_heads,
        cases={
            "two heads": (_random(2, 3, 4),),
            "a batch": (_random(2, 3, 5, 4),),
            "one head": (TOKENS[None],),
        },
        mistakes={
            "Exchange heads and tokens before you join: so the words are mixed.": lambda x: x.reshape(
                *x.shape[:-3], x.shape[-2], -1
            ),
            "Heads and tokens are exchanged, but the last two axes are not joined.": lambda x: x.transpose(
                -3, -2
            ),
            "The slices must stand side by side, one head after another; you join them feature by feature.": (
                lambda x: x.movedim(-3, -1).flatten(-2)
            ),
            "Axes are counted from the front, which fits only one number of axes: count from the end.": (
                lambda x: x.transpose(0, 1).flatten(-2)
            ),
            "The heads are averaged; they must stand side by side.": lambda x: x.mean(-3),
            "The heads are added; they must stand side by side.": lambda x: x.sum(-3),
        },
    ),
    "04-unpack": Exercise(
        right=_unpack,
        cases={"d_model = 6": (PACKED,), "d_model = 2": (_random(6, 2),)},
        mistakes={
            "PyTorch computes x @ weight.T: turn each of them over.": lambda w: w.chunk(3),
            "Cut along the rows, not along the columns.": lambda w: (
                tuple(p.reshape(-1, w.shape[1]) for p in w.chunk(3, -1))
                if w.shape[1] % 3 == 0
                else w.chunk(3, -1)
            ),
            "The order is query, key, value.": lambda w: _unpack(w)[::-1],
            "Query and key have changed places: the order is query, key, value.": lambda w: (
                *_unpack(w)[1::-1],
                _unpack(w)[2],
            ),
            "The three matrices lie below each other in blocks, not row by row in turn.": lambda w: tuple(
                w[i::3].T for i in range(3)
            ),
            "The right numbers in other places: use .T, not reshape or view.": lambda w: tuple(
                w.T.reshape(3, w.shape[1], -1)
            ),
        },
    ),
    "04-module": Exercise(
        right=lambda x: np.array(x.shape),
        run=_shape_of,
        cases={"the shape of the output": (BATCH,), "one sentence of one word": (BATCH[:1, :1],)},
        doctor={"kind": "module", "num_heads": 3},
        patient=lambda module: module(12, 3),
    ),
    "04-decoder": Exercise(
        right=_decoder,
        cases={"five words and a memory of six": BOTH, "one word": (BATCH[:, :1], *BOTH[1:])},
        mistakes={
            "The text hears its future: the first attention must be causal.": lambda x, m, real, a, b: b(
                a(x, x, x), m, m, attn_mask=real[:, None, None]
            ),
            "The second attention hears the padding of the memory.": lambda x, m, real, a, b: b(
                a(x, x, x, is_causal=True), m, m
            ),
            "In the second attention the text asks, and the memory answers; not the other way round.": (
                lambda x, m, real, a, b: b(m, *[a(x, x, x, is_causal=True)] * 2)
            ),
            "The two attentions have changed places.": lambda x, m, real, a, b: _decoder(x, m, real, b, a),
            "The second attention asks with x as it was: the first is lost.": lambda x, m, real, a, b: b(
                x, m, m, attn_mask=real[:, None, None]
            ),
            "The memory is masked the wrong way round: True means may attend.": lambda x, m, real, a, b: b(
                a(x, x, x, is_causal=True), m, m, attn_mask=~real[:, None, None]
            ),
            "The mask lacks its axes for heads and queries: real[:, None, None].": lambda x, m, real, a, b: b(
                a(x, x, x, is_causal=True), m, m, attn_mask=real
            ),
            "The second attention must not be causal: the whole memory is there.": lambda x, m, real, a, b: b(
                a(x, x, x, is_causal=True), m, m, attn_mask=real[:, None, None], is_causal=True
            ),
        },
    ),
    "04-search": Exercise(
        right=_search,
        cases={
            "three layers of four heads": (MAPS,),
            "turned over": (MAPS[::-1].copy(),),
            "one layer": (MAPS[1:2],),
        },
        mistakes={
            "This head looks at the word before: the next word stands above the diagonal.": lambda m: _search(
                m, -1
            ),
            "This head looks at itself: the next word stands above the diagonal.": lambda m: _search(m, 0),
            "Head and layer have changed places.": lambda m: _search(m)[::-1],
            "argmax counts through all heads of all layers: see np.unravel_index.": (
                lambda m: int(np.diagonal(m, 1, axis1=-2, axis2=-1).mean(-1).argmax())
            ),
            "You take the single largest weight; take the mean over all words.": lambda m: _place(
                np.diagonal(m, 1, axis1=-2, axis2=-1).max(axis=-1)
            ),
        },
    ),
}
