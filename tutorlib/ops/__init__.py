"""Ops: preprocessing of columns, as steps of a Workflow.

`["a", "b"] >> Op() >> Op()` makes a `ColumnGroup`. An op takes a `Chunk` and returns a `Chunk`; one
that learns makes a state of each row range, and the states are merged in the order of the rows.

For every op: a column of lists is transformed value by value and keeps its lists, or is refused;
computed numbers are float32; errors name the op and the column.

To add an op: a class here, its name below, a row in `tests/ops/cases.py`, and a `ServedOp` in
`tutorlib/serving` if a model is to carry it.
"""

from tutorlib.ops.base import ColumnGroup, ColumnOp, LearningOp, Op, as_group, op_class, saved_name
from tutorlib.ops.keys import Categorify, HashBucket, LabelEncoder
from tutorlib.ops.numbers import Clip, FillMedian, FillMissing, LogOp, Normalize, Rename

__all__ = [
    "Categorify", "Clip", "ColumnGroup", "ColumnOp", "FillMedian", "FillMissing", "HashBucket",
    "LabelEncoder", "LearningOp", "LogOp", "Normalize", "Op", "Rename", "as_group", "op_class",
    "saved_name",
]  # fmt: skip
