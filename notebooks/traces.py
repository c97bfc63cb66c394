"""ProfileSteps traces steps of a `fit`; read_trace: when a device worked in it; draw_timeline.

`tf.profiler.experimental` takes a trace of any code. TensorBoard's profile plugin shows much more
of it; here are the numbers and the picture that the lessons explain.

Source: https://github.com/openxla/xla/blob/main/third_party/tsl/tsl/profiler/protobuf/xplane.proto
"""

import contextlib
import os
from pathlib import Path

import keras
import numpy as np
import pandas as pd

TEXT = "#757f89"  # mid-tones: readable on white and on black
LOADER, NATIVE, WAITING = "#2f9e75", "#7a8fa6", "#d0605e"
WAIT, READ = "waiting for data", "tf.data's threads"
GPU, CPU = "/device:GPU:", "CPU (TensorFlow's executor threads)"
EXECUTOR = "ExecutorState::Process"  # a thread runs ops, one after the other
# A step waits for tf.data, or for a loader (an event that `keras_bridge` records).
WAITS = r"IteratorGetNext\w*::DoCompute|KerasSequenceLoader::next"
READS = r"(?!Prefetch)\w+Produce"  # a thread of tf.data makes an element
OP = r"^(?:StatefulPartitionedCall/)?([^:]+:[A-Za-z_]\w*)$"  # "dense/MatMul:MatMul"
SPAN, STATS = ["start", "stop"], ["step_num", "tf_op"]


class ProfileSteps(keras.callbacks.Callback):
    """Traces some steps of a `fit`, for TensorBoard's profile plugin.

    Keras's own TensorBoard callback can trace too (`profile_batch`), but in Keras 3 it leaves out
    the mark that tells the plugin what a step is. Starting the profiler takes up to seconds in
    which readers fill their buffers, so the first steps of a trace wait less than the others.

    Args:
        log_dir: folder for the trace, one per `fit`.
        first: first step to trace, at least 1, counted over all epochs of a `fit`.
        last: last step to trace; if `fit` ends earlier, the trace ends with it.
    """

    def __init__(self, log_dir, first, last):
        super().__init__()
        self.log_dir, self.first, self.last = os.fspath(log_dir), first, last
        self._profiler, self._mark = contextlib.ExitStack(), contextlib.ExitStack()

    def on_train_begin(self, logs=None):
        """Start to count the steps."""
        self._step = 0

    def on_train_batch_begin(self, batch, logs=None):
        """Start the profiler before the first step to trace, and mark the start of each step."""
        from tensorflow import profiler

        self._step += 1
        if self._step == self.first:
            profiler.experimental.start(self.log_dir)
            self._profiler.callback(profiler.experimental.stop)
        if self.first <= self._step <= self.last:
            mark = profiler.experimental.Trace("train", step_num=self._step, _r=1)
            self._mark.enter_context(mark)

    def on_train_batch_end(self, batch, logs=None):
        """Mark the end of the step, and stop the profiler after the last step to trace."""
        self._mark.close()
        if self._step == self.last:
            self._profiler.close()

    def on_train_end(self, logs=None):
        """Stop the profiler if it is still running."""
        self._profiler.close()


class Intervals:
    """A set of times, as disjoint intervals in ascending order.

    Args:
        pairs: (start, stop) in ms, in any order; they may overlap.

    Example:
        >>> busy = Intervals([(0, 2), (1, 3), (5, 6)])
        >>> list(busy), busy.total_ms, list(busy.overlap(Intervals([(2, 5.5)])))
        ([(0.0, 3.0), (5.0, 6.0)], 4.0, [(2.0, 3.0), (5.0, 5.5)])
    """

    def __init__(self, pairs):
        spans = np.array(list(pairs), float).reshape(-1, 2)
        spans = spans[spans[:, 1] > spans[:, 0]]
        starts, stops = spans[np.argsort(spans[:, 0])].T
        reach = np.maximum.accumulate(stops)  # of all that began before
        first = np.r_[True, starts[1:] > reach[:-1]][: len(starts)]
        self.spans = np.stack([starts[first], reach[np.roll(first, -1)]], 1)
        self.total_ms = float(np.diff(self.spans).sum())

    def within(self, start, stop):
        """Return the part between two times, ms."""
        return Intervals(self.spans.clip(start, stop))

    def gaps(self, start=-np.inf, stop=np.inf):
        """Return what is missing between two times, ms."""
        edges = np.r_[start, self.spans.clip(start, stop).ravel(), stop]
        return Intervals(edges.reshape(-1, 2))

    def overlap(self, other):
        """Return the times that are in both: what is missing in neither."""
        return Intervals([*self.gaps(), *other.gaps()]).gaps()

    def __iter__(self):
        return map(tuple, self.spans.tolist())


