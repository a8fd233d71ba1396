"""Claims about the guard hold for each of its kinds: calls made directly, in threads and in tasks."""

from collections.abc import Iterator
from typing import Any

import pytest

from ratebound.testing import FakeClock
from tests.unit.faulty import Make, Subject


@pytest.fixture(params=["inline", "threads", "tasks"])
def make(request: pytest.FixtureRequest, clock: FakeClock) -> Iterator[Make]:
    made: list[Subject] = []

    def subject(**options: Any) -> Subject:
        made.append(Subject(request.param, clock, **options))
        return made[-1]

    yield subject
    for each in made:
        each.storage.close()
