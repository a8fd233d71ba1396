"""The recipe "Stop credential stuffing" in real applications: bodies, charges, blocks and headers from end to end."""

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import flask
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from ratebound import MemoryStorage
from ratebound.testing import FakeClock
from ratebound.web.fastapi import RateLimits as FastApiLimits
from ratebound.web.flask import RateLimits as FlaskLimits
from tests.recipes.pages import recipe
from tests.web.drivers import asgi_client, wsgi_client
from tests.web.suite import Answer, Client

Write = Callable[[str, str], tuple[str, bytes]]


def as_json(name: str, password: str) -> tuple[str, bytes]:
    return "application/json", json.dumps({"username": name, "password": password}).encode()


def as_form(name: str, password: str) -> tuple[str, bytes]:
    return "application/x-www-form-urlencoded", urlencode({"username": name, "password": password}).encode()


def as_parts(name: str, password: str) -> tuple[str, bytes]:
    fields = {"username": name, "password": password}
    parts = [f'--xyz\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{fields[key]}\r\n' for key in fields]
    return "multipart/form-data; boundary=xyz", ("".join(parts) + "--xyz--\r\n").encode()


class Site:
    """An application with a login. `seen` has the names that its own parser has read."""

    def __init__(self, kind: str) -> None:
        self.clock = FakeClock()
        self.seen: list[str] = []
        policy = {**recipe("guides/abuse.md", "Stop credential stuffing"), "trusted": ["127.0.0.1"]}
        storage = MemoryStorage(clock=self.clock)
        self.send: Any = getattr(self, f"_{kind}")(policy, storage)

    def _fastapi(self, policy: Any, storage: Any) -> Client:
        app = FastAPI()
        FastApiLimits(policy, app=app, storage=storage)

        @app.post("/login")
        async def login(request: Request) -> JSONResponse:
            is_json = request.headers.get("content-type", "").startswith("application/json")
            fields: Any = await request.json() if is_json else await request.form()
            return JSONResponse({}, self._status(fields))

        return asgi_client(app)

    def _flask(self, policy: Any, storage: Any) -> Client:
        app = flask.Flask("login")
        FlaskLimits(app, policy, storage=storage)

        @app.post("/login")
        def login() -> tuple[str, int]:
            return "", self._status(flask.request.get_json() if flask.request.is_json else flask.request.form)

        return wsgi_client(app)

    def _status(self, fields: Any) -> int:
        self.seen.append(fields["username"])
        return 200 if fields["password"] == "right" else 401

    def login(self, name: str, address: str, write: Write = as_json, password: str = "wrong", **more: str) -> Answer:
        kind, body = write(name, password)
        headers = {"content-type": kind, "x-forwarded-for": address, **more}
        answer: Answer = self.send("POST", "/login", headers, body=body)
        return answer


