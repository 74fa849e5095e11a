"""Exercises: every known mistake is named, every right answer passes, nothing breaks a check."""

import math
import re

import nbformat
import numpy as np
import pytest
import torch
from torch import nn

from utils.attention import scaled_dot_product_attention, softmax
from utils.efficient import local_attention, local_mask
from utils.exercises import EXERCISES, check, examine
from utils.exercises.check import Exercise
from utils.multihead import MultiHeadAttention, merge_heads, split_heads


class MyOtherMultiHead(nn.Module):
    """A list of heads, each with matrices of its own."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        assert d_model % num_heads == 0, "the heads do not fit"
        d_k = d_model // num_heads
        self.heads = nn.ModuleList(
            nn.ModuleList(nn.Linear(d_model, d_k) for _ in "qkv") for _ in range(num_heads)
        )
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        found = [scaled_dot_product_attention(*(part(x) for part in head))[0] for head in self.heads]
        return self.out(torch.cat(found, -1))


class MyPackedMultiHead(nn.Module):
    """One matrix for queries, keys and values."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        if d_model % num_heads:
            raise ValueError("the heads do not fit")
        self.h, self.qkv, self.out = num_heads, nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = (split_heads(part, self.h) for part in self.qkv(x).chunk(3, -1))
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(merge_heads(found))


