"""Many processes on one key of one file are granted exactly the count."""

from collections.abc import Iterator

import pytest

from ratebound.limit import ALGORITHMS
from tests.hammers import Hammers, started_hammers

PATIENT = "timeout=20"  # a busy machine must not look like a locked file


@pytest.fixture(scope="module", params=["threads", "tasks"])
def hammers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hammers]:
    url = f"sqlite:///{tmp_path_factory.mktemp('grants')}/limits.db?{PATIENT}"
    with started_hammers(request.param, url) as hammers:
        yield hammers


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_four_processes_on_one_key_are_granted_exactly_the_count(algorithm: str, hammers: Hammers) -> None:
    hammers.are_granted_exactly_the_count(algorithm)
