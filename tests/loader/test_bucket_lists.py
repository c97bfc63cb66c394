"""bucket_lists=True: the same lists in few shapes, so that XLA and JAX stop compiling."""

import importlib.util
import itertools
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tests.support.device_batches import assert_same_batches
from tests.support.leftovers import come_to_an_end, reader_threads
from tests.support.loaders import loader_with
from tutorlib.columns import Chunk, Ragged
from tutorlib.layers import DenseFeatures, EmbeddingBag, LinearFeatures, keras_inputs
from tutorlib.loader import KerasSequenceLoader
from tutorlib.loader.list_lengths import LENGTHS, BucketedValues, bucket_length, bucket_width
from tutorlib.memory import HostSpace
from tutorlib.ops import ListSlice
from tutorlib.optimizers import RowSparseAdam
from tutorlib.parquet import ParquetSink, ParquetSource
from tutorlib.schema import Column, Schema
from tutorlib.workflow import Workflow

ROWS = 1000
SCHEMA = Schema(
    [
        Column("g", "categorical", "int64", multi_hot=True, cardinality=2**33),
        Column("h", "categorical", "int32", multi_hot=True, cardinality=60, embedding_dim=4),
        Column("row", "categorical", "int64"),
        Column("x", "continuous", "float32"),
        Column("y", "label", "float32"),
        Column("w", "weight", "float32"),
    ]
)
FORMS = ["nnzs", "offsets", "padded"]


def lists_of(rng, mean, ids, dtype):
    """Lists whose lengths spread as wide as they are long; many are empty."""
    offsets = np.concatenate([[0], np.cumsum(rng.geometric(1 / (mean + 1), ROWS) - 1)])
    return Ragged(rng.integers(0, ids, offsets[-1]).astype(dtype), offsets)


@pytest.fixture(scope="module")
def columns():
    rng = np.random.default_rng(0)
    x = rng.standard_normal(ROWS).astype("float32")
    return {
        "g": lists_of(rng, 5, 2**33, "int64"),
        "h": lists_of(rng, 2, 60, "int32"),
        "row": np.arange(ROWS),
        "x": x,
        "y": (x > 0).astype("float32"),
        "w": rng.random(ROWS).astype("float32"),
    }


@pytest.fixture
def device(request, monkeypatch):
    """The CPU, or NumPy in the place of a GPU."""
    monkeypatch.setattr("tutorlib.loader.settings.memory_space", {"gpu": HostSpace()}.get)
    return request.param


both_devices = pytest.mark.parametrize("device", ["cpu", "gpu"], indirect=True)


loader_of = loader_with(schema=SCHEMA, buffer_size=150, parts_per_chunk=2, bucket_lists=True)


