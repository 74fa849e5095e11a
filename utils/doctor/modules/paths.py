"""Which way numbers take from map to map, where maps of identity and counts of weights show nothing amiss.

A map applied to another's result, one map under several names, an input cut off from its gradient, and an
exponential that overflows.
"""

from __future__ import annotations

import copy
import math
import re
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from utils.doctor.call import Trouble
from utils.doctor.modules.adapt import Style, ask
from utils.doctor.modules.case import Case
from utils.doctor.modules.lineup import same
from utils.doctor.modules.weights import cast, duplicate, maps, randomise, walk
from utils.doctor.modules.wiring import short, uses, with_parts
from utils.doctor.report import FAULT, Finding

# Maps that are made for others to follow: their result may well be used in two ways
FOLLOWED = re.compile(r"latent|down|compress|_a$|shared|kv|emb|in_?proj|input")
DIRECTIONS = 4  # in which the input is moved
GAIN = 40.0  # makes scores of about a thousand, where exp overflows at 88


class Recorder(TorchFunctionMode):
    """Notes what each map is applied to and what comes out, by the memory in which the map lies."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()
        self.names = names
        self.steps: list[tuple[str, Tensor, Tensor]] = []  # name, input, output
        self.cut_off: set[str] = set()  # maps with an input that no gradient can reach

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Everything runs as it is."""
        result = func(*args, **(kwargs or {}))
        if not isinstance(result, Tensor) or place(result) in self.names:
            return result  # a map's transpose is still the map
        given = [*args, *(kwargs or {}).values()]
        flat = [
            t for a in given for t in (a if isinstance(a, list | tuple) else [a]) if isinstance(t, Tensor)
        ]
        named = [self.names[place(t)] for t in flat if place(t) in self.names]
        others = [t for t in flat if place(t) not in self.names and t.ndim > 1]  # no biases
        for name in named:
            for other in others:
                self.steps.append((name, other, result))
                if not other.requires_grad:
                    self.cut_off.add(name)
        return result


def place(tensor: Tensor) -> int:
    """The memory in which the numbers lie."""
    return tensor.untyped_storage().data_ptr()


def values(tensor: Tensor) -> Tensor:
    """The numbers in order of size: no view, transpose or copy changes them."""
    return tensor.detach().float().flatten().sort().values


class Watched(nn.Module):
    """A module with a record of its maps, of its inputs' gradients, and with inputs moved a little."""

    def __init__(self, module: nn.Module, shift: float = 0.0, seed: int = 0) -> None:
        super().__init__()
        self.module, self.shift, self.seed = module, shift, seed
        self.leaves: list[Tensor] = []
        self.record = Recorder({place(w.tensor): w.name for ws in maps(module).values() for w in ws})

    def direction(self, i: int, like: Tensor, seed: int) -> Tensor:
        """Where to the i-th input is moved."""
        return torch.randn(like.shape, generator=torch.Generator().manual_seed(100 * seed + i + 7))

    def _watch(self, x: Any) -> Any:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return x
        moved = x + self.shift * self.direction(len(self.leaves), x, self.seed) if self.shift else x
        self.leaves.append(moved.detach().requires_grad_(torch.is_grad_enabled()))
        return self.leaves[-1] * 1  # no leaf, for the module may write into it

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module answers."""
        args = tuple(self._watch(a) for a in args)
        kwargs = {name: self._watch(value) for name, value in kwargs.items()}
        with self.record:
            return self.module(*args, **kwargs)


def chained(case: Case, inputs: tuple[Tensor, ...]) -> list[Finding]:
    """Maps applied to their own result, and maps applied to the result of one that has work of its own."""
    watched = Watched(case.copy("random"))
    with torch.no_grad():
        ask(watched, case.style, *inputs)
    steps = [(name, values(given), values(out)) for name, given, out in watched.record.steps]
    pairs = {
        (a, b)
        for a, _, out in steps
        for b, given, _ in steps
        if out.shape == given.shape and torch.equal(out, given)
    }
    twice = sorted(a for a, b in pairs if a == b)
    followers: dict[str, list[str]] = {}
    for a, b in sorted(pairs):
        if a != b and a not in twice and b not in twice and _has_own_work(case, a, pairs, inputs):
            followers.setdefault(_layer(a), []).append(_layer(b))
    found = [_twice(name) for name in dict.fromkeys(_layer(n) for n in twice)]
    return found + [_chain(a, list(dict.fromkeys(bs))) for a, bs in followers.items()]


def _layer(name: str) -> str:
    """The map's name; the same for the same map of every head."""
    return short(".".join("*" if p.isdigit() else p for p in name.split(".")) if "heads." in name else name)


