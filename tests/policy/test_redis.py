"""A policy on Redis: the same verdicts, all rules in one decision."""

import asyncio
import uuid

from ratebound.policy import AsyncGate, Gate, Match, Policy, Rule
from tests.policy.gates import passes, request
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
