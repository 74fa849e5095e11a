"""A reader's own view: JupyterLab in Chromium. Run all, move sliders, read what stands there."""

import math
import re
import sys

import pytest
import torch

from tests.pages import NotebookPage
from tests.servers import chromium, copy_of_course, jupyter
from tests.truth import assert_true
from utils.minilm import texts, word_vectors

FIRST = "notebooks/01_why_self_attention.ipynb"


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """Notebook 01 of a copy of the course, run from top to bottom."""
    folder = tmp_path_factory.mktemp("lab")
    with chromium() as browser, jupyter(sys.executable, "lab", copy_of_course(folder), folder) as server:
        notebook = NotebookPage(browser, server, FIRST)
        notebook.run_all()
        notebook.page.locator(".widget-image").scroll_into_view_if_needed()
        yield notebook


@pytest.fixture(scope="module")
def page(notebook):
    """The browser's page it is on."""
    return notebook.page


def control(page, name):
    return page.locator(".widget-inline-hbox", has=page.get_by_text(name, exact=True))


def seen(page):
    """What the figure shows: the picture's pixels, the sentence, and what the sliders say."""
    page.wait_for_timeout(400)
    sentence = page.locator(".live-figure [id$=-said]").inner_text()
    values = {
        name: control(page, name).locator(".widget-readout").inner_text()
        for name in ("seq_len", "temperature", "query", "key")
    }
    return page.locator("img.widget-image").screenshot(), sentence, values


def computed(values):
    """The numbers that the sentence must hold, by PyTorch alone."""
    words = texts()["chase"].split()[: int(values["seq_len"])]
    query = int(values["query"].split()[0]) - 1
    x = torch.nn.functional.normalize(torch.tensor(word_vectors(words)))
    weights = torch.softmax(x[query] @ x.T / float(values["temperature"]), -1)
    bits = float(-(weights * weights.log2()).nan_to_num().sum())
    return (
        words[query],
        f"{float(weights.max()):.2f}",
        f"entropy {bits:.2f} bits; {len(words)} equal shares have {math.log2(len(words)):.2f}",
    )


def agrees(sentence, values):
    word, weight, entropy = computed(values)
    return sentence.startswith(f"“{word}”") and f"weight {weight}" in sentence and entropy in sentence


def drag(page, name, to):
    """Drag a slider's handle to a place on its track, 0 to 1, in 20 steps."""
    handle = control(page, name).locator(".noUi-handle").bounding_box()
    track = control(page, name).locator(".noUi-target").bounding_box()
    y = handle["y"] + handle["height"] / 2
    page.mouse.move(handle["x"] + handle["width"] / 2, y)
    page.mouse.down()
    page.mouse.move(track["x"] + to * track["width"], y, steps=20)
    page.mouse.up()


def test_run_all_leaves_no_error_on_the_page(notebook, page):
    assert notebook.errors() == []
    _, sentence, values = seen(page)
    assert values == {"seq_len": "5", "temperature": "0.5", "query": "5 mouse", "key": "2 cat"}
    assert agrees(sentence, values)


@pytest.mark.parametrize(("name", "to"), [("temperature", 0.0), ("temperature", 1.0), ("query", 0.5)])
def test_a_drag_changes_the_picture_and_the_sentence_stays_true(notebook, page, name, to):
    before = seen(page)
    drag(page, name, to)
    picture, sentence, values = seen(page)
    assert values[name] != before[2][name]
    assert picture != before[0]
    assert sentence != before[1]
    assert agrees(sentence, values)
    assert_true(notebook, notebook.figures()[0], name)


def test_the_keyboard_moves_a_slider_too(page):
    before = seen(page)
    control(page, "key").locator(".noUi-handle").focus()
    page.keyboard.press("ArrowRight")
    picture, _, values = seen(page)
    assert int(values["key"][0]) == int(before[2]["key"][0]) + 1
    assert picture != before[0]


def test_query_and_key_follow_a_shorter_and_a_longer_sequence(notebook, page):
    drag(page, "query", 1.0)
    before = seen(page)[2]
    drag(page, "seq_len", 0.0)
    _, sentence, values = seen(page)
    assert (values["seq_len"], values["query"], values["key"]) == ("2", "2 cat", "2 cat")
    assert agrees(sentence, values)
    drag(page, "seq_len", 1.0)
    _, sentence, values = seen(page)
    assert values == before  # what was asked for is back
    assert agrees(sentence, values)
    assert_true(notebook, notebook.figures()[0], "shorter and longer")
    assert notebook.errors() == []


def test_the_trace_ends_in_the_weight_in_the_picture(page):
    _, _, values = seen(page)
    words, key = page.locator(".widget-html pre").inner_text(), values["key"].split()[1]
    assert f"mouse · {key} = " in words
    assert re.search(r"= 0\.\d{3}$", words.strip())
