"""Storage URLs in messages (law 10), without passwords, secrets and options."""

import re
from urllib.parse import SplitResult, urlsplit


def split_url(url: str) -> SplitResult:
    """Split a URL. Raises ValueError without the URL's text, which urllib would put into its message."""
    try:
        return urlsplit(url)
    except ValueError:
        pass
    raise ValueError(f"cannot open storage {hidden(url)}: write '[', ']', '/', '?', '#' and '@' in a password as %5B …")


def hidden(url: str) -> str:
    """Return a URL for a message: scheme, hosts and path, without user info and options.

    A password that was not percent-encoded may reach beyond the first '/', '?' or '#'. So everything before the last
    '@' is hidden, and everything except the scheme if that '@' may belong to an option.
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
