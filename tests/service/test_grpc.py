"""Unary gRPC calls, frame by frame: calls, refusals, deadlines, statuses and health. Time is simulated."""

import asyncio
import logging
from urllib.parse import unquote

import pytest
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st

from ratebound.service import grpc
from ratebound.service.bearer_tokens import BearerTokens
from ratebound.service.grpc import (
    DEADLINE_EXCEEDED,
    INTERNAL,
    INVALID_ARGUMENT,
    NOT_FOUND,
    UNAUTHENTICATED,
    UNAVAILABLE,
    UNIMPLEMENTED,
    GrpcCall,
    GrpcError,
    GrpcServer,
    encode_text,
    health_methods,
    health_service,
    timeout_of,
)
from ratebound.service.http2_frames import CANCEL, DATA, END_STREAM, HEADERS, frame, reset
from tests.service.http2_peer import Fields, Peer, headers
from tests.waiting.virtual import run, seconds

TOKEN = "0123456789abcdef"
GRPC = ((b"content-type", b"application/grpc"), (b"te", b"trailers"))
cancelled: list[float] = []


async def slow(call: GrpcCall) -> bytes:
    try:
        await asyncio.sleep(5)
    except asyncio.CancelledError:
        cancelled.append(seconds())
        raise
    return b"slow " + call.message


async def refuses_later(call: GrpcCall) -> bytes:
    raise GrpcError(UNAVAILABLE, "later: é%\n")


async def fails_later(call: GrpcCall) -> bytes:
    raise TimeoutError("secret")


def refuses(call: GrpcCall) -> bytes:
    raise GrpcError(INVALID_ARGUMENT, call.message.decode())


def fails(call: GrpcCall) -> bytes:
    raise RuntimeError("secret")


def tells(call: GrpcCall) -> bytes:
    return repr((call.metadata, call.timeout, call.peer)).encode()


METHODS: dict[bytes, grpc.Method] = {
    b"/test.Test/Echo": lambda call: call.message,
    b"/test.Test/Slow": slow,
    b"/test.Test/Refuses": refuses,
    b"/test.Test/RefusesLater": refuses_later,
    b"/test.Test/Fails": fails,
    b"/test.Test/FailsLater": fails_later,
    b"/test.Test/Tells": tells,
    **health_methods(lambda: True, ["test.Test"]),
}


def message(text: bytes, flag: int = 0) -> bytes:
    return bytes((flag,)) + len(text).to_bytes(4, "big") + text


def call(stream: int, method: bytes, body: bytes, more: Fields = GRPC, verb: bytes = b"POST") -> bytes:
    fields = ((b":method", verb), (b":scheme", b"http"), (b":path", b"/test.Test/" + method))
    return headers(stream, fields=(*fields, *more)) + frame(DATA, END_STREAM, stream, body)


def grpc_peer(tokens: BearerTokens | None = None) -> Peer:
    server = GrpcServer(METHODS, tokens or BearerTokens())
    return Peer(server.handle, has_token=server.has_token).begin()


def answers(peer: Peer) -> dict[int, tuple[dict[bytes, bytes], bytes]]:
    """Return headers and trailers, and the body, of each stream."""
    found: dict[int, tuple[dict[bytes, bytes], bytes]] = {}
    decoder = Decoder()
    for sent in peer.frames():
        fields, body = found.get(sent.stream, ({}, b""))
        if sent.kind == HEADERS:
            fields = fields | {bytes(name): bytes(value) for name, value in decoder.decode(sent.payload, raw=True)}
        elif sent.kind == DATA:
            body += sent.payload
        found[sent.stream] = (fields, body)
    return found


def answer(sent: bytes, tokens: BearerTokens | None = None, wait: float = 0) -> tuple[dict[bytes, bytes], bytes]:
    async def main() -> tuple[dict[bytes, bytes], bytes]:
        peer = grpc_peer(tokens)
        peer.send(sent)
        await asyncio.sleep(wait)
        return answers(peer)[1]

    return run(main())


