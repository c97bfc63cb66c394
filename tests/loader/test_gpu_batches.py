"""On a GPU: batches are those of the CPU, stay there, and are whole when a model uses them."""

import gc

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from tests.support.gpu import ON_GPU, copied_bytes
from tests.support.loaders import come_to_an_end, loader_with, reader_threads
from tests.support.processes import run
from tutorlib.columns import Chunk, Ragged
from tutorlib.loader import KerasSequenceLoader
from tutorlib.parquet import ParquetSink
from tutorlib.schema import Column, Schema

SCHEMA = Schema(
    [
        Column("row", "categorical", "int64"),
        Column("id", "categorical", "int32", cardinality=97),
        Column("small", "categorical", "int16"),
        Column("x", "continuous", "float32"),
        Column("x64", "continuous", "float64"),
        Column("tags", "categorical", "int64", multi_hot=True, cardinality=4000),
        Column("label", "label", "float32"),
        Column("click", "label", "int64"),
        Column("weight", "weight", "float32"),
    ]
)


def chunk_of(rows):
    """Columns of all kinds; each value can be worked out from the row's number."""
    rows = np.arange(rows)
    lengths = rows % 4
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Chunk(
        {
            "row": rows,
            "id": (rows % 97).astype(np.int32),
            "small": (rows % 1000).astype(np.int16),
            "x": (rows / 8).astype(np.float32),
            "x64": rows / 16,
            "tags": Ragged(1 + (np.arange(offsets[-1]) * 7) % 3999, offsets),
            "label": (rows % 2).astype(np.float32),
            "click": rows % 3,
            "weight": (rows % 5).astype(np.float32),
        }
    )


loader_of = loader_with(schema=SCHEMA, buffer_size=150, parts_per_chunk=2)


def assert_same_batches(ours, theirs):
    """The same batches in the same order, but for the width of integers."""
    ours, theirs = list(ours), list(theirs)
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        assert [*one[0]] == [*other[0]]
        parts = [map(np.asarray, tf.nest.flatten(batch)) for batch in (one, other)]
        for array, want in zip(*parts, strict=True):
            if want.dtype.kind == "i":
                want = want.astype(np.int64)
            np.testing.assert_array_equal(array, want, strict=True)


pytestmark = ON_GPU
FILES = {"row_group_rows": 100, "rows_per_file": 400}

FORMS = {
    "nnzs": {},
    "padded": {"multi_hot": "padded"},
    "stacked": {"batch_layout": "stacked"},
    "one thread": {"threads": 1},
    "whole row groups": {"buffer_size": 1000},
    "a rank in order": {"global_size": 3, "global_rank": 1, "drop_last": True, "shuffle": False},
}


