"""Examining an attention function: line-up first, then properties for what the line-up cannot see."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.doctor.call import Hangs, Trouble, call, tensor
from utils.doctor.functions import words
from utils.doctor.functions.adapt import Patient, adapt, mask_styles
from utils.doctor.functions.lineup import (
    SHAPES,
    Case,
    expected,
    first,
    inputs,
    line_up,
    report,
    same,
    small,
)
from utils.doctor.functions.masking import causality, half, masking
from utils.doctor.hypotheses import CAUSALS, SCALES, Hypothesis, unmasked, with_causal
from utils.doctor.report import CONVENTION, FAULT, NOT_SEPARABLE, Finding, Matrices, Report

NAMES = ("query", "key", "value")


def examine(function: Callable, name: str, mask: str | None = None) -> Report:
    """What an attention function f(q, k, v, mask?, causal?) does.

    mask  what True means in its mask, if it is known: "keep", "hide" or "added"
    """
    start = time.perf_counter()
    try:
        case = admit(function)
    except Trouble as trouble:
        return Report(name, "attention function", (_no_answer(trouble),))
    for step in (
        randomness,
        in_place,
        weights_alone,
        big,
        lambda c: masking(c, mask),
        causality,
        half,
        gradients,
        dtypes,
    ):
        try:
            step(case)
        except Hangs as trouble:
            case.findings.append(_no_answer(trouble))
            break
        except Trouble as trouble:
            what = getattr(step, "__name__", "masks").replace("_", " ")
            case.not_tried.append(f"{what}, for it stops now and then: {trouble}")
    order = {FAULT: 0, CONVENTION: 2}
    once = {f.kind: f for f in reversed(case.findings)}.values()
    findings = sorted(list(once)[::-1], key=lambda f: order.get(f.verdict, 1))
    return Report(
        name,
        "attention function",
        tuple(findings),
        tuple(case.tried),
        tuple(case.not_tried),
        time.perf_counter() - start,
    )


def _no_answer(trouble: Trouble) -> Finding:
    """What to say of a patient that gives no output. That it could not be called need not be its fault."""
    words_ = str(trouble)
    if isinstance(trouble, Hangs):
        return Finding("hangs", FAULT, f"It {words_}.", "Look for a loop without an end, or a sleep.")
    if words_.startswith("returns"):
        return Finding("no output", FAULT, f"It {words_}.", "Return weights @ value, or (output, weights).")
    cure = "Call it as f(query, key, value) with tensors (B, h, n, d), (B, n, d) or (n, d), on the CPU."
    return Finding("does not run", NOT_SEPARABLE, f"It stops: {words_}.", cure)


def admit(function: Callable) -> Case:
    """Find out how the patient is called, and with which sizes."""
    earlier: Trouble | None = None
    for shape in SHAPES:
        try:
            patient = adapt(function, lambda axes, shape=shape: inputs(shape, axes, "plain"))
        except Hangs:
            raise
        except Trouble as trouble:
            if "the weights" in str(trouble):
                raise
            earlier = earlier or trouble
            continue
        case = Case(patient, shape)
        if shape != SHAPES[0]:
            what = []
            what += ["n_q = n_k"] if shape.n_q == shape.n_k else []
            what += ["d_v = d_k"] if shape.d_v == 4 else []
            case.findings.append(
                Finding(
                    "equal sizes only",
                    CONVENTION,
                    f"It works only where {' and '.join(what)}: with other sizes it stops ({earlier}).",
                )
            )
        return case
    raise earlier


def randomness(case: Case) -> None:
    """The same input must give the same output, whatever was asked before and whatever chance does."""
    q, k, v = inputs(case.shape, case.patient.style.axes, "plain")

    def answer(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return case.patient(q, k, v)[0]

    first_, again, other = answer(0), answer(0), answer(1)
    if not same(first_, again, 1e-6):
        cure = "Keep nothing between calls, or reset it at the start of each."
        sentence = "The same input gives another output each time: it depends on what was asked before."
        case.findings.append(Finding("remembers earlier calls", FAULT, sentence, cure))
    elif not same(first_, other, 1e-6):
        case.patient = replace(case.patient, function=without_dropout(case.patient.function))
        case.random = not same(answer(0), answer(1), 1e-6)
        sentence = "The same input gives another output each time: dropout is on though nothing is trained."
        cure = "Drop only in training: F.dropout(weights, p, training=self.training), dropout_p=0.0 in eval."
        case.findings.append(Finding("dropout on in eval", FAULT, sentence, cure))
    else:
        case.tried.append("the same answer every time")


def without_dropout(function: Callable) -> Callable:
    """The same function, with dropout switched off around it, so that its other habits can be seen."""

    def off(tensor_: Tensor, *args: object, **kwargs: object) -> Tensor:
        return tensor_

    def attention(*args: object, dropout_p: float = 0.0, **kwargs: object) -> Tensor:
        return own(*args[:4], 0.0, *args[5:], **kwargs) if len(args) > 4 else own(*args, **kwargs)

    own = F.scaled_dot_product_attention

    def quiet(*args: object, **kwargs: object) -> object:
        before = F.dropout, torch.dropout
        F.dropout = torch.dropout = off
        F.scaled_dot_product_attention = attention
        try:
            return function(*args, **kwargs)
        finally:
            (F.dropout, torch.dropout), F.scaled_dot_product_attention = before, own

    return quiet


def in_place(case: Case) -> None:
    """The caller's tensors must stay as they are."""
    style = case.patient.style
    given = [t.to(style.dtype).clone() for t in inputs(case.shape, style.axes, "plain")]
    before = [t.clone() for t in given]
    args, kwargs = case.patient.arguments([case.patient.given(t) for t in given], given[1].shape)
    call(lambda: case.patient.function(*args, **kwargs))
    changed = [n for n, g, b in zip(NAMES, given, before, strict=True) if not torch.equal(g, b)]
    if changed:
        sentence = (
            f"The caller's {' and '.join(changed)} is changed in place: whoever reads it next gets others."
        )
        cure = "Write q = q * scale, not q *= scale (and no .mul_, .add_, masked_fill_ on an argument)."
        case.findings.append(Finding("input changed in place", FAULT, sentence, cure))
    else:
        case.tried.append("inputs left as they were")


