"""Ranks of one training: what they must have alike, checked before Keras trains with them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tutorlib.keras_bridge.processes import batch_parts, gathered, process_count
from tutorlib.loader.cursor import differences
from tutorlib.loader.settings import LoaderSettings
from tutorlib.schema import Schema

LINES = 8  # of differences that an error shows


def refuse_other_ranks(
    identity_of: Callable[[], Mapping[str, Any]],
    share: tuple[int, int],
    *,
    stale: bool,
    files_of: Callable[[], Mapping[str, str]],
) -> None:
    """Raise ValueError on all joined processes if their loaders do not belong together.

    All of them must call it. A process of its own computes nothing for it.

    Args:
        identity_of: returns what all ranks must have alike, as JSON values.
        share: (global_size, global_rank) of the loader.
        stale: whether `keras.distribution` was set up after the loader was made.
        files_of: returns {file: what it holds}, for messages.
    """
    if process_count() == 1:
        return
    _refuse_wrong_shares(json.loads(x) for x in gathered(json.dumps(None if stale else share)))
    identity = identity_of()
    if len(set(gathered(hash_of(identity)))) == 1:
        return
    mine = {"files": files_of(), **identity}
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


def check_joined_batches(
    settings: LoaderSettings, schema: Schema, rows: int, batch_sizes: Sequence[int]
) -> None:
    """Raise ValueError if Keras cannot join the processes' batches, or split one over devices.

    All processes get the same answer, so that none waits for another.

    Args:
        settings: settings of the loader.
        schema: schema of the batches.
        rows: rows of all ranks.
        batch_sizes: rows of each batch of this process.
    """
    parts, size = batch_parts(), settings.batch_size
    count = (settings.global_size or 1) if process_count() > 1 else 1  # of joined ranks
    lists = [column.name for column in schema if column.multi_hot]
    multi_hot = settings.multi_hot
    fixed = multi_hot.form == "padded" and multi_hot.max_length is not None
    if process_count() > 1 and lists and not fixed:
        raise ValueError(
            f"columns {lists}: Keras can join the batches of several processes only if their "
            "lists have the same width. Use multi_hot=MultiHot('padded', max_length=...)"
        )
    if size % parts:
        raise ValueError(
            f"batch_size={size} must be a multiple of {parts}, the devices of this process "
            f"that share a batch; {size // parts * parts or parts} would do"
        )
    if settings.drop_last or not (rows % count or any(n % parts for n in batch_sizes[-2:])):
        return
    enough = rows - rows % math.lcm(settings.canonical_ranks or count, count * parts)
    remedy = f", or ParquetSource(...).head({enough}), which leaves out {rows - enough}"
    raise ValueError(
        f"the last batches of {rows} rows do not have equally many on each of {count * parts} "
        f"devices, as Keras needs. Use drop_last=True{remedy if enough else ''}"
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


def hash_of(identity: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits of JSON values."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
