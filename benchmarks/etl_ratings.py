"""Two more jobs of the ETL benchmark, on ratings of films: ids of lists, and statistics by key.

The rows have the shape of MovieLens: `userId` and `movieId` (int32), `genres` (lists of 1 to 5
strings), `rating` (float32, 0.5 to 5 stars).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from data_prep.synthetic_movielens import GENRES
from tutorlib.parquet import ParquetSink

USERS, MOVIES = 162_541, 59_047  # of MovieLens 25M
BLOCK_ROWS = 131_072
SMOOTHING = 20.0
KEYS = ["userId", "movieId"]


def ratings(path: Path, rows: int, row_group_rows: int, rows_per_file: int) -> None:
    """Write random ratings as Parquet, with PyArrow's default settings."""
    rng = np.random.default_rng(0)
    with ParquetSink(
        path, row_group_rows=row_group_rows, rows_per_file=rows_per_file, encoding="default",
        checksums=False,
    ) as sink:  # fmt: skip
        for start in range(0, rows, BLOCK_ROWS):
            sink.write(_block(min(BLOCK_ROWS, rows - start), rng))


def _block(rows: int, rng: np.random.Generator) -> pa.Table:
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 6, rows))]).astype(np.int32)
    genres = rng.integers(0, len(GENRES), offsets[-1], dtype=np.int32)
    names = pa.DictionaryArray.from_arrays(genres, pa.array(GENRES)).dictionary_decode()
    return pa.table(
        {
            "userId": (USERS * rng.random(rows) ** 2).astype(np.int32),
            "movieId": (MOVIES * rng.random(rows) ** 4).astype(np.int32),
            "genres": pa.ListArray.from_arrays(offsets, names),
            "rating": rng.integers(1, 11, rows).astype(np.float32) / 2,
        }
    )


class _Tutorlib:
    """A Workflow of this module's jobs."""

    _workflow: Any

    def fit(self, files: list[str]) -> None:
        """Fit in one pass over the files."""
        self._workflow.fit(files, progress=False)

    def transform(self, files: list[str], target: Path) -> None:
        """Transform in a second pass, on threads."""
        self._workflow.transform_to_parquet(
            files, target, row_group_rows=BLOCK_ROWS, progress=False
        )


class TutorlibLists(_Tutorlib):
    """Ids by falling frequency of users, films and each film's list of genres."""

    def __init__(self) -> None:
        from tutorlib.ops import Categorify
        from tutorlib.workflow import Workflow

        self._workflow = Workflow([*KEYS, "genres"] >> Categorify(), ["rating"])


class TutorlibStatistics(_Tutorlib):
    """The mean rating of a film, smoothed, and the mean of a user's ratings."""

    def __init__(self) -> None:
        from tutorlib.ops import TargetEncoding
        from tutorlib.workflow import Workflow

        self._workflow = Workflow(
            ["movieId"] >> TargetEncoding("rating", fold_column=None, smoothing=SMOOTHING),
            ["userId"] >> TargetEncoding("rating", fold_column=None, smoothing=0),
            ["rating"],
        )


class _Polars:
    """Lazy frames on Polars' streaming engine."""

    def __init__(self) -> None:
        import polars

        self._pl = polars

    def _write(self, rows: Any, target: Path) -> None:
        target.mkdir()
        rows.sink_parquet(
            target / "part.parquet", compression="lz4", row_group_size=BLOCK_ROWS,
            engine="streaming",
        )  # fmt: skip


class PolarsLists(_Polars):
    """Ids by a left join for numbers, by a cast to an Enum for the strings in lists."""

    def fit(self, files: list[str]) -> None:
        """Collect the values of each column by falling frequency, equally frequent by value."""
        pl, rows = self._pl, self._pl.scan_parquet(files)
        flat = {name: rows.select(name) for name in KEYS}
        flat["genres"] = rows.select("genres").explode("genres")
        counted = [
            values.group_by(name).len().sort("len", name, descending=[True, False]).select(name)
            for name, values in flat.items()
        ]
        users, movies, genres = pl.collect_all(counted, engine="streaming")
        self._ids = [
            values.with_row_index("id", offset=3).select(
                values.columns[0], pl.col("id").cast(pl.Int32).alias(f"{values.columns[0]}_id")
            )
            for values in (users, movies)
        ]
        self._kind = pl.Enum(genres.to_series())

    def transform(self, files: list[str], target: Path) -> None:
        """Stream all rows into one file."""
        pl, rows = self._pl, self._pl.scan_parquet(files)
        for name, ids in zip(KEYS, self._ids, strict=True):
            rows = rows.join(ids.lazy(), on=name, how="left", maintain_order="left")
        genre = pl.element().cast(self._kind).to_physical().cast(pl.Int32) + 3
        names = {name: pl.col(f"{name}_id") for name in KEYS}
        self._write(
            rows.select(**names, genres=pl.col("genres").list.eval(genre), rating="rating"), target
        )


