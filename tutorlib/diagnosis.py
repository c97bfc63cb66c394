"""diagnose: does the data or the model bound a training, and what would make it faster?

Three tests give the verdict. Then the same model trains on the same rows in other ways, so that a
remedy is a measurement, not advice.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import tempfile
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tutorlib.callbacks import StallReport, TimedBatches, build, variables_of
from tutorlib.keras_bridge.adapter import array_batches
from tutorlib.loader import KerasSequenceLoader

Tensor: TypeAlias = Any  # of Keras's backend, or a tree of them
Batch: TypeAlias = Any  # (inputs, labels) or (inputs, labels, weights)
TURNS = 3  # that count, after one that does not
HELD_BATCHES = 8  # of the model alone: one would stay in the processor's cache
MODEL_S = 1.0  # seconds of a turn of the model alone, and of a remedy, at most
MODEL_BELOW, INPUT_FROM = 0.25, 0.6  # of what data costs; between them, both bound a training
MARGIN = 0.03  # of what data costs, between runs, beside the range of the turns
GAIN_FROM = 1.1  # of a remedy that is worth a line
WIDER = 4  # times as many rows in a batch
REMEDY_BYTES = 256 * 2**20  # of the rows on which remedies are tried, at most
VERDICTS = {  # of what the least and the largest cost of the turns say
    ("input", "input"): "The data bounds this training",
    ("both", "both"): "Data and model bound this training together",
    ("model", "model"): "The model bounds this training",
    ("both", "input"): "The data bounds this training, or data and model do (too close to tell)",
    ("model", "both"): "The model bounds this training, or data and model do (too close to tell)",
    ("model", "input"): "What bounds this training is too close to tell",
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
    """What the tests of `diagnose` measured; `print` shows verdict and remedies.

    Args:
        training: the model on its data, as it is.
        data_alone: the same data, for a model of a single number; `training` where that is faster,
            since no batch takes longer to load than a whole step.
        model_alone: the model, on batches that stay in memory.
        costs: what data cost in each turn; these are of the median turn.
        remedies: {what would help: how many times as fast the training then was, in each turn}, the
            one of least effort first.
        tried: whether other ways to read these rows were tried.

    Example:
        >>> waits = Pace(10, 1000, 1.0, 0.7, 0.1)
        >>> paces = waits, Pace(10, 1000, 0.9, 0.8, 0.1), Pace(10, 1000, 0.3, 0, 0)
        >>> remedies = {"model.fit(x, y)": (2.0, 2.3, 2.1)}
        >>> found = Diagnosis(*paces, costs=(0.68, 0.7, 0.71), remedies=remedies)
        >>> found.bound, found.data_cost, round(found.gain_without_input, 1)
        ('input', 0.7, 3.3)
        >>> print(found)
        The data bounds this training: data costs 70% of the time (68% to 71%).
          as it is           1,000 rows/s    100.0 ms per step, 70% of it waiting (first batch: 10%)
          model alone        3,333 rows/s     30.0 ms per step, without any reader
          data alone         1,111 rows/s     90.0 ms per batch
        Data at no cost would make training 3.3 times as fast. Tried on these rows, least effort \
