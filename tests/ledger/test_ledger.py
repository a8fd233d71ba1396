"""The ledger in SQLite and PostgreSQL: what was used is written once, added up by day and month, and found again."""

from contextlib import closing
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from ratebound import Limiter, MemoryStorage, StorageError
from ratebound.clock import SECOND
from ratebound.ledger import Change, ClientUsage, EndpointUsage, Ledger, MonthlyOverage, RuleDenials
from ratebound.ledger.client_names import Way
from ratebound.ledger.usage_rows import UsageRecord
from ratebound.policy import Gate, Policy, Rule
from ratebound.storage.postgres.address import read_url as read_address
from ratebound.storage.postgres.connect import open_connection
from ratebound.storage.postgres.migrations import upgrade
from ratebound.storage.postgres.tables import migrations_of_states
from ratebound.testing import FakeClock
from tests.ledger.ledgers import opened, rows_of, totals_of_rules
from tests.policy.gates import request


def at(text: str) -> int:
    """An instant in microseconds."""
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND


def use(
    ledger: Ledger, when: str, key: str = "user:42", units: int = 1, limit: str = "1000/calendar-year as r"
) -> None:
    """Use units at an instant."""
    limiter = Limiter(limit, storage=MemoryStorage(clock=FakeClock(at(when))), listeners=[ledger])
    limiter.hit(key, cost=units)


def times(rows: Any) -> list[tuple[str, int]]:
    return [(begin[11:16], units) for begin, units in numbers(rows)]


def numbers(rows: Any) -> list[tuple[str, int]]:
    return [(row.begin.isoformat(), row.units) for row in rows]


def test_usage_is_added_up_over_several_flushes(ledger: Ledger) -> None:
    limiter = Limiter("3/minute as search", listeners=[ledger])
    for _ in range(5):
        limiter.hit("user:42")
        ledger.flush()
    (found,) = ledger.usage("user:42", by="month")
    assert found[1:] == ("search", 3, 3, 2, 0)
    assert rows_of(ledger) == {("user:42", "search", ""): (3, 3, 2, 0)}
    assert totals_of_rules(ledger) == {"search": (3, 3, 2, 0)}
    assert ledger.state.flushes == 5
    assert ledger.state.pending == 0


def test_days_and_months_are_those_of_a_zone(ledger: Ledger) -> None:
    for when in ("2026-10-31T22:30", "2026-10-31T23:30", "2026-11-01T00:30", "2026-11-30T23:10"):
        use(ledger, when)
    ledger.flush()
    assert numbers(ledger.usage("user:42", by="month")) == [
        ("2026-10-01T00:00:00+00:00", 2),
        ("2026-11-01T00:00:00+00:00", 2),
    ]
    assert numbers(ledger.usage("user:42", by="month", zone="Europe/Berlin")) == [
        ("2026-10-01T00:00:00+02:00", 1),
        ("2026-11-01T00:00:00+01:00", 2),
        ("2026-12-01T00:00:00+01:00", 1),
    ]
    assert numbers(ledger.usage("user:42", by="day", zone="America/New_York", until="2026-11-05")) == [
        ("2026-10-31T00:00:00-04:00", 3)
    ]
    assert ledger.months() == ["2026-11", "2026-10"]
    assert ledger.months(zone="Europe/Berlin") == ["2026-12", "2026-11", "2026-10"]


def test_the_two_hours_of_one_name_when_clocks_go_back_are_two_rows(ledger: Ledger) -> None:
    for when in ("2026-10-24T23:30", "2026-10-25T00:30", "2026-10-25T01:30", "2026-10-25T01:40", "2026-10-25T02:30"):
        use(ledger, when)
    ledger.flush()
    expected = [
        ("2026-10-25T01:00:00+02:00", 1),
        ("2026-10-25T02:00:00+02:00", 1),
        ("2026-10-25T02:00:00+01:00", 2),
        ("2026-10-25T03:00:00+01:00", 1),
    ]
    assert numbers(ledger.usage("user:42", by="hour", zone="Europe/Berlin")) == expected
    assert numbers(ledger.totals(by="bucket", zone="Europe/Berlin")) == expected
    assert numbers(ledger.totals(by="day", zone="Europe/Berlin")) == [("2026-10-25T00:00:00+02:00", 5)]


@pytest.mark.parametrize(
    ("since", "zone"),
    [("0001-01-01", "Asia/Tokyo"), ("0001-01-01T00:00", "Asia/Tokyo"), ("9999-12-31T23:59", "America/New_York")],
)
def test_a_time_that_is_no_time_in_utc_is_a_mistake(ledger: Ledger, since: str, zone: str) -> None:
    with pytest.raises(ValueError, match="expected one of the years 1970 to 9999"):
        ledger.totals(since=since, zone=zone)


