"""The exercises of notebook 01, and the mistakes that people make with them."""

from __future__ import annotations

import numpy as np

from utils.attention import softmax
from utils.exercises.check import Exercise

SMALL = np.array([0.0, 1.0, 2.0])
MATRIX = np.array([[1.0, 0.0, 2.0], [0.5, 3.0, -1.0]])
X = np.array([[1.0, 0.0], [0.5, 1.0], [-1.0, 2.0], [0.0, 0.3]])


def _naive(scores: np.ndarray, axis: int | None = -1) -> np.ndarray:
    exps = np.exp(scores)
    return exps / exps.sum(axis=axis, keepdims=True)


def _attend(x: np.ndarray, temperature: float) -> np.ndarray:
    return softmax(x @ x.T / temperature) @ x


def _equal_shares(weights: np.ndarray) -> float:
    some = weights[weights > 0]
    return 2 ** float((some * np.log2(1 / some)).sum())


EXERCISES = {
    "01-softmax": Exercise(
        right=softmax,
        cases={
            "three scores": (SMALL,),
            "negative scores": (-SMALL,),
            "a matrix, row by row": (MATRIX,),
            "equal scores": (np.zeros(4),),
            "scores of a thousand": (np.array([1000.0, 999.0, 0.0]),),
            "scores of minus a thousand": (np.array([-1000.0, -1001.0]),),
            "rows far apart": (np.array([[1.0, 0.0], [1000.0, 999.0]]),),
        },
        mistakes={
            "exp(1000) is too large for a float: subtract the largest score of each row first.": _naive,
            "You divide the scores by their sum; the power of e is missing.": lambda s: (
                s / s.sum(axis=-1, keepdims=True)
            ),
            "The powers of e are right, but they are not divided by their sum.": np.exp,
            "You divide by the sum of the whole matrix; each row has its own (axis=-1, keepdims=True).": (
                lambda s: _naive(s - s.max(), None)
            ),
            "exp(1000) is too large; and each row must have its own sum (axis=-1, keepdims=True).": (
                lambda s: _naive(s, None)
            ),
            "Columns add up to 1, not rows: softmax goes along the last axis (axis=-1).": (
                lambda s: _naive(s - s.max(axis=0, keepdims=True), 0)
            ),
            "Columns add up to 1, not rows (axis=-1); and exp(1000) is too large: subtract the largest.": (
                lambda s: _naive(s, 0)
            ),
            "You subtract the largest score of the whole matrix: a row far below it becomes 0/0. "
            "Subtract each row's own largest.": lambda s: _naive(s - s.max()),
            "Your shares do not add up to 1: divide the powers of e by their sum.": lambda s: np.exp(
                s - s.max(axis=-1, keepdims=True)
            ),
            "The largest score is subtracted, but the power of e is missing.": lambda s: (
                (m := s - s.max(axis=-1, keepdims=True)) / m.sum(axis=-1, keepdims=True)
            ),
            "You subtract the smallest score; it is the largest one whose power overflows.": lambda s: _naive(
                s - s.min(axis=-1, keepdims=True)
            ),
            "You take powers of 2, not of e.": lambda s: _naive((s - s.max(-1, keepdims=True)) * np.log(2)),
        },
    ),
    "01-attend": Exercise(
        right=_attend,
        cases={
            "temperature 1": (X, 1.0),
            "a low temperature": (X, 0.25),
            "a high temperature": (X, 4.0),
            "one word": (X[:1], 1.0),
        },
        mistakes={
            "You multiply by the temperature: a low one must make differences larger, so divide.": (
                lambda x, t: softmax(x @ x.T * t) @ x
            ),
            "The temperature has no effect: divide the scores by it.": lambda x, t: softmax(x @ x.T) @ x,
            "You divide the weights, after the softmax: rows no longer add up to 1. Divide the scores.": (
                lambda x, t: softmax(x @ x.T) / t @ x
            ),
            "These are the weights. The last step is missing: mix the vectors with them (weights @ x).": (
                lambda x, t: softmax(x @ x.T / t)
            ),
            "Columns add up to 1, not rows: let softmax go along the last axis, and mix with weights @ x, "
            "not weights.T @ x.": lambda x, t: softmax(x @ x.T / t, dim=0) @ x,
            "You compare by cosine. Here the scores are plain dot products.": lambda x, t: (
                softmax((u := x / np.linalg.norm(x, axis=1, keepdims=True)) @ u.T / t) @ x
            ),
            "You also divide by sqrt(d). Here only the temperature divides.": lambda x, t: (
                softmax(x @ x.T / t / np.sqrt(x.shape[1])) @ x
            ),
            "The softmax is missing: scores are not shares.": lambda x, t: x @ x.T / t @ x,
        },
    ),
    "01-equal-shares": Exercise(
        right=_equal_shares,
        cases={
            "all to one": (np.array([0.0, 1.0, 0.0]),),
            "two halves": (np.array([0.5, 0.5]),),
            "five equal shares": (np.full(5, 0.2),),
            "unequal shares": (np.array([0.7, 0.2, 0.1]),),
        },
        mistakes={
            "0 times log of 0 gives NaN: leave out the shares that are 0.": lambda w: (
                2 ** (w * np.log2(1 / w)).sum()
            ),
            "This is the entropy in bits. The last step is missing: 2 to that power.": lambda w: np.log2(
                _equal_shares(w)
            ),
            "Base 2 and base e are mixed: with np.log take e to the power, with np.log2 take 2.": lambda w: (
                2 ** np.log(_equal_shares(w))
            ),
            "Base e and base 2 are mixed: with np.log2 take 2 to the power, with np.log take e.": lambda w: (
                np.exp(np.log2(_equal_shares(w)))
            ),
            "Each log2(1 / w) must be multiplied by its share w before they are added up.": lambda w: (
                2 ** np.log2(1 / w[w > 0]).sum()
            ),
            "Only the first share counts: is the return inside the loop?": lambda w: (
                2 ** ((first := w[w > 0][0]) * np.log2(1 / first))
            ),
            "The sign is wrong: log2 of a share is negative, so the sum needs a minus (or log2(1 / w)).": (
                lambda w: 1 / _equal_shares(w)
            ),
            "You count the words that get something; small shares must count for less.": lambda w: (
                np.count_nonzero(w)
            ),
            "This is the largest share, turned over: it looks at one word only.": lambda w: 1 / w.max(),
        },
    ),
}
