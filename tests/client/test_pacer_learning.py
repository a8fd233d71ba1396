"""Pacers that learn limits from answers."""

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import HTTPErrorProcessor, build_opener

import pytest

from ratebound import RateLimited
from ratebound.arguments import as_patience
from ratebound.client import AsyncPacer, Pacer
from ratebound.client.learned_limits import BUCKET, MAX_LEARNED, WINDOW
from ratebound.client.learned_origins import MAX_ORIGINS, MAX_QUOTAS, SharedShape, read_shapes, write_shapes
from ratebound.client.pacing import Granted, TurnNotInTime, Wanted
from ratebound.http.advice import read_advice
from ratebound.notation import parse_limits
from ratebound.storage.memory import MemoryStorage
from ratebound.testing import FakeClock
from tests.client.pacing_simulation import ORIGIN, SimulatedCalls, SimulatedTicket, Simulation, limited_server
from tests.http.vendor_headers import recordings

URL = "https://api.example.com/v1/things"
Lines = list[tuple[str, str]]


def paced(clock: FakeClock, storage: MemoryStorage | None = None, **options: float) -> Pacer:
    """A pacer that lives by this clock."""
    shared = MemoryStorage(clock=clock) if storage is None else storage
    return Pacer(storage=shared, sleep=clock.sleep, clock=lambda: clock.now / 1_000_000, **options)  # type: ignore[arg-type]


def fields(count: int, remaining: int, reset: float, window: int, name: str = "default") -> Lines:
    return [("RateLimit-Policy", f'"{name}";q={count};w={window}'), ("RateLimit", f'"{name}";r={remaining};t={reset}')]


def test_after_a_refusal_everybody_waits_who_shares_the_storage() -> None:
    clock = FakeClock()
    storage = MemoryStorage(clock=clock)
    one, other = paced(clock, storage), paced(clock, storage)
    one.wait(URL).answered(200, [])
    other.wait(URL).answered(200, [])
    one.wait(URL).answered(429, [("Retry-After", "7")])
    begin = clock.now
    for pacer in (one, other):
        with pytest.raises(RateLimited, match=r"api\.example\.com refused requests"):
            pacer.wait(URL, timeout=5)
    assert clock.now == begin
    other.wait("https://other.example.com/", timeout=0)
    other.wait(URL)
    assert 7_000_000 <= clock.now - begin <= 7_100_000


def test_a_refusal_that_comes_while_a_turn_is_taken_does_not_hold_a_caller_beyond_its_timeout() -> None:
    simulation = Simulation(1, trip=(0.02, 0.02))
    core = simulation.core(tuple(parse_limits("10/second burst 1")))
    calls = SimulatedCalls(simulation.storage)
    turns: list[Granted] = []

    def ask(timeout: float) -> None:
        wanted = Wanted(ORIGIN, 1, 0, as_patience(timeout, 0.0))
        simulation.drive(core.coming(wanted, calls, SimulatedTicket(), None), turns.append)

    ask(5)
    simulation.run(1)
    refusal = read_advice(429, [("Retry-After", "30")])
    simulation.after(0, lambda: ask(5))
    simulation.after(0, lambda: ask(5))  # its place is 100 ms ahead
    simulation.after(0.05, lambda: simulation.drive(core.answered(turns[0], refusal, calls), lambda _: None))
    simulation.run(4)
    (late,) = simulation.problems
    assert isinstance(late, TurnNotInTime)
    assert 29 < late.wait < 31
    assert "refused requests" in str(late)
    assert (len(turns), len(core._lines._lines)) == (2, 0)


def test_several_refusals_at_once_are_waited_for_once() -> None:
    clock = FakeClock()
    pacer = paced(clock)
    pacer.wait(URL).answered(200, [])
    turns = [pacer.wait(URL) for _ in range(8)]
    begin = clock.now
    for turn in turns:
        turn.answered(429, [("Retry-After", "3")])
    pacer.wait(URL)
    assert 3_000_000 <= clock.now - begin <= 3_100_000


