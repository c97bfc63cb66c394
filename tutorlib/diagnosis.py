"""diagnose: does the data or the model bound a training? Three tests, and a verdict in words.

`cores_awake` makes measurements of a reader alone comparable with training; `ProfileSteps` traces
some steps of a `fit` for TensorBoard's profile plugin.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras

from tutorlib.callbacks import TimedBatches
from tutorlib.loader import KerasSequenceLoader
from tutorlib.memory import usable_cores

HELD_BATCHES = 3  # compile the step: with lists, the shapes of the first two or three differ
MODEL_STEPS = 30  # of the test of the model alone
EVEN = 1.25  # up to this ratio, neither of two times counts as the longer one
VERDICTS = {
    "input": "The data bounds this training",
    "model": "The model bounds this training",
    "both": "Data and model bound this training about equally",
}


class Pace(NamedTuple):
    """How fast one of the tests ran.

    Args:
        steps: steps of the test.
        rows: rows of these steps.
        elapsed_s: seconds from the request for the first batch to the end of the last step.
        wait_s: seconds of these spent waiting for batches.
        first_wait_s: seconds of these spent waiting for the first batch.
    """

    steps: int
    rows: int
    elapsed_s: float
    wait_s: float
    first_wait_s: float

    @property
    def rows_per_s(self) -> float:
        """Rows per second."""
        return self.rows / self.elapsed_s

    @property
    def step_s(self) -> float:
        """Seconds per step."""
        return self.elapsed_s / self.steps


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """What the three tests of `diagnose` measured; `print` shows the verdict.

    Args:
        training: the model on its data, as it is.
        data_alone: the same data, for a model of a single number.
        model_alone: the model, on one batch held in memory.

    Example:
        >>> waits = Pace(10, 1000, 1.0, 0.7, 0.1)
        >>> found = Diagnosis(waits, Pace(10, 1000, 0.9, 0.8, 0.1), Pace(10, 1000, 0.3, 0, 0))
        >>> found.bound, found.wait_share, round(found.gain_without_input, 1)
        ('input', 0.7, 3.3)
        >>> print(found)
        The data bounds this training: a batch takes 90.0 ms to load, a step 30.0 ms to compute.
          as it is           1,000 rows/s    100.0 ms per step, 70% of it waiting for data
          data alone         1,111 rows/s     90.0 ms per batch, for a model of a single number
          model alone        3,333 rows/s     30.0 ms per step, on one batch held in memory
        Data at no cost would make training 3.3 times as fast, a model at no cost 1.1 times.
    """

    training: Pace
    data_alone: Pace
    model_alone: Pace

    @property
    def wait_share(self) -> float:
        """Share of the training's time spent waiting for data, 0 to 1."""
        return self.training.wait_s / self.training.elapsed_s

    @property
    def data_to_model(self) -> float:
        """Time to load a batch over time to compute a step, each measured alone."""
        return self.data_alone.step_s / self.model_alone.step_s

    @property
    def bound(self) -> str:
        """What takes longer: "input", "model", or "both" if the times differ by at most 1.25."""
        if self.data_to_model >= EVEN:
            return "input"
        return "model" if self.data_to_model <= 1 / EVEN else "both"

    @property
    def gain_without_input(self) -> float:
        """How many times as fast training would be with data at no cost."""
        return self.training.step_s / self.model_alone.step_s

    @property
    def gain_without_model(self) -> float:
        """How many times as fast training would be with a model at no cost."""
        return self.training.step_s / self.data_alone.step_s

    def __repr__(self) -> str:
        def line(name: str, pace: Pace, meaning: str) -> str:
            numbers = f"{pace.rows_per_s:>12,.0f} rows/s {1e3 * pace.step_s:>8,.1f} ms"
            return f"  {name:<12}{numbers} per {meaning}"

        gains = [max(1.0, gain) for gain in (self.gain_without_input, self.gain_without_model)]
        lines = [
            f"{VERDICTS[self.bound]}: a batch takes {1e3 * self.data_alone.step_s:,.1f} ms to "
            f"load, a step {1e3 * self.model_alone.step_s:,.1f} ms to compute.",
            line("as it is", self.training, f"step, {self.wait_share:.0%} of it waiting for data"),
            line("data alone", self.data_alone, "batch, for a model of a single number"),
            line("model alone", self.model_alone, "step, on one batch held in memory"),
            f"Data at no cost would make training {gains[0]:,.1f} times as fast, a model at no "
            f"cost {gains[1]:,.1f} times.",
        ]
        return "\n".join([*lines, *self._remarks()])

    def _remarks(self) -> Iterator[str]:
        """Yield a sentence for each result that seems to contradict the verdict."""
        if self.bound == "input" and self.wait_share < 0.1:
            yield (
                f"Only {self.wait_share:.0%} of the time is spent waiting for data, because "
                "readers and model share the processors: the data costs slower steps instead."
            )
        if self.bound == "model" and self.wait_share > 0.3:
            yield (
                f"Yet {self.training.wait_s:.2f} s are spent waiting for data, "
                f"{self.training.first_wait_s:.2f} s of them for the first batch: readers and "
                "model share the processors, or the data arrives in bursts."
            )


