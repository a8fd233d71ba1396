"""Names of denied clients in logs and lists: a digest, unless clear text is enabled."""

import os
from collections.abc import Callable
from hashlib import blake2b

from ratebound.decision import Decision

LONG_KEY = 256  # characters: a longer key is always a digest, so that log lines and lists stay small


def naming(secret: str | bytes | None, *, clear: bool = False) -> Callable[[str], str]:
    """Return a function from a key to its name: 16 hex digits that only holders of `secret` can compute.

    Without a secret a random one is used: then digests of two processes, or of two listeners, cannot be compared. With
    `clear` the name is the key itself, unless it is too long.
    """
    mark = os.urandom(32) if secret is None else _as_bytes(secret)
    keyed = blake2b(digest_size=8, key=mark if len(mark) <= 64 else blake2b(mark).digest())

    def digest(key: str) -> str:
        hashed = keyed.copy()
        hashed.update(_as_bytes(key))
        return hashed.hexdigest()

    return (lambda key: key if len(key) <= LONG_KEY else digest(key)) if clear else digest


def denied_keys(decision: Decision) -> list[str]:
    """Return the keys whose own limits denied, each once. In a group only some keys may have caused the denial."""
    if len(decision.asks) == 1:
        return [decision.asks[0][0]]
    keys: dict[str, None] = {}
    rows = iter(decision.rows)
    for key, limits, *_ in decision.asks:
        if not all([next(rows)[0] for _ in limits]):  # noqa: C419 - every row must be consumed before the next ask
            keys[key] = None
    return list(keys)


def _as_bytes(text: str | bytes) -> bytes:
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
