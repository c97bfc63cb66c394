"""Ranks of one training: what they must have alike, checked before Keras trains with them."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable
from typing import Any

from tutorlib.keras_bridge.processes import batch_parts, data_share, gathered, process_count
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
    _workflow: Any
    _share_found: tuple[int | None, int | None] | None  # what data_share() gave; None: not asked

    @property
    def disorder(self) -> str:
        """Words for why rows do not come in the order of the files; "" if they do."""
        settings = self._settings
        if settings.shuffle:
            return "that shuffles (shuffle=True, the default)"
        mixes = f"that mixes the rows of canonical_ranks={settings.canonical_ranks}"
        return mixes if settings.ranks_held > 1 else ""

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits, equal on all ranks that belong to one training.

        They depend on the files, the columns, the Workflow of `map` (unless one of its functions
        has no name) and all settings of the order and form of batches, but not on the rank. `fit`
        and `evaluate` compare them over the processes that `keras.distribution` has joined; in
        other loops, gather and compare them before the first step.

        Example:
            >>> assert len(set(all_gather(loader.fingerprint()))) == 1  # doctest: +SKIP
        """
        return _hash(self._identity_of_all_ranks())

    def _identity_of_all_ranks(self) -> dict[str, Any]:
        """Return what all ranks must have alike, as JSON values."""
        identity, settings = self._planner.identity(), self._settings
        identity["settings"].pop("rank", None)
        identity["columns"] = {c.name: dataclasses.asdict(c) for c in self._format.schema}
        identity["workflow"] = None
        with contextlib.suppress(ValueError):  # an unnamed function, such as a lambda, has none
            identity["workflow"] = self._workflow and self._workflow.fingerprint
        identity["batches"] = {name: repr(getattr(settings, name)) for name in FORM_OF_BATCHES}
        return identity

    def _refuse_other_ranks(self) -> None:
        """Raise ValueError on all joined processes if their loaders do not belong together."""
        if process_count() == 1:
            return
        stale = self._share_found not in (None, data_share())
        share = self._settings.global_size or 1, self._settings.global_rank or 0
        _refuse_wrong_shares(json.loads(x) for x in gathered(json.dumps(None if stale else share)))
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


def _refuse_wrong_shares(shares: Iterable[list[int] | None]) -> None:
    """Raise ValueError unless all (global_size, global_rank) give each row equally often.

    Args:
        shares: of each process; None if `keras.distribution` was set up after it made its loader.
    """
    by_rank = dict(enumerate(shares))
    known = [share for share in by_rank.values() if share is not None]
    if len(known) < len(by_rank):
        stale = [rank for rank, share in by_rank.items() if share is None]
        raise ValueError(
            f"the loaders of ranks {stale} were made before keras.distribution was told of all "
            "processes and of the distribution, so they give other rows than they should now: "
            "make the loader after initialize() and set_distribution()"
        )
    size = known[0][0]
    if sorted(known) != sorted([[size, rank] for rank in range(size)] * (len(known) // size)):
        raise ValueError(
            f"[global_size, global_rank] of the processes are {known}: each rank from 0 to "
            "global_size - 1 must be that of equally many processes, or some rows are not read. "
            "Leave both out, or give jax.process_count() and jax.process_index()"
        )


def _hash(identity: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
