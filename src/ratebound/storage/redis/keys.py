"""Names of states in Redis (law 10): prefix, version, {tag}, digest of the subject, scope of the limit.

The digest is keyed when there is a secret. The tag, which chooses the slot on a Cluster, is twelve bits of one that is
not: so all states of a subject share a slot, and still do after a change of the secret.
"""

from hashlib import blake2b

VERSION = "1"


class Keys:
    """Makes names. `old_secret` stands beside `secret` while it is being changed."""

    def __init__(
        self,
        *,
        prefix: str = "rb",
        secret: str | bytes = b"",
        old_secret: str | bytes | None = None,
        one_slot: bool = False,
    ) -> None:
        if "{" in prefix or "}" in prefix:
            raise ValueError("a prefix has no braces, '{' or '}': they choose the slot on a Cluster")
        self.prefix = f"{prefix}{VERSION}:"
        self.secret = _bytes(secret)
        self.old_secret = None if old_secret is None else _bytes(old_secret)
        self.rotating = old_secret is not None
        self.one_slot = one_slot
        if max(len(self.secret), len(self.old_secret or b"")) > 64:
            raise ValueError("a secret has at most 64 bytes")

    def subject(self, key: str) -> bytes:
        """How the names of all states of a subject begin."""
        if self.secret or self.one_slot:
            return self._subject(key, self.secret)
        digest = blake2b(_bytes(key), digest_size=16).hexdigest()
        return f"{self.prefix}{{{digest[:3]}}}{digest}:".encode()

    def old_subject(self, key: str) -> bytes | None:
        return None if self.old_secret is None else self._subject(key, self.old_secret)

    def tag(self, key: str) -> str:
        """What chooses the slot of all states of a subject."""
        return "{000}" if self.one_slot else f"{{{blake2b(_bytes(key), digest_size=16).hexdigest()[:3]}}}"

    def _subject(self, key: str, secret: bytes) -> bytes:
        return f"{self.prefix}{self.tag(key)}{blake2b(_bytes(key), digest_size=16, key=secret).hexdigest()}:".encode()


def _bytes(text: str | bytes) -> bytes:
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
