"""Predict before you look: `predict("01-twins")` asks, and answers once you have chosen.

The questions live in utils/data/predictions.json, so that no cell gives the answer away.
"""

from __future__ import annotations

import html
import json
from functools import cache
from pathlib import Path
from typing import Any

import ipywidgets as widgets
from IPython.display import display

from utils import spoken

_first_choices: dict[str, int] = {}  # question -> what was chosen first, for the summary


@cache
def questions() -> dict[str, dict[str, Any]]:
    """All questions by name: section, question, choices, answer (a place in choices), reason."""
    path = Path(__file__).parent / "data" / "predictions.json"
    return json.loads(path.read_text(encoding="utf-8"))


class Prediction:
    """One question with choices. The first choice counts; after it the answer and the reason appear.

    buttons  the choices; nothing is chosen at the start
    answer   what is said about the choice
    """

    def __init__(self, name: str) -> None:
        if name not in questions():
            raise KeyError(f"there is no question {name!r}; there are {', '.join(questions())}")
        self.name, self.question = name, questions()[name]
        self.buttons = widgets.RadioButtons(
            options=self.question["choices"], value=None, layout={"width": "auto"}
        )
        self.answer = widgets.HTML()
        self.buttons.observe(self._chosen, "index")
        self._said = f"{self.answer.model_id}-said"
        question = f"<b>Predict.</b> {html.escape(self.question['question'])}"
        text = widgets.HTML(question + spoken.region(self._said))
        self.box = widgets.VBox([text, self.buttons, self.answer])

    def _chosen(self, change: dict[str, Any]) -> None:
        if change["new"] is None:
            return
        _first_choices.setdefault(self.name, change["new"])
        right = change["new"] == self.question["answer"]
        verdict = "Yes." if right else f"Not quite. The answer: {self._right_choice()}."
        self.answer.value = spoken.part(self._said, f"{verdict} {self.question['reason']}")

    def _right_choice(self) -> str:
        return self.question["choices"][self.question["answer"]]

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """The live question where a kernel runs; on static pages the question with a folded answer."""
        choices = "".join(f"<li>{html.escape(choice)}</li>" for choice in self.question["choices"])
        told = html.escape(f"{self._right_choice()}. {self.question['reason']}")
        return {
            "application/vnd.jupyter.widget-view+json": {
                "version_major": 2,
                "version_minor": 0,
                "model_id": self.box.model_id,
            },
            "text/html": f"<p><b>Predict.</b> {html.escape(self.question['question'])}</p><ul>{choices}</ul>"
            f"<details><summary>Answer</summary>{told}</details>",
            "text/plain": f"Predict. {self.question['question']} ({' / '.join(self.question['choices'])})",
        }


def predict(name: str) -> Prediction:
    """Ask a question of the course by its name, as the last line of a cell."""
    return Prediction(name)


def sum_up(notebook: str) -> None:
    """Show how many of a notebook's predictions ("01") were right, and which sections to see again."""
    asked = {name: question for name, question in questions().items() if name.startswith(notebook)}
    answered = [name for name in asked if name in _first_choices]
    wrong = [name for name in answered if _first_choices[name] != asked[name]["answer"]]
    text = f"Your first answers were right in {len(answered) - len(wrong)} of {len(asked)} predictions"
    text += "." if len(answered) == len(asked) else f"; {len(asked) - len(answered)} are not answered yet."
    if wrong:
        again = dict.fromkeys(asked[name]["section"] for name in wrong)
        text += " Worth a second look: " + ", ".join(f"[{s}](#{s.replace(' ', '-')})" for s in again) + "."
    display({"text/markdown": text, "text/plain": text}, raw=True)
