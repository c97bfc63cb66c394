"""Outputs are whole or absent: after an error, a kill, and while another process writes."""

import os
import signal
import subprocess
import sys

import pytest

from tutorlib.storage import (
    MANIFEST_FILE,
    MARK,
    find_checkpoints,
    new_checkpoint,
    new_file,
    new_folder,
    read_manifest,
    refuse_existing,
    remove_old,
    scratch_folder,
    write_manifest,
)


def names(folder):
    """Return the names in a folder, without the mark of this library."""
    return sorted(name for name in os.listdir(folder) if name != MARK)


def test_a_file_appears_when_the_block_ends(tmp_path):
    target = tmp_path / "deep" / "file"
    for text in ("first", "second"):
        with new_file(target) as path:
            path.write_text(text)
            assert not target.exists() or target.read_text() == "first"
        assert target.read_text() == text
    assert os.listdir(target.parent) == ["file"]


def test_a_folder_appears_when_the_block_ends_and_replaces_the_old_one_whole(tmp_path):
    target = tmp_path / "deep" / "folder"
    for name in ("first", "second"):
        with new_folder(target) as folder:
            assert names(folder) == []
            (folder / name).touch()
        assert names(target) == [name]
    assert os.listdir(target.parent) == ["folder"]


class Stopped(BaseException):
    """Stands for an interrupt."""


@pytest.mark.parametrize("error", [ValueError, Stopped])
def test_an_error_leaves_the_old_output_and_no_staging(tmp_path, error):
    (tmp_path / "file").write_text("old")
    with new_folder(tmp_path / "folder") as folder:
        (folder / "old").touch()

    def fail_to_write(output, target, name):
        with output(target) as staging:
            (staging / name).write_text("half")
            raise error

    with pytest.raises(error):
        fail_to_write(new_file, tmp_path / "file", "")
    with pytest.raises(error):
        fail_to_write(new_folder, tmp_path / "folder", "half")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "old"
    assert names(tmp_path / "folder") == ["old"]


KILLED = """
import os, signal, sys
from tutorlib.storage import new_folder

with new_folder(sys.argv[1]) as folder:
    (folder / "half").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_cleared_by_the_next(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path / "out")]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    assert os.listdir(tmp_path) == ["out.partial"]
    with new_folder(tmp_path / "out") as folder:
        (folder / "whole").touch()
    assert os.listdir(tmp_path) == ["out"]
    assert names(tmp_path / "out") == ["whole"]


def test_only_one_process_at_a_time_writes_a_folder(tmp_path):
    with new_folder(tmp_path / "out") as folder:
        (folder / "mine").touch()
        with (
            pytest.raises(BlockingIOError, match=r"another process is writing .*out\.partial"),
            new_folder(tmp_path / "out"),
        ):
            pass
    assert names(tmp_path / "out") == ["mine"]


def test_a_scratch_folder_is_removed_unless_it_was_renamed(tmp_path):
    with scratch_folder(tmp_path / "scratch") as folder:
        (folder / "file").touch()
    assert os.listdir(tmp_path) == []
    with scratch_folder(tmp_path / "scratch") as folder:
        folder.rename(tmp_path / "kept")
        (tmp_path / "scratch").mkdir()  # by another process
    assert sorted(os.listdir(tmp_path)) == ["kept", "scratch"]


def test_an_existing_target_is_refused_unless_overwrite_is_passed(tmp_path):
    refuse_existing(tmp_path / "new", overwrite=False)
    refuse_existing(tmp_path, overwrite=True)
    with pytest.raises(FileExistsError, match=r"exists already\. Pass overwrite=True"):
        refuse_existing(tmp_path, overwrite=False)


def test_a_manifest_names_the_file_that_was_changed(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    write_manifest(tmp_path, {"epoch": 2})
    assert read_manifest(tmp_path) == {"epoch": 2}
    for name in ("b", MANIFEST_FILE):
        data = bytearray((tmp_path / name).read_bytes())
        data[-2 if len(data) > 1 else 0] ^= 1
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=rf"{name} was changed after it was saved"):
            read_manifest(tmp_path)
    write_manifest(tmp_path, {})
    (tmp_path / "a").unlink()
    with pytest.raises(ValueError, match="a is missing"):
        read_manifest(tmp_path)


def test_a_checkpoint_whose_state_was_changed_is_none_and_old_ones_go(tmp_path):
    for batch in range(4):
        with new_checkpoint(tmp_path, 0, batch, {"batch": batch}) as folder:
            (folder / "weights").write_text("w")
    (tmp_path / "000009-epoch-0-batch-9").mkdir()  # not of a whole checkpoint
    assert [found.state["batch"] for found in find_checkpoints(tmp_path)] == [0, 1, 2, 3]
    newest = find_checkpoints(tmp_path)[-1].folder / MANIFEST_FILE
    newest.write_text(newest.read_text().replace("3", "4"))
    assert find_checkpoints(tmp_path)[-1].state == {"batch": 2}
    remove_old(tmp_path, keep=1)
    assert [found.number for found in find_checkpoints(tmp_path)] == [3]
