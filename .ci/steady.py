"""Do the notebooks say the same each time?  steady.py [--runs 20]  (20 minutes)

Executes every notebook so often as it is, and once more each without the processor's vector instructions
and with one thread. All that nbval compares must be what is committed: text, streams and HTML of
every cell; not pictures.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from notebooks import NOTEBOOKS, WIDGET, merged

OTHER_MACHINES = {
    "no vector instructions": {"ATEN_CPU_CAPABILITY": "default"},
    "one thread": {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},  # which most notebooks ask for anyway
}


def compared(notebook: nbformat.NotebookNode) -> list[list[object]]:
    """What of each code cell's outputs is compared."""
    return [
        [
            output.get("text") or {k: v for k, v in output.data.items() if k not in ("image/png", WIDGET)}
            if output.output_type != "error"
            else output.evalue
            for output in merged(cell.outputs)
        ]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def differences(path: Path, how: str, environment: dict[str, str]) -> list[str]:
    """The cells of one more run that say something else, in words."""
    committed = nbformat.read(path, as_version=4)
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=1200,
        allow_errors=True,
        kernel_name="python3",
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": path.parent}},
    )
    client.execute(env=os.environ | {"TQDM_DISABLE": "1"} | environment)
    pairs = zip(compared(committed), compared(notebook), strict=True)
    return [
        f"{path.name}, code cell {number}, {how}:\n  committed {old}\n  now       {new}"
        for number, (old, new) in enumerate(pairs, 1)
        if old != new
    ]


def main() -> int:
    """Run them all, print every difference and, at the end, how many there were."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    ways = {f"run {number}": {} for number in range(1, runs + 1)} | OTHER_MACHINES
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        waiting = [
            pool.submit(differences, path, how, environment)
            for how, environment in ways.items()
            for path in NOTEBOOKS
        ]
        found = [words for done in waiting for words in done.result()]
    print(*found, sep="\n")
    print(f"{len(ways)} runs of {len(NOTEBOOKS)} notebooks, {len(found)} outputs differ")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
