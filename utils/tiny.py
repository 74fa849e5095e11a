"""Two small tasks that one attention layer can learn in a second, and the loop that trains it.

They are small enough to look into: each can be solved by hand, so what was learned can be compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm.auto import tqdm

from utils.positional import SinusoidalPositions


@dataclass(frozen=True)
class Task:
    """Sequences of random tokens, and the answers that each token asks for.

    vocabulary  how many different tokens there are: 0 ... vocabulary - 1
    n           length of the sequences
    answers     how many answers a token asks for
    solve       tokens (B, n) -> answers (B, n, answers), each a token
    """

    vocabulary: int
    n: int
    answers: int
    solve: Callable[[Tensor], Tensor]

    def batch(self, size: int, generator: torch.Generator, n: int | None = None) -> tuple[Tensor, Tensor]:
        """Random tokens (size, n) and their answers (size, n, answers)."""
        tokens = torch.randint(self.vocabulary, (size, self.n if n is None else n), generator=generator)
        return tokens, self.solve(tokens)


def _neighbours(tokens: Tensor) -> Tensor:
    return torch.stack([tokens.roll(1, -1), tokens.roll(-1, -1)], -1)


def _reversed(tokens: Tensor) -> Tensor:
    return tokens.flip(-1)[..., None]


# Which token stands before me, and which behind? (The sequence is a ring.)
BOTH_NEIGHBOURS = Task(vocabulary=8, n=12, answers=2, solve=_neighbours)
# Which token stands in my place when the sequence is read from its end?
REVERSE = Task(vocabulary=10, n=10, answers=1, solve=_reversed)


class TinyModel(nn.Module):
    """Tokens -> vectors -> (plus positions) -> one attention layer -> a guess for each answer.

    task       what it is for: fixes the vocabulary and the number of answers
    layer      MultiHeadAttention or SelfAttentionLayer, of width d_model
    d_model    features of a token
    positions  whether the sinusoidal table is added to the vectors
    """

    def __init__(self, task: Task, layer: nn.Module, d_model: int, positions: bool = True) -> None:
        super().__init__()
        self.answers = task.answers
        self.embedding = nn.Embedding(task.vocabulary, d_model)
        self.positions = SinusoidalPositions(d_model) if positions else nn.Identity()
        self.layer = layer
        self.readout = nn.Linear(d_model, task.answers * task.vocabulary)

    def forward(self, tokens: Tensor, need_weights: bool = False) -> tuple[Tensor, Tensor | None]:
        """Tokens (B, n) -> scores for each answer (B, n, answers, vocabulary), and weights or None."""
        x = self.positions(self.embedding(tokens))  # (B, n, d_model)
        found, weights = self.layer(x, need_weights=need_weights)
        return self.readout(found).unflatten(-1, (self.answers, -1)), weights


@dataclass
class History:
    """What happened in training, step by step.

    steps     how many were wanted
    loss      mean cross-entropy of each step that was done, in nats
    accuracy  share of the step's tokens with every answer right
    """

    steps: int
    loss: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)

    def add(self, loss: float, accuracy: float) -> None:
        """One more step, seen by both lists or, if it is interrupted here, by the accuracy alone."""
        self.accuracy.append(accuracy)
        self.loss.append(loss)

    def __str__(self) -> str:
        done = len(self.loss)
        last = f": loss {self.loss[-1]:.3f}, accuracy {self.accuracy[done - 1]:.3f}" if done else ""
        return f"{done} of {self.steps} steps{last}"


def train(
    model: nn.Module, task: Task, steps: int, seed: int, batch: int = 64, learning_rate: float = 0.01
) -> History:
    """Train with Adam on fresh random sequences, where the model is, with a progress bar.

    The seed fixes the sequences; what the model draws (its start, dropout) comes from torch.manual_seed.
    Interrupting (the stop button) ends the training early: the model keeps what it has learned so far,
    and the history tells how far it came. The model is left in eval mode.
    """
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    optimizer = torch.optim.Adam(model.parameters(), learning_rate)
    history = History(steps)
    model.train()
    try:
        for _ in tqdm(range(steps), leave=False, disable="TQDM_DISABLE" in os.environ):
            tokens, answers = (t.to(device) for t in task.batch(batch, generator))
            scores, _ = model(tokens)
            loss = F.cross_entropy(scores.flatten(0, -2), answers.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            history.add(loss.item(), _all_right(scores, answers))
    except KeyboardInterrupt:
        print(f"Interrupted after {history}")
    finally:
        model.eval()
    return history


@torch.no_grad()
def accuracy(model: nn.Module, task: Task, seed: int, n: int | None = None, size: int = 500) -> float:
    """Share of tokens with every answer right, on fresh sequences of length n (default: the task's).

    Measured in eval mode, without dropout; the model's mode stays as it was.
    """
    device = next(model.parameters()).device
    tokens, answers = (t.to(device) for t in task.batch(size, torch.Generator().manual_seed(seed), n))
    mode = model.training
    try:
        return _all_right(model.eval()(tokens)[0], answers)
    finally:
        model.train(mode)


def _all_right(scores: Tensor, answers: Tensor) -> float:
    return (scores.argmax(-1) == answers).all(-1).float().mean().item()
