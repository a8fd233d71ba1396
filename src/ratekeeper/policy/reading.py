"""The paths that one request may be routed by (law 13). Written once, for all adapters.

A server, a mount or a middleware may take a prefix off a path, put one on, or replace it. So a request has the path of
its target, the full path, and the path below the prefix. A rule binds if any of them matches. An exemption releases
only if all of them match. One thing eases that: where the operator configured the prefix, the full path and the path
below it are the same path, and one of the two is enough. A prefix that the request itself brought never releases.
"""

import os
import sys
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple
from urllib.parse import quote, unquote, unquote_to_bytes

# How servers are told the prefix under which they serve.
VARIABLES = ("SCRIPT_NAME", "UVICORN_ROOT_PATH", "GRANIAN_URL_PATH_PREFIX")
OPTIONS = ("--root-path", "--url-path-prefix", "--url-prefix")
SAFE = "/:@!$&'()*+,;=~-._"  # what a path may hold as it is


class Readings(NamedTuple):
    """`target` is the path as received. Each of `groups` is one path, in all its spellings; each is percent-encoded.

    `prefix` is what the operator configured in front of the routes, "" if there is none.
    """

    target: str
    groups: tuple[tuple[str, ...], ...]
    prefix: str = ""


Paths = str | Readings  # a plain path is its only reading


def texts_of(paths: Paths) -> Iterable[str]:
    """Return every reading, without repeats."""
    if isinstance(paths, str):
        return (paths,)
    return dict.fromkeys(text for group in paths.groups for text in group)


def read_paths(
    target: str | None,
    full: bytes,
    below: bytes,
    prefix: str,
    brought: Iterable[str],
    *,
    between: bytes | None = None,
    known: str = "",
) -> Paths:
    """Return the readings of a request.

    `target` is the path as received, None if the server does not tell it. `full` and `below` are the decoded path with
    the `prefix` and without it; `between` is the path below a part of the prefix, for applications that are mounted in
    others. `brought` are the values of the request's headers: a prefix that stands there is the client's word, unless
    it is `known` to be configured.
    """
    same = dict.fromkeys((full, below) if between is None else (full, between, below))
    spelled = {one: quote(one, safe=SAFE) for one in same}
    told = spelled[full] if target is None else target
    decoded = unquote_to_bytes(told)
    apart = decoded not in spelled
    if not apart:
        spelled[decoded] = told  # the encoding of a path says more than its decoded form
    if len(same) == 1 and not apart:
        return told
    texts = tuple(spelled.values())
    if prefix and prefix.strip("/") != known.strip("/") and not is_configured(prefix) and _holds(brought, prefix):
        return Readings(told, tuple((text,) for text in dict.fromkeys((told, *texts))))
    return Readings(told, ((told,), texts) if apart else (texts,), quote(prefix.rstrip("/"), safe=SAFE))


def without_prefix(path: str, prefix: str) -> str:
    """Return the path below a prefix, or the path itself if it does not begin with it."""
    prefix = prefix.rstrip("/")
    if prefix and path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in ("/", ""):
        return path[len(prefix) :] or "/"
    return path


def _holds(values: Iterable[str], prefix: str) -> bool:
    """Return True if a value is the prefix, or some of its segments in a row, alone or in a list."""
    segments = _segments(prefix)
    for value in values:
        for part in value.split(","):
            run = _segments(unquote(part.strip()))
            if run and any(segments[place : place + len(run)] == run for place in range(len(segments))):
                return True
    return False


def _segments(path: str) -> list[str]:
    return [segment for segment in path.casefold().split("/") if segment]


def is_configured(prefix: str) -> bool:
    """Return True if the environment or the command line of the server names this prefix."""
    return prefix.strip("/") in _configured()


@lru_cache(maxsize=1)
def _configured() -> frozenset[str]:
    found = [os.environ.get(name, "") for name in VARIABLES]
    for word, following in pairwise([*sys.argv, ""]):
        name, equals, value = word.partition("=")
        if name in OPTIONS:
            found.append(value if equals else following)
    return frozenset(one.strip("/") for one in found if one)
