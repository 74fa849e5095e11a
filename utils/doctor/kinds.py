"""Which examiner a function is for: by what it takes, and by what comes back for small inputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from utils.doctor.call import Trouble, call, parameters, required, tensor
from utils.doctor.functions.adapt import is_role, parts
from utils.doctor.windows.examine import is_local

WIDTH = r"d_model|dim|depth|emb|width|hid|channels|^d$|base"
LENGTH = r"^n$|n_q|n_k|len|size|seq|ids|tokens|pad|max"
N, D = 6, 10  # rows and columns that a table is asked for


def kind_of(function: Callable) -> str:
    """The examiner that a function is for."""
    names = [p.name.lower() for p in parameters(function)]
    if not names:  # a builtin
        return "attention"
    roles = len(names) >= 3 and any(map(is_role, names))
    unlike = len(required(function)) >= 3 and not any(re.search(LENGTH, name) for name in names)
    if roles or unlike:
        return "local" if is_local(function) else "attention"
    return by_trial(function) or by_names(function, names)


def by_trial(function: Callable) -> str | None:
    """What comes back for small inputs: a table, a mask, or features again; None if unclear."""
    for inputs in trials(len(required(function))):
        try:
            answer = call(function, *inputs, seconds=1.0)
        except Trouble:
            continue
        first = next((t for t in map(tensor, parts(answer)) if t is not None), None)
        if first is None:
            continue
        kind = by_answer(first, inputs)
        if kind:
            return kind
    return None


def trials(needed: int) -> Iterator[tuple[Any, ...]]:
    """Small inputs for a function that needs so many arguments: numbers, features, ids."""
    features, ids = (
        torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(0)),
        torch.arange(15).view(3, 5),
    )
    if needed in (1, 2):
        yield (8,) if needed == 1 else (N, D)
        yield (features,) * needed
        yield (ids,) * needed
        yield (ids.numpy(),) * needed


def by_answer(found: Tensor, inputs: tuple[Any, ...]) -> str | None:
    """Few different numbers make a mask, as do as many rows as columns; many make a table or features."""
    shape = tuple(s for s in found.shape if s != 1)
    if (
        isinstance(inputs[0], Tensor)
        and tuple(found.shape) == tuple(inputs[0].shape)
        and found.is_floating_point()
    ):
        return "positions"
    few = found.dtype == torch.bool or len(found.unique()) <= 3
    if isinstance(inputs[0], int):
        if set(shape) == {N, D} and len(shape) == 2:
            return None if few else "positions"
        if len(shape) >= 2 and shape[-1] == shape[-2]:
            return "mask"
        return "positions" if not few and found.is_floating_point() else None
    return "mask" if few and len(shape) >= 2 else None


def by_names(function: Callable, names: list[str]) -> str:
    """As far as names tell."""
    if any("pad" in name or "mask" in name for name in names):
        return "mask"
    title = getattr(function, "__name__", "").lower()
    if any(re.search(WIDTH, name) for name in names) or names[:1] == ["x"] or re.search("posit|sinus", title):
        return "positions"
    return "mask"
