"""Attention to a few keys instead of all: a local window, or a list of chosen pairs.

Full attention computes n_q * n_k scores, and a mask hides some of them after they were paid
for. Here the others are never computed. The softmax still shares out one unit per query among
the allowed keys, so the result equals full attention under that mask.

Shapes are written as in `attention`: (..., n, d), any batch axes. A pair is (query, key),
that is (row, column) of the matrix of weights. Tensors or numpy arrays, answered in kind.
"""

from __future__ import annotations

import math
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor

from utils import checks
from utils.attention import as_additive, at_least_float32

SMALLEST_BLOCK = 32  # smaller ones keep a processor less busy


# -- a window -----------------------------------------------------------------------------


@checks.numpy_in_numpy_out
def local_attention(
    query: Tensor, key: Tensor, value: Tensor, window: int, is_causal: bool = False
) -> Tensor:
    """Attention to the neighbours only: token i sees tokens i - window ... i + window.

    query, key  (..., n, d_k)
    value       (..., n, d_v)
    window      neighbours on each side, the token itself not counted but always seen:
                window=2 means up to 5 keys, or up to 3 if is_causal; near the ends fewer
    is_causal   look back only: i - window ... i
    returns     (..., n, d_v)

    Equals full attention with the mask `local_mask(n, window, is_causal)`, in time and
    memory that grow with n * window instead of n * n: the tokens are cut into blocks as wide
    as the window, and each block attends to itself and its surroundings.
    float16 and bfloat16 are computed in float32 (unless autocast is on) and returned in their own dtype.

    Raises TypeError or ValueError that names what does not fit, as full attention does,
    and for a window that is no whole number or is negative.
    Source: Beltagy, Peters, Cohan, Longformer (2020), section 3.1, where w counts both sides.
    """
    n, window = checks.local_attention(query, key, value, window, is_causal)
    left, right = window, 0 if is_causal else window
    block = max(window, SMALLEST_BLOCK)
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    q, k, v = (_flatten_batch(at_least_float32(t), batch) for t in (query, key, value))
    output = F.scaled_dot_product_attention(
        _blocks(q, block, 0, 0),  # (blocks, B, block, d_k)
        _blocks(k, block, left, right),  # (blocks, B, left + block + right, d_k)
        _blocks(v, block, left, right),
        _block_mask(n, block, left, right, q),
    )  # (blocks, B, block, d_v)
    output = output.transpose(0, 1).flatten(1, 2)[:, :n]  # (B, n, d_v)
    checks.finite("scores", torch.linalg.vecdot(q, k))  # of each token for itself: no row is -inf throughout
    checks.finite("output", output)  # and where any score was +inf, this is NaN
    return output.reshape(*batch, n, value.shape[-1]).to(query.dtype)


def local_mask(n: int, window: int, is_causal: bool = False) -> Tensor:
    """The same window as a mask for full attention: a band along the diagonal.

    returns  (n, n) boolean, True where |i - j| <= window, and j <= i if is_causal

    For pictures and comparisons: full attention under it still computes n * n scores.
    """
    n, window = checks.count("n", n), checks.count("window", window)
    return _band(n, n, -window, 0 if is_causal else window)


def _band(rows: int, columns: int, lowest: int, highest: int, device: torch.device | None = None) -> Tensor:
    """True where lowest <= column - row <= highest."""
    return torch.ones(rows, columns, dtype=torch.bool, device=device).triu(lowest).tril(highest)


def _blocks(tensor: Tensor, block: int, left: int, right: int) -> Tensor:
    """Cut the tokens into blocks, each with `left` and `right` tokens of its surroundings.

    (B, n, d) -> (blocks, B, left + block + right, d). Neighbouring blocks overlap, but as
    views of one padded copy: what they share is stored once.
    """
    to_full_blocks = -tensor.shape[-2] % block
    padded = F.pad(tensor, (0, 0, left, right + to_full_blocks))
    return padded.unfold(-2, left + block + right, block).permute(1, 0, 3, 2)


