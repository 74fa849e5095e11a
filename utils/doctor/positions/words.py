"""What the doctor says of a table of sines and cosines that is not the paper's.

Where a difference leaves every dot product of two rows as it was, or every distance between
positions, the table is the same code in other coordinates: a convention. Columns in another
order, the cosine first, and counting from 1 are such. Everything else is another code: a fault.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from utils.doctor.positions.tables import OTHER_RULES, PLAIN, Code, matching_columns, mixed_bases
from utils.doctor.report import CONVENTION, FAULT, NOT_SEPARABLE, Finding, Matrices

GOOD = "torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))"
NOT_FOUND = "no sinusoidal table"
HALF = "positions in half precision"


def findings(code: Code, table: np.ndarray, base: float, exact: bool) -> list[Finding]:
    """One finding for each thing in which the table is not the paper's."""
    d = table.shape[1]
    said = [*_base(code, base), *_exponent(code, d, base), *_layout(code), *_scale(code, d)]
    shown, proof = _beginning(table, base)
    return [
        Finding(kind, FAULT if exact else verdict, sentence, cure, shown, proof)
        for kind, verdict, sentence, cure in said
    ]


def unexplained(table: np.ndarray, base: float, eps: float) -> Finding:
    """For a table that no description gives."""
    good = matching_columns(table, base, eps)
    shown, proof = _beginning(table, base)
    if good.mean() >= 0.5:
        bad = ", ".join(map(str, np.flatnonzero(~good)[:8]))
        if not table[:, ~good].any():
            sentence = f"These columns were never filled and hold zeros: {bad}."
            return Finding("columns left empty", FAULT, sentence, "Fill them too.", shown, proof)
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


Said = Iterator[tuple[str, str, str, str]]  # kind, verdict, sentence, cure


def _base(code: Code, base: float) -> Said:
    mixed = mixed_bases(base).get(code.base)
    if mixed:
        sentence = (
            f"The frequencies fall as powers of {code.base:.4g}, which is {mixed} of {base:g}: the logarithm "
            "and the power have different bases."
        )
        cure = f"Take the natural logarithm with exp: {GOOD}."
        yield f"base is {code.base:.3g}, not {base:g}", FAULT, sentence, cure
    elif not math.isclose(code.base, base, rel_tol=1e-6):
        sentence = f"The frequencies fall as powers of {code.base:g}; the base should be {base:g}."
        yield f"base is {code.base:g}, not {base:g}", FAULT, sentence, f"Put {base:g} where the base stands."


def _exponent(code: Code, d: int, base: float) -> Said:
    if code.factor != 1:
        word, other = ("doubled", base**2) if code.factor == 2 else ("halved", base**0.5)
        sentence = (
            f"The exponent of pair i is {code.factor:g} * 2i / d_model instead of 2i / d_model (the same as "
            f"a base of {other:g})."
        )
        cure = f"Count i over the pairs (0, 1, 2 ...) with 2 * i, or over even columns without the 2: {GOOD}."
        yield f"exponent {word}", FAULT, sentence, cure
    if code.extra == -2:
        sentence = (
            "The exponent is divided by d_model - 2, so that the slowest frequency is 1 / base exactly."
        )
        cure = "Others do this too; the paper divides by d_model."
        yield "wavelengths end at the base", CONVENTION, sentence, cure
    elif code.extra:
        kind = f"exponent over d_model {'-' if code.extra < 0 else '+'} {abs(code.extra)}"
        sentence = f"The exponent is divided by {d + code.extra} where d_model is {d}."
        yield kind, FAULT, sentence, "Divide by d_model."
    first, second = code.lags
    if first != second:
        letter = code.order[1 if abs(second) >= abs(first) else 0]
        which = "sine" if letter == "s" and code.order == "cs" else "cosine"
        sentence = (
            f"In each pair the second column's exponent is {code.factor * (second - first):g} / d_model "
            "further than the first one's: they turn at different speeds, and sin^2 + cos^2 is not 1."
        )
        cure = "Use one frequency for both columns of a pair: angle = pos * div_term; sin(angle), cos(angle)."
        yield f"{which} exponent shifted", FAULT, sentence, cure
    elif first:
        sentence = (
            f"Pair 0 has the exponent {first} / d_model instead of 0: no hand turns by 1 radian a token."
        )
        yield "exponent starts late", FAULT, sentence, "Count pairs from 0."
    yield from _rule(code, base)
    if code.coarse:
        sentence = "The angles were computed in half precision: they drift off as positions grow."
        cure = "Compute positions and frequencies in float32 and convert the finished table."
        yield HALF, FAULT, sentence, cure


