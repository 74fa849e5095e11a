"""A reader's own view: a notebook in a real browser, in JupyterLab or in classic Notebook 6.

`NotebookPage` is one notebook open in one page of Chromium, `Control` is one slider, menu, row of buttons or
question on it, `Figure` one live figure. Nothing here knows what a notebook is about.
"""

from __future__ import annotations

import ast
import base64
import time
from dataclasses import dataclass
from typing import Any

from playwright.sync_api import Browser, Locator, Page

from tests.servers import FLAGS, Server, chromium, chromium_path, jupyter

__all__ = ["FLAGS", "Control", "Figure", "NotebookPage", "Server", "chromium", "chromium_path", "jupyter"]

# -- the two front ends -----------------------------------------------------------------------

# The same questions to both, in JavaScript. "cells" gives the number of each code cell that has run, or null.
LAB = {
    "address": "lab/tree/{name}?reset&token={token}",
    "loaded": "() => window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel?.status"
    " === 'idle'",
    "ready": "async () => { await jupyterapp.shell.currentWidget.context.ready;"
    " jupyterapp.shell.collapseLeft(); }",
    "idle": "() => jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status === 'idle'",
    "cells": "() => jupyterapp.shell.currentWidget.content.widgets.filter(c => c.model.type === 'code'"
    " && c.model.sharedModel.source.trim()).map(c => c.model.executionCount)",
    "run all": "async () => { await jupyterapp.commands.execute('notebook:run-all-cells'); }",
    "run": "async i => { const n = jupyterapp.shell.currentWidget; n.content.activeCellIndex = i;"
    " n.content.deselectAll(); await jupyterapp.commands.execute('notebook:run-cell'); }",
    "say": "async ([code, expression]) => (await jupyterapp.shell.currentWidget.sessionContext.session.kernel"
    ".requestExecute({code, silent: true, user_expressions: {expression}}).done).content",
    "end": "() => jupyterapp.shell.currentWidget.sessionContext.shutdown()",
    "restart": "async () => { await jupyterapp.shell.currentWidget.sessionContext.restartKernel(); }",
}
CLASSIC = {
    "address": "notebooks/{name}?token={token}",
    "loaded": "() => window.Jupyter?.notebook?._fully_loaded && Jupyter.notebook.kernel?.is_connected()"
    " && Jupyter.notebook.kernel.widget_manager && Jupyter.notebook.get_cells().find("
    "c => c.output_area).output_area.mime_types().includes('application/vnd.jupyter.widget-view+json')",
    # Its widgets first ask the kernel for what is there; a cell that runs meanwhile shows none.
    "ready": "() => new Promise(done => { const wait = () => { clearTimeout(window.asked);"
    " window.asked = setTimeout(done, 2000); }; const on = (name, is) => Jupyter.notebook.events.on("
    "name + '.Kernel', () => { window.kernelRests = is; wait(); }); on('kernel_busy', false);"
    " on('kernel_idle', true); on('kernel_restarting', false); on('kernel_ready', true);"
    " window.kernelRests = true; wait(); })",
    "idle": "() => window.kernelRests && Jupyter.notebook.kernel.is_connected()",
    "cells": "() => Jupyter.notebook.get_cells().filter(c => c.cell_type === 'code' && c.get_text().trim())"
    ".map(c => Number.isInteger(c.input_prompt_number) ? c.input_prompt_number : null)",
    "run all": "() => Jupyter.notebook.execute_all_cells()",
    "run": "i => Jupyter.notebook.execute_cells([i])",
    "say": "([code, expression]) => new Promise(done => Jupyter.notebook.kernel.execute(code,"
    " {shell: {reply: answer => done(answer.content)}}, {silent: true, user_expressions: {expression}}))",
    "end": "() => new Promise(done => Jupyter.notebook.session.delete(done))",
    "restart": "() => new Promise(done => { window.kernelRests = false;"
    " Jupyter.notebook.events.one('kernel_ready.Kernel', () => done());"
    " Jupyter.notebook.kernel.restart(); })",
}
ERRORS = (
    "[data-mime-type='application/vnd.jupyter.error'], [data-mime-type='application/vnd.jupyter.stderr'], "
    ".output_error, .output_stderr, .widget-html [role=alert]"
)


