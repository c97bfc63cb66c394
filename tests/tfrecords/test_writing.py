"""Writers leave a complete folder or none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from tests.support.tfrecords_rows import SCALARS, batch_sizes, contents
from tfrecords import (
    parsed_batches,
    prebatched_dataset,
    raw_columns,
    read_metadata,
    write_examples,
    write_prebatched,
    write_raw,
    write_raw_batches,
)
from tutorlib.columns import Chunk
from tutorlib.parquet import ParquetSink
from tutorlib.storage import MARK

SCALAR_COLUMNS = {"columns": SCALARS.names}
WRITERS = {
    "examples": partial(write_examples, rows_per_file=400),
    "prebatched": partial(write_prebatched, batch_size=70, batches_per_file=3),
    "raw": partial(write_raw, **SCALAR_COLUMNS),
    "raw_batches": partial(write_raw_batches, batch_size=70, **SCALAR_COLUMNS),
}
forms = pytest.mark.parametrize("form", WRITERS)


def test_files_have_the_rows_asked_for_and_the_metadata_says_so(tmp_path, parquet):
    written = write_examples(
        parquet, tmp_path / "e", rows_per_file=400, limit_rows=900, columns=["C1", "label"],
    )  # fmt: skip
    files = sorted((tmp_path / "e").glob("*.tfrecord"))
    assert [path.name for path in files] == [f"part_0000{i}.tfrecord" for i in range(3)]
    schema = SCALARS.select(["C1", "label"])
    counts = [sum(1 for _ in parsed_batches(path, 1, schema)) for path in files]
    assert counts == [400, 400, 100]
    assert written[:3] == (3, 900, sum(path.stat().st_size for path in files))
    metadata = read_metadata(tmp_path / "e")
    assert metadata == {
        "form": "examples",
        "columns": {"C1": ["int32", False], "label": ["float32", False]},
        "rows": 900,
        "files": 3,
        "nbytes": written.nbytes,
    }
    written = write_prebatched(
        parquet, tmp_path / "b", batch_size=200, limit_rows=500, batches_per_file=2
    )
    assert (written.files, written.rows) == (2, 500)
    assert batch_sizes(prebatched_dataset(tmp_path / "b", SCALARS)) == [200, 200, 100]


def test_only_a_folder_that_a_writer_made_is_replaced_and_only_on_request(
    tmp_path, parquet, examples
):
    before = (examples / "part_00000.tfrecord").read_bytes()
    for write in (write_examples, lambda s, f, **k: write_prebatched(s, f, batch_size=8, **k)):
        with pytest.raises(FileExistsError, match="Pass overwrite=True"):
            write(parquet, examples)
    assert (examples / "part_00000.tfrecord").read_bytes() == before
    write_examples(parquet, examples, limit_rows=10, overwrite=True)
    assert read_metadata(examples)["rows"] == 10
    other = tmp_path / "mine"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="mine was not made by tutorlib"):
        write_examples(parquet, other, overwrite=True)
    assert (other / "thesis.txt").exists()


def test_an_error_names_the_place_and_leaves_nothing_behind(tmp_path):
    import pyarrow as pa

    with ParquetSink(tmp_path / "p", row_group_rows=2) as sink:
        sink.write(
            pa.table({"x": pa.array([1, 2, 3, None], pa.int64()), "t": ["a", "b", "c", "d"]})
        )
    (tmp_path / "e.partial").mkdir()
    for name in (MARK, "left_by_a_killed_run"):
        (tmp_path / "e.partial" / name).touch()
    with pytest.raises(ValueError, match=r"'x': 1 nulls.*row group 1 of .*part_00000"):
        write_examples(tmp_path / "p", tmp_path / "e")
    with pytest.raises(ValueError, match=r"'t': strings have no fixed width"):
        write_prebatched(tmp_path / "p", tmp_path / "e", batch_size=2, columns=["t"])
    with pytest.raises(ValueError, match=r"\['y'\] are not in the source"):
        write_examples(tmp_path / "p", tmp_path / "e", columns=["y"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p"]


def test_a_number_above_int64_is_refused(tmp_path):
    with ParquetSink(tmp_path / "p") as sink:
        sink.write(Chunk({"x": np.array([1, 2**63], np.uint64)}))
    with pytest.raises(ValueError, match="does not fit into int64"):
        write_examples(tmp_path / "p", tmp_path / "e")


@pytest.mark.parametrize("name", ["rows_per_file", "limit_rows"])
def test_numbers_below_one_are_refused(name, tmp_path, parquet):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        write_examples(parquet, tmp_path / "e", **{name: 0})


def test_the_metadata_is_plain_json(examples):
    assert json.loads((examples / "tfrecords.json").read_text())["form"] == "examples"


@forms
def test_rows_in_memory_give_the_same_files_as_rows_of_parquet_files(form, tmp_path, parquet, rows):
    folders = []
    for number, source in enumerate((parquet, rows, [rows.slice(0, 1), rows.slice(1, 1000)])):
        folders.append(tmp_path / str(number))
        WRITERS[form](source, folders[-1], columns=["C1", "label"])
    assert contents(folders[0]) == contents(folders[1]) == contents(folders[2])


@forms
def test_progress_counts_the_rows(form, tmp_path, parquet, capsys):
    pytest.importorskip("tqdm")
    WRITERS[form](parquet, tmp_path / "folder", progress=True)
    assert "1.00k/1.00k" in capsys.readouterr().err
    WRITERS[form](parquet, tmp_path / "folder", progress=False, overwrite=True)
    assert not capsys.readouterr().err


def test_an_unknown_option_is_refused(tmp_path, parquet):
    for write in WRITERS.values():
        with pytest.raises(TypeError, match="unexpected keyword argument 'limit'"):
            write(parquet, tmp_path / "folder", limit=10)
    assert not (tmp_path / "folder").exists()


HANGS_HALF_WAY = """
import sys, time
from tests.support.tfrecords_rows import SCALARS, some_rows
from tests.tfrecords.test_writing import WRITERS
from tutorlib.workflow.fit import Chunks

