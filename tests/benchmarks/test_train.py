"""`python -m benchmarks train`: training runs on the same rows, and how long they wait."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks import figures
from benchmarks.__main__ import main, parser
from benchmarks.data import nhot_shape
from benchmarks.device import Device
from benchmarks.networks import NETWORKS
from benchmarks.timelines import as_json, as_trace
from benchmarks.train import (
    COLUMNS,
    COMPILED,
    DATASETS,
    NATIVE,
    PREBATCHED,
    STACKED,
    name_of,
    of_section,
)
from tutorlib.columns import Ragged
from tutorlib.profiling import ProfileSteps, read_trace

ROWS, BATCH_SIZE = 2_500, 1_000
FULL_BATCHES = 2_000  # rows
WAYS = (NATIVE, PREBATCHED, COLUMNS, STACKED, COMPILED)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("train")


@pytest.fixture(scope="module")
def measured(place):
    """Report of a run over few rows: it shows only that the benchmark runs."""
    path = place / "results" / "train-here.json"
    options = {
        "--rows": ROWS, "--batch-size": BATCH_SIZE, "--repeat": 2, "--only": "movielens",
        "--data": place, "--out": path,
    }  # fmt: skip
    assert main(["train", *(str(word) for option in options.items() for word in option)]) == 0
    return json.loads(path.read_text())


def test_every_way_trains_on_all_rows_and_reports_its_wait(measured):
    entries = {entry["name"]: entry for entry in measured["candidates"]}
    assert list(entries) == [name_of("movielens", way) for way in WAYS]
    for name, entry in entries.items():
        compiled = name == name_of("movielens", COMPILED)
        assert entry["jit_compile"] == compiled
        # as the model's loss metric counted them; XLA's batches are full
        assert entry["rows"] == (FULL_BATCHES if compiled else ROWS)
        assert len(entry["elapsed_s"]) == len(entry["wait_shares"]) == len(entry["losses"]) == 2
        assert all(0 <= share <= 1 for share in entry["wait_shares"])
        assert min(entry["wait_shares"]) <= entry["wait_share"] <= max(entry["wait_shares"])
        assert all(0.5 < loss < 0.8 for loss in [*entry["losses"], entry["valid_loss"]])


def test_ways_are_compared_with_both_native_ones_turn_by_turn(measured):
    entries = measured["candidates"]
    for baseline, key in zip(entries[:2], ("times_native", "times_prebatched"), strict=True):
        assert baseline[key] == 1
        for entry in entries:
            pairs = zip(baseline["elapsed_s"], entry["elapsed_s"], strict=True)
            more = entry["rows"] / baseline["rows"]
            quotients = [more * theirs / ours for theirs, ours in pairs]
            assert entry[key] == pytest.approx(sum(quotients) / 2)
    assert len(measured["claims"]) == 3
    assert measured["sections"] == {"movielens": [entry["name"] for entry in entries]}


@pytest.mark.parametrize("section", NETWORKS)
def test_fused_tables_hold_as_many_weights_as_tables_for_each_column(section, place):
    models = NETWORKS[section](DATASETS[section](place, ROWS).schema, "scaled")
    assert models.fused().count_params() == models.by_column().count_params()


@pytest.mark.parametrize("section", NETWORKS)
def test_tables_of_both_forms_have_the_same_initial_distribution(section, place):
    """Otherwise the losses of two ways would differ by their initial weights."""
    models = NETWORKS[section](DATASETS[section](place, ROWS).schema, "scaled")
    spreads = []
    for model in (models.by_column(), models.fused()):
        tables = [w.numpy() for w in model.weights if "embedding" in w.path and w.shape[-1] > 1]
        values = np.concatenate([table.ravel() for table in tables])
        spreads.append(values.std())
        assert abs(values.mean()) < 0.01
    assert spreads[0] == pytest.approx(spreads[1], rel=0.02)


def test_a_section_is_one_network_in_five_ways(place):
    arguments = parser().parse_args(["train", "--batch-size", str(BATCH_SIZE)])
    made = of_section("dlrm", DATASETS["dlrm"](place, ROWS), arguments, Device("cpu"))
    assert list(made) == [name_of("dlrm", way) for way in WAYS]
    assert [training.epoch() for training in made.values()] == [ROWS] * 4 + [FULL_BATCHES]


def test_a_report_has_timelines_of_a_native_and_of_a_fused_epoch(measured):
    kept = measured["timelines"]
    assert list(kept) == [name_of("movielens", way) for way in (NATIVE, STACKED)]
    for timeline in kept.values():
        trace = as_trace(timeline)
        assert 0 < trace.device.busy_share < 1
        assert 0 < trace.wait_share < 1
        assert 0 <= trace.waiting.starts[0]
        assert trace.waiting.stops[-1] <= timeline["length_ms"]
    native, fused = map(as_trace, kept.values())
    assert len(native.reading)  # tf.data's threads
    assert not len(fused.reading)
    assert len(json.dumps(kept)) < 200_000


def test_a_timeline_is_the_end_of_its_trace_up_to_visible_gaps(tmp_path):
    model = keras.Sequential([keras.layers.Dense(256), keras.layers.Dense(1)])
    model.compile(loss="mse")
    batches = tf.data.Dataset.from_tensors((tf.ones((500, 8)), tf.ones((500, 1)))).repeat(12)
    model.fit(batches, callbacks=[ProfileSteps(tmp_path, 3, 12)], shuffle=False, verbose=0)
    trace = read_trace(tmp_path)
    kept = as_trace(json.loads(json.dumps(as_json(trace, 4))))
    start, stop = trace.steps[8][1], trace.steps[12][1]
    assert kept.device.stop_ms == pytest.approx(stop - start, abs=0.01)
    for seen, whole in ((kept.device.busy, trace.device.busy), (kept.waiting, trace.waiting)):
        part = whole.within(start, stop)
        closed_ms, rounded_ms = len(part) * (stop - start) / 1000, 0.01 * len(part)
        assert -rounded_ms <= seen.total_ms - part.total_ms <= closed_ms + rounded_ms
    with pytest.raises(ValueError, match=r"of 10 steps .* has 10 steps: trace at least one"):
        as_json(trace, 10)


def test_figures_are_reproducible(measured, place, tmp_path):
    names = ("train", "timelines")
    folders = ["--results", str(place / "results"), "--images", str(tmp_path)]
    command = ["figures", "--only", *names, *folders]
    assert main(command) == 0
    first = [(tmp_path / f"{name}.svg").read_bytes() for name in names]
    assert main(command) == 0
    assert [(tmp_path / f"{name}.svg").read_bytes() for name in names] == first
    assert main([*command, "--format", "png"]) == 0
    for name in names:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_timelines_figure_skips_reports_without_timelines(measured, tmp_path):
    newer = {name: value for name, value in measured.items() if name != "timelines"}
    newer["date"] = "2100-01-01T00:00:00+00:00"
    (tmp_path / "train-newer.json").write_text(json.dumps(newer))
    command = ["figures", "--results", str(tmp_path), "--images", str(tmp_path), "--only"]
    assert main([*command, "train"]) == 0
    with pytest.raises(SystemExit, match=r"no train-.* with timelines .* benchmarks train"):
        main([*command, "timelines"])
    (tmp_path / "train-older.json").write_text(json.dumps(measured))
    assert figures.newest("train", tmp_path)["date"] == newer["date"]
    assert main([*command, "timelines"]) == 0


def test_rows_with_lists_are_those_of_data_prep(place):
    data = nhot_shape(place, ROWS)
    chunk = data.source.read(0)
    assert (chunk.num_rows, data.source.num_rows) == (ROWS, ROWS)
    assert list(chunk.names) == data.schema.names
    assert isinstance(chunk["H1"], Ragged)


def test_an_epoch_of_one_batch_is_refused(place):
    with pytest.raises(SystemExit, match="more than one batch"):
        main(["train", "--rows", "1000", "--batch-size", "1000", "--data", str(place)])
