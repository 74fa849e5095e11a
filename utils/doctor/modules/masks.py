"""What a module does with the masks that it is given: which form it takes, and what it makes of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from utils.doctor.call import Hangs, Trouble
from utils.doctor.hypotheses import Hypothesis, causal_keep, with_causal, with_mask
from utils.doctor.modules.adapt import ask
from utils.doctor.modules.case import Case, after
from utils.doctor.modules.lineup import STRONG, Suspect, reference, same
from utils.doctor.modules.weights import duplicate, randomise
from utils.doctor.modules.words import said as words_for
from utils.doctor.report import CONVENTION, FAULT, NOT_SEPARABLE, Finding, Matrices

KINDS = ("boolean", "0 and 1", "whole 0 and 1", "added")
SHAPES = ("(n, n)", "(B, n)", "(B, 1, 1, n)", "(B, 1, n, n)", "(B, n, n)", "(B*h, n, n)", "(n,)", "lengths")
MASK_SWITCHES = ("when", "fill", "keep", "axis")
WEAK = ("-10", "-100", "-1000", "minus ten added")


def examine_masks(case: Case) -> tuple[list[Finding], list[str], list[str]]:
    """Findings, what was tried, and what could not be."""
    findings: list[Finding] = []
    tried, not_tried = [], []
    if case.suspect.layout.axis == "batch" or case.suspect.layout.split == "none":
        return [], [], ["masks: the scores are not tokens by tokens"] if case.style.masks else []
    for name in case.style.masks:
        answer = _recognised(case, name)
        if isinstance(answer, str):
            not_tried.append(f"{name}: {answer}")
            findings.append(_unknown(name))
            continue
        inside, kind, shape, keep, inputs = answer
        found = _mask_findings(case, name, inside, f"{kind}, {shape}", keep, inputs)
        found += _written(case, name, kind, shape, keep, inputs)
        findings += found
        if not any(f.verdict == FAULT for f in found):
            tried.append(f"{name} ({kind}, {shape})")
    return findings, tried, not_tried


def _written(
    case: Case, name: str, kind: str, shape: str, keep: Tensor, inputs: tuple[Tensor, ...]
) -> list[Finding]:
    """Whether the caller's mask is another one after the call."""
    laid = _laid(case, shape, ~keep, inputs)  # the other way round, for it may set what was set
    given = laid if shape == "lengths" else _as(kind, laid)
    after = case.ask(inputs, **{name: given}).named_after[name]
    if torch.equal(after, given):
        return []
    sentence = f"The caller's {name} is another one after the call: the module writes into it."
    cure = "Make a new tensor: no method that ends in _, no mask[...] = ..., no *=."
    return [Finding("mask changed in place", FAULT, sentence, cure, f"{name} as {kind}, {shape}")]


def _unknown(name: str) -> Finding:
    sentence = f"What it does with {name} was not recognised."
    return Finding("mask not recognised", NOT_SEPARABLE, sentence)


def _recognised(case: Case, name: str) -> tuple[Hypothesis, str, str, Tensor, tuple[Tensor, ...]] | str:
    """The likeliest habit, over all forms of a mask that the module takes; or why there is none."""
    best: tuple[Any, ...] | None = None
    trouble, ran, effect = "takes none of the usual masks", None, False
    inputs = case.probe(seed=3)
    plain = case.ask(inputs).output
    for shape, kind, keep, given in _forms(case, name, inputs):
        try:
            answer = case.ask(inputs, **{name: given})
        except Hangs:
            raise
        except Trouble as error:
            trouble = str(error)
            continue
        ran = ran or (kind, shape, keep)
        if same(answer.output, plain):
            continue
        effect = True
        if not answer.output.isfinite().all(-1).any():
            continue  # without numbers nothing can be told apart
        inside = _match(case, after(inputs, answer), keep, answer.output)
        cost = 9 if inside is None else len(_mask_deviations(inside))
        if best is None or cost < best[0]:
            best = (cost, inside, kind, shape, keep)
        if cost == 0 or (cost == 1 and inside.keep == "hide"):
            break
    if ran is None and case.style.rectangular:  # it may fit only where there are as many keys as queries
        return _recognised(replace(case, style=replace(case.style, rectangular=False)), name)
    if ran is None:
        return f"takes none of the usual masks ({trouble})"
    if not effect:
        return replace(case.suspect.inside, fill="ignored"), ran[0], ran[1], ran[2], inputs
    if best is None or best[1] is None:
        return "what it does with a mask is none of the known habits"
    return (*best[1:], inputs)


