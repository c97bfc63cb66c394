"""Ranks of one training: what `keras.distribution` has joined, and what all must have alike.

Only JAX tells Keras of other processes; on other backends, each process is one of its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras
import numpy as np

from tutorlib.display import differences

LINES = 8  # of differences that an error shows


def process_count() -> int:
    """Return the number of processes that are joined; 1 for a process of its own."""
    if keras.backend.backend() != "jax":
        return 1
    import jax

    # Asking JAX for its processes starts its devices; then no other process could join.
    return jax.process_count() if jax.distributed.is_initialized() else 1


def process_index() -> int:
    """Return the number of this process, from 0."""
    if process_count() == 1:
        return 0
    import jax

    return jax.process_index()


def data_share() -> tuple[int, int] | tuple[None, None]:
    """Return (number of shares of the data, the share of this process); None for one process.

    Each process has a share of its own, but those that hold one replica of a model together, under
    `keras.distribution.ModelParallel`, need the same rows.
    """
    if process_count() == 1:
        return None, None
    distribution = keras.distribution.distribution()
    if distribution is None:
        return process_count(), process_index()
    shares = min(distribution.num_model_replicas, distribution.num_processes)
    return shares, distribution.data_shard_id


def batch_parts() -> int:
    """Return into how many equal parts the devices of this process split its batch, at least 1."""
    distribution = keras.distribution.distribution()
    if distribution is None or keras.backend.backend() != "jax":
        return 1
    return max(1, distribution.num_model_replicas // distribution.num_processes)


def gathered(text: str) -> list[str]:
    """Return what all processes gave, in their order; all of them must call this."""
    if process_count() == 1:
        return [text]
    from jax.experimental import multihost_utils

    data = np.frombuffer(text.encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(len(data)))
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: len(data)] = data
    rows = multihost_utils.process_allgather(padded)
    return [row[:size].tobytes().decode() for row, size in zip(rows, sizes, strict=True)]


def refuse_other_ranks(
    identity: Mapping[str, Any],
    share: tuple[int, int],
    *,
    stale: bool,
    files_of: Callable[[], Mapping[str, str]],
) -> None:
    """Raise ValueError on all joined processes if their loaders do not belong together.

    All of them must call it.

    Args:
        identity: what all ranks must have alike, as JSON values.
        share: (global_size, global_rank) of the loader.
        stale: whether `keras.distribution` was set up after the loader was made.
        files_of: returns {file: what it holds}, for messages.
    """
    _refuse_wrong_shares(json.loads(x) for x in gathered(json.dumps(None if stale else share)))
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
