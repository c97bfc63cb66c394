"""Synthetic rows in the format of UCI Adult, drawn from a seed.

`adult.data` and `adult.test` are as the real files are: 15 columns without a header, a space after
each comma, "?" for a missing value, a comment in the first line of `adult.test`, a dot after its
labels, and a blank line at the end.

Columns are related as one expects of people: schooling decides the occupation, the occupation the
hours; the young are students rather than managers; husbands are married men; the occupation and the
employer are missing together. The label follows a logit of schooling, occupation, employer, hours,
age, marriage and capital gains. Race, sex and country change neither the label nor the work. A
model can learn it; the best possible AUC is stored in `_settings.json`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from data_prep.synthetic import LabelStatistics, draw_labels, random_stream, write_once
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
SCHOOLING = np.array([2, 5, 10, 20, 16, 28, 36, 13, 323, 224, 42, 33, 164, 53, 18, 13], float)
GROWN_UP = np.array([17] * 9 + [18, 20, 20, 21, 24, 26, 28])  # least age with such an education
OCCUPATIONS = {  # {name: (share, usual education_num, usual hours, added to the logit)}
    "Prof-specialty": (127, 13, 42, 0.7), "Craft-repair": (126, 9, 42, 0.0),
    "Exec-managerial": (125, 12, 46, 1.2), "Adm-clerical": (116, 10, 38, -0.2),
    "Sales": (112, 10.5, 41, 0.3), "Other-service": (101, 8.5, 34, -1.3),
    "Machine-op-inspct": (61, 8, 41, -0.5), "?": (57, 9, 32, -0.8),
    "Transport-moving": (49, 8.5, 45, -0.2), "Handlers-cleaners": (42, 8, 37, -1.0),
    "Farming-fishing": (31, 8, 47, -1.2), "Tech-support": (29, 11, 39, 0.6),
    "Protective-serv": (20, 10, 43, 0.5), "Priv-house-serv": (5, 7, 32, -2.0),
    "Armed-Forces": (1, 10, 42, 0.0),
}  # fmt: skip
WORKCLASSES = {  # {name: (share, added to the logit, added to the hours)}
    "Private": (740, 0.0, 0), "Self-emp-not-inc": (83, -0.3, 4), "Local-gov": (68, 0.0, 0),
    "State-gov": (42, -0.1, -1), "Self-emp-inc": (36, 0.8, 6), "Federal-gov": (30, 0.5, 0),
    "Without-pay": (1, -4.0, -5),
}  # fmt: skip
MISSING_WORKCLASS = ("?", "Never-worked")  # of those without an occupation
RACES = {"White": 854, "Black": 96, "Asian-Pac-Islander": 32, "Amer-Indian-Eskimo": 10, "Other": 8}
COUNTRIES = {
    "United-States": 906, "Mexico": 20, "?": 18, "Philippines": 8, "Germany": 7, "Canada": 7,
    "Puerto-Rico": 6, "El-Salvador": 6, "India": 6, "Cuba": 6, "England": 5, "Jamaica": 5,
}  # fmt: skip
MARRIED = ("Married-civ-spouse", "Married-AF-spouse")


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
    settings = {"command": "synthetic adult", "version": 2, "rows": rows, "seed": seed}
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
    age = np.clip(17 + rng.gamma(2.6, 8.4, rows), 17, 90).astype(np.int64)
    schooling = 1 + _pick(rng, SCHOOLING * (GROWN_UP <= age[:, None]))  # education_num
    share, usual, usual_hours, pay = np.array(list(OCCUPATIONS.values())).T
    fit = np.exp(-(((schooling[:, None] - usual) / 2.2) ** 2))  # of each occupation
    fit[:, list(OCCUPATIONS).index("Exec-managerial")] *= np.clip((age - 17) / 12, 0.05, 1)
    place = _pick(rng, share * fit)
    occupation = np.array(list(OCCUPATIONS))[place]
    work_share, work_pay, work_hours = np.array(list(WORKCLASSES.values())).T
    work = _pick(rng, np.tile(work_share, (rows, 1)))
    workclass = np.array(list(WORKCLASSES))[work]
    unknown = occupation == "?"
    workclass[unknown] = rng.choice(MISSING_WORKCLASS, unknown.sum(), p=[0.995, 0.005])
    hours = rng.normal(usual_hours[place] + work_hours[work], 9)
    hours = np.where(rng.random(rows) < 0.3, 40, hours) - 12 * (age < 22)  # many work 40
    hours = np.clip(np.rint(hours), 1, 99).astype(np.int64)
    sex = rng.choice(["Male", "Female"], rows, p=[0.67, 0.33])
    marital_status, relationship = _household(rng, age, sex)
    gain, loss = _capital(rng, age, schooling)
    logit = -2.2 + 0.4 * (schooling - 10) + pay[place] + 0.05 * np.clip(hours - 40, -20, 20)
    logit += np.where(unknown, 0, work_pay[work]) - ((age - 48) / 16) ** 2
    logit += 2.0 * np.isin(marital_status, MARRIED) + 2.0 * np.log1p(gain / 3000) + 1.0 * (loss > 0)
    label, probability = draw_labels(rng, logit)
    statistics.add(label, probability)
    values = {"age": age, "workclass": workclass, "fnlwgt": rng.integers(12_285, 500_000, rows),
              "education": np.array(EDUCATION)[schooling - 1], "education_num": schooling,
              "marital_status": marital_status, "occupation": occupation,
              "relationship": relationship, "race": _drawn(rng, RACES, rows), "sex": sex,
              "capital_gain": gain, "capital_loss": loss, "hours_per_week": hours,
              "native_country": _drawn(rng, COUNTRIES, rows),
              "income": np.array(["<=50K", ">50K"])[label]}  # fmt: skip
    return [values[name] for name in COLUMNS]


def _household(
    rng: np.random.Generator, age: np.ndarray, sex: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the marital status, and what a person is to the others of the household, text [rows].

    The younger, the more have never married, and of these the more live with their parents.
    """
    single = 1 / (1 + np.exp((age - 28) / 4))
    widowed = np.clip((age - 45) / 100, 0.005, 0.4)
    others = 1 - single
    status = {"Never-married": single, "Widowed": others * widowed,
              "Married-civ-spouse": 0.7 * others, "Divorced": 0.2 * others,
              "Separated": 0.045 * others, "Married-spouse-absent": 0.02 * others,
              "Married-AF-spouse": 0.001 * others}  # fmt: skip
    marital_status = np.array(list(status))[_pick(rng, np.stack(list(status.values()), axis=1))]
    married, never = np.isin(marital_status, MARRIED), marital_status == "Never-married"
    child = np.where(never, 2.5 / (1 + np.exp((age - 24) / 3)), 0.03)
    alone: dict[str, Any] = {
        "Not-in-family": 0.6,
        "Own-child": child,
        "Unmarried": 0.28,
        "Other-relative": 0.06,
    }
    weights = np.stack([part * np.ones(len(age)) for part in alone.values()], axis=1)
    relationship = np.array(list(alone))[_pick(rng, weights)]
    spouse = np.where(sex == "Male", "Husband", "Wife")
    return marital_status, np.where(married, spouse, relationship)


