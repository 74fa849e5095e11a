"""Predictions: nothing is given away, the first choice counts, the summary is right."""

import re

import nbformat
import pytest

from utils import predict as module
from utils.predict import Prediction, predict, questions, sum_up


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch):
    monkeypatch.setattr(module, "_first_choices", {})


@pytest.mark.parametrize("name", questions())
def test_a_question_answers_every_choice(name):
    question = questions()[name]
    assert len(question["choices"]) >= 3
    for chosen in range(len(question["choices"])):
        asked = predict(name)
        assert asked.buttons.index is None
        assert asked.answer.value == ""
        asked.buttons.index = chosen
        right = chosen == question["answer"]
        said = re.search(r'aria-live="polite" aria-owns="(\S+)"', asked.box.children[0].value)[1]
        verdict = "Yes." if right else "Not quite. The answer: "
        assert re.match(f'<p id="{said}" style="[^"]*">{verdict}', asked.answer.value)
        assert question["reason"].split()[0] in asked.answer.value


@pytest.mark.parametrize("name", questions())
def test_no_cell_gives_the_answer_away_and_every_question_is_asked_where_it_says(name, request):
    paths = (request.config.rootpath / "notebooks").glob(f"{name[:2]}_*.ipynb")
    cells = nbformat.read(next(paths), as_version=4).cells
    position = next(i for i, cell in enumerate(cells) if cell.source == f'predict("{name}")')
    headings = [h for cell in cells[:position] for h in re.findall(r"(?m)^## (.+)$", cell.source)]
    assert headings[-1] == questions()[name]["section"]
    plain = cells[position].outputs[0].data["text/plain"]
    assert questions()[name]["reason"] not in plain
    assert all(choice in plain for choice in questions()[name]["choices"])


def test_the_static_page_folds_the_answer():
    asked = predict("01-twins")
    page = asked._repr_mimebundle_()["text/html"]
    before, _, folded = page.partition("<details>")
    assert questions()["01-twins"]["reason"] in folded
    assert questions()["01-twins"]["reason"] not in before


def test_the_first_choice_counts():
    asked = predict("01-twins")
    asked.buttons.index = 0
    asked.buttons.index = questions()["01-twins"]["answer"]
    assert ">Yes. " in asked.answer.value
    assert module._first_choices == {"01-twins": 0}


def test_the_summary_counts_and_links_to_what_was_wrong(monkeypatch):
    said = []
    monkeypatch.setattr(module, "display", lambda data, raw: said.append(data["text/markdown"]))
    sum_up("01")
    names = [name for name in questions() if name.startswith("01")]
    assert said[-1] == (
        f"Your first answers were right in 0 of {len(names)} predictions; {len(names)} are not answered yet."
    )
    for name in names:
        predict(name).buttons.index = questions()[name]["answer"]
    sum_up("01")
    assert said[-1] == f"Your first answers were right in {len(names)} of {len(names)} predictions."
    module._first_choices["01-twins"] = 0
    sum_up("01")
    assert said[-1].endswith("Worth a second look: [9 What is missing](#9-What-is-missing).")


def test_an_unknown_question_is_named():
    with pytest.raises(KeyError, match="there is no question 'x'; there are 01-never"):
        Prediction("x")
