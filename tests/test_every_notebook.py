"""Every notebook in a real browser: run all, move every control by keyboard and by mouse, restart.

After each move the page must show what a computation from nothing gives for the values that the page itself
shows: the same sentence, the same arithmetic, the same picture to the byte. `make browsers` runs this.
"""

import json
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.pages import NotebookPage
from tests.servers import COLAB, ROOT, chromium, copy_of_course, jupyter
from tests.truth import assert_true, on_the_page
from utils.predict import questions

pytestmark = pytest.mark.browsers
NOTEBOOKS = sorted(path.name for path in (ROOT / "notebooks").glob("[0-9]*.ipynb"))
PYTHONS = {"lab": Path(sys.executable), "classic": COLAB}


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """A server for each front end, started when first asked for, on a copy of the course."""
    with ExitStack() as stack:
        browser, running = stack.enter_context(chromium()), {}

        def server(frontend):
            if not PYTHONS[frontend].exists():
                pytest.skip("there is no .venv-colab here: make browsers installs it")
            if frontend not in running:
                folder = tmp_path_factory.mktemp(frontend)
                start = jupyter(PYTHONS[frontend], frontend, copy_of_course(folder), folder)
                running[frontend] = stack.enter_context(start)
            return browser, running[frontend]

        yield server


@pytest.fixture(
    scope="module", params=[(f, n) for f in PYTHONS for n in NOTEBOOKS], ids=lambda p: f"{p[0]}-{p[1][:2]}"
)
def notebook(request, servers):
    """A notebook that was run from top to bottom."""
    frontend, name = request.param
    opened = NotebookPage(*servers(frontend), f"notebooks/{name}")
    opened.seconds = opened.run_all()
    yield opened
    opened.close()


def there_and_back(control, by):
    """The two directions, first the one in which there is room; yields as each is done."""
    first = 1 if control.step(1, by) else -1
    if first == -1:
        assert control.step(-1, by), f"the {by} does not move {control.name}"
    yield
    assert control.step(-first, by), f"the {by} does not move {control.name} back"
    yield


def test_runs_without_error_and_shows_all_that_is_live(notebook):
    assert notebook.errors() == []
    source = (ROOT / notebook.path).read_text()
    assert len(notebook.figures()) == source.count("= LiveFigure(")
    questions = [control for control in notebook.controls() if control.kind == "question"]
    assert len(questions) == source.count('"predict(')
    print(f"run all: {notebook.seconds:.1f} s", end=" ")


def test_every_control_moves_by_keyboard_and_mouse_and_the_page_tells_the_truth(notebook):
    for figure in notebook.figures():
        assert_true(notebook, figure, "run all")
        for control in figure.controls():
            if control.options() == 1:
                continue
            for by in ("keyboard", "mouse"):
                for _ in there_and_back(control, by):
                    assert_true(notebook, figure, (control.name, by))
            for last, moves in (
                (False, 4),
                (True, 40),
            ):  # the second one is a fast drag along the whole track
                control.to_end(last, moves)
                assert_true(notebook, figure, (control.name, "to the last" if last else "to the first"))


def test_every_prediction_answers(notebook):
    asked = [control for control in notebook.controls() if control.kind == "question"]
    for control in asked:
        (question,) = [q for q in questions().values() if q["question"] in control.words()]
        for by in ("keyboard", "mouse"):
            assert control.step(1, by), f"the {by} does not move {control.name}"
            notebook.settle()
            right = control.shown() == question["choices"][question["answer"]]
            assert control.words().endswith(question["reason"])
            assert ("Yes. " in control.words()) == right
            assert ("Not quite. The answer: " in control.words()) == (not right)
    assert notebook.errors() == []


def test_other_controls_move_without_error(notebook):
    for control in notebook.controls():
        if control.figure is None and control.kind != "question" and control.options() != 1:
            moved = control.step(1, "mouse") or control.step(-1, "mouse")
            assert moved, f"the mouse does not move {control.name}"
            notebook.settle()
    assert notebook.errors() == []


def test_after_a_restart_old_controls_break_nothing_and_a_later_cell_names_what_it_lacks(notebook):
    figure = notebook.figures()[0]
    before = on_the_page(figure)
    notebook.restart()
    for control in figure.controls():
        control.step(1, "mouse") or control.step(-1, "mouse")
    notebook.page.wait_for_timeout(500)
    assert on_the_page(figure) == before  # nobody is there to answer
    assert {*notebook.errors()} <= {"Cannot send"}  # JupyterLab's own words, in the console
    notebook.problems.clear()
    cells = json.loads((ROOT / notebook.path).read_text())["cells"]
    notebook.run_cell(next(i for i, cell in enumerate(cells) if "= LiveFigure(" in "".join(cell["source"])))
    (error,) = notebook.errors()
    assert "NameError" in error
    if notebook.path.endswith(NOTEBOOKS[0]):  # it speaks for all: a second run takes as long as all the rest
        notebook.restart()
        notebook.run_all()
        assert notebook.errors() == []
        assert figure.controls()[-1].step(-1, "mouse")
        assert_true(notebook, figure, "a restart and a second run")
