"""The words for what a line-up found in a module: each mistake's name, what it does, what to change."""

from __future__ import annotations

from utils.doctor.functions.words import finding
from utils.doctor.hypotheses import SCALES
from utils.doctor.modules.case import Case
from utils.doctor.modules.lineup import inside_faults

LAYOUTS: dict[tuple[str, str], tuple[str, str, str]] = {
    ("split", "view"): (
        "heads split by view",
        "The heads are cut by a view or reshape straight to (B, h, n, d_k), or (B*h, n, d_k), without "
        "exchanging "
        "axes: a head's row holds pieces of several tokens",
        "Cut first, exchange then: x.view(B, n, h, d_k).transpose(1, 2).",
    ),
    **{
        ("split", f"{letter} by view"): (
            "heads split by view",
            f"The heads of the {name} are cut by a view or reshape straight to (B, h, n, d_k), those of the "
            "other two are cut as they should be",
            "Cut first, exchange then, all three alike: x.view(B, n, h, d_k).transpose(1, 2).",
        )
        for letter, name in (("q", "queries"), ("k", "keys"), ("v", "values"))
    },
    ("split", "none"): (
        "attention over heads",
        "The axes (B, n, h, d_k) are not exchanged before the scores: each token attends over its own "
        "heads and "
        "hears no other token",
        "Put tokens next to last: x.view(B, n, h, d_k).transpose(1, 2), and exchange back at the end.",
    ),
    ("merge", "view"): (
        "heads merged by view",
        "The heads are joined by a view or reshape straight from (B, h, n, d_k), without exchanging axes "
        "back: pieces "
        "of a head land on other tokens",
        "Exchange first, join then: out.transpose(1, 2).reshape(B, n, h * d_k).",
    ),
    ("merge", "last axes swapped"): (
        "heads merged along wrong axes",
        "Before the heads are joined, tokens and features are exchanged, not heads and tokens",
        "From (B, h, n, d_k) exchange axes 1 and 2: out.transpose(1, 2).reshape(B, n, h * d_k).",
    ),
    ("merge", "across samples"): (
        "heads merged along wrong axes",
        "Before the heads are joined, heads and samples are exchanged, not heads and tokens: samples are "
        "mixed",
        "From (B, h, n, d_k) exchange axes 1 and 2: out.transpose(1, 2).reshape(B, n, h * d_k).",
    ),
    ("merge", "batch for heads"): (
        "heads merged in batch order",
        "The heads were laid out sample by sample and are joined as if they lay head by head: samples "
        "are mixed",
        "Undo the cut in its order: out.view(B, h, n, d_k).transpose(1, 2).reshape(B, n, h * d_k).",
    ),
    ("merge", "mean"): (
        "heads averaged",
        "The heads' results are averaged, not put side by side: what one head found cannot be told from "
        "another's",
        "Join: out.transpose(1, 2).reshape(B, n, h * d_k), and give the output map h * d_k features.",
    ),
    ("merge", "sum"): (
        "heads summed",
        "The heads' results are added up, not put side by side",
        "Join: out.transpose(1, 2).reshape(B, n, h * d_k), and give the output map h * d_k features.",
    ),
    ("axis", "batch"): (
        "attention over the batch",
        "The first axis is read as tokens: position i of one sample attends to position i of the other "
        "samples, and "
        "hears nothing of its own sequence",
        "Set batch_first=True, or exchange axes 0 and 1 on the way in and out. If tokens are meant to "
        "come first, "
        "say so: diagnose(..., batch_first=False).",
    ),
    ("outer", "double skip"): (
        "residual added twice",
        "The input is added to the result twice",
        "Add x once: either inside the layer or around it.",
    ),
    ("outer", "no attention"): (
        "attention has no effect",
        "The output is twice the input, whatever attention found",
        "Assign attention's result to a name of its own and add that: x = x + attention(x).",
    ),
}
ACT = (
    "nonlinearity on the projections",
    "{value}: after a linear map attention has none; negative coordinates are lost",
    "Use the layers alone: q = self.q_proj(x), with no activation.",
)
CONVENTION_WORDS = {
    "split: interleaved": "Heads take every h-th feature, not d_k neighbours: another order of rows.",
    "merge: interleaved": "Joined features alternate between heads: another order of columns.",
    "outer: skip": "The input is added to what attention finds: a residual connection inside.",
    "outer: post": "LayerNorm(x + attention(x)): residual inside, norm last, as published in 2017.",
    "outer: pre": "x + attention(LayerNorm(x)): residual inside, norm first.",
    "outer: norm first": "The input is normalised and not added: a residual belongs around the module.",
    "outer: norm last": "The result is normalised, the input is not added to it: a residual is missing, "
    "unless it is meant to be so.",
    "outer: pre, norm last": "LayerNorm(x + attention(LayerNorm(x))): norms before and after.",
    "outer: sandwich": "x + LayerNorm(attention(LayerNorm(x))): attention stands between two norms.",
    "outer: branch norm": "x + LayerNorm(attention(x)): what attention finds is normalised, then added.",
}


def scale_words(case: Case) -> tuple[str, str, str]:
    """Kind, sentence and cure for a wrong scale."""
    scale, h = case.suspect.inside.scale, case.frame.heads
    q, k, v = case.probe()
    d_k = case.frame.inner[1] // h if case.frame.inner[1] == case.frame.inner[0] else case.frame.inner[0] // h
    shaped = [x.new_zeros(1, h, x.shape[1], d_k) for x in (q, k, v)]
    factors = {name: rule(*shaped, h) for name, rule in SCALES.items()}
    if scale not in SCALES:
        factors[scale] = float(scale)
    kind = finding("scale", scale).kind
    cure = "Divide the scores by math.sqrt(d_k), the width of one head: k.shape[-1] after the cut."
    if scale == "after softmax":
        return kind, f"The weights, not the scores, are divided by sqrt(d_k) = {d_k**0.5:.3g}.", cure
    said = f"scale: {scale}" if scale in SCALES else "measured"
    found, wanted = factors[scale], factors["sqrt(d_k)"]
    sentence = (
        f"The scores are multiplied by {found:.3g} ({said}), which should be 1/sqrt(d_k) = {wanted:.3g}."
    )
    return kind, sentence, cure


def words(case: Case) -> list[tuple[str, str, str]]:
    """Kind, sentence and cure of every mistake in the suspect."""
    found = []
    for switch, value in case.suspect.layout.deviations().items():
        if switch == "act":
            kind, sentence, cure = ACT
            found.append((kind, sentence.format(value=value.capitalize()), cure))
        else:
            kind, sentence, cure = LAYOUTS[switch, value]
            if switch == "split" and value == case.suspect.layout.merge == "view":
                sentence += "; they are joined by a view as well, which is to be changed with it"
            found.append((kind, sentence, cure))
    inside = inside_faults(case.suspect.inside)
    if "scale" in inside:
        found.append(scale_words(case))
    found += [said(switch, inside[switch]) for switch in ("softmax", "roles", "always") if switch in inside]
    if "causal_fill" in inside:
        found.append(said("fill", inside["causal_fill"]))
    if "causal_when" in inside:
        found.append(said("when", "after"))
    return found


def said(switch: str, value: str) -> tuple[str, str, str]:
    """Kind, sentence and cure of a habit inside attention: the words are the same as for functions."""
    found = finding(switch, value)
    slip = {"key for value": "w_v(k)", "query for value": "w_v(q)", "query for key": "w_k(q)"}.get(value)
    more = f" Or a layer is given the wrong input: look for {slip}." if switch == "roles" and slip else ""
    return found.kind, found.sentence, found.cure + more
