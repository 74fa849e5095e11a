"""Noting what is wrong with a table of positions, wherever the table comes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from utils.doctor.call import Trouble
from utils.doctor.notes import Notes
from utils.doctor.positions import words
from utils.doctor.positions.tables import Code, explain

REFUSALS = ("odd", "even", "divisible", "multiple of 2", "% 2", "d_model", "dim")


@dataclass
class TableNotes(Notes):
    """What is noted of a position encoding.

    base, exact, batch_first  as in `positions.examine`
    """

    base: float = 10000.0
    exact: bool = False
    batch_first: bool | None = None

    def table(self, tables: Sequence[np.ndarray], eps: float) -> Code | None:
        """Explain a table (seen in several widths) and note in what it differs."""
        first = tables[0]
        if not np.isfinite(first).all():
            self.fault("not finite", f"The table holds {np.isnan(first).sum()} NaN and infinite numbers.")
            return None
        if len(first) > 1 and not np.any(first):
            sentence = "The code is zero everywhere: all positions look alike."
            self.fault("no position added", sentence, "Add it.")
            return None
        code = explain(tables, self.base, eps)
        if code is None:
            self.add(words.unexplained(first, self.base, eps))
            return None
        for finding in words.findings(code, first, self.base, self.exact):
            self.add(finding)
        self.tried.append("every entry, against the sines and cosines of the formula")
        return code

    def neighbours(self, table: np.ndarray, code: Code | None, where: str = "") -> None:
        """Do two neighbours share a row? Only rounded positions do that, if a hand turns fast enough."""
        same = np.flatnonzero((table[1:] == table[:-1]).all(1))
        if code is None or len(same) < 8 or same[0] < 100:  # bfloat16 counts to 256 without a gap
            return
        if len(same) < 0.2 * (len(table) - same[0]):  # one narrow column may repeat a value by chance
            return
        if np.ptp(code.table(3, table.shape[1]), axis=0).max() < 0.1:
            return
        t = int(same[0])
        self.fault(
            words.HALF,
            f"{where}Positions {t} and {t + 1} share one row, and so do {len(same)} neighbours of "
            f"{len(table)}: "
            "positions were rounded in half precision.",
            "Count positions in integers or float32 (torch.arange(n, dtype=torch.float32)); convert "
            "the finished table.",
            f"row {t} equals row {t + 1}",
        )


def table_or_learned(
    case: TableNotes, tables: Sequence[np.ndarray], eps: float, trainable: bool
) -> Code | None:
    """A parameter that holds sines is a fault; one that follows no formula was learned."""
    if trainable and (not np.any(tables[0]) or explain(tables, case.base, eps) is None):
        n, d = tables[0].shape
        sentence = f"The code is a parameter of {n} rows and {d} columns, found by training."
        case.convention("learned positions", sentence)
        return None
    code = case.table(tables, eps)
    case.neighbours(tables[0], code)
    if trainable and code is not None:
        case.fault(
            "table is trainable",
            "The table of sines is a parameter with gradients: training moves it away from the formula.",
            "Keep it in register_buffer('pe', table) instead of nn.Parameter (or set requires_grad=False).",
        )
    return code


def depends_on_length(case: TableNotes, short: np.ndarray, long: np.ndarray) -> None:
    """Note that the first rows of a longer sequence are others."""
    apart = float(np.abs(short - long[: len(short)]).max())
    case.fault(
        "code depends on the length",
        f"The rows of a sequence of {len(short)} differ by up to {apart:.3g} from the first rows of a "
        "longer one.",
        "Compute the code of a position from the position alone.",
    )


def odd(case: TableNotes, at_width: Callable[[int], Any]) -> None:
    """Width 7: right, refused in words, or a crash."""
    try:
        at_width(7)
        case.tried.append("an odd width")
    except Trouble as trouble:
        if trouble.refusal and any(word in str(trouble).lower() for word in (*REFUSALS, "no words")):
            case.convention("even widths only", f"An odd width is refused: {trouble}.")
            return
        # hardly anybody takes an odd width, and whoever does is told at once: no fault
        kind, sentence = "odd width comes out even", f"with width 7 it {trouble}."
        if trouble.__cause__ is not None:
            kind, sentence = "odd width crashes", f"width 7 ends in {trouble}."
        cure = "The cosines have one column fewer: pe[:, 1::2] = torch.cos(angles)[:, : d_model // 2]."
        case.convention(kind, f"Made for even widths only: {sentence}", cure, "d_model = 7")
