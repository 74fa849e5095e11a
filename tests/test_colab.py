"""A start as on Colab: its versions, classic Notebook, a folder that holds nothing but one notebook.

The first cell fetches the course from a repository with what is committed here. `make test-colab` runs this.
"""

import shutil
import subprocess

import pytest

from tests.pages import NotebookPage
from tests.servers import COLAB, ROOT, chromium, jupyter

pytestmark = pytest.mark.browsers
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))


def git(*words, cwd):
    subprocess.run(["git", *words], cwd=cwd, check=True, capture_output=True)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A repository of what is committed, on a branch main, whatever is checked out here and how deep."""
    folder = tmp_path_factory.mktemp("home")
    archive = folder.with_suffix(".zip")
    git("archive", f"--output={archive}", "HEAD", cwd=ROOT)
    shutil.unpack_archive(archive, folder)
    git("init", "-b", "main", cwd=folder)
    git("add", ".", cwd=folder)
    git("-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "-m", "the course", cwd=folder)
    return folder


@pytest.fixture(scope="module")
def colab(home, tmp_path_factory):
    """Classic Notebook in Colab's versions, on folders that hold one notebook each."""
    if not COLAB.exists():
        pytest.skip("there is no .venv-colab here: make test-colab installs it")
    content, private = tmp_path_factory.mktemp("content"), tmp_path_factory.mktemp("private")
    for path in (home / "notebooks").glob("[0-9]*.ipynb"):
        (content / path.stem).mkdir()
        shutil.copy(path, content / path.stem)
    start = jupyter(COLAB, "classic", content, private, COURSE_HOME=home.as_uri())
    with chromium() as browser, start as server:
        yield browser, server, content


@pytest.mark.parametrize("name", [path.stem for path in NOTEBOOKS])
def test_a_notebook_alone_fetches_the_course_and_runs(colab, name):
    browser, server, content = colab
    page = NotebookPage(browser, server, f"{name}/{name}.ipynb")
    seconds = page.run_all()
    assert page.errors() == []
    module = page.kernel_says("__import__('utils.attention').attention.__file__")
    assert module == str(content / name / "self-attention-course" / "utils" / "attention.py")
    figure = page.figures()[0]
    before = figure.picture()
    control = figure.controls()[-1]
    assert control.step(1, "mouse") or control.step(-1, "mouse")
    page.settle()
    assert figure.picture() != before
    assert page.errors() == []
    page.close()
    print(f"run all: {seconds:.1f} s", end=" ")
