"""The plain path of a request: it answers as the gate's own `decide_by` does, and gives way to what replaces that."""

import asyncio
import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import pytest
from fastapi import FastAPI
from flask import Flask, g
from starlette.responses import PlainTextResponse

from ratebound import MemoryStorage
from ratebound.policy import AsyncGate, Gate, Identity, Match, Policy, RequestView, Rule
from ratebound.testing import FakeClock, limiting_off
from ratebound.web import AsyncWebGate, Passed, WebGate
from ratebound.web import gate as web_gate
from ratebound.web.asgi import RateLimitMiddleware
from ratebound.web.fastapi import RateLimits
from ratebound.web.flask import RateLimits as FlaskLimits
from ratebound.web.wsgi import RateLimitMiddleware as WsgiMiddleware
from tests.web.drivers import environ_of, exchange, fetch, http_scope, wsgi_fetch
from tests.web.suite import Answer, Naps

POLICIES: dict[str, Callable[[], Policy]] = {
    "one limit": lambda: Policy(rules=[Rule("all", "3/minute")]),
    "several limits": lambda: Policy(rules=[Rule("all", "3/minute; 5/hour burst 4")]),
    "several rules": lambda: Policy(rules=[Rule("one", "3/minute"), Rule("two", "5/hour", by="global")]),
    "paths": lambda: Policy(
        rules=[Rule("a", "2/minute", match=Match(paths=["/a"])), Rule("rest", "4/minute", default=True)],
        exempt=[Match(paths=["/free"])],
    ),
    "methods": lambda: Policy(rules=[Rule("posts", "2/minute", match=Match(methods=["POST"]))]),
    "by user": lambda: Policy(rules=[Rule("all", "3/minute")], by=("user", "address")),
    "by user alone": lambda: Policy(rules=[Rule("all", "3/minute", by="user")]),
    "a proxy": lambda: Policy(rules=[Rule("all", "3/minute")], trusted=["127.0.0.1"]),
    "early": lambda: Policy(rules=[Rule("early", "4/minute", stage="early"), Rule("late", "3/minute")]),
    "a queue": lambda: Policy(rules=[Rule("all", "1/minute burst 3 leaky-bucket")]),
    "a list": lambda: Policy(rules=[Rule("all", "3/minute")], block=["203.0.113.9"]),
    "a shadow": lambda: Policy(rules=[Rule("all", "3/minute"), Rule("shadow", "1/minute", mode="shadow")]),
    "other headers": lambda: Policy(rules=[Rule("all", "3/minute")], headers={"styles": ["x-ratelimit"]}),
    "off": lambda: Policy(rules=[Rule("all", "3/minute")], switch="off"),
    "unlimited": lambda: Policy(rules=[Rule("all", "unlimited")]),
}
REQUESTS: list[tuple[str, str, dict[str, str]]] = [
    ("GET", "/a", {}),
    ("HEAD", "/a", {}),
    ("GET", "/free", {}),
    ("POST", "/a", {"origin": "https://x.test"}),
    ("GET", "/b?x=1", {"x-forwarded-for": "198.51.100.7"}),
    ("POST", "/a", {"x-http-method-override": "DELETE"}),
    ("GET", "/a", {}),
    ("GET", "/missing", {}),
    ("GET", "/a", {"origin": "https://x.test"}),
]


Headers = Mapping[str, str]


class Client(Protocol):
    def __call__(self, method: str, path: str, headers: Headers = ..., /) -> Answer: ...


def asgi_client(app: Any) -> Client:
    return lambda method, path, headers={}: asyncio.run(fetch(app, method, path, headers))


def wsgi_client(app: Any) -> Client:
    return lambda method, path, headers={}: wsgi_fetch(app, environ_of(method, path, headers))


async def bare(scope: Any, receive: Any, send: Any) -> None:
    assert isinstance(scope["state"]["ratebound"], Passed)
    await PlainTextResponse("ok")(scope, receive, send)


def over_asgi(**options: Any) -> tuple[Client, Any]:
    app = RateLimitMiddleware(bare, **options)
    return asgi_client(app), app.gate


def over_wsgi(**options: Any) -> tuple[Client, Any]:
    def application(environ: Any, start_response: Any) -> list[bytes]:
        assert isinstance(environ["ratebound.passed"], Passed)
        start_response("200 OK", [("Content-Length", "2")])
        return [b"ok"]

    app = WsgiMiddleware(application, **options)
    return wsgi_client(app), app.gate