def test_zones_with_a_half_hour_are_exact_with_quarter_hour_buckets(ledger_url: str) -> None:
    for ledger in opened(ledger_url, bucket="15 minutes"):
        use(ledger, "2026-11-15T18:29:59")
        use(ledger, "2026-11-15T18:30")
        ledger.flush()
        assert numbers(ledger.totals(zone="Asia/Kolkata")) == [
            ("2026-11-15T00:00:00+05:30", 1),
            ("2026-11-16T00:00:00+05:30", 1),
        ]


def test_periods_may_be_hours_and_buckets(ledger_url: str) -> None:
    for ledger in opened(ledger_url, bucket="5 minutes"):
        for when in ("2026-11-15T10:01", "2026-11-15T10:04", "2026-11-15T10:59", "2026-11-15T11:00"):
            use(ledger, when)
        ledger.flush()
        assert times(ledger.totals(by="bucket")) == [
            ("10:00", 2),
            ("10:55", 1),
            ("11:00", 1),
        ]


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        (None, None, 4),
        ("2026-11-02", None, 2),
        (date(2026, 11, 2), None, 2),
        (None, "2026-11-02", 2),
        (datetime(2026, 11, 2, tzinfo=UTC), datetime(2026, 11, 3, tzinfo=UTC), 1),
        (datetime(2026, 11, 2, 2, tzinfo=timezone(timedelta(hours=2))), None, 2),
        ("2026-11-02T00:00", "2026-11", 0),
        ("2026-11", "2026-12", 4),
    ],
)
def test_queries_take_a_part_of_the_time(sqlite_ledger: Ledger, since: Any, until: Any, expected: int) -> None:
    for when in ("2026-11-01T00:00", "2026-11-01T23:00", "2026-11-02T00:00", "2026-11-03T00:00"):
        use(sqlite_ledger, when)
    sqlite_ledger.flush()
    assert sum(row.units for row in sqlite_ledger.totals(since=since, until=until)) == expected
    assert sum(row.units for row in sqlite_ledger.usage("user:42", since=since, until=until)) == expected
    assert sum(row.units for row in sqlite_ledger.top(since=since, until=until)) == expected
    assert sum(row.allowed for row in sqlite_ledger.denials(since=since, until=until)) == expected


def test_top_clients_denials_and_overage(ledger: Ledger) -> None:
    metered = Limiter("5/calendar-month over allow as calls", listeners=[ledger])
    tight = Limiter("1/minute as tight", listeners=[ledger])
    month = datetime.now(UTC).strftime("%Y-%m")
    for client, cost in (("user:1", 9), ("user:2", 12), ("user:3", 2)):
        metered.hit(client, cost=cost)
    for _ in range(4):
        tight.hit("user:1")
    ledger.flush()
    assert ledger.top(most=2) == [
        ClientUsage("user:2", "calls", 12, 1, 0, 7),
        ClientUsage("user:1", "calls", 9, 1, 0, 4),
    ]
    assert ledger.top(by="denied") == [ClientUsage("user:1", "tight", 1, 1, 3, 0)]
    assert [row.client for row in ledger.top(by="overage")] == ["user:2", "user:1"]
    assert [row.units for row in ledger.top(rule="tight")] == [1]
    assert ledger.denials() == [RuleDenials("calls", 3, 0, 0.0), RuleDenials("tight", 1, 3, 0.75)]
    assert ledger.overage(month) == [
        MonthlyOverage(month, "user:1", "calls", 9, 4),
        MonthlyOverage(month, "user:2", "calls", 12, 7),
    ]
    assert ledger.overage(month, client="user:2") == [MonthlyOverage(month, "user:2", "calls", 12, 7)]
    assert ledger.overage("1999-01") == []


def test_overage_that_was_settled_away_is_not_billed(ledger: Ledger) -> None:
    limiter = Limiter("5/calendar-month over allow as calls", listeners=[ledger])
    decision = limiter.hit("user:1", cost=9)
    ledger.flush()
    limiter.settle(decision, cost=3)
    ledger.flush()
    assert ledger.overage(datetime.now(UTC).strftime("%Y-%m")) == []
    assert rows_of(ledger) == {("user:1", "calls", ""): (3, 1, 0, 0)}


