"""Attention functions with known faults, as people write them, apart from the line-up of the doctor."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F


def make(**faults):
    """An attention function f(q, k, v, mask=None, causal=False) -> output, weights with these faults."""
    g = faults.get

    def attention(q, k, v, mask=None, causal=False):
        d_k, heads = q.shape[-1], q.shape[1] if q.dim() == 4 else 1
        if g("roles") == "swap":
            q, k = k, q
        if g("roles") == "v is k":
            v = k
        if g("pure") == "in place":
            q *= 1.0 / math.sqrt(d_k)
            scores = q @ k.transpose(-1, -2)
        else:
            keys = k.reshape(*k.shape[:-2], k.shape[-1], k.shape[-2]) if g("roles") == "reshape" else k.mT
            scores = torch.matmul(q, keys)
            scale = g("scale")
            if scale == "d_model":
                scores = scores / (d_k * heads) ** 0.5
            elif scale == "d_k":
                scores = scores / d_k
            elif scale == "times":
                scores = scores * d_k**0.5
            elif scale == "n":
                scores = scores / k.shape[-2] ** 0.5
            elif scale not in ("none", "after"):
                scores = scores / math.sqrt(d_k)
        later = None
        if causal and g("causal") != "off":
            n, m = scores.shape[-2:]
            rows, cols = torch.arange(n)[:, None], torch.arange(m)[None]
            allowed = {
                None: cols <= rows,
                "upper": cols >= rows,
                "no self": cols < rows,
                "one ahead": cols <= rows + 1,
                "bottom-right": cols <= rows + m - n,
            }[g("causal")]
            scores, later = hide(scores, allowed, g("fill"), later)
        if mask is not None and g("mask") != "ignored":
            if g("mask") == "inverted":
                mask = ~mask
            elif g("mask") == "rows":
                mask = mask.transpose(-1, -2)
            elif g("mask") == "order":
                b = scores.shape[0]
                flat = mask.expand(b, 1, *mask.shape[2:])[:, 0].repeat(heads, 1, 1)
                mask = flat.view(b, heads, *flat.shape[1:])
            scores, later = hide(scores, mask, g("fill"), later)
        weights = shares(scores, g("softmax"))
        if later is not None:
            weights = weights * later
        if g("scale") == "after":
            weights = weights / math.sqrt(d_k)
        if g("dropout"):
            weights = F.dropout(weights, 0.3)
        if g("detach"):
            weights = weights.detach()
        return weights @ v, weights

    return attention


def hide(scores, allowed, fill, later):
    if fill == "after":
        return scores, allowed if later is None else allowed & later
    if fill == "times":
        return scores * allowed, later
    if fill == "plus":
        return scores + allowed.to(scores.dtype), later
    return scores.masked_fill(allowed == 0, -torch.inf if fill is None else fill), later


def shares(scores, softmax):
    if softmax in ("none", "sigmoid"):
        return scores if softmax == "none" else scores.sigmoid()
    if softmax == "twice":
        return scores.softmax(-1).softmax(-1)
    if softmax == "naive":
        e = scores.exp()
        return e / e.sum(-1, keepdim=True)
    return scores.softmax({None: -1, "queries": -2, "heads": 1, "batch": 0}[softmax])


# kind -> the fault that must be called so
SINGLES = [
    ("softmax over queries", {"softmax": "queries"}),
    ("softmax over heads", {"softmax": "heads"}),
    ("softmax over batch", {"softmax": "batch"}),
    ("no softmax", {"softmax": "none"}),
    ("sigmoid instead of softmax", {"softmax": "sigmoid"}),
    ("softmax twice", {"softmax": "twice"}),
    ("naive softmax", {"softmax": "naive"}),
    ("scale missing", {"scale": "none"}),
    ("scale sqrt(d_model)", {"scale": "d_model"}),
    ("scale 1/d_k", {"scale": "d_k"}),
    ("scale multiplied", {"scale": "times"}),
    ("scale sqrt(seq_len)", {"scale": "n"}),
    ("scale after softmax", {"scale": "after"}),
    ("key reshaped, not transposed", {"roles": "reshape"}),
    ("query and key swapped", {"roles": "swap"}),
    ("value replaced by key", {"roles": "v is k"}),
    ("mask after softmax", {"fill": "after"}),
    ("mask fill near zero", {"fill": 1e-9}),
    ("mask fill near zero", {"fill": -1e-9}),
    ("mask fill near zero", {"fill": "times"}),
    ("mask added as 0/1", {"fill": "plus"}),
    ("mask fill overflows float16", {"fill": -1e9}),
    ("mask fill too weak", {"fill": -10.0}),
    ("finite fill of the mask", {"fill": -1e4}),
    ("mask polarity inverted", {"mask": "inverted"}),
    ("mask ignored", {"mask": "ignored"}),
    ("mask transposed", {"mask": "rows"}),
    ("mask in head/batch order", {"mask": "order"}),
    ("causal upper triangle", {"causal": "upper"}),
    ("causal excludes self", {"causal": "no self"}),
    ("causal sees one ahead", {"causal": "one ahead"}),
    ("causal aligned bottom-right", {"causal": "bottom-right"}),
    ("causal not applied", {"causal": "off"}),
    ("dropout on in eval", {"dropout": True}),
    ("weights detached", {"detach": True}),
    ("input changed in place", {"pure": "in place"}),
]
