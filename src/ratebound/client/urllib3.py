"""Polite calls with urllib3: `pools = PolitePoolManager()` instead of `urllib3.PoolManager()`.

This is the only file that imports urllib3.

Each exchange with a server is one call: a redirect that urllib3 follows is the next one. urllib3's own retries are off
underneath, so that nothing is retried twice; `retries` of a request still bounds its redirects.
"""

import io
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from ssl import SSLCertVerificationError
from typing import Any, cast

from ratebound.client.body import LONGEST_READ, rewinding
from ratebound.client.call import CallOptions, Head, Outgoing, PoliteOptions, call
from ratebound.client.circuit import CircuitOpen
from ratebound.client.retry import Failure
from ratebound.from_extra import from_extra
from ratebound.http.client_ip import Lines

with from_extra("urllib3", urllib3="urllib3"):
    from urllib3 import BaseHTTPResponse, HTTPResponse, PoolManager, ProxyManager
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
    from urllib3.exceptions import (
        ConnectTimeoutError,
        HTTPError,
        IncompleteRead,
        InvalidHeader,
        MaxRetryError,
        NewConnectionError,
        ProtocolError,
        ProxyError,
        SSLError,
        TimeoutError,
    )
    from urllib3.util import Retry as Urllib3Retry
    from urllib3.util.ssl_match_hostname import CertificateError


class Urllib3CircuitOpen(CircuitOpen, HTTPError):
    """CircuitOpen as an error of urllib3, so that `except HTTPError` catches it."""


class PolitePoolManager(PoolManager):
    """A PoolManager that retries, learns limits and paces itself.

    Args:
        num_pools: The number of pools that are kept, as in urllib3.
        headers: The headers of all requests, as in urllib3.
        **options: Those of a PoolManager, and `retry`, `pacer`, `budget`, `breaker`, `listeners`, `idempotency_key` and
            `read_bodies_of`; see `CallOptions`.

    Raises:
        TypeError: An option is something else than expected.

    Examples:
        >>> from ratebound.client import Pacer, Retry
        >>> from ratebound.client.urllib3 import PolitePoolManager
        >>> http = PolitePoolManager(retry=Retry(attempts=3), pacer=Pacer("50/second"))
    """

    def __init__(self, num_pools: int = 10, headers: Mapping[str, str] | None = None, **options: Any) -> None:
        own, rest = _divided(options)
        self.calls = CallOptions(own)
        super().__init__(num_pools, headers, **rest)
        self.pool_classes_by_scheme = POOLS

    def connection_from_host(self, *args: Any, **kwargs: Any) -> HTTPConnectionPool:
        """Return the pool of a host, which makes its calls politely.

        Args:
            *args: Passed on to urllib3.
            **kwargs: Passed on to urllib3.
        """
        return _polite(super().connection_from_host(*args, **kwargs), self.calls)

    def clear(self) -> None:
        """Close all connections, and the pacer that this object made."""
        super().clear()
        self.calls.close()


class PoliteProxyManager(ProxyManager):
    """A ProxyManager that retries, learns limits and paces itself; see `PolitePoolManager`.

    Args:
        proxy_url: The URL of the proxy.
        **options: Those of a ProxyManager, and `retry`, `pacer`, `budget`, `breaker`, `listeners`, `idempotency_key`
            and `read_bodies_of`; see `CallOptions`.

    Raises:
        TypeError: An option is something else than expected.

    Examples:
        >>> from ratebound.client.urllib3 import PoliteProxyManager
        >>> http = PoliteProxyManager("http://proxy.example.com:3128")
    """

    def __init__(self, proxy_url: str, **options: Any) -> None:
        own, rest = _divided(options)
        self.calls = CallOptions(own)
        super().__init__(proxy_url, **rest)
        self.pool_classes_by_scheme = POOLS

    def connection_from_host(self, *args: Any, **kwargs: Any) -> HTTPConnectionPool:
        """Return the pool of a host, which makes its calls politely.

        Args:
            *args: Passed on to urllib3.
            **kwargs: Passed on to urllib3.
        """
        return _polite(super().connection_from_host(*args, **kwargs), self.calls)

    def clear(self) -> None:
        """Close all connections, and the pacer that this object made."""
        super().clear()
        self.calls.close()


class PoliteHTTPConnectionPool(HTTPConnectionPool):
    """The connections to one host, for http. Made by a PolitePoolManager, which sets `calls`."""

    calls: CallOptions

    def urlopen(self, method: str, url: str, *args: Any, **kwargs: Any) -> BaseHTTPResponse:
        """Make one call."""
        return _call(self, super().urlopen, method, url, args, kwargs)


class PoliteHTTPSConnectionPool(HTTPSConnectionPool):
    """The connections to one host, for https; see `PoliteHTTPConnectionPool`."""

    calls: CallOptions

    def urlopen(self, method: str, url: str, *args: Any, **kwargs: Any) -> BaseHTTPResponse:
        """Make one call."""
        return _call(self, super().urlopen, method, url, args, kwargs)