def test_a_window_that_is_used_up_is_waited_for() -> None:
    clock = FakeClock()
    pacer = paced(clock)
    begin = clock.now
    pacer.wait(URL).answered(200, fields(100, 2, 40, 60))
    pacer.wait(URL)
    pacer.wait(URL)
    with pytest.raises(RateLimited) as caught:
        pacer.wait(URL, timeout=10)
    assert caught.value.wait == pytest.approx(40, abs=1)  # type: ignore[attr-defined]
    pacer.wait(URL)
    assert 39_000_000 <= clock.now - begin <= 41_000_000
    assert [(limit.name, limit.limit, limit.kind) for limit in pacer.limits()] == [("default", 100, "window")]


def test_a_bucket_that_is_used_up_at_once_is_not_waited_for_as_long_as_a_log() -> None:
    """Its short resets may be those of a window that ends soon. When that end has passed, a bucket has units again."""
    clock = FakeClock()
    pacer = paced(clock)
    for remaining in reversed(range(30)):
        pacer.wait(URL).answered(200, fields(30, remaining, 2, 60))
    begin = clock.now
    pacer.wait(URL, timeout=10)
    assert 1_000_000 <= clock.now - begin <= 5_000_000
    assert [limit.kind for limit in pacer.limits()] == ["bucket"]


def test_long_names_do_not_fill_the_shared_document() -> None:
    pacer = paced(FakeClock())
    pacer.wait(URL).answered(200, fields(100, 99, 40, 60, name="x" * 20_000))
    assert pacer.limits() == []


def test_what_one_pacer_learned_is_known_to_another() -> None:
    clock = FakeClock()
    storage = MemoryStorage(clock=clock)
    one, other = paced(clock, storage), paced(clock, storage)
    one.wait(URL).answered(200, fields(100, 0, 40, 60))
    with pytest.raises(RateLimited):
        other.wait(URL, timeout=10)


@pytest.mark.parametrize(
    "wrong",
    [{"units": 2**52}, {"period": 2**52}, {"kind": WINDOW, "period": 9 * MAX_LEARNED}, {"fill": 2**52}],
    ids=lambda wrong: " ".join(wrong),
)
def test_a_shared_quota_that_no_limit_can_mirror_stops_nobody(wrong: dict[str, Any]) -> None:
    clock = FakeClock()
    storage = MemoryStorage(clock=clock)
    one, other = paced(clock, storage), paced(clock, storage)
    one.wait(URL).answered(200, fields(100, 99, 40, 60))
    version, content = storage.read_document(one._core._document)
    ((key, (origin, quota, shape)),) = read_shapes(content).items()
    shape = shape._replace(kind=BUCKET)._replace(**wrong)
    content = write_shapes({key: SharedShape(origin, quota, shape)})
    assert storage.write_document(one._core._document, content, version)
    other.wait(URL, timeout=0).answered(200, fields(100, 98, 40, 60))
    assert [limit.limit for limit in other.limits()] == [100]


def test_tokens_are_counted_by_limits_of_tokens() -> None:
    clock = FakeClock()
    pacer = paced(clock)
    answer = [
        ("x-ratelimit-limit-requests", "1000"), ("x-ratelimit-remaining-requests", "999"),
        ("x-ratelimit-reset-requests", "60ms"), ("x-ratelimit-limit-tokens", "6000"),
        ("x-ratelimit-remaining-tokens", "2000"), ("x-ratelimit-reset-tokens", "40s"),
    ]  # fmt: skip
    pacer.wait(URL, tokens=4000).answered(200, answer)
    pacer.wait(URL, tokens=500, timeout=0)
    begin = clock.now
    with pytest.raises(RateLimited, match="tokens"):
        pacer.wait(URL, tokens=3000, timeout=1)
    pacer.wait(URL, timeout=0)  # a request without tokens is not held up
    pacer.wait(URL, tokens=3000)
    assert 10_000_000 < clock.now - begin < 60_000_000


