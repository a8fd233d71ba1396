"""Which bodies can be sent again, and how much of a refusal is read."""

import gzip
import io
import zlib
from pathlib import Path
from typing import Any

import pytest

from ratebound.client import RepeatableBody
from ratebound.client.body import decoded_start, rewinding


class Anew:
    """An iterable that begins anew each time."""

    def __iter__(self) -> Any:
        return iter([b"a"])


@pytest.mark.parametrize("body", [None, b"", b"abc", "text", [b"a"], (b"a",), Anew(), RepeatableBody(lambda: [b"a"])])
def test_bodies_that_can_be_sent_again(body: object) -> None:
    assert rewinding(body) is not None


@pytest.mark.parametrize("body", [iter([b"a"]), (part for part in (b"a",)), map(bytes, []), 7, object()])
def test_bodies_that_can_not(body: object) -> None:
    assert rewinding(body) is None


def test_a_file_goes_back_to_where_it_was_given(tmp_path: Path) -> None:
    path = tmp_path / "body"
    path.write_bytes(b"header and body")
    with path.open("rb") as file:
        file.seek(11)
        rewind = rewinding(file)
        assert rewind is not None
        assert file.read() == b"body"
        rewind()
        assert file.read() == b"body"
    assert rewinding(file) is None  # closed


def test_a_pipe_can_not() -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    assert rewinding(Pipe(b"a")) is None


def test_an_asynchronous_file_can_not_and_leaves_no_coroutine() -> None:
    class Asynchronous:
        async def tell(self) -> int:
            return 0

        def seekable(self) -> bool:
            return True

        async def aread(self, size: int) -> bytes:
            return b""

    assert rewinding(Asynchronous()) is None


def test_a_function_that_makes_no_iterable_is_named() -> None:
    with pytest.raises(TypeError, match="expected a function"):
        RepeatableBody([b"a"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="returned int: expected an iterable"):
        list(RepeatableBody(lambda: 7))  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", " GZIP "])
def test_a_compressed_refusal_is_read(encoding: str) -> None:
    assert decoded_start(gzip.compress(b'{"a": 1}'), encoding, 100) == b'{"a": 1}'
    assert decoded_start(zlib.compress(b'{"a": 1}'), "deflate", 100) == b'{"a": 1}'


def test_a_bomb_is_read_up_to_the_bound_only() -> None:
    bomb = gzip.compress(b"\x00" * 50_000_000)
    assert decoded_start(bomb, "gzip", 1000) == b"\x00" * 1000


@pytest.mark.parametrize(("raw", "encoding"), [(b"junk", "gzip"), (b"junk", "br"), (b"junk", "gzip, gzip")])
def test_what_cannot_be_decoded_is_none(raw: bytes, encoding: str) -> None:
    assert decoded_start(raw, encoding, 100) is None
