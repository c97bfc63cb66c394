"""Callbacks: what `fit` saves and logs besides its loss.

`LoaderCheckpoint` saves model, optimizer and the position in the data, to resume from. The others
measure a training and never change how it trains: throughput, stalls, and validation on a loader;
`tutorlib.diagnose` finds out why a training is slow.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import struct
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from tutorlib.checks import check_positive
from tutorlib.keras_bridge.adapter import LoaderAdapter, TensorAdapter, caller_of
from tutorlib.keras_bridge.backend import process_index
from tutorlib.loader import KerasSequenceLoader
from tutorlib.output import local_path

Logs = dict[str, float]

# ---- LoaderCheckpoint ----------------------------------------------------------------------------

CHECKPOINT, UNFINISHED = "checkpoint.bin", "unfinished.bin"
State = dict[str, Any]  # JSON values
DAMAGE = (  # what NumPy raises for an npz, a ZIP file of arrays, of which a byte has changed
    *(EOFError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError),
    *(struct.error, zipfile.BadZipFile, zlib.error),
)


class LoaderCheckpoint(keras.callbacks.Callback):
    """Saves model, optimizer and the position in the data together, so that `fit` can resume.

    A `fit` that is killed at any moment and resumes from its checkpoint ends with the same
    weights, bit for bit, as one that was never interrupted, if the steps themselves are
    deterministic (`keras.utils.set_random_seed`, `tf.config.experimental.enable_op_determinism`).
    Put it last in the list of callbacks, after those that change the model or its learning rate.

    Saved: all variables of the model, including the random states of its layers (Keras's
    `save_weights` and `BackupAndRestore` leave them out, so Dropout would continue differently);
    all variables of `model.optimizer`; and `loader.state_dict()`. Not saved: metric values of the
    current epoch, the state of other callbacks (EarlyStopping's best value), random number
    generators outside of layers, and optimizers other than `model.optimizer`.

    The checkpoint is one file of NumPy's npz format, `checkpoint.bin`, which the next one replaces.
    It is flushed to disk before it gets its name, so it is whole, also after a power failure.
    Training waits meanwhile, and the variables are copied in memory.

    Of processes that `keras.distribution` has joined (JAX), the first writes and all restore, so
    `path` must be a folder that all see. As many processes restore as have trained. Variables that
    are split over processes cannot be saved.

    Args:
        path: folder for the checkpoint of one training alone; created if missing.
        loader: the `KerasSequenceLoader` that `fit` is given.
        every_n_batches: save after batches n, 2n, ... of each epoch, at least 1, and at its end;
            with `steps_per_execution`, at the end of the execution. None saves only at the end of
            each epoch.

    Raises:
        ValueError: if `every_n_batches` is below 1.
        RuntimeError: from `fit`, if something else takes batches from the loader, or `fit` is given
            another one.
        FileExistsError: from `fit`, if `path` holds a checkpoint that was not restored.
        OSError: from `fit`, if a checkpoint cannot be written; the one before remains.

    Example:
        >>> loader = KerasSequenceLoader("data/train", 65536, ["label"])  # doctest: +SKIP
        >>> checkpoint = LoaderCheckpoint("checkpoints", loader, 1000)  # doctest: +SKIP
        >>> model.fit(  # the same program starts a training and resumes it  # doctest: +SKIP
        ...     loader, initial_epoch=checkpoint.restore(model), epochs=3, callbacks=[checkpoint]
        ... )
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        loader: KerasSequenceLoader,
        every_n_batches: int | None = None,
    ) -> None:
        super().__init__()
        check_positive(every_n_batches=every_n_batches)
        self.loader = loader
        self.every_n_batches = every_n_batches
        self.folder = local_path(path)
        self.file = self.folder / CHECKPOINT
        self._ours = False  # whether this object restored or wrote the file

    def restore(self, model: keras.Model) -> int:
        """Load the checkpoint into model and loader, and return the epoch to resume with.

        Without a checkpoint, nothing changes. With one, a model that is not built yet is built by
        calling it on `loader.peek()`. If the model or the data does not match, neither changes.

        Args:
            model: compiled as it was when the checkpoint was written.

        Returns:
            `initial_epoch` for `fit`: its epoch in progress, or the next one. An epoch in progress
            with its own `steps_per_epoch` counts its steps from the saved position.

        Raises:
            ValueError: if the model has no optimizer, or the checkpoint is damaged or belongs to
                another model, optimizer or data.

        Example:
            >>> checkpoint = LoaderCheckpoint("no such folder", loader)  # doctest: +SKIP
            >>> checkpoint.restore(model)  # doctest: +SKIP
            0
        """
        if not getattr(model, "optimizer", None):
            raise ValueError(f"model {model.name!r} has no optimizer: compile it before restore()")
        self._ours = True
        if not self.file.exists():
            return self.loader.epoch
        build(model, lambda: self.loader.peek())
        state, values = _read(self.file)
        _check_model(self.file, state["model"], model)
        try:
            self.loader.load_state_dict(state["loader"])
        except ValueError as error:
            raise ValueError(f"{self.file}: {error}") from error
        for variable, value in zip(variables_of(model), values, strict=True):
            variable.assign(value.view(np.dtype(variable.dtype)))  # bfloat16 is saved as bytes
        return state["fit_epoch"]

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Refuse a folder with the checkpoint of another training."""
        if self.file.exists() and not self._ours:
            raise FileExistsError(
                f"there is a checkpoint already, {self.file}: call restore(model) before fit to "
                "resume from it, or give another folder"
            )
        self._epoch = self.loader.epoch
        self._batch = self.loader.first_batch

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Start to count the steps."""
        self._steps = 0
        self._fit_epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Save after every n-th batch; after the last one `on_epoch_end` does, after validation."""
        before = self._batch
        self._batch = min(before + batch + 1 - self._steps, len(self.loader))
        self._steps = batch + 1
        every = self.every_n_batches
        if self._batch == len(self.loader):
            self._epoch += 1
            self._batch = 0
        elif every and self._batch // every > before // every:
            self._save()

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Save; `fit` resumes with its next epoch."""
        self._fit_epoch = epoch + 1
        self._save()

    def _save(self) -> None:
        """Write a checkpoint of the batches trained on so far."""
        # Where the loader stands must be where the training stands, but for batches taken ahead.
        state = self.loader.state_dict()
        if state["epoch"] == self._epoch + 1 and not state["batch"] and self._batch:
            return  # JAX prefetches a batch on an accelerator; the epoch ends with the next step
        if state["epoch"] != self._epoch or state["batch"] < self._batch:
            raise RuntimeError(
                f"fit has trained on {self._batch} batches of epoch {self._epoch}, but the loader "
                f"of LoaderCheckpoint is at batch {state['batch']} of epoch {state['epoch']}: give "
                "fit and LoaderCheckpoint the same loader, and anything else, such as validation, "
                "a loader of its own"
            )
        state["batch"] = self._batch
        model = self.model  # on JAX, this brings the variables up to date
        if process_index() > 0:
            return
        content = {"model": _description(model), "loader": state, "fit_epoch": self._fit_epoch}
        values = [keras.ops.convert_to_numpy(variable) for variable in variables_of(model)]
        try:
            self._write(content, values)
        except OSError as error:
            raise OSError(
                error.errno,
                f"a checkpoint of epoch {self._epoch}, batch {self._batch} cannot be written to "
                f"{self.folder}: {error.strerror}. The one before is complete: make room or choose "
                "another folder, and resume with restore()",
            ) from error
        self._ours = True

    def _write(self, content: State, values: list[np.ndarray]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = self.folder / UNFINISHED  # what a killed process left is written over
        with open(unfinished, "wb") as file:
            np.savez(file, *values, state=json.dumps(content))
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self.file)


