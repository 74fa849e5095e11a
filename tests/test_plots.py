"""Pictures: the numbers on them are the numbers given."""

import base64
import io
import re
import warnings

import numpy as np
import pytest
from matplotlib import rc_context, rcParams
from PIL import Image

from utils import plots
from utils.charts import Curves, Histogram
from utils.plots import KEY, PALE, QUERY, Bars, Heatmap, figure, heatmaps, lay_out, picture, show
from utils.png import to_png
from utils.products import Products, Stack


def pixels(fig):
    fig.canvas.draw()
    return np.asarray(fig.canvas.buffer_rgba())


def at(fig, panel, x, y):
    """The colour that a figure has at a place in a panel's own coordinates."""
    seen = pixels(fig)
    column, row = panel.ax.transData.transform((x, y))
    return seen[seen.shape[0] - 1 - int(row), int(column), :3]


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (7, 4), (40, 40)])
def test_each_cell_has_the_colour_of_its_value(shape):
    values = np.random.default_rng(0).random(shape)
    panel = Heatmap()
    names = [[f"t{i}" for i in range(n)] for n in shape]
    fig = picture(panel, values=values, rows=names[0], columns=names[1])
    wanted = panel.colours.to_rgba(values, bytes=True)
    for i, j in [(0, 0), (shape[0] - 1, 0), (0, shape[1] - 1), (shape[0] // 2, shape[1] // 2)]:
        assert np.abs(at(fig, panel, j - 0.4, i - 0.4).astype(int) - wanted[i, j, :3]).max() <= 1


def test_cells_beyond_the_values_stay_empty():
    panel = Heatmap()
    fig = picture(panel, values=np.ones((2, 2)), rows=list("abcd"))
    assert at(fig, panel, 3, 3).tolist() == [0xF2] * 3
    assert at(fig, panel, 0.6, 1.4).tolist() == at(fig, panel, 1.4, 0.6).tolist() != [0xF2] * 3


def test_small_matrices_are_written_out_and_large_ones_are_not():
    small, large = Heatmap(signed=True), Heatmap()
    picture(small, values=[[0.25, -1.0]], rows=["a"], columns=["b", "c"])
    picture(large, values=np.eye(7), rows=list("abcdefg"))
    assert [(x, y, text) for x, y, text, _ in small.numbers.items] == [(0, 0, "0.25"), (1, 0, "-1.00")]
    assert large.numbers.items == []


def test_a_number_stands_upright_and_where_it_belongs():
    panel = Heatmap()
    fig = picture(panel, values=[[0.07]], rows=["a"])
    seen = pixels(fig)[..., :3].min(-1) < 100  # ink on a pale cell
    column, row = panel.ax.transData.transform((0, 0))
    row = seen.shape[0] - row
    ink = np.argwhere(seen[int(row) - 8 : int(row) + 8, int(column) - 20 : int(column) + 20])
    assert np.abs(ink.mean(0) - [8, 20]).max() < 3
    seven = ink[ink[:, 1] > np.percentile(ink[:, 1], 75)]  # the bar of a 7 is on top
    assert np.median(seven[:, 0]) < 8


def rgb(colour):
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def test_mark_frames_the_querys_row_and_the_keys_cell():
    panel = Heatmap()
    fig = picture(panel, values=np.zeros((3, 4)), rows=list("abc"), columns=list("wxyz"), mark=(1, 3))
    assert np.abs(at(fig, panel, 0, 0.5).astype(int) - rgb(QUERY)).max() < 40
    assert np.abs(at(fig, panel, 3, 1.45).astype(int) - rgb(KEY)).max() < 40
    assert panel.row.get_bbox().bounds == (-0.5, 0.5, 4, 1)
    assert panel.cell.get_bbox().bounds == pytest.approx((2.55, 0.55, 0.9, 0.9))
    panel.update(np.zeros((3, 4)), list("abc"), list("wxyz"))
    assert not panel.row.get_visible()


def test_rows_are_queries_and_columns_are_keys():
    panel = Heatmap("a title")
    picture(panel, values=np.zeros((2, 3)), rows=["q0", "q1"], columns=["k0", "k1", "k2"])
    ax = panel.ax
    assert (ax.get_ylabel(), ax.get_xlabel(), ax.get_title()) == ("query", "key", "a title")
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["q0", "q1"]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["k0", "k1", "k2"]
    assert ax.yaxis_inverted()  # the first query is on top
    assert not ax.xaxis_inverted()


def test_signed_values_are_coloured_around_zero():
    panel = Heatmap(limit=2.0, signed=True)
    colours = panel.colours.to_rgba(np.array([[-2.0, 0.0, 2.0]]), bytes=True)[0, :, :3].astype(int)
    assert colours[1].min() > 240  # zero is white
    assert colours[0][2] > colours[0][0]  # negative is blue
    assert colours[2][0] > colours[2][2]  # positive is red


@pytest.mark.parametrize(("value", "colour"), [(0.0, "black"), (0.6, "black"), (0.8, "white")])
def test_numbers_can_be_read_on_their_cell(value, colour):
    panel = Heatmap()
    picture(panel, values=[[value]], rows=["a"])
    assert [item[3] for item in panel.numbers.items] == [colour]


def test_bars_are_as_long_as_their_values():
    panel = Bars()
    fig = picture(panel, values=[0.2, 0.8], labels=["a", "b", "c"], mark=1)
    lengths = [path.vertices[:, 0].max() for path in panel.bars.get_paths()]
    assert lengths == pytest.approx([0.2, 0.8])
    assert [text for *_, text, _ in panel.numbers.items] == ["0.20", "0.80"]
    assert [tick.get_text() for tick in panel.ax.get_yticklabels()] == ["a", "b", "c"]
    assert at(fig, panel, 0.79, 1).tolist() == rgb(KEY)
    assert at(fig, panel, 0.19, 0).tolist() == rgb(PALE)
    assert at(fig, panel, 0.5, 2).tolist() == [255] * 3


def test_many_tokens_name_every_second_tick():
    panel = Heatmap()
    picture(panel, values=np.eye(40), rows=[f"t{i}" for i in range(40)])
    assert [tick.get_text() for tick in panel.ax.get_yticklabels()][:3] == ["t0", "t2", "t4"]


def test_of_many_bars_the_marked_and_the_longest_keep_their_numbers():
    panel = Bars()
    values = np.linspace(0, 0.5, 20)
    picture(panel, values=values, labels=[f"{i}" for i in range(20)], mark=3)
    assert sorted(y for _, y, *_ in panel.numbers.items) == [3, 15, 17, 19]  # neighbours would overlap
    panel = Bars()
    picture(panel, values=np.eye(40)[7], labels=[f"word {i}" for i in range(40)], mark=7)
    assert panel.numbers.items[0][1:3] == (7, "1.00 word 7")  # the axis names every second one


def test_strange_tokens_are_drawn_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Glyph")  # no font has them all
        panel = Heatmap()
        fig = picture(panel, values=np.eye(4), rows=["$x^$", "猫\n", "🐭", "<b>" * 50])
        show(fig, "fine")
    assert not any(tick.get_parse_math() for tick in panel.ax.get_yticklabels())
    assert panel.ax.get_yticklabels()[3].get_text() == "<b><b><b><b><…"
    assert panel.ax.bbox.width > 100  # a long token leaves room for the picture


def test_show_gives_the_picture_and_a_caption_that_can_be_read(monkeypatch):
    shown = []
    monkeypatch.setattr(
        plots, "display", lambda data, metadata=None, raw=False: shown.append((data, metadata))
    )
    show(figure([Bars()]), "weights <1 & so on")
    (image, size), (text, _) = shown
    assert image["text/plain"] == text["text/plain"] == "weights <1 & so on"
    assert text["text/markdown"] == r"weights \<1 \& so on"
    assert size == {"image/png": {"width": 800}}
    assert Image.open(io.BytesIO(base64.b64decode(image["image/png"]))).size == (1600, 760)


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (420, 860)])
def test_png_can_be_read_back(shape):
    picture = np.random.default_rng(0).integers(0, 256, (*shape, 4), dtype=np.uint8)
    np.testing.assert_array_equal(Image.open(io.BytesIO(to_png(picture))), picture[..., :3])


