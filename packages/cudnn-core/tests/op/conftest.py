"""Puts this folder on the path, so that the tests can share `scratch_engines`, and gives them its places."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from scratch_engines import PLACES, Place


@pytest.fixture(params=PLACES)
def place(request):
    return Place(request.param)


@pytest.fixture
def host():
    return Place("numpy")


@pytest.fixture
def gpu():
    return Place("gpu")
