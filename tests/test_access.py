"""For readers who listen, who use the keyboard, who need contrast or large print: JupyterLab in Chromium.

axe-core (https://github.com/dequelabs/axe-core) examines each notebook as run, its answers open, in a
light and in a dark theme; then each live figure is walked through with Tab.
"""

import sys
from itertools import groupby, pairwise
from pathlib import Path

import nbformat
import pytest
from axe_playwright_python.base import AXE_SCRIPT

from tests.pages import NotebookPage
from tests.servers import chromium, copy_of_course, jupyter

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted(path.name for path in (ROOT / "notebooks").glob("0*.ipynb"))
FIRST, OURS = NOTEBOOKS[0], "ours.ipynb"
THEMES = ("JupyterLab Light", "JupyterLab Dark")

# What axe-core finds that is not ours to mend: (rule, whose element) -> the notebook that must still show it.
# Code in cells is left out: its colours are JupyterLab's (comments have 4.2 : 1), and there is much of it.
KNOWN = {
    # JupyterLab: the editor of a cell has no name.
    ("aria-input-field-name", ".cm-content"): FIRST,
    # JupyterLab: the list of cells is a "feed" whose cells are no articles.
    ("aria-required-children", ".jp-WindowedPanel-viewport"): FIRST,
    # JupyterLab: a picture in an output can have no alt. Our caption stands under each.
    ("image-alt", ".jp-RenderedImage > img"): FIRST,
    # JupyterLab: the numbers of cells are pale in the light theme, comments in quoted code in the dark one.
    ("color-contrast", ".jp-InputPrompt"): FIRST,
    ("color-contrast", ".jp-RenderedMarkdown pre span"): NOTEBOOKS[2],
    # JupyterLab: a link is told from the text around it by its colour alone.
    ("link-in-text-block", ".jp-RenderedMarkdown a"): FIRST,
    # ipywidgets: a slider's handle has no name. Ours is spoken when it moves.
    ("aria-input-field-name", ".noUi-handle"): FIRST,
}

# Everything of ours that no lesson shows until a reader does something wrong.
CELLS = """
import sys
sys.path.insert(0, "..")
import numpy as np, torch
from utils.device import DeviceToggle
from utils.doctor import diagnose
from utils.exercises import check
from utils.failures import FAILURES
from utils.live import Choice, LiveFigure
from utils.measured import Measured
from utils.plots import Bars
from utils.predict import predict, sum_up
def draw(n):
    return {"bars": {"values": np.full(n, 1 / n), "labels": "abc"[:n]}, "sentence": f"{n}", "trace": ["1"]}
fig = LiveFigure(draw, {"bars": Bars("Shares")}, {"n": Choice([1, 2, 3], kind="buttons")})
fig._draw = lambda n: 1 / 0
try: fig.redraw()
except ZeroDivisionError: pass
fig
---
DeviceToggle()
---
Measured("loop   3.2 ms\\nbatch  0.4 ms")
---
diagnose(lambda q, k, v: torch.softmax(q @ k.mT, -2) @ v)
---
check("01-softmax", lambda scores: scores)
---
predict("01-twins")
---
sum_up("01")
"""

# JupyterLab's body is 0 pixels high, the notebook scrolls inside, and cells out of sight are not laid out:
# axe-core takes all that for hidden and judges no contrast there. So nothing is cut off while it looks, and
# the notebook's ground reaches as far as its cells.
UNCUT = """() => {
    const style = document.createElement('style');
    style.id = 'uncut';
    style.textContent = `* { content-visibility: visible !important; }
        :has(.jp-Notebook), .jp-Notebook, .jp-WindowedPanel-outer { overflow: visible !important; }
        .jp-WindowedPanel-viewport { background: var(--jp-layout-color0); }`;
    document.head.append(style);
}"""

FOUND = """async known => {
    const found = await axe.run({include: ['.jp-Notebook'], exclude: ['.cm-line']},
        {resultTypes: ['violations'], elementRef: true});
    return found.violations.flatMap(rule => rule.nodes.map(node => ({
        rule: rule.id,
        whose: known.find(whose => node.element.matches(whose)) ?? node.html.slice(0, 200),
        why: node.failureSummary})));
}"""
# Pale words and a picture without a name, in the last cell: axe-core must find these.
PLANT = """() => [...document.querySelectorAll('.jp-Cell')].at(-1).insertAdjacentHTML('beforeend',
    '<div id=planted><p class=planted style="color:#777;background:#888">pale</p>'
    + '<img class=planted src="data:,"></div>')"""