def assert_padded(name, ours, theirs):
    """A tensor of a batch holds what it holds without padding, and behind it nothing new."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.dtype == theirs.dtype, name
    if name.endswith("__values"):
        assert ours.shape[1:] == theirs.shape[1:]
        assert len(ours) in LENGTHS
        np.testing.assert_array_equal(ours[: len(theirs)], theirs, err_msg=name)
        assert np.isin(ours[len(theirs) :], theirs[-1:] if len(theirs) else [0]).all(), name
    elif name in ("g", "h"):
        assert ours.shape[1] == bucket_width(theirs.shape[1])
        np.testing.assert_array_equal(ours[:, : theirs.shape[1]], theirs, err_msg=name)
        assert (ours[:, theirs.shape[1] :] == -1).all()
    else:
        np.testing.assert_array_equal(ours, theirs, err_msg=name)


# ---- what comes ----------------------------------------------------------------------------------


@both_devices
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("batch_size", [33, 300])
def test_batches_are_the_same_but_for_what_stands_behind_the_last_list(
    folder, device, form, shuffle, batch_size
):
    """Batches of 300 rows are put in order alone, those of 33 several at a time."""
    settings = {"multi_hot": form, "shuffle": shuffle, "device": device}
    ours = loader_of(folder, batch_size, **settings)
    theirs = loader_of(folder, batch_size, bucket_lists=False, **settings)
    for _ in range(2):
        for one, other in zip(ours, theirs, strict=True):
            assert list(one[0]) == list(other[0])
            for name, tensor in one[0].items():
                assert_padded(name, tensor, other[0][name])
            np.testing.assert_array_equal(one[1], other[1])
            np.testing.assert_array_equal(one[2], other[2])
    assert ours.describe() == theirs.describe()
    assert ours.stats()["rows"] == theirs.stats()["rows"] == 2 * ROWS
    assert come_to_an_end(reader_threads)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("device", ["gpu"], indirect=True)
def test_a_device_and_any_number_of_threads_give_the_same_padding(folder, device, form):
    with loader_of(folder, 33, device=device, multi_hot=form) as ours:
        assert_same_batches(ours, loader_of(folder, 33, multi_hot=form))
    one, five = (
        loader_of(folder, 33, multi_hot=form, reader_kwargs={"threads": threads})
        for threads in (1, 5)
    )
    assert_same_batches(one, five, np.int32)


@both_devices
@pytest.mark.parametrize("form", ["nnzs", "offsets"])
def test_full_batches_of_all_epochs_have_one_shape(folder, device, form):
    shapes, exact = set(), set()
    for bucket_lists, seen in ((True, shapes), (False, exact)):
        settings = {"multi_hot": form, "device": device, "drop_last": True}
        loader = loader_of(folder, 100, bucket_lists=bucket_lists, **settings)
        for _ in range(5):
            seen |= {tuple(tuple(t.shape) for t in inputs.values()) for inputs, *_ in loader}
    assert len(shapes) == 1
    assert len(exact) >= 45  # of 50 batches


@both_devices
def test_the_last_batch_adds_a_shape(folder, device):
    loader = loader_of(folder, 150, device=device)
    shapes = {
        tuple(tuple(t.shape) for t in inputs.values()) for _ in range(5) for inputs, *_ in loader
    }
    assert len(shapes) == 2


@both_devices
def test_tensors_are_aligned_memory_of_their_own(folder, device):
    loader = loader_of(folder, 33, device=device)
    batches = list(loader)
    spans = []
    for inputs, *_ in batches:
        for tensor in inputs.values():
            address = np.asarray(tensor).ctypes.data
            assert address % 64 == 0
            spans.append((address, address + np.asarray(tensor).nbytes))
    spans.sort()
    assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(spans))


def write(folder, **columns):
    with ParquetSink(folder / "a.parquet", row_group_rows=5000) as sink:
        sink.write(Chunk(columns))
    return folder / "a.parquet"


@both_devices
def test_memory_stays_bounded_and_comes_back(tmp_path, device):
    rows = 40_000
    lengths = np.random.default_rng(0).integers(0, 9, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    path = write(tmp_path, g=Ragged(np.arange(offsets[-1]), offsets), row=np.arange(rows))
    loader = KerasSequenceLoader(
        path, 8000, cat_names=["g", "row"], device=device, bucket_lists=True, buffer_size=10_000
    )
    with loader:
        for _ in range(4):
            for inputs, _ in loader:
                values = inputs["g__values"].numpy()[:, 0]
                own = np.arange(offsets[-1])[values[: inputs["g__nnzs"].numpy().sum()]]
                assert len(own) == lengths[inputs["row"].numpy()[:, 0]].sum()
            del inputs, values
            pool = loader._pool
            assert 0 < pool.free_bytes <= pool.limit_bytes == loader.describe()["peak_bytes"]
    assert loader._pool.free_bytes == 0


@both_devices
@pytest.mark.parametrize("form", FORMS)
def test_batches_without_any_value(tmp_path, device, form):
    empty = Ragged(np.zeros(0, np.int64), np.zeros(11, np.int64))
    path = write(tmp_path, g=empty, y=np.ones(10, "float32"))
    schema = Schema([Column("g", "categorical", multi_hot=True, cardinality=9), SCHEMA["y"]])
    inputs, _ = loader_of(path, 10, schema=schema, device=device, multi_hot=form).peek()
    values = inputs["g" if form == "padded" else "g__values"]
    assert tuple(values.shape) == {"nnzs": (64, 1), "offsets": (64,), "padded": (10, 1)}[form]
    assert (values.numpy() == (-1 if form == "padded" else 0)).all()
    layer = DenseFeatures(schema.features)
    for call in (layer, tf.function(layer, jit_compile=True)):
        np.testing.assert_array_equal(call(inputs), np.zeros((10, schema["g"].width)))


def test_lists_that_a_workflow_shortens_get_their_own_bucket(folder, columns):
    workflow = Workflow(["g"] >> ListSlice(0, 1), ["y"])
    loader = loader_of(
        folder, 100, schema=None, cat_names=["g"], label_names=["y"], buffer_size=1000
    ).map(workflow.fit(ParquetSource(folder)))
    counts = (np.diff(columns["g"].offsets) > 0).sum() / 10
    for inputs, _ in loader:
        assert len(inputs["g__values"]) <= bucket_length(int(counts * 1.3))


@given(
    st.floats(0, 100),
    st.integers(1, 100_000),
    st.integers(0, 10_000_000),
)
def test_padding_is_bounded_and_its_lengths_few(per_row, rows, count):
    length = BucketedValues({"g": per_row}).values("g", rows, count)
    most = 2 * count * (1 + 4 / np.sqrt(rows)) + 1  # where it has half of what it should
    assert count <= length <= max(64, 9 / 8 * most)
    assert length in LENGTHS


@given(st.integers(0, 100_000))
def test_a_width_adds_a_half_at_most(longest):
    assert longest <= bucket_width(longest) <= max(1, 1.5 * longest)


def test_there_are_two_widths_until_each_doubling():
    assert len({bucket_width(longest) for longest in range(1, 1025)}) == 20


# ---- what else must hold -------------------------------------------------------------------------


def test_ragged_tensors_are_refused(folder):
    with pytest.raises(ValueError, match=r"multi_hot='ragged'.*ends? with its last row.*'nnzs'"):
        loader_of(folder, multi_hot="ragged")


def test_lists_of_a_given_length_stay_so(folder):
    settings = {"multi_hot": "padded", "max_list_length": 77}
    ours, theirs = (loader_of(folder, bucket_lists=b, **settings) for b in (True, False))
    assert_same_batches(ours, theirs, np.int32)


def test_a_state_goes_on_with_and_without_it(folder):
    """It decides nothing about the order, as the form of lists does not."""
    begun, plain = loader_of(folder), loader_of(folder, bucket_lists=False)
    batches = iter(begun)
    for _ in range(5):
        next(batches)
    state = json.loads(json.dumps(begun.state_dict()))
    rest = [inputs["row"].numpy().tolist() for inputs, *_ in batches]
    plain.load_state_dict(state)
    assert [inputs["row"].numpy().tolist() for inputs, *_ in plain] == rest
    again = loader_of(folder, multi_hot="padded")
    again.load_state_dict(state)
    assert [inputs["row"].numpy().tolist() for inputs, *_ in again] == rest


@pytest.mark.parametrize("form", FORMS)
def test_a_dataset_gives_the_same_batches(folder, form):
    dataset = loader_of(folder, 150, multi_hot=form).to_tf_dataset()
    assert_same_batches(dataset, loader_of(folder, 150, multi_hot=form), np.int32)


# ---- the layers ----------------------------------------------------------------------------------

LAYERS = {
    **{
        f"DenseFeatures {combiner}": lambda combiner=combiner: DenseFeatures([LISTS], combiner)
        for combiner in ("mean", "sum", "sqrtn")
    },
    "LinearFeatures": lambda: LinearFeatures([LISTS]),
}
LISTS = Column("h", "categorical", multi_hot=True, cardinality=60, embedding_dim=4)


@pytest.mark.parametrize("form", ["nnzs", "offsets"])
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_and_gradients_ignore_what_is_over(folder, form, jit, name):
    [ours, theirs] = (
        loader_of(folder, 64, multi_hot=form, bucket_lists=b, shuffle=False).peek()[0]
        for b in (True, False)
    )
    layer = LAYERS[name]()
    results = []
    for inputs in (ours, theirs):
        layer(inputs)

        @tf.function(jit_compile=jit)
        def step(inputs):
            with tf.GradientTape() as tape:
                output = layer(inputs)
                total = tf.reduce_sum(output * tf.sin(tf.range(64.0))[:, None])
            gradients = tape.gradient(total, layer.trainable_variables)
            return output, [tf.convert_to_tensor(gradient) for gradient in gradients]

        results.append(tf.nest.flatten(step(inputs)))
    assert len(ours["h__values"]) > len(theirs["h__values"])
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("jit", [False, True])
def test_an_optimizer_of_rows_moves_no_other_rows(folder, jit):
    """Padding that is an id of its own would be a row that the batch names."""

    def trained(bucket_lists):
        keras.utils.set_random_seed(0)
        bag = EmbeddingBag(60, 4, name="h")
        inputs = keras_inputs(Schema([SCHEMA["h"]]))
        output = keras.layers.Dense(1, "sigmoid")(
            bag({"values": inputs["h__values"], "nnzs": inputs["h__nnzs"]})
        )
        model = keras.Model(inputs, output)
        model.compile(RowSparseAdam(keras.optimizers.Adam(0.01)), "mse", jit_compile=jit)
        schema = Schema([SCHEMA["h"], SCHEMA["y"]])
        # batches of few ids, so that there are rows which they do not name
        loader = loader_of(folder, 8, schema=schema, bucket_lists=bucket_lists, limit_rows=80)
        losses = model.fit(loader, epochs=2, verbose=0).history["loss"]
        return losses, model.get_weights()

    (losses, weights), (other_losses, other_weights) = trained(True), trained(False)
    np.testing.assert_allclose(losses, other_losses, rtol=1e-5)
    for one, other in zip(weights, other_weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


# ---- compilations --------------------------------------------------------------------------------

COUNTED = """
import json, os, pathlib, sys
folder, dump = sys.argv[1:]
import keras
import numpy as np
from tutorlib.layers import DenseFeatures, FusedEmbedding, LinearFeatures, keras_inputs
from tutorlib.loader import KerasSequenceLoader
from tutorlib.schema import Column, Schema

