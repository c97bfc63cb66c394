"""What is attacked of a training: states of a loader, checkpoints, and TFRecord folders.

These are read with TensorFlow, which each process starts again: about a second a case.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

import tfrecords
from tests.attack.edits import edit_bytes, edit_json
from tutorlib.callbacks import LoaderCheckpoint
from tutorlib.loader import KerasSequenceLoader
from tutorlib.schema import Column, Schema

ROWS = 60
BATCH_SIZE = 8
SCHEMA = Schema([Column("id", "categorical"), Column("x", "continuous", "float32")])
LABELLED = Schema([*SCHEMA, Column("label", "label", "float32")])


def _rows() -> pa.Table:
    values = np.random.default_rng(0).random(ROWS, dtype=np.float32)
    return pa.table({"id": np.arange(ROWS), "x": values, "label": np.rint(values)})


def _loader(folder: Path) -> KerasSequenceLoader:
    return KerasSequenceLoader(folder / "rows", BATCH_SIZE, schema=LABELLED)


def _make_rows(folder: Path) -> None:
    (folder / "rows").mkdir()
    pq.write_table(_rows(), folder / "rows" / "rows.parquet", row_group_size=20)


def damage_json_or_bytes(folder: Path, rng: Random) -> str:
    """Change a JSON file or the bytes of a file of another kind."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".parquet"]
    path = rng.choice(sorted(path for path in paths if path.name != ".tutorlib"))
    if path.suffix == ".json" and rng.random() < 0.9:
        text, what = edit_json(path.read_text(encoding="utf-8"), rng)
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
    else:
        data, what = edit_bytes(path.read_bytes(), rng)
        path.write_bytes(data)
    return f"{path.relative_to(folder)}: {what}"


# ---- the state of a loader ----------------------------------------------------------------------


def make_state(folder: Path) -> None:
    """Write the state of a loader that has given two batches."""
    _make_rows(folder)
    with _loader(folder) as loader:
        batches = iter(loader)
        next(batches), next(batches)
        (folder / "state.json").write_text(json.dumps(loader.state_dict()), encoding="utf-8")


def read_state(folder: Path) -> None:
    """Resume from it; whatever is wrong with a state is an error of the state, not of a file."""
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    except (ValueError, RecursionError):  # the caller's own
        return
    with _loader(folder) as loader:
        loader.load_state_dict(state)
        for _ in loader:
            pass


# ---- checkpoints --------------------------------------------------------------------------------


def _model() -> keras.Model:
    x = keras.Input((1,), name="x")
    model = keras.Model({"x": x}, keras.layers.Dense(1)(x))
    model.compile("adam", "mse", jit_compile=False, run_eagerly=True)
    return model


def make_checkpoint(folder: Path) -> None:
    """Write a checkpoint in the middle of an epoch."""
    _make_rows(folder)
    loader = _loader(folder)
    checkpoint = LoaderCheckpoint(folder / "checkpoints", loader, every_n_batches=3, keep=1)
    model = _model()
    checkpoint.set_model(model)
    checkpoint.on_train_begin()
    checkpoint.on_epoch_begin(0)
    batches = iter(loader)
    for number in range(3):
        model.train_on_batch(*next(batches))
        checkpoint.on_train_batch_end(number)
    loader.close()


def read_checkpoint(folder: Path) -> None:
    """Restore it, and train on a batch."""
    model = _model()
    with _loader(folder) as loader:
        LoaderCheckpoint(folder / "checkpoints", loader).restore(model)
        model.train_on_batch(*next(iter(loader)))


# ---- TFRecord folders ---------------------------------------------------------------------------


def make_tfrecords(folder: Path) -> None:
    """Write the four forms."""
    tfrecords.write_examples(_rows(), folder / "examples", rows_per_file=40)
    tfrecords.write_prebatched(_rows(), folder / "prebatched", batch_size=BATCH_SIZE)
    tfrecords.write_raw(_rows(), folder / "raw")
    tfrecords.write_raw_batches(_rows(), folder / "raw_batches", batch_size=BATCH_SIZE)


def read_tfrecords(folder: Path) -> None:
    """Check the records, as a reader of foreign files has to, and take all batches."""
    for name in ("examples", "prebatched"):
        tfrecords.check_records(folder / name)
    datasets = [
        tfrecords.parsed_batches(folder / "examples", BATCH_SIZE, LABELLED),
        tfrecords.prebatched_dataset(folder / "prebatched", LABELLED),
        tfrecords.raw_stacked(folder / "raw", BATCH_SIZE, LABELLED),
        tfrecords.raw_columns(folder / "raw", BATCH_SIZE, LABELLED, shuffle=False),
        tfrecords.raw_batches(folder / "raw_batches", LABELLED),
    ]
    for dataset in datasets:
        try:
            for _ in dataset:
                pass
        except tf.errors.OpError as error:  # the records are whole, but not what is told of them
            raise ValueError(f"{folder}: {error}") from error
