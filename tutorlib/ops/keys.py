"""Ops of keys, which are integers or strings: ids, classes, buckets."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tutorlib.checks import check_integer
from tutorlib.columns import (
    AnyColumn,
    Chunk,
    EncodedStrings,
    FlatColumn,
    Masked,
    Ragged,
    Strings,
    as_lists,
    column_from_arrow,
    column_to_arrow,
    column_type,
    flat_values,
    is_floats,
    missing_in,
    slice_rows,
    take,
    valid_of,
    values_of,
    with_nulls,
)
from tutorlib.hashing import KeyIndex, hash_values, to_buckets
from tutorlib.ops.base import FIRST_ID, NULL_ID, UNKNOWN_ID, ColumnOp, LearningOp, State
from tutorlib.schema import Column

_NARROW = 4  # values that a range of integers may have for each row

Counts = tuple[pa.Array, np.ndarray]  # distinct keys, int64 or large strings, and their counts


def count_keys(values: np.ndarray | Strings, valid: np.ndarray | None = None) -> Counts:
    """Return the distinct keys of a column's values, and how often each occurs.

    Example:
        >>> keys, counts = count_keys(np.array([7, 5, 7]))
        >>> keys.tolist(), counts.tolist()
        ([5, 7], [1, 2])
    """
    if isinstance(values, EncodedStrings):  # the dictionary has each string once
        codes = values.codes if valid is None else values.codes[valid]
        counts = np.bincount(codes, minlength=len(values.dictionary))
        used = np.flatnonzero(counts)
        if len(used) == len(counts):
            return values.dictionary, counts
        return values.dictionary.take(pa.array(used)), counts[used]
    if valid is not None:
        values = take(values, np.flatnonzero(valid))
    if isinstance(values, np.ndarray):
        integers = values.astype(np.int64, copy=False)
        low = int(integers.min(initial=2**62))
        high = int(integers.max(initial=-(2**62)))
        if 0 <= high - low < _NARROW * len(integers):  # a table is faster than hashing
            counts = np.bincount(integers - low)
            used = np.flatnonzero(counts)
            return pa.array(used + low), counts[used]
        values = integers
    counted = pc.value_counts(column_to_arrow(values))
    return counted.field("values"), counted.field("counts").to_numpy()


def add_counts(several: Sequence[Counts]) -> Counts:
    """Return the distinct keys of several counts, and the sum of the counts of each."""
    all_counts = np.concatenate([counts for _, counts in several])
    keys, places = distinct_keys([keys for keys, _ in several])
    sums = np.zeros(len(keys), dtype=np.int64)
    np.add.at(sums, places, all_counts)
    return keys, sums


def after_nulls(keys: pa.Array, nulls: int) -> Masked:
    """Return Arrow keys as a column that begins with nulls."""
    return column_from_arrow(pa.concat_arrays([pa.nulls(nulls, keys.type), keys]))


def keys_of(column: FlatColumn, nulls: int = 0) -> pa.Array:
    """Return the keys of which `after_nulls` made a column, as an Arrow array."""
    return column_to_arrow(slice_rows(values_of(column), nulls, len(column)))


def distinct_keys(parts: Sequence[pa.Array]) -> Counts:
    """Return (distinct keys of all parts, the place of each key in them).

    Raises:
        TypeError: if the parts have different types.
    """
    kinds = sorted({str(part.type) for part in parts})
    if len(kinds) > 1:
        raise TypeError(
            f"found keys of {' and of '.join(kinds)}. Give the column one type in all files."
        )
    keys = pa.concat_arrays(parts)
    integers = strings_as_integers(keys)
    if integers is None:
        encoded = keys.dictionary_encode(null_encoding="encode")
        return encoded.dictionary, encoded.indices.to_numpy()
    encoded = integers.dictionary_encode()
    return integers_as_strings(encoded.dictionary), encoded.indices.to_numpy()


def strings_as_integers(strings: pa.Array) -> pa.Array | None:
    """Return strings that all have 8 bytes as int64 [n]; None for any others.

    Ids of 8 hex digits are common, and Arrow hashes integers two to three times as fast as strings:
    fitting columns of up to a million of them takes a quarter less time.

    Example:
        >>> strings = pa.array(["68fd1e64", "05db9164"], pa.large_string())
        >>> integers_as_strings(strings_as_integers(strings)).to_pylist()
        ['68fd1e64', '05db9164']
        >>> strings_as_integers(pa.array(["68fd1e64", "05"], pa.large_string())) is None
        True
    """
    if not len(strings) or strings.null_count or strings.type != pa.large_string():
        return None
    _, buffer, data = strings.buffers()
    offsets = np.frombuffer(buffer, np.int64, len(strings) + 1, strings.offset * 8)
    if offsets[-1] - offsets[0] != 8 * len(strings) or not (np.diff(offsets) == 8).all():
        return None
    integers = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]].view(np.int64)
    return pa.array(np.require(integers, requirements=["ALIGNED"]))


def integers_as_strings(integers: pa.Array) -> pa.LargeStringArray:
    """Return the `pyarrow.LargeStringArray` [n] of which `strings_as_integers` made int64 [n]."""
    offsets = pa.py_buffer(8 * np.arange(len(integers) + 1))
    data = pa.py_buffer(integers.to_numpy())
    return pa.LargeStringArray.from_buffers(len(integers), offsets, data)


class KeyedOp(LearningOp):
    """An op that finds keys in its tables: the first column of a table holds them."""

    first_key: ClassVar[int] = 0
    """The row of a table that has its first key; rows before it are for values without one."""

    def __init__(self, tables: State) -> None:
        """Keep tables that need not be learned, {column, or "" for all: table}."""
        self._known = tables
        self.state = {}

    def prepare(self) -> None:
        """Make the index of each table.

        Raises:
            ValueError: if a table has a key twice.
        """
        self._tables = {**self._known, **self._state}
        self._indexes: dict[str, KeyIndex] = {}
        for name, table in self._tables.items():
            values = values_of(next(iter(table.values())))
            keys = slice_rows(values, self.first_key, table.num_rows)
            try:
                self._indexes[name] = KeyIndex(_bits(keys) if is_floats(keys) else keys)
            except ValueError as error:
                rule = f"cannot use the vocabulary: {error}"
                raise ValueError(self._wrong(name, rule)) from error

    def unlearned(self, names: Sequence[str]) -> list[str]:
        """Return the input columns without a table."""
        return [] if "" in self._tables else [n for n in names if n not in self._tables]

    def table_of(self, name: str) -> Chunk:
        """Return the table of a column; ValueError before `fit`."""
        if self.unlearned([name]):
            raise ValueError(self._wrong(name, "has learned no value yet. Call fit first."))
        return self._tables["" if "" in self._tables else name]

    def index_of(self, name: str) -> KeyIndex:
        """Return the index that finds the keys of a column."""
        return self._indexes["" if "" in self._indexes else name]


class Categorify(ColumnOp, KeyedOp):
    """Maps integers or strings to ids 0, 1, 2, ...; the most frequent value gets the lowest id.

    The ids of a column, whose number is its cardinality:

    * 0: padding, which no value gets;
    * 1: null;
    * 2: out of vocabulary;
    * then the values by falling frequency, equally frequent ones by value: integers as numbers,
      strings by their UTF-8 bytes.

    A model learns what an unknown value means only from training rows that have that id. So by
    default the rarest values, which are most like new ones, have no ids of their own: as many as
    together hold at most 1 % of the values fitted on; or up to ten that hold at most 1 % each and
    5 % together, since a single one says little about others; or the rarest one, if it holds at
    most 2 %. In a smaller vocabulary, such as weekdays, no value may be that rare; then each gets
    an id, and an unknown value one that no row has trained.

    If no value fitted on was null, the id of null is not trained either: a null then counts as out
    of vocabulary (id 2), if any value did.

    Returns (from transform): int32 ids; lists keep their lengths.

    Args:
        freq_threshold: values that occur fewer times are out of vocabulary, 0 for none. None for
            the rule above. With a threshold below the count of each value, nothing trains the id of
            unknown values.
        vocabularies: {name: values in the order of their ids} of columns that do not learn.

    Raises:
        ValueError: if `freq_threshold` is negative, or a vocabulary has a value twice.
        TypeError: for floats, and for strings where integers were learned or the other way round.

    Example:
        >>> op = Categorify()
        >>> chunk = Chunk({"C1": np.array([7, 5, 7, 9])})
        >>> op.state = op.learned_from(op.partial(chunk))
        >>> op.transform(chunk)["C1"].tolist(), op.cardinality("C1")
        ([3, 4, 3, 5], 6)
        >>> op.transform(Chunk({"C1": np.array([8])}))["C1"].tolist()  # out of vocabulary
        [2]
    """

    first_key = 2  # after the rows of null and of unknown values

    def __init__(
        self,
        freq_threshold: int | None = None,
        vocabularies: Mapping[str, Any] | None = None,
    ) -> None:
        if freq_threshold is not None:
            check_integer("Categorify: freq_threshold", freq_threshold, 0, bits=63)
        self.freq_threshold = freq_threshold
        self.vocabularies = {n: _vocabulary(n, v) for n, v in (vocabularies or {}).items()}
        super().__init__(self.vocabularies)

    def partial(self, chunk: Chunk) -> State:
        """Return {column: its counted keys}."""
        state: State = {}
        for name, column in chunk.items():
            if name not in self.vocabularies:
                column = flat_values(column)
                valid = valid_of(column)
                nulls = 0 if valid is None else int((~valid).sum())
                keys = self._keys(name, column, to_learn=True)
                state[name] = _with_nulls(nulls, count_keys(keys, valid))
        return state

    def merge_states(self, states: Sequence[Chunk]) -> Chunk:
        """Return the keys of all states with their counts added."""
        counts = [(keys_of(state["value"], 1), state["count"][1:]) for state in states]
        return _with_nulls(sum(state["count"][0] for state in states), add_counts(counts))

    def learn(self, name: str, merged: Chunk) -> Chunk:
        """Return value and count of null, of unknown values, and of each value with an id.

        Values are by falling count, equally frequent ones by value.
        """
        keys = keys_of(merged["value"], 1)
        counts = merged["count"][1:]
        order = pc.array_sort_indices(keys).to_numpy()
        order = order[np.argsort(-counts[order], kind="stable")]
        counts = counts[order]
        size = len(order) - _rare(counts, self.freq_threshold)
        value = after_nulls(keys.take(pa.array(order[:size])), nulls=2)
        without_id = [merged["count"][0], counts[size:].sum()]
        return Chunk({"value": value, "count": np.concatenate([without_id, counts[:size]])})

    def vocabulary(self, name: str) -> list[Any]:
        """Return the values of a column in the order of their ids."""
        return self.index_of(name).keys.tolist()

    def cardinality(self, name: str) -> int:
        """Return the number of ids of a column: ids are in [0, cardinality)."""
        return FIRST_ID + len(self.index_of(name).keys)

    def null_id(self, name: str) -> int:
        """Return the id of a null: that of unknown values if training has these alone."""
        counts = self.table_of(name)["count"]  # of nulls, of unknown values, and the others
        return UNKNOWN_ID if counts[1] and not counts[0] else NULL_ID

    def transform_column(self, name: str, column: FlatColumn) -> np.ndarray:
        """Return the ids of a column's values."""
        values = self._keys(name, column)
        index = self.index_of(name)
        self._check_kind(name, values, index.keys)
        ids = index.find(values)
        ids += UNKNOWN_ID  # positions count from 1, and 0 is unknown
        valid = valid_of(column)
        if valid is not None:
            ids[~valid] = self.null_id(name)
        return ids


