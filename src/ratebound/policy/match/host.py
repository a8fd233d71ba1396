"""Hosts: their canonical form, and the hosts that a request may be addressed to."""

import re
import unicodedata

from ratebound.policy.match.path import ABSOLUTE
from ratebound.policy.match.request import RequestView

PLAIN = re.compile(r"[A-Za-z0-9_.:\[\] \t-]*")  # a host that everybody reads alike, maybe with a port
URL_END = re.compile(r"[/?#\\]")  # ends the authority of a URL
MAX_HOST = 253  # characters of a name
MAX_LABEL = 63
DOTS = str.maketrans("\u3002\uff0e\uff61", "...")  # full stops of other scripts, which browsers treat as dots


def host_of(text: str) -> str:
    """Return a host in its canonical form: lower case, without a port and a final dot, non-ASCII labels as `xn--…`.

    A name that is too long is cut to one character more than a name can have. Its end is kept, so `*.example.com` still
    matches it, and no exact pattern does.
    """
    host = text.strip()
    host = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0].rstrip(". \t")
    host = host[-MAX_HOST - 1 :].lower()
    return host if host.isascii() else _encoded(host)


def hosts_of(request: RequestView) -> tuple[str, ...]:
    """Return the hosts that a server or an application may take a request to be for: those of all Host headers, and of
    an absolute target. Text that is more than a host is also read as the beginning of a URL."""
    host = request.host
    if PLAIN.fullmatch(host) and request.path[:1] == "/":
        return (host_of(host),)
    texts = host.split(",")  # adapters join several headers
    absolute = ABSOLUTE.match(request.path)
    if absolute is not None:
        texts.append(absolute.group().partition("://")[2].rpartition("@")[2])
    for text in [text for text in texts if not text.isascii()]:
        try:
            texts.append(text.encode("latin-1").decode("utf-8"))
        except UnicodeError:
            continue
    texts += [URL_END.split(text, maxsplit=1)[0].rpartition("@")[2] for text in texts]
    return tuple(dict.fromkeys(map(host_of, texts)))


def is_host(text: str) -> bool:
    """Return True if the text is a valid host, or `*.` and a valid host."""
    host = host_of(text[2:] if text.startswith("*.") else text)
    labels = host.split(".")
    return (
        len(host) <= MAX_HOST
        and all(0 < len(label) <= MAX_LABEL for label in labels)
        and not any(mark in host for mark in "*/@[]?#")
        and not any(c.isspace() for c in host)
    )


def _encoded(host: str) -> str:
    """Return the host in IDNA as browsers do today: `ß` stays a letter of its own and does not become `ss`."""
    normal = unicodedata.normalize("NFKC", host.translate(DOTS)).lower()
    return ".".join(map(_label, normal.split(".")))


def _label(label: str) -> str:
    if label.isascii() or len(label) > MAX_LABEL:
        return label
    return f"xn--{label.encode('punycode').decode('ascii')}"
