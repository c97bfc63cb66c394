"""MovieLens becomes Parquet with the same values."""

import io
import shutil
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep import movielens
from data_prep.__main__ import main
from data_prep.output import DataPrepError, read_settings
from data_prep.synthetic_movielens import write_movielens
from tutorlib.parquet import ParquetSource
from tutorlib.workflow import Workflow


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    folder = tmp_path_factory.mktemp("movielens")
    write_movielens(folder / "raw", ratings=6_000, users=80, movies=300, seed=2)
    return folder, movielens.etl(folder / "raw", folder)


def rows_of(folder):
    return pq.read_table(ParquetSource(folder).files).to_pandas()


def decoded(folder, side):
    """Return the rows of train/ or valid/ with raw ids and genre names, by the saved Workflow."""
    data, workflow = rows_of(folder / side), Workflow.load(folder / "workflow")
    for group in workflow.groups:
        for name in {*group.names} & {"userId", "movieId", "genres"}:
            values = ["padding", "null", "unknown", *group.ops[0].vocabulary(name)]
            data[name] = data[name].map(
                lambda x, v=values: v[x] if np.isscalar(x) else tuple(v[i] for i in x)
            )
    return data


def test_every_rating_is_kept_with_its_label_and_the_genres_of_its_film(films):
    folder, metadata = films
    assert (metadata["train_rows"], metadata["valid_rows"]) == (4_800, 1_200)
    assert ParquetSource(folder / "train").column_types == {
        "userId": ("int32", False), "movieId": ("int32", False), "genres": ("int32", True),
        "rating": ("float32", False),
    }  # fmt: skip
    rows = pd.concat([decoded(folder, side) for side in ("train", "valid")])
    known = rows[(rows[["userId", "movieId"]] != "unknown").all(axis=1)]
    ratings = pd.read_csv(folder / "raw/ratings.csv")
    merged = known.merge(ratings, on=["userId", "movieId"], validate="one_to_one")
    assert len(merged) == len(known) > 0.9 * len(ratings)
    assert ((merged["rating_y"] > 3) == merged["rating_x"]).all()
    movies = pd.read_csv(folder / "raw/movies.csv").set_index("movieId")
    train = decoded(folder, "train").query("movieId != 'unknown'")
    assert (train["genres"].map("|".join).to_numpy() == movies["genres"][train["movieId"]]).all()
    assert (np.diff(rows_of(folder / "train")["userId"]) != 0).mean() > 0.9  # in random order
    kept = pq.read_table(folder / "movies").to_pandas()
    assert kept["title"].tolist() == movies["title"].tolist()


def test_the_origin_of_ratings_is_recorded(films, tmp_path):
    source = movielens.source_of(films[0])
    assert (source["kind"], source["settings"]["users"]) == ("synthetic", 80)
    assert source["folder"] == str(films[0] / "raw")
    assert source["metadata"] == read_settings(films[0] / "raw")["metadata"]
    with pytest.raises(DataPrepError, match="holds no MovieLens data"):
        movielens.source_of(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"ratings\.csv"):
        movielens.etl(tmp_path, tmp_path / "out")


def test_the_time_split_takes_the_latest(films, tmp_path):
    arguments = ["movielens", "--from", str(films[0] / "raw"), "--output", str(tmp_path)]
    assert main([*arguments, "--split", "time"]) == 0
    ratings = pd.read_csv(films[0] / "raw/ratings.csv").sort_values("timestamp", kind="stable")
    latest = ratings.iloc[-1_200:].sort_index()  # validation rows keep the order of the file
    np.testing.assert_array_equal(rows_of(tmp_path / "valid")["rating"], latest["rating"] > 3)


