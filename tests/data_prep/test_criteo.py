"""Click logs: each line is checked, split by day and fitted as promised, whoever does the work."""

import contextlib
import gzip
import shutil

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep import criteo, csv_files
from data_prep.__main__ import main
from data_prep.csv_files import BadLines
from data_prep.output import DataPrepError, read_settings
from data_prep.synthetic_criteo import CATEGORICAL_NAMES, COLUMN_NAMES, INTEGER_NAMES, write_criteo
from tests.support.processes import free_ports, started, wait_for_port
from tests.support.workflow_rows import contents
from tutorlib.parquet import ParquetSource


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
    for name in CATEGORICAL_NAMES:
        assert train[name].between(0, metadata["cardinalities"][name] - 1).all()
    often = (lines["C7"].value_counts() >= 5).sum()  # of the training days only
    assert metadata["cardinalities"]["C7"] == often + 3  # padding, null, unknown
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
    "no folder": ({}, {}, "no day files"),
    "empty": ({"day_0.tsv": b""}, {}, r"day_0\.tsv is empty"),
    "same day": ({"day_0.tsv": b"", "day_0.gz": b""}, {}, "are the same day"),
    "cut": ({"day_0.gz": gzip.compress(b"0\t" * 9999)[:-9]}, {}, r"day_0\.gz cannot be unpacked"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_refused_by_name(tmp_path, case):
    files, options, message = REFUSED[case]
    (tmp_path / "raw").mkdir()
    for name, content in files.items():
        (tmp_path / "raw" / name).write_bytes(content)
    with pytest.raises(DataPrepError, match=message):
        criteo.prepare(tmp_path / "raw", tmp_path / "data", **options)
    assert not (tmp_path / "data/parquet").exists()


def test_the_only_day_is_split_by_time(raw, tmp_path):
    (tmp_path / "raw").mkdir()
    shutil.copy(raw / "day_1.tsv", tmp_path / "raw/day_1_head.tsv")
    metadata = criteo.prepare(tmp_path / "raw", tmp_path / "data", valid_share=0.15)
    assert (metadata["train_rows"], metadata["valid_rows"]) == (3_400, 600)
    have = pq.read_table(ParquetSource(tmp_path / "data/valid").files)["label"].to_numpy()
    np.testing.assert_array_equal(have, read_raw(raw / "day_1.tsv")["label"][3_400:])


def test_days_and_workers_that_cannot_be_had_are_refused(raw, prepared, tmp_path, capsys):
    output = tmp_path / "data"
    with pytest.raises(DataPrepError, match="leaves none to train on"):
        criteo.prepare(raw, output, valid_days=3)
    arguments = ["criteo", "--from", str(raw), "--output", str(output)]
    assert main([*arguments, "--workers", "0"]) == 1
    assert "--workers must be at least 1, got 0" in capsys.readouterr().err
    assert main([*arguments, "--dask", "tcp://127.0.0.1:1"]) == 1
    assert "--dask tcp://127.0.0.1:1: no scheduler answers there" in capsys.readouterr().err
    assert not (output / "train").exists()


# ---- malformed lines ---------------------------------------------------------------------------

GOOD = "0\t1" + "\t" * 12 + "\t0000000a" * 26
BAD = {
    3: (lambda f: f[:39], "39 fields instead of 40"),
    40: (lambda f: [*f, "more"], "41 fields instead of 40"),
    77: (lambda f: [f[0], "12x", *f[2:]], "I1 is '12x', must be an integer"),
    78: (lambda f: [f[0], "0x1F", *f[2:]], "I1 is '0x1F', must be an integer"),
    79: (lambda f: [f[0], "9" * 19, *f[2:]], "must be an integer of at most 18 digits"),
    100: (lambda f: ["2", *f[1:]], "label is '2', must be 0 or 1"),
    101: (lambda f: ["", *f[1:]], "label is '', must be 0 or 1"),
    500: (lambda f: [*f[:-1], "xyzw1234"], "C26 is 'xyzw1234', must be 8 hex digits"),
    501: (lambda f: [*f[:-1], "123"], "C26 is '123', must be 8 hex digits"),
    900: (lambda f: [*f[:14], "\xff\xfe", *f[15:]], "not encoded in utf-8"),
}


@pytest.mark.parametrize("policy", ["error", "skip"])
def test_malformed_lines_are_refused_or_reported_with_their_numbers(
    raw, tmp_path, monkeypatch, capsys, policy
):
    monkeypatch.setattr(csv_files, "BLOCK_CHARACTERS", 1 << 14)  # bad lines in many blocks
    lines = (raw / "day_0.tsv").read_text().splitlines()
    for number, (spoil, _) in BAD.items():
        lines[number - 1] = "\t".join(spoil(lines[number - 1].split("\t")))
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/day_0.tsv").write_bytes(("\n".join(lines) + "\n").encode("latin-1"))
    if policy == "error":
        with pytest.raises(DataPrepError, match=r"^10 malformed lines in day_0\.tsv") as raised:
            criteo.raw_to_parquet(tmp_path / "raw", tmp_path / "parquet")
        assert "--on-bad-lines skip" in str(raised.value)
        assert [p.name for p in tmp_path.iterdir()] == ["raw"]
        return
    metadata = criteo.raw_to_parquet(tmp_path / "raw", tmp_path / "parquet", on_bad_lines=policy)
    report = metadata["bad_lines"]["day_0"]
    assert report["total"] == len(BAD)
    for (number, (_, reason)), text in zip(BAD.items(), report["first"], strict=True):
        assert text.startswith(f"day_0.tsv:{number}: ")
        assert reason in text
    assert "skipped: 10 malformed lines" in capsys.readouterr().out
    have = pq.read_table(tmp_path / "parquet/day_0.parquet").to_pandas().astype(float)
    want = numbers_of(read_raw(raw / "day_0.tsv")).drop(index=[number - 1 for number in BAD])
    pd.testing.assert_frame_equal(have, want.reset_index(drop=True))
    assert read_settings(tmp_path / "parquet")["metadata"] == metadata


def read(folder, lines, name="day_0.tsv", end="\n"):
    """Return (rows, malformed lines) of a file of these lines."""
    path, bad = folder / name, BadLines(name)
    data = (end.join(lines) + end).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return sum(table.num_rows for table in criteo.read_day(path, bad)), bad


VALUES = st.one_of(
    st.text("0123456789abcdefABCDEFx+- .", max_size=10),
    st.integers(-(10**26), 10**26).map(str),
    st.sampled_from(["0", "1", "01", "-0", "+1", "1.0", "9" * 18, "9" * 19, "-" + "9" * 18]),
)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["label", "I1", "I13", "C1", "C26"]), st.lists(VALUES, min_size=1))
def test_a_value_is_malformed_or_not_whatever_else_its_block_holds(tmp_path_factory, name, values):
    fields = dict(zip(COLUMN_NAMES, GOOD.split("\t"), strict=True))
    lines = ["\t".join((fields | {name: value}).values()) for value in values]
    folder = tmp_path_factory.mktemp("values")
    alone = [read(folder, [line, GOOD])[1].total for line in lines]
    assert set(alone) <= {0, 1}
    rows, bad = read(folder, lines)
    assert (rows, bad.total) == (len(values) - sum(alone), sum(alone))