lists = [Column(n, "categorical", cardinality=60, embedding_dim=4, multi_hot=True) for n in "gh"]
ids = [Column("row", "categorical", cardinality=1000, embedding_dim=4)]
schema = Schema([*lists, *ids, Column("x", "continuous"), Column("y", "label")])

def steps():
    # XLA writes down each module that it compiles
    return sum("train_step" in p.name or "one_step_on_data" in p.name
               for p in pathlib.Path(dump).glob("*.before_optimizations.txt"))

class Count(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.before, self.compiled = steps(), []
    def on_epoch_end(self, epoch, logs=None):
        self.compiled.append(steps() - self.before)

def trained(form, bucket_lists, epochs):
    keras.utils.set_random_seed(0)
    inputs = keras_inputs(schema, multi_hot=form)
    parts = [DenseFeatures(Schema(lists))(inputs), FusedEmbedding(ids, "concat")(inputs)]
    deep = keras.layers.Dense(1)(keras.layers.concatenate([*parts, inputs["x"]]))
    wide = LinearFeatures(Schema(lists))(inputs)
    model = keras.Model(inputs, keras.ops.sigmoid(deep + wide))
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", jit_compile=True)
    loader = KerasSequenceLoader(folder, 150, schema=schema, multi_hot=form, buffer_size=1000,
                                 bucket_lists=bucket_lists)
    count = Count()
    losses = model.fit(loader, epochs=epochs, callbacks=[count], verbose=0).history["loss"]
    weights = [w.ravel().tolist() for w in model.get_weights()]
    loader.set_epoch(0)
    shapes = {str([np.shape(inputs[name]) for name in inputs])
              for epoch in range(epochs) for inputs, _ in loader}
    return {"compiled": count.compiled, "losses": losses, "weights": sum(weights, []),
            "shapes": len(shapes)}

print(json.dumps({
    "nnzs": trained("nnzs", True, 4), "without": trained("nnzs", False, 2),
    "same epochs": trained("nnzs", True, 2), "padded": trained("padded", True, 4),
}))
"""


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_real_training_compiles_for_two_shapes_and_never_again(tmp_path, columns, backend):
    """For full batches and for the last one, over two list columns and a fused embedding."""
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed: pip install {backend}")
    small = Ragged(columns["g"].values % 60, columns["g"].offsets)
    path = write(tmp_path, **{**columns, "g": small})
    dump = tmp_path / "compiled"
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "CUDA_VISIBLE_DEVICES": "",
        "XLA_FLAGS": f"--xla_dump_to={dump}",
    }
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, str(path), str(dump)],
        capture_output=True,
        text=True,
        timeout=900,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    got = json.loads(done.stdout.splitlines()[-1])
    ours, theirs = got["same epochs"], got["without"]
    np.testing.assert_allclose(ours["losses"], theirs["losses"], rtol=1e-5)
    np.testing.assert_allclose(ours["weights"], theirs["weights"], rtol=1e-5, atol=1e-5)
    assert got["nnzs"]["compiled"] == [2] * 4
    assert got["without"]["compiled"] == [7, 14]  # each step of both epochs
    # The longest list of a batch is nowhere said: several widths for each column.
    compiled, shapes = got["padded"]["compiled"], got["padded"]["shapes"]
    assert compiled[-1] <= shapes + 1 < 14  # TensorFlow traces once more for any width
