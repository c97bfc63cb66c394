"""Errors of the loader: each names the rule, the value received, the place and a remedy.

A row of a table gives facts that a message must hold, as regular expressions; its words are free.
"""

import itertools
import os
import re
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from tutorlib.loader import KerasSequenceLoader
from tutorlib.parquet import ParquetError, ParquetSource
from tutorlib.schema import Column, Schema
from tutorlib.workflow import Workflow

# A file has two row groups; the fault is in row 37 of row group 1 of b.parquet.
GROUP, ROW = 100, 37
PLACE = (r"row group 1\b", r"b\.parquet", r"\b37\b")
IDS = {"cardinality": 50}
SCHEMA = Schema(
    [
        Column("C", "categorical", **IDS),
        Column("g", "categorical", multi_hot=True, **IDS),
        Column("x", "continuous"),
        Column("v", "continuous", length=2),
        Column("y", "label"),
        Column("w", "weight"),
    ]
)


def columns(**changes):
    rows = np.arange(2 * GROUP)
    made = {
        "C": (rows % 50).tolist(),
        "g": [[1 + int(row % 49)] * (row % 4) for row in rows],
        "x": (rows / 8).tolist(),
        "v": [[float(row), 0.5] for row in rows],
        "y": (rows % 2 / 1).tolist(),
        "w": np.ones(len(rows)).tolist(),
        "s": [f"id {row}" for row in rows],
    }
    return {**made, **changes}


def write(path, **changes):
    table = pa.table({name: c for name, c in columns(**changes).items() if c is not None})
    pq.write_table(table, path, row_group_size=GROUP)


def folder_with(folder, name=None, value=None):
    """Three files of two row groups, with a value in the place where the fault is."""
    for file in "abc":
        write(folder / f"{file}.parquet")
    if name is not None:
        values = columns()[name]
        values[GROUP + ROW] = value
        write(folder / "b.parquet", **{name: values})
    return folder


def loader_of(source, batch_size=16, **changes):
    """A loader of all columns, with small chunks; names of features replace its schema."""
    by_name = {"cat_names", "cont_names", "feature_columns"} & {*changes}
    chosen = {"label_names": ["y"]} if by_name else {"schema": SCHEMA}
    made = {"buffer_size": 150, "parts_per_chunk": 2, **chosen, **changes}
    return KerasSequenceLoader(source, batch_size, **made)


def iterate(loader):
    for _ in loader:
        pass


def check(call, error, facts):
    """The call fails soon, with these facts in its message or notes, and leaves no thread."""
    threads, started = {*threading.enumerate()}, time.monotonic()
    with pytest.raises(error) as caught:
        call()
    assert time.monotonic() - started < 20
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    missing = [fact for fact in facts if not re.search(fact, text, re.IGNORECASE | re.DOTALL)]
    assert not missing, text
    while {*threading.enumerate()} - threads:
        assert time.monotonic() - started < 20, "a thread is left"
        time.sleep(0.01)
    return text


# ---- values that no batch can hold ---------------------------------------------------------------

