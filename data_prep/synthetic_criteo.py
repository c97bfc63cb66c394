"""Synthetic click logs in the raw Criteo format, drawn from a seed in bounded memory.

The format is that of the 1 TB click logs: one row a line, tab separated, no header: label, I1..I13
(counts), C1..C26 (8 hex digits); a missing value is an empty field; rows stand in time order, one
file a day. What the data has in common with the real logs: cardinalities (times `scale`), a few ids
that make up most rows and a long tail, heavy-tailed counts, shares of missing values and which
columns miss them together, new ids turning up every day.

The label follows a logistic model of what stands in the row, so that what a model can learn is
known exactly: effects of log1p of five counts (missing = 0, as the ETL fills them), one effect for
each id of fifteen columns, and one for each pair of ids of C9 and C19, on top of a weekly wave.
The world is fixed; the seed draws another sample from it, so data of two seeds belong together.

Measured on 1,000,000 rows (7 days, scale 0.01, seed 0): 25 % of the labels are 1. The log loss is
0.567 for predicting that share and 0.430 for the true probabilities, whose AUC is 0.821: no model
does better on average. 180 thousand rows/s on one core, 80 MB above the interpreter.
Source of the cardinalities: the 24 days of click logs, values seen at least 15 times.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
from tqdm import tqdm

from data_prep.bayes import LabelStatistics
from data_prep.output import is_finished, new_folder, read_settings
from tutorlib.checks import check_integer

CARDINALITIES = (
    7599500, 33521, 17022, 7339, 20046, 3, 7068, 1377, 63, 5345303, 561810, 242827, 11,
    2209, 10616, 100, 4, 968, 14, 7838519, 2580502, 6878028, 298771, 11951, 97, 35,
)  # fmt: skip
INTEGER_NAMES = tuple(f"I{i}" for i in range(1, 14))
CATEGORICAL_NAMES = tuple(f"C{i}" for i in range(1, 27))
COLUMN_NAMES = ("label", *INTEGER_NAMES, *CATEGORICAL_NAMES)
BLOCK_ROWS = 32_768
SMALL_COLUMN = 1_000  # columns of at most so many ids keep them all at any scale

# Counts: exp(normal) rounded down. (mean, standard deviation of the logarithm, smallest value.)
# Fitted to the quartiles of 1,000 rows of the real day 0. -1: the column holds some -1, too.
_COUNTS = (
    (1.95, 1.7, 1), (5.40, 1.3, -1), (1.50, 1.2, 0), (3.60, 1.7, 0), (1.60, 1.5, 1),
    (-1.5, 1.9, 0), (-3.5, 1.7, 0), (2.20, 2.4, -1), (1.40, 1.4, 0), (-1.1, 0.9, 0),
    (0.80, 1.0, 1), (8.30, 2.0, 0), (1.70, 1.2, 0),
)  # fmt: skip
_LARGEST_COUNT = 2_000_000
# Columns whose values are missing together, and how often.
_MISSING = (
    (0.225, ("I1",)), (0.09, ("I2",)), (0.25, ("I3", "I13")), (0.52, ("I4",)),
    (0.44, ("I5", "I11")), (0.09, ("I6", "I10")), (0.03, ("I7",)), (0.014, ("I12",)),
    (0.022, ("C1", "C10", "C11", "C20", "C21", "C22")), (0.46, ("C14", "C16", "C17", "C23")),
)  # fmt: skip
# The logistic model. Standard deviation of a column's contribution to the log-odds.
_COUNT_EFFECTS = {"I1": 0.35, "I2": 0.4, "I4": -0.35, "I8": 0.35, "I12": 0.3}
_ID_EFFECTS = {
    "C1": 0.25, "C3": 0.3, "C4": 0.3, "C6": 0.3, "C8": 0.35, "C9": 0.4, "C13": 0.25, "C15": 0.2,
    "C16": 0.4, "C17": 0.3, "C18": 0.35, "C19": 0.3, "C20": 0.25, "C25": 0.3, "C26": 0.4,
}  # fmt: skip
_PAIR = ("C9", "C19", 0.35)
_BIAS = -1.67
_WEEKLY_WAVE = 0.1
_HEAD = 200  # ids below this rank are known on every day; the tail moves on
_DAILY_SHIFT = 0.02  # share of a column's ids by which its tail moves on each day


@dataclasses.dataclass
class Block:
    """Consecutive rows of one day.

    Args:
        counts: int32 [13, rows].
        ids: int64 [26, rows]; id 0 is the most frequent one on day 0.
        missing: bool [39, rows], counts first.
        label: int8 [rows].
        probability: float64 [rows], the true probability of label 1.
    """

    counts: np.ndarray
    ids: np.ndarray
    missing: np.ndarray
    label: np.ndarray
    probability: np.ndarray


def column_sizes(scale: float) -> list[int]:
    """Return how many ids each of C1..C26 has at `scale`.

    Columns of up to 1,000 ids keep them all; larger ones keep at least 1,000.

    Raises:
        ValueError: if `scale` is not in (0, 100].

    Example:
        >>> column_sizes(0.01)[:4], column_sizes(1.0)[:4]
        ([75995, 1000, 1000, 1000], [7599500, 33521, 17022, 7339])
    """
    if not 0 < scale <= 100:
        raise ValueError(f"scale must be above 0 and at most 100, got {scale}")
    return [
        max(round(n * scale), min(n, SMALL_COLUMN)) if n > SMALL_COLUMN else n
        for n in CARDINALITIES
    ]


def rows_per_day(rows: int, days: int) -> list[int]:
    """Return the rows of each day; the first days have one more where it does not come out even.

    Example:
        >>> rows_per_day(10, 3)
        [4, 3, 3]
    """
    if days < 1 or rows < days:
        raise ValueError(f"need days >= 1 and at least one row a day, got {rows} rows, {days} days")
    return [rows // days + (day < rows % days) for day in range(days)]


def draw_block(seed: int, day: int, block: int, sizes: list[int]) -> Block:
    """Return `BLOCK_ROWS` rows that depend on nothing but the arguments.

    The generator is counter based (Philox): key (seed, day), counter block; so blocks can be drawn
    in any order and anywhere. Cost: about 0.1 s and 30 MB.

    Args:
        seed: 0 to 2**63 - 1.
        day: 0, 1, ...
        block: number of the block within the day.
        sizes: ids of each categorical column (`column_sizes`).
    """
    rng = np.random.Generator(np.random.Philox(key=[seed, day], counter=[0, 0, 0, block]))
    n = BLOCK_ROWS
    missing = np.zeros((39, n), bool)
    for share, names in _MISSING:
        missing[[COLUMN_NAMES.index(name) - 1 for name in names]] = rng.random(n) < share
    counts = _draw_counts(rng, n)
    ids = np.stack([_draw_ids(rng, n, size, day) for size in sizes])
    logit = _logit(counts, ids, missing, day)
    probability = 1 / (1 + np.exp(-logit))
    label = (rng.random(n) < probability).astype(np.int8)
    return Block(counts, ids, missing, label, probability)


def _draw_counts(rng: np.random.Generator, n: int) -> np.ndarray:
    shared = 0.5 * rng.standard_normal(n, np.float32)  # busy users are busy in every count
    counts = np.empty((13, n), np.int32)
    for row, (mean, deviation, smallest) in enumerate(_COUNTS):
        z = shared + math.sqrt(0.75) * rng.standard_normal(n, np.float32)
        value = np.exp(mean + deviation * z) + min(smallest, 0)
        counts[row] = np.clip(np.floor(value), smallest, _LARGEST_COUNT)
    return counts


def _draw_ids(rng: np.random.Generator, n: int, size: int, day: int) -> np.ndarray:
    # Log-uniform ranks: id k about as often as 1 / (k + 1), the power law of most id columns.
    rank = (np.exp(rng.random(n) * math.log(size + 1)) - 1).astype(np.int64)
    np.minimum(rank, size - 1, out=rank)
    if size <= SMALL_COLUMN:
        return rank
    tail = size - _HEAD
    shift = int(day * _DAILY_SHIFT * tail)
    return np.where(rank < _HEAD, rank, _HEAD + (rank - _HEAD + shift) % tail)


def _logit(counts: np.ndarray, ids: np.ndarray, missing: np.ndarray, day: int) -> np.ndarray:
    """Return the log-odds of label 1: float64 [rows], a function of what stands in the row."""
    logit = np.full(counts.shape[1], _BIAS + _WEEKLY_WAVE * math.sin(2 * math.pi * day / 7))
    for name, weight in _COUNT_EFFECTS.items():
        column = INTEGER_NAMES.index(name)
        filled = np.where(missing[column], 0, np.maximum(counts[column], 0))
        mean, deviation, _ = _COUNTS[column]
        logit += weight * (np.log1p(filled) - mean) / deviation
    for name, weight in _ID_EFFECTS.items():
        column = CATEGORICAL_NAMES.index(name)
        effect = weight * id_effect(ids[column], column)
        logit += np.where(missing[13 + column], 0.0, effect)
    first, second, weight = _PAIR
    pair = ids[CATEGORICAL_NAMES.index(first)] * 1_000 + ids[CATEGORICAL_NAMES.index(second)]
    return logit + weight * id_effect(pair, 99)


def id_effect(ids: np.ndarray, column: int) -> np.ndarray:
    """Return a fixed number for each id: float64, uniform, mean 0 and variance 1 over the ids.

    Source: the finaliser of splitmix64, http://prng.di.unimi.it/splitmix64.c
    """
    x = ids.astype(np.uint64) + np.uint64((column + 1) * 0x9E3779B97F4A7C15 % 2**64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return ((x >> np.uint64(11)).astype(np.float64) / 2**53 - 0.5) * math.sqrt(12)


def hex_values(ids: np.ndarray, column: int) -> np.ndarray:
    """Return the 32-bit values that stand in the file for the ids: uint32, one to one.

    Each step (exclusive or, multiplication by an odd number) can be undone, so no two ids of a
    column share a value. Source: the finaliser of MurmurHash3.
    """
    x = ids.astype(np.uint32) ^ np.uint32((column + 1) * 0x9E3779B9 % 2**32)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


_FOUR_DIGITS = np.frombuffer(b"".join(b"%04x" % i for i in range(65_536)), np.uint32)


def _hex_column(values: np.ndarray, missing: np.ndarray) -> pa.Array:
    """Return 8-digit hex strings, null where missing, by two table look-ups a value."""
    n = len(values)
    digits = np.empty((n, 2), np.uint32)
    digits[:, 0] = _FOUR_DIGITS[values >> np.uint32(16)]
    digits[:, 1] = _FOUR_DIGITS[values & np.uint32(0xFFFF)]
    offsets = np.arange(0, 8 * n + 1, 8, dtype=np.int32)
    valid = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.StringArray.from_buffers(n, pa.py_buffer(offsets), pa.py_buffer(digits), valid)


def block_to_arrow(block: Block) -> pa.Table:
    """Return the rows as the raw file has them: label, I1..I13 int32, C1..C26 hex strings."""
    columns = [pa.array(block.label)]
    columns += [pa.array(block.counts[i], mask=block.missing[i]) for i in range(13)]
    columns += [_hex_column(hex_values(block.ids[i], i), block.missing[13 + i]) for i in range(26)]
    return pa.table(columns, names=list(COLUMN_NAMES))


def write_criteo(
    folder: str | Path,
    *,
    rows: int = 1_200_000,
    days: int = 7,
    seed: int = 0,
    scale: float = 0.01,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write `day_0.tsv`, `day_1.tsv`, ... and return what was measured while doing so.

    Memory: one block of 32,768 rows (80 MB with its text), whatever `rows`. The first rows of
    a day are the same however many follow.

    Args:
        folder: output folder.
        rows: rows over all days.
        days: files.
        seed: 0 to 2**63 - 1; each seed is another sample of the same world.
        scale: factor on the real cardinalities (`column_sizes`).
        overwrite: replace an output made with other settings.

    Returns:
        positive_share, base_log_loss (predicting the share for every row), bayes_log_loss and
        bayes_auc (predicting the true probabilities: no model can do better on average).

    Raises:
        ValueError: if a setting is out of range.
        DataPrepError: if `folder` is there with other settings or other content.
    """
    seed = check_integer("seed", seed, at_least=0, bits=63)
    sizes, per_day = column_sizes(scale), rows_per_day(rows, days)
    settings = {"command": "synthetic criteo", "version": 1, "rows": rows, "days": days,
                "seed": seed, "scale": scale}  # fmt: skip
    folder = Path(folder)
    if is_finished(folder, settings, overwrite=overwrite):
        return read_settings(folder)["facts"]
    statistics = LabelStatistics()
    with (
        new_folder(folder, settings) as staging,
        tqdm(
            total=rows, unit=" rows", unit_scale=True, desc="synthetic criteo", disable=None
        ) as bar,
    ):
        for day, count in enumerate(per_day):
            _write_day(staging.path / f"day_{day}.tsv", seed, day, count, sizes, statistics, bar)
        staging.facts.update(statistics.result())
    print(f"{folder}: {rows:,} rows in {days} files; {staging.facts}", flush=True)
    return staging.facts


def _write_day(
    path: Path,
    seed: int,
    day: int,
    rows: int,
    sizes: list[int],
    statistics: LabelStatistics,
    bar: tqdm,
) -> None:
    options = pa_csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none",
                                  batch_size=8_192)  # fmt: skip
    with open(path, "wb") as file:
        for number, start in enumerate(range(0, rows, BLOCK_ROWS)):
            count = min(BLOCK_ROWS, rows - start)
            block = draw_block(seed, day, number, sizes)
            pa_csv.write_csv(block_to_arrow(block).slice(0, count), file, options)
            statistics.add(block.label[:count], block.probability[:count])
            bar.update(count)
