"""Every notebook: the committed form, the first cell, every control. (nbval compares the outputs.)"""

import base64
import importlib.util
import io
import os
import re
import statistics
import subprocess
import sys
import threading
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
spec = importlib.util.spec_from_file_location("refresh", ROOT / ".ci" / "notebooks.py")
refresh = importlib.util.module_from_spec(spec)
spec.loader.exec_module(refresh)

every_notebook = pytest.mark.parametrize("path", refresh.NOTEBOOKS, ids=lambda path: path.stem)


def cells(path, kind):
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == kind]


# -- the committed form -------------------------------------------------------------------


@every_notebook
def test_is_valid_and_was_executed_in_order(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    counts = [cell.execution_count for cell in cells(path, "code")]
    assert counts == list(range(1, len(counts) + 1))  # nbval does not compare a cell without a count


@every_notebook
def test_saves_no_widget_state_and_no_traces_of_a_machine(path):
    notebook = nbformat.read(path, as_version=4)
    assert "widgets" not in notebook.metadata
    assert notebook.metadata.kernelspec.name == "python3"
    text = re.sub(r'"image/png": "[^"]*"', "", path.read_text())
    assert not re.search(r"/home/|/root/|/Users/|/tmp/|site-packages|C:\\\\", text)
    assert not re.search(r"object at 0x", text)


def test_colab_is_asked_for_a_gpu_where_cells_are_heavy_and_only_there():
    asked = {
        path.stem[:2]: nbformat.read(path, as_version=4).metadata.get("accelerator")
        for path in refresh.NOTEBOOKS
    }
    assert asked == {"01": None, "02": None, "03": None, "04": None, "05": "GPU"}


@every_notebook
def test_outputs_hold_no_errors_and_no_warnings(path):
    for cell in cells(path, "code"):
        for output in cell.outputs:
            assert output.output_type != "error"
            assert output.get("name") != "stderr", output.get("text")


@every_notebook
def test_every_picture_says_what_it_shows(path):
    for cell in cells(path, "code"):
        for output in cell.outputs:
            if "image/png" in output.get("data", {}):
                assert re.search(r"\d", output.data["text/plain"])
                assert not output.data["text/plain"].startswith("<")


@every_notebook
def test_works_offline_and_its_links_lead_somewhere(path):
    text = "\n".join(cell.source for cell in cells(path, "markdown"))
    assert not re.search(r"!\[[^\]]*\]\(http|<img|<script|<iframe|<link", text)
    headings = {re.sub(r" ", "-", h) for h in re.findall(r"(?m)^#+ (.+)$", text)}
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in headings
        elif not target.startswith("http"):
            assert (path.parent / target).exists(), target


@every_notebook
def test_has_the_frame_of_the_course(path):
    text = [cell.source for cell in cells(path, "markdown")]
    assert sum(len(re.findall(r"(?m)^# ", source)) for source in text) == 1
    assert text[0].startswith(f"# {path.stem[:2]} ")
    assert "At the end of this notebook you can" in text[0]
    for part in ("## Summary", "**Common mistakes**", "**Further reading**", "CC BY 4.0"):
        assert sum(part in source for source in text) == 1, part


@every_notebook
def test_what_is_folded_is_markdown_too(path):
    text = "\n".join(cell.source for cell in cells(path, "markdown"))
    assert text.count("<details>") == len(re.findall(r"</summary>\n\n.+?\n\n</details>", text, re.DOTALL))


@every_notebook
def test_headings_step_down_one_level_at_a_time(path):
    shown = [re.sub(r"(?s)```.*?```", "", cell.source) for cell in cells(path, "markdown")]
    levels = [len(marks) for source in shown for marks in re.findall(r"(?m)^(#+) ", source)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(below - above <= 1 for above, below in pairwise(levels)), levels
    pages = [
        o.data["text/html"]
        for c in cells(path, "code")
        for o in c.outputs
        if "text/html" in o.get("data", {})
    ]
    assert not re.search(r"<h\d", "".join(pages))  # an output cannot know under which heading it stands


@every_notebook
def test_links_and_columns_have_names(path):
    text = "\n".join(cell.source for cell in cells(path, "markdown"))
    for words in re.findall(r"\[([^\]]*)\]\(", text):
        assert not re.fullmatch(r"(?i)\W*|(click |see )?(here|this|link|more|page|https?:.*)", words), words
    for heads in re.findall(r"(?m)^\|(.*)\|\n\|[-:| ]+\|$", text):
        assert all(head.strip() for head in heads.split("|")), heads


@every_notebook
def test_cells_are_short(path):
    code = [sum(bool(line.strip()) for line in cell.source.splitlines()) for cell in cells(path, "code")]
    assert statistics.median(code) <= 5
    assert sorted(code)[int(0.9 * (len(code) - 1))] <= 20
    for cell in cells(path, "markdown"):
        visible = re.sub(r"(?s)<details>.*?</details>|<!--.*?-->|\]\([^)]*\)", "", cell.source)
        assert len(re.findall(r"\w+", visible)) <= 150, cell.source


# -- run again, then move every control ---------------------------------------------------

SWEEP = """
def sweep():
    import ipywidgets
    from ipywidgets.widgets import widget
    from utils.live import LiveFigure

    moved = 0
    everything = list((getattr(widget, "_instances", None) or ipywidgets.Widget.widgets).values())
    figures = [thing for thing in get_ipython().user_ns.values() if isinstance(thing, LiveFigure)]
    for control in everything:
        ends = []
        if hasattr(control, "index") and getattr(control, "options", None):
            ends = [("index", 0), ("index", len(control.options) - 1)]
        elif hasattr(control, "min") and hasattr(control, "value"):
            ends = [("value", control.min), ("value", control.max)]
        elif isinstance(control, ipywidgets.Checkbox):
            ends = [("value", True), ("value", False)]
        for trait, end in ends:
            before = getattr(control, trait)
            setattr(control, trait, end)
            for figure in figures:
                figure.redraw()
            setattr(control, trait, before)
            moved += 1
    for thing in everything:
        if isinstance(thing, ipywidgets.Output):
            assert not [o for o in thing.outputs if o["output_type"] == "error"], thing.outputs
        assert 'role="alert"' not in str(getattr(thing, "value", "")), thing.value
    return moved

sweep()
"""


def stable(notebook):
    """A notebook as text; of each picture, its size and how much ink is on it (fonts may differ a little)."""
    notebook = nbformat.from_dict(nbformat.reads(nbformat.writes(notebook), as_version=4))
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                picture = Image.open(io.BytesIO(base64.b64decode(output.data["image/png"]))).convert("L")
                ink = round(100 * (1 - np.asarray(picture).mean() / 255))
                assert ink > 0, "a blank picture"
                output.data["image/png"] = f"{picture.size} {ink} %"
    return nbformat.writes(notebook)


@cache
def executed(path):
    """A notebook that was run and swept: what it stores, and how many ends its controls were moved to."""
    notebook = nbformat.read(path, as_version=4)
    refresh.stamp_cells(notebook, path, refresh.home())
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": path.parent}})
    with client.setup_kernel():
        for number, cell in enumerate(notebook.cells):
            client.execute_cell(cell, number, execution_count=None)
        last = nbformat.v4.new_code_cell(SWEEP)
        notebook.cells.append(last)
        client.execute_cell(last, len(notebook.cells) - 1)
        notebook.cells.pop()
    refresh.normalise(notebook, path.stem)
    return notebook, int(last.outputs[0].data["text/plain"])


@every_notebook
def test_every_control_moves(path):
    controls = sum(len(re.findall(r"\b(?:Choice|DeviceToggle)\(", c.source)) for c in cells(path, "code"))
    questions = sum(cell.source.startswith("predict(") for cell in cells(path, "code"))
    assert executed(path)[1] == 2 * (controls + questions)


@pytest.mark.pinned
@every_notebook
def test_runs_to_the_same_file(path):
    committed = nbformat.read(path, as_version=4)
    assert stable(executed(path)[0]) == stable(committed), "run make notebooks, and commit what it changed"


# -- the first cell -----------------------------------------------------------------------


@every_notebook
def test_first_cell_and_links_are_stamped(path):
    address = refresh.home()
    first = cells(path, "code")[0]
    assert first.metadata.tags == ["bootstrap"]
    assert first.source == refresh.bootstrap(address)
    assert refresh.links(address, path) in cells(path, "markdown")[0].source
    assert refresh.links(address) in (ROOT / "README.md").read_text()


def git(*words, cwd):
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *identity, *words], cwd=cwd, check=True, capture_output=True)


