"""Real words: the shipped vectors are what they claim to be, small, and safe to load."""

import hashlib
import json

import numpy as np
import pytest

from utils import minilm
from utils.minilm import DATA, cosine, nearest, texts, word_vectors, words


def test_the_data_is_small_and_loads_without_pickle():
    vectors = np.load(DATA / "word_vectors.npy", allow_pickle=False)
    assert vectors.dtype == np.float16
    assert vectors.shape == (len(words()), 384)
    assert (DATA / "word_vectors.npy").stat().st_size <= 400 * 1024
    assert np.isfinite(vectors).all()
    assert len(set(words())) == len(words()) >= 400


def test_the_data_table_is_true():
    table = (DATA / "README.md").read_text()
    assert f"{(DATA / 'word_vectors.npy').stat().st_size:,}" in table
    assert f"({len(words())}, 384)" in table
    assert "Apache License" in (DATA / "LICENSE-APACHE-2.0.txt").read_text()


def test_the_vectors_are_the_ones_that_were_cut():
    digest = hashlib.sha256((DATA / "word_vectors.npy").read_bytes()).hexdigest()
    assert digest == "fe6169e5a24b83efe477ad4e8c9dbbf70905b36cdee481542de3a5b79f0d5858"


def test_every_text_has_vectors_or_waits_for_the_model():
    assert len(texts()["story"].split()) >= 40
    for name, text in texts().items():
        assert word_vectors(text.split()).shape == (len(text.split()), 384), name
    assert json.loads((DATA / "texts.json").read_text()) == texts()


def test_what_the_notebook_says_about_cat_and_mouse():
    x = word_vectors(["cat", "mouse", "chased"])
    assert cosine(x, x)[0].tolist() == pytest.approx([1, 0.225, -0.005], abs=5e-4)
    assert [word for word, _ in nearest("cat", 3)] == ["cats", "kitten", "dog"]
    assert "cat" not in dict(nearest("cat", 400))


def test_upper_case_is_the_same_word_and_a_word_is_the_same_everywhere():
    assert np.array_equal(word_vectors(["Cat"]), word_vectors(["cat"]))
    the, _, again = word_vectors(["the", "cat", "the"])
    assert np.array_equal(the, again)


@pytest.mark.parametrize("word", ["catt", "", "猫", "<b>"])
def test_a_word_without_a_vector_is_named(word):
    with pytest.raises(KeyError) as error:
        word_vectors(["cat", word])
    assert f"there is no vector for {word!r} among the course's {len(words())} words" in str(error.value)
    if word == "catt":
        assert "spelled alike: cat, cats" in str(error.value)


def test_nobody_can_change_the_vectors_by_accident():
    word_vectors(["cat"])[:] = 0
    assert np.abs(word_vectors(["cat"])).max() > 0
    assert minilm.DATA.name == "data"
