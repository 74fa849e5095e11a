"""What a module does with its weights, input and memory: everything that identity weights cannot see."""

from __future__ import annotations

import copy
import inspect
import itertools
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from utils.doctor.call import Trouble, call
from utils.doctor.modules.adapt import HEAD_NAMES, WIDTH_NAMES, Style, adapt, ask, attribute
from utils.doctor.modules.case import Case, after
from utils.doctor.modules.lineup import reference, same
from utils.doctor.modules.weights import FUSED, Weight, duplicate, maps, randomise, walk
from utils.doctor.report import CONVENTION, FAULT, Finding

OTHER_WIDTHS = ("d_out", "dim_out", "out_dim", "query_size", "key_size", "value_size", "output_dim")
HEAD_WIDTHS = ("head_dim", "dim_head", "d_head", "head_size", "dim_heads", "heads_dim", "size_per_head")


def behaviour(case_module: nn.Module, style: Style, inputs: tuple[Tensor, ...]) -> list[Finding]:
    """Chance in eval mode, memory of earlier calls, writing into the input."""
    found: list[Finding] = []
    module = duplicate(case_module)
    randomise(module)
    with torch.no_grad():
        fresh = ask(duplicate(module), style, *inputs)
        loud = [ask(duplicate(module), style, *inputs, quiet=False).output for _ in range(2)]
        if not same(loud[0], loud[1]):
            found.append(_chance(loud, fresh.output, ask(duplicate(module), style, *inputs).output))
        found += _memory(module, style, inputs, fresh.output)
    changed = [float((a - b).abs().max()) for a, b in zip(inputs, fresh.input_after, strict=False)]
    if max(changed) > 0:
        sentence = (
            "The caller's tensor is another one after the call: its entries changed by up to "
            f"{max(changed):.3g}."
        )
        cure = "Make a new tensor instead of writing into x: x = x * s, not x *= s; no method that ends in _."
        shown = f"an input of shape {tuple(inputs[0].shape)}, compared before and after the call"
        found.append(Finding("input changed in place", FAULT, sentence, cure, shown))
    return found


def _chance(loud: list[Tensor], quiet: Tensor, again: Tensor) -> Finding:
    size = float((loud[0] - loud[1]).abs().max())
    if same(quiet, again):
        sentence = f"In eval mode two calls with the same input differ by up to {size:.3g}: dropout stays on."
        cure = (
            "Use nn.Dropout, which eval() switches off; or F.dropout(x, p, training=self.training), and "
            "dropout_p=self.p if self.training else 0.0 for F.scaled_dot_product_attention."
        )
        shown = "the same input twice, after module.eval()"
        return Finding("dropout on in eval", FAULT, sentence, cure, shown)
    sentence = f"In eval mode two calls with the same input differ by up to {size:.3g}, and not by dropout."
    cure = "Draw random numbers in __init__ or in training only."
    shown = "the same input twice, after module.eval()"
    return Finding("random output", FAULT, sentence, cure, shown)


def _memory(module: nn.Module, style: Style, inputs: tuple[Tensor, ...], fresh: Tensor) -> list[Finding]:
    used = duplicate(module)
    ask(used, style, *(x.flip(1) * 0.5 for x in inputs))
    try:
        second = ask(used, style, *inputs).output
        what = f"differs by up to {float((second - fresh).abs().max()):.3g} from what a fresh copy answers"
        if same(second, fresh):
            return []
    except Trouble as trouble:
        what = f"stops with {trouble}"
    sentence = f"The module remembers: after another input has been seen, the answer {what}."
    cure = "Keep nothing of a call on self: use local variables in forward; hand a cache in and out instead."
    shown = "two inputs one after the other"
    return [Finding("earlier call matters", FAULT, sentence, cure, shown)]