def weights_alone(case: Case) -> None:
    """What happens without any mask."""
    axes, given = case.patient.style.axes, case.patient
    for patient in mask_styles(given) if given.style.masked else (given,):
        case.patient = patient
        try:
            answer = case.ask(*inputs(case.shape, axes, "plain"))
        except Trouble:
            continue
        case.base = None if answer.isnan().any() else recognised(case, {"plain": answer})
        if case.base:
            break
    if case.base is None:
        case.patient = given
        case.findings.append(unknown(case, case.ask(*inputs(case.shape, axes, "plain"))))
        return
    if case.patient.style.order == "tokens first":
        sentence = "Tokens come first: (B, n, h, d) or (n, B, d); PyTorch's function wants them last but one."
        case.findings.append(Finding("tokens first", CONVENTION, sentence))
    report(case, case.base)
    if case.base.scale not in SCALES and a_constant(case):
        case.findings = [
            words.constant_scale(f, float(case.base.scale)) if f.kind == "scale wrong" else f
            for f in case.findings
        ]
    if not case.base.deviations():
        case.tried.append("scores, scale, softmax over the keys, mixture of the values")


def recognised(case: Case, answers: dict[str, Tensor]) -> Hypothesis | None:
    """The simplest known habit that gives these answers."""
    return (
        first(line_up(unmasked(), answers, case))
        or first(always_causal(case, answers))
        or other_scale(case, answers)
    )


def always_causal(case: Case, answers: dict[str, Tensor]) -> Iterator[Hypothesis]:
    """Some functions are causal without being asked: with one more mistake, or with one in the mask."""
    triangles = [triangle for triangle in CAUSALS if triangle != "ignored"]
    found = [replace(h, always=t) for t in triangles for h in unmasked() if len(h.deviations()) <= 1]
    masked = [h for h in with_causal(Hypothesis()) if h.causal in triangles]
    found += [replace(h, always=h.causal, causal="right") for h in masked]
    return line_up(sorted(found, key=lambda h: len(h.deviations())), answers, case)


def other_scale(case: Case, answers: dict[str, Tensor]) -> Hypothesis | None:
    """A scale that is in no list, measured by how sharp the answers are."""
    candidates = torch.logspace(-3, 3, 601, dtype=torch.float64).tolist()
    q, k, v = inputs(case.shape, case.patient.style.axes, "plain")
    scores = q @ k.mT

    def error(c: float) -> float:
        return float((torch.softmax(c * scores, -1) @ v - answers["plain"]).abs().max())

    if not math.isfinite(error(1.0)):
        return None
    best = min(candidates, key=error)
    for turn in range(60):  # ever smaller steps around the best
        step = best * 0.012 * 0.75**turn
        best = min((best - step, best, best + step), key=error)
    h = Hypothesis(scale=repr(best))
    return h if error(best) <= case.near * float(answers["plain"].abs().max()) else None


def a_constant(case: Case) -> bool:
    """Whether the measured scale is the same for heads of another width."""
    generator = torch.Generator().manual_seed(4)
    batch = inputs(case.shape, case.patient.style.axes, "plain")[0].shape[:2]
    q, k, v = (torch.randn(*batch, 5, 9, generator=generator, dtype=torch.float64) for _ in range(3))
    try:
        found = case.patient(q, k, v)[0]
    except Trouble:
        return False
    return same(found, torch.softmax(float(case.base.scale) * q @ k.mT, -1) @ v, case.near)


