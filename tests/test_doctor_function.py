"""The doctor on attention functions: every fault is named, compounds too, and right code is left alone."""

import itertools
import math
import random
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.doctor_patients import SINGLES, make
from utils.attention import scaled_dot_product_attention
from utils.doctor.functions.examine import examine
from utils.failures import FAILURES


def kinds(report):
    """All that was named; a rule that only the causal mask shows counts for masks in general."""
    return {f.kind for f in report.findings} | {f.kind.removeprefix("causal ") for f in report.findings}


@pytest.mark.parametrize(("kind", "fault"), SINGLES, ids=[str(fault) for _, fault in SINGLES])
def test_every_single_fault_is_named_and_nothing_else_is_blamed(kind, fault):
    report = examine(make(**fault), "patient")
    assert kind in {f.kind for f in report.findings}, str(report)
    assert set(report.kinds) <= {kind}, str(report)
    if kind in ("mask polarity inverted", "mask added as 0/1"):  # right, if masks were meant so
        assert kind in examine(make(**fault), "patient", mask="keep").kinds
    named = next(f for f in report.findings if f.kind == kind)
    assert named.sentence
    assert named.verdict != "fault" or named.cure


# What a fault does cannot be seen beside another one that makes it void:
VOID = [
    {"softmax": ("queries", "heads", "batch"), "mask": ("inverted", "order"), "causal": ("no self",)},
    {"softmax": ("none", "sigmoid"), "scale": ("after",), "fill": ("after", -1e4, -1e9)},
    {"softmax": ("naive",), "fill": (-1e4,)},
    {"roles": ("swap",), "causal": ("bottom-right",)},
    {"roles": ("reshape", "swap"), "pure": ("in place",)},
    {"scale": ("none", "d_model", "d_k", "times", "n", "after"), "pure": ("in place",)},
]


def together(*cases):
    """The faults of several cases in one patient, or None where one hides the other."""
    faults = {}
    for _, fault in cases:
        if set(fault) & set(faults):
            return None
        faults |= fault
    for rule in VOID:
        first, *rest = rule
        if faults.get(first) in rule[first] and any(faults.get(key) in rule[key] for key in rest):
            return None
    return faults


@pytest.mark.parametrize("size", [2, 3])
def test_compounds_are_named_with_all_their_faults(size):
    compounds = [c for c in itertools.combinations(SINGLES, size) if together(*c)]
    chosen = random.Random(0).sample(compounds, 40)
    missed = []
    for cases in chosen:
        torch.manual_seed(0)
        report = examine(make(**together(*cases)), "patient")
        if not {kind for kind, _ in cases} <= kinds(report):
            missed.append((together(*cases), sorted(kinds(report))))
    assert len(missed) <= 0.05 * len(chosen), missed


# -- right code -----------------------------------------------------------------------------


def scaled_first(q, k, v, mask=None):
    q = q * q.size(-1) ** -0.5
    scores = torch.einsum("...qd,...kd->...qk", q, k)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(-1) @ v


def both_fourth_roots(query, key, value, attn_mask=None, is_causal=False):
    r = query.shape[-1] ** -0.25
    scores = (query * r) @ (key * r).mT
    if is_causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(diagonal=1)
        scores = scores.masked_fill(hidden, float("-inf"))
    if attn_mask is not None:
        scores = scores + torch.zeros(attn_mask.shape).masked_fill(~attn_mask, -torch.inf)
    return scores.softmax(-1) @ value


def renormalised(q, k, v, mask=None):
    w = torch.softmax(q @ k.mT / math.sqrt(k.size(-1)), -1)
    if mask is not None:
        w = w * mask
        w = w / w.sum(-1, keepdim=True)
    return w @ v, w


def low_fill(query, key, value, mask=None, dropout=None):
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = F.softmax(scores, dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn


def additive(q, k, v, attn_bias=None):
    scores = q @ k.mT / math.sqrt(k.size(-1))
    return (scores if attn_bias is None else scores + attn_bias).softmax(-1) @ v


def hidden_where_true(q, k, v, key_padding_mask=None):
    scores = q @ k.mT / math.sqrt(k.size(-1))
    if key_padding_mask is not None:
        scores = scores.masked_fill(key_padding_mask[:, None, None], -torch.inf)
    return scores.softmax(-1) @ v


def batched_only(q, k, v):
    return torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.shape[2]), dim=2), v)


