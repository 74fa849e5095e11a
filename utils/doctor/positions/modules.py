"""Examining a module that adds positions to x: which axis, how often, and which table."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from utils.doctor import call as caller
from utils.doctor.call import Trouble, Unfit, numbers, required
from utils.doctor.positions import patients
from utils.doctor.positions.habits import (
    after_bfloat16,
    devices,
    later_calls,
    lengths,
    odd_module,
    rows_of,
    same_each_time,
    writes,
)
from utils.doctor.positions.notes import TableNotes, depends_on_length, table_or_learned
from utils.doctor.positions.tables import Code, explain
from utils.doctor.report import NOT_SEPARABLE, Finding


def module(case: TableNotes, patient: Callable, d_model: int | None) -> None:
    """Examine x -> x + code: how x is taken, what is added to it, and what else happens."""
    twin = patients.opened(patient)
    if twin is not None:
        sentence = "The code has a learned factor that starts at 0: examined with 1 instead."
        case.convention("factor starts at 0", sentence)
        patient = twin
    try:
        f = patients.adder(patient, d_model)
    except Trouble as trouble:
        if not _one_length(case, patient, trouble) and not _by_index(case, patient):
            wants = required(patient)  # where x is all, a TypeError is the patient's own
            case.certain = isinstance(trouble.__cause__, TypeError) and wants == ["x"]
            raise
        return
    if _adds_an_axis(f) and _by_index(case, patient):
        return
    x = torch.randint(1, 3, (2, 7, f.width)).double() * (torch.randint(0, 2, (2, 7, f.width)) * 2 - 1)
    if not same_each_time(case, f, x[:1]):
        return
    if not _axes(case, f):
        return
    writes(case, f, x)
    y, at_zero = _answers(f, x)
    if y.shape[-1] > f.width and np.array_equal(y[..., : f.width], x.numpy()):
        sentence = "The code stands beside the input instead of on top of it."
        case.convention("concatenated, not added", sentence)
        y, at_zero = x.numpy() + y[..., f.width :], at_zero[..., f.width :]
    if y.shape[:-1] == x.shape[:-1] and y.shape != x.shape:
        angles = (
            ", whatever is in it: angles to turn by?" if np.array_equal(y, at_zero) else ": more than a code."
        )
        sentence = f"Input (2, 7, {f.width}) gives {y.shape}{angles}"
        case.add(Finding("not recognised", NOT_SEPARABLE, sentence))
        return
    if y.shape != x.shape or at_zero.shape != y.shape:
        case.fault("wrong shape", f"Input (2, 7, {f.width}) gives {y.shape}.", "Check the axes of the table.")
        return
    slope = _slope(case, y - at_zero, x.numpy(), f)
    if slope is None:
        return
    _by_length(case, f, slope)
    later_calls(case, f, at_zero)
    table = _read(case, f, at_zero)
    code = table_or_learned(case, [table], f.eps, _trains(patient, f.width))
    if case.has("one row for all tokens"):
        case.drop(*(g.kind for g in case.findings if g.kind.startswith("positions start")))
    _factors(case, slope, code, f.width)
    lengths(case, f, code)
    if isinstance(patient, nn.Module):
        if f.fresh() is not patient:  # a copy may be moved and cast
            devices(case, f, patient)
            after_bfloat16(case, f, code)
        odd_module(case, patient)


def _adds_an_axis(f: patients.Adder) -> bool:
    """Does each number of x come out as a whole row? Then numbers are positions or ids, not features."""
    given = f.arrange(torch.zeros(2, 7, f.width))
    try:
        found = numbers(caller.call(f.fresh(), given))
    except Trouble:  # it takes other shapes only, which is said later
        return False
    return found is not None and found.ndim > given.ndim


def _by_index(case: TableNotes, patient: Callable) -> bool:
    """A module that takes positions (as diffusion models do their time steps) or ids, one number a token."""
    table = patients.by_index(patient)
    if table is None:
        return False
    eps = torch.finfo(torch.float32).eps
    learned = explain([table], case.base, eps) is None and any(p.requires_grad for p in patient.parameters())
    if learned:
        raise Unfit("it takes positions or ids of tokens and gives rows that were learned")
    table_or_learned(case, [table], eps, _trains(patient, table.shape[1]))
    case.not_tried.append("what it does to x, as it takes positions or ids of tokens instead")
    return True


def _one_length(case: TableNotes, patient: Callable, trouble: Trouble) -> bool:
    """A table that is added whole, so that x must be as long as it is."""
    for name, kept in patients.tensors(patient).items():
        if kept.ndim not in (2, 3) or not kept.is_floating_point():
            continue
        n, width = kept.shape[-2:]
        try:
            found = numbers(caller.call(patients.copied(patient), torch.zeros(2, n, width, dtype=kept.dtype)))
        except Trouble:
            continue
        if found is None or found.shape != (2, n, width):
            continue
        if kept.requires_grad:
            case.convention("fixed length", f"It takes {n} tokens, no more and no fewer.")
        else:
            sentence = f"Only {n} tokens, as many as self.{name} has rows, are taken; 7 end in {trouble}."
            cure = "Slice the table: pe[:, : x.size(1)]."
            case.fault("table not cut to the length", sentence, cure, "7 tokens")
        table_or_learned(case, [found[0]], torch.finfo(kept.dtype).eps, kept.requires_grad)
        case.not_tried.append("what else it does to x, as it takes one length only")
        return True
    return False


def _answers(f: patients.Adder, x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    y, at_zero = f(x), f(torch.zeros_like(x))
    if y.ndim == 2:  # the code alone, as (n, d)
        y, at_zero = y[None], at_zero[None]
    if y.shape[0] == 1 and x.shape[0] == 2:
        y, at_zero = np.repeat(y, 2, 0), np.repeat(at_zero, 2, 0)
    return y, at_zero


def _axes(case: TableNotes, f: patients.Adder) -> bool:
    """Which axis of the input counts as the position? False where too few shapes run to go on."""
    if f.axes == "nd":
        case.convention("single sequences", "It takes one sequence (n, d), no batch.")
        return True
    try:
        found = f(torch.zeros(3, 7, f.width))
    except Trouble as trouble:
        _by_square(case, f, trouble)
        return False
    if found.shape != (3, 7, f.width):
        return True
    along_tokens = bool((found[:, 1:] != found[:, :1]).any())
    along_batch = bool((found[1:] != found[:1]).any())
    if along_tokens and along_batch:
        case.fault("code differs between sequences", "Two sequences of one batch get different codes.")
    elif along_batch:
        f.axes = "nbd"
        sentence = (
            "The first axis counts as the position: right for (n, B, d). With batch-first input (B, n, d) "
            "all tokens of a sequence get one and the same code."
        )
        cure = (
            "For (B, n, d) keep the table as (1, max_len, d) and slice it with x.size(1): pe[:, : x.size(1)]."
        )
        note = case.fault if case.batch_first else case.convention
        note("sequence first", sentence, cure)
    return True


def _by_square(case: TableNotes, f: patients.Adder, trouble: Trouble) -> None:
    """(3, 7, d) crashes: does it run where both axes are equally long, or with one sequence?"""
    for shape in ((7, 7, f.width), (1, 7, f.width)):
        try:
            f(torch.zeros(shape))
        except Trouble:
            continue
        sentence = f"Three sequences of seven tokens end in {trouble}, but {shape} runs."
        cure = "Slice the table by the axis of the tokens: pe[:, : x.size(1)]."
        case.fault("table sliced by the wrong axis", sentence, cure, f"x of shape (3, 7, {f.width})")
        case.not_tried.append("anything else, as other shapes do not run")
        return
    raise trouble


def _slope(case: TableNotes, moved: np.ndarray, x: np.ndarray, f: patients.Adder) -> float | None:
    """The factor with which x comes out again, if it is one number."""
    ratio = moved / x
    slope, eps = float(np.median(ratio)), 8 * f.eps
    if np.abs(ratio - slope).max() <= eps * 8 * max(1.0, abs(slope)):
        whole, root = round(slope), math.sqrt(f.width)
        return float(whole) if abs(slope - whole) < 0.05 else root if abs(slope / root - 1) < 0.01 else slope
    again = f(torch.from_numpy(2 * x)) - f(torch.from_numpy(0 * x))
    ratio_again = again.reshape(ratio.shape) / (2 * x) if again.shape == ratio.shape else ratio + 1
    if np.allclose(ratio, ratio_again, rtol=1e-3, atol=1e-3) and np.allclose(ratio[0], ratio[-1], atol=1e-3):
        sentence = "Each entry of x comes out times a number that depends on the position."
        case.fault("multiplied instead of added", sentence, "Write x + pe.")
        case.table([ratio[0]], 1e-4)
    else:
        case.not_tried.append(
            "the code, as it cannot be separated from the input (a norm or a rotation, perhaps)"
        )
    return None


def _by_length(case: TableNotes, f: patients.Adder, slope: float) -> None:
    """Is x multiplied by another number in a longer sequence?"""
    try:
        ones = f(torch.ones(1, 11, f.width)) - f(f.zeros(11))
    except Trouble:
        return
    longer = float(np.median(ones[..., : f.width]))
    if math.isclose(longer, slope, rel_tol=0.05, abs_tol=0.05):
        return
    sentence = f"x comes out with the factor {slope:.4g} in a sequence of 7, and {longer:.4g} in one of 11."
    case.fault("input scaled by the length", sentence, "Scale by the width: x * math.sqrt(x.shape[-1]).")


def _read(case: TableNotes, f: patients.Adder, at_zero: np.ndarray) -> np.ndarray:
    """The table, as long as it can be had; from several lengths if each adds a single row of it."""
    probe = at_zero[0]
    if len(probe) > 1 and np.array_equal(probe, np.repeat(probe[:1], len(probe), 0)) and np.any(probe):
        rows = []
        for n in range(1, 49):
            try:
                rows.append(f(f.zeros(n)).reshape(-1, probe.shape[-1])[0])
            except Trouble:
                break
        case.fault(
            "one row for all tokens",
            "Every token of a sequence gets the same code.",
            "Slice the table, do not index it: pe[:, : x.size(1)] instead of pe[:, x.size(1)].",
            f"rows 0 and 1 of the code of {len(probe)} tokens are equal",
        )
        case.not_tried.append("where counting starts, as one row does not tell")
        return np.array(rows)
    for n in (256, 64, 32, 16):
        try:
            table = rows_of(f, n)[:, -probe.shape[-1] :]
        except Trouble:
            continue
        if not np.allclose(table[: len(probe)], probe, atol=1e-4 + 4 * f.eps):
            depends_on_length(case, probe, table)
        return table
    return probe


def _factors(case: TableNotes, slope: float, code: Code | None, width: int) -> None:
    """What the factors of x and of the code mean together."""
    scale = 1.0 if code is None else code.scale
    if slope == 1:
        return
    if slope == scale:
        case.drop("code scaled", "code added twice")
        case.fault(
            "scaled after adding",
            f"Input and code both come with the factor {slope:.4g}: the sum was scaled, or added to itself.",
            "Scale the embedding first, then add: x * math.sqrt(d_model) + pe.",
        )
    elif slope == 0:
        sentence = "The input does not come out again: what is returned replaces it."
        cure = "If no caller adds x, the tokens are lost: return x + pe."
        case.convention("returns the code alone", sentence, cure)
    elif slope == 2:
        sentence = "The input comes with the factor 2: the module adds it, and so does somebody else."
        case.fault("input added twice", sentence, "Return x + pe from the module, and do not add x again.")
    elif math.isclose(slope, math.sqrt(width)):
        sentence = f"x is multiplied by sqrt(d_model) = {slope:.4g} before adding."
        case.convention("input scaled first", sentence)
    elif not case.has("input scaled by the length"):
        root = " = 1 / sqrt(d_model), where the paper multiplies" if math.isclose(slope, width**-0.5) else ""
        case.convention("input scaled", f"x comes out with the factor {slope:.4g}{root}.")


def _trains(patient: Callable, width: int) -> bool:
    """Does training change the table? Some parameter is as wide."""
    kept = patient.parameters() if isinstance(patient, nn.Module) else ()
    return any(p.requires_grad and p.ndim >= 2 and p.shape[-1] == width for p in kept)
