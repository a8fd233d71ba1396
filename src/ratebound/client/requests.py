"""Polite calls with requests: `session.mount("https://", PoliteAdapter())`. The only file that imports requests.

requests' own retries are off underneath, so that nothing is retried twice. A redirect that the session follows is the
next call.
"""

from collections.abc import Callable, Collection
from typing import Any, NoReturn, Unpack

from ratebound.client.body import rewinding
from ratebound.client.call import CallOptions, Head, Outgoing, PoliteOptions, call
from ratebound.client.circuit import CircuitOpen
from ratebound.client.retry import Failure
from ratebound.client.urllib3 import discard, failure_of, peek
from ratebound.from_extra import from_extra
from ratebound.http.client_ip import Lines

with from_extra("requests", requests="requests"):
    from requests import PreparedRequest, Response
    from requests.adapters import DEFAULT_POOLBLOCK, DEFAULT_POOLSIZE, HTTPAdapter
    from requests.exceptions import ChunkedEncodingError, ConnectionError, ConnectTimeout, InvalidHeader, Timeout


class RequestsCircuitOpen(CircuitOpen, ConnectionError):
    """CircuitOpen as an error of requests, so that `except requests.RequestException` catches it.

    Args:
        origin: The scheme, host and port of the API.
        retry_after: The seconds after which to try again.
    """

    def __init__(self, origin: str, retry_after: float) -> None:
        ConnectionError.__init__(self)
        CircuitOpen.__init__(self, origin, retry_after)


class PoliteAdapter(HTTPAdapter):
    """An adapter for sessions of requests. It retries, learns limits and paces itself.

    Args:
        pool_connections: The number of pools of connections, as in requests.
        pool_maxsize: The connections of a pool, as in requests.
        pool_block: True if a thread waits for a connection of a full pool, as in requests.
        **options: `retry`, `pacer`, `budget`, `breaker`, `listeners`, `idempotency_key` and `read_bodies_of`; see
            `CallOptions`.

    Raises:
        TypeError: An option is unknown, or something else than expected.

    Examples:
        >>> import requests
        >>> from ratebound.client import Pacer
        >>> from ratebound.client.requests import PoliteAdapter
        >>> session = requests.Session()
        >>> session.mount("https://api.example.com", PoliteAdapter(pacer=Pacer("50/second")))
    """

    def __init__(
        self,
        *,
        pool_connections: int = DEFAULT_POOLSIZE,
        pool_maxsize: int = DEFAULT_POOLSIZE,
        pool_block: bool = DEFAULT_POOLBLOCK,
        **options: Unpack[PoliteOptions],
    ) -> None:
        self.calls = CallOptions(options)
        super().__init__(pool_connections, pool_maxsize, 0, pool_block)

    def send(self, request: PreparedRequest, stream: bool = False, *args: Any, **kwargs: Any) -> Response:
        """Make one call. Without `stream` the body of a success is read too: a call whose body breaks off is retried.

        Args:
            request: The request.
            stream: True if the body is left unread.
            *args: Passed on to requests.
            **kwargs: Passed on to requests.

        Raises:
            RequestsCircuitOpen: The last calls to this API failed, so it was not sent.
            TurnNotInTime: The turn of the request does not come in time.
        """
        outgoing = Outgoing(request.method or "GET", request.url or "", tuple(request.headers.items()))
        unread = self.calls.refusals if not stream else None
        exchange = RequestsExchange(super().send, request, stream, unread, args, kwargs)
        try:
            response, _report = call(outgoing, exchange, self.calls)
        except CircuitOpen as error:
            raise RequestsCircuitOpen(error.origin, error.retry_after) from error.__cause__
        return response

    def close(self) -> None:
        """Close all connections, and the pacer that this object made."""
        super().close()
        self.calls.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a PoliteAdapter cannot be pickled: make the session and its adapter in each process")


class RequestsExchange:
    """One request of a session, and its responses. `unread` are the statuses whose body is left unread; None: all."""

    def __init__(
        self,
        send: Callable[..., Response],
        request: PreparedRequest,
        stream: bool,
        unread: Collection[int] | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._send = send
        self._request = request
        self._stream = stream
        self._unread = unread
        self._args = args
        self._kwargs = kwargs
        self._rewind = rewinding(request.body)
        self._is_untouched = True  # no attempt has begun to send the body

    def send(self, attempt: int, add: Lines) -> Response:
        """Send the request. Headers are added to a copy: a session may send a prepared request again."""
        if attempt > 1 and self._rewind is not None:
            self._rewind()
        request = self._request
        if add:
            request = request.copy()
            request.headers.update(add)
        response = self._send(request, self._stream, *self._args, **self._kwargs)
        if not self._is_unread(response):
            try:
                _ = response.content  # kept by the response
            except BaseException:
                response.close()
                raise
        return response

    def head(self, response: Response) -> Head:
        """Return the status and the headers."""
        self._is_untouched = False
        return Head(response.status_code, tuple(response.raw.headers.items()))  # requests joins the lines of a name

    def failure(self, error: Exception) -> Failure | None:
        """Return the kind of a connection error."""
        failure = _failure(error)
        self._is_untouched = self._is_untouched and failure is not None and not failure.sent
        return failure

    def replayable(self) -> bool:
        """Return True if the body can be sent again."""
        return self._rewind is not None or self._is_untouched

    def read(self, response: Response, most: int) -> bytes | None:
        """Return the beginning of the body."""
        if not self._is_unread(response):
            return response.content[:most]
        beginning, response.raw = peek(response.raw, most)
        return beginning

    def discard(self, response: Response, most: int) -> None:
        """Give the connection back."""
        if self._is_unread(response):
            discard(response.raw, most)

    def _is_unread(self, response: Response) -> bool:
        return self._unread is None or response.status_code in self._unread


def _failure(error: Exception) -> Failure | None:
    if isinstance(error, Timeout):
        return Failure("timeout", sent=not isinstance(error, ConnectTimeout))
    if isinstance(error, ChunkedEncodingError | InvalidHeader):
        return Failure("closed")
    if not isinstance(error, ConnectionError):
        return None
    cause = error.args[0] if error.args else None
    if isinstance(cause, OSError):
        return Failure("closed")
    return failure_of(cause) if isinstance(cause, Exception) else None
