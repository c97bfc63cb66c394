"""Outputs are whole or absent."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tutorlib.output import (
    new_file,
    new_folder,
    refuse_existing,
)


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
        with new_folder(target, overwrite=True) as folder:
            assert os.listdir(folder) == []
            (folder / name).touch()
        assert os.listdir(target) == [name]
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
        fail_to_write(functools.partial(new_folder, overwrite=True), tmp_path / "folder", "half")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "old"
    assert os.listdir(tmp_path / "folder") == ["old"]


MEET = """
import contextlib, sys
from tutorlib.output import new_file, new_folder

kind, target = sys.argv[1:3]
print("ready", flush=True)
sys.stdin.readline()
for _ in range(100):
    with contextlib.suppress(*[] if kind == "new_file" else [OSError]):
        with new_file(target) if kind == "new_file" else new_folder(target, overwrite=True) as path:
            for name in [""] if kind == "new_file" else ["a", "b"]:
                (path / name).write_text(sys.argv[3] * 1000)
"""


@pytest.mark.parametrize("kind", ["new_file", "new_folder"])
def test_two_writers_of_one_target_never_leave_a_mixture(tmp_path, kind):
    """Of two that rename their folders at the same moment, one may be refused by the system."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-c", MEET, kind, str(tmp_path / "out")]
    writers = [subprocess.Popen([*command, name], text=True, **pipes) for name in "ab"]
    for process in writers:
        assert process.stdout.readline() == "ready\n"
    for process in writers:
        process.stdin.write("\n")
        process.stdin.flush()
    errors = [process.communicate(timeout=120)[1] for process in writers]
    assert [process.returncode for process in writers] == [0, 0], errors
    assert os.listdir(tmp_path) == ["out"]
    files = [tmp_path / "out"] if kind == "new_file" else [*(tmp_path / "out").iterdir()]
    [text] = {file.read_text() for file in files}
    assert text in ("a" * 1000, "b" * 1000)


