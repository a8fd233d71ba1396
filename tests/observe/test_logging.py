"""The log says who was denied and by what, and cannot be flooded."""

import logging
import threading

import pytest

from ratebound import Check, Limiter, StorageError, parse_limit
from ratebound.events import Called, Degraded, Event, Recovered
from ratebound.observe import LogListener
from ratebound.testing import FakeClock
from tests.limiters import limiter_of
from tests.observe.decisions import refusal, told, without_storage


@pytest.fixture(autouse=True)
def everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="ratebound")


def test_a_refusal_is_logged_with_fields_and_without_the_key(
    caplog: pytest.LogCaptureFixture, clock: FakeClock
) -> None:
    LogListener(clock=clock)(told(refusal(limiter_of("2/minute as login", clock), "user:42")))
    (record,) = caplog.records
    assert (record.levelno, record.name) == (logging.INFO, "ratebound")
    fields = {name: value for name, value in vars(record).items() if name.startswith("ratebound_")}
    digest = fields.pop("ratebound_key")
    assert fields == {
        "ratebound_event": "denied",
        "ratebound_limit": "login",
        "ratebound_retry_after": 60.0,
        "ratebound_degraded": None,
        "ratebound_unavailable": False,
        "ratebound_shed": False,
        "ratebound_blocked": False,
        "ratebound_suppressed": 0,
    }
    assert len(digest) == 16
    assert record.getMessage() == f"denied {digest} by login, retry after 60 s"
    assert "user:42" not in str(vars(record))


def test_a_digest_is_the_same_for_the_same_key_and_secret_only(
    caplog: pytest.LogCaptureFixture, clock: FakeClock
) -> None:
    limiter = limiter_of("1/minute", clock)
    secrets: list[str | bytes | None] = ["s", b"s", "s", "t", "s" * 100, "s" * 101, None, None]
    for secret, key in zip(secrets, "aabaaaaa", strict=True):
        LogListener(secret=secret, clock=clock)(told(refusal(limiter, key)))
    first, again, *others = [vars(record)["ratebound_key"] for record in caplog.records]
    assert first == again
    assert len({first, *others}) == 7


def test_a_key_in_clear_text_cannot_forge_a_line_or_fill_the_log(
    caplog: pytest.LogCaptureFixture, clock: FakeClock
) -> None:
    log, limiter = LogListener(clear=True, clock=clock), limiter_of("1/minute", clock)
    for key in ("user:42", "x\nERROR forged", "\ud800", "long" * 1_000):
        log(told(refusal(limiter, key)))
    keys = [vars(record)["ratebound_key"] for record in caplog.records]
    assert keys[:3] == ["user:42", "x\\nERROR forged", "\\ud800"]
    assert len(keys[3]) == 16
    assert all("\n" not in record.getMessage() for record in caplog.records)


def test_only_the_keys_at_fault_are_named(caplog: pytest.LogCaptureFixture, clock: FakeClock) -> None:
    limiter = limiter_of("1/minute", clock)
    wide, narrow = (parse_limit("9/minute as wide"), parse_limit("8/minute as wider")), parse_limit("1/hour as narrow")
    for _ in range(2):
        decision = limiter.check([Check("ip", wide), Check("user", narrow), Check("team", wide)])
    LogListener(clear=True, clock=clock)(told(decision))
    for _ in range(2):
        decision = limiter.check([Check("tenant", (narrow, parse_limit("1/day"))), Check("someone", wide)])
    LogListener(clear=True, clock=clock)(told(decision))
    assert caplog.messages == [
        "denied user by narrow, retry after 3600 s",
        "denied tenant by 1/day, retry after 86400 s",
    ]


def test_what_no_wait_can_help_says_so(caplog: pytest.LogCaptureFixture, clock: FakeClock) -> None:
    LogListener(clear=True, clock=clock)(told(limiter_of("2/minute as small", clock).hit("k", cost=3)))
    assert caplog.messages == ["denied k by small, no wait can help"]


