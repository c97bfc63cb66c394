"""ThroughputLogger: rows per second that `fit` trains on, by window and by epoch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import keras

from tutorlib.checks import check_path, check_positive

COUNTS_TO = 2**24  # a float32 does not hold every integer above


class Throughput(NamedTuple):
    """Rows per second over a number of training steps.

    Args:
        step: the optimizer's step count at the end.
        rows: rows trained on.
        elapsed_s: seconds.
    """

    step: int
    rows: int
    elapsed_s: float

    @property
    def samples_per_s(self) -> float:
        """Rows per second; NaN if no time has passed."""
        return self.rows / self.elapsed_s if self.elapsed_s else float("nan")


class _Mark(NamedTuple):
    rows: int  # trained on so far in the epoch
    at_s: float


class ThroughputLogger(keras.callbacks.Callback):
    """Logs `samples_per_s`, rows per second, at the end of each epoch; optionally to TensorBoard.

    Rows are counted by the model's own loss metric, which weights each batch by its rows, so a
    smaller last batch counts as what it is. The metric is a float32, exact up to 16.7 million rows
    per epoch; each later step counts as many rows as the last one before.

    The time includes waiting for data, also for the first batch of later epochs. It does not
    include the first step of a `fit`, which compiles, nor validation.

    Args:
        log_dir: a path, the folder for the TensorBoard scalars `samples_per_s` (one per window) and
            `epoch_samples_per_s`, by the optimizer's step; None writes none.
        every_steps: steps per window, at least 1.
        clock: function that returns seconds and never goes back.

    Attributes:
        windows: list of `Throughput`, one per full window.
        epochs: list of `Throughput`, one per epoch. The first epoch of a `fit` lacks its first
            step; if that is its only step, `samples_per_s` is NaN.

    Raises:
        TypeError: if `log_dir` is no path, such as the batch size.
        ValueError: if `every_steps` is below 1; from `fit`, if the model has no loss metric.
        RuntimeError: from `fit`, if the model's `train_step` does not count rows, or something
            resets the metrics within an epoch.

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
        if log_dir is not None:
            advice = "ThroughputLogger() needs no batch size: it counts the rows itself."
            check_path("log_dir", log_dir, advice)
        check_positive(every_steps=every_steps)
        self.log_dir, self.every_steps, self.clock = log_dir, every_steps, clock
        self.windows: list[Throughput] = []
        self.epochs: list[Throughput] = []
        self._writer: Any = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Check that the model counts rows, and open the TensorBoard file."""
        if not hasattr(self._loss_metric(), "count"):
            names = [metric.name for metric in self.model.metrics]
            raise ValueError(
                "ThroughputLogger counts rows with the model's mean metric 'loss'; the model has "
                f"{names}. Compile it with a loss."
            )
        self._compiled = False
        if self.log_dir is not None and self._writer is None:
            import tensorflow as tf

            self._writer = tf.summary.create_file_writer(str(self.log_dir))

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Start the clock, except before the step that compiles."""
        self._count = self._rows = self._step_rows = 0
        self._begin = self._window = self._last = _Mark(0, self.clock())
        self._window_batch = -1

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Read rows and clock, and end the window if it is full."""
        self._last = self._mark()
        if not self._compiled:
            self._compiled = True
            self._begin = self._window = self._last
            self._window_batch = batch
        elif batch - self._window_batch >= self.every_steps:
            self.windows.append(self._throughput(self._window))
            self._window, self._window_batch = self._last, batch
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

    def _loss_metric(self) -> Any:
        return next((metric for metric in self.model.metrics if metric.name == "loss"), None)

    def _mark(self) -> _Mark:
        before = self._count
        self._count = int(keras.ops.convert_to_numpy(self._loss_metric().count))
        if self._count < COUNTS_TO or not self._step_rows:
            self._step_rows = self._count - before
        self._rows += self._step_rows
        return _Mark(self._rows, self.clock())

    def _throughput(self, begin: _Mark) -> Throughput:
        rows, elapsed_s = self._last.rows - begin.rows, self._last.at_s - begin.at_s
        if rows < 0 or self._last.rows <= 0:
            raise RuntimeError(
                f"the model's loss metric went from {begin.rows} to {self._last.rows} rows within "
                "an epoch. A train_step of your own must update it with the rows as "
                "sample_weight, and a callback must evaluate only at the end of an epoch."
            )
        return Throughput(int(self.model.optimizer.iterations), rows, elapsed_s)

    def _write(self, name: str, throughput: Throughput) -> None:
        if self._writer is None:
            return
        import tensorflow as tf

        # Keras's TensorBoard callback switches recording off for all, between its own steps.
        with self._writer.as_default(), tf.summary.record_if(True):
            tf.summary.scalar(name, throughput.samples_per_s, step=throughput.step)
