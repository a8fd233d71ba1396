"""The OpenAPI document of the admin API, made of the table of calls."""

from typing import Any

from ratebound import __version__
from ratebound.admin import answer_schemas
from ratebound.admin.call_fields import KINDS, CallField
from ratebound.admin.calls import CALLS, AdminCall
from ratebound.admin.same_origin import CSRF_HEADER
from ratebound.admin.sign_in import COOKIE

Document = dict[str, Any]

PROBLEMS = {
    "400": "The body is not JSON, or the query cannot be read.",
    "401": "Nobody is signed in, or the token is wrong.",
    "403": "The role does not suffice, or another site made the browser send it.",
    "404": "There is nothing of that name.",
    "409": "Others changed the same document again and again. Try again.",
    "413": "The body is too long.",
    "415": "The body is not declared as JSON.",
    "422": "A field is wrong. `errors` names it.",
    "429": "There were too many wrong tokens, or another dry run of an operator with the role read is under way.",
    "501": "The storage or the server cannot do this.",
    "502": "The URL of the policy could not be read.",
    "503": "The storage could not answer.",
}
DESCRIPTION = (
    "Programs send a token: `Authorization: Bearer TOKEN`. Browsers sign in, and send the cookie; then every call that"
    " changes something needs the header `X-Ratebound-CSRF` with the value of `csrf` in `api/session`. Tokens have the"
    " role read or write."
)


def openapi(*, has_sessions: bool = True) -> Document:
    """Return the OpenAPI 3.1 document. Without `has_sessions` operators sign in elsewhere."""
    paths: dict[str, Document] = {}
    for call in CALLS:
        if has_sessions or call.name not in ("sign_in", "sign_out"):
            paths.setdefault(f"/{call.path}", {})[call.method.lower()] = _operation(call)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Ratebound administration",
            "version": __version__,
            "summary": "See who is limited, and act on it.",
            "description": DESCRIPTION,
        },
        "servers": [{"url": "."}],
        "paths": paths,
        "components": {
            "schemas": {"Problem": answer_schemas.PROBLEM},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": COOKIE},
            },
        },
        "security": [{"bearer": []}, {"session": []}],
    }


def _operation(call: AdminCall) -> Document:
    operation: Document = {
        "operationId": call.name,
        "summary": call.summary,
        "description": f"Role: {call.role}." if call.role else "Role: none.",
    }
    if call.role is None:
        operation["security"] = []
    parameters = [] if call.has_body else [_parameter(field, call) for field in call.fields]
    if call.is_write:
        parameters.append(
            {
                "name": CSRF_HEADER,
                "in": "header",
                "required": False,
                "description": "Needed with a cookie: the value of `csrf` in `api/session`.",
                "schema": {"type": "string"},
            }
        )
    if parameters:
        operation["parameters"] = parameters
    if call.has_body and call.fields:
        content: Document = {"schema": _body(call)}
        if call.example:
            content["example"] = dict(call.example)
        needed = any(field.is_required for field in call.fields) or bool(call.either)
        operation["requestBody"] = {"required": needed, "content": {"application/json": content}}
    kind = "text/event-stream" if call.name == "live" else "application/json"
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    operation["responses"] = {
        "200": {
            "description": "The call was carried out.",
            "content": {kind: {"schema": dict(call.answer)}},
        },
        **{status: {"description": text, "content": problem} for status, text in PROBLEMS.items()},
    }
    return operation


def _parameter(field: CallField, call: AdminCall) -> Document:
    found = {
        "name": field.name,
        "in": "query",
        "required": field.is_required,
        "description": field.text,
        "schema": dict(KINDS[field.kind].schema),
    }
    if field.name in call.example:
        found["example"] = call.example[field.name]
    return found


def _body(call: AdminCall) -> Document:
    properties = {}
    for field in call.fields:
        schema = dict(KINDS[field.kind].schema)
        if not field.is_required:
            schema = {"anyOf": [schema, {"type": "null"}]}
        properties[field.name] = {**schema, "description": field.text}
    found: Document = {
        "type": "object",
        "properties": properties,
        "required": [field.name for field in call.fields if field.is_required],
        "additionalProperties": False,
    }
    if call.either:
        found["allOf"] = [
            {"oneOf": [{"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in names]}
            for names in call.either
        ]
    return found
