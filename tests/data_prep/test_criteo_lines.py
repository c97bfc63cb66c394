"""Each malformed line of a raw Criteo file is found, whatever else its block holds."""

import gzip
import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep import criteo, criteo_raw
from data_prep.output import DataPrepError
from data_prep.synthetic_criteo import CATEGORICAL_NAMES, COLUMN_NAMES, write_criteo


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("criteo") / "raw"
    write_criteo(folder, rows=4_000, days=1, seed=5)
    return folder


def read_raw(path):
    kinds = dict.fromkeys(CATEGORICAL_NAMES, str)
    return pd.read_csv(path, sep="\t", header=None, names=COLUMN_NAMES, dtype=kinds)


GOOD = "0\t1" + "\t" * 12 + "\t0000000a" * 26
BAD = {
    3: (lambda f: f[:39], "39 fields instead of 40"),
    40: (lambda f: [*f, "more"], "41 fields instead of 40"),
    77: (lambda f: [f[0], "12x", *f[2:]], "I1 is '12x', must be an integer"),
    78: (lambda f: [f[0], "0x1F", *f[2:]], "I1 is '0x1F', must be an integer"),
    100: (lambda f: ["2", *f[1:]], "label is '2', must be 0 or 1"),
    101: (lambda f: ["", *f[1:]], "label is '', must be 0 or 1"),
    500: (lambda f: [*f[:-1], "xyzw1234"], "C26 is 'xyzw1234', must be 8 hex digits"),
    501: (lambda f: [*f[:-1], "123"], "C26 is '123', must be 8 hex digits"),
    900: (lambda f: [*f[:14], "\xff\xfe", *f[15:]], "C1 is"),
    1999: (lambda f: [], "fields instead of 40|label is ''"),
}


@pytest.fixture
def spoilt(raw, tmp_path, monkeypatch):
    """A folder in which the lines of BAD (numbered from 1) of day 0 are malformed."""
    monkeypatch.setattr(criteo_raw, "READ_BLOCK_BYTES", 1 << 14)  # bad lines in many blocks
    lines = (raw / "day_0.tsv").read_text().splitlines()
    for number, (spoil, _) in BAD.items():
        lines[number - 1] = "\t".join(spoil(lines[number - 1].split("\t")))
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/day_0.tsv").write_bytes(("\n".join(lines) + "\n").encode("latin-1"))
    return tmp_path


def test_criteo_malformed_lines_are_refused_with_their_numbers(spoilt):
    with pytest.raises(DataPrepError) as raised:
        criteo.raw_to_parquet(spoilt / "raw", spoilt / "parquet")
    message = str(raised.value)
    assert message.startswith(f"{len(BAD)} malformed lines in day_0.tsv")
    assert "--on-bad-lines skip" in message
    assert [p.name for p in spoilt.iterdir()] == ["raw"]


def test_criteo_malformed_lines_are_kept_out_and_reported(spoilt, raw, capsys):
    metadata = criteo.raw_to_parquet(spoilt / "raw", spoilt / "parquet", on_bad_lines="skip")
    report = metadata["bad_lines"]["day_0"]
    assert report["total"] == len(BAD)
    for (number, (_, reason)), line in zip(BAD.items(), report["first"], strict=True):
        assert line.startswith(f"day_0.tsv:{number}: "), line
        assert any(part in line for part in reason.split("|")), line
    assert "skipped: 10 malformed lines" in capsys.readouterr().out
    have = pq.read_table(spoilt / "parquet/day_0.parquet", columns=["I8", "C2"]).to_pandas()
    want = read_raw(raw / "day_0.tsv").drop(index=[number - 1 for number in BAD])
    np.testing.assert_array_equal(have["I8"], want["I8"])
    np.testing.assert_array_equal(have["C2"], want["C2"].map(lambda text: int(text, 16)))
    stored = json.loads((spoilt / "parquet/_settings.json").read_text())
    assert stored["metadata"]["bad_lines"] == metadata["bad_lines"]


