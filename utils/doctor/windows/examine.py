"""Examining attention to a local window: who influences whom, and how strongly.

With the identity as value, the output is the matrix of weights. With queries of zeros all scores
are equal, so that a row shows which keys are seen and among how many the shares were made. With
other queries it shows whether the shares are those of a softmax of the scores.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from utils.doctor import call as caller
from utils.doctor.call import (
    Hangs,
    Trouble,
    Unfit,
    first_answer,
    named,
    numbers,
    parameters,
    reached,
    required,
)
from utils.doctor.functions.adapt import MASK, NEEDED, is_role
from utils.doctor.functions.habits import without_dropout
from utils.doctor.notes import written
from utils.doctor.report import CONVENTION, FAULT, Finding, Report
from utils.doctor.windows.notes import Ask, N, WindowNotes
from utils.doctor.windows.pattern import pattern, seen_in, set_hubs_aside
from utils.doctor.windows.shares import ignored, outside, shares, sums, twice

WINDOWS = [
    *("window", "w", "window_size", "sliding_window", "local_window", "left_window", "half_window", "win"),
    *("size", "radius", "r", "span", "width", "band", "bandwidth", "context", "context_size", "block_size"),
    *("neighbors", "neighbours", "n_neighbors", "k_size", "win_size", "window_length", "left", "half"),
    *("attention_window", "look_back", "lookback"),
]
QUERIES, KEYS, VALUES = ["q", "query", "queries"], ["k", "key", "keys"], ["v", "value", "values"]
CAUSAL = ["is_causal", "causal", "autoregressive", "masked", "unidirectional"]


def window_of(function: Callable) -> str | None:
    """The argument that says how far is looked: by its name, or as one more that is needed."""
    others = "|".join((*NEEDED, MASK, ".*(dropout|causal|mask).*", "train.*"))
    more = [n for n in required(function)[3:] if not is_role(n) and not re.match(others, n.lower())]
    known = [p.name for p in parameters(function) if re.search("window|radius", p.name.lower())]
    return next(iter((*known, *filter(None, [named(function, WINDOWS)]), *more)), None)


def is_local(function: Callable) -> bool:
    """Is there a window? An argument of another name must act like one: less is seen, and always oneself."""
    name = window_of(function)
    if name is None or re.search("window|radius|neighbou?r|^w$", name.lower()):
        return name is not None
    zeros = torch.zeros(N, 4)
    try:
        ask, _ = _asker(WindowNotes(), function, zeros)
        narrow, wide = (seen_in(ask(zeros, zeros, w, False)) for w in (2, 4))
    except Trouble:
        return False
    return bool(np.diag(narrow).all() and not np.array_equal(narrow, wide))


def examine(
    patient: Callable,
    name: str = "patient",
    *,
    is_causal: bool | None = None,
    counts_self: bool | None = None,
) -> Report:
    """Examine f(q, k, v, window[, causal]).

    is_causal    for a patient without such an argument: whether looking back only was meant.
                 None: either is right
    counts_self  True: window=3 was meant to be 3 keys in all looking back, the token itself among them;
                 False: 3 neighbours on each side besides it. None: any known way to count is right
    """
    notes = WindowNotes(causal=is_causal, counts_self=counts_self)
    return written(notes, name, "local attention", lambda: _examine(notes, patient))


def _examine(case: WindowNotes, patient: Callable) -> None:
    case.blocks = bool(re.search("block|chunk", window_of(patient) or ""))
    q = torch.randn(N, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).float()
    ask, takes_causal = _asker(case, patient, q)

    def again(ask: Asker) -> bool:
        return np.array_equal(*(ask(q, q.flip(0), 3, True) for _ in range(2)), equal_nan=True)

    if not again(ask):
        sentence = "The same input gives different outputs."
        case.fault("random on each call", sentence, "No dropout in a function.")
        ask = replace(ask, patient=without_dropout(patient))
        if not again(ask):
            return
    if not _uses_value(ask, q):
        case.drop("d_v must equal d_k")
        sentence = "The output is the same for other values: something else is mixed, the keys perhaps."
        case.fault("value not used", sentence, "Write weights @ v.")
        return
    modes = (False, True) if takes_causal else (case.causal,)
    readings = {causal: _mode(case, ask, causal) for causal in modes}
    if takes_causal and None not in readings.values() and len(set(readings.values())) > 1:
        sentence = (
            f"Looking both ways the window is {readings[False]}, looking back only it is {readings[True]}."
        )
        case.fault("window counted in two ways", sentence, "Count neighbours the same way in both modes.")
    _small_inputs(case, ask, modes[-1])
    _integers(case, ask)
    _gradients(case, ask)


def _uses_value(ask: Asker, q: Tensor) -> bool:
    """Does the output change with v?"""
    outs = [numbers(ask.call(q, q, q.flip(0) * factor, 3, True)) for factor in (1, 2)]
    return not np.array_equal(*outs)


def _gradients(case: WindowNotes, ask: Asker) -> None:
    """Do queries, keys and values get a gradient?"""
    if ask.arrays or case.has("scores without effect"):
        return

    def output(*inputs: Tensor) -> Any:
        found = ask.call(*inputs, 3, True, copies=False)
        return found[0] if isinstance(found, tuple) else found

    generator = torch.Generator().manual_seed(0)
    try:
        alive = reached(output, {name: torch.randn(N, 4, generator=generator) for name in "qkv"})
    except Trouble:
        return  # it computes in numpy, say
    if alive is not None and alive != set("qkv"):
        case.cut([name for name in "qkv" if name not in alive], mixed_only=alive == {"v"})


@dataclass(frozen=True)
class Asker:
    """A patient, and how it wants its arguments.

    axes    batch axes of size 1 before (n, d)
    square  d_v must be d_k: queries and keys are filled up with zeros
    arrays  numpy instead of torch
    """

    patient: Callable
    axes: int
    square: bool
    arrays: bool

    def __call__(self, q: Tensor, k: Tensor, window: int, looks_back: bool | None) -> np.ndarray:
        """The weights (n, n): with the identity as v, the output is the weights."""
        n = len(q)
        if self.square and n > q.shape[1]:  # larger by what a larger d_k divides by
            factor, pad = math.sqrt(n / q.shape[1]), torch.zeros(n, n - q.shape[1])
            q, k = torch.cat([q * factor, pad], 1), torch.cat([k, pad], 1)
        v = torch.eye(n, q.shape[1] if self.square else n)
        out = numbers(self.call(q, k, v, window, looks_back))
        if out is None or out.size < n * n or out.shape[-2:] != v.shape:
            raise Trouble(f"returns {'no array' if out is None else f'the shape {out.shape}'}")
        return out.reshape(n, -1)[:, :n]

    def call(
        self, q: Tensor, k: Tensor, v: Tensor, window: int, looks_back: bool | None, copies: bool = True
    ) -> Any:
        """The patient's own answer, for copies or for these very tensors."""
        inputs = [t.reshape(*[1] * self.axes, *t.shape) for t in (q, k, v)]
        inputs = [t.numpy() for t in inputs] if self.arrays else inputs
        names = [named(self.patient, known) for known in (QUERIES, KEYS, VALUES)]
        size, causal = window_of(self.patient), named(self.patient, CAUSAL)
        given = {causal: bool(looks_back)} if causal else {}
        given |= {size: window} if size else {}
        if size and None not in names:
            given |= dict(zip(names, inputs, strict=True))
            inputs = []
        loose = [*inputs, *([] if size else [window])]
        if copies:
            return caller.call(self.patient, *loose, **given)
        return caller.call(lambda: self.patient(*loose, **given))


