"""LabelEncoder: the classes of a label, as text, numbers or booleans, become ids 0, 1, 2, ..."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tutorlib.checks import check_integer
from tutorlib.columns import (
    Array,
    Chunk,
    Masked,
    Ragged,
    Strings,
    array_namespace,
    as_lists,
    column_from_arrow,
    flat_values,
    row_ids,
    slice_rows,
    take,
)
from tutorlib.hashing import KeyIndex
from tutorlib.ops.base import ColumnOp, LearningOp
from tutorlib.ops.shared.columns import (
    column_type,
    id_dtype,
    missing_in,
    parts_of,
    with_nulls,
)
from tutorlib.ops.shared.counts import count_integers, count_strings
from tutorlib.ops.shared.keys import find_keys
from tutorlib.schema import Column


class LabelEncoder(ColumnOp, LearningOp):
    """Maps the classes of a label to ids 0 to n - 1, as losses and metrics take them.

    Two classes suit `binary_crossentropy`, more suit `sparse_categorical_crossentropy`. The ids of
    `Categorify` do not: they begin with padding, null and out of vocabulary. The columns are labels
    of the workflow, also without `label_names`; each column has classes of its own. A served
    workflow leaves labels out.

    Returns (from transform): int32 ids, int64 for more than 2**31 classes; a null or NaN stays
    null. Of a column of lists, a multi-hot target, float32 [rows, n] with 1 for each class in a
    row's list, as `binary_crossentropy` over n sigmoids takes it; its nulls have no class.

    Args:
        classes: strings, numbers or booleans in the order of their ids, or {name: classes}. None
            learns those in the data, sorted: numbers by value, strings by their UTF-8 bytes.
        unknown: what other values become: "error" refuses them, "null" makes them null, and an
            integer from -1 on is their id. Keras's sparse losses skip the id that their
            `ignore_class` names, such as -1. In lists, an id that no class has is left out.

    Raises:
        ValueError: if classes are not unique or `unknown` is another value; in `finalize`, for a
            column of nulls; in `transform`, for an unknown value, with its row.
        TypeError: for strings where classes are numbers, or the other way round.

    Example:
        >>> op = LabelEncoder()
        >>> chunk = Chunk({"income": column_from_arrow(pa.array(["<=50K", ">50K", "<=50K"]))})
        >>> op.finalize(op.partial(chunk))
        >>> op.transform(chunk)["income"].tolist(), op.classes_of("income")
        ([0, 1, 0], ['<=50K', '>50K'])
        >>> op.decode("income", np.array([[0.2], [0.7]])).tolist()
        ['<=50K', '>50K']
    """

    def __init__(
        self,
        classes: Sequence[Any] | Mapping[str, Sequence[Any]] | None = None,
        unknown: str | int = "error",
    ) -> None:
        if unknown not in ("error", "null"):
            if isinstance(unknown, str):
                raise ValueError(
                    f"LabelEncoder: unknown must be 'error', 'null' or an id, got {unknown!r}"
                )
            check_integer("LabelEncoder: unknown", unknown, at_least=-1, bits=31)
        self.classes, self.unknown = classes, unknown
        self._shared = None  # classes of all columns
        self._given: dict[str, _Classes] = {}
        if isinstance(classes, Mapping):
            self._given = {name: _given(name, some) for name, some in classes.items()}
        elif classes is not None:
            self._shared = _given(None, classes)
        self.reset()

    def reset(self) -> None:
        """Forget what was learned, but not the classes given."""
        self._learned: dict[str, _Classes] = {}

    def unlearned(self, names: Sequence[str]) -> list[str]:
        """Return the columns whose classes are not known."""
        return [name for name in names if self._known(name) is None]

    def _known(self, name: str) -> _Classes | None:
        return self._shared or self._given.get(name) or self._learned.get(name)

    def _classes(self, name: str) -> _Classes:
        known = self._known(name)
        if known is None:
            raise ValueError(self._wrong(name, "has no classes yet. Call fit first."))
        return known

    def partial(self, chunk: Chunk) -> dict[str, pa.Array]:
        """Return {column: its distinct values}."""
        return {
            name: self._distinct(name, column)
            for name, column in chunk.items()
            if name in self.unlearned([name])
        }

    def _distinct(self, name: str, column: Any) -> pa.Array:
        column = flat_values(column)
        missing = missing_in(column)
        values = take(parts_of(column)[0], array_namespace(missing).flatnonzero(~missing))
        if isinstance(values, Strings):
            return count_strings(values)[0].cast(pa.large_string())
        if values.dtype.kind == "f":
            return pa.array(count_integers(_bits(values))[0].view(np.float64))
        whole = count_integers(self._keys_to_learn(name, values)[0])[0]
        return pa.array(whole.astype(bool) if values.dtype.kind == "b" else whole)

    def merge_states(self, states: Sequence[pa.Array]) -> pa.Array:
        """Return the distinct values of all states."""
        kinds = sorted({str(state.type) for state in states})
        if len(kinds) > 1:
            raise TypeError(f"takes classes of one type, got {kinds}")
        return pa.concat_arrays(states).unique()

    def finalize(self, state: dict[str, pa.Array]) -> None:
        """Number the classes in their order."""
        learned = dict(self._learned)
        for name, distinct in state.items():
            if not len(distinct):
                rule = "found no value. Name the classes: LabelEncoder(classes=[...])."
                raise ValueError(self._wrong(name, rule))
            ordered = distinct.take(pc.array_sort_indices(distinct))
            learned[name] = _Classes(column_from_arrow(ordered))
        self._learned = learned

    def learned_tables(self) -> dict[str, Chunk]:
        """Return {column: its classes in the order of their ids}."""
        return {name: Chunk({"value": known.values}) for name, known in self._learned.items()}

    def restore(self, learned: dict[str, Any], tables: Mapping[str, Chunk]) -> None:
        """Set the classes."""
        self._learned = {name: _Classes(table["value"]) for name, table in tables.items()}

    def classes_of(self, name: str) -> list[Any]:
        """Return the classes of a column in the order of their ids."""
        return self._classes(name).values.tolist()

    def transform(self, chunk: Chunk) -> Chunk:
        """Return the ids of single values, the multi-hot targets of lists."""
        made = {
            name: self._multi_hot(name, column)
            if isinstance(column, Ragged)
            else self.transform_column(name, column)
            for name, column in ((name, as_lists(column)) for name, column in chunk.items())
        }
        return Chunk(made)

    def _multi_hot(self, name: str, lists: Ragged) -> Array:
        """Return float32 [rows, classes], 1 where a class is in a row's list."""
        rows = row_ids(lists.offsets)
        ids, valid = parts_of(self.transform_column(name, lists.values, rows))
        size = len(self.classes_of(name))
        known = (ids >= 0) & (ids < size)
        known = known if valid is None else known & valid
        target = array_namespace(rows).zeros((len(lists), size), dtype=np.float32)
        target[rows[known], ids[known]] = 1
        return target

    def transform_column(self, name: str, column: Any, rows: Array | None = None) -> Any:
        """Return the ids of a column's values; `rows` has the row of each for messages."""
        known = self._classes(name)
        values, _ = parts_of(column)
        self._check_kind(name, values, known.values)
        found, missing = known.find(values), missing_in(column)
        ids = found.astype(id_dtype(len(known.values)), copy=False) - 1
        wrong = (found == 0) & ~missing
        if bool(wrong.any()):
            if self.unknown == "error":
                place = int(wrong.argmax())
                row = place if rows is None else int(rows[place])
                value = slice_rows(values, place, place + 1).tolist()[0]
                raise ValueError(self._unknown_value(name, value, row))
            if self.unknown == "null":
                missing = missing | wrong
            else:
                ids[wrong] = self.unknown
        return with_nulls(ids, ~missing)

    def _unknown_value(self, name: str, value: Any, row: int) -> str:
        """Return the message about a value that is not among the classes."""
        return self._wrong(
            name,
            f"knows the classes {reprlib.repr(self.classes_of(name))}, got {value!r} at row {row} "
            "of the chunk. Fit on rows of every class, name all of them in classes=, or pass "
            "unknown='null' or an id for such values.",
        )

    def decode(self, name: str, predictions: Any, multi_hot: bool = False) -> Any:
        """Return the classes that a model predicts.

        Args:
            name: the column, as the op sees it.
            predictions: integer ids [n] or [n, 1]; probabilities [n, classes], of which the largest
                wins; or, of two classes, the probability of the second one, [n] or [n, 1], which
                wins from 0.5 on.
            multi_hot: whether rows have several classes: predictions are [n, classes], and those
                from 0.5 on are of the row.

        Returns:
            Array [n] of classes; if `multi_hot`, a list of n such arrays.

        Raises:
            ValueError: if the shape does not fit the number of classes, or an id is not theirs.
        """
        classes, given = np.array(self.classes_of(name)), np.asarray(predictions)
        if multi_hot and given.ndim == 2 and given.shape[1] == len(classes):
            return [classes[row >= 0.5] for row in given]
        if given.dtype.kind == "f" and given.ndim == 2 and given.shape[1] == len(classes):
            ids = given.argmax(axis=1)
        elif multi_hot or given.ndim > 2 or given.size != len(given):
            rule = f"has {len(classes)} classes, got predictions of shape {given.shape}"
            raise ValueError(self._wrong(name, rule))
        elif given.dtype.kind != "f":
            ids = given.reshape(-1).astype(np.int64)
        elif len(classes) == 2:
            ids = (given.reshape(-1) >= 0.5).astype(np.int64)
        else:
            rule = f"needs probabilities [n, {len(classes)}], got the shape {given.shape}"
            raise ValueError(self._wrong(name, rule))
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < len(classes):
            rule = f"has ids in [0, {len(classes)}), got {int(ids.min())} to {int(ids.max())}"
            raise ValueError(self._wrong(name, rule))
        return classes[ids]

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return label columns: ids, and vectors in place of lists."""
        sizes = [len(self.classes_of(column.name)) for column in columns]
        return [
            Column(column.name, "label", "float32", length=size)
            if column.multi_hot or column.length is not None
            else Column(column.name, "label", id_dtype(size))
            for column, size in zip(columns, sizes, strict=True)
        ]


class _Classes:
    """Classes in the order of their ids, and an index that finds them.

    Args:
        values: strings, integers, booleans or floating-point numbers [n], each once.
    """

    def __init__(self, values: Any) -> None:
        self.values = values
        floats = column_type(values)[0].startswith("float")
        self._index = KeyIndex(_bits(values) if floats else values)
        self._floats = floats

    def find(self, values: Any) -> Array:
        """Return the number of each value's class, from 1; 0 if it has none."""
        if isinstance(values, Strings):
            return find_keys(self._index, values)
        if self._floats:
            return self._index.find(_bits(values))
        if values.dtype.kind != "f":
            return self._index.find(values)
        xp = array_namespace(values)
        fits = (values == xp.floor(values)) & (xp.abs(values) < 2.0**63)
        found = self._index.find(xp.where(fits, values, 0).astype(np.int64))
        found[~fits] = 0
        return found


def _bits(values: Array) -> Array:
    """Return numbers as int64 keys: the bits of float64, equal for equal numbers."""
    return (values.astype(np.float64) + 0.0).view(np.int64)  # -0.0 becomes 0.0


def _given(name: str | None, classes: Sequence[Any]) -> _Classes:
    """Return the user's classes; ValueError or TypeError if they cannot be some."""
    where = "LabelEncoder" if name is None else f"column {name!r}: LabelEncoder"
    try:
        values = column_from_arrow(pa.array(classes))
        if isinstance(values, Masked | Ragged) or not len(values):
            raise ValueError("strings, numbers or booleans are needed, none of them null")
        return _Classes(values)
    except (TypeError, ValueError) as error:  # also of Arrow
        raise ValueError(f"{where}: classes {reprlib.repr(classes)}: {error}") from error
