"""On a GPU: what cuDF decodes is what Arrow decodes."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.loader.test_arrow_types import REST, TYPES
from tests.support.gpu import ON_GPU
from tutorlib.columns import to_namespace
from tutorlib.parquet import ParquetError, ParquetSource

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
