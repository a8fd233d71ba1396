"""The OpenAPI document of the HTTP API, made of the same messages that the API reads and writes."""

from typing import Any, NamedTuple

import msgspec

from ratebound import __version__
from ratebound.admin.openapi import openapi as admin_openapi
from ratebound.service.connections import Bounds
from ratebound.service.http_messages import (
    CancelCall,
    CommitCall,
    DecideCall,
    DecisionAnswer,
    DoneAnswer,
    HitCall,
    PeekCall,
    ProblemAnswer,
    ReleaseCall,
    ReserveCall,
    ResetCall,
    SettleCall,
    UsageAnswer,
    UsageCall,
    VerdictAnswer,
)

Document = dict[str, Any]
TOKEN = "rb1.…"
OWN = {"key": "user:42", "limits": "100/minute"}
PROBLEMS = {
    "400": "The body is not JSON.",
    "401": "The bearer token is missing or wrong.",
    "409": "The token in the body was used before.",
    "410": "The token in the body has expired.",
    "413": "The body is too long.",
    "415": "The body is not declared as JSON.",
    "422": "A field is wrong. `errors` names it.",
    "503": "The storage could not answer.",
}
OF_TOKENS = ("409", "410")


class Operation(NamedTuple):
    """A path: its name, a sentence, the messages, and an example of each."""

    name: str
    summary: str
    call: type[Any]
    answer: type[Any]
    example: Document
    answered: Document
    takes_token: bool = False


_LIMIT: Document = {"text": "100/minute", "name": "100/minute", "count": 100, "period": 60.0, "burst": 100}
_OUTCOME: Document = {
    "check": 0,
    "limit": _LIMIT,
    "allowed": True,
    "remaining": 99,
    "retry_after": 0.0,
    "reset_after": 60.0,
    "delay": 0.0,
}
_DECISION: Document = {
    "allowed": True,
    "remaining": 99,
    "limit": _LIMIT,
    "retry_after": 0.0,
    "reset_after": 60.0,
    "delay": 0.0,
    "blocked": False,
    "overage": 0,
    "degraded": None,
    "unavailable": False,
    "outcomes": [_OUTCOME],
}
_USAGE: Document = {
    "name": "100/minute",
    "rule": "",
    "limit": _LIMIT,
    "quota": 100,
    "used": 1,
    "remaining": 99,
    "granted": 0,
    "resets_at": "2030-01-01T00:01:00Z",
    "previous": None,
    "blocked": False,
    "degraded": None,
}
_DENIED: Document = {
    **_DECISION,
    "allowed": False,
    "remaining": 0,
    "retry_after": 12.5,
    "outcomes": [{**_OUTCOME, "allowed": False, "remaining": 0, "retry_after": 12.5}],
}
_VERDICT: Document = {
    "allowed": False,
    "status": 429,
    "kind": "limited",
    "headers": {"Content-Type": "application/problem+json", "Retry-After": "13"},
    "decision": _DENIED,
    "body": '{"title":"Quota exceeded","status":429}',
}
_DONE: Document = {"done": True}

OPERATIONS = {
    "/v1/decide": Operation(
        "decide",
        "Let the policy decide a request that you describe.",
        DecideCall,
        VerdictAnswer,
        {"method": "POST", "path": "/orders", "address": "203.0.113.7", "user": "42"},
        _VERDICT,
    ),
    "/v1/hit": Operation("hit", "Spend limits of your own.", HitCall, DecisionAnswer, OWN, _DECISION),
    "/v1/peek": Operation(
        "peek", "Ask what a hit would say. Nothing changes.", PeekCall, DecisionAnswer, OWN, _DECISION
    ),
    "/v1/reserve": Operation(
        "reserve",
        "Charge an estimate, to be committed or cancelled later.",
        ReserveCall,
        DecisionAnswer,
        {**OWN, "cost": 50, "lifetime": 600},
        {**_DECISION, "reservation": TOKEN},
    ),
    "/v1/commit": Operation(
        "commit",
        "Settle a reservation by its real cost, and release its slots.",
        CommitCall,
        DecisionAnswer,
        {"reservation": TOKEN, "cost": 17},
        _DECISION,
        takes_token=True,
    ),
    "/v1/cancel": Operation(
        "cancel",
        "Refund a reservation, and release its slots.",
        CancelCall,
        DoneAnswer,
        {"reservation": TOKEN},
        _DONE,
        takes_token=True,
    ),
    "/v1/settle": Operation(
        "settle",
        "Correct the cost of a hit or a decision.",
        SettleCall,
        DecisionAnswer,
        {"settle": TOKEN, "cost": 250},
        _DECISION,
        takes_token=True,
    ),
    "/v1/release": Operation(
        "release",
        "Release the slots of a hit or a decision. Can be repeated.",
        ReleaseCall,
        DoneAnswer,
        {"release": TOKEN},
        _DONE,
    ),
    "/v1/usage": Operation("usage", "Read usage. Nothing changes.", UsageCall, UsageAnswer, OWN, {"usage": [_USAGE]}),
    "/v1/reset": Operation("reset", "Forget what was spent.", ResetCall, DoneAnswer, OWN, _DONE),
}
# What the types cannot say: of these fields a call has one set.
EITHER: dict[str, list[list[str]]] = {
    **{name: [["key", "limits"], ["checks"]] for name in ("HitCall", "PeekCall", "ReserveCall")},
    **{name: [["key", "limits"], ["identity"]] for name in ("UsageCall", "ResetCall")},
}


