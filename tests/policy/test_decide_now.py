"""`AsyncGate.decide_now` decides as `decide` does, or returns None and changes nothing."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratebound import MemoryStorage
from ratebound.policy import AsyncGate, RequestView, Verdict, load_policy, read_policy
from ratebound.testing import FakeClock
from tests.policy.gates import EXAMPLES
from tests.servers import Server

PLAIN = "rules: [{name: one, by: address, limits: 3/minute}]"
TWO = "rules: [{name: one, by: address, limits: 3/minute}, {name: two, by: global, limits: 5/minute}]"
FILES = sorted(path.name for path in EXAMPLES.iterdir())


def shape(verdict: Verdict | None) -> Any:
    assert verdict is not None
    decision = verdict.decision
    rows = None if decision is None else list(decision.rows)
    shadows = [(shadow.rule.name, shadow.allowed) for shadow in verdict.shadows]
    return verdict.allowed, verdict.kind, [rule.name for rule in verdict.asked], rows, shadows


paths = st.sampled_from(["/", "/auth/login", "/api/items/1", "/search", "/health", "/api/export", "/admin"])
requests = st.tuples(
    st.sampled_from(["GET", "POST"]),
    paths,
    st.sampled_from(["192.0.2.1", "192.0.2.2", "2001:db8::1", None]),
    st.sampled_from([None, "ann"]),
)


@given(name=st.sampled_from(FILES), asked=st.lists(st.tuples(requests, st.integers(0, 10**7)), max_size=30))
def test_it_decides_as_decide_does(name: str, asked: list[tuple[Any, int]]) -> None:
    clock = FakeClock()
    policy = load_policy(EXAMPLES / name, functions=_Anything(), environ={})
    now, later = (AsyncGate(policy, storage=MemoryStorage(clock=clock)) for _ in range(2))
    for (method, path, peer, user), passed in asked:
        clock.now += passed
        found = now.decide_now(RequestView(method, path, peer=peer, user=user))
        awaited = asyncio.run(later.decide(RequestView(method, path, peer=peer, user=user)))
        assert shape(found) == shape(awaited)


class _Anything(dict[str, Any]):
    """A function for every name, which knows nobody."""

    def __missing__(self, name: str) -> Any:
        return lambda *_: None

    def __contains__(self, name: object) -> bool:
        return True


def test_a_function_that_must_be_awaited_is_left_to_decide() -> None:
    async def who(request: RequestView) -> str:
        return "ann"

    text = "identities: {who: {call: who}}\nrules: [{name: one, by: who, limits: 3/minute}]"
    gate = AsyncGate(read_policy(text, functions={"who": who}))
    assert gate.decide_now(RequestView("GET", "/")) is None
    assert asyncio.run(gate.decide(RequestView("GET", "/"))).decision is not None


def test_shared_memory_decides_one_plain_limit_at_once(zone_url: str) -> None:
    async def main() -> list[bool | None]:
        gate = AsyncGate(read_policy(PLAIN), storage=zone_url)
        await gate.decide(RequestView("GET", "/", peer="192.0.2.1"))  # it has read the blocks of operators
        found = [gate.decide_now(RequestView("GET", "/", peer="192.0.2.1")) for _ in range(3)]
        await gate.close()
        return [None if verdict is None else verdict.allowed for verdict in found]

    assert asyncio.run(main()) == [True, True, False]


def test_an_operators_block_holds_on_shared_memory(zone_url: str) -> None:
    async def main() -> None:
        gate = AsyncGate(read_policy(PLAIN), storage=zone_url)
        await gate.block("192.0.2.1", "1 hour")
        await gate.decide(RequestView("GET", "/", peer="192.0.2.2"))
        assert gate.decide_now(RequestView("GET", "/", peer="192.0.2.1")) is None
        assert not await gate.decide(RequestView("GET", "/", peer="192.0.2.1"))
        await gate.close()

    asyncio.run(main())


@pytest.mark.parametrize("text", [PLAIN, TWO])
def test_what_has_to_wait_is_left_to_decide_and_charged_once(text: str, redis_url_server: Server) -> None:
    async def main() -> int:
        gate = AsyncGate(read_policy(text), storage=redis_url_server.url)
        await gate.reset("198.51.100.9", rule="one")
        request = RequestView("GET", "/", peer="198.51.100.9")
        assert gate.decide_now(request) is None
        verdict = await gate.decide(request)
        await gate.close()
        assert verdict.decision is not None
        return verdict.decision.outcomes[0].remaining

    assert asyncio.run(main()) == 2
