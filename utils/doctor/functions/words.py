"""What is said of each habit in the line-up: (switch, value) -> short name, verdict, sentence, cure."""

from __future__ import annotations

import math
from dataclasses import replace

from utils.doctor.report import CONVENTION, FAULT, NOT_SEPARABLE, Finding

KEYS = "Softmax must go over the keys, so that each query hands out one unit: softmax(scores, dim=-1)."
ROOT = "Divide the scores by math.sqrt(query.shape[-1]), the root of one head's width, before softmax."
FILL = "Fill masked scores with minus infinity: scores.masked_fill(~mask, float('-inf'))."
BEFORE = "Mask the scores before softmax, with minus infinity; then each row still sums to 1."
TRIANGLE = "Query i may see keys 0 ... i: torch.ones(n, n, dtype=torch.bool).tril()."

MATCH, MIX = "Write query @ key.transpose(-2, -1).", "Write weights @ value."

# How the axes stand -> sentence
ORDERS = {
    "tokens first": "Tokens come first: (B, n, h, d), (n, B, d); PyTorch's function wants them last but one.",
    "features last but one": "Features stand before tokens, (B, d, n); PyTorch's function wants them last.",
}
# What is returned beside the output -> sentence
RETURNED = {
    "returned weights are transposed": "The weights that are returned have rows and columns exchanged.",
    "scores returned as weights": "The scores are returned beside the output, not the weights.",
    "returned weights are a mean over heads": "The weights that are returned are averaged over the heads.",
}
# Value of a switch -> short name, sentence, and what to change, where it is not what CURES says
DIVIDED = {  # by what else than sqrt(d_k)
    "sqrt(d_model)": ("scale sqrt(d_model)", "the root of the whole width, not of one head's"),
    "d_k": ("scale 1/d_k", "d_k; the square root is missing"),
    "d_model": ("scale 1/d_model", "d_model, not by sqrt(d_k)"),
    "sqrt(seq_len)": ("scale sqrt(seq_len)", "the root of the number of keys, not of d_k"),
    "sqrt(n_q)": ("scale sqrt(seq_len)", "the root of the number of queries"),
    "seq_len": ("scale 1/seq_len", "the number of keys, not by sqrt(d_k)"),
    "sqrt(d_v)": ("scale sqrt(d_v)", "the root of the values' width, not the keys'"),
    "sqrt(num_heads)": (
        "scale sqrt(num_heads)",
        "the root of axis 1, the number of heads (or of tokens, without heads): shape[1] where shape[-1] "
        "belongs",
    ),
    "d_k^(1/4)": ("scale d_k^(1/4)", "the fourth root of d_k: only one of two roots"),
}
SCALE = {value: (kind, f"The scores are divided by {what}.") for value, (kind, what) in DIVIDED.items()} | {
    "none": ("scale missing", "The scores are not divided by sqrt(d_k). (T5 leaves it out on purpose.)"),
    "multiplied": ("scale multiplied", "The scores are multiplied by sqrt(d_k), not divided by it."),
    "multiplied by d_k": ("scale multiplied", "The scores are multiplied by d_k, not divided by its root."),
    "after softmax": (
        "scale after softmax",
        "The weights are divided by sqrt(d_k) after softmax, so they no longer sum to 1; the scores are not.",
    ),
}
SOFTMAX = {
    "queries": ("softmax over queries", "Softmax goes over the queries: columns sum to 1, rows do not."),
    "heads": ("softmax over heads", "Softmax goes over the heads: they compete, and rows do not sum to 1."),
    "batch": ("softmax over batch", "Softmax goes over the batch: sequences compete with each other."),
    "everything": ("softmax over all pairs", "Softmax goes over everything at once, batch too."),
    "logarithm": ("log_softmax instead of softmax", "The weights are logarithms, none above 0."),
    "all": ("softmax over all pairs", "Softmax goes over all pairs at once: the whole matrix sums to 1."),
    "none": ("no softmax", "The scores are used as weights; softmax is missing."),
    "sigmoid": ("sigmoid instead of softmax", "Each weight is a sigmoid on its own: rows do not sum to 1."),
    "twice": ("softmax twice", "Softmax is taken twice: the weights are far too even.", "Take it once."),
    "base 2": ("softmax with base 2", "Powers of 2 are shared out, not powers of e.", "Use exp, not exp2."),
    "sums of other rows": (
        "keepdims missing",
        "The rows' sums are laid along the columns: each weight is divided by the sum of another row.",
        "Write exps / exps.sum(axis=-1, keepdims=True).",
    ),
    "sum": ("scores divided by their sum", "Scores are divided by their sum, without exp."),
    "squares": ("squares instead of exp", "Squares of the scores are shared out, not their exp."),
}
ROLES = {
    "key reshaped": (
        "key reshaped, not transposed",
        "The key is reshaped to (d_k, n_k) where it must be transposed: numbers of different tokens mix.",
        "Write key.transpose(-2, -1).",
    ),
    "query and key swapped": (
        "query and key swapped",
        "Query and key have changed places: rows of the weights belong to keys.",
    ),
    "key for value": ("value replaced by key", "The weights mix the keys; the value is not used.", MIX),
    "query for value": (
        "value replaced by query",
        "The weights mix the queries; the value is not used.",
        MIX,
    ),
    "query and value swapped": ("query and value swapped", "Query and value have changed places.", MIX),
    "value for key": ("key replaced by value", "The query is compared with the values; the key is not used."),
    "query for key": ("key replaced by query", "The query is compared with itself; the key is not used."),
    "key for query": ("query replaced by key", "The key is compared with itself; the query is not used."),
    "key and value swapped": (
        "key and value swapped",
        "Key and value have changed places.",
        "Compare with the keys, mix the values.",
    ),
}
TRIANGLES = {
    "upper": (
        "causal upper triangle",
        "Each query sees itself and what comes after it, not what came before.",
    ),
    "strict upper": ("causal upper triangle", "Each query sees only what comes after it."),
    "no self": ("causal excludes self", "No query sees its own token: the diagonal is masked."),
    "one ahead": ("causal sees one ahead", "Each query sees one token of the future."),
    "ignored": ("causal not applied", "Causality was asked for, but the future is seen."),
}
AXES = {
    "query rows": (
        "mask on query rows",
        "The padding mask is laid along the queries: padded rows are blanked, padded keys still seen.",
        "Keys stand in the last axis of the scores: give the mask the shape (B, 1, 1, n_k).",
    ),
    "head order": (
        "mask in head/batch order",
        "Masks are tiled m0, m1, m0, m1 over flattened (batch, head), so heads get another sequence's mask.",
        "Use mask.repeat_interleave(num_heads, 0), or broadcast (B, 1, 1, n_k).",
    ),
    "other sample": (
        "mask of another sequence",
        "Each sequence gets the mask of its neighbour in the batch.",
        "Index the mask by the same sequence.",
    ),
    "first sample": (
        "mask of the first sequence",
        "All sequences get the mask of the first one.",
        "Keep the batch axis of the mask.",
    ),
}
POLARITY = {
    "hide": (
        "mask polarity inverted",
        "The mask is read the other way round than it was given.",
        'Invert the mask, or say what True is meant to say: diagnose(..., mask="keep") or mask="hide".',
    )
}
# Polarity: how the mask was given -> what was found
ASKED = {
    "keep": "Asked with True = may be seen, it hides the keys that are marked True and sees the others.",
    "keep as 0 and 1": "Asked with 1 = may be seen, it hides the keys that are marked 1 and sees the others.",
    "hide": "Asked with True = hidden, it sees the keys that are marked True and hides the others.",
    "added": "Asked with minus infinity on hidden keys, it sees these and hides the others.",
}
BENDS = {
    "negated": ("scores negated", "The scores have the other sign: what fits least gets most.", MATCH),
    "absolute": ("scores without sign", "The scores' absolute values are shared out.", MATCH),
    "relu": (
        "scores clipped at 0",
        "Scores below 0 become 0 before softmax: they cannot be told apart.",
        MATCH,
    ),
    "tanh": ("scores squashed", "tanh is taken of the scores before softmax: none is beyond 1.", MATCH),
    "floor": ("scores rounded", "The scores are rounded to whole numbers: // where / belongs?", ROOT),
}
FAULTS = {
    "bend": BENDS,
    "scale": SCALE,
    "softmax": SOFTMAX,
    "roles": ROLES,
    "always": TRIANGLES,
    "causal": TRIANGLES,
    "axis": AXES,
    "keep": POLARITY,
}
CURES = {"scale": ROOT, "softmax": KEYS, "roles": MATCH, "always": TRIANGLE, "causal": TRIANGLE}
ALWAYS = ("always causal", "The function is causal without being asked: no query sees the future.")
CONVENTIONS = {
    ("always", "right"): ALWAYS,
    ("always", "bottom-right"): ALWAYS,
    ("softmax", "one more"): (
        "one more in the denominator",
        "1 is added to the sum of exp: rows sum to less than 1. (softmax1 does so on purpose.)",
    ),
    ("causal", "bottom-right"): (
        "causal aligned bottom-right",
        "With n_q != n_k the causal triangle ends bottom-right; PyTorch's starts top-left.",
    ),
}
NEAR_ZERO = (
    "{} fill near zero",
    "Where the {} hides a key, its score becomes 0 and takes part with exp(0) = 1: it was multiplied by 0, "
    "or filled with a number near 0 such as 1e-9 or -1e-9 (no input tells which).",
)
# The same of a padding mask and of a causal mask, whose name stands for {}
FILLS = {
    "ignored": ("{} ignored", "The {} has no effect."),
    "zero": NEAR_ZERO,
    "the smallest positive number": NEAR_ZERO,
    "plus infinity": ("{} fill plus infinity", "The {} fills with PLUS infinity: NaN."),
    "plus a billion": ("{} fill positive", "The {} fills with a large number: hidden keys get all."),
    "added as 0 and 1": (
        "{} added as 0/1",
        "The mask is added to the scores as 0 and 1: hidden keys stay visible, seen ones gain a factor e.",
    ),
}


