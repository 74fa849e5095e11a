"""The failure gallery: each patient fails as it should, and the doctor names it."""

import pytest
import torch

from utils.attention import causal_mask, scaled_dot_product_attention
from utils.doctor import diagnose
from utils.failures import FAILURES, influence

NAMED = {
    "softmax_over_queries": "softmax over queries",
    "without_scale": "scale missing",
    "scaled_by_d_k": "scale 1/d_k",
    "mask_after_softmax": "mask after softmax",
    "tiny_fill": "mask fill near zero",
    "mask_multiplied": "mask fill near zero",
    "polarity_inverted": "mask polarity inverted",
    "mask_transposed": "mask",
    "key_reshaped": "key reshaped, not transposed",
    "empty_row": "NaN on empty rows",
    "dropout_always": "dropout on in eval",
    "tutorial_without_mask": "mask ignored",
    "tutorial_naive_softmax": "naive softmax",
}
RIGHT_WITHOUT_A_MASK = {
    *("mask_after_softmax", "tiny_fill", "mask_multiplied", "mask_transposed", "empty_row"),
    *("tutorial_without_mask", "tutorial_naive_softmax"),
}
torch.manual_seed(0)
QUERY, KEY, VALUE = torch.randn(3, 5, 8)
ALL = torch.ones(5, 5, dtype=torch.bool)
every_failure = pytest.mark.parametrize("function", FAILURES.values(), ids=lambda f: f.__name__)


@every_failure
def test_the_doctor_names_it(function):
    kinds = [finding.kind for finding in diagnose(function, mask="keep").findings]
    assert any(kind.startswith(NAMED[function.__name__]) for kind in kinds), kinds


@every_failure
def test_it_is_wrong_where_it_should_be_and_only_there(function):
    mask = causal_mask(5)
    if function.__name__ == "empty_row":
        mask[0] = False
    scale = 30.0 if function.__name__ == "tutorial_naive_softmax" else 1.0
    given = scale * QUERY, scale * KEY, VALUE
    right = scaled_dot_product_attention(*given, mask)[0]
    assert not torch.allclose(function(*given, mask)[0], right, atol=1e-3)
    right = scaled_dot_product_attention(QUERY, KEY, VALUE)[0]
    same = torch.allclose(function(QUERY, KEY, VALUE, ALL)[0], right, atol=1e-5)
    assert same == (function.__name__ in RIGHT_WITHOUT_A_MASK)


def test_influence_finds_the_leak_that_weights_hide():
    mask = causal_mask(5)
    right = influence(scaled_dot_product_attention, QUERY, KEY, VALUE, mask)
    assert (right.triu(1) == 0).all()
    assert (right.tril() > 0).sum() == 15
    leaking = FAILURES["D"]
    assert (leaking(QUERY, KEY, VALUE, mask)[1].triu(1) == 0).all()
    assert (influence(leaking, QUERY, KEY, VALUE, mask).triu(1) > 0).sum() == 10


def test_influence_gives_a_random_patient_the_same_chance_each_time():
    torch.manual_seed(1)
    found = influence(FAILURES["K"], QUERY, KEY, VALUE, ALL)
    torch.manual_seed(1)
    assert torch.equal(found, influence(FAILURES["K"], QUERY, KEY, VALUE, ALL))
