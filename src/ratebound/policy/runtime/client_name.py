"""The name of a client in operators' documents. Each client has one, however an operator writes it, and under whatever
key a rule counts it."""

import re

from ratebound.http.client_ip import Proxies
from ratebound.http.prefix import parse_network
from ratebound.policy.identity.identify import IdentityKinds
from ratebound.policy.identity.named_client import OF_ADDRESS, WITH_DETAIL
from ratebound.policy.model.client_list import client_of, split_client
from ratebound.policy.problem import shown
from ratebound.policy.runtime.operator_documents import MAX_TARGET

HEXADECIMAL = re.compile(r"[0-9A-Fa-f]{1,4}")  # the first part of most IPv6 addresses
# Kinds whose name has a colon, which is a dot in keys: `jwt:sub`. Another dot is the caller's own: `10.0.0.1:80`.
DETAILED = (*WITH_DETAIL, "fingerprint", "call")
ANY_KIND = IdentityKinds({}, Proxies(), 64, is_open=True)  # any name that some policy could define


def canonical_client(text: object, kinds: IdentityKinds = ANY_KIND) -> str:
    """Return the name of a client in operators' documents: that of `2001:DB8::1/128` is `2001:db8::1`.

    Raises ValueError for a name that cannot be read, and for an identity of a kind that `kinds` does not know.
    """
    client_of(text, kinds)
    assert isinstance(text, str)
    if len(text) > MAX_TARGET:
        raise ValueError(f"a client has at most {MAX_TARGET} characters, not {len(text)}: {shown(text)}")
    named = split_client(text)
    if named is not None:
        if kinds is ANY_KIND and HEXADECIMAL.fullmatch(named[0]) and ":" in named[1]:
            parse_network(text)  # an address with a mistake in it, not an identity of the kind 'fe80'
        return ":".join(named)
    network = parse_network(text)
    return str(network.network_address if network.prefixlen == network.max_prefixlen else network)


def client_under(key: str) -> str:
    """Return the client that is counted under a key as operators write it: `203.0.113.7`, `jwt:sub:42`.

    The key of several identities at once is returned as it is, and so is a key that a caller has chosen.
    """
    kind, colon, value = key.partition(":")
    if not colon or "+" in kind:
        return key
    base, _, detail = kind.partition(".")
    if base in OF_ADDRESS:
        return value
    return f"{base}:{detail}:{value}" if detail and base in DETAILED else key
