"""Runs over HTTP/1.1 against servers of every manner: each request has one answer or one error, and the run goes on."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ratebound.loadtest import exchange, pool
from ratebound.loadtest.addresses import LoadTestRefused, is_loopback
from ratebound.loadtest.answer import MAX_ADVICE, NO_ADVICE, Advised, Answers
from ratebound.loadtest.exchange import AdviceCache
from ratebound.loadtest.identities import Clients, parse_identity
from ratebound.loadtest.plan import LoadPlan, LoadTarget
from ratebound.loadtest.progress import LatencyHistogram, Progress
from ratebound.loadtest.run import run_load, run_load_here
from ratebound.loadtest.wake_up import WakeUp
from tests.loadtest.plans import ends, planned, ran
from tests.loadtest.scripted_server import OK, Connected, always, scripted
from tests.servers import HOST, free_port

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nTrailer: x\r\n\r\n"
HUGE = b"HTTP/1.1 200 OK\r\n" + b"A: " + b"x" * 1_000_000


def test_every_request_is_sent_once_and_answered() -> None:
    seen: list[Progress] = []
    with scripted() as server:
        run = run_load_here(
            planned(server.url, "200/s", 1.0, clients=Clients(4, [parse_identity("header:X-Key=key-{n}")])),
            on_progress=seen.append,
        )
    assert (run.due, run.sent, len(run.answers), ends(run)) == (200, 200, 200, {200: 200})
    assert run.ended_by == "schedule"
    keys = Counter(line for head in server.heads for line in head.split(b"\r\n") if line.startswith(b"X-Key"))
    assert keys == {b"X-Key: key-%d" % number: 50 for number in range(4)}
    assert Counter(answer.client for answer in run.answers) == {0: 50, 1: 50, 2: 50, 3: 50}
    assert sorted(answer.due for answer in run.answers) == [number / 200 for number in range(200)]
    assert all(answer.due <= answer.sent <= answer.done for answer in run.answers)
    assert len(seen) >= 2
    assert seen[-1].statuses == {200: 200}
    assert seen[-1].answered == 200
    assert 0 < seen[-1].p50 <= seen[-1].p99


def test_coordinated_omission_is_absent() -> None:
    """A server that stalls for a second delays every request that is due in it; all of them are sent nevertheless."""
    stall: list[float] = []

    def answer(connected: Connected, head: bytes) -> None:
        if len(server.heads) == 30:
            stall.append(time.time())
            time.sleep(1.0)  # blocks the loop of the server: nothing is read or answered
            stall.append(time.time())
        connected.write(OK)

    with scripted(answer) as server:
        run = ran(server.url, "100/s", 2.0)
    assert ends(run) == {200: 200}
    assert len(server.heads) == 200
    first, last = (moment - run.started for moment in stall)
    due_in_it = [answer for answer in run.answers if first + 0.01 < answer.due < last - 0.01]
    assert len(due_in_it) >= 90
    # No answer comes before the stall ends, and the latency says so: it counts from the due time.
    assert all(answer.done - answer.due >= last - answer.due - 0.01 for answer in due_in_it)
    longest = sorted(answer.done - answer.due for answer in run.answers)[-50]
    assert longest > 0.4
    # The sender did not wait for the server: it opened connections and sent on.
    sent_in_it = sum(answer.sent < last for answer in due_in_it)
    assert sent_in_it > len(due_in_it) / 2
    assert run.connections > 45


@pytest.mark.parametrize(
    ("answer", "method", "expected"),
    [
        (always(OK), "GET", 200),
        (always(CHUNKED), "GET", 200),
        (always(b"HTTP/1.1 204 No Content\r\n\r\n"), "GET", 204),
        (always(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\n\r\n"), "GET", 304),
        (always(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"), "HEAD", 200),
        (always(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"), "HEAD", 200),
        (always(b"HTTP/1.1 200 OK\r\n\r\n"), "HEAD", 200),
        (always(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), "HEAD", 200),
        (always(b"HTTP/1.1 100 Continue\r\n\r\n", OK), "GET", 200),
        (always(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 3, OK), "GET", 200),
        (always(b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n"), "GET", 429),
    ],
    ids=["plain", "chunked", "204", "304", "head", "head chunked", "head bare", "head 0", "100", "103", "429"],
)
def test_a_connection_is_kept_after_a_complete_answer(
    answer: Callable[[Connected, bytes], object], method: str, expected: int
) -> None:
    with scripted(answer) as server:
        run = ran(server.url, "50/s", 0.4, method=method, max_connections=1)
    assert ends(run) == {expected: 20}
    assert len(server.heads) == 20
    assert server.connections == 1


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda connected, head: (connected.write(b"HTTP/1.1 200 OK\r\n\r\nto the end"), connected.close()), 200),
        (lambda connected, head: (connected.write(b"HTTP/1.0 200 OK\r\n\r\nold"), connected.close()), 200),
        (always(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"), 200),
        (always(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"), 101),
        (always(OK, OK), 200),
        (always(OK, b"garbage"), 200),
        (always(OK, b"HTTP/1.1 201 Created\r\nX: "), 200),
        (lambda connected, head: connected.close(), "closed"),
        (lambda connected, head: connected.reset(), "closed"),
        (lambda connected, head: (connected.write(OK[:-1]), connected.close()), "closed"),
        (lambda connected, head: (connected.write(b"HTTP/1.1 100 Continue\r\n\r\n"), connected.close()), "closed"),
        (always(b"SSH-2.0-OpenSSH\r\n\r\n"), "malformed"),
        (always(b"HTTP/1.1 abc\r\n\r\n"), "malformed"),
        (always(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"), "malformed"),
        (always(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), "malformed"),
        (always(HUGE), "too-large"),
    ],
    ids=[
        *("to the end", "1.0", "close", "101", "two answers", "garbage after", "half an answer after"),
        *("closes", "resets", "cut", "only 100"),
        *("no http", "no status", "length", "chunk", "endless head"),
    ],
)
def test_a_connection_is_not_used_again_after_anything_else(
    answer: Callable[[Connected, bytes], object], expected: int | str
) -> None:
    with scripted(answer) as server:
        run = ran(server.url, "50/s", 0.2)
    assert ends(run) == {expected: 10}
    assert server.connections == 10


def test_a_body_is_read_to_its_end_before_the_answer_counts() -> None:
    def answer(connected: Connected, head: bytes) -> None:
        connected.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\na")
        for number in range(1, 4):
            connected.later(0.1 * number, lambda: connected.write(b"b"))

    with scripted(answer) as server:
        run = ran(server.url, "burst 5 every 1s", 0.1)
    assert ends(run) == {200: 5}
    assert all(answer.done - answer.sent >= 0.29 for answer in run.answers)


def test_fields_after_a_body_are_dropped() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-RateLimit-Limit: 5\r\nX-RateLimit-Remaining: 4\r\n\r\n"
    fields = b"X-RateLimit-Remaining: 3\r\n" * 100_000  # 2.6 MB, which nobody keeps
    with scripted(always(head, b"0\r\n", fields, b"\r\n")) as server:
        run = ran(server.url, "burst 3 every 1s", 0.1)
    assert ends(run) == {200: 3}
    assert all([quota.remaining for quota in answer.quotas] == [4] for answer in run.answers)


def test_fields_that_tell_limits_are_bounded() -> None:
    fields = b"".join(b"X-RateLimit-Limit: %d\r\n" % number for number in range(5_000))
    with scripted(always(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n", fields, b"\r\n")) as server:
        run = ran(server.url, "burst 3 every 1s", 0.1)
    assert ends(run) == {200: 3}


def test_an_answer_that_does_not_come_is_a_timeout() -> None:
    def answer(connected: Connected, head: bytes) -> None:
        if b"/slow" not in head:
            connected.write(OK)

    with scripted(answer) as server:
        urls = [LoadTarget(server.url), LoadTarget(server.url + "slow")]
        run = run_load_here(
            LoadPlan(targets=urls, arrivals=planned(server.url, "100/s", 0.4).arrivals, timeout=0.3, seed=1)
        )
    slow = sum(b"/slow" in head for head in server.heads)
    assert 5 < slow < 35
    assert ends(run) == {200: 40 - slow, "timeout": slow}
    assert all(answer.target == (answer.error == "timeout") for answer in run.answers)
    assert all(answer.done - answer.sent >= 0.3 for answer in run.answers if answer.error)
    assert run.elapsed < 20


def test_a_server_that_is_not_there_ends_the_run_early() -> None:
    run = ran(f"http://{HOST}:{free_port()}/", "50/s", 30.0, stop_after_errors=0.3)
    assert run.ended_by == "errors"
    assert run.elapsed < 20
    assert set(ends(run)) == {"connect"}
    assert any("no request was answered for 0.3 s (connect)" in note for note in run.notes)


def test_a_server_that_comes_back_does_not_end_the_run() -> None:
    def answer(connected: Connected, head: bytes) -> None:
        if len(server.heads) % 10:
            connected.close()
        else:
            connected.write(OK)

    with scripted(answer) as server:
        run = ran(server.url, "100/s", 1.0, stop_after_errors=0.5)
    assert (run.ended_by, len(run.answers)) == ("schedule", 100)
    assert ends(run) == {"closed": 90, 200: 10}


def test_requests_wait_for_a_connection_when_all_are_in_use_and_the_result_says_so() -> None:
    def answer(connected: Connected, head: bytes) -> None:
        connected.later(0.02, lambda: connected.write(OK))

    with scripted(answer) as server:
        run = ran(server.url, "burst 40 every 1s", 0.1, max_connections=2)
    assert ends(run) == {200: 40}
    assert server.connections == run.connections == 2
    assert any("All 2 connections were in use" in note for note in run.notes)
    assert max(answer.sent for answer in run.answers) > 0.3  # late, and told


def test_idle_connections_are_closed_before_the_server_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MAX_IDLE", 0.1)
    with scripted() as server:
        run = ran(server.url, "burst 3 every 800ms", 1.0)
    assert ends(run) == {200: 6}
    assert server.connections == server.lost == 6


def test_requests_beyond_the_bound_in_flight_are_counted_as_unsent() -> None:
    with scripted(lambda connected, head: connected.later(0.2, lambda: connected.write(OK))) as server:
        run = ran(server.url, "burst 50 every 1s", 0.1, max_in_flight=20)
    assert ends(run) == {200: 20, "unsent": 30}
    assert len(server.heads) == 20
    assert any("30 requests were not sent: more than 20 were in flight" in note for note in run.notes)


def test_answers_beyond_the_bound_are_counted() -> None:
    with scripted() as server:
        run = ran(server.url, "burst 20 every 1s", 0.1, max_answers=5)
    assert len(run.answers) == 5
    assert run.answers.dropped == 15
    assert any("15 answers were not kept" in note for note in run.notes)


def test_clients_connect_from_addresses_of_their_own() -> None:
    with scripted() as server:
        run = ran(server.url, "100/s", 0.4, clients=Clients(8, [parse_identity("source")]), max_connections=3)
    assert ends(run) == {200: 40}
    assert Counter(server.peers) == {f"127.0.0.{number}": 5 for number in range(2, 10)}
    assert run.connections <= 3


def test_a_plan_of_several_urls_keeps_their_weights() -> None:
    with scripted() as server:
        targets = [LoadTarget(server.url + "a", weight=3.0), LoadTarget(server.url + "b", "POST", body=b"x" * 10)]
        run = run_load_here(LoadPlan(targets=targets, arrivals=planned(server.url, "burst 400 every 1s").arrivals))
    paths = Counter(head.split()[1] for head in server.heads if b"HTTP" in head)
    assert ends(run) == {200: 400}
    assert 240 < paths[b"/a"] < 360
    assert sum(b"Content-Length: 10" in head for head in server.heads) == 400 - paths[b"/a"]


def test_a_unix_socket_is_served(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with scripted(unix=path) as server:
        run = ran("http://localhost/", unix_socket=path)
    assert ends(run) == {200: 20}
    assert len(server.heads) == 20


def test_rate_limit_headers_are_read() -> None:
    def answer(connected: Connected, head: bytes) -> None:
        left = 5 - len(server.heads)
        fields = b"X-RateLimit-Limit: 5\r\nX-RateLimit-Remaining: %d\r\nContent-Length: 0\r\n\r\n" % max(left, 0)
        connected.write((b"HTTP/1.1 200 OK\r\n" if left >= 0 else b"HTTP/1.1 429 No\r\nRetry-After: 7\r\n") + fields)

    with scripted(answer) as server:
        run = ran(server.url, "50/s", 0.2, max_connections=1)
    answers = list(run.answers)
    assert [answer.quotas[0].remaining for answer in answers] == [4, 3, 2, 1, 0, 0, 0, 0, 0, 0]
    assert [answer.retry_after for answer in answers] == [None] * 5 + [7.0] * 5


def test_a_reset_that_is_an_instant_is_compared_with_the_clock_of_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers()
    cache = AdviceCache(answers)
    lines = [(b"X-RateLimit-Limit", b"5"), (b"X-RateLimit-Reset", b"2000000100")]
    waits = []
    for moment in (2e9, 2e9 + 0.5, 2e9 + 40):
        monkeypatch.setattr(exchange, "time", lambda moment=moment: moment)
        waits.append(answers.advice(cache.read(lines)[0]).quotas[0].reset_after)
    assert waits == [100.0, 100.0, 60.0]
    dated = [*lines, (b"Date", b"Wed, 18 May 2033 03:34:00 GMT")]  # 2 000 000 040
    assert answers.advice(cache.read(dated)[0]).quotas[0].reset_after == 60.0


def test_long_headers_are_not_remembered() -> None:
    cache = AdviceCache(Answers())
    tracemalloc.start()
    try:
        for number in range(50):
            cache.read([(b"RateLimit", b"x" * 200_000 + b"%d" % number)])
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()


def test_an_obedient_client_sends_nothing_until_its_wait_is_over_and_then_one_probe() -> None:
    """The server refuses a client's second request, and everything until its Retry-After has passed."""
    granted: dict[bytes, list[float]] = {}
    refused: Counter[bytes] = Counter()

    def answer(connected: Connected, head: bytes) -> None:
        key = head.partition(b"X-Key: ")[2][:1]
        times, moment = granted.setdefault(key, []), time.monotonic()
        if not times or moment - times[-1] >= 0.5:
            times.append(moment)
            connected.write(OK)
        else:
            refused[key] += 1
            wait = int((0.5 - (moment - times[-1])) * 1000) + 1
            connected.write(b"HTTP/1.1 429 No\r\nretry-after-ms: %d\r\nContent-Length: 0\r\n\r\n" % wait)

    clients = Clients(2, [parse_identity("header:X-Key={n}")])
    with scripted(answer) as server:
        run = ran(server.url, "40/s", 2.0, clients=clients, obey=True)
    probes = [answer for answer in run.answers if answer.probe]
    assert len(probes) == run.probes >= 4
    assert all(probe.status == 200 for probe in probes)
    assert run.due == 80 == run.sent + run.held
    assert len(server.heads) == run.sent + run.probes
    assert run.held > 40
    refusals = {(answer.client, answer.done + (answer.retry_after or 0)) for answer in run.answers if not answer.probe}
    assert all((probe.client, probe.due) in refusals for probe in probes)


