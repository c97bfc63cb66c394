"""docs/using.md says what DuckDB's `read_csv` does: these are its words, tried."""

import datetime
import gzip

import duckdb
import pytest


def read(folder, data, options="", name="people.csv"):
    """Return the rows of a file of these bytes, and their types."""
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    rows = duckdb.sql(f"FROM read_csv('{folder / name}', sample_size=-1{options})")
    return rows.fetchall(), [str(kind) for kind in rows.types]


@pytest.mark.parametrize(
    ("text", "options", "rows"),
    [
        ("1;Oslo\n", ", delim=';', header=false, names=['person', 'city']", [(1, "Oslo")]),
        ("x\n'1.234,50'\n", ", decimal_separator=',', thousands='.', quote=''''", [(1234.5,)]),
        ("day\n1.2.2024\n", ", dateformat='%d.%m.%Y'", [(datetime.date(2024, 2, 1),)]),
        ("x,y\n-,\n1,2\n", ", nullstr=['', '-', 'unknown']", [(None, None), (1, 2)]),
        ('x,y\n"",\na,b\n', ", allow_quoted_nulls=false", [("", None), ("a", "b")]),
        ("code\n01234\n99999\n", "", [("01234",), ("99999",)]),
        ("code\n1234567890123456789\n", ", types={'code': 'VARCHAR'}", [("1234567890123456789",)]),
        ("a\ncafé\n".encode("latin-1"), ", encoding='latin-1'", [("café",)]),
        ("a\ncafé\n".encode("utf-16"), ", encoding='utf-16'", [("café",)]),
    ],
)  # fmt: skip
def test_options_read_what_the_page_says(tmp_path, text, options, rows):
    assert read(tmp_path, text, options)[0] == rows


def test_packed_files_and_several_are_read(tmp_path):
    read(tmp_path, gzip.compress(b"a,b\n1,x\n"), name="people_1.csv.gz")
    read(tmp_path, "b,a\ny,2\n", ", union_by_name=true", "people_2.csv")
    rows = duckdb.sql(f"FROM read_csv('{tmp_path}/people_*', union_by_name=true) ORDER BY a")
    assert rows.fetchall() == [(1, "x"), (2, "y")]


def test_types_come_from_all_rows_where_the_page_says_so(tmp_path):
    text = "x\n" + "1\n" * 30_000 + "0.5\n"
    rows, kinds = read(tmp_path, text)
    assert (rows[-1], kinds) == ((0.5,), ["DOUBLE"])
    by_default = duckdb.sql(f"FROM '{tmp_path / 'people.csv'}'").fetchall()
    assert by_default[-1] != (0.5,)  # the page warns of it; if this fails, it need not


def test_damaged_lines_are_left_out_and_known_by_their_numbers(tmp_path):
    with duckdb.connect() as connection:
        (tmp_path / "people.csv").write_text("a,b\n1,x\n3,z,more\n4,w\n")
        path = tmp_path / "people.csv"
        rows = connection.sql(f"FROM read_csv('{path}', delim=',', store_rejects=true)").fetchall()
        assert rows == [(1, "x"), (4, "w")]
        rejected = connection.sql("SELECT line, csv_line FROM reject_errors").fetchall()
        assert rejected == [(3, "3,z,more")]
