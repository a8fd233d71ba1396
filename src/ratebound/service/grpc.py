"""Unary gRPC calls over HTTP/2: messages, metadata, deadlines and statuses. The methods are elsewhere.

Errors are answered with trailers only. A peer never sees the text of an exception, unless it is a GrpcError.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any

from ratebound.service.bearer_tokens import BearerTokens
from ratebound.service.http2 import Http2Answer, Http2Request, Http2Response
from ratebound.service.http2_headers import Field, HeaderBlock, RequestHead

log = logging.getLogger("ratebound.service")

# Statuses
OK = 0
CANCELLED = 1
UNKNOWN = 2
INVALID_ARGUMENT = 3
DEADLINE_EXCEEDED = 4
NOT_FOUND = 5
ALREADY_EXISTS = 6
PERMISSION_DENIED = 7
RESOURCE_EXHAUSTED = 8
FAILED_PRECONDITION = 9
ABORTED = 10
OUT_OF_RANGE = 11
UNIMPLEMENTED = 12
INTERNAL = 13
UNAVAILABLE = 14
DATA_LOSS = 15
UNAUTHENTICATED = 16

HEALTH = b"/grpc.health.v1.Health/"  # its methods need no token, because probes cannot send one
REMEMBERED = 512  # combinations of the headers that matter
MAX_REMEMBERED = 8192  # bytes of headers; longer ones are looked at each time
MAX_TEXT = 1024  # bytes of a grpc-message before it is encoded
LONGEST = 86_400.0  # seconds: a longer deadline needs no timer
UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
CONTENT_TYPE = re.compile(rb"application/grpc(\+proto)?[ \t]*(;.*)?", re.IGNORECASE)
PLAIN_TEXT = frozenset(range(0x20, 0x7F)) - {ord("%")}

GRPC_HEAD = HeaderBlock([(b":status", b"200"), (b"content-type", b"application/grpc")])
OK_TRAILERS = HeaderBlock([(b"grpc-status", b"0")])


class GrpcError(Exception):
    """An error that a caller is told: its status, from 1 to 16, and a message."""

    def __init__(self, status: int, message: str) -> None:
        if not CANCELLED <= status <= UNAUTHENTICATED:
            raise ValueError(f"the status of a gRPC error must be 1 to 16, not {status}")
        super().__init__(message)
        self.status = status
        self.message = message


class GrpcCall:
    """One call. `timeout` is how many seconds the caller waits, None if it did not say so.

    Names of metadata are in lower case. Values are as received: base64 if the name ends in `-bin`. The list
    is shared by calls with the same metadata: do not change it.
    """

    __slots__ = ("message", "metadata", "peer", "timeout")

    def __init__(self, message: bytes, metadata: list[Field], timeout: float | None, peer: str | None) -> None:
        self.message = message
        self.metadata = metadata
        self.timeout = timeout
        self.peer = peer


GrpcAnswer = bytes | Coroutine[Any, Any, bytes]
Method = Callable[[GrpcCall], GrpcAnswer]


def status_only(status: int, message: str, more: Collection[Field] = ()) -> Http2Response:
    """Return an answer without a message: trailers only."""
    return (
        HeaderBlock(
            [
                (b":status", b"200"),
                (b"content-type", b"application/grpc"),
                (b"grpc-status", str(status).encode()),
                (b"grpc-message", encode_text(message)),
                *more,
            ]
        ),
        b"",
        None,
    )


def encode_text(message: str) -> bytes:
    """Return a message as grpc-message wants it: percent-encoded UTF-8. A long one is cut."""
    raw = message.encode("utf-8", "replace")
    if len(raw) > MAX_TEXT:
        raw = raw[:MAX_TEXT].decode("utf-8", "ignore").encode()
    found = "".join(chr(byte) if byte in PLAIN_TEXT else f"%{byte:02X}" for byte in raw)
    # Blanks at the ends would be no valid header.
    inner = found.strip(" ")
    begin = len(found) - len(found.lstrip(" ")) if inner else 0
    return ("%20" * begin + inner + "%20" * (len(found) - begin - len(inner))).encode()


BAD_TIMEOUT = status_only(INTERNAL, "grpc-timeout must be up to 8 digits and one of H, M, S, m, u, n.")
TOO_LATE = status_only(DEADLINE_EXCEEDED, "The deadline has passed.")

Refusal = tuple[bytes, Http2Response]
"""The status of a call that is refused, and its answer."""
Route = tuple[Method | None, Refusal | None]
"""The method that a head asks for, or its refusal."""


class GrpcServer:
    """Answers calls of `methods`, which are found by their path: `/package.Service/Method`.

    A method returns the reply message, or a coroutine that does. It may raise GrpcError. A coroutine is cancelled when
    the caller's deadline has passed or the caller has gone. Callers need one of `tokens`, if there are any.
    `refusals` gets a count, by status, of the calls that reach no method.
    """

    def __init__(
        self,
        methods: Mapping[bytes, Method],
        tokens: BearerTokens,
        refusals: dict[bytes, int] | None = None,
    ) -> None:
        self._methods = methods
        self._tokens = tokens
        self._refusals = {} if refusals is None else refusals
        self._routes: dict[tuple[bytes | None, ...], Route] = {}

    def handle(self, request: Http2Request) -> Http2Answer:
        """Answer a request: at once, or with a coroutine."""
        head = request.head
        meaning: tuple[GrpcServer, Method | None, float | None, Refusal | None] = head.meaning
        if meaning is None or meaning[0] is not self:
            meaning = head.meaning = self._meaning(head)
        _, method, timeout, refusal = meaning
        if method is None:
            assert refusal is not None
            self._refusals[refusal[0]] = self._refusals.get(refusal[0], 0) + 1
            return refusal[1]
        body = request.body
        # One byte says whether the message is compressed, four how long it is.
        if len(body) < 5 or body[0] or int.from_bytes(body[1:5], "big") != len(body) - 5:
            return _not_one_message(body)
        try:
            answer = method(GrpcCall(body[5:], head.headers, timeout, request.peer))
        except Exception as error:
            return _failure(error)
        if isinstance(answer, bytes):
            return GRPC_HEAD, b"\0" + len(answer).to_bytes(4, "big") + answer, OK_TRAILERS
        return _awaited(answer, timeout)

    def has_token(self, head: RequestHead) -> bool:
        """Return True if a head has a valid token, or if none is needed for calls."""
        return self._tokens.accepts_header(dict(reversed(head.headers)).get(b"authorization"))

    def _meaning(self, head: RequestHead) -> "tuple[GrpcServer, Method | None, float | None, Refusal | None]":
        """Return this server, and what a head asks of it. Few headers matter: the others may differ with every call."""
        found = dict(reversed(head.headers))  # the first line of each name
        get = found.get
        matters = (head.method, head.path, get(b"content-type"), get(b"te"), get(b"authorization"))
        route = self._routes.get(matters)
        if route is None:
            route = self._route(*matters)
            if head.size <= MAX_REMEMBERED:
                if len(self._routes) >= REMEMBERED:
                    self._routes.clear()
                self._routes[matters] = route
        method, refusal = route
        text = get(b"grpc-timeout")
        if text is None or method is None:
            return self, method, None, refusal
        timeout = timeout_of(text)
        if timeout is None:
            return self, None, None, (b"%d" % INTERNAL, BAD_TIMEOUT)
        if timeout <= 0:
            return self, None, None, (b"%d" % DEADLINE_EXCEEDED, TOO_LATE)
        return self, method, timeout, None

    def _route(
        self, verb: bytes, path: bytes, content_type: bytes | None, te: bytes | None, token: bytes | None
    ) -> Route:
        if verb != b"POST":
            return None, (b"405", (HeaderBlock([(b":status", b"405"), (b"allow", b"POST")]), b"", None))
        if content_type is None or not CONTENT_TYPE.fullmatch(content_type):
            return None, (b"415", (HeaderBlock([(b":status", b"415")]), b"", None))
        if te is None:
            text = "The header `te: trailers` is missing: a proxy on the way may not know gRPC."
            return None, _refusal(INTERNAL, text)
        if not path.startswith(HEALTH) and not self._tokens.accepts_header(token):
            text = "This call needs a valid token: metadata authorization: Bearer TOKEN."
            self._tokens.log_refusal("grpc", "the metadata authorization: Bearer TOKEN")
            return None, _refusal(UNAUTHENTICATED, text)
        method = self._methods.get(path)
        if method is None:
            return None, _refusal(UNIMPLEMENTED, "There is no such method.")
        return method, None


def _refusal(status: int, text: str) -> Refusal:
    return b"%d" % status, status_only(status, text)


def timeout_of(text: bytes) -> float | None:
    """Return the seconds of a grpc-timeout; None if it is none."""
    digits = text[:-1]
    unit = UNITS.get(text[-1:])
    if unit is None or not digits.isdigit() or len(digits) > 8:
        return None
    return int(digits) * unit


async def _awaited(answer: Coroutine[Any, Any, bytes], timeout: float | None) -> Http2Response:
    """Wait for a reply until the deadline."""
    try:
        async with asyncio.timeout(timeout if timeout is None or timeout < LONGEST else None) as deadline:
            message = await answer
    except TimeoutError as error:
        if deadline.expired():
            return TOO_LATE
        return _failure(error)
    except Exception as error:
        return _failure(error)
    return GRPC_HEAD, b"\0" + len(message).to_bytes(4, "big") + message, OK_TRAILERS


def _not_one_message(body: bytes) -> Http2Response:
    """Answer a body that is not exactly one message without compression."""
    if len(body) >= 5 and body[0] == 1:
        text = "Compressed messages are not supported."
        return status_only(UNIMPLEMENTED, text, [(b"grpc-accept-encoding", b"identity")])
    if body and body[0] > 1:
        return status_only(INTERNAL, "The first byte of a message must be 0 or 1.")
    if not body or len(body) >= 5 + int.from_bytes(body[1:5], "big"):
        return status_only(UNIMPLEMENTED, "A call must have exactly one message.")
    return status_only(INTERNAL, "The message is shorter than its length says.")


def _failure(error: Exception) -> Http2Response:
    if isinstance(error, GrpcError):
        return status_only(error.status, error.message)
    log.error("a gRPC call failed; its status is INTERNAL", exc_info=error)
    return status_only(INTERNAL, "The call failed.")


# grpc.health.v1

SERVING = b"\x08\x01"
NOT_SERVING = b"\x08\x02"


def health_methods(is_serving: Callable[[], bool], services: Collection[str] = ()) -> dict[bytes, Method]:
    """Return the methods of grpc.health.v1.Health: Check. The server itself ("") and each of `services` are known."""
    known = {b"", *(service.encode() for service in services)}

    def check(call: GrpcCall) -> bytes:
        if health_service(call.message) not in known:
            raise GrpcError(NOT_FOUND, "There is no such service.")
        return SERVING if is_serving() else NOT_SERVING

    return {HEALTH + b"Check": check}


def health_service(message: bytes) -> bytes:
    """Return the service that a HealthCheckRequest names: its field 1, a string. Raises GrpcError."""
    service = b""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        field, wire = tag >> 3, tag & 7
        begin = at
        if wire == 0:
            _, at = _varint(message, at)
        elif wire == 1:
            at += 8
        elif wire == 2:
            size, begin = _varint(message, at)
            at = begin + size
        elif wire == 5:
            at += 4
        else:
            raise GrpcError(INTERNAL, UNREADABLE)
        if at > len(message) or field == 0:
            raise GrpcError(INTERNAL, UNREADABLE)
        if field == 1 and wire == 2:
            service = message[begin:at]
    return service


UNREADABLE = "The message is not a HealthCheckRequest."


def _varint(message: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise GrpcError(INTERNAL, UNREADABLE)
