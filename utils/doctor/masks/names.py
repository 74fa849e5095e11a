"""Names that authors give to the arguments of a mask builder, and what such arguments are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from utils.doctor.call import required

LENGTH_NAMES = [
    *("lengths", "lens", "seq_lens", "seq_lengths", "valid_lens", "valid_len", "valid_lengths", "x_len"),
]
ID_NAMES = [
    *("ids", "input_ids", "tokens", "token_ids", "seq", "src", "tgt", "trg", "x", "batch", "inputs"),
    *("seq_q", "seq_k", "source", "target", "src_seq", "tgt_seq", "trg_seq"),
]
PAD_NAMES = [
    *("pad_id", "pad", "pad_idx", "padding_idx", "pad_token_id", "pad_token", "padding_id"),
    *("src_pad_idx", "trg_pad_idx", "tgt_pad_idx"),
]
SIZE_NAMES = [
    *("n", "n_k", "max_len", "maxlen", "max_length", "seq_len", "length", "size", "sz", "t", "l", "n_q"),
]
HEAD_NAMES = ["heads", "num_heads", "n_heads", "h", "n_head", "nhead"]
# arguments that say how much of the past is seen: as large as n they would hide nothing
SMALL_NAMES = [
    *("window", "w", "window_size", "sliding_window", "attention_window", "local_window", "win", "radius"),
    *("band", "bandwidth", "span", "neighbors", "look_back", "lookback", "stride", "dilation", "block_size"),
    *("prefix", "prefix_len", "prefix_length", "prefix_size", "n_prefix", "num_prefix", "sinks", "n_sinks"),
    *("chunk", "chunk_size", "num_global", "n_global", "block"),
]


def known(patient: Callable, shape: tuple[int, int]) -> dict[str, Any]:
    """Required arguments whose names say what they want: a shape, a dtype, a device."""
    given: dict[str, Any] = {}
    for name in required(patient):
        if name.lower().endswith("shape"):
            given[name] = shape
        elif name.lower() in ("dtype", "device"):
            given[name] = torch.float32 if name.lower() == "dtype" else "cpu"
    return given
