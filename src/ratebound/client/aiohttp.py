"""Polite calls with aiohttp: `ClientSession(middlewares=(polite(),))`. The only file that imports aiohttp.

A middleware sees one exchange with a server: a redirect that the session follows is the next call. The timeout `total`
of a session bounds the whole call, waits included.
"""

import asyncio
import warnings
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, Unpack

from ratebound.client.body import LONGEST_READ, AsyncRepeatableBody, RepeatableBody
from ratebound.client.call import CallOptions, Head, Outgoing, PoliteOptions, call_async
from ratebound.client.circuit import CircuitOpen
from ratebound.client.retry import Failure
from ratebound.from_extra import from_extra
from ratebound.http.client_ip import Lines

try:
    with from_extra("aiohttp", aiohttp="aiohttp"):
        from aiohttp import (
            ClientConnectionError,
            ClientConnectorCertificateError,
            ClientConnectorError,
            ClientError,
            ClientHandlerType,
            ClientOSError,
            ClientRequest,
            ClientResponse,
            ClientResponseError,
            ConnectionTimeoutError,
            Payload,
            ServerDisconnectedError,
            ServerTimeoutError,
            payload_type,
        )
        from aiohttp.abc import AbstractStreamWriter
        from aiohttp.http import HttpProcessingError
except ModuleNotFoundError:
    raise
except ImportError:
    raise ImportError('ratebound.client.aiohttp needs aiohttp 3.12. Run: pip install "ratebound[aiohttp]"') from None

REPEATED_BY_AIOHTTP = frozenset(("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"))


def polite(**options: Unpack[PoliteOptions]) -> "PoliteMiddleware":
    """Return a middleware for client sessions that retries, learns limits and paces itself.

    A session does not close its middlewares: close a pacer that has connections of its own, for example to Redis,
    yourself.

    Args:
        **options: `retry`, `pacer`, `budget`, `breaker`, `listeners`, `idempotency_key` and `read_bodies_of`; see
            `CallOptions`.

    Raises:
        TypeError: An option is unknown, or something else than expected.

    Examples:
        >>> import asyncio, aiohttp
        >>> from ratebound.client.aiohttp import polite
        >>> async def main():
        ...     async with aiohttp.ClientSession(middlewares=[polite()]) as session:
        ...         return session.closed
        >>> asyncio.run(main())
        False
    """
    return PoliteMiddleware(CallOptions(options, asynchronous=True))


class AiohttpCircuitOpen(CircuitOpen, ClientConnectionError):
    """CircuitOpen as an error of aiohttp, so that `except aiohttp.ClientError` catches it."""


class PoliteMiddleware:
    """A middleware for client sessions; made by `polite`. Several sessions may share it.

    Args:
        calls: The options of all calls.

    Examples:
        >>> from ratebound.client import Retry
        >>> from ratebound.client.aiohttp import polite
        >>> middleware = polite(retry=Retry(attempts=2))
    """

    def __init__(self, calls: CallOptions) -> None:
        self.calls = calls

    async def __call__(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        """Make one call."""
        outgoing = Outgoing(request.method, str(request.url), tuple(request.headers.items()))
        try:
            response, _report = await call_async(outgoing, AiohttpExchange(request, handler), self.calls)
        except CircuitOpen as error:
            raise AiohttpCircuitOpen(error.origin, error.retry_after) from error.__cause__
        except (ClientOSError, ServerDisconnectedError) as error:
            if self.calls.retry.attempts == 1 or not _repeated_by_aiohttp(request, error):
                raise
            # aiohttp would run all middlewares once more for the error as it is.
            lost = ClientConnectionError(*error.args)
            for note in getattr(error, "__notes__", ()):
                lost.add_note(note)
            raise lost from error
        return response

    async def close(self) -> None:
        """Close the pacer that `polite` made."""
        closing: Awaitable[object] | None = self.calls.close()
        if closing is not None:
            await closing


def _repeated_by_aiohttp(request: ClientRequest, error: ClientError) -> bool:
    return request.method in REPEATED_BY_AIOHTTP and not isinstance(error, ClientConnectorError)


class AiohttpExchange:
    """One request of a session, and its responses."""

    def __init__(self, request: ClientRequest, handler: ClientHandlerType) -> None:
        self._request = request
        self._handler = handler

    async def send(self, attempt: int, add: Lines) -> ClientResponse:
        """Send the request."""
        if attempt > 1:
            await self._request.close()  # the last attempt may still be writing: it must not share a file with this one
        self._request.headers.update(add)
        return await self._handler(self._request)

    def head(self, response: ClientResponse) -> Head:
        """Return the status and the headers."""
        return Head(response.status, tuple(response.headers.items()))

    def failure(self, error: Exception) -> Failure | None:
        """Return the kind of a connection error. The end of the timeout `total` is none: it is for the whole call."""
        if isinstance(error, ConnectionTimeoutError):
            return Failure("timeout", sent=False)
        if isinstance(error, ServerTimeoutError):
            return Failure("timeout")
        if isinstance(error, ClientConnectorCertificateError):
            return None
        if isinstance(error, ClientConnectorError):
            return Failure("connect", sent=False)
        is_no_http = isinstance(error, ClientResponseError) and isinstance(error.__cause__, HttpProcessingError)
        return Failure("closed") if is_no_http or isinstance(error, ClientOSError | ServerDisconnectedError) else None

    def replayable(self) -> bool:
        """Return True if the body can be sent again."""
        body: Any = self._request.body
        return not body or not body.consumed

    async def read(self, response: ClientResponse, most: int) -> bytes | None:
        """Return the beginning of the body, and put it back."""
        found = bytearray()
        async with _for_a_while(LONGEST_READ):
            while len(found) < most and (part := await response.content.read(most - len(found))):
                found += part
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            response.content.unread_data(bytes(found))
        return bytes(found)

    async def discard(self, response: ClientResponse, most: int) -> None:
        """Give the connection back: aiohttp does it itself at the end of a body."""
        try:
            async with _for_a_while(LONGEST_READ):
                while most > 0 and (part := await response.content.readany()):
                    most -= len(part)
        finally:
            response.close()  # no effect after the end of the body


@asynccontextmanager
async def _for_a_while(seconds: float) -> AsyncIterator[None]:
    """End reading a body after this time, or when the connection breaks. The end of the timeout `total` is raised."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except ClientError:
        pass
    except TimeoutError:
        if not limit.expired():
            raise


@payload_type(AsyncRepeatableBody)
@payload_type(RepeatableBody)
class RepeatablePayload(Payload):
    """A RepeatableBody for aiohttp, which would otherwise take the first of its iterators only."""

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Raise TypeError: the body is a stream."""
        raise TypeError("a RepeatableBody is a stream: it has no text")

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write the whole body."""
        async for part in self._value:
            await writer.write(part)
