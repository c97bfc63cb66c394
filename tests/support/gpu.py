"""What the tests of the GPU share: when they run, and what was copied to and from it.

They need little, so that they run on a host that has pytest and hypothesis but no notebooks:
`pytest -m gpu tests/*/test_*gpu*.py`.
"""

import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tutorlib.gpu import missing_for_gpu

os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # TensorFlow else takes all memory
MISSING = missing_for_gpu()
ON_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(MISSING is not None, reason=f"needs an NVIDIA GPU with cuDF: {MISSING}"),
]
ROOT = Path(__file__).resolve().parents[2]
PLANE, DETAILS = "/device:GPU:", "memcpy_details"  # in a profiler's trace


def copied_bytes(log_dir: str | Path) -> dict[str, int]:
    """Return {"MemcpyH2D": bytes, "MemcpyD2H": bytes} of all copies in a profiler's trace."""
    found = {"MemcpyH2D": 0, "MemcpyD2H": 0}
    newest = max(Path(log_dir).glob("**/*.xplane.pb"), key=os.path.getmtime)
    events = events_of_jax if find_spec("jax") else events_of_tensorflow
    for name, details in events(newest):
        size = re.search(r"size:(\d+)", details)
        if name in found and size:
            found[name] += int(size[1])
    return found


def events_of_jax(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the name of each event on a GPU in a trace, and what it says of a copy."""
    from jax.profiler import ProfileData

    for plane in ProfileData.from_file(str(path)).planes:
        if plane.name.startswith(PLANE):
            for event in (event for line in plane.lines for event in line.events):
                yield event.name, str(dict(event.stats).get(DETAILS, ""))


def events_of_tensorflow(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the same, where JAX is absent."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    for plane in xplane_pb2.XSpace.FromString(path.read_bytes()).planes:
        if not plane.name.startswith(PLANE):
            continue
        kinds = {key: entry.name for key, entry in plane.stat_metadata.items()}
        for event in (event for line in plane.lines for event in line.events):
            details = [s for s in event.stats if kinds[s.metadata_id] == DETAILS]
            text = "".join(s.str_value or kinds.get(s.ref_value, "") for s in details)
            yield plane.event_metadata[event.metadata_id].name, text
