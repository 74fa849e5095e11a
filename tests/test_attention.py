"""Attention: equal to PyTorch's, whatever the shapes and masks; clear where PyTorch is not."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from utils.attention import (
    causal_mask,
    combine_masks,
    entropy,
    padding_mask,
    scaled_dot_product_attention,
    softmax,
)

settings.register_profile("course", max_examples=60, deadline=None, derandomize=True)
settings.load_profile("course")

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
size = st.integers(1, 6)


@st.composite
def attention_calls(draw):
    """Query, key, value and the keyword arguments of one call, of any shape that fits."""
    dtype = draw(st.sampled_from([torch.float64, torch.float32]))
    batch = draw(st.lists(st.integers(1, 3), max_size=3))
    n_q, n_k, d_k, d_v = (draw(size) for _ in range(4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    spread = draw(st.sampled_from([0.1, 1.0, 30.0]))
    random = {"generator": generator, "dtype": dtype}
    query, key, value = (
        spread * torch.randn(*batch, *shape, **random) for shape in ((n_q, d_k), (n_k, d_k), (n_k, d_v))
    )
    kind = draw(st.sampled_from(["none", "boolean", "additive", "causal"]))
    some = [draw(st.sampled_from([1, axis])) for axis in batch]
    if kind == "boolean":
        mask = {"attn_mask": torch.rand(*some, n_q, n_k, **random) < 0.6}
    elif kind == "additive":
        mask = {"attn_mask": torch.randn(*some, draw(st.sampled_from([1, n_q])), n_k, **random)}
    else:
        mask = {"is_causal": kind == "causal"}
    return query, key, value, mask


def near(query, key, value):
    """An error of a score's last digit becomes a relative error of its exp: allow for the largest score."""
    largest = float((query @ key.mT).abs().max()) / query.shape[-1] ** 0.5
    return TOLERANCE[query.dtype] * max(1.0, float(value.abs().max())) * max(1.0, largest / 10)


@given(attention_calls())
def test_equals_pytorch(call):
    query, key, value, mask = call
    output, weights = scaled_dot_product_attention(query, key, value, **mask)
    if mask.get("attn_mask") is not None and mask["attn_mask"].is_floating_point():
        mask = {"attn_mask": mask["attn_mask"].double()}
    expected = F.scaled_dot_product_attention(query.double(), key.double(), value.double(), **mask)
    assert_close(output.double(), expected, atol=near(query, key, value), rtol=0)
    assert weights.shape == (*query.shape[:-1], key.shape[-2])
    sums = weights.sum(-1)
    assert_close(sums, (sums > 0.5).to(sums.dtype), atol=1e-5, rtol=0)  # each row sums to 1, or is empty
    assert_close(weights @ value, output)


@given(attention_calls())
def test_gradients_equal_pytorch(call):
    query, key, value, mask = call
    inputs = [t.double().requires_grad_() for t in (query, key, value)]
    if mask.get("attn_mask") is not None and mask["attn_mask"].is_floating_point():
        mask = {"attn_mask": mask["attn_mask"].double()}
    ours = torch.autograd.grad(scaled_dot_product_attention(*inputs, **mask)[0].sum(), inputs)
    theirs = torch.autograd.grad(F.scaled_dot_product_attention(*inputs, **mask).sum(), inputs)
    for our, their in zip(ours, theirs, strict=True):
        assert_close(our, their, atol=1e-9, rtol=1e-9)


@given(attention_calls())
def test_numpy_in_numpy_out(call):
    tensors = call[:3]
    output, weights = scaled_dot_product_attention(*(t.numpy() for t in tensors))
    expected = scaled_dot_product_attention(*tensors)
    assert isinstance(output, np.ndarray)
    assert output.dtype == tensors[0].numpy().dtype
    np.testing.assert_array_equal(output, expected[0].numpy())
    np.testing.assert_array_equal(weights, expected[1].numpy())


@given(attention_calls(), st.randoms())
def test_order_of_the_keys_does_not_matter(call, random):
    query, key, value, _ = call
    order = list(range(key.shape[-2]))
    random.shuffle(order)
    output, weights = scaled_dot_product_attention(query, key, value)
    shuffled, shuffled_weights = scaled_dot_product_attention(query, key[..., order, :], value[..., order, :])
    assert_close(shuffled, output, atol=near(query, key, value), rtol=0)
    assert_close(shuffled_weights, weights[..., order], atol=near(query, key, value), rtol=0)


