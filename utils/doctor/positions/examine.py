"""Examining a position encoding: a table, a function that makes one, or a module that adds one.

The table is read off the patient and explained (`tables`); what no table shows (the input changed,
the wrong axis, memory of earlier calls) is tested by itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor, nn

from utils.doctor.call import Trouble, Unfit, named, numbers, required
from utils.doctor.notes import written
from utils.doctor.positions import patients
from utils.doctor.positions.habits import LONG
from utils.doctor.positions.modules import module
from utils.doctor.positions.notes import TableNotes, depends_on_length, odd, table_or_learned
from utils.doctor.report import Report

WIDTH, OTHER_WIDTH = 16, 10


def examine(
    patient: Any,
    name: str = "patient",
    *,
    d_model: int | None = None,
    base: float = 10000.0,
    batch_first: bool | None = None,
    exact: bool = False,
) -> Report:
    """Examine a position encoding.

    patient      a table (n, d); a function of n and d that returns one; a module (or its class), or a
                 function, that takes x (B, n, d) and returns x with the code added
    name         what to call it
    d_model      width of x, where it cannot be found out
    base         the base that was meant
    batch_first  True: sequence-first code is a fault. None: it is a convention
    exact        True: the paper's table was meant entry by entry, so that other layouts are faults
    """
    notes = TableNotes(base=base, exact=exact, batch_first=batch_first)
    return written(notes, name, "position encoding", lambda: _route(notes, patient, d_model))


def _route(case: TableNotes, patient: Any, d_model: int | None) -> None:
    if isinstance(patient, nn.Embedding):
        _kept_table(case, patient.weight)
    elif isinstance(patient, type) and issubclass(patient, nn.Module):
        module(case, patients.build(patient, d_model or WIDTH), d_model or WIDTH)
    elif callable(patient):
        _callable(case, patient, d_model)
    else:
        _kept_table(case, patient)


def _callable(case: TableNotes, patient: Callable, d_model: int | None) -> None:
    wants = required(patient)
    if patients.turns(patient):
        raise Unfit(
            "it turns what it is given, by another angle at each position: rotary encodings are not examined"
        )
    takes_x = named(patient, patients.INPUTS) is not None
    makes = named(patient, patients.LENGTHS) and named(patient, patients.WIDTHS)
    if takes_x and len(wants) == 2 and named(patient, patients.WIDTHS):  # x may be the positions
        with contextlib.suppress(Trouble):
            makes = patients.maker(patient)
    if isinstance(patient, nn.Module) or (not makes and (takes_x or len(wants) == 1)):
        module(case, patient, d_model)
    else:
        _function(case, patient)


def _kept_table(case: TableNotes, patient: Any) -> None:
    table = numbers(patient)
    if table is not None and table.ndim == 3 and 1 in table.shape[:2]:
        table = table.reshape(-1, table.shape[-1])  # (1, n, d) or (n, 1, d)
    if table is None or table.ndim != 2 or not table.size:
        shape = "no array" if table is None else f"shape {table.shape}"
        case.fault("no table", f"It is neither callable nor an (n, d) table of numbers, but has {shape}.")
        return
    trainable = isinstance(patient, Tensor) and patient.requires_grad
    table_or_learned(case, [table], patients.precision(patient), trainable)


def _function(case: TableNotes, patient: Callable) -> None:
    # "pos" or "timesteps" may want a tensor; a length and a width are surely numbers
    counts = [name for name in patients.LENGTHS if not name.startswith(("pos", "timestep", "t"))]
    case.certain = bool(named(patient, counts) and named(patient, patients.WIDTHS))
    case.certain &= len(required(patient)) <= 2
    make, habit = patients.maker(patient)
    if habit == "transposed":
        sentence = "The table comes as (d, n): positions belong into the rows."
        case.fault("transposed table", sentence, "Return table.T.")
    n = 64 if habit == "one position at a time" else 256
    raw = make(n, WIDTH)
    eps, table = patients.precision(raw), _made(raw, n, WIDTH)
    if not np.array_equal(table, _made(make(n, WIDTH), n, WIDTH), equal_nan=True):
        sentence = "Two calls with the same arguments give two tables."
        case.fault("random on each call", sentence, "Compute it once.")
        return
    tables = [table]
    try:
        tables.append(_made(make(64, OTHER_WIDTH), 64, OTHER_WIDTH))
    except Trouble as trouble:
        case.fault("crashes", f"Works for width {WIDTH}, but for {OTHER_WIDTH}: {trouble}.")
    code = case.table(tables, eps)
    short = _made(make(5, WIDTH), 5, WIDTH)
    if not np.allclose(short, table[:5], atol=1e-5 + 4 * eps, equal_nan=True):
        depends_on_length(case, short, table)
    odd(case, lambda d: _made(make(8, d), 8, d))
    if habit != "one position at a time":
        try:
            case.neighbours(_made(make(LONG, WIDTH), LONG, WIDTH), code)
            case.tried.append(f"{LONG} positions, all rows distinct")
        except Trouble as trouble:
            case.convention("fixed length", f"It works for {n} positions, but not for {LONG}: {trouble}.")


def _made(raw: Any, n: int, d: int) -> np.ndarray:
    """What came back as (n, d), be it (1, n, d), (n, 1, d) ..."""
    found = numbers(raw)
    if found is None or [s for s in found.shape if s != 1] != [s for s in (n, d) if s != 1]:
        raise Trouble(f"returns {None if found is None else found.shape} for {n} positions and width {d}")
    return found.reshape(n, d)