OPEN_ALL = """() => {
    document.querySelectorAll('.jp-Notebook details').forEach(one => { one.open = true; });
    document.querySelectorAll('.widget-radio-box').forEach(one => one.querySelector('input').click());
}"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A browser, and JupyterLab on a copy of the course, with one notebook more."""
    folder = tmp_path_factory.mktemp("access")
    course = copy_of_course(folder)
    cells = [nbformat.v4.new_code_cell(source.strip()) for source in CELLS.split("---")]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    ours = nbformat.v4.new_notebook(cells=cells, metadata=kernel)
    nbformat.write(ours, course / "notebooks" / OURS)
    with chromium() as browser, jupyter(sys.executable, "lab", course, folder) as server:
        yield browser, server


@pytest.fixture(
    scope="module",
    params=[FIRST, OURS, *(pytest.param(name, marks=pytest.mark.browsers) for name in NOTEBOOKS[1:])],
)
def notebook(lab, request):
    """A notebook, run from top to bottom."""
    notebook = NotebookPage(*lab, f"notebooks/{request.param}")
    notebook.name = request.param
    notebook.run_all()
    yield notebook
    notebook.close()


@pytest.fixture
def first(notebook):
    """Notebook 01: once is enough for some questions."""
    if notebook.name != FIRST:
        pytest.skip("asked of notebook 01")
    return notebook


# -- axe-core ---------------------------------------------------------------------------------


