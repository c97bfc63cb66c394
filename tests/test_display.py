"""What a notebook and `repr` show: all that matters, escaped, at most a screen of it."""

import re
from html.parser import HTMLParser

import numpy as np
import pyarrow as pa
import pytest

from tutorlib.display import html_table, shortened
from tutorlib.loader import KerasSequenceLoader
from tutorlib.ops import Categorify, Clip, FillMissing, LambdaOp, Normalize
from tutorlib.parquet import ParquetSink
from tutorlib.schema import Column, Schema
from tutorlib.workflow import Workflow

CATEGORICAL = [f"C{i}" for i in range(1, 27)]
CONTINUOUS = [f"I{i}" for i in range(1, 14)]


class Cells(HTMLParser):
    """Collects the text of each cell; refuses tags that are not closed in order."""

    def __init__(self, html):
        super().__init__()
        self.rows, self.open = [], []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


@pytest.mark.parametrize(
    ("count", "want"), [(0, ""), (6, "0, 1, 2, 3, 4, 5"), (7, "0, 1, 2, 3, 4, 5, 6"),
                        (1008, "0, 1, 2, 3, 4, 5, ... 1,002 more")]
)  # fmt: skip
def test_a_list_is_cut_only_if_that_leaves_out_more_than_one(count, want):
    assert shortened(range(count)) == want


def test_text_in_a_table_is_escaped_and_takes_its_colours_from_the_page():
    html = html_table("<script>", ["a & b"], [["</td>", 1234567], [None, True]])
    assert Cells(html).rows == [["a & b"], ["</td>", "1,234,567"], ["", "True"]]
    assert "<script>" not in html
    assert not re.search(r"(?<!-)color:|background", html)


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    columns = {name: rng.integers(0, 5 * k, 400) for k, name in enumerate(CATEGORICAL, start=1)}
    columns |= {name: rng.random(400, dtype="float32") for name in CONTINUOUS}
    columns["genres"] = [[1, 2], [], [3], [1]] * 100
    return pa.table({**columns, "<y>": rng.integers(0, 2, 400).astype("float32")})


@pytest.fixture(scope="module")
def workflow(table):
    return Workflow(
        CATEGORICAL >> Categorify(freq_threshold=2), ["genres"] >> Categorify(),
        CONTINUOUS >> FillMissing() >> Clip(min_value=0) >> Normalize(), ["<y>"],
        label_names=["<y>"],
    ).fit(table)  # fmt: skip


def test_a_wide_workflow_is_a_screen_of_text(workflow):
    assert repr(workflow).splitlines() == [
        "Workflow: fitted, 41 columns in, 41 out",
        "  ['C1', 'C2', 'C3', 'C4', 'C5', 'C6', ... 20 more] >> Categorify(freq_threshold=2)",
        "  ['genres'] >> Categorify()",
        "  ['I1', 'I2', 'I3', 'I4', 'I5', 'I6', ... 7 more] >> FillMissing() >> "
        "Clip(min_value=0) >> Normalize()",
        "  ['<y>']",
    ]


def test_an_op_shows_its_arguments_shortly():
    assert repr(Categorify(vocabularies={"a": np.arange(5000)})).startswith("Categorify(vocab")
    assert len(repr(Categorify(vocabularies={"a": np.arange(5000)}))) < 100
    assert repr(LambdaOp(np.abs, dtype="int32")) == "LambdaOp(function=absolute, dtype='int32')"


def test_a_schema_as_text_and_as_a_table():
    schema = Schema(
        [Column("C1", "categorical", multi_hot=True, cardinality=56586), Column("y", "label")]
    )
    assert repr(schema) == "Schema(1 categorical: C1; 1 label: y)"
    head, *rows = Cells(schema._repr_html_()).rows
    assert head[:2] == ["name", "role"]
    genres, y = (dict(zip(head, row, strict=True)) for row in rows)
    assert (genres["name"], genres["cardinality"], genres["multi_hot"]) == ("C1", "56,586", "True")
    assert (y["role"], y["cardinality"], y["multi_hot"]) == ("label", "", "False")


FORMS = {
    "nnzs": "genres__values [values, 1]\ngenres__nnzs [batch, 1]",
    "offsets": "genres__values [values]\ngenres__offsets [batch + 1]",
    "padded": "genres [batch, 3]",
}


@pytest.mark.parametrize("multi_hot", FORMS)
@pytest.mark.parametrize("batch_layout", ["columns", "stacked"])
def test_a_loader_as_a_table_shows_its_plan_and_its_tensors(
    tmp_path, workflow, table, batch_layout, multi_hot
):
    with ParquetSink(tmp_path / "a.parquet", row_group_rows=100) as sink:
        sink.write(table)
    loader = KerasSequenceLoader(
        tmp_path / "a.parquet", 64, label_names=["<y>"], batch_layout=batch_layout,
        multi_hot=multi_hot, memory_budget="64MiB", max_list_length=3,
    ).map(workflow)  # fmt: skip
    rows = Cells(loader._repr_html_()).rows
    assert ["rows", "400"] in rows
    assert ["memory budget, MiB", "64"] in rows
    tensors = {row[0]: row[1:] for row in rows if len(row) == 5}
    assert tensors["genres"] == ["categorical", FORMS[multi_hot], "int32", "6"]
    stacked = batch_layout == "stacked"
    want = "continuous[:, 1] of [batch, 13]" if stacked else "I2 [batch, 1]"
    assert tensors["I2"] == ["continuous", want, "float32", ""]
    assert tensors["<y>"][1] == "<y> [batch, 1]"
    inputs, labels = loader.peek()
    assert inputs["continuous" if stacked else "I2"].shape == (64, 13 if stacked else 1)
    assert labels.shape == (64, 1)


def test_a_loader_that_has_no_batches_yet_says_why(tmp_path):
    with ParquetSink(tmp_path / "a.parquet") as sink:
        sink.write(pa.table({"t": ["a", "b"], "y": np.zeros(2, "float32")}))
    html = KerasSequenceLoader(tmp_path / "a.parquet", 2, label_names=["y"])._repr_html_()
    assert "No batches yet: column &#x27;t&#x27; holds strings" in html
