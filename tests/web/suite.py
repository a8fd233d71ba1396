"""The same requests give the same answers in every framework: what is asked, and what must come back.

An adapter's test builds an application that answers as APPLICATION says, behind a gate made with `options`, and plays
the table with a function that sends one request. Clients are told apart by X-Forwarded-For: the peer is trusted.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ratebound import MemoryStorage
from ratebound.policy import Gate, Identity
from ratebound.testing import FakeClock

# What the application itself does. `/stream` sends three parts, `/teapot` sets headers of its own.
APPLICATION = {
    "/": "hello",
    "/users/{id}": "user {id}",
    "/login": "200 'welcome' if the header x-password is 'right', else 401 'no'",
    "/stream": "onetwothree",
    "/teapot": "418 'teapot' with RateLimit: mine, X-Own: yes",
    "/queue": "served",
    "/health": "well",
    "/fail": "any 500",
    "/tokens": "spent; charges 7 by the decision that the handler sees",
    "/secret": "never reached",
    "/cached": "kept, with the request's header x-cache as its Cache-Control",
    "/moved": "302 to /",
    "/form": "200 'shown'; says by the decision that it has failed, unless the header x-password is 'right'",
}

CUSTOMERS = {"key-1": "acme", "key-2": "acme", "key-3": "zenith"}


def find_customer(key: str) -> Identity | None:
    return Identity("customer", CUSTOMERS[key]) if key in CUSTOMERS else None


# A dict, as in a file but with the functions themselves: every adapter takes it.
POLICY: dict[str, Any] = {
    "identities": {"api-key": {"header": "x-api-key", "verify": find_customer, "kinds": ["customer"]}},
    "by": ["api-key", "user", "address"],
    "rules": [
        {
            "name": "monthly",
            "limits": "2/calendar-month in Europe/Berlin",
            "match": {"paths": ["/users/31"]},
            "final": True,
        },
        {"name": "users", "limits": "3/minute", "match": {"paths": ["/users/{id}"]}},
        {
            "name": "login",
            "limits": "2/minute",
            "match": {"paths": ["/login"], "methods": ["POST"]},
            "message": "Too many attempts.",
        },
        {"name": "queue", "limits": "2/second burst 10 leaky-bucket", "match": {"paths": ["/queue"]}},
        {"name": "tokens", "limits": "10/minute; 100/hour", "match": {"paths": ["/tokens"]}},
        {"name": "form", "limits": "2/minute", "match": {"paths": ["/form"]}},
        {"name": "secret", "limits": "deny", "match": {"paths": ["/secret"]}},
        {"name": "planned", "limits": "1/minute", "match": {"paths": ["/"]}, "mode": "shadow"},
        {"name": "flood", "limits": "20/second burst 20", "stage": "early", "match": {"paths": ["/early"]}},
        {"name": "rest", "limits": "5/minute", "default": True},
    ],
    "trusted": ["127.0.0.1"],
    "exempt": [{"paths": ["/health", "/probes/health"]}],
    "block": ["203.0.113.66", "customer:zenith"],
}

OURS = (
    "ratelimit",
    "ratelimit-policy",
    "retry-after",
    "cache-control",
    "access-control-expose-headers",
    "x-own",
)


class Answer(NamedTuple):
    """A response: every line of every header, names in lower case."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


Client = Callable[[str, str, Mapping[str, str]], Answer]


class Naps:
    """Sleeps that are only noted, for gates of both kinds."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.taken.append(seconds)

    async def sleep_async(self, seconds: float) -> None:
        self.taken.append(seconds)


def options(clock: FakeClock, naps: Naps, *, is_async: bool) -> dict[str, Any]:
    """For WebGate, AsyncWebGate, or whatever makes one. An operator has blocked one client for a minute."""
    storage = MemoryStorage(clock=clock)
    Gate(POLICY, storage=storage).block(ADDRESSES["by-hand"], 60, reason="never told to clients")
    return {
        "policy": POLICY,
        "storage": storage,
        "charge": {"login": "failure", "form": "failure"},
        "sleep": naps.sleep_async if is_async else naps.sleep,
    }


class Step(NamedTuple):
    """One request and what is expected. `body` is None where it is the framework's own affair."""

    request: str  # method, path, client
    status: int
    ours: dict[str, str]
    body: bytes | None = None
    headers: Mapping[str, str] = {}  # of the request


