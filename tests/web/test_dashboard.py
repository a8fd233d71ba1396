"""The dashboard inside of an application, in every framework: who may look, what operators change, and that the limits
that it shows never limit it."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ratebound import MemoryStorage
from ratebound.clock import SECOND
from ratebound.ledger import Ledger
from ratebound.observe.figures_view import FiguresView
from ratebound.testing import FakeClock
from tests.web.dashboard_sites import CSRF, READ, SAME_ORIGIN, SITES, WITH_ENDPOINTS, WRITE, DashboardSite

PLAIN: dict[str, Any] = {"rules": [{"name": "rest", "limits": "1000/minute", "by": "address"}]}
ONE: dict[str, Any] = {"rules": [{"name": "rest", "limits": "1/hour", "by": "address", "default": True}]}
FILES = ("/limits/", "/limits/dashboard.js", "/limits/dashboard.css", "/limits/icon.svg")
CALLS = ("api/session", "api/figures", "api/history", "api/rules", "api/blocks", "api/policy", "openapi.json")


@pytest.fixture(params=SITES.values(), ids=list(SITES))
def site(request: pytest.FixtureRequest, clock: FakeClock) -> Iterator[DashboardSite]:
    with request.param(policy=PLAIN, storage=MemoryStorage(clock=clock)) as made:
        yield made


def test_nobody_sees_anything(site: DashboardSite) -> None:
    for path in (*FILES, *(f"/limits/{call}" for call in CALLS)):
        answer = site.get(path)
        assert answer.status == 401, path
        assert b"rest" not in answer.body


def test_who_may_read_sees_the_page_and_the_figures(site: DashboardSite) -> None:
    for path in (*FILES, *(f"/limits/{call}" for call in CALLS)):
        assert site.get(path, READ).status == 200, path
    headers = dict(site.get("/limits/", READ).headers)
    assert headers["content-type"].startswith("text/html")
    assert headers["cache-control"] == "no-store"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "ratelimit" not in headers
    assert site.read("session")["role"] == "read"
    assert site.get("/limits/nothing", READ).status == 404
    assert site.send("HEAD", "/limits/", READ).status == 200


def test_who_may_read_changes_nothing(site: DashboardSite) -> None:
    sent = {**READ, **SAME_ORIGIN, **CSRF}
    assert site.try_to_write("POST", "blocks", {"client": "192.0.2.1"}, sent).status == 403
    assert site.try_to_write("PUT", "switches", {"state": "off"}, sent).status == 403
    assert site.read("blocks") == {"blocks": []}


@pytest.mark.parametrize(
    "headers",
    [
        {**SAME_ORIGIN},
        {**CSRF},
        {**CSRF, "sec-fetch-site": "cross-site"},
        {**CSRF, "sec-fetch-site": "same-site"},
        {**CSRF, "origin": "https://evil.example"},
        {**CSRF, "origin": "null"},
    ],
    ids=str,
)
def test_another_site_cannot_make_a_browser_write(site: DashboardSite, headers: dict[str, str]) -> None:
    answer = site.try_to_write("POST", "blocks", {"client": "192.0.2.1"}, {**WRITE, **headers})
    assert answer.status == 403, answer
    assert site.read("blocks") == {"blocks": []}


def test_a_page_of_the_same_origin_may_write(site: DashboardSite) -> None:
    sent = {**WRITE, **CSRF, "origin": "http://test"}
    assert site.try_to_write("POST", "blocks", {"client": "192.0.2.1"}, sent).status == 200


def test_a_block_holds_for_requests_of_the_application(site: DashboardSite) -> None:
    assert site.statuses("/") == [200]
    site.write("POST", "blocks", {"client": "127.0.0.1", "for": "1 hour", "reason": "scrapes"}, {"x-role": "ann:write"})
    (block,) = site.read("blocks")["blocks"]
    assert (block["client"], block["reason"], block["by"]) == ("127.0.0.1", "scrapes", "ann")
    assert site.statuses("/") == [403]
    assert site.write("DELETE", "blocks?client=127.0.0.1") == {"removed": True}
    assert site.statuses("/") == [200]
    assert {change["action"] for change in site.read("changes")["changes"]} == {"block", "unblock"}


def test_an_override_holds_for_requests_of_the_application(site: DashboardSite) -> None:
    site.write("POST", "overrides", {"client": "127.0.0.1", "limits": "2/hour"})
    assert site.statuses("/", 3) == [200, 200, 429]
    assert site.write("DELETE", "overrides?client=127.0.0.1") == {"removed": True}
    assert site.statuses("/") == [200]


def test_a_switch_holds_for_requests_of_the_application(site: DashboardSite) -> None:
    site.write("POST", "overrides", {"client": "127.0.0.1", "limits": "deny"})
    assert site.statuses("/") != [200]
    site.write("PUT", "switches", {"rule": "rest", "state": "off"})
    assert site.statuses("/", 3) == [200] * 3
    site.write("DELETE", "switches?rule=rest")
    assert site.statuses("/") != [200]


def test_usage_grants_and_resets(clock: FakeClock) -> None:
    policy = {"rules": [{"name": "quota", "limits": "2/calendar-day", "by": "address"}]}
    for make in SITES.values():
        with make(policy=policy, storage=MemoryStorage(clock=clock)) as site:
            assert site.statuses("/", 3) == [200, 200, 429]
            (usage,) = [one for one in site.read("usage?client=127.0.0.1")["usage"] if one["rule"] == "quota"]
            assert (usage["used"], usage["remaining"]) == (2, 0)
            site.write("POST", "grants", {"client": "127.0.0.1", "units": 1, "rule": "quota"})
            assert site.statuses("/", 2) == [200, 429]
            site.write("POST", "resets", {"client": "127.0.0.1"})
            assert site.statuses("/") == [200]


@pytest.mark.parametrize("name", WITH_ENDPOINTS)
def test_limits_of_endpoints_are_rules_like_any_other(name: str, clock: FakeClock) -> None:
    with SITES[name](policy=PLAIN, storage=MemoryStorage(clock=clock)) as site:
        rules = {rule["name"]: rule for rule in site.read("rules")["rules"]}
        assert {"rest", "export"} <= rules.keys()
        assert site.statuses("/export", 4) == [200, 200, 200, 429]
        used = {one["rule"]: one["used"] for one in site.read("usage?client=127.0.0.1")["usage"]}
        assert used["export"] == 3
        site.write("POST", "grants", {"client": "127.0.0.1", "units": 1, "rule": "export"})
        assert site.statuses("/export", 2) == [200, 429]
        site.write("PUT", "switches", {"rule": "export", "state": "off"})
        assert site.statuses("/export", 2) == [200, 200]
        site.write("DELETE", "switches?rule=export")
        assert site.statuses("/export") == [429]


def test_figures_move(site: DashboardSite, clock: FakeClock) -> None:
    now = 1000.0
    figures = site.gate.figures or (site.read("figures") and site.gate.figures)
    figures = figures or site._gates()[0].figures
    figures._view = FiguresView(clock=lambda: now, wall_clock=lambda: now)
    figures.begin = lambda: None  # so that only this test takes snapshots
    figures.stop()
    figures._look()
    site.statuses("/", 6)
    now += 2.0
    figures._view.take([{**figures.live.own(), "ticks": figures.live.own()["ticks"] + 2.0}])
    figures._shown = None
    view = site.read("figures")
    assert view["total"]["allowed"] > 0
    assert [rule["rule"] for rule in view["rules"]] == ["rest"]
    assert len(view["processes"]) == 1


def test_the_dashboard_is_not_limited_by_the_limits_that_it_shows(clock: FakeClock) -> None:
    rules = [
        {"name": "flood", "limits": "1/hour", "by": "address", "stage": "early"},
        {"name": "all", "limits": "1/hour", "by": "global"},
        {"name": "paths", "limits": "deny", "match": {"paths": ["/limits/{path*}", "/limits"]}},
        {"name": "rest", "limits": "1/hour", "by": "address", "default": True},
    ]
    for name, make in SITES.items():
        with make(policy={"rules": rules}, storage=MemoryStorage(clock=clock)) as site:
            assert [site.get("/limits/", READ).status for _ in range(3)] == [200] * 3, name
            assert [site.get("/limits/api/rules", READ).status for _ in range(3)] == [200] * 3, name
            assert site.statuses("/limits/", 3) == [401] * 3, name
            assert site.statuses("/", 2) == [200, 429], name  # what the dashboard takes is no part of it
            site.write("POST", "blocks", {"client": "127.0.0.1"})
            assert site.statuses("/") == [403], name
            assert site.get("/limits/", READ).status == 200, name
            site.write("DELETE", "blocks?client=127.0.0.1")


def test_the_dashboard_needs_no_place_in_an_overloaded_process(clock: FakeClock) -> None:
    policy = {**PLAIN, "concurrent": {"least": 1, "first": 1, "most": 1}}
    for name, make in SITES.items():
        with make(policy=policy, storage=MemoryStorage(clock=clock)) as site:
            assert site.statuses("/") == [200]
            in_flight = site.gate.meter.in_flight
            assert in_flight.enter()
            assert site.statuses("/") == [503], name
            assert site.get("/limits/api/rules", READ).status == 200, name
            in_flight.leave()


@pytest.mark.parametrize(
    "path",
    ["/limitsx", "/limits.txt", "/LIMITS/", "//limits/", "/x/limits/", "/x/../limits/", "/limits/../", "/%2flimits/"],
)
def test_what_is_not_answered_by_the_dashboard_is_limited(path: str, clock: FakeClock) -> None:
    for name, make in SITES.items():
        with make(policy=ONE, storage=MemoryStorage(clock=clock)) as site:
            answers = [site.get(path, READ) for _ in range(3)]
            are_of_dashboard = ["content-security-policy" in dict(answer.headers) for answer in answers]
            assert all(are_of_dashboard) or (answers[2].status == 429 and not any(are_of_dashboard)), (name, answers)


def test_the_mount_without_its_slash_leads_to_the_page(site: DashboardSite) -> None:
    answer = site.get("/limits", READ)
    assert 300 <= answer.status < 400
    where = dict(answer.headers)["location"]
    assert where in ("./limits/", "/limits/", "http://test/limits/")


@pytest.mark.parametrize("name", SITES)
def test_a_dashboard_with_a_ledger_shows_what_the_application_has_used(
    name: str, clock: FakeClock, tmp_path: Path
) -> None:
    clock.now = int(time.time()) * SECOND
    with (
        Ledger(f"sqlite:///{tmp_path}/usage.db", clients="name") as ledger,
        SITES[name](policy=ONE, storage=MemoryStorage(clock=clock), listeners=[ledger], ledger=ledger) as site,
    ):
        assert site.read("session")["ledger"] is True
        assert site.statuses("/", 3) == [200, 429, 429]
        ledger.flush()
        assert site.read("ledger/denials")["denials"] == [{"rule": "rest", "allowed": 1, "denied": 2, "rate": 2 / 3}]
        (top,) = site.read("ledger/top")["top"]
        assert "127.0.0.1" not in str(top)
        assert site.get("/limits/api/ledger/top?names=yes", READ).status == 403
        answer = site.get("/limits/api/ledger/top?names=yes", {**WRITE, **SAME_ORIGIN, **CSRF})
        assert json.loads(answer.body)["top"][0]["name"] == "127.0.0.1"
        assert [one["action"] for one in site.read("changes")["changes"]] == ["show names"]


@pytest.mark.parametrize("name", SITES)
def test_a_dashboard_without_a_ledger_says_so(name: str, clock: FakeClock) -> None:
    with SITES[name](policy=PLAIN, storage=MemoryStorage(clock=clock)) as site:
        assert site.read("session")["ledger"] is False
        answer = site.get("/limits/api/ledger/totals", READ)
        assert answer.status == 404
        assert b"ledger=Ledger(" in answer.body


def test_auth_must_be_given(clock: FakeClock) -> None:
    from tests.web import django_site  # noqa: F401 - first: it makes the settings

    # isort: split
    from ratebound.web import asgi, django, fastapi, flask, wsgi

    options: Any = {"policy": "1/minute", "storage": MemoryStorage(clock=clock)}
    anything: Any = print
    makers: list[Any] = [
        fastapi.RateLimits(**options).dashboard,
        flask.RateLimits(**options).dashboard,
        asgi.RateLimitMiddleware(anything, **options).dashboard,
        wsgi.RateLimitMiddleware(anything, **options).dashboard,
        django.dashboard,
    ]
    for make in makers:
        for given in ({}, {"auth": None}, {"auth": "write"}):
            with pytest.raises(TypeError, match="needs auth=, a function that returns the role"):
                make(**given)
        with pytest.raises(TypeError, match="auth"):
            make(auth=lambda one, two: None)
        with pytest.raises(TypeError, match="ledger= of the dashboard takes a Ledger"):
            make(auth=lambda *any: None, ledger="sqlite:///usage.db")


def test_an_auth_that_returns_something_else_is_an_error_of_the_application(clock: FakeClock) -> None:
    for make in SITES.values():
        with make(policy=PLAIN, storage=MemoryStorage(clock=clock)) as site:
            try:
                assert site.get("/limits/", {"x-role": "admin"}).status == 500
            except TypeError as error:  # for the server
                if "auth must return None, 'read', 'write' or an Operator" not in str(error):
                    raise


def test_problems_are_json(site: DashboardSite) -> None:
    answer = site.try_to_write("POST", "blocks", {"client": "<script>"}, {**WRITE, **SAME_ORIGIN, **CSRF})
    assert answer.status == 422
    assert dict(answer.headers)["content-type"] == "application/problem+json"
    assert b"<script" not in answer.body
    assert json.loads(answer.body)["errors"][0]["field"] == "client"
