"""The benchmark of the layers runs, compares like with like, and says what was to be shown."""

import json

import numpy as np

from benchmarks import layers
from benchmarks.__main__ import main


def test_the_benchmark_of_the_layers_runs_and_checks_its_claims(tmp_path, capsys):
    target = tmp_path / "layers.json"
    sizes = ["--batch-size", "512", "--table-rows", "30000", "--width", "4", "--repeat", "1"]
    assert main(["layers", *sizes, "--out", str(target)]) == 0
    result = json.loads(target.read_text())
    assert [claim["name"] for claim in result["claims"]] == [c.name for c in layers.CLAIMS]
    assert all(entry["rows_per_s"] > 0 for entry in result["candidates"])
    assert (result["batch_size"], result["width"]) == (512, 4)
    assert f"times the rate of {layers.LEGACY}; to be at least 5" in capsys.readouterr().out


def test_ids_lie_in_their_columns_and_small_ones_are_frequent():
    sizes = layers.column_sizes(1_000_000)
    ids = layers.skewed_ids(sizes, 5_000, np.random.default_rng(0))
    assert len(sizes) == 26
    assert 0.98e6 < sum(sizes) < 1.02e6
    assert (ids >= 0).all()
    assert (ids < np.array(sizes)).all()
    assert (ids < np.array(sizes) / 2).mean() > 0.7