def test_endpoints_of_a_gate(ledger: Ledger) -> None:
    with Gate(Policy(rules=[Rule("all", "99/minute", by="user")]), storage="memory://", listeners=[ledger]) as gate:
        for path in ("/orders/1", "/orders/2", "/"):
            gate.decide(request(path, user="ann"))
        gate.decide(request("/", user="bob"))
    ledger.flush()
    assert ledger.endpoints(client="user:ann") == [
        EndpointUsage("GET /orders/{id}", "all", 2, 2, 0, 0),
        EndpointUsage("GET /", "all", 1, 1, 0, 0),
    ]
    assert [row.units for row in ledger.endpoints()] == [2, 2]


def test_endpoints_can_be_left_out(tmp_path: Path) -> None:
    for ledger in opened(f"sqlite:///{tmp_path}/usage.db", endpoints=False):
        with Gate(Policy(rules=[Rule("all", "99/minute")]), storage="memory://", listeners=[ledger]) as gate:
            gate.settle(gate.decide(request("/a")), cost=3)
        ledger.flush()
        assert [row[:1] + row[2:3] for row in ledger.endpoints()] == [("", 3)]


def test_clients_are_digests_that_need_a_secret(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/usage.db"
    with pytest.raises(ValueError, match="secret=…, or clients='name'"):
        Ledger(url)
    with Ledger(url, secret="s") as ledger:
        Limiter("9/minute as m", listeners=[ledger]).hit("user:42")
        ledger.flush()
        (row,) = ledger.top()
        assert "42" not in row.client or len(row.client) == 16
        assert row.client != "user:42"
        assert [found.units for found in ledger.usage("user:42")] == [1]
        assert [found.units for found in ledger.usage(row.client)] == [1], "a digest that the ledger has told"
        assert ledger.usage("user:43") == []
    for path in tmp_path.iterdir():
        assert b"user:42" not in path.read_bytes()
    with Ledger(url, secret="another", writes=False) as other:
        assert other.usage("user:42") == []


def test_clients_are_named_as_operators_write_them(sqlite_ledger: Ledger) -> None:
    rules = [Rule("by-address", "9/minute", by="address"), Rule("by-user", "9/minute", by="user")]
    with Gate(Policy(rules=rules), storage="memory://", listeners=[sqlite_ledger]) as gate:
        gate.decide(request("/", user="ann"))
    sqlite_ledger.flush()
    assert {row.client for row in sqlite_ledger.top()} == {"192.0.2.1", "user:ann"}
    assert [row.rule for row in sqlite_ledger.usage("192.0.2.1")] == ["by-address"]


@pytest.mark.parametrize(
    "key", ["\x00", "a\x00b", "\ud800", "x" * 5000, "'; DROP TABLE ratebound_usage; --", "%s", "?"]
)
def test_any_key_can_be_written_and_found(ledger: Ledger, key: str) -> None:
    limiter = Limiter("9/minute as m", listeners=[ledger])
    limiter.hit(key)
    limiter.hit("other key")
    ledger.flush()
    assert [row.units for row in ledger.usage(key)] == [1]


def test_numbers_are_capped_and_never_stop_a_flush(ledger: Ledger) -> None:
    database: Any = ledger._database
    for number in range(1, 4):
        database.write(b"w", number, [UsageRecord(3600, "c", "r", "", 2**53, 1, 0, 2**53)])
    assert rows_of(ledger) == {("c", "r", ""): (2**53, 3, 0, 2**53)}


def test_a_flush_that_is_repeated_counts_once(ledger: Ledger) -> None:
    database: Any = ledger._database
    record = UsageRecord(3600, "c", "r", "", 5, 1, 0, 0)
    for number in (1, 1, 2, 1, 2):
        database.write(b"w", number, [record])
    database.write(b"another", 1, [record])
    assert rows_of(ledger) == {("c", "r", ""): (15, 3, 0, 0)}
    assert totals_of_rules(ledger) == {"r": (15, 3, 0, 0)}


def change(number: int, **fields: Any) -> Change:
    at = datetime(2026, 11, 1, tzinfo=UTC) + timedelta(seconds=number)
    return Change(at, "ann", "block", f"user:{number}", "")._replace(**fields)


def test_changes_are_kept_once_and_found_again(ledger: Ledger) -> None:
    changes = [change(1), change(2, by="bob"), change(3, action="unblock", detail="naïve \x00")]
    ledger.record_changes(changes)
    ledger._trail.renew()  # as another process: it does not know what is there
    ledger.record_changes([change(4), *reversed(changes)])
    found = ledger.audit()
    assert [one.target for one in found] == ["user:4", "user:3", "user:2", "user:1"]
    assert found[2] == changes[1]
    assert [one.target for one in ledger.audit(most=1)] == ["user:4"]
    assert [one.target for one in ledger.audit(by="bob")] == ["user:2"]
    assert [one.target for one in ledger.audit(action="unblock")] == ["user:3"]
    assert [one.target for one in ledger.audit(target="user:1")] == ["user:1"]
    assert ledger.audit(since="2026-11-02") == []


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE ratebound_audit SET target = 'x'",
        "DELETE FROM ratebound_audit",
        "DELETE FROM ratebound_audit WHERE target = 'user:1'",
    ],
)
def test_the_audit_cannot_be_changed(ledger: Ledger, statement: str) -> None:
    ledger.record_changes([change(1)])
    database: Any = ledger._database
    with pytest.raises(StorageError, match="append-only"), database._writing() as connection:
        connection.execute(statement)
    assert ledger.audit() == [change(1)]


