"""RowOp, Dropna, Filter: which rows stay, decided on the data before any other op.

A row is dropped from all columns alike, so these are not ops of a group:
`Workflow(*groups, row_ops=[Dropna(["label"]), Filter([("rating", ">", 0)])])`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tutorlib.columns import (
    Array,
    Chunk,
    Ragged,
    Strings,
    array_namespace,
    column_to_arrow,
    is_vectors,
)
from tutorlib.ops.shared.columns import column_type, missing_in, parts_of
from tutorlib.ops.shared.conditions import COMPARE, MEMBERSHIP, number_comparison
from tutorlib.ops.shared.functions import function_named, name_to_save

_COMPARE_STRINGS: dict[str, Callable[..., Any]] = {
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_OPERATORS = [*COMPARE, *MEMBERSHIP]


class RowOp(ABC):
    """Decides which rows stay. A subclass implements `names`, `keep` and `get_config`."""

    registry: ClassVar[dict[str, type[RowOp]]] = {}
    """{module and qualified name: class} of all subclasses, as `Op.registry`."""

    names: list[str]
    """Columns of the data that `keep` reads."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        RowOp.registry[f"{cls.__module__}.{cls.__qualname__}"] = cls

    def __rrshift__(self, left: Any) -> Any:
        raise TypeError(
            f"{self!r} drops rows from all columns alike, so it cannot be in a group. Pass it to "
            f"the workflow: Workflow(..., row_ops=[{self!r}])."
        )

    @abstractmethod
    def keep(self, chunk: Chunk) -> Array:
        """Return bool [n], True for the rows of `chunk` that stay."""

    def apply(self, chunk: Chunk) -> Chunk:
        """Return the rows that stay, in their order."""
        kept = self.keep(chunk)
        return chunk if bool(kept.all()) else chunk.take(array_namespace(kept).flatnonzero(kept))

    @abstractmethod
    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments as JSON values."""

    @classmethod
    def from_config(
        cls, config: dict[str, Any], functions: Mapping[str, Callable[..., Any]]
    ) -> RowOp:
        """Return the op that `get_config` describes.

        Args:
            config: as from `get_config`.
            functions: {name: function} that the caller of `Workflow.load` passes.
        """
        return cls(**config)


class Dropna(RowOp):
    """Drops rows in which a column is missing: null, NaN, or an empty list.

    A null list is read as an empty one. A null inside a list does not drop the row.

    Args:
        names: columns that must have a value.

    Raises:
        ValueError: if `names` is not a list of column names.

    Example:
        >>> chunk = Chunk({"x": np.array([1.0, np.nan, 3.0]), "y": np.arange(3)})
        >>> Dropna(["x"]).apply(chunk)["y"].tolist()
        [0, 2]
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = _names(names, "Dropna")

    def __repr__(self) -> str:
        return f"Dropna({self.names})"

    def keep(self, chunk: Chunk) -> Array:
        """Return bool [n], True for rows with a value in each column."""
        kept = None
        for name in self.names:
            column = chunk[name]
            if isinstance(column, Ragged):
                there = array_namespace(column.offsets).diff(column.offsets) > 0
            else:
                there = ~missing_in(column)
                there = there.all(axis=1) if there.ndim == 2 else there
            kept = there if kept is None else kept & there
        return kept

    def get_config(self) -> dict[str, Any]:
        """Return the names."""
        return {"names": self.names}


class Filter(RowOp):
    """Keeps rows that meet a condition, by the same rule as the loader's `filters=`.

    Integers are compared exactly. A value for a floating-point column is first rounded to the
    column's type: 0.1 in a float32 column equals 0.1. A null or NaN meets no comparison, not even
    `!=` and `not in`.

    Args:
        condition: list of (column, operator, value), all of which must hold, or list of such lists,
            one of which must hold, as the loader's `filters=`. Operators: == != < <= > >= in,
            not in. Or a function `Chunk` -> bool [n]; a workflow is saved with its name, as with
            `LambdaOp`.
        names: columns that the function reads; None for a list, which names its columns itself.

    Raises:
        ValueError: for a condition of another form, or a function that returns something else.
        TypeError: if strings are compared with numbers, or a column of lists with anything.

    Example:
        >>> chunk = Chunk({"x": np.array([1.0, np.nan, 3.0]), "n": np.arange(3)})
        >>> Filter([("x", "!=", 3), ("n", "in", [0, 1])]).apply(chunk)["n"].tolist()
        [0]
        >>> Filter(lambda chunk: chunk["n"] % 2 == 0, ["n"]).apply(chunk)["n"].tolist()
        [0, 2]
    """

    def __init__(self, condition: Any, names: Sequence[str] | None = None) -> None:
        self.function = condition if callable(condition) else None
        if self.function is None and names is not None:
            raise ValueError("Filter: names goes with a function; a list names its columns itself")
        if self.function is not None:
            if names is None:
                raise ValueError("Filter: name the columns that the function reads: names=[...]")
            self.names = _names(names, "Filter")
            return
        self.condition = _any_of_all(condition)
        self.names = list(dict.fromkeys(name for every in self.condition for name, _, _ in every))

    def __repr__(self) -> str:
        if self.function is not None:
            return f"Filter({getattr(self.function, '__name__', self.function)}, {self.names})"
        plain = self.condition[0] if len(self.condition) == 1 else self.condition
        return f"Filter({plain})"

    def keep(self, chunk: Chunk) -> Array:
        """Return bool [n], True for rows that meet the condition."""
        if self.function is not None and chunk.num_rows:
            return self._called(self.function, chunk.select(self.names))
        if self.function is not None:
            return np.zeros(0, dtype=bool)
        kept = None
        for every in self.condition:
            met = None
            for name, comparison, value in every:
                one = _compared(name, chunk[name], comparison, value)
                met = one if met is None else met & one
            kept = met if kept is None else kept | met
        return kept

    def _called(self, function: Callable[[Chunk], Array], chunk: Chunk) -> Array:
        result = function(chunk)
        got = f"{getattr(result, 'dtype', type(result))} {getattr(result, 'shape', '')}"
        if got != f"bool ({chunk.num_rows},)":
            raise ValueError(
                f"columns {self.names}: Filter expects bool ({chunk.num_rows},) from the function, "
                f"got {got}"
            )
        return result

    @property
    def function_name(self) -> str:
        """Name under which the function is saved; ValueError if it has none."""
        return name_to_save(self.function, "Filter")

    def get_config(self) -> dict[str, Any]:
        """Return the condition, or the function's name and the columns."""
        if self.function is not None:
            return {"function": self.function_name, "names": self.names}
        return {"condition": [[list(one) for one in every] for every in self.condition]}

    @classmethod
    def from_config(cls, config: dict[str, Any], functions: Mapping[str, Any]) -> RowOp:
        """Return the filter, with the function of that name if it has one."""
        if "function" not in config:
            return cls(config["condition"])
        return cls(function_named(config["function"], functions, "Filter"), config["names"])


