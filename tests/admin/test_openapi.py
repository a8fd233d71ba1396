"""The OpenAPI document is true: on real servers, what it allows is answered as it says, and nothing makes a 500."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis_jsonschema import from_schema
from jsonschema import Draft202012Validator

from ratebound.admin.call_fields import KINDS
from ratebound.admin.calls import CALLS, AdminCall
from ratebound.admin.openapi import openapi
from tests.admin.live_sites import SERVERS, LiveSite
from tests.admin.sites import WRITE_TOKEN, Answered, body_of, path_of

DOCUMENT = openapi()
FUZZED = [call for call in CALLS if call.name not in ("live", "sign_in")]
SOME = settings(max_examples=30, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module", params=sorted(SERVERS))
def live(request: pytest.FixtureRequest) -> Iterator[LiveSite]:
    with SERVERS[request.param]() as site:
        yield site


def named(call: AdminCall) -> str:
    return call.name


def operation(call: AdminCall) -> Any:
    return DOCUMENT["paths"][f"/{call.path}"][call.method.lower()]


def inlined(schema: Any) -> Any:
    if "$ref" in schema:
        return DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def checked(call: AdminCall, answer: Answered) -> Any:
    """The answer, if the document knows it. Only a storage or a server that cannot do it is a 5xx."""
    assert answer.status < 500 or answer.status in (501, 503), answer
    kind = "application/json" if answer.status == 200 else "application/problem+json"
    assert answer.headers["content-type"] == kind
    assert not {*b"<>&"} & {*answer.body}
    content = operation(call)["responses"][str(answer.status)]["content"]
    Draft202012Validator(inlined(content[kind]["schema"])).validate(answer.json)
    return answer.json


def valid_arguments(call: AdminCall) -> st.SearchStrategy[dict[str, Any]]:
    """Arguments that the document allows; half of them name what exists."""
    known = {
        "client": st.sampled_from(["user:42", "203.0.113.7", "2001:db8::/48", "<b>:x", "user:<script>"]),
        "rule": st.sampled_from(["search", "login", "trial", "edge", "none"]),
        "digest": st.sampled_from(["00000000000000a1", "00000000000000a3", "00000000000000ff"]),
        "for": st.sampled_from(["1 hour", 60, 0.5, "5 eons"]),
        "limits": st.sampled_from(["5/minute", "deny", "often"]),
        "tier": st.sampled_from(["free", "gold"]),
        "rules": st.lists(st.sampled_from(["search", "all"]), min_size=1, max_size=3),
        "since": st.sampled_from(["2026-11-01", "2026-11", "1970-01-01", "9000-12-31T23:59:59-12:00"]),
        "until": st.sampled_from(["2026-12-01", "2026-12-01T00:00:00+14:00", "0001-01-01"]),
        "zone": st.sampled_from(["Europe/Berlin", "Asia/Kolkata", "../etc/passwd"]),
        "text": st.sampled_from(["rules: [{name: a, limits: 1/day}]", "rules: ["]),
    }
    fields = {
        field.name: st.one_of(known.get(field.name, st.nothing()), from_schema(dict(KINDS[field.kind].schema)))
        for field in call.fields
    }
    needed = {field.name for field in call.fields if field.is_required}
    return st.fixed_dictionaries(
        {name: fields[name] for name in needed}, optional={name: fields[name] for name in fields if name not in needed}
    )


def send(live: LiveSite, call: AdminCall, arguments: dict[str, Any]) -> Answered:
    if call.has_body:
        return live.ask(call.method, f"/{call.path}", json.dumps(arguments).encode())
    query = urlencode(arguments, doseq=True, errors="surrogatepass")
    return live.ask(call.method, f"/{call.path}?{query}" if query else f"/{call.path}")


def test_the_document_is_valid_and_complete() -> None:
    assert DOCUMENT["openapi"] == "3.1.0"
    found = {
        (method.upper(), path.removeprefix("/"), one["operationId"])
        for path, methods in DOCUMENT["paths"].items()
        for method, one in methods.items()
    }
    assert found == {(call.method, call.path, call.name) for call in CALLS}
    for call in CALLS:
        for answer in operation(call)["responses"].values():
            for content in answer["content"].values():
                Draft202012Validator.check_schema(inlined(content["schema"]))
        if call.has_body and call.fields:
            schema = operation(call)["requestBody"]["content"]["application/json"]["schema"]
            Draft202012Validator.check_schema(schema)
            Draft202012Validator(schema).validate(dict(call.example))
        assert operation(call)["summary"].endswith(".")


def test_the_table_has_a_name_and_a_sentence_for_everything() -> None:
    assert len({call.name for call in CALLS}) == len(CALLS)
    for call in CALLS:
        assert call.summary.endswith(".")
        for field in call.fields:
            assert field.text.endswith("."), field
            assert field.kind in KINDS
        assert {name for names in call.either for name in names} <= {field.name for field in call.fields}


@pytest.mark.parametrize("call", FUZZED, ids=named)
def test_the_examples_are_answered(live: LiveSite, call: AdminCall) -> None:
    body = body_of(call)
    answer = live.ask(call.method, f"/{path_of(call)}", None if body is None else json.dumps(body).encode())
    checked(call, answer)
    assert answer.status == (409 if call.name == "reload_policy" else 200), answer


@pytest.mark.parametrize("call", [call for call in FUZZED if call.fields], ids=named)
def test_what_the_document_allows_is_answered_as_it_says(live: LiveSite, call: AdminCall) -> None:
    @SOME
    @given(valid_arguments(call))
    def asked(arguments: dict[str, Any]) -> None:
        checked(call, send(live, call, arguments))

    asked()


@pytest.mark.parametrize("call", FUZZED, ids=named)
def test_nothing_else_that_is_sent_is_a_fault_of_ours(live: LiveSite, call: AdminCall) -> None:
    anything = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=5,
    )
    names = st.sampled_from([*(field.name for field in call.fields), "other"])

    @SOME
    @given(st.one_of(st.dictionaries(names, anything, max_size=5), anything), st.binary(max_size=50))
    def asked(content: Any, raw: bytes) -> None:
        if call.has_body:
            checked(call, live.ask(call.method, f"/{call.path}", json.dumps(content).encode()))
            checked(call, live.ask(call.method, f"/{call.path}", raw))
        elif isinstance(content, dict):
            checked(call, send(live, call, {name: str(value) for name, value in content.items()}))
            escaped = "".join(f"%{byte:02x}" for byte in raw)
            checked(call, live.ask(call.method, f"/{call.path}?{escaped}&client={escaped}"))

    asked()


@pytest.mark.parametrize("server", sorted(SERVERS))
def test_signing_in_is_answered_as_the_document_says(server: str) -> None:
    call = next(call for call in CALLS if call.name == "sign_in")
    with SERVERS[server]() as live:
        right = live.ask("POST", "/api/session", json.dumps({"token": WRITE_TOKEN}).encode(), "", Origin=live.origin)
        assert checked(call, right)["role"] == "write"

        @SOME
        @given(valid_arguments(call))
        def asked(arguments: dict[str, Any]) -> None:
            body = json.dumps(arguments).encode()
            answer = live.ask("POST", "/api/session", body, "", Origin=live.origin)
            checked(call, answer)
            assert answer.status in (401, 422, 429)

        asked()


@settings(SOME, max_examples=60)
@given(path=st.text(max_size=30), method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"]))
def test_no_path_and_no_method_is_a_fault_of_ours(live: LiveSite, path: str, method: str) -> None:
    escaped = "".join(f"%{byte:02x}" for byte in path.encode("utf-8", "replace"))
    answer = live.ask(method, f"/{escaped}")
    assert answer.status in (200, 404, 405)
