"""A real HTTP server for policies, which behaves as a test wants it to."""

import hashlib
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import trustme

Answer = Callable[[BaseHTTPRequestHandler], None]


class PolicyServer(ThreadingHTTPServer):
    """Serves `text` with an ETag, or whatever `answer` does with a request. `asked` has the requests' headers with
    their path, and `statuses` what was answered with an ETag."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, text: str = "", port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.scheme = "http" if tls is None else "https"
        self.text = text
        self.content_type = "application/yaml"
        self.answer: Answer | None = None
        self.asked: list[dict[str, str]] = []
        self.statuses: list[int] = []
        self.is_over = threading.Event()

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{'127.0.0.1' if self.scheme == 'http' else 'localhost'}:{self.server_address[1]}"

    @property
    def url(self) -> str:
        return f"{self.origin}/policy.yaml"

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that go away are what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    server: PolicyServer

    def do_GET(self) -> None:
        server = self.server
        server.asked.append({":path": self.path, **{name.lower(): value for name, value in self.headers.items()}})
        if server.answer is not None:
            server.answer(self)
            return
        body = server.text.encode()
        etag = f'"{hashlib.sha256(body).hexdigest()}"'
        is_known = self.headers.get("If-None-Match") == etag
        server.statuses.append(304 if is_known else 200)
        respond(self, server.statuses[-1], b"" if is_known else body, server.content_type, ETag=etag)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing."""


def respond(
    handler: BaseHTTPRequestHandler, status: int, body: bytes = b"", kind: str = "text/plain", **headers: str
) -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", kind)
    if status != 304:
        handler.send_header("Content-Length", str(len(body)))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


@contextmanager
def serving(text: str = "", port: int = 0, tls: ssl.SSLContext | None = None) -> Iterator[PolicyServer]:
    server = PolicyServer(text, port, tls)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.is_over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def tls_server(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """A context for a server on localhost, and the file of the authority that signed its certificate."""
    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(tls)
    path = folder / "authority.pem"
    authority.cert_pem.write_to_path(str(path))
    return tls, path
