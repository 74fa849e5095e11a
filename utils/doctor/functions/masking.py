"""Examining the mask and the causal flag of an attention function."""

from __future__ import annotations

from dataclasses import replace

import torch

from utils.doctor.call import Trouble
from utils.doctor.functions import words
from utils.doctor.functions.adapt import Patient, mask_styles
from utils.doctor.functions.lineup import (
    Case,
    Shape,
    expected,
    first,
    inputs,
    line_up,
    padding,
    report,
    scattered,
)
from utils.doctor.hypotheses import Hypothesis, with_causal, with_mask
from utils.doctor.report import CONVENTION, FAULT, Finding

POLARITY = "mask polarity inverted"


def masking(case: Case, meaning: str | None) -> None:
    """What a padding mask does."""
    if case.patient.style.mask is None:
        case.not_tried.append("masks, for no argument is called so")
        return
    if case.base is None:
        return
    square = replace(case.shape, n_q=case.shape.n_k)
    answered = mask_answers(case, case.shape) or mask_answers(case, square)
    choose_mask(case, answered, meaning or ("hide" if "padding" in case.patient.style.mask.lower() else None))


def mask_answers(case: Case, shape: Shape) -> dict[str, tuple[Patient, Hypothesis | None]]:
    """For each kind of mask that the patient takes: how it is given, and what the patient does with it."""
    axes, own_shape, own_patient = case.patient.style.axes, case.shape, case.patient
    answered: dict[str, tuple[Patient, Hypothesis | None]] = {}
    case.shape = shape
    for patient in mask_styles(own_patient):
        kind = patient.style.mask_kind
        if answered.get(kind, (None, None))[1] or (patient.style.mask_axes == "pairs" and axes > 2):
            continue  # known, or one mask for all sequences, which does not tell the second one's
        case.patient = patient
        try:
            keep = padding(shape, axes)
            answers = {given: case.ask(*inputs(shape, axes, given), keep) for given in case.kinds}
        except Trouble:
            continue
        fitting = list(line_up(with_mask(case.base), answers, case, "padding"))
        answered[kind] = (patient, first(by_pairs(case, fitting)))
    case.patient, case.shape = own_patient, own_shape
    return answered


def by_pairs(case: Case, fitting: list[Hypothesis]) -> list[Hypothesis]:
    """Of habits that treat padding alike, those that fit a mask with other keys for every query, too."""
    if len(fitting) < 2:
        return fitting
    axes = case.patient.style.axes
    full = Patient(case.patient.function, replace(case.patient.style, mask_axes="scores"))
    own, case.patient = case.patient, full
    try:
        keep = scattered(case.shape, axes)
        answers = {given: case.ask(*inputs(case.shape, axes, given), keep) for given in case.kinds}
        return list(line_up(fitting, answers, case, "pairs")) or fitting
    except Trouble:
        return fitting
    finally:
        case.patient = own


def choose_mask(case: Case, answered: dict, meaning: str | None) -> None:
    """Which kind of mask the patient is meant for, and what it does with it."""
    if not answered:
        case.not_tried.append("the mask, for none of the shapes and kinds tried was taken")
        return
    wanted = {"keep": ("keep", "keep as 0 and 1"), "hide": ("hide",), "added": ("added",)}.get(meaning)
    order = [k for k in (wanted or ("keep", "keep as 0 and 1", "added", "hide")) if k in answered]
    if not order:
        case.not_tried.append(f"the mask: none that means {meaning!r} was taken")
        return
    base = set(case.base.deviations())
    clean = [k for k in order if answered[k][1] and set(answered[k][1].deviations()) <= base]
    patient, h = answered[clean[0]] if clean else answered[order[0]]
    likeliest = answered[order[0]][1]
    case.patient = patient
    if clean and clean[0] == "hide" and wanted is None and "keep" in answered:
        patient, h = answered["keep"]  # the polarity is not ours to guess
    if clean and clean[0] == "added" and wanted is None and likeliest and "added" in likeliest.fill:
        case.findings.append(words.added(words.finding("fill", likeliest.fill)))
    if h is None:
        sentence = "With a mask the output is neither right nor that of any known mistake."
        case.findings.append(Finding("mask unknown", FAULT, sentence, words.FILL))
        return
    if gives_nan(case):
        nothing_left(case, "mask", "padding")
        return
    case.mask = h
    report(case, h, skip=base)
    if meaning is None and [f.kind for f in case.findings if f.verdict == FAULT and "mask" in f.kind] == [
        POLARITY
    ]:
        case.findings = [words.hiding(f) if f.kind == POLARITY else f for f in case.findings]
    if clean:
        case.tried.append("a padding mask")
        empty_rows(case)


def nothing_left(case: Case, what: str, masked: str) -> None:
    """All is NaN: a fault, unless what was found without a mask (softmax over heads, say) explains it."""
    shape = replace(case.shape, n_q=case.shape.n_k)
    wanted = expected(case.base, shape, case.patient.style.axes, "plain", masked)
    if wanted is not None and wanted.isnan().all():
        case.not_tried.append(f"the {what}: as softmax goes over another axis, all is NaN under one")
        return
    sentence = f"With a {what} every number is NaN: nothing else can be told about it."
    case.findings.append(Finding(f"{what} gives NaN", FAULT, sentence, words.BEFORE))


