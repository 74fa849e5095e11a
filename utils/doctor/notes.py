"""What an examiner notes while it works, and the report that becomes of it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from utils.doctor.call import Hangs, Trouble, Unfit
from utils.doctor.report import CONVENTION, FAULT, NOT_SEPARABLE, Finding, Matrices, Report

# what an error says if arguments were missing or of another kind than the doctor guessed
OTHER_KIND = re.compile(
    "values to unpack|scalar type|not implemented for"
    "|'(int|float|bool|str|tuple|Tensor|ndarray|dtype)' object has no attribute"  # not one of its own
)


EXPECTED = {  # of each species
    "attention function": "f(query, key, value) -> output",
    "local attention": "f(query, key, value, window) -> output",
    "position encoding": "f(n, d) -> table, or f(x) -> x + code",
    "mask builder": "f(n), f(lengths, n) or f(ids) -> mask",
}


@dataclass
class Notes:
    """Findings, one of each kind, and what was and was not examined.

    certain  the arguments are surely what the patient asks for, so that any crash is its own
    """

    findings: list[Finding] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)
    not_tried: list[str] = field(default_factory=list)
    certain: bool = False

    def fault(
        self, kind: str, sentence: str, cure: str = "", shown_by: str = "", *evidence: Matrices
    ) -> None:
        """Note something that is wrong whatever was meant."""
        self.add(Finding(kind, FAULT, sentence, cure, shown_by, evidence))

    def convention(
        self, kind: str, sentence: str, cure: str = "", shown_by: str = "", *evidence: Matrices
    ) -> None:
        """Note a choice that others make otherwise."""
        self.add(Finding(kind, CONVENTION, sentence, cure, shown_by, evidence))

    def cut(self, lost: list[str], mixed_only: bool) -> None:
        """Note that no gradient reaches these inputs; mixed_only: it reaches all that is mixed."""
        sentence = f"No gradient reaches {' and '.join(lost)}: nothing before it can learn."
        cure = "Look for .detach(), .data, .item(), torch.tensor(...), .numpy() or no_grad() on the way."
        self.fault("weights detached" if mixed_only else "gradient cut", sentence, cure)

    def add(self, finding: Finding) -> None:
        """Note a finding, unless its kind is there already. Two equal matrices would show nothing."""
        if not self.has(finding.kind):
            telling = tuple(m for m in finding.evidence if not alike(m.found, m.wanted))
            self.findings.append(replace(finding, evidence=telling))

    def has(self, kind: str) -> bool:
        """Was this found already?"""
        return any(finding.kind == kind for finding in self.findings)

    def drop(self, *kinds: str) -> None:
        """Take back findings that turned out to be part of another."""
        self.findings[:] = [finding for finding in self.findings if finding.kind not in kinds]

    def reword(self, kind: str, new: Callable[[Finding], Finding]) -> None:
        """Say something else of what was found."""
        self.findings[:] = [new(finding) if finding.kind == kind else finding for finding in self.findings]


def alike(found: np.ndarray, wanted: np.ndarray) -> bool:
    """Whether two matrices look the same when they are printed."""
    return found.shape == wanted.shape and np.allclose(found, wanted, atol=5e-4, equal_nan=True)


def _not_blamed(error: BaseException | None) -> bool:
    """Does the error come from arguments that the doctor guessed wrongly?"""
    return isinstance(error, TypeError) or bool(OTHER_KIND.search(str(error)))


def _how(error: BaseException) -> str:
    """The arguments of the call that ended in this error, in words; they stand in the frame of `call`."""
    trace = error.__traceback__
    kept = trace.tb_frame.f_locals if trace is not None else {}
    given = [_what(value) for value in kept.get("args", ())]
    given += [f"{name} = {_what(value)}" for name, value in kept.get("kwargs", {}).items()]
    return "; ".join(given) or "no arguments"


def _what(value: Any) -> str:
    if isinstance(value, torch.Tensor | np.ndarray):
        return f"{str(value.dtype).removeprefix('torch.')} numbers of shape {tuple(value.shape)}"
    return repr(value)


def _unclear(trouble: Trouble, species: str) -> Finding:
    """Nothing can be said of it: it is of another kind, or was not called as it wants to be."""
    if isinstance(trouble, Unfit):
        return Finding("not examined", NOT_SEPARABLE, f"{str(trouble)[:1].upper()}{str(trouble)[1:]}.")
    asked = f" Called with: {_how(trouble.__cause__)}." if trouble.__cause__ is not None else ""
    sentence = f"No way of calling it that was tried gives what is examined here: {trouble}.{asked}"
    cure = f"Wrap it as {EXPECTED.get(species, 'what is examined here')}, or say kind= if it is another."
    return Finding("does not run", NOT_SEPARABLE, sentence, cure)


def written(notes: Notes, name: str, species: str, examine: Callable[[], None]) -> Report:
    """The report after `examine` has filled the notes; a patient that does not answer is a finding too.

    No gradients are computed, and torch's random numbers go on afterwards as if nothing had happened.
    """
    began = time.perf_counter()
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            examine()
    except Hangs as trouble:
        notes.fault("hangs", f"It {trouble}.", "Look for a loop without an end.")
    except Trouble as trouble:
        if isinstance(trouble, Unfit) or (not notes.certain and _not_blamed(trouble.__cause__)):
            notes.add(_unclear(trouble, species))
            notes.not_tried.append("anything that needs an answer")
        elif trouble.__cause__ is not None:  # the patient's own error
            notes.fault("crashes", f"No input gave a result: {trouble}.")
        elif str(trouble).startswith("returns"):
            notes.fault("returns no result", f"It {trouble}.")
        else:
            notes.not_tried.append(f"anything: {trouble}")
    order = {FAULT: 0, CONVENTION: 2}
    findings = sorted(notes.findings, key=lambda finding: order.get(finding.verdict, 1))
    tried = tuple(dict.fromkeys(notes.tried))
    return Report(name, species, tuple(findings), tried, tuple(notes.not_tried), time.perf_counter() - began)
