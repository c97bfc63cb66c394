"""One way to read or train, served from its own process: a line in, a line out.

`peers.py` starts it with the Python that has the library, which may be an old one, so only the ways
of this project import anything of it. The first line in is the settings (`peers.peer`), answered by
{"settings": words, "page": the documentation, "versions": {package: version}}. Every further line
is {"do": what}: "start" or "stop", around each turn, for a library with servers of its own;
"epoch", answered by {"rows": ..., "elapsed_s": ...}; or "check", an epoch answered by {"rows": ...,
"sums": {column: sum}, "times": [mean and mean square of each batch]}.

Each way has the settings that its documentation recommends, on the page beside it. Where a library
shuffles units instead of rows, the unit is a row group or a block of rows, `CHUNK` rows of such
units in random order are permuted together, and batches are cut from them: the design of the
loader, too. A unit a record is what makes a library for images fast on small rows.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.machinery
import importlib.metadata
import itertools
import json
import os
import shutil
import sys
import time
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Batch = dict[str, Any]  # {column, or role of a matrix [batch, columns]: array or tensor}
    Settings = dict[str, Any]

WIDTH, BOTTOM, TOP = 8, 32, 32  # of the DLRM in PyTorch: the scaled widths of `networks.py`
LEARNING_RATE = 0.01  # Keras' default for SGD
KINDS = {"continuous": np.float32, "categorical": np.int32}  # of matrices
# Rows of a block; rows permuted together; rows of Hugging Face's buffer, refilled by half.
BLOCK, CHUNK, BUFFER = 16_384, 524_288, 131_072
STORE_BYTES, BLOCK_BYTES = 2 << 30, 16 << 20  # Ray: its store holds all blocks
HERE = {  # of this project's environment, as `loader.py` makes them: settings, page
    "loader, columns": ("KerasSequenceLoader(batch_layout='columns')", "docs/using.md"),
    "loader, stacked": ("KerasSequenceLoader(batch_layout='stacked')", "docs/using.md"),
    "Keras arrays in memory": ("shuffle=True", "keras.io/api/models/model_training_apis"),
    "prebatched TFRecord, not shuffled": ("prefetch", "tensorflow.org/guide/data_performance"),
    "TFRecord, make_batched_features_dataset": (
        "shuffle_buffer_size=10000, cores kept awake",
        "tensorflow.org/api_docs/python/tf/data/experimental/make_batched_features_dataset",
    ),
}  # fmt: skip
PACKAGES = (
    "tensorflow", "tensorflow-cpu", "keras", "torch", "torchdata", "numpy", "pyarrow", "datasets",
    "polars", "grain", "mosaicml-streaming", "ray", "merlin-dataloader",
)  # fmt: skip


@dataclasses.dataclass
class Reader:
    """A way to read: `batches()` is an epoch; `run()`, if given, does one and returns its rows.

    `start` and `stop` are called before and after each turn, while no clock runs.
    """

    words: str
    page: str
    batches: Callable[[], Iterable[Batch]] = lambda: ()
    run: Callable[[], Any] | None = None
    start: Callable[[], Any] = lambda: None
    stop: Callable[[], Any] = lambda: None


# ---- this project, Keras and TensorFlow ---------------------------------------------------------


def here(settings: Settings, name: str) -> Reader:
    """Return a reader of this project's environment; tf.data is read in a compiled function."""
    from benchmarks.loader import OF_SINGLE_ROWS, batches_of
    from benchmarks.readers import consume, consume_awake

    arguments = argparse.Namespace(**{**settings, "data": Path(settings["data"])})
    made = batches_of(name, arguments, plain=settings["plain"])
    read = consume_awake if name in OF_SINGLE_ROWS else consume
    return Reader(*HERE[name], lambda: as_mappings(made, settings["label"]), lambda: read(made))


# ---- other libraries ----------------------------------------------------------------------------


