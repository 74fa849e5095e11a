"""How an exercise is checked.

An exercise is a right answer, inputs to try it on, and the mistakes that people make with it,
each written as a function that makes it. A wrong answer is compared with all of them: if one
behaves the same on every input, that is the mistake. Code that stops is shown the line where
it stopped, and what usually helps.
"""

from __future__ import annotations

import copy
import inspect
import linecache
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

NEAR = 1e-6  # largest difference that counts as equal, relative to the largest number

HELP = {  # part of an error's text -> what usually helps
    "could not be broadcast": "The shapes do not fit. Does a sum lack keepdims=True, or an array [:, None]?",
    "axis 1 is out of bounds": "There may be a single row: count the axis from the end, axis=-1.",
    "must match the size of tensor": "The shapes do not fit. Does a mask or a sum lack an axis of size 1?",
    "mat1 and mat2 shapes": "A product (a, b) @ (c, d) needs b = c. Transpose one of them, as in q @ k.mT.",
    "expected size": "A product (a, b) @ (c, d) needs b = c. Transpose one of them, as in q @ k.mT.",
    "only supports boolean masks": "`~mask` turns booleans over; let the mask hold True and False.",
    "matmul: Input operand 1": "A product (a, b) @ (c, d) needs b = c. Transpose one of them, as in x @ x.T.",
    "axes don't match array": "numpy's transpose wants all axes; swapaxes(-1, -2) exchanges the last two.",
    "'tuple' object has no attribute": "Two things are returned somewhere: take the first, or return one.",
    "not enough values to unpack": "There may be more axes, or fewer: count them from the end.",
    "is not defined": "Is the name spelled as in the line with def?",
    "positional argument": "Keep the line with def as it was: the check calls the function that way.",
}


@dataclass(frozen=True)
class Exercise:
    """What a check needs to know.

    right     the function that answers it
    cases     name of a case -> arguments of the function
    mistakes  what to say -> a function that makes this mistake
    doctor    what to tell the doctor (utils.doctor.diagnose) of the attempt; he then names the mistakes
    patient   what of the attempt the doctor examines, where it is not the attempt itself
    run       how an attempt is tried on a case, where it is not called with its arguments
    """

    right: Callable
    cases: dict[str, tuple]
    mistakes: dict[str, Callable] = field(default_factory=dict)
    doctor: dict[str, Any] | None = None
    patient: Callable = lambda attempt: attempt
    run: Callable = lambda attempt, *arguments: attempt(*arguments)


@dataclass(frozen=True)
class Report:
    """The outcome of a check: whether all is right, and the lines to show."""

    passed: bool
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines)


def examine(name: str, exercise: Exercise, attempt: Callable) -> Report:
    """Try an attempt on every case of an exercise. Whatever it does, this returns a report."""
    if not callable(attempt):
        return Report(False, (f"{name}: hand over the function itself, not {type(attempt).__name__}",))
    results, lines = {}, []
    for case, arguments in exercise.cases.items():
        given = copy.deepcopy(arguments)
        try:
            with np.errstate(all="ignore"):  # overflow is what some cases are about
                results[case] = exercise.run(attempt, *given)
        except Exception as error:
            if isinstance(error, NotImplementedError) and not str(error):  # the stub's; torch's own speak
                return Report(False, (f"{name}: not attempted yet",))
            results[case] = error
            lines.append(f"✗ {case}: {_stop(error, attempt)}")
            advice = _diagnoses(exercise, results) or _from_outside(attempt) or _help(error)
            return Report(False, (*lines, *advice))
        if any(_changed(g, a) for g, a in zip(given, arguments, strict=True)):
            return Report(False, (*lines, f"✗ {case}: your code changes its input; work on a copy"))
        wanted = exercise.right(*arguments)
        problem = _compare(results[case], wanted)
        lines.append(f"✗ {case}: {problem}" if problem else f"✓ {case}: {_closeness(results[case], wanted)}")
    right = sum(line.startswith("✓") for line in lines)
    advice = _ask_the_doctor(exercise, attempt)
    if right == len(lines) and not advice:
        return Report(True, (*lines, f"{name}: all right"))
    but = "; but:" if right == len(lines) else ""
    lines.append(f"{name}: {right} of {len(lines)} cases right{but}")
    return Report(False, (*lines, *advice, *_diagnoses(exercise, results), *_from_outside(attempt)))


def _ask_the_doctor(exercise: Exercise, attempt: Callable) -> list[str]:
    """The doctor's faults, and what to change."""
    if exercise.doctor is None:
        return []
    from utils.doctor import diagnose  # forty modules that most notebooks need not load

    return [f"→ {f.sentence} {f.cure}" for f in diagnose(exercise.patient(attempt), **exercise.doctor).faults]


def _stop(error: Exception, attempt: Callable) -> str:
    """Where an attempt stopped, in its own words."""
    words = f"{type(error).__name__}: {error}"
    own = getattr(getattr(attempt, "__code__", None), "co_filename", "")
    mine = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == own]
    line = linecache.getline(own, mine[-1].lineno).strip() if mine else ""
    return f"your code stops at `{line}` with {words}" if line else f"your code stops with {words}"


