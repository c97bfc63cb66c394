"""transform_to_parquet: equal bytes for any number of threads; a killed run leaves nothing."""

import glob
import json
import pickle
import shutil
import subprocess
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.workflow_rows import all_rows, contents, rows, same, workflow, write
from tutorlib.columns import Chunk
from tutorlib.loader import KerasSequenceLoader
from tutorlib.ops import LogOp, Normalize
from tutorlib.parquet import ParquetError, ParquetSource
from tutorlib.schema import Schema
from tutorlib.workflow import Workflow, split_rows

SIZES = {"row_group_rows": 100, "rows_per_file": 250}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write(tmp_path_factory.mktemp("writing") / "rows.parquet", rows(3000), 70)


@pytest.fixture(scope="module")
def fitted(source):
    return workflow().fit(source)


def test_the_folder_has_the_transformed_rows_their_schema_and_the_workflow(
    fitted, source, tmp_path
):
    folder = fitted.transform_to_parquet(source, tmp_path / "out", **SIZES)
    want = fitted.transform(rows(3000))
    assert same(all_rows(folder, want.names), want)
    assert Schema.load(folder / "_schema.json") == fitted.output_schema
    assert Workflow.load(folder / "_workflow").fingerprint == fitted.fingerprint
    files = sorted(folder.glob("part_*.parquet"))
    assert len(files) == 15
    for file in files:
        footer = pq.read_metadata(file)
        assert [footer.row_group(k).num_rows for k in range(2)] == [100, 100]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    with pytest.raises(FileExistsError, match="overwrite=True"):
        fitted.transform_to_parquet(source, folder)
    fitted.transform_to_parquet(source, folder, overwrite=True, row_group_rows=3000)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert len(ParquetSource(folder)) == 1


def test_a_seed_shuffles_and_keeps_every_row_once(tmp_path):
    table = pa.table({"row": np.arange(1000), "label": np.arange(1000) % 2})
    source = write(tmp_path / "raw.parquet", table, 50)
    fitted = Workflow(["row", "label"]).fit(source)
    options = {"rows_per_file": 300, "row_group_rows": 100}
    orders = []
    for name, seed in {"a": 1, "again": 1, "b": 2}.items():
        folder = fitted.transform_to_parquet(source, tmp_path / name, shuffle_seed=seed, **options)
        out = all_rows(folder)
        assert (out["row"] % 2 == out["label"]).all()
        orders.append(out["row"].tolist())
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(1000))
    starts = np.array(orders[0][:300]) // 50  # the first part file mixes row groups from all over
    assert len(set(starts.tolist())) == 6
    assert np.abs(np.diff(orders[0])).mean() > 150


def test_the_files_do_not_depend_on_the_number_of_threads(fitted, source, tmp_path):
    for seed in (None, 7):
        folders = [
            fitted.transform_to_parquet(
                source, tmp_path / f"{seed}_{threads}", threads=threads, shuffle_seed=seed, **SIZES
            )
            for threads in (1, 2, 5)
        ]
        first = contents(folders[0])
        assert len([name for name in first if name.startswith("part_")]) == 15
        for folder in folders[1:]:
            assert contents(folder) == first


# --- splits -------------------------------------------------------------------------------------


def test_a_split_by_time_fits_on_the_earlier_rows_only(tmp_path):
    table = pa.table({"day": np.repeat(np.arange(10), 100), "x": np.arange(1000.0)})
    path = write(tmp_path / "rows.parquet", table, 130)
    split = {
        "train": ParquetSource(path, filters=[("day", "<", 8)]),
        "valid": ParquetSource(path, filters=[("day", ">=", 8)]),
    }
    fitted = Workflow(["x"] >> Normalize(), ["day"]).fit(split["train"])
    assert fitted.groups[0].ops[0].state["x"]["mean"].tolist() == [399.5]
    folder = fitted.transform_to_parquet(split, tmp_path / "out", **SIZES)
    assert [all_rows(folder / name).num_rows for name in split] == [800, 200]
    assert set(all_rows(folder / "valid")["day"].tolist()) == {8, 9}
    assert {path.name for path in folder.iterdir()} == {
        "train", "valid", "_workflow",
    }  # fmt: skip
    assert (folder / "valid" / "_schema.json").is_file()
    whole = fitted.transform(Chunk.from_arrow(table))
    assert same(Chunk.concat([all_rows(folder / name) for name in split]), whole)


