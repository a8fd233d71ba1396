"""The RateLimit fields of the IETF's drafts, and the older fields of the same shape with X-, as a client reads them.

A structured field is read strictly: one mistake makes it void. The one exception is a policy that a large service sends
with an extra name at its beginning.
"""

import re

from ratebound.http.quota import Quota
from ratebound.http.received import ReceivedFields, capped
from ratebound.http.structured import Bare, Item, read_dictionary, read_list

MOST_QUOTAS = 64  # of one response
SALVAGED = re.compile(r'"([ !#-\[\]-~]{1,64})"((?: *; *[a-z]{1,2}=[0-9]{1,15}){1,8})')
DOUBLE_NAME = re.compile(r'"([ !#-\[\]-~]{1,64})" *; *"')
PARAMETER = re.compile(r"([a-z]{1,2})=([0-9]{1,15})")
WINDOWS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "month": 2_592_000, "year": 31_536_000}
KONG_FIELDS = {
    unit: (length, f"x-ratelimit-limit-{unit}", f"x-ratelimit-remaining-{unit}") for unit, length in WINDOWS.items()
}
PREFIXES = {"ratelimit": "draft-06", "x-ratelimit": "x-ratelimit", "x-rate-limit": "x-rate-limit"}


def read_drafts(received: ReceivedFields) -> tuple[str, list[Quota]]:
    """Return the quotas of the newest convention in a response, and its style; "" without any."""
    style = ""
    found: list[Quota] = []
    if received.get("ratelimit") or received.get("ratelimit-policy"):
        style, found = _named(received)
        if not found:
            style, found = "draft-07", _dictionary(received)
    if not found:
        for prefix, its_style in PREFIXES.items():
            style, found = its_style, _three(received, prefix)
            if found:
                if prefix == "ratelimit" and "," in received.get("ratelimit-limit"):
                    style = "draft-03"
                break
    windows = _windows(received)
    if windows:
        return "kong", _joined(found, windows)
    return style if found else "", found[:MOST_QUOTAS]


def _named(received: ReceivedFields) -> tuple[str, list[Quota]]:
    """Read draft-08 to draft-11, and the names proposed to follow: `a` for `r`, and `w` for `t`."""
    style = "draft-11"
    policy_text = received.get("ratelimit-policy")
    extra = DOUBLE_NAME.match(policy_text)
    kind = "window" if extra and extra[1] == "fixed window" else ""
    policy_items = _items(policy_text)
    policies = {_identity(item): item.parameters for item in policy_items}
    by_name: dict[str, dict[str, Bare]] = {}
    for (key, _), policy in policies.items():
        by_name.setdefault(key, policy)
    quotas: dict[tuple[str, Bare | None], Quota] = {}
    for item in _items(received.get("ratelimit")):
        key, partition = identity = _identity(item)
        policy = policies.get(identity) or policies.get((key, None)) or by_name.get(key) or {}
        given = item.parameters
        remaining = _count(given.get("r"))
        after = _count(given.get("t"))
        if remaining is None and "a" in given:
            style = "draft-next"
            remaining, after = _count(given["a"]), _count(given.get("w"))
        if remaining is not None:
            quotas[identity] = _quota(str(item.value), partition, policy, remaining, after, kind)
    told = {key for key, _ in quotas}
    for item in policy_items:
        key, partition = identity = _identity(item)
        if key not in told and _count(item.parameters.get("q")) is not None:
            quotas[identity] = _quota(str(item.value), partition, item.parameters, None, None, kind)
    return style, list(quotas.values())


def _quota(
    name: str, partition: Bare | None, policy: dict[str, Bare], left: int | None, after: int | None, kind: str
) -> Quota:
    unit = policy.get("qu")
    return Quota(
        name,
        _count(policy.get("q")),
        left,
        _count(policy.get("w")) or None,
        None if after is None else capped(float(after)),
        unit if isinstance(unit, str) and unit != "request" else "requests",  # the draft's registry uses the singular
        partition if isinstance(partition, bytes) else None,
        kind,
    )