def _names(names: Sequence[str], op: str) -> list[str]:
    if isinstance(names, str) or not names or not all(isinstance(n, str) for n in names):
        raise ValueError(f"{op}: names must be a list of column names, got {names!r}")
    return list(dict.fromkeys(names))


def _any_of_all(condition: Any) -> list[list[tuple[str, str, Any]]]:
    """Return the condition as a list of lists of (column, operator, value)."""
    wrong = ValueError(
        "Filter: the condition must be a list of (column, operator, value), or a list of such "
        f"lists, with the operators {_OPERATORS}, got {condition!r}"
    )
    if not isinstance(condition, list | tuple) or not condition:
        raise wrong
    if isinstance(condition[0], list | tuple) and condition[0] and isinstance(condition[0][0], str):
        condition = [condition]
    result = []
    for every in condition:
        if not isinstance(every, list | tuple) or not every:
            raise wrong
        for one in every:
            if not isinstance(one, list | tuple) or len(one) != 3 or not isinstance(one[0], str):
                raise wrong
        result.append([_comparison(*one) for one in every])
    return result


def _comparison(name: str, comparison: str, value: Any) -> tuple[str, str, Any]:
    if comparison not in _OPERATORS:
        raise ValueError(f"column {name!r}: Filter: operators are {_OPERATORS}, got {comparison!r}")
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    many = comparison in MEMBERSHIP
    if many != isinstance(value, list | tuple | set | frozenset):
        rule = "a list of values" if many else "one value"
        raise ValueError(f"column {name!r}: Filter: {comparison!r} takes {rule}, got {value!r}")
    values = sorted(value) if isinstance(value, set | frozenset) else value if many else [value]
    for one in values:
        if not isinstance(one, str | int | float) or one != one:
            raise ValueError(
                f"column {name!r}: Filter compares with numbers and strings, got {one!r}. To keep "
                "rows that have a value, use Dropna."
            )
    return name, comparison, list(values) if many else value


def _compared(name: str, column: Any, comparison: str, value: Any) -> Array:
    """Return bool [n], True where a column meets one comparison."""
    if isinstance(column, Ragged) or is_vectors(column):
        raise TypeError(f"column {name!r}: Filter takes one value per row, got lists")
    values, _ = parts_of(column)
    strings = isinstance(values, Strings)
    for one in value if comparison in MEMBERSHIP else [value]:
        if isinstance(one, str) != strings:
            raise TypeError(
                f"column {name!r}: Filter cannot compare {column_type(column)[0]} with {one!r}"
            )
    there = ~missing_in(column)
    xp = array_namespace(there)
    if strings:
        return there & xp.asarray(_compared_strings(values, comparison, value))
    if values.dtype.kind == "b":
        values = values.astype(np.uint8)
    if values.dtype.kind in "mM":
        values = values.view(np.int64)
    comparison, value = number_comparison(values.dtype, comparison, value)
    if comparison in COMPARE:
        return there & COMPARE[comparison](values, value)
    met = xp.zeros(len(values), dtype=bool)
    if value:
        met = xp.isin(values, xp.asarray(value, dtype=values.dtype))
    return there & (met if comparison == "in" else ~met)


def _compared_strings(values: Strings, comparison: str, value: Any) -> np.ndarray:
    strings = column_to_arrow(values)
    if comparison in _COMPARE_STRINGS:
        return _COMPARE_STRINGS[comparison](strings, value).to_numpy(zero_copy_only=False)
    met = pc.is_in(strings, value_set=pa.array(value, strings.type)).to_numpy(zero_copy_only=False)
    return met if comparison == "in" else ~met