def test_a_server_is_believed_for_no_longer_than_max_wait() -> None:
    clock = FakeClock()
    pacer = paced(clock, max_wait=60.0)
    two_years = str(2 * 365 * 86400)
    pacer.wait(URL).answered(200, [("X-RateLimit-Limit", "10"), ("X-RateLimit-Remaining", "0"),
                                   ("X-RateLimit-Reset", two_years)])  # fmt: skip
    begin = clock.now
    pacer.wait(URL)
    assert clock.now - begin == pytest.approx(60_000_000, rel=0.05)
    pacer.wait(URL).answered(429, [("Retry-After", two_years)])
    assert clock.now - begin < 300_000_000


def test_callers_with_a_timeout_are_refused_for_no_longer_than_max_wait() -> None:
    """None of them ever waits for so long. One request each time that max_wait has passed asks if it is still so."""
    clock = FakeClock()
    pacer = paced(clock, max_wait=600.0)
    month = fields(1000, 0, 30 * 86400, 30 * 86400)
    pacer.wait(URL, timeout=60).answered(200, month)
    begin, turns = clock.now, []
    while clock.now < begin + 3600 * 1_000_000:
        with suppress(RateLimited):
            pacer.wait(URL, timeout=60).answered(429, month)
            turns.append((clock.now - begin) // 1_000_000)
        clock.advance(30)
    assert turns == [600, 1200, 1800, 2400, 3000]


def test_an_idle_pacer_waits_for_a_quota_that_comes_back_soon() -> None:
    clock = FakeClock()
    storage = MemoryStorage(clock=clock)
    one, other = paced(clock, storage, max_wait=60.0), paced(clock, storage, max_wait=60.0)
    one.wait(URL).answered(200, fields(100, 99, 40, 60))
    other.wait(URL).answered(200, fields(100, 98, 40, 60))
    clock.advance(3600)
    one.wait(URL).answered(200, fields(100, 0, 40, 60))
    with pytest.raises(RateLimited):
        other.wait(URL, timeout=10)


def test_memory_is_bounded_whatever_servers_send() -> None:
    clock = FakeClock()
    pacer = paced(clock)
    for i in range(300):
        pacer.wait(f"https://host{i}.example.com/").answered(200, fields(1000, 999, 1, 60, f"name{i}"))
        pacer.wait(URL).answered(200, fields(1000, 999, 1, 60, f"name{i}"))
    known = pacer.limits()
    assert sum(limit.origin == "https://api.example.com" for limit in known) <= MAX_QUOTAS
    assert len({limit.origin for limit in known}) <= MAX_ORIGINS


HOSTILE: dict[str, tuple[int, Lines]] = {
    "an endless wait": (429, [("Retry-After", "1" + "0" * 30)]),
    "a negative wait": (429, [("Retry-After", "-5")]),
    "no number": (429, [("Retry-After", "nan")]),
    "an infinite wait": (429, [("Retry-After", "inf")]),
    "a date far away": (429, [("Retry-After", "Fri, 31 Dec 9999 23:59:59 GMT")]),
    "a million digits": (429, [("Retry-After", "9" * 1_000_000)]),
    "a long list": (200, [("RateLimit", ", ".join(f'"p{i}";r=0;t=9' for i in range(50_000)))]),
    "deep brackets": (200, [("RateLimit", "(" * 100_000)]),
    "a long window": (200, fields(1, 0, 10**15 - 1, 10**15 - 1)),
    "no quota at all": (200, fields(0, 0, 0, 0)),
    "a large limit": (200, [("X-RateLimit-Limit", "1" + "0" * 400), ("X-RateLimit-Remaining", "0")]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_hold_up_a_caller_for_no_longer_than_max_wait(name: str) -> None:
    clock = FakeClock()
    pacer = paced(clock, max_wait=60.0)
    status, headers = HOSTILE[name]
    for _ in range(3):
        begin = clock.now
        pacer.wait(URL).answered(status, headers)
        assert clock.now - begin <= 61_000_000
    assert len(pacer.limits()) <= MAX_QUOTAS


@pytest.mark.parametrize("seed", range(3))
def test_nonsense_never_raises(seed: int) -> None:
    clock = FakeClock()
    pacer = paced(clock, max_wait=1.0)
    for i in range(60):
        count, remaining, reset, window = ((i * 7919 + seed) ** k % 10**12 for k in (1, 2, 3, 4))
        pacer.wait(URL).answered((200, 429, 503)[i % 3], fields(count, remaining, reset, window, "x\x1b"[: i % 3]))
        clock.advance(0.5)


def test_an_origin_without_limits_is_not_held_up() -> None:
    pacer = Pacer()
    first = pacer.wait(URL)
    held = threading.Thread(target=lambda: pacer.wait(URL).answered(200, []))
    held.start()
    time.sleep(0.05)
    assert held.is_alive()  # it waits for the first answer
    first.answered(200, [])
    held.join(10)
    assert not held.is_alive()
    begin = time.monotonic()
    for _ in range(50):
        pacer.wait(URL)
    assert time.monotonic() - begin < 5


def test_a_caller_that_never_tells_answers_is_not_held_up() -> None:
    pacer = Pacer()
    for _ in range(20):
        with pacer.turn(URL):
            pass
    assert pacer.wait(URL).waited < 1


def test_a_cancelled_task_gives_its_turn_back() -> None:
    async def main() -> None:
        async with AsyncPacer("10/second burst 1", learn=False) as pacer:
            await pacer.wait(URL)
            waiting = [asyncio.create_task(pacer.wait(URL)) for _ in range(50)]
            await asyncio.sleep(0.01)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            await pacer.wait(URL, timeout=5)

    asyncio.run(asyncio.wait_for(main(), 20))


def test_requests_with_another_process_in_the_same_quota_are_noticed() -> None:
    """A stranger uses a third of the rate: the pacer is refused at first, then keeps to what is left."""
    simulation = Simulation(3)
    serve = limited_server(simulation, "100/5 seconds burst 100")
    core = simulation.core()
    simulation.worker(core, serve)

    def stranger() -> None:
        serve()
        simulation.after(0.15, stranger)

    stranger()
    simulation.run(60)
    assert simulation.refused_after(20) <= 0.05 * simulation.accepted_within(20, 60)


class VendorHandler(BaseHTTPRequestHandler):
    """Answers with the recording that the path names."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        found = recordings(int(time.time()))[self.path[1:].replace("%20", " ")]
        body = found.body or b""
        self.send_response_only(found.status)
        for name, value in found.headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


class AnyStatus(HTTPErrorProcessor):
    """Returns refusals like other answers."""

    def http_response(self, request: object, response: object) -> object:
        return response


@contextmanager
def vendor_server() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), VendorHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_headers_of_all_vendors_are_kept_to() -> None:
    opener = build_opener(AnyStatus)
    with vendor_server() as url:
        for name in recordings(int(time.time())):
            with Pacer(storage=MemoryStorage()) as pacer:
                turn = pacer.wait(url, tokens=1)
                with opener.open(f"{url}/{name.replace(' ', '%20')}", timeout=30) as response:
                    advice = turn.answered(response.status, response.headers, response.read())
                used_up = [
                    quota for quota in advice.quotas
                    if quota.remaining == 0 and (quota.reset_after or 0) > 2 and quota.limit and quota.kind != "bucket"
                ]  # fmt: skip
                if used_up or (advice.refused and (advice.retry_after or 0) > 1):
                    with pytest.raises(RateLimited):
                        pacer.wait(url, tokens=1, timeout=0.5)
                elif not advice.refused and all(quota.remaining for quota in advice.quotas):
                    pacer.wait(url, tokens=1, timeout=5)


def test_a_storage_out_of_reach_does_not_stop_the_caller() -> None:
    with Pacer("1000/second", storage="redis://127.0.0.1:1", name="nobody") as pacer:
        for _ in range(3):
            pacer.wait(URL, timeout=20).answered(200, fields(100, 99, 1, 60))
        assert len(pacer.limits()) == 2


def test_a_forked_child_is_not_held_up_by_the_probe_of_its_parent() -> None:
    pacer = Pacer()
    pacer.wait(URL)  # nobody has answered yet
    child = os.fork()
    if not child:
        os._exit(0 if pacer.wait(URL).waited < 1.5 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
