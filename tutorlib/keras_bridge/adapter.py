"""LoaderAdapter: how `fit`, `evaluate` and `predict` take the batches of a loader as they are.

Keras turns generators, PyDatasets and torch loaders into `tf.data.Dataset.from_generator`, which
copies every tensor through NumPy. It uses an instance of its own `DataAdapter` directly: it loops
over what `get_tf_dataset()` returns and hands these tensors to the train step. Keras does not
export `DataAdapter`; it is imported here and nowhere else.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras

from tutorlib.keras_bridge.ignored_arguments import refuse_ignored_arguments
from tutorlib.schema import Schema

TESTED_KERAS = "3.15"

try:
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter
except ImportError:  # Keras then treats a loader like any object, and `__array__` says what to do
    DataAdapter = object

REMEDIES = {
    "y": "name the label columns: KerasSequenceLoader(label_names=[...])",
    "sample_weight": "name a column of weights: KerasSequenceLoader(weight_name=...)",
    "class_weight": "pass class_weight to KerasSequenceLoader",
    "batch_size": "pass batch_size to KerasSequenceLoader",
    "shuffle": "pass shuffle to KerasSequenceLoader",
}


class Pass(Iterator[Any], abc.ABC):
    """An iterator over an epoch's batches that Keras may take in Python.

    On TensorFlow, Keras zips a range and this iterator for each call of its train function. If the
    iterator ended inside `zip`, Keras would have no outputs to return; if `iter()` raises
    StopIteration, Keras ends the epoch. So `iter()` already takes the next batch.
    """

    def __init__(self) -> None:
        self._held: list[Any] = []  # the batch that `iter()` took

    def __iter__(self) -> Iterator[Any]:
        if not self._held:
            self._held.append(self.take())
        return self

    def __next__(self) -> Any:
        return self._held.pop() if self._held else self.take()

    @abc.abstractmethod
    def take(self) -> Any:
        """Return the next batch, or raise StopIteration."""


class _Epochs(Iterable[Any]):
    """What Keras iterates over: each `iter()` is a new pass."""

    def __init__(self, new_pass: Callable[[], Pass]) -> None:
        self._new_pass = new_pass

    def __iter__(self) -> Iterator[Any]:
        return self._new_pass()

    def __getattr__(self, name: str) -> Any:
        """Say what to do if TensorFlow takes this for a `tf.data.Dataset` and asks for more."""
        raise AttributeError(
            f"this is not a tf.data.Dataset, which a tf.distribute strategy needs (it asks for "
            f"{name!r}); give fit, evaluate or predict loader.to_tf_dataset(). Under "
            "MultiWorkerMirroredStrategy, which fit does not support, write the loop that "
            "docs/scale_out.md has"
        )


class TensorAdapter(abc.ABC, DataAdapter):
    """A data adapter whose batches are tensors of Keras's backend already."""

    @abc.abstractmethod
    def new_pass(self) -> Pass:
        """Return an iterator over the batches of the epoch that is next when it is first used."""

    def get_tf_dataset(self) -> Iterable[Any]:
        """Return the batches: an iterable of which each `iter()` is one epoch."""
        return _Epochs(self.new_pass)

    get_jax_iterator = get_tf_dataset
    get_torch_dataloader = get_tf_dataset
    get_numpy_iterator = get_tf_dataset


