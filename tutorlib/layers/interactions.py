"""Interactions: products of features, as in DLRM, FiBiNET, DeepFM and DCN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from tutorlib.checks import check_choice, check_integer, check_positive
from tutorlib.layers.shapes import known_columns, known_features
from tutorlib.layers.tables import NARROW, register

INTERACTION_TYPES = (None, "field_all", "field_each", "field_interaction")


@register
class DotProductInteraction(keras.layers.Layer):
    """Dot products of all pairs of features, as in DLRM; with trained matrices, as in FiBiNET.

    The output holds `v_i W . v_j` for each pair i < j, ordered by i, then j. `interaction_type`
    says what `W` is:

        None                 the identity, for plain dot products
        "field_all"          one trained matrix [d, d]
        "field_each"         one matrix per first feature i, [F, d, d]
        "field_interaction"  one matrix per pair, [pairs, d, d]

    Args:
        interaction_type: None, "field_all", "field_each" or "field_interaction".
        self_interaction: whether the pairs i = j are included.
        pad_to: fill the output with zeros up to a multiple of this width, at least 1. Matrix units
            of a GPU are fastest at multiples of 8 to 16 in 16 bits.
        **kwargs: arguments of every Keras layer, such as `name` and `dtype`.

    Shapes: [batch, F, d] -> [batch, pairs], rounded up to a multiple of `pad_to`, where pairs is
        F (F - 1) / 2, or F (F + 1) / 2 with `self_interaction`.

    Raises:
        ValueError: if the type is unknown or the input is not [batch, F, d] with at least one pair.

    Example:
        >>> DotProductInteraction()(np.array([[[1.0, 2.0], [3.0, 4.0]]])).numpy().tolist()
        [[11.0]]

    References:
        Naumov et al., Deep Learning Recommendation Model, 2019, arXiv:1906.00091.
        Huang et al., FiBiNET, 2019, arXiv:1905.09433 (which takes the element-wise product).
    """

    def __init__(
        self,
        interaction_type: str | None = None,
        self_interaction: bool = False,
        pad_to: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice("interaction_type", interaction_type, INTERACTION_TYPES)
        self.interaction_type = interaction_type
        self.self_interaction = bool(self_interaction)
        self.pad_to = check_integer("pad_to", pad_to, at_least=1)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create the kernel of the interaction type."""
        features, dim = known_features(input_shape, 1 + self._first)
        if self.interaction_type is None:
            return
        matrices = {
            "field_all": (),
            "field_each": (features,),
            "field_interaction": (self._pairs(input_shape),),
        }[self.interaction_type]
        self.kernel = self.add_weight(
            name="kernel",
            shape=(*matrices, dim, dim),
            initializer=keras.initializers.GlorotNormal(),
        )

    def call(self, inputs: Any) -> Any:
        """Return the dot products of all pairs, [batch, pairs with padding]."""
        first, padding = self._first, -self._pairs(inputs.shape) % self.pad_to
        if self.interaction_type == "field_interaction":
            return ops.pad(self._pairwise(inputs, first), [[0, 0], [0, padding]])
        if self.interaction_type is None:
            return _own_products(inputs, first, padding)
        if self.interaction_type == "field_all":
            left = ops.matmul(inputs, self.kernel)
        else:
            left = ops.einsum("bfk,fkd->bfd", inputs, self.kernel)
        products = ops.matmul(left, ops.transpose(inputs, (0, 2, 1)))  # [batch, F, F]
        return _upper_triangle(products, first, padding)

    def _pairwise(self, inputs: Any, first: int) -> Any:
        """Return the products with a matrix for each pair, one feature i at a time."""
        features, parts, start = inputs.shape[1], [], 0
        for i in range(features - first):
            kernel = self.kernel[start : start + features - i - first]  # [pairs of i, d, d]
            start += features - i - first
            left = ops.einsum("bk,pkd->bpd", inputs[:, i], kernel)
            parts.append(ops.sum(left * inputs[:, i + first :], axis=2))
        return ops.concatenate(parts, axis=1)

    @property
    def _first(self) -> int:
        """Distance from a feature to the first one that it is paired with."""
        return 0 if self.self_interaction else 1

    def _pairs(self, input_shape: tuple[int | None, ...]) -> int:
        features, _ = known_features(input_shape, 1 + self._first)
        return features * (features + 1 - 2 * self._first) // 2

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, int]:
        """Return (batch, pairs with padding)."""
        pairs = self._pairs(input_shape)
        return (input_shape[0], pairs + -pairs % self.pad_to)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that recreate this layer."""
        return super().get_config() | {
            "interaction_type": self.interaction_type,
            "self_interaction": self.self_interaction,
            "pad_to": self.pad_to,
        }


def _own_products(vectors: Any, first: int, padding: int) -> Any:
    """Return the dot products of the vectors [batch, F, d] i and j >= i + first, and padding.

    The automatic gradient takes two products of matrices, one for each factor. The factors are the
    same, so one product with the symmetric matrix of the gradients will do: for 27 features of 8
    numbers, batches of 8,192 and two cores, forward and back take 14 ms instead of 15, and under
    XLA 9 instead of 18.
    """

    @ops.custom_gradient
    def take(vectors: Any) -> tuple[Any, Callable]:
        products = ops.matmul(vectors, ops.transpose(vectors, (0, 2, 1)))

        def grad(*args: Any, upstream: Any = None) -> Any:
            (upstream,) = (upstream,) if upstream is not None else args
            square = _as_square(upstream, vectors.shape[1], first, symmetric=True)
            return ops.matmul(square, vectors)

        return _slices(products, first, padding), grad

    return take(vectors)


def _upper_triangle(products: Any, first: int, padding: int) -> Any:
    """Return the entries j >= i + first of [batch, F, F], row by row, [batch, pairs + padding].

    The automatic gradient would add up F padded tensors.
    """

    @ops.custom_gradient
    def take(products: Any) -> tuple[Any, Callable]:
        def grad(*args: Any, upstream: Any = None) -> Any:
            (upstream,) = (upstream,) if upstream is not None else args
            return _as_square(upstream, products.shape[1], first)

        return _slices(products, first, padding), grad

    return take(products)


def _slices(products: Any, first: int, padding: int) -> Any:
    """Return the upper triangle of [batch, F, F] as [batch, pairs + padding].

    A contiguous slice per row is faster than one gather.
    """
    features = products.shape[1]
    flat = ops.reshape(products, (-1, features * features))
    spans = [(i * features + i + first, (i + 1) * features) for i in range(features - first)]
    parts = [flat[:, start:stop] for start, stop in spans]
    if padding:
        parts.append(ops.zeros((ops.shape(flat)[0], padding), flat.dtype))
    return ops.concatenate(parts, axis=1)


def _as_square(pairs: Any, features: int, first: int, symmetric: bool = False) -> Any:
    """Return [batch, pairs + padding] as the upper triangle of [batch, F, F], zeros elsewhere.

    With `symmetric`, as that plus its transpose. Gathering whole rows of the transpose is faster
    than one gather along the last axis.
    """
    rows, cols = np.triu_indices(features, first)
    # For each cell, the pair that it holds; the number behind the last one stands for none.
    source = np.full((features, features), pairs.shape[1], np.int32)
    source[rows, cols] = np.arange(len(rows))
    if symmetric:
        source[cols, rows] = np.arange(len(rows))
    by_pair = ops.pad(ops.transpose(pairs), [[0, 1], [0, 0]])  # a last row of zeros
    if symmetric and not first:  # the diagonal is in both
        diagonal = np.append(1 + (rows == cols), np.ones(pairs.shape[1] + 1 - len(rows)))
        by_pair = by_pair * ops.convert_to_tensor(diagonal[:, None], by_pair.dtype)
    square = ops.take(by_pair, source.ravel(), axis=0)  # [F * F, batch]
    return ops.reshape(ops.transpose(square), (-1, features, features))


@register
class FactorizationMachine(keras.layers.Layer):
    """The sum of the dot products of all pairs of features: the second-order term of DeepFM.

    Computed as half of (square of the sum - sum of the squares), which takes F d multiplications
    instead of F F d. It subtracts two large numbers, so it runs in float32 under 16-bit policies.

    Args:
        **kwargs: arguments of every Keras layer, such as `name` and `dtype`.

    Shapes: [batch, F, d] -> [batch, 1].

    Raises:
        ValueError: if the input is not [batch, F, d] with at least two features.

    Example:
        >>> FactorizationMachine()(np.array([[[1.0, 2.0], [3.0, 4.0]]])).numpy().tolist()
        [[11.0]]

    References:
        Rendle, Factorization Machines, 2010; Guo et al., DeepFM, 2017, arXiv:1703.04247.
    """

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Check the shape; there are no weights."""
        known_features(input_shape, 2)

    def call(self, inputs: Any) -> Any:
        """Return the sum over all pairs, [batch, 1]."""
        x = ops.cast(inputs, "float32" if self.compute_dtype in NARROW else self.compute_dtype)
        halves = ops.square(ops.sum(x, axis=1)) - ops.sum(ops.square(x), axis=1)  # [batch, d]
        return ops.cast(0.5 * ops.sum(halves, axis=1, keepdims=True), self.compute_dtype)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, int]:
        """Return (batch, 1)."""
        return (input_shape[0], 1)


