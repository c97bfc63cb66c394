"""Raw files become training-ready Parquet: checked line by line, split and fitted as promised."""

import contextlib
import gzip
import json
import shutil
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep import criteo, movielens
from data_prep.__main__ import main
from data_prep.output import SETTINGS_FILE, DataPrepError, read_settings
from data_prep.synthetic_criteo import CATEGORICAL_NAMES, COLUMN_NAMES, INTEGER_NAMES, write_criteo
from data_prep.synthetic_movielens import write_movielens
from tests.support.processes import free_ports, started, wait_for_port
from tutorlib.parquet import ParquetSource


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("criteo") / "raw"
    write_criteo(folder, rows=12_000, days=3, seed=5)
    return folder


@pytest.fixture(scope="module")
def prepared(raw):
    output = raw.parent / "data"
    metadata = criteo.prepare(raw, output, freq_threshold=5)
    return output, metadata


def read_table(folder, columns=None):
    """Return the rows of train/ or valid/ in order."""
    files = sorted(folder.glob("part_*.parquet"))
    return pa.concat_tables(pq.read_table(file, columns=columns) for file in files)


def read_raw(path):
    kinds = dict.fromkeys(CATEGORICAL_NAMES, str)
    return pd.read_csv(path, sep="\t", header=None, names=COLUMN_NAMES, dtype=kinds)


def test_criteo_parquet_holds_the_values_of_the_lines(raw, prepared):
    for day in range(3):
        table = pq.read_table(prepared[0] / f"parquet/day_{day}.parquet")
        want = read_raw(raw / f"day_{day}.tsv")
        have = table.to_pandas()
        for name in ("label", *INTEGER_NAMES):
            np.testing.assert_array_equal(have[name], want[name].astype(float))
        for name in CATEGORICAL_NAMES:
            numbers = want[name].map(lambda text: int(text, 16), na_action="ignore")
            np.testing.assert_array_equal(have[name].astype(float), numbers.astype(float))


def test_criteo_splits_by_day_and_keeps_every_row_in_order(raw, prepared):
    output, metadata = prepared
    assert metadata["train_rows"] == 8_000
    assert metadata["valid_rows"] == 4_000
    for side, days in (("train", (0, 1)), ("valid", (2,))):
        labels = np.concatenate([read_raw(raw / f"day_{d}.tsv")["label"] for d in days])
        have = read_table(output / side, columns=["label"])["label"].to_numpy()
        np.testing.assert_array_equal(have, labels)


def test_criteo_is_ready_for_training(raw, prepared):
    output, metadata = prepared
    source = ParquetSource(output / "train/*.parquet")
    types = source.column_types
    assert {types[name] for name in INTEGER_NAMES} == {("float32", False)}
    assert {types[name] for name in CATEGORICAL_NAMES} == {("int32", False)}
    data = read_table(output / "train").to_pandas()
    counts = data[list(INTEGER_NAMES)]
    np.testing.assert_allclose(counts.mean(), 0, atol=1e-3)
    np.testing.assert_allclose(counts.std(), 1, atol=1e-2)
    for name in CATEGORICAL_NAMES:
        assert data[name].between(0, metadata["cardinalities"][name] - 1).all()
    # The counts by hand, from the raw lines.
    lines = pd.concat([read_raw(raw / f"day_{d}.tsv") for d in (0, 1)])
    want = np.log1p(lines["I2"].fillna(0).clip(lower=0)).to_numpy()
    np.testing.assert_allclose(data["I2"], (want - want.mean()) / want.std(), atol=1e-4)


def test_criteo_frequency_threshold_counts_training_days_only(raw, prepared):
    lines = pd.concat([read_raw(raw / f"day_{d}.tsv") for d in (0, 1)])
    often = (lines["C7"].value_counts() >= 5).sum()
    assert prepared[1]["cardinalities"]["C7"] == often + 3  # padding, null, unknown


