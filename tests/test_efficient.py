"""Local and sparse attention: equal to full attention under a mask, without its cost."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from utils.efficient import (
    SMALLEST_BLOCK,
    _block_mask,
    local_attention,
    local_mask,
    sparse_attention,
    sparse_attention_fast,
    sparse_pairs,
)

settings.register_profile("course", max_examples=60, deadline=None, derandomize=True)
settings.load_profile("course")

ROOT = Path(__file__).resolve().parent.parent

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
SPARSE = [sparse_attention, sparse_attention_fast]
size = st.integers(1, 6)


def draw_inputs(draw, n_q, n_k):
    """Query, key and value of any batch that fits, in float64 or float32."""
    random = {
        "generator": torch.Generator().manual_seed(draw(st.integers(0, 2**31))),
        "dtype": draw(st.sampled_from([torch.float64, torch.float32])),
    }
    batch, d_k, d_v = draw(st.lists(st.integers(1, 3), max_size=3)), draw(size), draw(size)
    for tokens, features in ((n_q, d_k), (n_k, d_k), (n_k, d_v)):
        axes = [draw(st.sampled_from([1, axis])) for axis in batch]
        yield torch.randn(*axes, tokens, features, **random)


@st.composite
def local_calls(draw):
    """Inputs, window and is_causal; from one token to several blocks, windows beyond the ends."""
    n = draw(st.integers(1, 6) | st.integers(1, 110))
    window = draw(st.integers(0, 4) | st.integers(0, 120))
    return *draw_inputs(draw, n, n), window, draw(st.booleans())


@st.composite
def sparse_calls(draw):
    """Inputs and pairs: unsorted, some twice, some queries without any."""
    n_q, n_k = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    pair = st.tuples(st.integers(0, n_q - 1), st.integers(0, n_k - 1))
    pairs = torch.tensor(draw(st.lists(pair, max_size=40)), dtype=torch.long).reshape(-1, 2)
    return *draw_inputs(draw, n_q, n_k), pairs


def as_mask(pairs, n_q, n_k):
    mask = torch.zeros(n_q, n_k, dtype=torch.bool)
    mask[pairs[:, 0], pairs[:, 1]] = True
    return mask


def full_attention(query, key, value, mask):
    batch = torch.broadcast_shapes(*(t.shape[:-2] for t in (query, key, value)))
    q, k, v = (t.expand(*batch, *t.shape[-2:]) for t in (query, key, value))
    return F.scaled_dot_product_attention(q, k, v, mask)


def assert_equals_full(attend, inputs, mask):
    """Output and gradients; each output weighs differently, so that none cancels another."""
    output = attend(*inputs)
    expected = full_attention(*(t.double() for t in inputs), mask)
    assert output.dtype == inputs[0].dtype
    assert_close(output.double(), expected, atol=TOLERANCE[output.dtype], rtol=0)
    inputs = [t.double().requires_grad_() for t in inputs]
    weigh = torch.linspace(1, 2, expected.numel(), dtype=torch.float64).reshape(expected.shape)
    ours = torch.autograd.grad((attend(*inputs) * weigh).sum(), inputs)
    theirs = torch.autograd.grad((full_attention(*inputs, mask) * weigh).sum(), inputs)
    for our, their in zip(ours, theirs, strict=True):
        assert_close(our, their, atol=1e-10, rtol=1e-10)


# -- a window -----------------------------------------------------------------------------


@given(local_calls())
def test_local_equals_full_attention_under_its_mask(call):
    *inputs, window, is_causal = call
    mask = local_mask(inputs[0].shape[-2], window, is_causal)
    assert_equals_full(lambda *x: local_attention(*x, window, is_causal), inputs, mask)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 63, 64, 65, 100])
@pytest.mark.parametrize("window", [0, 1, 2, 31, 32, 33, 50, 64, 99, 100, 10**9])
def test_each_token_sees_its_window_and_nothing_else(n, window, is_causal):
    query, key = torch.randn(n, 4), torch.randn(n, 4)
    weights = local_attention(query, key, torch.eye(n), window, is_causal)  # one-hot values: output = weights
    distance = torch.arange(n) - torch.arange(n)[:, None]  # key - query
    seen = (distance >= -window) & (distance <= (0 if is_causal else window))
    assert_close(weights > 0, seen)
    assert_close(weights.sum(-1), torch.ones(n))
    assert_close(local_mask(n, window, is_causal), seen)


def test_window_counts_neighbours_on_each_side_and_never_the_token_itself():
    assert local_mask(9, 2)[4].tolist() == [False, False, True, True, True, True, True, False, False]
    assert local_mask(9, 2, is_causal=True)[4].tolist() == [False, False, *[True] * 3, *[False] * 4]
    assert local_mask(4, 2).sum() == 14
    assert local_mask(1024, 2).sum() == 5114
    assert local_mask(0, 2).shape == (0, 0)


def test_window_0_returns_the_values():
    query, key, value = torch.randn(2, 40, 4), torch.randn(2, 40, 4), torch.randn(2, 40, 3)
    assert_close(local_attention(query, key, value, 0), value)


def test_ends_are_not_neighbours():
    value = torch.zeros(70, 1)
    value[-1] = 1.0
    output = local_attention(torch.zeros(70, 4), torch.zeros(70, 4), value, 3)
    assert output[:66].eq(0).all()
    assert_close(output[66:, 0], torch.tensor([1 / 7, 1 / 6, 1 / 5, 1 / 4])[:4])


@pytest.mark.parametrize("is_causal", [False, True])
def test_large_scores_do_not_leak_into_or_out_of_the_window(is_causal):
    key = torch.zeros(50, 4, dtype=torch.float64)
    key[25], query = 1e4, torch.ones(50, 4, dtype=torch.float64)
    value = torch.randn(50, 3, dtype=torch.float64)
    for sign in (1, -1):
        inputs = (sign * query, key, value)
        output = local_attention(*inputs, 2, is_causal)
        assert_close(output, full_attention(*inputs, local_mask(50, 2, is_causal)), atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("n", "window", "right"), [(33, 1, 1), (33, 1, 0), (64, 5, 5), (65, 40, 40), (1, 0, 0)]
)
def test_no_row_of_a_block_is_empty(n, window, right):
    mask = _block_mask(n, max(window, SMALLEST_BLOCK), window, right, torch.ones(1))
    assert mask.isfinite().any(-1).all()  # not every kernel gives such a row zeros and finite gradients


# -- chosen pairs -------------------------------------------------------------------------


@pytest.mark.parametrize("attend", SPARSE)
@given(sparse_calls())
def test_sparse_equals_full_attention_under_a_mask(attend, call):
    *inputs, pairs = call
    mask = as_mask(pairs, inputs[0].shape[-2], inputs[1].shape[-2])
    assert_equals_full(lambda *x: attend(*x, pairs), inputs, mask)


@pytest.mark.parametrize("attend", SPARSE)
def test_order_and_repetition_of_pairs_change_nothing(attend):
    x, pairs = torch.randn(2, 20, 8), sparse_pairs(20, 2, 1, 2)
    output = attend(x, x, x, pairs)
    mixed = torch.cat([pairs, pairs[::3], pairs[:7]])[torch.randperm(len(pairs) + len(pairs[::3]) + 7)]
    assert torch.equal(attend(x, x, x, mixed), output)
    assert torch.equal(attend(x, x, x, pairs.repeat_interleave(2, 0)), output)  # sorted, and still twice
    for dtype in (torch.uint8, torch.int32, torch.uint16):
        assert torch.equal(attend(x, x, x, mixed.to(dtype)), output)


@pytest.mark.parametrize("attend", SPARSE)
def test_a_query_without_pairs_gets_zeros_and_finite_gradients(attend):
    query, key, value = (torch.randn(3, 4, requires_grad=True) for _ in range(3))
    for pairs in (torch.tensor([[0, 2], [2, 2]]), torch.empty(0, 2, dtype=torch.long)):
        output = attend(query, key, value, pairs)
        assert output[1].tolist() == [0] * 4
        assert (output[[0, 2]] == (value[2] if len(pairs) else 0)).all()  # one key gets all
        for gradient in torch.autograd.grad(output.sum(), (query, key, value)):
            assert gradient.isfinite().all()


@pytest.mark.parametrize("attend", SPARSE)
def test_each_query_shares_out_one_unit_however_large_the_scores(attend):
    query, key = 100 * torch.randn(30, 64), 100 * torch.randn(30, 64)
    pairs = sparse_pairs(30, 1, 2, 3)
    weights = attend(query, key, torch.eye(30), pairs)
    assert_close(weights.sum(-1), torch.ones(30))
    assert weights[~as_mask(pairs, 30, 30)].eq(0).all()
    lowest = attend(query, -query, torch.eye(30), torch.arange(30)[:, None].expand(30, 2))
    assert_close(lowest, torch.eye(30))  # exp of these scores is 0, but shares compare


@pytest.mark.parametrize("attend", SPARSE)
def test_second_order_of_axes_and_no_sequences_at_all(attend):
    pairs = sparse_pairs(4, 1)
    x = torch.randn(4, 3, 8).transpose(0, 1)  # (3, 4, 8), not contiguous
    assert_close(attend(x, x, x, pairs), full_attention(x, x, x, local_mask(4, 1)))
    assert attend(*(torch.ones(0, 3, 4, 5),) * 3, pairs).shape == (0, 3, 4, 5)
    assert attend(torch.ones(0, 5), *(torch.ones(4, 5),) * 2, pairs[:0]).shape == (0, 5)


@given(st.integers(1, 40), st.integers(0, 50), st.integers(0, 5), st.integers(0, 5), st.integers(0, 9))
def test_sparse_pairs_are_window_and_global_and_random(n, window, global_tokens, random, seed):
    global_tokens = min(global_tokens, n)
    pairs = sparse_pairs(n, window, global_tokens, random, seed)
    mask = as_mask(pairs, n, n)
    assert_close(pairs, mask.nonzero())  # sorted, and none twice
    token = torch.arange(n)
    known = local_mask(n, window) | (token < global_tokens) | (token < global_tokens)[:, None]
    assert mask[known].all()
    assert (mask & ~known).sum(-1).max() <= random
    assert torch.equal(pairs, sparse_pairs(n, window, global_tokens, random, seed))


def test_sparse_pairs_draw_from_all_keys_and_follow_the_seed():
    drawn = as_mask(sparse_pairs(500, 0, random=5), 500, 500)
    assert 2900 < drawn.sum() <= 3000  # the token itself and 5 more; few of them coincide
    assert drawn.any(0).all() and drawn.any(1).all()
    assert drawn.sum(0).max() < 20
    assert not torch.equal(sparse_pairs(500, 0, random=5, seed=1), sparse_pairs(500, 0, random=5))


def test_a_causal_pattern_is_a_selection_of_pairs():
    x, pairs = torch.randn(30, 8), sparse_pairs(30, 3)
    output = sparse_attention(x, x, x, pairs[pairs[:, 1] <= pairs[:, 0]])
    assert_close(output, local_attention(x, x, x, 3, is_causal=True))


# -- both ---------------------------------------------------------------------------------

PAIRS = sparse_pairs(70, 3, 1, 2)
ATTEND = {
    "local": (lambda *x: local_attention(*x, 3), local_mask(70, 3)),
    "causal": (lambda *x: local_attention(*x, 3, True), local_mask(70, 3, True)),
    "sparse": (lambda *x: sparse_attention(*x, _like(x[0])), as_mask(PAIRS, 70, 70)),
    "sparse, fast": (lambda *x: sparse_attention_fast(*x, _like(x[0])), as_mask(PAIRS, 70, 70)),
}


def _like(x):
    return PAIRS.numpy() if isinstance(x, np.ndarray) else PAIRS


@pytest.mark.parametrize("name", ATTEND)
def test_numpy_in_numpy_out(name):
    attend, mask = ATTEND[name]
    inputs = [torch.randn(2, 70, d) for d in (4, 4, 3)]
    output = attend(*(t.numpy() for t in inputs))
    assert isinstance(output, np.ndarray)
    assert output.dtype == np.float32
    assert_close(torch.from_numpy(output), full_attention(*inputs, mask))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ATTEND)
def test_half_precision_keeps_its_dtype_and_does_not_overflow(name, dtype):
    attend, mask = ATTEND[name]
    query = key = torch.full((70, 64), 100.0, dtype=dtype)  # scores of 80000 do not fit float16
    value = torch.randn(70, 5, dtype=dtype)
    output = attend(query, key, value)
    assert output.dtype == dtype
    expected = full_attention(query.float(), key.float(), value.float(), mask)
    assert_close(output, expected.to(dtype), atol=0, rtol=1e-2 if dtype == torch.bfloat16 else 1e-3)


def test_local_runs_on_the_meta_device():
    x = torch.empty(2, 5, 8, device="meta")
    assert local_attention(x, x, x, 2).shape == (2, 5, 8)


def test_the_fast_form_does_not_warn():
    code = (
        "import torch; from utils.efficient import sparse_attention_fast, sparse_pairs; x = torch.ones(4, 2, "
        "requires_grad=True); sparse_attention_fast(x, x, x, sparse_pairs(4, 1)).sum().backward()"
    )
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, cwd=ROOT
    )
    assert (run.returncode, run.stderr) == (0, "")


class LargestTensor(TorchDispatchMode):
    """Remember the bytes of the largest tensor that any operation returned, views at what they view."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
                self.bytes = max(self.bytes, tensor.untyped_storage().nbytes())
        return result


