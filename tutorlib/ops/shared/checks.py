"""ColumnChecks: what an op accepts of a column. Each error names the column and the op."""

from __future__ import annotations

import math
import reprlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from tutorlib.columns import Array, Ragged, Strings, array_namespace, is_vectors
from tutorlib.ops.shared.columns import column_type, parts_of, per_column, with_nulls

LARGEST = sys.float_info.max


def check_real(name: str, value: Any, at_least: float = -math.inf) -> Any:
    """Return a finite number; ValueError, which calls it `name`, for anything else.

    Example:
        >>> check_real("smoothing", float("nan"), at_least=0)
        Traceback (most recent call last):
        ValueError: smoothing must be a finite number of at least 0, got nan
    """
    real = isinstance(value, int | float | np.integer | np.floating)
    fits = real and (abs(value) <= LARGEST if isinstance(value, int) else math.isfinite(value))
    if not fits or value < at_least:
        limit = "" if at_least == -math.inf else f" of at least {at_least}"
        raise ValueError(f"{name} must be a finite number{limit}, got {reprlib.repr(value)}")
    return value


def check_fill(name: str, value: Any) -> None:
    """Raise ValueError unless a value is a string, a finite number or NaN."""
    if not isinstance(value, str) and value == value:
        check_real(name, value)


class ColumnChecks:
    """Methods by which an op reads a column, or refuses it."""

    def _wrong(self, name: str, rule: str) -> str:
        """Return an error message: "column 'x': Clip " and the rule."""
        return f"column {name!r}: {type(self).__name__} {rule}"

    def _check_no_lists(self, name: str, column: Any) -> None:
        if isinstance(column, Ragged) or is_vectors(column):
            raise TypeError(self._wrong(name, "takes one value per row, got lists"))

    def _require_settings(self, setting: str, names: Sequence[str]) -> list[str]:
        """Return the names; ValueError for columns that {name: setting} does not have."""
        missing = [name for name in names if per_column(getattr(self, setting), name) is None]
        if missing:
            op = type(self).__name__
            raise ValueError(f"{op}: {setting} has no entry for columns {missing}")
        return list(names)

    def _check_kind(self, name: str, column: Any, learned: Any) -> None:
        """Refuse strings where integers were learned, and integers where strings were."""
        kinds = [column_type(values)[0] for values in (learned, column)]
        if (kinds[0] == "string") != (kinds[1] == "string"):
            raise TypeError(self._wrong(name, f"has keys of {kinds[0]}, got {kinds[1]}"))

    def _numbers(self, name: str, column: Any) -> tuple[Array, Array | None]:
        """Return (values, valid) of a column of numbers; TypeError for strings."""
        values, valid = parts_of(column)
        if isinstance(values, Strings):
            rule = "takes numbers, got strings. Use Categorify or HashBucket."
            raise TypeError(self._wrong(name, rule))
        if values.dtype.kind in "mM":
            rule = f"takes numbers, got {values.dtype}. Make them of dates with DateParts."
            raise TypeError(self._wrong(name, rule))
        return values, valid

    def _floats(self, name: str, column: Any) -> Array:
        """Return numbers as float64, NaN at a null; may share the column's memory."""
        values, valid = self._numbers(name, column)
        floats = values.astype(np.float64, copy=False)
        return floats if valid is None else with_nulls(floats.copy(), valid)

    def _check_size(self, name: str, values: Array) -> None:
        """Raise ValueError unless float64 values without NaN are below 2**400 in magnitude."""
        sizes = array_namespace(values).abs(values)
        if len(values) and not float(sizes.max()) < 2.0**400:
            worst = float(values[int(sizes.argmax())])
            rule = f"takes values below 2**400, got {worst}. Put Clip before it."
            raise ValueError(self._wrong(name, rule))

    def _keys(self, name: str, column: Any) -> tuple[Any, Array | None]:
        """Return (values, valid) of integers, booleans or strings; TypeError for floats.

        Dates and times are the integers that they count.
        """
        values, valid = parts_of(column)
        if not isinstance(values, Strings) and values.dtype.kind in "mM":
            values = values.view(np.int64)
        if not isinstance(values, Strings) and values.dtype.kind not in "iub":
            rule = (
                f"takes integers or strings, got {values.dtype}. In pandas, integers with missing "
                "values are of dtype 'Int64'."
            )
            raise TypeError(self._wrong(name, rule))
        return values, valid

    def _keys_to_learn(self, name: str, column: Any) -> tuple[Any, Array | None]:
        """Return `_keys`; ValueError if an integer is beyond int64."""
        values, valid = self._keys(name, column)
        if not isinstance(values, Strings) and values.dtype == np.uint64 and len(values):
            largest = int(values.max())
            if largest >= 2**63:
                rule = (
                    f"takes integers below 2**63, got {largest}. HashBucket takes any; or store "
                    "them as strings."
                )
                raise ValueError(self._wrong(name, rule))
        return values, valid
