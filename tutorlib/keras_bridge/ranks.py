"""Ranks of one training: the processes that `keras.distribution` has joined.

Only JAX tells Keras of other processes; on other backends, each process is one of its own.
"""

from __future__ import annotations

import keras


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
