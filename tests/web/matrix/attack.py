"""Requests of odd shape, over a raw socket."""

import json
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import quote

from tests.servers import HOST

RAN = re.compile(rb"\r\nx-ran: *([a-z]+)", re.IGNORECASE)
SECONDS = 30.0  # that a server may take to answer


class Shape(NamedTuple):
    """A request target, and headers that may change how it is read."""

    target: bytes
    headers: bytes = b""


class Verb(NamedTuple):
    method: bytes
    headers: bytes = b""


GET = Verb(b"GET")
PREFLIGHT = Verb(b"OPTIONS", b"Origin: https://example.com\r\nAccess-Control-Request-Method: POST\r\n")
VERBS = [
    GET,
    Verb(b"HEAD"),
    Verb(b"POST", b"Content-Length: 0\r\n"),
    Verb(b"OPTIONS"),
    PREFLIGHT,
    Verb(b"OPTIONS", PREFLIGHT.headers + b"Access-Control-Request-Headers: x-cell\r\nContent-Length: 0\r\n"),
    Verb(b"DELETE"),
    Verb(b"get"),
    Verb(b"Get"),
    Verb(b"options", PREFLIGHT.headers),
    Verb(b"delete"),
    Verb(b"PROPFIND"),
    Verb(b"BREW"),
    Verb(b"TRACE"),
    Verb(b"POST", b"Content-Length: 0\r\nX-HTTP-Method-Override: DELETE\r\n"),
    Verb(b"POST", b"Content-Length: 0\r\nX-HTTP-Method-Override: OPTIONS\r\n" + PREFLIGHT.headers),
    Verb(b"GET", b"X-HTTP-Method-Override: OPTIONS\r\n" + PREFLIGHT.headers),
]


# Prefixes that a client names. Those with `public` are exempt whatever stands in front.
SENT = (
    *("/v", "/assets", "/open", "/api", "/assets/", "//assets", "/assets/..", "/ASSETS", "/x/assets"),
    *("/a/public", "/a,b/public", "/%61/public", "/caf%C3%A9/public", "/café/public", "/a b/public", "/a;b/public"),
)


def escaped(path: str) -> str:
    """Return a path with its last segment's first letter percent-encoded."""
    folder, _, last = path.rpartition("/")
    return f"{folder}/%{ord(last[0]):02x}{last[1:]}"


def shapes(plain: str, prefix: str) -> list[Shape]:
    """Return targets that some server or framework may read as the path `plain`, or as `prefix` and the path."""
    path = quote(plain)
    full, folder, last = prefix + path, *path.rsplit("/", 1)
    slashes = [
        *[path, path + "/", path + "//", "/" + path, "//" + path, path.replace("/", "//"), path + "/.", path + "/./"],
        *["/." + path, "/x/.." + path, path + "/..", path + "/x/..", "/.." + path, "/../.." + path],
        *["/assets/.." + path, "/assets/%2e%2e" + path, "/assets/..%2f" + path[1:], "/assets/%2e%2e%2f" + path[1:]],
        *["/assets/%252e%252e" + path, "/assets/..;" + path, "/assets/..\\" + path[1:], "/assets/..%5c" + path[1:]],
        *["/assets//.." + path, "/assets/x/../.." + path, "/assets/." + path, "/assets" + path, "/open" + path],
        *["/open/.." + path, "/open/%2e%2e" + path, "/open/..%2f" + path[1:], "/open/..%5c" + path[1:]],
        *["/a/public" + path, "/a/public/../.." + path, "/%2e" + path, "/%2f" + path[1:], folder + "%2f" + last],
        *[path + "%2f", path + "%5c", path + "\\", "/\\" + path[1:], "/%5c" + path[1:], path.replace("/", "%2f")],
        *[path + ";", path + ";a=b", path + ";/assets/x", "/;x" + path, path + "%3b", path + "%3ba=b"],
        *[path.upper(), path.title(), escaped(path), escaped(path).upper(), escaped(path).replace("%", "%25")],
        *[path.replace("%", "%25"), path + "%00", path + "%00.css", path + "%20", path + "%09", path + "%0a"],
        *[path + "%0d%0a", "/%20" + path[1:], path + ".", path + "%2e", path + "..", path + "%zz", path + "%"],
        *[path + "?", path + "?x=/assets/y", path + "?_method=OPTIONS", path + "#", path + "#/assets/x"],
        *[path + "%23", path + "%3f", path + "%3fx=y", "/?" + path, "/#" + path],
    ]
    schemes = [
        *["http://h" + path, "HTTP://h" + path, "https://h:80" + path, "http://u@h" + path, "http://" + path],
        *["http://h/" + path, "http://h/assets/.." + path, "http://h/assets" + path, "http://h" + full],
        *["http://assets" + path, "http://h?" + path, "http://h#" + path, "http:" + path, "http:/" + path],
        *["http:" + path[1:], "x:" + path, "x:/" + path, "x://" + path, "x://h" + path, "x:" + path[1:]],
        *["x:/assets/.." + path, "x:/assets" + path, "x:" + full, "assets:" + path, "x+y-z.1:" + path, "1x:" + path],
        *["x:y:" + path, "//h" + path, "//assets" + path, "///h" + path, "/http://h" + path, "/x:" + path],
        *[path[1:], "*", "/*", "*" + path, "@" + path, "/@" + path, ":" + path, "h:80" + path, "h:80"],
        *["%2f" + path[1:], "\\" + path[1:], "?" + path, "#" + path, "//h" + full, "//assets" + full, "x:" + full[1:]],
    ]
    prefixes = [
        *[full, prefix + full, prefix + "/" + path, "/" + full, prefix + "/." + path, prefix + "/.." + path],
        *[prefix + "/.." + full, prefix + "%2f" + path[1:], escaped(prefix) + path, prefix.upper() + path],
        *[prefix + ";x" + path, full + "/", full + "?", full + "#", prefix + "/assets/.." + path],
        *["/x" + full, prefix + path[1:], "/x" + prefix + path[1:], "/assets" + prefix + path[1:], "x" + full],
        *[prefix + "/assets" + path, "/assets" + full, "/open" + full, "/assets/.." + full, path + full],
        *["/v" + path, "/v1" + path, "/v1/v1" + path, "/assets/v1" + path, "/shop" + path, "/shop/shop" + path],
        *["/api" + path, "/api/api" + path, "/api/shop" + path, "/shop/api" + path, "/v1/api" + path, "/api/v1" + path],
    ]
    found = [Shape(text.encode()) for text in (*slashes, *schemes, *prefixes, *(prefix + text for text in slashes))]
    if not plain.isascii():
        decomposed = plain.replace("é", "e\N{COMBINING ACUTE ACCENT}")
        spelled = [quote(plain.encode("latin-1")).encode(), quote(decomposed).encode(), plain.encode()]
        spelled += [plain.encode("latin-1"), plain.upper().encode(), b"/assets/.." + plain.encode()]
        found += [Shape(start + one) for one in spelled for start in (b"", prefix.encode())]
    return list(dict.fromkeys([*found, *with_headers(path, prefix)]))


