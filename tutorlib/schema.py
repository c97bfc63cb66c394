"""Schema: name, role, type, cardinality and embedding width of each column of a data set.

`TYPES` is the one table of types: by the name that Arrow or NumPy gives to a type, it says what
kind of value it is, which role a column of it has by default, and what to do if no batch holds it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import reprlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tutorlib.checks import check_choice, check_integer, shortened

ROLES = ("categorical", "continuous", "label", "weight", "id")
VECTOR_ROLES = ("continuous", "label")
BATCH_LAYOUTS = ("columns", "stacked")
MULTI_HOT_FORMS = ("nnzs", "padded")
MOST_NAMED = 5  # columns of one kind that a warning names


class TypeRow(NamedTuple):
    """What becomes of the values of a type, by a regular expression of the type's names."""

    names: str
    kind: str  # "number", "time", "string" or "other"
    role: str
    dtype: str  # NumPy's name, "string", or Arrow's own; a template of the expression's groups
    remedy: str | None  # what to do with a feature of this type; None if batches hold it


_DATE = "take numbers out of it in the data, as by pyarrow.compute.day_of_week"
_SPAN = "cast it to int64 (time32 to int32) in the data"
_BYTES = "cast it to string in the data if it holds text, else store v.hex() of each value v"
_PARTS = "store its parts as columns of numbers or strings"
_ID, _NUMBER = "categorical", "continuous"
# fmt: off
TYPES = (
    TypeRow("bool", "number", _NUMBER, "bool", None),
    TypeRow("u?int(8|16|32|64)", "number", _ID, r"\g<0>", None),
    TypeRow("halffloat|float16", "number", _NUMBER, "float16", None),
    TypeRow("float|float32", "number", _NUMBER, "float32", None),
    TypeRow("double|float64", "number", _NUMBER, "float64", None),
    TypeRow("(large_)?string(_view)?", "string", _ID, "string", None),
    TypeRow(r"date32\[day\]", "time", _ID, "datetime64[D]", _DATE),
    TypeRow(r"date64\[ms\]", "time", _ID, "datetime64[ms]", _DATE),
    TypeRow(r"(?:timestamp|datetime64)\[(\w+).*\]", "time", _ID, r"datetime64[\1]", _DATE),
    TypeRow(r"(?:time..|duration|timedelta64)\[(\w+)\]", "time", _ID, r"timedelta64[\1]", _SPAN),
    TypeRow("decimal.*", "other", _ID, r"\g<0>", "cast it to float64 in the data"),
    TypeRow("(large_)?list_view<.*", "other", _ID, r"\g<0>", "cast it to a list in the data"),
    TypeRow(r"(large_|fixed_size_)?binary(_view)?(\[\d+\])?", "other", _ID, r"\g<0>", _BYTES),
    TypeRow(r"extension<arrow\.uuid>", "other", _ID, r"\g<0>", "store str(v) of each value v"),
    TypeRow("null", "other", _ID, "null", "store values in it"),
    TypeRow(".*", "other", _ID, r"\g<0>", _PARTS),
)
# fmt: on
# What a time is, by a regular expression of the beginning of its Arrow type's name.
TIME_KINDS = {
    r"timestamp\[.*tz=": "a timestamp with a time zone",
    r"timestamp\[|date": "a date or timestamp without a time zone",
    r"time": "a time of day",
    r"duration": "a duration",
}


def listed(names: Iterable[str]) -> str:
    """Return how an error lists columns: the first names, and how many more there are.

    Example:
        >>> listed(f"C{i}" for i in range(1, 27))
        "['C1', 'C2', 'C3', 'C4', 'C5', ... 21 more]"
    """
    return f"[{shortened(map(repr, names), MOST_NAMED)}]"


@functools.lru_cache(maxsize=1024)
def type_row(name: str) -> TypeRow:
    """Return the row of `TYPES` for a type's name, of Arrow or NumPy, with its dtype filled in.

    Example:
        >>> type_row("timestamp[us, tz=UTC]").dtype, type_row("double").role
        ('datetime64[us]', 'continuous')
    """
    for row in TYPES:
        if match := re.fullmatch(row.names, name, re.DOTALL):
            return row._replace(dtype=match.expand(row.dtype))
    raise KeyError(name)  # never: the last row takes every name


