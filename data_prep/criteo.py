"""Criteo click logs: raw day files to Parquet (`criteo_raw`), then to training-ready Parquet.

`etl` fits the Workflow on the training days and writes train/, valid/ and workflow/; `prepare` runs
both stages. Both stream, so their memory does not grow with the files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from data_prep.criteo_raw import raw_to_parquet
from data_prep.output import DataPrepError, fingerprint, finished_metadata, new_parts, read_settings
from data_prep.synthetic_criteo import CATEGORICAL_NAMES, INTEGER_NAMES
from tutorlib.storage import refuse_foreign, refuse_overlap, remove


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


def etl(
    parquet: str | Path,
    output: str | Path,
    *,
    valid_days: int = 1,
    valid_share: float = 0.2,
    freq_threshold: int = 15,
    row_group_rows: int = 131_072,
    rows_per_file: int = 1_048_576,
    overwrite: bool = False,
    workers: int | None = None,
    client: Any = None,
) -> dict[str, Any]:
    """Fit the Workflow on the training days; write train/, valid/ and workflow/ into `output`.

    The split is by time: the last `valid_days` days validate. If there is only one day, the last
    `valid_share` of its rows validate, because rows are in time order. If a run is killed while it
    writes, the next one resumes from `output/tables.partial`.

    Args:
        parquet: folder that `raw_to_parquet` wrote.
        output: folder for train/, valid/ and workflow/ (for `Workflow.load`).
        valid_days: days for validation, at least 1.
        valid_share: share of the rows for validation if there is only one day, in (0, 1).
        freq_threshold: as in `Categorify`, occurrences, at least 0.
        row_group_rows: rows per row group of train/ and valid/.
        rows_per_file: rows per file of train/ and valid/.
        overwrite: replace an output made with other settings.
        workers: threads, at least 1; None is one per core.
        client: `distributed.Client` whose workers do the work instead.

    Returns:
        {"train_rows": n, "valid_rows": n, "cardinalities": {"C1": n, ...}}.

    Raises:
        ValueError: if a setting is out of range.
        DataPrepError: if `parquet` was not written by `raw_to_parquet` or has too few days, or the
            output exists with other settings.
    """
    if valid_days < 1 or not 0 < valid_share < 1 or freq_threshold < 0:
        raise ValueError(
            "need valid_days >= 1, 0 < valid_share < 1, freq_threshold >= 0; got "
            f"{valid_days}, {valid_share}, {freq_threshold}"
        )
    days = _days_of(parquet)
    settings = {"command": "criteo etl", "version": 1, "valid_days": valid_days,
                "valid_share": valid_share, "freq_threshold": freq_threshold,
                "row_group_rows": row_group_rows, "rows_per_file": rows_per_file,
                "files": fingerprint(days)}  # fmt: skip
    output = Path(output)
    finished = finished_metadata(output, settings, overwrite=overwrite)
    if finished is not None:
        return finished
    parts = ("train", "valid", "workflow")
    for name in (*parts, "tables"):
        refuse_overlap(output / name, [parquet])
    with new_parts(output, parts, settings) as staging:
        refuse_foreign(output / "tables")
        refuse_foreign(output / "tables.partial")
        sources = split_by_time(days, valid_days, valid_share)
        workflow = make_workflow(freq_threshold).fit(sources["train"], client, threads=workers)
        tables = workflow.transform_to_parquet(
            sources,
            output / "tables",
            row_group_rows=row_group_rows,
            rows_per_file=rows_per_file,
            client=client,
            threads=workers,
            overwrite=True,
        )
        for name, made in (("train", "train"), ("valid", "valid"), ("workflow", "_workflow")):
            (tables / made).rename(staging.path / name)
        remove(tables)
        sizes = workflow.embedding_sizes()
        staging.metadata.update(
            {
                "train_rows": sources["train"].num_rows,
                "valid_rows": sources["valid"].num_rows,
                "cardinalities": {name: int(size) for name, (size, _) in sizes.items()},
            }
        )
    print(
        f"{output}: {staging.metadata['train_rows']:,} rows in train/, "
        f"{staging.metadata['valid_rows']:,} in valid/",
        flush=True,
    )
    return staging.metadata


def _days_of(parquet: str | Path) -> list[Path]:
    """Return the Parquet files of the days, sorted by day."""
    content = read_settings(parquet)
    if content is None or content["settings"].get("command") != "criteo raw_to_parquet":
        raise DataPrepError(
            f"{parquet} was not finished by raw_to_parquet. Run `python -m data_prep criteo`."
        )
    return [Path(parquet) / f"{stem}.parquet" for stem in content["metadata"]["rows"]]


def split_by_time(days: list[Path], valid_days: int, valid_share: float) -> dict[str, Any]:
    """Return {"train": source, "valid": source}: the last days, or the last rows of the only day.

    Raises:
        DataPrepError: if there are too few days or rows for both parts.
    """
    from tutorlib.parquet import ParquetSource
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
    return {
        "train": ParquetSource(days[:-valid_days]),
        "valid": ParquetSource(days[-valid_days:]),
    }


def prepare(
    source: str | Path,
    output: str | Path,
    *,
    on_bad_lines: str = "error",
    overwrite: bool = False,
    workers: int | None = None,
    client: Any = None,
    **etl_settings: Any,
) -> dict[str, Any]:
    """Run both stages: `raw_to_parquet` into `output/parquet`, then `etl` into `output`.

    Args:
        source: folder of raw day files.
        output: folder for parquet/, train/, valid/ and workflow/.
        on_bad_lines: see `raw_to_parquet`.
        overwrite: replace outputs made with other settings.
        workers: see `raw_to_parquet` and `etl`.
        client: see `raw_to_parquet` and `etl`.
        **etl_settings: passed on to `etl`.

    Returns:
        As `etl`.
    """
    parquet = Path(output) / "parquet"
    if client is not None:  # its workers may run in another folder
        source, output = Path(source).absolute(), Path(output).absolute()
        parquet = output / "parquet"
    how = {"overwrite": overwrite, "workers": workers, "client": client}
    raw_to_parquet(source, parquet, on_bad_lines=on_bad_lines, **how)
    return etl(parquet, output, **how, **etl_settings)
