"""Synthetic click logs in the raw Criteo format, drawn from a seed in bounded memory.

The format is that of the 1 TB click logs: one row per line, tab separated, no header: label,
I1..I13 (counts), C1..C26 (8 hex digits). An empty field is a missing value. Rows are in time order,
with one file per day. The data shares these properties with the real logs: cardinalities (times
`scale`), a few frequent ids and a long tail, heavy-tailed counts, the share of missing values per
column, columns that are missing together, and new ids every day.

The label follows a logistic model of the row, so the best possible result is known exactly. The
log-odds are a sum of effects: log1p of five counts (missing is 0, as the ETL fills them), one
effect per id of fifteen columns, one per pair of ids of C9 and C19, and a weekly wave. This model
does not depend on the seed: data of two seeds are two samples of the same distribution.

Measured on 1,000,000 rows (7 days, scale 0.01, seed 0): 25 % of the labels are 1. The log loss is
0.567 for predicting that share and 0.430 for the true probabilities, whose AUC is 0.821. It draws
180 thousand rows/s on one core with 80 MB of memory in addition to the interpreter's.

Source of the cardinalities: the 24 days of click logs, values that occur at least 15 times.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
from tqdm import tqdm

from data_prep import synthetic
from data_prep.synthetic import BLOCK_ROWS, Drawn, LabelStatistics

CARDINALITIES = (
    7599500, 33521, 17022, 7339, 20046, 3, 7068, 1377, 63, 5345303, 561810, 242827, 11,
    2209, 10616, 100, 4, 968, 14, 7838519, 2580502, 6878028, 298771, 11951, 97, 35,
)  # fmt: skip
INTEGER_NAMES = tuple(f"I{i}" for i in range(1, 14))
CATEGORICAL_NAMES = tuple(f"C{i}" for i in range(1, 27))
COLUMN_NAMES = ("label", *INTEGER_NAMES, *CATEGORICAL_NAMES)

# Counts: exp(normal), rounded down: (mean and standard deviation of the logarithm, smallest value).
# Fitted to the quartiles of 1,000 rows of the real day 0. Columns with -1 contain some -1.
_COUNTS = (
    (1.95, 1.7, 1), (5.40, 1.3, -1), (1.50, 1.2, 0), (3.60, 1.7, 0), (1.60, 1.5, 1),
    (-1.5, 1.9, 0), (-3.5, 1.7, 0), (2.20, 2.4, -1), (1.40, 1.4, 0), (-1.1, 0.9, 0),
    (0.80, 1.0, 1), (8.30, 2.0, 0), (1.70, 1.2, 0),
)  # fmt: skip
_LARGEST_COUNT = 2_000_000
# (share of rows, columns that are missing together in them)
_MISSING = (
    (0.225, ("I1",)), (0.09, ("I2",)), (0.25, ("I3", "I13")), (0.52, ("I4",)),
    (0.44, ("I5", "I11")), (0.09, ("I6", "I10")), (0.03, ("I7",)), (0.014, ("I12",)),
    (0.022, ("C1", "C10", "C11", "C20", "C21", "C22")), (0.46, ("C14", "C16", "C17", "C23")),
)  # fmt: skip
# The logistic model: standard deviation of a column's contribution to the log-odds.
_COUNT_EFFECTS = {"I1": 0.35, "I2": 0.4, "I4": -0.35, "I8": 0.35, "I12": 0.3}
_ID_EFFECTS = {
    "C1": 0.25, "C3": 0.3, "C4": 0.3, "C6": 0.3, "C8": 0.35, "C9": 0.4, "C13": 0.25, "C15": 0.2,
    "C16": 0.4, "C17": 0.3, "C18": 0.35, "C19": 0.3, "C20": 0.25, "C25": 0.3, "C26": 0.4,
}  # fmt: skip
_PAIR = ("C9", "C19", 0.35)
_BIAS = -1.67
_WEEKLY_WAVE = 0.1
_HEAD = 200  # ids below this rank occur on every day; the others change from day to day
_DAILY_SHIFT = 0.02  # share of the other ids by which they shift per day


def column_sizes(scale: float) -> list[int]:
    """Return the number of ids of each of C1..C26 at `scale`, as `synthetic.scaled` defines it.

    Example:
        >>> column_sizes(0.01)[:4], column_sizes(1.0)[:4]
        ([75995, 1000, 1000, 1000], [7599500, 33521, 17022, 7339])
    """
    return [synthetic.scaled(cardinality, scale) for cardinality in CARDINALITIES]


def rows_per_day(rows: int, days: int) -> list[int]:
    """Return the number of rows of each day; the first days get the remainder, one row each.

    Example:
        >>> rows_per_day(10, 3)
        [4, 3, 3]
    """
    if days < 1 or rows < days:
        raise ValueError(f"need a day and at least one row per day, got {rows} rows, {days} days")
    return [rows // days + (day < rows % days) for day in range(days)]


def draw_block(seed: int, day: int, block: int, sizes: list[int]) -> Drawn:
    """Return `BLOCK_ROWS` rows that depend only on the arguments. Takes about 0.1 s and 30 MB.

    The columns are those of the raw file: label, I1..I13 int32, C1..C26 hex strings.

    Args:
        seed: 0 to 2**63 - 1.
        day: 0, 1, ...
        block: number of the block within the day.
        sizes: number of ids of each categorical column, from `column_sizes`.
    """
    rng = synthetic.random_stream(seed, day, block)
    n = BLOCK_ROWS
    missing = np.zeros((39, n), bool)
    for share, names in _MISSING:
        missing[[COLUMN_NAMES.index(name) - 1 for name in names]] = rng.random(n) < share
    counts = _draw_counts(rng, n)
    ids = np.stack([_draw_ids(rng, n, size, day) for size in sizes])
    label, probability = synthetic.draw_labels(rng, _logit(counts, ids, missing, day))
    columns = [pa.array(label)]
    columns += [pa.array(counts[i], mask=missing[i]) for i in range(13)]
    columns += [_hex_column(hex_values(ids[i], i), missing[13 + i]) for i in range(26)]
    return Drawn(pa.table(columns, names=list(COLUMN_NAMES)), label, probability)


def _draw_counts(rng: np.random.Generator, n: int) -> np.ndarray:
    # An active user has high values in all counts.
    shared = 0.5 * rng.standard_normal(n, np.float32)
    counts = np.empty((13, n), np.int32)
    for row, (mean, deviation, smallest) in enumerate(_COUNTS):
        z = shared + math.sqrt(0.75) * rng.standard_normal(n, np.float32)
        value = np.exp(mean + deviation * z) + min(smallest, 0)
        counts[row] = np.clip(np.floor(value), smallest, _LARGEST_COUNT)
    return counts


def _draw_ids(rng: np.random.Generator, n: int, size: int, day: int) -> np.ndarray:
    rank = synthetic.power_law_ids(rng, n, size, np.int64)
    if size <= synthetic.SMALL_COLUMN:
        return rank
    tail = size - _HEAD
    shift = int(day * _DAILY_SHIFT * tail)
    return np.where(rank < _HEAD, rank, _HEAD + (rank - _HEAD + shift) % tail)


def _logit(counts: np.ndarray, ids: np.ndarray, missing: np.ndarray, day: int) -> np.ndarray:
    """Return the log-odds of label 1: float64 [rows]."""
    logit = np.full(counts.shape[1], _BIAS + _WEEKLY_WAVE * math.sin(2 * math.pi * day / 7))
    for name, weight in _COUNT_EFFECTS.items():
        column = INTEGER_NAMES.index(name)
        filled = np.where(missing[column], 0, np.maximum(counts[column], 0))
        mean, deviation, _ = _COUNTS[column]
        logit += weight * (np.log1p(filled) - mean) / deviation
    for name, weight in _ID_EFFECTS.items():
        column = CATEGORICAL_NAMES.index(name)
        effect = weight * synthetic.id_effect(ids[column], column)
        logit += np.where(missing[13 + column], 0.0, effect)
    first, second, weight = _PAIR
    pair = ids[CATEGORICAL_NAMES.index(first)] * 1_000 + ids[CATEGORICAL_NAMES.index(second)]
    return logit + weight * synthetic.id_effect(pair, 99)


def hex_values(ids: np.ndarray, column: int) -> np.ndarray:
    """Return the 32-bit values that represent ids in the file: uint32, one per id.

    Each step (exclusive or, multiplication by an odd number) is invertible, so no two ids of a
    column share a value. Source: the finaliser of MurmurHash3.
    """
    x = ids.astype(np.uint32) ^ np.uint32((column + 1) * 0x9E3779B9 % 2**32)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def _hex_column(values: np.ndarray, missing: np.ndarray) -> pa.Array:
    """Return 8-digit hex strings, null where missing."""
    digits = values.astype(">u4").tobytes().hex().encode()
    offsets = np.arange(0, len(digits) + 1, 8, dtype=np.int32)
    valid = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    buffers = pa.py_buffer(offsets), pa.py_buffer(digits), valid
    return pa.StringArray.from_buffers(len(values), *buffers)


def write_criteo(
    output: str | Path,
    *,
    rows: int = 1_200_000,
    days: int = 7,
    seed: int = 0,
    scale: float = 0.01,
    overwrite: bool = False,
) -> dict[str, float]:
    """Write `day_0.tsv`, `day_1.tsv`, ... and return the statistics of the labels.

    Memory does not depend on `rows`: 80 MB for a block of 32,768 rows and its text. The first rows
    of a day do not depend on it either.

    Args:
        output: output folder.
        rows: rows of all days together.
        days: number of files, at least 1.
        seed: 0 to 2**63 - 1.
        scale: factor on the real cardinalities, in (0, 100].
        overwrite: replace an output made with other settings.

    Returns:
        As `LabelStatistics.result`.

    Raises:
        ValueError: if a setting is out of range.
        DataPrepError: if `output` exists with other settings or other content.
    """
    sizes, per_day = column_sizes(scale), rows_per_day(rows, days)
    settings = {"command": "synthetic criteo", "version": 1, "rows": rows, "days": days,
                "seed": seed, "scale": scale}  # fmt: skip

    text = pa_csv.WriteOptions(
        include_header=False, delimiter="\t", quoting_style="none", batch_size=8_192
    )

    def write(path: Path, bar: tqdm) -> LabelStatistics:
        statistics = LabelStatistics()
        for day, count in enumerate(per_day):
            with open(path / f"day_{day}.tsv", "wb") as file:
                draw = functools.partial(draw_block, seed, day, sizes=sizes)
                for table in synthetic.drawn_tables(draw, count, statistics, bar):
                    pa_csv.write_csv(table, file, text)
        return statistics

    return synthetic.write_once(output, settings, write, overwrite=overwrite)