def test_a_probe_after_the_end_is_sent_within_its_time_or_counted() -> None:
    refusal = b"HTTP/1.1 429 No\r\nretry-after-ms: 300\r\nContent-Length: 0\r\n\r\n"

    def answer(connected: Connected, head: bytes) -> None:
        connected.write(refusal if len(server.heads) == 1 else OK)

    for within, probes in ((0.0, 0), (1.0, 1)):
        with scripted(answer) as server:
            run = ran(server.url, "10/s", 0.1, obey=True, probe_within=within)
        assert (run.probes, run.probes_left) == (probes, 1 - probes)
        assert [answer.status for answer in run.answers] == [429] + [200] * probes


def test_a_server_that_says_to_retry_at_once_is_not_flooded_with_probes() -> None:
    with scripted(always(b"HTTP/1.1 429 No\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n")) as server:
        run = ran(server.url, "10/s", 0.95, obey=True)
    assert run.due == 10 == run.sent + run.held
    assert 1 <= run.probes <= 10


@pytest.mark.parametrize("address", ["192.0.2.1", "[2001:db8::1]", "0.0.0.0", "10.0.0.1", "[::ffff:192.0.2.1]"])
def test_a_remote_server_is_refused(address: str) -> None:
    with pytest.raises(LoadTestRefused, match="--allow-remote"):
        ran(f"http://{address}:9/")


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.8.7", "::1", "::ffff:127.0.0.1"])
def test_addresses_of_this_machine_are_loopback(address: str) -> None:
    assert is_loopback(address)


