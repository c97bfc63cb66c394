"""cores_awake keeps the cores busy with processes of the lowest priority, which always end."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tutorlib.profiling import cores_awake

from tutorlib.memory import usable_cores

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def children(process):
    """Return {process id: priority} of the running child processes of a process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent, *rest = path.read_text().rpartition(")")[2].split()
            if int(parent) == process and state != "Z":
                found[int(path.parent.name)] = int(rest[14])
    return found


def test_processes_of_the_lowest_priority_keep_cores_awake_and_end_with_the_block():
    before = children(os.getpid())
    with cores_awake():
        deadline = time.monotonic() + 30
        while True:
            spinning = {p: n for p, n in children(os.getpid()).items() if p not in before}
            lowest = [pid for pid, nice in spinning.items() if nice == 19]
            if len(lowest) == usable_cores() or time.monotonic() > deadline:
                break
        assert len(lowest) == usable_cores()
    assert not set(lowest) & set(children(os.getpid()))


def test_they_end_when_the_process_that_started_them_is_killed():
    code = "from tutorlib.profiling import cores_awake\nwith cores_awake():\n print(flush=True)\n"
    code += " import time\n time.sleep(60)\n"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        spinning = list(children(process.pid))
        assert len(spinning) >= usable_cores()
        process.kill()
    deadline = time.monotonic() + 30
    while any(os.path.exists(f"/proc/{pid}") for pid in spinning) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in spinning if os.path.exists(f"/proc/{pid}")]
