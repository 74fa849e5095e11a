"""The course's one visual language: how weights, scores and shares look, everywhere.

A panel is one picture on one pair of axes. Its frame (ticks, labels, title) is drawn once;
`update` moves the rest. The same panel serves a static picture (`picture`, then `show`)
and a live one (utils.live). Nothing here knows what attention is.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from IPython.display import display
from matplotlib import colormaps, rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont
from matplotlib.patches import Rectangle
from PIL import ImageFont

QUERY, KEY, VALUE = "#D55E00", "#0072B2", "#009E73"  # Okabe and Ito's colour-blind safe palette
INK, FAINT, PALE, EMPTY = "#222222", "#767676", "#A9BDD1", "#F2F2F2"
SHARES, SIGNED = "Blues", "RdBu_r"  # weights 0 ... 1; signed values around 0

STYLE = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "font.family": ["DejaVu Sans"],
    "font.size": 10,
    "axes.titlesize": 11,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}

CELLS_WITH_NUMBERS = 6  # a matrix of up to 6 x 6 has its values written into it
LABELS_IN_FULL = 26  # with more tokens than that, an axis names every second one
ROWS_WITH_NUMBERS = 16  # with more bars than that, only the longest and the marked one have a number


class Panel(Protocol):
    """What a picture, still or live, asks of its panels."""

    moving: list[Artist]

    def attach(self, ax: Axes) -> None:
        """Draw the frame and create what moves."""

    def update(self, *args: Any, **kwargs: Any) -> bool:
        """Show new values; returns whether the frame changed, too, and must be drawn again."""


class Heatmap:
    """A matrix as coloured cells: one row per query, one column per key.

    limit  value of the darkest cell; signed=True colours -limit ... limit
    """

    def __init__(self, title: str = "", limit: float = 1.0, signed: bool = False) -> None:
        self.title, self.limit = title, limit
        self.colours = ScalarMappable(
            Normalize(-limit if signed else 0.0, limit), colormaps[SIGNED if signed else SHARES]
        )
        self.labels: tuple = ()

    def attach(self, ax: Axes) -> None:
        """Draw the frame and create what moves."""
        self.ax = ax
        ax.set(title=self.title, xlabel="key", ylabel="query", facecolor=EMPTY)
        ax.xaxis.label.set_color(KEY)
        ax.yaxis.label.set_color(QUERY)
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
        ax.set_aspect("equal")
        self.cells = ax.add_artist(Cells())
        self.numbers = ax.add_artist(Numbers())
        self.row = ax.add_patch(Rectangle((0, 0), 1, 1, fill=False, ec=QUERY, lw=2, clip_on=False))
        self.cell = ax.add_patch(Rectangle((0, 0), 1, 1, fill=False, ec=KEY, lw=2, clip_on=False))
        self.moving: list[Artist] = [self.cells, self.numbers, self.row, self.cell]

    def update(
        self,
        values: np.ndarray,
        rows: Sequence[str],
        columns: Sequence[str] | None = None,
        mark: tuple[int, int] | None = None,
    ) -> bool:
        """Show (n_q, n_k) values; mark = (query, key) frames a row and a cell of it.

        rows, columns  labels of the axes; cells beyond the values stay empty
        returns        whether the frame (the labels) changed and must be drawn again
        """
        values = np.asarray(values, dtype=float)
        labels = (tuple(rows), tuple(rows if columns is None else columns))
        n_q, n_k = values.shape
        padded = np.full([len(names) for names in labels], np.nan)
        padded[:n_q, :n_k] = values
        self.cells.show(self.colours.to_rgba(padded, bytes=True))
        self.numbers.show(
            (j, i, value, "white" if abs(value) > 0.6 * self.limit else INK)
            for (i, j), value in np.ndenumerate(
                values if max(padded.shape) <= CELLS_WITH_NUMBERS else values[:0]
            )
        )
        for frame in (self.row, self.cell):
            frame.set_visible(mark is not None)
        if mark is not None:
            self.row.set_bounds(-0.5, mark[0] - 0.5, n_k, 1)
            self.cell.set_bounds(mark[1] - 0.45, mark[0] - 0.45, 0.9, 0.9)
        changed, self.labels = labels != self.labels, labels
        if changed:
            _name_ticks(self.ax.yaxis, labels[0])
            _name_ticks(self.ax.xaxis, labels[1])
            self.ax.set(xlim=(-0.5, len(labels[1]) - 0.5), ylim=(len(labels[0]) - 0.5, -0.5))
        return changed


class Bars:
    """A row of shares as horizontal bars, the first token on top, each with its number."""

    def __init__(self, title: str = "", limit: float = 1.0) -> None:
        self.title, self.limit = title, limit
        self.labels: tuple = ()

    def attach(self, ax: Axes) -> None:
        """Draw the frame and create what moves."""
        self.ax = ax
        ax.set(title=self.title, xlabel="share of attention", xlim=(0, 1.15 * self.limit))
        ax.set_xticks(np.linspace(0, self.limit, 6))
        ax.tick_params(axis="y", length=0)
        self.bars = ax.add_collection(PolyCollection([]), autolim=False)
        self.numbers = ax.add_artist(Numbers(align="left"))
        self.moving: list[Artist] = [self.bars, self.numbers]

    def update(self, values: np.ndarray, labels: Sequence[str], mark: int | None = None) -> bool:
        """Show (n,) values; mark is the bar to colour. Returns whether the labels changed."""
        values = np.asarray(values, dtype=float)
        self.bars.set_verts(
            [[(0, i - 0.36), (0, i + 0.36), (v, i + 0.36), (v, i - 0.36)] for i, v in enumerate(values)]
        )
        self.bars.set_facecolor([KEY if i == mark else PALE for i in range(len(values))])
        few = len(labels) <= ROWS_WITH_NUMBERS
        numbered = range(len(values)) if few else {int(values.argmax()), mark} - {None}
        self.numbers.show((values[i] + 0.02 * self.limit, i, values[i], INK) for i in numbered)
        changed, self.labels = tuple(labels) != self.labels, tuple(labels)
        if changed:
            _name_ticks(self.ax.yaxis, self.labels)
            self.ax.set_ylim(len(self.labels) - 0.5, -0.5)
        return changed


class Cells(Artist):
    """A matrix that fills its axes, each entry one plain rectangle: `imshow` is too slow for a slider."""

    def __init__(self) -> None:
        super().__init__()
        self.colours = np.zeros((1, 1, 4), np.uint8)
        self.set_in_layout(False)

    def show(self, colours: np.ndarray) -> None:
        """Take (rows, columns, 4) uint8 RGBA, first row on top."""
        self.colours = colours

    def draw(self, renderer: RendererBase) -> None:
        """Enlarge each entry to its rectangle of pixels (called by matplotlib)."""
        if not self.get_visible():
            return
        left, bottom, right, top = np.round(self.axes.bbox.extents).astype(int)
        rows, columns = self.colours.shape[:2]
        row_of_pixel = (
            np.arange(top - bottom)[::-1] * rows // (top - bottom)
        )  # Agg wants the bottom row first
        column_of_pixel = np.arange(right - left) * columns // (right - left)
        gc = renderer.new_gc()
        renderer.draw_image(gc, left, bottom, self.colours[:, column_of_pixel][row_of_pixel])
        gc.restore()


class Numbers(Artist):
    """Many numbers with two decimals, stamped from a cache: its own texts cost matplotlib too much."""

    def __init__(self, align: str = "center", size: float = 9) -> None:
        super().__init__()
        self.align, self.size, self.items = align, size, []
        self.set_in_layout(False)

    def show(self, items: Iterable[tuple[float, float, float, str]]) -> None:
        """Take (x, y, value, colour), x and y in the axes' own coordinates."""
        self.items = list(items)

    def draw(self, renderer: RendererBase) -> None:
        """Stamp every number where it belongs (called by matplotlib)."""
        if not self.get_visible() or not self.items:
            return
        gc = renderer.new_gc()
        height = round(self.size * renderer.points_to_pixels(1))
        places = self.axes.transData.transform([(x, y) for x, y, _, _ in self.items])
        for (left, middle), (_, _, value, colour) in zip(places, self.items, strict=True):
            stamp = _stamp(f"{value + 0.0:.2f}", colour, height)
            left -= stamp.shape[1] / 2 if self.align == "center" else 0
            renderer.draw_image(gc, round(left), round(middle - stamp.shape[0] / 2), stamp)
        gc.restore()


