"""For readers who listen or use the keyboard: what ipywidgets leaves out, in plain HTML and CSS.

A screen reader announces what changes inside a live region. But an HTML widget replaces all that it
holds at each change, and a region that is itself new is passed over (by NVDA, say). So the region
stands alone in a widget that never changes, and owns the changing parts by their ids.

Source: W3C, Accessible Rich Internet Applications 1.2, aria-live and aria-owns.
"""

from __future__ import annotations

import base64
import html
import os
import sys
from typing import Any

import ipywidgets as widgets
from traitlets import Unicode

UNSEEN = "position:absolute;width:1px;height:1px;overflow:hidden;white-space:nowrap;clip-path:inset(50%)"
NO_ROOM = {"height": "0", "margin": "0", "overflow": "hidden"}  # the layout of a widget with a region alone
CONTROLS = "course-controls"  # the class of a box with controls: the one that has the focus is framed,
LOOKS = (  # and buttons stand beside their label, not below it
    f"<style>.{CONTROLS} .jupyter-widgets :focus-visible{{outline:3px solid!important}}"
    f".{CONTROLS} .widget-toggle-buttons{{display:flex;align-items:center}}"
    f".{CONTROLS} .widget-toggle-buttons>.widget-label{{flex:none;text-align:right;margin-right:8px}}</style>"
)


def region(*parts: str) -> str:
    """A live region for the parts with these ids. Show it once, and leave it alone."""
    return f'<span aria-live="polite" aria-owns="{" ".join(parts)}"></span>'


def part(name: str, text: str, style: str = "margin:1em 0") -> str:
    """A paragraph that a region announces whenever it is new; `name` is its id."""
    return f'<p id="{name}" style="{style}">{html.escape(text)}</p>'


def on_colab() -> bool:
    """Whether this kernel is one of Colab's own runtimes."""
    return "COLAB_RELEASE_TAG" in os.environ or "google.colab" in sys.modules


class Picture(widgets.Image):
    """A PNG that has a name for screen readers: ipywidgets 8 makes the tooltip the picture's title.

    It travels as a data URL, for a browser takes 5 ms longer over plain bytes: it gives them an address of
    its own first, and then loads that. On Colab's runtimes they stay bytes: a URL was never tried there.
    """

    png = b""

    tooltip = Unicode("Live picture. The sentence under it says what it shows.").tag(sync=True)
    description = Unicode("").tag(sync=True)  # without one, ipywidgets 8 cannot set a title

    def __init__(self, **options: Any) -> None:
        super().__init__(format="png" if on_colab() else "url", **options)

    def show(self, png: bytes) -> None:
        """Show the PNG file with these bytes."""
        self.png = png
        self.value = png if self.format == "png" else b"data:image/png;base64," + base64.b64encode(png)