def column_type(arrow_type: pa.DataType) -> tuple[str, bool]:
    """Return (NumPy name of one value or "string", whether a row holds a list) of an Arrow type.

    Fixed-size lists and tensors of numbers are vectors, of which NumPy has names too.

    Example:
        >>> import pyarrow as pa
        >>> column_type(pa.list_(pa.int32())), column_type(pa.large_string())
        (('int32', True), ('string', False))
        >>> column_type(pa.list_(pa.float32(), 8))
        ('(8,)float32', False)
    """
    if isinstance(arrow_type, pa.FixedShapeTensorType):
        arrow_type = arrow_type.storage_type
    if pa.types.is_dictionary(arrow_type):
        return column_type(arrow_type.value_type)
    if not is_list(arrow_type):
        return type_row(str(arrow_type)).dtype, False
    if is_list(arrow_type.value_type):  # lists of lists
        return str(arrow_type), False
    dtype = column_type(arrow_type.value_type)[0]
    length = getattr(arrow_type, "list_size", None)
    return (vector_type(dtype, length), False) if length and is_number(dtype) else (dtype, True)


def is_list(arrow_type: pa.DataType) -> bool:
    """Return whether each value of an Arrow type is a list, of any of Arrow's three kinds."""
    return str(arrow_type).startswith(("list<", "large_list<", "fixed_size_list<"))


def type_words(kind: tuple[str, bool]) -> str:
    """Return what error messages call a column type: "int64" or "a list of int64"."""
    element = element_type(kind[0])
    if element.length is not None:
        return f"a vector of {element.length} {element.dtype}"
    return f"a list of {kind[0]}" if kind[1] else kind[0]


def vector_type(dtype: str, length: int) -> str:
    """Return the NumPy name of a vector: "(8,)float32" for 8 values of "float32"."""
    return f"({length},){dtype}"


class Element(NamedTuple):
    """Type of one value, and the number of values of a vector or None."""

    dtype: str
    length: int | None


def element_type(kind: str) -> Element:
    """Return (type of one value, number of values of a vector or None) of a type's name.

    Example:
        >>> element_type("(8,)float32")
        Element(dtype='float32', length=8)
        >>> element_type("string").length is None
        True
    """
    vector = re.fullmatch(r"\((\d{1,9}),\)(\w+)", kind)
    return Element(vector[2], int(vector[1])) if vector else Element(kind, None)


def is_number(dtype: str) -> bool:
    """Return whether a name is one of NumPy's integers, floating-point numbers or booleans."""
    return type_row(dtype).kind == "number"


def is_time(dtype: str) -> bool:
    """Return whether a name is one of NumPy's dates or durations, such as "datetime64[ms]"."""
    return type_row(dtype).kind == "time"


def time_kind(arrow_type: pa.DataType) -> str | None:
    """Return what a time of an Arrow type is, which its NumPy name does not tell; else None.

    Example:
        >>> import pyarrow as pa
        >>> time_kind(pa.timestamp("us", "UTC")), time_kind(pa.date32()), time_kind(pa.int8())
        ('a timestamp with a time zone', 'a date or timestamp without a time zone', None)
    """
    while hasattr(arrow_type, "value_type"):  # of lists and dictionaries
        arrow_type = arrow_type.value_type
    for kind, words in TIME_KINDS.items():
        if re.match(kind, str(arrow_type)):
            return words
    return None


def type_mismatch(data: tuple[str, bool], fitted: tuple[str, bool]) -> str | None:
    """Return what to do with a column whose values cannot become those of another type, or None.

    Units of times and widths of numbers may differ, and integers may be given for floating point;
    lists may be given for vectors, and the other way round.

    Args:
        data: type of the data, as in `ParquetSource.column_types`.
        fitted: type that is needed.

    Example:
        >>> type_mismatch(("datetime64[ns]", False), ("datetime64[us]", False))
        >>> type_mismatch(("string", False), ("int64", False))
        'give the column one type in all files (of CSV: types= of read_csv)'
    """
    lengths = _values_per_row(data), _values_per_row(fitted)
    if lengths[0] != lengths[1] and (0 in lengths or None not in lengths):
        return "give as many values in a row"
    kinds = _value_kind(data[0]), _value_kind(fitted[0])
    if kinds[0] == kinds[1] or kinds == ("int", "float"):
        return None
    if kinds[0] == "null":
        return "cast it to its own type, as it has no value"
    if kinds == ("float", "int"):
        return "cast it to integers (in pandas, those with missing values are of dtype 'Int64')"
    return "give the column one type in all files (of CSV: types= of read_csv)"