def cost(attend, n, heads=1, d_v=16):
    """Bytes of the largest tensor and multiplications, of a forward and a backward pass."""
    inputs = [torch.randn(heads, n, d, requires_grad=True) for d in (16, 16, d_v)]
    with FlopCounterMode(display=False) as flops, LargestTensor() as largest:
        attend(*inputs).sum().backward()
    return largest.bytes, flops.get_total_flops()


@pytest.mark.parametrize("d_v", [16, 8])  # d_v other than d_k: another kernel, whose products are counted
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("window", [4, 64])
def test_cost_of_local_attention_grows_with_n(window, heads, d_v):
    (small, few), (large, many) = (
        cost(lambda *x: local_attention(*x, window), n, heads, d_v) for n in (2048, 8192)
    )
    assert large <= 4.1 * small
    assert large <= heads * 8192 * 4 * 4 * max(window, 40)  # bytes: four windows of floats a query
    assert (many > 0) == (d_v == 8)
    assert many <= 4.1 * few


def test_cost_of_local_attention_grows_with_the_window():
    (small, few), (large, many) = (
        cost(lambda *x, w=w: local_attention(*x, w), 4096, d_v=8) for w in (64, 256)
    )
    assert large <= 4.1 * small
    assert 0 < few < many <= 4.1 * few


