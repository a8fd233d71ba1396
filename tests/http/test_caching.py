"""Which responses a shared cache may hand to other clients, and which of them carry one client's numbers."""

import pytest

from ratebound.http import Headers

SHARED = [
    "public",
    "max-age=600",
    "Max-Age=1, must-revalidate",
    "s-maxage=5",
    "max-age=0, s-maxage=5",
    "public, max-age=31536000, immutable",
    'max-age="60"',
    "max-age=0, stale-while-revalidate=60",
    'public, private="set-cookie"',
    'max-age=60, no-cache="x-own, x-other"',
    "max-age=soon",
]
NOT_SHARED = [
    "",
    "private",
    "no-store",
    "no-cache",
    "private, max-age=600",
    "PUBLIC, NO-STORE",
    "public, max-age=0, must-revalidate",
    "max-age=600, s-maxage=0",
    "max-age=00",
    "must-revalidate",
    "no-transform",
]


@pytest.mark.parametrize("told", SHARED)
@pytest.mark.parametrize("name", ["cache-control", "CDN-Cache-Control", "Surrogate-Control"])
def test_what_other_clients_may_get_has_no_numbers_of_one(name: str, told: str) -> None:
    assert not Headers().suit(200, [("X-Own", "yes"), (name, told)])


@pytest.mark.parametrize("told", NOT_SHARED)
def test_what_is_for_one_client_has_them(told: str) -> None:
    assert Headers().suit(200, [("Cache-Control", told), ("Expires", "0")])


def test_several_lines_are_one_field() -> None:
    assert Headers().suit(200, [("Cache-Control", "max-age=60"), ("cache-control", "private")])


def test_a_network_is_told_apart_from_the_browser() -> None:
    assert not Headers().suit(200, [("Cache-Control", "private"), ("CDN-Cache-Control", "max-age=60")])


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
def test_a_redirect_has_none(status: int) -> None:
    assert not Headers().suit(status, [])


def test_a_304_goes_by_its_own_words() -> None:
    assert Headers().suit(304, [("ETag", '"a"')])
    assert not Headers().suit(304, [("Cache-Control", "max-age=60")])


def test_they_are_sent_everywhere_on_demand() -> None:
    headers = Headers(cacheable="send")
    assert headers.suit(302, [("Cache-Control", "public")])


def test_a_choice_that_does_not_exist_raises() -> None:
    with pytest.raises(ValueError, match="cacheable must be 'omit' or 'send', not 'no'"):
        Headers(cacheable="no")  # type: ignore[arg-type]


@pytest.mark.parametrize("date", ["Wed, 21 Oct 2099 07:28:00 GMT", "Wed, 21 Oct 2099 07:28:00 -0000"])
def test_a_date_to_come_lets_caches_share_unless_cache_control_says_otherwise(date: str) -> None:
    assert not Headers().suit(200, [("Expires", date)])
    assert Headers().suit(200, [("Expires", date), ("Cache-Control", "private")])
    assert not Headers().suit(200, [("Expires", date), ("CDN-Cache-Control", "max-age=60")])


@pytest.mark.parametrize("date", ["0", "-1", "", "Wed, 21 Oct 2015 07:28:00 GMT", "soon"])
def test_a_date_that_has_passed_or_cannot_be_read_shares_nothing(date: str) -> None:
    assert Headers().suit(200, [("Expires", date)])
