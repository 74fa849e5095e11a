"""Pictures can be read: 4.5 : 1 for text, 3 : 1 for lines, bars and frames (WCAG 2.2, 1.4.3 and 1.4.11)."""

import re
from itertools import pairwise

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.colors import to_rgb

from utils import charts, plots
from utils.artists import wants_white
from utils.doctor.report import _cell
from utils.live import ERROR
from utils.plots import EMPTY, FAINT, INK, KEY, PALE, QUERY, SHARES, SIGNED, VALUE, Heatmap, figure, picture

TEXT, GRAPHIC = 4.5, 3.0


def contrast(one, other):
    """The ratio of two colours, 1 to 21: WCAG 2.2, contrast ratio."""
    dark, light = sorted(luminance(to_rgb(colour)) for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


def luminance(rgb):
    """WCAG 2.2, relative luminance."""
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in rgb]
    return sum(weight * share for weight, share in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_the_measure_is_that_of_the_standard():
    assert contrast("white", "black") == pytest.approx(21)
    assert contrast("white", "white") == 1
    assert contrast("#777777", "white") == pytest.approx(4.48, abs=0.01)  # the greys around the limit
    assert contrast("#767676", "white") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("ink", [INK, FAINT, QUERY, KEY])  # as words beside and in pictures
def test_words_can_be_read_on_paper(ink):
    assert contrast(ink, plots.STYLE["figure.facecolor"]) >= TEXT


@pytest.mark.parametrize("colour", [*charts.COLOURS, QUERY, KEY, VALUE, PALE, FAINT])
def test_lines_bars_and_frames_can_be_seen_on_paper(colour):
    assert contrast(colour, plots.STYLE["axes.facecolor"]) >= GRAPHIC


@pytest.mark.parametrize("name", [SHARES, SIGNED])
def test_numbers_can_be_read_on_every_colour_of_a_heatmap(name):
    colours = colormaps[name](np.linspace(0, 1, 256), bytes=True)
    for colour, white in zip(colours, wants_white(colours), strict=True):
        assert contrast(colour[:3] / 255, "white" if white else "black") >= TEXT


@pytest.mark.parametrize("signed", [False, True])
def test_the_numbers_drawn_are_those_that_can_be_read(signed):
    panel = Heatmap(signed=signed)
    figure([panel], 1, 1)
    for value in np.linspace(-1 if signed else 0, 1, 201):
        panel.update([[value]], ["a"])
        assert contrast(panel.numbers.items[0][3], panel.cells.colours[0, 0, :3] / 255) >= TEXT


def test_a_number_that_is_not_one_can_be_read_on_the_empty_cell():
    panel = Heatmap()
    picture(panel, values=[[np.nan]], rows=["a"])
    assert contrast(panel.numbers.items[0][3], EMPTY) >= TEXT


def test_frames_can_be_seen_on_every_cell():
    panel = Heatmap()
    picture(panel, values=[[1.0]], rows=["a"], mark=(0, 0))
    for frame, colour in ((panel.row, QUERY), (panel.cell, KEY)):
        [halo] = frame.get_path_effects()
        assert halo._gc["linewidth"] >= frame.get_linewidth() + 2  # a pixel or more on both sides
        assert contrast(halo._gc["foreground"], colour) >= GRAPHIC


def test_the_doctors_numbers_can_be_read():
    inks = []
    for share in np.linspace(0, 1, 201):
        cell = _cell(share, 1.0)
        ground = [int(n) / 255 for n in re.search(r"rgb\((\d+),(\d+),(\d+)\)", cell).groups()]
        inks.append(re.search(r";color:(\w+)", cell)[1])
        assert contrast(inks[-1], ground) >= TEXT, cell
    assert sum(one != other for one, other in pairwise(inks)) == 1  # black, then white


def test_an_error_brings_its_own_ground_for_dark_themes():
    ink, ground = re.fullmatch(r"color:(#\w+);background:(\w+);.*", ERROR).groups()
    assert contrast(ink, ground) >= TEXT