def _read(file: Path) -> tuple[State, list[np.ndarray]]:
    """Return the state and the arrays of a checkpoint; a CRC-32 of each is compared."""
    try:
        with np.load(file) as arrays:
            state = json.loads(str(arrays["state"]))
            numbers = range(len(state["model"]) - 1)
            return state, [arrays[f"arr_{number}"] for number in numbers]
    except DAMAGE as error:
        raise ValueError(
            f"{file} is no checkpoint of LoaderCheckpoint, or was changed after it was saved "
            f"({error!r}). Remove it, to begin the training again."
        ) from error


def build(model: keras.Model, first_batch: Callable[[], Any]) -> None:
    """Create the variables of a model and of its optimizer that do not exist yet."""
    if not model.built:
        model(first_batch()[0])
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def variables_of(model: keras.Model) -> list[keras.Variable]:
    """Return all that training changes; a model's variables include its random states."""
    return [*model.variables, *model.optimizer.variables]


def _description(model: keras.Model) -> list[str]:
    """Return what identifies a model: its optimizer, then dtype and shape of each variable."""
    kinds = [f"{np.dtype(v.dtype)} {list(v.shape)}" for v in variables_of(model)]
    return [type(model.optimizer).__name__, *kinds]


def _check_model(file: Path, was: list[str], model: keras.Model) -> None:
    """Raise ValueError if optimizer, dtypes or shapes differ; names of variables may differ."""
    names = ["the optimizer", *(variable.path for variable in variables_of(model))]
    now = _description(model)
    for name, old, new in itertools.zip_longest(names, was, now, fillvalue="missing"):
        if old != new:
            raise ValueError(
                f"{file} is a checkpoint of another model: {name} was {old}, is {new}. Build and "
                "compile the model as it was, or give LoaderCheckpoint another folder."
            )


