"""Plans and clients: bad input has a clear error, and secrets are in no repr and no error."""

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from ratebound.loadtest.arrivals import ConstantArrivals
from ratebound.loadtest.http1 import request_bytes
from ratebound.loadtest.identities import ClientMarks, Clients, IdentityMark, parse_identity
from ratebound.loadtest.plan import LoadPlan, LoadTarget

URL = "http://127.0.0.1:8000/path?a=1"
MEANT: dict[str, Any] = {"targets": [LoadTarget(URL)], "arrivals": ConstantArrivals(10.0, 1.0)}


@pytest.mark.parametrize(
    ("text", "client", "expected"),
    [
        ("header:X-Api-Key=key-{n}", 3, ClientMarks(headers=(("X-Api-Key", "key-3"),))),
        ("query:api key=a&{n}", 3, ClientMarks(query="api%20key=a%263")),
        ("bearer:token-{n}", 0, ClientMarks(headers=(("Authorization", "Bearer token-0"),))),
        ("forwarded", 0, ClientMarks(headers=(("X-Forwarded-For", "10.0.0.1"),))),
        ("forwarded", 65_535, ClientMarks(headers=(("X-Forwarded-For", "10.1.0.0"),))),
        ("forwarded:192.0.2.{n}", 7, ClientMarks(headers=(("X-Forwarded-For", "192.0.2.7"),))),
        ("source", 0, ClientMarks(source="127.0.0.2")),
        ("source", 250, ClientMarks(source="127.0.1.2")),
    ],
)
def test_a_client_is_known_by_its_mark(text: str, client: int, expected: ClientMarks) -> None:
    assert Clients(100_000 if text[0] != "s" else 1000, [parse_identity(text)]).marks_of(client) == expected


def test_tokens_come_from_a_file_and_are_in_no_repr(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("secret-a\n\n  secret-b \n")
    clients = Clients(3, [parse_identity(f"bearer:@{file}")])
    assert [clients.marks_of(client).headers[0][1] for client in range(3)] == [
        "Bearer secret-a",
        "Bearer secret-b",
        "Bearer secret-a",
    ]
    assert "secret" not in repr(clients)
    plan = LoadPlan(**{**MEANT, "targets": [LoadTarget(URL, headers=[("Cookie", "secret")], body=b"secret")]})
    assert "secret" not in repr(plan)


@pytest.mark.parametrize(
    "text", ["", "cookie:a", "header:X-Key", "header:=a", "header:X Y=a", "header:X=", "header:X=a\r\nb", "query:=a"]
)
def test_an_identity_that_cannot_be_sent_raises(text: str) -> None:
    with pytest.raises(ValueError, match="identity|header|query"):
        parse_identity(text)


def test_a_secret_is_in_no_error() -> None:
    with pytest.raises(ValueError) as raised:
        IdentityMark("bearer", "", ("secret\n",))
    assert "secret" not in str(raised.value)
    with pytest.raises(ValueError, match="user or password") as raised:
        LoadTarget("http://secret:secret@127.0.0.1/")
    assert "secret" not in str(raised.value)
    with pytest.raises(ValueError) as raised:
        LoadTarget("ftp://127.0.0.1/?token=secret")
    assert "secret" not in str(raised.value)


def test_round_robin_gives_every_client_its_turn() -> None:
    assert list(islice(Clients(3).assigned(), 7)) == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("assignment", ["random", "zipf"])
def test_a_seed_fixes_who_sends(assignment: str) -> None:
    clients = Clients(10, assignment=assignment)
    first = list(islice(clients.assigned(5), 1000))
    assert first == list(islice(clients.assigned(5), 1000))
    assert first != list(islice(clients.assigned(6), 1000))
    assert set(first) == set(range(10))


def test_zipf_gives_the_second_client_half_of_the_first() -> None:
    counts = Counter(islice(Clients(10, assignment="zipf").assigned(1), 50_000))
    assert counts[0] / counts[1] == pytest.approx(2.0, rel=0.1)
    assert counts[0] / counts[9] == pytest.approx(10.0, rel=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"targets": []}, "from 1 to"),
        ({"arrivals": ConstantArrivals(10.0, 601.0)}, "Raise max_duration"),
        ({"arrivals": ConstantArrivals(30_000.0, 1.0)}, "Raise max_rate"),
        ({"timeout": 0}, "timeout"),
        ({"max_connections": 0}, "max_connections"),
        ({"max_in_flight": 1.5}, "max_in_flight"),
        ({"probe_within": -1}, "probe_within"),
        ({"unix_socket": "/x", "clients": Clients(2, [parse_identity("source")])}, "Unix socket"),
    ],
)
def test_a_plan_out_of_bounds_raises(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LoadPlan(**{**MEANT, **options})


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("127.0.0.1:8000", {}, "cannot read the URL"),
        ("http:///path", {}, "cannot read the URL"),
        ("http://[::1", {}, "cannot read the URL"),
        ("http://127.0.0.1:99999/", {}, "cannot read the URL"),
        ("http://127.0.0.1/ä", {}, "encode them"),
        (URL, {"method": "GET /x"}, "not a method"),
        (URL, {"method": "CONNECT"}, "not a method"),
        (URL, {"headers": [("A\n", "b")]}, "no header may have"),
        (URL, {"headers": [("A", "b\r\nC: d")]}, "no header may have"),
        (URL, {"headers": [("Host", "b")]}, "leave it out"),
        (URL, {"weight": 0.0}, "weight"),
    ],
)
def test_a_request_that_cannot_be_sent_raises(url: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LoadTarget(url, **options)


def test_the_mark_of_a_client_replaces_a_header_of_the_request() -> None:
    target = LoadTarget(URL, "POST", [("x-api-key", "all"), ("Accept", "text/html")], b"body")
    assert request_bytes(target, ClientMarks((("X-Api-Key", "one"),), "b=2")) == (
        b"POST /path?a=1&b=2 HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nUser-Agent: ratebound-loadtest\r\n"
        b"Accept: text/html\r\nX-Api-Key: one\r\nContent-Length: 4\r\n\r\nbody"
    )


@pytest.mark.parametrize(
    ("url", "authority"),
    [
        ("http://localhost/", "localhost"),
        ("https://localhost:443", "localhost"),
        ("https://localhost:80/", "localhost:80"),
        ("http://[::1]:8000/", "[::1]:8000"),
    ],
)
def test_the_authority_leaves_out_the_default_port(url: str, authority: str) -> None:
    assert LoadTarget(url).origin.authority == authority