def diagnose(model: keras.Model, data: Any, *, max_seconds: float = 10.0) -> Diagnosis:
    """Measure with three tests whether the data or the model bounds a training.

    1. As it is: train the model on the data. Which share of the time does it wait for data?
    2. Data alone: the same data, for a model of a single number, with the cores kept awake as they
       are in training. How fast does the data arrive?
    3. Model alone: the model, on one batch held in memory. How fast does it compute?

    Each of the first two lasts an epoch, or `max_seconds` of it, from the request for the first
    batch. A loader that reads a chunk before its first batch pays for that here as in an epoch, so
    give long epochs the time of several chunks. A batch with another number of rows than the first,
    such as the last one of an epoch, ends a test, since it would compile the step again. The step
    is compiled before the tests. In all three a batch starts in the host's memory, so on a GPU the
    copy to the device is part of the model's time.

    The training is real, but the model is restored afterwards, also if a test fails: weights,
    states of random number generators and the optimizer's variables are copied to the host's
    memory, and metrics are reset. A model or optimizer that is not built yet is built. A loader
    keeps its position, so its next epoch is unaffected; only `stats()` includes the tests. A
    dataset is iterated over from its start, as by each `fit`.

    Args:
        model: compiled as for `fit`.
        data: `KerasSequenceLoader` or `tf.data.Dataset`, with labels.
        max_seconds: limit of each of the three tests, seconds, above 0.

    Returns:
        A `Diagnosis`. Its `bound` is "input", "model" or "both"; printed, it gives the reason.

    Raises:
        ValueError: if the model is not compiled, `max_seconds` is not above 0, or the data has no
            batch.
        TypeError: if the data is neither a loader nor a dataset.

    Example:
        >>> import time
        >>> import numpy as np, tensorflow as tf
        >>> def rows():
        ...     for _ in range(6):
        ...         time.sleep(0.05)
        ...         yield np.ones((32, 4), "float32"), np.ones((32, 1), "float32")
        >>> kind = tf.TensorSpec((None, 4)), tf.TensorSpec((None, 1))
        >>> slow = tf.data.Dataset.from_generator(rows, output_signature=kind)
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("adam", "mse")
        >>> diagnose(model, slow).bound
        'input'

    Source: tensorflow.org/guide/profiler and /guide/data_performance_analysis describe the tests.
    """
    if not getattr(model, "compiled", False) or not getattr(model, "optimizer", None):
        raise ValueError(f"model {model.name!r} is not compiled: compile it as for fit")
    if not max_seconds > 0:
        raise ValueError(f"max_seconds must be above 0, got {max_seconds}")
    is_loader = isinstance(data, KerasSequenceLoader)
    if is_loader:
        data.check_for_fit()
    else:
        TimedBatches.of_dataset(data)  # raises if it is no dataset

    def begin() -> Any:  # an epoch; it does not move a loader
        return data.preview() if is_loader else (batch for batch in data)

    with contextlib.closing(begin()) as batches:
        held = list(itertools.islice(batches, HELD_BATCHES))
    if not held:
        raise ValueError("the data has no batch")
    held = [batch for batch in held if _rows(batch) == _rows(held[0])]
    with _restored(model, held[0]):
        _run(model, held, math.inf)  # compiles, also for lists of other lengths
        model_alone = _run(model, itertools.repeat(held[0], MODEL_STEPS), max_seconds)
        stripped = _OneNumber()
        stripped.compile("sgd", jit_compile=False)
        _run(stripped, held, math.inf)
        with cores_awake(), contextlib.closing(begin()) as batches:
            data_alone = _run(stripped, batches, max_seconds)
        with contextlib.closing(begin()) as batches:
            training = _run(model, batches, max_seconds)
    return Diagnosis(training, data_alone, model_alone)


def _rows(batch: Any) -> int:
    """Return the rows of (inputs, labels) or (inputs, labels, weights)."""
    return int(keras.tree.flatten(batch[1])[0].shape[0])


