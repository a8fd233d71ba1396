"""Every adapter tells callers their usage, and lets operators grant units and reset clients."""

import asyncio
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import flask
import pytest
from fastapi import Depends, FastAPI, Header
from fastapi.responses import JSONResponse

from ratebound import Limiter, MemoryStorage
from ratebound.policy import Gate, RequestView
from ratebound.testing import FakeClock
from ratebound.web import flask as flask_limits
from ratebound.web.fastapi import RateLimits
from ratebound.web.usage_page import usage_document
from tests.unit.faulty import DOWN, AsyncFaulty, Prompt
from tests.web.drivers import fetch
from tests.web.usage_sites import POLICY, SITES, WITH_PAGES, UsageSite, brief

DECEMBER = 1_701_388_800  # the end of the month in which the clock stands
ANN = {"x_user": "ann"}
ACME = {"x_api_key": "key-1"}
ZENITH = {"x_api_key": "key-2"}


@pytest.fixture(params=SITES.values(), ids=list(SITES))
def site(request: pytest.FixtureRequest, clock: FakeClock) -> Iterator[UsageSite]:
    with request.param(policy=POLICY, storage=MemoryStorage(clock=clock)) as made:
        yield made


@pytest.fixture(params=WITH_PAGES.values(), ids=list(WITH_PAGES))
def with_page(request: pytest.FixtureRequest, clock: FakeClock) -> Iterator[UsageSite]:
    with request.param(policy=POLICY, storage=MemoryStorage(clock=clock)) as made:
        yield made


def used(page: Any) -> dict[str, int]:
    return {name: one["used"] for name, one in page["resources"].items()}


def test_a_handler_sees_the_usage_of_the_limits_of_its_request(site: UsageSite) -> None:
    assert site.page("/api", **ACME) == {"monthly/calendar-month": 1, "site/second": 1}
    assert site.page("/api", **ACME)["monthly/calendar-month"] == 2
    assert site.page("/api", **ZENITH)["monthly/calendar-month"] == 1
    assert site.page("/mine", **ANN) == {"rest/minute": 1}


def test_a_handler_sees_all_limits_of_its_caller_and_none_that_all_share(site: UsageSite) -> None:
    site.get("/api", **ANN)
    found = site.page("/all", **ANN)
    assert (found["monthly/calendar-month"], found["rest/minute"]) == (1, 1)
    assert not {"site/second", "planned/minute"} & found.keys()
    assert site.page("/all", **ACME)["monthly/calendar-month"] == 0


def test_an_operator_reads_grants_and_resets_by_identity(site: UsageSite) -> None:
    site.get("/api", **ACME)
    site.get("/mine", **ANN)
    assert brief(site.call("usage_of", "customer:acme"))["monthly/calendar-month"] == 1
    assert brief(site.call("usage_of", "user:ann"))["rest/minute"] == 1
    (granted,) = site.call("grant", "customer:acme", 500, "monthly")
    assert (granted.quota, granted.used, granted.granted) == (1500, 1, 500)
    site.call("reset", "customer:acme")
    (found,) = site.call("usage_of", "customer:acme", "monthly")
    assert (found.quota, found.used) == (1000, 0)
    assert brief(site.call("usage_of", "user:ann"))["rest/minute"] == 1
    with pytest.raises(ValueError, match="no rule counts by session"):
        site.call("reset", "session:1")


@pytest.mark.parametrize("name", SITES)
def test_an_operator_lists_who_holds_slots(name: str, clock: FakeClock) -> None:
    exports = {"name": "exports", "limits": "2 concurrent", "match": {"paths": ["/exports"]}}
    policy, storage = {**POLICY, "rules": [exports, *POLICY["rules"]]}, MemoryStorage(clock=clock)
    with Gate(policy, storage=storage) as another_process, SITES[name](policy=policy, storage=storage) as site:
        assert site.call("holders", "user:ann") == []
        for user in ("ann", "bob"):
            assert another_process.decide(RequestView("GET", "/exports", peer="192.0.2.1", user=user))
        (holder,) = site.call("holders", "user:ann")
        assert holder.limit.name == "exports/concurrent"
        assert site.call("holders", "user:ann", "rest") == []


