"""A saved Workflow is loaded to the same bits; a file that was changed is refused by its name."""

import contextlib
import hashlib
import json
import sys
from pathlib import Path

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.workflow_rows import rows, workflow
from tutorlib.columns import Chunk
from tutorlib.loader import KerasSequenceLoader
from tutorlib.ops import Categorify, ColumnOp, LabelEncoder, Normalize, Op
from tutorlib.parquet import ParquetSource
from tutorlib.workflow import Workflow
from tutorlib.workflow.saved import FILE, TABLES

DATA = Chunk({"x": np.array([1.0, 2.0])})


def test_a_loaded_workflow_keeps_its_settings_and_can_be_fitted_again(tmp_path):
    made = Workflow(
        ["x"] >> Categorify(freq_threshold=2), ["v"] >> Categorify(vocabularies={"v": [9]})
    )
    data = Chunk({"x": np.array([1, 1, 2, 3]), "v": np.array([9, 8, 9, 9])})
    made.fit(data).save(tmp_path / "workflow")
    loaded = Workflow.load(tmp_path / "workflow", data=data)
    assert loaded.transform(data)["v"].tolist() == [3, 2, 3, 3]
    loaded.fit(Chunk({"x": np.array([5, 6, 6, 7]), "v": np.array([1, 1, 1, 1])}))
    out = loaded.transform(Chunk({"x": np.array([6, 5, 7, 1]), "v": np.array([9, 1, 1, 1])}))
    assert [out["x"].tolist(), out["v"].tolist()] == [[3, 2, 2, 2], [3, 2, 2, 2]]


def test_the_fingerprint_tells_what_was_learned_and_given_in_whatever_order():
    def fitted_on(*values):
        return Workflow(["x"] >> Normalize()).fit(Chunk({"x": np.array(values)})).fingerprint

    assert fitted_on(1.0, 3.0) == fitted_on(3.0, 1.0, 1.0, 3.0) != fitted_on(1.0, 4.0)
    data, given = Chunk({"a": np.arange(2), "b": np.arange(2)}), {"a": [1], "b": [2, 3]}
    first, second = (
        Workflow(["a", "b"] >> Categorify(vocabularies={name: given[name] for name in names}))
        for names in ("ab", "ba")
    )
    assert first.fit(data).fingerprint == second.fit(data).fingerprint


def flipped(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def edited(path):
    path.write_text(path.read_text().replace('"num_buckets": 50', '"num_buckets": 51'))


def with_rows(path, choose):
    """Write the first table of a saved workflow with other rows, and no other table."""
    table = pa.ipc.open_stream(path.read_bytes()).read_all()
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table.take(choose(list(range(table.num_rows)))))


def reversed_rows(path):
    with_rows(path, lambda rows: rows[::-1])


