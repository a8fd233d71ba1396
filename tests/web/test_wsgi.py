"""Pure WSGI: every way in which an application may answer, and what was charged is settled or stays."""

import io
import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from wsgiref.util import FileWrapper
from wsgiref.validate import validator

import pytest

from ratebound.policy import Policy, PolicyError, Rule
from ratebound.policy.cost import MAX_BODY, json_batch_cost
from ratebound.web.wsgi import RateLimitMiddleware, request_view
from tests.web.drivers import environ_of, wsgi_fetch
from tests.web.suite import Answer

Start = Callable[..., Any]


def hello(environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hel", b"lo"]


def get(app: Any, path: str = "/", **more: Any) -> Answer:
    return wsgi_fetch(app, environ_of("GET", path, **more))


def remaining(answer: Answer) -> int:
    values = [value for name, value in answer.headers if name == "ratelimit"]
    assert len(values) == 1, answer
    return int(values[0].partition("r=")[2].partition(";")[0])


def test_a_generator_may_begin_its_response_late() -> None:
    def late(environ: dict[str, Any], start_response: Start) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield b"one"
        yield b"two"

    answer = get(RateLimitMiddleware(late, "5/minute"))
    assert (answer.status, answer.body, remaining(answer)) == (200, b"onetwo", 4)


def test_an_application_may_write_its_body() -> None:
    def writes(environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
        write = start_response("200 OK", [])
        write(b"old ")
        return [b"way"]

    answer = get(RateLimitMiddleware(writes, "5/minute"))
    assert (answer.body, remaining(answer)) == (b"old way", 4)


def test_an_application_may_change_its_mind_before_anything_is_sent() -> None:
    def fails(environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
        start_response("200 OK", [])
        start_response("500 Oh", [], (RuntimeError, RuntimeError(), None))
        return [b"sorry"]

    answer = get(RateLimitMiddleware(fails, "5/minute"))
    assert (answer.status, remaining(answer)) == (500, 4)


def test_a_response_without_a_body_has_headers() -> None:
    def nothing(environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
        start_response("204 No Content", [])
        return iter(())

    assert remaining(get(RateLimitMiddleware(nothing, "5/minute"))) == 4


def test_a_file_is_left_to_the_server() -> None:
    made: list[FileWrapper] = []

    def file(environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
        start_response("200 OK", [])
        made.append(environ["wsgi.file_wrapper"](io.BytesIO(b"file")))
        return made[0]

    app = RateLimitMiddleware(file, "5/minute")
    body = app({**environ_of("GET", "/"), "wsgi.file_wrapper": FileWrapper}, lambda *_: None)
    assert body is made[0]


def test_the_body_is_closed() -> None:
    closed: list[bool] = []

    class Body:
        def __iter__(self) -> Iterator[bytes]:
            return iter([b"a"])

        def close(self) -> None:
            closed.append(True)

    def app(environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
        start_response("200 OK", [])
        return Body()

    get(RateLimitMiddleware(app, "5/minute"))
    assert closed == [True]


def test_it_keeps_to_the_standard_on_both_sides() -> None:
    app = validator(RateLimitMiddleware(validator(hello), "1/minute"))
    for status in (200, 429):
        environ = environ_of("GET", "/") | {
            "wsgi.version": (1, 0),
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
        }
        del environ["CONTENT_LENGTH"]
        assert wsgi_fetch(app, environ).status == status


@pytest.mark.parametrize("how", ["crash", "crash in the stream", "disconnect"])
def test_who_breaks_off_has_paid(how: str) -> None:
    def broken(environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/":
            return hello(environ, start_response)
        if how == "crash":
            raise RuntimeError
        return stream(start_response)

    def stream(start_response: Start) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield b"one"
        if how == "crash in the stream":
            raise RuntimeError
        yield b"two"

    policy = Policy(rules=[Rule("login", "5/minute")])
    app = RateLimitMiddleware(broken, policy, charge={"login": "failure"})
    if how == "disconnect":
        body = app(environ_of("GET", "/broken"), lambda *_: None)
        next(iter(body))
        body.close()  # type: ignore[attr-defined]
    else:
        with pytest.raises(RuntimeError):
            get(app, "/broken")
    assert remaining(get(app)) == 4  # its own is given back: what is missing is the broken one's


def test_what_was_sent_is_charged_when_it_is_known() -> None:
    policy = Policy(rules=[Rule("bytes", "100/minute")])
    app = RateLimitMiddleware(hello, policy, charge={"bytes": lambda outcome: outcome.sent})
    assert [remaining(get(app)) for _ in range(2)] == [95, 90]


def test_a_stream_is_charged_at_its_end() -> None:
    def stream(environ: dict[str, Any], start_response: Start) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield b"x" * 10
        yield b"y" * 10

    policy = Policy(rules=[Rule("bytes", "100/minute")])
    app = RateLimitMiddleware(stream, policy, charge={"bytes": lambda outcome: outcome.sent})
    assert [remaining(get(app)) for _ in range(2)] == [99, 79]


def test_the_body_that_a_rule_looks_at_is_there_for_the_application() -> None:
    bodies: list[bytes] = []

    def read(environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
        lines = list(environ["wsgi.input"]) if environ["PATH_INFO"] == "/lines" else []
        bodies.append(b"|".join(lines) or environ["wsgi.input"].read())
        return hello(environ, start_response)

    app = RateLimitMiddleware(read, Policy(rules=[Rule("batch", "20/minute", cost=json_batch_cost)]))
    body = json.dumps([1, 2, 3, 4]).encode()
    assert remaining(wsgi_fetch(app, environ_of("POST", "/", body=body))) == 16
    assert remaining(wsgi_fetch(app, environ_of("POST", "/lines", body=b"[1,\n2]"))) == 14
    assert remaining(wsgi_fetch(app, environ_of("POST", "/"))) == 13
    assert bodies == [body, b"[1,\n|2]", b""]
    assert wsgi_fetch(app, environ_of("POST", "/", body=b" " * (MAX_BODY + 1))).status == 429


def test_a_body_beyond_what_a_rule_looks_at_is_whole_for_the_application() -> None:
    bodies: list[bytes] = []

    def read(environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
        bodies.append(environ["wsgi.input"].read())
        return hello(environ, start_response)

    def cheap(view: Any) -> int:
        return 1

    cheap.reads_body = True  # type: ignore[attr-defined]
    app = RateLimitMiddleware(read, Policy(rules=[Rule("all", "5/minute", cost=cheap)]))
    body = b"x" * (MAX_BODY + 5000)
    assert wsgi_fetch(app, environ_of("POST", "/", body=body)).status == 200
    assert bodies == [body]


def test_two_around_one_another_ask_once() -> None:
    inner = RateLimitMiddleware(hello, "5/minute")
    outer = RateLimitMiddleware(inner, gate=inner.gate)
    assert [remaining(get(outer)) for _ in range(2)] == [4, 3]


def test_a_request_is_seen_as_it_came() -> None:
    environ = environ_of("POST", "/a%2Fb?q=1", {"X-Thing": "1"}, b"{}") | {"CONTENT_TYPE": "application/json"}
    view = request_view(environ, "ann")
    assert (view.method, view.path, view.query, view.host) == ("POST", "/a%2Fb", "q=1", "test")
    assert (view.header("x-thing"), view.header("content-type")) == ("1", "application/json")
    assert (view.peer, view.user) == ("127.0.0.1", "ann")
    del environ["RAW_URI"]
    environ |= {"SCRIPT_NAME": "/mounted", "PATH_INFO": "/caf\xc3\xa9"}
    assert request_view(environ).path == "/mounted/caf%C3%A9"


def test_the_user_is_whom_the_server_has_authenticated() -> None:
    app = RateLimitMiddleware(hello, "5/minute")
    environ = environ_of("GET", "/") | {"REMOTE_USER": "ann"}
    assert [remaining(wsgi_fetch(app, {**environ, "REMOTE_ADDR": f"192.0.2.{n}"})) for n in (1, 2)] == [4, 3]
    assert remaining(get(app)) == 4


def test_what_is_wrong_raises_at_the_start() -> None:
    with pytest.raises(PolicyError):
        RateLimitMiddleware(hello, "5 per fortnight")
    with pytest.raises(TypeError):
        RateLimitMiddleware(hello)


def test_of_two_different_ones_the_inner_tells_the_client() -> None:
    inner = RateLimitMiddleware(hello, Policy(rules=[Rule("inner", "1/minute")]))
    outer = RateLimitMiddleware(inner, Policy(rules=[Rule("outer", "9/minute")]))
    answers = [get(outer) for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 429]
    for answer in answers:
        (told,) = [value for name, value in answer.headers if name == "ratelimit"]
        assert told.startswith('"inner/minute";r=0')


def test_waitress_on_a_unix_socket_is_a_peer_without_an_address(tmp_path: Path) -> None:
    """It says that the peer is 'localhost'. A proxy in front is believed where unix sockets are trusted."""
    from waitress.server import create_server

    def address(environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
        start_response("200 OK", [])
        return [environ["ratebound.passed"].verdicts[0].identities[0].key.encode()]

    said = []
    for number, trusted in enumerate(([], ["unix"])):
        path = str(tmp_path / str(number))
        limited = RateLimitMiddleware(address, "5/minute", trusted=trusted)
        server = create_server(limited, unix_socket=path, clear_untrusted_proxy_headers=False)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(path)
                client.sendall(b"GET / HTTP/1.0\r\nX-Forwarded-For: 203.0.113.9\r\n\r\n")
                answer = b"".join(iter(lambda: client.recv(4096), b""))
                said.append(answer.rpartition(b"\r\n\r\n")[2])
        finally:
            server.trigger.pull_trigger(server.close)  # in its own thread
            thread.join(20)
    assert said == [b"address:unix", b"address:203.0.113.9"]
