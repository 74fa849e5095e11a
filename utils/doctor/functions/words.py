"""What is said of each habit in the line-up: (switch, value) -> short name, verdict, sentence, cure."""

from __future__ import annotations

from utils.doctor.report import CONVENTION, FAULT, NOT_SEPARABLE, Finding

KEYS = "Softmax must go over the keys, so that each query hands out one unit: softmax(scores, dim=-1)."
ROOT = "Divide the scores by math.sqrt(query.shape[-1]), the root of one head's width, before softmax."
FILL = "Fill masked scores with minus infinity: scores.masked_fill(~mask, float('-inf'))."
BEFORE = "Mask the scores before softmax, with minus infinity; then each row still sums to 1."
TRIANGLE = "Query i may see keys 0 ... i: torch.ones(n, n, dtype=torch.bool).tril()."

_SCALE = {
    "none": ("scale missing", "The scores are not divided by sqrt(d_k). (T5 leaves it out on purpose.)"),
    "sqrt(d_model)": (
        "scale sqrt(d_model)",
        "The scores are divided by the root of the whole width, not of one head's.",
    ),
    "d_k": ("scale 1/d_k", "The scores are divided by d_k; the square root is missing."),
    "d_model": ("scale 1/d_model", "The scores are divided by d_model, not by sqrt(d_k)."),
    "multiplied": ("scale multiplied", "The scores are multiplied by sqrt(d_k), not divided by it."),
    "multiplied by d_k": ("scale multiplied", "The scores are multiplied by d_k, not divided by its root."),
    "sqrt(seq_len)": (
        "scale sqrt(seq_len)",
        "The scores are divided by the root of the number of keys, not of d_k.",
    ),
    "sqrt(n_q)": ("scale sqrt(seq_len)", "The scores are divided by the root of the number of queries."),
    "seq_len": ("scale 1/seq_len", "The scores are divided by the number of keys, not by sqrt(d_k)."),
    "sqrt(d_v)": (
        "scale sqrt(d_v)",
        "The scores are divided by the root of the values' width, not the keys'.",
    ),
    "sqrt(num_heads)": (
        "scale sqrt(num_heads)",
        "The scores are divided by the root of axis 1, the number of heads (or of tokens, without heads): "
        "shape[1] where shape[-1] belongs.",
    ),
    "d_k^(1/4)": (
        "scale d_k^(1/4)",
        "The scores are divided by the fourth root of d_k: only one of two roots.",
    ),
    "after softmax": (
        "scale after softmax",
        "The weights are divided by sqrt(d_k) after softmax, so they no longer sum to 1; the scores are not.",
    ),
}
_SOFTMAX = {
    "queries": (
        "softmax over queries",
        "Softmax goes over the queries: columns sum to 1, rows do not.",
        KEYS,
    ),
    "heads": (
        "softmax over heads",
        "Softmax goes over the heads: they compete, and rows do not sum to 1.",
        KEYS,
    ),
    "batch": ("softmax over batch", "Softmax goes over the batch: sequences compete with each other.", KEYS),
    "everything": ("softmax over all pairs", "Softmax goes over everything at once, batch too.", KEYS),
    "logarithm": ("log_softmax instead of softmax", "The weights are logarithms, none above 0.", KEYS),
    "all": (
        "softmax over all pairs",
        "Softmax goes over all pairs at once: the whole matrix sums to 1.",
        KEYS,
    ),
    "none": ("no softmax", "The scores are used as weights; softmax is missing.", KEYS),
    "sigmoid": (
        "sigmoid instead of softmax",
        "Each weight is a sigmoid on its own: rows do not sum to 1.",
        KEYS,
    ),
    "twice": ("softmax twice", "Softmax is taken twice: the weights are far too even.", "Take it once."),
    "base 2": ("softmax with base 2", "Powers of 2 are shared out, not powers of e.", "Use exp, not exp2."),
    "sums of other rows": (
        "keepdims missing",
        "The rows' sums are laid along the columns: each weight is divided by the sum of another row.",
        "Write exps / exps.sum(axis=-1, keepdims=True).",
    ),
    "sum": ("scores divided by their sum", "Scores are divided by their sum, without exp.", KEYS),
    "squares": ("squares instead of exp", "Squares of the scores are shared out, not their exp.", KEYS),
}
_ROLES = {
    "key reshaped": (
        "key reshaped, not transposed",
        "The key is reshaped to (d_k, n_k) where it must be transposed: numbers of different tokens mix.",
        "Write key.transpose(-2, -1).",
    ),
    "query and key swapped": (
        "query and key swapped",
        "Query and key have changed places: rows of the weights belong to keys.",
        "Write query @ key.transpose(-2, -1).",
    ),
    "key for value": (
        "value replaced by key",
        "The weights mix the keys; the value is not used.",
        "Write weights @ value.",
    ),
    "query for value": (
        "value replaced by query",
        "The weights mix the queries; the value is not used.",
        "Write weights @ value.",
    ),
    "value for key": (
        "key replaced by value",
        "The query is compared with the values; the key is not used.",
        "Write query @ key.transpose(-2, -1).",
    ),
    "query for key": (
        "key replaced by query",
        "The query is compared with itself; the key is not used.",
        "Write query @ key.transpose(-2, -1).",
    ),
    "key for query": (
        "query replaced by key",
        "The key is compared with itself; the query is not used.",
        "Write query @ key.transpose(-2, -1).",
    ),
    "key and value swapped": (
        "key and value swapped",
        "Key and value have changed places.",
        "Compare with the keys, mix the values.",
    ),
}
_TRIANGLES = {
    "upper": (
        "causal upper triangle",
        "Each query sees itself and what comes after it, not what came before.",
    ),
    "strict upper": ("causal upper triangle", "Each query sees only what comes after it."),
    "no self": ("causal excludes self", "No query sees its own token: the diagonal is masked."),
    "one ahead": ("causal sees one ahead", "Each query sees one token of the future."),
    "ignored": ("causal not applied", "Causality was asked for, but the future is seen."),
}
_AXES = {
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


def finding(switch: str, value: str) -> Finding:
    """What is to be said of this habit."""
    if switch == "softmax":
        kind, sentence, cure = _SOFTMAX[value]
        return Finding(kind, FAULT, sentence, cure)
    if switch == "scale":
        if value not in _SCALE:
            sentence = f"The scores are multiplied by {float(value):.4g}, where 1 / sqrt(d_k) belongs."
            return Finding("scale wrong", FAULT, sentence, ROOT)
        kind, sentence = _SCALE[value]
        return Finding(kind, FAULT, sentence, ROOT)
    if switch == "roles":
        kind, sentence, cure = _ROLES[value]
        return Finding(kind, FAULT, sentence, cure)
    if switch == "always" and value in ("right", "bottom-right"):
        sentence = "The function is causal without being asked: no query sees the future."
        return Finding("always causal", CONVENTION, sentence)
    if switch == "always":
        kind, sentence = _TRIANGLES[value]
        return Finding(kind, FAULT, sentence, TRIANGLE)
    if switch == "causal":
        if value == "bottom-right":
            sentence = "With n_q != n_k the causal triangle ends bottom-right; PyTorch's starts top-left."
            return Finding("causal aligned bottom-right", CONVENTION, sentence)
        kind, sentence = _TRIANGLES[value]
        return Finding(kind, FAULT, sentence, TRIANGLE)
    if switch == "axis":
        kind, sentence, cure = _AXES[value]
        return Finding(kind, FAULT, sentence, cure)
    if switch == "keep":
        sentence = "True hides a key here; in PyTorch's own attention function True means: may be seen."
        cure = 'Invert the mask, or say diagnose(..., mask="hide") if True is meant to hide.'
        return Finding("mask polarity inverted", FAULT, sentence, cure)
    if switch in ("when", "causal_when"):
        what = "mask" if switch == "when" else "causal mask"
        sentence = (
            f"The {what} acts after softmax: rows sum to less than 1; hidden keys still steer the rest."
        )
        if value not in ("before", "after"):
            sentence = f"The {what} fills the weights after softmax; it belongs into the scores before it."
        return Finding(f"{what} after softmax", FAULT, sentence, BEFORE)
    return _fill(value, "" if switch == "fill" else "causal ")


def _fill(value: str, causal: str) -> Finding:
    """What is to be said of a fill other than minus infinity."""
    what = f"{causal}mask"
    if value == "ignored":
        return Finding(f"{what} ignored", FAULT, f"The {what} has no effect.", FILL)
    if value in ("zero", "the smallest positive number"):
        sentence = (
            f"Where the {what} hides a key, its score becomes 0 and takes part with exp(0) = 1: it was "
            "multiplied by 0, or filled with a number near 0 such as 1e-9 or -1e-9 (no input tells which)."
        )
        return Finding(f"{what} fill near zero", FAULT, sentence, FILL)
    if value == "plus infinity":
        return Finding(
            f"{what} fill plus infinity", FAULT, f"The {what} fills with PLUS infinity: NaN.", FILL
        )
    if value == "added as 0 and 1":
        sentence = (
            "The mask is added to the scores as 0 and 1: hidden keys stay visible, seen ones gain a factor e."
        )
        return Finding(f"{what} added as 0/1", FAULT, sentence, FILL)
    if value in ("-1000000000", "a billion subtracted"):
        return Finding(
            f"finite fill of the {what}", CONVENTION, f"The {what} fills with a very low finite number."
        )
    number = {"minus ten added": "-10", "minus ten thousand added": "-10000"}.get(value, value)
    sentence = (
        f"The {what} fills with {float(number):g}: real scores can be lower, and then hidden keys are seen."
    )
    return Finding(f"{what} fill too weak", FAULT, sentence, FILL)


def constant_scale(found: Finding, scale: float) -> Finding:
    """A number that does not follow the width of the heads."""
    sentence = (
        f"The scores are multiplied by {scale:.4g}, whatever the width of a head: right only where that is "
        f"{scale**-2:.4g} features wide."
    )
    return Finding("scale is a constant", NOT_SEPARABLE, sentence, ROOT)


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
