"""Many processes on one key of one database are granted exactly the count, directly and through PgBouncer."""

import os
from collections.abc import Iterator

import pytest

from ratebound.limit import ALGORITHMS
from tests.databases import Postgres
from tests.hammers import Hammers, started_hammers
from tests.postgres.tables import fresh_url

PATIENT = "timeout=20"  # a busy machine must not look like a locked row


@pytest.fixture(scope="module")
def hammers(request: pytest.FixtureRequest, postgres: Postgres) -> Iterator[Hammers]:
    kind, way = request.param
    through = request.getfixturevalue("pgbouncer") if way == "through PgBouncer" else None
    url = fresh_url(postgres, through, PATIENT + ("&prepare=yes" if way == "prepared" else ""))
    with started_hammers(kind, url) as hammers:
        yield hammers


LONG = os.environ.get("RATEBOUND_LONG") == "1"
WAYS = [("threads", "directly"), ("tasks", "directly"), ("tasks", "through PgBouncer"), ("threads", "prepared")]
CASES = [
    (way, algorithm)
    for way in WAYS
    for algorithm in (ALGORITHMS if LONG or way[1] == "directly" else ("sliding-counter",))
]


@pytest.mark.parametrize(("hammers", "algorithm"), CASES, indirect=["hammers"], ids=str)
def test_four_processes_on_one_key_are_granted_exactly_the_count(algorithm: str, hammers: Hammers) -> None:
    hammers.are_granted_exactly_the_count(algorithm)
