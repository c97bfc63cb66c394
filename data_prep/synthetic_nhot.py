"""Synthetic rows with lists of ids, ready for training, drawn from a seed in bounded memory.

The shape is that of a published benchmark of Wide & Deep: 10 numbers (N1..N10), 37 categorical
columns of one id a row (C1..C37), 3 of up to ten ids a row (H1..H3, "ten-hot"), a binary label.
Parquet, `train/` and `valid/`, each with its `_schema.json`. An id is a number from 0 to the
column's cardinality - 1, the frequent ones first, so that it can be used as it is, or be hashed as
if it were any number. Lists are without repetition, 0 to 10 ids, and some are empty. Numbers look
as an ETL leaves counts: log1p, then scaled.

The label follows a logistic model of what stands in the row: four numbers and the product of two,
an effect for each id of fourteen columns and for each pair of ids of C8 and C10, and the mean of
the effects of the ids in each list. The world is fixed; the seed draws another sample from it.

Measured on 1,000,000 rows (scale 0.01, seed 0): 29 % of the labels are 1. The log loss is 0.605 for
predicting that share and 0.454 for the true probabilities, whose AUC is 0.823. 112 bytes a row, 330
thousand rows/s on one core, 130 MB above the interpreter.
Source of the shape: "Improved TensorFlow 2.7 Operations for Faster Recommenders with NVIDIA",
TensorFlow blog, January 2022. The cardinalities are ours.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tqdm import tqdm

from data_prep.bayes import LabelStatistics
from data_prep.output import is_finished, new_folder, read_settings
from data_prep.synthetic_criteo import SMALL_COLUMN, id_effect
from tutorlib.checks import check_integer
from tutorlib.parquet import ParquetSink
from tutorlib.schema import Column, Schema

NUMBER_NAMES = tuple(f"N{i}" for i in range(1, 11))
ONE_HOT_NAMES = tuple(f"C{i}" for i in range(1, 38))
LIST_NAMES = tuple(f"H{i}" for i in range(1, 4))
MOST_IDS = 10  # of a list
# Half as many ids again from each column to the next: 3, 4, 7, ..., 6.6 million.
CARDINALITIES = dict(zip(ONE_HOT_NAMES, (round(3 * 1.5**k) for k in range(37)), strict=True))
CARDINALITIES |= dict(zip(LIST_NAMES, (2_000_000, 100_000, 5_000), strict=True))
BLOCK_ROWS = 32_768
ROW_GROUP_ROWS = 65_536
PARTS = ("train", "valid")

# The logistic model. Standard deviation of a column's contribution to the log-odds; that of a list
# with one id, for the mean over more ids varies less.
_NUMBER_EFFECTS = {"N1": 0.4, "N2": -0.35, "N3": 0.3, "N6": 0.25}
_PRODUCT = ("N4", "N5", 0.3)
_ID_EFFECTS = {
    "C2": 0.3, "C5": 0.3, "C8": 0.3, "C11": 0.3, "C13": 0.3, "C15": 0.35, "C18": 0.3, "C20": 0.3,
    "C22": 0.35, "C25": 0.35, "C28": 0.35, "C31": 0.35, "C34": 0.35, "C37": 0.35,
}  # fmt: skip
_PAIR = ("C8", "C10", 0.4)
_LIST_EFFECTS = {"H1": 0.7, "H2": 0.7, "H3": 0.7}
_BIAS = -1.3


@dataclasses.dataclass
class Block:
    """Consecutive rows of one part.

    Args:
        numbers: float32 [10, rows].
        ids: int32 [37, rows].
        lists: int32 [3, rows, 10].
        listed: bool [3, rows, 10], which of `lists` belong to the row.
        label: int8 [rows].
        probability: float64 [rows], the true probability of label 1.
    """

    numbers: np.ndarray
    ids: np.ndarray
    lists: np.ndarray
    listed: np.ndarray
    label: np.ndarray
    probability: np.ndarray


def cardinalities(scale: float) -> dict[str, int]:
    """Return {column: ids that it has} at `scale`.

    Columns of up to 1,000 ids keep them all; larger ones keep at least 1,000.

    Raises:
        ValueError: if `scale` is not in (0, 100].

    Example:
        >>> sizes = cardinalities(0.01)
        >>> sizes["C1"], sizes["C37"], sizes["H1"], cardinalities(1.0)["C37"]
        (3, 65525, 20000, 6552493)
    """
    if not 0 < scale <= 100:
        raise ValueError(f"scale must be above 0 and at most 100, got {scale}")
    return {
        name: size if size <= SMALL_COLUMN else max(SMALL_COLUMN, round(size * scale))
        for name, size in CARDINALITIES.items()
    }


def schema_of(scale: float) -> Schema:
    """Return the columns as they stand in the files, in order.

    Example:
        >>> [column.name for column in schema_of(0.01) if column.multi_hot]
        ['H1', 'H2', 'H3']
    """
    sizes = cardinalities(scale)
    return Schema(
        [
            *(Column(name, "continuous", "float32") for name in NUMBER_NAMES),
            *(
                Column(name, "categorical", "int32", name in LIST_NAMES, size)
                for name, size in sizes.items()
            ),
            Column("label", "label", "int8"),
        ]
    )


def rows_per_part(rows: int, valid_share: float) -> dict[str, int]:
    """Return {"train": rows, "valid": rows}.

    Raises:
        ValueError: if `valid_share` is not in (0, 1), or one of the two would have no row.

    Example:
        >>> rows_per_part(10, 0.2)
        {'train': 8, 'valid': 2}
    """
    if not 0 < valid_share < 1:
        raise ValueError(f"valid_share must be above 0 and below 1, got {valid_share}")
    valid = round(rows * valid_share)
    if not 0 < valid < rows:
        raise ValueError(
            f"{rows} rows with valid_share {valid_share} leave no row to train or to validate on; "
            "ask for more rows"
        )
    return {"train": rows - valid, "valid": valid}


def draw_block(seed: int, part: int, block: int, sizes: dict[str, int]) -> Block:
    """Return `BLOCK_ROWS` rows that depend on nothing but the arguments.

    Key of the generator is (seed, part), its counter the block. Cost: about 0.1 s and 30 MB.

    Args:
        seed: 0 to 2**63 - 1.
        part: index into `PARTS`.
        block: number of the block within the part.
        sizes: `cardinalities`.
    """
    rng = np.random.Generator(np.random.Philox(key=[seed, part], counter=[0, 0, 0, block]))
    n = BLOCK_ROWS
    numbers = _draw_numbers(rng, n)
    ids = np.stack([_draw_ids(rng, (n,), sizes[name]) for name in ONE_HOT_NAMES])
    lists = np.stack([_draw_ids(rng, (n, MOST_IDS), sizes[name]) for name in LIST_NAMES])
    lengths = rng.integers(0, MOST_IDS + 1, (len(LIST_NAMES), n, 1))
    listed = (np.arange(MOST_IDS) < lengths) & ~_seen_before(lists)
    probability = 1 / (1 + np.exp(-_logit(numbers, ids, lists, listed)))
    label = (rng.random(n) < probability).astype(np.int8)
    return Block(numbers, ids, lists, listed, label, probability)


def _draw_numbers(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return counts as an ETL leaves them: log1p, mean about 0, standard deviation about 1."""
    counts = np.floor(np.exp(2.0 + 1.3 * rng.standard_normal((len(NUMBER_NAMES), n), np.float32)))
    return ((np.log1p(counts) - np.float32(2.12)) / np.float32(1.1)).astype(np.float32)


