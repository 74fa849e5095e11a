"""The exercises of notebook 05, and the mistakes that people make with them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils.efficient import local_attention
from utils.exercises.check import Exercise
from utils.multihead import MultiHeadAttention
from utils.positional import sinusoidal_positions

_GENERATOR = torch.Generator().manual_seed(0)


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=_GENERATOR, dtype=torch.float64)


X = _random(2, 5, 6)
LOCAL = (_random(12, 4), _random(12, 4), _random(12, 3))


def _table(n: int, d_model: int, base: float = 10000.0) -> Tensor:
    return sinusoidal_positions(n, d_model, base, dtype=torch.float64)


def _angles(n: int, exponents: np.ndarray, base: float) -> np.ndarray:
    return np.arange(n)[:, None] / base**exponents


def _filled(sines: np.ndarray, cosines: np.ndarray, d_model: int) -> np.ndarray:
    """A table of these sines and cosines in turn."""
    table = np.zeros((len(sines), d_model))
    table[:, 0::2], table[:, 1::2] = sines, cosines[:, : d_model // 2]
    return table


def _wrong_exponents(change: Callable[[np.ndarray, int], np.ndarray]) -> Callable[..., np.ndarray]:
    def table(n: int, d_model: int, base: float = 10000.0) -> np.ndarray:
        angles = _angles(n, change(np.arange(0, d_model, 2), d_model), base)
        return _filled(np.sin(angles), np.cos(angles), d_model)

    return table


def _both_halves_alike(n: int, d_model: int, base: float = 10000.0) -> np.ndarray:
    angles = _angles(n, np.arange(0, d_model, 2) / d_model, base)
    table = np.zeros((n, d_model))
    table[:, 0::2] = np.sin(angles)
    table[:, 1::2] = np.cos(angles)
    return table


def attend(x: Tensor) -> Tensor:
    """Any function that changes a word may stand for attention here."""
    return 2.0 * x.roll(1, -2) + 0.5


def norm(x: Tensor) -> Tensor:
    """LayerNorm without learned numbers."""
    return F.layer_norm(x, x.shape[-1:])


def _norms(x: Tensor, attend: Callable, norm: Callable, pre: bool) -> Tensor:
    return x + attend(norm(x)) if pre else norm(x + attend(x))


def _silent(module: type, x: Tensor) -> Tensor:
    """What a layer returns while its attention finds nothing: all weights of linear maps are 0."""
    layer = module(x.shape[-1], 3).double()
    for part in layer.modules():
        if not isinstance(part, nn.LayerNorm):
            for parameter in part.parameters(recurse=False):
                nn.init.zeros_(parameter)
    return layer(x).detach()


class _Layer(nn.Module):
    """A layer with a mistake in the order of its parts."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(d_model, num_heads)
        self.norm = nn.LayerNorm(d_model)


class _NoResidual(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.attention(x)[0])


class _NoNormBehind(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(self.norm(x))[0]


class _WordTwice(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(x + self.attention(x)[0])


class _NormOfAll(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x + self.attention(x)[0], x.shape[1:])


LAYER = {
    "run": _silent,
    "right": norm,
    "cases": {"while attention finds nothing": (X,), "one sentence of one word": (X[:1, :1],)},
    "mistakes": {
        "The word itself is lost: add x to what attention found.": _NoResidual,
        "The norm must stand behind the sum, around all of it: LayerNorm(x + Attention(x)).": _NoNormBehind,
        "x is added once too often.": _WordTwice,
        "The norm must go over the features of each word alone: torch.nn.LayerNorm(d_model).": _NormOfAll,
    },
    "doctor": {"kind": "module", "num_heads": 3},
    "patient": lambda module: module(12, 3),
}
EXERCISES = {
    "05-table": Exercise(
        right=_table,
        cases={
            "8 features": (20, 8),
            "7 features": (20, 7),
            "one feature": (5, 1),
            "another base": (20, 8, 100.0),
        },
        mistakes={
            "With an odd width there is one cosine less than there are sines: cut them to d_model // 2.": (
                _both_halves_alike
            ),
            "Sine and cosine have changed places: sines stand in columns 0, 2 ...": lambda n, d, base=1e4: (
                _filled(np.cos(a := _angles(n, np.arange(0, d, 2) / d, base)), np.sin(a), d)
            ),
            "The exponent is 2i / d_model; with np.arange(0, d_model, 2) you have the 2i already.": (
                _wrong_exponents(lambda even, d: 2 * even / d)
            ),
            "The exponent is 2i / d_model; you have i / d_model, so the hands turn too fast.": (
                _wrong_exponents(lambda even, d: even / 2 / d)
            ),
            "A sine and its cosine belong to one hand: both have the angle of 2i.": lambda n, d, base=1e4: (
                np.where(
                    np.arange(d) % 2,
                    np.cos(a := _angles(n, np.arange(d) / d, base)),
                    np.sin(a),
                )
            ),
            "All sines stand first, then all cosines; here they take turns.": lambda n, d, base=1e4: (
                np.concatenate([np.sin(a := _angles(n, np.arange(0, d, 2) / d, base)), np.cos(a)], axis=1)[
                    :, :d
                ]
            ),
            "Places are counted from 0; yours start at 1.": lambda n, d, base=1e4: _table(n + 1, d, base)[1:],
            "The base is fixed at 10000: use the argument.": lambda n, d, base=1e4: _table(n, d),
        },
    ),
    "05-layer": Exercise(**LAYER),
    "05-norms": Exercise(
        right=_norms,
        cases={"pre-norm": (X, attend, norm, True), "post-norm": (X, attend, norm, False)},
        mistakes={
            "Pre and post have changed places.": lambda x, a, n, pre: _norms(x, a, n, not pre),
            "In pre-norm the residual is x itself, not the normed x.": lambda x, a, n, pre: (
                n(x) + a(n(x)) if pre else n(x + a(x))
            ),
            "In post-norm the norm goes around the sum, not around attention alone.": lambda x, a, n, pre: (
                x + a(n(x)) if pre else x + n(a(x))
            ),
            "The residual is missing: add x.": lambda x, a, n, pre: a(n(x)) if pre else n(a(x)),
            "There are two norms: pre-norm has none behind the sum.": lambda x, a, n, pre: (
                n(x + a(n(x))) if pre else n(x + a(x))
            ),
            "This is post-norm always: see what `pre` says.": lambda x, a, n, pre: n(x + a(x)),
            "In post-norm the norm is around the sum of x and attention.": lambda x, a, n, pre: (
                x + a(n(x)) if pre else n(x) + a(x)
            ),
            "In pre-norm the norm comes before attention, not after it.": lambda x, a, n, pre: (
                x + n(a(x)) if pre else n(x + a(x))
            ),
        },
    ),
    "05-local": Exercise(
        right=local_attention,
        cases={
            "a window of 2": (*LOCAL, 2),
            "a window of 0": (*LOCAL, 0),
            "a window wider than the sequence": (*LOCAL, 20),
        },
        doctor={"kind": "local"},
    ),
    "05-broken": Exercise(**LAYER),
}
