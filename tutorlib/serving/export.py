"""A fitted Workflow in a TensorFlow graph: as a Keras layer, and with a model as one SavedModel.

In this order: columns in a graph; hashes and vocabularies; each op; raw tensors and batches;
`WorkflowLayer`; `export_serving`. Ops give bit for bit what their `transform` gives. What they have
learned is in variables, which a SavedModel keeps beside its graph. It needs TensorFlow alone.
"""

from __future__ import annotations

import dataclasses
import keyword
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tutorlib import ops
from tutorlib.checks import check_choice
from tutorlib.columns import Strings
from tutorlib.hashing import FACTOR_1, FACTOR_2, GAMMA
from tutorlib.loader.layout import PAD
from tutorlib.ops.base import UNKNOWN_ID
from tutorlib.output import new_folder, refuse_existing
from tutorlib.schema import (
    MULTI_HOT_FORMS,
    Column,
    Schema,
    batch_dtype,
    element_type,
    is_time,
    listed,
)

Types = Mapping[str, tuple[str, bool]]  # {column: (NumPy name or "string", whether it holds lists)}
PADDINGS = [bytes(n) for n in range(8)]
SIGNATURE_NAME = re.compile("(?!self$)[A-Za-z][A-Za-z0-9_]*")  # TensorFlow changes others
FEW_WORDS = 8  # up to so many, all strings stay in the loop

# ---- columns in a graph --------------------------------------------------------------------------


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
            values = tf.where(valid, values, tf.constant(math.nan, values.dtype))
            valid = None
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

    def without_nulls(self, values: tf.Tensor, at_null: int) -> tf.Tensor:
        """Return `values` with `at_null` where this column has a null."""
        return values if self.valid is None else tf.where(self.valid, values, at_null)


def require(holds: tf.Tensor, rule: str) -> None:
    """Raise InvalidArgumentError with the rule when the graph runs, unless `holds` is True."""
    tf.debugging.Assert(holds, [rule.replace("'", "")])  # a graph would put a backslash before them


def fixed(values: np.ndarray) -> tf.Variable:
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


def as_words(values: tf.Tensor) -> tf.Tensor:
    """Return integers as int64 (those above 2**63 by their bits), booleans too; strings stay."""
    if values.dtype == tf.string:
        return values
    return tf.bitcast(values, tf.int64) if values.dtype == tf.uint64 else tf.cast(values, tf.int64)


def as_float64(column: ServedColumn) -> tf.Tensor:
    """Return the values as float64, NaN at a null."""
    values = tf.cast(column.values, tf.float64)
    return column.with_values(values, column.valid).values


# ---- hashes and vocabularies ---------------------------------------------------------------------


def mix(h: tf.Tensor) -> tf.Tensor:
    """Return the splitmix64 output of each uint64."""
    h += GAMMA
    for shift, factor in ((30, FACTOR_1), (27, FACTOR_2), (31, np.uint64(1))):
        h = tf.bitwise.bitwise_xor(h, tf.bitwise.right_shift(h, np.uint64(shift))) * factor
    return h


