"""One suite for all adapters: the same behaviours with httpx, requests, urllib3 and aiohttp, against a real server."""

import gzip
import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from email.utils import formatdate
from typing import Any

import pytest

from ratebound import RateLimited
from ratebound.client import (
    AsyncPacer,
    AsyncRepeatableBody,
    Backoff,
    CircuitBreaker,
    CircuitOpen,
    NotReplayable,
    Pacer,
    RepeatableBody,
    Retry,
    RetryBudget,
)
from ratebound.client.call_events import Attempted, BudgetExhausted, CircuitOpened, GaveUp, Paced, Retrying
from ratebound.testing import nothing_sleeps
from tests.client.callers import CALLERS, Body, Caller, OneShot, Upload
from tests.client.scripted_server import DONE, Play, Scripted, quota, refusals, scripted_server
from tests.http.vendor_server import answering
from tests.servers import HOST, free_port

AT_ONCE = {"Retry-After": "0"}
ASYNCHRONOUS = ("httpx async", "aiohttp")
READS_WHOLE_BODIES = ("requests", "urllib3")  # inside of the call; the others hand over the body as a stream
SOON = Retry(backoff=Backoff("none", first=0.001, most=0.001))
JSON = {"Content-Type": "application/json"}
LONG = 200_000  # bytes: more than is read of a refusal

Make = Callable[..., Caller]