def gives_nan(case: Case) -> bool:
    """Whether nothing is left of the output under a mask that hides a key or two."""
    axes, shape = case.patient.style.axes, replace(case.shape, n_q=case.shape.n_k)
    try:
        return bool(case.ask(*inputs(shape, axes, "plain"), padding(shape, axes)).isnan().all())
    except Trouble:
        return False


def empty_rows(case: Case) -> None:
    """A query that may attend to nothing: named, not blamed."""
    axes = case.patient.style.axes
    keep = padding(case.shape, axes).clone()
    keep[0] = False
    try:
        found = case.ask(*inputs(case.shape, axes, "plain"), keep)[0]
    except Trouble:
        return
    if found.isnan().any():
        kind, sentence = (
            "NaN on empty rows",
            "A query that may attend to nothing gets NaN, as softmax of nothing but -inf.",
        )
    elif float(found.abs().max()) < 1e-6:
        kind, sentence = (
            "0 on empty rows",
            "A query that may attend to nothing gets 0, as in PyTorch's own function.",
        )
    else:
        kind, sentence = (
            "mean on empty rows",
            "A query that may attend to nothing gets the mean of the values.",
        )
    case.findings.append(Finding(kind, CONVENTION, sentence))


def half(case: Case) -> None:
    """A fill of -1e9 does not fit into float16."""
    style, shape = case.patient.style, replace(case.shape, n_q=case.shape.n_k)
    if style.numpy or case.random or case.base is None:
        return
    patient = Patient(case.patient.function, replace(style, dtype=torch.float16))
    qkv = inputs(shape, style.axes, "plain")
    for masked in ({"keep": padding(shape, style.axes)}, {"causal": True}):
        if ("keep" in masked and case.mask is None) or ("causal" in masked and style.causal is None):
            continue
        try:
            usable = patient(*qkv)[0].isfinite().all() and case.patient(*qkv, **masked)[0].isfinite().all()
        except Trouble:
            continue
        try:
            if not usable or patient(*qkv, **masked)[0].isfinite().all():
                continue
            verdict, what = FAULT, "the output is NaN"
        except Trouble as trouble:
            verdict, what = CONVENTION, str(trouble)  # it says so itself, and only there
        sentence = f"In float16 the mask fails ({what}): its fill lies beyond -65504."
        cure = "Fill with float('-inf') or torch.finfo(scores.dtype).min."
        case.findings.append(Finding("mask fill overflows float16", verdict, sentence, cure))
        return


def causality(case: Case) -> None:
    """What the causal flag does, on as many queries as keys and on fewer."""
    if case.patient.style.causal is None or case.base is None or case.base.always != "no":
        return
    axes, shape = case.patient.style.axes, case.shape
    square = replace(shape, n_q=shape.n_k)
    case.shape = square
    try:
        answers = {kind: case.ask(*inputs(square, axes, kind), causal=True) for kind in case.kinds}
    except Trouble as trouble:
        case.findings.append(Finding("causal stops", FAULT, f"With the causal flag it stops: {trouble}."))
        return
    finally:
        case.shape = shape
    case.shape = square
    fitting = list(line_up(with_causal(case.base), answers, case, "causal"))
    case.shape = shape
    if all(answer.isnan().all() for answer in answers.values()):
        nothing_left(case, "causal mask", "causal")
        return
    rule = (case.mask.fill, case.mask.when) if case.mask else None
    h = first([h for h in fitting if (h.causal_fill, h.causal_when) == rule]) or first(fitting)
    if h is None:
        case.findings.append(
            Finding("causal unknown", FAULT, "Causal output is that of no known triangle.", words.TRIANGLE)
        )
        return
    report(case, h, skip=set(case.base.deviations()))
    one_rule_for_both(case)
    if h.causal == "right" and shape.n_q != shape.n_k:
        alignment(case, h)


def one_rule_for_both(case: Case) -> None:
    """A fault of the mask that the causal mask shows as well is one fault."""
    kinds = {f.kind: f for f in case.findings}
    for kind, found in kinds.items():
        twin = kinds.get(f"causal {kind}")
        if twin:
            case.findings.remove(twin)
            case.findings[case.findings.index(found)] = replace(twin, kind=kind)


def alignment(case: Case, h: Hypothesis) -> None:
    """Where the triangle starts when there are fewer queries than keys: named, not blamed."""
    try:
        answers = {"plain": case.ask(*inputs(case.shape, case.patient.style.axes, "plain"), causal=True)}
    except Trouble:
        return
    for triangle in ("right", "bottom-right"):
        if first(line_up([replace(h, causal=triangle)], answers, case, "causal")):
            case.tried.append("causality")
            if triangle == "bottom-right":
                case.findings.append(words.finding("causal", triangle))
            return
