"""Op and its kinds, and ColumnGroup: what every op provides, and how ops form a chain."""

from __future__ import annotations

import copy
import inspect
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tutorlib.columns import Chunk, flat_values, with_flat_values
from tutorlib.display import shortened
from tutorlib.ops.shared.checks import ColumnChecks, check_real
from tutorlib.ops.shared.group_sums import GroupSums
from tutorlib.ops.shared.keys import CombinationIndex
from tutorlib.schema import Column


class Op(ColumnChecks, ABC):
    """One step of preprocessing: columns in, columns out. `tutorlib.ops` has the conventions.

    A subclass implements `transform` (a `ColumnOp`: `transform_column`), and `output_names` and
    `output_columns` unless names and schema stay as they are. It keeps the constructor's arguments
    as attributes of the same names, where `get_config` reads them. Columns outside its group,
    `extra_columns`, are in its chunk as the data has them, before any op; it does not return them.

    Example:
        >>> class Halve(ColumnOp):
        ...     def transform_column(self, name, column):
        ...         return column / 2
        >>> (["x"] >> Halve()).transform(Chunk({"x": np.array([3, 8])}))["x"].tolist()
        [1.5, 4.0]
    """

    registry: ClassVar[dict[str, type[Op]]] = {}
    """{module and qualified name: class} of all subclasses. `Workflow.load` finds classes here, so
    it imports nothing. A class defined again, as by a notebook cell, replaces the one before."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Op.registry[f"{cls.__module__}.{cls.__qualname__}"] = cls

    @property
    def extra_columns(self) -> Sequence[str]:
        """Columns outside the group that `transform` and `partial` read."""
        return ()

    @property
    def extra_fit_columns(self) -> Sequence[str]:
        """Columns outside the group that `partial` alone reads."""
        return ()

    def __rrshift__(self, left: Any) -> ColumnGroup:
        return as_group(left) >> self

    def __repr__(self) -> str:
        """Return the op with the arguments that are not the defaults."""
        parameters = inspect.signature(type(self)).parameters.values()
        given = {p.name: (_plain(getattr(self, p.name, p.default)), p.default) for p in parameters}
        words = [
            f"{name}={getattr(value, '__name__', None) or reprlib.repr(value)}"
            for name, (value, default) in given.items()
            if value not in ({}, _plain(default))
        ]
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
        """Return the constructor's arguments as JSON values."""
        names = inspect.signature(type(self)).parameters
        return {name: _plain(getattr(self, name)) for name in names}

    @classmethod
    def from_config(
        cls,
        config: dict[str, Any],
        tables: Mapping[str, Chunk],
        functions: Mapping[str, Callable[..., Any]],
    ) -> Op:
        """Return the op, not fitted, that `get_config` and `learned_tables` describe.

        `functions` is {name: function}, as the caller of `Workflow.load` passes it.
        """
        return cls(**config)

    def unlearned(self, names: Sequence[str]) -> list[str]:
        """Return the input columns that the op still has to learn from."""
        return []

    def reset(self) -> None:
        """Forget what was learned."""

    def learned(self) -> dict[str, Any]:
        """Return what was learned and is small, as JSON values."""
        return {}

    def learned_tables(self) -> dict[str, Chunk]:
        """Return what was learned and is large, {name: table}; each is saved as a Parquet file."""
        return {}

    def restore(self, learned: dict[str, Any], tables: Mapping[str, Chunk]) -> None:
        """Set what was learned, as returned by `learned` and `learned_tables`."""

    def for_serving(self) -> Op:
        """Return the op for rows that it has not learned from, usually the op itself."""
        return self


def _plain(value: Any) -> Any:
    """Return a setting as a JSON value."""
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
    def transform_column(self, name: str, column: Any) -> Any:
        """Return a column transformed; of lists or vectors, it gets and returns all values, [n]."""

    def transform(self, chunk: Chunk) -> Chunk:
        """Return the columns transformed; lists and vectors keep their lengths."""
        result = {}
        for name, column in chunk.items():
            values = self.transform_column(name, flat_values(column))
            result[name] = with_flat_values(column, values)
        return Chunk(result)


