"""Options that other packages have, or that nobody has: what the error says, for adapters and for limits."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_args

import flask_limiter
import pytest
import slowapi
from flask import Flask

from ratebound.http.headers import FIELDS, Style
from ratebound.http.rejection import FORMATS, FormatName
from ratebound.policy import Policy
from ratebound.web import RouteLimit, WebGate, options, wsgi
from ratebound.web.asgi import RateLimitMiddleware
from ratebound.web.fastapi import RateLimits
from ratebound.web.flask import RateLimits as FlaskLimits
from tests.web import django_site
from tests.web.applications import bare_asgi, bare_wsgi

assert django_site  # which makes the settings that the next import looks at

from ratebound.web.django import limit as django_limit  # noqa: E402
from ratebound.web.django.configuration import DjangoLimits  # noqa: E402
from ratebound.web.drf import throttle  # noqa: E402

Call = Callable[..., Any]


def flask_keeper(*args: Any, **given: Any) -> Any:
    return FlaskLimits(Flask("x"), *args, **given)


ADAPTERS: dict[str, Call] = {
    "gate": WebGate,
    "asgi": lambda *args, **given: RateLimitMiddleware(bare_asgi, *args, **given),
    "wsgi": lambda *args, **given: wsgi.RateLimitMiddleware(bare_wsgi, *args, **given),
    "fastapi": RateLimits,
    "flask": flask_keeper,
    "django": lambda policy, **given: DjangoLimits({"policy": policy, **given}),
}
LIMITS: dict[str, Call] = {
    "fastapi": RateLimits().limit,
    "flask": FlaskLimits().limit,
    "django": django_limit,
    "rest": throttle,
}
# What to do here, for options of other packages' constructors and settings.
FOR_ALL = {
    "key_func": "by=",
    "key": "by=",
    "identifier": "by=",
    "headers_enabled": "headers='none'",
    "header_name_mapping": "headers='x-ratelimit'",
    "strategy": "'5/minute fixed-window'",
    "storage_uri": "storage=",
    "storage_options": "storage='redis://host?timeout=0.1'",
    "redis": "storage=",
    "use_cache": "storage=",
    "key_prefix": "storage='redis://host?prefix=shop'",
    "prefix": "storage='redis://host?prefix=shop'",
    "swallow_errors": "failure='open'",
    "fail_open": "failure='open'",
    "in_memory_fallback": "failure='local' is the default",
    "in_memory_fallback_enabled": "failure='local' is the default",
    "retry_after": "'retry_after': 'date'",
    "enabled": "switch='off'",
    "enable": "switch='off'",
    "default_limits_cost": "default_limits=RouteLimit(limits='5/minute', cost=2)",
    "default_limits_deduct_when": "charge=function",
    "application_limits_exempt_when": "exempt_when=function",
    "application_limits_per_method": "a rule for each method",
    "meta_limits": "'5/minute; 3 strikes/hour block 5 minutes'",
    "on_meta_breach": "listeners=[function]",
    "request_identifier": "name=",
    "fail_on_first_breach": "leave it out",
    "auto_check": "leave it out",
    "key_style": "leave it out",
    "config_filename": "'policy.yaml'",
    "http_callback": "on_breach=",
    "skip": "exempt=",
    "name": "limit('5/minute', name=…)",
    "cost": "limit('5/minute', cost=…)",
    "functions": "PolicyFile('policy.yaml', functions={…})",
    "timezone": "'500/calendar-day in Europe/Berlin'",
    "over": "'10000/calendar-month over allow'",
}
AT_LIMIT = {
    "key_func": "key=",
    "identifier": "key=",
    "by": "key=",
    "error_message": "message=",
    "override_defaults": "keep_defaults=True",
    "deduct_when": "charge='failure', charge='success' or charge=function",
    "method": "methods=",
    "scope": "name=",
    "group": "name=",
    "block": "mode='shadow' for block=False; to block clients, write '5/minute; 3 strikes/hour block 5 minutes'",
    "values": "distinct={'account': 'body.username'}",
    "penalties": "an option of the adapter",
    "rate": "limits first",
    "limit_value": "limits first",
    "limiter": "limits first",
    "seconds": "'2/5 seconds'",
    "times": "'2/5 seconds'",
    "callback": "on_breach=",
    "skip": "exempt_when=",
    "blocking": "leaky-bucket",
    "meta_limits": "'5/minute; 3 strikes/hour block 5 minutes'",
    "storage": "an option of the adapter",
    "zone": "'500/calendar-day in Europe/Berlin'",
    "over": "'10000/calendar-month over allow'",
    "retry": "a rule of a policy",
    "exempt_wen": "did you mean 'exempt_when'?",
}


@pytest.mark.parametrize(("option", "said"), FOR_ALL.items())
@pytest.mark.parametrize("make", ADAPTERS.values(), ids=list(ADAPTERS))
def test_a_constructor_says_what_to_write(make: Call, option: str, said: str) -> None:
    with pytest.raises(TypeError) as caught:
        make("5/minute", **{option: None})
    assert str(caught.value).startswith(f"unknown option {option!r}: ")
    assert said in str(caught.value)


@pytest.mark.parametrize(("option", "said"), AT_LIMIT.items())
@pytest.mark.parametrize("limit", LIMITS.values(), ids=list(LIMITS))
def test_a_limit_says_what_to_write(limit: Call, option: str, said: str) -> None:
    for given in (["5/minute"], []):  # as many as there are, or none: theirs may go by name
        with pytest.raises(TypeError) as caught:
            limit(*given, **{option: None})
        assert str(caught.value).startswith(f"unknown option {option!r}: ")
        assert said in str(caught.value)


def test_a_wrong_option_is_told_before_where_a_right_one_belongs() -> None:
    with pytest.raises(TypeError, match="unknown option 'key_func': use by="):
        RateLimits("policy.yaml", key_func=len)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="by: write it in the policy"):
        RateLimits("policy.yaml", by="user")


@pytest.mark.parametrize("limit", LIMITS.values(), ids=list(LIMITS))
def test_a_limit_that_is_called_in_another_shape_says_how(limit: Call) -> None:
    with pytest.raises(TypeError, match=r"expected the limits: limit\('5/minute'\)"):
        limit()
    with pytest.raises(TypeError, match=r"expected the limits: limit\('5/minute'\)"):
        limit(key="user")
    with pytest.raises(TypeError, match=r"options by name, .*: limit\('5/minute', key=function\)"):
        limit("5/minute", len)
    limit(limits="5/minute")


@pytest.mark.parametrize("limit", LIMITS.values(), ids=list(LIMITS))
def test_a_limit_of_values_without_a_source_says_which_option_to_write(limit: Call) -> None:
    with pytest.raises(
        ValueError, match=r"where 'account' is: write for example distinct=\{'account': 'body.account'\}$"
    ):
        limit("20 distinct account/hour")


def test_a_limit_that_the_policy_refuses_is_told_in_the_options_of_limits() -> None:
    gate, penalty = WebGate("100/minute"), "5/minute; 3 strikes/hour block 5 minutes"
    for key in ("global", lambda view: view.path, "body.name"):
        with pytest.raises(ValueError, match="^key: a rule with a penalty .* write key='address'"):
            gate.check(RouteLimit(limits=penalty, key=key))
    with pytest.raises(ValueError, match="^penalty: unknown penalty 'guessing'"):
        gate.check(RouteLimit(limits="5/minute", penalty="guessing"))
    with pytest.raises(ValueError, match="^key: unknown identity 'adress'"):
        gate.check(RouteLimit(limits="5/minute", key="adress"))


def test_the_shape_of_flask_limiters_constructor_gets_ours() -> None:
    for make in (lambda **given: FlaskLimits(len, **given), lambda **_: FlaskLimits(len)):  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"expected the application first, as in RateLimits\(app, default_limits="):
            make(app=Flask("x"), default_limits=["200 per day"])
    FlaskLimits(app=Flask("x"))


PEERS: list[tuple[Call, Any]] = [
    (flask_limiter.Limiter.__init__, options.check_options),
    (flask_limiter.Limiter.limit, options.check_limit_options),
    (flask_limiter.Limiter.shared_limit, options.check_limit_options),
    (slowapi.Limiter.__init__, options.check_options),
    (slowapi.Limiter.limit, options.check_limit_options),
    (slowapi.Limiter.shared_limit, options.check_limit_options),
]


@pytest.mark.parametrize(("theirs", "check"), PEERS)
def test_every_option_of_a_peer_is_ours_or_has_a_hint(theirs: Call, check: Any) -> None:
    for option in {*inspect.signature(theirs).parameters} - {"self", "app"}:
        said = ""
        try:
            check([option])
        except TypeError as error:
            said = str(error)
        assert "did you mean" not in said
        assert "expected one of" not in said


def test_the_types_and_the_classes_know_the_same_options() -> None:
    of_limit = {one.name for one in fields(RouteLimit) if one.init} - {"limits"}
    assert of_limit == set(options.LimitOptions.__annotations__) == set(options.ViewLimitOptions.__annotations__)
    of_policy = {one.name for one in fields(Policy) if one.init} - {"descriptors", "rules", "storage"}
    assert of_policy == set(options.PolicyOptions.__annotations__)
    of_gate = {*inspect.signature(WebGate).parameters} - {"policy", "settings"}
    assert of_gate == set(options.Options.__annotations__) - of_policy
    assert set(options.Options.__annotations__) == set(options.AsyncOptions.__annotations__)
    assert set(get_args(Style)) == {*FIELDS, "none"}
    assert set(get_args(FormatName)) == set(FORMATS)
