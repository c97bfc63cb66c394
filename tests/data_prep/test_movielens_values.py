"""Ratings that are no stars are refused with their line; titles with line breaks are read."""

import pytest

from data_prep import movielens
from data_prep.output import DataPrepError

RATINGS = "userId,movieId,rating,timestamp\n" + "".join(
    f"{user},{film},{user % 10 / 2 + 0.5},{user * film}\n" for user in range(9) for film in (1, 2)
)
MOVIES = "movieId,title,genres\n1,One (1995),Drama\n2,Two (1996),Comedy|Crime\n"


def raw_folder(folder, ratings=RATINGS, movies=MOVIES):
    folder.mkdir(exist_ok=True)
    (folder / "ratings.csv").write_text(ratings)
    (folder / "movies.csv").write_text(movies)
    return folder


@pytest.mark.parametrize("stars", ["-99", "inf", "-inf", "nan", "0", "5.5", "1e30"])
def test_a_rating_that_is_no_number_of_stars_is_refused_with_its_line(tmp_path, monkeypatch, stars):
    monkeypatch.setattr(movielens, "READ_BLOCK_BYTES", 64)
    lines = RATINGS.splitlines()
    lines[12] = f"1,2,{stars},3"
    raw = raw_folder(tmp_path / "raw", ratings="\n".join(lines) + "\n")
    with pytest.raises(DataPrepError, match=r"ratings\.csv:13: rating is|empty values"):
        movielens.etl(raw, tmp_path / "out")


def test_titles_with_line_breaks_are_read_wherever_blocks_end(tmp_path, monkeypatch):
    titles = [f'A {number}\n"film" in\r\n{number} lines' for number in range(40)]
    lines = ['{},"{}",Drama'.format(n, title.replace('"', '""')) for n, title in enumerate(titles)]
    raw = raw_folder(tmp_path / "raw")
    (raw / "movies.csv").write_bytes(("\n".join(["movieId,title,genres", *lines]) + "\n").encode())
    for block_bytes in (100, 101, 128):
        monkeypatch.setattr(movielens, "READ_BLOCK_BYTES", block_bytes)
        assert movielens.read_movies(raw / "movies.csv")["title"].to_pylist() == titles