AnyPolitePool = PoliteHTTPConnectionPool | PoliteHTTPSConnectionPool
POOLS: dict[str, type[HTTPConnectionPool]] = {"http": PoliteHTTPConnectionPool, "https": PoliteHTTPSConnectionPool}
ARGUMENTS = ("body", "headers", "retries", "redirect")  # those of urlopen that can be given by position


def _divided(options: dict[str, Any]) -> tuple[PoliteOptions, dict[str, Any]]:
    """Return our own options, and those of urllib3."""
    own = {name: value for name, value in options.items() if name in PoliteOptions.__annotations__}
    return cast(PoliteOptions, own), {name: value for name, value in options.items() if name not in own}


def _polite(pool: HTTPConnectionPool, calls: CallOptions) -> HTTPConnectionPool:
    assert isinstance(pool, AnyPolitePool)
    pool.calls = calls
    return pool


def _call(
    pool: AnyPolitePool,
    urlopen: Callable[..., BaseHTTPResponse],
    method: str,
    url: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> BaseHTTPResponse:
    given = {**dict(zip(ARGUMENTS, args, strict=False)), **kwargs}
    headers = given.get("headers")
    given["headers"] = headers = pool.headers if headers is None else headers
    given["retries"] = _no_retries(given.get("retries", pool.retries), redirect=bool(given.get("redirect", True)))
    is_absolute = not url.startswith("/")  # it is where a proxy forwards requests
    full = url if is_absolute else f"{pool.scheme}://{_bracketed(pool.host)}:{pool.port}{url}"
    is_whole = bool(given.get("preload_content", True))
    given["preload_content"] = False
    exchange = Urllib3Exchange(pool, urlopen, method, url, given, pool.calls.refusals if is_whole else None)
    try:
        response, _report = call(Outgoing(method, full, tuple(headers.items())), exchange, pool.calls)
    except CircuitOpen as error:
        raise Urllib3CircuitOpen(error.origin, error.retry_after) from error.__cause__
    response = exchange.whole or response
    if is_whole:
        exchange.load(response)
    return response


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _no_retries(retries: Any, *, redirect: bool) -> Urllib3Retry:
    """Return a Retry that follows as many redirects as the given one, and retries nothing."""
    given = Urllib3Retry.from_int(retries, redirect=redirect)
    if given.total is False:  # errors are raised as they are, and no redirect is followed
        return given
    redirects = [count for count in (given.total, given.redirect) if count is not None and count is not True]
    return given.new(
        total=None,
        connect=0,
        read=0,
        status=0,
        other=0,
        redirect=min(redirects) if redirects else None,
        status_forcelist=(),
    )


class Urllib3Exchange:
    """One request of a pool, and its responses. `unread` are the statuses whose body is left unread; None: all."""

    def __init__(
        self,
        pool: HTTPConnectionPool,
        urlopen: Callable[..., BaseHTTPResponse],
        method: str,
        url: str,
        given: dict[str, Any],
        unread: Collection[int] | None,
    ) -> None:
        self._pool = pool
        self._urlopen = urlopen
        self._method = method
        self._url = url
        self._given = given
        self._rewind = rewinding(given.get("body"))
        self._is_untouched = True  # no attempt has begun to send the body
        self._unread = unread
        self.whole: BaseHTTPResponse | None = None  # the last response, if the beginning of its body was read

    def send(self, attempt: int, add: Lines) -> BaseHTTPResponse:
        """Send the request."""
        self.whole = None
        if attempt > 1 and self._rewind is not None:
            self._rewind()
        given = {**self._given, "headers": {**self._given["headers"], **dict(add)}} if add else self._given
        response = self._urlopen(self._method, self._url, **given)
        if not self._is_unread(response):
            self.load(response)
        return response

    def load(self, response: BaseHTTPResponse) -> None:
        """Read the whole body, which the response keeps. Raises what urllib3 raises if the connection breaks."""
        try:
            _ = response.data
        except (TimeoutError, ProtocolError, SSLError) as error:
            self._given["retries"].increment(self._method, self._url, error=error, _pool=self._pool)
            raise

    def head(self, response: BaseHTTPResponse) -> Head:
        """Return the status and the headers."""
        self._is_untouched = False
        return Head(response.status, tuple(response.headers.items()))

    def failure(self, error: Exception) -> Failure | None:
        """Return the kind of a connection error."""
        failure = failure_of(error)
        self._is_untouched = self._is_untouched and failure is not None and not failure.sent
        return failure

    def replayable(self) -> bool:
        """Return True if the body can be sent again."""
        return self._rewind is not None or self._is_untouched

    def read(self, response: BaseHTTPResponse, most: int) -> bytes | None:
        """Return the beginning of the body."""
        if not self._is_unread(response):
            return response.data[:most]
        beginning, self.whole = peek(response, most)
        return beginning

    def discard(self, response: BaseHTTPResponse, most: int) -> None:
        """Give the connection back."""
        if self._is_unread(response):
            discard(response, most)

    def _is_unread(self, response: BaseHTTPResponse) -> bool:
        return self._unread is None or response.status in self._unread


def failure_of(error: BaseException) -> Failure | None:
    """Return what kind of connection error this is, None for any other error. Wrong certificates are none."""
    if isinstance(error, MaxRetryError) and error.reason is not None:
        error = error.reason
    if isinstance(error, ProxyError):
        inner = failure_of(error.original_error)
        return Failure("connect", sent=False) if inner is not None and not inner.sent else inner
    if isinstance(error, SSLError):  # of a handshake, or later: urllib3 does not tell
        is_about_certificate = any(
            isinstance(cause, CertificateError | SSLCertVerificationError) for cause in error.args
        )
        return None if is_about_certificate else Failure("closed")
    if isinstance(error, NewConnectionError):
        return Failure("connect", sent=False)
    if isinstance(error, ConnectTimeoutError):
        return Failure("timeout", sent=False)
    if isinstance(error, TimeoutError):
        return Failure("timeout")
    if isinstance(error, ProtocolError | IncompleteRead | InvalidHeader):
        return Failure("closed")
    return None


def peek(response: BaseHTTPResponse, most: int) -> tuple[bytes | None, BaseHTTPResponse]:
    """Return up to `most` bytes at the beginning of an unread body, and a response whose body is still whole.

    The bytes are decoded as Content-Encoding says, None if they cannot be. A connection that breaks gives what has come
    until then.
    """
    raw, ends = b"", time.monotonic() + LONGEST_READ
    try:
        while len(raw) < most and time.monotonic() < ends and (part := _read_some(response, most - len(raw))):
            raw += part
    except (HTTPError, OSError) as error:
        whole = _again(response, RejoinedBody(raw, response, error))
    else:
        whole = _again(response, RejoinedBody(raw, response, None))
    try:
        decoded: bytes | None = _again(response, io.BytesIO(raw)).read(most, decode_content=True)
    except (HTTPError, OSError):  # an unknown or broken encoding; of a part of a body it may seem broken
        decoded = None
    return decoded, whole


def discard(response: BaseHTTPResponse, most: int) -> None:
    """Read the rest of a body if it has at most `most` bytes, so that the connection can be used again; or close it."""
    try:
        length = response.length_remaining
        if most and (length is None or length <= most) and _is_drained(response, most):
            response.release_conn()
            return
    except (HTTPError, OSError):
        pass
    response.close()
    response.release_conn()  # a pool that blocks needs the place of the closed connection


def _is_drained(response: BaseHTTPResponse, most: int) -> bool:
    """Read a body, and return True if it has ended within `most` bytes and LONGEST_READ seconds.

    The timeout of a socket restarts with every byte, and requests sets none by default.
    """
    connected = getattr(response.connection, "sock", None)
    if connected is None:  # nothing to be used again, or it was given back already
        return False
    before, ends = connected.gettimeout(), time.monotonic() + LONGEST_READ
    try:
        while most > 0 and (left := ends - time.monotonic()) > 0:
            connected.settimeout(left)
            part = _read_some(response, most)
            if not part:
                return True
            most -= len(part)
        return False
    finally:
        with suppress(OSError):
            connected.settimeout(before)


def _read_some(response: BaseHTTPResponse, most: int) -> bytes:
    """Return the bytes that have come, at most `most`; wait for the first one. Return b"" at the end of the body."""
    read = getattr(response, "read1", response.read)  # urllib3 before 2.2 has no read1
    found: bytes = read(most, decode_content=False)
    return found


class RejoinedBody:
    """A file of which the beginning was read: that first, then the rest of a response. At its end it is closed."""

    def __init__(self, beginning: bytes, rest: BaseHTTPResponse, error: Exception | None) -> None:
        self._beginning = io.BytesIO(beginning)
        self._rest = rest
        self._error = error
        self.closed = False  # urllib3 reads on until this is True

    def read(self, amount: int | None = None) -> bytes:
        """Return the next bytes, all if `amount` is None. Raises the error that broke the connection."""
        found = self._beginning.read(amount)
        if amount is not None and (found or amount == 0):
            return found
        if self._error is not None:
            raise self._error
        rest = self._rest.read(amount, decode_content=False)
        if amount is None or not rest:
            self.closed = True
        return found + rest

    def read1(self, amount: int | None = None) -> bytes:
        """Return bytes that have come, at most `amount`; see `read`."""
        most = 65_536 if amount is None or amount < 0 else amount
        found = self._beginning.read(most)
        if found or not most:
            return found
        if self._error is not None:
            raise self._error
        rest = _read_some(self._rest, most)
        if not rest:
            self.closed = True
        return rest

    def close(self) -> None:
        """Close the connection, unless it was given back."""
        self.closed = True
        self._rest.close()
        self._rest.release_conn()


def _again(response: BaseHTTPResponse, body: Any) -> HTTPResponse:
    """Return a response with the head of another one, and a body to be read."""
    return HTTPResponse(
        body=body,
        headers=response.headers,
        status=response.status,
        version=response.version,
        reason=response.reason,
        preload_content=False,
        decode_content=response.decode_content,
        original_response=getattr(response, "_original_response", None),  # requests finds cookies there
        retries=response.retries,
        request_url=response.geturl(),
    )
