"""Synthetic data: the same from the same seed, in the real format, and worth learning from."""

import csv
import math

import numpy as np
import pandas as pd
import pytest

from data_prep.__main__ import main
from data_prep.synthetic import LabelStatistics
from data_prep.synthetic_criteo import (
    BLOCK_ROWS,
    CARDINALITIES,
    COLUMN_NAMES,
    block_to_arrow,
    column_sizes,
    draw_block,
    hex_values,
    write_criteo,
)
from data_prep.synthetic_movielens import GENRES, NO_GENRES, write_movielens
from data_prep.synthetic_nhot import LIST_NAMES, ONE_HOT_NAMES, cardinalities, write_nhot
from tutorlib.loader import KerasSequenceLoader
from tutorlib.parquet import ParquetSource
from tutorlib.schema import Schema


@pytest.fixture(scope="module")
def criteo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("criteo") / "raw"
    metadata = write_criteo(folder, rows=60_000, days=2, seed=3)
    return folder, metadata


def read(path):
    kinds = dict.fromkeys(COLUMN_NAMES[14:], str)
    return pd.read_csv(path, sep="\t", header=None, names=COLUMN_NAMES, dtype=kinds)


def test_criteo_depends_on_the_seed_alone(criteo, tmp_path):
    folder, metadata = criteo
    assert write_criteo(tmp_path / "again", rows=60_000, days=2, seed=3) == metadata
    write_criteo(tmp_path / "other", rows=60_000, days=2, seed=4)
    for day in ("day_0.tsv", "day_1.tsv"):
        assert (folder / day).read_bytes() == (tmp_path / "again" / day).read_bytes()
        assert (folder / day).read_bytes() != (tmp_path / "other" / day).read_bytes()


def test_criteo_rows_do_not_depend_on_how_many_follow(criteo, tmp_path):
    write_criteo(tmp_path / "few", rows=1_000, days=2, seed=3)
    few = (tmp_path / "few/day_1.tsv").read_bytes()
    assert few.count(b"\n") == 500
    assert (criteo[0] / "day_1.tsv").read_bytes().startswith(few)


def test_criteo_blocks_can_be_drawn_in_any_order():
    sizes = column_sizes(0.01)
    later = block_to_arrow(draw_block(1, 2, 5, sizes))
    draw_block(1, 2, 4, sizes)
    assert block_to_arrow(draw_block(1, 2, 5, sizes)).equals(later)
    assert not block_to_arrow(draw_block(1, 2, 6, sizes)).equals(later)


def test_criteo_has_the_raw_format(criteo):
    lines = (criteo[0] / "day_0.tsv").read_text().splitlines()
    assert len(lines) == 30_000
    for line in lines[:500]:
        fields = line.split("\t")
        assert len(fields) == 40
        assert fields[0] in "01"
        assert all(f == "" or int(f) == int(float(f)) for f in fields[1:14])
        assert all(f == "" or (len(f) == 8 and int(f, 16) < 2**32) for f in fields[14:])


def test_criteo_has_the_real_shape(criteo):
    data = read(criteo[0] / "day_0.tsv")
    missing = data.isna().mean()
    assert missing["label"] == missing["I8"] == missing["C2"] == 0
    assert 0.5 < missing["I4"] < 0.54
    assert (data["I3"].isna() == data["I13"].isna()).all()
    assert data["I2"].min() == -1
    assert data.drop(columns=["I2", "I8"]).iloc[:, 1:12].min().min() >= 0
    assert data["I12"].mean() > 3 * data["I12"].median()  # heavy-tailed
    counts = data["C1"].value_counts(normalize=True)
    assert 0.02 < counts.iloc[0] < 0.2  # a few ids make up much,
    assert (data["C1"].value_counts() == 1).sum() > 2_000  # many turn up once
    small = [n for n in CARDINALITIES if n <= 100]
    found = [data[f"C{i + 1}"].nunique() for i, n in enumerate(CARDINALITIES) if n <= 100]
    assert found == small


def test_criteo_brings_new_ids_every_day(criteo):
    first, second = (set(read(criteo[0] / f"day_{d}.tsv")["C20"].dropna()) for d in (0, 1))
    assert 0.1 < len(second - first) / len(second) < 0.9


def test_criteo_hex_values_are_one_to_one():
    ids = np.arange(200_000) * 40  # as far as the largest column goes
    for column in (0, 25):
        assert (np.diff(np.sort(hex_values(ids, column))) > 0).all()


def test_criteo_cardinalities_scale_and_small_columns_stay():
    assert column_sizes(1.0) == list(CARDINALITIES)
    assert all(n == m for n, m in zip(column_sizes(0.001), CARDINALITIES, strict=True) if m <= 1000)
    with pytest.raises(ValueError, match="scale must be"):
        column_sizes(0)


