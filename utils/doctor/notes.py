"""What an examiner notes while it works, and the report that becomes of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from utils.doctor.call import Hangs, Trouble
from utils.doctor.report import CONVENTION, FAULT, Finding, Matrices, Report


@dataclass
class Notes:
    """Findings, one of each kind, and what was and was not examined."""

    findings: list[Finding] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)
    not_tried: list[str] = field(default_factory=list)

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

    def add(self, finding: Finding) -> None:
        """Note a finding, unless its kind is there already."""
        if not self.has(finding.kind):
            self.findings.append(finding)

    def has(self, kind: str) -> bool:
        """Was this found already?"""
        return any(finding.kind == kind for finding in self.findings)

    def drop(self, *kinds: str) -> None:
        """Take back findings that turned out to be part of another."""
        self.findings = [finding for finding in self.findings if finding.kind not in kinds]


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
        if trouble.__cause__ is not None:  # the patient's own error
            notes.fault("crashes", f"No input gave a result: {trouble}.")
        elif str(trouble).startswith("returns"):
            notes.fault("returns no result", f"It {trouble}.")
        else:
            notes.not_tried.append(f"anything: {trouble}")
    order = {FAULT: 0, CONVENTION: 2}
    findings = sorted(notes.findings, key=lambda finding: order.get(finding.verdict, 1))
    tried = tuple(dict.fromkeys(notes.tried))
    return Report(name, species, tuple(findings), tried, tuple(notes.not_tried), time.perf_counter() - began)
