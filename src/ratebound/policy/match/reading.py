"""The paths that one request may be routed by (law 13). Written once, for all adapters.

A server, a mount or a middleware may take a prefix off a path, put one on, or replace it. So a request has the path of
its target, the full path, and the path below the prefix. A rule binds if any of them matches. An exemption releases
only if all of them match. One thing eases that: where the operator is known to have configured the prefix, the full
path and the path below it are the same path, and one of the two is enough. Servers also take prefixes from requests,
and do not say so: a prefix that nobody is known to have configured counts as brought by the request.
"""

import os
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

from ratebound.storage.workers import command_line

# How servers are told the prefix under which they serve, and how we are, where no server is.
VARIABLES = ("SCRIPT_NAME", "UVICORN_ROOT_PATH", "GRANIAN_URL_PATH_PREFIX")
OURS = "RATEBOUND_PREFIX"  # one prefix, or several with commas between
OPTIONS = ("--root-path", "--url-path-prefix", "--url-prefix")
SAFE = "/:@!$&'()*+,;=~-._"  # what a path may hold as it is


class Readings(NamedTuple):
    """`target` is the path as received. Each of `groups` is one path, with and without a prefix; all percent-encoded.

    `prefixes` may stand in front of any of them: rules may be written with them. `prefix` is the one that the operator
    is known to have configured for this request, "" if there is none.
    """

    target: str
    groups: tuple[tuple[str, ...], ...]
    prefixes: tuple[str, ...] = ()
    prefix: str = ""


Paths = str | Readings  # a plain path is its only reading


def texts_of(paths: Paths) -> Iterable[str]:
    """Return every reading, without repeats."""
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

    `target` is the path as received, None if the server does not tell it. `path` is the decoded path. `others` are the
    same path with a prefix or without it, each with whether that prefix is known to be configured. `prefixes` and
    `prefix` are as in Readings, but not encoded.
    """
    same = {path: quote(path, safe=SAFE)}
    single: dict[bytes, str] = {}
    for other, is_known in others:
        (same if is_known else single).setdefault(other, quote(other, safe=SAFE))
    single = {other: text for other, text in single.items() if other not in same}
    told = same[path] if target is None else target
    decoded = unquote_to_bytes(told.encode("utf-8", "replace"))
    # As received, wherever it is one of them: the encoding of a path says more than its decoded form.
    for texts in (same, single):
        if decoded in texts:
            texts[decoded] = told
            break
    else:
        single[decoded] = told
    spelled = tuple(dict.fromkeys(map(_encoded, (*prefixes, *configured_prefixes()))))
    if len(same) == 1 and not single and not spelled:
        return told
    groups = dict.fromkeys([tuple(same.values()), *((text,) for text in single.values())])
    return Readings(told, tuple(groups), spelled, _encoded(prefix) if prefix else "")


def _encoded(prefix: str) -> str:
    return "/" + quote(prefix.strip("/"), safe=SAFE, errors="replace")


def apart(paths: Paths) -> Paths:
    """Return the same readings, where each has to match by itself to release."""
    return (
        paths
        if isinstance(paths, str)
        else paths._replace(groups=tuple((text,) for text in texts_of(paths)), prefix="")
    )


def with_or_without(path: str, prefix: str) -> str:
    """Return the path below a prefix if it begins with it, else the path with the prefix in front."""
    below = without_prefix(path, prefix)
    return below if below != path else prefix.rstrip("/") + path


def without_prefix(path: str, prefix: str) -> str:
    """Return the path below a prefix, or the path itself if it does not begin with it."""
    prefix = prefix.rstrip("/")
    if prefix and path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in ("/", ""):
        return path[len(prefix) :] or "/"
    return path


def is_configured(prefix: str) -> bool:
    """Return True if the environment or the command line of the server names this prefix."""
    return prefix.strip("/") in configured_prefixes()


@lru_cache(maxsize=1)
def configured_prefixes() -> frozenset[str]:
    """Return the prefixes that the environment and the command line of the server name, without outer slashes."""
    found = [*(os.environ.get(name, "") for name in VARIABLES), *os.environ.get(OURS, "").split(",")]
    for word, following in pairwise([*command_line(), ""]):
        name, equals, value = word.partition("=")
        if name in OPTIONS:
            found.append(value if equals else following)
    return frozenset(one.strip().strip("/") for one in found if one.strip().strip("/"))
