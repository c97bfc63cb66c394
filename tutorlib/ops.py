"""Ops: what can be done to columns before they reach a model.

An op takes a `Chunk` and returns a `Chunk`; one that learns does so through mergeable states:
`partial(chunk)` on any part of the data, `merge(a, b)` in any order, `finalize(state)` once. The
result is the same to the last bit however the data was cut and merged. Everything that touches rows
is written once, for NumPy and CuPy, through the array's own namespace. `["a", "b"] >> Op() >> Op()`
makes a `ColumnGroup`. Does not belong here: reading files, the order of passes, saving
(`workflow.py`).

Conventions, for every op: a list column (`Ragged`) is transformed value by value and keeps its
lists; numbers computed here come out as float32 unless `dtype` says otherwise; an error names the
op and the column.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tutorlib.chunk import (
    Array,
    Chunk,
    Masked,
    Ragged,
    Strings,
    array_namespace,
    column_from_arrow,
    column_to_arrow,
    take,
    to_host,
    to_namespace,
)
from tutorlib.hashing import KeyIndex, blocks_of, hash_values, mix, to_buckets
from tutorlib.schema import Column

PADDING_ID, NULL_ID, FIRST_OOV_ID = 0, 1, 2

# ---------------------------------------------------------------------------------------- columns


def column_type(column: Any) -> tuple[str, bool]:
    """Return (NumPy name of one value or "string", whether a row holds a list) of a column."""
    if isinstance(column, Ragged):
        return column_type(column.values)[0], True
    values = _parts(column)[0]
    return ("string" if isinstance(values, Strings) else values.dtype.name), False


def role_of(dtype: str) -> str:
    """Return the role that a type suggests: "continuous" for floating point, else categorical."""
    return "continuous" if dtype.startswith("float") else "categorical"


def _parts(column: Any) -> tuple[Any, Array | None]:
    """Return (values, valid) of a column that holds no lists; valid is None without nulls."""
    return (column.values, column.valid) if isinstance(column, Masked) else (column, None)


def _flat(column: Any) -> Any:
    return column.values if isinstance(column, Ragged) else column


def _with_nulls(values: Any, valid: Array | None) -> Any:
    """Return values and their validity as the chunk has them: NaN in floats, else `Masked`."""
    if valid is None or bool(valid.all()):
        return values
    if not isinstance(values, Strings) and values.dtype.kind == "f":
        values[~valid] = np.nan
        return values
    return Masked(values, valid)


def _per_column(setting: Any, name: str, default: Any = None) -> Any:
    """Return the setting of a column where a mapping by name or one setting for all was given."""
    return setting.get(name, default) if isinstance(setting, Mapping) else setting


def _float_dtype(dtype: Any, op: str) -> str:
    name = np.dtype(dtype).name
    if name not in ("float16", "float32", "float64"):
        raise ValueError(f"{op}: dtype must be float16, float32 or float64, got {name}")
    return name


class Op(ABC):
    """One step of preprocessing. See the module for what all ops hold to.

    A new op gives `transform_column`, or `transform` where columns depend on each other, and says
    through `output_names` and `output_columns` what comes out. Constructor arguments are kept under
    their own names; `get_config` reads them there.
    """

    registry: ClassVar[dict[str, type[Op]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Op.registry[cls.__name__] = cls

    def __rrshift__(self, left: Any) -> ColumnGroup:
        return as_group(left) >> self

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @abstractmethod
    def transform_column(self, name: str, column: Any) -> Any:
        """Return the column transformed; it holds no lists, `transform` has taken them off."""

    def transform(self, chunk: Chunk) -> Chunk:
        """Return the chunk's columns transformed."""
        result = {}
        for name, column in chunk.items():
            values = self.transform_column(name, _flat(column))
            ragged = isinstance(column, Ragged)
            result[name] = Ragged(values, column.offsets) if ragged else values
        return Chunk(result)

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

    def _wrong(self, name: str, rule: str) -> str:
        return f"column {name!r}: {type(self).__name__} {rule}"

    def _numbers(self, name: str, column: Any) -> tuple[Array, Array | None]:
        """Return (values, valid) of a column of numbers.

        Raises:
            TypeError: if it holds texts.
        """
        values, valid = _parts(column)
        if isinstance(values, Strings):
            raise TypeError(
                self._wrong(name, "takes numbers, got strings. Use Categorify or HashBucket.")
            )
        return values, valid

    def _floats(self, name: str, column: Any) -> Array:
        """Return a column of numbers as float64, NaN where null; may share the column's memory."""
        values, valid = self._numbers(name, column)
        floats = values.astype(np.float64, copy=False)
        return floats if valid is None else _with_nulls(floats.copy(), valid)

    def _keys(self, name: str, column: Any) -> tuple[Any, Array | None]:
        """Return (values, valid) of a column of integers or texts.

        Raises:
            TypeError: if it holds floating-point numbers.
        """
        values, valid = _parts(column)
        if not isinstance(values, Strings) and values.dtype.kind not in "iub":
            raise TypeError(
                self._wrong(
                    name,
                    f"takes integers or strings, got {values.dtype}. In pandas, integers with "
                    "missing values are of dtype 'Int64'.",
                )
            )
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


