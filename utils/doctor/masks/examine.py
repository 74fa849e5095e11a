"""Examining a function that builds a mask: for the future, or for padding.

Its values say which entries are marked and how (True, 1, minus infinity ...). The marked entries are
compared with what mask builders are known to produce, in both readings: marked may attend, marked is hidden.
"""

from __future__ import annotations

from collections.abc import Callable

from utils.doctor import call as caller
from utils.doctor.call import Hangs, Trouble, named, required
from utils.doctor.masks.causal import causal, sizes
from utils.doctor.masks.names import ID_NAMES, LENGTH_NAMES, PAD_NAMES, SIZE_NAMES, SMALL_NAMES
from utils.doctor.masks.padding import mask_name, padding
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
        (causal if (species or _kind_of(patient)) == "causal" else padding)(notes, patient)

    return written(notes, name, "mask builder", look)


def _kind_of(patient: Callable) -> str:
    """By the names of its arguments, or by what it accepts."""
    if named(patient, LENGTH_NAMES) or named(patient, PAD_NAMES) or mask_name(patient):
        return "padding"
    if named(patient, [*SIZE_NAMES, *SMALL_NAMES]) and not named(patient, ID_NAMES):
        return "causal"
    if any(name.lower().endswith("shape") for name in required(patient)):
        return "causal"
    try:
        loose, given = sizes(patient, 5)
        if array(caller.call(patient, *loose, **given)).size >= 25:
            return "causal"
    except Hangs:
        raise
    except Trouble:
        pass
    return "padding"