def registration(
    case_module: nn.Module, style: Style, inputs: tuple[Tensor, ...]
) -> tuple[list[Finding], str | None]:
    """Tensors and layers that to() and state_dict() do not know. Also returns why it could not be told."""
    lost = [w for w in walk(case_module) if not w.registered and _matters(case_module, style, inputs, w)]
    layers = sorted({w.name for w in lost if w.trained or w.is_map})
    tables = sorted({w.name for w in lost if not (w.trained or w.is_map)})
    found = []
    if layers:
        known = sum(p.numel() for p in case_module.parameters())
        hidden = sum(w.tensor.numel() for w in lost if w.name in layers)
        sentence = (
            f"{hidden} weights are hidden from parameters(), which knows {known}: "
            f"{', '.join(layers[:4])}. "
            "They are neither trained, nor moved, nor saved, and eval() does not reach them."
        )
        cure = "Keep layers in nn.ModuleList (or nn.ModuleDict) and single tensors in nn.Parameter."
        shown = "module.parameters() and module.state_dict()"
        found.append(Finding("plain list", FAULT, sentence, cure, shown))
    if tables:
        sentence = f"{', '.join(tables)} is a plain attribute: module.to(device) leaves it behind."
        cure = f'Write self.register_buffer("{tables[0]}", ..., persistent=False).'
        shown = "the module moved to another device"
        found.append(Finding("tensor not registered", FAULT, sentence, cure, shown))
    if found:
        return found, None
    return _on_meta(case_module, style, inputs)


def _matters(module: nn.Module, style: Style, inputs: tuple[Tensor, ...], weight: Weight) -> bool:
    """Whether the output depends on this tensor. What forward makes anew at each call does not matter."""
    with torch.no_grad():
        one, other = duplicate(module), duplicate(module)
        randomise(one)
        randomise(other)
        try:
            target = next(w.tensor for w in walk(other) if w.name == weight.name)
            flipped = ~target if target.dtype == torch.bool else 1 - target
            target.copy_(flipped)
            return not same(ask(one, style, *inputs).output, ask(other, style, *inputs).output)
        except (StopIteration, Trouble, RuntimeError):
            return weight.is_map


def _on_meta(module: nn.Module, style: Style, inputs: tuple[Tensor, ...]) -> tuple[list[Finding], str | None]:
    """Run on the meta device: shapes without numbers, which no tensor on the CPU may meet."""
    try:
        moved = duplicate(module).to("meta")
        ask(moved, style, *(x.to("meta") for x in inputs))
    except Trouble as trouble:
        words = str(trouble)
        if not re.search(r"expected device|same device|two devices|device type", words):
            return [], f"other devices: on the meta device it stops with {words}"
        sentence = f"On another device it stops: {words.rstrip('.!')}."
        cure = (
            "Make new tensors where x is: torch.ones(n, n, device=x.device); keep constant ones in "
            "register_buffer."
        )
        shown = "the module and its input on the meta device"
        return [Finding("device fixed", FAULT, sentence, cure, shown)], None
    except NotImplementedError as error:
        return [], f"other devices: {error}"
    return [], None


def gradients(case: Case, inputs: tuple[Tensor, ...]) -> list[Finding]:
    """Which maps get no gradient, and whether they are unused or cut off."""
    module = case.copy("random")
    groups = with_parts(module)
    for tensor in (t for parts in groups.values() for t, _ in parts):
        if tensor.is_floating_point() and tensor.is_leaf:
            tensor.requires_grad_(True)
    if not groups:
        return []
    with torch.enable_grad():
        output = ask(module, case.style, *inputs).output
        if not output.isfinite().all():
            return []  # the gradient of no number tells nothing
        noise = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
        if output.requires_grad:
            try:
                (output * noise).sum().backward()
            except RuntimeError as error:
                return [_backward_stops(error)]
    grads = [t.grad for parts in groups.values() for t, _ in parts if t.grad is not None]
    if not all(g.isfinite().all() for g in grads):
        return []
    cut, unused = [], []
    for name, parts in groups.items():
        sizes = [0.0 if t.grad is None else float(t.grad[rows].abs().max()) for t, rows in parts]
        if max(sizes) > 1e-9 or not any(t.requires_grad for t, _ in parts):
            continue
        (cut if _effective(case, name, inputs, output.detach()) else unused).append(name)
    if not (cut or unused):
        return []
    roles = {name: uses(case, name, inputs) for name in groups} if case.suspect else {}
    product = bool(case.suspect) and case.suspect.inside.softmax == "none"  # scores and values count alike
    return [
        *_unused(unused, roles, set(groups)),
        *_cut(cut, set(groups) - set(unused), {} if product else roles),
    ]


