"""The adapters behind one interface, so that one suite of behaviours is about all of them.

A caller is an ordinary client of its library with our adapter in it. Calls of asynchronous libraries run on an event
loop that the caller keeps until it is closed.
"""

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import aiohttp
import httpx
import requests
import urllib3

from ratebound.client import AsyncRepeatableBody, RepeatableBody
from ratebound.client.aiohttp import polite
from ratebound.client.httpx import AsyncPoliteTransport, PoliteTransport
from ratebound.client.requests import PoliteAdapter
from ratebound.client.urllib3 import PolitePoolManager

TIMEOUT = 20.0


class Reply(NamedTuple):
    """What the caller's library has made of a response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class OneShot:
    """A body that can be sent once: the library gets a generator, or an asynchronous one."""

    def __init__(self, *parts: bytes) -> None:
        self.parts = parts

    def __iter__(self) -> Iterator[bytes]:
        yield from self.parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            yield part


class Upload(NamedTuple):
    """A form with one field and one file, sent as multipart."""

    field: str
    content: bytes


Body = bytes | io.BytesIO | OneShot | RepeatableBody | AsyncRepeatableBody | Upload | None


class Caller(Protocol):
    """One client, with our adapter."""

    keeps_cookies: bool
    errors: tuple[type[Exception], ...]  # what this library raises when a server cannot be reached

    def call(self, method: str, url: str, *, body: Body = None, headers: Mapping[str, str] | None = None) -> Reply:
        """Send a request and read the whole response."""

    def stream(self, url: str, on_part: Callable[[bytes], None], *, parts: int) -> int:
        """GET a streamed response, hand over each part as it comes, and stop after so many. Return the status."""

    def close(self) -> None:
        """Close the client."""


class HttpxCaller:
    """httpx.Client."""

    keeps_cookies = True
    errors: tuple[type[Exception], ...] = (httpx.TransportError,)

    def __init__(self, **options: Any) -> None:
        self.client = httpx.Client(transport=PoliteTransport(**options), timeout=TIMEOUT, follow_redirects=True)

    def call(self, method: str, url: str, *, body: Body = None, headers: Mapping[str, str] | None = None) -> Reply:
        """Send a request and read the whole response."""
        answer = self.client.request(method, url, headers=headers, **_httpx_body(body, iter))
        return Reply(answer.status_code, answer.headers, answer.content)

    def stream(self, url: str, on_part: Callable[[bytes], None], *, parts: int) -> int:
        """GET a streamed response."""
        with self.client.stream("GET", url) as answer:
            for _, part in zip(range(parts), answer.iter_raw(), strict=False):
                on_part(part)
            return answer.status_code

    def close(self) -> None:
        """Close the client."""
        self.client.close()


class AsyncHttpxCaller:
    """httpx.AsyncClient."""

    keeps_cookies = True
    errors: tuple[type[Exception], ...] = (httpx.TransportError,)

    def __init__(self, **options: Any) -> None:
        transport = AsyncPoliteTransport(**options)
        self.runner = asyncio.Runner()
        self.client = httpx.AsyncClient(transport=transport, timeout=TIMEOUT, follow_redirects=True)

    def call(self, method: str, url: str, *, body: Body = None, headers: Mapping[str, str] | None = None) -> Reply:
        """Send a request and read the whole response."""
        answer = self.runner.run(self.client.request(method, url, headers=headers, **_httpx_body(body, aiter)))
        return Reply(answer.status_code, answer.headers, answer.content)

    def stream(self, url: str, on_part: Callable[[bytes], None], *, parts: int) -> int:
        """GET a streamed response."""

        async def run() -> int:
            left = parts
            async with self.client.stream("GET", url) as answer:
                async for part in answer.aiter_raw():
                    on_part(part)
                    left -= 1
                    if not left:
                        break
                return answer.status_code

        return self.runner.run(run())

    def close(self) -> None:
        """Close the client and its event loop."""
        self.runner.run(self.client.aclose())
        self.runner.close()


def _httpx_body(body: Body, once: Callable[[Any], Any]) -> dict[str, Any]:
    if isinstance(body, Upload):
        return {"data": {"field": body.field}, "files": {"file": ("a.bin", io.BytesIO(body.content))}}
    if isinstance(body, OneShot):
        return {"content": once(body)}
    return {"content": body}


class RequestsCaller:
    """requests.Session."""

    keeps_cookies = True
    errors: tuple[type[Exception], ...] = (requests.ConnectionError,)

    def __init__(self, **options: Any) -> None:
        self.session = requests.Session()
        self.session.mount("http://", PoliteAdapter(**options))

    def call(self, method: str, url: str, *, body: Body = None, headers: Mapping[str, str] | None = None) -> Reply:
        """Send a request and read the whole response."""
        if isinstance(body, Upload):
            data: dict[str, Any] = {"data": {"field": body.field}, "files": {"file": ("a.bin", body.content)}}
        else:
            data = {"data": iter(body) if isinstance(body, OneShot) else body}
        answer = self.session.request(method, url, headers=headers, timeout=TIMEOUT, **data)
        return Reply(answer.status_code, answer.headers, answer.content)

    def stream(self, url: str, on_part: Callable[[bytes], None], *, parts: int) -> int:
        """GET a streamed response."""
        with self.session.get(url, stream=True, timeout=TIMEOUT) as answer:
            for _, part in zip(range(parts), answer.iter_content(None), strict=False):
                on_part(part)
            return answer.status_code

    def close(self) -> None:
        """Close the session."""
        self.session.close()


class Urllib3Caller:
    """urllib3.PoolManager."""

    keeps_cookies = False
    errors: tuple[type[Exception], ...] = (urllib3.exceptions.HTTPError,)

    def __init__(self, **options: Any) -> None:
        self.pools = PolitePoolManager(**options)

    def call(self, method: str, url: str, *, body: Body = None, headers: Mapping[str, str] | None = None) -> Reply:
        """Send a request and read the whole response."""
        if isinstance(body, Upload):
            sent: dict[str, Any] = {"fields": {"field": body.field, "file": ("a.bin", body.content)}}
        else:
            sent = {"body": iter(body) if isinstance(body, OneShot) else body}
        answer = self.pools.request(method, url, headers=headers, timeout=TIMEOUT, **sent)
        return Reply(answer.status, answer.headers, answer.data)

    def stream(self, url: str, on_part: Callable[[bytes], None], *, parts: int) -> int:
        """GET a streamed response."""
        answer = self.pools.request("GET", url, preload_content=False, timeout=TIMEOUT)
        for _, part in zip(range(parts), answer.stream(), strict=False):
            on_part(part)
        answer.close()
        return answer.status

    def close(self) -> None:
        """Close all pools."""
        self.pools.clear()


class AiohttpCaller:
    """aiohttp.ClientSession."""

    keeps_cookies = True
    errors: tuple[type[Exception], ...] = (aiohttp.ClientError,)

    def __init__(self, **options: Any) -> None:
        middleware = polite(**options)
        self.runner = asyncio.Runner()

        async def opened() -> aiohttp.ClientSession:
            return aiohttp.ClientSession(
                middlewares=(middleware,),
                timeout=aiohttp.ClientTimeout(total=None, sock_read=TIMEOUT),
                cookie_jar=aiohttp.CookieJar(unsafe=True),  # it keeps cookies of IP addresses
            )

        try:
            self.session = self.runner.run(opened())
        except BaseException:
            self.runner.close()
            raise

    def call(self, method: str, url: str, *, body: Body = None, headers: Mapping[str, str] | None = None) -> Reply:
        """Send a request and read the whole response."""

        async def run() -> Reply:
            data: Any = aiter(body) if isinstance(body, OneShot) else body
            if isinstance(body, Upload):
                data = aiohttp.FormData({"field": body.field})
                data.add_field("file", body.content, filename="a.bin")
            async with self.session.request(method, url, data=data, headers=headers) as answer:
                return Reply(answer.status, answer.headers, await answer.read())

        return self.runner.run(run())

    def stream(self, url: str, on_part: Callable[[bytes], None], *, parts: int) -> int:
        """GET a streamed response."""

        async def run() -> int:
            left = parts
            async with self.session.get(url) as answer:
                async for part in answer.content.iter_any():
                    on_part(part)
                    left -= 1
                    if not left:
                        break
                return answer.status

        return self.runner.run(run())

    def close(self) -> None:
        """Close the session and its event loop."""
        self.runner.run(self.session.close())
        self.runner.close()


CALLERS: dict[str, Callable[..., Caller]] = {
    "httpx": HttpxCaller,
    "httpx async": AsyncHttpxCaller,
    "requests": RequestsCaller,
    "urllib3": Urllib3Caller,
    "aiohttp": AiohttpCaller,
}
