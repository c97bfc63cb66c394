"""LoaderCheckpoint saves and restores all that a training needs to resume bit for bit."""

import io
import json
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.loaders import loader_with
from tutorlib.callbacks import CHECKPOINT, UNFINISHED, LoaderCheckpoint, _read
from tutorlib.optimizers import RowSparseAdam
from tutorlib.parquet import ParquetSource

ROWS, BATCH_SIZE, EPOCHS = 2000, 50, 3
BATCHES = ROWS // BATCH_SIZE
PROCESSES = multiprocessing.get_context("forkserver")  # imports once what is slow to import
PROCESSES.set_forkserver_preload(["tutorlib.loader", "tutorlib.callbacks", "tensorflow"])


@pytest.fixture(scope="module")
def columns():
    """Return rows with an id, a number and a label."""
    rng = np.random.default_rng(0)
    item, x = rng.integers(0, 50, ROWS), rng.standard_normal(ROWS).astype("float32")
    return {"item": item, "x": x, "label": (x + item % 2 > 0.5).astype("float32")}


loader_of = loader_with(
    BATCH_SIZE, label_names=["label"], cat_names=["item"], cont_names=["x"], buffer_size=200
)


def model_of(optimizer=None, embedding_rows=50, units=8, seed=1, **options):
    """Return a model with all that can get lost: slots, a schedule, Dropout, moving averages."""
    keras.utils.set_random_seed(seed)
    item, x = (keras.Input((1,), name=name) for name in ("item", "x"))
    embedded = keras.layers.Flatten()(keras.layers.Embedding(embedding_rows, 4)(item))
    hidden = keras.layers.Concatenate()([embedded, x])
    hidden = keras.layers.Dense(units, activation="relu")(hidden)
    hidden = keras.layers.Dropout(0.3)(keras.layers.BatchNormalization()(hidden))
    output = keras.layers.Dense(1, activation="sigmoid", dtype="float32")(hidden)
    model = keras.Model({"item": item, "x": x}, output)
    decay = keras.optimizers.schedules.ExponentialDecay(0.01, 10, 0.9)
    model.compile(optimizer or keras.optimizers.Adam(decay), "binary_crossentropy", **options)
    return model


def values_of(model):
    """Return all that training changes in a model."""
    variables = [*model.variables, *model.optimizer.variables]
    return [keras.ops.convert_to_numpy(variable) for variable in variables]


