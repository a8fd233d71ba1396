"""The usage ledger of a service in real processes: what workers decide is written, and the control plane reads it."""

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from ratebound.ledger import Ledger
from tests.databases import Postgres
from tests.ledger.ledgers import make_tables
from tests.servers import wait_until
from tests.service.running_service import CLIENT, RunningService, running_service

WRITE, READ = "a-token-that-may-write", "a-token-that-may-read"
TOKENS = {"RATEBOUND_ADMIN_TOKENS": f"ann={WRITE}", "RATEBOUND_ADMIN_READ_TOKENS": f"bob={READ}"}
LOGIN = {"method": "POST", "path": "/login", "address": "203.0.113.7"}
POLICY = """
rules:
  - {name: login, match: {paths: /login}, by: address, limits: 2/hour}
  - {name: month, match: {paths: /items/*}, by: address, limits: 3/calendar-month, over: allow}
"""


def ledger_of(folder: Path, **more: str) -> dict[str, str]:
    return {
        "RATEBOUND_LEDGER": f"sqlite:///{folder}/usage.db",
        "RATEBOUND_LEDGER_CLIENTS": "name",
        "RATEBOUND_LEDGER_EVERY": "0.1",
        **{f"RATEBOUND_LEDGER_{name.upper()}": value for name, value in more.items()},
    }


def get(service: RunningService, path: str, token: str = READ) -> httpx.Response:
    return CLIENT.get(f"{service.url('admin')}/api/{path}", headers={"authorization": f"Bearer {token}"})


def told(service: RunningService, path: str, token: str = READ) -> Any:
    answer = get(service, path, token)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_stop_writes_what_every_worker_has_counted(tmp_path: Path) -> None:
    with running_service("--workers", "2", policy=POLICY, environ=ledger_of(tmp_path, every="3600")) as service:
        for _ in range(40):
            service.ask("/v1/decide", LOGIN)
        service.ask("/v1/hit", {"key": "job:1", "limits": "10/minute", "cost": 4})
        assert service.end(signal.SIGTERM) == 0
    ledger = Ledger(f"sqlite:///{tmp_path}/usage.db", clients="name", writes=False)
    assert [(row.rule, row.allowed, row.denied) for row in ledger.usage("203.0.113.7", by="month")] == [
        ("login", 2, 38)
    ]
    assert [(row.units, row.allowed) for row in ledger.usage("job:1", by="month")] == [(4, 1)]
    (endpoint,) = ledger.endpoints(client="203.0.113.7")
    assert (endpoint.endpoint, endpoint.denied) == ("POST /login", 38)


def test_operators_read_usage_and_bills_from_the_ledger(tmp_path: Path) -> None:
    with running_service("--workers", "2", policy=POLICY, environ=TOKENS | ledger_of(tmp_path)) as service:
        assert told(service, "session")["ledger"] is True
        for _ in range(5):
            service.ask("/v1/decide", LOGIN)
            service.ask("/v1/decide", {**LOGIN, "path": "/items/7", "method": "GET"})

        def is_written() -> bool:
            answer = get(service, "ledger/denials")
            found = answer.json()["denials"] if answer.status_code == 200 else []
            return bool(sum(one["allowed"] + one["denied"] for one in found) == 10)

        wait_until(is_written, 20, "all decisions are in the ledger")
        assert [(one["rule"], one["rate"]) for one in told(service, "ledger/denials")["denials"]] == [
            ("login", 0.6),
            ("month", 0.0),
        ]
        usage = told(service, "ledger/usage?client=203.0.113.7&by=month")["usage"]
        assert [(one["rule"], one["units"], one["denied"]) for one in usage] == [("login", 2, 3), ("month", 5, 0)]
        totals = told(service, "ledger/totals?by=day")["totals"]
        assert len(totals) in (30, 31)
        assert sum(one["allowed"] for one in totals) == 7
        (line,) = told(service, "ledger/overage")["overage"]
        assert (line["rule"], line["units"], line["overage"]) == ("month", 5, 2)
        assert "203.0.113.7" not in line["client"]
        metrics = CLIENT.get(service.url("admin") + "/metrics", headers={"authorization": f"Bearer {READ}"}).text
        assert "# TYPE ratebound_ledger_flushes_total counter" in metrics
        assert "ratebound_ledger_failures_total 0" in metrics
        assert "ratebound_ledger_pending_entries 0" in metrics


