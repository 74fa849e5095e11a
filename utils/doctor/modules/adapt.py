"""Making an unknown attention module callable in one way: (B, n, d) in, (B, n, d) out.

The names of forward's arguments, the order of the axes, the width and the number of heads differ from code to
code. Names and attributes tell most of it; the rest is found by trying.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from utils.doctor.call import Hangs, Trouble, call
from utils.doctor.modules.weights import duplicate, maps

ROLES = {
    "query": r"^(x?_?q|querys?|queries|q_\w+|query_\w+|queries_\w+|\w+_q|target|tgt)$",
    "key": r"^(x?_?k|keys?|k_\w+|key_(?!pad)(?!mask)\w+|\w+_k)$",
    "value": r"^(x?_?v|values?|vals?|v_\w+|value_\w+|\w+_v)$",
}
CONTEXT = r"^(context|memory|ctx|xa|(x_)?kv|enc\w*|encoder\w*|cross\w*|y|source|src)$"
MASK = r"mask|valid_len|^bias$|attn_bias|^keep$"
# Masks of other things than tokens: they switch off heads or layers
FOREIGN = r"(head|layer)_?mask"
# Masks of a second sequence, of no use while there is one
SECOND = r"^(encoder|cross|memory)\w*mask"
WIDTH_NAMES = [
    "d_model", "embed_dim", "emb_dim", "embed_size", "n_embd", "hidden_size", "dim", "d_in",
    "input_dim", "model_dim", "num_hiddens", "emb", "in_channels", "in_dim", "dim_in", "d_emb",
    "embedding_dim", "features", "width", "k"
]  # fmt: skip
HEAD_NAMES = [
    "num_heads", "n_heads", "heads", "n_head", "nhead", "num_attention_heads", "head", "h", "nheads",
    "head_num", "num_head", "n_h"
]  # fmt: skip
LENGTH_NAMES = [
    "block_size", "context_length", "max_len", "seq_len", "max_seq_len", "n_ctx", "context_size"
]  # fmt: skip


@dataclass(frozen=True)
class Style:
    """How a module wants to be called.

    roles   forward's arguments for query, key and value; one name where it attends to itself only;
            two where the second gives keys and values
    axes    "bnd", "nbd", "nd", "bdn" or "bdhw": where batch, tokens and features lie
    widths  features of query, key and value
    tokens  n that it takes
    extra   other arguments that it insists on
    masks   names of arguments that may take a mask
    causal  name of the argument that asks for causality
    rectangular  whether it takes n_k different from n_q
    foreign  names of masks that hide no tokens of its input
    keeps    whether what it writes into its input is to be overlooked
    """

    roles: tuple[str, ...]
    axes: str
    widths: tuple[int, int, int]
    tokens: int = 5
    extra: tuple[tuple[str, Any], ...] = ()
    masks: tuple[str, ...] = ()
    causal: str | None = None
    rectangular: bool = False
    foreign: tuple[str, ...] = ()
    keeps: bool = False

    @property
    def itself(self) -> bool:
        """Whether there is one input, that serves as query, key and value."""
        return len(self.roles) == 1


@dataclass(frozen=True)
class Answer:
    """What a module returned: output (B, n, d), weights; and what it was given, as it was afterwards."""

    output: Tensor
    weights: Tensor | None = None
    input_after: tuple[Tensor, ...] = field(default=())
    named_after: dict[str, Any] = field(default_factory=dict)


class OneSize(Trouble):
    """The module takes one size only."""


class NoDropout(TorchFunctionMode):
    """Inside, dropout lets everything through, whatever the code asks for."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Dropout returns its input; attention's built-in dropout is 0; all else runs as it is."""
        kwargs = dict(kwargs or {})
        if func in (F.dropout, torch.dropout, F.dropout1d, F.dropout2d, F.alpha_dropout):
            return args[0] if args else kwargs["input"]
        if func is F.scaled_dot_product_attention:
            args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
            kwargs = {name: 0.0 if name == "dropout_p" else value for name, value in kwargs.items()}
        return func(*args, **kwargs)


