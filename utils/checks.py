"""What the attention functions accept, and what they say when it does not fit.

Nothing here computes attention. Each check raises an error whose text names the
argument and the shapes, so that a reader can fix the call without a debugger.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

TOO_FAR_FROM_ONE = {torch.float16: 1e-2, torch.bfloat16: 5e-2}


def numpy_in_numpy_out(function: Callable) -> Callable:
    """Let a torch function take numpy arrays: they go in as tensors and come back as arrays."""
    names = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        positional = zip(itertools.chain(names, itertools.repeat(names[-1])), args, strict=False)
        given = [*positional, *kwargs.items()]
        arrays = [name for name, value in given if isinstance(value, np.ndarray)]
        tensors = [name for name, value in given if isinstance(value, Tensor)]
        if not arrays:
            return function(*args, **kwargs)
        if tensors:
            raise TypeError(f"{arrays[0]} is a numpy array but {tensors[0]} is a torch tensor; pass one kind")
        values = [_to_tensor(name, value) for name, value in given]
        result = function(*values[: len(args)], **dict(zip(kwargs, values[len(args) :], strict=True)))
        return tuple(t.numpy() for t in result) if isinstance(result, tuple) else result.numpy()

    return wrapped


def scores(tensor: Tensor, dim: int) -> None:
    """Floats, nothing NaN or +inf, at least one score along dim."""
    _floats("scores", tensor)
    if not -tensor.ndim <= dim < tensor.ndim:
        raise ValueError(f"dim={dim} is no axis of scores, which has shape {_shape(tensor)}")
    if tensor.shape[dim] == 0:
        raise ValueError(f"scores of shape {_shape(tensor)} has nothing along dim={dim} to share out")
    high = _extremes(tensor)[1]
    if math.isnan(high):
        _no_nan("scores", tensor)
    if high == math.inf:
        raise ValueError("scores reach +inf, but only -inf has a meaning: no share at all")


def finite(name: str, tensor: Tensor) -> None:
    """No NaN and no infinity: 0 times infinity would be NaN."""
    if not tensor.is_meta and tensor.detach().sum().isfinite():
        return  # one quick pass: a finite sum has finite parts
    _no_nan(name, tensor)
    if math.inf in map(abs, _extremes(tensor)):
        bad = torch.isinf(tensor)
        raise ValueError(
            f"{name} holds infinity in {int(bad.sum())} of {tensor.numel()} entries: "
            f"{_name(tensor.dtype)} ends at {torch.finfo(tensor.dtype).max:.2g}"
        )


def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, is_causal: bool) -> None:
    """Shapes, dtypes and devices of scaled dot-product attention."""
    inputs = {"query": query, "key": key, "value": value}
    for name, tensor in inputs.items():
        _floats(name, tensor)
        if tensor.ndim < 2:
            raise ValueError(
                f"{name} needs at least two axes, (tokens, features), but has shape {_shape(tensor)}"
            )
        _same("dtype", "query", _name(query.dtype), name, _name(tensor.dtype))
        _same("device", "query", query.device, name, tensor.device)
    _same("d_k", "query", query.shape[-1], "key", key.shape[-1])
    _same("n_k", "key", key.shape[-2], "value", value.shape[-2])
    if key.shape[-2] == 0:
        raise ValueError(f"key has n_k=0 tokens (shape {_shape(key)}): there is nothing to attend to")
    if query.shape[-1] == 0:
        raise ValueError(f"query and key have d_k=0 features (query has shape {_shape(query)})")
    try:
        batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    except RuntimeError:
        found = ", ".join(f"{name} {_shape(tensor)}" for name, tensor in inputs.items())
        raise ValueError(f"the batch axes do not fit together: {found}") from None
    for name, tensor in inputs.items():
        finite(name, tensor)
    if not isinstance(is_causal, bool):
        raise TypeError(f"is_causal must be True or False, not {is_causal!r} (there is no dropout here)")
    if attn_mask is not None:
        mask(attn_mask)
        _same("device", "query", query.device, "attn_mask", attn_mask.device)
        _fits(attn_mask, (*batch, query.shape[-2], key.shape[-2]))


def local_attention(
    query: Tensor, key: Tensor, value: Tensor, window: int, is_causal: bool
) -> tuple[int, int]:
    """As `attention`, and as many queries as keys. Returns n and the window, cut to what n tokens fill."""
    attention(query, key, value, None, is_causal)
    _same("n", "query", query.shape[-2], "key", key.shape[-2])
    n = query.shape[-2]
    return n, min(count("window", window), n - 1)


def sparse_attention(query: Tensor, key: Tensor, value: Tensor, pairs: Tensor) -> None:
    """As `attention`, and pairs (m, 2) of indices of queries and keys that are there."""
    attention(query, key, value, None, False)
    _is_tensor("pairs", pairs)
    _same("device", "query", query.device, "pairs", pairs.device)
    if pairs.is_floating_point() or pairs.is_complex() or pairs.dtype == torch.bool:
        raise TypeError(
            f"pairs has dtype {_name(pairs.dtype)}, but needs integers: "
            "indices of a query and a key (mask.nonzero() turns a boolean mask into them)"
        )
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise ValueError(f"pairs has shape {_shape(pairs)}, but needs (m, 2): a query and a key in each row")
    if pairs.is_meta or len(pairs) == 0:
        return
    for name, n, low, high in zip(
        ("query", "key"), (query.shape[-2], key.shape[-2]), *pairs.long().aminmax(dim=0), strict=True
    ):
        if low < 0 or high >= n:
            raise ValueError(f"pairs name {name} {int(low)} to {int(high)}, but there are only 0 to {n - 1}")


def pattern(n: int, window: int, global_tokens: int, random: int) -> tuple[int, int, int, int]:
    """Whole numbers, none negative, not more global tokens than tokens."""
    given = {"n": n, "window": window, "global_tokens": global_tokens, "random": random}
    whole = tuple(count(name, number) for name, number in given.items())
    if whole[2] > whole[0]:
        raise ValueError(f"global_tokens={global_tokens} is more than there are tokens, n={n}")
    return whole


def count(name: str, number: Any, least: int = 0) -> int:
    """A whole number, not below `least`."""
    try:
        whole = operator.index(None if isinstance(number, bool) else number)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {number!r}") from None
    if whole < least:
        raise ValueError(f"{name} must {f'be at least {least}' if least else 'not be negative'}, got {whole}")
    return whole


def mask(tensor: Tensor) -> None:
    """Boolean, or floats to add. 0 and 1 as integers could mean either, so they are refused."""
    _is_tensor("attn_mask", tensor)
    if tensor.dtype != torch.bool and not tensor.is_floating_point():
        raise TypeError(
            f"attn_mask has dtype {_name(tensor.dtype)}: use a boolean mask (True = may attend; "
            "mask.bool() if 1 means that) or a float one that is added to the scores"
        )
    if tensor.dtype != torch.bool:
        _no_nan("attn_mask", tensor)
        if _extremes(tensor)[1] == math.inf:
            raise ValueError("attn_mask reaches +inf, but only -inf has a meaning: may not attend")


def masks_fit(masks: list[Tensor]) -> None:
    """Masks of one device, of shapes that broadcast."""
    for tensor in masks:
        mask(tensor)
        _same("device", "attn_mask", masks[0].device, "attn_mask", tensor.device)
    try:
        torch.broadcast_shapes(*(tensor.shape for tensor in masks))
    except RuntimeError:
        shapes = " and ".join(str(_shape(tensor)) for tensor in masks)
        raise ValueError(f"masks of shapes {shapes} do not broadcast") from None


def lengths(given: Tensor, n_k: int) -> Tensor:
    """Whole numbers between 0 and n_k, as a tensor."""
    tensor = torch.as_tensor(given)
    if tensor.is_floating_point() or tensor.dtype == torch.bool:
        raise TypeError(f"lengths must be whole numbers, got {_name(tensor.dtype)}")
    tensor = tensor.long()
    if tensor.numel() and not 0 <= tensor.min() <= tensor.max() <= n_k:
        raise ValueError(
            f"lengths must lie between 0 and n_k={n_k}, got {int(tensor.min())} to {int(tensor.max())}"
        )
    return tensor


def shares(tensor: Tensor, dim: int, base: float) -> None:
    """Weights: none negative, rows that sum to 1, or to 0 where nothing was allowed."""
    if not 1 < base < math.inf:
        raise ValueError(f"the base of an entropy must be above 1 (2 for bits, e for nats), not {base}")
    _floats("weights", tensor)
    _no_nan("weights", tensor)
    if tensor.is_meta or tensor.numel() == 0:
        return
    if (tensor < 0).any():
        raise ValueError(f"weights must not be negative, got {float(tensor.min()):.3g}: are these scores?")
    sums = tensor.double().sum(dim).flatten()
    off = torch.minimum((sums - 1).abs(), sums.abs())
    if (off > TOO_FAR_FROM_ONE.get(tensor.dtype, 1e-3)).any():
        worst = float(sums[off.argmax()])
        raise ValueError(
            f"weights must sum to 1 along dim={dim}, but a row sums to {worst:.3g}: are these scores?"
        )


def heads(d_model: int, num_heads: int) -> None:
    """Heads of equal width need a number of heads that divides d_model."""
    d_model, num_heads = count("d_model", d_model, 1), count("num_heads", num_heads, 1)
    if d_model % num_heads:
        fits = ", ".join(str(h) for h in range(1, d_model + 1) if d_model % h == 0)
        raise ValueError(f"num_heads={num_heads} does not divide d_model={d_model}; these do: {fits}")


def rate(name: str, value: float) -> None:
    """A share from 0 up to, but without, 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < 1.0:
        raise ValueError(f"{name} must be at least 0 and below 1, not {value!r}")


