"""TimedBatches: batches on their way into Keras, and how long the training waits for them.

Does not belong here: what the seconds mean (`callbacks/stalls.py`, `profiling/diagnosis.py`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras

from tutorlib.keras_bridge.adapter import DataAdapter, Pass
from tutorlib.keras_bridge.fit_arguments import given_beside


class TimedBatches(DataAdapter):
    """What `fit` takes in place of data, to learn how long it waits for each batch.

    Keras calls a `tf.data.Dataset` from inside a compiled function, where no clock can be read.
    Given this, it takes each batch in Python, as it does from a `KerasSequenceLoader`, and hands it
    to the compiled step: the same batches and the same step, and some 0.1 ms more a step.

    Args:
        data: (inputs, labels) or (inputs, labels, weights), batch by batch; each `iter(data)` is an
            epoch.
        num_batches: of an epoch; None if nobody knows.
        clock: function that returns seconds and never goes back.

    Attributes:
        wait_s: seconds that were spent in taking batches.
        batches: how many were taken.

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
            dataset: batches as `fit` takes them.
            options: as for the class.

        Raises:
            ValueError: if Keras runs on another backend than TensorFlow, or within the scope of a
                `tf.distribute` strategy, which needs the dataset itself.
            TypeError: if it is no dataset.
        """
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                f"a tf.data.Dataset is timed on Keras's backend 'tensorflow' only, which is now "
                f"{keras.backend.backend()!r}; take a KerasSequenceLoader"
            )
        import tensorflow as tf

        if not isinstance(dataset, tf.data.Dataset):
            raise TypeError(
                f"what is to be timed must be a KerasSequenceLoader or a tf.data.Dataset, got a "
                f"{type(dataset).__name__}"
            )
        if tf.distribute.has_strategy():
            raise ValueError("a tf.distribute strategy needs the tf.data.Dataset itself, untimed")
        batches = int(dataset.cardinality())
        return cls(dataset, batches if batches >= 0 else None, **options)

    def take(self, batches: Iterator[Any]) -> Any:
        """Return the next batch, and add the seconds that it took.

        Raises:
            StopIteration: if there is none.
        """
        started = self._clock()
        try:
            batch = next(batches)
        finally:
            self.wait_s += self._clock() - started
        self.batches += 1
        return batch

    def get_tf_dataset(self) -> Iterable[Any]:
        """Return the batches: an iterable of which each `iter()` is an epoch."""
        return _Epochs(self, self._data)

    get_jax_iterator = get_tf_dataset
    get_torch_dataloader = get_tf_dataset
    get_numpy_iterator = get_tf_dataset

    @property
    def num_batches(self) -> int | None:
        """Batches of an epoch; Keras asks for it when it takes the data in.

        Raises:
            ValueError: if `fit` was given something beside the data that Keras would now ignore.
        """
        given = given_beside(self, sys._getframe(1))
        ignored = sorted(set(given) - {"epoch_iterator", "shuffle"})
        if ignored:
            raise ValueError(
                f"{', '.join(ignored)} beside timed batches would have no effect: they hold "
                "inputs, labels and weights, in batches. Put it into the data."
            )
        return self._num_batches

    @property
    def has_partial_batch(self) -> bool:
        """Keras asks data adapters for it; nothing depends on it here."""
        return False


class _Epochs(Iterable[Any]):
    """What Keras iterates over."""

    def __init__(self, timed: TimedBatches, data: Iterable[Any]) -> None:
        self._timed, self._data = timed, data

    def __iter__(self) -> Iterator[Any]:
        return _TimedPass(self._timed, self._data)


class _TimedPass(Pass):
    """An epoch; nothing begins before a batch is asked for, since Keras may ask for none."""

    def __init__(self, timed: TimedBatches, data: Iterable[Any]) -> None:
        super().__init__()
        self._timed, self._data = timed, data
        self._batches: Iterator[Any] | None = None

    def _take(self) -> Any:
        if self._batches is None:
            self._batches = iter(self._data)
        return self._timed.take(self._batches)
