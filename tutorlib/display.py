"""What errors and `repr` show: short lists, differences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


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
