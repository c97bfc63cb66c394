"""Columns in a TensorFlow graph: raw tensors in, batches out, and what ops share between them.

Hashes are those of `tutorlib.hashing` to the last bit. What ops have learned is in variables, which
a SavedModel keeps beside its graph.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tutorlib.columns import Strings
from tutorlib.hashing import FACTOR_1, FACTOR_2, GAMMA
from tutorlib.loader.settings import PAD
from tutorlib.schema import Column, Schema, batch_dtype, element_type, is_time, listed

Types = Mapping[str, tuple[str, bool]]  # {column: (NumPy name or "string", whether it holds lists)}
PADDINGS = [b"\0" * n for n in range(8)]
FEW_WORDS = 8  # up to so many, all strings stay in the loop


@dataclasses.dataclass(frozen=True)
class ServedColumn:
    """A column in the graph: numbers, strings, lists or values with nulls.

    Args:
        values: one value a row, [n]; of a column of lists the values of all lists, [nnz].
        valid: bool, as `values`, False at a null; None for no nulls and for floats (NaN is null).
        splits: int64 [rows + 1]: row i of lists has values[splits[i]:splits[i + 1]]; else None.
        dtype: NumPy name of dates or durations, whose values are the integers that they count;
            else None.
    """

    values: tf.Tensor
    valid: tf.Tensor | None = None
    splits: tf.Tensor | None = None
    dtype: str | None = None

    def with_values(self, values: tf.Tensor, valid: tf.Tensor | None = None) -> ServedColumn:
        """Return a column of other values in the same lists; floating-point nulls become NaN."""
        if valid is not None and values.dtype.is_floating:
            values, valid = tf.where(valid, values, number(math.nan, values.dtype)), None
        return ServedColumn(values, valid, self.splits)

    @property
    def numpy_dtype(self) -> np.dtype:
        """NumPy dtype that the values have offline."""
        return np.dtype(self.dtype or self.values.dtype.as_numpy_dtype)

    def missing(self) -> tf.Tensor:
        """Return bool, as `values`: True at a null or NaN."""
        if self.valid is not None:
            return ~self.valid
        if self.values.dtype.is_floating:
            return tf.math.is_nan(self.values)
        return tf.zeros(tf.shape(self.values), tf.bool)

    def without_nulls(self, values: tf.Tensor, at_null: Any) -> tf.Tensor:
        """Return `values` with `at_null` where this column has a null."""
        return values if self.valid is None else tf.where(self.valid, values, at_null)


def require(holds: tf.Tensor, rule: str) -> None:
    """Raise InvalidArgumentError with the rule when the graph runs, unless `holds` is True."""
    tf.debugging.Assert(holds, [rule.replace("'", "")])  # a graph would put a backslash before them


def number(value: Any, dtype: tf.DType) -> tf.Tensor:
    """Return one number of a dtype, a scalar tensor."""
    return tf.constant(dtype.as_numpy_dtype(value))


def fixed(values: Any) -> tf.Variable:
    """Return learned numbers or strings as a variable that training does not change.

    Constants of a graph may take 2 GB at most, and the graph optimizer turns a division by one into
    a multiplication by its rounded inverse.
    """
    with tf.device("CPU"):
        return tf.Variable(values, trainable=False)


def as_string_tensor(strings: Strings) -> tf.Tensor:
    """Return the strings of a chunk's column as a tensor, string [n]."""
    values = strings.to_arrow().cast("large_binary").to_pylist()
    return tf.constant(values, tf.string, [len(values)])


def as_int64(values: tf.Tensor) -> tf.Tensor:
    """Return integers or booleans as int64; those above 2**63 as the number of the same bits."""
    return tf.bitcast(values, tf.int64) if values.dtype == tf.uint64 else tf.cast(values, tf.int64)


def as_float64(column: ServedColumn) -> tf.Tensor:
    """Return the values as float64, NaN at a null."""
    values = tf.cast(column.values, tf.float64)
    return column.with_values(values, column.valid).values


def mix(h: tf.Tensor) -> tf.Tensor:
    """Return the splitmix64 output of each uint64."""
    h += GAMMA
    for shift, factor in ((30, FACTOR_1), (27, FACTOR_2), (31, None)):
        h = tf.bitwise.bitwise_xor(h, tf.bitwise.right_shift(h, np.uint64(shift)))
        if factor is not None:
            h *= factor
    return h