@pytest.mark.parametrize("seed", [None, 3])
def test_each_row_is_in_exactly_one_part_of_a_split(source, tmp_path, seed):
    split = split_rows(source, {"train": 0.7, "test": 0.1, "valid": 0.2}, seed=seed)
    fitted = Workflow(["count", "price", "label"]).fit(split["train"])
    folder = fitted.transform_to_parquet(split, tmp_path / "out", shuffle_seed=1, **SIZES)
    found = [all_rows(folder / name) for name in split]
    counts = [part.num_rows for part in found]
    assert counts == [part.num_rows for part in split.values()]
    assert sum(counts) == 3000
    assert counts == [2100, 300, 600] or (seed and np.allclose(counts, [2100, 300, 600], atol=90))
    prices = np.concatenate([part["price"] for part in found])
    np.testing.assert_array_equal(np.sort(prices), np.sort(rows(3000)["price"].to_numpy()))
    again = split_rows(ParquetSource(source), {"train": 0.7, "test": 0.1, "valid": 0.2}, seed=seed)
    assert [again[name].fingerprint() for name in split] == [
        split[name].fingerprint() for name in split
    ]


def test_a_random_split_keeps_the_order_and_draws_evenly():
    rows, shares = Chunk({"x": np.arange(100_000)}), {"a": 0.75, "b": 0.25}
    split = split_rows(rows, shares, seed=5)
    drawn = np.concatenate([split["b"].read(p, ["x"])["x"] for p in range(len(split["b"]))])
    assert (np.diff(drawn) > 0).all()
    per_block = np.bincount(drawn // 1000, minlength=100)
    assert abs(len(drawn) - 25_000) < 600
    assert (abs(per_block - 250) < 70).all()  # five times the standard deviation
    other = split_rows(rows, shares, seed=6)["b"].read(0, ["x"])["x"]
    assert 0.2 < np.isin(other, drawn).mean() < 0.3


FOLDS = {f"fold_{n}": 1 / 4 for n in range(4)}
USERS = pa.table(
    {
        "user": pa.array([None if k % 50 == 0 else k % 400 for k in range(4000)]),
        "name": [f"n{k % 400}" for k in range(4000)],
        "day": pa.array([k // 10 % 7 for k in range(4000)], pa.date32()),
        "x": np.arange(4000),
        "f": np.arange(4000.0),
        "l": [[1]] * 4000,
    }
)


def x_of(source):
    return [x for chunk in source.chunks(["x"]) for x in chunk["x"].tolist()]


@pytest.fixture
def users(tmp_path):
    write(tmp_path / "users.parquet", USERS, 700)
    return tmp_path / "users.parquet"


@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"by": "user"}, {"seed": 1, "by": ["name"]}])
@pytest.mark.parametrize("filters", [None, [("x", ">=", 1000)]])
def test_parts_of_a_split_can_be_joined(users, options, filters):
    source = ParquetSource(users, filters)
    folds = split_rows(source, FOLDS, **options)
    assert x_of(sum(folds.values())) == x_of(source)
    again = split_rows(ParquetSource(users, filters), FOLDS, **options)
    for name, valid in folds.items():
        others = [fold for other, fold in folds.items() if other != name]
        train = sum(others)
        assert train.num_rows == len(x_of(train)) == source.num_rows - valid.num_rows
        assert x_of(train) == sorted(set(x_of(source)) - set(x_of(valid)))
        assert train.read(1, ["x"], 5, 25)["x"].tolist() == train.read(1, ["x"])["x"].tolist()[5:25]
        assert x_of(pickle.loads(pickle.dumps(train))) == x_of(train)
        same = sum(again[other] for other in reversed(folds) if other != name)
        assert same.fingerprint() == train.fingerprint() != valid.fingerprint()
        fitted = Workflow(["x"] >> Normalize()).fit(train)
        assert fitted.groups[0].ops[0].state["x"]["mean"].item() == pytest.approx(
            np.mean(x_of(train))
        )
    assert (
        x_of((folds["fold_2"] + folds["fold_0"]).head(10))
        == x_of(folds["fold_0"] + folds["fold_2"])[:10]
    )


