"""OPS and ROW_OPS: the ops of this library, and the names of ops in a saved Workflow.

One of ours is saved by its public name, `tutorlib.ops.Clip`; a user's by module and qualified name.
When a Workflow is loaded these names are only looked up; nothing is imported or executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from tutorlib.ops.base import Op, Select
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
from tutorlib.ops.rename import Rename
from tutorlib.ops.row_ops import Dropna, Filter, RowOp
from tutorlib.ops.target_encoding import TargetEncoding

Kind = TypeVar("Kind")

ROOM = "tutorlib.ops"
_OPS: tuple[type[Op], ...] = (
    Bucketize, Categorify, Clip, DateParts, FillMedian, FillMissing, HashBucket, HashedCross,
    JoinExternal, JoinGroupby, LabelEncoder, LambdaOp, ListSlice, LogOp, Normalize, NormalizeMinMax,
    Rename, Select, TargetEncoding,
)  # fmt: skip
OPS: dict[str, type[Op]] = {kind.__name__: kind for kind in _OPS}
ROW_OPS: dict[str, type[RowOp]] = {"Dropna": Dropna, "Filter": Filter}


def saved_name(kind: type[Op] | type[RowOp]) -> str:
    """Return the name of an op's class in a saved Workflow.

    Example:
        >>> saved_name(Clip)
        'tutorlib.ops.Clip'
    """
    return f"{ROOM if is_builtin(kind) else kind.__module__}.{kind.__qualname__}"


def is_builtin(kind: type[Op] | type[RowOp]) -> bool:
    """Return whether an op's class is one of this library."""
    return kind in OPS.values() or kind in ROW_OPS.values()


def op_class(name: str) -> type[Op]:
    """Return the class of ops whose `saved_name` is `name`.

    Raises:
        ValueError: if it is neither one of ours nor defined in this process.
    """
    return _class_of(name, OPS, Op.registry)


def row_op_class(name: str) -> type[RowOp]:
    """Return the class of row ops whose `saved_name` is `name`, or raise as `op_class`."""
    return _class_of(name, ROW_OPS, RowOp.registry)


def _class_of(name: str, ours: Mapping[str, Kind], defined: Mapping[str, Kind]) -> Kind:
    room, _, short = name.rpartition(".")
    if room == ROOM and short in ours:
        return ours[short]
    if name not in defined:
        raise ValueError(
            f"op {name!r} is not known. {ROOM} has {sorted(ours)}; if the op is yours, import the "
            "module that defines it before Workflow.load."
        )
    return defined[name]
