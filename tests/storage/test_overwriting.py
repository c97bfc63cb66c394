"""After a kill at any moment of overwriting, the old or the new output is whole."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest

from tutorlib.storage import MARK, new_folder, resumable_folder

# Kills itself at the n-th operation on files after the block has ended; at 0 before it ends.
OVERWRITE = """
import os, signal, sys
from tutorlib.storage import new_folder, resumable_folder

kind, target, moment = sys.argv[1], sys.argv[2], int(sys.argv[3])
count = 0

def kill_at_moment(event, _):
    global count
    if event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.scandir", "open"):
        count += 1
        if count == moment:
            os.kill(os.getpid(), signal.SIGKILL)

with new_folder(target) if kind == "new" else resumable_folder(target, {"v": 2}) as folder:
    for number in range(3):
        (folder / f"new_{number}").write_text("new")
    if moment == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(kill_at_moment)
"""

OLD, NEW = ({MARK, *(f"{age}_{n}" for n in range(3))} for age in ("old", "new"))


def held(target):
    return set(os.listdir(target)) if target.exists() else None


def write(kind, target, age):
    with new_folder(target) if kind == "new" else resumable_folder(target, {"v": age}) as folder:
        for number in range(3):
            (folder / f"{age}_{number}").write_text(age)


def fail_to_write(target):
    with contextlib.suppress(RuntimeError), new_folder(target):
        raise RuntimeError


@pytest.mark.parametrize("kind", ["new", "resumable"])
def test_a_kill_at_any_moment_of_overwriting_leaves_a_whole_output(tmp_path, kind):
    seen, moment, status = [], -1, -signal.SIGKILL
    while status == -signal.SIGKILL:
        moment += 1
        target = tmp_path / f"{moment}" / "out"
        write(kind, target, "old")
        command = [sys.executable, "-c", OVERWRITE, kind, str(target), str(moment)]
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
