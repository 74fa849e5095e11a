"""Photograph every notebook as a reader sees it, all cells run: python -m tests.shots OUT [01 ...]

Writes OUT/LOOK/NUMBER-PART.png, each part 1400 pixels high, for JupyterLab light, dark and in a narrow window
and, where `make test-colab` has installed it, for classic Notebook.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from playwright.sync_api import Browser

from tests.pages import NotebookPage, Server, chromium, jupyter

ROOT = Path(__file__).resolve().parent.parent
COLAB = ROOT / ".venv-colab" / "bin" / "python"
LOOKS = {  # name -> front end, width of the window, theme
    "lab-light": ("lab", 1280, "light"),
    "lab-dark": ("lab", 1280, "dark"),
    "lab-narrow": ("lab", 800, "light"),
    "classic": ("classic", 1280, "light"),
}
PART = 1400
HIGHEST = """() => Math.max(...[...document.querySelectorAll('.jp-NotebookPanel *, #notebook-container')]
    .filter(e => e.id || getComputedStyle(e).overflowY !== 'visible').map(e => e.scrollHeight))"""
DARK = "() => jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})"


def shoot(browser: Browser, server: Server, path: Path, out: Path, width: int, theme: str) -> None:
    """One notebook, run from top to bottom, in parts."""
    notebook = NotebookPage(browser, server, f"notebooks/{path.name}", width)
    if theme == "dark":
        notebook.page.evaluate(DARK)
    seconds = notebook.run_all()
    print(f"{out.name} {path.stem}: {seconds:.0f} s, errors: {notebook.errors()}", flush=True)
    height = min(notebook.page.evaluate(HIGHEST) + 250, 30_000)
    notebook.page.set_viewport_size({"width": width, "height": height})
    notebook.page.wait_for_timeout(2500)
    for number, top in enumerate(range(0, height, PART), 1):
        part = {"x": 0, "y": top, "width": width, "height": min(PART, height - top)}
        notebook.page.screenshot(path=out / f"{path.stem[:2]}-{number:02d}.png", clip=part)
    notebook.close()


def main(out: Path, numbers: list[str]) -> None:
    """All looks of all notebooks, or of those that are named."""
    notebooks = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
    notebooks = [path for path in notebooks if not numbers or path.stem[:2] in numbers]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name in ("notebooks", "utils"):
            shutil.copytree(ROOT / name, folder / "course" / name)
        browser, servers = stack.enter_context(chromium()), {}
        for look, (frontend, width, theme) in LOOKS.items():
            python = COLAB if frontend == "classic" else sys.executable
            if not Path(python).exists():
                continue
            if frontend not in servers:
                (folder / frontend).mkdir()
                start = jupyter(python, frontend, folder / "course", folder / frontend)
                servers[frontend] = stack.enter_context(start)
            (out / look).mkdir(parents=True, exist_ok=True)
            for path in notebooks:
                shoot(browser, servers[frontend], path, out / look, width, theme)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:])
