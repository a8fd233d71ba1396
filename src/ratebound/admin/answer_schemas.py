"""JSON schemas of what the calls answer, for the OpenAPI document. A test holds every answer to its schema."""

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
INSTANT: Schema = {"type": "string", "format": "date-time"}


def listed(items: Schema, **more: Any) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": items, **more}


def optional(schema: Schema) -> Schema:
    """Return the schema of a value that may be null."""
    return {"oneOf": [schema, {"type": "null"}]}


def record(description: str, *, is_open: bool = False, **properties: Schema) -> Schema:
    """Return the schema of an object that has all these properties, and no others unless it is open."""
    return {
        "type": "object",
        "description": description,
        "properties": properties,
        "required": list(properties),
        "additionalProperties": is_open,
    }


def by_name(schema: Schema) -> Schema:
    """Return the schema of an object whose names are data."""
    return {"type": "object", "additionalProperties": schema}


DONE = record("The call was carried out.", done={"const": True})
REMOVED = record("Whether there was something to remove.", removed=FLAG)
OPENAPI = record("An OpenAPI 3.1 document.", is_open=True, openapi=TEXT)
EVENTS: Schema = {"type": "string", "description": "Server-sent events, until one side closes the connection."}
SESSION = record(
    "Who is signed in. `csrf` belongs into the header X-Ratebound-CSRF of every call that changes something. `live` is"
    " true if api/live sends events; else ask api/figures again and again. `ledger` is true if there is a usage"
    " ledger.",
    name=TEXT,
    role={"enum": ["read", "write"]},
    csrf=TEXT,
    live=FLAG,
    signs_in=FLAG,
    ledger=FLAG,
)

BLOCK = record(
    "A client that an operator has blocked. `problem` says why this has no effect under the policy in force.",
    client=TEXT,
    since=INSTANT,
    until=optional(INSTANT),
    reason=TEXT,
    by=TEXT,
    problem=TEXT,
)
BLOCKS = record("The blocks that hold now, the oldest first.", blocks=listed(BLOCK))
OVERRIDE = record(
    "Limits of its own, or a tier, that an operator has given to a client. No rules means all rules.",
    client=TEXT,
    limits=optional(TEXT),
    tier=optional(TEXT),
    rules=listed(TEXT),
    since=INSTANT,
    until=optional(INSTANT),
    reason=TEXT,
    by=TEXT,
    problem=TEXT,
)
OVERRIDES = record("The overrides that hold now, the oldest first.", overrides=listed(OVERRIDE))
SWITCH = record(
    "How an operator has switched a rule; all rules if `rule` is null. `stale` is true if it has no effect, for the"
    " reason in `problem`: the policy has another candidate by now, or no such rule.",
    rule=optional(TEXT),
    state={"enum": ["on", "off", "shadow", "candidate"]},
    since=INSTANT,
    until=optional(INSTANT),
    reason=TEXT,
    by=TEXT,
    candidate=TEXT,
    problem=TEXT,
    stale=FLAG,
)
SWITCHES = record("The switches that hold now.", switches=listed(SWITCH))
CHANGE = record("A change: who, what, when.", at=INSTANT, by=TEXT, action=TEXT, target=TEXT, detail=TEXT)
CHANGES = record("What operators have changed, newest first.", changes=listed(CHANGE, maxItems=1000))

