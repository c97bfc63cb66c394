"""Loading executes nothing from the files; damaged files and data of other types are refused."""

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.workflow_rows import rows, workflow, write
from tutorlib.columns import Chunk
from tutorlib.ops import Categorify, LambdaOp, Normalize
from tutorlib.parquet import ParquetSource
from tutorlib.workflow import Workflow

CHANGES = {
    "a column that is gone": (
        lambda table: table.drop_columns(["price"]),
        "'price' is missing, was float64",
    ),
    "another type": (
        lambda table: table.set_column(0, "userId", table["userId"].cast(pa.string())),
        "'userId' is string, was int64",
    ),
    "a list in place of a value": (
        lambda table: table.set_column(1, "movieId", pa.array([[1]] * table.num_rows)),
        "'movieId' is a list of int64, was int64",
    ),
    "another width": (
        lambda table: table.set_column(7, "label", table["label"].cast(pa.float64())),
        "'label' is float64, was float32",
    ),
}


@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES)
def test_data_with_another_schema_is_refused_with_the_difference(tmp_path, change, message):
    table = rows(50)
    folder = workflow().fit(table).save(tmp_path / "saved")
    changed = change(table)
    with pytest.raises(ValueError, match=f"do not match those fitted on: {message}. Write"):
        Workflow.load(folder, data=changed)
    loaded = Workflow.load(folder)
    path = write(tmp_path / "changed.parquet", changed, 20)
    for data in (changed, path, ParquetSource(path), Chunk.from_arrow(changed)):
        with pytest.raises(ValueError, match=message):
            loaded.check_data(data)
    with pytest.raises(ValueError, match=message):
        loaded.transform_to_parquet(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_error_lists_all_differences_and_unused_columns_do_not_count(tmp_path):
    table = rows(50)
    folder = workflow().fit(table).save(tmp_path / "saved")
    both = table.drop_columns(["price"]).set_column(0, "userId", table["userId"].cast(pa.int32()))
    with pytest.raises(ValueError, match=r"'userId' is int32, was int64; 'price' is missing, was"):
        Workflow.load(folder, data=both)
    more = table.append_column("more", table["label"]).drop_columns(["unused"])
    assert Workflow.load(folder, data=more).fingerprint == workflow().fit(table).fingerprint


LOAD = """
import sys
from tutorlib.workflow import Workflow

Workflow.load(sys.argv[1])  # what is imported only when it is needed is there from now on
refused = ("exec", "compile", "os.system", "subprocess.Popen", "os.exec", "os.posix_spawn",
           "pickle.find_class", "ctypes.dlopen", "socket.connect", "import")
happened = []
sys.addaudithook(lambda event, arguments: happened.append((event, arguments))
                 if event in refused else None)
for folder in sys.argv[2:]:
    try:
        Workflow.load(folder)
    except ValueError as error:
        print("ValueError", str(error).replace("\\n", " "))
    else:
        print("loaded")
happened = [entry for entry in happened if entry[0] != "import"
            or not str(entry[1][0]).startswith(("pyarrow", "numpy"))]
print(happened)
"""


def text_of(folder):
    return (folder / "workflow.json").read_text()


def tampered(folder, target, change):
    """Copy a saved workflow and change its JSON by a function of its content."""
    target.mkdir()
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    content = json.loads(text_of(target))
    change(content)
    (target / "workflow.json").write_text(json.dumps(content))
    return target


def first_op(content):
    return content["groups"][0]["ops"][0]


EVIL = {
    "name of a function": lambda c: first_op(c).update(op="os.system"),
    "name of a module to import": lambda c: first_op(c).update(op="antigravity.Op"),
    "name of a builtin": lambda c: first_op(c).update(op="eval", config={"source": "exit(7)"}),
    "a class that is abstract": lambda c: first_op(c).update(
        op="tutorlib.ops.normalize._Scaler"
    ),
    "import by name": lambda c: first_op(c).update(op="__import__('os').system"),
    "another argument": lambda c: first_op(c)["config"].update(__class__="os.system", shell=True),
    "a function that was not passed": lambda c: first_op(c).update(
        op="tutorlib.ops.LambdaOp",
        config={"function": "__import__('os').system('touch /')", "dtype": "O"}
    ),
    "config of another type": lambda c: first_op(c).update(config="__import__('os')"),
    "dtype with code": lambda c: c["groups"][1]["ops"][0].update(
        op="tutorlib.ops.LogOp", config={"dtype": "__import__('os').getcwd()"},
        tables=[], learned={}
    ),
    "file of a table": lambda c: first_op(c).update(tables=["../../../etc/passwd", "id"]),
    "a version that is no integer": lambda c: c.update(format_version=3.0),
    "a version in quotes": lambda c: c.update(format_version="3"),
    "a label that is no name": lambda c: c.update(label_names=[7]),
    "a weight that is no name": lambda c: c.update(weight_name=7),
    "an input without a type": lambda c: c["inputs"].update(id="int64"),
    "a fingerprint that is none": lambda c: c.update(fingerprint=None),
    "no groups": lambda c: c.pop("groups"),
    "groups that are none": lambda c: c.update(groups=[{"columns": 7, "ops": None}]),
    "row ops": lambda c: c.update(row_ops=[{"op": "eval", "config": {"expression": "exit()"}}]),
}  # fmt: skip


def test_loading_executes_nothing_from_the_files(tmp_path):
    made = Workflow(["id"] >> Categorify(), ["text"] >> Categorify())
    table = pa.table({"id": [1, 2, 2], "text": ["a", "b", "b"]})
    good = made.fit(table).save(tmp_path / "good")
    folders = [tampered(good, tmp_path / str(k), change) for k, change in enumerate(EVIL.values())]
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *map(str, [good, good, *folders])],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    *answers, happened = done.stdout.splitlines()
    assert answers[0] == "loaded"
    for name, answer in zip(EVIL, answers[1:], strict=True):
        assert answer.startswith("ValueError "), (name, answer)
        assert "workflow.json" in answer, (name, answer)
    assert happened == "[]"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": "3"}, "'format_version' must be of type int, got '3'"),
        ({"format_version": True}, "'format_version' must be of type int, got True"),
        ({"label_names": [7]}, "label_names must be strings, got 7"),
        ({"nullable": [7]}, "nullable must be strings, got 7"),
        ({"groups": [[]]}, r"a group must be a JSON object, got \[\]"),
        ({"inputs": {"id": ["int64"]}}, r"input 'id' must be \[name, is list\]"),
    ],
)
def test_a_field_of_the_wrong_kind_is_refused_with_its_rule(tmp_path, change, message):
    folder = Workflow(["id"]).fit(Chunk({"id": np.arange(3)})).save(tmp_path / "saved")
    with pytest.raises(ValueError, match=message):
        Workflow.load(tampered(folder, tmp_path / "changed", lambda c: c.update(change)))


