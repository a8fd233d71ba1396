"""What GraphQL and batches cost, whatever way they are written: no spelling of one makes it cheap."""

import gzip
import json
import time
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratebound.policy.cost import MAX_COST, MAX_QUERY, graphql_cost, json_batch_cost, query_cost
from tests.policy.gates import decide, example_gate, request

ALIASES = " ".join(f"a{n}: login(code: {n})" for n in range(100))
QUERY = f"{{ {ALIASES} }}"
JSON = {"content-type": "application/json"}
FORM = {"content-type": "application/x-www-form-urlencoded"}
PARTS = {"content-type": 'multipart/form-data; boundary="X"'}


def parts(*named: tuple[str, str], end: str = "--X--\r\n") -> bytes:
    return "".join(
        f"--X\r\nContent-Disposition: form-data; {name}\r\n\r\n{text}\r\n" for name, text in named
    ).encode() + (end.encode())


def operations(query: str = QUERY) -> tuple[str, str]:
    return 'name="operations"', json.dumps({"query": query})


@pytest.mark.parametrize(
    "text", ['\\"', "x", '"""', '\\"""', "\\", '"" ', '"', "# ", "{", "(", "a(", "...", "@a ", "fragment ", "a:"]
)
@pytest.mark.parametrize("begin", ['{ a(b:"', '{ a(b:"""', "{ a", "", "fragment f on X { "])
def test_a_document_is_read_in_one_pass(begin: str, text: str) -> None:
    document = (begin + text * MAX_QUERY)[:MAX_QUERY]
    begun = time.process_time()
    query_cost(document)
    assert time.process_time() - begun < 1, "it takes some hundredths; quadratic, it takes half a minute"


def test_a_body_that_never_closes_its_string_is_refused_at_once() -> None:
    gate = example_gate("costs.yaml")
    body = json.dumps({"query": '{ a(b:"' + '\\"' * 16_000}).encode()
    begun = time.process_time()
    assert not decide(gate, request("/graphql", "POST", body=body))
    assert time.process_time() - begun < 1


@pytest.mark.parametrize(
    "query",
    [
        f"query fragment {QUERY}",
        f"query Q @fragment {QUERY}",
        f"query Q @fragment(a: 1) @b {QUERY}",
        f"mutation fragment($a: Int = 1) @fragment {QUERY}",
        f"fragment {QUERY}",
        f"{{ a #\r {ALIASES} \r}}",
        f"{{ a # b\r\n {ALIASES} }}",
        f'{{ a(b: "\\"") {ALIASES} }}',
        f'{{ a(b: "x\\\\") {ALIASES} }}',
        f'{{ a(b: """ \\""" " "" """) {ALIASES} }}',
        f'{{ a(b: "") {ALIASES} }}',
        f"{{ ...fragment }} fragment fragment on Query {QUERY}",
        "{ " + "on x " * 50 + "}",
        "{ " + "a @on " * 100 + "}",
        f"{{ ... on Query {QUERY} }}",
        f'"""A description""" query {QUERY}',
        f"query a {{ b }} }} query c {QUERY}",
    ],
)
def test_no_spelling_of_a_query_is_cheap(query: str) -> None:
    assert query_cost(query) >= 100


@pytest.mark.parametrize(
    "query",
    [
        '{ a(b: "',
        '{ a(b: """ }',
        '{ a(b: "\n") }',
        "{ a(b: 1 }",
        "{ ...f } fragment f on X { a } fragment f on X { b c d }",
        "{ a } " + " " * MAX_QUERY,
    ],
)
def test_what_is_hidden_behind_a_broken_query_costs_what_nobody_has(query: str) -> None:
    assert query_cost(query) == MAX_COST