@pytest.fixture(scope="module")
def columns():
    return chunk_of(1000)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Two million rows: more than fit into one chunk."""
    rows = np.arange(2_000_000)
    columns = {"row": rows, "id": (rows % 97).astype(np.int32), "x": rows.astype(np.float32)}
    columns["label"] = (rows % 2).astype(np.float32)
    path = tmp_path_factory.mktemp("data") / "many"
    with ParquetSink(path, row_group_rows=250_000, rows_per_file=1_000_000) as sink:
        sink.write(Chunk(columns))
    return path


def many_of(path, batch_size=65_536, **changes):
    settings = {"cat_names": ["row", "id"], "cont_names": ["x"], "device": "gpu", **changes}
    return KerasSequenceLoader(path, batch_size, ["label"], **settings)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch_size", [7, 64, 300])
def test_batches_are_those_of_the_cpu(folder, form, batch_size):
    with loader_of(folder, batch_size, device="gpu", **FORMS[form]) as ours:
        with loader_of(folder, batch_size, **FORMS[form]) as theirs:
            assert_same_batches(ours, theirs)
            assert_same_batches(ours, theirs)  # the next epoch, in another order
    assert come_to_an_end(reader_threads)


@pytest.mark.parametrize("batch_size", [1000, 65_536])
@pytest.mark.parametrize("batch_layout", ["columns", "stacked"])
def test_many_rows_come_in_the_order_of_the_cpu(many, batch_size, batch_layout):
    changes = {"batch_layout": batch_layout}
    ours = many_of(many, batch_size, **changes)
    assert_same_batches(ours, many_of(many, batch_size, device="cpu", **changes))


TYPES = ("int8", "uint16", "int32", "int64", "uint64", "float32", "float64", "bool")


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("is_list", [False, True])
def test_every_type_of_number_is_that_of_the_cpu(kind, is_list, tmp_path):
    """In a file with and in one without dictionaries."""
    numbers = (np.arange(700) % 2 if kind == "bool" else np.arange(700) % 100).astype(kind)
    made = Ragged(numbers, np.repeat(np.arange(0, 701, 2), 2)[1:]) if is_list else numbers
    table = Chunk({"x": made, "label": np.ones(len(made), np.float32)}).to_arrow()
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=300)
    pq.write_table(table, tmp_path / "b.parquet", row_group_size=200, use_dictionary=False)
    role = "cont_names" if kind.startswith("f") else "cat_names"
    settings = {role: ["x"], "buffer_size": 700, "parts_per_chunk": 3}
    ours, theirs = (
        KerasSequenceLoader(tmp_path, 100, ["label"], device=device, **settings)
        for device in ("gpu", "cpu")
    )
    assert_same_batches(ours, theirs)


def test_a_saved_place_goes_on_on_the_other_device(folder):
    ours, theirs = loader_of(folder, device="gpu"), loader_of(folder)
    begun = iter(ours)
    for _ in range(5):
        next(begun)
    theirs.load_state_dict(ours.state_dict())
    assert_same_batches(begun, list(theirs))


def test_tensors_are_on_the_gpu_aligned_with_wide_integers(folder):
    import cupy

    inputs, labels, weights = next(iter(loader_of(folder, device="gpu")))
    for name, tensor in {**inputs, **labels}.items():
        assert tensor.device.endswith("GPU:0"), name
        assert tensor.dtype.name in ("int64", "float32"), name
        assert cupy.from_dlpack(tensor.__dlpack__()).data.ptr % 256 == 0, name
    assert weights.device.endswith("GPU:0")


# ---- whole while somebody uses them --------------------------------------------------------------


def test_batches_that_are_let_go_at_once_are_whole_until_the_step_is_done(many):
    """The GPU lags behind: a long computation goes before each use of a batch."""
    with tf.device("GPU:0"):
        big = tf.random.normal((8192, 8192))
    sums = []
    for inputs, _ in many_of(many, 65_536, threads=4):
        busy = tf.reduce_sum(tf.linalg.matmul(tf.linalg.matmul(big, big), big)) * 0
        late = tf.cast(busy, tf.int64) * 0
        sums.append(tf.reduce_sum(inputs["row"] + late))
        del inputs
    assert sum(int(total) for total in sums) == 2_000_000 * 1_999_999 // 2


def test_memory_does_not_grow_from_epoch_to_epoch(many):
    import cupy

    loader, used = many_of(many), []
    for _ in range(4):
        for _ in loader:
            pass
        gc.collect()
        free, total = cupy.cuda.Device(0).mem_info
        used.append(total - free)
    assert used[3] <= used[1] * 1.02


# ---- memory, in processes of their own -----------------------------------------------------------

LIMITS = """
import cupy, tensorflow as tf
from tutorlib.gpu import limit_tensorflow_memory
from tutorlib.gpu.memory import gpu_memory_bytes
free, _ = cupy.cuda.runtime.memGetInfo()
given = limit_tensorflow_memory()
assert abs(given - free / 4) < 2**20, (given, free)
assert gpu_memory_bytes() <= (free - given) * 0.9
with tf.device("GPU:0"):
    tf.zeros((2**20,))
