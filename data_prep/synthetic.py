"""What the synthetic data sets share: random streams, ids, effects, labels, and the best loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike
from tqdm import tqdm

from data_prep.output import make_once
from tutorlib.checks import check_integer

BLOCK_ROWS = 32_768
SMALL_COLUMN = 1_000  # columns with at most this many ids have the same ids at every scale


class LabelStatistics:
    """The log loss and the AUC of the best possible model, from the true probabilities.

    Example:
        >>> statistics = LabelStatistics()
        >>> statistics.add(np.array([0, 1, 1, 0]), np.array([0.1, 0.9, 0.9, 0.1]))
        >>> statistics.result()["bayes_auc"]
        1.0
    """

    BINS = 10_000

    def __init__(self) -> None:
        self._loss = 0.0
        self._histogram = np.zeros((2, self.BINS))

    def add(self, label: np.ndarray, probability: np.ndarray) -> None:
        """Add rows.

        Args:
            label: 0 or 1, [rows].
            probability: true probability of label 1, in (0, 1), [rows].
        """
        p = np.where(label == 1, probability, 1 - probability)
        self._loss -= float(np.log(p).sum())
        bins = np.minimum((probability * self.BINS).astype(np.int64), self.BINS - 1)
        np.add.at(self._histogram, (label, bins), 1)

    def result(self) -> dict[str, float]:
        """Return the statistics of all rows.

        Returns:
            positive_share: share of rows with label 1.
            base_log_loss: loss of predicting that share for every row.
            bayes_log_loss, bayes_auc: those of the true probabilities. On average, no model is
                better.
        """
        negative, positive = self._histogram
        rows = self._histogram.sum()
        share = positive.sum() / rows
        below = np.concatenate([[0], np.cumsum(negative)[:-1]]) + negative / 2
        pairs = positive.sum() * negative.sum()
        with np.errstate(divide="ignore", invalid="ignore"):
            base = -np.nansum([q * np.log(q) for q in (share, 1 - share)])
        return {
            "positive_share": round(float(share), 5),
            "base_log_loss": round(float(base), 5),
            "bayes_log_loss": round(float(self._loss / rows), 5),
            "bayes_auc": round(float((positive * below).sum() / pairs), 5) if pairs else 0.5,
        }


class Drawn(NamedTuple):
    """Consecutive rows.

    Args:
        table: the rows, as in the files.
        label: int8 [rows].
        probability: float64 [rows], the true probability of label 1.
    """

    table: pa.Table
    label: np.ndarray
    probability: np.ndarray


def drawn_tables(
    draw: Callable[[int], Drawn], rows: int, statistics: LabelStatistics, bar: tqdm
) -> Iterator[pa.Table]:
    """Yield `rows` rows of the blocks that `draw` returns by number; count their labels."""
    for number, start in enumerate(range(0, rows, BLOCK_ROWS)):
        block, few = draw(number), min(BLOCK_ROWS, rows - start)
        yield block.table.slice(0, few)
        statistics.add(block.label[:few], block.probability[:few])
        bar.update(few)


def write_once(
    folder: str | Path,
    settings: dict[str, Any],
    write: Callable[[Path, tqdm], LabelStatistics],
    *,
    unit: str = "rows",
    overwrite: bool = False,
) -> dict[str, float]:
    """Make a folder of synthetic data, unless it exists with the same settings.

    Args:
        folder: output folder.
        settings: everything that decides its content, with "command", "seed" and the number of
            rows under the key `unit`.
        write: called with the folder to write to and a progress bar to update.
        unit: what the rows are called.
        overwrite: replace an output made with other settings.

    Returns:
        `LabelStatistics.result` of what `write` returned when the folder was made.

    Raises:
        ValueError: if the seed is not in [0, 2**63).
        DataPrepError: if `folder` exists with other settings or other content.
    """
    check_integer("seed", settings["seed"], at_least=0, bits=63)

    def draw(path: Path) -> dict[str, float]:
        rows, command = settings[unit], settings["command"]
        scale = {"unit": f" {unit}", "unit_scale": True}
        with tqdm(total=rows, desc=command, disable=None, **scale) as bar:
            found = write(path, bar).result()
        best = f"log loss {found['bayes_log_loss']:.3f}, AUC {found['bayes_auc']:.3f}"
        print(f"{folder}: {rows:,} {unit}; the best possible model: {best}", flush=True)
        return found

    return make_once(folder, settings, draw, overwrite=overwrite)


def random_stream(seed: int, part: int, block: int = 0) -> np.random.Generator:
    """Return a generator that depends only on the arguments.

    Philox is counter based: (seed, part) is its key, `block` its counter. So blocks can be drawn in
    any order and in any process.
    """
    return np.random.Generator(np.random.Philox(key=[seed, part], counter=[0, 0, 0, block]))


def scaled(cardinality: int, scale: float) -> int:
    """Return the number of ids of a column at `scale`.

    Columns of up to 1,000 ids keep them all; larger ones keep at least 1,000.

    Raises:
        ValueError: if `scale` is not in (0, 100].

    Example:
        >>> scaled(7_599_500, 0.01), scaled(33_521, 0.01), scaled(63, 0.01)
        (75995, 1000, 63)
    """
    if not 0 < scale <= 100:
        raise ValueError(f"scale must be above 0 and at most 100, got {scale}")
    if cardinality <= SMALL_COLUMN:
        return cardinality
    return max(SMALL_COLUMN, round(cardinality * scale))


def power_law_ids(
    rng: np.random.Generator, shape: int | tuple[int, ...], size: int, dtype: DTypeLike
) -> np.ndarray:
    """Return ids in [0, size); id k occurs about as often as 1 / (k + 1), as in most id columns."""
    ids = np.exp(rng.random(shape) * math.log(size + 1)) - 1
    return np.minimum(ids, size - 1).astype(dtype)


def id_effect(ids: np.ndarray, column: int) -> np.ndarray:
    """Return a fixed number per id: float64, uniform, mean 0 and variance 1 over the ids.

    Source: the finaliser of splitmix64, http://prng.di.unimi.it/splitmix64.c
    """
    x = ids.astype(np.uint64) + np.uint64((column + 1) * 0x9E3779B97F4A7C15 % 2**64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return ((x >> np.uint64(11)).astype(np.float64) / 2**53 - 0.5) * math.sqrt(12)


def draw_labels(rng: np.random.Generator, logit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (labels, int8 [rows]; their true probabilities, float64 [rows]) for log-odds."""
    probability = 1 / (1 + np.exp(-logit))
    return (rng.random(len(logit)) < probability).astype(np.int8), probability
