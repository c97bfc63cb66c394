"""shuffle_quality: 1 for a uniform shuffle, worst for none, and blind to what does not matter."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tutorlib.loader import KerasSequenceLoader
from tutorlib.shuffling import shuffle_quality

ROWS, BATCH = 65_536, 256
FILES = {"row_group_rows": 512}
MEASURES = ("batch_variance", "batch_distance", "neighbour_correlation", "displacement")


def measures(quality):
    return [getattr(quality, name) for name in MEASURES]


def cut(order, sizes):
    return np.split(np.asarray(order), np.cumsum(sizes)[:-1])


# --- By hand --------------------------------------------------------------------------------------


def test_four_rows_not_shuffled_by_hand():
    quality = shuffle_quality([[0, 1], [2, 3]])
    # Means 0.5 and 2.5 vary by 2 around 1.5, as the mean of two rows; single rows by 5 / 3.
    assert quality.batch_variance == pytest.approx(2 * 2 / (5 / 3))
    assert quality.effective_batch_size == pytest.approx(2 / 2.4)
    assert quality.neighbour_correlation == pytest.approx(-1 / 2)
    assert quality.displacement == 0
    assert (quality.num_rows, quality.num_batches, quality.batch_size) == (4, 2, 2)


def test_four_rows_dealt_to_both_sides_by_hand():
    quality = shuffle_quality([[0, 3], [1, 2]])
    assert quality.batch_variance == 0  # both means are 1.5
    assert quality.effective_batch_size == float("inf")
    # Row 3 is two rows behind its batch, row 1 one row before: 3, and 3 on average by chance.
    assert quality.displacement == pytest.approx(1)


def test_the_distance_by_hand():
    # Up to row 1 lie all rows of the first batch and half of all rows; up to row 0, half and 1 / 4.
    near, far = shuffle_quality([[0, 3], [1, 2]]), shuffle_quality([[0, 1], [2, 3]])
    assert far.batch_distance == pytest.approx(2 * near.batch_distance)


def test_an_order_turned_round_moves_rows_by_half_as_much_again_as_chance():
    quality = shuffle_quality(np.arange(ROWS)[::-1].reshape(-1, BATCH))
    assert quality.displacement == pytest.approx(1.5, abs=0.02)


def test_a_batch_of_first_and_last_rows_has_the_right_mean_and_a_large_distance():
    rows = np.arange(ROWS)
    pairs = np.stack([rows[: ROWS // 2], rows[::-1][: ROWS // 2]], axis=1)
    quality = shuffle_quality(pairs.reshape(-1, BATCH))
    assert quality.batch_variance == pytest.approx(0)
    assert quality.batch_distance > 5


# --- Uniform and not shuffled ---------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [[2, 2, 2], [3, 3, 1], [1, 2, 4], [4, 1]])
def test_over_all_permutations_variance_and_displacement_are_1_exactly(sizes):
    every = [
        shuffle_quality(cut(order, sizes)) for order in itertools.permutations(range(sum(sizes)))
    ]
    assert np.mean([quality.batch_variance for quality in every]) == pytest.approx(1)
    assert np.mean([quality.displacement for quality in every]) == pytest.approx(1)


@pytest.mark.parametrize("batch", [128, 1000])  # full batches, and a smaller last one
def test_uniform_shuffles_give_what_is_said_of_them(batch):
    random = np.random.default_rng(1)
    sizes = [batch] * (16_384 // batch) + [16_384 % batch] * (16_384 % batch > 0)
    trials = [shuffle_quality(cut(random.permutation(16_384), sizes)) for _ in range(200)]
    values = np.array([measures(quality) for quality in trials])  # [trials, 4]
    expected = np.array([1, 1, -1 / len(sizes), 1])
    errors = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    allowed = 4 * errors + [0, 0.01, 0, 0]  # the mean distance is known to 1 %
    np.testing.assert_array_less(np.abs(values.mean(axis=0) - expected), allowed)
    assert values[:, 0].std(ddof=1) == pytest.approx(trials[0].chance, rel=0.2)


def test_no_shuffle_gives_what_is_said_of_it():
    batches = ROWS // BATCH
    quality = shuffle_quality(np.arange(ROWS).reshape(batches, BATCH))
    assert quality.batch_variance == pytest.approx(BATCH * (1 + 1 / batches), rel=1e-3)
    assert quality.batch_distance == pytest.approx(0.86 * np.sqrt(BATCH), rel=0.02)
    assert quality.neighbour_correlation == pytest.approx(1 - 3 / batches, abs=1e-3)
    assert quality.displacement == 0
    assert quality.effective_batch_size == pytest.approx(1, abs=0.01)


def test_a_column_drifting_a_little_has_the_batch_means_foretold():
    random = np.random.default_rng(2)
    blocks = random.permutation(ROWS // 64)[:, None] * 64 + np.arange(64)  # 4 blocks a batch
    order = blocks.reshape(-1)
    drift = (order - order.mean()) / order.std()
    share = 0.05
    column = np.sqrt(share) * drift + np.sqrt(1 - share) * random.normal(size=ROWS)
    means = column.reshape(-1, BATCH).mean(axis=1)
    measured = BATCH * means.var(ddof=1) / column.var(ddof=1)
    quality = shuffle_quality(order.reshape(-1, BATCH))
    assert 50 < quality.batch_variance < 80  # near 256 / 4
    assert measured == pytest.approx(1 + share * (quality.batch_variance - 1), rel=0.3)


# --- Properties -----------------------------------------------------------------------------------


@st.composite
def epochs(draw):
    """Batches of equal size, up to 6 of up to 8 rows, with rows in any order."""
    batch, count = draw(st.integers(1, 8)), draw(st.integers(2, 6))
    rows = draw(st.permutations(range(batch * count)))
    return np.array(rows).reshape(count, batch)


@given(epochs())
def test_no_order_is_worse_than_none(batches):
    quality = shuffle_quality(batches)
    worst = shuffle_quality(np.sort(batches, axis=None).reshape(batches.shape))
    assert quality.batch_variance <= worst.batch_variance + 1e-9
    assert quality.batch_distance <= worst.batch_distance + 1e-9
    assert quality.displacement >= worst.displacement == 0


@given(epochs(), st.randoms())
def test_the_order_within_a_batch_does_not_matter(batches, random):
    mixed = [random.sample(batch.tolist(), len(batch)) for batch in batches]
    assert measures(shuffle_quality(mixed)) == pytest.approx(measures(shuffle_quality(batches)))


@given(epochs(), st.sampled_from([np.exp2, lambda x: x / 7 - 3, lambda x: x.astype("M8[s]")]))
def test_only_the_order_of_the_values_matters(batches, monotone):
    assert shuffle_quality(monotone(batches)) == shuffle_quality(batches)


@given(epochs())
def test_read_from_the_end_it_is_the_same_but_for_the_displacement(batches):
    turned = shuffle_quality(-batches)
    assert measures(turned)[:3] == pytest.approx(measures(shuffle_quality(batches))[:3])


def test_rows_of_one_value_share_a_place():
    # Two days of two rows: 0, 0, 1, 1 stand at 0.5 and 2.5, whichever of the rows comes first.
    quality = shuffle_quality([[0, 1], [1, 0]])
    assert quality.batch_variance == 0
    days = np.arange(ROWS) // 100
    random = np.random.default_rng(3).permutation(ROWS)
    by_day = shuffle_quality(days[random].reshape(-1, BATCH))
    by_row = shuffle_quality(random.reshape(-1, BATCH))
    assert measures(by_day) == pytest.approx(measures(by_row), abs=0.02)


def test_row_numbers_that_float32_cannot_tell_apart_change_nothing_to_speak_of():
    first = 2**25  # from here on float32 has every fourth number only
    order = np.random.default_rng(4).permutation(ROWS).reshape(-1, BATCH) + first
    rounded = shuffle_quality(order.astype("float32"))
    assert measures(rounded) == pytest.approx(measures(shuffle_quality(order)), abs=0.001)


# --- Readers --------------------------------------------------------------------------------------


def test_a_longer_window_of_tf_data_is_a_better_shuffle():
    windows = [1, 1_024, 4_096, 16_384, 32_768, ROWS]
    rows = tf.data.Dataset.range(ROWS)
    qualities = [shuffle_quality(rows.shuffle(window, seed=5).batch(BATCH)) for window in windows]
    variances = [quality.batch_variance for quality in qualities]
    assert variances == sorted(variances, reverse=True)
    displacements = [quality.displacement for quality in qualities]
    assert displacements == sorted(displacements)
    assert displacements[0] == 0
    assert abs(variances[-1] - 1) < 4 * qualities[-1].chance


@pytest.fixture(scope="module")
def columns():
    return {"row": np.arange(ROWS), "label": np.zeros(ROWS, "float32")}


def loader_quality(folder, batch_size=BATCH, count=4, **settings):
    """Return the quality of a loader's epochs, and the mean of their batch_variance."""
    names = {"cat_names": ["row"], "cont_names": [], "label_names": ["label"]}
    loader = KerasSequenceLoader(folder, batch_size, **names, **settings)
    epochs = [shuffle_quality(inputs["row"] for inputs, _ in loader) for _ in range(count)]
    return epochs, np.mean([quality.batch_variance for quality in epochs])