def _has_own_work(case: Case, name: str, pairs: set[tuple[str, str]], inputs: tuple[Tensor, ...]) -> bool:
    """Whether scores or values use a map's result directly, not only through the maps applied to it.

    Doubling a map multiplies scores and values by powers of 2; what its followers explain is taken off.
    """
    if case.suspect is None or FOLLOWED.search(short(name).lower()):
        return False
    own = _powers(case, name, inputs)
    parts = [_powers(case, b, inputs) for a, b in pairs if a == name]
    if own is None or None in parts or any(sum(p) == 0 for p in parts):
        return False
    rest = [o - sum(p[i] for p in parts) for i, o in enumerate(own)]
    return min(rest) >= 0 and max(rest) > 0


def _powers(case: Case, name: str, inputs: tuple[Tensor, ...]) -> tuple[int, int] | None:
    """How often scores and values are multiplied by a map; None where that cannot be told."""
    tensor = next(w.tensor for w in walk(case.module) if w.name == name)
    keys = [key for key, parts in with_parts(case.module).items() if any(t is tensor for t, _ in parts)]
    found = uses(case, keys[0], inputs) if len(keys) == 1 else None
    return None if found is None else (int(math.log2(found[0])), int(math.log2(found[1])))


def _twice(name: str) -> Finding:
    sentence = (
        f"{name} is applied to its own output: {name}({name}(..)) is computed where one {name}(..) belongs."
    )
    cure = f"Apply {name} once; look for a second call of it, maybe in another method."
    shown = "what goes into each map and what comes out, with random weights"
    return Finding("map applied twice", FAULT, sentence, cure, shown)


def _chain(name: str, followers: list[str]) -> Finding:
    are = "is" if len(followers) == 1 else "are"
    why = (
        f"the result of {name} stands where the input belongs" if len(followers) == 1 else "x was overwritten"
    )
    sentence = f"{' and '.join(followers)} {are} applied to the output of {name}: {why}."
    cure = f"Give each map the input itself, and keep the result of {name} under a name of its own."
    shown = "what goes into each map and what comes out, with random weights"
    return Finding("maps chained", FAULT, sentence, cure, shown)


def several_names(module: nn.Module, style: Style, inputs: tuple[Tensor, ...]) -> list[Finding]:
    """One map under several names, all in use: what was to learn different things learns one.

    A second name that nothing uses, such as an old one that is kept for others' sake, is no fault.
    """
    groups: dict[int, list[str]] = {}
    mapped = {id(w.tensor) for w in walk(module) if w.is_map}
    for path, sub in module.named_modules(remove_duplicate=False):
        if any(id(p) in mapped for p in sub.parameters()):
            groups.setdefault(id(sub), []).append(path)
    inside = tuple(f"{path}." for paths in groups.values() if len(paths) > 1 for path in paths)
    tied: dict[int, list[str]] = {}
    for path, tensor in module.named_parameters(remove_duplicate=False):
        if id(tensor) in mapped:
            tied.setdefault(id(tensor), []).append(path)
    together = [paths for paths in (*groups.values(), *tied.values()) if len(paths) > 1]
    found = []
    for paths in together:
        if paths[0].startswith(inside):
            continue  # said of what it is part of
        used = [path for path in paths if _in_use(module, path, style, inputs)]
        if len(used) > 1:
            found.append(_one_map([short(p) for p in used]))
    return found


def _in_use(module: nn.Module, path: str, style: Style, inputs: tuple[Tensor, ...]) -> bool:
    """Whether the output changes when other numbers stand under this one name."""
    one, other = duplicate(module), duplicate(module)
    randomise(one)
    randomise(other)
    holder, _, last = path.rpartition(".")
    parent = other.get_submodule(holder)
    if last in parent._modules:
        parent._modules[last] = copy.deepcopy(parent._modules[last])
        randomise(parent._modules[last], seed=9)
    else:
        parent._parameters[last] = nn.Parameter(parent._parameters[last].detach() * -0.7)
    with torch.no_grad():
        try:
            return not same(ask(other, style, *inputs).output, ask(one, style, *inputs).output)
        except Trouble:
            return False


