"""Code that a test runs in a process of its own, on another backend of Keras than TensorFlow."""

import importlib.util
import json

import pytest

from tests.support import processes

both = pytest.mark.parametrize("backend", ["jax", "torch"])

COMMON = """
import json, sys
sys.modules["tensorflow"] = None  # as where it is not installed
import keras
import numpy as np
from tutorlib.layers import DenseFeatures, keras_inputs
from tutorlib.loader import KerasSequenceLoader
from tutorlib.models import DLRM
from tutorlib.schema import Column, Schema

folder, numpy = sys.argv[1], keras.ops.convert_to_numpy
ids = [Column(n, "categorical", cardinality=9, embedding_dim=4) for n in ("c", "d")]
rest = [Column("x", "continuous"), Column("click", "label"), Column("w", "weight")]
scalars = Schema([*ids, *rest])
a = Column("a", "categorical", cardinality=9, embedding_dim=4, multi_hot=True)
lists = Schema([a, *ids, *rest])

def compiled(model, **arguments):
    arguments = {"loss": "binary_crossentropy", "weighted_metrics": ["mae"], **arguments}
    model.compile(keras.optimizers.SGD(0.05), **arguments)
    return model

def plain_model():
    keras.utils.set_random_seed(0)
    inputs = {"x": keras.Input((1,), name="x")}
    return compiled(keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs["x"])))
"""


def run(backend, folder, code):
    """Run the code; returns what it printed last, as JSON."""
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed: pip install {backend}")
    environment = {"KERAS_BACKEND": backend, "CUDA_VISIBLE_DEVICES": ""}
    return json.loads(processes.run(COMMON + code, folder, **environment).splitlines()[-1])
