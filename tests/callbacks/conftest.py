"""Rows that the tests of trainings which resume share."""

import pytest

from tests.support import resumable


@pytest.fixture(scope="session")
def columns():
    return resumable.columns()
