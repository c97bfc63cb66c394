"""Faults in files and values: refused with their place, at once, leaving no thread and no memory.

What ends a pass from outside (Ctrl-C, `break`, fork, ...) is in test_interruptions.py.
"""

import contextlib
import gc
import itertools
import os
import threading
import time

import keras
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.support.leftovers import come_to_an_end, passes_in_memory, reader_threads
from tests.support.loaders import loader_with
from tutorlib.columns import Chunk, column_to_arrow
from tutorlib.loader import KerasSequenceLoader
from tutorlib.ops import Clip
from tutorlib.parquet import ParquetError, ParquetSource
from tutorlib.schema import Column, Schema
from tutorlib.workflow import Workflow

GROUP = 100  # rows of a row group; a file has two
ROW = 37  # of row group 1 of b.parquet: there is the fault
SCHEMA = Schema(
    [
        Column("C", "categorical", "int64", cardinality=50),
        Column("g", "categorical", "int64", multi_hot=True, cardinality=50),
        Column("x", "continuous", "float64"),
        Column("y", "label", "float32"),
        Column("w", "weight", "float32"),
    ]
)


@pytest.fixture(scope="module", autouse=True)
def _quick_collections():
    """Leave what is there before this file, TensorFlow above all, out of every collection."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _leaves_nothing():
    yield
    assert come_to_an_end(reader_threads)
    gc.collect()
    assert come_to_an_end(passes_in_memory)
    assert not [held for held in gc.get_objects() if type(held) is KerasSequenceLoader]


def columns(fault=None):
    """Good columns of a file, with `fault = (name, value)` in the place where the fault is."""
    rows = np.arange(2 * GROUP)
    made = {
        "C": (rows % 50).tolist(),
        "g": [[int(row % 50)] * (row % 4) for row in rows],
        "x": (rows / 8).tolist(),
        "y": (rows % 2).tolist(),
        "w": np.ones(len(rows)).tolist(),
    }
    if fault:
        name, value = fault
        made[name][GROUP + ROW] = value
    return made


TYPES = {"y": pa.float32(), "w": pa.float32()}


def write(path, made, row_group_rows=GROUP):
    arrays = {
        name: values if isinstance(values, pa.Array) else pa.array(values, TYPES.get(name))
        for name, values in made.items()
    }
    pq.write_table(pa.table(arrays), path, row_group_size=row_group_rows, compression="zstd")


def folder_with(folder, fault=None):
    """Three files of two row groups; the fault is in the second row group of the second."""
    write(folder / "a.parquet", columns())
    write(folder / "b.parquet", columns(fault))
    write(folder / "c.parquet", columns())
    return folder


loader_of = loader_with(16, schema=SCHEMA, buffer_size=150, parts_per_chunk=2)


def iterate(loader):
    for _ in loader:
        pass


def fit(loader):
    dtypes = {"C": "int32", "g__nnzs": "int32", "g__values": "int32", "x": "float32"}
    inputs = {name: keras.Input((1,), name=name, dtype=dtypes[name]) for name in dtypes}
    embedded = keras.layers.Flatten()(keras.layers.Embedding(50, 2)(inputs["C"]))
    joined = keras.layers.Concatenate()([embedded, inputs["x"]])
    model = keras.Model(inputs, keras.layers.Dense(1)(joined))
    model.compile("sgd", "mse")
    model.fit(loader, epochs=2, verbose=0)


def error_of(use, loader, expected=ParquetError):
    """What comes out of using a loader, in words, notes included."""
    started = time.monotonic()
    with pytest.raises(expected) as caught:
        use(loader)
    assert time.monotonic() - started < 30
    return "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])


# ---- files that are refused when they are opened -------------------------------------------------


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-20])


def cut_to_half(path):
    os.truncate(path, path.stat().st_size // 2)


def empty(path):
    path.write_bytes(b"")


def no_parquet(path):
    path.write_text("C,x,y\n1,2,3\n" * 100)


def without_a_column(path):
    made = columns()
    del made["x"]
    write(path, made)


def with_a_column_more(path):
    write(path, {**columns(), "z": [1] * 2 * GROUP})


def with_another_type(path):
    write(path, {**columns(), "C": [f"id {row}" for row in range(2 * GROUP)]})


def with_wider_values(path):
    write(path, {**columns(), "C": pa.array([1] * 2 * GROUP, pa.int32())})


def without_lists(path):
    write(path, {**columns(), "g": [1] * 2 * GROUP})


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (cut_short, "not a whole Parquet file"),
        (cut_to_half, "not a whole Parquet file"),
        (empty, "not a whole Parquet file"),
        (no_parquet, "not a whole Parquet file"),
    ],
)
def test_a_file_that_is_not_whole_is_refused_when_it_is_opened(tmp_path, spoil, words):
    spoil(folder_with(tmp_path) / "b.parquet")
    message = error_of(loader_of, tmp_path)
    assert "b.parquet" in message.split(":")[0]
    assert words in message


@pytest.mark.filterwarnings("ignore:.*it cannot be used")
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (without_a_column, "'x' is not in "),
        (with_another_type, "'C' is string in "),
        (without_lists, "'g' is int64 in "),
    ],
)
def test_a_column_that_differs_between_files_is_refused_if_it_is_chosen(tmp_path, spoil, words):
    spoil(folder_with(tmp_path) / "b.parquet")
    message = error_of(loader_of, tmp_path, ValueError)
    assert words in message
    assert "b.parquet" in message


@pytest.mark.filterwarnings("ignore:.*(it cannot be used|is read as int64)")
@pytest.mark.parametrize("spoil", [with_a_column_more, with_wider_values])
def test_another_column_or_width_in_a_file_leaves_the_rows_as_they_are(tmp_path, spoil):
    folder_with(tmp_path)
    want = rows_of(loader_of(tmp_path))
    spoil(tmp_path / "b.parquet")
    assert len(rows_of(loader_of(tmp_path))) == len(want)


def test_a_column_that_no_file_has_is_refused_when_they_are_opened(tmp_path):
    folder_with(tmp_path)
    message = error_of(
        lambda folder: KerasSequenceLoader(folder, 16, ["y"], cat_names=["C", "D"]),
        tmp_path,
        ValueError,
    )
    assert "columns ['D'] are not in the files" in message


# ---- files and row groups without rows -----------------------------------------------------------


def rows_of(loader):
    """All (C, x) that come in an epoch, sorted: each row of a file has its own x."""
    batches = [np.concatenate([inputs["C"], inputs["x"]], axis=1) for inputs, *_ in loader]
    return sorted(map(tuple, np.concatenate(batches).tolist()))


def test_files_and_row_groups_without_rows_change_nothing(tmp_path):
    want = rows_of(loader_of(folder_with(tmp_path)))
    table = pq.read_table(tmp_path / "a.parquet")
    pq.write_table(table.slice(0, 0), tmp_path / "0.parquet")
    with pq.ParquetWriter(tmp_path / "b.parquet", table.schema) as writer:
        for part in (table.slice(0, 0), table, table.slice(0, 0)):
            writer.write_table(part)
    assert pq.read_metadata(tmp_path / "b.parquet").num_row_groups == 3
    loader = loader_of(tmp_path)
    assert rows_of(loader) == want
    assert loader.describe()["rows"] == 6 * GROUP


def test_no_rows_at_all_are_refused(tmp_path):
    table = pq.read_table(folder_with(tmp_path) / "a.parquet")
    for name in ("a", "b", "c"):
        pq.write_table(table.slice(0, 0), tmp_path / f"{name}.parquet")
    message = error_of(loader_of, tmp_path, ValueError)
    assert "there are no rows in" in message
    assert "b.parquet" in message


# ---- values that no batch can have ---------------------------------------------------------------

FAULTS = {
    "a null id": (("C", None), "column 'C': null or NaN at row 37; pass nulls='fill'"),
    "a null in a list": (("g", [3, None]), "column 'g': null or NaN at row 37; pass nulls='fill'"),
    "a null number": (("x", None), "column 'x': null or NaN at row 37; pass nulls='fill'"),
    "NaN": (("x", float("nan")), "column 'x': null or NaN at row 37; pass nulls='fill'"),
    "a null label": (("y", None), "column 'y': null or NaN at row 37; a label must have a value"),
    "a number too large": (("x", 1e39), "column 'x': 1e+39 at row 37 is too large for float32"),
    "a NaN label": (
        ("y", float("nan")),
        "column 'y': null or NaN at row 37; a label must have a value",
    ),
    "a NaN weight": (
        ("w", float("nan")),
        "column 'w': null or NaN at row 37; a weight must have a value",
    ),
    "too large an id": (("C", 50), "column 'C': id 50 is outside [0, 50) at row 37"),
    "a huge id": (("C", 2**40), f"column 'C': id {2**40} is outside [0, 50) at row 37"),
    "a negative id": (("C", -1), "column 'C': id -1 is outside [0, 50) at row 37"),
    "too large an id in a list": (
        ("g", [1, 2, 99]),
        "column 'g': id 99 is outside [0, 50) at row 37",
    ),
    "a long list": (("g", [1] * 9), "column 'g': a list of 9 values at row 37, but max_list_len"),
}


@pytest.mark.parametrize("buffer_size", [150, 30], ids=["whole row groups", "slices"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_value_is_refused_with_file_row_group_column_row_and_rule(
    tmp_path, fault, buffer_size
):
    where, words = FAULTS[fault]
    loader = loader_of(folder_with(tmp_path, where), buffer_size=buffer_size, max_list_length=8)
    message = error_of(iterate, loader)
    assert message.startswith(words)
    assert message.endswith(f"(in row group 1 of {tmp_path / 'b.parquet'})")


@pytest.mark.parametrize("fault", ["a null id", "a NaN label", "too large an id in a list"])
def test_a_bad_value_ends_fit_with_its_place(tmp_path, fault):
    where, words = FAULTS[fault]
    message = error_of(fit, loader_of(folder_with(tmp_path, where)))
    assert message.startswith(words)
    assert "row group 1 of" in message
    assert "b.parquet" in message


def values_at_the_fault(loader, name):
    """The values of a column in the rows whose x, or C, is that of the fault."""
    found = []
    for inputs, *_ in loader:
        key, want = ("x", (GROUP + ROW) / 8) if name != "x" else ("C", (GROUP + ROW) % 50)
        found += inputs[name].numpy()[inputs[key].numpy()[:, 0] == want][:, 0].tolist()
    return found


def test_nulls_are_filled_with_0_or_the_value_that_is_given(tmp_path):
    folder_with(tmp_path, ("C", None))
    good = (GROUP + ROW) % 50
    filled = values_at_the_fault(loader_of(tmp_path, nulls="fill"), "C")
    assert sorted(filled) == [0, good, good]
    filled = values_at_the_fault(loader_of(tmp_path, nulls={"C": 49}), "C")
    assert sorted(filled) == [good, good, 49]
    message = error_of(iterate, loader_of(tmp_path, nulls={"x": 1.5}))
    assert "column 'C': null or NaN at row 37" in message


@pytest.mark.parametrize("value", [None, float("nan")])
def test_nan_is_filled_as_a_null_is(tmp_path, value):
    folder_with(tmp_path, ("x", value))
    fills = [
        sum(inputs["x"].numpy().tolist().count([fill]) for inputs, *_ in loader)
        for fill, loader in (
            (0.0, loader_of(tmp_path, nulls="fill")),
            (-1.5, loader_of(tmp_path, nulls={"x": -1.5})),
        )
    ]
    assert fills == [3 + 1, 1]  # row 0 of each file is 0 by itself


def test_a_continuous_column_of_integers_is_filled_with_any_number(tmp_path):
    write(tmp_path / "a.parquet", {"n": pa.array([1, None, 3], pa.int64()), "y": [0.0, 1, 0]})
    for fill in (0.5, -2.0, 1e30):
        loader = KerasSequenceLoader(
            tmp_path, 3, ["y"], cont_names=["n"], nulls={"n": fill}, shuffle=False
        )
        inputs, _ = loader.peek()
        np.testing.assert_array_equal(inputs["n"][:, 0], np.array([1, fill, 3], "float32"))


@pytest.mark.parametrize("missing", [None, float("nan"), 0.0], ids=["null", "NaN", "neither"])
def test_a_number_too_large_for_float32_is_refused_also_beside_one_that_is_filled(
    tmp_path, missing
):
    write(tmp_path / "a.parquet", {"x": [1.0, missing, -1e39], "y": [0.0, 1, 0]})
    loader = KerasSequenceLoader(tmp_path, 3, ["y"], cont_names=["x"], nulls="fill")
    message = error_of(iterate, loader)
    assert "column 'x': -1e+39 at row 2 is too large for float32" in message


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.large_list(pa.int64())])
def test_a_null_list_is_a_null_refused_or_filled_with_an_empty_list(tmp_path, kind):
    lists = [[1], [], [2, 3], None, [4]]
    write(tmp_path / "a.parquet", {"g": pa.array(lists, kind), "y": [0.0, 1, 0, 1, 0]})
    loader = KerasSequenceLoader(tmp_path, 5, ["y"], shuffle=False)
    assert "column 'g': null instead of a list at row 3; pass nulls='fill'" in error_of(
        iterate, loader
    )
    filled = KerasSequenceLoader(tmp_path, 5, ["y"], shuffle=False, nulls="fill").peek()[0]
    assert filled["g__nnzs"].numpy()[:, 0].tolist() == [1, 0, 2, 0, 1]
    source = ParquetSource(tmp_path / "a.parquet")
    chunk = source.read(0)
    rows = np.array([3, 0, 3])
    parts = [chunk.slice(2, 4)["g"], Chunk.concat([chunk, chunk.slice(3, 4)])["g"]]
    made = [chunk["g"].take(rows), *parts, chunk.slice(0, 2)["g"]]
    want = [[None, [1], None], [[2, 3], None], [*lists, None], [[1], []]]
    assert [column.tolist() for column in made] == want
    assert [column_to_arrow(column).to_pylist() for column in made] == want


@pytest.mark.parametrize("value", [float("inf"), float("-inf")])
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64(), pa.float16()])
def test_an_infinite_value_is_refused_with_its_row(tmp_path, value, kind):
    numbers = np.array([1.0, 2.0, value, 3.0], "float16")
    columns = {"x": pa.array(numbers).cast(kind), "z": [1.0, 2.0, 3.0, 4.0], "y": [0.0, 1, 0, 1]}
    write(tmp_path / "a.parquet", columns)
    for changes in ({}, {"nulls": "fill"}, {"batch_layout": "stacked"}):
        loader = KerasSequenceLoader(tmp_path, 4, ["y"], shuffle=False, **changes)
        message = error_of(iterate, loader)
        assert f"column 'x': {value} at row 2; limit it with Clip" in message
    loader = KerasSequenceLoader(tmp_path, 4, ["x"], cont_names=["z"])
    assert f"column 'x': {value} at row 2; a label must be finite" in error_of(iterate, loader)
    clipped = Workflow(["x"] >> Clip(-9, 9), ["y"], label_names=["y"]).fit(tmp_path)
    loader = KerasSequenceLoader(tmp_path, 4, ["y"], shuffle=False).map(clipped)
    assert loader.peek()[0]["x"].numpy()[2, 0] == np.sign(value) * 9


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint8(), pa.int16(), pa.bool_()])
def test_a_narrow_column_of_ids_is_filled_with_an_id_that_the_file_could_not_hold(tmp_path, kind):
    write(tmp_path / "a.parquet", {"n": pa.array([1, None, 0]).cast(kind), "y": [0.0, 1, 0]})
    loader = KerasSequenceLoader(
        tmp_path, 3, ["y"], cat_names=["n"], nulls={"n": 100_000}, shuffle=False
    )
    assert loader.peek()[0]["n"].numpy()[:, 0].tolist() == [1, 100_000, 0]


@pytest.mark.parametrize(
    ("values", "known"),
    [
        (pa.array([0.5, None, 1.0]), "~pc.field('y').is_nan()"),
        (pa.array([0.5, float("nan"), 1.0]), "~pc.field('y').is_nan()"),
        (pa.array([2, None, 1]), "pc.field('y').is_valid()"),
        (pa.array([True, None, False]), "pc.field('y').is_valid()"),
    ],
    ids=["null", "NaN", "integer", "bool"],
)
def test_the_filter_that_the_error_proposes_drops_the_row_without_a_label(tmp_path, values, known):
    write(tmp_path / "a.parquet", {"x": [0.0, 1, 2], "y": values})
    arguments = tmp_path, 2, ["y"]
    message = error_of(iterate, KerasSequenceLoader(*arguments, cont_names=["x"]))
    assert f"fill it, or drop the row with filters={known} (pc is" in message
    filters = eval(known, {"pc": pc})
    loader = KerasSequenceLoader(*arguments, cont_names=["x"], filters=filters, shuffle=False)
    ((inputs, _),) = loader
    assert inputs["x"].numpy().ravel().tolist() == [0, 2]


def test_the_list_that_is_too_long_is_named_not_one_of_the_greatest_length(tmp_path):
    lists = [[1, 2, 3], [1, 2, 3, 4], [1, 2, 3]]
    write(tmp_path / "a.parquet", {"g": lists, "y": [0.0, 1, 0]})
    loader = KerasSequenceLoader(tmp_path, 3, ["y"], cat_names=["g"], max_list_length=3)
    message = error_of(iterate, loader)
    assert "column 'g': a list of 4 values at row 1, but max_list_length=3" in message


def test_a_label_is_never_filled(tmp_path):
    folder_with(tmp_path, ("y", None))
    message = error_of(iterate, loader_of(tmp_path, nulls="fill"))
    assert "column 'y': null or NaN at row 37" in message
    with pytest.raises(ValueError, match="nulls: 'y' is not a feature"):
        loader_of(tmp_path, nulls={"y": 0}).peek()


@pytest.mark.parametrize(
    ("nulls", "words"),
    [
        ("skip", r"nulls must be 'error', 'fill' or \{column: value\}, got 'skip'"),
        ({"D": 0}, "nulls: 'D' is not a feature"),
        ({"C": 50}, r"nulls: 50 is not an id of column 'C', whose ids are integers in \[0, 50\)"),
        ({"C": -1}, "nulls: -1 is not an id of column 'C'"),
        ({"C": 1.5}, "nulls: 1.5 is not an id of column 'C'"),
        ({"C": float("nan")}, "nulls: nan is not an id of column 'C'"),
        ({"C": float("inf")}, "nulls: inf is not an id of column 'C'"),
        ({"x": 1e300}, "nulls: 1e.300 for column 'x' is not a finite float32; give a number from"),
        ({"x": float("inf")}, "nulls: inf for column 'x'"),
        ({"x": float("nan")}, "nulls: nan for column 'x'"),
    ],
)
def test_a_fill_that_does_not_fit_is_refused(tmp_path, nulls, words):
    with pytest.raises(ValueError, match=words):
        loader_of(folder_with(tmp_path), nulls=nulls).peek()


def test_ids_come_as_they_are_where_they_are_not_checked(tmp_path):
    folder_with(tmp_path, ("C", 77))
    assert 77 in values_at_the_fault(loader_of(tmp_path, check_ids=False), "C")


def test_integers_are_never_cut_to_a_narrower_type(tmp_path):
    write(tmp_path / "a.parquet", {"C": pa.array([1, 2**64 - 1], pa.uint64()), "y": [0.0, 1]})
    message = error_of(iterate, KerasSequenceLoader(tmp_path, 2, ["y"]))
    assert "column 'C': values from 1 to 18446744073709551615 do not fit int64" in message


def test_rows_that_are_not_used_need_not_be_good(tmp_path):
    """A null behind `limit_rows`, in the same row group, is nobody's business."""
    write(tmp_path / "a.parquet", {"C": [*range(99), None]})
    rows = [inputs["C"].numpy() for inputs, _ in KerasSequenceLoader(tmp_path, 4, limit_rows=50)]
    assert sorted(np.concatenate(rows)[:, 0].tolist()) == list(range(50))


