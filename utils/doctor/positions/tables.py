"""Which table of sines and cosines is this? Read its frequencies, then compute it again and compare.

A table is described by how its author may have written it (`Code`). The frequencies are read from
the columns, and from their slope the base and the exponent: no list of bases is needed. Every
description that gives the same numbers again is a candidate, and the one with the fewest oddities wins.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

ROWS = 48  # compared entry by entry; beyond, float32 angles of grown frequencies are noise
PLAIN = "plain"
USUAL_LAGS = {(0, 0), (0, 1), (0, 2), (2, 2)}
FACTORS = (1.0, 2.0, 0.5)
Rule = Callable[[np.ndarray, np.ndarray, np.ndarray, float, int], np.ndarray]
# name -> how it is written, and the angles of column `slot` of pair i
OTHER_RULES: dict[str, tuple[str, Rule]] = {
    "integer exponent": (
        "pos / base ** (2 * i // d_model)",
        lambda pos, i, slot, base, d: pos * np.ones(len(i)),
    ),
    "integer column": (
        "pos / base ** (2 * column // d_model)",
        lambda pos, i, slot, base, d: pos * base ** -(2.0 * (2 * i + slot) // d),
    ),
    "not divided": ("pos / base ** (2 * i)", lambda pos, i, slot, base, d: pos * base ** -(2.0 * i)),
    "divided outside": (
        "pos / base ** (2 * i) / d_model",
        lambda pos, i, slot, base, d: pos * (base ** -(2.0 * i) / d),
    ),
    "multiplied outside": (
        "pos / base ** 2 * i / d_model",
        lambda pos, i, slot, base, d: pos * (i / (base**2 * d)),
    ),
    "multiplied pair": (  # 2 i, the index of the column
        "pos / base ** 2 * i / d_model",
        lambda pos, i, slot, base, d: pos * (2 * i / (base**2 * d)),
    ),
    "exponential first": (
        "exp(2 * i) * -log(base) / d_model",
        lambda pos, i, slot, base, d: pos * (-np.exp(2.0 * i) * math.log(base) / d),
    ),
    "degrees": (
        "pi / 180 * pos / base ** (2 * i / d_model)",
        lambda pos, i, slot, base, d: pos * (math.pi / 180 * base ** (-2.0 * i / d)),
    ),
    "turns": (
        "2 * pi * pos / base ** (2 * i / d_model)",
        lambda pos, i, slot, base, d: pos * (2 * math.pi * base ** (-2.0 * i / d)),
    ),
    "power of position": (
        "(pos / base) ** (2 * i / d_model)",
        lambda pos, i, slot, base, d: (pos / base) ** (2 * i / d),
    ),
}


@dataclass(frozen=True)
class Code:
    """One way to write a table of sines and cosines; the defaults are the paper's.

    base       10000 in the paper
    rule       how frequencies come from the pair's number i: "plain", "inverse", or one of OTHER_RULES
    factor     exponent = factor * (2 i + lag) / (d_model + extra)
    extra      see factor
    lags       one lag for the first, one for the second column of each pair
    halves     all first columns, then all second ones, instead of side by side
    order      what the two columns of a pair hold: s for sine, c for cosine
    start      position of the first row
    padding    row 0 holds zeros
    scale      what the whole table was multiplied by
    coarse     angles were computed in half precision
    """

    base: float = 10000.0
    rule: str = PLAIN
    factor: float = 1.0
    extra: int = 0
    lags: tuple[int, int] = (0, 0)
    halves: bool = False
    order: str = "sc"
    start: int = 0
    padding: bool = False
    scale: float = 1.0
    coarse: bool = False

    def oddities(self, base: float) -> float:
        """How much has to be assumed: one for each thing that is not the paper's."""
        same = math.isclose(self.base, base, rel_tol=1e-6)
        return (
            (0 if same else 1 if _is_round(self.base) or self.base in mixed_bases(base) else 2.5)
            + (self.rule != PLAIN)
            + 0.9 * (self.factor != 1)
            + 0.8 * (self.extra != 0)
            + (self.lags != (0, 0))
            + 0.5 * (self.lags[0] != 0)  # a pair's second column goes astray more often than its first
            + self.halves
            + (self.order != "sc")
            + (self.start != 0)
            + 1.5 * self.padding
            + (self.scale != 1)
            + 1.5 * self.coarse
        )

    def is_simple(self, base: float) -> bool:
        """Is the base a usual one, and is not more than one thing odd about the exponents?"""
        other = not math.isclose(self.base, base, rel_tol=1e-6)
        usual = not other or self.base in (100.0, 1000.0, 100000.0, 1000000.0)
        return usual and other + (self.factor != 1) + (self.extra != 0) <= 1

    def angles(self, n: int, d: int) -> np.ndarray:
        """The angle in every entry: (n, d)."""
        pair, slot = _places(d, self.halves)
        position = np.arange(self.start, self.start + n, dtype=float)[:, None]
        with np.errstate(all="ignore"):
            if self.rule in OTHER_RULES:
                return OTHER_RULES[self.rule][1](position, pair, slot, self.base, d)
            exponent = self.factor * (2 * pair + np.asarray(self.lags)[slot]) / max(1, d + self.extra)
            return position * self.base ** (exponent if self.rule == "inverse" else -exponent)

    def table(self, n: int, d: int) -> np.ndarray:
        """The table that this description gives: (n, d)."""
        slot = _places(d, self.halves)[1]
        angles = self.angles(n, d)
        cosine = np.array([letter == "c" for letter in self.order])[slot]
        return self.scale * np.where(cosine, np.cos(angles), np.sin(angles))


