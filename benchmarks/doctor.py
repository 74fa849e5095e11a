"""Examine known mistakes, compounds and right code:  python -m benchmarks.doctor  writes docs/doctor.md"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from torch import nn

from tests import test_doctor, test_doctor_function, test_doctor_masks, test_doctor_module
from tests import test_doctor_positions as positions
from tests import test_doctor_window as windows
from tests.doctor_patients import SINGLES, make
from utils.doctor import Report, diagnose

PAGE = Path(__file__).resolve().parent.parent / "docs" / "doctor.md"
HEAD = """# What the doctor names

Made by `python -m benchmarks.doctor`: each patient is code with one known mistake (from tests/), examined on
one thread. *Named* means that the report has a finding of this kind; *nothing else*, that no other fault is
claimed. What no input can tell without knowing what was meant is named as "not separable".

"""


def singles() -> Iterator[tuple[str, str, Callable[[], Report]]]:
    """Species, kind, and the examination of one patient."""
    for kind, fault in SINGLES:
        yield "attention function", kind, lambda fault=fault: diagnose(make(**fault), "attention")
    for kind, style in test_doctor_module.SLIPS:
        cls = test_doctor_module.slipped(
            test_doctor_module.base_of(style), *test_doctor_module.SLIPS[kind, style]
        )
        yield f"module, {style}", kind, lambda cls=cls: diagnose(cls(12, 3), "module")
    for knob, how in positions.KNOBS.items():
        table = lambda n, d, how=how: positions.table(n, d, **how)  # noqa: E731
        yield (
            "position table",
            knob.removesuffix(" by a pair"),
            lambda table=table: diagnose(table, "positions"),
        )
    for kind, (forward, keep, _) in positions.FAULTS.items():
        encoding = positions.variant(forward, keep)
        yield (
            "position module",
            kind.removesuffix(" (grown)"),
            lambda e=encoding: diagnose(e(dropout=0.1), "positions"),
        )
    for kind, how in windows.KNOBS.items():
        local = windows.causal_only(**how)
        yield "local attention", kind, lambda local=local: diagnose(local, "local", is_causal=True)
    for kind, build in test_doctor_masks.KEEP.items():
        yield "causal mask", kind, lambda build=build: diagnose(build, "mask", means="keep")
    for kind, build in test_doctor_masks.PADDING.items():
        yield "padding mask", kind.removesuffix(" (square)"), lambda build=build: diagnose(build, "mask")


def compounds() -> Iterator[tuple[str, Iterable[tuple[set[str], Callable[[], Report]]]]]:
    """What is measured, and its patients: the kinds in each, and its examination."""
    together = test_doctor_function.together
    for size, number in ((2, None), (3, 400)):
        valid = [cases for cases in itertools.combinations(SINGLES, size) if together(*cases)]
        chosen = random.Random(1).sample(valid, number or len(valid))
        yield (
            f"attention functions, {size} mistakes at once",
            [
                ({k for k, _ in cases}, lambda c=cases: diagnose(make(**together(*c)), "attention"))
                for cases in chosen
            ],
        )
    yield (
        "modules, 2 mistakes at once",
        [
            ({a[0], b[0]}, lambda cls=cls: diagnose(cls(12, 3), "module"))
            for a, b, cls in test_doctor_module.valid_pairs(7, 150)
        ],
    )


def right() -> Iterator[tuple[str, Callable[[], Report]]]:
    """Right code."""
    for thing in test_doctor_function.RIGHT:
        yield "attention function", lambda thing=thing: diagnose(thing)
    for thing, kind in test_doctor.THINGS:
        yield kind, lambda thing=thing: diagnose(thing)
    for style in test_doctor_module.STYLES:
        for width, heads in ((16, 4), (8, 1), (10, 5)):
            cls = test_doctor_module.slipped(style)
            yield "module", lambda cls=cls, w=width, h=heads: diagnose(cls(w, h), "module")
    for cls in test_doctor_module.RIGHT.values():
        thing = cls() if isinstance(cls, type) or not isinstance(cls, nn.Module) else cls
        yield "module", lambda thing=thing: diagnose(thing, "module")


def named(report: Report) -> set[str]:
    """All kinds in a report; what only the causal mask shows counts for masks."""
    kinds = {finding.kind for finding in report.findings}
    return kinds | {kind.removeprefix("causal ") for kind in kinds}


def main() -> None:
    """Write the page."""
    torch.set_num_threads(1)
    lines = ["| patient | mistake | named | verdict | nothing else | seconds |", "|---|---|---|---|---|---|"]
    count = good = alone = 0
    for species, kind, examine in singles():
        torch.manual_seed(1)
        start = time.process_time()
        report = examine()
        seconds = time.process_time() - start
        found = kind in named(report)
        verdict = next((f.verdict for f in report.findings if f.kind.removeprefix("causal ") == kind), "")
        only = set(report.kinds) <= {kind, f"causal {kind}"}
        count, good, alone = count + 1, good + found, alone + only
        yes = {True: "yes", False: "**no**"}
        lines.append(f"| {species} | {kind} | {yes[found]} | {verdict} | {yes[only]} | {seconds:.2f} |")
    summary = [f"- single mistakes: {good} of {count} named, {alone} of them with no other fault claimed"]
    for what, patients in compounds():
        hits, worst, total = 0, 0.0, 0
        for kinds, examine in patients:
            torch.manual_seed(1)
            start = time.process_time()
            hits += kinds <= named(examine())
            worst, total = max(worst, time.process_time() - start), total + 1
        summary.append(
            f"- {what}: {hits} of {total} with all kinds named ({hits / total:.1%}), at most {worst:.1f} s"
        )
    reports = [examine() for _, examine in right()]
    blamed = [report for report in reports if report.faults]
    summary.append(f"- right code: {len(blamed)} of {len(reports)} blamed")
    summary += [f"  - {report.verdict}" for report in blamed]
    PAGE.write_text(HEAD + "\n".join(summary) + "\n\n" + "\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(summary))


if __name__ == "__main__":
    main()
