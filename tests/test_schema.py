"""Schema: roles, embedding sizes, ways to come by one; how it is shown; checks of arguments."""

import decimal
import re
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from tutorlib.checks import check_bytes, check_integer
from tutorlib.loader import KerasSequenceLoader
from tutorlib.loader.roles import schema_of_arguments
from tutorlib.ops import FillMissing
from tutorlib.parquet import ParquetSource
from tutorlib.schema import Column, Schema, batch_dtype, embedding_dim_for, remedy_for
from tutorlib.workflow import Workflow


@pytest.mark.parametrize(("cardinality", "width"), [(1, 16), (56586, 512), (1000, 77)])
def test_embedding_widths_follow_the_rule(cardinality, width):
    assert embedding_dim_for(cardinality) == width


def schema_of():
    return Schema(
        [
            Column("C1", "categorical", cardinality=100, embedding_dim=8),
            Column("genres", "categorical", multi_hot=True, cardinality=21),
            Column("I1", "continuous", "float32"),
            Column("image", "continuous", "float32", length=8),
            Column("label", "label", "float32"),
            Column("w", "weight", "float32"),
        ]
    )


def test_json_brings_back_the_same_schema(tmp_path):
    (tmp_path / "schema.json").write_text(schema_of().to_json())
    assert Schema.load(tmp_path / "schema.json") == schema_of()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "Expecting property name"),
        ('{"name": "a", "role": "label"}', "not a JSON list of columns"),
        ('[{"name": "a", "role": "label", "path": "/etc"}]', "not a JSON list of columns"),
        ('[{"name": "a", "role": "label", "dtype": null}]', "dtype must be a string"),
        ('[{"name": "a", "role": "categorical", "cardinality": 1e400}]', "must be an integer"),
        ("[" * 100_000 + "]" * 100_000, "not a JSON list of columns"),
        ("\udcff", "codec can't decode"),
    ],
)
def test_a_file_that_holds_no_schema_is_refused_by_name(text, words, tmp_path):
    path = tmp_path / "_schema.json"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ValueError, match=rf"(?s)_schema\.json: .*{words}"):
        Schema.load(path)


def test_columns_are_found_by_role_and_name():
    schema = schema_of()
    assert schema.categorical.names == ["C1", "genres"]
    assert schema.features.names == ["C1", "genres", "I1", "image"]
    assert schema.labels.names == ["label"]
    assert schema.embedding_sizes() == {"C1": (100, 8), "genres": (21, 16)}
    assert schema.replace("C1", embedding_dim=4)["C1"].width == 4
    assert schema.select(["I1", "C1"]).names == ["I1", "C1"]
    with pytest.raises(KeyError, match="no column 'C2'"):
        schema["C2"]


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (("a", "feature"), "role must be one of .* got 'feature'"),
        (("a", "categorical", "int64", False, 0), r"cardinality must be in \[1, 2\*\*63\), got 0"),
        (("a", "categorical", "int64", False, 2**63), r"cardinality must be in \[1, 2\*\*63\)"),
        (("a", "categorical", "int64", False, 2.5), "cardinality must be an integer"),
        (("a", "categorical", "int64", False, 9, 2**31), "embedding_dim must be in"),
        (("a", "categorical", "int64", "no"), "multi_hot must be one of"),
        (("a", "categorical", 8), "dtype must be a string, got 8"),
        ((7, "categorical"), "column 7: name must be a string, got 7"),
        (("a", "label", "int64", False, 3), "only a categorical column has a cardinality"),
        (("a", "continuous", "float32", False, None, 3), "has a cardinality or an embedding_dim"),
        (("a", "continuous", "float32", False, None, None, 0), r"length must be in \[1, 2\*\*31\)"),
        (("a", "continuous", "float32", True, None, None, 3), "length is for continuous"),
        (("a", "weight", "float32", False, None, None, 3), "length is for continuous"),
    ],
)
def test_a_column_that_contradicts_itself_is_refused(column, words):
    with pytest.raises(ValueError, match=words):
        Column(*column)


def test_a_name_stands_once():
    with pytest.raises(ValueError, match=r"appear twice: \['a'\]"):
        Schema([Column("a", "label"), Column("a", "weight")])


ARGUMENTS = ("schema", "feature_columns", "cat_names", "cont_names", "label_names", "weight_name",
             "id_names")  # fmt: skip


def schema_from(path, **given):
    return schema_of_arguments(ParquetSource(path), **dict.fromkeys(ARGUMENTS) | given)