def assert_equal_bits(have, want):
    """Assert that two lists of arrays have the same dtypes, shapes and bits."""
    assert len(have) == len(want)
    for a, b in zip(have, want, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert a.tobytes() == b.tobytes()


class Interrupted(Exception):
    """Ends a fit in the middle."""


class InterruptAfter(keras.callbacks.Callback):
    """Raises `Interrupted` after some executions of steps."""

    def __init__(self, executions):
        super().__init__()
        self.left = executions

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            raise Interrupted


def interrupted(folder, path, executions, *, every_n_batches=7, **model_options):
    """Train with checkpoints until an interruption; returns the model."""
    loader, model = loader_of(folder), model_of(**model_options)
    callbacks = [LoaderCheckpoint(path, loader, every_n_batches), InterruptAfter(executions)]
    with pytest.raises(Interrupted):
        model.fit(loader, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    return model


def place_in(path):
    """Return the epoch and the batch of the checkpoint in a folder."""
    state, _ = _read(Path(path) / CHECKPOINT)
    return state["loader"]["epoch"], state["loader"]["batch"]


# ---- what is restored ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "per_execution", "place"),
    [
        (lambda: None, 3, (0, 0, 12)),  # Adam with a schedule
        (RowSparseAdam, 1, (1, 1, 7)),
        (lambda: keras.optimizers.AdamW(0.01, use_ema=True, ema_momentum=0.9), 1, (1, 1, 7)),
        (
            lambda: keras.optimizers.LossScaleOptimizer(
                keras.optimizers.RMSprop(0.01, centered=True), 4.0, dynamic_growth_steps=9
            ),
            1,
            (1, 1, 7),
        ),
    ],
)
def test_training_resumes_bit_for_bit_with_every_optimizer(
    folder, tmp_path, optimizer, per_execution, place
):
    """The model has Dropout, whose random state Keras's own weight files leave out."""
    want, steps = model_of(optimizer()), {"steps_per_execution": per_execution}
    want.fit(loader_of(folder), epochs=EPOCHS, verbose=0)
    executions, every = (50, 7) if per_execution == 1 else (5, 2 * per_execution)
    interrupted(folder, tmp_path, executions, every_n_batches=every, optimizer=optimizer(), **steps)
    loader, model = loader_of(folder), model_of(optimizer(), seed=99, **steps)
    checkpoint = LoaderCheckpoint(tmp_path, loader)
    epoch = checkpoint.restore(model)
    assert (epoch, loader.epoch, loader.first_batch) == place
    model.fit(loader, initial_epoch=epoch, epochs=EPOCHS, verbose=0, callbacks=[checkpoint])
    assert_equal_bits(values_of(model), values_of(want))


def test_with_steps_per_epoch_the_position_in_the_loader_is_saved(folder, tmp_path):
    loader, model = loader_of(folder), model_of()
    checkpoint = LoaderCheckpoint(tmp_path, loader, every_n_batches=20)
    model.fit(loader, steps_per_epoch=20, epochs=3, verbose=0, callbacks=[checkpoint])
    # Twice at one position, within an epoch of fit and at its end: the later one counts.
    assert place_in(tmp_path) == (1, 20)
    restored = model_of()
    assert LoaderCheckpoint(tmp_path, loader_of(folder)).restore(restored) == 3  # epochs of fit
    assert_equal_bits(values_of(restored), values_of(model))


def test_a_model_that_is_not_built_is_built_for_restoring(folder, tmp_path):
    class Number(keras.layers.Layer):
        def call(self, inputs):
            return inputs["x"]

    models = []
    for epochs in (1, 2):
        models.append(keras.Sequential([Number(), keras.layers.Dense(1)]))
        models[-1].compile("adam", "mse")
        loader = loader_of(folder)
        checkpoint = LoaderCheckpoint(tmp_path, loader)
        assert checkpoint.restore(models[-1]) == epochs - 1
        if epochs == 1:
            models[0].fit(loader, verbose=0, callbacks=[checkpoint])
    assert_equal_bits(*map(values_of, models))


def test_variables_of_16_bits_are_restored_bit_for_bit(folder, tmp_path):
    def model(seed):
        keras.utils.set_random_seed(seed)
        inputs = keras.Input((1,), dtype="bfloat16")
        made = keras.Model(inputs, keras.layers.Dense(3, dtype="bfloat16")(inputs))
        made.compile("adam", "mse")
        made.train_on_batch(np.ones((8, 1)), np.ones((8, 3)))
        return made

    saved, restored, loader = model(1), model(2), loader_of(folder)
    checkpoint = LoaderCheckpoint(tmp_path, loader)
    checkpoint.set_model(saved)
    checkpoint.on_train_begin()
    checkpoint.on_epoch_end(0)
    LoaderCheckpoint(tmp_path, loader_of(folder)).restore(restored)
    assert_equal_bits(values_of(restored), values_of(saved))


# ---- when checkpoints are written ---------------------------------------------------------------


def test_checkpoints_are_written_after_batches_and_after_the_validation_of_epochs(folder, tmp_path):
    """Otherwise a training that is killed in between never validates that epoch."""
    seen, loader = [], loader_of(folder)
    watch = keras.callbacks.Callback()
    watch.on_train_batch_begin = lambda batch, logs=None: seen.append(place_in(tmp_path))
    watch.on_test_begin = lambda logs=None: seen.append(place_in(tmp_path))
    checkpoint = LoaderCheckpoint(tmp_path, loader, 15)
    model = model_of()
    model.fit(loader, verbose=0, callbacks=[checkpoint])
    assert place_in(tmp_path) == (1, 0)
    valid = loader_of(ParquetSource(folder).head(100))
    model.fit(loader, verbose=0, validation_data=valid, callbacks=[watch, checkpoint])
    assert seen == [(1, 0)] * 15 + [(1, 15)] * 15 + [(1, 30)] * 11  # the last as validation began
    assert place_in(tmp_path) == (2, 0)


def test_other_files_are_kept_and_what_a_killed_process_left_is_written_over(folder, tmp_path):
    interrupted(folder, tmp_path, 8)
    (tmp_path / UNFINISHED).write_text("left by a killed process")
    (tmp_path / "notes").mkdir()
    loader, model = loader_of(folder), model_of()
    checkpoint = LoaderCheckpoint(tmp_path, loader)
    checkpoint.restore(model)
    assert loader.first_batch == 7
    model.fit(loader, verbose=0, callbacks=[checkpoint])
    assert place_in(tmp_path) == (1, 0)
    assert sorted(file.name for file in tmp_path.iterdir()) == [CHECKPOINT, "notes"]


# ---- what is refused ----------------------------------------------------------------------------


def flipped(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_changed_byte_of_a_checkpoint_is_refused_or_changes_nothing(tmp_path):
    """Only times and paddings are not covered by the CRC-32 of the arrays."""
    file, values = tmp_path / CHECKPOINT, [np.arange(6.0), np.ones((0, 3)), np.arange(20)]
    np.savez(tmp_path / "whole.npz", *values, state=json.dumps({"model": ["Adam", "", "", ""]}))
    whole = (tmp_path / "whole.npz").read_bytes()
    refused = 0
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        file.write_bytes(changed)
        try:
            assert_equal_bits(_read(file)[1], values)
        except ValueError:
            refused += 1
    assert refused > len(whole) / 2


def foreign(file, content=b"PK nothing"):
    """Put other bytes in place of a checkpoint."""
    file.write_bytes(content)


def other_arrays(file):
    """Put a file of other arrays in place of a checkpoint."""
    content = io.BytesIO()
    np.savez(content, weights=np.ones(3))
    foreign(file, content.getvalue())


@pytest.mark.parametrize(
    ("model", "batch_size", "change", "message"),
    [
        ({"units": 9}, 50, None, r"another model: .*dense.*/kernel was float32 \[5, 8\], is .*9\]"),
        ({"optimizer": "sgd"}, 50, None, "another model: the optimizer was Adam, is SGD"),
        ({}, 20, None, r"batch_size was 50, is 20"),
        ({}, 50, flipped, "bin is no checkpoint.* was changed .*CRC.* begin the training again"),
        ({}, 50, lambda file: os.truncate(file, 1000), "bin is no checkpoint.* was changed after"),
        ({}, 50, foreign, "bin is no checkpoint"),
        ({}, 50, other_arrays, "bin is no checkpoint"),
    ],
)
def test_a_checkpoint_that_does_not_match_is_refused_and_nothing_changes(
    folder, tmp_path, model, batch_size, change, message
):
    interrupted(folder, tmp_path, 8)
    if change is not None:
        change(tmp_path / CHECKPOINT)
    loader, other = loader_of(folder, batch_size), model_of(**model)
    before = [v.numpy() for v in other.variables]
    with pytest.raises(ValueError, match=message):
        LoaderCheckpoint(tmp_path, loader).restore(other)
    assert_equal_bits([v.numpy() for v in other.variables], before)
    assert (loader.epoch, loader.first_batch) == (0, 0)


def test_wrong_arguments_and_other_trainings_are_refused(folder, tmp_path):
    loader, model = loader_of(folder), model_of()
    for error, arguments, message in [
        (ValueError, (tmp_path, loader, 0), "every_n_batches must be at least 1, got 0"),
        (TypeError, (65536, loader), "not int"),
    ]:
        with pytest.raises(error, match=message):
            LoaderCheckpoint(*arguments)
    checkpoint = LoaderCheckpoint(tmp_path / "none", loader)
    with pytest.raises(ValueError, match="compile it before restore"):
        checkpoint.restore(keras.Sequential())
    before = values_of(model)
    assert checkpoint.restore(model) == loader.epoch == loader.first_batch == 0
    assert_equal_bits(values_of(model), before)
    assert not (tmp_path / "none").exists()
    with pytest.raises(RuntimeError, match="give fit and LoaderCheckpoint the same loader"):
        model.fit(loader, callbacks=[LoaderCheckpoint(tmp_path / "x", loader_of(folder), 3)])
    interrupted(folder, tmp_path, 8)
    with pytest.raises(FileExistsError, match=r"checkpoint.bin: call restore\(model\) before"):
        model.fit(loader, verbose=0, callbacks=[LoaderCheckpoint(tmp_path, loader)])
    assert place_in(tmp_path) == (0, 7)
    (tmp_path / "file").touch()
    written = LoaderCheckpoint(tmp_path / "file", loader)
    with pytest.raises(
        OSError, match=r"epoch 1, batch 0 cannot be written to .*: File exists.* make"
    ):
        model.fit(loader, verbose=0, callbacks=[written])


# ---- kills --------------------------------------------------------------------------------------


def train(folder, result, path=None, progress=os.devnull, every_n_batches=5, embedding_rows=50):
    """Train to the end, from the checkpoint if there is one, and save all variables."""
    tf.config.experimental.enable_op_determinism()
    loader, model = loader_of(folder), model_of(embedding_rows=embedding_rows, metrics=["auc"])
    file, epoch = open(progress, "ab", buffering=0), 0
    used = [keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: file.write(b"."))]
    if path is not None:
        used.append(LoaderCheckpoint(path, loader, every_n_batches))
        epoch = used[-1].restore(model)
    valid = loader_of(ParquetSource(folder).head(500), shuffle=False)
    fit = {"initial_epoch": epoch, "epochs": EPOCHS, "verbose": 0, "validation_data": valid}
    model.fit(loader, callbacks=used, **fit)
    np.savez(result, *values_of(model))


def start(*arguments):
    process = PROCESSES.Process(target=train, args=arguments, daemon=True)
    process.start()
    return process


def kill_when(condition, process):
    deadline = time.monotonic() + 120
    while not condition():
        assert process.is_alive(), f"ended early, with {process.exitcode}"
        assert time.monotonic() < deadline
        time.sleep(0.0005)
    os.kill(process.pid, signal.SIGKILL)
    process.join()


def finish(*arguments):
    process = start(*arguments)
    process.join(300)
    assert process.exitcode == 0
    with np.load(arguments[1]) as values:
        return [values[name] for name in values.files]


def size_of(path):
    return path.stat().st_size if path.exists() else 0


@pytest.fixture(scope="module")
def never_killed(folder, tmp_path_factory):
    return finish(folder, tmp_path_factory.mktemp("reference") / "values.npz")


TWICE = pytest.param(1, [50, 25], marks=pytest.mark.slow)


@pytest.mark.parametrize(("every_n_batches", "kills"), [(5, [50]), TWICE])
def test_a_training_killed_at_random_moments_ends_with_the_same_bits(
    folder, never_killed, tmp_path, every_n_batches, kills
):
    path, result, progress = tmp_path / "saved", tmp_path / "values.npz", tmp_path / "progress"
    arguments = (folder, result, path, progress, every_n_batches)
    for most in kills:
        steps = size_of(progress) + random.randint(1, most)
        kill_when(lambda steps=steps: size_of(progress) >= steps, start(*arguments))
        print(f"killed after {size_of(progress)} steps, with {list(path.glob('*'))}")
    assert_equal_bits(finish(*arguments), never_killed)
    repeated = len(kills) * (every_n_batches + 3)  # steps, at most
    assert size_of(progress) < BATCHES * EPOCHS + repeated
    assert [file.name for file in path.iterdir()] == [CHECKPOINT]