def _with_nulls(nulls: int, counts: Counts) -> Chunk:
    """Return a table of nulls, then of each key: {"value", "count": int64}."""
    keys, numbers = counts
    return Chunk({"value": after_nulls(keys, 1), "count": np.append(nulls, numbers)})


def _rare(counts: np.ndarray, threshold: int | None) -> int:
    """Return how many values at the end of a vocabulary count as unknown: see `Categorify`.

    Args:
        counts: of the values, falling.
        threshold: values that occur fewer times are among them; None for the rarest ones.

    Example:
        >>> _rare(np.array([980, 9, 6, 3, 1, 1]), None), _rare(np.ones(60, int), None)
        (5, 1)
        >>> _rare(np.ones(26, int), None), _rare(np.array([3, 2, 1]), 2)
        (0, 1)
    """
    if threshold is not None:
        return int((counts < threshold).sum())
    total = int(counts.sum())
    together = np.cumsum(counts[::-1])
    few = min(10, int((100 * counts <= total).sum()), int((20 * together <= total).sum()))
    rarest = int((50 * together[:1] <= total).sum())
    return max(int((100 * together <= total).sum()), few, rarest)


def _vocabulary(name: str, values: Any) -> Chunk:
    """Return the user's integers or strings as a vocabulary; TypeError for others and nulls."""
    if isinstance(values, Chunk):  # of `get_config`
        return values
    array = values if isinstance(values, pa.Array) else pa.array(values)
    array = array.cast(pa.int64()) if pa.types.is_null(array.type) else array
    texts = pa.types.is_string(array.type) or pa.types.is_large_string(array.type)
    if array.null_count or not (pa.types.is_integer(array.type) or texts):
        raise TypeError(
            f"column {name!r}: Categorify: a vocabulary holds integers or strings and no null, got "
            f"{array.type} with {array.null_count} nulls"
        )
    count = np.zeros(2 + len(array), np.int64)
    return Chunk({"value": after_nulls(array, nulls=2), "count": count})


