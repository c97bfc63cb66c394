"""shuffle_quality: 1 for a uniform shuffle, worst for none; and the loader's, by its settings."""

import itertools
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutorlib import shuffle_quality
from tutorlib.loader import KerasSequenceLoader
from tutorlib.parquet import ParquetSource

ROWS, BATCH = 65_536, 256
MEASURES = ("batch_variance", "batch_distance", "neighbour_correlation", "displacement")


def measures(quality):
    return [getattr(quality, name) for name in MEASURES]


def cut(order, sizes):
    return np.split(np.asarray(order), np.cumsum(sizes)[:-1])


# ---- the measure ---------------------------------------------------------------------------------


def test_four_rows_by_hand():
    near, far = shuffle_quality([[0, 3], [1, 2]]), shuffle_quality([[0, 1], [2, 3]])
    # Means 0.5 and 2.5 vary by 2 around 1.5, as the mean of two rows; single rows by 5 / 3.
    assert far.batch_variance == pytest.approx(2 * 2 / (5 / 3))
    assert far.effective_batch_size == pytest.approx(2 / 2.4)
    assert (far.neighbour_correlation, far.displacement) == (pytest.approx(-1 / 2), 0)
    assert (far.num_rows, far.num_batches, far.batch_size) == (4, 2, 2)
    assert (near.batch_variance, near.effective_batch_size) == (0, float("inf"))  # means of 1.5
    # Row 3 is two rows behind its batch, row 1 one row before: 3, and 3 on average by chance.
    assert near.displacement == pytest.approx(1)
    assert far.batch_distance == pytest.approx(2 * near.batch_distance)
    assert shuffle_quality([[0, 1], [1, 0]]).batch_variance == 0  # rows of one value share a place


@pytest.mark.parametrize("sizes", [[2, 2, 2], [3, 3, 1], [1, 2, 4], [4, 1]])
def test_over_all_permutations_variance_and_displacement_are_1_exactly(sizes):
    every = [
        shuffle_quality(cut(order, sizes)) for order in itertools.permutations(range(sum(sizes)))
    ]
    assert np.mean([quality.batch_variance for quality in every]) == pytest.approx(1)
    assert np.mean([quality.displacement for quality in every]) == pytest.approx(1)