def hf_table(settings: Settings) -> Any:
    """Return the files as Hugging Face makes them: Arrow files, mapped into memory."""
    import datasets

    datasets.disable_progress_bars()
    return datasets.Dataset.from_parquet(settings["paths"], cache_dir=settings["cache"])


def hf_iterable(settings: Settings) -> Reader:
    """Return the shuffle that Hugging Face datasets recommends: of shards, then in a buffer.

    An exact shuffle is not: "the speed can become 10x slower", and rewriting it with
    `flatten_indices` takes longer than the epoch.
    """
    table, seeds, size = hf_table(settings), itertools.count(), settings["batch_size"]
    sharded = table.to_iterable_dataset(num_shards=len(table) // BLOCK).with_format("arrow")

    def batches() -> Iterator[Batch]:
        for rows in sharded.shuffle(seed=next(seeds), buffer_size=BUFFER).iter(size):
            yield {name: rows[name].to_numpy() for name in rows.column_names}

    words = f"to_iterable_dataset, shards of {BLOCK:,} rows, shuffle(buffer_size={BUFFER:,}), arrow"
    return Reader(words, "huggingface.co/docs/datasets/about_mapstyle_vs_iterable", batches)


def hf_blocks(settings: Settings) -> Reader:
    """Return contiguous Arrow blocks of Hugging Face datasets, permuted in chunks."""
    import pyarrow as pa

    table = hf_table(settings).with_format("arrow")
    starts = np.arange(0, len(table), BLOCK)

    def batches() -> Iterator[Batch]:
        rng = np.random.default_rng()
        chunks = in_chunks(rng.permutation(starts), CHUNK // BLOCK)
        tables = (pa.concat_tables([table[s : s + BLOCK] for s in chunk]) for chunk in chunks)
        return rebatch((permuted_columns(t, rng) for t in tables), settings["batch_size"])

    words = f"with_format('arrow'), blocks of {BLOCK:,} rows, a permutation of {CHUNK:,} rows"
    return Reader(words, "huggingface.co/docs/datasets/about_mapstyle_vs_iterable", batches)


class RowGroups:
    """The row groups of all files, in parts that make `CHUNK` rows; footers are parsed once."""

    def __init__(self, settings: Settings) -> None:
        import pyarrow.parquet as pq

        self.settings = settings
        self.footers = {path: pq.read_metadata(path) for path in settings["paths"]}
        self.groups = [(p, k) for p, f in self.footers.items() for k in range(f.num_row_groups)]
        self.rows = self.footers[settings["paths"][0]].row_group(0).num_rows
        self.per_chunk = max(1, CHUNK // self.rows)

    def order(self) -> Any:
        """Return the numbers of all row groups in random order."""
        return np.random.default_rng().permutation(len(self.groups))

    def __getitem__(self, index: int) -> Any:
        import pyarrow.parquet as pq

        path, number = self.groups[index]
        file = pq.ParquetFile(path, metadata=self.footers[path], memory_map=True)
        return file.read_row_group(number, use_threads=False)

    def read(self, indices: Iterable[int]) -> Batch:
        """Return the rows of row groups, permuted: a matrix for each role, and the label."""
        import pyarrow as pa

        table = pa.concat_tables([self[index] for index in indices])
        order = np.random.default_rng().permutation(table.num_rows)
        label = self.settings["label"]
        made: Batch = {label: table[label].to_numpy()[order]}
        for role, kind in KINDS.items():
            matrix = np.empty((len(order), len(self.settings[role])), kind)
            for column, name in enumerate(self.settings[role]):
                matrix[:, column] = table[name].to_numpy()
            made[role] = matrix[order]
        return made


def torch_loader(settings: Settings) -> Reader:
    """Return PyTorch's DataLoader: a process for each core, whole batches of two matrices."""
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    groups, size = RowGroups(settings), settings["batch_size"]

    class Batches(IterableDataset[Any]):
        """Row groups in random order, a part for each worker."""

        def __iter__(self) -> Iterator[Batch]:
            worker: Any = get_worker_info()
            order = np.random.default_rng(worker.seed - worker.id).permutation(len(groups.groups))
            mine = order[worker.id :: worker.num_workers]
            for batch in rebatch(map(groups.read, in_chunks(mine, groups.per_chunk)), size):
                yield {name: torch.from_numpy(values) for name, values in batch.items()}

    # batch_size=None: the dataset makes whole batches.
    made = DataLoader(Batches(), batch_size=None, **workers(settings))
    words = f"IterableDataset of stacked batches, {CHUNK:,} rows permuted, persistent_workers"
    return Reader(
        words, "pytorch.org/docs/stable/data.html#disable-automatic-batching", made.__iter__
    )


def torch_nodes(settings: Settings) -> Reader:
    """Return torchdata's nodes: threads, since Arrow and NumPy release the interpreter lock."""
    import torch
    from torchdata import nodes

    groups, size, threads = RowGroups(settings), settings["batch_size"], settings["threads"]

    def batches() -> Iterator[Batch]:
        order = groups.order()
        source = nodes.IterableWrapper(in_chunks(order, groups.per_chunk))
        read = nodes.ParallelMapper(source, groups.read, threads, max_concurrent=threads)
        for batch in rebatch(nodes.Loader(nodes.Prefetcher(read, 1)), size):
            yield {name: torch.from_numpy(values) for name, values in batch.items()}

    words = f"ParallelMapper(method='thread'), Prefetcher; {CHUNK:,} rows permuted, stacked"
    return Reader(words, "pytorch.org/data/0.11/what_is_torchdata_nodes.html", batches)


def grain_groups(settings: Settings) -> Reader:
    """Return Grain over a random-access source whose records are row groups, read by threads."""
    import grain

    source = RowGroups(settings)
    seeds = itertools.count()
    # Few threads and a small buffer: its defaults are for records of 1 to 10 KiB (ReadOptions).
    options = grain.ReadOptions(num_threads=settings["threads"], prefetch_buffer_size=2)

    def batches() -> Iterator[Batch]:
        numbers = grain.MapDataset.range(len(source.groups)).shuffle(seed=next(seeds))
        chunks = numbers.batch(source.per_chunk, batch_fn=list).map(source.read)
        return rebatch(chunks.to_iter_dataset(options), settings["batch_size"])

    words = f"MapDataset.shuffle().batch().map(), {CHUNK:,} rows permuted, stacked, threads"
    return Reader(
        words,
        "google-grain.readthedocs.io/en/latest/tutorials/dataset_advanced_tutorial.html",
        batches,
    )


def mosaic_blocks(settings: Settings) -> Reader:
    """Return MosaicML streaming: MDS whose samples are the bytes of a block of rows."""
    # Its image datasets, unused here, need a torchvision built for the same PyTorch: stand-ins do.
    for name in ("", ".datasets", ".transforms", ".transforms.functional"):
        module: Any = types.ModuleType(f"torchvision{name}")
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
        module.VisionDataset, module.to_tensor = object, None
        sys.modules[module.__name__] = module
    import streaming
    import torch
    from torch.utils.data import DataLoader

    folder, cells = Path(settings["cache"]), all_rows(settings)
    shutil.rmtree(folder, ignore_errors=True)
    with streaming.MDSWriter(out=str(folder), columns={"cells": "bytes"}) as writer:
        for start in range(0, len(cells), BLOCK):
            writer.write({"cells": cells[start : start + BLOCK].tobytes()})
    streaming.base.util.clean_stale_shared_memory()
    together = CHUNK // BLOCK
    # "merely setting shuffle=True is performant in nearly all cases" (Shuffling).
    dataset = streaming.StreamingDataset(
        local=str(folder), shuffle=True, batch_size=together, num_canonical_nodes=1
    )

    def collate(samples: list[dict[str, Any]]) -> Batch:
        rows = np.frombuffer(b"".join([sample["cells"] for sample in samples]), np.int32)
        rows = rows.reshape(-1, len(settings["names"]))
        made = as_matrices(rows[np.random.default_rng().permutation(len(rows))], settings)
        return {name: torch.from_numpy(values) for name, values in made.items()}

    made = DataLoader(dataset, together, collate_fn=collate, **workers(settings))
    words = f"MDS of {BLOCK:,} rows a sample, shuffle=True (py1e), {CHUNK:,} rows permuted"
    page = "docs.mosaicml.com/projects/streaming/en/stable/dataset_configuration/shuffling.html"
    return Reader(words, page, lambda: rebatch(made, settings["batch_size"], torch.cat))


def ray_files(settings: Settings) -> Reader:
    """Return Ray Data: shuffled files and blocks, rows in its tasks; its servers run in its turns.

    Without a memory monitor, which ends the servers that Ray needs while other ways fill memory.
    """
    import ray
    import ray.data

    def start() -> None:
        os.environ["RAY_memory_monitor_refresh_ms"] = "0"
        quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        ray.init(num_cpus=settings["threads"], object_store_memory=STORE_BYTES, **quiet)
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars, context.target_max_block_size = False, BLOCK_BYTES
        sum(1 for _ in ray.data.read_parquet(settings["paths"][:1]).iter_batches())  # its workers

    def permuted(table: Any) -> Any:
        return table.take(np.random.default_rng().permutation(len(table)))

    def batches() -> Iterable[Batch]:
        table = ray.data.read_parquet(settings["paths"], shuffle="files").randomize_block_order()
        table = table.map_batches(permuted, batch_size=CHUNK, batch_format="pyarrow")
        return table.iter_batches(batch_size=settings["batch_size"], prefetch_batches=1)

    words = f"shuffle='files', randomize_block_order, map_batches(permutation, {CHUNK:,})"
    page = "docs.ray.io/en/master/data/shuffling-data.html"
    return Reader(words, page, batches, None, start, ray.shutdown)


def polars_slices(settings: Settings) -> Reader:
    """Return Polars: slices of lazy scans, which read only their row groups, then `sample`."""
    import polars

    groups = RowGroups(settings)

    def read(chunk: Any) -> Batch:
        picked = [groups.groups[number] for number in chunk]
        scans = [polars.scan_parquet(p).slice(k * groups.rows, groups.rows) for p, k in picked]
        rows = polars.concat(scans).collect().sample(fraction=1, shuffle=True)
        return {name: rows[name].to_numpy() for name in rows.columns}

    def batches() -> Iterator[Batch]:
        chunks = in_chunks(groups.order(), groups.per_chunk)
        return rebatch(map(read, chunks), settings["batch_size"])

    words = f"concat of scan_parquet().slice(), collect(), sample(shuffle=True), {CHUNK:,} rows"
    page = "docs.pola.rs/api/python/stable/reference/api/polars.scan_parquet.html"
    return Reader(words, page, batches)


def merlin(settings: Settings) -> Reader:
    """Return merlin-dataloader on the CPU."""
    from merlin.dataloader.tensorflow import Loader
    from merlin.io import Dataset
    from merlin.schema import Tags

    table = Dataset(settings["paths"], engine="parquet", cpu=True, part_size="32MB")
    schema, label = table.schema, settings["label"]
    schema[label] = schema[label].with_tags(Tags.TARGET)
    table.schema = schema
    # Four small parts a chunk: "better epoch-level randomness" (Loader), and no slower than one.
    made = Loader(table, settings["batch_size"], shuffle=True, parts_per_chunk=4, device="cpu")

    words = "Dataset(part_size='32MB'), Loader(shuffle=True, parts_per_chunk=4, device='cpu')"
    page = "nvidia-merlin.github.io/dataloader/stable/api/merlin.dataloader.html"
    return Reader(words, page, lambda: as_mappings(made, label))


# ---- PyTorch's own DLRM -------------------------------------------------------------------------


def torch_dlrm_compiled(settings: Settings) -> Reader:
    """Return the same training with `torch.compile`."""
    return torch_dlrm(settings, True)


def torch_dlrm(settings: Settings, compiled: bool = False) -> Reader:
    """Return the training of PyTorch's own DLRM, that of `networks.py`, on tensors in memory.

    One sparse table for all columns is what PyTorch's own DLRM does on a CPU at its fastest: the
    gradient and the step cost as much as the batch has ids, whatever the size of the table.
    It looks its rows up eagerly in both forms, so that their gradient stays sparse.
    """
    import torch

    rows = as_matrices(all_rows(settings), settings)

    torch.manual_seed(0)
    torch.set_num_threads(settings["threads"])
    sizes, size = settings["sizes"], settings["batch_size"]
    starts = torch.tensor([0, *itertools.accumulate(sizes)][:-1])
    numbers = torch.from_numpy(rows["continuous"])
    ids = torch.from_numpy(rows["categorical"]) + starts.int()  # once, not in each step
    label = torch.from_numpy(rows[settings["label"]]).float()
    table = torch.nn.Embedding(sum(sizes), WIDTH, sparse=True)
    torch.nn.init.trunc_normal_(table.weight, std=WIDTH**-0.5)
    linear, relu = torch.nn.Linear, torch.nn.ReLU
    sides = linear(numbers.shape[1], BOTTOM), linear(BOTTOM, WIDTH)
    bottom = torch.nn.Sequential(sides[0], relu(), sides[1])
    vectors_count = len(sizes) + 1
    first, second = torch.triu_indices(vectors_count, vectors_count, offset=1)
    pairs_of = first * vectors_count + second
    top = torch.nn.Sequential(linear(WIDTH + len(first), TOP), relu(), linear(TOP, 1))
    weights = [*table.parameters(), *bottom.parameters(), *top.parameters()]
    optimizer = torch.optim.SGD(weights, LEARNING_RATE)
    loss_of = torch.nn.BCEWithLogitsLoss()

    def loss(numbers: Any, embedded: Any, label: Any) -> Any:
        dense = bottom(numbers)
        vectors = torch.cat([dense[:, None], embedded], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        # The fastest of three ways: 1.16 times as fast as indexing with two tensors.
        pairs = products.gather(1, pairs_of.expand(len(numbers), -1))
        return loss_of(top(torch.cat([dense, pairs], dim=1))[:, 0], label)

    forward = torch.compile(loss) if compiled else loss

    def epoch() -> int:
        for chosen in torch.randperm(len(label)).split(size):
            optimizer.zero_grad(set_to_none=True)
            of_batch = [part.index_select(0, chosen) for part in (numbers, ids, label)]
            forward(of_batch[0], table(of_batch[1]), of_batch[2]).backward()
            optimizer.step()
        return len(label)

    words = f"one nn.Embedding(sparse=True), SGD, torch.compile: {compiled}, threads: cores"
    return Reader(words, "pytorch.org/tutorials/recipes/recipes/tuning_guide.html", run=epoch)


# ---- what they share ----------------------------------------------------------------------------


def as_mappings(batches: Any, label: str) -> Iterator[Batch]:
    """Yield each (inputs, label) as one mapping."""
    return ({**inputs, label: target} for inputs, target in batches)


def in_chunks(units: Any, count: int) -> list[Any]:
    """Return units in parts of `count`; the last may have fewer."""
    return [units[start : start + count].tolist() for start in range(0, len(units), count)]


def permuted_columns(table: Any, rng: np.random.Generator) -> Batch:
    """Return the rows of an Arrow table in random order, as arrays."""
    order = rng.permutation(table.num_rows)
    return {name: table[name].to_numpy()[order] for name in table.column_names}


def rebatch(
    chunks: Iterable[Batch], size: int, join: Callable[[list[Any]], Any] = np.concatenate
) -> Iterator[Batch]:
    """Cut chunks into batches; rows left over begin the next batch."""
    left: Batch = {}
    for rows in chunks:
        if left:
            rows = {name: join([left[name], values]) for name, values in rows.items()}
        count = len(next(iter(rows.values())))
        whole = count - count % size
        for start in range(0, whole, size):
            yield {name: values[start : start + size] for name, values in rows.items()}
        left = {name: values[whole:] for name, values in rows.items()} if whole < count else {}
    if left:
        yield left


def workers(settings: Settings) -> dict[str, Any]:
    """Return the arguments of a DataLoader with a process for each core, kept between epochs."""
    return {"num_workers": settings["threads"], "persistent_workers": True, "prefetch_factor": 2}


def all_rows(settings: Settings) -> Any:
    """Return all rows as int32 [rows, columns], the bytes of their 4-byte values."""
    cells = np.memmap(settings["cells"], np.int32, mode="r")
    return cells.reshape(-1, len(settings["names"]))


def as_matrices(cells: Any, settings: Settings) -> Batch:
    """Return rows of 4-byte cells as a matrix for each role, and the label."""
    made: Batch = {}
    for role, kind in KINDS.items():
        first = settings["names"].index(settings[role][0])
        part = cells[:, first : first + len(settings[role])]
        made[role] = np.ascontiguousarray(part).view(kind)
    made[settings["label"]] = cells[:, settings["names"].index(settings["label"])].copy()
    return made


def epoch(reader: Reader) -> dict[str, Any]:
    """Run an epoch; return its rows and seconds, until its last batch had come."""
    started = ended = time.perf_counter()
    if reader.run is not None:
        done = reader.run()
        elapsed_s = getattr(done, "elapsed_s", None) or time.perf_counter() - started
        return {"rows": getattr(done, "rows", done), "elapsed_s": elapsed_s}
    rows = 0
    for batch in reader.batches():
        rows += next(iter(batch.values())).shape[0]
        ended = time.perf_counter()
    return {"rows": rows, "elapsed_s": ended - started}


def check(reader: Reader, settings: Settings) -> dict[str, Any]:
    """Run an epoch; return its rows, each column's sum, and moments of each batch's times."""
    totals: dict[str, float] = {}
    rows, times = 0, []
    for batch in reader.batches():
        counts = {values.shape[0] for values in batch.values()}
        if len(counts) != 1:
            raise ValueError(f"tensors of one batch have {sorted(counts)} rows")
        rows += counts.pop()
        for name, values in batch.items():
            names = settings[name] if name in KINDS else [name]
            matrix = np.asarray(values).reshape(-1, len(names))
            for column, total in zip(names, matrix.sum(axis=0, dtype=np.float64)):  # noqa: B905
                totals[column] = totals.get(column, 0.0) + float(total)
            if settings["time"] in names:
                held = matrix[:, names.index(settings["time"])].astype(np.float64)
                times.append([float(held.mean()), float(np.square(held).mean())])
    return {"rows": rows, "sums": totals, "times": times} if rows else epoch(reader)  # a training


def versions() -> dict[str, str]:
    """Return the versions of what is installed of `PACKAGES`."""
    there = {found.metadata["Name"]: found.version for found in importlib.metadata.distributions()}
    return {"python": sys.version.split()[0], **{n: there[n] for n in PACKAGES if n in there}}


def main(name: str) -> None:
    """Serve one reader until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # keeps what a library prints out of the answers
    settings = json.loads(sys.stdin.readline())
    reader = here(settings, name) if name in HERE else globals()[name](settings)
    facts = {"settings": reader.words, "page": reader.page, "versions": versions()}
    answers.write(json.dumps(facts) + "\n")
    for line in sys.stdin:
        what = json.loads(line)["do"]
        if what == "epoch":
            answer = epoch(reader)
        elif what == "check":
            answer = check(reader, settings)
        else:
            answer = {"done": getattr(reader, what)() is None}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
