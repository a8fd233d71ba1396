"""`concurrent: auto` in every adapter: places are taken, given back whatever happens, and 503 when there is none."""

import asyncio
import gc
import io
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from wsgiref.util import FileWrapper

import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from flask import Flask, Response, request
from werkzeug.wsgi import wrap_file

from ratebound.adaptive.in_flight import InFlight
from ratebound.events import RequestShed
from ratebound.policy import Judged, Match, Policy, PolicyError, Rule, load_policy
from ratebound.testing import limiting_off
from ratebound.web import wsgi
from ratebound.web.asgi import RateLimitMiddleware
from ratebound.web.fastapi import RateLimits as FastApiLimits
from ratebound.web.flask import RateLimits as FlaskLimits
from tests.web.drivers import asgi_client, environ_of

ONE = {"least": 1, "first": 1, "most": 1}
RULES = [Rule("all", "unlimited")]
SHED = "The service is overloaded: try again in "


def check_shed(status: int, headers: dict[str, str], body: bytes) -> None:
    assert status == 503
    assert 1 <= int(headers["retry-after"]) <= 3
    assert headers["content-type"] == "application/problem+json"
    assert "ratelimit" not in headers
    problem = json.loads(body)
    assert problem["detail"].startswith(SHED)
    assert problem["type"].endswith("temporary-reduced-capacity")


class Asgi:
    """An ASGI application whose answer waits until it is released, and one request after the other to it."""

    def __init__(self, policy: Any = "unlimited", **options: Any) -> None:
        self.release = asyncio.Event()
        self.parts: asyncio.Queue[Any] = asyncio.Queue()  # of a request's body
        self.app = RateLimitMiddleware(self._answer, policy, **options)
        self.in_flight = self.app.gate.meter.in_flight if self.app.gate.meter else None

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/raises":
            raise RuntimeError("no")
        if scope["path"] != "/now":
            await self.release.wait()
        if scope["path"] == "/upload":
            while (await receive())["more_body"]:
                pass
            await asyncio.sleep(3600)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        if scope["path"] == "/stream":
            await asyncio.sleep(3600)
        await send({"type": "http.response.body", "body": b"b"})
        if scope["path"] == "/background":
            await asyncio.sleep(3600)

    async def get(self, path: str = "/") -> tuple[int, dict[str, str], bytes]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": path, "headers": [], "client": ("192.0.2.1", 1)}
        await self.app(scope, self.parts.get, send)
        headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], headers, b"".join(message["body"] for message in sent[1:])


def run(play: Callable[[], Any]) -> None:
    asyncio.run(play())


def test_asgi_sheds_what_finds_no_place() -> None:
    async def play() -> None:
        server = Asgi(concurrent=ONE)
        first = asyncio.create_task(server.get())
        await asyncio.sleep(0)
        check_shed(*await server.get())
        server.release.set()
        assert (await first)[0] == 200
        assert (await server.get())[0] == 200
        assert server.in_flight is not None
        assert (server.in_flight.now_in, server.in_flight.shed) == (0, 1)

    run(play)


@pytest.mark.parametrize("path", ["/raises", "/", "/stream", "/background"])
def test_asgi_gives_a_place_back_whatever_happens(path: str) -> None:
    async def play() -> None:
        server = Asgi(concurrent=ONE)
        if path != "/":
            server.release.set()
        task = asyncio.create_task(server.get(path))
        await asyncio.sleep(0.01)
        assert server.in_flight is not None
        assert server.in_flight.now_in == (path == "/")  # a response that has started has no place
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert server.in_flight.now_in == 0

    run(play)


def test_streams_and_slow_readers_do_not_take_the_places_of_others() -> None:
    async def play() -> None:
        server = Asgi(concurrent=ONE)
        server.release.set()
        streams = [asyncio.create_task(server.get("/stream")) for _ in range(3)]
        await asyncio.sleep(0.01)
        assert (await server.get())[0] == 200
        for stream in streams:
            stream.cancel()

    run(play)


def test_a_client_that_sends_its_body_slowly_takes_no_place() -> None:
    async def play() -> None:
        server = Asgi(concurrent=ONE)
        assert server.in_flight is not None
        server.release.set()
        upload = asyncio.create_task(server.get("/upload"))
        await asyncio.sleep(0.01)
        assert server.in_flight.now_in == 0
        assert (await server.get())[0] == 200
        server.parts.put_nowait({"type": "http.request", "body": b"a", "more_body": True})
        await asyncio.sleep(0.01)
        assert server.in_flight.now_in == 0
        server.parts.put_nowait({"type": "http.request", "body": b"b", "more_body": False})
        await asyncio.sleep(0.01)
        assert server.in_flight.now_in == 1  # now it is at work
        assert (await server.get())[0] == 503
        upload.cancel()
        await asyncio.gather(upload, return_exceptions=True)
        assert server.in_flight.now_in == 0

    run(play)


