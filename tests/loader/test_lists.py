"""MultiHot: lists as values and counts, or padded to one width; layers ignore the padding."""

import json

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from tests.support import backends
from tests.support.loaders import loader_with
from tests.support.processes import run
from tests.support.sequences import states_of_lists
from tutorlib import MultiHot
from tutorlib.columns import Ragged
from tutorlib.layers import DenseFeatures
from tutorlib.loader import KerasSequenceLoader
from tutorlib.schema import Column, Schema

ROWS = 1000
H = Column("h", "categorical", "int32", multi_hot=True, cardinality=60, embedding_dim=4)
SCHEMA = Schema([H, Column("y", "label", "float32")])
loader_of = loader_with(schema=SCHEMA, buffer_size=150, parts_per_chunk=2)
FORMS = ["nnzs", "padded"]


def lists_of(rng, mean, ids, dtype):
    """Lists of ids from 1 on whose lengths spread as wide as they are long; many are empty."""
    offsets = np.concatenate([[0], np.cumsum(rng.geometric(1 / (mean + 1), ROWS) - 1)])
    return Ragged(rng.integers(1, ids, offsets[-1]).astype(dtype), offsets)


@pytest.fixture(scope="module")
def columns():
    lists = lists_of(np.random.default_rng(0), 2, 60, "int32")
    return {"h": lists, "y": (np.arange(ROWS) % 2).astype("float32")}


@pytest.mark.parametrize("backend", ["tensorflow", "tensorflow, XLA", "jax"])
def test_a_recurrent_network_sees_each_list_in_its_order_and_no_padding(folder, backend, tmp_path):
    if backend == "jax":
        said = backends.run("jax", folder, SEQUENCES)
        states, alone = {form: np.array(rows) for form, rows in said[0].items()}, np.array(said[1])
    else:
        states, alone = states_of_lists(folder, SCHEMA, jit_compile=backend.endswith("XLA"))
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


@pytest.mark.parametrize("form", FORMS)
def test_batches_without_any_value(form):
    table = pa.table({"h": pa.array([[]] * 10, pa.list_(pa.int32())), "y": [1.0] * 10})
    inputs, _ = loader_of(table, 10, multi_hot=form).peek()
    values = inputs["h" if form == "padded" else "h__values"]
    assert tuple(values.shape) == {"nnzs": (0, 1), "padded": (10, 1)}[form]
    layer = DenseFeatures([H])
    for call in (layer, tf.function(layer, jit_compile=True)):
        np.testing.assert_array_equal(call(inputs), np.zeros((10, 4)))
    inputs, _ = loader_of(table, 10, multi_hot=MultiHot("padded", max_length=7)).peek()
    assert (inputs["h"].numpy() == np.zeros((10, 7))).all()


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
for form, max_length, epochs in (("padded", 70, 2), ("nnzs", None, 1)):
    model = keras.Model(inputs := keras_inputs(schema, multi_hot=form), keras.layers.Dense(1)(
        DenseFeatures(Schema(lists))(inputs)))
    model.compile("sgd", "mse", jit_compile=True)
    # XLA writes down each module that it compiles
    before = len(list(pathlib.Path(dump).glob("*step*.before_optimizations.txt")))
    loader = KerasSequenceLoader(
        folder, 100, schema=schema, drop_last=True, multi_hot=MultiHot(form, max_length))
    model.fit(loader, epochs=epochs, verbose=0)
    counts.append(len(list(pathlib.Path(dump).glob("*step*.before_optimizations.txt"))) - before)
print(json.dumps(counts))
"""


@pytest.mark.slow  # twenty seconds
def test_xla_compiles_once_for_lists_of_one_width(folder, tmp_path):
    flags = f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"
    printed = run(COUNTED, folder, tmp_path, XLA_FLAGS=flags)
    few, many = json.loads(printed.splitlines()[-1])
    assert few == 1
    assert many >= 8


def test_lists_longer_than_max_length_are_refused():
    for longest in (0, -1):
        with pytest.raises(ValueError, match=f"max_length must be at least 1, got {longest}"):
            MultiHot(max_length=longest)
    table = pa.table({"g": [[1, 2, 3], [1, 2, 3], [1, 2, 3, 4]]})
    loader = KerasSequenceLoader(table, 3, cat_names=["g"], multi_hot=MultiHot(max_length=3))
    with pytest.raises(ValueError, match=r"'g': a list of 4 values at row 2, but.*max_length=3"):
        loader.peek()
