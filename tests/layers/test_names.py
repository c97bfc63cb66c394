"""Columns may have any name: of inputs, of tables and of the state of optimizers."""

import keras
import numpy as np
import pytest

from tutorlib.layers import keras_inputs
from tutorlib.models import DLRM, WideAndDeep, movielens_network
from tutorlib.optimizers import RowSparseAdam
from tutorlib.schema import Column

NAMES = [
    *["Item Name", "price ($)", "a:b", "größe", "%", "$", " ", "日本", "{x}", "a\\b", "a\nb", ".."],
    *["_x", "__x", "-x", "1st", "x" * 300, "x" * 301],
    *["a b", "a_b", "A_B", "a-b", "abc", "ABC", "abc_1", "ABC_1", "bias", "numeric_kernel"],
]
LAYERS = ["features", "mlp", "probability", "deep", "wide", "logit", "embeddings", "interaction"]
LABELS = np.array([[0.0], [1.0]], np.float32)
IDS, LISTS = np.array([[0], [1]]), {"values": np.array([[0], [1], [2]]), "nnzs": [[1], [2]]}


def columns(names, lists=False):
    ids = (Column(n, "categorical", cardinality=5, embedding_dim=2, multi_hot=lists) for n in names)
    return [*ids, Column("number of", "continuous")]


def batch(names, lists=False):
    numbers = {"number of": LABELS}
    if not lists:
        return {name: IDS for name in names} | numbers
    return {f"{n}__{part}": np.array(x) for n in names for part, x in LISTS.items()} | numbers


def trained(model, optimizer, rows, *, eager=False):
    model.compile(optimizer, "binary_crossentropy", run_eagerly=eager, jit_compile=False)
    model.train_on_batch(rows, LABELS)
    return model


@pytest.mark.parametrize(
    ("optimizer", "lists"),
    [(keras.optimizers.Adam, False), (RowSparseAdam, True)],
)
def test_columns_of_any_name_train_and_come_back_from_a_file(optimizer, lists, tmp_path):
    rows = batch(NAMES, lists)
    eager = optimizer is not keras.optimizers.Adam  # tracing takes far longer than two steps
    model = trained(WideAndDeep(columns(NAMES, lists), [4]), optimizer(), rows, eager=eager)
    assert set(model.input) == set(rows)
    paths = [variable.path for variable in [*model.variables, *model.optimizer.variables]]
    assert len(set(paths)) == len(paths)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    for restored in (again, WideAndDeep(columns(NAMES, lists), [4])):
        if restored is not again:
            model.save_weights(tmp_path / "only.weights.h5")
            restored.load_weights(tmp_path / "only.weights.h5")
        for ours, theirs in zip(model.get_weights(), restored.get_weights(), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    for one in (model, again):
        one.train_on_batch(rows, LABELS)
    for ours, theirs in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "make", [lambda c: DLRM(c, 2, [4], [4]), lambda c: WideAndDeep(c, [4]), movielens_network]
)
def test_columns_called_as_layers_of_a_model_are_its_inputs(make):
    model = trained(make(columns(LAYERS)), "adam", batch(LAYERS))
    assert set(model.input) == {*LAYERS, "number of"}


@pytest.mark.parametrize("names", [["a/b", "a_b", "c/d"], [""], ["/", "_"]])
def test_a_name_that_keras_refuses_is_refused(names):
    with pytest.raises(ValueError, match=r"cannot be inputs of a Keras model.*>> Rename\("):
        keras_inputs(columns(names))
    if len(names) > 1:  # stacked batches have no names of columns
        DLRM(columns(names), 2, [4], [4], batch_layout="stacked")
