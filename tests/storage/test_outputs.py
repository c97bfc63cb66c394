"""Outputs are whole or absent, only what was made here is replaced, and progress is counted."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.workflow_rows import rows, workflow, write
from tutorlib.storage import (
    MANIFEST_FILE,
    MARK,
    find_checkpoints,
    new_checkpoint,
    new_file,
    new_folder,
    read_manifest,
    refuse_existing,
    refuse_overlap,
    remove,
    remove_old,
    row_bar,
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


def test_only_one_process_at_a_time_writes_a_folder(tmp_path):
    with new_folder(tmp_path / "out") as folder:
        (folder / "mine").touch()
        with (
            pytest.raises(BlockingIOError, match=r"another process is writing .*out\.partial"),
            new_folder(tmp_path / "out"),
        ):
            pass
    assert names(tmp_path / "out") == ["mine"]


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
    (find_checkpoints(tmp_path)[0].folder / MARK).unlink()  # as its text says, to keep it
    newest = find_checkpoints(tmp_path)[-1].folder / MANIFEST_FILE
    newest.write_text(newest.read_text().replace("3", "4"))
    assert find_checkpoints(tmp_path)[-1].state == {"batch": 2}
    remove_old(tmp_path, keep=1)
    assert [found.number for found in find_checkpoints(tmp_path)] == [1, 3]


OVERWRITE = """
import os, signal, sys
from tutorlib.storage import new_folder

target, moment = sys.argv[1], int(sys.argv[2])
count = 0

def kill_at_moment(event, _):
    global count
    if event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.scandir", "open"):
        count += 1
        if count == moment:
            os.kill(os.getpid(), signal.SIGKILL)

with new_folder(target) as folder:
    for number in range(3):
        (folder / f"new_{number}").write_text("new")
    if moment == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(kill_at_moment)
"""


OLD, NEW = ({MARK, *(f"{age}_{n}" for n in range(3))} for age in ("old", "new"))


def held(target):
    return set(os.listdir(target)) if target.exists() else None


def write_three(target, age):
    with new_folder(target) as folder:
        for number in range(3):
            (folder / f"{age}_{number}").write_text(age)


def fail_to_write(target):
    with contextlib.suppress(RuntimeError), new_folder(target):
        raise RuntimeError


def test_a_kill_at_any_moment_of_overwriting_leaves_a_whole_output(tmp_path):
    seen, moment, status = [], -1, -signal.SIGKILL
    while status == -signal.SIGKILL:
        moment += 1
        target = tmp_path / f"{moment}" / "out"
        write_three(target, "old")
        command = [sys.executable, "-c", OVERWRITE, str(target), str(moment)]
        status = subprocess.run(command).returncode
        seen.append(held(target))
        assert seen[-1] in [OLD, NEW, None]
        fail_to_write(target)  # the next run clears up and restores, also if it fails
        assert os.listdir(target.parent) == ["out"]
        assert held(target) == (OLD if seen[-1] is None else seen[-1])
    assert status == 0
    assert seen[0] == OLD
    assert seen[-1] == NEW
    assert len(seen) > 5
    assert None in seen  # between the two renamings


def thesis_in(folder):
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("mine")
    return folder


@pytest.mark.parametrize("name", ["out", "out.partial", "out.replaced"])
def test_a_folder_that_another_made_is_neither_replaced_nor_removed(tmp_path, name):
    thesis_in(tmp_path / name)
    with pytest.raises(FileExistsError, match=f"{name} was not made by tutorlib"):
        new_folder(tmp_path / "out").__enter__()
    assert os.listdir(tmp_path) == [name]
    assert os.listdir(tmp_path / name) == ["thesis.txt"]
    with pytest.raises(FileExistsError), new_folder(tmp_path / "late"):
        thesis_in(tmp_path / "late")  # while the output is being made
    assert os.listdir(tmp_path / "late") == ["thesis.txt"]


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
    [(new_folder, "out"), (new_folder, "out.partial"), (new_file, "out.partial")],
)  # fmt: skip
def test_a_file_of_another_is_neither_written_nor_replaced_by_a_folder(tmp_path, output, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(FileExistsError, match=f"{name} is a file"):
        output(tmp_path / "out").__enter__()
    assert os.listdir(tmp_path) == [name]
    assert (tmp_path / name).read_text() == "mine"


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


def test_a_bar_counts_every_row_of_every_pass(tmp_path, capsys):
    source = write(tmp_path / "rows.parquet", rows(1000), 130)
    workflow().fit(source, progress=True).transform_to_parquet(
        source, tmp_path / "out", progress=True
    )
    shown = capsys.readouterr().err
    for label in ("fit, pass 1", "fit, pass 2", "transform"):  # the prices are normalized twice
        assert f"{label}: 100%" in shown
    assert "1.00k/1.00k" in shown


def test_many_threads_may_count_at_once(capsys):
    with row_bar("rows", 8000, progress=True) as done:
        threads = [
            threading.Thread(target=lambda: [done(1) for _ in range(1000)]) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert "8.00k/8.00k" in capsys.readouterr().err


def test_without_tqdm_it_is_silent_unless_it_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with row_bar("rows", 1, progress=None) as done:
        done(1)
    with pytest.raises(ImportError, match="progress=True needs tqdm"), row_bar("rows", 1, True):
        pass
