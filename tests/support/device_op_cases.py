"""Every op with columns of every kind, to be done on the host and on a device: the same comes out.

For the stand-in of CuPy and for CuPy itself, so without anything that a GPU's host may lack.
"""

import numpy as np
import pyarrow as pa

from tutorlib import ops
from tutorlib.columns import Chunk, Masked, Ragged, Strings, to_host, to_namespace
from tutorlib.ops import (
    Bucketize,
    Categorify,
    Clip,
    DateParts,
    FillMedian,
    FillMissing,
    HashBucket,
    JoinExternal,
    LabelEncoder,
    LambdaOp,
    ListSlice,
    LogOp,
    Normalize,
    NormalizeMinMax,
    Rename,
    TargetEncoding,
)
from tutorlib.workflow import Workflow

ROWS = 300
TEXTS = ["", "a", "bc", "Toy Story (1995)", "ü", "twelve bytes", None]
FILMS = pa.table(
    {
        "film": [f"film {i}" for i in range(0, 9, 2)],
        "year": [1990, None, 1995, 2000, 2001],
        "stars": [1.5, 2.5, None, 4.0, 5.0],
        "name": ["x", "yy", None, "", "zzz"],
        "genres": [["Drama"], [], ["War", "Comedy"], None, ["Drama"]],
    }
)
BOUNDARIES = {"x": [0.0, 1.0, 20.0], "few": [2, 4], "numbers": [0.5]}


def table():
    """Columns of every kind; each value can be worked out from the row's number."""
    rows = range(ROWS)
    return {
        "row": pa.array(rows, pa.int64()),
        "few": pa.array([i * i % 7 - 2 for i in rows], pa.int8()),
        "gaps": pa.array([None if i % 5 == 0 else i % 11 for i in rows], pa.int32()),
        "large": pa.array([2**64 - 1 - i % 3 if i % 4 else i for i in rows], pa.uint64()),
        "yes": pa.array([i % 3 == 0 for i in rows]),
        "x": pa.array([None if i % 7 == 0 else i % 50 - 0.25 for i in rows], pa.float64()),
        "small": pa.array([i / 16 - 3 for i in rows], pa.float32()),
        "positive": pa.array([i % 37 for i in rows], pa.uint16()),
        "text": pa.array([TEXTS[i % 6] for i in rows]),
        "holes": pa.array([TEXTS[i % 7] for i in rows]),
        "film": pa.array([None if i % 13 == 0 else f"film {i % 10}" for i in rows]),
        "user": pa.array([f"user {i % 17}" for i in rows]),
        "ids": pa.array([[j * i % 9 for j in range(i % 4)] for i in rows], pa.list_(pa.int64())),
        "tags": pa.array([TEXTS[: i % 5] for i in rows]),
        "numbers": pa.array([[i / 4, None][: i % 3] for i in rows], pa.list_(pa.float64())),
        "label": pa.array([i % 2 for i in rows], pa.int32()),
    }


def chunk():
    """Return these columns in the host's memory."""
    return Chunk.from_arrow(pa.table(table()))


def halves(values):
    """Return half of each value."""
    return values / 2


def without_letters(texts):
    """Return texts, as Arrow gives them, as Arrow takes them."""
    return pa.array([text.replace("o", "") for text in texts.to_pylist()], pa.string())


def lengths(texts):
    """Return numbers of texts, in the host's memory."""
    return np.array([len(text) for text in texts.to_pylist()])


def every_third(chunk):
    """Return which rows stay."""
    return chunk["row"] % 3 == 0


