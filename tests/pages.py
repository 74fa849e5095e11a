"""A reader's own view: a notebook in a real browser, in JupyterLab or in classic Notebook 6.

`NotebookPage` is one notebook open in one page of Chromium. Nothing here knows what a notebook is about.
"""

from __future__ import annotations

import ast
import time
from typing import Any

from playwright.sync_api import Browser, Page

from tests.controls import CONTROLS, FIGURES, Control, Figure
from tests.servers import Server

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
WATCH = """() => {
    if (window.lastChange === undefined) {
        const note = () => { window.lastChange = performance.now(); };
        const what = {subtree: true, childList: true, characterData: true, attributes: true};
        const where = document.querySelector('.jp-Notebook, #notebook');
        new MutationObserver(note).observe(where, what);
    }
    window.lastChange = performance.now();
}"""


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
