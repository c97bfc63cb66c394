"""ThroughputLogger: how many rows a second `fit` trains on, by window and by epoch.

Does not belong here: where the seconds go (`stalls.py`, `profiling`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import keras

COUNTS_TO = 2**24  # from where on a float32 lacks integers


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
    `fit`. Keras itself waits for the loss of each step where a callback looks at steps, so the
    reading adds no wait for the device. The metric is a float32, which counts to 16.7 million and
    no further: of later steps of such an epoch each counts as many rows as the last one before.

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
        self._compiled = False
        if self.log_dir is not None and self._writer is None:
            import tensorflow as tf

            self._writer = tf.summary.create_file_writer(str(self.log_dir))

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Start the clock, except before the step that compiles."""
        self._count, self._rows, self._step_rows = 0, 0, 0
        self._begin = self._last = (0, self.clock()) if self._compiled else None
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
        """Return (rows of this epoch so far, seconds), after a step."""
        metric = next(metric for metric in self.model.metrics if metric.name == "loss")
        before, self._count = self._count, int(keras.ops.convert_to_numpy(metric.count))
        if self._count < COUNTS_TO or not self._step_rows:
            self._step_rows = self._count - before
        self._rows += self._step_rows
        return self._rows, self.clock()

    def _throughput(self, begin: tuple[int, float]) -> Throughput:
        """Return what happened from `begin` to the end of the last step."""
        rows, elapsed_s = self._last[0] - begin[0], self._last[1] - begin[1]
        if rows < 0 or self._last[0] <= 0:
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