def hash_integers(values: tf.Tensor) -> tf.Tensor:
    """Return the 64-bit hash of integers or booleans, uint64: see `hashing.hash_integers`.

    Example:
        >>> f"{int(hash_integers(tf.constant([0]))[0]):x}"
        'e220a8397b1dcdaf'
    """
    return mix(tf.bitcast(as_int64(values), tf.uint64))


def hash_strings(strings: tf.Tensor) -> tf.Tensor:
    """Return the 64-bit hash of strings from their UTF-8 bytes, uint64: see `hashing.hash_strings`.

    The strings are padded to whole 8-byte words and concatenated, so that one long string does not
    cost the memory of many. Step k of a loop hashes word k of every string that has one; strings
    that have ended leave the loop whenever k doubles, so that time is linear in bytes: 20 ms for
    65,536 strings of 20 bytes, 2 s for one of 1 MB (AMD EPYC).

    Args:
        strings: string [n].

    Example:
        >>> [f"{int(h):016x}" for h in hash_strings(tf.constant(["", "a", "Toy Story (1995)"]))]
        ['e220a8397b1dcdaf', '5e025f9ade9eaf3e', '7e6aca372b4d7912']
    """
    lengths = tf.strings.length(strings)
    padded = tf.strings.join([strings, tf.gather(PADDINGS, -lengths & 7)])
    words = tf.io.decode_raw(tf.strings.reduce_join(padded), tf.int64)
    words = tf.bitcast(tf.concat([words, [0]], axis=0), tf.uint64)  # a word to read if all is empty
    counts = (lengths + 7) // 8
    starts = tf.cumsum(counts, exclusive=True)
    longest = tf.reduce_max(tf.concat([counts, [0]], axis=0))

    def hash_span(start: tf.Tensor, hashes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Hash words [start, stop) of the strings that have more than `start` words."""
        stop = tf.minimum(tf.maximum(2 * start, FEW_WORDS), longest)
        rows = tf.where(counts > start)
        ends, firsts = tf.gather_nd(counts, rows), tf.gather_nd(starts, rows)

        def hash_word(k: tf.Tensor, part: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            there = k < ends
            word = tf.gather(words, tf.where(there, firsts + k, 0))
            return k + 1, tf.where(there, mix(tf.bitwise.bitwise_xor(part, word)), part)

        first = (start, tf.gather_nd(hashes, rows))
        part = tf.while_loop(lambda k, _: k < stop, hash_word, first)[1]
        return stop, tf.tensor_scatter_nd_update(hashes, rows, part)

    first = (tf.constant(0), hash_integers(lengths))
    return tf.while_loop(lambda start, _: start < longest, hash_span, first)[1]


def hash_values(values: tf.Tensor) -> tf.Tensor:
    """Return the 64-bit hash of integers or strings, uint64 [n]."""
    return hash_strings(values) if values.dtype == tf.string else hash_integers(values)


def to_buckets(hashes: tf.Tensor, num_buckets: int) -> tf.Tensor:
    """Return the bucket of each hash, int32 in [0, num_buckets): see `hashing.to_buckets`."""
    upper = tf.bitwise.right_shift(hashes, np.uint64(32)) * np.uint64(num_buckets)
    return tf.cast(tf.bitwise.right_shift(upper, np.uint64(32)), tf.int32)


class KeyTable(tf.Module):
    """Finds the position of keys in a list of keys, as `hashing.KeyIndex` does.

    Args:
        keys: integers [n] or `Strings`, each once, as a `KeyIndex` has checked.

    Example:
        >>> KeyTable(np.array([30, 10, 20])).find(tf.constant([10, 11, 30])).numpy().tolist()
        [2, 0, 1]
    """

    def __init__(self, keys: Any) -> None:
        super().__init__()
        self._unsigned = not isinstance(keys, Strings) and keys.dtype == np.uint64
        known = as_string_tensor(keys) if isinstance(keys, Strings) else as_int64(tf.constant(keys))
        with tf.device("CPU"):
            # A StaticHashTable keeps its keys in the graph, which takes 2 GB at most.
            self._table = tf.lookup.experimental.MutableHashTable(known.dtype, tf.int32, 0)
            self._table.insert(known, tf.range(1, len(keys) + 1))

    def find(self, wanted: tf.Tensor) -> tf.Tensor:
        """Return the position of each wanted key, counted from 1; 0 if it is not in the table.

        Args:
            wanted: integers or strings [n], of the kind of the keys.

        Returns:
            int32 [n].
        """
        words = wanted if wanted.dtype == tf.string else as_int64(wanted)
        found = tf.ensure_shape(self._table.lookup(words), [None])  # a graph forgets the shape
        if (wanted.dtype == tf.uint64) != self._unsigned:
            found = tf.where(words >= 0, found, 0)  # the same bits stand for two numbers
        return found


def raw_specs(types: Types, nullable: Iterable[str]) -> dict[str, tf.TensorSpec]:
    """Return {name: TensorSpec} of the raw tensors of some columns: [None, k] or of any shape.

    Dates and durations are int64, in the column's unit.

    Raises:
        ValueError: if a nullable column is not a raw column, or two tensors have the same name.
    """
    nullable = list(nullable)
    if unknown := [name for name in nullable if name not in types]:
        raise ValueError(
            f"nullable: {listed(unknown)} are not raw columns; the layer takes {listed(types)}"
        )
    specs: dict[str, tf.TensorSpec] = {}
    for name, (type_name, lists) in types.items():
        dtype, length = element_type(type_name)
        dtype = "int64" if is_time(dtype) else dtype
        parts = {f"{name}__values": dtype, f"{name}__nnzs": "int32"} if lists else {name: dtype}
        if name in nullable:
            parts[f"{name}__valid"] = "bool"
        if twice := [part for part in parts if part in specs]:
            raise ValueError(f"two raw tensors would be called {twice}; rename a column")
        shape = None if length is None else [None, length]
        specs |= {p: tf.TensorSpec(shape, tf.as_dtype(d), name=p) for p, d in parts.items()}
    return specs


def read_columns(types: Types, inputs: Mapping[str, Any]) -> dict[str, ServedColumn]:
    """Return the raw columns that the inputs hold, all of one number of rows.

    ValueError if one is missing or of another type; when the graph runs, InvalidArgumentError if
    shapes or list lengths do not fit.
    """
    if missing := raw_specs(types, ()).keys() - inputs.keys():
        raise ValueError(
            f"raw columns {listed(sorted(missing))} are missing. The workflow takes "
            f"{listed(types)}, got {listed(sorted(inputs))}"
        )
    columns: dict[str, ServedColumn] = {}
    rows_of_first = None
    for name, (type_name, lists) in types.items():
        dtype, length = element_type(type_name)
        raw_dtype = "int64" if is_time(dtype) else dtype
        values = _flat(f"{name}__values" if lists else name, inputs, raw_dtype, length or 1)
        rows, splits = tf.size(values, tf.int64) // (length or 1), None
        if length is not None:  # in the graph, vectors are lists
            splits = tf.range(rows + 1) * length
        if lists:
            nnzs = _flat(f"{name}__nnzs", inputs, "int64", 1)
            rows, splits = tf.size(nnzs, tf.int64), tf.concat([[0], tf.cumsum(nnzs)], axis=0)
            fits = tf.reduce_all(nnzs >= 0) & (splits[-1] == tf.size(values, tf.int64))
            rule = "the lengths of its lists must be at least 0 and add up to its values"
            require(fits, f"raw column {name!r}: {rule}")
        rows_of_first = rows if rows_of_first is None else rows_of_first
        rule = f"raw columns {next(iter(types))!r} and {name!r} must have the same number of rows"
        require(rows == rows_of_first, rule)
        valid = None
        if inputs.get(f"{name}__valid") is not None:
            valid = _flat(f"{name}__valid", inputs, "bool", length or 1)
            rule = f"{name}__valid must have the shape of the values of {name!r}"
            require(tf.size(valid) == tf.size(values), rule)
        column = ServedColumn(values, None, splits).with_values(values, valid)
        time = dtype if is_time(dtype) else None
        columns[name] = dataclasses.replace(column, dtype=time)
    return columns


def _flat(name: str, inputs: Mapping[str, Any], dtype: str, width: int) -> tf.Tensor:
    """Return a raw tensor, [n, width] or [n], flat in the dtype that the workflow was fitted on."""
    values = tf.convert_to_tensor(inputs[name])
    got = values.dtype.name
    fits = got == dtype or ("string" not in (got, dtype) and np.can_cast(got, dtype, "safe"))
    if not fits or (got == "bool") != (dtype == "bool"):
        raise ValueError(
            f"raw column {name!r}: the workflow was fitted on {dtype}, got {got}. Cast it before."
        )
    shapes = "[batch] or [batch, 1]" if width == 1 else f"[batch, {width}]"
    rule = f"raw column {name!r} must have the shape {shapes}"
    require(tf.reduce_prod(tf.shape(values)[1:]) == width, rule)
    return tf.cast(tf.reshape(values, [-1]), dtype)


def in_batch_dtype(column: Column, made: ServedColumn) -> ServedColumn:
    """Return a column in the dtype that it has in a loader's batch; strings stay.

    When the graph runs, InvalidArgumentError for a value that this dtype cannot hold.
    """
    values = made.values
    if values.dtype == tf.string:
        return made
    cast = tf.cast(values, tf.as_dtype(batch_dtype(column)))
    if not np.can_cast(values.dtype.as_numpy_dtype, cast.dtype.as_numpy_dtype):
        if cast.dtype.is_floating:
            fits = tf.math.is_finite(cast) | ~tf.math.is_finite(tf.cast(values, tf.float64))
        else:
            fits = (tf.cast(cast, values.dtype) == values) & ((cast < 0) == (values < 0))
        rule = f"column {column.name!r}: a value is too large for {cast.dtype.name}, its dtype in a"
        require(tf.reduce_all(fits), f"{rule} batch. Scale it (LogOp, Normalize) or Clip it.")
    return ServedColumn(cast, None, made.splits)


def columns_batch(
    columns: Mapping[str, ServedColumn], schema: Schema, multi_hot: str
) -> dict[str, Any]:
    """Return a batch with `batch_layout="columns"`: [batch, k], lists in the form `multi_hot`."""
    batch: dict[str, Any] = {}
    for name, column in columns.items():
        values, splits = column.values, column.splits
        if not schema[name].multi_hot or splits is None:
            batch[name] = tf.reshape(values, [-1, schema[name].length or 1])
        elif multi_hot == "nnzs":
            nnzs = tf.cast(splits[1:] - splits[:-1], tf.int32)
            batch |= {f"{name}__values": values[:, None], f"{name}__nnzs": nnzs[:, None]}
        else:
            lists = tf.RaggedTensor.from_row_splits(values, splits, validate=False)
            batch[name] = _padded(schema[name], lists)
    return batch


def _padded(column: Column, lists: tf.RaggedTensor) -> tf.Tensor:
    """Return the matrix of the loader, [batch, longest]; ids that are no padding are required."""
    if column.role == "categorical":
        rule = f"column {column.name!r}: multi_hot='padded' pads lists with 0, which no id may be"
        remedy = "use HashBucket(..., first_id=1) or multi_hot='nnzs'"
        require(tf.reduce_all(lists.values != PAD), f"{rule}; {remedy}")
    width = tf.maximum(lists.bounding_shape(1, out_type=tf.int64), 1)
    return lists.to_tensor(tf.cast(PAD, lists.dtype), shape=tf.stack([-1, width]))


def stacked_batch(columns: Mapping[str, ServedColumn], schema: Schema) -> dict[str, tf.Tensor]:
    """Return a batch with `batch_layout="stacked"`: a matrix [batch, columns] for each role."""
    batch = {}
    for role in ("categorical", "continuous"):
        parts: Sequence[tf.Tensor] = [
            tf.reshape(columns[column.name].values, [-1, column.length or 1])
            for column in schema.with_role(role)
        ]
        if parts:
            dtype = max((part.dtype for part in parts), key=lambda dtype: dtype.size)
            batch[role] = tf.concat([tf.cast(part, dtype) for part in parts], axis=1)
    return batch