def fastapi(**options: Any) -> tuple[Client, Any]:
    app, limits = FastAPI(), RateLimits(**options)

    @app.api_route("/a", methods=["GET", "HEAD", "POST"])
    @limits.limit("9/minute")
    async def a() -> str:
        return "ok"

    @app.get("/b")
    @app.get("/free")
    def b() -> str:
        return "ok"

    limits.install(app)
    return asgi_client(app), limits.gate


def flask(**options: Any) -> tuple[Client, Any]:
    app, limits = Flask("plain"), FlaskLimits(**options)

    @app.route("/a", methods=["GET", "POST"])
    @limits.limit("9/minute")
    def a() -> str:
        assert isinstance(g.ratebound, Passed)
        return "ok"

    @app.get("/b")
    @app.get("/free")
    def b() -> str:
        return "ok"

    limits.init_app(app)
    return wsgi_client(app), app.extensions["ratebound"].gate


ADAPTERS = {"asgi": over_asgi, "wsgi": over_wsgi, "fastapi": fastapi, "flask": flask}
each_adapter = pytest.mark.parametrize("adapter", ADAPTERS)


def storage_for(adapter: str) -> Any:
    memory = MemoryStorage(clock=FakeClock())
    return memory.async_twin() if adapter in ("asgi", "fastapi") else memory


def options_for(adapter: str) -> dict[str, Any]:
    naps = Naps()
    sleep = naps.sleep_async if adapter in ("asgi", "fastapi") else naps.sleep
    return {"storage": storage_for(adapter), "sleep": sleep}


def told(answer: Answer) -> tuple[int, list[tuple[str, str]], bytes]:
    return answer.status, sorted(answer.headers), answer.body


@each_adapter
@pytest.mark.parametrize("policy", POLICIES)
def test_it_answers_as_the_gate_does(adapter: str, policy: str) -> None:
    found = []
    for is_open in (True, False):
        client, gate = ADAPTERS[adapter](policy=POLICIES[policy](), **options_for(adapter))
        assert gate.plain.is_open
        gate.plain.is_open = is_open
        found.append([told(client(method, path, headers)) for _ in range(2) for method, path, headers in REQUESTS])
    assert found[0] == found[1]


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch, calls: list[str]) -> Iterator[None]:
    """Count the calls of both gates' `decide_by`, patched in their classes."""
    sync, tasks = Gate.decide_by, AsyncGate.decide_by

    def decide_by(self: Gate, *args: Any) -> Any:
        calls.append("patched")
        return sync(self, *args)

    async def decide_by_async(self: AsyncGate, *args: Any) -> Any:
        calls.append("patched")
        return await tasks(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Gate, "decide_by", decide_by)
        patch.setattr(AsyncGate, "decide_by", decide_by_async)
        yield


