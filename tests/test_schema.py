"""Schema: roles, embedding sizes and the ways to come by one."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from tutorlib.parquet import ParquetSource
from tutorlib.schema import Column, Schema, as_schema, embedding_dim_for


@pytest.mark.parametrize(
    ("cardinality", "width"), [(1, 16), (21, 16), (56586, 512), (162542, 512), (1000, 77)]
)
def test_embedding_widths_follow_the_rule(cardinality, width):
    assert embedding_dim_for(cardinality) == width


@pytest.mark.parametrize("cardinality", [0, 10**400, 2.5], ids=["zero", "huge", "fraction"])
def test_a_cardinality_that_no_column_can_have_is_refused(cardinality):
    with pytest.raises(ValueError, match="cardinality must be"):
        embedding_dim_for(cardinality)


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
        ("3", "a schema is a JSON list of columns, got 3"),
        ('{"name": "a", "role": "label"}', "a schema is a JSON list"),
        ('[{"name": "a"}]', "a column is a JSON object with name and role"),
        ('[{"name": "a", "role": "label", "path": "/etc"}]', "a column is a JSON object"),
        ('[{"name": "a", "role": "label", "dtype": null}]', "dtype must be a string"),
        ('[{"name": "a", "role": "categorical", "cardinality": 1e400}]', "must be an integer"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
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
        (
            ("a", "continuous", "float32", False, None, 3),
            "categorical column has an embedding_dim",
        ),
        (("a", "continuous", "float32", False, None, None, 0), r"length must be in \[1, 2\*\*31\)"),
        (
            ("a", "continuous", "float32", True, None, None, 3),
            "length is for continuous",
        ),
        (
            ("a", "categorical", "int64", False, None, None, 3),
            "length is for continuous",
        ),
        (
            ("a", "weight", "float32", False, None, None, 3),
            "length is for continuous",
        ),
    ],
)
def test_a_column_that_contradicts_itself_is_refused(column, words):
    with pytest.raises(ValueError, match=words):
        Column(*column)


def test_a_name_stands_once():
    with pytest.raises(ValueError, match=r"appear twice: \['a'\]"):
        Schema([Column("a", "label"), Column("a", "weight")])


def test_a_width_that_is_not_known_says_what_to_do():
    with pytest.raises(ValueError, match="Fit a Workflow"):
        _ = Column("a", "categorical").width


def test_types_come_from_the_footers(tmp_path):
    table = pa.table({"u": [1], "g": [["a"]], "x": [1.0], "n": [2], "y": [1.0], "t": ["q"]})
    pq.write_table(table, tmp_path / "a.parquet")
    schema = Schema.from_parquet(ParquetSource(tmp_path), label_names=["y"], cardinalities={"u": 5})
    assert schema["u"] == Column("u", "categorical", "int64", False, 5)
    assert schema["g"] == Column("g", "categorical", "string", True)
    assert schema.continuous.names == ["x"]
    chosen = Schema.from_parquet(ParquetSource(tmp_path), cat_names=["u"], cont_names=["x", "n"])
    assert chosen.names == ["u", "x", "n"]
    with pytest.raises(ValueError, match=r"columns \['z'\] are not in the files"):
        Schema.from_parquet(ParquetSource(tmp_path), label_names=["z"])


def test_features_of_one_kind_named_are_all_features(tmp_path):
    table = pa.table({"u": [1], "g": [["a"]], "x": [1.0], "n": [2.0], "y": [1.0], "w": [1.0]})
    pq.write_table(table, tmp_path / "a.parquet")
    given = {"label_names": ["y"], "weight_name": "w"}

    def features(**names):
        return Schema.from_parquet(ParquetSource(tmp_path), **given, **names).features.names

    assert features(cont_names=["x"]) == ["x"]
    assert features(cat_names=["g"]) == ["g"]
    assert features(cat_names=[]) == []
    assert features() == ["u", "g", "x", "n"]


def test_feature_columns_are_understood_or_listed_in_one_error():
    column = tf.feature_column
    ids = column.categorical_column_with_identity("C1", 10)
    hashed = column.categorical_column_with_hash_bucket("C2", 7, dtype=tf.int64)
    listed = column.categorical_column_with_identity("C3", 9)
    good = [
        column.embedding_column(ids, 4),
        column.embedding_column(hashed, 5),
        column.numeric_column("I1"),
        column.numeric_column("I4", (2,)),
        column.embedding_column(column.weighted_categorical_column(listed, "scores"), 6),
    ]
    schema = as_schema(good)
    assert schema.embedding_sizes() == {"C1": (10, 4), "C2": (7, 5), "C3": (9, 6)}
    assert schema.continuous.names == ["I1", "I4", "scores"]
    assert [c.name for c in schema if c.multi_hot] == ["scores"]
    assert schema["I4"].length == schema["I4"].width == 2
    bad = [
        column.bucketized_column(column.numeric_column("I2"), [0.0]),
        column.numeric_column("I3", (3, 2)),
    ]
    with pytest.raises(ValueError, match=r"not supported.*I2.*I3"):
        as_schema([*good, *bad])


def test_as_schema_takes_columns_and_schemas():
    columns = list(schema_of())
    assert as_schema(columns) == as_schema(schema_of()) == schema_of()
    assert as_schema(columns[0]).names == ["C1"]
