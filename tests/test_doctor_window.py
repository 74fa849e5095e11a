"""The doctor names what is wrong with attention to a local window, and leaves right ones alone."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from utils.attention import scaled_dot_product_attention
from utils.doctor.report import CONVENTION, NOT_SEPARABLE
from utils.doctor.windows.examine import examine
from utils.efficient import local_attention, local_mask

WIDE, ITSELF, FUTURE, AHEAD = (
    "window too wide",
    "window counts the token itself",
    "sees the future",
    "window looks ahead",
)
BLOCKS, AFTER, RAW, RING = (
    "blocks instead of a sliding window",
    "not renormalised",
    "no normalisation",
    "wraps around",
)
HUB, WEAK, PAD = "global token", "fill too weak", "padding gets a share"


def windowed(  # one knob for each mistake
    *,
    more=0,
    back=True,
    ahead=False,
    block=False,
    ring=False,
    hub=False,
    fill=-math.inf,
    norm="softmax",
    scale=True,
    one_ahead=False,
):
    def attention(q, k, v, window, causal=True):
        n, w = q.shape[-2], window + more
        apart = torch.arange(n)[None, :] - torch.arange(n)[:, None]
        if ring:
            apart = (apart + n // 2) % n - n // 2
        low, high = -w if back else 0, w if ahead or not causal else int(one_ahead)
        keep = (apart >= low) & (apart <= high)
        if block:
            b = torch.arange(n) // max(1, w)
            keep = (b[:, None] == b[None, :]) & (apart <= high)
        if hub:
            keep[:, 0] = True
        scores = q @ k.transpose(-2, -1) / (math.sqrt(q.shape[-1]) if scale else 1.0)
        if norm == "after":
            return (scores.softmax(-1) * keep) @ v
        if norm == "exp":
            return (scores.exp() * keep) @ v
        if norm == "raw":
            return (scores * keep) @ v
        return scores.masked_fill(~keep, fill).softmax(-1) @ v

    return attention


KNOBS = {
    WIDE: dict(more=1),
    ITSELF: dict(more=-1),
    FUTURE: dict(ahead=True),
    "sees one token ahead": dict(one_ahead=True),
    AHEAD: dict(back=False, ahead=True),
    BLOCKS: dict(block=True),
    AFTER: dict(norm="after"),
    RAW: dict(norm="exp"),
    "no softmax": dict(norm="raw"),
    RING: dict(ring=True),
    HUB: dict(hub=True),
    WEAK: dict(fill=-10.0),
    "scale missing": dict(scale=False),
}


def causal_only(**knobs):
    """Without an argument for looking ahead, as in the design's list."""
    attention = windowed(**knobs)
    return lambda q, k, v, w: attention(q, k, v, w, True)


def named(report):
    return {f.kind for f in report.findings}


@pytest.mark.parametrize("kind", KNOBS)
def test_each_mutant_is_named_and_nothing_else(kind):
    report = examine(causal_only(**KNOBS[kind]), "window", is_causal=True)
    assert named(report) == {kind}
    assert all(f.cure for f in report.faults) and report.seconds < 1


@pytest.mark.parametrize("kind", [k for k in KNOBS if k not in (AHEAD, FUTURE)])
def test_each_mutant_with_both_modes_is_named(kind):
    assert kind in named(examine(windowed(**KNOBS[kind])))


def test_causal_ignored():
    assert examine(lambda q, k, v, window, is_causal=False: local_attention(q, k, v, window)).kinds == (
        FUTURE,
    )


