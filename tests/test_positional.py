"""Positions: the formula's numbers at every length and width, and what the table gives."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from utils.positional import LearnedPositions, SinusoidalPositions, sinusoidal_positions


@given(st.integers(0, 12), st.integers(1, 9), st.sampled_from([2.0, 100.0, 10000.0]))
def test_every_entry_is_the_formulas(n, d_model, base):
    table = sinusoidal_positions(n, d_model, base, dtype=torch.float64)
    assert table.shape == (n, d_model)
    for pos in range(n):
        for j in range(d_model):
            angle = pos / base ** (2 * (j // 2) / d_model)
            wanted = math.cos(angle) if j % 2 else math.sin(angle)
            assert abs(float(table[pos, j]) - wanted) < 1e-12


def test_far_positions_are_exact_too():
    pos, d_model = 100_000, 64
    row = sinusoidal_positions(pos + 1, d_model)[pos]
    angles = [pos / 10000 ** (2 * i / d_model) for i in range(32)]
    assert_close(row[0::2], torch.tensor([math.sin(a) for a in angles]), atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_no_two_positions_share_a_row(dtype):
    table = sinusoidal_positions(5000, 64, dtype=dtype)
    assert table.dtype == dtype
    assert len(np.unique(table.float().numpy(), axis=0)) == 5000


def test_a_step_of_k_is_the_same_rotation_everywhere():
    table = sinusoidal_positions(200, 16, dtype=torch.float64)
    for i in range(8):
        angle = torch.tensor(3 / 10000 ** (2 * i / 16), dtype=torch.float64)
        turn = torch.stack(
            [torch.stack([angle.cos(), angle.sin()]), torch.stack([-angle.sin(), angle.cos()])]
        )
        assert_close(table[3:, 2 * i : 2 * i + 2], table[:-3, 2 * i : 2 * i + 2] @ turn.T, atol=1e-12, rtol=0)
    assert_close(table.square().sum(1), torch.full((200,), 8.0, dtype=torch.float64))


def test_the_module_adds_the_table_and_nothing_else():
    module, x = SinusoidalPositions(7, max_len=4), torch.randn(3, 4, 7)
    assert_close(module(x) - x, sinusoidal_positions(4, 7).expand(3, 4, 7), atol=1e-6, rtol=0)
    assert list(module.parameters()) == []
    assert module.state_dict() == {}


def test_the_table_grows_and_keeps_what_it_said():
    module, x = SinusoidalPositions(8, max_len=4), torch.zeros(1, 5001, 8)
    first = module(x[:, :4])
    long = module(x)
    assert torch.equal(long[:, :4], first)
    assert_close(long[0], sinusoidal_positions(5001, 8))
    assert torch.equal(module(x[:, :4]), first)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_answer_has_the_inputs_dtype(dtype):
    assert LearnedPositions(8, 4)(torch.zeros(1, 3, 8, dtype=dtype)).dtype == dtype
    assert SinusoidalPositions(8)(torch.zeros(1, 3, 8, dtype=dtype)).dtype == dtype
    cast = SinusoidalPositions(8, max_len=2).to(dtype)
    grown = cast(torch.zeros(1, 9, 8, dtype=dtype))
    assert_close(grown[0], sinusoidal_positions(9, 8, dtype=dtype))


def test_grows_with_its_own_base_and_in_large_steps():
    module = SinusoidalPositions(8, max_len=4, base=100.0)
    assert_close(module(torch.zeros(1, 5, 8))[0], sinusoidal_positions(5, 8, base=100.0))
    assert len(module.table) == 8  # twice as long, not one longer for each token


def test_is_exact_in_the_inputs_dtype():
    x = torch.zeros(1, 9, 8, dtype=torch.float64)
    assert torch.equal(SinusoidalPositions(8)(x)[0], sinusoidal_positions(9, 8, dtype=torch.float64))


def test_grows_on_the_device_where_it_is():
    module = SinusoidalPositions(8, max_len=2).to("meta")
    assert module(torch.empty(1, 9, 8, device="meta")).device.type == "meta"


def test_learned_positions_are_added_and_get_gradients():
    module, x = LearnedPositions(8, max_len=6), torch.randn(2, 4, 8)
    assert_close(module(x) - x, module.table[:4].expand(2, 4, 8), atol=1e-6, rtol=0)
    module(x).sum().backward()
    assert_close(module.table.grad, torch.tensor([[2.0]] * 4 + [[0.0]] * 2).expand(6, 8))
    other = LearnedPositions(8, max_len=6)
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(x), module(x))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: sinusoidal_positions(-1, 4), "n must not be negative, got -1"),
        (lambda: sinusoidal_positions(4, 0), "d_model must be at least 1, got 0"),
        (lambda: sinusoidal_positions(4.0, 8), "n must be a whole number, not 4.0"),
        (lambda: SinusoidalPositions(8, max_len=-1), "n must not be negative, got -1"),
        (lambda: sinusoidal_positions(4, 4, base=1), "base must be above 1 (10000 in the paper), not 1"),
        (lambda: sinusoidal_positions(4, 4, base=math.nan), "base must be above 1"),
        (
            lambda: SinusoidalPositions(8)(torch.zeros(5, 8)),
            "x must be (B, n, d_model=8), but has shape (5, 8); for one sequence write x[None]",
        ),
        (lambda: SinusoidalPositions(8)(torch.zeros(2, 3, 5, 8)), "but has shape (2, 3, 5, 8)"),
        (lambda: SinusoidalPositions(8)(torch.zeros(2, 5, 6)), "but has shape (2, 5, 6)"),
        (lambda: SinusoidalPositions(8)(torch.zeros(2, 5, 8).int()), "x has dtype int32"),
        (
            lambda: LearnedPositions(8, 4)(torch.zeros(2, 5, 8)),
            "x has n=5 tokens, but only 4 positions were learned",
        ),
        (lambda: LearnedPositions(0, 4), "d_model must be at least 1, got 0"),
        (lambda: LearnedPositions(4, -1), "max_len must not be negative, got -1"),
    ],
)
def test_what_does_not_fit_is_said_in_words(call, words):
    with pytest.raises((ValueError, TypeError)) as error:
        call()
    assert words in str(error.value)
