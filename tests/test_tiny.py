"""The two training tasks: right answers, the same run twice, the lesson they are for, and a stop button."""

import pytest
import torch
from torch import nn

from utils import tiny
from utils.layer import SelfAttentionLayer
from utils.multihead import MultiHeadAttention
from utils.tiny import BOTH_NEIGHBOURS, REVERSE, History, TinyModel, accuracy, train


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def model(task, layer, seed=0, positions=True):
    torch.manual_seed(seed)
    return TinyModel(task, layer(), 32, positions)


def test_the_answers_are_the_tasks():
    tokens = torch.tensor([[5, 1, 7, 2]])
    assert BOTH_NEIGHBOURS.solve(tokens).tolist() == [[[2, 1], [5, 7], [1, 2], [7, 5]]]
    assert REVERSE.solve(tokens).tolist() == [[[2], [7], [1], [5]]]
    for task in (BOTH_NEIGHBOURS, REVERSE):
        tokens, answers = task.batch(64, torch.Generator().manual_seed(0))
        assert tokens.shape == (64, task.n)
        assert answers.shape == (64, task.n, task.answers)
        assert set(tokens.flatten().tolist()) == set(range(task.vocabulary))
        assert task.batch(2, torch.Generator(), n=17)[0].shape == (2, 17)


def test_two_heads_learn_both_neighbours_and_one_head_cannot():
    scores = {}
    for heads in (1, 2):
        pupil = model(BOTH_NEIGHBOURS, lambda heads=heads: MultiHeadAttention(32, heads))
        train(pupil, BOTH_NEIGHBOURS, steps=200, seed=0)
        scores[heads] = accuracy(pupil, BOTH_NEIGHBOURS, seed=1)
    assert scores[1] < 0.25
    assert scores[2] > 0.99


def test_reversing_needs_positions():
    scores = {}
    for positions in (True, False):
        pupil = model(REVERSE, lambda: SelfAttentionLayer(32, 4), positions=positions)
        history = train(pupil, REVERSE, steps=150, seed=0)
        assert history.loss[-1] < history.loss[0]
        scores[positions] = accuracy(pupil, REVERSE, seed=1)
    assert scores[True] > 0.98
    assert scores[False] < 0.35


def test_the_same_seed_gives_the_same_run():
    runs = [
        train(model(REVERSE, lambda: MultiHeadAttention(32, 2)), REVERSE, steps=3, seed=5) for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert (
        train(model(REVERSE, lambda: MultiHeadAttention(32, 2)), REVERSE, steps=3, seed=6).loss
        != runs[0].loss
    )


@pytest.mark.parametrize("where", ["optimizer", "accuracy", "batch"])
@pytest.mark.parametrize("call", [1, 4])
def test_a_stopped_training_keeps_what_it_has_and_can_go_on(monkeypatch, capsys, where, call):
    pupil = model(REVERSE, lambda: MultiHeadAttention(32, 2))
    before = pupil.readout.weight.clone()
    owner, name = {
        "optimizer": (torch.optim.Adam, "step"),
        "accuracy": (tiny, "_all_right"),
        "batch": (tiny.Task, "batch"),
    }[where]
    original, calls = getattr(owner, name), []

    def stopped(*args, **kwargs):
        calls.append(1)
        if len(calls) == call:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, stopped)
    history = train(pupil, REVERSE, steps=10, seed=0)
    assert len(history.loss) == len(history.accuracy) == call - 1
    assert f"Interrupted after {call - 1} of 10 steps" in capsys.readouterr().out
    assert torch.equal(before, pupil.readout.weight) == (call == 1 and where != "accuracy")
    assert not pupil.training
    assert len(train(pupil, REVERSE, steps=2, seed=0).loss) == 2


def test_accuracy_is_measured_without_dropout_and_leaves_the_mode():
    pupil = model(REVERSE, lambda: SelfAttentionLayer(32, 4, dropout=0.5))
    assert pupil.training
    assert accuracy(pupil, REVERSE, seed=1) == accuracy(pupil, REVERSE, seed=1)
    assert pupil.training
    assert accuracy(pupil.eval(), REVERSE, seed=1, n=3) >= 0
    assert not pupil.training


def test_a_history_says_how_far_it_came():
    assert str(History(10)) == "0 of 10 steps"
    assert str(History(2, [1.0, 0.5], [0.1, 0.25])) == "2 of 2 steps: loss 0.500, accuracy 0.250"


def test_the_weights_come_out_on_request():
    pupil = model(REVERSE, lambda: SelfAttentionLayer(32, 4))
    tokens = torch.zeros(2, 10, dtype=torch.long)
    scores, weights = pupil(tokens, need_weights=True)
    assert scores.shape == (2, 10, 1, 10)
    assert weights.shape == (2, 4, 10, 10)
    assert pupil(tokens)[1] is None
    assert isinstance(
        model(REVERSE, lambda: MultiHeadAttention(32, 2), positions=False).positions, nn.Identity
    )
