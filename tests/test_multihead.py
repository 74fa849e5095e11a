"""Multi-head attention: PyTorch's numbers for every shape and mask, and no silent wrong answers."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from utils.attention import causal_mask, padding_mask, scaled_dot_product_attention
from utils.multihead import MultiHeadAttention, merge_heads, split_heads

settings.register_profile("course", max_examples=60, deadline=None, derandomize=True)
settings.load_profile("course")

CLOSE = {torch.float64: 1e-12, torch.float32: 1e-5}
small = st.integers(1, 5)


def randn(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def make(d_model=12, num_heads=3, **kwargs):
    torch.manual_seed(0)
    return MultiHeadAttention(d_model, num_heads, **{"dtype": torch.float64, **kwargs})


# -- splitting and merging ----------------------------------------------------------------


@given(st.lists(small, max_size=3), small, small, small)
def test_merge_undoes_split(batch, n, h, d_k):
    x = randn(*batch, n, h * d_k)
    heads = split_heads(x, h)
    assert heads.shape == (*batch, h, n, d_k)
    assert torch.equal(merge_heads(heads), x)
    for i in range(h):
        assert torch.equal(heads[..., i, :, :], x[..., i * d_k : (i + 1) * d_k])


def test_a_view_straight_to_heads_has_the_shape_and_mixes_the_tokens():
    x = randn(2, 6, 12)
    assert split_heads(x, 3).shape == x.view(2, 3, 6, 4).shape
    assert not torch.equal(split_heads(x, 3), x.view(2, 3, 6, 4))


# -- equal to PyTorch's layer -------------------------------------------------------------


@st.composite
def calls(draw):
    """A layer of ours and one call of it."""
    dtype = draw(st.sampled_from([torch.float64, torch.float32]))
    h, d_k = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    batch, n_q, n_k = draw(st.integers(1, 3)), draw(small), draw(small)
    cross = draw(st.booleans())
    n_k = n_k if cross else n_q
    ours = make(h * d_k, h, dtype=dtype, bias=draw(st.booleans()))
    query = randn(batch, n_q, h * d_k, dtype=dtype, seed=1)
    others = [randn(batch, n_k, h * d_k, dtype=dtype, seed=2 + i) for i in range(2)] if cross else []
    kind = draw(st.sampled_from(["none", "2d", "4d", "padding", "float", "causal"]))
    mask = {
        "none": None,
        "causal": None,
        "2d": randn(n_q, n_k, seed=5) < 0.5,
        "4d": randn(batch, h, n_q, n_k, seed=5) < 0.5,
        "padding": padding_mask(torch.randint(1, n_k + 1, (batch, 1)), n_k),
        "float": randn(1, h, n_q, n_k, dtype=dtype, seed=5),
    }[kind]
    if mask is not None and mask.dtype == torch.bool:
        mask = mask | (torch.arange(n_k) == 0)  # PyTorch's layer answers an empty row with NaN
    return ours, [query, *others], mask, kind == "causal"


def theirs_on(ours, inputs, mask, is_causal):
    """PyTorch's layer, its masks turned round: there True means may NOT attend."""
    query, key, value = inputs if len(inputs) == 3 else inputs * 3
    if is_causal:
        mask = causal_mask(query.shape[1], key.shape[1])
    if mask is not None:
        full = (query.shape[0], ours.num_heads, query.shape[1], key.shape[1])
        mask = (~mask if mask.dtype == torch.bool else mask).expand(full).flatten(0, 1)
    return ours.to_pytorch()(query, key, value, attn_mask=mask, average_attn_weights=False)


@given(calls())
def test_equals_pytorch_with_and_without_weights(call):
    ours, inputs, mask, is_causal = call
    expected, expected_weights = theirs_on(ours, inputs, mask, is_causal)
    near = {"atol": CLOSE[expected.dtype], "rtol": 0}
    output, none = ours(*inputs, attn_mask=mask, is_causal=is_causal)
    assert none is None
    assert_close(output, expected, **near)
    output, weights = ours(*inputs, attn_mask=mask, is_causal=is_causal, need_weights=True)
    assert_close(output, expected, **near)
    assert_close(weights, expected_weights, **near)