@pytest.fixture(params=list(CALLERS))
def library(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(library: str) -> Iterator[Make]:
    """Return a function that makes a client. All are closed at the end."""
    with ExitStack() as stack:

        def made(**options: Any) -> Caller:
            caller = CALLERS[library](**options)
            stack.callback(caller.close)
            return caller

        yield made


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted_server() as running:
        yield running


@pytest.fixture
def no_sleep() -> Iterator[None]:
    with nothing_sleeps():
        yield


def pacer(library: str, *args: Any, **options: Any) -> Pacer | AsyncPacer:
    return AsyncPacer(*args, **options) if library in ASYNCHRONOUS else Pacer(*args, **options)


def of_kind(events: list[Any], kind: type) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


@pytest.mark.usefixtures("no_sleep")
def test_a_refusal_is_retried_after_the_seconds_that_it_names(make: Make, server: Scripted) -> None:
    server.plays(Play(429, {"Retry-After": "7"}))
    events: list[Any] = []
    assert make(listeners=[events.append]).call("GET", server.url).body == DONE
    assert len(server.received) == 2
    (retrying,) = of_kind(events, Retrying)
    assert retrying.server_wait == 7
    assert 7 <= retrying.wait <= 7.7 + 0.5


@pytest.mark.usefixtures("no_sleep")
def test_the_first_of_several_waits_counts(make: Make, server: Scripted) -> None:
    """A gateway may add its own line to that of the server."""
    server.plays(Play(429, {"Retry-After": "7", "retry-after": "9"}))
    events: list[Any] = []
    assert make(listeners=[events.append]).call("GET", server.url).status == 200
    assert of_kind(events, Retrying)[0].server_wait == 7


@pytest.mark.usefixtures("no_sleep")
def test_a_refusal_is_retried_at_the_date_that_it_names(make: Make, server: Scripted) -> None:
    now = time.time()
    server.plays(Play(429, {"Date": formatdate(now, usegmt=True), "Retry-After": formatdate(now + 25, usegmt=True)}))
    events: list[Any] = []
    assert make(listeners=[events.append]).call("GET", server.url).status == 200
    assert of_kind(events, Retrying)[0].server_wait == 25


@pytest.mark.usefixtures("no_sleep")
@pytest.mark.parametrize("status", [502, 503, 504, 529])
def test_a_server_in_trouble_is_asked_again(make: Make, server: Scripted, status: int) -> None:
    server.plays(status, status)
    assert make().call("GET", server.url).status == 200
    assert len(server.received) == 3


@pytest.mark.usefixtures("no_sleep")
@pytest.mark.parametrize("status", [400, 401, 404, 500])
def test_other_statuses_are_returned_as_they_are(make: Make, server: Scripted, status: int) -> None:
    server.plays(Play(status, body=b"no"))
    reply = make().call("GET", server.url)
    assert (reply.status, reply.body, len(server.received)) == (status, b"no", 1)


def test_a_server_that_refuses_connections_is_tried_again(make: Make) -> None:
    events: list[Any] = []
    caller = make(listeners=[events.append], retry=Retry(attempts=3, backoff=SOON.backoff))
    with pytest.raises(caller.errors) as raised:
        caller.call("POST", f"http://{HOST}:{free_port()}")
    assert [(event.attempt, event.error) for event in of_kind(events, Attempted)] == [
        (1, "connect"),
        (2, "connect"),
        (3, "connect"),
    ]
    assert of_kind(events, GaveUp)[0].obstacle == "attempts"
    assert any("3 attempts" in note for note in getattr(raised.value, "__notes__", []))


@pytest.mark.parametrize("body", [b"whole", OneShot(b"wh", b"ole")])
def test_a_server_that_starts_late_gets_the_whole_request(make: Make, body: Body) -> None:
    """Nothing was sent before, so a body that can be read once is still whole."""
    port = free_port()
    with ExitStack() as stack:
        servers: list[Scripted] = []

        def start(event: Any) -> None:
            if isinstance(event, Retrying):
                servers.append(stack.enter_context(scripted_server(port=port)))

        caller = make(listeners=[start], retry=SOON)
        assert caller.call("POST", f"http://{HOST}:{port}", body=body).status == 200
        assert servers[0].bodies() == [b"whole"]


def test_a_connection_that_is_reset_is_tried_again(make: Make, server: Scripted) -> None:
    server.plays(Play(cut="before"), Play(cut="before"))
    assert make(retry=SOON).call("GET", server.url).status == 200
    assert len(server.received) == 3


def test_attempts_after_resets_are_bounded(make: Make, server: Scripted) -> None:
    """No library retries once more below or above ours."""
    server.always(Play(cut="before"))
    caller = make(retry=Retry(attempts=2, backoff=SOON.backoff))
    with pytest.raises(caller.errors):
        caller.call("GET", server.url)
    assert len(server.received) == 2


def test_an_answer_that_breaks_off(make: Make, library: str, server: Scripted) -> None:
    server.plays(Play(body=b"x" * 1000, cut="middle"))
    caller = make(retry=SOON)
    if library in READS_WHOLE_BODIES:
        assert caller.call("GET", server.url).body == DONE
        assert len(server.received) == 2
    else:
        with pytest.raises(caller.errors):
            caller.call("GET", server.url)
        assert len(server.received) == 1


def test_a_post_is_not_repeated_after_a_reset(make: Make, server: Scripted) -> None:
    server.plays(Play(cut="before"))
    events: list[Any] = []
    caller = make(retry=SOON, listeners=[events.append])
    with pytest.raises(caller.errors):
        caller.call("POST", server.url, body=b"pay")
    assert server.bodies() == [b"pay"]
    assert of_kind(events, GaveUp)[0].obstacle == "method"


@pytest.mark.usefixtures("no_sleep")
def test_a_post_with_an_idempotency_key_is_repeated_with_it(make: Make, server: Scripted) -> None:
    server.plays(Play(cut="before"), 503)
    reply = make().call("POST", server.url, body=b"pay", headers={"Idempotency-Key": "k-1"})
    assert reply.status == 200
    assert [(request.header("Idempotency-Key"), request.body) for request in server.received] == [("k-1", b"pay")] * 3


@pytest.mark.usefixtures("no_sleep")
def test_a_key_that_is_added_is_the_same_in_all_attempts_of_a_call(make: Make, server: Scripted) -> None:
    server.plays(503, 503)
    caller = make(idempotency_key=True)
    assert [caller.call("POST", server.url, body=b"pay").status for _ in range(2)] == [200, 200]
    keys = [request.header("Idempotency-Key") for request in server.received]
    assert len(keys) == 4
    assert keys[0] == keys[1] == keys[2]
    assert len({None, *keys}) == 3


@pytest.mark.usefixtures("no_sleep")
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (lambda: b"whole", b"whole"),
        (lambda: io.BytesIO(b"whole" * 1000), b"whole" * 1000),
        (lambda: RepeatableBody(lambda: (part for part in (b"wh", b"ole"))), b"whole"),
        (lambda: None, b""),
    ],
    ids=["bytes", "file", "repeatable", "none"],
)
def test_a_body_is_sent_in_full_each_time(
    make: Make, library: str, server: Scripted, body: Callable[[], Body], expected: bytes
) -> None:
    if library == "httpx async" and isinstance(body(), io.BytesIO):
        pytest.skip("httpx.AsyncClient accepts no synchronous body")
    server.plays(*refusals(2))
    given = body()
    if library in ASYNCHRONOUS and isinstance(given, RepeatableBody):
        given = AsyncRepeatableBody(lambda: (part for part in (b"wh", b"ole")))
    assert make().call("POST", server.url, body=given).status == 200
    assert server.bodies() == [expected] * 3