def test_criteo_label_can_be_learned(criteo):
    _, metadata = criteo
    assert 0.2 < metadata["positive_share"] < 0.3
    assert metadata["bayes_log_loss"] < metadata["base_log_loss"] - 0.1
    assert metadata["bayes_auc"] > 0.78
    # One column alone already tells something: the rate differs between the ids of C16.
    data = read(criteo[0] / "day_0.tsv")
    rate = data.groupby("C16")["label"].agg(["mean", "size"]).query("size > 300")["mean"]
    assert rate.max() - rate.min() > 0.1


def test_criteo_memory_is_one_block(criteo):
    block = draw_block(0, 0, 0, column_sizes(1.0))
    assert block.ids.shape == (26, BLOCK_ROWS)
    assert block.ids.nbytes + block.counts.nbytes + block.missing.nbytes < 12e6


@pytest.fixture(scope="module")
def movielens(tmp_path_factory):
    folder = tmp_path_factory.mktemp("movielens") / "raw"
    metadata = write_movielens(folder, ratings=30_000, users=300, movies=900, seed=1)
    return folder, metadata


def test_movielens_depends_on_the_seed_alone(movielens, tmp_path):
    folder, _ = movielens
    write_movielens(tmp_path / "again", ratings=30_000, users=300, movies=900, seed=1)
    write_movielens(tmp_path / "other", ratings=30_000, users=300, movies=900, seed=2)
    for name in ("ratings.csv", "movies.csv"):
        assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
        assert (folder / name).read_bytes() != (tmp_path / "other" / name).read_bytes()


def test_movielens_has_the_schema(movielens):
    ratings = pd.read_csv(movielens[0] / "ratings.csv")
    assert list(ratings) == ["userId", "movieId", "rating", "timestamp"]
    assert len(ratings) == 30_000
    assert not ratings.duplicated(["userId", "movieId"]).any()
    assert ratings[["userId", "movieId"]].equals(
        ratings[["userId", "movieId"]].sort_values(["userId", "movieId"], ignore_index=True)
    )
    assert set(ratings["rating"]) <= {half / 2 for half in range(1, 11)}
    assert sorted(ratings["userId"].unique()) == list(range(1, 301))
    first = (movielens[0] / "ratings.csv").read_text().splitlines()[1]
    assert first.split(",")[2].count(".") == 1  # 4.0, as GroupLens writes it


def test_movielens_has_films_with_titles_and_genres(movielens):
    with open(movielens[0] / "movies.csv", encoding="utf-8", newline="") as file:
        movies = list(csv.DictReader(file))
    assert len(movies) == 900
    genres = [set(movie["genres"].split("|")) for movie in movies]
    assert set().union(*genres) <= {*GENRES, NO_GENRES}
    assert {NO_GENRES} in genres
    assert not any(NO_GENRES in names and len(names) > 1 for names in genres)
    titles = [movie["title"] for movie in movies]
    assert any(", The (" in title for title in titles)
    assert any('"' in title for title in titles)
    rated = set(pd.read_csv(movielens[0] / "ratings.csv")["movieId"])
    assert rated <= {int(movie["movieId"]) for movie in movies}