LOW = {"a billion subtracted": -1e9, "minus ten added": -10.0, "minus ten thousand added": -1e4}


def finding(switch: str, value: str) -> Finding:
    """What is to be said of this habit."""
    what = "causal mask" if switch.startswith("causal") else "mask"
    if (switch, value) in CONVENTIONS:
        kind, sentence = CONVENTIONS[switch, value]
        return Finding(kind, CONVENTION, sentence)
    if value in FAULTS.get(switch, {}):
        kind, sentence, *cure = FAULTS[switch][value]
        return Finding(kind, FAULT, sentence, *(cure or [CURES[switch]]))
    if switch == "bend":
        return clipped(float(value))
    if switch == "scale":
        sentence = f"The scores are multiplied by {float(value):.4g}, where 1 / sqrt(d_k) belongs."
        return Finding("scale wrong", FAULT, sentence, ROOT)
    if switch in ("when", "causal_when"):
        sentence = (
            f"The {what} acts after softmax: rows sum to less than 1; hidden keys still steer the rest."
            if value == "after"
            else f"The {what} fills the weights after softmax; it belongs into the scores before it."
        )
        return Finding(f"{what} after softmax", FAULT, sentence, BEFORE)
    if value in FILLS:
        kind, sentence = (text.format(what) for text in FILLS[value])
        return Finding(kind, FAULT, sentence, FILL)
    number = LOW.get(value) or float(value)
    if number < -100:
        limit = "" if number < -9000 else ": enough unless scores are that large"
        by = "a very low finite number" if number < -1e8 else f"{number:g}"
        return Finding(f"finite fill of the {what}", CONVENTION, f"The {what} fills with {by}{limit}.")
    sentence = f"The {what} fills with {number:g}: real scores can be lower, and then hidden keys are seen."
    return Finding(f"{what} fill too weak", FAULT, sentence, FILL)