def test_criteo_finished_stages_are_left_alone_and_other_settings_refused(raw, prepared, capsys):
    output, _ = prepared
    before = {p: p.stat().st_mtime_ns for p in output.rglob("*")}
    arguments = ["criteo", "--from", str(raw), "--output", str(output)]
    assert main([*arguments, "--freq-threshold", "5"]) == 0
    assert capsys.readouterr().out.count("left alone") == 2
    assert main([*arguments, "--freq-threshold", "6"]) == 1
    assert "freq_threshold was 5, is now 6" in capsys.readouterr().err
    assert {p: p.stat().st_mtime_ns for p in output.rglob("*")} == before


def test_criteo_changed_input_is_noticed(raw, prepared, tmp_path):
    shutil.copytree(raw, tmp_path / "raw")
    criteo.raw_to_parquet(tmp_path / "raw", tmp_path / "parquet")
    with open(tmp_path / "raw/day_0.tsv", "ab") as file:
        file.write(b"0" + b"\t" * 39 + b"\n")
    with pytest.raises(DataPrepError, match=r"files was .*--overwrite"):
        criteo.raw_to_parquet(tmp_path / "raw", tmp_path / "parquet")
    metadata = criteo.raw_to_parquet(tmp_path / "raw", tmp_path / "parquet", overwrite=True)
    assert metadata["rows"]["day_0"] == 4_001


