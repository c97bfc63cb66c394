"""The benchmark of the layers runs, compares like with like, and checks its claims."""

import json

import numpy as np
import pytest

from benchmarks import figures, layers, measure
from benchmarks.__main__ import main
from tests.support.figures import assert_reproducible


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Report of a run over small tables: it shows only that the benchmark runs."""
    target = tmp_path_factory.mktemp("layers") / "layers-here.json"
    sizes = ["--batch-size", "512", "--table-rows", "30000", "--width", "4", "--repeat", "1"]
    assert main(["layers", *sizes, "--out", str(target)]) == 0
    return target


def test_the_benchmark_of_the_layers_runs_and_checks_its_claims(measured):
    result = json.loads(measured.read_text())
    assert [claim["name"] for claim in result["claims"]] == [c.name for c in layers.CLAIMS]
    assert all(entry["rows_per_s"] > 0 for entry in result["candidates"])
    assert (result["batch_size"], result["width"]) == (512, 4)
    said = measure.table(result)
    assert f"times the rate of {layers.LEGACY}; required: at least 5" in said


def test_ids_are_below_their_cardinality_and_small_ones_are_frequent():
    sizes = layers.column_sizes(1_000_000)
    ids = layers.skewed_ids(sizes, 5_000, np.random.default_rng(0))
    assert len(sizes) == 26
    assert 0.98e6 < sum(sizes) < 1.02e6
    assert (ids >= 0).all()
    assert (ids < np.array(sizes)).all()
    assert (ids < np.array(sizes) / 2).mean() > 0.7


def test_each_layer_is_drawn_once_in_the_panel_of_what_it_is_compared_with(measured):
    result = json.loads(measured.read_text())
    panels = figures.layer_panels(result)
    drawn = [entry["rows_per_s"] for entries in panels.values() for entry in entries]
    assert sorted(drawn) == sorted(entry["rows_per_s"] for entry in result["candidates"])
    assert list(panels) == [
        "26 columns of ids to one tensor",
        "Lists of ids to their mean, table of 100,000 rows",
        "Lists of ids to their mean, table of 21 rows",
        "Optimizer, batch 4,096",
        "Optimizer, batch 512",
    ]
    for entries in panels.values():
        names = [entry["name"] for entry in entries]
        assert len(set(names)) == len(names)
        [usual] = [entry for entry in entries if entry["name"] in figures.USUAL]
        for entry in entries:
            assert entry["ratio"] == entry["rows_per_s"] / usual["rows_per_s"]


def test_the_figure_is_reproducible(measured, tmp_path):
    assert_reproducible("layers", figures.draw_layers, measured.parent, tmp_path)
