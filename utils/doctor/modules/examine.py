"""Examining an attention module whose weights and names nobody here knows.

First its behaviour: chance, memory, writing into the input. Then the line-up: with every map the identity,
the module must equal per-head attention, and if it does not, some combination of known mistakes gives its
numbers. Then what identity weights cannot see: gradients, the number of weights, devices, masks.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from utils.doctor.call import Hangs, Trouble
from utils.doctor.modules import paths, wiring
from utils.doctor.modules.adapt import adapt, ask, probe
from utils.doctor.modules.case import Case, after, influence, line_up
from utils.doctor.modules.lineup import reference, same
from utils.doctor.modules.masks import examine_causal, examine_masks
from utils.doctor.modules.weights import duplicate, hidden_modules, randomise, walk
from utils.doctor.modules.words import CONVENTION_WORDS, words
from utils.doctor.report import CONVENTION, FAULT, NOT_SEPARABLE, Finding, Matrices, Report

SPECIES = "attention module"
# Parts that say themselves what they found right, for there may be nothing to examine
SILENT = ("masks", "causality", "weights returned")


def examine(
    module: nn.Module,
    name: str = "",
    d_model: int | None = None,
    num_heads: int | None = None,
    batch_first: bool | None = None,
) -> Report:
    """What is wrong with a module that does self- or cross-attention, in one or many heads.

    module       is not changed: copies are examined, in eval mode
    name         how the report calls it; its class's name if left out
    d_model      features of a token; found from its layers if left out
    num_heads    found from its attributes, or by trying, if left out
    batch_first  whether samples come before tokens: (B, n, d_model). Left out: as the module's attribute of
                 this name says; without one, yes

    Raises nothing: what the module does instead of answering stands in the report.
    """
    start = time.perf_counter()
    findings: list[Finding] = []
    tried: list[str] = []
    not_tried: list[str] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for a few tokens, more threads only wait for each other
    with torch.random.fork_rng(devices=[]):
        try:
            _examine(module, (d_model, num_heads, batch_first), findings, tried, not_tried)
        except Trouble as trouble:
            findings.append(_trouble(trouble))
        finally:
            torch.set_num_threads(threads)
    order = (FAULT, NOT_SEPARABLE, CONVENTION)
    findings.sort(key=lambda f: order.index(f.verdict))
    return Report(
        name or type(module).__name__,
        SPECIES,
        tuple(_once(findings)),
        tuple(tried),
        tuple(not_tried),
        time.perf_counter() - start,
    )


def _once(findings: list[Finding]) -> list[Finding]:
    """Each fault once, the first time that it was found."""
    return list({(f.kind, f.sentence if f.verdict != FAULT else ""): f for f in reversed(findings)}.values())[
        ::-1
    ]


def _trouble(trouble: Trouble) -> Finding:
    kind = "hangs" if isinstance(trouble, Hangs) else "does not run"
    told = re.sub(r"^(?=[A-Za-z_]\w*: )", "stops: ", str(trouble))  # an error's name is no verb
    return Finding(
        kind,
        FAULT if isinstance(trouble, Hangs) else NOT_SEPARABLE,
        f"No way was found to call it: it {told}.",
        "If it takes other inputs than (B, n, d_model), wrap it in a module that does; "
        "d_model= and num_heads= can be given.",
    )


def _examine(
    module: nn.Module,
    options: tuple[int | None, int | None, bool | None],
    findings: list[Finding],
    tried: list[str],
    not_tried: list[str],
) -> None:
    width, heads, batch_first = options
    patient = _copy(module)
    if cast := _cast(patient):
        not_tried.append(f"its own precision: a copy in float32 was examined, not in {cast}")
    style = adapt(patient, width, batch_first)
    behaviour = wiring.behaviour(patient, style, probe(style, 3))
    findings += behaviour
    remembers = any(f.kind == "earlier call matters" for f in behaviour)
    case = line_up(patient, style, heads, remembers)
    inputs = case.probe()
    not_tried += [f"{n}: it hides no tokens of the input" for n in style.foreign]
    parts: dict[str, Callable[[], _Outcome]] = {}
    if case.suspect is None:
        findings += _by_properties(case, inputs)
        not_tried.append("masks, for the computation without a mask was not recognised")
    else:
        findings += _from_suspect(case)
        tried.append(
            f"with all maps the identity and {case.frame.heads} head(s) it is one of the known forms"
        )
        if case.frame.heads == 1:
            not_tried.append("how heads are cut and joined, and which root scales: there is one head")
        parts["weights returned"] = lambda: _weights_returned(case, inputs)
        parts["masks"] = lambda: examine_masks(case)
        parts["causality"] = lambda: examine_causal(case)
        if case.suspect.inside.softmax == "keys":
            parts["large scores"] = lambda: (paths.overflow(case, inputs), [], [])
    written = any(f.kind == "input changed in place" for f in behaviour)
    parts["gradients"] = lambda: (_gradients(case, inputs, written), [], [])
    parts["chains of maps"] = lambda: (paths.chained(case, inputs), [], [])
    known = len(findings)
    _add(
        "one name for each map",
        lambda: (paths.several_names(patient, style, inputs), [], []),
        findings,
        tried,
        not_tried,
    )
    if len(findings) == known:  # else they are to be counted when there are as many as there are names
        parts["number of weights"] = lambda: (wiring.counted(case), [], [])
    parts["other devices"] = lambda: _told(wiring.registration(patient, style, inputs))
    parts["indivisible widths"] = lambda: _told(
        wiring.indivisible(module, case.frame.heads, case.frame.inner[0])
    )
    for name, part in parts.items():
        _add(name, part, findings, tried, not_tried)
    if not behaviour:
        tried.append("same answer twice, whatever came before, input left alone")


_Outcome = tuple[list[Finding], list[str], list[str]]


def _copy(module: nn.Module) -> nn.Module:
    """The patient in eval mode. Raises Trouble where it cannot be copied: the original stays untouched."""
    try:
        patient = duplicate(module).eval()
    except Exception as error:  # a lock, a file, a generator: anything may hang on a module
        raise Trouble(f"cannot be copied ({type(error).__name__}: {error})") from error
    for hidden in hidden_modules(patient):
        hidden.eval()
    return patient


def _cast(patient: nn.Module) -> str | None:
    """Turn numbers to float32, which the probes are in; returns what they were, None if nothing was done."""
    weights = [w.tensor for w in walk(patient) if w.tensor.is_floating_point()]
    other = sorted({str(t.dtype).split(".")[-1] for t in weights if t.dtype != torch.float32})
    if not other:
        return None
    for part in (patient, *hidden_modules(patient)):
        part.float()
    for sub in patient.modules():  # plain attributes, which float() does not reach
        for name, value in vars(sub).items():
            if isinstance(value, Tensor) and value.is_floating_point():
                setattr(sub, name, value.float())
    return " and ".join(other)


def _add(
    name: str,
    part: Callable[[], _Outcome],
    findings: list[Finding],
    tried: list[str],
    not_tried: list[str],
) -> None:
    """Run one part of the examination; strange code that makes it fail shall not spoil the others."""
    try:
        more, right, left = part()
    except (Trouble, RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        not_tried.append(f"{name}: {error}")
        return
    findings += more
    tried += right or ([name] if not more and not left and name not in SILENT else [])
    not_tried += left


def _told(outcome: tuple[list[Finding], str | None]) -> _Outcome:
    found, why = outcome
    return found, [], [why] if why else []


def _gradients(case: Case, inputs: tuple[Tensor, ...], written: bool) -> list[Finding]:
    """What wiring says, but for a backward pass that stops because of a fault already named."""
    found = wiring.gradients(case, inputs) or paths.input_gradient(case, inputs)
    return [f for f in found if not (written and f.kind == "backward stops")]


def _from_suspect(case: Case) -> list[Finding]:
    """The mistakes and conventions of the combination that gives the module's numbers."""
    found = []
    shown, evidence = _shown(case)
    for kind, sentence, cure in words(case):
        sentence = sentence if sentence.endswith(".") else sentence + "."
        found.append(Finding(kind, FAULT, sentence, cure, shown, evidence))
    for switch, value in vars(case.suspect.layout).items():
        if (switch, value) in CONVENTION_WORDS and value not in case.suspect.layout.deviations().values():
            found.append(Finding(f"{switch}: {value}", CONVENTION, CONVENTION_WORDS[switch, value]))
    if case.suspect.inside.always == "right":
        found.append(
            Finding("always causal", CONVENTION, "A causal mask is always on: no token hears a later one.")
        )
    if case.style.axes == "nbd":
        found.append(
            Finding(
                "sequence first",
                CONVENTION,
                "Inputs are (n, B, d_model): tokens come before samples.",
                "For (B, n, d_model) exchange axes 0 and 1, or use batch_first=True.",
            )
        )
    return found


