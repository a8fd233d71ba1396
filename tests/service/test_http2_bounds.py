"""What an HTTP/2 connection may hold and for how long, flow control, and how it ends. Time is simulated."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hpack import Encoder

from ratebound.service.connections import Bounds, Connections
from ratebound.service.http2 import (
    FORGIVEN,
    HELD_HEADS,
    LAST_CALL,
    LINGER,
    MAX_SETTINGS,
    RECEIVE_WINDOW,
    Http2Answer,
    Http2Request,
)
from ratebound.service.http2_frames import (
    ACK,
    CANCEL,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEADERS,
    INTERNAL_ERROR,
    MAX_WINDOW,
    NO_ERROR,
    NUMBER,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    REFUSED_STREAM,
    RST_STREAM,
    SETTING,
    SETTINGS,
    SETTINGS_TIMEOUT,
    STREAM_CLOSED,
    WINDOW_UPDATE,
    frame,
    reset,
    settings,
    window_update,
)
from tests.service.http2_peer import (
    ACKNOWLEDGED,
    FIELDS,
    HEAD,
    HELLO,
    TRAILERS,
    Peer,
    Sent,
    block,
    echo,
    end,
    frames_of,
    headers,
    last_stream,
    request,
    with_path,
)
from tests.waiting.virtual import run, seconds

LATER = with_path(b"/later")
NEVER = with_path(b"/never")


def simulated(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop whose time is simulated."""

    def runs() -> None:
        run(test())

    runs.__name__ = test.__name__
    runs.__doc__ = test.__doc__
    return runs


# The beginning


@simulated
async def test_the_server_announces_its_bounds_and_no_table() -> None:
    peer = Peer(bounds=Bounds(pending=7, body=1000, head=2000))
    first, second = peer.frames()
    assert (first.kind, first.flags, first.stream) == (SETTINGS, 0, 0)
    assert dict(SETTING.iter_unpack(first.payload)) == {1: 0, 3: 7, 4: 1000 + 65535, 6: 2000}
    assert second == Sent(WINDOW_UPDATE, 0, 0, NUMBER.pack(RECEIVE_WINDOW - 65535))


@simulated
async def test_settings_are_acknowledged_each_time() -> None:
    peer = Peer()
    peer.frames()
    peer.send(HELLO, settings({4: 5}))
    assert peer.frames() == [Sent(SETTINGS, ACK, 0, b"")] * 2


@simulated
async def test_what_one_read_brought_is_answered_by_one_write() -> None:
    peer = Peer().begin()
    writes = peer.wire.writes
    peer.send(*(request(stream, b"%d" % stream) for stream in range(1, 65, 2)))
    assert peer.answers() == {stream: b"%d" % stream for stream in range(1, 65, 2)}
    assert peer.wire.writes == writes + 1


@simulated
async def test_answers_of_one_turn_of_the_loop_are_written_together() -> None:
    peer = Peer().begin()
    peer.send(*(request(stream, b"%d" % stream, LATER) for stream in range(1, 65, 2)))
    writes = peer.wire.writes
    await asyncio.sleep(2)
    assert len(peer.answers()) == 32
    assert peer.wire.writes == writes + 1


@simulated
async def test_a_connection_above_the_bound_is_refused() -> None:
    first = Peer(bounds=Bounds(connections=1))
    second = Peer(connections=first.connections)
    refused = second.goaway()
    assert refused is not None
    assert refused.code == ENHANCE_YOUR_CALM
    assert second.wire.is_closing()
    second.send(HELLO)
    await end(second)
    assert len(first.connections) == 1
    assert first.begin().is_open()


@simulated
async def test_a_connection_to_a_worker_that_stops_is_told_to_go_elsewhere() -> None:
    connections = Connections(Bounds())
    await connections.stop(1)
    refused = Peer(connections=connections).goaway()
    assert refused is not None
    assert (refused.code, last_stream(refused)) == (NO_ERROR, 0)


# Header blocks


@simulated
async def test_the_table_is_used_until_the_peer_has_emptied_it() -> None:
    """The acknowledgement comes in the middle: blocks before it refer to each other, blocks after it do not."""
    peer = Peer(seen).send(HELLO)
    encoder = Encoder()
    fields = [*FIELDS, (b"name", b"value"), (b"other", b"value")]
    for stream in (1, 3, 5):
        peer.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, encoder.encode(fields)))
    assert not peer.connection._decoder.is_static
    peer.send(ACKNOWLEDGED)
    encoder.header_table_size = 0
    for stream in (7, 9, 11):
        peer.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, encoder.encode(fields)))
    assert peer.connection._decoder.is_static
    expected = repr([(b"name", b"value"), (b"other", b"value")]).encode()
    assert peer.answers() == dict.fromkeys((1, 3, 5, 7, 9, 11), expected)


