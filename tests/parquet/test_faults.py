"""What can be wrong with files: the error names file, row group and column, and is never silent."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tutorlib.columns import Chunk
from tutorlib.parquet import ParquetError, ParquetSink, ParquetSource

TABLE = pa.table({"i": np.arange(100, dtype="int32"), "x": np.linspace(0, 1, 100)})


def write(folder, name, table=TABLE, **options):
    pq.write_table(table, folder / name, **options)
    return folder / name


def test_a_truncated_file(tmp_path):
    write(tmp_path, "a.parquet")
    path = write(tmp_path, "b.parquet")
    os.truncate(path, path.stat().st_size - 10)
    with pytest.raises(ParquetError, match=r"b\.parquet: not a whole Parquet file \(.*Write it ag"):
        ParquetSource(tmp_path)


def test_a_file_with_any_bit_of_its_footer_flipped_opens_or_is_refused_by_name(tmp_path):
    table = pa.table({"i": pa.array([1, 2], pa.int8()), "x": [0.5, 1.5]})
    path = write(tmp_path, "a.parquet", table, store_schema=False)
    data = path.read_bytes()
    start, refused = len(data) - 8 - int.from_bytes(data[-8:-4], "little"), {}
    for bit in range(8 * start, 8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            ParquetSource(path)
        except ParquetError as error:
            refused[str(error)] = type(error.__cause__)
    assert all("a.parquet" in message for message in refused)
    assert UnicodeDecodeError in refused.values()  # of a name


@pytest.mark.parametrize("place", ["header", "values"])
def test_a_corrupt_page(tmp_path, place):
    path = tmp_path / "a.parquet"
    table = pa.table({"i": np.arange(2000) % 7, "x": np.arange(2000) // 9})
    with ParquetSink(path, row_group_rows=1000) as sink:
        sink.write(table)
    leaf = pq.read_metadata(path).row_group(1).column(1)
    assert leaf.path_in_schema == "x"
    data = bytearray(path.read_bytes())
    start = leaf.data_page_offset + (0 if place == "header" else leaf.total_compressed_size // 2)
    data[start : start + 40] = b"\xff" * 40
    path.write_bytes(data)
    source = ParquetSource(tmp_path)
    source.read(0)
    source.read(1, ["i"])
    for stop in (None, 10):
        with pytest.raises(ParquetError, match=r"row group 1 of .*a\.parquet, column 'x': cannot "):
            source.read(1, None, 0, stop)


def test_files_and_row_groups_without_rows_are_left_out(tmp_path):
    with pq.ParquetWriter(tmp_path / "a.parquet", TABLE.schema) as writer:
        for rows in (0, 3, 0, 0, 2, 0):
            writer.write_table(TABLE.slice(0, rows))
    assert pq.read_metadata(tmp_path / "a.parquet").num_row_groups == 6
    write(tmp_path, "b.parquet", TABLE.slice(0, 0))
    source = ParquetSource(tmp_path)
    assert (source.num_rows, len(source), len(source.files)) == (5, 2, 2)
    assert Chunk.concat(list(source.chunks()))["i"].tolist() == [0, 1, 2, 0, 1]
    empty = write(tmp_path, "b.parquet", pa.table({"i": pa.array([], pa.int64()), "x": [0.0][:0]}))
    with pytest.warns(UserWarning, match="column 'i' is read as int64"):
        assert ParquetSource(tmp_path).num_rows == 5
    assert (ParquetSource(empty).num_rows, list(ParquetSource(empty).chunks())) == (0, [])


CHANGES = {
    "removed": lambda path: path.unlink(),
    "cut short": lambda path: os.truncate(path, 100),
    "rewritten": lambda path: pq.write_table(TABLE.slice(0, 50), path),
    "rewritten with the same size": lambda path: path.write_bytes(path.read_bytes()),
    "replaced": lambda path: (path.rename(path.with_suffix(".old")), write(path.parent, path.name)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_after_it_was_opened(tmp_path, change):
    path = write(tmp_path, "a.parquet", row_group_size=50)
    os.utime(path, (1e9, 1e9))
    source = ParquetSource(path, filters=[("x", "!=", 0.5)])
    source.read(0, None, 0, 10)  # a stream stays open, whose file is the old one
    CHANGES[change](path)
    for position, bounds in ((0, (10, 20)), (0, ()), (1, ())):
        with pytest.raises(ParquetError, match=rf"row group {position} of .*a\.parquet: the file "
                           "has changed since it was opened"):  # fmt: skip
            source.read(position, None, *bounds)


def test_a_file_cut_short_while_it_is_read_is_an_error_and_no_signal(tmp_path):
    """A memory-mapped file would end the process here, with SIGBUS."""
    table = pa.table({name: np.random.default_rng(0).random(100_000) for name in "abc"})
    path = write(tmp_path, "a.parquet", table, use_dictionary=False)
    steps = ParquetSource(path).steps(0, ["a", "b", "c"], 10_000)
    assert next(steps).num_rows == 10_000
    os.truncate(path, 1000)
    with pytest.raises(ParquetError, match=r"changed since .* it had .* bytes and now has 1000"):
        list(steps)


READ = """
import os, sys
from tutorlib.parquet import ParquetSource

