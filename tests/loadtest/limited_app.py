"""The application that load tests are sent to: our middleware with one limit for each path, and paths that lie."""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ratebound.policy import Match, Policy, Rule
from ratebound.web.asgi import RateLimitMiddleware

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Pairs = list[tuple[bytes, bytes]]

LIMITS = {
    "token-bucket": "20/second burst 10 token-bucket",
    "gcra": "15/second burst 30 gcra",
    "leaky-bucket": "20/second burst 5 leaky-bucket",
    "fixed-window": "20/second fixed-window",
    "sliding-log": "20/second sliding-log",
    "sliding-counter": "20/second sliding-counter",
    "two": "10/second; 16/2 seconds fixed-window",
    "unlimited": "1000000/second",
    "hourly": "3/hour",
    "fast-refill": "30/second burst 7",  # headers say 7 in 1 second
    "odd-window": "6/1500ms fixed-window",  # headers say 6 in 2 seconds
    "long-queue": "4/second burst 40 leaky-bucket",  # the middleware refuses what would wait for more than a second
}
COST = 5
COSTLY = {
    "costly-bucket": "100/second burst 50",
    "costly-window": "103/second fixed-window",
    "costly-log": "102/second sliding-log",
    "costly-rest": "77/second burst 35 gcra",
}
LIES = (
    "one-more",
    "too-early",
    "short-wait",
    "long-wait",
    "stuck",
    "starved",
    "no-wait",
    "other-limit",
    "broken",
    "too-few",
)
LIAR = "5/second fixed-window"
VICTIM = "127.0.0.2"  # the first client


async def answer(scope: Scope, receive: Any, send: Send) -> None:
    if scope["type"] != "http":
        return
    failed = scope["path"] == "/broken" and next_number(scope) % 10 == 0
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 500 if failed else 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


rules = [Rule(name, text, match=Match(paths=[f"/{name}"]), by="address") for name, text in LIMITS.items()]
rules += [Rule(name, text, match=Match(paths=[f"/{name}"]), by="address", cost=COST) for name, text in COSTLY.items()]
rules += [Rule(lie, LIAR, match=Match(paths=[f"/{lie}"]), by="address") for lie in LIES]
honest = RateLimitMiddleware(answer, Policy(rules=rules))
numbers: Counter[tuple[str, str]] = Counter()
favoured: set[str] = set()  # clients that were granted one more in this window


def next_number(scope: Scope) -> int:
    """How many requests this client has sent to this path, from 1."""
    numbers[scope["path"], scope["client"][0]] += 1
    return numbers[scope["path"], scope["client"][0]]


def changed(lie: str, client: str, number: int, status: int, headers: Pairs) -> tuple[int, Pairs]:
    """The answer of the middleware, with the lie of this path."""
    fields = dict(headers)
    if lie == "one-more" and status == 200:
        favoured.discard(client)
    elif lie == "one-more" and client not in favoured:
        favoured.add(client)
        return 200, [pair for pair in headers if pair[0] != b"retry-after"]
    if lie == "too-early" and number == 3:
        return 429, [*headers, (b"retry-after", b"1")]
    if lie == "starved" and client == VICTIM:
        return 429, [*headers, (b"retry-after", b"1")]
    if lie == "short-wait" and status == 429:
        fields[b"retry-after"] = b"0"
    elif lie == "long-wait" and status == 429:
        fields[b"retry-after"] = b"30"
    elif lie == "no-wait":
        fields.pop(b"retry-after", None)
    elif lie == "stuck":
        fields[b"ratelimit"] = re.sub(rb"r=\d+", b"r=3", fields.get(b"ratelimit", b""))
    elif lie == "too-few":
        left = re.search(rb"r=(\d+)", fields.get(b"ratelimit", b"r=0"))
        fewer = max(int(left[1]) - 1, 0) if left else 0
        fields[b"ratelimit"] = re.sub(rb"r=\d+", b"r=%d" % fewer, fields.get(b"ratelimit", b""))
    elif lie == "other-limit" and number % 2:
        fields[b"ratelimit-policy"] = re.sub(rb"q=\d+", b"q=99", fields.get(b"ratelimit-policy", b""))
    return status, list(fields.items())


async def app(scope: Scope, receive: Any, send: Send) -> None:
    path = scope.get("path", "").strip("/")
    if path not in LIES:
        await honest(scope, receive, send)
        return
    number = next_number(scope) if path != "broken" else 0

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            status, headers = changed(path, scope["client"][0], number, message["status"], list(message["headers"]))
            message = {**message, "status": status, "headers": headers}
        await send(message)

    await honest(scope, receive, sending)
