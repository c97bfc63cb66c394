"""What is attacked: how each target is made, damaged and read."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data_prep import criteo_raw, csv_files, movielens, synthetic_criteo, synthetic_movielens
from data_prep.output import DataPrepError, read_settings
from tests.attack.edits import edit_bytes, edit_json, edit_lines
from tfrecords import read_metadata, write_raw_batches
from tfrecords.metadata import cells_file, metadata_of
from tutorlib.columns import Chunk
from tutorlib.ops import (
    Bucketize,
    Categorify,
    Clip,
    FillMedian,
    FillMissing,
    HashBucket,
    ListSlice,
    LogOp,
    Normalize,
    NormalizeMinMax,
    TargetEncoding,
)
from tutorlib.parquet import ParquetSink, ParquetSource
from tutorlib.schema import Schema
from tutorlib.storage import MANIFEST_FILE
from tutorlib.workflow import Workflow

ALLOWED = (ValueError, TypeError, OSError, DataPrepError)
ROWS = 300
WORKFLOWS = ("workflow", "grouped")


class Target(NamedTuple):
    """Files that are read from outside."""

    make: Callable[[Path], None]  # writes them into a folder
    damage: Callable[[Path, Random], str]  # changes one of them; returns what it did
    read: Callable[[Path], None]  # reads them, as a user does
    named: tuple[str, ...] = ()  # what an error may name in place of a file


def _rows() -> pa.Table:
    """Return rows of many types, with nulls, lists and strings."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 50, ROWS)
    some = rng.random(ROWS) < 0.1
    lists = [list(map(int, rng.integers(0, 9, count))) for count in rng.integers(0, 5, ROWS)]
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "small": pa.array(ids, pa.int8()),
            "x": pa.array(rng.normal(size=ROWS), pa.float32(), mask=some),
            "count": pa.array(rng.integers(0, 99, ROWS), pa.int32(), mask=some),
            "text": pa.array([None if id % 7 == 0 else f"t{id}" for id in ids.tolist()]),
            "tags": pa.array(lists, pa.list_(pa.int32())),
            "label": pa.array(rng.integers(0, 2, ROWS), pa.float32()),
        }
    )


# ---- Parquet files ------------------------------------------------------------------------------


def _make_parquet(folder: Path) -> None:
    with ParquetSink(folder / "sink", row_group_rows=100) as sink:
        sink.write(_rows())
    (folder / "plain").mkdir()
    for codec in ("snappy", "zstd"):
        path = folder / "plain" / f"{codec}.parquet"
        pq.write_table(_rows(), path, row_group_size=128, compression=codec)


def _damage_bytes(folder: Path, rng: Random) -> str:
    path = rng.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    data, what = edit_bytes(path.read_bytes(), rng)
    path.write_bytes(data)
    return f"{path.relative_to(folder)}: {what}"


def _read_parquet(folder: Path) -> None:
    for part in ("sink", "plain"):
        source = ParquetSource(folder / part)
        for chunk in source.chunks(rows=70):
            chunk.to_arrow()
        source.read(0, ["id", "text"], 1, 3)
        source.close()


# ---- a saved workflow ---------------------------------------------------------------------------


def _workflow() -> Workflow:
    return Workflow(
        ["id"] >> Categorify(),
        ["text"] >> Categorify(freq_threshold=2),
        ["small"] >> HashBucket(10),
        ["x"] >> FillMissing(0.0) >> Clip(-2.0, 2.0) >> Normalize(),
        ["count"] >> FillMedian() >> LogOp() >> NormalizeMinMax(),
        ["tags"] >> ListSlice(3),
        ["label"],
        label_names=["label"],
    )


def _make_workflow(folder: Path) -> None:
    _workflow().fit(_rows(), progress=False).save(folder / "workflow")
    grouped = Workflow(
        ["id"] >> JoinGroupby(["x"], ["count", "mean"]),
        ["small"] >> TargetEncoding("label", "id", folds=3),
        ["x"] >> FillMissing(0.0) >> Bucketize([-1.0, 0.0, 1.0]),
        ["label"],
        label_names=["label"],
    )
    grouped.fit(_rows(), progress=False).save(folder / "grouped")