def test_a_panel_belongs_to_one_figure():
    panel = Heatmap()
    figure([panel])
    with pytest.raises(ValueError, match="this Heatmap belongs to a figure already"):
        figure([panel])


@pytest.mark.parametrize(
    ("panel", "shown", "words"),
    [
        (
            Bars,
            {"values": [0.2, 0.3, 0.5], "labels": ["a", "b"]},
            r"shape \(3,\) do not fit axes with \(2,\)",
        ),
        (Bars, {"values": [0.2], "labels": ["a"], "mark": 9}, r"mark \(9,\) lies outside"),
        (Heatmap, {"values": np.eye(3), "rows": ["a", "b"]}, r"shape \(3, 3\) do not fit axes with \(2, 2\)"),
        (Heatmap, {"values": np.eye(2), "rows": ["a", "b"], "mark": (0, 2)}, "lies outside"),
        (Heatmap, {"values": np.ones((0, 0)), "rows": []}, "do not fit"),
    ],
)
def test_what_does_not_fit_is_said_in_words(panel, shown, words):
    with pytest.raises(ValueError, match=words):
        picture(panel(), **shown)


def test_numbers_show_what_is_there_even_where_a_bar_cannot():
    panel = Bars()
    fig = picture(panel, values=[np.nan, 1.7, -0.004, 0.5], labels=[1, 2, 3, 4])
    shown = {y: (x, text) for x, y, text, _ in panel.numbers.items}
    assert shown[1] == (pytest.approx(1.02), "1.70")
    assert [shown[0][1], shown[2][1]] == ["nan", "0.00"]
    assert pixels(fig).shape == (380, 380, 4)