@given(calls())
def test_gradients_equal_pytorch(call):
    ours, inputs, mask, is_causal = call
    ours = ours.double()
    inputs = [x.double().requires_grad_() for x in inputs]
    mask = mask.double() if mask is not None and mask.is_floating_point() else mask
    wanted = torch.autograd.grad(theirs_on(ours, inputs, mask, is_causal)[0].square().sum(), inputs)
    for need_weights in (False, True):
        output, _ = ours(*inputs, attn_mask=mask, is_causal=is_causal, need_weights=need_weights)
        for found, their in zip(torch.autograd.grad(output.square().sum(), inputs), wanted, strict=True):
            assert_close(found, their, atol=1e-11, rtol=1e-11)


def test_every_parameter_gets_the_gradient_that_pytorch_gives():
    ours, x = make(), randn(2, 5, 12)
    theirs = ours.to_pytorch()
    theirs(x, x, x)[0].square().sum().backward()
    ours(x)[0].square().sum().backward()
    mine = [ours.q_proj, ours.k_proj, ours.v_proj]
    assert_close(torch.cat([p.weight.grad for p in mine]), theirs.in_proj_weight.grad)
    assert_close(torch.cat([p.bias.grad for p in mine]), theirs.in_proj_bias.grad)
    assert_close(ours.out_proj.weight.grad, theirs.out_proj.weight.grad)


@pytest.mark.parametrize("bias", [True, False])
def test_there_and_back_through_pytorch(bias):
    ours = make(bias=bias, dropout=0.25).eval()
    again = MultiHeadAttention.from_pytorch(ours.to_pytorch())
    assert not again.training
    assert again.dropout == 0.25
    assert again.q_proj.weight.dtype == torch.float64
    for name, value in ours.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)
    again.q_proj.weight.data.zero_()  # a copy: the first one keeps its weights
    assert ours.q_proj.weight.abs().sum() > 0


def test_parameters_are_as_many_for_every_number_of_heads():
    counts = {h: sum(p.numel() for p in MultiHeadAttention(512, h).parameters()) for h in (1, 2, 8, 64)}
    assert set(counts.values()) == {sum(p.numel() for p in nn.MultiheadAttention(512, 8).parameters())}


def test_is_the_sum_of_its_heads():
    ours, x = make(bias=False), randn(2, 5, 12)
    total = torch.zeros(2, 5, 12, dtype=torch.float64)
    for i in range(3):
        block = slice(4 * i, 4 * i + 4)
        q, k, v = (x @ p.weight[block].T for p in (ours.q_proj, ours.k_proj, ours.v_proj))
        total += scaled_dot_product_attention(q, k, v)[0] @ ours.out_proj.weight[:, block].T
    assert_close(ours(x)[0], total)


# -- shapes, masks, modes, dtypes, devices ------------------------------------------------


def test_one_sequence_without_a_batch_axis_is_right():
    ours, x = make(), randn(3, 5, 12)
    output, weights = ours(x, need_weights=True)
    alone, alone_weights = ours(x[1], need_weights=True)
    assert_close(alone, output[1])
    assert_close(alone_weights, weights[1])
    assert_close(ours(x[None, None])[0][0, 0], output)


def test_sequences_do_not_see_each_other_and_order_does_not_matter():
    ours, x, shuffled = make(), randn(3, 5, 12), torch.tensor([3, 0, 4, 1, 2])
    changed = x.clone()
    changed[2] = 0
    assert_close(ours(changed)[0][:2], ours(x)[0][:2])
    assert_close(ours(x[:, shuffled])[0], ours(x)[0][:, shuffled])


def test_left_out_inputs_are_the_ones_before_them():
    ours, x, y = make(), randn(2, 5, 12), randn(2, 7, 12, seed=1)
    assert_close(ours(x)[0], ours(x, x, x)[0])
    assert_close(ours(x, y)[0], ours(x, y, y)[0])


@pytest.mark.parametrize("need_weights", [False, True])
def test_mask_and_causal_together_allow_what_both_allow(need_weights):
    ours, x = make(), randn(2, 5, 12)
    keep = padding_mask(torch.tensor([[5], [3]]), 5)
    both = ours(x, attn_mask=keep, is_causal=True, need_weights=need_weights)[0]
    assert_close(both, ours(x, attn_mask=keep & causal_mask(5))[0])
    bias = randn(5, 5, seed=3).float()  # another dtype than x
    additive = ours(x, attn_mask=bias, is_causal=True, need_weights=need_weights)[0]
    assert_close(additive, ours(x, attn_mask=bias.double().masked_fill(~causal_mask(5), -torch.inf))[0])


