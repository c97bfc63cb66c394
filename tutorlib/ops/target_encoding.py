"""TargetEncoding: the smoothed mean of a target among the rows with the same key, out of fold."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tutorlib.checks import check_integer
from tutorlib.columns import (
    Array,
    Chunk,
    EncodedStrings,
    Ragged,
    array_namespace,
    as_lists,
    column_from_arrow,
    flat_values,
    is_array,
    row_ids,
    to_host,
)
from tutorlib.hashing import KeyIndex, hash_integers, hash_values, mix, to_buckets
from tutorlib.ops.base import LearningOp, check_real, float_dtype
from tutorlib.ops.keys import distinct_keys, find_keys
from tutorlib.schema import Column

Sums = tuple[pa.Array, np.ndarray]  # keys, and float64 [2, keys, folds]: counts and sums


class TargetEncoding(LearningOp):
    """Gives each row the mean target of the rows with the same key, smoothed towards a prior.

    A key with n targets of sum s becomes (s + smoothing * prior) / (n + smoothing), so that a rare
    key does not rely on its few targets alone. Each column of the group is a key by itself.

    Rows that were not learned from, for validation and serving, get the mean of all rows: that is
    what `Workflow.transform` and `loader.map(workflow)` give. A row that was learned from must not
    get it, or the model learns to read the row's own target. For these rows use
    `workflow.for_training()`: rows are split into folds, and each gets mean and prior of all other
    folds. The fold is a hash of the row's value of `fold_column`, so that rows of one user or one
    day can be kept in one fold.

        train = KerasSequenceLoader(train_files, 4096).map(workflow.for_training())
        valid = KerasSequenceLoader(valid_files, 4096).map(workflow)

    Target and fold column are read as the data has them: the target only to learn, the fold column
    to learn and for training.

    Returns (from transform): columns `{key}_{target}_mean` of `dtype` in place of the keys. A key
    that is new or null gets the prior. Missing targets are left out. In a column of lists each
    value is a key and counts as a row; the means come out as lists.

    Args:
        target: column of numbers.
        fold_column: column of integers or strings without nulls, such as a row's id. None if rows
            to transform are never rows learned from.
        folds: number of folds, 2 to 255.
        smoothing: number of rows that the prior counts for, 0 or more.
        prior: mean to smooth towards; None for the mean of all rows.
        seed: another seed gives other folds.
        dtype: of the output, "float16", "float32" or "float64".

    Raises:
        ValueError: for arguments out of range; in `finalize`, if the target has no value, or none
            outside a fold; if a row's fold column is null; for training without a fold column.
        TypeError: for keys as in Categorify, and for a target of strings or lists.

    Example:
        >>> group = ["user"] >> TargetEncoding("label", fold_column=None, smoothing=1)
        >>> chunk = Chunk({"user": np.array([7, 7, 5, 5]), "label": np.array([1, 1, 0, 0])})
        >>> group.ops[0].finalize(group.partial(chunk, 0))
        >>> group.transform(Chunk({"user": np.array([7, 5, 9])}))["user_label_mean"].tolist()
        [0.8333333134651184, 0.1666666716337204, 0.5]

    Source: D. Micci-Barreca, "A preprocessing scheme for high-cardinality categorical attributes",
    SIGKDD Explorations 3 (2001). The same two ways as `fit_transform` and `transform` of
    scikit-learn's TargetEncoder.
    """

    def __init__(
        self,
        target: str,
        fold_column: str | None,
        folds: int = 5,
        smoothing: float = 20.0,
        prior: float | None = None,
        seed: int = 0,
        dtype: str = "float32",
    ) -> None:
        self.target, self.fold_column = target, fold_column
        self.seed = check_integer("TargetEncoding: seed", seed, at_least=-(2**63), bits=63)
        self.folds = check_integer("TargetEncoding: folds", folds, at_least=2, bits=8)
        self.smoothing = check_real("TargetEncoding: smoothing", smoothing, at_least=0)
        self.prior = None if prior is None else check_real("TargetEncoding: prior", prior)
        self.dtype = float_dtype(dtype, "TargetEncoding")
        if not isinstance(target, str):
            raise TypeError(f"TargetEncoding: target must be the name of a column, got {target!r}")
        if fold_column == target:
            raise ValueError(f"TargetEncoding: folds must not depend on the target {target!r}")
        self._training = False
        self.reset()

    def for_training(self) -> TargetEncoding:
        """Return the op that gives each row the means of the folds that it is not in."""
        if self.fold_column is None:
            raise ValueError(
                "TargetEncoding: for_training() needs folds: name a column with a value for each "
                "row, such as its id, in fold_column="
            )
        op = copy.copy(self)
        op._training = True
        return op

    @property
    def extra_columns(self) -> Sequence[str]:
        """The fold column, for training."""
        return [str(self.fold_column)] if self._training else []

    @property
    def extra_fit_columns(self) -> Sequence[str]:
        """The target and the fold column."""
        return [self.target] if self.fold_column is None else [self.target, self.fold_column]

    def unlearned(self, names: Sequence[str]) -> list[str]:
        """Return the columns whose means are not known."""
        return [name for name in names if name not in self._tables]

    def output_names(self, names: Sequence[str]) -> list[str]:
        """Return `{key}_{target}_mean` of all keys; the keys themselves are dropped."""
        return [f"{name}_{self.target}_mean" for name in names]

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return continuous columns, lists where the key is one of lists."""
        outputs = zip(self.output_names([c.name for c in columns]), columns, strict=True)
        kind = "continuous", self.dtype
        return [Column(n, *kind, c.multi_hot or c.length is not None) for n, c in outputs]

    def _folds_of(self, chunk: Chunk) -> Array:
        """Return int32 [n]: the fold of each row."""
        name = str(self.fold_column)
        self._check_no_lists(name, chunk[name])
        values, valid = self._keys(name, chunk[name])
        if valid is not None and not bool(valid.all()):
            rule = (
                "needs a value for each row's fold, got null at row "
                f"{int((~valid).argmax())} of the chunk. Choose another fold_column, or leave such "
                "rows out by filters=."
            )
            raise ValueError(self._wrong(name, rule))
        hashes = hash_values(values)
        hashes ^= hash_integers(np.array([self.seed]))[0]
        mix(hashes)
        return to_buckets(hashes, self.folds)

    def partial(self, chunk: Chunk) -> dict[str, Sums]:
        """Return {key: counts and sums of the target, by key and fold}."""
        folds = 1 if self.fold_column is None else self.folds
        fold = np.zeros(chunk.num_rows, np.int32) if folds == 1 else to_host(self._folds_of(chunk))
        self._check_no_lists(self.target, chunk[self.target])
        target = to_host(self._floats(self.target, chunk[self.target]))
        valid = ~np.isnan(target)
        target = np.where(valid, target, 0.0)
        self._check_size(self.target, target)
        state = {}
        for name in chunk.drop(self.extra_fit_columns).names:
            column = as_lists(chunk[name])
            rows: Any = to_host(row_ids(column.offsets)) if isinstance(column, Ragged) else ...
            groups, keys = _grouped(*self._keys(name, flat_values(column), to_learn=True))
            cells = groups * np.int64(folds) + fold[rows]
            weights = valid[rows], target[rows]
            numbers = [np.bincount(cells, w, minlength=len(keys) * folds) for w in weights]
            state[name] = keys, np.stack(numbers).reshape(2, -1, folds)
        return state

    def merge_states(self, states: Sequence[Sums]) -> Sums:
        """Return counts and sums of all states, added in their order."""
        keys, places = distinct_keys([keys for keys, _ in states])
        total = np.zeros((2, len(keys), states[0][1].shape[2]))
        ends = np.cumsum([len(keys) for keys, _ in states])
        for place, (_, numbers) in zip(np.split(places, ends[:-1]), states, strict=True):
            total[:, place] += numbers  # a state has each key once
        return keys, total

    def learned_from(self, state: dict[str, Sums]) -> tuple[dict[str, Any], dict[str, Chunk]]:
        """Return (priors, {key: table of its means})."""
        priors, tables = dict(self._priors), dict(self._tables)
        for name, (keys, numbers) in state.items():
            # In the order of keys, nulls last, so that no sum depends on which key came first. A
            # key without a target gets the prior, as a new one does, so it need not be known.
            order = pc.array_sort_indices(keys).to_numpy()
            order = order[numbers[0, order].any(axis=1)]
            counts, sums = _with_views(numbers[:, order])
            keys = keys.take(pa.array(order)).drop_null()
            prior = self._priors_of(counts.sum(axis=0), sums.sum(axis=0))
            with np.errstate(invalid="ignore"):
                weight = counts + self.smoothing
                means = (sums + self.smoothing * prior) / weight
            means = np.where(weight == 0, prior, means)[: len(keys)].astype(self.dtype)
            table = {"key": column_from_arrow(keys), "mean": means[:, 0]}
            if self.fold_column is not None:
                table["out_of_fold"] = np.ascontiguousarray(means[:, 1:])
            priors[name], tables[name] = prior.tolist(), Chunk(table)
        return {"priors": priors}, tables

    def _priors_of(self, counts: np.ndarray, sums: np.ndarray) -> np.ndarray:
        """Return float64 [views]: the prior of all rows, then of those outside each fold."""
        if self.prior is not None:
            return np.full(counts.shape, float(self.prior))
        if not counts.all():
            rule = (
                "found no value in all rows, or none outside a fold. Give a prior, or a "
                "fold_column with more distinct values."
            )
            raise ValueError(self._wrong(self.target, rule))
        return sums / counts

    def finalize(self, state: dict[str, Sums]) -> None:
        """Learn means and priors, and make the indexes of the keys."""
        self.restore(*self.learned_from(state))

    def reset(self) -> None:
        """Forget what was learned."""
        self.restore({}, {})

    def learned(self) -> dict[str, Any]:
        """Return {"priors": {key: [of all rows, of those outside each fold]}}."""
        return {"priors": self._priors}

    def learned_tables(self) -> dict[str, Chunk]:
        """Return {key: table of its means, by all rows and out of each fold}."""
        return dict(self._tables)

    def restore(self, learned: dict[str, Any], tables: Mapping[str, Chunk]) -> None:
        """Set priors and means, and make the indexes of the keys."""
        self._priors = learned.get("priors", {})
        for key, numbers in self._priors.items():
            for number in numbers:
                check_real(f"column {key!r}: TargetEncoding: priors", number)
        self._tables = dict(tables)
        self._indexes = {key: KeyIndex(table["key"]) for key, table in tables.items()}

    def index_of(self, key: str) -> KeyIndex:
        """Return the index that finds a row's key in the table of `key`."""
        return self._indexes[key]

    def numbers_of(self, key: str, out_of_fold: bool = False) -> np.ndarray:
        """Return the prior, which new keys get, then the mean of each key.

        Returns:
            [1 + keys] for all rows, [1 + keys, folds] out of fold, of `dtype`.
        """
        prior, table = np.array(self._priors[key], dtype=self.dtype), self._tables[key]
        if out_of_fold:
            return np.vstack([prior[1:], table["out_of_fold"]])
        return np.concatenate([prior[:1], table["mean"]])

    def transform(self, chunk: Chunk) -> Chunk:
        """Return the means of each row's keys."""
        result: dict[str, Any] = {}
        fold = self._folds_of(chunk) if self._training else None
        for name in chunk.drop(self.extra_columns).names:
            column, index = as_lists(chunk[name]), self.index_of(name)
            values, valid = self._keys(name, flat_values(column))
            self._check_kind(name, values, index.keys)
            at = find_keys(index, values)
            if valid is not None:
                at[~valid] = 0
            numbers = array_namespace(at).asarray(self.numbers_of(name, self._training))
            lists = isinstance(column, Ragged)
            if fold is not None:
                at = at, fold[row_ids(column.offsets)] if lists else fold
            result[name] = Ragged(numbers[at], column.offsets) if lists else numbers[at]
        return Chunk(dict(zip(self.output_names([*result]), result.values(), strict=True)))