class Trace:
    """What a device did from the first step to the last one, in ms from the start of the profiler.

    Args:
        name: "/device:GPU:0", or `CPU`.
        steps: {number: (start, stop)}.
        lanes: {kind of work: when it was done}: "ops", or "kernels" (and copies) of a GPU; when a
            step waited for data; when threads of tf.data worked.
        ops: what all runs of each op took, the longest first: tuples (name, total_ms, share, runs).
            On a GPU, the name is that of the kernel if the trace names no op for it.

    Attributes:
        on_gpu: whether the device is a GPU.
        start_ms: start of the time considered; stop_ms and length_ms likewise.
        busy: when the device worked; idle, when it did not.
        waiting: when a step waited for data; reading, when threads of tf.data worked.
        idle_share: share of the time in which the device was idle, 0 to 1.
        idle_wait_share: share of the idle time in which a step waited for data, 0 to 1.
    """

    def __init__(self, name, steps, lanes, ops):
        self.name, self.steps, self.lanes, self.ops = name, steps, lanes, ops
        self.on_gpu = name.startswith(GPU)
        self.start_ms = min(start for start, _ in steps.values())
        self.stop_ms = max(stop for _, stop in steps.values())
        self.length_ms = self.stop_ms - self.start_ms
        inside = {kind: lane.within(self.start_ms, self.stop_ms) for kind, lane in lanes.items()}
        self.waiting, self.reading = inside.pop(WAIT), inside.pop(READ)
        self.busy = Intervals(span for lane in inside.values() for span in lane)
        self.idle = self.busy.gaps(self.start_ms, self.stop_ms)
        self.idle_share = self.idle.total_ms / self.length_ms
        self.idle_wait_share = self.idle.overlap(self.waiting).total_ms / (self.idle.total_ms or 1)


