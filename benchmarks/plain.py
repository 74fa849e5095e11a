"""The peer of a live figure: the same scene as tutorials draw it, with `interact` and `plt.show()`.

It runs in the notebook's own kernel: `remember()` before the notebook's cells, `plain(figure)` after them.
The peer draws the same panels, its cells with `imshow` and its numbers with `text`, and without the layout
that makes room for labels: tutorials leave that out.
"""

from __future__ import annotations

import copy
from typing import Any

import ipywidgets as widgets
import matplotlib.pyplot as plt
from IPython.display import display

from utils import plots
from utils.artists import Cells, Numbers
from utils.controls import KINDS
from utils.live import LiveFigure
from utils.spoken import Picture

_recipes: dict[int, tuple[dict[str, plots.Panel], dict[str, Any]]] = {}
_twins: dict[int, dict[str, widgets.Widget]] = {}


def remember() -> None:
    """From now on keep, of every live figure, its panels as they were before they had axes."""
    make = LiveFigure.__init__

    def init(
        self: LiveFigure,
        draw: Any,
        panels: dict[str, plots.Panel],
        controls: Any,
        width: float = 8.0,
        height: float = 3.8,
        **arrangement: Any,
    ) -> None:
        spare = {name: copy.deepcopy(panel) for name, panel in panels.items()}
        _recipes[id(self)] = spare, {"width": width, "height": height, **arrangement}
        make(self, draw, panels, controls, width, height, **arrangement)

    LiveFigure.__init__ = init


def plain(figure: LiveFigure) -> None:
    """Show the peer of a live figure, with the same controls at the same places."""
    recipe, size = _recipes[id(figure)]

    def show(**values: Any) -> None:
        for name, choice in figure._choices.items():  # a query beyond a shorter sequence
            offered = [value for _, value in choice.pairs(values)]
            values[name] = values[name] if values[name] in offered else offered[-1]
        shown = figure._draw(**values)
        panels = {name: copy.deepcopy(panel) for name, panel in recipe.items()}
        _figure(panels, **size)
        for name, panel in panels.items():
            panel.update(**shown[name])
            _with_matplotlibs_own(panel)
        plt.show()
        print(shown["sentence"], *shown.get("trace", ()), sep="\n")

    kinds = {True: widgets.SelectionSlider, False: widgets.Dropdown}
    controls = {
        name: kinds[isinstance(control, widgets.SelectionSlider)](
            options=control.options, index=control.index, description=name
        )
        for name, control in figure.controls.items()
    }
    _twins[id(figure)] = controls
    widgets.interact(show, **controls)


def ready(figure: LiveFigure) -> None:
    """Show a slider between two pictures of a live figure that are there before it is moved."""
    control, pictures = next(iter(figure.controls.values())), []
    start = control.index
    for index in (0, 1):
        control.index = index
        figure.redraw()
        pictures.append(figure.image.png)
    control.index = start
    image = Picture(layout=figure.image.layout)
    image.show(pictures[0])
    slider = KINDS["slider"](options=[0, 1], description="ready")
    slider.observe(lambda change: image.show(pictures[change["new"]]), "value")
    display(widgets.VBox([slider, image]))


def to_last(figure: LiveFigure) -> None:
    """Move every control of a live figure, and of its peer, to its last option: the heaviest setting."""
    for controls in (figure.controls, _twins[id(figure)]):
        for control in controls.values():
            control.index = len(control.options) - 1


def _with_matplotlibs_own(panel: plots.Panel) -> None:
    """Put matplotlib's images and texts in the place of our faster ones."""
    ax = panel.ax
    for artist in panel.moving:
        if isinstance(artist, Cells):
            everywhere = (*ax.get_xlim(), *ax.get_ylim())
            ax.imshow(artist.colours, extent=everywhere, aspect=ax.get_aspect(), interpolation="nearest")
        elif isinstance(artist, Numbers):
            for x, y, text, colour in artist.items:
                ax.text(x, y, text, color=colour, fontsize=artist.size, ha=artist.align, va="center")
        if isinstance(artist, Cells | Numbers):
            artist.remove()


def _figure(
    panels: dict[str, plots.Panel],
    width: float,
    height: float,
    mosaic: str = "",
    widths: list[float] | None = None,
    heights: list[float] | None = None,
) -> None:
    letters = "ABCDEFGH"[: len(panels)]
    plt.rcParams.update(plots.STYLE)  # live figures have a style of their own
    fig = plt.figure(figsize=(width, height))
    axes = fig.subplot_mosaic(mosaic or letters, width_ratios=widths, height_ratios=heights)
    for panel, letter in zip(panels.values(), letters, strict=True):
        panel.attach(axes[letter])
