"""cores_awake: suppress CPU idle states, to measure alone what else runs during training."""

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
    """Suppress the idle states of all CPU cores while the block runs.

    A reader that passes records from thread to thread, one by one, waits briefly for each of them.
    A core that has nothing else to do enters an idle state meanwhile, and waking it takes longer
    than the record does, above all on a virtual machine. During training the cores do not idle, so
    such a reader may be twice as fast there as alone; measured within this block, it shows the
    speed that it has in training. One process of the lowest priority per core keeps it busy, at a
    cost of 1 to 2% of the core. The processes end with the block, or with this process.

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
