"""What errors, `repr` and a notebook show: short lists, differences, tables."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence

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
