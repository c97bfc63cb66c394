"""TFRecord files hold exactly the rows of the Parquet files, in both forms, or are not there."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tutorlib.chunk import Chunk, Ragged, Strings
from tutorlib.loader import KerasSequenceLoader
from tutorlib.parquet import ParquetSink, ParquetSource
from tutorlib.schema import Column, Schema
from tutorlib.tfrecords import (
    encode_examples,
    native_dataset,
    parsed_batches,
    prebatched_dataset,
    read_facts,
    write_examples,
    write_prebatched,
)

ROWS = 1000
SCHEMA = Schema(
    [
        Column("C1", "categorical", "int32", cardinality=100_000),
        Column("genres", "categorical", "int64", multi_hot=True),
        Column("I1", "continuous", "float32"),
        Column("label", "label", "float32"),
    ]
)
SCALARS = Schema(column for column in SCHEMA if not column.multi_hot)
READERS = (native_dataset, parsed_batches)


def lists(rng, rows, longest, values):
    """Return random lists of 0 to `longest` values."""
    nnzs = rng.integers(0, longest + 1, rows)
    return Ragged(values(int(nnzs.sum())), np.concatenate([[0], np.cumsum(nnzs)]))


def some_rows(rows=ROWS):
    rng = np.random.default_rng(0)
    return Chunk(
        {
            "I1": rng.normal(size=rows).astype(np.float32),
            "label": rng.integers(0, 2, rows).astype(np.float32),
            "C1": rng.integers(0, 100_000, rows).astype(np.int32),
            "genres": lists(rng, rows, 5, lambda n: rng.integers(0, 300, n)),
        }
    )


@pytest.fixture
def rows():
    return some_rows()


@pytest.fixture
def parquet(tmp_path, rows):
    with ParquetSink(tmp_path / "parquet", row_group_rows=300, rows_per_file=600) as sink:
        sink.write(rows)
    return ParquetSource(tmp_path / "parquet")


@pytest.fixture
def examples(tmp_path, parquet):
    write_examples(parquet, tmp_path / "examples", rows_per_file=400, progress=False)
    return tmp_path / "examples"


@pytest.fixture
def prebatched(tmp_path, parquet):
    write_prebatched(
        parquet, tmp_path / "prebatched", batch_size=128, batches_per_file=3, progress=False
    )
    return tmp_path / "prebatched"


def by_protobuf(chunk):
    """Serialize the rows one by one with TensorFlow's own classes: the oracle."""
    import tensorflow as tf

    kinds = {bytes: "bytes_list", float: "float_list", int: "int64_list"}
    columns = {name: column.tolist() for name, column in chunk.items()}
    records = []
    for row in range(chunk.num_rows):
        example = tf.train.Example()
        for name, values in columns.items():
            flat = values[row] if isinstance(values[row], list) else [values[row]]
            flat = [v.encode() if isinstance(v, str) else v for v in flat]
            kind = "float_list" if "float" in name else kinds[type(flat[0])] if flat else name
            getattr(example.features.feature[name], kind).value.extend(flat)
        records.append(example.SerializeToString(deterministic=True))
    return records


def text(values):
    import pyarrow as pa

    return Strings.from_arrow(pa.array(values, pa.string()))


