"""Each form holds the rows of the Parquet files, and its readers give the batches of the loader."""

import json
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from tfrecords import (
    encode_examples,
    native_dataset,
    parsed_batches,
    prebatched_dataset,
    raw_columns,
    read_metadata,
    write_examples,
    write_prebatched,
    write_raw,
)
from tutorlib.columns import Chunk, Ragged, Strings
from tutorlib.parquet import ParquetSink, ParquetSource
from tutorlib.schema import Column, Schema

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


def some_rows(rows=ROWS):
    """Return rows of the columns of SCHEMA."""
    rng = np.random.default_rng(0)
    i1 = rng.normal(size=rows).astype(np.float32)
    label = rng.integers(0, 2, rows).astype(np.float32)
    c1 = rng.integers(0, 100_000, rows).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 6, rows))])
    genres = Ragged(rng.integers(0, 300, offsets[-1]), offsets)
    return Chunk({"I1": i1, "label": label, "C1": c1, "genres": genres})


def gathered(dataset):
    """Return all rows of a dataset in order, as {name: list}; a row of lists is a list."""
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


def as_lists(chunk):
    """Return the columns of a chunk as {name: list}."""
    return {name: column.tolist() for name, column in chunk.items()}


def assert_permuted(read, rows):
    """Assert that the gathered rows are the rows of a chunk, each once, in another order."""
    expected = as_lists(rows)
    assert read["I1"] != expected["I1"]
    order = [expected["I1"].index(value) for value in read["I1"]]
    assert sorted(order) == list(range(ROWS))
    assert read == {name: [column[i] for i in order] for name, column in expected.items()}


def batch_sizes(dataset):
    """Return the rows of each batch."""
    return [batch[1].shape[0] for batch in dataset]