def _block_mask(n: int, block: int, left: int, right: int, like: Tensor) -> Tensor:
    """The window inside each block: (blocks, 1, block, left + block + right), added to the scores."""
    band = _band(block, left + block + right, 0, left + right, like.device)
    real = torch.ones(1, n, 1, dtype=torch.bool, device=like.device)
    real = _blocks(real, block, left, right).mT  # (blocks, 1, 1, left + block + right)
    mask = as_additive(band, like.dtype) + as_additive(real, like.dtype)
    unused = -n % block  # queries that only fill the last block:
    mask[-1, :, block - unused :] = 0.0  # they see something, as an empty row could turn NaN
    return mask


# -- chosen pairs -------------------------------------------------------------------------


@checks.numpy_in_numpy_out
def sparse_attention(query: Tensor, key: Tensor, value: Tensor, pairs: Tensor) -> Tensor:
    """Attention along chosen pairs only, the same pairs for every batch axis.

    query    (..., n_q, d_k)
    key      (..., n_k, d_k)
    value    (..., n_k, d_v)
    pairs    (m, 2) integers: each row allows one (query, key), both counted from 0.
             Their order does not matter, and a pair given twice counts once.
    returns  (..., n_q, d_v); a query without pairs gets 0

    Equals full attention with a mask that is True at the pairs, in time and memory that
    grow with m instead of n_q * n_k.
    float16 and bfloat16 are computed in float32 (unless autocast is on) and returned in their own dtype.

    Raises TypeError or ValueError that names what does not fit, as full attention does,
    and for pairs that are no integers, not (m, 2) or name a token that is not there.
    Source: Child et al., Generating Long Sequences with Sparse Transformers (2019), section 4.2.
    """
    checks.sparse_attention(query, key, value, pairs)
    q, k, v = (at_least_float32(t) for t in (query, key, value))
    rows, columns = _each_pair_once(pairs, k.shape[-2])  # (m,), (m,)
    scores = (q.index_select(-2, rows) * k.index_select(-2, columns)).sum(-1)  # (..., m)
    weights = _softmax_by_row(scores / math.sqrt(k.shape[-1]), rows, q.shape[-2])  # (..., m)
    parts = weights[..., None] * v.index_select(-2, columns)  # (..., m, d_v)
    output = parts.new_zeros(*parts.shape[:-2], q.shape[-2], v.shape[-1])
    return output.index_add(-2, rows, parts).to(query.dtype)


@checks.numpy_in_numpy_out
def sparse_attention_fast(query: Tensor, key: Tensor, value: Tensor, pairs: Tensor) -> Tensor:
    """The same as `sparse_attention`, several times faster, where PyTorch has sparse kernels.

    Arguments, result and errors are those of `sparse_attention`. What makes it fast: no row
    of query, key or value is copied for every pair that names it.

    Needs a CPU or an NVIDIA GPU, and knows first derivatives only. `sparse_attention` runs on every device
    and can be differentiated as often as you like.
    """
    checks.sparse_attention(query, key, value, pairs)
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    q, k, v = (_flatten_batch(at_least_float32(t), batch) for t in (query, key, value))
    sequence = torch.arange(len(q), device=query.device)[:, None]  # (B, 1)
    rows, columns = _each_pair_once(pairs, k.shape[-2])
    rows = (rows + sequence * q.shape[-2]).flatten()  # (B m,): all sequences as one long one,
    columns = (columns + sequence * k.shape[-2]).flatten()  # in which no pair leads to another
    q, k, v = (t.flatten(0, 1) for t in (q, k, v))  # (B n, d)
    starts = F.pad(torch.bincount(rows, minlength=len(q)).cumsum(0), (1, 0))  # where each row's pairs begin
    scores = _dot_products(q, k, starts, columns)  # (B m,)
    weights = _softmax_by_row(scores / math.sqrt(k.shape[-1]), rows, len(q))  # (B m,)
    output = F.embedding_bag(
        columns, v, starts, mode="sum", per_sample_weights=weights, include_last_offset=True
    )  # (B n_q, d_v): each bag is a query, holding its keys' values times their weights
    return output.reshape(*batch, query.shape[-2], value.shape[-1]).to(query.dtype)