@lru_cache(maxsize=4096)
def _stamp(text: str, colour: str, height: int) -> np.ndarray:
    """A piece of text as (h, w, 4) RGBA pixels, bottom row first, as Agg wants its images."""
    mask = ImageFont.truetype(findfont("DejaVu Sans"), height).getmask(text)
    alpha = np.array(mask, np.uint8).reshape(mask.size[::-1])[::-1]
    pixels = np.empty((*alpha.shape, 4), np.uint8)
    pixels[..., :3] = np.round(255 * np.array(to_rgb(colour)))
    pixels[..., 3] = alpha
    return pixels


def figure(panels: Sequence[Panel], width: float = 8.0, height: float = 3.8, dpi: int = 100) -> Figure:
    """An empty figure (inches) with the panels side by side, on a canvas of its own."""
    with rc_context(STYLE):
        fig = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
        FigureCanvasAgg(fig)
        for panel, ax in zip(panels, fig.subplots(1, len(panels), squeeze=False)[0], strict=True):
            panel.attach(ax)
    return fig


def lay_out(fig: Figure) -> None:
    """Make room for the labels, always from the same start, so that equal labels give equal pictures."""
    fig.set_layout_engine("constrained")
    for ax in fig.axes:
        ax.set_position(ax.get_subplotspec().get_position(fig))
        ax.set_in_layout(True)
    for _ in range(2):  # the first pass leaves a pixel or so to the second
        fig.draw_without_rendering()
    fig.set_layout_engine("none")


