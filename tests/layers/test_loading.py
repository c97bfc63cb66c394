"""A saved model loads in a fresh process in which tutorlib was only imported."""

from __future__ import annotations

import json
import subprocess
import sys

import keras
import numpy as np
import pytest

from tutorlib.layers import DenseFeatures, FusedEmbedding, keras_inputs
from tutorlib.models import DLRM, DCNv2, WideAndDeep
from tutorlib.optimizers import RowSparseAdam
from tutorlib.schema import Column, Schema

SCHEMA = Schema(
    [
        Column("C1", "categorical", cardinality=9, embedding_dim=4),
        Column("C2", "categorical", cardinality=5, embedding_dim=4),
        Column("x", "continuous", "float32"),
    ]
)
BATCH = {
    "C1": np.array([[0], [8]], "int32"),
    "C2": np.array([[4], [1]], "int32"),
    "x": np.array([[0.5], [-1.0]], "float32"),
}
LOAD = """
{imports}
import json, sys
assert not any(name.startswith("tutorlib.layers") for name in sys.modules)
import numpy as np
batch = {{name: np.array(v, "float32" if name == "x" else "int32") for name, v in {batch}.items()}}
models = [keras.models.load_model(path) for path in {paths}]
print(json.dumps([np.asarray(model(batch)).tolist() for model in models]))
print(json.dumps([type(model.optimizer).__name__ for model in models]))
"""


def features_model():
    inputs = keras_inputs(SCHEMA)
    ids = keras.layers.Concatenate()([inputs["C1"], inputs["C2"]])
    fused = FusedEmbedding(SCHEMA.categorical, "concat")(ids)
    hidden = keras.layers.Concatenate()([DenseFeatures(SCHEMA)(inputs), fused])
    return keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Paths of saved models, and what they predict."""
    models = [DLRM(SCHEMA, 4, [4], [4]), WideAndDeep(SCHEMA, [4]), DCNv2(SCHEMA), features_model()]
    paths = []
    for number, model in enumerate(models):
        model.compile(RowSparseAdam("adam"), "binary_crossentropy")
        model.fit(BATCH, np.array([[0.0], [1.0]]), verbose=0)
        paths.append(str(tmp_path_factory.mktemp("models") / f"{number}.keras"))
        model.save(paths[-1])
    return paths, [np.asarray(model(BATCH)) for model in models]


@pytest.mark.parametrize(
    "imports", ["import tutorlib\nimport keras", "import keras\nimport tutorlib"]
)
def test_a_saved_model_loads_after_import_tutorlib_alone(saved, imports):
    paths, expected = saved
    batch = {name: values.tolist() for name, values in BATCH.items()}
    program = LOAD.format(imports=imports, batch=batch, paths=paths)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2_000:]
    predicted, optimizers = map(json.loads, done.stdout.splitlines()[-2:])
    for given, wanted in zip(predicted, expected, strict=True):
        np.testing.assert_allclose(given, wanted, rtol=1e-5)
    assert set(optimizers) == {"RowSparseAdam"}