class LabelEncoder(ColumnOp, KeyedOp):
    """Maps the classes of a label to ids 0 to n - 1, as losses and metrics take them.

    Two classes suit `binary_crossentropy`, more suit `sparse_categorical_crossentropy`. The ids of
    `Categorify` do not: they begin with padding, null and out of vocabulary. The columns are labels
    of the workflow, also without `label_names`; each column has classes of its own. A served
    workflow leaves labels out.

    Returns (from transform): int32 ids; a null or NaN stays null.

    Args:
        classes: strings, numbers or booleans in the order of their ids. None learns those in the
            data, sorted: numbers by value, strings by their UTF-8 bytes.

    Raises:
        ValueError: if classes are not unique; in `learn`, for a column of nulls; in
            `transform`, for a value that is no class, with its row.
        TypeError: for strings where classes are numbers, or the other way round; for lists.

    Example:
        >>> op = LabelEncoder()
        >>> chunk = Chunk({"income": column_from_arrow(pa.array(["<=50K", ">50K", "<=50K"]))})
        >>> op.state = op.learned_from(op.partial(chunk))
        >>> op.transform(chunk)["income"].tolist(), op.classes_of("income")
        ([0, 1, 0], ['<=50K', '>50K'])
        >>> op.decode("income", np.array([[0.2], [0.7]])).tolist()
        ['<=50K', '>50K']
    """

    def __init__(self, classes: Sequence[Any] | None = None) -> None:
        self.classes = classes
        super().__init__({} if classes is None else {"": _given_classes(classes)})

    def partial(self, chunk: Chunk) -> State:
        """Return {column: its distinct values}."""
        state: State = {}
        for name in self.unlearned(chunk.names):
            self._check_no_lists(name, chunk[name])
            valid = ~missing_in(chunk[name])
            values = values_of(chunk[name])
            if is_floats(values):
                keys = pa.array(values[valid].astype(np.float64) + 0.0).unique()
            else:
                keys = count_keys(self._keys(name, values, to_learn=True), valid)[0]
                if column_type(values)[0] == "bool":
                    keys = keys.cast(pa.bool_())
            state[name] = Chunk({"value": column_from_arrow(keys)})
        return state

    def _check_no_lists(self, name: str, column: AnyColumn) -> None:
        if isinstance(as_lists(column), Ragged):
            raise TypeError(self._wrong(name, "takes one value per row, got lists"))

    def merge_states(self, states: Sequence[Chunk]) -> Chunk:
        """Return the distinct values of all states."""
        keys = distinct_keys([keys_of(state["value"]) for state in states])[0]
        return Chunk({"value": column_from_arrow(keys)})

    def learn(self, name: str, merged: Chunk) -> Chunk:
        """Return the classes in their order."""
        keys = keys_of(merged["value"])
        if not len(keys):
            rule = "found no value. Name the classes: LabelEncoder(classes=[...])."
            raise ValueError(self._wrong(name, rule))
        return Chunk({"value": column_from_arrow(keys.take(pc.array_sort_indices(keys)))})

    def classes_of(self, name: str) -> list[Any]:
        """Return the classes of a column in the order of their ids."""
        return self.table_of(name)["value"].tolist()

    def transform(self, chunk: Chunk) -> Chunk:
        """Return the ids of each column's classes."""
        for name, column in chunk.items():
            self._check_no_lists(name, column)
        return super().transform(chunk)

    def transform_column(self, name: str, column: FlatColumn) -> FlatColumn:
        """Return the ids of a column's values."""
        values = values_of(column)
        missing = missing_in(column)
        self._check_kind(name, values, self.table_of(name)["value"])
        numbers = self._class_numbers(name, values)
        wrong = (numbers == 0) & ~missing
        if bool(wrong.any()):
            row = int(wrong.argmax())
            rule = (
                f"knows the classes {reprlib.repr(self.classes_of(name))}, got "
                f"{slice_rows(values, row, row + 1).tolist()[0]!r} at row {row} of the chunk. Fit "
                "on rows of every class, or name all of them in classes=."
            )
            raise ValueError(self._wrong(name, rule))
        return with_nulls(numbers - 1, ~missing)

    def _class_numbers(self, name: str, values: Any) -> np.ndarray:
        """Return the number of each value's class, from 1; 0 if it has none."""
        index = self.index_of(name)
        if is_floats(self.table_of(name)["value"]):
            return index.find(_bits(values))
        if not is_floats(values):
            return index.find(values)
        fits = (values == np.floor(values)) & (np.abs(values) < 2.0**63)
        return index.find(np.where(fits, values, 0).astype(np.int64)) * fits

    def decode(self, name: str, predictions: Any) -> np.ndarray:
        """Return the classes that a model predicts.

        Args:
            name: the column, as the op sees it.
            predictions: integer ids [n] or [n, 1]; probabilities [n, classes], of which the largest
                wins; or, of two classes, the probability of the second one, [n] or [n, 1], which
                wins from 0.5 on. As arrays, lists, or the Arrow column that `loader.predict` gives.

        Returns:
            Array [n] of classes.

        Raises:
            ValueError: if the shape does not fit the number of classes, an id is not theirs, or a
                probability is NaN.
        """
        classes = self.table_of(name)["value"]
        try:
            values = np.asarray(predictions)
            if values.dtype == object and len(values):  # rows, as Arrow and pandas hold them
                values = np.stack([np.asarray(row) for row in values])
        except (TypeError, ValueError) as error:
            rule = f"cannot decode these predictions: {error}"
            raise ValueError(self._wrong(name, rule)) from error
        size = len(classes)
        ids = values.reshape(-1)
        if values.dtype.kind == "f":
            missing = np.isnan(ids)
            if bool(missing.any()):
                row = int(missing.argmax()) * len(values) // len(ids)
                raise ValueError(self._wrong(name, f"cannot decode NaN, got it at row {row}"))
            if values.shape[1:] == (size,):
                ids = values.argmax(axis=1)
            elif size == 2:
                ids = ids >= 0.5
        fits = len(ids) == len(values) and ids.dtype.kind in "iub"
        if len(ids) and not (fits and 0 <= ids.min() <= ids.max() < size):
            rule = f"has {size} classes with ids in [0, {size}), got {values.dtype} predictions of "
            raise ValueError(self._wrong(name, f"{rule}shape {values.shape}"))
        result = take(classes, ids.astype(np.int64))
        return result if isinstance(result, np.ndarray) else np.array(result.tolist(), dtype=str)

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return label columns of ids."""
        return [Column(column.name, "label", "int32") for column in columns]


def _bits(values: np.ndarray) -> np.ndarray:
    """Return numbers as int64 keys: the bits of float64, equal for equal numbers."""
    return (values.astype(np.float64) + 0.0).view(np.int64)  # -0.0 becomes 0.0


def _given_classes(classes: Any) -> Chunk:
    """Return the user's classes; ValueError if they cannot be some."""
    try:
        array = pa.array(classes)
        if array.null_count or pa.types.is_nested(array.type) or not len(array):
            raise ValueError("strings, numbers or booleans are needed, none of them null")
        values = column_from_arrow(array)
        KeyIndex(_bits(values) if is_floats(values) else values)  # refuses one that is there twice
        return Chunk({"value": values})
    except (TypeError, ValueError) as error:  # also of Arrow
        raise ValueError(f"LabelEncoder: classes {reprlib.repr(classes)}: {error}") from error


