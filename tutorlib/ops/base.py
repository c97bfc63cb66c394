"""What every op provides, how ops form a chain, and what they accept of a column."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import reprlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from tutorlib.checks import shortened
from tutorlib.columns import (
    Chunk,
    FlatColumn,
    Strings,
    column_type,
    flat_values,
    missing_in,
    valid_of,
    values_of,
    with_flat_values,
    with_nulls,
)
from tutorlib.schema import Column, remedy_for, role_of

NULL_ID, UNKNOWN_ID, FIRST_ID = 1, 2, 3  # of Categorify; 0 pads lists

State = dict[str, Chunk]  # a table for each column, or for what columns share


class Op(ABC):
    """One step of preprocessing: columns in, columns out. `tutorlib.ops` has the conventions.

    A subclass implements `transform` (a `ColumnOp`: `transform_column`), and `output_names` and
    `output_columns` unless names and schema stay as they are. It keeps the constructor's arguments
    as attributes of the same names, where `get_config` reads them; one may be a table, a `Chunk`.

    Example:
        >>> class Halve(ColumnOp):
        ...     def transform_column(self, name, column):
        ...         return column / 2
        >>> (["x"] >> Halve()).transform(Chunk({"x": np.array([3, 8])}))["x"].tolist()
        [1.5, 4.0]
    """

    registry: ClassVar[dict[str, type[Op]]] = {}
    """{saved name: class} of all subclasses. `Workflow.load` finds classes here, so it imports
    nothing. A class defined again, as by a notebook cell, replaces the one before."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Op.registry[saved_name(cls)] = cls

    def __rrshift__(self, left: Any) -> ColumnGroup:
        return as_group(left) >> self

    def __repr__(self) -> str:
        """Return the op with the arguments that are not the defaults."""
        words = []
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = _plain(getattr(self, name, parameter.default))
            if value not in ({}, _plain(parameter.default)):
                words.append(f"{name}={reprlib.repr(value)}")
        return f"{type(self).__name__}({', '.join(words)})"

    @abstractmethod
    def transform(self, chunk: Chunk) -> Chunk:
        """Return the transformed columns of `chunk`."""

    def output_names(self, names: Sequence[str]) -> list[str]:
        """Return the names of the output columns for input columns of these names."""
        return list(names)

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return the output columns (role, dtype, cardinality) for these input columns."""
        return list(columns)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments as JSON values and tables (`Chunk`)."""
        names = inspect.signature(type(self)).parameters
        return {name: _plain(getattr(self, name)) for name in names}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Op:
        """Return the op, not fitted, that `get_config` describes."""
        return cls(**config)

    # What an op accepts of a column. Each error names the column and the op.

    def _wrong(self, name: str, rule: str) -> str:
        """Return an error message: "column 'x': Clip " and the rule."""
        return f"column {name!r}: {type(self).__name__} {rule}"

    def _check_kind(self, name: str, values: FlatColumn, learned: FlatColumn) -> None:
        """Refuse strings where numbers were learned, and numbers where strings were."""
        if isinstance(values, Strings) != isinstance(learned, Strings):
            rule = f"has keys of {column_type(learned)[0]}, got {column_type(values)[0]}"
            remedy = "Give the column one type in all files, or fit again"
            raise TypeError(self._wrong(name, f"{rule}. {remedy}."))

    def _check_numbers(self, name: str, column: FlatColumn) -> None:
        """Raise TypeError for strings and dates."""
        values = values_of(column)
        if isinstance(values, Strings):
            first = np.flatnonzero(~missing_in(column))[:1]
            example = f" such as {values.take(first).tolist()[0]!r}" if len(first) else ""
            rule = (
                f"takes numbers, got strings{example}. Use Categorify if they are ids. Make "
                "numbers of numbers in the data (pandas.to_numeric; "
                "pyarrow.compute.replace_substring_regex, then cast)."
            )
            raise TypeError(self._wrong(name, rule))
        if values.dtype.kind in "mM":
            rule = f"takes numbers, got {values.dtype}: {remedy_for(str(values.dtype))}."
            raise TypeError(self._wrong(name, rule))

    def _floats(self, name: str, column: FlatColumn) -> np.ndarray:
        """Return numbers as float64, NaN at a null; may share the column's memory."""
        self._check_numbers(name, column)
        values = values_of(column)
        floats: np.ndarray = values.astype(np.float64, copy=values is not column)
        with_nulls(floats, valid_of(column))
        return floats

    def _check_size(self, name: str, values: np.ndarray) -> None:
        """Raise ValueError unless float64 values without NaN are below 2**400 in magnitude."""
        worst = max(values.min(initial=0), values.max(initial=0), key=abs)
        if not abs(worst) < 2.0**400:
            rule = f"takes values below 2**400, got {worst}. Put Clip before it."
            raise ValueError(self._wrong(name, rule))

    def _keys(
        self, name: str, column: FlatColumn, *, to_learn: bool = False
    ) -> np.ndarray | Strings:
        """Return the values, which must be integers, booleans or strings; dates as integers.

        Raises:
            TypeError: for floats.
            ValueError: if `to_learn` and an integer is beyond int64.
        """
        values = values_of(column)
        if isinstance(values, Strings):
            return values
        if values.dtype.kind in "mM":
            values = values.view(np.int64)
        if values.dtype.kind not in "iub":
            remedy = "In pandas, integers with missing values are of dtype 'Int64'"
            if len(values) and bool(missing_in(column).all()):
                remedy = "Without a value in any row: cast it to its own type, such as 'string'"
            rule = f"takes integers or strings, got {values.dtype}. {remedy}."
            raise TypeError(self._wrong(name, rule))
        if to_learn and values.dtype == np.uint64 and len(values) and int(values.max()) >= 2**63:
            rule = f"takes integers below 2**63, got {int(values.max())}. HashBucket takes any; or"
            raise ValueError(self._wrong(name, f"{rule} store them as strings."))
        return values


