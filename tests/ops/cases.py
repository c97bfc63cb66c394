"""The table of ops: every op with columns of every kind.

`test_every_op.py` holds each row to the same result in memory, from files on threads, saved and
loaded, and `tests/serving` in a graph. A new op needs a row here.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from tutorlib.columns import Chunk
from tutorlib.ops import (
    Categorify,
    Clip,
    FillMedian,
    FillMissing,
    HashBucket,
    LabelEncoder,
    LogOp,
    Normalize,
    Rename,
)
from tutorlib.workflow import Workflow

ROWS = 300
TEXTS = ["", "a", "bc", "Toy Story (1995)", "ü", "twelve bytes", None]


def table():
    """Columns of every kind; each value can be worked out from the row's number."""
    rows = range(ROWS)
    vectors = pa.array([i % 23 / 8 for i in range(3 * ROWS)], pa.float32())
    return pa.table(
        {
            "row": pa.array(rows, pa.int64()),
            "few": pa.array([i * i % 7 - 2 for i in rows], pa.int8()),
            "gaps": pa.array([None if i % 5 == 0 else i % 11 for i in rows], pa.int32()),
            "large": pa.array([2**64 - 1 - i % 3 if i % 4 else i for i in rows], pa.uint64()),
            "yes": pa.array([i % 3 == 0 for i in rows]),
            "x": pa.array([None if i % 7 == 0 else i % 50 - 0.3 for i in rows], pa.float64()),
            "far": pa.array([1e9 + i / 7 for i in rows], pa.float64()),
            "small": pa.array([i / 16 - 3 for i in rows], pa.float32()),
            "positive": pa.array([i % 37 for i in rows], pa.uint16()),
            "text": pa.array([TEXTS[i % 6] for i in rows]),
            "holes": pa.array([TEXTS[i % 7] for i in rows]),
            "film": pa.array([None if i % 13 == 0 else f"film {i % 10}" for i in rows]),
            "ids": pa.array(
                [[j * i % 9 for j in range(i % 4)] for i in rows], pa.list_(pa.int64())
            ),
            "tags": pa.array([TEXTS[: i % 5] for i in rows]),
            "numbers": pa.array([[i / 4, None][: i % 3] for i in rows], pa.list_(pa.float64())),
            "vector": pa.FixedSizeListArray.from_arrays(vectors, 3),
            "label": pa.array([i % 2 for i in rows], pa.int32()),
        }
    )


def chunk():
    """Return these columns in the host's memory."""
    return Chunk.from_arrow(table())


KEYS = ["row", "few", "gaps", "yes", "text", "holes", "ids", "tags"]
NUMBERS = ["x", "far", "small", "gaps", "numbers", "row", "vector"]


@dataclasses.dataclass(frozen=True)
class Case:
    """A group of columns with its ops, to be fitted on `chunk()`."""

    group: Callable[[], object]
    served: bool = True  # whether a graph can hold it

    def fitted(self, source, **options):
        """Return the workflow of the group, fitted on a source of the rows."""
        return Workflow(self.group()).fit(source, **options)


CASES = {
    "Categorify": Case(lambda: KEYS >> Categorify()),
    "Categorify, limited": Case(
        lambda: ["few", "film"] >> Categorify(30, vocabularies={"film": ["film 3"]})
    ),
    "Categorify, given": Case(
        lambda: ["large"] >> Categorify(vocabularies={"large": np.array([5, 2**64 - 1], "uint64")})
    ),
    "Clip": Case(lambda: ["few", "gaps", "positive"] >> Clip(1, 5) >> FillMissing(1)),
    "Clip, one limit": Case(lambda: ["x", "few", "large", "small"] >> Clip(min_value=0)),
    "FillMedian": Case(lambda: ["x", "gaps", "numbers", "few"] >> FillMedian()),
    "FillMissing": Case(lambda: ["x", "gaps", "numbers"] >> FillMissing(3)),
    "FillMissing in texts": Case(
        lambda: ["holes", "text", "tags"] >> FillMissing("none") >> Categorify()
    ),
    "HashBucket": Case(lambda: [*KEYS, "large"] >> HashBucket(100)),
    "HashBucket, from 1": Case(lambda: [*KEYS, "large"] >> HashBucket(100, first_id=1)),
    "LabelEncoder": Case(
        lambda: ["few", "gaps", "yes", "x", "small", "text", "holes"] >> LabelEncoder(),
        served=False,
    ),
    "LabelEncoder, classes": Case(
        lambda: ["few", "gaps"] >> LabelEncoder([10, 2, -1, *range(3, 10), 1, 0, 2.5, -2]),
        served=False,
    ),
    "LogOp": Case(lambda: ["positive"] >> LogOp()),
    "Normalize": Case(lambda: NUMBERS >> Normalize()),
    "Rename": Case(lambda: ["x"] >> Rename(postfix="_raw")),
    "a chain": Case(
        lambda: ["gaps", "x"] >> FillMedian() >> Clip(min_value=0) >> LogOp() >> Normalize()
    ),
}