def _forms(case: Case, name: str, inputs: tuple[Tensor, ...]) -> Iterator[tuple[str, str, Tensor, Any]]:
    """Shape, kind, the mask as (B, 1, n_q or 1, n_k) with True = may attend, and the mask in this form."""
    shapes = SHAPES if case.style.axes == "nd" else [s for s in SHAPES if s != "(n,)"]
    for shape in sorted(shapes, key=lambda s: not _likely(name, s)):
        keep = _pattern(case, shape, inputs)
        for kind in KINDS if shape != "lengths" else KINDS[:1]:
            laid = _laid(case, shape, keep, inputs)
            yield shape, kind, keep, laid if shape == "lengths" else _as(kind, laid)


def _as(kind: str, keep: Tensor) -> Tensor:
    if kind == "added":
        return torch.zeros(keep.shape).masked_fill(~keep, -torch.inf)
    return keep.to({"boolean": torch.bool, "0 and 1": torch.float32, "whole 0 and 1": torch.long}[kind])


def _likely(name: str, shape: str) -> bool:
    if "len" in name:
        return shape == "lengths"
    return shape in ("(B, n)", "(n,)") if re.search("pad", name) else False


def _pattern(case: Case, shape: str, inputs: tuple[Tensor, ...]) -> Tensor:
    batch, n_q, n_k = inputs[0].shape[0], inputs[0].shape[1], inputs[1].shape[1]
    generator = torch.Generator().manual_seed(5)
    if shape in ("(n, n)", "(B, 1, n, n)", "(B, n, n)", "(B*h, n, n)"):
        keep = torch.rand(1 if shape == "(n, n)" else batch, 1, n_q, n_k, generator=generator) > 0.4
    else:
        ends = torch.tensor([n_k - 1 - i % (n_k - 2) for i in range(batch)])
        keep = (torch.arange(n_k) < ends[:, None])[:, None, None]
    keep[..., 0] = True
    return keep


