"""What is special to httpx: stalls, resets and broken refusals, cancellation, interrupts, authentication, HTTP/2.

The behaviours that all adapters share are in test_adapters.py.
"""

import asyncio
import gc
import io
import json
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypercorn.asyncio import serve
from hypercorn.config import Config

from ratebound.client import (
    AsyncPacer,
    AsyncRepeatableBody,
    Backoff,
    CircuitBreaker,
    CircuitOpen,
    Pacer,
    RepeatableBody,
    Retry,
)
from ratebound.client.call import PoliteOptions
from ratebound.client.call_events import Attempted, Retrying
from ratebound.client.httpx import AsyncPoliteTransport, PoliteTransport
from tests.client.scripted_server import DONE, Play, Scripted, scripted_server
from tests.policy.policy_server import tls_server
from tests.servers import HOST, free_port

AT_ONCE = {"Retry-After": "0"}
SOON = Retry(backoff=Backoff("none", first=0.001, most=0.001))
JSON = {"Content-Type": "application/json", **AT_ONCE}
TIMEOUT = httpx.Timeout(20.0)
THROTTLE = {"maximumAvailable": 1000.0, "currentlyAvailable": 100.0, "restoreRate": 50.0}
IMPATIENT = httpx.Timeout(20.0, read=0.2)


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted_server() as found:
        yield found


@contextmanager
def client(**options: Any) -> Iterator[httpx.Client]:
    with httpx.Client(transport=PoliteTransport(**{"retry": SOON, **options}), timeout=TIMEOUT) as found:
        yield found


def async_client(timeout: httpx.Timeout = TIMEOUT, **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=AsyncPoliteTransport(**{"retry": SOON, **options}), timeout=timeout)


def busy(found: httpx.Client | httpx.AsyncClient) -> list[str]:
    """Return the connections of a client that no other request can use now."""
    pool = found._transport._inner._pool  # type: ignore[union-attr]
    return [connection.info() for connection in pool.connections if not connection.is_idle()]


@contextmanager
def silent_server() -> Iterator[tuple[str, list[bytes]]]:
    """A server that reads requests and never answers. It yields its URL and the first bytes of each connection."""
    heard: list[bytes] = []
    with socket.create_server((HOST, free_port())) as listening:
        listening.settimeout(20)
        kept: list[socket.socket] = []

        def listen() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                    connection.settimeout(20)
                    kept.append(connection)
                    heard.append(connection.recv(65_536))
                except OSError:
                    return

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        try:
            yield f"http://{HOST}:{listening.getsockname()[1]}", heard
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            for connection in kept:
                connection.close()
            thread.join(20)


def test_the_one_line_of_the_documentation(server: Scripted) -> None:
    server.plays(Play(429, AT_ONCE))
    with httpx.Client(transport=PoliteTransport()) as found:
        response = found.get(server.url)
    assert response.json() == {"done": True}
    report = response.extensions["ratebound"]
    assert (report.attempts, report.gave_up) == (2, "")
    assert report.advice is not None


def test_a_server_that_stalls_is_asked_again_by_get_and_not_by_post() -> None:
    with silent_server() as (url, heard), client() as found:
        with pytest.raises(httpx.ReadTimeout) as raised:
            found.get(url, timeout=IMPATIENT)
        assert "4 attempts" in raised.value.__notes__[0]
        assert raised.value.request.url == url
        with pytest.raises(httpx.ReadTimeout):
            found.post(url, content=b"once", timeout=IMPATIENT)
        assert not busy(found)
    assert [line[:4] for line in heard] == [b"GET "] * 4 + [b"POST"]


def test_a_refusal_whose_body_stalls_is_retried(server: Scripted) -> None:
    server.plays(Play(429, JSON, parts=(b"{", b"}")))
    with client() as found:
        response = found.get(server.url, timeout=IMPATIENT)
        assert response.json() == {"done": True}
        assert not busy(found)


def test_a_refusal_that_breaks_off_is_retried(server: Scripted) -> None:
    server.plays(Play(429, JSON, cut="middle"), Play(503, AT_ONCE, cut="middle"))
    with client() as found:
        assert found.get(server.url).json() == {"done": True}
    assert len(server.received) == 3


