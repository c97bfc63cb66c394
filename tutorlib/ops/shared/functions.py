"""Functions of the user in a saved workflow: saved by name, never by code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def name_to_save(function: object, op: str) -> str:
    """Return the name under which a user's function is saved; ValueError for a lambda."""
    name = getattr(function, "__name__", "<lambda>")
    if name == "<lambda>":
        raise ValueError(
            f"{op}: a function without a name cannot be saved. Write `def name(x): ...` and pass "
            f"{op}(name)."
        )
    return name


def function_named(
    name: str, functions: Mapping[str, Callable[..., Any]], op: str
) -> Callable[..., Any]:
    """Return the function of a saved op from those passed to `Workflow.load`, or ValueError."""
    if name not in functions:
        raise ValueError(
            f"{op}: the saved workflow needs the function {name!r}, which is never saved. Pass it: "
            f"Workflow.load(folder, functions={{{name!r}: {name}}})."
        )
    return functions[name]
