"""Click logs: each line is checked, split by day and fitted as promised."""

import gzip
import re
import shutil

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep import criteo
from data_prep.output import DataPrepError
from data_prep.synthetic_criteo import CATEGORICAL_NAMES, COLUMN_NAMES, INTEGER_NAMES, write_criteo
from tutorlib.parquet import ParquetSource
from tutorlib.workflow import Workflow


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("criteo") / "raw"
    write_criteo(folder, rows=12_000, days=3, seed=5)
    return folder


@pytest.fixture(scope="module")
def prepared(raw):
    output = raw.parent / "data"
    return output, criteo.prepare(raw, output, freq_threshold=5)


def read_raw(*paths):
    kinds = dict.fromkeys(CATEGORICAL_NAMES, str)
    return pd.concat(
        pd.read_csv(path, sep="\t", header=None, names=COLUMN_NAMES, dtype=kinds) for path in paths
    )


def numbers_of(raw_rows):
    """Return raw rows as the Parquet files hold them: hex digits as numbers."""
    hexes = {
        n: raw_rows[n].map(lambda text: int(text, 16), na_action="ignore")
        for n in CATEGORICAL_NAMES
    }
    return raw_rows.assign(**hexes).astype(float)


def test_parquet_holds_the_values_of_the_lines(raw, prepared):
    for day in range(3):
        have = pq.read_table(prepared[0] / f"parquet/day_{day}.parquet").to_pandas()
        want = numbers_of(read_raw(raw / f"day_{day}.tsv"))
        pd.testing.assert_frame_equal(have.astype(float), want)


def test_days_are_split_and_transformed_as_computed_by_hand(raw, prepared):
    output, metadata = prepared
    assert (metadata["train_rows"], metadata["valid_rows"]) == (8_000, 4_000)
    types = ParquetSource(output / "train").column_types
    assert {types[name] for name in INTEGER_NAMES} == {("float32", False)}
    assert {types[name] for name in CATEGORICAL_NAMES} == {("int32", False)}
    lines = read_raw(raw / "day_0.tsv", raw / "day_1.tsv")
    train = pq.read_table(ParquetSource(output / "train").files).to_pandas()
    np.testing.assert_array_equal(train["label"], lines["label"])
    want = np.log1p(lines["I2"].fillna(0).clip(lower=0)).to_numpy()
    np.testing.assert_allclose(train["I2"], (want - want.mean()) / want.std(), atol=1e-4)
    sizes = Workflow.load(output / "workflow").embedding_sizes()
    for name in CATEGORICAL_NAMES:
        assert train[name].between(0, sizes[name][0] - 1).all()
    often = (lines["C7"].value_counts() >= 5).sum()  # of the training days only
    assert sizes["C7"][0] == often + 3  # padding, null, unknown
    valid = pq.read_table(ParquetSource(output / "valid").files)["label"].to_numpy()
    np.testing.assert_array_equal(valid, read_raw(raw / "day_2.tsv")["label"])


def test_gzip_and_the_published_names_are_read(raw, prepared, tmp_path):
    source = tmp_path / "raw"
    source.mkdir()
    (source / "day_0.gz").write_bytes(gzip.compress((raw / "day_0.tsv").read_bytes()))
    (source / "day_10").write_bytes((raw / "day_2.tsv").read_bytes())
    (source / "day_2.tsv.gz").write_bytes(gzip.compress((raw / "day_1.tsv").read_bytes()))
    (source / "notes.txt").write_text("not a day")
    metadata = criteo.raw_to_parquet(source, tmp_path / "parquet")
    assert list(metadata["rows"]) == ["day_0", "day_2", "day_10"]  # 10 comes after 2
    for have, want in ((0, 0), (2, 1), (10, 2)):
        table = pq.read_table(tmp_path / f"parquet/day_{have}.parquet")
        assert table.equals(pq.read_table(prepared[0] / f"parquet/day_{want}.parquet"))