def test_labels_may_grow_and_shrink_and_the_picture_is_the_same_again():
    panel = Heatmap()
    fig = figure([panel])
    panel.update(np.eye(2), ["x", "y"])
    ticks = [(t.get_rotation(), t.get_ha()) for t in panel.ax.get_xticklabels()]
    panel.update(np.eye(2), ["xxxx", "yyyy"])
    assert [t.get_rotation() for t in panel.ax.get_xticklabels()] == [60, 60]
    panel.update(np.eye(2), ["x", "y"])
    assert [(t.get_rotation(), t.get_ha()) for t in panel.ax.get_xticklabels()] == ticks
    assert fig.axes == [panel.ax]


def test_a_readers_own_matplotlib_settings_stay_out_and_come_back():
    with rc_context(
        {"savefig.bbox": "tight", "savefig.transparent": True, "axes.facecolor": "red", "font.size": 30}
    ):
        mine = dict(rcParams)
        fig = picture(Heatmap(), values=np.eye(2), rows=["a", "b"])
        panel_colour = fig.axes[0].get_facecolor()
        assert dict(rcParams) == mine
    assert panel_colour != (1, 0, 0, 1)
    assert pixels(fig).shape == (380, 380, 4)


def products(n=2, d=3, m=2):
    left, right = np.arange(n * d).reshape(n, d) - 2.0, np.ones((d, m))
    return [{"X": left, "W": right, "Q": left @ right}]


def test_products_are_drawn_to_scale_each_on_its_own_colours():
    panel = Products("", [(4, 6, 5)])
    fig = figure([panel])
    panel.update(products())
    paper = panel.cells.colours
    assert (paper != 255).any(-1).sum() == 2 * 3 + 3 * 2 + 2 * 2  # 0, too, is a shade off the paper's white
    assert [text for *_, text, _ in panel.labels.items] == ["X  2 × 3", "W  3 × 2", "Q  2 × 2", "@", "="]
    edges = [path.get_extents() for path in panel.edges.get_paths()]
    assert [(round(e.width), round(e.height)) for e in edges] == [(3, 2), (2, 3), (2, 2)]
    x, q = edges[0], edges[2]
    blue, red = (
        paper[round(x.ymin + 0.5), round(x.xmin + 0.5)],
        paper[round(q.ymax - 0.5), round(q.xmin + 0.5)],
    )
    assert blue[2] > blue[0] and red[0] > red[2]
    pixels(fig)


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        ([], "there is room for 1 products, not 0"),
        (products(n=5), "X (5, 3), W (3, 2), Q (5, 2) find no room"),
        (products(d=7), "with n, d, m up to (4, 6, 5)"),
        (
            [{"X": np.ones((2, 3)), "W": np.ones((2, 3)), "Q": np.ones((2, 3))}],
            "are no left @ right = result",
        ),
        ([{"X": np.ones((2, 3)), "W": np.ones((3, 2))}], "are no left @ right = result"),
        ([{"X": np.ones(3), "W": np.ones((3, 2)), "Q": np.ones(2)}], "are no left @ right = result"),
    ],
)
def test_products_that_do_not_fit_are_refused_in_words(shown, words):
    panel = Products("", [(4, 6, 5)])
    figure([panel])
    with pytest.raises(ValueError, match=re.escape(words)):
        panel.update(shown)


