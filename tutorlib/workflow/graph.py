"""OpGraph: column groups with their ops, as the engines that fit, write and save them see it.

`Workflow` is the class for users: an OpGraph that also knows data sets, files and clusters.
"""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from tutorlib.chunk import Chunk
from tutorlib.display import html_table, shortened
from tutorlib.inference import element_type
from tutorlib.ops import (
    Categorify,
    ColumnGroup,
    ColumnOp,
    HashBucket,
    HashedCross,
    LabelEncoder,
    Op,
    Rename,
    RowOp,
    Select,
    as_group,
    role_of,
)
from tutorlib.parquet import table_of, type_words
from tutorlib.schema import Column, Schema
from tutorlib.workflow.inputs import ColumnType, as_source

_MOST_LINES = 30  # of a workflow's text


class OpGraph:
    """Column groups with the ops that they go through, and row ops that come before all groups.

    Args and attributes: see `Workflow`.
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
        # Copies of the ops, so that fitting does not change those of the user.
        self.groups = [
            ColumnGroup(group.names, map(copy.copy, group.ops)) for group in map(as_group, groups)
        ]
        self.output_names = [name for group in self.groups for name in group.output_names]
        if twice := sorted({n for n in self.output_names if self.output_names.count(n) > 1}):
            raise ValueError(
                f"columns {twice} are outputs of more than one group. Put Rename into one of the "
                "groups, or select columns of a group with group[names]."
            )
        if isinstance(label_names, str):
            raise TypeError(f"label_names takes a list of names, got {label_names!r}")
        if label_names is None:
            label_names = ["label"] if "label" in self.output_names else []
        encoded = [
            name for group in self.groups for op in group.ops
            if isinstance(op, LabelEncoder) for name in group.output_names
        ]  # fmt: skip
        self.label_names, self.weight_name = (
            list(dict.fromkeys([*label_names, *encoded])),
            weight_name,
        )
        for name in [*self.label_names, *([weight_name] if weight_name else [])]:
            if name not in self.output_names:
                raise ValueError(
                    f"column {name!r} is declared as label or weight but is not among the outputs. "
                    f"Add [{name!r}] to the groups."
                )
        if weight_name in self.label_names:
            raise ValueError(f"column {weight_name!r} cannot be both a label and the weight")
        self.check_label_ids(self.label_names)
        self.row_ops = [row_ops] if isinstance(row_ops, RowOp) else list(row_ops)
        for op in self.row_ops:
            if not isinstance(op, RowOp):
                raise TypeError(f"row_ops takes Filter and Dropna, got {op!r}")
        self.input_types: dict[str, ColumnType] = {}
        self.nullable: list[str] = []

    def _title(self) -> str:
        fitted = "not fitted" if unfitted_ops(self.groups) else "fitted"
        columns = f"{len(self.input_names):,} columns in, {len(self.output_names):,} out"
        return f"{type(self).__name__}: {fitted}, {columns}"

    def __repr__(self) -> str:
        lines = [self._title(), *(f"  {group!r}" for group in self.groups)]
        if (rest := len(lines) - _MOST_LINES) > 1:
            lines[_MOST_LINES:] = [f"  ... {rest:,} more groups"]
        return "\n".join([*lines, *(f"  rows: {op!r}" for op in self.row_ops)])

    def _repr_html_(self) -> str:
        is_known = self.input_types and not unfitted_ops(self.groups)
        schema = self.output_schema if is_known else Schema([])
        rows = [("rows", repr(op), "", "") for op in self.row_ops]
        for group in self.groups:
            columns = [schema[name] for name in group.output_names if name in schema]
            sizes = [f"{c.name} {c.cardinality:,}" for c in columns if c.cardinality is not None]
            learned = [line for op in group.ops for line in _learned(op)]
            learned += [f"cardinality: {shortened(sizes)}"] if sizes else []
            gives = list(dict.fromkeys(f"{c.role} {c.dtype}" for c in columns))
            if group.output_names != list(group.names):
                gives.insert(0, shortened(group.output_names))
            ops = "\n".join(map(repr, group.ops))
            rows.append((shortened(group.names), ops, "\n".join(gives), "\n".join(learned)))
        return html_table(self._title(), ("columns", "ops", "gives", "learned"), rows)

    @property
    def input_names(self) -> list[str]:
        """Columns of the data that `transform` needs, each once."""
        of_groups = [name for group in self.groups for name in group.input_names]
        return list(dict.fromkeys(of_groups + [name for op in self.row_ops for name in op.names]))

    @property
    def fit_names(self) -> list[str]:
        """Columns of the data that `fit` needs, each once."""
        of_groups = [name for group in self.groups for name in group.fit_names]
        return list(dict.fromkeys(self.input_names + of_groups))

    def check_fitted(self) -> None:
        """Raise ValueError if an op is not fitted."""
        for group, index in unfitted_ops(self.groups):
            raise ValueError(
                f"{group.ops[index]!r} of the columns {list(group.names)} is not fitted. Call "
                "fit(source) first."
            )

    def transform(self, chunk: Any) -> Chunk:
        """Return the output columns, in order, for the rows of `chunk` that row ops keep.

        May be called from several threads at a time.

        Args:
            chunk: rows with the columns `input_names`, in the types fitted on: a `Chunk`, a pyarrow
                Table, or a pandas or polars DataFrame. Without the columns of labels and weight,
                these are left out of the result: see `for_columns`.

        Returns:
            A chunk with the columns `output_names`; `to_arrow()` and `to_pandas()` convert it.

        Raises:
            ValueError: before `fit`, or if a column is missing.
            TypeError: for anything else, such as paths: `transform_to_parquet` takes these.
            ValueError, TypeError: if values do not fit an op; names op and column.
        """
        self.check_fitted()
        if isinstance(chunk, str | os.PathLike | list):
            raise TypeError(
                f"transform takes rows in memory (a Chunk, a Table, a DataFrame), got {chunk!r}; "
                "transform_to_parquet takes files"
            )
        if not isinstance(chunk, Chunk):
            table = table_of(chunk)
            used = [name for name in table.schema.names if name in self.input_names]
            chunk = Chunk.from_arrow(table.select(used))
        graph = self.for_columns(chunk)
        if missing := [name for name in graph.input_names if name not in chunk]:
            raise ValueError(f"the workflow needs columns {missing}; there are {chunk.names}")
        chunk = kept_rows(graph.row_ops, chunk)
        columns: dict[str, Any] = {}
        for group in graph.groups:
            columns.update(group.transform(chunk))
        return Chunk(columns)

    def for_columns(self, names: Iterable[str]) -> Self:
        """Return the workflow for data that may lack labels and weight, as rows to predict do.

        Labels and weight that cannot be made are not among its outputs, and row ops that read
        their columns are left out. `transform`, `transform_to_parquet` and `loader.map` apply it to
        their data themselves.

        Args:
            names: columns of the data.

        Example:
            >>> import numpy as np
            >>> from tutorlib.ops import LogOp
            >>> from tutorlib.workflow import Workflow
            >>> workflow = Workflow(["x"] >> LogOp(), ["label"])
            >>> workflow.for_columns(["x"]).output_names
            ['x']
        """
        given = set(names)
        if given.issuperset(self.input_names):
            return self
        targets = {*self.label_names, self.weight_name}
        groups = [_with_columns(group, given, targets) for group in self.groups]
        lacking = copy.copy(self)
        lacking.groups = [group for group in groups if group is not None]
        lacking.output_names = [n for group in lacking.groups for n in group.output_names]
        lacking.label_names = [n for n in self.label_names if n in lacking.output_names]
        if self.weight_name not in lacking.output_names:
            lacking.weight_name = None
        features = {name for group in lacking.groups for name in group.input_names}
        unlabelled = {n for group in self.groups for n in group.input_names} - features - given
        lacking.row_ops = [
            op for op in self.row_ops if not (targets | unlabelled) & (set(op.names) - given)
        ]
        return lacking._with_its_types() if lacking.groups else self

    def for_serving(self) -> Self:
        """Return the workflow for rows that it was not fitted on: to validate and to predict.

        It drops no rows, and TargetEncoding uses the statistics of all folds, so that it does not
        need the fold column.

        Raises:
            ValueError: before `fit`.
        """
        self.check_fitted()
        serving = copy.copy(self)
        serving.groups = [
            ColumnGroup(group.names, [op.for_serving() for op in group.ops])
            for group in self.groups
        ]
        return serving.keeping_rows()

    def keeping_rows(self) -> Self:
        """Return the workflow without its row ops: it gives a row for each row.

        A loader needs this, because it plans its batches before it reads. Pass the condition of
        the row ops to the loader as `filters=`.
        """
        keeping = copy.copy(self)
        keeping.row_ops = []
        return keeping._with_its_types()

    def _with_its_types(self) -> Self:
        """Keep only the types of the columns that are still read."""
        types = self.input_types
        self.input_types = {name: types[name] for name in self.input_names if name in types}
        return self

    @property
    def output_schema(self) -> Schema:
        """Name, role, dtype and cardinality of each output column, in order.

        Raises:
            ValueError: before `fit`.
        """
        self.check_fitted()
        if not self.input_types:
            raise ValueError("the column types are not known yet. Call fit(source) first.")
        columns: list[Column] = []
        for group in self.groups:
            given = [(name, *self.input_types[name]) for name in group.names]
            columns += group.output_columns(
                [
                    Column(name, self._role(name, kind)).with_type(kind, hot)
                    for name, kind, hot in given
                ]
            )
        return Schema(self._with_role(column) for column in columns)

    def _role(self, name: str, kind: str) -> str:
        """Return the role of an input column: vectors of any number may be labels."""
        _, length = element_type(kind)
        return "label" if length is not None and name in self.label_names else role_of(kind)

    def _with_role(self, column: Column) -> Column:
        if column.name in self.label_names:
            return dataclasses.replace(column, role="label", cardinality=None)
        if column.name == self.weight_name:
            return dataclasses.replace(column, role="weight", cardinality=None)
        return column

    def embedding_sizes(self) -> dict[str, tuple[int, int]]:
        """Return {column: (cardinality, embedding width)} of the columns that an op made ids of.

        Example:
            >>> import numpy as np
            >>> from tutorlib.ops import HashBucket
            >>> from tutorlib.workflow import Workflow
            >>> workflow = Workflow(["C1"] >> HashBucket(1000))
            >>> workflow.fit(Chunk({"C1": np.arange(3)})).embedding_sizes()
            {'C1': (1000, 77)}
        """
        schema = self.output_schema
        return Schema(c for c in schema if c.cardinality is not None).embedding_sizes()

    def check_label_ids(self, names: Iterable[str]) -> None:
        """Raise ValueError for output columns that cannot be labels, as ids of features.

        `Categorify(joint=True)` may make a label: its ids are those of a feature to predict.
        """
        for group in self.groups:
            makers = [op for op in group.ops if not isinstance(op, Rename | Select)]
            last = makers[-1] if makers else None
            if isinstance(last, Categorify | HashBucket | HashedCross):
                for name in set(names) & set(group.output_names):
                    if isinstance(last, Categorify) and last.joint:
                        continue
                    raise ValueError(
                        f"label {name!r}: {type(last).__name__} makes ids for features, not "
                        "classes 0 to n - 1: Categorify begins with padding, null and out of "
                        "vocabulary, and hashed classes collide. Use LabelEncoder; to predict the "
                        "ids of a feature, Categorify(joint=True) over both."
                    )

    @property
    def classes(self) -> dict[str, list[Any]]:
        """{label column, as LabelEncoder sees it: its classes in the order of their ids}."""
        return {name: encoder.classes_of(name) for name, encoder in self._label_encoders().items()}

    def decode(self, name: str, predictions: Any) -> Any:
        """Return the classes of a label that a model predicts: see `LabelEncoder.decode`.

        Raises:
            ValueError: if no LabelEncoder makes the label, or the predictions do not fit it.

        Example:
            >>> import numpy as np
            >>> from tutorlib.ops import LabelEncoder
            >>> from tutorlib.workflow import Workflow
            >>> workflow = Workflow(["y"] >> LabelEncoder()).fit(Chunk({"y": np.array([3, 5])}))
            >>> workflow.classes, workflow.decode("y", np.array([[0.9], [0.1]])).tolist()
            ({'y': [3, 5]}, [5, 3])
        """
        encoders = self._label_encoders()
        if name not in encoders:
            raise ValueError(f"no LabelEncoder makes {name!r}; it makes {[*encoders]}")
        _, lists = self.input_types.get(name, ("", False))
        return encoders[name].decode(name, predictions, multi_hot=lists)

    def _label_encoders(self) -> dict[str, LabelEncoder]:
        """Return {column: its op}, the column as the op sees it."""
        found = {}
        for group in self.groups:
            names: Sequence[str] = group.names
            for op in group.ops:
                if isinstance(op, LabelEncoder):
                    found.update(dict.fromkeys(names, op))
                names = op.output_names(names)
        return found

    def check_data(self, data: Any) -> None:
        """Raise ValueError unless `data` has the columns that the workflow was fitted on.

        Args:
            data: what `fit` takes. Columns that the workflow does not use do not matter; those of
                labels and weight may be missing.

        Raises:
            ValueError: lists each column that is missing or has another type.

        Example:
            >>> import numpy as np
            >>> from tutorlib.workflow import Workflow
            >>> workflow = Workflow(["x"]).fit(Chunk({"x": np.arange(3)}))
            >>> workflow.check_data(Chunk({"x": np.ones(3)}))
            Traceback (most recent call last):
            ValueError: the columns do not match those fitted on: 'x' is float64, was int64. ...
        """
        types = as_source(data).column_types
        differences = [
            f"{name!r} is {type_words(types[name]) if name in types else 'missing'}, "
            f"was {type_words(kind)}"
            for name, kind in self.for_columns(types).input_types.items()
            if types.get(name) != kind
        ]
        if differences:
            raise ValueError(
                f"the columns do not match those fitted on: {'; '.join(differences)}. Write the "
                "data with the same types, or fit the workflow again."
            )


def _with_columns(group: ColumnGroup, given: set[str], targets: set[Any]) -> ColumnGroup | None:
    """Return a group without the target columns that data lacks; None if it made nothing else."""
    missing = set(group.input_names) - given
    if not missing:
        return group
    kept = [name for name in group.names if name in given]
    by_column = all(
        isinstance(op, ColumnOp) and op.output_names(group.names) == list(group.names)
        for op in group.ops
    )
    if kept and by_column and missing <= targets:
        return ColumnGroup(kept, group.ops)
    return None if targets.issuperset(group.output_names) else group


def _learned(op: Op) -> Iterator[str]:
    """Yield what an op has learned, a line for each statistic."""
    for name, numbers in op.learned().items():
        if isinstance(numbers, Mapping):
            known = [f"{n} {v:.4g}" for n, v in numbers.items() if isinstance(v, int | float)]
            if known:
                yield f"{name}: {shortened(known)}"
    tables = [f"{key} {table.num_rows:,}" for key, table in op.learned_tables().items()]
    if tables:
        yield f"keys: {shortened(tables)}"


def unfitted_ops(groups: Sequence[ColumnGroup]) -> list[tuple[ColumnGroup, int]]:
    """Return each group with an unfitted op, and the index of its first one."""
    found = []
    for group in groups:
        names: Sequence[str] = group.names
        for index, op in enumerate(group.ops):
            if op.unlearned(names):
                found.append((group, index))
                break
            names = op.output_names(names)
    return found


def kept_rows(row_ops: Sequence[RowOp], chunk: Chunk) -> Chunk:
    """Return the rows that all row ops keep, in order."""
    for op in row_ops:
        chunk = op.apply(chunk)
    return chunk
