"""Synthetic rows in the format of UCI Adult, drawn from a seed.

`adult.data` and `adult.test` are as the real files are: 15 columns without a header, a space after
each comma, "?" for a missing value, a comment in the first line of `adult.test`, a dot after its
labels, and a blank line at the end. The values are those of the census, drawn independently.

The label follows a logit: a number per value of each text column, age, hours, schooling and capital
gains. A model can learn it; the best possible AUC is stored in `_settings.json`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from data_prep.synthetic import LabelStatistics, draw_labels, id_effect, random_stream, write_once
from tutorlib.checks import check_integer

FILES = {"train": "adult.data", "valid": "adult.test"}
COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation",
    "relationship", "race", "sex", "capital_gain", "capital_loss", "hours_per_week",
    "native_country", "income",
)  # fmt: skip
EDUCATION = (
    "Preschool", "1st-4th", "5th-6th", "7th-8th", "9th", "10th", "11th", "12th", "HS-grad",
    "Some-college", "Assoc-voc", "Assoc-acdm", "Bachelors", "Masters", "Prof-school", "Doctorate",
)  # fmt: skip
TEXTS = {  # the most frequent value first
    "workclass": ("Private", "Self-emp-not-inc", "Local-gov", "?", "State-gov", "Self-emp-inc",
                  "Federal-gov", "Without-pay", "Never-worked"),
    "marital_status": ("Married-civ-spouse", "Never-married", "Divorced", "Separated", "Widowed",
                       "Married-spouse-absent", "Married-AF-spouse"),
    "occupation": ("Prof-specialty", "Craft-repair", "Exec-managerial", "Adm-clerical", "Sales",
                   "Other-service", "Machine-op-inspct", "?", "Transport-moving",
                   "Handlers-cleaners", "Farming-fishing", "Tech-support", "Protective-serv",
                   "Priv-house-serv", "Armed-Forces"),
    "relationship": ("Husband", "Not-in-family", "Own-child", "Unmarried", "Wife",
                     "Other-relative"),
    "race": ("White", "Black", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other"),
    "sex": ("Male", "Female"),
    "native_country": ("United-States", "Mexico", "?", "Philippines", "Germany", "Canada",
                       "Puerto-Rico", "El-Salvador", "India", "Cuba", "England", "Jamaica"),
}  # fmt: skip
_SKEW = {"native_country": 3.5, "race": 2.5}  # others 1.5: value k has the weight 1 / (k + 1)**skew
_UNRELATED = ("race", "sex", "native_country")  # no such bias is taught


def write_adult(
    output: str | Path, *, rows: int = 48_842, seed: int = 0, overwrite: bool = False
) -> dict[str, float]:
    """Write `adult.data` and `adult.test` into a folder; return the statistics of the labels.

    Args:
        output: output folder.
        rows: rows of both files together, a third of them in `adult.test`.
        seed: 0 to 2**63 - 1.
        overwrite: replace an output made with other settings.

    Returns:
        As `LabelStatistics.result`, of the rows of `adult.test`.

    Raises:
        ValueError: if a setting is out of range.
        DataPrepError: if `output` exists with other settings or other content.
    """
    check_integer("rows", rows, at_least=2)
    settings = {"command": "synthetic adult", "version": 1, "rows": rows, "seed": seed}
    of_test = max(1, round(rows / 3))
    counts = (rows - of_test, of_test)

    def write(path: Path, bar: tqdm) -> LabelStatistics:
        for part, (name, count) in enumerate(zip(FILES.values(), counts, strict=True)):
            statistics = LabelStatistics()
            columns = _draw(random_stream(seed, part), count, statistics)
            dot = "." * part
            lines = (f"{', '.join(map(str, row))}{dot}\n" for row in zip(*columns, strict=True))
            with open(path / name, "w", encoding="ascii") as file:
                file.write("|1x3 Cross validator\n" * part)
                file.writelines(lines)
                file.write("\n")
            bar.update(count)
        return statistics

    return write_once(output, settings, write, overwrite=overwrite)


def _draw(rng: np.random.Generator, rows: int, statistics: LabelStatistics) -> list[Any]:
    """Return the 15 columns of some rows."""
    values: dict[str, Any] = {}
    logit = np.full(rows, -2.6)
    for place, (name, texts) in enumerate(TEXTS.items()):
        weights = 1 / np.arange(1, len(texts) + 1) ** _SKEW.get(name, 1.5)
        drawn = rng.choice(len(texts), rows, p=weights / weights.sum())
        values[name] = np.array(texts)[drawn]
        if name not in _UNRELATED:
            logit += 1.2 * id_effect(drawn, place)
    schooling = np.clip(np.rint(rng.normal(10, 2.6, rows)), 1, 16).astype(np.int64)
    age = np.clip(17 + rng.gamma(2.6, 8.4, rows), 17, 90).astype(np.int64)
    hours = np.clip(np.rint(rng.normal(40, 11, rows)), 1, 99).astype(np.int64)
    gain = np.where(rng.random(rows) < 0.08, rng.integers(100, 100_000, rows), 0)
    loss = np.where(rng.random(rows) < 0.05, rng.integers(100, 4_400, rows), 0)
    logit += 0.4 * (schooling - 10) - ((age - 48) / 13) ** 2 + 0.04 * (hours - 40)
    logit += 0.4 * np.log1p(gain / 1000) + 0.6 * np.log1p(loss / 1000)
    label, probability = draw_labels(rng, logit)
    statistics.add(label, probability)
    values |= {"age": age, "fnlwgt": rng.integers(12_285, 1_484_706, rows),
               "education": np.array(EDUCATION)[schooling - 1], "education_num": schooling,
               "capital_gain": gain, "capital_loss": loss, "hours_per_week": hours,
               "income": np.array(["<=50K", ">50K"])[label]}  # fmt: skip
    return [values[name] for name in COLUMNS]
