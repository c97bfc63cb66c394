"""A loader and a Workflow take what the reader has: tables, DataFrames, splits."""

import pickle
import re
import shutil

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from tests.support import backends
from tutorlib import Categorify, KerasSequenceLoader, Normalize, Workflow
from tutorlib.columns import Chunk
from tutorlib.parquet import ParquetSource
from tutorlib.schema import Column, Schema
from tutorlib.workflow import split_rows

ROWS = 5000
TABLE = pa.table(
    {
        "id": np.arange(ROWS, dtype="int32"),
        "x": np.linspace(0, 1, ROWS, dtype="float32"),
        "name": [f"n{k % 7}" for k in range(ROWS)],
        "label": pa.array(np.arange(ROWS) % 2, pa.float32()),
    }
)


def loader_of(data, **options):
    names = {"label_names": ["label"], "cat_names": ["id"], "cont_names": ["x"]}
    return KerasSequenceLoader(data, 256, **{**names, **options})


def ids_of(batches):
    return [int(k) for inputs, _ in batches for k in np.asarray(inputs["id"])[:, 0]]


def test_an_epoch_over_a_table_contains_each_row_once_and_resumes():
    loader = loader_of(TABLE, memory_budget=64 << 20)
    batches = iter(loader)
    first = ids_of([next(batches) for _ in range(5)])
    state = loader.state_dict()
    batches.close()
    changed = TABLE.set_column(0, "id", pa.array(np.roll(np.arange(ROWS, dtype="int32"), 1)))
    with pytest.raises(ValueError, match=r"data\.footers was"):
        loader_of(changed, memory_budget=64 << 20).load_state_dict(state)
    again = loader_of(
        pa.Table.from_batches(TABLE.to_batches(max_chunksize=77)), memory_budget=64 << 20
    )
    again.load_state_dict(state)
    assert sorted(first + ids_of(again)) == list(range(ROWS))


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("in_files", [True, False])
def test_the_parts_of_a_split_train_and_validate_on_different_rows(tmp_path, seed, in_files):
    data = TABLE if in_files else Chunk.from_arrow(TABLE.drop_columns(["name"]))
    parts = split_rows(data, {"train": 0.8, "valid": 0.2}, seed)
    train, valid = (ids_of(loader_of(part)) for part in parts.values())
    assert sorted(train + valid) == list(range(ROWS))
    assert len(train) == parts["train"].num_rows
    if seed is None:
        assert min(valid) == 4000


def test_a_part_of_a_split_keeps_to_a_memory_budget_and_can_be_pickled(tmp_path):
    part = split_rows(TABLE, {"train": 0.8, "valid": 0.2}, 1)["train"]
    whole = ids_of(loader_of(part))
    assert ids_of(loader_of(pickle.loads(pickle.dumps(part)))) == whole
    small = loader_of(part, memory_budget=64 << 20)
    assert sorted(ids_of(small)) == sorted(whole)


def test_a_workflow_gives_the_same_values_of_every_kind_of_rows(tmp_path):
    pl = pytest.importorskip("polars")
    frame = TABLE.to_pandas()
    kinds = [TABLE, frame, pl.from_arrow(TABLE), Chunk.from_arrow(TABLE)]
    found = []
    for rows in kinds:
        workflow = Workflow(["x"] >> Normalize(), ["name"] >> Categorify(), ["label"]).fit(rows)
        found.append(workflow.transform(rows).to_pandas())
        folder = workflow.transform_to_parquet(rows, tmp_path / "out", overwrite=True)
        written = Chunk.concat(list(ParquetSource(folder).chunks())).to_pandas()
        pd.testing.assert_frame_equal(written, found[-1])
    for other in found[1:]:
        pd.testing.assert_frame_equal(other, found[0])
    mapped = KerasSequenceLoader(frame, 500, schema=None, shuffle=False).map(workflow)
    inputs, _ = next(iter(mapped))
    np.testing.assert_array_equal(np.asarray(inputs["x"])[:, 0], found[0]["x"][:500])