def test_panels_may_lie_in_a_mosaic():
    left, upper, lower = Heatmap(), Heatmap(), Bars(name="share of the squares")
    fig = figure([left, upper, lower], mosaic="AB;AC", heights=[3, 1])
    left.update(np.eye(2), "ab"), upper.update(np.eye(2), "ab"), lower.update(np.array([1.0, 0.0]), "ab")
    lay_out(fig)
    assert left.ax.get_position().x1 < upper.ax.get_position().x0
    assert lower.ax.get_position().y1 < upper.ax.get_position().y0
    assert lower.ax.get_xlabel() == "share of the squares"


def test_a_histogram_counts_one_bar_per_unit_and_the_outside_at_its_ends():
    panel = Histogram(limit=3, top=1.0)
    fig = figure([panel])
    panel.update(np.array([[0.2, -0.4], [2.6, 99.0]]))
    bars = [path.get_extents() for path in panel.bars.get_paths()]
    assert [((b.x0 + b.x1) / 2, b.height) for b in bars] == [(0.0, 0.5), (3.0, 0.5)]
    pixels(fig)


def test_curves_show_their_heights_and_the_point_on_one_of_them():
    panel = Curves([1, 2, 4], ["a", "b"], limits=(0.1, 10), log="xy")
    fig = figure([panel])
    panel.update([[1, 2, 3], [3, 2, 1]], mark=(1, 2))
    assert [line.get_ydata().tolist() for line in panel.drawn] == [[1, 2, 3], [3, 2, 1]]
    assert panel.point.get_data()[0] == [4] and panel.point.get_data()[1] == [1.0]
    panel.update([[1, 2, 3], [3, 2, 1]])
    assert not panel.point.get_visible()
    pixels(fig)
    with pytest.raises(ValueError, match=re.escape("(1, 3) heights do not fit 2 lines of 3 points")):
        panel.update([[1, 2, 3]])


def test_a_stack_draws_matrices_one_below_the_other():
    panel = Stack("", (4, 6), 3)
    fig = figure([panel])
    panel.update({"x": np.ones((2, 6)), "norm": -np.ones((3, 5))})
    edges = [path.get_extents() for path in panel.edges.get_paths()]
    assert [(round(e.width), round(e.height)) for e in edges] == [(6, 2), (5, 3)]
    assert edges[0].y1 < edges[1].y0
    assert [text for *_, text, _ in panel.labels.items] == ["x  2 × 6", "norm  3 × 5"]
    pixels(fig)
    with pytest.raises(ValueError, match=re.escape("x has shape (5, 2); there is room for (4, 6)")):
        panel.update({"x": np.ones((5, 2))})
    with pytest.raises(ValueError, match="room for 3 matrices, not 4"):
        panel.update({str(i): np.ones((2, 2)) for i in range(4)})


def test_heatmaps_stand_side_by_side_with_the_same_labels():
    fig = heatmaps({"a": np.eye(2), "b": np.ones((2, 3))}, "xy", "count", limit=2.0)
    first, second = fig.axes
    assert [first.get_title(), second.get_title()] == ["a", "b"]
    assert [t.get_text() for t in second.get_xticklabels()] == ["0", "1", "2"]
    assert [t.get_text() for t in first.get_yticklabels()] == ["x", "y"]