def layer_inputs(weight: Tensor, query: Tensor, key: Tensor, value: Tensor) -> None:
    """What goes into multi-head attention: (..., n, d_model), with the same batch axes, like its weights."""
    d_model = weight.shape[-1]
    inputs = {"query": query, "key": key, "value": value}
    for name, tensor in inputs.items():
        _floats(name, tensor, "a torch tensor")
        if tensor.ndim < 2 or tensor.shape[-1] != d_model:
            raise ValueError(
                f"{name} must be (..., tokens, d_model={d_model}), but has shape {_shape(tensor)}"
            )
        _same("batch axes", "query", _shape(query)[:-2], name, _shape(tensor)[:-2])
        _same("device", "the layer", weight.device, name, tensor.device)
        if tensor.is_meta or not torch.is_autocast_enabled(tensor.device.type):
            _same("dtype", "the layer", _name(weight.dtype), name, _name(tensor.dtype))
    _same("n_k", "key", key.shape[-2], "value", value.shape[-2])
    if key.shape[-2] == 0:
        raise ValueError(f"key has n_k=0 tokens (shape {_shape(key)}): there is nothing to attend to")
    for name, tensor in inputs.items():
        if name == "query" or tensor is not query:  # self-attention: look once
            finite(name, tensor)


def layer_mask(attn_mask: Tensor | None, is_causal: bool, query: Tensor, key: Tensor, num_heads: int) -> None:
    """A mask for all, (n_q, n_k), or one that says which axis is the sequences' and which the heads'."""
    if not isinstance(is_causal, bool):
        raise TypeError(f"is_causal must be True or False, not {is_causal!r}")
    if attn_mask is None:
        return
    mask(attn_mask)
    _same("device", "query", query.device, "attn_mask", attn_mask.device)
    scores = (*query.shape[:-2], num_heads, query.shape[-2], key.shape[-2])
    if attn_mask.ndim not in (2, len(scores)):
        raise ValueError(
            f"attn_mask has {attn_mask.ndim} axes (shape {_shape(attn_mask)}), but must have 2, (n_q, n_k), "
            f"or {len(scores)}, to fit {scores}; for (B, n_q, n_k) write mask[:, None], "
            "for (h, n_q, n_k) mask[None]"
        )
    _fits(attn_mask, scores)
    largest = torch.finfo(query.dtype).max
    if attn_mask.is_floating_point() and _extremes(attn_mask)[1] > largest:
        raise ValueError(
            f"attn_mask reaches {_extremes(attn_mask)[1]:.3g}: {_name(query.dtype)} ends at {largest:.3g}"
        )