def test_lists_are_padded_to_the_longest_that_is_allowed(tmp_path):
    folder_with(tmp_path)
    for inputs, *_ in loader_of(tmp_path, multi_hot="padded", max_list_length=5):
        padded = inputs["g"].numpy()
        assert padded.shape[1] == 5
        lengths = np.round(inputs["x"].numpy()[:, 0] * 8).astype(int) % 4
        np.testing.assert_array_equal(
            padded, np.where(np.arange(5) < lengths[:, None], inputs["C"].numpy(), -1)
        )


@pytest.mark.parametrize("longest", [0, -1])
def test_a_longest_list_below_1_is_refused(tmp_path, longest):
    with pytest.raises(ValueError, match=f"max_list_length must be at least 1, got {longest}"):
        loader_of(folder_with(tmp_path), max_list_length=longest)


# ---- files that cannot be decoded, or change meanwhile -------------------------------------------


def damage(path, column):
    """Overwrite the pages of a column in row group 1 with zeros; the footer stays whole."""
    group = pq.read_metadata(path).row_group(1)
    names = [group.column(k).path_in_schema.partition(".")[0] for k in range(group.num_columns)]
    chunk = group.column(names.index(column))
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    with open(path, "r+b") as file:
        file.seek(start)
        file.write(bytes(chunk.total_compressed_size))