def _draw_ids(rng: np.random.Generator, shape: tuple[int, ...], size: int) -> np.ndarray:
    """Return ids whose frequency falls as 1 / (id + 1), the power law of most id columns."""
    ids = np.exp(rng.random(shape) * math.log(size + 1)) - 1
    return np.minimum(ids, size - 1).astype(np.int32)


def _seen_before(lists: np.ndarray) -> np.ndarray:
    """Return which ids stand in their list at an earlier place already: bool as `lists`."""
    seen = np.zeros(lists.shape, bool)
    for place in range(1, lists.shape[-1]):
        seen[..., place] = (lists[..., :place] == lists[..., place, None]).any(axis=-1)
    return seen


def _logit(
    numbers: np.ndarray, ids: np.ndarray, lists: np.ndarray, listed: np.ndarray
) -> np.ndarray:
    """Return the log-odds of label 1: float64 [rows], a function of what stands in the row."""
    logit = np.full(numbers.shape[1], _BIAS)
    for name, weight in _NUMBER_EFFECTS.items():
        logit += weight * numbers[NUMBER_NAMES.index(name)]
    first, second, weight = _PRODUCT
    logit += weight * numbers[NUMBER_NAMES.index(first)] * numbers[NUMBER_NAMES.index(second)]
    for name, weight in _ID_EFFECTS.items():
        column = ONE_HOT_NAMES.index(name)
        logit += weight * id_effect(ids[column], column)
    first, second, weight = _PAIR
    pair = ids[ONE_HOT_NAMES.index(first)] * 1_000 + ids[ONE_HOT_NAMES.index(second)]
    logit += weight * id_effect(pair, 99)
    for place, weight in enumerate(_LIST_EFFECTS.values()):
        effects = np.where(listed[place], id_effect(lists[place], 50 + place), 0)
        logit += weight * effects.sum(axis=1) / np.maximum(listed[place].sum(axis=1), 1)
    return logit


