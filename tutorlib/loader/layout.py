"""Layout: how the columns of a schema lie in a batch, and which values are accepted."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tutorlib.arrays import Array, list_parts, one_array, valid_rows
from tutorlib.checks import check_choice, check_integer
from tutorlib.schema import MULTI_HOT_FORMS, ROLES, Column, Schema, batch_dtype, is_list

FLOAT32_MAX = np.float64(np.finfo(np.float32).max)  # with float16, a Python float is infinite
PAD = 0  # behind the values of "padded" lists; no id, as in Categorify and Keras's mask_zero
STACKED_ROLES = ("categorical", "continuous")


@dataclasses.dataclass(frozen=True)
class MultiHot:
    """How columns of lists are in a batch: the argument `multi_hot` of `KerasSequenceLoader`.

    XLA and JAX compile again for every new shape. With "nnzs" the number of values differs from
    batch to batch; "padded" with a `max_length` gives one shape.

    Args:
        form: of a list column g: "nnzs" gives `g__values` [nnz, 1] and `g__nnzs` [batch, 1];
            "padded" gives g [batch, width], padded with 0, which
            `keras.layers.Embedding(mask_zero=True)` masks. The id 0 in the data is refused; in
            lists of numbers 0 is a number too.
        max_length: longest list that is accepted, at least 1, and the width of "padded"; None for
            any length: "padded" is then as wide as the longest list of the batch.

    Raises:
        ValueError: if a field is out of range.

    Example:
        >>> MultiHot("padded", max_length=20).form
        'padded'
    """

    form: str = "nnzs"
    max_length: int | None = None

    def __post_init__(self) -> None:
        check_choice("multi_hot", self.form, MULTI_HOT_FORMS)
        if self.max_length is not None:
            length = check_integer("multi_hot: max_length", self.max_length, 1)
            object.__setattr__(self, "max_length", length)


@dataclasses.dataclass(eq=False)
class Lists:
    """Lists of numbers: row i holds values[offsets[i]:offsets[i + 1]].

    Args:
        values: array of all values.
        offsets: int64 [rows + 1] from 0 to the number of values.
    """

    values: Array
    offsets: Array

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclasses.dataclass(frozen=True)
class Field:
    """What is gathered as one: a column, a vector, or the columns of a stacked matrix."""

    name: str
    dtype: np.dtype
    columns: tuple[Column, ...]

    @functools.cached_property
    def width(self) -> int:
        """Values of a row."""
        return sum(column.length or 1 for column in self.columns)


class Layout:
    """How the columns of a schema lie in a batch.

    Args:
        schema: schema of the batches, after a mapped workflow.
        stacked: whether a batch holds "categorical" and "continuous" as one matrix each.
        nulls: "error" refuses nulls and NaN. "fill" replaces them by 0 in features. They are always
            refused in labels and weights.
        multi_hot: form of lists, and the longest that is accepted.
        min_int_dtype: "int32" or "int64": integers have at least this width.
        max_int_dtype: "int32" or "int64": wider integers are refused unless their values fit.

    Attributes:
        columns: columns of the schema, in the order of their roles.
        multi_hot: as given, and so is `min_int_dtype`.
        labels: names of the label columns.
        weights: names of the columns of sample weights, at most one.
        dtypes: {name: dtype in a batch}.
        fields: list of `Field`, in order: one for each column, or one for each stacked role.
            Lists have none.
        ragged: {name: column of lists}.
        row_bytes: bytes of a row in a batch, without lists.
        input_names: names of the inputs of a batch, without labels and weights.

    Raises:
        ValueError: if a column cannot be in a batch, or names clash.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        stacked: bool = False,
        nulls: str = "error",
        multi_hot: MultiHot | None = None,
        min_int_dtype: str = "int32",
        max_int_dtype: str = "int64",
    ) -> None:
        columns = [column for role in ROLES for column in schema.with_role(role)]
        self.columns = columns
        self.multi_hot = multi_hot or MultiHot()
        self.min_int_dtype = np.dtype(min_int_dtype)
        self.labels = schema.labels.names
        self.weights = schema.with_role("weight").names
        widest = np.dtype(max_int_dtype)
        self.dtypes: dict[str, np.dtype] = {}
        for column in columns:
            dtype = batch_dtype(column)
            if dtype.kind == "i":
                dtype = min(max(dtype, self.min_int_dtype), widest)
            self.dtypes[column.name] = dtype
        self._filled = schema.features.names if nulls == "fill" else []
        self.ragged = {column.name: column for column in columns if column.multi_hot}
        self.fields: list[Field] = []
        together: dict[tuple[str, str], list[Column]] = {}
        for column in columns:
            if not column.multi_hot:
                name = column.role if stacked and column.role in STACKED_ROLES else column.name
                together.setdefault((name, column.role), []).append(column)
            elif column.role not in STACKED_ROLES:
                advice = ". Lists of k values in every row can be labels: Column(..., length=k)"
                advice = advice if column.role == "label" else ""
                raise ValueError(
                    f"column {column.name!r}: a {column.role} must not be a list{advice}"
                )
        for (name, _), chosen in together.items():
            dtype = np.result_type(*(self.dtypes[column.name] for column in chosen))
            for column in chosen:
                self.dtypes[column.name] = dtype
            self.fields.append(Field(name, dtype, tuple(chosen)))
        names, self.row_bytes = [], 0
        for field in self.fields:
            names.append(field.name)
            self.row_bytes += field.dtype.itemsize * field.width
        for name in self.ragged:
            padded = self.multi_hot.form == "padded"
            names += [name] if padded else [f"{name}__values", f"{name}__nnzs"]
        for name, count in collections.Counter(names).items():
            if count > 1:
                raise ValueError(
                    f"column {name!r} has the name of a tensor that a list column becomes, or of a "
                    "stacked matrix; rename it"
                )
        targets = {*self.labels, *self.weights}
        self.input_names = [name for name in names if name not in targets]

    def cells(
        self, column: Column, pieces: Sequence[pa.Array], *, first_row: int = 0
    ) -> list[np.ndarray]:
        """Return the values of a column of numbers or vectors, if a batch takes each of them.

        Args:
            column: column of the schema.
            pieces: its values, in one type.
            first_row: number of the first row, for messages.

        Returns:
            Of each piece an array [rows], or [rows, k] of vectors, without nulls and NaN; a cast to
            the dtype of a batch keeps its values.

        Raises:
            ValueError: for nulls, ids out of range or a kind that does not fit the schema; the
                message names the column, the rule, the value and the row.
        """
        if column.length is None:
            return self._numbers(column, pieces, first_row)
        values = [_vector_values(column, piece, column.length, first_row) for piece in pieces]
        numbers = self._numbers(column, values, first_row, column.length)
        return [array.reshape(-1, column.length) for array in numbers]

    def list_cells(
        self, column: Column, pieces: Sequence[pa.Array], *, first_row: int = 0
    ) -> list[Lists]:
        """Return the lists of a multi-hot column, if a batch takes each of their values.

        Arguments are those of `cells`; it also refuses lists that are too long.
        """
        values = []
        offsets = []
        for piece in pieces:
            parts = list_parts(self._lists(column, piece, first_row))
            values.append(parts[0])
            offsets.append(parts[1])
            lengths = np.diff(parts[1])
            longest = self.multi_hot.max_length
            if longest is not None and len(lengths) and lengths.max() > longest:
                row = int((lengths > longest).argmax())
                raise ValueError(
                    f"column {column.name!r}: a list of {lengths[row]} values at row "
                    f"{first_row + row}, but multi_hot has max_length={longest}. Cut the lists "
                    "in the data (pyarrow.compute.list_slice), or allow longer ones."
                )
        numbers = self._numbers(column, values, first_row, offsets[0])
        return list(map(Lists, numbers, offsets))

    def _lists(self, column: Column, array: pa.Array, first_row: int) -> pa.Array:
        """Return a column of lists of any length; ValueError for another, and for nulls."""
        if not is_list(array.type):
            raise ValueError(
                f"column {column.name!r}: the schema says multi-hot, but a row holds one value"
            )
        if array.null_count and column.name not in self._filled:
            raise ValueError(
                f"column {column.name!r}: null instead of a list at row "
                f"{first_row + int(valid_rows(array).argmin())}; pass nulls='fill', which makes it "
                "an empty list, or drop the row with filters="
            )
        if pa.types.is_fixed_size_list(array.type):
            return array.cast(pa.large_list(array.type.value_type))
        return array

    def _numbers(
        self, column: Column, pieces: Sequence[pa.Array], first_row: int, offsets: Any = None
    ) -> list[np.ndarray]:
        """Return the values of each piece, if a batch takes each of them.

        `offsets` says where a row's values are, if it has several: int64 [n + 1] of lists, or the
        length of vectors.
        """
        dtype = self.dtypes[column.name]
        kind = pieces[0].type
        if pa.types.is_null(kind):
            kind = pa.float32()
            pieces = [piece.cast(kind) for piece in pieces]
        if any(piece.null_count for piece in pieces):
            if column.name not in self._filled:
                rows = valid_rows(one_array(pa.chunked_array(pieces)))
                row = first_row + _row(rows.argmin(), offsets)
                raise ValueError(self._missing(column, kind, row))
            pieces = [pc.fill_null(piece, pa.scalar(0).cast(kind)) for piece in pieces]
        is_float = pa.types.is_floating(kind)
        is_number = is_float or pa.types.is_integer(kind) or pa.types.is_boolean(kind)
        if not is_number or (is_float and dtype.kind == "i"):
            raise ValueError(
                f"column {column.name!r}: holds {kind}, but the schema says {column.dtype}"
            )
        low, high = self.bounds(column)
        values = [piece.to_numpy(zero_copy_only=False) for piece in pieces]
        if is_float:  # NumPy's smallest number is NaN if there is one: it is within no bounds
            within = True
            for array in values:
                within &= not len(array) or bool(low <= array.min() and array.max() <= high)
        else:
            least, most = pc.min_max(pa.chunked_array(pieces)).as_py().values()
            within = least is None or low <= least <= most <= high
        return values if within else self._refused_or_filled(column, values, first_row, offsets)

    def _refused_or_filled(
        self, column: Column, pieces: Sequence[np.ndarray], first_row: int, offsets: Any
    ) -> list[np.ndarray]:
        """Return values outside the bounds with 0 for NaN; ValueError if that does not help."""
        low, high = self.bounds(column)
        values = np.concatenate(pieces)
        dtype = self.dtypes[column.name]
        missing = np.isnan(values)
        if missing.any() and column.name not in self._filled:
            row = first_row + _row(missing.argmax(), offsets)
            raise ValueError(self._missing(column, pa.from_numpy_dtype(values.dtype), row))
        values[missing] = 0
        outside = ~((values >= low) & (values <= high))
        if outside.any():
            index = int(outside.argmax())
            row = first_row + _row(index, offsets)
            raise ValueError(_refusal(column, dtype, values[index], row, low))
        return np.split(values, np.cumsum([len(piece) for piece in pieces])[:-1])

    def bounds(self, column: Column) -> tuple[float, float]:
        """Return the smallest and the largest value of a column that a batch takes."""
        target = self.dtypes[column.name]
        if target.kind == "f":
            return -FLOAT32_MAX, FLOAT32_MAX
        most = np.iinfo(target).max
        if column.role != "categorical":
            return np.iinfo(target).min, most
        least = PAD + 1 if column.multi_hot and self.multi_hot.form == "padded" else 0
        return least, most if column.cardinality is None else min(column.cardinality - 1, most)

    def _missing(self, column: Column, kind: pa.DataType, row: int) -> str:
        """Return what is wrong with a null or NaN, and what to do."""
        if column.role in ("label", "weight"):
            field = f"pc.field({column.name!r})"
            is_float = pa.types.is_floating(kind)
            known = f"~{field}.is_nan()" if is_float else f"{field}.is_valid()"
            advice = f"a {column.role} must have a value: fill it"
            if column.length is None:  # Arrow compares no vectors
                advice += f", or drop the row with filters={known} (pc is pyarrow.compute)"
        else:
            fill = "pass nulls='fill', or "
            if self.bounds(column)[0] == PAD + 1:  # 0 is padding
                fill = ""
            advice = (
                f"{fill}map a Workflow that fills it (FillMissing; Categorify gives nulls an id of "
                "their own)"
            )
        return f"column {column.name!r}: null or NaN at row {row}; {advice}"


