"""The bars on the processor, a function for each group. Times are ratios within one run, on one thread."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import rivals
from benchmarks.measure import peak_bytes, seconds
from benchmarks.results import Result
from utils.attention import scaled_dot_product_attention
from utils.efficient import (
    local_attention,
    local_mask,
    sparse_attention,
    sparse_attention_fast,
    sparse_pairs,
)
from utils.layer import SelfAttentionLayer
from utils.multihead import MultiHeadAttention
from utils.tiny import BOTH_NEIGHBOURS, REVERSE, Task, TinyModel, accuracy, train

D_MODEL, HEADS, WINDOW = 512, 8, 64
PATTERN = {"window": 4, "global_tokens": 2, "random": 4}  # about 17 keys for a query


def layers() -> dict[str, nn.Module]:
    """The same multi-head attention three times, with the same weights."""
    torch.manual_seed(0)
    ours = MultiHeadAttention(D_MODEL, HEADS)
    textbook = rivals.TextbookMultiHead(D_MODEL, HEADS)
    textbook.load_state_dict(ours.state_dict())
    return {"ours": ours, "nn": rivals.PyTorchMultiHead(ours.to_pytorch()), "textbook": textbook}


def inference(layer: nn.Module, x: Tensor) -> Callable[[], object]:
    """A call without gradients, as in use."""
    layer.eval()

    def call() -> Tensor:
        with torch.no_grad():
            return layer(x)[0]

    return call


def multihead_inference() -> Iterator[Result]:
    """MultiHeadAttention beside nn.MultiheadAttention and the textbook's form, without gradients."""
    for batch, n, repeats, limit in (
        (1, 256, 40, 1.05),
        (1, 1024, 12, 0.75),
        (8, 1024, 3, 0.75),
        (1, 4096, 3, 0.75),
    ):
        x = torch.randn(batch, n, D_MODEL)
        found = seconds({name: inference(layer, x) for name, layer in layers().items()}, repeats)
        where = f"inference, B={batch} n={n}"
        yield Result(
            f"MultiHeadAttention / nn.MultiheadAttention, {where}", found["ours"] / found["nn"], limit
        )
        yield Result(f"textbook form / nn.MultiheadAttention, {where}", found["textbook"] / found["nn"])


def multihead_training() -> Iterator[Result]:
    """The same with the gradients of every parameter."""

    def step(layer: nn.Module, x: Tensor) -> Callable[[], object]:
        return lambda: layer(x)[0].square().mean().backward()

    for batch, n, repeats in ((1, 1024, 8), (4, 1024, 4), (1, 2048, 4)):
        x = torch.randn(batch, n, D_MODEL)
        found = seconds({name: step(layer.train(), x) for name, layer in layers().items()}, repeats)
        where = f"training, B={batch} n={n}"
        yield Result(
            f"MultiHeadAttention / nn.MultiheadAttention, {where}", found["ours"] / found["nn"], 1.05
        )
        yield Result(f"textbook form / nn.MultiheadAttention, {where}", found["textbook"] / found["nn"])


def multihead_memory() -> Iterator[Result]:
    """Memory at n = 4096, where nn.MultiheadAttention stores every score."""
    ours, theirs = peak_bytes("multihead ours"), peak_bytes("multihead nn")
    yield Result("MultiHeadAttention / nn.MultiheadAttention, memory, B=1 n=4096", ours / theirs, 0.10)
    yield Result("MultiHeadAttention, memory, B=1 n=4096", ours / 2**20, unit="MiB")


