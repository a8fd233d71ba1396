"""The admin site for ASGI servers, without a framework: requests, live figures as server-sent events, and their end."""

import asyncio
import inspect
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ratebound.admin.calls import Operator
from ratebound.admin.live_feed import EVERY, LiveFeed
from ratebound.admin.messages import AdminAnswer, AdminRequest, CallError, encoded, problem_answer
from ratebound.admin.shared_reads import SharedReads
from ratebound.admin.site import AdminSite
from ratebound.flow import Flow

Scope = Mapping[str, Any]
Receive = Callable[[], Any]
Send = Callable[[Any], Any]

CHECK = 5.0  # seconds after which it is looked up again whether somebody may still look
HEARTBEAT_AFTER = 15.0  # seconds without an event
READER = Operator("", "read")  # of what all who look share


class AdminAsgi:
    """The site as an ASGI application: `app.mount("/limits", AdminAsgi(site))`.

    `native` makes the framework's own request of (scope, receive), for the function that signs in; without it that gets
    the scope. `stop` ends all streams of live figures, so that a server can stop.
    """

    def __init__(
        self,
        site: AdminSite,
        *,
        native: Callable[[Any, Receive], Any] | None = None,
        every: float = EVERY,
        check: float = CHECK,
    ) -> None:
        self.site = site
        self._native = native
        self._every = every
        self._check = check
        self._is_blocking = bool(getattr(site.calls, "is_blocking", False))
        self.feed = LiveFeed(self._ask, every=every)
        self._reads = SharedReads(self._content)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    def stop(self) -> None:
        """End all streams of live figures. Browsers connect again, unless the server has stopped."""
        self.feed.close()

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = self._request(scope, receive)
        try:
            answer = await self._drive(self.site.answer(request))
        except _ClientGone:
            return
        if answer.is_live and scope["method"] != "HEAD":
            await self._stream(request, answer, receive, send)
        else:
            await _send(send, answer)

    def _request(self, scope: Scope, receive: Receive) -> AdminRequest:
        headers: dict[str, str] = {}
        for raw_name, raw_value in scope["headers"]:
            name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
            mark = "; " if name == "cookie" else ", "
            headers[name] = f"{headers[name]}{mark}{value}" if name in headers else value
        mount = scope.get("root_path", "").rstrip("/")
        path: str = scope["path"]
        below = path[len(mount) :] if path == mount or path.startswith(f"{mount}/") else path
        client = scope.get("client")
        return AdminRequest(
            method=scope["method"].upper(),
            path=None if not below and mount else below.removeprefix("/"),
            query=scope.get("query_string", b"").decode("latin-1"),
            headers=headers,
            mount=mount,
            is_secure=scope.get("scheme") == "https",
            peer=client[0] if client else "",
            is_live=True,
            native=scope if self._native is None else self._native(scope, receive),
            read_body=partial(_read_body, receive),
            share=self._reads.ask,
        )

    async def _stream(self, request: AdminRequest, answer: AdminAnswer, receive: Receive, send: Send) -> None:
        try:
            reader = await self.feed.join()
        except CallError as error:
            await _send(send, problem_answer(error))
            return
        gone = asyncio.create_task(_disconnected(receive))
        gone.add_done_callback(lambda _: reader.end())
        try:
            await _send_start(send, answer)
            checked = time.monotonic()
            while (part := await reader.take(HEARTBEAT_AFTER)) is not None and not _server_stops():
                if time.monotonic() - checked >= self._check:
                    if not await self._may_go_on(request):
                        break
                    checked = time.monotonic()
                await send({"type": "http.response.body", "body": part, "more_body": True})
        finally:
            gone.cancel()
            self.feed.leave(reader)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _may_go_on(self, request: AdminRequest) -> bool:
        """Return False if the operator was signed out, or has lost the role. The browser asks again, and is told so.

        What a function of the application raises means the same: its handlers cannot answer within a stream.
        """
        try:
            await self._drive(self.site.check_again(request))
        except Exception:
            return False
        return True

    async def _ask(self, name: str) -> Any:
        return await self._drive(self.site.calls.call(name, {}, READER))

    async def _content(self, name: str) -> bytes:
        return encoded(await self._ask(name))

    async def _drive(self, flow: Flow[Any]) -> Any:
        """Drive a flow in this task. Steps that block run in a thread."""
        try:
            step = next(flow)
            while True:
                try:
                    value = await asyncio.to_thread(step) if self._is_blocking else step()
                    if inspect.isawaitable(value):
                        value = await value
                except BaseException as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(value)
        except StopIteration as done:
            return done.value

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                self.stop()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return


class _ClientGone(Exception):
    """The client has gone before it has sent its whole body."""


async def _read_body(receive: Receive, most: int) -> bytes:
    """Return the body, or more than `most` bytes of one that is longer. Raises _ClientGone."""
    parts, length = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _ClientGone
        part = message.get("body", b"")
        parts.append(part)
        length += len(part)
        if not message.get("more_body", False) or length > most:
            return b"".join(parts)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_start(send: Send, answer: AdminAnswer) -> None:
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})


async def _send(send: Send, answer: AdminAnswer) -> None:
    await _send_start(send, answer)
    await send({"type": "http.response.body", "body": answer.body, "more_body": False})


def _server_stops() -> bool:
    """Return True if uvicorn has been told to stop. It waits for streams to end, and tells the application only after
    that; the object that takes its signals knows it before."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True
