"""The doctor names what is wrong with a builder of masks, and leaves right ones alone."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from utils.attention import as_additive, causal_mask, padding_mask
from utils.doctor.masks.examine import examine
from utils.doctor.report import CONVENTION, NOT_SEPARABLE
from utils.efficient import local_mask

DIAGONAL, UPPER, AHEAD = "diagonal excluded", "upper triangle", "sees one token ahead"
HIDDEN, ADDED, NUMBERS, AXES = "marked means hidden", "added to scores", "zeros and ones", "extra axes"
WEAK, NEAR, POSITIVE, OVERFLOW = (
    "fill too weak",
    "fill near zero",
    "fill is positive",
    "fill overflows float16",
)
VISIBLE, LAST, ROWS = "one padded token visible", "last token hidden", "query rows hidden instead of keys"
EACH_OTHER, INVERTED = "padded tokens see each other", "padding inverted"


def ones(n):
    return torch.ones(n, n, dtype=torch.bool)


def named(report):
    return {f.kind for f in report.findings}


# -- the future ----------------------------------------------------------------------------------

KEEP = {
    DIAGONAL: lambda n: ones(n).tril(-1),
    AHEAD: lambda n: ones(n).tril(1),
    UPPER: lambda n: ones(n).triu(),
    "hides nothing": ones,
    "hides everything": lambda n: ~ones(n),
}


@pytest.mark.parametrize("kind", KEEP)
def test_triangles_that_are_kept(kind):
    assert examine(KEEP[kind], means="keep").kinds == (kind,)
    assert examine(lambda n: ~KEEP[kind](n), means="hide").kinds == (kind,)
    assert (
        examine(lambda n: as_additive(KEEP[kind](n), torch.float32)).kinds == (kind,)
        or kind == "hides nothing"
    )


@pytest.mark.parametrize("build", [lambda n: ones(n).triu(), lambda n: ones(n).tril(-1)])
def test_triangles_that_are_right_in_neither_reading(build):
    assert examine(build).kinds == (DIAGONAL,)


def test_the_strict_upper_triangle_hides_the_future():
    assert named(examine(lambda n: ones(n).triu(1))) == {HIDDEN}
    assert examine(lambda n: ones(n).triu(1), means="hide").findings == ()
    assert examine(lambda n: ones(n).triu(1), means="keep").kinds == (UPPER,)
    assert examine(lambda n: ones(n).triu(2)).kinds == (AHEAD,)


def filled(fill):
    return lambda n: torch.zeros(n, n).masked_fill(ones(n).triu(1), fill)


@pytest.mark.parametrize(("fill", "kind"), [(-10.0, WEAK), (-1e-9, NEAR), (1e-9, NEAR), (1e9, POSITIVE)])
def test_fills_that_do_not_hide(fill, kind):
    assert examine(filled(fill)).kinds == (kind,)


def test_fills_that_do():
    assert named(examine(filled(-math.inf))) == {ADDED}
    assert named(examine(filled(-1e4))) == {ADDED}
    assert named(examine(filled(-1e9))) == {ADDED, OVERFLOW}
    assert examine(filled(-1e9)).kinds == ()
    assert "not finite" in examine(lambda n: torch.ones(n, n).triu(1) * -math.inf).kinds


def test_zeros_and_ones_are_warned_of():
    report = examine(lambda n: torch.tril(torch.ones(n, n)))
    assert [(f.kind, f.verdict) for f in report.findings] == [(NUMBERS, CONVENTION)]
    assert named(examine(lambda size: np.triu(np.ones((1, size, size)), k=1) == 0)) == {AXES}


def test_the_diagonal_with_fewer_queries_than_keys():
    def bottom_right(n_q, n_k):
        return torch.ones(n_q, n_k, dtype=torch.bool).tril(n_k - n_q)

    assert named(examine(causal_mask)) == {"diagonal from the top left"}
    assert named(examine(bottom_right)) == {"diagonal from the bottom right"}
    assert examine(lambda n_q, n_k: causal_mask(n_k, n_q)).kinds == ("wrong shape",)
    assert examine(lambda n: ones(n + 1).tril()).kinds == ("wrong shape",)


def test_two_faults_of_a_causal_mask_are_both_named():
    kinds = [DIAGONAL, AHEAD, UPPER, "hides everything"]
    for kind, (fill, weak) in itertools.product(kinds, [(-10.0, WEAK), (-1e-9, NEAR), (1e9, POSITIVE)]):
        patient = lambda n, k=kind, f=fill: torch.zeros(n, n).masked_fill(~KEEP[k](n), f)  # noqa: E731
        assert named(examine(patient)) == {kind, weak, ADDED}


# -- padding -------------------------------------------------------------------------------------


def real(lengths, n, more=0):
    return torch.arange(n) < lengths[:, None] + more


PADDING = {
    VISIBLE: lambda lengths, n: real(lengths, n, 1)[:, None],
    LAST: lambda lengths, n: real(lengths, n, -1)[:, None],
    ROWS: lambda lengths, n: real(lengths, n)[:, :, None],
    ROWS + " (square)": lambda lengths, n: real(lengths, n)[:, :, None].expand(-1, -1, n),
    EACH_OTHER: lambda lengths, n: real(lengths, n)[:, None] == real(lengths, n)[:, :, None],
    "a token is hidden only if query and key are padding": lambda lengths, n: (
        real(lengths, n)[:, None] | real(lengths, n)[:, :, None]
    ),
    "wrong shape": lambda lengths, n: real(lengths, n).T,
    "hides nothing": lambda lengths, n: torch.ones(len(lengths), 1, n, dtype=torch.bool),
}


@pytest.mark.parametrize("kind", PADDING)
def test_padding_masks(kind):
    assert examine(PADDING[kind]).kinds == (kind.removesuffix(" (square)"),)
    if kind != "wrong shape":
        assert examine(lambda lengths, n: ~PADDING[kind](lengths, n)).kinds == (
            kind.removesuffix(" (square)"),
        )


def test_inverted_padding_is_a_fault_where_the_meaning_is_known():
    assert examine(lambda lengths, n: ~real(lengths, n), means="keep").kinds == (INVERTED,)
    assert examine(lambda lengths, n: real(lengths, n), means="hide").kinds == (INVERTED,)
    assert named(examine(lambda lengths, n: ~real(lengths, n))) == {HIDDEN}
    assert examine(lambda lengths, n: real(lengths, n) * -1e4).kinds == (INVERTED,)


def test_padding_from_ids():
    assert named(examine(lambda ids, pad_id: (ids != pad_id)[:, None, None])) == {AXES}
    assert named(examine(lambda src, pad=0: src == pad)) == {HIDDEN}
    assert examine(lambda ids, pad_id=0: ids != 0).kinds == ("pad_id is ignored",)
    assert examine(lambda ids, pad_id: ids[:, :, None].ne(pad_id) == ids[:, None].ne(pad_id)).kinds == (
        EACH_OTHER,
    )


def test_padding_and_future_together():
    def decoder(tgt, pad_id):
        return (tgt != pad_id)[:, None, None] & causal_mask(tgt.shape[1])

    assert named(examine(decoder)) == {AXES}
    assert named(examine(lambda x: causal_mask(x.shape[1]), species="padding")) == {"hides the future only"}
    assert examine(
        lambda tgt, pad_id: real(torch.tensor([2, 5, 3]), 5, 1)[:, None] & causal_mask(5)
    ).kinds == (VISIBLE,)


def test_other_choices_are_conventions():
    both = lambda lengths, n: real(lengths, n)[:, None] & real(lengths, n)[:, :, None]  # noqa: E731
    left = lambda lengths, n: (torch.arange(n) >= n - lengths[:, None])[:, None]  # noqa: E731
    assert named(examine(both)) == {"padded queries see nothing"}
    assert named(examine(left)) == {"padding on the left"}


def test_the_order_of_heads_and_batch():
    def repeated(lengths, n, num_heads):
        return real(lengths, n)[:, None].expand(-1, n, -1).repeat(num_heads, 1, 1)

    def interleaved(lengths, n, num_heads):
        return real(lengths, n)[:, None].expand(-1, n, -1).repeat_interleave(num_heads, 0)

    assert examine(repeated).kinds == ("heads before batch",)
    assert examine(interleaved).findings == ()


def test_two_faults_of_a_padding_mask_are_both_named():
    fills = [(-10.0, WEAK), (-1e-9, NEAR), (1e9, POSITIVE)]
    for kind, (fill, weak) in itertools.product([VISIBLE, LAST, ROWS, EACH_OTHER], fills):

        def patient(lengths, n, kind=kind, fill=fill):
            keep = PADDING[kind](lengths, n)
            return torch.zeros(keep.shape).masked_fill(~keep, fill)

        assert named(examine(patient)) == {kind, weak, ADDED}


# -- what must not be blamed -----------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(
        [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float64]
    ),
    st.booleans(),
    st.integers(0, 2),
    st.booleans(),
)
def test_right_masks_in_every_dtype_and_shape(dtype, hide, axes, arrays):
    def dressed(keep):
        mask = (~keep if hide else keep).to(dtype).reshape(*keep.shape[:-2], *[1] * axes, *keep.shape[-2:])
        return mask.numpy() if arrays and dtype != torch.bfloat16 else mask

    assert examine(lambda n: dressed(causal_mask(n))).kinds == ()
    assert examine(lambda lengths, n: dressed(padding_mask(lengths, n))).kinds == ()


def test_the_course_s_own_masks_and_the_stock_ones_are_right():
    assert examine(padding_mask).findings == ()
    assert examine(causal_mask).kinds == ()
    assert examine(nn.Transformer.generate_square_subsequent_mask).kinds == ()
    assert examine(lambda n: torch.tril(torch.ones(n, n)) == 0).kinds == ()
    assert examine(lambda sz: torch.full((sz, sz), -math.inf).triu(1)).kinds == ()
    assert examine(lambda sz: torch.full((sz, sz), torch.finfo(torch.float32).min).triu(1)).kinds == ()


def test_masks_of_other_kinds_are_not_blamed():
    assert named(examine(lambda n: local_mask(n, 2))) == {"hides what is far"}
    assert named(examine(lambda n: local_mask(n, 1, True))) == {"hides what is far"}
    assert examine(lambda n: torch.eye(n) == 1).kinds == ("sees only itself",)
    assert examine(lambda ids: (1.0 - (ids != 0).float()) * -10000.0).kinds == ()


def test_builders_that_take_a_mask_are_given_one():
    def extended(attention_mask):
        return (1.0 - attention_mask[:, None, None, :].float()) * torch.finfo(torch.float32).min

    def expanded(mask, dtype, tgt_len=None):
        hidden = 1.0 - mask[:, None, None, :].expand(-1, 1, tgt_len or mask.shape[1], -1).to(dtype)
        return hidden.masked_fill(hidden.bool(), torch.finfo(dtype).min)

    assert examine(extended).kinds == () and examine(expanded).kinds == ()
    assert examine(lambda key_padding_mask: ~key_padding_mask[:, None]).kinds == ()
    assert examine(lambda padding_mask: padding_mask[:, None] * -1e9).kinds == ()
    assert examine(lambda attention_mask: attention_mask[:, None].float() * -1e9).kinds == (INVERTED,)


def test_windows_and_prefixes_are_given_small_numbers():
    def far(n):
        return (torch.arange(n)[:, None] - torch.arange(n)).abs()

    def prefixed(n, prefix=9):
        return ones(n).tril() | (torch.arange(n) < prefix)

    assert named(examine(lambda seq_len, window_size: far(seq_len) <= window_size)) == {"hides what is far"}
    assert named(examine(lambda window, n: (far(n) < window) & ones(n).tril())) == {"hides what is far"}
    assert named(examine(prefixed)) == {"a prefix seen by all"}
    report = examine(lambda n, stride: far(n) % 3 == 1)
    assert [(f.kind, f.verdict) for f in report.findings] == [("a pattern of its own", NOT_SEPARABLE)]


def test_two_batches_of_ids_and_a_shape():
    assert examine(lambda seq_q, seq_k: (seq_k == 0)[:, None].expand(-1, seq_q.shape[1], -1)).kinds == ()
    assert examine(lambda input_shape: ones(input_shape[1]).tril().expand(input_shape[0], -1, -1)).kinds == ()


def test_a_wrong_triangle_beside_right_padding_is_named():
    def decoder(triangle):
        return lambda trg, pad_id: (trg != pad_id)[:, None, None] & triangle

    assert examine(decoder(ones(5).triu())).kinds == (UPPER,)
    assert examine(decoder(ones(5).triu(1))).kinds == (UPPER,)
    assert examine(decoder(ones(5).tril(-1))).kinds == (DIAGONAL,)
    joined = examine(lambda trg, pad_id: (trg != pad_id)[:, None, None] | ones(5).tril())
    assert joined.kinds == ("padding or future: joined with or",)


def test_the_sum_of_two_strong_fills_is_as_good_as_one():
    def decoder(fill):
        return lambda ids, pad_id: (ids == pad_id)[:, None] * fill + torch.full((5, 5), fill).triu(1)

    assert examine(decoder(-1e9)).kinds == ()
    assert set(examine(decoder(-3.0)).kinds) == {"several fills", WEAK}


def test_whom_the_doctor_cannot_call_is_not_blamed():
    for patient in (lambda config: config.n, lambda src, tgt: (src == 0, tgt == 0), lambda n, opt: opt.x):
        report = examine(patient)
        assert [f.verdict for f in report.findings] == [NOT_SEPARABLE]
        assert "could not be judged" in report.verdict
    assert "Called with: 5; 5" in examine(lambda n, opt: opt.x).findings[0].sentence
    assert examine(lambda n: torch.tril(n)).kinds == ("crashes",)  # n is surely a number


def test_patients_that_do_not_answer():
    def raises(n):
        raise KeyError("lost")

    report = examine(raises)
    assert report.kinds == ("crashes",) and "lost" in report.verdict and report.seconds < 1
    assert examine(lambda n: "a").kinds == ("returns no result",)
    with pytest.raises(ValueError, match="means"):
        examine(raises, means="drop")


def of_ids(name, body="({0} != 0)[:, None, None]"):
    return eval(f"lambda {name}: {body.format(name)}")


BATCHES = [
    *(of_ids(name) for name in ("inp", "sequence", "data", "enc_inputs", "y", "x")),
    of_ids("seq", "({0} == 0).astype('float32')[:, None, None]"),  # numpy only
    of_ids("src", "({0} != 1)[:, None]"),
    of_ids("tensor", "torch.zeros({0}.size(0), {0}.size(0)).fill_(-torch.inf).triu(1)"),
    of_ids("block_size", "ones({0}).tril()[None, None]"),
    of_ids("window", "ones({0}).tril()"),
    lambda B, L: ones(L).triu(1).expand(B, 1, L, L),
    lambda batch_size, seq_len: ones(seq_len).tril().expand(batch_size, 1, seq_len, seq_len),
    lambda src_lens, max_len: torch.stack([torch.arange(max_len) >= n for n in src_lens]),
    lambda sizes, L: torch.arange(L)[None] < sizes[:, None],
    lambda num_tokens, max_len: torch.arange(max_len)[None] < num_tokens[:, None],
]


@pytest.mark.parametrize("patient", BATCHES)
def test_builders_are_called_as_they_want_to_be_whatever_their_names(patient):
    report = examine(patient)
    assert not report.faults and "could not" not in report.verdict, str(report)


def band_mask(back, ahead):
    def build(seq_len, window_size):
        apart = torch.arange(seq_len)[:, None] - torch.arange(seq_len)
        return (apart <= back(window_size)) & (apart >= -ahead(window_size))

    return build


@pytest.mark.parametrize(
    ("patient", "kinds"),
    [
        (band_mask(lambda w: w - 1, lambda w: 1), ("sees one token ahead",)),
        (band_mask(lambda w: w, lambda w: w - 1), ("sides differ",)),
        (band_mask(lambda w: w, lambda w: w), ()),
        (band_mask(lambda w: w - 1, lambda w: 0), ()),
        (lambda n: ones(n).float().triu(1) * -torch.inf, ("not finite",)),
        (lambda n: torch.arange(n) - torch.arange(n)[:, None], ()),
        (lambda heads, n: -torch.arange(1, heads + 1)[:, None, None] * torch.arange(n).float(), ()),
    ],
)
def test_windows_of_two_sizes_and_what_is_no_mask(patient, kinds):
    assert examine(patient).kinds == kinds