def _values_per_row(kind: tuple[str, bool]) -> int | None:
    """Return 0 for one value, the length of vectors, None for lists, which have any."""
    return None if kind[1] else element_type(kind[0]).length or 0


def _value_kind(kind: str) -> str:
    """Return "int", "float", "bool", "string", "datetime" or "timedelta"; else the name itself."""
    dtype = element_type(kind).dtype
    row = type_row(dtype)
    return dtype if row.kind == "other" else re.sub(r"^u|[\d\[].*", "", row.dtype)


def role_of(dtype: str) -> str:
    """Return the default role of a column: "continuous" for floats and booleans.

    Example:
        >>> role_of("float32"), role_of("(8,)float32"), role_of("int64"), role_of("string")
        ('continuous', 'continuous', 'categorical', 'categorical')
    """
    return type_row(element_type(dtype).dtype).role


def remedy_for(dtype: str, is_list: bool = False) -> str | None:
    """Return what to do with a feature of a type that no batch can hold; None for other types.

    Args:
        dtype: NumPy name of one value, "string", or Arrow's name of a type that NumPy lacks.
        is_list: whether a row holds a list of values.

    Example:
        >>> remedy_for("int64"), remedy_for("decimal128(10, 2)")
        (None, 'cast it to float64 in the data')
    """
    element = element_type(dtype)
    if element.length is not None:
        return None
    if is_list and type_row(element.dtype).role == "continuous":
        return (
            "if all have one length k, give a schema with Column(name, 'continuous', length=k); "
            "else name them in cont_names"
        )
    return type_row(element.dtype).remedy


def embedding_dim_for(cardinality: int) -> int:
    """Return an embedding width, 16 to 512, for a column of `cardinality` ids.

    The rule is `min(max(16, round(1.6 * cardinality**0.56)), 512)`, about the square root.

    Args:
        cardinality: number of different ids, at least 1.

    Raises:
        ValueError: if `cardinality` is below 1.

    Example:
        >>> embedding_dim_for(21), embedding_dim_for(56586)
        (16, 512)

    Source: the rule of thumb of fastai's tabular models.
    """
    check_integer("cardinality", cardinality, at_least=1, bits=63)
    return min(max(16, round(1.6 * cardinality**0.56)), 512)


@dataclasses.dataclass(frozen=True)
class Column:
    """One column of a data set.

    Args:
        name: name of the column in the Parquet files.
        role: "categorical", "continuous", "label", "weight" or "id". An id says which row it is; it
            is of any type and never reaches the model.
        dtype: NumPy name of one value, or "string".
        multi_hot: whether a row holds a list of values.
        cardinality: ids are in [0, cardinality); None if unknown or not categorical.
        embedding_dim: width of the embedding; None means `embedding_dim_for(cardinality)`.
        length: numbers in each row of a column of vectors, continuous or label; None for one
            value a row, or for lists, whose length differs from row to row.

    Example:
        >>> Column("genres", "categorical", multi_hot=True, cardinality=21).width
        16
        >>> Column("image", "continuous", "float32", length=64).width
        64
    """

    name: str
    role: str
    dtype: str = "int64"
    multi_hot: bool = False
    cardinality: int | None = None
    embedding_dim: int | None = None
    length: int | None = None

    def __post_init__(self) -> None:
        where = f"column {self.name!r:.60}"
        for field in ("name", "dtype"):
            if not isinstance(getattr(self, field), str):
                got = reprlib.repr(getattr(self, field))
                raise ValueError(f"{where}: {field} must be a string, got {got}")
        check_choice(f"{where}: role", self.role, ROLES)
        check_choice(f"{where}: multi_hot", self.multi_hot, (True, False))
        for field, bits in (("cardinality", 63), ("embedding_dim", 31), ("length", 31)):
            value = getattr(self, field)
            if value is not None:
                number = check_integer(f"{where}: {field}", value, 1, bits)
                object.__setattr__(self, field, number)
        if self.role != "categorical" and (self.cardinality or self.embedding_dim):
            raise ValueError(
                f"{where}: only a categorical column has a cardinality or an embedding_dim"
            )
        if self.length is not None and (self.multi_hot or self.role not in VECTOR_ROLES):
            raise ValueError(
                f"{where}: length is for continuous columns and labels that are not multi-hot: the "
                "number of values of each row"
            )

    def with_type(self, kind: str, is_list: bool) -> Column:
        """Return the column with the type that data has, as in `ParquetSource.column_types`."""
        element = element_type(kind)
        length = self.length if is_list else element.length
        if self.role not in VECTOR_ROLES or (self.multi_hot and self.role == "continuous"):
            length = None  # vectors come as lists
        if self.length not in (None, length):
            got = type_words((kind, is_list))
            raise ValueError(f"column {self.name!r}: length={self.length}, but the data has {got}")
        multi_hot = length is None and (is_list or element.length is not None)
        return dataclasses.replace(self, dtype=element.dtype, multi_hot=multi_hot, length=length)

    @property
    def width(self) -> int:
        """Number of model inputs: width of the embedding, length of the vectors, or 1."""
        if self.role != "categorical":
            return self.length or 1
        if self.embedding_dim is not None:
            return self.embedding_dim
        if self.cardinality is None:
            raise ValueError(
                f"column {self.name!r}: neither cardinality nor embedding_dim is known. "
                "Fit a Workflow with Categorify or HashBucket, or pass the cardinality."
            )
        return embedding_dim_for(self.cardinality)