def _damage_workflow(folder: Path, rng: Random) -> str:
    path = folder / rng.choice(WORKFLOWS) / MANIFEST_FILE
    text, what = edit_json(path.read_text(encoding="utf-8"), rng)
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    return f"{path.relative_to(folder)}: {what}"


def _damage_tables(folder: Path, rng: Random) -> str:
    """Change a table's bytes, or its columns: their number, names, types, values or lengths."""
    path = rng.choice(sorted(folder.rglob("*.parquet")))
    if rng.random() < 0.3:
        data, what = edit_bytes(path.read_bytes(), rng)
        path.write_bytes(data)
        return f"{path.relative_to(folder)}: {what}"
    table = pq.read_table(path, use_threads=False, pre_buffer=False)
    place = rng.randrange(max(1, table.num_columns))
    kind = rng.choice(("type", "drop", "rename", "rows", "no rows", "null", "values"))
    rows = table.num_rows
    if kind == "drop" and table.num_columns:
        table = table.remove_column(place)
    elif kind == "rows":
        table = pa.concat_tables([table, table])
    elif kind == "no rows":
        table = table.slice(0, 0)
    elif table.num_columns:
        name = table.column_names[place]
        column: pa.Array | pa.ChunkedArray = table[place]
        if kind == "type":
            column = pa.array(rng.choice(([1], [1.5], [True], ["a"], [[1]], [None])) * rows)
        elif kind == "null":
            column = pa.nulls(rows, column.type)
        elif kind == "values":
            values = [rng.choice((0, -1, 2**31, 2**63 - 1, -(2**63))) for _ in range(rows)]
            column = pa.array(values, pa.int64())
        table = table.set_column(place, "other" if kind == "rename" else name, column)
    pq.write_table(table, path)
    return f"{path.relative_to(folder)}: {kind} of column {place}"


def _read_workflow(folder: Path) -> None:
    for name in WORKFLOWS:
        Workflow.load(folder / name).transform(Chunk.from_arrow(_rows()))


# ---- small JSON files ---------------------------------------------------------------------------


def _make_json(folder: Path) -> None:
    schema = _workflow().fit(_rows(), progress=False).output_schema
    (folder / "_schema.json").write_text(schema.to_json(), encoding="utf-8")
    write_raw_batches(_rows(), folder / "raw", batch_size=9, columns=["id", "label"])
    synthetic_criteo.write_criteo(folder / "criteo", rows=9, days=1, scale=0.001)


def _damage_json(folder: Path, rng: Random) -> str:
    path = rng.choice(sorted(folder.rglob("*.json")))
    if rng.random() < 0.2:
        data, what = edit_bytes(path.read_bytes(), rng)
        path.write_bytes(data)
    else:
        text, what = edit_json(path.read_text(encoding="utf-8"), rng)
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
    return f"{path.name}: {what}"


def _read_json(folder: Path) -> None:
    schema = Schema.load(folder / "_schema.json")
    if not schema.to_json() or schema.features.names == schema.labels.names:
        raise ValueError(f"{folder}: no features")
    read_settings(folder / "criteo")
    metadata = read_metadata(folder / "raw")
    metadata_of(folder / "raw", metadata["form"], schema.select([]))
    cells_file(folder / "raw", metadata)


# ---- click logs and ratings ---------------------------------------------------------------------


def _make_criteo(folder: Path) -> None:
    synthetic_criteo.write_criteo(folder / "raw", rows=200, days=2, scale=0.001)


def _damage_criteo(folder: Path, rng: Random) -> str:
    path = rng.choice(sorted((folder / "raw").glob("day_*")))
    data, what = edit_lines(path.read_bytes(), b"\t", rng)
    path.write_bytes(data)
    return f"{path.name}: {what}"


