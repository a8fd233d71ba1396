"""The messages of the HTTP API: calls and answers. openapi.py describes them.

A call has exactly these fields: a field that is misspelled is refused, and not ignored. msgspec checks the types;
http_api.py checks what they mean.
"""

import re
from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ratebound.service.engine import MAX_LIMITS_TEXT

MAX_KEY = 1024  # characters: the token of a reservation of 100 checks has all keys, and must fit in a body
MAX_CHECKS = 100  # that are decided together
MAX_LIFETIME = 86_400  # seconds
END = r"$(?!\n)"  # of a pattern: in Python a $ also stands before a last line break

Key = Annotated[str, Meta(max_length=MAX_KEY, description="What is counted.", examples=["user:42"])]
Limits = Annotated[
    str,
    Meta(
        max_length=MAX_LIMITS_TEXT,
        description="Limits in the notation, separated by semicolons.",
        examples=["100/minute", "10/second burst 20; 5000/day"],
    ),
]
Cost = Annotated[int, Meta(description="Units to charge, from 1 to 10^12.", examples=[1])]
FinalCost = Annotated[int, Meta(description="The real cost in units, from 0 to 10^12.", examples=[250])]
FinalCosts = Annotated[
    FinalCost | list[FinalCost],
    Meta(description="One number, or one for each check of the call that the token comes from."),
]
Values = Annotated[
    dict[str, str | int],
    Meta(description="The value of each limit of distinct values.", examples=[{"account": "alice"}]),
]
WantsSettle = Annotated[bool, Meta(description="True to get a token for /v1/settle, if it is allowed.")]
Lifetime = Annotated[
    int, Meta(ge=1, le=MAX_LIFETIME, description="Seconds for which the reservation can be committed.", examples=[600])
]
Token = Annotated[str, Meta(description="A token, as an earlier answer has given it.")]
Identity = Annotated[
    str | list[str],
    Meta(description="A client as rules of the policy count it, or several names for a rule by several."),
]
Seconds = Annotated[float, Meta(ge=0)]


