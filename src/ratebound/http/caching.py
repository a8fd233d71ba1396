"""Detection of responses that a shared cache may use for other clients, by their own header fields."""

import time
from collections.abc import Iterable
from email.utils import parsedate_to_datetime

# The second and third are for content delivery networks, which use them instead of the first.
CACHING = ("Cache-Control", "CDN-Cache-Control", "Surrogate-Control", "Expires")
NAMES = frozenset(name.lower() for name in CACHING)
KEPT_FROM_OTHERS = {"private", "no-store", "no-cache"}  # no-cache: revalidated before each use


def is_redirect(status: int) -> bool:
    """Return True for a status that redirects the client. A 304 does not."""
    return 300 <= status < 400 and status != 304


def is_shareable(headers: Iterable[tuple[str, str]]) -> bool:
    """Return True if one of these fields lets a shared cache use the response for other clients.

    A response without such a field is not shareable: caches may guess, but APIs do not rely on it.
    """
    found: dict[str, list[str]] = {}
    for name, value in headers:
        if name.lower() in NAMES:
            found.setdefault(name.lower(), []).append(value)
    expires = found.pop("expires", None)
    if expires is not None and "cache-control" not in found and _is_to_come(expires[0]):
        return True
    return any(_shares(",".join(lines)) for lines in found.values())


def _is_to_come(date: str) -> bool:
    try:
        return parsedate_to_datetime(date).timestamp() > time.time()
    except (ValueError, OverflowError):
        return False  # like '0' or '-1', which mean that it has expired


def _shares(text: str) -> bool:
    directives: dict[str, str] = {}
    for directive in text.lower().split(","):
        name, _, value = directive.partition("=")
        directives[name.strip()] = value.strip().strip('"')
    if any(directives.get(name) == "" for name in KEPT_FROM_OTHERS):  # with a value they concern single fields
        return False
    lifetime = directives.get("s-maxage", directives.get("max-age"))
    if lifetime is None:
        return "public" in directives
    return lifetime.strip("0") != "" or "stale-while-revalidate" in directives