@pytest.mark.usefixtures("no_sleep")
def test_a_form_with_a_file_is_sent_in_full_each_time(make: Make, server: Scripted) -> None:
    server.plays(*refusals(2))
    assert make().call("POST", server.url, body=Upload("value", b"content" * 1000)).status == 200
    first, *others = server.bodies()
    assert others == [first] * 2
    assert b"content" * 1000 in first
    assert b"value" in first


@pytest.mark.usefixtures("no_sleep")
def test_a_body_that_can_be_read_once_is_not_retried_and_the_reason_is_told(make: Make, server: Scripted) -> None:
    server.plays(*refusals(1))
    events: list[Any] = []
    reply = make(listeners=[events.append]).call("POST", server.url, body=OneShot(b"a", b"b"))
    assert (reply.status, reply.body) == (429, b"slow down")
    assert server.bodies() == [b"ab"]
    (gave_up,) = of_kind(events, GaveUp)
    assert gave_up.obstacle == "body"
    assert isinstance(gave_up.explanation, NotReplayable)
    assert "RepeatableBody" in str(gave_up.explanation)


@pytest.mark.usefixtures("no_sleep")
def test_attempts_bound_a_call(make: Make, server: Scripted) -> None:
    server.always(Play(429, AT_ONCE, b"no"))
    reply = make(retry=Retry(attempts=2)).call("GET", server.url)
    assert (reply.status, reply.body, len(server.received)) == (429, b"no", 2)


def test_time_bounds_a_call(make: Make, server: Scripted) -> None:
    """A wait that does not end in time is not begun."""
    server.always(Play(429, {"Retry-After": "3600"}, b"no"))
    events: list[Any] = []
    reply = make(retry=Retry(within=5.0), listeners=[events.append]).call("GET", server.url)
    assert (reply.status, len(server.received)) == (429, 1)
    assert of_kind(events, GaveUp)[0].obstacle == "within"


def test_without_a_retry_nothing_is_retried(make: Make, server: Scripted) -> None:
    server.plays(503)
    assert make(retry=None).call("GET", server.url).status == 503
    assert len(server.received) == 1


@pytest.mark.usefixtures("no_sleep")
def test_all_calls_share_a_budget_of_retries(make: Make, server: Scripted) -> None:
    server.always(Play(503))
    events: list[Any] = []
    caller = make(budget=RetryBudget(0.0, floor=2), breaker=None, listeners=[events.append])
    assert [caller.call("GET", server.url).status for _ in range(5)] == [503] * 5
    assert len(server.received) == 5 + 2
    assert len(of_kind(events, BudgetExhausted)) == 5


def test_an_api_that_is_down_is_not_called(make: Make, server: Scripted) -> None:
    server.always(503)
    events: list[Any] = []
    breaker = CircuitBreaker(failures=2, interval=3600)
    caller = make(retry=None, breaker=breaker, pacer=None, listeners=[events.append])
    assert [caller.call("GET", server.url).status for _ in range(2)] == [503, 503]
    with pytest.raises(CircuitOpen) as raised:
        caller.call("GET", server.url)
    assert isinstance(raised.value, caller.errors)
    assert raised.value.origin == server.url
    assert server.url in str(raised.value)
    assert raised.value.retry_after > 0
    assert len(server.received) == 2
    assert len(of_kind(events, CircuitOpened)) == 1


@pytest.mark.usefixtures("no_sleep")
def test_listeners_are_told_what_happens_and_no_secrets(make: Make, server: Scripted) -> None:
    server.plays(*refusals(1))
    events: list[Any] = []
    headers = {"Authorization": "Bearer s3cret", "Cookie": "s3cret"}
    make(listeners=[events.append]).call("GET", f"{server.url}/s3cret?token=s3cret", headers=headers)
    kinds = [type(event) for event in events if not isinstance(event, Paced)]
    assert kinds == [Attempted, Retrying, Attempted]
    assert [event.status for event in of_kind(events, Attempted)] == [429, 200]
    assert "s3cret" not in repr(events)
    assert server.received[1].header("Authorization") == "Bearer s3cret"


def test_a_listener_that_fails_does_not_fail_the_call(make: Make, server: Scripted) -> None:
    def listener(event: object) -> None:
        raise RuntimeError("of a listener")

    assert make(listeners=[listener]).call("GET", server.url).status == 200


def test_a_configured_limit_is_kept(make: Make, library: str, server: Scripted) -> None:
    caller = make(pacer=pacer(library, "2/hour"), retry=Retry(within=1.0))
    assert [caller.call("GET", server.url).status for _ in range(2)] == [200, 200]
    with pytest.raises(RateLimited):
        caller.call("GET", server.url)
    assert len(server.received) == 2


