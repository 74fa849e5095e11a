"""Two matplotlib artists that are fast enough for a slider: coloured cells, and many small numbers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from matplotlib.artist import Artist
from matplotlib.backend_bases import RendererBase
from matplotlib.colors import to_rgb
from matplotlib.font_manager import fontManager, get_font
from PIL import ImageFont

FONT = "DejaVu Sans"  # comes with matplotlib
CJK_FONTS = (  # it has no Chinese, Japanese or Korean; of these, the first that is installed is used
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Source Han Sans SC", "WenQuanYi Zen Hei"),
    *("PingFang SC", "PingFang HK", "Hiragino Sans GB", "Microsoft YaHei", "SimHei", "Arial Unicode MS"),
)


class Cells(Artist):
    """A matrix that fills its axes, each entry one plain rectangle: `imshow` is too slow for a slider."""

    def __init__(self) -> None:
        super().__init__()
        self.colours = np.zeros((1, 1, 4), np.uint8)
        self.set_in_layout(False)

    def show(self, colours: np.ndarray) -> None:
        """Take (rows, columns, 4) uint8 RGBA, first row on top."""
        self.colours = colours

    def draw(self, renderer: RendererBase) -> None:
        """Enlarge each entry to its rectangle of pixels (called by matplotlib)."""
        if not self.get_visible():
            return
        left, bottom, right, top = np.round(self.axes.bbox.extents).astype(int)
        rows, columns = self.colours.shape[:2]
        row_of_pixel = (
            np.arange(top - bottom)[::-1] * rows // (top - bottom)
        )  # Agg wants the bottom one first
        column_of_pixel = np.arange(right - left) * columns // (right - left)
        whole = np.ascontiguousarray(self.colours).view(np.uint32)[
            ..., 0
        ]  # a colour is one number of 4 bytes
        pixels = whole[:, column_of_pixel][row_of_pixel].view(np.uint8)
        gc = renderer.new_gc()
        renderer.draw_image(gc, left, bottom, pixels.reshape(top - bottom, right - left, 4))
        gc.restore()


class Numbers(Artist):
    """Many short pieces of text, stamped from a cache: its own texts cost matplotlib too much."""

    def __init__(self, align: str = "center", size: float = 9) -> None:
        super().__init__()
        self.align, self.size, self.items = align, size, []
        self.set_in_layout(False)

    def show(self, items: Iterable[tuple[float, float, str, str]]) -> None:
        """Take (x, y, text, colour), x and y in the axes' own coordinates."""
        self.items = list(items)

    def draw(self, renderer: RendererBase) -> None:
        """Stamp every number where it belongs (called by matplotlib)."""
        if not self.get_visible() or not self.items:
            return
        gc = renderer.new_gc()
        height = round(self.size * renderer.points_to_pixels(1))
        places = self.axes.transData.transform([(x, y) for x, y, _, _ in self.items])
        for (left, middle), (_, _, text, colour) in zip(places, self.items, strict=True):
            stamp = _stamp(text, colour, height)
            left -= stamp.shape[1] / 2 if self.align == "center" else 0
            renderer.draw_image(gc, round(left), round(middle - stamp.shape[0] / 2), stamp)
        gc.restore()


def wants_white(colours: np.ndarray) -> np.ndarray:
    """Whether white text is easier to read than black on each of these (..., 4) uint8 RGBA colours.

    Where both are equally good, at a luminance of 0.179, each has a contrast of 4.58: 4.5 is enough.

    Source: W3C, Web Content Accessibility Guidelines 2.2, relative luminance and contrast ratio.
    """
    share = colours[..., :3] / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    return (linear @ [0.2126, 0.7152, 0.0722] < 0.179) & (colours[..., 3] > 0)


@lru_cache(maxsize=4096)
def _stamp(text: str, colour: str, height: int) -> np.ndarray:
    """A piece of text as (h, w, 4) RGBA pixels, bottom row first, as Agg wants its images."""
    mask = _font(height, text).getmask(text)
    alpha = np.array(mask, np.uint8).reshape(mask.size[::-1])[::-1]
    pixels = np.empty((*alpha.shape, 4), np.uint8)
    pixels[..., :3] = np.round(255 * np.array(to_rgb(colour)))
    pixels[..., 3] = alpha
    return pixels


@lru_cache
def fonts() -> tuple[str, ...]:
    """The names of the fonts that a picture's text is taken from; the first that has a letter counts."""
    installed = {font.name for font in fontManager.ttflist}
    return (FONT, *[name for name in CJK_FONTS if name in installed][:1])


def _font(height: int, text: str) -> ImageFont.FreeTypeFont:
    """The first font that has every letter of the text; the first of all, if none has."""
    names = fonts()
    able = (name for name in names if text.isascii() or _letters(name).issuperset(map(ord, text)))
    return _loaded(next(able, names[0]), height)


@lru_cache
def _letters(name: str) -> frozenset[int]:
    return frozenset(get_font(fontManager.findfont(name)).get_charmap())


@lru_cache
def _loaded(name: str, height: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(fontManager.findfont(name), height)
