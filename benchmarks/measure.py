"""How time and memory are measured: ratios within one run, for a shared machine is never still."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def seconds(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Processor seconds of each call: the smallest of several rounds, in each of which every call has a turn.

    Processor time does not count the time that other programs take; the smallest is the least disturbed.
    """
    best = dict.fromkeys(calls, float("inf"))
    for round_ in range(repeats + 1):
        for name, call in calls.items():
            start = time.process_time()
            call()
            if round_:  # the first round only warms up
                best[name] = min(best[name], time.process_time() - start)
    return best


def peak_bytes(name: str) -> int:
    """How much memory a named call (see benchmarks.cpu.MEMORY) takes beside its inputs, in its own process.

    Raises RuntimeError where the process dies, for want of memory, say, and where memory cannot be measured.
    """
    command = [sys.executable, "-m", "benchmarks", "--memory", name]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(
            f"measuring the memory of {name} failed: {''.join(run.stderr.strip().splitlines()[-1:])}"
        )
    return int(run.stdout)


def resident_peak(call: Callable[[], object]) -> int:
    """Bytes of resident memory at the highest point of a call, less what was there before (Linux only)."""
    if not Path("/proc/self/clear_refs").exists():
        raise RuntimeError("memory can be measured on Linux only")
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the highest point so far
    result = call()
    peak = _status("VmHWM")
    del result
    return max(0, peak - before)


def _status(field: str) -> int:
    lines = Path(f"/proc/{os.getpid()}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))