def test_all_addresses_of_a_name_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[Any] = [(2, 1, 6, "", (address, 80)) for address in ("127.0.0.1", "192.0.2.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: rows)
    with pytest.raises(LoadTestRefused, match="'two.example' is 192.0.2.1"):
        asyncio.run(run_load(planned("http://two.example/")))


def test_a_name_is_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that changes its address after the check is still the checked address."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def resolve(host: str, *rest: Any, **options: Any) -> Any:
        if host == "rebinding.example":
            asked.append(host)
            return real("127.0.0.1" if len(asked) == 1 else "192.0.2.1", *rest, **options)
        return real(host, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with scripted(always(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")) as server:
        run = asyncio.run(run_load(planned(f"http://rebinding.example:{server.port}/")))
    assert ends(run) == {200: 20}
    assert len(asked) == 1
    assert all(b"Host: rebinding.example" in head for head in server.heads)


def test_a_name_without_an_address_is_a_clear_error() -> None:
    with pytest.raises(LoadTestRefused, match="'nothing.invalid' has no address"):
        ran("http://nothing.invalid/")


def test_certificates_of_a_remote_server_are_verified() -> None:
    with pytest.raises(LoadTestRefused, match="must be verified"):
        ran("https://192.0.2.1/", allow_remote=True, insecure=True)


def test_an_event_stops_a_run_with_its_results() -> None:
    async def run() -> Any:
        stop = asyncio.Event()
        seen: list[Progress] = []

        def look(progress: Progress) -> None:
            seen.append(progress)
            if progress.answered >= 10:
                stop.set()

        return await run_load(planned(server.url, "50/s", 60.0), on_progress=look, stop=stop)

    with scripted() as server:
        result = asyncio.run(run())
    assert result.ended_by == "interrupted"
    assert result.elapsed < 30
    assert len(result.answers) == len(server.heads) >= 10


def test_an_answer_that_is_missing_at_the_end_is_aborted() -> None:
    async def run() -> Any:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(0.3, stop.set)
        return await run_load(planned(server.url, "burst 5 every 60s", 60.0), stop=stop)

    with scripted(lambda connected, head: None) as server:
        result = asyncio.run(run())
    assert ends(result) == {"aborted": 5}


def test_cancelling_a_run_closes_its_connections() -> None:
    async def run() -> None:
        async with asyncio.timeout(0.5):
            await run_load(planned(server.url, "50/s", 60.0))

    with scripted() as server:
        with pytest.raises(TimeoutError):
            asyncio.run(run())
        deadline = time.monotonic() + 10
        while server.lost < server.connections and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.lost == server.connections > 0


def test_an_error_of_the_progress_callback_ends_the_run() -> None:
    def fail(progress: Progress) -> None:
        raise RuntimeError("from the callback")

    with scripted() as server, pytest.raises(RuntimeError, match="from the callback"):
        run_load_here(planned(server.url, "50/s", 60.0), on_progress=fail)


PROGRAM = """
import sys
from tests.loadtest.plans import ends, planned
from ratebound.loadtest.run import run_load_here

run = run_load_here(planned(sys.argv[1], "100/s", 60.0), on_progress=lambda progress: print("on", flush=True))
print(run.ended_by, dict(ends(run)), len(run.answers), flush=True)
"""


def test_ctrl_c_ends_a_run_with_its_results() -> None:
    with scripted() as server:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, server.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        timer = threading.Timer(30, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "on\n"
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=20)
        finally:
            timer.cancel()
            process.kill()
            process.wait()
    assert errors == ""
    last = output.splitlines()[-1]
    assert last.startswith("interrupted {200: ")
    assert process.returncode == 0


def test_a_million_answers_fit_into_a_hundred_megabytes() -> None:
    answers = Answers()
    number = answers.number_of(Advised(1.0))
    for _ in range(1000):
        answers.add(1, 1.0, 1.0, 1.0, 200, 0, number)
    columns = [getattr(answers, name) for name in Answers.__slots__]
    used = sum(column.itemsize * len(column) for column in columns if hasattr(column, "itemsize"))
    assert used <= 60 * 1000
    assert answers[-1] == answers[999]
    assert len(list(answers)) == len(answers) == 1000


def test_different_advice_is_bounded() -> None:
    answers = Answers()
    for number in range(MAX_ADVICE + 5):
        kept = answers.number_of(Advised(float(number)))
    assert kept == 0
    assert answers.advice(kept) == NO_ADVICE
    assert answers.advice_dropped == 6
    assert answers.advice(answers.number_of(Advised(3.0))) == Advised(3.0)


def test_the_histogram_is_exact_to_its_steps() -> None:
    histogram = LatencyHistogram()
    for number in range(1, 1001):
        histogram.add(number / 1000)
    for share in (0.5, 0.9, 0.99, 1.0):
        assert share <= histogram.percentile(share) <= share * 1.03
    assert LatencyHistogram().percentile(0.5) == 0.0


@pytest.mark.parametrize("precise", [True, False])
def test_only_the_last_instant_of_a_wake_up_counts(precise: bool) -> None:
    async def run() -> list[float]:
        rang: list[float] = []
        wake_up = WakeUp(lambda: rang.append(time.monotonic()), precise=precise)
        begun = time.monotonic()
        wake_up.set(begun + 60)
        wake_up.set(begun + 0.05)
        await asyncio.sleep(0.2)
        wake_up.set(begun)  # in the past: at once
        await asyncio.sleep(0.1)
        wake_up.set(time.monotonic() + 0.05)
        wake_up.clear()
        await asyncio.sleep(0.1)
        wake_up.close()
        return [moment - begun for moment in rang]

    first, second = asyncio.run(run())
    assert 0.045 <= first < second
