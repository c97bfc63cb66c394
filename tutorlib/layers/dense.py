"""Dense layers, and numbers as vectors beside the embeddings.

Does not belong here: anything that looks up ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from tutorlib.checks import check_integer
from tutorlib.layers.tables import embedding_initializer, register


@register
class MLP(keras.layers.Layer):
    """Dense layers one after the other.

    Args:
        hidden_units: width of each hidden layer; may be empty if `output_units` is given.
        output_units: width of a last layer; None for none.
        activation: of the hidden layers.
        output_activation: of the last layer; None for linear.
        **kwargs: `name`, `dtype` and the like of a Keras layer.

    Shapes: [..., n] -> [..., width of the last layer].

    Raises:
        ValueError: if there is no layer, a width is below 1, or there is an `output_activation`
            without `output_units`.

    Example:
        >>> import numpy as np
        >>> MLP([8, 4], output_units=1)(np.zeros((2, 3))).shape.as_list()
        [2, 1]
    """

    def __init__(
        self,
        hidden_units: Sequence[int],
        output_units: int | None = None,
        activation: Any = "relu",
        output_activation: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.hidden_units, self.output_units = [int(n) for n in hidden_units], output_units
        units = [*self.hidden_units, *([] if output_units is None else [output_units])]
        if not units or min(units) < 1:
            raise ValueError(f"MLP needs at least one layer, each at least 1 wide, got {units}")
        if output_units is None and output_activation is not None:
            raise ValueError("output_activation belongs to output_units, which is None")
        self.activation = keras.activations.get(activation)
        self.output_activation = keras.activations.get(output_activation)
        activations = [self.activation] * len(self.hidden_units) + [self.output_activation]
        self.dense = [
            keras.layers.Dense(n, activation=f, name=f"dense_{i}", dtype=self.dtype_policy)
            for i, (n, f) in enumerate(zip(units, activations, strict=False))
        ]

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Build the dense layers in turn."""
        for layer in self.dense:
            layer.build(input_shape)
            input_shape = layer.compute_output_shape(input_shape)

    def call(self, inputs: Any) -> Any:
        """Return the output of the last layer."""
        for layer in self.dense:
            inputs = layer(inputs)
        return inputs

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Return the input's shape with the last layer's width at its end."""
        return (*input_shape[:-1], self.dense[-1].units)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make this layer again."""
        return super().get_config() | {
            "hidden_units": self.hidden_units,
            "output_units": self.output_units,
            "activation": keras.activations.serialize(self.activation),
            "output_activation": keras.activations.serialize(self.output_activation)
            if self.output_units is not None
            else None,
        }


@register
class NumberEmbedding(keras.layers.Layer):
    """A vector for each number, scaled by it, to stand among the embeddings of ids.

    Args:
        embedding_dim: width of the vectors.
        **kwargs: `name`, `dtype` and the like of a Keras layer.

    Shapes: [batch, n] -> [batch, n, embedding_dim].

    Raises:
        ValueError: if the width is below 1, or the input is not [batch, n].

    Example:
        >>> import numpy as np
        >>> NumberEmbedding(4)(np.array([[1.0, 2.0, 3.0]])).shape.as_list()
        [1, 3, 4]
    """

    def __init__(self, embedding_dim: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.embedding_dim = check_integer("embedding_dim", embedding_dim, at_least=1)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create the vectors."""
        self.vectors = self.add_weight(
            name="vectors",
            shape=self.compute_output_shape(input_shape)[1:],
            initializer=embedding_initializer(self.embedding_dim),
        )

    def call(self, inputs: Any) -> Any:
        """Return the vectors, each times its number."""
        return inputs[..., None] * self.vectors

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Return (batch, n, embedding_dim)."""
        if len(input_shape) != 2 or input_shape[1] is None:
            raise ValueError(f"input must have a known shape [batch, n], got {tuple(input_shape)}")
        return (*input_shape, self.embedding_dim)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make this layer again."""
        return super().get_config() | {"embedding_dim": self.embedding_dim}
