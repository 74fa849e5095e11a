"""Heavy cells: sizes follow the device, what does not fit is refused or caught, and nothing is lost."""

import pytest
import torch

from utils import heavy
from utils.heavy import Way, attempt, linear_bytes, refuse, sizes, sweep, table_bytes

CPU = torch.device("cpu")
SMALL = sizes(CPU)


def fused(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def test_sizes_follow_the_device():
    gpu = sizes(torch.device("cuda"))
    assert max(SMALL.lengths) <= 2048 < max(gpu.lengths) == 65_536
    assert SMALL.dtype == torch.float32
    assert gpu.dtype == torch.float16
    q, k, v = SMALL.inputs(8, CPU)
    assert q.shape == k.shape == v.shape == (1, SMALL.heads, 8, SMALL.d_k)


def test_memory_is_predicted_as_two_tables():
    assert table_bytes(1024, SMALL) == 2 * 4 * 1024**2 * 4
    assert table_bytes(2048, SMALL) == 4 * table_bytes(1024, SMALL)
    assert linear_bytes(2048, SMALL) == 2 * linear_bytes(1024, SMALL)


def test_default_sizes_stay_small():
    assert max(table_bytes(n, SMALL) for n in SMALL.lengths) <= 200 * 2**20


def test_what_does_not_fit_a_cpu_is_refused_before_it_is_tried():
    outcome = attempt("textbook", Way(lambda q, k, v: pytest.fail("tried"), table_bytes), 2**20, SMALL, CPU)
    assert outcome.seconds is None
    assert "refused: it needs 32768.0 GiB, and" in outcome.note
    assert "refused" in str(outcome)


def test_a_share_of_what_is_free_may_be_taken(monkeypatch):
    monkeypatch.setattr(heavy, "free_bytes", lambda device: 1000.0)
    assert refuse(500, CPU) == ""
    assert refuse(501, CPU) == "   refused: it needs 0.5 KiB, and 1.0 KiB are free"
    assert refuse(10**9, torch.device("cuda")) == ""  # there it is tried, and caught


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 32.00 GiB"),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:125] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_memory_that_runs_out_is_caught_and_the_next_call_works(error):
    def run(q, k, v):
        raise error

    outcome = attempt("textbook", Way(run, linear_bytes), 64, SMALL, CPU)
    assert outcome.note == "   out of memory: caught, and given back"
    assert attempt("fused", Way(fused, linear_bytes), 64, SMALL, CPU).seconds > 0


def test_other_errors_are_raised():
    def run(q, k, v):
        raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes do not fit"):
        attempt("wrong", Way(run, linear_bytes), 64, SMALL, CPU)


def test_a_sweep_goes_on_without_a_way_that_failed():
    def stops_at_128(q, k, v):
        if q.shape[-2] >= 128:
            raise MemoryError
        return fused(q, k, v)

    ways = {"fused": Way(fused, linear_bytes), "greedy": Way(stops_at_128, linear_bytes)}
    outcomes = sweep(ways, CPU, lengths=(64, 128, 256))
    assert [(o.name, o.n) for o in outcomes] == [
        ("fused", 64),
        ("greedy", 64),
        ("fused", 128),
        ("greedy", 128),
        ("fused", 256),
    ]
    assert [bool(o.note) for o in outcomes] == [False, False, False, True, False]


def test_an_interrupted_sweep_returns_what_it_has(capsys):
    def run(q, k, v):
        if q.shape[-2] == 128:
            raise KeyboardInterrupt
        return fused(q, k, v)

    outcomes = sweep({"a": Way(run, linear_bytes)}, CPU, lengths=(64, 128, 256))
    assert [o.n for o in outcomes] == [64]
    assert "Interrupted after 1 of 3 measurements." in capsys.readouterr().out


@pytest.mark.parametrize(("size", "text"), [(512, "0.5 KiB"), (3 * 2**20, "3.0 MiB"), (2**37, "128.0 GiB")])
def test_amounts_are_told_in_the_unit_that_fits(size, text):
    assert heavy.amount(size).strip() == text
