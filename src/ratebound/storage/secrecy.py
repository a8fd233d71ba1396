"""Storage URLs in messages (law 10): no password, secret or option of a URL is ever shown."""

import re
from urllib.parse import SplitResult, urlsplit


def split_url(url: str) -> SplitResult:
    """Split a URL. Raises ValueError without the URL's own text, which urllib would put into its message."""
    try:
        return urlsplit(url)
    except ValueError:
        pass
    raise ValueError(f"cannot open storage {hidden(url)}: write '[', ']', '/', '?', '#' and '@' in a password as %5B …")


def hidden(url: str) -> str:
    """Return the URL for a message: scheme, hosts and path, without user info and options.

    A password that was not percent-encoded may reach beyond the first '/', '?' or '#'. So everything in front of the
    last '@' is hidden, and all but the scheme if that '@' may as well belong to an option.
    """
    scheme, mark, rest = url.partition("://")
    if not re.fullmatch(r"[A-Za-z0-9+.-]*", scheme) or not mark:  # no scheme: a password with '://' in it
        scheme, mark, rest = "", "", url
    ends = [place for place in (rest.find("?"), rest.find("#")) if place >= 0]
    head, tail = (rest[: min(ends)], rest[min(ends) :]) if ends else (rest, "")
    if "@" in tail:
        return repr(f"{scheme}{mark}…")
    _, at, after = head.rpartition("@")
    return repr(f"{scheme}{mark}{'…@' if at else ''}{after}{tail[:1] and tail[:1] + '…'}")
