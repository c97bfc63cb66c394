"""Outputs are whole or absent: after an error, a kill, and while another process writes."""

import os
import signal
import subprocess
import sys

import pytest

from tutorlib.storage import MARK, new_file, new_folder, refuse_existing, scratch_folder


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