def _vector_values(column: Column, array: Any, length: int, first_row: int) -> Any:
    """Return the values of all rows of a column of vectors, of which every row has `length`.

    A null or empty list is a missing vector: null in each place.
    """
    if not is_list(array.type):
        raise ValueError(
            f"column {column.name!r}: the schema says {length} numbers in each row, got one value "
            "a row"
        )
    vectors = pa.list_(array.type.value_type, length)
    if not pa.types.is_fixed_size_list(array.type) or array.type.list_size != length:
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
        wrong = (lengths != length) & (lengths != 0)
        if wrong.any():
            row = int(wrong.argmax())
            raise ValueError(
                f"column {column.name!r}: a list of {lengths[row]} values at row "
                f"{first_row + row}, but all lists of this column must have {length}. Write lists "
                "of one length, and a missing one as null."
            )
        if not lengths.all():
            array = pc.if_else(pa.array(lengths > 0), array, pa.scalar(None, array.type))
        array = array.cast(vectors)
    values = array.values.slice(array.offset * length, len(array) * length)
    if array.null_count:
        known = pa.array(np.repeat(valid_rows(array), length))
        values = pc.if_else(known, values, pa.scalar(None, values.type))
    return values


def _row(index: Any, offsets: Any) -> int:
    """Return the row of the value at `index`; `offsets` of lists, or numbers of a vector."""
    if offsets is None or isinstance(offsets, int):
        return int(index) // (offsets or 1)
    return int(np.searchsorted(offsets, int(index), side="right") - 1)


