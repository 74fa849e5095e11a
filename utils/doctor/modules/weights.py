"""The weights of an unknown module: find them all, and set them to values under which the answer is known.

With every map the identity and every bias 0, a multi-head attention has nothing left of its own: it must
equal attend(x, x, x) on each head's slice of x, whatever its author called the layers.
"""

from __future__ import annotations

import copy
import math
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_OWN = set(vars(nn.Module()))  # what every module carries
FUSED = re.compile(r"qkv|c_attn|in_proj|kqv")
FEED_FORWARD = re.compile(r"(mlp|ffn|ffwd|feed_?forward|\bff)\b.*weight$")
SECOND = re.compile(r"(^|\.)(linear2|fc2)\.weight$")  # of a network that gets no wider inside
TABLE = re.compile(
    r"pos(?!itionwise)|(^|[._])rel|table|alibi|cls|bias|(^|\.)b_?[qkvo]?$"
)  # and biases with two axes


@dataclass(frozen=True)
class Weight:
    """One table of numbers inside a module.

    name        its path, "heads.0.key.weight"
    tensor      the numbers, not a copy
    owner       the module that it belongs to
    registered  whether parameters(), to() and state_dict() know it
    trained     whether it is a Parameter
    """

    name: str
    tensor: Tensor
    owner: nn.Module
    registered: bool
    trained: bool

    @property
    def is_map(self) -> bool:
        """Whether it maps features to features: no bias, no norm, no table of positions."""
        real = (self.trained and self.tensor.squeeze().ndim >= 2) or self._loose_map
        return real and not isinstance(self.owner, nn.Embedding) and not TABLE.search(self.name.lower())

    @property
    def _loose_map(self) -> bool:
        """A plain tensor with all kinds of numbers in it; a mask has two values only."""
        t = self.tensor
        return not self.registered and t.is_floating_point() and t.ndim == 2 and len(t.unique()) > 2

    @property
    def group(self) -> str:
        """The path without numbers: the same for the same layer of every head."""
        return ".".join("*" if part.isdigit() else part for part in self.name.split("."))


def duplicate(module: nn.Module) -> nn.Module:
    """A copy that shares nothing with the patient. Results of earlier calls that it keeps are copied too."""
    memo: dict[int, object] = {}
    for sub in module.modules():
        for value in vars(sub).values():
            if isinstance(value, Tensor) and not value.is_leaf:  # deepcopy refuses these
                memo[id(value)] = value.detach().clone()
    made = copy.deepcopy(module, memo)
    for sub in made.modules():
        for name, value in vars(sub).items():
            if isinstance(value, types.FunctionType) and (value.__closure__ or value.__defaults__):
                vars(sub)[name] = _rebound(value, memo)
    return made


def _rebound(function: types.FunctionType, memo: dict[int, object]) -> types.FunctionType:
    """The function as it would be, had it been written in the copy: what it holds on to is the copy's."""
    cells = tuple(
        types.CellType(memo.get(id(c.cell_contents), c.cell_contents)) for c in function.__closure__ or ()
    )
    defaults = tuple(memo.get(id(d), d) for d in function.__defaults__ or ())
    made = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, defaults, cells or None
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def walk(module: nn.Module) -> list[Weight]:
    """Every parameter, and every tensor and parameter that hides in a plain list or attribute."""
    known = {id(p) for p in module.parameters()} | {id(b) for b in module.buffers()}
    found, seen = [], set()
    for weight in _walk(module, "", known):
        if id(weight.tensor) not in seen:
            seen.add(id(weight.tensor))
            found.append(weight)
    return found


def _walk(module: nn.Module, prefix: str, known: set[int]) -> Iterator[Weight]:
    for name, tensor in module._parameters.items():
        if tensor is not None:
            yield Weight(prefix + name, tensor, module, id(tensor) in known, True)
    for name, sub in module._modules.items():
        if sub is not None:
            yield from _walk(sub, f"{prefix}{name}.", known)
    for name, value in vars(module).items():
        if name not in _OWN:
            yield from _loose(value, prefix + name, module, known)


def _loose(value: object, name: str, owner: nn.Module, known: set[int]) -> Iterator[Weight]:
    if isinstance(value, Tensor):
        if value.ndim:
            yield Weight(name, value, owner, id(value) in known, isinstance(value, nn.Parameter))
    elif isinstance(value, nn.Module):
        yield from _walk(value, f"{name}.", known)
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _loose(item, f"{name}.{i}", owner, known)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _loose(item, f"{name}.{key}", owner, known)


