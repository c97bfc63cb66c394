"""Readers of TFRecord files return exactly the rows of the Parquet files, as the loader does."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.tfrecords_rows import (
    SCALARS,
    SCHEMA,
    as_lists,
    assert_permuted,
    batch_sizes,
    gathered,
    strings,
)
from tfrecords import (
    check_records,
    native_dataset,
    parsed_batches,
    parsed_examples,
    prebatched_dataset,
    write_examples,
    write_prebatched,
)
from tutorlib.columns import Chunk
from tutorlib.loader import KerasSequenceLoader
from tutorlib.parquet import ParquetSink
from tutorlib.schema import Column, Schema


def parallel_examples(*arguments, **options):
    """Parse four records at a time."""
    return parsed_examples(*arguments, parallel_calls=4, **options)


READERS = (native_dataset, parsed_examples, parallel_examples, parsed_batches)


@pytest.fixture
def prebatched(tmp_path, parquet):
    write_prebatched(
        parquet, tmp_path / "prebatched", batch_size=128, batches_per_file=3, progress=False
    )
    return tmp_path / "prebatched"


@pytest.mark.parametrize("reader", READERS)
def test_examples_hold_the_rows_of_the_parquet_files_in_their_order(reader, examples, rows):
    read = gathered(reader(examples, 128, SCHEMA, shuffle=False))
    assert read == as_lists(rows)


def test_prebatched_records_hold_the_rows_of_the_parquet_files_in_their_order(prebatched, rows):
    read = gathered(prebatched_dataset(prebatched, SCHEMA))
    assert read == as_lists(rows)


@pytest.mark.parametrize("reader", READERS)
def test_shuffling_permutes_the_rows(reader, examples, rows):
    assert_permuted(gathered(reader(examples, 128, SCHEMA, seed=1)), rows)


@pytest.mark.parametrize("reader", READERS)
def test_the_seed_fixes_the_order(reader, examples):
    first, again, other = (gathered(reader(examples, 128, SCALARS, seed=s)) for s in (3, 3, 4))
    assert first == again != other


def test_batches_have_the_names_and_shapes_of_the_loader(examples, prebatched, parquet):
    loader = KerasSequenceLoader(parquet, 128, schema=SCHEMA, shuffle=False)
    inputs, label = loader.peek()
    for dataset in (
        *(reader(examples, 128, SCHEMA, shuffle=False) for reader in READERS),
        prebatched_dataset(prebatched, SCHEMA),
    ):
        read, read_label = next(iter(dataset))
        assert {n: t.shape for n, t in read.items()} == {n: t.shape for n, t in inputs.items()}
        kinds = {n: t.dtype.is_integer for n, t in read.items()}
        assert kinds == {n: t.dtype.is_integer for n, t in inputs.items()}
        assert read_label.shape == label.shape
        assert read_label.dtype == label.dtype
        assert batch_sizes(dataset) == [128] * 7 + [104]


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


def test_drop_last_drops_the_batch_that_is_not_full(examples):
    for reader in READERS:
        assert batch_sizes(reader(examples, 128, SCALARS, drop_last=True)) == [128] * 7


def test_several_labels_are_a_dict_and_a_weight_is_the_third_element(examples):
    schema = Schema(
        [
            SCHEMA["C1"],
            SCHEMA["label"],
            Column("genres", "categorical", multi_hot=True),
            Column("I1", "weight", "float32"),
        ]
    )
    two = Schema([SCHEMA["C1"], SCHEMA["label"], Column("I1", "label", "float32")])
    for reader in (parsed_batches, parsed_examples):
        inputs, label, weights = next(iter(reader(examples, 8, schema)))
        assert set(inputs) == {"C1", "genres__values", "genres__nnzs"}
        assert (label.shape, weights.shape) == ([8, 1], [8])
        _, labels = next(iter(reader(examples, 8, two)))
        assert set(labels) == {"label", "I1"}
    for unfit in (schema, two):
        with pytest.raises(ValueError, match="exactly one label and no weight"):
            native_dataset(examples, 8, unfit)


def test_strings_are_read_back(tmp_path):
    with ParquetSink(tmp_path / "p") as sink:
        sink.write(
            Chunk({"title": strings(["Alien", "", "Ärger"]), "label": np.ones(3, np.float32)})
        )
    write_examples(tmp_path / "p", tmp_path / "e", progress=False)
    schema = Schema([Column("title", "categorical", "string"), Column("label", "label", "float32")])
    inputs, _ = next(iter(parsed_batches(tmp_path / "e", 3, schema, shuffle=False)))
    assert [t.decode() for t in inputs["title"].numpy()[:, 0]] == ["Alien", "", "Ärger"]


def test_missing_files_other_forms_and_missing_columns_are_refused(tmp_path, examples, prebatched):
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


def test_damaged_and_forged_records_are_refused_with_file_and_byte(examples):
    assert check_records(examples) == 1000
    first, second, _ = sorted(examples.glob("*.tfrecord"))
    written = first.read_bytes()
    forged = (2**40).to_bytes(8, "little") + bytes.fromhex("aa3d6be4")  # its checksum is right
    for changed, match in (
        (written[:-1], "the record at byte .* should end at byte .*, but the file has"),
        (written[:20] + b"?" + written[21:], "corrupted record at 12. Write it again"),
        (forged + written[12:], "the record at byte 0 should end at byte 1099511627792"),
    ):
        first.write_bytes(changed)
        with pytest.raises(ValueError, match=rf"{first.name}: {match}"):
            check_records(examples)
        assert check_records(second) == 400


def test_an_unknown_option_is_refused(examples):
    for reader in READERS:
        with pytest.raises(TypeError, match="unexpected keyword argument 'window'"):
            reader(examples, 8, SCHEMA, window=10)
    with pytest.raises(ValueError, match="shuffle_buffer must be at least 1, got 0"):
        parsed_batches(examples, 8, SCHEMA, shuffle_buffer=0)
