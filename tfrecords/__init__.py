# ruff: noqa: F401 (these are the public names)
"""tf.data formats: Parquet rows written in three forms, and the readers that lessons compare.

- examples: TFRecord, a `tf.train.Example` per row. What most people have.
- prebatched: TFRecord, a record per batch that holds each column as raw bytes.
- raw: no records; each row has the same number of 4-byte cells, one per column.

A form is a folder with its files and their metadata (`tfrecords.json`). Every reader returns a
`tf.data.Dataset` of one epoch, with the batches of `KerasSequenceLoader`.

Example:
    >>> import tempfile
    >>> import numpy as np
    >>> from tutorlib import Chunk, Column, Schema
    >>> folder = tempfile.mkdtemp()
    >>> rows = Chunk({"x": np.arange(5), "y": np.ones(5, "float32")})
    >>> schema = Schema([Column("x", "categorical"), Column("y", "label", "float32")])
    >>> written = write_examples(rows, folder + "/examples")
    >>> [len(label) for _, label in parsed_batches(folder + "/examples", 2, schema)]
    [2, 2, 1]
    >>> written = write_prebatched(rows, folder + "/prebatched", batch_size=3)
    >>> [len(label) for _, label in prebatched_dataset(folder + "/prebatched", schema)]
    [3, 2]
    >>> written = write_raw(rows, folder + "/raw")
    >>> inputs, label = next(iter(raw_columns(folder + "/raw", 4, schema, shuffle=False)))
    >>> inputs["x"].numpy().tolist()
    [[0], [1], [2], [3]]
    >>> written.rows, written.nbytes
    (5, 40)
"""

from tfrecords.encoding import encode_examples
from tfrecords.metadata import METADATA_FILE, read_metadata
from tfrecords.readers import (
    ReadOptions,
    native_dataset,
    parsed_batches,
    prebatched_dataset,
    raw_columns,
)
from tfrecords.writers import (
    WriteOptions,
    Written,
    write_examples,
    write_prebatched,
    write_raw,
)