def _help(error: Exception) -> list[str]:
    return [f"→ {advice}" for part, advice in HELP.items() if part in str(error)]


def _from_outside(attempt: Callable) -> list[str]:
    """Numbers that an attempt takes from outside: a misspelled name may be one that a cell made."""
    if not inspect.isfunction(attempt):
        return []
    return [
        f"→ Your code uses `{name}`, which is none of its arguments: a cell further up made it."
        for name, value in inspect.getclosurevars(attempt).globals.items()
        if isinstance(value, np.ndarray | np.generic | Tensor | int | float | list)
    ]


def _diagnoses(exercise: Exercise, results: dict[str, Any]) -> list[str]:
    """The known mistakes that give the same results, case by case, and stop where and as the attempt does."""
    found = []
    for words, mistake in exercise.mistakes.items():
        made = {case: _made(exercise, mistake, exercise.cases[case]) for case in results}
        if all(_alike(result, made[case]) for case, result in results.items()):
            found.append(f"→ {words}")
    return found


def _made(exercise: Exercise, mistake: Callable, arguments: tuple) -> Any:
    try:
        with np.errstate(all="ignore"):
            return exercise.run(mistake, *copy.deepcopy(arguments))
    except Exception as error:
        return error


def _alike(found: Any, made: Any) -> bool:
    """The same numbers, or the same error."""
    if isinstance(found, Exception) or isinstance(made, Exception):
        return repr(found) == repr(made)
    return not _compare(found, made)


def _compare(found: Any, wanted: Any) -> str:
    """What is wrong with a result, in words; empty if nothing is."""
    if found is None:
        return "your code returns nothing; is the return missing?"
    if isinstance(wanted, tuple):
        if not isinstance(found, tuple | list | np.ndarray | Tensor) or len(found) != len(wanted):
            return f"your code must return {len(wanted)} things, in this order"
        return next((problem for f, w in zip(found, wanted, strict=True) if (problem := _compare(f, w))), "")
    kind = type(found).__name__
    try:
        found = _numbers(found)
    except Exception:
        return f"your code returns {kind}, which is no array of numbers"
    wanted = np.asarray(wanted, dtype=float)
    if found.shape != wanted.shape:
        should = f"be {wanted.shape}" if wanted.ndim else "be one number (is a sum missing?)"
        return f"your result has shape {found.shape}, but it should {should}"
    if not _differs(found, wanted):
        return ""
    if np.isnan(found).any() and not np.isnan(wanted).any():
        return f"{np.isnan(found).sum()} of {found.size} numbers are NaN"
    gap = np.nan_to_num(np.abs(found - wanted), nan=np.inf)
    worst = np.unravel_index(gap.argmax(), wanted.shape)
    where = f" at {[int(i) for i in worst]}" if wanted.ndim else ""
    digits = next(d for d in (4, 8, 17) if f"{found[worst]:.{d}g}" != f"{wanted[worst]:.{d}g}")
    digits = max(digits, len(f"{wanted[worst]:.0f}"))  # a large whole number is written out
    differ = (
        f"{np.count_nonzero(gap > _rounding(wanted))} of {found.size} numbers differ, most of all{where}: "
    )
    return (
        f"{differ if wanted.ndim else ''}found {found[worst]:.{digits}g}, "
        f"but it should be {wanted[worst]:.{digits}g}"
    )


def _closeness(found: Any, wanted: Any) -> str:
    """How near a right result is, in steps: rounding differs from one right way, or machine, to another."""
    if isinstance(wanted, tuple):
        return ", ".join(_closeness(f, w) for f, w in zip(found, wanted, strict=True))
    wanted = np.asarray(wanted, dtype=float)
    gap = float(np.nan_to_num(np.abs(_numbers(found) - wanted)).max(initial=0.0)) / _rounding(wanted) * NEAR
    return f"equal, within {next(step for step in (1e-12, 1e-9, NEAR) if gap <= step):g}"


def _numbers(found: Any) -> np.ndarray:
    """Whatever holds real numbers (array, tensor, list, number) as an array of float64."""
    found = np.asarray(found.detach() if hasattr(found, "detach") else found)
    return found.astype(float, casting="same_kind" if found.dtype.kind in "cSU" else "unsafe")


def _changed(given: Any, argument: Any) -> bool:
    return isinstance(argument, np.ndarray | Tensor) and _differs(given, argument)


def _differs(found: Any, wanted: Any) -> bool:
    found, wanted = np.asarray(found, dtype=float), np.asarray(wanted, dtype=float)
    return not np.allclose(found, wanted, rtol=0, atol=_rounding(wanted), equal_nan=True)


def _rounding(wanted: np.ndarray) -> float:
    """The largest difference that counts as equal."""
    return NEAR * max(1.0, float(np.nan_to_num(np.abs(wanted)).max(initial=0.0)))