KEYS = ["row", "few", "gaps", "large", "yes", "text", "holes", "ids", "tags"]
OPS = {
    "Bucketize": lambda: ["x", "few", "numbers"] >> Bucketize(BOUNDARIES),
    "Categorify": lambda: [k for k in KEYS if k != "large"] >> Categorify(num_oov_buckets=3),
    "Categorify, joint": lambda: ["few", "gaps", "ids"] >> Categorify(joint=True, max_size=7),
    "Categorify, combined": lambda: (
        ["few", "holes", "gaps"] >> Categorify(freq_threshold=6, num_oov_buckets=2, combo=True)
    ),
    "Clip": lambda: ["few", "gaps", "positive"] >> Clip(1, 5),
    "Clip, one limit": lambda: ["x", "few", "large", "small"] >> Clip(min_value=0),
    "DateParts": lambda: (
        ["row", "gaps", "ids"] >> DateParts(["week", "day", "age_days"], "2024-02-29", unit="D")
    ),
    "FillMedian": lambda: ["x", "gaps", "numbers", "few"] >> FillMedian(),
    "FillMedian, rounded": lambda: ["x", "row"] >> FillMedian(True, max_values=9),
    "FillMissing": lambda: ["x", "gaps", "numbers"] >> FillMissing(3, add_binary_cols=False),
    "FillMissing, with columns": lambda: ["x", "gaps"] >> FillMissing(3, add_binary_cols=True),
    "FillMissing in texts": lambda: (
        ["holes", "text", "tags"] >> FillMissing("none") >> Categorify(num_oov_buckets=2)
    ),
    "HashBucket": lambda: KEYS >> HashBucket(100),
    "HashedCross": lambda: ["gaps", "holes", "large", "yes"] >> HashedCross(1000),
    "JoinExternal": lambda: ["film", "few"] >> JoinExternal(FILMS, "film"),
    "JoinGroupby": lambda: (
        ["gaps", "holes", "ids"] >> JoinGroupby(["x", "small"], ["count", "mean", "std", "max"])
    ),
    "JoinGroupby, combined": lambda: (
        ["few", "text"] >> JoinGroupby(["x"], ["sum", "min"], combo=True)
    ),
    "LabelEncoder": lambda: ["few", "gaps", "yes", "x", "small", "text", "holes"] >> LabelEncoder(),
    "LabelEncoder, classes": lambda: (
        ["few", "gaps", "x"] >> LabelEncoder({"few": [0, 2.5, 2], "gaps": [9, 2]}, unknown="null")
    ),
    "LambdaOp": lambda: ["x", "few", "gaps", "numbers"] >> LambdaOp(halves),
    "LambdaOp of texts": lambda: (
        ["text", "holes", "tags"] >> LambdaOp(without_letters, "string") >> HashBucket(50)
    ),
    "LambdaOp of texts, to numbers": lambda: ["text", "holes"] >> LambdaOp(lengths, "int32"),
    "ListSlice": lambda: ["ids", "tags", "numbers"] >> ListSlice(1),
    "ListSlice, padded": lambda: ["ids", "numbers"] >> ListSlice(-2, pad=True, pad_value=1),
    "ListSlice, padded with text": lambda: ["tags"] >> ListSlice(0, 3, pad=True, pad_value="-"),
    "LogOp": lambda: ["positive"] >> LogOp(),
    "Normalize": lambda: ["x", "small", "gaps", "numbers", "row"] >> Normalize(),
    "NormalizeMinMax": lambda: ["x", "small", "few"] >> NormalizeMinMax("float64"),
    "Rename": lambda: ["x"] >> Rename(postfix="_raw"),
    "Select": lambda: (["x", "row"] >> Rename())[["row"]],
    "TargetEncoding": lambda: (
        ["gaps", "holes", "ids"] >> TargetEncoding(["label", "x"], "row", folds=3, smoothing=2)
    ),
    "TargetEncoding, combined": lambda: (
        ["few", "text"] >> TargetEncoding("label", "user", combo=True)
    ),
}
ROW_OPS = {
    "Dropna": lambda: Dropna(["x", "gaps", "holes", "ids"]),
    "Filter": lambda: Filter([("x", ">", 3), ("holes", "!=", "a"), ("gaps", "in", [1, 2, 9])]),
    "Filter, any": lambda: Filter([[("text", "in", ["a", "ü"])], [("few", "not in", [0, 1, 2.5])]]),
    "Filter, out of reach": lambda: Filter(
        [("few", "<", 300), ("large", ">", -1), ("row", "<", 2**64), ("few", ">", -2.5)]
    ),
    "Filter, large": lambda: Filter([("large", "in", [-1, -2, 8, 2**64 - 1])]),
    "Filter, called": lambda: Filter(every_third, ["row"]),
}


def workflow(name):
    """Return a workflow of the op, not yet fitted."""
    if name in ROW_OPS:
        return Workflow(["row", "film"] >> Rename(), row_ops=[ROW_OPS[name]()])
    return Workflow(OPS[name]())


def assert_every_op_is_here():
    """A new op has to be tried on a device too."""
    named = {name.split(",")[0].split(" ")[0] for name in [*OPS, *ROW_OPS]}
    missing = {*ops.OPS, *ops.ROW_OPS} - named
    assert not missing, f"no case for {sorted(missing)}"


def moved(chunk, xp):
    """Return the columns in the memory that `xp` works on."""
    return Chunk({name: to_namespace(column, xp) for name, column in chunk.items()})


def arrays_in(column):
    """Return the arrays that a column consists of."""
    if isinstance(column, Masked):
        return [*arrays_in(column.values), column.valid]
    if isinstance(column, Ragged):
        return [*arrays_in(column.values), column.offsets]
    return [column.data, column.offsets] if isinstance(column, Strings) else [column]


def assert_same_on_device(device, host, xp):
    """Assert that the chunk of a device holds what that of the host does, and is there."""
    assert device.names == host.names
    for name, column in device.items():
        ours, theirs = arrays_in(column), arrays_in(host[name])
        assert len(ours) == len(theirs), name
        for one, other in zip(ours, theirs, strict=True):
            assert isinstance(one, xp.ndarray), f"{name}: {type(one)} is not on the device"
            assert one.dtype == other.dtype, name
            if not isinstance(column, Masked):
                np.testing.assert_array_equal(to_host(one), other, err_msg=name)
        if isinstance(column, Masked):  # what stands at a null is not defined
            assert to_namespace(column, np).tolist() == host[name].tolist(), name
