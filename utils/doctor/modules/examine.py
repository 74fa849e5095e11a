"""Examining an attention module whose weights and names nobody here knows.

First its behaviour: chance, memory, writing into the input. Then the line-up: with simple weights the module
must equal per-head attention, and if it does not, some combination of known mistakes gives its numbers. Then
what simple weights cannot see: gradients, the number of weights, devices, masks. Of a module that is not
recognised, the parts are examined.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from utils.doctor.call import Hangs, Trouble
from utils.doctor.modules import feedforward, paths, wiring
from utils.doctor.modules.adapt import CONTEXT, OneSize, Style, adapt, ask, own_mha, probe
from utils.doctor.modules.case import Case, first_case, line_up
from utils.doctor.modules.evidence import Outcome, shown, weights_returned
from utils.doctor.modules.lineup import same
from utils.doctor.modules.masks import examine_causal, examine_masks
from utils.doctor.modules.properties import (
    averaged,
    by_properties,
    idle,
    norm_axis,
    not_recognised,
    second_input,
    skip_of,
)
from utils.doctor.modules.weights import FUSED, cast, duplicate, hidden_modules, maps, randomise, walk
from utils.doctor.modules.words import CONVENTION_WORDS, words
from utils.doctor.report import CONVENTION, FAULT, NOT_SEPARABLE, Finding, Report

SPECIES = "attention module"
# Parts that say themselves what they found right, for there may be nothing to examine
SILENT = ("masks", "causality", "weights returned")
SECONDS = 1.7  # for the line-up: what is not recognised by then mostly never is
ALL_SECONDS = 2.7  # when no further part inside is begun
# Said of the whole where a mistake inside is named that has this effect
EFFECTS = ("samples mixed", "attention has no effect", "not a number")


@dataclass
class Notes:
    """What was found so far, what was right, and what was not examined."""

    findings: list[Finding] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)
    not_tried: list[str] = field(default_factory=list)

    def add(self, name: str, part: Callable[[], Outcome]) -> None:
        """Run one part of the examination; strange code that makes it fail shall not spoil the others."""
        try:
            more, right, left = part()
        except (Trouble, RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
            self.not_tried.append(f"{name}: {error}")
            return
        self.findings += more
        self.tried += right or ([name] if not more and not left and name not in SILENT else [])
        self.not_tried += left

    def has_fault(self) -> bool:
        """Whether something wrong was found."""
        return any(f.verdict == FAULT for f in self.findings)


@dataclass(frozen=True)
class Options:
    """What the caller said of the module; None where it was left out."""

    d_model: int | None = None
    num_heads: int | None = None
    batch_first: bool | None = None
    build: Callable[[int, int], nn.Module] | None = None


def examine(
    module: nn.Module,
    name: str = "",
    d_model: int | None = None,
    num_heads: int | None = None,
    batch_first: bool | None = None,
    build: Callable[[int, int], nn.Module] | None = None,
) -> Report:
    """What is wrong with a module that does self- or cross-attention, in one or many heads.

    module       is not changed: copies are examined, in eval mode
    name         how the report calls it; its class's name if left out
    d_model      features of a token; found from its layers if left out
    num_heads    found from its attributes, or by trying, if left out
    batch_first  whether samples come before tokens: (B, n, d_model). Left out: as the module's attribute of
                 this name says; without one, yes
    build        makes such a module from d_model and num_heads

    Raises nothing: what the module does instead of answering stands in the report.
    """
    start = time.perf_counter()
    notes = Notes()
    options = Options(d_model, num_heads, batch_first, build)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for a few tokens, more threads only wait for each other
    with torch.random.fork_rng(devices=[]):
        try:
            _examine(module, options, notes, time.process_time())
        except Trouble as trouble:
            notes.findings.append(_trouble(trouble))
        finally:
            torch.set_num_threads(threads)
    order = (FAULT, NOT_SEPARABLE, CONVENTION)
    found = sorted(_once(notes.findings), key=lambda f: order.index(f.verdict))
    said = (tuple(found), tuple(dict.fromkeys(notes.tried)), tuple(dict.fromkeys(notes.not_tried)))
    return Report(name or type(module).__name__, SPECIES, *said, time.perf_counter() - start)


def _once(findings: list[Finding]) -> list[Finding]:
    """Each fault once, the first time that it was found."""
    keyed = {(f.kind, f.sentence if f.verdict != FAULT else ""): f for f in reversed(findings)}
    return list(keyed.values())[::-1]


def _trouble(trouble: Trouble) -> Finding:
    if isinstance(trouble, OneSize):
        cure = "Take the sizes from the input: B, n, d = x.shape."
        return Finding("batch size fixed", FAULT, f"It {trouble}.", cure, "batches of 1, 2, 3 and 4 samples")
    kind = "hangs" if isinstance(trouble, Hangs) else "does not run"
    told = re.sub(r"^(?=[A-Za-z_]\w*: )", "stops: ", str(trouble))  # an error's name is no verb
    sentence = f"No way was found to call it: it {told}."
    cure = (
        "If it takes other inputs than (B, n, d_model), wrap it in a module that does; "
        "d_model= and num_heads= can be given."
    )
    return Finding(kind, FAULT if isinstance(trouble, Hangs) else NOT_SEPARABLE, sentence, cure)


def _examine(module: nn.Module, options: Options, notes: Notes, start: float) -> None:
    patient = _copy(module)
    if was := _cast(patient):
        notes.not_tried.append(f"its own precision: a copy in float32 was examined, not in {was}")
    style = _tokens_first(patient, adapt(patient, options.d_model, options.batch_first), options, notes)
    if style.tokens not in (4, 5, 6):
        sentence = (
            f"It runs with {style.tokens} tokens and stops with 5. Whether that is meant, no input can tell."
        )
        notes.findings.append(
            Finding("length fixed", NOT_SEPARABLE, sentence, "Cut tables and masks to n rows.")
        )
    if len(style.roles) == 2 and not style.rectangular and re.match(CONTEXT, style.roles[1].lower()):
        sentence = f"It stops where {style.roles[1]} has another number of tokens: are queries made of it?"
        cure = f"Make queries of {style.roles[0]}, keys and values of {style.roles[1]}."
        notes.findings.append(Finding("same lengths only", NOT_SEPARABLE, sentence, cure))
    behaviour = wiring.behaviour(patient, style, probe(style, 3))
    notes.findings += behaviour
    remembers = any(f.kind == "earlier call matters" for f in behaviour)
    case = first_case(patient, style, options.num_heads, remembers)
    lost = feedforward.residual(case, case.probe())
    if not lost:
        written = any(f.kind == "input changed in place" for f in behaviour)
        case = _lined_up(case, options, written, start + SECONDS)
    notes.findings += lost
    notes.not_tried += [f"{n}: it hides no tokens of the input" for n in style.foreign]
    if case.suspect is None:
        _unrecognised(case, options, notes, start)
    else:
        _recognised(case, notes)
    _wiring(module, case, options, notes)
    if not behaviour:
        notes.tried.append("same answer twice, whatever came before, input left alone")


def _lined_up(case: Case, options: Options, written: bool, deadline: float) -> Case:
    """The case with its suspect. What writes into its input may compute with what was there before."""
    if written:
        style = replace(case.style, keeps=True)
        kept = line_up(case.module, style, options.num_heads, case.remembers, deadline, limit=0.9)
        if kept.suspect is not None:
            return kept
    limit = 0.9 if _several(case.module) else math.inf  # no mistake makes one attention of two
    return line_up(case.module, case.style, options.num_heads, case.remembers, deadline, limit)


def _several(module: nn.Module) -> bool:
    """Whether there are two whole attentions inside, side by side; heads are none, having no fourth layer."""
    whole: list[str] = []
    for path, sub in module.named_modules():
        inside = any(path.startswith(f"{other}.") for other in whole)
        if path and not inside and _may_attend(sub, 4):
            whole.append(path)
    return len(whole) > 1


def _tokens_first(patient: nn.Module, style: Style, options: Options, notes: Notes) -> Style:
    """The style with tokens before samples where only PyTorch's own layer asks for that, and a word of it."""
    turned = replace(style, axes="nbd")
    if style.axes != "bnd" or options.batch_first is not None or not own_mha(patient):
        return style
    try:
        mixed = [_mixes_samples(patient, s) for s in (style, turned)]
    except Trouble:
        return style
    if mixed != [True, False]:
        return style
    sentence = (
        "nn.MultiheadAttention attends over the first axis here: right if inputs are (n, B, d_model), wrong "
        "if yours are (B, n, d_model)."
    )
    cure = "For (B, n, d_model) pass batch_first=True to it; or say diagnose(.., batch_first=False)."
    notes.findings.append(Finding("tokens or samples first", NOT_SEPARABLE, sentence, cure))
    return turned