def unknown(case: Case, found: Tensor) -> Finding:
    """Not attention, and no known mistake: say how it shows."""
    wanted = expected(Hypothesis(), case.shape, case.patient.style.axes, "plain", "")
    if found.isnan().any():
        sentence = f"{int(found.isnan().sum())} of {found.numel()} numbers are NaN on a plain input."
        return Finding("NaN", FAULT, sentence, "Look for a division by zero or a row with nothing in it.")
    gap = float((found - wanted).abs().max())
    sentence = (
        f"The output differs from attention by up to {gap:.3g}, and no known mistake gives these numbers."
    )
    return Finding(
        "not recognised", NOT_SEPARABLE, sentence, "", "", (Matrices("output", small(found), small(wanted)),)
    )


def big(case: Case) -> None:
    """Scores far apart must not overflow."""
    axes = case.patient.style.axes
    if case.base is None or case.base.softmax not in ("keys", "queries", "heads", "batch", "all", "base 2"):
        return
    wanted = expected(case.base, case.shape, axes, "large", "")
    q, k, v = inputs(case.shape, axes, "large")
    if case.patient(q, k, v)[0].isfinite().all() or not wanted.isfinite().all():
        case.tried.append("large scores do not overflow")
        return
    case.naive = True
    if case.base.always != "no":
        sentence = "For scores far apart every allowed weight can underflow to 0, and 0 / 0 is NaN."
        case.findings.append(Finding("underflow under the mask", CONVENTION, sentence, words.BEFORE))
        return
    try:
        one_row_is_fine = bool(case.patient(q[..., :1, :], k, v)[0].isfinite().all())
    except Trouble:
        one_row_is_fine = False
    if one_row_is_fine:
        kind = "one maximum for all rows"
        sentence = "Softmax subtracts the largest score of all rows: a row far below it becomes 0/0, NaN."
    else:
        kind, sentence = "naive softmax", "Large scores overflow: exp gives infinity, and inf / inf is NaN."
    cure = "Subtract each row's own largest score before exp, or use torch.softmax, which does."
    case.findings.append(Finding(kind, FAULT, sentence, cure))


def gradients(case: Case) -> None:
    """Query, key and value must get the gradients of attention."""
    style = case.patient.style
    if style.numpy or case.base is None or case.random:
        return
    given = [t.to(style.dtype).clone().requires_grad_() for t in inputs(case.shape, style.axes, "plain")]
    shaped = [case.patient.given(t * 1.0) for t in given]  # no leaves: in-place work is another matter
    args, kwargs = case.patient.arguments(shaped, given[1].shape)
    try:
        with torch.enable_grad():
            answer = call(lambda: case.patient.function(*args, **kwargs))
            answer = list(answer.values()) if isinstance(answer, dict) else answer
            parts = answer if isinstance(answer, tuple | list) else [answer]
            width = shaped[2].shape[-1]
            size = shaped[0][..., :1].numel() * width  # numbers in the output, wherever its heads stand
            output = next(
                t for t in parts if tensor(t) is not None and (t.numel(), t.shape[-1]) == (size, width)
            )
            found = torch.autograd.grad(output.double().square().sum(), given, allow_unused=True)
    except (RuntimeError, StopIteration, Trouble) as error:
        if "numpy" in str(error):
            case.not_tried.append("gradients, for it computes in numpy")
            return
        found = (None, None, None)
    alive = {n for n, g in zip(NAMES, found, strict=True) if g is not None and g.abs().max() > 0}
    mixed = {"key for value": "key", "query for value": "query", "key and value swapped": "key"}
    mixed = mixed.get(case.base.roles, "value")
    unused = {"key for value": "value", "query for value": "value", "value for key": "key",
              "query for key": "key", "key for query": "query"}.get(case.base.roles)  # fmt: skip
    lost = [n for n in NAMES if n not in alive and n != unused]
    if not lost:
        case.tried.append("gradients of query, key and value")
        return
    kind = "weights detached" if alive == {mixed} else "gradient cut"
    sentence = f"No gradient reaches {' and '.join(lost)}: nothing before it can learn."
    cure = "Look for .detach(), .data, .item(), torch.tensor(...), .numpy() or no_grad() on the way."
    case.findings.append(Finding(kind, FAULT, sentence, cure))


def dtypes(case: Case) -> None:
    """float32 in, float32 out."""
    style = case.patient.style
    if style.dtype != torch.float64:
        return
    seen: list[str] = []

    def watch(*args: object, **kwargs: object) -> object:
        answer = case.patient.function(*args, **kwargs)
        for part in answer if isinstance(answer, tuple | list) else [answer]:
            seen.append(str(getattr(part, "dtype", "")))
        return answer

    try:
        Patient(watch, replace(style, dtype=torch.float32))(*inputs(case.shape, style.axes, "plain"))
    except Trouble:
        return
    if any("float64" in s for s in seen):
        sentence = "float32 goes in and float64 comes out: twice the memory, and slower."
        cure = "In numpy 2, x / np.sqrt(d) makes float64 of float32: use math.sqrt(d)."
        case.findings.append(Finding("float32 becomes float64", CONVENTION, sentence, cure))
