"""TFRecord: the format most TensorFlow pipelines read, written from Parquet, and its readers.

Two forms of record: one `tf.train.Example` a row, which is what people have; and one record a
batch, each column as its raw bytes, which is what they would have if they knew. The readers are
the pipelines that the lessons and benchmarks compare the loader with; they give the batches of
`KerasSequenceLoader(batch_layout="columns")`. Does not belong here: preprocessing, measuring.
"""

from __future__ import annotations

import glob
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tutorlib.chunk import Chunk, Masked, Ragged, Strings
from tutorlib.files import remove, replace
from tutorlib.parquet import ParquetError, ParquetSource
from tutorlib.schema import Column, Schema

FACTS_FILE = "tfrecords.json"
ENDING = ".tfrecord"
BLOCK_ROWS = 4096  # rows encoded at a time: about 3 MB for 40 columns, which stays in the cache
BLOCK_BYTES = 1 << 25  # of a block, at most: rows with long lists come in smaller blocks

# Wire format: tag = field number * 8 + wire type; all fields here are length-delimited (type 2).
_FIELD_1, _FIELD_2, _FIELD_3 = b"\x0a", b"\x12", b"\x1a"


class Written(NamedTuple):
    """What a writer wrote.

    Args:
        files: number of TFRecord files.
        rows: rows in them.
        nbytes: bytes of all files.
        elapsed_s: seconds it took.
    """

    files: int
    rows: int
    nbytes: int
    elapsed_s: float


# ---- writing ------------------------------------------------------------------------------------


def write_examples(
    source: Any,
    folder: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    rows_per_file: int = 262_144,
    limit_rows: int | None = None,
    overwrite: bool = False,
    progress: bool = True,
) -> Written:
    """Write the rows of Parquet files as TFRecord files, one `tf.train.Example` a row, in order.

    Integers become int64 lists, floating point float32 lists, text bytes lists; a scalar is a list
    of one. Rows are encoded thousands at a time: about 100 thousand rows/s of 40 columns on one
    core, eight times as fast as building one protobuf object a row. The folder appears when it is
    whole; `FOLDER.partial` is removed if anything fails.

    Args:
        source: `ParquetSource`, or what it takes: file, folder, glob, list.
        folder: where the files go, `part_00000.tfrecord` and so on.
        columns: names of the columns to write; None for all.
        rows_per_file: rows of a file, the last one has fewer.
        limit_rows: write only the first so many rows.
        overwrite: whether a folder that an earlier call wrote may be replaced.
        progress: show a progress bar, if tqdm is installed.

    Returns:
        `Written(files, rows, nbytes, elapsed_s)`.

    Raises:
        FileExistsError: if the folder is there and `overwrite` is False, or it was not written by
            this module.
        ValueError: if a column has nulls or an integer above int64, naming where.

    Example:
        >>> import tempfile
        >>> from tutorlib.parquet import ParquetSink
        >>> folder = tempfile.mkdtemp()
        >>> with ParquetSink(folder + "/parquet") as sink:
        ...     sink.write(Chunk({"C1": np.arange(5), "label": np.ones(5, "float32")}))
        >>> write_examples(folder + "/parquet", folder + "/examples", progress=False).rows
        5

    Source: the protocol buffer encoding, protobuf.dev/programming-guides/encoding, and
    tensorflow/core/example/{example,feature}.proto.
    """
    source = _as_source(source)
    _positive(rows_per_file=rows_per_file, limit_rows=limit_rows)
    with _Writer("examples", source, folder, columns, limit_rows, overwrite, progress) as writer:
        room = rows_per_file
        for chunk in writer.chunks():
            start = 0
            while start < chunk.num_rows:
                if room == rows_per_file:
                    writer.next_file()
                stop = min(start + room, start + BLOCK_ROWS, chunk.num_rows)
                writer.write(encode_examples(chunk.slice(start, stop)), stop - start)
                room = room - (stop - start) or rows_per_file
                start = stop
    return writer.written


