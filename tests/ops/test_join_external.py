"""JoinExternal: equal to pandas' merge."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.ops import column
from tests.support.ops_strategies import FEW
from tutorlib.columns import Chunk
from tutorlib.ops import (
    JoinExternal,
)

MOVIES = pa.table(
    {
        "movieId": [30, 10, 20],
        "genres": [["War", "Art"], [], ["Art"]],
        "title": ["Thirty", None, "Twenty"],
        "year": [1990, 1991, None],
        "score": [0.5, None, 2.0],
    }
)


def test_join_external_by_hand():
    chunk = Chunk({"movieId": column([20, 99, None, 30, 10])})
    out = (["movieId"] >> JoinExternal(MOVIES, on="movieId")).transform(chunk)
    assert out.names == ["movieId", "genres", "title", "year", "score"]
    assert out["genres"].tolist() == [["Art"], [], [], ["War", "Art"], []]
    assert out["title"].tolist() == ["Twenty", None, None, "Thirty", None]
    assert out["year"].tolist() == [None, None, None, 1990, 1991]
    assert str(out["score"].tolist()) == "[2.0, nan, nan, 0.5, nan]"


@FEW
@given(st.lists(st.sampled_from([10, 20, 30, 31]), min_size=1))
def test_join_external_equals_pandas_merge(keys):
    rows = pd.DataFrame({"movieId": keys})
    want = rows.merge(MOVIES.to_pandas()[["movieId", "year", "title"]], on="movieId", how="left")
    group = ["movieId"] >> JoinExternal(MOVIES, "movieId", ["year", "title"])
    out = group.transform(Chunk.from_arrow(pa.Table.from_pandas(rows))).to_pandas()
    for name in ("year", "title"):
        assert out[name].astype(object).where(out[name].notna(), None).tolist() == (
            want[name].astype(object).where(want[name].notna(), None).tolist()
        )


def test_join_external_by_text_from_a_data_frame_and_from_a_file(tmp_path):
    frame = pd.DataFrame({"word": ["b", "a"], "n": [2, 1]})
    chunk = Chunk({"word": column(["a", "b", "c"])})
    frame.to_parquet(tmp_path / "words.parquet")
    for table in (frame, tmp_path / "words.parquet"):
        out = (["word"] >> JoinExternal(table, on="word")).transform(chunk)
        assert out["n"].tolist() == [1, 2, None]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"k": [1, 2, 1], "v": [1, 2, 3]}, "'k': JoinExternal .* unique keys: .*1 appears twice"),
        ({"k": [1, None], "v": [1, 2]}, "'k': JoinExternal found a null key"),
        ({"k": np.zeros(0, int), "v": np.zeros(0)}, "'k': JoinExternal needs a table with rows"),
        ({"v": [1, 2]}, r"columns \['k'\] cannot be joined; the table has \['v'\]"),
    ],
)
def test_join_external_refuses_tables_that_have_no_unique_key(table, message):
    with pytest.raises(ValueError, match=message):
        JoinExternal(pa.table(table), on="k")