@register
class Cross(keras.layers.Layer):
    """Cross layers of DCN v2: each raises the degree of the input's products by one.

    Each layer computes `x = x0 * (W x + b) + x` with x0 the input and `*` element by element. `W`
    is [d, d], or with `projection_dim` r the product of [d, r] and [r, d]: 2 r / d of the weights
    and multiplications.

    Args:
        layers: number of cross layers, at least 1.
        projection_dim: rank r of the matrices, at least 1; None for full matrices.
        **kwargs: arguments of every Keras layer, such as `name` and `dtype`.

    Shapes: [batch, d] -> [batch, d].

    Raises:
        ValueError: if a size is below 1, or the input is not [batch, d].

    Example:
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
        """Create the kernels and the bias of each layer."""
        dim, rank = known_columns(input_shape, "d"), self.projection_dim
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
        """Return the output of the last layer, [batch, d]."""
        x = inputs
        for kernels, bias in zip(self.kernels, self.biases, strict=True):
            product = x
            for kernel in kernels:
                product = ops.matmul(product, kernel)
            x = inputs * (product + bias) + x
        return x

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, int]:
        """Return (batch, d)."""
        return (input_shape[0], known_columns(input_shape, "d"))

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that recreate this layer."""
        return super().get_config() | {
            "layers": self.layers,
            "projection_dim": self.projection_dim,
        }
