"""Examining an attention function: line-up first, then properties for what the line-up cannot see."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from utils.doctor.call import Hangs, Trouble
from utils.doctor.functions import words
from utils.doctor.functions.adapt import (
    ORDERS,
    Patient,
    adapt,
    floats,
    mask_styles,
)
from utils.doctor.functions.habits import dtypes, gradients, in_place, randomness, ready, second_result
from utils.doctor.functions.lineup import SHAPES, Case, corner, first, inputs, line_up, report, same
from utils.doctor.functions.masking import causality, half, mask_in_place, masks, together
from utils.doctor.hypotheses import (
    SCALES,
    Hypothesis,
    always_masked,
    attend,
    factor,
    unmasked,
)
from utils.doctor.notes import written
from utils.doctor.report import NOT_SEPARABLE, Finding, Matrices, Report


def examine(function: Callable, name: str, mask: str | None = None) -> Report:
    """What an attention function f(q, k, v, mask?, causal?) does.

    mask  what True means in its mask, if it is known: "keep", "hide" or "added"
    """
    case = Case(meaning=mask)
    return written(case, name, "attention function", lambda: _examine(case, function))


def _examine(case: Case, function: Callable) -> None:
    try:
        admit(case, function)
    except Trouble as trouble:
        _no_answer(case, trouble)
        return
    steps = (randomness, in_place, weights_alone, scale, big, second_result, masks, causality, together)
    for step in (*steps, mask_in_place, half, gradients, dtypes):
        try:
            step(case)
        except Hangs as trouble:
            _no_answer(case, trouble)
            return
        except Trouble as trouble:
            what = step.__name__.replace("_", " ")
            case.not_tried.append(f"{what}, for it stops now and then: {trouble}")


def _no_answer(case: Case, trouble: Trouble) -> None:
    """What to say of a patient that gives no output. That it could not be called need not be its fault."""
    if isinstance(trouble, Hangs):
        case.fault("hangs", f"It {trouble}.", "Look for a loop without an end, or a sleep.")
    elif str(trouble).startswith("returns"):
        case.fault("no output", f"It {trouble}.", "Return weights @ value, or (output, weights).")
    else:
        cure = "Call it as f(query, key, value) with tensors (B, h, n, d), (B, n, d) or (n, d), on the CPU."
        case.add(Finding("does not run", NOT_SEPARABLE, f"It stops: {trouble}.", cure))


def admit(case: Case, function: Callable) -> None:
    """Find out how the patient is called, and with which sizes."""
    earlier: Trouble | None = None
    for shape in SHAPES:
        try:
            case.patient = adapt(function, lambda axes, shape=shape: inputs(shape, axes, "plain"))
        except Hangs:
            raise
        except Trouble as trouble:
            if "the weights" in str(trouble):
                raise
            earlier = earlier or trouble
            continue
        case.shape = shape
        if shape != SHAPES[0]:
            equal = {"n_q = n_k": shape.n_q == shape.n_k, "d_v = d_k": shape.d_v == 4}
            sizes = " and ".join(what for what, so in equal.items() if so)
            sentence = f"It works only where {sizes}: with other sizes it stops ({earlier})."
            case.convention("equal sizes only", sentence)
        return
    raise earlier


def weights_alone(case: Case) -> None:
    """What happens without any mask."""
    given = case.patient
    masked, seen = list(mask_styles(given)) if given.style.masked else [given], []
    for patient in itertools.chain(masked, other_layouts(given)):
        case.patient = patient
        try:
            answer = case.answer()
        except Trouble:
            continue
        if any(same(answer, other, 1e-9) for other in seen):
            continue
        seen.append(answer)
        case.base = None if answer.isnan().all() else recognised(case, {"plain": answer})
        if case.base:
            break
    if case.base is None:
        case.patient = given
        unknown(case)
        return
    layout(case)
    report(case, case.base)
    if not case.base.deviations():
        case.tried.append("scores, scale, softmax over the keys, mixture of the values")


def other_layouts(patient: Patient) -> Iterator[Patient]:
    """The same patient, as if its tokens or heads stood elsewhere, where sizes do not tell."""
    style = patient.style
    for order, merged in itertools.product(ORDERS, ("heads side by side", "by view")):
        if (order, merged) != (style.order, style.merged) and not (
            order == "tokens first" and style.axes < 3
        ):
            yield replace(patient, style=replace(style, order=order, merged=merged))


def layout(case: Case) -> None:
    """Where the tokens stand in what goes in and comes out."""
    style = case.patient.style
    if style.order != "tokens last":
        case.convention(style.order, words.ORDERS[style.order])
    if style.merged == "by view":
        sentence = (
            "(B, h, n, d) is reshaped to (B, n, h * d) as it lies in memory: heads and tokens get mixed."
        )
        case.fault("heads merged by view", sentence, "Write output.transpose(1, 2).reshape(B, n, h * d).")
    shapes = [tuple(t.shape) for t in floats(case.patient.answer_to(*ready(case)))]
    turned = (case.shape.batch, case.shape.n_q, case.shape.heads, case.shape.d_v)
    if style.axes == 4 and style.order == "tokens last" and shapes and shapes[0] == turned:
        sentence = "The output comes as (B, n, h, d), though the input stands as (B, h, n, d)."
        case.convention("output in another order", sentence)


def recognised(case: Case, answers: dict[str, Tensor]) -> Hypothesis | None:
    """The simplest known habit that gives these answers."""
    return (
        first(line_up(unmasked(), answers, case))
        or first(line_up(always_masked(), answers, case))
        or other_number(case, answers)
    )


def other_number(case: Case, answers: dict[str, Tensor]) -> Hypothesis | None:
    """A scale, or a limit of the scores, that is in no list, measured by how sharp the answers are."""
    for switch in ("scale", "bend"):
        best = measured(replace(case, base=Hypothesis()), answers["plain"], switch)
        if best:
            return Hypothesis(**{switch: repr(best)})
    return None


def nearest(outcome: Callable[[float], Tensor], wanted: Tensor, near: float) -> float | None:
    """The number with which this outcome is what is wanted, if there is one."""

    def error(c: float) -> float:
        return float((outcome(c) - wanted).abs().max())

    if not math.isfinite(error(1.0)):
        return None
    best = min(torch.logspace(-3, 3, 151, dtype=torch.float64).tolist(), key=error)
    for turn in range(60):  # ever smaller steps around the best
        step = best * 0.05 * 0.75**turn
        best = min((best - step, best, best + step), key=error)
    # near 0 all weights are equal, for whatever reason
    return best if best > 0.01 and error(best) <= near * float(wanted.abs().max()) else None


def scale(case: Case) -> None:
    """Is the rule of the scale the same for other sizes? What equals another by chance shows there."""
    sized = any(value for _, value in case.patient.style.extra)
    if case.base is None or case.random or sized or case.base.scale == "after softmax":
        return
    other = replace(case, shape=case.shape.other())
    try:
        here, there = {"plain": case.answer()}, {"plain": other.answer()}
    except Trouble:
        return
    rules = [replace(case.base, scale=rule) for rule in (case.base.scale, *SCALES) if rule in SCALES]
    right = first(line_up(line_up(rules, here, case), there, other))
    if right == case.base:
        return
    if right is None:
        shares = [measured(case, here["plain"]), measured(other, there["plain"])]
        wanted = [factor(case.base, *asked.inputs()) for asked in (case, other)]
        near = None not in shares and np.allclose(shares, wanted, rtol=0.03)  # something small besides
        if None in shares or (near and case.base.scale in SCALES):
            return
        right = replace(case.base, scale=repr(shares[0]))
    case.drop(*(f.kind for f in case.findings if f.kind.startswith("scale ")))
    case.tried.clear()
    case.base = right
    report(case, right, skip=set(right.deviations()) - {"scale"})
    if right.scale not in SCALES:
        sizes = [(c.shape.d_k, c.shape.lead(c.patient.style.axes)[0]) for c in (case, other)]
        case.reword("scale wrong", lambda found: words.measured_scale(found, shares, sizes))


def measured(case: Case, answer: Tensor, switch: str = "scale", kind: str = "plain") -> float | None:
    """The scores' factor (or their limit: bend) in this answer, with all else as it was found."""
    inputs = case.inputs(kind)
    return nearest(lambda c: attend(replace(case.base, **{switch: repr(c)}), *inputs)[0], answer, case.near)


