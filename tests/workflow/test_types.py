"""Data in other types than those fitted on: converted on every path, or refused on every path."""

import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from tests.support.workflow_rows import all_rows, same
from tutorlib import KerasSequenceLoader, Workflow
from tutorlib.columns import Chunk
from tutorlib.ops import (
    Categorify,
    FillMissing,
    HashBucket,
    LabelEncoder,
    Normalize,
    Rename,
)

ROWS = 12
DAYS = [datetime.datetime(2024, 2, 28) + datetime.timedelta(days=n % 5) for n in range(ROWS)]


def table(**kinds):
    """The rows that workflows are fitted on, with some columns cast to other types."""
    columns = {
        "day": pa.array(DAYS, pa.timestamp("us")),
        "hour": pa.array([None if n == 4 else n * 1000 for n in range(ROWS)], pa.duration("ms")),
        "item": pa.array([7, 5, 7, 9, 5, 7] * 2, pa.int32()),
        "id": pa.array(range(ROWS)),
        "word": pa.array(["a", "b", "a", None, "b", "a"] * 2),
        "price": pa.array([0.5, 1.5, None, 4, 2, 1] * 2, pa.float32()),
        "tags": pa.array([[7, 5], [], [9]] * 4, pa.list_(pa.int32())),
        "vector": pa.array([[n, 1.5] for n in range(ROWS)], pa.list_(pa.float32(), 2)),
        "label": pa.array([0, 1] * 6, pa.int8()),
    }
    rows = pa.table(columns)
    for name, kind in kinds.items():
        place = rows.schema.get_field_index(name)
        values = rows[name].combine_chunks()
        cast = pa.array(values.to_pylist(), kind) if pa.types.is_nested(kind) else values.cast(kind)
        rows = rows.set_column(place, name, cast)
    return rows


def workflow():
    """An op of each kind that looks at keys, and columns that keep their types."""
    ids = ["day", "hour", "item", "word", "tags"]
    return Workflow(
        ids >> Categorify() >> Rename(postfix="_id"),
        ids >> HashBucket(1000) >> Rename(postfix="_bucket"),
        ["price", "vector"] >> FillMissing(2) >> Normalize(),
        ["item"] >> FillMissing(0),
        ["label"] >> LabelEncoder(),
    )


FITTED = workflow().fit(table())
WANTED = FITTED.transform(table())


def on_every_path(rows, tmp_path):
    """Functions that return the transformed rows: one for each path."""
    path = tmp_path / "rows.parquet"
    pq.write_table(rows, path, row_group_size=5)
    loaded = Workflow.load(FITTED.save(tmp_path / "saved"))

    def from_loader():
        loader = KerasSequenceLoader(path, ROWS, shuffle=False).map(FITTED)
        inputs, label = next(iter(loader))
        for name in ("tags_id", "tags_bucket"):
            values, nnzs = inputs.pop(f"{name}__values"), inputs.pop(f"{name}__nnzs")
            inputs[name] = tf.RaggedTensor.from_row_lengths(values[:, 0], nnzs[:, 0])
        return {**inputs, "label": label}

    paths = {
        "a table": lambda: FITTED.transform(rows),
        "a DataFrame": lambda: FITTED.transform(rows.to_pandas(types_mapper=pd.ArrowDtype)),
        "after loading": lambda: loaded.transform(rows),
        "files": lambda: all_rows(FITTED.transform_to_parquet(path, tmp_path / "out")),
        "a loader": from_loader,
    }
    if not any("tz=" in str(kind) for kind in rows.schema.types):  # which a chunk does not tell
        paths["a chunk"] = lambda: FITTED.transform(Chunk.from_arrow(rows))
    return paths


CONVERTED = {
    "s": {"day": pa.timestamp("s"), "hour": pa.duration("s")},
    "ns": {"day": pa.timestamp("ns"), "hour": pa.duration("ns")},
    "dates": {"day": pa.date32()},
    "wide": {"item": pa.int64(), "tags": pa.list_(pa.int64()), "label": pa.int64()},
    "unsigned": {"item": pa.uint64(), "tags": pa.large_list(pa.uint8()), "label": pa.uint8()},
    "floats": {"price": pa.float64(), "vector": pa.list_(pa.float64(), 2)},
    "halves": {"price": pa.float16()},
    "dictionary": {"word": pa.dictionary(pa.int32(), pa.string())},
    "view": {"word": pa.string_view()},
    "lists for vectors": {"vector": pa.list_(pa.float32())},
}


