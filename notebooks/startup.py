"""Send what TensorFlow logs about the machine to a file, so that it stands on no page.

A kernel runs this file first if PYTHONSTARTUP names it, as `run.py` and `make lab` do. TensorFlow
logs to file descriptor 2 that there is no GPU, that oneDNN is on, or that oneDNN leaves a number
type to Eigen. Lines that say no more are appended to the file that LESSON_LOG names. All others,
warnings and errors among them, go on as before.
"""

import os
import re
import threading

# A pattern of absl's information, its notice about itself, and what TensorFlow logs as errors
# although nothing failed: there is no GPU, or the CPU has no AVX-512.
STARTUP = re.compile(
    rb"WARNING: All log messages before absl"
    rb"|I0000 00:00:"
    rb"|E0000 00:00:.*(failed call to cuInit|Unable to register cu\w+ factory"
    rb"|oneDNN supports \w+ only on platforms with AVX-512)"
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
