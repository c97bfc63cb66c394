"""Op, ColumnOp, LearningOp, ColumnGroup: what every op gives, and how ops are chained.

Does not belong here: what an op does to values, reading files, the order of passes.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tutorlib.chunk import Array, Chunk, Ragged, Strings, array_namespace
from tutorlib.ops.columns import flat, parts_of, with_nulls
from tutorlib.schema import Column


class Op(ABC):
    """One step of preprocessing. See `tutorlib.ops` for what all ops hold to.

    A new op gives `transform`, or as a `ColumnOp` `transform_column`, and says through
    `output_names` and `output_columns` what comes out. Constructor arguments are kept under their
    own names; `get_config` reads them there.

    An op may read columns of the data beside those that come to it through its group. They are as
    the data has them, no op has touched them, and they do not come out. `transform` and `partial`
    find them in their chunk.
    """

    registry: ClassVar[dict[str, type[Op]]] = {}
    """{module and qualified name: class} of all subclasses; a saved Workflow is loaded from these
    classes alone, so that loading imports nothing. Of two with one name the later is kept, as in a
    notebook whose cell ran twice."""

    @property
    def extra_columns(self) -> Sequence[str]:
        """Columns of the data that `transform` and `partial` read beside those of the group."""
        return ()

    @property
    def extra_fit_columns(self) -> Sequence[str]:
        """Columns of the data that only `partial` reads beside those of the group."""
        return ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Op.registry[f"{cls.__module__}.{cls.__qualname__}"] = cls

    def __rrshift__(self, left: Any) -> ColumnGroup:
        return as_group(left) >> self

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @abstractmethod
    def transform(self, chunk: Chunk) -> Chunk:
        """Return what the chunk's columns become."""

    def output_names(self, names: Sequence[str]) -> list[str]:
        """Return the names of what comes out when columns of these names go in."""
        return list(names)

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return what comes out (role, dtype, cardinality) when these columns go in."""
        return list(columns)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments, as JSON can hold them."""
        names = inspect.signature(type(self)).parameters
        return {name: _plain(getattr(self, name)) for name in names}

    @classmethod
    def from_config(
        cls,
        config: dict[str, Any],
        tables: Mapping[str, Chunk],
        functions: Mapping[str, Callable[..., Any]],
    ) -> Op:
        """Return the op that `get_config` and `learned_tables` describe, not yet fitted."""
        return cls(**config)

    def unlearned(self, names: Sequence[str]) -> list[str]:
        """Return which of the columns that go in still have to be learned from: here none."""
        return []

    def reset(self) -> None:  # noqa: B027, most ops learn nothing
        """Forget what was learned."""

    def learned(self) -> dict[str, Any]:
        """Return the small part of what was learned, as JSON can hold it."""
        return {}

    def learned_tables(self) -> dict[str, Chunk]:
        """Return the large part of what was learned, to be kept as Parquet files."""
        return {}

    def restore(self, learned: dict[str, Any], tables: Mapping[str, Chunk]) -> None:  # noqa: B027
        """Take back what `learned` and `learned_tables` gave."""

    def for_serving(self) -> Op:
        """Return the op as rows need it that nothing was learned from: mostly itself."""
        return self

    def _wrong(self, name: str, rule: str) -> str:
        return f"column {name!r}: {type(self).__name__} {rule}"

    def _numbers(self, name: str, column: Any) -> tuple[Array, Array | None]:
        """Return (values, valid) of a column of numbers.

        Raises:
            TypeError: if it holds texts.
        """
        values, valid = parts_of(column)
        if isinstance(values, Strings):
            raise TypeError(
                self._wrong(name, "takes numbers, got strings. Use Categorify or HashBucket.")
            )
        return values, valid

    def _floats(self, name: str, column: Any) -> Array:
        """Return a column of numbers as float64, NaN where null; may share the column's memory."""
        values, valid = self._numbers(name, column)
        floats = values.astype(np.float64, copy=False)
        return floats if valid is None else with_nulls(floats.copy(), valid)

    def _check_size(self, name: str, values: Array) -> None:
        """Raise ValueError unless float64 values without NaN are below 2**400 in magnitude."""
        sizes = array_namespace(values).abs(values)
        if len(values) and not float(sizes.max()) < 2.0**400:
            worst = float(values[int(sizes.argmax())])
            raise ValueError(
                self._wrong(name, f"takes values below 2**400, got {worst}. Put Clip before it.")
            )

    def _keys(self, name: str, column: Any) -> tuple[Any, Array | None]:
        """Return (values, valid) of a column of integers or texts.

        Raises:
            TypeError: if it holds floating-point numbers.
        """
        values, valid = parts_of(column)
        if not isinstance(values, Strings) and values.dtype.kind not in "iub":
            raise TypeError(
                self._wrong(
                    name,
                    f"takes integers or strings, got {values.dtype}. In pandas, integers with "
                    "missing values are of dtype 'Int64'.",
                )
            )
        return values, valid

    def _keys_to_learn(self, name: str, column: Any) -> tuple[Any, Array | None]:
        """Return (values, valid) of a column of texts, or of integers that int64 can hold.

        Raises:
            TypeError: if it holds floating-point numbers.
            ValueError: if an integer is too large.
        """
        values, valid = self._keys(name, column)
        if not isinstance(values, Strings) and values.dtype == np.uint64 and len(values):
            largest = int(values.max())
            if largest >= 2**63:
                raise ValueError(self._wrong(name, f"takes integers below 2**63, got {largest}"))
        return values, valid


