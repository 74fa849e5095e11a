"""The course's one visual language: how weights, scores and shares look, everywhere.

A panel is one picture on one pair of axes. Its frame (ticks, labels, title) is drawn once;
`update` moves the rest. The same panel serves a static picture (`picture`, then `show`)
and a live one (utils.live). Nothing here knows what attention is.
"""

from __future__ import annotations

import base64
import io
import re
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol

import numpy as np
from IPython.display import display
from matplotlib import colormaps, rc_context, rcdefaults, rcParams
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from utils.artists import Cells, Numbers, fonts, wants_white

# Okabe and Ito's colour-blind safe palette, the first a shade darker, so that it can be read as text
QUERY, KEY, VALUE = "#C05500", "#0072B2", "#009E73"
INK, FAINT, PALE, EMPTY = "#222222", "#767676", "#7F95AC", "#F2F2F2"
HALO = [withStroke(linewidth=4, foreground="white")]  # a frame is seen on dark cells, too
SHARES, SIGNED = "Blues", "RdBu_r"  # weights 0 ... 1; signed values around 0

STYLE = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
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
LONGEST = 14  # characters of a token that an axis has room for
MOST = 512  # tokens that an axis has room for: a cell is a pixel then
LABELS_IN_FULL = 26  # with more tokens than that, an axis names every second one
ROWS_WITH_NUMBERS = 16  # with more bars than that, only the longest and the marked one have a number,
BARS_NAMED = 6  # up to this many


_one_at_a_time = threading.RLock()  # sliders may be served by another thread than cells


@contextmanager
def style() -> Iterator[None]:
    """The course's look, whatever the reader has set in matplotlib; that comes back after it."""
    with _one_at_a_time, rc_context(), warnings.catch_warnings():
        # an emoji, or Hindi before matplotlib 3.11, in a reader's sentence
        warnings.filterwarnings("ignore", "Glyph .* missing from|Matplotlib currently does not support")
        rcdefaults()
        rcParams.update(STYLE | {"font.family": list(fonts())})
        yield