def shows(name: str, quota: int, window: int, left: int, after: int | None) -> dict[str, str]:
    when = "" if after is None else f";t={after}"  # None: all of it is there
    return {"ratelimit-policy": f'"{name}";q={quota};w={window}', "ratelimit": f'"{name}";r={left}{when}'}


def unreleased(users: int, rest: int) -> dict[str, str]:
    """The default rule holds beside the one that matches: not every reading of the path is released from it."""
    return {
        "ratelimit-policy": '"users/minute";q=3;w=60, "rest/minute";q=5;w=60',
        "ratelimit": f'"users/minute";r={users};t=60, "rest/minute";r={rest};t=60',
    }


def of_month(left: int) -> dict[str, str]:
    """A calendar quota has no window, and its time is the end of the month."""
    name = '"monthly/calendar-month"'
    return {"ratelimit-policy": f"{name};q=2", "ratelimit": f"{name};r={left};t={MONTH_ENDS}"}


def problem(detail: str, wait: int, name: str, quota: int, window: int | None, **more: str) -> bytes:
    limits = [{"policy": name, "quota": quota, "window": window, **more, "remaining": 0, "retry_after": wait}]
    body = {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Quota Exceeded",
        "status": 429,
        "detail": detail,
        "violated-policies": [name],
        "retry_after": wait,
        "limits": limits,
    }
    return json.dumps(body, separators=(",", ":")).encode()


REFUSED = {"cache-control": "no-store", "retry-after": "60"}
MONTH_ENDS = 16 * 86_400 + 6_400 - 3_600  # seconds from the clock's beginning, in Berlin
NO_MONTH = problem(
    "The quota of this calendar month is used up: the next one begins at 2023-12-01T00:00:00+01:00.",
    MONTH_ENDS,
    "monthly/calendar-month",
    2,
    None,
    period="calendar-month in Europe/Berlin",
)
WORDS = b"slow down"  # of an application that words its rejections, and would let a cache keep them
WORDS_CACHE = "public, max-age=60"
WAIT = "Too many requests: try again in 60 seconds."
FORBIDDEN = b'{"type":"about:blank","title":"Forbidden","status":403,"detail":"This request is not allowed."}'
FORBIDDEN_FOR_A_MINUTE = FORBIDDEN[:-1] + b',"retry_after":60}'
WRONG = {"x-password": "wrong"}
RIGHT = {"x-password": "right"}
CORS = {"origin": "https://example.com"}
ASKS = {**CORS, "access-control-request-method": "POST"}
EXPOSED = {"access-control-expose-headers": "RateLimit-Policy, RateLimit"}
EXPOSED_429 = {"access-control-expose-headers": "RateLimit-Policy, RateLimit, Retry-After"}
NO_USERS = problem(WAIT, 60, "users/minute", 3, 60)

