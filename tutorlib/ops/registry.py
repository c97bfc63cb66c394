"""OPS, ROW_OPS: the ops of this library by name, and how a saved Workflow refers to any op's class.

One of ours is saved by its public name, `tutorlib.ops.Clip`; a class of the user by its module and
qualified name. A name that is loaded is only looked up: nothing is imported or executed for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from tutorlib.ops.base import Op, Rename, Select
from tutorlib.ops.categorify import Categorify
from tutorlib.ops.elementwise import Bucketize, Clip, LambdaOp, LogOp
from tutorlib.ops.external import JoinExternal
from tutorlib.ops.filling import FillMedian, FillMissing
from tutorlib.ops.groupby import JoinGroupby
from tutorlib.ops.ids import HashBucket, HashedCross
from tutorlib.ops.lists import ListSlice
from tutorlib.ops.rows import Dropna, Filter, RowOp
from tutorlib.ops.statistics import Normalize, NormalizeMinMax
from tutorlib.ops.target_encoding import TargetEncoding

Kind = TypeVar("Kind")

ROOM = "tutorlib.ops"
OPS: dict[str, type[Op]] = {
    "Bucketize": Bucketize,
    "Categorify": Categorify,
    "Clip": Clip,
    "FillMedian": FillMedian,
    "FillMissing": FillMissing,
    "HashBucket": HashBucket,
    "HashedCross": HashedCross,
    "JoinExternal": JoinExternal,
    "JoinGroupby": JoinGroupby,
    "LambdaOp": LambdaOp,
    "ListSlice": ListSlice,
    "LogOp": LogOp,
    "Normalize": Normalize,
    "NormalizeMinMax": NormalizeMinMax,
    "Rename": Rename,
    "Select": Select,
    "TargetEncoding": TargetEncoding,
}
ROW_OPS: dict[str, type[RowOp]] = {"Dropna": Dropna, "Filter": Filter}


def saved_name(kind: type[Op] | type[RowOp]) -> str:
    """Return the name by which a saved Workflow refers to a class of ops.

    Example:
        >>> saved_name(Clip)
        'tutorlib.ops.Clip'
    """
    ours: Mapping[str, type] = {**OPS, **ROW_OPS}
    if ours.get(kind.__name__) is kind:
        return f"{ROOM}.{kind.__name__}"
    return f"{kind.__module__}.{kind.__qualname__}"


def op_class(name: str) -> type[Op]:
    """Return the class of ops that `saved_name` names so.

    Raises:
        ValueError: if it is neither one of ours nor defined in this process.

    Example:
        >>> op_class("tutorlib.ops.Clip").__name__
        'Clip'
    """
    return _class_of(name, OPS, Op.registry)


def row_op_class(name: str) -> type[RowOp]:
    """Return the class of row ops that `saved_name` names so.

    Raises:
        ValueError: if it is neither one of ours nor defined in this process.
    """
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
