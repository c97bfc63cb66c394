"""Profiling: a slow loader and a heavy model are told apart, and traces say when a device worked.

Traces are real ones, of the profiler at work on the CPU; what a GPU's would hold is written into a
file of the same format, with times that are known.
"""

import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import keras
import matplotlib
import numpy as np
import pytest
import tensorflow as tf
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tutorlib.chunk import Chunk, Ragged
from tutorlib.layers import DenseFeatures, keras_inputs
from tutorlib.loader import KerasSequenceLoader
from tutorlib.memory import usable_cores
from tutorlib.parquet import ParquetSink
from tutorlib.profiling import (
    Intervals,
    ProfileSteps,
    cores_awake,
    diagnose,
    draw_timeline,
    read_trace,
)
from tutorlib.profiling.trace import CPU_NAME

ROWS, BATCH = 512, 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Parquet files of 8 row groups, with numbers and lists of ids."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 5, ROWS)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    x = rng.standard_normal(ROWS).astype("float32")
    columns = {"g": Ragged(rng.integers(0, 9, offsets[-1]), offsets), "x": x}
    folder = tmp_path_factory.mktemp("data")
    with ParquetSink(folder / "train.parquet", row_group_rows=64) as sink:
        sink.write(Chunk({**columns, "label": (x > 0).astype("float32")}))
    return folder


def loader_of(folder, batch_size=BATCH, **options):
    arguments = {"cat_names": [], "cont_names": ["x"], "label_names": ["label"], **options}
    return KerasSequenceLoader(folder / "train.parquet", batch_size, **arguments)


def slow_loader(folder):
    """A loader that takes a quarter of a second for each row group."""

    def slowly(chunk):
        time.sleep(0.25)
        return chunk

    sizes = {"reader_kwargs": {"threads": 1}, "buffer_size": 64, "parts_per_chunk": 1}
    return loader_of(folder, **sizes).map(slowly)


def model_of(*hidden, dropout=0.0, **options):
    """A model of x with hidden layers."""
    keras.utils.set_random_seed(0)
    inputs = {"x": keras.Input((1,), name="x")}
    y = inputs["x"]
    for width in hidden:
        y = keras.layers.Dense(width, "relu")(y)
    y = keras.layers.Dropout(dropout)(y)
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(y))
    model.compile("adam", "binary_crossentropy", **options)
    return model


# --- diagnose -----------------------------------------------------------------------------------


def test_a_slow_loader_is_what_bounds_a_small_model(folder):
    found = diagnose(model_of(), slow_loader(folder))
    assert found.bound == "input"
    assert found.wait_share > 0.5
    assert found.gain_without_input > 2
    assert found.gain_without_model < 2
    assert found.training.steps == found.scatter_plan.steps == ROWS // BATCH
    assert found.training.rows == ROWS
    assert "The data is what bounds this training." in str(found)
    assert found.training.wait_s <= found.training.elapsed_s
    assert 0.25 <= found.training.first_wait_s <= found.training.wait_s


def test_a_heavy_model_is_what_bounds_a_fast_loader(folder):
    found = diagnose(model_of(2048, 2048, 2048), loader_of(folder))
    assert found.bound == "model"
    assert found.gain_without_model > 2
    assert found.gain_without_input < 2
    assert repr(found).startswith("The model is what bounds this training.")


def test_a_slow_dataset_is_told_too():
    def rows():
        for _ in range(4):
            time.sleep(0.25)
            yield {"x": np.ones((32, 1), "float32")}, np.ones((32, 1), "float32")

    kind = {"x": tf.TensorSpec((None, 1))}, tf.TensorSpec((None, 1))
    dataset = tf.data.Dataset.from_generator(rows, output_signature=kind)
    assert diagnose(model_of(), dataset).bound == "input"
    endless = diagnose(model_of(), dataset.repeat(), max_seconds=1)
    assert endless.bound == "input"
    assert endless.training.elapsed_s < 30


def all_values(model):
    variables = [*model.variables, *model.optimizer.variables]
    return {v.path: keras.ops.convert_to_numpy(v).copy() for v in variables}


def same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


def rows_of(loader):
    return np.concatenate([inputs["x"] for inputs, _ in loader])


