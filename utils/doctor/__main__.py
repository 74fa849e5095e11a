"""The doctor in a terminal:  python -m utils.doctor path/to/file.py:name [--kind K] [--mask keep|hide|added]

Examines a function, a module or a table of that file. A class is made without arguments, or with
--make "d_model=64, num_heads=4". Exit status: 0 no fault found, 1 a fault, 2 could not be examined.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import Any

from utils.doctor import EXAMINERS, diagnose


def main() -> int:
    """Examine what the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m utils.doctor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("patient", help="path/to/file.py:name")
    parser.add_argument("--kind", choices=EXAMINERS)
    parser.add_argument("--mask", choices=("keep", "hide", "added"))
    parser.add_argument("--make", default="", help="arguments for a class")
    options = parser.parse_args()
    path, _, name = options.patient.rpartition(":")
    if not path or not Path(path).is_file():
        parser.error(f"{options.patient!r} is not path/to/file.py:name of a file that is there")
    try:
        thing = load(Path(path), name, options.make)
        extra = {"mask": options.mask} if options.mask else {}
        report = diagnose(thing, options.kind, name=name, **extra)
    except Exception as error:
        print(f"{options.patient} could not be examined. {type(error).__name__}: {error}")
        return 2
    print(report)
    return bool(report.faults)


def load(path: Path, name: str, make: str) -> Any:
    """The thing of this name in this file; the file is run, as an import would run it."""
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        names = [n for n in vars(module) if not n.startswith("_")]
        raise AttributeError(f"there is no {name} in it; there are {', '.join(names)}")
    thing = getattr(module, name)
    return eval(f"thing({make})", vars(module) | {"thing": thing}) if isinstance(thing, type) else thing


if __name__ == "__main__":
    raise SystemExit(main())