def batch_dtype(column: Column) -> np.dtype:
    """Return the dtype that a column has in a batch; it depends on the schema alone.

    Ids are int32 if the cardinality is known to fit, else int32 or int64 as in the file. Continuous
    columns and weights are float32; labels are int32, int64 or float32.

    Raises:
        ValueError: for strings, which a Workflow must turn into ids first, for floating-point ids,
            and for types that no batch can hold (decimals, binary, ...).
    """
    if column.dtype == "string":
        op = "LabelEncoder" if column.role == "label" else "Categorify or HashBucket"
        raise ValueError(
            f"column {column.name!r} holds strings; turn them into ids with a Workflow ({op}) and "
            "loader.map(workflow), or name it in id_names"
        )
    if not is_number(column.dtype):
        raise ValueError(
            f"column {column.name!r}: values of type {column.dtype} cannot be in a batch; "
            f"{remedy_for(column.dtype)}, or leave it out: name the columns (cat_names, cont_names)"
        )
    dtype = np.dtype(column.dtype)
    if column.role == "categorical" and dtype.kind == "f":
        raise ValueError(f"column {column.name!r} is categorical but {dtype}; ids are integers")
    if column.role in ("continuous", "weight") or dtype.kind == "f":
        return np.dtype(np.float32)
    fits = np.can_cast(dtype, np.int32) or (column.cardinality or 2**63) <= 2**31
    return np.dtype(np.int32 if fits else np.int64)


