"""A real model, all-MiniLM-L6-v2: word vectors, some of its weights, and what it made of our texts.

Everything is read from utils/data, where make_minilm_data.py says how it was made; nothing is downloaded.
These functions hand out arrays and know no attention: that is `utils.attention`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

DATA = Path(__file__).parent / "data"
LONGEST = 40  # characters of a strange word that are looked at
MOST = 4096  # tokens: each may attend to each, and that is 16 million weights
TELLING_HEADS = {  # (layer, head), counted from 0: where the head looks
    (0, 2): "the previous token",
    (1, 8): "the next token",
    (2, 9): "the same word",
    (3, 1): "from a pronoun to the nouns it may stand for",
    (4, 5): "[CLS]",
}


class Twin(NamedTuple):
    """A sentence with one pronoun; its twin differs in one word, and so in the noun that is meant."""

    tokens: tuple[str, ...]
    pronoun: int  # its position, and that
    right: int  # of the noun it stands for
    wrong: int  # and of the other noun
    hidden: np.ndarray  # (n, 384): what layer 3 reads
    attention: np.ndarray  # (6, 12, 2): per layer and head, weight from the pronoun to right and to wrong


@cache
def words() -> tuple[str, ...]:
    """The words that have a vector, in the order of the vectors."""
    return tuple((DATA / "words.txt").read_text(encoding="utf-8").split())


def texts() -> dict[str, str]:
    """The course's texts by name; tokens are separated by blanks, `.split()` gives them back."""
    return json.loads((DATA / "texts.json").read_text(encoding="utf-8"))


def sentences() -> dict[str, tuple[str, ...]]:
    """The ten texts that the model has read, by name, as its tokens: [CLS], the words, [SEP]."""
    return {name: _tokens(text) for name, text in texts().items() if name in _load("attention_maps.npz")}


def word_vectors(tokens: Sequence[str]) -> np.ndarray:
    """The model's static vectors: a word has the same one in every sentence.

    tokens   n words; upper and lower case are the same word
    returns  (n, 384) float32

    Raises KeyError for a word without a vector, and names words that are spelled alike; ValueError for more
    tokens than an attention matrix has room for.
    """
    if isinstance(tokens, str):
        raise TypeError(f"tokens must be a list of words: write {tokens[:LONGEST]!r}.split()")
    if len(tokens) > MOST:
        raise ValueError(
            f"{len(tokens):,} tokens would have {len(tokens) ** 2:,} weights of attention: "
            f"take {MOST:,} at most"
        )
    return _load("word_vectors.npy")[[_index(token) for token in tokens]]


