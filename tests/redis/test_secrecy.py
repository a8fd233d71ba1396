"""No password, secret or key of a user is in any text that an error, a log or a repr makes (law 10)."""

import traceback
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ratebound import Check, InvalidKey, InvalidLimit, Limiter, parse_limit
from ratebound.policy import Policy, PolicyError, Rule
from ratebound.storage.redis.address import parse_url

SCHEMES = ["redis", "rediss", "unix", "redis+sentinel", "redis+cluster", "Redis+tls", "valkey", "redsi", "memory", ""]
PLACES = [
    "{scheme}://app:{secret}@cache:6379/0",
    "{scheme}://:{secret}@cache/x",
    "{scheme}://{secret}@cache:99999/0",
    "{scheme}://app:{secret}@cache/service/0/1",
    "{scheme}://app:{secret}@one,two:port/0",
    "{scheme}://app:{secret}@one,two/0",
    "{scheme}://app:{secret}@[cache/0",
    "{scheme}://app:{secret}@cache/0?timeout=soon",
    "{scheme}://cache/0?secret={secret}&tiemout=1",
    "{scheme}://cache/0?timeout={secret}",
    "{scheme}://cache/0?pool=0&old_secret={secret}",
    "{scheme}://cache/0?slot={secret}",
    "{scheme}://cache/0?slot=two&sentinel_password={secret}",
    "{scheme}://cache/0?prefix={{{secret}",
    "{scheme}://cache/0?sekret={secret}",
    "{scheme}:app:{secret}@cache",
]


def told(error: BaseException) -> str:
    """All that is printed of an exception: its own text, its repr, and those of its causes."""
    return f"{error} {error!r} {''.join(traceback.format_exception_only(error))} {_chain(error)}"


def _chain(error: BaseException) -> str:
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "" if cause is None else told(cause)


@example("valkey", PLACES[0], "/", "")
@example("redis", PLACES[0], "/", "")
@example("redis", PLACES[0], "#", "")
@example("redis", PLACES[0], "?", "")
@example("redis", PLACES[0], "[", "")
@example("redis", PLACES[0], "\u2100", "")  # urllib refuses it, and would show the whole of it
@example("redis", PLACES[7], "&", "@")
@example("unix", PLACES[2], "", "/")
@example("redis", PLACES[15], "", "://")
@given(
    st.sampled_from(SCHEMES),
    st.sampled_from(PLACES),
    st.text("/?#@:&[]{}%=ab \u2100\u00e9", max_size=3),
    st.text("/?#@:&[]{}%=ab", max_size=3),
)
def test_a_secret_in_a_url_is_in_no_text_that_an_error_makes(scheme: str, place: str, strange: str, more: str) -> None:
    url = place.format(scheme=scheme, secret=f"hush{strange}hush{more}hush")
    for opened in (lambda: Limiter("1/second", storage=url), lambda: parse_url(url), lambda: policy(url)):
        try:
            text = repr(opened())
        except (ValueError, PolicyError) as error:
            text = told(error)
        assert "hush" not in text, url


def policy(url: str) -> Policy:
    return Policy(rules=[Rule("all", "5/minute")], storage=url)


@pytest.mark.parametrize("storage", [b"redis://app:hush@cache/0", {"url": "redis://app:hush@cache/0"}])
def test_what_is_no_storage_is_told_by_its_type(storage: Any) -> None:
    with pytest.raises(TypeError, match=f"not {type(storage).__name__}") as caught:
        Limiter("1/second", storage=storage)
    assert "hush" not in told(caught.value)


def test_the_repr_of_an_address_holds_no_password() -> None:
    address = parse_url("redis+sentinel://app:hush@cache/service?sentinel_password=hush&secret=hush&old_secret=hush")
    assert "hush" not in repr(address)
    assert "hush" not in repr(address.keys)


def test_a_key_is_in_no_error() -> None:
    limiter = Limiter("1/second")
    with pytest.raises(InvalidKey, match="key must be text, not bytes") as wrong:
        limiter.hit(b"hush@example.com")  # type: ignore[arg-type]
    with pytest.raises(InvalidKey, match="several keys, not one text") as one:
        limiter.hit_many("hush@example.com")
    checks = [Check("hush@example.com", parse_limit(text)) for text in ("5/minute", "6/minute")]
    with pytest.raises(InvalidLimit, match="would share one count") as shared:
        limiter.check(checks)
    with pytest.raises(TypeError, match="expected Check.*, not str") as text:
        limiter.check("hush@example.com")  # type: ignore[arg-type]
    with pytest.raises(TypeError) as nested:
        limiter.check([checks])  # type: ignore[list-item]
    for caught in (wrong, one, shared, text, nested):
        assert "hush" not in told(caught.value)
