"""MultiHot: lists in few shapes for XLA, of a bounded length; layers ignore what is padded."""

import json
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tests.support.backends import run
from tests.support.loaders import loader_with
from tests.support.sequences import PADDED, states_of_lists
from tutorlib import MultiHot
from tutorlib.columns import Ragged
from tutorlib.layers import DenseFeatures, LinearFeatures
from tutorlib.loader import KerasSequenceLoader
from tutorlib.loader.settings import LENGTHS
from tutorlib.schema import Column, Schema

ROWS = 1000
G = Column("g", "categorical", "int64", multi_hot=True, cardinality=2**33)
H = Column("h", "categorical", "int32", multi_hot=True, cardinality=60, embedding_dim=4)
SCHEMA = Schema([G, H, Column("row", "categorical", "int64"), Column("y", "label", "float32")])
loader_of = loader_with(schema=SCHEMA, buffer_size=150, parts_per_chunk=2)
FORMS = ["nnzs", "offsets", "padded"]


def lists_of(rng, mean, ids, dtype):
    """Lists of ids from 1 on whose lengths spread as wide as they are long; many are empty."""
    offsets = np.concatenate([[0], np.cumsum(rng.geometric(1 / (mean + 1), ROWS) - 1)])
    return Ragged(rng.integers(1, ids, offsets[-1]).astype(dtype), offsets)


@pytest.fixture(scope="module")
def columns():
    rng = np.random.default_rng(0)
    lists = {"g": lists_of(rng, 5, 2**33, "int64"), "h": lists_of(rng, 2, 60, "int32")}
    return {**lists, "row": np.arange(ROWS), "y": (np.arange(ROWS) % 2).astype("float32")}


def assert_padded(name, ours, theirs):
    """A tensor of a batch holds what it holds without padding, and behind it nothing new."""
    assert ours.dtype == theirs.dtype, name
    if name.endswith("__values"):
        assert len(ours) in LENGTHS
        np.testing.assert_array_equal(ours[: len(theirs)], theirs, err_msg=name)
        assert np.isin(ours[len(theirs) :], theirs[-1:] if len(theirs) else [0]).all(), name
    elif name in ("g", "h"):
        assert ours.shape[1] == MultiHot("padded", bucketed=True).width(theirs.shape[1])
        np.testing.assert_array_equal(ours[:, : theirs.shape[1]], theirs, err_msg=name)
        assert (ours[:, theirs.shape[1] :] == 0).all()
    else:
        np.testing.assert_array_equal(ours, theirs, err_msg=name)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("shuffle", "batch_size"), [(True, 33), (True, 300), (False, 64)])
def test_batches_are_the_same_but_for_what_stands_behind_the_last_list(
    folder, form, shuffle, batch_size
):
    made = {"shuffle": shuffle, "reader_kwargs": {"threads": 3}}
    ours = loader_of(folder, batch_size, multi_hot=MultiHot(form, bucketed=True), **made)
    theirs = loader_of(folder, batch_size, multi_hot=form, **made)
    for _ in range(2):
        for one, other in zip(ours.as_numpy(), theirs.as_numpy(), strict=True):
            assert list(one[0]) == list(other[0])
            for name, array in one[0].items():
                assert_padded(name, array, other[0][name])
            np.testing.assert_array_equal(one[1], other[1])
    state = theirs.state_dict()
    ours.load_state_dict(state)  # it decides nothing about the order


@pytest.mark.parametrize("form", ["nnzs", "offsets"])
def test_full_batches_of_all_epochs_have_one_shape_and_the_last_adds_one(folder, form):
    shapes, exact, with_last = set(), set(), set()
    few = {"multi_hot": MultiHot(form, bucketed=True)}
    loaders = [
        (loader_of(folder, 100, drop_last=True, **few), shapes),
        (loader_of(folder, 100, drop_last=True, multi_hot=form), exact),
        (loader_of(folder, 150, **few), with_last),
    ]
    for loader, seen in loaders:
        for _ in range(5):
            seen |= {tuple(a.shape for a in inputs.values()) for inputs, _ in loader.as_numpy()}
    assert (len(shapes), len(with_last)) == (1, 2)
    assert len(exact) >= 45  # of 50 batches


@pytest.mark.parametrize("form", FORMS)
def test_batches_without_any_value_and_lists_of_a_given_length(form):
    table = pa.table({"h": pa.array([[]] * 10, pa.list_(pa.int32())), "y": [1.0] * 10})
    schema = Schema([H, SCHEMA["y"]])
    loader = KerasSequenceLoader(table, 10, schema=schema, multi_hot=MultiHot(form, bucketed=True))
    inputs, _ = loader.peek()
    values = inputs["h" if form == "padded" else "h__values"]
    assert tuple(values.shape) == {"nnzs": (64, 1), "offsets": (64,), "padded": (10, 1)}[form]
    layer = DenseFeatures(schema.features)
    for call in (layer, tf.function(layer, jit_compile=True)):
        np.testing.assert_array_equal(call(inputs), np.zeros((10, 4)))
    bounded = MultiHot("padded", max_length=7, bucketed=True)
    inputs, _ = KerasSequenceLoader(table, 10, schema=schema, multi_hot=bounded).peek()
    assert (inputs["h"].numpy() == np.zeros((10, 7))).all()


