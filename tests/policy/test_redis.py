"""A policy on Redis: the same verdicts, all rules in one decision."""

import asyncio
import uuid

from ratebound.policy import AsyncGate, Gate, Match, Policy, Rule
from tests.adaptive.gauges import Gauge, lower, pressure_of
from tests.policy.gates import decide, passes, request
from tests.servers import Server


def policy_at(server: Server) -> Policy:
    """Rules with names of their own, so that tests on one server do not meet."""
    name = uuid.uuid4().hex[:8]
    rules = [
        Rule(f"user-{name}", "5/hour", by="user", candidate="2/hour"),
        Rule(f"all-{name}", "7/hour", by="global"),
        Rule(f"try-{name}", "1/hour", mode="shadow", match=Match(paths=("/try",))),
    ]
    return Policy(rules=rules, storage=server.url)


def test_a_gate_decides_on_redis_as_in_memory(redis_url_server: Server) -> None:
    with Gate(policy_at(redis_url_server), deadline=5.0) as gate:
        assert passes(gate, request(user="ann")) == 5
        assert passes(gate, request(user="bob")) == 2, "of the 7 for all"
        assert passes(gate, request(user="carl")) == 0


def test_an_async_gate_does_the_same(redis_url_server: Server) -> None:
    async def run() -> tuple[list[bool], list[list[bool]]]:
        async with AsyncGate(policy_at(redis_url_server), deadline=5.0) as gate:
            verdicts = [await gate.decide(request("/try", user="ann")) for _ in range(6)]
            settled = await gate.settle(verdicts[0], cost=0)
            verdicts.append(await gate.decide(request("/try", user="ann")))
            assert settled
            return [bool(v) for v in verdicts], [[shadow.allowed for shadow in v.shadows] for v in verdicts]

    allowed, shadows = asyncio.run(run())
    assert allowed == [True] * 5 + [False, True]
    assert shadows[:3] == [[True, True], [True, False], [False, False]]


def test_a_lowered_worker_sheds_and_the_other_goes_on_with_the_same_count(redis_url_server: Server) -> None:
    name, gauge = uuid.uuid4().hex[:8], Gauge()
    pressure = pressure_of(gauge, floor=0.5)
    rules = [Rule(f"a-{name}", "8/hour; 4 concurrent; 1 strike/hour block 1 hour", by="address")]
    busy, calm = (Policy(rules=rules, storage=redis_url_server.url, adaptive=one) for one in (pressure, None))
    with Gate(busy, deadline=5.0) as first, Gate(calm, deadline=5.0) as second:
        lower(pressure, gauge)
        held = [first.decide(request()) for _ in range(3)]
        assert [(bool(verdict), verdict.shed) for verdict in held] == [(True, False), (True, False), (False, True)]
        first.release(*held)
        for _ in range(4):
            second.release(verdict := second.decide(request()))
            assert verdict, "a denial under overload was no strike"
        assert first.decide(request()).shed
        for _ in range(2):
            second.release(verdict := second.decide(request()))
            assert verdict
        assert second.decide(request()).decision is not None
        last = second.decide(request()).decision
        assert last is not None
        assert last.blocked


def test_gates_with_slices_share_the_count_and_are_decided_by_blocks_and_resets(redis_url_server: Server) -> None:
    name = uuid.uuid4().hex[:8]
    rule = Rule(f"a-{name}", "200/day; 300/calendar-month", by="user", slice={"share": "10%", "for": "1 hour"})
    policy = Policy(rules=[rule], storage=redis_url_server.url)
    ann, bob = request(user=f"ann-{name}"), request(user=f"bob-{name}")
    with Gate(policy, deadline=5.0) as first, Gate(policy, deadline=5.0) as second:
        granted = [bool(decide(gate, ann)) for _ in range(250) for gate in (first, second)]
        assert sum(granted) <= 200, "what one has taken, the other has not"
        assert sum(granted) >= 200 - 2 * 20, "and each has one slice at most that it could not use"
        assert passes(first, bob, most=20) == 20
        first.block(f"user:bob-{name}")
        assert decide(first, bob).kind == "block", "whatever it has taken for him"
        first.unblock(f"user:bob-{name}")
        assert decide(first, bob)
        first.reset(f"user:ann-{name}")
        assert decide(first, ann)
        (usage, _) = first.usage_of(f"user:ann-{name}")
        assert usage.used == 1, "a slice that was taken before the reset is gone"


def test_gates_with_a_deny_cache_let_a_client_pass_after_a_reset(redis_url_server: Server) -> None:
    name = uuid.uuid4().hex[:8]
    rule = Rule(f"a-{name}", "5/day", by="user", deny_cache=True)
    ann = request(user=f"ann-{name}")
    with Gate(Policy(rules=[rule], storage=redis_url_server.url), deadline=5.0) as gate:
        assert passes(gate, ann) == 5
        assert not any(decide(gate, ann) for _ in range(50))
        gate.reset(f"user:ann-{name}")
        assert passes(gate, ann) == 5