def test_calls_wait_for_their_turn(make: Make, library: str, server: Scripted) -> None:
    events: list[Any] = []
    caller = make(pacer=pacer(library, "20/second burst 1"), listeners=[events.append])
    begin = time.monotonic()
    for _ in range(4):
        caller.call("GET", server.url)
    assert time.monotonic() - begin >= 3 / 20
    assert of_kind(events, Paced)


def test_a_call_that_has_its_turn_at_once_is_no_wait(make: Make, server: Scripted) -> None:
    events: list[Any] = []
    caller = make(listeners=[events.append])
    for _ in range(5):
        caller.call("GET", server.url)
    assert all(event.seconds >= 0.001 for event in of_kind(events, Paced))


def test_a_limit_is_learned_from_headers(make: Make, server: Scripted) -> None:
    server.plays(Play(200, quota(2, 1, 1000)), Play(200, quota(2, 0, 1000)))
    caller = make(retry=Retry(within=1.0))
    assert [caller.call("GET", server.url).status for _ in range(2)] == [200, 200]
    with pytest.raises(RateLimited):
        caller.call("GET", server.url)
    assert len(server.received) == 2


def test_a_stream_stays_a_stream(make: Make, server: Scripted) -> None:
    """Each part is there before the next one is sent."""
    server.plays(Play(503, AT_ONCE), Play(parts=(b"one", b"two", b"three")))
    seen: list[bytes] = []

    def on_part(part: bytes) -> None:
        seen.append(part)
        server.let_go()

    server.let_go()
    assert make(retry=SOON).stream(server.url, on_part, parts=3) == 200
    assert seen == [b"one", b"two", b"three"]


def test_a_stream_that_is_left_gives_its_connection_up(make: Make, server: Scripted) -> None:
    server.plays(Play(parts=(b"one", b"two")))
    caller = make(retry=SOON)
    server.let_go()
    seen: list[bytes] = []
    assert caller.stream(server.url, seen.append, parts=1) == 200
    assert seen == [b"one"]
    assert caller.call("GET", server.url).body == DONE


@pytest.mark.usefixtures("no_sleep")
def test_the_connection_of_a_refusal_is_used_again(make: Make, server: Scripted) -> None:
    server.plays(*refusals(2, headers={**AT_ONCE, **JSON}), *refusals(1))
    caller = make()
    assert caller.call("GET", server.url).status == 200
    assert server.connections == 1


@pytest.mark.usefixtures("no_sleep")
def test_a_long_refusal_of_a_stream_is_not_read_to_its_end(make: Make, server: Scripted) -> None:
    server.plays(Play(503, AT_ONCE, b"x" * 20_000_000), Play(parts=(b"one",)))
    server.let_go()
    seen: list[bytes] = []
    assert make().stream(server.url, seen.append, parts=1) == 200
    assert (seen, server.connections) == ([b"one"], 2)


@pytest.mark.usefixtures("no_sleep")
@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("headers", [AT_ONCE, {**AT_ONCE, **JSON}], ids=["text", "json"])
def test_a_refusal_that_comes_drop_by_drop_is_not_waited_for(
    make: Make, server: Scripted, headers: dict[str, str], streamed: bool
) -> None:
    """The time-out of a read begins anew with every byte."""
    drops, done = 0, threading.Event()
    server.plays(Play(429, headers, parts=(b"x",) * 1000))

    def drip() -> None:
        nonlocal drops
        while drops < 300 and not done.wait(0.05):
            server.let_go()
            drops += 1

    dripping = threading.Thread(target=drip)
    dripping.start()
    try:
        seen: list[bytes] = []
        if streamed:
            assert make().stream(server.url, seen.append, parts=1) == 200
        else:
            seen.append(make().call("GET", server.url).body)
        assert b"".join(seen) == DONE
        assert drops < 300
    finally:
        done.set()
        dripping.join()


