"""Callbacks: what Keras training reports and saves besides its loss.

Belongs here: throughput, validation inside `fit`, going on after an interruption. Does not belong
here: anything that changes how a model trains, or finding out why a run is slow (`profiling.py`).
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from tutorlib.checkpoints import find_checkpoints, new_checkpoint, remove_old

VARIABLES_FILE = "variables.npy"


class Throughput(NamedTuple):
    """Rows per second over one window of training steps.

    Args:
        step: the optimizer's step at the end of the window.
        rows: rows trained in the window.
        elapsed_s: seconds from its begin to its end.
    """

    step: int
    rows: int
    elapsed_s: float

    @property
    def samples_per_s(self) -> float:
        """Rows per second."""
        return self.rows / self.elapsed_s if self.elapsed_s else float("nan")


class ThroughputLogger(keras.callbacks.Callback):
    """Adds `samples_per_s` to the logs of each epoch, and optionally writes it to TensorBoard.

    Rows are counted, not assumed: the model's own loss metric weighs each batch by its rows, and
    its weight is read after each step, so a last smaller batch counts as what it is, whatever feeds
    `fit`. With TensorFlow, Keras itself waits for the loss of each step, so the reading adds no
    wait for the device. It is a float32: exact up to 16.7 million rows an epoch.

    Left out: the first step of a `fit`, which compiles, and validation. Left in: waiting for data,
    also for the first batch of later epochs.

    Args:
        log_dir: folder for TensorBoard scalars `samples_per_s` (each window) and
            `epoch_samples_per_s`, by the optimizer's step, which goes on over epochs; None for
            none.
        every_steps: steps in a window, at least 1.
        clock: function that returns seconds and never goes back.

    Attributes:
        windows: list of `Throughput`, one for each full window.
        epochs: list of `Throughput`, one for each epoch. The first epoch of a `fit` lacks its first
            step; with only one step its `samples_per_s` is NaN.

    Raises:
        ValueError: if `every_steps` is below 1, or the model has no loss metric.
        RuntimeError: if the model's `train_step` does not count rows, or metrics were reset within
            an epoch.

    Example:
        >>> import numpy as np
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile(loss="mse")
        >>> x, y = np.zeros((70, 2)), np.zeros((70, 1))
        >>> logger = ThroughputLogger()
        >>> history = model.fit(x, y, batch_size=32, epochs=2, verbose=0, callbacks=[logger])
        >>> [epoch.rows for epoch in logger.epochs], len(history.history["samples_per_s"])
        ([38, 70], 2)
    """

    def __init__(
        self,
        log_dir: Any = None,
        every_steps: int = 10,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__()
        if every_steps < 1:
            raise ValueError(f"every_steps must be at least 1, got {every_steps}")
        self.log_dir, self.every_steps, self.clock = log_dir, every_steps, clock
        self.windows: list[Throughput] = []
        self.epochs: list[Throughput] = []
        self._writer = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Find the row count of the model, and open the TensorBoard file."""
        losses = [metric for metric in self.model.metrics if metric.name == "loss"]
        if not losses or not hasattr(losses[0], "count"):
            names = [metric.name for metric in self.model.metrics]
            raise ValueError(
                "ThroughputLogger counts rows by the model's mean metric 'loss'; the model has "
                f"{names}. Compile it with a loss."
            )
        self._row_count = losses[0].count
        self._compiled = False
        if self.log_dir is not None and self._writer is None:
            import tensorflow as tf

            self._writer = tf.summary.create_file_writer(str(self.log_dir))

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Start the clock, except before the step that compiles."""
        self._begin = self._last = self._mark() if self._compiled else None
        self._window_begin, self._window_batch = self._begin, -1

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Read rows and clock, and end the window when it is full."""
        self._last = self._mark()
        if self._begin is None:
            self._compiled = True
            self._begin, self._window_begin, self._window_batch = self._last, self._last, batch
        elif batch - self._window_batch >= self.every_steps:
            self.windows.append(self._throughput(self._window_begin))
            self._window_begin, self._window_batch = self._last, batch
            self._write("samples_per_s", self.windows[-1])

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Add `samples_per_s`, up to the end of the last step, to the logs."""
        self.epochs.append(self._throughput(self._begin))
        self._write("epoch_samples_per_s", self.epochs[-1])
        if logs is not None:
            logs["samples_per_s"] = self.epochs[-1].samples_per_s

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Close the TensorBoard file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _mark(self) -> tuple[int, float]:
        """Return (rows of this epoch so far, seconds)."""
        rows = int(keras.ops.convert_to_numpy(self._row_count))
        return rows, self.clock()

    def _throughput(self, begin: tuple[int, float]) -> Throughput:
        """Return what happened from `begin` to the end of the last step."""
        rows, elapsed_s = self._last[0] - begin[0], self._last[1] - begin[1]
        if rows < 0 or self._last[0] == 0:
            raise RuntimeError(
                f"the model's loss metric went from {begin[0]} to {self._last[0]} rows within an "
                "epoch. A train_step of one's own must update it with the rows as sample_weight, "
                "and a callback must not evaluate within an epoch, only at its end."
            )
        return Throughput(int(self.model.optimizer.iterations), rows, elapsed_s)

    def _write(self, name: str, throughput: Throughput) -> None:
        """Write one TensorBoard scalar."""
        if self._writer is None:
            return
        import tensorflow as tf

        # Keras' TensorBoard callback switches recording off for all, between its own steps.
        with self._writer.as_default(), tf.summary.record_if(True):
            tf.summary.scalar(name, throughput.samples_per_s, step=throughput.step)


class KerasSequenceValidater(keras.callbacks.Callback):
    """Evaluates the model on a loader at the end of each epoch, as `validation_data` would.

    The figures are those of `model.evaluate(loader)`, since it is what runs. They are added to the
    epoch's logs, where History and all callbacks that stand behind this one (EarlyStopping,
    ModelCheckpoint) find them; the training figures of the epoch are already in the logs and stay
    as they are.

    Args:
        loader: anything `model.evaluate` takes as `x`, with labels.
        prefix: what goes before the metrics' names.

    Raises:
        ValueError: if the logs already hold such a name, as with `validation_data` given to `fit`.

    Example:
        >>> import numpy as np, tensorflow as tf
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile(loss="mse")
        >>> data = tf.data.Dataset.from_tensors((np.ones((4, 2)), np.ones((4, 1))))
        >>> history = model.fit(data, verbose=0, callbacks=[KerasSequenceValidater(data)])
        >>> sorted(history.history)
        ['loss', 'val_loss']
    """

    def __init__(self, loader: Any, prefix: str = "val_") -> None:
        super().__init__()
        self.loader, self.prefix = loader, prefix

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Evaluate, and add the results to the logs."""
        logs = {} if logs is None else logs
        results = self.model.evaluate(self.loader, return_dict=True, verbose=0)
        named = {self.prefix + name: value for name, value in results.items()}
        taken = sorted(set(named) & set(logs))
        if taken:
            raise ValueError(
                f"the logs already hold {taken}. Give fit either validation_data or a "
                "KerasSequenceValidater, or the callback another prefix."
            )
        logs.update(named)


