"""The tokens that callers of the service must know. They are compared in constant time, and never shown."""

import hmac
import logging
from collections.abc import Iterable
from hashlib import sha256

from ratebound.http.bearer_token import check_token

log = logging.getLogger("ratebound.service")


class BearerTokens:
    """The tokens of callers. A caller must present one of them. If there are none, `is_required` is False."""

    def __init__(self, tokens: Iterable[str] = ()) -> None:
        found = [token.strip() for token in tokens]
        for token in found:
            check_token(token)
        self._digests = [_digest(token.encode()) for token in found]
        self.is_required = bool(found)
        self._told: set[str] = set()

    def __repr__(self) -> str:
        return f"BearerTokens({len(self._digests)} tokens)"

    def accepts(self, token: bytes) -> bool:
        """Return True if a token is one of these. The time does not depend on how much of it is right."""
        given = _digest(token)
        found = False
        for digest in self._digests:
            found |= hmac.compare_digest(digest, given)
        return found

    def accepts_header(self, value: bytes | None) -> bool:
        """Return True if nothing is required, or if the value of an Authorization header is `Bearer TOKEN`."""
        if not self.is_required:
            return True
        scheme, _, token = (value or b"").partition(b" ")
        return scheme.lower() == b"bearer" and self.accepts(token.strip())

    def log_refusal(self, wire: str, where: str) -> None:
        """Log that a caller had no valid token, once for each wire format: many callers go on without an answer."""
        if wire not in self._told:
            self._told.add(wire)
            log.warning("%s: a caller was refused, because it sent no valid token. Send one as %s", wire, where)


def _digest(token: bytes) -> bytes:
    return sha256(token).digest()
