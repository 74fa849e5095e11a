"""Exercises that say what is wrong: `from utils.exercises import check`."""

from utils.exercises.check import Exercise, Report, examine
from utils.exercises.notebook_01 import EXERCISES as NOTEBOOK_01
from utils.exercises.notebook_02 import EXERCISES as NOTEBOOK_02
from utils.exercises.notebook_03 import EXERCISES as NOTEBOOK_03
from utils.exercises.notebook_04 import EXERCISES as NOTEBOOK_04
from utils.exercises.notebook_05 import EXERCISES as NOTEBOOK_05

EXERCISES = {**NOTEBOOK_01, **NOTEBOOK_02, **NOTEBOOK_03, **NOTEBOOK_04, **NOTEBOOK_05}

__all__ = ["EXERCISES", "Exercise", "Report", "check"]


def check(name: str, attempt: object) -> None:
    """Print what is right, what is wrong and, where it is a known mistake, why."""
    if name not in EXERCISES:
        raise KeyError(f"there is no exercise {name!r}; there are {', '.join(EXERCISES)}")
    print(examine(name, EXERCISES[name], attempt))
