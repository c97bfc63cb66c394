"""Files in the formats of Criteo and MovieLens go the whole way: ETL, loader, an epoch of a model.

The rows are written here, in the formats of the published files: no header, empty fields and
negative counts in one, CRLF, quoted titles and an archive with other files in the other.
"""

from __future__ import annotations

import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep import criteo, movielens
from data_prep.__main__ import main
from tutorlib.columns import Chunk
from tutorlib.loader import KerasSequenceLoader
from tutorlib.models import DLRM, movielens_network
from tutorlib.parquet import ParquetSource
from tutorlib.workflow import Workflow

COUNTS = [f"I{place}" for place in range(1, 14)]
WORDS = [f"C{place}" for place in range(1, 27)]
UNKNOWN = 2

# ------------------------------------------------------------------------------------ the formats


def write_criteo_day(path, rows, seed, words_from=0):
    """Write tab-separated lines: label, 13 counts, 26 words of 8 hex digits; any may be empty."""
    generator = np.random.default_rng(seed)
    lines = []
    for _ in range(rows):
        counts = generator.geometric(0.05, 13) - 3  # from -2 on
        words = generator.geometric(0.2, 26) * 2_654_435 + words_from
        fields = [f"{n}" for n in counts] + [f"{word:08x}" for word in words]
        empty = generator.random(39) < 0.2
        fields = ["" if gone else field for field, gone in zip(fields, empty, strict=True)]
        lines.append("\t".join([f"{generator.integers(0, 2)}", *fields]))
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="ascii")


MOVIES = (
    "movieId,title,genres\r\n"
    "1,Toy Story (1995),Adventure|Animation|Children|Comedy|Fantasy\r\n"
    '29,"City of Lost Children, The (Cité des enfants perdus, La) (1995)",Drama|Sci-Fi\r\n'
    '40697,"""Great Performances"" Cats (1998)",Musical\r\n'
    "193609,Andrew Dice Clay: Dice Rules (1991),(no genres listed)\r\n"
)
FILMS = [1, 29, 40697, 193609]


def movielens_archive(folder, users=60):
    """Write a zip archive as GroupLens publishes it; return it and the number of ratings."""
    generator = np.random.default_rng(0)
    lines = ["userId,movieId,rating,timestamp"]
    for user in range(1, users + 1):
        start = generator.integers(8e8, 1.5e9)
        for film in generator.permutation(FILMS)[: generator.integers(2, 5)]:
            stars = generator.integers(1, 11) / 2
            lines.append(f"{user},{film},{stars},{start + generator.integers(86_400)}")
    archive = folder / "ml-latest-small.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("ml-latest-small/movies.csv", MOVIES)
        file.writestr("ml-latest-small/ratings.csv", "\r\n".join(lines) + "\r\n")
        file.writestr("ml-latest-small/links.csv", "movieId,imdbId,tmdbId\r\n1,0114709,862\r\n")
        file.writestr("ml-latest-small/README.txt", "Summary\r\n")
    return archive, len(lines) - 1


# ---------------------------------------------------------------------------------- the whole way


def train_an_epoch(home, make_model, label, **options):
    """Train on `home/train` and evaluate on `home/valid`, as the lessons do; return the model."""
    schema = Workflow.load(home / "workflow").output_schema
    options = {"label_names": [label], "schema": schema, **options}
    train = KerasSequenceLoader(home / "train", 64, **options)
    valid = KerasSequenceLoader(home / "valid", 64, shuffle=False, **options)
    model = make_model(schema)
    model.compile("adam", "binary_crossentropy")
    history = model.fit(train, validation_data=valid, epochs=1, verbose=0).history
    assert np.isfinite([history["loss"], history["val_loss"]]).all()
    return model


def unknown_shares(folder, names):
    """Return the share of id 2 in each column of Parquet files, lists looked into."""
    shares = {}
    for name in names:
        column = pq.read_table(ParquetSource(folder).files, columns=[name])[name].combine_chunks()
        ids = column.flatten() if pa.types.is_nested(column.type) else column
        shares[name] = float((np.asarray(ids) == UNKNOWN).mean())
    return shares


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    """The head of a day of click logs, made ready: its folder and its one-epoch model."""
    folder = tmp_path_factory.mktemp("criteo")
    write_criteo_day(folder / "raw/day_0_head.tsv", 1_000, seed=0)
    arguments = ["criteo", "--from", str(folder / "raw"), "--output", str(folder / "data")]
    assert main([*arguments, "--freq-threshold", "3"]) == 0
    return folder / "data", train_an_epoch(folder / "data", small_dlrm, "label")


def small_dlrm(schema):
    return DLRM(schema, 4, [8, 4], [8])


def test_the_head_of_a_criteo_day_is_split_by_time_and_trained_on(head):
    data, _ = head
    train, valid = ParquetSource(data / "train"), ParquetSource(data / "valid")
    assert (train.num_rows, valid.num_rows) == (800, 200)
    assert set(train.column_types) == {"label", *COUNTS, *WORDS}
    numbers = pq.read_table(train.files, columns=COUNTS).to_pandas()
    assert not numbers.isna().any().any()
    np.testing.assert_allclose(numbers.mean(), 0, atol=1e-4)