TABLE: dict[str, list[Step]] = {
    "a limit is hit, on any path of the rule, and headers tell of it": [
        Step("GET /users/1 a", 200, shows("users/minute", 3, 60, 2, 60), b"user 1"),
        Step("GET /users/2 a", 200, shows("users/minute", 3, 60, 1, 60), b"user 2"),
        Step("GET /users/3 a", 200, shows("users/minute", 3, 60, 0, 60), b"user 3"),
        Step("GET /users/4 a", 429, shows("users/minute", 3, 60, 0, 60) | REFUSED, NO_USERS),
        Step("GET /users/4 b", 200, shows("users/minute", 3, 60, 2, 60), b"user 4"),
        Step("GET /users/%34 a", 429, shows("users/minute", 3, 60, 0, 60) | REFUSED, NO_USERS),
    ],
    "a quota by the calendar tells when it begins anew": [
        Step("GET /users/31 a", 200, of_month(1), b"user 31"),
        Step("GET /users/31 a", 200, of_month(0), b"user 31"),
        Step("GET /users/31 a", 429, of_month(0) | REFUSED | {"retry-after": str(MONTH_ENDS)}, NO_MONTH),
        Step("GET /users/31 b", 200, of_month(1), b"user 31"),
    ],
    "keys of one customer share its quota, from any address, and a list may name the customer": [
        Step("GET /users/1 a", 200, shows("users/minute", 3, 60, 2, 60), b"user 1", {"x-api-key": "key-1"}),
        Step("GET /users/1 b", 200, shows("users/minute", 3, 60, 1, 60), b"user 1", {"x-api-key": "key-2"}),
        Step("GET /users/1 b", 200, shows("users/minute", 3, 60, 2, 60), b"user 1", {"x-api-key": "invented"}),
        Step("GET /users/1 a", 403, {"cache-control": "no-store"}, FORBIDDEN, {"x-api-key": "key-3"}),
    ],
    "a HEAD is a GET without a body": [
        Step("HEAD /users/1 a", 200, shows("users/minute", 3, 60, 2, 60), b""),
        Step("GET /users/1 a", 200, shows("users/minute", 3, 60, 1, 60), b"user 1"),
        Step("HEAD /users/1 a", 200, shows("users/minute", 3, 60, 0, 60), b""),
        Step("HEAD /users/1 a", 429, shows("users/minute", 3, 60, 0, 60) | REFUSED, b""),
    ],
    "failed logins are charged and others are not": [
        Step("POST /login a", 200, shows("login/minute", 2, 60, 2, None), b"welcome", RIGHT),
        Step("POST /login a", 200, shows("login/minute", 2, 60, 2, None), b"welcome", RIGHT),
        Step("POST /login a", 401, shows("login/minute", 2, 60, 1, 60), b"no", WRONG),
        Step("POST /login a", 401, shows("login/minute", 2, 60, 0, 60), b"no", WRONG),
        Step(
            "POST /login a",
            429,
            shows("login/minute", 2, 60, 0, 60) | REFUSED,
            problem("Too many attempts.", 60, "login/minute", 2, 60),
            RIGHT,
        ),
    ],
    "a handler says that it has failed, whatever its status": [
        Step("GET /form a", 200, shows("form/minute", 2, 60, 2, None), b"shown", RIGHT),
        Step("GET /form a", 200, shows("form/minute", 2, 60, 1, 60), b"shown", WRONG),
        Step("GET /form a", 200, shows("form/minute", 2, 60, 1, 60), b"shown", RIGHT),
        Step("GET /form a", 200, shows("form/minute", 2, 60, 0, 60), b"shown", WRONG),
        Step("GET /form a", 429, shows("form/minute", 2, 60, 0, 60) | REFUSED, None, RIGHT),
    ],
    "a stream has its headers once": [Step("GET /stream a", 200, shows("rest/minute", 5, 60, 4, 60), b"onetwothree")],
    "the application's own headers of the same name give way": [
        Step("GET /teapot a", 418, shows("rest/minute", 5, 60, 4, 60) | {"x-own": "yes"}, b"teapot")
    ],
    "errors have headers, and unknown paths count": [
        Step("GET /fail a", 500, shows("rest/minute", 5, 60, 4, 60)),
        Step("GET /nowhere a", 404, shows("rest/minute", 5, 60, 3, 60)),
    ],
    "an exempt path has no headers": [Step("GET /health a", 200, {}, b"well")],
    "a preflight counts like any other request": [
        *[Step("OPTIONS /users/1 a", 0, shows("users/minute", 3, 60, n, 60) | EXPOSED, None, ASKS) for n in (2, 1, 0)],
        Step("OPTIONS /users/1 a", 429, shows("users/minute", 3, 60, 0, 60) | REFUSED | EXPOSED_429, None, ASKS),
        Step("GET /users/1 a", 429, shows("users/minute", 3, 60, 0, 60) | REFUSED, NO_USERS),
    ],
    "who is blocked, and what is denied, is refused by name": [
        Step("GET / blocked", 403, {"cache-control": "no-store"}, FORBIDDEN),
        Step("OPTIONS / blocked", 403, {"cache-control": "no-store"}, FORBIDDEN, ASKS),
        Step("GET /secret a", 403, {"cache-control": "no-store"}, FORBIDDEN),
        Step("OPTIONS /secret a", 403, {"cache-control": "no-store"}, FORBIDDEN, ASKS),
    ],
    "who is blocked by hand is told when that ends, and nothing else": [
        Step("GET / by-hand", 403, REFUSED, FORBIDDEN_FOR_A_MINUTE),
        Step("GET /nowhere by-hand", 403, REFUSED, FORBIDDEN_FOR_A_MINUTE, {"x-api-key": "key-1"}),
        Step("GET / by-hand", 403, REFUSED | {"access-control-expose-headers": "Retry-After"}, None, CORS),
        Step("GET /health by-hand", 200, {}, b"well"),
    ],
    "a prefix in front of a path does not escape its rule": [
        Step("GET /api|/users/1 a", 200, unreleased(2, 4), b"user 1"),
        Step("GET /users/1 a", 200, shows("users/minute", 3, 60, 1, 60), b"user 1"),
        Step("GET /other/api|/users/1 a", 200, unreleased(0, 3), b"user 1"),
        Step("GET /v|/users/1 a", 429, unreleased(0, 3) | REFUSED, None, {"script-name": "/v"}),
        Step("GET x:/users/1 a", 429, unreleased(0, 3) | REFUSED),
        Step("GET //x/users/1 a", 429, unreleased(0, 3) | REFUSED),
    ],
    "below a prefix that nobody is known to have configured an exemption must name both paths": [
        Step("GET /api|/health a", 200, shows("rest/minute", 5, 60, 4, 60), b"well"),
        Step("GET /probes|/health a", 200, {}, b"well"),
    ],
    "a rule in shadow refuses nothing": [
        Step("GET / a", 200, shows("rest/minute", 5, 60, 4, 60), b"hello"),
        Step("GET / a", 200, shows("rest/minute", 5, 60, 3, 60), b"hello"),
    ],
    "a browser may see the headers": [
        Step("GET / a", 200, shows("rest/minute", 5, 60, 4, 60) | EXPOSED, b"hello", CORS),
        *[Step("GET / a", 200, shows("rest/minute", 5, 60, n, 60), b"hello") for n in (3, 2, 1, 0)],
        Step("GET / a", 429, shows("rest/minute", 5, 60, 0, 60) | REFUSED | EXPOSED_429, None, CORS),
    ],
    "the handler says what its work has cost": [
        Step(
            "GET /tokens a",
            200,
            {
                "ratelimit-policy": '"tokens/minute";q=10;w=60, "tokens/hour";q=100;w=3600',
                "ratelimit": '"tokens/minute";r=3;t=60, "tokens/hour";r=93;t=3600',
            },
            b"spent",
        )
    ],
    "a response that a shared cache may store has no header of one client": [
        *[
            Step("GET /cached a", 200, {"cache-control": told}, b"kept", {"x-cache": told, **CORS})
            for told in ("public, max-age=600", "S-MAXAGE=5", "max-age=1")
        ],
        Step(
            "GET /cached a", 200, {"cache-control": "private, max-age=600"} | shows("rest/minute", 5, 60, 1, 60)
        )._replace(headers={"x-cache": "private, max-age=600"}),
        Step("GET / a", 200, shows("rest/minute", 5, 60, 0, 60), b"hello"),
        Step("GET /cached a", 429, shows("rest/minute", 5, 60, 0, 60) | REFUSED, None, {"x-cache": "public"}),
    ],
    "a redirect has none": [
        Step("GET /moved a", 302, {}),
        Step("GET / a", 200, shows("rest/minute", 5, 60, 3, 60), b"hello"),
    ],
}

