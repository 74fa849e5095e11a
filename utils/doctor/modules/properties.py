"""What can be said of a module without knowing how it works: its answers to inputs that were changed."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from utils.doctor.call import Trouble
from utils.doctor.modules.adapt import ask
from utils.doctor.modules.case import Case, mixes, scales_away
from utils.doctor.modules.lineup import reference, same
from utils.doctor.modules.weights import Weight, duplicate, feed_forward, maps, randomise, walk
from utils.doctor.modules.wiring import changed, short, with_parts
from utils.doctor.modules.words import LAYOUTS
from utils.doctor.report import FAULT, NOT_SEPARABLE, Finding

Output = Callable[[tuple[Tensor, ...]], Tensor]


def by_properties(case: Case, inputs: tuple[Tensor, ...]) -> tuple[list[Finding], list[str], list[str]]:
    """Faults that its behaviour shows, what was found right, and what was not examined."""
    module = duplicate(case.module)
    randomise(module)

    def output(x: tuple[Tensor, ...]) -> Tensor:
        with torch.no_grad():
            return ask(duplicate(module), case.style, *x).output

    base = output(inputs)
    if not base.isfinite().all():
        return [_not_a_number(inputs)], [], []
    found = _samples(output, inputs, base) or _tokens(output, inputs, base)
    if not case.style.itself:
        found += second_input(case, inputs)
    if found:
        return found, [], []
    return [], ["samples kept apart", _hearing(output, inputs, base), *_order(output, inputs, base)], []


def _noise(x: Tensor, seed: int = 11) -> Tensor:
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))


def _once(change: Callable[[Tensor], Tensor], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The inputs changed; those that were one tensor stay one."""
    changed = {id(x): change(x) for x in inputs}
    return tuple(changed[id(x)] for x in inputs)


def _samples(output: Output, inputs: tuple[Tensor, ...], base: Tensor) -> list[Finding]:
    others = _once(lambda x: torch.cat([x[:1], _noise(x[1:])]), inputs)
    if base.shape[0] == 1 or same(output(others)[:1], base[:1]):
        return []
    sentence = "The first sample's output changes when the other samples do."
    cure = "Look at every view, reshape and transpose that touches the batch axis, and at softmax's axis."
    shown = "a batch, and the same with all samples but the first changed"
    return [Finding("samples mixed", FAULT, sentence, cure, shown)]


def _tokens(output: Output, inputs: tuple[Tensor, ...], base: Tensor) -> list[Finding]:
    first = _once(lambda x: torch.cat([_noise(x[:, :1]), x[:, 1:]], 1), inputs)
    last = _once(lambda x: torch.cat([x[:, :-1], _noise(x[:, -1:])], 1), inputs)
    if base.shape[1] < 2 or not same(output(first)[:, 1:], base[:, 1:]):
        return []
    if not same(output(last)[:, :-1], base[:, :-1]):
        return []  # it is causal, the wrong way round
    sentence = "No token hears another: to change the first or the last leaves the outputs of all others."
    cure = "See that the scores are (.., n, n), tokens by tokens, and that attention's result is used."
    shown = "a sequence, and the same with its first, then its last token changed"
    return [Finding("attention has no effect", FAULT, sentence, cure, shown)]


def _hearing(output: Output, inputs: tuple[Tensor, ...], base: Tensor) -> str:
    """Whether tokens hear later ones."""
    changed = output(_once(lambda x: torch.cat([x[:, :-1], _noise(x[:, -1:])], 1), inputs))
    if base.shape[1] > 1 and same(changed[:, :-1], base[:, :-1]):
        return "tokens hear earlier ones and none hears a later one (causal)"
    return "tokens hear each other"


def _order(output: Output, inputs: tuple[Tensor, ...], base: Tensor) -> list[str]:
    """Whether the order of the tokens matters."""
    turned = output(_once(lambda x: x.flip(1), inputs)).flip(1)
    return ["the order of tokens does not matter"] if same(turned, base) else []


def _not_a_number(inputs: tuple[Tensor, ...]) -> Finding:
    sentence = "The output holds NaN or infinity for an ordinary input."
    cure = (
        "Look for a row of scores in which every key is hidden, for exp without subtracting the maximum, "
        "and for a division by 0."
    )
    shown = f"random input of shape {tuple(inputs[0].shape)}"
    return Finding("not a number", FAULT, sentence, cure, shown)


def second_input(case: Case, inputs: tuple[Tensor, ...]) -> list[Finding]:
    """Whether the output depends on both inputs of a module that takes two, token by token of the first."""
    module = duplicate(case.module)
    randomise(module)
    first, second = case.style.roles[:2]

    def output(*x: Tensor) -> Tensor:
        with torch.no_grad():
            return ask(duplicate(module), case.style, *x).output

    q, k, v = inputs
    base = output(q, k, v)
    shown = f"the same call with another {{}}; its shape is {tuple(base.shape)}"
    if case.style.rectangular and base.shape[1] != q.shape[1]:
        sentence = (
            f"The output has a row for each token of {second}, not of {first}: queries are made of {second}."
        )
        cure = f"Make queries of {first}, keys and values of {second}."
        return [Finding("query and key swapped", FAULT, sentence, cure, shown.format("number of tokens"))]
    try:
        others = [_noise(k, 21), _noise(v, 22)] if k is not v else [_noise(k, 21)] * 2
        if not same(output(q, *others), base):
            return []
    except Trouble:
        return []
    sentence = f"The output does not depend on {second}: keys and values are made of something else."
    cure = f"Make keys and values of {second}; look for a line that overwrites it."
    return [Finding("second input ignored", FAULT, sentence, cure, shown.format(second))]


