"""Real words: vectors that a trained model, all-MiniLM-L6-v2, has for some 400 words, and the course's texts.

Everything is read from utils/data; nothing is downloaded.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

DATA = Path(__file__).parent / "data"


@cache
def words() -> tuple[str, ...]:
    """The words that have a vector, in the order of the vectors."""
    return tuple((DATA / "words.txt").read_text(encoding="utf-8").split())


@cache
def texts() -> dict[str, str]:
    """The course's texts by name; tokens are separated by blanks, `.split()` gives them back."""
    return json.loads((DATA / "texts.json").read_text(encoding="utf-8"))


@cache
def _vectors() -> np.ndarray:
    return np.load(DATA / "word_vectors.npy", allow_pickle=False).astype(np.float32)


def word_vectors(tokens: Sequence[str]) -> np.ndarray:
    """The model's static vectors: a word has the same one in every sentence.

    tokens   n words; upper and lower case are the same word
    returns  (n, 384) float32

    Raises KeyError for a word without a vector, and names words that are spelled alike.
    """
    return _vectors()[[_index(token) for token in tokens]]


def cosine(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Dot products of vectors brought to length 1: 1 = same direction, 0 = at right angles.

    x, y     (n, d) and (m, d)
    returns  (n, m)
    """
    return _unit(x) @ _unit(y).T


def nearest(word: str, count: int = 5) -> list[tuple[str, float]]:
    """The words whose vectors point most nearly in the same direction, and their cosines."""
    similarity = cosine(word_vectors([word]), _vectors())[0]
    similarity[_index(word)] = -np.inf  # not the word itself
    return [(words()[i], float(similarity[i])) for i in np.argsort(-similarity)[:count]]


def _index(word: str) -> int:
    try:
        return words().index(word.lower())
    except ValueError:
        alike = difflib.get_close_matches(word.lower(), words())
        hint = f"; spelled alike: {', '.join(alike)}" if alike else ""
        raise KeyError(
            f"there is no vector for {word!r} among the course's {len(words())} words{hint}"
        ) from None


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)
