"""MovieLens: an archive or folder of ratings and films to training-ready Parquet and its Workflow.

`prepare` fetches the two files, `etl` does the rest. Ratings and films are held in memory (ml-25m:
1 GB); their join is streamed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from data_prep.download import fetch
from data_prep.output import DataPrepError, fingerprint, make_once, read_settings
from tutorlib.checks import check_choice
from tutorlib.ops import Categorify
from tutorlib.parquet import ParquetSource
from tutorlib.workflow import Workflow

BASE_URL = "https://files.grouplens.org/datasets/movielens"
# SHA-256 of the archives, as TensorFlow Datasets publishes them:
# https://github.com/tensorflow/datasets, tensorflow_datasets/url_checksums/movielens.txt
SHA256 = {
    "ml-latest-small": "696d65a3dfceac7c45750ad32df2c259311949efec81f0f144fdfb91ebc9e436",
    "ml-25m": "8b21cfb7eb1706b4ec0aac894368d90acf26ebdfb6aced3ebd4ad5bd1eb9c6aa",
}
FILES = ("ratings.csv", "movies.csv")
RATING_TYPES = {
    "userId": pa.int64(), "movieId": pa.int64(), "rating": pa.float32(), "timestamp": pa.int64(),
}  # fmt: skip
MOVIE_TYPES = {"movieId": pa.int64(), "title": pa.string(), "genres": pa.string()}
STARS = (0.5, 5.0)  # least and most of a rating
LIKED_ABOVE = 3.0  # stars; a higher rating has label 1
BLOCK_ROWS = 262_144  # that are joined at a time
ROW_GROUP_ROWS = 65_536  # of train/ and valid/
VALID_SHARE = 0.2  # of the ratings
SEED = 42  # of the random split and of the order of the training rows


def prepare(
    output: str | Path,
    *,
    source: str | Path | None = None,
    variant: Literal["ml-latest-small", "ml-25m"] = "ml-latest-small",
    split: Literal["random", "time"] = "random",
    overwrite: bool = False,
) -> dict[str, Any]:
    """Make MovieLens ready for training: train/, valid/, movies/, workflow/.

    Downloads an archive from GroupLens (1 MB or 262 MB, with checksum) unless a source is given.

    Args:
        output: output folder.
        source: local zip archive, or folder with ratings.csv and movies.csv, instead of a download.
        variant: archive to download: 0.1 M or 25 M ratings.
        split: the fifth of the ratings that validates: drawn at random (seed 42), or the latest.
        overwrite: replace an output made with other settings.

    Returns:
        As `etl`.
    """
    url = f"{BASE_URL}/{variant}.zip"
    raw = fetch(output, source, url, SHA256[variant], FILES, overwrite=overwrite)
    return etl(raw, output, split=split, overwrite=overwrite)


def etl(
    source: str | Path,
    output: str | Path,
    *,
    split: Literal["random", "time"] = "random",
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write train/, valid/, movies/ and workflow/ into `output`.

    Ratings are joined with the genres of their film, split, and transformed by
    `Workflow(["userId", "movieId"] >> Categorify(), ["genres"] >> Categorify(freq_threshold=0),
    ["rating"])`, which is fitted on the training part only. Users and films with the fewest ratings
    stand for unknown ones; the list of genres is closed, so each has an id. The label `rating` is
    1.0 for more than 3 stars, else 0.0; it is computed before the Workflow, so that the saved
    Workflow contains no Python function. Training rows are stored in random order.

    Args:
        source: folder with ratings.csv and movies.csv.
        output: output folder.
        split: how a fifth of the ratings is chosen for validation: "random" draws them, "time"
            uses the latest, and among equal timestamps the last in the file.
        overwrite: replace an output made with other settings.

    Returns:
        {"train_rows": n, "valid_rows": n, "source": what `source_of` returns}.

    Raises:
        ValueError: if `split` is neither.
        OSError: if a file cannot be read.
        DataPrepError: if a file is malformed, or the output exists with other settings.
    """
    check_choice("split", split, ("random", "time"))
    source = Path(source)
    files = [source / name for name in FILES]

    def write(folder: Path) -> dict[str, Any]:
        ratings, movies = read_ratings(files[0]), read_movies(files[1])
        rows = ratings.num_rows
        valid_rows = max(1, round(rows * VALID_SHARE))
        if valid_rows >= rows:
            raise DataPrepError(
                f"{files[0]} has {rows} ratings, too few to split. Provide more ratings."
            )
        if split == "time":
            order = np.argsort(ratings["timestamp"].to_numpy(), kind="stable")[-valid_rows:]
        else:
            order = np.random.default_rng(SEED).permutation(rows)[:valid_rows]
        is_valid = np.zeros(rows, bool)
        is_valid[order] = True
        (folder / "movies").mkdir()
        pq.write_table(movies, folder / "movies/movies.parquet", write_page_checksum=True)
        sides = {"train": np.flatnonzero(~is_valid), "valid": np.flatnonzero(is_valid)}
        _join(ratings, movies, sides, folder / "joined")
        _fit_and_write(folder)
        print(f"{output}: {rows - valid_rows:,} ratings in train/, {valid_rows:,} in valid/")
        counts = {"train_rows": rows - valid_rows, "valid_rows": valid_rows}
        return {**counts, "source": _source(source)}

    settings = {"command": "movielens etl", "version": 4, "split": split,
                "files": fingerprint(files)}  # fmt: skip
    parts = ("train", "valid", "movies", "workflow")
    return make_once(output, settings, write, parts=parts, inputs=[source], overwrite=overwrite)


