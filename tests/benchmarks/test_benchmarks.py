"""Each benchmark runs over a few rows, and each way reads or trains on exactly its rows."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks import figures, loader
from benchmarks.__main__ import MODULES, main
from benchmarks.data import column_sums, criteo_shape, files_of, linked

ROWS = 4096
SMALL = {  # options of a run of seconds, and the number of ways that it measures
    "loader": ["--slow-rows 1000 --copies 2 --batch-size 1000", 30],
    "memory": [
        "--only series --budget-mib 64 --sizes 1 --batch-size 1024 --row-group-rows 4096",
        1,
    ],
    "growth": ["--only files --files 6 2 --batch-size 500", 2],
    "layers": ["--batch-size 512 --table-rows 30000 --width 4", 22],
    "etl": ["--scale 0.01", 3],
    "train": ["--batch-size 1024 --only movielens", 4],
    "large-tables": ["--slow-rows 2048 --batch-size 512 --table-share 0.001", 4],
    "peers": ["--only read --slow-rows 1000 --copies 2 --batch-size 1000 --environments none", 6],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("rows")


@pytest.fixture(scope="module")
def measured(folder):
    """Return the report of a benchmark over a few rows, measured once."""
    reports = {}

    def report(name):
        if name not in reports:
            path = folder / "results" / f"{name}-here.json"
            words = [name, *SMALL[name][0].split(), "--repeat", "1"]
            words += ["--data", str(folder), "--out", str(path)]
            if name in ("loader", "etl", "train", "large-tables", "peers"):
                words += ["--rows", str(ROWS)]
            assert main(words) == 0
            reports[name] = json.loads(path.read_text())
        return reports[name]

    return report


@pytest.mark.parametrize("name", MODULES)
def test_a_benchmark_runs_and_reports_every_way_with_its_claims(name, measured, folder):
    result = measured(name)
    assert len(result["ways"]) == SMALL[name][1]
    assert all(entry["rows_per_s"] > 0 < entry["ratio"] for entry in result["ways"])
    assert all(len(said["values"]) == 1 for said in result["claims"])
    assert str(folder) not in json.dumps({**result, "not_measured": {}})


@pytest.mark.slow  # XLA compiles five networks
def test_peers_trains_on_every_reader_of_this_process(folder):
    path = folder / "peers-train.json"
    options = ["--only", "train", "--train-rows", "2048", "--train-batch-size", "1024"]
    options += ["--environments", "none", "--repeat", "1", "--data", str(folder)]
    assert main(["peers", *options, "--out", str(path)]) == 0
    result = json.loads(path.read_text())
    assert [entry["rows"] for entry in result["ways"]] == [2048] * 5
    assert list(result["not_measured"]) == ["PyTorch"]


def test_every_reader_delivers_exactly_the_rows_of_the_files(folder):
    options = {"data": folder, "rows": ROWS, "slow_rows": 1000, "copies": 2, "batch_size": 1000}
    data = criteo_shape(folder, ROWS)
    schema, first = data.schema, pq.read_table(data.parquet)["C1"].to_numpy()[:1000]
    readers = [
        (section, way)
        for section in ("readers", "plain", "batches")
        for way in getattr(loader, section)(Namespace(**options, device="cpu"))
        if way.name != loader.ARROW
    ]
    assert len(readers) == 20
    for section, way in readers:
        rows, sums, order = 0, Counter(), []
        for inputs, label in way.epoch.args[0]:
            rows += label.shape[0]
            for name, tensor in {**inputs, "label": label}.items():
                totals = np.asarray(tensor).sum(axis=0, dtype=np.float64)
                roles = name in ("categorical", "continuous")
                names = schema.with_role(name).names if roles else [name]
                sums.update(dict(zip(names, totals, strict=True)))
            if "C1" in inputs or "categorical" in inputs:
                ids = inputs["C1"] if "C1" in inputs else inputs["categorical"][:, :1]
                order.extend(np.asarray(ids).ravel())
        times = max(1, rows // ROWS)
        assert rows in (1000, ROWS, 2 * ROWS), (section, way.name)
        once = column_sums(files_of(data.parquet), rows // times)
        expected = {column: times * total for column, total in once.items()}
        assert sums == pytest.approx(expected, rel=1e-6), (section, way.name)
        kept = np.array_equal(order[:1000], first)
        assert kept == ("not shuffled" in way.name), (section, way.name)


def test_plain_files_hold_the_same_rows_as_int64_with_dictionary_and_snappy(folder):
    data = criteo_shape(folder, ROWS)
    plain, fast = files_of(data.plain), files_of(data.parquet)
    assert column_sums(plain) == column_sums(fast)
    column = pq.read_metadata(plain[0]).row_group(0).column(0)
    assert (column.compression, column.physical_type) == ("SNAPPY", "INT64")
    assert column.has_dictionary_page
    assert len(files_of(linked(data.parquet, 3))) == 3 * len(fast)


@pytest.mark.parametrize("name", [*figures.FIGURES, "growth"])
def test_a_figure_can_be_drawn_again_with_the_same_bytes(name, measured, folder, tmp_path):
    results = figures.RESULTS  # the first page's four trainings would take minutes
    if name != "first_page":
        measured(figures.FIGURES[name].benchmark if name in figures.FIGURES else name)
        results = folder / "results"
    drawn = []
    for images in (tmp_path / "one", tmp_path / "two"):
        words = ["figures", "--only", name, "--results", str(results)]
        assert main([*words, "--images", str(images)]) == 0
        drawn.append((images / f"{name}.svg").read_bytes())
    assert b"<svg" in drawn[0]
    assert drawn[0] == drawn[1]


def test_without_a_measurement_the_figures_command_names_the_benchmark_to_run(tmp_path):
    with pytest.raises(SystemExit, match="python -m benchmarks loader"):
        main(["figures", "--results", str(tmp_path), "--images", str(tmp_path)])


def test_help_lists_the_benchmarks_without_starting_tensorflow(root):
    code = (
        "import sys; from benchmarks.__main__ import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: sys.exit('tensorflow' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=False
    )
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in (*MODULES, "figures"))


def named(result, name):
    return next(entry for entry in result["ways"] if entry["name"] == name)


def test_the_rates_and_ratios_in_the_readme_are_those_of_the_results(root):
    readme = " ".join((root / "README.md").read_text(encoding="utf-8").split())
    loading, peers = figures.newest("loader"), figures.newest("peers")
    texts = {
        "The loader gives {}": named(loading, loader.COLUMNS),
        "single `tf.data` steps gives {}": named(loading, loader.PARSE_BATCHES),
        "a whole batch, not shuffled, give {}": named(loading, loader.PREBATCHED),
        "the loader gives {} rows/s": named(peers, "loader, columns"),
        "Keras gives {} from arrays": named(peers, "Keras arrays in memory"),
        "DataLoader over Arrow {}": named(peers, "PyTorch DataLoader over Arrow, per row group"),
        "merlin-dataloader {}": named(peers, "merlin-dataloader, per partition"),
        "HF datasets at most {}": named(peers, "HF datasets, in a window"),
        "{} samples/s with the loader": named(peers, "loader, stacked and fused"),
        "{} in PyTorch": named(peers, "PyTorch, tensors in memory"),
    }
    said = [text.format(figures.in_words(entry["rows_per_s"])) for text, entry in texts.items()]
    gains = [e["ratio"] for e in figures.newest("train")["ways"] if e["name"].startswith("loader")]
    said.append(f"training {min(gains):.1f} to {max(gains):.1f} times as fast")
    assert [text for text in said if text not in readme] == []
