"""Functions of the user: saved by name, never by code, and known by what their code does."""

from __future__ import annotations

import hashlib
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_PLAIN = (int, float, str, bytes, type(None))


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


def code_identity(function: Any) -> str | None:
    """Return a hash of a function's code and of what it names, or None if that is not known.

    Known is a function of a module or of the notebook that names modules, functions of this kind,
    numbers and strings. Modules are taken to stay as they are.
    """
    try:
        return hashlib.sha256(repr(list(_code_of(function, set()))).encode()).hexdigest()
    except (LookupError, RecursionError):
        return None


def _code_of(value: Any, met: set[int]) -> Iterator[Any]:
    """Yield what decides what a function does; LookupError for what cannot be told."""
    if isinstance(value, types.ModuleType):
        yield value.__name__
    elif isinstance(value, types.BuiltinFunctionType):
        yield value.__module__, value.__qualname__
    elif isinstance(value, tuple | frozenset):
        for part in value if isinstance(value, tuple) else sorted(value, key=repr):
            yield from _code_of(part, met)
    elif isinstance(value, types.CodeType):
        yield value.co_code, value.co_names, value.co_varnames
        yield from _code_of(value.co_consts, met)
    elif isinstance(value, _PLAIN):
        yield type(value).__name__, value
    elif not isinstance(value, types.FunctionType) or value.__closure__:
        raise LookupError(value)
    elif id(value) not in met:
        met.add(id(value))
        yield from _code_of((value.__code__, value.__defaults__), met)
        yield from _code_of(tuple((value.__kwdefaults__ or {}).items()), met)
        for name in _names_in(value.__code__):
            if name in value.__globals__:
                yield name
                yield from _code_of(value.__globals__[name], met)


def _names_in(code: types.CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in code and in the functions inside it."""
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _names_in(part)
