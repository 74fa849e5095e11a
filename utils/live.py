"""Live figures: move a control, see the picture and its sentence change at once.

A live figure is made of controls, panels (utils.plots) and one function of plain values
that computes what to show. What makes it fast: axes, ticks and labels are drawn once and
kept as a background; a move only draws what moved on top of it and sends one PNG.
"""

from __future__ import annotations

import asyncio
import base64
import html
import time
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import ipywidgets as widgets
import numpy as np
from matplotlib import rc_context
from traitlets import Any as AnyTrait
from traitlets import HasTraits

from utils import plots
from utils.png import to_png

BUSY = 0.010  # s: an event this soon after a draw means that more are waiting
SOON = 0.004  # s: how long to let them arrive before one draw serves them all


@dataclass
class Choice:
    """A control: what can be chosen, what is chosen at the start.

    options  values or (label, value) pairs, or a function of other controls' values that
             returns them: `lambda seq_len: range(seq_len)` follows the control seq_len
    start    the value chosen at the start; left out, the last option, whatever it is
    kind     the widget: "slider" (at least two options), "menu" or "buttons"

    Only listed options can be chosen, so a control never holds an invalid value.
    """

    options: Iterable | Callable[..., Iterable]
    start: Any = None
    kind: str = "slider"

    def pairs(self, values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
        """What can be chosen, as (label, value) pairs, given the values of the other controls."""
        options = self.options
        if callable(options):
            options = options(**{name: values[name] for name in signature(options).parameters})
        pairs = tuple(o if isinstance(o, tuple) else (_label(o), o) for o in options)
        if len(pairs) < (2 if self.kind == "slider" else 1):
            raise ValueError(f"a {self.kind} needs more to choose from than {[label for label, _ in pairs]}")
        return pairs


class _Chosen(AnyTrait):
    """A value that is never None: ipywidgets itself would let a control be set to nothing."""

    allow_none = False

    def validate(self, obj: HasTraits, value: object) -> object:
        if value is None:
            self.error(obj, value)
        return value


class _Slider(widgets.SelectionSlider):
    value = _Chosen()


class _Menu(widgets.Dropdown):
    value = _Chosen()


class _Buttons(widgets.ToggleButtons):
    value = _Chosen()


KINDS = {"slider": _Slider, "menu": _Menu, "buttons": _Buttons}


class LiveFigure:
    """A picture that answers to its controls.

    draw      called with the controls' values by name; returns a dict with, for each panel,
              the arguments of its `update`, and a "sentence" that says what is seen
              (and, if it likes, a "trace": lines of arithmetic shown under it)
    panels    name -> panel, drawn side by side
    controls  name -> Choice; one may depend on those before it
    width, height  of the picture in inches (100 pixels each)

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
    ) -> None:
        self._draw, self._panels = _with_its_own_globals(draw), dict(panels)
        self._choices = {n: replace(c, options=_with_its_own_globals(c.options)) for n, c in controls.items()}
        self._figure = plots.figure(list(panels.values()), width, height)
        self._background: Any = None
        self._wishes = {name: choice.start for name, choice in controls.items()}
        self._last_draw, self._planned, self._adjusting = 0.0, False, False

        self.image = widgets.Image(
            format="png", layout={"width": f"{100 * width:.0f}px", "max_width": "100%"}
        )
        self.sentence = widgets.HTML()
        self.error = widgets.HTML()
        self.controls = self._make_controls()
        for name, control in self.controls.items():
            if hasattr(self, name):
                raise ValueError(f"a control cannot be called {name!r}: every live figure has that already")
            setattr(self, name, control)
        self.redraw()
        for control in self.controls.values():
            control.observe(self._moved, "value")
        columns = {"grid_template_columns": "repeat(auto-fill, minmax(22em, 1fr))", "max_width": "60em"}
        grid = widgets.GridBox(list(self.controls.values()), layout=columns)
        self.box = widgets.VBox([grid, self.image, self.sentence, self.error])

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
                raise ValueError(
                    f"{name} cannot start at {choice.start!r}: it offers {[v for _, v in options]}"
                )
            made[name] = KINDS[choice.kind](
                options=options,
                value=self._granted(name, options),
                description=name,
                style={"description_width": "6.5em"},
                layout={"width": "auto"},
            )
        return made

    def _granted(self, name: str, options: Sequence[tuple[str, Any]]) -> Any:
        """What was last asked for, if that is on offer now; else the last option."""
        values = [value for _, value in options]
        return self._wishes[name] if self._wishes[name] in values else values[-1]

    def _fit_options(self) -> None:
        """Let options follow the controls that they depend on."""
        self._adjusting = True
        try:
            for name, control in self.controls.items():
                if not callable(self._choices[name].options):
                    continue
                options = self._choices[name].pairs(self.values)
                if options != control.options:
                    with control.hold_sync():  # the page hears of both changes at once
                        control.options = options  # jumps to the first option ...
                        control.value = self._granted(name, options)  # ... and back
        finally:
            self._adjusting = False

    # -- drawing ----------------------------------------------------------------------

    def _moved(self, change: dict[str, Any]) -> None:
        """Draw at once; but while events queue up, let one draw serve all that are waiting."""
        if self._adjusting:
            return
        self._wishes[change["owner"].description] = change["new"]
        with self._errors_shown():
            self._fit_options()
        if self._planned:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # no kernel: nothing can be waiting
            self.redraw()
            return
        if time.perf_counter() - self._last_draw > BUSY:
            self.redraw()
        else:
            self._planned = True
            loop.call_later(SOON, self.redraw)

    def redraw(self) -> None:
        """Compute and draw what the controls say now."""
        self._planned = False
        try:
            with self._errors_shown():
                shown = self._draw(**self.values)
                if missing := {*self._panels, "sentence"} - set(shown):
                    raise ValueError(f"the draw function returned nothing for {sorted(missing)}")
                changed = [panel.update(**shown[name]) for name, panel in self._panels.items()]
                self.image.value = self._paint(any(changed))  # first, as the page takes longer over it
                self._tell(shown["sentence"], shown.get("trace", ()))
        finally:
            self._last_draw = time.perf_counter()

    @contextmanager
    def _errors_shown(self) -> Iterator[None]:
        """Whatever goes wrong is shown in red under the picture, and raised; what goes well clears that."""
        try:
            yield
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
            self.error.value = f'<p role="alert" style="color:#B00020">{_safe(words)}</p>'
            self._background = None  # some panels may have changed, others not: draw all of them next time
            raise
        self.error.value = ""

    def _tell(self, sentence: str, trace: Iterable[str]) -> None:
        """The text under the picture: what is seen, in words, and the arithmetic behind it."""
        self.plain = sentence
        self.sentence.value = (
            '<p aria-live="polite" style="line-height:1.5;min-height:3em;margin:0 0 .4em">'
            f"{_safe(sentence)}</p>"
            f'<pre style="line-height:1.4;margin:0;overflow-x:auto">{_safe(chr(10).join(trace))}</pre>'
        )

    def _paint(self, frame_changed: bool) -> bytes:
        """The picture as PNG: the stored background with the moving artists drawn over it."""
        moving = [artist for panel in self._panels.values() for artist in panel.moving]
        canvas = self._figure.canvas
        if self._background is None or frame_changed:
            self._background = self._draw_background(moving)
        canvas.restore_region(self._background)
        for artist in moving:
            artist.axes.draw_artist(artist)
        return to_png(np.asarray(canvas.buffer_rgba()))

    def _draw_background(self, moving: list) -> Any:
        """Everything that stays: drawn with the moving artists hidden, for they are drawn over it."""
        visible = [artist.get_visible() for artist in moving]
        for artist in moving:
            artist.set_visible(False)
        with warnings.catch_warnings(), rc_context(plots.STYLE):
            warnings.filterwarnings("ignore", "Glyph .* missing from")  # an emoji in a reader's sentence
            plots.lay_out(self._figure)
            self._figure.canvas.draw()
        for artist, was in zip(moving, visible, strict=True):
            artist.set_visible(was)
        return self._figure.canvas.copy_from_bbox(self._figure.bbox)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """The live widget where a kernel runs; a picture and its sentence everywhere else."""
        view = {"version_major": 2, "version_minor": 0, "model_id": self.box.model_id}
        return {
            "application/vnd.jupyter.widget-view+json": view,
            "image/png": base64.b64encode(self.image.value).decode(),
            "text/plain": self.plain,
        }


def _with_its_own_globals(function: Any) -> Any:
    """A notebook's function as it is now: a later cell may use one of its names for something else."""
    if not isinstance(function, types.FunctionType):
        return function
    copy = types.FunctionType(
        function.__code__,
        dict(function.__globals__),
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _safe(text: object) -> str:
    """Text from a reader may hold HTML."""
    return html.escape(str(text))


def _label(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