def test_many_heads_share_mask_and_neighbours():
    largest, _ = cost(lambda *x: local_attention(*x, 256), 4096, heads=8)
    assert largest <= 4096 * 4 * 4 * 256  # bytes: four windows of floats a query, for all heads together


@pytest.mark.parametrize("attend", SPARSE)
def test_memory_of_sparse_attention_grows_with_the_pairs(attend):
    largest = {}
    for n in (1024, 4096):
        pairs = sparse_pairs(n, 4, 2, 4)
        largest[n], _ = cost(lambda *x, pairs=pairs: attend(*x, pairs), n)
        assert largest[n] <= len(pairs) * 16 * 4  # bytes: d floats for each pair
    assert largest[4096] <= 4.2 * largest[1024]


# -- what does not fit is said in words ------------------------------------------------------

X = torch.randn(2, 5, 64)
P = torch.tensor([[0, 0], [4, 4]])


@pytest.mark.parametrize(
    ("error", "words", "arguments"),
    [
        (ValueError, "key has n=4 but query has n=5", (X, X[:, :4], X[:, :4], 2)),
        (ValueError, "value has n_k=4 but key has n_k=5", (X, X, X[:, :4], 2)),
        (ValueError, "key has d_k=32 but query has d_k=64", (X, X[..., :32], X, 2)),
        (ValueError, "key has n_k=0 tokens", (X[:, :0], X[:, :0], X[:, :0], 2)),
        (ValueError, "window must not be negative, got -1", (X, X, X, -1)),
        (TypeError, "window must be a whole number, not 2.0", (X, X, X, 2.0)),
        (TypeError, "window must be a whole number, not True", (X, X, X, True)),
        (TypeError, "window must be a whole number, not None", (X, X, X, None)),
        (TypeError, "is_causal must be True or False, not 2", (X, X, X, 2, 2)),
        (ValueError, "value holds NaN: 640 of 640", (X, X, X * math.nan, 2)),
        (ValueError, "key holds infinity in 640 of 640", (X, X * math.inf, X, 2)),
        (ValueError, "scores holds infinity", (X.abs() * 1e30, X.abs() * 1e30, X, 2)),
        (ValueError, "scores holds infinity", (X.abs() * 1e30, -X.abs() * 1e30, X, 2)),
        (TypeError, "value has dtype=float64 but query has dtype=float32", (X, X, X.double(), 2)),
        (TypeError, "value has device=meta but query has device=cpu", (X, X, X.to("meta"), 2)),
        (TypeError, "query is a numpy array but key is a torch tensor", (X.numpy(), X, X, 2)),
    ],
)
def test_local_errors_name_what_is_wrong(error, words, arguments):
    with pytest.raises(error, match=words):
        local_attention(*arguments)