def block_to_arrow(block: Block) -> pa.Table:
    """Return the rows as the files have them: N float32, C int32, H lists of int32, label int8."""
    columns = [pa.array(values) for values in (*block.numbers, *block.ids)]
    for ids, listed in zip(block.lists, block.listed, strict=True):
        offsets = np.concatenate([[0], np.cumsum(listed.sum(axis=1))]).astype(np.int32)
        columns.append(pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids[listed])))
    names = [*NUMBER_NAMES, *ONE_HOT_NAMES, *LIST_NAMES, "label"]
    return pa.table([*columns, pa.array(block.label)], names=names)


def write_nhot(
    folder: str | Path,
    *,
    rows: int = 400_000,
    valid_share: float = 0.2,
    seed: int = 0,
    scale: float = 0.01,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write `train/` and `valid/`, Parquet with `_schema.json`; return what was measured meanwhile.

    Memory: one row group of 65,536 rows and a block, 130 MB, whatever `rows`. The first rows of a
    part are the same however many follow.

    Args:
        folder: output folder.
        rows: rows of both parts together.
        valid_share: share of them that validates, (0, 1).
        seed: 0 to 2**63 - 1; each seed is another sample of the same world.
        scale: factor on the cardinalities (`cardinalities`).
        overwrite: replace an output made with other settings.

    Returns:
        positive_share, base_log_loss, bayes_log_loss and bayes_auc of the validation rows, as
        `LabelStatistics` says.

    Raises:
        ValueError: if a setting is out of range.
        DataPrepError: if `folder` is there with other settings or other content.
    """
    seed = check_integer("seed", seed, at_least=0, bits=63)
    schema, per_part = schema_of(scale), rows_per_part(rows, valid_share)
    settings = {"command": "synthetic nhot", "version": 1, "rows": rows,
                "valid_share": valid_share, "seed": seed, "scale": scale}  # fmt: skip
    folder = Path(folder)
    if is_finished(folder, settings, overwrite=overwrite):
        return read_settings(folder)["facts"]
    with (
        new_folder(folder, settings) as staging,
        tqdm(total=rows, unit=" rows", unit_scale=True, desc="synthetic nhot", disable=None) as bar,
    ):
        for number, part in enumerate(PARTS):
            statistics = LabelStatistics()
            with ParquetSink(staging.path / part, row_group_rows=ROW_GROUP_ROWS) as sink:
                _write_part(sink, seed, number, per_part[part], schema, statistics, bar)
            (staging.path / part / "_schema.json").write_text(schema.to_json(), encoding="utf-8")
        staging.facts.update(statistics.result())
    print(f"{folder}: {rows:,} rows; of those that validate: {staging.facts}", flush=True)
    return staging.facts


def _write_part(
    sink: ParquetSink,
    seed: int,
    part: int,
    rows: int,
    schema: Schema,
    statistics: LabelStatistics,
    bar: tqdm,
) -> None:
    sizes = {column.name: column.cardinality for column in schema.categorical}
    for number, start in enumerate(range(0, rows, BLOCK_ROWS)):
        count = min(BLOCK_ROWS, rows - start)
        block = draw_block(seed, part, number, sizes)
        sink.write(block_to_arrow(block).slice(0, count))
        statistics.add(block.label[:count], block.probability[:count])
        bar.update(count)