if os.geteuid() == 0:  # root may read everything
    os.setuid(65534)
try:
    ParquetSource(sys.argv[1])
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no such permissions")
@pytest.mark.parametrize("forbidden", ["a.parquet", "folder"])
def test_what_may_not_be_read(forbidden):
    """Also a folder: to leave it out silently would lose rows."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "folder").mkdir()
        write(root, "a.parquet")
        write(root / "folder", "b.parquet")
        root.chmod(0o755)
        (root / forbidden).chmod(0)
        done = subprocess.run(
            [sys.executable, "-c", READ, name], capture_output=True, text=True, timeout=60
        )
        (root / forbidden).chmod(0o755)
    assert done.stderr == ""
    kind = "ParquetError" if forbidden == "a.parquet" else "PermissionError"
    assert done.stdout.startswith(kind)
    assert "Permission denied" in done.stdout
    assert str(root / forbidden) in done.stdout


# --- Fingerprints -----------------------------------------------------------------------------


def write_set(folder, **options):
    with ParquetSink(folder, row_group_rows=10, rows_per_file=40, **options) as sink:
        sink.write(TABLE)


def changed(one, other):
    one, other = (ParquetSource(paths).fingerprint() for paths in (one, other))
    assert one.keys() == other.keys()
    return {name for name in one if one[name] != other[name]}


def test_a_moved_data_set_has_the_same_fingerprint(tmp_path):
    write_set(tmp_path / "a")
    write_set(tmp_path / "deep" / "down" / "b")
    assert changed(tmp_path / "a", tmp_path / "deep" / "down" / "b") == set()
    assert changed(tmp_path / "a", str(tmp_path / "a" / "*.parquet")) == set()


def test_a_fingerprint_tells_what_is_different(tmp_path):
    write_set(tmp_path / "a")
    files = ParquetSource(tmp_path / "a").files
    metadata = ParquetSource(tmp_path / "a").fingerprint()
    assert (metadata["files"], metadata["row_groups"], metadata["rows"]) == (3, 10, 100)
    assert changed(files, files[:2]) == {
        "files", "row_groups", "rows", "row_counts", "file_names", "footers",
    }  # fmt: skip
    assert changed(files, files[::-1]) == {"row_counts", "file_names", "footers"}
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, name in ((one, "x"), (two, "y")):
        folder.mkdir()
        write(folder, "a.parquet", TABLE.select(["x"]).rename_columns([name]))
    assert changed(one, two) == {"column_types", "footers"}
    write(two, "a.parquet", TABLE.select(["x"]), compression="gzip")
    assert changed(one, two) == {"footers"}
    write(one, "b.parquet", TABLE.select(["x"]))
    write(two, "c.parquet", TABLE.select(["x"]))
    write(two, "a.parquet", TABLE.select(["x"]))
    assert changed(one, two) == {"file_names"}
    some = ParquetSource(one, filters=[("x", ">=", 0.0)]).fingerprint()
    assert some == {**ParquetSource(one).fingerprint(), "filters": "[[('x', '>=', 0.0)]]"}


def test_the_value_of_a_key_is_in_the_fingerprint(tmp_path):
    for day in (3, 4):
        (tmp_path / f"root{day}" / f"day={day}").mkdir(parents=True)
        write(tmp_path / f"root{day}" / f"day={day}", "a.parquet")
    assert changed(tmp_path / "root3", tmp_path / "root4") == {"file_names"}