def test_no_row_of_the_audit_can_be_replaced_in_sqlite(sqlite_ledger: Ledger) -> None:
    sqlite_ledger.record_changes([change(1)])
    database: Any = sqlite_ledger._database
    with pytest.raises(StorageError, match="append-only"), database._writing() as connection:
        connection.execute("INSERT OR REPLACE INTO ratebound_audit VALUES (1, 1, 'eve', 'x', 'y', '', x'00')")
    assert sqlite_ledger.audit() == [change(1)]


def test_changes_of_a_gate_are_copied_with_every_flush(ledger: Ledger) -> None:
    with Gate(Policy(rules=[Rule("all", "9/minute", by="user")]), storage="memory://") as gate:
        ledger.follow(gate)
        gate.block("user:1", reason="abuse", by="ann")
        ledger.flush()
        gate.unblock("user:1", by="bob")
        ledger.flush()
        assert [(one.by, one.target) for one in ledger.audit()] == [("bob", "user:1"), ("ann", "user:1")]
        assert ledger.audit() == gate.changes()


@pytest.mark.parametrize("clients", ["name", "digest"])
@pytest.mark.parametrize(
    "key", ["10.0.0.1:8080", "shop.example:42", "jwt.sub:42", "address:::1", "prefix.24:10.0.0.0/24", "a:b", "other"]
)
def test_a_client_is_found_by_the_key_of_a_limiter(tmp_path: Path, clients: Way, key: str) -> None:
    with Ledger(f"sqlite:///{tmp_path}/u.db", clients=clients, secret="x", every=3600) as ledger:
        Limiter("9/minute as m", listeners=[ledger]).hit(key, cost=3)
        ledger.flush()
        assert [row.units for row in ledger.usage(key)] == [3]


