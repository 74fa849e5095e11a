"""A real model: the arrays are what they claim to be, and our attention does with them what it did."""

import hashlib
import json
import re

import numpy as np
import pytest
import torch
from torch import nn

from utils import minilm
from utils.attention import entropy, scaled_dot_product_attention
from utils.minilm import (
    DATA,
    TELLING_HEADS,
    attention_maps,
    coreference,
    cosine,
    embeddings,
    head_weights,
    hidden_states,
    layer_weights,
    nearest,
    norm_weights,
    sentences,
    texts,
    word_vectors,
    words,
)

SHA256 = {
    "word_vectors.npy": "0c515816159a893f67f731bf6708ce7a0f1ad66e303749d3b4376306f90dbb37",
    "embeddings.npz": "a9c2660531fb5449c96aa75b0cc3142b365ec8ef93a72cb444ea038c65b506c4",
    "head_weights.npz": "5340bb0c499db08d10a368a76c9dda1e426936fe0cf7737655b58e976666fc1b",
    "head_biases.npz": "618ddd4d69e5075b2d8473cf6709c0d87d17292ceeff750c58c1eb04ff0d6df6",
    "layer3_out_proj.npz": "8ec2a22740c9e54fb1d399f409b45cd7654dd645439d3e46c76c91585993f726",
    "layer3_norm.npz": "d42e241e5469d2be9aafd7431a335b2b5fdd2d9222804021b20956475090567a",
    "hidden_states.npz": "862ba55b0ebe4b2d0326be40ba46c3a2fa240284aa9cb8e2e9a4236c74fcf82d",
    "attention_maps.npz": "78249fca916730f9a3398cf07d0e15b7f631d75264b4668ca8ebca5da34ceb47",
    "twin_states.npz": "0ae92b09bd3bc01564dad556fb2b54fbf31060e139d6bc71be52bb7d07a95e9d",
    "twin_attention.npy": "f1c9b5da056d3f1f93cb3f6a0f99c4e01d887198735f36376dbdbb9717c22d36",
}
CANDIDATES = {  # sentence: its pronoun and the nouns it may stand for
    "animal": ("it", "animal", "street"),
    "animal twin": ("it", "animal", "street"),
    "nurse": ("she", "doctor", "nurse"),
    "horse": ("it", "horse", "farmer"),
    "children": ("they", "children", "books"),
}


@pytest.fixture(scope="module")
def reference():
    """Arrays by name, from tests/data/make_reference.py."""
    with np.load(DATA.parents[1] / "tests" / "data" / "reference.npz", allow_pickle=False) as file:
        return dict(file)


def attend(x, layer, head):
    """One head of the model, in the course's own attention: output (n, 32), weights (n, n)."""
    w = head_weights(layer, head)
    return scaled_dot_product_attention(*(x @ w[f"W_{role}"] + w[f"b_{role}"] for role in "qkv"))


def weights_on(sentence, layer, head):
    return attend(hidden_states(sentence, layer), layer, head)[1]


def shares_elsewhere_on_same_word(weights, tokens):
    """Of each token that occurs again: the weight on its other occurrences."""
    same = np.array([[i != j and a == b for j, b in enumerate(tokens)] for i, a in enumerate(tokens)])
    return (weights * same).sum(-1)[same.any(-1)]


# What is shipped


def test_all_data_together_is_small():
    assert sum(file.stat().st_size for file in DATA.rglob("*") if file.suffix != ".pyc") <= 4_000_000
    assert (DATA / "word_vectors.npy").stat().st_size <= 400 * 1024


def test_the_data_table_is_true():
    readme = (DATA / "README.md").read_text()
    rows = dict(re.findall(r"^\| `([\w.]+)` \|(.*)\|$", readme, re.M))
    files = {file.name for file in DATA.iterdir() if file.suffix in {".npy", ".npz", ".json", ".txt"}}
    assert set(rows) == files - {"LICENSE-APACHE-2.0.txt"}
    for name in SHA256:
        _, shapes, dtype, size = map(str.strip, rows[name].split("|"))
        assert (dtype, size) == ("float16", f"{(DATA / name).stat().st_size:,}"), name
        loaded = np.load(DATA / name, allow_pickle=False)
        for key, array in {"": loaded}.items() if name.endswith(".npy") else loaded.items():
            assert array.dtype == np.float16, (name, key)
            assert np.isfinite(array).all(), (name, key)
            n = len(sentences().get(key, ("[CLS]", *key.split(), "[SEP]")))
            variants = {str(array.shape), str(array.shape).replace(f"{n}", "n")}
            assert any(shape in shapes for shape in variants), (name, key, array.shape)
    assert f"{len(words())} words" in rows["words.txt"]
    assert "Apache License" in (DATA / "LICENSE-APACHE-2.0.txt").read_text()