def _grouped(values: Any, valid: Array | None) -> tuple[np.ndarray, pa.Array]:
    """Return (the number of each value's key, the keys): in the CPU's memory, null the last key."""
    if isinstance(values, EncodedStrings):
        numbers, keys = values.codes, values.dictionary
    else:
        plain = (
            pa.array(to_host(values).astype(np.int64)) if is_array(values) else values.to_arrow()
        )
        encoded = plain.dictionary_encode()
        numbers, keys = encoded.indices.to_numpy(), encoded.dictionary
    if valid is not None:
        numbers = np.where(to_host(valid), numbers, len(keys))
        keys = pa.concat_arrays([keys, pa.nulls(1, keys.type)])
    return numbers, keys


def _with_views(numbers: np.ndarray) -> np.ndarray:
    """Return numbers of all rows, then of those outside each fold: [..., 1 + folds].

    Args:
        numbers: [..., folds]; a single fold stands for no folds, and has no view of its own.
    """
    folds = numbers.shape[-1]
    everything = numbers.sum(axis=-1, keepdims=True)
    if folds == 1:
        return everything
    # Sums from both ends, so that nothing is subtracted: a fold may be far larger than the others.
    before, after = np.zeros_like(numbers), np.zeros_like(numbers)
    before[..., 1:] = np.cumsum(numbers[..., :-1], axis=-1)
    after[..., :-1] = np.cumsum(numbers[..., :0:-1], axis=-1)[..., ::-1]
    return np.concatenate([everything, before + after], axis=-1)
