"""Photograph every notebook as a reader sees it, all cells run: python -m tests.shots OUT [01 ...]

Writes OUT/LOOK/NUMBER-PART.png, each part 1400 pixels high, for JupyterLab light, dark and in a narrow window
and, where `make test-colab` has installed it, for classic Notebook.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.pages import NotebookPage
from tests.servers import COLAB, ROOT, chromium, copy_of_course, jupyter

LOOKS = {  # front end -> name, width of the window, theme
    "lab": [("lab-light", 1280, "Light"), ("lab-narrow", 800, "Light"), ("lab-dark", 1280, "Dark")],
    "classic": [("classic", 1280, "Light")],
}
PART = 1400
HIGHEST = """() => Math.max(...[...document.querySelectorAll('.jp-NotebookPanel *, #notebook-container')]
    .filter(e => e.id || getComputedStyle(e).overflowY !== 'visible').map(e => e.scrollHeight))"""
TOP = "() => document.querySelectorAll('.jp-NotebookPanel *, #site').forEach(e => { e.scrollTop = 0; })"
THEME = """theme => window.jupyterapp?.commands.execute('apputils:change-theme', {theme})"""


def shoot(notebook: NotebookPage, number: str, out: Path, width: int, theme: str) -> None:
    """One notebook in one look, in parts."""
    page = notebook.page
    out.mkdir(parents=True, exist_ok=True)
    page.evaluate(THEME, f"JupyterLab {theme}")
    page.set_viewport_size({"width": width, "height": 1100})
    page.wait_for_timeout(1000)
    height = min(page.evaluate(HIGHEST) + 250, 30_000)
    page.set_viewport_size({"width": width, "height": height})
    page.evaluate(TOP)
    page.wait_for_timeout(1500)
    page.evaluate(TOP)
    page.wait_for_timeout(1000)
    for part, top in enumerate(range(0, height, PART), 1):
        clip = {"x": 0, "y": top, "width": width, "height": min(PART, height - top)}
        page.screenshot(path=out / f"{number}-{part:02d}.png", clip=clip)


def main(out: Path, numbers: list[str]) -> None:
    """All looks of all notebooks, or of those that are named."""
    notebooks = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
    notebooks = [path for path in notebooks if not numbers or path.stem[:2] in numbers]
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        course = copy_of_course(Path(folder))
        for frontend, looks in LOOKS.items():
            python = COLAB if frontend == "classic" else Path(sys.executable)
            if not python.exists():
                continue
            private = Path(folder) / frontend
            private.mkdir()
            with jupyter(python, frontend, course, private) as server:
                for path in notebooks:
                    notebook = NotebookPage(browser, server, f"notebooks/{path.name}")
                    seconds = notebook.run_all()
                    print(f"{frontend} {path.stem}: {seconds:.0f} s, {notebook.errors()}", flush=True)
                    for name, width, theme in looks:
                        shoot(notebook, path.stem[:2], out / name, width, theme)
                    notebook.close()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:])
