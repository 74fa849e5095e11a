"""Measure every bar:  python -m benchmarks [--device cuda] [--out FOLDER] [ROW ...]

Prints a table; writes bench-cpu.json or bench-cuda.json and a plot beside it into FOLDER (default: docs).
With rows named, only these are measured and nothing is written. Exit status 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path

os.environ |= {"TQDM_DISABLE": "1", "OPENBLAS_NUM_THREADS": "1"}  # numpy's threads, too, before it is loaded

import torch

from benchmarks import cpu, cuda, draw
from benchmarks.measure import resident_peak

DOCS = Path(__file__).resolve().parent.parent / "docs"


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    rows = {row.__name__: row for row in cpu.ROWS}
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(rows))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, default=DOCS)
    parser.add_argument("--memory", choices=cpu.MEMORY, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.rows) - set(rows):
        parser.error(f"there is no row {', '.join(sorted(unknown))}; there are {', '.join(rows)}")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if options.memory:
        print(resident_peak(cpu.MEMORY[options.memory]()))
        return 0
    if options.device == "cuda":
        if options.rows:
            parser.error("rows can be chosen on the CPU only")
        if not torch.cuda.is_available():
            print("There is no GPU here that this PyTorch can use.")
            return 2
        records: list[dict] = []
        try:
            cuda.sweep(records)
        finally:  # what is measured is kept
            write(options.out / "bench-cuda", machine(torch.cuda.get_device_name()), records)
        draw.climb(records, options.out / "bench-cuda.png")
        return 0
    results = []
    for name in options.rows or rows:
        try:
            for result in rows[name]():
                print(result, flush=True)
                results.append(result)
        except RuntimeError as error:
            print(f"{name} stops: {error}")
    if not options.rows:
        write(options.out / "bench-cpu", machine("CPU, one thread"), [result.record() for result in results])
        draw.bars(results, options.out / "bench-cpu.png")
    missed = [result for result in results if result.verdict == "SHORT"]
    print(f"{sum(result.verdict == 'PASS' for result in results)} bars met, {len(missed)} missed")
    return bool(missed)


def machine(device: str) -> dict[str, str]:
    """What the numbers were measured with."""
    return {"device": device, "python": platform.python_version(), "torch": torch.__version__}


def write(path: Path, made_with: dict[str, str], records: list[dict]) -> None:
    """The numbers as JSON, one record a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join("  " + json.dumps(record) for record in records)
    path.with_suffix(".json").write_text(
        f'{{"machine": {json.dumps(made_with)},\n "results": [\n{lines}\n]}}\n'
    )


if __name__ == "__main__":
    raise SystemExit(main())
