"""Send what TensorFlow logs when it starts to a file, so that it stands on no page.

A kernel runs this file first if PYTHONSTARTUP names it, as `run.py` and `make lab` do. Before
TensorFlow can be configured it logs to file descriptor 2 that there is no GPU or that oneDNN is on.
Lines that say no more are appended to the file that LESSON_LOG names. All others, warnings and
errors among them, go on as before.
"""

import os
import re
import threading

# A pattern of absl's information, its notice about itself, and the errors of a missing GPU.
STARTUP = re.compile(
    rb"WARNING: All log messages before absl"
    rb"|I0000 00:00:"
    rb"|E0000 00:00:.*(failed call to cuInit|Unable to register cu\w+ factory)"
    rb"|To enable the following instructions:"
)


def divert(log: str) -> None:
    """From now on, append lines of file descriptor 2 that match STARTUP to a file."""
    reading, writing = os.pipe()
    before = os.dup(2)
    os.dup2(writing, 2)

    def pass_on() -> None:
        with os.fdopen(reading, "rb") as lines, open(log, "ab", buffering=0) as kept:
            for line in lines:
                if STARTUP.match(line):
                    kept.write(line)
                else:
                    os.write(before, line)

    threading.Thread(target=pass_on, name="stderr", daemon=True).start()


if os.environ.get("LESSON_LOG"):
    divert(os.environ["LESSON_LOG"])
