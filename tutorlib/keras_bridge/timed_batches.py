"""TimedBatches: batches on their way into Keras, and how long the training waits for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras

from tutorlib.keras_bridge.adapter import LoaderAdapter, Pass, TensorAdapter
from tutorlib.keras_bridge.ignored_arguments import refuse_ignored_arguments

REMEDIES = dict.fromkeys(
    ("y", "sample_weight", "class_weight", "batch_size"),
    "the data must hold inputs, labels and weights in batches",
)


class TimedBatches(TensorAdapter):
    """What `fit` takes instead of data, to measure how long it waits for each batch.

    Keras iterates over a `tf.data.Dataset` inside a compiled function, where no clock can be read.
    It takes each batch of this object in Python, as from a `KerasSequenceLoader`, and hands it to
    the compiled step: the same batches and the same step, for some 0.1 ms more per step.

    Args:
        data: (inputs, labels) or (inputs, labels, weights), batch by batch; each `iter(data)` is an
            epoch.
        num_batches: number of batches of an epoch; None if it is not known.
        clock: function that returns seconds and never goes back.

    Attributes:
        wait_s: seconds spent in taking batches so far.
        batches: number of batches taken so far.

    Example:
        >>> import numpy as np, tensorflow as tf
        >>> dataset = tf.data.Dataset.from_tensor_slices((np.ones((70, 2)), np.ones(70))).batch(32)
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile(loss="mse")
        >>> timed = TimedBatches.of_dataset(dataset)
        >>> history = model.fit(timed, epochs=2, verbose=0)
        >>> timed.batches, timed.wait_s > 0
        (6, True)
    """

    def __init__(
        self,
        data: Iterable[Any],
        num_batches: int | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._data, self._num_batches, self._clock = data, num_batches, clock
        self.wait_s, self.batches = 0.0, 0

    @classmethod
    def of_dataset(cls, dataset: Any, **options: Any) -> TimedBatches:
        """Return the timed batches of a `tf.data.Dataset`.

        Args:
            dataset: `tf.data.Dataset` of batches, as `fit` takes it.
            options: keyword arguments of the class.

        Raises:
            ValueError: if Keras does not run on TensorFlow, or within the scope of a
                `tf.distribute` strategy, which needs the dataset itself.
            TypeError: if it is not a dataset.
        """
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                "a tf.data.Dataset can be timed on Keras's backend 'tensorflow' only, but the "
                f"backend is {keras.backend.backend()!r}; use a KerasSequenceLoader"
            )
        import tensorflow as tf

        if not isinstance(dataset, tf.data.Dataset):
            raise TypeError(
                "the data to time must be a KerasSequenceLoader or a tf.data.Dataset, got a "
                f"{type(dataset).__name__}"
            )
        if tf.distribute.has_strategy():
            raise ValueError("a tf.distribute strategy needs the tf.data.Dataset itself, untimed")
        batches = int(dataset.cardinality())
        return cls(dataset, batches if batches >= 0 else None, **options)

    def take(self, batches: Iterator[Any]) -> Any:
        """Return the next batch, and add the seconds that it took."""
        started = self._clock()
        try:
            batch = next(batches)
        finally:
            self.wait_s += self._clock() - started
        self.batches += 1
        return batch

    def new_pass(self) -> Pass:
        """Return an iterator over the batches of an epoch."""
        return _TimedPass(self, self._data)

    @property
    def num_batches(self) -> int | None:
        """Number of batches of an epoch, or None; refuses what `fit` was given and would ignore."""
        loader = self._data if isinstance(self._data, LoaderAdapter) else None
        refuse_ignored_arguments(
            self,
            "timed batches",
            REMEDIES,
            {},
            disorder="" if loader is None else loader.disorder,
            labelled=loader is None or loader.labelled,
        )
        return self._num_batches

    @property
    def has_partial_batch(self) -> bool:
        """False; Keras asks for it, but nothing depends on it here."""
        return False


class _TimedPass(Pass):
    """An epoch; it begins with the first batch, because Keras may ask for none."""

    def __init__(self, timed: TimedBatches, data: Iterable[Any]) -> None:
        super().__init__()
        self._timed, self._data = timed, data
        self._batches: Iterator[Any] | None = None

    def take(self) -> Any:
        """Return the next batch, or raise StopIteration."""
        if self._batches is None:
            self._batches = iter(self._data)
        return self._timed.take(self._batches)
