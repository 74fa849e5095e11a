"""Where the course runs, and the commands that prove it.  proof.py [NAME ...]

Runs the commands of the named claims in proof.toml (all, if none is named: two hours) and writes
docs/proof.md: for each claim its command, the seconds it took, and the last line that it printed. What was
measured before stays in docs/proof.json until it is measured again.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROOFS = tomllib.loads((ROOT / ".ci" / "proof.toml").read_text())
PAGE, RECORD = ROOT / "docs" / "proof.md", ROOT / "docs" / "proof.json"
HEAD = """# Where the course runs, and its proof

Written by `make proof` from docs/proof.json; `make proof ARGS=hostile` proves one claim anew. Seconds are of
two shared processor cores. What is not in `.ci/run` takes too long for each push.

| claim | command | seconds | result | in CI |
|---|---|---|---|---|
"""


def prove(command: str) -> dict[str, Any]:
    """Run a command; how long it took, what it said last, and whether it was content."""
    start = time.monotonic()
    run = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True)
    lines = [line.strip(" =") for line in run.stdout.splitlines() if line.strip(" =")] or [""]
    said = re.sub(r" in [\d.]+s( \([\d:]+\))?$", "", lines[-1])  # pytest ends with seconds; those we have
    return {"seconds": round(time.monotonic() - start), "said": said, "held": run.returncode == 0}


def page(record: dict[str, dict[str, Any]]) -> str:
    """The table."""
    rows = []
    for name, proof in PROOFS.items():
        done = record.get(name, {"seconds": "", "said": "not run yet", "held": True})
        told = done["said"] if done["held"] else f"**missed:** {done['said']}"
        in_ci = "yes" if proof["in_ci"] else "no"
        rows.append(f"| {proof['claim']} | `{proof['command']}` | {done['seconds']} | {told} | {in_ci} |")
    return HEAD + "\n".join(rows) + "\n"


def main(names: list[str]) -> int:
    """Prove some claims, and write the page."""
    if unknown := set(names) - set(PROOFS):
        sys.exit(f"There is no proof called {', '.join(sorted(unknown))}; there are {', '.join(PROOFS)}.")
    held = True
    for name in names or PROOFS:
        done = prove(PROOFS[name]["command"])
        print(name, done, flush=True)
        held &= done["held"]
        record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        record[name] = done
        RECORD.write_text(json.dumps({n: record[n] for n in PROOFS if n in record}, indent=1) + "\n")
        PAGE.write_text(page(record))
    return not held


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