def test_whether_the_token_itself_counts_is_a_convention_until_it_is_said():
    own = causal_only(more=-1)
    assert [f.verdict for f in examine(own).findings] == [CONVENTION]
    assert examine(own, counts_self=False).kinds == ("window too narrow",)
    assert examine(own, counts_self=True).findings == ()
    assert examine(causal_only(), counts_self=True).kinds == (WIDE,)
    assert examine(lambda q, k, v, w: local_attention(q, k, v, w // 2)).kinds == ()


def test_unlike_sides_are_a_fault_unless_they_are_a_number_of_keys():
    def one_short(q, k, v, w):
        return under(q, k, v, -w, w - 1)

    def keys_in_all(q, k, v, w):
        return under(q, k, v, -(w // 2), w - 1 - w // 2)

    assert examine(one_short).kinds == ("sides differ",)
    assert named(examine(keys_in_all)) == {"window is the number of keys"}


def under(q, k, v, low, high):
    keep = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(low).tril(high)
    return scaled_dot_product_attention(q, k, v, keep)[0]


def test_two_ways_of_counting_in_one_function_are_a_fault():
    def both(q, k, v, window, causal=False):
        return local_attention(q, k, v, window - 1, True) if causal else local_attention(q, k, v, window)

    assert examine(both).kinds == ("window counted in two ways",)


def test_code_that_fails_for_some_sizes():
    def cuts_blocks(q, k, v, window):
        q.reshape(*q.shape[:-2], -1, window, q.shape[-1])
        return local_attention(q, k, v, window)

    def fills_like_q(q, k, v, window):
        out = torch.zeros_like(q)
        out[...] = local_attention(q, k, v, window)
        return out

    def loops(q, k, v, window):
        assert q.shape[-2] > window, "too short"
        return local_attention(q, k, v, window)

    assert "length must be a multiple of the window" in examine(cuts_blocks).kinds
    assert named(examine(fills_like_q)) == {"d_v must equal d_k"}
    assert named(examine(loops)) == {"short input crashes"}


def test_zero_padding_that_takes_a_share():
    def padded(q, k, v, window):
        n = q.shape[-2]
        k, v = (torch.nn.functional.pad(t, (0, 0, window, 0)) for t in (k, v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        apart = torch.arange(n + window)[None, :] - window - torch.arange(n)[:, None]
        return scores.masked_fill((apart > 0) | (apart < -window), -math.inf).softmax(-1) @ v

    assert examine(padded).kinds == (PAD,)


def test_hidden_scores_of_zero_and_no_window_at_all():
    def multiplied(q, k, v, window):
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) * local_mask(q.shape[-2], window)
        return scores.softmax(-1) @ v

    assert examine(multiplied).kinds == ("hidden scores near zero",)
    assert examine(lambda q, k, v, window: scaled_dot_product_attention(q, k, v)[0]).kinds == (
        "window ignored",
    )


def test_of_two_faults_at_once_both_are_named():
    same = [
        {WIDE, ITSELF},
        {FUTURE, AHEAD, "sees one token ahead"},
        {RING, HUB, BLOCKS},
        {BLOCKS, FUTURE},
        {BLOCKS, AHEAD},
        {BLOCKS, "sees one token ahead"},
        {AFTER, RAW, "no softmax", WEAK},
        {"no softmax"},
        {BLOCKS, WIDE},
        {BLOCKS, ITSELF},
    ]
    pairs = [
        (a, b)
        for a, b in itertools.combinations(KNOBS, 2)
        if not any({a, b} <= group for group in same) and "no softmax" not in (a, b)
    ]
    hits = sum(
        {a, b} <= named(examine(causal_only(**{**KNOBS[a], **KNOBS[b]}), is_causal=True)) for a, b in pairs
    )
    assert hits >= 0.95 * len(pairs)


def test_inputs_that_are_written_into_and_integers():
    def scales_in_place(q, k, v, window):
        q.mul_(2)
        return local_attention(q / 2, k, v, window)

    assert examine(scales_in_place).kinds == ("writes into its input",)


@settings(max_examples=5, deadline=None)
@given(st.sampled_from([torch.float32, torch.float64]), st.integers(0, 2), st.booleans())
def test_windows_like_it_are_right_in_every_shape_and_dtype(dtype, axes, tuple_too):
    def other(q, k, v, w, causal=False):
        q, k, v = (t.reshape(-1, *t.shape[-2:]).to(dtype) for t in (q, k, v))
        out = local_attention(q, k, v, w, causal)
        return (out, out) if tuple_too else out.numpy()

    assert examine(other).findings == ()


def test_the_course_s_own_window_is_right():
    assert examine(local_attention).findings == ()
    assert examine(local_attention, counts_self=False).findings == ()


def test_arguments_in_another_order_arrays_and_modules():
    def turned(values, keys, queries, size):
        return local_attention(queries, keys, values, size)

    def arrays(q, k, v, radius):
        return local_attention(q, k, v, radius) if not torch.is_tensor(q) else 1 / 0

    class Layer(torch.nn.Module):
        def forward(self, q, k, v, window, is_causal=False):
            return local_attention(q, k, v, window, is_causal)

    for patient in (turned, arrays, Layer()):
        assert examine(patient).findings == ()


def test_a_token_that_does_not_see_itself_and_softmax_over_queries():
    def strict(q, k, v, window):
        keep = local_mask(q.shape[-2], window, True).tril(-1)
        return (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~keep, -1e9).softmax(-1) @ v

    def over_queries(q, k, v, window):
        keep = local_mask(q.shape[-2], window)
        return (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~keep, -1e9).softmax(-2) @ v

    def from_the_end(q, k, v, window):  # a negative start counts from the other end
        rows = [slice(i - window, i + window + 1) for i in range(q.shape[-2])]
        parts = [(q[i] @ k[r].T / math.sqrt(q.shape[-1])).softmax(-1) @ v[r] for i, r in enumerate(rows)]
        return torch.stack(parts)

    assert examine(strict).kinds == ("token does not see itself",)
    assert examine(over_queries).kinds == ("softmax over queries",)
    assert examine(from_the_end).kinds == ("wrong at the edges",)


def test_whom_the_doctor_cannot_call_is_not_blamed():
    report = examine(lambda q, k, v, window, config: config.heads)
    assert [(f.kind, f.verdict) for f in report.findings] == [("does not run", NOT_SEPARABLE)]
    assert "window = 3" in report.findings[0].sentence
    assert examine(lambda q, k, v, window: torch.tril(window)).kinds == ("crashes",)


def test_the_identity_is_no_evidence_as_it_was_given_as_v():
    report = examine(windowed_to_itself)
    assert report.kinds and not any(f.evidence for f in report.findings)


def windowed_to_itself(q, k, v, window):
    return (q @ k.mT).masked_fill(~torch.eye(q.shape[-2], dtype=torch.bool), -math.inf).softmax(-1) @ v


def test_patients_that_do_not_answer():
    def raises(q, k, v, window):
        raise KeyError("lost")

    report = examine(raises)
    assert report.kinds == ("crashes",) and "lost" in report.verdict
    assert "no argument for the window" in str(examine(lambda q, k, v: q))


def seen_by(rule, then=lambda weights: weights, value=lambda k, v: v):
    def attention(q, k, v, span):
        at = torch.arange(q.shape[-2])
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        hidden = ~rule(at[:, None], at, span)
        return then(scores.masked_fill(hidden, -torch.inf)) @ value(k, v)

    return attention


def near(i, j, w):
    return (i - j).abs() <= w


def softmax(scores):
    return scores.softmax(-1)


@pytest.mark.parametrize(
    ("patient", "kinds"),
    [
        (seen_by(near, softmax), ()),
        (seen_by(lambda i, j, w: (j <= i) & (i // w - j // w <= 1), softmax), ()),
        (seen_by(lambda i, j, w: ~near(i, j, w), softmax), ("window inverted", "not finite")),
        (seen_by(lambda i, j, w: (j <= i + 1) & (i - j <= w), softmax), ("sees one token ahead",)),
        (seen_by(lambda i, j, w: (j <= i) & (i - j < w), lambda s: s.softmax(-2)), ("softmax over queries",)),
        (seen_by(near, softmax, lambda k, v: k), ("value not used",)),
        (seen_by(near, lambda s: softmax(s).detach()), ("weights detached",)),
        (seen_by(near, lambda s: softmax(softmax(s))), ("softmax twice",)),
    ],
)
def test_what_others_were_seen_to_write(patient, kinds):
    assert examine(patient).kinds == kinds


def test_keys_that_are_counted_twice_at_the_ends():
    def clamped(q, k, v, window):
        at = torch.arange(q.shape[-2])[:, None] + torch.arange(-window, window + 1)
        at = at.clamp(0, q.shape[-2] - 1)
        scores = (q.unsqueeze(-2) * k[..., at, :]).sum(-1) / math.sqrt(q.shape[-1])
        return (scores.softmax(-1).unsqueeze(-1) * v[..., at, :]).sum(-2)

    assert examine(clamped).kinds == ("keys counted several times",)


def test_arrays_like_the_value_are_a_convention():
    def in_numpy(q, k, v, window):
        q, out = q.astype(q.dtype), np.zeros_like(v)
        for i in range(len(q)):
            near = slice(max(0, i - window), i + window + 1)
            exps = np.exp(q[i] @ k[near].T / np.sqrt(q.shape[-1]))
            out[i] = exps / exps.sum() @ v[near]
        return out

    report = examine(in_numpy)
    assert not report.faults and "integer input is rounded" in named(report)