def test_an_encoded_row_has_the_bytes_that_protobuf_writes():
    edges = np.array([0, 1, 127, 128, 16_383, 16_384, 2**31, 2**63 - 1, -1, -(2**63)])
    n = len(edges)
    rng = np.random.default_rng(1)
    letters = text(["", "a", "ä" * 70, "x" * 200] + ["name"] * (n - 4))
    tags = text([f"tag {i}" for i in range(30)])
    chunk = Chunk(
        {
            "edges": edges,
            "small": np.arange(n, dtype=np.int8),
            "unsigned": np.arange(n, dtype=np.uint32),
            "flags": np.arange(n) % 2 == 0,
            "float32": rng.normal(size=n).astype(np.float32),
            "float64": rng.normal(size=n).astype(np.float32).astype(np.float64),
            "float with a long name " + "and longer " * 20: np.zeros(n, np.float32),
            "letters": letters,
            "int64_list": Ragged(
                np.arange(500), np.array([0, 0, 1, 3, 3, 200, 201, 250, 500, 500, 500])
            ),
            "float_list": Ragged(
                rng.normal(size=n).astype(np.float32), np.array([0] + [5] * (n - 1) + [n])
            ),
            "bytes_list": Ragged(tags, np.array([0, 0, *range(1, n - 1), 30])),
        }
    )  # fmt: skip
    assert list(encode_examples(chunk)) == by_protobuf(
        chunk.with_columns({"flags": chunk["flags"].astype(np.int64)})
    )


def test_columns_of_empty_lists_and_chunks_without_rows_are_encoded():
    nothing = Ragged(np.zeros(0, np.int64), np.zeros(4, np.int64))
    chunk = Chunk({"int64_list": nothing, "a": np.arange(3)})
    assert list(encode_examples(chunk)) == by_protobuf(chunk)
    assert list(encode_examples(chunk.slice(1, 1))) == []


def test_rows_with_very_long_lists_are_encoded_in_smaller_blocks():
    lengths = np.array([3, 3_000_000, 2, 5])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    chunk = Chunk({"int64_list": Ragged(np.ones(offsets[-1], np.int64), offsets)})
    sizes = [len(record) for record in encode_examples(chunk)]
    overhead = sizes[2] - 2
    assert sizes[0] == 3 + overhead
    assert 3_000_000 < sizes[1] < 3_000_000 + 100


def gathered(dataset):
    """Return all rows of a dataset as columns, lists as Python lists, in the order they came."""
    columns = {}
    for inputs, label in dataset:
        batch = {name: tensor.numpy() for name, tensor in inputs.items()}
        nnzs, values = batch.pop("genres__nnzs", None), batch.pop("genres__values", None)
        if nnzs is not None:
            split = np.split(values[:, 0], np.cumsum(nnzs[:, 0])[:-1])
            columns.setdefault("genres", []).extend(part.tolist() for part in split)
        for name, array in {**batch, "label": label.numpy()}.items():
            columns.setdefault(name, []).extend(array[:, 0].tolist())
    return columns


@pytest.mark.parametrize("reader", READERS)
def test_examples_hold_the_rows_of_the_parquet_files_in_their_order(reader, examples, rows):
    read = gathered(reader(examples, 128, SCHEMA, shuffle=False))
    assert read == {name: column.tolist() for name, column in rows.items()}


def test_prebatched_records_hold_the_rows_of_the_parquet_files_in_their_order(prebatched, rows):
    read = gathered(prebatched_dataset(prebatched, SCHEMA))
    assert read == {name: column.tolist() for name, column in rows.items()}


@pytest.mark.parametrize("reader", READERS)
def test_shuffled_readers_give_each_row_once_in_another_order(reader, examples, rows):
    read = gathered(reader(examples, 128, SCHEMA, seed=1))
    expected = {name: column.tolist() for name, column in rows.items()}
    assert read["I1"] != expected["I1"]
    order = [expected["I1"].index(value) for value in read["I1"]]
    assert sorted(order) == list(range(ROWS))
    assert read == {name: [column[i] for i in order] for name, column in expected.items()}


@pytest.mark.parametrize("reader", READERS)
def test_a_seed_fixes_the_order(reader, examples):
    first, again, other = (gathered(reader(examples, 128, SCALARS, seed=s)) for s in (3, 3, 4))
    assert first == again != other