@pytest.mark.parametrize("case", CONVERTED)
def test_other_units_and_widths_give_the_same_values_on_every_path(case, tmp_path):
    rows = table(**CONVERTED[case])
    for path, call in on_every_path(rows, tmp_path).items():
        got = call()
        if path == "a loader":
            for name, values in got.items():
                values = values.to_list() if hasattr(values, "to_list") else values.numpy().tolist()
                flat = [v[0] if isinstance(v, list) and len(v) == 1 else v for v in values]
                want = [
                    v[0] if isinstance(v, list) and len(v) == 1 else v
                    for v in WANTED[name].tolist()
                ]
                assert flat == want, name
        else:
            assert same(got, WANTED), path


REFUSED = {
    "text": ("item", pa.string(), "'item' is string, was int32"),
    "numbers": ("day", pa.int64(), "'day' is int64, was datetime64"),
    "a zone": ("day", pa.timestamp("us", "UTC"), "'day' is .* with a time zone.*, was .* without"),
    "fractions": ("item", pa.float64(), "'item' is float64, was int32.*dtype 'Int64'"),
    "times of day": ("hour", pa.time32("ms"), r"'hour' is .*\(a time of day\), was .*\(a duration"),
    "truth": ("label", pa.bool_(), "'label' is bool, was int8"),
    "lists of text": ("tags", pa.list_(pa.string()), "'tags' is a list of string, was a list of"),
    "a vector": (
        "vector",
        pa.list_(pa.float32(), 3),
        "is a vector of 3 float32, was a vector of 2",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_kinds_are_refused_on_every_path_with_both_types(case, tmp_path):
    name, kind, message = REFUSED[case]
    rows = table()
    values = rows[name].to_pylist()
    if pa.types.is_time(kind):
        values = [datetime.time(1)] * ROWS
    elif case == "lists of text":
        values = [["a"]] * ROWS
    elif case == "a vector":
        values = [[0.5] * 3] * ROWS
    else:
        values = rows[name].cast(kind).to_pylist()
    place = rows.schema.get_field_index(name)
    rows = rows.set_column(place, name, pa.array(values, kind))
    for path, call in on_every_path(rows, tmp_path).items():
        if (path, case) != ("a chunk", "times of day"):  # which NumPy does not tell from durations
            with pytest.raises(ValueError, match=message):
                call()
    assert not (tmp_path / "out").exists()


INEXACT = {
    "day": (pa.timestamp("ns"), lambda v: v.cast("int64").to_numpy() + (np.arange(ROWS) == 7)),
    "hour": (pa.duration("us"), lambda v: np.arange(ROWS) + 995_000),
}


@pytest.mark.parametrize("name", INEXACT)
def test_a_time_without_an_equal_in_the_unit_fitted_on_is_refused(name, tmp_path):
    kind, change = INEXACT[name]
    rows = table(**{name: kind})
    values = pa.array(change(rows[name])).cast(kind)
    rows = rows.set_column(rows.schema.get_field_index(name), name, values)
    paths = on_every_path(rows, tmp_path)
    for call in paths.values():
        with pytest.raises(ValueError, match=f"column '{name}': .*fitted on .*, got .* at row"):
            call()


def test_integers_beyond_the_width_fitted_on_are_values_that_were_not_met():
    rows = table(item=pa.int64())
    wide = pa.array([7, 5, 2**40] * 4)
    rows = rows.set_column(rows.schema.get_field_index("item"), "item", wide)
    assert FITTED.transform(rows)["item_id"].tolist() == [3, 4, 2] * 4


def test_types_fitted_on_a_chunk_take_times_with_and_without_a_zone():
    fitted = Workflow(["day"] >> Categorify()).fit(Chunk.from_arrow(table()))
    for kind in (pa.timestamp("us"), pa.timestamp("ms", "UTC")):
        assert fitted.transform(table(day=kind))["day"].tolist() == WANTED["day_id"].tolist()
