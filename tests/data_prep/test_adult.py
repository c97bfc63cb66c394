"""UCI Adult, and synthetic rows in its format, become Parquet with the same values."""

from __future__ import annotations

import zipfile

import pyarrow.parquet as pq
import pytest

from data_prep import adult
from data_prep.__main__ import main
from data_prep.output import DataPrepError, read_settings
from data_prep.synthetic_adult import COLUMNS, FILES, write_adult


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adult") / "raw"
    write_adult(folder, rows=3_000)
    return folder


def fields(path):
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("|")]
    return [line.removesuffix(".").split(", ") for line in lines]


def test_synthetic_files_have_the_form_of_the_published_ones(raw):
    train, test = ((raw / name).read_text().splitlines() for name in FILES.values())
    assert test[0] == "|1x3 Cross validator"
    assert train[-1] == test[-1] == ""
    assert {line.rpartition(", ")[2] for line in train[:-1]} == {"<=50K", ">50K"}
    assert {line.rpartition(", ")[2] for line in test[1:-1]} == {"<=50K.", ">50K."}
    assert all(line.count(", ") == len(COLUMNS) - 1 for line in [*train[:-1], *test[1:-1]])
    assert (len(train) - 1, len(test) - 2) == (2_000, 1_000)


def test_synthetic_rows_depend_on_the_seed_alone_and_can_be_learned(raw, tmp_path):
    write_adult(tmp_path / "again", rows=3_000)
    write_adult(tmp_path / "other", rows=3_000, seed=1)
    for name in FILES.values():
        assert (tmp_path / "again" / name).read_bytes() == (raw / name).read_bytes()
        assert (tmp_path / "other" / name).read_bytes() != (raw / name).read_bytes()
    statistics = read_settings(raw)["metadata"]
    assert 0.2 < statistics["positive_share"] < 0.3
    assert 0.9 < statistics["bayes_auc"] < 0.96


@pytest.mark.parametrize("source", ["folder", "file", "zip"])
def test_parquet_has_the_values_of_the_files(raw, tmp_path, source, capsys):
    with zipfile.ZipFile(tmp_path / "adult.zip", "w") as archive:
        for name in FILES.values():
            archive.write(raw / name, name)
    given = {"folder": raw, "file": raw / "adult.data", "zip": tmp_path / "adult.zip"}[source]
    assert main(["adult", "--from", str(given), "--output", str(tmp_path / "out")]) == 0
    assert "CC BY 4.0" in capsys.readouterr().out
    for part, name in FILES.items():
        table = pq.read_table(tmp_path / "out" / part / "part_00000.parquet")
        assert table.column_names == list(COLUMNS)
        assert {str(table.schema.field(n).type) for n in COLUMNS} == {"int64", "string"}
        have = [["?" if v is None else str(v) for v in row.values()] for row in table.to_pylist()]
        assert have == fields(raw / name)


def test_a_place_without_the_files_is_refused_by_name(tmp_path):
    (tmp_path / "adult.data").write_text("")
    with pytest.raises(DataPrepError, match=r"no adult\.test there"):
        adult.fetch(tmp_path / "out", source=tmp_path)
    with pytest.raises(DataPrepError, match=r"nowhere: no adult\.data and no adult\.test there"):
        adult.fetch(tmp_path / "out", source=tmp_path / "nowhere")