@given(st.floats(0, 100), st.integers(1, 100_000), st.integers(0, 10_000_000))
def test_padding_is_bounded_and_its_lengths_few(mean, rows, count):
    length = MultiHot(bucketed=True).num_values(mean, rows, count)
    most = 2 * count * (1 + 4 / np.sqrt(rows)) + 1  # where it has half of what it should
    assert count <= length <= max(64, 9 / 8 * most)
    assert length in LENGTHS
    assert count <= MultiHot("padded", bucketed=True).width(count) <= max(1, 1.5 * count)


@pytest.mark.parametrize("backend", ["tensorflow", "tensorflow, XLA", "jax"])
def test_a_recurrent_network_sees_each_list_in_its_order_and_no_padding(folder, backend, tmp_path):
    if backend == "jax":
        said = run("jax", str(folder), SEQUENCES, PYTHONPATH=os.pathsep.join(sys.path))
        states, alone = {form: np.array(rows) for form, rows in said[0].items()}, np.array(said[1])
    else:
        schema = Schema([H, SCHEMA["y"]])
        states, alone = states_of_lists(folder, schema, jit_compile=backend.endswith("XLA"))
    for form, rows in states.items():
        np.testing.assert_allclose(rows, states["longest"], rtol=1e-5, atol=1e-6, err_msg=form)
        np.testing.assert_allclose(rows[: len(alone)], alone, rtol=1e-5, atol=1e-6, err_msg=form)
    empty = (alone == 0).all(axis=1)
    assert 0 < empty.sum() < len(alone)


SEQUENCES = """
from tests.support.sequences import states_of_lists
h = Column("h", "categorical", "int32", multi_hot=True, cardinality=60)
states, alone = states_of_lists(folder, Schema([h, Column("y", "label", "float32")]), "auto")
print(json.dumps([{form: rows.tolist() for form, rows in states.items()}, alone.tolist()]))
"""


@pytest.mark.parametrize("combiner", ["mean", "sum", "sqrtn"])
def test_features_of_padded_lists_are_those_of_the_other_forms(folder, combiner):
    layer, made = DenseFeatures([H], combiner), []
    for form in [*FORMS, *PADDED.values()]:
        options = {"schema": Schema([H, SCHEMA["y"]]), "multi_hot": form, "shuffle": False}
        made.append(layer(loader_of(folder, 64, **options).peek()[0]))
        np.testing.assert_allclose(made[-1], made[0], rtol=1e-5, atol=1e-6)


LAYERS = {
    **{
        f"DenseFeatures {combiner}": lambda combiner=combiner: DenseFeatures([H], combiner)
        for combiner in ("mean", "sum", "sqrtn")
    },
    "LinearFeatures": lambda: LinearFeatures([H]),
}


@pytest.mark.parametrize("form", ["nnzs", "offsets"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_and_gradients_ignore_what_is_over(folder, form, name):
    layer, results = LAYERS[name](), []
    for multi_hot in (MultiHot(form, bucketed=True), form):
        inputs, _ = loader_of(folder, 64, multi_hot=multi_hot, shuffle=False).peek()
        layer(inputs)

        @tf.function(jit_compile=True)
        def step(inputs):
            with tf.GradientTape() as tape:
                output = layer(inputs)
                total = tf.reduce_sum(output * tf.sin(tf.range(64.0))[:, None])
            gradients = tape.gradient(total, layer.trainable_variables)
            return output, [tf.convert_to_tensor(gradient) for gradient in gradients]

        results.append(tf.nest.flatten(step(inputs)))
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


COUNTED = """
import json, pathlib, sys
folder, dump = sys.argv[1:]
import keras
from tutorlib import MultiHot
from tutorlib.layers import DenseFeatures, keras_inputs
from tutorlib.loader import KerasSequenceLoader
from tutorlib.schema import Column, Schema

lists = [Column(n, "categorical", cardinality=60, embedding_dim=4, multi_hot=True) for n in "h"]
schema = Schema([*lists, Column("y", "label")])
counts = []
for bucketed, epochs in ((True, 2), (False, 1)):
    model = keras.Model(inputs := keras_inputs(schema), keras.layers.Dense(1)(
        DenseFeatures(Schema(lists))(inputs)))
    model.compile("sgd", "mse", jit_compile=True)
    # XLA writes down each module that it compiles
    before = len(list(pathlib.Path(dump).glob("*step*.before_optimizations.txt")))
    loader = KerasSequenceLoader(
        folder, 100, schema=schema, drop_last=True, multi_hot=MultiHot(bucketed=bucketed))
    model.fit(loader, epochs=epochs, verbose=0)
    counts.append(len(list(pathlib.Path(dump).glob("*step*.before_optimizations.txt"))) - before)
print(json.dumps(counts))
"""


def test_xla_compiles_few_shapes(folder, tmp_path, root):
    environment = {**os.environ, "XLA_FLAGS": f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"}
    command = [sys.executable, "-W", "ignore", "-c", COUNTED, str(folder), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=root)
    assert done.returncode == 0, done.stderr[-3000:]
    few, many = json.loads(done.stdout.splitlines()[-1])
    assert 1 <= few <= 2
    assert many >= 8


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"bucketed=True .*'ragged'.*'nnzs'"):
        MultiHot("ragged", bucketed=True)
    for longest in (0, -1):
        with pytest.raises(ValueError, match=f"max_length must be at least 1, got {longest}"):
            MultiHot(max_length=longest)
    table = pa.table({"g": [[1, 2, 3], [1, 2, 3], [1, 2, 3, 4]]})
    loader = KerasSequenceLoader(table, 3, cat_names=["g"], multi_hot=MultiHot(max_length=3))
    with pytest.raises(ValueError, match=r"'g': a list of 4 values at row 2, but.*max_length=3"):
        loader.peek()
