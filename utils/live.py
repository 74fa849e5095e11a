"""Live figures: move a control, see the picture and its sentence change at once.

A live figure is made of controls, panels (utils.plots) and one function of plain values
that computes what to show. What makes it fast: axes, ticks and labels are drawn once and
kept as a background, one for each set of labels that was shown; a move only draws what moved
on top of it and sends one PNG.
"""

from __future__ import annotations

import asyncio
import base64
import html
import math
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unicodedata import east_asian_width

import ipywidgets as widgets
import numpy as np
import torch
from matplotlib.artist import Artist

from utils import plots, spoken
from utils.controls import KINDS, Choice, with_own_globals
from utils.png import to_png

__all__ = ["Choice", "LiveFigure"]

LABELLED = {"description_width": "6.5em"}
STYLES = {"slider": LABELLED, "menu": LABELLED, "buttons": LABELLED | {"button_width": "auto"}}
BUSY = 0.010  # s: an event this soon after a draw means that more are waiting
KEPT = 64  # backgrounds of a figure
SPARE = 2  # lines of arithmetic that may be added before the page moves
LONGEST_ERROR = 500  # characters: a page need not take more of what went wrong
SOON = 0.004  # s: how long to let them arrive before one draw serves them all
ERROR = "color:#B00020;background:white;padding:.2em .4em"  # with a ground of its own, for dark themes