def table(name: str, n: int, d_model: int, base: float = 2.0) -> None:
    """A table of n positions (name is what n is called) with d_model features."""
    count(name, n)
    count("d_model", d_model, 1)
    if not 1.0 < base < math.inf:
        raise ValueError(f"base must be above 1 (10000 in the paper), not {base}")


def sequences(x: Tensor, d_model: int, longest: int | None = None) -> None:
    """A batch of sequences, (B, n, d_model): with another rank, which axis is the position is a guess."""
    _floats("x", x, "a torch tensor")
    if x.ndim != 3 or x.shape[-1] != d_model:
        raise ValueError(
            f"x must be (B, n, d_model={d_model}), but has shape {_shape(x)}"
            + ("; for one sequence write x[None]" if x.ndim == 2 else "")
        )
    if longest is not None and x.shape[1] > longest:
        raise ValueError(f"x has n={x.shape[1]} tokens, but only {longest} positions were learned")


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """A word from a short list."""
    if value not in choices:
        raise ValueError(f"{name} must be {' or '.join(map(repr, choices))}, not {value!r}")


def plain_multihead(module: torch.nn.MultiheadAttention) -> None:
    """A layer of PyTorch's whose every weight has a place in ours."""
    if not isinstance(module, torch.nn.MultiheadAttention):
        raise TypeError(f"expected an nn.MultiheadAttention, not {type(module).__name__}")
    extras = {
        "kdim or vdim": module.in_proj_weight is None,
        "add_bias_kv": module.bias_k is not None,
        "add_zero_attn": module.add_zero_attn,
    }
    if found := [name for name, there in extras.items() if there]:
        raise ValueError(f"MultiHeadAttention has nothing that matches {' and '.join(found)} of this layer")


