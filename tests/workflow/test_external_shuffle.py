"""Rows sorted by label are rewritten in uniformly random order, with a part of them in memory."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tutorlib.loader import KerasSequenceLoader, shuffle_quality
from tutorlib.parquet import ParquetSource
from tutorlib.workflow import Workflow, split_rows

ROWS, PARTS, BATCH = 400_000, 4, 1000


def epoch(folder):
    """Return (quality of the shuffle, share of label 1 in each batch) of an epoch."""
    names = {"label_names": ["label"], "cat_names": ["row"], "cont_names": []}
    with KerasSequenceLoader(folder, BATCH, seed=0, **names) as loader:
        batches = [(np.asarray(x["row"]).ravel(), float(np.mean(y))) for x, y in loader]
    rows = [row for row, _ in batches]
    np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(ROWS))
    return shuffle_quality(rows), np.array([share for _, share in batches])


def test_random_parts_shuffled_one_by_one_make_uniform_batches_of_sorted_rows(tmp_path):
    label = np.repeat(np.float32([0, 1]), ROWS // 2)
    table = pa.table({"row": np.arange(ROWS), "label": label})
    pq.write_table(table, tmp_path / "sorted.parquet", row_group_size=ROWS)
    source = ParquetSource(tmp_path / "sorted.parquet")
    parts = split_rows(source, {f"part_{n}": 1 / PARTS for n in range(PARTS)}, seed=0)
    copy = Workflow(["row"], ["label"]).fit(source)
    sizes = {"rows_per_file": ROWS // PARTS * 2, "row_group_rows": ROWS // PARTS // 8}
    copy.transform_to_parquet(parts, tmp_path / "random", shuffle_seed=0, **sizes)
    quality, shares = epoch(tmp_path / "random")
    assert quality.effective_batch_size > 0.8 * BATCH
    assert np.abs(shares - 0.5).max() < 0.1  # six standard deviations