@pytest.mark.parametrize("name", SHA256)
def test_the_arrays_are_the_ones_that_were_cut(name):
    assert hashlib.sha256((DATA / name).read_bytes()).hexdigest() == SHA256[name]


def test_every_array_has_its_hash():
    assert {file.name for pattern in ("*.npy", "*.npz") for file in DATA.glob(pattern)} == set(SHA256)


# Words and texts


def test_every_word_has_one_vector():
    assert 400 <= len(set(words())) == len(words()) < 500
    assert word_vectors(words()).shape == (len(words()), 384)


def test_every_text_has_vectors():
    assert len(texts()["story"].split()) >= 40
    for name, text in texts().items():
        assert word_vectors(text.split()).shape == (len(text.split()), 384), name
    assert json.loads((DATA / "texts.json").read_text()) == texts()


def test_ten_short_sentences():
    assert list(sentences()) == [name for name in texts() if name != "story"]
    assert len(sentences()) == 10
    for name, tokens in sentences().items():
        assert tokens == ("[CLS]", *texts()[name].split(), "[SEP]")
        assert len(tokens) <= 20


def test_what_the_notebook_says_about_cat_and_mouse():
    x = word_vectors(["cat", "mouse", "chased"])
    assert cosine(x, x)[0].tolist() == pytest.approx([1, 0.225, -0.005], abs=5e-4)
    assert [word for word, _ in nearest("cat", 3)] == ["cats", "kitten", "dog"]
    assert "cat" not in dict(nearest("cat", 400))


def test_nearest_never_names_the_word_itself_and_word_vectors_want_a_list():
    assert len(nearest("cat", 10_000)) == len(words()) - 1
    assert "cat" not in dict(nearest("cat", 10_000))
    assert nearest("cat", -1) == []
    with pytest.raises(TypeError, match=r"write 'the cat'\.split\(\)"):
        word_vectors("the cat")


def test_upper_case_is_the_same_word_and_a_word_is_the_same_everywhere():
    assert np.array_equal(word_vectors(["Cat"]), word_vectors(["cat"]))
    assert np.abs(word_vectors(["[CLS]"]) - word_vectors(["[SEP]"])).max() > 0
    the, _, again = word_vectors(["the", "cat", "the"])
    assert np.array_equal(the, again)


# The same numbers as the model


def test_embeddings_are_the_models(reference):
    for name in ("chase", "animal", "nurse"):
        np.testing.assert_allclose(hidden_states(name, 0), reference[f"{name}/embeddings"], rtol=0, atol=1e-5)
        assert np.array_equal(hidden_states(name, 0), embeddings(sentences()[name]))


@pytest.mark.parametrize(("layer", "head"), TELLING_HEADS)
def test_our_attention_reproduces_the_models_heads(reference, layer, head):
    for name in ("chase", "animal", "nurse"):
        output, weights = attend(hidden_states(name, layer), layer, head)
        there = f"{name}/L{layer}H{head}"
        np.testing.assert_allclose(weights, reference[f"{there}/weights"], rtol=0, atol=1e-5)
        np.testing.assert_allclose(output, reference[f"{there}/output"], rtol=0, atol=1e-5)


def test_every_head_of_layer_3_is_the_models(reference):
    for name in ("chase", "animal", "nurse"):
        weights = [weights_on(name, 3, head) for head in range(12)]
        np.testing.assert_allclose(weights, reference[f"{name}/layer3/weights"], rtol=0, atol=1e-5)


def test_a_whole_layer_loads_into_pytorchs_module(reference):
    attention, norm = nn.MultiheadAttention(384, 12, batch_first=True), nn.LayerNorm(384, eps=1e-12)
    attention.load_state_dict(layer_weights())
    norm.load_state_dict(norm_weights())
    for name in ("chase", "animal", "nurse"):
        x = torch.tensor(hidden_states(name, 3))[None]
        with torch.no_grad():
            mixed, weights = attention(x, x, x, average_attn_weights=False)
            output = norm(x + mixed)
        there = f"{name}/layer3"
        np.testing.assert_allclose(weights[0], reference[f"{there}/weights"], rtol=0, atol=1e-5)
        np.testing.assert_allclose(output[0], reference[f"{there}/output"], rtol=0, atol=1e-5)


