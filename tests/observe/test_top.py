"""The most limited clients: what the sketch says of them holds against an exact count."""

import threading
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratebound import Check, parse_limit
from ratebound.observe import TopListener
from ratebound.observe.top import LimitedClient, Sketch
from ratebound.testing import FakeClock
from tests.limiters import limiter_of
from tests.observe.decisions import refusal, told, without_storage

# Few clients that come often, many that come seldom: what a sketch is for, and what makes it err.
streams = st.lists(st.one_of(st.integers(0, 5), st.integers(0, 60)), max_size=400)


@given(streams, st.integers(1, 12))
def test_no_count_is_too_small_or_too_large_by_more_than_its_error(stream: list[int], size: int) -> None:
    clients = [str(number) for number in stream]
    sketch, exact = Sketch(size), Counter(clients)
    for client in clients:
        sketch.add(client)
    assert sum(sketch.counts.values()) == len(stream)
    assert len(sketch.counts) == min(size, len(exact))
    for client, count in sketch.counts.items():
        assert count - sketch.errors[client] <= exact[client] <= count
        assert sketch.errors[client] <= len(stream) / size
    for client, count in exact.items():
        if count > len(stream) / size:
            assert client in sketch.counts
    assert sketch.least() == (min(sketch.counts.values()) if len(sketch.counts) == size else 0)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 40)), max_size=200), st.integers(1, 8))
def test_the_bound_holds_over_two_windows(stream: list[tuple[int, int]], size: int) -> None:
    clock = FakeClock(now=0)
    limiter = limiter_of("1/hour", clock)
    top = TopListener(size, window=60, clear=True, clock=clock)
    seen: list[tuple[int, str]] = []
    for number, pause in stream:
        denied = refusal(limiter, str(number))
        clock.advance(pause)
        top(told(denied))
        seen.append((clock.now, str(number)))
    begin = (clock.now // 60_000_000 - 1) * 60_000_000
    exact = Counter(client for now, client in seen if now >= begin)
    found = top.top(1_000)
    assert len(found) <= 2 * size
    for client, denials, error in found:
        assert denials - error <= exact[client] <= denials
        assert error <= exact.total() / size
    for client, count in exact.items():
        if count > exact.total() / size:
            assert client in {limited.client for limited in found}


def test_the_most_limited_come_first(clock: FakeClock) -> None:
    limiter, top = limiter_of("1/hour", clock), TopListener(clear=True, clock=clock)
    for client, times in {"a": 3, "b": 5, "c": 1}.items():
        for _ in range(times):
            top(told(refusal(limiter, client)))
    assert top.top(2) == [LimitedClient("b", 5, 0), LimitedClient("a", 3, 0)]


def test_clients_are_digests_unless_asked_otherwise(clock: FakeClock) -> None:
    denied = told(refusal(limiter_of("1/hour", clock), "user:42"))
    listeners = [
        TopListener(secret="s"),
        TopListener(secret="s"),
        TopListener(secret="t"),
        TopListener(),
        TopListener(),
    ]
    for top in listeners:
        top(denied)
    names = [top.top()[0].client for top in listeners]
    assert names[0] == names[1]
    assert len(set(names)) == 4
    assert all(len(name) == 16 and int(name, 16) >= 0 for name in names)


def test_yesterdays_attacker_leaves_also_when_nobody_is_denied_since(clock: FakeClock) -> None:
    top = TopListener(window=60, clear=True, clock=clock)
    top(told(refusal(limiter_of("1/hour", clock), "attacker")))
    clock.advance(60)
    assert top.top() == [LimitedClient("attacker", 1, 0)]
    clock.advance(60)
    assert top.top() == []
    top(told(refusal(limiter_of("1/hour", clock), "attacker")))
    clock.advance(500)
    assert top.top() == []


def test_a_clock_that_steps_back_loses_nothing(clock: FakeClock) -> None:
    top = TopListener(window=60, clear=True, clock=clock)
    top(told(refusal(limiter_of("1/hour", clock), "k")))
    clock.advance(-1_000)
    assert top.top() == [LimitedClient("k", 1, 0)]


def test_only_clients_at_fault_are_counted(clock: FakeClock) -> None:
    limiter, top = limiter_of("1/hour", clock), TopListener(clear=True, clock=clock)
    checks = [Check("ip", parse_limit("9/hour")), Check("user", parse_limit("1/hour"))]
    top(told(limiter.check(checks)))
    top(told(limiter.check(checks)))
    top(told(without_storage(refusal(limiter, "unlucky"), closed=True)))
    top(told(without_storage(refusal(limiter, "local"))))
    assert sorted(top.top()) == [LimitedClient("local", 1, 0), LimitedClient("user", 1, 0)]


def test_a_huge_key_is_not_kept(clock: FakeClock) -> None:
    top = TopListener(clear=True, clock=clock)
    top(told(refusal(limiter_of("1/hour", clock), "x" * 1_000_000)))
    assert len(top.top()[0].client) == 16


def test_threads_lose_no_denial(clock: FakeClock) -> None:
    limiter, top = limiter_of("1/hour", clock), TopListener(size=3, clear=True, clock=clock)
    denied = [told(refusal(limiter, f"k{i}")) for i in range(5)]

    def tell() -> None:
        for event in denied * 200:
            top(event)

    threads = [threading.Thread(target=tell) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(limited.denials for limited in top.top()) == 4 * 200 * 5


@pytest.mark.parametrize("options", [{"size": 0}, {"size": True}, {"window": 0}, {"window": float("inf")}])
def test_a_list_that_cannot_work_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be (a positive whole number|seconds or a timedelta, more than 0)"):
        TopListener(**options)  # type: ignore[arg-type]
