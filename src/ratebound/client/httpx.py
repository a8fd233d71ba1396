"""Transports for httpx: `httpx.Client(transport=PoliteTransport())` retries, learns limits and paces itself.

A transport stands below redirects, authentication and cookies, so all of these work as ever: each request that they
make is a call of its own. A transport that is given to a client replaces the client's own one. Options like `http2=`,
`verify=`, `limits=` and `proxy=` then belong to the inner one: `PoliteTransport(httpx.HTTPTransport(http2=True))`.

`response.extensions["ratebound"]` is a `CallReport`. A request may carry options of its own:
`client.post(url, extensions={"ratebound": {"tokens": 1200, "retry": Retry(attempts=2)}})`.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from inspect import isawaitable
from types import TracebackType
from typing import Any, Final, Self, Unpack

from ratebound.client.body import LONGEST_READ, decoded_start, rewinding
from ratebound.client.call import CallOptions, Head, Outgoing, PoliteOptions, call, call_async
from ratebound.client.circuit import CircuitOpen
from ratebound.client.retry import Failure, Retry
from ratebound.from_extra import from_extra
from ratebound.http.client_ip import Lines

with from_extra("httpx", httpx="httpx"):
    import httpx

EXTENSION: Final = "ratebound"


class HttpxCircuitOpen(CircuitOpen, httpx.TransportError):
    """CircuitOpen as an error of httpx, so that `except httpx.HTTPError` catches it.

    Args:
        origin: The scheme, host and port of the API.
        retry_after: The seconds after which to try again.
    """

    def __init__(self, origin: str, retry_after: float) -> None:
        CircuitOpen.__init__(self, origin, retry_after)
        self._request = None  # httpx sets it


class PoliteTransport(httpx.BaseTransport):
    """A transport around another one, for `httpx.Client`. It retries, learns limits and paces itself.

    It derives from a class of httpx because a client accepts nothing else by type.

    Args:
        inner: The transport that sends. None means `httpx.HTTPTransport()`.
        **options: `retry`, `pacer`, `budget`, `breaker`, `listeners`, `idempotency_key` and `read_bodies_of`; see
            `CallOptions`.

    Raises:
        TypeError: An option is unknown, or something else than expected.

    Examples:
        >>> import httpx
        >>> from ratebound.client.httpx import PoliteTransport
        >>> answers = iter([httpx.Response(429, headers={"Retry-After": "0"}), httpx.Response(200)])
        >>> server = httpx.MockTransport(lambda request: next(answers))
        >>> with httpx.Client(transport=PoliteTransport(server)) as client:
        ...     response = client.get("https://api.example.com/orders")
        >>> response.status_code, response.extensions["ratebound"].attempts
        (200, 2)
    """

    def __init__(self, inner: httpx.BaseTransport | None = None, **options: Unpack[PoliteOptions]) -> None:
        self._options = CallOptions(options)
        self._inner = httpx.HTTPTransport() if inner is None else inner

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Make one call. Called by the client.

        Args:
            request: The request.

        Raises:
            HttpxCircuitOpen: The last calls to this API failed, so it was not sent.
            TurnNotInTime: The turn of the request does not come in time.
        """
        exchange = _Exchange(self._inner, request)
        try:
            response, report = call(_outgoing(request), exchange, self._options)
        except CircuitOpen as error:
            raise HttpxCircuitOpen(error.origin, error.retry_after) from error.__cause__
        response.extensions[EXTENSION] = report
        return response

    def close(self) -> None:
        """Close the inner transport, and the pacer unless it was given."""
        try:
            self._inner.close()
        finally:
            self._options.close()

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        try:
            self._inner.__exit__(exc_type, exc_value, traceback)
        finally:
            self._options.close()


