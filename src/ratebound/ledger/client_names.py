"""Names of clients in the ledger: in clear, as operators write them, or as digests that only a secret can make."""

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, get_args

from ratebound.ledger.usage_counts import OTHER
from ratebound.observe.client import naming
from ratebound.policy.runtime.client_name import canonical_client, client_under

DIGEST = re.compile(r"[0-9a-f]{16}")
LONG_NAMES = "ratebound ledger"  # makes the digests of names that are too long to be kept in clear
Way = Literal["digest", "name"]
WAYS: tuple[Way, ...] = get_args(Way)


class ClientNames:
    """Names of clients, of one of the two WAYS. Raises ValueError for another, and for digests without a secret."""

    def __init__(self, clients: str, secret: str | bytes | None) -> None:
        if clients not in WAYS:
            raise ValueError(f"cannot use clients={clients!r}: expected 'digest' or 'name'")
        if secret is not None and (not isinstance(secret, str | bytes) or not secret):
            raise ValueError("the secret of a ledger must be a text or bytes, and not empty")
        self.is_clear = clients == "name"
        if not self.is_clear and secret is None:
            raise ValueError(
                "digests of clients need a secret that all processes share: give secret=…, or clients='name'"
            )
        self._name: Callable[[str], str] = naming(secret or LONG_NAMES, clear=self.is_clear)

    def under(self, key: str) -> str:
        """Return the name of the client that is counted under a key."""
        return self._name(storable(client_under(key)))

    def asked(self, client: object) -> str:
        """Return the name of a client as an operator writes it: `user:42`, an address, a key of a limiter, or a digest
        that the ledger has told. Raises ValueError."""
        if not isinstance(client, str) or not client:
            raise ValueError(f"expected the name of a client like 'user:42' or '203.0.113.7', not {client!r}")
        if client == OTHER or (DIGEST.fullmatch(client) and not self.is_clear):
            return client
        name = client_under(client)  # it may be a key, and is written as `under` does
        with suppress(ValueError):  # a key that the caller of a limiter has chosen
            name = canonical_client(name)
        return self._name(storable(name))


def storable(text: str, most: int | None = None) -> str:
    """Return a text that every database can store: without NUL, and without surrogates that stand alone. It is cut to
    `most` bytes, because an index has no room for long texts."""
    encoded = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace")
    return encoded[:most].decode("utf-8", "ignore")