def _asker(case: WindowNotes, patient: Callable, q: Tensor) -> tuple[Asker, bool]:
    """The first way to ask that is answered, and whether there is an argument for looking back only."""
    if window_of(patient) is None and len(required(patient)) < 4:
        raise Unfit("it has no argument for the window: write def f(q, k, v, window)")
    known = {*QUERIES, *KEYS, *VALUES, *WINDOWS, *CAUSAL}
    case.certain = all(name.lower() in known for name in required(patient)) and len(required(patient)) > 3
    ways = list(itertools.product((False, True), (0, 1, 2)))

    def first(square: bool) -> Asker:
        askers = (Asker(patient, axes, square, arrays) for arrays, axes in ways)
        return first_answer(askers, lambda ask: ask(q, q, 3, False))[0]

    try:
        ask = first(square=False)
    except Hangs:
        raise
    except Trouble as trouble:
        try:
            ask = first(square=True)
        except Trouble:
            raise trouble from trouble.__cause__
        sentence = f"Values of width {N} with keys of width {q.shape[1]} are not taken."
        case.convention("d_v must equal d_k", sentence, "Take the output's width from v: v.shape[-1].")
    return ask, named(patient, CAUSAL) is not None


def _mode(case: WindowNotes, ask: Ask, causal: bool | None) -> str | None:
    """Examine one mode; returns the way in which the window is counted, where that is a known one."""
    zeros = torch.zeros(N, 4)
    weights = {w: ask(zeros, zeros, w, causal) for w in (2, 3, 4)}
    if not all(np.isfinite(t).all() for t in weights.values()):
        rows = np.flatnonzero(~np.isfinite(weights[3]).all(1))
        sentence = f"Rows {rows.tolist()} are NaN or infinite."
        case.fault("not finite", sentence, "Let each token see itself.")
        return None
    seen = {w: seen_in(t) for w, t in weights.items()}
    if not any(s.any() for s in seen.values()):
        shares(case, ask, seen[3], causal)
        return None
    if all(s[np.tril_indices(N)].all() for s in seen.values()):
        if not twice(case, weights[3]):
            ignored(case, ask, causal)
        return None
    stripped = set_hubs_aside(case, seen)
    count, known = pattern(case, stripped, causal)
    if known:
        even = sums(case, weights[3], seen[3])
        outside(case, weights[3], seen[3])
        if not case.has("softmax over queries"):
            shares(case, ask, seen[3] & even[:, None], causal)
    return count