def contents(folder):
    """Return {name: bytes} of the files in a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def rows():
    return some_rows()


@pytest.fixture
def parquet(tmp_path, rows):
    """The rows as a source of two files and four row groups."""
    with ParquetSink(tmp_path / "parquet", row_group_rows=300, rows_per_file=600) as sink:
        sink.write(rows)
    return ParquetSource(tmp_path / "parquet")


@pytest.fixture
def examples(tmp_path, parquet):
    write_examples(parquet, tmp_path / "examples", rows_per_file=400)
    return tmp_path / "examples"


WRITERS = {
    "examples": partial(write_examples, rows_per_file=400),
    "prebatched": partial(write_prebatched, batch_size=128, batches_per_file=3),
    "raw": partial(write_raw, columns=SCALARS.names),
}
READERS = {"native": native_dataset, "parsed": parsed_batches, "raw": raw_columns}
SCHEMAS = {"native": SCHEMA, "parsed": SCHEMA, "raw": SCALARS}
readers = pytest.mark.parametrize("reader", READERS)
forms = pytest.mark.parametrize("form", WRITERS)


@pytest.fixture
def written(tmp_path, parquet):
    """The rows in each form: {name of a reader or form: folder}."""
    folders = {name: tmp_path / name for name in WRITERS}
    for name, write in WRITERS.items():
        write(parquet, folders[name])
    return {**folders, "native": folders["examples"], "parsed": folders["examples"]}


@readers
def test_readers_give_the_rows_in_order_or_permuted_and_the_seed_decides(reader, written, rows):
    read, schema = partial(READERS[reader], written[reader], 128), SCHEMAS[reader]
    whole = rows.select([name for name in rows if name in schema.names])
    assert gathered(read(schema, shuffle=False)) == as_lists(whole)
    first, again, other = (gathered(read(schema, seed=seed)) for seed in (3, 3, 4))
    assert first == again != other
    assert_permuted(first, whole)
    assert batch_sizes(read(schema, drop_last=True)) == [128] * 7
    with pytest.raises(TypeError, match="unexpected keyword argument 'window'"):
        read(schema, window=10)


def test_prebatched_records_hold_the_rows_in_order_and_know_their_number(written, rows):
    dataset = prebatched_dataset(written["prebatched"], SCHEMA)
    assert gathered(dataset) == as_lists(rows)
    assert batch_sizes(dataset) == [128] * 7 + [104]
    assert len(dataset) == 8
    inputs, _ = next(iter(dataset))
    assert (inputs["C1"].dtype.name, inputs["genres__values"].dtype.name) == ("int32", "int64")


@pytest.mark.parametrize("batch_size", [7, ROWS, ROWS + 1])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_cell_is_read_with_any_batch_size(batch_size, shuffle, written):
    dataset = raw_columns(written["raw"], batch_size, SCALARS, shuffle=shuffle)
    rest = [ROWS % batch_size] if ROWS % batch_size else []
    assert batch_sizes(dataset) == [batch_size] * (ROWS // batch_size) + rest
    assert len(dataset) == len(batch_sizes(dataset))


@pytest.mark.parametrize("role", ["label", "weight"])
def test_a_second_label_and_weights_are_refused(role, written):
    schema = Schema([SCHEMA["C1"], SCHEMA["label"], Column("I1", role, "float32")])
    for name, read in READERS.items():
        with pytest.raises(ValueError, match="exactly one label and no weight"):
            read(written[name], 8, schema)


def test_cells_of_every_dtype_are_read_back(tmp_path):
    kinds = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
    columns = {kind: np.array([0, 1, 100], kind) for kind in kinds}
    columns |= {"negative": np.array([-1, -(2**31), 2**31 - 1]), "flag": np.array([1, 0, 1], bool)}
    columns |= {f"float{bits}": np.array([0.5, -1, 3], f"f{bits // 8}") for bits in (16, 32, 64)}
    label = {"label": np.zeros(3, np.float32)}
    write_raw(Chunk(columns | label), tmp_path / "raw")
    roles = {name: "continuous" if "float" in name else "categorical" for name in columns}
    schema = Schema(Column(name, role) for name, role in (roles | {"label": "label"}).items())
    parts = [inputs for inputs, _ in raw_columns(tmp_path / "raw", 2, schema, shuffle=False)]
    for name, values in columns.items():
        read = np.concatenate([part[name].numpy()[:, 0] for part in parts])
        assert read.dtype == (np.float32 if "float" in name else np.int32)
        assert np.array_equal(read, values)


@forms
def test_rows_in_memory_give_the_same_files(form, tmp_path, parquet, rows):
    for number, source in enumerate((parquet, rows, rows.to_arrow())):
        WRITERS[form](source, tmp_path / str(number), columns=["C1", "label"])
    assert contents(tmp_path / "0") == contents(tmp_path / "1") == contents(tmp_path / "2")
    with pytest.raises(TypeError, match="unexpected keyword argument 'limit'"):
        WRITERS[form](parquet, tmp_path / "folder", limit=10)


def test_files_have_the_rows_asked_for_and_the_metadata_says_so(tmp_path, parquet):
    options = {"rows_per_file": 400, "limit_rows": 900, "columns": ["C1", "label"]}
    made = write_examples(parquet, tmp_path / "e", **options)
    files = sorted((tmp_path / "e").glob("*.tfrecord"))
    schema = SCALARS.select(["C1", "label"])
    counts = [sum(1 for _ in parsed_batches(path, 1, schema)) for path in files]
    assert counts == [400, 400, 100]
    assert made[:3] == (3, 900, sum(path.stat().st_size for path in files))
    assert read_metadata(tmp_path / "e") == {
        "form": "examples", "columns": {"C1": ["int32", False], "label": ["float32", False]},
        "rows": 900, "files": 3, "nbytes": made.nbytes,
    }  # fmt: skip


def table_with_null(tmp_path):
    table = pa.table({"x": pa.array([1, 2, 3, None], pa.int64())})
    with ParquetSink(tmp_path / "p", row_group_rows=2) as sink:
        sink.write(table)
    return tmp_path / "p"


LISTS = Ragged(np.arange(2), np.array([0, 1, 2]))
REFUSED = [  # (writer, rows, options, what the error says)
    (write_examples, table_with_null, {}, r"'x': 1 nulls.*row group 1 of .*part_00000"),
    (write_examples, np.array([1, 2**63], np.uint64), {}, "does not fit into int64"),
    (write_examples, np.arange(2), {"rows_per_file": 0}, "rows_per_file must be at least 1, got 0"),
    (write_examples, np.arange(2), {"limit_rows": 0}, "limit_rows must be at least 1, got 0"),
    (write_examples, Strings.from_arrow(pa.array(["a"])), {}, "'x': these formats hold numbers"),
    (write_raw, LISTS, {}, "'x': lists have no fixed width"),
    (write_raw, np.array([1, 2**31]), {}, "'x': 2147483648 does not fit into int32"),
    (write_raw, np.array([-(2**31) - 1]), {}, "'x': -2147483649 does not fit into int32"),
]


@pytest.mark.parametrize(("write", "column", "options", "message"), REFUSED)
def test_rows_that_a_form_cannot_store_are_refused(write, column, options, message, tmp_path):
    source = column(tmp_path) if callable(column) else Chunk({"x": column})
    with pytest.raises(ValueError, match=message):
        write(source, tmp_path / "out", **options)
    assert not [path for path in tmp_path.iterdir() if path.name != "p"]


def test_a_folder_is_replaced_only_on_request(examples):
    before, row = (examples / "part_00000.tfrecord").read_bytes(), Chunk({"x": np.arange(1)})
    with pytest.raises(FileExistsError, match="Pass overwrite=True"):
        write_raw(row, examples)
    assert (examples / "part_00000.tfrecord").read_bytes() == before
    write_raw(row, examples, overwrite=True)
    assert read_metadata(examples)["form"] == "raw"


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda w: parsed_batches(w["raw"] / "nowhere", 8, SCHEMA), "no TFRecord file"),
        (lambda w: raw_columns(w["raw"] / "nowhere", 8, SCALARS), "was not written by"),
        (lambda w: parsed_batches(w["prebatched"], 8, SCHEMA), "holds the form 'prebatched'"),
        (lambda w: raw_columns(w["examples"], 8, SCALARS), "the form 'examples', not 'raw'"),
        (lambda w: raw_columns(w["raw"], 8, SCHEMA), r"lacks columns \['genres'\]"),
        (lambda w: raw_columns(w["raw"], 0, SCALARS), "batch_size must be at least 1, got 0"),
        (lambda w: parsed_batches(w["examples"], 8, SCHEMA, shuffle_buffer=0), "shuffle_buffer"),
    ],
)
def test_folders_and_options_that_do_not_fit_are_refused(read, message, written):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read(written)


def test_files_that_were_changed_are_refused_by_name(written):
    cells = written["raw"] / "cells.bin"
    cells.write_bytes(cells.read_bytes()[:-12])
    with pytest.raises(ValueError, match=r"11988 bytes, but 1000 rows of 3 cells are 12000"):
        raw_columns(written["raw"], 8, SCALARS)
    path = written["raw"] / "tfrecords.json"
    for text in (path.read_text().replace("1000", "1001"), "[" * 10**5, "[1]", json.dumps({})):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"tfrecords\.json was changed"):
            read_metadata(written["raw"])


# ---- encoding: the bytes that protobuf writes ----------------------------------------------------


def by_protobuf(chunk):
    """Serialize the rows one by one with TensorFlow's own classes: the oracle."""
    import tensorflow as tf

    columns = {name: column.tolist() for name, column in chunk.items()}
    records = []
    for row in range(chunk.num_rows):
        example = tf.train.Example()
        for name, values in columns.items():
            flat = values[row] if isinstance(values[row], list) else [values[row]]
            kind = "float_list" if "float" in name else "int64_list"
            getattr(example.features.feature[name], kind).value.extend(flat)
        records.append(example.SerializeToString(deterministic=True))
    return records