@simulated
async def test_blocks_of_reset_and_refused_streams_keep_the_table_right() -> None:
    peer = Peer(seen, Bounds(pending=1)).send(HELLO)
    encoder = Encoder()
    peer.send(frame(HEADERS, END_HEADERS, 1, encoder.encode(FIELDS)))
    peer.send(frame(HEADERS, END_HEADERS, 3, encoder.encode([*FIELDS, (b"refused", b"yes")])))  # above the bound
    peer.send(frame(HEADERS, END_HEADERS | END_STREAM, 3, encoder.encode([(b"late", b"trailer")])))  # ignored
    peer.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, encoder.encode([(b"Malformed", b"trailer")])))
    assert [sent.code for sent in peer.frames() if sent.kind == RST_STREAM] == [REFUSED_STREAM, 1]
    fields = [*FIELDS, (b"refused", b"yes"), (b"late", b"trailer")]
    peer.send(frame(HEADERS, END_HEADERS | END_STREAM, 5, encoder.encode(fields)))
    assert peer.answers() == {5: repr(fields[4:]).encode()}


def seen(request: Http2Request) -> Http2Answer:
    return HEAD, repr(request.head.headers).encode(), TRAILERS


# Tasks and streams


@simulated
async def test_answers_that_take_time_overtake_each_other() -> None:
    peer = Peer().begin()
    peer.send(request(1, b"slow", LATER), request(3, b"quick"))
    assert peer.answers() == {3: b"quick"}
    await asyncio.sleep(2)
    assert peer.answers() == {1: b"slow"}


@simulated
async def test_a_reset_cancels_the_task() -> None:
    peer = Peer().begin()
    peer.send(request(1, fields=NEVER), request(3, fields=NEVER))
    peer.send(reset(1, CANCEL))
    await asyncio.sleep(1)
    assert list(peer.connection._tasks.values()) == [3]
    assert peer.answers() == {}


@simulated
async def test_a_request_that_is_reset_at_once_leaves_no_task() -> None:
    """Its coroutine has taken its first step before it is cancelled: nothing is left that was never awaited."""
    peer = Peer().begin()
    peer.send(request(1, fields=NEVER), reset(1, CANCEL))
    await asyncio.sleep(1)
    assert peer.connection._tasks == {}
    assert peer.is_open()


@simulated
async def test_streams_above_the_bound_are_refused_and_may_be_tried_again() -> None:
    peer = Peer(bounds=Bounds(pending=2)).begin()
    peer.send(request(1, b"one", LATER), headers(3), request(5), request(7))
    assert [(sent.stream, sent.code) for sent in peer.frames() if sent.kind == RST_STREAM] == [
        (5, REFUSED_STREAM),
        (7, REFUSED_STREAM),
    ]
    peer.send(frame(DATA, END_STREAM, 3, b"three"))
    peer.send(request(9, b"nine"))
    assert peer.answers() == {3: b"three", 9: b"nine"}


@simulated
async def test_tasks_that_do_not_end_when_cancelled_count_as_streams() -> None:
    """Else a peer could start any number of them, by resetting each stream."""

    async def stubborn() -> Any:
        try:
            await asyncio.sleep(1e9)
        except asyncio.CancelledError:
            await asyncio.sleep(5)
        return HEAD, b"", None

    peer = Peer(lambda request: stubborn(), Bounds(pending=2)).begin()
    for stream in (1, 3):
        peer.send(request(stream))
        await asyncio.sleep(0.1)
        peer.send(reset(stream, CANCEL))
    await asyncio.sleep(1)
    peer.send(request(5))
    assert peer.reset_with(5) == [REFUSED_STREAM]
    await asyncio.sleep(10)
    peer.send(request(7))
    assert peer.reset_with(7) == []


