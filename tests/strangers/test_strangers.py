"""Data sets of other shapes than the tutorial's, taken through by what the README says alone.

Each is inferred or named, fitted, trained on, validated, predicted for with its ids, and served.
"""

import datetime
import decimal

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from tutorlib import (
    Categorify,
    DenseFeatures,
    FillMissing,
    HashBucket,
    KerasSequenceLoader,
    LabelEncoder,
    Normalize,
    ParquetSource,
    Workflow,
    export_serving,
    keras_inputs,
)

ROWS = 120


def taken_through(folder, workflow, ids, raw, tmp_path):
    """Fit, train, validate, predict and serve; return the table of ids and predictions.

    `raw` are the tensors of all rows for the served model, whose predictions must be those of the
    table.
    """
    workflow.fit(ParquetSource(folder))
    train, valid = (
        KerasSequenceLoader(folder, batch_size=32, id_names=ids, shuffle=shuffle).map(workflow)
        for shuffle in (True, False)
    )
    inputs = keras_inputs(train.schema)
    out = keras.layers.Dense(1, "sigmoid")(DenseFeatures(train.schema)(inputs))
    model = keras.Model(inputs, out)
    model.compile("adam", "binary_crossentropy", jit_compile=False)
    history = model.fit(train, validation_data=valid, verbose=0).history
    assert np.isfinite(history["val_loss"]).all()
    table = train.predict(model, verbose=0)
    assert table.column_names == [*ids, "prediction"]
    served = tf.saved_model.load(export_serving(model, workflow, tmp_path / "served"))
    signature = served.signatures["serving_default"]
    asked = signature.structured_input_signature[1]
    for name in (name.removesuffix("__valid") for name in asked if name.endswith("__valid")):
        values = raw[name] if name in raw else raw[f"{name}__values"]
        raw.setdefault(f"{name}__valid", np.ones(len(values), bool))
    predicted = signature(**{name: tf.constant(values) for name, values in raw.items()})
    got = table["prediction"].to_numpy()
    np.testing.assert_allclose(predicted["predictions"][:, 0], got, rtol=1e-5)
    return table


def test_mixed_types_and_empty_columns(tmp_path):
    """A table as it comes out of a data base: nulls, dates, money and columns without values."""
    rng, day = np.random.default_rng(0), datetime.date(2026, 1, 1)
    null = rng.random(ROWS) < 0.2
    amount = pa.array(rng.random(ROWS), mask=null)
    numbers = rng.integers(0, 9, ROWS)
    table = pa.table(
        {
            "key": [f"k-{n}" for n in range(ROWS)],
            "amount": amount,
            "price": pa.array([decimal.Decimal(n) / 100 for n in range(ROWS)]),
            "open": pa.array(rng.random(ROWS) < 0.5),
            "kind": pa.array(["a", "b", "", "d"] * (ROWS // 4)).dictionary_encode(),
            "count": pa.array(numbers, mask=null),
            "born": [day + datetime.timedelta(n) for n in range(ROWS)],
            "empty": pa.nulls(ROWS),
            "empty_text": pa.nulls(ROWS, pa.string()),
            "two words": numbers,
            "bought": ["yes", "no"] * (ROWS // 2),
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=50)
    with pytest.raises(ValueError, match=r"column 'kind'|column 'key'|column 'bought'"):
        KerasSequenceLoader(tmp_path / "rows.parquet", 32, label_names=["bought"]).peek()
    workflow = Workflow(
        ["amount"] >> FillMissing(0) >> Normalize(),
        ["kind", "count", "empty_text"] >> Categorify(),
        ["open"],
        ["bought"] >> LabelEncoder(),
    )
    raw = {
        "amount": np.where(null, np.nan, amount.to_numpy(zero_copy_only=False)),
        "kind": np.array(table["kind"].to_pylist()),
        "count": np.where(null, 0, numbers),
        "count__valid": ~null,
        "empty_text": np.full(ROWS, ""),
        "empty_text__valid": np.zeros(ROWS, bool),
        "open": table["open"].to_numpy(),
    }
    ids = ["key", "price", "born", "empty", "two words"]
    got = taken_through(tmp_path / "rows.parquet", workflow, ids, raw, tmp_path)
    assert got.select(ids).equals(table.select(ids))


def test_sessions_of_lists_and_timestamps(tmp_path):
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 6, ROWS)
    items = [rng.integers(10**12, 10**12 + 20, n).tolist() for n in lengths]
    words = [[f"w{item % 5}" for item in row] for row in items]
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    times = [start + datetime.timedelta(hours=n) for n in range(ROWS)]
    table = pa.table(
        {
            "started": pa.array(times, pa.timestamp("ms", tz="UTC")),
            "items": items,
            "words": pa.array(words, pa.list_(pa.string())),
            "clicked_at": [[time] * n for time, n in zip(times, lengths, strict=True)],
            "label": rng.random(ROWS) < 0.5,
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=50)
    workflow = Workflow(["items"] >> Categorify(), ["words"] >> HashBucket(9), ["label"])
    raw = {
        "items__values": np.concatenate(items).astype("int64"),
        "items__nnzs": lengths.astype("int32"),
        "words__values": np.concatenate(words),
        "words__nnzs": lengths.astype("int32"),
    }
    ids = ["started", "clicked_at"]
    got = taken_through(tmp_path / "rows.parquet", workflow, ids, raw, tmp_path)
    assert got.select(ids).equals(table.select(ids))
