"""`python -m benchmarks large-tables`: four ways to train a DLRM with large tables."""

from __future__ import annotations

import json

from benchmarks import large_tables
from benchmarks.__main__ import main


def test_every_way_trains_the_same_parameters_on_its_rows(tmp_path):
    path = tmp_path / "large-tables.json"
    options = {
        "--rows": 2048, "--slow-rows": 1024, "--batch-size": 512, "--table-share": 0.001,
        "--repeat": 1, "--data": tmp_path, "--out": path,
    }  # fmt: skip
    assert main(["large-tables", *(str(word) for pair in options.items() for word in pair)]) == 0
    result = json.loads(path.read_text())
    rows = {entry["name"]: entry["rows"] for entry in result["candidates"]}
    assert rows == {
        large_tables.NATIVE: 1024,
        large_tables.LOADER: 1024,
        large_tables.NATIVE_SPARSE: 2048,
        large_tables.LOADER_SPARSE: 2048,
    }
    assert len(result["claims"]) == len(large_tables.CLAIMS)
    assert result["parameters"] > 8 * 190_000  # no table is smaller than its rows need
