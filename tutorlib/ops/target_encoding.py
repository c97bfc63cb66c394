"""TargetEncoding: the smoothed mean of a target among the rows with the same key, out of fold."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from tutorlib.checks import check_integer
from tutorlib.columns import Array, Chunk
from tutorlib.hashing import hash_integers, hash_values, mix, to_buckets
from tutorlib.ops.base import Op
from tutorlib.ops.group_op import GroupOp
from tutorlib.ops.shared.checks import check_real
from tutorlib.ops.shared.columns import per_column
from tutorlib.ops.shared.group_sums import GroupSums
from tutorlib.ops.shared.keys import group_rows


class TargetEncoding(GroupOp):
    """Gives each row the mean target of the rows with the same key, smoothed towards a prior.

    A key with n targets of sum s becomes (s + smoothing * prior) / (n + smoothing), so that a rare
    key does not rely on its few targets alone. Each column of the group is a key by itself, or with
    `combo` all columns make one key.

    If a row saw its own target, the model would learn to read it from the encoding. So rows are
    split into folds, and a row gets the mean and prior of all other folds. The fold is a hash of
    the row's value of `fold_column`, so that rows of one user or one day can be kept in one fold.
    Rows that were not learned from, for validation or serving, get the mean of all folds: use
    `workflow.for_serving()`, which does not need the fold column.

    Targets and fold column are read as the data has them, targets only to learn. Sums are exact and
    rounded once.

    Returns (from transform): columns `{key}_{target}_mean` of `dtype` in place of the keys. A key
    that is new, or null in any part, gets the prior. Missing targets are left out. In a column of
    lists each value is a key and counts as a row; the means come out as lists.

    Args:
        targets: column of numbers, or several.
        fold_column: column of integers or strings without nulls, such as a row's id. None if rows
            to transform are never rows learned from.
        folds: number of folds, 2 to 4095.
        smoothing: number of rows that the prior counts for, 0 or more.
        prior: mean to smooth towards, or {target: mean}; None for the mean of all rows.
        seed: another seed gives other folds.
        combo: whether the columns make one key together.
        name: of a combined key; None joins the columns' names by "_X_".
        dtype: of the output, "float16", "float32" or "float64".

    Raises:
        ValueError: for arguments out of range; in `finalize`, if a target has no value, or none
            outside a fold; if a row's fold column is null.
        TypeError: for keys as in Categorify, and for targets of strings or lists.

    Example:
        >>> group = ["user"] >> TargetEncoding("label", fold_column=None, smoothing=1)
        >>> chunk = Chunk({"user": np.array([7, 7, 5, 5]), "label": np.array([1, 1, 0, 0])})
        >>> group.ops[0].finalize(group.partial(chunk, 0))
        >>> group.transform(Chunk({"user": np.array([7, 5, 9])}))["user_label_mean"].tolist()
        [0.8333333134651184, 0.1666666716337204, 0.5]

    Source: D. Micci-Barreca, "A preprocessing scheme for high-cardinality categorical attributes",
    SIGKDD Explorations 3 (2001).
    """

    def __init__(
        self,
        targets: str | Sequence[str],
        fold_column: str | None,
        folds: int = 5,
        smoothing: float = 20.0,
        prior: float | Mapping[str, float] | None = None,
        seed: int = 0,
        combo: bool = False,
        name: str | None = None,
        dtype: str = "float32",
    ) -> None:
        self.targets = [targets] if isinstance(targets, str) else list(targets)
        self.fold_column = fold_column
        self.seed = check_integer("TargetEncoding: seed", seed, at_least=-(2**63), bits=63)
        self.folds = check_integer("TargetEncoding: folds", folds, at_least=2, bits=12)
        self.smoothing = check_real("TargetEncoding: smoothing", smoothing, at_least=0)
        self.prior = dict(prior) if isinstance(prior, Mapping) else prior
        if not self.targets or len(set(self.targets)) < len(self.targets):
            raise ValueError(f"TargetEncoding: name each target once, got {self.targets}")
        if isinstance(prior, Mapping) and set(prior) != set(self.targets):
            raise ValueError(
                f"TargetEncoding: prior must name each of {self.targets}, got {sorted(prior)}"
            )
        for number in prior.values() if isinstance(prior, Mapping) else [prior or 0]:
            check_real("TargetEncoding: prior", number)
        if fold_column in self.targets:
            raise ValueError(f"TargetEncoding: folds must not depend on the target {fold_column!r}")
        super().__init__(combo, name, dtype)

    @property
    def extra_columns(self) -> Sequence[str]:
        """The fold column."""
        return [] if self.fold_column is None else [self.fold_column]

    @property
    def extra_fit_columns(self) -> Sequence[str]:
        """The targets."""
        return self.targets

    def output_suffixes(self) -> list[str]:
        """Return "{target}_mean" of each target."""
        return [f"{target}_mean" for target in self.targets]

    def _folds_of(self, name: str, column: Any) -> Array:
        """Return int32 [n]: the fold of each row."""
        self._check_no_lists(name, column)
        values, valid = self._keys(name, column)
        if valid is not None and not bool(valid.all()):
            row = int((~valid).argmax())
            rule = (
                f"needs a value for each row's fold, got null at row {row} of the chunk. Choose "
                "another fold_column, or drop such rows by Dropna."
            )
            raise ValueError(self._wrong(name, rule))
        hashes = hash_values(values)
        hashes ^= hash_integers(np.array([self.seed]))[0]
        mix(hashes)
        return to_buckets(hashes, self.folds)

    def _folds(self, chunk: Chunk) -> Array | None:
        name = self.fold_column
        return None if name is None else self._folds_of(name, chunk[name])

    def partial(self, chunk: Chunk) -> dict[str, Any]:
        """Return {key: sums of the targets, by fold}."""
        return self._sums(chunk, self.targets)

    def _views(self) -> list[str]:
        """Return the suffixes of a target's means: of all folds, then of all but each one."""
        without = [] if self.fold_column is None else [f"_without_{f}" for f in range(self.folds)]
        return ["", *without]

    def gathered(self, key: str, states: Iterable[GroupSums]) -> Iterable[GroupSums]:
        """Return the states as they come, but with all folds of a key in one state."""
        return states if self.fold_column is None else _WholeKeys(states)

    def _learn_key(
        self, key: str, blocks: Iterable[GroupSums], learned: dict[str, dict[str, Any]]
    ) -> Chunk:
        priors = {target: self._priors_of(target, blocks) for target in self.targets}
        floats = {target: [float(prior) for prior in known] for target, known in priors.items()}
        learned["priors"][key] = floats
        return Chunk.concat([self._means_of(block, priors) for block in blocks])

    def _priors_of(self, target: str, blocks: Iterable[GroupSums]) -> list[Fraction]:
        """Return the prior of all rows, then of those outside each fold."""
        if self.prior is not None:
            return [Fraction(per_column(self.prior, target))] * len(self._views())
        totals = dict.fromkeys(self._views(), Fraction(0))
        counts = dict.fromkeys(self._views(), 0)
        for sums in blocks:
            together = np.zeros(len(sums), dtype=np.int64)
            views = self._by_view(target, sums, together, 1)
            for name, ((total,), (count,), e) in zip(self._views(), views, strict=True):
                totals[name] += Fraction(int(total), 1 << e)
                counts[name] += int(count)
        if not all(counts.values()):
            rule = (
                "found no value in all rows, or none outside a fold. Give a prior, or a "
                "fold_column with more distinct values."
            )
            raise ValueError(self._wrong(target, rule))
        return [totals[name] / counts[name] for name in self._views()]

    def _means_of(self, sums: GroupSums, priors: Mapping[str, list[Fraction]]) -> Chunk:
        """Return the keys with their means as a table."""
        rows, keys = group_rows(sums.keys if self.fold_column is None else sums.keys[:-1])
        groups = GroupSums(keys, {})
        kept = groups.known_in_order()
        means: dict[str, np.ndarray] = {}
        for target in self.targets:
            views = self._by_view(target, sums, rows, len(groups))
            for name, view, prior in zip(self._views(), views, priors[target], strict=True):
                means[f"{target}_mean{name}"] = self._smoothed(*view, prior)[kept]
        return self._table(groups.take(kept), means)

    def _by_view(
        self, target: str, sums: GroupSums, rows: np.ndarray, size: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
        """Yield (totals [size], counts [size], e) of all rows, then of those outside each fold."""
        totals, e = sums.totals("sum", target)
        counts = sums.arrays["count", target]

        def added(chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            total, count = np.zeros(size, dtype=totals.dtype), np.zeros(size, dtype=np.int64)
            np.add.at(total, rows[chosen], totals[chosen])
            np.add.at(count, rows[chosen], counts[chosen])
            return total, count

        total, count = added(np.arange(len(rows)))
        yield total, count, e
        if self.fold_column is not None:
            folds = sums.keys[-1].to_numpy()
            for fold in range(self.folds):
                inside, count_inside = added(np.flatnonzero(folds == fold))
                yield total - inside, count - count_inside, e

    def _smoothed(
        self, totals: np.ndarray, counts: np.ndarray, e: int, prior: Fraction
    ) -> np.ndarray:
        """Return (sum + smoothing * prior) / (count + smoothing), exact, then rounded."""
        smoothing = Fraction(self.smoothing)
        weight, unit = smoothing.numerator, smoothing.denominator
        added = (weight * prior.numerator) << e
        scale = unit * prior.denominator
        means = [
            (total * scale + added) / ((count * unit + weight) * prior.denominator << e)
            if count or weight
            else float(prior)
            for total, count in zip(totals.tolist(), counts.tolist(), strict=True)
        ]
        return np.array(means, dtype=np.float64).astype(self.dtype)

    def learned(self) -> dict[str, Any]:
        """Return {"priors": {key: {target: [of all rows, of those outside each fold]}}}."""
        return {"priors": self._priors}

    def restore(self, learned: dict[str, Any], tables: Mapping[str, Chunk]) -> None:
        """Set priors and means."""
        self._priors = learned.get("priors", {})
        for key, by_target in self._priors.items():
            for target, known in by_target.items():
                for number in known:
                    check_real(f"column {key!r}: TargetEncoding: priors of {target!r}", number)
        super().restore(learned, tables)

    def numbers_of(self, key: str, suffix: str) -> np.ndarray:
        """Return the priors, which new keys get, then the means of each key."""
        columns = [self._tables[key][f"{suffix}{view}"] for view in self._views()]
        priors = np.array(self._priors[key][suffix.removesuffix("_mean")], dtype=self.dtype)
        means = np.vstack([priors, np.column_stack(columns)])
        return means if self.fold_column is not None else means[:, 0]

    def for_serving(self) -> Op:
        """Return the op with the means of all rows, which does not need the fold column."""
        op = copy.copy(self)
        op.fold_column = None
        priors = {
            key: {target: known[:1] for target, known in by_target.items()}
            for key, by_target in self._priors.items()
        }
        without = {f"{t}_mean{view}" for t in self.targets for view in self._views()[1:]}
        op.restore({"priors": priors}, {k: t.drop(list(without)) for k, t in self._tables.items()})
        return op


class _WholeKeys:
    """States whose keys rise, divided so that all folds of a key are in one state."""

    def __init__(self, blocks: Iterable[GroupSums]) -> None:
        self._blocks = blocks

    def __iter__(self) -> Iterator[GroupSums]:
        held: list[GroupSums] = []
        for block in self._blocks:
            sums = GroupSums.merged([*held, block])
            sums = sums.take(sums.order())
            end = len(sums)
            while end and all(key[end - 1] == key[-1] for key in sums.keys[:-1]):
                end -= 1
            yield sums.take(np.arange(end))
            held = [sums.take(np.arange(end, len(sums)))]
        yield from held
