"""Mistakes that type checkers find: each on a line that ends with the mark."""

from datetime import timedelta

from ratebound import AsyncLimiter, Check, GuardedStorage, Limit, Limiter, MemoryStorage, parse_limit, parse_limits
from ratebound.client import Backoff, Pacer
from ratebound.http import Headers, RejectionFormat
from ratebound.ledger import Ledger
from ratebound.policy import Gate, Policy, RequestView, Rule

limiter = Limiter("5/minute", failure="open", max_delay=timedelta(seconds=1))
Limiter(5)  # error
Limiter("5/minute", failure="opne")  # error
Limiter("5/minute", default_algorithm="token_bucket")  # error
Limiter("5/minute", storge="memory://")  # error
Limiter("5/minute", storage=5)  # error
Limiter("5/minute", max_delay="1 second")  # error
Limiter("5/minute", listeners=print)  # error
Limiter("5/minute", slice=[1])  # error
limiter.hit(42)  # error
limiter.hit("user:42", cost=0.5)  # error
limiter.hit("user:42", 2)  # error
limiter.hit("user:42", values={"account": 1.5})  # error
limiter.hit_many("user:42", cost="1")  # error
limiter.wait("user:42", timeout="5")  # error
limiter.check("user:42")  # error
limiter.check(Check("user:42", "5/minute"))  # error
limiter.settle(limiter.hit("user:42"))  # error
limiter.settle(True, cost=1)  # error
limiter.grant("user:42", 1.5)  # error
limiter.reset("user:42", limits="5/minute")  # error
bool(limiter.hit("user:42").allow)  # error
limiter.hit("user:42").retry_after + 1  # error
with limiter.reserve("user:42"):  # error
    pass
bool(limiter.acquire("user:42").allowed)  # error
Limit("5", 60_000_000)  # error
Limit(5, 60.0)  # error
Limit(5, 60_000_000, algorithm="token_bucket")  # error
Limit(5, 60_000_000, failure="opne")  # error
Limit(5, 60_000_000, over="alow")  # error
parse_limit(5)  # error
parse_limit("5/minute", default="token_bucket")  # error
parse_limits("5/minute", default="token_bucket")  # error
GuardedStorage(MemoryStorage(), failure="opne")  # error
Headers("draft-10")  # error
Headers(reset="delay")  # error
RejectionFormat("xml")  # error
Ledger("sqlite:///usage.db", clients="names")  # error
Backoff("ful")  # error
Pacer(50)  # error
ledger = Ledger("sqlite:///usage.db", clients="name")
ledger.usage("user:42", by="week")  # error
ledger.top(by="unit")  # error
gate = Gate(Policy(rules=[Rule("all", "5/minute")]))
Gate("5/minute")  # error
gate.decide("GET")  # error
gate.set_switch("of")  # error
gate.decide(RequestView("GET", "/"), "erly")  # error
Policy(failure="opne")  # error


@limiter.limit(key="user:42", cost=1)
def report(number: int) -> str:
    return str(number)


report("1")  # error


async def main(limiter: AsyncLimiter) -> None:
    limiter.hit("user:42")  # error
    bool(limiter.hit("user:42").allowed)  # error
    if limiter.hit("user:42"):  # error
        pass
    if not limiter.hit("user:42"):  # error
        pass
    limiter.close()  # error
    with limiter.acquire("user:42"):  # error
        pass
    async with limiter.reserve("user:42", 5) as reservation:
        reservation.commit(3)  # error
