"""Layout: how the columns of a schema lie in batches, and what their values must be.

Does not belong here: copying rows (`batching.py`), tensors (`tensors.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from tutorlib.chunk import Masked, Ragged, Strings, array_namespace, is_array, to_host
from tutorlib.schema import ROLES, Column, Schema


def batch_dtype(column: Column) -> np.dtype:
    """Return the dtype that a column has in a batch, a function of the schema alone.

    Ids are int32 where the cardinality is known to fit, else as wide as in the file (int32 or
    int64); continuous columns and weights are float32; labels are int32, int64 or float32.

    Raises:
        ValueError: for text, which a Workflow must turn into ids first, for ids that are floating
            point, and for types that no batch can hold (decimals, binary, ...).
    """
    if column.dtype == "string":
        raise ValueError(
            f"column {column.name!r} is text; turn it into ids with a Workflow (Categorify or "
            "HashBucket) and loader.map(workflow)"
        )
    try:
        dtype = np.dtype(column.dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"column {column.name!r}: values of type {column.dtype} cannot be in a batch. Cast it, "
            "or leave it out by naming the columns (cat_names, cont_names)."
        ) from error
    if column.role in ("continuous", "weight"):
        return np.dtype(np.float32)
    if dtype.kind == "f":
        if column.role == "label":
            return np.dtype(np.float32)
        raise ValueError(f"column {column.name!r} is categorical but {dtype}; ids are integers")
    small = column.cardinality is not None and column.cardinality <= 2**31
    narrow = dtype.kind == "b" or dtype.itemsize < 4 or dtype == np.int32
    return np.dtype(np.int32 if small or narrow else np.int64)


@dataclasses.dataclass(frozen=True)
class Field:
    """What lies together in a batch, and is copied as one: a column, or several as records.

    Args:
        name: its name in a batch.
        dtype: of each of its values.
        columns: the columns, in order.
    """

    name: str
    dtype: np.dtype
    columns: tuple[Column, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of a row."""
        return self.dtype.itemsize * len(self.columns)

    @property
    def cell(self) -> np.dtype:
        """The dtype under which the field of a row is one value."""
        return np.dtype(f"u{self.nbytes}" if len(self.columns) == 1 else f"V{self.nbytes}")


