"""KerasSequenceLoader: each row once, in a reproducible order, as the tensors promised."""

import gc
import itertools
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tutorlib.chunk import Chunk, Masked, Ragged
from tutorlib.loader import KerasSequenceLoader
from tutorlib.parquet import ParquetError, ParquetSink, ParquetSource
from tutorlib.schema import Column, Schema

ROWS = 1000


def lists_of(rows):
    """A list column whose row i is [i, i + 1, ...] of length i % 4: some rows are empty."""
    lengths = rows % 4
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = np.concatenate([np.arange(i, i + n) for i, n in zip(rows, lengths, strict=True)])
    return Ragged(values.astype(np.int64), offsets)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """1000 rows in 3 files and 10 row groups; every column can be worked out from `row`."""
    folder = tmp_path_factory.mktemp("data") / "train"
    rows = np.arange(ROWS)
    chunk = Chunk(
        {
            "row": rows,
            "id": (rows % 97).astype(np.int32),
            "x": (rows / 8).astype(np.float32),
            "x64": rows / 16,
            "tags": lists_of(rows),
            "label": (rows % 2).astype(np.float32),
            "weight": (rows % 5).astype(np.float32),
        }
    )
    with ParquetSink(folder, row_group_rows=100, rows_per_file=400) as sink:
        sink.write(chunk)
    return folder


def loader_of(folder, batch_size=64, **changes):
    arguments = {
        "cat_names": ["row", "id", "tags"],
        "cont_names": ["x", "x64"],
        "label_names": ["label"],
        "buffer_size": 150,
        "parts_per_chunk": 2,
    }
    return KerasSequenceLoader(folder, batch_size, **{**arguments, **changes})


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


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    batch_size=st.integers(1, 300),
    buffer_size=st.integers(1, 1200),
    parts_per_chunk=st.integers(1, 5),
    shuffle=st.booleans(),
    threads=st.integers(1, 3),
)
def test_each_row_comes_once_with_its_own_values(folder, **layout):
    threads = layout.pop("threads")
    loader = loader_of(folder, reader_kwargs={"threads": threads}, **layout)
    rows = [check_batch(*batch) for batch in loader]
    assert len(rows) == len(loader)
    assert [len(r) for r in rows] == [loader.batch_rows(i) for i in range(len(loader))]
    everything = np.concatenate(rows)
    np.testing.assert_array_equal(np.sort(everything), np.arange(ROWS))
    assert layout["shuffle"] or everything.tolist() == list(range(ROWS))


def rows_in_order(loader):
    return np.concatenate([inputs["row"].numpy()[:, 0] for inputs, _ in loader]).tolist()


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
        padded = [row + [0] * (3 - len(row)) for row in want.tolist()]
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


def reader_threads():
    return [t for t in threading.enumerate() if t.name.startswith("tutorlib-reader")]


def test_threads_start_with_the_first_batch_and_end_with_the_last(folder):
    loader = loader_of(folder)
    assert len(loader) == 16
    batches = iter(loader)
    assert not reader_threads()
    next(batches)
    assert reader_threads()
    list(batches)
    assert not reader_threads()


def test_an_epoch_left_early_leaves_no_thread(folder):
    for _ in loader_of(folder):
        break
    gc.collect()
    assert not reader_threads()
    loader = loader_of(folder)
    batches = iter(loader)
    next(batches)
    loader.close()
    assert not reader_threads()
    assert list(batches) == []
    assert sorted(rows_in_order(loader)) == list(range(ROWS))


def test_two_passes_at_once_do_not_disturb_each_other(folder):
    one, two = loader_of(folder), loader_of(folder, seed=3)
    pairs = list(zip(one, two, strict=True))
    for k in (0, 1):
        rows = np.concatenate([check_batch(*pair[k]) for pair in pairs])
        np.testing.assert_array_equal(np.sort(rows), np.arange(ROWS))


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
    assert min(stats["read_s"], stats["shuffle_s"], stats["wait_s"]) > 0


def test_the_memory_budget_bounds_the_chunks(folder):
    loader = loader_of(folder, memory_budget=100_000, buffer_size=None, parts_per_chunk=1)
    assert loader.describe()["chunk_bytes"] <= 100_000 / 3
    assert sorted(rows_in_order(loader)) == list(range(ROWS))


def write(folder, **columns):
    path = folder / "bad.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def error_of(path, **arguments):
    started = time.monotonic()
    with pytest.raises(ParquetError) as caught:
        list(KerasSequenceLoader(path, 2, label_names=["y"], **arguments))
    assert time.monotonic() - started < 30
    assert not reader_threads()
    return str(caught.value)


def test_an_id_out_of_range_names_column_value_row_and_file(tmp_path):
    path = write(tmp_path, C7=[1, 2, 7068], y=[0.0, 1, 0])
    schema = Schema([Column("C7", "categorical", cardinality=7068)])
    message = error_of(path, schema=schema)
    assert "column 'C7': id 7068 is outside [0, 7068) at row 2" in message
    assert "row group 0 of" in message
    assert "bad.parquet" in message
    negative = write(tmp_path, C7=[1, -2, 3], y=[0.0, 1, 0])
    assert "id -2 is outside [0, 7068) at row 1" in error_of(negative, schema=schema)
    unchecked = KerasSequenceLoader(negative, 3, label_names=["y"], schema=schema, check_ids=False)
    assert len(list(unchecked)) == 1


def test_a_null_in_an_integer_column_is_refused_with_its_place(tmp_path):
    path = write(tmp_path, C=pa.array([1, None, 3]), y=[0.0, 1, 0])
    message = error_of(path)
    assert "column 'C': null at row 1" in message
    assert "FillMissing" in message