def test_a_client_that_goes_while_it_sends_its_body_leaves_nothing_behind() -> None:
    async def play() -> None:
        server = Asgi(concurrent=ONE)
        assert server.in_flight is not None
        server.release.set()
        upload = asyncio.create_task(server.get("/upload"))
        await asyncio.sleep(0.01)
        upload.cancel()
        await asyncio.gather(upload, return_exceptions=True)
        assert server.in_flight.now_in == 0
        assert (await server.get())[0] == 200

    run(play)


def test_the_time_of_an_error_is_noted_like_that_of_an_answer() -> None:
    async def play() -> None:
        server = Asgi(concurrent=ONE)
        with pytest.raises(RuntimeError):
            await server.get("/raises")
        assert server.in_flight is not None
        assert len(server.in_flight._samples) == 1

    run(play)


def test_exempt_requests_take_no_place_and_are_not_timed() -> None:
    async def play() -> None:
        server = Asgi(Policy(rules=RULES, exempt=[Match(paths=["/poll", "/now"])], concurrent=ONE))
        polls = [asyncio.create_task(server.get("/poll")) for _ in range(3)]
        await asyncio.sleep(0)
        assert (await server.get("/now"))[0] == 200
        assert server.in_flight is not None
        assert (server.in_flight.now_in, server.in_flight._samples) == (0, [])
        for poll in polls:
            poll.cancel()

    run(play)


def test_health_checks_and_switches_let_everything_in() -> None:
    async def play() -> None:
        policy = Policy(rules=RULES, exempt=[Match(paths=["/now"])], concurrent=ONE)
        server = Asgi(policy)
        first = asyncio.create_task(server.get())
        await asyncio.sleep(0)
        assert (await server.get("/now"))[0] == 200
        assert (await server.get())[0] == 503
        for switch in ("shadow", "off"):
            server.app.gate.switch = switch
            later = asyncio.create_task(server.get())
            await asyncio.sleep(0)
            assert not later.done()
            later.cancel()
        server.app.gate.switch = None
        with limiting_off():
            later = asyncio.create_task(server.get())
            await asyncio.sleep(0)
            assert not later.done()
            later.cancel()
        assert (await server.get())[0] == 503
        first.cancel()

    run(play)


def test_listeners_are_told() -> None:
    async def play() -> None:
        told: list[Any] = []
        server = Asgi(concurrent=ONE, listeners=[told.append])
        first = asyncio.create_task(server.get())
        await asyncio.sleep(0)
        await server.get()
        first.cancel()
        assert [event.verdict.kind for event in told if isinstance(event, Judged)] == ["unlimited", "shed"]
        assert [event for event in told if isinstance(event, RequestShed)] == [RequestShed(1)]

    run(play)


def test_a_mounted_gate_meters_a_request_once() -> None:
    async def play() -> None:
        server = Asgi(concurrent=ONE)
        inner = server.app
        server.app = RateLimitMiddleware(inner, "unlimited", concurrent=ONE)
        server.release.set()
        assert (await server.get())[0] == 200
        assert inner.gate.meter is not None
        assert inner.gate.meter.in_flight.shed == 0

    run(play)


def test_fastapi() -> None:
    app = FastAPI()
    limits = FastApiLimits("unlimited", concurrent=ONE)
    limits.install(app)
    assert limits.gate.meter is not None
    in_flight = limits.gate.meter.in_flight

    @app.get("/")
    async def read() -> dict[str, int]:
        return {"in": in_flight.now_in}

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        return StreamingResponse(iter([b"a", b"b"]))

    client = asgi_client(app)
    try:
        assert client("GET", "/", {}).body == b'{"in":1}'
        assert client("GET", "/stream", {}).body == b"ab"
        assert in_flight.now_in == 0
        assert in_flight.enter()
        answer = client("GET", "/", {})
        check_shed(answer.status, dict(answer.headers), answer.body)
        in_flight.leave()
        assert client("GET", "/", {}).status == 200
    finally:
        client.close()  # type: ignore[attr-defined]


def _wsgi(app: Any, path: str = "/") -> tuple[int, dict[str, str], Any]:
    started: list[Any] = []
    body = app(environ_of("GET", path), lambda *start: started.append(start))
    status, headers = started[0][:2] if started else ("0", [])
    return int(status.split()[0]), {name.lower(): value for name, value in headers}, body