class LoaderCheckpoint(keras.callbacks.Callback):
    """Saves model, optimizer and the place in the data together, so that `fit` can be taken up.

    A `fit` that was killed at any moment and is taken up from the newest checkpoint ends with the
    same weights, bit for bit, as one that was never interrupted, where the steps themselves are
    deterministic (`keras.utils.set_random_seed`, `tf.config.experimental.enable_op_determinism`).
    Stand it last among the callbacks, behind those that change the model or its learning rate.

    Saved are all variables of the model, the states of its layers' random number generators
    included (Keras' own `save_weights` and `BackupAndRestore` leave these out, so that Dropout
    would go on otherwise); all variables of `model.optimizer`: iterations, slots, learning rate;
    and `loader.state_dict()`. Not saved: metric values of the epoch in progress, what other
    callbacks remember (EarlyStopping's best value), random numbers that belong to no layer, and
    optimizers beside `model.optimizer`.

    A checkpoint is a folder that is written beside its place, forced to the disk and renamed, so
    one that is there is whole, also after a power failure. Training waits meanwhile: 0.3 s for a
    DLRM of 50 MB with Adam (150 MB in all, 2 cores, local SSD). Memory: a copy of the largest
    variable.

    Args:
        path: folder for the checkpoints of one rank of one training; made if it is not there.
        loader: the `KerasSequenceLoader` that `fit` is given.
        every_n_batches: save after batches n, 2n, ... of each epoch, beside its end; with
            `steps_per_execution`, at the end of the execution. None saves at ends of epochs only.
        keep: how many checkpoints to leave, at least 1; older ones are removed.

    Raises:
        ValueError: if `every_n_batches` or `keep` is below 1.
        RuntimeError: from `fit`, if something else takes batches of the loader, or it is not the
            one that `fit` is given.
        FileExistsError: from `fit`, if `path` has checkpoints that were not restored.
        OSError: from `fit`, if a checkpoint cannot be written; those before it are still whole.

    Example:
        >>> loader = KerasSequenceLoader("data/train", 65536, ["label"])  # doctest: +SKIP
        >>> checkpoint = LoaderCheckpoint("checkpoints", loader, 1000)  # doctest: +SKIP
        >>> model.fit(  # the same program begins a training and takes it up  # doctest: +SKIP
        ...     loader, initial_epoch=checkpoint.restore(model), epochs=3, callbacks=[checkpoint]
        ... )
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        loader: Any,
        every_n_batches: int | None = None,
        keep: int = 2,
    ) -> None:
        super().__init__()
        for name, value in (("every_n_batches", every_n_batches), ("keep", keep)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.path, self.loader = Path(path), loader
        self.every_n_batches, self.keep = every_n_batches, keep
        self._ours = False  # whether what is in the folder was restored, or written by this one

    def restore(self, model: keras.Model) -> int:
        """Load the newest checkpoint into model and loader; returns the epoch to go on with.

        Without a checkpoint nothing is changed. With one, a model that is not built yet is built
        by calling it on `loader.peek()`. If the model or the data does not fit, neither is changed.

        Args:
            model: compiled as it was.

        Returns:
            `initial_epoch` for `fit`: the epoch of `fit` that was in progress, or was next. If it
            was in progress with a `steps_per_epoch` of its own, it is counted anew from the saved
            place on.

        Raises:
            ValueError: if the checkpoint is of another model, optimizer or data, or damaged.

        Example:
            >>> checkpoint = LoaderCheckpoint("no such folder", loader)  # doctest: +SKIP
            >>> checkpoint.restore(model)  # doctest: +SKIP
            0
        """
        if not getattr(model, "optimizer", None):
            raise ValueError(f"model {model.name!r} has no optimizer: compile it before restore()")
        self._ours = True
        found = find_checkpoints(self.path)
        if not found:
            return self.loader.epoch
        _, folder, state = found[-1]
        if not model.built:
            model(self.loader.peek()[0])
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        if state["version"] != 1:
            raise ValueError(f"{folder} has version {state['version']!r}, but 1 is needed")
        _check_model(folder, state["model"], _description(model))
        nbytes = os.path.getsize(folder / VARIABLES_FILE)
        if nbytes != state["nbytes"]:
            raise ValueError(
                f"{folder / VARIABLES_FILE} has {nbytes} bytes, but {state['nbytes']} were "
                "written: remove the folder to go on from the checkpoint before it"
            )
        self.loader.load_state_dict(state["loader"])
        with open(folder / VARIABLES_FILE, "rb") as file:
            for variable in _variables(model):
                value = np.load(file, allow_pickle=False)
                variable.assign(value.view(np.dtype(variable.dtype)))  # NumPy has no bfloat16
        return state["fit_epoch"]

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Refuse a folder with the checkpoints of another training."""
        found = find_checkpoints(self.path)
        if found and not self._ours:
            raise FileExistsError(
                f"{self.path} has checkpoints, the newest of them {found[-1].folder.name}: call "
                "restore(model) before fit to go on from it, or give another folder"
            )
        self._epoch, self._batch = self.loader.epoch, self.loader.first_batch

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Begin to count the steps."""
        self._steps, self._fit_epoch = 0, epoch

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Save if it is time; at the end of an epoch only after validation."""
        before, steps = self._batch, batch + 1 - self._steps
        self._steps = batch + 1
        self._batch = min(before + steps, len(self.loader))
        if self._batch == len(self.loader):
            self._epoch, self._batch = self._epoch + 1, 0
        elif self.every_n_batches and self._batch // self.every_n_batches > (
            before // self.every_n_batches
        ):
            self._save()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Save."""
        self._fit_epoch = epoch + 1
        self._save()

    def _save(self) -> None:
        """Write a checkpoint of the batches trained so far, and remove older ones."""
        state = self.loader.state_dict()
        if (state["epoch"], state["batch"]) < (self._epoch, self._batch):
            raise RuntimeError(
                f"fit has trained {self._batch} batches of epoch {self._epoch}, but the loader of "
                f"LoaderCheckpoint has given {state['batch']} of epoch {state['epoch']}: give fit "
                "and LoaderCheckpoint the same loader"
            )
        ahead = state["epoch"] == self._epoch + 1 and not state["batch"] and self._batch
        if state["epoch"] > self._epoch and not ahead:
            raise RuntimeError(
                f"the loader is at epoch {state['epoch']}, fit at epoch {self._epoch} of it: "
                "something else, such as validation, has taken batches of the training loader. "
                "Give it a loader of its own."
            )
        if ahead:
            return  # JAX takes a batch ahead on an accelerator; the epoch's end is one step away
        state["batch"] = self._batch
        model = self.model  # on JAX, this brings the variables up to date
        content = {"version": 1, "model": _description(model), "loader": state}
        content["fit_epoch"] = self._fit_epoch
        try:
            with new_checkpoint(self.path, self._epoch, self._batch, content) as folder:
                content["nbytes"] = _write_variables(folder / VARIABLES_FILE, model)
            remove_old(self.path, self.keep)
        except OSError as error:
            message = (
                f"a checkpoint of epoch {self._epoch}, batch {self._batch} cannot be written to "
                f"{self.path}: {error}. The checkpoints before it are whole; make room or choose "
                "another folder, and go on from the newest with restore()."
            )
            raise OSError(*([error.errno] if error.errno else []), message) from error
        self._ours = True


def _variables(model: keras.Model) -> list[Any]:
    """Return all that training changes; random number generators are among a model's variables."""
    return [*model.variables, *model.optimizer.variables]