@pytest.mark.parametrize(
    "view", [lambda x: x[::-1], lambda x: x.T, lambda x: np.broadcast_to(x[:1], x.shape)]
)
def test_any_numpy_view_will_do_and_is_left_alone(view):
    whole = np.random.default_rng(0).normal(size=(4, 4))
    array, before = view(whole), whole.copy()
    if array.flags.writeable:
        array.flags.writeable = False
    output, _ = scaled_dot_product_attention(array, array, array)
    tensor = torch.tensor(np.array(array))
    assert_close(torch.tensor(output), F.scaled_dot_product_attention(tensor, tensor, tensor))
    output[:] = 0
    np.testing.assert_array_equal(whole, before)


def test_unbatched_batched_and_broadcast_agree():
    query, key, value = torch.randn(5, 4), torch.randn(7, 4), torch.randn(7, 3)
    single, _ = scaled_dot_product_attention(query, key, value)
    batched, weights = scaled_dot_product_attention(query.expand(2, 3, 5, 4), key, value)
    assert weights.shape == (2, 3, 5, 7)
    assert_close(batched, single.expand(2, 3, 5, 3))


def test_one_token_attends_to_itself():
    x = torch.randn(1, 8)
    output, weights = scaled_dot_product_attention(x, x, x)
    assert weights.item() == 1.0
    assert_close(output, x)


def test_no_queries_give_no_outputs():
    output, weights = scaled_dot_product_attention(torch.ones(0, 4), torch.ones(3, 4), torch.ones(3, 2))
    assert (output.shape, weights.shape) == ((0, 2), (0, 3))


def test_a_query_that_may_attend_to_nothing_gets_zeros_and_finite_gradients():
    query, key, value = (torch.randn(3, 4, requires_grad=True) for _ in range(3))
    mask = torch.tensor([[True, True, False], [False, False, False], [True, False, False]])
    for given_mask in (mask, torch.zeros(3, 3).masked_fill(~mask, -math.inf)):
        output, weights = scaled_dot_product_attention(query, key, value, given_mask)
        assert weights[1].tolist() == [0, 0, 0]
        assert output[1].tolist() == [0, 0, 0, 0]
        for gradient in torch.autograd.grad(output.sum(), (query, key, value)):
            assert gradient.isfinite().all()


@pytest.mark.parametrize(("n_q", "n_k"), [(4, 4), (2, 5), (5, 2), (1, 1)])
def test_causal_alignment_is_pytorchs(n_q, n_k):
    query, key, value = torch.randn(n_q, 4), torch.randn(n_k, 4), torch.randn(n_k, 4)
    output, weights = scaled_dot_product_attention(query, key, value, is_causal=True)
    assert_close(output, F.scaled_dot_product_attention(query, key, value, is_causal=True))
    assert_close(weights > 0, causal_mask(n_q, n_k))


def test_mask_and_causal_together_allow_what_both_allow():
    x, mask = torch.randn(2, 4, 8), padding_mask(torch.tensor([4, 2]), 4)
    _, weights = scaled_dot_product_attention(x, x, x, mask, is_causal=True)
    assert_close(weights > 0, mask & causal_mask(4))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_its_dtype_and_does_not_overflow(dtype):
    query = key = torch.full((3, 64), 100.0, dtype=dtype)  # scores of 80000 do not fit float16
    value = torch.randn(3, 5, dtype=dtype)
    output, weights = scaled_dot_product_attention(query, key, value, is_causal=True)
    assert output.dtype == weights.dtype == dtype
    expected, _ = scaled_dot_product_attention(query.float(), key.float(), value.float(), is_causal=True)
    assert_close(output.float(), expected, atol=1e-2, rtol=1e-2)
    assert softmax(torch.tensor([6e4, 6e4], dtype=dtype)).tolist() == [0.5, 0.5]


def test_runs_on_the_meta_device():
    x = torch.empty(2, 5, 8, device="meta")
    output, weights = scaled_dot_product_attention(x, x, x, is_causal=True)
    assert (output.shape, weights.shape) == ((2, 5, 8), (2, 5, 5))


# -- softmax ---------------------------------------------------------------------------


@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=8), st.floats(-1e4, 1e4))
def test_softmax_equals_pytorch_and_ignores_a_shift(scores, shift):
    scores = torch.tensor(scores, dtype=torch.float64)
    assert_close(softmax(scores), torch.softmax(scores, -1), atol=1e-12, rtol=0)
    assert_close(softmax(scores + shift), softmax(scores), atol=1e-9, rtol=0)