def test_a_refusal_that_breaks_off_and_is_returned_says_so_when_it_is_read(server: Scripted) -> None:
    server.always(Play(429, JSON, b"x" * 100, cut="middle"))
    with client(retry=None) as found, found.stream("GET", server.url) as response:
        assert response.status_code == 429
        with pytest.raises(httpx.TransportError):
            response.read()


def test_an_answer_that_breaks_off_after_its_headers_is_the_callers(server: Scripted) -> None:
    """It may be a stream that the caller has begun to use: it is not sent again."""
    server.plays(Play(200, {}, b"x" * 100, cut="middle"))
    with client() as found, pytest.raises(httpx.TransportError):
        found.get(server.url)
    assert len(server.received) == 1


def test_a_pool_without_a_free_connection_is_not_asked_again(server: Scripted) -> None:
    events: list[object] = []
    inner = httpx.HTTPTransport(limits=httpx.Limits(max_connections=1))
    server.plays(Play(200, parts=(b"a",)))
    with httpx.Client(transport=PoliteTransport(inner, listeners=[events.append])) as found:
        with found.stream("GET", server.url), pytest.raises(httpx.PoolTimeout):
            found.get(server.url, timeout=httpx.Timeout(20.0, pool=0.05))
        assert not [event for event in events if isinstance(event, Retrying)]


def test_a_certificate_that_is_not_accepted_is_not_tried_again(tmp_path: Path) -> None:
    context, _ = tls_server(tmp_path)
    accepted: list[object] = []
    with socket.create_server((HOST, free_port())) as listening:

        def listen() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                accepted.append(connection)
                try:
                    context.wrap_socket(connection, server_side=True).close()
                except OSError:
                    connection.close()

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        with client() as found, pytest.raises(httpx.ConnectError, match="CERTIFICATE"):
            found.get(f"https://{HOST}:{listening.getsockname()[1]}")
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(20)
    assert len(accepted) == 1


def test_an_open_circuit_is_an_error_of_httpx_too() -> None:
    url = f"http://{HOST}:{free_port()}"
    with client(breaker=CircuitBreaker(failures=2, interval=60.0)) as found:
        with pytest.raises(httpx.ConnectError):
            found.get(url)
        with pytest.raises(httpx.HTTPError) as raised:
            found.get(url)
    assert isinstance(raised.value, CircuitOpen)
    assert 0 < raised.value.retry_after <= 60
    assert raised.value.request.url == url


def test_authentication_flows_work_below_and_above_refusals(server: Scripted) -> None:
    challenge = 'Digest realm="r", nonce="n", qop="auth", algorithm=MD5'
    server.plays(Play(429, AT_ONCE), Play(401, {"WWW-Authenticate": challenge}), Play(503, AT_ONCE))
    with client() as found:
        response = found.post(server.url, content=b"paid", auth=httpx.DigestAuth("me", "secret"))
    assert response.status_code == 200
    assert server.bodies() == [b"paid"] * 4
    assert [bool(request.header("authorization")) for request in server.received] == [False, False, True, True]


def test_a_request_may_have_options_of_its_own(server: Scripted) -> None:
    server.always(Play(429, AT_ONCE))
    with client() as found:
        found.get(server.url, extensions={"ratebound": {"retry": Retry(attempts=1)}})
        assert len(server.received) == 1
        with pytest.raises(TypeError, match="has retries: expected some of cost, tokens, retry"):
            found.get(server.url, extensions={"ratebound": {"retries": 1}})
        with pytest.raises(TypeError, match="has retry 3: expected a Retry"):
            found.get(server.url, extensions={"ratebound": {"retry": 3}})
        with pytest.raises(TypeError, match="has int"):
            found.get(server.url, extensions={"ratebound": 3})


def test_a_refusal_under_status_200_is_read_if_that_is_asked_for(server: Scripted) -> None:
    cost = {"requestedQueryCost": 101, "throttleStatus": THROTTLE}
    errors = [{"message": "Throttled", "extensions": {"code": "THROTTLED"}}]
    throttled = json.dumps({"errors": errors, "extensions": {"cost": cost}}).encode()
    server.plays(Play(200, {"Content-Type": "application/json"}, throttled))
    with client(read_bodies_of=(200, 429)) as found:
        assert found.post(server.url, content=b"{}").json() == {"done": True}
    assert len(server.received) == 2


class Unseekable(io.RawIOBase):
    """A file that can be read once."""

    def __init__(self, content: bytes) -> None:
        self._content = io.BytesIO(content)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._content.read(size)


