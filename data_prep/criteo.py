"""Criteo click logs: raw day files to Parquet, then to training-ready Parquet.

`raw_to_parquet` checks every line and keeps the values; `prepare` calls it, then fits the Workflow
on the training days and writes train/, valid/ and workflow/. All rows are streamed, so memory does
not grow with the files.
"""

from __future__ import annotations

import binascii
import contextlib
import functools
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_prep.csv_files import BadLines, CsvOptions, Rule, read_blocks, typed_table
from data_prep.output import DataPrepError, fingerprint, make_once
from data_prep.synthetic_criteo import CATEGORICAL_NAMES, COLUMN_NAMES, INTEGER_NAMES
from tutorlib.checks import check_choice
from tutorlib.memory import thread_count
from tutorlib.parquet import ParquetSink, ParquetSource
from tutorlib.storage import remove
from tutorlib.workflow.threads import map_on_threads

RAW_SCHEMA = pa.schema([("label", pa.int32()), *((n, pa.int64()) for n in COLUMN_NAMES[1:])])
RAW_ROW_GROUP_ROWS = 131_072
ROWS_PER_FILE = 1_048_576  # of train/ and valid/
LINES = CsvOptions(names=COLUMN_NAMES, delimiter="\t", quote="")
_DAY_FILE = re.compile(r"(?P<stem>day_(?P<day>\d+)[^.]*)(\.tsv|\.txt)?(\.gz)?$")


def _number(column: pa.ChunkedArray, pattern: str) -> pa.ChunkedArray:
    if not pc.all(pc.match_substring_regex(column, pattern), min_count=0).as_py():
        raise pa.ArrowInvalid(f"must match {pattern}")
    return column.cast(pa.int64())


def _hex(column: pa.ChunkedArray) -> pa.Array:
    """Return the numbers that 8 hex digits encode, all at a time: int64."""
    texts = pa.concat_arrays([*column.drop_null().chunks, pa.array([], pa.string())])
    lengths = pc.min_max(pc.binary_length(texts)).as_py().values()
    if {*lengths} - {8, None}:
        raise pa.ArrowInvalid("must have 8 digits")
    numbers, valid = np.zeros(len(column), np.int64), column.is_valid().to_numpy()
    if len(texts):
        first = int(np.frombuffer(texts.buffers()[1], np.int32)[texts.offset])
        digits = memoryview(texts.buffers()[2])[first : first + 8 * len(texts)]
        try:
            numbers[valid] = np.frombuffer(binascii.unhexlify(digits), ">u4")
        except binascii.Error as error:
            raise pa.ArrowInvalid(str(error)) from error
    return pa.array(numbers, mask=~valid)


_RULES = {
    "label": Rule(lambda column: _number(column.fill_null(""), "^[01]$"), "0 or 1"),
    **dict.fromkeys(
        INTEGER_NAMES,
        Rule(lambda column: _number(column, "^-?[0-9]{1,18}$"), "an integer of at most 18 digits"),
    ),
    **dict.fromkeys(CATEGORICAL_NAMES, Rule(_hex, "8 hex digits")),
}


