"""The engine on a log's clock decides as a plain oracle does, for each client, rule and limit."""

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ratebound.policy import read_policy
from ratebound.replay.engine import LimitTally, PolicyRun
from ratebound.replay.entry import Entry
from ratebound.replay.even_times import EvenTimes
from ratebound.replay.judged_policy import judged_policy
from ratebound.replay.log_replay import LogReplay
from tests.replay.oracle import SECOND, NaiveBucket, NaiveLog, NaiveReplay, NaiveRule, NaiveWindow, naive_spread

START = 1_762_300_800
POLICY: dict[str, Any] = {
    "rules": [
        {"name": "all", "limits": "4/10 seconds fixed-window"},
        {"name": "posts", "match": {"methods": ["POST"]}, "limits": "2/5 seconds sliding-log; 3/minute sliding-log"},
        # the same clients by another name, so that a request has two keys
        {
            "name": "orders",
            "by": "prefix:32/64",
            "match": {"paths": ["/orders/{id}"]},
            "limits": "6/minute burst 2 token-bucket",
        },
    ]
}


def oracle() -> NaiveReplay:
    return NaiveReplay(
        [
            NaiveRule("all", lambda entry: True, [NaiveWindow(4, 10 * SECOND)]),
            NaiveRule(
                "posts", lambda entry: entry.method == "POST", [NaiveLog(2, 5 * SECOND), NaiveLog(3, 60 * SECOND)]
            ),
            NaiveRule("orders", lambda entry: entry.target.startswith("/orders/"), [NaiveBucket(6, 60 * SECOND, 2)]),
        ]
    )


requests = st.tuples(
    st.integers(0, 4),  # seconds since the request before
    st.sampled_from(["192.0.2.1", "192.0.2.2", "198.51.100.7"]),
    st.sampled_from(["GET", "POST"]),
    st.sampled_from(["/", "/orders/1", "/orders/2?page=3", "/other"]),
)


def entries_of(drawn: list[tuple[int, str, str, str]]) -> list[Entry]:
    at, entries = START, []
    for gap, address, method, target in drawn:
        at += gap
        entries.append(Entry(at * SECOND, address, method, target, 200))
    return entries


def replayed(policy: Mapping[str, Any], entries: list[Entry], batch: int = 7, unit: int = SECOND) -> LogReplay:
    judged, _ = judged_policy(read_policy(policy))
    replay, times = LogReplay(PolicyRun(judged)), EvenTimes(unit)
    for place in range(0, len(entries), batch):
        replay.feed(*times.put(entries[place : place + batch]))
    replay.feed(*times.rest())
    replay.finish()
    return replay


@given(st.lists(requests, max_size=80), st.integers(1, 20))
def test_the_answers_equal_those_of_a_plain_oracle(drawn: list[tuple[int, str, str, str]], batch: int) -> None:
    entries = entries_of(drawn)
    replay, plain = replayed(POLICY, entries, batch), oracle()
    plain.feed(entries, naive_spread([entry.at for entry in entries], SECOND))
    assert replay.run is not None
    rules, limits = replay.run.tallies()
    assert {(one.rule, True): one.allowed for one in rules if one.allowed} == {
        key: many for key, many in plain.of_rules.items() if key[1]
    }
    assert {(one.rule, False): one.denied for one in rules if one.denied} == {
        key: many for key, many in plain.of_rules.items() if not key[1]
    }
    places = {"4/10 seconds fixed-window": 0, "2/5 seconds sliding-log": 0, "3/minute sliding-log": 1}
    for one in limits:
        place = places.get(one.limit, 0)
        if one.limit.startswith("3/"):
            place = 1
        assert one.allowed == plain.of_limits[one.rule, place, True], one.limit
        assert one.denied == plain.of_limits[one.rule, place, False], one.limit
    for name, client in replay.clients.by_name.items():
        assert client.denied == plain.of_clients[name, False]
        assert client.requests == plain.of_clients[name, False] + plain.of_clients[name, True]
    assert replay.denied == sum(many for (_, allowed), many in plain.of_clients.items() if not allowed)
    assert sum(bucket.requests for bucket in replay.timeline.ordered()) == len(entries)
    assert sum(endpoint.denied for endpoint in replay.endpoints()) == replay.denied


