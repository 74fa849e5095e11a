"""The CPU/GPU toggle never raises and always says what it does and why."""

import pytest
import torch

from utils import device, spoken
from utils.device import DeviceToggle, find_gpu


def pretend(monkeypatch, kind, name="Some GPU", works=True):
    """Let PyTorch believe that there is a GPU; its one test computation runs on the CPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: kind == "cuda")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: kind == "mps")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)

    def ones(size, device):
        if not works:
            raise RuntimeError("CUDA error: no kernel image\nmore lines")
        return torch.zeros(size) + 1

    monkeypatch.setattr(device.torch, "ones", ones)


@pytest.fixture(autouse=True)
def no_wish(monkeypatch):
    monkeypatch.delenv("ATTENTION_DEVICE", raising=False)


@pytest.mark.parametrize("wish", ["", "cpu", "gpu", "cuda", "mps", "nonsense", "  GPU  ", "<b>"])
def test_without_a_gpu_everything_ends_on_the_cpu_in_words(monkeypatch, wish):
    pretend(monkeypatch, None)
    monkeypatch.setenv("ATTENTION_DEVICE", wish)
    toggle = DeviceToggle()
    assert toggle.chosen == torch.device("cpu")
    assert toggle.buttons.options == ("CPU",)
    assert toggle.message.startswith("Heavy cells run on the CPU, at small sizes: ")
    assert ("ATTENTION_DEVICE" in toggle.message) == (wish not in ("", "cpu"))
    assert "<b>" not in toggle.text.value


@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_a_gpu_is_offered_and_can_be_chosen_and_left(monkeypatch, kind):
    pretend(monkeypatch, kind)
    toggle = DeviceToggle()
    assert toggle.buttons.options == ("CPU", "GPU")
    assert toggle.chosen == torch.device("cpu")
    toggle.buttons.value = "GPU"
    assert toggle.chosen == torch.device(kind)
    assert "run on the GPU" in toggle.text.value
    toggle.buttons.value = "CPU"
    assert toggle.chosen == torch.device("cpu")


def test_the_environment_chooses_for_headless_runs(monkeypatch):
    pretend(monkeypatch, "cuda")
    for wish, chosen in {"gpu": "cuda", "CUDA": "cuda", "cpu": "cpu", "mps": "cpu", "x": "cpu"}.items():
        monkeypatch.setenv("ATTENTION_DEVICE", wish)
        assert DeviceToggle().chosen == torch.device(chosen)
    assert "can only be cpu, gpu, cuda or mps" in DeviceToggle().message


def test_a_gpu_that_does_not_work_is_not_offered(monkeypatch):
    pretend(monkeypatch, "cuda", works=False)
    gpu, reason = find_gpu()
    assert gpu is None
    assert reason == "a GPU (cuda) is there but does not work: CUDA error: no kernel image"


@pytest.mark.parametrize(
    ("system", "cuda", "environment", "reason"),
    [
        ("Darwin", None, {}, "this Mac has no GPU"),
        ("Linux", None, {}, "this PyTorch is the CPU build"),
        ("Linux", "13.0", {"CUDA_VISIBLE_DEVICES": "-1"}, "CUDA_VISIBLE_DEVICES hides every GPU"),
        ("Linux", "13.0", {"COLAB_RELEASE_TAG": "x"}, "Runtime > Change runtime type"),
        ("Windows", "13.0", {}, "no NVIDIA GPU or no driver was found"),
    ],
)
def test_why_there_is_no_gpu(monkeypatch, system, cuda, environment, reason):
    pretend(monkeypatch, None)
    monkeypatch.setattr(device.platform, "system", lambda: system)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    for name in ("CUDA_VISIBLE_DEVICES", "COLAB_RELEASE_TAG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert reason in DeviceToggle().message


def test_its_buttons_stand_beside_their_label_and_the_focus_has_a_frame():
    box = DeviceToggle().box
    assert spoken.CONTROLS in box._dom_classes
    assert spoken.LOOKS in box.children[1].value


def test_the_saved_output_is_the_same_on_every_machine():
    assert DeviceToggle()._repr_mimebundle_()["text/plain"] == "Choose where heavy cells run."


def test_an_error_without_words_is_named(monkeypatch):
    def silent():
        raise RuntimeError

    monkeypatch.setattr(torch.cuda, "is_available", silent)
    assert find_gpu()[1].endswith("does not work: RuntimeError")
