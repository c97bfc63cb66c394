"""ProfileSteps: trace some steps of a training."""

from __future__ import annotations

import os
from typing import Any

import keras


class ProfileSteps(keras.callbacks.Callback):
    """Traces some steps of a `fit`, for `read_trace` and TensorBoard's profile plugin.

    It writes one trace per `fit` and logs nothing. Keras's own TensorBoard callback can trace too
    (`profile_batch`), but in Keras 3 it leaves out the mark that tells the plugin what a step is,
    so the plugin's overview and input analysis stay empty. Starting and stopping the profiler takes
    up to seconds in which nothing is trained while readers fill their buffers, so the first steps
    of a trace wait less for data than the others.

    Args:
        log_dir: folder for the trace; each gets a subfolder of `plugins/profile`.
        first: first step to trace, at least 1, counted over all epochs of a `fit`.
        last: last step to trace, at least `first`; if `fit` ends earlier, the trace ends with it.

    Raises:
        ValueError: if `first` is below 1 or above `last`; from `fit`, if Keras does not run on
            TensorFlow.
        tf.errors.AlreadyExistsError: from `fit`, if another profiler is running.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from tutorlib.profiling import read_trace
        >>> folder = tempfile.mkdtemp()
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile(loss="mse")
        >>> x, y = np.zeros((80, 2)), np.zeros((80, 1))
        >>> profile = ProfileSteps(folder, first=3, last=4)
        >>> history = model.fit(x, y, batch_size=16, verbose=0, callbacks=[profile])
        >>> list(read_trace(folder).steps)
        [3, 4]
    """

    def __init__(self, log_dir: str | os.PathLike[str], first: int, last: int) -> None:
        super().__init__()
        if not 1 <= first <= last:
            raise ValueError(f"steps must be 1 <= first <= last, got first={first}, last={last}")
        self.log_dir, self.first, self.last = os.fspath(log_dir), first, last
        self._mark: Any = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Start to count the steps."""
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                "ProfileSteps needs Keras's backend 'tensorflow', got "
                f"{keras.backend.backend()!r}. Use the profiler of that backend instead."
            )
        self._step, self._running = 0, False

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Start the profiler before the first step to trace, and mark the start of each step."""
        import tensorflow as tf

        self._step += 1
        if self._step == self.first:
            tf.profiler.experimental.start(self.log_dir)
            self._running = True
        if self._running:
            self._mark = tf.profiler.experimental.Trace("train", step_num=self._step, _r=1)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Mark the end of the step, and stop the profiler after the last step to trace."""
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None
        if self._step == self.last:
            self._stop()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Stop the profiler if it is still running."""
        self._stop()

    def _stop(self) -> None:
        if self._running:
            import tensorflow as tf

            self._running = False
            tf.profiler.experimental.stop()