def hidden_modules(module: nn.Module) -> list[nn.Module]:
    """The modules in plain lists, which eval() does not reach."""
    found = []
    for sub in module.modules():
        for name, value in vars(sub).items():
            if name not in _OWN and isinstance(value, list | tuple | dict):
                items = value.values() if isinstance(value, dict) else value
                found += [item for item in items if isinstance(item, nn.Module)]
    return found


def cast(module: nn.Module, dtype: torch.dtype, inputs: tuple[Tensor, ...] = ()) -> tuple[Tensor, ...]:
    """Turn the module to other numbers, plain attributes and hidden layers too; returns inputs to fit."""
    for part in (module, *hidden_modules(module)):
        part.to(dtype)
    for sub in module.modules():  # plain attributes, which to() does not reach
        for name, value in vars(sub).items():
            if isinstance(value, Tensor) and value.is_floating_point():
                setattr(sub, name, value.to(dtype))
    return tuple(x.to(dtype) for x in inputs)


def maps(module: nn.Module) -> dict[str, list[Weight]]:
    """The maps from features to features, those of several heads together, less a feed-forward network's."""
    weights = walk(module)
    apart = feed_forward(weights)
    groups: dict[str, list[Weight]] = {}
    for weight in weights:
        if weight.is_map and weight.name not in apart:
            groups.setdefault(weight.group, []).append(weight)
    return groups


def feed_forward(weights: list[Weight]) -> list[str]:
    """Names of the maps in a feed-forward network: told by name, or by shape, to more features and back.

    By shape only if enough others are left for an attention.
    """
    found = {w.group: w for w in weights if w.is_map}  # one of each kind, for there may be several blocks
    named = [g for g in found if FEED_FORWARD.search(g.lower())]
    shapes = {g: [s for s in w.tensor.shape if s != 1] for g, w in found.items()}
    apart = named or _widening(found, shapes) or [g for g in shapes if SECOND.search(g) and len(shapes) > 3]
    return [w.name for w in weights if w.is_map and w.group in apart]


def _widening(found: dict[str, Weight], shapes: dict[str, list[int]]) -> list[str]:
    """The first group or two that make more features than there were, and the one that leads back."""
    for i, (last, weight) in enumerate(found.items()):
        back = shapes[last] if _turned(weight) else shapes[last][::-1]
        if len(back) != 2 or back[1] <= back[0] or list(shapes.values()).count(shapes[last]) > 1:
            continue
        d, m = back
        there = ([m, d], [2 * m, d]) if _turned(weight) else ([d, m], [d, 2 * m])
        first = [g for g, s in shapes.items() if s in there]
        left = [g for g in shapes if g not in (*first, last)]
        behind = first and list(shapes).index(first[0]) < i  # else it is fewer features and back: low rank
        if behind and len(first) < 3 and (len(left) >= 3 or any(FUSED.search(g) for g in left)):
            return [*first, last]
    return []


def _turned(weight: Weight) -> bool:
    """Whether rows are what comes out, as nn.Linear has it."""
    return isinstance(weight.owner, nn.Linear | nn.modules.conv._ConvNd)


def eye(rows: int, columns: int) -> Tensor:
    """The identity, repeated along the longer side: i meets i modulo the shorter side."""
    short = min(rows, columns)
    return (torch.arange(rows)[:, None] % short == torch.arange(columns) % short).float()


