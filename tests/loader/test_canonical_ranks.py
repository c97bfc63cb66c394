"""canonical_ranks: the same global batches, in the same order, on any number of ranks."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.loaders import loader_with
from tutorlib.columns import Chunk, Ragged
from tutorlib.loader import ranks
from tutorlib.ops import Categorify, LambdaOp
from tutorlib.parquet import ParquetSink
from tutorlib.workflow import Workflow

ROWS, RANKS = 613, 6  # W = 1, 2, 3 and 6 divide the canonical ranks
FILES = {"row_group_rows": 37, "rows_per_file": 200}
loader_of = loader_with(
    buffer_size=40,
    parts_per_chunk=2,
    cat_names=["row", "g"],
    label_names=["y"],
    id_names=["row"],
    canonical_ranks=RANKS,
)


@pytest.fixture(scope="module")
def columns():
    rows = np.arange(ROWS)
    offsets = np.concatenate([[0], np.cumsum(rows % 4)])
    return {
        "row": rows,
        "g": Ragged(np.repeat(rows, rows % 4), offsets),
        "y": (rows % 2).astype("float32"),
    }


def ranks_of(source, world_size, global_batch_size, **changes):
    """Loaders of all ranks."""
    size = global_batch_size // world_size
    return [
        loader_of(source, size, global_size=world_size, global_rank=rank, **changes)
        for rank in range(world_size)
    ]


def global_batches(loaders):
    """The rows of each batch of all ranks, laid end to end; lists and ids must fit them."""
    batches = []
    for of_ranks in zip(*(loader.with_ids() for loader in loaders), strict=True):
        rows = []
        for ids, (inputs, label) in of_ranks:
            own = inputs["row"].numpy()[:, 0]
            assert ids["row"].to_pylist() == own.tolist()
            np.testing.assert_array_equal(label.numpy()[:, 0], own % 2)
            np.testing.assert_array_equal(inputs["g__nnzs"].numpy()[:, 0], own % 4)
            np.testing.assert_array_equal(inputs["g__values"].numpy()[:, 0], own.repeat(own % 4))
            rows += own.tolist()
        batches.append(rows)
    return batches


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 16 rows and groups of up to 64, so that small files have many."""
    monkeypatch.setattr("tutorlib.loader.plan.BLOCK_ROWS", 16)
    monkeypatch.setattr("tutorlib.loader.plan.GROUP_ROWS", 64)


@pytest.mark.usefixtures("small_blocks")
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    world_size=st.sampled_from([1, 2, 3, 6]),
    per_rank=st.integers(2, 30),
    changes=st.fixed_dictionaries(
        {
            "shuffle": st.booleans(),
            "drop_last": st.booleans(),
            "buffer_size": st.integers(5, 150),
            "parts_per_chunk": st.integers(1, 3),
            "seed": st.integers(0, 99),
            "limit_rows": st.sampled_from([None, 100, 612]),
            "reader_kwargs": st.sampled_from([{"threads": 1}, {"threads": 3}]),
        }
    ),
    resume=st.floats(0, 1, exclude_max=True),
)
def test_global_batches_do_not_depend_on_the_number_of_ranks(
    folder, world_size, per_rank, changes, resume
):
    """They are those of six ranks as they have always been, and any number resumes in them."""
    size = per_rank * RANKS
    want = global_batches(ranks_of(folder, RANKS, size, **{**changes, "canonical_ranks": None}))
    rows = list(itertools.chain(*want))
    assert len(set(rows)) == len(rows)
    assert changes["drop_last"] or sorted(rows) == list(range(changes["limit_rows"] or ROWS))
    first = ranks_of(folder, RANKS, size, **changes)[0]
    batch = int(resume * len(want))
    state = {**first.state_dict(), "batch": batch, "seed": changes["seed"]}
    loaders = ranks_of(folder, world_size, size, **changes)
    assert global_batches(loaders) == want
    assert {len(loader) for loader in loaders} == {len(want)}
    for loader in loaders if want else ():
        loader.load_state_dict(state)
    assert not want or global_batches(loaders) == want[batch:]


def test_state_and_fingerprint_are_the_same_on_all_ranks_of_any_number(folder):
    loaders = [loader for size in (1, 2, 3, 6) for loader in ranks_of(folder, size, 60)]
    states = [loader.state_dict() for loader in loaders]
    assert all(state == states[0] for state in states)
    assert states[0]["settings"]["canonical_ranks"] == 6
    assert states[0]["settings"]["global_batch_size"] == 60
    assert "rank" not in states[0]["settings"]
    assert len({loader.fingerprint() for loader in loaders}) == 1
    with pytest.raises(ValueError, match=r"settings\.global_batch_size was 60, is 120"):
        loader_of(folder, 120).load_state_dict(states[0])


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1}, {"multi_hot": "offsets"}, {"nulls": "fill"}, {"cat_names": ["row"]},
        {"limit_rows": 600}, {"canonical_ranks": None},
    ],
    ids=str,
)  # fmt: skip
def test_a_fingerprint_tells_settings_apart(folder, changes):
    assert loader_of(folder, 60, **changes).fingerprint() != loader_of(folder, 60).fingerprint()


def test_a_fingerprint_tells_mapped_workflows_apart(folder):
    """Ranks whose ids mean other values must not train together."""

    def mapped(workflow):
        return loader_of(folder, 60, cat_names=None).map(workflow).fingerprint()

    table = pa.table({"row": np.arange(ROWS), "y": np.ones(ROWS, "float32")})
    first, second = (
        Workflow(["row"] >> Categorify(), ["y"]).fit(table.slice(start, 300)) for start in (0, 300)
    )
    assert mapped(first) == mapped(first) != mapped(second)
    unnamed = Workflow(["row"] >> LambdaOp(lambda column: column), ["y"]).fit(table)
    assert mapped(unnamed) == mapped(unnamed)