def ask(
    module: nn.Module,
    style: Style,
    q: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    quiet: bool = True,
    **kwargs: Any,
) -> Answer:
    """The module's answer to (B, n, d) inputs; further arguments are handed on as they are.

    quiet  whether dropout is switched off by force
    Raises Trouble where no output of the right kind comes back.
    """
    k = q if k is None else k
    v = k if v is None else v
    given = [_arrange(t, style.axes) for t in (q, k, v)[: len(style.roles)]]

    def patient(*inputs: Tensor, **named: Any) -> tuple[Any, tuple[Tensor, ...], dict[str, Any]]:
        with NoDropout() if quiet else contextlib.nullcontext():
            return _invoke(module, style, inputs, named), inputs, named

    named = {**dict(style.extra), **kwargs}
    result, inputs, after = call(patient, *given, **named)
    output, weights = _read(result, style, q, k)
    seen = given if style.keeps else inputs
    return Answer(output, weights, tuple(_restore(t, style.axes) for t in seen), after)


def _invoke(module: nn.Module, style: Style, inputs: tuple[Tensor, ...], named: dict[str, Any]) -> Any:
    if style.itself:
        return module(*inputs, **named)
    return module(**dict(zip(style.roles, inputs, strict=True)), **named)


def _arrange(x: Tensor, axes: str) -> Tensor:
    if axes == "bdhw":
        return x.mT.unflatten(-1, (1, -1)).contiguous()
    return {"bnd": x, "nbd": x.transpose(0, 1), "nd": x[0], "bdn": x.mT}[axes].contiguous()


def _restore(x: Tensor, axes: str) -> Tensor:
    if axes == "bdhw":
        return x.flatten(2).mT
    if axes == "nd":
        return x[None]
    return {"bnd": x, "nbd": x.transpose(0, 1), "bdn": x.mT}[axes]


def _read(result: Any, style: Style, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor | None]:
    """Output and weights out of whatever was returned."""
    if not isinstance(result, Tensor | tuple | list | dict) and hasattr(result, "__dict__"):
        result = vars(result)  # an object with attributes
    parts = list(result.values()) if isinstance(result, dict) else result
    parts = list(parts) if isinstance(parts, tuple | list) else [parts]
    tensors = [t for t in parts if isinstance(t, Tensor) and t.is_floating_point()]
    axes = {"bdhw": 4, "nd": 2}.get(style.axes, 3)
    fits = [t for t in tensors if t.ndim == axes and _fits(_restore(t, style.axes), q, k)]
    if not fits:
        what = ", ".join(str(tuple(t.shape)) for t in tensors) or type(result).__name__
        raise Trouble(f"returns {what} for an input of shape {tuple(q.shape)}")
    best = next((t for t in fits if _restore(t, style.axes).shape[-1] == q.shape[-1]), fits[0])
    weights = [t for t in tensors if t is not best and t.shape[-2:] == (q.shape[1], k.shape[1])]
    return _restore(best, style.axes), weights[0] if weights else None


def _fits(output: Tensor, q: Tensor, k: Tensor) -> bool:
    return output.shape[0] == q.shape[0] and output.shape[1] in (q.shape[1], k.shape[1])


def adapt(module: nn.Module, width: int | None = None, batch_first: bool | None = None) -> Style:
    """How to call this module. Raises Trouble that says what happened at the likeliest attempt."""
    first: Trouble | None = None
    for style in _styles(module, width, batch_first):
        try:
            ask(duplicate(module), style, *probe(style, 3))  # a copy, for it may remember
        except Hangs:
            raise
        except Trouble as trouble:
            first = first or trouble
            continue
        return _turned(module, _wider(module, style))
    for style, batch in itertools.product(
        itertools.islice(_styles(module, width, batch_first), 4), (2, 1, 4)
    ):
        try:
            ask(duplicate(module), style, *probe(style, batch))
        except Trouble:
            continue
        raise OneSize(f"runs with {batch} sample(s) at a time and stops with 3: {first}")
    raise first or Trouble("has no weights by which its width could be told; pass d_model=")


def probe(style: Style, batch: int, tokens: int | None = None, seed: int = 0) -> tuple[Tensor, ...]:
    """Random query, key and value that this module takes."""
    generator = torch.Generator().manual_seed(seed)
    n = tokens or style.tokens
    n_k = n + 2 if style.rectangular else n
    q, k, v = (
        torch.randn(batch, m, w, generator=generator) * 0.8
        for m, w in zip((n, n_k, n_k), style.widths, strict=True)
    )
    if style.axes == "nd":
        q, k, v = q[:1], k[:1], v[:1]
    if style.itself:
        return (q,) * 3
    return (q, k, k) if len(style.roles) == 2 else (q, k, v)


