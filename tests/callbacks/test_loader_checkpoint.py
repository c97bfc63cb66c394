"""LoaderCheckpoint saves and restores all that a training needs to resume bit for bit."""

import json
import resource
import tracemalloc

import keras
import numpy as np
import pytest

from tests.support.resumable import (
    EPOCHS,
    PROCESSES,
    Interrupted,
    assert_equal_bits,
    interrupted,
    loader_of,
    model_of,
    names_in,
    values_of,
)
from tutorlib.callbacks import LoaderCheckpoint, loader_checkpoint
from tutorlib.layers import EmbeddingTable
from tutorlib.optimizers import RowSparseAdam
from tutorlib.storage import find_checkpoints, new_checkpoint

pytestmark = pytest.mark.usefixtures("no_thread_is_left")

# ---- what is restored ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: None,
        lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, clipnorm=1.0),
        lambda: keras.optimizers.AdamW(0.01, use_ema=True, ema_momentum=0.9),
        lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=3),
        lambda: keras.optimizers.LossScaleOptimizer(
            keras.optimizers.RMSprop(0.01, centered=True), initial_scale=4.0, dynamic_growth_steps=9
        ),
        lambda: keras.optimizers.Ftrl(0.05),
    ],
    ids=["Adam with a schedule", "SGD", "AdamW with EMA", "accumulation", "loss scale", "Ftrl"],
)
def test_training_resumes_bit_for_bit_with_every_optimizer(folder, tmp_path, optimizer):
    want = model_of(optimizer())
    want.fit(loader_of(folder), epochs=EPOCHS, verbose=0)
    interrupted(folder, tmp_path, 50, optimizer=optimizer())
    loader, model = loader_of(folder), model_of(optimizer(), seed=99)
    checkpoint = LoaderCheckpoint(tmp_path, loader)
    epoch = checkpoint.restore(model)
    assert (epoch, loader.epoch, loader.first_batch) == (1, 1, 7)
    model.fit(loader, initial_epoch=epoch, epochs=EPOCHS, verbose=0, callbacks=[checkpoint])
    assert_equal_bits(values_of(model), values_of(want))


def test_the_random_state_of_dropout_is_restored(folder, tmp_path):
    """Keras's own weight files leave it out."""
    model = interrupted(folder, tmp_path / "saved", 14)
    model.save_weights(tmp_path / "model.weights.h5")
    other, restored = model_of(seed=2), model_of(seed=2)
    other.optimizer.build(other.trainable_variables)
    other.load_weights(tmp_path / "model.weights.h5")
    LoaderCheckpoint(tmp_path / "saved", loader_of(folder)).restore(restored)
    batch = loader_of(folder).peek()[0]
    a, b, c = (np.asarray(m(batch, training=True)) for m in (model, restored, other))
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, c)


def test_a_learning_rate_that_a_callback_changed_is_restored(folder, tmp_path):
    loader, model = loader_of(folder), model_of(keras.optimizers.Adam(0.5))
    lower = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    model.fit(loader, verbose=0, callbacks=[lower, LoaderCheckpoint(tmp_path, loader)])
    restored = model_of(keras.optimizers.Adam(0.5))
    assert LoaderCheckpoint(tmp_path, loader_of(folder)).restore(restored) == 1
    assert float(restored.optimizer.learning_rate) == 0.25


@pytest.mark.parametrize("steps_per_execution", [3, 16])
def test_training_resumes_with_several_steps_per_execution(folder, tmp_path, steps_per_execution):
    want = model_of()
    want.fit(loader_of(folder), epochs=EPOCHS, verbose=0)
    interrupted(
        folder, tmp_path, 5, every_n_batches=2 * steps_per_execution,
        steps_per_execution=steps_per_execution,
    )  # fmt: skip
    loader, model = loader_of(folder), model_of(steps_per_execution=steps_per_execution)
    checkpoint = LoaderCheckpoint(tmp_path, loader)
    epoch = checkpoint.restore(model)
    assert (epoch, loader.first_batch) == {3: (0, 12), 16: (1, 32)}[steps_per_execution]
    model.fit(loader, initial_epoch=epoch, epochs=EPOCHS, verbose=0, callbacks=[checkpoint])
    assert_equal_bits(values_of(model), values_of(want))