def _mixes_samples(patient: nn.Module, style: Style) -> bool:
    module = duplicate(patient)
    randomise(module)
    inputs = probe(style, 3)
    others = {id(x): torch.cat([x[:1], x[1:].flip(-1)]) for x in inputs}
    with torch.no_grad():
        one, two = (
            ask(duplicate(module), style, *x).output for x in (inputs, tuple(others[id(x)] for x in inputs))
        )
    return not same(one[:1], two[:1])


def _recognised(case: Case, notes: Notes) -> None:
    """Findings of a module whose numbers are known, and what can be examined for that reason."""
    inputs = case.probe()
    notes.findings += _from_suspect(case)
    notes.tried.append(
        f"the computation with {case.frame.heads} head(s): with simple weights it gives a known form's "
        "numbers"
    )
    if case.frame.heads == 1:
        notes.not_tried.append("how heads are cut and joined, and which root scales: there is one head")
    notes.add("weights returned", lambda: weights_returned(case, inputs))
    notes.add("every head's own part", lambda: (averaged(case, inputs), [], []))
    notes.add("the residual connection", lambda: (skip_of(case, inputs), [], []))
    notes.add("masks", lambda: examine_masks(case))
    notes.add("causality", lambda: examine_causal(case))
    if not case.style.itself:
        notes.add("both inputs", lambda: (second_input(case, inputs), [], []))
    if case.suspect.inside.softmax == "keys":
        notes.add("large scores", lambda: (paths.overflow(case, inputs), [], []))


