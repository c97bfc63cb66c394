"""DateParts in a graph: bit for bit what its `transform` gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from tutorlib.ops import DateParts
from tutorlib.ops.base import NULL_ID
from tutorlib.ops.lists_dates import SIZES
from tutorlib.serving.base import ServedColumn, ServedOp


class ServedDateParts(ServedOp[DateParts]):
    """`DateParts`; the raw tensor is int64, in the unit of the column that was fitted on."""

    @classmethod
    def sources(cls, op: DateParts, output: str, names: Sequence[str]) -> list[str]:
        """Return the column whose part the output is."""
        return [names[op.output_names(names).index(output) // len(op.parts)]]

    def __call__(self, columns: Mapping[str, ServedColumn]) -> dict[str, ServedColumn]:
        """Return the wanted parts."""
        made = {}
        for output in self.wanted:
            (name,) = self.sources(self.op, output, self.names)
            made[output] = self._part(name, output.removeprefix(f"{name}_"), columns[name])
        return made

    def _part(self, name: str, part: str, column: ServedColumn) -> ServedColumn:
        unit = self.op.unit_for(name, column.dtype or column.values.dtype.name)
        made = self.op.part(part, tf.cast(column.values, tf.int64), unit)
        if part in SIZES:
            ids = column.without_nulls(tf.cast(made, tf.int32), NULL_ID)
            return column.with_values(ids)
        return column.with_values(tf.cast(made, tf.float32), column.valid)
