"""The rate-limit fields that one vendor has made up, and the marks by which a vendor's responses are known."""

import re
from functools import lru_cache

from ratebound.http.quota import Quota
from ratebound.http.ratelimit_fields import DOUBLE_NAME, MOST_QUOTAS, WINDOWS
from ratebound.http.received import ReceivedFields, capped

# Names of fields that only this vendor sends. The first vendor that matches counts.
MARKS = {
    "Anthropic": re.compile(r"anthropic-"),
    "Azure OpenAI": re.compile(r"apim-request-id|azureml-|x-ms-(?:region|client-request-id|retry-after-ms)"),
    "OpenAI": re.compile(r"openai-|x-ratelimit-(?:limit|remaining)-(?:requests|tokens)$"),
    "GitHub": re.compile(r"x-github-|x-ratelimit-resource$"),
    "Okta": re.compile(r"x-okta-"),
    "Stripe": re.compile(r"stripe-"),
    "Shopify": re.compile(r"x-shopify-|x-shopid$"),
    "Discord": re.compile(r"x-ratelimit-(?:bucket|scope|global)$"),
    "Docker Hub": re.compile(r"docker-ratelimit-"),
    "Zendesk": re.compile(r"zendesk-|x-zendesk-"),
    "GitLab": re.compile(r"ratelimit-observed$|ratelimit-resettime$|gitlab-|x-gitlab-"),
    "Kong": re.compile(r"x-kong-|x-ratelimit-remaining-(?:second|minute|hour|day|month|year)$"),
    "X": re.compile(r"x-connection-hash$|x-transaction-id$|x-(?:app|user)-limit-[0-9]{1,4}hour-limit$"),
}
VENDORS = tuple(MARKS)
KINDS = dict.fromkeys(("GitHub", "Okta", "Discord", "Zendesk", "GitLab", "Kong", "Reddit", "X"), "window")
MODEL = re.compile(
    r"x-rate-?limit-(?:limit|remaining|reset)-((?:[a-z]{1,16}-){0,2}?(requests|tokens|images)(?:_usage_based)?"
    r"(?:-(second|minute|hour|day))?)"
)
ANTHROPIC = re.compile(
    r"(anthropic-(ratelimit|priority)-((?:[a-z]{1,16}-){0,2}?(requests|(?:input-|output-)?tokens)))-(?:limit|remaining)"
)
UNIFIED = re.compile(r"anthropic-ratelimit-unified-(([0-9]{1,3})([hd])(?:_[a-z]{1,16})?)-utilization")
SHARE = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,18})?")
CALL_LIMIT = re.compile(r"([0-9]{1,15})/([0-9]{1,15})")
ENDPOINT = re.compile(r"zendesk-ratelimit-([a-z0-9_-]{1,64})")
ENDPOINT_VALUE = re.compile(r"total=([0-9]{1,15}); *remaining=([0-9]{1,15}); *resets=([0-9]{1,15})")
LONG_LIMIT = re.compile(r"x-((?:app|user)-limit-([0-9]{1,4})hour)-(?:limit|remaining)")
SHOPIFY_REFILL = 20  # seconds: no field tells it; Shopify documents 2 a second for a bucket of 40, 20 for one of 400


def vendor_of(received: ReceivedFields) -> str:
    """Return the vendor whose fields these are, "" if it is not known."""
    ranks = [rank for rank in map(_rank, received.fields) if rank >= 0]
    if ranks:
        return VENDORS[min(ranks)]
    if received.get("server").lower() == "github.com":
        return "GitHub"
    if received.get("x-ratelimit-used") and received.get("x-ratelimit-remaining"):
        return "" if received.get("x-ratelimit-limit") else "Reddit"
    if ";" in received.get("x-ratelimit-limit"):
        return "Envoy"
    if DOUBLE_NAME.match(received.get("ratelimit-policy")):
        return "Hugging Face"
    return ""


@lru_cache(2048)
def _rank(name: str) -> int:
    """Return the place in VENDORS of the vendor that sends a field, -1 without one."""
    return next((rank for rank, mark in enumerate(MARKS.values()) if mark.match(name)), -1)


def in_words_of_vendor(vendor: str, received: ReceivedFields, quota: Quota) -> Quota:
    """Return a quota of the common fields with the name, partition and kind that this vendor's other fields give it."""
    name, partition = quota.name, quota.partition
    if vendor == "GitHub":
        name = _token(received.get("x-ratelimit-resource")) or name
    elif vendor == "Discord":
        name = _token(received.get("x-ratelimit-bucket")) or name
    elif vendor == "GitLab":
        name = _token(received.get("ratelimit-name")) or name
    elif vendor == "Docker Hub":
        partition = _token(received.get("docker-ratelimit-source")).encode("utf-8", "replace") or None
    return quota._replace(name=name, partition=partition, kind=quota.kind or KINDS.get(vendor, ""))