def _shown(case: Case) -> tuple[str, tuple[Matrices, ...]]:
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
        f"{inputs[0].shape[0]} sample(s) of {inputs[0].shape[1]} tokens, all maps the identity: output "
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


def _weights_returned(case: Case, inputs: tuple[Tensor, ...]) -> _Outcome:
    answer = case.ask(inputs)
    if answer.weights is None or case.suspect.cost >= 0.9:
        return [], [], []
    wanted = reference(case.suspect, case.frame, *after(inputs, answer))[1]
    if case.frame.heads > 1 and same(answer.weights, wanted.mean(1)):
        averaged = Finding(
            "weights averaged over heads",
            CONVENTION,
            f"The weights that are returned are the mean of the {case.frame.heads} heads, not each "
            "head's own.",
            "With nn.MultiheadAttention: average_attn_weights=False.",
        )
        return [averaged], [], []
    return [], ["weights returned"], []


def _by_properties(case: Case, inputs: tuple[Tensor, ...]) -> list[Finding]:
    """For a module that no combination explains: what can be said without knowing how it works."""
    module = duplicate(case.module)
    randomise(module)
    found = []

    def output(x: tuple[Tensor, ...]) -> Tensor:
        with torch.no_grad():
            return ask(duplicate(module), case.style, *x).output

    base = output(inputs)
    if not base.isfinite().all():
        found.append(
            Finding(
                "not a number",
                FAULT,
                "The output holds NaN or infinity for an ordinary input.",
                "Look for a row of scores in which every key is hidden, for exp without subtracting the "
                "maximum, "
                "and for a division by 0.",
                f"random input of shape {tuple(inputs[0].shape)}",
            )
        )
    others = tuple(torch.cat([x[:1], x[1:] * 1.5 + 0.3]) for x in inputs)
    if base.shape[0] > 1 and not same(output(others)[:1].nan_to_num(), base[:1].nan_to_num()):
        found.append(
            Finding(
                "samples mixed",
                FAULT,
                "The first sample's output changes when the other samples do.",
                "Look at every view, reshape and transpose that touches the batch axis, and at softmax's "
                "axis.",
                "a batch, and the same with all samples but the first changed",
            )
        )
    later = tuple(torch.cat([x[:, :1] * 1.5 + 0.3, x[:, 1:]], 1) for x in inputs)
    if same(output(later)[:, 1:], base[:, 1:]) and not found:
        found.append(
            Finding(
                "attention has no effect",
                FAULT,
                "No token hears the first one: changing it leaves the outputs of all others as they are.",
                "See that the scores are (.., n, n), tokens by tokens, and that attention's result is used.",
                "a sequence, and the same with its first token changed",
            )
        )
    if not found:
        found.append(
            Finding(
                "not recognised",
                NOT_SEPARABLE,
                "No combination of up to two known mistakes gives the module's numbers: it has a part "
                "that the "
                "doctor does not know (rotary positions, normed queries, gates), or a mistake that is "
                "not in the list.",
                "Compare it with a plain attention step by step, starting at q, k and v.",
            )
        )
    return found
