"""KerasSequenceLoader against a reference in NumPy: drawn files, settings, threads and ranks.

Every row carries its number, so each batch tells which rows it has; `reference.py` says what else
it must hold. Nothing here depends on which order a seed gives.
"""

import itertools
import json
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.loader.reference import Reference
from tests.support.loaders import after
from tutorlib.loader import KerasSequenceLoader
from tutorlib.schema import Column, Schema

pytestmark = pytest.mark.filterwarnings("ignore:the shuffle is poor")
ROWS = 3000
ROW = np.arange(ROWS)
LENGTHS = ROW % 5 % 4  # of lists: 0, 1, 2, 3, 0, ...


def lists(values, kind, null_rows=None):
    offsets = pa.array(np.append(0, np.cumsum(LENGTHS)), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(values).cast(kind), mask=null_rows)


def null_every(step, values, kind=None):
    """Nulls at 1, step + 1, ..."""
    return pa.array(values, kind, mask=np.arange(len(values)) % step == 1)


def vectors(values, kind, length):
    return pa.FixedSizeListArray.from_arrays(pa.array(values, kind), length)


VALUES = 1 + np.arange(LENGTHS.sum())  # ids without 0, the padding
NULL_PAIRS = [None if r % 7 == 2 else [r / 2, None if r % 7 == 3 else 1] for r in range(ROWS)]
TABLE = pa.table(
    {
        "row": ROW,
        "day": ROW // 37,
        "int8": pa.array(ROW % 100, pa.int8()),
        "uint16": pa.array(ROW * 20, pa.uint16()),
        "int32": pa.array(ROW * 1000, pa.int32()),
        "uint32": pa.array(ROW + 2**31, pa.uint32()),
        "int64": ROW * 10**12,
        "uint64": pa.array(ROW * 3, pa.uint64()),
        "small": ROW % 50,
        "bool": pa.array(ROW % 3 == 0),
        "float16": pa.array((ROW % 512 / 8).astype("float16")),
        "float32": pa.array(ROW / 3, pa.float32()),
        "float64": ROW / 7,
        "count": ROW * 1001,
        "vector": vectors(np.arange(3 * ROWS) / 3, pa.float32(), 3),
        "pair": vectors(np.arange(2 * ROWS), pa.int32(), 2).cast(pa.list_(pa.int32())),
        "tags": lists(VALUES, pa.int64()),
        "prices": lists(VALUES / 3, pa.float64()),
        "null_id": null_every(6, ROW % 90, pa.int16()),
        "null_count": null_every(6, ROW % 70),
        "null_number": null_every(6, np.where(ROW % 6 == 3, np.nan, ROW / 9)),
        "null_vector": pa.array(NULL_PAIRS, pa.list_(pa.float64(), 2)),
        "null_tags": lists(null_every(4, 1 + VALUES % 59), pa.int32(), pa.array(ROW % 11 == 4)),
        "label": pa.array(ROW % 2, pa.float32()),
        "clicks": (ROW - 300) * 10**10,
        "seen": pa.array(ROW % 2 == 0),
        "target": vectors(np.arange(2 * ROWS) / 5, pa.float64(), 2),
        "weight": ROW / 11,
    }
)
ROLES = {
    "categorical": "int8 uint16 int32 uint32 int64 uint64",
    "continuous": "bool float16 float32 float64 count null_count null_number",
    "label": "label clicks seen",
    "weight": "weight",
}
COLUMNS = {
    **{name: Column(name, role) for role, names in ROLES.items() for name in names.split()},
    "small": Column("small", "categorical", cardinality=50),
    "vector": Column("vector", "continuous", length=3),
    "pair": Column("pair", "continuous", length=2),
    "target": Column("target", "label", length=2),
    "tags": Column("tags", "categorical", multi_hot=True),
    "prices": Column("prices", "continuous", multi_hot=True),
    "null_id": Column("null_id", "categorical", cardinality=90),
    "null_vector": Column("null_vector", "continuous", length=2),
    "null_tags": Column("null_tags", "categorical", multi_hot=True, cardinality=60),
}


# ---- what hypothesis draws -----------------------------------------------------------------------

group_rows = st.one_of(st.just(0), st.integers(1, 12), st.integers(1, 200))
files_drawn = st.lists(st.lists(group_rows, min_size=1, max_size=5), min_size=1, max_size=3)
plans = st.fixed_dictionaries(
    {
        "batch_size": st.integers(2, 16) | st.integers(2, 400),
        "buffer_size": st.none() | st.integers(1, 20) | st.integers(1, 400),
        "parts_per_chunk": st.none() | st.integers(1, 4),
        "shuffle": st.sampled_from([True, True, False]),
        "drop_last": st.booleans(),
        "seed": st.integers(0, 2**64 - 1),
    }
)
threads_drawn = st.integers(1, 3)


def schema_of(names):
    """The row's number, then these columns."""
    return Schema([Column("row", "categorical"), *(COLUMNS[name] for name in names)])