def test_softmax_survives_what_exp_does_not():
    with np.errstate(over="ignore"):
        assert np.isinf(np.exp(np.float32(89)))
    assert softmax(np.float32([1000, 1000])).tolist() == [0.5, 0.5]
    assert softmax(torch.tensor([-1000.0, -1001.0])).sum().item() == pytest.approx(1)
    assert softmax(torch.tensor([-math.inf, 0.0])).tolist() == [0, 1]
    assert softmax(torch.tensor([-math.inf, -math.inf])).tolist() == [0, 0]


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_softmax_along_any_axis(dim):
    scores = torch.randn(2, 3, 4)
    assert_close(softmax(scores, dim), torch.softmax(scores, dim))


# -- masks -----------------------------------------------------------------------------


def test_padding_mask_is_true_for_real_keys():
    mask = padding_mask(torch.tensor([1, 3, 0]), 3)
    assert mask.shape == (3, 1, 3)
    assert mask[:, 0].tolist() == [[True, False, False], [True, True, True], [False, False, False]]
    assert padding_mask(torch.tensor([255], dtype=torch.uint8), 300).sum() == 255
    assert padding_mask(torch.tensor([1, 3])[:, None], 3).shape == (2, 1, 1, 3)  # against heads


def test_combine_masks():
    causal, padding = causal_mask(3), padding_mask(torch.tensor([2]), 3)
    additive = torch.tensor([[0.0, 1.0, -math.inf]], dtype=torch.float64)
    assert combine_masks(None, None) is None
    assert_close(combine_masks(causal, None), causal)
    assert_close(combine_masks(causal, padding), causal & padding)
    both = combine_masks(causal, additive)
    assert both.dtype == torch.float64
    assert_close(both.isfinite(), causal & additive.isfinite())
    assert both[1, 1] == 1.0
    assert_close(combine_masks(additive, additive)[0, 1].item(), 2.0)
    narrow, wide = torch.zeros(1, dtype=torch.float16), torch.tensor([-1e5])
    for masks in ((narrow, wide), (wide, narrow)):
        assert combine_masks(*masks).tolist() == [-1e5]  # float16 would make it -inf
    assert combine_masks(causal.numpy(), padding.numpy()).tolist() == (causal & padding).tolist()


# -- entropy ---------------------------------------------------------------------------


def test_entropy_of_one_and_of_equal_shares():
    assert entropy(torch.tensor([0.0, 1.0, 0.0])).item() == 0
    assert entropy(torch.full((8,), 1 / 8), base=2).item() == pytest.approx(3)
    assert entropy(np.full(5, 1 / 5)) == pytest.approx(math.log(5))
    assert entropy(torch.tensor([[0.0, 0.0], [0.5, 0.5]])).tolist() == pytest.approx([0, math.log(2)])
    assert entropy(torch.eye(3), dim=0).tolist() == [0, 0, 0]


def test_entropy_has_finite_gradients_where_a_share_is_zero():
    scores = torch.tensor([1.0, 2.0, -math.inf], requires_grad=True)
    entropy(softmax(scores)).backward()
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_entropy_of_half_precision(dtype):
    shares = torch.softmax(torch.randn(5, 100), -1)
    in_half = entropy(shares.to(dtype))
    assert in_half.dtype == dtype
    assert_close(in_half.float(), entropy(shares), atol=0.05, rtol=0.01)


# -- what does not fit is said in words -------------------------------------------------

X = torch.randn(2, 5, 64)