def in_numpy(Q, K, V, mask=None):
    scores = Q @ K.T / np.sqrt(K.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -1e10)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True) @ V


def values_first(values, keys, query):
    return {"weights": (w := (query @ keys.mT / keys.shape[-1] ** 0.5).softmax(-1)), "output": w @ values}


def always_causal(q, k, v):
    scores = q @ k.mT / math.sqrt(k.size(-1))
    return (
        scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf).softmax(-1)
        @ v
    )


def bottom_right(q, k, v, causal=False):
    scores = q @ k.mT / math.sqrt(k.size(-1))
    n, m = scores.shape[-2:]
    if causal:
        scores = scores.masked_fill(~torch.ones(n, m, dtype=torch.bool).tril(m - n), -torch.inf)
    return scores.softmax(-1) @ v


def hidden_by_product(q, k, v, mask):
    scores = q @ k.mT / math.sqrt(k.shape[-1])
    if mask is not None:
        scores += mask * -1e9
    return scores.softmax(-1) @ v, scores.softmax(-1)


def with_a_module(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    weights = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if attention_mask is not None:
        weights = weights + attention_mask
    weights = F.dropout(weights.softmax(-1), p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def no_heads_in_the_mask(q, k, v, d_k, mask=None, dropout=None):
    scores = q @ k.mT / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)
    return scores.softmax(-1) @ v


def numpy_sums(Q, K, V):
    e = np.exp(Q @ K.T / np.sqrt(Q.shape[1]))
    return (e / e.sum(axis=-1)) @ V


def numpy_one_maximum(Q, K, V):
    scores = Q @ K.T / np.sqrt(Q.shape[1])
    e = np.exp(scores - np.max(scores))
    return e / e.sum(axis=-1, keepdims=True) @ V


@pytest.mark.parametrize("fill", [-torch.inf, -1e9])
def test_a_fill_after_softmax_is_named(fill):
    def patient(q, k, v, mask=None):
        weights = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1)
        return (weights if mask is None else weights.masked_fill(~mask, fill)) @ v

    assert "mask after softmax" in examine(patient, "f").kinds


def test_softmax_over_everything_and_its_logarithm():
    everything = lambda q, k, v: (s := (q @ k.mT / 2).exp()) / s.sum() @ v  # noqa: E731
    assert "softmax over all pairs" in examine(everything, "f").kinds
    logarithm = lambda q, k, v: torch.log_softmax(q @ k.mT / 2, -1) @ v  # noqa: E731
    assert "log_softmax instead of softmax" in examine(logarithm, "f").kinds


def test_two_mistakes_of_numpy_code():
    assert set(examine(numpy_sums, "f").kinds) >= {"keepdims missing"}
    assert examine(numpy_one_maximum, "f").kinds == ("one maximum for all rows",)


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, q, k, v, mask=None):
        scores = q @ k.mT / math.sqrt(k.size(-1))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e20)
        return self.dropout(scores.softmax(-1)) @ v


RIGHT = [
    make(),
    F.scaled_dot_product_attention,
    scaled_dot_product_attention,
    scaled_first,
    both_fourth_roots,
    renormalised,
    low_fill,
    additive,
    hidden_where_true,
    batched_only,
    in_numpy,
    values_first,
    always_causal,
    bottom_right,
    hidden_by_product,
    with_a_module,
    no_heads_in_the_mask,
    Module().eval(),
]


@pytest.mark.parametrize("patient", RIGHT, ids=lambda p: getattr(p, "__name__", type(p).__name__))
def test_right_code_is_not_blamed(patient):
    report = examine(patient, "patient")
    assert report.faults == (), str(report)
    assert "no fault found" in report.verdict
    assert report.tried


def test_what_is_a_convention_is_named():
    assert "always causal" in kinds(examine(always_causal, "f"))
    assert "causal aligned bottom-right" in kinds(examine(bottom_right, "f"))
    assert "0 on empty rows" in kinds(examine(scaled_dot_product_attention, "f"))
    assert "mask fill overflows float16" in kinds(examine(low_fill, "f"))