class Panel(Protocol):
    """What a picture, still or live, asks of its panels.

    moving  what a move of a control changes: it is drawn over the frame
    frame   what the frame says: two that are equal look alike. Of most panels it never changes
    """

    moving: list[Artist]
    frame: tuple

    def attach(self, ax: Axes) -> None:
        """Draw the frame and create what moves."""

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Show new values, in another frame where they need one."""


class Heatmap:
    """A matrix as coloured cells: one row per query, one column per key.

    limit  value of the darkest cell; signed=True colours -limit ... limit
    names  of the two axes, rows first
    digits behind the point of the numbers in a small matrix
    """

    def __init__(
        self,
        title: str = "",
        limit: float = 1.0,
        signed: bool = False,
        names: tuple[str, str] = ("query", "key"),
        digits: int = 2,
    ) -> None:
        self.title, self.limit, self.names, self.digits = title, limit, names, digits
        self.colours = ScalarMappable(
            Normalize(-limit if signed else 0.0, limit), colormaps[SIGNED if signed else SHARES]
        )
        self.frame: tuple = ()  # the labels

    def attach(self, ax: Axes) -> None:
        """Draw the frame and create what moves."""
        _attach_once(self)
        self.ax = ax
        ax.set(title=self.title, ylabel=self.names[0], xlabel=self.names[1], facecolor=EMPTY)
        for label in (ax.xaxis.label, ax.yaxis.label):
            label.set_color({"query": QUERY, "key": KEY}.get(label.get_text(), INK))
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
        ax.set_aspect("equal")
        self.cells = ax.add_artist(Cells())
        self.numbers = ax.add_artist(Numbers())
        frame = {"fill": False, "lw": 2, "clip_on": False, "path_effects": HALO}
        self.row = ax.add_patch(Rectangle((0, 0), 1, 1, ec=QUERY, **frame))
        self.cell = ax.add_patch(Rectangle((0, 0), 1, 1, ec=KEY, **frame))
        self.moving: list[Artist] = [self.cells, self.numbers, self.row, self.cell]

    def update(
        self,
        values: np.ndarray,
        rows: Sequence[str],
        columns: Sequence[str] | None = None,
        mark: tuple[int, int] | None = None,
    ) -> None:
        """Show (n_q, n_k) values; mark = (query, key) frames a row and a cell of it.

        rows, columns  labels of the axes; cells beyond the values stay empty
        """
        labels = (_names(rows), _names(rows if columns is None else columns))
        values = _checked(values, labels, mark)
        n_q, n_k = values.shape
        padded = np.full([len(names) for names in labels], np.nan)
        padded[:n_q, :n_k] = values
        colours = self.colours.to_rgba(padded, bytes=True)
        self.cells.show(colours)
        written = values if max(padded.shape) <= CELLS_WITH_NUMBERS else values[:0]
        white = wants_white(colours[: len(written)])
        self.numbers.show(
            (j, i, f"{value:z.{self.digits}f}", "white" if white[i, j] else "black")
            for (i, j), value in np.ndenumerate(written)
        )
        for frame in (self.row, self.cell):
            frame.set_visible(mark is not None)
        if mark is not None:
            self.row.set_bounds(-0.5, mark[0] - 0.5, n_k, 1)
            self.cell.set_bounds(mark[1] - 0.45, mark[0] - 0.45, 0.9, 0.9)
        if labels != self.frame:
            self.frame = ()  # until all of it is done
            _name_ticks(self.ax.yaxis, labels[0])
            _name_ticks(self.ax.xaxis, labels[1])
            self.ax.set(xlim=(-0.5, len(labels[1]) - 0.5), ylim=(len(labels[0]) - 0.5, -0.5))
            self.frame = labels


class Bars:
    """A row of shares as horizontal bars, the first on top, each with its number; `name` says of what."""

    def __init__(self, title: str = "", limit: float = 1.0, name: str = "share of attention") -> None:
        self.title, self.limit, self.name = title, limit, name
        self.frame: tuple = ()  # the labels

    def attach(self, ax: Axes) -> None:
        """Draw the frame and create what moves."""
        _attach_once(self)
        self.ax = ax
        ax.set(title=self.title, xlabel=self.name, xlim=(0, 1.15 * self.limit))
        ax.set_xticks(np.linspace(0, self.limit, 6))
        ax.tick_params(axis="y", length=0)
        self.bars = ax.add_collection(PolyCollection([]), autolim=False)
        self.numbers = ax.add_artist(Numbers(align="left"))
        self.moving: list[Artist] = [self.bars, self.numbers]

    def update(self, values: np.ndarray, labels: Sequence[str], mark: int | None = None) -> None:
        """Show (n,) values; mark is the bar to colour."""
        names = _names(labels)
        values = _checked(values, (names,), None if mark is None else (mark,))
        lengths = np.clip(np.nan_to_num(values), 0, self.limit)  # the number tells the value, whatever it is
        self.bars.set_verts(
            [[(0, i - 0.36), (0, i + 0.36), (v, i + 0.36), (v, i - 0.36)] for i, v in enumerate(lengths)]
        )
        self.bars.set_facecolor([KEY if i == mark else PALE for i in range(len(values))])
        self.numbers.show(
            (lengths[i] + 0.02 * self.limit, i, self._text(values[i], names[i], len(names)), INK)
            for i in _numbered(lengths, len(names), mark)
        )
        if names != self.frame:
            self.frame = ()  # until all of it is done
            _name_ticks(self.ax.yaxis, names)
            self.ax.set_ylim(len(names) - 0.5, -0.5)
            self.frame = names

    @staticmethod
    def _text(value: float, name: str, count: int) -> str:
        """The number; where the axis has no room for every name, the name too."""
        return f"{value:z.2f}" if count <= LABELS_IN_FULL else f"{value:z.2f} {short(name)}"


def _numbered(lengths: np.ndarray, count: int, mark: int | None) -> list[int]:
    """Which bars get a number: all, if there is room; else the marked one and the longest, none too close."""
    if count <= ROWS_WITH_NUMBERS:
        return list(range(len(lengths)))
    chosen = [] if mark is None else [mark]
    for i in np.argsort(-lengths, kind="stable")[:BARS_NAMED]:
        if all(abs(int(i) - other) > 1 for other in chosen):
            chosen.append(int(i))
    return chosen


def figure(
    panels: Sequence[Panel],
    width: float = 8.0,
    height: float = 3.8,
    mosaic: str = "",
    widths: Sequence[float] | None = None,
    heights: Sequence[float] | None = None,
    dpi: int = 100,
) -> Figure:
    """An empty figure (inches) with the panels side by side, on a canvas of its own.

    mosaic           where they lie instead, A being the first panel: "AB;AC" puts B above C, both beside A
    widths, heights  how columns and rows of the mosaic share the figure; equally, if left out
    """
    letters = "ABCDEFGH"[: len(panels)]
    with style():
        fig = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
        FigureCanvasAgg(fig)
        axes = fig.subplot_mosaic(mosaic or letters, width_ratios=widths, height_ratios=heights)
        for panel, letter in zip(panels, letters, strict=True):
            panel.attach(axes[letter])
    return fig


def lay_out(fig: Figure) -> None:
    """Make room for the labels, always from the same start, so that equal labels give equal pictures."""
    fig.set_layout_engine("constrained")
    for ax in fig.axes:
        ax.set_position(ax.get_subplotspec().get_position(fig))
        ax.set_in_layout(True)
    fig.get_layout_engine().execute(fig)
    fig.set_layout_engine("none")


def picture(panel: Panel, width: float = 3.8, height: float = 3.8, **shown: Any) -> Figure:
    """One panel with its values: `shown` is what the panel's `update` takes. Width and height in inches."""
    fig = figure([panel], width, height)
    panel.update(**shown)
    with style():
        lay_out(fig)
    return fig


