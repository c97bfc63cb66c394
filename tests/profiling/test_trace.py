"""read_trace says when a device worked and when a step waited for data.

Some traces are those of the profiler at work on the CPU. What a GPU's trace would hold is written
into a file of the same format, with times that are known.
"""

import re
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from tutorlib.profiling import ProfileSteps, read_trace
from tutorlib.profiling.trace import CPU_NAME

from tests.support.traces import profiled, write_trace
from tests.support.training import loader_of, model_of, slow_loader

# ---- real traces --------------------------------------------------------------------------------


def test_a_device_is_idle_while_its_step_waits_for_tf_data(starved):
    assert len(starved.steps) == 7
    assert starved.device.idle_share > 0.5
    assert starved.device.idle_wait_share > 0.5
    assert starved.wait_share > 0.5
    assert starved.device.busy_share + starved.device.idle_share == pytest.approx(1)
    shares = starved.idle_shares()
    assert list(shares) == list(starved.steps)
    assert all(0 <= share <= 1 for share in shares.values())
    longest = starved.device.gaps(3)
    lengths = [gap.stop_ms - gap.start_ms for gap in longest]
    assert lengths == sorted(lengths, reverse=True)
    assert longest[0].wait_share > 0.5


def test_waiting_for_a_loader_is_in_the_trace(folder, tmp_path):
    model_of().fit(slow_loader(folder), callbacks=[ProfileSteps(tmp_path, 2, 8)], verbose=0)
    trace = read_trace(tmp_path)
    assert trace.wait_share > 0.5
    assert trace.device.idle_wait_share > 0.5


def test_without_a_gpu_the_device_is_named_as_the_cpu(starved):
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("there is a GPU")
    assert not starved.on_gpu
    assert starved.device.name == CPU_NAME
    assert "executor threads" in repr(starved)


def test_a_heavy_model_keeps_the_device_busy(tmp_path):
    x = np.ones((64, 1), "float32")
    dataset = tf.data.Dataset.from_tensors(({"x": x}, x)).repeat(8)
    trace = profiled(dataset, model_of(2048, 2048, 2048), tmp_path, 8)
    assert trace.device.busy_share > 0.5
    assert trace.wait_share < 0.3
    shares = [op.share for op in trace.device.top_ops(1000)]
    assert sum(shares) == pytest.approx(1)
    assert shares == sorted(shares, reverse=True)
    best = trace.device.top_ops(5)
    assert any("MatMul" in op.name for op in best)
    assert all(op.runs >= 1 and op.total_ms > 0 for op in best)


def test_a_trace_of_keras_own_callback_can_be_read(folder, tmp_path):
    callback = keras.callbacks.TensorBoard(tmp_path, profile_batch=(3, 6), write_graph=False)
    model_of(256).fit(loader_of(folder), callbacks=[callback], verbose=0)
    trace = read_trace(tmp_path)
    assert list(trace.steps) == [2, 3, 4, 5]
    assert 0 < trace.device.busy_share < 1
    assert len(trace.waiting)  # for the loader


def test_steps_are_counted_over_epochs_and_the_profiler_stops_with_fit(folder, tmp_path):
    model, loader = model_of(), loader_of(folder)
    model.fit(loader, epochs=2, callbacks=[ProfileSteps(tmp_path / "a", 7, 10)], verbose=0)
    assert list(read_trace(tmp_path / "a").steps) == [7, 8, 9, 10]
    model.fit(loader, callbacks=[ProfileSteps(tmp_path / "b", 7, 10)], verbose=0)
    assert list(read_trace(tmp_path / "b").steps) == [7, 8]
    model.fit(loader, callbacks=[ProfileSteps(tmp_path / "c", 9, 10)], verbose=0)
    assert not (tmp_path / "c").exists()
    with pytest.raises(ValueError, match="1 <= first <= last, got first=0, last=3"):
        ProfileSteps(tmp_path, 0, 3)