def _small_inputs(case: WindowNotes, ask: Ask, causal: bool | None) -> None:
    for n, w, kind, words in (
        (13, 3, "length must be a multiple of the window", "13 tokens with window=3"),
        (3, 5, "short input crashes", "3 tokens with window=5"),
    ):
        try:
            out = ask(torch.zeros(n, 4), torch.zeros(n, 4), w, causal)
            if not np.isfinite(out).all():
                case.fault("not finite", f"{words} give NaN or infinity.")
        except Trouble as trouble:
            sentence, cure = f"{words} end in {trouble}.", "Pad at the end, and hide the padding."
            case.add(Finding(kind, CONVENTION if trouble.refusal else FAULT, sentence, cure, words))


def _integers(case: WindowNotes, ask: Asker) -> None:
    """Integers may be refused, but not rounded; and the inputs must stay as they are."""
    whole = [torch.randint(-2, 3, (8, 4), generator=torch.Generator().manual_seed(s)) for s in range(3)]
    floats = [t.float() for t in whole]
    before = [t.clone() for t in floats]
    wanted = numbers(ask.call(*floats, 2, True, copies=False))
    if any(not torch.equal(a, b) for a, b in zip(before, floats, strict=True)):
        case.fault("writes into its input", "After the call q, k or v have changed.", "Copy before writing.")
    try:
        found = numbers(ask.call(*whole, 2, True, copies=False))
    except Trouble:
        return  # refused
    if found is not None and wanted is not None and not np.allclose(found, wanted, atol=1e-3):
        gap = np.abs(found - wanted).max()
        sentence = f"Integers give an output that is off by {gap:.3g}: a buffer has their dtype."
        case.convention(
            "integer input is rounded", sentence, "Make buffers in a float dtype, or refuse integers."
        )