def test_no_shuffle_a_reversed_one_and_one_of_first_and_last_rows():
    rows, batches = np.arange(ROWS), ROWS // BATCH
    plain = shuffle_quality(rows.reshape(batches, BATCH))
    assert plain.batch_variance == pytest.approx(BATCH * (1 + 1 / batches), rel=1e-3)
    assert plain.batch_distance == pytest.approx(0.86 * np.sqrt(BATCH), rel=0.02)
    assert plain.neighbour_correlation == pytest.approx(1 - 3 / batches, abs=1e-3)
    assert (plain.displacement, plain.effective_batch_size) == (0, pytest.approx(1, abs=0.01))
    assert shuffle_quality(rows[::-1].reshape(-1, BATCH)).displacement == pytest.approx(
        1.5, abs=0.02
    )
    pairs = np.stack([rows[: ROWS // 2], rows[::-1][: ROWS // 2]], axis=1).reshape(-1, BATCH)
    assert shuffle_quality(pairs).batch_variance == pytest.approx(0)
    assert shuffle_quality(pairs).batch_distance > 5


@st.composite
def epochs(draw):
    """Batches of equal size, up to 6 of up to 8 rows, with rows in any order."""
    batch, count = draw(st.integers(1, 8)), draw(st.integers(2, 6))
    return np.array(draw(st.permutations(range(batch * count)))).reshape(count, batch)


@given(epochs(), st.randoms())
def test_only_the_order_of_the_values_and_which_batch_they_are_in_matter(batches, random):
    quality = shuffle_quality(batches)
    worst = shuffle_quality(np.sort(batches, axis=None).reshape(batches.shape))
    assert quality.batch_variance <= worst.batch_variance + 1e-9
    assert quality.batch_distance <= worst.batch_distance + 1e-9
    assert quality.displacement >= worst.displacement == 0
    mixed = [random.sample(batch.tolist(), len(batch)) for batch in batches]
    assert measures(shuffle_quality(mixed)) == pytest.approx(measures(quality))
    assert shuffle_quality(batches.astype("M8[s]")) == shuffle_quality(batches / 7 - 3) == quality
    assert measures(shuffle_quality(-batches))[:3] == pytest.approx(measures(quality)[:3])


@pytest.mark.parametrize(
    ("batches", "error", "message"),
    [
        ([[1, 2]], ValueError, "at least two batches, got 1"),
        ([[1, 2], []], ValueError, "got none in batch 1"),
        ([[1.0, 2.0], [3.0, np.nan]], ValueError, "NaN, got one at row 1 of batch 1"),
        ([[7, 7], [7, 7]], ValueError, "all 4 values are 7"),
        ([["a", "b"], ["c", "d"]], TypeError, "must hold numbers, got <U1 in batch 0"),
        ([({"row": [1]}, [0])], TypeError, r"got a tuple as batch 0\. Pass the column only"),
    ],
)
def test_what_cannot_be_measured_is_refused(batches, error, message):
    with pytest.raises(error, match=message):
        shuffle_quality(batches)


# ---- the loader ----------------------------------------------------------------------------------


def write(folder, rows, row_group_rows):
    numbers = np.arange(rows)
    table = pa.table({"row": numbers, "x": pa.array(numbers, pa.float32()), "y": numbers % 2})
    pq.write_table(table, folder / "rows.parquet", row_group_rows)
    return folder


def loader_of(data, batch_size=4096, **changes):
    names = {"cat_names": ["row"], "cont_names": ["x"], "label_names": ["y"]}
    return KerasSequenceLoader(data, batch_size, **names, **changes)


def qualities(loader, count=3):
    return [
        shuffle_quality(inputs["row"].numpy().copy() for inputs, _ in loader) for _ in range(count)
    ]


def worth(loader, count=3):
    """The random rows that a batch of time-sorted rows is worth, by the mean of some epochs."""
    variances = [quality.batch_variance for quality in qualities(loader, count)]
    return loader.batch_size / np.mean(variances)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data"), ROWS, 512)


def test_a_loader_with_all_rows_in_a_chunk_shuffles_uniformly_and_without_shuffle_not(folder):
    for quality in qualities(loader_of(folder, BATCH, buffer_size=ROWS)):
        assert abs(quality.batch_variance - 1) < 4 * quality.chance
        assert quality.batch_distance == pytest.approx(1, abs=0.1)
        assert abs(quality.neighbour_correlation) < 4 / np.sqrt(quality.num_batches)
        assert quality.displacement == pytest.approx(1, abs=0.02)
    plain = shuffle_quality(np.arange(ROWS).reshape(-1, BATCH))
    assert qualities(loader_of(folder, BATCH, shuffle=False), 1) == [plain]


def test_more_parts_in_a_chunk_are_a_better_shuffle_and_smaller_chunks_a_worse_one(folder):
    chunk_rows = 8_192
    by_parts = [
        worth(loader_of(folder, BATCH, buffer_size=chunk_rows // k, parts_per_chunk=k), 6)
        for k in (1, 4, 16)
    ]
    assert by_parts == sorted(by_parts)
    # k of K parts, drawn at random: their mean varies as that of k rows, less those not drawn.
    assert BATCH / by_parts[-1] == pytest.approx(BATCH / 16 * (1 - 16 / 128) + 1, rel=0.5)
    by_rows = [
        worth(loader_of(folder, BATCH, buffer_size=512, parts_per_chunk=k)) for k in (1, 16, 128)
    ]
    assert by_rows == sorted(by_rows)


WORTH = [  # (rows, of a row group, arguments, least worth of a batch; what 0.1.0 gave)
    (4_000_000, 1_000_000, {}, 12, 17),
    (2_000_000, 65_536, {}, 30, 150),
    (2_000_000, 10_000, {}, 60, 100),
    (2_000_000, 1000, {}, 80, 98),
    (4_000_000, 1_000_000, {"memory_budget": "64MB"}, 6, 7),
    (2_000_000, 10_000, {"memory_budget": "16MB"}, 10, 31),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:the shuffle is poor")
@pytest.mark.parametrize(("rows", "row_group_rows", "changes", "least", "before"), WORTH)
def test_a_batch_of_time_sorted_rows_is_worth_what_it_was(
    tmp_path, rows, row_group_rows, changes, least, before
):
    found = worth(loader_of(write(tmp_path, rows, row_group_rows), **changes))
    assert found >= least, (found, before)


# ---- files that do not allow for it --------------------------------------------------------------

FEW_ROWS = 1_200_000  # more than an automatic chunk


def words_of(loader):
    """The warnings of two epochs' beginnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader.peek()
        next(iter(loader))
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


def test_a_budget_and_a_rank_that_shuffle_poorly_are_named(tmp_path):
    (words,) = words_of(loader_of(write(tmp_path, 300_000, 100_000), 100, memory_budget="6MB"))
    assert "or give a larger memory_budget" in words
    write(tmp_path, 1000, 100)
    rank = loader_of(tmp_path, 50, global_size=4, global_rank=1)
    (words,) = words_of(rank)
    assert "a rank reads only " in words
    assert "of 10 row groups in an epoch" in words
    assert "in at least 32 row groups" in words
