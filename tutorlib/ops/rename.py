"""Rename: other names for columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from tutorlib.columns import Chunk
from tutorlib.ops.base import Op
from tutorlib.schema import Column


class Rename(Op):
    """Gives columns other names.

    Returns (from transform): the columns as they are, under their new names.

    Args:
        names: {old name: new name}; None for none.
        postfix: appended to the names of all other columns.

    Raises:
        ValueError: if an old name does not exist, or two new names are equal.

    Example:
        >>> (["a", "b"] >> Rename({"a": "x"}, postfix="_raw")).output_names
        ['x', 'b_raw']
    """

    def __init__(self, names: Mapping[str, str] | None = None, postfix: str = "") -> None:
        self.names = dict(names or {})
        self.postfix = postfix

    def transform(self, chunk: Chunk) -> Chunk:
        """Return the columns under their new names."""
        return Chunk(dict(zip(self.output_names(chunk.names), chunk.values(), strict=True)))

    def output_names(self, names: Sequence[str]) -> list[str]:
        """Return the new names."""
        missing = [name for name in self.names if name not in names]
        if missing:
            raise ValueError(f"Rename: no columns {missing}; there are {list(names)}")
        new = [self.names.get(name, name + self.postfix) for name in names]
        if len(set(new)) < len(new):
            raise ValueError(f"Rename: the new names must differ from each other, got {new}")
        return new

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return the columns under their new names."""
        names = self.output_names([column.name for column in columns])
        return [dataclasses.replace(c, name=n) for c, n in zip(columns, names, strict=True)]
