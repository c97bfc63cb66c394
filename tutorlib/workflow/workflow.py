"""Workflow: preprocessing that is defined once, fitted, applied, saved, and handed to a loader."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa

from tutorlib import ops, output
from tutorlib.checks import shortened
from tutorlib.columns import AnyColumn, Chunk, converted
from tutorlib.columns import column_type as column_type_of
from tutorlib.ops import ColumnGroup
from tutorlib.parquet import ParquetSource, file_rows, table_of
from tutorlib.schema import (
    MOST_NAMED,
    Column,
    Schema,
    column_type,
    element_type,
    listed,
    role_of,
    time_kind,
    type_mismatch,
    type_words,
)
from tutorlib.workflow import saved
from tutorlib.workflow.fit import (
    Client,
    as_source,
    fit_ops,
    reset_ops,
    threads_without,
    unfitted_ops,
)
from tutorlib.workflow.write import WriteJob, named_sources, write_data_set

if TYPE_CHECKING:
    from tutorlib.serving.export import WorkflowLayer

ColumnType = tuple[str, bool]  # NumPy name of one value or "string", whether a row holds a list
EMPTY: ColumnType = ("null", False)  # of a column without a value in any row


class Workflow:
    """Preprocessing of a data set: groups of columns, each with the ops that it goes through.

    Only columns of groups are among the outputs; a plain list of names passes columns through. The
    role of an output column is label if `label_names` says so or LabelEncoder makes it; otherwise
    its last op sets it, and without ops its type: floating point is continuous, integers and
    strings are categorical.

    Args:
        *groups: `["a", "b"] >> Op() >> Op()`, or lists of names.
        label_names: output columns that are labels; None means "label", if there is one. Rows to
            predict, or to export a model for, may lack the labels that are named here.
        weight_name: output column with the weight of each row; None for no weights.

    Attributes:
        groups: the column groups, with copies of the ops.
        input_types: {column: (NumPy name of one value or "string", whether a row holds a list)} of
            the columns that it was fitted on; empty before `fit`. Data of another unit, or another
            width of numbers, is converted to them on every path; other kinds are refused.
        time_kinds: {column: what its times are, as `tutorlib.schema.time_kind` says}, without those
            that it was fitted on as a `Chunk`, which does not tell.

    Raises:
        ValueError: if two groups output the same column, a label or weight is not an output, or is
            both, or a label gets the ids of Categorify or HashBucket.

    Example:
        >>> import numpy as np
        >>> from tutorlib.ops import Categorify, Normalize
        >>> workflow = Workflow(["C1"] >> Categorify(), ["I1"] >> Normalize(), ["label"])
        >>> chunk = Chunk({
        ...     "C1": np.array([7, 5, 7]), "I1": np.array([1.0, 2.0, 3.0]), "label": np.arange(3)
        ... })
        >>> out = workflow.fit(chunk).transform(chunk)
        >>> out["C1"].tolist(), out["I1"].dtype.name, workflow.embedding_sizes()
        ([3, 4, 3], 'float32', {'C1': (5, 16)})
    """

    def __init__(
        self,
        *groups: ColumnGroup | Sequence[str] | str,
        label_names: Iterable[str] | None = None,
        weight_name: str | None = None,
    ) -> None:
        if not groups:
            raise ValueError("a Workflow needs at least one group of columns")
        # Copies of the ops, so that fitting does not change those of the user.
        self.groups: list[ColumnGroup] = []
        encoded: list[str] = []
        for group in map(ops.as_group, groups):
            self.groups.append(ColumnGroup(group.names, map(copy.copy, group.ops)))
            if any(isinstance(op, ops.LabelEncoder) for op in group.ops):
                encoded += group.output_names
        names = self.output_names
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(
                f"columns {twice} are outputs of more than one group. Put Rename into one of the "
                "groups."
            )
        if isinstance(label_names, str):
            raise TypeError(f"label_names takes a list of names, got {label_names!r}")
        if label_names is None:
            label_names = ["label"] if "label" in names else []
        self.label_names = list(dict.fromkeys([*label_names, *encoded]))
        self.weight_name = weight_name
        if missing := [name for name in self._targets if name not in names]:
            raise ValueError(
                f"columns {listed(missing)} are declared as label or weight but are not "
                f"among the outputs, {listed(names)}. Add {listed(missing)} to the groups."
            )
        if weight_name in self.label_names:
            raise ValueError(f"column {weight_name!r} cannot be both a label and the weight")
        self.check_label_ids(self.label_names)
        self.input_types: dict[str, ColumnType] = {}
        self.time_kinds: dict[str, str] = {}

    def __repr__(self) -> str:
        fitted = "fitted" if self.input_types else "not fitted"
        columns = f"{len(self.input_names):,} columns in, {len(self.output_names):,} out"
        return "\n  ".join([f"Workflow: {fitted}, {columns}", *map(repr, self.groups)])

    @property
    def _targets(self) -> list[str]:
        """Labels and weight."""
        return [*self.label_names, *([self.weight_name] if self.weight_name else [])]

    @property
    def output_names(self) -> list[str]:
        """Names of the output columns, in order."""
        return [name for group in self.groups for name in group.output_names]

    @property
    def input_names(self) -> list[str]:
        """Columns of the data that the workflow needs, each once."""
        return list(dict.fromkeys(name for group in self.groups for name in group.names))

    # ---- fitting ---------------------------------------------------------------------------------

    def fit(
        self,
        source: Any,
        client: Client | None = None,
        *,
        threads: int | None = None,
    ) -> Self:
        """Fit all ops, in as few passes over the data as they allow.

        An op that is fitted on the output of another (Normalize after Categorify) needs a pass of
        its own; all others share one. Memory: a row range of at most 262,144 rows per thread, and
        the states of the ops, for Categorify 16 bytes per distinct integer. The result is the same
        to the last bit for any number of threads or workers.

        Args:
            source: `ParquetSource`, rows of one (`split_rows`), paths of Parquet files, a pyarrow
                Table, a pandas or polars DataFrame, or a `Chunk`.
            client: `distributed.Client` of a Dask cluster. Its workers fit instead of threads; they
                must see the files under the same paths, and some of them may die. None for threads.
            threads: at least 1; None for one per usable core.

        Returns:
            The workflow itself.

        Raises:
            ValueError, TypeError: if values do not fit an op; names op, column and row group. The
                workflow is then not fitted.
            ValueError: if there are no rows to fit on; for `threads` with `client`, because the
                cluster sets its own.
        """
        threads = threads_without(client, threads)
        data = as_source(source)
        types = data.column_types
        if missing := [name for name in self.input_names if name not in types]:
            raise ValueError(
                f"columns {listed(missing)} are not in the data, which has {listed(types)}"
            )
        self.input_types = {}
        self.time_kinds = {}
        reset_ops(self.groups)
        try:
            fit_ops(self.groups, data, client, threads)
        except BaseException:
            reset_ops(self.groups)
            raise
        for name in self.input_names:
            self.input_types[name] = types[name]
        if not isinstance(source, Chunk):
            self.time_kinds = _time_kinds_in(data.arrow_schema, self.input_names)
        return self

    def check_fitted(self) -> None:
        """Raise ValueError before `fit`, also if no op has anything to learn."""
        for group, index in unfitted_ops(self.groups):
            raise ValueError(
                f"{group.ops[index]!r} of the columns {list(group.names)} is not fitted. Call "
                "fit(source) first."
            )
        if not self.input_types:
            raise ValueError("the types of the columns are not known. Call fit(source) first.")

    def check_data(self, data: Any) -> None:
        """Raise ValueError unless `data` has the columns that the workflow was fitted on.

        Units of times and widths of numbers may differ: `transform` converts them. Integers may
        stand where the workflow was fitted on floating point.

        Args:
            data: what `fit` takes. Columns that the workflow does not use do not matter; those of
                labels and weight may be missing.

        Raises:
            ValueError: lists each column that is missing or has a type of another kind.

        Example:
            >>> import numpy as np
            >>> workflow = Workflow(["x"]).fit(Chunk({"x": np.arange(3)}))
            >>> workflow.check_data(Chunk({"x": np.ones(3)}))
            Traceback (most recent call last):
            ValueError: the columns do not match those fitted on: 'x' is float64, was int64. ...
        """
        self.check_fitted()
        source = as_source(data)
        schema = None if isinstance(data, Chunk) else source.arrow_schema
        self.for_columns(source.column_types).check_types(source.column_types, schema)

    def check_types(self, types: Mapping[str, ColumnType], schema: pa.Schema | None = None) -> None:
        """Raise ValueError unless columns of these types can be converted to those fitted on.

        Args:
            types: {column of the data: its type, as in `input_types`}.
            schema: of the data, which tells what its times are; None if there is none.
        """
        times = {} if schema is None else _time_kinds_in(schema, types)
        differences = []
        remedies: dict[str, None] = {}  # in order, each once
        for name in self.input_names:
            fitted = self.input_types[name]
            was = type_words(fitted)
            time = times.get(name)
            fitted_time = self.time_kinds.get(name, time)
            remedy: str | None = None
            if name not in types:
                got = "missing"
                remedy = "only labels and weight may be missing (label_names)"
            else:
                got = type_words(types[name])
                remedy = type_mismatch(types[name], fitted)
                if remedy is None and time is not None and time != fitted_time:
                    got = f"{got} ({time})"
                    was = f"{was} ({fitted_time})"
                    remedy = "convert the times (pyarrow.compute.local_timestamp, assume_timezone)"
            if remedy is not None:
                differences.append(f"{name!r} is {got}, was {was}")
                remedies[remedy] = None
        if differences:
            raise ValueError(
                "the columns do not match those fitted on: "
                f"{shortened(differences, MOST_NAMED)}. Write the data with the same types, or fit "
                f"the workflow again; {'; '.join(remedies)}. It has {listed(types)}."
            )

    # ---- transforming ----------------------------------------------------------------------------

    def transform(self, chunk: Any) -> Chunk:
        """Return the output columns, in order, for the rows of `chunk`.

        May be called from several threads at a time.

        Args:
            chunk: rows with the columns `input_names`: a `Chunk`, a pyarrow Table, or a pandas or
                polars DataFrame. Units of times and widths of numbers may be others than those
                fitted on, and become these. Without the columns of labels and weight,
                these are left out of the result: see `for_columns`.

        Returns:
            A chunk with the columns `output_names`; `to_arrow()` and `to_pandas()` convert it.

        Raises:
            ValueError: before `fit`; if a column is missing or has a type of another kind than the
                one fitted on; if a time has no equal in the unit fitted on.
            TypeError: for anything else, such as paths: `transform_to_parquet` takes these.
            ValueError, TypeError: if values do not fit an op; names op and column.
        """
        self.check_fitted()
        if isinstance(chunk, str | os.PathLike | ParquetSource):
            raise TypeError(
                f"transform takes rows in memory, got {chunk!r}; transform_to_parquet takes files"
            )
        types: dict[str, ColumnType] = {}
        if isinstance(chunk, Chunk):
            schema = None
            for name, column in chunk.items():
                types[name] = column_type_of(column)
        else:
            chunk = table_of(chunk)
            schema = chunk.schema
            for field in schema:
                types[field.name] = column_type(field.type)
        graph = self.for_columns(types)
        graph.check_types(types, schema)
        if not isinstance(chunk, Chunk):
            chunk = Chunk.from_arrow(chunk.select(graph.input_names))
        inputs: dict[str, AnyColumn] = {}
        for name in graph.input_names:
            fitted = self.input_types[name]
            try:
                inputs[name] = converted(chunk[name], fitted)
            except ValueError as error:
                raise ValueError(
                    f"column {name!r}: the workflow was fitted on {type_words(fitted)}, got "
                    f"{type_words(types[name])}, of which {error}. Round or cast the column in the "
                    "data, or fit the workflow again."
                ) from error
        columns: dict[str, AnyColumn] = {}
        for group in graph.groups:
            columns.update(group.transform(Chunk(inputs)))
        return Chunk(columns)

    def for_columns(self, types: Mapping[str, ColumnType]) -> Self:
        """Return the workflow for data with these columns, which may lack labels and weight.

        Labels and weight that cannot be made, as of rows to predict, are not among its outputs,
        nor those of a column without any value (Arrow's type null). `transform`,
        `transform_to_parquet` and `loader.map` apply it to their data themselves.

        Args:
            types: {column of the data: its type, as in `input_types`}.

        Example:
            >>> from tutorlib.ops import LogOp
            >>> workflow = Workflow(["x"] >> LogOp(), ["label"])
            >>> workflow.for_columns({"x": ("float64", False)}).output_names
            ['x']
        """
        targets = set(self._targets)
        may_lack = set(targets)  # what is an input of these alone, too
        for group in self.groups:
            if targets.issuperset(group.output_names):
                may_lack.update(group.names)
        usable = {n for n, kind in types.items() if tuple(kind) != EMPTY or n not in may_lack}
        if usable.issuperset(self.input_names):
            return self
        groups = []
        for group in self.groups:
            missing = set(group.names) - usable
            rest = [name for name in group.names if name in usable]
            if missing and rest and missing <= targets and _by_column(group):
                groups.append(ColumnGroup(rest, group.ops))
            elif not missing or not targets.issuperset(group.output_names):
                groups.append(group)
        smaller = copy.copy(self)
        smaller.groups = groups or self.groups
        smaller.label_names = [n for n in self.label_names if n in smaller.output_names]
        if self.weight_name not in smaller.output_names:
            smaller.weight_name = None
        return smaller

    def with_targets(self, label_names: Iterable[str], weight_name: str | None = None) -> Self:
        """Return the workflow with these output columns as labels and weight, too.

        `loader.map` calls it with the labels and the weight of the loader. Names that are not among
        the outputs, or have a role already, change nothing.

        Raises:
            ValueError: for ids of features, as `check_label_ids` says.

        Example:
            >>> from tutorlib.ops import LogOp
            >>> workflow = Workflow(["x"] >> LogOp(), ["y"]).with_targets(["y"])
            >>> workflow.for_columns({"x": ("float64", False)}).output_names
            ['x']
        """
        features = [name for name in self.output_names if name not in self._targets]
        labels = [name for name in label_names if name in features]
        self.check_label_ids(labels)
        workflow = copy.copy(self)
        workflow.label_names = [*self.label_names, *labels]
        if self.weight_name is None and weight_name in features and weight_name not in labels:
            workflow.weight_name = weight_name
        return workflow

    def transform_to_parquet(
        self,
        source: Any,
        folder: str | os.PathLike[str],
        *,
        rows_per_file: int | None = None,
        row_group_rows: int | None = None,
        shuffle_seed: int | None = None,
        overwrite: bool = False,
        client: Client | None = None,
        threads: int | None = None,
    ) -> Path:
        """Write the transformed rows of `source` as Parquet files, a few row ranges at a time.

        The folder holds `part_*.parquet`, `_schema.json` (`Schema.load`) and `_workflow/`
        (`Workflow.load`). It appears when it is whole; an error or a kill leaves nothing at
        `folder`, or what was there. The files are the same to the byte for any number of threads or
        workers.

        Args:
            source: what `fit` takes; or {name: source}, to write each source to a subfolder of that
                name. Split by time with `{"train": ParquetSource(paths, filters=[("day", "<", 6)]),
                "valid": ParquetSource(paths, filters=[("day", ">=", 6)])}`, by order or at random
                with `split_rows(source, {"train": 0.9, "valid": 0.1})`; fit on the training rows.
            folder: the folder to write, on this machine.
            rows_per_file: rows of each part file, rounded down to whole row groups, at least
                `row_group_rows`. None for 1,048,576, or `row_group_rows` if that is more.
            row_group_rows: rows per row group, the unit that a loader reads, at least 1. None for
                131,072, or `rows_per_file` if that is less.
            shuffle_seed: None keeps the order. An integer, at least 0, puts the row groups in
                random order and shuffles the rows of each part file, for which each thread holds
                two copies of a part file in memory. The same source, settings and seed give the
                same files. Rows that are sorted (by label, time) need more: see `split_rows`.
            overwrite: whether to replace the folder if it exists, with all that it holds.
            client: `distributed.Client` whose workers write the part files instead of threads; they
                must see sources and folder under the same paths. None for threads.
            threads: at least 1; None for one per usable core. Each holds about three row ranges of
                at most 262,144 rows, and a row group.

        Returns:
            The folder.

        Raises:
            FileExistsError: if the folder exists and `overwrite` is False.
            ValueError: if the folder is a URL, is an input, contains one, or is inside one; if the
                column types are not those fitted on, or a source has no rows; before a row is read,
                if an op has an argument that cannot be saved, such as a function.
        """
        sources = named_sources(source)
        group_rows, rows = file_rows(row_group_rows, rows_per_file, default=1_048_576)
        job = WriteJob(self, sources, rows, group_rows, shuffle_seed)
        target = output.local_path(folder)
        output.refuse_overlap(target, job.inputs)
        with output.new_folder(target, overwrite=overwrite) as building:
            write_data_set(job, building, client, threads)
        return target

    # ---- columns that come out -------------------------------------------------------------------

    @property
    def output_schema(self) -> Schema:
        """Name, role, dtype and cardinality of each output column, in order.

        Raises:
            ValueError: before `fit`.
        """
        self.check_fitted()
        columns: list[Column] = []
        for group in self.groups:
            inputs = []
            for name in group.names:
                kind, multi_hot = self.input_types[name]
                is_vector = element_type(kind)[1] is not None  # vectors of any number may be labels
                role = "label" if is_vector and name in self.label_names else role_of(kind)
                inputs.append(Column(name, role).with_type(kind, multi_hot))
            columns += group.output_columns(inputs)
        for place, column in enumerate(columns):
            if column.name in self._targets:
                role = "weight" if column.name == self.weight_name else "label"
                columns[place] = dataclasses.replace(column, role=role, cardinality=None)
        return Schema(columns)

    def embedding_sizes(self) -> dict[str, tuple[int, int]]:
        """Return {column: (cardinality, embedding width)} of the columns that an op made ids of.

        Example:
            >>> import numpy as np
            >>> from tutorlib.ops import HashBucket
            >>> workflow = Workflow(["C1"] >> HashBucket(1000))
            >>> workflow.fit(Chunk({"C1": np.arange(3)})).embedding_sizes()
            {'C1': (1000, 77)}
        """
        schema = self.output_schema
        return Schema(c for c in schema if c.cardinality is not None).embedding_sizes()

    def check_label_ids(self, names: Iterable[str]) -> None:
        """Raise ValueError for output columns that cannot be labels, as ids of features."""
        names = set(names)
        for group in self.groups:
            makers = [op for op in group.ops if not isinstance(op, ops.Rename)]
            labels = names.intersection(group.output_names)
            if labels and makers and isinstance(makers[-1], ops.Categorify | ops.HashBucket):
                raise ValueError(
                    f"label {min(labels)!r}: {type(makers[-1]).__name__} makes ids for features, "
                    "not classes 0 to n - 1: Categorify begins with padding, null and out of "
                    "vocabulary, and hashed classes collide. Use LabelEncoder."
                )

    @property
    def classes(self) -> dict[str, list[Any]]:
        """{label column, as LabelEncoder sees it: its classes in the order of their ids}."""
        return {name: op.classes_of(name) for name, op in self._encoders().items()}

    def decode(self, name: str, predictions: Any) -> np.ndarray:
        """Return the classes that a model predicts of a label that LabelEncoder made.

        Args:
            name: the label, as LabelEncoder sees it.
            predictions: what `LabelEncoder.decode` takes: arrays, tensors, lists, or a column of
                the table of `loader.predict`.

        Returns:
            Array [n] of classes.

        Raises:
            ValueError: before `fit`, if no LabelEncoder makes the column, or the predictions do not
                fit its classes.

        Example:
            >>> import numpy as np
            >>> from tutorlib.ops import LabelEncoder
            >>> workflow = Workflow(["y"] >> LabelEncoder()).fit(Chunk({"y": np.array([3, 5])}))
            >>> workflow.classes, workflow.decode("y", np.array([[0.9], [0.1]])).tolist()
            ({'y': [3, 5]}, [5, 3])
        """
        encoders = self._encoders()
        if name not in encoders:
            raise ValueError(f"no LabelEncoder makes {name!r}; they make {[*encoders]}")
        return encoders[name].decode(name, predictions)

    def _encoders(self) -> dict[str, ops.LabelEncoder]:
        """Return {column: its LabelEncoder}, the column as the op sees it."""
        encoders: dict[str, ops.LabelEncoder] = {}
        for group in self.groups:
            for op, names in group.steps():
                if isinstance(op, ops.LabelEncoder):
                    encoders |= dict.fromkeys(names, op)
        return encoders

    # ---- serving and saving ----------------------------------------------------------------------

    def to_keras(self, **options: Any) -> WorkflowLayer:
        """Return the fitted workflow as a Keras layer that turns raw values into model inputs.

        The layer outputs what `transform` does, to the last bit but for three cases;
        `WorkflowLayer` names them, and says how it takes nulls and lists. `export_serving` saves it
        together with a model.

        Args:
            options: `columns` and `multi_hot` of `WorkflowLayer`.

        Returns:
            A `WorkflowLayer`.

        Raises:
            ValueError: before `fit`, or if ops cannot be served; lists them.

        Example:
            >>> import numpy as np
            >>> from tutorlib.ops import HashBucket
            >>> workflow = Workflow(["C1"] >> HashBucket(1000)).fit(Chunk({"C1": np.arange(3)}))
            >>> workflow.to_keras()({"C1": np.array([0, 1])})["C1"].numpy().tolist()
            [[883], [566]]
        """
        from tutorlib.serving.export import WorkflowLayer

        return WorkflowLayer(self, **options)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that decides the output; equal workflows have equal ones.

        Raises:
            ValueError: before `fit`; if JSON cannot hold an argument of an op, such as a function.
        """
        self.check_fitted()
        return saved.fingerprint(self)

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the fitted workflow: JSON, Arrow for the tables of its ops, and their SHA-256.

        Args:
            folder: the folder to write, on this machine; it appears when it is whole.
            overwrite: whether to replace the folder if it exists, with all that it holds.

        Returns:
            The folder.

        Raises:
            FileExistsError: if the folder exists and `overwrite` is False.
            ValueError: before `fit`; if JSON cannot hold an argument of an op, such as a function.
        """
        self.check_fitted()
        target = output.local_path(folder)
        with output.new_folder(target, overwrite=overwrite) as building:
            saved.write_files(self, building)
        return target

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, data: Any = None) -> Self:
        """Return the fitted workflow that `save` wrote. Nothing from the files is executed.

        Args:
            folder: the folder that was given to `save`.
            data: what `fit` takes, to check its columns with `check_data`; None to check later.

        Raises:
            FileNotFoundError: if the folder holds no workflow.
            ValueError: if a file was changed after it was saved or is missing, with its name; if
                another version of the format, or an op that is not defined, is in it; or if `data`
                has other columns.
        """
        workflow = saved.read_files(cls, output.local_path(folder))
        if data is not None:
            workflow.check_data(data)
        return workflow


def _by_column(group: ColumnGroup) -> bool:
    """Return whether each op of a group makes one column of each, of the same name."""
    for op in group.ops:
        if not isinstance(op, ops.ColumnOp) or op.output_names(group.names) != list(group.names):
            return False
    return True


def _time_kinds_in(schema: pa.Schema, names: Iterable[str]) -> dict[str, str]:
    """Return {column: what its times are}, without columns of other values."""
    kinds = {}
    for name in names:
        kind = time_kind(schema.field(name).type)
        if kind is not None:
            kinds[name] = kind
    return kinds