class PolarsStatistics(_Polars):
    """Group-bys, which left joins bring back to the rows."""

    def fit(self, files: list[str]) -> None:
        """Collect the statistics of each key."""
        pl, rows = self._pl, self._pl.scan_parquet(files)
        rating = pl.col("rating").cast(pl.Float64)
        sums = [rows.group_by(name).agg(pl.len(), rating.sum()) for name in KEYS]
        means = rows.select(rating.mean())
        users, movies, mean = pl.collect_all([*sums, means], engine="streaming")
        prior = SMOOTHING * mean.item()
        self._movies = movies.select(
            "movieId",
            ((pl.col("rating") + prior) / (pl.col("len") + SMOOTHING))
            .cast(pl.Float32).alias("movieId_rating_mean"),
        )  # fmt: skip
        self._users = users.select(
            "userId",
            pl.col("len").cast(pl.Float32).alias("userId_count"),
            (pl.col("rating") / pl.col("len")).cast(pl.Float32).alias("userId_rating_mean"),
        )

    def transform(self, files: list[str], target: Path) -> None:
        """Stream all rows into one file."""
        rows = self._pl.scan_parquet(files)
        for statistics in (self._movies, self._users):
            name = statistics.columns[0]
            rows = rows.join(statistics.lazy(), on=name, how="left", maintain_order="left")
        made = ["movieId_rating_mean", "userId_count", "userId_rating_mean", "rating"]
        self._write(rows.select(made), target)


class _Pandas:
    """pandas, one file at a time."""

    def __init__(self) -> None:
        import pandas

        self._pd = pandas

    def _write(self, files: list[str], columns: list[str], target: Path) -> None:
        target.mkdir()
        for number, file in enumerate(files):
            made = self._made(self._pd.read_parquet(file, columns=columns))
            self._pd.DataFrame(made).to_parquet(
                target / f"part_{number:05d}.parquet", index=False, compression="lz4",
                row_group_size=BLOCK_ROWS,
            )  # fmt: skip

    def _made(self, rows: Any) -> dict[str, Any]:
        raise NotImplementedError


class PandasLists(_Pandas):
    """`value_counts` of each column, of lists after `explode`; ids by `Index.get_indexer`."""

    def fit(self, files: list[str]) -> None:
        """Keep the values of each column by falling frequency, equally frequent by value."""
        self._values = {}
        for name in (*KEYS, "genres"):
            column = self._pd.read_parquet(files, columns=[name])[name]
            counts = column.explode().value_counts().rename("count")
            counts = counts.rename_axis("value").reset_index()
            ordered = counts.sort_values(["count", "value"], ascending=[False, True])
            self._values[name] = self._pd.Index(ordered["value"])

    def transform(self, files: list[str], target: Path) -> None:
        """Read, transform and write one file after the other."""
        self._write(files, [*KEYS, "genres", "rating"], target)

    def _made(self, rows: Any) -> dict[str, Any]:
        made = {n: (self._values[n].get_indexer(rows[n]) + 3).astype("int32") for n in KEYS}
        offsets = np.cumsum(rows["genres"].map(len).to_numpy())[:-1]
        genres = self._values["genres"].get_indexer(rows["genres"].explode()) + 3
        return {
            **made,
            "genres": np.split(genres.astype("int32"), offsets),
            "rating": rows["rating"],
        }


class PandasStatistics(_Pandas):
    """`groupby`, and `map` to bring the statistics back to the rows."""

    def fit(self, files: list[str]) -> None:
        """Keep the statistics of each key."""
        rows = self._pd.read_parquet(files, columns=[*KEYS, "rating"])
        rating = rows["rating"].astype("float64")
        movies = rating.groupby(rows["movieId"]).agg(["sum", "count"])
        users = rating.groupby(rows["userId"]).agg(["mean", "count"])
        prior = SMOOTHING * rating.mean()
        self._statistics = {
            "movieId_rating_mean": (movies["sum"] + prior) / (movies["count"] + SMOOTHING),
            "userId_count": users["count"],
            "userId_rating_mean": users["mean"],
        }

    def transform(self, files: list[str], target: Path) -> None:
        """Read, transform and write one file after the other."""
        self._write(files, [*KEYS, "rating"], target)

    def _made(self, rows: Any) -> dict[str, Any]:
        made = {
            name: rows[name.partition("_")[0]].map(numbers).astype("float32")
            for name, numbers in self._statistics.items()
        }
        return {**made, "rating": rows["rating"]}