def with_headers(path: str, prefix: str) -> Iterator[Shape]:
    """Yield requests that name a prefix or another path in a header, as a proxy would."""
    for sent in (*SENT, path, prefix, prefix + "/assets"):
        yield Shape((sent + path).encode(), f"SCRIPT_NAME: {sent}\r\n".encode())
        yield Shape((sent + path).encode(), f"SCRIPT_NAME: x\r\nSCRIPT_NAME: {sent}\r\n".encode())
        for start in dict.fromkeys(("", prefix, sent)):
            yield Shape((start + path).encode(), f"X-Forwarded-Prefix: {sent}\r\n".encode())
    for name in ("Script-Name", "X-Script-Name"):
        yield Shape(("/assets" + path).encode(), f"{name}: /assets\r\n".encode())
    for name in ("X-Original-URL", "X-Rewrite-URL", "X-Forwarded-Path", "PATH_INFO", "RAW_URI", "REQUEST_URI"):
        yield Shape((prefix + path).encode(), f"{name}: /assets/x\r\n".encode())
        yield Shape(b"/assets/x", f"{name}: {path}\r\n".encode())


class Client:
    """Sends requests to one cell of one server, `at_once` of them at a time."""

    def __init__(self, port: int, cell: str, at_once: int) -> None:
        self._port = port
        self._cell = cell
        self._at_once = at_once

    def send(self, shape: Shape, verb: Verb = GET) -> str | None:
        """Return the name of the handler that ran, if any."""
        return self.send_all([(shape, verb)])[0]

    def send_all(self, requests: Sequence[tuple[Shape, Verb]]) -> list[str | None]:
        """Return the name of the handler that ran for each request, if any."""
        found: list[str | None] = []
        for place in range(0, len(requests), self._at_once):
            some = requests[place : place + self._at_once]
            opened = [self._open(shape, verb, self._cell) for shape, verb in some]
            for connection in opened:
                ran = RAN.search(_received(connection))
                found.append(ran[1].decode() if ran else None)
        return found

    def counts(self, prefix: str) -> dict[str, int]:
        """Return how often each handler has run in the server, which may take no path without its prefix."""
        body = _received(self._open(Shape(f"{prefix}/".encode()), GET, "count")).partition(b"\r\n\r\n")[2]
        found: dict[str, int] = json.loads(body[body.index(b"{") : body.rindex(b"}") + 1])  # it may come in chunks
        return found

    def _open(self, shape: Shape, verb: Verb, cell: str) -> socket.socket:
        head = b"Host: localhost\r\nConnection: close\r\nX-Cell: %s\r\n" % cell.encode()
        line = b"%s %s HTTP/1.1\r\n" % (verb.method, shape.target)
        connection = socket.create_connection((HOST, self._port), SECONDS)
        connection.sendall(line + head + shape.headers + verb.headers + b"\r\n")
        return connection


def _received(connection: socket.socket) -> bytes:
    parts = []
    with connection, suppress(ConnectionError):  # a server may reset the connection instead of an answer
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)