def turn_to(page, theme):
    page.evaluate("theme => jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
    page.wait_for_function("theme => document.body.dataset.jpThemeName === theme", arg=theme)
    page.wait_for_timeout(300)  # its style sheet comes after its name


def examined(page):
    """What axe-core finds in both themes: (rule, whose element) -> why; all rules, all impacts."""
    found = []
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    for theme in reversed(THEMES):  # ends in the light one, as it began
        turn_to(page, theme)
        page.evaluate(UNCUT)
        found += page.evaluate(FOUND, [whose for _, whose in KNOWN])
        page.evaluate("() => document.querySelector('#uncut').remove()")
    return {(one["rule"], one["whose"]): one["why"] for one in found}


def test_axe_finds_only_what_is_known_and_not_ours(notebook):
    notebook.page.evaluate(OPEN_ALL)
    notebook.page.evaluate(PLANT)
    notebook.settle()
    found = examined(notebook.page)
    notebook.page.evaluate("() => document.querySelector('#planted').remove()")
    planted = {rule for rule, whose in found if "planted" in whose}
    assert planted == {"color-contrast", "image-alt"}, "axe-core does not see all"
    assert {what: why for what, why in found.items() if not (what in KNOWN or "planted" in what[1])} == {}
    gone = {what for what, where in KNOWN.items() if where == notebook.name} - set(found)
    assert not gone, "what no longer occurs is no exception any more: take it off the list"


# -- the keyboard -----------------------------------------------------------------------------

SELECT = """selector => {
    const notebook = jupyterapp.shell.currentWidget.content;
    notebook.activeCellIndex = notebook.widgets.findIndex(cell => cell.node.querySelector(selector));
    notebook.mode = 'command';
    notebook.activeCell.node.focus();
}"""
CHECKED = """() => [...document.activeElement.closest('.widget-radio-box').querySelectorAll('input')]
    .map(one => one.checked)"""
CUT = """() => [...document.querySelectorAll('.live-figure')].flatMap(box => {
    const edge = box.closest('.jp-OutputArea-output').getBoundingClientRect().right;
    return [...box.querySelectorAll('.widget-inline-hbox *, .widget-image, p')]
        .filter(one => one.getBoundingClientRect().right > edge + 1).map(one => one.outerHTML.slice(0, 150));
})"""
FOCUS = """() => {
    const one = document.activeElement, place = one.getBoundingClientRect(), style = getComputedStyle(one);
    const control = one.closest('.widget-hslider, .widget-dropdown, .widget-toggle-buttons');
    return {tag: one.tagName, inside: one.closest('.live-figure') !== null,
            x: place.x, y: place.y + place.height / 2,
            name: control?.querySelector('.widget-label')?.textContent.trim(),
            ring: style.outlineStyle === 'none' ? 0 : parseFloat(style.outlineWidth)};
}"""


def select(page, selector):
    """Select the first cell with such an element, as arrow keys do in command mode."""
    page.evaluate(SELECT, selector)
    page.wait_for_timeout(500)


def press(page, *keys):
    """Press keys one after the other; returns what has the focus then."""
    for key in keys:
        page.keyboard.press(key)
        page.wait_for_timeout(500 if key == "Space" else 100)  # a menu takes its time to open
    return page.evaluate(FOCUS)


def tab_into_the_figure(page):
    """Where Tab leads from the figure's cell: first to the cell's own buttons, then into the figure."""
    select(page, ".live-figure")
    for _ in range(3):
        stop = press(page, "Tab")
        if stop["inside"]:
            return stop
    raise AssertionError(f"three Tabs lead to {stop}")


def chosen(notebook):
    """The controls of the first live figure: name -> what is chosen."""
    notebook.settle()
    return {control.name: control.shown() for control in notebook.figures()[0].controls()}


def test_tab_leads_through_every_control_as_it_lies_with_a_ring_and_out_again(notebook):
    page, stops = notebook.page, []
    stop = tab_into_the_figure(page)
    while stop["inside"] and len(stops) < 40:
        stops.append(stop)
        stop = press(page, "Tab")
    names = [name for name, _ in groupby(stop["name"] for stop in stops)]
    assert names == [control.name for control in notebook.figures()[0].controls()]
    assert [stop for stop in stops if stop["ring"] < 2] == []
    assert all(b["x"] > a["x"] or b["y"] > a["y"] + 10 for a, b in pairwise(stops)), "not as they lie"
    assert not stop["inside"], "Tab never leaves the figure"
    back = [press(page, "Shift+Tab")["inside"] for _ in range(len(stops) + 3)]
    assert back.count(True) == len(stops), "Shift+Tab never leaves the figure"


def test_keys_move_a_menu_and_a_slider(first):
    page = first.page
    assert tab_into_the_figure(page)["name"] == "text"
    press(page, "Space", "ArrowDown", "Enter")  # arrows alone would select another cell
    assert chosen(first)["text"] == "twin"
    press(page, "Space", "ArrowUp", "Enter")
    assert press(page, "Tab")["name"] == "seq_len"
    for key, n in (("ArrowLeft", "4"), ("Home", "2"), ("ArrowRight", "3"), ("ArrowUp", "4"), ("End", "5")):
        press(page, key)
        assert chosen(first)["seq_len"] == n, key


def test_what_a_key_changes_is_spoken(first):
    page = first.page
    tab_into_the_figure(page)
    press(page, "Tab", "ArrowLeft")
    assert spoken(first) == ["seq_len 4.", first.figures()[0].sentence()]
    page.evaluate("() => { window.region = document.querySelector('.live-figure [aria-live]'); }")
    press(page, "End")
    assert spoken(first) == ["seq_len 5.", first.figures()[0].sentence()]
    assert page.evaluate("() => window.region.isConnected"), "a region that is itself new is passed over"


def spoken(notebook):
    """The texts in the live region of the first live figure, as Chromium tells a screen reader."""
    notebook.settle()
    session = notebook.page.context.new_cdp_session(notebook.page)
    session.send("Accessibility.enable")
    nodes = {node["nodeId"]: node for node in session.send("Accessibility.getFullAXTree")["nodes"]}
    session.detach()
    for node in nodes.values():
        facts = {fact["name"]: fact["value"].get("value") for fact in node.get("properties", [])}
        if facts.get("live") == "polite" and "-moved" in facts.get("owns", ""):
            return list(texts(node, nodes))
    return []


def texts(node, nodes):
    if node["role"]["value"] == "StaticText":
        yield node["name"]["value"]
    elif not node["ignored"]:
        for child in node["childIds"]:
            yield from texts(nodes[child], nodes)


def tab_to(page, tag):
    """Press Tab until such an element has the focus."""
    for _ in range(40):
        if press(page, "Tab")["tag"] == tag:
            return
    raise AssertionError(f"40 Tabs lead to no {tag}")


def test_keys_answer_a_prediction_and_open_an_answer(first):
    page = first.page
    select(page, ".widget-radio-box")
    tab_to(page, "INPUT")
    press(page, "Tab", "Space")  # arrows alone would select another cell
    assert page.evaluate(CHECKED) == [False, True, False]
    select(page, "details")
    tab_to(page, "SUMMARY")
    opened = "() => document.activeElement.parentElement.open"
    before = page.evaluate(opened)
    press(page, "Enter")
    assert page.evaluate(opened) is not before
    press(page, "Space")
    assert page.evaluate(opened) is before


# -- large print ------------------------------------------------------------------------------


def test_at_200_percent_a_figure_loses_nothing(notebook):
    page, size = notebook.page, notebook.page.viewport_size
    page.set_viewport_size({"width": size["width"] // 2, "height": size["height"] // 2})
    page.wait_for_timeout(500)
    cut = page.evaluate(CUT)
    page.set_viewport_size(size)
    page.wait_for_timeout(500)
    assert cut == []
