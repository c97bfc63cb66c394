"""Other libraries' readers, served from their own process: one line in, one line out.

`peers.py` starts it with the Python that has the library, which may be an old one, so it imports
nothing of this project. The first line in is the settings, {"paths", "batch_size", "slow_rows",
"label", "cache", "threads"}, answered by {"readers": names, "version": ...}. Every further line,
{"reader": name, "sums": bool}, is an epoch, answered by {"rows": ...} and, if asked for, "sums",
the sum of each column.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Batches = Callable[[], Iterable[dict[str, Any]]]  # by column name
    Readers = tuple[str, dict[str, Batches]]  # version, {name: reader}

WINDOW_ROWS = 10_000  # as everywhere in these benchmarks


def hf_datasets(settings: dict[str, Any]) -> Readers:
    """Return the readers of Hugging Face datasets."""
    import datasets
    import tensorflow as tf

    datasets.disable_progress_bars()
    table = datasets.Dataset.from_parquet(settings["paths"], cache_dir=settings["cache"])
    table = table.select(range(settings["slow_rows"]))
    slowest = table.select(range(max(1, len(table) // 4)))  # a few thousand rows a second
    label = settings["label"]

    def to_tf(shuffle: bool) -> Batches:
        made = slowest.to_tf_dataset(
            batch_size=settings["batch_size"],
            columns=[name for name in table.column_names if name != label],
            label_cols=label,
            shuffle=shuffle,
            drop_remainder=False,
        )
        return lambda: ({**inputs, label: target} for inputs, target in made)

    def iterable() -> Iterator[dict[str, Any]]:
        stream = table.to_iterable_dataset().shuffle(seed=0, buffer_size=WINDOW_ROWS)
        for batch in stream.with_format("numpy").iter(settings["batch_size"]):
            yield {name: tf.convert_to_tensor(values) for name, values in batch.items()}

    return datasets.__version__, {
        "to_tf_dataset, shuffled": to_tf(True),
        "to_tf_dataset, not shuffled": to_tf(False),
        "iterable, shuffled in a window": iterable,
    }


def ray_data(settings: dict[str, Any]) -> Readers:
    """Return the readers of Ray Data."""
    import ray
    import ray.data

    ray.init(
        num_cpus=settings["threads"],
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    table = ray.data.read_parquet(settings["paths"])
    size = settings["batch_size"]
    return ray.__version__, {
        "local shuffle": lambda: table.iter_tf_batches(
            batch_size=size, local_shuffle_buffer_size=2 * size
        ),
        "not shuffled": lambda: table.iter_tf_batches(batch_size=size),
    }


def merlin(settings: dict[str, Any]) -> Readers:
    """Return the readers of merlin-dataloader on the CPU."""
    import merlin.dataloader
    from merlin.dataloader.tensorflow import Loader
    from merlin.io import Dataset
    from merlin.schema import Tags

    table = Dataset(settings["paths"], engine="parquet", cpu=True)
    schema, label = table.schema, settings["label"]
    schema[label] = schema[label].with_tags(Tags.TARGET)
    table.schema = schema

    def batches(shuffle: bool) -> Batches:
        loader = Loader(table, batch_size=settings["batch_size"], shuffle=shuffle, device="cpu")
        return lambda: ({**inputs, label: target} for inputs, target in loader)

    return merlin.dataloader.__version__, {
        "shuffled": batches(True),
        "not shuffled": batches(False),
    }


LIBRARIES = {"datasets": hf_datasets, "ray": ray_data, "merlin": merlin}


def epoch(batches: Batches, sums: bool) -> dict[str, Any]:
    """Run an epoch; return {"rows": ...} and, if asked for, the sum of every column."""
    rows = 0
    totals: dict[str, float] = {}
    for batch in batches():
        counts = {tensor.shape[0] for tensor in batch.values()}
        if len(counts) != 1:
            raise ValueError(f"tensors of one batch have {sorted(counts)} rows")
        rows += counts.pop()
        if sums:
            for name, tensor in batch.items():
                total = float(tensor.numpy().sum(dtype="float64"))
                totals[name] = totals.get(name, 0.0) + total
    return {"rows": rows, "sums": totals} if sums else {"rows": rows}


def main(library: str) -> None:
    """Serve one library until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # keeps what a library prints out of the answers
    settings = json.loads(sys.stdin.readline())
    version, readers = LIBRARIES[library](settings)
    answers.write(json.dumps({"readers": sorted(readers), "version": version}) + "\n")
    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps(epoch(readers[request["reader"]], request["sums"])) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
