"""Telling listeners: a fast event is the same as its class makes, and a listener that fails disturbs nobody."""

import copy
import inspect
import pickle
from typing import Any, get_type_hints

import pytest

from ratebound import Decision, Limiter
from ratebound.events import Decided
from ratebound.telling import decided, tell


def test_a_fast_event_is_a_decided_event_in_every_way() -> None:
    decision = Limiter("2/minute").hit("k")
    event = decided(decision, 0.25)
    assert type(event) is Decided
    assert event == Decided(decision, 0.25)
    assert tuple(event) == (decision, 0.25, None)
    assert hash(event) == hash(Decided(decision, 0.25))
    assert repr(event) == repr(Decided(decision, 0.25))
    first, seconds, request = event
    assert request is event.request is None
    assert first is event.decision is decision
    assert seconds == event.seconds == 0.25
    assert event._asdict() == {"decision": decision, "seconds": 0.25, "request": None}
    assert event._replace(seconds=0.5) == Decided(decision, 0.5)
    assert copy.copy(event) == event


def test_a_fast_event_can_be_pickled() -> None:
    event = decided(Limiter("2/minute").hit("k"), 0.25)
    found = pickle.loads(pickle.dumps(event))
    assert type(found) is Decided
    assert found.seconds == 0.25
    assert found.decision.rows == event.decision.rows


def test_help_says_what_an_event_is_in_every_build() -> None:
    assert (inspect.getdoc(Decided) or "").startswith("A request was decided.")
    assert list(inspect.signature(Decided).parameters) == ["decision", "seconds", "request"]
    assert get_type_hints(Decided) == {"decision": Decision, "seconds": float, "request": Any}


def test_every_listener_gets_the_event_although_another_fails(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[object] = []

    def fails(event: object) -> None:
        seen.append(event)
        raise OSError("no")

    tell((fails, seen.append, fails), "event")
    assert seen == ["event"] * 3
    assert caplog.messages == ["a listener failed; the decision stands"] * 2
    assert [type(record.exc_info[1]) for record in caplog.records if record.exc_info] == [OSError, OSError]


def test_what_ends_a_program_is_no_failure_of_a_listener(caplog: pytest.LogCaptureFixture) -> None:
    def interrupted(event: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tell((interrupted,), "event")
    assert not caplog.messages


def test_without_listeners_nothing_happens() -> None:
    tell((), "event")