def test_a_call_is_answered_with_a_message_and_a_status() -> None:
    fields, body = answer(call(1, b"Echo", message(b"hello")))
    assert fields == {b":status": b"200", b"content-type": b"application/grpc", b"grpc-status": b"0"}
    assert body == message(b"hello")


def test_a_message_may_be_empty_and_come_in_many_frames() -> None:
    assert answer(call(1, b"Echo", message(b"")))[1] == message(b"")
    whole = message(b"hello")
    parts = b"".join(frame(DATA, 0, 1, whole[at : at + 1]) for at in range(len(whole)))
    head = call(1, b"Echo", b"")[:-9]
    assert answer(head + parts + frame(DATA, END_STREAM, 1))[1] == whole


@pytest.mark.parametrize(
    "content_type",
    [b"application/grpc", b"application/grpc+proto", b"application/grpc; charset=utf-8", b"Application/GRPC"],
)
def test_content_types_of_grpc_with_protobuf_are_taken(content_type: bytes) -> None:
    fields = ((b"content-type", content_type), (b"te", b"trailers"))
    assert answer(call(1, b"Echo", message(b"x"), fields))[0][b"grpc-status"] == b"0"


@pytest.mark.parametrize(
    "fields",
    [
        ((b"content-type", b"application/json"), (b"te", b"trailers")),
        ((b"content-type", b"application/grpc-web"), (b"te", b"trailers")),
        ((b"content-type", b"application/grpc+json"), (b"te", b"trailers")),
        ((b"content-type", b"application/grpcs"), (b"te", b"trailers")),
        ((b"te", b"trailers"),),
    ],
    ids=["json", "web", "grpc+json", "grpcs", "none"],
)
def test_other_content_types_are_415(fields: Fields) -> None:
    assert answer(call(1, b"Echo", message(b"x"), fields)) == ({b":status": b"415"}, b"")


def test_other_verbs_are_405() -> None:
    assert answer(call(1, b"Echo", message(b"x"), verb=b"GET")) == ({b":status": b"405", b"allow": b"POST"}, b"")


REFUSED = {
    "an unknown method": (call(1, b"Unknown", message(b"x")), UNIMPLEMENTED),
    "a proxy that drops te": (call(1, b"Echo", message(b"x"), GRPC[:1]), INTERNAL),
    "a compressed message": (call(1, b"Echo", message(b"x", 1)), UNIMPLEMENTED),
    "a flag that does not exist": (call(1, b"Echo", message(b"x", 2)), INTERNAL),
    "no message": (call(1, b"Echo", b""), UNIMPLEMENTED),
    "two messages": (call(1, b"Echo", message(b"x") * 2), UNIMPLEMENTED),
    "half a prefix": (call(1, b"Echo", b"\0\0\0"), INTERNAL),
    "half a message": (call(1, b"Echo", message(b"hello")[:-1]), INTERNAL),
    "a timeout without a unit": (call(1, b"Echo", message(b"x"), (*GRPC, (b"grpc-timeout", b"1"))), INTERNAL),
    "a timeout of nine digits": (call(1, b"Echo", message(b"x"), (*GRPC, (b"grpc-timeout", b"123456789S"))), INTERNAL),
    "an empty timeout": (call(1, b"Echo", message(b"x"), (*GRPC, (b"grpc-timeout", b""))), INTERNAL),
    "a timeout of 0": (call(1, b"Echo", message(b"x"), (*GRPC, (b"grpc-timeout", b"0S"))), DEADLINE_EXCEEDED),
    "a method that refuses": (call(1, b"Refuses", message(b"no")), INVALID_ARGUMENT),
    "a method that refuses later": (call(1, b"RefusesLater", message(b"no")), UNAVAILABLE),
    "a method that fails": (call(1, b"Fails", message(b"no")), INTERNAL),
    "a method that fails later": (call(1, b"FailsLater", message(b"no")), INTERNAL),
    "a method that fails later, with a deadline": (
        call(1, b"FailsLater", message(b"no"), (*GRPC, (b"grpc-timeout", b"1S"))),
        INTERNAL,
    ),
}


