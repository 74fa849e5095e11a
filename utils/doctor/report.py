"""What the doctor says: findings with their evidence, in plain text and as a table in a notebook."""

from __future__ import annotations

import html
from dataclasses import dataclass, field

import numpy as np

FAULT, CONVENTION, NOT_SEPARABLE = "fault", "convention", "not separable"
# How it begins if nothing, or an important part, was not examined
WHOLE, PART = ("anything", "the code"), ("the mask", "another result")
# Findings that say: nothing was found out
UNCLEAR = ("does not run", "not recognised", "no sinusoidal table", "not examined")
# Findings that say: a part was not found out; or ask; they are the headline where nothing is wrong otherwise
PARTLY = (
    "part not recognised",
    "mask not recognised",
    "tokens or samples first",
    "weights returned are not those used",
    "residual from the norm",
    "residual from a projection",
    "same lengths only",
    "length fixed",
)


@dataclass(frozen=True)
class Matrices:
    """Two matrices side by side: what came out, and what should have.

    what     what they hold, in words: "weights", "output", "influence of token j on token i"
    found    (n, m)
    wanted   (n, m)
    """

    what: str
    found: np.ndarray
    wanted: np.ndarray


@dataclass(frozen=True)
class Finding:
    """One thing that the doctor found.

    kind      its short name, the same for every patient: "softmax over queries"
    verdict   FAULT: wrong whatever was meant. CONVENTION: a choice that others make otherwise.
              NOT_SEPARABLE: several causes that no input can tell apart
    sentence  what it is, in one sentence
    cure      what to change, in words
    shown_by  the smallest input that shows it, what came out and what should, in words
    evidence  the same as matrices, for the eye
    """

    kind: str
    verdict: str
    sentence: str
    cure: str = ""
    shown_by: str = ""
    evidence: tuple[Matrices, ...] = ()


@dataclass(frozen=True)
class Report:
    """The outcome of one examination.

    patient   how the patient is called
    species   what it was examined as: "attention function", "module", "position encoding" ...
    findings  faults first
    tried     what was examined and found right, in words
    not_tried what could not be examined, and why
    seconds   how long it took
    """

    patient: str
    species: str
    findings: tuple[Finding, ...] = ()
    tried: tuple[str, ...] = ()
    not_tried: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    @property
    def faults(self) -> tuple[Finding, ...]:
        """The findings that are wrong whatever was meant."""
        return tuple(f for f in self.findings if f.verdict == FAULT)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The faults' short names."""
        return tuple(f.kind for f in self.faults)

    @property
    def verdict(self) -> str:
        """One sentence."""
        head = f"{self.patient} ({self.species})"
        if not self.faults:
            unclear = [f for f in self.findings if f.kind in UNCLEAR]
            partly = [f for f in self.findings if f.kind in PARTLY]
            whole, part = (
                [why for why in self.not_tried if why.startswith(starts)] for starts in (WHOLE, PART)
            )
            if unclear:
                return f"{head}: could not be judged. {unclear[0].sentence}"
            if whole:
                return f"{head}: could not be examined: {whole[0]}."
            if partly:
                return f"{head}: no fault found so far. {partly[0].sentence}"
            if part:
                return f"{head}: nothing wrong found in what could be examined."
            return f"{head}: no fault found."
        if len(self.faults) == 1:
            return f"{head}: {self.faults[0].sentence}"
        return f"{head}: {len(self.faults)} faults: {'; '.join(self.kinds)}."

    def _told(self, finding: Finding) -> str:
        """A finding's sentence, unless it is the verdict already."""
        return "" if len(self.faults) == 1 and self.faults[0] is finding else finding.sentence

    def __str__(self) -> str:
        lines = [self.verdict]
        for finding in self.findings:
            lines += ["", f"{finding.verdict.upper()}  {finding.kind}"]
            lines += [f"  {self._told(finding)}"] if self._told(finding) else []
            lines += [f"  Shown by: {finding.shown_by}"] if finding.shown_by else []
            for matrices in finding.evidence:
                lines += [f"    {line}" for line in _side_by_side(matrices)]
            lines += [f"  To change: {finding.cure}"] if finding.cure else []
        if self.tried:
            lines += ["", f"Examined and right: {'; '.join(self.tried)}."]
        lines += [f"Not examined: {why}" for why in self.not_tried]
        return "\n".join(lines)

    def _repr_mimebundle_(self, **kwargs: object) -> dict[str, str]:
        return {"text/html": self._html(), "text/plain": str(self)}

    def _html(self) -> str:
        parts = [f"<p><b>{html.escape(self.verdict)}</b></p>"]
        for finding in self.findings:
            parts.append(f"<p><b>{html.escape(finding.verdict)}: {html.escape(finding.kind)}</b></p>")
            parts.append(f"<p>{html.escape(self._told(finding))}</p>" if self._told(finding) else "")
            if finding.shown_by:
                parts.append(f"<p>Shown by: {html.escape(finding.shown_by)}</p>")
            parts += [_tables(matrices) for matrices in finding.evidence]
            if finding.cure:
                parts.append(f"<p><b>To change:</b> {html.escape(finding.cure)}</p>")
        if self.tried:
            parts.append(f"<p>Examined and right: {html.escape('; '.join(self.tried))}.</p>")
        parts += [f"<p>Not examined: {html.escape(why)}</p>" for why in self.not_tried]
        return "".join(parts)


def _side_by_side(matrices: Matrices) -> list[str]:
    """The two matrices as text, line by line, one beside the other."""
    left, right = ([_row(row) for row in m] for m in (matrices.found, matrices.wanted))
    width = max(len(f"{matrices.what}, found"), *(len(line) for line in left))
    heads = f"{matrices.what}, found".ljust(width) + "   should be"
    return [heads, *(f"{a.ljust(width)}   {b}" for a, b in zip(left, right, strict=True))]


def _row(numbers: np.ndarray) -> str:
    return " ".join(f"{x:7.3f}" for x in numbers)


def _tables(matrices: Matrices) -> str:
    cells = []
    for title, matrix in ((f"{matrices.what}, found", matrices.found), ("should be", matrices.wanted)):
        scale = max(1e-12, float(np.nanmax(np.abs(np.nan_to_num(matrix, posinf=0, neginf=0)))))
        rows = "".join(f"<tr>{''.join(_cell(x, scale) for x in row)}</tr>" for row in matrix)
        cells.append(
            f'<table style="display:inline-table;margin:0 2em .5em 0">'
            f'<caption style="white-space:nowrap;text-align:left">{html.escape(title)}</caption>'
            f"{rows}</table>"
        )
    return f"<div>{''.join(cells)}</div>"


def _cell(number: float, scale: float) -> str:
    """A cell as dark as its number is large, with a text colour that can be read on it."""
    share = min(1.0, abs(number) / scale) if np.isfinite(number) else 0.0
    colour = "white" if share > 0.765 else "black"  # either way, a contrast of 4.5 or more
    paint = f"background:rgb({int(247 - 239 * share)},{int(251 - 170 * share)},{int(255 - 99 * share)})"
    return f'<td style="{paint};color:{colour};text-align:right;padding:.3em .6em">{number:.2f}</td>'
