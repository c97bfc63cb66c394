"""What `gpu-host` measures with: how much, where, and the rows, which data_prep makes there.

A model trains on what `python -m data_prep` makes for the lesson about it, only larger; so rows are
what the ETL leaves. What a command has finished is left alone when the step is done again.
Does not belong here: what is measured with it.
"""

from __future__ import annotations

import dataclasses
import functools
import shutil
from pathlib import Path
from typing import Any

from benchmarks.data import Dataset
from tutorlib.parquet import ParquetSource
from tutorlib.schema import Schema

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("dlrm", "movielens", "wide_and_deep")
BACKENDS = ("tensorflow", "jax")
DAYS = 7  # of clicks, of which the last is for validation
SHARE = 0.2  # of ratings and of rows with lists that are for validation
USERS, FILMS = 162_541, 59_047  # of MovieLens 25M
ROWS_A_USER = 8  # at least, where there are few rows


@dataclasses.dataclass(frozen=True)
class Settings:
    """How much is measured, and where.

    Args:
        device: where batches of the loader are made, "gpu" or "cpu".
        backend: of Keras, "tensorflow" or "jax".
        rows: training rows of each model, about.
        slow_rows: rows of it as TFRecord with an example a row.
        lesson_rows: rows of clicks for the lessons, those for validation included.
        ratings: for the lesson about films.
        batch_size: rows of a batch.
        settle_steps: steps of an epoch before those that are timed.
        steps: steps that are timed, at most.
        slow_settle_steps: the same where rows are read one by one, and as many to warm up before.
        slow_steps: the same there.
        traced_steps: steps under the profiler, after those that are timed.
        repeat: times that a reader goes through an epoch.
        widths: "published" or "scaled" widths of the models.
        profile: of the lessons, see notebooks/params.
        data: folder of the data sets.
        work: folder for traces, notebooks and logs.
        recon: the questions to the host, a script; None leaves them out.
    """

    device: str
    backend: str = "tensorflow"
    rows: int = 8_388_608
    slow_rows: int = 524_288
    lesson_rows: int = 1_400_000
    ratings: int = 1_000_000
    batch_size: int = 65_536
    settle_steps: int = 8
    steps: int = 60
    slow_settle_steps: int = 2
    slow_steps: int = 12
    traced_steps: int = 8
    repeat: int = 5
    widths: str = "published"
    profile: str = "gpu"
    data: str = str(ROOT / "build" / "gpu-host" / "data")
    work: str = str(ROOT / "build" / "gpu-host")
    recon: str | None = None

    @classmethod
    def tiny(cls, **changes: Any) -> Settings:
        """Return settings of which every step takes seconds on a CPU: a rehearsal."""
        small = {"rows": 8_192, "slow_rows": 4_096, "batch_size": 1_024, "traced_steps": 3}
        small |= {"lesson_rows": 400_000, "ratings": 40_000, "profile": "small"}
        small |= {"settle_steps": 2, "steps": 3, "slow_settle_steps": 1, "slow_steps": 2}
        small |= {"device": "cpu", "repeat": 1, "widths": "scaled"}
        return cls(**small | changes)

    @property
    def compared_steps(self) -> int:
        """Steps after which losses are compared: all that a slow way does until its clock stops.

        Example:
            >>> Settings("gpu").compared_steps
            17
        """
        return 1 + 2 * self.slow_settle_steps + self.slow_steps

    def dataset(self, model: str) -> Prepared:
        """Return the data that a model trains on, made if it is not there."""
        folder = Path(self.data) / f"{self.rows}-rows" / model
        {"dlrm": clicks, "movielens": ratings, "wide_and_deep": lists}[model](folder, self.rows)
        return Prepared(model, folder)


class Prepared(Dataset):
    """The training rows that data_prep has made, in whatever format is asked for.

    Args:
        name: of the model that trains on them.
        home: folder with `train/` and `valid/`.
    """

    def __init__(self, name: str, home: Path) -> None:
        self.name, self._home, self.folder = name, home, home / "formats"
        self.schema = Schema.load(home / "train" / "_schema.json")
        self.rows = self.source.num_rows
        self.folder.mkdir(exist_ok=True)

    @functools.cached_property
    def source(self) -> ParquetSource:
        """The rows as the ETL has written them."""
        return ParquetSource(self._home / "train")

    @property
    def valid(self) -> Path:
        """The rows for validation."""
        return self._home / "valid"

    def facts(self) -> dict[str, Any]:
        """Return rows, columns by role, and the bytes on disk of each format that is there."""
        facts = super().facts()
        facts["nbytes"]["parquet"] = sum(Path(file).stat().st_size for file in self.source.files)
        return facts


def clicks(folder: Path, rows: int) -> None:
    """Make clicks in the form of Criteo's: drawn as text, then through the ETL of lesson 01."""
    from data_prep import criteo, synthetic_criteo

    drawn = folder / "raw"
    if not _prepared(folder):
        synthetic_criteo.write_criteo(drawn, rows=-(-rows * DAYS // (DAYS - 1)), days=DAYS)
        criteo.prepare(drawn, folder)
    shutil.rmtree(drawn, ignore_errors=True)  # 240 bytes a row


def ratings(folder: Path, rows: int) -> None:
    """Make ratings with the users and films of MovieLens 25M, if there are rows enough."""
    from data_prep import movielens, synthetic_movielens

    drawn, count = folder / "raw", round(rows / (1 - SHARE))
    users = min(USERS, count // ROWS_A_USER)
    if not _prepared(folder):
        synthetic_movielens.write_movielens(
            drawn, ratings=count, users=users, movies=min(FILMS, users)
        )
        movielens.etl(drawn, folder)


def lists(folder: Path, rows: int) -> None:
    """Make rows with lists of ids."""
    from data_prep import synthetic_nhot

    if not _prepared(folder):
        synthetic_nhot.write_nhot(folder, rows=round(rows / (1 - SHARE)))


def for_lessons(folder: Path, rows: int, films: int) -> dict[str, int]:
    """Make the data of lessons 02 to 06 where they look for it; return {name: training rows}."""
    from data_prep import movielens, synthetic_movielens

    clicks(folder / "criteo", rows * (DAYS - 1) // DAYS)
    home = folder / "movielens"
    if not _prepared(home):
        synthetic_movielens.write_movielens(home / "raw", ratings=films)
        movielens.etl(home / "raw", home)
    return {
        name: ParquetSource(folder / name / "train").num_rows for name in ("criteo", "movielens")
    }


def _prepared(folder: Path) -> bool:
    """Tell whether data_prep has finished a folder: it writes its settings last."""
    from data_prep.output import read_settings

    return read_settings(folder) is not None