schemas = st.lists(st.sampled_from(sorted(COLUMNS)), unique=True, max_size=9).map(schema_of)


@st.composite
def forms(draw):
    """A schema and the arguments of a loader that decide what a batch holds."""
    schema = draw(schemas)
    layout = draw(st.sampled_from(["columns", "stacked"]))
    # A null id in a padded list would be padding, which is refused.
    multi_hot = draw(st.sampled_from(["nnzs", "padded"] if "null_tags" not in schema else ["nnzs"]))
    blank = any(name.startswith("null_") for name in schema.names)
    nulls = "fill" if blank else draw(st.sampled_from(["error", "fill"]))
    return schema, {"batch_layout": layout, "multi_hot": multi_hot, "nulls": nulls}


def write(folder, files, table=TABLE):
    """Write files whose row groups have these numbers of rows; returns the number of all rows."""
    first = 0
    for number, counts in enumerate(files):
        with pq.ParquetWriter(f"{folder}/{number}.parquet", table.schema) as writer:
            for count in counts:
                writer.write_table(table.slice(first, count))
                first += count
    return first


def ranks(size, rank):
    """The arguments of one of several ranks; none for a single process."""
    return {"global_size": size, "global_rank": rank} if size > 1 else {}


def loader_of(folder, threads=2, epoch=0, **arguments):
    loader = KerasSequenceLoader(folder, threads=threads, **arguments)
    loader.set_epoch(epoch)
    return loader


def rows_of(batch):
    return batch[0]["row" if "row" in batch[0] else "categorical"][:, 0].tolist()


def orders(loader):
    """The rows of each batch that comes."""
    return [rows_of(batch) for batch in loader.as_numpy()]


def assert_same(have, want, place="batch"):
    """Two batches have the same structure, dtypes, shapes and values."""
    if isinstance(want, dict | tuple):
        keys = [*want] if isinstance(want, dict) else range(len(want))
        assert set(have) == set(want) if isinstance(want, dict) else len(have) == len(want), place
        for key in keys:
            assert_same(have[key], want[key], f"{place} {key}")
    elif want is None:
        assert have is None, place
    else:
        counts = place.endswith("__nnzs")  # int32 or int64
        assert have.dtype.kind == "i" if counts else have.dtype == want.dtype, (place, have.dtype)
        assert have.shape == want.shape, (place, have.shape, want.shape)
        assert np.array_equal(have, want), (place, have, want)


