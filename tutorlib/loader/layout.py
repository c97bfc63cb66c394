"""Layout: how the columns of a schema lie in a batch, and which values are accepted."""

from __future__ import annotations

import collections
import dataclasses
import functools
from typing import Any

import numpy as np

from tutorlib.columns import (
    Masked,
    Ragged,
    as_lists,
    as_vectors,
    flat_values,
    is_array,
    is_vectors,
)
from tutorlib.loader.settings import PAD, MultiHot
from tutorlib.schema import ROLES, Column, Schema, batch_dtype

FLOAT32_MAX = np.float64(np.finfo(np.float32).max)  # with float16, a Python float is infinite
STACKED_ROLES = ("categorical", "continuous")


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
        self.labels, self.weights = schema.labels.names, schema.with_role("weight").names
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
            dtype = max((self.dtypes[c.name] for c in chosen), key=lambda dtype: dtype.itemsize)
            self.dtypes |= {column.name: dtype for column in chosen}
            self.fields.append(Field(name, dtype, tuple(chosen)))
        self.row_bytes = sum(field.dtype.itemsize * field.width for field in self.fields)
        names = [field.name for field in self.fields]
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
        self,
        column: Column,
        values: Any,
        *,
        first_row: int = 0,
        offsets: Any = None,
    ) -> Any:
        """Return the checked values of a column in the dtype of a batch.

        Args:
            column: column of the schema.
            values: its values as they were read: an array, or `Masked`. Vectors may also come as
                `Ragged`.
            first_row: number of the row of `values[0]`, for messages.
            offsets: where a row's values are, if it has several: int64 [n + 1] of lists, or the
                length of vectors; None for one value a row.

        Returns:
            Array of the same length; [n, k] for vectors of k > 1 numbers.

        Raises:
            ValueError: for nulls, ids out of range or a kind that does not fit the schema; the
                message names the column, the rule, the value and the row.
        """
        if column.length is not None and offsets is None:
            flat = _vector_values(column, values, first_row)
            length = column.length
            cells = self.cells(column, flat, first_row=first_row, offsets=length)
            return cells if column.length == 1 else cells.reshape(-1, column.length)
        dtype = self.dtypes[column.name]
        if isinstance(values, Masked):
            values = self._without_nulls(column, values, first_row, offsets)
        kind = "lists" if isinstance(values, Ragged) else "strings"
        if is_array(values):
            kind = f"{values.dtype} of shape {values.shape}"
            if values.dtype.kind == "b":
                values = values.astype(np.int32)
        floats = is_array(values) and values.dtype.kind == "f" and dtype.kind == "i"
        if not is_array(values) or values.ndim != 1 or floats:
            raise ValueError(
                f"column {column.name!r}: holds {kind}, but the schema says {column.dtype}"
            )
        low, high = self.bounds(column)
        # A NaN is within no bounds.
        if len(values) and not (low <= values.min() and values.max() <= high):
            if values.dtype.kind == "f":
                present = Masked(values, ~np.isnan(values))
                values = self._without_nulls(column, present, first_row, offsets)
            outside = ~((values >= low) & (values <= high))
            if outside.any():
                index = int(outside.argmax())
                row = first_row + _row(index, offsets)
                raise ValueError(_refusal(column, dtype, values[index], row, low))
        return values.astype(dtype, copy=False)

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

    def _without_nulls(self, column: Column, values: Masked, first_row: int, offsets: Any) -> Any:
        if values.valid.all():
            return values.values
        made = values.values
        if column.name in self._filled and is_array(made):
            return np.where(values.valid, made, made.dtype.type(0))
        row = first_row + _row(values.valid.argmin(), offsets)
        if column.role in ("label", "weight"):
            field, given = f"pc.field({column.name!r})", values.values
            floating = is_array(given) and given.dtype.kind == "f"
            known = f"~{field}.is_nan()" if floating else f"{field}.is_valid()"
            advice = (
                f"a {column.role} must have a value: fill it, or drop the row with filters={known} "
                "(pc is pyarrow.compute)"
            )
        else:
            fill = "pass nulls='fill', or "
            if self.bounds(column)[0] == PAD + 1:  # 0 is padding
                fill = ""
            advice = (
                f"{fill}map a Workflow that fills it (FillMissing; Categorify gives nulls an id of "
                "their own)"
            )
        raise ValueError(f"column {column.name!r}: null or NaN at row {row}; {advice}")

    def list_cells(self, column: Column, lists: Any, *, first_row: int = 0) -> Ragged:
        """Return the checked lists of a multi-hot column, with values in the dtype of a batch.

        Arguments are those of `cells`; it also refuses lists that are too long.
        """
        lists = as_lists(lists)
        if not isinstance(lists, Ragged):
            raise ValueError(
                f"column {column.name!r}: the schema says multi-hot, but a row holds one value"
            )
        if lists.valid is not None and column.name not in self._filled and not lists.valid.all():
            raise ValueError(
                f"column {column.name!r}: null instead of a list at row "
                f"{first_row + int(lists.valid.argmin())}; pass nulls='fill', which makes it an "
                "empty list, or drop the row with filters="
            )
        longest = self.multi_hot.max_length
        if longest is not None and len(lists):
            lengths = np.diff(lists.offsets)
            if lengths.max() > longest:
                row = int((lengths > longest).argmax())
                raise ValueError(
                    f"column {column.name!r}: a list of {lengths[row]} values at row "
                    f"{first_row + row}, but multi_hot has max_length={longest}. Cut the lists "
                    "in the data (pyarrow.compute.list_slice), or allow longer ones."
                )
        values = self.cells(column, lists.values, first_row=first_row, offsets=lists.offsets)
        return Ragged(values, lists.offsets)


def _vector_values(column: Column, values: Any, first_row: int) -> Any:
    """Return the values of all rows of a column of vectors, of which every row has `length`."""
    length = column.length
    if isinstance(values, Ragged) and length is not None:
        try:
            values = as_vectors(values, length, first_row)
        except ValueError as error:
            raise ValueError(f"column {column.name!r}: {error}") from error
    array = values.valid if isinstance(values, Masked) else values
    if not is_vectors(values) or array.shape[1] != length:
        shape = f"[rows, {array.shape[1]}]" if is_vectors(values) else "one value a row"
        raise ValueError(
            f"column {column.name!r}: the schema says {length} numbers in each row, got {shape}"
        )
    return flat_values(values)


def _row(index: Any, offsets: Any) -> int:
    """Return the row of the value at `index`; `offsets` as in `Layout.cells`."""
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
