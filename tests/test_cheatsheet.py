"""The cheat sheet: its code runs, and the page stays one page."""

import re
from pathlib import Path

import keras
import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from tutorlib import (
    Categorify,
    DenseFeatures,
    KerasSequenceLoader,
    Normalize,
    ParquetSink,
    Workflow,
    keras_inputs,
)

PAGE = (Path(__file__).parents[1] / "docs/cheatsheet.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ")][1:]
CODE = re.findall(r"`([^`]*[(\[][^`]*)`", "\n".join(ROWS))


@pytest.fixture
def names(tmp_path, monkeypatch):
    """What the page takes as given: rows in two folders, a loader, a model, tf.data records."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x, y = rng.random(40_000, "float32"), rng.integers(0, 2, 40_000).astype("float32")
    table = pa.table({"C1": rng.integers(0, 500, 40_000), "I1": x, "label": y})
    with ParquetSink("raw") as sink:
        sink.write(table)
    workflow = Workflow(
        ["C1"] >> Categorify(), ["I1"] >> Normalize(), ["label"], label_names=["label"]
    )
    for folder in ("train", "valid"):
        workflow.fit("raw").transform_to_parquet("raw", folder, row_group_rows=1_000)
    loader = KerasSequenceLoader("train", 4096)
    inputs = keras_inputs(loader.schema)
    features = DenseFeatures(loader.schema)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(features))
    model.compile("adam", "binary_crossentropy")
    records = tf.data.Dataset.from_tensor_slices([b"abcd"] * 8192)
    given = {"C1": np.arange(40_000) % 400, "I1": x}  # ids, as those of the files
    return {
        "loader": loader, "model": model, "records": records, "keras": keras, "tf": tf, "x": given,
        "y": y, "parse": lambda batch: tf.io.decode_raw(batch, tf.uint8),
        "workflow": workflow,
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # what a page of one-liners leaves open
def test_each_line_of_code_runs_from_top_to_bottom(names, capsys):
    exec("from tutorlib import *", names)
    try:
        for line in CODE:
            exec(line, names)
    finally:
        keras.config.set_dtype_policy("float32")
    assert len(CODE) == PAGE.count("`", PAGE.index("\n| ")) // 2 - PAGE.count("`fit`")
    printed = capsys.readouterr().out
    assert printed.count("of the time") >= 2
    assert "MiB" in printed
    assert "GiB" in printed
    assert {*names["wide"].peek()[0]} == {"categorical", "continuous"}
    assert next(iter(names["parsed"])).shape == (4096, 4)
    assert len(names["report"].stalls) == 1
    assert 3_500 < names["part"].num_rows < 4_500
    assert KerasSequenceLoader("mixed", 4096).source.num_rows == 40_000


def test_it_fits_on_a_page():
    words = re.findall(r"\S*\w\S*", re.sub(r"\]\([^)]*\)", "]", PAGE))
    assert len(words) <= 450