REFUSED = {
    "no folder": ({}, "no day files"),
    "empty": ({"day_0.tsv": b""}, r"day_0\.tsv is empty"),
    "same day": ({"day_0.tsv": b"", "day_0.gz": b""}, "are the same day"),
    "cut": ({"day_0.gz": gzip.compress(b"0\t" * 9999)[:-9]}, r"day_0\.gz cannot be read: .*GZIP"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_refused_by_name(tmp_path, case):
    files, message = REFUSED[case]
    (tmp_path / "raw").mkdir()
    for name, content in files.items():
        (tmp_path / "raw" / name).write_bytes(content)
    with pytest.raises(DataPrepError, match=message):
        criteo.prepare(tmp_path / "raw", tmp_path / "data")
    assert not (tmp_path / "data/parquet").exists()


def test_the_only_day_is_split_by_time(raw, tmp_path):
    (tmp_path / "raw").mkdir()
    shutil.copy(raw / "day_1.tsv", tmp_path / "raw/day_1_head.tsv")
    metadata = criteo.prepare(tmp_path / "raw", tmp_path / "data", freq_threshold=5)
    assert (metadata["train_rows"], metadata["valid_rows"]) == (3_200, 800)
    have = pq.read_table(ParquetSource(tmp_path / "data/valid").files)["label"].to_numpy()
    np.testing.assert_array_equal(have, read_raw(raw / "day_1.tsv")["label"][3_200:])


# ---- malformed lines ---------------------------------------------------------------------------

GOOD = "0\t1" + "\t" * 12 + "\t0000000a" * 26
BAD = {
    3: (lambda f: f[:39], "39 fields instead of 40"),
    40: (lambda f: [*f, "more"], "41 fields instead of 40"),
    77: (lambda f: [f[0], "12x", *f[2:]], "I1 is '12x', must be an integer"),
    79: (lambda f: [f[0], "9" * 19, *f[2:]], "must be an integer of at most 18 digits"),
    100: (lambda f: ["2", *f[1:]], "label is '2', must be 0 or 1"),
    500: (lambda f: [*f[:-1], "xyzw1234"], "C26 is 'xyzw1234', must be 8 hex digits"),
    900: (lambda f: [*f[:14], "ü", *f[15:]], "C1 is 'ü', must be 8 hex digits"),
}


def test_malformed_lines_are_refused_with_their_numbers(raw, tmp_path):
    lines = (raw / "day_0.tsv").read_text().splitlines()
    for number, (spoil, _) in BAD.items():
        lines[number - 1] = "\t".join(spoil(lines[number - 1].split("\t")))
    lines[2_000:2_000] = ["", *["short"] * 5]
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/day_0.tsv").write_text("\r\n".join(lines))
    with pytest.raises(
        DataPrepError, match=r"^12 malformed lines in day_0\.tsv: .*; \.\.\."
    ) as raised:
        criteo.raw_to_parquet(tmp_path / "raw", tmp_path / "parquet")
    first = str(raised.value).removesuffix("; ...").partition(": ")[2].split("; ")
    for (number, (_, reason)), text in zip(BAD.items(), first[: len(BAD)], strict=True):
        assert text.startswith(f"day_0.tsv:{number}: ")
        assert reason in text
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


@pytest.mark.parametrize("line", [GOOD.encode("utf-16"), b"x" * 3_000_000], ids=["bytes", "long"])
def test_a_line_that_is_no_text_is_refused_with_its_number(tmp_path, line):
    path = tmp_path / "day_0.tsv"
    path.write_bytes(b"\n".join([GOOD.encode(), line, GOOD.encode()]))
    with pytest.raises(DataPrepError, match=r"day_0\.tsv cannot be read: .* Line: 2"):
        [*criteo.read_day(path)]


VALUES = st.one_of(
    st.text("0123456789abcdefABCDEFx+- .", max_size=10),
    st.integers(-(10**26), 10**26).map(str),
    st.sampled_from(["0", "1", "01", "-0", "+1", "1.0", "9" * 18, "9" * 19, "-" + "9" * 18]),
)
NAMES = st.sampled_from(["label", "I1", "I13", "C1", "C26"])


FORMS = {"l": "[01]", "I": "(-?[0-9]{1,18})?", "C": "([0-9a-fA-F]{8})?"}  # by first letter


@settings(max_examples=40, deadline=None)
@given(NAMES, st.lists(VALUES, min_size=1, max_size=9))
def test_a_value_is_read_or_its_line_is_malformed(tmp_path_factory, name, values):
    fields = dict(zip(COLUMN_NAMES, GOOD.split("\t"), strict=True))
    path = tmp_path_factory.mktemp("values") / "day_0.tsv"
    path.write_text("".join("\t".join((fields | {name: v}).values()) + "\n" for v in values))
    wrong = [n for n, v in enumerate(values, start=1) if not re.fullmatch(FORMS[name[0]], v)]
    if not wrong:
        [table] = criteo.read_day(path)
        base = 16 if name[0] == "C" else 10
        assert table[name].to_pylist() == [int(v, base) if v else None for v in values]
        return
    with pytest.raises(DataPrepError) as raised:
        [*criteo.read_day(path)]
    assert [int(n) for n in re.findall(r"day_0\.tsv:(\d+):", str(raised.value))] == wrong
