"""RowFilter: which rows of a row group pass a condition, from statistics where they suffice.

`pyarrow.dataset` evaluates the condition; this module makes the counts exact. It is imported only
when a filter is used, since importing `pyarrow.dataset` takes a quarter of a second.
"""

from __future__ import annotations

import functools
import hashlib
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tutorlib.parquet.conditions import COMPARE, MEMBERSHIP, number_comparison
from tutorlib.parquet.paths import DataFile

LONGEST_TEXT = 1000  # characters; longer conditions are identified by a hash
STEP_ROWS = 65_536  # evaluated at a time


class RowFilter:
    """A condition on the columns of a row.

    Conditions in a list compare numbers by the rule of `conditions.py`, as the op `Filter` does: a
    null or NaN passes none of them. A `pyarrow.compute.Expression` is evaluated as Arrow does:
    both sides are converted to a type that Arrow chooses, and NaN passes `!=`.

    Statistics of a Parquet file ignore NaN. So a condition on a floating-point column is always
    decided by reading that column; on other columns statistics suffice.

    Args:
        filters: `pyarrow.compute.Expression`, or a list of (column, operator, value), all of which
            must hold, or a list of such lists, one of which must. Operators: == != < <= > >= in,
            not in.
        schema: the columns.

    Attributes:
        names: the columns that the condition uses.
        identity: text that two filters share only if they are equal to the last digit.

    Raises:
        ValueError: if the condition cannot be parsed, names an unknown column, or compares a
            column with a value of another type.

    Example:
        >>> schema = pa.schema([("day", pa.int64())])
        >>> str(RowFilter([("day", "<", 6), ("day", "!=", 2)], schema))
        '((day < 6) and (day != 2))'
        >>> RowFilter([("hour", "<", 6)], schema)
        Traceback (most recent call last):
        ValueError: filters (hour < 6): No match for FieldRef.Name(hour). There are ['day']
    """

    def __init__(self, filters: Any, schema: pa.Schema) -> None:
        self.filters, self.schema = filters, schema
        try:
            self.expression, self.identity = self._parsed()
        except (TypeError, ValueError, LookupError, OverflowError) as error:
            raise ValueError(
                f"filters must be a pyarrow.compute.Expression or a list of (column, operator, "
                f"value), got {filters!r} ({error})"
            ) from error
        try:
            schema.empty_table().filter(self.expression)
        except pa.ArrowException as error:
            said = str(error).splitlines()[0].partition(" in ")[0]
            raise ValueError(f"filters {self}: {said}. There are {schema.names}") from error
        self._by_statistics = self._works_without(
            [field.name for field in schema if pa.types.is_floating(field.type)]
        )
        self.names = self._needed(schema.names) or schema.names[:1]
        self._used = pa.schema([schema.field(name) for name in self.names])

    def __str__(self) -> str:
        return str(self.expression)

    def __reduce__(self) -> Any:
        return RowFilter, (self.filters, self.schema)

    def _parsed(self) -> tuple[pc.Expression, str]:
        """Return the expression, and the text that identifies it."""
        if isinstance(self.filters, pc.Expression):
            _, (serialized,) = self.filters.__reduce__()
            digest = hashlib.sha256(serialized).hexdigest()[:16]
            return self.filters, f"{str(self.filters)[:LONGEST_TEXT]} {digest}"
        if not isinstance(self.filters, list | tuple) or not self.filters:
            raise TypeError(f"neither, or an empty list: {type(self.filters).__name__}")
        nested = [self.filters] if isinstance(self.filters[0][0], str) else self.filters
        plain = [[_plain(*one) for one in conditions] for conditions in nested]
        alternatives = [
            functools.reduce(operator.and_, [self._comparison(*one) for one in conditions])
            for conditions in plain
        ]
        text = repr(plain)
        if len(text) > LONGEST_TEXT:
            text = f"{text[:LONGEST_TEXT]} {hashlib.sha256(text.encode()).hexdigest()[:16]}"
        return functools.reduce(operator.or_, alternatives), text

    def _comparison(self, name: str, comparison: str, value: Any) -> pc.Expression:
        field, kind = pc.field(name), pa.null()
        if name in self.schema.names:
            kind = self.schema.field(name).type
        values = value if comparison in MEMBERSHIP else [value]
        numbers = all(isinstance(one, int | float) for one in values)
        if not numbers or not (_is_number(kind) or pa.types.is_boolean(kind)):
            expression = pq.filters_to_expression([(name, comparison, value)])
            return expression & field.is_valid() if comparison == "not in" else expression
        if pa.types.is_boolean(kind):
            field, kind = field.cast(pa.uint8()), pa.uint8()
        dtype = np.dtype(kind.to_pandas_dtype())
        comparison, value = number_comparison(dtype, comparison, value)
        if pa.types.is_float16(kind):  # which Arrow converts, but does not compare
            field, kind = field.cast(pa.float32()), pa.float32()
        if comparison in MEMBERSHIP:
            zeros = [-one for one in value if one == 0]  # Arrow tells -0.0 from 0.0
            found = field.isin(pa.array([*value, *zeros], kind))
            return found if comparison == "in" else ~found & _has_value(field, kind)
        expression = COMPARE[comparison](field, pa.scalar(value, kind))
        no_nan = comparison == "!=" and pa.types.is_floating(kind)
        return expression & ~field.is_nan() if no_nan else expression

    def _works_without(self, names: Sequence[str]) -> bool:
        left_out = set(names)
        others = pa.schema([field for field in self.schema if field.name not in left_out])
        try:
            others.empty_table().filter(self.expression)
        except pa.ArrowException:
            return False
        return True

    def _needed(self, names: Sequence[str]) -> list[str]:
        """Return which of the columns the condition uses, in few trials if these are few."""
        if not names or self._works_without(names):
            return []
        if len(names) == 1:
            return list(names)
        half = len(names) // 2
        return [*self._needed(names[:half]), *self._needed(names[half:])]

    def row_groups(self, file: DataFile, keys: Mapping[str, pa.Scalar]) -> dict[int, bool]:
        """Return {index: whether rows without nulls all pass} of row groups where a row may pass.

        Args:
            file: the file; only its statistics are used.
            keys: {name: value} of the columns that are constant in the file.
        """
        known = [pc.field(k) == v if v.is_valid else pc.field(k).is_null() for k, v in keys.items()]
        whole = ds.ParquetFileFormat().make_fragment(
            file.inner,
            file.filesystem,
            partition_expression=functools.reduce(lambda a, b: a & b, known, pc.scalar(True)),
        )
        possible = ds.FileSystemDataset([whole], self.schema, whole.format, file.filesystem)
        if not list(possible.get_fragments(self.expression)):
            return {}  # by its keys, without a look into the file

        def indices(condition: pc.Expression | None) -> list[int]:
            parts = whole.split_by_row_group(filter=condition, schema=self.schema)
            return [part.row_groups[0].id for part in parts]

        if not self._by_statistics:
            return dict.fromkeys(indices(None), False)
        failing = set(indices(~self.expression))
        return {index: index not in failing for index in indices(self.expression)}

    def passing(self, tables: Iterable[pa.Table]) -> PassingRows:
        """Return which rows pass of a row group that comes in tables of `STEP_ROWS` rows.

        Args:
            tables: the rows in order, with the columns `names`; the last table may be shorter.
        """
        bits, counts = [], [0]
        for table in tables:
            scanner = ds.dataset(table.cast(self._used)).scanner(
                columns={"passes": self.expression}, use_threads=False
            )
            passes = pc.fill_null(scanner.to_table()["passes"], False).to_numpy()
            bits.append(np.packbits(passes))
            counts.append(counts[-1] + int(np.count_nonzero(passes)))
        return PassingRows(np.concatenate(bits), np.array(counts))


