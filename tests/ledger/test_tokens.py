"""Decisions that are settled by a token of the service: in the ledger they count where the decision was counted."""

import asyncio
from typing import Any

from ratebound import AsyncLimiter
from ratebound.decision import Decision
from ratebound.ledger.usage_counts import UsageCounts
from ratebound.outcome import DegradedRows
from ratebound.policy import AsyncGate, Policy, Rule
from ratebound.service.reservations import SignedTokens, TokenUse
from tests.ledger.test_counting import HOUR, take
from tests.policy.gates import request

SECRET = b"s" * 32


def rows(counts: UsageCounts) -> list[tuple[Any, ...]]:
    """Key, rule, endpoint, units, allowed and denied."""
    return sorted(row[1:7] for row in take(counts))


def test_a_settlement_by_token_counts_at_the_endpoint_of_its_decision_and_shadows_do_not() -> None:
    counts = UsageCounts(HOUR, lambda view: f"{view.method} {view.path}")
    policy = Policy(rules=[Rule("all", "99/minute", by="address"), Rule("new", "99/minute", mode="shadow")])

    async def main() -> None:
        made = SignedTokens([SECRET])
        async with AsyncGate(policy, storage="memory://", listeners=[counts]) as gate:
            verdict = await gate.decide(request("/a"))
            shadows = [one.decision for one in verdict.shadows if one.decision is not None]
            assert verdict.decision is not None
            assert len(shadows) == 1
            token = made.make("settle", [verdict.decision, *shadows], 60, [True, False])
            await TokenUse(gate._decider, made.maker).settle(made.read("settle", token), 5)

    asyncio.run(main())
    assert rows(counts) == [("address:192.0.2.1", "all", "GET /a", 5, 1, 0)]


def test_a_reservation_that_is_cancelled_by_token_costs_nothing() -> None:
    counts = UsageCounts(HOUR)

    async def main() -> None:
        made = SignedTokens([SECRET])
        async with AsyncLimiter("99/minute as m", storage="memory://", listeners=[counts]) as limiter:
            decision = await limiter.hit("ann", cost=7)
            content = made.read("reservation", made.make("reservation", [decision], 60))
            await TokenUse(limiter._decider, made.maker).undo(content)

    asyncio.run(main())
    assert rows(counts) == [("ann", "m", "", 0, 1, 0)]


def test_what_another_process_granted_alone_is_counted_as_it_stays_charged() -> None:
    counts = UsageCounts(HOUR)

    async def main() -> None:
        made, other = SignedTokens([SECRET]), SignedTokens([SECRET])
        async with AsyncLimiter("99/minute as m", storage="memory://", listeners=[counts]) as limiter:
            for cost, final in ((7, 9), (7, 2)):
                decision = await limiter.hit("ann", cost=cost)
                degraded = Decision(decision.asks, DegradedRows(decision.rows, "down", granted=1))
                content = other.read("settle", made.make("settle", [degraded], 60))
                await TokenUse(limiter._decider, b"another").settle(content, final)

    asyncio.run(main())
    assert rows(counts) == [("ann", "m", "", 16, 2, 0)]
