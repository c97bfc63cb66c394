"""Measuring in turns, A B C, A B C: what slows the machine down for a while slows them all.

A turn reads or trains whole epochs, from the request for the first batch to the end of the last
batch or step, as `tutorlib.diagnose` and `StallReport` measure, so that all rates can be compared.
The cores are kept awake: a reader that waits on sleeping cores is slower alone than in a training.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

SPIN = "import os, sys\nos.nice(19)\nwhile os.getppid() == int(sys.argv[1]): pass"


@dataclasses.dataclass(frozen=True)
class Epoch:
    """What was read or trained, and for how long.

    Args:
        rows: rows that were read, trained on or written.
        elapsed_s: seconds from the request for the first batch to the end of the last batch or
            step; None if the time of the whole call counts. What follows the last batch does not
            count: TensorFlow ends an iterator of tf.data only when its autotuning wakes, after 10,
            30, 70, ... 5110 milliseconds, as late as twice the time that the epoch took.
        values: further numbers; the end of a name is its unit (_bytes, _s, _share).
    """

    rows: int
    elapsed_s: float | None = None
    values: Mapping[str, float] = dataclasses.field(default_factory=dict)


def measure_rates(
    measured: Mapping[str, Any], turns: int = 3, at_least_s: float = 0.5, *, warm_up: int = 1
) -> pd.DataFrame:
    """Measure in turns how fast batches can be read, and how fast models train on them.

    The first turn, which compiles the training steps and warms the file cache up, does not count:
    in an epoch whose first step compiles, the reader works ahead, and training looks faster than
    the reader that feeds it.

    Args:
        measured: {name: batches} to read and discard them, or {name: (compiled model, batches)} to
            train with `fit`. Batches are (inputs, labels), in a dataset, a loader, or, to read
            them, a function that returns an epoch. The training is real: it changes the weights of
            the model.
        turns: turns that count, at least 1.
        at_least_s: seconds, at least 0; short epochs are repeated until a turn has taken so long.
        warm_up: turns before them that do not count; 0 if the models have trained on the batches.

    Returns:
        DataFrame of rows per second, a row per turn and a column per name. State `.median()`, and
        as a factor the median of the ratios of turns; `clearly_faster` compares two columns.

    Example:
        >>> import numpy as np, tensorflow as tf
        >>> rows = tf.data.Dataset.from_tensors((np.ones((8, 1)), np.ones((8, 1)))).repeat(3)
        >>> measure_rates({"reading": rows}, turns=2, at_least_s=0).shape
        (2, 1)
    """
    rates: list[dict[str, float]] = [{} for _ in range(warm_up + turns)]
    with cores_awake():
        for turn in rates:
            for name, subject in measured.items():
                rows, seconds = 0, 0.0
                while not rows or seconds < at_least_s:
                    if isinstance(subject, tuple):
                        done = fit_epoch(*subject)
                    else:
                        done = read_epoch(subject if hasattr(subject, "__iter__") else subject())
                    rows, seconds = rows + done.rows, seconds + (done.elapsed_s or 0)
                turn[name] = rows / seconds
    return pd.DataFrame(rates[warm_up:])


def measure_ms(
    functions: Mapping[str, Callable[[], Any]], turns: int = 3, *, calls: int = 1, warm_up: int = 1
) -> pd.DataFrame:
    """Measure in turns how long functions take; a GPU's work is waited for.

    Args:
        functions: {name: function without arguments}.
        turns: turns that count, at least 1.
        calls: calls per turn, at least 1; the time of a turn is their mean.
        warm_up: turns before them that do not count, at least 0.

    Returns:
        DataFrame of milliseconds per call, a row per turn and a column per name. State
        `.median()`; compare two columns by `clearly_faster` of their inverses.

    Example:
        >>> measure_ms({"nothing": lambda: None}, turns=2).shape
        (2, 1)
    """
    import tensorflow as tf

    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(warm_up + turns):
        for name, function in functions.items():
            begin = time.perf_counter()
            for _ in range(calls):
                function()
            tf.test.experimental.sync_devices()
            times[name].append(1e3 * (time.perf_counter() - begin) / calls)
    return pd.DataFrame(times).iloc[warm_up:].reset_index(drop=True)


def clearly_faster(rates: Iterable[float], others: Iterable[float]) -> bool:
    """Return whether every turn of one is faster than every turn of the other.

    Two that are equally fast differ so by chance in 1 of 20 cases with 3 turns each, in 1 of 252
    with 5. No factor for noise has to be chosen: the turns themselves show it.

    Example:
        >>> clearly_faster([9.0, 7.0, 8.0], [4.0, 6.0, 5.0])
        True
        >>> clearly_faster([9.0, 7.0, 8.0], [4.0, 8.0, 5.0])
        False
    """
    return min(rates) > max(others)


def rate_and_range(rates: Sequence[float]) -> str:
    """Return the median of the turns' rates as text, with the slowest and the fastest.

    Example:
        >>> rate_and_range([98_000.0, 71_250.0, 75_500.0])
        '76,000 (71,000 to 98,000)'
    """
    middle, slowest, fastest = map(two_digits, (statistics.median(rates), min(rates), max(rates)))
    return f"{middle} ({slowest} to {fastest})"


def two_digits(value: float) -> str:
    """Return a number as text, rounded to two digits: nothing here is known better.

    Example:
        >>> two_digits(228_140.0), two_digits(4.0), two_digits(0.0962)
        ('230,000', '4.0', '0.096')
    """
    rounded = float(f"{value:.2g}")
    decimals = 1 - math.floor(math.log10(rounded)) if rounded else 0
    return f"{rounded:,.{max(0, decimals)}f}"


# ---- one epoch -----------------------------------------------------------------------------------


def no_wait() -> None:
    """Do not wait for a device: its work is done when a step returns."""


def fit_epoch(
    model: Any,
    *data: Any,
    callbacks: Sequence[Any] = (),
    synchronise: Callable[[], Any] = no_wait,
    **options: Any,
) -> Epoch:
    """Train one epoch with `fit`; return its rows, as the loss metric counted them, and loss.

    The clock starts with the request for the first batch and stops at the end of the last step; a
    callback of its own for each step would make steps of a GPU wait for one another.
    """
    import keras

    moments: list[float] = []
    rows = 0

    def end(epoch: int, logs: Any) -> None:
        nonlocal rows
        synchronise()
        moments.append(time.perf_counter())
        [loss] = [metric for metric in model.metrics if metric.name == "loss"]
        rows = int(loss.count)

    clock = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: moments.append(time.perf_counter()), on_epoch_end=end
    )
    with warnings.catch_warnings():
        # A dataset shuffles itself, and its length may not be known.
        warnings.filterwarnings("ignore", "`shuffle=True` was passed|Your input ran out of data")
        history = model.fit(*data, callbacks=[*callbacks, clock], verbose=0, **options).history
    if rows >= 2**24:  # a float32 counts them, exactly to this number
        raise ValueError("an epoch of 16,777,216 rows or more: measure fewer with `.take(steps)`")
    begun, ended = moments
    return Epoch(rows, elapsed_s=ended - begun, values={"loss": history["loss"][0]})


def read_epoch(batches: Iterable[Any], look: Callable[[Any], Any] | None = None) -> Epoch:
    """Read an epoch of (inputs, label); return its rows, and when the last batch had come.

    The rows of each tensor are compared with the label's in the first batch, and in each batch of
    another size than the one before: asking 40 tensors for their shape takes longer than making
    them. A dataset of tf.data is read in a compiled function, as `fit` reads it: a loop in Python
    waits longer for each of its batches.

    Args:
        batches: what gives an epoch.
        look: called with the inputs of each batch.
    """
    import tensorflow as tf

    rows = last = 0
    begun = time.perf_counter()
    if isinstance(batches, tf.data.Dataset):
        iterator, next_rows = iter(batches), _compiled_next_rows(look is not None)
        with contextlib.suppress(tf.errors.OutOfRangeError):
            while True:
                size, inputs = next_rows(iterator)
                rows += int(size)
                if look:
                    look(inputs)
    else:
        for inputs, label in batches:
            if (size := label.shape[0]) != last:
                last = _rows_of(inputs, label)
            rows += size
            if look:
                look(inputs)
    return Epoch(rows, elapsed_s=time.perf_counter() - begun)


@functools.cache
def _compiled_next_rows(with_inputs: bool) -> Callable[[Any], Any]:
    import tensorflow as tf

    def next_rows(iterator: Any) -> Any:
        inputs, label = iterator.get_next()
        rows = tf.shape(label)[0]
        others = [tf.shape(t)[0] for n, t in named(inputs).items() if not n.endswith("__values")]
        with tf.control_dependencies([tf.debugging.assert_equal(tf.stack(others), rows)]):
            return tf.identity(rows), inputs if with_inputs else None

    return tf.function(next_rows)


def _rows_of(inputs: Any, label: Any) -> int:
    rows: int = label.shape[0]
    for name, tensor in named(inputs).items():
        if tensor.shape[0] != rows and not name.endswith("__values"):
            raise ValueError(f"{name!r} has {tensor.shape[0]} rows, the label {rows}")
    return rows


def named(inputs: Any) -> Mapping[str, Any]:
    """Return the tensors of a batch by name."""
    return inputs if isinstance(inputs, Mapping) else {"inputs": inputs}


@contextlib.contextmanager
def cores_awake() -> Iterator[None]:
    """Suppress the idle states of all CPU cores that this process may use while the block runs.

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
    from tutorlib.memory import usable_cores  # lesson 07 imports a copy of tutorlib later

    command = [sys.executable, "-IS", "-c", SPIN, str(os.getpid())]
    spinning = [subprocess.Popen(command) for _ in range(usable_cores())]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()
