"""Batches that tell `tf.function` their type, so that it does not look at each of their tensors.

For every argument, `tf.function` makes a `TensorSpec`, hashes and compares it, and checks the
tensor again when it unpacks it. With 40 tensors that is more than half of what a small step of
`fit` costs. It asks an argument with a `__tf_tracing_type__` for its type instead, and two batches
of a loader have the same one if they have the same number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

# Of each part of a batch: the names of its dict, () for None, None for a tensor.
Structure = tuple[tuple[str, ...] | None, ...]


class BatchType(tf.types.experimental.TraceType):
    """The type of a batch for `tf.function`, which traces with a plain tuple of plain dicts.

    Args:
        structure: the names in each part of the batch.
        specs: the specs of its tensors; those of a dict in the order of their names, which is the
            order in which `tf.function` numbers its inputs.
    """

    def __init__(self, structure: Structure, specs: Sequence[tf.TensorSpec]) -> None:
        self._structure, self._specs = structure, tuple(specs)
        self._sorted = tuple(names and tuple(sorted(names)) for names in structure)
        self._hash = hash((self._sorted, self._specs))

    def to_tensors(self, value: Any) -> list[Any]:
        """Return the tensors of a batch, in the order of the specs."""
        tensors: list[Any] = []
        for names, part in zip(self._sorted, value, strict=True):
            tensors += [part] if names is None else [part[name] for name in names]
        return tensors

    def from_tensors(self, tensors: Iterator[Any]) -> Any:
        """Return a batch of these tensors, as a loop over a loader gives it."""
        parts: list[Any] = []
        for names, in_order in zip(self._structure, self._sorted, strict=True):
            if names is None or in_order is None:
                parts.append(next(tensors))
            else:
                found = {name: next(tensors) for name in in_order}
                parts.append({name: found[name] for name in names} or None)
        return tuple(parts)

    def placeholder_value(self, placeholder_context: Any) -> Any:
        """Return a batch of symbolic tensors."""
        return self.from_tensors(
            spec.placeholder_value(placeholder_context) for spec in self._specs
        )

    def flatten(self) -> list[tf.TensorSpec]:
        """Return the specs of the tensors."""
        return list(self._specs)

    def cast(self, value: Any, cast_context: Any) -> Any:
        """Return the batch as it is."""
        return value

    def is_subtype_of(self, other: Any) -> bool:
        """Return whether a function that was traced for the other type takes this one."""
        return self == other

    def most_specific_common_supertype(self, others: Sequence[Any]) -> BatchType | None:
        """Return None: a function is traced for each number of rows, of which a loader has two."""
        return None

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, BatchType):
            return self is other
        return (self._sorted, self._specs) == (other._sorted, other._specs)

    def __hash__(self) -> int:
        return self._hash


def batch_type(batch: Sequence[Any]) -> BatchType:
    """Return the type of a batch: a tuple of dicts of tensors, tensors, and None."""
    structure = tuple(
        tuple(part or ()) if part is None or isinstance(part, dict) else None for part in batch
    )
    tensors = BatchType(structure, ()).to_tensors(batch)
    return BatchType(structure, [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors])


class TypedBatch(tuple[Any, ...]):
    """A batch with its type: a tuple like any other, except for `tf.function`."""

    tracing_type: BatchType | None = None

    def __tf_tracing_type__(self, context: Any) -> BatchType:
        """Return the type by which `tf.function` finds what it has traced."""
        return self.tracing_type or batch_type(self)


def with_types() -> Callable[[Any], Any]:
    """Return a function that makes a `TypedBatch` of a batch.

    All its batches must have the same columns of the same dtypes, and shapes that differ only by
    the number of rows.
    """
    types: dict[int, BatchType] = {}  # by rows

    def typed(batch: Any) -> Any:
        rows = next(iter(batch[0].values())).shape[0]
        if rows not in types:
            types[rows] = batch_type(batch)
        result = TypedBatch(batch)
        result.tracing_type = types[rows]
        return result

    return typed
