"""memory_budget holds in bytes: real memory of fresh processes over drawn layouts.

MEMORY_LAYOUTS=100 in the environment draws a hundred layouts in place of five, MEMORY_SEED=1 other
ones.
"""

import concurrent.futures
import os
import re
import sys
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.loader_memory import MB, Layout, measure
from tutorlib.loader import KerasSequenceLoader

KINDS = ["lists", "filter", "padded", "strings", "uneven", "numbers"]
LAYOUTS = int(os.environ.get("MEMORY_LAYOUTS", 5))
SEED = int(os.environ.get("MEMORY_SEED", 0))
ALLOWED_BYTES = 32 * 2**20  # beside 1.1 of the budget, as the docstring of the loader says


def drawn(kind, random):
    """Return a layout of some kind whose rows need several times the budget as a whole."""
    budget = int(random.integers(40, 80)) * MB
    batch_size = int(random.choice([64, 500, 1000]))
    law = str(random.choice(["fixed", "uniform", "pareto", "sorted"]))
    if kind == "lists":  # one row group is far wider than the others
        means = [int(random.integers(1, 20)) for _ in range(6)]
        means[int(random.integers(6))] = 1000
        columns = {"a.b": ("list", "fixed", means), "x": "int32"}
        return Layout((10_000,) * 6, columns, budget, batch_size)
    if kind == "uneven":  # lists differ in length within a row group
        means, law = int(random.integers(50, 500)), str(random.choice(["late", "sorted"]))
        groups = int(random.choice([1, 4]))
        return Layout((8_000,) * groups, {"g": ("list", law, means)}, budget, batch_size)
    if kind == "strings":
        distinct = random.choice([None, 40])
        columns = {"s": ("string", 1000 if distinct is None else 4000, distinct), "y": "int32"}
        options = {"label_names": ["y"]}
        rows = 20_000 if distinct is None else 5000
        return Layout((rows,) * 4, columns, budget, batch_size, options=options, hashed=True)
    if kind == "filter":
        columns = {"c": "int8", "d": "int32"}
        options = {"filters": [("c", "<", int(random.integers(1, 100)))]}
        return Layout((4_000_000,), columns, budget, batch_size, options=options)
    if kind == "padded":
        law = "uniform" if law == "pareto" else law  # without a longest list
        columns = {"g": ("list", law, int(random.integers(2, 6))), "x": "int32"}
        options = {"multi_hot": "padded", "max_list_length": 100}
        return Layout((100_000,) * 5, columns, budget, batch_size, options=options)
    columns = {f"c{k}": "int32" for k in range(20)} | {f"f{k}": "float32" for k in range(20)}
    return Layout((50_000,) * 15, columns, budget + 40 * MB, batch_size)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/clear_refs")
@pytest.mark.parametrize("number", range(LAYOUTS))
def test_memory_stays_within_the_budget_whatever_the_rows_are(number, tmp_path):
    layout = drawn(KINDS[number % len(KINDS)], np.random.default_rng([SEED, number]))
    measured = measure(layout, tmp_path, seed=number)
    assert measured["peak"] <= 1.1 * layout.budget + ALLOWED_BYTES, layout
    assert "refused" not in measured or "memory_budget" in measured["refused"], measured


def late_lists(path, row_group_rows):
    """Write 20,000 lists, all but the last tenth of them with one value."""
    lengths = np.ones(20_000, np.int64)
    lengths[-2000:] = 2000
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    lists = pa.LargeListArray.from_arrays(offsets, np.arange(offsets[-1]) % 1000)
    pq.write_table(pa.table({"g": lists}), path, row_group_size=row_group_rows)
    return int(offsets[-1])


def values_in(path, budget):
    loader = KerasSequenceLoader(path, 50, memory_budget=budget)
    return sum(inputs["g__values"].shape[0] for inputs, _ in loader)


