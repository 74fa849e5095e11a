"""A private Jupyter server, JupyterLab ("lab") or classic Notebook 6 ("classic"), and a browser for it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
COLAB = ROOT / ".venv-colab" / "bin" / "python"  # classic Notebook, once make test-colab has installed it
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NEWS = "@jupyterlab/apputils-extension/notification.jupyterlab-settings"


def copy_of_course(folder: Path) -> Path:
    """A copy of what readers open, in folder/course, for Jupyter saves what it opens."""
    for name in ("notebooks", "utils"):
        shutil.copytree(ROOT / name, folder / "course" / name)
    return folder / "course"


def chromium_path() -> str:
    """Chromium or Chrome on the PATH; without one CI fails, and everyone else skips."""
    names = ("chromium", "google-chrome", "chromium-browser")
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None and os.environ.get("CI"):
        pytest.fail("CI must have a browser: install chromium")
    if path is None:
        pytest.skip(f"no browser here: none of {', '.join(names)} is on the PATH")
    return path


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=FLAGS)
        yield browser
        browser.close()


@dataclass
class Server:
    """A running Jupyter: its address, its secret, and which front end it serves."""

    base: str
    token: str
    frontend: str


@contextmanager
def jupyter(
    python: Path | str, frontend: str, folder: Path, private: Path, **environment: str
) -> Iterator[Server]:
    """A Jupyter server of some Python on a folder, on 127.0.0.1, that ends with the context.

    python    whose environment holds the server; kernels run in it, too
    private   an empty folder for its settings and logs: nothing of the user's own is read or written
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Server(f"http://127.0.0.1:{port}", secrets.token_hex(16), frontend)
    log = private / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            _command(python, frontend, folder, port),
            env=_isolated(python, private) | {"JUPYTER_TOKEN": server.token} | environment,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            _wait_for(f"{server.base}/api?token={server.token}", process, log)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                # What the server started in its group. Kernels have sessions of their own: they look whether
                # their parent lives, and end by themselves.
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _command(python: Path | str, frontend: str, folder: Path, port: int) -> list[str]:
    lab = frontend == "lab"
    app, place = ("ServerApp", "root_dir") if lab else ("NotebookApp", "notebook_dir")
    return [
        *(str(python), "-m", "jupyterlab" if lab else "notebook", "--no-browser", "--allow-root"),
        *(["--expose-app-in-browser"] if lab else []),
        *(f"--{app}.{place}={folder}", f"--{app}.ip=127.0.0.1", f"--{app}.port={port}"),
    ]


def _isolated(python: Path | str, private: Path) -> dict[str, str]:
    """An environment in which Jupyter reads and writes in one folder only, and kernels are that Python."""
    names = [f"JUPYTER_{name}_DIR" for name in ("CONFIG", "RUNTIME", "DATA")]
    names += ["IPYTHONDIR", "JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR"]
    own = {name: str(private / name.split("_")[-2 if "_" in name else 0].lower()) for name in names}
    news = Path(own["JUPYTERLAB_SETTINGS_DIR"]) / NEWS
    news.parent.mkdir(parents=True, exist_ok=True)
    news.write_text(json.dumps({"fetchNews": "false", "checkForUpdates": False}))
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("COURSE_", "PYTHON"))}
    return keep | own | {"PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"}


def _wait_for(url: str, process: subprocess.Popen, log: Path) -> None:
    for _ in range(240):
        try:
            urllib.request.urlopen(url, timeout=2)
            return
        except OSError:
            assert process.poll() is None, log.read_text()
            time.sleep(0.25)
    raise TimeoutError(f"{url} does not answer: {log.read_text()[-2000:]}")
