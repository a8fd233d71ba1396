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
