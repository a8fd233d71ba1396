"""The origin of a URL: scheme, host and port. It names the server whose limits are learned, and holds no secrets."""

from functools import lru_cache
from urllib.parse import urlsplit

PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
MOST = 300  # characters


@lru_cache(maxsize=1024)
def origin_of(url: str) -> str:
    """Return the origin of a URL: 'https://api.example.com'. User names, passwords, paths and queries are left out.

    A text that is no URL with a host is returned as '': all such texts share one origin.
    """
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme.lower(), parts.hostname or "", parts.port
    except ValueError:
        return ""
    if not host:
        return ""
    if ":" in host:
        host = f"[{host}]"
    shown = "" if port is None or port == PORTS.get(scheme) else f":{port}"
    return f"{scheme}://{host}{shown}"[:MOST]