def test_an_encoded_row_has_the_bytes_that_protobuf_writes():
    edges = np.array([0, 1, 127, 128, 16_383, 16_384, 2**31, 2**63 - 1, -1, -(2**63)])
    n = len(edges)
    rng = np.random.default_rng(1)
    chunk = Chunk(
        {
            "edges": edges,
            "small": np.arange(n, dtype=np.int8),
            "unsigned": np.arange(n, dtype=np.uint32),
            "flags": np.arange(n) % 2 == 0,
            "float32": rng.normal(size=n).astype(np.float32),
            "float64": rng.normal(size=n).astype(np.float32).astype(np.float64),
            "float with a long name " + "and longer " * 20: np.zeros(n, np.float32),
            "int64_list": Ragged(
                np.arange(500), np.array([0, 0, 1, 3, 3, 200, 201, 250, 500, 500, 500])
            ),
            "float_list": Ragged(
                rng.normal(size=n).astype(np.float32), np.array([0] + [5] * (n - 1) + [n])
            ),
        }
    )  # fmt: skip
    assert list(encode_examples(chunk)) == by_protobuf(
        Chunk({**chunk, "flags": chunk["flags"].astype(np.int64)})
    )


def test_empty_lists_and_chunks_without_rows_are_encoded():
    nothing = Ragged(np.zeros(0, np.int64), np.zeros(4, np.int64))
    chunk = Chunk({"int64_list": nothing, "a": np.arange(3)})
    assert list(encode_examples(chunk)) == by_protobuf(chunk)
    assert list(encode_examples(chunk.slice(1, 1))) == []