def bodies() -> dict[str, tuple[Any, list[bytes]]]:
    return {
        "a list": ([b"ab", b"cd"], [b"abcd"] * 2),
        "a file": (io.BytesIO(b"abcd"), [b"abcd"] * 2),
        "a function": (RepeatableBody(lambda: iter([b"ab", b"cd"])), [b"abcd"] * 2),
        "a generator": ((part for part in (b"ab", b"cd")), [b"abcd"]),
        "an iterator": (iter([b"ab", b"cd"]), [b"abcd"]),
        "a pipe": (Unseekable(b"abcd"), [b"abcd"]),
    }


@pytest.mark.parametrize("kind", list(bodies()))
def test_a_body_is_sent_in_full_or_not_at_all(server: Scripted, kind: str) -> None:
    content, expected = bodies()[kind]
    server.plays(Play(429, AT_ONCE))
    with client() as found:
        response = found.post(server.url, content=content)
    assert server.bodies() == expected
    assert response.extensions["ratebound"].gave_up == ("" if len(expected) == 2 else "body")


def test_a_form_with_a_file_that_cannot_seek_is_sent_once(server: Scripted) -> None:
    server.plays(Play(429, AT_ONCE))
    with client() as found:
        response = found.post(server.url, files={"upload": ("name", Unseekable(b"abcd"))})  # type: ignore[dict-item]
    assert len(server.received) == 1
    assert response.status_code == 429


def test_a_generator_that_was_not_begun_is_sent_after_a_refused_connection() -> None:
    port = free_port()

    def parts() -> Iterator[bytes]:
        yield b"whole"

    started = threading.Event()
    with client(
        retry=Retry(attempts=100, within=20, backoff=Backoff("none", first=0.05)), budget=None, breaker=None
    ) as c:
        results: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: results.append(c.post(f"http://{HOST}:{port}", content=parts())))
        thread.start()
        started.wait(0.2)
        with scripted_server(port=port) as server:
            thread.join(20)
            assert server.bodies() == [b"whole"]
    assert results[0].json() == {"done": True}


def test_the_applications_request_is_not_changed(server: Scripted) -> None:
    server.plays(Play(429, AT_ONCE))
    with client(idempotency_key=True) as found:
        request = found.build_request("POST", server.url, content=b"x")
        found.send(request)
    assert "idempotency-key" not in request.headers
    keys = {received.header("idempotency-key") for received in server.received}
    assert len(keys) == 1
    assert None not in keys


class Interrupted(Exception):
    """Raised by a signal handler, as KeyboardInterrupt is."""


def test_an_interrupt_ends_a_wait_at_once(server: Scripted) -> None:
    server.always(Play(429, {"Retry-After": "50"}))

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        began = time.monotonic()
        with client(retry=Retry(within=60), pacer=None) as found:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(Interrupted):
                found.get(server.url)
            assert not busy(found)
        assert time.monotonic() - began < 20
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("where", ["pause", "pacing", "headers", "refusal"])
def test_a_cancelled_call_ends_at_once_and_holds_no_connection(server: Scripted, where: str) -> None:
    async def main() -> None:
        pacer: AsyncPacer | None = None
        retry = Retry(within=60)
        if where == "pause":
            server.always(Play(429, {"Retry-After": "50"}))
        elif where == "pacing":
            pacer = AsyncPacer("1/minute")
        elif where == "refusal":
            server.always(Play(429, JSON, parts=(b"{", b"}")))
        with silent_server() as (silent, heard):
            url = silent if where == "headers" else server.url
            async with async_client(retry=retry, pacer=pacer) as found:
                if where == "pacing":
                    await found.get(url)
                task = asyncio.create_task(found.get(url))
                while not (server.received or heard):
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.1)
                assert not task.done()
                began = time.monotonic()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert time.monotonic() - began < 20
                assert not busy(found)
            if pacer is not None:
                await pacer.close()

    asyncio.run(main())
    gc.collect()  # nothing is left that warns when it is collected


def test_a_call_that_is_cancelled_while_its_refusal_is_read_frees_its_slot(server: Scripted) -> None:
    server.plays(Play(429, {**JSON, "Retry-After": "0"}, parts=(b"{", b"}")))

    async def main() -> None:
        pacer = AsyncPacer("1 concurrent for 1 hour", learn=False)
        async with pacer, async_client(pacer=pacer, retry=Retry(within=20)) as found:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await found.get(server.url)
            assert (await found.get(server.url)).status_code == 200

    asyncio.run(main())


