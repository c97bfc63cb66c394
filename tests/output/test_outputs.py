"""Outputs are whole or absent, only what was made here is replaced, and progress is counted."""

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.workflow_rows import rows, workflow, write
from tutorlib.display import row_bar
from tutorlib.output import (
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


TRAIN = """
import sys
import keras
from tutorlib.callbacks import LoaderCheckpoint
from tutorlib.loader import KerasSequenceLoader
import pyarrow as pa

table = pa.table({"x": [float(k) for k in range(64)], "y": [0.0, 1.0] * 32})
loader = KerasSequenceLoader(table, 4, label_names=["y"])
inputs = {"x": keras.Input((1,), name="x")}
model = keras.Model(inputs, keras.layers.Dense(1)(inputs["x"]))
model.compile("adam", "mse")
checkpoint = LoaderCheckpoint(sys.argv[1], loader, every_n_batches=1, keep=2)
print("ready", flush=True)
sys.stdin.readline()
model.fit(loader, epochs=4, verbose=0, callbacks=[checkpoint])
"""


def test_of_two_trainings_in_one_folder_of_checkpoints_one_goes_on(tmp_path):
    """The other is told that the folder is in use, whichever step the two meet in."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-c", TRAIN, str(tmp_path / "checkpoints")]
    both = [subprocess.Popen(command, text=True, **pipes) for _ in range(2)]
    for process in both:
        assert process.stdout.readline() == "ready\n"
    for process in both:
        process.stdin.write("\n")
        process.stdin.flush()
    errors = [process.communicate(timeout=120)[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 1], errors
    [error] = [e for e, p in zip(errors, both, strict=True) if p.returncode]
    assert re.search(r"BlockingIOError: .*another training .*a folder of its own", error) or (
        "already has checkpoints" in error
    )
    assert find_checkpoints(tmp_path / "checkpoints")[-1].state["loader"]["epoch"] == 4


def test_old_checkpoints_stay_while_another_training_writes_one(tmp_path):
    for number in range(2):
        with new_checkpoint(tmp_path, 0, number, {}):
            pass
    with new_checkpoint(tmp_path, 0, 2, {}) as folder:
        (folder / "weights").write_text("1")
        before = sorted(os.listdir(tmp_path))
        with pytest.raises(BlockingIOError, match="another training is writing"):
            remove_old(tmp_path, 1)
        assert sorted(os.listdir(tmp_path)) == before
    remove_old(tmp_path, 1)
    assert names(tmp_path) == ["000003-epoch-0-batch-2"]


MEET = """
import sys
from tutorlib.output import new_file, new_folder

kind, target = {"new_file": new_file, "new_folder": new_folder}[sys.argv[1]], sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
for _ in range(300):
    try:
        with kind(target) as path:
            file = path if kind is new_file else path / "file"
            file.write_text(sys.argv[3] * 1000)
    except BlockingIOError:
        pass
"""


@pytest.mark.parametrize("kind", ["new_file", "new_folder"])
def test_writers_of_one_target_are_told_that_another_writes_and_nothing_else(tmp_path, kind):
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
    text = (tmp_path / "out" / ("" if kind == "new_file" else "file")).read_text()
    assert text in ("a" * 1000, "b" * 1000)


REFUSE_LOCKS = """
import ctypes, platform, sys, warnings
from tutorlib.output import find_checkpoints, new_checkpoint, new_file, new_folder, remove_old

class Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte),
                ("value", ctypes.c_uint)]

class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(Instruction))]

flock, error = {"x86_64": 73, "aarch64": 32}[platform.machine()], int(sys.argv[2])
program = (Instruction * 4)(
    Instruction(0x20, 0, 0, 0), Instruction(0x15, 0, 1, flock),
    Instruction(0x06, 0, 0, 0x00050000 | error), Instruction(0x06, 0, 0, 0x7FFF0000),
)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # no new privileges
assert libc.prctl(22, 2, ctypes.byref(Program(4, program))) == 0  # a filter of system calls
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with new_file(sys.argv[1] + "/file") as path:
        path.write_text("1")
    with new_folder(sys.argv[1] + "/folder") as path:
        (path / "file").write_text("1")
    with new_checkpoint(sys.argv[1] + "/checkpoints", 0, 1, {}) as path:
        (path / "file").write_text("1")
    remove_old(sys.argv[1] + "/checkpoints", 1)
print({str(warning.message) for warning in caught})
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux filters system calls")
@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF])
def test_a_filesystem_without_locks_is_written_with_a_warning(tmp_path, code):
    """The kernel refuses flock here, as some network filesystems do."""
    command = [sys.executable, "-c", REFUSE_LOCKS, str(tmp_path), str(code)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"folder.partial refuses locks ({os.strerror(code)}), so nothing keeps" in done.stdout
    assert "checkpoints refuses locks" in done.stdout
    assert sorted(os.listdir(tmp_path)) == ["checkpoints", "file", "folder"]
    assert names(tmp_path / "folder") == ["file"]


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
        print(error, error.__notes__)
"""


def test_an_error_of_a_full_disk_names_the_output(tmp_path):
    command = [sys.executable, "-c", FILL, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for line, name in zip(done.stdout.splitlines(), ["file", "folder", "x.parquet"], strict=True):
        assert f"'{tmp_path}/{name}'" in line
        assert "Make room or choose another output" in line
    assert os.listdir(tmp_path) == []


FLUSHES = """
import os, sys
from tutorlib.output import new_checkpoint, new_file

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
with new_checkpoint(sys.argv[1] + "/checkpoints", 0, 1, {}) as folder:
    (folder / "weights").write_text("1")
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
            held = (
                [Path(new, path.name) for path in Path(new).iterdir()] if os.path.isdir(new) else []
            )
            assert {Path(old), *(Path(old, path.name) for path in held)} <= flushed
            renamed.append(Path(new).name)
    assert renamed == ["file", "000001-epoch-0-batch-1"]
    assert calls[-1] == [str(tmp_path / "checkpoints")]  # the name of the last


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
from tutorlib.output import new_folder

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
