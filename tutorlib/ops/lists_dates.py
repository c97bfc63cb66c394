"""ListSlice, which keeps a slice of each list, and DateParts, which makes features of dates."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import numpy as np

from tutorlib.checks import check_integer
from tutorlib.columns import (
    Chunk,
    Ragged,
    array_namespace,
    as_lists,
    column_type,
    flat_values,
    gather_rows,
    parts_of,
    take,
    with_flat_values,
)
from tutorlib.ops.base import NULL_ID, Op, with_lists
from tutorlib.schema import Column


class ListSlice(Op):
    """Keeps values [start, end) of each list, as Python's slices do.

    A loader pads lists to one length by `multi_hot="padded"`.

    Returns (from transform): columns of lists; dtype, nulls and the cardinality of ids stay.

    Args:
        start: first value; negative counts from the end of the list.
        end: one past the last value; negative counts from the end, None is the end.

    Raises:
        TypeError: for a column without lists.

    Example:
        >>> column = Ragged(np.array([3, 4, 5, 6]), np.array([0, 3, 4]))
        >>> (["tags"] >> ListSlice(-2)).transform(Chunk({"tags": column}))["tags"].tolist()
        [[4, 5], [6]]
    """

    def __init__(self, start: int = 0, end: int | None = None) -> None:
        for name, position in (("start", start), ("end", end or 0)):
            check_integer(f"ListSlice: {name}", position, at_least=-(2**31), bits=31)
        self.start, self.end = start, end

    def transform(self, chunk: Chunk) -> Chunk:
        """Return the slices."""
        return Chunk({name: self._sliced(name, column) for name, column in chunk.items()})

    def _sliced(self, name: str, column: Any) -> Ragged:
        column = as_lists(column)
        if not isinstance(column, Ragged):
            raise TypeError(self._wrong(name, f"takes lists, got {column_type(column)[0]}"))
        xp = array_namespace(column.offsets)
        lengths = xp.diff(column.offsets)
        first, last = (
            xp.maximum(lengths + at, 0) if at < 0 else xp.minimum(lengths, at)
            for at in (self.start, 2**62 if self.end is None else self.end)
        )
        starts = column.offsets[:-1] + first
        borders = xp.stack([starts, starts + xp.maximum(last - first, 0)], axis=1).ravel()
        positions, offsets = gather_rows(borders, xp.arange(len(starts)) * 2)  # kept, then dropped
        return Ragged(take(column.values, positions), offsets)

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return columns of lists."""
        return [with_lists(column) for column in columns]


SIZES = {
    "month": 12, "day": 31, "weekday": 7, "hour": 24, "minute": 60, "second": 60,
}  # fmt: skip
TIMES = ("hour", "minute", "second")  # parts that a time of day has, too
PARTS = (*SIZES, "year", "age_days", "total_seconds")
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
FIRST_ID = 2  # 0 is padding and 1 is null, as in Categorify
DAY = 86_400  # seconds


