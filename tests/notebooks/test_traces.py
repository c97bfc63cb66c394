"""read_trace says when a device worked and when a step waited for data."""

import numpy as np
import pytest
import tensorflow as tf
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from notebooks.traces import (
    CPU,
    NATIVE,
    WAITING,
    ProfileSteps,
    draw_timeline,
    read_trace,
)
from tests.support.training import model_of, slow_dataset, slow_loader, write_rows


@pytest.mark.parametrize("by_loader", [False, True])
def test_a_device_is_idle_while_its_step_waits_for_data(tmp_path, by_loader):
    data = slow_loader(write_rows(tmp_path)) if by_loader else slow_dataset(8, 0.1)
    model_of().fit(
        data, callbacks=[ProfileSteps(tmp_path / "log", 2, 8)], shuffle=by_loader, verbose=0
    )
    trace = read_trace(tmp_path)
    assert list(trace.steps) == list(range(2, 9))
    assert min(trace.idle_share, trace.idle_wait_share) > 0.5
    assert sum(op.share for op in trace.ops) == pytest.approx(1)
    assert not (by_loader and list(trace.reading))
    assert trace.on_gpu == bool(tf.config.list_physical_devices("GPU")) != (trace.name == CPU)


def write_trace(folder, planes):
    """Write an XSpace file: {plane: {line: [(name, start ms, stop ms, {stat: value})]}}."""
    space = xplane_pb2.XSpace()

    def number(table, name):
        table[len(table) + 1].name = name
        return len(table)

    for plane_name, lines in planes.items():
        plane = space.planes.add(name=plane_name)
        for line_name, entries in lines.items():
            line = plane.lines.add(name=line_name, timestamp_ns=1_000_000)  # 1 ms
            for name, start, stop, values in entries:
                event = line.events.add(metadata_id=number(plane.event_metadata, name))
                event.offset_ps = int((start - 1) * 1e9)
                event.duration_ps = int((stop - start) * 1e9)
                for stat, value in values.items():
                    entry = event.stats.add(metadata_id=number(plane.stat_metadata, stat))
                    if isinstance(value, str):
                        entry.ref_value = number(plane.stat_metadata, value)
                    else:
                        entry.int64_value = value
    path = folder / "plugins" / "profile" / "1" / "a.xplane.pb"
    path.parent.mkdir(parents=True)
    path.write_bytes(space.SerializeToString())


def test_a_gpu_is_busy_while_kernels_or_copies_run_and_is_drawn_so(tmp_path):
    """Two steps of 50 ms: 20 of waiting, 5 of copying, 15 of kernels, two of them at once for 5."""
    matmul = {"tf_op": "top/dense/MatMul:MatMul"}
    steps = [("train", begin, begin + 50, {"step_num": n}) for n, begin in enumerate((10, 60))]
    waits = [("IteratorGetNextOp::DoCompute", t, t + 20, {}) for t in (10, 60)]
    copies = [("MemcpyH2D", t + 20, t + 25, {}) for t in (10, 60)]
    kernels = [("gemm", t + 25, t + 35, matmul) for t in (10, 60)]
    others = [("gemm", t + 30, t + 40, matmul) for t in (10, 60)]
    gpu = {"Stream #13(Compute)": kernels, "Stream #14": copies + others, "Steps": steps}
    host = {"python": steps, "tf_data_iterator_get_next/1": waits}
    write_trace(tmp_path, {"/host:CPU": host, "/device:GPU:0": gpu})
    trace = read_trace(tmp_path)
    assert trace.steps == {0: (10.0, 60.0), 1: (60.0, 110.0)}
    assert (trace.idle_share, trace.idle_wait_share) == pytest.approx((0.6, 40 / 60))
    assert trace.ops[0] == (matmul["tf_op"], pytest.approx(40), pytest.approx(0.8), 4)
    assert trace.ops[1] == ("MemcpyH2D", pytest.approx(10), pytest.approx(0.2), 2)
    axes = Figure().subplots()
    draw_timeline(trace, 6, axes)
    shades = [to_hex(row.get_facecolor()) for row in axes.collections]
    assert shades == [NATIVE, WAITING]
    rows = [row.get_paths() for row in axes.collections]  # kernels and copies, waiting for data
    widths = [sum(np.ptp(path.vertices[:, 0]) for path in paths) for paths in rows]
    assert widths == pytest.approx([40, 40], abs=0.5)


def test_a_folder_without_a_trace_of_a_device_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no trace"):
        read_trace(tmp_path)
    write_trace(tmp_path, {"/host:CPU": {"python": [("f", 1, 2, {})]}})
    with pytest.raises(ValueError, match=r"a\.xplane\.pb shows no work of a device"):
        read_trace(tmp_path)