def test_it_leaves_model_optimizer_and_loader_as_they_were(folder):
    model, loader, other = model_of(8, dropout=0.5), loader_of(folder), loader_of(folder)
    history = model.fit(loader, verbose=0)
    other.set_epoch(1)
    for _ in range(3):  # stop in the middle of an epoch
        batches = iter(loader)
        next(batches)
    before, state = all_values(model), loader.state_dict()
    assert len(before) > 8  # weights, both moments, learning rate, a random state
    diagnose(model, loader, max_seconds=1)
    assert same(before, all_values(model))
    assert int(model.optimizer.iterations) == len(loader)
    assert model.history is history
    assert loader.state_dict() == state
    assert np.array_equal(rows_of(loader), rows_of(other))
    assert loader.epoch == 2


def test_it_leaves_the_place_of_a_loader_that_was_restored(folder):
    loader = loader_of(folder)
    batches = iter(loader)
    next(batches)
    again = loader_of(folder)
    again.load_state_dict(loader.state_dict())
    diagnose(model_of(), again, max_seconds=1)
    assert len(rows_of(again)) == ROWS - BATCH


def test_it_puts_the_model_back_if_the_data_fails(folder):
    calls = []

    def fails(chunk):
        calls.append(chunk)
        if len(calls) > 12:
            raise ValueError("no more")
        return chunk

    sizes = {"reader_kwargs": {"threads": 1}, "buffer_size": 64, "parts_per_chunk": 1}
    model, loader = model_of(8), loader_of(folder, **sizes).map(fails)
    model.optimizer.build(model.trainable_variables)
    before = all_values(model)
    with pytest.raises(ValueError, match="no more"):
        diagnose(model, loader)
    assert same(before, all_values(model))


def test_a_model_that_is_not_built_is_built_and_keeps_its_first_weights(folder):
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1, activation="sigmoid")

        def call(self, inputs):
            return self.dense(inputs["x"])

    model = Own()
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    diagnose(model, loader_of(folder), max_seconds=1)
    assert model.built
    assert np.array_equal(model.dense.bias, [0.0])
    assert int(model.optimizer.iterations) == 0
    assert all(np.all(keras.ops.convert_to_numpy(m.count) == 0) for m in model.metrics[:1])
    assert model.evaluate(loader_of(folder), verbose=0)


def test_lists_and_a_last_smaller_batch_do_not_disturb_it(folder):
    loader = loader_of(folder, 100, cat_names=["g"])
    columns = loader.schema.features.replace("g", cardinality=9, embedding_dim=4)
    inputs = keras_inputs(columns)
    features = DenseFeatures(columns, combiner="mean")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(features))
    model.compile("adam", "binary_crossentropy")
    found = diagnose(model, loader, max_seconds=5)
    assert found.training.steps == 5  # of 6: the last one has 12 rows
    assert found.training.rows == 500


def test_lists_of_other_lengths_are_compiled_before_anything_is_measured(folder):
    traced = []

    class Sum(keras.layers.Layer):
        def call(self, values):
            traced.append(values.shape)
            return keras.ops.cast(keras.ops.sum(values), "float32") * keras.ops.ones((BATCH, 1))

        def compute_output_shape(self, input_shape):
            return (BATCH, 1)

    data = loader_of(folder, cat_names=["g"], cont_names=[])
    inputs = keras_inputs(data.schema.features)
    model = keras.Model(inputs, Sum()(inputs["g__values"]))
    model.compile("sgd", "mse")
    traced.clear()
    diagnose(model, data, max_seconds=1e-9)
    assert len(set(traced)) > 1  # TensorFlow takes any length from the second on


def test_steps_per_execution_are_steps(folder):
    found = diagnose(model_of(steps_per_execution=3), loader_of(folder))
    assert found.training.steps == ROWS // BATCH


def test_diagnose_refuses_what_it_cannot_test(folder):
    plain = keras.Sequential([keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="is not compiled"):
        diagnose(plain, loader_of(folder))
    with pytest.raises(ValueError, match="max_seconds must be above 0, got 0"):
        diagnose(model_of(), loader_of(folder), max_seconds=0)
    with pytest.raises(TypeError, match="got a list"):
        diagnose(model_of(), [])
    empty = tf.data.Dataset.from_tensor_slices((np.ones((4, 1)), np.ones((4, 1)))).batch(2).take(0)
    with pytest.raises(ValueError, match="the data has no batch"):
        diagnose(model_of(), empty)


# --- Intervals ----------------------------------------------------------------------------------

pairs = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)).map(lambda p: (p[0], sum(p))))