@pytest.mark.parametrize("need_weights", [False, True])
def test_a_query_with_nothing_to_attend_to_gets_the_bias_alone_and_finite_gradients(need_weights):
    ours, x = make(), randn(1, 3, 12).requires_grad_()
    keep = torch.tensor([[True, True, False], [False, False, False], [True, False, True]])
    output, _ = ours(x, attn_mask=keep, need_weights=need_weights)
    assert_close(output[0, 1], ours.out_proj.bias)
    output.sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("need_weights", [False, True])
def test_dropout_works_on_the_weights_and_in_training_only(need_weights):
    ours, x = make(16, 2, dropout=0.5, dtype=torch.float32), randn(4, 32, 16, dtype=torch.float32)
    torch.manual_seed(1)
    first = ours(x, need_weights=need_weights)[0]
    assert not torch.equal(first, ours(x, need_weights=need_weights)[0])
    many = ours(x.expand(400, -1, -1, -1), need_weights=need_weights)[0].mean(0)
    ours.eval()
    assert torch.equal(ours(x)[0], ours(x)[0])
    assert_close(many, ours(x)[0], atol=0.05, rtol=0)  # dropped weights are made up for on average
    ours.train()
    if need_weights:
        assert_close(ours(x, need_weights=True)[1].sum(-1), torch.ones(4, 2, 32))  # before dropout


def test_dropout_falls_on_the_weights_and_not_on_what_they_mix():
    ours, x = make(16, 2, dropout=0.5), randn(2, 6, 16)
    torch.manual_seed(3)
    found, weights = ours(x, need_weights=True)
    torch.manual_seed(3)
    dropped = F.dropout(weights, 0.5) @ split_heads(ours.v_proj(x), 2)
    assert_close(found, ours.out_proj(merge_heads(dropped)))


@pytest.mark.parametrize("need_weights", [False, True])
def test_more_batch_axes_and_masks_with_them(need_weights):
    ours, x = make(), randn(2, 3, 5, 12)
    keep = padding_mask(torch.tensor([[5, 4, 3], [2, 1, 5]])[..., None], 5)  # (2, 3, 1, 1, 5)
    found = ours(x, attn_mask=keep, need_weights=need_weights)[0]
    for i in range(2):
        assert_close(found[i], ours(x[i], attn_mask=keep[i])[0])
    assert ours(x[:0])[0].shape == (0, 3, 5, 12)


