"""A train step copies nothing of a batch to the host and back: told by TensorFlow's own kernels."""

import keras
import pytest
import tensorflow as tf

from tests.support.kernel_memory import knows_gpu_kernels, moves
from tutorlib.models import DLRM, WideAndDeep, movielens_network
from tutorlib.optimizers import RowSparseAdam, RowWiseAdagrad
from tutorlib.schema import Column, Schema

pytestmark = pytest.mark.skipif(
    not knows_gpu_kernels(), reason="needs a TensorFlow that was built for CUDA"
)

ROWS, VALUES = 4096, 9000
ONE_HOT = [Column(f"C{i}", "categorical", cardinality=1000, embedding_dim=8) for i in range(3)]
TAGS = Column("tags", "categorical", multi_hot=True, cardinality=500, embedding_dim=8)
PLAIN = Schema([*ONE_HOT, Column("I1", "continuous"), Column("I2", "continuous")])
LISTS = Schema([*PLAIN, TAGS])

MODELS = {
    "DLRM": lambda: DLRM(PLAIN, 8, [16], [16]),
    "DLRM stacked": lambda: DLRM(PLAIN, 8, [16], [16], batch_layout="stacked"),
    "WideAndDeep": lambda: WideAndDeep(LISTS, [16]),
    "movielens_network": lambda: movielens_network(LISTS, [16]),
}


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr("tutorlib.layers.features.min_int_dtype_of_models", lambda: "int64")
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [kind])


def moves_of_a_step(model, optimizer="adam"):
    """Return what the model's train step would copy, given batches as a GPU's loader makes them."""
    model.compile(optimizer, "binary_crossentropy", metrics=["auc"], jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    inputs = {}
    for tensor in model.inputs:
        rows = VALUES if tensor.name.endswith("__values") else ROWS
        dtype = tf.int64 if "int" in tensor.dtype else tf.float32
        inputs[tensor.name] = tf.ones((rows, tensor.shape[1]), dtype)

    @tf.function
    def step(inputs, labels):
        return model.train_step((inputs, labels))

    return moves(step, inputs, tf.zeros((ROWS, 1)))


@pytest.mark.parametrize("optimizer", ["adam", RowSparseAdam, RowWiseAdagrad])
@pytest.mark.parametrize("name", MODELS)
def test_nothing_of_a_batch_goes_to_the_host(as_on_a_gpu, name, optimizer):
    made = optimizer if isinstance(optimizer, str) else optimizer()
    assert moves_of_a_step(MODELS[name](), made) == set()


def test_a_model_with_int32_inputs_would_copy_them():
    """What the widening is for; and that the test above can fail."""
    found = moves_of_a_step(MODELS["WideAndDeep"]())
    assert any(move.endswith("GPU to host") for move in found)
    assert any(move.endswith("host to GPU") for move in found)


def test_a_keras_embedding_takes_wide_ids_as_they_are():
    ids = keras.Input((1,), name="id", dtype="int64")
    hidden = keras.layers.Flatten()(keras.layers.Embedding(97, 4)(ids))
    assert moves_of_a_step(keras.Model([ids], keras.layers.Dense(1)(hidden))) == set()