def _description(model: keras.Model) -> dict[str, Any]:
    """Return by what the model of a checkpoint is told from another, as JSON values."""
    variables = [[v.path, f"{np.dtype(v.dtype)} {list(v.shape)}"] for v in _variables(model)]
    return {"optimizer": type(model.optimizer).__name__, "variables": variables}


def _check_model(folder: Path, was: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise ValueError where a checkpoint is of another model; names may differ, kinds may not."""
    lines = []
    if was["optimizer"] != now["optimizer"]:
        lines = [f"the optimizer was {was['optimizer']}, is {now['optimizer']}"]
    none = [None, "nothing"]
    for old, new in itertools.zip_longest(was["variables"], now["variables"], fillvalue=none):
        if old[1] != new[1]:
            lines.append(f"{new[0] or old[0]} was {old[1]}, is {new[1]}")
    if lines:
        more = f"; and {len(lines) - 4} more" if len(lines) > 4 else ""
        raise ValueError(
            f"{folder} is a checkpoint of another model: {'; '.join(lines[:4])}{more}. Build and "
            "compile the model as it was, or give another folder."
        )


def _write_variables(path: Path, model: keras.Model) -> int:
    """Write all variables one after the other; returns the bytes of the file.

    Not with Keras' `save_weights`: HDF5 takes twice as long, and where the disk is full, it lets
    the process die by a signal.
    """
    with open(path, "wb") as file:
        for variable in _variables(model):
            np.save(file, keras.ops.convert_to_numpy(variable), allow_pickle=False)
        return file.tell()