def _plain(value: Any) -> Any:
    """Return a setting as JSON can hold it."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def name_to_save(function: object, op: str) -> str:
    """Return the name under which a user's function is saved; never its code.

    Raises:
        ValueError: if it has none.
    """
    name = getattr(function, "__name__", "<lambda>")
    if name == "<lambda>":
        raise ValueError(
            f"{op}: a function without a name cannot be saved. Write `def name(x): ...` and pass "
            f"{op}(name)."
        )
    return name


def function_called(name: str, functions: Mapping[str, Callable[..., Any]], op: str) -> Any:
    """Return the user's function of a saved op.

    Raises:
        ValueError: if the caller has not passed it.
    """
    if name not in functions:
        raise ValueError(
            f"{op}: the saved workflow needs the function {name!r}, which is never saved. Pass it: "
            f"Workflow.load(folder, functions={{{name!r}: {name}}})."
        )
    return functions[name]


class ColumnOp(Op):
    """An op that takes each column by itself, and of lists their values."""

    @abstractmethod
    def transform_column(self, name: str, column: Any) -> Any:
        """Return the column transformed; it holds no lists, `transform` has taken them off."""

    def transform(self, chunk: Chunk) -> Chunk:
        """Return the chunk's columns transformed."""
        result = {}
        for name, column in chunk.items():
            values = self.transform_column(name, flat(column))
            ragged = isinstance(column, Ragged)
            result[name] = Ragged(values, column.offsets) if ragged else values
        return Chunk(result)


class LearningOp(Op):
    """An op that learns from data: mergeable states, one a column, then `finalize`."""

    @abstractmethod
    def partial(self, chunk: Chunk) -> dict[str, Any]:
        """Return the state {key: state} of some rows."""

    @abstractmethod
    def merge_states(self, states: Sequence[Any]) -> Any:
        """Return the state of the rows of all, two or more, states of one key."""

    def merge(self, *states: dict[str, Any]) -> dict[str, Any]:
        """Return the state of the rows of all; the order of merging never matters."""
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
        """Take the state of all rows; the op can transform from now on."""


class SpillingOp(LearningOp):
    """A learning op whose states may be kept in files when they take too much memory.

    A state is then a table of keys, each once; `tutorlib.workflow.spill` sorts, writes and
    merges them.
    """

    @abstractmethod
    def to_table(self, state: Any) -> pa.Table:
        """Return a state as rows, in any order: columns key_0, key_1, ..., then all others.

        Keys are integers or texts, perhaps with nulls; the other columns are integers or floats, of
        which a state may have some that another has not, if they are zeros there.
        """

    @abstractmethod
    def from_table(self, table: pa.Table) -> Any:
        """Return the state that `to_table` gave."""

    @abstractmethod
    def gathered(self, key: str, states: Iterable[Any]) -> Any:
        """Return a state for `finalize` of those of a key whose rows, in order, come from files.

        Args:
            key: of the states.
            states: each behind the one before in the order of the keys; may be gone through several
                times, until `finalize` has ended.
        """


