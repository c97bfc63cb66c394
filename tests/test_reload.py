"""Every module may be loaded again in a running notebook, as `%autoreload` does."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODE = """
import importlib, pkgutil, sys
import keras
import numpy as np
import pyarrow as pa
import tutorlib

names = [m.name for m in pkgutil.walk_packages(tutorlib.__path__, "tutorlib.")]
modules = {name: importlib.import_module(name) for name in names}
ordered = []  # those that a module imports come before it: it takes their new classes


def visit(name):
    if name in modules and name not in ordered:
        module = modules.pop(name)
        for value in list(vars(module).values()):
            visit(getattr(value, "__module__", None))
        ordered.append(module)


for name in names:
    visit(name)
for _ in range(2):
    for module in [tutorlib, *ordered]:
        importlib.reload(module)

from tutorlib import DLRM, Column, KerasSequenceLoader, RowSparseAdam, Schema

columns = [Column("C1", "categorical", cardinality=4), Column("I1", "continuous")]
rows = {"C1": np.arange(4), "I1": np.ones(4, "float32"), "label": np.array([0.0, 1, 0, 1], "f4")}
loader = KerasSequenceLoader(
    pa.table(rows), 4, schema=Schema([*columns, Column("label", "label")])
)
for policy in ("float32", "mixed_float16"):
    keras.config.set_dtype_policy(policy)
    model = DLRM(columns, 4, [4], [4])
    model.compile(RowSparseAdam(), "binary_crossentropy")
    model.fit(loader, verbose=0)
    model.save(f"{sys.argv[1]}/model.keras")
    again = keras.models.load_model(f"{sys.argv[1]}/model.keras")
    assert type(again.get_layer("embeddings")) is tutorlib.FusedEmbedding
    assert int(model.optimizer.iterations) == int(again.optimizer.iterations) == 1
"""


def test_a_model_is_trained_saved_and_loaded_after_every_module_was_reloaded(tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", CODE, tmp_path],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert result.returncode == 0, result.stderr[-3000:]
