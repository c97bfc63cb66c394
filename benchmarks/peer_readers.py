"""Other libraries' readers, served from their own process: a line in, a line out.

`peers.py` starts it with the Python that has the library, which may be an old one, so it imports
nothing of this project. The first line in is the settings
(`peers.peer`), answered by {"readers": {name: what it calls, in words}, "versions": {package:
version}}. Every further line is {"reader": name, "do": what}, where `what` is "start" or "stop",
around each turn, for a library with servers of its own; "epoch", answered by {"rows": ...}; or
"sums", an epoch answered by {"rows": ..., "sums": {column: sum}}.

Settings are those that the documentation of each library recommends; a comment says why.
"""

from __future__ import annotations

import dataclasses
import importlib.machinery
import importlib.metadata
import itertools
import json
import os
import shutil
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Batch = dict[str, Any]  # {column, or role of a matrix [batch, columns]: array or tensor}

WIDTH, BOTTOM, TOP = 8, 32, 32  # of the DLRM in PyTorch: the scaled widths of `networks.py`
LEARNING_RATE = 0.01  # Keras' default for SGD
WINDOW_ROWS = 10_000  # as everywhere in these benchmarks
PACKAGES = (
    "tensorflow-cpu", "torch", "numpy", "pyarrow", "datasets", "grain", "array-record",
    "mosaicml-streaming", "ray", "merlin-dataloader",
)  # fmt: skip


@dataclasses.dataclass
class Reader:
    """A way to read: `batches()` is an epoch; or to train: `train()` is one and returns its rows.

    `start` and `stop` are called before and after each turn, while no clock runs.
    """

    words: str
    batches: Callable[[], Iterable[Batch]] = lambda: ()
    train: Callable[[], int] | None = None
    start: Callable[[], Any] = lambda: None
    stop: Callable[[], Any] = lambda: None


