"""A real server that answers with given heads and bodies, byte by byte as given."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from tests.http.vendor_headers import Recording
from tests.servers import HOST

Respond = Callable[[bytes], bytes | None]  # from a request's bytes to a response's; None: no answer at all


class RawServer:
    """A server that runs. `requests` are the heads and bodies that came, as far as one read gave them."""

    def __init__(self, port: int) -> None:
        self.url = f"http://{HOST}:{port}"
        self.port = port
        self.requests: list[bytes] = []


@contextmanager
def answering(respond: Respond, tls: ssl.SSLContext | None = None) -> Iterator[RawServer]:
    """Serve until the context ends. Each connection gets one response, and is closed then."""
    listener = socket.create_server((HOST, 0))
    server = RawServer(listener.getsockname()[1])
    is_over = threading.Event()

    def serve(connection: socket.socket) -> None:
        with suppress(OSError), connection:
            connection.settimeout(20)
            wrapped = connection if tls is None else tls.wrap_socket(connection, server_side=True)
            with wrapped:
                request = wrapped.recv(65_536)
                server.requests.append(request)
                answer = respond(request)
                if answer is None:
                    is_over.wait(20)
                else:
                    wrapped.sendall(answer)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        is_over.set()
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def raw(status: int, headers: Sequence[tuple[str, str]], body: bytes | None = None, phrase: str = "") -> bytes:
    """Return a response as bytes."""
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers)]
    if body is not None:
        if not any(name.lower() == "content-type" for name, _ in headers):
            lines.append("Content-Type: application/json")
        lines.append(f"Content-Length: {len(body)}")
    else:
        lines.append("Content-Length: 0")
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1") + (body or b"")


def recorded(recording: Recording) -> bytes:
    """Return a recorded response as bytes."""
    return raw(recording.status, recording.headers, recording.body)
