"""Workflow: preprocessing that is defined once, fitted, applied, saved, and handed to a loader."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from tutorlib.parquet import file_rows
from tutorlib.storage import (
    RemotePath,
    local_copy,
    new_folder,
    output_path,
    refuse_existing,
    refuse_overlap,
    remote_output,
)
from tutorlib.workflow import saved_form
from tutorlib.workflow.fit import as_source, fit_graph
from tutorlib.workflow.graph import OpGraph
from tutorlib.workflow.write import WriteJob, named_seeds, named_sources, write_data_set


class Workflow(OpGraph):
    """Preprocessing of a data set: groups of columns, each with the ops that it goes through.

    Only columns of groups are among the outputs; a plain list of names passes columns through. The
    role of an output column is label if `label_names` says so or LabelEncoder makes it; otherwise
    its last op sets it, and without ops its type: floating point is continuous, integers and
    strings are categorical.

    Args:
        *groups: `["a", "b"] >> Op() >> Op()`, or lists of names.
        label_names: output columns that are labels; None means "label", if there is one.
        weight_name: output column with the weight of each row; None for no weights.

    Attributes:
        groups: the column groups, with copies of the ops.
        output_names: names of the output columns, in order.
        input_types: {column: (NumPy name of one value or "string", whether a row holds a list)} of
            the columns that it was fitted on; empty before `fit`.
        nullable: those of these columns that held nulls, other than NaN.

    Raises:
        ValueError: if two groups output the same column, a label or weight is not an output, or is
            both, or a label gets the ids of Categorify or HashBucket.

    Example:
        >>> import numpy as np
        >>> from tutorlib.columns import Chunk
        >>> from tutorlib.ops import Categorify, Normalize
        >>> workflow = Workflow(["C1"] >> Categorify(), ["I1"] >> Normalize(), ["label"])
        >>> chunk = Chunk({
        ...     "C1": np.array([7, 5, 7]), "I1": np.array([1.0, 2.0, 3.0]), "label": np.arange(3)
        ... })
        >>> out = workflow.fit(chunk).transform(chunk)
        >>> out["C1"].tolist(), out["I1"].dtype.name, workflow.embedding_sizes()
        ([3, 4, 3], 'float32', {'C1': (5, 16)})
    """

    def fit(
        self,
        source: Any,
        client: Any = None,
        *,
        threads: int | None = None,
        progress: bool | None = None,
    ) -> Self:
        """Fit all ops, in as few passes over the data as they allow.

        An op that is fitted on the output of another (Normalize after Categorify) needs a pass of
        its own; all others share one. Memory: a row range of at most 262,144 rows per thread, and
        the states of the ops, for Categorify 16 bytes per distinct integer. The result is the same
        to the last bit for any number of threads or workers.

        Args:
            source: `ParquetSource`, rows of one (`split_rows`), paths of Parquet or Arrow files, a
                pyarrow Table, a pandas or polars DataFrame, a `Chunk`, a list of chunks, or any
                `RowSource`.
            client: `distributed.Client` of a Dask cluster. Its workers fit instead of threads; they
                must see the files under the same paths, and some of them may die. None for threads.
            threads: at least 1; None for one per usable core.
            progress: True for a bar (needs tqdm), False for none, None for a bar on a terminal.

        Returns:
            The workflow itself.

        Raises:
            ValueError, TypeError: if values do not fit an op; names op, column and row group. The
                workflow is then not fitted.
            ValueError: if there are no rows to fit on; for `threads` with `client`, because the
                cluster sets its own.
        """
        fit_graph(
            self,
            as_source(source),
            client=client,
            threads=threads,
            progress=progress,
        )
        return self

    def transform_to_parquet(
        self,
        source: Any,
        folder: str | os.PathLike[str],
        *,
        rows_per_file: int | None = None,
        row_group_rows: int | None = None,
        encoding: str = "fast",
        shuffle_seed: int | Mapping[str, int | None] | None = None,
        overwrite: bool = False,
        client: Any = None,
        threads: int | None = None,
        progress: bool | None = None,
        filesystem: Any = None,
    ) -> Any:
        """Write the transformed rows of `source` as Parquet files, a few row ranges at a time.

        The folder holds `part_*.parquet`, `_schema.json` (`Schema.load`), `_workflow/`
        (`Workflow.load`) and `_manifest.json`, which lists the files with their rows and bytes. It
        appears when it is whole; until then all files are in `{folder}.partial`. After a kill or an
        error, such as a full disk, the same call resumes if data, workflow and settings are the
        same, and otherwise restarts. It always restarts for rows in memory, for ops of your own
        and for LambdaOp. The files are the same to the byte, also after a resume, for
        any number of threads or workers.

        Args:
            source: what `fit` takes; or {name: source}, to write each source to a subfolder of that
                name. Split by time with `{"train": ParquetSource(paths, filters=[("day", "<", 6)]),
                "valid": ParquetSource(paths, filters=[("day", ">=", 6)])}`, by order or at random
                with `split_rows(source, {"train": 0.9, "valid": 0.1})`; fit on the training rows.
            folder: the folder to write. Of a URL such as `s3://bucket/train`, all files are written
                to TMPDIR, where a later call resumes, and copied when they are finished; readers
                refuse the folder until it is whole.
            rows_per_file: rows read for each part file, rounded down to whole row groups, at least
                `row_group_rows`. None for 1,048,576, or `row_group_rows` if
                that is more.
            row_group_rows: rows per row group, the unit that a loader reads, at least 1. None for
                131,072, or `rows_per_file` if that is less.
            encoding: "fast" or "default": see `ParquetSink`.
            shuffle_seed: None keeps the order. An integer, at least 0, puts the row groups in
                random order and shuffles the rows of each part file, for which each thread holds
                two copies of a part file in memory. The same source, settings and seed give the
                same files. {name: seed} for several sources; those without keep their order. Rows
                that are sorted (by label, time) need more than that: see `split_rows`.
            overwrite: whether to replace the folder if it exists.
            client: `distributed.Client` whose workers write the part files instead of threads; they
                must see sources and folder under the same paths. None for threads.
            threads: at least 1; None for one per usable core. Each holds about three row ranges of
                at most 262,144 rows, and a row group.
            progress: as for `fit`.
            filesystem: `pyarrow.fs` or fsspec filesystem that holds the folder; None takes it from
                a URL.

        Returns:
            The folder: a `Path`, or the text of a URL.

        Raises:
            FileExistsError: if the folder exists and `overwrite` is False, or it holds files and
                this library did not make it.
            BlockingIOError: if another process is writing it.
            ValueError: if the folder is an input, or contains one, or is inside one; if the column
                types are not those fitted on, or a source has no output rows.
        """
        sources = named_sources(source)
        seeds = named_seeds(shuffle_seed, sources)
        group_rows, rows = file_rows(row_group_rows, rows_per_file, default=1_048_576)
        job = WriteJob(self, sources, rows, group_rows, encoding, seeds)
        target = output_path(folder, filesystem)
        refuse_overlap(target, job.inputs)
        refuse_existing(target, overwrite)
        write_data_set(job, target, client=client, threads=threads, progress=progress)
        return target if isinstance(target, Path) else str(target)

    def to_keras(
        self,
        *,
        columns: Iterable[str] | None = None,
        functions: Mapping[str, Callable[..., Any]] | None = None,
        batch_layout: str = "columns",
        multi_hot: str = "nnzs",
    ) -> Any:
        """Return the fitted workflow as a Keras layer that turns raw values into model inputs.

        The layer outputs what `transform` does, to the last bit but for three cases
        (see `tutorlib.serving`). `ServedWorkflow` describes how it takes nulls and lists;
        `export_serving` saves it together with a model.

        Args:
            columns: names of the output columns; None for all features, without labels and weights.
            functions: {name: function of tensors} that replace the functions of LambdaOps.
            batch_layout: "columns" or "stacked": see `keras_inputs`.
            multi_hot: "nnzs", "offsets", "ragged" or "padded": see `keras_inputs`.

        Returns:
            A `ServedWorkflow`.

        Raises:
            ValueError: before `fit`, or if ops cannot be served; lists all of them.

        Example:
            >>> import numpy as np
            >>> from tutorlib.columns import Chunk
            >>> from tutorlib.ops import HashBucket
            >>> workflow = Workflow(["C1"] >> HashBucket(1000)).fit(Chunk({"C1": np.arange(3)}))
            >>> workflow.to_keras()({"C1": np.array([0, 1])})["C1"].numpy().tolist()
            [[883], [566]]
        """
        from tutorlib.serving import ServedWorkflow

        self.check_fitted()
        schema = self.output_schema
        return ServedWorkflow(
            self.groups,
            self.input_types,
            schema.features if columns is None else schema.select(columns),
            functions=functions,
            batch_layout=batch_layout,
            multi_hot=multi_hot,
            nullable=self.nullable,
        )

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that decides the output; equal workflows have equal ones.

        Raises:
            ValueError: before `fit`, or if the function of an op has no name.
        """
        self.check_fitted()
        return saved_form.fingerprint(self)

    def save(
        self, folder: str | os.PathLike[str], *, overwrite: bool = False, filesystem: Any = None
    ) -> Any:
        """Write the fitted workflow: `workflow.json`, and a Parquet file for each learned table.

        Args:
            folder: the folder to write, also as a URL; it appears when it is whole.
            overwrite: whether to replace the folder if it exists.
            filesystem: `pyarrow.fs` or fsspec filesystem that holds it; None takes it from a URL.

        Returns:
            The folder: a `Path`, or the text of a URL.

        Raises:
            FileExistsError: if the folder exists and `overwrite` is False.
            ValueError: before `fit`, or if the function of an op has no name.
        """
        self.check_fitted()
        saved_form.check_functions(self)
        target = output_path(folder, filesystem)
        refuse_existing(target, overwrite)
        with remote_output(target) if isinstance(target, RemotePath) else new_folder(target) as new:
            saved_form.write_files(self, new)
        return target if isinstance(target, Path) else str(target)

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        *,
        functions: Mapping[str, Callable[..., Any]] | None = None,
        data: Any = None,
        filesystem: Any = None,
    ) -> Self:
        """Return the fitted workflow that `save` wrote. Nothing from the files is executed.

        Args:
            folder: the folder that was given to `save`, also as a URL.
            functions: {name: function} of the workflow's LambdaOps.
            data: what `fit` takes, to check its columns with `check_data`; None to check later.
            filesystem: `pyarrow.fs` or fsspec filesystem that holds it; None takes it from a URL.

        Raises:
            FileNotFoundError: if the folder holds no workflow.
            ValueError: if the files have another format version, were changed, name an op that is
                not defined or a function that was not passed, or if `data` has other columns.
        """
        with local_copy(folder, filesystem) as local:
            workflow = saved_form.read_files(cls, local, functions or {})
        if data is not None:
            workflow.check_data(data)
        return workflow