def _plain(name: str, comparison: str, value: Any) -> tuple[str, str, Any]:
    """Return a condition with Python's numbers, whose text is exact and the same everywhere."""
    comparison = "==" if comparison == "=" else comparison
    if comparison not in (*COMPARE, *MEMBERSHIP):
        raise ValueError(f"operators are {[*COMPARE, *MEMBERSHIP]}, got {comparison!r}")
    if comparison not in MEMBERSHIP:
        return name, comparison, value.item() if isinstance(value, np.generic) else value
    values = [one.item() if isinstance(one, np.generic) else one for one in value]
    ordered = sorted(values, key=repr) if isinstance(value, set | frozenset) else values
    return name, comparison, ordered


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _has_value(field: pc.Expression, kind: pa.DataType) -> pc.Expression:
    valid = field.is_valid()
    return valid & ~field.is_nan() if pa.types.is_floating(kind) else valid


class PassingRows:
    """The rows of a row group that pass a filter, in 1 bit a row.

    Args:
        bits: uint8, whether each row passes, as `np.packbits` packs them.
        counts: int64, how many of the rows before each multiple of `STEP_ROWS` pass.
    """

    def __init__(self, bits: np.ndarray, counts: np.ndarray) -> None:
        self._bits, self._counts = bits, counts

    @classmethod
    def of(cls, rows: np.ndarray, num_rows: int) -> PassingRows:
        """Return that of `num_rows` stored rows those of the given numbers pass, rising."""
        passes = np.zeros(num_rows, bool)
        passes[rows] = True
        bounds = range(0, num_rows + STEP_ROWS, STEP_ROWS)
        return cls(np.packbits(passes), np.searchsorted(rows, bounds))

    def __len__(self) -> int:
        return int(self._counts[-1])

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return where passing rows number start to stop - 1 are stored, int64, rising."""
        first = int(np.searchsorted(self._counts, start, "right")) - 1
        last = int(np.searchsorted(self._counts, stop))
        rows = self.between(first * STEP_ROWS, last * STEP_ROWS)
        before = int(self._counts[first])
        return rows[start - before : stop - before]

    def between(self, first: int, last: int) -> np.ndarray:
        """Return which of the stored rows [first, last) pass, int64, rising."""
        skipped = first % 8
        bits = np.unpackbits(self._bits[first // 8 : -(-last // 8)])
        return np.flatnonzero(bits[skipped : skipped + last - first]) + first
