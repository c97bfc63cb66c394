"""Checks of arguments, whose errors name argument, rule and value; lists of words in errors."""

from __future__ import annotations

import math
import numbers
import operator
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([KMGT]?)(i?)B\s*", re.IGNORECASE)


def check_choice(name: str, value: Any, choices: Collection[Any]) -> None:
    """Raise ValueError if `value` is not one of `choices`.

    Example:
        >>> check_choice("device", "tpu", ("cpu", "gpu"))
        Traceback (most recent call last):
        ValueError: device must be one of ('cpu', 'gpu'), got 'tpu'
    """
    if value not in choices:
        raise ValueError(f"{name} must be one of {choices}, got {value!r}")


def check_integer(name: str, value: Any, at_least: int, bits: int | None = None) -> int:
    """Return an integer of any type, NumPy's too, as Python's int, which JSON can hold.

    Args:
        name: what the error calls the value.
        value: the value to check.
        at_least: smallest value allowed.
        bits: the value must be below 2**bits; None sets no upper limit.

    Raises:
        ValueError: if it is not an integer, or out of range.

    Example:
        >>> check_integer("threads", 0, at_least=1)
        Traceback (most recent call last):
        ValueError: threads must be at least 1, got 0
    """
    limits = f"at least {at_least}" if bits is None else f"in [{at_least}, 2**{bits})"
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer, {limits}, got {value!r}") from None
    if number < at_least or (bits is not None and number >= 2**bits):
        raise ValueError(f"{name} must be {limits}, got {number}")
    return number


def check_positive(**values: int | None) -> None:
    """Raise ValueError for a value that is not an integer of at least 1; None passes.

    Example:
        >>> check_positive(batch_size=4, every_n_batches=None)
    """
    for name, value in values.items():
        if value is not None:
            check_integer(name, value, at_least=1)


def check_bytes(name: str, value: Any) -> int | None:
    """Return a number of bytes, which may be given as text with a unit; None stays None.

    Args:
        name: what the error calls the value.
        value: a number, at least 1, or text: "1.5GB" (10**9 bytes each), "512 MiB" (2**20 each).

    Raises:
        ValueError: if it is neither, or less than a byte.

    Example:
        >>> check_bytes("memory_budget", "1.5GB"), check_bytes("memory_budget", "2 KiB")
        (1500000000, 2048)
    """
    if value is None:
        return None
    number: Any = value if isinstance(value, numbers.Real) else math.nan
    if isinstance(value, str) and (size := _SIZE.fullmatch(value)):
        unit = 1024 if size[3] else 1000
        number = float(size[1]) * unit ** " KMGT".index(size[2].upper() or " ")
    if not 1 <= number < math.inf:
        raise ValueError(
            f"{name} must be a number of bytes, at least 1, or text such as '1.5GB' or '512MiB', "
            f"got {value!r}"
        )
    return int(number)


# What errors and `repr` show.


def shortened(items: Iterable[object], most: int = 6) -> str:
    """Return the first items as text, and how many more there are.

    Args:
        items: any number of items.
        most: items to show, at least 1.

    Example:
        >>> shortened(f"C{i}" for i in range(1, 27))
        'C1, C2, C3, C4, C5, C6, ... 20 more'
    """
    words = [str(item) for item in items]
    rest = len(words) - most
    return ", ".join(words if rest < 2 else [*words[:most], f"... {rest:,} more"])


def differences(was: object, now: object, name: str = "") -> list[str]:
    """Return where two nested JSON values differ, one sentence for each place.

    Example:
        >>> differences({"data": {"rows": 10}, "seed": 0}, {"data": {"rows": 12}, "seed": 0})
        ['data.rows was 10, is 12']
    """
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        lines = []
        for key in dict.fromkeys([*was, *now]):
            path = f"{name}.{key}" if name else str(key)
            lines += differences(was.get(key), now.get(key), path)
        return lines
    return [] if was == now else [f"{name} was {was!r}, is {now!r}"]