def _unrecognised(case: Case, options: Options, notes: Notes, start: float) -> None:
    """What can be said of the whole without knowing its numbers, and what its parts do."""
    whole = Notes()
    whole.add("behaviour", lambda: by_properties(case, case.probe()))
    inside = _inside(case, options, start)
    for path, part in inside:
        said = f"In {path}: "
        notes.findings += [replace(f, sentence=said + f.sentence) for f in part.findings]
        notes.tried += [f"{said}{right}" for right in part.tried]
        notes.not_tried += [f"{said}{left}" for left in part.not_tried]
    if not (notes.has_fault() and (inside or whole.findings)):
        notes.findings += whole.findings
    elif not inside:
        notes.findings += [f for f in whole.findings if f.kind not in EFFECTS]
    notes.tried += whole.tried
    if not inside:
        if not notes.has_fault():
            notes.findings.append(not_recognised(whole.tried))
        notes.not_tried.append("masks, for the computation without a mask was not recognised")
    elif not notes.has_fault():
        names = " and ".join(path for path, _ in inside)
        sentence = f"What stands around {names} was not recognised."
        notes.findings.append(Finding("part not recognised", NOT_SEPARABLE, sentence))


def _inside(case: Case, options: Options, start: float) -> list[tuple[str, Notes]]:
    """The outermost parts that are recognised, by their names."""
    found: list[tuple[str, Notes]] = []
    end = max(start + ALL_SECONDS, time.process_time() + 0.8)
    for path, sub in case.module.named_modules():
        if not path or any(path.startswith(f"{done}.") for done, _ in found) or not _may_attend(sub):
            continue
        if time.process_time() > end:
            break
        part = Notes()
        try:
            style = adapt(sub, options.d_model, options.batch_first)
            inner = line_up(
                sub,
                style,
                options.num_heads,
                case.remembers,
                min(time.process_time() + 0.8, end),
            )
            if inner.suspect is not None and inner.suspect.layout.axis == "batch":
                style = replace(style, axes="nbd")  # who calls it may have exchanged the axes
                inner = line_up(sub, style, options.num_heads, True, time.process_time() + 0.3)
            if inner.suspect is not None:
                _recognised(inner, part)
                found.append((path, part))
        except (Trouble, RuntimeError, TypeError, ValueError):
            continue
    return found


