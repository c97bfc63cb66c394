"""Ranks of one training: what they must have alike, checked before Keras trains with them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from typing import Any

from tutorlib.keras_bridge import batch_parts, gathered, process_count
from tutorlib.loader.batch_format import BatchFormat
from tutorlib.loader.cursor import EpochCursor, differences
from tutorlib.loader.planning import Planner
from tutorlib.loader.settings import LoaderSettings
from tutorlib.parquet import ParquetSource, fingerprints_of_files

LINES = 8  # of differences that an error shows
FORM_OF_BATCHES = (
    "batch_layout", "multi_hot", "bucket_lists", "max_list_length", "check_ids", "nulls",
    "class_weight",
)  # fmt: skip


class Ranked:
    """A loader that may be one of several ranks."""

    source: ParquetSource
    _settings: LoaderSettings
    _format: BatchFormat
    _planner: Planner
    _cursor: EpochCursor

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits, equal on all ranks that belong to one training.

        They depend on the files, the columns and all settings of the order and form of batches, but
        not on the rank. `fit` and `evaluate` compare them over the processes that
        `keras.distribution` has joined; in other loops, gather and compare them before the first
        step.

        Example:
            >>> assert len(set(all_gather(loader.fingerprint()))) == 1  # doctest: +SKIP
        """
        return _hash(self._identity_of_all_ranks())

    def _identity_of_all_ranks(self) -> dict[str, Any]:
        """Return what all ranks must have alike, as JSON values."""
        identity, settings = self._planner.identity(), self._settings
        identity["settings"].pop("rank", None)
        identity["columns"] = {c.name: dataclasses.asdict(c) for c in self._format.schema}
        identity["batches"] = {name: repr(getattr(settings, name)) for name in FORM_OF_BATCHES}
        return identity

    def _refuse_other_ranks(self) -> None:
        """Raise ValueError on all joined processes if their loaders do not belong together."""
        if process_count() == 1:
            return
        self._cursor.draw_seed()
        identity = {"position": self._cursor.state_dict(), **self._identity_of_all_ranks()}
        if len(set(gathered(_hash(identity)))) == 1:
            return
        mine = {"files": fingerprints_of_files(self.source.stored), **identity}
        first, *others = [json.loads(text) for text in gathered(json.dumps(mine))]
        lines = []
        for rank, other in enumerate(others, start=1):
            words = f"{{name}} is {{now!r}} on rank {rank}, but {{was!r}} on rank 0"
            lines += differences(first, other, words=words)
        more = f"; and {len(lines) - LINES} more" if len(lines) > LINES else ""
        raise ValueError(
            "the processes of a training need loaders of the same files and settings: "
            f"{'; '.join(lines[:LINES])}{more}. Start all with the same program, arguments and "
            "files."
        )

    def _check_joined_batches(self) -> None:
        """Raise ValueError if Keras cannot join the processes' batches, or split one over devices.

        All processes get the same answer, so that none waits for another.
        """
        settings, planner = self._settings, self._planner
        parts, size = batch_parts(), settings.batch_size
        count = (settings.global_size or 1) if process_count() > 1 else 1  # of joined ranks
        lists = [column.name for column in self._format.schema if column.multi_hot]
        fixed = settings.multi_hot == "padded" and settings.max_list_length is not None
        if process_count() > 1 and lists and not fixed:
            raise ValueError(
                f"columns {lists}: Keras can join the batches of several processes only if their "
                "lists have the same width. Use multi_hot='padded' with max_list_length"
            )
        if size % parts:
            raise ValueError(
                f"batch_size={size} must be a multiple of {parts}, the devices of this process "
                f"that share a batch; {size // parts * parts or parts} would do"
            )
        rows, sizes = planner.total_rows, planner.any_plan().batch_sizes
        if settings.drop_last or not (rows % count or any(n % parts for n in sizes[-2:])):
            return
        enough = rows - rows % math.lcm(settings.canonical_ranks or count, count * parts)
        remedy = f", or limit_rows={enough}, which leaves out {rows - enough}" if enough else ""
        raise ValueError(
            f"the last batches of {rows} rows do not have equally many on each of {count * parts} "
            f"devices, as Keras needs. Use drop_last=True{remedy}"
        )


def _hash(identity: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
