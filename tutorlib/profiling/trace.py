"""read_trace: when each device worked, from a trace of TensorFlow's profiler.

`ProfileSteps` takes such a trace in `fit`; `tf.profiler.experimental` takes one of any code.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tutorlib.profiling.intervals import Intervals
from tutorlib.profiling.xspace import Event, Plane, newest_file, read_planes

GPU_PLANE, HOST_PLANE = "/device:GPU:", "/host:CPU"
CPU_NAME = "CPU (TensorFlow's executor threads)"
STEP = "step_num"  # stat that marks a step
OP_NAMES = ("tf_op", "hlo_op")  # stats of a kernel that name the op it belongs to
EXECUTOR = "ExecutorState::Process"  # a thread runs ops, one after the other
OP = re.compile(r"[^:]+:[A-Za-z_]\w*")  # "top_mlp/dense/MatMul:MatMul"
CALL = "StatefulPartitionedCall/"
# A step waits for tf.data, or for a loader (an event that `keras_bridge` records).
WAITS = re.compile(r"IteratorGetNext\w*::DoCompute|KerasSequenceLoader::next")
READS = re.compile(r"(?!Prefetch)\w+Produce")  # a thread of tf.data makes an element
COPIES = re.compile("memcpy|memset", re.IGNORECASE)


class TracedOp(NamedTuple):
    """What all runs of one op took on a device.

    Args:
        name: name of the op; on a GPU, of the kernel if the trace names no op for it.
        total_ms: time of all runs; on the CPU, summed over the threads.
        share: share of the time of all ops, 0 to 1.
        runs: number of runs.
    """

    name: str
    total_ms: float
    share: float
    runs: int


class Gap(NamedTuple):
    """A time in which a device was idle.

    Args:
        start_ms: start, ms from the start of the profiler.
        stop_ms: end, ms from the start of the profiler.
        wait_share: share of the gap in which the step waited for data, 0 to 1.
    """

    start_ms: float
    stop_ms: float
    wait_share: float


@dataclass(frozen=True, eq=False)
class Device:
    """What one device did while the trace was taken.

    Args:
        name: "/device:GPU:0", or `CPU_NAME`.
        start_ms: start of the time considered.
        stop_ms: end of the time considered.
        busy: when the device worked.
        lanes: {kind of work: when the device did it}; kinds may overlap.
        ops: {name: (ms, runs)} within the time considered.
        waiting: when a step waited for data.
    """

    name: str
    start_ms: float
    stop_ms: float
    busy: Intervals
    lanes: dict[str, Intervals]
    ops: dict[str, tuple[float, int]]
    waiting: Intervals = field(repr=False)

    @property
    def length_ms(self) -> float:
        """Length of the time considered."""
        return self.stop_ms - self.start_ms

    @property
    def busy_share(self) -> float:
        """Share of the time in which the device worked, 0 to 1."""
        return self.busy.within(self.start_ms, self.stop_ms).total_ms / self.length_ms

    @property
    def idle_share(self) -> float:
        """Share of the time in which the device was idle, 0 to 1."""
        return 1 - self.busy_share

    @property
    def idle(self) -> Intervals:
        """When the device was idle."""
        return self.busy.gaps(self.start_ms, self.stop_ms)

    @property
    def idle_wait_share(self) -> float:
        """Share of the idle time in which the step waited for data, 0 to 1."""
        return _ratio(self.idle.overlap(self.waiting).total_ms, self.idle.total_ms)

    def gaps(self, count: int = 5) -> list[Gap]:
        """Return the longest idle times, the longest first."""
        longest = sorted(self.idle, key=lambda gap: gap[0] - gap[1])[:count]
        return [
            Gap(start, stop, self.waiting.within(start, stop).total_ms / (stop - start))
            for start, stop in longest
        ]

    def top_ops(self, count: int = 10) -> list[TracedOp]:
        """Return the ops that took the most time, the longest first."""
        total = sum(ms for ms, _ in self.ops.values())
        by_time = sorted(self.ops.items(), key=lambda item: -item[1][0])[:count]
        return [TracedOp(name, ms, _ratio(ms, total), runs) for name, (ms, runs) in by_time]


@dataclass(frozen=True, eq=False)
class Trace:
    """What `read_trace` found.

    Args:
        path: the file that was read.
        devices: the GPUs; if there was none, the CPU as TensorFlow's executor threads.
        steps: {number: (start, stop) in ms}, as marked by `tf.profiler.experimental.Trace` with
            `step_num`, which ProfileSteps and Keras's TensorBoard callback use.
        reading: when threads of tf.data worked.
    """

    path: Path
    devices: tuple[Device, ...]
    steps: dict[int, tuple[float, float]]
    reading: Intervals

    @property
    def device(self) -> Device:
        """The first device, usually the only one."""
        return self.devices[0]

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.name.startswith(GPU_PLANE)

    @property
    def waiting(self) -> Intervals:
        """When a step waited for data."""
        return self.device.waiting

    @property
    def wait_share(self) -> float:
        """Share of the time considered in which a step waited for data, 0 to 1."""
        device = self.device
        return self.waiting.within(device.start_ms, device.stop_ms).total_ms / device.length_ms

    def idle_shares(self) -> dict[int, float]:
        """Return {step: share of it in which the first device was idle, 0 to 1}."""
        idle = self.device.idle
        return {
            number: _ratio(idle.within(start, stop).total_ms, stop - start)
            for number, (start, stop) in self.steps.items()
        }

    def __repr__(self) -> str:
        lines = [f"Trace of {len(self.steps)} steps, {self.device.length_ms:,.0f} ms"]
        for device in self.devices:
            lines.append(
                f"  {device.name}: busy {device.busy_share:.0%}, idle {device.idle_share:.0%} "
                f"({device.idle_wait_share:.0%} of it waiting for data)"
            )
            longest = ", ".join(f"{gap.stop_ms - gap.start_ms:,.1f} ms" for gap in device.gaps(3))
            lines.append(f"    longest gaps: {longest or 'none'}")
            lines += [f"    {op.share:4.0%}  {op.name}" for op in device.top_ops(3)]
        return "\n".join(lines)


def read_trace(log_dir: str | os.PathLike[str]) -> Trace:
    """Return when each device worked, from a trace of TensorFlow's profiler.

    A GPU is busy while a kernel or a copy runs on one of its streams. Without a GPU, the device is
    the CPU as far as TensorFlow's executor threads show it: busy while at least one of them runs
    ops of the step. That is not the load of the processors: it does not include the threads of
    tf.data, of a loader or of Python, and an op that waits for a lock counts as busy. Times are in
    ms from the start of the profiler. Profiling slows the program down, most with many short
    events, such as those of tf.data with one row at a time.

    The time considered is from the start of the first step to the end of the last one; in a trace
    without steps, from the first to the last event of a device.

    Args:
        log_dir: folder that was given to the profiler or to TensorBoard, in which the newest trace
            is read; or an `.xplane.pb` file.

    Raises:
        FileNotFoundError: if there is no trace.
        ValueError: if the file is damaged, or the newest trace is of several hosts or shows no work
            of a device.

    Example:
        >>> import tempfile, numpy as np, tensorflow as tf
        >>> folder, matrix = tempfile.mkdtemp(), tf.ones((300, 300))
        >>> multiply = tf.function(lambda x: tf.reduce_sum(x @ x @ x))
        >>> with tf.profiler.experimental.Profile(folder):
        ...     for step in range(3):
        ...         with tf.profiler.experimental.Trace("train", step_num=step):
        ...             _ = multiply(matrix)
        >>> trace = read_trace(folder)
        >>> list(trace.steps), 0 < trace.device.busy_share < 1
        ([0, 1, 2], True)
    """
    path = newest_file(Path(log_dir))
    planes = read_planes(path, stats=(STEP, *OP_NAMES))
    host = next((plane for plane in planes if plane.name == HOST_PLANE), Plane(HOST_PLANE, []))
    everything = [event for line in host.lines for event in line.events]
    steps = {int(e.stats[STEP]): (e.start, e.stop) for e in everything if STEP in e.stats}
    waiting = _union(event for event in everything if WAITS.fullmatch(event.name))
    reading = _union(event for event in everything if READS.fullmatch(event.name))
    work = [_gpu_work(plane) for plane in planes if plane.name.startswith(GPU_PLANE)]
    work = [each for each in work if len(each.busy)] or [_executor_work(host)]
    if not len(work[0].busy):
        raise ValueError(
            f"{path} shows no work of a device; its planes are {[plane.name for plane in planes]}. "
            "Profile steps that run a tf.function, such as those of fit."
        )
    spans = list(steps.values()) or [span for each in work for span in each.busy]
    start, stop = min(span[0] for span in spans), max(span[1] for span in spans)
    devices = tuple(each.as_device(start, stop, waiting) for each in work)
    return Trace(path, devices, dict(sorted(steps.items())), reading)


class _Work(NamedTuple):
    """What a device did, before the time considered is known."""

    name: str
    busy: Intervals
    lanes: dict[str, Intervals]
    ops: list[tuple[str, Event]]

    def as_device(self, start: float, stop: float, waiting: Intervals) -> Device:
        sums: dict[str, tuple[float, int]] = {}
        for name, event in self.ops:
            if start <= event.start < stop:
                total, runs = sums.get(name, (0.0, 0))
                sums[name] = total + event.stop - event.start, runs + 1
        return Device(self.name, start, stop, self.busy, self.lanes, sums, waiting)


def _gpu_work(plane: Plane) -> _Work:
    """Return what ran on the streams of a GPU; the other lines of its plane repeat it by op."""
    events = [e for line in plane.lines if line.name.startswith("Stream") for e in line.events]
    copies = [event for event in events if COPIES.search(event.name)]
    kernels = [event for event in events if not COPIES.search(event.name)]
    ops = [(next((e.stats[n] for n in OP_NAMES if e.stats.get(n)), e.name), e) for e in events]
    lanes = {"kernels": _union(kernels), "copies": _union(copies)}
    return _Work(plane.name, _union(events), lanes, ops)


def _executor_work(host: Plane) -> _Work:
    """Return what TensorFlow's executor ran on threads of the host other than those of tf.data."""
    threads = [line for line in host.lines if not line.name.startswith("tf_data_")]
    events = [event for line in threads for event in line.events]
    busy = _union(event for event in events if event.name == EXECUTOR)
    ops = [(e.name.removeprefix(CALL), e) for e in events if OP.fullmatch(e.name)]
    return _Work(CPU_NAME, busy, {"ops": busy}, ops)


def _union(events: Iterable[Event]) -> Intervals:
    return Intervals.union([(event.start, event.stop) for event in events])


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