@pytest.mark.parametrize("use", [iterate, fit])
@pytest.mark.parametrize("buffer_size", [150, 30], ids=["whole row groups", "slices"])
@pytest.mark.parametrize("column", ["x", "g"])
def test_a_damaged_page_is_refused_with_its_place(tmp_path, column, buffer_size, use):
    damage(folder_with(tmp_path) / "b.parquet", column)
    message = error_of(use, loader_of(tmp_path, buffer_size=buffer_size))
    where = f"row group 1 of {tmp_path / 'b.parquet'}, column {column!r}: cannot be read"
    assert message.startswith(where)


def test_a_damaged_column_that_is_not_read_is_nobodys_business(tmp_path):
    damage(folder_with(tmp_path) / "b.parquet", "x")
    loader = KerasSequenceLoader(tmp_path, 16, ["y"], cat_names=["C"], cont_names=["w"])
    assert sum(len(label) for _, label in loader) == 6 * GROUP


def remove(path):
    path.unlink()


def rewrite(path):
    write(path, {**columns(), "x": np.random.default_rng(0).random(2 * GROUP).tolist()})


def write_anew_with_fewer_rows(path):
    write(path, {name: values[:20] for name, values in columns().items()})


@pytest.mark.parametrize("use", [iterate, fit])
@pytest.mark.parametrize("buffer_size", [150, 30], ids=["whole row groups", "slices"])
@pytest.mark.parametrize("change", [remove, rewrite, write_anew_with_fewer_rows, cut_to_half])
def test_a_file_that_changes_during_the_epoch_is_refused(tmp_path, change, buffer_size, use):
    folder_with(tmp_path)
    pieces = itertools.count()

    def change_after_three_pieces(chunk):
        if next(pieces) == 3:
            for name in ("a", "b", "c"):
                change(tmp_path / f"{name}.parquet")
        return chunk

    one = {"threads": 1}  # another thread would read all files before they are changed
    loader = loader_of(tmp_path, buffer_size=buffer_size, reader_kwargs=one)
    loader.map(change_after_three_pieces)
    message = error_of(use, loader)
    assert "the file has changed since it was opened" in message
    assert ".parquet" in message
    assert "row group" in message