def test_queries_of_one_request_are_bounded_together() -> None:
    half = "{ a }".ljust(MAX_QUERY // 2 + 1)
    assert graphql_cost(request(body=json.dumps([{"query": half}]).encode())) == 1
    assert graphql_cost(request(body=json.dumps([{"query": half}] * 2).encode())) == MAX_COST


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (json.dumps({"query": QUERY}).encode(), JSON),
        (json.dumps({"query": QUERY, "variables": {"n": 7}}).encode("utf-16"), JSON),
        (b'\xef\xbb\xbf{"query": "%s"}' % QUERY.encode(), JSON),
        (json.dumps({"query": QUERY}).encode(), FORM),
        (json.dumps(QUERY).encode(), {}),
        (b'{"query": "%s", "variables": {"n": %s}}' % (QUERY.encode(), b"9" * 5000), JSON),
        (QUERY.encode(), {"content-type": "application/graphql"}),
        (QUERY.encode(), {}),
        (urlencode({"query": QUERY}).encode(), FORM),
        (urlencode({"query": QUERY}).encode(), {"content-type": FORM["content-type"].upper() + "; charset=utf-8"}),
        (f"%71uery={quote(QUERY)}".encode(), FORM),
        (b'{"query":"{a}","x":"&query=%s&"}' % quote(QUERY).encode(), FORM),
        (parts(operations()), PARTS),
        (parts(("name=query", QUERY)), PARTS),
        (parts(("name=map", "{}"), operations(), ('name="0"; filename="a"', "--")), PARTS),
        (parts(('name="operations"', json.dumps([{"query": "{ a }"}, {"query": QUERY}]))), PARTS),
    ],
)
def test_a_query_is_found_however_it_is_sent(body: bytes, headers: dict[str, str]) -> None:
    assert 100 <= graphql_cost(request(body=body, headers=headers)) <= 101


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (gzip.compress(QUERY.encode(), mtime=0), {**JSON, "content-encoding": "gzip"}),
        (gzip.compress(QUERY.encode(), mtime=0), {}),
        (QUERY.encode(), {"content-encoding": "x"}),
        (b"not json {", JSON),
        (b"nothing of the kind", {}),
        (parts(operations()), {}),
        (b'{"query": "{ a b }",}', {}),
        (b'{"query": "{ a b }"}\n{"query": "{ a b }"}', {}),
        (b'{"query": "{a}", "query": "{a b}"}', JSON),
        (parts(operations()), {"content-type": "multipart/form-data"}),
        (parts(operations()), {"content-type": "multipart/form-data; boundary=Y"}),
        (parts(operations()), {"content-type": "multipart/form-data; boundary=Y; boundary=X"}),
        (parts(operations(), end=""), PARTS),
        (parts(("name*=utf-8''operations", "{}")), PARTS),
        (parts(('name="a"; name="operations"', QUERY)), PARTS),
        (parts(('filename="a"', "{}")), PARTS),
        (parts(('name="query"\r\nContent-Transfer-Encoding: base64', "e2F9")), PARTS),
        (parts(('name="operations"', "{")), PARTS),
    ],
)
def test_a_body_that_cannot_be_read_costs_what_nobody_has(body: bytes, headers: dict[str, str]) -> None:
    assert graphql_cost(request(body=body, headers=headers)) == MAX_COST


def test_two_content_types_cannot_be_read() -> None:
    headers = [("content-type", "application/json"), ("content-type", FORM["content-type"])]
    assert graphql_cost(request(body=b'{"query": "{ a }"}', headers=headers)) == MAX_COST


@pytest.mark.parametrize("body", [None, b"", b" \n", b'{"id": "stored"}', b'{"query": null}', b"7", b"null"])
def test_what_asks_for_nothing_by_itself_costs_1(body: bytes | None) -> None:
    assert graphql_cost(request(body=body)) == 1
    assert json_batch_cost(request(body=body)) == 1


def test_a_part_that_is_no_query_costs_nothing() -> None:
    body = parts(
        operations("{ a b c }"), ('name="map"', '{"0": ["variables.file"]}'), ('name="0"; filename="a"', QUERY)
    )
    assert graphql_cost(request(body=body, headers=PARTS)) == 3


@pytest.mark.parametrize(
    "body",
    [
        b"[%s]" % b",".join([b"{}"] * 500 + [b'{"n": %s}' % (b"9" * 5000)]),
        b"[%s]" % b",".join([b"[]"] * 501),
    ],
)
def test_a_batch_with_a_number_that_is_too_long_costs_what_it_holds(body: bytes) -> None:
    assert json_batch_cost(request(body=body)) == 501


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (gzip.compress(b"[1, 2]", mtime=0), {"content-encoding": "gzip"}),
        (gzip.compress(b"[1, 2]", mtime=0), {}),
        (b"[1, 2", JSON),
        (b"[1] [2]", JSON),
        (b"x=[1, 2]", FORM),
    ],
)
def test_a_batch_that_cannot_be_read_costs_what_nobody_has(body: bytes, headers: dict[str, str]) -> None:
    assert json_batch_cost(request(body=body, headers=headers)) == MAX_COST


@given(
    st.text(st.sampled_from('{}()@:."#\\\r\n afonquery'), max_size=80),
    st.sampled_from([{}, JSON, FORM, PARTS, {"content-encoding": "identity"}]),
)
def test_any_text_has_a_cost(text: str, headers: dict[str, Any]) -> None:
    for body in (text.encode(), json.dumps({"query": text}).encode(), parts(('name="query"', text))):
        assert 1 <= graphql_cost(request(body=body, headers=headers)) <= MAX_COST
