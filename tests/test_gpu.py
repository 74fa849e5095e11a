"""On a GPU, where there is one: the same numbers as on the processor, and nothing left behind there."""

import pytest
import torch
from torch.testing import assert_close

from utils import heavy
from utils.attention import (
    causal_mask,
    combine_masks,
    entropy,
    padding_mask,
    scaled_dot_product_attention,
    softmax,
)
from utils.device import DeviceToggle, find_gpu
from utils.efficient import local_attention, sparse_attention, sparse_attention_fast, sparse_pairs
from utils.layer import SelfAttentionLayer
from utils.multihead import MultiHeadAttention
from utils.positional import LearnedPositions, SinusoidalPositions, sinusoidal_positions
from utils.tiny import BOTH_NEIGHBOURS, TinyModel, accuracy, train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")

NEAR = {torch.float64: 1e-12, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}
every_dtype = pytest.mark.parametrize("dtype", NEAR)


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def same(found, wanted, dtype=torch.float32):
    assert found.device.type == "cuda"
    assert found.dtype == dtype
    assert_close(found.cpu().double(), wanted.double(), atol=NEAR[dtype], rtol=0)


@every_dtype
@pytest.mark.parametrize("mask", ["none", "causal", "padding", "empty row", "float"])
def test_attention_gives_the_numbers_of_the_processor(dtype, mask):
    q, k, v = (randn(2, 3, 7, 16, seed=i) for i in range(3))
    allowed = torch.ones(7, 7, dtype=torch.bool)
    allowed[2] = False
    given = {
        "none": {},
        "causal": {"is_causal": True},
        "padding": {"attn_mask": padding_mask(torch.tensor([[7], [4]]), 7)},
        "empty row": {"attn_mask": allowed},
        "float": {"attn_mask": randn(7, 7, seed=5)},
    }[mask]
    wanted = scaled_dot_product_attention(q.double(), k.double(), v.double(), **given)
    moved = {name: value.cuda() if torch.is_tensor(value) else value for name, value in given.items()}
    found = scaled_dot_product_attention(*(t.to("cuda", dtype) for t in (q, k, v)), **moved)
    for ours, theirs in zip(found, wanted, strict=True):
        same(ours, theirs, dtype)
    same(entropy(found[1]), entropy(wanted[1]), dtype)
    same(softmax(q.to("cuda", dtype)), softmax(q.double()), dtype)


@every_dtype
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("case", ["plain", "causal", "padding", "both", "empty row"])
def test_the_layer_gives_the_numbers_of_the_processor(dtype, need_weights, case):
    torch.manual_seed(0)
    layer, x = SelfAttentionLayer(32, 4, dtype=torch.float64), randn(2, 9, 32, dtype=torch.float64)
    keep = padding_mask(torch.tensor([[9], [5]]), 9)
    allowed = torch.ones(9, 9, dtype=torch.bool)
    allowed[3] = False
    given = {
        "plain": {},
        "causal": {"is_causal": True},
        "padding": {"attn_mask": keep},
        "both": {"attn_mask": keep, "is_causal": True},
        "empty row": {"attn_mask": allowed},
    }[case]
    wanted, _ = layer(x, **given)
    layer.to("cuda", dtype)
    moved = {name: value.cuda() if torch.is_tensor(value) else value for name, value in given.items()}
    x = x.to("cuda", dtype).requires_grad_()
    found, _ = layer(x, **moved, need_weights=need_weights)
    same(found, wanted, dtype)
    found.float().square().sum().backward()
    assert x.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


def test_masks_are_made_where_they_are_asked_for():
    assert causal_mask(3, device="cuda").device.type == "cuda"
    lengths = torch.tensor([2, 3], device="cuda")
    assert padding_mask(lengths, 3).device.type == "cuda"
    assert combine_masks(padding_mask(lengths, 3), causal_mask(3, device="cuda")).device.type == "cuda"
    with pytest.raises(TypeError, match="attn_mask has device=cpu but query has device=cuda:0"):
        MultiHeadAttention(4, 2, device="cuda")(torch.ones(1, 3, 4, device="cuda"), attn_mask=causal_mask(3))


