"""A loader restored from its state goes on with exactly the rest, wherever it was."""

import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given, reject, settings
from hypothesis import strategies as st

from tests.support.loaders import loader_with
from tutorlib.loader import EpochPlan
from tutorlib.ops import Categorify
from tutorlib.parquet import ParquetSource
from tutorlib.workflow import Workflow

ROWS = 600
pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def write(folder, files):
    """Write files with row groups of so many rows; each row has its number."""
    folder.mkdir(parents=True, exist_ok=True)
    first = 0
    for number, groups in enumerate(files):
        schema = pa.schema({"row": pa.int64(), "x": pa.float32(), "label": pa.float32()})
        with pq.ParquetWriter(folder / f"{number}.parquet", schema) as writer:
            for rows in groups:
                row = np.arange(first, first + rows)
                columns = {"row": row, "x": row / 8, "label": row % 2}
                writer.write_table(pa.table(columns, schema=schema))
                first += rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """600 rows in 2 files of 6 row groups of 50."""
    folder = tmp_path_factory.mktemp("data") / "train"
    write(folder, [[50] * 6, [50] * 6])
    return folder


loader_of = loader_with(
    label_names=["label"], cat_names=["row"], cont_names=["x"], buffer_size=60, parts_per_chunk=2
)


def rows_of(batches):
    """Return the rows of each batch, and see that their values belong together."""
    rows = []
    for inputs, label in batches:
        rows.append(inputs["row"].numpy()[:, 0].tolist())
        np.testing.assert_array_equal(inputs["x"].numpy()[:, 0], np.float32(rows[-1]) / 8)
        np.testing.assert_array_equal(label.numpy()[:, 0], np.array(rows[-1]) % 2)
    return rows


def after(loader, batches):
    """Take some batches; return the state as another process would get it."""
    taken = list(itertools.islice(loader, batches))
    assert len(taken) == batches
    return json.loads(json.dumps(loader.state_dict()))