def picture(panel: Panel, width: float = 3.8, height: float = 3.8, **shown: Any) -> Figure:
    """One panel with its values: `shown` is what the panel's `update` takes. Width and height in inches."""
    fig = figure([panel], width, height)
    panel.update(**shown)
    lay_out(fig)
    return fig


def show(fig: Figure, caption: str) -> None:
    """Show a picture and, under it, the sentence that says what it shows with its numbers.

    The caption is what a screen reader gets, and what the tests compare.
    """
    buffer = io.BytesIO()
    with rc_context(STYLE):
        fig.savefig(buffer, format="png", dpi=2 * fig.dpi, metadata={"Software": None})
    picture = base64.b64encode(buffer.getvalue()).decode()
    size = {"width": round(fig.get_figwidth() * fig.dpi)}
    display({"image/png": picture, "text/plain": caption}, metadata={"image/png": size}, raw=True)
    display({"text/markdown": html.escape(caption, quote=False), "text/plain": caption}, raw=True)


def _name_ticks(axis: Axis, labels: Sequence[str]) -> None:
    """A tick for each label; where they would overlap, for every second or third one."""
    step = -(-len(labels) // LABELS_IN_FULL)
    size = 10 if len(labels) <= ROWS_WITH_NUMBERS else 7
    axis.set_ticks(range(0, len(labels), step), labels[::step], fontsize=size)
    for label in axis.get_ticklabels():
        label.set_parse_math(False)  # a token may hold a dollar sign
        if axis.axis_name == "x" and max(map(len, labels)) > 2:
            label.set(rotation=60, ha="right", rotation_mode="anchor")
