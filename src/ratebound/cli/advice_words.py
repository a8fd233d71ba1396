"""An API's advice about its limits in words: quotas, a refusal, when to retry, and what does not fit together.

Everything that a server wrote is made printable here.
"""

import re
from collections.abc import Iterator, Sequence

from ratebound.cli.figures_page import shown
from ratebound.cli.words import duration, number
from ratebound.http import Advice, Quota, read_advice
from ratebound.http.advice import is_limit_field, parse_retry_after
from ratebound.http.received import http_date

Pairs = Sequence[tuple[str, str]]

LONG = 86_400.0  # seconds: a wait from here on is worth a word
SLACK = 1.5  # seconds: servers round
MOST_NAME = 80  # characters
MOST_LINES = 50  # that are looked at for mistakes
STYLES = {
    "draft-11": "RateLimit fields of the IETF's draft-08 to draft-11",
    "draft-next": "RateLimit fields as proposed to follow the IETF's draft-11",
    "draft-07": "RateLimit fields of the IETF's draft-07",
    "draft-06": "RateLimit fields of the IETF's draft-06",
    "draft-03": "RateLimit fields of the IETF's draft-03",
    "x-ratelimit": "X-RateLimit fields",
    "x-rate-limit": "X-Rate-Limit fields",
    "kong": "X-RateLimit fields for each window, as Kong sends them",
}
REASONS = {
    "rate": "too many requests in a time",
    "concurrency": "too many requests at once. It passes again when running requests have ended",
    "secondary": "a secondary limit, which no field reports",
    "quota": "credit or a quota is spent. Waiting does not bring it back: look at the plan and the billing",
    "abuse": "the server takes the traffic for abuse, and blocks the client for a while",
    "lock": "another request holds the same object. This is no rate limit",
    "overloaded": "the server is overloaded or in maintenance. This client did nothing wrong",
}
# Names of fields that only describe others.
SIDE_FIELDS = re.compile(
    r"-(?:used|scope|global|observed|resettime|name|resource|bucket|source|status|reason|claim|percentage|used_percent)$"
    r"|^anthropic-ratelimit-unified-(?!.*(?:utilization)$)"
)
FAMILIES = ("ratelimit", "x-ratelimit", "x-rate-limit")


def style_words(advice: Advice) -> str:
    """Return whose convention the fields follow, "" if that is not known."""
    if not advice.style:
        return advice.vendor
    if advice.style == advice.vendor:
        return f"{advice.vendor}'s own fields"
    style = STYLES.get(advice.style, advice.style)
    return style if advice.vendor in ("", "Kong") else f"{style}, as {advice.vendor} sends them"


def quota_words(quota: Quota, style: str = "") -> str:
    """Return one quota: 'requests: 57 of 100 left, all come back in 12 s (window of 1 min)'."""
    label = _short(quota.unit)
    if quota.name and quota.name != quota.unit:
        label = f"{_short(quota.name)}, {label}"
    if quota.remaining is not None and quota.limit is not None:
        text = f"{number(quota.remaining)} of {number(quota.limit)} left"
    elif quota.remaining is not None:
        text = f"{number(quota.remaining)} left, of a number that is not told"
    elif quota.limit is not None:
        text = f"at most {number(quota.limit)}; what is left is not told"
    else:
        text = "only the reset is told"
    if quota.reset_after is not None:
        text += _comes_back(quota, quota.reset_after, style)
    if quota.window is not None:
        window = _time(quota.window)
        text += f" ({window} from empty to full)" if quota.kind == "bucket" else f" (window of {window})"
    return f"{label}: {text}"


def _comes_back(quota: Quota, seconds: float, style: str) -> str:
    after = _time(seconds)
    if quota.remaining is not None and quota.remaining == quota.limit and not seconds:
        return ", none is spent"
    if quota.kind == "window":
        return f", all come back in {after}"
    if quota.kind == "bucket":
        return f", they come back steadily, all in {after}"
    if style in ("draft-11", "draft-next"):
        return f" for the next {after}"
    return f", reset in {after}"


def refusal_words(advice: Advice) -> str:
    """Return what a refusal means, "" if the request was not refused."""
    if not advice.refused:
        return ""
    spent = [_label(quota) for quota in advice.quotas if quota.remaining == 0]
    if advice.reason == "rate" and spent:
        return f"nothing is left of {' and of '.join(spent)}"
    return REASONS.get(advice.reason, shown(advice.reason))


def retry_words(advice: Advice, headers: Pairs) -> str:
    """Return when to send the next request, and who says so."""
    if not advice.refused:
        spent = [quota for quota in advice.quotas if quota.remaining == 0]
        if not spent:
            return ""
        waits = [quota.reset_after for quota in spent if quota.reset_after is not None]
        return f"nothing is left: wait {_time(max(waits))}" if waits else "nothing is left, and no reset is told"
    if advice.should_retry is False:
        return "no, the server says that it does not help"
    if advice.retry_after is None:
        return "the server names no time: wait by a backoff with jitter"
    for name in ("retry-after-ms", "x-ms-retry-after-ms", "retry-after"):
        if parse_retry_after([pair for pair in headers if pair[0].lower() in (name, "date", "age")]) is not None:
            return f"in {_time(advice.retry_after)}, says {name.title()}"
    spent_resets = {quota.reset_after for quota in advice.quotas if quota.remaining in (0, None)}
    if advice.retry_after in spent_resets:
        return f"in {_time(advice.retry_after)}, when the exhausted quota is reset"
    if advice.reason == "secondary":
        return f"in {_time(advice.retry_after)} or later, and longer after each further refusal: no field names a time"
    if advice.reason == "concurrency":
        return f"in {_time(advice.retry_after)}, which is an estimate of the server"
    return f"in {_time(advice.retry_after)}, says the body"


