"""Bodies of requests that can be sent again, and the beginning of bodies of responses.

Bytes can. A file can if it can seek: it is sent again from the position at which it was given. A list of bytes can. A
generator, or any other iterator, cannot: it is used up, and a retry would send nothing or half of it.
"""

import zlib
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Final

LONGEST_READ: Final = 1.0  # seconds for the body of a refusal: a server that sends it drop by drop is not listened to


class RepeatableBody:
    """A body that a function makes anew for each attempt.

    For httpx.AsyncClient use `AsyncRepeatableBody`: it rejects every body that can be read without awaiting.

    Args:
        make: A function that returns an iterable of bytes, or an asynchronous one for aiohttp. It is called once for
            each attempt.

    Raises:
        TypeError: The function cannot be called.

    Examples:
        >>> from ratebound.client import RepeatableBody
        >>> body = RepeatableBody(lambda: (f"row {number}".encode() for number in range(2)))
        >>> list(body), list(body)
        ([b'row 0', b'row 1'], [b'row 0', b'row 1'])
    """

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], Iterable[bytes] | AsyncIterable[bytes]]) -> None:
        if not callable(make):
            raise TypeError(f"RepeatableBody got {make!r}: expected a function that returns an iterable of bytes")
        self._make = make

    def __iter__(self) -> Iterator[bytes]:
        made = self._make()
        if not isinstance(made, Iterable):
            raise TypeError(f"the function of a RepeatableBody returned {type(made).__name__}: expected an iterable")
        return iter(made)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        made = self._make()
        if isinstance(made, AsyncIterable):
            async for part in made:
                yield part
        else:
            for part in made:
                yield part


class AsyncRepeatableBody:
    """A body that a function makes anew for each attempt, for httpx.AsyncClient; see `RepeatableBody`.

    Args:
        make: A function that returns an iterable of bytes, or an asynchronous one for aiohttp. It is called once for
            each attempt.

    Raises:
        TypeError: The function cannot be called.

    Examples:
        >>> from ratebound.client import AsyncRepeatableBody
        >>> body = AsyncRepeatableBody(lambda: [b"one", b"two"])
    """

    __slots__ = ("_body",)

    def __init__(self, make: Callable[[], Iterable[bytes] | AsyncIterable[bytes]]) -> None:
        self._body = RepeatableBody(make)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return aiter(self._body)


def rewinding(body: object) -> Callable[[], object] | None:
    """Return a function that makes the body whole again before it is sent once more; None if that cannot be done.

    Call this before the body is sent for the first time: it remembers the position of a file.
    """
    if body is None or isinstance(body, bytes | bytearray | str | list | tuple | RepeatableBody):
        return _nothing
    if hasattr(body, "read") or hasattr(body, "aread"):
        return _rewinding_file(body)
    if isinstance(body, Iterator | AsyncIterator) or not isinstance(body, Iterable | AsyncIterable):
        return None
    return _nothing  # an iterable that is no iterator starts again each time


def decoded_start(raw: bytes, encoding: str, most: int) -> bytes | None:
    """Return the beginning of a response's body without its Content-Encoding, at most `most` bytes.

    Return None for an encoding that is not known here, or a body that breaks its rules.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return raw[:most]
    if name not in ("gzip", "x-gzip", "deflate"):
        return None
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(raw, most)
    except zlib.error:
        return None


def _rewinding_file(file: Any) -> Callable[[], object] | None:
    try:
        position = file.tell()
        if not file.seekable():
            return None
    except Exception:  # not a file, or one that is closed, or one whose methods are coroutines
        return None
    if type(position) is not int:
        if hasattr(position, "close"):
            position.close()  # a coroutine that nobody awaits
        return None
    return lambda: file.seek(position)


def _nothing() -> None:
    """A body that is whole as it is."""