def wsgi_server() -> tuple[Any, InFlight]:
    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/raises":
            raise RuntimeError("no")
        start_response("200 OK", [])
        if environ["PATH_INFO"] == "/file":
            return environ["wsgi.file_wrapper"](io.BytesIO(b"ab"))  # type: ignore[no-any-return]
        return iter([b"a", b"b"]) if environ["PATH_INFO"] == "/stream" else [b"ab"]

    limited = wsgi.RateLimitMiddleware(app, "unlimited", concurrent=ONE)
    assert limited.gate.meter is not None
    return limited, limited.gate.meter.in_flight


def flask_server() -> tuple[Any, InFlight]:
    app = Flask(__name__)
    limits = FlaskLimits(app, "unlimited", concurrent=ONE)
    app.add_url_rule("/", view_func=lambda: "ab", endpoint="read")
    app.add_url_rule(
        "/file",
        view_func=lambda: Response(wrap_file(request.environ, io.BytesIO(b"ab")), direct_passthrough=True),
        endpoint="file",
    )
    app.add_url_rule("/stream", view_func=lambda: Response(iter([b"a", b"b"])), endpoint="stream")
    assert limits.gate.meter is not None
    return app, limits.gate.meter.in_flight


@pytest.mark.parametrize("server", [wsgi_server, flask_server])
def test_wsgi(server: Callable[[], tuple[Any, InFlight]]) -> None:
    app, in_flight = server()
    status, _, body = _wsgi(app)
    assert (status, b"".join(body)) == (200, b"ab")
    getattr(body, "close", int)()
    assert in_flight.now_in == 0
    _, _, body = _wsgi(app, "/stream")
    next(iter(body))
    assert in_flight.now_in == 0  # a response that has started has no place
    assert in_flight.enter()
    status, headers, shed = _wsgi(app)
    check_shed(status, headers, b"".join(shed))
    in_flight.leave()
    body.close()
    body.close()
    assert in_flight.now_in == 0
    assert _wsgi(app)[0] == 200


@pytest.mark.parametrize("server", [wsgi_server, flask_server])
def test_a_file_is_left_to_the_server(server: Callable[[], tuple[Any, InFlight]]) -> None:
    app, in_flight = server()
    environ = environ_of("GET", "/file") | {"wsgi.file_wrapper": FileWrapper}
    assert isinstance(app(environ, lambda *_: None), FileWrapper)
    assert in_flight.now_in == 0


def lazy_server() -> tuple[Any, InFlight]:
    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        if environ["PATH_INFO"] == "/raises":
            raise RuntimeError("no")
        start_response("200 OK", [])
        yield b"a"
        yield b"b"

    limited = wsgi.RateLimitMiddleware(app, "unlimited", concurrent=ONE)
    assert limited.gate.meter is not None
    return limited, limited.gate.meter.in_flight


def test_a_generator_has_its_place_until_its_first_part() -> None:
    app, in_flight = lazy_server()
    _, _, body = _wsgi(app)
    assert (in_flight.now_in, in_flight._samples) == (1, [])
    parts = iter(body)
    assert next(parts) == b"a"
    assert (in_flight.now_in, len(in_flight._samples)) == (0, 1)
    assert list(parts) == [b"b"]
    body.close()
    assert (in_flight.now_in, len(in_flight._samples)) == (0, 1)


def test_a_generator_that_raises_is_closed_early_or_is_forgotten_gives_its_place_back() -> None:
    app, in_flight = lazy_server()
    with pytest.raises(RuntimeError):
        list(_wsgi(app, "/raises")[2])
    assert in_flight.now_in == 0
    _wsgi(app)[2].close()
    assert in_flight.now_in == 0
    _wsgi(app)  # a middleware that does not close what it drops
    gc.collect()
    assert in_flight.now_in == 0


def test_wsgi_gives_a_place_back_when_the_application_raises() -> None:
    app, in_flight = wsgi_server()
    with pytest.raises(RuntimeError):
        _wsgi(app, "/raises")
    assert in_flight.now_in == 0


@pytest.mark.parametrize("concurrent", ["automatic", 7, {"lest": 3}, {"least": 0}, {"least": 9, "most": 3}])
def test_mistakes(concurrent: Any) -> None:
    with pytest.raises(PolicyError, match="concurrent: "):
        Policy(rules=RULES, concurrent=concurrent)


@pytest.mark.parametrize(("written", "read"), [("auto", {}), ("{most: 50}", {"most": 50})])
def test_a_policy_file_has_it(written: str, read: dict[str, int], tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(f"concurrent: {written}\nrules: [{{name: a, limits: 5/minute}}]\n")
    assert load_policy(path).concurrent == read
