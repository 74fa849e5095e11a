"""What a module does besides adding a table: memory, randomness, devices, lengths, precision."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from utils.doctor import call as caller
from utils.doctor.call import Trouble
from utils.doctor.positions import patients
from utils.doctor.positions.notes import TableNotes, odd
from utils.doctor.positions.tables import Code

LONG = 4112  # float16 skips odd integers above 2048, bfloat16 above 256


def writes(case: TableNotes, f: patients.Adder, x: Tensor) -> None:
    """Is x the same after the call?"""
    given = f.arrange(x)
    before, patient = given.clone(), f.fresh()
    caller.call(lambda: patient(given))
    if not torch.equal(before, given):
        sentence = (
            "After the call x itself has changed: whoever still needs it (a residual, a second layer) gets "
            "the sum."
        )
        case.fault("writes into its input", sentence, "Write x = x + pe instead of x += pe.")


def same_each_time(case: TableNotes, f: patients.Adder, x: Tensor) -> bool:
    """Four calls, four equal answers?"""
    calls = [f(x) for _ in range(4)]
    if all(np.array_equal(calls[0], other, equal_nan=True) for other in calls):
        case.tried.append("the same answer each time")
        return True
    dropped = np.mean([other == 0 for other in calls])
    if dropped > 0.02:
        case.fault(
            "dropout in eval mode",
            f"{dropped:.0%} of the entries are 0, others at each call, although the module is in eval mode.",
            "Use nn.Dropout, or F.dropout(x, p, training=self.training).",
        )
    else:
        sentence = "The same input gives different outputs."
        case.fault("random on each call", sentence, "Make the table once, in __init__.")
    return False


def later_calls(case: TableNotes, f: patients.Adder, at_zero: np.ndarray) -> None:
    """One copy is called with other lengths and batches in between; it must answer as a new one does."""
    used = f.fresh()
    for n, b in ((7, 2), (20, 1), (3, 2), (41, 2), (9, 1), (83, 2), (130, 1), (600, 1), (1300, 1), (7, 2)):
        try:
            wanted = f(f.zeros(n, b))
        except Trouble:
            continue
        try:
            found, trouble = f(f.zeros(n, b), used), ""
        except Trouble as error:
            found, trouble = None, str(error)
        if found is None or found.shape != wanted.shape or not np.array_equal(found, wanted, equal_nan=True):
            case.fault(
                "state changed by an earlier call",
                f"After other calls, {n} tokens give {trouble or 'another answer than in a new copy'}.",
                "Do not overwrite the table in forward; where it grows, grow it from the formula and "
                "keep its shape.",
                f"inputs of 7, 20, 3 ... tokens, then {n}",
            )
            return
    case.tried.append("earlier calls leave no trace")


def lengths(case: TableNotes, f: patients.Adder, code: Code | None) -> None:
    """How many tokens are taken, and do late neighbours differ?"""
    try:
        case.neighbours(rows_of(f, LONG), code)
        case.tried.append(f"{LONG} tokens")
    except Trouble as trouble:
        works, fails = 7, LONG
        while fails - works > 1:
            middle = (works + fails) // 2
            try:
                rows_of(f, middle)
                works = middle
            except Trouble:
                fails = middle
        if works > 256:
            case.neighbours(rows_of(f, works), code)
        case.convention("fixed length", f"Up to {works} tokens; one more ends in {trouble}.")


def rows_of(f: patients.Adder, n: int) -> np.ndarray:
    """The code of n tokens, one row for each; Trouble if there are fewer."""
    found = f(f.zeros(n))
    if found.size != n * found.shape[-1]:
        raise Trouble(f"{n} tokens give the shape {found.shape}")
    return found.reshape(n, found.shape[-1])


def devices(case: TableNotes, f: patients.Adder, patient: nn.Module) -> None:
    """On the meta device nothing is computed, but tensors that stayed behind are noticed, without a GPU."""
    x = f.arrange(torch.zeros(2, 7, f.width)).to("meta")
    try:
        caller.call(f.fresh().to("meta"), x, seconds=60.0)  # the first time, torch loads what it needs
        case.tried.append("moving to another device")
    except Trouble as trouble:
        if "meta" not in str(trouble) and "device" not in str(trouble):
            return
        registered = {**dict(patient.named_parameters()), **dict(patient.named_buffers())}
        loose = [k for k in patients.tensors(patient) if k not in registered]
        what = f"self.{loose[0]} is a plain attribute" if loose else "a tensor is made on the default device"
        case.fault(
            "table is not registered" if loose else "table made on the default device",
            f"Moved to another device, it fails: {what} ({trouble}).",
            "Write self.register_buffer('pe', pe)." if loose else "Write torch.arange(n, device=x.device).",
            "module.to('meta') and an input there",
        )


def after_bfloat16(case: TableNotes, f: patients.Adder, code: Code | None) -> None:
    """Cast as models are: a right table survives it, positions counted in bfloat16 do not."""
    if code is None or f.dtype != torch.float32:
        return
    twin = f.fresh()
    half = patients.Adder(lambda: twin.to(torch.bfloat16), f.width, torch.bfloat16, f.axes)
    try:
        case.neighbours(rows_of(half, 512), code, "After module.bfloat16(): ")
    except Trouble:
        return  # shorter, or not made for half precision: examined as it is


def odd_module(case: TableNotes, patient: nn.Module) -> None:
    """A second instance with an odd width, where the constructor's arguments are understood."""
    try:
        patients.build(type(patient), 6)
    except Trouble:
        case.not_tried.append("an odd width, as the constructor's arguments are not understood")
        return
    odd(case, lambda d: caller.call(patients.build(type(patient), d), torch.zeros(1, 5, d)))
