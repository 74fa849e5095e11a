"""docs/proof.md: its rows are the claims of .ci/proof.toml, and CI runs what it says that CI runs."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
spec = importlib.util.spec_from_file_location("proof", ROOT / ".ci" / "proof.py")
proof = importlib.util.module_from_spec(spec)
spec.loader.exec_module(proof)
MADE = re.findall(r"(?m)^make (\S+)$", (ROOT / ".ci" / "run").read_text())

every_proof = pytest.mark.parametrize("name", proof.PROOFS)


def test_the_page_says_what_was_recorded():
    assert proof.PAGE.read_text() == proof.page(json.loads(proof.RECORD.read_text()))


@every_proof
def test_every_claim_was_tried(name):
    done = json.loads(proof.RECORD.read_text())[name]
    assert done["seconds"] > 0 and done["said"]


@every_proof
def test_ci_runs_what_the_page_says_that_it_runs(name):
    """Test files without a marker belong to `make test`, and so to CI."""
    command, in_ci = proof.PROOFS[name]["command"], proof.PROOFS[name]["in_ci"]
    if command.startswith("make "):
        assert in_ci == (command.removeprefix("make ") in MADE)
    else:
        assert in_ci == ("-m pytest tests/" in command)
    for file in re.findall(r"tests/\S+\.py", command):
        assert (ROOT / file).exists()


def test_every_row_is_one_line_of_a_table_with_five_columns():
    rows = proof.PAGE.read_text().split("|---|---|---|---|---|\n")[1].splitlines()
    assert len(rows) == len(proof.PROOFS)
    assert all(len(re.split(r"(?<!\\)\|", row)) == 7 for row in rows)


@pytest.mark.parametrize("page", ["README.md", "docs/proof.md", "docs/latency.md", "docs/doctor.md"])
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        assert target.startswith("https://") or (ROOT / page).parent.joinpath(target).exists(), target