def explain(tables: Sequence[np.ndarray], base: float = 10000.0, eps: float = 1e-7) -> Code | None:
    """The simplest description that gives all of these tables again, or None.

    tables  each (n, d), of different widths: one width alone leaves some rules alike
    base    what the base should be
    eps     precision of the entries
    """
    power = _by_width(tables)
    if power:
        found = explain([table / table.shape[1] ** power for table in tables], base, eps)
        return found and replace(found, scale=found.scale * tables[0].shape[1] ** power)
    first, paper = tables[0], Code(base=base)
    if all(_fit(paper, table, eps) == paper for table in tables):
        return paper
    waves = _waves(first)
    for padding, coarse in ((False, False), (True, False), (False, True)):
        if padding and (np.any(first[0]) or not np.any(first[1:])):
            continue
        described = _candidates(first, base, eps, padding) if waves else _stretched(base)
        candidates = [replace(code, coarse=coarse) for code in dict.fromkeys(described)]
        if coarse:  # so blurred a table fits almost any base: at most one thing is wrong with the exponent
            candidates = [code for code in candidates if code.is_simple(base)]
        for code in sorted(candidates, key=lambda code: code.oddities(base)):
            fitted = _fit(code, first, eps)
            if fitted and all(_fit(code, table, eps) for table in tables[1:]):
                return fitted
    return None


def _by_width(tables: Sequence[np.ndarray]) -> float:
    """The power of d_model that tables of several widths were multiplied by: 0.5, -0.5 or 0."""
    sizes = [math.sqrt(float((table**2).mean())) for table in tables]
    for power in (0.5, -0.5):
        each = [size / table.shape[1] ** power for size, table in zip(sizes, tables, strict=True)]
        if np.ptp(each) < 1e-3 * max(each) < np.ptp(sizes):
            return power
    return 0.0


def matching_columns(table: np.ndarray, base: float, eps: float) -> np.ndarray:
    """Which columns are the paper's: (d,) of True and False."""
    code, table = Code(base=base), table[:ROWS]
    wrong = np.abs(table - code.table(*table.shape)) > _tolerance(code, *table.shape, eps)
    return ~wrong.any(0)


