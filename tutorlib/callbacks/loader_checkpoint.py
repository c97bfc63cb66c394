"""LoaderCheckpoint: model, optimizer and the position in the data, saved together."""

from __future__ import annotations

import collections
import hashlib
import itertools
import math
import os
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import keras
import numpy as np

from tutorlib.checks import check_path, check_positive
from tutorlib.keras_bridge import gathered, process_count, process_index
from tutorlib.keras_bridge.variables import take_rows
from tutorlib.loader import KerasSequenceLoader
from tutorlib.storage import find_checkpoints, new_checkpoint, remove_old

VARIABLES_FILE = "variables.npy"
BLOCK_BYTES = 2**23  # of a table, written or read at once
RESUME = "Remove the folder to resume from the checkpoint before it."


class LoaderCheckpoint(keras.callbacks.Callback):
    """Saves model, optimizer and the position in the data together, so that `fit` can resume.

    A `fit` that is killed at any moment and resumes from the newest checkpoint ends with the same
    weights, bit for bit, as one that was never interrupted, if the steps themselves are
    deterministic (`keras.utils.set_random_seed`, `tf.config.experimental.enable_op_determinism`).
    Put it last in the list of callbacks, after those that change the model or its learning rate.

    Saved: all variables of the model, including the random states of its layers (Keras's
    `save_weights` and `BackupAndRestore` leave them out, so Dropout would continue differently);
    all variables of `model.optimizer`; and `loader.state_dict()`. Not saved: metric values of the
    current epoch, the state of other callbacks (EarlyStopping's best value), random number
    generators outside of layers, and optimizers other than `model.optimizer`.

    A checkpoint is a folder that is written under another name, flushed to disk and renamed, so it
    is complete or absent, also after a power failure. Training waits meanwhile: 0.3 s for a DLRM of
    50 MB with Adam (150 MB in all; 2 cores, local SSD).

    Of processes that `keras.distribution` has joined (JAX), the first writes and all restore, so
    `path` must be a folder that all see. With `canonical_ranks` in the loader, another number of
    processes can restore too: the rows of each step stay the same, the sums over them are rounded
    in another order. Tables that are split over processes (`layers.plan_tables`) are sent to the
    first in blocks of rows.

    Args:
        path: folder for the checkpoints of one training; created if missing.
        loader: the `KerasSequenceLoader` that `fit` is given.
        every_n_batches: save after batches n, 2n, ... of each epoch, at least 1, and at its end;
            with `steps_per_execution`, at the end of the execution. None saves only at the end of
            each epoch.
        keep: checkpoints to keep, at least 1; older ones are removed.

    Raises:
        ValueError: if `every_n_batches` or `keep` is below 1.
        RuntimeError: from `fit`, if something else takes batches from the loader, or `fit` is given
            another one.
        FileExistsError: from `fit`, if `path` holds checkpoints that were not restored.
        OSError: from `fit`, on all processes, if a checkpoint cannot be written; the earlier ones
            remain complete.

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
        keep: int = 2,
    ) -> None:
        super().__init__()
        check_path("path", path, "Call LoaderCheckpoint(folder, loader).")
        check_positive(every_n_batches=every_n_batches, keep=keep)
        self.path, self.loader = Path(path), loader
        self.every_n_batches, self.keep = every_n_batches, keep
        self._ours = False  # whether this object restored or wrote the checkpoints in the folder

    def restore(self, model: keras.Model) -> int:
        """Load the newest checkpoint into model and loader, and return the epoch to resume with.

        Without a checkpoint, nothing changes. With one, a model that is not built yet is built by
        calling it on `loader.peek()`. If the model or the data does not match, neither changes.

        Args:
            model: compiled as it was when the checkpoint was written.

        Returns:
            `initial_epoch` for `fit`: its epoch in progress, or the next one. An epoch in progress
            with its own `steps_per_epoch` counts its steps from the saved position.

        Raises:
            ValueError: if the model has no optimizer, the checkpoint is damaged or belongs to
                another model, optimizer or data, or the processes see different checkpoints.

        Example:
            >>> checkpoint = LoaderCheckpoint("no such folder", loader)  # doctest: +SKIP
            >>> checkpoint.restore(model)  # doctest: +SKIP
            0
        """
        if not getattr(model, "optimizer", None):
            raise ValueError(f"model {model.name!r} has no optimizer: compile it before restore()")
        self._ours = True
        found = find_checkpoints(self.path)
        newest = gathered(found[-1].folder.name if found else "")  # restoring is done together
        if len(set(newest)) > 1:
            raise ValueError(
                f"the newest checkpoints that the processes find in {self.path} are {newest}: all "
                "must see the same folder, so give a path on a filesystem that they share"
            )
        if not found:
            return self.loader.epoch
        _, folder, state = found[-1]
        if not model.built:
            model(self.loader.peek()[0])
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        if state["version"] != 1:
            raise ValueError(
                f"{folder} has version {state['version']!r}, but this tutorlib reads version 1 "
                "only. Restore it with the tutorlib that wrote it."
            )
        _check_fields(folder, state)
        _check_model(folder, state["model"], _description(model))
        _check_content(folder / VARIABLES_FILE, state)
        try:
            self.loader.load_state_dict(_of_this_rank(state.get("loader", {}), self.loader))
        except ValueError as error:
            raise ValueError(f"{folder}: {error}") from error
        _read_variables(folder / VARIABLES_FILE, model)
        return state["fit_epoch"]

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Refuse a folder with the checkpoints of another training."""
        found = find_checkpoints(self.path)
        if found and not self._ours:
            raise FileExistsError(
                f"{self.path} already has checkpoints, the newest is {found[-1].folder.name}: call "
                "restore(model) before fit to resume from it, or give another folder"
            )
        self._epoch, self._batch = self.loader.epoch, self.loader.first_batch

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Start to count the steps."""
        self._steps, self._fit_epoch = 0, epoch

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Save after every n-th batch; after the last one `on_epoch_end` does, after validation."""
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
        """Save; `fit` resumes with its next epoch."""
        self._fit_epoch = epoch + 1
        self._save()

    def _save(self) -> None:
        """Write a checkpoint of the batches trained on so far, and remove old ones."""
        state = self.loader.state_dict()
        if (state["epoch"], state["batch"]) < (self._epoch, self._batch):
            raise RuntimeError(
                f"fit has trained on {self._batch} batches of epoch {self._epoch}, but the loader "
                f"of LoaderCheckpoint is at batch {state['batch']} of epoch {state['epoch']}: give "
                "fit and LoaderCheckpoint the same loader"
            )
        ahead = state["epoch"] == self._epoch + 1 and not state["batch"] and self._batch
        if state["epoch"] > self._epoch and not ahead:
            raise RuntimeError(
                f"the loader is at epoch {state['epoch']}, but fit is at its epoch {self._epoch}: "
                "something else, such as validation, has taken batches from the training loader. "
                "Give that a loader of its own."
            )
        if ahead:
            return  # JAX prefetches a batch on an accelerator; the epoch ends with the next step
        state["batch"] = self._batch
        model = self.model  # on JAX, this brings the variables up to date
        content = {"version": 1, "model": _description(model), "loader": state}
        content["fit_epoch"] = self._fit_epoch
        # What no process has alone, all read together, block by block; process 0 has the rest.
        shared = itertools.chain.from_iterable(
            map(_row_blocks, filter(_is_split, _variables(model)))
        )
        error = None
        if process_index() == 0:
            try:
                with new_checkpoint(self.path, self._epoch, self._batch, content) as folder:
                    content["nbytes"] = _write_variables(folder / VARIABLES_FILE, model, shared)
                    content["sha256"] = _sha256(folder / VARIABLES_FILE)
                remove_old(self.path, self.keep)
            except OSError as caught:
                error = caught
        collections.deque(shared, 0)  # also what process 0 has no place for: the others wait for it
        reason = gathered("" if error is None else str(error))[0]
        if reason or error:
            message = (
                f"a checkpoint of epoch {self._epoch}, batch {self._batch} cannot be written to "
                f"{self.path}: {reason}. The earlier checkpoints are complete: make room or choose "
                "another folder, and resume from the newest with restore()."
            )
            raise OSError(*([error.errno] if error and error.errno else []), message) from error
        self._ours = True