def rows_by_time(data_dir: str | Path) -> tuple[Path, Path]:
    """Return the folder `movielens_by_time` of a data folder, as `etl` makes it, split by time.

    Its ratings are those of `data_dir/movielens`; if there are none, synthetic ones are made. It is
    made again if they have changed.

    Returns:
        Folder with train/, valid/, movies/ and workflow/; folder with the CSV files.
    """
    from data_prep.synthetic_movielens import write_movielens

    made, folder = Path(data_dir) / "movielens", Path(data_dir) / "movielens_by_time"
    raw = made / "raw"
    if read_settings(made) is not None:
        given = Path(source_of(made)["folder"])
        raw = given if given.is_dir() else raw  # the data folder may have moved since
    elif read_settings(raw) is None:
        write_movielens(raw)
    old, files = read_settings(folder), fingerprint([raw / name for name in FILES])
    changed = old is not None and old["settings"].get("files") != files
    etl(raw, folder, split="time", overwrite=changed)
    return folder, raw


def source_of(output: str | Path) -> dict[str, Any]:
    """Return where the ratings of an output of `etl` come from, also if `raw/` is gone.

    Returns:
        {"kind": "synthetic", "downloaded" (its checksum was compared) or "local" (an archive or a
        folder whose origin nothing proves); "folder": of the CSV files; "settings", "metadata": of
        the files' own `_settings.json`, {} if there is none}.

    Raises:
        DataPrepError: if there is no output of `etl`.
    """
    made = read_settings(output)
    if made is None or made["settings"].get("command") != "movielens etl":
        raise DataPrepError(f"{output} holds no MovieLens data. Run: python -m data_prep movielens")
    return made["metadata"]["source"]


def _source(folder: Path) -> dict[str, Any]:
    made = read_settings(folder) or {"settings": {}, "metadata": {}}
    downloaded = any(made["settings"].get("archive") == [digest] for digest in SHA256.values())
    kind = "synthetic" if made["settings"].get("command") == "synthetic movielens" else "local"
    return {**made, "kind": "downloaded" if downloaded else kind, "folder": str(folder.resolve())}


def read_movies(path: Path) -> pa.Table:
    """Return the films: movieId (int64), title (string), genres (list of strings).

    Raises:
        DataPrepError: if a column is missing, a value is malformed, or a movieId occurs twice.
    """
    movies = _read_csv(path, MOVIE_TYPES)
    if len(pc.unique(movies["movieId"])) < movies.num_rows:
        raise DataPrepError(f"{path}: a movieId occurs twice. Remove one of its lines.")
    return movies.set_column(2, "genres", pc.split_pattern(movies["genres"], "|"))


