"""Profiling: what bounds a training, measured by tests (`diagnose`) and by traces (`read_trace`).

`ProfileSteps` takes a trace in `fit`, `draw_timeline` draws it, `cores_awake` makes measurements of
a reader alone comparable with training.
"""

from tutorlib.profiling.awake import cores_awake
from tutorlib.profiling.diagnosis import Diagnosis, Pace, diagnose
from tutorlib.profiling.intervals import Intervals
from tutorlib.profiling.recording import ProfileSteps
from tutorlib.profiling.timeline import draw_timeline
from tutorlib.profiling.trace import Device, Gap, Trace, TracedOp, read_trace

__all__ = [
    "Device",
    "Diagnosis",
    "Gap",
    "Intervals",
    "Pace",
    "ProfileSteps",
    "Trace",
    "TracedOp",
    "cores_awake",
    "diagnose",
    "draw_timeline",
    "read_trace",
]
