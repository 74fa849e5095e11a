"""Noting what is wrong with attention to a local window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from utils.doctor.notes import Notes
from utils.doctor.report import Finding, Matrices

N = 12  # 2, 3 and 4 divide it, for those who cut into blocks


MIDDLE = N // 2


SHOWN = f"{N} tokens, window=3"

NEVER = 1e-12  # a share below this is none

Ask = Callable[..., np.ndarray]  # (q, k, window, causal) -> weights (n, n)


@dataclass
class WindowNotes(Notes):
    """What is noted of a local attention.

    causal, counts_self  as in `window.examine`, where causal is is_causal
    """

    causal: bool | None = None
    counts_self: bool | None = None

    def say(
        self,
        kind: str,
        verdict: str,
        sentence: str,
        cure: str = "",
        shown: str = "",
        matrices: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> None:
        """Note a finding, once."""
        if not self.has(kind):
            proof = ()
            # the identity was given as v, so that seeing it again says nothing of who sees whom
            if matrices and np.array_equal(matrices[0], np.eye(len(matrices[0]))):
                matrices = None
            if matrices:  # a corner shows it, but a window that wraps around shows at the far end
                side = N if kind == "wraps around" else 8
                binary = np.isin(matrices[0], (0, 1)).all()
                what = "key j seen by query i" if binary else "weight of key j for query i"
                proof = (Matrices(what, *(m[:side, :side] for m in matrices)),)
            self.add(Finding(kind, verdict, sentence, cure, shown, proof))


def band(n: int, lowest: int, highest: int) -> np.ndarray:
    """True where lowest <= column - row <= highest."""
    apart = np.arange(n)[None, :] - np.arange(n)[:, None]
    return (lowest <= apart) & (apart <= highest)