def hash_integers(values: tf.Tensor) -> tf.Tensor:
    """Return the 64-bit hash of integers or booleans, uint64: see `hashing.hash_integers`.

    Example:
        >>> f"{int(hash_integers(tf.constant([0]))[0]):x}"
        'e220a8397b1dcdaf'
    """
    return mix(tf.bitcast(as_words(values), tf.uint64))


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
        ends = tf.gather_nd(counts, rows)
        firsts = tf.gather_nd(starts, rows)

        def hash_word(k: tf.Tensor, part: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            word = tf.gather(words, tf.where(k < ends, firsts + k, 0))
            return k + 1, tf.where(k < ends, mix(tf.bitwise.bitwise_xor(part, word)), part)

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

    def __init__(self, keys: np.ndarray | Strings) -> None:
        super().__init__()
        tensor = as_string_tensor(keys) if isinstance(keys, Strings) else tf.constant(keys)
        self._unsigned = tensor.dtype == tf.uint64
        known = as_words(tensor)
        with tf.device("CPU"):
            # A StaticHashTable keeps its keys in the graph, which takes 2 GB at most.
            self._table = tf.lookup.experimental.MutableHashTable(known.dtype, tf.int32, 0)
            self._table.insert(known, tf.range(1, len(keys) + 1))

    def find(self, values: tf.Tensor) -> tf.Tensor:
        """Return the position of each value among the keys, counted from 1; 0 if it is none.

        Args:
            values: integers or strings [n], of the kind of the keys.

        Returns:
            int32 [n].
        """
        words = as_words(values)
        positions = tf.ensure_shape(self._table.lookup(words), [None])  # a graph forgets the shape
        if (values.dtype == tf.uint64) != self._unsigned:
            positions = tf.where(words >= 0, positions, 0)  # the same bits stand for two numbers
        return positions


# ---- the ops -------------------------------------------------------------------------------------


class ServedOp(tf.Module):
    """A fitted op as TensorFlow operations, for some of the columns that it makes.

    This class gives the columns as they are. A subclass overrides `column`; `source`, unless each
    column is made of the input column of the same name; and `build`, if the op has learned. It
    stands in `SERVED`.

    Args:
        op: the fitted op.
        names: all columns that go into the op, in order.
        outputs: the columns to make, some of the op's output.

    Raises:
        ValueError: if an op with these settings cannot be served, with the reason.
    """

    op: Any  # of the class that `SERVED` names

    def __init__(self, op: ops.Op, names: Sequence[str], outputs: Sequence[str]) -> None:
        super().__init__()
        self.op = op
        self.names = tuple(names)
        self.outputs = tuple(outputs)
        self.build()

    def build(self) -> None:
        """Create the variables that hold what the op has learned."""

    def source(self, output: str) -> str:
        """Return the name of the input column that the column `output` is made of."""
        return output

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        """Return an output column, given the one that `source` names."""
        return column

    def __call__(self, columns: Mapping[str, ServedColumn]) -> dict[str, ServedColumn]:
        """Return the columns of `outputs`."""
        return {name: self.column(name, columns[self.source(name)]) for name in self.outputs}


class ServedRename(ServedOp):
    """`Rename`, and ops that make one column of each and give it another name."""

    def source(self, output: str) -> str:
        """Return the name of the column at the same place."""
        return self.names[self.op.output_names(self.names).index(output)]


class ServedFill(ServedOp):
    """`FillMissing` and `FillMedian`."""

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        """Return the column without nulls and NaN."""
        text = column.values.dtype == tf.string
        fill = self.op.value_for(name, None if text else column.numpy_dtype)
        return column.with_values(tf.where(column.missing(), fill, column.values))


class ServedClip(ServedOp):
    """`Clip`."""

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        """Return the values within the limits; NaN and nulls stay."""
        values = column.values
        limits = self.op.limits_for(name, column.numpy_dtype)
        if limits[0] is not None:
            values = tf.where(values < limits[0], limits[0], values)  # False for NaN
        if limits[1] is not None:
            values = tf.where(values > limits[1], limits[1], values)
        return column.with_values(values, column.valid)


class ServedLogOp(ServedOp):
    """`LogOp`."""

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        """Return log(1 + x)."""
        if column.dtype is not None:  # a time, which is an integer here
            self.op._check_numbers(name, np.empty(0, column.dtype))
        values = as_float64(column)
        rule = f"column {name!r}: LogOp takes values above -1. Put Clip(min_value=0) before it."
        require(~tf.reduce_any(values <= -1.0), rule)
        return column.with_values(tf.cast(tf.math.log1p(values), tf.float32))


class ServedNormalize(ServedOp):
    """`Normalize`."""

    def build(self) -> None:
        """Keep shift and scale of each column, float64 [2]."""
        self.numbers = {}
        for name in self.outputs:
            self.numbers[name] = fixed(np.array(self.op.shift_and_scale(name)))

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        """Return (x - shift) / scale."""
        numbers = tf.convert_to_tensor(self.numbers[name])
        values = (as_float64(column) - numbers[0]) / numbers[1]
        return column.with_values(tf.cast(values, tf.float32))


class ServedHashBucket(ServedOp):
    """`HashBucket`."""

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        """Return int32 ids, that of the first bucket at a null."""
        ids = to_buckets(hash_values(column.values), self.op.buckets(name))
        ids += self.op.first_id
        return column.with_values(column.without_nulls(ids, self.op.first_id))


class ServedCategorify(ServedOp):
    """`Categorify`."""

    def build(self) -> None:
        """Keep the vocabularies."""
        self.tables = {}
        for name in self.outputs:
            self.tables[name] = KeyTable(self.op.index_of(name).keys)

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        """Return the ids of the values."""
        ids = self.tables[name].find(column.values) + UNKNOWN_ID
        return column.with_values(column.without_nulls(ids, self.op.null_id(name)))


# To serve an op of your own, write a ServedOp for it and enter it: SERVED[MyOp] = ServedMyOp.
SERVED: dict[type[ops.Op], type[ServedOp]] = {
    ops.Categorify: ServedCategorify,
    ops.Clip: ServedClip,
    ops.FillMedian: ServedFill,
    ops.FillMissing: ServedFill,
    ops.HashBucket: ServedHashBucket,
    ops.LogOp: ServedLogOp,
    ops.Normalize: ServedNormalize,
    ops.Rename: ServedRename,
}


# ---- raw tensors and batches ---------------------------------------------------------------------


def raw_specs(types: Types, nullable: Iterable[str]) -> dict[str, tf.TensorSpec]:
    """Return {name: TensorSpec} of the raw tensors of some columns: [None, k] or of any shape.

    Dates and durations are int64, in the column's unit.

    Raises:
        ValueError: if a nullable column is not a raw column, or two tensors have the same name.
    """
    nullable = set(nullable)
    if unknown := nullable - types.keys():
        raise ValueError(
            f"nullable: {listed(sorted(unknown))} are not raw columns; the layer takes "
            f"{listed(types)}"
        )
    specs: dict[str, tf.TensorSpec] = {}
    for name, (type_name, lists) in types.items():
        dtype, length = element_type(type_name)
        parts = {f"{name}__values" if lists else name: "int64" if is_time(dtype) else dtype}
        if lists:
            parts[f"{name}__nnzs"] = "int32"
        if name in nullable:
            parts[f"{name}__valid"] = "bool"
        shape = None if length is None else [None, length]
        for part, kind in parts.items():
            if part in specs:
                raise ValueError(f"two raw tensors would be called {part!r}; rename a column")
            specs[part] = tf.TensorSpec(shape, tf.as_dtype(kind), name=part)
    return specs


def read_columns(types: Types, inputs: Mapping[str, tf.Tensor]) -> dict[str, ServedColumn]:
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
        time = dtype if is_time(dtype) else None
        width = length or 1
        values = _flat(
            f"{name}__values" if lists else name, inputs, "int64" if time else dtype, width
        )
        rows = tf.size(values, tf.int64) // width
        splits = None
        if length is not None:  # in the graph, vectors are lists
            splits = tf.range(rows + 1) * length
        if lists:
            nnzs = _flat(f"{name}__nnzs", inputs, "int64", 1)
            rows = tf.size(nnzs, tf.int64)
            splits = tf.concat([[0], tf.cumsum(nnzs)], axis=0)
            fits = tf.reduce_all(nnzs >= 0) & (splits[-1] == tf.size(values, tf.int64))
            rule = "the lengths of its lists must be at least 0 and add up to its values"
            require(fits, f"raw column {name!r}: {rule}")
        rows_of_first = rows if rows_of_first is None else rows_of_first
        rule = f"raw columns {next(iter(types))!r} and {name!r} must have the same number of rows"
        require(rows == rows_of_first, rule)
        valid = None
        if inputs.get(f"{name}__valid") is not None:
            valid = _flat(f"{name}__valid", inputs, "bool", width)
            rule = f"{name}__valid must have the shape of the values of {name!r}"
            require(tf.size(valid) == tf.size(values), rule)
        column = ServedColumn(values, None, splits).with_values(values, valid)
        columns[name] = dataclasses.replace(column, dtype=time)
    return columns


def _flat(name: str, inputs: Mapping[str, tf.Tensor], dtype: str, width: int) -> tf.Tensor:
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


def in_batch_dtype(column: Column, served: ServedColumn) -> ServedColumn:
    """Return a column in the dtype that it has in a loader's batch; strings stay.

    When the graph runs, InvalidArgumentError for a value that this dtype cannot hold.
    """
    values = served.values
    if values.dtype == tf.string:
        return served
    cast = tf.cast(values, tf.as_dtype(batch_dtype(column)))
    if not np.can_cast(values.dtype.as_numpy_dtype, cast.dtype.as_numpy_dtype):
        if cast.dtype.is_floating:
            fits = tf.math.is_finite(cast) | ~tf.math.is_finite(tf.cast(values, tf.float64))
        else:
            fits = (tf.cast(cast, values.dtype) == values) & ((cast < 0) == (values < 0))
        rule = f"column {column.name!r}: a value is too large for {cast.dtype.name}, its dtype in a"
        require(tf.reduce_all(fits), f"{rule} batch. Scale it (LogOp, Normalize) or Clip it.")
    return ServedColumn(cast, None, served.splits)


def columns_batch(
    columns: Mapping[str, ServedColumn], schema: Schema, multi_hot: str
) -> dict[str, tf.Tensor]:
    """Return the columns of a batch: [batch, k], lists in the form `multi_hot`."""
    batch: dict[str, tf.Tensor] = {}
    for name, column in columns.items():
        splits = column.splits
        if not schema[name].multi_hot or splits is None:
            batch[name] = tf.reshape(column.values, [-1, schema[name].length or 1])
        elif multi_hot == "nnzs":
            batch[f"{name}__values"] = column.values[:, None]
            batch[f"{name}__nnzs"] = tf.cast(splits[1:] - splits[:-1], tf.int32)[:, None]
        else:
            lists = tf.RaggedTensor.from_row_splits(column.values, splits, validate=False)
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


# ---- WorkflowLayer -------------------------------------------------------------------------------


class WorkflowLayer(keras.layers.Layer):
    """A fitted Workflow as a layer: raw values of a batch in, inputs of the model out.

    `Workflow.to_keras` makes it. A SavedModel keeps what the ops have learned; a `.keras` file
    cannot hold it: save the workflow next to the model, or use `export_serving`.

    It computes what `Workflow.transform` does, bit for bit, with three exceptions:

    * TensorFlow takes numbers nearer to zero than 2**-126 (1.2e-38) for zero;
    * a zero that `Clip` has limited at zero may have the other sign, which NumPy chooses by dtype
      and CPU;
    * float32 results of `LogOp` may differ in the last bit: for one of all 3.2 billion float32
      numbers above -1 (8.472636; AVX-512, TensorFlow 2.21), for fewer than one in ten million
      float64 numbers.

    A call takes a dict of tensors, arrays or lists, one entry a raw column, [batch] or [batch, 1],
    in the dtype that the workflow was fitted on or a narrower one, vectors as [batch, k]; dates and
    times as int64, in the unit of the data that it was fitted on. A column `g` of lists is
    `g__values` [nnz] with `g__nnzs` [batch]. A null is NaN in floating point; in any column `c` it
    may be marked by False in a bool tensor `c__valid`, of the shape of the column's values. It
    returns the batch of a `KerasSequenceLoader` with this workflow, in the same dtypes: float32
    numbers, int32 or int64 ids.

    Args:
        workflow: a fitted `Workflow`.
        columns: names of the output columns; None for all features, without labels and weights.
        multi_hot: "nnzs" or "padded", as the model was made: see `keras_inputs`.

    Raises:
        ValueError: before `fit`, or if an op cannot be served, with the reason; in a call, if a
            column is missing or of another type.
        tf.errors.InvalidArgumentError: in a call, if columns differ in their number of rows, a null
            or NaN is left in the result, or an op refuses a value.

    Example:
        >>> import numpy as np
        >>> from tutorlib.columns import Chunk
        >>> from tutorlib.ops import Categorify
        >>> from tutorlib.workflow import Workflow
        >>> workflow = Workflow(["C1"] >> Categorify()).fit(Chunk({"C1": np.array([7, 5, 7])}))
        >>> workflow.to_keras()({"C1": [5, 6]})["C1"].numpy().tolist()
        [[4], [2]]
    """

    def __init__(
        self,
        workflow: Any,
        columns: Iterable[str] | None = None,
        *,
        multi_hot: str = "nnzs",
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, trainable=False, **kwargs)
        if keras.config.backend() != "tensorflow":
            raise RuntimeError(
                f"serving needs Keras on TensorFlow, got {keras.config.backend()!r}. Set "
                "KERAS_BACKEND=tensorflow before Keras is imported."
            )
        check_choice("multi_hot", multi_hot, MULTI_HOT_FORMS)
        schema = workflow.output_schema
        self.schema = schema.features if columns is None else schema.select(columns)
        self.multi_hot = multi_hot
        chains = []
        self.types: dict[str, tuple[str, bool]] = {}
        for group in workflow.groups:
            if not set(self.schema.names).isdisjoint(group.output_names):
                chains.append(_Chain(group, self.schema.names))
                for name in chains[-1].inputs:
                    self.types[name] = workflow.input_types[name]
        self._chains = tf.Module()  # Keras would take a plain list of them for layers
        self._chains.all = chains
        self.built = True

    def __call__(self, inputs: Mapping[str, Any], **kwargs: Any) -> dict[str, tf.Tensor]:
        """Return the model's inputs for a dict of raw values: tensors, arrays or lists."""
        lists = {name: tf.constant(x) for name, x in inputs.items() if isinstance(x, list)}
        return super().__call__({**inputs, **lists}, **kwargs)  # Keras looks for tensors in lists

    def call(self, inputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the model's inputs for a dict of raw tensors."""
        columns = self.transform(inputs)
        batch: dict[str, ServedColumn] = {}
        for column in self.schema:
            name = column.name
            rule = f"column {name!r} comes out with a null. Put FillMissing into its group."
            # No null reaches the model: a ReLU may make 0 of NaN.
            require(~tf.reduce_any(columns[name].missing()), rule)
            batch[name] = in_batch_dtype(column, columns[name])
        return columns_batch(batch, self.schema, self.multi_hot)

    def transform(self, inputs: Mapping[str, tf.Tensor]) -> dict[str, ServedColumn]:
        """Return the columns as `Workflow.transform` gives them, for a dict of raw tensors."""
        raw = read_columns(self.types, inputs)
        columns: dict[str, ServedColumn] = {}
        for chain in self._chains.all:
            columns |= chain(raw)
        return columns

    def get_config(self) -> dict[str, object]:
        """Raise NotImplementedError: a config cannot hold what the ops have learned."""
        raise NotImplementedError(
            "a served workflow cannot be part of a .keras file. Save the Workflow with "
            "workflow.save(folder) next to the model, or both by export_serving(model, workflow, "
            "path)."
        )

    def raw_inputs(self, nullable: Iterable[str] = ()) -> dict[str, tf.TensorSpec]:
        """Return {name: TensorSpec} of the raw tensors that a call takes, of any shape.

        Args:
            nullable: raw columns with nulls, for which a tensor `{name}__valid` is added.
        """
        return raw_specs(self.types, nullable)


class _Chain(tf.Module):
    """The ops of one group, for those of its columns that are among `outputs`."""

    def __init__(self, group: ops.ColumnGroup, outputs: Sequence[str]) -> None:
        super().__init__()
        chain: list[ServedOp] = []
        self.outputs = tuple(name for name in group.output_names if name in outputs)
        columns: Sequence[str] = self.outputs
        for op, names in reversed(list(group.steps())):  # the last op first: what does it need?
            try:
                if type(op) not in SERVED:
                    raise ValueError("has no TensorFlow version in tutorlib.serving.SERVED")
                served = SERVED[type(op)](op, names, columns)
            except ValueError as error:
                what = f"{type(op).__name__} of the columns {names}"
                raise ValueError(f"an op cannot be served: {what} {error}") from error
            chain.append(served)
            columns = list(dict.fromkeys(map(served.source, columns)))
        self.ops = chain[::-1]
        self.inputs = tuple(columns)

    def __call__(self, columns: dict[str, ServedColumn]) -> dict[str, ServedColumn]:
        for op in self.ops:
            columns = op(columns)
        return {name: columns[name] for name in self.outputs}


# ---- export_serving ------------------------------------------------------------------------------


def export_serving(
    model: keras.Model,
    workflow: Any,
    path: str | os.PathLike[str],
    *,
    nullable: Iterable[str] = (),
    multi_hot: str = "nnzs",
    overwrite: bool = False,
) -> Path:
    """Write a SavedModel that takes raw rows and applies the workflow, then the model.

    `tf.saved_model.load(path).signatures["serving_default"](**raw)["predictions"]` predicts where
    there is TensorFlow and nothing of this library, as in TensorFlow Serving. The
    signature takes one tensor for each raw column, [batch] or [batch, 1], in the column's dtype; a
    column `g` of lists is `g__values` [nnz] and `g__nnzs` int32 [batch]. Dates and durations are
    int64, counted in the unit of the data that the workflow was fitted on: days since 1970-01-01
    for date32, microseconds for timestamp[us]. Raw columns that none of the model's features is
    made of, such as labels, are not part of it.

    A null of floating point is NaN. Each other column `c` of `nullable` has a second tensor
    `c__valid`, bool of the shape of its values, False at a null, whatever stands there. A signature
    has no optional tensors: a request gives all of them, True where nothing is missing. A request
    with a null that no op fills is refused (InvalidArgumentError), as a loader refuses it.

    Making the graph takes about 0.2 s a column: two minutes for 700.

    Lists may be longer than the loader's `max_length`: cut them in the request, as in the data.

    TensorFlow Serving's own batching of requests (`--enable_batching`) joins tensors of equal first
    dimension, so it cannot join `g__values` with `g__nnzs`: leave it off for models with lists.

    Args:
        model: takes the workflow's output as a batch of columns. If it returns a dict, the
            signature does too. It has no lookup tables of its own, such as a `WorkflowLayer` or
            `StringLookup`: TensorFlow refuses to save those. It may take columns of text.
        workflow: a fitted `Workflow`.
        path: folder to write; it appears complete or not at all.
        nullable: raw columns that may hold nulls in requests; none by default.
        multi_hot: as the model was made: see `keras_inputs`.
        overwrite: whether an existing folder is replaced.

    Returns:
        The folder.

    Raises:
        FileExistsError: if the folder exists and `overwrite` is False.
        ValueError: if an op cannot be served, the model has inputs that the workflow does not make,
            or a raw column has a name that a signature cannot have: an argument's name, of ASCII
            letters, digits and underscores, which begins with a letter.

    Example:
        >>> export_serving(model, workflow, "build/served", nullable=["I1"])  # doctest: +SKIP
    """
    refuse_existing(path, overwrite)
    inputs = model.input if getattr(model, "inputs", None) else None
    names = list(inputs) if isinstance(inputs, dict) else []  # a subclassed model declares none
    columns = _columns_of(workflow.output_schema, names)
    layer = workflow.to_keras(columns=columns, multi_hot=multi_hot)
    specs = layer.raw_inputs(nullable)
    wrong = [n for n in specs if not SIGNATURE_NAME.fullmatch(n) or keyword.iskeyword(n)]
    if wrong:
        raise ValueError(
            f"raw tensors {listed(wrong)} cannot be arguments of a signature, whose names begin "
            "with a letter, have ASCII letters, digits and underscores alone, and are no words of "
            "Python. Rename the columns in the data and fit the workflow again."
        )

    def predict(raw: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        features = layer(raw)
        if missing := [name for name in names if name not in features]:
            raise ValueError(
                f"the model takes {missing}, which the workflow does not make; it makes "
                f"{sorted(features)}. Make the model for columns (a stacked DLRM has the same "
                "weights), and give its multi_hot."
            )
        if names:
            features = {name: features[name] for name in names}
        predictions = model(features, training=False)
        return predictions if isinstance(predictions, dict) else {"predictions": predictions}

    archive = keras.export.ExportArchive()
    archive.track(layer)
    archive.add_endpoint("serve", predict, [specs])
    with new_folder(path, overwrite=overwrite) as building:
        archive.write_out(str(building), verbose=False)
    return Path(path).expanduser()


def _columns_of(schema: Schema, inputs: Sequence[str]) -> list[str] | None:
    """Return the workflow's columns that inputs of these names are made of; None for all."""
    columns = []
    for name in schema.features.names:
        if not {name, f"{name}__values", f"{name}__nnzs"}.isdisjoint(inputs):
            columns.append(name)
    return columns or None