def core() -> Iterator[Result]:
    """The functions alone beside F.scaled_dot_product_attention."""
    q, k, v = torch.randn(3, 1, HEADS, 2048, D_MODEL // HEADS)
    arrays = [t.numpy() for t in (q, k, v)]
    wide = [array.astype(np.float64) for array in arrays]
    calls = {
        "fused": lambda: F.scaled_dot_product_attention(q, k, v),
        "utils.attention": lambda: scaled_dot_product_attention(q, k, v),
        "textbook form": lambda: rivals.textbook(q, k, v),
        "numpy form": lambda: rivals.in_numpy(*arrays),
        "numpy form in float64": lambda: rivals.in_numpy(*wide),
    }
    found = seconds(calls, 3)
    for name in list(calls)[1:]:
        yield Result(f"{name} / F.scaled_dot_product_attention, n=2048", found[name] / found["fused"])


def one_head(n: int) -> list[Tensor]:
    """Query, key and value of one head, (n, 64)."""
    return [torch.randn(n, 64) for _ in range(3)]


def dense(n: int, pairs: Tensor) -> Tensor:
    """The pairs as a mask for full attention."""
    mask = torch.zeros(n, n, dtype=torch.bool)
    mask[pairs[:, 0], pairs[:, 1]] = True
    return mask


def local() -> Iterator[Result]:
    """local_attention beside the tutorials' loop and full attention under a mask."""
    n = 16384
    x, mask = one_head(n), local_mask(n, WINDOW)
    calls = {
        "the loop": lambda: rivals.local_in_a_loop(*x, WINDOW),
        "masked F.scaled_dot_product_attention": lambda: rivals.masked(*x, mask),
        "the same through its fused kernel": lambda: rivals.masked_fused(*x, mask),
    }
    found = seconds({"ours": lambda: local_attention(*x, WINDOW), **calls}, 4)
    for (name, spent), limit in zip(list(found.items())[1:], (6, 100, None), strict=True):
        yield Result(
            f"{name} / local_attention, n={n} w={WINDOW}", spent / found["ours"], limit, at_most=False
        )
    ours, theirs, fused = (peak_bytes(f"local {name}") for name in ("ours", "masked", "fused"))
    what = f"local_attention / masked F.scaled_dot_product_attention, memory, n={n}"
    yield Result(what, ours / theirs, 0.02)
    yield Result(f"{what}, fused kernel", ours / fused)
    lengths = [1024, 2048, 4096, 8192, 16384]
    growing = {str(m): functools.partial(local_attention, *one_head(m), WINDOW) for m in lengths}
    spent = list(seconds(growing, 15).values())
    slope = np.polyfit(np.log(lengths), np.log(spent), 1)[0]
    yield Result("local_attention: time grows as n to the power of, n=1k ... 16k", float(slope), 1.1, unit="")
    upper = seconds(
        {str(m): functools.partial(local_attention, *one_head(m), WINDOW) for m in (8192, 65536)}, 5
    )
    slope = np.log(upper["65536"] / upper["8192"]) / np.log(8)
    yield Result("the same, n=8k ... 64k", float(slope), unit="")


def sparse() -> Iterator[Result]:
    """sparse_attention_fast beside the readable form and full attention under a mask."""
    n = 8192
    x, pairs = one_head(n), sparse_pairs(n, **PATTERN)
    mask = dense(n, pairs)
    calls = {
        "masked F.scaled_dot_product_attention": lambda: rivals.masked(*x, mask),
        "the same through its fused kernel": lambda: rivals.masked_fused(*x, mask),
        "sparse_attention": lambda: sparse_attention(*x, pairs),
    }
    found = seconds({"ours": lambda: sparse_attention_fast(*x, pairs), **calls}, 6)
    for (name, spent), limit in zip(list(found.items())[1:], (50, None, None), strict=True):
        what = f"{name} / sparse_attention_fast, n={n}, {len(pairs)} pairs"
        yield Result(what, spent / found["ours"], limit, at_most=False)


def tiny_tasks() -> Iterator[Result]:
    """The training cells: processor seconds, and the same conclusion for five seeds."""

    def run(task: Task, layer: Callable[[], nn.Module], positions: bool, steps: int, seed: int) -> float:
        torch.manual_seed(seed)
        model = TinyModel(task, layer(), 32, positions)
        train(model, task, steps, seed)
        return accuracy(model, task, seed + 1000)

    cases = {
        "both neighbours, one head": (BOTH_NEIGHBOURS, lambda: MultiHeadAttention(32, 1), True, 300),
        "both neighbours, two heads": (BOTH_NEIGHBOURS, lambda: MultiHeadAttention(32, 2), True, 300),
        "reverse, with positions": (REVERSE, lambda: SelfAttentionLayer(32, 4), True, 250),
        "reverse, without positions": (REVERSE, lambda: SelfAttentionLayer(32, 4), False, 250),
    }
    for name, case in cases.items():
        start = time.process_time()
        scores = [run(*case, seed) for seed in range(5)]
        yield Result(f"{name}: CPU seconds per training", (time.process_time() - start) / 5, 10, unit="s")
        can = name.endswith(("two heads", "with positions"))
        worst = min(scores) if can else max(scores)
        yield Result(
            f"{name}: {'least' if can else 'greatest'} accuracy of five seeds",
            worst,
            0.99 if can else 0.35,
            at_most=not can,
            unit="",
        )


def _multihead(name: str) -> Callable[[], object]:
    layer = layers()[name]
    inference(layer, torch.randn(1, 64, D_MODEL))()  # warms up
    return inference(layer, torch.randn(1, 4096, D_MODEL))


def _local(attend: Callable[..., Tensor], *given: object) -> Callable[[], object]:
    x = one_head(16384)
    attend(*[t[:64] for t in x], *(g[:64, :64] if torch.is_tensor(g) else g for g in given))  # warms up
    return lambda: attend(*x, *given)


MEMORY: dict[str, Callable[[], Callable[[], object]]] = {
    "local ours": lambda: _local(local_attention, WINDOW),
    "local masked": lambda: _local(rivals.masked, local_mask(16384, WINDOW)),
    "local fused": lambda: _local(rivals.masked_fused, local_mask(16384, WINDOW)),
    "multihead ours": lambda: _multihead("ours"),
    "multihead nn": lambda: _multihead("nn"),
}
ROWS = (multihead_inference, multihead_training, multihead_memory, core, local, sparse, tiny_tasks)
