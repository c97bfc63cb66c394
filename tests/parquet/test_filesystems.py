"""Files that are elsewhere: URLs of fsspec, and filesystems that are given."""

import os
import pathlib
import re
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from tutorlib.columns import Chunk
from tutorlib.parquet import ParquetError, ParquetSource, find_files

fsspec = pytest.importorskip("fsspec")


NAMES = [f"day={day}/part_{part}.parquet" for day in (1, 2) for part in (0, 1)]


def table_of(number):
    return pa.table({"x": np.arange(10 * number, 10 * number + 10), "y": np.ones(10)})


def file_of(number):
    buffer = pa.BufferOutputStream()
    pq.write_table(table_of(number), buffer, row_group_size=4)
    return buffer.getvalue().to_pybytes()


@pytest.fixture
def memory():
    """Four files in fsspec's memory filesystem, and others that are not data."""
    filesystem = fsspec.filesystem("memory")
    for number, name in enumerate(NAMES):
        filesystem.pipe(f"/bucket/data/{name}", file_of(number))
    for name in ("_SUCCESS", "notes.txt", "_temporary/0.parquet", "day=1/.hidden.parquet"):
        filesystem.pipe(f"/bucket/data/{name}", b"not data")
    yield filesystem
    filesystem.store.clear()


def all_x(source):
    return Chunk.concat(list(source.chunks(["x"])))["x"].tolist()


def test_a_folder_a_pattern_a_file_and_a_list_may_be_urls(memory):
    folder = "memory://bucket/data"
    source = ParquetSource(folder)
    assert source.files == [f"/bucket/data/{name}" for name in NAMES]
    assert all_x(source) == list(range(40))
    for pattern in ("*/*.parquet", "**/part_?.parquet", "day=[12]/*", "**/*.parquet"):
        assert ParquetSource(f"{folder}/{pattern}").files == source.files
    assert ParquetSource(f"{folder}/day=2/*").files == source.files[2:]
    urls = [f"memory://{path}" for path in source.files]
    assert all_x(ParquetSource(urls[::-1])) == [
        *range(30, 40), *range(20, 30), *range(10, 20), *range(10),
    ]  # fmt: skip
    assert all_x(ParquetSource(urls[1])) == list(range(10, 20))
    for nowhere in ("memory://bucket/nothing", f"{folder}/*.csv", "memory://other/*.parquet"):
        with pytest.raises(FileNotFoundError, match=re.escape(f"no Parquet file at '{nowhere}'")):
            ParquetSource(nowhere)


def test_a_file_written_again_while_the_rows_of_a_filter_are_counted_is_noticed(tmp_path):
    """Otherwise row groups could be left out in which no row of the other file passes."""

    def write(sign):
        table, plain = pa.table({"x": sign * np.arange(10)}), {"compression": "none"}
        pq.write_table(table, tmp_path / "x.parquet", 4, use_dictionary=False, **plain)

    class WrittenAgain(fsspec.get_filesystem_class("file")):
        opened = 0

        def _open(self, *arguments, **options):
            self.opened += 1
            if self.opened == 2:  # the first time was for its footer
                write(-1)
            return super()._open(*arguments, **options)

    write(1)
    os.utime(tmp_path / "x.parquet", (1e9, 1e9))
    elsewhere = fs.PyFileSystem(fs.FSSpecHandler(WrittenAgain()))
    with pytest.raises(ParquetError, match=r"row group \d of .*x\.parquet: the file has changed"):
        ParquetSource(tmp_path / "x.parquet", [("x", ">", 5)], filesystem=elsewhere)


def test_a_filesystem_that_is_given_is_used(memory, tmp_path):
    with_fsspec = ParquetSource("/bucket/data/day=1", filesystem=memory)
    with_arrow = ParquetSource("day=1", filesystem=fs.SubTreeFileSystem(
        "/bucket/data", fs.PyFileSystem(fs.FSSpecHandler(memory))
    ))  # fmt: skip
    assert all_x(with_fsspec) == all_x(with_arrow) == list(range(20))
    assert with_fsspec.files[0] == "/bucket/data/day=1/part_0.parquet"
    path = tmp_path / "x.parquet"
    path.write_bytes(file_of(0))
    for local in (fs.LocalFileSystem(), fsspec.filesystem("file")):
        (file,) = find_files(path, local)
        assert file.is_local
        assert all_x(ParquetSource(path, filesystem=local)) == list(range(10))
    with pytest.raises(TypeError, match=r"an fsspec filesystem, got a builtins\.str"):
        ParquetSource(path, filesystem="memory")


def test_file_urls_are_local_files(tmp_path):
    folder = tmp_path / "with space"
    folder.mkdir()
    (folder / "x.parquet").write_bytes(file_of(0))
    source = ParquetSource(folder.as_uri())
    assert source.files == [str(folder / "x.parquet")]
    assert ParquetSource(f"file://{folder}/*.parquet").files == source.files
    assert find_files(folder.as_uri())[0].is_local


def test_a_url_that_nobody_can_read_is_refused(monkeypatch):
    with pytest.raises(ImportError, match=r"reading nowhere:// needs fsspec and its driver for it"):
        ParquetSource("nowhere://x/y.parquet")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ImportError, match=r"memory://x: reading memory:// needs fsspec"):
        ParquetSource("memory://x")


def test_a_url_in_a_path_is_refused_without_its_secrets():
    with pytest.raises(ValueError, match=r"^s3:/bucket/x is a URL that lost a slash in a Path"):
        ParquetSource(pathlib.Path("s3://KEY:SECRET@bucket/x"))


def test_folders_are_searched_through_without_hidden_names(tmp_path):
    for name in ("b/c/2.parquet", "b/1.pq", "a.parquet", "_x/3.parquet", ".y/4.parquet", "_5.pq"):
        path = tmp_path / "d" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file_of(0))
    (tmp_path / "d" / "folder.parquet").mkdir()
    found = [os.path.relpath(file.path, tmp_path / "d") for file in find_files(tmp_path / "d")]
    assert found == ["a.parquet", "b/1.pq", "b/c/2.parquet"]
    pattern = find_files(tmp_path / "d" / "**" / "*.p*q*")
    assert [os.path.relpath(file.path, tmp_path / "d") for file in pattern] == found
