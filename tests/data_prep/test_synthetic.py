"""Synthetic data: the same from the same seed, in the real format, and worth learning from."""

import math

import numpy as np
import pandas as pd
import pytest

from data_prep.__main__ import main
from data_prep.output import read_settings
from data_prep.synthetic import LabelStatistics
from data_prep.synthetic_criteo import (
    CARDINALITIES,
    COLUMN_NAMES,
)

KINDS = {  # {kind: (arguments, share of label 1, least AUC of the best model)}
    "criteo": ("--rows 60000 --days 2", (0.2, 0.3), 0.78),
    "movielens": ("--ratings 30000 --users 300 --movies 900", (0.5, 0.75), 0.6),
    "nhot": ("--rows 60000", (0.25, 0.35), 0.78),
}


def draw(folder, kind, seed=3):
    command = ["synthetic", kind, *KINDS[kind][0].split(), "--seed", str(seed)]
    assert main([*command, "--output", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return {kind: draw(tmp_path_factory.mktemp("drawn") / kind, kind) for kind in KINDS}


def contents(folder):
    return [
        path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".tsv", ".csv", ".parquet")
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_data_depends_on_the_seed_alone_and_its_label_can_be_learned(drawn, tmp_path, kind, capsys):
    assert contents(draw(tmp_path / "again", kind)) == contents(drawn[kind])
    other = contents(draw(tmp_path / "other", kind, seed=4))
    assert all(one != two for one, two in zip(other, contents(drawn[kind]), strict=True))
    _, (least, most), auc = KINDS[kind]
    statistics = read_settings(drawn[kind])["metadata"]
    assert least < statistics["positive_share"] < most
    assert statistics["bayes_log_loss"] < statistics["base_log_loss"] - 0.1
    assert statistics["bayes_auc"] > auc
    capsys.readouterr()
    draw(drawn[kind], kind)
    assert "left alone" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ("nhot --rows 1", "leave no row"),
        ("nhot --scale 0", "scale must be"),
        ("nhot --seed -1", "seed must be"),
        ("criteo --rows 3", "at least one row per day"),
        ("criteo --scale 0", "scale must be"),
        ("movielens --ratings 1000 --users 10 --movies 50", "users <= ratings"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tmp_path, capsys, arguments, rule):
    assert main(["synthetic", *arguments.split(), "--output", str(tmp_path / "x")]) == 1
    error = capsys.readouterr().err
    assert rule in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def read_clicks(path):
    kinds = dict.fromkeys(COLUMN_NAMES[14:], str)
    return pd.read_csv(path, sep="\t", header=None, names=COLUMN_NAMES, dtype=kinds)


def test_click_logs_have_the_real_format_and_shape(drawn):
    lines = (drawn["criteo"] / "day_0.tsv").read_text().splitlines()
    assert len(lines) == 30_000
    for fields in (line.split("\t") for line in lines[:500]):
        assert len(fields) == 40
        assert all(f == "" or (len(f) == 8 and int(f, 16) < 2**32) for f in fields[14:])
    data = read_clicks(drawn["criteo"] / "day_0.tsv")
    missing = data.isna().mean()
    assert missing["label"] == missing["I8"] == missing["C2"] == 0
    assert 0.5 < missing["I4"] < 0.54
    assert (data["I3"].isna() == data["I13"].isna()).all()
    assert data["I2"].min() == -1
    assert data["I12"].mean() > 3 * data["I12"].median()  # heavy-tailed
    counts = data["C1"].value_counts(normalize=True)
    assert 0.02 < counts.iloc[0] < 0.2  # a few ids make up much,
    assert (data["C1"].value_counts() == 1).sum() > 2_000  # many turn up once
    small = {i: n for i, n in enumerate(CARDINALITIES) if n <= 100}
    assert {i: data[f"C{i + 1}"].nunique() for i in small} == small
    later = set(read_clicks(drawn["criteo"] / "day_1.tsv")["C20"].dropna())
    assert 0.1 < len(later - set(data["C20"])) / len(later) < 0.9  # new ids every day


def test_bayes_statistics_are_those_of_the_definition():
    rng = np.random.default_rng(0)
    p = np.round(rng.random(500), 3) * 0.9 + 0.05
    y = (rng.random(500) < p).astype(np.int8)
    statistics = LabelStatistics()
    for part in (slice(0, 100), slice(100, 500)):
        statistics.add(y[part], p[part])
    result, share = statistics.result(), y.mean()
    pairs = (p[y == 1][:, None] > p[y == 0]) + 0.5 * (p[y == 1][:, None] == p[y == 0])
    loss = -np.mean(np.where(y, np.log(p), np.log(1 - p)))
    base = -share * np.log(share) - (1 - share) * np.log(1 - share)
    assert math.isclose(result["bayes_auc"], pairs.mean(), abs_tol=2e-4)
    assert math.isclose(result["bayes_log_loss"], loss, abs_tol=1e-5)
    assert math.isclose(result["base_log_loss"], base, abs_tol=1e-5)
