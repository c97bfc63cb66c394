"""read_trace: what TensorFlow's profiler wrote, as times in which a device worked or did not.

The profiler is `tf.profiler.experimental`; `ProfileSteps` (`recording.py`) uses it in `fit`.
Does not belong here: the files (`xspace.py`), pictures (`timeline.py`).
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
OP_NAMES = ("tf_op", "hlo_op")  # stats of a kernel that say which op it belongs to
EXECUTOR = "ExecutorState::Process"  # a thread runs ops, one after the other
OP = re.compile(r"[^:]+:[A-Za-z_]\w*")  # "top_mlp/dense/MatMul:MatMul"
CALL = "StatefulPartitionedCall/"
# A step waits for tf.data, or for a loader (`fit_bridge`).
WAITS = re.compile(r"IteratorGetNext\w*::DoCompute|KerasSequenceLoader::next")
READS = re.compile(r"(?!Prefetch)\w+Produce")  # a thread of tf.data makes an element
COPIES = re.compile("memcpy|memset", re.IGNORECASE)


class TracedOp(NamedTuple):
    """What one op of the model took on a device, all its runs together.

    Args:
        name: of the op, or on a GPU of the kernel where the trace has no op for it.
        total_ms: time in all runs; on the CPU of all threads together.
        share: of the time of all ops, 0 to 1.
        runs: how often it ran.
    """

    name: str
    total_ms: float
    share: float
    runs: int


class Gap(NamedTuple):
    """A stretch of time in which a device did nothing.

    Args:
        start_ms: when it began.
        stop_ms: when it ended.
        waiting: the share of it in which the step waited for data, 0 to 1.
    """

    start_ms: float
    stop_ms: float
    waiting: float


@dataclass(frozen=True, eq=False)
class Device:
    """What one device did while the trace was taken.

    Args:
        name: "/device:GPU:0", or `CPU_NAME`.
        start_ms: begin of the time that is looked at.
        stop_ms: its end.
        busy: when it worked.
        lanes: {name: Intervals}: what it worked at, side by side.
        ops: {name: (ms, runs)} within that time.
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
    def busy_share(self) -> float:
        """Share of the time in which the device did something, 0 to 1."""
        return self.busy.within(self.start_ms, self.stop_ms).total_ms / self._length_ms

    @property
    def idle_share(self) -> float:
        """Share of the time in which it did nothing, 0 to 1."""
        return 1 - self.busy_share

    @property
    def idle(self) -> Intervals:
        """When it did nothing."""
        return self.busy.gaps(self.start_ms, self.stop_ms)

    @property
    def idle_waiting_share(self) -> float:
        """Share of its idle time in which the step waited for data, 0 to 1."""
        return _ratio(self.idle.overlap(self.waiting).total_ms, self.idle.total_ms)

    def gaps(self, count: int = 5) -> list[Gap]:
        """Return the longest stretches in which it did nothing, the longest first."""
        longest = sorted(self.idle, key=lambda gap: gap[0] - gap[1])[:count]
        return [
            Gap(start, stop, self.waiting.within(start, stop).total_ms / (stop - start))
            for start, stop in longest
        ]

    def top_ops(self, count: int = 10) -> list[TracedOp]:
        """Return the ops that took longest, the longest first."""
        total = sum(ms for ms, _ in self.ops.values())
        by_time = sorted(self.ops.items(), key=lambda item: -item[1][0])[:count]
        return [TracedOp(name, ms, _ratio(ms, total), runs) for name, (ms, runs) in by_time]

    @property
    def _length_ms(self) -> float:
        return self.stop_ms - self.start_ms