def read_trace(log_dir):
    """Return when the device worked, from the newest trace of TensorFlow's profiler in a folder.

    A GPU is busy while a kernel or a copy runs on one of its streams; of several, the first is
    read. Without a GPU, the device is the CPU as far as TensorFlow's executor threads show it: busy
    while at least one of them runs ops of the step. That is not the load of the processors: it does
    not include the threads of tf.data, of a loader or of Python, and an op that waits for a lock
    counts as busy. Profiling slows the program down, most with many short events, such as those of
    tf.data with one row at a time. In a trace without marked steps, all of it is step 0.

    Raises:
        ValueError: if there is no trace, or it shows no work of a device.
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    files = sorted(Path(log_dir).glob("**/plugins/profile/*/*.xplane.pb"), key=os.path.getmtime)
    if not files:
        raise ValueError(f"no trace (plugins/profile/*/*.xplane.pb) in {log_dir}: take one first")
    planes = {p.name: p for p in xplane_pb2.XSpace.FromString(files[-1].read_bytes()).planes}
    host = _events(planes.get("/host:CPU", xplane_pb2.XPlane()))
    gpu = next((name for name in sorted(planes) if name.startswith(GPU)), None)
    work = _events(planes[gpu]) if gpu else host[:0]
    # The lines of a GPU other than its streams repeat what ran there by op.
    work = work[work["line"].str.startswith("Stream")]
    if on_gpu := len(work) > 0:
        found = {"kernels": work}
        work = work.assign(op=work["tf_op"].fillna(work["name"]))
    else:
        work = host[~host["line"].str.startswith("tf_data_")]
        found = {"ops": work[work["name"] == EXECUTOR]}
        work = work.assign(op=work["name"].str.extract(OP)).dropna(subset="op")
    if not len(work):
        raise ValueError(f"{files[-1]} shows no work of a device: profile steps of a tf.function")
    found |= {k: host[host["name"].str.fullmatch(p)] for k, p in ((WAIT, WAITS), (READ, READS))}
    lanes = {kind: Intervals(events[SPAN].to_numpy()) for kind, events in found.items()}
    marked = host.dropna(subset="step_num").sort_values("step_num")
    steps = {int(e.step_num): (e.start, e.stop) for e in marked.itertuples()}
    steps = steps or {0: (work["start"].min(), work["stop"].max())}
    by_op = (work["stop"] - work["start"]).groupby(work["op"].rename("name"))
    sums = by_op.agg(total_ms="sum", runs="count").sort_values("total_ms", ascending=False)
    sums.insert(1, "share", sums["total_ms"] / sums["total_ms"].sum())
    traced = list(sums.reset_index().itertuples(index=False, name="TracedOp"))
    return Trace(gpu if on_gpu else CPU, steps, lanes, traced)


def _events(plane):
    """Return all events of a device or the host, with the stats that are read here.

    A line is a thread or a GPU stream; times are in ms from the start of the profiler.
    """
    names = {key: entry.name for key, entry in plane.event_metadata.items()}
    stat_names = {key: entry.name for key, entry in plane.stat_metadata.items()}
    wanted = {key: name for key, name in stat_names.items() if name in STATS}
    rows = []
    for line in plane.lines:
        for event in line.events:
            stats = {
                wanted[s.metadata_id]: s.str_value or stat_names.get(s.ref_value) or s.int64_value
                for s in event.stats
                if s.metadata_id in wanted
            }
            start = line.timestamp_ns / 1e6 + event.offset_ps / 1e9
            times = {"start": start, "stop": start + event.duration_ps / 1e9}
            rows.append({"line": line.name, "name": names[event.metadata_id], **times, **stats})
    return pd.DataFrame(rows, columns=["line", "name", *SPAN, *STATS])


def draw_timeline(trace, steps, axes):
    """Draw when the device worked and when the step waited for data into matplotlib axes.

    There is a row per kind of work, one for waiting for data, and one for tf.data's threads; dashed
    lines mark the steps. Gaps shorter than 1 / 2000 of the picture are drawn as work.

    Args:
        trace: from `read_trace`.
        steps: number of steps to draw, the last ones of the trace, at least 1 (before the first
            ones tf.data may have read ahead while the profiler started).
        axes: matplotlib axes, such as those of `pyplot.subplots`.
    """
    shown = list(trace.steps.items())[-steps:]
    start, stop = shown[0][1][0], shown[-1][1][1]
    span = stop - start
    colours = {"ops": NATIVE, "kernels": NATIVE, WAIT: WAITING, READ: NATIVE}
    lanes = {kind: trace.lanes[kind] for kind in colours if list(trace.lanes.get(kind, ()))}
    for row, (kind, lane) in enumerate(lanes.items()):
        bars = Intervals((begin, end + span / 2000) for begin, end in lane.within(start, stop))
        lengths = [(begin - start, end - begin) for begin, end in bars]
        axes.broken_barh(lengths, (row - 0.35, 0.7), color=colours[kind], linewidth=0)
    for number, (begin, end) in shown:
        axes.axvline(begin - start, color=TEXT, linewidth=0.8, linestyle=(0, (4, 3)))
        if end - begin > span / 15:  # wide enough for its number
            place = {"xy": (begin - start, 1), "xycoords": ("data", "axes fraction")}
            axes.annotate(f" step {number}", **place, va="bottom", color=TEXT, fontsize=9)
    axes.set_yticks(range(len(lanes)), list(lanes))
    axes.set(xlim=(0, span), ylim=(len(lanes) - 0.5, -0.5), xlabel="time, ms")
    axes.xaxis.label.set_color(TEXT)
    axes.tick_params(colors=TEXT, length=0)
    axes.spines[:].set_visible(False)
