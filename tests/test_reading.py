"""Attention in words: the numbers in the sentences are right."""

import re

import numpy as np
import pytest

from utils.reading import describe_row, trace_weight


def test_describe_row():
    sentence = describe_row(np.array([0.25, 0.5, 0.25]), ["the", "cat", "ran"], query=0)
    assert sentence == (
        "“the” (word 1) attends most to “cat” (word 2), with weight 0.50. "
        "Its row is as spread out as 2.8 equal shares (entropy 1.50 bits; 3 equal shares have 1.58)."
    )


def test_describe_row_of_one_word_and_of_itself():
    assert "attends most to itself, with weight 1.00" in describe_row([1.0], ["I"], 0)
    assert "entropy 0.00 bits; 1 equal shares have 0.00" in describe_row([1.0], ["I"], 0)
    assert "attends most to itself" in describe_row([0.1, 0.9], ["a", "a"], 1)
    assert "attends most to “a” (word 1)" in describe_row([0.9, 0.1], ["a", "a"], 1)  # a twin, not itself


@pytest.mark.parametrize(
    ("weights", "whom"),
    [
        ([0.0, 0.5, 0.5, 0.0], "“b” (word 2) and “c” (word 3), with weight 0.50 each."),
        ([0.4, 0.2, 0.4, 0.0], "itself and “c” (word 3), with weight 0.40 each."),
        ([0.3, 0.3, 0.1, 0.3], "itself, “b” (word 2) and “d” (word 4), with weight 0.30 each."),
        ([0.25, 0.25, 0.25, 0.25], "all 4 words, with weight 0.25 each."),
        ([0.24, 0.24, 0.24, 0.24, 0.04], "4 words, with weight 0.24 each."),
    ],
)
def test_equals_are_named_together(weights, whom):
    names = ["a", "b", "c", "d", "e"]
    assert f"“a” (word 1) attends most, and equally, to {whom}" in describe_row(weights, names, 0)


def test_a_row_may_be_shorter_than_the_sentence():
    assert "2 equal shares have 1.00" in describe_row([0.5, 0.5], ["a", "b", "c", "d"], 0)  # seq_len 2 of 4


def test_trace_leads_from_the_vectors_to_the_weight():
    query, keys = np.array([1.0, 0.5]), np.array([[2.0, 1.0], [0.0, 1.0], [1.0, -1.0]])
    trace = trace_weight(query, keys, key=1, divisor=0.5, names=("cat", "ran"))
    exps = np.exp(keys @ query / 0.5)
    assert trace[0] == "dot product   cat · ran = 1×0 + 0.5×1 = 0.5"
    assert trace[1] == "divided       0.5 / 0.5 = 1"
    assert trace[2] == "exp           exp(1) = 2.718"
    assert trace[3].endswith(f"= {exps[1] / exps.sum():.3f}")
    terms = re.search(r"\((.*)\)", trace[3]).group(1).split(" + ")
    assert [float(term) for term in terms] == pytest.approx(exps, rel=1e-3)


def test_long_sums_are_not_written_out():
    trace = trace_weight(np.ones(384), np.ones((20, 384)), 0, 384**0.5)
    assert "sum of 384 terms = 384" in trace[0]
    assert "(sum of 20 terms)" in trace[3]
    assert trace[3].endswith("= 0.050")
    assert trace_weight(np.ones(2), np.array([[1, 1], [9, 9]]), 0, 1.0)[3].endswith("= 1.1e-07")


def test_what_is_printed_can_be_computed_again():
    trace = trace_weight(np.array([0.47407]), np.array([[0.47407], [0.1]]), 0, 0.5)
    assert trace[1] == "divided       0.224742 / 0.5 = 0.4495"


def test_a_row_that_may_attend_to_nothing_is_said_to():
    assert describe_row(np.zeros(3), ["a", "b", "c"], 1) == (
        "“b” (word 2) attends to nothing: every key is forbidden."
    )


def test_large_scores_are_traced_as_softmax_computes_them():
    for keys in ([[30.0, 1.0], [29.9, 1.0]], [[-30.0, 1.0], [-29.9, 1.0]]):
        trace = trace_weight(np.array([30.0, 1.0]), np.array(keys), 0, 1.0)
        scores = np.array(keys) @ [30.0, 1.0]
        share = 1 / (1 + np.exp(scores[1] - scores[0]))
        assert f"- {scores.max():.4g})" in trace[2]
        assert trace[3].endswith(f"= {share:.3f}")


def test_a_forbidden_key_is_traced_to_a_share_of_zero():
    query, keys = np.array([1.0, 2.0]), np.array([[1.0, 0.0], [0.0, 1.0], [50.0, 50.0]])
    allowed = np.array([True, True, False])
    trace = trace_weight(query, keys, 2, 1.0, allowed=allowed)
    assert [line.split("  ")[0] for line in trace] == ["dot product", "divided", "masked", "exp", "share"]
    assert trace[-1].endswith("= 0.000")
    trace = trace_weight(query, keys, 1, 1.0, allowed=allowed)
    assert trace[-1].endswith(f"= {np.e / (1 + np.e):.3f}")
