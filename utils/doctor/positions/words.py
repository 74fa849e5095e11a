"""What the doctor says of a table of sines and cosines that is not the paper's.

Where a difference leaves every dot product of two rows as it was, or every distance between
positions, the table is the same code in other coordinates: a convention. Columns in another
order, the cosine first, and counting from 1 are such. Everything else is another code: a fault.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from utils.doctor.positions.tables import Code, matching_columns, mixed_bases
from utils.doctor.report import CONVENTION, FAULT, NOT_SEPARABLE, Finding, Matrices

GOOD_LINE = "torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))"
NOT_FOUND = "no sinusoidal table"
HALF = "positions in half precision"


def findings(code: Code, table: np.ndarray, base: float, exact: bool) -> list[Finding]:
    """One finding for each thing in which the table is not the paper's."""
    said = [*_frequencies(code, table.shape[1], base), *_layout(code), *_scale(code, table.shape[1])]
    shown = _first_difference(table, base)
    proof = (Matrices("table, its beginning", table[:4, :6], Code(base=base).table(*table.shape)[:4, :6]),)
    return [
        Finding(kind, FAULT if exact else verdict, sentence, cure, shown, proof)
        for kind, verdict, sentence, cure in said
    ]


def unexplained(table: np.ndarray, base: float, eps: float) -> Finding:
    """For a table that no description gives."""
    good = matching_columns(table, base, eps)
    proof = (Matrices("table, its beginning", table[:4, :6], Code(base=base).table(*table.shape)[:4, :6]),)
    shown = _first_difference(table, base)
    if good.mean() >= 0.5 and not table[:, ~good].any():
        empty = ", ".join(map(str, np.flatnonzero(~good)[:8]))
        sentence = f"These columns were never filled and hold zeros: {empty}."
        return Finding("columns left empty", FAULT, sentence, "Fill them too.", shown, proof)
    if good.mean() >= 0.5:
        bad = ", ".join(map(str, np.flatnonzero(~good)[:8]))
        sentence = f"Most columns are the formula's, but these are not: {bad}."
        return Finding("some columns differ", FAULT, sentence, "Compare these columns.", shown, proof)
    pairs = table[:, 0::2][:, : table.shape[1] // 2] ** 2 + table[:, 1::2] ** 2
    sentence = (
        "No way of writing the sines and cosines gives this table: "
        f"sin^2 + cos^2 of a pair runs from {pairs.min():.3g} to {pairs.max():.3g} (should be 1), "
        f"its entries from {table.min():.3g} to {table.max():.3g}. It was learned, or is another "
        "code, or is wrong."
    )
    return Finding(NOT_FOUND, NOT_SEPARABLE, sentence, "If sines were meant, compare row 1.", shown, proof)


Said = Iterator[tuple[str, str, str, str]]


def _frequencies(code: Code, d: int, base: float) -> Said:
    mixed = mixed_bases(base).get(code.base)
    if mixed:
        yield (
            f"base is {code.base:.3g}, not {base:g}",
            FAULT,
            f"The frequencies fall as powers of {code.base:.4g}, which is {mixed} of {base:g}: the logarithm "
            "and the power have different bases.",
            f"Take the natural logarithm with exp: {GOOD_LINE}.",
        )
    elif not math.isclose(code.base, base, rel_tol=1e-6):
        yield (
            f"base is {code.base:g}, not {base:g}",
            FAULT,
            f"The frequencies fall as powers of {code.base:g}; the base should be {base:g}.",
            f"Put {base:g} where the base stands.",
        )
    if code.factor != 1:
        word, other = ("doubled", base**2) if code.factor == 2 else ("halved", base**0.5)
        yield (
            f"exponent {word}",
            FAULT,
            f"The exponent of pair i is {code.factor:g} * 2i / d_model instead of 2i / d_model "
            f"(the same as a base of {other:g}).",
            "Count i over the pairs (0, 1, 2 ...) with 2 * i, or over even columns without the 2: "
            f"{GOOD_LINE}.",
        )
    if code.extra == -2:
        yield (
            "wavelengths end at the base",
            CONVENTION,
            "The exponent is divided by d_model - 2, so that the slowest frequency is 1 / base exactly.",
            "Others do this too; the paper divides by d_model.",
        )
    elif code.extra:
        yield (
            f"exponent over d_model {'-' if code.extra < 0 else '+'} {abs(code.extra)}",
            FAULT,
            f"The exponent is divided by {d + code.extra} where d_model is {d}.",
            "Divide by d_model.",
        )
    yield from _lags(code)
    yield from _rule(code, base)
    if code.coarse:
        yield (
            HALF,
            FAULT,
            "The angles were computed in half precision: they drift off as positions grow.",
            "Compute positions and frequencies in float32 and convert the finished table.",
        )


def _lags(code: Code) -> Said:
    first, second = code.lags
    if first == second and first:
        yield (
            "exponent starts late",
            FAULT,
            f"Pair 0 has the exponent {first} / d_model instead of 0: no hand turns by 1 radian a token.",
            "Count pairs from 0.",
        )
    elif first != second:
        letter = code.order[1 if abs(second) >= abs(first) else 0]
        which = "sine" if letter == "s" and code.order in ("cs",) else "cosine"
        by = code.factor * (second - first)
        yield (
            f"{which} exponent shifted",
            FAULT,
            f"In each pair the second column's exponent is {by:g} / d_model further than the first one's: "
            "they turn at different speeds, and sin^2 + cos^2 is not 1.",
            "Use one frequency for both columns of a pair: angle = pos * div_term; sin(angle), cos(angle).",
        )


def _rule(code: Code, base: float) -> Said:
    if code.rule == "inverse":
        yield (
            "frequencies inverted",
            FAULT,
            "Frequencies grow from pair to pair instead of falling: position is divided by base ** "
            "(-2i / d_model).",
            f"Multiply by the inverse frequency, or divide by base ** (2i / d_model): {GOOD_LINE}.",
        )
    elif code.rule in ("integer exponent", "integer column"):
        yield (
            "integer division in the exponent",
            FAULT,
            "2i / d_model was rounded down to a whole number, so that columns share one frequency.",
            "Use / instead of //, and floats instead of integers.",
        )
    elif code.rule == "not divided":
        yield (
            "exponent not divided by d_model",
            FAULT,
            f"The exponent is 2i instead of 2i / d_model: pair 1 already has the frequency {base**-2.0:.0e}.",
            "Divide the exponent by d_model, inside the parentheses.",
        )
    elif code.rule != "plain":
        forms = {
            "divided outside": "pos / base ** (2 * i) / d_model",
            "multiplied outside": "pos / base ** 2 * i / d_model",
            "multiplied pair": "pos / base ** 2 * i / d_model",
            "exponential first": "exp(2 * i) * -log(base) / d_model",
            "power of position": "(pos / base) ** (2 * i / d_model)",
        }
        yield (
            "precedence of the operators",
            FAULT,
            f"The angle is {forms[code.rule]}, as parentheses are missing or misplaced.",
            "Write pos / base ** (2 * i / d_model).",
        )


def _layout(code: Code) -> Said:
    if code.halves:
        yield (
            "halves layout",
            CONVENTION,
            "All first columns come before all second ones, instead of side by side: the same "
            "columns, reordered.",
            "Nothing, unless weights trained with the other order are loaded.",
        )
    if code.order == "cs":
        # the same columns in another order, as guided diffusion and others have them: a convention
        yield (
            "cosine first",
            CONVENTION,
            "Each pair holds the cosine before the sine: the same columns, reordered.",
            "For the paper's order put the sine into the even columns.",
        )
    elif code.order in ("ss", "cc"):
        word, other = ("sines", "cosine") if code.order == "ss" else ("cosines", "sine")
        yield (
            f"{word} only",
            FAULT,
            f"Both columns of a pair hold {word}: without the {other}, no rotation leads from one "
            "position to another.",
            f"Fill one column of each pair with the {other}.",
        )
    if code.padding:
        yield (
            "row 0 is padding",
            CONVENTION,
            "Row 0 holds zeros: position 0 is kept for padding tokens.",
            "Give real tokens the positions 1, 2, 3 ...",
        )
    if code.start:
        # a shift by one turns every hand by a fixed angle: distances between positions stay what they were
        yield (
            f"positions start at {code.start}",
            CONVENTION,
            f"The first row is the code of position {code.start}; the paper counts from 0.",
            "For the paper's table count from 0: torch.arange(n).",
        )


def _scale(code: Code, d: int) -> Said:
    if code.scale == 2:
        yield (
            "code added twice",
            FAULT,
            "The code comes with the factor 2: it reaches from -2 to 2.",
            "Add it once.",
        )
    elif code.scale != 1:
        root = math.isclose(code.scale, math.sqrt(d), rel_tol=1e-6)
        yield (
            "code scaled",
            FAULT if root else CONVENTION,
            f"The code is multiplied by {code.scale:.4g}{' = sqrt(d_model)' if root else ''}.",
            "The factor sqrt(d_model) belongs to the embedding, before the code is added." if root else "",
        )


def _first_difference(table: np.ndarray, base: float) -> str:
    wanted = Code(base=base).table(*table.shape)
    apart = np.abs(table - wanted) > 0.01 * max(1e-3, float(np.abs(table - wanted).max()))
    if not apart.any():
        return ""
    row, column = np.argwhere(apart)[0]
    found = table[row, column]
    return f"entry [{row}, {column}] is {found:.4g}, the formula gives {wanted[row, column]:.4g}"
