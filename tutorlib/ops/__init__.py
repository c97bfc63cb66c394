"""Ops: preprocessing of columns, as steps of a Workflow.

`["a", "b"] >> Op() >> Op()` makes a `ColumnGroup`. An op takes a `Chunk` and returns a `Chunk`; one
that learns makes a state of each row range, and the states are merged in the order of the rows.

For every op: a column of lists is transformed value by value and keeps its lists, or is refused;
numbers that are computed (LogOp, Normalize) are float32, and those that are filled or limited keep
their dtype; errors name the op and the column. ARCHITECTURE.md says how to add an op.
"""

from tutorlib.ops.base import ColumnGroup, ColumnOp, LearningOp, Op, as_group, op_class, saved_name
from tutorlib.ops.keys import Categorify, HashBucket, LabelEncoder
from tutorlib.ops.numbers import Clip, FillMedian, FillMissing, LogOp, Normalize, Rename

__all__ = [
    "Categorify", "Clip", "ColumnGroup", "ColumnOp", "FillMedian", "FillMissing", "HashBucket",
    "LabelEncoder", "LearningOp", "LogOp", "Normalize", "Op", "Rename", "as_group", "op_class",
    "saved_name",
]  # fmt: skip
