"""Examining an attention function: line-up first, then properties for what the line-up cannot see."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from utils.doctor.call import Hangs, Trouble, reached, tensor
from utils.doctor.functions import words
from utils.doctor.functions.adapt import (
    ORDERS,
    SWITCHES,
    Patient,
    adapt,
    drop_axes,
    floats,
    mask_styles,
    parts,
    switched_off,
)
from utils.doctor.functions.lineup import SHAPES, Case, corner, first, inputs, line_up, report, same
from utils.doctor.functions.masking import causality, half, mask_in_place, masks, together
from utils.doctor.hypotheses import (
    ALL_ROLES,
    CAUSALS,
    SCALES,
    Hypothesis,
    attend,
    factor,
    simplest_first,
    unmasked,
    with_causal,
)
from utils.doctor.notes import written
from utils.doctor.report import NOT_SEPARABLE, Finding, Matrices, Report

NAMES = ("query", "key", "value")


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


def randomness(case: Case) -> None:
    """The same input must give the same output, whatever was asked before and whatever chance does."""

    def answer(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return case.patient(*case.inputs())[0]

    first_, again, other = answer(0), answer(0), answer(1)
    if not same(first_, again, 1e-6):
        cure = "Keep nothing between calls, or reset it at the start of each."
        sentence = "The same input gives another output each time: it depends on what was asked before."
        case.fault("remembers earlier calls", sentence, cure)
    elif not same(first_, other, 1e-6):
        sentence = "The same input gives another output each time: dropout is on though nothing is trained."
        cure = "Drop only in training: F.dropout(weights, p, training=self.training), dropout_p=0.0 in eval."
        quiet = Patient(without_dropout(case.patient.function), case.patient.style)
        for patient in (*switched_off(case.patient), quiet):
            case.patient = patient
            case.random = not same(answer(0), answer(1), 1e-6)
            if not case.random:
                break
        if any(name in SWITCHES for name, _ in case.patient.style.extra):
            case.convention("dropout on by default", "Dropout is on unless the caller switches it off.", cure)
        else:
            case.fault("dropout on in eval", sentence, cure)
    else:
        case.tried.append("the same answer every time")


def without_dropout(function: Callable) -> Callable:
    """The same function, with dropout switched off around it, so that its other habits can be seen."""

    def off(tensor_: Tensor, *args: object, **kwargs: object) -> Tensor:
        return tensor_

    def attention(*args: object, dropout_p: float = 0.0, **kwargs: object) -> Tensor:
        return own(*args[:4], 0.0, *args[5:], **kwargs) if len(args) > 4 else own(*args, **kwargs)

    own = F.scaled_dot_product_attention

    @functools.wraps(getattr(function, "forward", function), updated=())
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
    given = ready(case)
    before = [t.clone() for t in given]
    case.patient.answer_to(*given)
    changed = [n for n, g, b in zip(NAMES, given, before, strict=True) if not torch.equal(g, b)]
    if changed:
        sentence = (
            f"The caller's {' and '.join(changed)} is changed in place: whoever reads it next gets others."
        )
        cure = "Write q = q * scale, not q *= scale (and no .mul_, .add_, masked_fill_ on an argument)."
        case.fault("input changed in place", sentence, cure)
    else:
        case.tried.append("inputs left as they were")


def weights_alone(case: Case) -> None:
    """What happens without any mask."""
    given = case.patient
    masked = list(mask_styles(given)) if given.style.masked else [given]
    for patient in itertools.chain(masked, other_layouts(given)):
        case.patient = patient
        try:
            answer = case.answer()
        except Trouble:
            continue
        case.base = None if answer.isnan().any() else recognised(case, {"plain": answer})
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


def ready(case: Case, dtype: torch.dtype | None = None) -> list[Tensor]:
    """Query, key and value in the patient's dtype, as copies."""
    return [t.to(dtype or case.patient.style.dtype).clone() for t in case.inputs()]


def recognised(case: Case, answers: dict[str, Tensor]) -> Hypothesis | None:
    """The simplest known habit that gives these answers."""
    return (
        first(line_up(unmasked(), answers, case))
        or first(always_causal(case, answers))
        or other_number(case, answers)
    )


