"""One HTTP request with the standard library, within a deadline. Errors never hold the query or the user of a URL."""

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import SplitResult

from ratebound.errors import RateboundError

MOST_BYTES = 4_000_000  # of an answer


class NoAnswer(RateboundError):
    """No answer to a request has come: the certificate is not valid, time is up, or it is no HTTP."""


class Unreachable(NoAnswer):
    """No connection could be made, or it broke. The message is the operating system's reason alone."""


class Exchanged(NamedTuple):
    """An answer. `body` is None if it was not wanted, or has not come in time."""

    status: int
    phrase: str
    headers: list[tuple[str, str]]
    body: bytes | None
    seconds: float  # until the head was there


def exchange(
    address: SplitResult,
    *,
    method: str = "GET",
    target: str,
    headers: Mapping[str, str],
    data: bytes | None = None,
    timeout: float,
    context: ssl.SSLContext | None,
    shown: str,
    wants_body: Callable[[int, Mapping[str, str]], bool] = lambda status, headers: True,
) -> Exchanged:
    """Send a request and return the answer. No redirect is followed.

    `shown` is the URL for messages. `wants_body` gets the status and the headers by lower-case name. Raises NoAnswer,
    with a message for the user, and Unreachable, with a reason.
    """
    host, port = address.hostname or "", address.port
    client: http.client.HTTPConnection
    if context is not None:
        client = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
    else:
        client = http.client.HTTPConnection(host, port, timeout=timeout)
    begin = time.monotonic()
    watch: _Watch | None = None
    try:
        try:
            client.connect()
            watch = _Watch(client.sock, begin + timeout)
            client.request(method, target, body=data, headers=dict(headers))
            response = client.getresponse()
            with response:
                if watch.is_over:  # a head that was cut off looks like one that ended
                    raise TimeoutError
                seconds = time.monotonic() - begin
                pairs = response.getheaders()
                body = None
                if wants_body(response.status, {name.lower(): value for name, value in pairs}):
                    with suppress(OSError, http.client.HTTPException):  # the head was read: an answer without a body
                        body = response.read(MOST_BYTES)
                return Exchanged(response.status, response.reason, pairs, body, seconds)
        finally:
            if watch is not None:
                watch.end()
            client.close()
    except ssl.SSLCertVerificationError as error:
        raise NoAnswer(
            f"the certificate of {shown} is not valid here: {error.verify_message}. Name the authority that"
            " signed it with --ca FILE"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, TimeoutError) or (watch is not None and watch.is_over):
            raise NoAnswer(f"{shown} did not answer within {timeout:g} s") from None
        if isinstance(error, ssl.SSLError):
            raise NoAnswer(f"{shown} does not speak TLS as expected: {error.reason or type(error).__name__}") from None
        if isinstance(error, http.client.HTTPException) and not isinstance(error, OSError):
            raise NoAnswer(f"{shown} does not speak HTTP: {type(error).__name__}") from None
        raise Unreachable(str(getattr(error, "strerror", None) or error or type(error).__name__)) from None


class _Watch:
    """Ends a connection at a deadline: the timeout of a socket restarts with every byte."""

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self.is_over = False
        self._socket = connected
        self._timer = threading.Timer(max(deadline - time.monotonic(), 0.0), self._stop)
        self._timer.daemon = True
        self._timer.start()

    def _stop(self) -> None:
        self.is_over = True
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # not TLS's own, which would write first

    def end(self) -> None:
        """Stop to watch."""
        self._timer.cancel()