def test_the_meaning_of_a_mask_can_be_told():
    assert examine(make(mask="inverted"), "f", mask="keep").kinds == ("mask polarity inverted",)
    assert examine(make(mask="inverted"), "f").findings[0].verdict == "not separable"
    assert examine(make(mask="inverted"), "f", mask="hide").kinds == ()
    assert examine(make(fill="plus"), "f", mask="keep").kinds == ("mask added as 0/1",)


# -- patients that misbehave ----------------------------------------------------------------


def hangs(q, k, v):
    while True:
        pass


def stops(q, k, v):
    raise ValueError("no <b>idea</b>\nmore")


def writes(q, k, v):
    v += 1
    return scaled_first(q, k, v)


class Remembers:
    past = 0

    def __call__(self, q, k, v):
        self.past = self.past + float(q.sum())
        return scaled_first(q, k, v) + self.past


@pytest.mark.parametrize(
    ("patient", "words"),
    [
        (hangs, "does not return within"),
        (lambda q, k, v: "text", "returns str, but the output should have shape"),
        (lambda q, k, v: None, "returns NoneType"),
        (lambda q, k, v: q[..., :1, :1], "but the output should have shape (2, 3, 5, 6)"),
        (lambda q, k, v: scaled_first(q, k, v) * torch.nan, "are NaN on a plain input"),
        (lambda q, k, v: torch.rand(*q.shape[:-1], v.shape[-1]), "another output each time"),
        (writes, "The caller's value is changed in place"),
        (Remembers(), "depends on what was asked before"),
        (lambda q, k, v: scaled_first(1.7 * q, k, v), "The scores are multiplied by 1.7 / sqrt(d_k)"),
        (lambda q, k, v: torch.softmax(q @ k.mT / k.shape[-1] ** 0.5, -1), "the weights: the output"),
        (lambda q, k, v: scaled_first(q, k, v).detach(), "No gradient reaches query and key and value"),
    ],
)
def test_patients_that_misbehave_are_reported_in_words(patient, words, monkeypatch):
    monkeypatch.setattr("utils.doctor.call.SECONDS", 0.3)
    report = examine(patient, "patient")
    assert report.faults, str(report)
    assert words in str(report)


@pytest.mark.parametrize(
    ("patient", "words"),
    [
        (stops, "It stops: ValueError: no <b>idea</b>"),
        (lambda q: q, "It stops: TypeError"),
        (lambda q, k, v: scaled_first(q, k, v).tanh(), "no known mistake gives these numbers"),
    ],
)
def test_what_cannot_be_judged_is_not_blamed_and_not_praised(patient, words):
    report = examine(patient, "patient")
    assert report.faults == ()
    assert "could not be judged" in report.verdict
    assert words in report.verdict


class Flaky:
    calls = 0

    def __call__(self, q, k, v):
        self.calls += 1
        if self.calls % 3 == 0:
            raise RuntimeError("now and then")
        return scaled_first(q, k, v)


def test_one_that_stops_now_and_then_loses_no_report():
    assert "now and then" in str(examine(Flaky(), "patient"))


def insists(q, k, v, mask):
    scores = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(mask == 0, -1e9)
    return scores.softmax(-1) @ v


def insists_on_hiding(Q, K, V, attn_mask):
    scores = torch.matmul(Q, K.transpose(-1, -2)) / np.sqrt(Q.shape[-1])
    scores.masked_fill_(attn_mask, -1e9)
    return scores.softmax(-1) @ V


def tokens_first(q, k, v):
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)


def one_width(q, k, v):
    return torch.softmax(q @ k.mT * 64**-0.5, -1) @ v


def causal_renormalised(q, k, v):
    w = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1)
    w = w * torch.ones(w.shape[-2:]).tril()
    return w / w.sum(-1, keepdim=True) @ v


@pytest.mark.parametrize(
    "patient", [insists, insists_on_hiding, tokens_first, one_width, causal_renormalised]
)
def test_more_right_code_is_not_blamed(patient):
    report = examine(patient, "patient")
    assert report.faults == (), str(report)
    assert "could not be judged" not in report.verdict


