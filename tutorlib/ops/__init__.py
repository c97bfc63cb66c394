"""Ops: what can be done to columns before they reach a model.

An op takes a `Chunk` and returns a `Chunk`; one that learns does so through mergeable states:
`partial(chunk)` on any part of the data, `merge(a, b)` in any order, `finalize(state)` once. The
result is the same to the last bit however the data was cut and merged. What touches the rows of a
transform is written once, for NumPy and CuPy, through the array's own namespace; learning counts on
the CPU. Texts that Arrow works on (FillMissing, LambdaOp, comparisons of Filter) go to the CPU and
come back; categories and hashes of texts do not. `["a", "b"] >> Op() >> Op()` makes a
`ColumnGroup`. Rows are dropped by `Filter` and `Dropna`, which are no ops of a group: a row goes
from all columns alike. Does not belong here: reading files, the order of passes, saving
(`workflow.py`).

Conventions, for every op: a list column (`Ragged`) is transformed value by value and keeps its
lists, or refused by an error that says so; numbers computed here come out as float32 unless `dtype`
says otherwise; an error names the op and the column.
"""

from tutorlib.ops.base import (
    ColumnGroup,
    ColumnOp,
    LearningOp,
    Op,
    Rename,
    Select,
    SpillingOp,
    as_group,
)
from tutorlib.ops.categorify import Categorify
from tutorlib.ops.columns import FIRST_OOV_ID, NULL_ID, PADDING_ID, column_type, role_of
from tutorlib.ops.elementwise import Bucketize, Clip, LambdaOp, LogOp
from tutorlib.ops.exact import exact_sum
from tutorlib.ops.external import JoinExternal
from tutorlib.ops.filling import FillMedian, FillMissing
from tutorlib.ops.groupby import JoinGroupby
from tutorlib.ops.ids import HashBucket, HashedCross
from tutorlib.ops.lists import ListSlice
from tutorlib.ops.registry import OPS, ROW_OPS, op_class, row_op_class, saved_name
from tutorlib.ops.rows import Dropna, Filter, RowOp
from tutorlib.ops.statistics import Normalize, NormalizeMinMax
from tutorlib.ops.target_encoding import TargetEncoding

__all__ = [
    "FIRST_OOV_ID",
    "NULL_ID",
    "OPS",
    "PADDING_ID",
    "ROW_OPS",
    "Bucketize",
    "Categorify",
    "Clip",
    "ColumnGroup",
    "ColumnOp",
    "Dropna",
    "FillMedian",
    "FillMissing",
    "Filter",
    "HashBucket",
    "HashedCross",
    "JoinExternal",
    "JoinGroupby",
    "LambdaOp",
    "LearningOp",
    "ListSlice",
    "LogOp",
    "Normalize",
    "NormalizeMinMax",
    "Op",
    "Rename",
    "RowOp",
    "Select",
    "SpillingOp",
    "TargetEncoding",
    "as_group",
    "column_type",
    "exact_sum",
    "op_class",
    "role_of",
    "row_op_class",
    "saved_name",
]
