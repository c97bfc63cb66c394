"""PredictingLoader: ids of the rows of each batch, and predictions joined to them as a table."""

from __future__ import annotations

import abc
import collections
import contextlib
import itertools
import os
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import keras
import numpy as np
import pyarrow as pa

from tutorlib.keras_bridge.adapter import LoaderAdapter
from tutorlib.loader.batches import Batches
from tutorlib.loader.ids import ids_of_batches
from tutorlib.loader.plan import EpochPlan
from tutorlib.parquet import ParquetSink, ParquetSource
from tutorlib.schema import Schema


class PredictingLoader(LoaderAdapter):
    """A loader that knows the ids of its rows; `KerasSequenceLoader` is one.

    Attributes:
        id_names: names of the id columns.
    """

    id_names: list[str]
    source: ParquetSource

    @abc.abstractmethod
    def __iter__(self) -> Batches:
        """Return the batches of the current epoch."""

    @property
    @abc.abstractmethod
    def schema(self) -> Schema:
        """Schema of the batches."""

    @property
    @abc.abstractmethod
    def plan(self) -> EpochPlan:
        """Plan of the current epoch: which rows each batch has."""

    @abc.abstractmethod
    def in_file_order(self, *, labels: bool = True) -> Self:
        """Return a loader of the same rows, of all ranks, unshuffled and without weights."""

    @abc.abstractmethod
    def batch_rows(self, batch: int) -> int:
        """Return the rows of batch number `batch` of an epoch."""

    @abc.abstractmethod
    def close(self) -> None:
        """Stop all threads of this loader and release their memory."""

    @property
    def labelled(self) -> bool:
        """Whether batches hold labels."""
        return bool(self.schema.labels.columns)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def with_ids(self) -> Generator[tuple[pa.Table, Any]]:
        """Yield (ids, batch) for each batch that `iter()` gives, shuffled or not, on any rank.

        `ids` is a `pyarrow.Table` of the columns `id_names` with a row for each row of the batch.
        It is read beside the batches, in memory of the ids of two to three chunks.

        Example:
            >>> for ids, (inputs, labels) in loader.with_ids():  # doctest: +SKIP
            ...     print(ids["user_id"][0], labels[0])
        """
        if not self.id_names:
            raise ValueError("there are no ids: give the loader id_names=[...]")
        with contextlib.closing(iter(self)) as batches:
            ids = ids_of_batches(self.plan, self.source, self.id_names, self.first_batch)
            yield from zip(ids, batches, strict=True)

    def predict(
        self,
        model: keras.Model,
        *,
        labels: bool = False,
        class_names: Sequence[str] | None = None,
        name: str = "prediction",
        to: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        verbose: str | int = "auto",
    ) -> pa.Table | Path:
        """Return the predictions for all rows, in the order of the files, next to their ids.

        The rows are those of the files after `filters` and `limit_rows`, each once, even if this
        loader shuffles, drops its last batch or is one of several ranks. They go through the mapped
        workflow or function. The loader itself stays where it is. Labels are not read unless asked
        for, so they may be null.

        Args:
            model: Keras model that takes the batches of this loader.
            labels: whether the table has the labels as the model sees them, after the ids.
            class_names: names of the values of a prediction, for a column each; None for one column
                that holds lists.
            name: name of the column of predictions, and the prefix of all their names.
            to: Parquet file (`.parquet`) or folder to write instead of returning a table. It
                appears when it is whole, and memory holds one row group of it.
            overwrite: whether an existing `to` is replaced.
            verbose: 0 prints nothing, 1 a progress bar, 2 a line; "auto" chooses as Keras does.

        Returns:
            `pyarrow.Table` with the columns `id_names`, the labels if asked for, and the
            predictions: a column `prediction` of numbers for an output [batch] or [batch, 1], of
            fixed-size lists for [batch, k]. Several outputs have a column each,
            `prediction_{output}`; with `class_names`, columns end in `_{class}`. With `to`, the
            path.

        Raises:
            ValueError: if two columns of the table have the same name, an output does not have a
                value for each row, or `class_names` are not as many as its values.
            FileExistsError: if `to` exists and `overwrite` is False.

        Example:
            >>> loader = KerasSequenceLoader(
            ...     "data/test", 4096, schema=schema, id_names=["user_id", "item_id"]
            ... )  # doctest: +SKIP
            >>> loader.predict(model).sort_by("prediction")  # doctest: +SKIP
            >>> loader.predict(model, to="predictions.parquet")  # doctest: +SKIP
        """
        with contextlib.ExitStack() as stack:
            tables = self._predicted(model, labels, class_names, name, verbose)
            stack.enter_context(contextlib.closing(tables))
            if to is None:
                return pa.concat_tables(tables)
            first = next(tables)
            sink = ParquetSink(to, overwrite=overwrite, schema=first.schema)
            stack.enter_context(sink)
            for table in itertools.chain([first], tables):
                sink.write(table)
        return Path(to)

    def _predicted(
        self,
        model: keras.Model,
        labels: bool,
        class_names: Sequence[str] | None,
        name: str,
        verbose: str | int,
    ) -> Generator[pa.Table]:
        """Yield the table of each batch."""
        loader = self.in_file_order(labels=labels)
        label_names = loader.schema.labels.names
        if labels and not label_names:
            raise ValueError("labels=True needs a loader with label_names")
        if verbose == "auto":
            verbose = 1 if keras.config.is_interactive_logging_enabled() else 2
        bar = keras.utils.Progbar(len(loader), verbose=verbose)
        batches = loader.with_ids() if self.id_names else ((pa.table({}), b) for b in loader)
        with contextlib.closing(loader), contextlib.closing(batches):
            for number, (ids, (inputs, target)) in enumerate(batches):
                rows = loader.batch_rows(number)
                columns: list[tuple[str, Any]] = [*zip(ids.column_names, ids.columns, strict=True)]
                if labels:
                    one = not isinstance(target, Mapping)
                    columns += _columns({label_names[0]: target} if one else target, rows, None)
                outputs = _by_name(model.predict_on_batch(inputs), model, name)
                columns += _columns(outputs, rows, class_names)
                counts = collections.Counter(column for column, _ in columns)
                if twice := sorted(column for column, count in counts.items() if count > 1):
                    raise ValueError(
                        f"columns {twice} would be in the table twice: ids, labels and predictions "
                        "need different names. Pass another name=."
                    )
                yield pa.table(dict(columns))
                bar.update(number + 1)


def _by_name(outputs: Any, model: keras.Model, name: str) -> dict[str, Any]:
    """Return {name of its column: output}."""
    if isinstance(outputs, list | tuple):
        names = getattr(model, "output_names", None) or range(len(outputs))
        outputs = dict(zip(names, outputs, strict=True))
    if isinstance(outputs, Mapping):
        return {f"{name}_{output}": array for output, array in outputs.items()}
    return {name: outputs}


def _columns(
    arrays: Mapping[str, Any], rows: int, class_names: Sequence[str] | None
) -> Generator[tuple[str, pa.Array]]:
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
        if class_names is not None:
            if array.shape != (rows, len(class_names)):
                raise ValueError(
                    f"class_names has {len(class_names)} names, but {name!r} has the shape "
                    f"{array.shape}; give a name for each value of a row, or none"
                )
            for number, class_name in enumerate(class_names):
                yield f"{name}_{class_name}", pa.array(array[:, number])
            continue
        sizes = array.shape[1:] if array.shape != (rows, 1) else ()
        column = pa.array(array.reshape(-1))
        for size in reversed(sizes):
            column = pa.FixedSizeListArray.from_arrays(column, size)
        yield name, column
