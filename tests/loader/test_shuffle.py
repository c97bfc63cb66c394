"""What the loader's shuffle is worth on rows sorted by time, and when it warns that it is poor."""

import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tutorlib.loader import KerasSequenceLoader
from tutorlib.parquet import ParquetSource

ROWS, BATCH = 65_536, 256


def write(folder, rows, row_group_rows):
    numbers = np.arange(rows)
    table = pa.table({"row": numbers, "x": pa.array(numbers, pa.float32()), "y": numbers % 2})
    pq.write_table(table, folder / "rows.parquet", row_group_rows)
    return folder


def loader_of(data, batch_size=4096, **changes):
    names = {"cat_names": ["row"], "cont_names": ["x"], "label_names": ["y"]}
    return KerasSequenceLoader(data, batch_size, **names, **changes)


def variance_of_means(loader):
    """The variance of the batches' mean row numbers in an epoch, by that of a uniform shuffle."""
    rows = [inputs["row"].numpy().astype(float) for inputs, _ in loader if len(inputs["row"]) > 1]
    whole = [batch for batch in rows if len(batch) == loader.batch_size]
    means = np.array([batch.mean() for batch in whole])
    return loader.batch_size * means.var(ddof=1) / np.concatenate(rows).var()


def worth(loader, count=3):
    """The random rows that a batch of time-sorted rows is worth, by the mean of some epochs."""
    return loader.batch_size / np.mean([variance_of_means(loader) for _ in range(count)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data"), ROWS, 512)


def test_a_loader_with_all_rows_in_a_chunk_shuffles_uniformly_and_without_shuffle_not(folder):
    chance = np.sqrt(2 / (ROWS / BATCH))  # the standard deviation over uniform shuffles, about
    loader = loader_of(folder, BATCH, buffer_size=ROWS)
    assert all(abs(variance_of_means(loader) - 1) < 4 * chance for _ in range(3))
    in_order = loader_of(folder, BATCH, shuffle=False)
    assert [row for inputs, _ in in_order for row in inputs["row"].numpy()[:, 0]] == [*range(ROWS)]


def test_more_parts_in_a_chunk_are_a_better_shuffle_and_smaller_chunks_a_worse_one(folder):
    chunk_rows = 8_192
    by_parts = [
        worth(loader_of(folder, BATCH, buffer_size=chunk_rows // k, parts_per_chunk=k), 6)
        for k in (1, 4, 16)
    ]
    assert by_parts == sorted(by_parts)
    # k of K parts, drawn at random: their mean varies as that of k rows, less those not drawn.
    loader = loader_of(folder, BATCH, buffer_size=chunk_rows // 16, parts_per_chunk=16)
    assert loader.describe()["batch_worth"] == pytest.approx(by_parts[-1], rel=0.5)
    whole = loader_of(folder, BATCH, buffer_size=ROWS)
    assert whole.describe()["batch_worth"] == BATCH
    by_rows = [
        worth(loader_of(folder, BATCH, buffer_size=512, parts_per_chunk=k)) for k in (1, 16, 128)
    ]
    assert by_rows == sorted(by_rows)


# ---- files that do not allow for it --------------------------------------------------------------

FEW_ROWS = 1_200_000  # more than an automatic chunk


def words_of(loader):
    """The warnings of two epochs' beginnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        next(iter(loader))
        loader.peek()
        loader.close()
    assert {warning.filename for warning in caught} <= {__file__}  # the user's line, not ours
    return [str(warning.message) for warning in caught]


def test_too_few_row_groups_are_said_once_and_the_remedy_mends_the_shuffle(tmp_path):
    """Random order, in more row groups: as the warning says."""
    (tmp_path / "good").mkdir()
    (tmp_path / "poor").mkdir()
    poor = loader_of(write(tmp_path / "poor", FEW_ROWS, FEW_ROWS))
    (words,) = words_of(poor)
    assert "a chunk has rows of about 1 row groups (the files have 1)" in words
    assert "in at least 8 row groups (Workflow.transform_to_parquet(" in words
    order = np.random.default_rng(0).permutation(FEW_ROWS)
    table = pq.read_table(tmp_path / "poor").take(order)
    pq.write_table(table, tmp_path / "good" / "rows.parquet", FEW_ROWS // 8)
    good = loader_of(tmp_path / "good")
    assert words_of(good) == []
    assert worth(good, 1) > 2000 > 100 > worth(poor, 1)


NOT_WARNED = [{}, {"shuffle": False}, {"buffer_size": 100}, {"parts_per_chunk": 1}, {"head": 90}]


@pytest.mark.parametrize("changes", NOT_WARNED, ids=str)
def test_a_shuffle_of_all_rows_none_or_the_one_asked_for_is_not_warned_of(tmp_path, changes):
    source = ParquetSource(write(tmp_path, 1000, 500))
    source = source.head(changes["head"]) if "head" in changes else source
    changes = {name: value for name, value in changes.items() if name != "head"}
    assert words_of(loader_of(source, 50, **changes)) == []


def test_slices_of_few_row_groups_are_worth_little_however_many_parts_are_asked_for(tmp_path):
    """Two row groups, as pandas writes them: their slices in a chunk are neighbours."""
    folder = write(tmp_path, 65_536, 32_768)
    for changes in ({"parts_per_chunk": 16}, {"parts_per_chunk": 64}):
        loader = loader_of(
            folder, BATCH, buffer_size=32_768 // changes["parts_per_chunk"], **changes
        )
        (words,) = words_of(loader)
        assert "of about 2 row groups" in words
        assert "Give a larger buffer_size (65,536 rows are all)" in words
        assert loader.describe()["batch_worth"] < 3 * worth(loader) < 60
    assert words_of(loader_of(folder, BATCH, buffer_size=65_536)) == []  # as the warning says
    assert worth(loader_of(folder, BATCH, buffer_size=65_536)) > 0.8 * BATCH


def test_a_budget_that_shuffles_poorly_is_named(tmp_path):
    (words,) = words_of(loader_of(write(tmp_path, 300_000, 100_000), 100, memory_budget="6MB"))
    assert "Give a larger memory_budget" in words
