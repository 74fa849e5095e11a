"""What stands on which slide, and what is left out or folded because nothing runs there.

Heights are estimated, in lines of text. Every way to cut a part of the notebook into slides has a price: for
each slide, for each line that does not fit, and for each pair that is torn apart. The cheapest is taken.
What is taller than a slide all by itself scrolls.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Iterator
from itertools import pairwise

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

TALLEST = 20.5  # lines that a slide of 1280 x 720 pixels has room for
WIDE = 105  # characters of text in a line
CODE, ROW, HEADING, FOLDED = 0.8, 1.25, 1.8, 1.75  # lines that these take
UPRIGHT = 0.6  # a picture of at least this height over its width has its words beside it
A_SLIDE, A_LINE, NEVER = 3, 4, 1e6  # prices: of a slide, of a line that does not fit, of what must not be
BLOCKS = re.compile(r"(?s)<details>.*?</details>|```.*?```|\$\$.*?\$\$|(?:(?!\n\n|<details>|```).)+")
ONLY_LIVE = re.compile(r"Run one cell at a time|The cell below comes first")  # paragraphs for who runs it


def on_slides(cells: list[NotebookNode]) -> Iterator[NotebookNode]:
    """The cells as they stand on slides; texts may be cut between paragraphs.

    The first cell of a slide knows the slide's number, and the part of the notebook unless it begins one.
    """
    pieces = [piece for cell in cells if not _runs_only(cell) for piece in _pieces(cell)]
    starts, part = _cheapest(pieces), ""
    for place, piece in enumerate(pieces):
        heading = re.match(r"#+ (.+)", piece.source) if piece.cell_type == "markdown" else None
        if place in starts:
            piece.metadata |= {"slide": starts.index(place) + 1, "part": "" if heading else part}
        part = heading[1] if heading else part
        yield piece


def _cheapest(pieces: list[NotebookNode]) -> list[int]:
    """Where slides begin."""
    heights = [height(piece) for piece in pieces]
    torn = [0.0, *(_torn(before, after) for before, after in pairwise(pieces))]
    price, last = [0.0], [0]
    for end in range(1, len(pieces) + 1):
        ways = []
        for start in range(end - 1, max(end - 20, -1), -1):
            kept = NEVER * sum(_apart(*pair) for pair in pairwise(pieces[start:end]))
            excess = max(0.0, sum(heights[start:end]) - TALLEST)
            ways.append((price[start] + torn[start] + A_SLIDE + A_LINE * excess + kept, start))
        best = min(ways)
        price.append(best[0])
        last.append(best[1])
    starts = [last[-1]]
    while starts[0] > 0:
        starts.insert(0, last[starts[0]])
    return starts


def _apart(before: NotebookNode, after: NotebookNode) -> bool:
    """What never shares a slide: a question and its answer, two parts, two exercises, a picture and code."""
    if is_question(before):
        return True
    if after.cell_type == "markdown":
        exercise = re.match(r"\*\*[A-Z]\. ", after.source) and "# Exercises" not in before.source
        return bool(exercise or re.match(r"#{1,2} ", after.source))
    return "drawn" in before.metadata


def _torn(before: NotebookNode, after: NotebookNode) -> float:
    """The price of a new slide between two pieces."""
    if after.cell_type == "markdown" and after.source.startswith("<details>"):
        return 8  # hints belong to their exercise
    if before.cell_type == "code":
        return 1 if after.cell_type == "code" else 0
    if before.source.endswith(":") and not is_question(after):
        return 6
    return 1.5 if after.cell_type == "markdown" else 2.5


def is_question(cell: NotebookNode) -> bool:
    return cell.cell_type == "code" and cell.source.startswith("predict(")


def _runs_only(cell: NotebookNode) -> bool:
    """Cells that say nothing at rest: the first one, and how many predictions came true."""
    return "bootstrap" in cell.metadata.get("tags", []) or cell.source.startswith("sum_up(")


# -- pieces -------------------------------------------------------------------------------


def _pieces(cell: NotebookNode) -> list[NotebookNode]:
    """A text as its paragraphs, a heading and what is folded staying with what they belong to; code whole."""
    if cell.cell_type == "code":
        return [_at_rest(cell)]
    texts: list[str] = []
    for block in map(str.strip, BLOCKS.findall(cell.source)):
        if texts and (block.startswith("<details>") or re.fullmatch(r"#+ .+", texts[-1])):
            texts[-1] += "\n\n" + block
        elif block and not ONLY_LIVE.match(block):
            texts.append(block)
    return [new_markdown_cell(text) for text in texts]


def _at_rest(cell: NotebookNode) -> NotebookNode:
    """A code cell without what only a run makes true; its code folded where something else matters more."""
    cell.outputs = [o for o in cell.outputs if "not attempted yet" not in o.get("text", "")]
    pictures = [o.data["image/png"] for o in cell.outputs if "image/png" in o.get("data", {})]
    if pictures:
        cell.metadata |= {"drawn": shape(pictures[0]), "folded": "Code"}
    elif cell.source.startswith("import ") and not cell.outputs:
        cell.metadata["folded"] = "Imports"
    elif cell.outputs and "exercise" not in cell.metadata.get("tags", []) and height(cell) > TALLEST - 1:
        cell.metadata["folded"] = "Code"
    return cell


def shape(png: str) -> float:
    """The height of a picture over its width."""
    width, height = struct.unpack(">II", base64.b64decode(png[:32])[16:24])
    return height / width


# -- heights ------------------------------------------------------------------------------


def height(cell: NotebookNode) -> float:
    """How many lines a cell takes on a slide; what is folded takes less than two."""
    if cell.cell_type == "markdown":
        return _text_height(cell.source)
    if drawn := cell.metadata.get("drawn"):
        return TALLEST if drawn > UPRIGHT else min(16, 40 * drawn) + 2 + FOLDED + _words_height(cell)
    lines = FOLDED if "folded" in cell.metadata else 1 + CODE * len(cell.source.splitlines())
    lines = 0 if is_question(cell) else lines
    for output in cell.outputs:
        bundle = output.get("data", {})
        if "text/html" in bundle:
            lines += 1.5 * len(re.findall(r"<(?:p|li|summary|tr|h\d)\b", bundle["text/html"]))
        else:
            said = output.get("text", "") or bundle.get("text/plain", "")
            lines += 0.5 + CODE * sum(math.ceil(len(line) / 110) for line in said.splitlines())
    return lines


def _words_height(cell: NotebookNode) -> float:
    """The lines that stand under a picture: its words, and the arithmetic."""
    traces = [o.metadata.get("image/png", {}).get("trace", "") for o in cell.outputs if "metadata" in o]
    words = [o.data["text/plain"] for o in cell.outputs if "data" in o and "text/markdown" not in o.data]
    return sum(math.ceil(len(text) / WIDE) for text in words) + CODE * sum(
        len(t.splitlines()) for t in traces
    )


def _text_height(text: str) -> float:
    folded = text.count("<details>")
    text = re.sub(r"(?s)<details>.*?</details>", "", text)
    lines = FOLDED * folded
    for block in BLOCKS.findall(text):
        rows = block.strip().splitlines()
        if block.startswith("$$"):
            lines += 3
        elif rows and rows[0].startswith("|"):
            lines += ROW * (len(rows) - 1)
        elif rows and re.match(r"[-*>\d]", rows[0]):
            lines += 0.7 + sum(math.ceil(len(row) / WIDE) for row in rows)
        elif rows:
            lines += 0.7 + math.ceil(len(block) / WIDE) + HEADING * rows[0].startswith("#")
    return lines