def _rule(code: Code, base: float) -> Said:
    if code.rule == "inverse":
        sentence = (
            "Frequencies grow from pair to pair instead of falling: position is divided by base ** (-2i / "
            "d_model)."
        )
        cure = f"Multiply by the inverse frequency, or divide by base ** (2i / d_model): {GOOD}."
        yield "frequencies inverted", FAULT, sentence, cure
    elif code.rule in ("integer exponent", "integer column"):
        sentence = "2i / d_model was rounded down to a whole number, so that columns share one frequency."
        cure = "Use / instead of //, and floats instead of integers."
        yield "integer division in the exponent", FAULT, sentence, cure
    elif code.rule == "not divided":
        sentence = (
            f"The exponent is 2i instead of 2i / d_model: pair 1 already has the frequency {base**-2.0:.0e}."
        )
        cure = "Divide the exponent by d_model, inside the parentheses."
        yield "exponent not divided by d_model", FAULT, sentence, cure
    elif code.rule in ("degrees", "turns"):
        sentence = f"The angle is {OTHER_RULES[code.rule][0]}: the first hand does not turn by 1 a position."
        yield f"angle in {code.rule}", FAULT, sentence, "Leave the factor out: sin and cos take radians."
    elif code.rule != PLAIN:
        sentence = f"The angle is {OTHER_RULES[code.rule][0]}, as parentheses are missing or misplaced."
        cure = "Write pos / base ** (2 * i / d_model)."
        yield "precedence of the operators", FAULT, sentence, cure


def _layout(code: Code) -> Said:
    if code.halves:
        sentence = (
            "All first columns come before all second ones, instead of side by side: the same columns, "
            "reordered."
        )
        cure = "Nothing, unless weights trained with the other order are loaded."
        yield "halves layout", CONVENTION, sentence, cure
    if code.order == "cs":  # as guided diffusion and others have them
        sentence = "Each pair holds the cosine before the sine: the same columns, reordered."
        cure = "For the paper's order put the sine into the even columns."
        yield "cosine first", CONVENTION, sentence, cure
    elif code.order in ("ss", "cc"):
        word, other = ("sines", "cosine") if code.order == "ss" else ("cosines", "sine")
        sentence = (
            f"Both columns of a pair hold {word}: without the {other}, no rotation leads from one position "
            "to another."
        )
        yield f"{word} only", FAULT, sentence, f"Fill one column of each pair with the {other}."
    if code.padding:
        sentence = "Row 0 holds zeros: position 0 is kept for padding tokens."
        yield "row 0 is padding", CONVENTION, sentence, "Give real tokens the positions 1, 2, 3 ..."
    if code.start:  # every hand is turned by a fixed angle: distances between positions stay what they were
        sentence = f"The first row is the code of position {code.start}; the paper counts from 0."
        cure = "For the paper's table count from 0: torch.arange(n)."
        yield f"positions start at {code.start}", CONVENTION, sentence, cure


def _scale(code: Code, d: int) -> Said:
    if code.scale == 2:
        sentence = "The code comes with the factor 2: it reaches from -2 to 2."
        yield "code added twice", FAULT, sentence, "Add it once."
    elif code.scale != 1 and math.isclose(code.scale, math.sqrt(d), rel_tol=1e-6):
        sentence = f"The code is multiplied by {code.scale:.4g} = sqrt(d_model)."
        cure = "The factor sqrt(d_model) belongs to the embedding, before the code is added."
        yield "code scaled", FAULT, sentence, cure
    elif code.scale != 1:
        root = " = 1 / sqrt(d_model)" if math.isclose(code.scale, d**-0.5, rel_tol=1e-3) else ""
        yield "code scaled", CONVENTION, f"The code is multiplied by {code.scale:.4g}{root}.", ""


def _beginning(table: np.ndarray, base: float) -> tuple[str, tuple[Matrices]]:
    """The first entry that is not the formula's, in words; the beginning of both tables."""
    wanted = Code(base=base).table(*table.shape)
    proof = (Matrices("table, its beginning", table[:4, :6], wanted[:4, :6]),)
    apart = np.abs(table - wanted) > 0.01 * max(1e-3, float(np.abs(table - wanted).max()))
    if not apart.any():
        return "", proof
    row, column = np.argwhere(apart)[0]
    found = f"{table[row, column]:.4g}, the formula gives {wanted[row, column]:.4g}"
    return f"entry [{row}, {column}] is {found}", proof
