"""Rows that the tests of tfrecords share, as a chunk, as Parquet files and as examples."""

from __future__ import annotations

import pytest

from tests.support.tfrecords_rows import some_rows
from tfrecords import write_examples
from tutorlib.parquet import ParquetSink, ParquetSource


@pytest.fixture
def rows():
    return some_rows()


@pytest.fixture
def parquet(tmp_path, rows):
    """The rows as a source of two files and four row groups."""
    with ParquetSink(tmp_path / "parquet", row_group_rows=300, rows_per_file=600) as sink:
        sink.write(rows)
    return ParquetSource(tmp_path / "parquet")


@pytest.fixture
def examples(tmp_path, parquet):
    write_examples(parquet, tmp_path / "examples", rows_per_file=400, progress=False)
    return tmp_path / "examples"
