"""Encoding: rows and batches have exactly the bytes that protobuf writes."""

from __future__ import annotations

import numpy as np

from tests.support.tfrecords_rows import strings
from tfrecords import encode_examples
from tutorlib.columns import Chunk, Ragged


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


def test_an_encoded_row_has_the_bytes_that_protobuf_writes():
    edges = np.array([0, 1, 127, 128, 16_383, 16_384, 2**31, 2**63 - 1, -1, -(2**63)])
    n = len(edges)
    rng = np.random.default_rng(1)
    letters = strings(["", "a", "ä" * 70, "x" * 200] + ["name"] * (n - 4))
    tags = strings([f"tag {i}" for i in range(30)])
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


def test_empty_lists_and_chunks_without_rows_are_encoded():
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
