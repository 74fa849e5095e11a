"""The doctor names what is wrong with a position encoding, and leaves right ones alone."""

import itertools
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from utils.doctor.positions.examine import examine
from utils.doctor.report import CONVENTION, FAULT, NOT_SEPARABLE
from utils.positional import LearnedPositions, SinusoidalPositions, sinusoidal_positions

BASE = 10000.0
BASE_1000, DOUBLED, HALVED = "base is 1000, not 10000", "exponent doubled", "exponent halved"
SHIFTED, SINES, INVERTED = "cosine exponent shifted", "sines only", "frequencies inverted"
INTEGER, PRECEDENCE, LATE = (
    "integer division in the exponent",
    "precedence of the operators",
    "exponent starts late",
)
HALF, ODD, OVER = "positions in half precision", "odd width crashes", "exponent over d_model - 1"


def table(
    n,
    d,
    *,
    base=BASE,
    factor=1.0,
    over=0,
    shift=0,
    late=0,
    order="sc",
    halves=False,
    start=0,
    scale=1.0,
    power=-1,
    dtype=torch.float32,
    pos_dtype=torch.float64,
):
    """The table as a learner writes it, with one knob for each mistake."""
    pos = torch.arange(start, n + start, dtype=pos_dtype).double()[:, None]
    i = torch.arange(0, d, 2, dtype=torch.float64) + late
    first = pos * base ** (power * factor * i / (d + over))
    second = pos * base ** (power * factor * (i + shift) / (d + over))
    parts = [
        first.sin() if order[0] == "s" else first.cos(),
        second.sin() if order[1] == "s" else second.cos(),
    ]
    pe = torch.zeros(n, d, dtype=torch.float64)
    if halves:
        pe = torch.cat(parts, -1)[:, :d]
    else:
        pe[:, 0::2], pe[:, 1::2] = parts[0], parts[1][:, : d // 2]
    return (scale * pe).to(dtype)


KNOBS = {
    DOUBLED: dict(factor=2.0),
    HALVED: dict(factor=0.5),
    OVER: dict(over=-1),
    "wavelengths end at the base": dict(over=-2),
    BASE_1000: dict(base=1000.0),
    INVERTED: dict(power=1),
    SHIFTED: dict(shift=1),
    SHIFTED + " by a pair": dict(shift=2),
    SINES: dict(order="ss"),
    "cosines only": dict(order="cc"),
    "halves layout": dict(halves=True),
    "cosine first": dict(order="cs"),
    "positions start at 1": dict(start=1),
    "code added twice": dict(scale=2.0),
    "code scaled": dict(scale=4.0),
    HALF: dict(pos_dtype=torch.bfloat16),
    LATE: dict(late=2),
}


def named(report):
    return {f.kind for f in report.findings}


@pytest.mark.parametrize("knob", KNOBS)
def test_each_way_to_write_the_table_wrongly_is_named_and_nothing_else(knob):
    report = examine(lambda n, d: table(n, d, **KNOBS[knob]), "pe")
    assert named(report) == {knob.removesuffix(" by a pair")}


def test_a_base_is_measured_not_looked_up():
    assert "base is 777, not 10000" in examine(lambda n, d: table(n, d, base=777.0)).kinds
    assert examine(lambda n, d: table(n, d, base=777.0), base=777.0).kinds == ()


@pytest.mark.parametrize(
    ("base", "shown"),
    [(math.e**4, "54.6"), (10 ** math.log(1e4), "1.62e+09"), (10.0, "10"), (math.pi * 1000, "3141.59")],
)
def test_a_strange_base_has_one_cause(base, shown):
    assert examine(lambda n, d: table(n, d, base=base)).kinds == (f"base is {shown}, not 10000",)


def not_divided(n, d):
    return [
        [
            math.sin(p / 10000 ** (2 * (j // 2))) if j % 2 == 0 else math.cos(p / 10000 ** (2 * (j // 2)))
            for j in range(d)
        ]
        for p in range(n)
    ]


def with_angles(angle):
    def encoding(seq_len, d_model):
        pos, i = np.arange(seq_len)[:, None], np.arange(d_model // 2 + d_model % 2)[None, :]
        pe = np.zeros((seq_len, d_model))
        angles = angle(pos, i, d_model)
        pe[:, 0::2], pe[:, 1::2] = np.sin(angles), np.cos(angles)[:, : d_model // 2]
        return pe

    return encoding


PRECEDENCES = [
    lambda pos, i, d: pos / 10000 ** (2 * i) / d,
    lambda pos, i, d: pos / 10000**2 * i / d,
    lambda pos, i, d: pos * (np.exp(2.0 * i) * -math.log(10000.0) / d),
    lambda pos, i, d: (pos / 10000) ** (2 * i / d),
]


@pytest.mark.parametrize("angle", PRECEDENCES)
def test_misplaced_parentheses(angle):
    assert examine(with_angles(angle)).kinds == (PRECEDENCE,)


def test_the_exponent_as_a_whole_number_or_without_d_model():
    assert examine(with_angles(lambda pos, i, d: pos / 10000 ** (2 * i // d))).kinds == (INTEGER,)
    assert examine(not_divided).kinds == ("exponent not divided by d_model",)


def test_an_odd_width_that_crashes_and_one_that_is_refused():
    def crashes(n, d):
        pe, a = torch.zeros(n, d), torch.arange(n)[:, None] * BASE ** (-torch.arange(0, d, 2) / d)
        pe[:, 0::2], pe[:, 1::2] = a.sin(), a.cos()
        return pe

    def refuses(n, d):
        if d % 2:
            raise ValueError("d must be even")
        return crashes(n, d)

    report = examine(crashes)
    assert [(f.kind, f.verdict) for f in report.findings] == [(ODD, CONVENTION)]
    assert "even widths only" in report.findings[0].sentence
    assert named(examine(refuses)) == {"even widths only"}


def test_positions_in_half_precision():
    def float16(seq_len, dim):
        a = torch.arange(seq_len, dtype=torch.float16)[:, None].float() * BASE ** (
            -torch.arange(0, dim, 2) / dim
        )
        return torch.stack([a.sin(), a.cos()], -1).flatten(1)[:, :dim]

    def all_in_bfloat16(seq_len, dim):
        a = torch.arange(seq_len).bfloat16()[:, None] * (BASE ** (-torch.arange(0, dim, 2) / dim)).bfloat16()
        return torch.stack([a.sin(), a.cos()], -1).flatten(1)[:, :dim]

    assert examine(float16).kinds == (HALF,)
    assert examine(all_in_bfloat16).kinds == (HALF,)


def test_functions_that_are_random_or_depend_on_the_length():
    assert examine(lambda n, d: torch.randn(n, d)).kinds == ("random on each call",)
    assert (
        "code depends on the length"
        in examine(lambda n, d: (torch.arange(n)[:, None] / n).expand(n, d)).kinds
    )


def compounds():
    """Pairs of knobs that do not turn the same thing."""
    same = [
        {DOUBLED, HALVED, BASE_1000, OVER, "wavelengths end at the base"},
        {"code added twice", "code scaled"},
        {SHIFTED, SHIFTED + " by a pair", LATE},
        {SINES, "cosines only", "cosine first"},
        {INVERTED, HALF, OVER, "wavelengths end at the base"},
    ]
    for a, b in itertools.combinations(KNOBS, 2):
        if not any(a in group and b in group for group in same) or {a, b} in (
            {HALVED, BASE_1000},
            {OVER, BASE_1000},
        ):
            yield a, b


def test_of_two_faults_at_once_both_are_named():
    pairs = random.Random(3).sample(list(compounds()), 20)
    hits = 0
    for a, b in pairs:
        found = named(examine(lambda n, d, a=a, b=b: table(n, d, **KNOBS[a], **KNOBS[b])))
        wanted = {a.removesuffix(" by a pair"), b.removesuffix(" by a pair")}
        if wanted == {SHIFTED, "cosine first"}:  # the second column is the sine then
            wanted = {"sine exponent shifted", "cosine first"}
        hits += wanted == found
    assert hits >= 0.95 * len(pairs)


# -- modules -----------------------------------------------------------------------------------


class Encoding(nn.Module):
    """The tutorial's module, whose parts the mutants change."""

    def __init__(self, d_model=16, dropout=0.1, max_len=5000, **knobs):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.keep(table(max_len, d_model, **knobs)[None])

    def keep(self, pe):
        self.register_buffer("pe", pe)

    def forward(self, x):
        return self.dropout(x + self.pe[:, : x.size(1)])


def variant(forward=None, keep=None):
    members = {k: v for k, v in (("forward", forward), ("keep", keep)) if v}
    return type("Mutant", (Encoding,), members)


def pe(self, x):
    return self.pe[:, : x.size(1)]


def grows_wrongly(self, x):
    if x.size(1) > 50 and not hasattr(self, "grown"):
        self.grown, self.pe = True, self.pe[:, : x.size(1)]
    return x + self.pe[:, : x.size(1)]


def overwrites(self, x):
    y = x + pe(self, x)
    self.pe = self.pe * 1.5
    return y


FAULTS = {
    "sequence first": (lambda s, x: x + s.pe.transpose(0, 1)[: x.size(0)], None, CONVENTION),
    "one row for all tokens": (lambda s, x: x + s.pe[:, x.size(1)], None, FAULT),
    "input added twice": (lambda s, x: x + (x + pe(s, x)), None, FAULT),
    "code added twice": (lambda s, x: x + 2 * pe(s, x), None, FAULT),
    "returns the code alone": (pe, None, CONVENTION),
    "writes into its input": (lambda s, x: x.add_(pe(s, x)), None, FAULT),
    "scaled after adding": (lambda s, x: (x + pe(s, x)) * math.sqrt(x.size(-1)), None, FAULT),
    "input scaled first": (lambda s, x: x * math.sqrt(x.size(-1)) + pe(s, x), None, CONVENTION),
    "code scaled": (lambda s, x: x + pe(s, x) * math.sqrt(x.size(-1)), None, FAULT),
    "no position added": (lambda s, x: x, None, FAULT),
    "random on each call": (lambda s, x: x + torch.randn_like(x), None, FAULT),
    "dropout in eval mode": (lambda s, x: nn.functional.dropout(x + pe(s, x), 0.1), None, FAULT),
    "table is not registered": (None, lambda s, t: setattr(s, "pe", t), FAULT),
    "table is trainable": (None, lambda s, t: setattr(s, "pe", nn.Parameter(t)), FAULT),
    "multiplied instead of added": (lambda s, x: x * pe(s, x), None, FAULT),
    "state changed by an earlier call": (overwrites, None, FAULT),
    "state changed by an earlier call (grown)": (grows_wrongly, None, FAULT),
    "concatenated, not added": (lambda s, x: torch.cat([x, pe(s, x).expand_as(x)], -1), None, CONVENTION),
    "table sliced by the wrong axis": (lambda s, x: x + s.pe[:, : x.size(0)], None, FAULT),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_each_fault_of_a_module_is_named(kind):
    forward, keep, verdict = FAULTS[kind]
    report = examine(variant(forward, keep)(dropout=0.1).train(), "pe")
    kind = kind.removesuffix(" (grown)")
    found = {f.kind: f.verdict for f in report.findings if f.kind != "fixed length"}
    assert found.pop("crashes", FAULT) == FAULT
    assert found.pop(kind) == verdict
    assert not set(found) - {ODD}  # the tables of these modules leave the odd width alone


def test_two_faults_of_a_module_and_its_table_are_both_named():
    tables = [k for k in KNOBS if k not in (HALF, "code added twice", "code scaled")]
    modules = [
        "one row for all tokens",
        "input added twice",
        "writes into its input",
        "table is not registered",
        "table is trainable",
        "sequence first",
        "scaled after adding",
        "returns the code alone",
    ]
    pairs = random.Random(5).sample(list(itertools.product(tables, modules)), 6)
    hits = 0
    for knob, kind in pairs:
        forward, keep, _ = FAULTS[kind]
        found = named(examine(variant(forward, keep)(max_len=300, **KNOBS[knob])))
        hits += {knob.removesuffix(" by a pair"), kind} <= found
    assert hits >= 0.95 * len(pairs)


def test_a_table_that_is_not_cut_to_the_length():
    whole = lambda s, x: x + s.pe  # noqa: E731
    assert examine(variant(whole)(max_len=30)).kinds == ("table not cut to the length",)

    class Patches(nn.Module):
        def __init__(self):
            super().__init__()
            self.positions = nn.Parameter(torch.randn(1, 17, 8))

        def forward(self, x):
            return x + self.positions

    assert named(examine(Patches())) == {"learned positions", "fixed length"}


def test_columns_that_were_forgotten():
    def half_filled(n, d):
        pe = torch.zeros(n, d)
        pe[:, 0::2] = table(n, d)[:, 0::2]
        return pe

    assert examine(half_filled).kinds == ("columns left empty",)


def test_code_that_others_wrote_and_that_is_right():
    def denoiser(timesteps, embedding_dim):  # halves, and the slowest frequency is 1 / base
        f = torch.exp(torch.arange(embedding_dim // 2) * -(math.log(BASE) / (embedding_dim // 2 - 1)))
        a = timesteps.float()[:, None] * f
        return nn.functional.pad(torch.cat([a.cos(), a.sin()], 1), (0, embedding_dim % 2))

    class FromTheTutorial(Encoding):
        def keep(self, pe):
            self.register_buffer("pe", pe.transpose(0, 1))

        def forward(self, x):
            return self.dropout(x + self.pe[: x.size(0)])

    assert named(examine(denoiser)) == {"wavelengths end at the base", "halves layout", "cosine first"}
    assert named(examine(FromTheTutorial(32).train())) == {"sequence first"}
    assert examine(nn.Sequential(FromTheTutorial(32), nn.LayerNorm(32))).kinds == ()


class Angles(nn.Module):
    """The rotary tables of llama-style code: cosines and sines of the angles, in a tuple."""

    def __init__(self, dim=8):
        super().__init__()
        self.register_buffer("inv_freq", 1 / 10000 ** (torch.arange(0, dim, 2).float() / dim))

    def forward(self, x):
        angles = torch.outer(torch.arange(x.shape[1]).float(), self.inv_freq)
        return torch.cat([angles] * 2, -1).cos(), torch.cat([angles] * 2, -1).sin()


def test_angles_to_rotate_by_are_not_blamed():
    report = examine(Angles(), "rotary")
    assert report.faults == (), str(report)
    assert "could not be judged" in report.verdict


def test_sequence_first_is_a_fault_where_batch_first_was_meant():
    module = variant(FAULTS["sequence first"][0])()
    assert examine(module, batch_first=True).kinds == ("sequence first",)


def test_an_exact_table_was_meant():
    assert examine(lambda n, d: table(n, d, halves=True), exact=True).kinds == ("halves layout",)


def test_positions_counted_in_the_dtype_of_the_module():
    class Rotary(nn.Module):
        def __init__(self, d=16):
            super().__init__()
            self.register_buffer("inv_freq", BASE ** (-torch.arange(0, d, 2) / d))

        def forward(self, x):
            a = torch.arange(x.size(1), device=x.device).type_as(self.inv_freq)[:, None] * self.inv_freq
            return x + torch.stack([a.sin(), a.cos()], -1).flatten(-2)

    report = examine(Rotary())
    assert report.kinds == (HALF,) and ODD in named(report) and "bfloat16" in report.faults[0].sentence
    assert HALF in examine(Rotary().bfloat16()).kinds


def test_a_right_table_that_was_cast_with_its_module_is_no_fault():
    assert examine(Encoding().bfloat16()).kinds == ()
    assert examine(Encoding().half()).kinds == ()


# -- what must not be blamed -----------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, 300),
    st.integers(1, 130),
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
)
def test_right_tables_of_any_size_and_dtype_are_right(n, d, dtype):
    assert examine(sinusoidal_positions(n, d, dtype=dtype), "table").findings == ()


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from([4, 8, 16, 64]),
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
    st.booleans(),
    st.sampled_from(["sc", "cs"]),
    st.integers(0, 2),
    st.sampled_from([0, -2]),
)
def test_other_conventions_are_named_in_every_dtype_and_never_blamed(d, dtype, halves, order, start, over):
    over = over if d > 4 else 0  # with a width of 4 this is a doubled exponent
    report = examine(table(40, d, halves=halves, order=order, start=start, over=over, dtype=dtype))
    wanted = {"halves layout"} if halves else set()
    wanted |= {"cosine first"} if order == "cs" else set()
    wanted |= {f"positions start at {start}"} if start else set()
    wanted |= {"wavelengths end at the base"} if over else set()
    assert named(report) == wanted and report.kinds == ()


STRANGE = [
    None,
    "a",
    3,
    [[]],
    {},
    (),
    torch.zeros(()),
    torch.zeros(2, 7, 16, dtype=torch.complex64),
    torch.zeros(2, 7, 16).to_sparse(),
    torch.zeros(2, 7, 16, device="meta"),
    torch.zeros(3, 7, 16),
]


@pytest.mark.parametrize("value", STRANGE, ids=range(len(STRANGE)))
def test_whatever_comes_back_the_doctor_says_it_in_words(value):
    for patient in (value, lambda x: value, lambda n, d: value):
        report = examine(patient)
        assert report.faults or report.not_tried
        assert str(report)


@pytest.mark.parametrize("d", [7, 32])
def test_the_course_s_own_encodings_are_right(d):
    assert examine(SinusoidalPositions(d)).findings == ()
    assert named(examine(LearnedPositions(d, 64))) == {"learned positions", "fixed length"}


def test_right_functions_whatever_their_arguments_are_called():
    assert examine(sinusoidal_positions).findings == ()
    assert examine(lambda d_model, max_len: sinusoidal_positions(max_len, d_model)).findings == ()
    assert examine(lambda a, b: sinusoidal_positions(b, a).numpy()).findings == ()
    assert (
        examine(lambda max_len=512, d_model=64: sinusoidal_positions(max_len, d_model)[None]).findings == ()
    )
    assert examine(lambda pos, d: sinusoidal_positions(pos + 1, d)[pos]).findings == ()


def test_learned_positions_are_a_convention():
    assert named(examine(nn.Embedding(32, 16))) == {"learned positions"}
    assert examine(nn.Parameter(torch.zeros(1, 10, 8))).kinds == ()


def test_the_patient_is_left_as_it_was():
    module = SinusoidalPositions(16, max_len=8).train()
    examine(module)
    assert module.training and len(module.table) == 8


class TimeSteps(nn.Module):
    """As diffusion models have it: one number in, one row out."""

    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, time):
        angle = time[:, None] * BASE ** (-torch.arange(self.dim // 2) / (self.dim // 2))
        return torch.cat([angle.sin(), angle.cos()], -1)


def test_time_steps_are_given_as_a_tensor():
    assert named(examine(TimeSteps(16))) == {"halves layout"}
    assert named(examine(lambda timesteps, dim: TimeSteps(dim)(timesteps.float()))) >= {"halves layout"}
    assert examine(lambda timesteps, dim: TimeSteps(dim)(timesteps.float())).kinds == ()


def test_whom_the_doctor_cannot_call_is_not_blamed():
    class FromIds(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(50, 16), nn.Embedding(64, 16)

        def forward(self, input_ids):
            return self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1]))

    def rotations(dim, end):
        angles = torch.outer(torch.arange(end), BASE ** (-torch.arange(0, dim, 2) / dim))
        return torch.polar(torch.ones_like(angles), angles)

    for patient in (FromIds(), rotations, lambda q, k, cos, sin: q, lambda config: config.width):
        report = examine(patient)
        assert [f.verdict for f in report.findings] == [NOT_SEPARABLE]
        assert "could not be judged" in report.verdict
    assert "Called with: float32 numbers of shape (2, 7, 16)" in report.findings[0].sentence
    assert examine(lambda x: torch.cat(x, 3, 4, 5)).kinds == ("crashes",)
    assert examine(lambda n, d: torch.tril(n)).kinds == ("crashes",)  # n is surely a number


def test_equal_matrices_are_no_evidence():
    late = sinusoidal_positions(64, 16)
    late[5:] = torch.randn(59, 16, generator=torch.Generator().manual_seed(0))
    assert all(not f.evidence for f in examine(late).findings)


def test_patients_that_do_not_answer():
    def raises(x):
        raise KeyError("lost")

    report = examine(raises)
    assert report.kinds == ("crashes",) and "lost" in report.verdict
    assert examine(np.array(["a"])).kinds == ("no table",)
    assert "not finite" in examine(lambda n, d: torch.full((n, d), math.nan)).kinds


def test_findings_show_numbers_and_a_cure():
    report = examine(lambda n, d: table(n, d, base=1000.0, shift=1))
    assert set(report.kinds) == {BASE_1000, SHIFTED}
    assert all(f.cure and f.shown_by and f.evidence for f in report.faults)
    assert report.seconds < 1.5


def scaled_table(factor):
    return lambda n, d: factor(d) * sinusoidal_positions(n, d)


def turning(factor):
    def table(n, d):
        angles = factor * torch.arange(n)[:, None] * BASE ** (-torch.arange(0, d, 2) / d)
        return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)

    return table


def rope(x):
    angles = torch.arange(x.shape[-2])[:, None] * BASE ** (-torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    a, b = x[..., ::2], x[..., 1::2]
    turned = a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()
    return torch.stack(turned, -1).flatten(-2)


@pytest.mark.parametrize(
    ("patient", "kind"),
    [
        (scaled_table(lambda d: d**0.5), "code scaled"),
        (scaled_table(lambda d: d**-0.5), "code scaled"),
        (turning(math.pi / 180), "angle in degrees"),
        (turning(2 * math.pi), "angle in turns"),
        (lambda x: x * x.shape[1] ** 0.5 + sinusoidal_positions(*x.shape[1:]), "input scaled by the length"),
        (rope, "not examined"),
        (lambda q, k: (rope(q), rope(k)), "not examined"),
    ],
)
def test_factors_angles_and_rotations(patient, kind):
    assert kind in {f.kind for f in examine(patient).findings}


@pytest.mark.parametrize("start", [1.0, 0.0])
def test_a_learned_factor_of_the_code_is_no_fault(start):
    class Factor(nn.Module):
        def __init__(self, d_model=16):
            super().__init__()
            self.alpha = nn.Parameter(torch.full((1,), start))
            self.register_buffer("pe", sinusoidal_positions(64, d_model))

        def forward(self, x):
            return x + self.alpha * self.pe[: x.shape[1]]

    assert not examine(Factor()).faults


def test_positions_that_are_given_and_features_that_are_mapped_are_not_blamed():
    def of_positions(input, d_model):
        return sinusoidal_positions(int(input[-1]) + 1, d_model)[input.view(-1).long()]

    assert examine(of_positions).findings == ()
    assert not examine(lambda x: torch.cat([x, x], -1)[..., 1:] + 1.0).faults