@given(st.lists(requests, max_size=60))
def test_the_general_path_counts_as_the_fast_path_does(drawn: list[tuple[int, str, str, str]]) -> None:
    entries = entries_of(drawn)
    fast = replayed(POLICY, entries)
    general = replayed({**POLICY, "trusted": {"proxies": ["203.0.113.9"]}}, entries)  # it reads headers of each request
    for one in (fast, general):
        assert one.run is not None
    assert fast.run is not None
    assert general.run is not None
    assert [_plain(one) for one in fast.run.tallies()] == [_plain(one) for one in general.run.tallies()]
    assert fast.run.kinds == general.run.kinds


def _plain(tallies: list[LimitTally]) -> list[tuple[object, ...]]:
    return [(one.rule, one.limit, one.is_shadow, one.allowed, one.denied) for one in tallies]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 9))
def test_entries_of_one_second_are_spread_over_it_evenly(gaps: list[int], batch: int) -> None:
    at, entries = START, []
    for gap in gaps:
        at += gap
        entries.append(Entry(at * SECOND, "192.0.2.1", "GET", "/", 200))
    spread, given_times, given_entries = EvenTimes(SECOND), [], []
    for place in range(0, len(entries), batch):
        ready, times = spread.put(entries[place : place + batch])
        given_entries += ready
        given_times += times
    ready, times = spread.rest()
    assert [*given_entries, *ready] == entries
    assert [*given_times, *times] == naive_spread([entry.at for entry in entries], SECOND)


def test_times_are_kept_if_nothing_is_spread() -> None:
    entries = [Entry(at, "a", "GET", "/", 200) for at in (5, 5, 9)]
    assert EvenTimes(1).put(entries) == (entries, [5, 5, 9])


def test_costs_and_shadows_and_results_are_judged() -> None:
    policy = {
        "rules": [
            {"name": "dear", "limits": "10/minute", "cost": 5},
            {"name": "shy", "limits": "1/minute", "mode": "shadow"},
            {"name": "failures", "limits": "1/hour", "charge": "failure"},
        ]
    }
    entries = [
        Entry((START + at) * SECOND, "192.0.2.1", "GET", "/", status) for at, status in enumerate([200, 500, 200])
    ]
    replay = replayed(policy, entries)
    assert replay.run is not None
    rules = {(one.rule, one.is_shadow): (one.allowed, one.denied) for one in replay.run.tallies()[0]}
    assert rules == {("dear", False): (2, 1), ("shy", True): (1, 2), ("failures", False): (2, 1)}
    assert (replay.denied, replay.shadow_denied) == (1, 2)
    assert replay.statuses == {200: 1}


def test_users_and_ipv6_prefixes_are_clients() -> None:
    policy = {"rules": [{"name": "all", "limits": "1/minute"}]}
    clients = [("192.0.2.1", "ada"), ("192.0.2.2", "ada"), ("2001:db8::1", ""), ("2001:db8::2", "")]
    entries = [Entry(START * SECOND, address, "GET", "/", 200, user=user) for address, user in clients]
    replay = replayed(policy, entries)
    assert {name: client.denied for name, client in replay.clients.by_name.items()} == {
        "user:ada": 1,
        "2001:db8::/64": 1,
    }


def test_two_policies_are_compared_in_one_pass() -> None:
    runs = [
        PolicyRun(judged_policy(read_policy({"rules": [{"name": "all", "limits": limits}]}))[0])
        for limits in ("1/minute", "1/10 seconds")
    ]
    replay = LogReplay(*runs)
    entries = [Entry((START + at) * SECOND, "192.0.2.1", "GET", "/", 200) for at in (0, 5, 15, 75)]
    replay.feed(entries, [entry.at for entry in entries])
    client = replay.clients.by_name["192.0.2.1"]
    assert (replay.denied, replay.denied_before, replay.newly_denied, replay.freed) == (2, 1, 1, 0)
    assert (client.denied, client.denied_before, client.newly_denied) == (2, 1, 1)
    assert (client.first_denied, client.last_denied, client.denied_us) == (entries[1].at, entries[2].at, 10 * SECOND)
