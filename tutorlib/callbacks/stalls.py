"""StallReport: the share of an epoch that the training spends waiting for data, and for which work.

Does not belong here: what else could be the reason that a training is slow (`profiling`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import keras

from tutorlib.keras_bridge import TimedBatches

STAGES = ("read", "transform", "scatter", "convert")  # as in a loader's `stats()`


class Stall(NamedTuple):
    """How long an epoch took, and how much of it was waiting for data.

    Args:
        epoch: number of the epoch in `fit`, from 0.
        steps: training steps in it.
        elapsed_s: seconds from its begin to the end of its last step.
        wait_s: seconds of these in which the training waited for a batch.
        first_wait_s: seconds of these in which it waited for the first one.
        stages: {"read" | "transform" | "scatter" | "convert": seconds that the loader's
            threads worked at it during the epoch, all threads together}; empty for other data.

    Example:
        >>> stall = Stall(0, 30, 4.0, 1.0, 0.5, {"read": 3.0, "convert": 1.0})
        >>> stall.share, stall.by_stage
        (0.25, {'read': 0.1875, 'convert': 0.0625})
        >>> print(stall)
        epoch 0: 25% of 4.00 s waiting for data, 0.50 s of it for the first batch; by the work of \
the loader's threads: read 19%, convert 6%
    """

    epoch: int
    steps: int
    elapsed_s: float
    wait_s: float
    first_wait_s: float
    stages: dict[str, float]

    @property
    def share(self) -> float:
        """Share of the epoch that was waiting, 0 to 1."""
        return self.wait_s / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def by_stage(self) -> dict[str, float]:
        """That share, divided among the stages as the work of the loader's threads was."""
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
        return f"{text}; by the work of the loader's threads: {shares}" if shares else text


class StallReport(keras.callbacks.Callback):
    """Adds to the logs of each epoch which share of it was spent waiting for data: `stall`.

    With a `KerasSequenceLoader`, `stall_read`, `stall_transform`, `stall_scatter` and
    `stall_convert` say which work the training waited for. A callback that stands behind this one
    (TensorBoard, CSVLogger) writes all of them down.

    What is measured: the seconds within the call that takes the next batch. Keras takes a batch
    only when the step before has ended, since with a callback that looks at each step, as this one
    does, it waits for the step's loss, also on a GPU. So these are seconds in which nothing was
    trained, and the rest of the epoch is the steps themselves. The wait for an epoch's first batch
    is included. Left out are validation and, as in `ThroughputLogger`, the first step of a `fit`,
    which compiles; not the wait for its batch.

    What is not measured: which stage a wait was for. A loader's threads work at several batches at
    the same time, so the wait is divided among the stages in the proportion of the seconds that
    the threads worked at each (`loader.stats()`), which is exact where one stage is all. Nor what
    the threads take from the training while it does not wait: on a CPU both want the same cores,
    and a reader that costs half of them shows as slower steps, not as waiting
    (`profiling.diagnose` tells).

    Args:
        data: the `KerasSequenceLoader` that `fit` is given; or a `tf.data.Dataset`: then give
            `fit` this object's `data` in its place, for Keras takes its batches where no clock
            can be read.
        clock: function that returns seconds and never goes back.

    Attributes:
        data: what to give to `fit`: the loader itself, or the dataset with a clock.
        stalls: list of `Stall`, one for each epoch.

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
        self.data = data if hasattr(data, "stats") else TimedBatches.of_dataset(data, clock=clock)
        self.stalls: list[Stall] = []

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Take the next step for one that compiles."""
        self._compiled = False

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Start the clock."""
        self._steps, self._first_wait_s = 0, 0.0
        self._before = self._after = self._so_far()
        self._begin = self._last = self.clock()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Read the clock, and what was waited."""
        self._last, self._after = self.clock(), self._so_far()
        if not self._steps:
            self._first_wait_s = self._after["wait"] - self._before["wait"]
        if not self._compiled:  # as if this step had taken no longer than the wait for its batch
            self._compiled, self._begin = True, self._last - self._first_wait_s
        self._steps = batch + 1

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Work out the epoch's stall, and add it to the logs."""
        spent = {name: now - self._before[name] for name, now in self._after.items()}
        if not spent.pop("taken"):
            raise RuntimeError(
                f"fit has trained {self._steps} steps of epoch {epoch} without a batch from the "
                "data of StallReport. Give fit what StallReport has as its `data`."
            )
        stages = {name: spent[name] for name in STAGES if name in spent}
        seconds = self._last - self._begin, spent["wait"], self._first_wait_s
        self.stalls.append(Stall(epoch, self._steps, *seconds, stages))
        if logs is not None:
            stall = self.stalls[-1]
            shares = {f"stall_{name}": share for name, share in stall.by_stage.items()}
            logs.update({"stall": stall.share, **shares})

    def _so_far(self) -> dict[str, float]:
        """Return the seconds so far: {"wait": ..., and of a loader each stage: ...}.

        "taken" grows with each batch that is taken; a loader counts none, but waits for each.
        """
        if isinstance(self.data, TimedBatches):
            return {"wait": self.data.wait_s, "taken": self.data.batches}
        stats = self.data.stats()
        stages = {name: stats[f"{name}_s"] for name in STAGES}
        return {"wait": stats["wait_s"], "taken": stats["wait_s"], **stages}