def test_a_changed_file_is_taken_by_a_new_loader(tmp_path):
    rewrite(folder_with(tmp_path) / "b.parquet")
    rows_of(loader_of(tmp_path))


# ---- other people's code on the reader threads ---------------------------------------------------


class Broken(Exception):
    """An exception of nobody's but this test."""


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("use", [iterate, fit])
@pytest.mark.parametrize("error", [KeyError, Broken, MemoryError, SystemExit])
def test_an_error_of_a_mapped_function_reaches_the_caller(tmp_path, error, use, threads):
    pieces = itertools.count()

    def fail_in_the_third_chunk(chunk):
        if next(pieces) == 3:
            raise error("nothing of that name")
        return chunk

    loader = loader_of(
        folder_with(tmp_path), buffer_size=30, reader_kwargs={"threads": threads}
    ).map(fail_in_the_third_chunk)
    message = error_of(use, loader, error)
    assert "nothing of that name" in message
    assert error is SystemExit or ".parquet" in message


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda chunk: dict(chunk), "map(): gave a dict, but a Chunk is needed (in row group"),
        (lambda chunk: chunk.drop(["x"]), "are needed (in row group"),
        (lambda chunk: chunk.slice(0, 1), "map(): gave 1 rows with columns"),
        (lambda chunk: chunk.with_columns({"C": chunk["x"]}), "column 'C': holds float64"),
        (lambda chunk: chunk.with_columns({"C": chunk["g"]}), "column 'C': holds lists"),
        (lambda chunk: chunk.with_columns({"g": chunk["C"]}), "column 'g': the schema says multi"),
    ],
)
def test_a_mapped_function_that_gives_something_else_is_refused(tmp_path, function, words):
    message = error_of(iterate, loader_of(folder_with(tmp_path)).map(function))
    assert words in message
    assert "row group" in message


