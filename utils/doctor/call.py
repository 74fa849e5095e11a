"""Calling a patient safely: with copies, a time limit, and every crash turned into words.

And what can be known before and after a call: the names of arguments, the numbers in a result.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import io
import re
import threading
import warnings
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

SECONDS = 5.0  # a call on a few tokens takes milliseconds: longer than this means a loop without an end


Way, Answer = TypeVar("Way"), TypeVar("Answer")


class Trouble(Exception):
    """The patient did not answer; the text says in words what it did instead."""

    @property
    def refusal(self) -> bool:
        """Does it refuse the input in words of its own, where others crash?"""
        return bool(re.match("(ValueError|AssertionError|NotImplementedError)(?!.*broadcast)", str(self)))


class Hangs(Trouble):
    """The patient did not return in time."""


class Unfit(Trouble):
    """The patient answered, or did not, but cannot be blamed: it is of a kind that is not examined here."""


class _Stop(BaseException):
    """Thrown into a patient that runs for too long; nothing that it catches."""


def call(patient: Callable, *args: Any, seconds: float | None = None, **kwargs: Any) -> Any:
    """What the patient returns for copies of these arguments.

    Raises Trouble where it raises, and Hangs where it takes longer than `seconds` (by default SECONDS).
    What it prints and warns of is dropped. One that sleeps in foreign code is left behind in its thread.
    """
    seconds = SECONDS if seconds is None else seconds
    args = tuple(copied(a) for a in args)
    kwargs = {name: copied(value) for name, value in kwargs.items()}
    box: dict[str, Any] = {}
    grad, dtype = torch.is_grad_enabled(), torch.get_default_dtype()

    def run() -> None:
        try:
            torch.set_grad_enabled(grad)  # a thread starts with gradients on
            box["result"] = patient(*args, **kwargs)
        except _Stop:
            box["hangs"] = True
        except BaseException as error:
            box["error"] = error

    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(seconds)
        if thread.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_Stop))
            thread.join(0.5)
            raise Hangs(f"does not return within {seconds:g} seconds")
    torch.set_default_dtype(dtype)
    if "hangs" in box:
        raise Hangs(f"does not return within {seconds:g} seconds")
    if "error" in box:
        error = box["error"]
        words = str(error).strip().splitlines()
        raise Trouble(f"{type(error).__name__}: {words[0] if words else 'no words'}") from error
    return box["result"]


def first_answer(ways: Iterable[Way], ask: Callable[[Way], Answer]) -> tuple[Way, Answer]:
    """The first of these ways of asking that is answered, and the answer.

    Raises the first Trouble where none is; Hangs and Unfit at once.
    """
    first: Trouble | None = None
    for way in ways:
        try:
            return way, ask(way)
        except (Hangs, Unfit):
            raise
        except Trouble as trouble:
            first = first or trouble
    raise first or Trouble("takes none of the inputs that were tried")


def reached(output: Callable[..., Any], given: dict[str, Tensor]) -> set[str] | None:
    """The names of the tensors that get a gradient from what is made of them; None if that is no tensor."""
    leaves = [t.requires_grad_() for t in given.values()]
    with torch.enable_grad():
        found = output(*(t * 1.0 for t in leaves))  # no leaves: writing into those would stop
        if not isinstance(found, Tensor):
            return None
        squares = found.double().square().sum()
        if not squares.requires_grad:
            return set()
        slopes = torch.autograd.grad(squares, leaves, allow_unused=True)
    return {name for name, slope in zip(given, slopes, strict=True) if slope is not None and slope.any()}


def copied(value: Any) -> Any:
    """A copy of a tensor or an array, for the patient may write into it; everything else as it is."""
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    return value.copy() if isinstance(value, np.ndarray) else value


def tensor(value: Any) -> Tensor | None:
    """A result as a tensor; None if it is no array of real numbers."""
    try:
        found = value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError, RuntimeError):
        return None
    return found if found.is_floating_point() or found.dtype in (torch.bool, torch.int64) else None


def numbers(value: Any) -> np.ndarray | None:
    """A result in float64; None if it is no array of real numbers."""
    if isinstance(value, (tuple, list)) and value and isinstance(value[0], (Tensor, np.ndarray)):
        value = torch.stack(list(map(torch.as_tensor, value))) if isinstance(value, list) else value[0]
    found = tensor(value)
    if found is None or found.dtype == torch.bool or found.is_meta:
        return None
    return found.detach().double().to_dense().cpu().numpy()


def parameters(function: Callable) -> list[inspect.Parameter]:
    """The arguments that have names; none, if they cannot be found out."""
    function = function.forward if isinstance(function, nn.Module) else function
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def required(function: Callable) -> list[str]:
    """Names of the arguments that have no default."""
    return [p.name for p in parameters(function) if p.default is p.empty]


def named(function: Callable, names: list[str]) -> str | None:
    """The first argument with one of these names."""
    return next((p.name for p in parameters(function) if p.name.lower() in names), None)
