"""The OpenAPI document is true: what it allows is answered as it says, and nothing that is sent makes a 5xx."""

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from ratebound.admin.calls import CALLS
from ratebound.policy import Match, Policy, Rule
from ratebound.service.bearer_tokens import BearerTokens
from ratebound.service.connections import Bounds, Connections
from ratebound.service.http1 import Http1Connection, problem
from ratebound.service.openapi import OPERATIONS, openapi, service_openapi
from ratebound.service.routes import ServiceRoutes
from tests.service.http_calls import HOST, an_api, an_engine, call

DOCUMENT = openapi()
PATHS = sorted(OPERATIONS)
TOKEN = "a-token-of-the-tests-0123456789"
POLICY = Policy(
    rules=[
        Rule("orders", "1000000/minute; 5 concurrent", by=["user", "address"], match=Match(paths=["/orders/*"])),
        Rule("login", "1000000/minute", by="body.username", match=Match(paths=["/login"])),
        Rule("early", "1000000/minute", by="address", stage="early"),
        Rule("all", "3/minute", by="address"),
    ],
    block=["203.0.113.9"],
)


def inlined(schema: Any) -> Any:
    """A schema that stands by itself: with the components that it refers to."""
    text = json.dumps({**schema, "$defs": DOCUMENT["components"]["schemas"]})
    return json.loads(text.replace("#/components/schemas/", "#/$defs/"))


def answer_schema(path: str, status: int, *, is_problem: bool) -> Any:
    content = DOCUMENT["paths"][path]["post"]["responses"][str(status)]["content"]
    return inlined(content["application/problem+json" if is_problem else "application/json"]["schema"])