class HalfWay(Chunks):
    def read(self, position, columns, start, stop):
        if position == 1:
            print("half way", flush=True)
            time.sleep(600)
        return super().read(position, columns, start, stop)

WRITERS[sys.argv[1]](HalfWay([some_rows(), some_rows()]), sys.argv[2])
"""


@forms
def test_a_killed_writer_leaves_nothing_that_can_be_read(form, tmp_path, root, parquet):
    folder = tmp_path / "folder"
    command = [sys.executable, "-c", HANGS_HALF_WAY, form, str(folder)]
    before = filter(None, [os.environ.get("PYTHONPATH")])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *before])}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    try:
        assert process.stdout.readline() == "half way\n"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    left = tmp_path / "folder.partial"
    assert left.exists()
    assert list(left.iterdir())  # it had started to write
    for unfinished in (folder, left):
        with pytest.raises(FileNotFoundError, match="was not written by"):
            read_metadata(unfinished)
        with pytest.raises(FileNotFoundError):
            raw_columns(unfinished, 8, SCALARS)
    WRITERS[form](parquet, folder)
    assert read_metadata(folder)["rows"] == 1000
    assert not left.exists()


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("form", "other", "form must be one of"),
        ("rows", -1, "rows must be in"),
        ("rows", 1e400, "rows must be an integer"),
        ("batch_size", 0, "batch_size must be in"),
        ("columns", ["C1"], "columns must be an object"),
        ("columns", {"C1": "int32"}, "'C1' must be .type, is list."),
        ("columns", {"C1": ["int31", False]}, "int31"),
    ],
)
def test_changed_metadata_is_refused_by_name(field, value, words, tmp_path, parquet):
    WRITERS["raw_batches"](parquet, tmp_path / "raw")
    path = tmp_path / "raw" / "tfrecords.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(ValueError, match=rf"tfrecords\.json was changed: .*{words}"):
        read_metadata(tmp_path / "raw")
