"""diagnose: does the data or the model bound a training? Three tests, and a verdict in words."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import keras

from tutorlib.callbacks import StallReport, TimedBatches, build, variables_of
from tutorlib.loader import KerasSequenceLoader

Tensor: TypeAlias = Any  # of Keras's backend, or a tree of them
Batch: TypeAlias = Any  # (inputs, labels) or (inputs, labels, weights)
TURNS = 3  # that count, after one that does not
HELD_BATCHES = 8  # of the model alone: one would stay in the processor's cache
MODEL_S = 1.0  # seconds of a turn of the model alone, at most
MODEL_BELOW, INPUT_FROM = 0.25, 0.6  # of what data costs; between them, both bound a training
VERDICTS = {
    "input": "The data bounds this training",
    "model": "The model bounds this training",
    "both": "Data and model bound this training together",
}


class Pace(NamedTuple):
    """How fast one of the tests ran, in an epoch.

    Args:
        steps: steps of the test.
        rows: rows of these steps.
        elapsed_s: seconds from the request for the first batch to the end of the last step.
        wait_s: seconds of these spent waiting for batches.
        first_wait_s: seconds of these spent waiting for the first batch, while buffers fill. If
            the test ended before the epoch, these steps' share of that wait.
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
        data_alone: the same data, for a model of a single number; `training` where that is faster,
            since no batch takes longer to load than a whole step.
        model_alone: the model, on batches that stay in memory.

    Example:
        >>> waits = Pace(10, 1000, 1.0, 0.7, 0.1)
        >>> found = Diagnosis(waits, Pace(10, 1000, 0.9, 0.8, 0.1), Pace(10, 1000, 0.3, 0, 0))
        >>> found.bound, found.data_cost, round(found.gain_without_input, 1)
        ('input', 0.7, 3.3)
        >>> print(found)
        The data bounds this training: data costs 70% of the time.
          as it is           1,000 rows/s    100.0 ms per step, 70% of it waiting (first batch: 10%)
          model alone        3,333 rows/s     30.0 ms per step, on batches that stay in memory
          data alone         1,111 rows/s     90.0 ms per batch: what the reader could do
        Data at no cost would make training 3.3 times as fast.
    """

    training: Pace
    data_alone: Pace
    model_alone: Pace

    @property
    def data_cost(self) -> float:
        """What data costs: 1 - (time of the model alone / time as it is), at least 0."""
        return max(0.0, 1 - self.model_alone.step_s / self.training.step_s)

    @property
    def bound(self) -> str:
        """What `data_cost` says: "model" below 0.25, "input" from 0.6, "both" between them."""
        cost = round(self.data_cost, 2)  # as printed
        return "input" if cost >= INPUT_FROM else "model" if cost < MODEL_BELOW else "both"

    @property
    def wait_share(self) -> float:
        """Share of the training's time spent waiting for data, 0 to 1."""
        return self.training.wait_s / self.training.elapsed_s

    @property
    def gain_without_input(self) -> float:
        """How many times as fast training would be with data at no cost, at least 1."""
        return max(1.0, self.training.step_s / self.model_alone.step_s)

    def __repr__(self) -> str:
        def line(name: str, pace: Pace, meaning: str) -> str:
            numbers = f"{pace.rows_per_s:>12,.0f} rows/s {1e3 * pace.step_s:>8,.1f} ms"
            return f"  {name:<12}{numbers} per {meaning}"

        first = self.training.first_wait_s / self.training.elapsed_s
        waits = f"{self.wait_share:.0%} of it waiting (first batch: {first:.0%})"
        lines = [
            f"{VERDICTS[self.bound]}: data costs {self.data_cost:.0%} of the time.",
            line("as it is", self.training, f"step, {waits}"),
            line("model alone", self.model_alone, "step, on batches that stay in memory"),
            line("data alone", self.data_alone, "batch: what the reader could do"),
            f"Data at no cost would make training {self.gain_without_input:,.1f} times as fast.",
        ]
        if (slower := self.data_cost - self.wait_share) >= 0.1:
            lines.append(
                f"Slower steps are {slower:.0%} of the time: readers and model share the "
                "processors, so the data costs more than the waiting."
            )
        return "\n".join(lines)