class LearningOp(Op):
    """An op that learns from data.

    `partial` makes a state {key: state of a column} of some rows, `merge` combines states, and
    `finalize` takes the state of all rows. No bit of the result may depend on how rows were divided
    among states or on the order of merging.
    """

    @abstractmethod
    def partial(self, chunk: Chunk) -> dict[str, Any]:
        """Return the state of some rows; the op itself does not change."""

    @abstractmethod
    def merge_states(self, states: Sequence[Any]) -> Any:
        """Return the state of the rows of two or more states of one key."""

    def merge(self, *states: dict[str, Any]) -> dict[str, Any]:
        """Return the state of the rows of all states, in any order.

        Raises:
            TypeError: naming the column, if its states do not fit each other.
        """
        merged = {}
        for key in dict.fromkeys(key for state in states for key in state):
            known = [state[key] for state in states if key in state]
            try:
                merged[key] = known[0] if len(known) == 1 else self.merge_states(known)
            except TypeError as error:
                raise TypeError(self._wrong(key, str(error))) from error
        return merged

    @abstractmethod
    def finalize(self, state: dict[str, Any]) -> None:
        """Learn from the state of all rows; `transform` works from now on."""

    def learned_from(self, state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Chunk]]:
        """Return what the op learns from the state of all rows, for `restore` in another process.

        Returns:
            (`learned()`, `learned_tables()`); the op itself does not change.
        """
        op = copy.copy(self)
        op.finalize(state)
        return op.learned(), op.learned_tables()


class StatisticsOp(ColumnOp, LearningOp):
    """An op that learns a few numbers of each column, the `statistics`."""

    statistics: ClassVar[Sequence[str]]
    """Their names, in the order in which `statistics_of` returns them."""

    def __init__(self) -> None:
        self.reset()

    @abstractmethod
    def statistics_of(self, name: str, state: Any) -> Sequence[float] | None:
        """Return the statistics of a column for the state of all rows; None without a value."""

    def reset(self) -> None:
        """Forget what was learned."""
        self._learned: dict[str, dict[str, float]] = {name: {} for name in self.statistics}

    def unlearned(self, names: Sequence[str]) -> list[str]:
        """Return the columns whose statistics are not known."""
        return [name for name in names if name not in self._learned[self.statistics[0]]]

    def finalize(self, state: dict[str, Any]) -> None:
        """Set the statistics of each column."""
        learned = self.learned()  # copies: ops of several groups may share the dicts
        for name, part in state.items():
            found = self.statistics_of(name, part)
            if found is None:
                raise ValueError(self._wrong(name, "found no value. Put FillMissing before it."))
            for statistic, number in zip(self.statistics, found, strict=True):
                learned[statistic][name] = number
        self._learned = learned

    def learned(self) -> dict[str, Any]:
        """Return {statistic: {column: number}}."""
        return {statistic: dict(numbers) for statistic, numbers in self._learned.items()}

    def restore(self, learned: dict[str, Any], tables: Mapping[str, Chunk]) -> None:
        """Set the statistics."""
        for statistic in self.statistics:
            for name, number in learned[statistic].items():
                check_real(f"column {name!r}: {type(self).__name__}: {statistic}", number)
        self._learned = {statistic: dict(learned[statistic]) for statistic in self.statistics}


class SpillingOp(LearningOp):
    """A learning op whose states, `GroupSums`, go to files when they exceed the memory budget.

    `tutorlib.workflow` sorts, writes and merges the files. The op learns tables that hold a row per
    key, and finds a row's key in them by an index.
    """

    def merge_states(self, states: Sequence[GroupSums]) -> GroupSums:
        """Return the sums of all states."""
        return GroupSums.merged(states)

    def gathered(self, key: str, states: Iterable[GroupSums]) -> GroupSums | Iterable[GroupSums]:
        """Return the state for `finalize` of one key whose rows come from files.

        Args:
            key: of the states.
            states: in the order of their rows' keys. May be iterated several times, until
                `finalize` has returned.
        """
        return states

    @abstractmethod
    def learned_from(self, state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Chunk]]:
        """Return (small part, tables) of what the op learns from the state of all rows.

        It makes no index, so that a cluster's worker leaves that to the process that needs it.
        """

    def finalize(self, state: dict[str, Any]) -> None:
        """Learn the tables and make their indexes; a subclass overrides `learned_from` instead."""
        self.restore(*self.learned_from(state))

    def reset(self) -> None:
        """Forget what was learned."""
        self.restore({}, {})

    def learned_tables(self) -> dict[str, Chunk]:
        """Return {key: table of what was learned}."""
        return dict(self._tables)

    def restore(self, learned: dict[str, Any], tables: Mapping[str, Chunk]) -> None:
        """Set the tables and make their indexes."""
        self._tables = dict(tables)
        self._indexes = {key: self._index(key, table) for key, table in tables.items()}

    @abstractmethod
    def _index(self, key: str, table: Chunk) -> CombinationIndex:
        """Return the index of a table's keys."""

    def index_of(self, key: str) -> CombinationIndex:
        """Return the index that finds a row's key in the table of `key`."""
        return self._indexes[key]