class RecordingSource(ParquetSource):
    """A source that keeps a list of what is read from it."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.reads = []

    def columns(self, position, names, start=0, stop=None):
        self.reads.append((position, start, stop))
        return super().columns(position, names, start, stop)


layouts = st.fixed_dictionaries(
    {
        "batch_size": st.integers(1, 60),
        "buffer_size": st.none() | st.integers(1, 150),
        "parts_per_chunk": st.none() | st.integers(1, 4),
        "shuffle": st.sampled_from([True, True, False]),
        "drop_last": st.booleans(),
        "seed": st.integers(0, 2**64 - 1),
        "limit_rows": st.none() | st.integers(1, 300),
        "reader_kwargs": st.fixed_dictionaries({"threads": st.integers(1, 3)}),
    }
)


@settings(
    max_examples=250, deadline=None, suppress_health_check=[HealthCheck.filter_too_much]
)  # 250 cases take 20 s
@given(
    files=st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=5), min_size=1, max_size=3),
    layout=layouts,
    world_size=st.integers(1, 3),
    epoch=st.integers(0, 3),
    data=st.data(),
)
def test_the_rest_is_what_an_uninterrupted_run_gives(files, layout, world_size, epoch, data):
    assume(sum(map(sum, files)) > 0)
    rank = data.draw(st.integers(0, world_size - 1), label="rank")
    layout = {**layout, "global_size": world_size, "global_rank": rank}
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), files)
        try:
            whole = loader_of(folder, **layout)
        except ValueError as error:  # too few rows for the ranks or the batch size
            if "too few" not in str(error) and "equally many steps" not in str(error):
                raise
            reject()
        assume(len(whole) > 0)
        whole.set_epoch(epoch)
        this, following = rows_of(whole), rows_of(whole)

        taken = data.draw(st.integers(0, len(this)), label="batches taken")
        cut = loader_of(folder, **layout)
        cut.set_epoch(epoch)
        state = after(cut, taken)
        cut.close()

        source = RecordingSource(folder)
        restored = loader_of(source, **layout)
        restored.load_state_dict(state)
        if taken < len(this):
            assert (restored.epoch, restored.first_batch) == (epoch, taken)
            assert len(restored) == len(this)
            assert rows_of(restored) == this[taken:]
            check_reads(source, state)
        assert (restored.epoch, restored.first_batch) == (epoch + 1, 0)
        assert rows_of(restored) == following


def check_reads(source, state):
    """Nothing must have been read of the chunks before that of the first batch, or twice."""
    counts = [group.num_rows for group in source.row_groups]
    plan = EpochPlan(counts, epoch=state["epoch"], **state["settings"])
    first, _ = plan.chunks_of(state["batch"] // plan.group_batches)
    row_ranges = [row_range for chunk in plan.chunks[first:] for row_range in chunk.row_ranges]
    allowed = {(row_range.row_group, row_range.start, row_range.stop) for row_range in row_ranges}
    assert set(source.reads) <= allowed
    assert len(source.reads) == len(set(source.reads))


def test_a_restored_loader_begins_there_again_until_the_epoch_is_done(folder):
    whole = rows_of(loader_of(folder))
    restored = loader_of(folder)
    restored.load_state_dict(after(loader_of(folder), 4))
    assert rows_of([restored.peek()]) == [whole[4]]
    assert rows_of(itertools.islice(restored, 2)) == whole[4:6]
    assert restored.state_dict()["batch"] == 6
    assert rows_of(restored) == whole[4:]
    restored.set_epoch(0)
    assert rows_of(restored) == whole


def test_a_state_can_be_taken_from_a_restored_loader(folder):
    whole = rows_of(loader_of(folder))
    second, third = loader_of(folder), loader_of(folder)
    second.load_state_dict(after(loader_of(folder), 2))
    third.load_state_dict(after(second, 3))
    assert rows_of(third) == whole[5:]


def test_restoring_ends_a_pass_that_is_under_way(folder):
    loader = loader_of(folder)
    state = after(loader, 3)
    batches = iter(loader)
    next(batches)
    loader.load_state_dict(state)
    assert list(batches) == []
    assert rows_of(loader) == rows_of(loader_of(folder))[3:]


CONTINUE = """
import json, sys
from tutorlib.loader import KerasSequenceLoader
arguments = json.loads(sys.argv[1])
loader = KerasSequenceLoader(**arguments)
loader.load_state_dict(json.loads(sys.argv[2]))
epochs = [[inputs["row"].numpy()[:, 0].tolist() for inputs, _ in loader] for _ in range(2)]
print(json.dumps(epochs))
"""


def test_another_process_goes_on_from_the_middle_of_a_fit(folder):
    """The state is taken by a callback, between two batches that Keras asks for."""

    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if (loader.epoch, batch) == (1, 2):
                self.state = loader.state_dict()
                self.model.stop_training = True

    inputs = {name: keras.Input((1,), name=name) for name in ("row", "x")}
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs["x"]))
    model.compile("sgd", "mse")
    loader, interrupt = loader_of(folder), Interrupt()
    model.fit(loader, epochs=3, verbose=0, callbacks=[interrupt])
    assert (interrupt.state["epoch"], interrupt.state["batch"]) == (1, 3)

    arguments = {"paths_or_source": str(folder), "batch_size": 64, "label_names": ["label"]}
    arguments |= {"cat_names": ["row"], "cont_names": ["x"], "buffer_size": 60}
    arguments["parts_per_chunk"] = 2
    command = [sys.executable, "-c", CONTINUE, json.dumps(arguments), json.dumps(interrupt.state)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    whole = loader_of(folder)
    _, second, third = (rows_of(whole) for _ in range(3))
    assert json.loads(done.stdout) == [second[3:], third]


def model_of(steps_per_execution=1):
    keras.utils.set_random_seed(0)
    inputs = {name: keras.Input((1,), name=name) for name in ("row", "x")}
    output = keras.layers.Dense(1, activation="sigmoid")(inputs["x"] / 100.0)
    model = keras.Model(inputs, output)
    model.compile("sgd", "binary_crossentropy", steps_per_execution=steps_per_execution)
    return model


class Steps(keras.callbacks.Callback):
    """Notes the loader's epoch before each execution of steps, and the end of each epoch."""

    def __init__(self, loader):
        super().__init__()
        self.loader, self.ends = loader, []

    def on_epoch_end(self, epoch, logs=None):
        self.ends.append((epoch, self.loader.epoch, int(self.model.optimizer.iterations)))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("steps_per_execution", [1, 3, 10, 64])
@pytest.mark.parametrize("taken", [1, 7, 9])
def test_fit_trains_the_rest_of_the_epoch_and_then_whole_ones(folder, taken, steps_per_execution):
    loader, valid = loader_of(folder), loader_of(folder, shuffle=False)
    loader.load_state_dict(after(loader_of(folder), taken))
    steps, model = Steps(loader), model_of(steps_per_execution)
    history = model.fit(
        loader, initial_epoch=loader.epoch, epochs=3, validation_data=valid, callbacks=[steps]
    )
    assert steps.ends == [(0, 1, 10 - taken), (1, 2, 20 - taken), (2, 3, 30 - taken)]
    assert history.history["val_loss"][-1] == model.evaluate(valid, verbose=0)


