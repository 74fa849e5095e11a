"""How fast live figures answer in a real browser, beside the same scenes drawn as tutorials draw them.

    python -m benchmarks.latency [--notebooks 01 03] [--frontend lab] [--moves 30] [--out docs]

For each live figure, as it stands and with every control at its last option: each control is moved by one
option with the keyboard, and timed from the event to the painted frame that holds the last change it caused;
sliders are also dragged from end to end in 40 steps. A menu's options are first chosen one after the other,
which is told apart. `benchmarks.plain` draws the same scene in the same kernel. Writes latency.json and
latency.md; notebooks that are not named keep their numbers. Takes half an hour; the machine should have
nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import nbformat

from benchmarks.measure import ROOT
from tests.controls import Control, Figure
from tests.pages import NotebookPage
from tests.servers import chromium, copy_of_course, jupyter
from tests.truth import TRUTH, on_the_page

BARS = {
    "median_ms": {"default": 50, "heaviest": 80},
    "p95_ms": {"default": 100, "heaviest": 150},
    "of_plain": 0.25,
    "settle_ms": 150,
    "frames": 12,
    "kernel_ms": 15,
    "of_full_draw": 0.35,  # where a full draw takes more than kernel_ms
    "kib": 200,
}
DRAG_STEPS, PACE = 40, 0.016  # s between two moves of a drag
FEWEST = 9  # moves of each control
WARM_UP = 3  # moves that are not counted
REST = 250  # ms in which nobody asks the page anything
PROBE = Path(__file__).with_suffix(".js")
KERNEL = """
def _cost(figure):
    "Median processor ms of a redraw after a move, and of drawing the whole canvas."
    import time, statistics
    times = {"redraw": [], "full": []}
    for control in figure.controls.values():
        start = control.index
        for place in [*range(len(control.options))][:12]:
            control.index = place
            for name, call in (("redraw", figure.redraw), ("full", figure._figure.canvas.draw)):
                begin = time.process_time()
                call()
                times[name].append(1000 * (time.process_time() - begin))
        control.index = start
    return {name: statistics.median(values) for name, values in times.items()}
"""
HEAD = """# How fast the live figures answer

Written by `make latency` from latency.json: real Chromium, from the event to the painted frame, in ms.
Where there are two numbers, they are of the fastest and the slowest control. "Plain" is the same scene with
`interact` and `plt.show()`, moved the same way in the same run; the ratio is of as many moves of both.
"Least" is a slider between two pictures of the notebook's first figure that are ready beforehand: hardly
any figure can be faster. The first time that words are shown, all labels are drawn and kept: the slowest
such move of a menu or of buttons stands alone, and no bar is set for it. The kernel's processor time is of
a move and, after the stroke, of a full draw of the picture.

{bars}