def _backward_stops(error: RuntimeError) -> Finding:
    sentence = f"It cannot be trained: {str(error).splitlines()[0].rstrip('.')}."
    cure = "Write into no tensor that was used before: x = x * s, not x *= s."
    shown = "backward() of a random sum of the outputs"
    return Finding("backward stops", FAULT, sentence, cure, shown)


def with_parts(module: nn.Module) -> dict[str, list[tuple[Tensor, slice]]]:
    """The maps by name; one matrix for q, k and v as three."""
    found: dict[str, list[tuple[Tensor, slice]]] = {}
    for group, weights in maps(module).items():
        if not weights[0].trained:
            continue  # a plain tensor, or the result of an earlier call
        rows = weights[0].tensor.shape[0]
        fused = len(weights) == 1 and weights[0].tensor.ndim == 2 and rows % 3 == 0
        if fused and (rows == 3 * weights[0].tensor.shape[1] or FUSED.search(group)):
            for i in range(3):
                found[f"{group}[{i}]"] = [(weights[0].tensor, slice(i * rows // 3, (i + 1) * rows // 3))]
        elif all(len(set(_plain(w))) == 1 for w in weights):
            found |= {w.name: [(w.tensor, slice(None))] for w in weights}
        else:  # one for each head
            found[group] = [(w.tensor, slice(None)) for w in weights]
    return found


def changed(case: Case, name: str, weights: str, factor: float) -> nn.Module:
    """A copy with "identity" or "random" weights, one map of which is multiplied by a factor."""
    module = duplicate(case.module)
    parts = with_parts(module)[name]  # before, for a plain tensor that is the identity looks like a mask
    case.fill(module, weights)
    with torch.no_grad():
        for tensor, rows in parts:
            tensor[rows] *= factor
    return module


def _effective(case: Case, name: str, inputs: tuple[Tensor, ...], base: Tensor) -> bool:
    with torch.no_grad():
        return not same(ask(changed(case, name, "random", 1.7), case.style, *inputs).output, base)


def uses(case: Case, name: str, inputs: tuple[Tensor, ...]) -> tuple[int, int] | None:
    """What doubling a map does: by which factors the scores and the values grow. None: neither."""
    with torch.no_grad():
        try:
            answer = ask(changed(case, name, "identity", 2.0), case.style, *inputs)
        except Trouble:
            return None
        seen = after(inputs, answer)
        for scores in (1, 2, 4):
            for values in (1, 2, 4):
                wanted, _ = reference(case.suspect, case.frame, *seen, gains=(scores, values))
                if same(answer.output, wanted):
                    return scores, values
    return None


def _common(paths: list[list[str]]) -> str:
    """The part of the module in which all of these lie."""
    levels = itertools.takewhile(lambda names: len(set(names)) == 1, zip(*paths, strict=False))
    return ".".join(names[0] for names in levels)


def _unused(unused: list[str], roles: dict[str, tuple[int, int] | None], every: set[str]) -> list[Finding]:
    if not unused:
        return []
    names = " and ".join(short(n) for n in unused)
    part = _common([n.split(".")[:-1] for n in unused])
    whole = part and len(unused) > 1 and set(unused) == {n for n in every if n.startswith(f"{part}.")}
    doubled = [n for n, r in roles.items() if r in ((4, 1), (2, 2), (1, 4), (4, 2))]
    if whole:
        names, kind, rest = part, "layer unused", "another stands in its place"
    elif doubled:
        what = {(4, 1): "queries and keys", (2, 2): "scores and values", (1, 4): "values and the output"}
        job = what.get(roles[doubled[0]], "queries, keys and values")
        kind, rest = "one projection used twice", f"{short(doubled[0])} does its work: it makes {job} alike"
    elif any(re.search(r"out|proj$|w_?o|c_proj|unify|fc", short(n).lower()) for n in unused):
        kind, rest = "output map not applied", "no other map takes its place"
    else:
        kind, rest = "projection unused", "it is made and never used"
    sentence = f"{names} {'get' if ' and ' in names else 'gets'} no gradient: nothing depends on it; {rest}."
    cure = (
        f"Look where forward should use {names}: another layer's name stands there, or a result is "
        "thrown away."
    )
    shown = "the gradient of a random sum of the outputs, and the output with the map multiplied by 1.7"
    return [Finding(kind, FAULT, sentence, cure, shown)]


def _cut(cut: list[str], live: set[str], roles: dict[str, tuple[int, int] | None]) -> list[Finding]:
    if not cut:
        return []
    kind = _what_is_cut(cut, live, roles)
    names = ", ".join(short(n) for n in cut)
    sentence = f"{names}: the output depends on it, but no gradient comes back, so it never learns."
    cure = (
        "Remove .detach(), .data, .numpy(), torch.tensor(...) and torch.no_grad() from the way between "
        "these layers and the output."
    )
    shown = "the gradient of a random sum of the outputs"
    return [Finding(kind, FAULT, sentence, cure, shown)]


def _what_is_cut(cut: list[str], live: set[str], roles: dict[str, tuple[int, int] | None]) -> str:
    if set(cut) == live or (len(cut) >= 3 and len(live - set(cut)) <= 1):
        return "gradients cut"
    jobs = {roles.get(n) for n in cut}
    if None not in jobs and jobs:
        if all(scores > 1 for scores, _ in jobs):
            return "weights detached"
        if all(scores == 1 for scores, _ in jobs):
            return "values detached"
    names = " ".join(short(n).lower() for n in cut)
    return "weights detached" if len(cut) == 2 or re.search("q|k", names) else "values detached"


def short(name: str) -> str:
    """The map's name as its author calls it."""
    return name.replace(".weight", "").replace(".*", "")


def counted(case: Case) -> list[Finding]:
    """What the number of weights tells: small maps that all heads share, and no map after the heads."""
    groups = maps(case.module)
    h, width, inner = case.frame.heads, case.style.widths[0], case.frame.inner
    if h == 1 or case.suspect is None:
        return []
    square = [w for ws in groups.values() for w in ws if _plain(w) == [width // h] * 2]
    small = [w.name for w in square if isinstance(w.owner, nn.Linear) or w.tensor.ndim == 2]
    made = width * inner[0] + case.style.widths[1] * inner[1] + case.style.widths[2] * inner[2]
    held = sum(w.tensor.numel() for ws in groups.values() for w in ws if w.name not in small)
    if held >= made:
        small = []  # others make q, k and v; these mix heads, or come later
    if len(small) > 4:
        return []  # every head has its own
    total = sum(w.tensor.numel() for ws in groups.values() for w in ws)
    found = []
    if small:
        sentence = (
            f"All {h} heads use the same {width // h} by {width // h} map ({short(small[0])}): "
            f"{len(small)} small maps hold {len(small) * (width // h) ** 2} weights where "
            f"{len(small) * width**2} belong."
        )
        cure = (
            f"Map first and cut into heads then: nn.Linear({width}, {width})(x).view(B, n, {h}, "
            f"{width // h})."
        )
        shown = "the shapes of the weights; no output shows it"
        found.append(Finding("head maps shared", FAULT, sentence, cure, shown))
    needed = len(small) * (width // h) ** 2 if small else made
    if total <= needed and not (small and len(small) < 3):
        named = re.search(r"multi_?head|mha", type(case.module).__name__.lower())
        separate = any(len(ws) > 1 for ws in groups.values())
        sentence = (
            f"The heads' results are put side by side and returned: {total} weights make queries, "
            "keys and "
            f"values, none is left to mix the {h} heads"
            + ("." if named else ", unless it follows elsewhere.")
        )
        cure = (
            f"Add self.out_proj = nn.Linear({inner[2]}, {case.frame.out}) and return it of the joined heads."
        )
        shown = "the number of weights; no output shows it"
        found.append(
            Finding(
                "output map missing", FAULT if named and not separate else CONVENTION, sentence, cure, shown
            )
        )
    return found


def _plain(weight: Weight) -> list[int]:
    return [s for s in weight.tensor.shape if s != 1]


def indivisible(
    module: nn.Module, heads: int, inner: int, build: Callable[[int, int], nn.Module] | None = None
) -> tuple[list[Finding], str | None]:
    """Whether the class takes a width that its heads do not divide. Also returns why it could not be told."""
    if heads == 1:
        return [], None
    if build is None and (own := _own_head_width(module, inner // heads)):
        return [], f"indivisible widths: {own} may be the width of a head, so nothing has to divide"
    try:
        other = call(build, 13, 3) if build else _built_again(module, 13, 3)
    except Trouble as trouble:
        if "cannot be built" in str(trouble):
            return [], f"indivisible widths: {trouble}"
        return [], None
    sides = {s for w in walk(other) if w.is_map for s in w.tensor.shape}
    if 13 not in sides:
        return [], "indivisible widths: the class was built again, but not 13 features wide"
    lost = next((n for n in (12, 15, 4) if n in sides), None)
    attributes = {v for m in other.modules() for v in vars(m).values() if isinstance(v, int)}
    if lost is None and 4 not in attributes:
        return [], None
    try:
        adapt(other.eval(), 13)
    except Trouble:
        return [], None  # it stops, if late
    sentence = (
        f"13 features and 3 heads are taken without a word: each head gets {13 // 3} features, 13 is "
        "not 3 times that."
    )
    cure = (
        'Say no in __init__: if d_model % num_heads: raise ValueError("d_model must be a multiple of '
        'num_heads").'
    )
    shown = f"{type(module).__name__} built with width 13 and 3 heads"
    return [Finding("head width rounded", FAULT, sentence, cure, shown)], None


def _own_head_width(module: nn.Module, head_width: int) -> str | None:
    """The constructor's argument that equals the width of a head and is neither width nor number of heads."""
    for name, parameter in list(inspect.signature(type(module).__init__).parameters.items())[1:]:
        value = getattr(module, name, parameter.default)
        if type(value) is int and value == head_width and name not in (*WIDTH_NAMES, *HEAD_NAMES):
            return name
    return None


def _built_again(module: nn.Module, width: int, heads: int) -> nn.Module:
    """The same class in another size. Raises Trouble: from its own check, or because nobody knows how."""
    parameters = inspect.signature(type(module).__init__).parameters
    given: dict[str, Any] = {}
    for name, parameter in list(parameters.items())[1:]:
        if name in (*HEAD_WIDTHS, "d_k", "d_v", "qkv_dim"):
            raise Trouble("cannot be built again: the head's width is an argument of its own")
        if name in HEAD_NAMES:
            given[name] = heads
        elif name in (*WIDTH_NAMES, *OTHER_WIDTHS):
            given[name] = width
        elif parameter.default is not inspect.Parameter.empty or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            continue
        elif "drop" in name or name.endswith("_p") or name == "p":
            given[name] = 0.0
        elif (value := _own(module, name)) is not None:
            given[name] = value
        else:
            raise Trouble(f"cannot be built again: nothing tells its argument {name}")
    config = next((n for n in given if n in ("config", "cfg", "args")), None)
    if config:
        given[config] = _resized(given[config], width, heads)
    elif not any(n in HEAD_NAMES for n in given):
        raise Trouble("cannot be built again: no argument tells the number of heads")
    return call(type(module), **given)


def _own(module: nn.Module, name: str) -> Any:
    """What the module kept of an argument."""
    value = getattr(module, name, None)
    if value is None and name in ("config", "cfg", "args"):
        return None
    if value is None and re.search(r"len|size|block", name):
        return attribute(module, name) or 16
    return value if not isinstance(value, Tensor | nn.Module) else None


def _resized(config: Any, width: int, heads: int) -> Any:
    config = copy.copy(config)
    for names, value in ((WIDTH_NAMES, width), (HEAD_NAMES, heads)):
        for name in names:
            if hasattr(config, name):
                setattr(config, name, value)
    return config