# ---- ThroughputLogger ----------------------------------------------------------------------------

COUNTS_TO = 2**24  # a float32 does not hold every integer above


class ThroughputLogger(keras.callbacks.Callback):
    """Logs `samples_per_s`, rows per second, at the end of each epoch.

    Callbacks after this one in the list, such as Keras's TensorBoard, see it. Rows are counted by
    the model's own loss metric, which weights each batch by its rows, so a smaller last batch
    counts as what it is. The metric is a float32, exact up to 16.7 million rows per epoch; each
    later step counts as many rows as the last one before.

    The time includes waiting for data, also for the first batch of later epochs. It does not
    include the first step of a `fit`, which compiles, nor validation. The value is NaN for an epoch
    of that step alone.

    Args:
        clock: function that returns seconds and never goes back.

    Raises:
        RuntimeError: from `fit`, if the model has no loss, its `train_step` does not count rows, or
            something resets the metrics within an epoch.

    Example:
        >>> import numpy as np
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile(loss="mse")
        >>> x, y = np.zeros((70, 2)), np.zeros((70, 1))
        >>> options = {"batch_size": 32, "epochs": 2, "verbose": 0}
        >>> history = model.fit(x, y, callbacks=[ThroughputLogger()], **options)
        >>> len(history.history["samples_per_s"])
        2
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__()
        self.clock = clock

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Expect the next step to compile."""
        self._compiled = False

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Start the clock, except before the step that compiles."""
        self._count = self._rows = self._step_rows = 0
        self._begin = self._last = (0, self.clock())  # (rows of the epoch so far, seconds)

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Read rows and clock."""
        before = self._count
        self._count = self._rows_so_far()
        if self._count < COUNTS_TO or not self._step_rows:
            self._step_rows = self._count - before
        self._rows += self._step_rows
        self._last = (self._rows, self.clock())
        if self._step_rows <= 0:
            raise RuntimeError(
                f"the model's loss metric went from {before} to {self._count} rows within an "
                "epoch. Compile the model with a loss; a train_step of your own must update it "
                "with the rows as sample_weight, and a callback must evaluate only at the end of "
                "an epoch."
            )
        if not self._compiled:
            self._compiled = True
            self._begin = self._last

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Add `samples_per_s`, up to the end of the last step, to the logs."""
        rows = self._last[0] - self._begin[0]
        elapsed_s = self._last[1] - self._begin[1]
        logs["samples_per_s"] = rows / elapsed_s if elapsed_s else math.nan

    def _rows_so_far(self) -> int:
        """Return the count of the loss metric; on JAX, `self.model` brings it up to date."""
        for metric in self.model.metrics:
            if metric.name == "loss":
                return int(keras.ops.convert_to_numpy(metric.count))
        return 0


# ---- StallReport ---------------------------------------------------------------------------------

STAGES = ("read", "transform", "gather", "convert")  # as in a loader's `stats()`


class Stall(NamedTuple):
    """How long an epoch took, and how much of it the training waited for data.

    Args:
        epoch: number of the epoch in `fit`, from 0.
        steps: training steps of the epoch.
        elapsed_s: seconds from the request for the first batch to the end of the last step.
        wait_s: seconds of these in which the training waited for a batch.
        first_wait_s: seconds of these in which it waited for the first batch.
        stages: {"read" | "transform" | "gather" | "convert": seconds of work during the epoch,
            summed over the loader's threads}; empty for a `tf.data.Dataset`.

    Example:
        >>> stall = Stall(0, 30, 4.0, 1.0, 0.5, {"read": 3.0, "convert": 1.0})
        >>> stall.share, stall.by_stage
        (0.25, {'read': 0.1875, 'convert': 0.0625})
        >>> print(stall)
        epoch 0: 25% of 4.00 s waiting for data (first batch: 12%); by stage of the loader: read \
19%, convert 6%
    """

    epoch: int
    steps: int
    elapsed_s: float
    wait_s: float
    first_wait_s: float
    stages: dict[str, float]

    @property
    def share(self) -> float:
        """Share of the epoch spent waiting for data, 0 to 1."""
        return self.wait_s / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def by_stage(self) -> dict[str, float]:
        """That share, divided in proportion to the work of the loader's threads on each stage."""
        worked = sum(self.stages.values()) or 1.0
        return {name: self.share * seconds / worked for name, seconds in self.stages.items()}

    def __str__(self) -> str:
        # Both are shares of the epoch: rounded alike, the part never exceeds the whole.
        first = self.first_wait_s / self.elapsed_s if self.elapsed_s else 0.0
        text = (
            f"epoch {self.epoch}: {self.share:.0%} of {self.elapsed_s:.2f} s waiting for data "
            f"(first batch: {first:.0%})"
        )
        shares = ", ".join(f"{name} {share:.0%}" for name, share in self.by_stage.items())
        return f"{text}; by stage of the loader: {shares}" if shares else text


class TimedBatches(TensorAdapter):
    """What `fit` takes instead of data, to measure how long it waits for each batch.

    Keras iterates over a `tf.data.Dataset` inside a compiled function, where no clock can be read.
    It takes each batch of this object in Python, as from a `KerasSequenceLoader`, and hands it to
    the compiled step: the same batches and the same step, for some 0.1 ms more per step.

    Args:
        data: (inputs, labels) or (inputs, labels, weights), batch by batch; each `iter(data)` is an
            epoch.
        clock: function that returns seconds and never goes back.

    Attributes:
        wait_s: seconds spent in taking batches so far.
        batches: number of batches taken so far.

    Example:
        >>> import numpy as np, tensorflow as tf
        >>> dataset = tf.data.Dataset.from_tensor_slices((np.ones((70, 2)), np.ones(70))).batch(32)
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile(loss="mse")
        >>> timed = TimedBatches.of_dataset(dataset)
        >>> history = model.fit(timed, epochs=2, verbose=0)
        >>> timed.batches, timed.wait_s > 0
        (6, True)
    """

    _num_batches: int | None = None  # not known

    def __init__(self, data: Iterable[Any], clock: Callable[[], float] = time.perf_counter) -> None:
        self._data = data
        self._clock = clock
        self.wait_s = 0.0
        self.batches = 0

    @classmethod
    def of_dataset(
        cls, dataset: Iterable[Any], clock: Callable[[], float] = time.perf_counter
    ) -> TimedBatches:
        """Return the timed batches of a `tf.data.Dataset`.

        Args:
            dataset: `tf.data.Dataset` of batches, as `fit` takes it.
            clock: function that returns seconds and never goes back.

        Raises:
            TypeError: if it is not a dataset.
            ValueError: if Keras does not run on TensorFlow, or within the scope of a
                `tf.distribute` strategy, which needs the dataset itself.
        """
        import tensorflow as tf

        if not isinstance(dataset, tf.data.Dataset):
            raise TypeError(
                "the data to time must be a KerasSequenceLoader or a tf.data.Dataset of batches, "
                f"got a {type(dataset).__name__}. Make a dataset of it: from_tensor_slices((x, y))"
                ".batch(n) of arrays, from_generator of a generator or PyDataset"
            )
        if keras.backend.backend() != "tensorflow" or tf.distribute.has_strategy():
            raise ValueError(
                "a tf.data.Dataset can be timed on Keras's backend 'tensorflow' only (it is "
                f"{keras.backend.backend()!r}), and outside of a tf.distribute strategy, which "
                "needs the tf.data.Dataset itself; use a KerasSequenceLoader"
            )
        timed = cls(dataset, clock)
        if dataset.cardinality() >= 0:
            timed._num_batches = int(dataset.cardinality())
        return timed

    def new_pass(self) -> Iterator[Any]:
        """Yield the batches of an epoch, and add the seconds that each took."""
        batches = iter(self._data)
        while True:
            started = self._clock()
            batch = next(batches, None)
            self.wait_s += self._clock() - started
            if batch is None:
                return
            self.batches += 1
            yield batch

    @property
    def num_batches(self) -> int | None:
        """Number of batches of an epoch, or None; refuses what `fit` was given and would ignore."""
        caller_of(self, "timed batches", {"shuffle": [True, False]})
        return self._num_batches


class StallReport(keras.callbacks.Callback):
    """Logs `stall`, the share of the epoch spent waiting for data (0 to 1), at its end.

    Callbacks after this one in the list, such as TensorBoard or CSVLogger, see it.

    Waiting is the time within the call that takes the next batch. Keras waits for the loss of each
    step before that call, also on a GPU, so nothing is trained meanwhile. The wait for an epoch's
    first batch counts. Validation does not, nor does the step of the first `fit` that compiles; the
    wait for its batch does. `tutorlib.diagnose` times its tests with this callback.

    The loader's threads work on several batches at the same time, so the wait is divided among the
    stages in proportion to the seconds that they worked on each (`loader.stats()`). Not measured:
    the cores that the threads take from the training while it does not wait, which show as slower
    steps (`tutorlib.diagnose` finds that).

    Args:
        data: the `KerasSequenceLoader` or `TimedBatches` that `fit` is given, or a
            `tf.data.Dataset`. In place of a dataset give `fit` this object's `data`: Keras takes
            the batches of a dataset within compiled code, which cannot read a clock.
        clock: function that returns seconds and never goes back.

    Attributes:
        data: what to give to `fit`: the loader itself, or the dataset's batches with a clock.
        stalls: list of `Stall`, one per epoch.

    Raises:
        TypeError: if the data is none of these.
        RuntimeError: from `fit`, if `fit` takes its batches from something else.

    Example:
        >>> import numpy as np, tensorflow as tf
        >>> dataset = tf.data.Dataset.from_tensor_slices((np.ones((70, 2)), np.ones(70))).batch(32)
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile(loss="mse")
        >>> report = StallReport(dataset)
        >>> logs = model.fit(report.data, epochs=2, verbose=0, callbacks=[report]).history
        >>> [stall.steps for stall in report.stalls], 0 < logs["stall"][1] < 1
        ([3, 3], True)
    """

    def __init__(self, data: Any, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__()
        self.data = data
        if not isinstance(data, KerasSequenceLoader | TimedBatches):
            self.data = TimedBatches.of_dataset(data, clock)
        self.clock = clock
        self.stalls: list[Stall] = []
        self._train_function: Callable | None = None

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Expect the next step to compile, unless an earlier `fit` has compiled it."""
        self._compiled = self._train_function is self.model.train_function
        self._train_function = self.model.train_function

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Start the clock."""
        self._steps = 0
        self._first_wait_s = 0.0
        self._before = self._after = self._so_far()
        self._begin = self._last = self.clock()

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Read the clock and the seconds waited."""
        self._last = self.clock()
        self._after = self._so_far()
        if not self._steps:
            self._first_wait_s = self._after["wait"] - self._before["wait"]
        if not self._compiled:  # as if this step had taken no longer than the wait for its batch
            self._compiled = True
            self._begin = self._last - self._first_wait_s
        self._steps = batch + 1

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Add the epoch's stall to the logs."""
        spent = {name: now - self._before[name] for name, now in self._after.items()}
        batches = int(spent.pop("batches"))
        if not batches:  # even without any wait, if they were ready before the epoch began
            raise RuntimeError(
                f"fit has trained {self._steps} steps of epoch {epoch} without a batch from the "
                "data of StallReport. Give fit what StallReport has as its `data`."
            )
        wait_s = spent.pop("wait")
        elapsed_s = self._last - self._begin
        self.stalls.append(Stall(epoch, batches, elapsed_s, wait_s, self._first_wait_s, spent))
        logs["stall"] = self.stalls[-1].share

    def _so_far(self) -> dict[str, float]:
        """Return batches taken, seconds waited, and those that a loader worked on each stage."""
        if isinstance(self.data, TimedBatches):
            return {"batches": self.data.batches, "wait": self.data.wait_s}
        stats = self.data.stats()
        seconds = {name: stats[f"{name}_s"] for name in ("wait", *STAGES)}
        return {"batches": self.data.batches_taken, **seconds}


# ---- KerasSequenceValidater ----------------------------------------------------------------------


class KerasSequenceValidater(keras.callbacks.Callback):
    """Logs the metrics of `model.evaluate(loader)` as `val_...` at the end of each epoch.

    The values are those that `validation_data=loader` gives. The training metrics in the logs stay
    unchanged. Callbacks after this one in the list, such as EarlyStopping or ModelCheckpoint, see
    the values. Evaluation is not part of `samples_per_s` or `stall`, and does not move the loader,
    which may be the one that `fit` trains with.

    Args:
        loader: what `model.evaluate` takes as `x`, with labels.

    Raises:
        ValueError: from `fit`, if the logs already hold such a name, for example because `fit` was
            given `validation_data` too.

    Example:
        >>> import numpy as np, tensorflow as tf
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile(loss="mse")
        >>> data = tf.data.Dataset.from_tensors((np.ones((4, 2)), np.ones((4, 1))))
        >>> history = model.fit(data, verbose=0, callbacks=[KerasSequenceValidater(data)])
        >>> sorted(history.history)
        ['loss', 'val_loss']
    """

    def __init__(self, loader: KerasSequenceLoader | Iterable[Any]) -> None:
        super().__init__()
        self.loader = loader

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Evaluate the model and add the results to the logs; a loader stays where it is."""
        loader = self.loader if isinstance(self.loader, LoaderAdapter) else None
        position = loader and loader._cursor.position
        try:
            results = self.model.evaluate(self.loader, return_dict=True, verbose=0)
        finally:
            if loader is not None:
                loader._cursor.position = position
        for name, value in results.items():
            if f"val_{name}" in logs:
                raise ValueError(
                    f"the logs already hold {f'val_{name}'!r}. Give fit either validation_data or "
                    "a KerasSequenceValidater."
                )
            logs[f"val_{name}"] = value
