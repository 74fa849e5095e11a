"""Whatever a reader pastes stays text: it breaks no picture, runs no script, and too much is refused."""

import html
import io
import warnings

import numpy as np
import pytest
from matplotlib.font_manager import fontManager

from utils import artists, plots
from utils.heads import Lines
from utils.live import Choice, LiveFigure
from utils.minilm import nearest, word_vectors
from utils.plots import Bars, Heatmap, figure, heatmaps, lay_out, show
from utils.reading import describe_row

HOSTILE = {
    "HTML": "<img src=x onerror=alert(1)>",
    "a script": "</p><script>alert(1)</script>",
    "a formula": r"$\frac{1}{0}$ $$ \boom",
    "Markdown": "[a](javascript:alert(1)) **b** `c`",
    "entities": "&lt;b&gt; &amp; &#0;",
    "a long token": "supercalifragilistic" * 500,
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈",
    "Arabic": "الاهتمام",
    "right to left": "\u202eevil\u202c",
    "Chinese": "注意力机制",
    "Hindi": "ध्यान",
    "control characters": "a\x00b\x1b[31mc\td\ne\u2028f",
    "combining": "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘",
    "nothing": "",
    "a blank": " ",
    "formats": "%s {0} {tokens} \\n",
}
every_hostile = pytest.mark.parametrize("token", HOSTILE.values(), ids=HOSTILE)


def drawn(panel, *shown):
    """The pixels of a panel in a figure, where every warning of ours is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", DeprecationWarning)  # of a library, to another one
        fig = figure([panel])
        panel.update(*shown)
        with plots.style():
            lay_out(fig)
            fig.canvas.draw()
    return np.asarray(fig.canvas.buffer_rgba())


@every_hostile
def test_pictures_take_any_token_without_a_warning(token, recwarn):
    weights = np.full((3, 3), 1 / 3)
    for panel, shown in [
        (Heatmap("h"), (weights, [token, "b", token])),
        (Bars("b"), (weights[0], [token, "b", token])),
        (Bars("many"), (np.full(30, 1 / 30), [token] * 30)),
        (Lines("l"), (weights[0], [token, "b", token], 0)),
    ]:
        pixels = drawn(panel, *shown)
        cells = panel.ax.get_position()
        assert cells.width > 0.2 and cells.height > 0.2, "the labels leave no room for the picture"
        assert pixels[0, :, :3].min() == 255 and pixels[:, 0, :3].min() == 255, "something is cut off"
    assert not [w for w in recwarn.list if not issubclass(w.category, DeprecationWarning)]


@every_hostile
def test_a_caption_is_shown_as_it_is(token, monkeypatch):
    shown = []
    monkeypatch.setattr(plots, "display", lambda data, **options: shown.append(data))
    show(heatmaps({"h": np.eye(2)}, [token, "b"]), f"{token} attends to itself with weight 1.")
    for sign in "<>[]*`$|&":
        assert shown[1]["text/markdown"].count(sign) == shown[1]["text/markdown"].count("\\" + sign)


def live(token):
    """A live figure in which every text is hostile."""

    def draw(query):
        weights = np.eye(3)
        words = [token, "b", token]
        return {
            "all": dict(values=weights, rows=words, mark=(query, query)),
            "sentence": describe_row(weights[query], words, query),
            "trace": [token, f"{token} = 1"],
        }

    return LiveFigure(draw, {"all": Heatmap()}, {"query": Choice([(f"1 {token}", 0), (f"3 {token}", 2)])})


@every_hostile
def test_a_live_figure_shows_any_token_as_text(token):
    made = live(token)
    for place in (0, 1):
        made.query.index = place
        said = made.sentence.value
        inside = html.unescape(said)
        assert token[:30] in inside or not token.strip()
        for tag in ("<script", "<img", "onerror=alert(1)>"):
            assert tag not in said
    assert made.error.value == ""


def test_an_error_that_quotes_a_reader_is_text_too_and_short():
    def draw(query):
        raise ValueError("<script>alert(1)</script>" * 1000)

    with pytest.raises(ValueError) as error:
        LiveFigure(draw, {"all": Heatmap()}, {"query": Choice([1, 2])})
    assert "<script>" in str(error.value)

    made = live("a")
    made._draw = draw
    with pytest.raises(ValueError):
        made.redraw()
    assert "&lt;script&gt;" in made.error.value and "<script" not in made.error.value
    assert len(made.error.value) < 2000


def test_a_sentence_has_room_for_forty_characters_of_a_token():
    said = describe_row(np.array([0.0, 1.0]), ["x" * 40, "y" * 10_000], 0)
    assert "x" * 40 in said and "y" * 39 + "…" in said and len(said) < 300


# -- too much -------------------------------------------------------------------------------------------


def test_a_picture_refuses_more_tokens_than_it_has_pixels_for():
    names = [str(i) for i in range(5000)]
    for panel, values in ((Heatmap(), np.ones((1, 5000))), (Bars(), np.ones(5000))):
        figure([panel])
        with pytest.raises(ValueError, match="room for 512 tokens, not for 5000: show a part"):
            panel.update(values, names if values.ndim == 1 else ["a"], *([names] * (values.ndim - 1)))


def test_a_huge_paste_is_refused_before_its_attention_is_computed():
    with pytest.raises(ValueError, match=r"100,000 tokens .* 10,000,000,000 weights .* 4,096 at most"):
        word_vectors(["cat"] * 100_000)
    with pytest.raises(TypeError) as error:
        word_vectors("cat " * 1_000_000)
    assert len(str(error.value)) < 200
    with pytest.raises(KeyError) as error:
        nearest("cat" * 1_000_000)
    assert len(str(error.value)) < 300


# -- letters that DejaVu Sans does not have -----------------------------------------------------------------


def test_chinese_is_drawn_where_the_machine_has_a_font_for_it():
    names = artists.fonts()
    assert names[0] == "DejaVu Sans"
    installed = {font.name for font in fontManager.ttflist}
    if not installed & set(artists.CJK_FONTS):
        pytest.skip("this machine has no Chinese font")
    assert set(names[1:]) <= installed and len(names) == 2
    stamps = [artists._stamp(letter, "#222222", 16) for letter in "注意"]
    assert stamps[0].shape != stamps[1].shape or (stamps[0] != stamps[1]).any()  # no two equal boxes


def test_a_picture_with_any_of_them_can_be_saved():
    fig = heatmaps({"h": np.eye(len(HOSTILE))}, list(HOSTILE.values()), width=9, height=9)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", DeprecationWarning)  # of a library, to another one
        with plots.style():
            fig.savefig(io.BytesIO(), format="png")