def test_ratings_by_time_are_made_once_and_again_when_they_change(films, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "data_prep.synthetic_movielens.write_movielens",
        lambda folder: write_movielens(folder, ratings=2_000, users=30, movies=200),
    )
    folder, raw = movielens.rows_by_time(tmp_path)  # there are none: synthetic ones
    assert (folder, raw) == (tmp_path / "movielens_by_time", tmp_path / "movielens/raw")
    assert len(rows_of(folder / "valid")) == 400
    made = (folder / "_settings.json").stat().st_mtime_ns
    assert movielens.rows_by_time(tmp_path) == (folder, raw)
    assert (folder / "_settings.json").stat().st_mtime_ns == made
    shutil.rmtree(raw)
    movielens.etl(films[0] / "raw", tmp_path / "movielens")  # as `make data MOVIELENS=` does
    assert movielens.rows_by_time(tmp_path) == (folder, films[0] / "raw")
    assert len(rows_of(folder / "valid")) == 1_200


RATINGS = "userId,movieId,rating,timestamp\n" + "".join(
    f"{user},{film},{user % 10 / 2 + 0.5},{user * film}\n" for user in range(9) for film in (1, 2)
)
MOVIES = (
    "movieId,title,genres\r\n"
    "1,Toy Story (1995),Adventure|Animation|Children|Comedy|Fantasy\r\n"
    '29,"City of Lost Children, The (Cité des enfants perdus, La) (1995)",Drama|Sci-Fi\r\n'
    '40697,"""Great Performances"" Cats (1998)",Musical\r\n'
)


def archive(ratings=RATINGS, movies=MOVIES):
    """Return the bytes of a zip archive as GroupLens publishes it."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("ml/movies.csv", movies)
        file.writestr("ml/ratings.csv", ratings.replace("\n", "\r\n"))
        file.writestr("ml/README.txt", "Summary\r\n")
    return packed.getvalue()


def test_an_archive_becomes_rows_and_a_workflow_that_takes_others(tmp_path):
    (tmp_path / "ml.zip").write_bytes(archive())
    data = tmp_path / "data"
    assert main(["movielens", "--from", str(tmp_path / "ml.zip"), "--output", str(data)]) == 0
    assert movielens.source_of(data)["kind"] == "local"
    titles = pq.read_table(data / "movies")["title"].to_pylist()
    assert titles[2] == '"Great Performances" Cats (1998)'
    train = decoded(data, "train")
    assert set(train.loc[train["movieId"] == 2, "genres"]) == {()}  # a film without an entry
    workflow = Workflow.load(data / "workflow")
    others = pa.table({"userId": [10**9], "movieId": [29], "genres": [["Drama", "Space Opera"]],
                       "rating": pa.array([1], pa.float32())})  # fmt: skip
    workflow.transform_to_parquet(others, tmp_path / "others")
    ids = ParquetSource(tmp_path / "others").read(0)
    assert ids["userId"].tolist() == [2]  # unknown
    assert ids["genres"].tolist()[0][1] == 2


@pytest.mark.parametrize(
    ("ratings", "movies", "message"),
    [
        *((RATINGS.replace("\n5,2,3.0,", f"\n5,2,{stars},"), MOVIES, r"ratings\.csv:13: rating is")
          for stars in ("-99", "inf", "5.5")),
        (RATINGS + "1,2,good,5\n", MOVIES, r"ratings\.csv is malformed"),
        (RATINGS + "1,2,,5\n", MOVIES, r"ratings\.csv: empty values in \['rating'\]"),
        (RATINGS, MOVIES + "5,only two\r\n", r"movies\.csv is malformed"),
        (RATINGS, MOVIES + "1,again,War\r\n", "a movieId occurs twice"),
    ],
)  # fmt: skip
def test_malformed_ratings_and_films_are_refused(tmp_path, ratings, movies, message):
    (tmp_path / "ml.zip").write_bytes(archive(ratings, movies))
    with pytest.raises(DataPrepError, match=message):
        movielens.prepare(tmp_path / "data", source=tmp_path / "ml.zip")
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["raw"]


def test_damage_anywhere_in_an_archive_is_refused_by_name_or_harmless(tmp_path):
    data, path, words = archive(), tmp_path / "ml.zip", set()
    for start in range(0, len(data), 13):
        path.write_bytes(data[:start] + b"\xff\xff" + data[start + 2 :])
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        try:
            movielens.prepare(tmp_path / "out", source=path)
        except DataPrepError as error:
            words.add(str(error))
            assert not (tmp_path / "out" / "raw").exists()
    assert len(words) > 1
    assert all("ml.zip" in word for word in words)
