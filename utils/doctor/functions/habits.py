"""Habits of any function: chance, memory, writing into inputs, what else comes back, gradients, dtypes."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.doctor.call import Trouble, reached, tensor
from utils.doctor.functions import words
from utils.doctor.functions.adapt import SWITCHES, Patient, drop_axes, floats, parts, switched_off
from utils.doctor.functions.lineup import Case, same
from utils.doctor.hypotheses import ALL_ROLES, attend

NAMES = ("query", "key", "value")


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


def ready(case: Case, dtype: torch.dtype | None = None) -> list[Tensor]:
    """Query, key and value in the patient's dtype, as copies."""
    return [t.to(dtype or case.patient.style.dtype).clone() for t in case.inputs()]


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