NAN, INF = float("nan"), float("inf")
FILL = {"nulls": "fill"}
IN_RANGE = r"\[0, 50\)"
NULL = ("null|NaN", "nulls=")
KNOWN = r"filters=.*~.*is_nan|filters=.*is_valid"
VALUES = {  # {name: (column, value, arguments, facts beside the column and the place)}
    "a null id": ("C", None, {}, NULL),
    "a null in a list": ("g", [3, None], {}, NULL),
    "a null list": ("g", None, {}, (*NULL, "list")),
    "a null number": ("x", None, {}, NULL),
    "NaN": ("x", NAN, {}, NULL),
    "a null in a vector": ("v", [1.0, None], {}, NULL),
    "a null vector": ("v", None, {}, NULL),
    "a short vector": ("v", [1.0], {}, (r"\b1\b", r"\b2\b")),
    "a long vector": ("v", [1.0, 2.0, 3.0], {}, (r"\b3\b", r"\b2\b")),
    "a null label is not filled": ("y", None, FILL, ("null|NaN", "label", KNOWN)),
    "a NaN label": ("y", NAN, {}, ("null|NaN", "label", KNOWN)),
    "a NaN label is not filled": ("y", NAN, FILL, ("null|NaN", "label", KNOWN)),
    "a null weight is not filled": ("w", None, FILL, ("null|NaN", "weight", KNOWN)),
    "a NaN weight is not filled": ("w", NAN, FILL, ("null|NaN", "weight", KNOWN)),
    "infinity": ("x", INF, {}, (r"\binf", "Clip", "filters=")),
    "infinity in a vector": ("v", [0.0, INF], {"batch_layout": "stacked"}, (r"\binf", "Clip")),
    "an infinite label": ("y", INF, {}, (r"\binf", "label", "filters=")),
    "an infinite weight": ("w", -INF, {}, (r"-inf", "weight", "filters=")),
    "a number too large": ("x", -1e39, {}, (r"-1e\+39", "float32", "scale|clip")),
    "one too large with a fill": ("x", 1e39, FILL, (r"1e\+39", "float32", "scale|clip")),
    "an id at the cardinality": ("C", 50, {}, (r"\b50\b", IN_RANGE, "cardinality")),
    "a negative id": ("C", -1, {}, (r"-1\b", IN_RANGE, "cardinality")),
    "a negative id without a cardinality": (
        "C", -1, {"cat_names": ["C"]}, (r"-1 at row", "at least 0", "Categorify", "cont_names"),
    ),
    "an id of a list": ("g", [1, 2, 99], {}, (r"\b99\b", IN_RANGE, "cardinality")),
    **{  # which "padded" lists could not tell from their padding
        f"a negative id of a list, {form}": (
            "g", [1, -1, 2], {"cat_names": ["g"], "multi_hot": form},
            (r"-1 at row", f"at least {int(form == 'padded')}", "Categorify"),
        )
        for form in ("nnzs", "padded")
    },
    "a null in a padded list": (
        "g", [3, None], {"multi_hot": "padded"}, ("null|NaN", "Categorify"),
    ),
    **{
        f"the id of padding, {name}": (
            "g", value, {"multi_hot": "padded", **changes},
            (r": 0 at row", "Categorify", "HashBucket.*first_id=1", "'nnzs'"),
        )
        for name, value, changes in (
            ("with a cardinality", [3, 0], {}), ("without", [0], {"cat_names": ["g"]}),
            ("of a null", [3, None], FILL),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("buffer_size", [150, 30], ids=["row groups", "slices"])
@pytest.mark.parametrize("name", VALUES)
def test_a_bad_value_is_refused_with_its_place(tmp_path, name, buffer_size):
    column, value, changes, facts = VALUES[name]
    loader = loader_of(folder_with(tmp_path, column, value), buffer_size=buffer_size, **changes)
    check(lambda: iterate(loader), ParquetError, (f"'{column}'", *PLACE, *facts))
    assert loader.epoch == 0


@pytest.mark.parametrize("values", [[2.5, NAN], [2, None]], ids=str)
def test_the_filter_that_an_error_proposes_drops_the_row_without_a_label(tmp_path, values):
    made = {"x": [0.0, 1.0, 2.0], "y": [*values, values[0]]}
    pq.write_table(pa.table(made), tmp_path / "a.parquet")
    loader = KerasSequenceLoader(tmp_path, 2, ["y"])
    text = check(lambda: iterate(loader), ParquetError, [r"\b1\b", "'y'"])
    filters = eval(re.search(r"filters=(~?pc\.field\('y'\)\.\w+\(\))", text)[1], {"pc": pc})
    loader = KerasSequenceLoader(tmp_path, 2, ["y"], filters=filters, shuffle=False)
    assert [inputs["x"][:, 0].tolist() for inputs, _ in loader.as_numpy()] == [[0.0, 2.0]]


def test_a_vector_label_without_a_value_is_told_no_filter_which_arrow_has_none_for(tmp_path):
    labels = pa.array([[1.0, 2.0], [1.0, None]], pa.list_(pa.float32(), 2))
    pq.write_table(pa.table({"x": [0.0, 1.0], "y": labels}), tmp_path / "a.parquet")
    schema = Schema([Column("x", "continuous"), Column("y", "label", length=2)])
    loader = KerasSequenceLoader(tmp_path, 2, schema=schema)
    message = check(lambda: iterate(loader), ValueError, ("'y'", "null|NaN", "at row 1", "fill it"))
    assert "filters" not in message


# ---- files ---------------------------------------------------------------------------------------


def damage(path, column):
    """Overwrite the pages of a column in row group 1 with zeros; the footer stays whole."""
    group = pq.read_metadata(path).row_group(1)
    names = [group.column(k).path_in_schema.partition(".")[0] for k in range(group.num_columns)]
    chunk = group.column(names.index(column))
    with open(path, "r+b") as file:
        file.seek(chunk.dictionary_page_offset or chunk.data_page_offset)
        file.write(bytes(chunk.total_compressed_size))


def change_all(path, **changes):
    for file in path.parent.glob("*.parquet"):
        write(file, **changes)


def cut(path, size):
    os.truncate(path, path.stat().st_size + size)


NOT_WHOLE, SLICES = ("whole|Parquet",), {"buffer_size": 30}
WIDE = pa.array([2**64 - 1] * 2 * GROUP, pa.uint64())
NONE = {name: pa.array(values).slice(0, 0) for name, values in columns().items()}
FILES = {  # {name: (what happens to b.parquet, arguments, error, facts beside the file)}
    "cut short": (lambda path: cut(path, -20), {}, ParquetError, NOT_WHOLE),
    "empty": (lambda path: path.write_bytes(b""), {}, ParquetError, NOT_WHOLE),
    "no Parquet": (lambda path: path.write_text("C,x\n1,2\n" * 99), {}, ParquetError, NOT_WHOLE),
    "no column x": (lambda path: write(path, x=None), {}, ValueError, ["'x'"]),
    "other type": (lambda path: write(path, C=columns()["s"]), {}, ValueError, ["'C'", "string"]),
    "no lists": (lambda path: write(path, g=columns()["C"]), {}, ValueError, ["'g'", "int64"]),
    "no rows": (lambda path: change_all(path, **NONE), {}, ValueError, ["no rows"]),
    "damaged number": (lambda path: damage(path, "x"), {}, ParquetError, ["'x'", *PLACE[:2]]),
    "damaged list": (lambda path: damage(path, "g"), {}, ParquetError, ["'g'", *PLACE[:2]]),
    "damaged slice": (lambda path: damage(path, "x"), SLICES, ParquetError, ["'x'", *PLACE[:2]]),
    "too wide an integer": (
        lambda path: change_all(path, C=WIDE), {"cat_names": ["C"], "cont_names": []}, ParquetError,
        ["'C'", str(2**64 - 1), "int64", "cardinality|hash"],
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*it cannot be used", "ignore:.*is read as")
@pytest.mark.parametrize("name", FILES)
def test_a_bad_file_is_refused_with_its_name(tmp_path, name):
    spoil, changes, error, facts = FILES[name]
    spoil(folder_with(tmp_path) / "b.parquet")
    facts = [*facts, r"\.parquet" if name == "too wide an integer" else r"b\.parquet"]
    check(lambda: iterate(loader_of(tmp_path, **changes)), error, facts)


CHANGES = {
    "removed": lambda path: path.unlink(),
    "rewritten": lambda path: write(path, x=[0.5] * 2 * GROUP),
    "cut": lambda path: cut(path, -99),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_file_that_changes_during_the_epoch_is_refused(tmp_path, name):
    folder_with(tmp_path)
    calls = itertools.count()

    def change_files(chunk):
        if next(calls) == 1:
            for path in tmp_path.glob("*.parquet"):
                CHANGES[name](path)
        return chunk

    loader = loader_of(tmp_path, buffer_size=30, threads=1).map(change_files)
    word = "removed" if name == "removed" else "changed"
    check(lambda: iterate(loader), ParquetError, [r"\.parquet", word, "row group"])


# ---- arguments and calls -------------------------------------------------------------------------

BOTH = ["global_size", "global_rank"]
VOCABULARY = tf.feature_column.categorical_column_with_vocabulary_list("C", ["a"])
ARGUMENTS = [  # (arguments, facts)
    ({"engine": "csv"}, ["engine", "'csv'", "parquet"]),
    ({"batch_layout": "rows"}, ["batch_layout", "'rows'", "stacked"]),
    ({"multi_hot": "dense"}, ["multi_hot", "'dense'", "padded"]),
    ({"device": "tpu"}, ["device", "'tpu'", "gpu"]),
    ({"batch_size": 0}, ["batch_size", "at least 1", r"\b0\b"]),
    ({"seed": -1}, ["seed", r"-1\b"]),
    ({"global_size": 2}, [*BOTH, "both", "neither"]),
    ({"global_size": 2, "global_rank": 2}, [r"global_rank, .*\[0, global_size\)", "global_rank=2"]),
    ({"global_size": 700, "global_rank": 0}, ["600 rows", "700 ranks"]),
    ({"batch_size": 1, "global_size": 7, "global_rank": 0}, ["batch_size=1", "drop_last=True"]),
    ({"buffer_size": 0}, ["buffer_size", "above 0", r"\b0\b"]),
    ({"memory_budget": "1 gig"}, ["memory_budget", "'1 gig'", "GB|MiB"]),
    ({"memory_budget": 5000}, ["3 chunks of one batch", "footers of [0-9,]+ bytes"]),
    ({"threads": 0}, ["threads", "at least 1", r"\b0\b"]),
    ({"label_names": "y"}, ["label_names", r"\['y'\]"]),
    ({"cat_names": "C"}, ["cat_names", r"\['C'\]"]),
    ({"cat_names": ["C", "D"]}, [r"'D'", "not in the files", "'C'"]),
    ({"id_names": ["D"]}, [r"'D'", "not in the files"]),
    ({"label_names": ["x"]}, ["'x'", "continuous", "label"]),
    ({"feature_columns": [], "cat_names": ["C"]}, ["feature_columns", "cat_names", "schema"]),
    ({"cat_names": ["C"], "label_names": ["g"]}, ["'g'", "label", "list", "length"]),
    ({"cat_names": [], "cont_names": []}, ["feature", "'C'"]),
    ({"schema": SCHEMA.replace("v", length=3)}, ["'v'", r"\b3\b", r"\b2\b"]),
    ({"filters": [("D", "<", 3)]}, ["filters", "D", "'C'"]),
    ({"filters": [("C", "like", 3)]}, ["'like'", "<"]),
    ({"filters": [("x", ">", 1e9)]}, ["no rows", "filters", "1000000000|1e"]),
    ({"nulls": "skip"}, ["nulls", "'skip'", "'fill'"]),
    ({"batch_size": 2000, "drop_last": True}, ["600", "batch_size=2000", "drop_last"]),
    ({"label_names": ["gone"]}, ["'gone'", r"To predict rows without labels, .*label_names=\[\]"]),
    ({"cat_names": ["C", "y"]}, ["'y'", "as categorical and as label: name it once"]),
    ({"weight_name": ["w"]}, ["weight_name must be the name of one", r"\['w'\]"]),
    ({"schema": Schema([*SCHEMA, Column("s", "weight")])}, ["'s'", "'w'", "one"]),
    ({"feature_columns": [VOCABULARY]}, ["VocabularyListCategoricalColumn", "not supported"]),
]  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return folder_with(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(("changes", "facts"), ARGUMENTS, ids=lambda value: ", ".join(value))
def test_an_argument_that_does_not_fit_is_refused(whole, changes, facts):
    check(lambda: loader_of(whole, **changes).peek(), ValueError, facts)


def begun(folder):
    loader = loader_of(folder)
    loader.peek()
    return loader


def raising(error):
    def function(*_):
        raise error("nothing of that name")

    return function


def resume(folder, **changes):
    loader_of(folder).load_state_dict(loader_of(folder, **changes).state_dict())


def resume_at(folder, **changes):
    loader = loader_of(folder)
    loader.load_state_dict({**loader.state_dict(), **changes})


NAMES = pa.table({"g": [[1]], "g__values": [1], "C": [1], "continuous": [0.5], "y": [0.5]})
PRICES = pa.table({"value": pa.array([1], pa.decimal128(20, 2))})
LISTS = {"multi_hot": "nnzs", "cat_names": ["g", "g__values"], "cont_names": []}
MATRIX = {"batch_layout": "stacked", "cont_names": ["y"], "label_names": ["continuous"]}
CALLS = {  # {name: (call, error, facts)}
    "no file": (lambda f: loader_of(f / "none"), FileNotFoundError, ["Parquet", "none"]),
    "filters of a source": (
        lambda f: loader_of(ParquetSource(f), filters=[("C", "<", 3)]), ValueError, ["filters"],
    ),
    "the name of a list's tensor": (
        lambda f: loader_of(NAMES, **LISTS).peek(), ValueError, ["'g__values'", "rename"],
    ),
    "the name of a matrix": (
        lambda f: loader_of(NAMES, **MATRIX).peek(), ValueError, ["'continuous'", "stacked"],
    ),
    "nothing but decimals": (
        lambda f: KerasSequenceLoader(PRICES, 2), ValueError,
        ["'value'", r"decimal128\(20, 2\)", "cast it to float64"],
    ),
    "no labels": (
        lambda f: loader_of(f, label_names=[]).to_tf_dataset(), ValueError, ["label_names"],
    ),
    "a negative epoch": (lambda f: loader_of(f).set_epoch(-1), ValueError, ["epoch", r"-1\b"]),
    "a late map": (lambda f: begun(f).map(dict), RuntimeError, ["map", "first batch"]),
    "a second map": (lambda f: loader_of(f).map(dict).map(dict), RuntimeError, ["map", "once"]),
    "another batch size": (
        lambda f: resume(f, batch_size=8), ValueError, ["batch_size", r"\b8\b", r"\b16\b"],
    ),
    "another seed": (lambda f: resume(f, seed=5), ValueError, ["seed", r"\b5\b", r"\b0\b"]),
    "another number of ranks": (
        lambda f: resume(f, global_size=2, global_rank=0), ValueError, ["world_size", r"\b2\b"],
    ),
    "another order": (lambda f: resume(f, shuffle=False), ValueError, ["shuffle", "False"]),
    "other partitions": (
        lambda f: resume(f, buffer_size=75), ValueError, ["partition_rows", r"\b75\b", r"\b150\b"],
    ),
    "other chunks": (
        lambda f: resume(f, parts_per_chunk=3), ValueError, ["parts_per_chunk", r"\b3\b", r"\b2\b"],
    ),
    "an incomplete batch": (lambda f: resume(f, drop_last=True), ValueError, ["drop_last", "True"]),
    "other columns": (lambda f: resume(f, cat_names=["C"]), ValueError, ["columns", "'C'"]),
    "other rows": (lambda f: resume(f, filters=[("C", "<", 3)]), ValueError, ["rows|filters"]),
    "no state": (lambda f: loader_of(f).load_state_dict({}), ValueError, ["state", "epoch"]),
    "a place behind": (lambda f: resume_at(f, batch=38), ValueError, ["batch 38", "has"]),
    "a place of text": (lambda f: resume_at(f, batch="1"), ValueError, ["batch", "integer", "'1'"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_cannot_work_is_refused(whole, name):
    call, error, facts = CALLS[name]
    check(lambda: call(whole), error, facts)


def with_columns(**others):
    """A function to map that puts other columns in the place of some."""

    def replaced(rows):
        for name, other in others.items():
            rows = rows.set_column(rows.column_names.index(name), name, rows[other])
        return rows

    return replaced


MAPS = {  # {name: (function, error, facts beside the row group)}
    "a dict": (pa.Table.to_pydict, ParquetError, ["map", "dict", "Table"]),
    "no column x": (lambda rows: rows.select(["y"]), ParquetError, ["map", "'x'"]),
    "more rows": (lambda rows: pa.concat_tables([rows] * 2), ParquetError, [r"map.*\brows"]),
    "few rows": (lambda rows: rows.slice(0, 3), ParquetError, [r"map.*\b3 rows"]),
    "floats": (with_columns(C="x"), ParquetError, ["'C'", "double", "int64"]),
    "lists": (with_columns(C="g"), ParquetError, ["'C'", "list"]),
    "no lists": (with_columns(g="C"), ParquetError, ["'g'", "multi.hot|list"]),
    "a wrong value": (
        raising(ValueError), ParquetError,
        [r"map\(\): function raising\S* raised ValueError: .*that name", r"rows \[\d+, \d+\) of"],
    ),
    "an error": (
        raising(KeyError), KeyError, ["nothing of that name", r"raised by function .* map\(\)"]
    ),
    "no memory": (raising(MemoryError), MemoryError, ["nothing of that name"]),
    "an end": (raising(StopIteration), RuntimeError, ["map", "StopIteration"]),
}  # fmt: skip


@pytest.mark.parametrize("name", MAPS)
def test_what_a_mapped_function_does_wrong_is_told_with_the_place(whole, name):
    function, error, facts = MAPS[name]
    facts = [*facts, r"row group \d", r"\.parquet"]
    check(lambda: iterate(loader_of(whole).map(function)), error, facts)


def test_an_error_is_raised_where_other_threads_wait_for_a_slice_that_nobody_reads(tmp_path):
    """A task reads several row ranges: after an error in one, the next of them is not read."""
    rows = pa.table({"x": np.arange(4000.0)})
    pq.write_table(rows, tmp_path / "x.parquet", row_group_size=100)
    made = {"buffer_size": 50, "parts_per_chunk": 40, "threads": 2}
    loader, said = KerasSequenceLoader(tmp_path, 100, cont_names=["x"], **made), []
    first = loader._current_plan.chunks[0].row_ranges[0]
    failing = first.row_group * 100.0 + first.start

    def fail(chunk):
        if chunk["x"][0].as_py() == failing:
            time.sleep(1)  # the other thread gets to the next chunk
            raise ValueError("a wrong value")
        return chunk

    def read():
        with pytest.raises(ValueError, match="a wrong value") as error:
            list(loader.map(fail))
        said.append(str(error.value))

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    reading.join(60)
    assert said


def test_the_first_row_that_fails_is_named_on_any_thread_and_the_loader_works_again(whole):
    failing, later_failed = [True], threading.Event()

    def fail(chunk):
        first = chunk["x"][0].as_py()
        if failing and first == 0.0:
            later_failed.wait(0.2)
        if failing:
            later_failed.set()
            raise ValueError(f"value {first}")
        return chunk

    loader = loader_of(whole, shuffle=False, buffer_size=100, parts_per_chunk=6).map(fail)
    check(lambda: iterate(loader), ParquetError, [r"value 0\.0", "row group 0", r"a\.parquet"])
    failing.clear()
    assert (sum(len(labels) for _, labels, _ in loader), loader.epoch) == (600, 1)


NOT_SHUFFLED = [  # of one row group of 200 rows
    (
        {"batch_size": 200},
        "an epoch is one batch, .* in the order of the files",
    ),
    ({"batch_size": 10, "buffer_size": 1}, "shuffle is poor: .* rows of about 1 row groups"),
]


@pytest.mark.parametrize(("changes", "words"), NOT_SHUFFLED, ids=str)
def test_rows_that_stay_in_the_order_of_the_files_are_warned_of(changes, words):
    table = pa.table({name: columns()[name] for name in ("x", "y")})
    with pytest.warns(UserWarning, match=words):
        iterate(KerasSequenceLoader(table, label_names=["y"], **changes))


MANY = 400


@pytest.mark.parametrize("who", ["a loader", "a source", "a workflow", "fit", "map"])
def test_missing_columns_of_a_wide_table_are_named(who, tmp_path):
    """Names of the columns that are there: the first few, not thousands of characters."""
    path, wanted = tmp_path / "wide.parquet", [f"id_{i:02}" for i in range(MANY)]
    pq.write_table(pa.table({f"id-{i:02}": np.arange(4.0) for i in range(MANY)}), path)
    if who in ("a workflow", "map"):
        fitted = Workflow(wanted).fit(pa.table({name: [1.0, 2.0] for name in wanted}))
    calls = {
        "a loader": lambda: KerasSequenceLoader(path, 2, cont_names=wanted),
        "a source": lambda: ParquetSource(path).read(0, wanted),
        "a workflow": lambda: fitted.transform(pq.read_table(path)),
        "fit": lambda: Workflow(wanted).fit(path),
        "map": lambda: KerasSequenceLoader(path, 2, cont_names=["id-00"]).map(fitted),
    }
    with pytest.raises(ValueError, match="'id_03'") as caught:
        calls[who]()
    message = str(caught.value)
    assert "'id-00'" in message
    assert "more" in message
    assert len(message) < 1_000


@pytest.mark.parametrize("function", [lambda x, y: (x, y), lambda: None, "workflow"])
def test_what_does_not_take_one_table_cannot_be_mapped(function):
    loader = KerasSequenceLoader(pa.table({"x": [0.5], "y": [1.0]}), 1, ["y"], shuffle=False)
    with pytest.raises(TypeError, match=r"map\(\) takes a Workflow, or a function of one pyarrow"):
        loader.map(function)
    loader.map(lambda table, scale=1: table).peek()
