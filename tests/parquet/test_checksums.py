"""Checksums: a changed bit in a data page is an error, never another value."""

import contextlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tutorlib.parquet import ParquetError, ParquetSink, ParquetSource, with_encoded_strings

ROWS = 3000
NAMES = ["i", "f", "s", "g", "n"]


def table():
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "i": rng.integers(0, 1 << 40, ROWS),
            "f": rng.random(ROWS, dtype="float32"),
            "s": [f"s{k}" for k in rng.integers(0, 50, ROWS)],
            "g": [list(range(k % 4)) for k in range(ROWS)],
            "n": pa.array([None if k % 3 == 0 else k % 10 for k in range(ROWS)]),
        }
    )


def damaged_copies(path, count, seed):
    """Yield (row group, column) after flipping a bit of its pages in the file; mend it after."""
    rng, data, footer = np.random.default_rng(seed), path.read_bytes(), pq.read_metadata(path)
    for number in range(count):
        position = int(rng.integers(footer.num_row_groups))
        leaf = footer.row_group(position).column(number % footer.num_columns)
        start = leaf.dictionary_page_offset or leaf.data_page_offset
        changed = bytearray(data)
        changed[start + int(rng.integers(leaf.total_compressed_size))] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        yield position, leaf.path_in_schema.split(".")[0]
    path.write_bytes(data)


@pytest.mark.parametrize("encoding", ["fast", "default"])
def test_a_flipped_bit_is_an_error_that_names_its_place_or_changes_nothing(tmp_path, encoding):
    path = tmp_path / "a.parquet"
    with ParquetSink(path, row_group_rows=1000, encoding=encoding) as sink:
        sink.write(table())
    whole = [ParquetSource(path).read(k) for k in range(3)]
    unnoticed = 0
    for position, name in damaged_copies(path, count=100, seed=1):
        place = rf"row group {position} of .*a\.parquet, column '{name}': cannot be read"
        source = ParquetSource(path)
        with contextlib.suppress(ParquetError):
            values = source.read(position, [name])[name].tolist()
            unnoticed += 1  # a bit of a page header that is not used
            assert values == whole[position][name].tolist()
            continue
        for other in (source, with_encoded_strings(ParquetSource(path))):
            with pytest.raises(ParquetError, match=place):
                other.read(position, [name])
            with pytest.raises(ParquetError, match=place):
                other.read(position)
            with pytest.raises(ParquetError, match=place):
                other.read(position, NAMES, 990, 1000)
        for other in range(3):
            if other != position:
                assert source.read(other).num_rows == 1000
    assert unnoticed < 20


def test_a_file_without_checksums_is_read(tmp_path):
    with ParquetSink(tmp_path / "a.parquet", checksums=False) as sink:
        sink.write(table())
    assert ParquetSource(tmp_path).read(0).num_rows == ROWS
