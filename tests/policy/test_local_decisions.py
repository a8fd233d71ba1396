"""Gates on a storage that takes trips: rules with slices and deny caches decide without one where they can."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ratebound import MemoryStorage
from ratebound.policy import AsyncGate, Computed, Gate, Override, Policy, PolicyFile, RequestView, Rule
from ratebound.policy.runtime.verdict import Judged
from ratebound.testing import FakeClock
from ratebound.web.gate import WebGate
from ratebound.web.route_limit import Endpoint, RouteLimit
from tests.policy.gates import decide, request
from tests.remote import RemoteStorage

# Slices and denials live by the clock of the process. An hour is longer than any test takes.
SLICE = {"share": "10%", "for": "1 hour"}


@pytest.fixture
def remote(clock: FakeClock) -> RemoteStorage:
    return RemoteStorage(MemoryStorage(clock=clock), clock)


def warmed_up(gate: Gate, *requests: RequestView) -> Gate:
    """Return the gate after each client was met so often that it has a slice."""
    for view in requests or (request(),):
        for _ in range(5):
            assert decide(gate, view)
    return gate


def sliced(name: str = "api", limits: Any = "1000/day", **more: Any) -> Rule:
    return Rule(name, limits, slice=SLICE, **more)


def trips_of(gate: Gate, remote: RemoteStorage, *requests: RequestView) -> int:
    """Return the trips that one more request of each client takes."""
    before = len(remote.trips)
    for view in requests or (request(),):
        assert decide(gate, view)
    return len(remote.trips) - before


def test_a_sliced_rule_decides_most_requests_without_a_trip(remote: RemoteStorage) -> None:
    gate = Gate(Policy(rules=[sliced()]), storage=remote)
    found = [decide(gate, request()) for _ in range(100)]
    assert all(found)
    assert len(remote.trips) < 20
    assert [verdict.decision.remaining for verdict in found if verdict.decision] == list(range(999, 899, -1))


def test_several_sliced_rules_are_one_decision(remote: RemoteStorage) -> None:
    rules = [sliced("user", by="user"), sliced("address", "5000/day", by="address")]
    gate = warmed_up(Gate(Policy(rules=rules), storage=remote), request(user="ann"))
    assert trips_of(gate, remote, request(user="ann")) == 0


def test_beside_a_rule_without_a_slice_every_request_is_one_trip(remote: RemoteStorage) -> None:
    gate = warmed_up(Gate(Policy(rules=[sliced(), Rule("plain", "500/day")]), storage=remote))
    assert trips_of(gate, remote) == 1
    ((_, groups),) = remote.trips[-1:]
    assert [[ask[2] for ask in group] for group in groups] == [[1, 1]], "and it takes no more than it costs"


def test_early_and_late_rules_have_slices_of_their_own(remote: RemoteStorage) -> None:
    rules = [sliced("early", stage="early", by="address"), Rule("late", "500/day")]
    gate = Gate(Policy(rules=rules), storage=remote)
    for _ in range(5):
        assert gate.decide(request())
    before = len(remote.trips)
    assert gate.decide(request())
    assert [len(groups) for _, groups in remote.trips[before:]] == [1]


def test_a_shadow_with_a_slice_is_decided_here_and_one_without_goes_out_alone(remote: RemoteStorage) -> None:
    gate = warmed_up(Gate(Policy(rules=[sliced(candidate="500/day")]), storage=remote))
    assert trips_of(gate, remote) == 0
    gate = warmed_up(Gate(Policy(rules=[sliced(), Rule("tried", "500/day", mode="shadow")]), storage=remote))
    assert trips_of(gate, remote) == 1
    ((_, groups),) = remote.trips[-1:]
    assert [[limit.name for ask in group for limit in ask[1]] for group in groups] == [["tried/day"]]


def test_overrides_tiers_and_functions_have_slices(remote: RemoteStorage) -> None:
    rules = [
        sliced("tiers", {"pro": "2000/day", "default": "1000/day"}, by="address"),
        sliced("found", Computed(lambda view: f"{len(view.path)}000/day", "100/day"), by="address"),
    ]
    override = Override("192.0.2.9", "9000/day", rules=["tiers"])
    policy = Policy(rules=rules, tiers={"pro": ["192.0.2.2"]}, overrides=[override])
    clients = [request(peer=f"192.0.2.{last}") for last in (1, 2, 9)]
    gate = warmed_up(Gate(policy, storage=remote), *clients)
    assert trips_of(gate, remote, *clients) == 0


def test_limits_of_a_function_that_can_have_no_slice_go_to_the_storage(remote: RemoteStorage) -> None:
    gate = warmed_up(Gate(Policy(rules=[sliced(limits=Computed(lambda _: "900/minute", "100/day"))]), storage=remote))
    assert trips_of(gate, remote) == 1


def test_limits_of_an_endpoint_have_slices(remote: RemoteStorage) -> None:
    gate = WebGate(Policy(rules=[sliced("rest", "5000/day")]), storage=remote)
    endpoint = Endpoint("search", [RouteLimit(limits="1000/day", slice=SLICE)])
    for _ in range(5):
        gate.before(request(), endpoint)
    before = len(remote.trips)
    gate.before(request(), endpoint)
    assert len(remote.trips) == before


def test_a_listener_hears_of_every_verdict(remote: RemoteStorage) -> None:
    heard: list[object] = []
    gate = Gate(Policy(rules=[sliced()]), storage=remote, listeners=[heard.append])
    for _ in range(30):
        assert decide(gate, request())
    assert sum(isinstance(event, Judged) for event in heard) == 30


def test_a_new_policy_drops_the_slices(remote: RemoteStorage) -> None:
    gate = warmed_up(Gate(Policy(rules=[sliced()]), storage=remote))
    assert trips_of(gate, remote) == 0
    gate.use(Policy(rules=[sliced()]))
    assert trips_of(gate, remote) == 1


@pytest.mark.anyio
async def test_a_new_policy_drops_the_slices_of_tasks(remote: RemoteStorage) -> None:
    gate = AsyncGate(Policy(rules=[sliced()]), storage=remote.async_twin())
    for _ in range(5):
        assert await gate.decide(request())
    before = len(remote.trips)
    assert await gate.decide(request())
    assert len(remote.trips) == before
    gate.use(Policy(rules=[sliced()]))
    assert await gate.decide(request())
    assert len(remote.trips) == before + 1


def test_a_reload_drops_the_slices_and_one_that_fails_does_not(remote: RemoteStorage, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    text = "rules: [{name: api, limits: 1000/day, slice: {share: 10%, for: 1 hour}}]"
    path.write_text(text)
    file = PolicyFile(path, every=0)
    gate = warmed_up(Gate(file, storage=remote))
    path.write_text(text.replace("1000", "many"))
    assert not file.reload()
    assert trips_of(gate, remote) == 0
    path.write_text(text.replace("1000", "2000"))
    assert file.reload()
    assert trips_of(gate, remote) == 1


def test_a_reload_that_leaves_the_slice_out_decides_by_the_storage_again(remote: RemoteStorage, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("rules: [{name: api, limits: 1000/day, slice: {for: 1 hour}}]")
    file = PolicyFile(path, every=0)
    gate = warmed_up(Gate(file, storage=remote))
    path.write_text("rules: [{name: api, limits: 1000/day}]")
    assert file.reload()
    assert [trips_of(gate, remote) for _ in range(5)] == [1] * 5


def test_a_reset_drops_the_slices_of_that_client_alone(remote: RemoteStorage) -> None:
    ann, bob = request(user="ann"), request(user="bob")
    gate = warmed_up(Gate(Policy(rules=[sliced(by="user")]), storage=remote), ann, bob)
    gate.reset("user:ann")
    assert trips_of(gate, remote, ann) == 1
    assert trips_of(gate, remote, bob) == 0


def used_up(remote: RemoteStorage, limits: str = "3/calendar-day") -> Gate:
    """Return a gate that denies ann and bob, and has cached that."""
    gate = Gate(Policy(rules=[Rule("api", limits, by="user", deny_cache=True)]), storage=remote)
    for user in ("ann", "bob"):
        assert [bool(decide(gate, request(user=user))) for _ in range(5)] == [True, True, True, False, False]
    return gate


def test_denials_are_repeated_without_a_trip(remote: RemoteStorage) -> None:
    gate = used_up(remote)
    before = len(remote.trips)
    found = [decide(gate, request(user="ann")) for _ in range(100)]
    assert not any(found)
    assert len(remote.trips) - before < 100, "a denial is repeated for a second"


@pytest.mark.parametrize(
    "act",
    [
        lambda gate: gate.reset("user:ann"),
        lambda gate: gate.grant("user:ann", 1),
        lambda gate: gate.use(Policy(rules=[Rule("api", "4/calendar-day", by="user", deny_cache=True)])),
    ],
    ids=["reset", "grant", "use"],
)
def test_what_an_operator_does_for_a_client_ends_its_denials(
    remote: RemoteStorage, act: Callable[[Gate], object]
) -> None:
    gate = used_up(remote)
    act(gate)
    assert decide(gate, request(user="ann"))


def test_a_refund_ends_a_denial(remote: RemoteStorage) -> None:
    gate = Gate(Policy(rules=[Rule("api", "3/day", by="user", deny_cache=True)]), storage=remote)
    ann = request(user="ann")
    verdicts = [decide(gate, ann) for _ in range(5)]
    assert [bool(verdict) for verdict in verdicts] == [True, True, True, False, False]
    gate.undo(verdicts[0])
    assert decide(gate, ann)


def test_memory_takes_no_slices() -> None:
    gate = Gate(Policy(rules=[sliced(deny_cache=True)]), storage=MemoryStorage(clock=FakeClock()))
    found = [decide(gate, request()) for _ in range(10)]
    assert [verdict.decision.remaining for verdict in found if verdict.decision] == list(range(999, 989, -1))
    (usage,) = gate.usage_of("192.0.2.1")
    assert usage.used == 10


def test_shared_memory_takes_no_slices(tmp_path: Path) -> None:
    policy = Policy(rules=[sliced(deny_cache=True)], storage=f"shm://slices?size=1mb&directory={tmp_path}")
    with Gate(policy) as gate:
        assert all(decide(gate, request()) for _ in range(10))
        (usage,) = gate.usage_of("192.0.2.1")
        assert usage.used == 10
