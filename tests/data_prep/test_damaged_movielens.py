"""Damaged archives and malformed ratings and films are refused with their file, or read right."""

import random
import struct
import zipfile

import pytest

from data_prep import movielens
from data_prep.__main__ import main
from data_prep.output import DataPrepError

RATINGS = "userId,movieId,rating,timestamp\n" + "".join(
    f"{user},{film},{user % 10 / 2 + 0.5},{user * film}\n" for user in range(9) for film in (1, 2)
)
MOVIES = "movieId,title,genres\n1,One (1995),Drama\n2,Two (1996),Comedy|Crime\n"
CONTENT = {"ratings.csv": RATINGS, "movies.csv": MOVIES}


def packed(path, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, text in CONTENT.items():
            file.writestr(f"ml/{name}", text)
    return path.read_bytes()


def unpack(data, folder):
    """Return {name: text} that `fetch` unpacks from an archive, or its DataPrepError."""
    folder.mkdir()
    (folder / "ml.zip").write_bytes(data)
    try:
        raw = movielens.fetch(folder / "out", source=folder / "ml.zip")
    except DataPrepError as refused:
        return refused
    return {name: (raw / name).read_text() for name in CONTENT}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_an_archive_with_a_flipped_bit_is_refused_or_unpacked_right(tmp_path, method):
    whole, refused = packed(tmp_path / "whole.zip", method), 0
    draw = random.Random(method)
    for number in range(300):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        result = unpack(bytes(damaged), tmp_path / str(number))
        if isinstance(result, DataPrepError):
            assert "ml.zip" in str(result)
            assert not (tmp_path / str(number) / "out/raw").exists()
            refused += 1
        else:
            assert result == CONTENT
    assert refused > 100


def test_an_archive_that_was_cut_short_is_refused(tmp_path):
    whole = packed(tmp_path / "whole.zip")
    for length in range(0, len(whole) - 22, 7):
        assert "ml.zip is not an intact" in str(unpack(whole[:length], tmp_path / str(length)))


@pytest.mark.parametrize(("offset", "value"), [(6, 1), (8, 99)], ids=["encrypted", "compression"])
def test_an_archive_that_cannot_be_unpacked_is_refused_in_one_line(tmp_path, capsys, offset, value):
    data = bytearray(packed(tmp_path / "whole.zip"))
    start = -1
    while (start := data.find(b"PK\x01\x02", start + 1)) >= 0:  # the entries of the directory
        struct.pack_into("<H", data, start + 2 + offset, value)
        (local,) = struct.unpack_from("<I", data, start + 42)
        struct.pack_into("<H", data, local + offset, value)
    (tmp_path / "ml.zip").write_bytes(data)
    arguments = ["movielens", "--from", str(tmp_path / "ml.zip"), "--output", str(tmp_path / "out")]
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert "ml.zip is not an intact, unencrypted zip archive" in error
    assert error.count("\n") == 1


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
