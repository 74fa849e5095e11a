"""What the course's code is measured against: the forms that textbooks and tutorials print, put right."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils.multihead import MultiHeadAttention, merge_heads, split_heads


def textbook(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Scores, softmax, product: every (n_q, n_k) matrix is stored."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(k.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return torch.softmax(scores, dim=-1) @ v


def in_numpy(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """The same in numpy; math.sqrt keeps float32, np.sqrt would make float64 of it."""
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(k.shape[-1])
    exps = np.exp(scores - scores.max(-1, keepdims=True))
    return exps / exps.sum(-1, keepdims=True) @ v


class TextbookMultiHead(MultiHeadAttention):
    """The course's layer with the textbook's attention inside."""

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """x (B, n, d_model) -> the same shape."""
        q, k, v = (split_heads(p(x), self.num_heads) for p in (self.q_proj, self.k_proj, self.v_proj))
        return self.out_proj(merge_heads(textbook(q, k, v))), None


class PyTorchMultiHead(nn.Module):
    """nn.MultiheadAttention, called with one argument."""

    def __init__(self, layer: nn.MultiheadAttention) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """x (B, n, d_model) -> the same shape."""
        return self.layer(x, x, x, need_weights=False)


def local_in_a_loop(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """One query at a time, as tutorials print it: O(n w), and slow."""
    out = torch.empty(len(q), v.shape[-1])
    for i in range(len(q)):
        near = slice(max(0, i - window), i + window + 1)
        out[i] = torch.softmax(q[i] @ k[near].T / math.sqrt(k.shape[-1]), dim=-1) @ v[near]
    return out


def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """PyTorch's own on (n, d) with a full mask: on a processor it stores all n x n scores."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def masked_fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """The same on (1, 1, n, d), where PyTorch has a kernel that stores no scores, but computes them all."""
    return F.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None], attn_mask=mask)[0, 0]
