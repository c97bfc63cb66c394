"""Rows of every kind of column, and a workflow over them, for the tests of the Workflow."""

import numpy as np
import pyarrow as pa

from tutorlib.columns import Chunk, Masked, Ragged, Strings
from tutorlib.ops import (
    Categorify,
    Clip,
    FillMissing,
    HashBucket,
    LogOp,
    Normalize,
)
from tutorlib.parquet import ParquetSink, ParquetSource
from tutorlib.workflow import Workflow


def rows(count=1000, seed=0):
    generator = np.random.default_rng(seed)
    return pa.table(
        {
            "userId": generator.geometric(0.1, count),
            "movieId": generator.integers(1, 5, count),
            "word": pa.array(generator.choice(["a", "bb", "Müller", None], count)),
            "count": pa.array(
                generator.geometric(0.01, count) - 2, mask=generator.random(count) < 0.2
            ),
            "price": np.where(
                generator.random(count) < 0.1, np.nan, generator.lognormal(3, 4, count)
            ),
            "tags": [generator.integers(0, 9, n).tolist() for n in generator.integers(0, 4, count)],
            "unused": np.zeros(count),
            "label": generator.integers(0, 2, count).astype(np.float32),
        }
    )


def workflow():
    return Workflow(
        ["userId", "word", "tags"] >> Categorify(freq_threshold=2),
        ["movieId"] >> HashBucket(50),
        ["count"] >> FillMissing(0) >> Clip(min_value=0) >> LogOp() >> Normalize(),
        ["price"] >> Normalize() >> Normalize(),
        ["label"],
    )


OUTPUTS = ["userId", "word", "tags", "movieId", "count", "price", "label"]


def write(path, table, row_group_rows):
    with ParquetSink(path, row_group_rows=row_group_rows) as sink:
        sink.write(table)
    return path


def same(a, b):
    """Whether two columns or chunks are equal to the last bit, in kinds and dtypes too."""
    if isinstance(a, Chunk):
        return a.names == b.names and all(same(a[name], b[name]) for name in a)
    if type(a) is not type(b):
        return False
    if isinstance(a, Ragged):
        return same(a.offsets, b.offsets) and same(a.values, b.values)
    if isinstance(a, Strings):
        return a.tolist() == b.tolist()
    if isinstance(a, Masked):
        return same(a.valid, b.valid) and a.tolist() == b.tolist()
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


def contents(folder):
    """Return {name: bytes} of all files below a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def all_rows(folder, names=None):
    """All rows of Parquet files, in order."""
    return Chunk.concat(list(ParquetSource(folder).chunks(names)))