@pytest.mark.parametrize(("sent", "status"), REFUSED.values(), ids=REFUSED)
def test_errors_are_trailers_only(sent: bytes, status: int, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        peer = grpc_peer()
        peer.send(sent)
        await asyncio.sleep(0.1)
        (frames,) = peer.frames()
        assert frames.kind == HEADERS
        assert frames.flags & END_STREAM
        fields = {bytes(n): bytes(v) for n, v in Decoder().decode(frames.payload, raw=True)}
        assert fields[b":status"] == b"200"
        assert fields[b"content-type"] == b"application/grpc"
        assert fields[b"grpc-status"] == str(status).encode()
        assert b"secret" not in frames.payload
        assert (b"grpc-accept-encoding" in fields) == (sent == REFUSED["a compressed message"][0])

    with caplog.at_level(logging.CRITICAL, "ratebound.service"):
        run(main())


def test_a_failure_is_logged_for_the_operator(caplog: pytest.LogCaptureFixture) -> None:
    fields, _ = answer(call(1, b"Fails", message(b"x")))
    assert fields[b"grpc-message"] == b"The call failed."
    assert "secret" in caplog.text


def test_metadata_timeout_and_peer_are_passed_on() -> None:
    more = ((b"name", b"value"), (b"name", b"other"), (b"key-bin", b"AAE="), (b"grpc-timeout", b"1500m"))
    _, body = answer(call(1, b"Tells", message(b""), (*GRPC, *more)))
    assert body[5:].decode() == repr(([*GRPC, *more], 1.5, "127.0.0.1"))


def test_calls_without_a_timeout_have_none() -> None:
    assert b"None" in answer(call(1, b"Tells", message(b"")))[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"2H", 7200),
        (b"3M", 180),
        (b"4S", 4),
        (b"5m", 0.005),
        (b"6u", 0.000006),
        (b"7n", 0.000000007),
        (b"99999999H", 359999996400),
        (b"-1S", None),
        (b"1.5S", None),
        (b"1 S", None),
        (b"S", None),
        (b"1s", None),
        ("1²S".encode(), None),
    ],
)
def test_timeouts_have_six_units(text: bytes, expected: float | None) -> None:
    assert timeout_of(text) == pytest.approx(expected)


def test_a_call_that_takes_longer_than_its_deadline_is_cancelled() -> None:
    async def main() -> None:
        cancelled.clear()
        peer = grpc_peer()
        peer.send(call(1, b"Slow", message(b"x"), (*GRPC, (b"grpc-timeout", b"2S"))))
        peer.send(call(3, b"Slow", message(b"x"), (*GRPC, (b"grpc-timeout", b"99999999H"))))
        peer.send(call(5, b"Slow", message(b"x")))
        await asyncio.sleep(3)
        assert cancelled == [2]
        found = answers(peer)
        assert set(found) == {1}
        assert found[1][0][b"grpc-status"] == str(DEADLINE_EXCEEDED).encode()
        await asyncio.sleep(3)
        assert {stream: body for stream, (_, body) in answers(peer).items()} == dict.fromkeys(
            (3, 5), message(b"slow x")
        )

    run(main())


def test_a_caller_that_goes_away_cancels_its_call() -> None:
    async def main() -> None:
        cancelled.clear()
        peer = grpc_peer()
        peer.send(call(1, b"Slow", message(b"x")), reset(1, CANCEL))
        await asyncio.sleep(1)
        assert cancelled == [0]
        assert answers(peer) == {}

    run(main())