def test_readers_give_the_names_and_shapes_of_the_loader(examples, prebatched, parquet):
    loader = KerasSequenceLoader(parquet, 128, schema=SCHEMA, shuffle=False)
    inputs, label = loader.peek()
    for dataset in (
        native_dataset(examples, 128, SCHEMA, shuffle=False),
        parsed_batches(examples, 128, SCHEMA, shuffle=False),
        prebatched_dataset(prebatched, SCHEMA),
    ):
        sizes = []
        for number, (read, read_label) in enumerate(dataset):
            sizes.append(read_label.shape[0])
            if number == 0:
                assert {n: t.shape for n, t in read.items()} == {
                    n: t.shape for n, t in inputs.items()
                }
                kinds = {n: t.dtype.is_integer for n, t in read.items()}
                assert kinds == {n: t.dtype.is_integer for n, t in inputs.items()}
                assert read_label.shape == label.shape
                assert read_label.dtype == label.dtype
        assert sizes == [128] * 7 + [104]


def test_dtypes_are_int64_and_float32_from_examples_and_as_stored_from_prebatched(
    examples, prebatched
):
    for reader in READERS:
        inputs, label = next(iter(reader(examples, 8, SCHEMA)))
        dtypes = {name: tensor.dtype.name for name, tensor in inputs.items()}
        assert dtypes == {
            "C1": "int64", "I1": "float32", "genres__values": "int64", "genres__nnzs": "int32",
        }  # fmt: skip
        assert label.dtype.name == "float32"
    inputs, _ = next(iter(prebatched_dataset(prebatched, SCHEMA)))
    assert inputs["C1"].dtype.name == "int32"
    assert inputs["genres__values"].dtype.name == "int64"


def test_a_dataset_of_prebatched_records_knows_its_length(prebatched):
    assert len(prebatched_dataset(prebatched, SCALARS)) == 8


def test_drop_last_leaves_out_the_batch_that_is_not_full(examples):
    for reader in READERS:
        sizes = [label.shape[0] for _, label in reader(examples, 128, SCALARS, drop_last=True)]
        assert sizes == [128] * 7


def test_several_labels_and_a_weight_come_as_from_the_loader(examples):
    schema = Schema(
        [
            SCHEMA["C1"],
            SCHEMA["label"],
            Column("genres", "categorical", multi_hot=True),
            Column("I1", "weight", "float32"),
        ]
    )
    inputs, label, weights = next(iter(parsed_batches(examples, 8, schema)))
    assert set(inputs) == {"C1", "genres__values", "genres__nnzs"}
    assert (label.shape, weights.shape) == ([8, 1], [8])
    two = Schema([SCHEMA["C1"], SCHEMA["label"], Column("I1", "label", "float32")])
    _, labels = next(iter(parsed_batches(examples, 8, two)))
    assert set(labels) == {"label", "I1"}
    for unfit in (schema, two):
        with pytest.raises(ValueError, match="exactly one label and no weight"):
            native_dataset(examples, 8, unfit)


def test_text_is_read_back(tmp_path):
    with ParquetSink(tmp_path / "p") as sink:
        sink.write(Chunk({"title": text(["Alien", "", "Ärger"]), "label": np.ones(3, np.float32)}))
    write_examples(tmp_path / "p", tmp_path / "e", progress=False)
    schema = Schema([Column("title", "categorical", "string"), Column("label", "label", "float32")])
    inputs, _ = next(iter(parsed_batches(tmp_path / "e", 3, schema, shuffle=False)))
    assert [t.decode() for t in inputs["title"].numpy()[:, 0]] == ["Alien", "", "Ärger"]


def test_files_have_the_rows_asked_for_and_the_facts_tell_them(tmp_path, parquet):
    written = write_examples(
        parquet, tmp_path / "e", rows_per_file=400, limit_rows=900, columns=["C1", "label"],
        progress=False,
    )  # fmt: skip
    files = sorted((tmp_path / "e").glob("*.tfrecord"))
    assert [path.name for path in files] == [f"part_0000{i}.tfrecord" for i in range(3)]
    schema = SCALARS.select(["C1", "label"])
    counts = [sum(1 for _ in parsed_batches(path, 1, schema)) for path in files]
    assert counts == [400, 400, 100]
    assert written[:3] == (3, 900, sum(path.stat().st_size for path in files))
    facts = read_facts(tmp_path / "e")
    assert facts == {
        "form": "examples",
        "columns": {"C1": ["int32", False], "label": ["float32", False]},
        "rows": 900,
        "files": 3,
        "nbytes": written.nbytes,
    }
    written = write_prebatched(
        parquet, tmp_path / "b", batch_size=200, limit_rows=500, batches_per_file=2, progress=False
    )
    assert (written.files, written.rows) == (2, 500)
    sizes = [label.shape[0] for _, label in prebatched_dataset(tmp_path / "b", SCALARS)]
    assert sizes == [200, 200, 100]


