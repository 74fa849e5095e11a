"""Getting the table of positions out of anything: a function that makes it, or a module that adds it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from utils.doctor import call as caller
from utils.doctor.call import Hangs, Trouble, Unfit, first_answer, named, numbers, required

LENGTHS = [
    *("n", "l", "t", "s", "len", "length", "seq_len", "seq_length", "seqlen", "sequence_length", "n_ctx"),
    *("max_len", "maxlen", "max_length", "max_seq_len", "max_seq_length", "max_position", "max_positions"),
    *("pos", "position", "positions", "n_pos", "num_pos", "n_positions", "num_positions", "n_tokens"),
    *("max_position_embeddings", "context", "context_length", "block_size", "timesteps"),
]
WIDTHS = [
    *("d", "e", "c", "d_model", "dmodel", "dim", "dims", "n_dim", "model_dim", "dimension", "width", "depth"),
    *("embed_dim", "emb_dim", "embedding_dim", "embedding_size", "emb_size", "embed_size", "d_emb", "n_embd"),
    *("hidden", "hidden_size", "hidden_dim", "d_hid", "d_hidden", "num_hiddens", "features", "channels"),
]
INPUTS = [
    *("x", "input", "inputs", "inp", "src", "tensor", "tokens", "emb", "embeddings", "x_emb"),
    *("hidden_states", "token_embedding"),
]
COMMON_WIDTHS = (16, 64, 32, 128, 512, 256, 8, 768, 4, 6, 10, 12, 20, 24, 48, 96, 100, 300, 384, 1024)


def complex_numbers(value: Any) -> bool:
    """Is it an array of complex numbers?"""
    return isinstance(value, Tensor | np.ndarray) and (
        value.is_complex() if isinstance(value, Tensor) else value.dtype.kind == "c"
    )


def precision(value: Any) -> float:
    """The spacing of numbers just above 1 in this array's dtype."""
    value = value[0] if isinstance(value, tuple) and value else value
    if isinstance(value, np.ndarray):
        return float(np.finfo(value.dtype).eps) if value.dtype.kind == "f" else 1e-7
    return torch.finfo(value.dtype).eps if isinstance(value, Tensor) and value.is_floating_point() else 1e-7


# -- a function that makes the table -------------------------------------------------------------

Make = Callable[[int, int], Any]


def maker(function: Callable) -> tuple[Make, str]:
    """(n, d) -> whatever the function returns, however its arguments are called and ordered.

    Raises Trouble in the function's own words if no order of arguments gives an (n, d) table.
    """
    first: Trouble | None = None
    turned: Make | None = None
    for make in _ways(function):
        try:
            raw = make(6, 10)
            if complex_numbers(raw):
                raise Unfit(
                    "it returns complex numbers, as a rotation of queries and keys (RoPE) has them, not a "
                    "table that is added"
                )
            found = numbers(raw)
        except (Hangs, Unfit):
            raise
        except Trouble as trouble:
            first = first or trouble
            continue
        shape = None if found is None else tuple(s for s in found.shape if s != 1)
        if shape == (6, 10):
            return make, ""
        if shape == (10, 6):
            turned = turned or make  # or its arguments come in the other order, which is tried next
        if shape == (10,) and found.size == 10:
            return _row_by_row(make), "one position at a time"
        first = first or Trouble(
            f"returns {_what(found)} where a table of 6 positions and width 10 is (6, 10)"
        )
    if turned is not None:
        return lambda n, d: _turned(turned(n, d)), "transposed"
    raise first or Trouble("takes no (n, d)")


def _ways(function: Callable) -> Iterator[Make]:
    n_name, d_name = named(function, LENGTHS), named(function, WIDTHS)

    def make(n: Any, d: Any) -> Any:
        if n_name and d_name:
            return caller.call(function, **{n_name: n, d_name: d})
        return caller.call(function, n, d)

    yield make
    if not (n_name and d_name):
        yield lambda n, d: make(d, n)
    yield lambda n, d: make(torch.arange(n), d)
    yield lambda n, d: make(torch.arange(n).float(), d)


def _row_by_row(make: Make) -> Make:
    return lambda n, d: np.stack([numbers(make(t, d)).reshape(d) for t in range(n)])


def _turned(value: Any) -> Any:
    return value.T if isinstance(value, (Tensor, np.ndarray)) else np.asarray(value).T


def _what(found: np.ndarray | None) -> str:
    return "no array of numbers" if found is None else f"shape {found.shape}"