@pytest.mark.parametrize("name", ["day_0.tsv", "day_0.tsv.gz"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_long_line_is_malformed_and_one_longer_than_a_block_is_refused(
    tmp_path, monkeypatch, name, end
):
    monkeypatch.setattr(csv_files, "BLOCK_CHARACTERS", 1 << 14)
    lines = [GOOD, "x" * 14_000, GOOD, "short", *[GOOD] * 200, "y" * 14_000]
    rows, bad = read(tmp_path, lines, name, end)
    assert rows == lines.count(GOOD)
    assert [number for number, _ in bad.lines] == [2, 4, len(lines)]
    with pytest.raises(DataPrepError, match=rf"{name}:3: a line longer than 16,384 characters"):
        read(tmp_path, [GOOD, GOOD, "x" * 99_000, GOOD], name, end)


# ---- who works, and kills ----------------------------------------------------------------------


def contents_of(folder):
    """Return the files that a run makes, without the times in its settings."""
    made = [contents(folder / side) for side in ("parquet", "train", "valid", "workflow")]
    return [{n: data for n, data in side.items() if n != "_settings.json"} for side in made]


@contextlib.contextmanager
def cluster_of_commands(folder):
    """Give the address of a scheduler and of a worker with two processes, as on any machine."""
    (port,) = free_ports(1)
    address = f"tcp://127.0.0.1:{port}"
    scheduler = ["scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
    worker = ["worker", address, "--nworkers", "2", "--nthreads", "1", "--no-dashboard"]
    with (
        (folder / "dask.log").open("w") as log,
        started(["-m", "dask", *scheduler], log, folder),  # in another folder than the client
    ):
        wait_for_port(port)
        with started(["-m", "dask", *worker], log, folder):
            yield address


def test_the_files_are_the_same_whoever_works(raw, prepared, tmp_path):
    pytest.importorskip("distributed")
    want = contents_of(prepared[0])
    arguments = ["criteo", "--from", str(raw), "--freq-threshold", "5", "--output"]
    assert main([*arguments, str(tmp_path / "one"), "--workers", "1"]) == 0
    with cluster_of_commands(tmp_path) as address:
        assert main([*arguments, str(tmp_path / "dask"), "--dask", address]) == 0
    for name in ("one", "dask"):
        assert contents_of(tmp_path / name) == want
        made = {path.name for path in (tmp_path / name).iterdir()}
        assert made == {"parquet", "train", "valid", "workflow", "_settings.json"}