def test_overflow_of_a_neighbours_score_is_refused():
    query, key = torch.ones(3, 2), torch.ones(3, 2)
    query[0], key[1] = 1e20, 1e20  # each token's score for itself is finite
    with pytest.raises(ValueError, match="output holds NaN: 2 of 6 entries"):
        local_attention(query, key, key, 1)


@pytest.mark.parametrize("attend", SPARSE)
@pytest.mark.parametrize(
    ("error", "words", "arguments"),
    [
        (ValueError, "pairs name query 0 to 5, but there are only 0 to 4", (X, X, X, P + P.gt(0))),
        (ValueError, "pairs name key 0 to 4, but there are only 0 to 3", (X, X[:, :4], X[:, :4], P)),
        (ValueError, "pairs name query -1 to 3, but there are only 0 to 4", (X, X, X, P - 1)),
        (ValueError, r"pairs has shape \(2, 1\), but needs \(m, 2\)", (X, X, X, P[:, :1])),
        (ValueError, r"pairs has shape \(2,\), but needs \(m, 2\)", (X, X, X, P[0])),
        (ValueError, r"pairs has shape \(1, 2, 2\), but needs \(m, 2\)", (X, X, X, P[None])),
        (TypeError, "pairs has dtype float32, but needs integers", (X, X, X, P.float())),
        (TypeError, r"pairs has dtype bool, but needs integers: .*mask.nonzero\(\)", (X, X, X, P > 0)),
        (TypeError, "pairs must be a torch tensor or a numpy array, not list", (X, X, X, [[0, 0]])),
        (TypeError, "pairs has device=meta but query has device=cpu", (X, X, X, P.to("meta"))),
        (TypeError, "query is a numpy array but pairs is a torch tensor", (*(X.numpy(),) * 3, P)),
        (ValueError, "value holds NaN: 640 of 640", (X, X, X * math.nan, P)),
        (ValueError, "value has n_k=4 but key has n_k=5", (X, X, X[:, :4], P)),
        (ValueError, "scores holds infinity in 4 of 4", (X.abs() * 1e30, X.abs() * 1e30, X, P)),
        (ValueError, "batch axes do not fit together", (X, X[[0, 0, 1]], X, P)),
    ],
)
def test_sparse_errors_name_what_is_wrong(attend, error, words, arguments):
    with pytest.raises(error, match=words):
        attend(*arguments)


@pytest.mark.parametrize(
    ("error", "words", "call"),
    [
        (ValueError, "n must not be negative, got -1", lambda: local_mask(-1, 2)),
        (TypeError, "n must be a whole number, not 4.0", lambda: local_mask(4.0, 2)),
        (ValueError, "window must not be negative, got -2", lambda: local_mask(4, -2)),
        (ValueError, "window must not be negative, got -2", lambda: sparse_pairs(4, -2)),
        (TypeError, "random must be a whole number, not 0.5", lambda: sparse_pairs(4, 2, random=0.5)),
        (TypeError, "global_tokens must be a whole number", lambda: sparse_pairs(4, 2, [0])),
        (ValueError, "global_tokens=5 is more than .* n=4", lambda: sparse_pairs(4, 2, 5)),
    ],
)
def test_other_errors_name_what_is_wrong(error, words, call):
    with pytest.raises(error, match=words):
        call()
