"""Attention put into words: what a row of weights says, and where one weight comes from."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from utils.attention import entropy

LARGE = 80  # scores beyond this are shown with the largest one subtracted, as softmax does
LONGEST = 40  # characters of a token that a sentence has room for
SPELLED_OUT = 6  # a sum of up to this many terms is written out


def describe_row(weights: np.ndarray, tokens: Sequence[str], query: int) -> str:
    """One sentence about one query.

    weights  (n,) its shares over the keys
    tokens   (n,) names of the keys
    query    which of the tokens asks
    """
    weights = np.asarray(weights, dtype=float)
    if not weights.any():
        return f"{_word(tokens, query)} attends to nothing: every key is forbidden."
    bits = float(entropy(weights, base=2))
    return (
        f"{_word(tokens, query)} attends {_whom(weights, tokens, query)}. "
        f"Its row is as spread out as {2**bits:.1f} equal shares (entropy {bits:.2f} bits; "
        f"{len(weights)} equal shares have {math.log2(len(weights)):.2f})."
    )


def _whom(weights: np.ndarray, tokens: Sequence[str], query: int) -> str:
    top = [int(i) for i in np.flatnonzero(np.isclose(weights, weights.max(), rtol=1e-4))]
    names = ["itself" if i == query else _word(tokens, i) for i in top]
    if len(top) == 1:
        return f"most to {names[0]}, with weight {weights.max():.2f}"
    whom = f"{', '.join(names[:-1])} and {names[-1]}"
    if len(top) > 3:
        whom = f"{len(top)} words" if len(top) < len(weights) else f"all {len(top)} words"
    return f"most, and equally, to {whom}, with weight {weights.max():.2f} each"


def _word(tokens: Sequence[str], place: int) -> str:
    token = str(tokens[place])
    return f"“{token if len(token) <= LONGEST else f'{token[: LONGEST - 1]}…'}” (word {place + 1})"


def trace_weight(
    query: np.ndarray,
    keys: np.ndarray,
    key: int,
    divisor: float,
    names: tuple[str, str] = ("q", "k"),
    allowed: np.ndarray | None = None,
) -> list[str]:
    """The arithmetic behind one attention weight, a line per step.

    query    (d,) the query's vector
    keys     (n, d) all key vectors
    key      which of them
    divisor  what dot products are divided by: a temperature, or sqrt(d_k)
    names    how to call the query and the key
    allowed  (n,) booleans: which keys the query may attend to, at least one; all, if left out
    """
    query, keys = np.asarray(query, dtype=float), np.asarray(keys, dtype=float)
    allowed = np.ones(len(keys), bool) if allowed is None else np.asarray(allowed, dtype=bool)
    dots = (keys * query).sum(axis=-1)
    scores = dots / divisor
    top = scores[allowed].max() if np.abs(scores).max() > LARGE else 0.0  # e to a large power is inf or 0
    masked = np.where(allowed, scores, -np.inf)
    exps = np.exp(masked - top)
    power = f"{masked[key]:.4g}" if top == 0 or not allowed[key] else f"{masked[key]:.4g} - {top:.4g}"
    products = _sum([f"{q:g}×{k:g}" for q, k in _few(query, keys[key])], len(query))
    total = _sum([f"{e:.4g}" for (e,) in _few(exps)], len(exps))
    return [
        f"dot product   {names[0]} · {names[1]} = {products} = {dots[key]:.6g}",
        f"divided       {dots[key]:.6g} / {divisor:.4g} = {scores[key]:.4g}",
        *([] if allowed[key] else ["masked        the score becomes minus infinity"]),
        f"exp           exp({power}) = {exps[key]:.4g}",
        f"share         {exps[key]:.4g} / ({total}) "
        f"= {exps[key]:.4g} / {exps.sum():.4g} = {_share(exps[key] / exps.sum())}",
    ]


def _share(share: float) -> str:
    """Three decimals, but never 0.000: softmax gives every finite score something."""
    return f"{share:.3f}" if share >= 0.001 or share == 0 else f"{share:.2g}"


def _few(*columns: np.ndarray) -> list[tuple[float, ...]]:
    """The rows of the columns, if they are few enough to be written out."""
    return list(zip(*columns, strict=True)) if len(columns[0]) <= SPELLED_OUT else []


def _sum(terms: Sequence[str], count: int) -> str:
    return " + ".join(terms) or f"sum of {count} terms"
