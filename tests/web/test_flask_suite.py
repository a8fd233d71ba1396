"""Flask gives the answers that every framework gives."""

from typing import Any

import pytest

from ratebound.testing import FakeClock
from tests.web import suite
from tests.web.drivers import wsgi_client
from tests.web.flask_site import application


@pytest.mark.parametrize("claim", suite.TABLE)
def test_flask_answers_as_every_framework_does(claim: str, clock: FakeClock) -> None:
    app = application(suite.options(clock, suite.Naps(), is_async=False))
    suite.play(wsgi_client(app), suite.TABLE[claim])


def test_a_leaky_bucket_holds_requests_back_for_a_second_at_most(clock: FakeClock) -> None:
    naps = suite.Naps()
    suite.play_queue(wsgi_client(application(suite.options(clock, naps, is_async=False))), naps)


def words(*_: Any) -> tuple[bytes, int, dict[str, str]]:
    return suite.WORDS, 429, {"Cache-Control": suite.WORDS_CACHE}


def test_no_cache_keeps_a_rejection_that_the_errorhandler_words(clock: FakeClock) -> None:
    app = application(suite.options(clock, suite.Naps(), is_async=False))
    app.register_error_handler(429, words)
    suite.play(wsgi_client(app), suite.WORDED)


def test_no_cache_keeps_a_rejection_that_on_breach_words(clock: FakeClock) -> None:
    app = application({**suite.options(clock, suite.Naps(), is_async=False), "on_breach": words})
    suite.play(wsgi_client(app), suite.WORDED)