def test_transform_refuses_paths_and_what_is_no_table():
    workflow = Workflow(["x"]).fit(TABLE)
    with pytest.raises(TypeError, match="transform_to_parquet takes files"):
        workflow.transform("train.parquet")
    with pytest.raises(TypeError, match="got a dict"):
        workflow.transform({"x": [1.0]})


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """The output of a Workflow, of which a loader needs to be told nothing."""
    groups = ["x"] >> Normalize(), ["name"] >> Categorify(), ["label", "id"]
    folder = tmp_path_factory.mktemp("etl") / "out"
    parts = split_rows(TABLE, {"train": 0.8, "valid": 0.2})
    return Workflow(*groups).fit(TABLE).transform_to_parquet(parts, folder)


def test_the_schema_of_a_prepared_folder_is_used_and_arguments_come_first(prepared):
    stored = Schema.load(prepared / "train" / "_schema.json")
    loader = KerasSequenceLoader(prepared / "train", 100)
    assert loader.schema.features == stored.features
    assert loader.schema.labels.names == ["label"]
    assert loader.schema["name"].cardinality == stored["name"].cardinality == 10
    other = KerasSequenceLoader(prepared / "train", 100, label_names=["id"])
    assert (other.schema.labels.names, other.schema.features.names) == (["id"], ["x", "name"])
    named = KerasSequenceLoader(prepared / "train", 100, cat_names=["name"])
    assert named.schema.features == stored.select(["name"])
    assert named.schema.labels.names == ["label"]
    assert not KerasSequenceLoader(prepared / "train", 100, label_names=[]).schema.labels.names
    given = KerasSequenceLoader(prepared / "train", 100, schema=Schema([Column("x", "continuous")]))
    assert given.schema.names == ["x"]


def test_folders_with_one_schema_are_read_together_and_a_damaged_schema_is_refused(prepared):
    both = KerasSequenceLoader([prepared / "train", prepared / "valid"], 100)
    assert both._current_plan.num_rows == ROWS
    assert both.schema["name"].cardinality == 10
    file = prepared / "valid" / "_schema.json"
    file.write_text("{")
    with pytest.raises(ValueError, match=r"valid/_schema\.json: "):
        KerasSequenceLoader(prepared / "valid", 100)


def test_folders_with_different_schemas_tell_no_roles(prepared, tmp_path):
    """One of them would give the other's ids a wrong cardinality."""
    paths = [tmp_path / "one", tmp_path / "two"]
    for path, cardinality in zip(paths, (10, 12), strict=True):
        shutil.copytree(prepared / "train", path)
        schema = Schema.load(path / "_schema.json").replace("name", cardinality=cardinality)
        (path / "_schema.json").write_text(schema.to_json())
        assert KerasSequenceLoader(path, 100).schema["name"].cardinality == cardinality
    both = KerasSequenceLoader(paths, 100, cat_names=["name"])
    assert (both.schema.names, both.schema["name"].cardinality) == (["name"], None)


# ---- functions that are mapped, filters by folders, tf.data --------------------------------------


def test_the_index_that_pandas_stores_unasked_is_no_feature(tmp_path, recwarn):
    """After a filter, pandas writes the index as a column: here it would tell the label."""
    frame = pd.DataFrame({"x": np.arange(40.0), "y": np.arange(40.0) % 2})
    frame = frame[frame.x % 3 > 0]
    frame.to_parquet(tmp_path / "a.parquet")
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.schema.names == ["x", "y", "__index_level_0__"]
    for rows in (tmp_path / "a.parquet", table, frame):
        assert list(KerasSequenceLoader(rows, 8, ["y"]).peek()[0]) == ["x"]
    named = KerasSequenceLoader(table, 8, ["y"], cont_names=["x"], cat_names=["__index_level_0__"])
    assert sorted(named.peek()[0]) == ["__index_level_0__", "x"]
    frame.rename_axis("user").to_parquet(tmp_path / "a.parquet")  # by the name that it was given
    loader = KerasSequenceLoader(tmp_path / "a.parquet", 8, ["y"])
    assert sorted(loader.peek()[0]) == ["user", "x"]
    assert not recwarn.list


