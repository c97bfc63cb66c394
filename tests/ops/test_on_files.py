"""Every op on the rows of a file with several row groups makes what it makes of them in memory."""

import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.cupy_stand_in import StandIn, cupy
from tests.support.device_op_cases import OPS, ROW_OPS, chunk, table, workflow
from tutorlib.parquet import ParquetSource


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "a.parquet"
    pq.write_table(pa.table(table()), path, row_group_size=70)
    return path


@pytest.mark.parametrize("device", [None, StandIn()], ids=["cpu", "stand-in"])
@pytest.mark.parametrize("name", [*OPS, *ROW_OPS])
def test_files_become_what_rows_in_memory_become(path, tmp_path, monkeypatch, name, device):
    """Texts come from files as numbers of a dictionary's entries, and from memory as bytes."""
    source, rows = ParquetSource(path), chunk()
    if device is not None:
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        source = source.at(device)
    flow = workflow(name).fit(rows)
    flow.transform_to_parquet(source, tmp_path / "out")
    wanted = flow.transform(rows)
    written = pq.read_table(tmp_path / "out")
    for column in wanted:
        ours, theirs = written[column].to_pylist(), wanted[column].tolist()
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_equal(one, other, err_msg=column)