def test_types_come_from_the_footers(tmp_path):
    table = pa.table({"u": [1], "g": [["a"]], "x": [1.0], "n": [2], "y": [1.0], "t": ["q"]})
    pq.write_table(table, tmp_path / "a.parquet")
    schema = schema_from(tmp_path, label_names=["y"])
    assert schema["u"] == Column("u", "categorical", "int64")
    assert schema["g"] == Column("g", "categorical", "string", True)
    assert schema.continuous.names == ["x"]
    chosen = schema_from(tmp_path, cat_names=["u"], cont_names=["x", "n"])
    assert chosen.names == ["u", "x", "n"]
    with pytest.raises(ValueError, match=r"columns \['z'\] are not in the files"):
        schema_from(tmp_path, label_names=["z"])


def test_arguments_replace_the_targets_of_a_schema_and_a_column_has_one_role(tmp_path):
    pq.write_table(pa.table({"x": [1.0], "y": [1.0], "w": [2.0]}), tmp_path / "a.parquet")
    given = Schema([Column("x", "continuous"), Column("w", "weight")])
    found = schema_from(tmp_path, schema=given, weight_name="y")
    assert (found.names, found["y"].role) == (["x", "y"], "weight")
    with pytest.raises(
        ValueError, match="column 'w' is named as weight and as label: name it once"
    ):
        schema_from(tmp_path, schema=given, label_names=["w"])
    with pytest.raises(ValueError, match="column 'y' is named as label and as weight"):
        schema_from(tmp_path, label_names=["y"], weight_name="y")
    with pytest.raises(ValueError, match=r"one column may hold weights, got \['x', 'w'\]"):
        schema_from(tmp_path, schema=Schema([Column(name, "weight") for name in "xw"]))


def test_features_of_one_kind_named_are_all_features(tmp_path):
    table = pa.table({"u": [1], "g": [["a"]], "x": [1.0], "n": [2.0], "y": [1.0], "w": [1.0]})
    pq.write_table(table, tmp_path / "a.parquet")
    given = {"label_names": ["y"], "weight_name": "w"}

    def features(**names):
        return schema_from(tmp_path, **given, **names).features.names

    assert features(cont_names=["x"]) == ["x"]
    assert features(cat_names=["g"]) == ["g"]
    assert features(cat_names=[]) == []
    assert features() == ["u", "g", "x", "n"]


def test_feature_columns_are_understood_or_listed_in_one_error():
    column = tf.feature_column
    ids = column.categorical_column_with_identity("C1", 10)
    hashed = column.categorical_column_with_hash_bucket("C2", 7, dtype=tf.int64)
    alone = column.categorical_column_with_identity("C3", 9)
    good = [
        column.embedding_column(ids, 4),
        column.embedding_column(hashed, 5),
        column.numeric_column("I1"),
        column.numeric_column("I4", (2,)),
        alone,
    ]
    schema = Schema.from_feature_columns(good)
    assert schema.embedding_sizes() == {"C1": (10, 4), "C2": (7, 5), "C3": (9, 16)}
    assert schema.continuous.names == ["I1", "I4"]
    assert schema["I4"].length == schema["I4"].width == 2
    bad = [
        column.bucketized_column(column.numeric_column("I2"), [0.0]),
        column.numeric_column("I3", (3, 2)),
        column.embedding_column(column.weighted_categorical_column(alone, "scores"), 6),
    ]
    with pytest.raises(ValueError, match=r"not supported.*I2.*I3.*C3_weighted_by_scores"):
        Schema.from_feature_columns([*good, *bad])


def test_options_of_feature_columns_that_a_schema_cannot_hold_are_refused_by_name():
    column = tf.feature_column
    ids = column.categorical_column_with_identity("C1", 10)
    refused = {
        "C1_indicator": column.indicator_column(ids),
        "C1_embedding with .'combiner': 'sum'": column.embedding_column(ids, 4, "sum"),
        "C1_embedding with .*'trainable': False": column.embedding_column(ids, 4, trainable=False),
        "C1_embedding with .*'max_norm': 1.0": column.embedding_column(ids, 4, max_norm=1.0),
        "I1 with .*'normalizer_fn': <built-in": column.numeric_column("I1", normalizer_fn=abs),
    }
    for words, item in refused.items():
        with pytest.raises(ValueError, match=f"not supported: .*{words}"):
            Schema.from_feature_columns([item])


