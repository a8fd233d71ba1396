"""Addresses as text: parsed into one canonical form, matched with ranges, and cut to the prefix of one client.

IPv4 inside IPv6 (mapped, NAT64) is converted to IPv4 when it is parsed. Otherwise ranges would not match it, and its
IPv6 prefix would be one bucket for all clients.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

Address = IPv4Address | IPv6Address
"""An IP address of either version."""

Network = IPv4Network | IPv6Network

MAX_TEXT = 114  # brackets, 45 characters of address, 33 of zone and 34 of port: nothing longer is an address
PORT = r"(?::(?:[0-9]{1,5}|_[A-Za-z0-9._-]{1,32}))?"  # the second form is RFC 7239's for a hidden port
ZONE = r"(?:%[A-Za-z0-9._~-]{1,32})?"
NODE = re.compile(rf"([0-9.]{{7,15}}){PORT}|\[([0-9A-Fa-f:.]{{2,45}}){ZONE}\]{PORT}|([0-9A-Fa-f:.]{{2,45}}){ZONE}")
MAPPED = IPv6Network("::ffff:0:0/96")
NAT64 = IPv6Network("64:ff9b::/96")

# Ranges in which a shorter prefix is one client: a 6to4 site has a /48 for its one IPv4 address, and a Teredo client
# can choose most of its address, so all of Teredo is one client.
COARSE = ((IPv6Network("2002::/16"), 48), (IPv6Network("2001::/32"), 32))


def parse_address(text: str) -> Address | None:
    """Return one address, with or without brackets, port and zone.

    Return None for anything else, and for `0.0.0.0` and `::`.

    Args:
        text: What a peer or a header says, like `"[2001:db8::1]:443"`. More than 114 characters are no address.

    Examples:
        >>> from ratebound.http import parse_address
        >>> parse_address("192.0.2.7:51000"), parse_address("::ffff:192.0.2.7"), parse_address("nobody")
        (IPv4Address('192.0.2.7'), IPv4Address('192.0.2.7'), None)
    """
    return _parsed(text) if len(text) <= MAX_TEXT else None  # longer text is not remembered either


@lru_cache(maxsize=8192)
def _parsed(text: str) -> Address | None:
    match = NODE.fullmatch(text)
    if match is None:
        return None
    dotted, bracketed, bare = match.groups()
    address: Address
    try:
        # An IPv4 address in brackets or with a zone is none.
        address = IPv4Address(dotted) if dotted else unmapped(IPv6Address(bracketed or bare))
    except ValueError:
        return None
    return None if address.is_unspecified else address


def unmapped(address: IPv6Address) -> Address:
    """Return the IPv4 address inside a mapped or NAT64 address; other addresses as they are."""
    mapped = address.ipv4_mapped
    if mapped is None and address in NAT64:
        mapped = IPv4Address(int(address) & 0xFFFFFFFF)
        if not mapped.is_global:  # NAT64 must not carry these: else a client could become 10.0.0.1, and trusted
            return address
    return address if mapped is None else mapped


class Networks:
    """Ranges of addresses. A test takes one lookup for each prefix length, however many ranges there are.

    Args:
        ranges: Addresses and ranges like `"10.0.0.0/8"`, `"2001:db8::/32"` and `"192.0.2.1"`.

    Raises:
        ValueError: A range cannot be read.

    Examples:
        >>> from ratebound.http import Networks, parse_address
        >>> parse_address("10.1.2.3") in Networks(["10.0.0.0/8", "2001:db8::/32"])
        True
    """

    def __init__(self, ranges: Iterable[str]) -> None:
        if isinstance(ranges, str):
            raise ValueError(f"expected a list of ranges like ['10.0.0.0/8'], not the text {ranges!r}")
        self.networks = tuple(parse_network(text) for text in ranges)
        self.ranges = tuple(str(network) for network in self.networks)
        lengths: dict[int, dict[int, set[int]]] = {4: {}, 6: {}}
        for network in self.networks:
            shift = network.max_prefixlen - network.prefixlen
            lengths[network.version].setdefault(shift, set()).add(int(network.network_address) >> shift)
        self._lengths = {version: tuple(found.items()) for version, found in lengths.items()}

    def __contains__(self, address: Address) -> bool:
        number = int(address)
        return any(number >> shift in prefixes for shift, prefixes in self._lengths[address.version])

    def __bool__(self) -> bool:
        return bool(self.networks)


def parse_network(text: str) -> Network:
    """Return one range. Raises ValueError if it is invalid. Ranges of mapped addresses become ranges of IPv4."""
    if not isinstance(text, str):
        raise ValueError(f"cannot read the range {text!r}: expected text, for example '10.0.0.0/8'")
    try:
        network = ip_network(text)
    except ValueError as error:
        if "host bits" in str(error):
            hint = f"did you mean '{ip_network(text, strict=False)}'?"
        else:
            hint = "expected for example '10.0.0.0/8', '2001:db8::/32' or '192.0.2.1'"
        raise ValueError(f"cannot read the range {text!r}: {hint}") from None
    if isinstance(text, int | bytes) or "%" in str(text):
        raise ValueError(f"cannot read the range {text!r}: expected text without a zone, for example '10.0.0.0/8'")
    if isinstance(network, IPv6Network):
        if network.subnet_of(MAPPED):
            return IPv4Network((int(network.network_address) & 0xFFFFFFFF, network.prefixlen - 96))
        if network.subnet_of(NAT64):
            raise ValueError(f"the range {text!r} belongs to NAT64: use the IPv4 range, which matches such clients")
    return network


@lru_cache(maxsize=8192, typed=True)  # typed: 64.0 must not find the entry of 64
def prefix_key(address: Address, ipv6: int = 64, ipv4: int = 32) -> str:
    """Return the prefix that counts as one client: `ip4:192.0.2.7`, `ip4:192.0.2.0/24`, `ip6:2001:db8::/64`.

    Args:
        address: The address of the client.
        ipv6: The prefix length of IPv6 addresses, in bits.
        ipv4: The prefix length of IPv4 addresses, in bits.

    Raises:
        ValueError: A prefix length is out of range.

    Examples:
        >>> from ratebound.http import parse_address, prefix_key
        >>> prefix_key(parse_address("2001:db8::1")), prefix_key(parse_address("192.0.2.7"), ipv4=24)
        ('ip6:2001:db8::/64', 'ip4:192.0.2.0/24')
    """
    if not (type(ipv6) is type(ipv4) is int and 1 <= ipv6 <= 128 and 1 <= ipv4 <= 32):
        raise ValueError(f"expected prefixes of 1 to 128 bits (IPv6) and 1 to 32 (IPv4), not {ipv6!r} and {ipv4!r}")
    if isinstance(address, IPv4Address):
        length, most, tag = ipv4, 32, "ip4:"
    else:
        length, most, tag = ipv6, 128, "ip6:"
        for network, coarsest in COARSE:
            if address in network:
                length = min(length, coarsest)
    shift = most - length
    first = type(address)(int(address) >> shift << shift)
    return f"{tag}{first}/{length}" if shift else f"{tag}{first}"


def prefix_keys(address: Address, ipv6: Sequence[int] = (64, 56, 48), ipv4: int = 32) -> tuple[str, ...]:
    """Return one key for each IPv6 prefix, narrowest first, to check against rising limits together.

    An IPv4 address has one key, so that `zip(keys, limits)` applies the first limit only.

    Args:
        address: The address of the client.
        ipv6: The prefix lengths of IPv6 addresses, in bits.
        ipv4: The prefix length of IPv4 addresses, in bits.

    Raises:
        ValueError: There is no prefix, or a length is out of range.

    Examples:
        >>> from ratebound.http import parse_address, prefix_keys
        >>> prefix_keys(parse_address("2001:db8:1:2::3"), (64, 48))
        ('ip6:2001:db8:1:2::/64', 'ip6:2001:db8:1::/48')
    """
    if not ipv6:
        raise ValueError("expected at least one IPv6 prefix, for example (64, 56, 48)")
    if isinstance(address, IPv4Address):
        return (prefix_key(address, ipv6[0], ipv4),)
    return tuple([prefix_key(address, length, ipv4) for length in sorted(ipv6, reverse=True)])