# Tokens


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ((), UNAUTHENTICATED),
        (((b"authorization", b"Bearer " + TOKEN.encode()),), 0),
        (((b"authorization", b"bearer " + TOKEN.encode()),), 0),
        (((b"authorization", b"Bearer wrong-wrong-wrong"),), UNAUTHENTICATED),
        (((b"authorization", b"Basic " + TOKEN.encode()),), UNAUTHENTICATED),
        (((b"authorization", b"Bearer wrong"), (b"authorization", b"Bearer " + TOKEN.encode())), UNAUTHENTICATED),
    ],
    ids=["none", "right", "lower case", "wrong", "basic", "wrong first"],
)
def test_calls_need_a_token_if_there_are_tokens(fields: Fields, status: int) -> None:
    found, _ = answer(call(1, b"Echo", message(b"x"), (*GRPC, *fields)), BearerTokens([TOKEN]))
    assert found[b"grpc-status"] == str(status).encode()
    assert TOKEN.encode() not in found.get(b"grpc-message", b"")


def test_who_has_no_token_does_not_learn_which_methods_exist() -> None:
    tokens = BearerTokens([TOKEN])
    assert answer(call(1, b"Echo", message(b"x")), tokens) == answer(call(1, b"Unknown", message(b"x")), tokens)


def test_a_head_that_one_server_has_accepted_is_refused_by_another() -> None:
    """Heads are shared by all connections of a process, also by those of other listeners."""
    sent = call(1, b"Echo", message(b"x"))
    assert answer(sent)[0][b"grpc-status"] == b"0"
    assert answer(sent, BearerTokens([TOKEN]))[0][b"grpc-status"] == str(UNAUTHENTICATED).encode()
    assert answer(sent)[0][b"grpc-status"] == b"0"


def test_what_a_server_remembers_is_bounded() -> None:
    async def main() -> None:
        server = GrpcServer(METHODS, BearerTokens([TOKEN]))
        peer = Peer(server.handle).begin()
        for i in range(1000):
            peer.send(call(2 * i + 1, b"Unknown%d" % i, message(b""), (*GRPC, (b"authorization", b"Bearer %d" % i))))
        assert len(server._routes) <= grpc.REMEMBERED

    run(main())


# Messages of errors


def test_text_is_percent_encoded() -> None:
    assert encode_text("plain text, with ~!") == b"plain text, with ~!"
    assert encode_text("100% é\n") == b"100%25 %C3%A9%0A"
    assert encode_text(" blanks ") == b"%20blanks%20"
    assert encode_text("  ") == b"%20%20"
    assert encode_text("x" * 2000) == b"x" * grpc.MAX_TEXT
    assert encode_text("x" + "é" * 1000) == b"x" + b"%C3%A9" * 511
    assert encode_text("\ud800") == b"?"


@given(st.text(max_size=2000))
def test_any_text_can_be_sent_and_read_back(text: str) -> None:
    coded = encode_text(text)
    assert all(0x20 <= byte < 0x7F for byte in coded)
    assert coded == coded.strip(b" ")
    sent = text.encode("utf-8", "replace").decode()
    assert sent.startswith(unquote(coded.decode()))
    assert unquote(coded.decode()) == sent or len(sent.encode()) > grpc.MAX_TEXT


@pytest.mark.parametrize("status", [-1, 0, 17])
def test_a_status_that_is_no_error_is_refused(status: int) -> None:
    with pytest.raises(ValueError, match="1 to 16"):
        GrpcError(status, "wrong")


# Health


def health(service: bytes, method: bytes = b"Check") -> bytes:
    body = message((b"\x0a" + bytes((len(service),)) + service) if service else b"")
    fields = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/grpc.health.v1.Health/" + method), *GRPC)
    return headers(1, fields=fields) + frame(DATA, END_STREAM, 1, body)


def test_health_needs_no_token() -> None:
    assert answer(health(b""), BearerTokens([TOKEN]))[1] == message(b"\x08\x01")
    assert answer(health(b"test.Test"))[1] == message(b"\x08\x01")


def test_health_of_an_unknown_service_is_not_found_and_watching_is_not_implemented() -> None:
    assert answer(health(b"other"))[0][b"grpc-status"] == str(NOT_FOUND).encode()
    assert answer(health(b"", b"Watch"))[0][b"grpc-status"] == str(UNIMPLEMENTED).encode()


