"""Damaged archives are refused by name; nothing is unpacked from them."""

import io
import shutil
import zipfile
from collections import namedtuple

import pytest

from data_prep.movielens import FILES, fetch
from data_prep.output import DataPrepError


def archive(compression=zipfile.ZIP_DEFLATED):
    """Return the bytes of an archive with both files, each of some blocks."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", compression) as file:
        for name in FILES:
            file.writestr(f"ml/{name}", "".join(f"{i},{i * i}\n" for i in range(300)))
    return packed.getvalue()


def refused(tmp_path, data):
    path = tmp_path / "ml.zip"
    path.write_bytes(data)
    with pytest.raises(DataPrepError, match=r"ml\.zip") as caught:
        fetch(tmp_path / "out", source=path)
    assert not (tmp_path / "out" / "raw").exists()
    return str(caught.value)


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damage_anywhere_is_refused_or_harmless(compression, tmp_path):
    data, words = archive(compression), set()
    for start in range(0, len(data), 13):
        path = tmp_path / "ml.zip"
        path.write_bytes(data[:start] + b"\xff\xff" + data[start + 2 :])
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        try:
            fetch(tmp_path / "out", source=path)
        except DataPrepError as error:
            words.add(str(error))
    assert words
    assert all("ml.zip" in word for word in words)


def test_an_archive_that_unpacks_to_more_than_the_disk_holds_is_refused(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(0, 0, 100))
    assert "are needed" in refused(tmp_path, archive())