def test_tensorboards_plugin_finds_the_steps(starved):
    """The plugin knows a step by a mark that Keras's own callback leaves out."""
    convert = pytest.importorskip("xprof.convert.raw_to_tool_data")
    page, _ = convert.xspace_to_tool_data([str(starved.path)], "overview_page", {})
    page = page if isinstance(page, str) else page.decode()
    assert "No step marker observed" not in page
    average = float(re.search(r'"steptime_ms_average": *"([\d.]+)"', page)[1])
    lengths = [stop - start for start, stop in starved.steps.values()]
    assert average == pytest.approx(np.mean(lengths), rel=0.1)


def test_the_newest_trace_is_read(tmp_path):
    multiply = tf.function(lambda x: tf.reduce_sum(x @ x))
    for count in (2, 3):
        with tf.profiler.experimental.Profile(str(tmp_path)):
            for step in range(count):
                with tf.profiler.experimental.Trace("train", step_num=step):
                    multiply(tf.ones((200, 200)))
        time.sleep(1.1)  # the folders are named by the second
    trace = read_trace(tmp_path)
    assert len(trace.steps) == 3
    assert repr(read_trace(trace.path)) == repr(trace)


# ---- files whose times are known ----------------------------------------------------------------


def test_a_gpu_is_busy_while_kernels_or_copies_run(gpu_trace):
    device = gpu_trace.device
    assert gpu_trace.on_gpu
    assert device.name == "/device:GPU:0"
    assert gpu_trace.steps == {0: (10.0, 60.0), 1: (60.0, 110.0)}
    # 5 ms of copying and 15 ms of kernels (two at the same time for 5) of each 50 ms.
    assert device.busy_share == pytest.approx(0.4)
    assert gpu_trace.idle_shares() == pytest.approx({0: 0.6, 1: 0.6})
    assert gpu_trace.wait_share == pytest.approx(0.4)
    assert device.idle_wait_share == pytest.approx(40 / 60)
    assert device.lanes["kernels"].total_ms == pytest.approx(30)
    assert device.lanes["copies"].total_ms == pytest.approx(10)


def test_a_gap_says_which_share_of_it_was_waiting_for_data(gpu_trace):
    gaps = gpu_trace.device.gaps()
    assert [(gap.start_ms, gap.stop_ms) for gap in gaps] == [(50, 80), (10, 30), (100, 110)]
    assert [gap.wait_share for gap in gaps] == pytest.approx([20 / 30, 1, 0])


def test_kernels_are_summed_by_the_op_they_belong_to(gpu_trace):
    multiply, copy = gpu_trace.device.top_ops()
    assert multiply == ("top/dense/MatMul:MatMul", pytest.approx(40), pytest.approx(0.8), 4)
    assert copy == ("MemcpyH2D", pytest.approx(10), pytest.approx(0.2), 2)


def test_each_gpu_is_a_device(tmp_path):
    kernels = {n: [("k", 10, 10 + n, {})] for n in (5, 10)}
    planes = {f"/device:GPU:{i}": {"Stream #1": kernels[n]} for i, n in enumerate((5, 10))}
    trace = read_trace(write_trace(tmp_path / "two.xplane.pb", planes))
    assert [device.busy_share for device in trace.devices] == pytest.approx([0.5, 1.0])
    assert not trace.steps


def test_files_without_a_readable_trace_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"ProfileSteps\(log_dir, 10, 20\)"):
        read_trace(tmp_path)
    damaged = tmp_path / "damaged.xplane.pb"
    damaged.write_bytes(b"\xff" * 100)
    with pytest.raises(ValueError, match=r"damaged\.xplane\.pb is not a complete XSpace file"):
        read_trace(damaged)
    idle = write_trace(tmp_path / "idle.xplane.pb", {"/host:CPU": {"python": [("f", 1, 2, {})]}})
    with pytest.raises(
        ValueError, match=r"shows no work of a device; its planes are \['/host:CPU'\]"
    ):
        read_trace(idle)
    run = tmp_path / "plugins" / "profile" / "1"
    for host in ("a", "b"):
        write_trace(run / f"{host}.xplane.pb", {})
    with pytest.raises(ValueError, match=r"several hosts: give one of the files \['a\.xplane"):
        read_trace(tmp_path)