class _Call(Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """A call: a field that is not known is refused."""


class CheckCall(_Call, frozen=True):
    """One of several checks that are decided together."""

    key: Key
    limits: Limits
    cost: Cost = 1
    values: Values | None = None


Checks = Annotated[
    list[CheckCall],
    Meta(
        min_length=1, max_length=MAX_CHECKS, description="Checks that are decided together: all are charged, or none."
    ),
]


class PeekCall(_Call, frozen=True):
    """A question whether a hit would pass: `key` and `limits`, or `checks`."""

    key: Key | None = None
    limits: Limits | None = None
    cost: Cost = 1
    values: Values | None = None
    checks: Checks | None = None


class HitCall(PeekCall, frozen=True):
    """A hit: `key` and `limits`, or `checks`."""

    settle: WantsSettle = False


class ReserveCall(PeekCall, frozen=True):
    """A reservation: `key` and `limits`, or `checks`."""

    lifetime: Lifetime = 3600


class CommitCall(_Call, frozen=True):
    """The commit of a reservation."""

    reservation: Token
    cost: FinalCosts


class CancelCall(_Call, frozen=True):
    """The end of a reservation that was not used."""

    reservation: Token


class SettleCall(_Call, frozen=True):
    """The settlement of a hit or of a decision by the policy."""

    settle: Token
    cost: FinalCosts
    strike: Annotated[bool, Meta(description="True if the penalties among the limits count a strike.")] = False


class ReleaseCall(_Call, frozen=True):
    """The release of slots."""

    release: Token


class ResetCall(_Call, frozen=True):
    """A reset: `key` and `limits`, or `identity` for a client of the policy."""

    key: Key | None = None
    limits: Limits | None = None
    identity: Identity | None = None
    rule: Annotated[str, Meta(description="Look at this rule of the policy alone.")] | None = None


class UsageCall(ResetCall, frozen=True):
    """A question about usage: `key` and `limits`, or `identity` for a client of the policy."""

    tier: Annotated[str, Meta(description="The client's tier, where the policy does not name it.")] | None = None


class DecideCall(_Call, frozen=True):
    """A described request, for the policy to decide."""

    path: Annotated[
        str,
        Meta(
            pattern=rf"^(/[^?#]*|\*){END}",
            max_length=8192,
            description="The path as received: percent-encoded, without the query.",
            examples=["/orders/7"],
        ),
    ]
    method: Annotated[str, Meta(pattern=rf"^[A-Za-z0-9!#$%&'*+.^_`|~-]{{1,32}}{END}", examples=["POST"])] = "GET"
    query: Annotated[str, Meta(description="The part after the question mark.", examples=["page=2"])] = ""
    host: Annotated[str, Meta(description="The header Host, unless `headers` has it.")] | None = None
    scheme: Literal["http", "https", "ws", "wss"] = "http"
    address: (
        Annotated[
            str,
            Meta(
                description="The address of the other end of the client's connection. The policy's trusted proxies are"
                " applied to it, and to `headers`.",
                examples=["203.0.113.7"],
            ),
        ]
        | None
    ) = None
    user: Annotated[str | int, Meta(description="The user that the caller has authenticated.")] | None = None
    route: Annotated[str, Meta(description="The router's template.", examples=["/orders/{id}"])] | None = None
    headers: Annotated[
        dict[str, str | list[str]],
        Meta(description="The headers of the request, each with one value or several.", examples=[{"x-api-key": "k"}]),
    ] = {}
    body: Annotated[str, Meta(description="The body, if rules of the policy look into it.")] | None = None
    settle: WantsSettle = False


class LimitAnswer(Struct, frozen=True):
    """A limit. `period` is in seconds, null for a period of the calendar. For windows `burst` is the count."""

    text: str
    name: str
    count: int
    period: float | None
    burst: int


class OutcomeAnswer(Struct, frozen=True):
    """The answer of one limit. `check` is the number of its check, from 0."""

    check: int
    limit: LimitAnswer
    allowed: bool
    remaining: int
    retry_after: Seconds | None
    reset_after: Seconds
    delay: Seconds


class DecisionAnswer(Struct, frozen=True):
    """A decision. Times are in seconds. `limit` is the one that is nearest to exhaustion, or that denies for longest.

    `retry_after` is 0 if it is allowed, and null if no wait can help. `delay` is the time to hold an allowed request
    back. `degraded` is the reason why the storage was not asked, null if it was. `unavailable` is true if it is denied
    only because the storage is out of reach. `blocked` is true if a penalty blocks the key. `overage` is the part of
    the cost that exceeds a metered quota.
    """

    allowed: bool
    remaining: int
    limit: LimitAnswer
    retry_after: Seconds | None
    reset_after: Seconds
    delay: Seconds
    blocked: bool
    overage: int
    degraded: str | None
    unavailable: bool
    outcomes: list[OutcomeAnswer]
    settle: str | UnsetType = UNSET
    release: str | UnsetType = UNSET
    reservation: str | UnsetType = UNSET


class VerdictAnswer(Struct, frozen=True):
    """The answer of the policy: whether the request may proceed, and what to answer the client.

    `status` and `headers` are for the response to the client; `body` is there if the request is denied. `kind` says
    how it was decided: limited, unlimited, unmatched, exempt, allow, block, deny, off or shed.
    """

    allowed: bool
    status: int
    kind: str
    headers: dict[str, str]
    decision: DecisionAnswer | None
    body: str | UnsetType = UNSET
    settle: str | UnsetType = UNSET
    release: str | UnsetType = UNSET


class UsageEntry(Struct, frozen=True):
    """The usage of one limit. `rule` is the rule of the policy that has it, empty for a caller's own limits."""

    name: str
    rule: str
    limit: LimitAnswer
    quota: int
    used: int
    remaining: int
    granted: int
    resets_at: datetime
    previous: int | None
    blocked: bool
    degraded: str | None


class UsageAnswer(Struct, frozen=True):
    """The usage of each limit."""

    usage: list[UsageEntry]


class DoneAnswer(Struct, frozen=True):
    """The answer to a call that has nothing else to say."""

    done: Literal[True] = True


class FieldProblem(Struct, frozen=True):
    """A field that is wrong."""

    field: str
    detail: str


class ProblemAnswer(Struct, frozen=True):
    """A call that cannot be answered, and why: the problem details of RFC 9457."""

    title: str
    status: int
    detail: str
    type: str = "about:blank"
    errors: list[FieldProblem] | UnsetType = UNSET


Answered = DecisionAnswer | VerdictAnswer | UsageAnswer | DoneAnswer | ProblemAnswer

MESSAGE = re.compile(r"(?P<text>.*?)(?: - at `(?:key in )?\$(?P<path>.*)`)?", re.DOTALL)
MISSING = re.compile(r"Object missing required field `(.*)`")
UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
FORMS = {
    "path": "expected a percent-encoded path without the query, which has a field of its own: for example /orders/7",
    "method": "expected a method of HTTP: for example POST",
    "scheme": "expected http, https, ws or wss",
}
COMPARED = (
    (", got ", ", not "),
    (" of length <= ", " with a length of at most "),
    (" of length >= ", " with a length of at least "),
    (" <= ", " of at most "),
    (" >= ", " of at least "),
)
WORDS = {
    "int": "a whole number",
    "float": "a number with a fraction",
    "str": "text",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
}


def field_problem(error: msgspec.ValidationError) -> FieldProblem:
    """Return what msgspec says about a value, as a field and a sentence."""
    found = MESSAGE.fullmatch(str(error))
    assert found is not None
    path, text = (found["path"] or "").replace("[...]", "").removeprefix("."), found["text"]
    for pattern, detail in ((MISSING, "this field is missing"), (UNKNOWN, "there is no such field")):
        named = pattern.fullmatch(text)
        if named is not None:
            return FieldProblem(f"{path}.{named[1][:64]}".removeprefix("."), detail)
    if path in FORMS and (" matching regex " in text or text.startswith("Invalid enum value")):
        return FieldProblem(path, FORMS[path])
    return FieldProblem(path, _plain(text))


def _plain(text: str) -> str:
    """Return msgspec's words for a wrong type without its marks: "expected a whole number, not text"."""
    for marks, words in COMPARED:
        text = text.replace(marks, words)

    def named(found: re.Match[str]) -> str:
        return " or ".join(WORDS.get(word, word) for word in found[1].split(" | "))

    text = re.sub(r"`([^`]*)`", named, text)
    return text[:1].lower() + text[1:]