def test_names_take_the_role_write_and_are_recorded_for_ever(tmp_path: Path) -> None:
    with running_service("--workers", "2", policy=POLICY, environ=TOKENS | ledger_of(tmp_path)) as service:
        service.ask("/v1/decide", LOGIN)
        wait_until(lambda: get(service, "ledger/top").json().get("top"), 20, "the client is in the ledger")
        (client,) = told(service, "ledger/top")["top"]
        assert "203.0.113.7" not in str(client)
        assert get(service, "ledger/top?names=yes").status_code == 403
        (named,) = told(service, "ledger/top?names=yes", WRITE)["top"]
        assert (named["name"], named["client"]) == ("203.0.113.7", client["client"])
        (change,) = told(service, "changes")["changes"]
        assert (change["by"], change["action"]) == ("ann", "show names")
        assert change["detail"] == "1 client of the ledger"
        assert "ann: ledger_top" in service.log
        wait_until(lambda: told(service, "ledger/audit")["changes"] == [change], 20, "the change is in the ledger")


def test_a_ledger_out_of_reach_stops_no_decision(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    with running_service(policy=POLICY, environ=TOKENS | ledger_of(folder)) as service:
        assert [service.ask("/v1/decide", LOGIN)["allowed"] for _ in range(3)] == [True, True, False]
        assert CLIENT.get(service.url("admin") + "/readyz").status_code == 200
        answer = get(service, "ledger/totals")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["detail"].startswith("The ledger could not answer: ")
        service.wait_for("the ledger is not written")
        folder.mkdir()
        wait_until(lambda: get(service, "ledger/denials").json().get("denials"), 20, "the ledger is written")
        (found,) = told(service, "ledger/denials")["denials"]
        assert (found["rule"], found["allowed"], found["denied"]) == ("login", 2, 1)


def test_a_stop_does_not_wait_for_ever_for_a_ledger_out_of_reach(tmp_path: Path) -> None:
    with running_service(policy=POLICY, environ=ledger_of(tmp_path / "nowhere", every="3600")) as service:
        service.ask("/v1/decide", LOGIN)
        assert service.end(signal.SIGTERM) == 0
        assert "entries are lost" in service.log


def test_without_a_ledger_the_calls_say_how_to_get_one() -> None:
    with running_service(environ=TOKENS) as service:
        assert told(service, "session")["ledger"] is False
        answer = get(service, "ledger/totals")
        assert answer.status_code == 404
        assert "RATEBOUND_LEDGER" in answer.json()["detail"]


def test_passwords_of_the_ledger_are_in_no_log(tmp_path: Path) -> None:
    environ = ledger_of(tmp_path, secret="0123456789abcdef0123456789abcdef", clients="digest")
    with running_service(policy=POLICY, environ=environ) as service:
        service.ask("/v1/decide", LOGIN)
        assert service.end(signal.SIGTERM) == 0
        assert f"usage is recorded in sqlite:///{tmp_path}/usage.db" in service.log
        assert "0123456789abcdef" not in service.log
    ledger = Ledger(
        f"sqlite:///{tmp_path}/usage.db", secret="0123456789abcdef0123456789abcdef", clients="digest", writes=False
    )
    assert [row.allowed for row in ledger.usage("203.0.113.7")] == [1]
    assert b"203.0.113.7" not in (tmp_path / "usage.db").read_bytes()


def test_postgresql_that_is_killed_and_comes_back_has_everything(fresh_postgres: Postgres) -> None:
    url = fresh_postgres.new_database()
    make_tables(url)
    environ = TOKENS | ledger_of(Path()) | {"RATEBOUND_LEDGER": url}
    with running_service("--workers", "2", policy=POLICY, environ=environ) as service:
        service.ask("/v1/decide", LOGIN)
        wait_until(lambda: get(service, "ledger/denials").json().get("denials"), 20, "the ledger is written")
        fresh_postgres.kill()
        for _ in range(9):
            service.ask("/v1/decide", LOGIN)
        assert CLIENT.get(service.url("admin") + "/readyz").status_code == 200
        assert get(service, "ledger/denials").status_code == 503
        fresh_postgres.start()

        def is_whole() -> bool:
            found = get(service, "ledger/denials").json().get("denials", [])
            return [(one["allowed"], one["denied"]) for one in found] == [(2, 8)]

        wait_until(is_whole, 30, "all decisions are in the ledger")


def test_a_ledger_that_hangs_does_not_keep_operators_from_other_calls(fresh_postgres: Postgres) -> None:
    url = fresh_postgres.new_database()
    make_tables(url)
    environ = TOKENS | ledger_of(Path()) | {"RATEBOUND_LEDGER": url, "RATEBOUND_REQUEST_TIMEOUT": "1"}
    with running_service(policy=POLICY, environ=environ) as service:
        fresh_postgres.pause()
        try:
            with ThreadPoolExecutor(8) as threads:
                asked = [threads.submit(get, service, f"ledger/totals?since=2026-11-{day:02}") for day in range(1, 9)]
                assert get(service, "rules").status_code == 200
                assert service.ask("/v1/decide", LOGIN)["allowed"]
                assert {one.result().status_code for one in asked} == {503}
        finally:
            fresh_postgres.resume()
        wait_until(lambda: get(service, "ledger/denials").json().get("denials"), 30, "the ledger is written")