def always_causal(case: Case, answers: dict[str, Tensor]) -> Iterator[Hypothesis]:
    """Some functions are causal without being asked: with one more mistake, or with one in the mask."""
    triangles = [triangle for triangle in CAUSALS if triangle != "ignored"]
    found = [replace(h, always=t) for t in triangles for h in unmasked() if len(h.deviations()) <= 1]
    masked = [h for h in with_causal(Hypothesis()) if h.causal in triangles]
    found += [replace(h, always=h.causal, causal="right") for h in masked]
    return line_up(simplest_first(found), answers, case)


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


def second_result(case: Case) -> None:
    """Are weights that are returned beside the output those that were used?"""
    if case.base is None or case.random or case.patient.style.masked:
        return
    output, weights = attend(case.base, *case.inputs())
    raw = [replace(case.base, softmax="none", scale=scale) for scale in (case.base.scale, "none")]
    known = [("output", output), ("", weights), ("returned weights are transposed", weights.mT)]
    known += [("scores returned as weights", attend(h, *case.inputs())[1]) for h in raw]
    known = [(kind, drop_axes(wanted, case.patient.style.axes)) for kind, wanted in known]
    known += [("returned weights are a mean over heads", weights.mean(1))]
    for found in floats(case.patient.answer_to(*ready(case))):
        kind = next((kind for kind, wanted in known if _either(kind, found, wanted, case.near)), None)
        if kind in words.RETURNED:
            case.convention(kind, words.RETURNED[kind])
        elif kind is None and case.base.softmax != "none":
            case.not_tried.append("another result beside the output, for it is not recognised")


def _either(kind: str, found: Tensor, wanted: Tensor, near: float) -> bool:
    """The same numbers; of an output, in whatever order, as its axes may be others."""
    if kind == "output" and found.numel() == wanted.numel():
        return same(found.flatten().sort()[0], wanted.flatten().sort()[0], near)
    return same(found, wanted, near)


def gradients(case: Case) -> None:
    """Query, key and value must get the gradients of attention."""
    style = case.patient.style
    if style.numpy or case.base is None or case.random:
        return
    size = math.prod(case.shape.lead(style.axes)) * case.shape.n_q * case.shape.d_v

    def output(*inputs: Tensor) -> Any:
        found = parts(case.patient.answer_to(*inputs))
        return next((t for t in found if tensor(t) is not None and t.numel() == size), torch.zeros(()))

    try:
        alive = reached(output, dict(zip(NAMES, ready(case), strict=True))) or set()
    except (RuntimeError, Trouble) as error:
        if "numpy" in str(error):
            case.not_tried.append("gradients, for it computes in numpy")
            return
        alive = set()
    used = ALL_ROLES[case.base.roles](*NAMES)
    lost = [n for n in NAMES if n not in alive and n in used]
    if lost:
        case.cut(lost, mixed_only=alive == {used[2]})
    else:
        case.tried.append("gradients of query, key and value")


def dtypes(case: Case) -> None:
    """What comes out has the dtype of what goes in."""
    style, seen = case.patient.style, set()

    def watch(*args: object, **kwargs: object) -> object:
        answer = case.patient.function(*args, **kwargs)
        seen.update(str(getattr(part, "dtype", "")).removeprefix("torch.") for part in parts(answer))
        return answer

    for dtype in (torch.float32, torch.float16):
        name = str(dtype).removeprefix("torch.")
        if style.numpy and dtype == torch.float16:
            return
        seen.clear()
        try:
            Patient(watch, replace(style, dtype=dtype))(*case.inputs())
        except Trouble as trouble:
            if re.search("same dtype|scalar type", str(trouble)) and not style.numpy:
                sentence = f"With {name} it stops: {trouble}."
                case.convention(f"stops in {name}", sentence, "Convert back: weights.to(value.dtype).")
            continue
        others = {s for s in seen if "float" in s} - {name}
        if others:
            sentence = f"{name} goes in and {' and '.join(sorted(others))} comes out."
            cure = "In numpy 2, x / np.sqrt(d) makes float64 of float32: use math.sqrt(d)."
            case.convention(f"{name} becomes {min(others)}", sentence, cure if style.numpy else "")
            return
