"""Examining an attention function: line-up first, then properties for what the line-up cannot see."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.doctor.call import Hangs, Trouble, tensor
from utils.doctor.functions import words
from utils.doctor.functions.adapt import Patient, adapt, mask_styles, parts
from utils.doctor.functions.lineup import SHAPES, Case, corner, first, inputs, line_up, report, same
from utils.doctor.functions.masking import causality, half, masks
from utils.doctor.hypotheses import CAUSALS, ROLES, SCALES, Hypothesis, simplest_first, unmasked, with_causal
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
    for step in (randomness, in_place, weights_alone, big, masks, causality, half, gradients, dtypes):
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
        case.patient = replace(case.patient, function=without_dropout(case.patient.function))
        case.random = not same(answer(0), answer(1), 1e-6)
        sentence = "The same input gives another output each time: dropout is on though nothing is trained."
        cure = "Drop only in training: F.dropout(weights, p, training=self.training), dropout_p=0.0 in eval."
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
    given = [t.to(style.dtype).clone() for t in case.inputs()]
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
    for patient in mask_styles(given) if given.style.masked else (given,):
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
    if case.patient.style.order == "tokens first":
        sentence = "Tokens come first: (B, n, h, d) or (n, B, d); PyTorch's function wants them last but one."
        case.convention("tokens first", sentence)
    report(case, case.base)
    if case.base.scale not in SCALES and a_constant(case):
        case.reword("scale wrong", lambda _: words.constant_scale(float(case.base.scale)))
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
    return line_up(simplest_first(found), answers, case)


def other_scale(case: Case, answers: dict[str, Tensor]) -> Hypothesis | None:
    """A scale that is in no list, measured by how sharp the answers are."""
    candidates = torch.logspace(-3, 3, 601, dtype=torch.float64).tolist()
    q, k, v = case.inputs()
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
    batch = case.inputs()[0].shape[:2]
    q, k, v = (torch.randn(*batch, 5, 9, generator=generator, dtype=torch.float64) for _ in range(3))
    try:
        found = case.patient(q, k, v)[0]
    except Trouble:
        return False
    return same(found, torch.softmax(float(case.base.scale) * q @ k.mT, -1) @ v, case.near)


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
    if case.patient(q, k, v)[0].isfinite().all() or not case.expected(case.base, "large").isfinite().all():
        case.tried.append("large scores do not overflow")
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


def gradients(case: Case) -> None:
    """Query, key and value must get the gradients of attention."""
    style = case.patient.style
    if style.numpy or case.base is None or case.random:
        return
    given = [t.to(style.dtype).clone().requires_grad_() for t in case.inputs()]
    try:
        with torch.enable_grad():
            answer = case.patient.answer_to(*(t * 1.0 for t in given))  # no leaves: in_place looks at those
            width = case.shape.d_v
            size = case.patient.given(given[0])[..., 0].numel() * width  # wherever its heads stand
            output = next(
                t
                for t in parts(answer)
                if tensor(t) is not None and (t.numel(), t.shape[-1]) == (size, width)
            )
            found = torch.autograd.grad(output.double().square().sum(), given, allow_unused=True)
    except (RuntimeError, StopIteration, Trouble) as error:
        if "numpy" in str(error):
            case.not_tried.append("gradients, for it computes in numpy")
            return
        found = (None, None, None)
    alive = {n for n, g in zip(NAMES, found, strict=True) if g is not None and g.abs().max() > 0}
    used = ROLES[case.base.roles](*NAMES)
    lost = [n for n in NAMES if n not in alive and n in used]
    if not lost:
        case.tried.append("gradients of query, key and value")
        return
    kind = "weights detached" if alive == {used[2]} else "gradient cut"
    sentence = f"No gradient reaches {' and '.join(lost)}: nothing before it can learn."
    cure = "Look for .detach(), .data, .item(), torch.tensor(...), .numpy() or no_grad() on the way."
    case.fault(kind, sentence, cure)


def dtypes(case: Case) -> None:
    """float32 in, float32 out."""
    style = case.patient.style
    if style.dtype != torch.float64:
        return
    seen: list[str] = []

    def watch(*args: object, **kwargs: object) -> object:
        answer = case.patient.function(*args, **kwargs)
        for part in parts(answer):
            seen.append(str(getattr(part, "dtype", "")))
        return answer

    try:
        Patient(watch, replace(style, dtype=torch.float32))(*case.inputs())
    except Trouble:
        return
    if any("float64" in s for s in seen):
        sentence = "float32 goes in and float64 comes out: twice the memory, and slower."
        cure = "In numpy 2, x / np.sqrt(d) makes float64 of float32: use math.sqrt(d)."
        case.convention("float32 becomes float64", sentence, cure)