def measured_scale(found: Finding, factors: list[float], sizes: list[tuple[int, int]]) -> Finding:
    """A scale measured at two sizes, each a width of a head and a number of sequences."""
    (here, there), ((d, batch), (d_there, batch_there)) = factors, sizes

    def alike(a: float, b: float) -> bool:
        return math.isclose(a, b, rel_tol=1e-3)

    if alike(here, there):
        sentence = (
            f"The scores are multiplied by {here:.4g}, whatever the width of a head: right only where that "
            f"is {here**-2:.4g} features wide."
        )
        return replace(found, kind="scale is a constant", verdict=NOT_SEPARABLE, sentence=sentence)
    if alike(here * d**0.5, there * d_there**0.5):
        said = f"{here * d**0.5:.4g} / sqrt(d_k), where 1 / sqrt(d_k) belongs"
    elif alike(here**-2, batch) and alike(there**-2, batch_there):
        said = "1 / sqrt(B), by the number of sequences: len(query) or shape[0] where shape[-1] belongs"
    else:
        said = f"{here:.4g} for d_k = {d} and {there:.4g} for d_k = {d_there}, where 1 / sqrt(d_k) belongs"
    return replace(found, sentence=f"The scores are multiplied by {said}.")


def clipped(limit: float) -> Finding:
    """Clipping far from usual scores is done on purpose (Gemma squashes at 30 and 50)."""
    sentence = f"The scores are clipped, or squashed, at {limit:.3g}: beyond, they cannot be told apart."
    cure = "Softmax needs no clipping: it subtracts the largest score."
    return Finding("scores clipped", CONVENTION if limit > 2 else FAULT, sentence, cure)


def transposed(found: Finding) -> Finding:
    """The same as a mask on query rows, where it is taken with as many rows as columns."""
    sentence = "Rows and columns of the mask are exchanged: what is hidden from i is hidden as i."
    cure = "Use the mask as it comes: row i says which keys query i may see. No transpose."
    return replace(found, kind="mask transposed", sentence=sentence, cure=cure)


def hiding(found: Finding) -> Finding:
    """Polarity, where nobody said what True means."""
    sentence = (
        "True in the mask hides a key. nn.MultiheadAttention wants it so; in PyTorch's attention function "
        "True means: may be seen. No input tells which was meant."
    )
    cure = 'Say diagnose(..., mask="hide") if True is meant to hide; mask="keep" makes this a fault.'
    return Finding(found.kind, NOT_SEPARABLE, sentence, cure, found.shown_by, found.evidence)


def added(found: Finding) -> Finding:
    """The same, where a function may be meant for masks that are added."""
    sentence = (
        "A boolean mask is added to the scores as 0 and 1 and hides nothing. Right only if masks are meant "
        "to be added (0 and minus infinity): no input tells what was meant."
    )
    cure = 'Say diagnose(..., mask="keep") or mask="added". For booleans: ' + FILL
    return Finding(found.kind, NOT_SEPARABLE, sentence, cure)