def read_ratings(path: Path) -> pa.Table:
    """Return the ratings: userId, movieId (int64), rating (float32, stars), timestamp (int64).

    Raises:
        DataPrepError: if a column is missing, or a value is malformed or not in 0.5 to 5 stars.
    """
    ratings = _read_csv(path, RATING_TYPES)
    stars = ratings["rating"].to_numpy()
    wrong = np.flatnonzero(~((stars >= STARS[0]) & (stars <= STARS[1])))
    if len(wrong):
        raise DataPrepError(
            f"{path}:{wrong[0] + 2}: rating is {stars[wrong[0]]}, must be in [{STARS[0]}, "
            f"{STARS[1]}]. Correct the file or fetch it again."
        )
    return ratings


def _read_csv(path: Path, types: dict[str, pa.DataType]) -> pa.Table:
    """Return the named columns of a CSV file with a header."""
    with_text = pa.string() in types.values()
    # Arrow loses line breaks within titles at the border of two blocks: films are one block.
    block_bytes = path.stat().st_size + 1 if with_text else 1 << 22
    try:
        table = pa_csv.read_csv(
            path,
            read_options=pa_csv.ReadOptions(block_size=block_bytes),
            parse_options=pa_csv.ParseOptions(newlines_in_values=with_text),
            convert_options=pa_csv.ConvertOptions(column_types=types, include_columns=list(types)),
        )
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        raise DataPrepError(
            f"{path} is malformed: {error}. Correct it or fetch it again."
        ) from error
    if nulls := [name for name in types if table[name].null_count]:
        raise DataPrepError(f"{path}: empty values in {nulls}. Correct or fetch the file.")
    return table


def _join(ratings: pa.Table, movies: pa.Table, sides: dict[str, np.ndarray], folder: Path) -> None:
    """Write `folder/train.parquet` and `valid.parquet`: userId, movieId, genres, rating (0 or 1).

    A film that is not in `movies` gets an empty list of genres.
    """
    folder.mkdir()
    no_genres = pa.array([[]], movies["genres"].type)
    genres = pa.concat_arrays([*movies["genres"].chunks, no_genres])
    schema = pa.schema([("userId", pa.int64()), ("movieId", pa.int64()),
                        ("genres", genres.type), ("rating", pa.float32())])  # fmt: skip
    for side, rows in sides.items():
        path = folder / f"{side}.parquet"
        with pq.ParquetWriter(path, schema, write_page_checksum=True) as writer:
            for start in range(0, len(rows), BLOCK_ROWS):
                part = ratings.take(pa.array(rows[start : start + BLOCK_ROWS]))
                film = pc.index_in(part["movieId"], movies["movieId"])
                liked = pc.greater(part["rating"], LIKED_ABOVE).cast(pa.float32())
                columns = [part["userId"], part["movieId"],
                           genres.take(pc.fill_null(film, movies.num_rows)), liked]  # fmt: skip
                writer.write_table(pa.table(columns, schema=schema))


def _fit_and_write(folder: Path) -> None:
    """Fit a Workflow to the joined ratings, and transform them."""
    sources = {n: ParquetSource(folder / "joined" / f"{n}.parquet") for n in ("train", "valid")}
    workflow = Workflow(
        ["userId", "movieId"] >> Categorify(),
        ["genres"] >> Categorify(freq_threshold=0),  # a closed list: no genre is new
        ["rating"],
        label_names=["rating"],
    )
    workflow.fit(sources["train"])
    # The file is sorted by user. Training rows are stored shuffled, validation rows in file order.
    for name, shuffle_seed in (("train", SEED), ("valid", None)):
        workflow.transform_to_parquet(
            sources[name], folder / name, row_group_rows=ROW_GROUP_ROWS, shuffle_seed=shuffle_seed
        )
    workflow.save(folder / "workflow")
