"""Resume: whether a saved state of a loader fits the loader that is to go on from it.

Does not belong here: the state itself (`loader.py`), writing it to a file (`callbacks/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def matching(state: Mapping[str, Any], identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a state that must equal `identity`.

    Raises:
        ValueError: if it is not the state of a loader.
    """
    if not isinstance(state, Mapping):
        raise ValueError(f"this is not what state_dict() of a loader returned: {state!r}")
    missing = sorted({*identity, "epoch", "batch", "seed"} - {*state})
    if missing:
        raise ValueError(f"this is not what state_dict() of a loader returned: it lacks {missing}")
    for name in ("epoch", "batch", "seed"):
        value, may_lack = state[name], name == "seed" and state["batch"] == 0
        if not (may_lack and value is None) and (type(value) is not int or value < 0):
            raise ValueError(
                f"{name} of a loader's state must be an integer from 0 on, got {value!r}"
            )
    return {name: state[name] for name in identity}


def differences(was: Any, now: Any, name: str = "") -> list[str]:
    """Return in words where two structures of JSON values differ, one line a place.

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