def _items(text: str) -> list[Item]:
    """Return named items. Items of the old drafts, whose value is a number, are left out."""
    items = read_list(text)
    if items is None and text.startswith('"'):
        pairs = [(name, PARAMETER.findall(rest)) for name, rest in SALVAGED.findall(text)]
        items = [Item(name, {key: int(value) for key, value in found}) for name, found in pairs]
    return [item for item in items or [] if isinstance(item.value, str)][:MOST_QUOTAS]


def _identity(item: Item) -> tuple[str, Bare | None]:
    return str(item.value).lower(), item.parameters.get("pk")


def _dictionary(received: ReceivedFields) -> list[Quota]:
    """Read draft-07: `limit=100, remaining=50, reset=5`."""
    members = read_dictionary(received.get("ratelimit")) or {}
    names = ("limit", "remaining", "reset")
    limit, remaining, reset = [_count(members[name].value) if name in members else None for name in names]
    if limit is None and remaining is None:
        return []
    quota = Quota("", limit, remaining, None, None if reset is None else capped(float(reset)))
    return _with_policies(quota, _policies(received.get("ratelimit-policy")))


def _three(received: ReceivedFields, prefix: str) -> list[Quota]:
    """Read three fields, of the old drafts or with X-. A `-Reset-After` field is surer than a `-Reset` field."""
    limit, remaining = received.count(f"{prefix}-limit"), received.count(f"{prefix}-remaining")
    if limit is None and prefix == "x-rate-limit":
        limit = received.count("x-rate-limit")
    if limit is None and remaining is None:
        return []
    used = received.count(f"{prefix}-used")
    if limit is None and remaining is not None and used is not None:
        limit = used + remaining
    reset = received.seconds(f"{prefix}-reset-after")
    if reset is None:
        reset = received.reset(f"{prefix}-reset")
    quota = Quota("", limit, remaining, None, reset)
    policies = _policies(received.get(f"{prefix}-limit")) or _policies(received.get("ratelimit-policy"))
    return _with_policies(quota, policies)


def _policies(text: str) -> dict[int, Item]:
    """Return the policies of the old drafts by their quota: `100;w=60`."""
    found: dict[int, Item] = {}
    for item in (read_list(text) or [])[:MOST_QUOTAS]:
        if type(item.value) is int and item.value >= 0 and _count(item.parameters.get("w")):
            found.setdefault(item.value, item)
    return found


def _with_policies(quota: Quota, policies: dict[int, Item]) -> list[Quota]:
    """Return a quota with the window of its policy, and the other policies behind it.

    In the old drafts only policies tell several quotas apart, and the reported one changes from response to response.
    So quotas are named by their policies if there are several.
    """
    found = []
    for value, item in policies.items():
        name, window = item.parameters.get("name"), _count(item.parameters.get("w"))
        if not isinstance(name, str):
            name = f"{value};w={window}" if len(policies) > 1 else ""
        if value == quota.limit:
            quota = quota._replace(name=name, window=window)
        else:
            found.append(Quota(name, value, None, window))
    return [quota, *found]


def _windows(received: ReceivedFields) -> list[Quota]:
    """Read Kong's fields: `X-RateLimit-Remaining-Minute`."""
    found = []
    for unit, (length, limit_name, remaining_name) in KONG_FIELDS.items():
        limit, remaining = received.count(limit_name), received.count(remaining_name)
        if limit is not None or remaining is not None:
            found.append(Quota(unit, limit, remaining, length, kind="window"))
    return found


def _joined(nearest: list[Quota], windows: list[Quota]) -> list[Quota]:
    """Return windows, one of them with the reset of the fields that name no window and repeat its numbers."""
    for quota in nearest:
        for place, window in enumerate(windows):
            if (quota.limit, quota.remaining) == (window.limit, window.remaining):
                windows[place] = window._replace(reset_after=quota.reset_after)
                break
        else:
            windows = [quota, *windows]
    return windows


def _count(value: Bare | None) -> int | None:
    return value if type(value) is int and value >= 0 else None
