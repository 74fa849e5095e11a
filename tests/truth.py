"""Does the page show what is true? A live figure against a computation from nothing, in the same kernel."""

from __future__ import annotations

import hashlib

from tests.controls import Figure
from tests.pages import NotebookPage

# Run in the kernel: what a live figure with such controls must show for such labels. The picture is drawn
# anew from its background on, and not only what moved.
TRUTH = """
def _truth(labels):
    import hashlib
    from utils.live import LiveFigure

    figures = {id(thing): thing for thing in get_ipython().user_ns.values() if isinstance(thing, LiveFigure)}
    (figure,) = [one for one in figures.values() if list(one.controls) == list(labels)]
    values = {}
    for name, choice in figure._choices.items():
        values[name] = dict(choice.pairs(values))[labels[name]]
    if figure.values != values:
        return "the kernel has not heard of all that the page shows", str(figure.values), ""
    shown = figure._computed(values)
    for name, panel in figure._panels.items():
        panel.update(**shown[name])
    kept, figure._backgrounds, figure._frames = figure._backgrounds, {}, None
    picture = hashlib.sha256(figure._paint()).hexdigest()
    figure._backgrounds = kept
    return shown["sentence"], chr(10).join(shown.get("trace", ())), picture
"""


def on_the_page(figure: Figure) -> tuple[str, str, str]:
    """The sentence, the arithmetic, and which picture."""
    picture = hashlib.sha256(figure.picture()).hexdigest()
    return figure.sentence(), figure.trace(), picture


def assert_true(notebook: NotebookPage, figure: Figure, after: object) -> None:
    """The page shows what its controls ask for. A slow machine is waited for; a stale picture stays."""
    for _ in range(40):
        notebook.settle()
        labels = {control.name: control.shown() for control in figure.controls()}
        true, seen = notebook.kernel_says(f"_truth({labels!r})", TRUTH), on_the_page(figure)
        if seen == true:
            break
    assert seen == true, (after, labels)
    assert notebook.errors() == [], (after, labels)