def cells(intervals):
    """The unit cells of [0, 40) that intervals with whole ends cover."""
    return {n for start, stop in intervals for n in range(int(start), int(stop))}


@hypothesis.given(pairs, pairs, st.integers(0, 20), st.integers(1, 20))
def test_intervals_are_sets_of_time(one, other, start, length):
    first, second, stop = Intervals.union(one), Intervals.union(other), start + length
    assert cells(first) == cells(one)
    assert first.total_ms == len(cells(one))
    assert np.all(first.starts[1:] > first.stops[:-1])
    window = set(range(start, stop))
    assert cells(first.within(start, stop)) == cells(one) & window
    assert cells(first.gaps(start, stop)) == window - cells(one)
    assert cells(first.overlap(second)) == cells(one) & cells(other)


# --- read_trace, on real traces -----------------------------------------------------------------


def profiled(dataset, model, log_dir, steps):
    """Return the trace of all steps but the first, which compiles."""
    model.fit(dataset, callbacks=[ProfileSteps(log_dir, 2, steps)], shuffle=False, verbose=0)
    return read_trace(log_dir)


@pytest.fixture(scope="module")
def starved(tmp_path_factory):
    """The trace of a small model whose data takes a tenth of a second a batch."""

    def rows():
        for _ in range(8):
            time.sleep(0.1)
            yield {"x": np.ones((32, 1), "float32")}, np.ones((32, 1), "float32")

    kind = {"x": tf.TensorSpec((None, 1))}, tf.TensorSpec((None, 1))
    dataset = tf.data.Dataset.from_generator(rows, output_signature=kind)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(8))
    return profiled(dataset, model_of(), tmp_path_factory.mktemp("starved"), 8)


def test_a_starved_device_is_idle_while_it_waits_for_tf_data(starved):
    assert len(starved.steps) == 7
    assert starved.device.idle_share > 0.5
    assert starved.device.idle_waiting_share > 0.5
    assert starved.waiting_share > 0.5
    assert starved.device.busy_share + starved.device.idle_share == pytest.approx(1)
    shares = starved.idle_shares()
    assert list(shares) == list(starved.steps)
    assert all(0 <= share <= 1 for share in shares.values())
    longest = starved.device.gaps(3)
    lengths = [gap.stop_ms - gap.start_ms for gap in longest]
    assert lengths == sorted(lengths, reverse=True)
    assert longest[0].waiting > 0.5


def test_waiting_for_a_loader_is_seen_too(folder, tmp_path):
    model_of().fit(slow_loader(folder), callbacks=[ProfileSteps(tmp_path, 2, 8)], verbose=0)
    trace = read_trace(tmp_path)
    assert trace.waiting_share > 0.5
    assert trace.device.idle_waiting_share > 0.5


def test_a_trace_without_a_gpu_says_so(starved):
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
    assert trace.waiting_share < 0.3
    shares = [op.share for op in trace.device.top_ops(1000)]
    assert sum(shares) == pytest.approx(1)
    assert shares == sorted(shares, reverse=True)
    best = trace.device.top_ops(5)
    assert any("MatMul" in op.name for op in best)
    assert all(op.runs >= 1 and op.total_ms > 0 for op in best)


def test_a_trace_of_keras_own_callback_is_read_too(folder, tmp_path):
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


# --- read_trace, on files whose times are known -------------------------------------------------


