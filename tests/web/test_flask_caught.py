"""The Flask extension where the rejection of a part does not reach the client: what was asked before it stands."""

from collections.abc import Callable
from typing import Any

import flask
import pytest
from werkzeug.exceptions import HTTPException, TooManyRequests

from tests.web.flask_site import Site
from tests.web.test_flask_parts import left


def site_with(answer: Callable[[HTTPException], Any], policy: Any = None, **options: Any) -> Site:
    """A view that goes on without what it was refused."""

    def view() -> Any:
        try:
            with site.limiter.limit("1/minute", name="mail", **options):
                return "sent"
        except HTTPException as error:
            return answer(error)

    site = Site(policy)
    site.view("/a", *([] if policy else [site.limiter.limit("3/minute")]), answer=view)
    return site


@pytest.mark.parametrize("policy", [None, "3/minute"])
def test_a_view_that_catches_a_refusal_has_its_limits_all_the_same(policy: str | None) -> None:
    site = site_with(lambda error: "later", policy)
    responses = [site.get("/a") for _ in range(5)]
    assert [response.status_code for response in responses] == [200, 200, 200, 429, 429]
    assert responses[1].text == "later"
    assert list(left(responses[1]).values()) == [1]  # of its own, and nothing of the part
    assert "Retry-After" not in responses[1].headers


def test_a_view_that_catches_a_refusal_may_say_what_it_has_cost() -> None:
    site = site_with(lambda error: flask.g.ratebound.charge(2) or "later")
    assert [left(site.get("/a"))["site.a"] for _ in range(2)] == [2, 0]
    assert site.get("/a").status_code == 429


def test_what_is_charged_by_result_is_settled_where_a_refusal_was_caught() -> None:
    def view() -> Any:
        try:
            with site.limiter.limit("1/minute", name="mail"):
                return "sent"
        except TooManyRequests:
            return "wrong", 401

    site = Site()
    site.view("/a", site.limiter.limit("2/minute", charge="failure"), answer=view)
    assert [site.get("/a").status_code for _ in range(4)] == [200, 401, 401, 429]


@pytest.mark.parametrize("again", [lambda error: error, lambda error: flask.abort(error.get_response())])
def test_a_view_that_hands_the_refusal_on_costs_nothing(again: Callable[[Any], Any]) -> None:
    site = site_with(again)
    assert [site.get("/a").status_code for _ in range(9)] == [200] + [429] * 8
    assert left(site.get("/a")) == {"mail": 0}
    assert site.get("/a").headers["Retry-After"] == "60"


def test_a_view_that_words_the_refusal_of_a_listener_costs_nothing() -> None:
    site = site_with(lambda error: ("my words", 420), on_breach=lambda refused: ("later", 420))
    assert [site.get("/a").status_code for _ in range(6)] == [200] + [420] * 5


@pytest.mark.parametrize("status", [429, 503, 200])
def test_a_refusal_that_reaches_flask_costs_nothing_whatever_the_handler_answers(status: int) -> None:
    def view() -> str:
        with site.limiter.limit("1/minute", name="mail"):
            return "sent"

    site = Site("3/minute")
    site.view("/a", answer=view)
    site.app.register_error_handler(429, lambda error: (f"{flask.g.ratebound.retry_after}", status))
    responses = [site.get("/a") for _ in range(6)]
    assert [(one.status_code, one.text) for one in responses] == [(200, "sent"), *[(status, "60.0")] * 5]
    assert site.get("/nowhere").headers["RateLimit"] == '"default/minute";r=1;t=60'


def test_a_view_that_catches_one_refusal_may_be_refused_for_another() -> None:
    def view() -> str:
        try:
            with site.limiter.limit("1/minute", name="mail"):
                return "mail"
        except TooManyRequests:
            with site.limiter.limit("1/minute", name="fax"):
                return "fax"

    site = Site("9/minute")
    site.view("/a", answer=view)
    responses = [site.get("/a") for _ in range(4)]
    assert [one.text for one in responses[:2]] == ["mail", "fax"]
    assert [left(one) for one in responses] == [
        *({"default": 8, "mail": 0}, {"default": 7, "fax": 0}, {"fax": 0}, {"fax": 0})
    ]
    assert left(site.get("/nowhere")) == {"default": 6}


def test_a_hook_that_catches_a_refusal_is_asked_for_with_the_rest() -> None:
    app = flask.Flask("tests.site")

    @app.before_request
    def look_up() -> Any:
        try:
            with site.limiter.limit("1/minute", name="tokens"):
                return None
        except TooManyRequests:
            return "cached"

    site = Site("3/minute", app=app)
    site.view("/a")
    assert [site.get("/a").text for _ in range(3)] == ["ok", "cached", "cached"]
    assert site.get("/a").status_code == 429


def test_a_refusal_in_the_midst_of_a_stream_may_be_caught_too() -> None:
    def stream() -> flask.Response:
        def parts() -> Any:
            yield "a"
            try:
                with site.limiter.limit("1/minute", name="mail"):
                    yield "b"
            except TooManyRequests:
                yield "c"

        return flask.Response(flask.stream_with_context(parts()))

    site = Site("3/minute")
    site.view("/a", answer=stream)
    assert [site.get("/a").text[:2] for _ in range(3)] == ["ab", "ac", "ac"]
    assert site.get("/a").status_code == 429