def _to_tensor(name: str, value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array; pass its data and an attn_mask")
    try:
        return torch.from_numpy(np.array(value, order="C"))  # a copy: arrays may be read-only
    except (TypeError, ValueError):
        raise TypeError(f"{name} has dtype {value.dtype}, which torch does not know") from None


def _is_tensor(name: str, tensor: Any, what: str = "a torch tensor or a numpy array") -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be {what}, not {type(tensor).__name__}")


def _floats(name: str, tensor: Any, what: str = "a torch tensor or a numpy array") -> None:
    _is_tensor(name, tensor, what)
    if not tensor.is_floating_point():
        raise TypeError(f"{name} has dtype {_name(tensor.dtype)}, but attention needs floats")


def _no_nan(name: str, tensor: Tensor) -> None:
    if not math.isnan(_extremes(tensor)[1]):
        return
    bad = torch.isnan(tensor)
    where = tuple(bad.nonzero()[0].tolist())
    raise ValueError(
        f"{name} holds NaN: {int(bad.sum())} of {tensor.numel()} entries, the first at {list(where)}"
    )


def _extremes(tensor: Tensor) -> tuple[float, float]:
    """Smallest and largest, both NaN if one entry is: one pass that stores nothing, unlike isnan."""
    if tensor.is_meta or tensor.numel() == 0:
        return 0.0, 0.0
    low, high = tensor.detach().aminmax()
    return low.item(), high.item()


def _same(what: str, name: str, expected: Any, other: str, found: Any) -> None:
    if expected != found:
        error = TypeError if what in ("dtype", "device") else ValueError
        raise error(f"{other} has {what}={found} but {name} has {what}={expected}")


def _fits(attn_mask: Tensor, wanted: tuple[int, ...]) -> None:
    try:
        fits = torch.broadcast_shapes(attn_mask.shape, wanted) == torch.Size(wanted)
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"attn_mask has shape {_shape(attn_mask)}, which does not broadcast to the scores' shape {wanted}"
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
