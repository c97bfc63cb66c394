"""The least that `fit` can train: one weight on one column, so that what is measured is `fit`.

Its step still takes every tensor of the batch, and the loss and its gradient run over all rows.
"""

from __future__ import annotations

from typing import Any

import keras


class OneWeight(keras.Model):
    """Predicts the label as one number times one column.

    Args:
        name_of_input: which tensor of the batch; of a stacked one, its first column.

    Example:
        >>> model = compiled("I1")
        >>> model({"I1": keras.ops.ones((4, 1)), "C1": keras.ops.ones((4, 1), "int32")}).shape
        TensorShape([4, 1])
    """

    def __init__(self, name_of_input: str) -> None:
        super().__init__()
        self.name_of_input = name_of_input
        self.factor = self.add_weight(shape=(), initializer="zeros", name="factor")

    def call(self, inputs: dict[str, Any]) -> Any:
        """Return float32 [batch, 1]."""
        return self.factor * inputs[self.name_of_input][:, :1]


def compiled(name_of_input: str) -> keras.Model:
    """Return the model ready for `fit`, without XLA, which would compile for every batch size."""
    model = OneWeight(name_of_input)
    model.compile(optimizer="sgd", loss="mse", jit_compile=False)
    return model
