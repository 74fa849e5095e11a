"""The self-attention layer: attention, dropout, a residual connection and a normalisation.

It is the first half of a transformer block; the second half, a feed-forward network, looks at no other token.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from utils import checks
from utils.multihead import MultiHeadAttention


class SelfAttentionLayer(nn.Module):
    """Tokens in, tokens of the same shape out, each having looked at the others.

    norm="post"  LayerNorm(x + Dropout(Attention(x))), as published in 2017
    norm="pre"   x + Dropout(Attention(LayerNorm(x))): the way straight through stays free of norms,
                 which keeps gradients alike at every depth

    d_model, num_heads  as in MultiHeadAttention
    dropout             rate for the attention weights and for what attention adds to x, in training only

    Source: Vaswani et al., Attention Is All You Need (2017), sections 3.1 and 5.4;
    Xiong et al., On Layer Normalization in the Transformer Architecture (2020), for "pre".
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        dropout: float = 0.0,
        norm: str = "post",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.one_of("norm", norm, ("post", "pre"))
        self.norm_first = norm == "pre"
        self.attention = MultiHeadAttention(d_model, num_heads, dropout, device=device, dtype=dtype)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(d_model, device=device, dtype=dtype)

    def forward(
        self,
        x: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """x (B, n, d_model) -> the same shape, and the weights (B, h, n, n) if asked for, else None.

        attn_mask, is_causal, need_weights   as in MultiHeadAttention, errors too
        """
        checks.layer_inputs(self.norm.weight, x, x, x)
        asked = self.norm(x) if self.norm_first else x
        found, weights = self.attention(
            asked, attn_mask=attn_mask, is_causal=is_causal, need_weights=need_weights
        )
        x = x + self.dropout(found)
        return x if self.norm_first else self.norm(x), weights
