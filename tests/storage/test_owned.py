"""Only folders that this library made are replaced or removed, and never an input."""

import contextlib
import os
from pathlib import Path

import pytest

from tutorlib.storage import (
    MARK,
    METADATA_FILE,
    find_checkpoints,
    new_file,
    new_folder,
    refuse_existing,
    refuse_overlap,
    remove,
    resumable_folder,
    scratch_folder,
)


def thesis_in(folder):
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("mine")
    return folder


def resumable(target):
    return resumable_folder(target, {"version": 1})


OUTPUTS = [new_folder, resumable]


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("name", ["out", "out.partial", "out.replaced"])
def test_a_folder_that_another_made_is_neither_replaced_nor_removed(tmp_path, output, name):
    thesis_in(tmp_path / name)
    with pytest.raises(FileExistsError, match=f"{name} was not made by tutorlib"):
        output(tmp_path / "out").__enter__()
    assert os.listdir(tmp_path) == [name]
    assert os.listdir(tmp_path / name) == ["thesis.txt"]


@pytest.mark.parametrize(
    ("name", "message"), [("out", "out is a folder"), ("out.partial", "was not made by tutorlib")]
)
def test_a_file_does_not_replace_a_folder(tmp_path, name, message):
    thesis_in(tmp_path / name)
    with pytest.raises(OSError, match=message):
        new_file(tmp_path / "out").__enter__()
    assert (tmp_path / name / "thesis.txt").exists()


@pytest.mark.parametrize(
    ("output", "name"),
    [*((output, name) for output in OUTPUTS for name in ("out", "out.partial")),
     (new_file, "out.partial"), (scratch_folder, "out")],
)  # fmt: skip
def test_a_file_of_another_is_neither_written_nor_replaced_by_a_folder(tmp_path, output, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(FileExistsError, match=f"{name} is a file"):
        output(tmp_path / "out").__enter__()
    assert os.listdir(tmp_path) == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_a_scratch_folder_of_another_is_refused(tmp_path):
    with pytest.raises(FileExistsError, match="was not made by tutorlib"):
        scratch_folder(thesis_in(tmp_path / "scratch")).__enter__()
    assert os.listdir(tmp_path / "scratch") == ["thesis.txt"]


@pytest.mark.parametrize("output", OUTPUTS)
def test_an_empty_folder_and_one_of_ours_are_replaced(tmp_path, output):
    (tmp_path / "out").mkdir()
    for name in ("first", "second"):
        with output(tmp_path / "out") as folder:
            (folder / name).touch()
        assert set(os.listdir(tmp_path / "out")) == {name, MARK}
    assert os.listdir(tmp_path) == ["out"]


def test_a_link_is_replaced_and_what_it_points_to_stays(tmp_path):
    with new_folder(tmp_path / "real") as folder:
        (folder / "kept").touch()
    (tmp_path / "out").symlink_to(tmp_path / "real")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with new_folder(tmp_path / "dangling") as folder:
        (folder / "new").touch()
    assert (tmp_path / "dangling/new").exists()
    with new_folder(tmp_path / "out") as folder:
        (folder / "new").touch()
    assert (tmp_path / "real/kept").exists()
    assert not (tmp_path / "out").is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["dangling", "out", "real"]


def test_overwrite_is_refused_for_a_folder_of_another(tmp_path):
    with pytest.raises(FileExistsError, match="was not made by tutorlib"):
        refuse_existing(thesis_in(tmp_path / "mine"), overwrite=True)
    with pytest.raises(FileExistsError, match="was not made by tutorlib"):
        remove(tmp_path / "mine")
    with new_folder(tmp_path / "ours"):
        pass
    refuse_existing(tmp_path / "ours", overwrite=True)
    remove(tmp_path / "ours")
    assert os.listdir(tmp_path) == ["mine"]


def test_a_refused_target_keeps_the_files_of_a_killed_run(tmp_path):
    with pytest.raises(KeyboardInterrupt), resumable(tmp_path / "out"):
        raise KeyboardInterrupt
    thesis_in(tmp_path / "out")
    with pytest.raises(FileExistsError, match="was not made by tutorlib"):
        resumable(tmp_path / "out").__enter__()
    assert (tmp_path / "out.partial" / METADATA_FILE).exists()


@pytest.mark.parametrize(
    "target", ["data", "data/raw", "data/raw/a.parquet", "data/raw/out/b", "."]
)
def test_an_output_that_contains_or_is_inside_an_input_is_refused(tmp_path, target, monkeypatch):
    monkeypatch.chdir(tmp_path)
    thesis_in(tmp_path / "data/raw")
    (tmp_path / "data/raw/a.parquet").touch()
    with pytest.raises(ValueError, match="overlaps the input data/raw"):
        refuse_overlap(target, ["data/raw", "data/raw/a.parquet"])
    with pytest.raises(ValueError, match="overlaps the input"):
        refuse_overlap(tmp_path / target, ["data/raw"])
    refuse_overlap("data/ready", ["data/raw", "data/raw/a.parquet", "s3://bucket/data"])
    refuse_overlap("data/raw/out", ["data/raw/a.parquet"])


@pytest.mark.parametrize("write", [new_folder, new_file, find_checkpoints])
def test_an_output_that_only_this_machine_can_hold_refuses_a_url(tmp_path, write, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for target in ("s3://bucket/out", Path("s3://KEY:SECRET@bucket/out")):
        with pytest.raises(ValueError, match=r"s3:/+bucket/out is a URL.* Write it to a local"):
            contextlib.ExitStack().enter_context(write(target))
    assert not list(tmp_path.iterdir())