| live figure | moves of each control | median | 95th percentile | first time | least | plain | ratio \
| drag's end to last picture | pictures in a drag | kernel's processor | KiB | bars missed |
|---|---|---|---|---|---|---|---|---|---|---|---|---|
"""


# -- measuring ------------------------------------------------------------------------------


def prepared(path: Path, folder: Path) -> tuple[Path, list[str]]:
    """A copy of the course whose notebook also shows the plain peers; the names of its live figures."""
    course = copy_of_course(folder)
    shutil.copytree(ROOT / "benchmarks", course / "benchmarks")
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    names = [c.source.split("= LiveFigure(")[0].split()[-1] for c in code if "= LiveFigure(" in c.source]
    first = next(cell for cell in code if "bootstrap" in cell.metadata.get("tags", []))
    first.source += "\nfrom benchmarks import plain as peer\npeer.remember()\n" + KERNEL
    for code in [*(f"peer.plain({name})" for name in names), f"peer.ready({names[0]})"]:
        notebook.cells.append(nbformat.v4.new_code_cell(code))
    nbformat.write(notebook, course / "notebooks" / path.name)
    return course, names


def one_move(on: NotebookPage, control: Control, sign: int) -> dict[str, float] | None:
    """One step with the keyboard; None where the control stands at its end."""
    before = control.shown()
    on.page.evaluate("() => latency.reset()")
    control.press(sign)
    on.page.wait_for_timeout(REST)  # whoever asks the page meanwhile delays it
    on.settle()
    if control.shown() == before:
        return None
    seen = on.page.evaluate("() => latency")
    chosen = "change" if control.kind == "menu" else "keydown"  # a menu's list is opened with keys of its own
    start = max(event["time"] for event in seen["events"] if event["type"] == chosen)
    painted = max(change["painted"] for change in seen["changes"])
    return {"ms": painted - start, "blank": seen["blank"], "heights": seen["heights"]}


def moves(on: NotebookPage, control: Control, count: int) -> list[dict[str, float]]:
    """`count` single steps, to and fro between the ends."""
    sign, done, turns = 1, [], 0
    while len(done) < count + WARM_UP and turns < 3 * count:
        move = one_move(on, control, sign)
        if move is None:
            sign, turns = -sign, turns + 1
        else:
            done.append(move)
    return done[WARM_UP:]


def first_visits(on: NotebookPage, control: Control, name: str) -> list[float]:
    """The ms that each option of a menu or of buttons takes when it is chosen for the first time."""
    control.to_end(False)
    on.kernel_says("0", f"{name}._backgrounds.clear()")
    on.settle()
    found = []
    while move := one_move(on, control, 1):
        found.append(move["ms"])
    return found


def drag(on: NotebookPage, figure: Figure, control: Control) -> dict[str, Any]:
    """From the first option to the last in one sweep: when the final picture stands, and is it right?"""
    control.to_end(False)
    on.settle()
    track, (x, y) = control.track(), control.grab()
    on.page.evaluate("() => latency.reset()")
    start = time.perf_counter()
    for step in range(1, DRAG_STEPS + 1):
        on.page.mouse.move(x + (track["x"] + track["width"] - x) * step / DRAG_STEPS, y)
        time.sleep(max(0.0, start + step * PACE - time.perf_counter()))
    on.page.mouse.up()
    on.settle()
    seen, shown = on.page.evaluate("() => latency"), on_the_page(figure)
    last = max(event["time"] for event in seen["events"] if event["type"] == "mousemove")
    painted = max((change["painted"] for change in seen["changes"]), default=last)
    labels = {one.name: one.shown() for one in figure.controls()}
    return {
        "settle_ms": round(max(0.0, painted - last), 1),
        "frames": len({change["painted"] for change in seen["changes"] if change["picture"]}),
        "right": shown == on.kernel_says(f"_truth({labels!r})", TRUTH),
        "blank": seen["blank"],
        "heights": seen["heights"],
    }


def measure_control(
    on: NotebookPage, figure: Figure, control: Control, name: str, count: int
) -> dict[str, Any]:
    """Single moves and, of a slider, a drag; it is put back after each."""
    trait = f"{name}.{control.name}"
    place, options = on.kernel_says(f"({trait}.index, len({trait}.options))")
    visits = [] if control.kind == "slider" else first_visits(on, control, name)
    done = moves(on, control, count)
    ordered = sorted(move["ms"] for move in done)
    found = {
        "kind": control.kind,
        "options": options,
        "n": len(ordered),
        "median_ms": round(statistics.median(ordered), 1),
        "p95_ms": round(ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))], 1),
        "first_visits_ms": [round(ms, 1) for ms in visits],
        "paired_ms": [round(move["ms"], 1) for move in done[: count // 3]],
        "blank": sum(move["blank"] for move in done),
        "heights": sum(move["heights"] for move in done),
    }
    on.kernel_says("0", f"{trait}.index = {place}")
    on.settle()
    if control.kind == "slider":
        found["drag"] = drag(on, figure, control)
        on.kernel_says("0", f"{trait}.index = {place}")
        on.settle()
    return found


def measure_setting(
    on: NotebookPage, figure: Figure, twins: list[Control], name: str, count: int
) -> dict[str, Any]:
    """One live figure at one setting: every control, and the plain peer's first slider (or menu)."""
    on.settle()
    found: dict[str, Any] = {
        "controls": {
            control.name: measure_control(on, figure, control, name, count)
            for control in figure.controls()
            if control.options() != 1
        },
        "kib": round(on.kernel_says(f"len({name}.image.value)") / 1024, 1),
    }
    cost = on.kernel_says(f"_cost({name})")
    on.settle()
    found |= {
        "kernel_ms": round(cost["redraw"], 1),
        "full_draw_ms": round(cost["full"], 1),
        "of_full_draw": round(cost["redraw"] / cost["full"], 2),
    }
    able = found["controls"]
    first = next((n for n, one in able.items() if one["kind"] == "slider"), next(iter(able)))
    twin = next(twin for twin in twins if twin.name == first)
    found["plain_ms"] = round(statistics.median(move["ms"] for move in moves(on, twin, count // 3)), 1)
    found["of_plain"] = round(statistics.median(able[first]["paired_ms"]) / found["plain_ms"], 2)
    return found


def measure_notebook(path: Path, frontend: str, python: str, count: int) -> dict[str, Any]:
    """Every live figure of a notebook at its two settings."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        course, names = prepared(path, Path(folder))
        with jupyter(python, frontend, course, Path(folder)) as server:
            on = NotebookPage(browser, server, f"notebooks/{path.name}", script=PROBE.read_text())
            on.run_all()
            assert not on.errors(), on.errors()
            figures = on.figures()
            figures.pop()  # the one that is ready
            *controls, ready = on.controls()
            least = round(statistics.median(move["ms"] for move in moves(on, ready, count)), 1)
            twins = controls[-sum(len(figure.controls()) for figure in figures) :]
            for figure, name in zip(figures, names, strict=True):
                own, twins = twins[: len(figure.controls())], twins[len(figure.controls()) :]
                for setting in ("default", "heaviest"):
                    if setting == "heaviest":
                        on.kernel_says("0", f"peer.to_last({name})")
                    scene = f"{path.stem[:2]} {name}, {setting}"
                    found[scene] = measure_setting(on, figure, own, name, count) | {"least_ms": least}
                    print(scene, "; ".join(missed(scene, found[scene])) or "every bar kept", flush=True)
            assert not on.errors(), on.errors()
    return found


# -- judging --------------------------------------------------------------------------------


def missed(scene: str, found: dict[str, Any]) -> list[str]:
    """Which bars a figure misses, in words."""
    setting = scene.rsplit(", ", 1)[1]
    out = []
    for name, one in found["controls"].items():
        for key in ("median_ms", "p95_ms"):
            if one[key] > BARS[key][setting]:
                out.append(f"{name} {key.removesuffix('_ms')} {one[key]:.0f} > {BARS[key][setting]}")
        swept = one.get("drag", {"settle_ms": 0, "frames": 99, "right": True, "blank": 0, "heights": 0})
        if swept["settle_ms"] > BARS["settle_ms"]:
            out.append(f"{name} drag settles in {swept['settle_ms']:.0f} > {BARS['settle_ms']}")
        if swept["frames"] < min(BARS["frames"], one["options"] - 1):
            out.append(f"{name} drag shows {swept['frames']} pictures")
        if not swept["right"]:
            out.append(f"a drag of {name} left a stale picture")
        if one["blank"] + swept["blank"] + one["heights"] + swept["heights"]:
            out.append(f"{name} blinks or jumps")
    asked = {
        "of_full_draw": found["full_draw_ms"] > BARS["kernel_ms"],
        "of_plain": BARS["of_plain"] * found["plain_ms"] > found["least_ms"],
    }
    for key in ("of_plain", "kernel_ms", "of_full_draw", "kib"):
        if asked.get(key, True) and found[key] > BARS[key]:
            out.append(f"{key.replace('_', ' ')} {found[key]} > {BARS[key]}")
    return out


def as_page(found: dict[str, Any]) -> str:
    """The results as a Markdown page."""
    rows = []
    for scene, one in found.items():
        controls = one["controls"].values()
        drags = [control["drag"] for control in controls if "drag" in control]
        cells = [
            scene,
            span(c["n"] for c in controls),
            span(c["median_ms"] for c in controls),
            span(c["p95_ms"] for c in controls),
            f"{max(visits):.0f}" if (visits := [ms for c in controls for ms in c["first_visits_ms"]]) else "",
            f"{one['least_ms']:.0f}",
            f"{one['plain_ms']:.0f}",
            f"{one['of_plain']:.2f}",
            span(d["settle_ms"] for d in drags),
            span(d["frames"] for d in drags),
            f"{one['kernel_ms']:.0f} – {one['full_draw_ms']:.0f}",
            f"{one['kib']:.0f}",
            "; ".join(missed(scene, one)) or "none",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return HEAD.format(bars=bars()) + "\n".join(rows) + "\n"


def bars() -> str:
    """What is asked, in words."""
    (median, heavy), (p95, heavy_p95) = (BARS[key].values() for key in ("median_ms", "p95_ms"))
    text = f"""Asked: a median of at most {median} ({heavy} at the heaviest setting), a 95th percentile of
        {p95} ({heavy_p95}), {BARS["of_plain"]} of plain where
        that is more than the least; {BARS["settle_ms"]} from the end of a drag to its
        last picture, {BARS["frames"]} pictures in it (or as many as there are options to pass);
        {BARS["kernel_ms"]} of the kernel's processor, {BARS["of_full_draw"]} of a full draw where one takes
        longer than that; {BARS["kib"]} KiB; never a stale picture, a blank one, or a page that jumps."""
    return textwrap.fill(" ".join(text.split()), 110)


def span(values: Any) -> str:
    """The smallest and the largest, or the one that is both."""
    rounded = [round(value) for value in values] or [0]
    low, high = min(rounded), max(rounded)
    return f"{low}" if low == high else f"{low}–{high}"


def summary(found: dict[str, Any]) -> str:
    """All scenes in one line."""
    controls = [one for scene in found.values() for one in scene["controls"].values()]
    kept = sum(not missed(scene, one) for scene, one in found.items())
    return (
        f"{kept} of {len(found)} scenes keep every bar; {len(controls)} controls: medians "
        f"{span(one['median_ms'] for one in controls)} ms, {min(s['of_plain'] for s in found.values())}–"
        f"{max(s['of_plain'] for s in found.values())} of plain"
    )


def main(arguments: list[str]) -> int:
    """Measure, write, and tell how many figures keep every bar."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--notebooks", nargs="*", default=[""], help="the first digits of their names")
    parser.add_argument("--frontend", choices=["lab", "classic"], default="lab")
    parser.add_argument("--python", default=sys.executable, help="whose environment has the front end")
    parser.add_argument("--moves", type=int, default=30)
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    given = parser.parse_args(arguments)
    if given.moves < FEWEST:
        parser.error(f"fewer than {FEWEST} moves say nothing of a median, nor of a ratio")
    record = given.out / ("latency.json" if given.frontend == "lab" else "latency-classic.json")
    found: dict[str, Any] = json.loads(record.read_text()) if record.exists() else {}
    for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb")):
        if path.name.startswith(tuple(given.notebooks)):
            found |= measure_notebook(path, given.frontend, given.python, given.moves)
            found = dict(sorted(found.items(), key=lambda item: item[0][:2]))
            record.write_text(json.dumps(found, indent=1) + "\n")
            record.with_suffix(".md").write_text(as_page(found))
    print(summary(found))
    return any(missed(scene, one) for scene, one in found.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
