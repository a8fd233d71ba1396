"""Requests for applications in this process, as a server would hand them over."""

import asyncio
import io
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from tests.web.suite import Answer, Client

Message = dict[str, Any]


def split_prefix(path: str) -> tuple[str, str]:
    """Return the prefix under which an application is served, and the path below it: '/api|/login'."""
    root, bar, below = path.partition("|")
    return (root, below) if bar else ("", path)


def http_scope(
    method: str, path: str, headers: Mapping[str, str] | None = None, peer: str = "127.0.0.1", **more: Any
) -> dict[str, Any]:
    root, path = split_prefix(path)
    raw, _, query = path.partition("?")
    raw = root + raw
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(raw),
        "raw_path": raw.encode(),
        "query_string": query.encode(),
        "root_path": root,
        "headers": [(b"host", b"test"), *((n.lower().encode(), v.encode()) for n, v in (headers or {}).items())],
        "client": (peer, 50000),
        "server": ("test", 80),
        **more,
    }


async def exchange(app: Any, scope: dict[str, Any], body: bytes = b"") -> list[Message]:
    """The messages that an application sends for one request. What it raises after its answer is its own affair."""
    sent: list[Message] = []
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    done = asyncio.Event()

    async def receive() -> Message:
        if left:
            return left.pop()
        await done.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            done.set()

    try:
        await app(scope, receive, send)
    except Exception:
        if not sent:
            raise
    return sent


def answer_of(messages: Iterable[Message]) -> Answer:
    found = list(messages)
    starts = [message for message in found if message["type"] == "http.response.start"]
    assert len(starts) == 1, found
    headers = [(name.decode().lower(), value.decode()) for name, value in starts[0]["headers"]]
    return Answer(starts[0]["status"], headers, b"".join(message.get("body", b"") for message in found))


async def fetch(
    app: Any, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b"", **more: Any
) -> Answer:
    answer = answer_of(await exchange(app, http_scope(method, path, headers, **more), body))
    return answer._replace(body=b"") if method == "HEAD" else answer  # as a server would


def asgi_client(app: Any) -> Client:
    """One event loop for all requests of a test."""
    loop = asyncio.new_event_loop()

    def send(method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> Answer:
        return loop.run_until_complete(asyncio.wait_for(fetch(app, method, path, headers, body), 30))

    send.close = loop.close  # type: ignore[attr-defined]
    return send


def environ_of(method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> dict[str, Any]:
    root, path = split_prefix(path)
    raw, _, query = path.partition("?")
    return {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": root,
        "PATH_INFO": unquote(raw),
        "QUERY_STRING": query,
        "RAW_URI": root + path,
        "REMOTE_ADDR": "127.0.0.1",
        "SERVER_NAME": "test",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "HTTP_HOST": "test",
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": io.StringIO(),
        "CONTENT_LENGTH": str(len(body)) if body else "",
        **{_variable(name): value for name, value in (headers or {}).items()},
    }


def _variable(header: str) -> str:
    name = header.upper().replace("-", "_")
    return name if name == "CONTENT_TYPE" else f"HTTP_{name}"


def wsgi_fetch(app: Callable[..., Iterable[bytes]], environ: dict[str, Any]) -> Answer:
    started: list[tuple[str, list[tuple[str, str]]]] = []
    written: list[bytes] = []

    def start_response(status: str, headers: list[tuple[str, str]], *failure: Any) -> Callable[[bytes], None]:
        if failure and failure[0] is not None and not written:
            started.clear()  # an application may change its mind as long as nothing was sent
        started.append((status, headers))
        return written.append

    body = app(environ, start_response)
    try:
        written += body
    finally:
        getattr(body, "close", lambda: None)()
    assert len(started) == 1, started
    status, headers = started[0]
    content = b"" if environ["REQUEST_METHOD"] == "HEAD" else b"".join(written)
    return Answer(int(status[:3]), [(name.lower(), value) for name, value in headers], content)


def wsgi_client(app: Any) -> Client:
    def send(method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> Answer:
        return wsgi_fetch(app, environ_of(method, path, headers, body))

    return send


class CountingStorage:
    """How often a storage is asked, and for how many groups."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.calls: list[str] = []

    async def evaluate(self, groups: Any, mode: Any = "spend") -> Any:
        self.calls.append(mode)
        return await self.inner.evaluate(groups, mode)

    async def reset(self, group: Any) -> None:
        await self.inner.reset(group)

    async def close(self) -> None:
        self.calls.append("close")
        await self.inner.close()


async def connect(
    app: Any, path: str = "/ws", texts: Iterable[str] = (), headers: Mapping[str, str] | None = None, **more: Any
) -> list[Message]:
    """All that an application sends for a WebSocket connection through which these texts come."""
    scope = http_scope("GET", path, headers, **more) | {"type": "websocket", "subprotocols": [], "scheme": "ws"}
    del scope["method"]
    left = [{"type": "websocket.connect"}, *({"type": "websocket.receive", "text": text} for text in texts)]
    sent: list[Message] = []

    async def receive() -> Message:
        return left.pop(0) if left else {"type": "websocket.disconnect", "code": 1000}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """A WebSocket application."""
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept", "headers": []})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"]})