def cosine(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Dot products of vectors brought to length 1: 1 = same direction, 0 = at right angles.

    x, y     (n, d) and (m, d)
    returns  (n, m)
    """
    return _unit(x) @ _unit(y).T


def nearest(word: str, count: int = 5) -> list[tuple[str, float]]:
    """The words whose vectors point most nearly in the same direction, and their cosines."""
    similarity = cosine(word_vectors([word]), _load("word_vectors.npy"))[0]
    order = [i for i in np.argsort(-similarity) if i != _index(word)]
    return [(words()[i], float(similarity[i])) for i in order[: max(0, count)]]


def embeddings(tokens: Sequence[str], positions: Sequence[int] | None = None) -> np.ndarray:
    """What layer 0 reads: LayerNorm(word vector + position vector + the vector of token type 0).

    tokens     n words, [CLS] and [SEP] among them
    positions  n numbers from 0 to 63: whose position vector each token gets; by default 0, 1, 2, ...
    returns    (n, 384) float32

    Raises KeyError for a word without a vector, ValueError for positions that do not fit.
    Source: Devlin et al., BERT (2018), section 3.
    """
    data = _load("embeddings.npz")
    positions = list(range(len(tokens)) if positions is None else positions)
    if len(positions) != len(tokens) or not set(positions) <= set(range(64)):
        raise ValueError(f"{len(tokens)} tokens need {len(tokens)} positions from 0 to 63, not {positions}")
    x = word_vectors(tokens) + data["positions"][positions] + data["token_type"]
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-12)
    return x * data["norm.weight"] + data["norm.bias"]


def hidden_states(sentence: str, layer: int) -> np.ndarray:
    """What a layer's attention reads: the sentence as the layers before it left it.

    sentence  a name from sentences()
    layer     0 (computed by embeddings), 1, 2, 3 or 4 (stored)
    returns   (n, 384) float32

    Raises KeyError for a sentence or a layer that is not here, and says which are.
    """
    stored = _pick(_load("hidden_states.npz"), sentence, "sentence")  # (4, n, 384)
    states = [embeddings(sentences()[sentence]), *stored]
    return _pick(dict(enumerate(states)), layer, "input of layer")


def attention_maps(sentence: str) -> np.ndarray:
    """The original model's attention weights in all 72 heads, rounded: a row sums to 1 up to 5e-4.

    sentence  a name from sentences()
    returns   (6, 12, n, n) float32: layer, head, query, key

    Raises KeyError for a sentence that is not here, and says which are.
    """
    return _pick(_load("attention_maps.npz"), sentence, "sentence")


def head_weights(layer: int, head: int) -> dict[str, np.ndarray]:
    """One head's projections: W_q, W_k, W_v (384, 32) and b_q, b_k, b_v (32,), for q = x @ W_q + b_q.

    Here are the TELLING_HEADS and all of layer 3. Raises KeyError for any other, and says which are here.
    """
    name = f"L{layer}H{head}"
    weights, biases = _pick(_load("head_weights.npz"), name, "head"), _load("head_biases.npz")[name]
    return dict(zip(("W_q", "W_k", "W_v", "b_q", "b_k", "b_v"), (*weights, *biases), strict=True))


def layer_weights() -> dict[str, Tensor]:
    """Layer 3's attention for `nn.MultiheadAttention(384, 12, batch_first=True).load_state_dict(...)`.

    returns  in_proj_weight (1152, 384): W_q, W_k, W_v one below the other, in each 32 rows per head;
             in_proj_bias (1152,), out_proj.weight (384, 384), out_proj.bias (384,); your own copies
    """
    weights, biases = (
        np.stack(
            [_load(file)[f"L3H{head}"] for head in range(12)], axis=1
        )  # (3, 12, 384, 32) and (3, 12, 32)
        for file in ("head_weights.npz", "head_biases.npz")
    )
    packed = {"in_proj_weight": weights.swapaxes(2, 3).reshape(1152, 384), "in_proj_bias": biases.flatten()}
    output = {f"out_proj.{name}": array for name, array in _load("layer3_out_proj.npz").items()}
    return {name: torch.tensor(array) for name, array in (packed | output).items()}


def norm_weights() -> dict[str, Tensor]:
    """The LayerNorm behind that attention, for `nn.LayerNorm(384, eps=1e-12).load_state_dict(...)`.

    returns  weight (384,), bias (384,); your own copies. The model goes on with norm(x + attention).
    """
    return {name: torch.tensor(array) for name, array in _load("layer3_norm.npz").items()}


def coreference() -> list[Twin]:
    """Forty sentences of the course's own, twins side by side: which noun does each head's attention prefer?

    Source of this kind of test: Levesque et al., The Winograd Schema Challenge (2012).
    """
    twins = json.loads((DATA / "twins.json").read_text(encoding="utf-8"))
    hidden, attention = _load("twin_states.npz"), _load("twin_attention.npy")
    rows = []
    for twin, weights in zip(twins, attention, strict=True):
        tokens = _tokens(twin["text"])
        where = [tokens.index(twin[role]) for role in ("pronoun", "right", "wrong")]
        rows.append(Twin(tokens, *where, hidden[twin["text"]], weights))
    return rows


@cache
def _load(name: str) -> Any:
    """An .npy file's array, or an .npz file's dictionary of arrays: float32, read-only."""
    loaded = np.load(DATA / name, allow_pickle=False)
    arrays = loaded if isinstance(loaded, Mapping) else {"": loaded}
    wide = {key: array.astype(np.float32) for key, array in arrays.items()}
    for array in wide.values():
        array.flags.writeable = False
    return wide.get("", wide)


def _pick(stored: Mapping, key: Any, what: str) -> Any:
    if key not in stored:
        raise KeyError(f"there is no {what} {key!r} here; there are {', '.join(map(str, stored))}")
    return stored[key]


def _tokens(text: str) -> tuple[str, ...]:
    return ("[CLS]", *text.split(), "[SEP]")


def _index(word: str) -> int:
    known = word if word in words() else word.lower()  # [CLS] and [SEP] are capitals
    if known in words():
        return words().index(known)
    alike = difflib.get_close_matches(known[:LONGEST], words())
    hint = f"; spelled alike: {', '.join(alike)}" if alike else ""
    raise KeyError(f"there is no vector for {word[:LONGEST]!r} among the course's {len(words())} words{hint}")


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)