def test_a_request_that_was_not_checked_has_no_usage(clock: FakeClock) -> None:
    with SITES["wsgi"](policy=POLICY, storage=MemoryStorage(clock=clock)) as site, pytest.raises(RuntimeError):
        site.call("usage", {"REQUEST_METHOD": "GET"})


def test_the_page_tells_a_caller_its_usage_in_the_words_of_github(with_page: UsageSite) -> None:
    for _ in range(2):
        with_page.get("/api", **ACME)
    answer = with_page.get("/rate_limit", **ACME)
    headers = dict(answer.headers)
    assert headers["content-type"] == "application/json"
    assert headers["cache-control"] == "no-store"
    assert not [name for name in headers if name.startswith("ratelimit")]
    page = with_page.page(**ACME)
    assert page["resources"]["monthly/calendar-month"] == {
        "limit": 1000,
        "used": 2,
        "remaining": 998,
        "reset": DECEMBER,
        "resets_at": datetime.fromtimestamp(DECEMBER, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "resource": "monthly/calendar-month",
    }
    assert page["rate"] == page["resources"]["monthly/calendar-month"]


def test_the_page_costs_nothing_and_shows_no_other_caller(with_page: UsageSite) -> None:
    with_page.get("/api", **ACME)
    before = with_page.page(**ACME)
    for _ in range(5):
        assert with_page.page(**ACME) == before
    for caller in (ZENITH, ANN, {}):
        assert set(used(with_page.page(**caller)).values()) == {0}
    assert used(with_page.page(**ANN)).keys() == {"monthly/calendar-month", "rest/minute", "export/calendar-day"}


def test_the_page_shows_the_limits_of_endpoints_before_and_after_they_were_called(with_page: UsageSite) -> None:
    assert used(with_page.page(**ANN))["export/calendar-day"] == 0
    with_page.get("/export", **ANN)
    page = with_page.page(**ANN)
    assert used(page)["export/calendar-day"] == 1
    assert page["rate"]["resource"] == "export/calendar-day"
    with_page.call("grant", "user:ann", 4, "export")
    assert with_page.page(**ANN)["resources"]["export/calendar-day"]["limit"] == 7
    with_page.call("reset", "user:ann")
    assert used(with_page.page(**ANN))["export/calendar-day"] == 0


def test_operators_reach_the_limits_of_endpoints_before_the_first_request(with_page: UsageSite) -> None:
    assert "export/calendar-day" in brief(with_page.call("usage_of", "user:ann"))


@pytest.mark.parametrize("name", ["fastapi", "starlette", "flask", "django wsgi"])  # ASGI needs a twin of the storage
@pytest.mark.parametrize("failure", ["raise", "open", "closed"])
def test_the_page_is_a_503_if_the_storage_is_out_of_reach(name: str, failure: str, clock: FakeClock) -> None:
    faulty = Prompt(clock)
    storage: Any = AsyncFaulty(faulty) if name in ("fastapi", "starlette") else faulty
    logging.disable(logging.ERROR)
    try:
        with WITH_PAGES[name](policy={**POLICY, "failure": failure}, storage=storage) as site:
            faulty.error = DOWN
            answer = site.get("/rate_limit", **ANN)
            faulty.error = None
    finally:
        logging.disable(logging.NOTSET)
    assert answer.status == 503
    assert dict(answer.headers)["cache-control"] == "no-store"


def test_the_page_has_the_names_that_clients_see_in_headers(clock: FakeClock) -> None:
    names = {"monthly/calendar-month": "requests-per-month"}
    options = {"policy": {**POLICY, "headers": {"names": names}}, "storage": MemoryStorage(clock=clock)}
    with SITES["flask"](**options) as site:
        assert site.page(**ANN)["resources"].keys() == {"requests-per-month", "rest/minute", "export/calendar-day"}
    names["rest/minute"] = "requests-per-month"  # none gets lost if two have one name
    with SITES["flask"](**options) as site:
        assert site.page(**ANN)["resources"].keys() == {"requests-per-month", "rest/minute", "export/calendar-day"}


def test_limits_inside_of_a_view_are_shown_once_they_were_checked(clock: FakeClock) -> None:
    app = flask.Flask("parts")
    limits = flask_limits.RateLimits(app, storage=MemoryStorage(clock=clock))
    app.add_url_rule("/rate_limit", view_func=limits.usage_page())

    @app.get("/mail/<int:count>")
    def mail(count: int) -> str:
        with limits.limit("5/calendar-day", name="mail"), limits.limit(f"{count}/minute", name="varying"):
            return "sent"

    client = app.test_client()
    assert client.get("/rate_limit").json == {"resources": {}, "rate": None}
    assert [client.get(f"/mail/{count}").status_code for count in (3, 4)] == [200, 200]
    assert used(client.get("/rate_limit").json) == {"mail/calendar-day": 2}
    limits.reset("127.0.0.1", "mail")
    limits.reset("127.0.0.1", "varying")
    assert used(client.get("/rate_limit").json) == {"mail/calendar-day": 0}
    assert client.get("/mail/1").status_code == 200


def test_the_answer_to_a_rejection_can_tell_the_usage(clock: FakeClock) -> None:
    app = FastAPI()
    limits = RateLimits("1/calendar-day", storage=MemoryStorage(clock=clock), app=app)

    @app.exception_handler(429)
    async def rejected(request: Any, error: Exception) -> JSONResponse:
        return JSONResponse(brief(await limits.usage(request)), 429)

    async def ask() -> None:
        await fetch(app, "GET", "/")
        assert json.loads((await fetch(app, "GET", "/")).body) == {"default/calendar-day": 1}

    asyncio.run(ask())


def test_a_policy_without_limits_for_the_caller_has_an_empty_page(clock: FakeClock) -> None:
    with SITES["flask"](policy={**POLICY, "allow": ["user:ann"]}, storage=MemoryStorage(clock=clock)) as site:
        assert site.page(**ANN) == {"resources": {}, "rate": None}


def test_the_page_of_fastapi_takes_the_dependency_that_finds_the_user(clock: FakeClock) -> None:
    app = FastAPI()
    limits = RateLimits("5/minute", by="user", storage=MemoryStorage(clock=clock), app=app)

    def current_user(x_user: str = Header()) -> str:
        return x_user

    @app.get("/export", dependencies=[Depends(limits.limit("3/calendar-day", name="export", user=current_user))])
    def export() -> None: ...

    app.get("/rate_limit")(limits.usage_page(user=current_user))

    async def ask() -> None:
        assert (await fetch(app, "GET", "/export", {"x-user": "ann"})).status == 200
        for user, count in (("ann", 1), ("bob", 0)):
            answer = await fetch(app, "GET", "/rate_limit", {"x-user": user})
            assert used(json.loads(answer.body))["export/calendar-day"] == count

    asyncio.run(ask())


def test_the_page_leaves_out_penalties_and_values_that_have_room(clock: FakeClock) -> None:
    text = "9/minute as api; 2 distinct account/hour as accounts; 2 strikes/hour block 5 minutes as guessing"
    limiter = Limiter(text, storage=MemoryStorage(clock=clock))
    shown = []
    for account in ("alice", "bob", "carol"):
        limiter.hit("a", values={"account": account})
        shown.append(usage_document(limiter.usage("a"), {}))
    assert [page["resources"].keys() for page in shown] == [{"api"}, {"api", "accounts"}, {"api", "accounts"}]
    assert shown[1]["resources"]["accounts"] == {
        "limit": 2,
        "used": 2,
        "remaining": 0,
        "reset": clock.now // 1_000_000 + 3600,
        "resets_at": "2023-11-14T23:13:20Z",
        "resource": "accounts",
    }
    assert shown[2]["rate"]["resource"] == "api"
    assert "alice" not in str(shown)
