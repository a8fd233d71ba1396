"""Bodies whose stated length is not their length: Flask, Django and a plain WSGI application read them differently."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from ratebound import MemoryStorage
from ratebound.testing import FakeClock
from tests.web.applications import bare_wsgi
from tests.web.drivers import environ_of, wsgi_fetch

POLICY = {
    "rules": [
        {
            "name": "login",
            "by": "address",
            "limits": "2 distinct account/hour",
            "distinct": {"account": "body.username"},
        }
    ]
}
BODY = b'{"username": "ann"}'


def wsgi_application() -> Any:
    from ratebound.web.wsgi import RateLimitMiddleware

    return RateLimitMiddleware(bare_wsgi, POLICY, storage=MemoryStorage(clock=FakeClock()))


def flask_application() -> Any:
    from tests.web.flask_site import application

    return application({"policy": POLICY, "storage": MemoryStorage(clock=FakeClock())})


@pytest.fixture(params=[wsgi_application, flask_application])
def application(request: pytest.FixtureRequest) -> Any:
    make: Callable[[], AbstractContextManager[Any]] = request.param
    return make()


def status(application: Any, stated: str, body: bytes = BODY, *, is_terminated: bool = False) -> int:
    environ = environ_of("GET", "/", {"content-type": "application/json"}, body)
    environ |= {"CONTENT_LENGTH": stated} | ({"wsgi.input_terminated": True} if is_terminated else {})
    return wsgi_fetch(application, environ).status


@pytest.mark.parametrize("stated", ["0", "2", "18"])
def test_a_body_that_is_longer_than_stated_is_unreadable(application: Any, stated: str) -> None:
    assert status(application, stated, is_terminated=True) == 403


@pytest.mark.parametrize("stated", ["+19", "19 ", "1_9", "\u0661\u0669", "-1", "x"])
def test_a_length_that_is_no_plain_number_is_unreadable(application: Any, stated: str) -> None:
    assert status(application, stated) == 403


def test_a_length_that_is_right_or_missing_is_read(application: Any) -> None:
    found = [status(application, "19"), status(application, "19", is_terminated=True)]
    found += [status(application, "", is_terminated=True), status(application, "0", b"")]
    assert found == [200] * 4
    assert status(application, "19", BODY.replace(b"ann", b"eve")) == 429, "ann and no name at all were counted"
