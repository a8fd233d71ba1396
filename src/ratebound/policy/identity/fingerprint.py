"""Fingerprints: how a client behaves, as an identity. Two people behind one address often have two of them.

A client can change what it sends, so the number of its fingerprints is bounded: within one prefix of addresses there
are CLASSES of them, as there are AGENTS classes of user agents.
"""

from hashlib import blake2b
from typing import Final

from ratebound.policy.match.request import RequestView

CLASSES: Final = 256  # the number of quotas among which the clients of one prefix can choose by what they send
MAX_LINE: Final = 512  # characters of a header that count
COMPARED: Final = ("user-agent", "accept", "accept-language", "accept-encoding")  # headers whose values count
# Headers whose order counts. Others come and go from request to request, or are added by proxies.
ORDERED: Final = frozenset([*COMPARED, "connection", "dnt", "host", "sec-gpc", "te"])


def behaviour_class(request: RequestView, salt: str) -> int:
    """Return the class of what a client sends: a number below CLASSES. It is the same in all processes that have the
    same salt. Without the salt nobody can compute it, and so choose the class of somebody else."""
    lines = [line[:MAX_LINE] for name in COMPARED for line in (*request.header_lines(name), "")]
    order = dict.fromkeys(name for name, _ in request.headers if name in ORDERED)  # a header sent twice counts once
    text = "\n".join([*lines, *order])  # a line of a header holds no newline
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, key=salt_key(salt)).digest()
    return int.from_bytes(digest, "big") % CLASSES


def salt_key(salt: str) -> bytes:
    """Return a salt of any length as a key of 32 bytes."""
    return blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=32).digest()


def fingerprint_of(request: RequestView, prefix: str, salt: str) -> str:
    """Return the fingerprint of a client within a prefix of addresses: a digest that shows neither."""
    text = f"{behaviour_class(request, salt)} {prefix}"
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, key=salt_key(salt)).hexdigest()