class HashBucket(ColumnOp):
    """Maps integers or strings to `num_buckets` ids by their hash.

    Several values may share a bucket: of v values in b buckets, one is alone in its bucket with
    probability about exp(-v / b).

    Returns (from transform): int32 ids in [first_id, first_id + num_buckets); lists keep their
    lengths. A null gets `first_id`, which values have too.

    Args:
        num_buckets: buckets of each column, 1 to 2**31 - 1; or {name: buckets}.
        first_id: the lowest id, at least 0; 1 keeps the id 0 for the padding of lists. The
            cardinality is `first_id + num_buckets`, at most 2**31 - 1.

    Raises:
        ValueError: if `num_buckets` or `first_id` is out of range, or a column has no entry.
        TypeError: for floating-point columns.

    Example:
        >>> group = ["C1"] >> HashBucket(1000)
        >>> group.transform(Chunk({"C1": np.array([0, 1, 2, 0])}))["C1"].tolist()
        [883, 566, 591, 883]

    Source: `hash_integers`, `hash_strings` and `to_buckets` of `tutorlib.hashing`.
    """

    def __init__(self, num_buckets: int | Mapping[str, int], first_id: int = 0) -> None:
        self.first_id = check_integer("HashBucket: first_id", first_id, at_least=0, bits=31)
        self.num_buckets = num_buckets
        by_name = num_buckets if isinstance(num_buckets, Mapping) else {"": num_buckets}
        for buckets in by_name.values():
            number = check_integer("HashBucket: num_buckets", buckets, at_least=1, bits=31)
            check_integer("HashBucket: first_id + num_buckets", number + self.first_id, 1, bits=31)

    def transform_column(self, name: str, column: FlatColumn) -> np.ndarray:
        """Return the id of each value."""
        ids = to_buckets(hash_values(self._keys(name, column)), self.buckets(name))
        ids += self.first_id
        valid = valid_of(column)
        if valid is not None:
            ids[~valid] = self.first_id
        return ids

    def cardinality(self, name: str) -> int:
        """Return the number of ids of a column: ids are in [0, cardinality)."""
        return self.first_id + self.buckets(name)

    def buckets(self, name: str) -> int:
        """Return the number of buckets of a column."""
        setting = self.num_buckets
        return int(setting[name] if isinstance(setting, Mapping) else setting)

    def output_names(self, names: Sequence[str]) -> list[str]:
        """Return the same names; ValueError for columns without buckets."""
        by_name = self.num_buckets if isinstance(self.num_buckets, Mapping) else names
        if missing := [name for name in names if name not in by_name]:
            raise ValueError(f"HashBucket: num_buckets has no entry for columns {missing}")
        return list(names)