class AsyncPoliteTransport(httpx.AsyncBaseTransport):
    """A transport around another one, for `httpx.AsyncClient` on asyncio; see `PoliteTransport`.

    Args:
        inner: The transport that sends. None means `httpx.AsyncHTTPTransport()`.
        **options: `retry`, `pacer`, `budget`, `breaker`, `listeners`, `idempotency_key` and `read_bodies_of`; see
            `CallOptions`.

    Raises:
        TypeError: An option is unknown, or something else than expected.

    Examples:
        >>> import asyncio, httpx
        >>> from ratebound.client.httpx import AsyncPoliteTransport
        >>> server = httpx.MockTransport(lambda request: httpx.Response(200))
        >>> async def main():
        ...     async with httpx.AsyncClient(transport=AsyncPoliteTransport(server)) as client:
        ...         return await client.get("https://api.example.com/orders")
        >>> asyncio.run(main()).status_code
        200
    """

    def __init__(self, inner: httpx.AsyncBaseTransport | None = None, **options: Unpack[PoliteOptions]) -> None:
        self._options = CallOptions(options, asynchronous=True)
        self._inner = httpx.AsyncHTTPTransport() if inner is None else inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Make one call. Called by the client.

        Args:
            request: The request.

        Raises:
            HttpxCircuitOpen: The last calls to this API failed, so it was not sent.
            TurnNotInTime: The turn of the request does not come in time.
        """
        exchange = _AsyncExchange(self._inner, request)
        try:
            response, report = await call_async(_outgoing(request), exchange, self._options)
        except CircuitOpen as error:
            raise HttpxCircuitOpen(error.origin, error.retry_after) from error.__cause__
        response.extensions[EXTENSION] = report
        return response

    async def aclose(self) -> None:
        """Close the inner transport, and the pacer unless it was given."""
        try:
            await self._inner.aclose()
        finally:
            await self._close_options()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        try:
            await self._inner.__aexit__(exc_type, exc_value, traceback)
        finally:
            await self._close_options()

    async def _close_options(self) -> None:
        closing = self._options.close()
        if isawaitable(closing):
            await closing


class _Exchange:
    """An exchange for threads; see `ClientExchange`."""

    def __init__(self, inner: httpx.BaseTransport, request: httpx.Request) -> None:
        self._inner = inner
        self._request = request
        self._body: _SentBody | None = None
        if isinstance(request.stream, httpx.SyncByteStream) and not isinstance(request.stream, httpx.ByteStream):
            self._body = _SentBody(request.stream)

    def send(self, attempt: int, add: Lines) -> httpx.Response:
        return self._inner.handle_request(_copy_to_send(self._request, self._body, add))

    def head(self, response: httpx.Response) -> Head:
        return Head(response.status_code, response.headers.multi_items())

    def failure(self, error: Exception) -> Failure | None:
        return _failure(error)

    def replayable(self) -> bool:
        return self._body is None or self._body.replayable

    def read(self, response: httpx.Response, most: int) -> bytes | None:
        peeked = _PeekedBody(response.stream)  # type: ignore[arg-type]
        response.stream = peeked
        return decoded_start(peeked.peek(most), response.headers.get("content-encoding", ""), most)

    def discard(self, response: httpx.Response, most: int) -> None:
        with suppress(httpx.HTTPError, httpx.StreamError):
            if _may_drain(response, most):
                size, ends = 0, time.monotonic() + LONGEST_READ
                for chunk in response.stream:  # type: ignore[union-attr]
                    size += len(chunk)
                    if size > most or time.monotonic() > ends:
                        break
        with suppress(httpx.HTTPError, httpx.StreamError):
            response.close()


class _AsyncExchange:
    """An exchange for tasks; see `ClientExchange`."""

    def __init__(self, inner: httpx.AsyncBaseTransport, request: httpx.Request) -> None:
        self._inner = inner
        self._request = request
        self._body: _SentBody | None = None
        if isinstance(request.stream, httpx.AsyncByteStream) and not isinstance(request.stream, httpx.ByteStream):
            self._body = _SentBody(request.stream)

    async def send(self, attempt: int, add: Lines) -> httpx.Response:
        return await self._inner.handle_async_request(_copy_to_send(self._request, self._body, add))

    def head(self, response: httpx.Response) -> Head:
        return Head(response.status_code, response.headers.multi_items())

    def failure(self, error: Exception) -> Failure | None:
        return _failure(error)

    def replayable(self) -> bool:
        return self._body is None or self._body.replayable

    async def read(self, response: httpx.Response, most: int) -> bytes | None:
        peeked = _AsyncPeekedBody(response.stream)  # type: ignore[arg-type]
        response.stream = peeked
        return decoded_start(await peeked.peek(most), response.headers.get("content-encoding", ""), most)

    async def discard(self, response: httpx.Response, most: int) -> None:
        with suppress(httpx.HTTPError, httpx.StreamError, TimeoutError):
            if _may_drain(response, most):
                size = 0
                async with asyncio.timeout(LONGEST_READ):
                    async for chunk in response.stream:  # type: ignore[union-attr]
                        size += len(chunk)
                        if size > most:
                            break
        with suppress(httpx.HTTPError, httpx.StreamError):
            await response.aclose()


class _SentBody(httpx.SyncByteStream, httpx.AsyncByteStream):
    """The body of a request that is no plain bytes. It knows whether it was begun, and starts again if it can."""

    def __init__(self, stream: httpx.SyncByteStream | httpx.AsyncByteStream) -> None:
        self._stream: Any = stream
        self._rewind = _rewinding_stream(stream)
        self._begun = False

    @property
    def replayable(self) -> bool:
        return not self._begun or self._rewind is not None

    def __iter__(self) -> Iterator[bytes]:
        self._begin()
        yield from self._stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._begin()
        async for chunk in self._stream:
            yield chunk

    def _begin(self) -> None:
        if self._begun and self._rewind is not None:
            self._rewind()
        self._begun = True


class _PeekedBody(httpx.SyncByteStream):
    """The body of a response whose beginning was looked at. Reading it returns all of it."""

    def __init__(self, stream: httpx.SyncByteStream) -> None:
        self._stream = stream
        self._rest = iter(stream)
        self._chunks: list[bytes] = []
        self._error: Exception | None = None

    def peek(self, most: int) -> bytes:
        size, ends = 0, time.monotonic() + LONGEST_READ
        try:
            while size < most and time.monotonic() < ends and (chunk := next(self._rest, None)) is not None:
                self._chunks.append(chunk)
                size += len(chunk)
        except (httpx.HTTPError, httpx.StreamError) as error:
            self._error = error
        return b"".join(self._chunks)

    def __iter__(self) -> Iterator[bytes]:
        chunks, self._chunks = self._chunks, []
        yield from chunks
        if self._error is not None:
            raise self._error
        yield from self._rest

    def close(self) -> None:
        self._stream.close()


class _AsyncPeekedBody(httpx.AsyncByteStream):
    """The asynchronous twin of `_PeekedBody`."""

    def __init__(self, stream: httpx.AsyncByteStream) -> None:
        self._stream = stream
        self._rest = aiter(stream)
        self._chunks: list[bytes] = []
        self._error: Exception | None = None

    async def peek(self, most: int) -> bytes:
        size, ends = 0, time.monotonic() + LONGEST_READ
        try:
            while size < most and time.monotonic() < ends and (chunk := await anext(self._rest, None)) is not None:
                self._chunks.append(chunk)
                size += len(chunk)
        except (httpx.HTTPError, httpx.StreamError) as error:
            self._error = error
        return b"".join(self._chunks)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks, self._chunks = self._chunks, []
        for chunk in chunks:
            yield chunk
        if self._error is not None:
            raise self._error
        async for chunk in self._rest:
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def _outgoing(request: httpx.Request) -> Outgoing:
    """Return what the flow knows of a request. Raises TypeError for options of the request that it does not know."""
    headers = request.headers.multi_items()
    given = request.extensions.get(EXTENSION)
    if given is None:
        return Outgoing(request.method, str(request.url), headers)
    unknown = set(given) - {"cost", "tokens", "retry"} if isinstance(given, Mapping) else {type(given).__name__}
    if unknown:
        wrong = ", ".join(sorted(map(str, unknown)))
        raise TypeError(f"extensions['ratebound'] has {wrong}: expected some of cost, tokens, retry")
    retry = given.get("retry")
    if retry is not None and not isinstance(retry, Retry):
        raise TypeError(f"extensions['ratebound'] has retry {retry!r}: expected a Retry, Retry(attempts=1) for never")
    return Outgoing(request.method, str(request.url), headers, given.get("cost", 1), given.get("tokens", 0), retry)


def _copy_to_send(request: httpx.Request, body: _SentBody | None, add: Lines) -> httpx.Request:
    """Return the request with its body and headers in place. The application's own object is not changed."""
    if body is None and not add:
        return request
    headers = request.headers.copy()
    for name, value in add:
        headers[name] = value
    stream: Any = request.stream if body is None else body
    return httpx.Request(request.method, request.url, headers=headers, stream=stream, extensions=request.extensions)


