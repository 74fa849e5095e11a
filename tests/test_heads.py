"""Heads in a grid, and one word's attention as lines."""

import re

import numpy as np
import pytest

from utils.heads import Heads, Lines
from utils.plots import KEY, figure


def drawn(panel):
    fig = figure([panel])
    return lambda: fig.canvas.draw()


def test_each_head_stands_at_its_place_with_its_name():
    panel = Heads(most=4, columns=2)
    draw = drawn(panel)
    weights = np.stack([np.eye(3), np.full((3, 3), 1 / 3), np.zeros((3, 3))])
    panel.update(weights, ["a", "b", "c"], mark=1)
    draw()
    paper = panel.cells.colours
    high, wide = paper.shape[0] // 2, paper.shape[1] // 2
    first = paper[high - 96 : high - 4, : 96 - 4]
    assert (first[0, 0] == first[-1, -1]).all() and (first[0, 0] != first[0, -1]).any()  # a diagonal
    second = paper[high - 96 : high - 4, wide : wide + 92]
    assert (second == second[0, 0]).all()
    assert (paper[high:, wide:] == 255).all()  # no fourth head
    assert [text for *_, text, _ in panel.labels.items] == ["a", "b", "c"]


@pytest.mark.parametrize(("heads", "names"), [(5, 5), (2, 1), (0, 0)])
def test_heads_that_do_not_fit_are_refused(heads, names):
    panel = Heads(most=4)
    drawn(panel)
    with pytest.raises(ValueError, match=f"{heads} heads and {names} names do not fit 4 places"):
        panel.update(np.zeros((heads, 2, 2)), ["x"] * names)


def test_lines_go_from_the_word_that_asks_to_those_that_get_something():
    panel = Lines(most=5)
    draw = drawn(panel)
    panel.update(np.array([0.7, 0.005, 0.292]), ["[CLS]", "a", "averyveryverylongword"], 1)
    draw()
    ends = [segment.tolist() for segment in panel.lines.get_segments()]
    assert [(a[1], b[1]) for a, b in ends] == [(1, 0), (1, 2)]
    widths = panel.lines.get_linewidth()
    assert widths[0] > widths[1]
    said = [text for *_, text, _ in panel.words.items]
    assert "[CLS]  0.70" in said and "averyveryvery…  0.29" in said
    assert panel.lines.get_color()[0][:3] == pytest.approx([int(KEY[i : i + 2], 16) / 255 for i in (1, 3, 5)])


@pytest.mark.parametrize(("n", "words", "focus"), [(3, 2, 0), (6, 6, 0), (3, 3, 3)])
def test_words_that_do_not_fit_are_refused(n, words, focus):
    panel = Lines(most=5)
    drawn(panel)
    with pytest.raises(ValueError, match=re.escape(f"({n},) and word {focus} do not fit {words} words")):
        panel.update(np.full(n, 1 / n), ["w"] * words, focus)
