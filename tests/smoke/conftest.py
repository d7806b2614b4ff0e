"""Modules beside the tests, loaded as a user's script is."""

import sys
from pathlib import Path

import pytest

from reprokit.step.load import load_entrypoint


@pytest.fixture(scope="session")
def mutants():
    load_entrypoint("mutants.py:build", Path(__file__).parent)
    return sys.modules["mutants"]


@pytest.fixture(scope="session")
def plain():
    load_entrypoint("plain.py:build", Path(__file__).parent)
    return sys.modules["plain"]
