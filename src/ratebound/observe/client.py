"""Who was refused, and what may be said of them: a digest, unless clear text was asked for."""

import os
from collections.abc import Callable
from hashlib import blake2b

from ratebound.decision import Decision

LONG_KEY = 256  # characters: beyond that a key is a digest in any case, so that what is kept and logged stays small


def naming(secret: str | bytes | None, *, clear: bool = False) -> Callable[[str], str]:
    """A function from a key to what it is called: 16 hex digits that only who knows `secret` can compute.

    Without a secret one is drawn: then the digests of two processes, or of two listeners, cannot be compared.
    """
    mark = os.urandom(32) if secret is None else _as_bytes(secret)
    keyed = blake2b(digest_size=8, key=mark if len(mark) <= 64 else blake2b(mark).digest())

    def digest(key: str) -> str:
        hashed = keyed.copy()
        hashed.update(_as_bytes(key))
        return hashed.hexdigest()

    return (lambda key: key if len(key) <= LONG_KEY else digest(key)) if clear else digest


def refused_keys(decision: Decision) -> list[str]:
    """The keys whose own limits said no, each once: in a group only some of them may be at fault."""
    if len(decision.asks) == 1:
        return [decision.asks[0][0]]
    keys: dict[str, None] = {}
    rows = iter(decision.rows)
    for key, limits, *_ in decision.asks:
        if not all([next(rows)[0] for _ in limits]):  # noqa: C419 - every row is taken, or the next ask gets the rest
            keys[key] = None
    return list(keys)


def _as_bytes(text: str | bytes) -> bytes:
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
