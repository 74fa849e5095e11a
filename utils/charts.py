"""Two more panels: how often values occur, and lines over one variable."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from utils.plots import INK, KEY, QUERY, VALUE

COLOURS = (KEY, QUERY, VALUE, INK)


class Histogram:
    """How often values occur: one bar per unit of width, from -limit to limit.

    What lies outside is counted in the outermost bars. `top` is the largest share that fits.
    """

    frame = ()  # never changes

    def __init__(self, title: str = "", limit: int = 40, name: str = "score", top: float = 0.5) -> None:
        self.title, self.limit, self.name, self.top = title, limit, name, top

    def attach(self, ax: Axes) -> None:
        """Draw the frame and create what moves."""
        self.ax = ax
        ax.set(title=self.title, xlabel=self.name, ylabel="share")
        ax.set(xlim=(-self.limit - 0.5, self.limit + 0.5), ylim=(0, self.top))
        self.bars = ax.add_collection(PolyCollection([], facecolor=KEY), autolim=False)
        self.moving: list[Artist] = [self.bars]

    def update(self, values: np.ndarray) -> None:
        """Show any number of finite values."""
        rounded = np.clip(np.rint(np.asarray(values, dtype=float).ravel()), -self.limit, self.limit)
        places, counts = np.unique(rounded, return_counts=True)
        heights = np.minimum(counts / max(1, len(rounded)), self.top)
        self.bars.set_verts(
            [
                [(x - 0.5, 0), (x - 0.5, h), (x + 0.5, h), (x + 0.5, 0)]
                for x, h in zip(places, heights, strict=True)
            ]
        )


class Curves:
    """A few lines over one variable, and a point that moves along one of them.

    x       the places, n of them          lines   the lines' names, for the legend
    names   of the two axes                limits  lowest and highest value of the vertical axis
    log     which axes are logarithmic: "x", "y", "xy" or ""
    """

    frame = ()  # never changes

    def __init__(
        self,
        x: Sequence[float],
        lines: Sequence[str],
        names: tuple[str, str] = ("", ""),
        limits: tuple[float, float] = (0.0, 1.0),
        log: str = "",
        title: str = "",
    ) -> None:
        self.x, self.names, self.lines, self.limits = list(x), names, list(lines), limits
        self.log, self.title = log, title

    def attach(self, ax: Axes) -> None:
        """Draw the frame and create what moves."""
        self.ax = ax
        ax.set(title=self.title, xlabel=self.names[0], ylabel=self.names[1])
        if "x" in self.log:
            ax.set_xscale("log", base=2)
            ax.xaxis.set_major_locator(FixedLocator(self.x[:: -(-len(self.x) // 6)]))
            ax.xaxis.set_minor_locator(NullLocator())
            ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            ax.set_xlim(self.x[0] / 1.2, self.x[-1] * 1.2)
        else:
            ax.set_xlim(self.x[0], self.x[-1])
        ax.set_yscale("log" if "y" in self.log else "linear")
        ax.set_ylim(*self.limits)
        self.drawn = [
            ax.add_line(Line2D(self.x, [np.nan] * len(self.x), color=colour, lw=1.5, label=name))
            for name, colour in zip(self.lines, COLOURS, strict=False)
        ]
        self.point = ax.add_line(Line2D([], [], marker="o", ms=8, mfc="white", mew=2, ls="none"))
        if len(self.lines) > 1:
            above = {"loc": "lower right", "bbox_to_anchor": (1, 0.97), "ncols": len(self.lines)}
            ax.legend(handles=self.drawn, frameon=False, fontsize=8, **above)
        self.moving: list[Artist] = [*self.drawn, self.point]

    def update(self, values: Sequence[Sequence[float]], mark: tuple[int, int] | None = None) -> None:
        """Show the lines' heights, (lines, n); mark = (line, place) puts the point.

        NaN stands for no height. Raises ValueError where there are more or fewer heights than places.
        """
        heights = np.asarray(values, dtype=float)
        if heights.shape != (len(self.lines), len(self.x)):
            raise ValueError(
                f"{heights.shape} heights do not fit {len(self.lines)} lines of {len(self.x)} points"
            )
        for line, height in zip(self.drawn, heights, strict=True):
            line.set_ydata(height)
        self.point.set_visible(mark is not None)
        if mark is not None:
            line, place = mark
            self.point.set_data([self.x[place]], [heights[line, place]])
            self.point.set_markeredgecolor(COLOURS[line])
