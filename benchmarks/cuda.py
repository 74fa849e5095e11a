"""The same forms on a GPU, from a thousand to 64 thousand tokens, until memory runs out.

Times are CUDA events, medians of a few calls; memory is the allocator's peak above the inputs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import rivals
from benchmarks.cpu import D_MODEL, HEADS, WINDOW, layers
from utils.efficient import local_attention

LENGTHS = [1024 * k for k in (1, 2, 4, 8, 16, 32, 48, 64)]
TOO_LONG = 20_000.0  # milliseconds after which a form is not tried at the next length


def sweep(records: list[dict[str, Any]]) -> None:
    """Add one record per form, dtype and length: ms, peak_bytes, predicted_bytes, out_of_memory, error."""
    for dtype in (torch.float32, torch.bfloat16):
        for name, make in FORMS.items():
            climb(name, make, dtype, records)


def climb(
    name: str,
    make: Callable[[int, torch.dtype], Callable[[], object]],
    dtype: torch.dtype,
    records: list[dict[str, Any]],
) -> None:
    """One form at growing lengths, and no further once the memory or the patience ran out."""
    for n in LENGTHS:
        record = {"form": name, "dtype": str(dtype).removeprefix("torch."), "n": n}
        record["predicted_bytes"] = dtype.itemsize * HEADS * n * n if "stored" in name else None
        record |= attempt(make, n, dtype)
        torch.cuda.empty_cache()
        records.append(record)
        print(describe(record), flush=True)
        if record["error"] or record["ms"] > TOO_LONG:
            break


def attempt(
    make: Callable[[int, torch.dtype], Callable[[], object]], n: int, dtype: torch.dtype
) -> dict[str, Any]:
    """Milliseconds and peak bytes of one form at one length, or that it did not fit."""
    try:
        call = make(n, dtype)
        call()  # warms up, and finds out whether it fits
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        peak = torch.cuda.max_memory_allocated() - before
        return {
            "ms": statistics.median(milliseconds(call) for _ in range(5)),
            "peak_bytes": peak,
            "out_of_memory": False,
            "error": "",
        }
    except torch.OutOfMemoryError as error:
        return {"ms": None, "peak_bytes": None, "out_of_memory": True, "error": str(error).split(". GPU")[0]}


def milliseconds(call: Callable[[], object]) -> float:
    """One call between two events on the GPU's own clock."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def describe(record: dict[str, Any]) -> str:
    """One line for the table."""
    head = f"{record['form']:44} {record['dtype']:9} n={record['n']:6}"
    if record["error"]:
        return f"{head}  {record['error']}"
    return f"{head}  {record['ms']:10.2f} ms  {record['peak_bytes'] / 2**20:10.1f} MiB"


def heads(n: int, dtype: torch.dtype, grad: bool = False) -> list[Tensor]:
    """Query, key and value of one sequence, (1, h, n, d_k)."""
    shape = (1, HEADS, n, D_MODEL // HEADS)
    return [torch.randn(shape, device="cuda", dtype=dtype, requires_grad=grad) for _ in range(3)]


def forward(function: Callable[..., Tensor]) -> Callable[[int, torch.dtype], Callable[[], object]]:
    """The function on three inputs, without gradients."""

    def make(n: int, dtype: torch.dtype) -> Callable[[], object]:
        inputs = heads(n, dtype)
        return lambda: function(*inputs)

    return make


def training(function: Callable[..., Tensor]) -> Callable[[int, torch.dtype], Callable[[], object]]:
    """The function and the gradients of its three inputs."""

    def make(n: int, dtype: torch.dtype) -> Callable[[], object]:
        inputs = heads(n, dtype, grad=True)
        return lambda: torch.autograd.grad(function(*inputs).sum(), inputs)

    return make


def layer(name: str) -> Callable[[int, torch.dtype], Callable[[], object]]:
    """A whole multi-head layer, without gradients."""

    def make(n: int, dtype: torch.dtype) -> Callable[[], object]:
        module = layers()[name].to("cuda", dtype).eval()
        x = torch.randn(1, n, D_MODEL, device="cuda", dtype=dtype)

        def call() -> Tensor:
            with torch.no_grad():
                return module(x)[0]

        return call

    return make


def local(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Local attention with the sweep's window."""
    return local_attention(q, k, v, WINDOW)


FORMS = {
    "textbook, scores stored": forward(rivals.textbook),
    "F.scaled_dot_product_attention": forward(F.scaled_dot_product_attention),
    f"local_attention, window {WINDOW}": forward(local),
    "textbook, scores stored, with gradients": training(rivals.textbook),
    "F.scaled_dot_product_attention, with gradients": training(F.scaled_dot_product_attention),
    f"local_attention, window {WINDOW}, with gradients": training(local),
    "MultiHeadAttention": layer("ours"),
    "nn.MultiheadAttention": layer("nn"),
}