def _wider(module: nn.Module, style: Style) -> Style:
    """The same style with more keys than queries, where the module takes that."""
    if style.itself:
        return style
    wider = replace(style, rectangular=True)
    try:
        ask(duplicate(module), wider, *probe(wider, 3))
    except Trouble:
        return style
    return wider


def _turned(module: nn.Module, style: Style) -> Style:
    """The same style with the inputs exchanged, where nothing but the output's length tells the queries."""
    if len(style.roles) != 2 or not style.rectangular or _known(*style.roles):
        return style
    inputs = probe(style, 3)
    if ask(duplicate(module), style, *inputs).output.shape[1] == inputs[0].shape[1]:
        return style
    q, k, _ = style.widths
    return replace(style, roles=style.roles[::-1], widths=(k, q, q))


def _known(first: str, second: str) -> bool:
    """Whether the names tell which of two inputs gives the queries."""
    told = re.match(CONTEXT, second.lower()) and second.lower() not in ("y", "source", "src")
    return bool(told or re.match(ROLES["query"], first.lower()))


def _styles(module: nn.Module, width: int | None, batch_first: bool | None) -> Iterator[Style]:
    names = signature(module)
    sequence_first = batch_first is False or (batch_first is None and declared_sequence_first(module))
    kinds = [type(m).__name__ for m in module.modules()]
    if "Conv2d" in kinds:
        orders = ["bdhw", "bnd"]
    else:
        orders = (["bdn"] if "Conv1d" in kinds else []) + (["nbd"] if sequence_first else ["bnd"]) + ["nd"]
    for d in [width] if width else widths_of(module):
        key, value = (attribute(module, *n) or d for n in (("kdim", "key_size"), ("vdim", "value_size")))
        for axes in orders:
            for tokens in lengths(module, d):
                for (roles, extra), other in itertools.product(names.calls, [d, *widths_of(module)]):
                    if len(roles) != 2 and other != d:
                        continue
                    three = (d, key, value) if len(roles) == 3 else (d, other, other)
                    second = [n for n in names.masks if len(roles) == 1 and re.search(SECOND, n.lower())]
                    masks = tuple(n for n in names.masks if n not in second)
                    foreign = (*names.foreign, *second)
                    yield Style(roles, axes, three, tokens, extra, masks, names.causal, foreign=foreign)


@dataclass(frozen=True)
class _Names:
    calls: tuple[tuple[tuple[str, ...], tuple[tuple[str, Any], ...]], ...]
    masks: tuple[str, ...]
    causal: str | None
    foreign: tuple[str, ...]


