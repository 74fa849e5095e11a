"""The exercises of notebook 02, and the mistakes that people make with them."""

from __future__ import annotations

import numpy as np

from utils.attention import softmax
from utils.exercises.check import Exercise

_random = np.random.default_rng(0).normal
X, CONTEXT = _random(size=(4, 6)), _random(size=(5, 6))  # n_q=4, n_k=5, d_model=6
BATCH, BATCH_CONTEXT = _random(size=(2, 4, 6)), _random(size=(2, 5, 6))
SQUARE = tuple(_random(size=(3, 6, 6)))
NARROW = (*_random(size=(2, 6, 3)), _random(size=(6, 2)))  # d_k=3, d_v=2
BIAS = _random(size=6)


def _turned(x: np.ndarray) -> np.ndarray:
    return x.swapaxes(-1, -2)


def _cross(
    x: np.ndarray, context: np.ndarray, W_q: np.ndarray, W_k: np.ndarray, W_v: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    weights = softmax(x @ W_q @ _turned(context @ W_k) / W_q.shape[1] ** 0.5)
    return weights @ (context @ W_v), weights


def _head(x: np.ndarray, W_q: np.ndarray, W_k: np.ndarray, W_v: np.ndarray) -> np.ndarray:
    return _cross(x, x, W_q, W_k, W_v)[0]


def _count(d_model: int, d_k: int, d_v: int, bias: bool) -> int:
    return (2 * d_k + d_v) * (d_model + bool(bias))


EXERCISES = {
    "02-head": Exercise(
        right=_head,
        cases={
            "square matrices": (X, *SQUARE),
            "narrow matrices, d_v other than d_k": (X, *NARROW),
            "one word": (X[:1], *NARROW),
        },
        mistakes={
            "Keys are made with the queries' matrix: use W_k.": lambda x, q, k, v: _head(x, q, q, v),
            "Queries and keys have changed places: rows are queries, so it is q @ k.T.": (
                lambda x, q, k, v: _head(x, k, q, v)
            ),
            "The scores are not divided by sqrt(d_k).": lambda x, q, k, v: (
                softmax(x @ q @ (x @ k).T) @ (x @ v)
            ),
            "You divide by d_k; it is its square root that divides.": lambda x, q, k, v: (
                softmax(x @ q @ (x @ k).T / q.shape[1]) @ (x @ v)
            ),
            "You divide by sqrt(d_model), the width of the words; d_k is the width of a query.": (
                lambda x, q, k, v: softmax(x @ q @ (x @ k).T / x.shape[1] ** 0.5) @ (x @ v)
            ),
            "You divide by sqrt(n), the number of words; d_k is the width of a query.": (
                lambda x, q, k, v: softmax(x @ q @ (x @ k).T / x.shape[0] ** 0.5) @ (x @ v)
            ),
            "You multiply by sqrt(d_k) where you should divide.": lambda x, q, k, v: (
                softmax(x @ q @ (x @ k).T * q.shape[1] ** 0.5) @ (x @ v)
            ),
            "You mix the words themselves: the values x @ W_v are missing.": lambda x, q, k, v: (
                softmax(x @ q @ (x @ k).T / q.shape[1] ** 0.5) @ x
            ),
            "Values are made with the keys' matrix: use W_v.": lambda x, q, k, v: _head(x, q, k, k),
            "The weights are divided, after the softmax: rows no longer add up to 1. Divide the scores.": (
                lambda x, q, k, v: softmax(x @ q @ (x @ k).T) / q.shape[1] ** 0.5 @ (x @ v)
            ),
            "Columns add up to 1, not rows: softmax goes along the last axis.": lambda x, q, k, v: (
                softmax(x @ q @ (x @ k).T / q.shape[1] ** 0.5, dim=0) @ (x @ v)
            ),
            "The softmax is missing: scores are not shares.": lambda x, q, k, v: (
                x @ q @ (x @ k).T / q.shape[1] ** 0.5 @ (x @ v)
            ),
            "These are the weights. The last step is missing: mix the values with them (weights @ v).": (
                lambda x, q, k, v: softmax(x @ q @ (x @ k).T / q.shape[1] ** 0.5)
            ),
        },
    ),
    "02-linear": Exercise(
        right=lambda x, weight, bias: x @ weight.T + bias,
        cases={
            "a square weight": (X, SQUARE[0], BIAS),
            "six numbers to three": (X, NARROW[0].T, BIAS[:3]),
            "a batch": (BATCH, NARROW[0].T, BIAS[:3]),
            "one word": (X[0], NARROW[0].T, BIAS[:3]),
        },
        mistakes={
            "The bias is missing.": lambda x, weight, bias: x @ weight.T,
            "The bias is subtracted; add it.": lambda x, weight, bias: x @ weight.T - bias,
            "The weight is stored as (d_out, d_in): turn it over, weight.T. (A square one gives no error.)": (
                lambda x, weight, bias: x @ weight + bias
            ),
            "The weight is stored as (d_out, d_in): turn it over, weight.T; and the bias is missing.": (
                lambda x, weight, bias: x @ weight
            ),
            "It is x that comes first: each row of x is multiplied by the weight.": lambda x, weight, bias: (
                weight @ x + bias
            ),
        },
    ),
    "02-count": Exercise(
        right=_count,
        cases={
            "no biases": (512, 64, 64, False),
            "with biases": (512, 64, 64, True),
            "d_v other than d_k": (384, 8, 4, True),
        },
        mistakes={
            "The biases are missing: one for each column, if bias is True.": lambda m, k, v, bias: _count(
                m, k, v, False
            ),
            "The biases are counted even where there are none.": lambda m, k, v, bias: _count(m, k, v, True),
            "One of the three matrices is missing: W_q and W_k are two.": lambda m, k, v, bias: (
                (k + v) * (m + bias)
            ),
            "The values' matrix has d_v columns, not d_k.": lambda m, k, v, bias: 3 * k * (m + bias),
            "A bias has one number per column of its matrix (d_k, d_k, d_v), not one per row.": (
                lambda m, k, v, bias: _count(m, k, v, False) + 3 * m * bias
            ),
            "A bias is one vector per matrix, not one number.": lambda m, k, v, bias: (
                _count(m, k, v, False) + 3 * bias
            ),
            "Each matrix has its own bias: d_k numbers, d_k, and d_v.": lambda m, k, v, bias: (
                _count(m, k, v, False) + (k + v) * bias
            ),
            "True counts as 1 only: the biases are 2 d_k + d_v numbers.": lambda m, k, v, bias: (
                _count(m, k, v, False) + bias
            ),
        },
    ),
    "02-cross": Exercise(
        right=_cross,
        cases={
            "as many keys as queries": (X, CONTEXT[:4], *NARROW),
            "more keys than queries": (X, CONTEXT, *NARROW),
            "a batch": (BATCH, BATCH_CONTEXT, *NARROW),
            "square matrices": (X, CONTEXT, *SQUARE),
        },
        mistakes={
            "Queries come from the context. It is x that asks.": lambda x, c, q, k, v: _cross(c, x, q, k, v),
            "This is self-attention of x: keys and values come from the context.": lambda x, c, q, k, v: (
                _cross(x, x, q, k, v)
            ),
            "This is self-attention of the context: the queries come from x.": lambda x, c, q, k, v: _cross(
                c, c, q, k, v
            ),
            "Keys come from x; the context makes keys and values.": lambda x, c, q, k, v: (
                (w := softmax(x @ q @ _turned(x @ k) / q.shape[1] ** 0.5)) @ (c @ v),
                w,
            ),
            "Values come from x; the context makes keys and values.": lambda x, c, q, k, v: (
                (w := softmax(x @ q @ _turned(c @ k) / q.shape[1] ** 0.5)) @ (x @ v),
                w,
            ),
            "`.T` turns over all axes of a batch: use swapaxes(-1, -2), the last two only.": (
                lambda x, c, q, k, v: (
                    (w := softmax(x @ q @ (c @ k).T / q.shape[1] ** 0.5)) @ (c @ v),
                    w,
                )
            ),
            "The scores are not divided by sqrt(d_k).": lambda x, c, q, k, v: (
                (w := softmax(x @ q @ _turned(c @ k))) @ (c @ v),
                w,
            ),
            "Columns add up to 1, not rows: softmax goes along the last axis.": lambda x, c, q, k, v: (
                (w := softmax(x @ q @ _turned(c @ k) / q.shape[1] ** 0.5, dim=-2)) @ (c @ v),
                w,
            ),
            "Outputs first, then weights.": lambda x, c, q, k, v: _cross(x, c, q, k, v)[::-1],
            "You divide by sqrt(d_model), the width of the words; d_k is the width of a query.": (
                lambda x, c, q, k, v: (
                    (w := softmax(x @ q @ _turned(c @ k) / x.shape[-1] ** 0.5)) @ (c @ v),
                    w,
                )
            ),
            "These are the scores beside the outputs; return the weights, after the softmax.": (
                lambda x, c, q, k, v: (_cross(x, c, q, k, v)[0], x @ q @ _turned(c @ k) / q.shape[1] ** 0.5)
            ),
        },
    ),
}
