"""A program with limiters, a pacer and a gate, as users write it."""

import asyncio
from datetime import timedelta

from ratebound import AsyncLimiter, Check, Decision, Limit, Limiter, RateLimited, Reservation, parse_limit
from ratebound.client import AsyncPacer, Backoff, Pacer, Retry
from ratebound.events import Decided
from ratebound.http import Headers, RejectionFormat
from ratebound.limit import Algorithm, Failure
from ratebound.policy import Gate, Match, Policy, RequestView, Rule

FAILURE: Failure = "closed"
ALGORITHM: Algorithm = "token-bucket"


def listen(event: object) -> None:
    if isinstance(event, Decided):
        assert event.decision.limits


limiter = Limiter("5/minute; 100/day", failure=FAILURE, default_algorithm="gcra", deadline=0.1, listeners=[listen])
limiter.limits = parse_limit("10/minute", default=ALGORITHM)
other = Limiter(Limit(5, 60_000_000, algorithm=ALGORITHM), max_delay=timedelta(seconds=2), warn="80%")
decision: Decision = limiter.hit("user:42", cost=2)
wait: float | None = decision.retry_after
limiter.check([Check("user:42", parse_limit("5/minute")), Check("company:7", limiter.limits, cost=3)])
limiter.settle(limiter.hit("user:42"), cost=1)

with limiter.reserve("user:43", 2) as reservation:
    made: Reservation = reservation
    made.commit(1)


def key_of(number: int) -> str:
    return f"report:{number}"


@other.limit(key=key_of, timeout=1)
def report(number: int) -> str:
    return str(number)


@limiter.limit
async def fetched(number: int) -> str:
    return str(number)


text: str = report(1)


async def main() -> str:
    async with AsyncLimiter("5/minute", failure="open") as tasks:
        if await tasks.hit("user:42"):
            await tasks.release(await tasks.wait("user:42", timeout=timedelta(seconds=1)))
        try:
            async with tasks.acquire("user:42"), AsyncPacer("50/second").turn("https://api.example.com") as turn:
                await turn.answered(200, {})
        except RateLimited as error:
            return str(error.decision.limit)
    return await fetched(1)


asyncio.run(main())
pacer = Pacer(["50/second", Limit(5, 60_000_000)])
retry = Retry(attempts=3, backoff=Backoff("equal", first=0.2))
headers = Headers(["draft-11", "x-ratelimit"], reset="delta", retry_after="date")
rejection = RejectionFormat("text", headers=headers)
policy = Policy(rules=[Rule("login", "5/minute", Match(paths=["/login"]), failure="closed")], switch="shadow")
if Gate(policy).decide(RequestView("POST", "/login", peer="203.0.113.7")):
    pass
