"""`python -m benchmarks train`: whole training runs of the same rows, and how long they wait."""

from __future__ import annotations

import json

import pytest

from benchmarks.__main__ import main
from benchmarks.data import criteo_shape, movielens_shape
from benchmarks.train import COLUMNS, NATIVE, STACKED, WAYS, name_of, of_section
from benchmarks.train_runs import MODELS, nhot_shape
from tutorlib.chunk import Ragged

ROWS, BATCH_SIZE = 2_500, 1_000


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("train")


@pytest.fixture(scope="module")
def measured(place):
    """The benchmark over few rows: it shows that it runs, its figures mean nothing."""
    path = place / "train-here.json"
    options = {
        "--rows": ROWS, "--batch-size": BATCH_SIZE, "--repeat": 2, "--only": "movielens",
        "--data": place, "--out": path,
    }  # fmt: skip
    assert main(["train", *(str(word) for option in options.items() for word in option)]) == 0
    return json.loads(path.read_text())


def test_every_way_trains_on_all_rows_and_says_what_share_it_waited(measured):
    entries = {entry["name"]: entry for entry in measured["candidates"]}
    assert list(entries) == [name_of("movielens", way) for way in WAYS]
    for entry in entries.values():
        assert entry["rows"] == ROWS  # as the model's loss metric counted them
        assert len(entry["elapsed_s"]) == len(entry["wait_shares"]) == len(entry["losses"]) == 2
        assert all(0 <= share <= 1 for share in entry["wait_shares"])
        assert min(entry["wait_shares"]) <= entry["wait_share"] <= max(entry["wait_shares"])
        assert all(0.6 < loss < 0.8 for loss in entry["losses"])  # labels are drawn by lot


def test_ways_are_compared_turn_by_turn_with_the_native_one(measured):
    native, *others = measured["candidates"]
    assert native["times_native"] == 1
    for entry in others:
        pairs = zip(native["elapsed_s"], entry["elapsed_s"], strict=True)
        quotients = [theirs / ours for theirs, ours in pairs]
        assert entry["times_native"] == pytest.approx(sum(quotients) / 2)
    assert len(measured["claims"]) == 2
    assert measured["sections"] == {"movielens": [entry["name"] for entry in [native, *others]]}


@pytest.mark.parametrize("section", MODELS)
def test_fused_tables_hold_as_many_weights_as_tables_for_each_column(section, place):
    shapes = {"dlrm": criteo_shape, "movielens": movielens_shape, "wide_and_deep": nhot_shape}
    models = MODELS[section](shapes[section](place, ROWS).schema, "scaled")
    assert models.fused().count_params() == models.by_column().count_params()


def test_a_section_is_one_model_in_three_ways(place):
    made = of_section("dlrm", criteo_shape(place, ROWS), BATCH_SIZE, "scaled")
    assert list(made) == [name_of("dlrm", way) for way in (NATIVE, COLUMNS, STACKED)]
    assert [training.epoch() for training in made.values()] == [ROWS] * 3


def test_rows_with_lists_are_those_of_data_prep(place):
    data = nhot_shape(place, ROWS)
    chunk = data.source.read(0)
    assert (chunk.num_rows, data.source.num_rows) == (ROWS, ROWS)
    assert list(chunk.names) == data.schema.names
    assert isinstance(chunk["H1"], Ragged)


def test_an_epoch_of_one_batch_is_refused(place):
    with pytest.raises(SystemExit, match="more than one batch"):
        main(["train", "--rows", "1000", "--batch-size", "1000", "--data", str(place)])
