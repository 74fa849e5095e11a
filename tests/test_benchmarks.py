"""The benchmarks: verdicts, exit status, files, and a GPU (not there) that runs out of memory."""

import json
import sys

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import cpu, cuda
from benchmarks.measure import seconds
from benchmarks.results import Result


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        (Result("a", 0.5, 1.0), "PASS"),
        (Result("a", 1.0, 1.0), "PASS"),
        (Result("a", 1.5, 1.0), "SHORT"),
        (Result("a", 1.5, 1.0, at_most=False), "PASS"),
        (Result("a", 0.5, 1.0, at_most=False), "SHORT"),
        (Result("a", float("nan"), 1.0), "SHORT"),
        (Result("a", float("nan"), 1.0, at_most=False), "SHORT"),
        (Result("a", 7.0), ""),
    ],
)
def test_a_verdict_is_about_the_bar(result, verdict):
    assert result.verdict == verdict == result.record()["verdict"]
    assert str(result).startswith(verdict)


def met():
    yield Result("met", 0.123456, 1.0)


def missed():
    yield Result("missed", 2.0, 1.0)


def breaks():
    yield Result("before it breaks", 0.5, 1.0)
    raise RuntimeError("memory can be measured on Linux only")


def run(monkeypatch, rows, *arguments):
    monkeypatch.setattr(cpu, "ROWS", rows)
    monkeypatch.setattr(sys, "argv", ["benchmarks", *map(str, arguments)])
    threads = torch.get_num_threads()
    try:
        return command.main()
    finally:
        torch.set_num_threads(threads)


def test_all_met_writes_numbers_and_a_picture_and_succeeds(monkeypatch, tmp_path, capsys):
    assert run(monkeypatch, (met,), "--out", tmp_path) == 0
    written = json.loads((tmp_path / "bench-cpu.json").read_text())
    assert written["results"] == [
        {"what": "met", "value": 0.123, "unit": "x", "limit": 1.0, "verdict": "PASS"}
    ]
    assert written["machine"]["torch"] == torch.__version__
    assert (tmp_path / "bench-cpu.png").stat().st_size > 1000
    assert "1 bars met, 0 missed" in capsys.readouterr().out


def test_one_missed_fails_and_one_that_stops_keeps_the_others(monkeypatch, tmp_path, capsys):
    assert run(monkeypatch, (breaks, missed), "--out", tmp_path) == 1
    out = capsys.readouterr().out
    assert "breaks stops: memory can be measured on Linux only" in out
    assert "1 bars met, 1 missed" in out


def test_chosen_rows_write_nothing_and_unknown_ones_are_named(monkeypatch, tmp_path, capsys):
    assert run(monkeypatch, (met, missed), "--out", tmp_path, "met") == 0
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SystemExit):
        run(monkeypatch, (met,), "other")
    assert "there is no row other; there are met" in capsys.readouterr().err


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run(monkeypatch, (met,), "--device", "cuda") == 2
    assert "There is no GPU here" in capsys.readouterr().out


def test_a_form_is_not_tried_again_once_the_memory_ran_out(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    lengths, records = [], []

    def make(n, dtype):
        lengths.append(n)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8 GiB. GPU 0 has 3 GiB")

    cuda.climb("textbook, scores stored", make, torch.float32, records)
    assert lengths == [1024]
    assert records[0]["out_of_memory"]
    assert records[0]["predicted_bytes"] == 4 * 8 * 1024**2
    assert "Tried to allocate 8 GiB" in capsys.readouterr().out


def test_seconds_are_the_least_of_the_rounds_and_every_call_has_its_turn():
    order = []
    found = seconds({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repeats=2)
    assert order == ["a", "b"] * 3
    assert all(0 <= value < 1 for value in found.values())