@dataclass(frozen=True, eq=False)
class Trace:
    """What `read_trace` found.

    Args:
        path: the file that was read.
        devices: the GPUs; or, where there was none, the CPU as TensorFlow's executor threads.
        steps: {number: (start, stop) in ms}, as marked by `tf.profiler.experimental.Trace` with
            `step_num`, which ProfileSteps and Keras's TensorBoard callback do.
        waiting: when a step waited for data.
        reading: when threads of tf.data worked.
    """

    path: Path
    devices: tuple[Device, ...]
    steps: dict[int, tuple[float, float]]
    waiting: Intervals
    reading: Intervals

    @property
    def device(self) -> Device:
        """The first device, and mostly the only one."""
        return self.devices[0]

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.name.startswith(GPU_PLANE)

    @property
    def waiting_share(self) -> float:
        """Share of the time looked at in which a step waited for data, 0 to 1."""
        start, stop = self.device.start_ms, self.device.stop_ms
        return self.waiting.within(start, stop).total_ms / (stop - start)

    def idle_shares(self) -> dict[int, float]:
        """Return {step: share of it in which the first device did nothing, 0 to 1}."""
        idle = self.device.idle
        return {
            number: _ratio(idle.within(start, stop).total_ms, stop - start)
            for number, (start, stop) in self.steps.items()
        }

    def __repr__(self) -> str:
        length = self.device.stop_ms - self.device.start_ms
        lines = [f"Trace of {len(self.steps)} steps, {length:,.0f} ms"]
        for device in self.devices:
            lines.append(
                f"  {device.name}: busy {device.busy_share:.0%}, idle {device.idle_share:.0%}; of "
                f"the idle time {device.idle_waiting_share:.0%} waiting for data"
            )
            longest = ", ".join(f"{gap.stop_ms - gap.start_ms:,.1f} ms" for gap in device.gaps(3))
            lines.append(f"    longest gaps: {longest or 'none'}")
            lines += [f"    {op.share:4.0%}  {op.name}" for op in device.top_ops(3)]
        return "\n".join(lines)


def read_trace(log_dir: str | os.PathLike[str]) -> Trace:
    """Return what a trace of TensorFlow's profiler says about when each device worked.

    A GPU is busy while a kernel or a copy runs on one of its streams. Without a GPU the device is
    the CPU, as far as TensorFlow's executor threads show it: busy while at least one of them runs
    ops of the step. That is not the processors' load: tf.data's threads, a loader's threads and
    Python are not in it, and an op that is waiting for a lock would count as busy. Times are in ms
    from the start of the profiler; taking the trace itself costs the program time, most where many
    short events are recorded, as in tf.data with one row at a time.

    Shares are of the time from the begin of the first step to the end of the last one; where the
    trace has no steps, from the first to the last event of the device.

    Args:
        log_dir: the folder that was given to the profiler or to TensorBoard (of several traces in
            it, the newest is read), or one `.xplane.pb` file.

    Raises:
        FileNotFoundError: if there is no trace.
        ValueError: if the newest trace is of several hosts, or holds no work of a device.

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
            f"{path} holds no work of a device; its planes are {[plane.name for plane in planes]}. "
            "Profile steps that run a tf.function, such as those of fit."
        )
    spans = list(steps.values()) or [span for each in work for span in each.busy]
    start, stop = min(span[0] for span in spans), max(span[1] for span in spans)
    devices = tuple(each.as_device(start, stop, waiting) for each in work)
    return Trace(path, devices, dict(sorted(steps.items())), waiting, reading)


class _Work(NamedTuple):
    """What is known of a device before it is known which time is looked at."""

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
    """Return what ran on the streams of a GPU; other lines of its plane repeat it, by op."""
    events = [e for line in plane.lines if line.name.startswith("Stream") for e in line.events]
    copies = [event for event in events if COPIES.search(event.name)]
    kernels = [event for event in events if not COPIES.search(event.name)]
    ops = [(next((e.stats[n] for n in OP_NAMES if e.stats.get(n)), e.name), e) for e in events]
    lanes = {"kernels": _union(kernels), "copies": _union(copies)}
    return _Work(plane.name, _union(events), lanes, ops)


def _executor_work(host: Plane) -> _Work:
    """Return what TensorFlow's executor ran on the threads of the host, those of tf.data aside."""
    threads = [line for line in host.lines if not line.name.startswith("tf_data_")]
    events = [event for line in threads for event in line.events]
    busy = _union(event for event in events if event.name == EXECUTOR)
    ops = [(e.name.removeprefix(CALL), e) for e in events if OP.fullmatch(e.name)]
    return _Work(CPU_NAME, busy, {"ops": busy}, ops)


def _union(events: Iterable[Event]) -> Intervals:
    return Intervals.union([(event.start, event.stop) for event in events])


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
