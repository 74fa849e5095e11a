"""Noting what is wrong with attention to a local window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from utils.doctor.notes import Notes
from utils.doctor.report import Matrices

N = 12  # 2, 3 and 4 divide it, for those who cut into blocks
MIDDLE = N // 2
SHOWN = f"{N} tokens, window=3"
NEVER = 1e-12  # a share below this is none

Ask = Callable[..., np.ndarray]  # (q, k, window, causal) -> weights (n, n)


@dataclass
class WindowNotes(Notes):
    """What is noted of a local attention.

    causal, counts_self  as in `window.examine`, where causal is is_causal
    blocks               whether the argument's name speaks of blocks
    """

    causal: bool | None = None
    counts_self: bool | None = None
    blocks: bool = False


def picture(found: np.ndarray, wanted: np.ndarray, side: int = 8) -> tuple[Matrices, ...]:
    """A corner of who sees whom, or how strongly: (N, N), found and wanted.

    The identity was given as v, so that seeing it again says nothing of who sees whom.
    """
    if np.array_equal(found, np.eye(N)):
        return ()
    what = "key j seen by query i" if np.isin(found, (0, 1)).all() else "weight of key j for query i"
    return (Matrices(what, *(m[:side, :side].astype(float) for m in (found, wanted))),)


def band(lowest: int, highest: int) -> np.ndarray:
    """(N, N), True where lowest <= column - row <= highest."""
    apart = np.arange(N)[None, :] - np.arange(N)[:, None]
    return (lowest <= apart) & (apart <= highest)