def write_prebatched(
    source: Any,
    folder: str | os.PathLike[str],
    *,
    batch_size: int,
    columns: Sequence[str] | None = None,
    batches_per_file: int = 64,
    limit_rows: int | None = None,
    overwrite: bool = False,
    progress: bool = True,
) -> Written:
    """Write the rows of Parquet files as TFRecord files, one record a batch, in order.

    A record is a `tf.train.Example` in which each column is one bytes value: the numbers of the
    batch as they lie in memory (int32, int64 or float32, little-endian). Reading it is a copy, no
    parsing: tens of times as fast as an example a row. The price: batch size and the company that
    a row keeps in its batch are fixed when the files are written.

    A multi-hot column g is stored as `g__values` and `g__nnzs` (int32).

    Args:
        source: `ParquetSource`, or what it takes: file, folder, glob, list.
        folder: where the files go, `part_00000.tfrecord` and so on.
        batch_size: rows of a record; the last one has fewer.
        columns: names of the columns to write; None for all.
        batches_per_file: records of a file.
        limit_rows: write only the first so many rows.
        overwrite: whether a folder that an earlier call wrote may be replaced.
        progress: show a progress bar, if tqdm is installed.

    Returns:
        `Written(files, rows, nbytes, elapsed_s)`.

    Raises:
        FileExistsError: if the folder is there and `overwrite` is False, or it was not written by
            this module.
        ValueError: if a column is text or has nulls.

    Example:
        >>> import tempfile
        >>> from tutorlib.parquet import ParquetSink
        >>> folder = tempfile.mkdtemp()
        >>> with ParquetSink(folder + "/parquet") as sink:
        ...     sink.write(Chunk({"C1": np.arange(5), "label": np.ones(5, "float32")}))
        >>> target = folder + "/prebatched"
        >>> write_prebatched(folder + "/parquet", target, batch_size=2, progress=False).rows
        5
    """
    source = _as_source(source)
    _positive(batch_size=batch_size, batches_per_file=batches_per_file, limit_rows=limit_rows)
    facts = {"batch_size": batch_size}
    with _Writer(
        "prebatched", source, folder, columns, limit_rows, overwrite, progress, facts
    ) as writer:
        for number, chunk in enumerate(writer.chunks(rows=batch_size)):
            if number % batches_per_file == 0:
                writer.next_file()
            writer.write([_encode_batch(chunk)], chunk.num_rows)
    return writer.written


