"""Cells that are run twice, or without those before them. `make browsers` runs this."""

import importlib.util
import json
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parent.parent
spec = importlib.util.spec_from_file_location("refresh", ROOT / ".ci" / "notebooks.py")
refresh = importlib.util.module_from_spec(spec)
spec.loader.exec_module(refresh)
every_notebook = pytest.mark.parametrize("path", refresh.NOTEBOOKS, ids=lambda path: path.stem)


def client_of(path):
    notebook = nbformat.read(path, as_version=4)
    return NotebookClient(notebook, timeout=120, resources={"metadata": {"path": path.parent}})


def told(cell):
    """A cell's outputs as text, its pictures with them; the widgets' own names and numbers of runs differ."""
    text = json.dumps(refresh.merged(cell.outputs), sort_keys=True)
    return re.sub(r'"model_id": "\w+"|"execution_count": \w+', "", text)


@every_notebook
def test_a_cell_run_twice_says_the_same_twice(path):
    client, different = client_of(path), []
    with client.setup_kernel():
        for number, cell in enumerate(client.nb.cells):
            if cell.cell_type == "code":
                client.execute_cell(cell, number)
                once = told(cell)
                client.execute_cell(cell, number)
                if told(cell) != once:
                    different.append(cell.source)
    assert different == []


@every_notebook
@pytest.mark.parametrize("first", [0, 2], ids=["nothing", "imports"])
def test_a_cell_without_those_before_it_is_right_or_names_what_it_lacks(path, first):
    """Before each cell stand only the notebook's first ones: none, or those that import."""
    client, wrong, right = client_of(path), [], 0
    cells = [(number, cell) for number, cell in enumerate(client.nb.cells) if cell.cell_type == "code"]
    with client.setup_kernel():
        for number, cell in cells:
            client.execute_cell(nbformat.v4.new_code_cell("%reset -f"), number)
            for place, before in cells[:first]:
                client.execute_cell(before, place)
            committed = told(cell)
            try:
                client.execute_cell(cell, number)
            except CellExecutionError as error:
                assert error.ename in ("NameError", "ModuleNotFoundError"), cell.source
                continue
            if (now := told(cell)) != committed:
                wrong.append((cell.source, committed, now))
            right += now == committed != "[]"
    assert wrong == []
    assert right > 10 or not first, "too few cells run to say anything"