def test_with_steps_per_epoch_the_position_in_the_loader_is_saved(folder, tmp_path):
    loader, model = loader_of(folder), model_of()
    checkpoint = LoaderCheckpoint(tmp_path, loader, keep=9)
    model.fit(loader, steps_per_epoch=20, epochs=3, verbose=0, callbacks=[checkpoint])
    places = [
        (s["epoch"], s["batch"]) for s in (c.state["loader"] for c in find_checkpoints(tmp_path))
    ]
    assert places == [(0, 20), (1, 0), (1, 20)]
    restored = model_of()
    assert LoaderCheckpoint(tmp_path, loader_of(folder)).restore(restored) == 3  # epochs of fit
    assert_equal_bits(values_of(restored), values_of(model))


def test_a_model_that_is_not_built_is_built_for_restoring(folder, tmp_path):
    class Late(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden, self.last = keras.layers.Dense(4), keras.layers.Dense(1)
            self.dropout = keras.layers.Dropout(0.5)

        def call(self, inputs, training=False):
            return self.last(self.dropout(self.hidden(inputs["x"]), training=training))

    def late():
        keras.utils.set_random_seed(3)
        model = Late()
        model.compile("adam", "mse")
        return model

    want = late()
    want.fit(loader_of(folder), epochs=2, verbose=0)
    loader, model = loader_of(folder), late()
    checkpoint = LoaderCheckpoint(tmp_path, loader)
    assert checkpoint.restore(model) == 0
    assert not model.built
    model.fit(loader, verbose=0, callbacks=[checkpoint])
    loader, model = loader_of(folder), late()
    checkpoint = LoaderCheckpoint(tmp_path, loader)
    assert checkpoint.restore(model) == 1
    model.fit(loader, initial_epoch=1, epochs=2, verbose=0, callbacks=[checkpoint])
    assert_equal_bits(values_of(model), values_of(want))


def test_variables_of_half_precision_are_restored(folder, tmp_path):
    keras.config.set_dtype_policy("bfloat16")
    try:
        model = interrupted(folder, tmp_path, 8)
        restored = model_of(seed=5)
        LoaderCheckpoint(tmp_path, loader_of(folder)).restore(restored)
    finally:
        keras.config.set_dtype_policy("float32")
    assert "bfloat16" in {variable.dtype for variable in restored.variables}
    assert int(restored.optimizer.iterations) == 7
    assert int(model.optimizer.iterations) == 8


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_table_is_saved_and_restored_without_a_copy_of_it(folder, tmp_path, dtype):
    def model(seed):
        layer = EmbeddingTable(300_001, 64, keras.initializers.RandomNormal(seed=seed), dtype=dtype)
        inputs = keras.Input((1,), dtype="int32")
        made = keras.Model(inputs, keras.layers.Flatten()(layer(inputs)))
        made.compile(RowSparseAdam(), "mse")
        made.train_on_batch(np.arange(8)[:, None], np.ones((8, 64)))
        return made

    saved, loader = model(1), loader_of(folder)
    checkpoint = LoaderCheckpoint(tmp_path, loader)
    checkpoint.set_model(saved)
    checkpoint.on_train_begin()
    restored, reader = model(2), LoaderCheckpoint(tmp_path, loader_of(folder))
    for work in (lambda: checkpoint.on_epoch_end(0), lambda: reader.restore(restored)):
        tracemalloc.start()  # counts the arrays of NumPy
        work()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 25e6  # bytes; the table takes 38 or 77 million, its moments twice as many
    assert_equal_bits(values_of(restored), values_of(saved))


# ---- which checkpoints there are ----------------------------------------------------------------


def test_every_n_batches_and_each_epoch_are_saved_and_the_newest_are_kept(folder, tmp_path):
    loader = loader_of(folder)
    every, last = tmp_path / "every", tmp_path / "last"
    callbacks = [LoaderCheckpoint(every, loader, 15, keep=99), LoaderCheckpoint(last, loader)]
    model_of().fit(loader, epochs=2, verbose=0, callbacks=callbacks)
    assert names_in(every) == [
        "000001-epoch-0-batch-15",
        "000002-epoch-0-batch-30",
        "000003-epoch-1-batch-0",
        "000004-epoch-1-batch-15",
        "000005-epoch-1-batch-30",
        "000006-epoch-2-batch-0",
    ]
    assert names_in(last) == ["000001-epoch-1-batch-0", "000002-epoch-2-batch-0"]


def test_the_checkpoint_of_an_epoch_is_saved_after_its_validation(folder, tmp_path):
    """Otherwise a training that is killed in between never validates that epoch."""

    class Watch(keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            self.seen = names_in(tmp_path)

    loader, watch = loader_of(folder), Watch()
    callbacks = [watch, LoaderCheckpoint(tmp_path, loader, 20)]
    valid = loader_of(folder, limit_rows=100)
    model_of().fit(loader, verbose=0, callbacks=callbacks, validation_data=valid)
    assert watch.seen == ["000001-epoch-0-batch-20"]
    assert names_in(tmp_path)[-1] == "000002-epoch-1-batch-0"


@pytest.fixture
def joined(monkeypatch):
    """Make this process number k of two, as far as LoaderCheckpoint and the ranks see."""

    def join(index, other=lambda own: own):
        replaced = {
            "process_count": lambda: 2,
            "process_index": lambda: index,
            "_is_split": lambda variable: len(variable.shape) > 0,
            "_local": lambda variable: variable,
            "gathered": lambda text: [text, other(text)][:: -1 if index else 1],
        }
        for name, value in replaced.items():
            monkeypatch.setattr(loader_checkpoint, name, value, raising=False)

    return join


def test_each_process_restores_what_the_first_saved_without_canonical_ranks(
    folder, tmp_path, joined
):
    first, second = (loader_of(folder, global_size=2, global_rank=rank) for rank in range(2))
    joined(0)
    model = model_of()
    model.fit(first, epochs=1, verbose=0, callbacks=[LoaderCheckpoint(tmp_path, first)])
    joined(1)
    restored = model_of()
    assert LoaderCheckpoint(tmp_path, second).restore(restored) == 1
    assert_equal_bits(values_of(restored), values_of(model))
    assert second.epoch == 1
    other = loader_of(folder, 20, global_size=2, global_rank=1)
    with pytest.raises(ValueError, match=r"settings\.batch_size was 50, is 20\. "):
        LoaderCheckpoint(tmp_path, other).restore(model_of())


def test_without_a_checkpoint_nothing_changes(folder, tmp_path):
    loader, model = loader_of(folder), model_of()
    before = [v.numpy() for v in model.variables]
    assert LoaderCheckpoint(tmp_path / "none", loader).restore(model) == 0
    assert_equal_bits([v.numpy() for v in model.variables], before)
    assert (loader.epoch, loader.first_batch) == (0, 0)
    assert not (tmp_path / "none").exists()


def test_incomplete_and_foreign_folders_are_ignored_and_kept(folder, tmp_path):
    interrupted(folder, tmp_path, 8)
    (tmp_path / "000007-epoch-9-batch-1").mkdir()  # nothing in it
    (tmp_path / "000008-epoch-9-batch-2").mkdir()
    (tmp_path / "000008-epoch-9-batch-2" / "state.json").write_text('{"version": 1, "mod')
    (tmp_path / "000009-epoch-9-batch-3").write_text("a file")
    (tmp_path / "notes").mkdir()
    foreign = set(names_in(tmp_path)) - {"000001-epoch-0-batch-7"}
    (tmp_path / "000002-epoch-0-batch-9.partial").mkdir()  # left by killed processes
    (tmp_path / "000001-epoch-0-batch-1.removed").mkdir()
    loader, model = loader_of(folder), model_of()
    checkpoint = LoaderCheckpoint(tmp_path, loader, keep=1)
    checkpoint.restore(model)
    assert loader.first_batch == 7
    model.fit(loader, verbose=0, callbacks=[checkpoint])
    assert set(names_in(tmp_path)) == foreign | {"000010-epoch-1-batch-0"}


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: model_of(units=9), r"dense.*/kernel was float32 \[5, 8\], is float32 \[5, 9\]"),
        (lambda: model_of("sgd"), "the optimizer was Adam, is SGD"),
        (lambda: model_of(keras.optimizers.Adam(0.1, amsgrad=True)), "is .*more"),
    ],
    ids=["shape", "optimizer", "slots"],
)
def test_a_checkpoint_of_another_model_is_refused(folder, tmp_path, model, message):
    interrupted(folder, tmp_path, 8)
    loader, other = loader_of(folder), model()
    before = [v.numpy() for v in other.variables]
    with pytest.raises(ValueError, match=f"checkpoint of another model: .*{message}"):
        LoaderCheckpoint(tmp_path, loader).restore(other)
    assert_equal_bits([v.numpy() for v in other.variables], before)
    assert (loader.epoch, loader.first_batch) == (0, 0)