class _Writer:
    """Numbered TFRecord files in a folder that appears whole, with its facts, or not at all."""

    def __init__(
        self,
        form: str,
        source: ParquetSource,
        folder: str | os.PathLike[str],
        columns: Sequence[str] | None,
        limit_rows: int | None,
        overwrite: bool,
        progress: bool,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = Path(folder)
        self._check_target(overwrite)
        self._source = source
        self._columns = list(source.column_types if columns is None else columns)
        missing = [name for name in self._columns if name not in source.column_types]
        if missing:
            raise ValueError(
                f"columns {missing} are not in the files, which have {list(source.column_types)}"
            )
        types = {name: list(source.column_types[name]) for name in self._columns}
        self._facts = {"form": form, **(facts or {}), "columns": types}
        self._rows = min(source.num_rows, limit_rows or source.num_rows)
        self._partial = self.folder.with_name(self.folder.name + ".partial")
        self._bar = _progress_bar(self._rows, self.folder.name) if progress else None
        self._files = self._done = 0
        self._file: Any = None

    def _check_target(self, overwrite: bool) -> None:
        if not self.folder.exists():
            return
        if not overwrite:
            raise FileExistsError(
                f"{self.folder} is there already; pass overwrite=True to replace it"
            )
        if not (self.folder / FACTS_FILE).is_file():
            raise FileExistsError(
                f"{self.folder} was not written by tutorlib.tfrecords (it has no {FACTS_FILE}), so "
                "it is not replaced; choose another folder or remove it yourself"
            )

    def __enter__(self) -> _Writer:
        remove(self._partial)
        self._partial.mkdir(parents=True)
        self._started = time.perf_counter()
        return self

    def chunks(self, rows: int | None = None) -> Iterator[Chunk]:
        """Yield the rows to write, in order: a chunk a row group, or chunks of `rows` rows."""
        left = self._rows
        for position, chunk in enumerate(self._source.chunks(self._columns, rows=rows)):
            chunk = chunk if chunk.num_rows <= left else chunk.slice(0, left)
            try:
                _check_columns(chunk, self._facts["form"])
            except ValueError as error:
                where = self._source.place(position) if rows is None else f"batch {position}"
                raise ParquetError(f"{error} (in {where})") from error
            yield chunk
            left -= chunk.num_rows
            if not left:
                return

    def next_file(self) -> None:
        """Close the file that is open and open the next one."""
        import tensorflow as tf

        if self._file is not None:
            self._file.close()
        self._file = tf.io.TFRecordWriter(str(self._partial / f"part_{self._files:05d}{ENDING}"))
        self._files += 1

    def write(self, records: Sequence[bytes] | Iterator[bytes], rows: int) -> None:
        """Append records, which hold `rows` rows together."""
        write = self._file.write
        for record in records:
            write(record)
        self._done += rows
        if self._bar is not None:
            self._bar.update(rows)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if self._file is not None:
                self._file.close()
            if self._bar is not None:
                self._bar.close()
            if error is None:
                self._finish()
        finally:
            remove(self._partial)

    def _finish(self) -> None:
        nbytes = sum(path.stat().st_size for path in self._partial.iterdir())
        self._facts.update(rows=self._done, files=self._files, nbytes=nbytes)
        text = json.dumps(self._facts, indent=1)
        (self._partial / FACTS_FILE).write_text(text, encoding="utf-8")
        replace(self.folder, self._partial)
        elapsed_s = time.perf_counter() - self._started
        self.written = Written(self._files, self._done, nbytes, elapsed_s)


def _as_source(source: Any) -> ParquetSource:
    return source if isinstance(source, ParquetSource) else ParquetSource(source)


def _positive(**values: int | None) -> None:
    for name, value in values.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


def _progress_bar(rows: int, name: str) -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm(total=rows, desc=name, unit=" rows", unit_scale=True)


def _check_columns(chunk: Chunk, form: str) -> None:
    for name, column in chunk.items():
        values = column.values if isinstance(column, Ragged) else column
        if isinstance(values, Masked):
            raise ValueError(
                f"column {name!r}: {int((~values.valid).sum())} nulls, and a record has no place "
                "for them. Fill them first (FillMissing or Categorify in a Workflow)."
            )
        if isinstance(values, Strings):
            if form == "prebatched":
                raise ValueError(
                    f"column {name!r}: text has no fixed width. Turn it into ids first (Categorify "
                    "or HashBucket in a Workflow), or use write_examples."
                )
        elif values.dtype == np.uint64 and len(values) and values.max() >= 2**63:
            raise ValueError(f"column {name!r}: {values.max()} does not fit into int64")


# ---- encoding -----------------------------------------------------------------------------------


def encode_examples(chunk: Chunk) -> Iterator[bytes]:
    """Yield each row as a serialized `tf.train.Example`, features in the order of their names.

    All rows have the same features, so a row is a template in which only numbers and a few lengths
    differ: it is filled for all rows at once as a matrix of bytes with a mask of those that count.
    Parsed, it equals what `Example.SerializeToString` would have written; the order of the features
    in the bytes, which has no meaning, may differ.

    Args:
        chunk: rows; no nulls. A column is an array, `Strings`, or `Ragged` of these.

    Returns:
        Iterator of `chunk.num_rows` bytes objects.

    Example:
        >>> next(encode_examples(Chunk({"a": np.array([300])}))).hex(" ")
        '0a 0d 0a 0b 0a 01 61 12 06 1a 04 0a 02 ac 02'

    Source: protobuf.dev/programming-guides/encoding.
    """
    rows = chunk.num_rows
    if rows > 1 and rows * sum(_row_bytes(column) for column in chunk.values()) > BLOCK_BYTES:
        for part in (chunk.slice(0, rows // 2), chunk.slice(rows // 2, rows)):
            yield from encode_examples(part)
        return
    features = _Template(rows)
    for name in sorted(chunk, key=str.encode):
        key = _Template(rows).constant(name.encode()).nested(_FIELD_1)
        value = _feature(chunk[name]).nested(_FIELD_2)
        features.extend(key.extend(value).nested(_FIELD_1))
    flat, ends = features.nested(_FIELD_1).bytes()
    data, start = flat.tobytes(), 0
    for end in ends.tolist():
        yield data[start:end]
        start = end


def _row_bytes(column: Any) -> int:
    """Return an upper limit for the bytes of one row of a column, without its name."""
    if isinstance(column, Ragged):
        return _row_bytes(column.values) * int(np.diff(column.offsets).max(initial=0)) + 16
    if isinstance(column, Strings):
        return int(np.diff(column.offsets).max(initial=0)) + 10
    return 16


class _Template:
    """Messages of the same build, one a row: constant bytes, and matrices of bytes with masks.

    Attributes:
        rows: number of messages.
        parts: bytes, or (uint8 [rows, width], bool [rows, width] of the bytes that count, or None
            if all do).
        length: bytes of each message: an int if all are equal, else int64 [rows].
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.parts: list[Any] = []
        self.length: Any = 0

    def constant(self, data: bytes) -> _Template:
        """Append the same bytes to all messages; returns self."""
        if self.parts and isinstance(self.parts[-1], bytes):
            self.parts[-1] += data
        else:
            self.parts.append(data)
        self.length = self.length + len(data)
        return self

    def varying(self, data: np.ndarray, counts: np.ndarray | None, length: Any) -> _Template:
        """Append a matrix of bytes, of which `length` a row count; returns self."""
        self.parts.append((data, counts))
        self.length = self.length + length
        return self

    def extend(self, other: _Template) -> _Template:
        """Append the parts of another template; returns self."""
        length = self.length + other.length
        for part in other.parts:
            self.constant(part) if isinstance(part, bytes) else self.varying(*part, 0)
        self.length = length
        return self

    def nested(self, tag: bytes, *, unless_empty: bool = False) -> _Template:
        """Return the messages as a field: tag, length, message.

        Args:
            tag: of the field.
            unless_empty: leave out tag and length of an empty message, as packed lists do.
        """
        outer = _Template(self.rows)
        if isinstance(self.length, int):
            there = self.length or not unless_empty
            return outer.constant(tag + _varint(self.length)).extend(self) if there else outer
        empty = self.length == 0
        digits, counts, lengths = _varints(self.length)
        if not unless_empty or not empty.any():
            return outer.constant(tag).varying(digits, counts, lengths).extend(self)
        header = np.concatenate([np.full((self.rows, 1), tag[0], np.uint8), digits], axis=1)
        counts = np.ones_like(digits, bool) if counts is None else counts
        counts = np.concatenate([np.ones((self.rows, 1), bool), counts], axis=1)
        counts[empty] = False
        return outer.varying(header, counts, np.where(empty, 0, 1 + lengths)).extend(self)

    def bytes(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (uint8: all messages one after the other, int64 [rows]: where each one ends)."""
        row = b"".join(p if isinstance(p, bytes) else bytes(p[0].shape[1]) for p in self.parts)
        data = np.empty((self.rows, len(row)), np.uint8)
        data[:] = np.frombuffer(row, np.uint8)
        counts = np.ones(data.shape, bool)
        start = 0
        for part in self.parts:
            if isinstance(part, bytes):
                start += len(part)
                continue
            stop = start + part[0].shape[1]
            data[:, start:stop] = part[0]
            if part[1] is not None:
                counts[:, start:stop] = part[1]
            start = stop
        ends = np.cumsum(np.broadcast_to(self.length, self.rows))
        return data[counts], ends


def _feature(column: Any) -> _Template:
    """Return the `Feature` messages of a column: a bytes, float or int64 list a row."""
    values = column.values if isinstance(column, Ragged) else column
    elements, field, packed = _elements(values)
    if isinstance(column, Ragged):
        flat, ends = elements.bytes()
        starts = np.concatenate([[0], ends])[column.offsets]
        elements = _padded(flat, starts)
    if packed:
        elements = elements.nested(_FIELD_1, unless_empty=True)
    return elements.nested(field)


def _elements(values: Any) -> tuple[_Template, bytes, bool]:
    """Return (one element a row, tag of its kind of list, whether elements are packed)."""
    if isinstance(values, Strings):
        return _padded(values.data, values.offsets).nested(_FIELD_1), _FIELD_1, False
    template = _Template(len(values))
    if values.dtype.kind == "f":
        raw = np.ascontiguousarray(values, "<f4").view(np.uint8).reshape(-1, 4)
        return template.varying(raw, None, 4), _FIELD_2, True
    return template.varying(*_varints(values)), _FIELD_3, True


def _padded(flat: np.ndarray, offsets: np.ndarray) -> _Template:
    """Return flat[offsets[i]:offsets[i + 1]] as message i."""
    lengths = np.diff(offsets)
    width = int(lengths.max(initial=0))
    positions = np.arange(width)
    data = np.zeros((len(lengths), width), np.uint8)
    counts = positions < lengths[:, None]
    data[counts] = flat[offsets[0] : offsets[-1]]
    return _Template(len(lengths)).varying(data, counts, lengths)


def _varint(number: int) -> bytes:
    digits, counts, _ = _varints(np.array([number]))
    return digits.tobytes() if counts is None else digits[counts].tobytes()


def _varints(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray | None, Any]:
    """Return integers in base 128, lowest digit first, the top bit set on all but the last digit.

    A negative number counts as its 64-bit two's complement: ten digits.

    Args:
        numbers: integers or bool [n].

    Returns:
        (uint8 [n, width], bool [n, width] of the digits that count or None for all, int64 [n] or
        int of how many these are).
    """
    rest = np.asarray(numbers).astype(np.int64).view(np.uint64)
    largest = int(rest.max(initial=0))
    if largest < 128:
        return rest.astype(np.uint8)[:, None], None, 1
    if largest < 2**32:
        rest = rest.astype(np.uint32)  # half the bytes to move
    width = -(-largest.bit_length() // 7)
    digits = np.empty((width, len(rest)), np.uint8)
    counts = np.ones((width, len(rest)), bool)
    for position in range(width):
        if position:
            np.not_equal(rest, 0, out=counts[position])
            digits[position - 1] |= counts[position].view(np.uint8) << 7
        digits[position] = rest & rest.dtype.type(0x7F)
        rest = rest >> rest.dtype.type(7)
    return digits.T, counts.T, counts.sum(axis=0)


def _encode_batch(chunk: Chunk) -> bytes:
    import tensorflow as tf

    example = tf.train.Example()
    for name, column in chunk.items():
        parts = {name: column}
        if isinstance(column, Ragged):
            nnzs = np.diff(column.offsets).astype(np.int32)
            parts = {f"{name}__values": column.values, f"{name}__nnzs": nnzs}
        for key, array in parts.items():
            raw = np.ascontiguousarray(array, _stored_dtype(array.dtype)).tobytes()
            example.features.feature[key].bytes_list.value.append(raw)
    return example.SerializeToString(deterministic=True)


def _stored_dtype(dtype: Any) -> np.dtype:
    """Return the dtype of a column in a prebatched record: int32, int64 or float32."""
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        return np.dtype("<f4")
    return np.dtype("<i4" if dtype.itemsize < 4 or dtype == np.int32 else "<i8")


# ---- reading ------------------------------------------------------------------------------------


def native_dataset(
    files: Any,
    batch_size: int,
    schema: Schema,
    *,
    shuffle: bool = True,
    shuffle_buffer: int = 10_000,
    seed: int | None = None,
    drop_last: bool = False,
) -> Any:
    """Return the pipeline of TensorFlow's guides: `make_batched_features_dataset`.

    It is the baseline, called as people call it, with its own defaults: files in random order, one
    reader thread, rows shuffled within a window of `shuffle_buffer` rows.

    Args:
        files: folder that `write_examples` wrote, a TFRecord file, a glob pattern, or a list.
        batch_size: rows of a batch.
        schema: what to read; exactly one label and no weight.
        shuffle: whether files and rows come in random order.
        shuffle_buffer: rows of the window in which they are shuffled.
        seed: for the order; None for another one each time.
        drop_last: leave out the last batch where it is not full.

    Returns:
        `tf.data.Dataset` of one epoch of (inputs, label): {name: int64 or float32 [batch, 1]}, and
        int64 or float32 [batch, 1]. A multi-hot column g comes as `g__values` [nnz, 1] and
        `g__nnzs` int32 [batch, 1].

    Raises:
        FileNotFoundError: if no file is there.
        ValueError: if the schema has not exactly one label, or a weight, or columns that the
            folder does not have.

    Example:
        >>> import tempfile
        >>> from tutorlib.parquet import ParquetSink
        >>> folder = tempfile.mkdtemp()
        >>> with ParquetSink(folder + "/parquet") as sink:
        ...     sink.write(Chunk({"C1": np.arange(5), "label": np.ones(5, "float32")}))
        >>> _ = write_examples(folder + "/parquet", folder + "/examples", progress=False)
        >>> schema = Schema.from_parquet(ParquetSource(folder + "/parquet"), label_names=["label"])
        >>> inputs, label = next(iter(native_dataset(folder + "/examples", 4, schema)))
        >>> inputs["C1"].shape, label.shape
        (TensorShape([4, 1]), TensorShape([4, 1]))

    Source: tensorflow.org/api_docs/python/tf/data/experimental/make_batched_features_dataset.
    """
    import tensorflow as tf

    labels = schema.labels.names
    if len(labels) != 1 or schema.with_role("weight").names:
        raise ValueError(
            "make_batched_features_dataset knows exactly one label and no weight; the schema has "
            f"labels {labels}, weights {schema.with_role('weight').names}. Use parsed_batches."
        )
    dataset = tf.data.experimental.make_batched_features_dataset(
        _record_files(files, "examples", schema),
        batch_size,
        _parsing_features(schema),
        reader=tf.data.TFRecordDataset,
        label_key=labels[0],
        num_epochs=1,
        shuffle=shuffle,
        shuffle_buffer_size=shuffle_buffer,
        shuffle_seed=seed,
        prefetch_buffer_size=tf.data.AUTOTUNE,
        drop_final_batch=drop_last,
    )
    if not any(column.multi_hot for column in schema):
        return dataset
    return dataset.map(lambda features, label: (_inputs(features, schema), label))


def parsed_batches(
    files: Any,
    batch_size: int,
    schema: Schema,
    *,
    shuffle: bool = True,
    shuffle_buffer: int = 10_000,
    seed: int | None = None,
    drop_last: bool = False,
) -> Any:
    """Return the same batches by hand: records shuffled, batched, then parsed a batch at a time.

    One `tf.io.parse_example` a batch, on all cores (`num_parallel_calls=AUTOTUNE`), files read in
    parallel where the order is random anyway.

    Args:
        files: folder that `write_examples` wrote, a TFRecord file, a glob pattern, or a list.
        batch_size: rows of a batch.
        schema: what to read.
        shuffle: whether files and rows come in random order.
        shuffle_buffer: rows of the window in which they are shuffled.
        seed: for the order; None for another one each time.
        drop_last: leave out the last batch where it is not full.

    Returns:
        `tf.data.Dataset` of one epoch of (inputs, labels) or (inputs, labels, weights), as
        `native_dataset`; labels are a dict where the schema has several, weights are [batch].

    Raises:
        FileNotFoundError: if no file is there.
        ValueError: if the schema has columns that the folder does not have.

    Example:
        >>> for inputs, label in parsed_batches("data/examples", 65_536, schema):  # doctest: +SKIP
        ...     print(inputs["C1"].shape)
    """
    import tensorflow as tf

    paths = _record_files(files, "examples", schema)
    if shuffle:
        names = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths), seed=seed)
        parallel = None if seed is not None else tf.data.AUTOTUNE
        records = tf.data.TFRecordDataset(names, num_parallel_reads=parallel)
        records = records.shuffle(shuffle_buffer, seed=seed)
    else:
        records = tf.data.TFRecordDataset(paths)
    features = _parsing_features(schema)
    batches = records.batch(batch_size, drop_remainder=drop_last).map(
        lambda rows: _batch(tf.io.parse_example(rows, features), schema),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    return batches.prefetch(tf.data.AUTOTUNE)


def prebatched_dataset(folder: str | os.PathLike[str], schema: Schema) -> Any:
    """Return the batches that `write_prebatched` wrote, in the order in which it wrote them.

    Args:
        folder: folder that `write_prebatched` wrote.
        schema: what to read; other columns are not decoded.

    Returns:
        `tf.data.Dataset` of (inputs, labels) or (inputs, labels, weights), as `parsed_batches`,
        with integers as wide as they were in the Parquet files (int32 or int64). Its cardinality
        is known.

    Raises:
        FileNotFoundError: if the folder is not there or was not written by this module.
        ValueError: if it holds examples, or lacks columns of the schema.

    Example:
        >>> for inputs, label in prebatched_dataset("data/prebatched", schema):  # doctest: +SKIP
        ...     print(inputs["C1"].shape)
    """
    import tensorflow as tf

    paths = _record_files(folder, "prebatched", schema)
    facts = read_facts(folder)
    dtypes: dict[str, tf.DType] = {}
    for column in schema:
        stored = tf.as_dtype(_stored_dtype(facts["columns"][column.name][0]))
        if column.multi_hot:
            dtypes |= {f"{column.name}__values": stored, f"{column.name}__nnzs": tf.int32}
        else:
            dtypes[column.name] = stored
    features = {key: tf.io.FixedLenFeature([], tf.string) for key in dtypes}

    def decode(record: Any) -> Any:
        raw = tf.io.parse_single_example(record, features)
        flat = {key: tf.io.decode_raw(raw[key], dtype) for key, dtype in dtypes.items()}
        return _batch({key: values[:, None] for key, values in flat.items()}, schema)

    batches = tf.data.TFRecordDataset(paths).map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    steps = -(-facts["rows"] // facts["batch_size"])
    counted = batches.apply(tf.data.experimental.assert_cardinality(steps))
    return counted.prefetch(tf.data.AUTOTUNE)


def read_facts(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a folder of this module holds: form, rows, files, nbytes, columns, batch_size.

    Raises:
        FileNotFoundError: if the folder is not there or was not written by this module.
    """
    path = Path(folder) / FACTS_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not there: {folder} was not written by write_examples or write_prebatched"
        )
    return json.loads(path.read_text(encoding="utf-8"))


def _record_files(files: Any, form: str, schema: Schema) -> list[str]:
    """Return the TFRecord files that `files` means, checked against the schema if a folder."""
    if isinstance(files, (str, os.PathLike)) and os.path.isdir(files):
        facts = read_facts(files)
        if facts["form"] != form:
            raise ValueError(f"{files} holds the form {facts['form']!r}, not {form!r}")
        missing = [name for name in schema.names if name not in facts["columns"]]
        if missing:
            raise ValueError(f"{files} lacks columns {missing}; it has {list(facts['columns'])}")
        return sorted(str(path) for path in Path(files).glob(f"*{ENDING}"))
    if form == "prebatched":
        read_facts(files)
    patterns = [files] if isinstance(files, (str, os.PathLike)) else list(files)
    found = [path for item in patterns for path in sorted(glob.glob(os.fspath(item)))]
    if not found:
        raise FileNotFoundError(f"no TFRecord file at {files!r}")
    return found


def _parsing_features(schema: Schema) -> dict[str, Any]:
    import tensorflow as tf

    def feature(column: Column) -> Any:
        dtype = tf.int64
        if column.dtype == "string":
            dtype = tf.string
        elif np.dtype(column.dtype).kind == "f":
            dtype = tf.float32
        if column.multi_hot:
            return tf.io.RaggedFeature(dtype, row_splits_dtype=tf.int32)
        return tf.io.FixedLenFeature([1], dtype)

    return {column.name: feature(column) for column in schema}


def _inputs(features: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Return the inputs of a batch: lists as values and nnzs, everything else as it came."""
    inputs = {}
    for column in schema.features:
        values, nnzs = f"{column.name}__values", f"{column.name}__nnzs"
        if not column.multi_hot:
            inputs[column.name] = features[column.name]
        elif values in features:
            inputs |= {values: features[values], nnzs: features[nnzs]}
        else:
            ragged = features[column.name]
            inputs |= {values: ragged.values[:, None], nnzs: ragged.row_lengths()[:, None]}
    return inputs


def _batch(features: Mapping[str, Any], schema: Schema) -> Any:
    """Return (inputs, labels) or (inputs, labels, weights), as the loader does."""
    labels = {name: features[name] for name in schema.labels.names}
    target = next(iter(labels.values())) if len(labels) == 1 else labels or None
    weights = [features[name][:, 0] for name in schema.with_role("weight").names]
    return (_inputs(features, schema), target, *weights)
