"""MovieLens: an archive or folder of ratings and films to training-ready Parquet and its Workflow.

`fetch` downloads the archive and unpacks the two files that are needed; `etl` does the rest.
Ratings are streamed; the films (tens of thousands) and one flag per rating are held in memory.
"""

from __future__ import annotations

import contextlib
import lzma
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from tqdm import tqdm

from data_prep.download import check_space, download
from data_prep.output import (
    DataPrepError,
    fingerprint,
    finished_metadata,
    new_output,
    new_parts,
    read_settings,
)
from tutorlib.checks import check_choice
from tutorlib.storage import refuse_overlap

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
DAMAGE = (  # what zipfile and its decompressors raise; RuntimeError is for encryption
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, RuntimeError,
    ValueError,
)  # fmt: skip


def fetch(
    output: str | Path,
    *,
    variant: str = "ml-latest-small",
    source: str | Path | None = None,
    overwrite: bool = False,
    base_url: str | None = None,
) -> Path:
    """Return a folder with ratings.csv and movies.csv.

    Args:
        output: folder for the archive (`output/downloads`) and its two files (`output/raw`).
        variant: archive to download if `source` is None: "ml-latest-small" or "ml-25m".
        source: local zip archive, or folder with the two files, which is returned unchanged.
        overwrite: replace an `output/raw` made from another archive.
        base_url: address of the archives; None is `BASE_URL`.

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
    if source is None and variant not in SHA256:
        raise DataPrepError(f"--variant {variant}: must be one of {sorted(SHA256)}")
    raw = Path(output) / "raw"
    archive = SHA256[variant] if source is None else fingerprint([Path(source)])
    settings = {"command": "movielens fetch", "archive": archive}
    if finished_metadata(raw, settings, overwrite=overwrite) is not None:
        return raw
    if source is None:
        source = download(
            f"{base_url or BASE_URL}/{variant}.zip",
            Path(output) / "downloads" / f"{variant}.zip",
            sha256=SHA256[variant],
        )
    refuse_overlap(raw, [source])
    with new_output(raw, settings) as staging:
        unpack(Path(source), staging.path, FILES)
    return raw


def unpack(archive: Path, folder: Path, names: Sequence[str]) -> None:
    """Write files of a zip archive, wherever they are in it, into a folder, which exists.

    Raises:
        DataPrepError: if one is missing or there twice, is larger than the room on the disk, or the
            archive is damaged.
    """
    with contextlib.ExitStack() as opened:
        with _reading(archive):
            file = opened.enter_context(zipfile.ZipFile(archive))
        for name in names:
            inside = [entry for entry in file.infolist() if entry.filename.split("/")[-1] == name]
            if len(inside) != 1:
                raise DataPrepError(f"{archive}: {len(inside)} files named {name}, expected 1")
            try:
                check_space(folder, inside[0].file_size)  # no more than this is read below
            except DataPrepError as error:
                raise DataPrepError(f"{archive}: {name} takes more room: {error}") from None
            with _reading(archive):
                packed = opened.enter_context(file.open(inside[0]))
            with open(folder / name, "wb") as target:
                while block := _next_block(packed, archive):
                    target.write(block)


def _next_block(packed: IO[bytes], archive: Path) -> bytes:
    with _reading(archive):
        return packed.read(READ_BLOCK_BYTES)


@contextlib.contextmanager
def _reading(archive: Path) -> Iterator[None]:
    """Name the archive in every error that `zipfile` and its decompressors raise."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:  # not the content is wrong: the file may not be read
            raise
        raise _damaged(archive, error) from error
    except DAMAGE as error:
        raise _damaged(archive, error) from error


def _damaged(archive: Path, error: Exception) -> DataPrepError:
    return DataPrepError(
        f"{archive} is not an intact, unencrypted zip archive ({error}). Fetch it again."
    )


