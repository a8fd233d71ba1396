"""Header sets and bodies as vendors send them, with what a client must read in each.

Instants in them are made from `now`, so that a server can send them and a client can obey them.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any, NamedTuple

from ratebound.http import Advice, Quota

Pairs = list[tuple[str, str]]


class Recording(NamedTuple):
    """One response of a vendor, and what it says."""

    status: int
    headers: Pairs
    advice: Advice
    body: bytes | None = None


def recordings(now: int) -> dict[str, Recording]:
    """Return the recordings by name, as they would be sent at a Unix time."""
    found: dict[str, Recording] = {}
    for vendor in (
        _drafts, _github, _x_okta_naver, _stripe, _shopify, _openai, _azure, _anthropic, _discord, _others, _dates
    ):  # fmt: skip
        for name, recording in vendor(now).items():
            assert name not in found
            found[name] = recording
    return found


def _drafts(now: int) -> dict[str, Recording]:
    burst, daily = Quota("burst", 100, 57, 60, 12.0), Quota("daily", 1000, None, 86400)
    old = {"RateLimit-Limit": "100", "RateLimit-Remaining": "50", "RateLimit-Reset": "50"}
    return {
        "IETF draft-11": Recording(
            200,
            _pairs({"RateLimit-Policy": '"burst";q=100;w=60,"daily";q=1000;w=86400', "RateLimit": '"burst";r=57;t=12'}),
            Advice((burst, daily), style="draft-11"),
        ),
        "IETF draft-11, refused": Recording(
            429,
            _pairs(
                {
                    "RateLimit-Policy": '"default";q=100;w=60',
                    "RateLimit": '"default";r=0;t=5',
                    "Retry-After": "5",
                    "Content-Type": "application/problem+json",
                }
            ),
            Advice((Quota("default", 100, 0, 60, 5.0),), 5.0, True, None, "rate", "", "draft-11"),
            _json(
                {
                    "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
                    "title": "Request cannot be satisfied as assigned quota has been exceeded",
                    "status": 429,
                    "violated-policies": ["default"],
                }
            ),
        ),
        "IETF draft-11, units and partitions": Recording(
            200,
            _pairs(
                {
                    "RateLimit-Policy": '"peruser";q=65535;qu="content-bytes";w=10;pk=:QXBwLTk5OQ==:',
                    "RateLimit": '"peruser";r=3000;t=7;pk=:QXBwLTk5OQ==:',
                }
            ),
            Advice((Quota("peruser", 65535, 3000, 10, 7.0, "content-bytes", b"App-999"),), style="draft-11"),
        ),
        "IETF draft-11, overloaded": Recording(
            503,
            _pairs({"Retry-After": "30", "Content-Type": "application/problem+json"}),
            Advice((), 30.0, True, None, "overloaded"),
            _json({"type": "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"}),
        ),
        "IETF draft-11, abuse": Recording(
            429,
            _pairs({"Retry-After": "300", "Content-Type": "application/problem+json"}),
            Advice((), 300.0, True, None, "abuse"),
            _json({"type": "https://iana.org/assignments/http-problem-types#abnormal-usage-detected"}),
        ),
        "IETF editor's copy": Recording(
            200,
            _pairs({"RateLimit": "default;a=50;w=30;c=3", "RateLimit-Policy": "Default;q=60;w=30"}),
            Advice((Quota("default", 60, 50, 30, 30.0),), style="draft-next"),
        ),
        "IETF draft-07": Recording(
            200,
            _pairs({"RateLimit": "limit=100, remaining=50, reset=5", "RateLimit-Policy": "100;w=10"}),
            Advice((Quota("", 100, 50, 10, 5.0),), style="draft-07"),
        ),
        "IETF draft-06": Recording(
            200,
            _pairs({"RateLimit-Policy": "100;w=60", **old}),
            Advice((Quota("", 100, 50, 60, 50.0),), style="draft-06"),
        ),
        "IETF draft-03": Recording(
            200,
            _pairs({**old, "RateLimit-Limit": '100, 100;w=60;comment="fixed window", 5000;w=86400'}),
            Advice(
                (Quota("100;w=60", 100, 50, 60, 50.0), Quota("5000;w=86400", 5000, None, 86400)),
                style="draft-03",
            ),
        ),
        "IETF draft-11, from a cache": Recording(
            200, _pairs({"RateLimit": '"burst";r=0;t=12', "Age": "3"}), Advice()
        ),
    }  # fmt: skip


def _github(now: int) -> dict[str, Recording]:
    def told(remaining: int, after: int, **more: str) -> Pairs:
        fields = {
            "Server": "github.com",
            "Date": _date(now),
            "X-GitHub-Media-Type": "github.v3; format=json",
            "X-GitHub-Request-Id": "0170:1A2B:3C4D5E:6F7081:6553F100",
            "X-RateLimit-Limit": "5000",
            "X-RateLimit-Remaining": str(remaining),
            "X-RateLimit-Reset": str(now + after),
            "X-RateLimit-Used": str(5000 - remaining),
            "X-RateLimit-Resource": "core",
        }
        return _pairs({**fields, **{name.replace("_", "-"): value for name, value in more.items()}})

    def core(remaining: int, after: float) -> tuple[Quota, ...]:
        return (Quota("core", 5000, remaining, None, after, kind="window"),)

    secondary = _json(
        {
            "message": "You have exceeded a secondary rate limit. Please wait a few minutes before you try again.",
            "documentation_url": "https://docs.github.com/rest/overview/resources-in-the-rest-api#secondary-rate-limits",
        }
    )
    return {
        "GitHub": Recording(200, told(4987, 1800), Advice(core(4987, 1800.0), vendor="GitHub", style="x-ratelimit")),
        "GitHub, primary limit, 403": Recording(
            403,
            told(0, 900),
            Advice(core(0, 900.0), 900.0, True, None, "rate", "GitHub", "x-ratelimit"),
            _json({"message": "API rate limit exceeded for user ID 1."}),
        ),
        "GitHub, primary limit, 429": Recording(
            429, told(0, 900), Advice(core(0, 900.0), 900.0, True, None, "rate", "GitHub", "x-ratelimit")
        ),
        "GitHub, secondary limit": Recording(
            403,
            told(4200, 1800, Retry_After="37"),
            Advice(core(4200, 1800.0), 37.0, True, None, "secondary", "GitHub", "x-ratelimit"),
            secondary,
        ),
        "GitHub, secondary limit without a time": Recording(
            403,
            told(14, 120),
            Advice(core(14, 120.0), 60.0, True, None, "secondary", "GitHub", "x-ratelimit"),
            secondary,
        ),
        "GitHub, a 403 about permissions": Recording(
            403,
            told(4200, 1800),
            Advice(core(4200, 1800.0), vendor="GitHub", style="x-ratelimit"),
            _json({"message": "Resource not accessible by integration"}),
        ),
    }


def _x_okta_naver(now: int) -> dict[str, Recording]:
    def three(limit: int, remaining: int, reset: int) -> dict[str, str]:
        numbers = (("limit", limit), ("remaining", remaining), ("reset", reset))
        return {f"x-rate-limit-{part}": str(number) for part, number in numbers}

    x = {"date": _date(now), "x-transaction-id": "1f2e3d4c5b6a7980", "x-response-time": "42"}
    okta = {"Date": _date(now), "X-Okta-Request-Id": "reqVJzIC8PURQdq2hn0e6sSMw"}
    day = {
        "x-app-limit-24hour-limit": "1667",
        "x-app-limit-24hour-remaining": "1660",
        "x-app-limit-24hour-reset": str(now + 80_000),
    }
    return {
        "X": Recording(
            200,
            _pairs({**x, **three(900, 899, now + 840)}),
            Advice((Quota("", 900, 899, None, 840.0, kind="window"),), vendor="X", style="x-rate-limit"),
        ),
        "X, 24 hours": Recording(
            200,
            _pairs({**x, **three(900, 899, now + 840), **day}),
            Advice(
                (
                    Quota("", 900, 899, None, 840.0, kind="window"),
                    Quota("app-limit-24hour", 1667, 1660, 86400, 80_000.0, kind="window"),
                ),
                vendor="X",
                style="x-rate-limit",
            ),
        ),
        "X, refused": Recording(
            429,
            _pairs({**x, **three(900, 0, now + 300)}),
            Advice(
                (Quota("", 900, 0, None, 300.0, kind="window"),), 300.0, True, None, "rate", "X", "x-rate-limit"
            ),
            _json({"errors": [{"code": 88, "message": "Rate limit exceeded"}]}),
        ),
        "Okta": Recording(
            200,
            _pairs({**okta, **three(600, 598, now + 25)}),
            Advice((Quota("", 600, 598, None, 25.0, kind="window"),), vendor="Okta", style="x-rate-limit"),
        ),
        "Okta, too many requests at once": Recording(
            429,
            _pairs({**okta, **three(0, 0, now + 12)}),
            Advice((), 12.0, True, None, "concurrency", "Okta", "x-rate-limit"),
            _json({"errorCode": "E0000047", "errorSummary": "API call exceeded rate limit due to too many requests."}),
        ),
        "Naver": Recording(
            200,
            _pairs({"date": _date(now), **three(25000, 24990, (now + 90) * 1000)}),
            Advice((Quota("", 25000, 24990, None, 90.0),), style="x-rate-limit"),
        ),
    }  # fmt: skip


def _stripe(now: int) -> dict[str, Recording]:
    stripe = {"Date": _date(now), "Request-Id": "req_oX1qHWb2vT5Xo7", "Stripe-Version": "2024-06-20"}

    def refused(reason: str, should_retry: str, told: str, retry: bool, code: str = "rate_limit") -> Recording:
        reasons = {"Stripe-Rate-Limited-Reason": reason} if reason else {}
        return Recording(
            429,
            _pairs({**stripe, **reasons, "Stripe-Should-Retry": should_retry}),
            Advice((), None, True, retry, told, "Stripe"),
            _json(
                {"error": {"code": code, "type": "invalid_request_error", "message": "Request rate limit exceeded."}}
            ),
        )

    return {
        "Stripe": Recording(200, _pairs(stripe), Advice(vendor="Stripe")),
        "Stripe, refused": refused("endpoint-rate", "true", "rate", True),
        "Stripe, too many requests at once": refused("global-concurrency", "true", "concurrency", True),
        "Stripe, should not retry": refused("resource-specific", "false", "rate", False),
        "Stripe, a locked object": refused("", "true", "lock", True, "lock_timeout"),
    }


def _shopify(now: int) -> dict[str, Recording]:
    shop = {"X-Shopify-API-Version": "2025-07", "X-ShopId": "548380009"}

    def bucket(available: float) -> dict[str, Any]:
        status = {"maximumAvailable": 2000.0, "currentlyAvailable": available, "restoreRate": 100.0}
        return {"cost": {"requestedQueryCost": 101, "actualQueryCost": 46, "throttleStatus": status}}

    def points(left: int, after: float) -> Quota:
        return Quota("graphql", 2000, left, 20, after, "points", kind="bucket")

    throttled = {"errors": [{"message": "Throttled", "extensions": {"code": "THROTTLED"}}], "extensions": bucket(21.0)}
    return {
        "Shopify REST": Recording(
            200,
            _pairs({**shop, "X-Shopify-Shop-Api-Call-Limit": "32/40"}),
            Advice((Quota("", 40, 8, 20, 16.0, kind="bucket"),), vendor="Shopify", style="Shopify"),
        ),
        "Shopify REST, refused": Recording(
            429,
            _pairs({**shop, "X-Shopify-Shop-Api-Call-Limit": "40/40", "Retry-After": "2.0"}),
            Advice((Quota("", 40, 0, 20, 20.0, kind="bucket"),), 2.0, True, None, "rate", "Shopify", "Shopify"),
        ),
        "Shopify GraphQL": Recording(
            200,
            _pairs(shop),
            Advice((points(1954, 0.46),), vendor="Shopify", style="Shopify"),
            _json({"data": {"shop": {"name": "example"}}, "extensions": bucket(1954.0)}),
        ),
        "Shopify GraphQL, refused": Recording(
            200,
            _pairs(shop),
            Advice((points(21, 19.79),), 0.8, True, None, "rate", "Shopify", "Shopify"),
            _json(throttled),
        ),
    }


def _openai(now: int) -> dict[str, Recording]:
    openai = {"date": _date(now), "openai-organization": "example", "openai-processing-ms": "412"}

    def of(name: str, limit: int, remaining: int, reset: str) -> dict[str, str]:
        parts = (("limit", str(limit)), ("remaining", str(remaining)), ("reset", reset))
        return {f"x-ratelimit-{part}-{name}": value for part, value in parts}

    usual = {**of("requests", 10000, 9999, "6ms"), **of("tokens", 30000, 21000, "18s")}
    requests = Quota("requests", 10000, 9999, None, 0.006, kind="bucket")
    tokens = Quota("tokens", 30000, 21000, None, 18.0, "tokens", kind="bucket")
    long = {
        **of("requests", 60, 59, "1s"),
        **of("tokens", 150000, 149984, "6m0s"),
        **of("project-tokens", 500000, 499000, "1m30.951s"),
        **of("tokens_usage_based", 90000, 89000, "667ms"),
    }
    spent = {**of("requests", 500, 499, "120ms"), **of("tokens", 30000, 0, "8.64s")}
    after_spent = (
        Quota("requests", 500, 499, None, 0.12, kind="bucket"),
        Quota("tokens", 30000, 0, None, 8.64, "tokens", kind="bucket"),
    )
    broke = {"error": {"message": "You exceeded your current quota.", "type": "insufficient_quota"}}
    return {
        "OpenAI": Recording(
            200, _pairs({**openai, **usual}), Advice((requests, tokens), vendor="OpenAI", style="OpenAI")
        ),
        "OpenAI, projects": Recording(
            200,
            _pairs({**openai, **long}),
            Advice(
                (
                    Quota("requests", 60, 59, None, 1.0, kind="bucket"),
                    Quota("tokens", 150000, 149984, None, 360.0, "tokens", kind="bucket"),
                    Quota("project-tokens", 500000, 499000, None, 90.951, "tokens", kind="bucket"),
                    Quota("tokens_usage_based", 90000, 89000, None, 0.667, "tokens", kind="bucket"),
                ),
                vendor="OpenAI",
                style="OpenAI",
            ),
        ),
        "OpenAI, refused": Recording(
            429,
            _pairs({**openai, **spent, "retry-after-ms": "1730", "retry-after": "2"}),
            Advice(after_spent, 1.73, True, None, "rate", "OpenAI", "OpenAI"),
            _json({"error": {"message": "Rate limit reached", "type": "tokens", "code": "rate_limit_exceeded"}}),
        ),
        "OpenAI, refused without a time": Recording(
            429, _pairs({**openai, **spent}), Advice(after_spent, 8.64, True, None, "rate", "OpenAI", "OpenAI")
        ),
        "OpenAI, no credit": Recording(
            429, _pairs(openai), Advice((), None, True, False, "quota", "OpenAI"), _json(broke)
        ),
    }  # fmt: skip


def _azure(now: int) -> dict[str, Recording]:
    azure = {"apim-request-id": "bb943c68-99ed-46ab-bda9-a5efbdf5897a", "x-ms-region": "West US", "date": _date(now)}
    unknown = {
        "x-ratelimit-limit-tokens": "-1",
        "x-ratelimit-remaining-tokens": "-1",
        "x-ratelimit-reset-tokens": "0",
        "x-ratelimit-limit-requests": "80",
        "x-ratelimit-remaining-requests": "79",
        "x-ratelimit-reset-requests": "10",
    }
    left = {"x-ratelimit-remaining-requests": "79", "x-ratelimit-remaining-tokens": "0"}
    requests = Quota("requests", None, 79, None, None, kind="bucket")
    return {
        "Azure OpenAI": Recording(
            200,
            _pairs({**azure, **unknown}),
            Advice(
                (Quota("requests", 80, 79, None, 10.0, kind="bucket"),), vendor="Azure OpenAI", style="Azure OpenAI"
            ),
        ),
        "Azure OpenAI, refused": Recording(
            429,
            _pairs({**azure, **left, "retry-after": "26", "retry-after-ms": "25810", "x-ms-retry-after-ms": "25811"}),
            Advice(
                (requests, Quota("tokens", None, 0, None, None, "tokens", kind="bucket")),
                25.81,
                True,
                None,
                "rate",
                "Azure OpenAI",
                "Azure OpenAI",
            ),
        ),
        "Azure OpenAI, refused with a reset alone": Recording(
            429,
            _pairs({**azure, "x-ratelimit-remaining-requests": "79", "x-rate-limit-reset-tokens": "55"}),
            Advice(
                (requests, Quota("tokens", None, None, None, 55.0, "tokens", kind="bucket")),
                55.0,
                True,
                None,
                "rate",
                "Azure OpenAI",
                "Azure OpenAI",
            ),
            _json({"error": {"code": "429", "message": "Requests have exceeded the token rate limit."}}),
        ),
    }


def _anthropic(now: int) -> dict[str, Recording]:
    anthropic = {"date": _date(now), "anthropic-organization-id": "00000000-0000-4000-8000-000000000000"}

    def of(name: str, limit: int, remaining: int, after: int) -> dict[str, str]:
        parts = (("limit", str(limit)), ("remaining", str(remaining)), ("reset", _rfc_3339(now + after)))
        return {f"anthropic-{name}-{part}": value for part, value in parts}

    usual = {
        **of("ratelimit-requests", 50, 49, 2),
        **of("ratelimit-tokens", 60000, 59000, 1),
        **of("ratelimit-input-tokens", 50000, 49000, 1),
        **of("ratelimit-output-tokens", 10000, 10000, 0),
    }
    quotas = (
        Quota("requests", 50, 49, None, 2.0, kind="bucket"),
        Quota("tokens", 60000, 59000, None, 1.0, "tokens", kind="bucket"),
        Quota("input-tokens", 50000, 49000, None, 1.0, "input-tokens", kind="bucket"),
        Quota("output-tokens", 10000, 10000, None, 0.0, "output-tokens", kind="bucket"),
    )
    unified = {
        "anthropic-ratelimit-unified-status": "allowed",
        "anthropic-ratelimit-unified-5h-utilization": "0.42",
        "anthropic-ratelimit-unified-5h-reset": str(now + 9000),
        "anthropic-ratelimit-unified-5h-status": "allowed",
        "anthropic-ratelimit-unified-7d-utilization": "0.073",
        "anthropic-ratelimit-unified-7d-reset": str(now + 400_000),
        "anthropic-ratelimit-unified-7d-status": "allowed",
        "anthropic-ratelimit-unified-representative-claim": "five_hour",
    }
    week = Quota("unified-7d", 100, 92, 604800, 400_000.0, "percent", kind="window")
    over = {
        **unified,
        "anthropic-ratelimit-unified-status": "rejected",
        "anthropic-ratelimit-unified-5h-utilization": "1.08",
        "anthropic-ratelimit-unified-5h-status": "rejected",
    }
    return {
        "Anthropic": Recording(
            200, _pairs({**anthropic, **usual}), Advice(quotas, vendor="Anthropic", style="Anthropic")
        ),
        "Anthropic, priority tier": Recording(
            200,
            _pairs({**anthropic, **of("priority-input-tokens", 10000, 9618, 2)}),
            Advice(
                (Quota("priority-input-tokens", 10000, 9618, None, 2.0, "input-tokens", kind="bucket"),),
                vendor="Anthropic",
                style="Anthropic",
            ),
        ),
        "Anthropic, refused": Recording(
            429,
            _pairs({**anthropic, **of("ratelimit-input-tokens", 50000, 0, 40), "retry-after": "23"}),
            Advice(
                (Quota("input-tokens", 50000, 0, None, 40.0, "input-tokens", kind="bucket"),),
                23.0,
                True,
                None,
                "rate",
                "Anthropic",
                "Anthropic",
            ),
            _json({"type": "error", "error": {"type": "rate_limit_error", "message": "This request would exceed …"}}),
        ),
        "Anthropic, overloaded": Recording(
            529,
            _pairs({**anthropic, "x-should-retry": "true"}),
            Advice((), None, True, True, "overloaded", "Anthropic"),
            _json({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
        ),
        "Anthropic, unified": Recording(
            200,
            _pairs({**anthropic, **unified}),
            Advice(
                (Quota("unified-5h", 100, 58, 18000, 9000.0, "percent", kind="window"), week),
                vendor="Anthropic",
                style="Anthropic",
            ),
        ),
        "Anthropic, unified, refused": Recording(
            429,
            _pairs({**anthropic, **over, "x-should-retry": "false"}),
            Advice(
                (Quota("unified-5h", 100, 0, 18000, 9000.0, "percent", kind="window"), week),
                9000.0,
                True,
                False,
                "rate",
                "Anthropic",
                "Anthropic",
            ),
        ),
        "Anthropic, spend limit": Recording(
            429,
            _pairs(anthropic),
            Advice((), None, True, False, "quota", "Anthropic"),
            _json({"type": "error", "error": {"message": "You have reached your specified API usage limits."}}),
        ),
    }  # fmt: skip


def _discord(now: int) -> dict[str, Recording]:
    bucket = {
        "Date": _date(now),
        "X-RateLimit-Limit": "5",
        "X-RateLimit-Remaining": "0",
        "X-RateLimit-Reset": f"{now + 1}.470",
        "X-RateLimit-Reset-After": "1.470",
        "X-RateLimit-Bucket": "abcd1234",
    }
    quota = Quota("abcd1234", 5, 0, None, 1.47, kind="window")
    return {
        "Discord": Recording(200, _pairs(bucket), Advice((quota,), vendor="Discord", style="x-ratelimit")),
        "Discord, refused": Recording(
            429,
            _pairs({**bucket, "X-RateLimit-Scope": "user"}),
            Advice((quota,), 1.336, True, None, "rate", "Discord", "x-ratelimit"),
            _json({"message": "You are being rate limited.", "retry_after": 1.336, "global": False}),
        ),
        "Discord, refused globally": Recording(
            429,
            _pairs(
                {"Date": _date(now), "Retry-After": "65", "X-RateLimit-Global": "true", "X-RateLimit-Scope": "global"}
            ),
            Advice((), 65.0, True, None, "rate", "Discord"),
            _json({"message": "You are being rate limited.", "retry_after": 64.57, "global": True}),
        ),
    }


def _others(now: int) -> dict[str, Recording]:
    docker = {
        "ratelimit-limit": "100;w=21600",
        "ratelimit-remaining": "76;w=21600",
        "docker-ratelimit-source": "198.51.100.7",
    }
    zendesk = {
        "x-zendesk-zorg": "yes",
        "x-rate-limit": "700",
        "ratelimit-limit": "700",
        "x-rate-limit-remaining": "699",
        "ratelimit-remaining": "699",
        "ratelimit-reset": "41",
        "zendesk-ratelimit-tickets-index": "total=100; remaining=99; resets=41",
    }
    kong = {
        "X-RateLimit-Limit-Minute": "20",
        "X-RateLimit-Remaining-Minute": "19",
        "X-RateLimit-Limit-Hour": "500",
        "X-RateLimit-Remaining-Hour": "321",
        "RateLimit-Limit": "20",
        "RateLimit-Remaining": "19",
        "RateLimit-Reset": "33",
    }
    gitlab = {
        "Date": _date(now),
        "RateLimit-Limit": "60",
        "RateLimit-Name": "throttle_authenticated_web",
        "RateLimit-Observed": "67",
        "RateLimit-Remaining": "0",
        "RateLimit-Reset": str(now + 60),
        "RateLimit-ResetTime": _date(now + 60),
        "Retry-After": "60",
    }
    envoy = {
        "x-ratelimit-limit": '10, 10;w=1;name="second", 100;w=60;name="minute"',
        "x-ratelimit-remaining": "9",
        "x-ratelimit-reset": "1",
        "server": "envoy",
    }
    return {
        "Reddit": Recording(
            200,
            _pairs({"x-ratelimit-used": "2", "x-ratelimit-remaining": "598.0", "x-ratelimit-reset": "421"}),
            Advice((Quota("", 600, 598, None, 421.0, kind="window"),), vendor="Reddit", style="x-ratelimit"),
        ),
        "Docker Hub": Recording(
            200,
            _pairs(docker),
            Advice((Quota("", 100, 76, 21600, partition=b"198.51.100.7"),), vendor="Docker Hub", style="draft-06"),
        ),
        "Zendesk": Recording(
            200,
            _pairs(zendesk),
            Advice(
                (
                    Quota("", 700, 699, None, 41.0, kind="window"),
                    Quota("tickets-index", 100, 99, None, 41.0, kind="window"),
                ),
                vendor="Zendesk",
                style="draft-06",
            ),
        ),
        "Kong": Recording(
            200,
            _pairs(kong),
            Advice(
                (Quota("minute", 20, 19, 60, 33.0, kind="window"), Quota("hour", 500, 321, 3600, kind="window")),
                vendor="Kong",
                style="kong",
            ),
        ),
        "GitLab, refused": Recording(
            429,
            _pairs(gitlab),
            Advice(
                (Quota("throttle_authenticated_web", 60, 0, None, 60.0, kind="window"),),
                60.0,
                True,
                None,
                "rate",
                "GitLab",
                "draft-06",
            ),
        ),
        "Hugging Face": Recording(
            200,
            _pairs({"ratelimit": '"api";r=495;t=23', "ratelimit-policy": '"fixed window";"api";q=500;w=300'}),
            Advice((Quota("api", 500, 495, 300, 23.0, kind="window"),), vendor="Hugging Face", style="draft-11"),
        ),
        "Envoy": Recording(
            200,
            _pairs(envoy),
            Advice(
                (Quota("second", 10, 9, 1, 1.0), Quota("minute", 100, None, 60)), vendor="Envoy", style="x-ratelimit"
            ),
        ),
        "Telegram, refused": Recording(
            429,
            [],
            Advice((), 5.0, True, None, "rate"),
            _json({"ok": False, "error_code": 429, "description": "Too many", "parameters": {"retry_after": 5}}),
        ),
        "Google, refused": Recording(
            429,
            [],
            Advice((), 30.5, True, None, "rate"),
            _json(
                {
                    "error": {
                        "code": 429,
                        "message": "You exceeded your current quota, please check your plan.",
                        "status": "RESOURCE_EXHAUSTED",
                        "details": [
                            {"@type": "type.googleapis.com/google.rpc.QuotaFailure"},
                            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "30.5s"},
                        ],
                    }
                }
            ),
        ),
    }  # fmt: skip


def _dates(now: int) -> dict[str, Recording]:
    """Resets and waits that are written as dates."""
    quota = (Quota("", 20, 0, None, 30.0),)
    paris = datetime.fromtimestamp(now + 30 + 3600, UTC).strftime("%a %b %d %Y %H:%M:%S")

    def reset(text: str) -> Recording:
        three = {"X-RateLimit-Limit": "20", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": text}
        return Recording(
            429, _pairs({"Date": _date(now), **three}), Advice(quota, 30.0, True, None, "rate", "", "x-ratelimit")
        )

    return {
        "a reset as the text of a JavaScript date": reset(f"{paris} GMT+0100 (Central European Standard Time)"),
        "a reset as an ISO date": reset(_rfc_3339(now + 30)),
        "a reset as an ISO date without a zone": reset(_rfc_3339(now + 30).removesuffix("Z").replace("T", " ")),
        "a reset as an HTTP date": reset(_date(now + 30)),
        "a reset in microseconds": reset(str((now + 30) * 1_000_000)),
        "a wait as a date, on a server whose clock is an hour ahead": Recording(
            503,
            _pairs({"Date": _date(now + 3600), "Retry-After": _date(now + 3620)}),
            Advice((), 20.0, True, None, "overloaded"),
        ),
    }


def _pairs(fields: Mapping[str, str]) -> Pairs:
    return list(fields.items())


def _json(document: object) -> bytes:
    return json.dumps(document).encode()


def _date(at: int) -> str:
    return formatdate(at, usegmt=True)


def _rfc_3339(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
