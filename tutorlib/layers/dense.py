"""Dense layers, and numbers turned into vectors of an embedding's width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from tutorlib.checks import check_integer
from tutorlib.layers.shapes import known_columns
from tutorlib.layers.tables import embedding_initializer, register


@register
class MLP(keras.layers.Layer):
    """A stack of dense layers.

    Args:
        hidden_units: width of each hidden layer, at least 1; may be empty if `output_units` is
            given.
        output_units: width of an output layer behind the hidden ones; None for no output layer.
        activation: of the hidden layers, a Keras activation or its name.
        output_activation: of the output layer; None for linear.
        **kwargs: arguments of every Keras layer, such as `name` and `dtype`.

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
            raise ValueError(
                f"output_activation={output_activation!r} needs output_units, got None. Use "
                "activation for the hidden layers."
            )
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
        """Return (..., width of the last layer)."""
        return (*input_shape[:-1], self.dense[-1].units)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that recreate this layer."""
        output = self.output_activation if self.output_units is not None else None
        return super().get_config() | {
            "hidden_units": self.hidden_units,
            "output_units": self.output_units,
            "activation": keras.activations.serialize(self.activation),
            "output_activation": output and keras.activations.serialize(output),
        }


@register
class NumberEmbedding(keras.layers.Layer):
    """Turns each number into a vector: a trained vector of its column, times the number.

    DeepFM uses it to put continuous columns next to the embeddings of ids.

    Args:
        embedding_dim: width of the vectors, at least 1.
        **kwargs: arguments of every Keras layer, such as `name` and `dtype`.

    Shapes: [batch, n] -> [batch, n, embedding_dim].

    Raises:
        ValueError: if `embedding_dim` is below 1, or the input is not [batch, n].

    Example:
        >>> import numpy as np
        >>> NumberEmbedding(4)(np.array([[1.0, 2.0, 3.0]])).shape.as_list()
        [1, 3, 4]

    References:
        Guo et al., DeepFM, 2017, arXiv:1703.04247.
    """

    def __init__(self, embedding_dim: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.embedding_dim = check_integer("embedding_dim", embedding_dim, at_least=1)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create one vector per column."""
        self.vectors = self.add_weight(
            name="vectors",
            shape=(known_columns(input_shape, "n"), self.embedding_dim),
            initializer=embedding_initializer(self.embedding_dim),
        )

    def call(self, inputs: Any) -> Any:
        """Return the vectors, each times its number, [batch, n, embedding_dim]."""
        return inputs[..., None] * self.vectors

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Return (batch, n, embedding_dim)."""
        return (input_shape[0], known_columns(input_shape, "n"), self.embedding_dim)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that recreate this layer."""
        return super().get_config() | {"embedding_dim": self.embedding_dim}