def test_stored_maps_are_the_original_models(reference):
    for name in ("chase", "animal"):
        np.testing.assert_allclose(attention_maps(name), reference[f"{name}/original"], rtol=0, atol=5e-4)


@pytest.mark.parametrize("name", sentences())
def test_rounding_costs_less_than_a_thousandth(name):
    for layer, head in {*TELLING_HEADS, *((3, head) for head in range(12))}:
        apart = np.abs(weights_on(name, layer, head) - attention_maps(name)[layer, head]).max()
        assert apart <= 1e-3, (layer, head)


@pytest.mark.parametrize("name", sentences())
def test_maps_are_shares_of_one(name):
    n = len(sentences()[name])
    assert attention_maps(name).shape == (6, 12, n, n)
    assert hidden_states(name, 4).shape == (n, 384)
    np.testing.assert_allclose(attention_maps(name).sum(-1), 1, rtol=0, atol=5e-4)
    assert (entropy(attention_maps(name)) <= np.log(n) + 1e-3).all()


# What the heads do


def test_L0H2_looks_at_the_previous_token():
    mass = [np.diagonal(weights_on(name, 0, 2), -1).mean() for name in sentences()]
    assert min(mass) > 0.999


def test_L0H2_finds_the_previous_token_by_its_position():
    tokens = sentences()["animal"]
    _, weights = attend(embeddings(tokens, positions=[0] * len(tokens)), 0, 2)
    assert np.diagonal(weights, -1).mean() == pytest.approx(0.088, abs=5e-4)
    _, weights = attend(embeddings(tokens, positions=range(20, 20 + len(tokens))), 0, 2)
    assert np.diagonal(weights, -1).mean() > 0.99  # the place in the text does not matter, the neighbour does


def test_L1H8_looks_at_the_next_token():
    mass = [np.diagonal(weights_on(name, 1, 8), 1).mean() for name in sentences()]
    assert min(mass) > 0.5
    assert np.mean(mass) == pytest.approx(0.584, abs=5e-4)


def test_L2H9_looks_at_the_same_word_where_one_that_carries_meaning_returns():
    mass = {n: shares_elsewhere_on_same_word(weights_on(n, 2, 9), t) for n, t in sentences().items()}
    assert np.mean(np.concatenate([mass["birds"], mass["king"]])) > 0.6
    assert max(mass["chase"]) < 0.1  # two "the" are not enough


def test_L4H5_rests_on_CLS():
    mass = [weights_on(name, 4, 5)[1:, 0].mean() for name in sentences()]
    assert min(mass) > 0.8
    assert np.mean(mass) == pytest.approx(0.890, abs=5e-4)


def test_L3H1_goes_from_the_pronoun_to_the_nouns():
    mass = []
    for name, (pronoun, *nouns) in CANDIDATES.items():
        index = sentences()[name].index
        mass.append(weights_on(name, 3, 1)[index(pronoun), [index(noun) for noun in nouns]].sum())
    assert min(mass) > 0.35
    assert np.mean(mass) == pytest.approx(0.584, abs=5e-4)


# Who is meant?


def test_twins_differ_in_one_word_and_in_the_noun_that_is_meant():
    twins = coreference()
    assert len(twins) == 40
    for one, other in zip(twins[::2], twins[1::2], strict=True):
        assert sum(a != b for a, b in zip(one.tokens, other.tokens, strict=True)) == 1
        assert (one.pronoun, one.right, one.wrong) == (other.pronoun, other.wrong, other.right)
        for token in (one.pronoun, one.right, one.wrong):
            assert one.tokens.count(one.tokens[token]) == 1
        assert one.tokens[one.pronoun] in {"he", "she", "it"}
        assert sum(token in {"he", "she", "it", "they", "his", "her"} for token in one.tokens) == 1
        assert one.hidden.shape == (len(one.tokens), 384)


def test_the_coreference_table_is_what_our_attention_computes():
    for twin in coreference():
        _, weights = attend(twin.hidden, 3, 1)
        ours = weights[twin.pronoun, [twin.right, twin.wrong]]
        np.testing.assert_allclose(ours, twin.attention[3, 1], rtol=0, atol=1e-3)