def heatmaps(
    shown: Mapping[str, np.ndarray],
    rows: Sequence[str],
    columns: Sequence[str] | Literal["count"] | None = None,
    width: float = 8.4,
    height: float = 3.2,
    **options: Any,
) -> Figure:
    """Several matrices side by side, title -> values, rows with the same labels; options are Heatmap's.

    columns  their labels, too, where they are not those of the rows; "count" numbers them
    """
    panels = [Heatmap(title, **options) for title in shown]
    fig = figure(panels, width, height, widths=[values.shape[-1] + 2 for values in shown.values()])
    for panel, values in zip(panels, shown.values(), strict=True):
        panel.update(values, rows, range(values.shape[-1]) if columns == "count" else columns)
    with style():
        lay_out(fig)
    return fig


def show(fig: Figure, caption: str) -> None:
    """Show a picture and, under it, the sentence that says what it shows with its numbers.

    The caption is what a screen reader gets, and what the tests compare.
    """
    buffer = io.BytesIO()
    with style():
        fig.savefig(buffer, format="png", dpi=2 * fig.dpi, metadata={"Software": None})
    data = base64.b64encode(buffer.getvalue()).decode()
    size = {"width": round(fig.get_figwidth() * fig.dpi)}
    display({"image/png": data, "text/plain": caption}, metadata={"image/png": size}, raw=True)
    literal = re.sub(r"([\\`*_{}\[\]<>#$|~&])", r"\\\1", caption)  # no Markdown, no HTML, no formulas
    display({"text/markdown": literal, "text/plain": caption}, raw=True)


def _attach_once(panel: Panel) -> None:
    if hasattr(panel, "ax"):
        raise ValueError(f"this {type(panel).__name__} belongs to a figure already: make one for each figure")


def _names(labels: Sequence[object]) -> tuple[str, ...]:
    if len(labels) > MOST:
        raise ValueError(f"a picture has room for {MOST} tokens, not for {len(labels)}: show a part of them")
    return tuple(str(label) for label in labels)


def _checked(values: Any, labels: tuple[tuple[str, ...], ...], mark: tuple[int, ...] | None) -> np.ndarray:
    """The values as floats, if they fit the labels' axes and the mark lies among them."""
    values = np.asarray(values, dtype=float)
    room = tuple(len(names) for names in labels)
    if (
        values.ndim != len(room)
        or 0 in values.shape
        or any(n > m for n, m in zip(values.shape, room, strict=True))
    ):
        raise ValueError(f"values of shape {values.shape} do not fit axes with {room} labels")
    if mark is not None and not all(0 <= m < n for m, n in zip(mark, values.shape, strict=True)):
        raise ValueError(f"the mark {mark} lies outside the values, which have shape {values.shape}")
    return values


def short(label: str) -> str:
    """A token as a picture shows it: one line, no more than LONGEST characters, none that cannot be seen."""
    seen = "".join(letter for letter in " ".join(label[:999].split()) if letter.isprintable())
    return seen if len(seen) <= LONGEST else f"{seen[: LONGEST - 1]}…"


def _name_ticks(axis: Axis, labels: Sequence[str]) -> None:
    """A tick for each label; where they would overlap, for every second or third one."""
    step = -(-len(labels) // LABELS_IN_FULL)
    size = 10 if len(labels) <= 11 else 8 if len(labels) <= ROWS_WITH_NUMBERS else 7
    names = [short(label) for label in labels]
    axis.set_ticks(range(0, len(labels), step), names[::step], fontsize=size)
    slanted = axis.axis_name == "x" and max(map(len, names)) > 2
    for label in axis.get_ticklabels():
        label.set_parse_math(False)  # a token may hold a dollar sign
        if axis.axis_name == "x":
            label.set(rotation=60 if slanted else 0, ha="right" if slanted else "center")
            label.set_rotation_mode("anchor" if slanted else "default")
