"""Replays that could go wrong: identities, odd times, long names, damaged output."""

from ratebound.policy import read_policy
from ratebound.replay.engine import PolicyRun
from ratebound.replay.entry import Entry
from ratebound.replay.log_replay import LogReplay

NOON = 1_794_830_400_000_000  # 16 November 2026, 12:00 UTC


def test_what_an_address_asks_is_not_remembered_for_another_user_agent() -> None:
    policy = read_policy({"rules": [{"name": "all", "by": "address + agent", "limits": "1/minute"}]})
    entries = [Entry(NOON, "192.0.2.1", "GET", "/", 200, agent=agent) for agent in ("curl", "wget", "curl")]
    replay = LogReplay(PolicyRun(policy))
    replay.feed(entries, [entry.at for entry in entries])
    assert (replay.requests, replay.denied) == (3, 1)


def test_what_a_user_asks_is_remembered_for_that_user_alone() -> None:
    policy = read_policy({"rules": [{"name": "all", "by": ["user + agent", "address"], "limits": "1/minute"}]})
    clients = [("ada", "curl"), ("ada", "wget"), ("bob", "curl"), ("ada", "curl"), ("", "curl"), ("", "wget")]
    entries = [Entry(NOON, "192.0.2.1", "GET", "/", 200, user=user, agent=agent) for user, agent in clients]
    replay = LogReplay(PolicyRun(policy))
    replay.feed(entries, [entry.at for entry in entries])
    assert (replay.requests, replay.denied) == (6, 2)


def test_no_address_and_user_are_taken_for_others() -> None:
    policy = read_policy({"rules": [{"name": "all", "limits": "1/minute"}]})
    clients = [
        ("192.0.2.1", "1"),
        ("192.0.2.11", ""),
        ("192.0.2.1", ""),
        ("192.0.2.1", "0 192.0.2.1"),
        ("", "192.0.2.1"),
    ]
    entries = [Entry(NOON, address, "GET", "/", 200, user=user) for address, user in clients]
    replay = LogReplay(PolicyRun(policy))
    replay.feed(entries, [entry.at for entry in entries])
    assert replay.denied == 0


def test_times_before_1970_and_far_ahead_are_counted() -> None:
    entries = [Entry(at, "192.0.2.1", "GET", "/", 200) for at in (-5_000_000, 0, NOON, 9_000_000_000_000_000_000)]
    replay = LogReplay(PolicyRun(read_policy({"rules": [{"name": "all", "limits": "1/minute"}]})))
    replay.feed(entries, [entry.at for entry in entries])
    assert sum(bucket.requests for bucket in replay.timeline.ordered()) == 4
    assert replay.denied == 1
