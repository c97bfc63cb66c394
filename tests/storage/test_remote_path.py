"""Outputs through fsspec: written, replaced, resumed, and not mixed by two who write at once."""

import shutil

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tutorlib.parquet import ParquetSink, find_files
from tutorlib.storage import (
    METADATA_FILE,
    RemotePath,
    new_file_in,
    output_path,
    refuse_existing,
    resumable_folder,
)


@pytest.fixture
def memory():
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    yield memory
    memory.store.clear()


def write(path, number, overwrite=False, filesystem=None):
    with ParquetSink(path, overwrite=overwrite, filesystem=filesystem) as sink:
        sink.write(pa.table({"x": [number]}))


@pytest.mark.parametrize("path", ["memory://b/x.parquet", "b/x.parquet", "memory://b/x", "b/x"])
def test_an_output_is_written_and_replaced(memory, path):
    filesystem = None if "://" in path else memory
    write(path, 1, filesystem=filesystem)
    with pytest.raises(FileExistsError, match="Pass overwrite=True"):
        write(path, 2, filesystem=filesystem)
    write(path, 3, overwrite=True, filesystem=filesystem)
    [file] = find_files(path, filesystem)
    with memory.open(file.inner) as opened:
        assert pq.read_table(opened)["x"].to_pylist() == [3]
    assert not [name for name in memory.store if "partial" in name or METADATA_FILE in name]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_object_stays_as_it_was_if_a_copy_ends_half_way(memory, monkeypatch, error):
    write("memory://b/x.parquet", 1)
    before = memory.cat("/b/x.parquet")

    def stop(source, out, _):
        out.write(source.read(10))
        raise error("half way")

    monkeypatch.setattr(shutil, "copyfileobj", stop)
    with pytest.raises(error, match="half way"):
        write("memory://b/x.parquet", 2, overwrite=True)
    assert {name: memory.cat(name) for name in memory.store} == {"/b/x.parquet": before}


def test_a_run_that_was_stopped_resumes(memory, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    target = output_path("b/out", memory)
    copy_from = RemotePath.copy_from

    def stop(path, file):
        if path.name == "2":
            raise OSError("stopped")
        copy_from(path, file)

    for stops in (True, False):
        monkeypatch.setattr(RemotePath, "copy_from", stop if stops else copy_from)
        refuse_existing(target, overwrite=False)
        try:
            with resumable_folder(target, {"of": "equal runs"}) as folder:
                assert stops or (folder / "1").exists()
                for name in "123" if stops else "":
                    with new_file_in(folder, name) as path:
                        path.write_text(name)
        except OSError:
            if not stops:
                raise
            assert METADATA_FILE in target.sizes()
    assert target.sizes().keys() == {"1", "2", "3", ".tutorlib"}
    assert (target / "2").read_text() == "2"


@pytest.mark.parametrize("other", ["begins", "ends", "writes an object"])
def test_two_who_write_at_once_are_not_mixed(memory, monkeypatch, tmp_path, other):
    for name in ("mine", "others"):
        (tmp_path / name).mkdir()
        for part in range(20):
            (tmp_path / name / f"{part:02}").write_text(name)
    target = output_path("memory://b/out")
    copy_from = RemotePath.copy_from

    def meanwhile(path, file):
        if path.name == "04" and "mine" in str(file):
            if other == "begins":
                (target / METADATA_FILE).write_text("of the other")
            elif other == "ends":
                target.replace_by(tmp_path / "others")
            else:
                (target / "more").write_text("of the other")
        copy_from(path, file)

    monkeypatch.setattr(RemotePath, "copy_from", meanwhile)
    with pytest.raises(BlockingIOError, match="another process wrote to memory://"):
        target.replace_by(tmp_path / "mine")
    assert METADATA_FILE in target.sizes()  # for which readers refuse it
    assert (target / METADATA_FILE).read_text() != "of the other"  # which ends with an error, too
    monkeypatch.undo()
    target.replace_by(tmp_path / "mine")
    names = [f"{part:02}" for part in range(20)]
    assert sorted(target.sizes()) == names
    assert {(target / name).read_text() for name in names} == {"mine"}