def _one_map(names: list[str]) -> Finding:
    said = f"{', '.join(names[:-1])} and {names[-1]}"
    sentence = f"{said} are one and the same object: what they make is alike, and they learn as one."
    cure = (
        "Make a layer for each: nn.ModuleList([nn.Linear(d, d) for _ in range(4)]), not [layer] * 4; or take "
        "copy.deepcopy(layer)."
    )
    shown = "the output when other numbers stand under one of the names"
    return Finding("one map under several names", FAULT, sentence, cure, shown)


def input_gradient(case: Case, inputs: tuple[Tensor, ...]) -> list[Finding]:
    """Whether the gradient that comes back to the input is the slope that the output really has."""
    module = case.copy("random")
    try:
        inputs = cast(module, torch.float64, inputs)
        told, cut_off, nothing = _told(case, module, inputs)
    except Trouble:  # something inside insists on single numbers, which are too coarse for a slope
        return []
    true = _slopes(case, module, inputs, 1e-4)
    if told is None:
        return []
    # A gradient that is cut off is wrong in all directions; a slope that changes with the step is none
    rough = (true - _slopes(case, module, inputs, 3e-4)).abs().max()
    if not (true - told).abs().min() > 10 * rough + 1e-4 * true.norm():
        return []
    names = sorted({_layer(n) for n in cut_off})
    where = f" ({', '.join(names)})" if names else ""
    sentence = (
        f"The output depends on the input{where}, but "
        + ("no gradient comes" if nothing else "only a part of the gradient comes")
        + " back to it: the layers before this one learn from it wrongly or not at all."
    )
    cure = "Remove .detach(), .data and torch.no_grad() between the input and the layers."
    shown = "the gradient of a random sum of the outputs, and its slope when the input moves a little"
    return [Finding("input detached", FAULT, sentence, cure, shown)]


def _noise(like: Tensor) -> Tensor:
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(1))


def _told(case: Case, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor | None, set[str], bool]:
    """The slopes by backward(), maps whose input no gradient can reach, and whether there is no gradient."""
    watched = Watched(duplicate(module))
    with torch.enable_grad():
        output = ask(watched, case.style, *inputs).output
        if not output.requires_grad or not output.isfinite().all():
            return None, set(), True
        (output * _noise(output)).sum().backward()
    grads = [torch.zeros_like(x) if x.grad is None else x.grad for x in watched.leaves]
    told = torch.zeros(DIRECTIONS)
    for seed in range(DIRECTIONS):
        for i, grad in enumerate(grads):
            told[seed] += (grad * watched.direction(i, grad, seed)).sum()
    return told, watched.record.cut_off, all(not g.any() for g in grads)


def _slopes(case: Case, module: nn.Module, inputs: tuple[Tensor, ...], step: float) -> Tensor:
    """How fast a random sum of the outputs grows when the input is moved, in each direction."""
    found = []
    for seed in range(DIRECTIONS):
        ends = []
        for side in (step, -step):
            with torch.no_grad():
                moved = ask(Watched(duplicate(module), side, seed), case.style, *inputs).output
            ends.append(float((moved * _noise(moved)).sum()))
        found.append((ends[0] - ends[1]) / (2 * step))
    return torch.tensor(found)


def overflow(case: Case, inputs: tuple[Tensor, ...]) -> list[Finding]:
    """Whether softmax holds for large scores, of which one that subtracts the maximum makes nothing."""
    module = duplicate(case.module)
    finite = []
    with torch.no_grad():
        for gain in (1.0, GAIN):
            randomise(module, gain=gain)
            finite.append(bool(ask(duplicate(module), case.style, *inputs).output.isfinite().all()))
    if finite != [True, False]:
        return []
    sentence = (
        "With scores of about a thousand the output is not a number: exp overflows, for the largest "
        "score of a row is not subtracted first."
    )
    cure = "Use scores.softmax(-1); or subtract scores.amax(-1, keepdim=True) before exp."
    shown = f"random weights {GAIN:g} times as large as usual"
    return [Finding("naive softmax", FAULT, sentence, cure, shown)]