DAMAGES = {
    "a bit of a table": (TABLES, flipped),
    "rows of a table": (TABLES, reversed_rows),
    "a table that is gone": (TABLES, lambda path: path.unlink()),
    "a number in the JSON": (FILE, edited),
    "JSON cut off": (FILE, lambda path: path.write_bytes(path.read_bytes()[:-9])),
    "the hash": (FILE, lambda path: path.write_bytes(b"\xff\n")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_was_changed_is_refused_by_its_name(tmp_path, damage):
    name, change = DAMAGES[damage]
    folder = workflow().fit(rows()).save(tmp_path / "workflow")
    change(folder / name)
    with pytest.raises(ValueError, match=rf"{FILE} is not a whole workflow .*{name}"):
        Workflow.load(folder)


def forge(folder, text):
    """Write other JSON with its hash, as one who wants to harm can."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    (folder / FILE).write_text(f"{digest}\n{text}")


def saved_values(folder):
    return json.loads((folder / FILE).read_text().partition("\n")[2])


def places_in(value, *way):
    """Yield the way to each value in JSON values."""
    yield way
    if isinstance(value, dict | list):
        for name in value if isinstance(value, dict) else range(len(value)):
            yield from places_in(value[name], *way, name)


def replaced(saved, way, value):
    if not way:
        return [] if value is GONE else value
    part = saved
    for step in way[:-1]:
        part = part[step]
    if value is GONE:
        del part[way[-1]]
    else:
        part[way[-1]] = value
    return saved


GONE = object()
FORGED = [GONE, None, -1, 10**400, "../secret", [], {}, [["x", 10**9]], {"x": 1}]


def test_a_forged_value_anywhere_is_refused_or_harmless_and_opens_no_other_file(tmp_path):
    groups = [["x", "y"] >> Categorify(vocabularies={"y": [3]}), ["z"] >> Normalize()]
    rows = {name: np.arange(4.0 if name == "z" else 4) for name in "xyz"}
    folder = Workflow(*groups).fit(Chunk(rows)).save(tmp_path / "a" / "workflow")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    opened = set()
    accepted = 0
    with pytest.MonkeyPatch.context() as patch:
        read = Path.read_bytes
        patch.setattr(Path, "read_bytes", lambda path: (opened.add(path), read(path))[1])
        text = json.dumps(saved_values(folder))
        for way in places_in(json.loads(text)):
            for value in FORGED:
                forge(folder, json.dumps(replaced(json.loads(text), way, value)))
                with contextlib.suppress(ValueError):
                    Workflow.load(folder)
                    accepted += 1
    assert accepted < 80  # of 700
    assert opened <= {folder / name for name in files}


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda saved: saved.update(format_version=4), "format version 4, but this tutorlib reads"),
        (lambda saved: saved["groups"][0]["ops"][0].update(op="os.system"), "'os.system' is not"),
        (lambda saved: saved["groups"][0]["ops"][0].update(op="antigravity.Op"), "is not known"),
    ],
)
def test_nothing_from_forged_files_is_imported_or_executed(tmp_path, change, rule):
    folder = Workflow(["x"] >> Normalize()).fit(DATA).save(tmp_path / "workflow")
    saved = saved_values(folder)
    change(saved)
    forge(folder, json.dumps(saved))
    with pytest.raises(ValueError, match=rule):
        Workflow.load(folder)
    forge(folder, "[" * 100_000)
    with pytest.raises(ValueError, match="RecursionError"):
        Workflow.load(folder)
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("op", [Categorify, LabelEncoder])
def test_a_table_with_a_key_twice_is_refused_by_its_column(tmp_path, op):
    rows = Chunk({"k": np.arange(9)})
    folder = Workflow(["k"] >> op()).fit(rows).save(tmp_path / "saved")
    with_rows(folder / TABLES, lambda rows: [*rows[:-1], rows[-2]])
    saved = saved_values(folder)
    saved["tables_sha256"] = hashlib.sha256((folder / TABLES).read_bytes()).hexdigest()
    forge(folder, json.dumps(saved))
    with pytest.raises(ValueError, match=rf"column 'k': {op.__name__} .* but 7 appears twice"):
        Workflow.load(folder)


def test_save_replaces_only_with_overwrite_and_load_says_where_a_workflow_is(tmp_path):
    fitted = workflow().fit(rows())
    folder = fitted.save(tmp_path / "workflow")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        fitted.save(folder)
    fitted.save(folder, overwrite=True)
    assert Workflow.load(folder).fingerprint == fitted.fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["workflow"]
    with pytest.raises(FileNotFoundError, match=r"no saved workflow at .*it has no workflow.json$"):
        Workflow.load(tmp_path)
    made = Workflow(["x"]).fit(DATA).transform_to_parquet(DATA, tmp_path / "rows")
    with pytest.raises(FileNotFoundError, match=r"There is one at .*rows._workflow$"):
        Workflow.load(made)


class Power(ColumnOp):
    def __init__(self, exponent=2):
        self.exponent = exponent

    def transform_column(self, name, column):
        return column**self.exponent


def test_an_op_of_ones_own_is_saved_by_its_name_and_found_where_it_is_defined(tmp_path):
    fitted = Workflow(["x"] >> Power(3)).fit(DATA)
    folder = fitted.save(tmp_path / "saved")
    assert Workflow.load(folder).transform(DATA)["x"].tolist() == [1, 8]
    out = fitted.transform_to_parquet(DATA, tmp_path / "out")
    assert pq.read_table(out)["x"].to_pylist() == [1, 8]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Op, "registry", {})
        with pytest.raises(ValueError, match=r"test_saved.Power' is not known.*import the module"):
            Workflow.load(folder)


class Apply(ColumnOp):
    """An op of a user that takes a function."""

    def __init__(self, function):
        self.function = function

    def transform_column(self, name, column):
        return self.function(column)


class Forgetful(ColumnOp):
    """An op of a user that does not keep its argument."""

    def __init__(self, factor):
        self._factor = factor

    def transform_column(self, name, column):
        return column * self._factor


UNSAVABLE = {
    "a function": (lambda: Apply(np.sqrt), r"Apply of the columns \['x'\] cannot be saved.* ufunc"),
    "a set": (lambda: Apply({1}), "Apply .* cannot be saved: .* type set"),
    "no attribute": (lambda: Forgetful(2.0), r"Forgetful of .*no attribute 'factor'.* get_config"),
}


@pytest.mark.parametrize("case", UNSAVABLE)
def test_an_op_that_cannot_be_saved_is_named_before_anything_is_read_or_written(tmp_path, case):
    make, message = UNSAVABLE[case]
    rows = pa.table({"x": np.arange(4.0), "label": [0, 1, 0, 1]})
    fitted = Workflow(["x"] >> make(), ["label"]).fit(rows)
    pq.write_table(rows, tmp_path / "rows.parquet")
    source = ParquetSource(tmp_path / "rows.parquet")
    (tmp_path / "rows.parquet").unlink()  # so that reading it fails
    for call in (
        lambda: fitted.transform_to_parquet(source, tmp_path / "out"),
        lambda: fitted.save(tmp_path / "saved"),
        lambda: fitted.fingerprint,
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert not list(tmp_path.iterdir())


def test_an_op_that_takes_a_function_works_in_memory_and_in_fit():
    rows = pa.table({"x": np.arange(4.0), "label": [0, 1, 0, 1]})
    fitted = Workflow(["x"] >> Apply(np.sqrt), ["label"]).fit(rows)
    assert fitted.transform(rows)["x"].tolist() == np.sqrt(np.arange(4)).tolist()
    loader = KerasSequenceLoader(rows, 2, shuffle=False).map(fitted)
    inputs = {"x": keras.Input((1,), name="x")}
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs["x"]))
    model.compile("sgd", "mse")
    model.fit(loader, verbose=0)
    assert model.evaluate(loader, verbose=0) >= 0
    loader.load_state_dict(loader.state_dict())