@pytest.fixture
def course(tmp_path):
    """A repository with the course in it, as small as the first cell needs."""
    home = tmp_path / "home"
    (home / "utils").mkdir(parents=True)
    (home / "notebooks").mkdir()
    (home / "utils" / "__init__.py").write_text("")
    (home / "utils" / "attention.py").write_text("version = 1\n")
    (home / "notebooks" / ".bootstrap.py").write_text("")
    git("init", "-b", "main", cwd=home)
    git("add", ".", cwd=home)
    git("commit", "-m", "one", cwd=home)
    return home


def first_cell(cwd, home="", then="", before="", **environment):
    """Run the first cell in an empty Python in some folder; then print which attention was found."""
    cell = refresh.bootstrap("")
    script = (
        f"{before}\n{cell}\n{then}\nimport utils.attention as found\nprint(found.version, found.__file__)"
    )
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("COURSE_", "PYTHONPATH"))}
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**clean, "COURSE_HOME": str(home), **environment},
        timeout=60,
    )


@pytest.mark.parametrize("folder", [".", "notebooks", "notebooks/deeper/still"])
def test_first_cell_finds_the_course_from_every_folder(course, folder):
    (course / folder).mkdir(parents=True, exist_ok=True)
    run = first_cell(course / folder)
    assert run.stdout == f"1 {course / 'utils' / 'attention.py'}\n"
    assert run.stderr == ""