def read_vendor_fields(received: ReceivedFields) -> list[Quota]:
    """Return the quotas that vendors report in fields of their own."""
    found: dict[str, Quota] = {}
    seen: set[str] = set()  # fields of which another part was read
    for name in received.fields:
        quota = None
        if name.startswith(("x-ratelimit-", "x-rate-limit-")):
            match = MODEL.fullmatch(name)
            if match is not None and match[1] not in found:
                quota = _of_model(received, match)
        elif name.startswith("anthropic-"):
            match = ANTHROPIC.fullmatch(name)
            if match is None:
                quota = _of_unified(received, name)
            elif match[1] not in seen:
                seen.add(match[1])
                quota = _of_anthropic(received, match)
        elif name == "x-shopify-shop-api-call-limit":
            quota = _of_shop(received.get(name))
        elif name.startswith("zendesk-ratelimit-"):
            quota = _of_endpoint(received, name)
        elif name.startswith(("x-app-limit-", "x-user-limit-")):
            quota = _of_day(received, name)
        if quota is not None:
            found.setdefault(quota.name, quota)
            if len(found) >= MOST_QUOTAS:
                break
    return list(found.values())


def _of_model(received: ReceivedFields, match: re.Match[str]) -> Quota | None:
    """Read OpenAI's fields, which Azure and others copy: one set for each of requests and tokens.

    Azure sends -1 for numbers that it does not know, and may send a reset alone, in a field of another spelling.
    """
    limit = received.count(f"x-ratelimit-limit-{match[1]}")
    remaining = received.count(f"x-ratelimit-remaining-{match[1]}")
    reset = received.reset(f"x-ratelimit-reset-{match[1]}")
    if reset is None:
        reset = received.reset(f"x-rate-limit-reset-{match[1]}")
    if limit is None and remaining is None and not reset:
        return None
    window = WINDOWS[match[3]] if match[3] else None
    return Quota(match[1], limit, remaining, window, reset, match[2], kind="bucket")


def _of_anthropic(received: ReceivedFields, match: re.Match[str]) -> Quota | None:
    field, tier, name, unit = match.groups()
    limit, remaining = received.count(f"{field}-limit"), received.count(f"{field}-remaining")
    if limit is None and remaining is None:
        return None
    own_name = f"priority-{name}" if tier == "priority" else name
    return Quota(own_name, limit, remaining, None, received.reset(f"{field}-reset"), unit, kind="bucket")


def _of_unified(received: ReceivedFields, name: str) -> Quota | None:
    """Read the share of a long window that is used. It is reported in percent, rounded down to what remains."""
    match = UNIFIED.fullmatch(name)
    text = received.get(name)
    if match is None or not SHARE.fullmatch(text):
        return None
    field = f"anthropic-ratelimit-unified-{match[1]}"
    remaining = max(int(100 - float(text) * 100 + 1e-9), 0)
    if received.get(f"{field}-status").lower() == "rejected":
        remaining = 0
    window = int(match[2]) * (3600 if match[3] == "h" else 86400)
    reset = received.reset(f"{field}-reset")
    return Quota(f"unified-{match[1]}", 100, remaining, window or None, reset, "percent", kind="window")


def _of_shop(text: str) -> Quota | None:
    match = CALL_LIMIT.fullmatch(text)
    if match is None or not int(match[2]):
        return None
    used, limit = int(match[1]), int(match[2])
    after = min(used / limit, 1.0) * SHOPIFY_REFILL
    return Quota("", limit, max(limit - used, 0), SHOPIFY_REFILL, after, kind="bucket")


def _of_endpoint(received: ReceivedFields, name: str) -> Quota | None:
    own_name, value = ENDPOINT.fullmatch(name), ENDPOINT_VALUE.fullmatch(received.get(name))
    if own_name is None or value is None:
        return None
    return Quota(own_name[1], int(value[1]), int(value[2]), None, capped(float(value[3])), kind="window")


def _of_day(received: ReceivedFields, name: str) -> Quota | None:
    match = LONG_LIMIT.fullmatch(name)
    if match is None:
        return None
    limit, remaining = (received.count(f"x-{match[1]}-{part}") for part in ("limit", "remaining"))
    if limit is None and remaining is None:
        return None
    window = int(match[2]) * 3600
    return Quota(match[1], limit, remaining, window or None, received.reset(f"x-{match[1]}-reset"), kind="window")


def _token(text: str) -> str:
    """Return a short printable name, "" for anything else."""
    return text if len(text) <= 128 and text.isascii() and text.isprintable() else ""
