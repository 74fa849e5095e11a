"""The benchmarks' two pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.results import Result
from utils.plots import FAINT, INK, KEY, QUERY, VALUE, style


def bars(results: list[Result], path: Path) -> None:
    """Each result with a bar as a share of it: left of the line is better."""
    barred = [result for result in results if result.limit][::-1]
    shares = [r.value / r.limit if r.at_most else r.limit / max(r.value, 1e-9) for r in barred]
    with style():
        figure = Figure(figsize=(10, 0.32 * len(barred) + 1), layout="constrained")
        axes = figure.add_subplot()
        axes.barh(
            [r.what for r in barred], shares, color=[KEY if r.verdict == "PASS" else QUERY for r in barred]
        )
        axes.axvline(1, color=INK, linewidth=1)
        axes.set_xlabel("measured, as a share of the bar (left of the line: met)")
        axes.tick_params(axis="y", labelsize=8)
        figure.savefig(path, dpi=110)


def climb(records: list[dict[str, Any]], path: Path) -> None:
    """Time and memory against the number of tokens, float32, without gradients."""
    forms = {
        "textbook, scores stored": QUERY,
        "F.scaled_dot_product_attention": KEY,
        "local_attention, window 64": VALUE,
    }
    with style():
        figure = Figure(figsize=(10, 4), layout="constrained")
        time, memory = figure.subplots(1, 2)
        for form, colour in forms.items():
            mine = [r for r in records if r["form"] == form and r["dtype"] == "float32"]
            fits = [r for r in mine if not r["error"]]
            n = [r["n"] for r in fits]
            time.plot(n, [r["ms"] for r in fits], "o-", color=colour, label=form)
            memory.plot(n, [r["peak_bytes"] / 2**30 for r in fits], "o-", color=colour, label=form)
            for r in mine:
                if r["out_of_memory"]:
                    memory.axvline(r["n"], color=colour, linestyle=":")
                    memory.annotate("out of memory", (r["n"], 1e-3), rotation=90, ha="right", color=colour)
        stored = [r for r in records if r["form"] == "textbook, scores stored" and r["dtype"] == "float32"]
        memory.plot(
            [r["n"] for r in stored],
            [r["predicted_bytes"] / 2**30 for r in stored],
            "--",
            color=FAINT,
            label="one n x n matrix per head",
        )
        for axes, label in ((time, "milliseconds"), (memory, "GiB above the inputs")):
            axes.set(xscale="log", yscale="log", xlabel="tokens n", ylabel=label)
            axes.set_xscale("log", base=2)
            axes.legend(fontsize=8)
        figure.savefig(path, dpi=110)