class Live:
    """A server in a thread of its own, and one connection to it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._connection = HTTPConnection(HOST, port, timeout=20)

    def close(self) -> None:
        self._connection.close()

    def post(self, path: str, body: bytes, **headers: str) -> tuple[int, dict[str, str], bytes]:
        self._connection.request(
            "POST", path, body, {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}", **headers}
        )
        found = self._connection.getresponse()
        return found.status, {name.lower(): value for name, value in found.getheaders()}, found.read()


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    ready = threading.Event()
    found: list[Any] = []

    async def main() -> None:
        engine = an_engine(policy=POLICY)
        connections = Connections(Bounds())
        routes = ServiceRoutes(
            an_api(engine).routes, lambda _: problem(404, "No."), BearerTokens([TOKEN]), is_ready=lambda: True
        )
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Http1Connection(routes, connections), HOST, 0)
        end = asyncio.Event()
        found.extend((server.sockets[0].getsockname()[1], loop, end))
        ready.set()
        await end.wait()
        server.close()
        await connections.stop(1)

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert ready.wait(20)
    port, loop, end = found
    with closing(Live(port)) as client:
        yield client
    loop.call_soon_threadsafe(end.set)
    thread.join(20)


def checked(path: str, status: int, headers: dict[str, str], body: bytes) -> Any:
    """The answer as JSON, if it is one that the document knows."""
    assert status < 500, (status, body)
    is_problem = status != 200
    assert headers["content-type"] == ("application/problem+json" if is_problem else "application/json")
    answer = json.loads(body)
    Draft202012Validator(answer_schema(path, status, is_problem=is_problem)).validate(answer)
    return answer


def test_the_document_is_valid_and_complete() -> None:
    text = json.dumps(DOCUMENT)
    assert DOCUMENT["openapi"] == "3.1.0"
    for name in re.findall(r"#/components/schemas/(\w+)", text):
        assert name in DOCUMENT["components"]["schemas"]
    for schema in DOCUMENT["components"]["schemas"].values():
        Draft202012Validator.check_schema(inlined(schema))
        assert schema["description"].endswith(".")
    assert set(DOCUMENT["paths"]) == {*PATHS, "/healthz", "/readyz"}
    assert {path.encode() for path in PATHS} == set(an_api().routes)
    names = [DOCUMENT["paths"][path]["post"]["operationId"] for path in PATHS]
    assert len({*names}) == len(names)


def test_a_batch_is_as_long_as_the_bounds_say() -> None:
    schema = openapi(Bounds(batch=7))["paths"]["/v1/hit"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]
    assert schema["oneOf"][1]["maxItems"] == 7


@pytest.mark.parametrize("path", PATHS)
def test_the_examples_of_the_document_are_true(path: str) -> None:
    operation = DOCUMENT["paths"][path]["post"]
    asked = operation["requestBody"]["content"]["application/json"]
    told = operation["responses"]["200"]["content"]["application/json"]
    for one in (asked, told):
        Draft202012Validator(inlined(one["schema"])).validate(one["example"])
    found = call(an_api(), path, asked["example"])
    assert found.status == (422 if "rb1." in json.dumps(asked["example"]) else 200)


def values_of(schema: Any) -> st.SearchStrategy[Any]:
    """Values that a schema of the document allows."""
    if "$ref" in schema:
        return values_of(DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema.get("type") == "object":
        return objects_of(schema)
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return st.one_of(*map(values_of, schema[word]))
    if "pattern" in schema:
        return st.from_regex(schema["pattern"])
    if schema["type"] == "array":
        return st.lists(values_of(schema["items"]), min_size=schema.get("minItems", 0), max_size=4)
    simple: dict[str, st.SearchStrategy[Any]] = {
        "null": st.none(),
        "boolean": st.booleans(),
        "integer": st.integers(schema.get("minimum"), schema.get("maximum")),
        "string": st.text(max_size=schema.get("maxLength", 50)),
    }
    return simple[schema["type"]]


def objects_of(schema: Any) -> st.SearchStrategy[Any]:
    """Objects that a schema allows: any of its fields, or one of the sets of fields that it needs."""
    if "properties" not in schema:
        return st.dictionaries(st.text(), values_of(schema["additionalProperties"]), max_size=4)
    fields = {name: values_of(one) for name, one in schema["properties"].items()}
    sets = [schema.get("required", []), *(one["required"] for one in schema.get("anyOf", ()))]
    return st.one_of(
        *(
            st.fixed_dictionaries(
                {name: fields[name] for name in needed},
                optional={name: one for name, one in fields.items() if name not in needed},
            )
            for needed in sets
        )
    )


def calls(path: str) -> st.SearchStrategy[Any]:
    """Bodies that the document allows for a path."""
    return values_of(DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"])


LIMITS = st.sampled_from(
    ["1/minute", "5/second burst 9; 100/day", "2 concurrent", "3 distinct account/hour", "1 strike/hour block 1 minute"]
)
KEYS = st.sampled_from(["k", "user:42", "", "\0", "é" * 300, "a" * 1024])
COSTS = st.one_of(st.integers(-3, 12), st.sampled_from([0, 10**12, 10**12 + 1, 2**53, 2**63, 2**64, 10**300]))
VALUES = st.one_of(st.none(), st.dictionaries(st.sampled_from(["account", "x"]), st.one_of(st.text(), st.integers())))
CHECKS = st.fixed_dictionaries({"key": KEYS, "limits": LIMITS}, optional={"cost": COSTS, "values": VALUES})
MEANT = {
    "/v1/decide": st.fixed_dictionaries(
        {"path": st.sampled_from(["/", "/orders/7", "/login", "*", "/%", "/%00", "/é\n", "/a/../b", "//"])},
        optional={
            "method": st.sampled_from(["GET", "post", "OPTIONS", "X-Y"]),
            "address": st.sampled_from(["203.0.113.7", "203.0.113.9", "::1", "10.0.0.1:80", "0.0.0.0", "x", None]),
            "user": st.one_of(st.none(), st.text(), st.integers()),
            "headers": st.dictionaries(
                st.sampled_from(["Host", "host", "X-Forwarded-For", "Content-Type", "Cookie", "", "é"]),
                st.one_of(st.text(), st.lists(st.text(), max_size=3)),
            ),
            "body": st.one_of(st.none(), st.text(), st.sampled_from(['{"username": "a"}', "{", "[" * 5000])),
            "query": st.text(),
            "host": st.text(),
            "route": st.text(),
            "settle": st.booleans(),
        },
    ),
    "/v1/hit": st.one_of(
        CHECKS, st.fixed_dictionaries({"checks": st.lists(CHECKS, max_size=4)}, optional={"settle": st.booleans()})
    ),
    "/v1/usage": st.one_of(
        st.fixed_dictionaries({"key": KEYS, "limits": LIMITS}),
        st.fixed_dictionaries({"identity": st.sampled_from(["user:1", "203.0.113.7", "x", "", ":", "global"])}),
    ),
}


@pytest.mark.parametrize("path", PATHS)
def test_nothing_that_the_document_allows_makes_a_5xx(live: Live, path: str) -> None:
    meant = MEANT.get(path, MEANT["/v1/hit" if path in ("/v1/peek", "/v1/reserve") else "/v1/usage"])

    @settings(suppress_health_check=list(HealthCheck))
    @given(st.one_of(calls(path), meant, st.lists(meant, max_size=5)))
    def test(body: Any) -> None:
        answer = checked(path, *live.post(path, json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")))
        if isinstance(body, list) and isinstance(answer, list):
            assert len(answer) == len(body)

    test()


RAW = [
    b"",
    b" ",
    b"\xff\xfe",
    b"\xef\xbb\xbf{}",
    b"null",
    b"true",
    b'"text"',
    b"7",
    b"NaN",
    b"-Infinity",
    b"{}",
    b"[]",
    b"[null]",
    b"[[]]",
    b"[" * 200_000,
    b'{"a":' * 100_000,
    b"[" + b'{"key":' * 100_000,
    b'{"key":"k","limits":"1/minute","cost":1e400}',
    b'{"key":"k","limits":"1/minute","cost":' + b"9" * 100_000 + b"}",
    b'{"key":"k","limits":"1/minute","cost":-0}',
    b'{"key":"k","limits":"1/minute","cost":1.0}',
    b'{"key":"k","limits":"1/minute","values":{"a":' + b"1" * 5000 + b"}}",
    b'{"key":"k","key":"l","limits":"1/minute"}',
    b'{"key":"\\ud800","limits":"1/minute"}',
    b'{"key":"\\udc00\\ud800","limits":"1/minute"}',
    b'{"key":"\\ud800A","limits":"1/minute","path":"/\\ud800A","body":"\\ud800A"}',
    b'{"path":"/","body":"\\udfff","user":"\\ud800\\u0041"}',
    b'{"key":"\xed\xa0\x80","limits":"1/minute"}',
    b'{"key":"\\u0000","limits":"\\u0000"}',
    b'{"key":"k","limits":"' + b"1/minute;" * 120 + b'"}',
    b'{"key":"k","limits":"' + b"9" * 900 + b'/minute"}',
    '{"key":"k","limits":"١/minute"}'.encode(),
    b'{"path":"/","headers":{"a":["' + b"x" * 500_000 + b'"]}}',
    b'{"path":"/' + b"%2e/" * 2000 + b'"}',
    b'{"settle":"rb1.' + b"A" * 700_000 + b'","cost":1}',
    b'{"reservation":"rb1.","cost":[' + b"1," * 100_000 + b"1]}",
    b'{"release":"rb1.\\u0000"}',
    b'{"identity":["","",""]}',
    b'{"identity":"jwt:sub:1","rule":"\\u0000"}',
]


@pytest.mark.parametrize("path", PATHS)
def test_no_bytes_make_a_5xx(live: Live, path: str) -> None:
    for body in RAW:
        checked(path, *live.post(path, body))

    @settings(suppress_health_check=list(HealthCheck))
    @given(st.one_of(st.binary(max_size=200), st.tuples(st.sampled_from(RAW), st.integers(0, 60)).map(cut)))
    def test(body: bytes) -> None:
        checked(path, *live.post(path, body))

    test()


def cut(parts: tuple[bytes, int]) -> bytes:
    return parts[0][: parts[1]]


TOKENS: dict[str, Callable[[str], Any]] = {
    "/v1/settle": lambda token: {"settle": token, "cost": 2},
    "/v1/commit": lambda token: {"reservation": token, "cost": 2},
    "/v1/cancel": lambda token: {"reservation": token},
    "/v1/release": lambda token: {"release": token},
}


@pytest.mark.parametrize("path", sorted(TOKENS))
def test_tokens_are_answered_as_the_document_says(live: Live, path: str) -> None:
    asked = {"key": path, "limits": "1000/minute; 500 concurrent"}
    hit = checked("/v1/hit", *live.post("/v1/hit", json.dumps({**asked, "settle": True}).encode()))
    reserved = checked("/v1/reserve", *live.post("/v1/reserve", json.dumps(asked).encode()))
    known = {"/v1/settle": hit["settle"], "/v1/release": hit["release"]}
    body = json.dumps(TOKENS[path](known.get(path, reserved["reservation"]))).encode()
    first, second = live.post(path, body), live.post(path, body)
    checked(path, *first)
    checked(path, *second)
    assert (first[0], second[0]) == (200, 200 if path == "/v1/release" else 409)


def test_other_answers_of_the_routes_are_in_the_document(live: Live) -> None:
    checked("/v1/hit", *live.post("/v1/hit", b"{}", Authorization="Bearer wrong"))
    checked("/v1/hit", *live.post("/v1/hit", b"{}", **{"Content-Type": "text/plain"}))
    with closing(Live(live.port)) as client:
        status, headers, body = client.post("/v1/hit", b" " * (1024 * 1024 + 1))
    assert status == 413
    checked("/v1/hit", status, headers, body)


def test_one_document_describes_the_data_plane_and_the_admin_api() -> None:
    document = service_openapi()
    operations = [one for methods in document["paths"].values() for one in methods.values()]
    assert {path for path in document["paths"] if path not in DOCUMENT["paths"]} == {f"/{call.path}" for call in CALLS}
    assert len({one["operationId"] for one in operations}) == len(operations)
    assert {tag for one in operations for tag in one["tags"]} == {tag["name"] for tag in document["tags"]}
    for reference in set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document))):
        Draft202012Validator.check_schema(document["components"]["schemas"][reference])
    used = {name for one in operations for needed in one.get("security", []) for name in needed}
    assert used <= document["components"]["securitySchemes"].keys()
