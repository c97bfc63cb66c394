"""Fitting finds which columns hold nulls, also where no op learns from them."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tutorlib.columns import Chunk
from tutorlib.ops import Categorify, FillMissing, HashBucket
from tutorlib.parquet import ParquetSource
from tutorlib.workflow import Workflow
from tutorlib.workflow.row_split import split_rows

TABLE = pa.table(
    {
        "learned": [1, None, 3, 4],
        "hashed": ["a", "b", None, "d"],
        "full": [1, 2, 3, 4],
        "real": [0.5, None, 1.0, 2.0],
        "lists": [[1, None], [], [2], [3]],
        "empty": [[1], [], [2], []],
        "no_list": [[1], None, [2], [3]],
        "unused": [None, 1, 1, 1],
    }
)
NULLABLE = ["learned", "hashed", "lists"]


def workflow(**options):
    return Workflow(
        ["learned"] >> Categorify(),
        ["hashed", "full", "lists", "empty", "no_list"] >> HashBucket(9),
        ["real"] >> FillMissing(0),
        **options,
    )


def in_file(folder, **options):
    pq.write_table(TABLE, folder / "rows.parquet", row_group_size=2, **options)
    return folder / "rows.parquet"


SOURCES = {
    "a table": lambda folder: TABLE,
    "chunks": lambda folder: [Chunk.from_arrow(TABLE.slice(k, 2)) for k in (0, 2)],
    "a file": lambda folder: in_file(folder),
    "a file without statistics": lambda folder: in_file(folder, write_statistics=False),
    "a part": lambda folder: split_rows(in_file(folder), {"train": 0.75, "test": 0.25})["train"],
    "a filter": lambda folder: ParquetSource(in_file(folder), filters=[("full", "<", 4)]),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_columns_with_nulls_are_found_in_every_source(tmp_path, kind):
    fitted = workflow().fit(SOURCES[kind](tmp_path))
    assert fitted.nullable == NULLABLE
    assert Workflow.load(fitted.save(tmp_path / "saved")).nullable == NULLABLE


def test_a_fit_forgets_the_nulls_of_the_one_before():
    fitted = workflow().fit(TABLE)
    assert fitted.fit(TABLE.slice(3, 1)).nullable == []


def test_nulls_in_rows_that_are_dropped_do_not_count_where_an_op_learns():
    dropping = workflow(row_ops=[Dropna(["learned", "hashed"])]).fit(TABLE)
    assert "learned" not in dropping.nullable


def test_a_row_with_a_null_is_transformed_alike_by_the_layer_and_the_workflow():
    rows = Chunk.from_arrow(TABLE.select(["hashed"]))
    fitted = Workflow(["hashed"] >> HashBucket(9)).fit(rows)
    layer = fitted.to_keras()
    assert list(layer.raw_inputs()) == ["hashed", "hashed__valid"]
    raw = {"hashed": ["a", "b", "", "d"], "hashed__valid": [True, True, False, True]}
    served = layer(raw)["hashed"].numpy()[:, 0]
    assert np.array_equal(served, fitted.transform(rows)["hashed"])
