"""Lesson 12: trains on one device, then with its tables split over all devices of this process.

python split_tables.py SETTINGS, as JSON: rows, global_batch, folder
"""

import itertools
import json
import sys
from pathlib import Path

import keras

from tutorlib.layers import MLP, DenseFeatures, keras_inputs, pad_tables, plan_tables
from tutorlib.loader import KerasSequenceLoader

COLUMNS = {"cat_names": [f"C{k}" for k in range(1, 9)], "cont_names": ["I1"]}


def train(loader, padded, devices):
    """Train a few steps on some devices; return the plan, the bytes on each device, the losses."""

    def make_model():
        inputs = keras_inputs(padded)
        vectors = DenseFeatures(padded, name="features")(inputs)  # a table per column
        mlp = MLP([32], output_units=1, output_activation="sigmoid", name="mlp")
        return keras.Model(inputs, mlp(vectors), name="clicks")

    mesh = keras.distribution.DeviceMesh((len(devices),), ["batch"], devices)
    plan = plan_tables(make_model, mesh, "adam", split_above="256KiB")
    keras.distribution.set_distribution(plan.distribution())
    keras.utils.set_random_seed(0)
    model = make_model()
    model.compile("adam", "binary_crossentropy")
    losses = [float(model.train_on_batch(*batch)) for batch in itertools.islice(loader, 12)]
    return {"plan": repr(plan), "bytes": max(plan.check(model).values()), "losses": losses}


def main(settings):
    """Train on the first device and on all, and write both results to a file."""
    devices = keras.distribution.list_devices("cpu")
    batch_size = settings["global_batch"]
    loader = KerasSequenceLoader(settings["rows"], batch_size, drop_last=True, **COLUMNS)
    padded = pad_tables(loader.schema, len(devices))  # rows that divide into equal parts
    results = [train(loader, padded, some) for some in (devices[:1], devices)]
    Path(settings["folder"], "tables.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
