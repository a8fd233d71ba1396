"""Every adapter lets operators block clients, and looks for the user of a request when a block names one."""

from collections.abc import Iterator
from typing import Any

import pytest

from ratebound import MemoryStorage
from ratebound.policy import Gate
from ratebound.testing import FakeClock
from tests.policy.operated import RemoteStorage
from tests.web.usage_sites import POLICY, SITES, UsageSite

ANN = {"x_user": "ann"}
BOB = {"x_user": "bob"}
PLAIN: dict[str, Any] = {"rules": [{"name": "rest", "limits": "1000/minute", "by": "address"}]}  # needs no user


@pytest.fixture(params=["memory", "remote"])
def storage(request: pytest.FixtureRequest, clock: FakeClock) -> Any:
    return MemoryStorage(clock=clock) if request.param == "memory" else RemoteStorage(clock)


@pytest.fixture(params=SITES.values(), ids=list(SITES))
def site(request: pytest.FixtureRequest, storage: Any) -> Iterator[UsageSite]:
    with request.param(policy=PLAIN, storage=storage) as made:
        yield made


def statuses(site: UsageSite, *clients: dict[str, str]) -> list[int]:
    return [site.get("/mine", **client).status for client in clients]


def test_an_operator_blocks_and_unblocks(site: UsageSite) -> None:
    assert statuses(site, ANN, BOB, {}) == [200, 200, 200]
    block = site.call("block", "user:ann", "1 hour", reason="resells")
    assert site.call("blocks") == [block]
    answer = site.get("/mine", **ANN)
    assert answer.status == 403
    assert dict(answer.headers)["retry-after"] == "3600"
    assert b"resells" not in answer.body
    assert statuses(site, BOB, {}) == [200, 200]
    site.call("block", "127.0.0.0/8")
    assert statuses(site, ANN, BOB, {}) == [403, 403, 403]
    assert "retry-after" not in dict(site.get("/mine", **BOB).headers)
    assert site.call("unblock", "127.0.0.0/8") is True
    assert site.call("unblock", "user:ann") is True
    assert site.call("unblock", "user:ann") is False
    assert statuses(site, ANN, BOB, {}) == [200, 200, 200]
    assert site.call("blocks") == []


def test_the_first_request_after_another_process_has_blocked_its_user_is_refused(
    site: UsageSite, storage: Any, clock: FakeClock
) -> None:
    assert statuses(site, ANN) == [200]
    with Gate(PLAIN, storage=storage) as another_process:
        another_process.block("user:ann", 60)
        clock.advance(1)
        assert statuses(site, ANN, BOB) == [403, 200]
        clock.advance(59)
        assert statuses(site, ANN) == [200]
        another_process.block("127.0.0.1")
        clock.advance(1)
        assert statuses(site, BOB) == [403]


@pytest.mark.parametrize("name", SITES)
def test_an_identity_of_the_policy_can_be_blocked(name: str, storage: Any) -> None:
    with SITES[name](policy=POLICY, storage=storage) as site:
        site.call("block", "customer:acme")
        assert statuses(site, {"x_api_key": "key-1"}, {"x_api_key": "key-2"}, ANN) == [403, 200, 200]
        with pytest.raises(ValueError, match="only a claim"):
            site.call("block", "bearer:x")


@pytest.mark.parametrize("name", [name for name in SITES if name not in ("asgi", "wsgi")])
def test_an_endpoint_with_limits_of_its_own_refuses_blocked_clients(name: str, storage: Any) -> None:
    with SITES[name](policy=PLAIN, storage=storage) as site:
        site.call("block", "user:ann")
        assert [site.get("/export", **client).status for client in (ANN, BOB)] == [403, 200]


@pytest.mark.parametrize("name", SITES)
def test_when_all_blocks_have_ended_the_plain_path_is_open_again(name: str, clock: FakeClock) -> None:
    with SITES[name](policy=PLAIN, storage=MemoryStorage(clock=clock)) as site:
        site.call("block", "192.0.2.1", 60)
        limits = getattr(site.limits, "_limits", site.limits)
        gate = limits.tasks.gate if name == "django asgi" else limits.gate
        fast_path = gate.gate._decider.fast_path
        assert statuses(site, ANN) == [200]
        assert fast_path.states.documents is not fast_path.unblocked
        clock.advance(60)
        assert statuses(site, ANN) == [200]
        assert fast_path.states.documents is fast_path.unblocked