@pytest.mark.parametrize(
    ("triangle", "fill", "kind"),
    [
        (lambda o: o.triu(), -torch.inf, "causal upper triangle"),
        (lambda o: o.tril(1), -torch.inf, "causal sees one ahead"),
        (lambda o: o.tril(-1), -1e9, "causal excludes self"),
        (lambda o: o.tril(), 1e-9, "causal mask fill near zero"),
    ],
)
def test_a_causal_mask_that_nobody_asked_for_is_examined_too(triangle, fill, kind):
    def patient(q, k, v):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        allowed = triangle(torch.ones(scores.shape[-2:], dtype=torch.bool))
        return scores.masked_fill(~allowed, fill).softmax(-1) @ v

    assert examine(patient, "patient").kinds == (kind,)


def test_a_report_escapes_what_the_patient_says():
    page = examine(stops, "<script>")._repr_mimebundle_()["text/html"]
    assert "<script>" not in page
    assert "&lt;b&gt;idea" in page


def test_a_report_shows_numbers_found_and_wanted():
    report = examine(make(scale="none"), "f")
    evidence = report.findings[0].evidence[0]
    assert evidence.found.shape == evidence.wanted.shape == (3, 3)
    assert not np.allclose(evidence.found, evidence.wanted)
    assert np.allclose(evidence.wanted.sum(1), 1)
    assert "should be" in str(report)


@pytest.mark.parametrize(
    "fault",
    [
        {"scale": "none"},
        {"softmax": "heads"},
        {"mask": "rows"},
        {"mask": "order"},
        {"causal": "upper"},
        {"roles": "swap"},
        {"fill": -10.0},
    ],
)
def test_what_is_shown_is_what_the_patient_returned(fault):
    answers, faulty = [], make(**fault)

    def patient(q, k, v, mask=None, causal=False):
        answers.append(faulty(q, k, v, mask, causal)[0])
        return answers[-1]

    found = examine(patient, "f").faults[0].evidence[0].found
    heads = [head.numpy() for answer in answers if answer.shape[-2] == 3 for head in answer[0]]
    assert any(np.allclose(found, head[:, : found.shape[1]], equal_nan=True) for head in heads)


def test_what_is_shown_of_a_causal_mask_that_nobody_asked_for():
    def patient(q, k, v):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool).triu()
        return scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ v

    shown = examine(patient, "f").faults[0].evidence[0]
    assert not np.tril(shown.found, -1).any()
    assert not np.triu(shown.wanted, 1).any()


def test_it_takes_less_than_a_second():
    patient = make(scale="d_model", causal="upper")
    examine(patient, "f")
    start = time.process_time()
    examine(patient, "f")
    assert time.process_time() - start < 1


# -- as others write it: one line each, by what is done to scores, weights and output ----------------


def low(scores, mask):
    return scores.masked_fill(mask == 0, -1e9)


def written(scale=lambda d, q: d**-0.5, bend=lambda s: s, out=lambda o, w, s: o, masked=low):
    def attention(q, k, v, mask=None):
        scores = bend(q @ k.mT * scale(q.shape[-1], q))
        scores = scores if mask is None else masked(scores, mask)
        weights = scores.softmax(-1)
        return out(weights @ v, weights, scores)

    return attention


def fills(number):
    return written(masked=lambda s, m: s.masked_fill(m == 0, number))


@pytest.mark.parametrize("fill", [-1e4, -9999.0, -65504.0, -1e9, -torch.inf])
def test_a_fill_that_is_low_enough_is_no_fault(fill):
    assert not examine(fills(fill), "patient").faults


@pytest.mark.parametrize(("fill", "kind"), [(-10, "weak"), (-50, "weak"), (-100, "weak"), (-1000, "finite")])
def test_a_fill_is_measured(fill, kind):
    report = examine(fills(float(fill)), "patient")
    named = [f for f in report.findings if kind in f.kind]
    assert f"fills with {fill}" in named[0].sentence, str(report)
    assert len(named[0].evidence) == (kind == "weak")


@pytest.mark.parametrize(("mask", "does"), [("keep", "hides"), ("hide", "sees")])
def test_polarity_is_told_as_it_was_asked_and_found(mask, does):
    other = {"keep": lambda s, m: s.masked_fill(m, -1e9), "hide": low}[mask]
    report = examine(written(masked=other), "patient", mask=mask)
    assert report.kinds == ("mask polarity inverted",)
    assert f"it {does} the keys that are marked True" in str(report)


