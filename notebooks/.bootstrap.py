# @title Run me first: I find the course's helpers
import os
import shutil
import subprocess
import sys
from pathlib import Path

HOME = os.environ.get("COURSE_HOME", "")
here, branch = Path.cwd(), os.environ.get("COURSE_BRANCH", "main")
folders = [here, *here.parents, copy := here / "self-attention-course"]
marks = ("utils/attention.py", "notebooks/.bootstrap.py")
roots = [p for p in folders if all((p / m).is_file() for m in marks)]
if roots in ([], [copy]):  # only the notebook is here, as on Colab
    commands = [["clone", "-q", "--depth=1", "-b", branch, HOME, str(copy)]]
    if (copy / ".git").exists():
        there = ["-C", str(copy)]
        commands = [
            [*there, "pull", "-q", "--ff-only", HOME or "origin", branch],
            [*there, "diff", "--quiet", "FETCH_HEAD"],
        ]
    wrong = "" if shutil.which("git") else "git is not installed"
    for command in [] if wrong else commands:
        run = subprocess.run(
            ["git", *command],
            capture_output=True,
            text=True,
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},
        )
        if run.returncode:
            lines = run.stderr.splitlines()
            words = [s.strip() for s in lines if not s.startswith("hint:")]
            wrong = " ".join(words) or "the files differ"
            break
    if not (copy / marks[0]).is_file():
        raise RuntimeError(
            "The course's helpers could not be fetched from "
            f"{HOME or 'anywhere, for COURSE_HOME is not set'}. "
            "Is this machine online? On Kaggle, switch on "
            f"Settings > Internet. ({wrong})"
        )
    if wrong:
        print(
            f"I use {copy} as it is, for I could not make it what "
            f"{HOME or 'its origin'} has now. Delete it and run me "
            f"again to fetch it anew. ({wrong})"
        )
root = str((roots or [copy])[0])
for name in [n for n in sys.modules if n.split(".")[0] == "utils"]:
    file = str(getattr(sys.modules[name], "__file__", ""))
    if not file.startswith(root + os.sep):
        del sys.modules[name]  # a utils of somebody else
if sys.path[0] != root:
    sys.path.insert(0, root)
