"""Hosts: in one writing, and those that a request may be for."""

import unicodedata

from ratebound.policy.match.path import ABSOLUTE
from ratebound.policy.match.request import RequestView

MAX_HOST = 253  # characters of a name
MAX_LABEL = 63
DOTS = str.maketrans("\u3002\uff0e\uff61", "...")  # full stops of other scripts, which browsers take for dots


def host_of(text: str) -> str:
    """A host without its port, in lower case, without the root's dot, other letters as `xn--…`.

    Of a name that is too long the end is kept, with more than a name can have: below a domain it stays, equal to a
    pattern it never is.
    """
    host = text.strip()
    host = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0].rstrip(". \t")
    host = host[-MAX_HOST - 1 :].lower()
    return host if host.isascii() else _encoded(host)


def hosts_of(request: RequestView) -> tuple[str, ...]:
    """The hosts that a request may be for: that of the header, that of a target which is a whole URL, and what they
    are if their bytes were taken for latin-1."""
    host = request.host
    if host.isascii() and request.path[:1] == "/":
        return (host_of(host),)
    texts = [host]
    absolute = ABSOLUTE.match(request.path)
    if absolute is not None:
        texts.append(absolute.group().partition("://")[2].rpartition("@")[2])
    for text in [text for text in texts if not text.isascii()]:
        try:
            texts.append(text.encode("latin-1").decode("utf-8"))
        except UnicodeError:
            continue
    return tuple(dict.fromkeys(host_of(text) for text in texts))


def is_host(text: str) -> bool:
    """Whether this can be the host of a request, or `*.` and the end of one."""
    host = host_of(text[2:] if text.startswith("*.") else text)
    labels = host.split(".")
    return (
        len(host) <= MAX_HOST
        and all(0 < len(label) <= MAX_LABEL for label in labels)
        and not any(mark in host for mark in "*/@[]?#")
        and not any(c.isspace() for c in host)
    )


def _encoded(host: str) -> str:
    """IDNA as browsers write it today: letters that have their own code keep it (`ß` is not `ss`)."""
    normal = unicodedata.normalize("NFKC", host.translate(DOTS)).lower()
    return ".".join(map(_label, normal.split(".")))


def _label(label: str) -> str:
    if label.isascii() or len(label) > MAX_LABEL:
        return label
    return f"xn--{label.encode('punycode').decode('ascii')}"
