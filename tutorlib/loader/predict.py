"""Ids of the rows of each batch, and predictions joined to them as a table."""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow as pa

from tutorlib.keras_bridge.adapter import refuse_other_inputs
from tutorlib.loader.plan import EpochPlan
from tutorlib.parquet import ParquetSink, ParquetSource


def ids_of_batches(
    plan: EpochPlan, source: ParquetSource, names: Sequence[str], first_batch: int = 0
) -> Iterator[pa.Table]:
    """Yield the named columns of the rows of each batch, in the order of the batch.

    The plan alone says which rows a batch has. Memory: these columns of one chunk and a batch.

    Args:
        plan: plan of the epoch.
        source: the files.
        names: columns of any Arrow type.
        first_batch: number of the first batch.
    """
    waiting: list[pa.Table] = []
    chunks = iter(plan.chunks_from(first_batch))
    for batch in range(first_batch, len(plan)):
        rows = int(plan.batch_sizes[batch])
        while sum(table.num_rows for table in waiting) < rows:
            chunk = next(chunks)
            ranges = [source.table(r.row_group, names, r.start, r.stop) for r in chunk.row_ranges]
            order = plan.order(chunk.index)
            table = pa.concat_tables(ranges)
            table = table if order is None else table.take(pa.array(order))
            segments = plan.segments(chunk.index, first_batch)
            if segments:
                start, stop = segments[0].start, segments[-1].stop
                waiting.append(table.slice(start, stop - start))
        table = waiting[0] if len(waiting) == 1 else pa.concat_tables(waiting)
        yield table.slice(0, rows)
        waiting = [table.slice(rows)]


def predictions(
    loader: Any,
    model: keras.Model,
    labels: bool,
    name: str,
    verbose: str | int,
    to: str | os.PathLike[str] | None,
    overwrite: bool,
) -> pa.Table | Path:
    """Return the table of ids, labels if asked for, and predictions, or the path of its files.

    Args:
        loader: `KerasSequenceLoader` in the order of the files.
        model: as in `KerasSequenceLoader.predict`, and so are the others.
        labels: whether the table has the labels.
        name: name of the column of predictions.
        verbose: how progress is shown.
        to: file or folder to write; None for none.
        overwrite: whether it is replaced.
    """
    with contextlib.closing(_tables(loader, model, labels, name, verbose)) as tables:
        if to is None:
            return pa.concat_tables(tables)
        first = next(tables)
        with ParquetSink(to, overwrite=overwrite, schema=first.schema) as sink:
            for table in itertools.chain([first], tables):
                sink.write(table)
    return Path(to).expanduser()


def _tables(
    loader: Any, model: keras.Model, labels: bool, name: str, verbose: str | int
) -> Generator[pa.Table]:
    """Yield the table of each batch."""
    label_names = loader.schema.labels.names
    if labels and not label_names:
        raise ValueError("labels=True needs a loader with label_names")
    refuse_other_inputs(model, loader.layout.input_names)
    if verbose == "auto":
        verbose = 1 if keras.config.is_interactive_logging_enabled() else 2
    bar = keras.utils.Progbar(len(loader), verbose=verbose)
    batches = loader.with_ids() if loader.id_names else ((pa.table({}), b) for b in loader)
    with contextlib.closing(loader), contextlib.closing(batches):
        for number, (ids, (inputs, target)) in enumerate(batches):
            rows = int(loader.plan.batch_sizes[number])
            columns: list[tuple[str, Any]] = [*zip(ids.column_names, ids.columns, strict=True)]
            if labels:
                one = not isinstance(target, Mapping)
                columns += _columns({label_names[0]: target} if one else target, rows)
            outputs = model.predict_on_batch(inputs)
            if isinstance(outputs, list | tuple):
                names = getattr(model, "output_names", None) or range(len(outputs))
                outputs = dict(zip(names, outputs, strict=True))
            if isinstance(outputs, Mapping):
                named = {f"{name}_{output}": array for output, array in outputs.items()}
            else:
                named = {name: outputs}
            columns += _columns(named, rows)
            counts = collections.Counter(column for column, _ in columns)
            if twice := sorted(column for column, count in counts.items() if count > 1):
                raise ValueError(
                    f"columns {twice} would be in the table twice: ids, labels and predictions "
                    "need different names. Pass another name=."
                )
            yield pa.table(dict(columns))
            bar.update(number + 1)


def _columns(arrays: Mapping[str, Any], rows: int) -> Generator[tuple[str, pa.Array]]:
    """Yield (name, column) of arrays or tensors that have a value or an array for each row."""
    for name, values in arrays.items():
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
        yield name, column