def randomise(module: nn.Module, seed: int = 0, gain: float = 1.0) -> None:
    """Random maps that keep the size of their input (times gain), small random biases."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in walk(module):
            tensor = weight.tensor
            if weight.is_map:
                width = tensor.shape[1] if isinstance(weight.owner, nn.Linear) else max(tensor.shape[-2:])
                noise = torch.randn(tensor.shape, generator=generator)
                tensor.copy_(noise * gain / math.sqrt(width))
            elif weight.trained and (tensor.numel() == 1 or (_is_gain(weight) and tensor.abs().max() < 0.1)):
                tensor.fill_(1.0)  # a gain that starts near 0 would hide everything behind it
            elif weight.trained and tensor.ndim == 1 and not _is_gain(weight):
                tensor.copy_(0.3 * torch.randn(tensor.shape, generator=generator))


def set_identity(module: nn.Module, widths: tuple[int, ...], heads: int, fused: str = "blocks") -> None:
    """Every map the identity, every bias 0, every gain 1, every table of positions 0.

    widths  the inputs' numbers of features, by which a map is told from its transpose
    fused   how one matrix for q, k and v is laid out by the code that cuts it:
            "blocks" (3 h d_k), "head by head" (h 3 d_k), "feature by feature" (d_k 3 h)
    """
    weights = walk(module)
    apart = feed_forward(weights)
    with torch.no_grad():
        for group in maps(module).values():
            for i, weight in enumerate(group):
                tensor = weight.tensor
                tensor.copy_(_identity(weight, i, len(group), widths, heads, fused).reshape(tensor.shape))
        for weight in weights:
            if weight.trained and not weight.is_map:
                weight.tensor.fill_(1.0 if _is_gain(weight) else 0.0)
            elif weight.name in apart and weight.trained:
                weight.tensor.zero_()


def _is_gain(weight: Weight) -> bool:
    last = weight.name.rsplit(".", 1)[-1].lower()
    norm = "norm" in type(weight.owner).__name__.lower() and last == "weight"
    named = re.search(r"gamma|gain|(^|_)scale|^(g|a_2|alpha)$", last)
    return norm or bool(named) or (weight.tensor.ndim == 1 and float(weight.tensor.mean()) > 0.5)


def _identity(weight: Weight, i: int, size: int, widths: tuple[int, ...], heads: int, fused: str) -> Tensor:
    shape = [s for s in weight.tensor.shape if s != 1] or [1]
    if len(shape) < 2:
        return torch.ones(shape)
    if len(shape) > 3:
        return torch.stack([_spread(shape[1:], widths)] * shape[0])
    if len(shape) == 3:
        return _spread(shape, widths)
    rows, columns = shape
    if rows == columns:
        return eye(rows, rows)
    if size > 1 and min(shape) < max(shape):  # one small map for each head: its own slice
        across = columns > rows
        whole = eye(size * min(shape), max(shape))[i * min(shape) : (i + 1) * min(shape)]
        return whole if across else whole.T
    turned = not _turned(weight) and columns % (3 * rows) == 0
    if FUSED.search(weight.name) or rows == 3 * columns or turned:
        inner = max(rows, columns) // 3 if turned or rows % 3 == 0 else 0
        if heads > 1 and rows == columns + 2 * (columns // heads):  # one head of keys and values
            few = eye(columns // heads, columns)
            return torch.cat([eye(columns, columns), few, few])
        if inner:
            whole = _fused(inner, rows if turned else columns, heads, fused)
            return whole.T if turned else whole
    if re.search(r"kv", weight.name) and rows % 2 == 0:
        return torch.cat([eye(rows // 2, columns)] * 2)
    return eye(rows, columns)


def _fused(inner: int, width: int, heads: int, fused: str) -> Tensor:
    """Three identities in one matrix, (3 inner, width)."""
    one = eye(inner, width)
    if fused == "head by head":
        return one.view(heads, 1, -1, width).expand(-1, 3, -1, -1).reshape(3 * inner, width)
    if fused == "feature by feature":
        return one.view(heads, -1, 1, width).permute(1, 2, 0, 3).expand(-1, 3, -1, -1).reshape(-1, width)
    return torch.cat([one] * 3)


def _spread(shape: list[int], widths: tuple[int, ...]) -> Tensor:
    """The identity cut into heads and stored with three axes."""
    a, b, c = shape
    if b in widths and a * c == b:  # (h, d, d_k)
        return eye(b, b).view(b, a, c).transpose(0, 1)
    if c in widths and a * b == c:  # (h, d_k, d)
        return eye(c, c).view(a, b, c)
    if a in widths and b * c == a:  # (d, h, d_k)
        return eye(a, a).view(a, b, c)
    return torch.stack([eye(b, c)] * a)


def inner_widths(module: nn.Module, width: int) -> list[int]:
    """How many features queries, keys or values may have after their maps, the likeliest first."""
    found: list[int] = []
    wide: list[int] = []
    for group in maps(module).values():
        shape = [s for s in group[0].tensor.shape if s != 1]
        if len(shape) != 2 or width not in shape:
            continue
        other = shape[1] if shape[0] == width else shape[0]
        if other > width and isinstance(group[0].owner, nn.Linear) and shape[0] == width:
            continue  # a map back to the input's width
        name = group[0].name
        few = (other - width) // 2
        if FUSED.search(name) and few > 0 and width % few == 0 and few < width:
            found += [width, few]
        if FUSED.search(name) or other == 3 * width:
            other //= 3
        elif "kv" in name:
            other //= 2
        if len(group) > 1 and other < width:
            other *= len(group)
        found.append(other)
        if len(group) > 1 and other == width:
            wide.append(other * len(group))  # each head as wide as the input
    ordered = sorted(set(found), reverse=True) or [width]
    return [*ordered, *(w for w in dict.fromkeys(wide) if w not in ordered)]