def test_no_change_through_a_gate_is_missed_between_two_flushes(ledger: Ledger) -> None:
    policy = Policy(rules=[Rule("all", "9/minute", by="user")])
    with Gate(policy, storage="memory://", listeners=[ledger]) as gate:
        ledger.follow(gate)  # the storage keeps the last 200 of each kind
        for number in range(450):
            gate.block(f"user:{number}", by="ann")
        for number in range(250):
            gate.record("grant", f"user:{number}", "5 units", by="ann")
        assert ledger.state.pending == 700
        ledger.flush()
        assert ledger.state.pending == 0
        found = ledger.audit(most=1000)
        assert len(found) == 700
        assert set(gate.changes()) < set(found)
        gate.unblock("user:1", by="bob")
        gate.override("user:1", limits="1/minute", by="bob")
        gate.remove_override("user:1", by="bob")
        gate.set_switch("off", rule="all", by="bob")
        gate.remove_switch("all", by="bob")
        ledger.flush()
        assert len(ledger.audit(most=1000, by="bob")) == 5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ledger: ledger.usage(""), "expected the name of a client"),
        (lambda ledger: ledger.usage("a", by="week"), "cannot add up by 'week'"),
        (lambda ledger: ledger.usage("a", zone="Mars"), "unknown time zone 'Mars'"),
        (lambda ledger: ledger.usage("a", since="yesterday"), "cannot read the time 'yesterday'"),
        (lambda ledger: ledger.overage("2026-13"), "cannot read the month '2026-13'"),
        (lambda ledger: ledger.overage("now"), "cannot read the month 'now'"),
        (lambda ledger: ledger.top(by="rule"), "cannot order by 'rule'"),
        (lambda ledger: ledger.top(most=0), "most must be a whole number"),
        (lambda ledger: ledger.audit(most=True), "most must be a whole number"),
    ],
)
def test_wrong_arguments_of_queries_raise(sqlite_ledger: Ledger, call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(sqlite_ledger)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bucket": "2 hours"}, "cannot use bucket '2 hours': expected one of '1 minute'"),
        ({"clients": "clear"}, "expected 'digest' or 'name'"),
        ({"every": 0}, "every must be seconds"),
        ({"every": 7200}, "at most 3600"),
        ({"keep": "soon"}, "expected at least a day, for example '400 days'"),
        ({"keep": "1 hour"}, "expected at least a day"),
        ({"secret": ""}, "not empty"),
    ],
)
def test_wrong_options_raise_when_the_ledger_is_made(tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Ledger(f"sqlite:///{tmp_path}/usage.db", **{"clients": "name", **options})


@pytest.mark.parametrize("url", ["redis://localhost", "usage.db", "memory://", "sqlite://", "sqlite:///:memory:"])
def test_only_databases_that_last_can_be_a_ledger(url: str) -> None:
    with pytest.raises(ValueError, match="cannot open"):
        Ledger(url, clients="name")


def test_a_ledger_for_reading_finds_nothing_before_anybody_has_written(tmp_path: Path) -> None:
    with Ledger(f"sqlite:///{tmp_path}/usage.db", clients="name", writes=False) as ledger:
        with pytest.raises(StorageError, match="no program has written to it yet"):
            ledger.months()
        with pytest.raises(RuntimeError, match="this ledger is for reading"):
            ledger("event")


def test_old_usage_is_removed_and_the_audit_stays(ledger_url: str) -> None:
    for ledger in opened(ledger_url, keep="30 days"):
        now = datetime.now(UTC).replace(tzinfo=None)
        for days in (0, 10, 29, 80, 400):
            use(ledger, (now - timedelta(days=days)).isoformat(timespec="seconds"))
        ledger.record_changes([change(1, at=datetime(2020, 1, 1, tzinfo=UTC))])
        ledger.flush()
        ledger._database.maintain(int(now.replace(tzinfo=UTC).timestamp()), 30 * 86_400)
        assert rows_of(ledger) == {("user:42", "r", ""): (3, 3, 0, 0)}
        assert totals_of_rules(ledger) == {"r": (3, 3, 0, 0)}
        assert len(ledger.audit()) == 1


def test_long_names_of_rules_and_endpoints_fit_into_the_index(ledger: Ledger) -> None:
    name = "".join(chr(0x1F300 + number * number % 997) for number in range(500))  # which PostgreSQL cannot compress
    with Gate(Policy(rules=[Rule("r" * 40, "9/minute", by="user")]), storage="memory://", listeners=[ledger]) as gate:
        view = request("/", user=name[:250])
        view.route = f"/{name}"
        gate.decide(view)
    ledger.flush()
    (row,) = ledger.endpoints()
    assert row.units == 1
    assert row.endpoint.startswith(f"GET /{name[:90]}")


def test_states_and_usage_may_share_a_database(ledger_url: str) -> None:
    if ledger_url.startswith("postgres"):
        address = read_address(ledger_url)
        with closing(open_connection(address)) as connection:
            upgrade(connection, address, "states", migrations_of_states())
    for ledger in opened(ledger_url, every=0.01):
        with Limiter("50/day as d", storage=ledger_url, listeners=[ledger]) as limiter:
            decisions = [limiter.hit(f"k{number % 3}", cost=5) for number in range(60)]
            limiter.settle(decisions[0], cost=1)
        ledger.flush()
        allowed = sum(decision.allowed for decision in decisions)
        assert not any(decision.degraded for decision in decisions)
        assert allowed == 30
        assert totals_of_rules(ledger) == {"d": (146, 30, 30, 0)}


def test_a_client_is_forgotten_and_the_totals_stay(ledger: Ledger) -> None:
    use(ledger, "2026-10-30T10:00:00", units=3)
    ledger.flush()
    use(ledger, "2026-11-16T10:00:00", units=4)  # not written yet
    use(ledger, "2026-11-16T10:00:00", key="user:7", units=5)
    assert ledger.forget("user:42") == 2
    assert ledger.forget("user:42") == 0
    assert ledger.usage("user:42") == []
    assert [(row.client, row.units) for row in ledger.top()] == [("user:7", 5)]
    assert totals_of_rules(ledger)["r"][0] == 12
    use(ledger, "2026-11-16T11:00:00", units=1)
    ledger.flush()
    assert [row.units for row in ledger.usage("user:42")] == [1]


def test_a_client_is_forgotten_by_its_name_under_digests(tmp_path: Path) -> None:
    with Ledger(f"sqlite:///{tmp_path}/usage.db", secret="0123456789abcdef", every=3600) as found:
        use(found, "2026-11-16T10:00:00")
        assert found.forget("user:42") == 1
        assert found.top() == []
