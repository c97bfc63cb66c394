"""SharedSchema: the columns that files have in common, in types that hold the values of all."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pyarrow as pa

from tutorlib.parquet.types import column_type, type_words

_KINDS = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_timestamp,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_duration,
)
MOST_NAMED = 5  # columns that a warning names


@dataclasses.dataclass(frozen=True)
class SharedSchema:
    """The columns of some files.

    Args:
        schema: the columns that can be read, in the order of the first file.
        promoted: names of the columns whose types differ, but have a common wider one.
        left_out: {name: reason} of the other columns: not in all files, twice in one, or of types
            that contradict each other.
    """

    schema: pa.Schema
    promoted: frozenset[str]
    left_out: dict[str, str]

    def why_missing(self, names: Sequence[str]) -> str:
        """Return why columns are not in the schema, as a part of an error, or ""."""
        known = [f"{name!r} {self.left_out[name]}" for name in names if name in self.left_out]
        return f" ({'; '.join(known)})" if known else ""

    def doubts(self) -> str:
        """Return what a warning says of the columns, "" if all files have the same ones."""
        parts = [f"column {name!r} {reason}" for name, reason in self.left_out.items()]
        parts = [f"{part}: it cannot be used" for part in parts]
        parts += [
            f"column {field.name!r} is read as {type_words(column_type(field.type))}, which holds "
            "the types of all files"
            for field in self.schema
            if field.name in self.promoted
        ]
        more = f", and {len(parts) - MOST_NAMED} more" if len(parts) > MOST_NAMED else ""
        return "; ".join(parts[:MOST_NAMED]) + more


def shared_schema(paths: Sequence[str], schemas: Sequence[pa.Schema]) -> SharedSchema:
    """Return the columns that files share.

    Integers of several widths become the widest, as do floating-point numbers, and times the
    finest unit. A column that is null in a file takes the type of the others.

    Args:
        paths: names of the files, for messages.
        schemas: their schemas; for files whose schemas are one object it is looked at once.

    Example:
        >>> schemas = [pa.schema([("i", pa.int32())]), pa.schema([("i", pa.int64())])]
        >>> shared_schema(["a", "b"], schemas).schema.field("i").type
        DataType(int64)
    """
    first = schemas[0]
    fields = {field.name: field.type for field in first}
    promoted, left_out = set[str](), dict[str, str]()
    previous = None
    for path, schema in zip(paths, schemas, strict=True):
        if schema is previous:
            continue
        previous = schema
        if len({*schema.names}) < len(schema.names):
            for name in sorted({n for n in schema.names if schema.names.count(n) > 1}):
                left_out.setdefault(name, f"is in {path} more than once")
        if schema.equals(first):
            continue
        have = {field.name: field.type for field in schema}
        for name in sorted(fields.keys() - have.keys()):
            left_out.setdefault(name, f"is not in {path}")
        for name in sorted(have.keys() - fields.keys()):
            left_out.setdefault(name, f"is in {path}, but not in {paths[0]}")
        for name in fields.keys() & have.keys():
            kind = _common(fields[name], have[name])
            if kind is None:
                other = type_words(column_type(fields[name]))
                words = f"is {type_words(column_type(have[name]))} in {path}, but {other}"
                left_out.setdefault(name, f"{words} in {paths[0]}; write both with one type")
            elif kind != fields[name] or _stored_type(have[name]) != _stored_type(kind):
                promoted.add(name)
                fields[name] = kind
    known = [first.field(n).with_type(k) for n, k in fields.items() if n not in left_out]
    return SharedSchema(pa.schema(known), frozenset(promoted - left_out.keys()), left_out)


def _stored_type(kind: pa.DataType) -> tuple[str, bool]:
    """Return what decides whether values need a cast: the column type, with the time zone."""
    return (str(kind), False) if pa.types.is_timestamp(kind) else column_type(kind)


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return a type that holds the values of both; None if they contradict each other."""
    if _stored_type(one) == _stored_type(other):
        return one
    nulls = pa.types.is_null(one) or pa.types.is_null(other)
    if not nulls and not any(is_kind(one) and is_kind(other) for is_kind in _KINDS):
        return None
    parts = [pa.schema([("c", kind)]) for kind in (one, other)]
    try:
        return pa.unify_schemas(parts, promote_options="permissive").field("c").type
    except pa.ArrowException:
        return None
