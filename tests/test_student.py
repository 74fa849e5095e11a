"""The copy to hand out: nothing is given away, and everything works."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / ".ci"))
import student  # noqa: E402

COURSE = sorted(f"notebooks/{path.name}" for path in (ROOT / "notebooks").glob("[0-9]*.ipynb"))
WHOLE, CLASS = "https://github.com/teacher/whole", "https://github.com/teacher/class"
every_notebook = pytest.mark.parametrize("file", COURSE, ids=lambda file: Path(file).stem)


def cells(file, kind):
    return [cell.source for cell in nbformat.read(ROOT / file, as_version=4).cells if cell.cell_type == kind]


@pytest.fixture(scope="module")
def at_home(tmp_path_factory):
    """The course as a teacher has it who ran `make home` first."""
    folder = tmp_path_factory.mktemp("teacher")
    for name in ("notebooks", "utils", ".ci"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("LICENSE", "Makefile", "README.md", "environment.yml", "pyproject.toml", "requirements.txt"):
        shutil.copy(ROOT / name, folder)
    subprocess.run([sys.executable, ".ci/notebooks.py", "home", WHOLE], cwd=folder, check=True)
    return folder


@pytest.fixture(scope="module")
def handed_out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("out") / "student"
    student.main(folder)
    return folder


def solutions(file):
    return re.findall(
        r"(?s)<details><summary>Solution</summary>(.*?)</details>", "\n".join(cells(file, "markdown"))
    )


@every_notebook
def test_a_students_notebook_has_the_exercises_and_no_solutions_and_no_outputs(handed_out, file):
    notebook = nbformat.read(handed_out / file, as_version=4)
    nbformat.validate(notebook)
    source = "\n".join(cell.source for cell in notebook.cells)
    assert solutions(file)
    assert not [text for text in solutions(file) if text.strip() in source]
    assert [cell.source for cell in notebook.cells if cell.cell_type == "code"][1:] == cells(file, "code")[1:]
    assert source.count("<summary>Hint") == "\n".join(cells(file, "markdown")).count("<summary>Hint")
    assert not [cell for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")]


@every_notebook
def test_a_teacher_can_say_where_to_ask_and_leave_hints_out(file):
    notebook = nbformat.read(ROOT / file, as_version=4)
    source = "\n".join(cell.source for cell in student.handed_out(notebook, "Ask me.", hints=False).cells)
    assert source.count("Ask me.") == len(solutions(file))
    assert "<summary>Hint" not in source
    assert source.count("<summary>Answers") == "\n".join(cells(file, "markdown")).count("<summary>Answers")


@pytest.mark.parametrize(("options", "home"), [([], ""), (["--home", f"{CLASS}.git"], CLASS)])
def test_the_copy_leads_to_its_own_home_or_to_none_and_never_to_the_solutions(at_home, options, home):
    subprocess.run([sys.executable, ".ci/student.py", *options], cwd=at_home, check=True)
    assert WHOLE in (at_home / COURSE[0]).read_text()
    for path in (at_home / "student").rglob("*"):
        assert path.is_dir() or WHOLE.encode() not in path.read_bytes(), path
    for file in COURSE:
        text = (at_home / "student" / file).read_text()
        assert f'\\"COURSE_HOME\\", \\"{home}\\"' in text
        assert text.count("colab.research.google.com/github/teacher/class/") == bool(home)


def test_a_home_that_is_none_is_refused(at_home):
    run = subprocess.run(
        [sys.executable, ".ci/student.py", "--home", "class"], cwd=at_home, capture_output=True, text=True
    )
    assert run.returncode != 0
    assert "an address like https://github.com/you/course, not 'class'" in run.stderr


def test_the_copy_finds_its_helpers_and_checks_work_there(handed_out):
    first = cells(COURSE[0], "code")[0]
    then = "\nfrom utils.exercises import check\nfrom utils import attention\nprint(attention.__file__)"
    run = subprocess.run(
        [sys.executable, "-c", f"{first}{then}\ncheck('01-softmax', lambda s: s)"],
        cwd=handed_out / "notebooks",
        env={k: v for k, v in os.environ.items() if not k.startswith(("COURSE_", "PYTHONPATH"))},
        capture_output=True,
        text=True,
    )
    where, *report = run.stdout.splitlines()
    assert where == str(handed_out / "utils" / "attention.py"), run.stderr
    assert "✗" in "".join(report)


def test_the_copy_runs_with_make_lab_and_its_links_lead_somewhere(handed_out):
    if not shutil.which("make"):
        pytest.skip("make is not installed")

    def make(target):
        return subprocess.run(["make", "-n", target], cwd=handed_out, capture_output=True, text=True)

    assert "-m jupyterlab" in make("lab").stdout
    assert make("test").returncode != 0
    makefile = (handed_out / "Makefile").read_text()
    assert set(re.findall(r"# make (\w+)", makefile)) == {"lab"}
    assert ".PHONY: lab\n" in makefile
    assert not re.search(r"colab|tests", makefile.lower())
    for target in re.findall(r"\]\(([^)]+)\)", (handed_out / "README.md").read_text()):
        assert (handed_out / target).exists(), target
    assert "{" not in (handed_out / "README.md").read_text()