class MyOwnLayer(nn.Module):
    """Post-norm, around a packed multi-head attention."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.attention, self.norm = MyPackedMultiHead(d_model, num_heads), nn.LayerNorm(d_model)

    def forward(self, x):
        return self.norm(x + self.attention(x))


RIGHT = {  # other ways to be right than the solution in the notebook
    "01-softmax": [
        lambda s: torch.softmax(torch.tensor(s), -1),
        lambda s: np.exp(s - np.logaddexp.reduce(s, axis=-1, keepdims=True)),
        lambda s: (e := np.exp(s - np.expand_dims(s.max(-1), -1))) / e.sum(-1)[..., None],
    ],
    "01-attend": [
        lambda x, t: np.stack([torch.softmax(torch.tensor(x @ q / t), 0).numpy() @ x for q in x]),
        lambda x, t: torch.nn.functional.scaled_dot_product_attention(*[torch.tensor(x)] * 3, scale=1 / t),
        lambda x, t: (torch.softmax(torch.tensor(x @ (x / t).T), 1) @ torch.tensor(x)).tolist(),
    ],
    "01-equal-shares": [
        lambda w: np.exp(-(w[w > 0] * np.log(w[w > 0])).sum()),
        lambda w: float(np.prod([share**-share for share in w if share])),
    ],
    "02-head": [
        lambda x, q, k, v: scaled_dot_product_attention(*(torch.tensor(x @ m) for m in (q, k, v)))[0],
        lambda x, q, k, v: softmax(x @ (q @ k.T) @ x.T / np.sqrt(k.shape[-1])) @ x @ v,
    ],
    "02-linear": [
        lambda x, weight, bias: torch.nn.functional.linear(*map(torch.tensor, (x, weight, bias))),
        lambda x, weight, bias: np.einsum("...i,oi->...o", x, weight) + bias,
    ],
    "02-count": [
        lambda m, k, v, bias: sum(p.numel() for w in (k, k, v) for p in nn.Linear(m, w, bias).parameters()),
        lambda m, k, v, bias: m * k + m * k + m * v + (k + k + v if bias else 0),
    ],
    "02-cross": [
        lambda x, c, q, k, v: scaled_dot_product_attention(*map(torch.tensor, (x @ q, c @ k, c @ v))),
        lambda x, c, q, k, v: (
            (w := softmax(x @ q @ np.moveaxis(c @ k, -1, -2) * k.shape[1] ** -0.5)) @ c @ v,
            w,
        ),
    ],
    "03-order": [
        lambda state, mix, score, share, divide, forbid: mix(share(divide(forbid(score(state)))))["output"],
    ],
    "03-mask": [
        lambda lengths, n: torch.stack(
            [torch.ones(n, n).tril().bool() & (torch.arange(n) < length) for length in lengths]
        ),
        lambda lengths, n: (
            (torch.arange(n) <= torch.arange(n)[:, None])[None]
            & (torch.arange(n)[None, None] < lengths[:, None, None])
        ),
    ],
    "03-masked-softmax": [
        lambda s, m: torch.softmax(s.masked_fill(~m, -torch.inf), -1).nan_to_num(0.0),
        lambda s, m: softmax(torch.where(m, s, -torch.inf)),
        lambda s, m: (
            (e := torch.exp(s - s.masked_fill(~m, -1e9).amax(-1, keepdim=True)).nan_to_num(0, 0, 0) * m)
            / e.sum(-1, keepdim=True).clamp(min=1e-9)
        ),
    ],
    "03-attention": [
        lambda query, key, value, mask=None, causal=False: scaled_dot_product_attention(
            query, key, value, mask, causal
        )[0],
    ],
    "04-split": [
        lambda x, h: torch.stack(x.chunk(h, -1), -3),
        lambda x, h: x.reshape(*x.shape[:-1], h, -1).swapaxes(-2, -3).contiguous(),
    ],
    "04-merge": [
        lambda x: torch.cat(x.unbind(-3), -1),
        lambda x: x.transpose(-2, -3).contiguous().view(*x.shape[:-3], x.shape[-2], -1),
    ],
    "04-unpack": [
        lambda w: tuple(w.T.chunk(3, -1)),
        lambda w: [w[i * w.shape[1] : (i + 1) * w.shape[1]].T for i in range(3)],
    ],
    "04-module": [MyOtherMultiHead, MyPackedMultiHead],
    "04-decoder": [
        lambda x, m, real, a, b: b(
            a(x, x, x, attn_mask=torch.ones(x.shape[1], x.shape[1]).tril().bool()),
            m,
            m,
            attn_mask=real[:, None, None].expand(-1, 3, x.shape[1], -1),
        ),
    ],
    "04-search": [
        lambda m: max(np.ndindex(*m.shape[:2]), key=lambda at: np.trace(m[at], 1)),
    ],
    "05-table": [
        lambda n, d, base=1e4: np.array(
            [
                [(math.cos if i % 2 else math.sin)(pos / base ** (i // 2 * 2 / d)) for i in range(d)]
                for pos in range(n)
            ]
        ),
        lambda n, d, base=1e4: np.sin(
            np.arange(n)[:, None] / base ** (np.arange(d) // 2 * 2 / d) + np.pi / 2 * (np.arange(d) % 2)
        ),
    ],
    "05-layer": [MyOwnLayer, lambda d, h: nn.Sequential(MyOwnLayer(d, h))],
    "05-norms": [
        lambda x, attend, norm, pre: (lambda y: y if pre else norm(y))(x + attend(norm(x) if pre else x))
    ],
    "05-local": [
        lambda query, key, value, window: local_attention(query, key, value, window),
        lambda query, key, value, window: scaled_dot_product_attention(
            query, key, value, local_mask(len(query), window)
        )[0],
    ],
    "05-broken": [MyOwnLayer],
    **{f"03-bug-{i}": [torch.nn.functional.scaled_dot_product_attention] for i in (1, 2, 3)},
}
every_exercise = pytest.mark.parametrize("name", EXERCISES)


@every_exercise
def test_every_known_mistake_is_rejected_and_named(name):
    exercise = EXERCISES[name]
    assert len(exercise.mistakes) >= 5 or name == "03-order" or exercise.doctor or "-bug-" in name
    for words, mistake in exercise.mistakes.items():
        with np.errstate(all="ignore"):
            report = examine(name, exercise, mistake)
        assert not report.passed, words
        said = [line for line in report.lines if line.startswith("→")]
        assert said == [f"→ {words}"] or (exercise.doctor and f"→ {words}" in said)


@every_exercise
def test_every_right_way_passes(name):
    for answer in RIGHT[name]:
        report = examine(name, EXERCISES[name], answer)
        assert report.passed, str(report)


@every_exercise
def test_the_solution_in_the_notebook_passes_and_the_stub_is_not_attempted(name, notebooks):
    path = next(path for path in notebooks if path.name.startswith(name[:2]))
    cells = nbformat.read(path, as_version=4).cells
    position = next(i for i, cell in enumerate(cells) if f'check("{name}"' in cell.source)
    stub, call = cells[position].source.split(f'check("{name}", ')
    function = call.rstrip(")\n")
    names = {"np": np, "math": math, "torch": torch, "softmax": softmax}
    names |= {
        "split_heads": split_heads,
        "merge_heads": merge_heads,
        "MultiHeadAttention": MultiHeadAttention,
    }
    assert cells[position].metadata.tags == ["exercise"]

    exec(stub, names)
    report = examine(name, EXERCISES[name], names[function])
    assert not report.passed
    assert report.lines == (f"{name}: not attempted yet",) or "raise NotImplementedError" not in stub

    text = next(cell.source for cell in cells[position:] if cell.cell_type == "markdown")
    folded = re.findall(r"(?s)<summary>Solution</summary>\s*```python\n(.*?)```", text)
    assert len(folded) == 1
    assert len(re.findall(r"<summary>Hint \d</summary>", text)) == 2
    exec(folded[0], names)
    report = examine(name, EXERCISES[name], names[function])
    assert report.passed, str(report)


@pytest.fixture
def notebooks(request):
    return sorted((request.config.rootpath / "notebooks").glob("[0-9]*.ipynb"))


TOY = Exercise(
    right=lambda x: x + 1.0,
    cases={"two numbers": (np.array([1.0, 2.0]),), "one": (np.array([0.0]),)},
    mistakes={
        "You subtract.": lambda x: x - 1.0,
        "Is there always a number 1?": lambda x: x + 1.0 if len(x) == 2 else x[5],
    },
)


OUTSIDE = 3.0


def in_place(x):
    x += 1.0
    return x


def stops(x):
    raise ValueError("no idea")


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda x: x - 1.0, "→ You subtract."),
        (
            lambda x: x + 1.1,
            "✗ two numbers: 2 of 2 numbers differ, most of all at [0]: found 2.1, but it should be 2",
        ),
        (lambda x: None, "is the return missing?"),
        (lambda x: "text", "returns str, which is no array of numbers"),
        (lambda x: x + 1.0 + 5j, "which is no array of numbers"),
        (lambda x: (x + 1.0)[None], "has shape (1, 2), but it should be (2,)"),
        (lambda x: x * np.nan, "2 of 2 numbers are NaN"),
        (lambda x: x + 1.0 + 2e-6, "found 1.000002, but it should be 1"),
        (lambda x: 1.0, "has shape (), but it should be (2,)"),
        (in_place, "changes its input"),
        (lambda: 1, "your code stops with TypeError"),
        (lambda: 1, "→ Keep the line with def as it was"),
        (lambda x: x @ np.ones((3, 1)), "→ A product (a, b) @ (c, d) needs b = c."),
        (lambda x: x.sum(axis=1), "→ There may be a single row"),
        (lambda x: x + np.ones(3), "→ The shapes do not fit."),
        (lambda x: y, "→ Is the name spelled as in the line with def?"),  # noqa: F821
        (lambda x: x * OUTSIDE, "→ Your code uses `OUTSIDE`, which is none of its arguments"),
        (lambda x: x + 1.0 if len(x) == 2 else x[7], "index 7 is out of bounds"),
        (
            lambda x: (_ for _ in ()).throw(NotImplementedError("and is not for bool")),
            "NotImplementedError: and",
        ),
        (stops, 'your code stops at `raise ValueError("no idea")` with ValueError: no idea'),
        (42, "hand over the function itself, not int"),
        (lambda x: (x + 1.0)[:, None].T[0] if len(x) == 2 else x[5], "→ Is there always"),
        (lambda x: x + 1.0 if len(x) == 2 else x, "✓ two numbers: equal, within 1e-12"),
        (lambda x: x + 1.0 if len(x) == 2 else x, "✗ one: 1 of 1 numbers differ"),
        (lambda x: x + 1.0 if len(x) == 2 else x, "toy: 1 of 2 cases right"),
    ],
)
def test_whatever_an_attempt_does_is_reported_in_words(attempt, words):
    report = examine("toy", TOY, attempt)
    assert not report.passed
    assert words in str(report)


Q, K, V = (np.random.default_rng(seed).normal(size=(1, 2, 3, 4)) for seed in range(3))
DOCTORED = Exercise(
    right=lambda q, k, v: scaled_dot_product_attention(q, k, v)[0],
    cases={"three tokens": (torch.tensor(Q), torch.tensor(K), torch.tensor(V))},
    doctor={"kind": "attention"},
)


def test_where_the_doctor_is_asked_he_names_the_mistake():
    report = examine("attention", DOCTORED, lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v)
    assert "→ The scores are not divided by sqrt(d_k)." in str(report)
    right = examine("attention", DOCTORED, lambda q, k, v: torch.softmax(q @ k.mT / 2, -1) @ v)
    assert right.passed, str(right)

    def overflows(q, k, v):
        exps = torch.exp(q @ k.mT / 2)
        return exps / exps.sum(-1, keepdim=True) @ v

    report = examine("attention", DOCTORED, overflows)  # right on the case, and still not right
    assert "✓ three tokens" in str(report)
    assert "→ Large scores overflow" in str(report)
    assert not report.passed


def test_a_scalar_is_asked_for_in_words():
    exercise = Exercise(right=lambda x: float(x.sum()), cases={"a": (np.ones(3),)})
    assert "has shape (3,), but it should be one number (is a sum missing?)" in str(
        examine("sum", exercise, lambda x: x)
    )


def test_a_check_is_silent_about_overflow(recwarn):
    examine("01-softmax", EXERCISES["01-softmax"], lambda s: np.exp(s) / np.exp(s).sum())
    assert not recwarn.list


def test_a_tiny_rounding_error_is_told_and_is_no_mistake():
    report = examine("toy", TOY, lambda x: x + 1.0 + 3e-8)
    assert report.passed
    assert report.lines[0] == "✓ two numbers: equal, within 1e-06"
    assert examine("toy", TOY, lambda x: (x.astype(np.float32) + np.float32(1)).astype(float)).passed


def test_a_tensor_with_a_gradient_is_an_answer_too():
    assert examine("toy", TOY, lambda x: torch.tensor(x, requires_grad=True) + 1).passed


def test_check_prints_the_report_and_knows_its_exercises(capsys):
    check("01-softmax", lambda scores: scores)
    assert "✗ three scores" in capsys.readouterr().out
    with pytest.raises(KeyError, match="there is no exercise '99-x'"):
        check("99-x", print)