def _failure(error: Exception) -> Failure | None:
    if isinstance(error, httpx.ConnectError):
        return None if _is_certificate_error(error) else Failure("connect", sent=False)
    if isinstance(error, httpx.ConnectTimeout):
        return Failure("timeout", sent=False)
    if isinstance(error, httpx.PoolTimeout):  # this client has no free connection; more requests would not help
        return None
    if isinstance(error, httpx.TimeoutException):
        return Failure("timeout")
    if isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError):
        return Failure("closed")
    return Failure("proxy") if isinstance(error, httpx.ProxyError) else None


def _is_certificate_error(error: BaseException | None) -> bool:
    """Return True if a certificate was not accepted: it will not be the next time either."""
    for _ in range(10):
        if error is None or isinstance(error, ssl.SSLCertVerificationError):
            break
        error = error.__cause__ or error.__context__
    return isinstance(error, ssl.SSLCertVerificationError)


def _may_drain(response: httpx.Response, most: int) -> bool:
    length = response.headers.get("content-length", "0")
    return most > 0 and length.isdecimal() and len(length) < 10 and int(length) <= most


def _rewinding_stream(stream: object) -> Callable[[], object] | None:
    """Return a function that lets a stream of httpx be read once more; None if there is none.

    httpx has no public name for the source of a stream. If a new version hides it elsewhere, streams count as ones that
    can be read once.
    """
    fields = getattr(stream, "fields", None)
    if isinstance(fields, list) and type(stream).__name__ == "MultipartStream":  # it goes back to the start by itself
        files = [field.file for field in fields if hasattr(field, "file")]
        return (lambda: None) if all(rewinding(file) is not None for file in files) else None
    source = getattr(stream, "_stream", None)
    return None if source is None else rewinding(source)
