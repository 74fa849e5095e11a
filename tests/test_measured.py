"""What is measured anew at each run is shown, and never stored."""

import torch

from utils.measured import Measured, race


def test_the_text_is_in_the_widget_and_not_in_the_notebook():
    shown = Measured("n = 256: <fast> 0.71")
    assert "&lt;fast&gt; 0.71" in shown.box.value
    bundle = shown._repr_mimebundle_()
    assert "0.71" not in str(bundle)
    assert bundle["text/plain"] == "Run this cell to measure it on your machine."


def test_a_race_takes_turns_on_one_thread_without_gradients():
    calls = []
    threads = torch.get_num_threads()

    def way(name):
        calls.append((name, torch.get_num_threads(), torch.is_grad_enabled()))
        if name == "slow":
            torch.randn(300, 300) @ torch.randn(300, 300)

    seconds = race({"slow": lambda: way("slow"), "fast": lambda: way("fast")}, repeats=3)
    assert calls == [("slow", 1, False), ("fast", 1, False)] * 3
    assert seconds["slow"] > seconds["fast"] >= 0
    assert torch.get_num_threads() == threads