def etl(
    source: str | Path,
    output: str | Path,
    *,
    split: str = "random",
    valid_share: float = 0.2,
    seed: int = 42,
    row_group_rows: int = 65_536,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write `output/train`, `output/valid`, `output/movies.parquet` and `output/workflow`.

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
        seed: seed of the random split and of the order of the training rows.
        row_group_rows: rows per row group of train/ and valid/.
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
    files = [Path(source) / name for name in FILES]
    settings = {"command": "movielens etl", "version": 1, "split": split, "seed": seed,
                "valid_share": valid_share, "row_group_rows": row_group_rows,
                "files": fingerprint(files)}  # fmt: skip
    output = Path(output)
    finished = finished_metadata(output, settings, overwrite=overwrite)
    if finished is not None:
        return finished
    parts = ("train", "valid", "movies.parquet", "workflow")
    for name in parts:
        refuse_overlap(output / name, [source])
    with new_parts(output, parts, settings) as staging:
        movies = read_movies(files[1])
        pq.write_table(movies, staging.path / "movies.parquet", write_page_checksum=True)
        is_valid = split_rows(files[0], split, valid_share, seed)
        staging.metadata.update(join_and_split(files[0], movies, is_valid, staging.path / "joined"))
        staging.metadata.update(_fit_and_write(staging.path, row_group_rows, seed))
        staging.metadata["source"] = _source(Path(source))
    print(
        f"{output}: {staging.metadata['train_rows']:,} ratings in train/, "
        f"{staging.metadata['valid_rows']:,} in valid/, {movies.num_rows:,} films",
        flush=True,
    )
    return staging.metadata


def source_of(output: str | Path) -> dict[str, Any]:
    """Return where the ratings of an output of `etl` come from.

    `raw/` is not needed: `etl` records the source. For an output made before it did so, `raw/` is
    used if it still holds the files that were read.

    Returns:
        {"kind": "synthetic", "downloaded" (its checksum was compared), "local" (an archive or a
        folder whose origin nothing proves) or "unknown"; "folder": of the CSV files, or None;
        "settings", "metadata": of the files' own `_settings.json`, {} if there is none}.

    Raises:
        DataPrepError: if there is no output of `etl`.
    """
    made = read_settings(output)
    if made is None or made["settings"].get("command") != "movielens etl":
        raise DataPrepError(f"{output} holds no MovieLens data. Run: python -m data_prep movielens")
    if "source" in made["metadata"]:
        return made["metadata"]["source"]
    raw = Path(output) / "raw"
    files = [raw / name for name in FILES]
    if all(path.is_file() for path in files) and fingerprint(files) == made["settings"]["files"]:
        return _source(raw)
    return {"kind": "unknown", "folder": None, "settings": {}, "metadata": {}}


def raw_folder(output: str | Path) -> Path:
    """Return the folder with the CSV files that an output of `etl` was made from.

    The folder that `etl` recorded, or `output/raw` if the data was moved or copied. A file counts
    if it has as many bytes as the one that was read: a copy has another modification time.

    Raises:
        DataPrepError: if there is no output of `etl`, or its raw files are gone or have changed.
    """
    recorded = source_of(output)["folder"]
    read = (read_settings(output) or {})["settings"]["files"]  # {name: [bytes, time]}
    folders = [Path(folder) for folder in (recorded, Path(output) / "raw") if folder is not None]
    for folder in folders:
        files = [folder / name for name in FILES]
        if all(path.is_file() and path.stat().st_size == read[path.name][0] for path in files):
            return folder
    places = " or ".join(map(str, dict.fromkeys(folders)))
    raise DataPrepError(
        f"{output} was made from {' and '.join(FILES)}, which are gone from {places} or have "
        "changed. Put them back, or prepare the data again: "
        f"python -m data_prep movielens --from ZIP_OR_FOLDER --output {output} --overwrite"
    )


def _source(folder: Path) -> dict[str, Any]:
    made: dict[str, Any] = {"settings": {}, "metadata": {}}
    with contextlib.suppress(DataPrepError):  # a `_settings.json` of the user's own
        made = read_settings(folder) or made
    command, archive = (made["settings"].get(name) for name in ("command", "archive"))
    downloaded = command == "movielens fetch" and archive in SHA256.values()
    kind = "synthetic" if command == "synthetic movielens" else "local"
    return {
        "kind": "downloaded" if downloaded else kind,
        "folder": str(folder.resolve()),
        "settings": made["settings"],
        "metadata": made["metadata"],
    }


def read_movies(path: Path) -> pa.Table:
    """Return the films: movieId (int64), title (string), genres (list of strings).

    Raises:
        DataPrepError: if a column is missing, a value is malformed, or a movieId occurs twice.
    """
    # In one block: Arrow loses line breaks within titles at the border of two.
    movies = pa.concat_tables(_read_csv(path, MOVIE_TYPES, path.stat().st_size + 1))
    if len(pc.unique(movies["movieId"])) < movies.num_rows:
        raise DataPrepError(f"{path}: a movieId occurs twice. Remove one of its lines.")
    genres = pc.split_pattern(movies["genres"], "|")
    return movies.set_column(2, "genres", genres)


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
            nulls = [name for name in types if table[name].null_count]
            if nulls:
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


def split_rows(ratings: Path, split: str, valid_share: float, seed: int) -> np.ndarray:
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
        chosen = np.random.default_rng(seed).permutation(rows)[:valid_rows]
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
    folder.mkdir(parents=True)
    no_genres = pa.array([[]], movies["genres"].type)
    genres = pa.concat_arrays([*movies["genres"].chunks, no_genres])
    schema = pa.schema([("userId", pa.int64()), ("movieId", pa.int64()),
                        ("genres", genres.type), ("rating", pa.float32())])  # fmt: skip
    positive, count, start = np.zeros(2), np.zeros(2), 0
    with (
        pq.ParquetWriter(folder / "train.parquet", schema, write_page_checksum=True) as train,
        pq.ParquetWriter(folder / "valid.parquet", schema, write_page_checksum=True) as valid,
        tqdm(total=len(is_valid), unit=" ratings", desc="join", disable=None) as bar,
    ):
        for table in _read_ratings(ratings):
            film = pc.index_in(table["movieId"], movies["movieId"])
            film = pc.fill_null(film, movies.num_rows)
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
            bar.update(table.num_rows)
    return _label_metadata(positive, count)


def _label_metadata(positive: np.ndarray, count: np.ndarray) -> dict[str, Any]:
    train, valid = (positive / count).tolist()
    guess = min(max(train, 1e-7), 1 - 1e-7)
    loss = -valid * math.log(guess) - (1 - valid) * math.log(1 - guess)
    return {
        "train_positive_share": round(train, 5),
        "valid_positive_share": round(valid, 5),
        "valid_base_log_loss": round(loss, 5),
    }


def _fit_and_write(folder: Path, row_group_rows: int, seed: int) -> dict[str, Any]:
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
    for name, shuffle_seed in (("train", seed), ("valid", None)):
        workflow.transform_to_parquet(
            sources[name],
            folder / name,
            row_group_rows=row_group_rows,
            shuffle_seed=shuffle_seed,
        )
    workflow.save(folder / "workflow")
    sizes = workflow.embedding_sizes()
    return {
        "train_rows": sources["train"].num_rows,
        "valid_rows": sources["valid"].num_rows,
        "cardinalities": {name: int(cardinality) for name, (cardinality, _) in sizes.items()},
    }
