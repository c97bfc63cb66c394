"""SERVED: which class serves which op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tutorlib import ops
from tutorlib.ops import Op
from tutorlib.serving.base import Functions, ServedOp
from tutorlib.serving.columns import ServedListSlice, ServedRename, ServedSelect
from tutorlib.serving.dates import ServedDateParts
from tutorlib.serving.keys import (
    ServedCategorify,
    ServedHashBucket,
    ServedJoinExternal,
    ServedTargetEncoding,
)
from tutorlib.serving.numbers import (
    ServedBucketize,
    ServedClip,
    ServedFill,
    ServedLambdaOp,
    ServedLogOp,
    ServedScaler,
)

# To serve an op of your own, write a ServedOp for it and enter it: SERVED[MyOp] = ServedMyOp.
SERVED: dict[type[Op], type[ServedOp[Any]]] = {
    ops.Bucketize: ServedBucketize,
    ops.Categorify: ServedCategorify,
    ops.Clip: ServedClip,
    ops.DateParts: ServedDateParts,
    ops.FillMedian: ServedFill,
    ops.FillMissing: ServedFill,
    ops.HashBucket: ServedHashBucket,
    ops.JoinExternal: ServedJoinExternal,
    ops.LambdaOp: ServedLambdaOp,
    ops.ListSlice: ServedListSlice,
    ops.LogOp: ServedLogOp,
    ops.Normalize: ServedScaler,
    ops.NormalizeMinMax: ServedScaler,
    ops.Rename: ServedRename,
    ops.Select: ServedSelect,
    ops.TargetEncoding: ServedTargetEncoding,
}


def refusal_of(op: Op, names: Sequence[str], functions: Functions) -> str | None:
    """Return why an op of these columns cannot be served, None if it can."""
    served = SERVED.get(type(op))
    if served is None:
        reason: str | None = "has no TensorFlow version in tutorlib.serving.SERVED"
    else:
        reason = served.refusal(op, functions)
    return reason and f"{type(op).__name__} of the columns {list(names)} {reason}"