@pytest.mark.usefixtures("no_sleep")
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("length", [0, LONG])
def test_the_body_of_a_refusal_that_is_returned_is_whole(
    make: Make, server: Scripted, length: int, packed: bool
) -> None:
    """Its beginning was looked at: this server says that a retry is of no use."""
    padding = "".join(str(number) for number in range(length // 5))
    body = json.dumps({"error": {"code": "insufficient_quota", "type": "insufficient_quota"}, "padding": padding})
    sent = gzip.compress(body.encode()) if packed else body.encode()
    refusal = Play(429, {**JSON, **({"Content-Encoding": "gzip"} if packed else {})}, sent)
    server.plays(refusal, refusal._replace(body=b"", parts=(sent[: len(sent) // 2], sent[len(sent) // 2 :])))
    server.let_go(2)
    caller = make(retry=Retry(attempts=1))
    for _ in range(2):
        reply = caller.call("GET", server.url)
        assert (reply.status, reply.body.decode()) == (429, body)


@pytest.mark.usefixtures("no_sleep")
def test_a_streamed_refusal_that_is_returned_is_whole(make: Make, server: Scripted) -> None:
    body = json.dumps({"error": {"code": "insufficient_quota"}, "padding": "x" * LONG}).encode()
    server.plays(Play(429, JSON, body))
    seen: list[bytes] = []
    assert make(retry=Retry(attempts=1)).stream(server.url, seen.append, parts=1_000_000) == 429
    assert b"".join(seen) == body


@pytest.mark.usefixtures("no_sleep")
def test_a_refusal_that_breaks_off_is_obeyed(make: Make, server: Scripted) -> None:
    server.plays(Play(429, {"Retry-After": "7"}, cut="middle"))
    events: list[Any] = []
    assert make(listeners=[events.append]).call("POST", server.url, body=b"whole").status == 200
    assert of_kind(events, Retrying)[0].server_wait == 7
    assert server.bodies() == [b"whole"] * 2


@pytest.mark.usefixtures("no_sleep")
def test_a_refusal_whose_encoding_is_broken_is_obeyed(make: Make, server: Scripted) -> None:
    server.plays(Play(429, {"Retry-After": "7", **JSON, "Content-Encoding": "gzip"}, b"no gzip"))
    events: list[Any] = []
    assert make(listeners=[events.append]).call("GET", server.url).status == 200
    assert of_kind(events, Retrying)[0].server_wait == 7


@pytest.mark.parametrize(
    "answer",
    [
        b"\x00\xff\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 5\r\n\r\nok",
    ],
    ids=["no HTTP", "no status", "two lengths"],
)
def test_an_answer_that_breaks_the_rules_of_http_is_a_failed_connection(make: Make, answer: bytes) -> None:
    events: list[Any] = []
    with answering(lambda request: answer) as server:
        caller = make(retry=Retry(attempts=2, backoff=SOON.backoff), listeners=[events.append])
        with pytest.raises(Exception, match=r"."):
            caller.call("GET", server.url)
        assert len(server.requests) == 2
    assert [event.error for event in of_kind(events, Attempted)] == ["closed", "closed"]


@pytest.mark.usefixtures("no_sleep")
def test_redirects_and_cookies_work_as_ever(make: Make, server: Scripted) -> None:
    server.plays(
        *refusals(1),
        Play(307, {"Location": "/moved", "Set-Cookie": "seen=yes; Path=/"}),
        *refusals(1),
    )
    caller = make()
    reply = caller.call("POST", f"{server.url}/first", body=b"body", headers={"Authorization": "Basic eDp5"})
    assert reply.status == 200
    assert [request.target for request in server.received] == ["/first", "/first", "/moved", "/moved"]
    assert server.bodies() == [b"body"] * 4
    assert {request.header("Authorization") for request in server.received} == {"Basic eDp5"}
    if caller.keeps_cookies:
        assert server.received[-1].header("Cookie") == "seen=yes"


@pytest.mark.usefixtures("no_sleep")
def test_a_head_request_is_retried(make: Make, server: Scripted) -> None:
    server.plays(Play(429, {**AT_ONCE, **JSON}, b"{}"))
    assert make().call("HEAD", server.url).status == 200
    assert len(server.received) == 2


@pytest.mark.parametrize(
    ("options", "named"),
    [({"max_retries": 3}, "max_retries"), ({"retry": 3}, "retry"), ({"pacer": "50/second"}, "pacer")],
)
def test_options_that_are_wrong_are_named(make: Make, library: str, options: dict[str, Any], named: str) -> None:
    if library == "urllib3" and named == "max_retries":
        pytest.skip("urllib3 names unknown options at the first request")
    with pytest.raises(TypeError, match=named):
        make(**options)


def test_calls_of_many_threads_share_one_client(make: Make, library: str, server: Scripted) -> None:
    if library in ASYNCHRONOUS:
        pytest.skip("a client of an asynchronous library belongs to one event loop")
    caller = make(retry=SOON, budget=None, breaker=None)
    server.plays(*refusals(20, status=503))
    statuses: list[int] = []

    def work() -> None:
        for _ in range(5):
            statuses.append(caller.call("POST", server.url, body=b"whole").status)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(statuses) == 40
    assert len(server.received) >= 40
    assert set(server.bodies()) == {b"whole"}