class _MappedPass(Pass):
    """A pass over what a function makes of the batches of another pass."""

    def __init__(self, batches: Pass, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self._batches, self._function = batches, function

    def take(self) -> Any:
        """Return the next batch, or raise StopIteration."""
        return self._function(next(self._batches))


class LoaderAdapter(TensorAdapter):
    """The side of a loader that Keras sees; `KerasSequenceLoader` is one."""

    _calls = ""  # the last 3 since an epoch ended: n for num_batches, b for on_epoch_begin
    _before_epoch: Any = None  # position at the latest on_epoch_begin
    _silence: contextlib.ExitStack | None = None

    @abc.abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """Return the batches of the current epoch, (inputs, labels) or with weights."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """Return the number of batches of an epoch."""

    @property
    @abc.abstractmethod
    def batch_size(self) -> int:
        """Rows of a full batch."""

    @property
    @abc.abstractmethod
    def labelled(self) -> bool:
        """Whether batches hold labels."""

    @property
    @abc.abstractmethod
    def shuffle(self) -> bool:
        """Whether rows come in random order."""

    @property
    @abc.abstractmethod
    def disorder(self) -> str:
        """Words for why rows do not come in the order of the files; "" if they do."""

    @property
    @abc.abstractmethod
    def schema(self) -> Schema:
        """Schema of the batches."""

    @property
    @abc.abstractmethod
    def first_batch(self) -> int:
        """Number of the batch with which the next pass begins; above 0 after a resume."""

    @property
    @abc.abstractmethod
    def position(self) -> Any:
        """Where the loader stands; `return_to` takes it."""

    @abc.abstractmethod
    def return_to(self, position: Any) -> None:
        """Go back to an earlier position of this loader."""

    @abc.abstractmethod
    def check_for_fit(self) -> None:
        """Raise ValueError where Keras would report a wrong loss or fail without a clear reason."""

    def new_pass(self) -> Pass:
        """Return an iterator over the batches of the epoch that is next when it is first used."""
        return _LoaderPass(self)

    def get_tf_dataset(self) -> Iterable[Any]:
        """Return the batches, with their types for `tf.function`."""
        from tutorlib.keras_bridge.typed_batches import with_types

        typed = with_types([column.name for column in self.schema if column.multi_hot])
        return _Epochs(lambda: _MappedPass(self.new_pass(), typed))

    @property
    def has_partial_batch(self) -> bool:
        """Whether the last batch is smaller than the others."""
        return bool(self.partial_batch_size)

    @property
    def num_batches(self) -> int:
        """Number of batches of an epoch; refuses what Keras would ignore or get wrong."""
        accepted: dict[str, list[Any]] = {
            "batch_size": [self.batch_size],
            "shuffle": [True, self.shuffle],  # True is the default of fit
        }
        refuse_ignored_arguments(
            self, "a loader", REMEDIES, accepted, disorder=self.disorder, labelled=self.labelled
        )
        self.check_for_fit()
        self._calls = self._calls[-2:] + "n"
        return len(self)

    def on_epoch_begin(self) -> None:
        """Remember the position; Keras calls this before it draws the batches of an epoch."""
        self._calls = self._calls[-2:] + "b"
        self._before_epoch = self.position

    def on_epoch_end(self) -> None:
        """End an epoch; go back to its beginning if Keras drew batches only to build the model.

        `fit` and `evaluate` ask for `num_batches` when they take the loader in and again when they
        begin, and call `on_epoch_end` right after that. On JAX and PyTorch they begin an epoch
        between the two, to learn the shapes of a batch for a model that is not built yet.
        """
        self._warn_again()
        if self._calls == "nbn":
            self.return_to(self._before_epoch)
        self._calls = ""

    def expect_early_end(self) -> None:
        """Keep Keras from warning that data ran out, until the end of this shorter epoch."""
        if self._silence is None:
            self._silence = contextlib.ExitStack()
            self._silence.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", "Your input ran out of data")

    def _warn_again(self) -> None:
        if self._silence is not None:
            self._silence.close()
            self._silence = None

    @property
    def __array__(self) -> Any:
        """Refuse to become an array, as which Keras takes an object that it does not know.

        Raises:
            TypeError: always; the message names the versions of Keras.
        """
        raise TypeError(
            f"a {type(self).__name__} gives batches and cannot become an array. fit, evaluate and "
            f"predict of Keras {TESTED_KERAS} take it as it is; if this is one of them, Keras "
            f"{keras.__version__} does not: install the former, or give it loader.to_tf_dataset(). "
            "For validation_split, which is for arrays, give validation_data another loader."
        )


class _LoaderPass(Pass):
    """A pass over an epoch of a loader, or over what is left of it after a resume."""

    def __init__(self, loader: LoaderAdapter) -> None:
        super().__init__()
        self._loader, self._batches = loader, iter(loader)
        self._left: int | None = None  # batches
        self._profiled = _profiled()

    def take(self) -> Any:
        """Return the next batch, or raise StopIteration."""
        if self._left is None:
            self._left = len(self._loader) - self._loader.first_batch
            self._resumed = self._loader.first_batch > 0
        elif self._left == 0 and self._resumed:
            self._loader.expect_early_end()
        with self._profiled():
            batch = next(self._batches)
        self._left -= 1
        return batch


def _profiled() -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """Return what makes the context in which TensorFlow's profiler sees the wait for a batch."""
    if keras.backend.backend() != "tensorflow":
        return contextlib.nullcontext
    import tensorflow as tf

    return functools.partial(tf.profiler.experimental.Trace, "KerasSequenceLoader::next")
