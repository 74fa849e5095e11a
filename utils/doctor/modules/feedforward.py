"""The feed-forward network behind attention: its nonlinearity, and the residual connection around it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from utils.doctor.call import Trouble
from utils.doctor.modules.adapt import ask
from utils.doctor.modules.case import Case
from utils.doctor.modules.lineup import same
from utils.doctor.modules.paths import Recorder, place, values
from utils.doctor.modules.weights import duplicate, feed_forward, walk
from utils.doctor.report import FAULT, NOT_SEPARABLE, Finding

SHOWN = "what goes into each layer of the feed-forward network and what comes out"

SHOWN_SILENT = "the block with a feed-forward network that returns 0: what attention found should be left"


@dataclass(frozen=True)
class Passage:
    """What was seen of a feed-forward network during one call.

    given  what went in        hidden  what its first layer(s) made of it
    last   what its last layer was given
    """

    given: Tensor
    hidden: tuple[Tensor, ...]
    last: Tensor


class UpToFeedForward(nn.Module):
    """A block that stops where its feed-forward network begins, and returns what goes into that."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.passage: Passage | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """What the feed-forward network is given."""
        weights = walk(self.block)
        apart = feed_forward(weights)
        record = Recorder({place(w.tensor): w.name for w in weights if w.name in apart})
        with record:
            self.block(*args, **kwargs)
        if sorted(name for name, _, _ in record.steps) != sorted(apart) or len(apart) < 2:
            raise Trouble("has no feed-forward network that works once in a call")
        *first, last = record.steps
        self.passage = Passage(first[0][1], tuple(step[2] for step in first), last[1])
        return self.passage.given


def up_to(case: Case) -> Case | None:
    """The case of the block without its feed-forward network, if it has one."""
    if len(feed_forward(walk(case.module))) < 2:
        return None
    return replace(case, module=UpToFeedForward(case.module), suspect=None, copies={})


def residual(case: Case, inputs: tuple[Tensor, ...]) -> list[Finding]:
    """Whether what attention found goes around the feed-forward network, which returns 0 for simple weights.

    Then the block returns what attention found; if it returns the input or the same for all, that is lost.
    """
    before = up_to(case)
    if before is None:
        return []
    try:
        given, found = before.ask(inputs).output, case.ask(inputs).output
        other = before.ask(tuple(torch.cat([x[:, :1].flip(-1), x[:, 1:]], 1) for x in inputs)).output
    except (Trouble, RuntimeError):
        return []
    x = inputs[0]
    normed = [case.frame.norm(x).detach()] if case.frame.norm else []
    if same(given[:, 1:], other[:, 1:]):
        return []  # it stands beside attention, not behind it
    if any(same(found, seen) for seen in (x, *normed)):
        where = (
            "the block's input is added to what the feed-forward network returns, not what attention found"
        )
        kind = "second residual from the input"
    elif same(found, found[:1, :1].expand_as(found), 1e-3):
        kind, where = "residual missing around feed-forward", "nothing is added to what the network returns"
    else:
        return []
    verdict = FAULT if normed else NOT_SEPARABLE  # without a norm it may be no block of a transformer
    cure = "Keep the first sum and add that: x = x + attention(norm1(x)); x = x + feed_forward(norm2(x))."
    return [Finding(kind, verdict, f"Around the feed-forward network {where}.", cure, SHOWN_SILENT)]


def no_residual(case: Case) -> list[Finding]:
    """Whether a block with a feed-forward network lacks the residual connection around attention."""
    if case.suspect.layout.outer not in ("none", "norm first", "norm last") or up_to(case) is None:
        return []
    sentence = "What attention finds takes the place of the input; in a block it is added to it."
    cure = "Add the input: x = x + attention(norm(x))."
    return [Finding("residual missing around attention", FAULT, sentence, cure, SHOWN_SILENT)]


def nonlinearity(case: Case, inputs: tuple[Tensor, ...]) -> tuple[list[Finding], str | None]:
    """Whether something happens between the two layers. Also returns why it could not be told."""
    before = up_to(case)
    if before is None:
        return [], None
    module = duplicate(before.module)
    case.fill(module.block, "random")
    try:
        with torch.no_grad():
            ask(module, case.style, *inputs)
    except Trouble:
        return [], "the feed-forward network: it was not seen at work"
    seen = module.passage
    if seen is None or not any(
        seen.last.shape == h.shape and torch.equal(values(seen.last), values(h)) for h in seen.hidden
    ):
        return [], None
    sentence = (
        "The second layer of the feed-forward network is given what the first returns, as it is: two linear "
        "maps in a row are no more than one."
    )
    cure = "Put a nonlinearity between them: second(F.relu(first(x))), or F.gelu."
    return [Finding("feed-forward without nonlinearity", FAULT, sentence, cure, SHOWN)], None
