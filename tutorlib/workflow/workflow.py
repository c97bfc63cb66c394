"""Workflow: preprocessing that is written once: fitted, applied, saved, loaded, handed to a loader.

Belongs here: which ops go over which columns, in how many passes they learn, what comes out, how
all of it is kept on disk. Does not belong here: what an op does to values (`ops.py`).
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tutorlib.checks import check_integer
from tutorlib.chunk import Chunk
from tutorlib.memory import thread_count
from tutorlib.ops import ColumnGroup, RowOp, as_group, role_of
from tutorlib.parquet import type_words
from tutorlib.schema import Column, Schema
from tutorlib.storage import refuse_existing, row_bar, written_whole
from tutorlib.workflow.dask_cluster import learn_on_cluster
from tutorlib.workflow.fit import FitPass, learn_on_threads
from tutorlib.workflow.inputs import as_source
from tutorlib.workflow.saved_form import (
    BESIDE_DATA,
    check_functions,
    fingerprint,
    read_files,
    write_files,
)
from tutorlib.workflow.write import Rewriting, rewrite


class Workflow:
    """Preprocessing of a data set: groups of columns, each with the ops that it goes through.

    What is not in a group does not come out; a plain list of names passes columns through as they
    are. A column that comes out is a label if `label_names` says so, else what its last op makes of
    it, else what its type suggests: floating point continuous, integers and texts categorical.

    Args:
        *groups: `["a", "b"] >> Op() >> Op()`, or lists of names.
        label_names: columns that come out as labels; None means "label", if it comes out.
        weight_name: column that comes out as sample weight.
        row_ops: `Filter` and `Dropna`: which rows are learned from and come out. They see the data
            as they are, before any group.

    Attributes:
        input_types: {column: (NumPy name of one value or "string", whether a row holds a list)}
            that was fitted on; empty before.

    Raises:
        ValueError: if a column comes out of two groups, or a label or weight of none, or is both.

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
        row_ops: Sequence[RowOp] | RowOp = (),
    ) -> None:
        if not groups:
            raise ValueError("a Workflow needs at least one group of columns")
        self.groups = [_copied(as_group(group)) for group in groups]
        self.output_names = [name for group in self.groups for name in group.output_names]
        twice = sorted({n for n in self.output_names if self.output_names.count(n) > 1})
        if twice:
            raise ValueError(
                f"columns {twice} come out of more than one group. Put Rename into one of them, or "
                "keep only some columns of a group by group[names]."
            )
        if isinstance(label_names, str):
            raise TypeError(f"label_names takes a list of names, got {label_names!r}")
        if label_names is None:
            label_names = ["label"] if "label" in self.output_names else []
        self.label_names, self.weight_name = list(label_names), weight_name
        for name in [*self.label_names, *([weight_name] if weight_name else [])]:
            if name not in self.output_names:
                raise ValueError(
                    f"column {name!r} does not come out, which is to be a label or weight. Add "
                    f"[{name!r}] to the groups."
                )
        if weight_name in self.label_names:
            raise ValueError(f"column {weight_name!r} cannot be both a label and the weight")
        self.row_ops = [row_ops] if isinstance(row_ops, RowOp) else list(row_ops)
        for op in self.row_ops:
            if not isinstance(op, RowOp):
                raise TypeError(f"row_ops takes Filter and Dropna, got {op!r}")
        self.input_types: dict[str, tuple[str, bool]] = {}

    def __repr__(self) -> str:
        parts = [*map(repr, self.groups)]
        return f"Workflow({', '.join(parts + [f'row_ops={self.row_ops}'] * bool(self.row_ops))})"

    @property
    def input_names(self) -> list[str]:
        """Columns that `transform` needs, each once."""
        named = (name for part in (*self.groups, *self.row_ops) for name in _needed(part))
        return list(dict.fromkeys(named))

    @property
    def fit_names(self) -> list[str]:
        """Columns that `fit` needs, each once."""
        learned = (name for group in self.groups for name in group.fit_names)
        return list(dict.fromkeys([*self.input_names, *learned]))

    # ------------------------------------------------------------------------------------- fitting

    def fit(
        self,
        source: Any,
        client: Any = None,
        *,
        threads: int | None = None,
        memory_budget: int | None = None,
        progress: bool | None = None,
    ) -> Workflow:
        """Learn everything that the ops need, in as few passes over the data as they allow.

        Statistics that depend on other statistics (Normalize behind Categorify's ids) need a pass
        each; all others share one. A pass holds a part of at most 262,144 rows on each thread, and
        the states: for Categorify 16 bytes a different integer. The result does not depend on
        parts, threads, machines or order, to the last bit.

        Args:
            source: `ParquetSource`, rows of one (`split_rows`), its paths, a `Chunk`, a list of
                chunks, a `pyarrow.Table` or a `pandas.DataFrame`.
            client: `distributed.Client`: its workers, which must see the files under the same
                paths, learn in place of threads, and survive the death of some of them.
            threads: None for as many as there are cores.
            memory_budget: bytes of the states of Categorify, JoinGroupby and TargetEncoding,
                beyond which they go to files in the temporary folder (TMPDIR), to be merged at the
                end: for columns with more different values than fit into memory. What is learned
                has to fit. None for no limit.
            progress: True for a bar (tqdm), False for none, None for one on a terminal.

        Returns:
            The workflow itself.

        Raises:
            ValueError, TypeError: naming op, column and row group, if values do not fit an op. The
                workflow is then not fitted.
            ValueError: if there are no rows to learn from; for both `client` and `threads` or
                `memory_budget`: a cluster has its own.
        """
        if client is not None and not (threads is None and memory_budget is None):
            raise ValueError(
                "threads and memory_budget are those of this process; with client=, set "
                "threads_per_worker and memory_limit of its workers"
            )
        if not (memory_budget is None or (isinstance(memory_budget, int) and memory_budget > 0)):
            raise ValueError(f"memory_budget must be a number of bytes, got {memory_budget!r}")
        threads = thread_count(threads)
        source = as_source(source)
        types = source.column_types
        missing = [name for name in self.fit_names if name not in types]
        if missing:
            raise ValueError(f"columns {missing} are not in the data, which has {[*types]}")
        self._forget()
        if source.num_rows == 0 and self._pending():
            raise ValueError("the data has no rows to learn from")
        passes = 0
        try:
            while pending := self._pending():
                passes += 1
                work = FitPass(self, pending, source)
                with row_bar(f"fit, pass {passes}", source.num_rows, progress) as done:
                    if client is None:
                        learn_on_threads(work, threads, memory_budget, done)
                    else:
                        learn_on_cluster(client, work, done)
        except BaseException:
            self._forget()
            raise
        self.input_types = {name: types[name] for name in self.input_names}
        return self

    def _forget(self) -> None:
        self.input_types = {}
        for group in self.groups:
            for op in group.ops:
                op.reset()

    def _pending(self) -> list[tuple[ColumnGroup, int]]:
        """Return each group that has to learn, with the place of its first op that has to."""
        pending = []
        for group in self.groups:
            names: Sequence[str] = group.names
            for place, op in enumerate(group.ops):
                if op.unlearned(names):
                    pending.append((group, place))
                    break
                names = op.output_names(names)
        return pending

    def names_to_learn(self, pending: Sequence[tuple[ColumnGroup, int]]) -> list[str]:
        """Return the columns of the data that `partial` needs for these ops."""
        needed = [*(group for group, _ in pending), *self.row_ops]
        return list(dict.fromkeys(name for part in needed for name in _needed(part, fit=True)))

    def partial(
        self, pending: Sequence[tuple[ColumnGroup, int]], chunk: Chunk
    ) -> list[dict[str, Any]]:
        """Return what ops learn from some rows: states, to be merged; changes nothing.

        Args:
            pending: (group, place of an op in it), whose ops before that place have learned.
            chunk: rows, with the columns `names_to_learn(pending)`.
        """
        chunk = self._rows(chunk)
        return [group.partial(chunk, place) for group, place in pending]

    def _rows(self, chunk: Chunk) -> Chunk:
        for op in self.row_ops:
            chunk = op.apply(chunk)
        return chunk

    def _check_fitted(self) -> None:
        pending = self._pending()
        if pending:
            group, place = pending[0]
            raise ValueError(
                f"{group.ops[place]!r} of the columns {list(group.names)} has learned nothing yet. "
                "Call fit(source) first."
            )

    # ---------------------------------------------------------------------------------- what comes

    @property
    def output_schema(self) -> Schema:
        """What comes out: name, role, dtype, cardinality of each column, in order.

        Raises:
            ValueError: before `fit`.
        """
        self._check_fitted()
        if not self.input_types:
            raise ValueError("the types of the columns are not known yet. Call fit(source) first.")
        columns: list[Column] = []
        for group in self.groups:
            given = [(name, *self.input_types[name]) for name in group.names]
            columns += group.output_columns(
                [Column(name, role_of(dtype), dtype, hot) for name, dtype, hot in given]
            )
        return Schema(self._with_role(column) for column in columns)

    def _with_role(self, column: Column) -> Column:
        if column.name in self.label_names:
            return dataclasses.replace(column, role="label", cardinality=None)
        if column.name == self.weight_name:
            return dataclasses.replace(column, role="weight", cardinality=None)
        return column

    def embedding_sizes(self) -> dict[str, tuple[int, int]]:
        """Return {name: (cardinality, embedding width)} of the columns whose ids were made here.

        Example:
            >>> import numpy as np
            >>> from tutorlib.ops import HashBucket
            >>> workflow = Workflow(["C1"] >> HashBucket(1000))
            >>> workflow.fit(Chunk({"C1": np.arange(3)})).embedding_sizes()
            {'C1': (1000, 77)}
        """
        schema = self.output_schema
        return Schema(c for c in schema if c.cardinality is not None).embedding_sizes()

    def to_keras(
        self,
        *,
        columns: Iterable[str] | None = None,
        functions: Mapping[str, Callable[..., Any]] | None = None,
        batch_layout: str = "columns",
        multi_hot: str = "nnzs",
    ) -> Any:
        """Return the fitted workflow as a Keras layer, for serving: raw values in, batches out.

        It gives what `for_serving().transform` gives, to the last bit: see `tutorlib.serving`, also
        for three exceptions; `ServedWorkflow` says how nulls and lists come in. `export_serving`
        saves it with a model.

        Args:
            columns: which of the columns that come out; None for all features, without labels.
            functions: {name: function of tensors} that do in TensorFlow what the functions of the
                LambdaOps do.
            batch_layout: "columns" or "stacked": see `keras_inputs`.
            multi_hot: "nnzs", "offsets", "ragged" or "padded": see `keras_inputs`.

        Returns:
            A `ServedWorkflow`.

        Raises:
            ValueError: before `fit`, or if an op cannot be served; the message has all of them.

        Example:
            >>> import numpy as np
            >>> from tutorlib.ops import HashBucket
            >>> workflow = Workflow(["C1"] >> HashBucket(1000)).fit(Chunk({"C1": np.arange(3)}))
            >>> workflow.to_keras()({"C1": np.array([0, 1])})["C1"].numpy().tolist()
            [[883], [566]]
        """
        from tutorlib.serving import ServedWorkflow

        serving = self.for_serving()
        schema = serving.output_schema
        chosen = schema.features if columns is None else schema.select(columns)
        options = {"batch_layout": batch_layout, "multi_hot": multi_hot, "functions": functions}
        return ServedWorkflow(serving.groups, serving.input_types, chosen, **options)

    # -------------------------------------------------------------------------------- transforming

    def transform(self, chunk: Chunk) -> Chunk:
        """Return the columns that come out, in order, of the rows of `chunk` that stay.

        May be called from several threads at once.

        Args:
            chunk: rows, all of them kept unless there are `row_ops`.

        Raises:
            ValueError: before `fit`, or if a column is missing.
            ValueError, TypeError: naming op and column, if values do not fit an op.
        """
        self._check_fitted()
        if not isinstance(chunk, Chunk):
            raise TypeError(
                f"transform takes a Chunk, got {type(chunk).__name__}. Make one of a table by "
                "Chunk.from_arrow(table)."
            )
        missing = [name for name in self.input_names if name not in chunk]
        if missing:
            raise ValueError(f"the workflow needs columns {missing}; there are {chunk.names}")
        chunk = self._rows(chunk)
        columns: dict[str, Any] = {}
        for group in self.groups:
            columns.update(group.transform(chunk))
        return Chunk(columns)

    def for_serving(self) -> Workflow:
        """Return the workflow for rows that nothing was learned from: to predict, to validate.

        No row is dropped, and TargetEncoding uses what it learned from all folds, without the
        column that they come from.

        Raises:
            ValueError: before `fit`.
        """
        self._check_fitted()
        serving = copy.copy(self)
        serving.groups = [
            ColumnGroup(group.names, [op.for_serving() for op in group.ops])
            for group in self.groups
        ]
        return serving.keeping_rows()

    def keeping_rows(self) -> Workflow:
        """Return the workflow without its `row_ops`: it gives a row for each row.

        For a loader, which plans its batches before it reads; give it the condition as `filters=`.
        """
        keeping = copy.copy(self)
        keeping.row_ops = []
        keeping.input_types = {
            n: self.input_types[n] for n in keeping.input_names if n in self.input_types
        }
        return keeping

    def transform_to_parquet(
        self,
        source: Any,
        folder: str | os.PathLike[str],
        *,
        rows_per_file: int = 1_048_576,
        row_group_rows: int = 131_072,
        encoding: str = "fast",
        shuffle_seed: int | Mapping[str, int | None] | None = None,
        overwrite: bool = False,
        client: Any = None,
        threads: int | None = None,
        progress: bool | None = None,
    ) -> Path:
        """Write the transformed rows of `source` as Parquet files; streams, a few parts at a time.

        The folder gets `part_*.parquet` with `_schema.json` (`Schema.load`), `_workflow/`
        (`Workflow.load`), and last `_manifest.json`: the files with rows and bytes, and the facts
        that decided what is in them. It appears whole, at the end: until then everything is in
        `{folder}.partial` beside it. A run that is killed leaves that; the same call goes on with
        it if data, workflow and settings are the same, and begins anew if anything is not. The
        files are the same to the byte in either case, and for any number of threads or workers.

        Args:
            source: as for `fit`. Or {name: source}: each goes to a folder of its name in `folder`.
                A split by time is `{"train": ParquetSource(paths, filters=[("day", "<", 6)]),
                "valid": ParquetSource(paths, filters=[("day", ">=", 6)])}`, one by order or chance
                `split_rows(source, {"train": 0.9, "valid": 0.1})`; fit on the part that trains.
            folder: target.
            rows_per_file: rows of a part file, of those read, in whole row groups; `row_ops` leave
                fewer.
            row_group_rows: rows of a row group; the unit in which a loader reads.
            encoding: "fast" or "default": see `ParquetSink`.
            shuffle_seed: None keeps the order. A number reads the row groups in a random order and
                shuffles the rows of each part file, which each thread then has in memory twice; the
                same source, settings and seed give the same files. {name: seed} for splits; a split
                that it does not name keeps its order.
            overwrite: whether a folder that is there may be replaced.
            client: `distributed.Client`, whose workers write part files in place of threads; they
                must see sources and folder under the same paths.
            threads: None for as many as there are cores; each holds about three parts of at most
                262,144 rows and a row group.
            progress: as for `fit`.

        Returns:
            The folder.

        Raises:
            FileExistsError: if the folder is there and `overwrite` is False.
            BlockingIOError: if another process is writing it.
            ValueError: if the columns are not as those learned from, or no row comes out.
        """
        self._check_fitted()
        check_functions(self)
        if client is not None and threads is not None:
            raise ValueError("threads are those of this process; with client=, its workers write")
        many = isinstance(source, Mapping) and not isinstance(source, Chunk)
        if many and not source:
            raise ValueError("source is {}: give {name: data} with one split at least")
        sources = {
            name: as_source(part) for name, part in (source if many else {"": source}).items()
        }
        for name, part in sources.items():
            if many and not re.fullmatch(r"[A-Za-z0-9][\w.=-]*", name):
                raise ValueError(f"the name of a split becomes that of a folder, got {name!r}")
            self.check_data(part)
        seeds = (
            shuffle_seed
            if isinstance(shuffle_seed, Mapping)
            else dict.fromkeys(sources, shuffle_seed)
        )
        if unknown := [name for name in seeds if name not in sources]:
            raise ValueError(f"shuffle_seed names {unknown}, but the splits are {list(sources)}")
        seeds = {
            name: None if seed is None else check_integer("shuffle_seed", seed, at_least=0)
            for name, seed in seeds.items()
        }
        threads = thread_count(threads)
        work = Rewriting(self, sources, rows_per_file, row_group_rows, encoding, seeds)
        refuse_existing(folder, overwrite)
        rows = sum(part.num_rows for part in sources.values())
        with row_bar("transform", rows, progress) as done:
            rewrite(
                work, folder, threads=threads, client=client, bar=done,
                finish=functools.partial(self._write_beside, list(sources)),
            )  # fmt: skip
        return Path(folder)

    def _write_beside(self, splits: Iterable[str], folder: Path) -> None:
        if self.input_types:
            for name in splits:
                text = self.output_schema.to_json()
                (folder / name / "_schema.json").write_text(text, encoding="utf-8")
        write_files(self, folder / BESIDE_DATA)

    def check_data(self, data: Any) -> None:
        """Raise ValueError if the columns of `data` are not of the types that were learned from.

        Args:
            data: as for `fit`. Columns that the workflow does not use may be there or not.

        Raises:
            ValueError: saying of each column what differs.

        Example:
            >>> import numpy as np
            >>> workflow = Workflow(["x"]).fit(Chunk({"x": np.arange(3)}))
            >>> workflow.check_data(Chunk({"x": np.ones(3)}))
            Traceback (most recent call last):
            ValueError: the columns are not those that were learned from: 'x' is float64, was ...
        """
        types = as_source(data).column_types
        differences = [
            f"{name!r} is missing, was {type_words(kind)}"
            if name not in types
            else f"{name!r} is {type_words(types[name])}, was {type_words(kind)}"
            for name, kind in self.input_types.items()
            if types.get(name) != kind
        ]
        if differences:
            raise ValueError(
                f"the columns are not those that were learned from: {'; '.join(differences)}. "
                "Write the data with the same types, or fit the workflow again."
            )

    # ------------------------------------------------------------------------------- save and load

    @property
    def fingerprint(self) -> str:
        """SHA-256 over everything that decides what comes out; equal workflows have equal ones.

        Raises:
            ValueError: before `fit`, or if a LambdaOp has a function without a name.
        """
        self._check_fitted()
        return fingerprint(self)

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the fitted workflow: `workflow.json`, and a Parquet file for each table learned.

        Args:
            folder: target; appears whole or not at all.
            overwrite: whether a folder that is there may be replaced.

        Returns:
            The folder.

        Raises:
            FileExistsError: if the folder is there and `overwrite` is False.
            ValueError: before `fit`, or if a LambdaOp has a function without a name.
        """
        self._check_fitted()
        check_functions(self)
        refuse_existing(folder, overwrite)
        with written_whole(folder) as building:
            write_files(self, building)
        return Path(folder)

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        *,
        functions: Mapping[str, Callable[..., Any]] | None = None,
        data: Any = None,
    ) -> Workflow:
        """Return the workflow that `save` wrote, fitted. Nothing from the files is executed.

        Args:
            folder: as given to `save`.
            functions: {name: function} of the workflow's LambdaOps.
            data: what it is going to be used on, as for `fit`, whose columns are compared with
                those that it was fitted on (`check_data`). None to compare later.

        Raises:
            FileNotFoundError: if there is no workflow.
            ValueError: if it has another format version, an op that is not known, a LambdaOp whose
                function was not passed, or was changed after it was saved, or does not fit `data`.
        """
        workflow = read_files(cls, Path(folder), functions or {})
        if data is not None:
            workflow.check_data(data)
        return workflow


def _needed(part: ColumnGroup | RowOp, *, fit: bool = False) -> list[str]:
    """Return the columns of the data that a group or row op needs."""
    if isinstance(part, RowOp):
        return part.names
    return part.fit_names if fit else part.input_names


def _copied(group: ColumnGroup) -> ColumnGroup:
    """Return a group whose ops are copies: a workflow's learning stays its own."""
    return ColumnGroup(group.names, map(copy.copy, group.ops))
