"""How fast live figures answer in a real browser, beside the same scenes drawn as tutorials draw them.

    python -m benchmarks.latency [--notebooks 01 03] [--frontend lab] [--moves 30] [--out docs]

For each live figure, as it stands and with every control at its last option: each slider is moved by one
option with the keyboard, and timed from the event to the painted frame that holds the last change it caused;
then it is dragged from end to end in 40 steps. `benchmarks.plain` draws the same scene in the same kernel.
Writes latency.json and latency.md. Takes some 20 minutes; the machine should have nothing else to do.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat

from benchmarks.measure import ROOT
from tests.pages import Control, Figure, NotebookPage
from tests.servers import chromium, jupyter

BARS = {  # what /docs/latency.md compares with
    "median_ms": {"default": 50, "heaviest": 80},
    "p95_ms": {"default": 100, "heaviest": 150},
    "of_plain": 0.25,
    "settle_ms": 150,
    "frames": 12,
    "blank": 0,
    "kernel_ms": 15,
    "of_full_draw": 0.35,
    "kib": 200,
}
DRAG_STEPS, PACE = 40, 0.016  # s between two moves of a drag

KERNEL = """
def _cost(figure, repeats=15):
    import time, statistics
    times = {"redraw": [], "full": []}
    for _ in range(repeats):
        for name, call in (("redraw", figure.redraw), ("full", figure._figure.canvas.draw)):
            start = time.process_time()
            call()
            times[name].append(1000 * (time.process_time() - start))
    return {name: statistics.median(values) for name, values in times.items()}
"""


def prepared(path: Path, folder: Path) -> tuple[Path, list[str]]:
    """A copy of the course whose notebook also shows the plain peers; its live figures' names."""
    for name in ("notebooks", "utils", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name, dirs_exist_ok=True)
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    names = [c.source.split("= LiveFigure(")[0].split()[-1] for c in code if "= LiveFigure(" in c.source]
    first = next(cell for cell in code if "bootstrap" in cell.metadata.get("tags", []))
    first.source += "\nfrom benchmarks import plain as peer\npeer.remember()\n" + KERNEL
    notebook.cells += [nbformat.v4.new_code_cell(f"peer.plain({name})") for name in names]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    copy = folder / "notebooks" / path.name
    nbformat.write(notebook, copy)
    return copy, names


def summary(latencies: list[float]) -> dict[str, float]:
    """Median and 95th percentile, in ms."""
    ordered = sorted(latencies)
    return {
        "n": len(ordered),
        "median_ms": round(statistics.median(ordered), 1),
        "p95_ms": round(ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))], 1),
    }


def one_move(on: NotebookPage, control: Control, sign: int) -> dict[str, float] | None:
    """One step with the keyboard; None where the control stands at its end."""
    on.page.evaluate("() => latency.reset()")
    if not control.step(sign, "keyboard"):
        return None
    on.settle()
    seen = on.page.evaluate("() => latency")
    start = max(event["time"] for event in seen["events"] if event["type"] == "keydown")
    painted = [change["painted"] for change in seen["changes"] if change["painted"]]
    return (
        {"ms": max(painted) - start, "blank": seen["blank"], "heights": seen["heights"]} if painted else None
    )


def moves(on: NotebookPage, control: Control, count: int) -> dict[str, Any]:
    """`count` single steps, to and fro between the ends."""
    sign, done, turns = 1, [], 0
    while len(done) < count + 2 and turns < 3 * count:
        move = one_move(on, control, sign)
        if move is None:
            sign, turns = -sign, turns + 1
        else:
            done.append(move)
    done = done[2:]  # the first ones warm up
    return summary([move["ms"] for move in done]) | {
        "blank": sum(move["blank"] for move in done),
        "heights": sum(move["heights"] for move in done),
    }


def drag(on: NotebookPage, figure: Figure, control: Control, name: str) -> dict[str, Any]:
    """From the first option to the last in one sweep: when the final picture stands, and is it right?"""
    control.to_end(False)
    on.settle()
    track, (x, y) = control._track(), control._grab()
    on.page.evaluate("() => latency.reset()")
    start = time.perf_counter()
    for step in range(1, DRAG_STEPS + 1):
        on.page.mouse.move(x + (track["x"] + track["width"] - x) * step / DRAG_STEPS, y)
        time.sleep(max(0.0, start + step * PACE - time.perf_counter()))
    on.page.mouse.up()
    on.settle()
    seen = on.page.evaluate("() => latency")
    last = max(event["time"] for event in seen["events"] if event["type"] == "mousemove")
    painted = sorted({change["painted"] for change in seen["changes"] if change["painted"]})
    fresh = on.kernel_says(f"__import__('hashlib').md5({name}.image.value).hexdigest()", f"{name}.redraw()")
    return {
        "settle_ms": round(max(0.0, max(painted, default=last) - last), 1),
        "frames": len(painted),
        "right": hashlib.md5(figure.picture()).hexdigest() == fresh,
        "blank": seen["blank"],
        "heights": seen["heights"],
    }