def test_movielens_users_and_films_are_power_law(movielens):
    ratings = pd.read_csv(movielens[0] / "ratings.csv")
    for name in ("userId", "movieId"):
        counts = ratings[name].value_counts()
        assert counts.iloc[: len(counts) // 10].sum() > 0.25 * len(ratings)
    assert ratings["userId"].value_counts().min() >= 20


def test_movielens_label_can_be_learned(movielens):
    _, metadata = movielens
    assert 0.5 < metadata["positive_share"] < 0.75
    assert metadata["bayes_log_loss"] < metadata["base_log_loss"] - 0.1


def test_movielens_refuses_what_cannot_be(tmp_path):
    with pytest.raises(ValueError, match="users <= ratings"):
        write_movielens(tmp_path / "x", ratings=1_000, users=10, movies=50)


@pytest.mark.parametrize("ratings", [20, 21, 100])
def test_movielens_counts_add_up_at_the_limits(tmp_path, ratings):
    write_movielens(tmp_path / "x", ratings=ratings, users=20, movies=10)
    assert len(pd.read_csv(tmp_path / "x/ratings.csv")) == ratings


@pytest.fixture(scope="module")
def nhot(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nhot") / "nhot"
    metadata = write_nhot(folder, rows=60_000, seed=3)
    return folder, metadata


def test_nhot_depends_on_the_seed_alone(nhot, tmp_path):
    folder, metadata = nhot
    assert write_nhot(tmp_path / "again", rows=60_000, seed=3) == metadata
    write_nhot(tmp_path / "other", rows=60_000, seed=4)
    for part in ("train", "valid"):
        file = f"{part}/part_00000.parquet"
        assert (folder / file).read_bytes() == (tmp_path / "again" / file).read_bytes()
        assert (folder / file).read_bytes() != (tmp_path / "other" / file).read_bytes()


def test_nhot_rows_do_not_depend_on_how_many_follow(nhot, tmp_path):
    write_nhot(tmp_path / "few", rows=1_000, valid_share=0.3, seed=3)
    for part, rows in {"train": 700, "valid": 300}.items():
        few = pd.read_parquet(tmp_path / "few" / part)
        assert len(few) == rows
        pd.testing.assert_frame_equal(few, pd.read_parquet(nhot[0] / part)[:rows])


def test_nhot_holds_what_its_schema_says(nhot):
    schema = Schema.load(nhot[0] / "train" / "_schema.json")
    assert (len(schema.continuous), len(schema.categorical)) == (10, 40)
    assert [column.name for column in schema if column.multi_hot] == list(LIST_NAMES)
    assert {c.name: c.cardinality for c in schema.categorical} == cardinalities(0.01)
    source = ParquetSource(nhot[0] / "train")
    assert {c.name: (c.dtype, c.multi_hot) for c in schema} == source.column_types
    data = pd.read_parquet(nhot[0] / "train")
    for name in ONE_HOT_NAMES:
        assert data[name].min() == 0
        assert data[name].max() < schema[name].cardinality
    numbers = data[schema.continuous.names]
    assert (numbers.mean().abs() < 0.1).all()
    assert numbers.std().between(0.9, 1.2).all()


def test_nhot_lists_hold_up_to_ten_different_ids(nhot):
    data = pd.read_parquet(nhot[0] / "train")
    for name in LIST_NAMES:
        lengths = data[name].map(len)
        assert (lengths.min(), lengths.max()) == (0, 10)
        assert 4 < lengths.mean() < 5.5
        assert all(len(set(ids)) == len(ids) for ids in data[name])
        ids = np.concatenate(data[name].to_list())
        assert 0 <= ids.min() <= ids.max() < cardinalities(0.01)[name]


def test_nhot_comes_out_of_the_loader_as_it_is(nhot):
    with KerasSequenceLoader(nhot[0] / "valid", 4_000, label_names=["label"]) as loader:
        rows = sum(len(label) for _, label in loader)
        inputs, _ = loader.peek()
    assert rows == 12_000
    assert len(inputs) == 10 + 37 + 2 * 3


def test_nhot_label_can_be_learned(nhot):
    _, metadata = nhot
    assert 0.25 < metadata["positive_share"] < 0.35
    assert metadata["bayes_log_loss"] < metadata["base_log_loss"] - 0.1
    assert metadata["bayes_auc"] > 0.78
    # One list alone already tells something: the rate differs between the ids of H3.
    data = pd.read_parquet(nhot[0] / "train", columns=["H3", "label"]).explode("H3").dropna()
    rate = data.groupby("H3")["label"].agg(["mean", "size"]).query("size > 2000")["mean"]
    assert rate.max() - rate.min() > 0.03


def test_nhot_cardinalities_scale_and_small_columns_stay():
    real, small = cardinalities(1.0), cardinalities(0.001)
    assert all(small[name] == n for name, n in real.items() if n <= 1000)
    assert all(1000 <= small[name] < n for name, n in real.items() if n > 1000)


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"rows": 1}, "leave no row"),
        ({"valid_share": 1.0}, "valid_share must be"),
        ({"scale": 0}, "scale must be"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_nhot_refuses_what_cannot_be(tmp_path, settings, rule):
    with pytest.raises(ValueError, match=rule):
        write_nhot(tmp_path / "x", **settings)
    assert not list(tmp_path.iterdir())


def test_nhot_is_made_once_by_the_command(nhot, capsys):
    command = ["synthetic", "nhot", "--rows", "60000", "--output", str(nhot[0]), "--seed"]
    made = (nhot[0] / "_settings.json").stat().st_mtime_ns
    assert main([*command, "3"]) == 0
    assert "left alone" in capsys.readouterr().out
    assert main([*command, "4"]) == 1
    assert "seed was 3, is now 4" in capsys.readouterr().err
    assert (nhot[0] / "_settings.json").stat().st_mtime_ns == made


def test_bayes_statistics_are_those_of_the_definition():
    rng = np.random.default_rng(0)
    p = np.round(rng.random(500), 3) * 0.9 + 0.05
    y = (rng.random(500) < p).astype(np.int8)
    statistics = LabelStatistics()
    for part in (slice(0, 100), slice(100, 500)):
        statistics.add(y[part], p[part])
    result = statistics.result()
    share = y.mean()
    pairs = (p[y == 1][:, None] > p[y == 0]) + 0.5 * (p[y == 1][:, None] == p[y == 0])
    assert math.isclose(result["bayes_auc"], pairs.mean(), abs_tol=2e-4)
    assert math.isclose(result["bayes_log_loss"],
                        -np.mean(np.where(y, np.log(p), np.log(1 - p))), abs_tol=1e-5)  # fmt: skip
    assert math.isclose(result["base_log_loss"],
                        -share * np.log(share) - (1 - share) * np.log(1 - share),
                        abs_tol=1e-5)  # fmt: skip
