"""Workflow: preprocessing that is written once: fitted, applied, saved, loaded, handed to a loader.

Belongs here: which ops go over which columns, in how many passes they learn, what comes out, how
all of it is kept on disk. Does not belong here: what an op does to values (`ops.py`).
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tutorlib.chunk import Chunk, Masked, Ragged, Strings
from tutorlib.files import refuse_existing, written_whole
from tutorlib.ops import ColumnGroup, LearningOp, Op, as_group, column_type, role_of
from tutorlib.parquet import ParquetSink, ParquetSource
from tutorlib.schema import Column, Schema

FORMAT_VERSION = 1
THREADS = 2  # chunks worked on at a time; each holds its memory


class Workflow:
    """Preprocessing of a data set: groups of columns, each with the ops that it goes through.

    What is not in a group does not come out; a plain list of names passes columns through as they
    are. A column that comes out is a label if `label_names` says so, else what its last op makes of
    it, else what its type suggests: floating point continuous, integers and texts categorical.

    Args:
        *groups: `["a", "b"] >> Op() >> Op()`, or lists of names.
        label_names: columns that come out as labels; None means "label", if it comes out.
        weight_name: column that comes out as sample weight.

    Raises:
        ValueError: if a column comes out of two groups, or a label or weight of none.

    Example:
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
        self.groups = [_copied(as_group(group)) for group in groups]
        self.output_names = [name for group in self.groups for name in group.output_names]
        twice = sorted({n for n in self.output_names if self.output_names.count(n) > 1})
        if twice:
            raise ValueError(
                f"columns {twice} come out of more than one group. Put Rename into one of them, or "
                "keep only some columns of a group by group[names]."
            )
        if label_names is None:
            label_names = ["label"] if "label" in self.output_names else []
        self.label_names, self.weight_name = list(label_names), weight_name
        for name in [*self.label_names, *([weight_name] if weight_name else [])]:
            if name not in self.output_names:
                raise ValueError(
                    f"column {name!r} does not come out, which is to be a label or weight. Add "
                    f"[{name!r}] to the groups."
                )
        self._inputs: dict[str, tuple[str, bool]] = {}

    def __repr__(self) -> str:
        return f"Workflow({', '.join(map(repr, self.groups))})"

    @property
    def input_names(self) -> list[str]:
        """Columns that `fit` and `transform` need, each once."""
        return list(dict.fromkeys(name for group in self.groups for name in group.names))

    # ------------------------------------------------------------------------------------- fitting

    def fit(self, source: Any) -> Workflow:
        """Learn everything that the ops need, in as few passes over the data as they allow.

        Statistics that depend on other statistics (Normalize behind Categorify's ids) need a pass
        each; all others share one. A pass holds a few chunks at a time, read by `THREADS` threads,
        and the states. The result does not depend on chunks, threads or order.

        Args:
            source: `ParquetSource`, its paths, a `Chunk`, a list of chunks, a `pyarrow.Table` or a
                `pandas.DataFrame`.

        Returns:
            The workflow itself.

        Raises:
            ValueError, TypeError: naming op and column, if values do not fit an op. The workflow is
                then not fitted.
        """
        reader = _Reader(source)
        missing = [name for name in self.input_names if name not in reader.types]
        if missing:
            raise ValueError(f"columns {missing} are not in the data, which has {[*reader.types]}")
        self._inputs = {}
        for group in self.groups:
            for op in group.ops:
                op.reset()
        while pending := self._pending():
            self._pass(reader, pending)
        self._inputs = {name: reader.types[name] for name in self.input_names}
        return self

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

    @staticmethod
    def _pass(reader: _Reader, pending: list[tuple[ColumnGroup, int]]) -> None:
        def partial(chunk: Chunk) -> list[dict[str, Any]]:
            return [g.ops[place].partial(g.transform(chunk, place)) for g, place in pending]

        def merge(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> list[dict[str, Any]]:
            return [g.ops[k].merge(x, y) for (g, k), x, y in zip(pending, a, b, strict=True)]

        names = list(dict.fromkeys(name for group, _ in pending for name in group.names))
        with contextlib.closing(reader.map(partial, names)) as parts:
            states = _merge_all(parts, merge)
        for (group, place), state in zip(pending, states, strict=True):
            op = group.ops[place]
            if not isinstance(op, LearningOp):
                raise TypeError(f"{op!r} has to learn, but is no LearningOp")
            op.finalize(state)

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
        if not self._inputs:
            raise ValueError("the types of the columns are not known yet. Call fit(source) first.")
        columns: list[Column] = []
        for group in self.groups:
            given = [(name, *self._inputs[name]) for name in group.names]
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
            >>> from tutorlib.ops import HashBucket
            >>> workflow = Workflow(["C1"] >> HashBucket(1000))
            >>> workflow.fit(Chunk({"C1": np.arange(3)})).embedding_sizes()
            {'C1': (1000, 77)}
        """
        schema = self.output_schema
        return Schema(c for c in schema if c.cardinality is not None).embedding_sizes()

    # -------------------------------------------------------------------------------- transforming

    def transform(self, chunk: Chunk) -> Chunk:
        """Return the columns that come out, in order, of the rows of `chunk`.

        May be called from several threads at once.

        Raises:
            ValueError: before `fit`, or if a column is missing.
            ValueError, TypeError: naming op and column, if values do not fit an op.
        """
        self._check_fitted()
        missing = [name for name in self.input_names if name not in chunk]
        if missing:
            raise ValueError(f"the workflow needs columns {missing}; there are {chunk.names}")
        columns: dict[str, Any] = {}
        for group in self.groups:
            columns.update(group.transform(chunk))
        return Chunk(columns)

    def transform_to_parquet(
        self,
        source: Any,
        folder: str | os.PathLike[str],
        *,
        rows_per_file: int = 4_194_304,
        row_group_rows: int = 131_072,
        encoding: str = "fast",
        shuffle_seed: int | None = None,
        overwrite: bool = False,
    ) -> Path:
        """Write the transformed rows of `source` as Parquet files; streams, a few chunks at a time.

        The folder gets `part_*.parquet`, `_schema.json` (`Schema.load`) and `_workflow/`
        (`Workflow.load`). It appears whole, at the end: until then everything is in
        `{folder}.partial` beside it, which a rerun starts anew.

        Args:
            source: as for `fit`.
            folder: target.
            rows_per_file: rows of a part file.
            row_group_rows: rows of a row group; the unit in which a loader reads.
            encoding: "fast" or "default": see `ParquetSink`.
            shuffle_seed: None keeps the order. A number reads the row groups in a random order and
                shuffles the rows among `rows_per_file` of them at a time, which are then in memory;
                the same source, settings and seed give the same files.
            overwrite: whether a folder that is there may be replaced.

        Returns:
            The folder.

        Raises:
            FileExistsError: if the folder is there and `overwrite` is False.
        """
        self._check_fitted()
        reader = _Reader(source)
        schema = self.output_schema if self._inputs else None
        options = {"rows_per_file": rows_per_file, "row_group_rows": row_group_rows}
        refuse_existing(folder, overwrite)
        with written_whole(folder) as building:
            building.mkdir()
            parts = building / "parts"
            with (
                contextlib.closing(
                    reader.map(self.transform, self.input_names, shuffle_seed)
                ) as transformed,
                ParquetSink(parts, encoding=encoding, **options) as sink,
            ):
                ordered = shuffle_seed is None
                for chunk in (
                    transformed if ordered else _shuffled(transformed, rows_per_file, shuffle_seed)
                ):
                    sink.write(chunk)
            for file in sorted(parts.iterdir()):
                file.rename(building / file.name)
            parts.rmdir()
            if schema is not None:
                (building / "_schema.json").write_text(schema.to_json(), encoding="utf-8")
            self._write(building / "_workflow")
        return Path(folder)

    # ------------------------------------------------------------------------------- save and load

    @property
    def fingerprint(self) -> str:
        """SHA-256 over everything that decides what comes out; equal workflows have equal ones.

        Raises:
            ValueError: before `fit`, or if a LambdaOp has a function without a name.
        """
        digest = hashlib.sha256(json.dumps(self._describe(), sort_keys=True).encode())
        for _, name, table in self._tables():
            digest.update(name.encode())
            for part in _arrays(table):
                digest.update(f"{part.dtype.str}{part.shape}".encode())
                digest.update(np.ascontiguousarray(part))
        return digest.hexdigest()

    def _describe(self) -> dict[str, Any]:
        """Return everything but the tables, as JSON can hold it."""
        self._check_fitted()
        groups = [
            {
                "columns": list(group.names),
                "ops": [
                    {
                        "op": type(op).__name__,
                        "config": op.get_config(),
                        "learned": op.learned(),
                        "tables": list(op.learned_tables()),
                    }
                    for op in group.ops
                ],
            }
            for group in self.groups
        ]
        return {
            "format_version": FORMAT_VERSION,
            "label_names": self.label_names,
            "weight_name": self.weight_name,
            "inputs": {name: list(kind) for name, kind in self._inputs.items()},
            "groups": groups,
        }

    def _tables(self) -> Iterator[tuple[str, str, Chunk]]:
        """Yield (file name, table name, table) of every op's tables, in order."""
        for g, group in enumerate(self.groups):
            for o, op in enumerate(group.ops):
                for t, (name, table) in enumerate(op.learned_tables().items()):
                    yield _table_file(g, o, t), name, table

    def _check_saveable(self) -> None:
        functions: dict[str, Any] = {}
        for group in self.groups:
            for op in group.ops:
                function = getattr(op, "function", None)
                if function is not None:
                    other = functions.setdefault(op.function_name, function)
                    if other is not function:
                        raise ValueError(
                            f"two functions are called {op.function_name!r}; rename one, so that "
                            "load can tell them apart"
                        )

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
        self._check_saveable()
        self._describe()
        refuse_existing(folder, overwrite)
        with written_whole(folder) as building:
            self._write(building)
        return Path(folder)

    def _write(self, folder: Path) -> None:
        self._check_saveable()
        description = {**self._describe(), "fingerprint": self.fingerprint}
        folder.mkdir(parents=True, exist_ok=True)
        for file, _, table in self._tables():
            pq.write_table(table.to_arrow(), folder / file, compression="lz4")
        text = json.dumps(description, indent=1)
        (folder / "workflow.json").write_text(text, encoding="utf-8")

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        *,
        functions: Mapping[str, Callable[..., Any]] | None = None,
    ) -> Workflow:
        """Return the workflow that `save` wrote, fitted. Nothing from the files is executed.

        Args:
            folder: as given to `save`.
            functions: {name: function} of the workflow's LambdaOps.

        Raises:
            FileNotFoundError: if there is no workflow.
            ValueError: if it has another format version, an op that is not known, a LambdaOp whose
                function was not passed, or was changed after it was saved.
        """
        path = Path(folder) / "workflow.json"
        if not path.is_file():
            raise FileNotFoundError(f"no saved workflow at {folder}: {path.name} is not there")
        found = json.loads(path.read_text(encoding="utf-8"))
        version = found.get("format_version")
        if version != FORMAT_VERSION:
            raise ValueError(
                f"{path}: format version {version}, but this tutorlib reads version "
                f"{FORMAT_VERSION}. Fit and save the workflow again."
            )
        groups = [
            ColumnGroup(
                group["columns"],
                [
                    _load_op(path, g, o, saved, functions or {})
                    for o, saved in enumerate(group["ops"])
                ],
            )
            for g, group in enumerate(found["groups"])
        ]
        workflow = cls(*groups, label_names=found["label_names"], weight_name=found["weight_name"])
        workflow._inputs = {name: (dtype, hot) for name, (dtype, hot) in found["inputs"].items()}
        if workflow.fingerprint != found["fingerprint"]:
            raise ValueError(
                f"{path}: the files were changed after they were saved (the fingerprint is not "
                "theirs). Save the workflow again."
            )
        return workflow