def diagnose(model: keras.Model, data: Any, *, max_seconds: float = 5.0) -> Diagnosis:
    """Measure with three tests whether the data or the model bounds a training.

    1. As it is: train the model on the data. Which share of the time does it wait for data?
    2. Model alone: the model, on its first batches, which stay in memory. How fast does it compute?
    3. Data alone: the same data, for a model of a single number. How fast does the data arrive?

    The verdict follows from the first two: data costs 1 - (time of the model alone / time as it
    is), whether the training waits or its steps are slower since readers share the processors.
    Below 25% of the time the model bounds the training, from 60% the data, between them both do.
    The third says what the reader could do for a faster model.

    The tests take four turns, of which the first does not count. Of the others, the one with the
    median of what data costs is shown: what slows a machine down for a while hits all three. Each
    is timed by `StallReport`, from the request for the first batch to the end of the last step. A
    turn lasts an epoch, or `max_seconds` of it; of a part of an epoch, the wait for the first
    batch, in which buffers fill, counts in proportion. A batch with another number of rows than the
    first, such as the last one of an epoch, ends a turn, since it would compile the step again. In
    all three a batch starts in the host's memory, so on a GPU the copy to the device is part of the
    model's time.

    The training is real, but the model is restored afterwards, also if a test fails: weights,
    states of random number generators and the optimizer's variables are copied to the host's
    memory, and metrics are reset. A model or optimizer that is not built yet is built. A loader
    keeps its position, so its next epoch is unaffected; only `stats()` includes the tests. A
    dataset is iterated over from its start, as by each `fit`.

    Args:
        model: compiled as for `fit`.
        data: `KerasSequenceLoader` or `tf.data.Dataset`, with labels.
        max_seconds: limit of each turn of a test, seconds, above 0. All turns together take at most
            eight times as long, and 4 s for the model alone.

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
    begin: Callable[[], Any]  # an epoch, which can be closed; it does not move a loader
    if isinstance(data, KerasSequenceLoader):
        data._check_for_fit()
        begin = data._preview
        steps: float = len(data)
    else:
        begin = functools.partial(_each, data)
        steps = TimedBatches.of_dataset(data).num_batches or math.inf
    with contextlib.closing(begin()) as batches:
        held = list(itertools.islice(batches, HELD_BATCHES))
    if not held:
        raise ValueError("the data has no batch")
    alike = [batch for batch in held if _rows(batch) == _rows(held[0])]
    one_number = _OneNumber()
    one_number.compile("sgd", jit_compile=False)
    tests = [
        _Test(model, begin, max_seconds, steps),
        _Test(one_number, begin, max_seconds, steps),
        _Test(model, lambda: _each(itertools.cycle(alike)), min(max_seconds, MODEL_S)),
    ]
    turns = []
    with _restored(model, held[0]):
        for trained in (model, one_number):  # compile, also for lists of other lengths
            _Test(trained, lambda: _each(held), math.inf).run()
        for _ in range(1 + TURNS):
            paces = [test.run() for test in tests]
            # No batch takes longer to load than a whole step.
            data_alone = min(paces[:2], key=lambda pace: pace.step_s)
            turns.append(Diagnosis(paces[0], data_alone, paces[2]))
    return sorted(turns[1:], key=lambda turn: turn.data_cost)[TURNS // 2]


def _each(batches: Iterable[Batch]) -> Generator[Batch]:
    """Yield the batches; unlike other iterators, a generator can be closed."""
    yield from batches


def _rows(batch: Batch) -> int:
    """Return the rows of a batch."""
    return int(keras.tree.flatten(batch[1])[0].shape[0])


@dataclass(eq=False)
class _Test(Iterable[Batch]):
    """Trains on an epoch, until it ends, the rows of its batches change, or the time is over.

    Args:
        model: compiled.
        begin: returns the batches of an epoch; they can be closed.
        max_seconds: of a run.
        steps: batches of an epoch; infinity if they are not known, or endless.
    """

    model: keras.Model
    begin: Callable[[], Any]
    max_seconds: float
    steps: float = math.inf

    def __post_init__(self) -> None:
        self.report = StallReport(TimedBatches(self))  # of all runs: it knows a step that compiles

    def __iter__(self) -> Iterator[Batch]:
        self.rows = 0
        self.cut = False
        started = time.perf_counter()
        with contextlib.closing(self.begin()) as batches:
            for batch in batches:
                if self.cut or self.rows not in (0, _rows(batch)):
                    return
                self.rows = _rows(batch)
                yield batch
                self.cut = time.perf_counter() - started > self.max_seconds

    def run(self) -> Pace:
        """Train once."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Your input ran out of data")  # expected here
            self.model.fit(self.report.data, callbacks=[self.report], verbose=0)
        stall = self.report.stalls[-1]
        share = min(1.0, stall.steps / self.steps) if self.cut else 1.0  # of the epoch
        left = stall.first_wait_s * (1 - share)  # for the steps that were not run
        return Pace(
            stall.steps,
            stall.steps * self.rows,
            stall.elapsed_s - left,
            stall.wait_s - left,
            stall.first_wait_s - left,
        )


class _OneNumber(keras.Model):
    """The smallest model that `fit` can train: its step takes a batch and does not use it."""

    def __init__(self) -> None:
        super().__init__(name="one_number")
        self.number = self.add_weight(shape=(), initializer="zeros", name="number")

    def call(self, inputs: Tensor) -> Tensor:
        """Return the number, float32 [1, 1]."""
        return keras.ops.reshape(self.number, (1, 1))

    def compute_loss(self, x: Tensor, y: Tensor, y_pred: Tensor, sample_weight: Tensor) -> Tensor:
        """Return the number as the loss."""
        return keras.ops.mean(y_pred)


@contextlib.contextmanager
def _restored(model: keras.Model, batch: Batch) -> Iterator[None]:
    """Build the model if it is not, and restore afterwards all that training changes in it."""
    build(model, lambda: batch)
    variables = variables_of(model)
    values = [keras.ops.convert_to_numpy(variable).copy() for variable in variables]
    history = getattr(model, "history", None)
    stop_training = getattr(model, "stop_training", False)
    try:
        yield
    finally:
        model.reset_metrics()
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        model.history = history
        model.stop_training = stop_training