def unknown(case: Case) -> None:
    """Not attention, and no known mistake: say how it shows."""
    found, wanted = case.answer(), case.expected(Hypothesis())
    if found.isnan().any():
        sentence = f"{int(found.isnan().sum())} of {found.numel()} numbers are NaN on a plain input."
        case.fault("NaN", sentence, "Look for a division by zero or a row with nothing in it.")
        return
    gap = float((found - wanted).abs().max())
    sentence = (
        f"The output differs from attention by up to {gap:.3g}, and no known mistake gives these numbers."
    )
    proof = (Matrices("output", corner(found), corner(wanted)),)
    case.add(Finding("not recognised", NOT_SEPARABLE, sentence, evidence=proof))


def big(case: Case) -> None:
    """Scores far apart must not overflow."""
    if case.base is None or case.base.softmax not in ("keys", "queries", "heads", "batch", "all", "base 2"):
        return
    q, k, v = case.inputs("large")
    found, wanted = case.patient(q, k, v)[0], case.expected(case.base, "large")
    if found.isfinite().all() or not wanted.isfinite().all():
        case.tried.append("large scores do not overflow")
        clipping(case, found, wanted)
        return
    case.naive = True
    if case.base.always != "no":
        sentence = "For scores far apart every allowed weight can underflow to 0, and 0 / 0 is NaN."
        case.convention("underflow under the mask", sentence, words.BEFORE)
        return
    try:
        one_row_is_fine = bool(case.patient(q[..., :1, :], k, v)[0].isfinite().all())
    except Trouble:
        one_row_is_fine = False
    kind, sentence = "naive softmax", "Large scores overflow: exp gives infinity, and inf / inf is NaN."
    if one_row_is_fine:
        kind = "one maximum for all rows"
        sentence = "Softmax subtracts the largest score of all rows: a row far below it becomes 0/0, NaN."
    cure = "Subtract each row's own largest score before exp, or use torch.softmax, which does."
    case.fault(kind, sentence, cure)


def clipping(case: Case, found: Tensor, wanted: Tensor) -> None:
    """Scores beyond a limit that usual ones do not reach."""
    if case.random or same(found, wanted, case.near) or not wanted.isfinite().all():
        return
    limit = measured(case, found, "bend", "large")
    if limit and case.base.bend == "none":
        case.base = replace(case.base, bend=repr(limit))
        report(case, case.base, skip=set(case.base.deviations()) - {"bend"})
