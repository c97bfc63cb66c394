"""What `fit`, `evaluate` and `predict` are given beside a loader: applied, or refused.

Keras passes a data adapter through untouched and drops `y`, `sample_weight`, `class_weight`,
`batch_size` and `shuffle` without a word. But it asks the adapter for `num_batches` while it makes
its `EpochIterator`, out of these very arguments: there they are read, from the caller's frame. With
a Keras that does it another way they stay unseen; a test tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import FrameType
from typing import Any

import keras
import numpy as np

try:
    from keras.src.trainers.epoch_iterator import EpochIterator

    _TAKES_DATA, _BEGINS_ANEW = EpochIterator.__init__.__code__, EpochIterator.reset.__code__
except ImportError:  # pragma: no cover - needs another Keras
    _TAKES_DATA = _BEGINS_ANEW = None

INSTEAD = {
    "y": "label_names=[...] names the label columns",
    "sample_weight": "weight_name=... names a column of weights",
    "batch_size": "batch_size=... says how many rows its batches have",
    "shuffle": "shuffle=... says whether its rows are shuffled",
}


def given_beside(loader: Any, frame: FrameType | None) -> dict[str, Any]:
    """Return what Keras was given for `loader`, beside it.

    Args:
        loader: the data adapter.
        frame: the frame that asked it for `num_batches`.

    Returns:
        {name of an argument: value}, without those that are None; "epoch_iterator" is the object
        that Keras is making. Empty if `frame` is not where Keras takes the data in.
    """
    if frame is None or _TAKES_DATA is None or frame.f_code is not _TAKES_DATA:
        return {}
    taken = frame.f_locals
    given = {name: taken.get(name) for name in ("y", "sample_weight", "class_weight")}
    caller: FrameType | None = frame
    while caller is not None and caller.f_code.co_name == "__init__":
        caller = caller.f_back
    asked = {} if caller is None else caller.f_locals  # of fit, evaluate or predict
    if asked.get("x") is loader:
        given |= {"batch_size": asked.get("batch_size"), "shuffle": asked.get("shuffle")}
    else:  # it is the validation data; batch_size was meant for the training data
        given |= {"batch_size": asked.get("validation_batch_size")}
    given = {name: value for name, value in given.items() if value is not None}
    return given | {"epoch_iterator": taken["self"]}


def begins_anew(frame: FrameType | None) -> bool:
    """Return whether `frame` is where Keras drops the pass in which it built the model.

    On JAX and PyTorch, Keras draws a batch of a model that is not built yet, to see its shapes.
    """
    return frame is not None and frame.f_code is _BEGINS_ANEW


def refuse_ignored(given: Mapping[str, Any], *, batch_size: int, shuffled: bool) -> None:
    """Raise ValueError for what a loader decides by itself and Keras would ignore.

    What says the same as the loader does is let through, and so is `shuffle=True`: it is the
    default of `fit`.

    Args:
        given: what `given_beside` returned.
        batch_size: rows of a batch of the loader.
        shuffled: whether the loader shuffles.

    Example:
        >>> refuse_ignored({"batch_size": 64}, batch_size=64, shuffled=True)
        >>> refuse_ignored({"shuffle": False}, batch_size=64, shuffled=True)
        Traceback (most recent call last):
        ValueError: shuffle=False beside a loader has no effect. Give it to the loader, where \
shuffle=... says whether its rows are shuffled.
    """
    same = {"batch_size": (batch_size,), "shuffle": (True, shuffled)}
    for name, instead in INSTEAD.items():
        if name not in given:
            continue
        value = given[name]
        if name not in same:
            raise ValueError(
                f"{name} (a {type(value).__name__}) beside a loader has no effect: its batches "
                f"hold everything. Give it to the loader, where {instead}."
            )
        if value not in same[name]:
            raise ValueError(
                f"{name}={value!r} beside a loader has no effect. Give it to the loader, where "
                f"{instead}."
            )


class ClassWeights:
    """Weighs the rows of a batch by the class that their label names, as Keras's `class_weight`.

    A label is rounded to the next integer; a class that is not named weighs 1. Where batches have
    weights of their own, the two are multiplied.

    Args:
        class_weight: {class: weight}.

    Raises:
        ValueError: if that is not a dict of integers to numbers.

    Example:
        >>> weigh = ClassWeights({0: 1.0, 1: 5.0})
        >>> inputs, labels, weights = weigh(({}, np.array([[1.0], [0.0]], "float32")))
        >>> np.asarray(weights).tolist()
        [5.0, 1.0]
    """

    def __init__(self, class_weight: Any) -> None:
        try:
            pairs = sorted((int(key), float(weight)) for key, weight in class_weight.items())
            # One class more, which no label comes behind: other labels weigh 1.
            self._classes = np.array([key for key, _ in pairs] + [np.inf], dtype=np.float32)
            self._weights = np.array([weight for _, weight in pairs] + [1], dtype=np.float32)
            usable = len(pairs) > 0 and all(
                key == int(key) and abs(key) <= 2**24 for key in class_weight
            )
        except (AttributeError, TypeError, ValueError):
            usable = False
        if not usable:
            raise ValueError(
                "class_weight must be a dict of integer classes, up to 2**24, to weights, got "
                f"{class_weight!r}"
            )

    def __call__(self, batch: tuple[Any, ...]) -> tuple[Any, Any, Any]:
        """Return (inputs, labels, weights) for (inputs, labels) or (inputs, labels, weights).

        Raises:
            ValueError: if the batch has no label, or several.
        """
        inputs, labels, *given = batch
        if labels is None or isinstance(labels, Mapping):
            names = "none" if labels is None else list(labels)
            raise ValueError(
                f"class_weight needs one label, the loader's labels are {names}. Weigh the rows "
                f"with a column: in the loader, {INSTEAD['sample_weight']}."
            )
        ops = keras.ops  # the labels may be on a GPU, and stay there
        classes = ops.round(ops.cast(ops.reshape(labels, (-1,)), "float32"))
        places = ops.searchsorted(self._classes, classes)
        known = ops.equal(ops.take(self._classes, places), classes)
        weights = ops.where(known, ops.take(self._weights, places), np.float32(1))
        for own in given:
            weights = weights * ops.reshape(own, (-1,))
        return inputs, labels, weights
