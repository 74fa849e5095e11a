"""Attention itself: softmax, scaled dot-product attention, masks, entropy.

Shapes are written (..., n, d): any number of batch axes, then n tokens, then d features.
softmax, attention and entropy take torch tensors or numpy arrays and answer in kind.
A boolean mask is True where a query may attend to a key.
"""

from __future__ import annotations

import functools
import math
import operator

import torch
from torch import Tensor

from utils import checks


@checks.numpy_in_numpy_out
def softmax(scores: Tensor, dim: int = -1) -> Tensor:
    """Turn scores into shares of one: exp(s_j) / sum_k exp(s_k).

    scores   any shape, floats; -inf means "no share at all"
    dim      the axis whose shares sum to 1
    returns  same shape and dtype; a row that is -inf throughout gets shares of 0

    Subtracting the largest score leaves every share as it is, since
    exp(s - c) = exp(s) / exp(c), and keeps exp from overflowing.

    Raises ValueError for NaN, +inf, integers or an empty axis.
    Source: Goodfellow, Bengio, Courville, Deep Learning (2016), section 4.1.
    """
    checks.scores(scores, dim)
    wide = at_least_float32(scores)
    largest = wide.detach().amax(dim, keepdim=True)
    largest = largest.masked_fill(largest == -math.inf, 0.0)  # -inf - -inf would be NaN
    exps = (wide - largest).exp()  # the largest score gives exp(0) = 1 ...
    total = exps.sum(dim, keepdim=True)
    total = total.masked_fill(total == 0.0, 1.0)  # ... so only an empty row has a total of 0
    return (exps / total).to(scores.dtype)


@checks.numpy_in_numpy_out
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """softmax(Q K^T / sqrt(d_k)) V, and the softmax itself.

    query      (..., n_q, d_k)
    key        (..., n_k, d_k)
    value      (..., n_k, d_v)
    attn_mask  broadcasts to (..., n_q, n_k). Boolean: True = may attend.
               Float: added to the scores, -inf = may not.
    is_causal  query i sees keys 0 ... i only (top-left aligned, as in PyTorch);
               together with attn_mask, both must allow a pair
    returns    output (..., n_q, d_v), weights (..., n_q, n_k)

    A query that may attend to no key gets weights 0 and output 0.
    float16 and bfloat16 are computed in float32 (unless autocast is on) and returned in their own dtype.

    Raises TypeError or ValueError that names the shapes, dtypes or devices that do not fit,
    and for NaN or infinity anywhere but in the mask, where -inf is welcome.
    Source: Vaswani et al., Attention Is All You Need (2017), section 3.2.1, equation 1.
    """
    checks.attention(query, key, value, attn_mask, is_causal)
    q, k, v = (at_least_float32(t) for t in (query, key, value))
    scores = q @ k.transpose(-2, -1) / math.sqrt(k.shape[-1])  # (..., n_q, n_k)
    checks.finite("scores", scores)
    if is_causal:
        causal = causal_mask(*scores.shape[-2:], device=scores.device)
        attn_mask = combine_masks(attn_mask, causal)
    if attn_mask is not None:
        scores = scores + as_additive(attn_mask, scores.dtype)
    weights = softmax(scores)  # over the keys: each query hands out one unit
    output = weights @ v  # (..., n_q, d_v)
    return output.to(query.dtype), weights.to(query.dtype)


def causal_mask(n_q: int, n_k: int | None = None, device: torch.device | str | None = None) -> Tensor:
    """Who may look at whom if nobody looks ahead: True on and below the diagonal.

    returns  (n_q, n_k) boolean; entry [i, j] is True where j <= i. n_k defaults to n_q.

    With n_q != n_k the diagonal starts in the top-left corner, as in PyTorch.
    """
    n_k = n_q if n_k is None else n_k
    return torch.ones(n_q, n_k, dtype=torch.bool, device=device).tril()


def padding_mask(lengths: Tensor, n_k: int) -> Tensor:
    """Hide the padding at the end of each sequence.

    lengths  (...) integers: how many of the n_k keys of each sequence are real
    n_k      length that all sequences were padded to
    returns  (..., 1, n_k) boolean, True for real keys; the 1 stands for "every query".
             Against heads, (B, h, n_q, n_k), pass lengths[:, None] to get (B, 1, 1, n_k).

    Raises ValueError where a length is not between 0 and n_k.
    """
    lengths = checks.lengths(lengths, n_k)
    return torch.arange(operator.index(n_k), device=lengths.device) < lengths[..., None, None]


@checks.numpy_in_numpy_out
def combine_masks(*masks: Tensor | None) -> Tensor | None:
    """One mask that allows what every given mask allows; None stands for "no mask".

    masks    boolean (True = may attend) or float (added to scores), shapes that broadcast
    returns  boolean if all are boolean, else float; None if all are None
    """
    given = [mask for mask in masks if mask is not None]
    checks.masks_fit(given)
    if not given:
        return None
    if all(mask.dtype == torch.bool for mask in given):
        combined = given[0]
        for mask in given[1:]:
            combined = combined & mask
        return combined
    floats = [mask.dtype for mask in given if mask.dtype != torch.bool]
    dtype = functools.reduce(torch.promote_types, floats)  # the widest: no bias is rounded to -inf
    return sum(as_additive(mask, dtype) for mask in given)


@checks.numpy_in_numpy_out
def entropy(weights: Tensor, dim: int = -1, base: float = math.e) -> Tensor:
    """How spread out attention is: -sum_j w_j log(w_j), with 0 log 0 = 0.

    weights  shares along dim: each row sums to 1 (or to 0, if nothing was allowed)
    base     unit of the answer, above 1: e for nats, 2 for bits
    returns  weights' shape without dim: 0 = one key takes all, log(n) = n equal shares

    base ** entropy reads as "as if it attended to that many keys equally".

    Raises ValueError for rows that are not shares (scores passed by mistake, say).
    Source: Shannon, A Mathematical Theory of Communication (1948), section 6.
    """
    checks.shares(weights, dim, base)
    wide = at_least_float32(weights)
    logs = wide.clamp(min=torch.finfo(wide.dtype).tiny).log()  # 0 log 0 = 0, and its gradient is finite
    return (-(wide * logs).sum(dim) / math.log(base) + 0.0).to(weights.dtype)


def at_least_float32(tensor: Tensor) -> Tensor:
    """float16 runs out of range at 65504 and of digits long before: compute in float32."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def as_additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """True -> 0 (leaves a score as it is), False -> -inf (exp(-inf) = 0 exactly)."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, -math.inf)
