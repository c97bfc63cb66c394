"""Readers of raw cells return the rows that were written, by column and stacked."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.tfrecords_rows import (
    ROWS,
    SCALARS,
    as_lists,
    assert_permuted,
    batch_sizes,
    gathered,
    some_rows,
    strings,
)
from tfrecords import (
    raw_batches,
    raw_columns,
    raw_stacked,
    read_metadata,
    write_raw,
    write_raw_batches,
)
from tutorlib.columns import Chunk, Ragged
from tutorlib.loader import KerasSequenceLoader
from tutorlib.parquet import ParquetSink, ParquetSource
from tutorlib.schema import Column, Schema

KINDS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


@pytest.fixture
def rows():
    return some_rows().select(SCALARS.names)


@pytest.fixture
def raw(tmp_path, rows):
    write_raw(rows, tmp_path / "raw")
    return tmp_path / "raw"


@pytest.fixture
def batches(tmp_path, rows):
    write_raw_batches(rows, tmp_path / "raw_batches", batch_size=128)
    return tmp_path / "raw_batches"


def test_without_shuffling_rows_come_in_the_order_of_the_file(raw, batches, rows):
    for dataset in (raw_columns(raw, 128, SCALARS, shuffle=False), raw_batches(batches, SCALARS)):
        assert gathered(dataset) == as_lists(rows)
        assert batch_sizes(dataset) == [128] * 7 + [104]
        assert len(dataset) == 8


def test_the_file_holds_cells_and_nothing_else(raw, batches, rows):
    expected = np.stack([rows[name].view(np.int32) for name in SCALARS.names])
    read = np.fromfile(raw / "cells.bin", np.int32)
    assert np.array_equal(read, expected.T.ravel())
    read = np.fromfile(batches / "cells.bin", np.int32)
    blocks = [expected[:, start : start + 128].ravel() for start in range(0, ROWS, 128)]
    assert np.array_equal(read, np.concatenate(blocks))
    assert read_metadata(raw) == {
        "form": "raw",
        "rows": ROWS,
        "files": 1,
        "nbytes": ROWS * 3 * 4,
        "columns": {"C1": ["int32", False], "I1": ["float32", False], "label": ["float32", False]},
    }
    assert read_metadata(batches)["batch_size"] == 128


@pytest.mark.parametrize("reader", [raw_columns, raw_stacked])
def test_every_row_is_read_with_any_batch_size(reader, raw):
    for batch_size in (7, 500, ROWS, ROWS + 1):
        for shuffle in (True, False):
            dataset = reader(raw, batch_size, SCALARS, shuffle=shuffle)
            rest = [ROWS % batch_size] if ROWS % batch_size else []
            found = batch_sizes(dataset)
            assert found == [batch_size] * (ROWS // batch_size) + rest
            assert len(dataset) == len(found)
            whole = reader(raw, batch_size, SCALARS, shuffle=shuffle, drop_last=True)
            assert batch_sizes(whole) == [batch_size] * (ROWS // batch_size)
            assert len(whole) == ROWS // batch_size


def test_shuffling_permutes_the_rows_and_the_seed_fixes_the_order(raw, rows):
    first, again, other = (gathered(raw_columns(raw, 128, SCALARS, seed=s)) for s in (3, 3, 4))
    assert first == again != other
    assert_permuted(first, rows)


@pytest.fixture
def wide(tmp_path):
    """Columns of a role that are not next to each other, with a label and a weight."""
    rng = np.random.default_rng(1)
    roles = {"a": "categorical", "x": "continuous", "b": "categorical", "y": "continuous"}
    roles |= {"label": "label", "w": "weight"}
    schema = Schema(
        Column(name, role, "int32" if role == "categorical" else "float32")
        for name, role in roles.items()
    )
    chunk = {
        column.name: rng.integers(0, 99, 50).astype(np.int32)
        if column.role == "categorical"
        else rng.normal(size=50).astype(np.float32)
        for column in schema
    }
    with ParquetSink(tmp_path / "p") as sink:
        sink.write(Chunk(chunk))
    write_raw(tmp_path / "p", tmp_path / "wide")
    return schema, ParquetSource(tmp_path / "p"), tmp_path / "wide"


@pytest.mark.parametrize("layout", ["columns", "stacked"])
def test_batches_equal_those_of_the_loader(layout, wide):
    schema, parquet, folder = wide
    reader = {"columns": raw_columns, "stacked": raw_stacked}[layout]
    options = {"schema": schema, "shuffle": False, "batch_layout": layout}
    loader = KerasSequenceLoader(parquet, 20, **options)
    for ours, theirs in zip(loader, reader(folder, 20, schema, shuffle=False), strict=True):
        assert ours[0].keys() == theirs[0].keys()
        for name, tensor in ours[0].items():
            assert tensor.dtype == theirs[0][name].dtype
            assert np.array_equal(tensor, theirs[0][name])
        for one, other in zip(ours[1:], theirs[1:], strict=True):
            assert np.array_equal(one, other)


def test_a_stacked_batch_has_no_tensor_for_a_role_without_columns(wide):
    schema, _, folder = wide
    inputs, label, weight = next(iter(raw_stacked(folder, 20, schema.select(["a", "label", "w"]))))
    assert {name: tensor.shape for name, tensor in inputs.items()} == {"categorical": [20, 1]}
    assert (label.shape, weight.shape) == ([20, 1], [20])


def test_numbers_of_every_dtype_are_read_back(tmp_path):
    columns = {kind: np.array([0, 1, 100], kind) for kind in KINDS}
    columns["negative"] = np.array([-1, -(2**31), 2**31 - 1])
    columns["flag"] = np.array([True, False, True])
    columns |= {f"float{bits}": np.array([0.5, -1, 3], f"f{bits // 8}") for bits in (16, 32, 64)}
    write_raw(Chunk(columns), tmp_path / "raw")
    write_raw_batches(Chunk(columns), tmp_path / "batches", batch_size=2)
    schema = Schema(
        Column(name, "continuous" if "float" in name else "categorical") for name in columns
    )
    for dataset in (
        raw_columns(tmp_path / "raw", 2, schema, shuffle=False),
        raw_batches(tmp_path / "batches", schema),
    ):
        parts = [inputs for inputs, _ in dataset]
        for name, values in columns.items():
            read = np.concatenate([part[name].numpy()[:, 0] for part in parts])
            assert read.dtype == (np.float32 if "float" in name else np.int32)
            assert np.array_equal(read, values)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (strings(["a", "b"]), "'x': strings have no fixed width"),
        (Ragged(np.arange(2), np.array([0, 1, 2])), "'x': lists have no fixed width"),
        (np.array([1, 2**31]), "'x': 2147483648 does not fit into int32"),
        (np.array([1, -(2**31) - 1]), "'x': -2147483649 does not fit into int32"),
        (np.array([1, 2**63], np.uint64), "'x': 9223372036854775808 does not fit into int32"),
    ],
)
def test_values_that_do_not_fit_into_four_bytes_are_refused(column, message, tmp_path):
    for write in (write_raw, lambda *a: write_raw_batches(*a, batch_size=2)):
        with pytest.raises(ValueError, match=message):
            write(Chunk({"x": column}), tmp_path / "raw")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_form_or_other_columns_is_refused(tmp_path, raw, batches, wide):
    with pytest.raises(ValueError, match="holds the form 'raw', not 'raw_batches'"):
        raw_batches(raw, SCALARS)
    with pytest.raises(ValueError, match="holds the form 'raw_batches', not 'raw'"):
        raw_columns(batches, 8, SCALARS)
    with pytest.raises(ValueError, match=r"lacks columns \['C9'\]"):
        raw_stacked(raw, 8, Schema([*SCALARS, Column("C9", "categorical")]))
    with pytest.raises(FileNotFoundError, match="was not written by"):
        raw_columns(tmp_path / "nowhere", 8, SCALARS)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        raw_columns(raw, 0, SCALARS)
    swapped = Schema([Column("C1", "continuous"), Column("I1", "categorical")])
    with pytest.raises(ValueError, match=r"\['I1'\] are categorical"):
        raw_stacked(raw, 8, swapped)


def test_a_file_that_was_cut_off_is_refused(raw, batches):
    for folder, read in (
        (raw, lambda: raw_columns(raw, 8, SCALARS)),
        (raw, lambda: raw_stacked(raw, 8, SCALARS)),
        (batches, lambda: raw_batches(batches, SCALARS)),
    ):
        path = folder / "cells.bin"
        whole = path.read_bytes()
        path.write_bytes(whole[:-12])
        with pytest.raises(ValueError, match=r"11988 bytes, but 1000 rows of 3 cells are 12000"):
            read()
        path.write_bytes(whole)