def _variables(model: keras.Model) -> list[Any]:
    """Return all that training changes; a model's variables include its random states."""
    return [*model.variables, *model.optimizer.variables]


def _description(model: keras.Model) -> dict[str, Any]:
    """Return what identifies the model of a checkpoint, as JSON values."""
    variables = [[v.path, f"{np.dtype(v.dtype)} {list(v.shape)}"] for v in _variables(model)]
    return {"optimizer": type(model.optimizer).__name__, "variables": variables}


def _of_this_rank(state: Any, loader: KerasSequenceLoader) -> Any:
    """Return what the loader of this process would have saved where process 0 saved its own."""
    own = loader.state_dict()["settings"]
    if process_count() == 1 or "rank" not in own or not isinstance(state, dict):
        return state
    settings = state.get("settings")
    settings = {**settings, "rank": own["rank"]} if isinstance(settings, dict) else settings
    return {**state, "settings": settings}


def _check_fields(folder: Path, state: dict[str, Any]) -> None:
    """Raise ValueError unless a state of version 1 has the fields that `_save` writes."""
    model = state.get("model")
    variables = model.get("variables") if isinstance(model, dict) else None
    wrong = [name for name in ("fit_epoch", "nbytes") if type(state.get(name)) is not int]
    wrong += [] if "fit_epoch" in wrong or 0 <= state["fit_epoch"] < 2**48 else ["fit_epoch"]
    if not isinstance(variables, list) or any(
        not isinstance(variable, list) or [type(part) for part in variable] != [str, str]
        for variable in variables
    ):
        wrong.append("model")
    if wrong:
        raise ValueError(f"{folder} was changed: {wrong} of its state are not as saved. {RESUME}")