MORE_FIELDS = {
    "more": lambda c: c.update(more=1),
    "row_ops[0].more": lambda c: c["row_ops"][0].update(more=None),
    "groups[0].more": lambda c: c["groups"][0].update(more=[]),
    "groups[0].ops[0].more": lambda c: first_op(c).update(more={"shell": True}),
    "groups[0].ops[0].learned.more": lambda c: first_op(c)["learned"].update(more=[1.0, 2.0]),
    "groups[0].ops[0].config.more": lambda c: first_op(c)["config"].update(more=1),
}


@pytest.mark.parametrize("place", MORE_FIELDS)
def test_a_field_that_no_workflow_writes_is_refused_by_its_place(tmp_path, place):
    data = Chunk({"x": np.array([1.0, 2.0])})
    folder = Workflow(["x"] >> Normalize(), row_ops=[Dropna(["x"])]).fit(data).save(tmp_path / "a")
    with pytest.raises(ValueError, match=r"workflow\.json: ") as error:
        Workflow.load(tampered(folder, tmp_path / "b", MORE_FIELDS[place]))
    assert (place in str(error.value)) or "unexpected keyword argument 'more'" in str(error.value)


def test_a_pickle_in_the_schema_of_a_table_is_not_executed(tmp_path):
    """Old versions of Arrow unpickled a type that a file brought along."""
    made = Workflow(["id"] >> Categorify()).fit(Chunk({"id": np.array([5, 5, 9])}))
    folder = made.save(tmp_path / "saved")
    (path,) = folder.glob("*.parquet")
    table = pq.read_table(path)
    payload = b"cos\nsystem\n(S'touch " + str(tmp_path / "executed").encode() + b"'\ntR."
    evil = {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": payload}
    field = table.schema.field(0).with_metadata(evil)
    pq.write_table(table.cast(pa.schema([field, *list(table.schema)[1:]])), path)
    Workflow.load(folder)
    assert not (tmp_path / "executed").exists()


def doubled(values):
    return values * 2


def test_a_loaded_workflow_calls_the_function_that_the_caller_passes(tmp_path):
    data = Chunk({"x": np.array([1.0, 2.0])})
    folder = Workflow(["x"] >> LambdaOp(doubled)).fit(data).save(tmp_path / "named")
    with pytest.raises(ValueError, match="needs the function 'doubled', which is never saved"):
        Workflow.load(folder)
    with pytest.raises(ValueError, match="needs the function 'doubled'"):
        Workflow.load(folder, functions={"len": len})
    with pytest.raises(ValueError, match="passed as 'doubled' is called '<lambda>'"):
        Workflow.load(folder, functions={"doubled": lambda values: values * 3})
    mine = Workflow.load(folder, functions={"doubled": doubled})
    assert mine.transform(data)["x"].tolist() == [2, 4]


def test_load_of_a_folder_of_rows_names_the_folder_of_its_workflow(tmp_path):
    data = Chunk({"x": np.array([1.0, 2.0])})
    folder = Workflow(["x"]).fit(data).transform_to_parquet(data, tmp_path / "rows")
    with pytest.raises(FileNotFoundError, match=r"no saved .*There is one at .*rows._workflow$"):
        Workflow.load(folder)
    with pytest.raises(FileNotFoundError, match=r"it has no workflow\.json$"):
        Workflow.load(tmp_path)
