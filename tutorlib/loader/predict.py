"""Predictions for all rows, in the order of the files, joined to their ids as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import pyarrow as pa

from tutorlib.keras_bridge.adapter import refuse_other_inputs


def predictions(loader: Any, model: keras.Model, name: str, verbose: str | int) -> pa.Table:
    """Return the table of ids and predictions.

    Args:
        loader: `KerasSequenceLoader` in the order of the files, without labels.
        model: as in `KerasSequenceLoader.predict`, and so are the others.
        name: name of the column of predictions.
        verbose: how progress is shown.
    """
    refuse_other_inputs(model, loader._layout.input_names)
    if verbose == "auto":
        verbose = 1 if keras.config.is_interactive_logging_enabled() else 2
    bar = keras.utils.Progbar(len(loader), verbose=verbose)
    source = loader.source
    ids = loader._id_names
    sizes = loader._current_plan.batch_sizes.tolist()
    tables: list[pa.Table] = []
    with loader:
        for rows, (inputs, _) in zip(sizes, loader, strict=True):
            outputs = model.predict_on_batch(inputs)
            if isinstance(outputs, list | tuple):
                names = getattr(model, "output_names", None) or range(len(outputs))
                outputs = dict(zip(names, outputs, strict=True))
            named = {name: outputs}
            if isinstance(outputs, Mapping):
                named = {f"{name}_{output}": values for output, values in outputs.items()}
            if twice := sorted({*named} & {*ids}):
                raise ValueError(
                    f"columns {twice} would be in the table twice: ids and predictions need "
                    "different names. Pass another name=."
                )
            columns = {column: _column(column, values, rows) for column, values in named.items()}
            tables.append(pa.table(columns))
            bar.update(len(tables))
    predicted = pa.concat_tables(tables)
    if not ids:
        return predicted
    table = pa.concat_tables([source.table(position, ids) for position in range(len(source))])
    for column in predicted.column_names:
        table = table.append_column(column, predicted[column])
    return table


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