def limit_lines(headers: Pairs) -> list[str]:
    """Return the lines of a response that are about limits, with the Date and Age that they are read by."""
    names = ("date", "age") if any(is_limit_field(name) for name, _ in headers) else ()
    return [_line(pair) for pair in headers if is_limit_field(pair[0]) or pair[0].lower() in names]


def doubts(status: int, headers: Pairs, advice: Advice, now: float) -> list[str]:
    """Return what is unclear, contradictory or worth a warning in a response."""
    found = [*_of_fields(status, headers, advice, now), *_of_refusal(headers, advice), *_ignored(headers, now)]
    for quota in advice.quotas:
        found += _of_quota(quota)
    return list(dict.fromkeys(found))


def _of_fields(status: int, headers: Pairs, advice: Advice, now: float) -> Iterator[str]:
    fields: dict[str, str] = {}
    for name, value in headers:
        fields.setdefault(name.lower(), value.strip())
    if fields.get("age", "0") not in ("", "0"):
        yield f"The response comes from a cache (Age: {_short(fields['age'])}), so its quotas were ignored."
    if not advice.quotas and not any(is_limit_field(name) for name in fields) and not advice.refused:
        yield "The response says nothing about limits. That does not mean that there are none."
    date = http_date(fields.get("date", ""))
    skew = 0.0 if date is None else date - now
    if abs(skew) > 60 and any(quota.reset_after is not None for quota in advice.quotas):
        side = "ahead" if skew > 0 else "behind"
        yield f"The server's clock is {_time(abs(skew))} {side}. Times in fields were read on its clock."
    said = {}
    for family in FAMILIES:
        lines = [(name, value) for name, value in headers if name.lower().startswith(family)]
        quotas = [quota for quota in read_advice(status, lines, now=now).quotas if quota.remaining is not None]
        if len(quotas) == 1:
            said[family] = quotas[0].remaining
    if len(set(said.values())) > 1:
        told = ", ".join(f"{family.title()} says {remaining:,}" for family, remaining in said.items())
        yield f"The fields disagree about what is left: {told}. The newest convention counts."


def _ignored(headers: Pairs, now: float) -> Iterator[str]:
    """Yield the lines that tell nothing: they break their grammar, or have a number that means 'not known'.

    A reset tells nothing alone, so it is read with a number that remains.
    """
    dates = [pair for pair in headers if pair[0].lower() == "date"]
    told = [pair for pair in headers if is_limit_field(pair[0])][:MOST_LINES]
    for place, (name, value) in enumerate(told):
        lower = name.lower()
        if SIDE_FIELDS.search(lower):
            continue
        left = (lower.replace("reset-after", "remaining").replace("reset", "remaining"), "1")
        beside = [*dates, left] if "reset" in lower else dates
        is_read = _differ(beside, [*beside, (name, value)], now)
        if not is_read and not _differ([*dates, *told], [*dates, *told[:place], *told[place + 1 :]], now):
            yield f"This field was ignored, because it is malformed or tells no number: {_line((name, value))}"


def _differ(headers: Pairs, others: Pairs, now: float) -> bool:
    one, other = (read_advice(429, pairs, now=now)._replace(vendor="", style="") for pairs in (headers, others))
    return one != other


def _of_refusal(headers: Pairs, advice: Advice) -> Iterator[str]:
    wait = advice.retry_after
    if not advice.refused:
        return
    spent = [quota for quota in advice.quotas if quota.remaining == 0]
    if wait is not None:
        if wait > LONG:
            yield f"The server asks to wait {_time(wait)}, which is very long: bound every wait."
        if not wait:
            yield "The server asks to retry at once, although it has refused."
        for quota in spent:
            if quota.kind != "bucket" and quota.reset_after is not None and wait + SLACK < quota.reset_after:
                yield (
                    f"The wait ({_time(wait)}) ends before the reset of {_label(quota)} ({_time(quota.reset_after)})."
                    " The wait counts, but the next request may be refused again."
                )
    is_counted = all(quota.remaining and quota.unit == "requests" for quota in advice.quotas)
    if advice.reason == "rate" and advice.quotas and is_counted:
        yield "Something is left of every quota in the response: a limit that it does not report has refused."
    is_told = any(is_limit_field(name) and "retry" not in name.lower() for name, _ in headers)
    if advice.reason == "rate" and not advice.quotas and not is_told:
        yield "The refusal does not say which limit was exceeded."


def _of_quota(quota: Quota) -> Iterator[str]:
    if quota.limit is not None and quota.remaining is not None and quota.remaining > quota.limit:
        yield f"More is left of {_label(quota)} ({number(quota.remaining)}) than its limit ({number(quota.limit)})."
    if quota.window is not None and quota.reset_after is not None and quota.reset_after > quota.window + SLACK:
        yield (
            f"The reset of {_label(quota)} ({_time(quota.reset_after)}) is later than its window is long"
            f" ({_time(quota.window)})."
        )
    if quota.remaining == 0 and quota.reset_after == 0:
        yield f"Nothing is left of {_label(quota)}, but its reset is now."


def _label(quota: Quota) -> str:
    return f"“{_short(quota.name)}”" if quota.name else _short(quota.unit)


def _line(pair: tuple[str, str]) -> str:
    return f"{_short(pair[0])}: {_short(pair[1], 300)}"


def _short(text: str, most: int = MOST_NAME) -> str:
    text = shown(text)
    return text if len(text) <= most else f"{text[:most]}…"


def _time(seconds: float) -> str:
    return duration(round(seconds * 1_000_000))