def test_a_flood_is_cut_to_its_budget_and_the_rest_is_counted(
    caplog: pytest.LogCaptureFixture, clock: FakeClock
) -> None:
    log, denied = LogListener(per_minute=10, clock=clock), told(refusal(limiter_of("1/minute", clock), "k"))
    for _ in range(1_000):
        log(denied)
    assert len(caplog.records) == 10
    clock.advance(6)
    log(denied)
    log(denied)
    assert len(caplog.records) == 11
    assert caplog.messages[-1].endswith("(990 more like this were not logged)")
    assert vars(caplog.records[-1])["ratebound_suppressed"] == 990
    clock.advance(60)
    log(denied)
    log(denied)
    assert [vars(record)["ratebound_suppressed"] for record in caplog.records[-2:]] == [1, 0]


def test_a_flood_of_refusals_does_not_swallow_an_outage(caplog: pytest.LogCaptureFixture, clock: FakeClock) -> None:
    log, denied = LogListener(per_minute=1, clock=clock), told(refusal(limiter_of("1/minute", clock), "k"))
    events: list[Event] = [*[denied] * 100, Degraded("one:6379", "timed out"), Recovered("one:6379", 2.5, 7)]
    for event in events:
        log(event)
    assert [record.levelname for record in caplog.records] == ["INFO", "ERROR", "WARNING"]
    assert caplog.messages[1:] == [
        "decisions are made without the storage one:6379: timed out",
        "the storage one:6379 decides again after 2.5 s; 7 units written back",
    ]
    assert vars(caplog.records[2])["ratebound_written_back"] == 7


def test_a_storage_without_a_name_is_just_the_storage(caplog: pytest.LogCaptureFixture, clock: FakeClock) -> None:
    log = LogListener(clock=clock)
    log(Degraded("", "100 % lost"))
    log(Recovered("", 2.5, 0))
    assert caplog.messages == [
        "decisions are made without the storage: 100 % lost",
        "the storage decides again after 2.5 s; 0 units written back",
    ]


def test_the_reason_of_a_degraded_refusal_is_in_its_line(caplog: pytest.LogCaptureFixture, clock: FakeClock) -> None:
    denied = without_storage(refusal(limiter_of("1/minute", clock), "k"), "100 % lost")
    LogListener(clock=clock)(told(denied))
    assert caplog.messages[0].endswith("; decided without the storage: 100 % lost")
    assert vars(caplog.records[0])["ratebound_degraded"] == "100 % lost"


def test_what_is_allowed_and_what_is_not_asked_for_is_not_logged(
    caplog: pytest.LogCaptureFixture, clock: FakeClock
) -> None:
    limiter = limiter_of("1/minute", clock)
    LogListener(clock=clock)(told(limiter.hit("k")))
    LogListener(clock=clock)(Called("node", 0.1, StorageError("gone")))
    LogListener(denials=False, clock=clock)(told(limiter.hit("k")))
    assert not caplog.records


def test_a_logger_of_ones_own_at_a_level_of_ones_own(caplog: pytest.LogCaptureFixture, clock: FakeClock) -> None:
    log = LogListener(logging.getLogger("mine"), level=logging.WARNING, clock=clock)
    log(told(refusal(limiter_of("1/minute", clock), "k")))
    assert [(record.name, record.levelname) for record in caplog.records] == [("mine", "WARNING")]


def test_threads_lose_no_count_of_what_was_not_logged(caplog: pytest.LogCaptureFixture, clock: FakeClock) -> None:
    log, denied = LogListener(per_minute=5, clock=clock), told(refusal(Limiter("1/minute"), "k"))

    def tell() -> None:
        for _ in range(500):
            log(denied)

    threads = [threading.Thread(target=tell) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    clock.advance(60)
    log(denied)
    assert len(caplog.records) == 6
    assert vars(caplog.records[-1])["ratebound_suppressed"] == 4 * 500 - 5
