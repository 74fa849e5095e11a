"""Refresh the committed notebooks. Two commands:

run [NOTEBOOK ...]   execute (all, if none is named) and store the outputs; twice changes no byte
home [URL]           stamp the repository's https address into pyproject.toml, the notebooks and README.md;
                     without a URL, stamp what pyproject.toml says, or else the remote "origin"
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
WIDGET = "application/vnd.jupyter.widget-view+json"
KEPT = ("tags", "jupyter", "cellView")
LINKS = re.compile(r"<!-- home -->.*?<!-- /home -->", re.DOTALL)


def home() -> str:
    """The repository's address, from the one place that holds it."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["course"]["home"]


def bootstrap(address: str) -> str:
    """The first code cell of every notebook."""
    source = (ROOT / "notebooks" / ".bootstrap.py").read_text().rstrip("\n")
    return source.replace('"COURSE_HOME", ""', f'"COURSE_HOME", "{address}"')


def links(address: str, notebook: Path | None = None) -> str:
    """Where to open a notebook (a text link), or the README's badges; nothing while there is no address."""
    text = ""
    if address:
        path = re.sub(r"^https://github\.com/", "", address.removesuffix(".git"))
        first = f"notebooks/{(notebook or NOTEBOOKS[0]).name}"
        colab = f"https://colab.research.google.com/github/{path}/blob/main/{first}"
        binder = f"https://mybinder.org/v2/gh/{path}/HEAD?urlpath=lab/tree/{first}"
        if notebook:
            text = f"[Open this notebook on Colab]({colab})"
        else:
            text = (
                f"[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({colab})\n"
                f"[![Open on Binder](https://mybinder.org/badge_logo.svg)]({binder})"
            )
    return f"<!-- home -->{text}<!-- /home -->"


def checked(url: str) -> str:
    """An address of the form that all links are made from; the end of the program for any other."""
    if not re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+", url):
        sys.exit(f"The home must be an address like https://github.com/you/course, not {url!r}.")
    return url.removesuffix(".git")


def stamp(url: str | None) -> None:
    """Write the address into its one place and into everything made from it."""
    if not url:
        remote = subprocess.run(
            ["git", "remote", "get-url", "origin"], cwd=ROOT, capture_output=True, text=True
        )
        url = home() or remote.stdout.strip()
    url = checked(url)
    pyproject = ROOT / "pyproject.toml"
    pyproject.write_text(re.sub(r'(?m)^home = ".*"', f'home = "{url}"', pyproject.read_text()))
    readme = ROOT / "README.md"
    readme.write_text(LINKS.sub(links(url), readme.read_text()))
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        stamp_cells(notebook, path, url)
        nbformat.write(notebook, path)


def stamp_cells(notebook: nbformat.NotebookNode, path: Path, url: str) -> None:
    for cell in notebook.cells:
        if "bootstrap" in cell.metadata.get("tags", []):
            cell.source = bootstrap(url)
        elif cell.cell_type == "markdown":
            cell.source = LINKS.sub(links(url, path), cell.source)


def run(path: Path) -> None:
    """Execute one notebook where a reader would, and store it in the one form that is committed."""
    os.environ["TQDM_DISABLE"] = "1"  # a progress bar would store its seconds
    notebook = nbformat.read(path, as_version=4)
    stamp_cells(notebook, path, home())
    client = NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": path.parent}}
    )
    client.execute()
    normalise(notebook, path.stem)
    nbformat.validate(notebook)
    nbformat.write(notebook, path)


def normalise(notebook: nbformat.NotebookNode, name: str) -> None:
    """Drop what differs from run to run: times, versions, the widgets' random names."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "colab": {"provenance": []},
        **{key: notebook.metadata[key] for key in ("accelerator",) if key in notebook.metadata},
    }
    for number, cell in enumerate(notebook.cells):
        cell.metadata = {key: cell.metadata[key] for key in KEPT if key in cell.metadata}
        if "outputs" in cell:
            cell.outputs = merged(cell.outputs)
        for output in cell.get("outputs", []):
            view = output.get("data", {}).get(WIDGET)
            if view:
                view["model_id"] = hashlib.md5(f"{name} {number}".encode()).hexdigest()


def merged(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Printed text in one piece: a kernel sends it in as many as time allows."""
    kept: list[nbformat.NotebookNode] = []
    for output in outputs:
        if kept and output.output_type == kept[-1].output_type == "stream" and output.name == kept[-1].name:
            kept[-1].text += output.text
        else:
            kept.append(output.copy())
    return kept


if __name__ == "__main__":
    command, *arguments = sys.argv[1:] or [""]
    if command == "run":
        for notebook_path in [Path(a).resolve() for a in arguments] or NOTEBOOKS:
            print(notebook_path.name, flush=True)
            run(notebook_path)
    elif command == "home" and len(arguments) <= 1:
        stamp(*arguments or [None])
    else:
        sys.exit(__doc__)
