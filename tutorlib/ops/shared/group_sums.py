"""GroupSums: counts, exact sums and extremes of groups of rows: states that merge in any order."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tutorlib.ops.shared.exact import as_integers, limb_sums, squares
from tutorlib.ops.shared.keys import group_rows

_MERGE = {"min": np.minimum, "max": np.maximum}


@dataclasses.dataclass
class GroupSums:
    """Numbers of groups of rows, on the CPU.

    Args:
        keys: one Arrow array [groups] for each part of the groups' keys; a null is a value too.
        arrays: {("rows",): rows of each group; ("count", column): values that are not missing;
            ("sum", column, limb) and ("square", column, limb): see `limb_sums`; ("min", column) and
            ("max", column): extremes, infinite without a value}; each [groups].
    """

    keys: list[pa.Array]
    arrays: dict[tuple[Any, ...], np.ndarray]

    def __len__(self) -> int:
        return len(self.keys[0])

    @property
    def rows(self) -> np.ndarray:
        """Number of rows of each group, int64 [groups]."""
        return self.arrays["rows",]

    @classmethod
    def counted(cls, keys: Sequence[pa.Array | np.ndarray], rows: np.ndarray) -> GroupSums:
        """Return groups of which only the number of rows is known."""
        return cls([pa.array(part) for part in keys], {("rows",): rows})

    @classmethod
    def of(
        cls,
        parts: Sequence[Any],
        columns: Mapping[str, np.ndarray],
        *,
        square: bool = False,
        extremes: bool = False,
    ) -> GroupSums:
        """Return the numbers of some rows.

        Args:
            parts: columns [n] that make the key of each row's group.
            columns: {name: float64 [n], NaN at a missing value} to sum.
            square: whether to sum squares too.
            extremes: whether to keep the smallest and the largest value.
        """
        groups, keys = group_rows(parts)
        size = len(keys[0])
        arrays: dict[tuple[Any, ...], np.ndarray] = {("rows",): np.bincount(groups, minlength=size)}
        for name, column in columns.items():
            there = np.flatnonzero(~np.isnan(column))
            values, where = column[there] + 0.0, groups[there]  # so that -0.0 becomes 0.0
            arrays["count", name] = np.bincount(where, minlength=size)
            for limb, sums in limb_sums(values, where, size).items():
                arrays["sum", name, limb] = sums
            for addend, shift in squares(values) if square else ():
                for limb, sums in limb_sums(addend, where, size).items():
                    key = "square", name, limb - shift
                    arrays[key] = arrays.get(key, 0) + sums
            for kind in ("min", "max") if extremes else ():
                arrays[kind, name] = _neutral((kind,), size)
                _MERGE[kind].at(arrays[kind, name], where, values)
        return cls(keys, arrays)

    @classmethod
    def merged(cls, states: Sequence[GroupSums]) -> GroupSums:
        """Return the numbers of the rows of all states; TypeError if their keys differ in type."""
        check_same_keys(states)
        groups, keys = group_rows(_concatenated_keys(states))
        numbers = np.split(groups, np.cumsum([len(sums) for sums in states])[:-1])
        arrays: dict[tuple[Any, ...], np.ndarray] = {}
        for where, sums in zip(numbers, states, strict=True):
            for name, given in sums.arrays.items():
                if name not in arrays:
                    arrays[name] = _neutral(name, len(keys[0]))
                _MERGE.get(name[0], np.add).at(arrays[name], where, given)
        return cls(keys, arrays)

    @classmethod
    def concat(cls, states: Sequence[GroupSums]) -> GroupSums:
        """Return the groups of several states that know the same numbers and share no group."""
        names = states[0].arrays
        arrays = {name: np.concatenate([sums.arrays[name] for sums in states]) for name in names}
        return cls(_concatenated_keys(states), arrays)

    def to_table(self) -> pa.Table:
        """Return the groups as rows: `key_0`, `key_1`, ..., each array under its name as JSON."""
        keys = {f"key_{k}": key for k, key in enumerate(self.keys)}
        return pa.table({**keys, **{json.dumps(n): array for n, array in self.arrays.items()}})

    @classmethod
    def from_table(cls, table: pa.Table) -> GroupSums:
        """Return the state that `to_table` wrote."""
        keys, arrays = [], {}
        for name, column in zip(table.column_names, table.columns, strict=True):
            array = pa.concat_arrays(column.chunks or [pa.array([], column.type)])
            if name.startswith("key_"):
                keys.append(array)
            else:
                arrays[tuple(json.loads(name))] = array.to_numpy()
        return cls(keys, arrays)

    def order(self) -> np.ndarray:
        """Return int64 [groups]: the groups by key, strings by their bytes, nulls last."""
        if len(self.keys) == 1:
            return pc.array_sort_indices(self.keys[0]).to_numpy().astype(np.int64)
        table = pa.table({str(k): key for k, key in enumerate(self.keys)})
        order = pc.sort_indices(table, [(name, "ascending") for name in table.column_names])
        return order.to_numpy().astype(np.int64)

    def known_in_order(self) -> np.ndarray:
        """Return int64 [m]: the groups without a null in their key, by key."""
        known = np.logical_and.reduce([key.is_valid().to_numpy(False) for key in self.keys])
        order = self.order()
        return order[known[order]]

    def take(self, groups: np.ndarray) -> GroupSums:
        """Return some of the groups, int64 [m], in the given order."""
        keys = [key.take(pa.array(groups)) for key in self.keys]
        return GroupSums(keys, {name: array[groups] for name, array in self.arrays.items()})

    def totals(self, kind: str, name: str) -> tuple[np.ndarray, int]:
        """Return (integers [groups], e): each "sum" or "square" of a column * 2**e, exact."""
        limbs = {key[2]: array for key, array in self.arrays.items() if key[:2] == (kind, name)}
        return as_integers(limbs, len(self))


def check_same_keys(states: Sequence[GroupSums]) -> None:
    """Raise TypeError if a part of the keys has different types in several states."""
    for part in zip(*(sums.keys for sums in states), strict=True):
        types = sorted({str(key.type) for key in part})
        if len(types) > 1:
            raise TypeError(
                f"found keys of {' and of '.join(types)}. Give the column one type in all files."
            )


def _concatenated_keys(states: Sequence[GroupSums]) -> list[pa.Array]:
    return [pa.concat_arrays(part) for part in zip(*(sums.keys for sums in states), strict=True)]


def _neutral(name: tuple[Any, ...], size: int) -> np.ndarray:
    """Return the numbers that change nothing when others are merged into them."""
    if name[0] in _MERGE:
        return np.full(size, np.inf if name[0] == "min" else -np.inf)
    return np.zeros(size, dtype=np.int64)