def test_a_loader_resumes_over_joined_parts(tmp_path):
    path = write(tmp_path / "rows.parquet", USERS.select(["x", "f"]), 700)

    def joined():
        folds = split_rows(path, FOLDS, by="x")
        return folds["fold_0"] + folds["fold_3"]

    def labels(batches):
        return [int(x) for _, y in batches for x in np.ravel(y)]

    first, second = (KerasSequenceLoader(joined(), 50, label_names=["x"]) for _ in range(2))
    batches = iter(first)
    seen = labels([next(batches) for _ in range(5)])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    rest = labels(second)
    assert rest == labels(batches)
    assert sorted(seen + rest) == x_of(joined())


def test_parts_of_different_sources_or_with_common_rows_are_not_joined(users):
    folds = split_rows(users, FOLDS)
    with pytest.raises(ValueError, match="have rows in common: give each part once"):
        folds["fold_0"] + folds["fold_0"]
    other = split_rows(users, FOLDS)["fold_1"]
    for not_part in (other, ParquetSource(users)):
        with pytest.raises(ValueError, match="are not parts of one split"):
            folds["fold_0"] + not_part
    with pytest.raises(TypeError):
        folds["fold_0"] + [1]


@pytest.mark.parametrize("by", ["user", "name", ["name", "user"]])
def test_rows_of_a_group_are_in_one_part(users, by):
    split = split_rows(users, {"train": 0.5, "valid": 0.5}, by=by)
    names = [by] if isinstance(by, str) else by
    groups = {}
    for name, part in split.items():
        rows = Chunk.concat(list(part.chunks(names))).to_arrow().to_pylist()
        groups[name] = {tuple(row.values()) for row in rows}
    assert not groups["train"] & groups["valid"]
    every = groups["train"] | groups["valid"]
    assert every == {tuple(row.values()) for row in USERS.select(names).to_pylist()}
    if len(every) > 100:
        assert abs(len(groups["train"]) / len(every) - 0.5) < 0.1
    narrow = USERS.set_column(0, "user", USERS["user"].cast(pa.int32()))
    same = split_rows(narrow, {"train": 0.5, "valid": 0.5}, by=by)  # other row groups, in memory
    assert x_of(same["train"]) == x_of(split["train"])


def test_columns_that_make_no_groups_are_refused(users):
    wrong = {"f": "'f' of float64", "l": "'l' of lists of int64", "day": r"'day' of datetime64\["}
    for by, words in wrong.items():  # the number in a time depends on its unit
        with pytest.raises(TypeError, match=f"columns of integers or strings, got {words}"):
            split_rows(users, FOLDS, by=by)
    with pytest.raises(ParquetError, match="no columns"):
        split_rows(users, FOLDS, by="users")


# --- runs that end early ------------------------------------------------------------------------


WRITE = """
import sys
from tutorlib.workflow import Workflow, split_rows

made = Workflow.load(sys.argv[1])
split = split_rows(sys.argv[2], {"train": 0.8, "valid": 0.2}, seed=1)
print("ready", flush=True)
made.transform_to_parquet(
    split, sys.argv[3], row_group_rows=500, rows_per_file=1000, shuffle_seed=4, threads=2
)
"""