def sparse_pairs(n: int, window: int, global_tokens: int = 0, random: int = 0, seed: int = 0) -> Tensor:
    """The usual pattern: neighbours, a few tokens that connect all, and some random keys.

    n              tokens, queries and keys alike
    window         neighbours on each side, as in `local_attention`
    global_tokens  the first so many tokens attend to all and are attended by all
    random         keys drawn for each query; one that is allowed already adds nothing
    returns        (m, 2) integers, sorted, no pair twice. For a causal pattern keep
                   pairs[pairs[:, 1] <= pairs[:, 0]]

    m is about n * (2 * window + 1 + 2 * global_tokens + random).

    Raises TypeError or ValueError for numbers that are not whole or are negative, and for
    more global tokens than tokens.
    Source: Zaheer et al., Big Bird (2020), section 2; without random keys Beltagy et al.,
    Longformer (2020), section 3.1.
    """
    n, window, global_tokens, random = checks.pattern(n, window, global_tokens, random)
    window = min(window, n)
    token = torch.arange(n)[:, None]  # (n, 1)
    drawn = torch.randint(max(n, 1), (n, random), generator=torch.Generator().manual_seed(seed))
    hub = torch.arange(global_tokens)  # (global_tokens,)
    neighbour = token + torch.arange(-window, window + 1)  # (n, 2 window + 1)
    both = [(token, neighbour), (token, hub), (hub, token), (token, drawn)]
    pairs = torch.cat([torch.stack(torch.broadcast_tensors(*pair), -1).flatten(0, 1) for pair in both])
    inside = (pairs[:, 1] >= 0) & (pairs[:, 1] < n)  # the first and last tokens lack neighbours
    return torch.stack(_each_pair_once(pairs[inside], n)).T  # each column in one piece, which is faster


def _each_pair_once(pairs: Tensor, n_k: int) -> tuple[Tensor, Tensor]:
    """Rows and columns of the pairs, (m,) each, sorted by row and without repetition."""
    rows, columns = pairs.long().unbind(-1)
    place = rows * n_k + columns  # counted along the rows of the matrix: one number per pair
    if (place[1:] <= place[:-1]).any():
        place = place.unique()
        rows, columns = place // n_k, place % n_k
    return rows, columns


def _softmax_by_row(scores: Tensor, rows: Tensor, n_rows: int) -> Tensor:
    """Softmax among the pairs of each row. scores and result (..., m), rows (m,)."""
    checks.finite("scores", scores)
    largest = scores.new_full((*scores.shape[:-1], n_rows), -math.inf)
    largest = largest.scatter_reduce(-1, rows.expand_as(scores), scores.detach(), "amax")
    exps = (scores - largest.index_select(-1, rows)).exp()
    totals = torch.zeros_like(largest).index_add(-1, rows, exps)  # (..., n_rows)
    return exps / totals.index_select(-1, rows)


def _dot_products(q: Tensor, k: Tensor, starts: Tensor, columns: Tensor) -> Tensor:
    """The entries of q @ k.T at the pairs, and only these: (m,)."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        zeros = torch.sparse_csr_tensor(
            starts, columns, q.new_zeros(len(columns)), (len(q), len(k)), check_invariants=False
        )
    return torch.sparse.sampled_addmm(zeros, q, k.T, beta=0.0).values()


def _flatten_batch(tensor: Tensor, batch: torch.Size) -> Tensor:
    """(..., n, d) -> (B, n, d), where B counts the sequences of the whole batch."""
    return tensor.expand(1, *batch, *tensor.shape[-2:]).flatten(0, -3)