def test_a_server_that_is_not_ready_is_not_serving() -> None:
    check = health_methods(lambda: False)[b"/grpc.health.v1.Health/Check"]
    assert check(GrpcCall(b"", [], None, None)) == b"\x08\x02"


@pytest.mark.parametrize(
    ("text", "service"),
    [
        (b"", b""),
        (b"\x0a\x01a", b"a"),
        (b"\x0a\x01a\x0a\x01b", b"b"),
        (b"\x0a\x80\x01" + b"a" * 128, b"a" * 128),
        (b"\x10\x96\x01\x0a\x01a\x19" + bytes(8) + b"\x22\x01x\x2d" + bytes(4), b"a"),
    ],
    ids=["empty", "a name", "the last one counts", "a long name", "unknown fields"],
)
def test_the_request_of_a_health_check_is_protobuf(text: bytes, service: bytes) -> None:
    assert health_service(text) == service


@given(st.binary(max_size=30))
def test_any_request_of_a_health_check_is_read_or_refused(text: bytes) -> None:
    try:
        health_service(text)
    except GrpcError as error:
        assert error.status == INTERNAL  # noqa: PT017


def unfinished(stream: int, method: bytes, *more: tuple[bytes, bytes]) -> bytes:
    """Return the head of a call, and 32 KB of a body that does not end."""
    fields = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/" + method), *GRPC, *more)
    return headers(stream, fields=fields) + 2 * frame(DATA, 0, stream, message(bytes(32_000))[:16_000])


@pytest.mark.parametrize(
    ("method", "status"), [(b"test.Test/Echo", UNAUTHENTICATED), (b"grpc.health.v1.Health/Check", UNIMPLEMENTED)]
)
def test_little_is_kept_of_calls_without_a_token(method: bytes, status: int) -> None:
    async def main() -> None:
        peer = grpc_peer(BearerTokens([TOKEN]))
        for stream in (1, 3, 5):
            peer.send(unfinished(stream, method))
            assert peer.connection._held <= 16_000
        found = answers(peer)
        assert [found[stream][0][b"grpc-status"] for stream in (1, 3)] == [b"%d" % status] * 2
        peer.send(frame(DATA, END_STREAM, 1, b"the rest"), frame(DATA, END_STREAM, 3, b"the rest"))
        peer.send(
            headers(
                7, fields=((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/x"), (b"a", bytes(b"b" * 9000)))
            )
        )
        assert 7 in answers(peer)
        assert 7 not in peer.connection._streams
        assert not peer.connection._is_closed

    run(main())


@pytest.mark.parametrize("has_token", [False, True])
def test_few_heads_are_kept_of_calls_without_a_token(has_token: bool) -> None:
    async def main() -> None:
        peer = grpc_peer(BearerTokens([TOKEN]))
        token = [(b"authorization", b"Bearer " + TOKEN.encode())] if has_token else []
        fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/test.Test/Echo"), *GRPC, *token]
        for place in range(200):
            unlike = [(b"%x" % (10_000 * place + more), b"") for more in range(100)]
            peer.send(headers(2 * place + 1, fields=(*fields, *unlike)))
        held = sum(stream.head.size for stream in peer.connection._streams.values())
        assert (held > 200 * 100 * 32) if has_token else (held < 32_000)
        assert not peer.connection._is_closed
        peer.send(headers(401, fields=fields) + frame(DATA, END_STREAM, 401, message(b"hello")))
        assert answers(peer)[401][0][b"grpc-status"] == (b"0" if has_token else b"%d" % UNAUTHENTICATED)

    run(main())


def test_calls_with_a_token_may_be_long() -> None:
    async def main() -> None:
        peer = grpc_peer(BearerTokens([TOKEN]))
        peer.send(unfinished(1, b"test.Test/Echo", (b"authorization", b"Bearer " + TOKEN.encode())))
        assert peer.connection._held == 32_000
        peer.send(frame(DATA, END_STREAM, 1, bytes(5)))
        assert answers(peer)[1][0][b"grpc-status"] == b"0"

    run(main())
