"""Crosses: sums of products of features of higher order, as xDeepFM, DeepFM and DCN take them.

Does not belong here: dot products of pairs, each an output of its own (`interactions.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tutorlib.checks import check_integer, check_positive
from tutorlib.layers.checks import check_pairs_of_features
from tutorlib.layers.tables import NARROW, register


@register
class CIN(keras.layers.Layer):
    """The compressed interaction network of xDeepFM: products of two, three and more features.

    Map k of a layer is the sum over all pairs (i, j) of `W[i, j, k] x[i] * x0[j]`, element by
    element, with x the maps of the layer before and x0 the input. The output is each layer's maps,
    summed over the width of the embedding, so layer 1 gives products of two features, layer 2 of
    three. Memory: batch * d * maps * F numbers a layer; 2.8 GB for a batch of 65,536, 26 features
    of 16 numbers, 26 maps.

    Args:
        maps: number of maps of each layer.
        activation: of every layer; None, as the paper found best, for none.
        **kwargs: `name`, `dtype` and the like of a Keras layer.

    Shapes: [batch, F, d] -> [batch, sum of maps].

    Raises:
        ValueError: if there is no layer, one has no map, or the input is not [batch, F, d].

    Example:
        >>> import numpy as np
        >>> CIN([8, 4])(np.ones((2, 5, 3), "float32")).shape.as_list()
        [2, 12]

    References:
        Lian et al., xDeepFM, 2018, arXiv:1803.05170.
    """

    def __init__(self, maps: Sequence[int], activation: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.maps = [int(number) for number in maps]
        if not self.maps or min(self.maps) < 1:
            raise ValueError(f"CIN needs at least one layer, each with at least 1 map, got {maps}")
        self.activation = keras.activations.get(activation)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create the kernel [maps before * F, maps] of each layer."""
        check_pairs_of_features(input_shape, 1)
        features = input_shape[1]
        self.kernels = [
            self.add_weight(name=f"kernel_{k}", shape=(before * features, after))
            for k, (before, after) in enumerate(
                zip([features, *self.maps], self.maps, strict=False)
            )
        ]

    def call(self, inputs: Any) -> Any:
        """Return the maps of all layers, summed over the width."""
        features, dim = inputs.shape[1:]
        first = ops.transpose(inputs, (0, 2, 1))  # [batch, d, F]
        x, sums = first, []
        for kernel in self.kernels:
            products = x[..., :, None] * first[..., None, :]  # [batch, d, maps before, F]
            x = ops.matmul(ops.reshape(products, (-1, dim, x.shape[2] * features)), kernel)
            x = self.activation(x)  # [batch, d, maps]
            sums.append(ops.sum(x, axis=1))
        return ops.concatenate(sums, axis=1)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, int]:
        """Return (batch, sum of maps)."""
        check_pairs_of_features(input_shape, 1)
        return (input_shape[0], sum(self.maps))

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make this layer again."""
        activation = keras.activations.serialize(self.activation)
        return super().get_config() | {"maps": list(self.maps), "activation": activation}


@register
class FactorizationMachine(keras.layers.Layer):
    """The sum of the dot products of all pairs of features, the second order term of DeepFM.

    Taken as half of (square of the sum - sum of the squares), which costs F d in place of F F d. In
    float32 under any policy: the difference of two large numbers.

    Args:
        **kwargs: `name`, `dtype` and the like of a Keras layer.

    Shapes: [batch, F, d] -> [batch, 1].

    Raises:
        ValueError: if the input is not [batch, F, d] with at least two features.

    Example:
        >>> import numpy as np
        >>> FactorizationMachine()(np.array([[[1.0, 2.0], [3.0, 4.0]]])).numpy().tolist()
        [[11.0]]

    References:
        Rendle, Factorization Machines, 2010; Guo et al., DeepFM, 2017, arXiv:1703.04247.
    """

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Check the shape; there are no weights."""
        check_pairs_of_features(input_shape, 2)

    def call(self, inputs: Any) -> Any:
        """Return the sum over all pairs."""
        x = ops.cast(inputs, "float32" if self.compute_dtype in NARROW else self.compute_dtype)
        halves = ops.square(ops.sum(x, axis=1)) - ops.sum(ops.square(x), axis=1)  # [batch, d]
        return ops.cast(0.5 * ops.sum(halves, axis=1, keepdims=True), self.compute_dtype)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, int]:
        """Return (batch, 1)."""
        return (input_shape[0], 1)


@register
class Cross(keras.layers.Layer):
    """Cross layers of DCN v2: each raises the degree of the products of inputs by one.

    `x = x0 * (W x + b) + x`, with x0 the input, `*` element by element, and W [d, d] or, with a
    `projection_dim` r, the product of [d, r] and [r, d], which costs 2 r / d of it.

    Args:
        layers: how many, one after the other.
        projection_dim: r, or None for a full matrix.
        **kwargs: `name`, `dtype` and the like of a Keras layer.

    Shapes: [batch, d] -> [batch, d].

    Raises:
        ValueError: if a size is below 1, or the input is not [batch, d].

    Example:
        >>> import numpy as np
        >>> Cross(3, projection_dim=2)(np.ones((4, 6), "float32")).shape.as_list()
        [4, 6]

    References:
        Wang et al., DCN V2, 2020, arXiv:2008.13535.
    """

    def __init__(self, layers: int = 3, projection_dim: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_positive(projection_dim=projection_dim)
        self.layers = check_integer("layers", layers, at_least=1)
        self.projection_dim = projection_dim

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create kernels and bias of each layer."""
        dim, rank = self.compute_output_shape(input_shape)[1], self.projection_dim
        shapes = {"kernel": (dim, dim)}
        if rank is not None:
            shapes = {"down_kernel": (dim, rank), "up_kernel": (rank, dim)}
        self.kernels = [
            [self.add_weight(name=f"{name}_{k}", shape=shape) for name, shape in shapes.items()]
            for k in range(self.layers)
        ]
        self.biases = [
            self.add_weight(name=f"bias_{k}", shape=(dim,), initializer="zeros")
            for k in range(self.layers)
        ]

    def call(self, inputs: Any) -> Any:
        """Return the last layer's output."""
        x = inputs
        for kernels, bias in zip(self.kernels, self.biases, strict=True):
            product = x
            for kernel in kernels:
                product = ops.matmul(product, kernel)
            x = inputs * (product + bias) + x
        return x

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, int]:
        """Return (batch, d)."""
        if len(input_shape) != 2 or input_shape[1] is None:
            raise ValueError(f"input must have a known shape [batch, d], got {tuple(input_shape)}")
        return tuple(input_shape)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make this layer again."""
        return super().get_config() | {
            "layers": self.layers,
            "projection_dim": self.projection_dim,
        }