def test_criteo_only_the_first_ten_bad_lines_are_listed(tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/day_0.tsv").write_text("".join(f"{i}\t\n" for i in range(25)))
    with pytest.raises(DataPrepError, match=r"25 malformed lines.*day_0\.tsv:10: .*15 more"):
        criteo.raw_to_parquet(tmp_path / "raw", tmp_path / "parquet")


def line(**values):
    """Return a well-formed line but for these values."""
    fields = dict(zip(COLUMN_NAMES, GOOD.split("\t"), strict=True)) | values
    return "\t".join(fields.values())


def read(folder, lines, name="day_0.tsv"):
    """Return (rows, malformed lines) of a file of these lines, given as text or bytes."""
    path, bad = folder / name, criteo_raw.BadLines(name)
    data = b"".join((one.encode() if isinstance(one, str) else one) + b"\n" for one in lines)
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return sum(table.num_rows for table in criteo_raw.read_day(path, bad)), bad


def test_criteo_a_label_that_is_no_number_does_not_hide_other_bad_labels(tmp_path):
    lines = [*(line(label=label) for label in ("abc", "7", "")), *[GOOD] * 50]
    rows, bad = read(tmp_path, lines)
    assert rows == 50
    assert bad.first == [
        "day_0.tsv:1: label is 'abc', must be 0 or 1",
        "day_0.tsv:2: label is '7', must be 0 or 1",
        "day_0.tsv:3: label is '', must be 0 or 1",
    ]


VALUES = st.one_of(
    st.text("0123456789abcdefABCDEFx+- .", max_size=10),
    st.integers(-(10**26), 10**26).map(str),
    st.integers(0, 9).map(lambda n: f"{n:025}"),
    st.sampled_from(["0", "1", "01", "-0", "+1", "1.0", "9" * 18, "9" * 19, "-" + "9" * 18]),
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["label", "I1", "I13", "C1", "C26"]), st.lists(VALUES, min_size=1))
def test_criteo_a_value_is_malformed_or_not_whatever_else_its_block_holds(
    tmp_path_factory, name, values
):
    folder = tmp_path_factory.mktemp("values")
    alone = [read(folder, [line(**{name: value}), GOOD])[1].total for value in values]
    assert set(alone) <= {0, 1}
    rows, bad = read(folder, [line(**{name: value}) for value in values])
    assert (rows, bad.total) == (len(values) - sum(alone), sum(alone))


@pytest.mark.parametrize("number", ["0" * 24 + "5", "9" * 19, "-" + "1" * 25])
def test_criteo_integers_of_more_than_18_digits_are_malformed(tmp_path, number):
    for others in ([], [line(I1="x")]):
        _, bad = read(tmp_path, [line(I1=number), *others])
        assert f"I1 is '{number}', must be an integer of at most 18 digits" in str(bad)


def test_criteo_a_wrong_number_of_fields_is_reported_for_any_bytes(tmp_path):
    rows, bad = read(tmp_path, [GOOD, b"\xff\xfe\t\x80", GOOD, b"", b"a\rb", line(C1="\r"), GOOD])
    assert rows == 3
    assert bad.first == [
        "day_0.tsv:2: 2 fields instead of 40",
        "day_0.tsv:4: 1 fields instead of 40",
        "day_0.tsv:5: 1 fields instead of 40",
        "day_0.tsv:6: a carriage return within the line",
    ]


@pytest.mark.parametrize("name", ["day_0.tsv", "day_0.tsv.gz"])
@pytest.mark.parametrize("factor", [0.9, 1.1, 2, 20])
def test_criteo_a_line_of_any_length_is_one_malformed_line(tmp_path, monkeypatch, name, factor):
    monkeypatch.setattr(criteo_raw, "READ_BLOCK_BYTES", 1 << 14)
    long = "x" * int(factor * (1 << 14))
    for lines in ([GOOD, long, GOOD, "short", *[GOOD] * 200, long], [long]):
        rows, bad = read(tmp_path, lines, name)
        assert rows == lines.count(GOOD)
        wanted = [number for number, one in enumerate(lines, 1) if one != GOOD]
        assert [int(text.split(":")[1]) for text in bad.first] == wanted


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_criteo_lines_may_end_as_on_any_system(tmp_path, end, line_end):
    path, bad = tmp_path / "day_0.tsv", criteo_raw.BadLines("day_0.tsv")
    path.write_bytes((line_end.join([GOOD, "bad", GOOD]) + end).encode())
    assert sum(table.num_rows for table in criteo_raw.read_day(path, bad)) == 2
    assert bad.first == ["day_0.tsv:2: 1 fields instead of 40"]