def measure_setting(
    on: NotebookPage, figure: Figure, twins: list[Control], name: str, count: int
) -> dict[str, Any]:
    """One live figure at one setting: every slider, and the plain peer's first slider."""
    on.settle()
    cost = on.kernel_says(f"_cost({name})")
    found: dict[str, Any] = {
        "kernel_ms": round(cost["redraw"], 1),
        "of_full_draw": round(cost["redraw"] / cost["full"], 2),
        "kib": round(len(figure.picture()) / 1024, 1),
        "sliders": {},
    }
    sliders = [control for control in figure.controls() if control.kind == "slider"]
    for control in sliders:
        place = on.kernel_says(f"{name}.{control.name}.index")
        options = on.kernel_says(f"len({name}.{control.name}.options)")
        one = moves(on, control, count)
        one["options"] = options
        one["drag"] = drag(on, figure, control, name)
        found["sliders"][control.name] = one
        on.kernel_says("0", f"{name}.{control.name}.index = {place}")
        on.settle()
    twin = next(t for t in twins if t.name == sliders[0].name)
    found["plain"] = moves(on, twin, max(5, count // 3))
    first = found["sliders"][sliders[0].name]
    found["of_plain"] = round(first["median_ms"] / found["plain"]["median_ms"], 2)
    return found


def measure_notebook(path: Path, frontend: str, python: str, count: int) -> dict[str, Any]:
    """Every live figure of a notebook at its two settings."""
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        private = Path(folder) / "private"
        private.mkdir()
        copy, names = prepared(path, Path(folder) / "course")
        with jupyter(python, frontend, Path(folder) / "course", private) as server:
            on = NotebookPage(browser, server, f"notebooks/{copy.name}", script=PROBE.read_text())
            on.run_all()
            assert not on.errors(), on.errors()
            figures = on.figures()
            twins = on.controls()[-sum(len(figure.controls()) for figure in figures) :]
            found: dict[str, Any] = {}
            for figure, name in zip(figures, names, strict=True):
                own, twins = twins[: len(figure.controls())], twins[len(figure.controls()) :]
                for setting in ("default", "heaviest"):
                    if setting == "heaviest":
                        on.kernel_says("0", f"peer.to_last({name})")
                    found[f"{path.stem[:2]} {name}, {setting}"] = measure_setting(
                        on, figure, own, name, count
                    )
                    print(f"{path.stem[:2]} {name}, {setting}", flush=True)
            assert not on.errors(), on.errors()
    return found


PROBE = Path(__file__).with_suffix(".js")


def missed(scene: str, found: dict[str, Any]) -> list[str]:
    """Which bars a figure misses, in words."""
    setting = scene.rsplit(", ", 1)[1]
    out = []
    for name, one in found["sliders"].items():
        for key in ("median_ms", "p95_ms"):
            if one[key] > BARS[key][setting]:
                out.append(f"{name} {key.replace('_', ' ')} {one[key]} > {BARS[key][setting]}")
        swept = one["drag"]
        if swept["settle_ms"] > BARS["settle_ms"]:
            out.append(f"{name} drag settles in {swept['settle_ms']} ms > {BARS['settle_ms']}")
        if swept["frames"] < min(BARS["frames"], one["options"] - 1):
            out.append(f"{name} drag shows {swept['frames']} frames")
        if not swept["right"]:
            out.append(f"{name}: a drag left a stale picture")
        if one["blank"] + swept["blank"] + one["heights"] + swept["heights"]:
            out.append(f"{name} blinks or jumps")
    for key in ("of_plain", "kernel_ms", "of_full_draw", "kib"):
        if found[key] > BARS[key]:
            out.append(f"{key.replace('_', ' ')} {found[key]} > {BARS[key]}")
    return out


def as_table(found: dict[str, Any]) -> str:
    """The results as a Markdown page."""
    rows = []
    for scene, one in found.items():
        sliders, drags = one["sliders"].values(), [s["drag"] for s in one["sliders"].values()]
        cells = [
            scene,
            span(s["median_ms"] for s in sliders),
            span(s["p95_ms"] for s in sliders),
            f"{one['plain']['median_ms']:.0f}",
            f"{one['of_plain']:.2f}",
            span(d["settle_ms"] for d in drags),
            span(d["frames"] for d in drags),
            f"{one['kernel_ms']:.0f}",
            f"{one['kib']:.0f}",
            "; ".join(missed(scene, one)) or "none",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return HEAD + "\n".join(rows) + "\n"


HEAD = """# How fast the live figures answer

Written by `make latency` from latency.json: real Chromium, from the event to the painted frame, in ms. Where
there are two numbers, they are of the fastest and the slowest slider. "Plain" is the same scene with
`interact` and `plt.show()` in the same run.

| live figure | median | 95th percentile | plain | ratio | drag's end to final picture | frames in a drag \
| kernel CPU | KiB | bars missed |
|---|---|---|---|---|---|---|---|---|---|
"""


def span(values: Any) -> str:
    """The smallest and the largest, or the one that is both."""
    low, high = min(values := [round(v) for v in values]), max(values)
    return f"{low}" if low == high else f"{low}–{high}"


def main(arguments: list[str]) -> int:
    """Measure, write, and tell how many figures keep every bar."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--notebooks", nargs="*", default=[""], help="the first digits of their names")
    parser.add_argument("--frontend", choices=["lab", "classic"], default="lab")
    parser.add_argument("--python", default=sys.executable, help="whose environment has the front end")
    parser.add_argument("--moves", type=int, default=30)
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    given = parser.parse_args(arguments)
    paths = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
    found: dict[str, Any] = {}
    for path in paths:
        if path.name.startswith(tuple(given.notebooks)):
            found |= measure_notebook(path, given.frontend, given.python, given.moves)
    name = "latency" if given.frontend == "lab" else "latency-classic"
    (given.out / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    (given.out / f"{name}.md").write_text(as_table(found))
    late = {scene: missed(scene, one) for scene, one in found.items()}
    for scene, words in late.items():
        print(f"{scene}: {'; '.join(words) or 'every bar kept'}")
    kept = sum(not words for words in late.values())
    print(f"{kept} of {len(late)} scenes keep every bar")
    return 0 if kept == len(late) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
