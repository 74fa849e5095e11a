"""Heavy cells: what a computation will need, whether it fits, and how it went.

Sizes follow the device. On a CPU, what would not fit is refused beforehand, for running out of memory
there can end the whole program. On a GPU it is tried, and what runs out of memory is caught.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

UNITS = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10}
SHARE = 0.5  # of the free memory that a computation may take on a CPU


@dataclass(frozen=True)
class Sizes:
    """What heavy cells run with on a device: sequence lengths, heads, features of a head, precision."""

    lengths: tuple[int, ...]
    heads: int
    d_k: int
    dtype: torch.dtype
    repeats: int

    def inputs(self, n: int, device: torch.device) -> list[Tensor]:
        """Random query, key and value (1, heads, n, d_k)."""
        return list(torch.randn(3, 1, self.heads, n, self.d_k, device=device, dtype=self.dtype))


def sizes(device: torch.device) -> Sizes:
    """Seconds on a CPU; on a GPU up to 64 thousand tokens."""
    if device.type == "cpu":
        return Sizes((192, 384, 768, 1536), heads=4, d_k=32, dtype=torch.float32, repeats=3)
    lengths = tuple(1024 * k for k in (1, 2, 4, 8, 16, 32, 64))
    return Sizes(lengths, heads=8, d_k=64, dtype=torch.float16, repeats=5)


@dataclass(frozen=True)
class Way:
    """One way to compute attention.

    run    query, key, value -> output
    bytes  the memory that it needs beside its inputs: (n, sizes) -> bytes
    """

    run: Callable[[Tensor, Tensor, Tensor], Tensor]
    bytes: Callable[[int, Sizes], float]


def table_bytes(n: int, sizes: Sizes) -> float:
    """Scores and weights, stored: 2 tables of heads x n x n numbers."""
    return 2.0 * sizes.heads * n * n * sizes.dtype.itemsize


def linear_bytes(n: int, sizes: Sizes) -> float:
    """The output, and a few copies of what came in."""
    return 8.0 * sizes.heads * n * sizes.d_k * sizes.dtype.itemsize


@dataclass(frozen=True)
class Outcome:
    """How one way went at one length: seconds and peak bytes, or a note that says why there are none."""

    name: str
    n: int
    predicted: float
    seconds: float | None = None
    peak: float | None = None
    note: str = ""

    def __str__(self) -> str:
        took = "" if self.seconds is None else f"{1e3 * self.seconds:10.1f} ms"
        held = "" if self.peak is None else f"   measured {amount(self.peak)}"
        return f"{self.name:10} n = {self.n:6}   predicted {amount(self.predicted)}{held} {took}{self.note}"


def amount(size: float) -> str:
    """Bytes in KiB, MiB or GiB."""
    name, unit = next(((n, u) for n, u in UNITS.items() if size >= u), ("KiB", 2**10))
    return f"{size / unit:6.1f} {name}"


def free_bytes(device: torch.device) -> float:
    """What is free on a device now; infinite where nothing tells."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = float(next(line.split()[1] for line in lines if line.startswith("MemAvailable"))) * 1024
    except (OSError, StopIteration):
        return float("inf")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # a container's own limit
        try:
            free = min(free, float(Path("/sys/fs/cgroup", name).read_text()))
        except (OSError, ValueError):
            continue
    return free


def refuse(needed: float, device: torch.device) -> str:
    """Why this much memory will not be asked for on this device; empty if it will."""
    free = free_bytes(device)
    if device.type == "cuda" or needed <= SHARE * free:
        return ""
    return f"   refused: it needs {amount(needed).strip()}, and {amount(free).strip()} are free"


def attempt(name: str, way: Way, n: int, given: Sizes, device: torch.device) -> Outcome:
    """Run one way at one length. Whatever memory does, this returns."""
    needed = way.bytes(n, given)
    if why := refuse(needed, device):
        return Outcome(name, n, needed, note=why)
    try:
        with torch.no_grad():
            inputs = given.inputs(n, device)
            return Outcome(name, n, needed, *measure(lambda: way.run(*inputs), device, given.repeats))
    except (torch.OutOfMemoryError, MemoryError):
        pass
    except RuntimeError as error:
        if "memory" not in str(error):  # a CPU's allocator has no error of its own
            raise
    inputs = None  # and outside of except, where the error still holds the tensors:
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return Outcome(name, n, needed, note="   out of memory: caught, and given back")


def measure(call: Callable[[], Any], device: torch.device, repeats: int) -> tuple[float, float | None]:
    """Seconds of the best run after a first one, and the peak of memory, where it can be measured."""
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    if device.type == "cuda":
        return best, float(torch.cuda.max_memory_allocated(device) - before)
    return best, None


def sweep(
    ways: Mapping[str, Way], device: torch.device, lengths: Sequence[int] | None = None
) -> list[Outcome]:
    """Every way at every length, with a progress bar; a way that failed is not tried at greater ones.

    lengths  by default those of the device. Interrupting (the stop button) returns what was measured so far.
    """
    given = sizes(device)
    outcomes: list[Outcome] = []
    steps = [(n, name) for n in lengths or given.lengths for name in ways]
    try:
        for n, name in tqdm(steps, leave=False, disable="TQDM_DISABLE" in os.environ):
            if not any(o.name == name and o.note for o in outcomes):
                outcomes.append(attempt(name, ways[name], n, given, device))
    except KeyboardInterrupt:
        print(f"Interrupted after {len(outcomes)} of {len(steps)} measurements.")
    return outcomes