def averaged(case: Case, inputs: tuple[Tensor, ...]) -> list[Finding]:
    """Whether heads as wide as the input are averaged: with the values of one alone, its share is left."""
    for group in maps(case.module).values():
        sides = {s for w in group for s in w.tensor.shape if s != 1}
        if len(group) < 2 or len(sides) != 1 or case.suspect.layout.outer != "none":
            continue
        module = case.copy("identity")
        with torch.no_grad():
            for weight in next(ws for ws in maps(module).values() if ws[0].name == group[0].name)[1:]:
                weight.tensor.zero_()
            share = ask(module, case.style, *inputs).output
        if same(share * len(group), case.ask(inputs).output):
            kind, sentence, cure = LAYOUTS["merge", "mean"]
            shown = f"{len(group)} heads, of which one alone has values: 1/{len(group)} of its result is left"
            return [Finding(kind, FAULT, f"{sentence}.", cure, shown)]
    return []


def skip_of(case: Case, inputs: tuple[Tensor, ...]) -> list[Finding]:
    """Whether the residual connection carries what a map returns: then it doubles with the map."""
    layout = case.suspect.layout
    if layout.outer not in ("skip", "post"):
        return []
    plain = replace(case.suspect, layout=replace(layout, outer="none"))
    found, _ = reference(plain, case.frame, *inputs, gains=(2.0, 1.0))
    wanted = 2 * inputs[0] + found
    wanted = wanted if layout.outer == "skip" else case.frame.norm(wanted).detach()
    for name in with_parts(case.module):
        with torch.no_grad():
            answer = ask(changed(case, name, "identity", 2.0), case.style, *inputs)
        if same(answer.output, wanted):
            sentence = (
                f"The residual connection carries what {short(name)} returns, not the input: is it meant?"
            )
            return [
                Finding("residual from a projection", NOT_SEPARABLE, sentence, "Keep the input and add that.")
            ]
    return []


def optional_inputs(case: Case) -> list[str]:
    """Inputs that forward takes and that were not given: some layers may be for them."""
    parameters = inspect.signature(case.module.forward).parameters
    style = case.style
    known = (*style.roles, *style.masks, *style.foreign, style.causal)
    return [n for n, p in parameters.items() if n not in known and p.default is None]


def idle(case: Case, inputs: tuple[Tensor, ...]) -> list[Finding]:
    """Norms and layers of a feed-forward network that nothing uses."""
    module = case.copy("random")
    apart = feed_forward(walk(module))
    parts: dict[str, list[Tensor]] = {}
    for weight in walk(module):
        if weight.trained and weight.tensor.requires_grad and (weight.name in apart or _is_norm(weight)):
            parts.setdefault(weight.name.rpartition(".")[0], []).append(weight.tensor)
    with torch.enable_grad():
        output = ask(module, case.style, *inputs).output
        if not output.requires_grad:
            return []
        output.sum().backward()
    unused = [name for name, tensors in parts.items() if name and all(t.grad is None for t in tensors)]
    with torch.no_grad():
        for tensor in (t for name in unused for t in parts[name]):
            tensor += 1.0
        if not unused or not same(ask(module, case.style, *inputs).output, output.detach()):
            return []
    names = " and ".join(unused)
    sentence = f"The output does not depend on {names}: made, but never used."
    cure = "Look where forward should use it: another layer's name stands there, or the line is missing."
    verdict = NOT_SEPARABLE if optional_inputs(case) else FAULT  # it may be for an input that was not given
    return [Finding("layer unused", verdict, sentence, cure, "the gradient of the sum of the outputs")]


def norm_axis(case: Case) -> list[Finding]:
    """Whether a norm of the patient's own takes mean and spread over tokens, not over a token's features."""
    width = case.style.widths[0]
    for path, sub in case.module.named_modules():
        own = path and not re.search(
            "^torch.nn|batch|instance|group", f"{type(sub).__module__} {type(sub).__name__}".lower()
        )
        if own and scales_away(sub, width) and mixes(sub, width):
            sentence = (
                f"What {path} makes of one token depends on the other tokens: its axis is the wrong one."
            )
            cure = "Take mean and standard deviation of each token's features: x.mean(-1, keepdim=True)."
            return [Finding("norm over tokens", FAULT, sentence, cure, "the norm alone, one token changed")]
    return []


def _is_norm(weight: Weight) -> bool:
    return "norm" in type(weight.owner).__name__.lower() and weight.tensor.ndim == 1


def not_recognised(tried: list[str]) -> Finding:
    """What is said of a module that no combination explains."""
    passed = f" What could be examined is right: {'; '.join(tried)}." if tried else ""
    sentence = (
        "It computes neither a plain attention nor one with up to two known mistakes: it has a part that the "
        "doctor does not know (rotary positions, normed queries, gates), or a mistake that is not in the "
        f"list.{passed}"
    )
    cure = (
        "Take out what is special for a moment and ask again; then compare with a plain attention step by "
        "step, starting at q, k and v."
    )
    return Finding("not recognised", NOT_SEPARABLE, sentence, cure)
