"""Predictions for all rows, in the order of the files, joined to their ids as a table."""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow as pa

from tutorlib.keras_bridge.adapter import refuse_other_inputs
from tutorlib.parquet import ParquetSink, ParquetSource


def predictions(
    loader: Any,
    model: keras.Model,
    name: str,
    verbose: str | int,
    to: str | os.PathLike[str] | None,
    overwrite: bool,
) -> pa.Table | Path:
    """Return the table of ids and predictions, or the path of its files.

    Args:
        loader: `KerasSequenceLoader` in the order of the files, without labels.
        model: as in `KerasSequenceLoader.predict`, and so are the others.
        name: name of the column of predictions.
        verbose: how progress is shown.
        to: file or folder to write; None for none.
        overwrite: whether it is replaced.
    """
    with contextlib.closing(_tables(loader, model, name, verbose)) as tables:
        if to is None:
            return pa.concat_tables(tables)
        first = next(tables)
        with ParquetSink(to, overwrite=overwrite, schema=first.schema) as sink:
            for table in itertools.chain([first], tables):
                sink.write(table)
    return Path(to).expanduser()


def _tables(loader: Any, model: keras.Model, name: str, verbose: str | int) -> Generator[pa.Table]:
    """Yield the table of each batch."""
    refuse_other_inputs(model, loader.layout.input_names)
    if verbose == "auto":
        verbose = 1 if keras.config.is_interactive_logging_enabled() else 2
    bar = keras.utils.Progbar(len(loader), verbose=verbose)
    sizes = loader.plan.batch_sizes.tolist()
    ids = _ids(loader.source, loader.id_names, sizes)
    with loader:
        for number, (table, (inputs, _)) in enumerate(zip(ids, loader, strict=True)):
            outputs = model.predict_on_batch(inputs)
            if isinstance(outputs, list | tuple):
                names = getattr(model, "output_names", None) or range(len(outputs))
                outputs = dict(zip(names, outputs, strict=True))
            if isinstance(outputs, Mapping):
                named = {f"{name}_{output}": array for output, array in outputs.items()}
            else:
                named = {name: outputs}
            columns = [*zip(table.column_names, table.columns, strict=True)]
            for column, values in named.items():
                columns.append((column, _column(column, values, sizes[number])))
            counts = collections.Counter(column for column, _ in columns)
            if twice := sorted(column for column, count in counts.items() if count > 1):
                raise ValueError(
                    f"columns {twice} would be in the table twice: ids and predictions need "
                    "different names. Pass another name=."
                )
            yield pa.table(dict(columns))
            bar.update(number + 1)


def _ids(source: ParquetSource, names: Sequence[str], sizes: Iterable[int]) -> Generator[pa.Table]:
    """Yield the named columns for batches of these numbers of rows, in the order of the files."""
    if not names:
        yield from (pa.table({}) for _ in sizes)
        return
    positions = iter(range(len(source)))
    waiting = source.table(0, names, 0, 0)
    for rows in sizes:
        while waiting.num_rows < rows:
            waiting = pa.concat_tables([waiting, source.table(next(positions), names)])
        yield waiting.slice(0, rows)
        waiting = waiting.slice(rows)


def _column(name: str, values: Any, rows: int) -> pa.Array:
    """Return an array or tensor as a column that has a value or an array for each row."""
    array = keras.ops.convert_to_numpy(values)
    if array.dtype.kind == "V":  # bfloat16, which Arrow does not know
        array = array.astype(np.float32)
    if array.shape[:1] != (rows,):
        raise ValueError(
            f"{name!r} has the shape {array.shape} for a batch of {rows} rows; the model must "
            "give a value, or an array, for each row"
        )
    sizes = array.shape[1:] if array.shape != (rows, 1) else ()
    column = pa.array(array.reshape(-1))
    for size in reversed(sizes):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column
