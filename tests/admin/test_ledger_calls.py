"""The calls about the usage ledger: on gates for threads and for tasks, with names and without, and what is wrong."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ratebound.flow import run, run_async
from ratebound.ledger import Ledger
from ratebound.policy import AsyncGate, Gate
from tests.admin.sites import READ_TOKEN, WRITE_TOKEN, Answered, a_policy, a_site, read, request_of
from tests.ledger.ledgers import KINDS, new_url
from tests.ledger_report.filled import FORMULA, MARKUP, fill, filled

NOVEMBER = "since=2026-11-01&until=2026-12-01"
SECRET = "a secret of the digests"


class AskedLedger:
    """A site with a ledger, on a gate for threads or for tasks."""

    def __init__(self, kind: type[Any], ledger: Any) -> None:
        self.gate = kind(a_policy())
        self.site = a_site(self.gate, ledger=ledger)

    def __call__(self, path: str, token: str = READ_TOKEN) -> Answered:
        flow = self.site.answer(request_of("GET", path, token=token))
        return read(asyncio.run(run_async(flow)) if isinstance(self.gate, AsyncGate) else run(flow))


@pytest.fixture(scope="module", params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return filled(new_url(request.param, request, tmp_path_factory.mktemp("ledger")))


@pytest.fixture(params=[Gate, AsyncGate], ids=lambda kind: kind.__name__)
def asked(request: pytest.FixtureRequest, url: str) -> Iterator[AskedLedger]:
    with Ledger(url, clients="name", writes=False) as ledger:
        yield AskedLedger(request.param, ledger)


def test_the_session_says_whether_there_is_a_ledger(asked: AskedLedger) -> None:
    assert asked("api/session").json["ledger"] is True
    assert AskedLedger(type(asked.gate), None)("api/session").json["ledger"] is False


@pytest.mark.parametrize("call", ["usage?client=user:42", "totals", "top", "denials", "overage", "audit"])
def test_without_a_ledger_the_answer_says_how_to_get_one(call: str) -> None:
    answer = AskedLedger(Gate, None)(f"api/ledger/{call}")
    assert answer.status == 404
    assert "limits.dashboard(auth=…, ledger=Ledger(…))" in answer.json["detail"]


def test_names_are_digests_for_readers_and_are_recorded_for_writers(asked: AskedLedger) -> None:
    for call in (f"top?{NOVEMBER}", "overage?month=2026-11"):
        answer = asked(f"api/ledger/{call}")
        assert answer.status == 200
        assert b"user:" not in answer.body
        assert asked(f"api/ledger/{call}&names=yes").status == 403
        assert b"user:42" in asked(f"api/ledger/{call}&names=yes", WRITE_TOKEN).body
    top = asked(f"api/ledger/top?{NOVEMBER}&names=yes", WRITE_TOKEN).json["top"]
    assert {one["name"] for one in top} == {"user:42", FORMULA, MARKUP}
    assert len({one["client"] for one in top}) == 3
    actions = [(one["action"], one["detail"]) for one in asked("api/changes").json["changes"]]
    assert actions == [
        ("show names", "3 clients of the ledger"),
        ("show names", "1 client of the ledger"),
        ("show names", "3 clients of the ledger"),
    ]


def test_a_ledger_of_digests_has_no_names_to_show(tmp_path: Path) -> None:
    with Ledger(f"sqlite:///{tmp_path}/digests.db", secret=SECRET) as ledger:
        fill(ledger)
        asked = AskedLedger(Gate, ledger)
        top = asked(f"api/ledger/top?{NOVEMBER}&names=yes", WRITE_TOKEN).json["top"]
        assert not any("name" in one for one in top)
        by_name = asked(f"api/ledger/usage?client=user:42&{NOVEMBER}").json["usage"]
        assert sum(one["units"] for one in by_name) == 14
        assert asked(f"api/ledger/usage?client={top[0]['client']}&{NOVEMBER}").json["usage"] == by_name


@pytest.mark.parametrize(("by", "spans"), [("hour", 24 * 30), ("day", 30), ("month", 1)])
def test_totals_have_every_span_also_those_without_usage(asked: AskedLedger, by: str, spans: int) -> None:
    totals = asked(f"api/ledger/totals?{NOVEMBER}&by={by}").json["totals"]
    assert len(totals) == spans
    assert [sum(one[name] for one in totals) for name in ("units", "allowed", "denied", "overage")] == [17, 6, 1, 2]
    assert [one["at"] for one in totals] == sorted(one["at"] for one in totals)


def test_buckets_are_those_of_the_ledger(asked: AskedLedger) -> None:
    totals = asked(f"api/ledger/totals?{NOVEMBER}&by=bucket").json["totals"]
    assert [one["at"] for one in totals] == ["2026-11-02T10:00:00Z", "2026-11-15T08:00:00Z", "2026-11-30T23:00:00Z"]


def test_days_are_those_of_the_zone(asked: AskedLedger) -> None:
    found = asked("api/ledger/totals?since=2026-12-01&until=2026-12-02&zone=Europe/Berlin").json
    assert (found["since"], found["until"]) == ("2026-11-30T23:00:00Z", "2026-12-01T23:00:00Z")
    assert [(one["at"], one["units"]) for one in found["totals"]] == [("2026-11-30T23:00:00Z", 5)]


def test_usage_may_be_of_one_rule(asked: AskedLedger) -> None:
    found = asked(f"api/ledger/usage?client=user:42&rule=search&by=month&{NOVEMBER}").json["usage"]
    numbers = {"units": 2, "allowed": 2, "denied": 1, "overage": 0}
    assert found == [{"at": "2026-11-01T00:00:00Z", "rule": "search", **numbers}]


def test_the_audit_trail_is_listed_for_readers(asked: AskedLedger) -> None:
    (change,) = asked("api/ledger/audit").json["changes"]
    assert (change["by"], change["action"], change["at"]) == ("ann", "block", "2026-11-03T09:30:00Z")
    assert asked("api/ledger/audit?until=2026-11-01").json["changes"] == []


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("totals?since=soon", "since"),
        ("totals?since=2026-11-02&until=2026-11-01", "since"),
        ("totals?since=1990-01-01&by=hour", "since"),
        ("totals?by=week", "by"),
        ("totals?zone=Mars/Base", "zone"),
        ("totals?until=9999-12-31", "until"),
        ("top?by=allowed", "by"),
        ("top?most=0", "most"),
        ("top?most=1001", "most"),
        ("top?most=ten", "most"),
        ("overage?month=2026-13", "month"),
        ("overage?month=november", "month"),
        ("usage", "client"),
    ],
)
def test_what_is_wrong_is_said_with_its_field(asked: AskedLedger, path: str, field: str) -> None:
    answer = asked(f"api/ledger/{path}")
    assert (answer.status, answer.fields) == (422, [field]), answer.body


def test_pages_that_ask_the_same_cost_as_much_as_one(asked: AskedLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    first = asked(f"api/ledger/denials?{NOVEMBER}").json
    selects: list[str] = []

    def denials(self: Ledger, **times: Any) -> list[Any]:
        selects.append("denials")
        return []

    monkeypatch.setattr(Ledger, "denials", denials)
    assert asked(f"api/ledger/denials?{NOVEMBER}").json == first
    assert selects == []
    assert asked("api/ledger/denials?since=2026-11-01&until=2026-12-02").json == {"denials": []}
    assert asked("api/ledger/denials").json == {"denials": []}
    assert selects == ["denials"] * 2
    monkeypatch.setattr("ratebound.admin.ledger_calls.FRESH", -1.0)
    assert asked(f"api/ledger/denials?{NOVEMBER}").json == {"denials": []}


def test_a_ledger_that_does_not_answer_is_503(tmp_path: Path) -> None:
    asked = AskedLedger(Gate, Ledger(f"sqlite:///{tmp_path}/none/usage.db", clients="name", writes=False))
    answer = asked("api/ledger/totals")
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
