"""What a class needs of a machine:  python -m benchmarks.kernels  (Linux, macOS; minutes)

Executes every notebook in two kernels that live at the same time; writes docs/kernels.json and the tables in
docs/teaching.md. "Own" is the highest resident memory less what is shared with other processes,
chiefly PyTorch's libraries. (Only Linux tells what is shared; elsewhere all is "own".) Exits with 1
if a bar is missed.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import nbformat
from nbclient import NotebookClient  # and no torch: on Linux a kernel's peak is never below its parent's

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
MARKED = re.compile(r"(?<=<!-- kernels -->\n).*?(?=<!-- /kernels -->)", re.DOTALL)
MOST_MEMORY, MOST_SECONDS = 600, 60  # MB of one kernel; processor seconds of all notebooks
SYSTEM, HEADROOM = 1000, 1.3  # MB for the system and the hub; TLJH advises 20 to 40 % more than was measured
SERVER = "from jupyterlab.labapp import LabApp as A; A.initialize_server(['--no-browser', '--allow-root'])"
PROBE = """
import json, pathlib, re, resource, sys
_used, _sizes = resource.getrusage(resource.RUSAGE_SELF), pathlib.Path("/proc/self/smaps_rollup")
_shared = re.findall(r"Shared_\\w+: +(\\d+)", _sizes.read_text()) if _sizes.exists() else []
_peak = _used.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6
_own = _peak - sum(map(int, _shared)) * 1024 / 1e6
print(json.dumps({"peak": _peak, "own": _own, "seconds": _used.ru_utime + _used.ru_stime}))
"""


def measure(path: Path) -> dict[str, float]:
    """The larger memory and the smaller (less disturbed) seconds of two kernels that run a notebook."""
    clients = [
        NotebookClient(
            nbformat.read(path, as_version=4),
            timeout=600,
            kernel_name="python3",
            extra_arguments=["--log-level=ERROR"],
            resources={"metadata": {"path": path.parent}},
        )
        for _ in range(2)
    ]
    with clients[0].setup_kernel(), clients[1].setup_kernel():
        for client in clients:
            for number, cell in enumerate(client.nb.cells):
                client.execute_cell(cell, number)
        return together([probe(client) for client in clients])


def probe(client: NotebookClient) -> str:
    """What a kernel says of itself."""
    cell = nbformat.v4.new_code_cell(PROBE)
    client.nb.cells.append(cell)
    client.execute_cell(cell, len(client.nb.cells) - 1)
    return "".join(output.text for output in cell.outputs)  # a kernel prints in as many pieces as it likes


def server() -> dict[str, float]:
    """A JupyterLab server without kernels: on a hub every student has one."""
    command = [sys.executable, "-c", f"{SERVER}\n{PROBE}"]
    return together([subprocess.run(command, capture_output=True, text=True, check=True).stdout])


def together(told: list[str]) -> dict[str, float]:
    """The largest memory and the smallest seconds of all, to a tenth."""
    found = [json.loads(text) for text in told]
    best = {"peak": max, "own": max, "seconds": min}
    return {name: round(choose(one[name] for one in found), 1) for name, choose in best.items()}


def students(gigabytes: int, kernels: int, record: dict) -> int:
    """How many students a machine holds, each with a server and that many kernels of the largest kind."""
    largest = max(record["notebooks"], key=lambda one: one["own"])
    each = HEADROOM * (record["server"]["own"] + kernels * largest["own"])
    shared = largest["peak"] - largest["own"]
    return max(0, int((1000 * gigabytes - SYSTEM - shared) / each))


def tables(record: dict) -> str:
    """The record as Markdown."""
    lines = ["| process | peak MB | own MB | CPU s |", "|---|---|---|---|"]
    for one in [*record["notebooks"], record["server"] | {"name": "JupyterLab's server"}]:
        lines.append(f"| {one['name']} | {one['peak']:.0f} | {one['own']:.0f} | {one['seconds']:.0f} |")
    lines += ["", "| machine | students with one kernel each | with two |", "|---|---|---|"]
    for size in (4, 8, 16, 32):
        lines.append(f"| {size} GB | {students(size, 1, record)} | {students(size, 2, record)} |")
    return "\n".join([*lines, "", ""])  # a blank line ends the table


def shortfalls(record: dict) -> list[str]:
    """Which bars are missed, in words."""
    large = [one for one in record["notebooks"] if one["peak"] > MOST_MEMORY]
    missed = [f"SHORT: {one['name']} takes {one['peak']:.0f} MB, over {MOST_MEMORY}" for one in large]
    seconds = sum(one["seconds"] for one in record["notebooks"])
    return missed + [f"SHORT: {seconds:.0f} CPU s in all, over {MOST_SECONDS}"] * (seconds > MOST_SECONDS)


def main() -> int:
    """Measure, write, and say whether the bars are met."""
    os.environ["TQDM_DISABLE"] = "1"
    made_with = {"python": platform.python_version(), "torch": version("torch"), "system": platform.system()}
    found = [{"name": f"notebook {path.stem[:2]}"} | measure(path) for path in NOTEBOOKS]
    record = {"machine": made_with, "notebooks": found, "server": server()}
    (ROOT / "docs" / "kernels.json").write_text(json.dumps(record, indent=1) + "\n")
    page = ROOT / "docs" / "teaching.md"
    page.write_text(MARKED.sub(lambda _: tables(record), page.read_text(encoding="utf-8")), encoding="utf-8")
    print(tables(record), *(shortfalls(record) or ["Both bars are met."]), sep="\n")
    return bool(shortfalls(record))


if __name__ == "__main__":
    raise SystemExit(main())