def _run(model: keras.Model, batches: Iterable[Any], max_seconds: float) -> Pace:
    """Train on batches until they end, their number of rows changes, or the time is over."""
    rows: list[int] = []

    def limited() -> Iterator[Any]:
        started = time.perf_counter()
        for batch in batches:
            if rows and _rows(batch) != rows[0]:
                return
            rows.append(_rows(batch))
            yield batch
            if time.perf_counter() - started > max_seconds:
                return

    timed = TimedBatches(limited())
    now = time.perf_counter
    marks: list[tuple[float, float, int]] = []  # (time, seconds waited, batches) after each step
    watch = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: marks.append((now(), 0.0, 0)),
        on_train_batch_end=lambda batch, logs: marks.append((now(), timed.wait_s, timed.batches)),
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Your input ran out of data")  # expected here
        model.fit(timed, callbacks=[watch], verbose=0)
    (begin, *_), (_, first_wait_s, _), *_ = marks
    end, wait_s, steps = marks[-1]
    return Pace(steps, sum(rows[:steps]), end - begin, wait_s, first_wait_s)


class _OneNumber(keras.Model):
    """The smallest model that `fit` can train: its step takes a batch and does not use it."""

    def __init__(self) -> None:
        super().__init__(name="one_number")
        self.number = self.add_weight(shape=(), initializer="zeros", name="number")

    def call(self, inputs: Any) -> Any:
        """Return the number, float32 [1, 1]."""
        return keras.ops.reshape(self.number, (1, 1))

    def compute_loss(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Return the number as the loss."""
        return keras.ops.mean(y_pred)


@contextlib.contextmanager
def _restored(model: keras.Model, batch: Any) -> Iterator[None]:
    """Build the model if it is not, and restore afterwards all that training changes in it."""
    if not model.built:
        model(batch[0])
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    variables = [*model.variables, *model.optimizer.variables]
    values = [keras.ops.convert_to_numpy(variable).copy() for variable in variables]
    history = getattr(model, "history", None)
    stop_training = getattr(model, "stop_training", False)
    try:
        yield
    finally:
        model.reset_metrics()
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        model.history, model.stop_training = history, stop_training


# ---- what else measures a training ---------------------------------------------------------------

SPIN = "import os, sys\nos.nice(19)\nwhile os.getppid() == int(sys.argv[1]): pass"


@contextlib.contextmanager
def cores_awake() -> Iterator[None]:
    """Suppress the idle states of all CPU cores while the block runs.

    A reader that passes records from thread to thread, one by one, waits briefly for each of them.
    A core that has nothing else to do enters an idle state meanwhile, and waking it takes longer
    than the record does, above all on a virtual machine. During training the cores do not idle, so
    such a reader may be twice as fast there as alone; measured within this block, it shows the
    speed that it has in training. One process of the lowest priority per core keeps it busy, at a
    cost of 1 to 2% of the core. The processes end with the block, or with this process.

    Example:
        >>> with cores_awake():
        ...     sum(range(10))
        45
    """
    command = [sys.executable, "-IS", "-c", SPIN, str(os.getpid())]
    spinning = [subprocess.Popen(command) for _ in range(usable_cores())]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


class ProfileSteps(keras.callbacks.Callback):
    """Traces some steps of a `fit`, for TensorBoard's profile plugin.

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
        >>> import glob, tempfile
        >>> import numpy as np
        >>> folder = tempfile.mkdtemp()
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile(loss="mse")
        >>> x, y = np.zeros((80, 2)), np.zeros((80, 1))
        >>> profile = ProfileSteps(folder, first=3, last=4)
        >>> history = model.fit(x, y, batch_size=16, verbose=0, callbacks=[profile])
        >>> len(glob.glob(f"{folder}/plugins/profile/*/*.xplane.pb"))
        1
    """

    def __init__(self, log_dir: str | os.PathLike[str], first: int, last: int) -> None:
        super().__init__()
        if not 1 <= first <= last:
            raise ValueError(f"steps must be 1 <= first <= last, got first={first}, last={last}")
        self.log_dir, self.first, self.last = os.fspath(log_dir), first, last
        self._profiler, self._mark = contextlib.ExitStack(), contextlib.ExitStack()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Start to count the steps."""
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                "ProfileSteps needs Keras's backend 'tensorflow', got "
                f"{keras.backend.backend()!r}. Use the profiler of that backend instead."
            )
        self._step = 0

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Start the profiler before the first step to trace, and mark the start of each step."""
        from tensorflow import profiler

        self._step += 1
        if self._step == self.first:
            profiler.experimental.start(self.log_dir)
            self._profiler.callback(profiler.experimental.stop)
        if self.first <= self._step <= self.last:
            mark = profiler.experimental.Trace("train", step_num=self._step, _r=1)
            self._mark.enter_context(mark)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Mark the end of the step, and stop the profiler after the last step to trace."""
        self._mark.close()
        if self._step == self.last:
            self._profiler.close()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Stop the profiler if it is still running."""
        self._profiler.close()