class NotebookPage:
    """One notebook, open in one page.

    path      of the notebook, below the server's folder
    script    JavaScript that the page runs before its own
    problems  what went wrong in the page's own scripts
    """

    def __init__(
        self,
        browser: Browser,
        server: Server,
        path: str,
        width: int = 1280,
        height: int = 1100,
        script: str = "",
    ) -> None:
        self.server, self.path = server, path
        self.how = {"lab": LAB, "classic": CLASSIC}[server.frontend]
        self.page: Page = browser.new_page(viewport={"width": width, "height": height})
        self.page.add_init_script(script)
        self.problems: list[str] = []
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        address = self.how["address"].format(name=path, token=server.token)
        self.page.goto(f"{server.base}/{address}")
        self.page.wait_for_function(self.how["loaded"], timeout=120_000)
        self.ask("ready")

    def close(self) -> None:
        """Close the page and end its kernel."""
        self.ask("end")
        self.page.close()

    def ask(self, question: str, argument: Any = None) -> Any:
        """Ask the front end: a name in LAB and CLASSIC."""
        return self.page.evaluate(self.how[question], argument)

    # -- cells --------------------------------------------------------------------------------

    def run_all(self, seconds: float = 300) -> float:
        """Run every cell and wait for the last; returns the seconds it took."""
        start = time.perf_counter()
        self.ask("run all")
        self._wait_for_cells(seconds)
        return time.perf_counter() - start

    def _wait_for_cells(self, seconds: float) -> None:
        """Until every cell has its number, or one of them failed, and the kernel rests."""
        end = time.monotonic() + seconds
        while not (all(self.ask("cells")) or self.errors()):
            assert time.monotonic() < end, f"after {seconds} s cells still run: {self.ask('cells')}"
            self.page.wait_for_timeout(100)
        self.settle()

    def run_cell(self, index: int, seconds: float = 120) -> None:
        """Run one cell, by its place among all cells, text cells included."""
        self.ask("run", index)
        self.page.wait_for_timeout(300)
        self.page.wait_for_function(self.how["idle"], timeout=1000 * seconds)
        self.settle()

    def restart(self) -> None:
        """Restart the kernel; outputs stay on the page, as for a reader who does that."""
        self.ask("restart")
        self.page.wait_for_function(self.how["idle"], timeout=60_000)

    def kernel_says(self, expression: str, code: str = "") -> Any:
        """The value of an expression in the kernel, asked for by the page itself, once some code has run."""
        answer = self.ask("say", [code, expression])
        assert answer["status"] == "ok", answer
        value = answer["user_expressions"]["expression"]
        assert value["status"] == "ok", f"{value.get('ename')}: {value.get('evalue')}"
        return ast.literal_eval(value["data"]["text/plain"])

    def errors(self) -> list[str]:
        """Everything on the page that tells of something wrong."""
        return self.page.locator(ERRORS).all_text_contents() + self.problems

    def settle(self, quiet: int = 150, seconds: float = 30) -> None:
        """Wait until the kernel rests and nothing in the outputs has changed for `quiet` ms."""
        self.page.evaluate(WATCH)
        asked = f"([quiet, idle]) => performance.now() - window.lastChange > quiet && ({self.how['idle']})()"
        self.page.wait_for_function(asked, arg=[quiet, None], timeout=1000 * seconds)

    # -- what can be moved, and what is shown -----------------------------------------------------

    def controls(self) -> list[Control]:
        """Every slider, menu, row of buttons and question, from top to bottom."""
        return [Control(self, **facts) for facts in self.page.evaluate(CONTROLS)]

    def figures(self) -> list[Figure]:
        """Every live figure, from top to bottom."""
        return [Figure(self, place) for place in range(self.page.evaluate(FIGURES))]


WATCH = """() => {
    if (window.lastChange === undefined) {
        const note = () => { window.lastChange = performance.now(); };
        const what = {subtree: true, childList: true, characterData: true, attributes: true};
        const where = document.querySelector('.jp-Notebook, #notebook');
        new MutationObserver(note).observe(where, what);
    }
    window.lastChange = performance.now();
}"""

# Controls of one live figure are those in the same box as its picture.
FIGURES = """() => {
    const all = [...document.querySelectorAll('img.widget-image')];
    all.forEach((image, i) => { image.closest('.widget-vbox').dataset.figure = i; });
    return all.length;
}"""
CONTROLS = """() => {
    [...document.querySelectorAll('img.widget-image')]
        .forEach((image, i) => { image.closest('.widget-vbox').dataset.figure = i; });
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
        return self.box.locator("[aria-live=polite]").text_content()

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
            (self._drag_one if by == "mouse" else self._press)(sign)
        elif by == "mouse":
            self._choose(self._place() + sign)
        else:
            self._press(sign)
        return self.shown() != before

    def to_end(self, last: bool, steps: int = 6) -> None:
        """To the first or the last option, by mouse; a slider in so many moves, without a rest."""
        if self.kind != "slider":
            self._choose(self.options() - 1 if last else 0)
            return
        track = self._track()
        self._grab()
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

    def _press(self, sign: int) -> None:
        """Press the keys that a reader would. JupyterLab keeps the arrows for itself on all but a slider and
        an open list, so a question is answered with its first choice there: no key leads to another."""
        keyboard, place = self.on.page.keyboard, self._place() + sign
        if self.kind == "buttons" and 0 <= place < self.options():
            self.box.locator("button").nth(place).focus()
            keyboard.press("Enter")
        elif self.kind == "question":
            self.box.locator("input").first.focus()
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
        before, track = self.shown(), self._track()
        x, y = self._grab()
        for far in range(3, int(track["width"]), 5):
            self.on.page.mouse.move(x + sign * far, y)
            if self.shown() != before:
                break
        self.on.page.mouse.up()

    def _grab(self) -> tuple[float, float]:
        self.box.locator(HANDLE).scroll_into_view_if_needed()
        self.on.page.mouse.move(*self._middle())
        self.on.page.mouse.down()
        return self._middle()

    def _middle(self) -> tuple[float, float]:
        handle = self.box.locator(HANDLE).bounding_box()
        return handle["x"] + handle["width"] / 2, handle["y"] + handle["height"] / 2

    def _track(self) -> dict[str, float]:
        self.box.locator(HANDLE).scroll_into_view_if_needed()
        return self.box.locator(TRACK).bounding_box()


# ipywidgets 8 has noUiSlider, ipywidgets 7 has jQuery UI or, from widgetsnbextension 3.6.7 on, noUiSlider
HANDLE = ".noUi-handle, .ui-slider-handle"
TRACK = ".noUi-target, .ui-slider"
PLACE = """box => {
    const select = box.querySelector('select');
    if (select) return select.selectedIndex;
    const inputs = [...box.querySelectorAll('input')];
    if (inputs.length) return inputs.findIndex(input => input.checked);
    return [...box.querySelectorAll('button')].findIndex(button => button.classList.contains('mod-active'));
}"""