LIMITS_BY_TIER = by_name(TEXT)
RULE = record(
    "A rule in force. Limits are text by tier. `state` is what holds now; `switch` is what an operator has set.",
    name=TEXT,
    limits=LIMITS_BY_TIER,
    by=listed(TEXT),
    match=record(
        "The conditions, as in the policy. An empty list is no condition.",
        paths=listed(TEXT),
        methods=listed(TEXT),
        hosts=listed(TEXT),
        headers=by_name({"oneOf": [TEXT, FLAG, listed(TEXT)]}),
        tiers=listed(TEXT),
        addresses=listed(TEXT),
    ),
    mode={"enum": ["enforce", "shadow"]},
    state={"enum": ["on", "off", "shadow", "candidate"]},
    switch=optional(SWITCH),
    candidate=optional(LIMITS_BY_TIER),
    penalty=TEXT,
    priority=TEXT,
    stage={"enum": ["early", "late"]},
    default=FLAG,
    final=FLAG,
    cost=TEXT,
    charge=TEXT,
    over=TEXT,
    endpoint=FLAG,
)
DESCRIPTOR = record(
    "A rule for descriptors of Envoy.",
    name=TEXT,
    domain=TEXT,
    entries=listed(TEXT),
    limits=TEXT,
    mode={"enum": ["enforce", "shadow"]},
    state={"enum": ["on", "off", "shadow"]},
    switch=optional(SWITCH),
    over=TEXT,
)
RULES = record(
    "The rules in force. `state` is for all rules: the switch of the process or of the policy, or what an operator has"
    " set.",
    state={"enum": ["on", "off", "shadow"]},
    switch=optional(SWITCH),
    rules=listed(RULE),
    descriptors=listed(DESCRIPTOR),
)

USAGE_ENTRY = record(
    "What a client has used of one limit.",
    rule=TEXT,
    name=TEXT,
    limit=TEXT,
    quota={"type": "integer"},
    used=COUNT,
    remaining={"type": "integer"},
    granted=COUNT,
    resets_at=INSTANT,
    previous=optional(COUNT),
    blocked=FLAG,
    degraded=optional(TEXT),
)
USAGE = record("What a client has used of each limit that counts it.", usage=listed(USAGE_ENTRY))
HOLDERS = record(
    "The slots that a client holds now.",
    holders=listed(record("A slot that is held.", limit=TEXT, id=TEXT, expires_at=INSTANT)),
)

SHADOW_RULE = record(
    "What a shadow or a candidate would have decided, beside what was decided.",
    rule=TEXT,
    candidate=FLAG,
    allowed=COUNT,
    denied=COUNT,
    live_allowed=COUNT,
    live_denied=COUNT,
    since=NUMBER,
)
SHADOW = record("The shadow report.", shadow=listed(SHADOW_RULE))
TOP_CLIENT = {
    **record("A client that was denied.", client=TEXT, denials=COUNT, error=COUNT, blocked=FLAG),
    "properties": {
        "client": TEXT,
        "denials": COUNT,
        "error": COUNT,
        "blocked": {"type": "boolean", "description": "Operators block it, as far as the processes know by now."},
        "name": {"type": "string", "description": "Only if names were asked for, and this instance knows it."},
    },
}
TOP = record("The clients that were denied most.", top=listed(TOP_CLIENT))

# Figures are open: they gain numbers that the page shows.
RATES = record("Decisions in a second.", is_open=True, allowed=NUMBER, denied=NUMBER)
NODE: Schema = {
    "type": "object",
    "description": "A node of the storage. `is_open` is true while its breaker is open: it is not asked.",
    "properties": {"node": TEXT, "is_open": FLAG, "calls": NUMBER, "errors": NUMBER, "p99": optional(NUMBER)},
    "required": ["node", "is_open", "calls", "errors", "p99"],
}
VIEW = record(
    "The figures of all processes. Numbers of decisions and calls are per second.",
    is_open=True,
    at=NUMBER,
    revision=TEXT,
    processes=listed(record("A process.", is_open=True, name=TEXT, age=NUMBER, is_local=FLAG)),
    problem=TEXT,
    total=record("Decisions in a second.", is_open=True, allowed=NUMBER, denied=NUMBER, degraded=NUMBER, shed=NUMBER),
    latency=optional(record("Seconds.", is_open=True, p50=NUMBER, p99=NUMBER)),
    rules=listed(
        record(
            "The decisions of a rule.",
            is_open=True,
            rule=TEXT,
            allowed=NUMBER,
            denied=NUMBER,
            used=optional(NUMBER),
            shadow=optional(RATES),
            candidate=optional(RATES),
        )
    ),
    storage=record(
        "The storage.",
        is_open=True,
        nodes=listed(NODE),
        keys=optional(COUNT),
        max_keys=optional(COUNT),
    ),
    factors=by_name(NUMBER),
    slots=listed(record("Slots that are held.", is_open=True, limit=TEXT, held=COUNT)),
    top=listed(TOP_CLIENT),
    penalized=listed(record("A client that a penalty blocks.", is_open=True, client=TEXT, limit=TEXT, seconds=NUMBER)),
    shadow_report=listed(SHADOW_RULE),
)
POINTS = record("Points in time, the last one at `end`.", is_open=True, step=NUMBER, end=NUMBER, points=listed({}))
HISTORY = record(
    "The figures of the last two minutes and of the last hour.",
    is_open=True,
    recent=POINTS,
    hour=POINTS,
    rules=by_name(listed({})),
)

