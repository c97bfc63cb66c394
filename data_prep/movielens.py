"""MovieLens: an archive or folder of ratings and films to training-ready Parquet and its Workflow.

`fetch` downloads the archive and unpacks the two files that are needed; `etl` does the rest, and
`prepare` both. Ratings are streamed; the films (tens of thousands) and one flag per rating are held
in memory.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from data_prep.download import download, unpack
from data_prep.output import (
    DataPrepError,
    fingerprint,
    finished_metadata,
    new_output,
    new_parts,
    read_settings,
)
from tutorlib.checks import check_choice

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
READ_BLOCK_BYTES = 1 << 22
ROW_GROUP_ROWS = 65_536  # of train/ and valid/
SEED = 42  # of the random split and of the order of the training rows


def prepare(
    output: str | Path,
    *,
    source: str | Path | None = None,
    variant: Literal["ml-latest-small", "ml-25m"] = "ml-latest-small",
    split: Literal["random", "time"] = "random",
    valid_share: float = 0.2,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Make MovieLens ready for training: train/, valid/, movies/, workflow/.

    Downloads an archive from GroupLens (1 MB or 262 MB, with checksum, resumable) unless a source
    is given.

    Args:
        output: output folder.
        source: local zip archive, or folder with ratings.csv and movies.csv, instead of a download.
        variant: archive to download: 0.1 M or 25 M ratings.
        split: ratings for validation: drawn at random (seed 42), or the latest.
        valid_share: share of the ratings for validation, in (0, 1).
        overwrite: replace an output made with other settings.

    Returns:
        As `etl`.
    """
    raw = fetch(output, variant=variant, source=source, overwrite=overwrite)
    return etl(raw, output, split=split, valid_share=valid_share, overwrite=overwrite)


def fetch(
    output: str | Path,
    *,
    variant: str = "ml-latest-small",
    source: str | Path | None = None,
    overwrite: bool = False,
) -> Path:
    """Return a folder with ratings.csv and movies.csv.

    Args:
        output: folder for the archive (`output/downloads`) and its two files (`output/raw`).
        variant: archive to download if `source` is None.
        source: local zip archive, or folder with the two files, which is returned unchanged.
        overwrite: replace an `output/raw` made from another archive.

    Raises:
        DataPrepError: if the download fails, a checksum is wrong, or files are missing or damaged.
    """
    if source is not None and Path(source).is_dir():
        missing = [name for name in FILES if not (Path(source) / name).is_file()]
        if missing:
            raise DataPrepError(f"--from {source}: no {' and no '.join(missing)} in this folder")
        return Path(source)
    if source is not None and not Path(source).is_file():
        raise DataPrepError(f"--from {source}: no such zip archive or folder")
    raw = Path(output) / "raw"
    archive = SHA256[variant] if source is None else fingerprint([Path(source)])
    settings = {"command": "movielens fetch", "archive": archive}
    if finished_metadata(raw, settings, overwrite=overwrite) is not None:
        return raw
    if source is None:
        source = Path(output) / "downloads" / f"{variant}.zip"
        download(f"{BASE_URL}/{variant}.zip", source, SHA256[variant])
    with new_output(raw, settings, inputs=[Path(source)]) as staging:
        unpack(Path(source), staging.path, FILES)
    return raw


