"""Positions: what tells an attention layer where a token stands.

To attention, tokens are a set. Adding to each a vector that depends on its place makes a sequence of them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from utils import checks


def sinusoidal_positions(
    n: int,
    d_model: int,
    base: float = 10000.0,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The sinusoidal table: a clock with d_model / 2 hands, from fast to slow, read at every position.

    PE[pos, 2i] = sin(pos / base^(2i / d_model)),  PE[pos, 2i + 1] = cos(the same angle)

    n        positions 0 ... n - 1
    d_model  features; with an odd number, the last sine has no cosine beside it
    base     wavelengths run from 2 pi (in tokens) almost up to base * 2 pi
    returns  (n, d_model), computed in float64 and returned in dtype (default: torch's own)

    Raises TypeError or ValueError for a negative n, d_model below 1 or a base of 1 or less.
    Source: Vaswani et al., Attention Is All You Need (2017), section 3.5.
    """
    checks.table("n", n, d_model, base)
    even = torch.arange(0, d_model, 2, dtype=torch.float64)  # the 2i of the formula
    frequencies = torch.exp(-math.log(base) / d_model * even)  # base^(-2i / d_model)
    angles = torch.arange(n, dtype=torch.float64)[:, None] * frequencies  # (n, ceil(d_model / 2))
    table = torch.empty(n, d_model, dtype=torch.float64)
    table[:, 0::2] = angles.sin()
    table[:, 1::2] = angles.cos()[:, : d_model // 2]
    return table.to(device=device, dtype=dtype or torch.get_default_dtype())


class SinusoidalPositions(nn.Module):
    """Add the sinusoidal table to a batch of sequences, however long they are.

    d_model  features of a token
    max_len  positions computed at the start; a longer input makes the table grow
    base     as in sinusoidal_positions

    The table is a buffer: it moves with the module from device to device. As it can be computed again, it is
    not stored in the state_dict, and is made anew for a longer input or one of another dtype. (A module that
    was cast to a shorter dtype and back keeps the rounded numbers.)
    """

    def __init__(self, d_model: int, max_len: int = 512, base: float = 10000.0) -> None:
        super().__init__()
        self.d_model, self.base = d_model, base
        self.register_buffer("table", sinusoidal_positions(max_len, d_model, base), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, n, d_model) -> x + table[:n], the same shape. Other shapes raise ValueError."""
        checks.sequences(x, self.d_model)
        n, known = x.shape[1], len(self.table)
        if n > known or x.dtype != self.table.dtype:
            length = known if n <= known else max(n, 2 * known)
            self.table = sinusoidal_positions(length, self.d_model, self.base, self.table.device, x.dtype)
        return x + self.table[:n]


class LearnedPositions(nn.Module):
    """Add a learned vector for each position.

    d_model  features of a token
    max_len  how many positions there are; beyond them nothing was learned, so longer input is refused

    They start small and random (std 0.02) beside token vectors, as in BERT.
    Source: Gehring et al., Convolutional Sequence to Sequence Learning (2017), section 3.1.
    """

    def __init__(self, d_model: int, max_len: int) -> None:
        super().__init__()
        checks.table("max_len", max_len, d_model)
        self.d_model = d_model
        self.table = nn.Parameter(0.02 * torch.randn(max_len, d_model))

    def forward(self, x: Tensor) -> Tensor:
        """x (B, n, d_model) -> x + table[:n]. Raises ValueError for other shapes and for n > max_len."""
        checks.sequences(x, self.d_model, longest=len(self.table))
        return x + self.table[: x.shape[1]].to(x.dtype)
