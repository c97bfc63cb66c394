"""Synthetic ratings in the ml-25m schema, drawn from a seed in bounded memory.

The files are `ratings.csv` (userId, movieId, rating, timestamp; sorted by user, then film; each
pair once) and `movies.csv` (movieId, title, genres). They share these properties with MovieLens:
few users and films have very many ratings, ratings are 0.5 to 5 stars in steps of 0.5, genres are
lists joined by "|", and titles contain years, commas and quotes. All titles are invented.

People choose popular films, and among them those whose genres suit their taste. A rating is a
rounded sum: 3.5, the user's mean deviation, the quality of the film, the user's taste for its
genres, how well user and film match in four hidden traits, and noise. A model with embeddings of
user, film and genres can learn it. The best possible loss for the label "more than 3
stars" is stored in `_settings.json`.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
from tqdm import tqdm

from data_prep.synthetic import LabelStatistics, random_stream, write_once

GENRES = (
    "Action", "Adventure", "Animation", "Children", "Comedy", "Crime", "Documentary", "Drama",
    "Fantasy", "Film-Noir", "Horror", "IMAX", "Musical", "Mystery", "Romance", "Sci-Fi",
    "Thriller", "War", "Western",
)  # fmt: skip
NO_GENRES = "(no genres listed)"
_GENRE_SHARES = np.array(
    [12, 7, 5, 5, 27, 9, 9, 41, 5, 1, 10, 1, 2, 5, 12, 6, 14, 3, 2], float
)  # about, per hundred films
BLOCK_RATINGS = 262_144
_TRAITS = 4
_NOISE = 0.75
_PICKY = 5.0  # how much taste decides what people watch; 0: not at all
_FIRST_SECOND, _LAST_SECOND = 820_454_400, 1_574_294_400  # 1996-01-01 to 2019-11-21, UTC

_QUALITIES = (
    "Silent", "Crimson", "Broken", "Distant", "Golden", "Hidden", "Last", "Wild", "Electric",
    "Paper", "Frozen", "Restless", "Velvet", "Hollow", "Second", "Burning", "Quiet", "Lost",
    "Northern", "Iron", "Gentle", "Midnight", "Borrowed", "Crooked", "Salt", "Painted",
)  # fmt: skip
_THINGS = (
    "Harbor", "Lantern", "Orchard", "Circus", "Railway", "Letters", "Mountain", "Garden", "Engine",
    "Winter", "Mirror", "Island", "Detective", "Waltz", "Kingdom", "Station", "Promise", "Comet",
    "Bakery", "Lighthouse", "Carousel", "Signal", "Heist", "Sparrow", "Voyage", "Clockmaker",
)  # fmt: skip


def write_movielens(
    output: str | Path,
    *,
    ratings: int = 1_000_000,
    users: int = 6_500,
    movies: int = 5_000,
    seed: int = 0,
    overwrite: bool = False,
) -> dict[str, float]:
    """Write `ratings.csv` and `movies.csv`; return the statistics of the labels.

    Memory: about 200 bytes per user and per film, and a block of about 262,144 ratings.

    Args:
        output: output folder.
        ratings: ratings of all users together.
        users: number of users; each has at least one rating.
        movies: number of films.
        seed: 0 to 2**63 - 1.
        overwrite: replace an output made with other settings.

    Returns:
        As `LabelStatistics.result`; the label is 1 for more than 3 stars.

    Raises:
        ValueError: if a setting is out of range.
        DataPrepError: if `output` exists with other settings or other content.
    """
    most = users * (movies // 2)
    if users < 1 or movies < 2 or not users <= ratings <= most:
        raise ValueError(
            f"{ratings} ratings need users <= ratings <= users * (movies // 2) = {most}; "
            "pass other numbers of ratings, users or films"
        )
    settings = {"command": "synthetic movielens", "version": 2, "ratings": ratings,
                "users": users, "movies": movies, "seed": seed}  # fmt: skip

    def write(path: Path, bar: tqdm) -> LabelStatistics:
        films = Films(movies, seed)
        films.write(path / "movies.csv")
        return _write_ratings(path / "ratings.csv", films, ratings, users, seed, bar)

    return write_once(output, settings, write, unit="ratings", overwrite=overwrite)


class Films:
    """The films: ids, titles and genres, and what decides how they are rated and how often.

    Args:
        number: number of films.
        seed: 0 to 2**63 - 1.

    Attributes:
        movie_id: int64 [films], increasing with gaps.
        by_rank: int64 [films], indices of films, the most popular first.
        genres: bool [films, 19]; a row without True is "(no genres listed)".
        quality: float32 [films].
        traits: float32 [films, 4].
    """

    def __init__(self, number: int, seed: int) -> None:
        rng = random_stream(seed, 1)
        self.movie_id = np.cumsum(1 + rng.geometric(0.6, number)) - 1
        self.by_rank = rng.permutation(number)
        # Up to five distinct genres: those with the largest log(share) + Gumbel noise.
        how_many = rng.choice(6, number, p=[0.04, 0.36, 0.33, 0.18, 0.07, 0.02])
        keys = np.log(_GENRE_SHARES) + rng.gumbel(size=(number, len(GENRES)))
        self.genres = np.argsort(np.argsort(-keys, axis=1), axis=1) < how_many[:, None]
        self.quality = (0.45 * rng.standard_normal(number)).astype(np.float32)
        self.traits = rng.standard_normal((number, _TRAITS)).astype(np.float32)
        self._rng = rng

    def write(self, path: Path) -> None:
        """Write movies.csv: movieId, title, genres; titles are quoted where necessary."""
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["movieId", "title", "genres"])
            for number, movie in enumerate(self.movie_id):
                names = [GENRES[i] for i in np.flatnonzero(self.genres[number])]
                writer.writerow([movie, self._title(), "|".join(names) or NO_GENRES])

    def _title(self) -> str:
        first, second, form, year = self._rng.integers([26, 26, 20, 75])
        quality, thing = _QUALITIES[first], _THINGS[second]
        title = {
            0: f"{thing}, The",  # MovieLens moves the article to the end
            1: f"{quality} {thing}, The",
            2: f'"{quality}" {thing}',
            3: f"{thing}: A {quality} Story",
            4: f"{quality}, {quality} {thing}",
        }.get(int(form), f"{quality} {thing}")
        return f"{title} ({1945 + year})" if form != 5 else title


def ratings_per_user(ratings: int, users: int, movies: int, seed: int) -> np.ndarray:
    """Return the number of ratings of each user: int64 [users], heavy-tailed, with sum `ratings`.

    Example:
        >>> counts = ratings_per_user(10_000, 100, 400, seed=0)
        >>> int(counts.sum()), bool(counts.min() >= 1), bool(counts.max() <= 200)
        (10000, True, True)
    """
    rng = random_stream(seed, 2)
    weight = np.exp(1.2 * rng.standard_normal(users))
    most = movies // 2
    # At least 20 each, as in MovieLens, or fewer if there are not enough ratings.
    counts = np.full(users, max(1, min(20, most, ratings // users // 2)))
    while (left := ratings - int(counts.sum())) > 0:
        open_weight = np.where(counts < most, weight, 0.0)
        share = left * open_weight / open_weight.sum()
        more = np.minimum(np.floor(share).astype(np.int64), most - counts)
        if not more.any():  # fewer left than users: one each for the most active
            more[np.argsort(-open_weight, kind="stable")[:left]] = 1
        counts += more
    return counts


def _write_ratings(
    path: Path, films: Films, ratings: int, users: int, seed: int, bar: tqdm
) -> LabelStatistics:
    profiles = UserProfiles(users, random_stream(seed, 3))
    counts = ratings_per_user(ratings, users, len(films.movie_id), seed)
    ends = np.cumsum(counts)
    statistics = LabelStatistics()
    options = pa_csv.WriteOptions(include_header=False, quoting_style="none", batch_size=8_192)
    with open(path, "wb") as file:
        file.write(b"userId,movieId,rating,timestamp\n")
        start = block = 0
        while start < users:
            done = ends[start - 1] if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, done + BLOCK_RATINGS)))
            who = np.repeat(np.arange(start, stop), counts[start:stop])
            table = _draw_ratings(random_stream(seed, 4, block), films, profiles, who, statistics)
            pa_csv.write_csv(table, file, options)
            bar.update(len(who))
            start, block = stop, block + 1
    return statistics


class UserProfiles:
    """What decides how users rate.

    Args:
        users: number of users.
        rng: generator to draw from.

    Attributes:
        generosity: float32 [users], stars above or below the mean.
        taste: float32 [users, 19], stars per genre.
        traits: float32 [users, 4].
        joined: int64 [users], earliest time of a rating, seconds since 1970.
    """

    def __init__(self, users: int, rng: np.random.Generator) -> None:
        self.generosity = (0.35 * rng.standard_normal(users)).astype(np.float32)
        self.taste = (0.7 * rng.standard_normal((users, len(GENRES)))).astype(np.float32)
        self.traits = (0.2 * rng.standard_normal((users, _TRAITS))).astype(np.float32)
        self.joined = rng.integers(_FIRST_SECOND, _LAST_SECOND, users)

    def liking(self, who: np.ndarray, genres: np.ndarray) -> np.ndarray:
        """Return how much users like the genres of a film: mean taste, float32 [rows].

        Args:
            who: users, [rows].
            genres: of a film for each of them, bool [rows, 19].
        """
        return (self.taste[who] * genres).sum(axis=1) / np.maximum(1, genres.sum(axis=1))


def _draw_ratings(
    rng: np.random.Generator,
    films: Films,
    users: UserProfiles,
    who: np.ndarray,
    statistics: LabelStatistics,
) -> pa.Table:
    """Return a rating for each entry of `who` (sorted user indices), no film twice for a user."""
    film = _draw_films(rng, films, users, who)
    liking = users.liking(who, films.genres[film])
    matching = (users.traits[who] * films.traits[film]).sum(axis=1)
    expected = 3.5 + users.generosity[who] + films.quality[film] + liking + matching
    noisy = expected + _NOISE * rng.standard_normal(len(who))
    halves = np.clip(np.rint(2 * noisy), 1, 10).astype(np.int64)
    # Above 3 means 3.5 or more, that is `noisy` above 3.25.
    statistics.add((halves > 6).astype(np.int8), _normal_above((3.25 - expected) / _NOISE))
    seconds = users.joined[who] + (rng.exponential(90 * 86_400, len(who))).astype(np.int64)
    stars = pa.array([f"{half / 2:.1f}" for half in range(11)])
    return pa.table(
        {
            "userId": who + 1,
            "movieId": films.movie_id[film],
            "rating": stars.take(pa.array(halves)),
            "timestamp": np.minimum(seconds, _LAST_SECOND),
        }
    )


def _draw_films(
    rng: np.random.Generator, films: Films, users: UserProfiles, who: np.ndarray
) -> np.ndarray:
    """Return film indices for `who`, no film twice for a user.

    Popular films come more often, and films that suit the user's taste.
    """
    number = len(films.movie_id)
    chosen = np.empty(0, np.int64)  # user * number + film, sorted
    lacking = who
    first, wanted = who[0], np.bincount(who - who[0])
    while len(lacking):
        # A power of a uniform number: film k occurs about as often as k ** -0.55.
        rank = (rng.random(len(lacking)) ** 2.2 * number).astype(np.int64)
        film = films.by_rank[np.minimum(rank, number - 1)]
        watched = 1 / (1 + np.exp(-_PICKY * users.liking(lacking, films.genres[film])))
        wanted_too = rng.random(len(lacking)) < np.maximum(watched, 0.05)
        drawn = (lacking * number + film)[wanted_too]
        chosen = np.sort(np.concatenate([chosen, drawn]))  # 20 times as fast as np.union1d
        chosen = chosen[np.diff(chosen, prepend=-1) > 0]
        have = np.bincount(chosen // number - first, minlength=len(wanted))
        lacking = np.repeat(np.arange(len(wanted)), wanted - have) + first
    return chosen % number


def _normal_above(z: np.ndarray) -> np.ndarray:
    """Return the probability that a standard normal number exceeds z, clipped to (0, 1)."""
    p = np.array([0.5 * math.erfc(x / math.sqrt(2)) for x in z])
    return np.clip(p, 1e-9, 1 - 1e-9)
