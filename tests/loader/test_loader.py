"""KerasSequenceLoader: each row once, in a reproducible order, as the tensors promised."""

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from tests.support.leftovers import reader_threads
from tests.support.loaders import loader_with
from tutorlib.columns import Chunk, Masked, Ragged
from tutorlib.loader import KerasSequenceLoader
from tutorlib.parquet import ParquetError, ParquetSink, ParquetSource
from tutorlib.schema import Column, Schema

ROWS = 1000
FILES = {"row_group_rows": 100, "rows_per_file": 400}


def lists_of(rows):
    """A list column whose row i is [i, i + 1, ...] of length i % 4: some rows are empty."""
    lengths = rows % 4
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    return Ragged(np.repeat(rows, lengths) + within, offsets)


@pytest.fixture(scope="module")
def columns():
    """Every column can be worked out from `row`."""
    rows = np.arange(ROWS)
    return {
        "row": rows,
        "id": (rows % 97).astype(np.int32),
        "x": (rows / 8).astype(np.float32),
        "x64": rows / 16,
        "tags": lists_of(rows),
        "label": (rows % 2).astype(np.float32),
        "weight": (rows % 5).astype(np.float32),
    }


loader_of = loader_with(
    cat_names=["row", "id", "tags"],
    cont_names=["x", "x64"],
    label_names=["label"],
    buffer_size=150,
    parts_per_chunk=2,
)


def check_batch(inputs, label):
    """Every value of a batch must be the one that its `row` says."""
    rows = inputs["row"].numpy()[:, 0]
    np.testing.assert_array_equal(inputs["id"].numpy()[:, 0], rows % 97)
    np.testing.assert_array_equal(inputs["x"].numpy()[:, 0], rows / 8)
    np.testing.assert_array_equal(inputs["x64"].numpy()[:, 0], rows / 16)
    np.testing.assert_array_equal(label.numpy()[:, 0], rows % 2)
    np.testing.assert_array_equal(inputs["tags__nnzs"].numpy()[:, 0], rows % 4)
    np.testing.assert_array_equal(inputs["tags__values"].numpy()[:, 0], lists_of(rows).values)
    return rows


def rows_in_order(loader):
    return np.concatenate([inputs["row"].numpy()[:, 0] for inputs, _ in loader]).tolist()


# ---- every layout --------------------------------------------------------------------------------

files = st.lists(
    st.lists(st.one_of(st.integers(0, 9), st.integers(0, 90)), min_size=1, max_size=4),
    min_size=1,
    max_size=3,
)