def _check_content(path: Path, state: dict[str, Any]) -> None:
    """Raise ValueError unless the file with the variables is as it was written."""
    if not path.is_file():
        raise ValueError(f"{path} is missing. {RESUME}")
    nbytes = os.path.getsize(path)
    if nbytes != state["nbytes"]:
        raise ValueError(f"{path} has {nbytes} bytes, but {state['nbytes']} were written. {RESUME}")
    if state.get("sha256", written := _sha256(path)) != written:  # older ones have no checksum
        raise ValueError(f"{path} was changed: its checksum differs. {RESUME}")


def _check_model(folder: Path, was: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise ValueError if dtypes, shapes or optimizer differ; names of variables may differ."""
    lines = []
    if was.get("optimizer") != now["optimizer"]:
        lines = [f"the optimizer was {was.get('optimizer')}, is {now['optimizer']}"]
    none = [None, "nothing"]
    for old, new in itertools.zip_longest(was["variables"], now["variables"], fillvalue=none):
        if old[1] != new[1]:
            lines.append(f"{new[0] or old[0]} was {old[1]}, is {new[1]}")
    if lines:
        more = f"; and {len(lines) - 4} more" if len(lines) > 4 else ""
        raise ValueError(
            f"{folder} is a checkpoint of another model: {'; '.join(lines[:4])}{more}. Build and "
            "compile the model as it was, or give LoaderCheckpoint another folder."
        )


def _write_variables(path: Path, model: keras.Model, shared: Iterator[np.ndarray]) -> int:
    """Write all variables; return the file's bytes. HDF5 would end the process on a full disk.

    Args:
        path: file to write.
        model: whose variables.
        shared: blocks of rows of the variables that are split over processes, one after the other.
    """
    with open(path, "wb") as file:
        for variable in _variables(model):
            split = _is_split(variable)
            variable = variable if split else _local(variable)
            if not (_is_large(variable) or split):
                np.save(file, keras.ops.convert_to_numpy(variable), allow_pickle=False)
                continue
            # A table, in blocks of rows: its whole value would be copied twice.
            shape = tuple(variable.shape)
            blocks = itertools.islice(shared, len(_blocks(variable))) if split else None
            for number, rows in enumerate(blocks or _row_blocks(variable)):
                if number == 0:
                    header = np.lib.format.header_data_from_array_1_0(rows) | {"shape": shape}
                    np.lib.format.write_array_header_1_0(file, header)
                file.write(rows.tobytes())
        return file.tell()


def _read_variables(path: Path, model: keras.Model) -> None:
    """Assign all variables; what a file says of its arrays is compared before it is believed."""
    with open(path, "rb") as file:
        for variable in _variables(model):
            start, dtype = file.tell(), np.dtype(variable.dtype)
            try:
                np.lib.format.read_magic(file)
                shape, transposed, stored = np.lib.format.read_array_header_1_0(file)
            except (ValueError, SyntaxError, tokenize.TokenError) as error:
                raise ValueError(
                    f"{path} was changed at byte {start}: {error}. {RESUME}"
                ) from error
            if shape != tuple(variable.shape) or stored.itemsize != dtype.itemsize:
                raise ValueError(
                    f"{path} was changed at byte {start}: {variable.path} is {variable.dtype} "
                    f"{list(variable.shape)}, got {stored} {list(shape)}. {RESUME}"
                )
            if not transposed and _is_large(variable) and _is_on_one_tensorflow_device(variable):
                _read_rows(file, variable)
                continue
            if not transposed and len(shape) == 2 and keras.config.backend() == "jax":
                _read_shares(file, variable)
                continue
            file.seek(start)
            value = np.load(file, allow_pickle=False)
            variable.assign(value.view(dtype))  # NumPy has no bfloat16


def _is_split(variable: Any) -> bool:
    """Return whether no process has the whole value of a variable, but all together do."""
    return process_count() > 1 and not variable.value.is_fully_replicated


def _local(variable: Any) -> Any:
    """Return a variable, or its value in this process if others hold it too.

    JAX would have all processes take part in reading what they share.
    """
    return variable if process_count() == 1 else variable.value.addressable_data(0)


def _is_large(variable: Any) -> bool:
    """Return whether a variable is a matrix that is written and read in blocks of rows."""
    nbytes = math.prod(variable.shape) * np.dtype(variable.dtype).itemsize
    return len(variable.shape) == 2 and nbytes > BLOCK_BYTES


def _blocks(variable: Any) -> list[tuple[int, int]]:
    """Return the first row of each block, and the one after its last."""
    rows, width = variable.shape[0], math.prod(variable.shape[1:])
    step = max(1, BLOCK_BYTES // (width * np.dtype(variable.dtype).itemsize))
    return [(start, min(start + step, rows)) for start in range(0, rows, step)]


def _row_blocks(variable: Any) -> Iterator[np.ndarray]:
    """Return the rows of a table, block by block; all processes that share it must do so."""
    for start, stop in _blocks(variable):
        yield keras.ops.convert_to_numpy(take_rows(variable, np.arange(start, stop)))


def _is_on_one_tensorflow_device(variable: Any) -> bool:
    if keras.config.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return not isinstance(variable.value, tf.distribute.DistributedValues)


def _read_rows(file: BinaryIO, variable: Any) -> None:
    """Assign a table in blocks: its whole value would be a second copy of it, or two."""
    import tensorflow as tf

    width, dtype = variable.shape[1], np.dtype(variable.dtype)
    for start, stop in _blocks(variable):
        rows = np.frombuffer(file.read((stop - start) * width * dtype.itemsize), dtype)
        # A scatter would make TensorFlow copy the table at each later read of it.
        tf.raw_ops.ResourceStridedSliceAssign(
            ref=variable.value.handle,
            begin=[start],
            end=[stop],
            strides=[1],
            value=rows.reshape(-1, width),
        )


def _read_shares(file: BinaryIO, variable: Any) -> None:
    """Assign a table that may be split over devices: each device's rows are read for it alone."""
    import jax

    (rows, width), dtype, start = variable.shape, np.dtype(variable.dtype), file.tell()

    def share(at: Any) -> np.ndarray:
        first, last, _ = at[0].indices(rows)
        file.seek(start + first * width * dtype.itemsize)
        return np.fromfile(file, dtype, (last - first) * width).reshape(-1, width)[:, at[1]]

    layout = variable.value.sharding
    variable.assign(jax.make_array_from_callback((rows, width), layout, share))
    file.seek(start + rows * width * dtype.itemsize)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
