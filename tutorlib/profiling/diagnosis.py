"""diagnose: does a training wait for its data, or for its arithmetic? Three tests, in words.

Does not belong here: which op takes how long (`trace.py`), logging while one trains
(`callbacks/stalls.py`).
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras

from tutorlib.keras_bridge import TimedBatches
from tutorlib.loader.loader import Batches, KerasSequenceLoader

HELD_BATCHES = 3  # compile the step: with lists, the shapes of the first two or three differ
DUMMY_STEPS = 30
EVEN = 1.25  # up to this ratio, neither of two times counts as the longer one


class Pace(NamedTuple):
    """How fast one of the tests ran.

    Args:
        steps: steps in it.
        rows: rows in them.
        elapsed_s: seconds from asking for the first batch to the end of the last step.
        wait_s: seconds of these within asking for batches.
        first_wait_s: seconds of these for the first batch.
    """

    steps: int
    rows: int
    elapsed_s: float
    wait_s: float
    first_wait_s: float

    @property
    def rows_per_s(self) -> float:
        """Rows a second."""
        return self.rows / self.elapsed_s

    @property
    def step_s(self) -> float:
        """Seconds a step."""
        return self.elapsed_s / self.steps


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """What the three tests measured; `print` it to read what follows from it.

    Args:
        training: the model on its data, as it is.
        delivery: the layers stripped: the same data for a model of one number.
        computing: dummy inputs: the model on one batch that is held in memory.

    Example:
        >>> waits = Pace(10, 1000, 1.0, 0.7, 0.1)
        >>> found = Diagnosis(waits, Pace(10, 1000, 0.9, 0.8, 0.1), Pace(10, 1000, 0.3, 0, 0))
        >>> found.bound, found.wait_share, round(found.gain_without_input, 1)
        ('input', 0.7, 3.3)
        >>> print(found)
        The data is what bounds this training.
          as it is                1,000 rows/s    100.0 ms a step, 70% of it waiting for data
          layers stripped         1,111 rows/s     90.0 ms a batch: how fast data comes
          dummy inputs            3,333 rows/s     30.0 ms a step: how fast the model computes
        To deliver a batch takes 3.0 times as long as to compute a step.
        Data that costs nothing would make training 3.3 times as fast, a model that costs nothing \
1.1 times.
    """

    training: Pace
    scatter_plan: Pace
    computing: Pace

    @property
    def wait_share(self) -> float:
        """Share of the training's time that was waiting for data, 0 to 1."""
        return self.training.wait_s / self.training.elapsed_s

    @property
    def delivery_to_computing(self) -> float:
        """How many times as long it takes to deliver a batch as to compute a step."""
        return self.scatter_plan.step_s / self.computing.step_s

    @property
    def bound(self) -> str:
        """What takes the longer time: "input", "model", or "both" where they are about even."""
        if self.delivery_to_computing >= EVEN:
            return "input"
        return "model" if self.delivery_to_computing <= 1 / EVEN else "both"

    @property
    def gain_without_input(self) -> float:
        """How many times as fast training would be if data cost nothing."""
        return self.training.step_s / self.computing.step_s

    @property
    def gain_without_model(self) -> float:
        """How many times as fast training would be if the model cost nothing."""
        return self.training.step_s / self.scatter_plan.step_s

    def __repr__(self) -> str:
        def line(name: str, pace: Pace, meaning: str) -> str:
            numbers = f"{pace.rows_per_s:>12,.0f} rows/s {1e3 * pace.step_s:>8,.1f} ms"
            return f"  {name:<17}{numbers} {meaning}"

        wait = f"a step, {self.wait_share:.0%} of it waiting for data"
        gains = [max(1.0, gain) for gain in (self.gain_without_input, self.gain_without_model)]
        lines = [
            BOUND[self.bound],
            line("as it is", self.training, wait),
            line("layers stripped", self.scatter_plan, "a batch: how fast data comes"),
            line("dummy inputs", self.computing, "a step: how fast the model computes"),
            f"To deliver a batch takes {self.delivery_to_computing:,.1f} times as long as to "
            "compute a step.",
            f"Data that costs nothing would make training {gains[0]:,.1f} times as fast, a model "
            f"that costs nothing {gains[1]:,.1f} times.",
        ]
        return "\n".join([*lines, *self._remarks()])

    def _remarks(self) -> Iterator[str]:
        """Yield a sentence for each thing that the three tests do not seem to agree on."""
        if self.bound == "input" and self.wait_share < 0.1:
            yield (
                "Little waiting shows all the same: readers and model share the processors, and "
                "the steps are slower for it."
            )
        if self.bound == "model" and self.wait_share > 0.3:
            yield (
                f"It waits all the same, {self.training.first_wait_s:.2f} of "
                f"{self.training.wait_s:.2f} s for the first batch: readers and model share the "
                "processors, or the data comes in bursts."
            )


BOUND = {
    "input": "The data is what bounds this training.",
    "model": "The model is what bounds this training.",
    "both": "Data and model take about the same time in this training.",
}