def test_a_checkpoint_of_other_data_is_refused(folder, tmp_path):
    interrupted(folder, tmp_path, 8)
    model = model_of()
    before = [v.numpy() for v in model.variables]
    with pytest.raises(ValueError, match=r"settings\.batch_size was 50, is 20"):
        LoaderCheckpoint(tmp_path, loader_of(folder, 20)).restore(model)
    assert_equal_bits([v.numpy() for v in model.variables], before)


def test_a_damaged_checkpoint_or_one_of_another_version_is_refused(folder, tmp_path):
    interrupted(folder, tmp_path, 8)
    (found,) = find_checkpoints(tmp_path)
    with open(found.folder / "variables.npy", "r+b") as file:
        file.truncate(1000)
    with pytest.raises(ValueError, match=r"has 1000 bytes, but \d+ were written. Remove"):
        LoaderCheckpoint(tmp_path, loader_of(folder)).restore(model_of())
    (found.folder / "state.json").write_text(json.dumps({**found.state, "version": 7}))
    with pytest.raises(ValueError, match="has version 7, but this tutorlib reads version 1"):
        LoaderCheckpoint(tmp_path, loader_of(folder)).restore(model_of())


def test_a_checkpoint_that_was_changed_is_refused_by_name_and_nothing_changes(folder, tmp_path):
    interrupted(folder, tmp_path, 8)
    (found,) = find_checkpoints(tmp_path)
    written, state = (found.folder / "variables.npy").read_bytes(), found.state
    without = {name: value for name, value in state.items() if name != "sha256"}
    header = written.replace(b"(5, 8)", b"(5, 9)", 1)
    for changed, content, match in (
        (written[:-1] + b"?", state, "variables.npy was changed: its checksum differs"),
        (written.replace(b"{", b"[", 1), without, "variables.npy was changed at byte 0: "),
        (header, without, r"dense.*kernel is float32 \[5, 8\], got float32 \[5, 9\]"),
        (written, {**state, "loader": None}, "000001-epoch-0-batch-7: the state is not what"),
        (
            written,
            {**state, "fit_epoch": -1},
            r"000001-epoch-0-batch-7 was changed: \['fit_epoch'\]",
        ),
        (written, {**state, "model": [1]}, r"was changed: \['model'\] of its state"),
    ):
        (found.folder / "variables.npy").write_bytes(changed)
        (found.folder / "state.json").write_text(json.dumps(content))
        loader, model = loader_of(folder), model_of()
        with pytest.raises(ValueError, match=match):
            LoaderCheckpoint(tmp_path, loader).restore(model)
        if content is not without:
            assert loader.first_batch == 0
            assert_equal_bits(
                [v.numpy() for v in model.variables], values_of(model_of())[: len(model.variables)]
            )