def test_criteo_reads_gzip_and_the_published_names(raw, prepared, tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/day_0.gz").write_bytes(gzip.compress((raw / "day_0.tsv").read_bytes()))
    (tmp_path / "raw/day_10").write_bytes((raw / "day_2.tsv").read_bytes())
    (tmp_path / "raw/day_2.tsv.gz").write_bytes(gzip.compress((raw / "day_1.tsv").read_bytes()))
    (tmp_path / "raw/notes.txt").write_text("not a day")
    metadata = criteo.raw_to_parquet(tmp_path / "raw", tmp_path / "parquet")
    assert list(metadata["rows"]) == ["day_0", "day_2", "day_10"]  # 10 comes after 2
    for have, want in ((0, 0), (2, 1), (10, 2)):
        assert pq.read_table(tmp_path / f"parquet/day_{have}.parquet").equals(
            pq.read_table(prepared[0] / f"parquet/day_{want}.parquet")
        )


def test_criteo_a_cut_gzip_file_is_refused(raw, tmp_path):
    (tmp_path / "raw").mkdir()
    packed = gzip.compress((raw / "day_0.tsv").read_bytes())
    (tmp_path / "raw/day_0.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataPrepError, match=r"day_0\.gz cannot be unpacked"):
        criteo.raw_to_parquet(tmp_path / "raw", tmp_path / "parquet")
    assert not (tmp_path / "parquet").exists()


def test_criteo_one_day_is_split_by_time(raw, tmp_path):
    (tmp_path / "raw").mkdir()
    shutil.copy(raw / "day_1.tsv", tmp_path / "raw/day_1_head.tsv")
    metadata = criteo.prepare(tmp_path / "raw", tmp_path / "data", valid_share=0.15)
    assert (metadata["train_rows"], metadata["valid_rows"]) == (3_400, 600)
    labels = read_raw(raw / "day_1.tsv")["label"].to_numpy()
    have = read_table(tmp_path / "data/valid", columns=["label"])["label"].to_numpy()
    np.testing.assert_array_equal(have, labels[3_400:])


def contents(folder):
    """Return {name: bytes} of the files that a run makes, without the times in its settings."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for side in ("parquet", "train", "valid", "workflow")
        for path in sorted((folder / side).rglob("*"))
        if path.is_file() and path.name != "_settings.json"
    }


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


def test_criteo_gives_the_same_files_whoever_works(raw, prepared, tmp_path):
    pytest.importorskip("distributed")
    want = contents(prepared[0])
    arguments = ["criteo", "--from", str(raw), "--freq-threshold", "5", "--output"]
    assert main([*arguments, str(tmp_path / "one"), "--workers", "1"]) == 0
    with cluster_of_commands(tmp_path) as address:
        assert main([*arguments, str(tmp_path / "dask"), "--dask", address]) == 0
    for name in ("one", "dask"):
        assert contents(tmp_path / name) == want
        made = {path.name for path in (tmp_path / name).iterdir()}
        assert made == {"parquet", "train", "valid", "workflow", "_settings.json"}


def test_criteo_workers_that_cannot_be_had_are_refused(raw, tmp_path, capsys):
    arguments = ["criteo", "--from", str(raw), "--output", str(tmp_path / "data")]
    assert main([*arguments, "--workers", "0"]) == 1
    assert "--workers must be at least 1, got 0" in capsys.readouterr().err
    assert main([*arguments, "--dask", "tcp://127.0.0.1:1"]) == 1
    assert "--dask tcp://127.0.0.1:1: no scheduler answers there" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from data_prep import criteo

written = []
replace = Path.replace

def dying(path, target):
    written.append(target)
    if len(written) == 12:
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(path, target)

Path.replace = dying
criteo.etl(sys.argv[1], sys.argv[2], freq_threshold=5, row_group_rows=100, rows_per_file=1000)
"""


def test_criteo_a_killed_run_is_finished_by_the_next(prepared, tmp_path):
    parquet, output = prepared[0] / "parquet", tmp_path / "data"
    command = [sys.executable, "-c", KILLED, str(parquet), str(output)]
    assert subprocess.run(command, capture_output=True).returncode == -signal.SIGKILL
    partial = output / "tables.partial"
    before = {path.name: path.stat().st_mtime_ns for path in partial.glob("train/part_*")}
    assert 2 <= len(before) < 8
    assert not (output / "train").exists()
    metadata = criteo.etl(parquet, output, freq_threshold=5, row_group_rows=100, rows_per_file=1000)
    after = {path.name: path.stat().st_mtime_ns for path in output.glob("train/part_*")}
    assert before.items() <= after.items()
    assert metadata["train_rows"] == 8_000
    assert not partial.exists()


KILLED_WHILE_READING = """
import os, signal, sys
import pyarrow.parquet as pq
from data_prep import criteo_raw

class Dying(pq.ParquetWriter):
    written = 0

    def write_table(self, *arguments, **options):
        super().write_table(*arguments, **options)
        Dying.written += 1
        if Dying.written == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)

pq.ParquetWriter = Dying
criteo_raw.RAW_ROW_GROUP_ROWS, criteo_raw.READ_BLOCK_BYTES = 1000, 1 << 17
criteo_raw.raw_to_parquet(sys.argv[1], sys.argv[2], workers=1, overwrite=True)
"""


def test_criteo_reading_restarts_after_a_kill_and_mixes_no_files(raw, prepared, tmp_path):
    other, output = tmp_path / "raw", tmp_path / "parquet"
    write_criteo(other, rows=3_000, days=2, seed=6)  # the first days under the same names
    for row_groups in (1, 6, 11):
        command = [sys.executable, "-c", KILLED_WHILE_READING, raw, output, str(row_groups)]
        done = subprocess.run(command, capture_output=True)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert list((tmp_path / "parquet.partial").glob("day_*.parquet"))
        assert not output.exists()
    assert criteo.raw_to_parquet(other, output)["rows"] == {"day_0": 1500, "day_1": 1500}
    assert sorted(path.name for path in output.glob("day_*")) == ["day_0.parquet", "day_1.parquet"]
    want = read_raw(other / "day_1.tsv")["I2"].astype(float)
    np.testing.assert_array_equal(pq.read_table(output / "day_1.parquet")["I2"].to_pandas(), want)
    assert subprocess.run(command, capture_output=True).returncode == -signal.SIGKILL
    assert pq.read_metadata(output / "day_0.parquet").num_rows == 1500
    criteo.raw_to_parquet(raw, output, overwrite=True)
    for day in range(3):
        name = f"day_{day}.parquet"
        assert pq.read_table(output / name).equals(pq.read_table(prepared[0] / "parquet" / name))
    assert not (tmp_path / "parquet.partial").exists()


def test_criteo_needs_a_day_to_train_on(raw, prepared, tmp_path):
    with pytest.raises(DataPrepError, match="leaves none to train on"):
        criteo.etl(prepared[0] / "parquet", tmp_path / "data", valid_days=3)
    assert not (tmp_path / "data/train").exists()


def test_criteo_an_empty_file_or_folder_is_refused(tmp_path):
    (tmp_path / "raw").mkdir()
    with pytest.raises(DataPrepError, match="no day files"):
        criteo.raw_to_parquet(tmp_path / "raw", tmp_path / "parquet")
    (tmp_path / "raw/day_0.tsv").touch()
    with pytest.raises(DataPrepError, match="is empty"):
        criteo.raw_to_parquet(tmp_path / "raw", tmp_path / "parquet")


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    folder = tmp_path_factory.mktemp("movielens")
    write_movielens(folder / "raw", ratings=6_000, users=80, movies=300, seed=2)
    metadata = movielens.etl(folder / "raw", folder)
    return folder, metadata


def decoded(folder, side):
    """Return the rows of train/ or valid/ with raw ids and genre names, by the saved Workflow."""
    from tutorlib.workflow import Workflow

    workflow = Workflow.load(folder / "workflow")
    data = read_table(folder / side).to_pandas()
    for group in workflow.groups:
        for name in group.names:
            if name in ("userId", "movieId", "genres"):
                values = ["padding", "null", "unknown", *group.ops[0].vocabulary(name)]
                data[name] = data[name].map(
                    lambda x, v=values: v[x] if np.isscalar(x) else tuple(v[i] for i in x)
                )
    return data


def test_movielens_splits_eighty_to_twenty_and_keeps_every_rating(films):
    folder, metadata = films
    assert (metadata["train_rows"], metadata["valid_rows"]) == (4_800, 1_200)
    ratings = pd.read_csv(folder / "raw/ratings.csv")
    rows = pd.concat([decoded(folder, side) for side in ("train", "valid")])
    known = rows[rows["movieId"] != "unknown"]
    merged = known.merge(ratings, on=["userId", "movieId"], validate="one_to_one")
    assert len(merged) == len(known) > 0.95 * len(ratings)
    assert ((merged["rating_y"] > 3) == merged["rating_x"]).all()


def test_movielens_joins_the_genres_of_the_film(films):
    folder, _ = films
    movies = pd.read_csv(folder / "raw/movies.csv").set_index("movieId")["genres"]
    train = decoded(folder, "train")
    assert all(
        "|".join(genres) == movies[movie]
        for movie, genres in zip(train["movieId"], train["genres"], strict=True)
    )


def test_movielens_keeps_titles(films):
    folder, _ = films
    kept = pq.read_table(folder / "movies.parquet").to_pandas()
    movies = pd.read_csv(folder / "raw/movies.csv")
    assert kept["title"].tolist() == movies["title"].tolist()
    assert ["|".join(genres) for genres in kept["genres"]] == movies["genres"].tolist()


def test_movielens_training_rows_are_not_in_file_order(films):
    users = read_table(films[0] / "train", columns=["userId"])["userId"].to_numpy()
    assert (np.diff(users) != 0).mean() > 0.9


def test_movielens_has_types_labels_and_facts(films):
    folder, metadata = films
    types = ParquetSource(folder / "train/*.parquet").column_types
    assert types == {
        "userId": ("int32", False),
        "movieId": ("int32", False),
        "genres": ("int32", True),
        "rating": ("float32", False),
    }
    share = read_table(folder / "valid")["rating"].to_numpy().mean()
    assert share == pytest.approx(metadata["valid_positive_share"], abs=1e-5)
    assert 0.5 < metadata["valid_base_log_loss"] < 0.75


def test_movielens_time_split_takes_the_latest(films, tmp_path):
    raw = films[0] / "raw"
    arguments = ["movielens", "--from", str(raw), "--output", str(tmp_path), "--split", "time"]
    assert main([*arguments, "--valid-share", "0.1"]) == 0
    ratings = pd.read_csv(raw / "ratings.csv").sort_values("timestamp", kind="stable")
    latest = ratings.iloc[-600:].sort_index()  # validation rows keep the order of the file
    valid = read_table(tmp_path / "valid")["rating"].to_numpy()
    np.testing.assert_array_equal(valid, latest["rating"] > 3)


def test_movielens_data_without_raw_files_still_says_where_it_is_from(films, tmp_path):
    shutil.copytree(films[0] / "raw", tmp_path / "raw")  # other modification times, same origin
    movielens.etl(tmp_path / "raw", tmp_path)
    shutil.rmtree(tmp_path / "raw")
    source = movielens.source_of(tmp_path)
    assert (source["kind"], source["settings"]["users"]) == ("synthetic", 80)
    assert source["metadata"] == read_settings(films[0] / "raw")["metadata"]


def test_movielens_raw_files_are_found_after_a_move_or_an_error_says_what_to_run(films, tmp_path):
    shutil.copytree(films[0] / "raw", tmp_path / "made" / "raw")
    movielens.etl(tmp_path / "made" / "raw", tmp_path / "made")
    assert movielens.raw_folder(tmp_path / "made") == tmp_path / "made" / "raw"
    moved = tmp_path / "moved"
    (tmp_path / "made").rename(moved)
    assert movielens.raw_folder(moved) == moved / "raw"
    with open(moved / "raw" / "ratings.csv", "a") as file:
        file.write("1,2,3.0,4\n")  # no longer what was read
    for _ in range(2):
        with pytest.raises(DataPrepError, match=f"movielens --from .* --output {moved} --over"):
            movielens.raw_folder(moved)
        shutil.rmtree(moved / "raw", ignore_errors=True)


def test_movielens_files_of_which_nothing_is_known_are_not_called_real(films, tmp_path):
    (tmp_path / "mine").mkdir()
    for name in movielens.FILES:
        shutil.copy(films[0] / "raw" / name, tmp_path / "mine")
    movielens.etl(tmp_path / "mine", tmp_path / "data")
    assert movielens.source_of(tmp_path / "data")["kind"] == "local"
    record = tmp_path / "data" / SETTINGS_FILE
    made = json.loads(record.read_text())
    del made["metadata"]["source"]  # as before the source was recorded
    record.write_text(json.dumps(made))
    assert movielens.source_of(tmp_path / "data")["kind"] == "unknown"
    with pytest.raises(DataPrepError, match="holds no MovieLens data"):
        movielens.source_of(tmp_path)


def test_movielens_malformed_files_are_refused(films, tmp_path):
    for name, line in (("ratings.csv", "1,2,good,5\n"), ("movies.csv", "5,only two\n")):
        folder = tmp_path / name
        shutil.copytree(films[0] / "raw", folder)
        with open(folder / name, "a") as file:
            file.write(line)
        with pytest.raises(DataPrepError, match=f"{name} is malformed"):
            movielens.etl(folder, tmp_path / "data")
        (folder / name).unlink()
        with pytest.raises(DataPrepError, match=f"no {name}"):
            movielens.fetch(tmp_path / "data", source=folder)
    assert not list(tmp_path.glob("data/*"))


def test_movielens_a_film_without_an_entry_has_no_genres(tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/movies.csv").write_text('movieId,title,genres\n1,"A, The ""B""",Drama|War\n')
    rows = "".join(f"{u},{m},4.0,{u}\n" for u in range(1, 6) for m in (1, 2))
    (tmp_path / "raw/ratings.csv").write_text("userId,movieId,rating,timestamp\n" + rows)
    movielens.etl(tmp_path / "raw", tmp_path / "data")
    train = decoded(tmp_path / "data", "train")
    assert set(train.loc[train["movieId"] == 2, "genres"]) == {()}
    assert set(train.loc[train["movieId"] == 1, "genres"]) == {("Drama", "War")}
    assert pq.read_table(tmp_path / "data/movies.parquet")["title"].to_pylist() == ['A, The "B"']


def test_a_flipped_bit_in_any_parquet_file_is_found(prepared, films, tmp_path):
    paths = [path for folder in (prepared[0], films[0]) for path in folder.rglob("*.parquet")]
    folders = {path.parent.name for path in paths} | {path.name for path in paths}
    assert {"train", "valid", "workflow", "parquet", "movies.parquet"} <= folders
    for path in paths:
        data, leaf = bytearray(path.read_bytes()), pq.read_metadata(path).row_group(0).column(0)
        start = leaf.dictionary_page_offset or leaf.data_page_offset
        data[start + leaf.total_compressed_size - 1] ^= 4  # the last byte of the last page
        changed = tmp_path / "changed.parquet"
        changed.write_bytes(data)
        with pytest.raises(OSError, match="CRC checksum verification failed"):
            pq.read_table(changed, page_checksum_verification=True)
