"""Calling a patient safely: with copies, a time limit, and every crash turned into words."""

from __future__ import annotations

import contextlib
import ctypes
import io
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

SECONDS = 5.0  # a call on a few tokens takes milliseconds: longer than this means a loop without an end


class Trouble(Exception):
    """The patient did not answer; the text says in words what it did instead."""


class Hangs(Trouble):
    """The patient did not return in time."""


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