def turns(patient: Callable) -> bool:
    """Is it a rotary encoding? It leaves zeros and the first token as they are, and changes the others."""
    needed = len(required(patient))
    for shape in ((2, 3, 7, 16), (2, 7, 16)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        try:
            zero, one = (caller.call(copied(patient), *(t,) * needed) for t in (torch.zeros(shape), x))
        except Hangs:
            raise
        except Trouble:
            continue
        zero, one = (numbers(y[0] if isinstance(y, tuple) and y else y) for y in (zero, one))
        if needed not in (1, 2) or one is None or zero is None or one.shape != shape or zero.any():
            continue
        kept = np.isclose(one, x.numpy(), atol=1e-5)
        if kept[..., 0, :].all() and not kept[..., 1:, :].all():
            return True
    return False


# -- a module that adds it ------------------------------------------------------------------------


@dataclass
class Adder:
    """A patient that takes x, with what is needed to ask it questions.

    fresh    a new copy, as if it had never been called
    width    features of a token
    dtype    of x
    axes     order of (B, n, d): "bnd", "nbd", or "nd" for a single sequence
    """

    fresh: Callable[[], Callable]
    width: int
    dtype: torch.dtype
    axes: str = "bnd"

    def __call__(self, x: Tensor, patient: Callable | None = None) -> np.ndarray:
        """f(x) for x (B, n, d), in float64 and with these axes."""
        x = self.arrange(x)
        f = patient or self.fresh()
        y = numbers(caller.call(f, x))
        if y is None or y.ndim < 2:
            raise Trouble(f"returns {_what(y)}")
        if self.axes == "nbd" and y.ndim == 3:
            y = y.transpose(1, 0, 2)
        return y[None] if self.axes == "nd" and y.ndim == 2 else y

    @property
    def eps(self) -> float:
        """The precision of its numbers."""
        return torch.finfo(self.dtype).eps

    def arrange(self, x: Tensor) -> Tensor:
        """(B, n, d) as the patient wants it."""
        x = x.to(self.dtype)
        return x.transpose(0, 1).contiguous() if self.axes == "nbd" else x[0] if self.axes == "nd" else x

    def zeros(self, n: int, b: int = 1) -> Tensor:
        """An input of zeros."""
        return torch.zeros(b, n, self.width)


def adder(patient: Callable, d_model: int | None) -> Adder:
    """How to ask this patient, or Trouble in its own words."""
    dtype, widths = _dtype(patient), [d_model] if d_model else _widths(patient)
    shapes = (shape for w in widths for shape in ((2, 7, w), (1, 7, w), (7, 2, w), (7, w)))

    def ask(shape: tuple[int, ...]) -> None:
        found = numbers(caller.call(copied(patient), torch.zeros(shape, dtype=dtype)))
        if found is None or found.ndim < 2 < len(shape):
            raise Trouble("returns no array of numbers")

    shape, _ = first_answer(shapes, ask)
    return Adder(lambda: copied(patient), shape[-1], dtype, "nd" if len(shape) == 2 else "bnd")


def by_index(patient: Callable) -> np.ndarray | None:
    """The table (n, d) of a module that takes the positions themselves, or the tokens' ids; else None.

    Ids are all alike, so that rows differ by their positions only. A module that sums tokens and positions
    shows the sum, which is no table of sines.
    """
    if not isinstance(patient, nn.Module):
        return None
    n = 47  # no width that x + pe would broadcast to
    for indices in (torch.arange(n).float(), torch.arange(n), torch.full((1, n), 3)):
        try:
            found = numbers(caller.call(copied(patient), indices))
        except Hangs:
            raise
        except Trouble:
            continue
        if found is not None and found.ndim == indices.ndim + 1 and found.shape[:-1] == indices.shape:
            return found.reshape(n, -1) if found.shape[-1] > 1 else None
    return None


def copied(patient: Callable) -> Callable:
    """A copy in eval mode; the patient itself, if it cannot be copied."""
    try:
        twin = copy.deepcopy(patient)  # of a function, this is the function itself
    except Exception:
        return patient
    return twin.eval() if isinstance(twin, nn.Module) else twin


def opened(patient: Callable) -> Callable | None:
    """A copy with 1 for each learned factor that starts at 0; None where there is none."""
    shut = [
        name for name, t in tensors(patient).items() if t.requires_grad and t.numel() == 1 and not t.any()
    ]
    twin = copied(patient)
    for name in shut:
        tensors(twin)[name].data.fill_(1.0)
    return twin if shut and twin is not patient else None


def _dtype(patient: Callable) -> torch.dtype:
    tensors = [*patient.parameters(), *patient.buffers()] if isinstance(patient, nn.Module) else []
    return next((t.dtype for t in tensors if t.is_floating_point()), torch.float32)


def tensors(patient: Callable) -> dict[str, Tensor]:
    """Every tensor that a module keeps, registered or not."""
    if not isinstance(patient, nn.Module):
        return {}
    found = dict(patient.named_parameters()) | dict(patient.named_buffers())
    for name, module in patient.named_modules():
        loose = {f"{name}.{k}".lstrip("."): v for k, v in vars(module).items() if isinstance(v, Tensor)}
        found |= loose
    return found


def _widths(patient: Callable) -> list[int]:
    """Widths to try, the likely ones first."""
    kept = vars(patient) if isinstance(patient, nn.Module) else {}
    said = [v for k, v in kept.items() if k.lower().strip("_") in WIDTHS and isinstance(v, int)]
    last = [t.shape[-1] for t in tensors(patient).values() if t.ndim and t.shape[-1] > 1]
    return list(dict.fromkeys([*said, *last, *(2 * w for w in last), *COMMON_WIDTHS]))


def build(cls: type, width: int, length: int = 64) -> nn.Module:
    """An instance of this width, without dropout. Raises Trouble if it asks for more than is known."""
    name, n_name = named(cls, WIDTHS), named(cls, LENGTHS)
    given: dict[str, Any] = {name: width} if name else {}
    given |= {n_name: length} if n_name and n_name in required(cls) else {}
    for other in required(cls):
        if other not in given:
            if "drop" not in other.lower() and other.lower() != "p":
                raise Trouble(f"its constructor wants {other}, and what that is is not known")
            given[other] = 0.0
    if name is None:
        raise Trouble("its constructor has no argument for the width")
    return caller.call(cls, **given).eval()