def _may_attend(sub: nn.Module, layers: int = 3) -> bool:
    """Whether it has layers enough, and a forward of its own."""
    if isinstance(sub, nn.ModuleList | nn.ModuleDict | nn.Sequential):
        return False
    held = [w.name for group in maps(sub).values() for w in group]
    return len(held) >= layers or any(FUSED.search(name) for name in held)


def _wiring(module: nn.Module, case: Case, options: Options, notes: Notes) -> None:
    """What needs no numbers to be recognised: gradients, names, weights, devices."""
    inputs, patient, style = case.probe(), case.module, case.style
    written = any(f.kind == "input changed in place" for f in notes.findings)
    known = len(notes.findings)
    notes.add("no layer under two names", lambda: (paths.several_names(patient, style, inputs), [], []))
    if len(notes.findings) == known:  # else they are to be counted when there are as many as there are names
        notes.add("number of weights", lambda: (wiring.counted(case), [], []))
    notes.add("norms", lambda: (norm_axis(case), [], []))
    notes.add("gradients", lambda: (_gradients(case, inputs, written), [], []))
    notes.add("no layer applied to another's output", lambda: (paths.chained(case, inputs), [], []))
    notes.add("no layer without use", lambda: (idle(case, inputs), [], []))
    if feedforward.up_to(case) is not None:
        notes.add("the nonlinearity after attention", lambda: _told(feedforward.nonlinearity(case, inputs)))
    notes.add("other devices", lambda: _told(wiring.registration(patient, style, inputs)))
    sizes = case.frame.heads, case.frame.inner[0]
    notes.add("indivisible widths", lambda: _told(wiring.indivisible(module, *sizes, options.build)))


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
    if other:
        cast(patient, torch.float32)
    return " and ".join(other) or None


def _told(outcome: tuple[list[Finding], str | None]) -> Outcome:
    found, why = outcome
    return found, [], [why] if why else []


def _gradients(case: Case, inputs: tuple[Tensor, ...], written: bool) -> list[Finding]:
    """What wiring says, but for a backward pass that stops because of a fault already named."""
    found = wiring.gradients(case, inputs) or paths.input_gradient(case, inputs)
    return [f for f in found if not (written and f.kind == "backward stops")]


def _from_suspect(case: Case) -> list[Finding]:
    """The mistakes and conventions of the combination that gives the module's numbers."""
    found = []
    how, evidence = shown(case)
    for kind, sentence, cure in words(case):
        sentence = sentence if sentence.endswith(".") else sentence + "."
        published = kind == "scale missing" and case.style.axes == "bdhw"  # for images it is often left out
        found.append(Finding(kind, CONVENTION if published else FAULT, sentence, cure, how, evidence))
    for switch, value in vars(case.suspect.layout).items():
        kind = f"{switch}: {value}"
        if kind in CONVENTION_WORDS and value not in case.suspect.layout.deviations().values():
            found.append(Finding(kind, CONVENTION, CONVENTION_WORDS[kind]))
    found += feedforward.no_residual(case)
    if case.suspect.layout.outer == "skip from norm":
        sentence = (
            "LayerNorm(x) is added to what attention finds, not x: some models do so on purpose, most mean "
            "x + attention(LayerNorm(x))."
        )
        found.append(Finding("residual from the norm", NOT_SEPARABLE, sentence, "Keep x and add that."))
    if case.suspect.inside.always == "right":
        sentence = "A causal mask is always on: no token hears a later one."
        found.append(Finding("always causal", CONVENTION, sentence))
    if case.style.axes == "nbd" and not own_mha(case.module):
        sentence = "Inputs are (n, B, d_model): tokens come before samples."
        cure = "For (B, n, d_model) exchange axes 0 and 1, or use batch_first=True."
        found.append(Finding("sequence first", CONVENTION, sentence, cure))
    return found
