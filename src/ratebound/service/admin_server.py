"""The server of the control plane: uvicorn with the bounds of the data plane, and with streams of events that last.

Peers without a token cannot keep others from `/healthz`, or make the process hold what they send.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from ratebound.service.connections import Bounds
from ratebound.service.listening import BACKLOG
from ratebound.service.settings import ServiceSettings

MOST_STREAMS = 80
# Open ones: then the one is closed that has been without a request for longest. A browser opens six for a dashboard,
# and all of them are busy when a long list has changed. The others are for `/healthz` and for programs.
MOST_CONNECTIONS = 6 * MOST_STREAMS + 20
MOST_PIPELINED = 10  # requests of one connection that are not answered: browsers send one after the other

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class EventStreams:
    """An ASGI application, some of whose answers are streams of events without an end. `is_stream` knows them by their
    path, and `refuse` answers when there are too many."""

    def __init__(self, app: App, is_stream: Callable[[str], bool], refuse: App) -> None:
        self._app = app
        self._is_stream = is_stream
        self._refuse = refuse
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._is_stream(scope["path"]):
            return await self._app(scope, receive, send)
        if self._open >= MOST_STREAMS:
            return await self._refuse(scope, receive, send)
        connection: _BoundedConnection = scope["state"]["connection"]
        opened = 0

        async def send_part(message: Message) -> None:
            nonlocal opened
            if message["type"] == "http.response.start" and message["status"] == 200:
                opened = 1  # counted only now: peers without a token do not get so far
                self._open += opened
            await connection.send_part(send, message)

        try:
            await self._app(scope, receive, send_part)
        finally:
            self._open -= opened


class _BoundedConnection(HttpToolsProtocol):
    """A connection with bounds that uvicorn does not have. Applications find it in the state of the scope."""

    def __init__(self, config: uvicorn.Config, state: ServerState, bounds: Bounds) -> None:
        super().__init__(config, state, {"connection": self}, asyncio.get_running_loop())
        self._bounds = bounds
        self._since = self.loop.time()  # when it was opened, or its last request was answered
        self._timer: asyncio.TimerHandle | None = None
        self._head = 0  # bytes that were received for headers that are not complete
        self._is_in_head = True
        self._is_streaming = False
        self._unanswered: deque[RequestResponseCycle] = deque()  # the one that is answered, and those that wait for it

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin a connection. If there are too many, close one that does nothing."""
        super().connection_made(transport)
        self._give_time()
        if len(self.connections) > MOST_CONNECTIONS:
            idle = [one for one in self.connections if isinstance(one, _BoundedConnection) and not one._is_answering]
            min(idle, key=lambda one: one._since).transport.abort()  # there is one: this one

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self._take_time()
        super().connection_lost(exc)
        for cycle in self._unanswered:  # uvicorn tells only the last one, and others would go on to send
            cycle.disconnected = True
            cycle.message_event.set()

    def data_received(self, data: bytes) -> None:
        """Read what has come, unless the headers are too long."""
        self._head += len(data)
        super().data_received(data)
        if self._is_in_head and self._head > self._bounds.head and not self.transport.is_closing():
            self.send_400_response(f"The headers are longer than {self._bounds.head} bytes.")

    def on_message_begin(self) -> None:
        """Begin a request. The parser turns an exception into an answer of 400, and the connection is closed."""
        if len(self._unanswered) >= MOST_PIPELINED:
            raise ValueError("too many requests wait for their answers")
        self._give_time()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Begin to answer."""
        self._is_in_head = False
        super().on_headers_complete()
        self._unanswered.append(self.cycle)

    def on_message_complete(self) -> None:
        """Expect the headers of the next request, which may come before this one is answered."""
        super().on_message_complete()
        self._expect_head()

    def on_response_complete(self) -> None:
        """Make ready for the next request."""
        self._unanswered.popleft()
        self._take_time()
        self._since = self.loop.time()
        self._is_streaming = False
        if self._unanswered:
            self._give_time()
        else:
            self._expect_head()  # what comes of a body that nobody has read counts, too
        super().on_response_complete()

    async def send_part(self, send: Send, message: Message) -> None:
        """Send a part of a stream. The stream may last, but the peer must take each part in time."""
        self._is_streaming = True
        self._give_time()
        await send(message)
        if self._is_streaming:  # else this was the end
            self._take_time()

    def shutdown(self) -> None:
        """End at a stop: a stream at once, other answers when they are complete."""
        if self._is_streaming:
            self.transport.close()
        else:
            super().shutdown()

    @property
    def _is_answering(self) -> bool:
        """True if a request was received, its body included, and is not answered."""
        return bool(self._unanswered) and not self.cycle.more_body

    def _give_time(self) -> None:
        """Close the connection if its request is not sent and answered in time."""
        if self._timer is None:
            self._timer = self.loop.call_later(self._bounds.request, self.transport.abort)

    def _expect_head(self) -> None:
        self._is_in_head = True
        self._head = 0

    def _take_time(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class AdminServer(uvicorn.Server):
    """A server that leaves signals to its caller, and gives peers no longer for TLS than for a request."""

    def __init__(self, app: App, settings: ServiceSettings) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                ws="none",
                timeout_graceful_shutdown=max(1, int(settings.grace)),
                ssl_certfile=settings.tls_cert or None,
                ssl_keyfile=settings.tls_key or None,
            )
        )
        self._bounds = settings.bounds

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve the sockets."""

        def connect() -> asyncio.Protocol:
            return _BoundedConnection(self.config, self.server_state, self._bounds)

        loop, tls = asyncio.get_running_loop(), self.config.ssl
        within = self._bounds.request if tls else None
        self.servers = [
            await loop.create_server(connect, sock=bound, ssl=tls, ssl_handshake_timeout=within, backlog=BACKLOG)
            for bound in sockets or ()
        ]
        self.started = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield
