"""LoaderAdapter: how `fit`, `evaluate` and `predict` take the batches of a loader as they are.

Keras turns generators, PyDatasets and torch loaders into `tf.data.Dataset.from_generator`, which
copies every tensor through NumPy. It uses an instance of its own `DataAdapter` directly: it loops
over what `get_tf_dataset()` returns and hands these tensors to the train step. Keras does not
export `DataAdapter`; it is imported here and nowhere else.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import keras
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from tutorlib.keras_bridge.backend import Batch, process_count

# ---- batches on their way into Keras -------------------------------------------------------------


class Pass(Iterator[Batch]):
    """The batches of an epoch, as Keras may take them in Python.

    On TensorFlow, Keras zips a range and this iterator for each call of its train function. If the
    iterator ended inside `zip`, Keras would have no outputs to return; if `iter()` raises
    StopIteration, Keras ends the epoch. So `iter()` already takes the next batch.
    """

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self._held: list[Batch] = []  # the batch that `iter()` took

    def __iter__(self) -> Iterator[Batch]:
        if not self._held:
            self._held.append(next(self._batches))
        return self

    def __next__(self) -> Batch:
        return self._held.pop() if self._held else next(self._batches)


class _Epochs(Iterable[Batch]):
    """What Keras iterates over: each `iter()` is a new pass."""

    def __init__(self, new_pass: Callable[[], Iterator[Batch]]) -> None:
        self._new_pass = new_pass

    def __iter__(self) -> Iterator[Batch]:
        return Pass(self._new_pass())


class TensorAdapter(DataAdapter):
    """A data adapter whose batches are tensors of Keras's backend already."""

    def new_pass(self) -> Iterator[Batch]:
        """Yield the batches of an epoch, which begins with the first: Keras may ask for none."""
        raise NotImplementedError

    def get_tf_dataset(self) -> Iterable[Batch]:
        """Return the batches: an iterable of which each `iter()` is one epoch."""
        return _Epochs(self.new_pass)

    get_jax_iterator = get_tf_dataset
    get_torch_dataloader = get_tf_dataset
    get_numpy_iterator = get_tf_dataset


def array_batches(rows: Batch, batch_size: int) -> Any:
    """Return the batches, in random order, that `fit(x, y, batch_size=...)` makes of arrays.

    Args:
        rows: (inputs, labels) or (inputs, labels, weights): arrays [rows, ...], or dicts of them.
        batch_size: rows per batch.

    Returns:
        An iterable of which each `iter()` is an epoch; on TensorFlow, a `tf.data.Dataset`.
    """
    adapter = ArrayDataAdapter(*rows, batch_size=batch_size, shuffle=True)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        known = tf.data.experimental.assert_cardinality(adapter.num_batches)
        return adapter.get_tf_dataset().apply(known)
    if keras.backend.backend() == "torch":
        return adapter.get_torch_dataloader()
    return _Epochs(lambda: iter(adapter.get_jax_iterator()))


class LoaderAdapter(TensorAdapter):
    """The side of a loader that Keras sees; `KerasSequenceLoader` is the one subclass.

    The subclass has `iter()`, the batches of the current epoch as (inputs, labels[, weights]), and:

    Attributes:
        len: number of batches of an epoch.
        batch_size: rows of a full batch.
        _shuffle: whether rows come in random order.
        _labelled: whether batches hold labels.
        _layout: how columns lie in a batch: `input_names`, and the columns of lists, `ragged`.
        first_batch: number of the batch with which the next pass begins; above 0 after a resume.
        _preview: returns the batches of the current epoch, and leaves the loader where it is.
        _check_for_fit: raises ValueError where Keras would report a wrong loss.

    It counts in `batches_taken` the batches that Keras has taken so far.
    """

    batches_taken = 0

    def new_pass(self: Any) -> Iterator[Batch]:
        """Yield the batches of the current epoch, or of what is left of it after a resume.

        Keras warns at the end of such a shorter epoch that its input ran out of data. Batches that
        it draws only to build a model do not move the loader: they come again.
        """
        batches = self._preview() if _builds_model() else iter(self)
        trace: Callable[[str], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
        if keras.backend.backend() == "tensorflow":  # whose profiler then shows the wait
            import tensorflow as tf

            trace = tf.profiler.experimental.Trace
        while True:
            with trace("KerasSequenceLoader::next"):
                batch = next(batches, None)
            if batch is None:
                break
            self.batches_taken += 1
            yield batch

    def get_tf_dataset(self: Any) -> Iterable[Batch]:
        """Return the batches, with their types for `tf.function` if they hold no lists."""
        if self._layout.ragged:  # another shape in each batch
            return _Epochs(self.new_pass)
        from tutorlib.keras_bridge.batch_types import with_types

        typed = with_types()
        return _Epochs(lambda: map(typed, self.new_pass()))

    @property
    def num_batches(self: Any) -> int:
        """Number of batches of an epoch; asked by Keras, refuses what it would ignore or get wrong.

        Anyone else may read it at any time: that changes nothing, and of processes that are joined
        one may ask alone.
        """
        accepted = {"batch_size": [self.batch_size], "shuffle": [True, self._shuffle]}
        caller = caller_of(self, "a loader", accepted)
        if caller is None:
            return len(self)
        if caller.method == "predict" and (self._shuffle or process_count() > 1):
            raise ValueError(
                "predict with a loader that shuffles (shuffle=True, the default), or on several "
                "processes, does not give all rows in order: use loader.predict(model), whose "
                "table has the columns id_names=[...], or shuffle=False in one process"
            )
        if caller.method != "predict" and not self._labelled and caller.model.loss is not None:
            raise ValueError(
                f"{caller.method} with a loader that has no labels. Name them (label_names=[...]), "
                "or map a Workflow that makes them (LabelEncoder, or its label_names)"
            )
        refuse_other_inputs(caller.model, self._layout.input_names)
        self._check_for_fit()
        return len(self)

    @property
    def has_partial_batch(self: Any) -> bool:
        """Whether the last batch of an epoch has fewer rows than the others."""
        return self.partial_batch_size is not None


def _builds_model() -> bool:
    """Return whether Keras asks for batches to learn the shapes for a model that is not built.

    On JAX and PyTorch it then takes the batches of a pass, drops it, and trains with another one.
    """
    for frame, _ in traceback.walk_stack(sys._getframe()):
        if frame.f_code.co_name.endswith("_symbolic_build"):
            return True
    return False


# ---- what Keras would mix up or ignore -----------------------------------------------------------


def refuse_other_inputs(model: keras.Model, names: Collection[str]) -> None:
    """Raise ValueError if a functional model's dict of inputs has other names than a batch.

    Keras then only warns, and fills the inputs by place, in the order of their names.

    Args:
        model: any model; those that are not functional take what they want of a batch.
        names: of the inputs of a batch.

    Source: https://github.com/keras-team/keras/issues/23258
    """
    inputs = getattr(model, "_inputs_struct", None)
    if isinstance(inputs, dict) and inputs.keys() != set(names):
        words = [sorted(set(names) - inputs.keys()), sorted(inputs.keys() - set(names))]
        raise ValueError(
            f"only the batches have the features {words[0]}, only the model the inputs {words[1]}: "
            "Keras would fill the inputs by place, in the order of names. Give the loader the "
            "features that the model takes, by schema, or cat_names and cont_names"
        )


REMEDIES = {
    "y": "batches hold their labels: KerasSequenceLoader(label_names=[...])",
    "sample_weight": "batches hold their weights: KerasSequenceLoader(weight_name=...)",
    "class_weight": "name a column of weights: KerasSequenceLoader(weight_name=...)",
    "batch_size": "pass batch_size to KerasSequenceLoader",
    "shuffle": "pass shuffle to KerasSequenceLoader",
}


class Caller(NamedTuple):
    """Who takes batches: "fit", "evaluate" or "predict", and of which model."""

    method: str
    model: keras.Model


def caller_of(
    adapter: DataAdapter, data: str, accepted: Mapping[str, Collection[object]]
) -> Caller | None:
    """Return who begins to take batches, or None; for `num_batches` only.

    Keras uses a data adapter as it is and silently drops `y`, `sample_weight`, `class_weight`,
    `batch_size` and `shuffle`. It asks for `num_batches` in the constructor of its iterator, which
    `fit`, `evaluate` or `predict` calls: the arguments of both are looked at. With a Keras in which
    this is not so they are ignored, and nothing else changes; tests/keras_bridge/test_fit.py then
    fails.

    Args:
        adapter: the data adapter that is asked for `num_batches`.
        data: what the adapter is called in messages.
        accepted: {argument: values that ask for what happens anyway}; None is always accepted.

    Raises:
        ValueError: for an argument that has no effect, or the training data as validation data.
    """
    iterator = sys._getframe(2)
    if iterator.f_code.co_name != "__init__":  # Keras asks again later, for itself
        return None
    for frame, _ in traceback.walk_stack(iterator):
        method = frame.f_code.co_name
        arguments = frame.f_locals
        is_method = method in ("fit", "evaluate", "predict")
        if is_method and isinstance(arguments.get("self"), keras.Model):
            break
    else:
        return None
    is_x = arguments.get("x") is adapter  # otherwise it is the validation data of `fit`
    if is_x and arguments.get("val_x") is adapter:
        raise ValueError(
            f"validation_data is {data}, the same that fit trains on: validation would take every "
            "other epoch of it. Give validation_data another one, made with the same arguments."
        )
    values = {name: iterator.f_locals.get(name) for name in REMEDIES}
    values["batch_size"] = arguments.get("batch_size" if is_x else "validation_batch_size")
    values["shuffle"] = arguments.get("shuffle") if is_x else None
    for name, value in values.items():
        if value is not None and value not in accepted.get(name, ()):
            is_short = isinstance(value, int | str | dict)
            text = f"={value!r}" if is_short else f" (a {type(value).__name__})"
            raise ValueError(f"{name}{text} with {data} has no effect; {REMEDIES[name]}")
    return Caller(method, arguments["self"])
