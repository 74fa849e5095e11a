"""What a benchmark found, beside what was asked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """One measured number.

    what     the quantity, in words
    value    what was measured, in unit ("x" is a ratio)
    limit    the bar, or None where the number is for information
    at_most  whether the bar is an upper one
    """

    what: str
    value: float
    limit: float | None = None
    at_most: bool = True
    unit: str = "x"

    @property
    def verdict(self) -> str:
        """PASS or SHORT, or nothing where there is no bar."""
        if self.limit is None:
            return ""
        met = self.value <= self.limit if self.at_most else self.value >= self.limit  # NaN meets nothing
        return "PASS" if met else "SHORT"

    def record(self) -> dict[str, object]:
        """The same for a JSON file, rounded to what such a measurement can tell."""
        value = float(f"{self.value:.3g}")
        return {
            "what": self.what,
            "value": value,
            "unit": self.unit,
            "limit": self.limit,
            "verdict": self.verdict,
        }

    def __str__(self) -> str:
        bar = "" if self.limit is None else f"{'<=' if self.at_most else '>='} {self.limit:g}"
        return f"{self.verdict:5}  {self.value:10.3g} {self.unit:4} {bar:8}  {self.what}"