def _refusal(column: Column, dtype: np.dtype, value: Any, row: int, low: float) -> str:
    """Return what is wrong with a value outside the bounds of its column, and what to do."""
    place = f"column {column.name!r}: {value} at row {row}"
    if value == PAD < low:
        return (
            f"{place}: multi_hot='padded' pads lists with 0, so that no value and no null may have "
            "the id 0. Categorify gives it to none, nor does HashBucket(..., first_id=1); "
            "multi_hot='nnzs' does not pad"
        )
    if column.cardinality is not None and not low <= value < column.cardinality:
        return (
            f"column {column.name!r}: id {value} is outside [{low}, {column.cardinality}) at row "
            f"{row}. Refit the Workflow, or give the right cardinality."
        )
    if column.role == "categorical" and value < 0:
        return (
            f"{place}: ids must be at least {low}. Turn the values into ids in a Workflow "
            "(Categorify, HashBucket), leave out those that stand for none (-1 in pandas' codes), "
            "or name a number in cont_names"
        )
    if dtype.kind == "i":
        return (
            f"{place} does not fit {dtype} (JAX keeps int64 with jax_enable_x64 alone); use "
            "smaller values, and small ids from a Workflow (Categorify, HashBucket)"
        )
    if np.isfinite(value):
        advice = "scale the column in a Workflow (LogOp, Normalize) or clip it"
        return f"{place} is too large for {dtype}; {advice}"
    return (
        f"{place}; a {column.role} value must be finite: limit it with Clip in a Workflow, or drop "
        "the row with filters="
    )