@pytest.mark.filterwarnings("error")
def test_evaluate_and_predict_take_the_rest(folder):
    whole, loader = loader_of(folder, shuffle=False), loader_of(folder, shuffle=False)
    model, state = model_of(), after(loader_of(folder, shuffle=False), 6)
    want = model.predict(whole, verbose=0)[6 * 64 :]
    loader.load_state_dict(state)
    np.testing.assert_array_equal(model.predict(loader, verbose=0), want)
    loader.load_state_dict(state)
    inputs, labels = zip(*itertools.islice(loader, len(loader)), strict=True)
    x = {name: np.concatenate([batch[name] for batch in inputs]) for name in inputs[0]}
    expected = model.evaluate(x, np.concatenate(labels), verbose=0)
    loader.load_state_dict(state)
    assert model.evaluate(loader, verbose=0) == pytest.approx(expected, rel=1e-5)


def test_keras_still_warns_where_data_really_runs_out(folder):
    class CloseEarly(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                loader.close()

    loader = loader_of(folder)
    loader.load_state_dict(after(loader_of(folder), 3))
    with pytest.warns(UserWarning, match="ran out of data"):
        model_of().fit(loader, verbose=0, callbacks=[CloseEarly()])


# ---- what the state is --------------------------------------------------------------------------


def test_the_state_is_small_whatever_the_number_of_row_groups(tmp_path):
    write(tmp_path / "few", [[1000]])
    write(tmp_path / "many", [[1] * 500, [1] * 500])
    sizes = []
    for name in ("few", "many"):
        loader = loader_of(tmp_path / name, 10)
        sizes.append(len(json.dumps(after(loader, 3))))
    assert max(sizes) < 4096
    assert sizes[1] - sizes[0] <= 8  # digits of the counts
    state = loader.state_dict()
    assert json.loads(json.dumps(state)) == state


def test_seed_fn_is_not_asked_again_for_the_epoch_in_progress(folder):
    whole = loader_of(folder, seed_fn=iter([5, 6, 7]).__next__)
    first, second = rows_of(whole), rows_of(whole)
    state = after(loader_of(folder, seed_fn=iter([5, 6]).__next__), 4)
    assert state["seed"] == 5
    restored = loader_of(folder, seed_fn=iter([6]).__next__)
    restored.load_state_dict(state)
    assert rows_of(restored) == first[4:]
    assert rows_of(restored) == second


def test_a_loader_with_a_workflow_goes_on(folder):
    source = ParquetSource(folder)
    workflow = Workflow(["row"] >> Categorify(), ["x"], ["label"]).fit(source)

    def mapped():
        return loader_of(folder).map(workflow)

    whole = [inputs["row"].numpy().tolist() for inputs, _ in mapped()]
    restored = mapped()
    restored.load_state_dict(after(mapped(), 5))
    assert [inputs["row"].numpy().tolist() for inputs, _ in restored] == whole[5:]


@pytest.mark.parametrize("memory_budget", range(16_000, 40_000, 3_000))
def test_a_mapped_function_counts_in_what_the_memory_holds(tmp_path, memory_budget):
    """Reading for a function takes more memory than reading by column: the plan must know."""
    write(tmp_path, [[1] * ROWS])

    def mapped():
        tight = {"buffer_size": None, "parts_per_chunk": None, "memory_budget": memory_budget}
        return loader_of(tmp_path, 20, **tight).map(lambda chunk: chunk)

    first = rows_of(mapped())
    again = mapped()
    again.set_epoch(1)
    again.peek()
    again.set_epoch(0)
    assert rows_of(again) == first


def test_moved_data_is_the_same_data(folder, tmp_path):
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for path in folder.iterdir():
        (moved / path.name).write_bytes(path.read_bytes())
    restored = loader_of(moved)
    restored.load_state_dict(after(loader_of(folder), 4))
    assert rows_of(restored) == rows_of(loader_of(folder))[4:]


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"batch_size": 32}, "settings.batch_size was 64, is 32"),
        ({"seed": 1}, "settings.seed was 0, is 1"),
        ({"seed_fn": lambda: 3}, "settings.seed was 0, is None"),
        ({"shuffle": False}, "settings.shuffle was True, is False"),
        ({"drop_last": True}, "settings.drop_last was False, is True"),
        ({"limit_rows": 500}, "settings.limit_rows was None, is 500"),
        ({"buffer_size": 70}, "settings.partition_rows was 60, is 70"),
        ({"parts_per_chunk": 3}, "settings.parts_per_chunk was 2, is 3"),
        ({"global_size": 2, "global_rank": 0}, "settings.world_size was 1, is 2"),
        ({"filters": [("row", "<", 580)]}, "data.filters was None, is "),
        ({"cont_names": []}, "columns was .*'x'.*, is "),
    ],
)
def test_another_setting_is_refused(folder, changes, difference):
    state = after(loader_of(folder), 4)
    other = loader_of(folder, **changes)
    with pytest.raises(ValueError, match=f"other data or settings.*{difference}"):
        other.load_state_dict(state)
    assert (other.epoch, other.first_batch) == (0, 0)
    assert len(rows_of_any(other)) == len(other)


