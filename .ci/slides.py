"""What stands on which slide: every text begins a new one, and what does not fit goes on the next.

Heights are estimated, in lines of text. What is taller than a slide all by itself scrolls.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

TALLEST = 17  # lines that a slide has room for
WIDE = 105  # characters of text in a line
CODE, ROW, HEADING, PICTURE = 0.9, 1.6, 1.8, 16  # lines that these take
BLOCKS = re.compile(r"(?s)<details>.*?</details>|```.*?```|\$\$.*?\$\$|(?:(?!\n\n|<details>|```).)+")


def on_slides(cells: list[NotebookNode]) -> Iterator[NotebookNode]:
    """The cells as they stand on slides, without the first code cell; texts may be cut between paragraphs.

    The first cell of a slide knows the slide's number, and the part of the notebook unless it begins one.
    """
    number, part, filled = 0, "", math.inf
    for cell in cells:
        if "bootstrap" in cell.metadata.get("tags", []):
            continue
        begins = cell.cell_type == "markdown" and not cell.source.startswith("<details>")
        for piece in _pieces(cell):
            heading = re.match(r"#+ (.+)", piece.source) if piece.cell_type == "markdown" else None
            filled += height(piece)
            if begins or filled > TALLEST:
                number, filled = number + 1, height(piece)
                piece.metadata |= {"slide": number, "part": "" if heading else part}
            part, begins = heading[1] if heading else part, False
            yield piece


def _pieces(cell: NotebookNode) -> list[NotebookNode]:
    """A text as its paragraphs, a heading and what is folded staying with what they belong to; code whole."""
    if cell.cell_type == "code":
        cell.metadata["drawn"] = _draws(cell)
        return [cell]
    texts: list[str] = []
    for block in BLOCKS.findall(cell.source):
        if texts and (block.startswith("<details>") or re.fullmatch(r"#+ .+", texts[-1])):
            texts[-1] += "\n\n" + block.strip()
        elif block.strip():
            texts.append(block.strip())
    return [new_markdown_cell(text) for text in texts]


def _draws(cell: NotebookNode) -> bool:
    return any("image/png" in output.get("data", {}) for output in cell.outputs)


def height(cell: NotebookNode) -> float:
    """How many lines a cell takes on a slide; what is folded takes one and a half."""
    if cell.cell_type == "markdown":
        return _text_height(cell.source)
    if _draws(cell):
        return PICTURE + 1.5  # the code that draws is folded
    lines = 1 + CODE * len(cell.source.splitlines())
    for output in cell.outputs:
        bundle = output.get("data", {})
        if "text/html" in bundle:
            lines += 1.5 * len(re.findall(r"<(?:p|li|summary|tr|h\d)\b", bundle["text/html"]))
        else:
            said = output.get("text", "") or bundle.get("text/plain", "")
            lines += 0.5 + CODE * len(said.splitlines())
    return lines


def _text_height(text: str) -> float:
    folded = text.count("<details>")
    text = re.sub(r"(?s)<details>.*?</details>", "", text)
    lines = 1.7 * folded
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
