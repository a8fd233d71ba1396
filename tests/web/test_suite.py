"""The same requests give the same statuses, headers and bodies in every framework."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from ratebound.testing import FakeClock
from tests.web import suite
from tests.web.applications import CLIENTS, WORDED
from tests.web.suite import TABLE, Client, Naps


@pytest.fixture(params=CLIENTS.values(), ids=list(CLIENTS))
def client(request: pytest.FixtureRequest, clock: FakeClock, naps: Naps) -> Iterator[Client]:
    make: Callable[[FakeClock, Naps], Client] = request.param
    made = make(clock, naps)
    yield made
    getattr(made, "close", lambda: None)()


@pytest.mark.parametrize("claim", TABLE)
def test_every_adapter_gives_the_same_answers(client: Client, claim: str) -> None:
    suite.play(client, TABLE[claim])


def test_every_adapter_holds_back_for_max_delay_and_no_longer(client: Client, naps: Naps) -> None:
    suite.play_queue(client, naps)


@pytest.mark.parametrize("make", WORDED.values(), ids=list(WORDED))
def test_no_cache_keeps_a_rejection_whoever_words_it(
    make: Callable[[FakeClock, Naps], Client], clock: FakeClock, naps: Naps
) -> None:
    client: Any = make(clock, naps)
    with closing(client):
        suite.play(client, suite.WORDED)