class LearningOp(Op):
    """An op that learns from data: mergeable states, one a column, then `finalize`."""

    @abstractmethod
    def partial(self, chunk: Chunk) -> dict[str, Any]:
        """Return the state {key: state} of some rows."""

    @abstractmethod
    def merge_states(self, a: Any, b: Any) -> Any:
        """Return the state of the rows of two states of one key."""

    def merge(self, a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
        """Return the state of the rows of both; the order of merging never matters."""
        merged = {**a, **b}
        for key in a.keys() & b.keys():
            merged[key] = self.merge_states(a[key], b[key])
        return merged

    @abstractmethod
    def finalize(self, state: dict[str, Any]) -> None:
        """Take the state of all rows; the op can transform from now on."""


# ------------------------------------------------------------------------------- groups of columns


class ColumnGroup:
    """Columns by name, and the ops that they go through, in order.

    Made by `["a", "b"] >> Op() >> Op()`. `group["a"]` or `group[["a", "b"]]` keeps only some of
    what comes out. Ops are copied, so that one op may stand in several groups.

    Example:
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
        self.output_names = self._follow(lambda op, names: op.output_names(names), self.names)

    def _follow(self, step: Callable[[Op, Any], Any], start: Any) -> Any:
        for op in self.ops:
            start = step(op, start)
        return start

    def __rshift__(self, op: Op) -> ColumnGroup:
        if not isinstance(op, Op):
            raise TypeError(f"only an op can follow >>, got {op!r}. Did you forget the brackets?")
        return ColumnGroup(self.names, (*self.ops, copy.copy(op)))

    def __getitem__(self, names: str | Sequence[str]) -> ColumnGroup:
        return self >> Select([names] if isinstance(names, str) else list(names))

    def __repr__(self) -> str:
        return " >> ".join([repr(list(self.names)), *map(repr, self.ops)])

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return what comes out when the given columns go in."""
        return self._follow(lambda op, columns: op.output_columns(columns), list(columns))

    def transform(self, chunk: Chunk, ops: int | None = None) -> Chunk:
        """Return the group's columns of `chunk` after all, or the first `ops`, of its ops."""
        chunk = chunk.select(self.names)
        for op in self.ops[:ops]:
            chunk = op.transform(chunk)
        return chunk


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

    def transform_column(self, name: str, column: Any) -> Any:
        """Return the column as it is."""
        return column

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

    def transform_column(self, name: str, column: Any) -> Any:
        """Return the column as it is."""
        return column

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


# ------------------------------------------------------------------------------------- categorical


def _as_ids(columns: Sequence[Column], cardinality: Callable[[str], int]) -> list[Column]:
    result = []
    for column in columns:
        size = cardinality(column.name)
        changes = {"role": "categorical", "dtype": _id_dtype(size), "cardinality": size}
        result.append(dataclasses.replace(column, **changes))
    return result


def _id_dtype(cardinality: int) -> str:
    return "int32" if cardinality <= 2**31 else "int64"


def _check_buckets(num_buckets: Any, op: str) -> int:
    if not isinstance(num_buckets, int | np.integer) or not 1 <= num_buckets < 2**31:
        raise ValueError(f"{op}: num_buckets must be an integer in [1, 2**31), got {num_buckets!r}")
    return int(num_buckets)


class HashBucket(Op):
    """Maps integers or texts to `num_buckets` ids by their hash; nothing is learned.

    Different values may share a bucket: with b buckets and v values, a value is alone in its bucket
    with probability about exp(-v / b). A null goes to bucket 0, which it shares with other values.

    Args:
        num_buckets: buckets of each column, or {name: buckets}; 1 to 2**31 - 1.

    Returns (from transform): int32 ids in [0, num_buckets).

    Example:
        >>> group = ["C1"] >> HashBucket(1000)
        >>> group.transform(Chunk({"C1": np.array([0, 1, 2, 0])}))["C1"].tolist()
        [883, 566, 591, 883]

    Source: `hash_integers`, `hash_strings`, `to_buckets`.
    """

    def __init__(self, num_buckets: int | Mapping[str, int]) -> None:
        many = isinstance(num_buckets, Mapping)
        for buckets in num_buckets.values() if many else [num_buckets]:
            _check_buckets(buckets, "HashBucket")
        self.num_buckets = num_buckets

    def transform_column(self, name: str, column: Any) -> Array:
        """Return the bucket of each value."""
        values, valid = self._keys(name, column)
        ids = to_buckets(hash_values(values), _per_column(self.num_buckets, name))
        if valid is not None:
            ids[~valid] = 0
        return ids

    def output_names(self, names: Sequence[str]) -> list[str]:
        """Return the names as they are."""
        missing = [name for name in names if _per_column(self.num_buckets, name) is None]
        if missing:
            raise ValueError(f"HashBucket: num_buckets names no buckets for columns {missing}")
        return list(names)

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return categorical columns with `num_buckets` as cardinality."""
        return _as_ids(columns, lambda name: int(_per_column(self.num_buckets, name)))


class HashedCross(Op):
    """Makes one column out of several: the bucket of the combination of their values.

    Args:
        num_buckets: 1 to 2**31 - 1.
        name: of the new column; None joins the names by "_X_".

    Returns (from transform): one column, int32 ids in [0, num_buckets). Nulls take part as a value
    of their own. The order of the columns matters.

    Example:
        >>> group = ["a", "b"] >> HashedCross(100)
        >>> chunk = group.transform(Chunk({"a": np.array([1, 2]), "b": np.array([2, 1])}))
        >>> chunk["a_X_b"].tolist()
        [84, 9]
    """

    def __init__(self, num_buckets: int, name: str | None = None) -> None:
        self.num_buckets = _check_buckets(num_buckets, "HashedCross")
        self.name = name

    def transform_column(self, name: str, column: Any) -> Array:
        """Return the hash of each value, uint64."""
        values, valid = self._keys(name, column)
        hashes = hash_values(values)
        if valid is not None:
            hashes[~valid] = 0
        return hashes

    def transform(self, chunk: Chunk) -> Chunk:
        """Return the one crossed column."""
        crossed = None
        for name, column in chunk.items():
            if isinstance(column, Ragged):
                raise TypeError(self._wrong(name, "takes one value a row, got lists"))
            hashes = self.transform_column(name, column)
            crossed = hashes if crossed is None else crossed ^ hashes
            mix(crossed)
        (name,) = self.output_names(chunk.names)
        return Chunk({name: to_buckets(crossed, self.num_buckets)})

    def output_names(self, names: Sequence[str]) -> list[str]:
        """Return the one new name."""
        return [self.name or "_X_".join(names)]

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return the one new column."""
        (name,) = self.output_names([column.name for column in columns])
        column = Column(name, "categorical", multi_hot=False)
        return _as_ids([column], lambda _: self.num_buckets)


def _count_integers(values: Array) -> tuple[np.ndarray, np.ndarray]:
    """Return (different values, rising; how often each stands there)."""
    xp = array_namespace(values)
    ordered = xp.sort(values)
    starts = xp.flatnonzero(_run_starts(ordered))
    counts = xp.diff(xp.append(starts, len(ordered)))
    return to_host(ordered[starts]).astype(np.int64), to_host(counts)


def _run_starts(ordered: Array) -> Array:
    """Return bool [n]: where a sorted array has a value that differs from the one before."""
    xp = array_namespace(ordered)
    starts = xp.ones(len(ordered), dtype=bool)
    xp.not_equal(ordered[1:], ordered[:-1], out=starts[1:])
    return starts


class Categorify(LearningOp):
    """Maps integers or texts to ids 0, 1, 2, ...: the most frequent value gets the lowest id.

    The ids of a column, whose number is its cardinality:

    * 0: padding, never given to a value;
    * 1: null;
    * 2 to 1 + num_oov_buckets: out of vocabulary, by hash if there are several;
    * then the values by falling frequency, equal ones by value (integers as numbers, texts by
      their UTF-8 bytes), so that every run and every machine agrees.

    On one core, learning from 1 M integers takes 4 ms where few differ and 0.3 s where most do;
    mapping them takes 10 ms against a small vocabulary and 90 ms against a million values.

    Args:
        freq_threshold: values that stand fewer times than this are out of vocabulary; or
            {name: threshold}.
        max_size: largest cardinality, all ids counted; the rarest values are out of vocabulary.
            None for no limit; or {name: size}.
        num_oov_buckets: ids for values out of vocabulary, at least 1.
        vocabularies: {name: values in the order of their ids} of columns that shall not learn.
        joint: whether the columns share one vocabulary (user and friend, film and sequel).

    Returns (from transform): int32 ids, int64 where the cardinality is beyond 2**31.

    Raises:
        TypeError: for floating-point columns, or if texts come where integers were learned.

    Example:
        >>> op = Categorify()
        >>> chunk = Chunk({"C1": np.array([7, 5, 7, 9])})
        >>> op.finalize(op.partial(chunk))
        >>> op.transform(chunk)["C1"].tolist(), op.cardinality("C1")
        ([3, 4, 3, 5], 6)
        >>> op.transform(Chunk({"C1": np.array([8])}))["C1"].tolist()  # out of vocabulary
        [2]
    """

    def __init__(
        self,
        freq_threshold: int | Mapping[str, int] = 0,
        max_size: int | Mapping[str, int] | None = None,
        num_oov_buckets: int = 1,
        vocabularies: Mapping[str, Any] | None = None,
        joint: bool = False,
    ) -> None:
        if num_oov_buckets < 1:
            raise ValueError(
                f"Categorify: num_oov_buckets must be at least 1, got {num_oov_buckets}. "
                "A value that was not learned needs an id."
            )
        smallest = FIRST_OOV_ID + num_oov_buckets
        for size in max_size.values() if isinstance(max_size, Mapping) else [max_size]:
            if size is not None and size < smallest:
                raise ValueError(
                    f"Categorify: max_size must be at least {smallest} (padding, null and "
                    f"{num_oov_buckets} out of vocabulary), got {size}"
                )
        by_name = [v for v in (vocabularies, freq_threshold, max_size) if isinstance(v, Mapping)]
        if joint and by_name:
            raise ValueError(f"Categorify: joint=True takes no settings by column, got {by_name}")
        self.freq_threshold, self.max_size = freq_threshold, max_size
        self.num_oov_buckets, self.joint = num_oov_buckets, joint
        self.vocabularies = {n: _vocabulary(n, v) for n, v in (vocabularies or {}).items()}
        self.reset()

    def reset(self) -> None:
        """Forget what was learned, but not the vocabularies given."""
        self.restore({}, {n: Chunk({"value": v}) for n, v in self.vocabularies.items()})

    def unlearned(self, names: Sequence[str]) -> list[str]:
        """Return the columns without a vocabulary."""
        return [name for name in names if self._key(name) not in self._tables]

    def _key(self, name: str) -> str:
        return "joint" if self.joint else name

    def partial(self, chunk: Chunk) -> dict[str, Any]:
        """Return {column, or "joint": (different values, counts)}."""
        state: dict[str, Any] = {}
        for name, column in chunk.items():
            if name in self.vocabularies:
                continue
            values, valid = self._keys(name, _flat(column))
            if valid is not None:
                values = take(values, array_namespace(valid).flatnonzero(valid))
            if isinstance(values, Strings):
                counted = pc.value_counts(column_to_arrow(values))
                counts = counted.field("counts").to_numpy().astype(np.int64)
                found = {self._key(name): (counted.field("values"), counts)}
            else:
                found = {self._key(name): _count_integers(self._signed(name, values))}
            state = self.merge(state, found)
        return state

    def _signed(self, name: str, values: Array) -> Array:
        if values.dtype == np.uint64 and len(values) and int(values.max()) >= 2**63:
            raise ValueError(
                self._wrong(name, f"takes integers below 2**63, got {int(values.max())}")
            )
        return values

    def merge_states(self, a: Any, b: Any) -> Any:
        """Return the values of both with their counts added."""
        if isinstance(a[0], np.ndarray) != isinstance(b[0], np.ndarray):
            raise TypeError("Categorify: a vocabulary cannot hold both integers and strings")
        counts = np.concatenate([a[1], b[1]])
        if not isinstance(a[0], np.ndarray):
            table = pa.table({"value": pa.concat_arrays([a[0], b[0]]), "n": counts})
            table = table.group_by("value", use_threads=False).aggregate([("n", "sum")])
            return table["value"].combine_chunks(), table["n_sum"].to_numpy()
        values = np.concatenate([a[0], b[0]])
        order = np.argsort(values, kind="stable")  # two sorted runs: a merge, not a sort
        values = values[order]
        starts = np.flatnonzero(_run_starts(values))
        return values[starts], np.add.reduceat(counts[order], starts) if len(starts) else counts

    def finalize(self, state: dict[str, Any]) -> None:
        """Order the values and make the vocabularies."""
        tables = dict(self._tables)
        for key, (values, counts) in state.items():
            kept = np.flatnonzero(counts >= _per_column(self.freq_threshold, key, 0))
            if not isinstance(values, np.ndarray):  # integers have come in order
                values = values.take(pa.array(kept))
                by_value = pc.array_sort_indices(values).to_numpy()
                values, kept = values.take(pa.array(by_value)), kept[by_value]
            else:
                values = values[kept]
            order = np.argsort(-counts[kept], kind="stable")
            limit = _per_column(self.max_size, key)
            if limit is not None:
                order = order[: limit - FIRST_OOV_ID - self.num_oov_buckets]
            values = (
                values[order] if isinstance(values, np.ndarray) else values.take(pa.array(order))
            )
            tables[key] = Chunk({"value": _vocabulary(key, values), "count": counts[kept[order]]})
        self.restore({}, tables)

    def vocabulary(self, name: str) -> list[Any]:
        """Return the values of a column in the order of their ids."""
        return self._tables[self._key(name)]["value"].tolist()

    def cardinality(self, name: str) -> int:
        """Return the number of ids of a column: ids lie in [0, cardinality)."""
        return FIRST_OOV_ID + self.num_oov_buckets + self._tables[self._key(name)].num_rows

    def transform_column(self, name: str, column: Any) -> Array:
        """Return the id of each value."""
        values, valid = self._keys(name, column)
        index = self._indexes[self._key(name)]
        if isinstance(values, Strings) != isinstance(index.keys, Strings):
            kinds = [
                "strings" if isinstance(v, Strings) else "integers" for v in (index.keys, values)
            ]
            raise TypeError(self._wrong(name, f"knows {kinds[0]}, got {kinds[1]}"))
        found = index.find(values)
        ids = found.astype(_id_dtype(self.cardinality(name)), copy=False)
        ids += FIRST_OOV_ID + self.num_oov_buckets - 1  # not found is 0: the last bucket
        if self.num_oov_buckets > 1:
            rows = array_namespace(ids).flatnonzero(ids == FIRST_OOV_ID + self.num_oov_buckets - 1)
            hashes = hash_values(take(values, rows))
            ids[rows] = to_buckets(hashes, self.num_oov_buckets) + FIRST_OOV_ID
        if valid is not None:
            ids[~valid] = NULL_ID
        return ids

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return categorical columns with the cardinalities learned."""
        return _as_ids(columns, self.cardinality)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments; of the vocabularies given, the names."""
        return {**super().get_config(), "vocabularies": list(self.vocabularies)}

    @classmethod
    def from_config(cls, config: dict[str, Any], tables: Any, functions: Any) -> Op:
        """Return the op, with the vocabularies that were given."""
        given = {name: tables[name]["value"] for name in config["vocabularies"]}
        return cls(**{**config, "vocabularies": given})

    def learned_tables(self) -> dict[str, Chunk]:
        """Return {column: values in the order of their ids, and how often each stood there}."""
        return dict(self._tables)

    def restore(self, learned: dict[str, Any], tables: Mapping[str, Chunk]) -> None:
        """Take the vocabularies back."""
        self._tables = dict(tables)
        self._indexes = {name: _index(name, table) for name, table in tables.items()}


def _index(name: str, table: Chunk) -> KeyIndex:
    try:
        return KeyIndex(table["value"])
    except ValueError as error:
        raise ValueError(f"column {name!r}: Categorify: vocabulary: {error}") from error


def _vocabulary(name: str, values: Any) -> Any:
    """Return a vocabulary given by the user as int64 array or `Strings`."""
    if isinstance(values, Strings):
        return values
    keys = column_from_arrow(values if isinstance(values, pa.Array) else pa.array(values))
    if isinstance(keys, Strings) or (isinstance(keys, np.ndarray) and keys.dtype.kind in "iu"):
        return keys
    raise TypeError(
        f"column {name!r}: Categorify: a vocabulary holds integers or strings and no null, got "
        f"{'nulls' if isinstance(keys, Masked) else column_type(keys)[0]}"
    )


class Bucketize(Op):
    """Maps numbers to the interval that they fall into.

    Args:
        boundaries: rising numbers, or {name: numbers}; k of them make k + 1 intervals, and a value
            that equals a boundary belongs to the upper one.

    Returns (from transform): int32 ids. As in Categorify 0 is padding and 1 is null; the intervals
    follow from 2. Cardinality k + 3.

    Example:
        >>> group = ["age"] >> Bucketize([18, 65])
        >>> group.transform(Chunk({"age": np.array([3.0, 18, 99, np.nan])}))["age"].tolist()
        [2, 3, 4, 1]
    """

    def __init__(self, boundaries: Sequence[float] | Mapping[str, Sequence[float]]) -> None:
        many = isinstance(boundaries, Mapping)
        for numbers in boundaries.values() if many else [boundaries]:
            if len(numbers) < 1 or not np.all(np.diff(np.asarray(numbers, np.float64)) > 0):
                raise ValueError(f"Bucketize: boundaries must rise, got {list(numbers)}")
        self.boundaries = boundaries

    def transform_column(self, name: str, column: Any) -> Array:
        """Return the id of each value's interval."""
        values = self._floats(name, column)
        xp = array_namespace(values)
        edges = xp.asarray(_per_column(self.boundaries, name), dtype=np.float64)
        ids = xp.searchsorted(edges, values, side="right").astype(np.int32)
        ids += 2
        ids[xp.isnan(values)] = NULL_ID
        return ids

    def output_names(self, names: Sequence[str]) -> list[str]:
        """Return the names as they are."""
        missing = [name for name in names if _per_column(self.boundaries, name) is None]
        if missing:
            raise ValueError(f"Bucketize: boundaries holds nothing for columns {missing}")
        return list(names)

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return categorical columns of k + 3 ids."""
        return _as_ids(columns, lambda name: len(_per_column(self.boundaries, name)) + 3)


# -------------------------------------------------------------------------------------- continuous


def _as_floats(columns: Sequence[Column], dtype: str) -> list[Column]:
    changes = {"role": "continuous", "dtype": dtype, "cardinality": None}
    return [dataclasses.replace(column, **changes) for column in columns]


class FillMissing(Op):
    """Puts a value where there is none: at nulls, and at NaN.

    The dtype stays: it can stand before Categorify as well as before LogOp.

    Args:
        fill_value: a number for numbers, a text for texts.
        add_binary_cols: whether to add a float32 column `{name}_filled` after the others: 1.0 where
            a value was missing. It goes through the ops that follow, like any column.

    Raises:
        TypeError, ValueError: if the column cannot hold `fill_value`.

    Example:
        >>> group = ["x"] >> FillMissing(-1.0, add_binary_cols=True)
        >>> chunk = group.transform(Chunk({"x": np.array([np.nan, 2.0])}))
        >>> chunk["x"].tolist(), chunk["x_filled"].tolist()
        ([-1.0, 2.0], [1.0, 0.0])
    """

    def __init__(self, fill_value: float | str = 0, add_binary_cols: bool = False) -> None:
        self.fill_value = fill_value
        self.add_binary_cols = add_binary_cols

    def transform_column(self, name: str, column: Any) -> Any:
        """Return the column without nulls."""
        values, valid = _parts(column)
        if isinstance(values, Strings) != isinstance(self.fill_value, str):
            rule = f"cannot put {self.fill_value!r} into a column of {column_type(column)[0]}"
            raise TypeError(self._wrong(name, rule))
        if isinstance(values, Strings):
            if valid is None:
                return values
            filled = pc.fill_null(column_to_arrow(column), self.fill_value)
            return column_from_arrow(filled)
        xp = array_namespace(values)
        missing = xp.isnan(values) if valid is None and values.dtype.kind == "f" else None
        missing = ~valid if valid is not None else missing
        if missing is None:
            return values
        return xp.where(missing, self._fill(name, values.dtype), values)

    def _fill(self, name: str, dtype: np.dtype) -> Any:
        fill = self.fill_value
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            if fill != int(fill) or not limits.min <= fill <= limits.max:
                raise ValueError(self._wrong(name, f"cannot put {fill} into a column of {dtype}"))
        return dtype.type(fill)

    def transform(self, chunk: Chunk) -> Chunk:
        """Return the columns filled, and their indicators if wished."""
        filled = super().transform(chunk)
        if not self.add_binary_cols:
            return filled
        return filled.with_columns({f"{n}_filled": self._missing(n, c) for n, c in chunk.items()})

    def _missing(self, name: str, column: Any) -> Array:
        if isinstance(column, Ragged):
            raise TypeError(self._wrong(name, "has no add_binary_cols for lists"))
        values, valid = _parts(column)
        if valid is not None:
            return (~valid).astype(np.float32)
        if isinstance(values, Strings):
            return array_namespace(values.offsets).zeros(len(values), dtype=np.float32)
        return array_namespace(values).isnan(values).astype(np.float32)

    def output_names(self, names: Sequence[str]) -> list[str]:
        """Return the names, and those of the indicators."""
        return [*names, *(f"{n}_filled" for n in names)] if self.add_binary_cols else list(names)

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return the columns, and the indicators as continuous ones."""
        if not self.add_binary_cols:
            return list(columns)
        added = [Column(f"{c.name}_filled", "continuous", "float32") for c in columns]
        return [*columns, *added]


class Clip(Op):
    """Raises values below `min_value` to it, lowers values above `max_value` to it.

    The dtype stays; NaN and nulls stay.

    Args:
        min_value: None for no limit.
        max_value: None for no limit.

    Raises:
        ValueError: if there is no limit, if they are the wrong way round, or if a limit of a column
            of integers is not an integer.

    Example:
        >>> group = ["x"] >> Clip(min_value=0, max_value=5)
        >>> group.transform(Chunk({"x": np.array([-3, 4, 9])}))["x"].tolist()
        [0, 4, 5]
    """

    def __init__(self, min_value: float | None = None, max_value: float | None = None) -> None:
        if min_value is None and max_value is None:
            raise ValueError("Clip: give min_value, max_value or both")
        if min_value is not None and max_value is not None and min_value > max_value:
            raise ValueError(f"Clip: min_value {min_value} is above max_value {max_value}")
        self.min_value, self.max_value = min_value, max_value

    def transform_column(self, name: str, column: Any) -> Any:
        """Return the column within the limits."""
        values, valid = self._numbers(name, column)
        limits = [self._limit(name, v, values.dtype) for v in (self.min_value, self.max_value)]
        return _with_nulls(values.clip(*limits), valid)

    def _limit(self, name: str, limit: float | None, dtype: np.dtype) -> Any:
        if limit is None or dtype.kind == "f":
            return None if limit is None else dtype.type(limit)
        if dtype.kind not in "iu" or limit != math.floor(limit):
            raise ValueError(self._wrong(name, f"cannot limit a column of {dtype} to {limit}"))
        bounds = np.iinfo(dtype)
        return dtype.type(min(max(int(limit), bounds.min), bounds.max))


class LogOp(Op):
    """Replaces x by log(1 + x): counts over several orders of magnitude become comparable.

    Computed in float64 and rounded once, so that array libraries, whose float32 logarithms differ,
    agree.

    Args:
        dtype: of the result.

    Raises:
        ValueError: at a value of -1 or below, with its row.

    Example:
        >>> group = ["x"] >> LogOp()
        >>> group.transform(Chunk({"x": np.array([0, 1])}))["x"].tolist()
        [0.0, 0.6931471824645996]
    """

    def __init__(self, dtype: str = "float32") -> None:
        self.dtype = _float_dtype(dtype, "LogOp")

    def transform_column(self, name: str, column: Any) -> Array:
        """Return log(1 + x); NaN stays NaN."""
        values = self._floats(name, column)
        xp = array_namespace(values)
        bad = values <= -1
        if bool(bad.any()):
            row = int(bad.argmax())
            raise ValueError(
                self._wrong(
                    name,
                    f"takes values above -1, got {float(values[row])} at value {row} "
                    "of the chunk. Put Clip(min_value=0) before it.",
                )
            )
        return xp.log1p(values).astype(self.dtype)

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return continuous columns."""
        return _as_floats(columns, self.dtype)


def exact_sum(values: Array) -> Fraction:
    """Return the sum of finite float64 values without any rounding.

    Takes the values apart into pieces of 26 bits, of which up to 2**26 add up exactly in float64
    in any order; so the sum does not depend on how the data was cut into chunks, on the number of
    workers or on the device. Costs about 15 ms for a million values.

    Args:
        values: float64 [n], finite, magnitudes below 2**900.

    Example:
        >>> exact_sum(np.array([1e100, 1.0, -1e100]))
        Fraction(1, 1)

    Source: T. Ogita, S. M. Rump, S. Oishi, "Accurate sum and dot product", SIAM J. Sci. Comput. 26
    (2005); J. Demmel, H. D. Nguyen, "Parallel reproducible summation", IEEE Trans. Comput. (2015).
    """
    xp = array_namespace(values)
    total = Fraction(0)
    for block in blocks_of(len(values), xp):
        rest = values[block]
        while True:
            largest = max(float(rest.max()), -float(rest.min()))
            if largest == 0:
                break
            magic = math.ldexp(1.5, math.frexp(largest)[1] + 27)
            piece = rest + magic
            piece -= magic
            total += Fraction(float(piece.sum()))
            rest = rest - piece
    return total


def _exact_square_sum(values: Array) -> Fraction:
    """Return the sum of the squares of finite float64 values without rounding.

    Source: T. J. Dekker, "A floating-point technique for extending the available precision",
    Numerische Mathematik 18 (1971): x * x = square + error, both float64.
    """
    xp = array_namespace(values)
    total = Fraction(0)
    for block in blocks_of(len(values), xp):
        x = values[block]
        square = x * x
        big = x * 134217729.0
        high = big - (big - x)
        low = x - high
        error = ((high * high - square) + 2 * high * low) + low * low
        total += exact_sum(square) + exact_sum(error)
    return total


class _Scaler(LearningOp):
    """What `Normalize` and `NormalizeMinMax` share: (x - shift) / scale with learned numbers."""

    shift_name: ClassVar[str]
    scale_name: ClassVar[str]

    def __init__(self, dtype: str = "float32") -> None:
        self.dtype = _float_dtype(dtype, type(self).__name__)
        self.reset()

    def reset(self) -> None:
        """Forget what was learned."""
        self._shift: dict[str, float] = {}
        self._scale: dict[str, float] = {}

    def unlearned(self, names: Sequence[str]) -> list[str]:
        """Return the columns whose numbers are not known."""
        return [name for name in names if name not in self._shift]

    @abstractmethod
    def count(self, name: str, values: Array) -> Any:
        """Return the state of finite float64 values."""

    def partial(self, chunk: Chunk) -> dict[str, Any]:
        """Return {column: state} of the values that are there; NaN and nulls are left out."""
        state = {}
        for name, column in chunk.items():
            values = self._floats(name, _flat(column))
            xp = array_namespace(values)
            values = values[~xp.isnan(values)]
            if len(values) and not float(xp.abs(values).max()) < 2.0**400:
                worst = float(values[int(xp.abs(values).argmax())])
                raise ValueError(
                    self._wrong(
                        name, f"takes values below 2**400, got {worst}. Put Clip before it."
                    )
                )
            state[name] = self.count(name, values)
        return state

    def transform_column(self, name: str, column: Any) -> Array:
        """Return (x - shift) / scale, computed in float64."""
        values = self._floats(name, column)
        xp = array_namespace(values)
        result = xp.empty(len(values), dtype=self.dtype)
        shift, scale = self._shift[name], self._scale[name]
        for block in blocks_of(len(values), xp):
            part = values[block] - shift
            part /= scale or math.inf
            result[block] = part
        return result

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return continuous columns."""
        return _as_floats(columns, self.dtype)

    def learned(self) -> dict[str, Any]:
        """Return the learned numbers by column."""
        return {self.shift_name: dict(self._shift), self.scale_name: dict(self._scale)}

    def restore(self, learned: dict[str, Any], tables: Mapping[str, Chunk]) -> None:
        """Take the learned numbers back."""
        self._shift, self._scale = learned[self.shift_name], learned[self.scale_name]


class Normalize(_Scaler):
    """Shifts and scales each column to mean 0 and standard deviation 1.

    Mean and (population) standard deviation are those of the values that are there, summed without
    rounding: see `exact_sum`. A column whose values are all the same becomes zeros. NaN and nulls
    stay NaN.

    Args:
        dtype: of the result.

    Raises:
        ValueError: in `finalize`, if a column has no values at all.

    Example:
        >>> op = Normalize()
        >>> chunk = Chunk({"x": np.array([1.0, 3.0, np.nan])})
        >>> op.finalize(op.partial(chunk))
        >>> op.learned(), op.transform(chunk)["x"].tolist()
        ({'mean': {'x': 2.0}, 'std': {'x': 1.0}}, [-1.0, 1.0, nan])
    """

    shift_name, scale_name = "mean", "std"

    def count(self, name: str, values: Array) -> tuple[int, Fraction, Fraction]:
        """Return (number of values, their sum, the sum of their squares), all exact."""
        return len(values), exact_sum(values), _exact_square_sum(values)

    def merge_states(self, a: Any, b: Any) -> Any:
        """Return the sums of both."""
        return tuple(x + y for x, y in zip(a, b, strict=True))

    def finalize(self, state: dict[str, Any]) -> None:
        """Keep mean and standard deviation of each column."""
        shift, scale = {}, {}
        for name, (count, total, squares) in state.items():
            if count == 0:
                raise ValueError(self._wrong(name, "found no value. Put FillMissing before it."))
            mean = total / count
            shift[name] = float(mean)
            scale[name] = math.sqrt(squares / count - mean * mean)
        self._shift, self._scale = shift, scale


class NormalizeMinMax(_Scaler):
    """Shifts and scales each column so that the values learned from lie in [0, 1].

    A column whose values are all the same becomes zeros. NaN and nulls stay NaN. Later values
    beyond the ones learned from come out below 0 or above 1.

    Args:
        dtype: of the result.

    Example:
        >>> op = NormalizeMinMax()
        >>> chunk = Chunk({"x": np.array([2, 6, 4])})
        >>> op.finalize(op.partial(chunk))
        >>> op.transform(chunk)["x"].tolist()
        [0.0, 1.0, 0.5]
    """

    shift_name, scale_name = "min", "range"

    def count(self, name: str, values: Array) -> tuple[float, float]:
        """Return (smallest, largest), infinite if there is none."""
        if len(values) == 0:
            return math.inf, -math.inf
        return float(values.min()), float(values.max())

    def merge_states(self, a: Any, b: Any) -> Any:
        """Return the smaller and the larger of both."""
        return min(a[0], b[0]), max(a[1], b[1])

    def finalize(self, state: dict[str, Any]) -> None:
        """Keep minimum and range of each column."""
        for name, (low, high) in state.items():
            if low > high:
                raise ValueError(self._wrong(name, "found no value. Put FillMissing before it."))
        self._shift = {name: low for name, (low, _) in state.items()}
        self._scale = {name: high - low for name, (low, high) in state.items()}


# ---------------------------------------------------------------------------- tables and functions


class JoinExternal(Op):
    """Adds columns of another table, found by the key column `on`; rows stay as they are.

    The table is held in memory and saved with the workflow. A key that is not in the table gives
    null: NaN in floating point, an empty list where the column holds lists.

    Args:
        table: `pandas.DataFrame`, `pyarrow.Table`, `Chunk`, or the path of a Parquet file.
        on: key column, integers or texts, of this name on both sides.
        columns_ext: columns to take from the table; None for all but the key.

    Raises:
        ValueError: if a key stands twice in the table or is null, or a column is not in it.
        TypeError: if the key is of another type than the table's.

    Example:
        >>> movies = pa.table({"movieId": [1, 2], "genres": [["Comedy"], ["Drama", "War"]]})
        >>> group = ["movieId"] >> JoinExternal(movies, on="movieId")
        >>> group.transform(Chunk({"movieId": np.array([2, 9])}))["genres"].tolist()
        [['Drama', 'War'], []]
        >>> group["genres"].output_names
        ['genres']
    """

    def __init__(self, table: Any, on: str, columns_ext: Sequence[str] | None = None) -> None:
        table = _read_table(table)
        wanted = list(columns_ext or [name for name in table.names if name != on])
        missing = [name for name in [on, *wanted] if name not in table]
        if missing or on in wanted:
            raise ValueError(
                f"JoinExternal: columns {missing or [on]} cannot be joined; the table has "
                f"{table.names}, and {on!r} is the key"
            )
        if table.num_rows == 0:
            raise ValueError(self._wrong(on, "needs a table with rows, got none"))
        keys, valid = self._keys(on, table[on])
        if valid is not None:
            raise ValueError(self._wrong(on, "found a null key in the table. Drop those rows."))
        try:
            self._index = KeyIndex(keys)
        except ValueError as error:
            raise ValueError(self._wrong(on, f"needs a table with unique keys: {error}")) from error
        self.on, self.columns_ext = on, wanted
        self.table = table.select([on, *wanted])

    def transform_column(self, name: str, column: Any) -> Any:
        """Return the column as it is."""
        return column

    def transform(self, chunk: Chunk) -> Chunk:
        """Return the columns and those joined."""
        if isinstance(chunk[self.on], Ragged):
            raise TypeError(self._wrong(self.on, "takes one key a row, got lists"))
        keys, valid = self._keys(self.on, chunk[self.on])
        if isinstance(keys, Strings) != isinstance(self._index.keys, Strings):
            raise TypeError(self._wrong(self.on, "found texts on one side, integers on the other"))
        found = self._index.find(keys)
        if valid is not None:
            found[~valid] = 0
        xp = array_namespace(found)
        table = {name: to_namespace(self.table[name], xp) for name in self.columns_ext}
        return chunk.with_columns(
            {name: _take_or_null(table[name], found) for name in self.columns_ext}
        )

    def output_names(self, names: Sequence[str]) -> list[str]:
        """Return the names, and those joined."""
        if self.on not in names:
            raise ValueError(f"JoinExternal: the key {self.on!r} is not among {list(names)}")
        twice = [name for name in self.columns_ext if name in names]
        if twice:
            raise ValueError(f"JoinExternal: columns {twice} stand on both sides. Rename them.")
        return [*names, *self.columns_ext]

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return the columns, and those joined with the role that their type suggests."""
        joined = []
        for name in self.columns_ext:
            dtype, multi_hot = column_type(self.table[name])
            joined.append(Column(name, role_of(dtype), dtype, multi_hot))
        return [*columns, *joined]

    def get_config(self) -> dict[str, Any]:
        """Return the arguments without the table."""
        return {"on": self.on, "columns_ext": self.columns_ext}

    @classmethod
    def from_config(cls, config: dict[str, Any], tables: Any, functions: Any) -> Op:
        """Return the op with its table."""
        return cls(tables["table"], **config)

    def learned_tables(self) -> dict[str, Chunk]:
        """Return the table."""
        return {"table": self.table}


def _read_table(table: Any) -> Chunk:
    if isinstance(table, Chunk):
        return table
    if isinstance(table, str | os.PathLike):
        table = pq.read_table(table)
    if not isinstance(table, pa.Table):
        table = pa.Table.from_pandas(table, preserve_index=False)
    return Chunk.from_arrow(table)


def _take_or_null(column: Any, places: Array) -> Any:
    """Return rows of a column by place, counted from 1; null at place 0."""
    xp = array_namespace(places)
    if isinstance(column, Ragged):  # an empty list behind the last row
        offsets = xp.append(xp.asarray(column.offsets), column.offsets[-1])
        rows = xp.where(places > 0, places - 1, len(column))
        return Ragged(column.values, offsets).take(rows)
    values, valid = _parts(column)
    rows = xp.maximum(places - 1, 0)
    there = places > 0
    if valid is not None:
        there &= valid[rows]
    return _with_nulls(take(values, rows), there)


class LambdaOp(Op):
    """Applies a function of the user to each column's values.

    The function gets an array of the values that are there (texts as a `pyarrow` string array) and
    returns as many. A null stays null, in floating point NaN.

    A workflow with a named function can be saved: the name is kept, never the code, and the
    function has to be handed over again at load, `Workflow.load(folder, functions={name: f})`.

    Args:
        function: array [n] -> array [n].
        dtype: NumPy name of the result's values, or "string".

    Raises:
        ValueError: if the function returns another number of values.

    Example:
        >>> group = ["rating"] >> LambdaOp(lambda rating: rating > 3)
        >>> group.transform(Chunk({"rating": np.array([3.0, 4.5])}))["rating"].tolist()
        [0.0, 1.0]
    """

    def __init__(self, function: Callable[[Any], Any], dtype: str = "float32") -> None:
        if not callable(function):
            raise TypeError(f"LambdaOp: function must be callable, got {function!r}")
        self.function = function
        self.dtype = dtype if dtype == "string" else np.dtype(dtype).name

    def transform_column(self, name: str, column: Any) -> Any:
        """Return what the function makes of the values that are there."""
        values, valid = _parts(column)
        if valid is None:
            return self._call(name, values)
        xp = array_namespace(valid)
        if not bool(valid.any()):
            return _with_nulls(self._zeros(len(valid), xp), valid)
        result = self._call(name, take(values, xp.flatnonzero(valid)))
        places = xp.cumsum(valid)
        places[~valid] = 0
        return _take_or_null(result, places)

    def _zeros(self, length: int, xp: Any) -> Any:
        if self.dtype == "string":
            return Strings(xp.zeros(0, dtype=np.uint8), xp.zeros(length + 1, dtype=np.int64))
        return xp.zeros(length, dtype=self.dtype)

    def _call(self, name: str, values: Any) -> Any:
        argument = column_to_arrow(values) if isinstance(values, Strings) else values
        result = self.function(argument)
        if len(result) != len(values):
            raise ValueError(
                self._wrong(
                    name, f"gave {len(values)} values to the function and got {len(result)} back"
                )
            )
        if self.dtype == "string" and not isinstance(result, pa.Array):
            result = pa.array(result, pa.large_string())
        if isinstance(result, pa.Array | pa.ChunkedArray):
            result = column_from_arrow(result)
        if self.dtype == "string":
            return result
        if not hasattr(result, "astype"):
            raise TypeError(
                self._wrong(
                    name, f"expects an array from the function, got {type(result).__name__}"
                )
            )
        return result.astype(self.dtype, copy=False)

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return columns of the dtype, with the role that it suggests."""
        changes = {"role": role_of(self.dtype), "dtype": self.dtype, "cardinality": None}
        return [dataclasses.replace(column, **changes) for column in columns]

    @property
    def function_name(self) -> str:
        """Name under which the function is saved.

        Raises:
            ValueError: if it has none.
        """
        name = getattr(self.function, "__name__", "<lambda>")
        if name == "<lambda>":
            raise ValueError(
                "LambdaOp: a function without a name cannot be saved. Write `def name(x): ...` and "
                "pass LambdaOp(name)."
            )
        return name

    def get_config(self) -> dict[str, Any]:
        """Return the function's name, and the dtype."""
        return {"function": self.function_name, "dtype": self.dtype}

    @classmethod
    def from_config(cls, config: dict[str, Any], tables: Any, functions: Any) -> Op:
        """Return the op with the function that the caller passes for its name."""
        name = config["function"]
        if name not in functions:
            raise ValueError(
                f"LambdaOp: the saved workflow needs the function {name!r}, which is never "
                f"saved. Pass it: Workflow.load(folder, functions={{{name!r}: {name}}})."
            )
        return cls(functions[name], config["dtype"])