def hf_datasets(settings: dict[str, Any]) -> dict[str, Reader]:
    """Return the readers of Hugging Face datasets."""
    import datasets

    datasets.disable_progress_bars()
    # Converts Parquet into Arrow files once, which are then mapped into memory.
    table = datasets.Dataset.from_parquet(settings["paths"], cache_dir=settings["cache"])
    few = table.select(range(max(1, settings["slow_rows"] // 16)))  # random rows are slow
    table = table.select(range(settings["slow_rows"]))
    label, size = settings["label"], settings["batch_size"]
    # A batch for each worker; rows cost no more in smaller batches.
    few_size = min(size, -(-len(few) // settings["threads"]))

    def to_tf() -> Iterator[Batch]:
        # Documented to be fastest without workers for numbers in memory; prefetches by itself.
        made = few.to_tf_dataset(
            batch_size=few_size,
            columns=[name for name in table.column_names if name != label],
            label_cols=label,
            shuffle=True,
            drop_remainder=False,
        )
        return ({**inputs, label: target} for inputs, target in made)

    def window() -> Iterator[Batch]:
        # Recommended over random access where an approximate shuffle will do.
        stream = table.to_iterable_dataset().shuffle(seed=0, buffer_size=WINDOW_ROWS)
        return stream.with_format("numpy").iter(size)

    return {
        "to_tf_dataset": Reader("to_tf_dataset(shuffle=True)", to_tf),
        "in a window": Reader(f"to_iterable_dataset().shuffle({WINDOW_ROWS})", window),
    }


def torch_arrow(settings: dict[str, Any]) -> dict[str, Reader]:
    """Return PyTorch's DataLoader over row groups that PyArrow reads."""
    import pyarrow.parquet as pq
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    size, paths = settings["batch_size"], settings["paths"]
    groups = [(p, k) for p in paths for k in range(pq.read_metadata(p).num_row_groups)]

    class RowGroups(IterableDataset[Any]):
        """Row groups in random order, a part for each worker; rows shuffled in their row group."""

        def __iter__(self) -> Iterator[Batch]:
            torch.set_num_threads(1)  # a process for each core needs no threads
            worker = get_worker_info()
            first, step = (worker.id, worker.num_workers) if worker else (0, 1)
            rng = np.random.default_rng(worker.seed - worker.id if worker else 0)
            left: dict[str, Any] = {}
            for number in rng.permutation(len(groups))[first::step]:
                path, index = groups[number]
                table = pq.ParquetFile(path, memory_map=True).read_row_group(
                    index, use_threads=False
                )
                order = rng.permutation(table.num_rows)
                read = {n: table[n].to_numpy()[order] for n in table.column_names}
                if left:
                    read = {n: np.concatenate([left[n], read[n]]) for n in read}
                count = len(order) if not left else len(next(iter(read.values())))
                whole = count // size * size
                for start in range(0, whole, size):
                    yield {n: torch.from_numpy(v[start : start + size]) for n, v in read.items()}
                left = {n: v[whole:] for n, v in read.items()} if whole < count else {}
            if left:
                yield {n: torch.from_numpy(v) for n, v in left.items()}

    # batch_size=None: the documentation's way to load whole batches, without collation.
    loader = DataLoader(RowGroups(), batch_size=None, **workers(settings))
    words = f"IterableDataset of batches, read_row_group, {settings['threads']} workers"
    return {"per row group": Reader(words, lambda: loader)}


def grain_records(settings: dict[str, Any]) -> dict[str, Reader]:
    """Return the reader of Grain, a row per ArrayRecord."""
    import grain
    from array_record.python.array_record_module import ArrayRecordWriter

    size, cells = settings["batch_size"], first_rows(settings, settings["slow_rows"])
    folder = fresh(settings, "array-record")
    path = str(folder / "rows.array_record")
    # group_size:1 is what the documentation of ArrayRecord recommends for random access.
    writer = ArrayRecordWriter(path, "group_size:1")
    for row in cells:
        writer.write(row.tobytes())
    writer.close()
    source = grain.sources.ArrayRecordDataSource([path])

    def decode(rows: Any) -> Batch:
        return as_matrices(b"".join(rows), settings)

    # Threads, as recommended where the work releases the lock; the buffer counts batches here.
    options = grain.ReadOptions(num_threads=settings["threads"], prefetch_buffer_size=4)

    def by_batch() -> Iterable[Batch]:
        # One call for all records of a batch, which ArrayRecord reads on threads of its own.
        numbers = grain.MapDataset.range(len(source)).shuffle(seed=0).batch(size, batch_fn=list)
        return numbers.map(lambda n: decode(source.__getitems__(n))).to_iter_dataset(options)

    threads = f"ArrayRecord group_size:1, {settings['threads']} threads"
    return {
        "ArrayRecord by batch": Reader(threads, by_batch),
    }


def mosaic_streaming(settings: dict[str, Any]) -> dict[str, Reader]:
    """Return the reader of MosaicML streaming, over samples of the bytes of a row."""
    # Its image datasets, unused here, need a torchvision built for the same PyTorch: stand-ins do.
    for name in ("", ".datasets", ".transforms", ".transforms.functional"):
        module: Any = types.ModuleType(f"torchvision{name}")
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
        module.VisionDataset, module.to_tensor = object, None
        sys.modules[module.__name__] = module
    import streaming
    from torch.utils.data import DataLoader

    folder, size = fresh(settings, "mds"), settings["batch_size"]
    # Bytes are the cheapest of its encodings to read.
    with streaming.MDSWriter(out=str(folder / "rows"), columns={"cells": "bytes"}) as writer:
        for row in first_rows(settings, settings["slow_rows"]):
            writer.write({"cells": row.tobytes()})
    streaming.base.util.clean_stale_shared_memory()
    # "Merely setting shuffle=True is performant in nearly all cases" (Shuffling).
    dataset = streaming.StreamingDataset(
        local=str(folder / "rows"), shuffle=True, batch_size=size, num_canonical_nodes=1
    )

    def collate(samples: list[dict[str, Any]]) -> Batch:
        import torch

        joined = as_matrices(b"".join([sample["cells"] for sample in samples]), settings)
        return {name: torch.from_numpy(values) for name, values in joined.items()}

    loader = DataLoader(dataset, size, collate_fn=collate, **workers(settings))
    words = f"MDS of bytes, shuffle=True (py1e), {settings['threads']} workers"
    return {"py1e": Reader(words, lambda: loader)}


def ray_data(settings: dict[str, Any]) -> dict[str, Reader]:
    """Return the readers of Ray Data, whose servers run only in its own turns."""
    import ray
    import ray.data

    size, paths = settings["batch_size"], settings["paths"]
    paths = paths[: max(1, len(paths) // 2)]
    tables: list[Any] = []

    def start() -> None:
        ray.init(
            num_cpus=settings["threads"],
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )
        ray.data.DataContext.get_current().enable_progress_bars = False
        tables[:] = [ray.data.read_parquet(paths)]
        for _ in ray.data.read_parquet(paths[:1]).iter_batches(batch_size=size):
            pass  # starts its workers

    # NumPy: the cheapest format; prefetch_batches: recommended for all iteration.
    options = {"batch_size": size, "batch_format": "numpy", "prefetch_batches": 2}

    def reader(**more: Any) -> Reader:
        given = {**options, **more}
        words = f"iter_batches({', '.join(f'{k}={v}' for k, v in given.items())})"
        return Reader(words, lambda: tables[0].iter_batches(**given), None, start, ray.shutdown)

    # As for tf.data a buffer of rows, here of two batches, since it must exceed one.
    return {"local shuffle": reader(local_shuffle_buffer_size=2 * size)}


def merlin(settings: dict[str, Any]) -> dict[str, Reader]:
    """Return the reader of merlin-dataloader on the CPU."""
    from merlin.dataloader.tensorflow import Loader
    from merlin.io import Dataset
    from merlin.schema import Tags

    table = Dataset(settings["paths"], engine="parquet", cpu=True)
    schema, label = table.schema, settings["label"]
    schema[label] = schema[label].with_tags(Tags.TARGET)
    table.schema = schema
    # parts_per_chunk stays 1: more "can negatively impact throughput" (Loader).
    loader = Loader(table, batch_size=settings["batch_size"], shuffle=True, device="cpu")
    return {
        "per partition": Reader(
            "Loader(shuffle=True, device='cpu') over int64 Parquet",
            lambda: ({**inputs, label: target} for inputs, target in loader),
        )
    }


def torch_dlrm(settings: dict[str, Any]) -> dict[str, Reader]:
    """Return the training of PyTorch's own DLRM, that of `networks.py`, on tensors in memory."""
    # Threads that wait for one another in a loop lose their cores to whatever else runs: with two
    # threads on a busy machine 19 thousand samples/s, with this 81 thousand.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    train = training(settings, as_matrices(first_rows(settings), settings))
    words = "one nn.Embedding(sparse=True) for all columns, SGD, not compiled"
    return {"tensors in memory": Reader(words, train=train)}


def training(settings: dict[str, Any], rows: dict[str, Any]) -> Callable[[], int]:
    """Return a function that trains an epoch of shuffled batches and returns its rows.

    One sparse table for all columns is what PyTorch's own DLRM does on a CPU at its fastest: the
    gradient and the step cost as much as the batch has ids, whatever the size of the table.

    Args:
        settings: those of the process; `sizes` are the cardinalities.
        rows: matrices in memory, from `as_matrices`.
    """
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(settings["threads"])
    sizes, size = settings["sizes"], settings["batch_size"]
    starts = torch.tensor([0, *itertools.accumulate(sizes)][:-1])
    numbers = torch.from_numpy(rows["continuous"])
    ids = torch.from_numpy(rows["categorical"]) + starts  # once, not in each step
    label = torch.from_numpy(rows[settings["label"]]).float()
    table = torch.nn.Embedding(sum(sizes), WIDTH, sparse=True)
    torch.nn.init.trunc_normal_(table.weight, std=WIDTH**-0.5)
    bottom = torch.nn.Sequential(
        torch.nn.Linear(numbers.shape[1], BOTTOM), torch.nn.ReLU(), torch.nn.Linear(BOTTOM, WIDTH)
    )
    vectors_count = len(sizes) + 1
    first, second = torch.triu_indices(vectors_count, vectors_count, offset=1)
    pairs_of = first * vectors_count + second
    top = torch.nn.Sequential(
        torch.nn.Linear(WIDTH + len(first), TOP), torch.nn.ReLU(), torch.nn.Linear(TOP, 1)
    )
    weights = [*table.parameters(), *bottom.parameters(), *top.parameters()]
    optimizer = torch.optim.SGD(weights, LEARNING_RATE)
    loss_of = torch.nn.BCEWithLogitsLoss()

    def step(chosen: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        dense = bottom(numbers[chosen])
        vectors = torch.cat([dense[:, None], table(ids[chosen])], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        # The fastest of three ways: 1.16 times as fast as indexing with two tensors.
        pairs = products.gather(1, pairs_of.expand(len(chosen), -1))
        logits = top(torch.cat([dense, pairs], dim=1))[:, 0]
        loss_of(logits, label[chosen]).backward()
        optimizer.step()

    def epoch() -> int:
        for chosen in torch.randperm(len(label)).split(size):
            step(chosen)
        return len(label)

    return epoch


LIBRARIES = {
    "datasets": hf_datasets,
    "torch": torch_arrow,
    "grain": grain_records,
    "streaming": mosaic_streaming,
    "ray": ray_data,
    "merlin": merlin,
    "dlrm": torch_dlrm,
}


# ---- what they share ----------------------------------------------------------------------------


def workers(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a DataLoader with a process for each core, kept between epochs."""
    return {"num_workers": settings["threads"], "persistent_workers": True, "prefetch_factor": 2}


def first_rows(settings: dict[str, Any], rows: int | None = None) -> Any:
    """Return the first rows as int32 [rows, columns], the bytes of their 4-byte values."""
    cells = np.memmap(settings["cells"], np.int32, mode="r")
    return cells.reshape(-1, len(settings["names"]))[:rows]


def as_matrices(rows: Any, settings: dict[str, Any]) -> Batch:
    """Return the bytes of rows as a matrix for each role, and the label."""
    cells = np.frombuffer(rows, np.int32).reshape(-1, len(settings["names"]))
    made: Batch = {}
    for role, kind in (("continuous", np.float32), ("categorical", np.int32)):
        first = settings["names"].index(settings[role][0])
        part = cells[:, first : first + len(settings[role])]
        made[role] = np.ascontiguousarray(part).view(kind)
    made[settings["label"]] = cells[:, settings["names"].index(settings["label"])].copy()
    return made


def fresh(settings: dict[str, Any], name: str) -> Path:
    """Return a new empty folder in the cache."""
    path = Path(settings["cache"]) / name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def epoch(reader: Reader, sums: bool, settings: dict[str, Any]) -> dict[str, Any]:
    """Run an epoch; return {"rows": ...} and, if asked for, the sum of every column."""
    if reader.train is not None:
        return {"rows": reader.train()}
    rows = 0
    totals: dict[str, float] = {}
    for batch in reader.batches():
        counts = {values.shape[0] for values in batch.values()}
        if len(counts) != 1:
            raise ValueError(f"tensors of one batch have {sorted(counts)} rows")
        rows += counts.pop()
        if sums:
            for name, values in batch.items():
                names = settings[name] if name in ("continuous", "categorical") else [name]
                matrix = np.asarray(values).reshape(-1, len(names))
                for column, total in zip(names, matrix.sum(axis=0, dtype=np.float64)):  # noqa: B905
                    totals[column] = totals.get(column, 0.0) + float(total)
    return {"rows": rows, "sums": totals} if sums else {"rows": rows}


def versions() -> dict[str, str]:
    """Return the versions of what is installed of `PACKAGES`."""
    found = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def main(library: str) -> None:
    """Serve one library until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # keeps what a library prints out of the answers
    settings = json.loads(sys.stdin.readline())
    readers = LIBRARIES[library](settings)
    words = {name: reader.words for name, reader in readers.items()}
    answers.write(json.dumps({"readers": words, "versions": versions()}) + "\n")
    for line in sys.stdin:
        request = json.loads(line)
        reader = readers[request["reader"]]
        if request["do"] in ("start", "stop"):
            answer = {"done": getattr(reader, request["do"])() is None}
        else:
            answer = epoch(reader, request["do"] == "sums", settings)
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
