"""Multi-head attention: several attentions side by side, each on its own slice of the features.

Shapes: B sequences of n tokens with d_model features; h heads with d_k = d_model / h features each.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils import checks
from utils.attention import causal_mask, combine_masks, scaled_dot_product_attention


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Give each head its own slice of every token: (..., n, d_model) -> (..., h, n, d_k).

    Head 0 gets the first d_k features of every token, head 1 the next d_k, and so on. The axes must be
    exchanged after the cut: a view straight to (..., h, n, d_k) has the same shape and mixes up the tokens.

    Raises ValueError where num_heads does not divide d_model, and lists the numbers that do.
    """
    checks.heads(x.shape[-1], num_heads)
    return x.unflatten(-1, (num_heads, -1)).transpose(-3, -2)  # (..., n, h, d_k) -> (..., h, n, d_k)


def merge_heads(x: Tensor) -> Tensor:
    """Undo split_heads: put the slices side by side again, (..., h, n, d_k) -> (..., n, d_model)."""
    return x.transpose(-3, -2).flatten(-2)  # (..., n, h, d_k) -> (..., n, d_model)


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W_O, head_i = Attention(Q W_Q,i, K W_K,i, V W_V,i).

    d_model    features of a token, going in and coming out
    num_heads  h; must divide d_model, each head works with d_k = d_v = d_model / h
    dropout    share of the attention weights that is set to 0, in training only
    bias       whether the four projections add a bias

    The h small matrices W_Q,i are the column blocks of one large one, so h changes no parameter count.

    Raises ValueError where num_heads does not divide d_model, and lists the numbers that do, and for a
    dropout outside 0 ... 1.
    Source: Vaswani et al., Attention Is All You Need (2017), section 3.2.2.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.heads(d_model, num_heads)
        checks.rate("dropout", dropout)
        self.d_model, self.num_heads, self.dropout = d_model, num_heads, dropout
        new = {"bias": bias, "device": device, "dtype": dtype}
        self.q_proj = nn.Linear(d_model, d_model, **new)
        self.k_proj = nn.Linear(d_model, d_model, **new)
        self.v_proj = nn.Linear(d_model, d_model, **new)
        self.out_proj = nn.Linear(d_model, d_model, **new)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend in every head, then mix what the heads found.

        query         (B, n_q, d_model); more batch axes or none, (n_q, d_model), are fine too
        key, value    (B, n_k, d_model), same batch axes. Left out: key = query, value = key
        attn_mask     (n_q, n_k), one for all; or as many axes as the scores, (B, h, n_q, n_k), where
                      an axis of 1 stands for all: padding (B, n_k) is mask[:, None, None].
                      Boolean: True = may attend. Float: added to the scores
        is_causal     query i sees keys 0 ... i only; with attn_mask, both must allow a pair
        need_weights  also return each head's weights, which costs time and memory
        returns       output (B, n_q, d_model), and weights (B, h, n_q, n_k) before dropout, or None

        A query that may attend to no key gets the output projection's bias alone. The sequence comes before
        the features, never first of all: (n, B, d_model) would be taken for n sequences of length B.

        Raises TypeError or ValueError that names what does not fit, and for NaN and infinity.
        """
        key = query if key is None else key
        value = key if value is None else value
        checks.layer_inputs(self.q_proj.weight, query, key, value)
        checks.layer_mask(attn_mask, is_causal, query, key, self.num_heads)
        q = split_heads(self.q_proj(query), self.num_heads)  # (B, h, n_q, d_k)
        k = split_heads(self.k_proj(key), self.num_heads)  # (B, h, n_k, d_k)
        v = split_heads(self.v_proj(value), self.num_heads)  # (B, h, n_k, d_k)
        dropout = self.dropout if self.training else 0.0
        if need_weights:
            found, weights = scaled_dot_product_attention(q, k, v, attn_mask, is_causal)
            if dropout:
                found = F.dropout(weights, dropout) @ v
        else:
            weights = None
            found = _fused(q, k, v, attn_mask, is_causal, dropout)
        return self.out_proj(merge_heads(found)), weights

    @classmethod
    def from_pytorch(cls, module: nn.MultiheadAttention) -> MultiHeadAttention:
        """The same layer with a copy of PyTorch's weights, where W_Q, W_K and W_V are packed into one matrix.

        Give it (B, n, d_model), whatever the module's batch_first says. All parameters are trainable.

        Raises ValueError for what this class does not have: kdim, vdim, add_bias_kv, add_zero_attn.
        """
        checks.plain_multihead(module)
        bias = module.in_proj_bias is not None
        weight = module.in_proj_weight
        ours = cls(module.embed_dim, module.num_heads, module.dropout, bias, weight.device, weight.dtype)
        with torch.no_grad():
            for name, theirs in (("weight", module.in_proj_weight), ("bias", module.in_proj_bias)):
                if theirs is None:
                    continue
                parts = theirs.chunk(3)  # three blocks of d_model rows
                for projection, part in zip((ours.q_proj, ours.k_proj, ours.v_proj), parts, strict=True):
                    getattr(projection, name).copy_(part)
        ours.out_proj.load_state_dict(module.out_proj.state_dict())
        return ours.train(module.training)

    def to_pytorch(self) -> nn.MultiheadAttention:
        """PyTorch's layer (batch_first=True) with a copy of these weights."""
        bias = self.q_proj.bias is not None
        weight = self.q_proj.weight
        theirs = nn.MultiheadAttention(
            self.d_model,
            self.num_heads,
            self.dropout,
            bias,
            batch_first=True,
            device=weight.device,
            dtype=weight.dtype,
        )
        projections = (self.q_proj, self.k_proj, self.v_proj)
        with torch.no_grad():
            theirs.in_proj_weight.copy_(torch.cat([p.weight for p in projections]))
            if bias:
                theirs.in_proj_bias.copy_(torch.cat([p.bias for p in projections]))
        theirs.out_proj.load_state_dict(self.out_proj.state_dict())
        return theirs.train(self.training)

    def extra_repr(self) -> str:
        """What print shows beside the projections."""
        return f"d_model={self.d_model}, num_heads={self.num_heads}, dropout={self.dropout}"


def _fused(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, is_causal: bool, dropout: float
) -> Tensor:
    """PyTorch's kernel on (..., h, n, d_k), which stores no scores where there is just one batch axis."""
    batch = q.shape[:-3]
    if attn_mask is not None and is_causal:  # PyTorch takes one or the other
        attn_mask = combine_masks(attn_mask, causal_mask(q.shape[-2], k.shape[-2], q.device))
        is_causal = False
    if attn_mask is not None and attn_mask.is_floating_point():
        attn_mask = attn_mask.to(q.dtype)
    if attn_mask is not None and attn_mask.ndim > 2:
        attn_mask = _one_batch_axis(attn_mask.expand(*batch, *attn_mask.shape[-3:]))
    q, k, v = (_one_batch_axis(t) for t in (q, k, v))  # (B, h, n, d_k)
    found = F.scaled_dot_product_attention(q, k, v, attn_mask, dropout, is_causal)
    checks.finite("output", found)
    return found.reshape(*batch, *found.shape[1:])


def _one_batch_axis(x: Tensor) -> Tensor:
    return x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:])
