"""The self-attention layer: the attention half of PyTorch's encoder layer, number by number."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from utils.attention import causal_mask, padding_mask
from utils.layer import SelfAttentionLayer
from utils.multihead import MultiHeadAttention

every_norm = pytest.mark.parametrize("norm", ["post", "pre"])


def make(norm="post", **kwargs):
    torch.manual_seed(0)
    layer = SelfAttentionLayer(12, 3, norm=norm, dtype=torch.float64, **kwargs)
    nn.init.normal_(layer.norm.weight)
    nn.init.normal_(layer.norm.bias)
    return layer


def randn(*shape, seed=1):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@every_norm
@pytest.mark.parametrize("is_causal", [False, True])
def test_with_a_feed_forward_half_it_is_pytorchs_encoder_layer(norm, is_causal):
    theirs = nn.TransformerEncoderLayer(
        12, 3, 24, 0.0, batch_first=True, norm_first=norm == "pre", dtype=torch.float64
    )
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.5)
    ours = make(norm)
    ours.attention = MultiHeadAttention.from_pytorch(theirs.self_attn)
    ours.norm.load_state_dict(theirs.norm1.state_dict())
    forward = nn.Sequential(theirs.linear1, nn.ReLU(), theirs.linear2)

    x = randn(2, 5, 12)
    half, _ = ours(x, is_causal=is_causal)
    found = half + forward(theirs.norm2(half)) if norm == "pre" else theirs.norm2(half + forward(half))
    mask = ~causal_mask(5) if is_causal else None
    assert_close(found, theirs(x, src_mask=mask), atol=1e-12, rtol=0)


@every_norm
def test_without_attention_only_the_residual_is_left(norm):
    layer, x = make(norm), randn(2, 5, 12)
    nn.init.zeros_(layer.attention.out_proj.weight)
    nn.init.zeros_(layer.attention.out_proj.bias)
    assert_close(layer(x)[0], x if norm == "pre" else layer.norm(x))


def test_post_norm_leaves_rows_of_mean_0_and_variance_1():
    out = SelfAttentionLayer(16, 2)(torch.randn(2, 5, 16))[0]
    assert_close(out.mean(-1), torch.zeros(2, 5), atol=1e-6, rtol=0)
    assert_close(out.var(-1, unbiased=False), torch.ones(2, 5), atol=1e-3, rtol=0)


@every_norm
def test_masks_and_weights_go_through(norm):
    layer, x = make(norm), randn(2, 5, 12)
    keep = padding_mask(torch.tensor([[5], [3]]), 5)
    output, weights = layer(x, attn_mask=keep, is_causal=True, need_weights=True)
    assert weights.shape == (2, 3, 5, 5)
    assert weights[:, :, ~causal_mask(5)].abs().sum() == 0
    assert weights[1, :, :, 3:].abs().sum() == 0
    changed = x.clone()
    changed[1, 3:] = 0  # what is padded is not seen
    assert_close(layer(changed, attn_mask=keep, is_causal=True)[0][1, :3], output[1, :3])
    assert layer(x)[1] is None


@every_norm
def test_dropout_is_for_training_only(norm):
    layer, x = make(norm, dropout=0.5), randn(2, 5, 12)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])


def test_dropout_also_works_on_what_attention_adds():
    layer, x = make("pre", dropout=0.5), randn(4, 50, 12)
    added = layer(x)[0] - x
    assert abs((added == 0).double().mean() - 0.5) < 0.05


@every_norm
def test_every_parameter_gets_a_gradient(norm):
    layer = make(norm)
    layer(randn(2, 5, 12))[0].square().sum().backward()
    for name, parameter in layer.named_parameters():
        if name != "attention.k_proj.bias":  # adds the same to all scores of a query: softmax does not see it
            assert parameter.grad.abs().max() > 1e-6, name
    assert layer.attention.k_proj.bias.grad.abs().max() < 1e-12


@every_norm
def test_meta_device_and_state_dict(norm):
    layer, x = make(norm), randn(2, 5, 12)
    other = SelfAttentionLayer(12, 3, norm=norm, dtype=torch.float64)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x)[0], layer(x)[0])
    assert other.to("meta")(x.to("meta"))[0].shape == (2, 5, 12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_half(dtype):
    layer, x = make(), randn(2, 5, 12)
    found = make().to(dtype)(x.to(dtype))[0]
    assert found.dtype == dtype
    assert_close(found.double(), layer(x)[0], atol=0.06, rtol=0)


@every_norm
def test_shapes_that_do_not_fit_are_named(norm):
    with pytest.raises(ValueError, match=r"query must be \(\.\.\., tokens, d_model=12\)"):
        SelfAttentionLayer(12, 3, norm=norm)(torch.zeros(2, 5, 8))
    with pytest.raises(TypeError, match="query must be a torch tensor, not tuple"):
        SelfAttentionLayer(12, 3, norm=norm)((torch.zeros(2, 5, 12), None))


def test_both_dropouts_have_the_rate_and_all_parts_the_device():
    layer = SelfAttentionLayer(12, 3, dropout=0.25, device="meta")
    assert layer.attention.dropout == layer.dropout.p == 0.25
    assert {p.device.type for p in layer.parameters()} == {"meta"}


def test_what_does_not_fit_is_said_in_words():
    with pytest.raises(ValueError, match="norm must be 'post' or 'pre', not 'middle'"):
        SelfAttentionLayer(12, 3, norm="middle")
    with pytest.raises(ValueError, match="num_heads=5 does not divide d_model=12"):
        SelfAttentionLayer(12, 5)