def find_day_files(folder: str | Path) -> dict[str, Path]:
    """Return {stem: path} of the day files in a folder, sorted by day.

    The name of a day file is `day_<number>`, optionally with a suffix (`day_0_head`), and the
    extension is `.tsv`, `.txt`, `.gz`, `.tsv.gz` or none.

    Raises:
        DataPrepError: if there is no day file, or two have the same stem.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataPrepError(
            f"--from {folder}: no such folder. Pass the folder with the day files, or create one "
            "with `python -m data_prep synthetic criteo`."
        )
    named = ((_DAY_FILE.fullmatch(path.name), path) for path in folder.iterdir() if path.is_file())
    found = sorted((int(name["day"]), name["stem"], path) for name, path in named if name)
    for (*day, path), (*next_day, other) in itertools.pairwise(found):
        if day == next_day:
            raise DataPrepError(f"{path} and {other} are the same day. Remove one.")
    if not found:
        raise DataPrepError(
            f"--from {folder}: no day files in this folder (day_0.tsv, day_0.gz, day_0, ...)"
        )
    return {stem: path for _, stem, path in found}


def raw_to_parquet(
    source: str | Path,
    output: str | Path,
    *,
    on_bad_lines: str = "error",
    overwrite: bool = False,
    workers: int | None = None,
    client: Any = None,
) -> dict[str, Any]:
    """Write each raw day file as `output/day_*.parquet`: the same values, typed and checked.

    A line is malformed if it does not have 40 fields, its label is not 0 or 1, a count is not an
    integer of at most 18 digits, or a categorical value is not 8 hex digits. An empty field is a
    missing value, except for the label. Blank lines are no rows.

    Memory: about 300 MB per file that is being read (some blocks of 8 MB of text and a row group of
    131,072 rows), whatever the size of the files.

    Args:
        source: folder of day files, plain or gzip.
        output: folder for label, I1..I13 (int64) and C1..C26 (int64, the number the digits encode).
        on_bad_lines: "error" refuses the data after reading the file to its end, so that the
            message has the total; "skip" skips malformed lines and reports them.
        overwrite: replace an output made with other settings.
        workers: files read at the same time, at least 1; None is one per core.
        client: `distributed.Client` whose workers read the files instead.

    Returns:
        {"rows": {stem: rows}, "bad_lines": {stem: {"total": n, "first": [text, ...]}}}.

    Raises:
        ValueError: if `on_bad_lines` or `workers` is out of range.
        DataPrepError: if a line is malformed and `on_bad_lines` is "error", there are no day files,
            a gzip file is damaged, or the output exists with other settings.
    """
    check_choice("on_bad_lines", on_bad_lines, ("error", "skip"))
    files = find_day_files(source)

    def write(folder: Path) -> dict[str, Any]:
        metadata: dict[str, Any] = {"rows": {}, "bad_lines": {}}
        convert = functools.partial(_convert_day, skip=on_bad_lines == "skip")
        days = [(path, folder / f"{stem}.parquet") for stem, path in files.items()]
        if client is None:
            converted = list(map_on_threads(convert, days, thread_count(workers)))
        else:
            converted = client.gather(client.map(convert, days, pure=False))
        for stem, (rows, bad) in zip(files, converted, strict=True):
            metadata["rows"][stem] = rows
            if bad.total:
                metadata["bad_lines"][stem] = bad.report()
                print(f"skipped: {bad}", flush=True)
        total = sum(metadata["rows"].values())
        print(f"{output}: {total:,} rows in {len(files)} files", flush=True)
        return metadata

    settings = {"command": "criteo raw_to_parquet", "version": 1, "on_bad_lines": on_bad_lines,
                "files": fingerprint(list(files.values()))}  # fmt: skip
    return make_once(output, settings, write, inputs=[Path(source)], overwrite=overwrite)


def _convert_day(day: tuple[Path, Path], skip: bool) -> tuple[int, BadLines]:
    """Write a day file as Parquet; return its rows and its malformed lines."""
    path, target = day
    bad = BadLines(path.name)
    form = {"row_group_rows": RAW_ROW_GROUP_ROWS, "encoding": "default", "schema": RAW_SCHEMA}
    with ParquetSink(target, **form) as sink:
        for table in read_day(path, bad):
            sink.write(table)
    if not sink.num_rows and not bad.total:
        raise DataPrepError(f"{path} is empty. Remove it, or fetch it again.")
    if not skip:
        bad.refuse()
    return sink.num_rows, bad


def read_day(path: Path, bad: BadLines) -> Iterator[pa.Table]:
    """Yield the well-formed lines of a day file as tables of RAW_SCHEMA; add the others to `bad`.

    Raises:
        DataPrepError: if a gzip file is truncated or damaged.
    """
    for block in read_blocks(path, LINES, bad):
        yield typed_table(block, _RULES)


def make_workflow(freq_threshold: int = 15) -> Any:
    """Return the unfitted Workflow of the click logs.

    Counts: missing and negative values become 0, then log1p, then mean 0 and variance 1.
    Categorical values: ids by frequency; values that occur fewer than `freq_threshold` times share
    the id of unknown values.
    """
    from tutorlib.ops import Categorify, Clip, FillMissing, LogOp, Normalize
    from tutorlib.workflow import Workflow

    counts = list(INTEGER_NAMES) >> FillMissing(0) >> Clip(min_value=0) >> LogOp() >> Normalize()
    ids = list(CATEGORICAL_NAMES) >> Categorify(freq_threshold=freq_threshold)
    return Workflow(counts, ids, ["label"])


def split_by_time(days: list[Path], valid_days: int, valid_share: float) -> dict[str, Any]:
    """Return {"train": source, "valid": source}: the last days, or the last rows of the only day.

    Raises:
        DataPrepError: if there are too few days or rows for both parts.
    """
    from tutorlib.workflow import split_rows

    if len(days) == 1:
        try:
            return split_rows(days[0], {"train": 1 - valid_share, "valid": valid_share})
        except ValueError as error:
            raise DataPrepError(f"{days[0]} has too few rows to split: {error}") from error
    if len(days) <= valid_days:
        raise DataPrepError(
            f"{days[0].parent} has {len(days)} days, and --valid-days {valid_days} leaves none to "
            "train on. Provide more days or a smaller --valid-days."
        )
    sides = {"train": days[:-valid_days], "valid": days[-valid_days:]}
    return {side: ParquetSource(files) for side, files in sides.items()}


def prepare(
    source: str | Path,
    output: str | Path,
    *,
    on_bad_lines: Literal["error", "skip"] = "error",
    valid_days: int = 1,
    valid_share: float = 0.2,
    freq_threshold: int = 15,
    workers: int | None = None,
    dask: str | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Make raw click logs ready for training: parquet/, then train/, valid/ and workflow/.

    The folder parquet/ holds the same values, checked (`raw_to_parquet`). Then a Workflow is fitted
    on the training days. The split is by time: the last days validate. Memory does not grow with
    the rows. A run that is killed while it writes is resumed by the next one.

    Args:
        source: folder with day_0.tsv, day_1.gz, ...
        output: folder for parquet/, train/, valid/ and workflow/.
        on_bad_lines: malformed lines: refuse the data, or skip and report them.
        valid_days: last days, for validation, at least 1.
        valid_share: share of the rows for validation, the last ones, if there is one day, in (0,1).
        freq_threshold: values with fewer occurrences in the training days count as unknown.
        workers: threads, each with a day file or some row groups in memory; None is one per core.
        dask: scheduler of a Dask cluster (tcp://host:8786) that sees the same folders and does the
            work instead.
        overwrite: replace outputs made with other settings.

    Returns:
        {"train_rows": n, "valid_rows": n, "cardinalities": {"C1": n, ...}}.

    Raises:
        ValueError: if a setting is out of range.
        DataPrepError: as `raw_to_parquet`, or if there are too few days.
    """
    thread_count(workers, "--workers")
    if valid_days < 1 or not 0 < valid_share < 1 or freq_threshold < 0:
        raise ValueError(
            "need valid_days >= 1, 0 < valid_share < 1, freq_threshold >= 0; got "
            f"{valid_days}, {valid_share}, {freq_threshold}"
        )
    output, parquet = Path(output).absolute(), Path(output).absolute() / "parquet"
    with _dask_client(dask) as client:  # whose workers may run in another folder
        how = {"overwrite": overwrite, "workers": workers, "client": client}
        read = raw_to_parquet(Path(source).absolute(), parquet, on_bad_lines=on_bad_lines, **how)
        days = [parquet / f"{stem}.parquet" for stem in read["rows"]]

        def write(folder: Path) -> dict[str, Any]:
            sources = split_by_time(days, valid_days, valid_share)
            workflow = make_workflow(freq_threshold).fit(sources["train"], client, threads=workers)
            tables = workflow.transform_to_parquet(
                sources,
                output / "tables",
                row_group_rows=RAW_ROW_GROUP_ROWS,
                rows_per_file=ROWS_PER_FILE,
                client=client,
                threads=workers,
                overwrite=True,
            )
            for name, made in parts.items():
                (Path(tables) / made).rename(folder / name)
            remove(tables)
            rows = {f"{side}_rows": source.num_rows for side, source in sources.items()}
            counts = ", ".join(
                f"{source.num_rows:,} in {side}/" for side, source in sources.items()
            )
            print(f"{output}: rows: {counts}", flush=True)
            sizes = workflow.embedding_sizes()
            return {**rows, "cardinalities": {name: int(size) for name, (size, _) in sizes.items()}}

        parts = {"train": "train", "valid": "valid", "workflow": "_workflow"}
        settings = {"command": "criteo etl", "version": 2, "valid_days": valid_days,
                    "valid_share": valid_share, "freq_threshold": freq_threshold,
                    "files": fingerprint(days)}  # fmt: skip
        return make_once(
            output, settings, write, parts=[*parts], inputs=[parquet], overwrite=overwrite
        )


@contextlib.contextmanager
def _dask_client(address: str | None) -> Iterator[Any]:
    """Yield a client of the Dask cluster at `address`, or None."""
    if address is None:
        yield None
        return
    try:
        from distributed import Client

        client = Client(address, timeout=5)
    except ImportError as error:
        raise DataPrepError("--dask needs Dask: pip install 'dask[distributed]'") from error
    except (OSError, ValueError) as error:
        raise DataPrepError(f"--dask {address}: no scheduler answers there ({error})") from error
    with client:
        yield client