def test_words_that_the_head_does_not_have_get_the_unknown_id_and_are_predicted_for(head, tmp_path):
    data, model = head
    workflow = Workflow.load(data / "workflow")
    write_criteo_day(tmp_path / "raw/day_1.tsv", 300, seed=1, words_from=7)
    criteo.raw_to_parquet(tmp_path / "raw", tmp_path / "parquet")
    day = ParquetSource(tmp_path / "parquet/day_1.parquet")
    workflow.transform_to_parquet(day, tmp_path / "ready")
    nulls = pq.read_table(day.files, columns=WORDS).to_pandas().isna().mean()
    shares = unknown_shares(tmp_path / "ready", WORDS)
    assert shares == pytest.approx((1 - nulls).to_dict())  # what is not empty is unknown
    options = {"label_names": ["label"], "shuffle": False}
    offline = KerasSequenceLoader(
        tmp_path / "ready", 100, schema=workflow.output_schema, check_ids=True, **options
    )
    online = KerasSequenceLoader(tmp_path / "parquet/*.parquet", 100, **options).map(workflow)
    predictions = [model.predict(loader, verbose=0) for loader in (offline, online)]
    np.testing.assert_array_equal(*predictions)
    assert predictions[0].shape == (300, 1)
    assert np.isfinite(predictions[0]).all()


def test_words_of_the_head_keep_their_ids_among_unknown_ones(head, tmp_path):
    data, _ = head
    workflow = Workflow.load(data / "workflow")
    known = workflow.groups[1].ops[0].vocabulary("C5")
    raw = pq.read_table(data / "parquet/day_0_head.parquet").slice(0, 4)
    words = pa.array([int(known[1]), 5, None, int(known[0])], raw.schema.field("C5").type)
    changed = raw.set_column(raw.column_names.index("C5"), "C5", words)
    assert workflow.transform(Chunk.from_arrow(changed))["C5"].tolist() == [4, UNKNOWN, 1, 3]


@pytest.mark.parametrize("split", ["random", "time"])
def test_a_movielens_archive_is_joined_split_and_trained_on(tmp_path, split):
    archive, ratings = movielens_archive(tmp_path)
    data = tmp_path / "data"
    arguments = ["movielens", "--from", str(archive), "--output", str(data), "--split", split]
    assert main(arguments) == 0
    rows = [ParquetSource(data / side).num_rows for side in ("train", "valid")]
    assert rows == [ratings - round(ratings / 5), round(ratings / 5)]
    genres = set(Workflow.load(data / "workflow").groups[1].ops[0].vocabulary("genres"))
    lists = [line.rpartition(",")[2].split("|") for line in MOVIES.splitlines()[1:]]
    assert genres == {name for names in lists for name in names}
    titles = pq.read_table(data / "movies.parquet")["title"].to_pylist()
    assert titles[1:3] == [
        "City of Lost Children, The (Cité des enfants perdus, La) (1995)",
        '"Great Performances" Cats (1998)',
    ]
    train_an_epoch(data, lambda schema: movielens_network(schema, [8]), "rating")


def test_users_films_and_genres_that_training_does_not_have_get_the_unknown_id(tmp_path):
    archive, _ = movielens_archive(tmp_path)
    data = tmp_path / "data"
    source = movielens.fetch(data, source=archive)
    movielens.etl(source, data)
    model = train_an_epoch(data, lambda schema: movielens_network(schema, [8]), "rating")
    workflow = Workflow.load(data / "workflow")
    others = pa.table(
        {
            "userId": pa.array([10**9, 1], pa.int64()),
            "movieId": pa.array([29, 5], pa.int64()),
            "genres": [["Drama", "Space Opera"], []],
            "rating": pa.array([1, 0], pa.float32()),
        }
    )
    workflow.transform_to_parquet(others, tmp_path / "others")
    ids = ParquetSource(tmp_path / "others").read(0)
    assert (ids["userId"].tolist()[0], ids["movieId"].tolist()[1]) == (UNKNOWN, UNKNOWN)
    (drama, opera), nothing = ids["genres"].tolist()
    assert drama > UNKNOWN
    assert (opera, nothing) == (UNKNOWN, [])
    loader = KerasSequenceLoader(
        tmp_path / "others", 2, label_names=["rating"], schema=workflow.output_schema, shuffle=False
    )
    assert np.isfinite(model.evaluate(loader, verbose=0))


def test_among_the_latest_ratings_are_strangers_who_share_the_unknown_id(tmp_path):
    archive, _ = movielens_archive(tmp_path)
    data = tmp_path / "data"
    movielens.etl(movielens.fetch(data, source=archive), data, split="time")
    shares = unknown_shares(data / "valid", ["userId", "movieId", "genres"])
    assert shares["userId"] > 0.9  # a user of this archive rates on one day
    assert shares["movieId"] == shares["genres"] == 0
