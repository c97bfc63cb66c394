"""Rows that the tests of trainings which resume share."""

import pytest

from tests.support.resumable import write_rows


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("data") / "train")
