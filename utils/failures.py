"""Attention functions that are wrong, each in one way that is often met: the failure gallery of notebook 03.

All are called as f(query, key, value, mask), with (n, d) tensors and a boolean mask, True = may attend,
and return (output, weights) like `utils.attention.scaled_dot_product_attention`. Never use them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Pair = tuple[Tensor, Tensor]
inf = math.inf


def softmax_over_queries(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Pair:
    """Softmax along the wrong axis."""
    scores = query @ key.mT / math.sqrt(key.shape[-1])
    scores = scores.masked_fill(~mask, -1e9)
    weights = torch.softmax(scores, dim=-2)
    return weights @ value, weights


def without_scale(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Pair:
    """Scores are not divided."""
    scores = query @ key.mT
    scores = scores.masked_fill(~mask, -inf)
    weights = torch.softmax(scores, dim=-1)
    return weights @ value, weights


def scaled_by_d_k(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Pair:
    """The root is missing."""
    scores = query @ key.mT / key.shape[-1]
    scores = scores.masked_fill(~mask, -inf)
    weights = torch.softmax(scores, dim=-1)
    return weights @ value, weights


def mask_after_softmax(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Pair:
    """Weights are set to 0 when they have been dealt out already."""
    scores = query @ key.mT / math.sqrt(key.shape[-1])
    weights = torch.softmax(scores, dim=-1)
    weights = weights.masked_fill(~mask, 0.0)
    return weights @ value, weights


def tiny_fill(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Pair:
    """A slip of the pen: 1e-9 for -1e9."""
    scores = query @ key.mT / math.sqrt(key.shape[-1])
    scores = scores.masked_fill(~mask, 1e-9)
    weights = torch.softmax(scores, dim=-1)
    return weights @ value, weights


def mask_multiplied(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Pair:
    """Scores times 0 or 1."""
    scores = query @ key.mT / math.sqrt(key.shape[-1])
    scores = scores * mask
    weights = torch.softmax(scores, dim=-1)
    return weights @ value, weights


def polarity_inverted(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Pair:
    """Written for masks in which True means: hide."""
    scores = query @ key.mT / math.sqrt(key.shape[-1])
    scores = scores.masked_fill(mask, -1e9)
    weights = torch.softmax(scores, dim=-1)
    return weights @ value, weights


def mask_transposed(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Pair:
    """The other triangle."""
    scores = query @ key.mT / math.sqrt(key.shape[-1])
    scores = scores.masked_fill(~mask.mT, -1e9)
    weights = torch.softmax(scores, dim=-1)
    return weights @ value, weights


def key_reshaped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Pair:
    """The shape of a transposed key, but not its numbers."""
    turned = key.reshape(*key.shape[:-2], key.shape[-1], key.shape[-2])
    scores = query @ turned / math.sqrt(key.shape[-1])
    scores = scores.masked_fill(~mask, -inf)
    weights = torch.softmax(scores, dim=-1)
    return weights @ value, weights


def empty_row(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Pair:
    """Right, until a query may attend to nothing."""
    scores = query @ key.mT / math.sqrt(key.shape[-1])
    scores = scores.masked_fill(~mask, -inf)
    weights = torch.softmax(scores, dim=-1)
    return weights @ value, weights


def dropout_always(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Pair:
    """Dropout that nobody switches off."""
    scores = query @ key.mT / math.sqrt(key.shape[-1])
    scores = scores.masked_fill(~mask, -inf)
    weights = torch.softmax(scores, dim=-1)
    weights = F.dropout(weights, p=0.3)
    return weights @ value, weights


def tutorial_without_mask(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Pair:
    """As printed in a widely read tutorial: a mask is spoken of, but not in the code."""
    scores = query @ key.mT / math.sqrt(key.shape[-1])
    weights = torch.softmax(scores, dim=-1)
    return weights @ value, weights


def tutorial_naive_softmax(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Pair:
    """As printed in another, with a mask added: the softmax is written out, and overflows."""
    scores = query @ key.mT / math.sqrt(key.shape[-1])
    exps = torch.exp(scores.masked_fill(~mask, -inf))
    weights = exps / exps.sum(dim=-1, keepdim=True)
    return weights @ value, weights


FAILURES: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Pair]] = {
    "A": softmax_over_queries,
    "B": without_scale,
    "C": scaled_by_d_k,
    "D": mask_after_softmax,
    "E": tiny_fill,
    "F": mask_multiplied,
    "G": polarity_inverted,
    "H": mask_transposed,
    "I": key_reshaped,
    "J": empty_row,
    "K": dropout_always,
    "L, a tutorial": tutorial_without_mask,
    "M, a tutorial": tutorial_naive_softmax,
}


def influence(attention: Callable, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Who is heard by whom: how much the output of token i moves when token j's key and value change.

    attention  f(query, key, value, mask) -> (output, weights), of (n, d) tensors
    returns    (n, n): row i, column j; 0 where token j has no way to reach token i
    """
    chance = torch.get_rng_state()  # a patient that is random gets the same chance each time

    def output(key: Tensor, value: Tensor) -> Tensor:
        torch.set_rng_state(chance)
        return attention(query, key, value, mask)[0]

    base = output(key, value)
    columns = []
    for j in range(len(key)):
        change = torch.zeros(len(key), 1)
        change[j] = 0.5
        columns.append((output(key + change, value + change) - base).norm(dim=-1))
    return torch.stack(columns, dim=-1)