@each_adapter
def test_a_patched_method_of_the_gate_decides(adapter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    with counting(monkeypatch, calls):
        client, _ = ADAPTERS[adapter](policy="2/minute")
        assert [client("GET", "/b").status for _ in range(3)] == [200, 200, 429]
    assert len(calls) == 3


@each_adapter
def test_a_subclass_of_the_gate_decides(adapter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[RequestView] = []

    class OwnGate(Gate):
        def decide_by(self, compiled: Any, request: RequestView, stage: str) -> Any:
            calls.append(request)
            return super().decide_by(compiled, request, stage)

    class OwnAsyncGate(AsyncGate):
        async def decide_by(self, compiled: Any, request: RequestView, stage: str) -> Any:
            calls.append(request)
            return await super().decide_by(compiled, request, stage)

    monkeypatch.setattr(web_gate, "Gate", OwnGate)
    monkeypatch.setattr(web_gate, "AsyncGate", OwnAsyncGate)
    client, gate = ADAPTERS[adapter](policy="2/minute")
    assert isinstance(gate.gate, OwnGate | OwnAsyncGate)
    assert [client("GET", "/b").status for _ in range(3)] == [200, 200, 429]
    assert len(calls) == 3


def test_a_method_that_is_set_on_a_web_gate_decides() -> None:
    calls: list[RequestView] = []
    gate = AsyncWebGate("2/minute")
    own = gate.decide_by

    async def decide_by(compiled: Any, request: RequestView, stage: str) -> Any:
        calls.append(request)
        return await own(compiled, request, stage)

    gate.decide_by = decide_by
    client = asgi_client(RateLimitMiddleware(bare, gate=gate))
    assert [client("GET", "/").status for _ in range(3)] == [200, 200, 429]
    assert len(calls) == 3


def test_a_subclass_of_a_middleware_is_one() -> None:
    class Counting(RateLimitMiddleware):
        count = 0

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            self.count += 1
            await super().__call__(scope, receive, send)

    app = Counting(bare, "1/minute")
    assert [asgi_client(app)("GET", "/").status for _ in range(2)] == [200, 429]
    assert app.count == 2


@each_adapter
def test_everything_about_a_gate_can_change_between_two_requests(adapter: str) -> None:
    heard: list[Any] = []
    client, gate = ADAPTERS[adapter](policy="1/minute", storage=storage_for(adapter))

    def status() -> int:
        return client("GET", "/b").status

    assert [status(), status()] == [200, 429]
    with limiting_off():
        assert status() == 200
    gate.switch = "off"
    assert status() == 200
    gate.switch = None
    assert status() == 429
    gate.gate._decider.listen(heard.append)
    assert status() == 429
    assert len(heard) == 2, "the decision and the verdict"
    gate.use(Policy(rules=[Rule("all", "9/minute")]))
    assert status() == 200
    gate.gate.storage = storage_for(adapter)
    assert status() == 200


def test_a_listener_from_the_beginning_hears_every_verdict() -> None:
    heard: list[Any] = []
    client, _ = over_asgi(policy="1/minute", listeners=[heard.append])
    assert [client("GET", "/").status for _ in range(2)] == [200, 429]
    assert [type(event).__name__ for event in heard] == ["Decided", "Judged"] * 2


def test_what_a_handler_sees_of_a_plain_request_is_complete() -> None:
    gate = WebGate("5/minute", by=("user", "address"))
    seen: list[Any] = []

    def app(environ: Any, start_response: Any) -> list[bytes]:
        seen.append(environ["ratebound.passed"])
        start_response("200 OK", [("Content-Length", "2")])
        return [b"ok"]

    wsgi_client(WsgiMiddleware(app, gate=gate))("GET", "/")
    (passed,) = seen
    verdict = passed.verdict
    assert (verdict.kind, verdict.stage, verdict.allowed) == ("limited", "late", True)
    assert verdict.identity == Identity("address", "127.0.0.1")
    assert verdict.decision is passed.decision
    assert passed.decision.remaining == 4
    assert passed.owner is gate.gate
    assert passed.failed is None
    assert copy.copy(passed).headers == passed.headers


@pytest.mark.parametrize(
    ("judgement", "remaining"), [(["a mistake"], 4), ([], 5), ("no", 4), (1, 4), (0, 5), (None, 5)]
)
def test_the_judgement_of_a_handler_may_be_any_value(judgement: Any, remaining: int) -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        environ["ratebound.passed"].failed = judgement
        start_response("200 OK", [("Content-Length", "2")])
        return [b"ok"]

    client = wsgi_client(WsgiMiddleware(app, "5/minute", charge={"default": "failure"}))
    assert f";r={remaining}" in dict(client("GET", "/").headers)["ratelimit"]


@pytest.mark.parametrize("peer", [None, "", b"", "unix"])
def test_a_peer_without_an_address_is_one_client(peer: Any) -> None:
    scope = http_scope("GET", "/")

    async def answer() -> list[int]:
        app = RateLimitMiddleware(bare, "2/minute")
        scopes = [
            {**scope, "client": None, "server": None},
            {**scope, "client": (peer, 0)},
            {**scope, "client": (peer, 0)},
        ]
        return [(await exchange(app, one))[0]["status"] for one in scopes]

    assert asyncio.run(answer()) == [200, 200, 429]


@pytest.mark.parametrize("method", [None, b"GET"])
def test_the_method_that_a_server_gives_may_have_any_type(method: Any) -> None:
    gate = WebGate("1/minute")
    answers = [gate.plain.check_view(gate.rules_for(), RequestView(method, "/", peer="203.0.113.9")) for _ in range(2)]
    assert [type(answer).__name__ for answer in answers] == ["Passed", "Rejected"]

    async def answer() -> list[int]:
        app = RateLimitMiddleware(bare, "1/minute")
        return [(await exchange(app, http_scope("GET", "/") | {"method": method}))[0]["status"] for _ in range(2)]

    assert asyncio.run(answer()) == [200, 429]


def test_the_send_of_an_application_looks_like_a_coroutine_function() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(send)
        await PlainTextResponse("ok")(scope, receive, send)

    asyncio.run(exchange(RateLimitMiddleware(app, "5/minute"), http_scope("GET", "/")))
    assert asyncio.iscoroutinefunction(seen[0])


def test_public_classes_keep_docstrings_and_signatures() -> None:
    for public in (RateLimitMiddleware, WsgiMiddleware, AsyncWebGate, WebGate, Gate, AsyncGate, RateLimits, Passed):
        assert public.__doc__
    assert str(inspect.signature(Passed.charge)) == "(self, cost: int, rule: str = '') -> None"
    assert Passed.charge.__doc__
    assert Passed.headers.__doc__
