"""What the tests of the GPU share: when they run, and what was copied to and from it.

They need neither conftest.py nor hypothesis, so that they run on a host that has little beyond
pytest: `pytest --noconftest -m gpu tests/*/test_*gpu*.py`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tutorlib.memory import missing_for_gpu

os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # TensorFlow else takes all memory
MISSING = missing_for_gpu()
ON_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(MISSING is not None, reason=f"needs an NVIDIA GPU with cuDF: {MISSING}"),
]
ROOT = Path(__file__).resolve().parents[2]


def run(code, *arguments, **environment):
    """Run code in a process of its own, from the project's root; returns what it printed."""
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), **environment},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


def copied_bytes(log_dir):
    """Return {"MemcpyH2D": bytes, "MemcpyD2H": bytes} of all copies in a profiler's trace."""
    from tutorlib.profiling.xspace import newest_file, read_planes

    found = {"MemcpyH2D": 0, "MemcpyD2H": 0}
    for plane in read_planes(newest_file(Path(log_dir)), ["memcpy_details"]):
        if not plane.name.startswith("/device:GPU:"):
            continue
        for event in (event for line in plane.lines for event in line.events):
            size = re.search(r"size:(\d+)", str(event.stats.get("memcpy_details", "")))
            if event.name in found and size:
                found[event.name] += int(size[1])
    return found