@simulated
async def test_a_handler_that_raises_resets_its_stream_only() -> None:
    peer = Peer().begin()
    peer.send(request(1, fields=with_path(b"/wrong")), request(3, fields=with_path(b"/wrong-later")))
    await asyncio.sleep(1)
    assert {sent.stream: sent.code for sent in peer.frames() if sent.kind == RST_STREAM} == {
        1: INTERNAL_ERROR,
        3: INTERNAL_ERROR,
    }
    assert peer.is_open()


@simulated
async def test_unfinished_bodies_of_a_connection_are_bounded() -> None:
    peer = Peer(bounds=Bounds(body=1000)).begin()
    for stream in (1, 3, 5):
        peer.send(headers(stream), frame(DATA, 0, stream, bytes(900)))
    assert peer.reset_with(5) == [ENHANCE_YOUR_CALM]
    peer.send(frame(DATA, END_STREAM, 1, b"end"), frame(DATA, END_STREAM, 3, b"end"))
    assert peer.answers() == {1: bytes(900) + b"end", 3: bytes(900) + b"end"}
    assert peer.connection._held == 0


@simulated
async def test_the_streams_whose_frames_are_forgiven_are_bounded() -> None:
    peer = Peer(bounds=Bounds(pending=0)).begin()
    peer.send(*(headers(stream) for stream in range(1, 2 * FORGIVEN + 21, 2)))
    assert len(peer.connection._forgiven) == FORGIVEN


# Flow control: what the peer may send


@simulated
async def test_the_window_of_the_connection_is_given_back() -> None:
    peer = Peer().begin()
    given = spent = 0
    for stream in range(1, 401, 2):
        peer.send(headers(stream), frame(DATA, END_STREAM, stream, bytes(16000)), window_update(0, 16000))
        spent += 16000
        given += sum(updates(peer.frames(), 0))
        assert RECEIVE_WINDOW // 2 <= RECEIVE_WINDOW + given - spent <= RECEIVE_WINDOW