def signature(module: nn.Module) -> _Names:
    """What the names of forward's arguments tell."""
    parameters = inspect.signature(module.forward).parameters
    names = [n for n, p in parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    masks = tuple(n for n in names if re.search(MASK, n.lower()) and "causal" not in n.lower())
    foreign = tuple(n for n in masks if re.search(FOREIGN, n.lower()))
    masks = tuple(n for n in masks if n not in foreign)
    causal = next((n for n in names if re.search(r"causal", n.lower())), None)
    roles = tuple(next((n for n in names if re.match(p, n.lower())), None) for p in ROLES.values())
    calls = []
    if None not in roles and len(set(roles)) == 3:
        calls.append(roles)
    elif len(names) > 1 and (re.match(CONTEXT, names[1].lower()) or (roles[0] and (roles[1] or roles[2]))):
        calls.append((names[0], names[1]))
    plain = [n for n in names if n not in masks and n not in foreign and n != causal]
    calls.append((names[0] if names else "x",))
    needed = [n for n in plain if parameters[n].default is inspect.Parameter.empty]
    if not calls[0][1:]:
        calls += [tuple(plain[:3])] * (len(plain) >= 3) + [tuple(needed)] * (len(needed) == 2)
    return _Names(tuple((c, _insisted(parameters, names, c)) for c in calls), masks, causal, foreign)


def _insisted(parameters: Any, names: list[str], taken: tuple[str, ...]) -> tuple[tuple[str, Any], ...]:
    """Values for arguments without a default: None, and for weights to be returned True."""
    extra: list[tuple[str, Any]] = []
    for name in names:
        if name in taken:
            continue
        if re.search(r"need_weights|return_att|output_att|return_weights", name):
            extra.append((name, True))
        elif name == "average_attn_weights":
            extra.append((name, False))
        elif parameters[name].default is inspect.Parameter.empty:
            extra.append((name, False if "causal" in name else None))
    return tuple(extra)


def attribute(module: nn.Module, *names: str) -> int | None:
    """The first whole number kept under one of these names, by the module or what it is built from."""
    wanted = {_plain(name): i for i, name in reversed(list(enumerate(names)))}
    found: dict[int, int] = {}
    for sub in module.modules():
        for holder in (sub, *(getattr(sub, n, None) for n in ("config", "cfg", "args"))):
            for name, value in vars(holder).items() if hasattr(holder, "__dict__") else ():
                if type(value) is int and value > 0 and _plain(name) in wanted:
                    found.setdefault(wanted[_plain(name)], value)
    return found[min(found)] if found else None


@lru_cache(1024)
def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def widths_of(module: nn.Module) -> list[int]:
    """How many features a token may have, the likeliest first."""
    found = [attribute(module, name) for name in WIDTH_NAMES[:-1]]
    for sub in module.modules():
        if isinstance(sub, nn.Linear):
            found.append(sub.in_features)
        elif isinstance(sub, nn.Conv1d | nn.Conv2d):
            found.append(sub.in_channels)
    for group in maps(module).values():
        found += [group[0].tensor.shape[-1], group[0].tensor.shape[0], group[0].tensor.shape[-2]]
        if len(group[0].tensor.squeeze().shape) == 2 and (heads := attribute(module, *HEAD_NAMES)):
            found.append(group[0].tensor.shape[-1] * heads)
    return list(dict.fromkeys(w for w in found if w))


def lengths(module: nn.Module, width: int) -> list[int]:
    """Numbers of tokens to try: 5, but never the same as the width, for equal sizes hide mistakes."""
    own = attribute(module, *LENGTH_NAMES)
    square = [b.shape[-1] for b in module.buffers() if b.ndim > 1 and 3 < b.shape[-1] == b.shape[-2]]
    own = own or next(iter(square), None)  # of a causal mask
    likely = [n for n in (5, 6, 4) if n != width and (own is None or n <= own)]
    return [*likely[:1], *([own] if own and own <= 64 else [])]


def heads_of(module: nn.Module, inner: int) -> list[int]:
    """How many heads there may be, the likeliest first."""
    known = attribute(module, *HEAD_NAMES)
    if known:
        return [known]
    sizes = [len(g) for g in maps(module).values() if len(g) > 1]
    stacked = [g[0].tensor.shape[0] for g in maps(module).values() if g[0].tensor.squeeze().ndim == 3]
    likely = [*sizes, *stacked, 1, *range(2, inner + 1)]
    return list(dict.fromkeys(h for h in likely if inner % h == 0))


def own_mha(module: nn.Module) -> bool:
    """Whether PyTorch's own attention is inside, with tokens before samples, and nothing says it is meant."""
    if type(module).__module__.startswith("torch.nn"):
        return False
    return any(isinstance(m, nn.MultiheadAttention) and not m.batch_first for m in module.modules())


def declared_sequence_first(module: nn.Module) -> bool:
    """Whether the module says that tokens come before samples: by an attribute or as PyTorch's own class."""
    own = vars(module).get("batch_first")
    if own is not None:
        return not own
    if type(module).__module__.startswith("torch.nn"):
        return any(vars(m).get("batch_first") is False for m in module.modules())
    try:
        source = inspect.getsource(type(module).forward)
    except (OSError, TypeError):
        return False
    first = r"(n|t|l|s|seq|seq_?len|n_tokens|tgt_len|src_len|length|T|L|S)"
    unpacked = re.search(
        rf"\b{first}\s*,\s*(b|B|N|bs|bsz|batch|batch_size|n_batch)\s*,[^=\n]*=\s*\w+\.(shape|size)", source
    )
    return bool(unpacked) or bool(re.search(r"#[^\n]*\((seq\w*|n|T|L)\s*,\s*(batch\w*|B|N)\s*,", source))