def rows_of_any(loader):
    return [len(inputs["row"]) for inputs, _ in loader]


def test_another_rank_is_refused(folder):
    states = [after(loader_of(folder, global_size=2, global_rank=rank), 2) for rank in (0, 1)]
    first = loader_of(folder, global_size=2, global_rank=0)
    with pytest.raises(ValueError, match=r"settings.rank was 1, is 0"):
        first.load_state_dict(states[1])
    first.load_state_dict(states[0])


def rewritten(path, change):
    table = pq.read_table(path)
    pq.write_table(change(table), path, row_group_size=50)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (lambda folder: write(folder, [[50] * 6] * 3), "data.files was 2, is 3"),
        (
            lambda folder: rewritten(folder / "1.parquet", lambda table: table.slice(1)),
            "data.rows was 600, is 599",
        ),
        (
            lambda folder: [
                rewritten(
                    path, lambda table: table.set_column(0, "row", table["row"].cast("int32"))
                )
                for path in folder.iterdir()
            ],
            "data.column_types was .*, is ",
        ),
        (
            lambda folder: (folder / "0.parquet").rename(folder / "2.parquet"),
            "data.file_names was .*, is ",
        ),
    ],
)
def test_other_data_is_refused(tmp_path, change, difference):
    write(tmp_path / "train", [[50] * 6, [50] * 6])
    state = after(loader_of(tmp_path / "train"), 4)
    change(tmp_path / "train")
    with pytest.raises(ValueError, match=f"other data or settings.*{difference}"):
        loader_of(tmp_path / "train").load_state_dict(state)


def test_a_file_with_other_values_is_refused(tmp_path):
    """As many rows, of the same type, in a file of the same size."""
    path = tmp_path / "train.parquet"

    def write_from(first):
        row = np.arange(first, first + ROWS)
        table = pa.table({"row": row, "x": np.float32(row), "label": np.float32(row % 2)})
        pq.write_table(table, path, row_group_size=50, compression="none", use_dictionary=False)

    write_from(1000)
    size, state = path.stat().st_size, after(loader_of(path), 4)
    write_from(2000)
    assert path.stat().st_size == size
    with pytest.raises(ValueError, match=r"other data or settings.*: data"):
        loader_of(path).load_state_dict(state)


def test_a_state_of_another_version_is_refused(folder):
    state = after(loader_of(folder), 4)
    with pytest.raises(ValueError, match="version was 2, is 1"):
        loader_of(folder).load_state_dict({**state, "version": 2})


@pytest.mark.parametrize(
    ("garbage", "message"),
    [
        ({}, "not what state_dict"),
        ({"epoch": 1}, r"lacks \['batch', "),
        ({"epoch": 0, "batch": 0, "seed": 0, "data": {}, "settings": {}, "columns": []}, "version"),
        ([], "not what state_dict"),
        (None, "not what state_dict"),
        ("state", "not what state_dict"),
    ],
)
def test_what_is_no_state_is_refused(folder, garbage, message):
    with pytest.raises(ValueError, match=message):
        loader_of(folder).load_state_dict(garbage)


@pytest.mark.parametrize("name", ["data", "settings", "columns", "version"])
@pytest.mark.parametrize("part", [None, [], {}, "text", 7], ids=repr)
def test_a_state_with_a_part_of_another_kind_is_refused(folder, name, part):
    state = {**after(loader_of(folder), 4), name: part}
    with pytest.raises(ValueError, match=f"belongs to other data or settings, .*{name}"):
        loader_of(folder).load_state_dict(state)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch", 10),
        ("batch", -1),
        ("batch", 1.5),
        ("batch", None),
        ("batch", "3"),
        ("epoch", -1),
        ("epoch", 0.5),
        ("epoch", "1"),
        ("epoch", None),
        ("epoch", 2**64),
        ("seed", -1),
        ("seed", "a"),
        ("seed", None),
        ("seed", 10**59),
    ],
)
def test_a_place_that_cannot_be_is_refused(folder, name, value):
    loader = loader_of(folder)
    state = {**after(loader_of(folder), 4), name: value}
    with pytest.raises(ValueError, match=f"{name}.*{value}"):
        loader.load_state_dict(state)
    assert (loader.epoch, loader.first_batch) == (0, 0)
