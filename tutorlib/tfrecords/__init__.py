"""Parquet rows in the formats that tf.data reads, and the readers that the lessons compare.

Four forms, each a folder with its files and a small JSON of facts beside them:

- examples: a `tf.train.Example` a row, TFRecord. What most people have.
- prebatched: a batch a record, each column as its raw bytes, TFRecord.
- raw: no records at all: each row the same number of 4-byte cells, one for each column.
- raw_batches: the same cells, batch by batch, and in a batch column by column.

All readers give the batches of `KerasSequenceLoader`. Rooms: `wire` and `encoding` make bytes,
`writing` and `writers` files, `metadata` says what is in a folder, `batches`, `readers` and
`raw_readers` make datasets. Does not belong here: preprocessing, measuring.
"""

from tutorlib.tfrecords.encoding import encode_examples
from tutorlib.tfrecords.metadata import ENDING, METADATA_FILE, read_metadata
from tutorlib.tfrecords.raw_readers import raw_batches, raw_columns, raw_stacked
from tutorlib.tfrecords.readers import (
    ReadOptions,
    native_dataset,
    parsed_batches,
    parsed_examples,
    prebatched_dataset,
)
from tutorlib.tfrecords.writers import (
    write_examples,
    write_prebatched,
    write_raw,
    write_raw_batches,
)
from tutorlib.tfrecords.writing import WriteOptions, Written

__all__ = [
    "ENDING",
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