@pytest.mark.parametrize("need_weights", [False, True])
def test_a_float_mask_may_have_another_dtype(need_weights):
    ours, x = make(dtype=torch.float32), randn(2, 5, 12, dtype=torch.float32)
    bias = randn(5, 5, seed=3)
    found = ours(x, attn_mask=bias, need_weights=need_weights)[0]
    assert_close(found, ours(x, attn_mask=bias.float())[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_half_and_near(dtype):
    exact, x = make(), randn(2, 6, 12)
    wanted = exact(x, is_causal=True)[0]
    half = make().to(dtype)
    for need_weights in (False, True):
        found, _ = half(x.to(dtype), is_causal=True, need_weights=need_weights)
        assert found.dtype == dtype
        assert_close(found.double(), wanted, atol=0.02, rtol=0)


def test_runs_on_the_meta_device_and_survives_a_state_dict():
    assert make().to("meta")(torch.empty(2, 5, 12, device="meta", dtype=torch.float64))[0].shape == (2, 5, 12)
    ours, x = make(), randn(2, 5, 12)
    other = MultiHeadAttention(12, 3, dtype=torch.float64)
    other.load_state_dict(ours.state_dict())
    assert torch.equal(other(x)[0], ours(x)[0])


def test_keeps_its_inputs():
    ours, x = make(), randn(2, 5, 12)
    before = x.clone()
    ours(x, is_causal=True, need_weights=True)
    assert torch.equal(x, before)


# -- errors in words ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: make(12, 5), "num_heads=5 does not divide d_model=12; these do: 1, 2, 3, 4, 6, 12"),
        (lambda: make(12, 0), "num_heads must be at least 1, got 0"),
        (lambda: make(12, 2.0), "num_heads must be a whole number"),
        (lambda: make(12, True), "num_heads must be a whole number"),
        (lambda: make(12, 3, dropout=1.0), "dropout must be at least 0 and below 1, not 1.0"),
        (lambda: split_heads(randn(2, 5), 2), "num_heads=2 does not divide d_model=5; these do: 1, 5"),
        (
            lambda: make()(randn(2, 5, 10)),
            "query must be (..., tokens, d_model=12), but has shape (2, 5, 10)",
        ),
        (lambda: make()(randn(12)), "but has shape (12,)"),
        (lambda: make()(torch.arange(12)[None]), "query has dtype int64, but attention needs floats"),
        (lambda: make()([[1.0]]), "query must be a torch tensor, not list"),
        (lambda: make()(randn(2, 5, 12).numpy()), "query must be a torch tensor, not ndarray"),
        (lambda: make()(randn(2, 5, 12).float()), "query has dtype=float32 but the layer has dtype=float64"),
        (lambda: make()(randn(2, 5, 12) * torch.nan), "query holds NaN: 120 of 120 entries"),
        (lambda: make()(randn(2, 5, 12), randn(2, 5, 12) / 0), "key holds infinity"),
        (lambda: make()(randn(2, 5, 12), attn_mask=torch.full((5, 5), torch.inf)), "attn_mask reaches +inf"),
        (
            lambda: make().half()(randn(2, 5, 12).half(), attn_mask=torch.full((5, 5), 1e5)),
            "attn_mask reaches 1e+05: float16 ends at 6.55e+04",
        ),
        (lambda: make(12, 3, dropout="0.1"), "dropout must be at least 0 and below 1, not '0.1'"),
        (
            lambda: make()(randn(2, 5, 12), randn(3, 5, 12)),
            "key has batch axes=(3,) but query has batch axes=(2,)",
        ),
        (lambda: make()(*(randn(2, n, 12) for n in (5, 6, 7))), "value has n_k=7 but key has n_k=6"),
        (lambda: make()(randn(2, 5, 12), randn(2, 0, 12)), "there is nothing to attend to"),
        (
            lambda: make()(randn(3, 5, 12), attn_mask=torch.ones(3, 5, 5, dtype=torch.bool)),
            "attn_mask has 3 axes (shape (3, 5, 5)), but must have 2, (n_q, n_k), or 4, to fit (3, 3, 5, 5)",
        ),
        (
            lambda: make()(randn(2, 5, 12), attn_mask=torch.ones(5, 4, dtype=torch.bool)),
            "attn_mask has shape (5, 4), which does not broadcast to the scores' shape (2, 3, 5, 5)",
        ),
        (lambda: make()(randn(2, 5, 12), attn_mask=torch.ones(5, 5).int()), "use a boolean mask"),
        (lambda: make()(randn(2, 5, 12), is_causal=0.1), "is_causal must be True or False, not 0.1"),
        (lambda: MultiHeadAttention.from_pytorch(nn.Linear(2, 2)), "expected an nn.MultiheadAttention"),
        (
            lambda: MultiHeadAttention.from_pytorch(nn.MultiheadAttention(4, 2, kdim=3, add_bias_kv=True)),
            "nothing that matches kdim or vdim and add_bias_kv",
        ),
        (
            lambda: MultiHeadAttention.from_pytorch(nn.MultiheadAttention(4, 2, add_zero_attn=True)),
            "nothing that matches add_zero_attn",
        ),
    ],
)
def test_what_does_not_fit_is_said_in_words(call, words):
    with pytest.raises((ValueError, TypeError)) as error:
        call()
    assert words in str(error.value)


@pytest.mark.parametrize("batch", [(), (1,), (1, 1)])
@pytest.mark.parametrize("masked", [False, True])
def test_without_weights_the_scores_are_never_stored(batch, masked):
    ours = MultiHeadAttention(64, 8).eval()
    x = torch.randn(*batch, 2048, 64)
    keep = padding_mask(torch.tensor(2000).expand(*batch, 1), 2048) if masked else None
    sizes = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            sizes.extend(t.numel() for t in torch.utils._pytree.tree_leaves(result) if torch.is_tensor(t))
            return result

    with torch.no_grad(), Watch():
        ours(x, attn_mask=keep)
    assert max(sizes) <= 2048 * 64 < 2048 * 2048
