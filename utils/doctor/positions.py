"""Examining a position encoding: a table, a function that makes one, or a module that adds one.

The table is read off the patient and explained (`tables`); what no table shows (the input changed,
the wrong axis, memory of earlier calls) is tested by itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from utils.doctor import call as caller
from utils.doctor import encoders, table_words
from utils.doctor.call import Hangs, Trouble
from utils.doctor.report import CONVENTION, FAULT, Finding, Report
from utils.doctor.tables import Code, explain

SPECIES = "position encoding"
WIDTH, OTHER_WIDTH = 16, 10
LONG = 4112  # float16 skips odd integers above 2048, bfloat16 above 256
REFUSALS = ("odd", "even", "divisible", "multiple of 2", "% 2", "d_model", "dim")


@dataclass
class Examination:
    """What is known so far."""

    base: float
    exact: bool
    batch_first: bool | None
    findings: list[Finding] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)
    not_tried: list[str] = field(default_factory=list)

    def fault(self, kind: str, sentence: str, cure: str = "", shown_by: str = "") -> None:
        """Note a fault, once."""
        self._note(Finding(kind, FAULT, sentence, cure, shown_by))

    def convention(self, kind: str, sentence: str, cure: str = "") -> None:
        """Note a choice that others make otherwise."""
        self._note(Finding(kind, CONVENTION, sentence, cure))

    def _note(self, finding: Finding) -> None:
        if finding.kind not in [f.kind for f in self.findings]:
            self.findings.append(finding)

    def table(self, tables: Sequence[np.ndarray], eps: float) -> Code | None:
        """Explain a table (seen in several widths) and note in what it differs."""
        first = tables[0]
        if not np.isfinite(first).all():
            self.fault("not finite", f"The table holds {np.isnan(first).sum()} NaN and infinite numbers.")
            return None
        if len(first) > 1 and not np.any(first):
            self.fault(
                "no position added", "The code is zero everywhere: all positions look alike.", "Add it."
            )
            return None
        code = explain(tables, self.base, eps)
        if code is None:
            self._note(table_words.unexplained(first, self.base, eps))
            return None
        for finding in table_words.findings(code, first, self.base, self.exact):
            self._note(finding)
        self.tried.append("every entry, against the sines and cosines of the formula")
        return code

    def neighbours(self, table: np.ndarray, code: Code | None, where: str = "") -> None:
        """Do two neighbours share a row? Only rounded positions do that, if a hand turns fast enough."""
        same = np.flatnonzero((table[1:] == table[:-1]).all(1))
        if code is None or len(same) < 8 or same[0] < 100:  # bfloat16 counts to 256 without a gap
            return
        if len(same) < 0.2 * (len(table) - same[0]):  # one narrow column may repeat a value by chance
            return
        if np.ptp(code.table(3, table.shape[1]), axis=0).max() < 0.1:
            return
        t = int(same[0])
        self.fault(
            table_words.HALF,
            f"{where}Positions {t} and {t + 1} share one row, and so do {len(same)} neighbours of "
            f"{len(table)}: "
            "positions were rounded in half precision.",
            "Count positions in integers or float32 (torch.arange(n, dtype=torch.float32)); convert "
            "the finished table.",
            f"row {t} equals row {t + 1}",
        )


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
    began = time.perf_counter()
    case = Examination(base, exact, batch_first)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            _route(case, patient, d_model)
    except Hangs as trouble:
        case.fault("hangs", f"It {trouble}.", "Look for a loop without an end.")
    except Trouble as trouble:
        case.fault("crashes", f"No input gave a result: {trouble}.")
    order = {FAULT: 0, CONVENTION: 2}
    found = tuple(sorted(case.findings, key=lambda f: order.get(f.verdict, 1)))
    tried, not_tried = tuple(dict.fromkeys(case.tried)), tuple(case.not_tried)
    return Report(name, SPECIES, found, tried, not_tried, time.perf_counter() - began)


def _route(case: Examination, patient: Any, d_model: int | None) -> None:
    if isinstance(patient, nn.Embedding):
        _kept_table(case, patient.weight)
    elif isinstance(patient, type) and issubclass(patient, nn.Module):
        _module(case, encoders.build(patient, d_model or WIDTH), d_model or WIDTH)
    elif callable(patient):
        _callable(case, patient, d_model)
    else:
        _kept_table(case, patient)


def _callable(case: Examination, patient: Callable, d_model: int | None) -> None:
    wants = encoders.required(patient)
    takes_x = encoders.named(patient, encoders.INPUTS) is not None
    makes = encoders.named(patient, encoders.LENGTHS) and encoders.named(patient, encoders.WIDTHS)
    if isinstance(patient, nn.Module) or (not makes and (takes_x or len(wants) == 1)):
        _module(case, patient, d_model)
    else:
        _function(case, patient)


# -- a table ---------------------------------------------------------------------------------


def _kept_table(case: Examination, patient: Any) -> None:
    table = encoders.numbers(patient)
    if table is not None and table.ndim == 3 and 1 in table.shape[:2]:
        table = table.reshape(-1, table.shape[-1])  # (1, n, d) or (n, 1, d)
    if table is None or table.ndim != 2:
        shape = "no array" if table is None else f"shape {table.shape}"
        case.fault("no table", f"It is neither callable nor an (n, d) table of numbers, but has {shape}.")
        return
    trainable = isinstance(patient, Tensor) and patient.requires_grad
    _table_or_learned(case, [table], encoders.precision(patient), trainable)


def _table_or_learned(
    case: Examination, tables: Sequence[np.ndarray], eps: float, trainable: bool
) -> Code | None:
    """A parameter that holds sines is a fault; one that follows no formula was learned."""
    if trainable and (not np.any(tables[0]) or explain(tables, case.base, eps) is None):
        n, d = tables[0].shape
        case.convention(
            "learned positions", f"The code is a parameter of {n} rows and {d} columns, found by training."
        )
        return None
    code = case.table(tables, eps)
    case.neighbours(tables[0], code)
    if trainable and code is not None:
        case.fault(
            "table is trainable",
            "The table of sines is a parameter with gradients: training moves it away from the formula.",
            "Keep it in register_buffer('pe', table) instead of nn.Parameter (or set requires_grad=False).",
        )
    return code


# -- a function ------------------------------------------------------------------------------


def _function(case: Examination, patient: Callable) -> None:
    make, habit = encoders.maker(patient)
    if habit == "transposed":
        case.fault(
            "transposed table",
            "The table comes as (d, n): positions belong into the rows.",
            "Return table.T.",
        )
    n = 64 if habit == "one position at a time" else 256
    raw = make(n, WIDTH)
    eps, table = encoders.precision(raw), _made(raw, n, WIDTH)
    if not np.array_equal(table, _made(make(n, WIDTH), n, WIDTH), equal_nan=True):
        case.fault(
            "random on each call", "Two calls with the same arguments give two tables.", "Compute it once."
        )
        return
    tables = [table]
    try:
        tables.append(_made(make(64, OTHER_WIDTH), 64, OTHER_WIDTH))
    except Trouble as trouble:
        case.fault("crashes", f"Works for width {WIDTH}, but for {OTHER_WIDTH}: {trouble}.")
    code = case.table(tables, eps)
    short = _made(make(5, WIDTH), 5, WIDTH)
    if not np.allclose(short, table[:5], atol=1e-5 + 4 * eps, equal_nan=True):
        _depends_on_length(case, short, table)
    _odd(case, lambda d: _made(make(8, d), 8, d))
    if habit != "one position at a time":
        try:
            case.neighbours(_made(make(LONG, WIDTH), LONG, WIDTH), code)
            case.tried.append(f"{LONG} positions, all rows distinct")
        except Trouble as trouble:
            case.convention("fixed length", f"It works for {n} positions, but not for {LONG}: {trouble}.")


def _made(raw: Any, n: int, d: int) -> np.ndarray:
    found = encoders.numbers(raw)
    table = None if found is None else encoders.flat(found, n, d)
    if table is None:
        raise Trouble(f"returns {None if found is None else found.shape} for {n} positions and width {d}")
    return table


def _depends_on_length(case: Examination, short: np.ndarray, long: np.ndarray) -> None:
    apart = float(np.abs(short - long[: len(short)]).max())
    case.fault(
        "code depends on the length",
        f"The rows of a sequence of {len(short)} differ by up to {apart:.3g} from the first rows of a "
        "longer one.",
        "Compute the code of a position from the position alone.",
    )


def _odd(case: Examination, at_width: Callable[[int], Any]) -> None:
    """Width 7: right, refused in words, or a crash."""
    try:
        at_width(7)
        case.tried.append("an odd width")
    except Trouble as trouble:
        words = str(trouble)
        own = words.startswith(("ValueError", "AssertionError", "NotImplementedError"))
        if own and "broadcast" not in words and any(w in words.lower() for w in (*REFUSALS, "no words")):
            case.convention("even widths only", f"An odd width is refused: {words}.")
            return
        case.fault(
            "odd width crashes",
            f"Width 7 ends in {words}.",
            "The cosines have one column fewer: pe[:, 1::2] = torch.cos(angles)[:, : d_model // 2].",
            "d_model = 7",
        )


# -- a module --------------------------------------------------------------------------------


def _module(case: Examination, patient: Callable, d_model: int | None) -> None:
    f = encoders.adder(patient, d_model)
    x = torch.randint(1, 3, (2, 7, f.width)).double() * (torch.randint(0, 2, (2, 7, f.width)) * 2 - 1)
    if not _same_each_time(case, f, x[:1]):
        return
    _axes(case, f)
    _writes(case, f, x)
    y, at_zero = _answers(f, x)
    if y.shape[-1] > f.width and np.array_equal(y[..., : f.width], x.numpy()):
        case.convention(
            "concatenated, not added", "The code stands beside the input instead of on top of it."
        )
        y, at_zero = x.numpy() + y[..., f.width :], at_zero[..., f.width :]
    if y.shape[-2:] != x.shape[1:] or at_zero.shape != y.shape:
        case.fault("wrong shape", f"Input (2, 7, {f.width}) gives {y.shape}.", "Check the axes of the table.")
        return
    slope = _slope(case, y - at_zero, x.numpy(), f)
    if slope is None:
        return
    _later_calls(case, f, at_zero)
    table, eps = _read(case, f, at_zero)
    learned = _is_parameter(patient, table, f.width)
    before = len(case.findings)
    code = _table_or_learned(case, [table], eps, learned)
    if any(g.kind == "one row for all tokens" for g in case.findings):
        case.findings = [g for g in case.findings if not g.kind.startswith("positions start")]
    _factors(case, slope, code, f.width, before)
    _lengths(case, f, code)
    _devices(case, f, patient)
    _after_bfloat16(case, f, patient, code)
    _odd_module(case, patient)


def _answers(f: encoders.Adder, x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    y, at_zero = f(x), f(torch.zeros_like(x))
    grow = y.ndim == 2  # the code alone, as (n, d)
    y, at_zero = (t[None] if grow else t for t in (y, at_zero))
    if y.shape[0] == 1 and x.shape[0] == 2:
        y, at_zero = (np.repeat(t, 2, 0) for t in (y, at_zero))
    return y, at_zero


def _writes(case: Examination, f: encoders.Adder, x: Tensor) -> None:
    given = f.arrange(x)
    before, patient = given.clone(), f.fresh()
    caller.call(lambda: patient(given))
    if not torch.equal(before, given):
        case.fault(
            "writes into its input",
            "After the call x itself has changed: whoever still needs it (a residual, a second "
            "layer) gets the sum.",
            "Write x = x + pe instead of x += pe.",
        )


def _same_each_time(case: Examination, f: encoders.Adder, x: Tensor) -> bool:
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
        case.fault(
            "random on each call",
            "The same input gives different outputs.",
            "Make the table once, in __init__.",
        )
    return False


def _axes(case: Examination, f: encoders.Adder) -> None:
    """Which axis of the input counts as the position?"""
    if f.axes == "nd":
        case.convention("single sequences", "It takes one sequence (n, d), no batch.")
        return
    try:
        found = f(torch.zeros(3, 7, f.width))
    except Trouble as trouble:
        _by_square(case, f, trouble)
        return
    if found.shape != (3, 7, f.width):
        return
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
        if case.batch_first:
            case.fault("sequence first", sentence, cure)
        else:
            case.convention("sequence first", sentence, cure)


def _by_square(case: Examination, f: encoders.Adder, trouble: Trouble) -> None:
    """(3, 7, d) crashes: does it run where both axes are equally long, or with one sequence?"""
    for shape in ((7, 7, f.width), (1, 7, f.width)):
        try:
            f(torch.zeros(shape))
        except Trouble:
            continue
        case.fault(
            "table sliced by the wrong axis",
            f"Three sequences of seven tokens end in {trouble}, but {shape} runs.",
            "Slice the table by the axis of the tokens: pe[:, : x.size(1)].",
            f"x of shape (3, 7, {f.width})",
        )
        raise Trouble("other shapes were not examined") from trouble
    raise trouble


def _slope(case: Examination, moved: np.ndarray, x: np.ndarray, f: encoders.Adder) -> float | None:
    """The factor with which x comes out again, if it is one number."""
    ratio = moved / x
    slope, eps = float(np.median(ratio)), 8 * torch.finfo(f.dtype).eps
    if np.abs(ratio - slope).max() <= eps * 8 * max(1.0, abs(slope)):
        whole = round(slope)
        root = math.sqrt(f.width)
        return float(whole) if abs(slope - whole) < 0.05 else root if abs(slope / root - 1) < 0.01 else slope
    again = f(torch.from_numpy(2 * x)) - f(torch.from_numpy(0 * x))
    ratio_again = again.reshape(ratio.shape) / (2 * x) if again.shape == ratio.shape else ratio + 1
    if np.allclose(ratio, ratio_again, rtol=1e-3, atol=1e-3) and np.allclose(ratio[0], ratio[-1], atol=1e-3):
        case.fault(
            "multiplied instead of added",
            "Each entry of x comes out times a number that depends on the position.",
            "Write x + pe.",
        )
        case.table([ratio[0]], 1e-4)
    else:
        case.not_tried.append(
            "the code, as it cannot be separated from the input (a norm or a rotation, perhaps)"
        )
    return None


def _read(case: Examination, f: encoders.Adder, at_zero: np.ndarray) -> tuple[np.ndarray, float]:
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
        return np.array(rows), torch.finfo(f.dtype).eps
    for n in (256, 64, 32, 16):
        try:
            table = _rows(f, n)[:, -probe.shape[-1] :]
        except Trouble:
            continue
        if not np.allclose(table[: len(probe)], probe, atol=1e-4 + 4 * torch.finfo(f.dtype).eps):
            _depends_on_length(case, probe, table)
        return table, torch.finfo(f.dtype).eps
    return probe, torch.finfo(f.dtype).eps


def _rows(f: encoders.Adder, n: int) -> np.ndarray:
    """The code of n tokens, one row for each; Trouble if there are fewer."""
    found = f(f.zeros(n))
    if found.size != n * found.shape[-1]:
        raise Trouble(f"{n} tokens give the shape {found.shape}")
    return found.reshape(n, found.shape[-1])


def _factors(case: Examination, slope: float, code: Code | None, width: int, before: int) -> None:
    """What the factors of x and of the code mean together."""
    scale = 1.0 if code is None else code.scale
    if slope == 1:
        return
    if slope == scale:
        kept = case.findings[before:]
        case.findings[before:] = [f for f in kept if f.kind not in ("code scaled", "code added twice")]
        case.fault(
            "scaled after adding",
            f"Input and code both come with the factor {slope:.4g}: the sum was scaled, or added to itself.",
            "Scale the embedding first, then add: x * math.sqrt(d_model) + pe.",
        )
    elif slope == 0:
        case.convention(
            "returns the code alone",
            "The input does not come out again: what is returned replaces it.",
            "If no caller adds x, the tokens are lost: return x + pe.",
        )
    elif slope == 2:
        case.fault(
            "input added twice",
            "The input comes with the factor 2: the module adds it, and so does somebody else.",
            "Return x + pe from the module, and do not add x again.",
        )
    elif math.isclose(slope, math.sqrt(width)):
        case.convention(
            "input scaled first", f"x is multiplied by sqrt(d_model) = {slope:.4g} before adding."
        )
    else:
        case.convention("input scaled", f"x comes out with the factor {slope:.4g}.")


def _is_parameter(patient: Callable, table: np.ndarray, width: int) -> bool:
    """Does training change the table? Some parameter is as wide, and no smaller."""
    if not isinstance(patient, nn.Module):
        return False
    return any(p.requires_grad and p.ndim >= 2 and p.shape[-1] == width for p in patient.parameters())


def _later_calls(case: Examination, f: encoders.Adder, at_zero: np.ndarray) -> None:
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


def _lengths(case: Examination, f: encoders.Adder, code: Code | None) -> None:
    try:
        case.neighbours(_rows(f, LONG), code)
        case.tried.append(f"{LONG} tokens")
    except Trouble as trouble:
        works, fails = 7, LONG
        while fails - works > 1:
            middle = (works + fails) // 2
            try:
                _rows(f, middle)
                works = middle
            except Trouble:
                fails = middle
        if works > 256:
            case.neighbours(_rows(f, works), code)
        case.convention("fixed length", f"Up to {works} tokens; one more ends in {trouble}.")


def _devices(case: Examination, f: encoders.Adder, patient: Callable) -> None:
    """On the meta device nothing is computed, but tensors that stayed behind are noticed, without a GPU."""
    if not isinstance(patient, nn.Module):
        return
    x = f.arrange(torch.zeros(2, 7, f.width)).to("meta")
    twin = f.fresh()
    if twin is patient:
        return
    try:
        caller.call(twin.to("meta"), x)
        case.tried.append("moving to another device")
    except Trouble as trouble:
        if "meta" not in str(trouble) and "device" not in str(trouble):
            return
        registered = {**dict(patient.named_parameters()), **dict(patient.named_buffers())}
        loose = [k for k in encoders.tensors(patient) if k not in registered]
        what = f"self.{loose[0]} is a plain attribute" if loose else "a tensor is made on the default device"
        case.fault(
            "table is not registered" if loose else "table made on the default device",
            f"Moved to another device, it fails: {what} ({trouble}).",
            "Write self.register_buffer('pe', pe)." if loose else "Write torch.arange(n, device=x.device).",
            "module.to('meta') and an input there",
        )


def _after_bfloat16(case: Examination, f: encoders.Adder, patient: Callable, code: Code | None) -> None:
    if not isinstance(patient, nn.Module) or code is None or f.dtype != torch.float32:
        return
    twin = f.fresh()
    if twin is patient:
        return
    half = encoders.Adder(lambda: twin.to(torch.bfloat16), f.width, torch.bfloat16, f.axes)
    try:
        case.neighbours(_rows(half, 512), code, "After module.bfloat16(): ")
    except Trouble:
        return  # shorter, or not made for half precision: examined as it is


def _odd_module(case: Examination, patient: Callable) -> None:
    """A second instance with an odd width, where the constructor's arguments are understood."""
    if not isinstance(patient, nn.Module):
        return
    try:
        encoders.build(type(patient), 6)
    except Trouble:
        case.not_tried.append("an odd width, as the constructor's arguments are not understood")
        return
    _odd(case, lambda d: caller.call(encoders.build(type(patient), d), torch.zeros(1, 5, d)))