def _fit(code: Code, table: np.ndarray, eps: float) -> Code | None:
    """The description with its scale, if it gives this table again: a few rows first, as most fail there."""
    rows = 16 if code.coarse else ROWS
    if len(table) > 6 and _fit(code, table[:6], eps) is None:
        return None
    table = table[:rows]
    wanted = replace(code, scale=1.0).table(*table.shape)
    if not np.isfinite(wanted).all():
        return None
    here = slice(1, None) if code.padding else slice(None)
    norm = float((wanted[here] ** 2).sum())
    if norm == 0:
        return None if np.any(table[here]) else code
    scale = float((wanted[here] * table[here]).sum()) / norm
    if scale <= 0 or (abs(scale - code.scale) > 0.05 * code.scale):
        return None
    for neat in (1.0, 2.0, math.sqrt(table.shape[1])):
        scale = neat if abs(scale / neat - 1) < 2e-3 + eps else scale
    far = np.abs(scale * wanted - table)[here] > scale * _tolerance(code, *table.shape, eps)[here]
    return None if far.any() else replace(code, scale=scale)


def _tolerance(code: Code, n: int, d: int, eps: float) -> np.ndarray:
    """What rounding may do: to the entry, and to the angle before."""
    angle_eps = 2.0**-7 if code.coarse else 2e-6
    return 1e-5 + 2 * eps + angle_eps * np.abs(code.angles(n, d))


def _waves(table: np.ndarray) -> bool:
    """Could most columns be waves of one frequency? Then f(t + 1) + f(t - 1) is a multiple of f(t)."""
    rows = table[1:40]
    if len(rows) < 6:
        return True
    middle, around = rows[1:-1], rows[2:] + rows[:-2]
    multiple = (around * middle).sum(0) / np.maximum((middle**2).sum(0), 1e-30)
    rest = np.abs(around - multiple * middle).max(0) / np.maximum(np.abs(rows).max(0), 1e-30)
    return float(np.median(rest)) < 0.5


# -- reading frequencies ---------------------------------------------------------------------


def _candidates(table: np.ndarray, base: float, eps: float, padding: bool) -> Iterator[Code]:
    """Descriptions worth computing, from what the columns say."""
    largest = float(np.abs(table).max())
    scale = 1.0 if 0.8 < largest < 1.02 or largest == 0 else largest
    bases = {base, 10000.0, 1000.0, 100.0, 100000.0}
    mixed = list(mixed_bases(base))
    for start in (0, 1, 2, -1):
        readings = _readings(table / scale, start, eps, padding)
        for halves, order in itertools.product((False, True), ("sc", "cs", "ss", "cc")):
            shape = Code(halves=halves, order=order, start=start, padding=padding, scale=scale)
            yield from (replace(shape, base=base, rule=rule) for rule in OTHER_RULES)
            yield from (replace(shape, base=b) for b in mixed)
            for b, lags, factor in itertools.product(bases, USUAL_LAGS, FACTORS):
                yield replace(shape, base=b, rule="inverse", lags=lags, factor=factor)
            yield from _from_slope(shape, readings, table.shape[1], base)


def mixed_bases(base: float) -> dict[float, str]:
    """The bases that come out if the logarithm and the power do not belong together, and how they do."""
    try:
        return {
            math.exp(math.log10(base)): "exp() of log10()",
            math.exp(math.log2(base)): "exp() of log2()",
            10.0 ** math.log(base): "10 ** log()",
            2.0 ** math.log(base): "2 ** log()",
        }
    except (ValueError, OverflowError):
        return {}


def _stretched(base: float) -> Iterator[Code]:
    """The one rule whose columns are no waves."""
    for halves, order, start in itertools.product((False, True), ("sc", "cs"), (0, 1)):
        yield Code(base=base, rule="power of position", halves=halves, order=order, start=start)


def _from_slope(shape: Code, readings: dict[str, np.ndarray], d: int, base: float) -> Iterator[Code]:
    """Base, factor and lags from the line through the logarithms of the frequencies."""
    pair, slot = _places(d, shape.halves)
    lines, slopes, rates = [], [], []
    for s, letter in enumerate(shape.order):
        logs, i = readings[letter][slot == s], pair[slot == s]
        good = np.isfinite(logs)
        lines.append(_line(i[good], logs[good]))
        rates += list(logs[good & (i > 0)] / i[good & (i > 0)])
        slopes += [lines[-1][1]] if lines[-1] else []
        slopes += [float(logs[good][-1] / i[good][-1])] if good.any() and i[good][-1] > 0 else []
    if not slopes:  # one pair: any base would do
        yield replace(shape, base=base)
        return
    raw = math.exp(min(200.0, -float(np.median(rates)) * d / 2)) if rates else 0.0
    if 1.2 < raw < 1e15:
        yield replace(shape, base=_digits(raw, 7))  # a base that nobody would type, as it was measured
    for slope in slopes[:3]:
        if abs(slope) > 1e-4:
            yield from _with_slope(shape, slope, lines, d, base)


