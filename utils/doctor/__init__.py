"""The attention doctor: names the bug in anyone's attention code.

    from utils.doctor import diagnose
    diagnose(my_attention)

or, in a terminal,  python -m utils.doctor path/to/file.py:name

The patient is run on small inputs, never read: it is called by whatever names it gives its arguments.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from utils.doctor import call as caller
from utils.doctor.functions.examine import examine as examine_function
from utils.doctor.kinds import WIDTH, kind_of
from utils.doctor.masks.examine import examine as examine_mask
from utils.doctor.modules.examine import examine as examine_module
from utils.doctor.modules.weights import hidden_modules
from utils.doctor.positions.examine import examine as examine_positions
from utils.doctor.report import CONVENTION, FAULT, NOT_SEPARABLE, Finding, Report
from utils.doctor.windows.examine import examine as examine_window

__all__ = ["CONVENTION", "FAULT", "NOT_SEPARABLE", "Finding", "Report", "diagnose"]

EXAMINERS: dict[str, Callable[..., Report]] = {
    "attention": examine_function,
    "module": examine_module,
    "positions": examine_positions,
    "local": examine_window,
    "mask": examine_mask,
}
HEADS = r"^h$|heads?$|^n_?h"


def diagnose(thing: Any, kind: str | None = None, **options: Any) -> Report:
    """What is wrong with this attention code, how it shows, and what to change.

    thing    a function f(q, k, v, mask?, causal?), a module m(x) or m(q, k, v), a position encoding (a table,
             a function or a module), a local attention f(q, k, v, window), or a function that builds a mask
    kind     "attention", "module", "positions", "local" or "mask", where it cannot be told from the thing
    options  passed on: mask="keep" | "hide" | "added" says what True means in an attention function's mask;
             d_model, num_heads and batch_first describe a module

    A builder, lambda d, h: MyAttention(d, h), is called with 32 and 4, and the module is examined.

    The report shows itself in a notebook; print it in a terminal. report.faults is empty if nothing is wrong.

    Raises TypeError for a class (make an instance first) and for what cannot be called, and ValueError for
    an unknown kind.
    """
    if kind is not None and kind not in EXAMINERS:
        raise ValueError(f"kind must be one of {', '.join(EXAMINERS)}, not {kind!r}")
    name = options.pop("name", None) or _name(thing)
    if kind in (None, "module") and (module := _built(thing)) is not None:
        thing, options["build"] = module, thing
        name = _name(module) if name == "<lambda>" else name
    kind = kind or species(thing)
    _check(kind, options)
    training = thing.training if isinstance(thing, nn.Module) else None
    try:
        with torch.random.fork_rng(devices=[]):  # the caller's random numbers go on untouched
            if kind == "attention" and training:
                thing.eval()
            return EXAMINERS[kind](thing, name, **options)
    except (TypeError, ValueError):  # wrong options
        raise
    except Exception as error:  # a patient that nobody thought of: say so, and lose nothing else
        sentence = (
            f"The doctor himself failed ({type(error).__name__}: {error}); this says nothing of the code."
        )
        return Report(name, kind, (Finding("not examined", NOT_SEPARABLE, sentence),))
    finally:
        if training:
            thing.train()


def _built(thing: Any) -> nn.Module | None:
    """The module that a builder such as lambda d, h: MyAttention(d, h) makes; None for everything else."""
    if isinstance(thing, nn.Module | type | Tensor | np.ndarray) or not callable(thing):
        return None
    try:
        names = [p.name.lower() for p in inspect.signature(thing).parameters.values()]
        if len(names) != 2 or not re.search(WIDTH, names[0]) or not re.search(HEADS, names[1]):
            return None
        made = caller.call(thing, 32, 4)
    except (TypeError, ValueError, caller.Trouble):
        return None
    return made if isinstance(made, nn.Module) else None


def _check(kind: str, options: dict[str, Any]) -> None:
    """Raise TypeError in words for an option that this kind does not take."""
    taken = [n for n in list(inspect.signature(EXAMINERS[kind]).parameters)[2:] if n != "build"]
    unknown = [n for n in options if n not in (*taken, "build")]
    if unknown:
        said = f"the options {', '.join(taken)}" if taken else "no options"
        raise TypeError(f"examined as {kind!r}, it takes {said}; {', '.join(unknown)} is not one of them")


def _name(thing: Any) -> str:
    try:
        return thing.__name__
    except Exception:  # whatever a patient does when it is asked its name
        return type(thing).__name__


def species(thing: Any) -> str:
    """Which examiner a thing is for, as far as its type and its arguments' names tell."""
    if isinstance(thing, Tensor | np.ndarray):
        return "positions"
    if isinstance(thing, type):
        raise TypeError(f"{thing.__name__} is a class: make one first, diagnose({thing.__name__}(...))")
    if not callable(thing):
        raise TypeError(f"{type(thing).__name__} can be neither called nor read as a table of positions")
    if isinstance(thing, nn.Module):
        return _module(thing)
    return kind_of(thing)


def _module(thing: nn.Module) -> str:
    """A module without matrices of its own is a bare attention function or a position encoding."""
    names = [p.lower() for p in inspect.signature(thing.forward).parameters]
    held = (thing, *hidden_modules(thing))  # those in plain lists, too
    matrices = [p for part in held for p in part.parameters() if p.ndim >= 2]
    learned_table = len(matrices) == 1 and not any(
        isinstance(m, nn.Linear) for part in held for m in part.modules()
    )
    if len(names) >= 3 and not matrices:
        return "attention"
    if not matrices or re.search("posit", type(thing).__name__.lower()) or (learned_table and len(names) < 3):
        return "positions"
    return "module"
