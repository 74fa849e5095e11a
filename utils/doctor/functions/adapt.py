"""Making an unknown attention function callable in one way: fn(q, k, v, keep, causal) -> output, weights.

Names of arguments, the number of axes, torch or numpy, tuples, and the kind of mask differ from code to code.
They are found by trying on a small, right-shaped input what the function takes.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from utils.doctor import call as caller
from utils.doctor.call import Hangs, Trouble, call, first_answer, tensor

ROLES = {
    "query": r"^(x?q|querys?|queries|q_.*|query_.*|queries_.*|[hxz]_q)$",
    "key": r"^(x?k|keys?|k_.*|key_(?!padding).*|keys_.*|[hxz]_k)$",
    "value": r"^(x?v|values?|vals?|v_.*|value_.*|values_.*|[hxz]_v)$",
}
MASK = r"^(?!.*(head|layer)_?mask).*mask|^bias$|^attn_bias$|^keep$"
ORDERS = {"tokens last": (-2, -1), "tokens first": (-3, -2), "features last but one": (-2, -1)}  # exchanged
MASKS = ("keep", "hide", "keep as 0 and 1", "added")


@dataclass(frozen=True)
class Style:
    """How a patient wants to be called.

    axes      4: (B, h, n, d), 3: (B, n, d), 2: (n, d)
    numpy     whether it takes arrays
    dtype     of the inputs
    roles     argument names for query, key and value, or None for the first three in this order
    mask      the mask's argument name, or None; a number is its place
    mask_axes "scores": as many as the scores; "keys": (B, n_k); "no heads": (B, 1 or n_q, n_k);
              "pairs": (n_q, n_k)
    mask_kind one of MASKS
    causal    the causal flag's argument name, or None
    extra     other arguments that it insists on
    order     one of ORDERS: "tokens last" (B, h, n, d), "tokens first" (B, n, h, d) or (n, B, d), "features
              last but one" (B, h, d, n)
    merged    how it joins the heads, where it does: "heads side by side" (B, n, h * d), or "by view"
    masked    whether it insists on a mask: where there is none, one that hides nothing is given
    """

    axes: int = 4
    numpy: bool = False
    dtype: torch.dtype = torch.float64
    roles: tuple[str, str, str] | None = None
    mask: str | None = None
    mask_axes: str = "scores"
    mask_kind: str = "keep"
    causal: str | None = None
    extra: tuple[tuple[str, Any], ...] = ()
    order: str = "tokens last"
    merged: str = "heads side by side"
    masked: bool = False


@dataclass(frozen=True)
class Patient:
    """A function that can be asked: how it is called, and the way to call it."""

    function: Callable
    style: Style

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None, causal: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Ask with (B, H, n, d) tensors; keep is boolean, (B, 1, 1 or n_q, n_k), True = may attend.

        returns  output (B, H, n_q, d_v) and, where it gives them, weights (B, H, n_q, n_k)
        Raises Trouble where the patient does not answer with an output of this shape.
        """
        style = self.style
        shape = tuple(drop_axes(torch.empty(*q.shape[:-1], v.shape[-1], device="meta"), style.axes).shape)
        args, kwargs = self.arguments([self.given(t.to(style.dtype)) for t in (q, k, v)], k.shape)
        if keep is not None:
            kwargs[style.mask] = self.mask(keep, q.shape[-2])
        if causal:
            kwargs[style.causal] = True
        return read(call(self.function, *args, **kwargs), shape, k.shape[-2], style)

    def arguments(
        self, inputs: list[Any], shape: tuple[int, ...], half: bool = False
    ) -> tuple[list[Any], dict[str, Any]]:
        """Query, key and value as the patient names or orders them, with what else it insists on.

        shape  (B, H, n_k, d) of the key, for a mask that hides nothing, or half of the keys
        """
        extra = dict(self.style.extra)
        if self.style.masked:
            keep = torch.ones(shape[0], 1, 1, shape[2], dtype=torch.bool)
            keep[..., : shape[2] // 2] = not half
            extra[self.style.mask] = self.mask(keep, shape[2])
        if self.style.roles:
            return [], dict(zip(self.style.roles, inputs, strict=True)) | extra
        return inputs, extra

    def answer_to(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        """Whatever the patient returns for these very tensors, not for copies.

        A mask that it insists on leaves some scores alive and hides some, whichever way it is read.
        """
        args, kwargs = self.arguments([self.given(t) for t in (q, k, v)], k.shape, half=True)
        return call(lambda: self.function(*args, **kwargs))

    def given(self, tensor_: Tensor) -> Any:
        """(B, H, n, d) in the patient's number and order of axes; the memory is shared."""
        shaped = drop_axes(tensor_, self.style.axes)
        if self.style.order != "tokens last":
            shaped = shaped.transpose(*ORDERS[self.style.order])
        return shaped.numpy() if self.style.numpy else shaped

    def mask(self, keep: Tensor, n_q: int) -> Any:
        """keep, (B, 1, 1 or n_q, n_k) with True = may attend, as the patient wants its masks."""
        style = self.style
        keep = {
            "keys": keep[:, 0, 0],
            "no heads": keep[:, 0],
            "pairs": keep[0, 0].expand(n_q, -1),
            "scores": drop_axes(keep, style.axes),
        }[style.mask_axes]
        given = {
            "keep": keep,
            "hide": ~keep,
            "keep as 0 and 1": keep.to(style.dtype),
            "added": torch.zeros(keep.shape, dtype=style.dtype).masked_fill(~keep, -torch.inf),
        }[style.mask_kind]
        return given.numpy().copy() if style.numpy else given.clone()


def drop_axes(tensor_: Tensor, axes: int) -> Tensor:
    """(B, H, n, d) as the patient has it: without heads (3 axes), without a batch too (2 axes)."""
    return {4: tensor_, 3: tensor_[:, 0], 2: tensor_[0, 0]}[axes]


def lift_axes(tensor_: Tensor) -> Tensor:
    """Back to (B, H, n, d)."""
    return {4: tensor_, 3: tensor_[:, None], 2: tensor_[None, None]}[tensor_.ndim]


def parts(answer: Any) -> list[Any]:
    """What was returned, be it one thing, a tuple, a list or a dictionary."""
    if isinstance(answer, dict):
        return list(answer.values())
    return list(answer) if isinstance(answer, tuple | list) else [answer]


def read(answer: Any, shape: tuple[int, ...], n_k: int, style: Style) -> tuple[Tensor, Tensor | None]:
    """Output and weights out of whatever was returned. Raises Trouble where no output is in it."""
    found = floats(answer)
    if style.order != "tokens last":
        found = [t.transpose(*ORDERS[style.order]) if t.ndim == len(shape) else t for t in found]
    outputs = [t for t in found if tuple(t.shape) == shape]
    if not outputs and len(shape) == 4:  # some put the heads behind the tokens, or join them
        turned = [t.transpose(1, 2) for t in found if t.ndim == 4] + split(found, shape, style.merged)
        outputs = [t for t in turned if tuple(t.shape) == shape]
    if not outputs:
        shapes = ", ".join(str(tuple(t.shape)) for t in found) or type(answer).__name__
        if len(found) == 1 and tuple(found[0].shape) == (*shape[:-1], n_k):
            raise Trouble(f"returns {shapes}, the weights: the output, {shape}, is weights @ value")
        raise Trouble(f"returns {shapes}, but the output should have shape {shape}")
    weights = [t for t in found if t is not outputs[0] and tuple(t.shape) == (*shape[:-1], n_k)]
    return lift_axes(outputs[0]), lift_axes(weights[0]) if weights else None


def floats(answer: Any) -> list[Tensor]:
    """The arrays of floats in whatever was returned, in float64."""
    arrays = [t for t in map(tensor, parts(answer)) if t is not None]
    return [t.detach().double() for t in arrays if t.is_floating_point()]


def split(found: list[Tensor], shape: tuple[int, ...], merged: str) -> list[Tensor]:
    """Outputs (B, n, h * d) with their heads on an axis of their own again: (B, h, n, d)."""
    batch, heads, n, width = shape
    joined = [t for t in found if tuple(t.shape) == (batch, n, heads * width)]
    if merged == "by view":
        return [t.reshape(shape) for t in joined]
    return [t.reshape(batch, n, heads, width).transpose(1, 2) for t in joined]


def styles(function: Callable) -> Iterator[Style]:
    """Every way in which a patient with this signature may want to be called, the likeliest first."""
    base = signature(function)
    dtypes = (torch.float64, torch.float32)
    orders = ("tokens last", "tokens first")
    for order, numpy, axes, dtype in itertools.product(orders, (False, True), (4, 3, 2), dtypes):
        if axes > 2 or order == "tokens last":
            yield replace(base, numpy=numpy, axes=axes, dtype=dtype, order=order)


def signature(function: Callable) -> Style:
    """What the argument names tell."""
    try:
        parameters = inspect.signature(getattr(function, "forward", function)).parameters
    except (TypeError, ValueError):  # a builtin: PyTorch's own has these names
        return Style(mask="attn_mask", causal="is_causal")
    names = [n for n, p in parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    roles = [next((n for n in names if re.match(ROLES[r], n.lower())), None) for r in ROLES]
    complete = tuple(roles) if None not in roles and len(set(roles)) == 3 else None
    mask = next((n for n in names if re.search(MASK, n.lower())), None)
    causal = next((n for n in names if "causal" in n.lower()), None)
    extra: dict[str, Any] = {}
    for name in names:
        default = parameters[name].default
        if name in (complete or names[:3]) or name in (mask, causal):
            continue
        if "dropout" in name.lower() or name.lower() in SWITCHES:
            extra |= {name: 0.0} if default is NONE else {}
        elif default is NONE:
            extra.update((name, v) for known, v in NEEDED.items() if re.fullmatch(known, name.lower()))
    if mask and parameters[mask].default is NONE:
        extra[mask] = None
    return Style(roles=complete, mask=mask, causal=causal, extra=tuple(extra.items()))


NONE = inspect.Parameter.empty
SWITCHES = ("training", "train", "is_training")
D_K, HEADS = 4, 3  # of the inputs that patients are asked with
NEEDED = {  # arguments that a patient may insist on
    "d_k|dk|d|dim|head_dim|d_head|depth": D_K,
    "d_model|embed_dim|emb_dim|hidden_size|dim_model": D_K * HEADS,
    "h|heads|num_heads|n_heads|nhead": HEADS,
    "module|self": torch.nn.Module().eval(),
    "scale|scaling": D_K**-0.5,
}


def switched_off(patient: Patient) -> Iterator[Patient]:
    """The same without dropout, as far as arguments can say so: its switch first, then its rate."""
    defaults = {p.name: p.default for p in caller.parameters(patient.function)}
    flags = {name: False for name, default in defaults.items() if name.lower() in SWITCHES}
    rates = {
        n: 0.0 for n, default in defaults.items() if "dropout" in n.lower() and isinstance(default, float)
    }
    for off in (flags, rates):
        if off:
            yield replace(patient, style=replace(patient.style, extra=(*patient.style.extra, *off.items())))


def adapt(function: Callable, probe: Callable[[int], tuple[Tensor, Tensor, Tensor]]) -> Patient:
    """The patient, as it answers to one of the styles. probe(axes) makes query, key and value for it.

    Raises Trouble that says what happened with the likeliest style, where none works.
    """

    def ask(patient: Patient) -> object:
        return patient(*probe(patient.style.axes))

    try:
        return first_answer((Patient(function, style) for style in styles(function)), ask)[0]
    except Hangs:
        raise
    except Trouble:
        insists = [style for style in styles(function) if style.mask in dict(style.extra)]
        masked = [
            Patient(function, replace(style, masked=True)) for style in insists
        ]  # none was given so far
        with contextlib.suppress(Trouble):
            return first_answer(itertools.chain(*map(mask_styles, masked)), ask)[0]
        raise


def mask_styles(patient: Patient) -> Iterator[Patient]:
    """The same patient, with every kind of mask that it may take."""
    for kind in MASKS:
        for axes in ("scores", "keys", "no heads", "pairs"):
            if patient.style.axes < {"keys": 3, "no heads": 4}.get(axes, 2):
                continue
            yield Patient(patient.function, replace(patient.style, mask_kind=kind, mask_axes=axes))


def is_role(name: str) -> bool:
    """Whether an argument of this name is a query, a key or a value."""
    return any(re.match(pattern, name.lower()) for pattern in ROLES.values())
