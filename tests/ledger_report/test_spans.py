"""Hours, days and months between two instants: the same beginnings as those of the ledger's own sums."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratebound.ledger.periods import begin_of
from ratebound.ledger.spans import days_of, read_instant, spans_between

ZONES = ["UTC", "Europe/Berlin", "America/Sao_Paulo", "Asia/Kolkata", "Pacific/Apia", "America/New_York"]
INSTANTS = st.datetimes(datetime(2011, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))


@given(INSTANTS, st.integers(1, 400), st.integers(0, 10**6), st.sampled_from(["day", "month"]), st.sampled_from(ZONES))
def test_every_instant_is_in_a_span_that_begins_as_in_the_ledger(
    since: datetime, days: int, part: int, by: str, zone: str
) -> None:
    until = since + timedelta(days=days)
    spans = list(spans_between(since, until, by, zone))
    assert spans == sorted(set(spans))
    at = since + (until - since) * part / 10**6
    if at < until:
        begin = begin_of(by, zone)(int(at.timestamp())).astimezone(UTC)
        assert begin in spans


@given(INSTANTS, st.integers(1, 100), st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kolkata"]))
def test_hours_begin_as_in_the_ledger(since: datetime, hours: int, zone: str) -> None:
    spans = list(spans_between(since, since + timedelta(hours=hours), "hour", zone))
    bucket = int(since.timestamp()) // 900 * 900
    assert begin_of("hour", zone)(bucket).astimezone(UTC) == spans[0]
    assert hours <= len(spans) <= hours + 1


def test_a_month_has_its_days() -> None:
    assert [len(days_of(f"2024-{month:02}")) for month in (1, 2, 4, 12)] == [31, 29, 30, 31]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-16", "2026-11-15T23:00:00+00:00"),
        ("2026-11", "2026-10-31T23:00:00+00:00"),
        ("2026-11-16T09:30:00Z", "2026-11-16T09:30:00+00:00"),
        ("2026-11-16T09:30", "2026-11-16T08:30:00+00:00"),
    ],
)
def test_a_time_without_an_offset_is_of_the_zone(text: str, expected: str) -> None:
    assert read_instant(text, "Europe/Berlin").isoformat() == expected


@pytest.mark.parametrize("text", ["", "soon", "9999-12-31T23:00:00-05:00", "0001-01-01T00:00:00+05:00", "9500-01-01"])
def test_a_time_that_cannot_be_used_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="the time"):
        read_instant(text)
