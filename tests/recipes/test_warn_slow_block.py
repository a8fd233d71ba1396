"""The recipe "Warn, slow, block": what the client and the operator see, one after the other."""

import json
from itertools import groupby
from typing import Any

import pytest

from ratebound import MemoryStorage
from ratebound.events import BlockBegan, Struck, Warned
from ratebound.policy import Gate, RequestView, read_policy
from ratebound.testing import FakeClock
from ratebound.web.asgi import RateLimitMiddleware
from tests.recipes.pages import recipe
from tests.web.applications import bare_asgi
from tests.web.drivers import asgi_client
from tests.web.suite import Naps

EVENTS = (Warned, Struck, BlockBegan)


class Site:
    """The policy of the page at work, and all that its operator hears."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.heard: list[Any] = []
        self.gate = Gate(
            read_policy(recipe("guides/abuse.md", "Warn, slow, block")),
            storage=MemoryStorage(clock=self.clock),
            max_delay=1.0,
            listeners=[lambda event: self.heard.append(event) if isinstance(event, EVENTS) else None],
        )
        self.delay = 0.0

    def ask(self, peer: str = "192.0.2.1", **more: Any) -> str:
        verdict = self.gate.decide(RequestView("GET", "/", peer=peer, **more))
        assert verdict.decision is not None
        self.delay = verdict.decision.delay
        if verdict.decision.blocked:
            return "blocked"
        if not verdict:
            return "denied"
        return "delayed" if self.delay > 0.001 else "passed"

    def play(self, rate: float, seconds: float) -> list[str]:
        """Send requests at a rate, without waiting for their answers. Return what happened, repetitions left out."""
        seen = []
        for _ in range(int(rate * seconds)):
            seen.append(self.ask())
            self.clock.advance(1 / rate)
        return [one for one, _ in groupby(seen)]

    def events(self) -> list[str]:
        """Return what the operator has heard since the last call, repetitions left out."""
        names = [f"{type(event).__name__} {event.limit.name}" for event in self.heard]
        self.heard.clear()
        return [one for one, _ in groupby(names)]


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_client_that_gets_faster_is_warned_of_then_slowed_down_then_denied_then_blocked(site: Site) -> None:
    assert site.play(5, 120) == ["passed"]
    assert site.events() == []

    assert site.play(9.8, 120) == ["passed"]
    assert site.events() == ["Warned api/minute"]

    seen = site.play(12, 4)
    assert (seen[0], seen[1:]) == ("passed", ["delayed"])
    assert 0.5 < site.delay <= 0.9
    assert site.events() == ["Warned api/second"]

    seen = site.play(12, 10)
    assert seen[0] == "delayed"
    assert seen[-1] == "blocked"
    assert set(seen[1:-1]) == {"denied", "delayed"}, "every sixth is one too many"
    assert site.events()[-2:] == ["Struck flooding", "BlockBegan flooding"]


def block(site: Site) -> float:
    """Go on much too fast until a block begins. Return its seconds."""
    while True:
        for _ in range(30):
            site.ask()
            site.clock.advance(0.05)
        began = [event for event in site.heard if isinstance(event, BlockBegan)]
        site.heard.clear()
        if began:
            return began[0].seconds


def test_blocks_get_longer_and_are_forgiven_after_a_day(site: Site) -> None:
    assert block(site) == 300
    assert site.ask() == "blocked"
    assert site.ask("192.0.2.2") == "passed"
    site.clock.advance(300)
    assert site.ask() == "passed"
    assert block(site) == 3600
    site.clock.advance(3600)
    assert site.ask() == "passed"
    assert block(site) == 3600, "the last one repeats"
    site.clock.advance(3600 + 86_400)
    assert block(site) == 300, "forgiven"


def test_a_client_that_waits_for_each_answer_is_slowed_down_and_never_denied(site: Site) -> None:
    seen = set()
    for _ in range(3000):
        seen.add(site.ask())
        site.clock.advance(site.delay + 0.001)
    assert seen == {"passed", "delayed"}
    assert not any(isinstance(event, Struck) for event in site.heard)


@pytest.mark.parametrize("user", [None, "ann"])
def test_pages_of_other_sites_cannot_get_a_visitor_blocked(site: Site, user: str | None) -> None:
    seen = []
    for _ in range(600):
        seen.append(site.ask(user=user, headers=[("sec-fetch-site", "cross-site")]))
        site.clock.advance(0.05)
    assert set(seen) == {"passed", "denied"}
    assert seen.count("passed") == 60
    assert site.ask(user=user) == "passed"
    assert site.events() == []


def test_the_mark_of_other_sites_does_not_lift_a_block_of_what_it_does_not_mark(site: Site) -> None:
    block(site)
    site.ask(headers=[("sec-fetch-site", "cross-site")])
    assert site.ask() == "blocked"


def test_the_client_is_held_back_then_told_to_slow_down_then_told_that_it_is_blocked() -> None:
    clock, naps = FakeClock(), Naps()
    policy = recipe("guides/abuse.md", "Warn, slow, block")
    send: Any = asgi_client(
        RateLimitMiddleware(bare_asgi, policy, storage=MemoryStorage(clock=clock), sleep=naps.sleep_async)
    )
    try:
        answers = [send("GET", "/", {}) for _ in range(11)]
        assert [answer.status for answer in answers] == [200] * 10 + [429]
        assert naps.taken == [pytest.approx(number / 10) for number in range(1, 10)]
        assert dict(answers[-1].headers)["retry-after"] == "1"
        assert json.loads(answers[-1].body)["type"].endswith("#quota-exceeded")
        for _ in range(4):
            clock.advance(1)
            answers = [send("GET", "/", {}) for _ in range(11)]
        assert answers[-1].status == 429
        headers = dict(answers[-1].headers)
        assert headers["retry-after"] == "300"
        assert "ratelimit" not in headers
        assert json.loads(answers[-1].body)["type"].endswith("#abnormal-usage-detected")
        clock.advance(300)
        assert send("GET", "/", {}).status == 200
    finally:
        send.close()