class Layout:
    """How the columns of a schema lie in batches.

    Args:
        schema: columns as they leave the workflow.
        stacked: whether a batch holds "categorical" and "continuous" as one matrix each.
        check_ids: whether ids outside [0, cardinality) are refused.
        nulls: "error" refuses nulls, and NaN in continuous columns; "fill" puts 0 in their place;
            {name: value} puts the value there and refuses them in other columns. Labels and weights
            must have values in any case.
        max_list_length: longest list of a multi-hot column that is allowed; None for any.
        min_int_dtype: integers are made at least so wide: "int32" or "int64".

    Attributes:
        dtypes: {name: dtype in a batch}.
        fields: what scalar columns lie in, in order: one each, or stacked by role.
        places: {name: (column, number of its field, index in the field)} of scalar columns.
        ragged: {name: multi-hot column}.
        row_bytes: bytes of a row in a batch, without multi-hot columns.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        stacked: bool = False,
        check_ids: bool = True,
        nulls: str | Mapping[str, float] = "error",
        max_list_length: int | None = None,
        min_int_dtype: str = "int32",
    ) -> None:
        columns = [column for role in ROLES for column in schema.with_role(role)]
        self.stacked, self.check_ids = stacked, check_ids
        self.max_list_length = max_list_length
        self.dtypes = {c.name: _widened(batch_dtype(c), min_int_dtype) for c in columns}
        self._fills = _fills(schema, self.dtypes, nulls)
        self.ragged = {column.name: column for column in columns if column.multi_hot}
        made = [f"{name}__{part}" for name in self.ragged for part in ("values", "nnzs", "offsets")]
        for column in columns:
            if column.name in made:
                raise ValueError(f"column {column.name!r} has a name that a list column makes")
        for column in self.ragged.values():
            if column.role != "categorical":
                raise ValueError(
                    f"column {column.name!r}: a list must be categorical, not {column.role}"
                )
        self.scalars = [column for column in columns if not column.multi_hot]
        self.fields: list[Field] = []
        self.places: dict[str, tuple[Column, int, int]] = {}
        together = {column.name: [column] for column in self.scalars}
        if stacked:
            for column in columns:
                features = ("categorical", "continuous")
                if column.name in features and (column.multi_hot or column.role not in features):
                    raise ValueError(
                        f"column {column.name!r} has the name of a stacked matrix; rename it, or "
                        "use batch_layout='columns'"
                    )
            for role in ("categorical", "continuous"):
                chosen = [together.pop(c.name)[0] for c in self.scalars if c.role == role]
                if chosen:
                    together[role] = chosen
        for name, chosen in together.items():
            dtype = max((self.dtypes[c.name] for c in chosen), key=lambda dtype: dtype.itemsize)
            for index, column in enumerate(chosen):
                self.dtypes[column.name] = dtype
                self.places[column.name] = column, len(self.fields), index
            self.fields.append(Field(name, dtype, tuple(chosen)))
        self.row_bytes = sum(field.nbytes for field in self.fields)

    def cells(
        self,
        column: Column,
        values: Any,
        *,
        first_row: int = 0,
        offsets: Any = None,
    ) -> Any:
        """Return the values of one column as a batch holds them, checked, where they are.

        Args:
            column: of the schema.
            values: its values, of NumPy or CuPy.
            first_row: number of the row of `values[0]`, for messages.
            offsets: int64 [n + 1] if the values stand in lists.

        Raises:
            ValueError: for nulls, ids out of range or a kind that does not fit the schema; the
                message names the column, the rule, the value and the row.
        """
        dtype = self.dtypes[column.name]
        if isinstance(values, Masked):
            values = self._without_nulls(column, values, first_row, offsets)
        if isinstance(values, (Ragged, Strings)):
            kind = "lists" if isinstance(values, Ragged) else "text"
            raise ValueError(
                f"column {column.name!r}: holds {kind}, but the schema says {column.dtype}"
            )
        if not is_array(values) or values.ndim != 1:
            raise ValueError(
                f"column {column.name!r}: an array of one value a row is needed, got a "
                f"{type(values).__name__} of shape {np.shape(values)}"
            )
        if values.dtype.kind == "b":
            values = values.astype(np.int32)
        if values.dtype.kind == "f" and dtype.kind == "i":
            raise ValueError(
                f"column {column.name!r}: holds {values.dtype}, but the schema says {column.dtype}"
            )
        xp = array_namespace(values)
        if values.dtype.kind == "f" and len(values) and xp.isnan(values.min()):
            values = self._without_nulls(
                column, Masked(values, ~xp.isnan(values)), first_row, offsets
            )
        if column.cardinality is not None and self.check_ids and len(values):
            _check_ids(column, values, first_row, offsets)
        elif dtype.kind == "i" and len(values) and not np.can_cast(values.dtype, dtype):
            _check_fits(column, values, dtype)
        if dtype.kind == values.dtype.kind == "f" and dtype.itemsize < values.dtype.itemsize:
            return _narrowed(column, values, dtype, first_row, offsets)
        return values.astype(dtype, copy=False)

    def _without_nulls(self, column: Column, values: Masked, first_row: int, offsets: Any) -> Any:
        if values.valid.all():
            return values.values
        fill = self._fills.get(column.name)
        if fill is not None and is_array(values.values):
            # The fill may be a number that only the batch's dtype can hold: 0.5 among integers.
            made, dtype = values.values, self.dtypes[column.name]
            if dtype.kind == "f" or np.can_cast(made.dtype, dtype):
                made = made.astype(dtype)
            xp = array_namespace(made)
            return xp.where(values.valid, made, made.dtype.type(fill))
        row = first_row + _row(values.valid.argmin(), offsets)
        if column.role in ("label", "weight"):
            advice = f"a {column.role} must have a value: fill it, or leave the row out of the data"
        else:
            advice = (
                "pass nulls='fill', or fill it in a Workflow (FillMissing; Categorify gives nulls "
                "an id of their own) or in the data"
            )
        raise ValueError(f"column {column.name!r}: null or NaN at row {row}; {advice}")

    def list_cells(self, column: Column, lists: Any, *, first_row: int = 0) -> Ragged:
        """Return the lists of a multi-hot column as a batch holds them, checked.

        Raises:
            ValueError: as `cells`, and for a column that holds no lists, or a list that is longer
                than `max_list_length`.
        """
        if not isinstance(lists, Ragged):
            raise ValueError(
                f"column {column.name!r}: the schema says multi-hot, but a row holds one value"
            )
        if self.max_list_length is not None and len(lists):
            lengths = array_namespace(lists.offsets).diff(lists.offsets)
            if lengths.max() > self.max_list_length:
                row = int((lengths > self.max_list_length).argmax())
                raise ValueError(
                    f"column {column.name!r}: a list of {lengths[row]} values at row "
                    f"{first_row + row}, but max_list_length={self.max_list_length}. Cut the lists "
                    "in the data, or allow longer ones."
                )
        values = self.cells(column, lists.values, first_row=first_row, offsets=lists.offsets)
        return Ragged(values, lists.offsets)


def _fills(
    schema: Schema, dtypes: Mapping[str, np.dtype], nulls: str | Mapping[str, float]
) -> dict[str, float]:
    """Return {name: value to put in the place of a null} of the columns that have one."""
    if isinstance(nulls, str):
        if nulls not in ("error", "fill"):
            raise ValueError(f"nulls must be 'error', 'fill' or {{column: value}}, got {nulls!r}")
        return dict.fromkeys(schema.features.names, 0) if nulls == "fill" else {}
    for name, value in nulls.items():
        if name not in schema.features:
            raise ValueError(
                f"nulls: {name!r} is not a feature; the features are {schema.features.names}"
            )
        if schema[name].role != "categorical":
            continue
        end = schema[name].cardinality or np.iinfo(dtypes[name]).max + 1
        if not 0 <= value < end or value != int(value):
            raise ValueError(
                f"nulls: {value!r} is no id of column {name!r}, whose ids are integers in "
                f"[0, {end})"
            )
    return dict(nulls)


def _widened(dtype: np.dtype, min_int_dtype: str) -> np.dtype:
    return max(dtype, np.dtype(min_int_dtype)) if dtype.kind == "i" else dtype


def _row(place: Any, offsets: Any) -> int:
    """Return the row of a value: its place, or that of the list which it stands in."""
    if offsets is None:
        return int(place)
    return int(np.searchsorted(to_host(offsets), int(place), side="right") - 1)


def _narrowed(column: Column, values: Any, dtype: np.dtype, first_row: int, offsets: Any) -> Any:
    if isinstance(values, np.ndarray):  # the processor tells; a GPU does not
        with contextlib.suppress(FloatingPointError), np.errstate(over="raise"):
            return values.astype(dtype)
    with np.errstate(over="ignore"):
        made = values.astype(dtype)
    xp = array_namespace(values)
    wrong = xp.isinf(made) & ~xp.isinf(values)
    if not wrong.any():
        return made
    place = int(wrong.argmax())
    raise ValueError(
        f"column {column.name!r}: {_at(values, place)} at row {first_row + _row(place, offsets)} "
        f"is too large for {dtype}; scale the column in a Workflow (LogOp, Normalize) or clip it"
    )


def _at(values: Any, place: int) -> Any:
    """Return one of the values."""
    return to_host(values[place : place + 1])[0]


def _check_fits(column: Column, values: Any, dtype: np.dtype) -> None:
    limits = np.iinfo(dtype)
    least, most = int(values.min()), int(values.max())
    if least < limits.min or most > limits.max:
        raise ValueError(
            f"column {column.name!r}: values from {least} to {most} do not fit {dtype}. Give its "
            "cardinality, or hash it in a Workflow."
        )


def _check_ids(column: Column, values: Any, first_row: int, offsets: Any) -> None:
    if values.dtype.kind == "i" and column.cardinality > np.iinfo(values.dtype).max:
        wrong = values < 0
        if not wrong.any():
            return
    else:
        unsigned = values.view(f"u{values.dtype.itemsize}")  # a negative id becomes a huge one
        if int(unsigned.max()) < column.cardinality:
            return
        wrong = unsigned >= column.cardinality
    place = int(wrong.argmax())
    raise ValueError(
        f"column {column.name!r}: id {_at(values, place)} is outside [0, {column.cardinality}) at "
        f"row {first_row + _row(place, offsets)}. Refit the Workflow, or give the right "
        "cardinality."
    )
