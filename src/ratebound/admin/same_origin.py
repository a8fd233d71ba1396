"""Requests that another site made a browser send: how they are told from those of the page itself.

`Sec-Fetch-Site` decides where the browser sends it. Else the host in `Origin` must be that of `Host`. The scheme is not
compared: a proxy that ends TLS passes requests on without it.
"""

from collections.abc import Mapping
from urllib.parse import urlsplit

from ratebound.admin.messages import CallError

CSRF_HEADER = "x-ratebound-csrf"
DEFAULT_PORTS = (":80", ":443")
NO_ORIGIN = (
    "This call needs proof that it comes from the page itself, and it has neither Sec-Fetch-Site nor Origin. Programs"
    " send a token instead: Authorization: Bearer TOKEN."
)


def refuse_other_sites(headers: Mapping[str, str], *, needs_proof: bool) -> None:
    """Raise CallError if a request comes from another site; with `needs_proof` also if it does not say where from."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        if site == "same-origin" or (site == "none" and not needs_proof):
            return
        raise CallError(403, f"The browser says that this call comes from another site (Sec-Fetch-Site: {site[:40]}).")
    if origin is not None:
        if _host_in(origin) is not None and _host_in(origin) == _without_port(headers.get("host", "").lower()):
            return
        raise CallError(
            403,
            f"This call comes from {origin[:100]!r}, which is not this host. Behind a proxy: let it pass the header"
            " Host on as it is.",
        )
    if needs_proof:
        raise CallError(403, NO_ORIGIN)


def _host_in(origin: str) -> str | None:
    """Return host and port of an Origin, None for `null` and for what is not one."""
    try:
        parts = urlsplit(origin.lower())
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path or "@" in parts.netloc:
        return None
    return _without_port(parts.netloc)


def _without_port(host: str) -> str:
    """Return a host without the port that browsers leave out."""
    for port in DEFAULT_PORTS:
        host = host.removesuffix(port)
    return host
