"""Many heads in one picture, and one word's attention as lines between words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgba

from utils.artists import Cells, Numbers
from utils.plots import FAINT, INK, KEY, QUERY, SHARES, short

PALETTE = colormaps[SHARES]
UNIT = 4  # pixels of the raster per cell, at least
LABEL = 0.24  # of a head's height, for its name


class Heads:
    """The weights of up to `most` heads as small heatmaps in a grid, each with its name above.

    Each heatmap fills its place, whatever its number of tokens: rows are queries, columns are keys.
    """

    frame = ()  # never changes

    def __init__(self, title: str = "", most: int = 16, columns: int = 4) -> None:
        self.title, self.most, self.columns = title, most, columns

    def attach(self, ax: Axes) -> None:
        """Draw the frame and create what moves."""
        self.ax = ax
        rows = -(-self.most // self.columns)
        ax.set(title=self.title, xlim=(0, self.columns), ylim=(rows * (1 + LABEL), 0))
        ax.set_axis_off()
        ax.set_aspect("equal")
        self.cells, self.labels = ax.add_artist(Cells()), ax.add_artist(Numbers(align="left", size=8))
        self.frames = ax.add_collection(
            PolyCollection([], facecolor="none", edgecolor=FAINT, linewidth=0.6), autolim=False
        )
        self.moving: list[Artist] = [self.cells, self.frames, self.labels]

    def update(self, weights: np.ndarray, names: Sequence[str], mark: int | None = None) -> None:
        """Show (h, n, n) weights; mark frames one head.

        Raises ValueError where there are more heads than places, or not one name for each.
        """
        weights = np.asarray(weights, dtype=float)
        if not 0 < len(weights) <= self.most or len(names) != len(weights):
            raise ValueError(f"{len(weights)} heads and {len(names)} names do not fit {self.most} places")
        side = 96  # a head's pixels in the raster
        high = round(side * (1 + LABEL))
        rows = -(-self.most // self.columns)
        paper = np.full((rows * high, self.columns * side, 4), 255, np.uint8)
        frames, labels = [], []
        nearest = np.arange(side - UNIT) * weights.shape[-1] // (side - UNIT)  # which cell a pixel shows
        for i, (head, name) in enumerate(zip(weights, names, strict=True)):
            top, left = divmod(i, self.columns)
            y, x = top * high + high - side, left * side
            colours = PALETTE(np.nan_to_num(head), bytes=True)
            paper[y : y + side - UNIT, x : x + side - UNIT] = colours[nearest][:, nearest]
            low, right = top * (1 + LABEL) + LABEL, left + 1 - UNIT / side
            bottom = low + 1 - UNIT / side
            frames.append([(left, low), (right, low), (right, bottom), (left, bottom)])
            labels.append((left, low - LABEL / 2, name, INK))
        self.cells.show(paper)
        self.frames.set_verts(frames)
        self.frames.set_edgecolor([QUERY if i == mark else FAINT for i in range(len(frames))])
        self.frames.set_linewidth([2.0 if i == mark else 0.6 for i in range(len(frames))])
        self.labels.show(labels)


class Lines:
    """One word's attention: the words on both sides, and lines from it to those that it attends to.

    most  how many words there is room for
    """

    frame = ()  # never changes

    def __init__(self, title: str = "", most: int = 16) -> None:
        self.title, self.most = title, most

    def attach(self, ax: Axes) -> None:
        """Draw the frame and create what moves."""
        self.ax = ax
        ax.set(title=self.title, xlim=(0, 1), ylim=(self.most - 0.5, -1.5))
        ax.set_axis_off()
        self.lines = ax.add_collection(LineCollection([], capstyle="round"), autolim=False)
        self.words = ax.add_artist(Numbers(align="left"))
        self.moving: list[Artist] = [self.lines, self.words]

    def update(self, weights: np.ndarray, words: Sequence[str], focus: int) -> None:
        """Show the (n,) weights of word number `focus`.

        Raises ValueError where the words find no room or the weights do not fit them.
        """
        weights = np.nan_to_num(np.asarray(weights, dtype=float))
        if weights.shape != (len(words),) or len(words) > self.most or not 0 <= focus < len(words):
            raise ValueError(f"weights {weights.shape} and word {focus} do not fit {len(words)} words")
        names = [short(word) for word in words]
        shown = [j for j in range(len(words)) if weights[j] > 0.01]
        self.lines.set_segments([[(0.32, focus), (0.66, j)] for j in shown])
        self.lines.set_linewidth([0.5 + 8 * weights[j] for j in shown])
        self.lines.set_color([to_rgba(KEY, 0.25 + 0.7 * min(1.0, weights[j])) for j in shown])
        asked = [(0.0, i, word, QUERY if i == focus else FAINT) for i, word in enumerate(names)]
        found = [
            (0.68, j, f"{word}  {weights[j]:.2f}" if j in shown else word, INK if j in shown else FAINT)
            for j, word in enumerate(names)
        ]
        self.words.show([(0.0, -1.0, "query", QUERY), (0.68, -1.0, "key", KEY), *asked, *found])
