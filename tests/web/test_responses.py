"""Responses of unusual make, and gates around gates: headers once, costs settled, nothing kept."""

import asyncio
import gc
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asgiref.wsgi import WsgiToAsgi
from flask import Flask

from ratebound import Limiter, MemoryStorage
from ratebound.policy import Gate, Policy, RequestView, Rule
from ratebound.policy.runtime.bounded_memo import _order
from ratebound.policy.runtime.fast_path import MAX_LENGTH
from ratebound.web import WebGate
from ratebound.web.asgi import RateLimitMiddleware
from ratebound.web.flask import RateLimits
from ratebound.web.route_limit import Endpoint, RouteLimit
from ratebound.web.wsgi import PASSED
from ratebound.web.wsgi import RateLimitMiddleware as WsgiMiddleware
from tests.web.drivers import environ_of, exchange, fetch, http_scope, wsgi_fetch

BYTES = Policy(rules=[Rule("bytes", "5000/hour")])


def thousand(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Length", "1000")])
    return [b"x" * 1000]


def statuses(app: Any, times: int, **headers: str) -> list[int]:
    return [wsgi_fetch(app, environ_of("GET", "/", headers)).status for _ in range(times)]


def test_a_gate_around_another_settles_its_own() -> None:
    inner = WsgiMiddleware(thousand, "1000/hour")
    app = WsgiMiddleware(inner, BYTES, charge={"bytes": lambda outcome: outcome.sent})
    assert statuses(app, 7) == [200] * 5 + [429] * 2
    answer = wsgi_fetch(WsgiMiddleware(inner, "9/minute"), environ_of("GET", "/", {"Origin": "https://x.test"}))
    assert [name for name, _ in answer.headers].count("access-control-expose-headers") == 1


@pytest.mark.parametrize("as_stream", [True, False])
def test_a_charge_after_the_start_of_a_response_of_known_length_counts(as_stream: bool) -> None:
    def stream(environ: dict[str, Any]) -> Iterator[bytes]:
        yield b"o"
        environ[PASSED].charge(40)
        yield b"k"

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        start_response("200 OK", [("Content-Length", "2")])
        return stream(environ) if as_stream else list(stream(environ))

    assert statuses(WsgiMiddleware(app, "100/minute"), 4) == [200, 200, 200, 429]


def test_headers_may_be_a_tuple_and_a_file_wrapper_a_function() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Any:
        start_response("200 OK", (("Content-Length", "2"),))
        return iter([b"ok"])

    def unknown(environ: dict[str, Any], start_response: Any) -> Any:
        start_response("200 OK", [])
        return iter([b"ok"])

    for one in (app, unknown):
        answer = wsgi_fetch(WsgiMiddleware(one, "9/minute"), {**environ_of("GET", "/"), "wsgi.file_wrapper": iter})
        assert answer.status == 200
        assert "ratelimit" in dict(answer.headers)


def test_a_head_costs_no_bytes_over_wsgi() -> None:
    app = WsgiMiddleware(thousand, BYTES, charge={"bytes": lambda outcome: outcome.sent})
    for _ in range(8):
        assert wsgi_fetch(app, environ_of("HEAD", "/")).status == 200


def test_a_response_does_not_keep_its_application() -> None:
    class Application:
        def __init__(self, environ: dict[str, Any], start_response: Any) -> None:
            self.start_response = start_response

        def __iter__(self) -> Iterator[bytes]:
            self.start_response("200 OK", [])
            yield b"ok"

    seen: list[Any] = []

    def make(environ: dict[str, Any], start_response: Any) -> Application:
        made = Application(environ, start_response)
        seen.append(weakref.ref(made))
        return made

    gc.disable()
    try:
        assert wsgi_fetch(WsgiMiddleware(make, "9/minute"), environ_of("GET", "/")).status == 200
        assert seen[0]() is None
    finally:
        gc.enable()


def test_headers_that_can_be_read_once_are_kept() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = iter([(b"content-type", b"text/plain"), (b"ratelimit", b"mine")])
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    more: list[dict[str, Any]] = [{}, {"charge": {"default": "failure"}}]
    for options in more:
        answer = asyncio.run(fetch(RateLimitMiddleware(app, "9/minute", **options), "GET", "/"))
        names = [name for name, _ in answer.headers]
        assert names.count("content-type") == names.count("ratelimit") == 1


@pytest.mark.parametrize(("count", "left"), [(None, 4_400), (100, 4_900)])
def test_a_file_that_the_server_sends_is_a_body(tmp_path: Path, count: int | None, left: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 600)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        message = {"type": "http.response.zerocopysend", "file": descriptor, **({"count": count} if count else {})}
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send(message)
        os.close(descriptor)

    limited = RateLimitMiddleware(app, BYTES, charge={"bytes": lambda outcome: outcome.sent})
    messages = asyncio.run(exchange(limited, http_scope("GET", "/")))
    assert [message["type"].rpartition(".")[2] for message in messages] == ["start", "zerocopysend"]
    assert f"r={left}".encode() in dict(messages[0]["headers"])[b"ratelimit"]


def test_those_who_ask_whether_a_send_is_awaited_are_told_so() -> None:
    app = RateLimitMiddleware(WsgiToAsgi(thousand), "9/minute")  # which warns, else: an error here
    assert asyncio.run(fetch(app, "GET", "/")).status == 200


def test_an_endpoint_outlives_any_number_of_policies_that_do_not_go_with_it() -> None:
    gate = WebGate(Policy(rules=[Rule("all", "90/minute")]))
    endpoint = Endpoint("mine", [RouteLimit(limits="50/minute", name="mine")])
    view = RequestView("GET", "/", peer="192.0.2.1")
    assert gate.before(view, endpoint)
    for _ in range(8):
        gate.use(Policy(rules=[Rule("mine", "9/minute")]))
        assert gate.before(view, endpoint)


def test_policies_may_clash_while_threads_ask() -> None:
    gate = WebGate(Policy(rules=[Rule("all", "90000/minute")]))
    failures: list[Exception] = []
    done = threading.Event()

    def ask(number: int) -> None:
        count = 0
        while not done.is_set():
            count += 1
            endpoint = Endpoint("mine", [RouteLimit(limits="50000/minute", name="mine")])
            try:
                gate.before(RequestView("GET", "/", peer="192.0.2.1"), endpoint)
            except Exception as error:
                failures.append(error)
            finally:
                gate.forget(endpoint)  # as an adapter does with limits that are made for one request

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for number in range(60):
        gate.use(Policy(rules=[Rule("mine" if number % 2 else "all", "90000/minute")]))
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_policy_that_was_replaced_is_let_go() -> None:
    def alive() -> int:
        gc.collect()
        return sum(type(one) is Policy for one in gc.get_objects())

    gate = Gate(Policy(rules=[Rule("all", "5/minute")]))
    before = alive()
    for number in range(10):
        gate.use(Policy(rules=[Rule("all", f"{number + 5}/minute")]))
        gate.decide(RequestView("GET", "/", peer="192.0.2.1"))
    assert alive() == before


def test_a_peer_of_any_length_is_not_remembered() -> None:
    gate = Gate(Policy(rules=[Rule("all", "5/minute")]))
    before = len(_order)
    for number in range(10):
        gate.decide(RequestView("GET", "/", peer=f"{number}" * (MAX_LENGTH + 1)))
    assert len(_order) == before


def test_what_a_request_was_told_cannot_be_changed_for_the_next() -> None:
    gate = Gate(Policy(rules=[Rule("all", "2/minute")]))
    for _ in range(2):
        verdict = gate.decide(RequestView("GET", "/", peer="192.0.2.1"))
        assert verdict.decision is not None
        for kept in (verdict.decision.asks, verdict.identities, verdict.asked):
            assert not hasattr(kept, "clear")


def test_a_storage_that_changes_evaluate_is_asked_by_it() -> None:
    calls = []

    class Counting(MemoryStorage):
        def evaluate(self, groups: Any, mode: Any = "spend") -> Any:
            calls.append(mode)
            return super().evaluate(groups, mode)

    assert Limiter("5/minute", storage=Counting()).hit("a")
    assert Gate(Policy(rules=[Rule("all", "5/minute")]), storage=Counting()).decide(RequestView("GET", "/"))
    assert calls == ["spend", "spend"]
    limiter = Limiter("5/minute")
    limiter.storage = Counting()
    limiter.hit("a")
    assert len(calls) == 3


def test_an_application_that_runs_with_its_first_part_is_told_and_settled() -> None:
    """As behind a middleware that is a generator: nothing has run when the response is handed over."""

    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        yield from inner(environ, start_response)

    limited = Flask("x")
    limited.get("/")(lambda: "ok")
    inner = limited.wsgi_app
    limited.wsgi_app = app  # type: ignore[method-assign]
    RateLimits(limited, Policy(rules=[Rule("failures", "3/minute")]), charge={"failures": "failure"})
    answers = [wsgi_fetch(limited, environ_of("GET", "/")) for _ in range(6)]
    assert [answer.status for answer in answers] == [200] * 6
    assert dict(answers[-1].headers)["ratelimit"] == '"failures/minute";r=3'


def test_an_endpoint_that_is_forgotten_leaves_nothing() -> None:
    gate = WebGate("5/minute")
    rules = gate._table
    before = [len(table) for table in (rules.full, rules._alone, rules._named)]
    endpoint = Endpoint("x", [RouteLimit(limits="5/minute", name="x")])
    gate.before(RequestView("GET", "/", peer="192.0.2.1"), endpoint)
    gate.alone(RequestView("GET", "/", peer="192.0.2.1"), endpoint)
    gate.forget(endpoint)
    assert [len(table) for table in (rules.full, rules._alone, rules._named)] == before