class LiveFigure:
    """A picture that answers to its controls.

    draw      called with the controls' values by name; returns a dict with, for each panel,
              the arguments of its `update`, and a "sentence" that says what is seen
              (and, if it likes, a "trace": lines of arithmetic shown under it)
    panels    name -> panel, drawn side by side
    controls  name -> Choice; one may depend on those before it
    width, height  of the picture in inches (100 pixels each)
    arrangement  where the panels lie, if not side by side: what plots.figure takes (mosaic, widths, heights)

    Each control is an attribute (fig.seq_len), as are fig.image and fig.sentence.
    `fig.redraw()` draws now, with or without a running kernel. Whatever `draw` raises is
    raised, and shown in red under the picture, which keeps its last good state.
    """

    def __init__(
        self,
        draw: Callable[..., dict[str, Any]],
        panels: Mapping[str, plots.Panel],
        controls: Mapping[str, Choice],
        width: float = 8.0,
        height: float = 3.8,
        **arrangement: Any,
    ) -> None:
        self._draw, self._panels, self._choices = with_own_globals(draw), dict(panels), dict(controls)
        self._figure = plots.figure(list(panels.values()), width, height, **arrangement)
        self._backgrounds: dict[tuple, tuple[bytes, list]] = {}  # the panels' frames -> what stays, and where
        self._frames: tuple | None = None  # those that the background shows
        self._wishes = {name: choice.start for name, choice in controls.items()}
        self._adjusting, self._last_draw = False, 0.0
        self._planned: asyncio.AbstractEventLoop | None = None  # the loop that will draw soon
        self._lock = threading.RLock()  # a kernel may serve sliders on another thread than cells

        self.image = spoken.Picture(layout={"width": f"{100 * width:.0f}px", "max_width": "calc(100% - 4px)"})
        self.sentence, self.error = widgets.HTML(), widgets.HTML()
        self._said, self._moved_to = (f"{self.sentence.model_id}-{part}" for part in ("said", "moved"))
        region = spoken.LOOKS + spoken.region(self._moved_to, self._said)
        announcer = widgets.HTML(region, layout=spoken.NO_ROOM)
        self.plain = ""  # the sentence as plain text
        self._trace = ""  # the lines of arithmetic under it
        self._room = 0  # lines of arithmetic that have room: never less, so that a wide page stands still
        self.controls = self._make_controls()
        columns = {"grid_template_columns": "repeat(auto-fill, minmax(22em, 1fr))", "max_width": "60em"}
        grid = widgets.GridBox(list(self.controls.values()), layout=columns)
        self.box = widgets.VBox([grid, self.image, announcer, self.sentence, self.error])
        self.box.add_class("live-figure").add_class(spoken.CONTROLS)
        self._touched: widgets.Widget | None = None  # the control that was moved last
        for name, control in self.controls.items():
            if hasattr(self, name):
                raise ValueError(f"a control cannot be called {name!r}: every live figure has that already")
            setattr(self, name, control)
            control.observe(self._moved, "value")
        self.redraw()

    # -- controls ---------------------------------------------------------------------

    @property
    def values(self) -> dict[str, Any]:
        """What the controls say now."""
        return {name: control.value for name, control in self.controls.items()}

    def _make_controls(self) -> dict[str, widgets.Widget]:
        made: dict[str, widgets.Widget] = {}
        for name, choice in self._choices.items():
            options = choice.pairs({n: w.value for n, w in made.items()})
            if choice.start is not None and choice.start not in [value for _, value in options]:
                offered = [value for _, value in options]
                raise ValueError(f"{name} cannot start at {choice.start!r}: it offers {offered}")
            made[name] = KINDS[choice.kind](
                options=options,
                value=self._granted(name, options),
                description=name,
                style=STYLES[choice.kind],
                layout={"width": "auto"},
            )
        return made

    def _wish(self, control: widgets.Widget) -> None:
        """Remember what was asked for; "the last option" where that is also where the control starts."""
        name = control.description
        at_the_end = self._choices[name].start is None and control.index == len(control.options) - 1
        self._wishes[name] = None if at_the_end else control.value

    def _granted(self, name: str, options: Sequence[tuple[str, Any]]) -> Any:
        """What was last asked for, if that is on offer now; else the last option."""
        values = [value for _, value in options]
        return self._wishes[name] if self._wishes[name] in values else values[-1]

    def _fitting(self) -> dict[str, tuple[Sequence[tuple[str, Any]], Any]]:
        """The controls that others oblige to offer something else: name -> options, the chosen value."""
        found, values = {}, self.values
        for name, control in self.controls.items():
            if callable(self._choices[name].options):
                options = self._choices[name].pairs(values)
                if options != control.options:
                    values[name] = self._granted(name, options)
                    found[name] = options, values[name]
        return found

    def _fit(self, fitting: dict[str, tuple[Sequence[tuple[str, Any]], Any]]) -> None:
        """Let those controls offer it."""
        self._adjusting = True
        try:
            for name, (options, value) in fitting.items():
                _offer(self.controls[name], options, value)
        finally:
            self._adjusting = False

    # -- drawing ----------------------------------------------------------------------

    def _moved(self, change: dict[str, Any]) -> None:
        """Draw at once; but while events queue up, let one draw serve all that are waiting."""
        with self._lock:
            if self._adjusting:
                return
            self._touched = change["owner"]
            self._wish(self._touched)
            loop = _running_loop()
            if loop is None or time.perf_counter() - self._last_draw > BUSY:
                self.redraw()
                return
            with self._errors_shown():
                self._fit(self._fitting())
            if self._planned is not loop:
                self._planned = loop
                loop.call_later(SOON, self.redraw)

    def redraw(self) -> None:
        """Compute and draw what the controls say now."""
        with self._lock, self._errors_shown():
            self._planned = None
            try:
                fitting = self._fitting()
                try:
                    self._show(self.values | {name: value for name, (_, value) in fitting.items()})
                finally:
                    self._fit(fitting)  # last: the picture need not wait for what the page does with sliders
            finally:
                self._last_draw = time.perf_counter()

    def _show(self, values: dict[str, Any]) -> None:
        """Send picture and text for these values of the controls."""
        shown = self._computed(values)
        for name, panel in self._panels.items():
            panel.update(**shown[name])
        picture = self._paint()
        trace = "\n".join(shown.get("trace", ()))
        text = self._as_html(shown["sentence"], trace)
        self.image.show(picture)  # first, as the page takes longer over it
        self.sentence.value, self.plain, self._trace = text, shown["sentence"], trace
        self.error.value = ""

    def _computed(self, values: dict[str, Any]) -> dict[str, Any]:
        """What the draw function returns, if it is all that is needed."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # for arrays this small, waking a second thread costs more than it gives
        try:
            shown = self._draw(**values)
        finally:
            torch.set_num_threads(threads)
        if not isinstance(shown, dict):
            raise TypeError(f"the draw function must return a dict, not {type(shown).__name__}")
        needed = {*self._panels, "sentence"}
        if missing := needed - set(shown):
            raise ValueError(f"the draw function returned nothing for {sorted(missing)}")
        if unknown := set(shown) - needed - {"trace"}:
            raise ValueError(f"the draw function returned {sorted(unknown)}, for which there is no panel")
        return shown

    @contextmanager
    def _errors_shown(self) -> Iterator[None]:
        """Whatever goes wrong is shown in red under the picture, and raised."""
        try:
            yield
        except BaseException as error:  # an interrupt, too, leaves some panels changed and others not:
            self._frames = None  # draw all of them next time
            words = html.escape(f"{type(error).__name__}: {error}"[:LONGEST_ERROR])
            self.error.value = f'<p role="alert" style="{ERROR}">{words}</p>'
            raise

    def _as_html(self, sentence: str, trace: str) -> str:
        """The text under the picture: what is seen, in words, and the arithmetic behind it.

        Unseen, the control that was moved is named first: ipywidgets gives a slider's handle no name.
        """
        lines = _lines(trace, self._figure.get_figwidth())
        self._room = max(self._room or lines + SPARE, lines) if lines else self._room
        moved = self._touched and f"{self._touched.description} {self._touched.label}."
        width = f"white-space:pre-wrap;max-width:{self.image.layout.width}"
        room = f"line-height:1.4;min-height:{1.4 * self._room:.1f}em;margin:0"
        return (
            spoken.part(self._moved_to, moved or "", spoken.UNSEEN)
            + spoken.part(self._said, sentence, "line-height:1.5;min-height:3em;margin:0 0 .4em")
            + f'<pre style="{width};{room}">{html.escape(trace)}</pre>'
        )

    def _paint(self) -> bytes:
        """The picture as PNG: the stored background with the moving artists drawn over it."""
        frames = tuple(panel.frame for panel in self._panels.values())
        if frames != self._frames:
            self._background = self._background_of(frames)
            self._frames = frames
        pixels = np.asarray(self._figure.canvas.buffer_rgba())
        pixels[:] = self._background
        for artist in self._moving():
            artist.axes.draw_artist(artist)
        return to_png(pixels)

    def _background_of(self, frames: tuple) -> np.ndarray:
        """What stays: drawn once for such frames and kept, packed to some 30 KiB, with the axes' places."""
        if frames not in self._backgrounds:
            packed = zlib.compress(self._draw_background(), 1)
            places = [(ax, ax.get_position(original=True), ax.get_position()) for ax in self._figure.axes]
            self._backgrounds[frames] = packed, places
            if len(self._backgrounds) > KEPT:
                del self._backgrounds[next(iter(self._backgrounds))]  # the oldest
        packed, places = self._backgrounds[frames]
        for ax, original, active in places:
            ax.set_position(original, which="original")
            ax.set_position(active, which="active")
        shape = np.shape(self._figure.canvas.buffer_rgba())
        return np.frombuffer(zlib.decompress(packed), np.uint8).reshape(shape)

    def _draw_background(self) -> np.ndarray:
        """Draw everything that stays, with the moving artists hidden, for they are drawn over it."""
        moving = self._moving()
        visible = [artist.get_visible() for artist in moving]
        try:
            for artist in moving:
                artist.set_visible(False)
            with plots.style():
                plots.lay_out(self._figure)
                self._figure.canvas.draw()
        finally:
            for artist, was in zip(moving, visible, strict=True):
                artist.set_visible(was)
        return np.asarray(self._figure.canvas.buffer_rgba())

    def _moving(self) -> list[Artist]:
        return [artist for panel in self._panels.values() for artist in panel.moving]

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The live widget where a kernel runs; a picture and its sentence everywhere else.

        The arithmetic goes with the picture as metadata, for pages at rest: a notebook's tests compare
        texts, and its last digits may differ from one machine to the next.
        """
        if self._planned:
            self.redraw()
        view = {"version_major": 2, "version_minor": 0, "model_id": self.box.model_id}
        data = {
            "application/vnd.jupyter.widget-view+json": view,
            "image/png": base64.b64encode(self.image.png).decode(),
            "text/plain": self.plain,
        }
        return data, {"image/png": {"trace": self._trace}} if self._trace else {}


def _offer(control: widgets.Widget, options: Sequence[tuple[str, Any]], value: Any) -> None:
    """Give a control other options, and choose one of them.

    The page must never hear of other options and another place in them at once: its slider would keep the
    old range. So the place changes before the options or, where it is not there yet, after them.
    """
    place = [v for _, v in options].index(value)
    if place < len(control.options):
        control.index = place
    before = control.index
    with control.hold_sync():
        control.options = options  # jumps to the first option ...
        control.index = before  # ... and back
    control.index = place


def _lines(text: str, width: float) -> int:
    """How many lines a text may take under a picture of this width: ten letters an inch, five wide ones."""
    letters = ([1 + (east_asian_width(letter) in "WF") for letter in line] for line in text.splitlines())
    return sum(max(1, math.ceil(sum(wide) / (10 * width))) for wide in letters)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:  # no kernel: nothing can be waiting
        return None