def test_first_cell_fetches_the_course_where_only_the_notebook_is(course, tmp_path):
    alone = tmp_path / "content"
    alone.mkdir()
    url = course.as_uri()
    run = first_cell(alone, url, then=refresh.bootstrap(""))  # twice: safe to run again
    assert (run.stderr, run.stdout[0]) == ("", "1")
    (course / "utils" / "attention.py").write_text("version = 2\n")
    git("commit", "-am", "two", cwd=course)
    assert first_cell(alone, url).stdout[0] == "2"  # an old copy is brought up to date
    course.rename(tmp_path / "gone")
    assert used_as_it_is(first_cell(alone, url)) == "2"  # offline, the copy serves


def used_as_it_is(run):
    """The version in a copy that could not be brought up to date, once the words for that are found."""
    words, last = run.stdout.splitlines()
    assert "self-attention-course as it is" in words
    assert "Delete it and run me again" in words
    assert run.stderr == ""
    return last[0]


def change(course, version, *how):
    (course / "utils" / "attention.py").write_text(f"version = {version}\n")
    git("commit", "-am", "another version", *how, cwd=course)


@pytest.fixture
def alone(course, tmp_path):
    """A folder in which the first cell has fetched the course."""
    folder = tmp_path / "content"
    folder.mkdir()
    assert first_cell(folder, course.as_uri()).stdout[0] == "1"
    return folder


def test_first_cell_takes_another_branch_before_and_after_it_has_fetched_one(course, alone, tmp_path):
    git("checkout", "-b", "draft", cwd=course)
    change(course, 3)
    git("checkout", "main", cwd=course)
    assert first_cell(tmp_path, course.as_uri(), COURSE_BRANCH="draft").stdout[0] == "3"
    assert first_cell(alone, course.as_uri(), COURSE_BRANCH="draft").stdout[0] == "3"
    assert used_as_it_is(first_cell(alone, course.as_uri())) == "3"  # that main is older is said


def test_first_cell_takes_a_fork(course, alone, tmp_path):
    git("clone", str(course), str(tmp_path / "fork"), cwd=tmp_path)
    change(tmp_path / "fork", 5)
    assert first_cell(alone, (tmp_path / "fork").as_uri()).stdout[0] == "5"


@pytest.mark.parametrize("upstream", ["unchanged", "changed"])
def test_first_cell_keeps_what_a_reader_changed_in_the_copy_and_says_so(course, alone, upstream):
    (alone / "self-attention-course" / "utils" / "attention.py").write_text("version = 9\n")
    if upstream == "changed":
        change(course, 2)
    assert used_as_it_is(first_cell(alone, course.as_uri())) == "9"


