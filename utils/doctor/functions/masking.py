"""Examining the mask and the causal flag of an attention function."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from utils.doctor.call import Trouble, call
from utils.doctor.functions import words
from utils.doctor.functions.adapt import Patient, mask_styles
from utils.doctor.functions.lineup import Case, first, keeps, levelled, line_up, report, same
from utils.doctor.hypotheses import (
    ALL_ROLES,
    Hypothesis,
    attend,
    causal_keep,
    factor,
    is_number,
    with_causal,
    with_mask,
)
from utils.doctor.report import CONVENTION, FAULT, Finding

POLARITY = "mask polarity inverted"
Answered = dict[str, tuple[Patient, Hypothesis | None]]


def masks(case: Case) -> None:
    """What a padding mask does."""
    if case.patient.style.mask is None:
        case.not_tried.append("masks, for no argument is called so")
    elif case.base is not None:
        choose_mask(case, mask_answers(case) or mask_answers(case.square()))


def mask_answers(case: Case) -> Answered:
    """For each kind of mask that the patient takes: how it is given, and what the patient does with it."""
    answered: Answered = {}
    for patient in mask_styles(case.patient):
        kind = patient.style.mask_kind
        if answered.get(kind, (None, None))[1] or (
            patient.style.mask_axes == "pairs" and patient.style.axes > 2
        ):
            continue  # known, or one mask for all sequences, which does not tell the second one's
        asked = replace(case, patient=patient)
        try:
            answers = asked.answers("padding")
        except Trouble:
            continue
        # a mask may take the place of a causal one
        bases = dict.fromkeys([case.base, replace(case.base, always="no")])
        habits = itertools.chain(*map(with_mask, bases))
        fitting = list(line_up(habits, answers, asked, "padding"))
        h = first(by_pairs(asked, fitting))
        answered[kind] = (patient, with_fill(asked, h, answers, "padding"))
    return answered


def with_fill(case: Case, h: Hypothesis | None, answers: dict[str, Tensor], masked: str) -> Hypothesis | None:
    """The habit with the number that it fills with, where that is another than assumed, and can be measured.

    All scores are made equal to a level. Where hidden keys get as much as the others, the fill is as high.
    """
    switch = "causal_fill" if masked == "causal" else "fill"
    finite = h is None or is_number(getattr(h, switch))
    if h and masked != "causal" and h.axis != "right":
        return h
    if not finite or case.base.softmax != "keys" or ALL_ROLES[case.base.roles](0, 1, 2)[2] != 2:
        return h
    low, high = math.log(0.01), math.log(2e4)
    for _ in range(28):
        middle = (low + high) / 2
        low, high = (middle, high) if favours(case, h, -math.exp(middle), masked) else (low, middle)
    if low > math.log(1.9e4):
        return h
    fill = f"{-math.exp(low):.4g}"
    found = replace(h or case.base, **{switch: str(round(float(fill), 3)).removesuffix(".0")})
    return found if h or first(line_up([found], answers, case, masked)) else None


def favours(case: Case, h: Hypothesis | None, level: float, masked: str) -> bool:
    """Whether keys that may be seen get more than hidden ones when all scores are at this level."""
    q, k, v = case.inputs()
    zeros = torch.zeros_like(q), torch.zeros_like(k)
    keep, row = keeps(masked, case.shape, case.patient.style.axes), 2  # a row that sees some, if causal
    if keep is None:
        seen = causal_keep(h.causal if h else "right", *(k.shape[-2],) * 2)[row]
    else:
        seen = ~keep[0, 0, 0] if h and h.keep == "hide" else keep[0, 0, 0]
    try:
        q, k = levelled(*zeros, level / factor(case.base, q, k, v))
        found = case.ask(q, k, v, keep, masked == "causal")[0, 0, row]
    except Trouble:
        return False
    inside, outside = v[0, 0, seen].mean(0), v[0, 0, ~seen].mean(0)
    share = float((found - inside) @ (outside - inside) / (outside - inside).square().sum())
    return share < float((~seen).double().mean())


def by_pairs(case: Case, fitting: list[Hypothesis]) -> list[Hypothesis]:
    """Of habits that treat padding alike, those that fit a mask with other keys for every query, too."""
    style = replace(case.patient.style, mask_axes="scores")
    full = replace(case, patient=replace(case.patient, style=style))
    if len(fitting) < 2:
        return fitting
    try:
        return list(line_up(fitting, full.answers("pairs"), full, "pairs")) or fitting
    except Trouble:
        return fitting


def choose_mask(case: Case, answered: Answered) -> None:
    """Which kind of mask the patient is meant for, and what it does with it."""
    if not answered:
        case.not_tried.append("the mask, for none of the shapes and kinds tried was taken")
        return
    base, name = set(case.base.deviations()), case.patient.style.mask.lower()
    right = [kind for kind, (_, h) in answered.items() if h and set(h.deviations()) <= base]
    by_name = "key_padding" in name or ("padding" in name and "hide" in right)
    meaning = case.meaning or ("hide" if by_name else None)
    wanted = {"keep": ("keep", "keep as 0 and 1"), "hide": ("hide",), "added": ("added",)}.get(meaning)
    order = [k for k in (wanted or ("keep", "keep as 0 and 1", "added", "hide")) if k in answered]
    if not order:
        case.not_tried.append(f"the mask: none that means {meaning!r} was taken")
        return
    clean = next((kind for kind in order if kind in right), None)
    case.patient, h = answered[clean or order[0]]
    shown = case
    if clean == "hide" and wanted is None and "keep" in answered:  # the polarity is not ours to guess
        patient, h = answered["keep"]
        shown = replace(case, patient=patient)
    likeliest = answered[order[0]][1]
    if clean == "added" and wanted is None and likeliest and "added" in likeliest.fill:
        case.add(words.added(words.finding("fill", likeliest.fill)))
    if h is None:
        sentence = "With a mask the output is neither right nor that of any known mistake."
        case.fault("mask unknown", sentence, words.FILL)
        return
    if gives_nan(case):
        nothing_left(case, "mask", "padding")
        return
    case.mask = h
    tell(case, shown, h, meaning)
    if clean:
        case.tried.append("a padding mask")
        empty_rows(case)


def tell(case: Case, shown: Case, h: Hypothesis, meaning: str | None) -> None:
    """Say what the mask does; `shown` asks as the evidence was found."""
    report(shown, h, skip=set(case.base.deviations()))
    if h.keep == "hide":
        sentence = words.ASKED[shown.patient.style.mask_kind]
        case.reword(POLARITY, lambda found: replace(found, sentence=sentence))
    if h.axis == "query rows" and transposes(shown, h):
        case.reword("mask on query rows", words.transposed)
    blamed = [f.kind for f in case.findings if f.verdict == FAULT and "mask" in f.kind]
    if meaning is None and blamed == [POLARITY]:
        case.reword(POLARITY, words.hiding)
    if h.always != case.base.always:
        sentence = "Without a mask it is causal; a mask takes the place of that."
        case.convention("mask replaces causality", sentence)


def transposes(case: Case, h: Hypothesis) -> bool:
    """Whether a mask with other keys for every query acts with its rows and columns exchanged."""
    square = case.square()
    full = replace(case.patient, style=replace(case.patient.style, mask_axes="scores"))
    try:
        answer = replace(square, patient=full).answer("plain", "pairs")
    except Trouble:
        return False
    wanted = square.expected(h, "plain", "pairs")
    return wanted is not None and same(answer, wanted, case.near)


def nothing_left(case: Case, what: str, masked: str) -> None:
    """All is NaN: a fault, unless what was found without a mask (softmax over heads, say) explains it."""
    wanted = case.square().expected(case.base, "plain", masked)
    if wanted is not None and wanted.isnan().all():
        case.not_tried.append(f"the {what}: as softmax goes over another axis, all is NaN under one")
        return
    sentence = f"With a {what} every number is NaN: nothing else can be told about it."
    case.fault(f"{what} gives NaN", sentence, words.BEFORE)


def gives_nan(case: Case) -> bool:
    """Whether nothing is left of the output under a mask that hides a key or two."""
    try:
        return bool(case.square().answer("plain", "padding").isnan().all())
    except Trouble:
        return False


def empty_rows(case: Case) -> None:
    """A query that may attend to nothing: named, not blamed."""
    keep = keeps("padding", case.shape, case.patient.style.axes).clone()
    keep[0] = False
    try:
        found = case.ask(*case.inputs(), keep)[0]
    except Trouble:
        return
    if found.isnan().any():
        what, gets = "NaN", "NaN, as softmax of nothing but -inf"
    elif float(found.abs().max()) < 1e-6:
        what, gets = "0", "0, as in PyTorch's own function"
    else:
        what, gets = "mean", "the mean of the values"
    case.convention(f"{what} on empty rows", f"A query that may attend to nothing gets {gets}.")


def half(case: Case) -> None:
    """A fill of -1e9 does not fit into float16."""
    style = case.patient.style
    if style.numpy or case.random or case.base is None:
        return
    usual = case.square()
    low = replace(usual, patient=replace(case.patient, style=replace(style, dtype=torch.float16)))
    for masked, given in (("padding", case.mask), ("causal", style.causal)):
        if given is None:
            continue
        try:
            if not (low.answer().isfinite().all() and usual.answer("plain", masked).isfinite().all()):
                continue
        except Trouble:
            continue
        try:
            if low.answer("plain", masked).isfinite().all():
                continue
            verdict, what = FAULT, "the output is NaN"
        except Trouble as trouble:
            verdict, what = CONVENTION, str(trouble)  # it says so itself, and only there
        sentence = f"In float16 the mask fails ({what}): its fill lies beyond -65504."
        cure = "Fill with float('-inf') or torch.finfo(scores.dtype).min."
        case.add(Finding("mask fill overflows float16", verdict, sentence, cure))
        return


def causality(case: Case) -> None:
    """What the causal flag does, on as many queries as keys and on fewer."""
    if case.patient.style.causal is None or case.base is None or case.base.always != "no":
        return
    square = case.square()
    try:
        answers = square.answers("causal")
    except Trouble as trouble:
        case.fault("causal stops", f"With the causal flag it stops: {trouble}.")
        return
    if all(answer.isnan().all() for answer in answers.values()):
        nothing_left(case, "causal mask", "causal")
        return
    fitting = list(line_up(with_causal(case.base), answers, square, "causal"))
    rule = (case.mask.fill, case.mask.when) if case.mask else None
    h = first(h for h in fitting if (h.causal_fill, h.causal_when) == rule) or first(fitting)
    h = with_fill(square, h, answers, "causal")
    if h is None:
        case.fault("causal unknown", "Causal output is that of no known triangle.", words.TRIANGLE)
        return
    case.causal = h
    report(case, h, skip=set(case.base.deviations()))
    one_rule_for_both(case)
    if h.causal == "right" and case.shape.n_q != case.shape.n_k:
        alignment(case, h)


def one_rule_for_both(case: Case) -> None:
    """A fault of the mask that the causal mask shows as well is one fault."""
    for kind, twin in [(f.kind.removeprefix("causal "), f) for f in case.findings]:
        if kind != twin.kind and case.has(kind):
            case.drop(twin.kind)
            case.reword(kind, lambda _, twin=twin, kind=kind: replace(twin, kind=kind))


def alignment(case: Case, h: Hypothesis) -> None:
    """Where the triangle starts when there are fewer queries than keys: named, not blamed."""
    try:
        answers = {"plain": case.answer("plain", "causal")}
    except Trouble:
        return
    for triangle in ("right", "bottom-right"):
        if first(line_up([replace(h, causal=triangle)], answers, case, "causal")):
            case.tried.append("causality")
            if triangle == "bottom-right":
                case.add(words.finding("causal", triangle))
            return


def together(case: Case) -> None:
    """A mask and causality at once: is one of them lost?"""
    style, square = case.patient.style, case.square()
    if style.causal is None or style.masked or case.mask is None or case.causal is None:
        return
    h = replace(
        case.mask,
        causal=case.causal.causal,
        causal_when=case.causal.causal_when,
        causal_fill=case.causal.causal_fill,
    )
    keep = keeps("padding", square.shape, style.axes)
    try:
        found = square.ask(*square.inputs(), keep, True)
    except Trouble:
        return
    both, one, other = (
        attend(h, *square.inputs(), k, c)[0] for k, c in ((keep, True), (keep, False), (None, True))
    )
    if same(found, both, case.near):
        return
    for lost, wanted in (("causality", one), ("mask", other)):
        if same(found, wanted, case.near):
            sentence = f"With a mask and causality at once, the {lost} is lost."
            cure = "Apply both, one after the other: if ... if ..., not if ... elif ..."
            case.fault(f"{lost} lost beside the other", sentence, cure)


def mask_in_place(case: Case) -> None:
    """The caller's mask must stay as it is."""
    patient, square = case.patient, case.square()
    if patient.style.mask is None or case.mask is None or case.random:
        return
    inputs = [patient.given(t.to(patient.style.dtype)) for t in square.inputs()]
    args, kwargs = patient.arguments(inputs, square.inputs()[1].shape)
    given, before = (
        patient.mask(keeps("padding", square.shape, patient.style.axes), square.shape.n_q) for _ in range(2)
    )
    call(
        lambda *args, **kwargs: patient.function(*args, **kwargs | {patient.style.mask: given}),
        *args,
        **kwargs,
    )
    if not np.array_equal(given, before):
        sentence = "The caller's mask is changed in place: whoever uses it next masks something else."
        case.fault("mask changed in place", sentence, "Write mask = ~mask, and nothing into mask itself.")
