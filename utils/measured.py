"""Numbers that differ from run to run, such as times: shown to the reader, never stored in a notebook."""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets as widgets
import torch


@torch.no_grad()
def race(ways: Mapping[str, Callable[[], Any]], repeats: int = 5) -> dict[str, float]:
    """Seconds of processor time that each way takes, on one thread.

    The ways take turns, and the best of all turns counts: whatever disturbs makes a program slower, never
    faster. Compare the numbers of one race with each other only.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    best = dict.fromkeys(ways, float("inf"))
    try:
        for _ in range(repeats):
            for name, way in ways.items():
                start = time.process_time()
                way()
                best[name] = min(best[name], time.process_time() - start)
    finally:
        torch.set_num_threads(threads)
    return best


class Measured:
    """A text for the last line of a cell, measured on this machine a moment ago.

    Where no kernel runs it reads: "Run this cell to measure it on your machine."
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.box = widgets.HTML(f'<pre style="line-height:1.4;margin:0">{html.escape(text)}</pre>')

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        view = {"version_major": 2, "version_minor": 0, "model_id": self.box.model_id}
        return {
            "application/vnd.jupyter.widget-view+json": view,
            "text/plain": "Run this cell to measure it on your machine.",
        }