def test_first_cell_says_that_the_course_was_rewritten(course, alone):
    change(course, 2, "--amend")
    assert used_as_it_is(first_cell(alone, course.as_uri())) == "1"


def test_first_cell_does_not_wait_for_a_password(tmp_path):
    class Private(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="private"')
            self.end_headers()

        def log_message(self, *words):
            pass

    server = HTTPServer(("127.0.0.1", 0), Private)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    run = first_cell(tmp_path, f"http://127.0.0.1:{server.server_port}/you/course.git")
    server.shutdown()
    assert "could not be fetched from http://127.0.0.1" in run.stderr
    assert "terminal prompts disabled" in run.stderr


def test_first_cell_is_not_misled_by_another_utils(course, tmp_path):
    other = tmp_path / "other"
    (other / "utils").mkdir(parents=True)
    (other / "utils" / "attention.py").write_text("version = 'wrong'\n")
    before = f"import sys; sys.path.insert(0, {str(other)!r}); import utils.attention"
    run = first_cell(course / "notebooks", before=before)
    assert (run.stderr, run.stdout[0]) == ("", "1")


@pytest.mark.parametrize(
    ("home", "words"),
    [("", "COURSE_HOME is not set"), ("https://127.0.0.1:1/x/y", "https://127.0.0.1:1/x/y")],
)
def test_first_cell_says_in_words_what_it_could_not_do(tmp_path, home, words):
    run = first_cell(tmp_path, home)
    message = run.stderr.strip().splitlines()[-1]
    assert message.startswith("RuntimeError: The course's helpers could not be fetched")
    assert words in message
    assert "Settings > Internet" in message


def test_first_cell_leaves_a_readers_own_repository_alone(course, tmp_path):
    own = tmp_path / "own"
    (own / "self-attention-course").mkdir(parents=True)  # a folder of that name, but no copy of the course
    git("init", cwd=own)
    (own / "utils").mkdir()
    (own / "utils" / "attention.py").write_text("version = 'mine'\n")
    run = first_cell(own, course.as_uri())
    assert (run.stderr, run.stdout[0]) == ("", "1")


def test_first_cell_says_that_git_is_missing(tmp_path):
    run = first_cell(tmp_path, "https://127.0.0.1:1/x/y", PATH="/nowhere")
    assert "(git is not installed)" in run.stderr.strip().splitlines()[-1]


# -- the refreshing script ----------------------------------------------------------------


def test_home_is_stamped_everywhere_from_one_place(tmp_path, monkeypatch):
    for name in ("pyproject.toml", "README.md"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / "notebooks").mkdir()
    copies = [tmp_path / "notebooks" / path.name for path in refresh.NOTEBOOKS]
    for copy, path in zip(copies, refresh.NOTEBOOKS, strict=True):
        copy.write_text(path.read_text())
    real = refresh.bootstrap("https://github.com/someone/course")
    monkeypatch.setattr(refresh, "bootstrap", lambda address: real)
    monkeypatch.setattr(refresh, "ROOT", tmp_path)
    monkeypatch.setattr(refresh, "NOTEBOOKS", copies)
    refresh.stamp("https://github.com/someone/course.git")
    assert refresh.home() == "https://github.com/someone/course"
    for copy in copies:
        assert (
            'HOME = os.environ.get("COURSE_HOME", "https://github.com/someone/course")'
            in copy.read_text().replace('\\"', '"')
        )
        assert (
            f"colab.research.google.com/github/someone/course/blob/main/notebooks/{copy.name}"
            in copy.read_text()
        )
    assert "mybinder.org/v2/gh/someone/course/HEAD" in (tmp_path / "README.md").read_text()
    once = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    refresh.stamp(None)
    assert [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()] == once


@pytest.mark.parametrize(
    "url", ["git@github.com:a/b.git", "http://github.com/a/b", "/srv/course", "https://x"]
)
def test_home_takes_https_addresses_only(url, monkeypatch, tmp_path):
    monkeypatch.setattr(refresh, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match="must be an address like"):
        refresh.stamp(url)