class ColumnGroup:
    """Columns by name, and the ops that they go through, in order.

    Made by `["a", "b"] >> Op() >> Op()`. `group["a"]` or `group[["a", "b"]]` keeps only some of
    what comes out. Ops are copied, so that one op may stand in several groups.

    Raises:
        ValueError: if there is no column, or one twice, or an op's extra column
            stands in the group too.

    Example:
        >>> from tutorlib.ops import Clip, FillMissing
        >>> group = ["x"] >> FillMissing(0) >> Clip(min_value=0)
        >>> group
        ['x'] >> FillMissing() >> Clip()
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
            twice = [
                n for n in (*op.extra_columns, *op.extra_fit_columns) if n in self.output_names
            ]
            if twice:
                raise ValueError(
                    f"{type(op).__name__}: columns {twice} are read beside the group, as the data "
                    "has them, and cannot stand in the group too. Leave them out of the group."
                )
            self.output_names = op.output_names(self.output_names)

    @property
    def input_names(self) -> list[str]:
        """Columns of the data that `transform` needs, each once."""
        return list(dict.fromkeys([*self.names, *(n for op in self.ops for n in op.extra_columns)]))

    @property
    def fit_names(self) -> list[str]:
        """Columns of the data that learning needs, each once."""
        extra_columns = (name for op in self.ops for name in op.extra_fit_columns)
        return list(dict.fromkeys([*self.input_names, *extra_columns]))

    def __rshift__(self, op: object) -> ColumnGroup:
        if not isinstance(op, Op):
            if hasattr(type(op), "__rrshift__"):
                return NotImplemented  # it has its own word to say
            raise TypeError(f"only an op can follow >>, got {op!r}. Did you forget the brackets?")
        return ColumnGroup(self.names, (*self.ops, copy.copy(op)))

    def __getitem__(self, names: str | Sequence[str]) -> ColumnGroup:
        return self >> Select([names] if isinstance(names, str) else list(names))

    def __repr__(self) -> str:
        return " >> ".join([repr(list(self.names)), *map(repr, self.ops)])

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return what comes out when the given columns go in."""
        columns = list(columns)
        for op in self.ops:
            columns = op.output_columns(columns)
        return columns

    def transform(self, chunk: Chunk, ops: int | None = None) -> Chunk:
        """Return the group's columns of `chunk` after all, or the first `ops`, of its ops."""
        data, chunk = chunk, chunk.select(self.names)
        for op in self.ops[:ops]:
            chunk = op.transform(chunk.with_columns(data.select(op.extra_columns)))
        return chunk

    def partial(self, chunk: Chunk, place: int) -> dict[str, Any]:
        """Return what op number `place` learns from the rows of `chunk`, a state to be merged.

        Args:
            chunk: columns of the data.
            place: number of the op, 0 for the first.

        Raises:
            TypeError: if the op does not learn.
        """
        op = self.ops[place]
        if not isinstance(op, LearningOp):
            raise TypeError(f"{op!r} has to learn, but is no LearningOp")
        extra_columns = chunk.select([*op.extra_columns, *op.extra_fit_columns])
        return op.partial(self.transform(chunk, place).with_columns(extra_columns))


def as_group(columns: Any) -> ColumnGroup:
    """Return a name, a list of names or a group as a `ColumnGroup`."""
    if isinstance(columns, ColumnGroup):
        return columns
    return ColumnGroup([columns] if isinstance(columns, str) else columns)


class Select(Op):
    """Keeps only the named columns; `group[names]` writes it shorter.

    Args:
        names: columns to keep, in this order.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)

    def transform(self, chunk: Chunk) -> Chunk:
        """Return the named columns."""
        return chunk.select(self.names)

    def output_names(self, names: Sequence[str]) -> list[str]:
        """Return the kept names."""
        missing = [name for name in self.names if name not in names]
        if missing:
            raise ValueError(f"no columns {missing} to select; there are {list(names)}")
        return self.names

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return the kept columns."""
        by_name = {column.name: column for column in columns}
        return [by_name[name] for name in self.names]


class Rename(Op):
    """Gives columns other names.

    Args:
        names: {old name: new name}; other columns keep theirs.
        postfix: is added to the names that are not in `names`.

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