@pytest.mark.parametrize(
    ("patient", "words"),
    [
        (written(scale=lambda d, q: 2 * d**-0.5), "multiplied by 2 / sqrt(d_k)"),
        (written(scale=lambda d, q: len(q) ** -0.5), "the number of sequences"),
        (written(scale=lambda d, q: (d + 1) ** -0.5), "0.4472 for d_k = 4 and 0.3015 for d_k = 10"),
        (written(scale=lambda d, q: 1 / int(d**0.5)), "0.5 for d_k = 4 and 0.3333 for d_k = 10"),
        (written(scale=lambda d, q: 512**-0.5), "whatever the width of a head"),
        (written(bend=lambda s: s.clamp(-5, 5)), "clipped, or squashed, at 5"),
        (written(bend=lambda s: s.clamp(-1, 1)), "clipped, or squashed, at 1"),
        (written(bend=torch.relu), "scores clipped at 0"),
        (written(bend=torch.tanh), "scores squashed"),
        (written(bend=torch.neg), "scores negated"),
        (written(bend=torch.abs), "scores without sign"),
        (lambda q, k, v: written()(v, k, q), "query and value swapped"),
        (lambda q, k, v, dropout_p=0.1: F.dropout(scaled_first(q, k, v), dropout_p), "dropout on in eval"),
        (
            written(out=lambda o, w, s: o.reshape(len(o), o.shape[-2], -1) if o.ndim == 4 else o),
            "merged by view",
        ),
        (written(out=lambda o, w, s: (o, s)), "scores returned as weights"),
        (written(out=lambda o, w, s: (o, w.mT)), "returned weights are transposed"),
        (written(out=lambda o, w, s: (o, w**2)), "another result beside the output"),
        (written(out=lambda o, w, s: o.transpose(1, 2) if o.ndim == 4 else o), "output in another order"),
        (written(out=lambda o, w, s: o.float()), "float16 becomes float32"),
        (written(masked=lambda s, m: low(s, m.mT)), "mask transposed"),
        (
            written(masked=lambda s, m: low(s, m.clone()) + 0 * m.logical_not_()),
            "mask changed in place",
        ),
        (written(masked=lambda s, m: s.masked_fill(~m, 1e9)), "mask fill positive"),
    ],
)
def test_what_others_were_seen_to_write_is_named(patient, words):
    assert words in str(examine(patient, "patient"))


def mask_or_causality(q, k, v, mask=None, causal=False):
    if mask is not None:
        return scaled_first(q, k, v, mask)
    return both_fourth_roots(q, k, v, is_causal=causal)


def test_causality_that_is_lost_beside_a_mask():
    assert examine(mask_or_causality, "patient").kinds == ("causality lost beside the other",)


def informer(queries, keys, values, attn_mask=None):
    n, width = queries.shape[1], queries.shape[-1]
    scores = torch.einsum("blhe,bshe->bhls", queries, keys) / math.sqrt(width)
    mask = torch.ones(n, n, dtype=torch.bool).triu(1) if attn_mask is None else attn_mask
    return torch.einsum("bhls,bshd->blhd", scores.masked_fill(mask, -torch.inf).softmax(-1), values)


def features_before_tokens(q, k, v):
    return (scaled_first(q.mT, k.mT, v.mT)).mT


def soft_cap(q, k, v):
    scores = q @ k.mT / math.sqrt(k.shape[-1])
    return (30 * torch.tanh(scores / 30)).softmax(-1) @ v


@pytest.mark.parametrize("patient", [informer, features_before_tokens, soft_cap])
def test_right_code_in_another_layout_or_with_a_soft_cap_is_understood(patient):
    report = examine(patient, "patient")
    assert not report.faults, str(report)
    assert "not recognised" not in str(report)


@pytest.mark.parametrize("name", sorted(FAILURES))
def test_of_the_gallery_each_is_called_by_one_name(name):
    report = examine(FAILURES[name], name)
    named = [f.kind for f in report.findings if f.verdict != "convention"]
    assert len(named) == (name != "J"), str(report)  # NaN on empty rows is a convention
    assert report.seconds < 3  # alone it takes less than one
