"""tf.data formats: Parquet rows written in four forms, and the readers that lessons compare.

- examples: TFRecord, a `tf.train.Example` per row. What most people have.
- prebatched: TFRecord, a record per batch that holds each column as raw bytes.
- raw: no records; each row has the same number of 4-byte cells, one per column.
- raw_batches: the same cells, batch after batch, and column after column within a batch.

A form is a folder with its files and their metadata (`tfrecords.json`). Every reader returns the
batches of `KerasSequenceLoader`.
"""

from tfrecords.encoding import encode_examples
from tfrecords.metadata import METADATA_FILE, read_metadata
from tfrecords.raw_readers import raw_batches, raw_columns, raw_stacked
from tfrecords.readers import (
    ReadOptions,
    native_dataset,
    parsed_batches,
    parsed_examples,
    prebatched_dataset,
)
from tfrecords.writers import (
    WriteOptions,
    Written,
    write_examples,
    write_prebatched,
    write_raw,
    write_raw_batches,
)

__all__ = [
    "METADATA_FILE",
    "ReadOptions",
    "WriteOptions",
    "Written",
    "encode_examples",
    "native_dataset",
    "parsed_batches",
    "parsed_examples",
    "prebatched_dataset",
    "raw_batches",
    "raw_columns",
    "raw_stacked",
    "read_metadata",
    "write_examples",
    "write_prebatched",
    "write_raw",
    "write_raw_batches",
]