def etl(
    source: str | Path,
    output: str | Path,
    *,
    split: str = "random",
    valid_share: float = 0.2,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write train/, valid/, movies/ and workflow/ into `output`.

    Ratings are joined with the genres of their film, split, and transformed by
    `Workflow(["userId", "movieId"] >> Categorify(), ["genres"] >> Categorify(), ["rating"])`, which
    is fitted on the training part only. The label `rating` is 1.0 for more than 3 stars, else 0.0;
    it is computed before the Workflow, so that the saved Workflow contains no Python function.
    Training rows are stored in random order.

    Args:
        source: folder with ratings.csv and movies.csv.
        output: output folder.
        split: "random" draws the validation rows, "time" uses the latest ratings.
        valid_share: share of the ratings for validation, in (0, 1).
        overwrite: replace an output made with other settings.

    Returns:
        {"train_rows", "valid_rows", "train_positive_share", "valid_positive_share",
        "valid_base_log_loss", "cardinalities", "source"}. The base log loss is the loss of
        predicting the positive share of the training rows for every validation row. "source" is
        what `source_of` returns.

    Raises:
        ValueError: if a setting is out of range.
        DataPrepError: if a file is malformed, or the output exists with other settings.
    """
    check_choice("split", split, ("random", "time"))
    if not 0 < valid_share < 1:
        raise ValueError(f"valid_share must be in (0, 1), got {valid_share}")
    source, output = Path(source), Path(output)
    ratings, films = (source / name for name in FILES)
    settings = {"command": "movielens etl", "version": 2, "split": split,
                "valid_share": valid_share, "files": fingerprint([ratings, films])}  # fmt: skip
    finished = finished_metadata(output, settings, overwrite=overwrite)
    if finished is not None:
        return finished
    parts = ("train", "valid", "movies", "workflow")
    with new_parts(output, parts, settings, inputs=[source]) as staging:
        movies = read_movies(films)
        (staging.path / "movies").mkdir()
        pq.write_table(movies, staging.path / "movies/movies.parquet", write_page_checksum=True)
        is_valid = split_rows(ratings, split, valid_share)
        shares = join_and_split(ratings, movies, is_valid, staging.path / "joined")
        sizes = _fit_and_write(staging.path)
        rows = {"train_rows": int((~is_valid).sum()), "valid_rows": int(is_valid.sum())}
        staging.metadata.update(rows, **shares, cardinalities=sizes, source=_source(source))
    print(
        f"{output}: {rows['train_rows']:,} ratings in train/, {rows['valid_rows']:,} in valid/, "
        f"{movies.num_rows:,} films",
        flush=True,
    )
    return staging.metadata


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


def raw_folder(output: str | Path) -> Path:
    """Return the folder with the CSV files that an output of `etl` was made from.

    The folder that `etl` recorded, or `output/raw` if the data was moved or copied. A file counts
    if it has as many bytes as the one that was read: a copy has another modification time.

    Raises:
        DataPrepError: if there is no output of `etl`, or its raw files are gone or have changed.
    """
    folders = [Path(source_of(output)["folder"]), Path(output) / "raw"]
    read = (read_settings(output) or {})["settings"]["files"]  # {name: [bytes, time]}
    for folder in folders:
        files = [folder / name for name in FILES]
        if all(path.is_file() and path.stat().st_size == read[path.name][0] for path in files):
            return folder
    raise DataPrepError(
        f"{output} was made from {' and '.join(FILES)}, which are gone from "
        f"{' or '.join(map(str, dict.fromkeys(folders)))} or have changed. Put them back, or "
        "prepare the data again: "
        f"python -m data_prep movielens --from ZIP_OR_FOLDER --output {output} --overwrite"
    )


def _source(folder: Path) -> dict[str, Any]:
    made: dict[str, Any] = {"settings": {}, "metadata": {}}
    with contextlib.suppress(DataPrepError):  # a `_settings.json` of the user's own
        made = read_settings(folder) or made
    command, archive = (made["settings"].get(name) for name in ("command", "archive"))
    downloaded = command == "movielens fetch" and archive in SHA256.values()
    kind = "synthetic" if command == "synthetic movielens" else "local"
    return {**made, "kind": "downloaded" if downloaded else kind, "folder": str(folder.resolve())}


def read_movies(path: Path) -> pa.Table:
    """Return the films: movieId (int64), title (string), genres (list of strings).

    Raises:
        DataPrepError: if a column is missing, a value is malformed, or a movieId occurs twice.
    """
    # In one block: Arrow loses line breaks within titles at the border of two.
    movies = pa.concat_tables(_read_csv(path, MOVIE_TYPES, path.stat().st_size + 1))
    if len(pc.unique(movies["movieId"])) < movies.num_rows:
        raise DataPrepError(f"{path}: a movieId occurs twice. Remove one of its lines.")
    return movies.set_column(2, "genres", pc.split_pattern(movies["genres"], "|"))


def _read_csv(path: Path, types: dict[str, pa.DataType], block_bytes: int) -> Iterator[pa.Table]:
    """Yield blocks of the named columns of a CSV file with a header."""
    try:
        reader = pa_csv.open_csv(
            path,
            read_options=pa_csv.ReadOptions(block_size=block_bytes, use_threads=False),
            parse_options=pa_csv.ParseOptions(newlines_in_values="title" in types),
            convert_options=pa_csv.ConvertOptions(column_types=types, include_columns=list(types)),
        )
        for batch in reader:
            table = pa.Table.from_batches([batch])
            if nulls := [name for name in types if table[name].null_count]:
                raise DataPrepError(f"{path}: empty values in {nulls}. Correct or fetch the file.")
            yield table
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        raise DataPrepError(
            f"{path} is malformed: {error}. Correct it or fetch it again."
        ) from error


def _read_ratings(path: Path) -> Iterator[pa.Table]:
    """Yield blocks of ratings.csv; DataPrepError for a rating outside 0.5 to 5 stars."""
    line = 2  # after the header
    for table in _read_csv(path, RATING_TYPES, READ_BLOCK_BYTES):
        stars = table["rating"].to_numpy()
        wrong = np.flatnonzero(~((stars >= STARS[0]) & (stars <= STARS[1])))
        if len(wrong):
            raise DataPrepError(
                f"{path}:{line + wrong[0]}: rating is {stars[wrong[0]]}, must be in "
                f"[{STARS[0]}, {STARS[1]}]. Correct the file or fetch it again."
            )
        line += table.num_rows
        yield table


def split_rows(ratings: Path, split: str, valid_share: float) -> np.ndarray:
    """Return which ratings validate: bool [ratings], with `valid_share` of them True.

    "time" selects the latest ratings, and among equal timestamps the last in the file.

    Raises:
        DataPrepError: if there are too few ratings for both parts.
    """
    blocks = [table["timestamp"].to_numpy() for table in _read_ratings(ratings)]
    times = np.concatenate(blocks or [np.empty(0)])
    rows = len(times)
    valid_rows = max(1, round(rows * valid_share))
    if valid_rows >= rows:
        raise DataPrepError(
            f"{ratings} has {rows} ratings, too few to split. Provide more ratings."
        )
    if split == "time":
        chosen = np.argsort(times, kind="stable")[-valid_rows:]
    else:
        chosen = np.random.default_rng(SEED).permutation(rows)[:valid_rows]
    is_valid = np.zeros(rows, bool)
    is_valid[chosen] = True
    return is_valid


def join_and_split(
    ratings: Path, movies: pa.Table, is_valid: np.ndarray, folder: Path
) -> dict[str, Any]:
    """Write `folder/train.parquet` and `valid.parquet`: userId, movieId, genres, rating (0 or 1).

    A film that is not in `movies` gets an empty list of genres.

    Returns:
        Statistics of the labels, as described in `etl`.
    """
    folder.mkdir()
    no_genres = pa.array([[]], movies["genres"].type)
    genres = pa.concat_arrays([*movies["genres"].chunks, no_genres])
    schema = pa.schema([("userId", pa.int64()), ("movieId", pa.int64()),
                        ("genres", genres.type), ("rating", pa.float32())])  # fmt: skip
    positive, count, start = np.zeros(2), np.zeros(2), 0
    with (
        pq.ParquetWriter(folder / "train.parquet", schema, write_page_checksum=True) as train,
        pq.ParquetWriter(folder / "valid.parquet", schema, write_page_checksum=True) as valid,
    ):
        for table in _read_ratings(ratings):
            film = pc.fill_null(pc.index_in(table["movieId"], movies["movieId"]), movies.num_rows)
            liked = table["rating"].to_numpy() > LIKED_ABOVE
            joined = pa.table([table["userId"], table["movieId"], genres.take(film),
                               pa.array(liked.astype(np.float32))], schema=schema)  # fmt: skip
            validates = is_valid[start : start + table.num_rows]
            for side, (writer, rows) in enumerate(((train, ~validates), (valid, validates))):
                if rows.any():
                    writer.write_table(joined.filter(pa.array(rows)))
                positive[side] += liked[rows].sum()
                count[side] += rows.sum()
            start += table.num_rows
    of_train, of_valid = (positive / count).tolist()
    guess = min(max(of_train, 1e-7), 1 - 1e-7)
    loss = -of_valid * math.log(guess) - (1 - of_valid) * math.log(1 - guess)
    return {
        "train_positive_share": round(of_train, 5),
        "valid_positive_share": round(of_valid, 5),
        "valid_base_log_loss": round(loss, 5),
    }


def _fit_and_write(folder: Path) -> dict[str, int]:
    """Transform the joined ratings by a Workflow; return the cardinalities."""
    from tutorlib.ops import Categorify
    from tutorlib.parquet import ParquetSource
    from tutorlib.workflow import Workflow

    sources = {n: ParquetSource(folder / "joined" / f"{n}.parquet") for n in ("train", "valid")}
    workflow = Workflow(
        ["userId", "movieId"] >> Categorify(),
        ["genres"] >> Categorify(),
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
    sizes = workflow.embedding_sizes()
    return {name: int(cardinality) for name, (cardinality, _) in sizes.items()}
