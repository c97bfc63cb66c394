"""How a loader feeds Keras: the adapter that `fit` takes as it is.

Keras turns generators, PyDatasets and torch loaders into `tf.data.Dataset.from_generator`, which
copies every tensor through NumPy. It passes an instance of its own `DataAdapter` through untouched,
and then loops over whatever `get_tf_dataset()` returns; a loader that is one hands its tensors to
the train step as they are. `DataAdapter` is not exported by Keras, so it is imported here, once.
"""

from __future__ import annotations

import abc
import contextlib
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import keras

from tutorlib.keras_bridge.fit_arguments import (
    ClassWeights,
    begins_anew,
    given_beside,
    refuse_ignored,
)

TESTED_KERAS = "3.15"

try:
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter
except ImportError:  # a loader is then none, and says so when Keras tries what else it may be
    DataAdapter = object


class _Epochs(Iterable[Any]):
    """What Keras iterates over: every `iter()` is a pass over the loader's current epoch."""

    def __init__(self, loader: LoaderAdapter, weigh: ClassWeights | None = None) -> None:
        self._loader, self._weigh = loader, weigh

    def __iter__(self) -> Iterator[Any]:
        return _LoaderPass(self._loader, self._weigh)

    def __getattr__(self, name: str) -> Any:
        """Say what to do where TensorFlow takes this for a `tf.data.Dataset`: it asks for more."""
        raise AttributeError(
            f"a loader is no tf.data.Dataset, which a tf.distribute strategy needs (it asks for "
            f"{name!r}): give fit, evaluate or predict loader.to_tf_dataset()"
        )


class Pass(Iterator[Any], abc.ABC):
    """What Keras takes the batches of an epoch from, in Python; it may have fewer than expected.

    On TensorFlow, Keras zips a range and this iterator for each call of its train function. `zip`
    takes the iterator's end for its own, and Keras is left without a batch to return the outputs
    of. But `zip` calls `iter()` before anything else and lets the StopIteration of that through,
    which Keras understands as the end of the epoch. So `iter()` already takes the next batch.
    """

    def __init__(self) -> None:
        self._held: list[Any] = []  # the batch that `iter()` took

    def __iter__(self) -> Iterator[Any]:
        if not self._held:
            self._held.append(self._take())
        return self

    def __next__(self) -> Any:
        return self._held.pop() if self._held else self._take()

    @abc.abstractmethod
    def _take(self) -> Any:
        """Return the next batch, or raise StopIteration."""


class _LoaderPass(Pass):
    """A pass over an epoch of a loader; one that goes on within it is shorter."""

    def __init__(self, loader: LoaderAdapter, weigh: ClassWeights | None) -> None:
        super().__init__()
        self._loader, self._batches, self._weigh = loader, iter(loader), weigh
        self._left: int | None = None  # batches

    def _take(self) -> Any:
        if self._left is None:
            self._left = len(self._loader) - self._loader.first_batch  # type: ignore
            self._shorter = self._loader.first_batch > 0  # type: ignore
        elif self._left == 0 and self._shorter:
            self._loader.expect_early_end()
        with _profiled():
            batch = next(self._batches)
        self._left -= 1
        return batch if self._weigh is None else self._weigh(batch)


def _profiled() -> contextlib.AbstractContextManager[Any]:
    """Return the context in which TensorFlow's profiler sees the wait for a batch by its name."""
    if keras.backend.backend() != "tensorflow":
        return contextlib.nullcontext()
    import tensorflow as tf

    return tf.profiler.experimental.Trace("KerasSequenceLoader::next")


class LoaderAdapter(DataAdapter):
    """The side of a loader that Keras sees; `KerasSequenceLoader` is one.

    A subclass has `__iter__`, `__len__`, `batch_size`, `partial_batch_size`, `first_batch`,
    `describe`, `check_for_fit`, `forget_pass` and `undo_pass`. What `fit` is given beside it is
    applied (`class_weight`) or refused (see `fit_arguments`).
    """

    def get_tf_dataset(self) -> Iterable[Any]:
        """Return the batches: an iterable of tensors that are already made."""
        self.check_for_fit()  # type: ignore[attr-defined]
        return _Epochs(self)

    get_jax_iterator = get_tf_dataset
    get_torch_dataloader = get_tf_dataset
    get_numpy_iterator = get_tf_dataset

    _silence: contextlib.ExitStack | None = None

    def expect_early_end(self) -> None:
        """Keep Keras from warning, until the epoch's end, that the data ran out: it did not."""
        if self._silence is None:
            self._silence = contextlib.ExitStack()
            self._silence.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", "Your input ran out of data")

    def on_epoch_end(self) -> None:
        """Let warnings through again; Keras calls this at the end of each epoch."""
        if self._silence is not None:
            self._silence.close()
            self._silence = None

    @property
    def num_batches(self) -> int:
        """Batches of an epoch, exact.

        Keras asks for it while it takes the loader in, which is when arguments are checked.
        """
        frame = sys._getframe(1)
        if begins_anew(frame):
            self.undo_pass()  # type: ignore[attr-defined]
        given = given_beside(self, frame)
        if given:
            self.forget_pass()  # type: ignore[attr-defined]
            shuffled = self.describe()["shuffle_window_rows"] > 0  # type: ignore[attr-defined]
            refuse_ignored(given, batch_size=self.batch_size, shuffled=shuffled)
            if "class_weight" in given:
                weigh = ClassWeights(given["class_weight"])
                given["epoch_iterator"].data_adapter = _Weighted(self, weigh)
        return len(self)  # type: ignore[arg-type]

    @property
    def has_partial_batch(self) -> bool:
        """Whether the last batch is smaller than the others."""
        return bool(self.partial_batch_size)

    @property
    def __array__(self) -> Any:
        """Refuse to become an array: what Keras tries with an object that it does not know.

        Raises:
            TypeError: always; the message names the versions of Keras.
        """
        raise TypeError(
            f"a {type(self).__name__} gives batches and cannot become an array. fit, evaluate and "
            f"predict of Keras {TESTED_KERAS} take it as it is; if this is one of them, Keras "
            f"{keras.__version__} does not: install the former, or give it loader.to_tf_dataset(). "
            "For validation_split, which is for arrays, give validation_data another loader."
        )


class _Weighted(DataAdapter):
    """A loader, weighed by class: what one call of `fit` with `class_weight` trains on."""

    def __init__(self, loader: LoaderAdapter, weigh: ClassWeights) -> None:
        self._loader, self._weigh = loader, weigh

    def get_tf_dataset(self) -> Iterable[Any]:
        self._loader.check_for_fit()  # type: ignore[attr-defined]
        return _Epochs(self._loader, self._weigh)

    get_jax_iterator = get_tf_dataset
    get_torch_dataloader = get_tf_dataset
    get_numpy_iterator = get_tf_dataset

    @property
    def num_batches(self) -> int:
        if begins_anew(sys._getframe(1)):
            self._loader.undo_pass()  # type: ignore[attr-defined]
        return len(self._loader)  # type: ignore[arg-type]

    def on_epoch_end(self) -> None:
        self._loader.on_epoch_end()