def test_a_loader_with_all_rows_in_a_chunk_shuffles_uniformly(folder):
    epochs, _ = loader_quality(folder, buffer_size=ROWS)
    for quality in epochs:
        assert abs(quality.batch_variance - 1) < 4 * quality.chance
        assert quality.batch_distance == pytest.approx(1, abs=0.1)
        assert abs(quality.neighbour_correlation) < 4 / np.sqrt(quality.num_batches)
        assert quality.displacement == pytest.approx(1, abs=0.02)


def test_a_loader_that_does_not_shuffle_is_the_worst(folder):
    epochs, _ = loader_quality(folder, shuffle=False)
    plain = shuffle_quality(np.arange(ROWS).reshape(-1, BATCH))
    assert epochs == [plain] * 4


def test_more_parts_in_a_chunk_of_as_many_rows_are_a_better_shuffle(folder):
    chunk_rows = 8_192
    variances = []
    for parts in (1, 2, 4, 8, 16):
        settings = {"buffer_size": chunk_rows // parts, "parts_per_chunk": parts}
        epochs, variance = loader_quality(folder, count=8, **settings)
        assert {quality.num_rows for quality in epochs} == {ROWS}
        variances.append(variance)
    assert variances == sorted(variances, reverse=True)
    # k of K parts, drawn at random: their mean varies as that of k rows, less those not drawn.
    assert variances[-1] == pytest.approx(BATCH / 16 * (1 - 16 / 128) + 1, rel=0.5)


def test_a_smaller_chunk_is_a_worse_shuffle(folder):
    variances = [
        loader_quality(folder, buffer_size=512, parts_per_chunk=parts)[1]
        for parts in (1, 4, 16, 64, 128)
    ]
    assert variances == sorted(variances, reverse=True)


def test_the_last_smaller_batch_counts_as_what_it_is(folder):
    epochs, _ = loader_quality(folder, batch_size=1_000, buffer_size=ROWS)
    assert epochs[0].num_batches == 66
    assert epochs[0].batch_size == 1_000
    assert abs(epochs[0].batch_variance - 1) < 4 * epochs[0].chance


# --- Refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batches", "error", "message"),
    [
        ([], ValueError, "at least two batches, got 0"),
        ([[1, 2]], ValueError, "at least two batches, got 1"),
        ([[1, 2], []], ValueError, "got none in batch 1"),
        ([[1.0, 2.0], [3.0, np.nan]], ValueError, "NaN, got one at row 1 of batch 1"),
        ([[7, 7], [7, 7]], ValueError, "all 4 values are 7"),
        ([["a", "b"], ["c", "d"]], TypeError, "must hold numbers, got <U1 in batch 0"),
        ([({"row": [1]}, [0])], TypeError, r"got a tuple as batch 0\. Pass the column only"),
        ([{"row": [1]}], TypeError, "got a dict as batch 0"),
    ],
)
def test_what_cannot_be_measured_is_refused(batches, error, message):
    with pytest.raises(error, match=message):
        shuffle_quality(batches)


def test_a_loader_without_naming_the_column_is_refused(folder):
    with (
        KerasSequenceLoader(folder, BATCH, label_names=["label"]) as loader,
        pytest.raises(TypeError, match=r"shuffle_quality\(inputs\['row'\] for inputs, _ in loader"),
    ):
        shuffle_quality(loader)