def write_trace(path, planes):
    """Write an XSpace file: {plane: {line: [(name, start ms, stop ms, {stat: value})]}}."""
    space = xplane_pb2.XSpace()
    for plane_name, lines in planes.items():
        plane, ids = space.planes.add(name=plane_name), {}

        def number(table, name, ids=ids):
            if (id(table), name) not in ids:
                ids[id(table), name] = len(ids) + 1
                table[len(ids)].name = name
            return ids[id(table), name]

        events, stats = plane.event_metadata, plane.stat_metadata
        for line_name, entries in lines.items():
            line = plane.lines.add(name=line_name, timestamp_ns=1_000_000)  # 1 ms
            for name, start, stop, values in entries:
                event = line.events.add(
                    metadata_id=number(events, name),
                    offset_ps=int((start - 1) * 1e9),
                    duration_ps=int((stop - start) * 1e9),
                )
                for stat, value in values.items():
                    entry = event.stats.add(metadata_id=number(stats, stat))
                    if isinstance(value, str):
                        entry.ref_value = number(stats, value)
                    else:
                        entry.int64_value = value
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(space.SerializeToString())
    return path


@pytest.fixture
def gpu_trace(tmp_path):
    """Two steps of 50 ms: in each 20 ms of waiting, 5 of copying, 20 of kernels with 5 together."""
    host = {"python": [], "tf_data_iterator_get_next/1": []}
    compute, copies, derived = [], [], []
    for step, begin in enumerate((10, 60)):
        host["python"].append(("train", begin, begin + 50, {"step_num": step}))
        wait = "IteratorGetNextOp::DoCompute", begin, begin + 20, {}
        host["tf_data_iterator_get_next/1"].append(wait)
        copies.append(("MemcpyH2D", begin + 20, begin + 25, {}))
        copies.append(("gemm", begin + 30, begin + 40, {"tf_op": "top/dense/MatMul:MatMul"}))
        compute.append(("gemm", begin + 25, begin + 35, {"tf_op": "top/dense/MatMul:MatMul"}))
        derived.append(("train", begin, begin + 50, {}))
    streams = {"Stream #13(Compute)": compute, "Stream #14(MemcpyH2D)": copies, "Steps": derived}
    planes = {"/host:CPU": host, "/device:GPU:0": streams}
    path = tmp_path / "plugins" / "profile" / "2026" / "host.xplane.pb"
    return read_trace(write_trace(path, planes).parents[3])


def test_a_gpu_is_busy_while_kernels_or_copies_run(gpu_trace):
    device = gpu_trace.device
    assert gpu_trace.on_gpu
    assert device.name == "/device:GPU:0"
    assert gpu_trace.steps == {0: (10.0, 60.0), 1: (60.0, 110.0)}
    # 5 ms of copying and 15 ms of kernels (two at the same time for 5) of each 50 ms.
    assert device.busy_share == pytest.approx(0.4)
    assert gpu_trace.idle_shares() == pytest.approx({0: 0.6, 1: 0.6})
    assert gpu_trace.waiting_share == pytest.approx(0.4)
    assert device.idle_waiting_share == pytest.approx(40 / 60)
    assert device.lanes["kernels"].total_ms == pytest.approx(30)
    assert device.lanes["copies"].total_ms == pytest.approx(10)


def test_gaps_say_how_much_of_them_was_waiting(gpu_trace):
    gaps = gpu_trace.device.gaps()
    assert [(gap.start_ms, gap.stop_ms) for gap in gaps] == [(50, 80), (10, 30), (100, 110)]
    assert [gap.waiting for gap in gaps] == pytest.approx([20 / 30, 1, 0])


def test_kernels_are_added_up_by_the_op_they_belong_to(gpu_trace):
    multiply, copy = gpu_trace.device.top_ops()
    assert multiply == ("top/dense/MatMul:MatMul", pytest.approx(40), pytest.approx(0.8), 4)
    assert copy == ("MemcpyH2D", pytest.approx(10), pytest.approx(0.2), 2)


def test_several_gpus_are_several_devices(tmp_path):
    kernels = {n: [("k", 10, 10 + n, {})] for n in (5, 10)}
    planes = {f"/device:GPU:{i}": {"Stream #1": kernels[n]} for i, n in enumerate((5, 10))}
    trace = read_trace(write_trace(tmp_path / "two.xplane.pb", planes))
    assert [device.busy_share for device in trace.devices] == pytest.approx([0.5, 1.0])
    assert not trace.steps