@pytest.fixture
def path(tmp_path):
    table = pa.table(
        {
            "id": [3, 4, 5],
            "flag": [True, False, True],
            "price": [decimal.Decimal("1.5")] * 3,
            "flags": [[True], [], [False]],
            "payload": [b"a", b"b", b"c"],
            "y": [0.0, 1.0, 0.0],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    return str(tmp_path / "a.parquet")


def loader_of(path, **changes):
    return KerasSequenceLoader(path, 3, label_names=["y"], shuffle=False, **changes)


def test_nulls_of_a_boolean_feature_are_refused_or_filled(tmp_path):
    pq.write_table(pa.table({"b": [True, None], "y": [1.0, 0.0]}), tmp_path / "a.parquet")
    loader = KerasSequenceLoader(tmp_path, 2, ["y"], shuffle=False)
    with pytest.raises(ValueError, match="'b': null or NaN at row 1"):
        next(iter(loader))
    loader = KerasSequenceLoader(tmp_path, 2, ["y"], shuffle=False, nulls="fill")
    assert next(iter(loader))[0]["b"].numpy().tolist() == [[1.0], [0.0]]


def test_lists_of_numbers_are_told_how_to_come_as_vectors_or_as_weights():
    table = pa.table({"v": [[0.5, 1.5], [2.5, 3.5]]})
    with pytest.raises(ValueError, match=r"one length k, .*length=k\).*name them in cont_names"):
        KerasSequenceLoader(table, 2)
    vectors = Schema([Column("v", "continuous", length=2)])
    inputs, _ = KerasSequenceLoader(table, 2, schema=vectors, shuffle=False).peek()
    assert inputs["v"].shape == (2, 2)


def test_what_inference_leaves_out_is_said_once_with_type_and_remedy(path):
    loader = loader_of(path)
    with warnings.catch_warnings(record=True, action="always") as said:
        list(loader)
        list(loader)
    (message,) = [str(one.message) for one in said if "not among the features" in str(one.message)]
    for words in [
        "'price' (decimal128(2, 1)): cast it to float64",
        "'payload' (binary): cast it to string",
        "'flags' (a list of bool): ",
    ]:
        assert words in message


def test_nothing_is_said_where_features_are_named_or_a_workflow_makes_them(path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(loader_of(path, cont_names=["id"]))
        list(loader_of(path).map(Workflow(["id"]).fit(path)))
        only = pa.table({"x": np.zeros(3), "n": [1, 2, 3]})
        Workflow(["x"] >> FillMissing()).fit(only)


@pytest.mark.parametrize(
    ("value", "bits", "message"),
    [
        (0, None, "x must be at least 1, got 0"),
        (1.0, None, "x must be an integer, at least 1, got 1.0"),
        ("7", 31, "x must be an integer, in [1, 2**31), got '7'"),
        (2**31, 31, "x must be in [1, 2**31), got 2147483648"),
        (0, 31, "x must be in [1, 2**31), got 0"),
    ],
)
def test_what_is_no_integer_in_range_is_refused(value, bits, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        check_integer("x", value, at_least=1, bits=bits)


@pytest.mark.parametrize(
    ("value", "want"),
    [(1, 1), (np.int32(7), 7), (1e9, 10**9), ("1GB", 10**9), ("512 MiB", 2**29), (" .5 kb ", 500),
     ("1.5gib", 3 * 2**29), ("2TB", 2 * 10**12), ("100B", 100), ("3.KiB", 3072)],
)  # fmt: skip
def test_bytes_are_a_number_or_text_with_a_unit(value, want):
    assert check_bytes("budget", value) == want
    assert type(check_bytes("budget", value)) is int


@pytest.mark.parametrize(
    "value",
    [0, -1, 0.5, float("inf"), float("nan"), "", "100", "1G", "-1GB", "1e3MB", "1 000MB", "1,5GB",
     "GB", "0B", "0.1B", "1XB", "iB", "1GB 2MB", "\u0661GB", [1]],
)  # fmt: skip
def test_what_is_no_number_of_bytes_is_refused_with_the_forms_that_pass(value):
    message = f"text such as '1.5GB' or '512MiB', got {value!r}"
    with pytest.raises(ValueError, match=re.escape(message)):
        check_bytes("budget", value)


def test_a_schema_as_text():
    schema = Schema(
        [Column("C1", "categorical", multi_hot=True, cardinality=56586), Column("y", "label")]
    )
    assert repr(schema) == "Schema(1 categorical: C1; 1 label: y)"


@pytest.mark.parametrize("kind", [pa.struct({"a": pa.binary()}), pa.map_(pa.int8(), pa.binary())])
def test_a_column_with_parts_is_told_to_store_them_whatever_they_are(kind):
    for dtype in (str(kind), str(pa.list_(pa.list_(kind)))):
        assert remedy_for(dtype) == "store its parts as columns of numbers or strings"


def test_the_remedy_for_a_column_of_nulls_is_said_once():
    with pytest.raises(ValueError, match=r"in a batch; store values in it, or leave it out: name"):
        batch_dtype(Column("v", "continuous", "null"))
