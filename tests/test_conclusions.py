"""What a notebook concludes from one random start holds for five."""

from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
SEEDS = range(5)


def names_of(number, *markers):
    """What a notebook's imports and the cells that contain these markers define."""
    notebook = nbformat.read(next((ROOT / "notebooks").glob(f"{number}_*.ipynb")), as_version=4)
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    names = {}
    for marker in ("import numpy as np", *markers):
        (source,) = [source for source in sources[1:] if marker in source]
        exec(source, names)
    return names


def test_one_matrix_cannot_look_round_a_ring_two_can():
    names = names_of("02", "def vectors", "def learn(tied")
    for seed in SEEDS:
        shares = {tied: names["learn"](tied, seed)[range(3), names["following"]] for tied in (True, False)}
        assert shares[False].min() > 0.999
        assert shares[True].max() == pytest.approx(1 / 3, abs=1e-3)


def test_the_root_decides_where_scores_start_large_and_only_there():
    names = names_of("03", "def fetch_next")
    for seed in SEEDS:
        assert names["fetch_next"](True, 1.0, seed) > 0.99
        assert names["fetch_next"](False, 1.0, seed) < 0.7
        assert names["fetch_next"](False, 0.1, seed) > 0.99


def test_one_head_cannot_tell_two_neighbours_two_can():
    names = names_of("04", "def learn(num_heads")
    for seed in SEEDS:
        right = {
            h: names["accuracy"](names["learn"](h, seed), names["BOTH_NEIGHBOURS"], seed=1) for h in (1, 2)
        }
        assert right[1] < 0.25
        assert right[2] > 0.99


def test_places_are_needed_to_reverse():
    names = names_of("05", "def learn(positions")
    for seed in SEEDS:
        (placed, _), (bare, _) = (names["learn"](positions, seed) for positions in (True, False))
        right = names["accuracy"]
        assert right(placed, names["REVERSE"], seed=1) > 0.99
        assert right(bare, names["REVERSE"], seed=1) < 0.35


def test_more_gradient_arrives_below_pre_norm():
    names = names_of("05", "def arriving")
    for seed in SEEDS:
        assert names["arriving"]("post", 96, seed)[0] < 0.6
        assert names["arriving"]("pre", 96, seed)[0] > 1.0
