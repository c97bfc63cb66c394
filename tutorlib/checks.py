"""What users are told: errors about arguments, with the rule and the value received; tables."""

from __future__ import annotations

import html
import keyword
import math
import numbers
import operator
import re
from collections.abc import Collection, Iterable, Sequence
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
        >>> check_positive(batch_size=4, limit_rows=None)
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


SIGNATURE_NAME = re.compile("(?!self$)[A-Za-z][A-Za-z0-9_]*")
SIGNATURE_RULE = (
    "the name of a signature's tensor begins with a letter, has ASCII letters, digits and "
    "underscores alone, and is no word of Python."
)


def without_signature(names: Iterable[str]) -> list[str]:
    """Return the names that TensorFlow would change or refuse in a signature.

    Example:
        >>> without_signature(["C1", "Item Name", "class"])
        ['Item Name', 'class']
    """
    return [n for n in names if not SIGNATURE_NAME.fullmatch(n) or keyword.iskeyword(n)]


# ---- what `repr` and a notebook show -------------------------------------------------------------

# Colours come from the page, so that tables fit light and dark themes.
_CELL = "text-align:{align};vertical-align:top;padding:2px 12px;white-space:pre-line"
_RULE = "border-bottom:1px solid rgba(128,128,128,.4)"


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


def html_table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table that scrolls if it is higher than about half a screen.

    Args:
        title: text above the table.
        head: names of the columns.
        rows: the cells of each row; integers get separators of thousands and stand on the right, a
            newline begins a new line, and None is empty.

    Example:
        >>> "&lt;b&gt;" in html_table("", ["name"], [["<b>"]])
        True
    """
    lines = [_row("th", [str(word) for word in head]), *(_row("td", row) for row in rows)]
    return (
        '<div style="max-height:32em;overflow:auto">'
        f'<div style="padding:4px 12px"><b>{html.escape(title)}</b></div>'
        f'<table style="border-collapse:collapse">{"".join(lines)}</table></div>'
    )


def _row(tag: str, cells: Sequence[object]) -> str:
    return f"<tr>{''.join(_cell(tag, cell) for cell in cells)}</tr>"


def _cell(tag: str, value: object) -> str:
    number = isinstance(value, int) and not isinstance(value, bool)
    style = f"{_CELL.format(align='right' if number else 'left')};{_RULE}"
    text = f"{value:,}" if number else "" if value is None else html.escape(str(value))
    return f'<{tag} style="{style}">{text}</{tag}>'