try:
    held = [tf.zeros((given // 4,), tf.int8) for _ in range(6)]
except tf.errors.ResourceExhaustedError:
    print("limited")
"""

EXHAUSTED = """
import sys, rmm
small = rmm.mr.LimitingResourceAdaptor(rmm.mr.CudaAsyncMemoryResource(), allocation_limit=2**20)
rmm.mr.set_current_device_resource(small)
from tutorlib.loader import KerasSequenceLoader
loader = KerasSequenceLoader(sys.argv[1], 65_536, ["label"], cat_names=["row"], device="gpu")
try:
    list(loader)
except MemoryError as error:
    assert "row group" in str(error) and "smaller memory_budget" in str(error), error
    print("told")
"""


def test_tensorflow_gets_the_part_that_the_environment_says():
    assert run(LIMITS, TF_MEMORY_ALLOCATION="0.25") == "limited"


def test_a_gpu_without_enough_memory_says_where_and_what_to_do(many):
    assert run(EXHAUSTED, many) == "told"


# ---- in training ---------------------------------------------------------------------------------


def dlrm_of(jit_compile, batch_layout="columns"):
    from tutorlib.models import DLRM

    sizes = {"row": 2_000_000, "id": 97}
    ids = [Column(n, "categorical", cardinality=c, embedding_dim=8) for n, c in sizes.items()]
    schema = Schema([*ids, Column("x", "continuous")])
    model = DLRM(schema, 8, [16], [16], batch_layout=batch_layout)
    model.compile("adam", "binary_crossentropy", jit_compile=jit_compile)
    return model


@pytest.mark.parametrize("batch_layout", ["columns", "stacked"])
def test_a_training_that_xla_compiles_reads_whole_batches(many, batch_layout):
    """Hundreds of steps: XLA records CUDA graphs while readers use the GPU and wait for it."""
    import keras

    settings = {"batch_size": 4096, "batch_layout": batch_layout, "threads": 4}
    losses = []
    for device in ("gpu", "cpu"):
        keras.utils.set_random_seed(1)
        loader = many_of(many, device=device, **settings)
        model = dlrm_of(jit_compile=True, batch_layout=batch_layout)
        losses.append(model.fit(loader, epochs=2, verbose=0).history["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


def test_an_epoch_of_fit_copies_no_batch_to_the_host(many, tmp_path):
    model, loader = dlrm_of(jit_compile=False), many_of(many)
    model.fit(loader, verbose=0)  # warm-up
    tf.profiler.experimental.start(str(tmp_path))
    model.fit(loader, verbose=0)
    tf.profiler.experimental.stop()
    copied = copied_bytes(tmp_path)
    batches = loader._current_plan.num_rows * loader._layout.row_bytes
    files = sum(path.stat().st_size for path in many.iterdir())
    order = 8 * loader._current_plan.num_rows  # of the rows: computed on the host
    assert copied["MemcpyD2H"] < 0.01 * batches, copied
    assert 0 < copied["MemcpyH2D"] < files + order + 0.05 * batches, copied


ON_JAX = """
import sys
sys.modules["tensorflow"] = None
import numpy as np, keras
from tutorlib.loader import KerasSequenceLoader

def arrays(device, batch_size, as_numpy=False):
    loader = KerasSequenceLoader(
        sys.argv[1], batch_size, ["label"], cat_names=["id", "tags"], cont_names=["x"],
        device=device, buffer_size=150, parts_per_chunk=2,
    )
    batches = loader.as_numpy() if as_numpy else loader
    return [{n: t for n, t in inputs.items()} | {"label": label} for inputs, label in batches]

for batch_size in (16, 64, 90):
    theirs = arrays("cpu", batch_size, as_numpy=True)
    for device in ("gpu", "cpu"):  # JAX cuts the batches of both
        try:
            ours = arrays(device, batch_size)
        except ValueError as error:
            if "it sees no GPU" not in str(error):
                raise
            sys.exit(print("sees no GPU"))
        assert len(ours) == len(theirs) > 5
        for one, other in zip(ours, theirs):
            for name, tensor in one.items():
                if device == "gpu" or not name.startswith("tags"):
                    where = str(tensor.device).lower()
                    assert "cuda" in where or "gpu" in where, (name, where)
                values = keras.ops.convert_to_numpy(tensor)
                np.testing.assert_array_equal(values, other[name], err_msg=name)
inputs = {n: keras.Input((1,), name=n, dtype=d) for n, d in (("id", "int32"), ("x", "float32"))}
x = keras.layers.Flatten()(keras.layers.Embedding(97, 4)(inputs["id"]))
model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()([x, inputs["x"]])))
model.compile("adam", "mse")
loader = KerasSequenceLoader(
    sys.argv[1], 64, ["label"], cat_names=["id"], cont_names=["x"], device="gpu"
)
print(model.fit(loader, epochs=2, verbose=0).history["loss"][-1] < 1e9)
"""


def test_on_jax(folder):
    pytest.importorskip("jax")
    settings = {"KERAS_BACKEND": "jax", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    said = run(ON_JAX, folder, **settings)
    if said == "sees no GPU":
        pytest.skip(f"JAX {said}")
    assert said == "True"
