"""What a reader can move on a page, and what a live figure shows: in JavaScript, for ipywidgets 7 and 8."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING

from playwright.sync_api import Locator

if TYPE_CHECKING:
    from tests.pages import NotebookPage

# Controls of one live figure are those in the same box as its picture.
FIGURES = """() => {
    const all = [...document.querySelectorAll('img.widget-image')];
    all.forEach((image, i) => { image.closest('.widget-vbox').dataset.figure = i; });
    return all.length;
}"""
CONTROLS = (
    f"() => {{ ({FIGURES})();"
    + """
    const kinds = {'widget-hslider': 'slider', 'widget-dropdown': 'menu',
                   'widget-toggle-buttons': 'buttons', 'widget-radio': 'question'};
    const all = [...document.querySelectorAll(Object.keys(kinds).map(name => '.' + name).join(', '))];
    return all.map((box, i) => {
        box.dataset.control = i;
        const kind = kinds[Object.keys(kinds).find(name => box.classList.contains(name))];
        const figure = box.closest('[data-figure]')?.dataset.figure;
        return {place: i, kind, name: box.querySelector('.widget-label')?.textContent.trim() || '',
                figure: figure === undefined ? null : Number(figure)};
    });
}"""
)
SHOWN = """box => {
    const text = e => e ? e.textContent.trim() : null;
    const chosen = box.querySelector('input:checked');
    return text(box.querySelector('.widget-readout')) ?? text(box.querySelector('select')?.selectedOptions[0])
        ?? text(box.querySelector('.mod-active')) ?? text(chosen && chosen.closest('label'));
}"""
PICTURE = """async image => {
    const bytes = new Uint8Array(await (await fetch(image.src)).arrayBuffer());
    return btoa(Array.from(bytes, byte => String.fromCharCode(byte)).join(''));
}"""

# ipywidgets 8 has noUiSlider, ipywidgets 7 in classic Notebook has jQuery UI.
HANDLE = ".noUi-handle, .ui-slider-handle"
TRACK = ".noUi-target, .ui-slider"
PLACE = """box => {
    const select = box.querySelector('select');
    if (select) return select.selectedIndex;
    const inputs = [...box.querySelectorAll('input')];
    if (inputs.length) return inputs.findIndex(input => input.checked);
    return [...box.querySelectorAll('button')].findIndex(button => button.classList.contains('mod-active'));
}"""


@dataclass
class Figure:
    """A live figure on the page, by its place among all of them."""

    on: NotebookPage
    place: int

    @property
    def box(self) -> Locator:
        """Controls, picture and text."""
        return self.on.page.locator(f"[data-figure='{self.place}']")

    def picture(self) -> bytes:
        """The PNG file that the page shows now."""
        return base64.b64decode(self.box.locator("img.widget-image").evaluate(PICTURE))

    def sentence(self) -> str:
        """The sentence under the picture."""
        return self.box.locator("[id$=-said]").text_content()

    def trace(self) -> str:
        """The arithmetic under it."""
        return self.box.locator("pre").text_content()

    def controls(self) -> list[Control]:
        """The controls over the picture."""
        return [control for control in self.on.controls() if control.figure == self.place]


@dataclass
class Control:
    """One control. `kind` is slider, menu, buttons or question; `figure` the place of its live figure."""

    on: NotebookPage
    place: int
    kind: str
    name: str
    figure: int | None

    @property
    def box(self) -> Locator:
        """The control with its label."""
        return self.on.page.locator(f"[data-control='{self.place}']")

    def shown(self) -> str | None:
        """What a reader sees chosen; None where nothing is. Sliders write spaces that do not break."""
        text = self.box.evaluate(SHOWN)
        return text and text.replace("\N{NO-BREAK SPACE}", " ")

    def words(self) -> str:
        """All that the box says in which it stands: a question, its choices, its answer."""
        return self.box.evaluate("box => box.closest('.widget-vbox').textContent")

    def options(self) -> int | None:
        """How many there are to choose from; None where the page does not say."""
        names = {"menu": "option", "buttons": "button", "question": "input"}
        return self.box.locator(names[self.kind]).count() if self.kind in names else None

    # -- moving it ----------------------------------------------------------------------------

    def step(self, sign: int, by: str) -> bool:
        """One option up or down, by "mouse" or "keyboard"; False where nothing changed, as at an end."""
        before = self.shown()
        if self.kind == "slider":
            (self._drag_one if by == "mouse" else self.press)(sign)
        elif by == "mouse":
            self._choose(self._place() + sign)
        else:
            self.press(sign)
        return self.shown() != before

    def to_end(self, last: bool, steps: int = 6) -> None:
        """To the first or the last option, by mouse; a slider in so many moves, without a rest."""
        if self.kind != "slider":
            self._choose(self.options() - 1 if last else 0)
            return
        track = self.track()
        self.grab()
        self.on.page.mouse.move(track["x"] + track["width"] * last, self._middle()[1], steps=steps)
        self.on.page.mouse.up()

    def _choose(self, place: int) -> None:
        """A menu's own list belongs to the system and not to the page: it is chosen from without a click."""
        if not 0 <= place < self.options():
            return
        if self.kind == "menu":
            self.box.locator("select").select_option(index=place)
        else:
            self.box.locator("button" if self.kind == "buttons" else "input").nth(place).click()

    def _place(self) -> int:
        """Which option is chosen; -1 where none is."""
        return self.box.evaluate(PLACE)

    def press(self, sign: int) -> None:
        """Press the keys that a reader would. JupyterLab keeps the arrows for itself on all but a slider and
        an open list; every button and every choice of a question can be reached with Tab."""
        keyboard, place = self.on.page.keyboard, self._place() + sign
        if self.kind in ("buttons", "question") and 0 <= place < self.options():
            self.box.locator("button, input").nth(place).focus()
            keyboard.press("Space")
        elif self.kind == "slider":
            self.box.locator(HANDLE).focus()
            keyboard.press("ArrowRight" if sign > 0 else "ArrowLeft")
        elif self.kind == "menu":
            self.box.locator("select").focus()
            opened = self.on.server.frontend == "lab"
            for key in [*["Space"] * opened, "ArrowDown" if sign > 0 else "ArrowUp", *["Enter"] * opened]:
                keyboard.press(key)

    def _drag_one(self, sign: int) -> None:
        """Drag the handle little by little until something else is chosen."""
        before, track = self.shown(), self.track()
        x, y = self.grab()
        for far in range(3, int(track["width"]), 5):
            self.on.page.mouse.move(x + sign * far, y)
            if self.shown() != before:
                break
        self.on.page.mouse.up()

    def grab(self) -> tuple[float, float]:
        """Press the mouse on the handle of a slider; returns where."""
        self.box.locator(HANDLE).scroll_into_view_if_needed()
        self.on.page.mouse.move(*self._middle())
        self.on.page.mouse.down()
        return self._middle()

    def _middle(self) -> tuple[float, float]:
        handle = self.box.locator(HANDLE).bounding_box()
        return handle["x"] + handle["width"] / 2, handle["y"] + handle["height"] / 2

    def track(self) -> dict[str, float]:
        """Where the track of a slider lies on the page."""
        self.box.locator(HANDLE).scroll_into_view_if_needed()
        return self.box.locator(TRACK).bounding_box()
