"""Every adapter follows operators' overrides and switches, in the limits of the policy and of endpoints."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from ratebound import MemoryStorage
from ratebound.policy import Gate
from ratebound.testing import FakeClock
from tests.policy.operated import RemoteStorage
from tests.web.usage_sites import SITES, UsageSite

ANN = {"x_user": "ann"}
BOB = {"x_user": "bob"}
EVERYBODY: dict[str, str] = {}
PLAIN: dict[str, Any] = {"rules": [{"name": "rest", "limits": "4/minute", "by": "address", "candidate": "2/minute"}]}
WITH_ENDPOINTS = [name for name in SITES if name not in ("asgi", "wsgi")]


@pytest.fixture(params=["memory", "remote"])
def storage(request: pytest.FixtureRequest, clock: FakeClock) -> Any:
    return MemoryStorage(clock=clock) if request.param == "memory" else RemoteStorage(clock)


@pytest.fixture(params=SITES.values(), ids=list(SITES))
def site(request: pytest.FixtureRequest, storage: Any) -> Iterator[UsageSite]:
    with request.param(policy=PLAIN, storage=storage) as made:
        yield made


def passes(site: UsageSite, path: str = "/mine", most: int = 8, client: Mapping[str, str] = EVERYBODY) -> int:
    """Return how many requests pass before the first is rejected."""
    for count in range(most):
        if site.get(path, **client).status != 200:
            return count
    return most


def test_an_operator_gives_a_client_other_limits(site: UsageSite, clock: FakeClock) -> None:
    override = site.call("override", "user:ann", limits="6/minute", reason="migration", by="eve")
    assert site.call("overrides") == [override]
    assert passes(site, client=ANN) == 6
    clock.advance(60)
    assert passes(site, client=BOB) == 4
    assert site.call("remove_override", "user:ann", by="eve") is True
    clock.advance(60)
    assert passes(site, client=ANN) == 4
    assert [change.action for change in site.call("changes")] == ["remove override", "override"]


def test_an_operator_switches_rules_and_promotes_a_candidate(site: UsageSite, clock: FakeClock) -> None:
    assert passes(site) == 4
    switch = site.call("set_switch", "off", rule="rest", for_=60)
    assert site.call("switches") == [switch]
    assert passes(site) == 8
    clock.advance(60)
    site.call("promote", "rest")
    assert passes(site) == 2
    assert site.call("remove_switch", "rest") is True
    clock.advance(60)
    assert passes(site) == 4
    site.call("set_switch", "shadow")
    assert passes(site) == 8
    assert site.call("remove_switch") is True
    assert passes(site) == 0
    site.call("record", "grant", "user:ann", "500", by="eve")
    assert len(site.call("changes")) == 6


def test_the_first_request_after_another_process_has_changed_something_knows_it(
    site: UsageSite, storage: Any, clock: FakeClock
) -> None:
    assert passes(site, most=1) == 1
    with Gate(PLAIN, storage=storage) as another_process:
        another_process.set_switch("off", rule="rest")
        clock.advance(1)
        assert passes(site) == 8
        another_process.override("user:ann", limits="deny")
        another_process.remove_switch("rest")
        clock.advance(1)
        assert passes(site, client=ANN) == 0


@pytest.mark.parametrize("client", ["user:ann", "127.0.0.0/8"])
def test_slots_of_an_override_are_released_when_the_response_ends(site: UsageSite, client: str) -> None:
    site.call("override", client, limits="1 concurrent")
    assert passes(site, client=ANN) == 8


@pytest.mark.parametrize("client", ["user:ann", "127.0.0.0/8"])
def test_a_queue_of_an_override_delays_requests(site: UsageSite, client: str) -> None:
    site.call("override", client, limits="100/minute burst 6 leaky-bucket")
    assert passes(site, client=ANN) == 2  # the third would wait longer than a second


@pytest.mark.parametrize("name", WITH_ENDPOINTS)
def test_the_limits_of_an_endpoint_are_switched_and_overridden_by_name(
    name: str, storage: Any, clock: FakeClock
) -> None:
    with SITES[name](policy={"rules": [{"name": "rest", "limits": "900/minute"}]}, storage=storage) as site:
        assert passes(site, "/export", client=ANN) == 3
        site.call("set_switch", "off", rule="export")
        assert passes(site, "/export", client=ANN) == 8
        site.call("set_switch", "shadow", rule="export")
        assert passes(site, "/export", client=ANN) == 8
        site.call("remove_switch", "export")
        assert passes(site, "/export", client=ANN) == 0
        site.call("override", "user:ann", limits="5/calendar-day", rules=["export"])
        assert passes(site, "/export", client=ANN) == 2
        with pytest.raises(ValueError, match="did you mean 'export'"):
            site.call("set_switch", "off", rule="exprot")
        assert [usage.quota for usage in site.call("usage_of", "user:ann", "export")] == [5]
