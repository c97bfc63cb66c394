"""GroupSums: counts, exact sums, extremes of groups of rows, as a state that merges in any order.

On the CPU. Does not belong here: what is made of the sums.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tutorlib.ops.exact import as_integers, limb_sums, squares
from tutorlib.ops.keys import group_rows

_MERGE = {"min": np.minimum, "max": np.maximum}


@dataclasses.dataclass
class GroupSums:
    """What is known of groups of rows.

    Args:
        keys: parts of the groups' keys, Arrow arrays [groups]; a null is a key of its own.
        arrays: {("rows",): rows of each group, ("count", column): values that are there,
            ("sum", column, limb) and ("square", column, limb): see `limb_sums`,
            ("min", column), ("max", column): extremes, infinite without a value}.
    """

    keys: list[pa.Array]
    arrays: dict[tuple[Any, ...], np.ndarray]

    def __len__(self) -> int:
        return len(self.keys[0])

    @classmethod
    def of(
        cls,
        parts: Sequence[Any],
        columns: Mapping[str, np.ndarray],
        *,
        square: bool = False,
        extremes: bool = False,
    ) -> GroupSums:
        """Return what is known of some rows.

        Args:
            parts: columns [n] that together are the key of a row's group.
            columns: {name: float64 [n], NaN where there is no value} to be summed.
            square: whether to sum the squares too.
            extremes: whether to keep the smallest and largest value.
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
            for part in squares(values) if square else ():
                for limb, sums in limb_sums(part, where, size).items():
                    arrays["square", name, limb] = arrays.get(("square", name, limb), 0) + sums
            for kind in ("min", "max") if extremes else ():
                arrays[kind, name] = _neutral((kind,), size)
                _MERGE[kind].at(arrays[kind, name], where, values)
        return cls(keys, arrays)

    @classmethod
    def merged(cls, several: Sequence[GroupSums]) -> GroupSums:
        """Return what is known of the rows of all.

        Raises:
            TypeError: if one knows integers and another texts.
        """
        parts = list(zip(*(sums.keys for sums in several), strict=True))
        for part in parts:
            for other in part[1:]:
                if other.type != part[0].type:
                    kinds = sorted(map(str, (part[0].type, other.type)))  # whichever came first
                    raise TypeError(f"cannot group by {' and by '.join(kinds)} at once")
        groups, keys = group_rows([pa.concat_arrays(part) for part in parts])
        places = np.split(groups, np.cumsum([len(sums) for sums in several])[:-1])
        arrays: dict[tuple[Any, ...], np.ndarray] = {}
        for where, sums in zip(places, several, strict=True):
            for name, given in sums.arrays.items():
                if name not in arrays:
                    arrays[name] = _neutral(name, len(keys[0]))
                _MERGE.get(name[0], np.add).at(arrays[name], where, given)
        return cls(keys, arrays)

    def to_table(self) -> pa.Table:
        """Return the groups as rows: `key_0`, `key_1`, ..., each array under its name as JSON."""
        keys = {f"key_{place}": key for place, key in enumerate(self.keys)}
        return pa.table({**keys, **{json.dumps(n): array for n, array in self.arrays.items()}})

    @classmethod
    def from_table(cls, table: pa.Table) -> GroupSums:
        """Return what `to_table` gave."""
        keys, arrays = [], {}
        for name, column in zip(table.column_names, table.columns, strict=True):
            array = pa.concat_arrays(column.chunks or [pa.array([], column.type)])
            if name.startswith("key_"):
                keys.append(array)
            else:
                arrays[tuple(json.loads(name))] = array.to_numpy()
        return cls(keys, arrays)

    def known_in_order(self) -> np.ndarray:
        """Return int64 [m]: the groups in whose key nothing is null, in the order of their keys."""
        table = pa.table({str(place): key for place, key in enumerate(self.keys)})
        order = pc.sort_indices(table, [(name, "ascending") for name in table.column_names])
        known = np.logical_and.reduce([key.is_valid().to_numpy(False) for key in self.keys])
        order = order.to_numpy().astype(np.int64)
        return order[known[order]]

    def take(self, rows: np.ndarray) -> GroupSums:
        """Return some of the groups, in the given order."""
        keys = [key.take(pa.array(rows)) for key in self.keys]
        return GroupSums(keys, {name: array[rows] for name, array in self.arrays.items()})

    def totals(self, kind: str, name: str) -> tuple[np.ndarray, int]:
        """Return (Python integers [groups], e): sums of a column, each integer * 2**-e.

        Args:
            kind: "sum" or "square".
            name: the column.
        """
        limbs = {key[2]: array for key, array in self.arrays.items() if key[:2] == (kind, name)}
        return as_integers(limbs, len(self))


def _neutral(name: tuple[Any, ...], size: int) -> np.ndarray:
    """Return what changes nothing when merged."""
    if name[0] in _MERGE:
        return np.full(size, np.inf if name[0] == "min" else -np.inf)
    return np.zeros(size, dtype=np.int64)