class DateParts(Op):
    """Makes features of dates, timestamps, times of day and durations.

    A column `c` becomes a column `c_{part}` for each part. Categorical parts are int32 ids: 0 is
    padding, 1 is null, and a part's first value has the id 2, so that the cardinality is the number
    of values and 2.

    ==================== ===========================================================
    part                 values
    ==================== ===========================================================
    month, day           12, 31, from the first
    weekday              7, from Monday
    hour, minute, second 24, 60, 60, from 0; also of times of day and durations
    year                 the year, continuous
    age_days             from the date to `reference`, continuous; negative after it
    total_seconds        length of a duration or time of day, continuous
    ==================== ===========================================================

    Continuous parts are float32 and NaN at a null. Lists keep their lengths. Timestamps count in
    UTC, also those with a time zone: for local hours, store local times.

    Args:
        parts: names of the table, at least one.
        reference: end of an age: a date, a datetime (UTC if it has no time zone) or either as an
            ISO string. Fixed, so that training and serving agree.
        unit: of columns of integers that count from 1970-01-01: "D", "s", "ms", "us" or "ns". None
            takes the unit of the column's type. A served model takes integers in that unit.

    Raises:
        ValueError: for an unknown part or unit, an age without `reference`, integers without
            `unit`, a `unit` that is not the column's, and parts that a column does not have, such
            as the hour of a date.
        TypeError: for strings and floating-point numbers.

    Example:
        >>> dates = np.array(["2024-01-01", "2024-03-31"], "datetime64[D]")
        >>> group = ["day"] >> DateParts(["month", "weekday", "age_days"], "2024-04-01")
        >>> {name: c.tolist() for name, c in group.transform(Chunk({"day": dates})).items()}
        {'day_month': [2, 4], 'day_weekday': [2, 8], 'day_age_days': [91.0, 1.0]}

    Source: H. Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
    """

    def __init__(
        self, parts: Sequence[str], reference: Any = None, unit: str | None = None
    ) -> None:
        if isinstance(parts, str) or not parts or len({*parts}) < len(parts):
            raise ValueError(f"DateParts: parts must be a list of names, each once, got {parts!r}")
        if unknown := [part for part in parts if part not in PARTS]:
            raise ValueError(f"DateParts: parts are {', '.join(PARTS)}, got {unknown}")
        if unit not in (None, "D", *PER_SECOND):
            raise ValueError(f"DateParts: unit must be 'D', 's', 'ms', 'us' or 'ns', got {unit!r}")
        if "age_days" in parts and reference is None:
            raise ValueError("DateParts: 'age_days' needs reference=, the date to count to")
        self.parts, self.unit = list(parts), unit
        self.reference = None if reference is None else _utc(reference).isoformat()

    def transform(self, chunk: Chunk) -> Chunk:
        """Return the parts of each column."""
        result: dict[str, Any] = {}
        for name, column in chunk.items():
            values, valid = parts_of(flat_values(column))
            unit = self.unit_for(name, column_type(values)[0])
            counts = values.astype(np.int64)
            for part in self.parts:
                made = self.part(part, counts, unit)
                made = made.astype(np.int32 if part in SIZES else np.float32)
                if valid is not None:
                    made[~valid] = NULL_ID if part in SIZES else np.nan
                result[f"{name}_{part}"] = with_flat_values(column, made)
        return Chunk(result)

    def unit_for(self, name: str, dtype: str) -> str:
        """Return the unit in which a column of a dtype counts; raises if the op cannot take it."""
        typed, _, unit = dtype.rstrip("]").partition("64[")
        if typed not in ("datetime", "timedelta"):
            if not dtype.startswith(("int", "uint")):
                rule = f"takes dates and times, got {dtype}. Convert it in the data."
                raise TypeError(self._wrong(name, rule))
            if self.unit is None:
                rule = f"takes {dtype} only with unit=, such as unit='s' for seconds since 1970"
                raise ValueError(self._wrong(name, rule))
            typed, unit = "", self.unit
        elif self.unit not in (None, unit):
            raise ValueError(self._wrong(name, f"has unit={self.unit!r}, but the column {dtype}"))
        for part in self.parts:
            of_duration = part in (*TIMES, "total_seconds")
            of_date = part != "total_seconds" and (unit != "D" or part not in TIMES)
            if not {"timedelta": of_duration, "datetime": of_date}.get(typed, True):
                raise ValueError(self._wrong(name, f"finds no {part!r} in {dtype}"))
        return unit

    def part(self, part: str, counts: Any, unit: str) -> Any:
        """Return a part of times: int64 ids, or float64.

        Args:
            part: name of the part.
            counts: int64 array, or tensor of TensorFlow, of times since 1970.
            unit: of these.
        """
        per_second = PER_SECOND.get(unit, 1)
        seconds = counts // per_second * (DAY if unit == "D" else 1)
        if part in SIZES:
            return _category(part, seconds) + FIRST_ID
        if part == "year":
            return _civil(seconds // DAY)[0]
        length = seconds / 1 + counts % per_second / per_second
        if part == "total_seconds":
            return length
        until = datetime.datetime.fromisoformat(str(self.reference))
        return ((until - datetime.datetime(1970, 1, 1)).total_seconds() - length) / DAY

    def output_names(self, names: Sequence[str]) -> list[str]:
        """Return `{name}_{part}` for each column and part."""
        return [f"{name}_{part}" for name in names for part in self.parts]

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return categorical columns of known cardinality, and continuous ones."""
        for column in columns:
            self.unit_for(column.name, column.dtype)
        return [
            Column(f"{c.name}_{part}", "categorical", "int32", c.multi_hot, SIZES[part] + FIRST_ID)
            if part in SIZES
            else Column(f"{c.name}_{part}", "continuous", "float32", c.multi_hot)
            for c in map(with_lists, columns)
            for part in self.parts
        ]


def _utc(reference: Any) -> datetime.datetime:
    """Return a date, datetime or ISO string as a datetime of UTC, without a time zone."""
    try:
        moment = datetime.datetime.fromisoformat(str(reference))
    except ValueError:
        raise ValueError(
            f"DateParts: reference must be a date, a datetime or either as an ISO string, got "
            f"{reference!r}"
        ) from None
    if moment.tzinfo is None:
        return moment
    return moment.astimezone(datetime.UTC).replace(tzinfo=None)


def _category(part: str, seconds: Any) -> Any:
    """Return a part of times from 0, by arithmetic alone, which NumPy and TensorFlow share."""
    days = seconds // DAY
    if part in TIMES:
        within = seconds - days * DAY
        return {"hour": within // 3600, "minute": within // 60 % 60, "second": within % 60}[part]
    if part == "weekday":
        return (days + 3) % 7  # 1970-01-01 was a Thursday
    _, month, day = _civil(days)
    return month if part == "month" else day


def _civil(days: Any) -> tuple[Any, Any, Any]:
    """Return year, and month and day from 0, of days since 1970-01-01."""
    days = days + 719_468  # from the 1st of March of the year 0
    era = days // 146_097
    day = days - era * 146_097
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day = day - (365 * year + year // 4 - year // 100)  # of the year that begins in March
    month = (5 * day + 2) // 153
    late = month // 10  # 1 in January and February
    return year + era * 400 + late, month + 2 - 12 * late, day - (153 * month + 2) // 5
