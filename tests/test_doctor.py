"""The doctor's door: what kind of thing it is given, in Python and in a terminal."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.doctor_patients import make
from tests.test_doctor_function import Module, hidden_where_true, in_numpy, scaled_first
from utils import attention, efficient
from utils.doctor import EXAMINERS, diagnose, species
from utils.layer import SelfAttentionLayer
from utils.multihead import MultiHeadAttention
from utils.positional import LearnedPositions, SinusoidalPositions, sinusoidal_positions

ROOT = Path(__file__).resolve().parent.parent


def banded(q, k, v, window):
    return efficient.local_attention(q, k, v, window)


def triangle(n):
    return torch.ones(n, n, dtype=torch.bool).tril()


def table(seq_len, d_model):
    return sinusoidal_positions(seq_len, d_model)


THINGS = [
    (F.scaled_dot_product_attention, "attention"),
    (attention.scaled_dot_product_attention, "attention"),
    (scaled_first, "attention"),
    (in_numpy, "attention"),
    (hidden_where_true, "attention"),
    (make(), "attention"),
    (Module(), "attention"),
    (MultiHeadAttention(12, 3), "module"),
    (SelfAttentionLayer(12, 3), "module"),
    (SelfAttentionLayer(12, 3, norm="pre"), "module"),
    (nn.MultiheadAttention(12, 3), "module"),
    (nn.MultiheadAttention(12, 3, batch_first=True), "module"),
    (SinusoidalPositions(12), "positions"),
    (LearnedPositions(12, 64), "positions"),
    (sinusoidal_positions, "positions"),
    (table, "positions"),
    (sinusoidal_positions(20, 16), "positions"),
    (sinusoidal_positions(20, 16).numpy(), "positions"),
    (efficient.local_attention, "local"),
    (banded, "local"),
    (attention.causal_mask, "mask"),
    (attention.padding_mask, "mask"),
    (triangle, "mask"),
    (nn.Transformer.generate_square_subsequent_mask, "mask"),
]


@pytest.mark.parametrize(("thing", "kind"), THINGS)
def test_the_courses_and_pytorchs_own_are_told_apart_and_not_blamed(thing, kind):
    assert species(thing) == kind
    report = diagnose(thing)
    assert report.faults == (), str(report)
    assert report.seconds < 10


def jadore(n_position, d_hid, padding_idx=None):
    return sinusoidal_positions(n_position, d_hid)


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda T, C: sinusoidal_positions(T, C), "positions"),
        (lambda num_tokens, features: sinusoidal_positions(num_tokens, features), "positions"),
        (jadore, "positions"),
        (lambda q, k: (q, k), "positions"),
        (lambda n_heads, seq_len: torch.rand(n_heads, seq_len, seq_len), "mask"),
        (lambda batch, length: torch.ones(batch, 1, length, length), "mask"),
        (lambda data: (data != 0)[:, None], "mask"),
        (lambda h_q, h_k, h_v, padding_mask=None: h_v, "attention"),
        (lambda q, k, v, d_k, mask=None: v, "attention"),
        (lambda q, k, v, temperature: scaled_first(q / temperature, k, v), "attention"),
        (lambda q, k, v, valid: scaled_first(q, k[..., :valid, :], v[..., :valid, :]), "attention"),
        (lambda q, k, v, context=None, block_size=2: scaled_first(q, k, v), "attention"),
        (lambda q, k, v, reach: efficient.local_attention(q, k, v, reach), "local"),
    ],
)
def test_the_kind_is_told_by_what_comes_back(function, kind):
    assert species(function) == kind


def test_the_headline_says_what_was_not_examined():
    assert "could not be judged" in diagnose(lambda n: torch.rand(n, n)).verdict
    assert "could not be examined" in diagnose(nn.LayerNorm(16), "positions").verdict
    second = diagnose(lambda q, k, v: (scaled_first(q, k, v), scaled_first(q, k, v) ** 2))
    assert "nothing wrong found in what could be examined" in second.verdict
    wrap = diagnose(lambda config: config.n, "mask")
    assert "f(n), f(lengths, n) or f(ids) -> mask" in str(wrap) and "kind=" in str(wrap)


def test_the_kind_can_be_told_and_a_wrong_one_is_named():
    assert diagnose(make(scale="none"), kind="attention").kinds == ("scale missing",)
    with pytest.raises(ValueError, match=r"kind must be one of attention, .* not 'x'"):
        diagnose(make(), kind="x")
    with pytest.raises(TypeError, match=r"MultiHeadAttention is a class: make one first"):
        diagnose(MultiHeadAttention)
    with pytest.raises(TypeError, match="list can be neither called nor read as a table"):
        diagnose([1, 2])


def test_a_patient_is_left_as_it_was():
    torch.manual_seed(5)
    module = nn.MultiheadAttention(12, 3, dropout=0.1)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.get_rng_state()
    dropout = F.dropout
    diagnose(module)
    diagnose(make(dropout=True))
    diagnose(bare := Module())
    assert module.training
    assert bare.training
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert F.dropout is dropout


def test_a_failure_of_the_doctor_is_not_taken_for_one_of_the_patient(monkeypatch):
    def fails(*args, **kwargs):
        raise RuntimeError("no idea")

    monkeypatch.setitem(EXAMINERS, "attention", fails)
    report = diagnose(make())
    assert report.faults == ()
    assert "could not be judged. The doctor himself failed (RuntimeError: no idea)" in report.verdict


def run(*arguments):
    command = [sys.executable, "-m", "utils.doctor", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import torch\n"
        "def right(q, k, v):\n    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v\n"
        "def wrong(q, k, v):\n    return torch.softmax(q @ k.mT, -1) @ v\n"
        "class Layer(torch.nn.Module):\n"
        "    def __init__(self, d_model, num_heads=2):\n"
        "        super().__init__()\n"
        "        self.inner = torch.nn.MultiheadAttention(d_model, num_heads, batch_first=True)\n"
        "    def forward(self, x):\n        return self.inner(x, x, x)[0]\n"
    )
    return path


def test_in_a_terminal_it_prints_the_report_and_says_by_its_status_what_it_found(file):
    found = run(f"{file}:wrong")
    assert found.returncode == 1, found.stderr
    assert "FAULT  scale missing" in found.stdout
    assert "To change: Divide the scores by" in found.stdout
    assert run(f"{file}:right").returncode == 0
    layer = run(f"{file}:Layer", "--make", "12, num_heads=3")
    assert layer.returncode == 0, layer.stdout
    assert "no fault found" in layer.stdout


def test_in_a_terminal_it_says_what_is_missing(file):
    assert "there is no other in it; there are" in run(f"{file}:other").stdout
    assert run(f"{file}:other").returncode == 2
    assert "is not path/to/file.py:name" in run("nowhere.py:f").stderr


def test_a_report_is_shown_in_a_notebook_and_read_in_a_terminal():
    bundle = diagnose(make(softmax="queries"))._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    assert "softmax over queries" in bundle["text/plain"]
    assert np.isfinite(diagnose(make()).seconds)