def _capital(
    rng: np.random.Generator, age: np.ndarray, schooling: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return capital gains and losses, int64 [rows]: mostly 0, never both, with age and schooling.

    The largest gain is 99,999, as in the census, which cuts larger ones off.
    """
    chance = 0.12 * np.clip((age - 16) / 30, 0.1, 1.5) * np.clip(schooling / 10, 0.3, 1.5)
    drawn, rows = rng.random(len(age)), len(age)
    gain = np.minimum(rng.lognormal(8.7, 1.0, rows), 99_999)
    loss = np.clip(rng.normal(1_870, 360, rows), 155, 4_356)
    gains, losses = drawn < 0.65 * chance, (0.65 * chance <= drawn) & (drawn < chance)
    return np.where(gains, gain, 0).astype(np.int64), np.where(losses, loss, 0).astype(np.int64)


def _drawn(rng: np.random.Generator, shares: dict[str, int], rows: int) -> np.ndarray:
    """Return texts, each as often as its share: text [rows]."""
    weights = np.array(list(shares.values()), float)
    return rng.choice(list(shares), rows, p=weights / weights.sum())


def _pick(rng: np.random.Generator, weights: np.ndarray) -> np.ndarray:
    """Return a column for each row of weights [rows, columns], drawn by them: int64 [rows]."""
    ends = np.cumsum(weights, axis=1)
    return (rng.random((len(ends), 1)) * ends[:, -1:] >= ends).sum(axis=1)