def start(*arguments):
    command = [sys.executable, "-c", WRITE, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_killed_run_leaves_nothing_at_the_target_and_the_same_call_writes_it(tmp_path):
    source = write(tmp_path / "rows.parquet", rows(20_000), 3000)
    fitted = workflow().fit(source)
    saved = fitted.save(tmp_path / "saved")
    target = tmp_path / "out"
    for parts in (0, 1, 5):
        process = start(saved, source, target)
        while len(glob.glob(f"{tmp_path}/_out.*.partial/out/*/part_*")) < parts:
            assert process.poll() is None
            time.sleep(0.001)
        process.kill()
        process.wait()
        assert not target.exists()
        for left in tmp_path.glob("_out.*.partial"):
            shutil.rmtree(left)
    assert start(saved, source, target).wait() == 0
    split = split_rows(source, {"train": 0.8, "valid": 0.2}, seed=1)
    options = {"row_group_rows": 500, "rows_per_file": 1000, "shuffle_seed": 4}
    undisturbed = fitted.transform_to_parquet(split, tmp_path / "undisturbed", **options)
    assert contents(target) == contents(undisturbed)


def test_an_error_in_one_part_file_stops_all_threads_and_is_raised(tmp_path):
    values = np.ones(5000)
    values[3210] = -7
    source = write(tmp_path / "rows.parquet", pa.table({"x": values}), 50)
    made = Workflow(["x"] >> LogOp()).fit(source)
    before = threading.active_count()
    with pytest.raises(ValueError, match=r"got -7.0 at value 10 .*row group 64 of .*rows\.parquet"):
        made.transform_to_parquet(source, tmp_path / "out", threads=4, **SIZES)
    assert threading.active_count() == before
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("output", ["data", "data/raw", "data/raw/out"])
def test_an_output_that_overlaps_the_input_is_refused_and_nothing_is_lost(tmp_path, output):
    (tmp_path / "data/raw").mkdir(parents=True)
    path = write(tmp_path / "data/raw/rows.parquet", rows(300), 100)
    source = ParquetSource(tmp_path / "data/raw")
    fitted = Workflow(["price"]).fit(source)
    for data in (source, split_rows(source, {"a": 0.5, "b": 0.5})):
        with pytest.raises(ValueError, match="overlaps the input"):
            fitted.transform_to_parquet(data, tmp_path / output, overwrite=True)
    assert ParquetSource(path).num_rows == 300
    fitted.transform_to_parquet(source, tmp_path / "data/ready")


ROWS = Chunk({"x": np.arange(10.0)})
ERRORS = [
    (ROWS, {"row_group_rows": 0}, "row_group_rows must be at least 1, got 0"),
    (ROWS, {"rows_per_file": 0}, "rows_per_file must be at least 1, got 0"),
    (ROWS, {"row_group_rows": 9, "rows_per_file": 8}, "row_group_rows=9 is above rows_per_file=8"),
    (ROWS, {"threads": 0}, "threads must be at least 1, got 0"),
    (ROWS, {"shuffle_seed": -1}, r"shuffle_seed must be at least 0, got -1"),
    (ROWS, {"shuffle_seed": "7"}, r"shuffle_seed must be .*, got '7'"),
    (ROWS.slice(0, 0), {}, "nothing to write: the data has no rows"),
    ({}, {}, r"source is \{\}: give \{name: data\}"),
    ({"../a": ROWS}, {}, r"becomes that of a folder, .* got '\.\./a'"),
    ({"_a": ROWS}, {}, r"becomes that of a folder, .* got '_a'"),
]


@pytest.mark.parametrize(("data", "options", "rule"), ERRORS)
def test_wrong_arguments_are_refused_before_anything_is_written(tmp_path, data, options, rule):
    with pytest.raises(ValueError, match=rule):
        Workflow(["x"]).fit(ROWS).transform_to_parquet(data, tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("shares", "seed", "rule"),
    [
        ({"train": 0.8, "valid": 0.3}, None, "add up to 1"),
        ({"train": 1.0, "valid": 0.0}, None, "above 0"),
        ({"train": 0.99, "valid": 0.01}, None, "of 'valid' gives it none of the 10 rows"),
        ([0.5, 0.5], None, r"takes \{name: share\}, got \[0.5, 0.5\]"),
        *[({"a": 0.5, "b": 0.5}, seed, f"seed must be .*{seed!r}") for seed in (-1, 2**63, "7")],
    ],
)
def test_wrong_shares_and_seeds_of_a_split_are_refused(shares, seed, rule):
    with pytest.raises((ValueError, TypeError), match=rule):
        split_rows(ROWS, shares, seed)