def test_positions_move_and_grow_there():
    module = SinusoidalPositions(8, max_len=2).cuda()
    same(module(torch.zeros(1, 9, 8, device="cuda"))[0], sinusoidal_positions(9, 8))
    same(sinusoidal_positions(9, 8, device="cuda"), sinusoidal_positions(9, 8))
    learned = LearnedPositions(8, 4).cuda()
    same(learned(torch.zeros(1, 4, 8, device="cuda"))[0], learned.table.detach().cpu())


def test_training_runs_where_the_model_is():
    torch.manual_seed(0)
    model = TinyModel(BOTH_NEIGHBOURS, MultiHeadAttention(32, 2), 32).cuda()
    train(model, BOTH_NEIGHBOURS, steps=200, seed=0)
    assert accuracy(model, BOTH_NEIGHBOURS, seed=1) > 0.99


@every_dtype
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("window", [0, 3, 40])
def test_local_attention_gives_the_numbers_of_the_processor(dtype, is_causal, window):
    q, k, v = (randn(2, 3, 70, 16, dtype=torch.float64, seed=i) for i in range(3))
    wanted = local_attention(q, k, v, window, is_causal)
    moved = [t.to("cuda", dtype).requires_grad_() for t in (q, k, v)]
    found = local_attention(*moved, window, is_causal)
    same(found, wanted, dtype)
    assert all(g.isfinite().all() for g in torch.autograd.grad(found.float().square().sum(), moved))


@every_dtype
@pytest.mark.parametrize("form", [sparse_attention, sparse_attention_fast])
def test_sparse_attention_gives_the_numbers_of_the_processor(dtype, form):
    pairs = sparse_pairs(40, window=2, global_tokens=1, random=2)
    pairs = pairs[pairs[:, 0] != 7]  # an empty row
    q, k, v = (randn(2, 40, 16, dtype=torch.float64, seed=i).requires_grad_() for i in range(3))
    wanted = sparse_attention(q, k, v, pairs)
    wanted_grads = torch.autograd.grad(wanted.square().sum(), (q, k, v))
    moved = [t.detach().to("cuda", dtype).requires_grad_() for t in (q, k, v)]
    found = form(*moved, pairs.cuda())
    same(found, wanted, dtype)
    for grad, their in zip(
        torch.autograd.grad(found.float().square().sum(), moved), wanted_grads, strict=True
    ):
        assert_close(
            grad.cpu().double(), their, atol=10 * NEAR[dtype], rtol=0.1 if dtype.itemsize == 2 else 1e-4
        )


def test_the_toggle_finds_the_gpu(monkeypatch):
    device, name = find_gpu()
    assert device.type == "cuda"
    monkeypatch.delenv("ATTENTION_DEVICE", raising=False)
    toggle = DeviceToggle()
    assert toggle.chosen.type == "cpu"
    toggle.buttons.value = "GPU"
    assert toggle.chosen.type == "cuda"
    assert name in toggle.message


def test_a_sweep_measures_memory_and_survives_running_out_of_it():
    gpu = torch.device("cuda")

    def textbook(q, k, v):
        return torch.softmax(q @ k.mT, dim=-1) @ v

    def greedy(q, k, v):
        return torch.empty(
            2 * torch.cuda.get_device_properties(gpu).total_memory, device=gpu, dtype=torch.uint8
        )

    ways = {
        "textbook": heavy.Way(textbook, heavy.table_bytes),
        "greedy": heavy.Way(greedy, heavy.linear_bytes),
    }
    outcomes = heavy.sweep(ways, gpu, lengths=(512, 1024))
    done = [o for o in outcomes if o.name == "textbook"]
    assert [o.n for o in done] == [512, 1024]
    assert all(o.seconds > 0 and 0.5 * o.predicted <= o.peak <= 3 * o.predicted for o in done)
    assert [o.note for o in outcomes if o.name == "greedy"] == ["   out of memory: caught, and given back"]
    assert heavy.attempt("textbook", ways["textbook"], 512, heavy.sizes(gpu), gpu).seconds > 0