def test_a_loader_is_usable_after_an_error(tmp_path):
    broken = [True]

    def fail_once(chunk):
        if broken:
            broken.clear()
            raise Broken
        return chunk

    loader = loader_of(folder_with(tmp_path)).map(fail_once)
    error_of(iterate, loader, Broken)
    assert loader.epoch == 0
    assert len(rows_of(loader)) == 6 * GROUP
    assert loader.epoch == 1


def test_an_error_goes_to_the_pass_that_it_is_of(tmp_path):
    """Two loaders share a source; only one of them reads the damaged column."""
    damage(folder_with(tmp_path) / "b.parquet", "x")
    source = ParquetSource(tmp_path)
    bad, good = [
        KerasSequenceLoader(source, 16, ["y"], cat_names=["C"], cont_names=[name], buffer_size=30)
        for name in ("x", "w")
    ]
    batches = iter(good)
    next(batches)
    assert "column 'x'" in error_of(iterate, bad)
    assert 1 + sum(1 for _ in batches) == len(good)


def test_memory_is_let_go_as_soon_as_the_error_is_not_by_the_garbage_collector(tmp_path):
    loader = loader_of(folder_with(tmp_path, ("C", None)))
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            with contextlib.suppress(ParquetError):
                iterate(loader)
        assert come_to_an_end(passes_in_memory)
    finally:
        gc.enable()


def test_the_error_of_the_first_row_is_raised_whichever_thread_fails_first(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": np.arange(80.0)}), path, row_group_size=10)
    later_failed = threading.Event()

    def fail(chunk):
        first = int(chunk["x"][0])
        if first == 20:
            later_failed.wait(20)
            time.sleep(0.2)
        if first >= 20:
            later_failed.set()
            raise ValueError(f"value {first}")
        return chunk

    for threads in (4, 1):
        loader = KerasSequenceLoader(
            path, 5, cont_names=["x"], cat_names=[], shuffle=False, parts_per_chunk=8,
            buffer_size=10, reader_kwargs={"threads": threads},
        ).map(fail)  # fmt: skip
        with pytest.raises(ParquetError, match=r"value 20.*row group 2"):
            list(loader)
