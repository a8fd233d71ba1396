"""The paths by which one request may be routed, its readings (law 13). Shared by all adapters.

A server, a mount or a middleware may remove a prefix from a path, add one, or replace it. So a request has the path of
its target, the full path, and the path below the prefix. A rule applies if any of them matches. An exemption applies
only if all of them match, with one exception: if the operator is known to have configured the prefix, the full path and
the path below it are one path, and one match is enough. Servers also take prefixes from requests without saying so, so
a prefix counts as sent by the client unless it is known to be configured.
"""

import os
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

from ratebound.storage.workers import command_line

# The environment variables and command line options that configure the prefix of a server.
VARIABLES = ("SCRIPT_NAME", "UVICORN_ROOT_PATH", "GRANIAN_URL_PATH_PREFIX")
OURS = "RATEBOUND_PREFIX"  # one prefix, or several separated by commas
OPTIONS = ("--root-path", "--url-path-prefix", "--url-prefix")
SAFE = "/:@!$&'()*+,;=~-._"  # characters that are not percent-encoded in a path


class Readings(NamedTuple):
    """The readings of one path, all percent-encoded.

    `target` is the path as received. Each of `groups` is one path, with and without a configured prefix. `prefixes` may
    be put before any of them, since rules may be written with them. `prefix` is the prefix that the operator is known
    to have configured for this request, "" if there is none.
    """

    target: str
    groups: tuple[tuple[str, ...], ...]
    prefixes: tuple[str, ...] = ()
    prefix: str = ""


Paths = str | Readings  # a str is a path with one reading: itself


def texts_of(paths: Paths) -> Iterable[str]:
    """Return every reading once."""
    if isinstance(paths, str):
        return (paths,)
    return dict.fromkeys(text for group in paths.groups for text in group)


def read_paths(
    target: str | None,
    path: bytes,
    others: Iterable[tuple[bytes, bool]],
    prefixes: Iterable[str] = (),
    prefix: str = "",
) -> Paths:
    """Return the readings of a request.

    `target` is the path as received, None if the server does not provide it. `path` is the decoded path. `others` are
    the same path with or without a prefix, each with True if that prefix is known to be configured. `prefixes` and
    `prefix` are as in Readings, but not encoded.
    """
    same = {path: quote(path, safe=SAFE)}
    single: dict[bytes, str] = {}
    for other, is_known in others:
        (same if is_known else single).setdefault(other, quote(other, safe=SAFE))
    single = {other: text for other, text in single.items() if other not in same}
    received = same[path] if target is None else target
    decoded = unquote_to_bytes(received.encode("utf-8", "replace"))
    # Keep the path as received where it is one of them: its encoding matters, and the decoded form has lost it.
    for texts in (same, single):
        if decoded in texts:
            texts[decoded] = received
            break
    else:
        single[decoded] = received
    encoded = tuple(dict.fromkeys(map(_encoded, (*prefixes, *configured_prefixes()))))
    if len(same) == 1 and not single and not encoded:
        return received
    groups = dict.fromkeys([tuple(same.values()), *((text,) for text in single.values())])
    return Readings(received, tuple(groups), encoded, _encoded(prefix) if prefix else "")


def _encoded(prefix: str) -> str:
    return "/" + quote(prefix.strip("/"), safe=SAFE, errors="replace")


def apart(paths: Paths) -> Paths:
    """Return the same readings, of which each must match by itself for an exemption: no prefix counts as configured."""
    return (
        paths
        if isinstance(paths, str)
        else paths._replace(groups=tuple((text,) for text in texts_of(paths)), prefix="")
    )


def with_or_without(path: str, prefix: str) -> str:
    """Return the path without a prefix if it begins with it, else the path with the prefix added."""
    below = without_prefix(path, prefix)
    return below if below != path else prefix.rstrip("/") + path


def without_prefix(path: str, prefix: str) -> str:
    """Return the path without a prefix, or unchanged if it does not begin with it."""
    prefix = prefix.rstrip("/")
    if prefix and path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in ("/", ""):
        return path[len(prefix) :] or "/"
    return path


def is_configured(prefix: str) -> bool:
    """Return True if the environment or the command line of the server configures this prefix."""
    return prefix.strip("/") in configured_prefixes()


@lru_cache(maxsize=1)
def configured_prefixes() -> frozenset[str]:
    """Return the prefixes in the environment and the command line of the server, without outer slashes."""
    found = [*(os.environ.get(name, "") for name in VARIABLES), *os.environ.get(OURS, "").split(",")]
    for word, following in pairwise([*command_line(), ""]):
        name, equals, value = word.partition("=")
        if name in OPTIONS:
            found.append(value if equals else following)
    return frozenset(one.strip().strip("/") for one in found if one.strip().strip("/"))
