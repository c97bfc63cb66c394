"""LoaderCheckpoint: model, optimizer and the place in the data, saved together.

Does not belong here: how a checkpoint's folder comes about whole (`tutorlib/checkpoints.py`).
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tutorlib.storage import find_checkpoints, new_checkpoint, remove_old

VARIABLES_FILE = "variables.npy"


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