class ColumnGroup:
    """Columns by name and the ops that they go through, in order: `["a", "b"] >> Op() >> Op()`.

    `group["a"]` or `group[["a", "b"]]` keeps some of the output columns. A group holds copies of
    its ops, so one op may be used in several groups.

    Args:
        names: columns of the data.
        ops: in order; none to return the columns as they are.

    Attributes:
        output_names: columns that the last op returns.

    Raises:
        ValueError: if there is no column or one twice, or an op's extra column is in the group.

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
            extra = (*op.extra_columns, *op.extra_fit_columns)
            twice = [name for name in extra if name in self.output_names]
            if twice:
                raise ValueError(
                    f"{type(op).__name__}: reads columns {twice} as the data has them, so they "
                    "cannot be in its group. Leave them out of the group."
                )
            self.output_names = op.output_names(self.output_names)

    @property
    def input_names(self) -> list[str]:
        """Columns of the data that `transform` needs, each once."""
        return list(dict.fromkeys([*self.names, *(n for op in self.ops for n in op.extra_columns)]))

    @property
    def fit_names(self) -> list[str]:
        """Columns of the data that learning needs, each once."""
        extra = (name for op in self.ops for name in op.extra_fit_columns)
        return list(dict.fromkeys([*self.input_names, *extra]))

    def __rshift__(self, op: object) -> ColumnGroup:
        if not isinstance(op, Op):
            if hasattr(type(op), "__rrshift__"):
                return NotImplemented  # a RowOp raises its own error
            raise TypeError(f"only an op can follow >>, got {op!r}. Did you forget the brackets?")
        return ColumnGroup(self.names, (*self.ops, copy.copy(op)))

    def __getitem__(self, names: str | Sequence[str]) -> ColumnGroup:
        return self >> Select([names] if isinstance(names, str) else list(names))

    def __repr__(self) -> str:
        return " >> ".join([f"[{shortened(map(repr, self.names))}]", *map(repr, self.ops)])

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return the output columns (role, dtype, cardinality) for these input columns."""
        columns = list(columns)
        for op in self.ops:
            columns = op.output_columns(columns)
        return columns

    def transform(self, chunk: Chunk, ops: int | None = None) -> Chunk:
        """Return the group's columns after the first `ops` of its ops, None for all.

        The chunk has the columns `input_names`.
        """
        data, chunk = chunk, chunk.select(self.names)
        for op in self.ops[:ops]:
            chunk = op.transform(chunk.with_columns(data.select(op.extra_columns)))
        return chunk

    def partial(self, chunk: Chunk, position: int) -> dict[str, Any]:
        """Return the state of the rows of `chunk` for the op at a position in `ops`.

        The ops before it must be fitted. The chunk has the columns `fit_names`.
        """
        op = self.ops[position]
        if not isinstance(op, LearningOp):
            raise TypeError(f"{op!r} has to learn, but is not a LearningOp")
        extra = chunk.select([*op.extra_columns, *op.extra_fit_columns])
        return op.partial(self.transform(chunk, position).with_columns(extra))


def as_group(columns: Any) -> ColumnGroup:
    """Return a name, a list of names or a group as a `ColumnGroup`."""
    if isinstance(columns, ColumnGroup):
        return columns
    return ColumnGroup([columns] if isinstance(columns, str) else columns)


class Select(Op):
    """Keeps the named columns, in their order; `group[names]` is short for `>> Select(names)`.

    Args:
        names: columns to keep.

    Raises:
        ValueError: if a column is not among those that come in.

    Example:
        >>> (["a", "b"] >> Select(["b"])).output_names
        ['b']
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)

    def transform(self, chunk: Chunk) -> Chunk:
        """Return the named columns."""
        return chunk.select(self.names)

    def output_names(self, names: Sequence[str]) -> list[str]:
        """Return the names to keep."""
        missing = [name for name in self.names if name not in names]
        if missing:
            raise ValueError(f"no columns {missing} to select; there are {list(names)}")
        return self.names

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return the columns to keep."""
        by_name = {column.name: column for column in columns}
        return [by_name[name] for name in self.names]
