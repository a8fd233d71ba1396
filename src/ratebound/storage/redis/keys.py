"""Names of states in Redis (law 10): prefix, version, {tag}, digest of the key, scope of the limit.

The digest is keyed if there is a secret. The tag, which selects the hash slot on a Cluster, is twelve bits of an
unkeyed digest. So all states of a key share a hash slot, and still do after a change of the secret.
"""

from hashlib import blake2b

VERSION = "1"


class Keys:
    """The names of states. `old_secret` is used beside `secret` while the secret is being changed."""

    def __init__(
        self,
        *,
        prefix: str = "rb",
        secret: str | bytes = b"",
        old_secret: str | bytes | None = None,
        one_slot: bool = False,
    ) -> None:
        if "{" in prefix or "}" in prefix:
            raise ValueError("prefix must not contain '{' or '}': they select the hash slot on a Cluster")
        self.prefix = f"{prefix}{VERSION}:"
        self.secret = _bytes(secret)
        self.old_secret = None if old_secret is None else _bytes(old_secret)
        self.rotating = old_secret is not None
        self.one_slot = one_slot
        if max(len(self.secret), len(self.old_secret or b"")) > 64:
            raise ValueError("secret and old_secret must have at most 64 bytes")

    def subject(self, key: str) -> bytes:
        """Return the beginning of the names of all states of a key."""
        if self.secret or self.one_slot:
            return self._subject(key, self.secret)
        digest = blake2b(_bytes(key), digest_size=16).hexdigest()
        return f"{self.prefix}{{{digest[:3]}}}{digest}:".encode()

    def old_subject(self, key: str) -> bytes | None:
        """Return the same under the old secret; None if there is no old secret."""
        return None if self.old_secret is None else self._subject(key, self.old_secret)

    def tag(self, key: str) -> str:
        """Return the tag that selects the hash slot of all states of a key."""
        return "{000}" if self.one_slot else f"{{{blake2b(_bytes(key), digest_size=16).hexdigest()[:3]}}}"

    def _subject(self, key: str, secret: bytes) -> bytes:
        return f"{self.prefix}{self.tag(key)}{blake2b(_bytes(key), digest_size=16, key=secret).hexdigest()}:".encode()


def _bytes(text: str | bytes) -> bytes:
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