WORDED = [
    *[Step("GET /users/1 a", 200, shows("users/minute", 3, 60, left, 60), b"user 1") for left in (2, 1, 0)],
    Step("GET /users/1 a", 429, shows("users/minute", 3, 60, 0, 60) | REFUSED, WORDS),
]

QUEUE = [
    Step("GET /queue a", 200, shows("queue/second", 10, 5, 9, 1), b"served"),
    Step("GET /queue a", 200, shows("queue/second", 10, 5, 8, 1), b"served"),
    Step("GET /queue a", 200, shows("queue/second", 10, 5, 7, 1), b"served"),
    Step("GET /queue a", 429, {"cache-control": "no-store", "retry-after": "1"} | shows("queue/second", 10, 5, 7, 1)),
]
ADDRESSES = {"a": "198.51.100.1", "b": "198.51.100.2", "blocked": "203.0.113.66", "by-hand": "203.0.113.77"}


def play(client: Client, steps: list[Step]) -> None:
    """Send the requests of a table, one after the other, and hold each answer against it."""
    for step in steps:
        method, path, who = step.request.split()
        answer = client(method, path, {"x-forwarded-for": ADDRESSES[who], **step.headers})
        said = f"{step.request}: {answer}"
        if step.status:
            assert answer.status == step.status, said
        ours = [(name, value) for name, value in answer.headers if name in OURS]
        assert sorted(ours) == sorted(step.ours.items()), said  # each once, and no other
        if step.body is not None:
            assert answer.body == step.body, said
        if answer.status in (429, 403) and answer.body != WORDS:
            types = [value for name, value in answer.headers if name == "content-type"]
            assert types == ["application/problem+json"], said


def play_queue(client: Client, naps: Naps) -> None:
    """A leaky bucket holds requests back for a second at most, and refuses the others without charging them."""
    play(client, QUEUE)
    play(client, QUEUE[-1:])
    assert naps.taken == [0.5, 1.0]
