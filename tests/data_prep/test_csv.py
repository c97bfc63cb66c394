"""Any CSV file becomes Parquet with the same values, or an error that names file, line and rule."""

import csv
import gzip
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_prep import csv_files
from data_prep.__main__ import main
from data_prep.csv_files import KINDS, TEXT, csv_to_parquet, fitting
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


def test_numbers_and_dates_of_other_countries_are_text(convert):
    _, made = convert("price;day;word\n1.234,5;31.12.2024;a\n2;1.1.2025;b\n")
    assert set(made["types"].values()) == {"string"}


def test_given_types_and_null_values_are_kept(convert):
    kinds = {"zip": "string", "x": "float32", "day": "date", "month": "int64"}
    text = "zip,x,day,month\n01234,?,?,11.0\n5,2,2024-01-01,\n"
    table, _ = convert(text, types=kinds, null_values=["?"])
    assert [str(f.type) for f in table.schema] == ["string", "float", "date32[day]", "int64"]
    assert table["zip"].to_pylist() == ["01234", "5"]
    assert (table["x"].to_pylist(), table["month"].to_pylist()) == ([None, 2], [11, None])


FORMS = {
    "gzip": (gzip.compress(b"a,b\n1,x\n2,y\n"), {}),
    "tabs": ("a\tb\n1\tx\n2\ty\n", {}),
    "tabs by name": ("a\tb\n1\tx\n2\ty\n", {"delimiter": "\t"}),
    "semicolons": ("a;b\n1;x\n2;y\n", {}),
    "any delimiter": ("a~b\n1~x\n2~y\n", {"delimiter": "~"}),
    "no header": ("1,x\n2,y\n", {"names": ["a", "b"]}),
    "utf-16": ("a,b\n1,x\n2,y\n".encode("utf-16"), {"encoding": "utf-16"}),
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
        (("a\n1\n",), {"delimiter": ",,"}, "delimiter must be one ASCII character"),
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