first:
          1. 2.1 times as fast (2.0 to 2.3): model.fit(x, y)
    """

    training: Pace
    data_alone: Pace
    model_alone: Pace
    costs: tuple[float, ...] = ()
    remedies: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    tried: bool = True

    @property
    def data_cost(self) -> float:
        """What data costs: 1 - (time of the model alone / time as it is), at least 0."""
        return max(0.0, 1 - self.model_alone.step_s / self.training.step_s)

    @property
    def bound(self) -> str:
        """What the data's cost says: "model" below 0.25, "input" from 0.6, "both" between them.

        "unclear" where the costs of the turns, give or take 0.03, lie on both sides of a limit.
        """
        least, largest = self._sides
        return least if least == largest else "unclear"

    @property
    def _sides(self) -> tuple[str, str]:
        """What the least and the largest cost of the turns say, give or take `MARGIN`."""
        costs = self.costs or (self.data_cost,)
        least, largest = (
            "input" if cost >= INPUT_FROM else "model" if cost < MODEL_BELOW else "both"
            for cost in (min(costs) - MARGIN, max(costs) + MARGIN)
        )
        return least, largest

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
        span = f" ({min(self.costs):.0%} to {max(self.costs):.0%})" if self.costs else ""
        lines = [
            f"{VERDICTS[self._sides]}: data costs {self.data_cost:.0%} of the time{span}.",
            line("as it is", self.training, f"step, {waits}"),
            line("model alone", self.model_alone, "step, without any reader"),
            line("data alone", self.data_alone, "batch"),
        ]
        gain = f"Data at no cost would make training {self.gain_without_input:,.1f} times as fast."
        if self.remedies:
            lines.append(f"{gain} Tried on these rows, least effort first:")
            for n, (advice, gains) in enumerate(self.remedies.items(), 1):
                span = f"({min(gains):.1f} to {max(gains):.1f})"
                lines.append(f"  {n}. {median(gains):.1f} times as fast {span}: {advice}")
        elif self.bound == "model":
            lines.append(f"{gain} Leave the data: what counts is the model, and its optimizer.")
        elif self.tried:
            lines.append(f"{gain} No other way to read these rows that was tried gains a tenth.")
        else:
            lines.append(f"{gain} Other ways to read lists and text are not tried.")
        return "\n".join(lines)


def diagnose(model: keras.Model, data: Any, *, max_seconds: float = 5.0) -> Diagnosis:
    """Measure whether the data or the model bounds a training, and what would make it faster.

    1. As it is: train the model on the data. Which share of the time does it wait for data?
    2. Model alone: the model, on its first batches, which stay in memory. How fast does it compute?
    3. Data alone: the same data, for a model of a single number. How fast does the data arrive?

    The verdict follows from the first two: data costs 1 - (time of the model alone / time as it
    is), whether the training waits or its steps are slower since readers share the processors.
    Below 25% of the time the model bounds the training, from 60% the data, between them both do.
    The third says what the reader could do for a faster model.

    If data costs a tenth or more in the first turn, the model also trains on the rows of its first
    batches in other ways: from arrays in memory, from a saved dataset, from Parquet files by a
    `KerasSequenceLoader`. What wider batches would gain is estimated from half a batch, which tells
    the part of a step that does not depend on its rows. Batches with lists or text get no remedies.

    All take four turns, of which the first does not count. Of the others, the one with the median
    of what data costs is shown: what slows a machine down for a while hits all of them. Each is
    timed by `StallReport`, from the request for the first batch to the end of the last step. A
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
            eight times as long, and 4 s for the model alone and for each remedy.

    Returns:
        A `Diagnosis`. Its `bound` is "input", "model", "both" or "unclear"; printed, it gives
        reason and remedies.

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
    held_s = min(max_seconds, MODEL_S)
    tests = [
        _Test(model, begin, max_seconds, steps),
        _Test(one_number, begin, max_seconds, steps),
        _Test(model, lambda: _each(itertools.cycle(alike)), held_s),
    ]
    turns: list[Diagnosis] = []
    with _restored(model, held[0]), tempfile.TemporaryDirectory() as folder:
        for trained in (model, one_number):  # compile, also for lists of other lengths
            _Test(trained, lambda: _each(held), math.inf).run()
        remedies: dict[str, Callable[[Diagnosis], float]] = {}
        gains: dict[str, list[float]] = {}
        for turn in range(1 + TURNS):
            paces = [test.run() for test in tests]
            # No batch takes longer to load than a whole step.
            data_alone = min(paces[:2], key=lambda pace: pace.step_s)
            found = Diagnosis(paces[0], data_alone, paces[2])
            if turn:
                turns.append(found)
            else:
                remedies = _remedies(model, data, alike, found, steps, Path(folder), held_s)
            for advice, gain in remedies.items():
                gains.setdefault(advice, []).append(gain(found))
    helpful = {advice: tuple(g[1:]) for advice, g in gains.items() if min(g[1:]) >= GAIN_FROM}
    middle = sorted(turns, key=lambda turn: turn.data_cost)[TURNS // 2]
    costs = tuple(turn.data_cost for turn in turns)
    return replace(middle, costs=costs, remedies=helpful, tried=bool(remedies))


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
            for number, batch in enumerate(batches):
                if self.cut or self.rows not in (0, _rows(batch)):
                    return
                self.rows = _rows(batch)
                yield batch
                # At least two steps: the first one of all may compile, and does not count.
                self.cut = number > 0 and time.perf_counter() - started > self.max_seconds

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


# ---- what would help -----------------------------------------------------------------------------


def _remedies(
    model: keras.Model,
    data: Any,
    batches: list[Batch],
    found: Diagnosis,
    steps: float,
    folder: Path,
    seconds: float,
) -> dict[str, Callable[[Diagnosis], float]]:
    """Return {advice: what measures its gain in a turn}, the advice of least effort first.

    Args:
        model: compiled, and trained on these batches already.
        data: as in `diagnose`.
        batches: its first ones, of equal size.
        found: what the first turn measured.
        steps: batches of an epoch; infinity if they are not known.
        folder: for files; of this call alone.
        seconds: of a turn, at most.
    """
    remedies: dict[str, Callable[[Diagnosis], float]] = {}
    rows = _as_arrays(batches)
    if rows is None:
        return remedies
    batch_rows = _rows(batches[0])

    def offer(advice: str, other: Iterable[Batch]) -> None:
        test = _Test(model, lambda: _each(other), seconds)

        def gain(found: Diagnosis) -> float:  # no reader is faster than none
            return min(found.training.step_s / test.run().step_s, found.gain_without_input)

        remedies[advice] = gain

    if found.data_cost >= 1 - 1 / GAIN_FROM:
        # As many rows as the model trains in a turn: those of the batches, over and over.
        leaves = keras.tree.flatten(rows)
        row_bytes = sum(leaf.nbytes for leaf in leaves) / len(leaves[0])
        enough = min(1.5 * seconds * found.model_alone.rows_per_s, REMEDY_BYTES / row_bytes)
        times = max(1, int(enough) // len(leaves[0]))
        rows = keras.tree.map_structure(lambda leaf: np.concatenate([leaf] * times), rows)
        size = f"{row_bytes:,.0f} bytes a row"
        if steps < math.inf:
            size = f"{math.ceil(steps * batch_rows * row_bytes / 2**20):,} MiB"
        advice = f"model.fit(x, y, batch_size={batch_rows}), all rows in memory ({size})"
        offer(advice, array_batches(rows, batch_rows))
        if not isinstance(data, KerasSequenceLoader):
            import tensorflow as tf

            saved = str(folder / "saved")
            tf.data.Dataset.from_tensor_slices(rows).batch(batch_rows).save(saved)
            advice = "data.save(folder), then Dataset.load(folder): fixed batches"
            offer(advice, tf.data.Dataset.load(saved).prefetch(2))
            loader = _loader_of(rows, batch_rows, folder)
            if loader is not None:
                offer("KerasSequenceLoader on Parquet files of these rows", _Shaped(loader, rows))
    cut = functools.partial(keras.tree.map_structure, lambda leaf: leaf[: batch_rows // 2])
    halves = list(map(cut, batches))
    half = _Test(model, lambda: _each(itertools.cycle(halves)), seconds)

    def widened(found: Diagnosis) -> float:
        whole_s = found.model_alone.step_s
        fixed_s = min(max(0.0, 2 * half.run().step_s - whole_s), whole_s)  # whatever its rows
        return found.training.step_s / (found.training.step_s - fixed_s * (1 - 1 / WIDER))

    if batch_rows > 1 and found.data_cost < INPUT_FROM:
        remedies[f"batches of {WIDER * batch_rows:,} rows (estimated; tune the rate)"] = widened
    return remedies


def _as_arrays(batches: list[Batch]) -> Batch | None:
    """Return the rows of batches as arrays in the structure of a batch; None for lists and text."""
    count = _rows(batches[0])
    for leaf in keras.tree.flatten(batches):
        is_dense = hasattr(leaf, "__array__") and tuple(leaf.shape[:1]) == (count,)
        if not is_dense or keras.ops.convert_to_numpy(leaf).dtype.kind not in "biuf":
            return None
    return keras.tree.map_structure(
        lambda *leaves: np.concatenate([keras.ops.convert_to_numpy(leaf) for leaf in leaves]),
        *batches,
    )


def _loader_of(rows: Batch, batch_rows: int, folder: Path) -> KerasSequenceLoader | None:
    """Write rows to a Parquet file and return a loader of it; None if it would refuse them."""
    inputs, labels, *weights = rows
    labels = labels if isinstance(labels, Mapping) else {"label": labels}
    if weights or not isinstance(inputs, Mapping) or {*inputs} & {*labels}:
        return None
    columns = {**inputs, **labels}
    categorical = [name for name in inputs if columns[name].dtype.kind in "iu"]
    for name, values in columns.items():
        is_negative = name in categorical and values.min() < 0  # no id
        if is_negative or values.size > len(values) or np.isnan(values).any():
            return None
    path = folder / "rows.parquet"
    table = pa.table({name: values.reshape(-1) for name, values in columns.items()})
    pq.write_table(table, path, row_group_size=131_072)
    continuous = [name for name in inputs if name not in categorical]
    return KerasSequenceLoader(path, batch_rows, [*labels], None, categorical, continuous)


@dataclass(frozen=True)
class _Shaped(Iterable[Batch]):
    """The batches of a loader, in the structure and with the axes of `rows`.

    TensorFlow would take labels [rows] and [rows, 1] for some of an unknown rank: Keras then fails.
    """

    loader: KerasSequenceLoader
    rows: Batch

    def __iter__(self) -> Iterator[Batch]:
        def shaped(like: np.ndarray, tensor: Tensor) -> Tensor:
            return tensor if like.ndim > 1 else keras.ops.reshape(tensor, (-1,))

        names = list(self.rows[1]) if isinstance(self.rows[1], Mapping) else []
        for inputs, labels in self.loader:
            labels = {names[0]: labels} if len(names) == 1 else labels  # a loader gives it alone
            yield keras.tree.map_structure(shaped, self.rows, (inputs, labels))


@contextlib.contextmanager
def _restored(model: keras.Model, batch: Batch) -> Iterator[None]:
    """Build the model if it is not, and restore afterwards all that training changes in it."""
    build(model, lambda: batch)
    variables = variables_of(model)
    values = [keras.ops.convert_to_numpy(variable).copy() for variable in variables]
    history = getattr(model, "history", None)
    train_function = getattr(model, "train_function", None)
    model.train_function = None  # one that has seen labels of another shape may refuse these
    stop_training = getattr(model, "stop_training", False)
    try:
        yield
    finally:
        model.reset_metrics()
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        model.history = history
        if train_function is not None:
            model.train_function = train_function
        model.stop_training = stop_training
