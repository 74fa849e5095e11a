"""Where heavy cells run: the CPU, or a GPU if this machine has one.

    device = DeviceToggle()      # last line of a cell: shows the buttons, or says why there is no GPU
    x = x.to(device.chosen)      # in every heavy cell

Headless runs set ATTENTION_DEVICE to cpu, gpu, cuda or mps. Nothing here ever raises:
whatever cannot be had ends on the CPU, with a sentence that says why.
"""

from __future__ import annotations

import os
import platform
from typing import Any

import ipywidgets as widgets
import torch

from utils import spoken

VARIABLE = "ATTENTION_DEVICE"


def find_gpu() -> tuple[torch.device | None, str]:
    """The GPU and its name, or None and the reason why there is none."""
    for kind, available, name in (
        ("cuda", torch.cuda.is_available, torch.cuda.get_device_name),
        ("mps", torch.backends.mps.is_available, lambda: "Apple GPU"),
    ):
        try:
            if available():
                torch.ones(1, device=kind).sum().item()  # a broken driver fails here and not in a lesson
                return torch.device(kind), name()
        except Exception as error:
            words = (str(error) or type(error).__name__).splitlines()[0]
            return None, f"a GPU ({kind}) is there but does not work: {words}"
    return None, _why_none()


def _why_none() -> str:
    if platform.system() == "Darwin":
        return "this Mac has no GPU that PyTorch can use (it needs Apple silicon and macOS 14 or newer)"
    if torch.version.cuda is None and torch.version.hip is None:
        return "this PyTorch is the CPU build"
    if os.environ.get("CUDA_VISIBLE_DEVICES", "unset") in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every GPU"
    if spoken.on_colab():
        return "this Colab runtime has none; choose one under Runtime > Change runtime type"
    return "no NVIDIA GPU or no driver was found"


class DeviceToggle:
    """Two buttons, CPU and GPU; where there is no GPU, a sentence that says why.

    chosen   the torch.device that is chosen now
    message  what is chosen, in words
    """

    def __init__(self) -> None:
        self.gpu, self.reason = find_gpu()
        wish = os.environ.get(VARIABLE, "").strip().lower()
        start, note = self._first_choice(wish)
        names = ["CPU", "GPU"] if self.gpu else ["CPU"]
        self.buttons = widgets.ToggleButtons(options=names, value=start, description="run on")
        self.text = widgets.HTML()
        self._said = f"{self.text.model_id}-said"
        self._note = note
        self.buttons.observe(lambda change: self._tell(), "value")
        self._tell()
        region = widgets.HTML(spoken.LOOKS + spoken.region(self._said), layout=spoken.NO_ROOM)
        self.box = widgets.VBox([self.buttons, region, self.text])
        self.box.add_class(spoken.CONTROLS)

    def _first_choice(self, wish: str) -> tuple[str, str]:
        if wish in ("", "cpu"):
            return "CPU", ""
        if wish not in ("gpu", "cuda", "mps"):
            return "CPU", f"{VARIABLE} says {wish!r}, but it can only be cpu, gpu, cuda or mps."
        if self.gpu and wish in ("gpu", self.gpu.type):
            return "GPU", ""
        found = f"the GPU here is {self.gpu.type}" if self.gpu else self.reason
        return "CPU", f"{VARIABLE} asks for {wish}, but {found}."

    @property
    def chosen(self) -> torch.device:
        """Where heavy cells run now."""
        return self.gpu if self.gpu and self.buttons.value == "GPU" else torch.device("cpu")

    @property
    def message(self) -> str:
        """One sentence or two on what is chosen and what could be."""
        if self.buttons.value == "GPU":
            now = f"Heavy cells run on the GPU ({self.reason})."
        elif self.gpu:
            now = f"Heavy cells run on the CPU; a GPU is here ({self.reason})."
        else:
            now = f"Heavy cells run on the CPU, at small sizes: {self.reason}."
        return f"{now} {self._note}".strip()

    def _tell(self) -> None:
        self.text.value = spoken.part(self._said, self.message, "margin:0")

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        view = {"version_major": 2, "version_minor": 0, "model_id": self.box.model_id}
        return {
            "application/vnd.jupyter.widget-view+json": view,
            "text/plain": "Choose where heavy cells run.",
        }