# The usage ledger. Settling may take back more than a span has used, so its numbers may be negative.
WHOLE: Schema = {"type": "integer"}


def used(description: str, **properties: Schema) -> Schema:
    """Return the schema of an object with these properties, and with what was used."""
    return record(description, is_open=False, **properties, units=WHOLE, allowed=WHOLE, denied=WHOLE, overage=WHOLE)


LEDGER_TOTALS = record(
    "What all clients have used in each span of time, the oldest first. `at` is when the span begins.",
    by=TEXT,
    zone=TEXT,
    since=INSTANT,
    until=INSTANT,
    totals=listed(used("One span.", at=INSTANT)),
)
USAGE_HISTORY = record(
    "What a client has used of each rule in each span of time, the oldest first. `at` is when the span begins.",
    by=TEXT,
    zone=TEXT,
    since=INSTANT,
    until=INSTANT,
    usage=listed(used("One rule in one span.", at=INSTANT, rule=TEXT)),
)


def perhaps_named(schema: Schema) -> Schema:
    """Return the schema of a client that may have a name."""
    name = {"type": "string", "description": "Only if names were asked for, and the ledger keeps them."}
    return {**schema, "properties": {**schema["properties"], "name": name}}


LEDGER_TOP = record(
    "The clients with the most of a rule, as digests.",
    top=listed(perhaps_named(used("A client and a rule.", client=TEXT, rule=TEXT))),
)
LEDGER_DENIALS = record(
    "What each rule has decided, the highest share of denials first. `rate` is that share.",
    denials=listed(record("A rule.", rule=TEXT, allowed=WHOLE, denied=WHOLE, rate=NUMBER)),
)
LEDGER_OVERAGE = record(
    "The units above metered quotas in a month, for billing: by client and rule.",
    month=TEXT,
    zone=TEXT,
    overage=listed(perhaps_named(record("A line.", client=TEXT, rule=TEXT, units=WHOLE, overage=WHOLE))),
)
LEDGER_AUDIT = record("What operators have changed, newest first, from the ledger.", changes=listed(CHANGE))

POLICY = record(
    "The policy in force. `text` is null if it was given as an object. Passwords in URLs are left out.",
    source=TEXT,
    text=optional(TEXT),
    format=TEXT,
    error=TEXT,
    storage=TEXT,
    can_reload=FLAG,
)
POLICY_CHECK = record(
    "What a policy changes, and what is wrong with it. It is not in force if something is wrong.",
    valid=FLAG,
    problems=listed(record("An error in a policy.", where=TEXT, message=TEXT, line=optional({"type": "integer"}))),
    changes=listed(record("A change.", where=TEXT, what=TEXT, detail=TEXT, starts_anew=FLAG)),
)
HEALTH = record(
    "Whether the limiter is healthy: `problems` says why not.",
    healthy=FLAG,
    problems=listed(TEXT),
    version=TEXT,
    compiled=FLAG,
)
PROBLEM = {
    "type": "object",
    "description": "A call that was not carried out, and why: the problem details of RFC 9457.",
    "properties": {
        "type": TEXT,
        "title": TEXT,
        "status": {"type": "integer"},
        "detail": TEXT,
        "errors": listed(record("A field that is wrong.", field=TEXT, detail=TEXT)),
    },
    "required": ["type", "title", "status", "detail"],
}