@pytest.fixture(params=["fastapi", "flask"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    made = Site(request.param)
    yield made
    getattr(made.send, "close", lambda: None)()


@pytest.mark.parametrize("write", [as_json, as_form, as_parts])
def test_an_attack_is_denied_then_blocked_and_told_what_it_may_know(site: Site, write: Write) -> None:
    answers = []
    for number in range(60):
        answers.append(site.login(f"account-{number}", "198.51.100.1", write))
        site.clock.advance(1)
    assert [answer.status for answer in answers] == [401] * 50 + [429] * 10
    assert site.seen == [f"account-{number}" for number in range(50)]
    denied, blocked = answers[50], site.login("account-7", "198.51.100.1", write, "right")
    assert json.loads(denied.body)["violated-policies"] == ["login/account-hour"]
    headers = dict(blocked.headers)
    assert headers["retry-after"] == "292", "it began with the third denial"
    assert dict(answers[59].headers)["retry-after"] == "293", "the early rule is blocked, so no later one is asked"
    assert headers["cache-control"] == "no-store"
    assert "ratelimit" not in headers
    assert "ratelimit-policy" not in headers
    problem = json.loads(blocked.body)
    assert problem["type"].endswith("#abnormal-usage-detected")
    assert problem["violated-policies"] == []
    assert "account" not in problem["detail"]

    assert site.login("ann", "198.51.100.2", write, "right").status == 200
    site.clock.advance(294)
    assert site.login("account-7", "198.51.100.1", write, "right").status == 200, "the block is over"
    assert site.login("account-99", "198.51.100.1", write).status == 429, "and the accounts are still counted"


def test_one_attack_in_all_encodings_is_one(site: Site) -> None:
    writers = [as_json, as_form, as_parts]
    statuses = [site.login(f"account-{number}", "198.51.100.1", writers[number % 3]).status for number in range(60)]
    assert statuses.count(401) == 50
    statuses = [site.login("victim", f"198.18.0.{number}", writers[number % 3]).status for number in range(60)]
    assert statuses.count(401) == 10


def test_a_login_that_succeeds_is_an_attempt_and_no_failure_and_its_headers_say_so(site: Site) -> None:
    def left() -> list[str]:
        answer = site.login("ann", "203.0.113.1", password="right")
        assert answer.status == 200
        attempts, *others = dict(answer.headers)["ratelimit"].split(", ")
        assert attempts.startswith('"attempts/')
        return others

    before = left()
    assert left() == before
    site.login("ann", "203.0.113.1")
    assert left() != before


def test_two_hundred_people_behind_one_address_log_in(site: Site) -> None:
    for number in range(200):
        write = [as_json, as_form][number % 2]
        if number % 5 == 0:
            assert site.login(f"person-{number}", "203.0.113.1", write).status == 401
        assert site.login(f"person-{number}", "203.0.113.1", write, "right").status == 200
        site.clock.advance(9)


ODD = {
    "broken": (b'{"username": "eve"', {}),
    "a key twice": (b'{"username": "ann", "username": "eve", "password": "wrong"}', {}),
    "compressed": (b'{"username": "eve", "password": "wrong"}', {"content-encoding": "gzip"}),
    "too long": (b'{"username": "eve", "password": "' + b"x" * 1_000_000 + b'"}', {}),
    "a list": (b'{"username": ["eve"], "password": "wrong"}', {}),
    "another charset": ('{"username": "eve"}'.encode("utf-16"), {"content-type": "application/json; charset=utf-16"}),
    "a form that says JSON": (b"username=eve&password=wrong", {}),
    "a form of another type": (b"username=eve&password=wrong", {"content-type": "text/plain"}),
    "a field twice": (
        b"username=ann&username=eve&password=wrong",
        {"content-type": "application/x-www-form-urlencoded"},
    ),
}


@pytest.mark.parametrize(("body", "headers"), ODD.values(), ids=list(ODD))
def test_a_body_that_can_be_read_differently_never_reaches_the_application(
    site: Site, body: bytes, headers: dict[str, str]
) -> None:
    for _ in range(3):
        answer = site.send("POST", "/login", {"content-type": "application/json", **headers}, body=body)
        assert answer.status == 403
        assert b"eve" not in answer.body
        site.clock.advance(2)
    assert site.seen == []
    assert site.login("ann", "127.0.0.1", password="right").status == 200, "such a denial is no strike"


def test_a_preflight_and_a_head_are_no_logins_and_reach_no_handler(site: Site) -> None:
    for number in range(60):
        method = ["HEAD", "OPTIONS"][number % 2]
        headers = {"origin": "https://evil.example", "access-control-request-method": "POST"}
        site.send(method, f"/login?username=account-{number}", headers)
    assert site.seen == []
    assert site.login("ann", "127.0.0.1", password="right").status == 200


def test_an_address_that_is_not_told_by_a_trusted_proxy_cannot_be_blocked(site: Site) -> None:
    for number in range(60):
        site.login(f"account-{number}", "203.0.113.1, 198.51.100.1")
        site.clock.advance(1)
    assert site.login("ann", "198.51.100.1", password="right").status == 429
    assert site.login("ann", "203.0.113.1", password="right").status == 200