# ---- what a batch holds, and which rows come -----------------------------------------------------


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(
    files=files_drawn,
    form=forms(),
    plan=plans,
    threads=threads_drawn,
    size=st.integers(1, 3),
    first_day=st.none() | st.integers(0, 12),
    budget=st.none() | st.integers(1_000_000, 8_000_000),
)
def test_each_row_comes_once_with_the_values_of_the_reference(
    files, form, plan, threads, size, first_day, budget
):
    schema, arguments = form
    filters = None if first_day is None else [("day", ">=", first_day)]
    with tempfile.TemporaryDirectory() as folder:
        want = [row for row in range(write(folder, files)) if row // 37 >= (first_day or 0)]
        made = {"schema": schema, "filters": filters, "threads": threads, **arguments, **plan}
        made["memory_budget"] = budget
        if len(want) < size:
            with pytest.raises(ValueError, match=r"no rows|too few"):
                loader_of(folder, **made, **ranks(size, 0))
            return
        loaders = [loader_of(folder, **made, **ranks(size, rank)) for rank in range(size)]
        batches = [list(loader.as_numpy()) for loader in loaders]
    assert {*map(len, batches), *map(len, loaders)} == {len(loaders[0])}
    reference = Reference(TABLE, schema, **arguments)
    for batch in itertools.chain(*batches):
        assert_same(batch, reference.batch(rows_of(batch)))

    rows = [[rows_of(batch) for batch in of_rank] for of_rank in batches]
    have = list(itertools.chain(*itertools.chain(*rows)))
    for of_rank in rows:
        counts = [len(batch) for batch in of_rank]
        # A rank with one row less than another has the same steps: its last but one gives a row.
        full = counts if plan["drop_last"] else counts[: -1 if size == 1 else -2]
        assert set(full) <= {plan["batch_size"]}
        assert all(0 < count <= plan["batch_size"] for count in counts)
        assert plan["shuffle"] or [*itertools.chain(*of_rank)] == sorted(itertools.chain(*of_rank))
    assert plan["shuffle"] or size > 1 or have == want[: len(have)]
    most_left_out = size * plan["batch_size"] if plan["drop_last"] else 0
    assert len({*have} & {*want}) == len(have) >= len(want) - most_left_out


@pytest.mark.parametrize("layout", ["columns", "stacked"])
@pytest.mark.parametrize("multi_hot", ["nnzs", "padded"])
def test_tensors_are_those_of_the_reference(tmp_path, layout, multi_hot):
    total = write(tmp_path, [[70, 0, 300], [200]])
    names = "small tags float64 null_vector label clicks weight".split()
    schema = schema_of([*names, "null_tags"] if multi_hot == "nnzs" else names)
    form = {"batch_layout": layout, "multi_hot": multi_hot, "nulls": "fill"}
    made = {"batch_size": 64, "buffer_size": 90, "parts_per_chunk": 2}
    loader = loader_of(tmp_path, schema=schema, **made, **form)
    reference = Reference(TABLE, schema, **form)
    seen = []
    for inputs, labels, weights in loader:
        rows = np.asarray(inputs["categorical" if layout == "stacked" else "row"])[:, 0].tolist()
        arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
        labels = {name: tensor.numpy() for name, tensor in labels.items()}
        assert_same((arrays, labels, weights.numpy()), reference.batch(rows))
        seen += rows
    assert sorted(seen) == list(range(total))
    assert seen != sorted(seen)


def test_a_matrix_of_many_rows_has_each_value_in_its_row(tmp_path):
    """Of a row group with more rows than are made at a time."""
    rows = np.arange(50_000)
    numbers = {name: pa.array(rows / k, pa.float32()) for name, k in (("x", 8), ("y", 3))}
    write(tmp_path, [[40_000, 10_000]], pa.table({"row": rows, "id": rows % 997, **numbers}))
    made = {"cat_names": ["row", "id"], "cont_names": ["x", "y"], "batch_layout": "stacked"}
    batches = [inputs for inputs, _ in loader_of(tmp_path, batch_size=1000, **made).as_numpy()]
    parts = [[batch[name] for batch in batches] for name in ("categorical", "continuous")]
    ids, values = map(np.concatenate, parts)
    have = ids[:, 0]
    np.testing.assert_array_equal(np.sort(have), rows)
    np.testing.assert_array_equal(ids[:, 1], have % 997)
    np.testing.assert_array_equal(values, np.stack([have / 8, have / 3], 1).astype("float32"))


# ---- order: threads, processes, epochs, restarts -------------------------------------------------


@settings(max_examples=50)
@given(
    files=files_drawn.filter(lambda files: sum(map(sum, files)) > 0),
    plan=plans,
    threads=st.tuples(threads_drawn, threads_drawn, threads_drawn),
    epoch=st.integers(0, 3),
    resume=st.floats(0, 1),
)
def test_seed_and_epoch_decide_the_order_and_a_state_continues_it(
    files, plan, threads, epoch, resume
):
    with tempfile.TemporaryDirectory() as folder:
        write(folder, files, TABLE.select(["row", "tags", "label"]))
        made = {"cat_names": ["row", "tags"], "cont_names": [], "label_names": ["label"], **plan}
        made["epoch"] = epoch
        loader = loader_of(folder, threads[0], **made)
        again = loader_of(folder, threads[1], **made)
        this, following = orders(loader), orders(loader)
        assert loader.epoch == (epoch + 2 if this else epoch)
        assert orders(again) == this
        # A chunk of all rows has so many orders that two epochs never share one.
        mixed = plan["buffer_size"] is None and len(this) > 3 and plan["batch_size"] > 8
        other = loader_of(folder, threads[1], **{**made, "seed": plan["seed"] ^ 1})
        if not plan["shuffle"]:
            assert orders(other) == following == this
        elif mixed:
            assert len({str(order) for order in (orders(other), following, this)}) == 3

        taken = round(resume * len(this))
        cut = loader_of(folder, threads[1], **made)
        state = after(cut, taken)
        assert orders(cut) == (this if taken < len(this) else following)
        restored = loader_of(folder, threads[2], **made)
        restored.load_state_dict(state)
        assert json.loads(json.dumps(restored.state_dict())) == state
        if taken < len(this):
            assert orders(restored) == this[taken:]
        assert orders(restored) == following


@pytest.mark.parametrize(
    ("batch_size", "buffer_size"), [(256, None), (4096, 30_000), (60_000, None)]
)
def test_row_groups_and_batches_of_many_rows_hold_each_row_once(tmp_path, batch_size, buffer_size):
    rows = np.arange(330_000)
    table = pa.table({"row": rows, "x": pa.array(rows / 8, pa.float32()), "y": rows % 2})
    write(tmp_path, [[200_000, 40_000], [0, 90_000]], table)
    made = {"cat_names": ["row"], "cont_names": ["x"], "label_names": ["y"]}
    made |= {"batch_size": batch_size, "buffer_size": buffer_size}
    for shuffle in (True, False):
        batches = list(loader_of(tmp_path, shuffle=shuffle, **made).as_numpy())
        columns = [(inputs["row"], inputs["x"], labels) for inputs, labels in batches]
        have, x, y = (np.concatenate(parts)[:, 0] for parts in zip(*columns, strict=True))
        np.testing.assert_array_equal(x, (have / 8).astype("float32"))
        np.testing.assert_array_equal(y, have % 2)
        np.testing.assert_array_equal(np.sort(have) if shuffle else have, rows)
        assert shuffle == bool((np.diff(have) < 0).any())
        assert {len(labels) for _, labels in batches[:-1]} == {batch_size}