@simulated
async def test_the_window_is_given_back_for_streams_that_are_ignored() -> None:
    peer = Peer().begin()
    peer.send(headers(1), window_update(1, 0))
    peer.send(frame(DATA, 0, 1, bytes(16384)) * 40)
    assert updates(peer.frames(), 0) == [RECEIVE_WINDOW // 2]


@simulated
async def test_padding_is_given_back_to_the_stream() -> None:
    peer = Peer().begin()
    peer.send(headers(1), *[frame(DATA, PADDED, 1, b"\xffx" + bytes(255))] * 100)
    assert sum(updates(peer.frames(), 1)) > 20_000
    peer.send(frame(DATA, END_STREAM, 1))
    assert peer.answers() == {1: b"x" * 100}


def updates(frames: list[Sent], stream: int) -> list[int]:
    return [NUMBER.unpack(sent.payload)[0] for sent in frames if sent.kind == WINDOW_UPDATE and sent.stream == stream]


# Flow control: what the peer lets us send


def big(size: int) -> Callable[[Http2Request], Http2Answer]:
    return lambda request: (HEAD, bytes(size), TRAILERS)


def data_sent(frames: list[Sent], stream: int) -> int:
    return sum(len(sent.payload) for sent in frames if sent.kind == DATA and sent.stream == stream)


@simulated
async def test_an_answer_waits_for_the_window_of_its_stream() -> None:
    peer = Peer(big(100)).begin()
    peer.send(settings({4: 10}), request(1))
    assert data_sent(peer.frames(), 1) == 10
    peer.send(window_update(1, 80))
    assert data_sent(peer.frames(), 1) == 80
    peer.send(window_update(1, 1000))
    *_, data, trailers = peer.frames()
    assert len(data.payload) == 10
    assert (trailers.kind, trailers.flags, trailers.payload) == (HEADERS, END_HEADERS | END_STREAM, TRAILERS.block)
    assert peer.connection._streams == {}


@simulated
async def test_an_answer_waits_for_the_window_of_the_connection() -> None:
    peer = Peer(big(40_000)).begin()
    peer.send(request(1), request(3))
    frames = peer.frames()
    assert (data_sent(frames, 1), data_sent(frames, 3)) == (40_000, 25_535)
    peer.send(window_update(0, 14_464))
    assert data_sent(peer.frames(), 3) == 14_464
    peer.send(window_update(0, 1))
    assert len(peer.answers()) == 1


@simulated
async def test_a_window_that_becomes_negative_has_to_be_filled_first() -> None:
    peer = Peer(big(100)).begin()
    peer.send(settings({4: 60}), request(1))
    assert data_sent(peer.frames(), 1) == 60
    peer.send(settings({4: 20}), window_update(1, 40))  # -40, then 0
    assert data_sent(peer.frames(), 1) == 0
    peer.send(window_update(1, 1))
    assert data_sent(peer.frames(), 1) == 1
    peer.send(settings({4: 59}))
    assert peer.answers() == {1: bytes(39)}


@simulated
async def test_window_that_was_given_before_the_answer_counts() -> None:
    peer = Peer(big(100)).begin()
    peer.send(settings({4: 0}), headers(1), window_update(1, 100), frame(DATA, END_STREAM, 1))
    assert peer.answers() == {1: bytes(100)}


@simulated
async def test_a_long_answer_is_cut_into_frames() -> None:
    peer = Peer(big(40_000)).begin()
    peer.send(request(1))
    assert [len(sent.payload) for sent in peer.frames() if sent.kind == DATA] == [16384, 16384, 7232]


@simulated
async def test_a_small_answer_does_not_wait_for_a_large_one() -> None:
    peer = Peer(lambda request: (HEAD, request.body * 10, TRAILERS)).begin()
    peer.send(settings({4: 100}), request(1, bytes(50)), request(3, bytes(5)))
    assert peer.answers() == {3: bytes(50)}


@simulated
async def test_an_answer_that_waits_for_window_can_be_reset() -> None:
    peer = Peer(big(100)).begin()
    peer.send(settings({4: 10}), request(1), reset(1, CANCEL), settings({4: 1000}))
    assert data_sent(peer.frames(), 1) == 10
    assert peer.connection._blocked == {}


@simulated
async def test_an_answer_without_trailers_ends_with_its_head() -> None:
    peer = Peer().begin()
    peer.send(request(1, fields=with_path(b"/bare")))
    assert peer.frames() == [Sent(HEADERS, END_HEADERS | END_STREAM, 1, HEAD.block)]


# Slow and idle peers


def expired(peer: Peer, after: float) -> None:
    peer.connections.expire(seconds() + after)


@simulated
async def test_a_peer_that_does_not_begin_is_closed() -> None:
    await asyncio.sleep(100)
    peer = Peer()
    peer.frames()
    expired(peer, 9)
    assert peer.goaway() is None
    expired(peer, 11)
    said = peer.goaway()
    assert said is not None
    assert said.code == SETTINGS_TIMEOUT


@simulated
async def test_a_peer_that_does_not_acknowledge_the_settings_is_closed() -> None:
    peer = Peer()
    peer.send(HELLO)
    peer.frames()
    expired(peer, 11)
    said = peer.goaway()
    assert said is not None
    assert said.code == SETTINGS_TIMEOUT


@pytest.mark.parametrize(
    "part",
    [
        request(1)[:5],
        request(1)[:-1],
        frame(HEADERS, 0, 1, block()),
        frame(HEADERS, 0, 1, block()) + frame(CONTINUATION, 0, 1)[:3],
    ],
    ids=["a frame's head", "a frame", "a header block", "CONTINUATION"],
)
def test_a_peer_that_sends_slowly_is_closed(part: bytes) -> None:
    async def main() -> None:
        peer = Peer().begin()
        peer.send(part)
        expired(peer, 9)
        assert peer.goaway() is None
        expired(peer, 11)
        assert peer.goaway() is not None
        assert not peer.is_open()

    run(main())


@simulated
async def test_drops_do_not_keep_a_frame_alive_but_whole_frames_do() -> None:
    peer = Peer().begin()
    whole = frame(PRIORITY, 0, 1, bytes(5))
    for _ in range(20):
        peer.send(whole, whole[:3])
        await asyncio.sleep(1)
        peer.connections.expire(seconds())
        peer.send(whole[3:])
    assert peer.goaway() is None
    for drop in request(1, bytes(1000))[:20]:
        peer.send(bytes((drop,)))
        await asyncio.sleep(1)
        peer.connections.expire(seconds())
    assert peer.goaway() is not None


@simulated
async def test_a_request_that_is_not_completed_is_reset_and_others_go_on() -> None:
    peer = Peer().begin()
    peer.send(headers(1), frame(DATA, 0, 1, b"x"), request(3, b"slow", NEVER))
    expired(peer, 11)
    assert [(sent.stream, sent.code) for sent in peer.frames() if sent.kind == RST_STREAM] == [(1, CANCEL)]
    assert peer.connection._held == 0
    assert peer.is_open()


@simulated
async def test_an_answer_that_is_given_no_window_is_reset() -> None:
    peer = Peer(big(100)).begin()
    peer.send(settings({4: 10}), request(1))
    expired(peer, 11)
    assert peer.reset_with(1) == [CANCEL]
    assert peer.connection._blocked == {}


@simulated
async def test_an_idle_peer_is_closed_although_it_pings() -> None:
    peer = Peer().begin()
    peer.send(request(1))
    await asyncio.sleep(70)
    peer.send(frame(PING, 0, 0, bytes(8)))
    peer.connections.expire(seconds())
    assert peer.goaway() is None
    await asyncio.sleep(6)
    peer.connections.expire(seconds())
    said = peer.goaway()
    assert said is not None
    assert said.code == NO_ERROR


@simulated
async def test_a_peer_that_waits_for_an_answer_is_not_idle() -> None:
    peer = Peer().begin()
    peer.send(request(1, fields=NEVER))
    expired(peer, 1000)
    assert peer.goaway() is None


@simulated
async def test_a_peer_that_does_not_read_is_not_read_from_and_then_closed() -> None:
    peer = Peer().begin()
    peer.connection.pause_writing()
    assert not peer.wire.is_reading
    expired(peer, 9)
    assert not peer.wire.is_aborted
    peer.connection.resume_writing()
    assert peer.wire.is_reading
    peer.connection.pause_writing()
    expired(peer, 11)
    assert peer.wire.is_aborted
    await end(peer)
    assert peer.is_clean()


@pytest.mark.parametrize(("count", "size"), [(50, 300_000), (5000, 100)], ids=["long answers", "many answers"])
def test_what_a_peer_does_not_read_is_not_made_yet(count: int, size: int) -> None:
    """One read may bring thousands of requests: the rest of them waits until their answers can be written."""

    async def main() -> None:
        peer = Peer(big(size)).begin()
        peer.wire.room = 50_000
        peer.send(settings({4: 2**31 - 1}), window_update(0, 2**31 - 1 - 65535))
        peer.frames()
        peer.send(*(request(2 * i + 1) for i in range(count)))
        answered: dict[int, bytes] = {}
        turns = 0
        parts: dict[int, int] = {}
        while not peer.wire.is_reading:
            assert peer.wire.unread < 200_000
            peer.wire.drain()
            turns += 1
        for sent in peer.frames():
            if sent.kind == DATA:
                parts[sent.stream] = parts.get(sent.stream, 0) + len(sent.payload)
            elif sent.flags & END_STREAM:
                answered[sent.stream] = b""
        assert turns > 5
        assert parts == {2 * i + 1: size for i in range(count)}
        assert len(answered) == count
        assert peer.connection._streams == peer.connection._blocked == {}

    run(main())


# The end


@simulated
async def test_finishing_answers_what_was_accepted_and_ignores_what_comes_later() -> None:
    peer = Peer().begin()
    peer.send(request(1, b"one", LATER), headers(3))
    peer.connection.finish()
    peer.connection.finish()
    ping, said = peer.frames()
    assert (said.kind, said.code, last_stream(said)) == (GOAWAY, NO_ERROR, MAX_WINDOW)
    peer.send(frame(PING, ACK, 0, ping.payload))
    (said,) = peer.frames()
    assert (said.kind, said.code, last_stream(said)) == (GOAWAY, NO_ERROR, 3)
    peer.send(request(5, b"five"), headers(7), headers(7, END_HEADERS | END_STREAM, ((b"a", b"b"),)))
    peer.send(frame(DATA, END_STREAM, 3, b"three"))
    assert peer.answers() == {3: b"three"}
    assert not peer.wire.is_ended
    await asyncio.sleep(1.5)
    assert peer.answers() == {1: b"one"}
    assert peer.wire.is_ended
    assert not peer.wire.is_closing()  # the peer may have sent more: a reset would take its last answer away
    await asyncio.sleep(LINGER)
    assert peer.wire.is_closing()
    assert peer.is_clean()


@simulated
async def test_requests_that_were_on_their_way_when_the_server_stops_are_answered() -> None:
    peer = Peer().begin()
    peer.send(request(1))
    peer.connection.finish()
    *_, ping, _ = peer.frames()
    peer.send(request(3, b"on its way"), frame(PING, ACK, 0, ping.payload), request(5, b"too late"))
    frames = peer.frames()
    assert [last_stream(sent) for sent in frames if sent.kind == GOAWAY] == [3]
    assert [sent.payload for sent in frames if sent.kind == DATA] == [b"on its way"]
    assert peer.wire.is_ended


@simulated
async def test_a_peer_that_does_not_answer_the_last_ping_is_not_waited_for_long() -> None:
    peer = Peer().begin()
    peer.connection.finish()
    peer.frames()
    peer.send(frame(PING, ACK, 0, bytes(8)))  # another one
    await asyncio.sleep(LAST_CALL / 2)
    peer.send(request(1, b"on its way"))
    assert peer.answers() == {1: b"on its way"}
    await asyncio.sleep(LAST_CALL)
    assert [last_stream(sent) for sent in peer.frames()] == [1]
    assert peer.wire.is_ended


@simulated
async def test_a_request_to_an_idle_connection_that_is_being_closed_is_answered() -> None:
    peer = Peer().begin()
    peer.send(request(1))
    await asyncio.sleep(76)
    peer.connections.expire(seconds())
    peer.frames()
    peer.send(request(3, b"just in time"))
    assert peer.answers() == {3: b"just in time"}
    await asyncio.sleep(LAST_CALL + LINGER + 1)
    assert peer.is_clean()


@simulated
async def test_the_last_accepted_stream_keeps_its_errors_while_finishing() -> None:
    peer = Peer().begin()
    peer.send(request(1, fields=NEVER), request(3))
    peer.connection.finish()
    peer.send(frame(DATA, 0, 3, b"x"))
    assert peer.reset_with(3) == [STREAM_CLOSED]


@simulated
async def test_stopping_ends_idle_connections_and_waits_for_busy_ones() -> None:
    connections = Connections(Bounds())
    idle = Peer(connections=connections).begin()
    busy = Peer(connections=connections).begin()
    busy.send(request(1, b"one", LATER))
    await connections.stop(30)
    assert busy.answers() == {1: b"one"}
    assert idle.is_clean()
    assert busy.is_clean()
    assert seconds() < 5


@simulated
async def test_stopping_aborts_what_does_not_end() -> None:
    connections = Connections(Bounds())
    peer = Peer(connections=connections).begin()
    peer.send(request(1, fields=NEVER))
    await connections.stop(3)
    await end(peer)
    assert peer.wire.is_aborted
    assert peer.is_clean()


@simulated
async def test_a_peer_that_ends_its_side_gets_its_answers() -> None:
    peer = Peer().begin()
    peer.send(request(1, b"one", LATER))
    assert peer.connection.eof_received()
    await asyncio.sleep(2)
    assert peer.answers() == {1: b"one"}
    assert peer.wire.is_closing()
    assert peer.is_clean()


@simulated
async def test_a_peer_that_ends_its_side_without_a_request_is_closed() -> None:
    assert not Peer().begin().connection.eof_received()


@simulated
async def test_a_lost_connection_cancels_its_tasks() -> None:
    peer = Peer().begin()
    peer.send(request(1, fields=NEVER), headers(3), frame(DATA, 0, 3, b"x"))
    await end(peer)
    assert peer.is_clean()


@simulated
async def test_an_error_of_the_connection_cancels_its_tasks() -> None:
    peer = Peer().begin()
    peer.send(request(1, fields=NEVER), window_update(0, 0))
    await asyncio.sleep(0.1)
    assert peer.connection._tasks == {}
    peer.send(request(3))
    assert [sent.kind for sent in frames_of(peer.wire.written)][-1] == GOAWAY
    expired(peer, 11)
    await end(peer)
    assert peer.is_clean()


@simulated
async def test_the_floods_of_another_second_are_forgiven() -> None:
    peer = Peer().begin()
    for _ in range(5):
        peer.send(frame(PING, 0, 0, bytes(8)) * 150)
        await asyncio.sleep(1.01)
    assert peer.is_open()


@simulated
async def test_a_preface_may_come_byte_by_byte() -> None:
    peer = Peer(echo)
    peer.send(PREFACE + frame(SETTINGS, 0, 0), ACKNOWLEDGED, request(1), size=1)
    assert peer.answers() == {1: b"hello"}


@simulated
async def test_stream_ids_that_are_left_out_allow_for_no_pings() -> None:
    peer = Peer().begin()
    peer.send(request(1), request(2_000_001), frame(PING, 0, 0, bytes(8)) * 1000)
    sent = peer.goaway()
    assert sent is not None
    assert sent.code == ENHANCE_YOUR_CALM


@simulated
async def test_settings_of_one_frame_are_bounded() -> None:
    peer = Peer().begin()
    peer.send(frame(SETTINGS, 0, 0, SETTING.pack(4, 100) * MAX_SETTINGS))
    assert peer.is_open()
    peer.send(frame(SETTINGS, 0, 0, SETTING.pack(4, 100) * (MAX_SETTINGS + 1)))
    sent = peer.goaway()
    assert sent is not None
    assert sent.code == ENHANCE_YOUR_CALM


@simulated
async def test_large_heads_of_open_requests_are_bounded_and_small_ones_are_not() -> None:
    peer = Peer(bounds=Bounds(head=8192)).begin()
    large = (*FIELDS, (b"large", bytes(7000).replace(b"\0", b"x")))
    peer.send(*(headers(2 * place + 1, fields=large) for place in range(255)))
    held = sum(stream.head.size for stream in peer.connection._streams.values())
    assert 8192 * (HELD_HEADS - 1) < held <= 8192 * (HELD_HEADS + 1)
    assert {sent.code for sent in peer.frames() if sent.kind == RST_STREAM} == {REFUSED_STREAM}
    assert peer.is_open()
    peer = Peer().begin()
    peer.send(*(headers(2 * place + 1) for place in range(255)))
    assert len(peer.connection._streams) == 255


@simulated
async def test_a_stream_without_a_window_of_its_own_is_not_looked_at_for_other_windows() -> None:
    peer = Peer(big(100)).begin()
    peer.send(settings({4: 0}), *(request(2 * place + 1) for place in range(200)))
    assert len(peer.connection._streams) == 200
    assert peer.connection._blocked == {}
    peer.send(window_update(399, 60), window_update(0, 1000))
    assert data_sent(peer.frames(), 399) == 60
    assert peer.connection._blocked == {}
    peer.send(settings({4: 100}))
    assert len(peer.answers()) == 200
    assert peer.connection._streams == {}


@simulated
async def test_streams_that_wait_for_the_connection_are_sent_in_order() -> None:
    peer = Peer(big(65_535)).begin()
    peer.send(request(1), request(3), request(5))
    assert list(peer.answers()) == [1]
    assert list(peer.connection._blocked) == [3, 5]
    peer.send(window_update(0, 65_536))
    assert [sent.stream for sent in peer.frames()][-1] == 5
    assert list(peer.connection._blocked) == [5]
    peer.send(window_update(0, 65_534))
    assert list(peer.answers()) == [5]
    assert peer.connection._blocked == {}


@simulated
async def test_resets_of_callers_that_could_not_wait_are_no_flood() -> None:
    peer = Peer().begin()
    for turn in range(20):
        ids = range(turn * 200 + 1, turn * 200 + 201, 2)
        peer.send(*(request(stream, fields=NEVER) for stream in ids))
        await asyncio.sleep(0.02)
        peer.send(*(reset(stream, CANCEL) for stream in ids))
    assert peer.is_open()
    for stream in range(6001, 8401, 2):
        peer.send(request(stream, fields=NEVER) + reset(stream, CANCEL))
        await asyncio.sleep(0)
    sent = peer.goaway()
    assert sent is not None
    assert sent.code == ENHANCE_YOUR_CALM


@simulated
async def test_requests_that_can_never_be_completed_do_not_keep_a_connection_open() -> None:
    peer = Peer().begin()
    peer.send(headers(1), frame(DATA, 0, 1, b"x"), request(3, b"three", LATER))
    assert peer.connection.eof_received()
    assert list(peer.connection._streams) == [3]
    await asyncio.sleep(1.1)
    assert peer.answers() == {3: b"three"}
    peer = Peer().begin()
    peer.send(headers(1))
    assert not peer.connection.eof_received()


@simulated
async def test_table_size_updates_of_a_block_are_bounded_before_the_settings_are_acknowledged() -> None:
    for count, is_taken in ((2, True), (16_000, False)):
        peer = Peer().send(HELLO)
        peer.frames()
        peer.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x3f\xe1\x1f" * (count // 2) + b"\x20" * 2 + block()))
        assert (peer.goaway() is None) is is_taken