def _read_criteo(folder: Path) -> None:
    try:
        criteo_raw.raw_to_parquet(folder / "raw", folder / "strict", workers=1)
    except ALLOWED as error:
        criteo_raw.raw_to_parquet(folder / "raw", folder / "lax", on_bad_lines="skip", workers=1)
        raise error


def _make_movielens(folder: Path) -> None:
    sizes = {"ratings": 400, "users": 20, "movies": 60}
    synthetic_movielens.write_movielens(folder / "raw", **sizes)
    with zipfile.ZipFile(folder / "ml.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in movielens.FILES:
            archive.write(folder / "raw" / name, f"ml/{name}")


def _damage_csv(folder: Path, rng: Random) -> str:
    path = folder / "raw" / rng.choice(movielens.FILES)
    data, what = edit_lines(path.read_bytes(), b",", rng)
    path.write_bytes(data)
    return f"{path.name}: {what}"


def _read_csv(folder: Path) -> None:
    movielens.etl(movielens.fetch(folder / "out", source=folder / "raw"), folder / "out")


def _damage_zip(folder: Path, rng: Random) -> str:
    path = folder / "ml.zip"
    data, what = edit_bytes(path.read_bytes(), rng)
    path.write_bytes(data)
    return what


def _read_zip(folder: Path) -> None:
    movielens.etl(movielens.fetch(folder / "out", source=folder / "ml.zip"), folder / "out")


def _of_training(step: str) -> Callable[..., Any]:
    """Return a function of `training`, which is imported before the first process is forked."""

    def call(*arguments: Any) -> Any:
        from tests.attack import training

        return getattr(training, step)(*arguments)

    return call


def _trained(name: str, *named: str) -> Target:
    make, read = _of_training(f"make_{name}"), _of_training(f"read_{name}")
    return Target(make, _of_training("damage_json_or_bytes"), read, named)


# ---- any CSV file -------------------------------------------------------------------------------


def _make_any_csv(folder: Path) -> None:
    (folder / "raw").mkdir()
    lines = [f'{i},{i / 7:.3f},"a ""b"", {i % 5}\n",2024-01-{i % 28 + 1:02}' for i in range(200)]
    (folder / "raw" / "any.csv").write_text("id,x,text,day\n" + "\n".join(lines))


def _damage_any_csv(folder: Path, rng: Random) -> str:
    path = folder / "raw" / "any.csv"
    data, what = edit_lines(path.read_bytes(), b",", rng)
    path.write_bytes(data)
    return what


def _read_any_csv(folder: Path) -> None:
    files, kinds = [folder / "raw" / "any.csv"], {"id": "int64", "x": "float32"}
    csv_files.csv_to_parquet(files, folder / "lax", on_bad_lines="skip")
    csv_files.csv_to_parquet(files, folder / "typed", types=kinds, on_bad_lines="skip")
    csv_files.csv_to_parquet(files, folder / "strict")


TARGETS = {
    "parquet": Target(_make_parquet, _damage_bytes, _read_parquet),
    "workflow": Target(_make_workflow, _damage_workflow, _read_workflow),
    "tables": Target(_make_workflow, _damage_tables, _read_workflow),
    "json": Target(_make_json, _damage_json, _read_json),
    "criteo": Target(_make_criteo, _damage_criteo, _read_criteo),
    "movielens": Target(_make_movielens, _damage_csv, _read_csv),
    "csv": Target(_make_any_csv, _damage_any_csv, _read_any_csv),
    "zip": Target(_make_movielens, _damage_zip, _read_zip),
    "state": _trained("state", "state"),
    "checkpoint": _trained("checkpoint"),
    "tfrecords": _trained("tfrecords"),
}
WITH_TENSORFLOW = ("state", "checkpoint", "tfrecords")


def damaged_copy(name: str, pristine: Path, folder: Path, rng: Random) -> str:
    """Copy a target's files into a new folder and damage one; return what was done."""
    shutil.copytree(pristine, folder)
    return TARGETS[name].damage(folder, rng)
