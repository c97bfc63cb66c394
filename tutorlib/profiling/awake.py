"""cores_awake: processors that do not sleep, to measure alone what else runs beside a training.

Belongs here: the conditions of a measurement. Does not belong here: measuring.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from tutorlib.memory import usable_cores

SPIN = "import os, sys\nos.nice(19)\nwhile os.getppid() == int(sys.argv[1]): pass"


@contextlib.contextmanager
def cores_awake() -> Iterator[None]:
    """Keep every processor awake while the block runs, by processes of the lowest priority.

    A reader that hands records from thread to thread, one by one, waits for a record a moment and
    is woken again. Where a processor has nothing else to do it falls asleep meanwhile, and to wake
    takes longer than the record does, on a virtual machine above all. Beside a training no
    processor sleeps. So such a reader may be twice as fast there as by itself, and what it can give
    to a training is measured within this. The processes take what others leave, one or two percent
    of a busy processor; they end with the block, or with this process.

    Example:
        >>> with cores_awake():
        ...     sum(range(10))
        45
    """
    command = [sys.executable, "-IS", "-c", SPIN, str(os.getpid())]
    spinning = [subprocess.Popen(command) for _ in range(usable_cores())]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()
