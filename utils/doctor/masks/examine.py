"""Examining a function that builds a mask: for the future, or for padding.

Its values say which entries are marked and how (True, 1, minus infinity ...). The marked entries are
compared with what mask builders are known to produce, in both readings: marked may attend, marked is hidden.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from utils.doctor import call as caller
from utils.doctor.call import Hangs, Trouble, named, required
from utils.doctor.masks.causal import causal, sizes
from utils.doctor.masks.names import ID_NAMES, LENGTH_NAMES, PAD_NAMES, SIZE_NAMES, SMALL_NAMES
from utils.doctor.masks.padding import mask_name, padding, padding_input
from utils.doctor.masks.values import MaskNotes, array
from utils.doctor.notes import written
from utils.doctor.report import Report


def examine(
    patient: Callable, name: str = "patient", *, means: str | None = None, species: str | None = None
) -> Report:
    """Examine a builder of masks: f(n), f(n_q, n_k), f(lengths, n) or f(ids, pad_id).

    means    what a marked entry (True, 1) was meant to say: "keep" (may attend) or "hide".
             None: either, if the mask is right in one reading
    species  "causal" or "padding", where the names of the arguments do not tell
    """
    if means not in (None, "keep", "hide") or species not in (None, "causal", "padding"):
        raise ValueError(
            f"means is 'keep', 'hide' or None, species 'causal', 'padding' or None: {means}, {species}"
        )
    notes = MaskNotes(means=means)

    def look() -> None:
        kind, ask = _kind_of(patient) if species is None else (species, patient)
        (causal if kind == "causal" else padding)(notes, ask)

    return written(notes, name, "mask builder", look)


def _kind_of(patient: Callable) -> tuple[str, Callable]:
    """What kind of mask, by what it accepts or else by the names of its arguments; and the way to ask."""

    def by_tensor(n: int) -> Any:
        return patient(torch.zeros(n, n, 4))  # a mask as large as a tensor's first axes

    ways = [("causal", patient), ("padding", patient), ("causal", by_tensor)]
    names = {name.lower() for name in required(patient)}
    if mask_name(patient) or names & {*ID_NAMES, *LENGTH_NAMES, *PAD_NAMES}:
        ways = ways[1:2]
    elif len(names) == 1 and names <= {*SIZE_NAMES, *SMALL_NAMES}:
        ways = ways[:1]
    for kind, ask in ways:
        try:
            loose, given = sizes(ask, 5) if kind == "causal" else ([], {})
            found = padding_input(ask)[1](0) if kind == "padding" else caller.call(ask, *loose, **given)
            shape = [s for s in array(found).shape if s != 1]
            if shape[-2:] == [5, 5] or (kind == "padding" and math.prod(shape) >= 15):
                return kind, ask
        except Hangs:
            raise
        except Trouble:
            continue
    sized = named(patient, [*SIZE_NAMES, *SMALL_NAMES]) and not named(patient, [*ID_NAMES, *LENGTH_NAMES])
    sized = sized or any(name.lower().endswith("shape") for name in required(patient))
    return ("causal" if sized and not named(patient, PAD_NAMES) else "padding"), patient