@pytest.mark.parametrize("state", [{"epoch": 1}, [1], 1, None, "version"], ids=repr)
def test_a_state_without_a_version_is_no_checkpoint(folder, tmp_path, state):
    interrupted(folder, tmp_path, 8)
    (found,) = find_checkpoints(tmp_path)
    (found.folder / "state.json").write_text(json.dumps(state))
    assert find_checkpoints(tmp_path) == []
    assert LoaderCheckpoint(tmp_path, loader_of(folder)).restore(model_of()) == 0


def test_a_folder_with_the_checkpoints_of_another_training_is_refused(folder, tmp_path):
    interrupted(folder, tmp_path, 8)
    loader = loader_of(folder)
    with pytest.raises(FileExistsError, match=r"000001-epoch-0-batch-7: call restore\(model\)"):
        model_of().fit(loader, verbose=0, callbacks=[LoaderCheckpoint(tmp_path, loader)])
    assert names_in(tmp_path) == ["000001-epoch-0-batch-7"]


def test_arguments_out_of_range_are_refused(folder, tmp_path):
    with pytest.raises(ValueError, match="every_n_batches must be at least 1, got 0"):
        LoaderCheckpoint(tmp_path, None, 0)
    with pytest.raises(ValueError, match="keep must be at least 1, got 0"):
        LoaderCheckpoint(tmp_path, None, keep=0)
    with pytest.raises(ValueError, match="compile it before restore"):
        LoaderCheckpoint(tmp_path, loader_of(folder)).restore(keras.Sequential())
    loader = loader_of(folder)
    with pytest.raises(RuntimeError, match="give fit and LoaderCheckpoint the same loader"):
        model_of().fit(loader, callbacks=[LoaderCheckpoint(tmp_path, loader_of(folder), 3)])