def test_the_twins_begin_with_a_sentence_that_is_also_shown_whole():
    for twin, name in zip(coreference(), ("animal", "animal twin"), strict=False):
        assert twin.tokens == sentences()[name]
        np.testing.assert_array_equal(twin.hidden, hidden_states(name, 3))
        maps = attention_maps(name)[:, :, twin.pronoun, [twin.right, twin.wrong]]
        np.testing.assert_array_equal(twin.attention, maps)


def test_L3H1_finds_the_candidates_but_hardly_the_right_one():
    to_right, to_wrong = np.moveaxis([twin.attention for twin in coreference()], -1, 0)  # (40, 6, 12) each
    mass = (to_right + to_wrong).mean(0)
    assert np.unravel_index(mass.argmax(), mass.shape) == (3, 1)
    assert mass[3, 1] == pytest.approx(0.639, abs=5e-4)
    prefers_right = to_right > to_wrong
    assert prefers_right[:, 3, 1].sum() == 26 == prefers_right.sum(0).max()  # of 40; guessing gives 20
    both = prefers_right[::2] & prefers_right[1::2]
    assert both[:, 3, 1].sum() == 6 == both.sum(0).max()  # of 20 pairs; the rest stays with one noun


def test_the_word_that_decides_moves_L3H1_the_right_way_but_seldom_far_enough():
    to_right, to_wrong = np.moveaxis([twin.attention[3, 1] for twin in coreference()], -1, 0)  # (40,) each
    share = to_right / (to_right + to_wrong)
    moved = share[::2] - (1 - share[1::2])  # share of the same noun, with one word and with the other
    assert (moved > 0).sum() == 17  # of 20
    assert moved.mean() == pytest.approx(0.121, abs=5e-4)


# Mistakes


@pytest.mark.parametrize("word", ["catt", "", "猫", "<b>"])
def test_a_word_without_a_vector_is_named(word):
    with pytest.raises(KeyError) as error:
        word_vectors(["cat", word])
    assert f"there is no vector for {word!r} among the course's {len(words())} words" in str(error.value)
    if word == "catt":
        assert "spelled alike: cat, cats" in str(error.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attention_maps("dogs"), "there is no sentence 'dogs' here; there are chase, twin, animal"),
        (lambda: attention_maps("story"), "there is no sentence 'story' here"),
        (lambda: hidden_states("dogs", 3), "there is no sentence 'dogs' here; there are chase, twin, animal"),
        (lambda: hidden_states("chase", 5), "there is no input of layer 5 here; there are 0, 1, 2, 3, 4"),
        (lambda: hidden_states("chase", -1), "there is no input of layer -1 here; there are 0, 1, 2, 3, 4"),
        (lambda: head_weights(0, 3), "there is no head 'L0H3' here; there are L0H2, L1H8, L2H9, L3H0, L3H1"),
        (lambda: head_weights(3, 12), "there is no head 'L3H12' here"),
        (lambda: embeddings(["cat", "catt"]), "there is no vector for 'catt'"),
    ],
)
def test_what_is_not_here_is_named_with_what_is(call, message):
    with pytest.raises(KeyError) as error:
        call()
    assert message in str(error.value)


@pytest.mark.parametrize("positions", [[0], [0, 1, 2], [0, 64], [-1, 0]])
def test_positions_must_fit(positions):
    with pytest.raises(ValueError, match="2 tokens need 2 positions from 0 to 63, not "):
        embeddings(["the", "cat"], positions)


def test_too_long_a_text_runs_out_of_positions():
    with pytest.raises(ValueError, match="65 tokens need 65 positions from 0 to 63"):
        embeddings(["cat"] * 65)


def test_nobody_can_change_the_arrays_by_accident():
    for copy in (
        lambda: word_vectors(["cat"]),
        lambda: embeddings(["cat"]),
        lambda: hidden_states("chase", 0),
    ):
        copy()[:] = 0
        assert np.abs(copy()).max() > 0
    for tensors in (layer_weights, norm_weights):
        for name, tensor in tensors().items():
            tensor.zero_()
            assert tensors()[name].abs().max() > 0
    twin = coreference()[0]
    shared = [hidden_states("chase", 3), attention_maps("chase"), twin.hidden, twin.attention]
    for array in (*shared, *head_weights(3, 1).values(), *head_weights(0, 2).values()):
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 0
    for fresh in (texts, sentences, lambda: head_weights(3, 1), coreference):
        fresh().clear()
        assert fresh()


def test_minilm_stands_alone():
    assert not re.search(r"^\s*(from|import) utils", (DATA.parent / "minilm.py").read_text(), re.M)
    assert minilm.DATA.name == "data"