FILL = """
import resource, signal, sys
import numpy as np
from tutorlib.columns import Chunk
from tutorlib.parquet import ParquetSink
from tutorlib.output import new_file, new_folder

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))  # as a full disk or a quota
for kind, target in ((new_file, "/file"), (new_folder, "/folder"), (ParquetSink, "/x.parquet")):
    try:
        with kind(sys.argv[1] + target) as output:
            if kind is ParquetSink:
                output.write(Chunk({"x": np.random.default_rng(0).random(100_000)}))
            else:
                file = output if kind is new_file else output / "file"
                file.write_bytes(bytes(100_000))
    except OSError as error:
        print(error)
"""


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path):
    command = [sys.executable, "-c", FILL, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("File too large") == 3
    assert os.listdir(tmp_path) == []


FLUSHES = """
import os, sys
from tutorlib.output import new_file

calls, fsync = [], os.fsync

def recorded(descriptor):
    fsync(descriptor)
    calls.append(os.readlink(f"/proc/self/fd/{descriptor}"))

def audit(event, arguments):
    if event == "os.rename":
        calls.append(tuple(map(os.fspath, arguments[:2])))

os.fsync = recorded
sys.addaudithook(audit)
with new_file(sys.argv[1] + "/file") as path:
    path.write_text("1")
for call in calls:
    print(*[call] if isinstance(call, str) else call)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the name of an open file")
def test_every_file_is_on_the_disk_before_it_gets_its_name(tmp_path):
    command = [sys.executable, "-c", FLUSHES, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    calls, renamed = [line.split() for line in done.stdout.splitlines()], []
    for place, call in enumerate(calls):
        if len(call) == 2:
            old, new = call
            flushed = {Path(name[0]) for name in calls[:place] if len(name) == 1}
            assert Path(old) in flushed
            renamed.append(Path(new).name)
    assert renamed == ["file"]


def test_an_existing_target_is_refused_unless_overwrite_is_passed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuse_existing(tmp_path / "new", overwrite=False)
    refuse_existing(tmp_path, overwrite=False)  # empty
    Path("there").touch()
    for target in (tmp_path, "there"):
        with pytest.raises(FileExistsError, match=r"exists already\. Pass overwrite=True"):
            new_folder(target).__enter__()
    refuse_existing("there", overwrite=True)
    for target in (".", tmp_path.parent, "/", "~"):
        with pytest.raises(FileExistsError, match=r"holds .*, so it is not replaced"):
            refuse_existing(target, overwrite=True)


OVERWRITE = """
import os, signal, sys
from tutorlib.output import new_folder

target, moment = sys.argv[1], int(sys.argv[2])
count = 0

def kill_at_moment(event, _):
    global count
    if event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.scandir", "open"):
        count += 1
        if count == moment:
            os.kill(os.getpid(), signal.SIGKILL)

with new_folder(target, overwrite=True) as folder:
    for number in range(3):
        (folder / f"new_{number}").write_text("new")
    if moment == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(kill_at_moment)
"""


def write_three(target, age):
    with new_folder(target) as folder:
        for number in range(3):
            (folder / f"{age}_{number}").write_text(age)


def test_a_kill_at_any_moment_of_overwriting_leaves_a_whole_output(tmp_path):
    """What else it leaves begins with "_" and ends with .partial, where no reader looks."""
    ages, moment, status = [], -1, -signal.SIGKILL
    while status == -signal.SIGKILL:
        moment += 1
        target = tmp_path / f"{moment}" / "out"
        write_three(target, "old")
        command = [sys.executable, "-c", OVERWRITE, str(target), str(moment)]
        status = subprocess.run(command).returncode
        names = os.listdir(target) if target.exists() else []
        [age] = {name.partition("_")[0] for name in names} or {"none"}
        assert len(names) == (0 if age == "none" else 3)
        ages.append(age)
        rest = set(os.listdir(target.parent)) - {"out"}
        assert all(name.startswith("_out.") and name.endswith(".partial") for name in rest)
    assert status == 0
    assert ages == sorted(ages, key=["old", "none", "new"].index)
    assert {*ages} == {"old", "none", "new"}


def thesis_in(folder):
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("mine")
    return folder


def test_a_folder_that_appears_meanwhile_is_not_replaced(tmp_path):
    with pytest.raises(OSError, match="not empty"), new_folder(tmp_path / "late"):
        thesis_in(tmp_path / "late")
    assert os.listdir(tmp_path) == ["late"]
    assert os.listdir(tmp_path / "late") == ["thesis.txt"]


def test_a_file_does_not_replace_a_folder(tmp_path):
    thesis_in(tmp_path / "out")
    with pytest.raises(IsADirectoryError, match="out is a folder"):
        new_file(tmp_path / "out").__enter__()
    assert (tmp_path / "out/thesis.txt").exists()


def test_a_link_is_replaced_and_what_it_points_to_stays(tmp_path):
    thesis_in(tmp_path / "real")
    for name, pointed in (("out", "real"), ("dangling", "nowhere")):
        (tmp_path / name).symlink_to(tmp_path / pointed)
        with new_folder(tmp_path / name, overwrite=True) as folder:
            (folder / "new").touch()
        assert not (tmp_path / name).is_symlink()
        assert os.listdir(tmp_path / name) == ["new"]
    assert (tmp_path / "real/thesis.txt").exists()
    assert sorted(os.listdir(tmp_path)) == ["dangling", "out", "real"]


@pytest.mark.parametrize("write", [new_folder, new_file])
def test_an_output_that_only_this_machine_can_hold_refuses_a_url(tmp_path, write, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for target in ("s3://bucket/out", Path("s3://KEY:SECRET@bucket/out")):
        with pytest.raises(ValueError, match=r"s3:/+bucket/out is a URL.* Write to a local"):
            contextlib.ExitStack().enter_context(write(target))
    assert not list(tmp_path.iterdir())