def test_lists_far_longer_than_the_mean_of_their_row_group_are_refused_with_what_would_do(tmp_path):
    path, small = tmp_path / "x.parquet", tmp_path / "small.parquet"
    count, budget = late_lists(path, 20_000), 30 * MB
    with pytest.raises(ValueError, match="far longer than their row group's mean: ") as refused:
        values_in(path, budget)
    advice = re.search(
        r"smaller row groups .* memory_budget of at least ([\d,]+), ", str(refused.value)
    )
    assert values_in(path, int(advice[1].replace(",", ""))) == count
    assert late_lists(small, 1000) == values_in(small, budget)


@pytest.fixture
def path(tmp_path):
    lists = pa.array([[1] * (k % 5) for k in range(1000)])
    table = pa.table({"x": range(1000), "g": lists})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=100)
    return tmp_path / "x.parquet"


def test_a_budget_holds_one_pass_at_a_time(path):
    loader = KerasSequenceLoader(path, 10, memory_budget=50 * MB)
    first, second = iter(loader), iter(loader)
    next(first)
    with pytest.raises(RuntimeError, match=r"memory_budget=50,000,000 .* another pass .* is open"):
        next(second)
    first.close()
    assert len(list(loader)) == len(loader)
    without = KerasSequenceLoader(path, 10)
    first, second = iter(without), iter(without)
    assert len(list(zip(first, second, strict=True))) == len(without)


def test_a_pass_that_waits_for_its_batch_on_another_thread_is_open(path):
    began, go_on = threading.Event(), threading.Event()

    def wait(chunk):
        began.set()
        assert go_on.wait(60)
        return chunk

    loader = KerasSequenceLoader(path, 10, memory_budget=50 * MB).map(wait)
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        rows = threads.submit(lambda: sum(inputs["x"].shape[0] for inputs, _ in loader))
        assert began.wait(60)
        with pytest.raises(RuntimeError, match="another pass over this loader is open"):
            loader.peek()
        go_on.set()
        assert rows.result(60) == 1000
    assert loader.peek() is not None


def test_padding_within_a_budget_needs_the_longest_list(path):
    settings = {"multi_hot": "padded", "memory_budget": 50 * MB}
    with pytest.raises(ValueError, match=r"needs max_list_length: .* long list of \['g'\]"):
        KerasSequenceLoader(path, 10, **settings)
    KerasSequenceLoader(path, 10, cat_names=["x"], cont_names=[], **settings)  # has no lists
    assert len(list(KerasSequenceLoader(path, 10, max_list_length=4, **settings))) == 100


def test_the_same_rows_come_with_steps_as_without(path):
    def rows(**settings):
        loader = KerasSequenceLoader(path, 64, **settings)
        values = [
            (int(x), tuple(g.tolist()))
            for inputs, _ in loader
            for x, g in zip(
                inputs["x"][:, 0].numpy(),
                np.split(
                    inputs["g__values"][:, 0].numpy(),
                    np.cumsum(inputs["g__nnzs"][:, 0].numpy())[:-1],
                ),
                strict=True,
            )
        ]
        return sorted(values)

    want = rows()
    for shuffle in (True, False):
        assert rows(memory_budget=3 * MB, shuffle=shuffle) == want
        some = rows(memory_budget=3 * MB, shuffle=shuffle, filters=[("x", ">", 333)])
        assert some == [row for row in want if row[0] > 333]


def test_the_budget_that_a_refusal_names_is_enough(tmp_path):
    table = pa.table({f"f{k}": np.random.default_rng(k).random(400_000) for k in range(20)})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=400_000)
    with pytest.raises(ValueError, match="cannot hold two batches") as refused:
        KerasSequenceLoader(tmp_path, 4_096, ["f0"], memory_budget="10MB").describe()
    least = int(re.search(r"at least ([\d,]+) bytes", str(refused.value))[1].replace(",", ""))
    loader = KerasSequenceLoader(tmp_path, 4_096, ["f0"], memory_budget=least)
    assert loader.describe()["peak_bytes"] <= least