def saved_name(kind: type[Op]) -> str:
    """Return the name of an op's class in a saved Workflow.

    One of ours is saved by its public name, a user's by module and qualified name.

    Example:
        >>> saved_name(LearningOp)
        'tutorlib.ops.LearningOp'
    """
    is_ours = kind.__module__.startswith("tutorlib.ops.")
    return f"{'tutorlib.ops' if is_ours else kind.__module__}.{kind.__qualname__}"


def op_class(name: str) -> type[Op]:
    """Return the class of ops whose `saved_name` is `name`; nothing is imported.

    Raises:
        ValueError: if it is neither one of ours nor defined in this process.
    """
    kind = Op.registry.get(name)
    if kind is None or inspect.isabstract(kind):
        raise ValueError(
            f"op {name!r} is not known. If it is not one of tutorlib.ops but yours, import the "
            "module that defines it before Workflow.load."
        )
    return kind


def _plain(value: Any) -> Any:
    """Return a setting as a JSON value; a table stays one."""
    if isinstance(value, Chunk):
        return value
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


class ColumnOp(Op):
    """An op that transforms each column by itself, and of lists and vectors all their values."""

    @abstractmethod
    def transform_column(self, name: str, column: FlatColumn) -> FlatColumn:
        """Return a column transformed; of lists or vectors, it gets and returns all values, [n]."""

    def transform(self, chunk: Chunk) -> Chunk:
        """Return the columns transformed; lists and vectors keep their lengths."""
        result = {}
        for name, column in chunk.items():
            values = self.transform_column(name, flat_values(column))
            result[name] = with_flat_values(column, values)
        return Chunk(result)

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return int32 ids of the op's `cardinality(name)`, or columns of its `dtype`, if any.

        A column gets the default role of a new dtype.
        """
        result = []
        for column in columns:
            changes: dict[str, Any] = {}
            if hasattr(self, "cardinality"):
                size = self.cardinality(column.name)
                changes = {"role": "categorical", "dtype": "int32", "cardinality": size}
            elif hasattr(self, "dtype"):
                changes = {"role": role_of(self.dtype), "dtype": self.dtype, "cardinality": None}
            if changes.get("role") == "categorical" and column.length is not None:
                changes |= {"multi_hot": True, "length": None}  # vectors of ids are lists
            result.append(dataclasses.replace(column, **changes))
        return result


class LearningOp(Op):
    """An op that learns from data: rows become tables, which are merged and are what is learned.

    `partial` makes tables {column: table} of some rows, `merge_states` one of several that are in
    the order of their rows, and `learn` makes of the table of all rows the one that `transform`
    uses and a saved Workflow holds: `state`. States are always merged in the same groups, whatever
    the number of threads and workers, so that plain float64 sums have the same bits everywhere.

    Example:
        >>> class Centre(ColumnOp, LearningOp):
        ...     def partial(self, chunk):
        ...         return {n: Chunk({"least": c.min(keepdims=True)}) for n, c in chunk.items()}
        ...     def merge_states(self, states):
        ...         return self.partial(Chunk.concat(states))["least"]
        ...     def transform_column(self, name, column):
        ...         return column - self.state[name]["least"]
        >>> op = Centre()
        >>> op.state = op.learned_from(op.partial(Chunk({"x": np.array([3, 8])})))
        >>> op.transform(Chunk({"x": np.array([3, 8])}))["x"].tolist()
        [0, 5]
    """

    _state: Mapping[str, Chunk] = MappingProxyType({})

    @property
    def state(self) -> State:
        """What was learned, {column: its table}; {} before `fit`. To be set, not to be changed."""
        return dict(self._state)

    @state.setter
    def state(self, state: Mapping[str, object]) -> None:
        tables: State = {}
        for name, table in state.items():
            if not isinstance(table, Chunk):
                rule = f"learns a Chunk for each column, got {type(table).__name__}"
                raise TypeError(self._wrong(name, f"{rule}. See LearningOp."))
            tables[name] = table
        self._state = tables
        self.prepare()

    def prepare(self) -> None:
        """Make what `transform` needs beside the state, which has just been set."""

    def unlearned(self, names: Sequence[str]) -> list[str]:
        """Return the input columns that the op still has to learn from."""
        return [name for name in names if name not in self._state]

    @abstractmethod
    def partial(self, chunk: Chunk) -> State:
        """Return the state of some rows; the op itself does not change."""

    @abstractmethod
    def merge_states(self, states: Sequence[Chunk]) -> Chunk:
        """Return the table of the rows of two or more tables of one column, in their order."""

    def merge(self, *states: State) -> State:
        """Return the state of the rows of all states, which are in the order of their rows.

        Raises:
            TypeError: naming the column, if its states do not fit each other.
        """
        tables: dict[str, list[Chunk]] = {}
        for state in states:
            for name, table in state.items():
                tables.setdefault(name, []).append(table)
        merged = {}
        for name, several in tables.items():
            try:
                merged[name] = several[0] if len(several) == 1 else self.merge_states(several)
            except TypeError as error:
                raise TypeError(self._wrong(name, str(error))) from error
        return merged

    def learn(self, name: str, merged: Chunk) -> Chunk:
        """Return the table that `transform` uses of a column, for the merged one of all rows."""
        return merged

    def learned_from(self, merged: State) -> State:
        """Return the op's state with what the merged state of all rows tells.

        The op itself does not change, so that a worker can do it.
        """
        state = dict(self._state)
        for name, table in merged.items():
            state[name] = self.learn(name, table)
        return state


class ColumnGroup:
    """Columns by name and the ops that they go through, in order: `["a", "b"] >> Op() >> Op()`.

    A group holds copies of its ops, so one op may be used in several groups.

    Args:
        names: columns of the data.
        ops: in order; none to return the columns as they are.

    Attributes:
        output_names: columns that the last op returns.

    Raises:
        ValueError: if there is no column or one twice.

    Example:
        >>> from tutorlib.ops import Clip, FillMissing
        >>> group = ["x"] >> FillMissing(0) >> Clip(min_value=0)
        >>> group
        ['x'] >> FillMissing() >> Clip(min_value=0)
        >>> group.transform(Chunk({"x": np.array([np.nan, -1.0, 2.0])}))["x"].tolist()
        [0.0, 0.0, 2.0]
    """

    def __init__(self, names: Iterable[str], ops: Iterable[Op] = ()) -> None:
        self.names = tuple(names)
        self.ops = tuple(ops)
        for name in self.names:
            if not isinstance(name, str):
                raise TypeError(f"column names must be strings, got {name!r}")
        if not self.names or len(set(self.names)) < len(self.names):
            raise ValueError(f"need at least one column name, each once, got {list(self.names)}")
        self.output_names = list(self.names)
        for op in self.ops:
            self.output_names = op.output_names(self.output_names)

    def __rshift__(self, op: object) -> ColumnGroup:
        if not isinstance(op, Op):
            raise TypeError(f"only an op can follow >>, got {op!r}. Did you forget the brackets?")
        return ColumnGroup(self.names, (*self.ops, copy.copy(op)))

    def __repr__(self) -> str:
        return " >> ".join([f"[{shortened(map(repr, self.names))}]", *map(repr, self.ops)])

    def steps(self) -> Iterator[tuple[Op, list[str]]]:
        """Yield each op with the names of the columns that go into it."""
        names = list(self.names)
        for op in self.ops:
            yield op, names
            names = op.output_names(names)

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return the output columns (role, dtype, cardinality) for these input columns."""
        columns = list(columns)
        for op in self.ops:
            columns = op.output_columns(columns)
        return columns

    def transform(self, chunk: Chunk, ops: int | None = None) -> Chunk:
        """Return the group's columns after the first `ops` of its ops, None for all."""
        chunk = chunk.select(self.names)
        for op in self.ops[:ops]:
            chunk = op.transform(chunk)
        return chunk

    def partial(self, chunk: Chunk, position: int) -> dict[str, Any]:
        """Return the state of the rows of `chunk` for the op at a position in `ops`.

        The ops before it must be fitted.
        """
        op = self.ops[position]
        if not isinstance(op, LearningOp):
            raise TypeError(f"{op!r} has to learn, but is not a LearningOp")
        return op.partial(self.transform(chunk, position))


def as_group(columns: Any) -> ColumnGroup:
    """Return a name, a list of names or a group as a `ColumnGroup`."""
    if isinstance(columns, ColumnGroup):
        return columns
    return ColumnGroup([columns] if isinstance(columns, str) else columns)


# Settings of ops, and the schema of their output.


def check_real(name: str, value: Any) -> Any:
    """Return a finite number; ValueError, which calls it `name`, for anything else.

    Example:
        >>> check_real("limit", float("nan"))
        Traceback (most recent call last):
        ValueError: limit must be a finite number, got nan
    """
    number = value.item() if isinstance(value, np.generic) else value
    if not isinstance(number, int | float) or not abs(number) <= sys.float_info.max:
        raise ValueError(f"{name} must be a finite number, got {reprlib.repr(value)}")
    return value
