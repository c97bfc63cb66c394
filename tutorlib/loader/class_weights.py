"""ClassWeights: weights of rows by the class of their label, as Keras's `class_weight`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tutorlib.columns import array_namespace

LAST_CLASS = 2**24  # up to which float32 holds every integer


class ClassWeights:
    """Weighs the rows of a batch by the class that their label names.

    A label is rounded to the nearest integer. As in Keras, a class that is not named weighs 1 (a
    warning says so once), and a class that no row has changes nothing.

    Args:
        class_weight: {class: weight}, with integer classes from -2**24 to 2**24.
        label_names: names of the label columns; there must be exactly one.

    Raises:
        ValueError: if there is not exactly one label, or `class_weight` is not such a mapping.

    Example:
        >>> ClassWeights({0: 1.0, 1: 5.0}, ["click"])(np.array([[1.0], [0.0], [1.0]])).tolist()
        [5.0, 1.0, 5.0]
    """

    def __init__(self, class_weight: Mapping[int, float], label_names: Sequence[str]) -> None:
        if len(label_names) != 1:
            raise ValueError(
                f"class_weight needs exactly one label, got label_names={list(label_names)}; weigh "
                "the rows with a column instead (weight_name=...)"
            )
        try:
            pairs = sorted((int(key), float(weight)) for key, weight in class_weight.items())
            usable = len(pairs) > 0 and all(
                key == int(key) and abs(key) <= LAST_CLASS for key in class_weight
            )
        except (AttributeError, TypeError, ValueError):
            usable = False
        if not usable:
            raise ValueError(
                "class_weight must be a dict of integer classes, up to 2**24, to weights, got "
                f"{class_weight!r}"
            )
        self._label, self._warned = label_names[0], False
        # An infinite class at the end, which no label has: labels above all classes find it.
        self._classes = np.array([key for key, _ in pairs] + [np.inf], dtype=np.float32)
        self._weights = np.array([weight for _, weight in pairs] + [1], dtype=np.float32)

    def __call__(self, labels: Any) -> Any:
        """Return the weight of each row.

        Args:
            labels: array of NumPy or CuPy with one label a row, [batch, 1] or [batch].

        Returns:
            float32 [batch], of the same array library.
        """
        xp = array_namespace(labels)
        classes = xp.round(labels.reshape(-1).astype(np.float32))
        known, weights = xp.asarray(self._classes), xp.asarray(self._weights)
        places = xp.searchsorted(known, classes)
        named = known[places] == classes
        if not self._warned and not bool(named.all()):
            self._warned = True
            warnings.warn(
                f"class_weight names the classes {[int(c) for c in self._classes[:-1]]}, but label "
                f"{self._label!r} also has class {int(classes[~named][0])}. Classes that are not "
                "named weigh 1, as in Keras; name them to avoid this warning.",
                stacklevel=2,
            )
        return xp.where(named, weights[places], np.float32(1))
