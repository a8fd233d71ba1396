"""`AsyncGate.decide_now` decides as `decide` does, or returns None and changes nothing."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratebound import MemoryStorage
from ratebound.policy import AsyncGate, RequestView, Verdict, load_policy, read_policy
from ratebound.testing import FakeClock, limiting_off
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


def counted_by_function(function: Any, storage: Any = None) -> AsyncGate:
    text = (
        "identities: {who: {call: who}}\nrules: [{name: one, by: who, limits: 3/minute}, {name: two, limits: 9/hour}]"
    )
    return AsyncGate(read_policy(text, functions={"who": function}), storage=storage)


def awaited_name(pause: float | None = None) -> tuple[list[RequestView], Any]:
    """Return a plain function that returns a coroutine, and the list of its calls."""
    calls: list[RequestView] = []

    async def later() -> str:
        if pause is not None:
            await asyncio.sleep(pause)
        return "ann"

    def who(request: RequestView) -> Any:
        calls.append(request)
        return later()

    return calls, who


def test_a_plain_function_that_returns_something_to_await_is_called_once() -> None:
    calls, who = awaited_name()

    async def main() -> None:
        gate, asked = counted_by_function(who), RequestView("GET", "/", peer="192.0.2.1")
        verdict = gate.decide_now(asked) or await gate.decide(asked)
        assert [identity.key for identity in verdict.identities] == ["who:ann", "address:192.0.2.1"]
        again = await gate.decide(RequestView("GET", "/", peer="192.0.2.1"))
        assert [identity.value for identity in again.identities] == ["ann", "192.0.2.1"]

    asyncio.run(main())
    assert len(calls) == 2


@pytest.mark.parametrize("early", ["", "{name: early, stage: early, limits: 1/hour; 1 concurrent},"])
@pytest.mark.parametrize("late", ["by: who, limits: 3/minute", "by: address, limits: 3/minute, cost: {call: who}"])
def test_a_plain_function_that_returns_a_coroutine_that_pauses_is_left_to_decide(early: str, late: str) -> None:
    async def later() -> int:
        await asyncio.sleep(0)
        return 2

    async def main() -> None:
        text = f"identities: {{who: {{call: who}}}}\nrules: [{early} {{name: one, {late}}}]"
        gate = AsyncGate(read_policy(text, functions={"who": lambda request: later()}))
        for place in range(1 if early else 3):
            asked = RequestView("GET", "/", peer="192.0.2.1")
            assert gate.decide_now(asked) is None
            verdict = await gate.decide(asked)
            assert verdict.allowed is (place == 0 or "cost" not in late)

    asyncio.run(main())


def test_a_request_whose_decision_was_cancelled_can_be_decided_again() -> None:
    calls, who = awaited_name(pause=0.01)

    async def main() -> None:
        gate, asked = counted_by_function(who), RequestView("GET", "/", peer="192.0.2.1")
        first = asyncio.create_task(gate.decide(asked))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        assert [identity.key for identity in (await gate.decide(asked)).identities] == ["who:ann", "address:192.0.2.1"]

    asyncio.run(main())
    assert len(calls) == 2


def test_a_function_is_called_once_where_a_decision_may_pause(zone_url: str) -> None:
    calls: list[RequestView] = []

    async def main() -> None:
        gate = counted_by_function(lambda request: calls.append(request) or "ann", zone_url)  # type: ignore[func-returns-value]
        for _ in range(2):
            asked = RequestView("GET", "/", peer="192.0.2.1")
            verdict = gate.decide_now(asked) or await gate.decide(asked)
            assert verdict.identities[0].value == "ann"
        await gate.close()

    asyncio.run(main())
    assert len(calls) == 2


def test_a_function_is_called_once_while_limits_are_switched_off() -> None:
    calls: list[RequestView] = []

    async def main() -> None:
        gate, asked = counted_by_function(calls.append), RequestView("GET", "/", peer="192.0.2.1")
        with limiting_off():
            assert (gate.decide_now(asked) or await gate.decide(asked)).allowed

    asyncio.run(main())
    assert len(calls) == 1


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