layouts = st.fixed_dictionaries(
    {
        "batch_size": st.integers(1, 70),
        "buffer_size": st.one_of(st.integers(1, 20), st.integers(1, 200)),
        "parts_per_chunk": st.integers(1, 4),
        "shuffle": st.booleans(),
        "drop_last": st.booleans(),
        "limit_rows": st.one_of(st.none(), st.integers(1, 400)),
        "filters": st.one_of(st.none(), st.integers(0, 20).map(lambda n: [("row", ">=", n)])),
        "seed": st.integers(0, 2**64 - 1),
    }
)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 16 rows and groups of up to 64, so that small files have many."""
    monkeypatch.setattr("tutorlib.loader.plan.BLOCK_ROWS", 16)
    monkeypatch.setattr("tutorlib.loader.plan.GROUP_ROWS", 64)


def write_layout(folder, files):
    """Write files with row groups of the given numbers of rows; `row` counts through all."""
    first = 0
    folder.mkdir()
    for number, group_rows in enumerate(files):
        rows = np.arange(first, first + sum(group_rows))
        table = pa.table(
            {
                "row": rows,
                "x": rows / 8,
                "tags": Chunk({"tags": lists_of(rows)}).to_arrow()["tags"],
                "label": (rows % 2).astype("float32"),
            }
        )
        with pq.ParquetWriter(folder / f"{number}.parquet", table.schema) as writer:
            start = 0
            for count in group_rows:
                writer.write_table(table.slice(start, count))
                start += count
        first += sum(group_rows)
    return first


def rows_of_batches(loader):
    """The `row` values of each batch that comes, whose other columns must fit them."""
    batches = list(loader)
    if not batches:
        return []
    rows = [inputs["row"].numpy()[:, 0] for inputs, _ in batches]
    together = np.concatenate(rows)
    for name, want in (("x", together / 8), ("tags__nnzs", together % 4)):
        have = np.concatenate([inputs[name].numpy()[:, 0] for inputs, _ in batches])
        np.testing.assert_array_equal(have, want.astype(have.dtype))
    values = np.concatenate([inputs["tags__values"].numpy()[:, 0] for inputs, _ in batches])
    np.testing.assert_array_equal(values, lists_of(together).values)
    labels = np.concatenate([label.numpy()[:, 0] for _, label in batches])
    np.testing.assert_array_equal(labels, together % 2)
    return [batch.tolist() for batch in rows]


@pytest.mark.usefixtures("small_blocks")
@settings(
    max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    files=files,
    layout=layouts,
    world_size=st.integers(1, 3),
    threads=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    resume=st.floats(0, 1, exclude_max=True),
)
def test_each_row_comes_once_with_its_own_values_whatever_the_layout(
    tmp_path_factory, files, layout, world_size, threads, resume
):
    folder = tmp_path_factory.mktemp("layout") / "train"
    total = write_layout(folder, files)
    first = 0 if layout["filters"] is None else layout["filters"][0][2]
    want = list(range(first, total))[: layout["limit_rows"]]
    assume(len(want) >= world_size)
    assume(layout["batch_size"] > 1 or layout["drop_last"] or len(want) % world_size == 0)

    def loader_of_rank(rank, threads):
        return KerasSequenceLoader(
            folder,
            label_names=["label"],
            cat_names=["row", "tags"],
            cont_names=["x"],
            global_size=world_size,
            global_rank=rank,
            reader_kwargs={"threads": threads},
            **layout,
        )

    loaders = [loader_of_rank(rank, threads[0]) for rank in range(world_size)]
    batches = [rows_of_batches(loader) for loader in loaders]
    have = [row for of_rank in batches for batch in of_rank for row in batch]
    if layout["drop_last"]:
        assert {len(batch) for of_rank in batches for batch in of_rank} <= {layout["batch_size"]}
        assert len(have) == len(set(have)) > len(want) - world_size * (layout["batch_size"] + 1)
        assert set(have) <= set(want)
    else:
        assert sorted(have) == want
    if world_size == 1 and not layout["shuffle"]:
        assert have == want[: len(have)]
    assert len({len(of_rank) for of_rank in batches}) == 1
    for loader, of_rank in zip(loaders, batches, strict=True):
        assert len(loader) == len(of_rank)
        assert [loader.batch_rows(k) for k in range(len(loader))] == list(map(len, of_rank))

    largest = max(map(max, files))
    event("slices of row groups" if largest > layout["buffer_size"] else "whole row groups")
    rank = world_size - 1
    again = loader_of_rank(rank, threads[1])
    batch = int(resume * len(again))
    again.load_state_dict({**again.state_dict(), "batch": batch, "seed": layout["seed"]})
    assert rows_of_batches(again) == batches[rank][batch:]


@pytest.mark.parametrize("buffer_size", [1000, 17_000, 30_000])
def test_slices_of_a_large_row_group_hold_each_row_once(tmp_path, buffer_size):
    """Row groups of several pages a column, that a stream decodes in several steps."""
    total = write_layout(tmp_path / "train", [[40_000, 50_000], [70_000]])
    loader = KerasSequenceLoader(
        tmp_path / "train",
        4096,
        ["label"],
        cat_names=["row", "tags"],
        cont_names=["x"],
        buffer_size=buffer_size,
        parts_per_chunk=2,
    )
    assert loader.describe()["chunk_rows"] <= 2 * buffer_size
    rows = np.concatenate(rows_of_batches(loader))
    np.testing.assert_array_equal(np.sort(rows), np.arange(total))


# ---- order ---------------------------------------------------------------------------------------


def test_order_is_the_same_on_any_number_of_threads(folder):
    orders = [rows_in_order(loader_of(folder, reader_kwargs={"threads": n})) for n in (1, 2, 5)]
    assert orders[0] == orders[1] == orders[2]


def test_every_epoch_has_its_own_order_and_a_restart_repeats_it(folder):
    loader = loader_of(folder)
    first_of_epoch = next(iter(loader))[0]["row"].numpy()
    np.testing.assert_array_equal(loader.peek()[0]["row"].numpy(), first_of_epoch)
    first, second = rows_in_order(loader), rows_in_order(loader)
    assert loader.epoch == 2
    assert first != second
    assert first[:64] == first_of_epoch[:, 0].tolist()
    loader.set_epoch(0)
    assert rows_in_order(loader) == first
    assert rows_in_order(loader_of(folder, seed=1)) != first


def test_seed_fn_gives_the_seed_of_each_epoch(folder):
    seeds = iter([7, 7, 8])
    loader = loader_of(folder, seed_fn=lambda: next(seeds))
    first = rows_in_order(loader)
    loader.set_epoch(0)
    assert rows_in_order(loader) == first
    loader.set_epoch(0)
    assert rows_in_order(loader) != first


def test_ranks_share_the_rows_and_the_number_of_steps(folder):
    loaders = [loader_of(folder, global_size=3, global_rank=rank) for rank in range(3)]
    rows = [rows_in_order(loader) for loader in loaders]
    assert sorted(itertools.chain(*rows)) == list(range(ROWS))
    assert len({len(loader) for loader in loaders}) == 1


def test_drop_last_and_limit_rows(folder):
    loader = loader_of(folder, 64, drop_last=True)
    assert len(loader) == ROWS // 64
    assert {len(inputs["row"]) for inputs, _ in loader} == {64}
    assert sorted(rows_in_order(loader_of(folder, limit_rows=130))) == list(range(130))


def test_dtypes_follow_the_schema_alone(folder):
    inputs, label = loader_of(folder).peek()
    dtypes = {name: tensor.dtype.name for name, tensor in inputs.items()}
    assert dtypes == {
        "row": "int64",
        "id": "int32",
        "x": "float32",
        "x64": "float32",
        "tags__nnzs": "int32",
        "tags__values": "int64",
    }
    assert label.dtype == tf.float32
    small = Schema([Column("row", "categorical", cardinality=ROWS), Column("label", "label")])
    inputs, _ = KerasSequenceLoader(folder, 8, schema=small).peek()
    assert inputs["row"].dtype == tf.int32


def test_stacked_batches_hold_the_same_rows_as_columns(folder):
    arguments = {"cat_names": ["row", "id"], "batch_size": 60}
    columns = [inputs for inputs, _ in loader_of(folder, **arguments)]
    stacked = loader_of(folder, batch_layout="stacked", **arguments)
    for apart, (together, label) in zip(columns, stacked, strict=True):
        assert set(together) == {"categorical", "continuous"}
        assert together["categorical"].dtype == tf.int64
        ids = np.concatenate([apart["row"], apart["id"]], axis=1)
        np.testing.assert_array_equal(together["categorical"], ids)
        np.testing.assert_array_equal(
            together["continuous"], np.concatenate([apart["x"], apart["x64"]], axis=1)
        )
        np.testing.assert_array_equal(label[:, 0], ids[:, 0] % 2)


@pytest.mark.parametrize("form", ["offsets", "ragged", "padded"])
def test_multi_hot_forms_hold_the_same_lists(folder, form):
    inputs, _ = loader_of(folder, multi_hot=form).peek()
    want = lists_of(inputs["row"].numpy()[:, 0])
    if form == "offsets":
        np.testing.assert_array_equal(inputs["tags__values"], want.values)
        np.testing.assert_array_equal(inputs["tags__offsets"], want.offsets)
    elif form == "ragged":
        assert inputs["tags"].to_list() == want.tolist()
    else:
        padded = [row + [-1] * (3 - len(row)) for row in want.tolist()]
        assert inputs["tags"].numpy().tolist() == padded


def test_weights_and_several_labels(folder):
    loader = loader_of(folder, label_names=["label", "x64"], cont_names=["x"], weight_name="weight")
    inputs, labels, weights = loader.peek()
    rows = inputs["row"].numpy()[:, 0]
    assert set(labels) == {"label", "x64"}
    np.testing.assert_array_equal(labels["x64"].numpy()[:, 0], rows / 16)
    np.testing.assert_array_equal(weights, rows % 5)


def test_batches_stay_as_they_are_while_held(folder):
    loader = loader_of(folder, 50)
    held = list(loader)
    list(loader)
    rows = [check_batch(*batch) for batch in held]
    np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(ROWS))


@pytest.mark.parametrize("batch_layout", ["columns", "stacked"])
@pytest.mark.parametrize("multi_hot", ["nnzs", "offsets"])
def test_large_batches_stay_as_they_are_while_any_part_of_them_is_held(
    tmp_path, batch_layout, multi_hot
):
    """Large enough for memory that is used again: not before the last tensor or array is gone."""
    write_layout(tmp_path / "train", [[60_000, 40_000], [80_000]])
    settings = {"batch_layout": batch_layout, "multi_hot": multi_hot, "buffer_size": 25_000}
    loader = KerasSequenceLoader(
        tmp_path / "train",
        20_000,
        ["label"],
        cat_names=["row", "tags"],
        cont_names=["x"],
        parts_per_chunk=2,
        **settings,
    )
    held, copies = [], []
    for epoch in range(4):
        for number, (inputs, label) in enumerate(loader):
            tensors = [*inputs.values(), label]
            kept = tensors[(epoch + number) % len(tensors)]
            held.append(kept if number % 2 else kept.numpy())  # an array may share its memory
            copies.append(np.array(kept, copy=True))
        del inputs, label, tensors, kept
    for kept, copy in zip(held, copies, strict=True):
        np.testing.assert_array_equal(kept, copy)


@pytest.mark.parametrize("batch_size", [256, 100])
def test_small_batches_share_no_memory_and_stay_as_they_are_while_a_part_is_held(
    tmp_path, batch_size
):
    """Their tensors are made many at a time, over one piece of memory that is used again."""
    write_layout(tmp_path / "train", [[60_000, 40_000], [80_000]])
    columns = {"cat_names": ["row"], "cont_names": ["x"], "buffer_size": 25_000}
    loader = KerasSequenceLoader(tmp_path / "train", batch_size, ["label"], **columns)
    arrays = [np.from_dlpack(t) for inputs, label in loader for t in (*inputs.values(), label)]
    places = sorted((array.ctypes.data, array.nbytes) for array in arrays)
    assert all(a + nbytes <= b for (a, nbytes), (b, _) in itertools.pairwise(places))
    del arrays
    held, copies = [], []
    for epoch in range(3):
        for number, (inputs, label) in enumerate(loader):
            if number % 211 == epoch:  # one of a group's batches at most: other memory comes back
                kept = [*inputs.values(), label][number % 3]
                held.append(kept if number % 2 else kept.numpy())
                copies.append(np.array(kept, copy=True))
    del inputs, label, kept
    list(loader)
    for kept, copy in zip(held, copies, strict=True):
        np.testing.assert_array_equal(kept, copy)


def test_threads_start_with_the_first_batch_and_end_with_the_last(folder):
    loader = loader_of(folder)
    assert len(loader) == 16
    batches = iter(loader)
    assert not reader_threads()
    next(batches)
    assert reader_threads()
    list(batches)
    assert not reader_threads()


def test_map_replaces_the_columns(folder):
    def double(chunk):
        return chunk.with_columns({"x": chunk["x"] * 2})

    inputs, _ = loader_of(folder).map(double).peek()
    np.testing.assert_array_equal(inputs["x"][:, 0], inputs["row"].numpy()[:, 0] / 4)
    loader = loader_of(folder).map(lambda chunk: chunk.drop(["x"]))
    with pytest.raises(ParquetError, match=r"map\(\): gave .* are needed \(in row group"):
        loader.peek()
    with pytest.raises(RuntimeError, match="map"):
        loader.map(double)


def test_batches_are_cut_a_few_at_a_time(folder):
    """Ten of a thousand batches are taken: not all of them may have been made."""
    loader = loader_of(folder, 1, buffer_size=1000)
    batches = iter(loader)
    rows = [check_batch(*next(batches)) for _ in range(10)]
    loader.close()
    assert len(np.unique(rows)) == 10
    assert loader.stats()["batches"] <= 3 * 64


def test_describe_and_stats_say_what_is_planned_and_done(folder):
    loader = loader_of(folder)
    plan = loader.describe()
    assert (plan["files"], plan["row_groups"], plan["rows"], plan["batches"]) == (3, 10, ROWS, 16)
    assert plan["chunk_rows"] == 200
    assert "1,000 rows in 16 batches of 64" in repr(loader)
    list(loader)
    stats = loader.stats()
    assert (stats["rows"], stats["batches"]) == (ROWS, 16)
    assert min(stats["read_s"], stats["scatter_s"], stats["wait_s"]) > 0


def test_the_memory_budget_bounds_the_chunks(folder):
    loader = loader_of(folder, memory_budget=200_000, buffer_size=None, parts_per_chunk=1)
    assert loader.describe()["chunk_bytes"] <= 200_000 / 3
    assert sorted(rows_in_order(loader)) == list(range(ROWS))


def write(folder, **columns):
    path = folder / "bad.parquet"
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"engine": "csv"}, "engine must be one of"),
        ({"batch_layout": "rows"}, "batch_layout must be one of"),
        ({"multi_hot": "dense"}, "multi_hot must be one of"),
        ({"device": "tpu"}, "device must be one of"),
        ({"global_size": 2}, "both of global_size and global_rank"),
        ({"buffer_size": 0}, "buffer_size must be above 0"),
        ({"reader_kwargs": {"threads": 0}}, "must be at least 1, got 0"),
        ({"reader_kwargs": {"row_group": 3}}, "may hold only 'threads'"),
        ({"cat_names": ["nothing"]}, r"columns \['nothing'\] are not in the files"),
        ({"feature_columns": []}, "in one way"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
    ],
)
def test_an_argument_that_does_not_fit_is_refused(folder, arguments, words):
    with pytest.raises(ValueError, match=words):
        loader_of(folder, **arguments)


def test_text_is_refused_with_the_way_out(tmp_path):
    path = write(tmp_path, C=["a", "b"], y=[0.0, 1])
    with pytest.raises(ValueError, match=r"column 'C' holds strings.*Workflow"):
        KerasSequenceLoader(path, 1, label_names=["y"]).peek()


def test_feature_columns_name_the_features(folder):
    column = tf.feature_column
    ids = column.categorical_column_with_identity("id", 97)
    features = [column.embedding_column(ids, 4), column.numeric_column("x", (1,))]
    loader = KerasSequenceLoader(folder, 10, label_names=["label"], feature_columns=features)
    assert loader.schema.embedding_sizes() == {"id": (97, 4)}
    assert set(loader.peek()[0]) == {"id", "x"}


def test_missing_files_are_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="no Parquet file at"):
        KerasSequenceLoader(tmp_path / "none", 1)


def test_a_source_can_be_shared(folder):
    source = ParquetSource(folder)
    assert loader_of(source).source is source


def test_masked_columns_concatenate_with_plain_ones():
    whole = Chunk.concat(
        [Chunk({"a": np.arange(2)}), Chunk({"a": Masked(np.arange(2), np.array([True, False]))})]
    )
    assert whole["a"].tolist() == [0, 1, 0, None]


def test_a_restart_keeps_the_seed_that_seed_fn_gave(folder):
    seeds = itertools.count()
    loader = loader_of(folder, seed_fn=lambda: next(seeds))
    first = loader.peek()[0]["row"].numpy()
    np.testing.assert_array_equal(next(iter(loader))[0]["row"], first)
    assert next(seeds) == 1


def test_a_label_that_the_schema_has_as_a_feature_is_refused(folder):
    schema = Schema([Column("row", "categorical"), Column("x", "continuous", "float32")])
    with pytest.raises(ValueError, match="column 'x' is continuous in the schema, but passed"):
        KerasSequenceLoader(folder, 8, schema=schema, label_names=["x"])


def test_the_budget_bounds_chunks_of_large_row_groups(tmp_path):
    with ParquetSink(tmp_path / "x.parquet", row_group_rows=1000) as sink:
        sink.write(Chunk({"C": np.arange(16_000, dtype=np.int32)}))
    small = KerasSequenceLoader(tmp_path / "x.parquet", 10, memory_budget=30_000)
    assert small.describe()["chunk_rows"] <= 2500
    default = KerasSequenceLoader(tmp_path / "x.parquet", 10).describe()
    assert default["chunk_rows"] == 16_000


def test_no_batch_at_all_is_said(folder):
    loader = loader_of(folder, 2000, drop_last=True)
    assert len(loader) == 0
    assert list(loader) == []
    with pytest.raises(ValueError, match="there is no batch: 1000 rows, batch_size=2000"):
        loader.peek()


def test_a_late_pass_does_not_turn_the_epoch_back(folder):
    loader = loader_of(folder)
    late = iter(loader)
    next(late)
    loader.set_epoch(7)
    list(late)
    assert loader.epoch == 7


def test_padded_lists_make_a_dataset_of_any_width(tmp_path):
    path = write(tmp_path, g=[[1], [2], [3, 4, 5], []], y=[0.0, 1, 0, 1])
    loader = KerasSequenceLoader(path, 2, ["y"], multi_hot="padded", shuffle=False)
    widths = [inputs["g"].shape[1] for inputs, _ in loader.to_tf_dataset()]
    assert widths == [1, 3]
    with pytest.raises(ValueError, match="needs label_names"):
        KerasSequenceLoader(path, 2, cat_names=["g"]).to_tf_dataset()


def test_batches_have_values_while_a_function_is_traced(folder):
    loader, rows = loader_of(folder, batch_size=100), []

    @tf.function
    def traced():
        for inputs, label in loader:
            rows.extend(check_batch(inputs, label))

    traced()
    assert sorted(rows) == list(range(ROWS))


def test_ragged_batches_have_values_while_a_function_is_traced(folder):
    loader, lists = loader_of(folder, batch_size=100, multi_hot="ragged", shuffle=False), []

    @tf.function
    def traced():
        for inputs, _ in loader:
            lists.extend(inputs["tags"].to_list())

    traced()
    want = lists_of(np.arange(ROWS))
    assert lists == [want.values[a:b].tolist() for a, b in itertools.pairwise(want.offsets)]