def openapi(bounds: Bounds | None = None) -> Document:
    """Return the OpenAPI 3.1 document of the data plane, as JSON. `bounds` has the largest array."""
    batch = (bounds or Bounds()).batch
    kinds = [kind for one in OPERATIONS.values() for kind in (one.call, one.answer)]
    unique = list(dict.fromkeys([*kinds, ProblemAnswer]))
    _, schemas = msgspec.json.schema_components(unique, ref_template="#/components/schemas/{name}")
    for schema in schemas.values():
        schema["description"] = " ".join(schema["description"].split())
    for name, sets in EITHER.items():
        schemas[name]["anyOf"] = [{"required": fields} for fields in sets]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Ratebound",
            "version": __version__,
            "summary": "Rate limits for programs in any language.",
            "description": "The body of every call may be an array of calls. The answer is then an array in the same"
            " order, of answers and of problems.",
        },
        "paths": {
            **{path: {"post": _operation(one, batch)} for path, one in OPERATIONS.items()},
            "/healthz": {"get": _probe("healthz", "Say that the worker runs.", {"200": "It runs."})},
            "/readyz": {
                "get": _probe("readyz", "Say whether the worker can decide.", {"200": "It can.", "503": "It cannot."})
            },
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}, {}],
    }


def service_openapi(bounds: Bounds | None = None) -> Document:
    """Return one document for the data plane and the admin API. They are served on two ports, which tags tell apart."""
    document, admin = openapi(bounds), admin_openapi()
    for tag, found in (("decisions", document), ("administration", admin)):
        for methods in found["paths"].values():
            for operation in methods.values():
                operation["tags"] = [tag]
    for methods in admin["paths"].values():
        for operation in methods.values():  # `usage` and `reset` are calls of both
            operation["operationId"] = f"admin_{operation['operationId']}"
            operation.setdefault("security", admin["security"])
    document["info"]["description"] += f" The admin API is served on the admin port. {admin['info']['description']}"
    document["tags"] = [
        {"name": "decisions", "description": "Calls of programs, on the HTTP port."},
        {"name": "administration", "description": "Calls of operators, on the admin port."},
    ]
    document["paths"] |= admin["paths"]
    document["components"]["schemas"] |= admin["components"]["schemas"]
    document["components"]["securitySchemes"] |= admin["components"]["securitySchemes"]
    return document


def _ref(kind: type[Any]) -> Document:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _operation(one: Operation, batch: int) -> Document:
    calls = {"type": "array", "maxItems": batch, "items": _ref(one.call)}
    answers = {"type": "array", "maxItems": batch, "items": {"anyOf": [_ref(one.answer), _ref(ProblemAnswer)]}}
    problem = {"application/problem+json": {"schema": _ref(ProblemAnswer)}}
    problems = {
        status: {"description": text, "content": problem}
        for status, text in PROBLEMS.items()
        if one.takes_token or status not in OF_TOKENS
    }
    return {
        "operationId": one.name,
        "summary": one.summary,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"oneOf": [_ref(one.call), calls]}, "example": one.example}},
        },
        "responses": {
            "200": {
                "description": "The call worked. For a decision, see `allowed`.",
                "content": {
                    "application/json": {"schema": {"oneOf": [_ref(one.answer), answers]}, "example": one.answered}
                },
            },
            **problems,
        },
    }


def _probe(name: str, summary: str, answers: dict[str, str]) -> Document:
    content = {"text/plain": {"schema": {"type": "string"}}}
    return {
        "operationId": name,
        "summary": summary,
        "security": [],
        "responses": {status: {"description": text, "content": content} for status, text in answers.items()},
    }
