"""Ops: preprocessing of columns, as steps of a Workflow.

`["a", "b"] >> Op() >> Op()` makes a `ColumnGroup`. An op takes a `Chunk` and returns a `Chunk`; one
that learns does so through states that merge in any order with the same result to the last bit. Row
ops (`Filter`, `Dropna`) drop rows from all columns alike, so they are given to the Workflow.

Each op has a file, or shares it with its likes; `base.py` holds what every op provides, `shared/`
what several ops use, `registry.py` the table of all.

For every op: a column of lists is transformed value by value and keeps its lists, or is refused;
computed numbers are float32 unless `dtype` says otherwise; errors name the op and the column.
Transforms run on NumPy and CuPy arrays alike. Learning counts on the CPU, and what Arrow does to
strings (FillMissing, LambdaOp, Filter) happens in host memory.
"""

from tutorlib.inference import role_of
from tutorlib.ops.base import ColumnGroup, ColumnOp, LearningOp, Op, Select, SpillingOp, as_group
from tutorlib.ops.categorify import Categorify
from tutorlib.ops.date_parts import DateParts
from tutorlib.ops.elementwise import Bucketize, Clip, LambdaOp, LogOp
from tutorlib.ops.filling import FillMedian, FillMissing
from tutorlib.ops.hash_bucket import HashBucket, HashedCross
from tutorlib.ops.join_external import JoinExternal
from tutorlib.ops.join_groupby import JoinGroupby
from tutorlib.ops.label_encoder import LabelEncoder
from tutorlib.ops.list_slice import ListSlice
from tutorlib.ops.normalize import Normalize, NormalizeMinMax
from tutorlib.ops.registry import OPS, ROW_OPS, is_builtin, op_class, row_op_class, saved_name
from tutorlib.ops.rename import Rename
from tutorlib.ops.row_ops import Dropna, Filter, RowOp
from tutorlib.ops.shared.columns import FIRST_OOV_ID, NULL_ID, PADDING_ID, column_type
from tutorlib.ops.shared.exact import exact_sum
from tutorlib.ops.shared.functions import code_identity
from tutorlib.ops.target_encoding import TargetEncoding

__all__ = [
    "FIRST_OOV_ID", "NULL_ID", "OPS", "PADDING_ID", "ROW_OPS", "Bucketize", "Categorify", "Clip",
    "ColumnGroup", "ColumnOp", "DateParts", "Dropna", "FillMedian", "FillMissing", "Filter",
    "HashBucket",
    "HashedCross", "JoinExternal", "JoinGroupby", "LabelEncoder", "LambdaOp", "LearningOp",
    "ListSlice", "LogOp", "Normalize", "NormalizeMinMax", "Op", "Rename", "RowOp", "Select",
    "SpillingOp", "TargetEncoding", "as_group", "code_identity", "column_type", "exact_sum",
    "is_builtin", "op_class", "role_of", "row_op_class", "saved_name",
]  # fmt: skip