def test_an_error_names_the_folder_that_cannot_be_written(folder, tmp_path):
    (tmp_path / "file").write_text("in the way")
    loader = loader_of(folder)
    checkpoint, model = LoaderCheckpoint(tmp_path / "file" / "saved", loader, 3), model_of()
    with pytest.raises(NotADirectoryError, match=r"epoch 0, batch 3 cannot be .* to .*/saved"):
        model.fit(loader, verbose=0, callbacks=[checkpoint])


def save_until_the_disk_is_full(folder, path):
    loader, model = loader_of(folder), model_of(embedding_rows=100_000)
    checkpoint = LoaderCheckpoint(path, loader, 3)
    model.fit(loader, steps_per_epoch=3, verbose=0, callbacks=[checkpoint])
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
    with pytest.raises(OSError, match=r"epoch 0, batch 3 cannot be written .*make room"):
        model.fit(loader, verbose=0, callbacks=[checkpoint])
    assert [found.state["loader"]["batch"] for found in find_checkpoints(path)] == [3, 3]


def test_a_full_disk_raises_and_leaves_the_older_checkpoints(folder, tmp_path):
    """In a process of its own, whose files cannot grow above 1 MB."""
    process = PROCESSES.Process(target=save_until_the_disk_is_full, args=(folder, tmp_path))
    process.start()
    process.join(120)
    assert process.exitcode == 0
    assert all(found.folder.is_dir() for found in find_checkpoints(tmp_path))
    assert not list(tmp_path.glob("*.partial"))


def test_all_processes_fail_if_the_first_cannot_save_and_none_waits(
    folder, tmp_path, joined, monkeypatch
):
    """The first reads the shared rows to the end, as the others do, and says why it failed."""
    taken, blocks_of = {0: [], 1: []}, loader_checkpoint._row_blocks

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    for index in range(2):
        joined(index, lambda own: "[Errno 28] No space left on device" if own == "" else "")

        def noted(variable, index=index):
            for block in blocks_of(variable):
                taken[index].append(block.shape)
                yield block

        monkeypatch.setattr(loader_checkpoint, "_row_blocks", noted)
        loader = loader_of(folder)
        with pytest.raises(
            OSError, match=r"epoch 0, batch 3 cannot be .*No space left.* make room"
        ):
            model_of(embedding_rows=900_000).fit(
                loader, verbose=0, callbacks=[LoaderCheckpoint(tmp_path, loader, 3)]
            )
    assert taken[0] == taken[1]
    assert len(taken[0]) > 3
    assert names_in(tmp_path) == []


def test_processes_that_see_other_checkpoints_are_refused(folder, tmp_path, joined):
    interrupted(folder, tmp_path, 8)
    joined(1, lambda own: "")
    with pytest.raises(ValueError, match=r"find in .* are \['', '.*batch-7'\]: all must see the"):
        LoaderCheckpoint(tmp_path, loader_of(folder)).restore(model_of())


def test_an_error_while_saving_leaves_no_checkpoint(tmp_path):
    def fail():
        with new_checkpoint(tmp_path, 0, 1, {"version": 1}) as new:
            (new / "file").write_text("begun")
            raise Interrupted

    with pytest.raises(Interrupted):
        fail()
    assert names_in(tmp_path) == []
