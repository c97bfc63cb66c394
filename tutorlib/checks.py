"""Checks of arguments: each error names the argument, the rule and the value received."""

from __future__ import annotations

import math
import numbers
import operator
import os
import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Self

_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([KMGT]?)(i?)B\s*", re.IGNORECASE)

_FIT = "workflow.fit(source) learns, in as few passes as possible"
_PADDED = 'multi_hot="padded", max_list_length=5; lists are recognised by their type'
_GROUPS = 'groups of columns: Workflow(["C1"] >> Categorify(), ["I1"] >> Normalize(), ["label"])'
_SIZES = "workflow.embedding_sizes(), after fit"
_SOURCE = "ParquetSource(paths), or the paths themselves, where data is asked for"

FORMER_NAMES = {  # {class or module: {name of NVTabular: today's form}}
    "KerasSequenceLoader": {
        "paths_or_dataset": "the first argument: KerasSequenceLoader(paths, batch_size)",
        "label_name": 'label_names=["label"]',
        "sparse_names": 'cat_names=["genres"]; lists are recognised by their type',
        "sparse_max": _PADDED,
        "sparse_as_dense": _PADDED,
    },
    "Workflow": {
        "cat_names": _GROUPS,
        "cont_names": _GROUPS,
        "label_name": 'label_names=["label"], with ["label"] among the groups of columns',
        "client": "workflow.fit(source, client), and client= of transform_to_parquet",
        "add_cat_preprocess": 'Workflow(["C1", "C2"] >> Categorify(), ...)',
        "add_cont_preprocess": 'Workflow(["I1", "I2"] >> FillMissing() >> Normalize(), ...)',
        "add_cat_feature": 'Workflow(["C1", "C2"] >> HashBucket(1000), ...)',
        "add_cont_feature": 'Workflow(["I1", "I2"] >> FillMissing() >> LogOp(), ...)',
        "add_feature": 'Workflow(["I1", "I2"] >> FillMissing(), ...)',
        "add_preprocess": 'Workflow(["I1", "I2"] >> Normalize(), ...)',
        "finalize": "nothing: a Workflow is complete once it is made",
        "update_stats": _FIT,
        "apply": 'workflow.transform_to_parquet(source, "folder"), after fit',
        "fit_transform": 'workflow.fit(source).transform_to_parquet(source, "folder")',
        "save_stats": 'workflow.save("folder")',
        "load_stats": 'Workflow.load("folder")',
        "get_embedding_sizes": _SIZES,
    },
    "tutorlib": {"Dataset": _SOURCE, "get_embedding_sizes": _SIZES},
    "tutorlib.ops": {"get_embedding_sizes": _SIZES},
}


class FormerNames:
    """Base of a class in `FORMER_NAMES`: former arguments and attributes get a helpful error."""

    def __new__(cls, *args: Any, **arguments: Any) -> Self:
        """Refuse former arguments, by name."""
        for name in arguments:
            if form := _form_of(cls, name):
                raise TypeError(f"{cls.__name__} has no argument {name!r} of NVTabular: {form}")
        return super().__new__(cls)

    if not TYPE_CHECKING:  # mypy would take any attribute for one that exists

        def __getattr__(self, name: str) -> Any:
            owner = f"{type(self).__name__!r} object"
            raise no_attribute(owner, name, _form_of(type(self), name))


def _form_of(cls: type, name: str) -> str | None:
    known = (FORMER_NAMES[c.__name__] for c in cls.__mro__ if c.__name__ in FORMER_NAMES)
    return next((names[name] for names in known if name in names), None)


def no_attribute(owner: str, name: str, form: str | None) -> AttributeError:
    """Return the error for an attribute that does not exist, with today's form of a former one."""
    hint = "" if form is None else f" of NVTabular: {form}"
    return AttributeError(f"{owner} has no attribute {name!r}{hint}")


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


def check_path(name: str, value: Any, advice: str) -> None:
    """Raise TypeError, with advice, if `value` is no path.

    Example:
        >>> check_path("log_dir", 4096, "Give a folder.")
        Traceback (most recent call last):
        TypeError: log_dir must be a path, got 4096. Give a folder.
    """
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name} must be a path, got {value!r}. {advice}")
