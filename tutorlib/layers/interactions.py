"""Interactions: products of features, as DLRM, xDeepFM, DeepFM and DCN take them.

Does not belong here: where the features come from (`features.py`, `fused.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from tutorlib.checks import check_choice, check_integer
from tutorlib.layers.checks import check_pairs_of_features
from tutorlib.layers.tables import register

INTERACTION_TYPES = (None, "field_all", "field_each", "field_interaction")


@register
class DotProductInteraction(keras.layers.Layer):
    """Dot products of all pairs of features, the interaction of DLRM and FiBiNET.

    For i < j the output holds `v_i W . v_j` in row order of the upper triangle. `W` is the
    identity, one matrix for all ("field_all"), one per first feature ("field_each") or one per pair
    ("field_interaction").

    Args:
        interaction_type: None, "field_all", "field_each" or "field_interaction".
        self_interaction: whether the pairs i = j belong to it.
        pad_to: the output is as wide as a multiple of this, filled up with zeros; matrix units of a
            GPU are at their best with multiples of 8 to 16 in 16 bits.
        **kwargs: `name`, `dtype` and the like of a Keras layer.

    Shapes: [batch, F, d] -> [batch, F (F - 1) / 2], or [batch, F (F + 1) / 2] with self
        interaction, or as much more as `pad_to` asks for.

    Raises:
        ValueError: if the type is unknown or the input is not [batch, F, d] with at least one pair.

    Example:
        >>> DotProductInteraction()(np.array([[[1.0, 2.0], [3.0, 4.0]]])).numpy().tolist()
        [[11.0]]

    References:
        Naumov et al., Deep Learning Recommendation Model, 2019, arXiv:1906.00091.
        Huang et al., FiBiNET, 2019, arXiv:1905.09433 (with a dot product for its element-wise one).
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
        """Create the kernel that the interaction type needs."""
        pairs, dim = self._pairs(input_shape), input_shape[2]
        tables = {"field_all": (), "field_each": (input_shape[1],), "field_interaction": (pairs,)}
        if self.interaction_type is not None:
            self.kernel = self.add_weight(
                name="kernel",
                shape=(*tables[self.interaction_type], dim, dim),
                initializer=keras.initializers.GlorotNormal(),
            )

    def call(self, inputs: Any) -> Any:
        """Return the dot products of all pairs."""
        first, padding = self._first, -self._pairs(inputs.shape) % self.pad_to
        if self.interaction_type == "field_interaction":
            return ops.pad(self._pairwise(inputs, first), [[0, 0], [0, padding]])
        left = inputs
        if self.interaction_type == "field_all":
            left = ops.matmul(inputs, self.kernel)
        elif self.interaction_type == "field_each":
            left = ops.einsum("bfk,fkd->bfd", inputs, self.kernel)
        products = ops.matmul(left, ops.transpose(inputs, (0, 2, 1)))  # [batch, F, F]
        return _upper_triangle(products, inputs.shape[1], first, padding)

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

    def _pairs(self, input_shape: Sequence[int | None]) -> int:
        check_pairs_of_features(input_shape, 1 + self._first)
        features = input_shape[1]
        return features * (features + 1 - 2 * self._first) // 2

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, int]:
        """Return (batch, number of pairs with padding)."""
        pairs = self._pairs(input_shape)
        return (input_shape[0], pairs + -pairs % self.pad_to)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make this layer again."""
        return super().get_config() | {
            "interaction_type": self.interaction_type,
            "self_interaction": self.self_interaction,
            "pad_to": self.pad_to,
        }


def _upper_triangle(matrices: Any, features: int, first: int, padding: int) -> Any:
    """Return the entries j >= i + first of [batch, F, F], row by row, [batch, pairs + padding].

    Forward is one contiguous slice per row. Its own gradient would be F padded tensors and their
    sum; here it is one gather of whole rows of the transpose. 27 features, batch 16,384, two cores:
    30 ms forward and 90 ms with gradient, against 50 and 125 for a gather and its gradient.
    """
    squares = features * features
    rows, cols = np.triu_indices(features, first)
    # Where a cell's gradient stands; behind the last: zero.
    source = np.full(squares, len(rows) + padding, np.int32)
    source[rows * features + cols] = np.arange(len(rows))

    @ops.custom_gradient
    def take(flat: Any) -> tuple[Any, Callable]:
        spans = [(i * features + i + first, (i + 1) * features) for i in range(features - first)]
        parts = [flat[:, start:stop] for start, stop in spans]
        if padding:
            parts.append(ops.zeros((ops.shape(flat)[0], padding), flat.dtype))
        out = ops.concatenate(parts, axis=1)

        def grad(*args: Any, upstream: Any = None) -> Any:
            (upstream,) = (upstream,) if upstream is not None else args
            by_pair = ops.pad(
                ops.transpose(upstream), [[0, 1], [0, 0]]
            )  # [pairs + padding + 1, batch]
            return ops.transpose(ops.take(by_pair, source, axis=0))

        return out, grad

    return take(ops.reshape(matrices, (-1, squares)))