def test_a_mapped_function_sees_nulls_as_arrow_has_them():
    """A comparison of NaN gives False, so that a missing rating would become class 0."""
    rows = pa.table({"x": [0.5, None, 4.5], "rating": [4.0, 2.0, None]})
    made = {"cont_names": ["x"], "label_names": ["rating"], "shuffle": False, "nulls": "fill"}

    def classes(table):
        return table.set_column(1, "rating", pc.greater(table["rating"], 3).cast(pa.float64()))

    remedy = r"a label must have a value: .*filters=~pc\.field\('rating'\)\.is_nan\(\)"
    for function in (classes, lambda table: table):
        with pytest.raises(ValueError, match=rf"'rating': null or NaN at row 2; {remedy}"):
            KerasSequenceLoader(rows, 3, **made).map(function).peek()
    _, labels = KerasSequenceLoader(rows.slice(0, 2), 3, **made).map(classes).peek()
    assert labels.numpy().tolist() == [[1.0], [0.0]]


@pytest.mark.parametrize("budget", [None, "1MB"])
def test_the_key_of_a_folder_is_a_feature_and_filters_rows_also_within_a_budget(tmp_path, budget):
    for day in range(4):
        (tmp_path / f"day={day}").mkdir()
        pq.write_table(TABLE.slice(day * 100, 100), tmp_path / f"day={day}" / "a.parquet")
    filters = [("day", "in", [1, 3]), ("x", ">", 0.03)]
    made = {"cat_names": ["id", "day"], "filters": filters, "memory_budget": budget}
    rows = [inputs for inputs, _ in loader_of(tmp_path, **made).as_numpy()]
    ids, days = (np.concatenate([each[name][:, 0] for each in rows]) for name in ("id", "day"))
    np.testing.assert_array_equal(days, ids // 100)
    assert sorted(ids) == [*range(150, 200), *range(300, 400)]


def test_jax_refuses_what_it_would_wrap(tmp_path):
    wide = {"label": [1, 3_000_000_000], "id": [1, 2**31]}
    for name, values in wide.items():
        rows = {"x": [0.5, 1.5], "label": [0, 1], "id": [1, 2], name: values}
        pq.write_table(pa.table(rows), tmp_path / f"{name}.parquet")
    code = """
names = {"cat_names": ["id"], "cont_names": ["x"], "label_names": ["label"]}
ids = Column("id", "categorical", cardinality=2**40)  # which lets them pass
said = []
for name, given in (("label", names), ("id", names), ("id", {"schema": Schema([ids])})):
    try:
        KerasSequenceLoader(f"{folder}/{name}.parquet", 2, **given).peek()
    except ValueError as error:
        said.append([name, str(error)])
print(json.dumps(said))
"""
    found = backends.run("jax", str(tmp_path), code)
    assert [name for name, _ in found] == ["label", "id", "id"]
    for name, said in found:
        values = wide[name]
        assert re.search(rf"column '{name}': {values[1]} at row 1 does not fit int32 .*JAX", said)


DATASETS = [
    {},
    {"cat_names": ["id", "tags"]},
    {"multi_hot": "padded", "cat_names": ["id", "tags"], "weight_name": "w"},
]


@pytest.mark.parametrize("changes", DATASETS, ids=str)
def test_every_pass_of_a_dataset_is_the_next_epoch(changes, no_thread_is_left):
    rows = TABLE.slice(0, 900).append_column("tags", [[[k] * (k % 4) for k in range(900)]])
    rows = rows.append_column("w", [np.arange(900) / 7])
    loader, alone = loader_of(rows, **changes), loader_of(rows, **changes)
    dataset = loader.to_tf_dataset()
    for epoch in (1, 2):
        for got, want in zip(dataset, alone, strict=True):
            parts = [tf.nest.flatten(batch) for batch in (got, want)]
            for one, other in zip(*parts, strict=True):
                np.testing.assert_array_equal(one, other)
        assert loader.epoch == epoch
    for _ in dataset.take(1):
        pass
    with pytest.raises(ValueError, match="needs label_names"):
        loader_of(rows, label_names=[]).to_tf_dataset()
