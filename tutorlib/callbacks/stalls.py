"""StallReport: share of an epoch that the training spends waiting for data, by stage."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import keras

from tutorlib.keras_bridge import TimedBatches
from tutorlib.loader import KerasSequenceLoader

STAGES = ("read", "transform", "scatter", "convert")  # as in a loader's `stats()`


class Stall(NamedTuple):
    """How long an epoch took, and how much of it the training waited for data.

    Args:
        epoch: number of the epoch in `fit`, from 0.
        steps: training steps of the epoch.
        elapsed_s: seconds from the start of the epoch to the end of its last step.
        wait_s: seconds of these in which the training waited for a batch.
        first_wait_s: seconds of these in which it waited for the first batch.
        stages: {"read" | "transform" | "scatter" | "convert": seconds of work during the epoch,
            summed over the loader's threads}; empty for a `tf.data.Dataset`.

    Example:
        >>> stall = Stall(0, 30, 4.0, 1.0, 0.5, {"read": 3.0, "convert": 1.0})
        >>> stall.share, stall.by_stage
        (0.25, {'read': 0.1875, 'convert': 0.0625})
        >>> print(stall)
        epoch 0: 25% of 4.00 s waiting for data, 0.50 s of it for the first batch; by stage of the \
loader: read 19%, convert 6%
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
        worked = sum(self.stages.values())
        return {
            name: self.share * seconds / worked if worked else 0.0
            for name, seconds in self.stages.items()
        }

    def __str__(self) -> str:
        text = (
            f"epoch {self.epoch}: {self.share:.0%} of {self.elapsed_s:.2f} s waiting for data, "
            f"{self.first_wait_s:.2f} s of it for the first batch"
        )
        shares = ", ".join(f"{name} {share:.0%}" for name, share in self.by_stage.items())
        return f"{text}; by stage of the loader: {shares}" if shares else text


class StallReport(keras.callbacks.Callback):
    """Logs `stall`, the share of the epoch spent waiting for data (0 to 1), at its end.

    With a `KerasSequenceLoader` it also logs `stall_read`, `stall_transform`, `stall_scatter` and
    `stall_convert`, which add up to `stall`. Callbacks after this one in the list, such as
    TensorBoard or CSVLogger, see all of them.

    Waiting is the time within the call that takes the next batch. Keras waits for the loss of each
    step before that call, also on a GPU, so nothing is trained meanwhile. The wait for an epoch's
    first batch counts. Validation does not, nor does the first step of a `fit`, which compiles; the
    wait for its batch does.

    The loader's threads work on several batches at the same time, so the wait is divided among the
    stages in proportion to the seconds that they worked on each (`loader.stats()`). Not measured:
    the cores that the threads take from the training while it does not wait, which show as slower
    steps (`profiling.diagnose` finds that).

    Args:
        data: the `KerasSequenceLoader` that `fit` is given, or a `tf.data.Dataset`. In place of a
            dataset give `fit` this object's `data`: Keras takes the batches of a dataset within
            compiled code, which cannot read a clock.
        clock: function that returns seconds and never goes back.

    Attributes:
        data: what to give to `fit`: the loader itself, or the dataset's batches with a clock.
        stalls: list of `Stall`, one per epoch.

    Raises:
        TypeError: if the data is neither of the two.
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

    def __init__(self, data: Any, *, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__()
        self.clock = clock
        self.data: KerasSequenceLoader | TimedBatches
        if isinstance(data, KerasSequenceLoader):
            self.data = data
        else:
            self.data = TimedBatches.of_dataset(data, clock=clock)
        self.stalls: list[Stall] = []

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Expect the next step to compile."""
        self._compiled = False

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Start the clock."""
        self._steps, self._first_wait_s = 0, 0.0
        self._before = self._after = self._so_far()
        self._begin = self._last = self.clock()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Read the clock and the seconds waited."""
        self._last, self._after = self.clock(), self._so_far()
        if not self._steps:
            self._first_wait_s = self._after["wait"] - self._before["wait"]
        if not self._compiled:  # as if this step had taken no longer than the wait for its batch
            self._compiled, self._begin = True, self._last - self._first_wait_s
        self._steps = batch + 1

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Add the epoch's stall to the logs."""
        spent = {name: now - self._before[name] for name, now in self._after.items()}
        if not spent.pop("taken"):
            raise RuntimeError(
                f"fit has trained {self._steps} steps of epoch {epoch} without a batch from the "
                "data of StallReport. Give fit what StallReport has as its `data`."
            )
        wait_s = spent.pop("wait")
        stall = Stall(
            epoch, self._steps, self._last - self._begin, wait_s, self._first_wait_s, spent
        )
        self.stalls.append(stall)
        if logs is not None:
            shares = {f"stall_{name}": share for name, share in stall.by_stage.items()}
            logs.update({"stall": stall.share, **shares})

    def _so_far(self) -> dict[str, float]:
        """Return the seconds waited and worked on each stage; "taken" grows with each batch."""
        if isinstance(self.data, TimedBatches):
            return {"wait": self.data.wait_s, "taken": self.data.batches}
        stats = self.data.stats()
        stages = {name: stats[f"{name}_s"] for name in STAGES}
        return {"wait": stats["wait_s"], "taken": stats["wait_s"], **stages}
