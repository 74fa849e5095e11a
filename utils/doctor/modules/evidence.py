"""How a mistake shows: the smallest input that gives wrong numbers; and the weights returned."""

from __future__ import annotations

import torch
from torch import Tensor

from utils.doctor.call import Trouble
from utils.doctor.modules.case import Case, after, influence
from utils.doctor.modules.lineup import reference, same
from utils.doctor.modules.paths import values
from utils.doctor.report import CONVENTION, NOT_SEPARABLE, Finding, Matrices

Outcome = tuple[list[Finding], list[str], list[str]]  # findings, what was right, what was not examined
SIMPLE = "every layer's weights the identity matrix"


def shown(case: Case) -> tuple[str, tuple[Matrices, ...]]:
    """The smallest input that shows the mistakes, and how tokens influence each other there."""
    if not case.suspect.layout.deviations() and case.suspect.cost < 0.9:
        return "", ()
    for batch, tokens in ((1, 2), (1, 3), (2, 2), (2, 3), (case.batch, case.style.tokens)):
        if case.style.axes == "nd" and batch > 1:
            continue
        inputs = case.probe(tokens, batch)
        try:
            answer = case.ask(inputs)
            inputs, answer = after(inputs, answer), answer.output
            found, wanted = case.wanted(inputs, case.suspect), case.wanted(inputs)
        except (Trouble, RuntimeError):
            continue
        if not same(found, wanted) and same(answer, found):
            return _difference(case, inputs, answer, wanted)
    return "", ()


def _difference(
    case: Case, inputs: tuple[Tensor, ...], answer: Tensor, wanted: Tensor
) -> tuple[str, tuple[Matrices, ...]]:
    if answer.shape != wanted.shape:
        return f"output of shape {tuple(answer.shape)} where {tuple(wanted.shape)} should be", ()
    gaps = (answer - wanted).abs()
    gaps = gaps.nan_to_num(torch.inf)
    b, i, c = (int(index) for index in torch.unravel_index(gaps.argmax(), gaps.shape))
    text = (
        f"{inputs[0].shape[0]} sample(s) of {inputs[0].shape[1]} tokens, {SIMPLE}: output "
        f"[{b}, {i}, {c}] is {float(answer[b, i, c]):.3f} and should be {float(wanted[b, i, c]):.3f}"
    )
    if len({x.shape[-1] for x in inputs}) > 1:
        few = slice(0, 6)  # features; more do not fit on a line
        return text, (Matrices("output, first sample", answer[0, :, few].numpy(), wanted[0, :, few].numpy()),)
    return text, (
        Matrices(
            "influence of token j on token i",
            influence(lambda x: case.ask((x,) * 3).output, inputs[0]),
            influence(lambda x: case.wanted((x,) * 3), inputs[0]),
        ),
    )


def weights_returned(case: Case, inputs: tuple[Tensor, ...]) -> Outcome:
    """Whether the weights that come back are those that were used, or their mean over the heads."""
    answer = case.ask(inputs)
    if answer.weights is None or case.suspect.cost >= 0.9:
        return [], [], []
    wanted = reference(case.suspect, case.frame, *after(inputs, answer))[1]

    def alike(found: Tensor, other: Tensor) -> bool:
        return found.numel() == other.numel() and same(values(found)[None], values(other)[None], 1e-3)

    if alike(answer.weights, wanted):
        return [], ["weights returned"], []
    if alike(answer.weights, wanted.mean(1)):
        heads = case.frame.heads
        sentence = f"The weights that are returned are the mean of the {heads} heads, not each head's own."
        cure = "With nn.MultiheadAttention: average_attn_weights=False."
        return [Finding("weights averaged over heads", CONVENTION, sentence, cure)], [], []
    for other, what in (
        (answer.weights.softmax(-1), "are the scores before softmax"),
        (
            answer.weights / case.frame.heads,
            "are summed over the heads: their rows add up to the number of heads",
        ),
    ):
        if alike(other, wanted) or alike(other, wanted.mean(1)):
            sentence = (
                f"The weights that are returned are not those that are used: they {what}. "
                "Whether that is meant, no input can tell."
            )
            cure = "Return what multiplies the values: weights = scores.softmax(-1)."
            found = Finding("weights returned are not those used", NOT_SEPARABLE, sentence, cure)
            return [found], [], []
    return [], [], ["weights returned: they were not recognised"]
