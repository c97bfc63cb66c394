"""A stand-in for pylibcudf on a machine without a GPU: Arrow reads, and columns look as libcudf's.

`pylibcudf` is a module to be put in its place (`sys.modules["pylibcudf"]`), beside the stand-in for
CuPy. It has what `tutorlib/gpu/batches.py` uses. As libcudf does, `read_parquet` gives files in
the order of the sources and row groups in the order of each list, reads a file as often as it is
given, and refuses files of different schemas. `calls` notes the row groups of each call.

Read from the sources of libcudf and pylibcudf 26.10; tests marked gpu run the same with it.
"""

import enum
import types

import numpy as np
import pyarrow.parquet as pq

from tests.support.cupy_stand_in import Memory
from tutorlib.columns import Chunk, Ragged, valid_of, values_of

pylibcudf = types.ModuleType("pylibcudf")
calls = []  # [(path, row groups), ...] of each call of read_parquet
NUMBERS = "INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 FLOAT32 FLOAT64"
TypeId = enum.Enum("TypeId", f"LIST BOOL8 {NUMBERS}")


class Buffer:
    """Memory of a column."""

    def __init__(self, array):
        self._memory = Memory(array.shape, array.dtype)
        np.asarray(self._memory)[...] = array
        self.ptr, self.size = self._memory.__array_interface__, array.nbytes


class Column:
    """A column of libcudf, of the numbers or lists of a chunk in the host's memory."""

    def __init__(self, column):
        self._column = values_of(column)
        self._valid = valid_of(column)

    def type(self):
        name = self._column.dtype.name.upper()
        return types.SimpleNamespace(id=lambda: TypeId["BOOL8" if name == "BOOL" else name])

    def size(self):
        return len(self._column)

    def data(self):
        return Buffer(self._column)

    def list_view(self):
        values, offsets = self._column.values, self._column.offsets.astype(np.int32)
        return types.SimpleNamespace(child=lambda: Column(values), offsets=lambda: Column(offsets))

    def null_count(self):
        valid = self._column.valid if isinstance(self._column, Ragged) else self._valid
        return 0 if valid is None else int((~valid).sum())


class Options:
    """`ParquetReaderOptions`, and the builder of them."""

    @classmethod
    def builder(cls, paths):
        options = cls()
        options.paths = paths
        return options

    def use_pandas_metadata(self, value):
        assert value is False
        return self

    use_arrow_schema = use_pandas_metadata

    def column_names(self, names):
        self.names = names
        return self

    def build(self):
        return self

    def set_row_groups(self, row_groups):
        self.row_groups = row_groups


def read_parquet(options, stream):
    """Return the rows of all sources as a `TableWithMetadata`."""
    calls.append(list(zip(options.paths, map(tuple, options.row_groups), strict=True)))
    files = [pq.ParquetFile(path) for path in options.paths]
    if any(not file.schema.equals(files[0].schema) for file in files):
        raise RuntimeError("All sources must have the same schema")
    tables = [
        file.read_row_group(index, columns=options.names)
        for file, indices in zip(files, options.row_groups, strict=True)
        for index in indices
    ]
    chunk = Chunk.concat(list(map(Chunk.from_arrow, tables)))
    return types.SimpleNamespace(
        column_names=lambda include_children: chunk.names,
        tbl=types.SimpleNamespace(columns=lambda: list(map(Column, chunk.values()))),
    )


pylibcudf.TypeId = TypeId
pylibcudf.io = types.SimpleNamespace(
    parquet=types.SimpleNamespace(ParquetReaderOptions=Options, read_parquet=read_parquet),
    types=types.SimpleNamespace(SourceInfo=list),
)
