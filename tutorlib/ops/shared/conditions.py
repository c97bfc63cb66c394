"""The one rule by which `filters=` of the loader and the op `Filter` compare numbers.

* A column of integers or booleans is compared exactly, as mathematical numbers: 2**53 + 1 differs
  from 2.0**53, and `x < 2.5` means `x < 3`.
* A value for a floating-point column is first rounded to the column's type: 0.1 in a float32 column
  equals 0.1.
* A null or NaN passes no comparison, not even `!=` and `not in`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
MEMBERSHIP = ("in", "not in")


def number_comparison(dtype: np.dtype, comparison: str, value: Any) -> tuple[str, Any]:
    """Return (comparison, value) with the same result, and the value in the type of the column.

    Args:
        dtype: type of the column: floating point or integers; booleans are compared as uint8.
        comparison: "==", "!=", "<", "<=", ">", ">=", "in" or "not in".
        value: int or float, or a sequence of these for "in" and "not in".

    Returns:
        The operator with a scalar of `dtype`, or "in" or "not in" with a list of them. An empty
        list means that no row passes "in", and every row with a value passes "not in".

    Raises:
        ValueError: if a value is not a number, or NaN.

    Example:
        >>> number_comparison(np.dtype("int8"), "<", 2.5)
        ('<', np.int8(3))
        >>> number_comparison(np.dtype("int8"), "!=", 300)
        ('not in', [])
        >>> number_comparison(np.dtype("float32"), "in", [1, 2.5])
        ('in', [np.float32(1.0), np.float32(2.5)])
    """
    values: Sequence[Any] = value if comparison in MEMBERSHIP else [value]
    for one in values:
        if not isinstance(one, int | float) or one != one:
            raise ValueError(f"{comparison!r} compares with numbers other than NaN, got {one!r}")
    if dtype.kind == "f":
        rounded = [_rounded(dtype, one) for one in values]
        return (comparison, rounded) if values is value else (comparison, rounded[0])
    if comparison in ("<", "<=", ">", ">="):
        return _bound(dtype, comparison, value)
    limits = np.iinfo(dtype)
    held = [one for one in values if limits.min <= one <= limits.max and one == math.floor(one)]
    exact = [dtype.type(int(one)) for one in held]
    if exact and values is not value:
        return comparison, exact[0]
    return {"==": "in", "!=": "not in"}.get(comparison, comparison), exact


def _rounded(dtype: np.dtype, value: float) -> Any:
    try:
        with np.errstate(over="ignore"):
            return dtype.type(float(value))
    except OverflowError:  # an int beyond float64
        return dtype.type(math.inf if value > 0 else -math.inf)


def _bound(dtype: np.dtype, comparison: str, value: float) -> tuple[str, Any]:
    """Return the comparison of integers with the nearest integer that keeps its meaning."""
    limits = np.iinfo(dtype)
    if limits.min - 1 < value < limits.max + 1:
        bound = math.ceil(value) if comparison in ("<", ">=") else math.floor(value)
        if limits.min <= bound <= limits.max:
            return comparison, dtype.type(bound)
    passes = (value > 0) == (comparison in ("<", "<="))
    return ("not in" if passes else "in"), []