def _table_file(group: int, op: int, table: int) -> str:
    return f"group{group}_op{op}_table{table}.parquet"


def _load_op(
    path: Path, group: int, place: int, saved: Mapping[str, Any], functions: Mapping[str, Any]
) -> Op:
    """Return an op as it was saved; tables are found by place, so no file name is believed."""
    kind = Op.registry.get(saved["op"])
    if kind is None:
        raise ValueError(
            f"{path}: op {saved['op']!r} is not known, there are {sorted(Op.registry)}. If it is "
            "yours, import its module before loading."
        )
    tables = {}
    for number, name in enumerate(saved["tables"]):
        table = pq.read_table(path.parent / _table_file(group, place, number))
        tables[name] = Chunk.from_arrow(table)
    op = kind.from_config(saved["config"], tables, functions)
    op.restore(saved["learned"], tables)
    return op


def _copied(group: ColumnGroup) -> ColumnGroup:
    """Return a group whose ops are copies: a workflow's learning stays its own."""
    return ColumnGroup(group.names, map(copy.copy, group.ops))


def _arrays(column: Any) -> Iterator[np.ndarray]:
    """Yield the arrays that a chunk or a column consists of."""
    if isinstance(column, Chunk):
        for name, part in column.items():
            yield np.frombuffer(name.encode(), np.uint8)
            yield from _arrays(part)
    elif isinstance(column, Ragged):
        yield column.offsets
        yield from _arrays(column.values)
    elif isinstance(column, Strings):
        yield column.offsets
        yield column.data
    elif isinstance(column, Masked):
        yield column.valid
        yield from _arrays(column.values)
    else:
        yield column