def test_a_target_that_is_there_is_not_touched(tmp_path, parquet, examples):
    before = (examples / "part_00000.tfrecord").read_bytes()
    for write in (write_examples, lambda s, f, **k: write_prebatched(s, f, batch_size=8, **k)):
        with pytest.raises(FileExistsError, match="pass overwrite=True"):
            write(parquet, examples, progress=False)
    assert (examples / "part_00000.tfrecord").read_bytes() == before
    write_examples(parquet, examples, limit_rows=10, overwrite=True, progress=False)
    assert read_facts(examples)["rows"] == 10
    other = tmp_path / "mine"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="not written by tutorlib"):
        write_examples(parquet, other, overwrite=True, progress=False)
    assert (other / "thesis.txt").exists()


def test_a_failure_leaves_nothing_and_says_where(tmp_path):
    import pyarrow as pa

    with ParquetSink(tmp_path / "p", row_group_rows=2) as sink:
        sink.write(
            pa.table({"x": pa.array([1, 2, 3, None], pa.int64()), "t": ["a", "b", "c", "d"]})
        )
    (tmp_path / "e.partial").mkdir()
    (tmp_path / "e.partial" / "left_by_a_killed_run").touch()
    with pytest.raises(ValueError, match=r"'x': 1 nulls.*row group 1 of .*part_00000"):
        write_examples(tmp_path / "p", tmp_path / "e", progress=False)
    with pytest.raises(ValueError, match=r"'t': text has no fixed width"):
        write_prebatched(
            tmp_path / "p", tmp_path / "e", batch_size=2, columns=["t"], progress=False
        )
    with pytest.raises(ValueError, match=r"\['y'\] are not in the files"):
        write_examples(tmp_path / "p", tmp_path / "e", columns=["y"], progress=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p"]


def test_a_number_above_int64_is_refused(tmp_path):
    with ParquetSink(tmp_path / "p") as sink:
        sink.write(Chunk({"x": np.array([1, 2**63], np.uint64)}))
    with pytest.raises(ValueError, match="does not fit into int64"):
        write_examples(tmp_path / "p", tmp_path / "e", progress=False)


@pytest.mark.parametrize("name", ["rows_per_file", "limit_rows"])
def test_numbers_below_one_are_refused(name, tmp_path, parquet):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        write_examples(parquet, tmp_path / "e", **{name: 0})


def test_readers_refuse_what_is_not_there(tmp_path, examples, prebatched):
    with pytest.raises(FileNotFoundError, match="no TFRecord file"):
        parsed_batches(tmp_path / "nowhere", 8, SCHEMA)
    with pytest.raises(FileNotFoundError, match="was not written by write_examples"):
        prebatched_dataset(tmp_path / "nowhere", SCHEMA)
    with pytest.raises(ValueError, match="holds the form 'prebatched'"):
        parsed_batches(prebatched, 8, SCHEMA)
    with pytest.raises(ValueError, match="holds the form 'examples'"):
        prebatched_dataset(examples, SCHEMA)
    with pytest.raises(ValueError, match=r"lacks columns \['C9'\]"):
        native_dataset(examples, 8, Schema([*SCHEMA, Column("C9", "categorical")]))


def test_the_facts_are_plain_json(examples):
    assert json.loads((examples / "tfrecords.json").read_text())["form"] == "examples"
