"""Matrices drawn to scale: every number is one little square, so that shapes can be seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

from utils.artists import Cells, Numbers
from utils.plots import FAINT, INK, SIGNED

LABEL = 8  # squares above a matrix, for its name and shape
PALETTE = colormaps[SIGNED]  # once: matplotlib copies it each time it is asked for
GAP = 7  # squares between two matrices, for @ and =


class Sheet:
    """A sheet of paper on which matrices are drawn, each at its place, with its name and shape above it.

    Colours run from blue (negative) to red (positive).
    """

    frame = ()  # never changes

    def __init__(self, title: str, rows: int, columns: int) -> None:
        self.title, self.rows, self.columns = title, rows + 1, columns + 2  # and a margin

    def attach(self, ax: Axes) -> None:
        """Draw the frame and create what moves."""
        self.ax = ax
        ax.set(title=self.title, xlim=(-0.5, self.columns - 0.5), ylim=(self.rows - 0.5, -0.5))
        ax.set_axis_off()
        ax.set_aspect("equal")
        self.cells, self.labels = ax.add_artist(Cells()), ax.add_artist(Numbers(align="left", size=8))
        self.edges = ax.add_collection(
            PolyCollection([], facecolor="none", edgecolor=FAINT, linewidth=0.8), autolim=False
        )
        self.moving: list[Artist] = [self.cells, self.edges, self.labels]

    def draw(
        self,
        places: Sequence[tuple[int, int, str, np.ndarray]],
        signs: Sequence[tuple] = (),
        size: float | None = None,
    ) -> None:
        """Show matrices given as (top, left, name, values), and signs as (x, y, text).

        size  the darkest value; each matrix's own largest, if left out
        """
        paper = np.full((self.rows, self.columns, 4), 255, np.uint8)
        edges, labels = [], []
        for top, left, name, matrix in places:
            (n, m), x, y = matrix.shape, left + 1, top + LABEL
            paper[y : y + n, x : x + m] = _colours(matrix, size)
            low, high, start, end = y - 0.5, y + n - 0.5, x - 0.5, x + m - 0.5
            edges.append([(start, low), (end, low), (end, high), (start, high)])
            labels.append((start, y - 3.2, f"{name}  {n} × {m}", INK))
        self.cells.show(paper)
        self.edges.set_verts(edges)
        self.labels.show([*labels, *((*sign, INK) for sign in signs)])


class Products(Sheet):
    """A few products `left @ right = result`, one below the other, all to one scale.

    largest  for each product the largest (rows, inner, columns) that it will have: (n, d, m) for
             (n, d) @ (d, m) = (n, m). The room is kept free, so that matrices visibly grow and shrink.

    Each matrix has a colour scale of its own.
    """

    def __init__(self, title: str, largest: Sequence[tuple[int, int, int]]) -> None:
        self.largest = tuple(largest)
        rows, inner, columns = np.array(largest).T
        self.tops = np.cumsum([0, *(LABEL + np.maximum(rows, inner))])  # of each product, and the end
        self.lefts = np.cumsum([0, max(inner) + GAP, max(columns) + GAP, max(columns)])
        super().__init__(title, self.tops[-1], self.lefts[-1])

    def update(self, products: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Show products, each as its three matrices by name, in the order left, right, result.

        Raises ValueError where shapes do not multiply or find no room.
        """
        if len(products) != len(self.largest):
            raise ValueError(f"there is room for {len(self.largest)} products, not {len(products)}")
        places, signs = [], []
        for top, product, largest in zip(self.tops, products, self.largest, strict=False):
            matrices = [np.asarray(m, dtype=float) for m in product.values()]
            _check(product, matrices, largest)
            places += [
                (top, left, *named) for left, *named in zip(self.lefts, product, matrices, strict=False)
            ]
            middle = top + LABEL + len(matrices[0]) / 2
            signs += [
                (left - GAP / 2 - 0.8, middle, sign) for left, sign in zip(self.lefts[1:], "@=", strict=False)
            ]
        self.draw(places, signs)


class Stack(Sheet):
    """Matrices one below the other, all to one scale and on one scale of colours.

    largest  (rows, columns) of the largest one     most  how many there are at most
    """

    def __init__(self, title: str, largest: tuple[int, int], most: int) -> None:
        self.largest, self.most = largest, most
        super().__init__(title, most * (LABEL + largest[0]), largest[1])

    def update(self, matrices: Mapping[str, np.ndarray]) -> None:
        """Show matrices by name.

        Raises ValueError where they find no room.
        """
        arrays = {name: np.asarray(matrix, dtype=float) for name, matrix in matrices.items()}
        for name, array in arrays.items():
            if array.ndim != 2 or any(n > most for n, most in zip(array.shape, self.largest, strict=True)):
                raise ValueError(f"{name} has shape {array.shape}; there is room for {self.largest}")
        if len(arrays) > self.most:
            raise ValueError(f"there is room for {self.most} matrices, not {len(arrays)}")
        step = LABEL + self.largest[0]
        size = max(float(np.nan_to_num(np.abs(array)).max(initial=0.0)) for array in arrays.values())
        self.draw([(i * step, 0, *named) for i, named in enumerate(arrays.items())], size=size)


def _check(product: Mapping[str, np.ndarray], matrices: list[np.ndarray], largest: tuple) -> None:
    """Raise ValueError if the three are no product, or a larger one than there is room for."""
    shapes = [m.shape for m in matrices]
    told = ", ".join(f"{name} {shape}" for name, shape in zip(product, shapes, strict=True))
    fits = len(shapes) == 3 and all(len(shape) == 2 for shape in shapes)
    if not fits or shapes[0][1] != shapes[1][0] or shapes[2] != (shapes[0][0], shapes[1][1]):
        raise ValueError(f"{told} are no left @ right = result")
    if any(n > most for n, most in zip((*shapes[0], shapes[1][1]), largest, strict=True)):
        raise ValueError(f"{told} find no room: it is for (n, d) @ (d, m) with n, d, m up to {largest}")


def _colours(matrix: np.ndarray, size: float | None) -> np.ndarray:
    """(rows, columns, 4) uint8: 0 is white, a number of this size, or the largest, is darkest."""
    size = size or np.nan_to_num(np.abs(matrix)).max() or 1.0
    return PALETTE(0.5 + matrix / size / 2, bytes=True)