# Options of `tf.feature_column` objects that no column of a Schema can hold, and their defaults.
FEATURE_COLUMN_OPTIONS = {
    "combiner": "mean", "max_norm": None, "trainable": True, "ckpt_to_load_from": None,
    "normalizer_fn": None,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Schema:
    """The columns of a data set, in order.

    Args:
        columns: the columns, each name once.
        left_out: words for the columns that inference left out; "" if there are none.

    Example:
        >>> schema = Schema([Column("C1", "categorical", cardinality=100), Column("y", "label")])
        >>> schema.categorical.names, schema.labels.names
        (['C1'], ['y'])
        >>> Schema.from_json(schema.to_json()) == schema
        True
        >>> schema
        Schema(1 categorical: C1; 1 label: y)
    """

    columns: tuple[Column, ...]
    left_out: str = dataclasses.field(compare=False)

    def __init__(self, columns: Iterable[Column], left_out: str = "") -> None:
        object.__setattr__(self, "columns", tuple(columns))
        object.__setattr__(self, "left_out", left_out)
        if len(self._by_name) < len(self):
            twice = sorted({name for name in self.names if self.names.count(name) > 1})
            raise ValueError(f"column names must be unique, these appear twice: {twice}")

    def __repr__(self) -> str:
        parts = []
        for role in ROLES:
            if names := self.with_role(role).names:
                parts.append(f"{len(names)} {role}: {shortened(names)}")
        return f"Schema({'; '.join(parts)})"

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Column:
        try:
            return self._by_name[name]
        except KeyError:
            raise KeyError(f"no column {name!r}; the schema has {self.names}") from None

    @functools.cached_property
    def _by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    @property
    def names(self) -> list[str]:
        """Names of the columns, in order."""
        return [column.name for column in self.columns]

    def with_role(self, role: str) -> Schema:
        """Return the columns of one role, in order."""
        return Schema(column for column in self if column.role == role)

    @property
    def categorical(self) -> Schema:
        """The categorical columns, in order."""
        return self.with_role("categorical")

    @property
    def continuous(self) -> Schema:
        """The continuous columns, in order."""
        return self.with_role("continuous")

    @property
    def labels(self) -> Schema:
        """The label columns, in order."""
        return self.with_role("label")

    @property
    def features(self) -> Schema:
        """The inputs of the model, which are categorical and continuous columns, in order."""
        return Schema(c for c in self if c.role in ("categorical", "continuous"))

    def select(self, names: Iterable[str]) -> Schema:
        """Return the named columns, in the order of `names`."""
        return Schema(self[name] for name in names)

    def replace(self, name: str, **changes: Any) -> Schema:
        """Return a schema in which the given fields of column `name` are changed."""
        self[name]
        return Schema(
            dataclasses.replace(column, **changes) if column.name == name else column
            for column in self
        )

    def embedding_sizes(self) -> dict[str, tuple[int, int]]:
        """Return {name: (cardinality, width)} of every categorical column, in order."""
        for column in self.categorical:
            if column.cardinality is None:
                raise ValueError(f"column {column.name!r}: its cardinality is not known")
        return {column.name: (column.cardinality or 0, column.width) for column in self.categorical}

    def to_json(self) -> str:
        """Return the schema as JSON text."""
        return json.dumps([dataclasses.asdict(column) for column in self], indent=1)

    @classmethod
    def from_json(cls, text: str | bytes, place: str = "text") -> Schema:
        """Return the schema from the text of `to_json`.

        Args:
            text: JSON, in UTF-8 if it is bytes.
            place: where the text is from, for the error.

        Raises:
            ValueError: for any other text.
        """
        try:
            return cls(Column(**fields) for fields in json.loads(text))
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"{place}: not a JSON list of columns, as to_json writes it ({error}). Write the "
                "schema again."
            ) from error

    @classmethod
    def load(cls, path: str | Path) -> Schema:
        """Return the schema from a JSON file; ValueError if the file holds no schema."""
        return cls.from_json(Path(path).read_bytes(), str(path))

    @classmethod
    def from_feature_columns(cls, feature_columns: Iterable[Any]) -> Schema:
        """Return a schema from `tf.feature_column` objects, without importing TensorFlow.

        Supported are `numeric_column` of shape (n,), and `categorical_column_with_identity` or
        `_with_hash_bucket`, alone or in an `embedding_column`. `num_buckets` is the cardinality;
        ids must be hashed before they reach the model. An initializer is left to the layers.

        Raises:
            ValueError: if columns, or options of them, are not supported; it names all of them.
        """
        columns = []
        refused = []
        for item in feature_columns:
            is_embedding = type(item).__name__ == "EmbeddingColumn"
            ids = item.categorical_column if is_embedding else item
            options = {o: getattr(item, o, value) for o, value in FEATURE_COLUMN_OPTIONS.items()}
            if options != FEATURE_COLUMN_OPTIONS:
                refused.append(f"{item.name} with {options}")
            elif type(ids).__name__ in ("IdentityCategoricalColumn", "HashedCategoricalColumn"):
                size = int(ids.num_buckets)
                width = item.dimension if is_embedding else None
                column = Column(ids.key, "categorical", cardinality=size, embedding_dim=width)
                columns.append(column)
            elif type(item).__name__ == "NumericColumn" and len(item.shape) == 1:
                length = item.shape[0] if item.shape[0] > 1 else None
                columns.append(Column(item.key, "continuous", "float32", length=length))
            else:
                refused.append(f"{type(item).__name__}({getattr(item, 'name', item)})")
        if refused:
            raise ValueError(
                f"these feature columns are not supported: {refused}. Use numeric_column of shape "
                "(n,), or embedding_column over an identity or hash-bucket column. The combiner is "
                "an argument of DenseFeatures, a one-hot vector is Keras's CategoryEncoding; "
                "transform numbers in a Workflow."
            )
        return cls(columns)
