"""Roles by type, what to do with types that no batch holds, and default widths of embeddings."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from tutorlib.checks import check_integer

ColumnTypes = Mapping[str, tuple[str, bool]]
MOST_NAMED = 5  # columns of one kind that a warning names


def role_of(dtype: str) -> str:
    """Return the default role of a column: "continuous" for floats and booleans.

    Args:
        dtype: NumPy name of one value or vector, or "string".

    Example:
        >>> role_of("float32"), role_of("bool"), role_of("int64"), role_of("string")
        ('continuous', 'continuous', 'categorical', 'categorical')
    """
    dtype, _ = element_type(dtype)
    return "continuous" if dtype.startswith("float") or dtype == "bool" else "categorical"


def remedy_for(dtype: str, is_list: bool = False) -> str | None:
    """Return what to do with a feature of a type that no batch can hold; None for other types.

    Args:
        dtype: NumPy name of one value, "string", or Arrow's name of a type that NumPy lacks.
        is_list: whether a row holds a list of values.

    Example:
        >>> remedy_for("int64"), remedy_for("decimal128(10, 2)")
        (None, 'cast it to float64 in the data')
    """
    dtype, length = element_type(dtype)
    if length is not None:
        return None
    if is_list and (dtype.startswith("float") or dtype == "bool"):
        return "their lengths differ: name them in cont_names as weights of the ids of another list"
    if dtype == "string" or is_number(dtype):
        return None
    if is_time(dtype):
        return "make features of it with DateParts in a Workflow"
    if dtype.startswith("decimal"):
        return "cast it to float64 in the data"
    if "binary" in dtype:
        return "cast it to string in the data if it holds text"
    if "list_view" in dtype:
        return "cast it to a list in the data"
    if dtype == "null":
        return "all its values are null: leave it out"
    return "store its parts as columns of numbers or strings"


def is_number(dtype: str) -> bool:
    """Return whether a name is one of NumPy's integers, floating-point numbers or booleans.

    Example:
        >>> is_number("float16"), is_number("string"), is_number("decimal128(10, 2)")
        (True, False, False)
    """
    return re.fullmatch("bool|u?int(8|16|32|64)|float(16|32|64)", dtype) is not None


def embedding_dim_for(cardinality: int) -> int:
    """Return an embedding width, 16 to 512, for a column of `cardinality` ids.

    The rule is `min(max(16, round(1.6 * cardinality**0.56)), 512)`, about the square root.

    Args:
        cardinality: number of different ids, at least 1.

    Raises:
        ValueError: if `cardinality` is below 1.

    Example:
        >>> embedding_dim_for(21), embedding_dim_for(56586)
        (16, 512)

    Source: the rule of thumb of fastai's tabular models.
    """
    check_integer("cardinality", cardinality, at_least=1, bits=63)
    return min(max(16, round(1.6 * cardinality**0.56)), 512)


def vector_type(dtype: str, length: int) -> str:
    """Return the NumPy name of a vector: "(8,)float32" for 8 values of "float32"."""
    return f"({length},){dtype}"


def element_type(kind: str) -> tuple[str, int | None]:
    """Return (type of one value, number of values of a vector or None) of a type's name.

    Example:
        >>> element_type("(8,)float32"), element_type("string")
        (('float32', 8), ('string', None))
    """
    vector = re.fullmatch(r"\((\d{1,9}),\)(\w+)", kind)
    return (vector[2], int(vector[1])) if vector else (kind, None)


def is_time(dtype: str) -> bool:
    """Return whether a name is one of NumPy's dates or durations, such as "datetime64[ms]"."""
    return dtype.startswith(("datetime64", "timedelta64"))


def inferred_features(types: ColumnTypes) -> dict[str, list[str]]:
    """Return {"categorical": names, "continuous": names} of the columns that can be features.

    Args:
        types: {name: (NumPy name of one value or "string", whether a row holds a list)}.

    Example:
        >>> inferred_features({"id": ("int64", False), "x": ("float32", False)})
        {'categorical': ['id'], 'continuous': ['x']}
    """
    features: dict[str, list[str]] = {"categorical": [], "continuous": []}
    for name, (dtype, is_list) in types.items():
        if remedy_for(dtype, is_list) is None:
            features[role_of(dtype)].append(name)
    return features


def left_out(types: ColumnTypes, used: Collection[str]) -> str:
    """Return what a warning says of the columns that inference leaves out, "" if there are none.

    Args:
        types: as for `inferred_features`.
        used: names of the features, labels and weights.
    """
    by_remedy: dict[str, list[str]] = {}
    for name, (dtype, is_list) in types.items():
        remedy = remedy_for(dtype, is_list)
        if name not in used and remedy is not None:
            words = f"a list of {dtype}" if is_list else dtype
            by_remedy.setdefault(remedy, []).append(f"{name!r} ({words})")
    if not by_remedy:
        return ""
    parts = []
    for remedy, columns in by_remedy.items():
        more = f" and {len(columns) - MOST_NAMED} more" if len(columns) > MOST_NAMED else ""
        parts.append(f"{', '.join(columns[:MOST_NAMED])}{more}: {remedy}")
    return (
        f"these columns are not among the features: {'; '.join(parts)}. Name the features "
        "(cat_names, cont_names) to choose them yourself, without this warning."
    )


def check_in_files(source: Any, names: Iterable[str]) -> None:
    """Raise ValueError for columns that a source does not have, with the reason if files differ.

    Args:
        source: a `ParquetSource`, or any object with its `column_types`.
        names: the columns.
    """
    missing = [name for name in names if name not in source.column_types]
    if missing:
        stored = getattr(source, "stored", None)
        why = "" if stored is None else stored.shared.why_missing(missing)
        have = list(source.column_types)
        raise ValueError(f"columns {missing} are not in the files, which have {have}{why}")