def test_a_truncated_file_is_refused_by_name(tmp_path):
    path = write(tmp_path, C=[1, 2], y=[0.0, 1])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ParquetError, match=r"bad\.parquet: not a whole Parquet file"):
        KerasSequenceLoader(path, 2, label_names=["y"])


def test_a_damaged_page_reaches_the_caller_with_its_place(tmp_path):
    path = tmp_path / "bad.parquet"
    rng = np.random.default_rng(0)
    table = pa.table({"C": rng.integers(0, 9, 50_000), "y": rng.random(50_000)})
    pq.write_table(table, path, compression="zstd")
    data = bytearray(path.read_bytes())
    data[2000:30_000] = bytes(28_000)
    path.write_bytes(data)
    assert "row group 0 of" in error_of(path)


def test_files_with_different_columns_or_types_are_refused(tmp_path):
    pq.write_table(pa.table({"a": [1], "y": [1.0]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": ["x"], "y": [1.0]}), tmp_path / "2.parquet")
    with pytest.raises(ParquetError, match=r"2\.parquet: column 'a' is string, but int64 in"):
        KerasSequenceLoader(tmp_path, 1)
    pq.write_table(pa.table({"y": [1.0]}), tmp_path / "2.parquet")
    with pytest.raises(ParquetError, match=r"2\.parquet: .* missing \['a'\]"):
        KerasSequenceLoader(tmp_path, 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"engine": "csv"}, "engine must be one of"),
        ({"batch_layout": "rows"}, "batch_layout must be one of"),
        ({"multi_hot": "dense"}, "multi_hot must be one of"),
        ({"device": "tpu"}, "device must be one of"),
        ({"global_size": 2}, "both of global_size and global_rank"),
        ({"buffer_size": 0}, "buffer_size must be above 0"),
        ({"reader_kwargs": {"threads": 0}}, "integer from 1 on"),
        ({"reader_kwargs": {"row_group": 3}}, "understands only 'threads'"),
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
    with pytest.raises(ValueError, match=r"column 'C' is text.*Workflow"):
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


def test_rows_that_are_not_used_need_not_be_good(tmp_path):
    """A null behind `limit_rows`, in the same row group, is nobody's business."""
    path = write(tmp_path, a=pa.array([*range(99), None]))
    rows = [inputs["a"].numpy() for inputs, _ in KerasSequenceLoader(path, 4, limit_rows=50)]
    assert sorted(np.concatenate(rows)[:, 0].tolist()) == list(range(50))


def test_a_restart_keeps_the_seed_that_seed_fn_gave(folder):
    seeds = itertools.count()
    loader = loader_of(folder, seed_fn=lambda: next(seeds))
    first = loader.peek()[0]["row"].numpy()
    np.testing.assert_array_equal(next(iter(loader))[0]["row"], first)
    assert next(seeds) == 1


def test_a_null_label_or_weight_is_refused(tmp_path):
    path = write(tmp_path, C=[1, 2, 3], y=[0.0, 1, 0], w=[1.0, None, 1])
    message = error_of(path, cat_names=["C"], weight_name="w")
    assert "column 'w': null or NaN at row 1" in message
    path = write(tmp_path, C=[1, 2, 3], y=[0.0, None, 0])
    assert "column 'y': null or NaN at row 1, but a label" in error_of(path)


def test_an_id_in_a_list_is_found_in_its_row(tmp_path):
    path = write(tmp_path, g=[[1, 2], [], [99]], y=[0.0, 1, 0])
    schema = Schema([Column("g", "categorical", multi_hot=True, cardinality=5)])
    assert "id 99 is outside [0, 5) at row 2" in error_of(path, schema=schema)


def test_integers_are_never_cut_to_a_narrower_type(tmp_path):
    path = write(tmp_path, C=pa.array([1, 2**64 - 1], pa.uint64()), y=[0.0, 1])
    assert "values from 1 to 18446744073709551615 do not fit int64" in error_of(path)


def test_a_label_that_the_schema_has_as_a_feature_is_refused(folder):
    schema = Schema([Column("row", "categorical"), Column("x", "continuous", "float32")])
    with pytest.raises(ValueError, match="column 'x' is continuous in the schema, but named as"):
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


def test_an_error_in_a_mapped_function_says_where(folder):
    def divide(chunk):
        return chunk.with_columns({"x": chunk["x"] / len(chunk["nothing"])})

    with pytest.raises(KeyError) as caught:
        loader_of(folder).map(divide).peek()
    assert "row group" in caught.value.__notes__[0]
    with pytest.raises(ParquetError, match=r"map\(\): gave a dict, but a Chunk is needed"):
        loader_of(folder).map(lambda chunk: dict(chunk)).peek()


def test_a_pass_that_is_closed_on_its_own_thread_does_not_wait_for_itself(folder):
    """The garbage collector may end a pass on one of its reader threads."""

    def end(chunk):
        pipeline.close()
        return chunk

    loader = loader_of(folder).map(end)
    batches = iter(loader)
    batches._pipeline = pipeline = loader._pipeline()
    batches._epoch, batches._left = 0, len(loader)
    with pytest.raises(StopIteration):
        pipeline.next_batch()
    deadline = time.monotonic() + 20
    while reader_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not reader_threads()


def test_padded_lists_make_a_dataset_of_any_width(tmp_path):
    path = write(tmp_path, g=[[1], [2], [3, 4, 5], []], y=[0.0, 1, 0, 1])
    loader = KerasSequenceLoader(path, 2, ["y"], multi_hot="padded", shuffle=False)
    widths = [inputs["g"].shape[1] for inputs, _ in loader.to_tf_dataset()]
    assert widths == [1, 3]
    with pytest.raises(ValueError, match="needs label_names"):
        KerasSequenceLoader(path, 2, cat_names=["g"]).to_tf_dataset()