def _laid(case: Case, shape: str, keep: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
    n_q = inputs[0].shape[1]
    full = keep.expand(-1, -1, n_q, -1)
    return {
        "(n, n)": lambda: full[0, 0],
        "(B, n)": lambda: keep[:, 0, 0],
        "(n,)": lambda: keep[0, 0, 0],
        "(B, 1, 1, n)": lambda: keep,
        "(B, 1, n, n)": lambda: full,
        "(B, n, n)": lambda: full[:, 0],
        "(B*h, n, n)": lambda: full[:, 0].repeat_interleave(case.frame.heads, 0),
        "lengths": lambda: keep[:, 0, 0].sum(-1),
    }[shape]().clone()


def _match(case: Case, inputs: tuple[Tensor, ...], keep: Tensor, output: Tensor) -> Hypothesis | None:
    habits = sorted(with_mask(case.suspect.inside), key=lambda h: len(_mask_deviations(h)))
    for inside in habits:
        try:
            if same(output, case.wanted(inputs, replace(case.suspect, inside=inside), keep=keep)):
                return inside
        except RuntimeError:
            continue
    return None


def _mask_deviations(inside: Hypothesis) -> dict[str, str]:
    return {n: v for n, v in inside.deviations().items() if n in MASK_SWITCHES and v not in STRONG}


def _torch_style(module: nn.Module, name: str) -> bool:
    return name.endswith("key_padding_mask") or any(
        isinstance(m, nn.MultiheadAttention) for m in module.modules()
    )


def _mask_findings(
    case: Case, name: str, inside: Hypothesis, form: str, keep: Tensor, inputs: tuple[Tensor, ...]
) -> list[Finding]:
    deviations = _mask_deviations(inside)
    evidence = _mask_evidence(case, inside, keep, inputs)
    found = []
    if not evidence and "keep" not in deviations:
        deviations = {}  # what cannot be shown is not said
    for switch, value in deviations.items():
        if switch == "keep":
            found.append(_polarity(case, name, form))
            continue
        if switch in ("fill", "when"):
            kind, sentence, cure = words_for(switch, value)
        elif value == "query rows":
            kind, sentence = (
                "mask on query rows",
                f"{name} is laid along the queries, so hidden tokens are still heard",
            )
            cure = "Give a padding mask (B, n) the axes (B, 1, 1, n): mask[:, None, None, :]."
        else:
            kind, sentence = (
                "mask in head/batch order",
                f"{name} is repeated in another order than the heads ({value})",
            )
            cure = (
                "Repeat each sample's mask h times in a row: mask.repeat_interleave(h, dim=0), not "
                "mask.repeat(h, 1, 1)."
            )
        found.append(Finding(kind, FAULT, _dot(sentence), cure, f"{name} as {form}", evidence))
    if "fill" in deviations or inside.when != "before" or inside.axis == "query rows":
        return found
    return found + (_weak(case, name, form, inside) or _strong(case, name, form, inside))


def _polarity(case: Case, name: str, form: str) -> Finding:
    sentence = f"In {name} True (or 1) hides a token, as in nn.MultiheadAttention."
    cure = (
        "F.scaled_dot_product_attention means the reverse: True may attend. Say in the docstring "
        "which is meant."
    )
    if _torch_style(case.module, name) or re.search("pad|hide|ignore|drop|exclude|invalid|forbid", name):
        return Finding("mask hides where true", CONVENTION, sentence, cure, f"{name} as {form}")
    verdict = FAULT if re.search("attention_mask|keep|valid|allow", name) else NOT_SEPARABLE
    more = "" if verdict == FAULT else " Whether that is meant, no input can tell."
    return Finding("mask polarity inverted", verdict, sentence + more, cure, f"{name} as {form}")


def _mask_evidence(
    case: Case, inside: Hypothesis, keep: Tensor, inputs: tuple[Tensor, ...]
) -> tuple[Matrices, ...]:
    try:
        found = reference(replace(case.suspect, inside=inside), case.frame, *inputs, keep=keep)[1]
        right = replace(case.right, inside=replace(case.right.inside, keep=inside.keep))
        wanted = reference(right, case.frame, *inputs, keep=keep)[1]
    except RuntimeError:
        return ()
    gaps = (found - wanted).abs().amax((-2, -1)).nan_to_num(torch.inf)
    if not (gaps > 5e-4).any():
        return ()
    b, h = (int(i) for i in torch.unravel_index(gaps.argmax(), gaps.shape))
    what = f"weights of sample {b}, head {h}"
    return (Matrices(what, found[b, h].numpy(), wanted[b, h].numpy()),)


def _weak(case: Case, name: str, form: str, inside: Hypothesis) -> list[Finding]:
    """Does the mask hold where the only token that may be heard has a score of minus some thousands?

    The first token points one way and all others the other way; only the first may be heard.
    """
    kind, shape = form.split(", ", 1)
    if shape == "lengths":
        return []
    inputs = case.probe(seed=3)
    size = 60.0
    sign = [torch.where(torch.arange(x.shape[1])[:, None] == 0, -size, size) for x in inputs]
    inputs = tuple(x + s for x, s in zip(inputs, sign, strict=True))
    keep = (torch.arange(inputs[1].shape[1]) == 0).expand(inputs[0].shape[0], 1, 1, -1)
    keep = keep if inside.keep == "attend" else ~keep
    answer = None
    try:
        answer = case.ask(inputs, **{name: _as(kind, _laid(case, shape, keep, inputs))})
    except Trouble:
        return []
    seen = after(inputs, answer)
    for fill in ("minus infinity", *STRONG, *WEAK):
        suspect = replace(case.suspect, inside=replace(inside, fill=fill))
        if same(answer.output, case.wanted(seen, suspect, keep=keep), 1e-3):
            if fill not in WEAK:
                return []
            _, sentence, cure = words_for("fill", fill)
            shown = f"{name} as {form}; the one token that may be heard has a score of minus some thousands"
            return [Finding("mask fill too weak", FAULT, _dot(sentence), cure, shown)]
    return []


def _strong(case: Case, name: str, form: str, inside: Hypothesis) -> list[Finding]:
    """Does the mask hold when scores are large? Hidden tokens are changed, and nobody else may notice."""
    kind, shape = form.split(", ", 1)
    if case.style.axes == "bdhw" or shape == "lengths" or not _plain(case):
        return []
    inputs = case.probe(seed=3)
    keep = (torch.arange(inputs[1].shape[1]) == 0).expand(
        inputs[0].shape[0], 1, 1, -1
    )  # only the first is seen
    keep = keep if inside.keep == "attend" else ~keep
    given = _as(kind, _laid(case, shape, keep, inputs))
    hidden = ~(keep if inside.keep == "attend" else ~keep)[:, 0, 0]

    def changed(x: Tensor) -> Tensor:
        return torch.where(hidden[..., None], x.flip(-1) * 2 + 1, x)

    if case.style.itself:
        others, rows = (changed(inputs[0]),) * 3, ~hidden
    else:
        others = (inputs[0], *(changed(x) for x in inputs[1:]))
        rows = torch.ones(inputs[0].shape[:2], dtype=torch.bool)
    return leak(case, inputs, others, rows, name if "mask" in name else f"the mask {name}", **{name: given})


def _plain(case: Case) -> bool:
    """Whether nothing but a weak mask can let a hidden token through."""
    inside = case.suspect.inside
    mistakes = (inside.softmax, inside.causal_fill, inside.causal_when) != (
        "keys",
        "minus infinity",
        "before",
    )
    return not (mistakes or case.suspect.layout.deviations())


def leak(
    case: Case, inputs: tuple[Tensor, ...], others: tuple[Tensor, ...], rows: Tensor, what: str, **kwargs: Any
) -> list[Finding]:
    """Whether these rows of the output differ between two inputs, when scores are in thousands or more."""
    module = duplicate(case.module)
    for gain, size in ((40.0, "a few thousand"), (400.0, "some hundred thousand")):
        for seed in range(4):
            randomise(module, seed, gain)
            with torch.no_grad():
                try:
                    one, two = (
                        ask(duplicate(module), case.style, *x, **kwargs).output[rows]
                        for x in (inputs, others)
                    )
                except Trouble:
                    return []
            if not same(one.nan_to_num(), two.nan_to_num(), 1e-3):
                return [_too_weak(what, gain, size)]
    return []


def _too_weak(what: str, gain: float, size: str) -> Finding:
    sentence = (
        f"With scores of {size}, {what} no longer hides: the fill is larger than the scores of allowed "
        "tokens."
    )
    cure = "Set hidden scores to -torch.inf, which no score can reach."
    shown = f"random weights {gain:g} times as large as usual"
    return Finding("mask fill too weak", FAULT if gain < 100 else CONVENTION, sentence, cure, shown)


def examine_causal(case: Case) -> tuple[list[Finding], list[str], list[str]]:
    """What the causal flag does; and whether a causal mask that is always on holds against large scores."""
    inputs = replace(case, style=replace(case.style, rectangular=False)).probe(seed=4)
    always = case.suspect.inside.always
    if always != "no":
        if case.style.axes == "bdhw" or not _plain(case):
            return [], [], []
        allowed = causal_keep(always, *[inputs[0].shape[1]] * 2)
        j = int(allowed.sum(0).argmin())  # the token that fewest may hear
        others = tuple(
            torch.cat([x[:, :j], x[:, j : j + 1].flip(-1) * 2 + 1, x[:, j + 1 :]], 1) for x in inputs
        )
        deaf = ~allowed[:, j] & (torch.arange(len(allowed)) != j)
        return leak(case, inputs, others, deaf.expand(len(inputs[0]), -1), "the causal mask"), [], []
    if case.style.causal is None:
        return [], [], []
    name = case.style.causal
    try:
        answer = case.ask(inputs, **{name: True})
    except Trouble as trouble:
        return [], [], [f"{name}=True alone: {trouble}"]
    for inside in with_causal(case.suspect.inside):
        wanted = case.wanted(after(inputs, answer), replace(case.suspect, inside=inside), causal=True)
        if same(answer.output, wanted):
            found = _causal_findings(case, name, inside, inputs)
            return found, [] if found else [f"{name}=True"], []
    return [], [], [f"{name}=True: what it does is none of the known habits"]


def _causal_findings(case: Case, name: str, inside: Hypothesis, inputs: tuple[Tensor, ...]) -> list[Finding]:
    found = reference(replace(case.suspect, inside=inside), case.frame, *inputs, causal=True)[1]
    wanted = reference(Suspect(case.suspect.layout, case.right.inside), case.frame, *inputs, causal=True)[1]
    evidence = (Matrices("weights of the first head", found[0, 0].numpy(), wanted[0, 0].numpy()),)
    said = []
    if inside.causal != "right":
        said.append(words_for("causal", inside.causal))
    if inside.causal_when == "after":
        said.append(words_for("when", "after"))
    if inside.causal_fill not in ("minus infinity", *STRONG):
        said.append(words_for("fill", inside.causal_fill))
    return [
        Finding(k, FAULT, _dot(s), c, f"{name}=True, {inputs[0].shape[1]} tokens", evidence)
        for k, s, c in said
    ]


def _dot(sentence: str) -> str:
    return sentence if sentence.endswith(".") else sentence + "."
