"""The files that make the course run elsewhere agree with one another, and fail in words."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base"}


def pins(path):
    return dict(re.findall(r"(?m)^([\w-]+)==([\w.]+)$", (ROOT / path).read_text()))


def test_requirements_are_all_pinned():
    for path in ("requirements.txt", "tests/requirements.txt"):
        lines = [line for line in (ROOT / path).read_text().splitlines() if line and line[0] not in "#-"]
        assert len(pins(path)) == len(lines)


def test_environment_names_the_same_packages_and_versions():
    found = re.findall(r"(?m)^  - ([\w-]+)=([\w.]+)", (ROOT / "environment.yml").read_text())
    expected = {CONDA_NAMES.get(name, name): version for name, version in pins("requirements.txt").items()}
    assert dict(found) == expected | {"python": "3.12"}


def test_python_versions_agree():
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert oldest == ">=3.11"
    assert "version_info < (3, 11)" in (ROOT / "Makefile").read_text()


@pytest.mark.pinned
def test_what_is_installed_is_what_is_pinned():
    from importlib.metadata import version

    for name, wanted in {**pins("requirements.txt"), **pins("tests/requirements.txt")}.items():
        assert version(name).split("+")[0] == wanted, f"{name}: run make test, which installs what is pinned"


@pytest.fixture
def fresh(tmp_path):
    """The files that make needs, in an empty folder, without a .venv."""
    for name in ("Makefile", "requirements.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def fake_python(folder, body):
    python = folder / "python3"
    python.write_text(f"#!/bin/sh\n{body}\n")
    python.chmod(0o755)
    return python


def make_lab(folder, python):
    if not shutil.which("make"):
        pytest.skip("make is not installed")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    return subprocess.run(
        ["make", "-s", "lab", f"PYTHON={python}"], cwd=folder, capture_output=True, text=True, env=environment
    )


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ('[ "$1" = --version ] && echo Python 3.9.1; exit 1', "needs Python 3.11 or newer, but .* is 3.9.1"),
        ('case "$2" in *ensurepip*) exit 1;; esac; exit 0', "sudo apt install python3-venv"),
        (
            'case "$1$2" in -mvenv) mkdir -p .venv/bin && cp "$0" .venv/bin/python;; '
            "-mpip) echo retries failed >&2; exit 1;; esac; exit 0",
            "Could not install requirements.txt. .*this machine is offline",
        ),
    ],
)
def test_make_says_in_one_sentence_what_is_missing(fresh, body, sentence):
    run = make_lab(fresh, fake_python(fresh, body))
    assert run.returncode != 0
    assert len(re.findall(sentence, run.stderr)) == 1
    assert not (fresh / ".venv" / "installed").exists()


def test_make_without_any_python_says_so(fresh):
    run = make_lab(fresh, "no-such-python")
    assert "There is no no-such-python here" in run.stderr


def test_make_lab_passes_arguments_on_and_installs_only_once(fresh):
    body = (
        'case "$1$2" in -mvenv) mkdir -p .venv/bin && cp "$0" .venv/bin/python;; '
        '-mpip) echo pip >>calls;; -mjupyterlab) echo "$@" >>calls;; esac'
    )
    python = fake_python(fresh, body)
    for _ in range(2):
        assert make_lab(fresh, python).returncode == 0
    (fresh / "Makefile").write_text(f"ARGS = --port 8899 --no-browser\n{(ROOT / 'Makefile').read_text()}")
    assert make_lab(fresh, python).returncode == 0
    calls = (fresh / "calls").read_text().splitlines()
    assert [call.split()[0] for call in calls] == ["pip", "-m", "-m", "-m"]
    assert calls[3].endswith("notebooks/01_why_self_attention.ipynb --port 8899 --no-browser")
    assert ("--allow-root" in calls[1]) == (os.geteuid() == 0)
    (fresh / ".venv" / "bin" / "python").unlink()
    make_lab(fresh, python)
    assert (fresh / "calls").read_text().count("pip\n") == 2  # the environment is gone: install again
    later = (fresh / ".venv" / "installed").stat().st_mtime + 5
    os.utime(fresh / "requirements.txt", (later, later))
    make_lab(fresh, python)
    assert (fresh / "calls").read_text().count("pip\n") == 3  # requirements changed: install again
