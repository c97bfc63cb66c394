"""Any CSV file becomes Parquet with the same values, or an error that names file, line and rule."""

import bz2
import csv
import datetime
import gzip
import io
import json
import lzma
import sqlite3
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_prep import csv_files
from data_prep.__main__ import main
from data_prep.csv_files import csv_to_parquet
from data_prep.csv_types import KINDS, TEXT, fitting
from data_prep.output import DataPrepError, read_settings
from tutorlib.parquet import ParquetSource


@pytest.fixture
def convert(tmp_path):
    """Write texts to files, convert them, return the table and what was measured."""

    def run(*texts, **options):
        files = []
        for number, text in enumerate(texts):
            files.append(tmp_path / f"{number}.csv")
            files[-1].write_bytes(text.encode() if isinstance(text, str) else text)
        made = csv_to_parquet(files, tmp_path / "out", overwrite=True, **options)
        return pq.read_table(ParquetSource(tmp_path / "out").files), made

    return run


def packed(codec, data):
    """Return bytes that Arrow packed."""
    buffer = pa.BufferOutputStream()
    with pa.CompressedOutputStream(buffer, codec) as stream:
        stream.write(data)
    return buffer.getvalue().to_pybytes()


def zipped(**members):
    """Return a zip archive of {name, with __ for / and _ for a point: bytes}."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name.replace("__", "/").replace("_", "."), data)
    return buffer.getvalue()


ROWS = b"a,b\n1,x\n2,y\n"


def test_each_column_gets_the_narrowest_type_that_takes_all_its_values(convert):
    table, made = convert(
        "whole,real,text,flag,day,time,utc,zip,long,month,none\n"
        "1,1.5,a,true,2024-02-29,2024-02-29,2024-02-29T10:00:00Z,01234,12345678901234567890,11.0,\n"
        "NA, 2 ,NA,FALSE,1999-12-31,2024-02-29 10:00:00.5,2024-02-29T11:00:00Z,99999,1,,NA\n"
    )
    kinds = {field.name: str(field.type) for field in table.schema}
    assert kinds == made["types"]
    assert kinds == {
        "whole": "int64", "real": "double", "text": "string", "flag": "bool", "day": "date32[day]",
        "time": "timestamp[us]", "utc": "timestamp[us, tz=UTC]", "zip": "string",
        "long": "string", "month": "int64", "none": "null",
    }  # fmt: skip
    assert table["whole"].to_pylist() == [1, None]
    assert table["month"].to_pylist() == [11, None]  # as pandas writes whole numbers with gaps
    assert table["text"].to_pylist() == ["a", "NA"]  # text has only the missing values it is given
    assert made["nulls"] == dict.fromkeys(kinds, 0) | {"whole": 1, "month": 1, "none": 2}


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["0x1F"], "string"), (["-5", "0"], "int64"), (["1", "true"], "string"),
        (["true", "1"], "string"), (["9007199254740993", "0.5"], "string"),
        (["1e5", "-0.5"], "double"), (["0.5", "00.5"], "string"), (["2024-01-01", "1"], "string"),
        (["", "NaN"], "null"), (["9223372036854775808"], "string"), (["11.0", "12"], "int64"),
        (["11.0", "12.5"], "double"), (["007.0"], "string"),
    ],
)  # fmt: skip
def test_types_lose_no_digits_and_do_not_depend_on_blocks(values, kind):
    whole, parts = fitting(list(KINDS), pa.chunked_array([values])), list(KINDS)
    for value in values:
        parts = fitting(parts, pa.chunked_array([[value]]))
    assert whole == parts
    assert str([*parts, TEXT][0]) == kind


@pytest.mark.parametrize(("last", "kind"), [("0.5", "double"), ("unknown", "string")])
def test_the_last_row_of_many_blocks_decides_a_type_too(convert, monkeypatch, last, kind):
    monkeypatch.setattr(csv_files, "BLOCK_CHARACTERS", 1_000)
    table, made = convert("id,x\n" + "".join(f"{i},{i}\n" for i in range(2_000)) + f"2000,{last}\n")
    assert made["types"] == {"id": "int64", "x": kind}
    assert table["x"].to_pylist()[-2:] == ([1999.0, 0.5] if kind == "double" else ["1999", last])


NOON = datetime.datetime(2024, 1, 1, 12)
ABROAD = "price;day;word\n1.234,5;31.12.2024;a\n2;1.1.2025;b\n"


def test_numbers_and_dates_of_other_countries_are_text_with_a_note_of_the_options(convert, capsys):
    _, made = convert(ABROAD)
    assert set(made["types"].values()) == {"string"}
    printed = capsys.readouterr().out
    assert "note: price looks like numbers with a decimal comma: pass --decimal ','." in printed
    assert "note: day looks like dates: pass --date-format 'day=%d.%m.%Y'." in printed
    assert printed.count("note: ") == len(made["notes"]) == 2


@pytest.mark.parametrize("day", [{"day": "%d.%m.%Y"}, {"*": "%d.%m.%Y"}])
def test_options_read_numbers_and_dates_of_other_countries(convert, day):
    table, made = convert(ABROAD, decimal=",", date_format=day)
    assert table.to_pydict() == {
        "price": [1234.5, 2], "word": ["a", "b"],
        "day": [datetime.date(2024, 12, 31), datetime.date(2025, 1, 1)],
    }  # fmt: skip
    assert made["notes"] == []


@pytest.mark.parametrize(
    ("values", "options", "want"),
    [
        (["1.250,00", "-3,5"], {"decimal": ","}, [1250, -3.5]),
        (["1.250", "12"], {"decimal": ","}, [1250, 12]),
        (["1.5", "2,5"], {"decimal": ","}, ["1.5", "2,5"]),  # not 15
        (["1,234", "12,345,678"], {"thousands": ","}, [1234, 12345678]),
        (["1,23", "4"], {"thousands": ","}, ["1,23", "4"]),
        (["0,123", "4"], {"thousands": ","}, ["0,123", "4"]),
        (["1'234.5", "4"], {"thousands": "'"}, [1234.5, 4]),
        (["$1,250.5", "-$5"], {"thousands": ",", "strip": "$"}, [1250.5, -5]),
        (["1.250,5 €", "5 €"], {"decimal": ",", "strip": " €"}, [1250.5, 5]),
        (["2024-01-01 10:00:00.5"], {"decimal": ","}, [NOON.replace(hour=10, microsecond=500_000)]),
        (["007", "0,5"], {"decimal": ","}, ["007", "0,5"]),
        (["1/1/2024 12:00"], {"date_format": {"a": "%m/%d/%Y %H:%M"}}, [NOON]),
        (["1 Jan 2024", None], {"date_format": {"*": "%d %b %Y"}}, [NOON.date(), None]),
        (["20240101"], {"date_format": {"a": "%Y%m%d"}}, [NOON.date()]),
        (["2024-01-01"], {"date_format": {"*": "%d.%m.%Y"}}, [NOON.date()]),
    ],
)  # fmt: skip
def test_numbers_and_dates_are_read_as_the_options_say(convert, values, options, want):
    lines = [f'"{value}",x' if value else ",x" for value in values]
    table, _ = convert("\n".join(["a,b", *lines]), **options)
    assert table["a"].to_pylist() == want


@pytest.mark.parametrize(
    ("values", "remedy"),
    [
        (["1,5", "2,25"], "--decimal ','."),
        (["1.250,00", "unknown", *["3,5"] * 20], "--decimal ',' --null-values 'unknown'."),
        (["1,234", "12"], "--thousands ',' (or --decimal ',' if 1,234 is less than 2)."),
        (["1,234.50", "12"], "--thousands ','."), (["0,123", "0,456"], "--decimal ','."),
        (["$12.50", "-$3"], "--strip '$'."), (["12,50 €", "3 €"], "--decimal ',' --strip ' €'."),
        (["1'234", "12"], '''--thousands "'".'''), (["5%", "12.5%"], "--strip '%'."),
        (["31.12.2023", "1.1.2024"], "--date-format 'a=%d.%m.%Y'."),
        (["12/31/2023", "01/02/2024"], "--date-format 'a=%m/%d/%Y'."),
        (["01/02/2024"], "--date-format 'a=%d/%m/%Y' or --date-format 'a=%m/%d/%Y'."),
        (["31.12.23 10:05"], "--date-format 'a=%d.%m.%y %H:%M'."),
        (["Jan 5, 2024"], "--date-format 'a=%b %d, %Y'."),
        (["5-Jan-2024"], "--date-format 'a=%d-%b-%Y'."),
        (["New York, NY"], None), (["007"], None), (["a::b"], None), (["10.0.0.1"], None),
        (["12 Main Street"], None), (["$"], None), (["1.2.3"], None), (["3-4"], None),
    ],
)  # fmt: skip
def test_a_text_column_that_looks_like_numbers_or_dates_names_its_options(convert, values, remedy):
    text = "\n".join(["a,b", *(f'"{value}",x' for value in values)])
    table, made = convert(text)
    assert table["a"].to_pylist() == values
    assert [note.partition("pass ")[2] for note in made["notes"]] == [remedy] * bool(remedy)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"types": {"price": "float64"}}, "2: price is '1.234,5', .*--decimal ','.$"),
        ({"types": {"day": "date32"}}, r"2 malformed .*--date-format 'day=%d\.%m\.%Y'\.$"),
        ({"types": {"day": "date32"}, "on_bad_lines": "skip"}, r"no rows .*--date-format 'day=%d"),
        ({"date_format": {"day": "%m.%d.%Y"}}, "'31.12.2024', must be date32.day. written as %m"),
        ({"date_format": {"day": "%d.%m.%Q"}}, "date_format must be a format of strptime"),
        ({"date_format": {"x": "%d.%m.%Y"}}, r"date_format names the columns \['x'\]"),
        ({"date_format": {"day": "%d.%m.%Y"}, "types": {"day": "int64"}}, r"\['day'\] something"),
        ({"decimal": "x"}, "decimal must be"), ({"thousands": "12"}, "thousands must be one"),
        ({"decimal": ",", "thousands": ","}, "thousands must be one"),
        ({"rename": {"x": "y"}}, r"rename names the columns \['x'\]"),
        ({"rename": {"day": "word"}}, "names of columns must differ"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_name_those_that_do(convert, tmp_path, options, message):
    with pytest.raises((DataPrepError, ValueError), match=message) as raised:
        convert(ABROAD, **options)
    assert "Correct them" not in str(raised.value) or "written as" in message
    assert not (tmp_path / "out").exists()


def test_days_that_no_month_has_are_refused_by_line(convert):
    text = "day\n29.02.2024\n31.02.2023\n1.1.2024\n01.01.24\n"
    with pytest.raises(
        DataPrepError, match=r"^2 malformed .*:3: day is '31.*:5: day is '01.01.24'"
    ):
        convert(text, date_format={"day": "%d.%m.%Y"})


@pytest.mark.parametrize("size", [40, 1 << 23])
def test_files_of_movielens_1m_are_read_with_their_lines(convert, monkeypatch, size):
    monkeypatch.setattr(csv_files, "BLOCK_CHARACTERS", size)
    genres = ["Drama", "Comedy|Drama", "Comedy|Drama|War"]
    movies = [(i, f"Toy; Story, {i} (1995)", genres[i % 3]) for i in range(1, 40)]
    lines = ["::".join(map(str, movie)) for movie in movies]
    names = ["movie", "title", "genres"]
    table, made = convert("\n".join(lines), names=names)
    assert list(zip(*table.to_pydict().values(), strict=True)) == movies
    assert made["types"] == {"movie": "int64", "title": "string", "genres": "string"}
    lines[20] = "21::Heat"
    with pytest.raises(DataPrepError, match=r"^1 malformed .*:21: 2 fields instead of 3"):
        convert("\n".join(lines), names=names)


def test_a_delimiter_of_several_characters_may_stand_in_quotes_and_rejected_lines(
    convert, tmp_path
):
    text = 'a::b\n"x::y"::2\n\x1f::3\n"two\n::lines"::4\nshort\nz::::5\n'
    table, _ = convert(text, on_bad_lines="skip", delimiter="::")
    assert table.to_pydict() == {"a": ["x::y", "\x1f", "two\n::lines"], "b": [2, 3, 4]}
    with open(tmp_path / "out/_rejected.csv", encoding="utf-8", newline="") as file:
        kept = [(line["line"], line["text"]) for line in csv.DictReader(file)]
    assert kept == [("6", "short"), ("7", "z::::5")]


def test_several_blanks_separate_values_that_have_blanks(convert):
    text = 'city      age\nNew York  34\n"La  Paz"   35\n'
    for options in ({}, {"delimiter": "  "}):
        table, _ = convert(text, **options)
        assert table.to_pydict() == {"city": ["New York", "La  Paz"], "age": [34, 35]}


@pytest.mark.parametrize(
    ("text", "options", "note"),
    [
        ("a#b\n1#2\n", {}, "its lines have 1 of '#' each. .*--delimiter '#'"),
        ("a,b\nx,y\n", {"delimiter": ";"}, "--delimiter ','"),
        ("first last\nAnna Smith\n", {}, "--delimiter 'whitespace'"),
        ("name    age\nAnna  B.   3\nBob     4\nEve     5\nBo   b   5\n", {}, "pandas.read_fwf"),
        ("name\nAnna Smith\nBob\n", {}, None), ("day\n2024-01-01\n", {}, None),
        ("5.1,3.5,x\n4.9,3.0,y\n", {}, "header looks like a row of values: 5.1, 3.5.*--no-header"),
        ("39,State\n50,Self\n", {}, "--no-header"), ("2024-01-01,a\n2024-01-02,b\n", {}, "--no-h"),
        ("1;2,5\n3;4,5\n", {"decimal": ","}, "--no-header"),
        (",a\n0,1\n", {}, "header has empty names: f0, a. Pass --no-header"),
        ("country,2019,2020\nA,1,2\n", {}, None), ("0,1,2\n.5,1,2\n", {}, None),
        ("5.1,a\nx,y\n", {}, None), ("5.1,3.5\n4.9,3.0\n", {"no_header": True}, None),
        ("5.1,3.5\n4.9,3.0\n", {"names": ["x", "y"]}, None),
    ],
)  # fmt: skip
def test_what_the_first_lines_leave_in_doubt_is_said(convert, text, options, note):
    _, made = convert(text, **options)
    assert len(made["notes"]) == bool(note)
    if note:
        with pytest.raises(AssertionError, match=note):
            raise AssertionError(made["notes"][0])


def test_a_title_above_the_header_is_named(convert):
    with pytest.raises(DataPrepError, match=r"first line has no ','.*--skip-lines 1\.$"):
        convert("Report of 2024\na,b\n1,2\n3,4\n")


def test_what_looks_odd_but_is_right_stays_as_it_is(convert):
    text = (
        'name,price,note,json,sign\nA,"1,250.00",x::y,"{""a"": 1}",a|b\nB;C,"3.00",z::w,[1],c;d\n'
    )
    table, _ = convert(text)
    assert table.to_pydict() == {
        "name": ["A", "B;C"], "price": ["1,250.00", "3.00"], "note": ["x::y", "z::w"],
        "json": ['{"a": 1}', "[1]"], "sign": ["a|b", "c;d"],
    }  # fmt: skip
    for odd in (
        '{"a": 1},x\n{"b": 2},y\n',
        "[1-5],[6-10]\nu,v\n",
        "ORC,PAR1é\nu,v\n",
        "BZh,%PDF\nu,v\n",
    ):
        table, _ = convert(odd, no_header=True)
        assert [*map(list, zip(*table.to_pydict().values(), strict=True))] == [
            line.split(",") for line in odd.splitlines()
        ]


def moved(archive):
    """Return a zip archive whose directory begins before the file does."""
    end = archive.rindex(b"PK\5\6")
    return archive[: end + 16] + (1 << 30).to_bytes(4, "little") + archive[end + 20 :]


def written(write, *arguments):
    """Return the bytes that a function writes into a file."""
    buffer = io.BytesIO()
    write(*arguments, buffer)
    return buffer.getvalue()


def database():
    """Return the bytes of an SQLite database."""
    with sqlite3.connect(":memory:") as connection:
        connection.execute("create table t (a)")
        return connection.serialize()


TABLE = pa.table({"a": [1, 2]})
JSON_LINES = "".join(json.dumps({"a": n, "b": "x,y"}) + "\n" for n in range(3_202))
OTHERS = {
    "Parquet": (written(pq.write_table, TABLE), "Parquet already. Pass it to the loader"),
    "Arrow": (written(pyarrow.feather.write_feather, TABLE), "pandas.read_feather"),
    "ORC": (written(pyarrow.orc.write_table, TABLE), "ORC file. pandas.read_orc"),
    "NumPy": (written(lambda file: np.save(file, np.arange(3))), "array of NumPy. numpy.load"),
    "xls": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "Excel file"),
    "xlsx": (zipped(xl__workbook_xml=b""), r"Excel workbook.* pandas.read_excel.*to_parquet"),
    "ods": (zipped(mimetype=b"", content_xml=b""), "OpenDocument"),
    "two in a zip": (zipped(a_csv=ROWS, b_csv=ROWS), r"zip archive of 2 files .a.csv, b.csv.. Unp"),
    "Parquet in a zip": (zipped(a_parquet=written(pq.write_table, TABLE)), "packed by zip"),
    "packed twice": (gzip.compress(gzip.compress(ROWS)), "packed twice: gzip in gzip"),
    "SQLite": (database(), "SQLite database. pandas.read_sql"),
    "PDF": (b"%PDF-1.7\nx", "a PDF document"),
    "HTML": (b"\n<!DOCTYPE html><p>a,b", "an HTML page"),
    "XML": (b"<?xml version='1.0'?>\n<a/>", "is XML. pandas.read_xml"),
    "JSON lines": (JSON_LINES.encode(), "is JSON lines. .*pyarrow.json.read_json"),
    "packed JSON lines": (gzip.compress(JSON_LINES.encode()), "is JSON lines, packed by gzip"),
    "JSON": (json.dumps([{"a": n} for n in range(9_999)]).encode(), "is JSON. pandas.read_json"),
    "JSON in many lines": (json.dumps({"a": [1, 2]}, indent=1).encode(), "is JSON."),
    "no text": (bytes(range(256)) * 9, "no text: it holds zero"),
    "utf-16 without mark": ("a,b\n1,2\n".encode("utf-16-le"), "--encoding utf-16-le"),
    "empty": (b"", "is empty"), "cut zstd": (packed("zstd", ROWS)[:-4], "cannot be unpacked"),
    "cut xz": (lzma.compress(ROWS * 99)[:-4], "cannot be unpacked"),
    "cut bz2": (bz2.compress(ROWS * 99)[:-4], "cannot be unpacked"),
    "zip with a wrong place": (moved(zipped(a_csv=ROWS)), "cannot be unpacked"),
    "cut zip": (zipped(a_csv=ROWS)[:-4], "cannot be unpacked"),
}  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"on_bad_lines": "skip", "encoding": "latin-1"}])
@pytest.mark.parametrize("kind", OTHERS)
def test_files_that_are_no_csv_are_refused_by_kind_with_what_reads_them(
    convert, tmp_path, kind, options
):
    data, message = OTHERS[kind]
    with pytest.raises(DataPrepError, match=rf"0\.csv .*{message}") as raised:
        convert(data, **options)
    assert "latin-1" not in str(raised.value)
    assert "on-bad-lines" not in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_an_encoding_against_the_bytes_of_the_file_is_refused(convert):
    with pytest.raises(DataPrepError, match="mark of utf-16, so it is not encoded in latin-1"):
        convert("a,b\n1,2\n".encode("utf-16"), encoding="latin-1")
    with pytest.raises(DataPrepError, match=r"not encoded in utf-16.* no zero byte"):
        convert("a,bc\n1,2\n", encoding="utf-16")


def test_skipping_nearly_all_lines_is_refused(convert, tmp_path):
    text = "a\n1\n" + "2,3\n" * 50
    with pytest.raises(DataPrepError, match=r"50 malformed .* 1 lines are right: too few to skip"):
        convert(text, delimiter=",", on_bad_lines="skip")
    assert not (tmp_path / "out").exists()


def test_files_larger_than_the_first_look_are_unpacked_whole(convert):
    text = "id,x\n" + "".join(f"{n},{n * 7919 % 10007}\n" for n in range(50_000))
    for pack in (gzip.compress, bz2.compress, lzma.compress, lambda data: packed("zstd", data),
                 lambda data: packed("lz4", data), lambda data: zipped(a_csv=data)):  # fmt: skip
        table, _ = convert(pack(text.encode()))
        assert table["id"].to_pylist() == list(range(50_000))


def test_given_types_and_null_values_are_kept(convert):
    kinds = {"zip": "string", "x": "float32", "day": "date", "month": "int64"}
    text = "zip,x,day,month\n01234,?,?,11.0\n5,2,2024-01-01,\n"
    table, _ = convert(text, types=kinds, null_values=["?"])
    assert [str(f.type) for f in table.schema] == ["string", "float", "date32[day]", "int64"]
    assert table["zip"].to_pylist() == ["01234", "5"]
    assert (table["x"].to_pylist(), table["month"].to_pylist()) == ([None, 2], [11, None])


FORMS = {
    "gzip": (gzip.compress(ROWS), {}),
    "bzip2": (bz2.compress(ROWS), {}),
    "xz": (lzma.compress(ROWS), {}),
    "Zstandard": (packed("zstd", ROWS), {}),
    "LZ4": (packed("lz4", ROWS), {}),
    "zip": (zipped(a_csv=ROWS), {}),
    "zip of macOS": (zipped(data__a_csv=ROWS, data___a_csv=b"\0"), {}),
    "packed utf-16": (lzma.compress("a,b\n1,x\n2,y\n".encode("utf-16")), {}),
    "two colons": ("a::b\n1::x\n2::y\n", {}),
    "two colons by name": ("a::b\n1::x\n2::y\n", {"delimiter": "::"}),
    "two bars": ("a||b\n1||x\n2||y\n", {}),
    "any text as delimiter": ("a<->b\n1<->x\n2<->y\n", {"delimiter": "<->"}),
    "no ASCII as delimiter": ("a§b\n1§x\n2§y\n", {}),
    "blanks": ("a    b\n1    x\n2    y\n", {}),
    "blanks and tabs": ("  a \t b\n 1   x\n2 y  \n", {"delimiter": "whitespace"}),
    "a backslash and t": ("a\tb\n1\tx\n2\ty\n", {"delimiter": r"\t"}),
    "header left out": ("1,x\n2,y\n", {"no_header": True, "rename": {"f0": "a", "f1": "b"}}),
    "names with commas": ("1,x\n2,y\n", {"names": ["a,b"]}),
    "other names": ("A,B\n1,x\n2,y\n", {"rename": {"A": "a", "B": "b"}}),
    "tabs": ("a\tb\n1\tx\n2\ty\n", {}),
    "tabs by name": ("a\tb\n1\tx\n2\ty\n", {"delimiter": "\t"}),
    "semicolons": ("a;b\n1;x\n2;y\n", {}),
    "any delimiter": ("a~b\n1~x\n2~y\n", {"delimiter": "~"}),
    "no header": ("1,x\n2,y\n", {"names": ["a", "b"]}),
    "utf-16": ("a,b\n1,x\n2,y\n".encode("utf-16"), {"encoding": "utf-16"}),
    "utf-16 by its mark": ("a,b\n1,x\n2,y\n".encode("utf-16"), {}),
    "utf-32 by its mark": ("a,b\n1,x\n2,y\n".encode("utf-32"), {}),
    "utf-16 of one order": ("a,b\n1,x\n2,y\n".encode("utf-16-be"), {"encoding": "utf-16-be"}),
    "byte order mark": (b"\xef\xbb\xbfa,b\n1,x\n2,y\n", {}),
    "CRLF": ("a,b\r\n1,x\r\n2,y\r\n", {}),
    "CR": ("a,b\r1,x\r2,y", {}),
    "blank lines": ("\n\na,b\n1,x\n\n2,y\n\n", {}),
    "lines before the header": ("made by hand\n\na,b\n1,x\n2,y\n", {"skip_lines": 2}),
    "spaces": ("a, b\n1, x\n2, y.\n", {"strip": " ."}),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_file_gives_the_same_rows(convert, form):
    text, options = FORMS[form]
    assert convert(text, **options)[0].to_pydict() == {"a": [1, 2], "b": ["x", "y"]}


fields = st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), max_size=6)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(rows=st.lists(st.tuples(fields, fields), min_size=1, max_size=30), size=st.integers(1, 99))
def test_text_written_by_pythons_csv_module_is_read_back(tmp_path_factory, rows, size):
    folder = tmp_path_factory.mktemp("csv")
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([("a", "b"), *rows])
    (folder / "in.csv").write_bytes(text.getvalue().encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_files, "BLOCK_CHARACTERS", max(size, 60))  # the longest line
        types = {"a": "string", "b": "string"}
        csv_to_parquet([folder / "in.csv"], folder / "out", types=types)
    read = pq.read_table(folder / "out/part_00000.parquet").to_pydict()
    assert list(zip(read["a"], read["b"], strict=True)) == rows


BAD = (
    'id,x,text\n1,0.5,a\n2,0.5\n\n3,0.5,"line\nbreak"\n4,0.5,b,more\n5,many,c\n'
    '6,1.5,\xff\n7,2,"Weird Al" Yankovic\n8,2,5" disk\n9,2,"d\n10,1,e'
)
REASONS = {
    3: "2 fields instead of 3",
    7: "4 fields instead of 3",
    8: "x is 'many', must be double",
    9: "not encoded in utf-8",
    10: "malformed quotes",
    12: "malformed quotes",
}


@pytest.mark.parametrize("size", [40, 1 << 23])
@pytest.mark.parametrize(
    "types", [{"x": "float64"}, {"id": "int64", "x": "float64", "text": "string"}]
)
def test_malformed_lines_are_refused_with_file_line_and_rule(
    convert, tmp_path, types, size, monkeypatch
):
    monkeypatch.setattr(csv_files, "BLOCK_CHARACTERS", size)
    with pytest.raises(DataPrepError) as raised:
        convert(BAD.encode("latin-1"), types=types)
    message = str(raised.value)
    assert message.startswith("6 malformed lines in")
    if size > 40:  # or the quote that does not end is longer than a line may be
        assert all(f"0.csv:{line}: {reason}" in message for line, reason in REASONS.items())
    assert all(f"0.csv:{line}: " in message for line in REASONS)
    assert "--on-bad-lines skip" in message
    assert [path.name for path in tmp_path.iterdir()] == ["0.csv"]


def test_malformed_lines_are_left_out_counted_and_kept(convert, tmp_path, capsys):
    table, made = convert(BAD.encode("latin-1"), types={"x": "float64"}, on_bad_lines="skip")
    assert table["id"].to_pylist() == [1, 3, 8, 10]
    assert table["text"].to_pylist() == ["a", "line\nbreak", '5" disk', "e"]
    assert made["bad_lines"][str(tmp_path / "0.csv")]["total"] == 6
    with open(tmp_path / "out/_rejected.csv", encoding="utf-8", newline="") as file:
        kept = {int(line["line"]): line for line in csv.DictReader(file)}
    assert {
        number: line["reason"][: len(REASONS[number])] for number, line in kept.items()
    } == REASONS
    assert {line["text"] for line in kept.values()} >= {"2,0.5", "4,0.5,b,more", '9,2,"d'}
    assert "skipped: 6 malformed lines" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (("a,b\n1,2\n", "a,c\n1,2\n"), {}, r"1\.csv has the columns \['a', 'c'\], but .*0\.csv"),
        (("a,a\n1,2\n",), {}, r"0\.csv: several columns have the same name: \['a', 'a'\]"),
        (("",), {}, r"0\.csv is empty"),
        (("a,b\n",), {}, r"0\.csv.*no rows"),
        (("a,b\n1\n2,3",), {}, r"^1 malformed lines in .*0\.csv:2: 1 fields instead of 2"),
        (('a,"b\n',), {}, r"0\.csv: its first record is malformed"),
        ((gzip.compress(b"a\n1\n" * 999)[:-9],), {}, r"0\.csv cannot be unpacked"),
        (("x\nJosé\n".encode("latin-1"),), {"encoding": "ascii"}, r"0\.csv:2: not encoded in asc"),
        ((b"a,b\n1,2",), {"encoding": "utf-16"}, r"0\.csv.* not encoded in utf-16.*--encoding"),
        (("a\n1\n",), {"types": {"b": "int64"}}, r"types names the columns \['b'\]"),
        (("a\n1\n",), {"types": {"a": "list"}}, "No type alias for list"),
        (("a\n1\n",), {"delimiter": ""}, "delimiter must be a text without quotes and line ends"),
        (("a\n1\n",), {"delimiter": '"'}, "delimiter must be a text without quotes"),
        (("a\n1\n",), {"encoding": "utf-9"}, "encoding must be a codec"),
        ((), {}, "no CSV file is given"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(convert, tmp_path, texts, options, message):
    with pytest.raises((DataPrepError, ValueError), match=message):
        convert(*texts, **options)
    assert not (tmp_path / "out").exists()


def test_several_files_are_read_in_order_and_their_columns_by_name(convert):
    table, made = convert("a,b\n1,x\n", "b,a\ny,2.5\n")
    assert table.to_pydict() == {"a": [1, 2.5], "b": ["x", "y"]}
    assert made["rows"] == 2


def test_the_command_converts_once_and_refuses_other_settings(tmp_path, capsys):
    file, out = tmp_path / "in.txt", tmp_path / "out"
    file.write_text("1, 2.5, no\n2, ?, yes\n" * 50)
    command = ["csv", str(file), "--to", str(out), "--strip", " ", "--null-values", "?",
               "--names", "a", "b", "y", "--types", "b=float32"]  # fmt: skip
    assert main(command) == 0
    assert "100 rows" in capsys.readouterr().out
    made = read_settings(out)["metadata"]
    assert made["types"] == {"a": "int64", "b": "float", "y": "string"}
    assert made["nulls"]["b"] == 50
    assert main(command) == 0
    assert "left alone" in capsys.readouterr().out
    assert main([*command[:-1], "b=int8"]) == 1
    assert "types was" in capsys.readouterr().err


@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
def test_the_command_takes_names_with_commas_and_formats_for_one_or_all_columns(
    tmp_path, capsys, twice
):
    file = tmp_path / "in.txt"
    file.write_text("1::1,5::31.12.2023::1/2/2024\n")
    command = ["csv", str(file), "--names", "a,b,c,d", "--decimal", ",", "--rename", "a=id"]
    formats = ["--date-format", "%d.%m.%Y", "d=%m/%d/%Y"]
    if twice:
        formats[2:] = ["--date-format", *formats[2:]]
    assert main([*command, *formats, "--to", str(tmp_path / "out")]) == 0
    want = {
        "id": [1],
        "b": [1.5],
        "c": [datetime.date(2023, 12, 31)],
        "d": [datetime.date(2024, 1, 2)],
    }
    assert pq.read_table(tmp_path / "out/part_00000.parquet").to_pydict() == want
    assert "note" not in capsys.readouterr().out