def test_what_is_no_trace_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"ProfileSteps\(log_dir, 10, 20\)"):
        read_trace(tmp_path)
    damaged = tmp_path / "damaged.xplane.pb"
    damaged.write_bytes(b"\xff" * 100)
    with pytest.raises(ValueError, match=r"damaged\.xplane\.pb is no whole XSpace file"):
        read_trace(damaged)
    idle = write_trace(tmp_path / "idle.xplane.pb", {"/host:CPU": {"python": [("f", 1, 2, {})]}})
    with pytest.raises(ValueError, match=r"no work of a device; its planes are \['/host:CPU'\]"):
        read_trace(idle)
    run = tmp_path / "plugins" / "profile" / "1"
    for host in ("a", "b"):
        write_trace(run / f"{host}.xplane.pb", {})
    with pytest.raises(ValueError, match=r"several hosts: give one file of \['a\.xplane"):
        read_trace(tmp_path)


# --- draw_timeline ------------------------------------------------------------------------------


def contrast(colour, background):
    """Contrast of two colours as the Web's accessibility guidelines define it."""

    def luminance(colour):
        parts = np.array(to_rgb(colour))
        linear = np.where(parts <= 0.03928, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    light, dark = sorted([luminance(colour), luminance(background)], reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_a_timeline_has_a_row_for_each_kind_of_work_and_its_times_in_ms(gpu_trace):
    (axes,) = draw_timeline(gpu_trace).axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["GPU:0, kernels", "GPU:0, copies", "waiting for data"]
    assert axes.get_xlabel() == "time, ms"
    assert axes.get_xlim() == (0, 100)
    widths = [sum(np.ptp(path.vertices[:, 0]) for path in row.get_paths()) for row in
              axes.collections]  # fmt: skip
    assert widths == pytest.approx([30, 10, 40], abs=0.5)
    assert [text.get_text().strip() for text in axes.texts] == ["step 0", "step 1"]


def test_a_timeline_reads_on_light_and_dark_pages(starved, tmp_path):
    figure = draw_timeline(starved, None)
    (axes,) = figure.axes
    texts = [axes.xaxis.label, *axes.get_xticklabels(), *axes.get_yticklabels(), *axes.texts]
    colours = {text.get_color() for text in texts}
    colours |= {tuple(row.get_facecolor()[0][:3]) for row in axes.collections}
    for colour in colours:
        assert min(contrast(colour, "white"), contrast(colour, "#0d1117")) > 2.5
    figure.savefig(tmp_path / "timeline.png")
    corner = matplotlib.image.imread(tmp_path / "timeline.png")[0, 0]
    assert corner[3] == 0  # the background is transparent


def test_a_timeline_draws_the_last_steps_into_given_axes(starved):
    axes = Figure().subplots()
    assert draw_timeline(starved, 2, axes=axes) is axes.figure
    spans = list(starved.steps.values())[-2:]
    assert axes.get_xlim()[1] == pytest.approx(spans[1][1] - spans[0][0])
    with pytest.raises(ValueError, match="steps must be at least 1"):
        draw_timeline(starved, 0)


# ---- processors that do not sleep ---------------------------------------------------------------


def children(process):
    """Return {number: priority} of the running child processes of a process, as Linux tells."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent, *rest = path.read_text().rpartition(")")[2].split()
            if int(parent) == process and state != "Z":
                found[int(path.parent.name)] = int(rest[14])
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_processes_of_the_lowest_priority_keep_cores_awake_and_end_with_the_block():
    before = children(os.getpid())
    with cores_awake():
        deadline = time.monotonic() + 30
        while True:
            spinning = {p: n for p, n in children(os.getpid()).items() if p not in before}
            lowest = [pid for pid, nice in spinning.items() if nice == 19]
            if len(lowest) == usable_cores() or time.monotonic() > deadline:
                break
        assert len(lowest) == usable_cores()
    assert not set(lowest) & set(children(os.getpid()))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_they_end_with_a_process_that_is_killed():
    code = "from tutorlib.profiling import cores_awake\nwith cores_awake():\n print(flush=True)\n"
    code += " import time\n time.sleep(60)\n"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        spinning = list(children(process.pid))
        assert len(spinning) >= usable_cores()
        process.kill()
    deadline = time.monotonic() + 30
    while any(os.path.exists(f"/proc/{pid}") for pid in spinning) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in spinning if os.path.exists(f"/proc/{pid}")]