def _with_slope(
    shape: Code, slope: float, lines: list[tuple[float, float] | None], d: int, base: float
) -> Iterator[Code]:
    measured = tuple(0 if line is None else round(2 * line[0] / slope) for line in lines)
    # the usual ones, too, as half precision may blur what was measured
    all_lags = USUAL_LAGS | ({measured} if max(map(abs, measured)) <= 4 else set())
    for lags, extra, factor in itertools.product(all_lags, (0, -2, -1, 1), FACTORS):
        raw = math.exp(min(200.0, -slope * max(1, d + extra) / (2 * factor)))
        for b in _neat(raw, base, alone=factor == 1 and extra == 0):
            yield replace(shape, base=b, factor=factor, extra=extra, lags=lags)


def _readings(unit: np.ndarray, start: int, eps: float, padding: bool) -> dict[str, np.ndarray]:
    """The logarithm of each column's frequency, if it is a sine and if it is a cosine; NaN if unclear.

    The row is taken where the curve has moved enough to be read and has not turned yet.
    """
    rows = unit[:256]
    position = np.arange(start, start + len(rows), dtype=float)
    use = position > 0
    if padding:
        use[0] = False
    rows, position = np.clip(rows[use], -1, 1), position[use]
    if not len(rows):
        nothing = np.full(unit.shape[1], np.nan)
        return {"s": nothing, "c": nothing}
    logs = {}
    for letter, moved in (("s", np.abs(rows)), ("c", 1 - rows)):
        enough = moved > (0.3 if letter == "s" else 0.1)
        row = np.where(enough.any(0), enough.argmax(0), len(rows) - 1)
        value, place = rows[row, np.arange(rows.shape[1])], position[row]
        angle = np.arcsin(value) if letter == "s" else np.arccos(value)
        clear = moved[row, np.arange(rows.shape[1])] > min(300 * eps, 0.08)
        with np.errstate(all="ignore"):
            logs[letter] = np.where(clear & (angle > 0), np.log(angle / place), np.nan)
    return logs


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, float] | None:
    """Intercept and slope through points; the middle of all slopes, as a turned sine may be among them."""
    if len(x) < 2:
        return None
    slope = float(np.median(np.diff(y) / np.diff(x)))
    slope = float(np.polyfit(x, y, 1)[0]) if np.allclose(np.diff(y) / np.diff(x), slope, rtol=0.1) else slope
    return float(np.median(y - slope * x)), slope


def _neat(raw: float, base: float, alone: bool) -> list[float]:
    """The bases that a measured one may stand for."""
    if not 1.2 < raw < 1e15:
        return []
    if abs(math.log(raw / base)) < 0.1:
        return [base, *([_digits(raw, 3)] if alone else [])]
    power = 10.0 ** round(math.log10(raw))
    bases = [power] if abs(math.log(raw / power)) < 0.1 else []
    bases += [base] if abs(math.log(raw / base)) < 2 else []  # half precision blurs a slope
    return [*bases, _digits(raw, 1), _digits(raw, 2), _digits(raw, 4)] if alone else [*bases, _digits(raw, 1)]


def _digits(number: float, digits: int) -> float:
    return float(f"{number:.{digits - 1}e}")


def _is_round(number: float) -> bool:
    """A number that somebody would type: 1000, 500, 20000."""
    return (number >= 50 or number == 10) and math.isclose(number, _digits(number, 1), rel_tol=1e-9)


def _places(d: int, halves: bool) -> tuple[np.ndarray, np.ndarray]:
    """For each column: the number of its pair, and whether it is the pair's first or second."""
    column = np.arange(d)
    if halves:
        return column % ((d + 1) // 2), column // ((d + 1) // 2)
    return column // 2, column % 2