# ------------------------------------------------------------------------------- reading in passes


class _Reader:
    """Whatever rows come from: the types of its columns, and its chunks, any number of times."""

    def __init__(self, source: Any) -> None:
        if hasattr(source, "to_parquet") and hasattr(source, "columns"):  # a pandas DataFrame
            source = pa.Table.from_pandas(source, preserve_index=False)
        if isinstance(source, pa.Table):
            source = Chunk.from_arrow(source)
        if isinstance(source, Chunk):
            source = [source]
        elif not isinstance(source, ParquetSource) and not _are_chunks(source):
            source = ParquetSource(source)
        if len(source) == 0:
            raise ValueError("there are no rows to read")
        self.source = source
        if isinstance(source, ParquetSource):
            self.types = source.column_types
        else:
            self.types = {name: column_type(column) for name, column in source[0].items()}

    def map(
        self, function: Callable[[Chunk], Any], names: Sequence[str], seed: int | None = None
    ) -> Iterator[Any]:
        """Yield function(chunk) of each part, in order, worked on by threads ahead of use.

        With a seed, the order of the parts is random. Close the generator to end its threads.
        """
        places = np.arange(len(self.source))
        if seed is not None:
            np.random.default_rng([seed, 0]).shuffle(places)
        waiting: collections.deque[Future[Any]] = collections.deque()
        with ThreadPoolExecutor(THREADS, thread_name_prefix="workflow") as pool:
            try:
                for place in places.tolist():
                    waiting.append(pool.submit(self._work, function, place, list(names)))
                    if len(waiting) > THREADS:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def _work(self, function: Callable[[Chunk], Any], place: int, names: list[str]) -> Any:
        if not isinstance(self.source, ParquetSource):
            return function(self.source[place].select(names))
        chunk = self.source.read(place, names)
        try:
            return function(chunk)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{error} (In {self.source.place(place)}.)") from error


def _are_chunks(source: Any) -> bool:
    return isinstance(source, list | tuple) and all(isinstance(part, Chunk) for part in source)


def _merge_all(states: Iterable[Any], merge: Callable[[Any, Any], Any]) -> Any:
    """Return all states merged, pairing equals: n states of size s cost O(n s log n), not n^2 s."""
    levels: list[tuple[int, Any]] = []
    for state in states:
        level = 0
        while levels and levels[-1][0] == level:
            state = merge(levels.pop()[1], state)
            level += 1
        levels.append((level, state))
    return functools.reduce(merge, [state for _, state in reversed(levels)])


def _shuffled(chunks: Iterable[Chunk], rows: int, seed: int) -> Iterator[Chunk]:
    """Yield the rows shuffled among `rows` or more of them at a time."""
    generator = np.random.default_rng([seed, 1])
    held: list[Chunk] = []
    for chunk in chunks:
        held.append(chunk)
        if sum(part.num_rows for part in held) >= rows:
            whole, held = Chunk.concat(held), []
            yield whole.take(generator.permutation(whole.num_rows))
    if held:
        whole = Chunk.concat(held)
        yield whole.take(generator.permutation(whole.num_rows))