def diagnose(model: keras.Model, data: Any, *, max_seconds: float = 10.0) -> Diagnosis:
    """Find out by three tests whether the data or the model bounds a training.

    1. As it is: the model is trained on the data. What share of a step is waiting for data?
    2. Layers stripped: the same data for a model of one number. How fast does the data come?
    3. Dummy inputs: the model on one batch held in memory. How fast does the model compute?

    Each of the first two is an epoch, or what `max_seconds` allow of it, from asking for the first
    batch on: a loader that reads a chunk before it gives the first batch pays for it here as it
    does in an epoch, so give long epochs the time of several chunks. Batches of another number of
    rows than the first, such as an epoch's last one, end a test: they would compile the step anew.
    The step is compiled beforehand. A batch comes from the host's memory in all three tests, so on
    a GPU the way there is part of "computing".

    Training is real while it lasts, but the model is left as it was: weights, states of random
    number generators and the optimizer's variables are copied (to the host's memory) and put back,
    and metrics are reset, also if a test fails. A model or optimizer that is not built yet is
    built. A loader stays where it is: the epoch that comes next is the same; only `stats()` go
    on. A dataset is iterated over anew, as in each `fit`.

    Args:
        model: compiled as for `fit`.
        data: `KerasSequenceLoader` or `tf.data.Dataset`, with labels.
        max_seconds: for each of the three tests, above 0.

    Returns:
        A `Diagnosis`: `bound` is "input", "model" or "both"; its text says why.

    Raises:
        ValueError: if the model is not compiled, `max_seconds` is not above 0, or the data has no
            batch.
        TypeError: if the data is neither of the two.

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
    begin = _beginner(data)
    held = _held_batches(begin)
    dummy = itertools.repeat(held[0], DUMMY_STEPS)
    with _left_as_it_was(model, held[0]):
        _run(model, held, math.inf)  # compiles, for lists of other lengths again
        computing = _run(model, dummy, max_seconds)
        stripped = _OneNumber()
        stripped.compile("sgd", jit_compile=False)
        _run(stripped, held, math.inf)
        with contextlib.closing(begin()) as batches:
            scatter_plan = _run(stripped, batches, max_seconds)
        with contextlib.closing(begin()) as batches:
            training = _run(model, batches, max_seconds)
    return Diagnosis(training, scatter_plan, computing)


def _beginner(data: Any) -> Callable[[], Any]:
    """Return a function that begins an epoch and does not move the place in the data."""
    if isinstance(data, KerasSequenceLoader):
        data.check_for_fit()
        return lambda: Batches(data, counts=False)
    TimedBatches.of_dataset(data)  # is it one?
    return lambda: (batch for batch in data)


def _held_batches(begin: Callable[[], Any]) -> list[Any]:
    """Return the first batches of an epoch; only those of as many rows as the first."""
    with contextlib.closing(begin()) as batches:
        held = list(itertools.islice(batches, HELD_BATCHES))
    if not held:
        raise ValueError("the data has no batch")
    return [batch for batch in held if _rows(batch) == _rows(held[0])]


def _rows(batch: Any) -> int:
    """Return the rows of (inputs, labels) or (inputs, labels, weights)."""
    return int(keras.tree.flatten(batch[1])[0].shape[0])


def _run(model: keras.Model, batches: Iterable[Any], max_seconds: float) -> Pace:
    """Train on the batches until they, or the seconds, are over."""

    def limited() -> Iterator[Any]:
        started, rows = time.perf_counter(), None
        for batch in batches:
            if rows not in (None, _rows(batch)):
                return
            rows = counted["rows"] = _rows(batch)
            yield batch
            if time.perf_counter() - started > max_seconds:
                return

    counted: dict[str, int] = {}
    timed = TimedBatches(_Once(limited()))
    watch = _Watch(timed)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Your input ran out of data")  # it shall
        model.fit(timed, callbacks=[watch], verbose=0)
    return Pace(watch.steps, watch.steps * counted["rows"], *watch.seconds())


class _Once(Iterable[Any]):
    """Something to iterate over that gives the same iterator each time."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self._batches


class _Watch(keras.callbacks.Callback):
    """Reads clock and waiting time at the end of each step."""

    def __init__(self, timed: TimedBatches) -> None:
        super().__init__()
        self.timed, self.steps = timed, 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._begin = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._last, self._wait_s = time.perf_counter(), self.timed.wait_s
        if not self.steps:
            self._first_wait_s = self._wait_s
        self.steps = self.timed.batches

    def seconds(self) -> tuple[float, float, float]:
        """Return the seconds: elapsed, waited, waited for the first batch."""
        return self._last - self._begin, self._wait_s, self._first_wait_s


class _OneNumber(keras.Model):
    """The least that `fit` can train: its step takes all tensors of a batch and uses none."""

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
def _left_as_it_was(model: keras.Model, batch: Any) -> Iterator[None]:
    """Put back afterwards all that training changes in a model, which is built before."""
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
