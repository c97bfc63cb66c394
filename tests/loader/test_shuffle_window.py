"""Where the files do not allow for a good shuffle, the loader says so, with a remedy that works."""

import warnings

import numpy as np
import pytest

from tests.support.loaders import loader_with
from tutorlib.columns import Chunk
from tutorlib.loader import shuffle_quality
from tutorlib.parquet import ParquetSink

ROWS = 1_200_000  # more than an automatic chunk
loader_of = loader_with(4096, label_names=["y"], cat_names=["row"], cont_names=[])


def write(folder, row_group_rows, rows=ROWS):
    with ParquetSink(folder, row_group_rows=row_group_rows) as sink:
        sink.write(Chunk({"row": np.arange(rows), "y": np.zeros(rows, "float32")}))
    return folder


@pytest.fixture(scope="module")
def one_row_group(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data") / "one", ROWS)


def words_of(loader):
    """The warnings of two epochs' beginnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader.peek()
        next(iter(loader))
        loader.close()
    return [str(warning.message) for warning in caught]


def test_too_few_row_groups_for_the_chunks_are_said_once_with_figures(one_row_group):
    loader = loader_of(one_row_group)
    (words,) = words_of(loader)
    assert "a chunk of 960,000 rows mixes only 1.0 of 1 row groups" in words
    assert "in at least 8 row groups (Workflow.transform_to_parquet(" in words
    assert loader.describe()["row_groups_per_chunk"] == 1


def test_the_remedy_silences_the_warning_and_mends_the_shuffle(one_row_group, tmp_path):
    """Random order, in more row groups: as the warning says."""
    order = np.random.default_rng(0).permutation(ROWS)
    with ParquetSink(tmp_path / "shuffled", row_group_rows=ROWS // 8) as sink:
        sink.write(Chunk({"row": order, "y": np.zeros(ROWS, "float32")}))
    loader, poor = loader_of(tmp_path / "shuffled"), loader_of(one_row_group)
    assert words_of(loader) == []
    good = shuffle_quality(inputs["row"] for inputs, _ in loader)
    with pytest.warns(UserWarning, match="the shuffle is poor"):
        bad = shuffle_quality(inputs["row"] for inputs, _ in poor)
    assert good.batch_variance < 2
    assert bad.batch_variance > 100


def test_a_budget_too_small_for_several_row_groups_is_named(tmp_path):
    data = write(tmp_path / "data", 100_000, 300_000)
    (words,) = words_of(loader_of(data, 100, memory_budget=4_000_000))
    assert "or give a larger memory_budget" in words


def test_ranks_with_few_row_groups_each_are_warned(tmp_path):
    data = write(tmp_path / "data", 100, 1000)
    ranks = [loader_of(data, 50, global_size=4, global_rank=rank) for rank in range(4)]
    for loader in ranks:
        (words,) = words_of(loader)
        assert "a rank reads only " in words
        assert "of 10 row groups in an epoch" in words
        assert "in at least 32 row groups" in words
        assert loader.describe()["row_groups_per_rank"] < 4


@pytest.mark.parametrize(
    "settings",
    [{}, {"shuffle": False}, {"buffer_size": 100}, {"parts_per_chunk": 1}, {"limit_rows": 90}],
    ids=str,
)
def test_a_shuffle_of_all_rows_none_or_the_one_that_was_asked_for_is_not_warned_of(
    tmp_path, settings
):
    assert words_of(loader_of(write(tmp_path / "data", 500, 1000), 50, **settings)) == []
