"""Rejections in the application's own words: what its functions are given, and what the log says of a mild status."""

from tests.web.django_site import MIDDLEWARE, site  # first: it makes the settings

# isort: split
import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from types import ModuleType
from typing import Any

import flask
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse
from django.urls import path
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse

from ratebound.policy import Policy, RequestView, Rule
from ratebound.web import Rejected, WebGate
from ratebound.web.django.checks import check_limits
from ratebound.web.fastapi import RateLimits
from ratebound.web.flask import RateLimits as FlaskLimits
from tests.web.django_running import running, view_for
from tests.web.drivers import asgi_client, environ_of, wsgi_client, wsgi_fetch

Site = AbstractContextManager[Callable[[str], int]]


@contextmanager
def fastapi_site(name: str, status: int) -> Iterator[Callable[[str], int]]:
    app = FastAPI()
    RateLimits(Policy(rules=[Rule(name, "1/minute")]), app=app)
    app.add_exception_handler(429, lambda request, error: PlainTextResponse("slow down", status))
    send: Any = asgi_client(app)
    with closing(send):
        yield lambda where: send("GET", where, {}).status


@contextmanager
def flask_site(name: str, status: int) -> Iterator[Callable[[str], int]]:
    app = flask.Flask("shop")
    FlaskLimits(app, Policy(rules=[Rule(name, "1/minute")]))
    app.errorhandler(429)(lambda error: ("slow down", status))
    send = wsgi_client(app)
    yield lambda where: send("GET", where, {}).status


@contextmanager
def django_site(kind: str, name: str, status: int) -> Iterator[Callable[[str], int]]:
    def handler429(request: Any, refused: Any) -> Any:
        return HttpResponse("slow down", status=status)

    policy = Policy(rules=[Rule(name, "1/minute")])
    with running(kind, path("", view_for(kind)), settings=policy, handler429=handler429) as sender:
        yield lambda where: sender.get(where).status


SITES: dict[str, Callable[[str, int], Site]] = {
    "fastapi": fastapi_site,
    "flask": flask_site,
    "django-wsgi": lambda name, status: django_site("wsgi", name, status),
    "django-asgi": lambda name, status: django_site("asgi", name, status),
}


@pytest.mark.parametrize("adapter", SITES)
def test_a_refusal_that_looks_like_a_success_is_logged_once(adapter: str, caplog: pytest.LogCaptureFixture) -> None:
    with SITES[adapter](f"mild-{adapter}", 200) as status, caplog.at_level(logging.WARNING, "ratebound"):
        for _ in range(4):
            status("/")
    (record,) = [one for one in caplog.records if one.name == "ratebound"]
    assert f"rule mild-{adapter} " in record.getMessage()
    assert "status 200" in record.getMessage()
    assert "429" in record.getMessage()


@pytest.mark.parametrize("adapter", SITES)
def test_a_refusal_with_a_status_of_its_own_is_not(adapter: str, caplog: pytest.LogCaptureFixture) -> None:
    with SITES[adapter](f"plain-{adapter}", 503) as status, caplog.at_level(logging.WARNING, "ratebound"):
        assert [status("/") for _ in range(3)][1:] == [503, 503]
    assert not [one for one in caplog.records if one.name == "ratebound"]


# Flask: the error that a handler is given.


@pytest.mark.parametrize("where", ["/view", "/part", "/early", "/blocked"])
def test_a_handler_of_flask_is_given_the_refusal(where: str) -> None:
    app = flask.Flask("shop")
    policy = {
        "rules": [
            {"name": "early", "limits": "1/minute", "stage": "early", "match": {"paths": "/early"}},
            {"name": "blocked", "limits": "deny", "match": {"paths": "/blocked"}},
        ]
    }
    limiter = FlaskLimits(app, policy)
    seen: list[Any] = []

    @app.errorhandler(429)
    @app.errorhandler(403)
    def sorry(error: Any) -> Any:
        seen.append((error.rejected.status, error.rejected.verdict.rule.name, getattr(error, "retry_after", None)))
        return "sorry", error.code

    @app.get("/view")
    @limiter.limit("1/minute", name="view")
    def view() -> str:
        return ""

    @app.get("/part")
    def part() -> str:
        with limiter.limit("1/minute", name="part"):
            return ""

    @app.get("/early")
    @app.get("/blocked")
    def other() -> str:
        return ""

    send = wsgi_client(app)
    for _ in range(2):
        send("GET", where, {})
    status, wait = (403, None) if where == "/blocked" else (429, 60)
    assert seen[-1] == (status, where[1:], wait)


# Django: `handler429` is looked at before the first rejection.


def urls(**urlconf: Any) -> ModuleType:
    module = ModuleType("urls")
    module.__dict__.update(urlpatterns=[path("", view_for("wsgi"))], **urlconf)
    return module


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        ("shop.views.too_many", "handler429 of the root URLconf: No module named 'shop'"),
        ("tests.web.test_own_words.no_such_view", "handler429 of the root URLconf: .*no_such_view"),
        (lambda request: None, "handler429 of the root URLconf: .*2 arguments, the HttpRequest and the rejection"),
        (5, "handler429 of the root URLconf: expected a view, not 5"),
    ],
)
def test_a_handler_that_cannot_answer_is_found_at_the_start_and_by_manage_py_check(handler: Any, words: str) -> None:
    with site("100/minute", ROOT_URLCONF=urls(handler429=handler)):
        (found,) = check_limits(None)
        with pytest.raises(ImproperlyConfigured, match=words):
            WSGIHandler()
    assert re.search(words, found.msg)


def test_a_handler_that_is_named_answers() -> None:
    with site("1/minute", MIDDLEWARE=[MIDDLEWARE], ROOT_URLCONF=urls(handler429=f"{__name__}.sorry")):
        assert not check_limits(None)
        handler = WSGIHandler()
        answers = [wsgi_fetch(handler, environ_of("GET", "/", {}, b"")) for _ in range(2)]
    assert (answers[1].status, answers[1].body) == (429, b"wait 60 seconds")


def sorry(request: Any, refused: Any) -> Any:
    return HttpResponse(f"wait {int(refused.retry_after + 0.999)} seconds", status=429)


def test_the_reason_that_applications_are_given_is_the_one_in_our_body() -> None:
    gate = WebGate({"headers": {"jitter": 1.0}, "rules": [{"name": "all", "limits": "1/hour"}]})
    view = RequestView("GET", "/", peer="192.0.2.1")
    gate.before(view)
    waits = set()
    for _ in range(20):
        rejected = gate.before(view)
        assert isinstance(rejected, Rejected)
        assert rejected.description == json.loads(rejected.body)["detail"]
        waits.add(rejected.description)
    assert len(waits) > 5


def test_a_request_that_an_overloaded_process_does_not_take_is_given_that_reason() -> None:
    gate = WebGate("unlimited", concurrent={"least": 1, "first": 1, "most": 1})
    assert gate.meter is not None
    entered = gate.meter.enter(lambda: RequestView("GET", "/"))
    rejected = gate.meter.enter(lambda: RequestView("GET", "/"))
    assert entered
    assert isinstance(rejected, Rejected)
    assert (rejected.status, rejected.description) == (503, json.loads(rejected.body)["detail"])
