"""Types of columns of text: the narrowest that takes every value, whatever block it is in.

Numbers are read as they are written in a country (`Forms`), dates by a format. `advice` says with
which option a column that stays text would be numbers or dates.
"""

from __future__ import annotations

import datetime
import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

TEXT = pa.string()
NO_TEXT = pa.scalar(None, TEXT)
KINDS = {  # {type, the narrowest first: what no value may match, so that all keep their digits}
    pa.null(): "^",
    pa.bool_(): "[01]",  # which are numbers
    pa.int64(): r"^(-0|0[0-9xX])",
    pa.float64(): r"^[+-]?(0[0-9]|[0-9]{16,}$)",
    pa.date32(): "",
    pa.timestamp("us"): "",
    pa.timestamp("us", "UTC"): "",
}
_NO_NUMBER = pa.array(pa_csv.ConvertOptions().null_values)  # "NA", "NaN", "null", ...


class Forms(NamedTuple):
    """How numbers are written.

    Args:
        decimal: the decimal sign.
        thousands: the sign between groups of three digits, or "".
        strip: characters around numbers, also between their sign and digits: "$" of -$5.
    """

    decimal: str = "."
    thousands: str = ""
    strip: str = ""


PLAIN = Forms()


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return text without spaces around; NA, NaN, null, ... are null."""
    values = pc.utf8_trim_whitespace(column)
    return pc.if_else(pc.is_in(values, _NO_NUMBER), NO_TEXT, values)


def _numbers(values: pa.ChunkedArray, forms: Forms) -> pa.ChunkedArray:
    """Return numbers as Arrow reads them; others become texts that it refuses."""
    decimal, thousands, strip = map(re.escape, forms)
    if strip:
        values = pc.replace_substring_regex(values, rf"^([+-])[{strip}]+", r"\1")
    if thousands:
        pattern = rf"^[+-]?[0-9]{{1,3}}({thousands}[0-9]{{3}})+({decimal}[0-9]*)?$"
        grouped = pc.match_substring_regex(values, pattern)
        values = pc.if_else(grouped, pc.replace_substring(values, forms.thousands, ""), values)
    if forms.decimal != ".":
        values = pc.replace_substring(pc.replace_substring(values, ".", "?"), forms.decimal, ".")
    return values


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def converted(
    column: pa.ChunkedArray, kind: pa.DataType, forms: Forms = PLAIN, date_format: str = ""
) -> pa.ChunkedArray:
    """Return text as another type; for integers, 11.0 is 11.

    Args:
        column: text.
        kind: the type.
        forms: how numbers are written.
        date_format: how dates and times are written, such as %d.%m.%Y; "" is ISO 8601.

    Raises:
        pa.ArrowInvalid: if a value does not fit.
    """
    if kind == TEXT:
        return column
    values = _plain(column)
    if date_format and pa.types.is_temporal(kind):
        return dated(values, date_format).cast(kind)
    return _cast(_numbers(values, forms) if _is_number(kind) else values, kind)


def _cast(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if kind == pa.null():
        return pa.chunked_array([pa.nulls(len(values))])
    if pa.types.is_integer(kind) and pc.any(pc.match_substring(values, ".")).as_py():
        values = pc.replace_substring_regex(values, r"^(-?[0-9]+)\.0+$", r"\1")
    return values.cast(kind)


def dated(column: pa.ChunkedArray, date_format: str) -> pa.ChunkedArray:
    """Return text as dates, date32, or as times, timestamp[us], if the format has hours.

    Raises:
        pa.ArrowInvalid: if a value does not fit, or is no day, such as 31.02.2024.
    """
    values = _plain(column)
    times = pc.strptime(values, date_format, "us")
    # The C library takes 31.02.2024 for 02.03.2024, and the year 24 for 0024. Python does not.
    other = pc.fill_null(pc.not_equal(pc.strftime(times, date_format), values), False)
    for value in pc.unique(values.filter(other)).to_pylist():
        try:
            datetime.datetime.strptime(value, date_format)
        except ValueError as error:
            raise pa.ArrowInvalid(str(error)) from error
    return times if re.search("%[HIkMSTRrXcsp]", date_format) else times.cast(pa.date32())


def fits_dates(column: pa.ChunkedArray, date_format: str) -> bool:
    """Whether every value of a column of text is a date of the format."""
    try:
        dated(column[:64], date_format)
        dated(column, date_format)
    except pa.ArrowInvalid:
        return False
    return True


def fitting(
    kinds: Sequence[pa.DataType], column: pa.ChunkedArray, forms: Forms = PLAIN
) -> list[pa.DataType]:
    """Return those of some types that take every value of a column of text.

    true and false are bool. Whole numbers are int64, also with zeros after the point; all numbers
    are float64. ISO 8601 dates are date32; with times, timestamp[us]. No type takes numbers that
    would not keep their digits: 007, 0x1F, or identifiers beyond 64 bits. Such columns are text.

    Example:
        >>> kinds = fitting(list(KINDS), pa.chunked_array([["1", "2.0", None]]))
        >>> kinds
        [DataType(int64), DataType(double)]
        >>> fitting(kinds, pa.chunked_array([["2.5", "NA"]]))
        [DataType(double)]
    """
    values = _plain(column) if kinds else column
    return [kind for kind in kinds if _fits(values, kind, forms)]


def _fits(values: pa.ChunkedArray, kind: pa.DataType, forms: Forms) -> bool:
    # Arrow words an error for every value: of those that fail, most do so in the first few.
    for part in (values[:64], values):
        if _is_number(kind):
            part = _numbers(part, forms)
        wrong = KINDS[kind] and pc.match_substring_regex(part, KINDS[kind])
        if wrong and pc.any(wrong, min_count=0).as_py():
            return False
        try:
            _cast(part, kind)
        except pa.ArrowInvalid:
            return False
    return True


# ---- advice: columns that stay text, but look like numbers or dates -----------------------------

_GAP, _UNIT = r"[\s\p{Zs}]*", r"(?:\p{Sc}|%|EUR|USD|GBP|CHF|JPY|kr|zł)"
_DAY = r"^([A-Za-z]{3,9}\.?,? )?([A-Za-z]{3,9} )?[0-9]{1,4}[-/., ]*([A-Za-z]{3,9}|[0-9]{1,2})"
_MOST = 0.9  # of the values: the others may be words for missing ones


def _mostly(values: pa.ChunkedArray, pattern: str) -> bool:
    matched = pc.sum(pc.match_substring_regex(values, pattern)).as_py() or 0
    return matched >= _MOST * len(values) > 0


def _some(values: pa.ChunkedArray, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(values, pattern)).as_py())


def _number_forms() -> list[tuple[str, str, str, str]]:
    """Return (words, options, what some values match, what most values match) of numbers."""

    def grouped(sign: str, decimal: str) -> str:
        return rf"^[+-]?([0-9]+|[1-9][0-9]{{0,2}}({sign}[0-9]{{3}})+)?(\{decimal}[0-9]*)?$"

    comma = "a comma between thousands"
    forms = [
        (comma, "--thousands ','", r",[0-9]{3}(\.|,)", grouped(",", ".")),
        (comma, "--thousands ',' (or --decimal ',' if 1,234 is less than 2)", ",[0-9]{3}$",
         "^[+-]?([0-9]{1,3}|[1-9][0-9]{0,2}(,[0-9]{3})+)$"),
        ("a decimal comma", "--decimal ','", ",", grouped(r"\.", ",")),
    ]  # fmt: skip
    for sign, decimal in itertools.product(("'", "’", " ", "\u00a0", "\u202f"), ".,"):
        options = f'--thousands "{sign}"' + " --decimal ','" * (decimal == ",")
        some = rf"[0-9]{sign}[0-9]{{3}}" + rf".*\{decimal}" * (decimal == ",")
        forms.append((f"{sign!r} between thousands", options, some, grouped(sign, decimal)))
    return [*forms, ("", "", "", grouped("_", "."))]


def _date_formats() -> list[str]:
    orders = ("%Y %m %d", "%d %m %Y", "%m %d %Y", "%d %b %Y", "%b %d %Y", "%d %m %y", "%m %d %y",
              "%d %b %y")  # fmt: skip
    days = [order.replace(" ", mark) for mark in ("/", ".", "-", " ", "") for order in orders]
    days += ["%d. %m. %Y", "%d. %B %Y", "%d %B %Y", "%B %d, %Y", "%b %d, %Y"]
    times = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p", " %H:%M:%S %z")
    formats = [day + time for day, time in itertools.product(days, times)]
    return [*formats, "%d/%b/%Y:%H:%M:%S %z", "%a %b %d %H:%M:%S %Y", "%a, %d %b %Y %H:%M:%S %z"]


def _is_date(value: str, date_format: str) -> bool:
    try:
        datetime.datetime.strptime(value, date_format)
    except ValueError:
        return False
    return True


def _formats_of(values: pa.ChunkedArray) -> list[str]:
    """Return the formats of dates that most values have."""
    if not _mostly(values, _DAY):
        return []
    first, found = values[:20].to_pylist(), _date_formats()
    for _ in range(3):  # of 20 values, two may be no dates
        found = [each for each in found if _is_date(first[0], each)]
        if found or len(first) < 10:
            break
        first, found = first[1:], _date_formats()
    found = [f for f in found if sum(_is_date(v, f) for v in first) >= _MOST * len(first)]
    return [each for each in found if fits_dates(values, each)] or found


def advice(name: str, column: pa.ChunkedArray, forms: Forms = PLAIN) -> str:
    """Return what a column of text looks like, with the option that makes it so, or "".

    Example:
        >>> advice("price", pa.chunked_array([["1,5", "2,25"]]))
        "price looks like numbers with a decimal comma: pass --decimal ','"
    """
    values = pc.drop_null(_plain(column))[:10_000]
    if found := _formats_of(values):
        options = " or ".join(f"--date-format '{name}={each}'" for each in found[:2])
        return f"{name} looks like dates: pass {options}"
    affixed = rf"^[+-]?{_GAP}{_UNIT}{_GAP}[-+0-9.,'’ ]+$|^[-+0-9.,'’ ]+{_GAP}{_UNIT}$"
    units = {*"".join(values.filter(pc.match_substring_regex(values, affixed)).to_pylist())}
    sign = "".join(sorted(units - {*"-+0123456789.,'’"}))
    bare = pc.replace_substring_regex(values, rf"^([+-]?){_GAP}{_UNIT}{_GAP}", r"\1")
    bare = pc.replace_substring_regex(bare, rf"{_GAP}{_UNIT}$", "")
    for words, options, some, most in _number_forms():
        if not (words or sign) or not _some(bare, some) or not _mostly(bare, most):
            continue
        looks = " and ".join([*[words] * bool(words), *[repr(sign.strip())] * bool(sign)])
        wanted = [*[options] * bool(options), *[f"--strip {sign!r}"] * bool(sign)]
        others = pc.unique(values.filter(pc.invert(pc.match_substring_regex(bare, most))))
        if len(others):
            wanted.append(" ".join(["--null-values", *map(repr, others[:3].to_pylist())]))
        return f"{name} looks like numbers with {looks}: pass {' '.join(wanted)}"
    return ""