@pytest.mark.parametrize(
    ("error", "words", "arguments"),
    [
        (ValueError, "key has d_k=32 but query has d_k=64", (X, X[..., :32], X)),
        (ValueError, "value has n_k=4 but key has n_k=5", (X, X, X[:, :4])),
        (ValueError, r"query needs at least two axes, .* has shape \(64,\)", (X[0, 0], X, X)),
        (ValueError, r"batch axes do not fit together: query \(2, 5, 64\), key \(3,", (X, X[[0, 0, 1]], X)),
        (ValueError, "key has n_k=0 tokens", (X, X[:, :0], X[:, :0])),
        (ValueError, "d_k=0 features", (X[..., :0], X[..., :0], X)),
        (ValueError, r"value holds NaN: 1 of 640 entries, the first at \[1, 2, 3\]", (X, X, "nan")),
        (ValueError, "key holds NaN: 1 of 640 entries", (X, "nan", X)),
        (ValueError, "query holds NaN: 1 of 640 entries", ("nan", X, X)),
        (ValueError, "value holds infinity in 640 of 640", (X, X, X * math.inf)),
        (ValueError, "key holds infinity in 640 of 640", (X, X * math.inf, X)),
        (ValueError, "scores holds infinity .* float32 ends at 3.4e.38", (X.abs() * 1e30, X.abs() * 1e30, X)),
        (ValueError, "scores holds infinity in 50 of 50", (X.abs() * 1e30, -X.abs() * 1e30, X)),
        (TypeError, "is_causal must be True or False, not 0.1", (X, X, X, None, 0.1)),
        (TypeError, "query is a masked array", (np.ma.masked_array(np.ones((2, 2))),) * 3),
        (TypeError, "query has dtype int64, but attention needs floats", (X.long(), X, X)),
        (TypeError, "key has dtype=float64 but query has dtype=float32", (X, X.double(), X)),
        (TypeError, "value has device=meta but query has device=cpu", (X, X, X.to("meta"))),
        (TypeError, "key must be a torch tensor or a numpy array, not list", (X, [[1.0]], X)),
        (TypeError, "query is a numpy array but key is a torch tensor", (X.numpy(), X, X)),
        (TypeError, "query has dtype object, which torch does not know", (np.array([[None]]),) * 3),
        (ValueError, r"attn_mask has shape \(4, 5\), .* shape \(2, 5, 5\)", (X, X, X, torch.ones(4, 5) > 0)),
        (ValueError, r"attn_mask has shape \(3, 1, 5, 5\)", (X, X, X, torch.ones(3, 1, 5, 5) > 0)),
        (TypeError, "attn_mask has dtype int64: use a boolean", (X, X, X, torch.ones(5, 5).long())),
        (TypeError, "attn_mask has device=meta", (X, X, X, torch.ones(5, 5, device="meta") > 0)),
        (ValueError, "attn_mask holds NaN", (X, X, X, torch.full((5, 5), math.nan))),
    ],
)
def test_attention_errors_name_what_is_wrong(error, words, arguments):
    with_nan = X.clone()
    with_nan[1, 2, 3] = math.nan
    arguments = [with_nan if isinstance(a, str) else a for a in arguments]
    with pytest.raises(error, match=words):
        scaled_dot_product_attention(*arguments)


@pytest.mark.parametrize(
    ("error", "words", "call"),
    [
        (TypeError, "scores has dtype int64", lambda: softmax(torch.tensor([1, 2]))),
        (ValueError, "dim=2 is no axis of scores", lambda: softmax(torch.ones(2, 2), dim=2)),
        (ValueError, "nothing along dim=-1", lambda: softmax(torch.ones(2, 0))),
        (ValueError, "scores holds NaN", lambda: softmax(torch.tensor([math.nan]))),
        (ValueError, "reach .inf", lambda: softmax(torch.tensor([math.inf]))),
        (ValueError, "a row sums to 3: ", lambda: entropy(torch.ones(3))),
        (ValueError, "a row sums to 0.9: ", lambda: entropy(torch.tensor([0.5, 0.4]))),
        (ValueError, "between 0 and n_k=3, got -1 to 2", lambda: padding_mask(torch.tensor([2, -1]), 3)),
        (ValueError, "base of an entropy must be above 1", lambda: entropy(torch.ones(1), base=0.5)),
        (ValueError, "must not be negative", lambda: entropy(torch.tensor([1.5, -0.5]))),
        (ValueError, "between 0 and n_k=3, got 4 to 4", lambda: padding_mask(torch.tensor([4]), 3)),
        (TypeError, "whole numbers, got float32", lambda: padding_mask(torch.tensor([1.5]), 3)),
        (TypeError, "attn_mask has dtype int64", lambda: combine_masks(torch.tensor([1]))),
        (
            ValueError,
            r"masks of shapes \(2, 2\) and \(3, 3\)",
            lambda: combine_masks(causal_mask(2), causal_mask(3)),
        ),
        (TypeError, "scores has dtype >f8", lambda: softmax(np.ones(2, dtype=">f8"))),
    ],
)
def test_other_errors_name_what_is_wrong(error, words, call):
    with pytest.raises(error, match=words):
        call()