def test_ranks_without_canonical_ranks_have_one_fingerprint_too(folder):
    ranks = ranks_of(folder, 2, 60, canonical_ranks=None)
    assert len({rank.fingerprint() for rank in ranks}) == 1
    assert ranks[0].state_dict() != ranks[1].state_dict()


def test_ranks_that_differ_in_rows_per_chunk_hold_no_chunk_long_before_it_is_needed(tmp_path):
    """Chunks of 2,000 rows against chunks of 500: read in the order in which rows are needed."""
    counts = [1000] * 8 + [501] * 16
    first = 0
    (tmp_path / "train").mkdir()
    for number, count in enumerate(counts):
        table = {"row": np.arange(first, first + count), "y": np.ones(count, "float32")}
        first += count
        with ParquetSink(tmp_path / "train" / f"{number:02}.parquet") as sink:
            sink.write(Chunk(table))
    loader = loader_of(
        tmp_path / "train", 200, cat_names=["row"], canonical_ranks=2, buffer_size=1000,
        shuffle=False, parts_per_chunk=1,
    )  # fmt: skip
    plan = loader.plan
    needed = [plan.chunks_of(group) for group in range(plan.num_groups)]
    for first_chunk, last_chunk in needed:
        ahead = plan.chunks[first_chunk : last_chunk + 1 + plan.num_ranks]
        span = max(c.first + c.num_rows for c in ahead) - min(c.first for c in ahead)
        assert span <= 3 * 1000
        assert sum(chunk.num_rows for chunk in ahead) <= 2 * 3 * 1000


def test_a_budget_is_divided_among_the_canonical_ranks_of_a_process():
    """So the order is the same if it grows with them, and the plan stays within it."""
    table = pa.table({"row": np.arange(200_000), "x": np.ones(200_000, "float32")})
    few = {"cat_names": ["row"], "cont_names": ["x"], "label_names": None, "id_names": None}
    few |= {"buffer_size": None, "parts_per_chunk": None}
    loaders = [
        loader_of(table, 600 // size, global_size=size, global_rank=0,
                  memory_budget=6 * 2_000_000 // size, **few)
        for size in (1, 2, 6)
    ]  # fmt: skip
    states = [loader.state_dict() for loader in loaders]
    assert states[0] == states[1] == states[2]
    for loader in loaders:
        plan = loader.describe()
        assert plan["budget_bytes"] / 2 < plan["peak_bytes"] <= plan["budget_bytes"]
    with pytest.raises(ValueError, match="each of the 6 canonical ranks of this process: ") as info:
        loader_of(table, 600, memory_budget=60_000, **few)
    least = int(str(info.value).split("give at least ")[1].split(" bytes")[0].replace(",", ""))
    assert loader_of(table, 600, memory_budget=least, **few).describe()["peak_bytes"] <= least


@pytest.fixture
def joined(monkeypatch):
    """Make this process the first of two, of which the other's loader says `other`."""

    def join(other=None, share=(2, 0)):
        monkeypatch.setattr(ranks, "process_count", lambda: 2)
        monkeypatch.setattr(ranks, "data_share", lambda: share)
        monkeypatch.setattr(ranks, "gathered", lambda text: [text, other or text])

    return join


@pytest.mark.parametrize("other", ["[2, 0]", "[1, 0]", "[2, 2]", "[3, 1]"])
def test_ranks_that_do_not_give_all_rows_are_refused(folder, joined, other):
    """Such as ranks within a machine, which begin with 0 on each of them."""
    joined(other)
    loader = loader_of(folder, 60, global_size=2, global_rank=0)
    with pytest.raises(ValueError, match=r"of the processes are .* equally many") as info:
        loader.check_for_fit()
    assert f"[[2, 0], {other}]: " in str(info.value)


def test_processes_that_are_given_all_rows_are_accepted(folder, joined):
    joined()
    loader_of(folder, 60, global_size=1, global_rank=0, drop_last=True, multi_hot="padded",
              max_list_length=4).check_for_fit()  # fmt: skip


@pytest.mark.parametrize("share", [(2, 0), (1, 0)])
def test_a_loader_made_before_the_processes_were_joined_is_refused(folder, joined, share):
    loader = loader_of(folder, 60)
    joined(share=share)
    with pytest.raises(ValueError, match=r"ranks \[0, 1\] .* make the loader after initialize\(\)"):
        loader.check_for_fit()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_size": 63}, "batch_size=63 must be a multiple of 6.*60 or 66 would do"),
        ({"batch_size": 5}, "batch_size=5 must be a multiple of 6.*; 6 would do"),
        (
            {"global_size": 4, "global_rank": 0},
            r"canonical_ranks=6 must be a multiple of the number of ranks, global_size=4.*"
            r"\[1, 2, 3, 6\] ranks",
        ),
        (
            {"buffer_size": 0.2},
            "buffer_size=0.2 is .* 6 canonical ranks .* give a number of rows",
        ),
        ({"canonical_ranks": 0}, "canonical_ranks must be at least 1, got 0"),
        ({"global_size": 2, "global_rank": 2}, r"global_rank must be in \[0, global_size=2\), got"),
    ],
    ids=str,
)
def test_sizes_that_cannot_be_are_refused(folder, changes, words):
    with pytest.raises(ValueError, match=words):
        loader_of(folder, **{"batch_size": 60, **changes})
