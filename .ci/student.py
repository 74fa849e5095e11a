"""student/: a copy of the course to hand out. It runs with `make lab`, and holds no solutions to read.

    make student                                     hints stay, solutions go without a trace
    make student ARGS='--ask "Ask in the forum."'    this sentence stands where a solution was
    make student ARGS="--no-hints"                   hints go, too
    make student ARGS="--home https://github.com/you/class"    where you publish the copy

What goes from the notebooks: the solutions of the exercises, and every output, since an output answers the
question that is asked before it. What stays: hints, and the answers under "Try this", which are for readers.
What goes from the folder: tests, benchmarks, and what only a teacher needs. The address of the whole course
goes, too, for the solutions are there: the copy knows its own --home, or none.

No secret is kept: the checks compare with right functions, so these stand in utils/exercises/, and the
answers of the predictions in utils/data/predictions.json. Whoever opens these files finds them.
"""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path

import nbformat

from notebooks import checked, stamp_cells

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("LICENSE", "requirements.txt", "environment.yml", "notebooks/.bootstrap.py")
FOLDED = re.compile(r"(?s)<details><summary>(.*?)</summary>.*?</details>\n*")


def handed_out(notebook: nbformat.NotebookNode, ask: str = "", hints: bool = True) -> nbformat.NotebookNode:
    """A notebook without solutions and outputs."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            continue
        cell.source = FOLDED.sub(lambda found: kept(found, ask, hints), cell.source).strip()
    notebook.cells = [cell for cell in notebook.cells if cell.source]
    return notebook


def kept(folded: re.Match[str], ask: str, hints: bool) -> str:
    """What stays of something folded, by its title."""
    title = folded[1]
    if title.startswith("Solution"):
        return f"{ask}\n\n" if ask else ""
    return "" if title.startswith("Hint") and not hints else folded[0]


def only_lab(makefile: str) -> str:
    """The Makefile without the targets that need what is not handed out."""
    other = r"(?!lab:|\.venv/|\.PHONY:)[\w./ -]+:(?!=)"
    paragraphs = [part for part in makefile.split("\n\n") if not re.match(other, part)]
    text = re.sub(r"(?m)^\.PHONY:.*$", ".PHONY: lab", "\n\n".join(paragraphs))
    lines = text.replace(" .venv/installed-for-tests", "").splitlines()
    lines = [line for line in lines if not re.search(r"^# make (?!lab)|(?i:colab)|tests/", line)]
    return "\n".join(lines) + "\n"


def readme() -> str:
    """What students read first: how to start, and the path, which is the README's."""
    path = re.search(r"(?ms)^## The path$.*?(?=\n\nThe helpers)", (ROOT / "README.md").read_text())[0]
    torch = re.search(r"(?m)^torch==.*$", (ROOT / "requirements.txt").read_text())[0]
    text = (ROOT / ".ci" / "student.md").read_text()
    return text.replace("{path}", path).replace("{torch}", torch)


def main(folder: Path, ask: str = "", hints: bool = True, home: str = "") -> None:
    """Make the folder anew. `home` is the address where the copy itself will be, "" for none."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "notebooks").mkdir(parents=True)
    shutil.copytree(ROOT / "utils", folder / "utils", ignore=shutil.ignore_patterns("__pycache__"))
    for name in COPIED:
        shutil.copy(ROOT / name, folder / name)
    for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb")):
        notebook = handed_out(nbformat.read(path, as_version=4), ask, hints)
        stamp_cells(notebook, path, home)
        nbformat.write(notebook, folder / "notebooks" / path.name)
    (folder / "Makefile").write_text(only_lab((ROOT / "Makefile").read_text()))
    (folder / "README.md").write_text(readme())


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--ask", default="", help="a sentence that stands where a solution was")
    arguments.add_argument("--no-hints", action="store_true", help="leave hints out, too")
    arguments.add_argument("--home", type=checked, help="where this copy will be published")
    options = arguments.parse_args()
    main(ROOT / "student", options.ask, hints=not options.no_hints, home=options.home or "")
    print(f"{ROOT / 'student'}: pack this folder, and hand it out.")
