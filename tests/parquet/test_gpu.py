"""On a GPU: what cuDF decodes is what Arrow decodes."""

import re
import types

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.loader.test_arrow_types import REST, TYPES
from tests.support.gpu import ON_GPU
from tutorlib.columns import to_namespace
from tutorlib.parquet import ParquetError, ParquetSource, RowRange

pytestmark = ON_GPU


ROWS = 700


def table():
    """Columns of every kind that may stand in a chunk."""
    rows = np.arange(ROWS)
    names = ("int8", "uint16", "int32", "int64", "uint64", "float32", "float64")
    made = {name: pa.array((rows % 100).astype(name)) for name in names}
    made["bool nulls"] = pa.array([None if i % 5 == 0 else i % 2 == 0 for i in range(ROWS)])
    made["int nulls"] = pa.array([None if i % 5 == 0 else i for i in range(ROWS)], pa.int32())
    made["float nulls"] = pa.array([None if i % 5 == 0 else i / 2 for i in range(ROWS)])
    made["text nulls"] = pa.array([None if i % 5 == 0 else f"{i} ü" for i in range(ROWS)])
    made["dictionary"] = pa.array([f"d{i % 7}" for i in range(ROWS)]).dictionary_encode()
    made["null lists"] = pa.array([None if i % 5 == 0 else [i] * (i % 3) for i in range(ROWS)])
    made["lists with nulls"] = pa.array([[i, None][: i % 3] for i in range(ROWS)])
    made["lists of texts"] = pa.array([["a", "bc", ""][: i % 4] for i in range(ROWS)])
    fixed = [[i, i + 1] for i in range(ROWS)]  # with nulls Arrow reads them from version 26 on
    made["fixed vectors"] = pa.array(fixed, pa.list_(pa.int32(), 2))
    made["vectors"] = pa.array([[i / 2, i / 3] for i in range(ROWS)])
    return pa.table(made)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "a.parquet"
    pq.write_table(table(), path, row_group_size=300)
    return path


@pytest.mark.parametrize("name", table().column_names)
@pytest.mark.parametrize("filters", [None, [("int32", ">", 15)]])
def test_every_kind_of_column_is_that_of_the_cpu(path, name, filters):
    ours = ParquetSource(path, filters, device="gpu")
    theirs = ours.on("cpu")
    for position, bounds in ((0, ()), (1, (17, 61)), (2, (5, 5))):
        got = to_namespace(ours.read(position, [name], *bounds)[name], np)
        want = theirs.read(position, [name], *bounds)[name]
        np.testing.assert_equal(got.tolist(), want.tolist())
        if not len(want):  # a column with nulls is `Masked` on a GPU, also where there is no row
            continue
        assert type(got) is type(want)
        assert getattr(got, "dtype", None) == getattr(want, "dtype", None)


@pytest.mark.parametrize("name", TYPES)
def test_every_type_of_the_table_is_that_of_the_cpu_or_refused(name, tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(REST.append_column("c", TYPES[name][0]), path)

    def read(device):
        try:
            return to_namespace(ParquetSource(path, device=device).read(0, ["c"])["c"], np)
        except ParquetError as error:
            return str(error)

    got, want = read("gpu"), read("cpu")
    if isinstance(got, str):
        assert re.search(r"column 'c': a GPU cannot decode .*device='cpu'", got)
    else:
        assert type(got) is type(want)
        np.testing.assert_equal(got.tolist(), want.tolist())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three files: one has no nulls in some columns, one has smaller row groups."""
    path = tmp_path_factory.mktemp("data")
    whole = table()
    pq.write_table(whole, path / "a.parquet", row_group_size=300)
    pq.write_table(whole.filter(pc.is_valid(whole["int nulls"])), path / "b.parquet")
    pq.write_table(whole.slice(100), path / "c.parquet", row_group_size=110, use_dictionary=False)
    return path


ORDERS = {
    "of the files": range(10),
    "backwards": range(9, -1, -1),
    "a file again and again": [0, 4, 1, 5, 2, 3, 6],
    "twice": [1, 1, 3, 1],
    "one": [4],
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("bounds", [None, (7, 40)])
def test_row_groups_of_several_files_come_in_one_call_in_any_order(folder, order, bounds):
    ours = ParquetSource(folder, device="gpu")
    names, groups = [*ours.column_types], ours.row_groups
    ranges = [RowRange(n, *(bounds or (0, groups[n].num_rows))) for n in ORDERS[order]]
    assert ours.runs(ranges, names) == [ranges]
    got, want = (source.read_ranges(ranges, names) for source in (ours, ours.on("cpu")))
    for name in names:
        column = to_namespace(got[name], np)
        np.testing.assert_equal(column.tolist(), want[name].tolist(), err_msg=name)


def test_files_are_really_read_in_one_call(folder, monkeypatch):
    """Were they refused together, they would be read one by one: right, but slowly."""
    from pylibcudf.io import parquet

    calls, read = [], parquet.read_parquet
    counted = types.SimpleNamespace(
        ParquetReaderOptions=parquet.ParquetReaderOptions,
        read_parquet=lambda *given: calls.append(1) or read(*given),
    )
    monkeypatch.setattr("pylibcudf.io.parquet", counted)
    source = ParquetSource(folder, device="gpu")
    source.read_ranges([RowRange(n, 0, 100) for n in (0, 4, 1)], [*source.column_types])
    assert len(calls) == 1


def test_files_that_only_cudf_tells_apart_are_read_one_by_one(tmp_path):
    price = pa.array([1] * 30).cast(pa.decimal128(21, 2)).cast(pa.decimal128(9, 2))
    for name, is_integer in (("a", False), ("b", True)):
        made = pa.table({"x": np.arange(30), "price": price})
        path = tmp_path / f"{name}.parquet"
        pq.write_table(made, path, row_group_size=10, store_decimal_as_integer=is_integer)
    source = ParquetSource(tmp_path, device="gpu")
    ranges = [RowRange(4, 0, 10), RowRange(0, 0, 10)]
    assert source.runs(ranges, ["x"]) == [ranges]
    assert source.read_ranges(ranges, ["x"])["x"].tolist() == [*range(10, 20), *range(10)]