def test_a_timeout_around_a_call_is_kept(server: Scripted) -> None:
    server.always(Play(429, {"Retry-After": "50"}))

    async def main() -> None:
        async with async_client(retry=Retry(within=60)) as found:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await found.get(server.url)
            assert not busy(found)

    asyncio.run(main())


def test_many_tasks_share_a_client(server: Scripted) -> None:
    events: list[object] = []

    async def main() -> None:
        server.plays(*[Play(429, AT_ONCE)] * 3)
        async with async_client(listeners=[events.append], pacer=None) as found:
            responses = await asyncio.gather(*(found.get(server.url) for _ in range(40)))
            assert {response.status_code for response in responses} == {200}
            assert not busy(found)

    asyncio.run(main())
    assert sum(isinstance(event, Attempted) for event in events) == 43


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    """Refuse every request until its body was sent three times."""
    if scope["type"] != "http":
        return
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    seen = counts[scope["path"]] = counts.get(scope["path"], 0) + 1
    status = 429 if seen < 3 else 200
    headers = [(b"retry-after", b"0"), (b"x-http", scope["http_version"].encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


counts: dict[str, int] = {}


@pytest.fixture
def http2() -> Iterator[str]:
    counts.clear()
    port = free_port()
    config = Config()
    config.bind = [f"{HOST}:{port}"]
    config.loglevel = "CRITICAL"
    loop = asyncio.new_event_loop()
    stop: list[asyncio.Event] = []

    async def main() -> None:
        stop.append(asyncio.Event())
        await serve(asgi, config, shutdown_trigger=stop[0].wait)

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()), daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            socket.create_connection((HOST, port)).close()
            break
        except OSError:
            time.sleep(0.02)
    yield f"http://{HOST}:{port}"
    loop.call_soon_threadsafe(stop[0].set)
    thread.join(20)
    loop.close()


def test_http2_with_many_requests_on_one_connection(http2: str) -> None:
    async def main() -> None:
        inner = httpx.AsyncHTTPTransport(http1=False, http2=True)
        options: PoliteOptions = {"retry": SOON, "budget": None, "pacer": None}
        async with httpx.AsyncClient(transport=AsyncPoliteTransport(inner, **options), timeout=TIMEOUT) as found:
            calls = (found.put(f"{http2}/{number}", content=b"%d" % number) for number in range(10))
            responses = await asyncio.gather(*calls)
            assert [response.content for response in responses] == [b"%d" % number for number in range(10)]
            assert {response.extensions["ratebound"].attempts for response in responses} == {3}
            assert {response.headers["x-http"] for response in responses} == {"2"}
            assert len(inner._pool.connections) == 1
            assert not busy(found)

    asyncio.run(main())


def test_http2_with_threads(http2: str) -> None:
    inner = httpx.HTTPTransport(http1=False, http2=True)
    with httpx.Client(transport=PoliteTransport(inner, retry=SOON), timeout=TIMEOUT) as found:
        response = found.post(f"{http2}/one", content=b"body")
    assert response.content == b"body"
    assert response.extensions["ratebound"].attempts == 3


def test_a_pacer_that_was_given_outlives_the_client(server: Scripted) -> None:
    with Pacer("1000/second") as pacer:
        for _ in range(2):
            with client(pacer=pacer) as found:
                assert found.get(server.url).status_code == 200


def test_asynchronous_bodies(server: Scripted) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"ab"
        yield b"cd"

    async def main() -> None:
        async with async_client() as found:
            server.plays(Play(429, AT_ONCE))
            await found.post(server.url, content=AsyncRepeatableBody(parts))
            server.plays(Play(429, AT_ONCE))
            response = await found.post(server.url, content=parts())
            assert response.extensions["ratebound"].gave_up == "body"

    asyncio.run(main())
    assert server.bodies() == [b"abcd"] * 3


def test_an_inner_transport_of_the_application_is_used() -> None:
    answers = iter([httpx.Response(429, headers=AT_ONCE), httpx.Response(200, content=DONE)])
    inner = httpx.MockTransport(lambda request: next(answers))
    with httpx.Client(transport=PoliteTransport(inner)) as found:
        assert found.get("https://api.example.com").content == DONE
