"""The loader's batches in a few lines of NumPy: what a batch holds, given which rows it has."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


class Reference:
    """Says what the batches of a loader must hold.

    Args:
        table: the rows of the files, in the order of the files.
        schema: the columns of a batch; lists are `multi_hot`, vectors have a `length`.
        batch_layout: "columns", or "stacked" for one matrix of scalars and vectors for each role.
        multi_hot: form of lists.
        nulls: as the loader's; nulls and NaN are replaced by 0.
    """

    def __init__(self, table, schema, *, batch_layout="columns", multi_hot="nnzs", nulls="error"):
        self.schema, self.batch_layout, self.multi_hot = schema, batch_layout, multi_hot
        self.cells, self.lists = {}, {}
        for column in schema:
            array = table[column.name].combine_chunks()
            if column.multi_hot:
                values = self._numbers(column, array.flatten())
                ends = np.cumsum(pc.list_value_length(array).fill_null(0))
                self.lists[column.name] = np.split(values, ends[:-1])
            else:
                self.cells[column.name] = self._matrix(column, array)

    def _matrix(self, column, array):
        """Return a column as [rows, 1], or of vectors [rows, length]."""
        if column.length is None:
            return self._numbers(column, array)[:, None]
        flat = self._numbers(column, array.flatten()).reshape(-1, column.length)
        cells = np.zeros((len(array), column.length), flat.dtype)
        cells[array.is_valid().to_numpy(zero_copy_only=False)] = flat
        return cells

    def _numbers(self, column, array):
        """Return numbers in the dtype of a batch, without nulls and NaN."""
        floating = pa.types.is_floating(array.type)
        wide = array.cast(pa.float64() if floating else pa.int64())
        values = wide.fill_null(0).to_numpy(zero_copy_only=False)
        missing = ~array.is_valid().to_numpy(zero_copy_only=False) | np.isnan(values)
        fits = np.can_cast(array.type.to_pandas_dtype(), np.int32)
        small = column.cardinality is not None and column.cardinality <= 2**31
        dtype = np.dtype(np.int32 if small or fits else np.int64)
        if floating or column.role in ("continuous", "weight"):
            dtype = np.dtype(np.float32)
        return np.where(missing, dtype.type(0), values.astype(dtype))

    def batch(self, rows):
        """Return (inputs, labels) or (inputs, labels, weights) of these rows, as arrays."""
        cells = {name: values[rows] for name, values in self.cells.items()}
        labels = {name: cells.pop(name) for name in self.schema.labels.names}
        weights = [cells.pop(name)[:, 0] for name in self.schema.with_role("weight").names]
        inputs = cells
        if self.batch_layout == "stacked":
            inputs = {}
            for role in ("categorical", "continuous"):
                columns = [cells[n] for n in self.schema.with_role(role).names if n in cells]
                if columns:
                    inputs[role] = np.concatenate(columns, axis=1)
        for name, lists in self.lists.items():
            inputs |= self._list_parts(name, [lists[row] for row in rows])
        target = labels if len(labels) > 1 else next(iter(labels.values()), None)
        return inputs, target, *weights

    def _list_parts(self, name, lists):
        nnzs, values = np.array([len(values) for values in lists]), np.concatenate(lists)
        if self.multi_hot == "nnzs":
            return {f"{name}__values": values[:, None], f"{name}__nnzs": nnzs[:, None]}
        padded = np.zeros((len(lists), max(1, nnzs.max())), values.dtype)
        padded[np.arange(padded.shape[1]) < nnzs[:, None]] = values
        return {name: padded}
