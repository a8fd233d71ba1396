"""The address of the client behind proxies, read from the right, as far as it can be trusted.

Each proxy appends the address that it saw. So a header is true only from its right end up to the first address that is
not one of our own proxies; the client may have written everything left of it. An entry that cannot be parsed ends the
walk: the last certain address is the answer, never one further left.
"""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, collapse_addresses
from typing import Final, Literal, NamedTuple

from ratebound.http.prefix import Address, Network, Networks, parse_address, prefix_key, prefix_keys

log = logging.getLogger("ratebound")

MAX_LENGTH = 8192  # of a header, all lines together: text further left is ignored
MAX_ENTRIES = 64
MAX_KNOWN = 512  # longer headers are not cached: clients must not be able to fill memory
MAX_HOPS = 32
EVERYONE = ("*", "all", "any", "everyone")
# A peer of TCP that has reset its connection before its address was asked for. It is no unix socket, and never trusted.
GONE: Final = "gone"
NAME = re.compile(r"[A-Za-z0-9-]+")
SINGLE_HEADERS = (
    "cf-connecting-ip",
    "true-client-ip",
    "x-real-ip",
    "fastly-client-ip",
    "x-azure-clientip",
    "x-client-ip",
    "fly-client-ip",
)

# The shortest prefixes that may be trusted. Private IPv6 ranges may be shorter.
SHORTEST = {4: 8, 6: 16}
PRIVATE = (IPv6Network("fc00::/7"), IPv6Network("fe80::/10"))

HIDDEN_NODE = re.compile(r"unknown|_[A-Za-z0-9._-]{1,64}", re.IGNORECASE)
TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
QUOTED = r'"(?:[\t \x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t \x21-\x7e\x80-\xff])*"'
# Colons and brackets outside of quotes violate RFC 7239, but many proxies write them.
VALUE = rf"(?:[!#$%&'*+.^_`|~0-9A-Za-z:\[\]-]+|{QUOTED})"
PAIR = re.compile(rf"({TOKEN})=({VALUE})")
# Possessive blanks (`*+`): a regex that could divide them in many ways would try all of them.
ELEMENT = re.compile(rf"(?:{TOKEN}={VALUE})?(?:[ \t]*+;[ \t]*+(?:{TOKEN}={VALUE})?)*")

Lines = Sequence[tuple[str, str]]
# A position of the walk: an address, a unix socket, a node that hides its address, or None for unreadable text.
Told = tuple[tuple[str, ...], ...]
Place = Address | Literal["unix", "hidden"] | None


class ClientAddress(NamedTuple):
    """The address of a client.

    Attributes:
        ip: The address; None for a unix socket, and for a peer that is not an address.
        text: The address as text, or what the peer said instead.
        source: "peer", or the name of the header that it came from.
    """

    ip: Address | None
    text: str
    source: str

    def key(self, ipv6: int = 64, ipv4: int = 32) -> str:
        """Return the text to count by; see `prefix_key`.

        Args:
            ipv6: The prefix length of IPv6 addresses, in bits.
            ipv4: The prefix length of IPv4 addresses, in bits.

        Raises:
            ValueError: A prefix length is out of range.
        """
        return f"peer:{self.text}" if self.ip is None else prefix_key(self.ip, ipv6, ipv4)

    def keys(self, ipv6: Sequence[int] = (64, 56, 48), ipv4: int = 32) -> tuple[str, ...]:
        """Return one key for each of several prefixes; see `prefix_keys`.

        Args:
            ipv6: The prefix lengths of IPv6 addresses, in bits.
            ipv4: The prefix length of IPv4 addresses, in bits.

        Raises:
            ValueError: There is no prefix, or a length is out of range.
        """
        return (f"peer:{self.text}",) if self.ip is None else prefix_keys(self.ip, ipv6, ipv4)


class Proxies:
    """The proxies that are trusted to report the client's address. By default none, and the peer is the client.

    Args:
        trusted: The addresses and ranges of the proxies, and the word `unix` for peers on a unix socket.
        hops: The number of proxies that append to the header, if their addresses are unknown. The application must not
            be reachable in any other way. With `trusted` as well, only those peers are trusted.
        forwarded: The header that proxies append to. `"forwarded"` is read as RFC 7239 has it.
        single: Headers of one address, and the ranges of the proxies that always overwrite each: `{"x-real-ip":
            ["10.0.0.0/8"]}`.

    Raises:
        ValueError: A range is too wide to be a proxy, or options contradict each other.

    Examples:
        >>> from ratebound.http import Proxies
        >>> proxies = Proxies(["10.0.0.0/8"])
        >>> client = proxies.client_address("10.0.0.5", [("X-Forwarded-For", "198.51.100.1, 192.0.2.7")])
        >>> client.text, client.source
        ('192.0.2.7', 'x-forwarded-for')
    """

    def __init__(
        self,
        trusted: Iterable[str] = (),
        *,
        hops: int | None = None,
        forwarded: str = "x-forwarded-for",
        single: Mapping[str, Iterable[str]] | None = None,
    ) -> None:
        self.trusted = _Trust("trusted", trusted)
        self.hops = checked_hops(hops)
        self.forwarded = checked_name(forwarded)
        if self.forwarded in SINGLE_HEADERS:
            raise ValueError(
                f"{forwarded} holds one address and no proxy appends to it: name the proxies that overwrite it with"
                f" single={{{self.forwarded!r}: ['192.0.2.0/24']}}"
            )
        self.single = {checked_name(name): _Trust(name, ranges) for name, ranges in (single or {}).items()}
        check_single(self.single, hops)
        self._read = read_element if self.forwarded == "forwarded" else read_entry
        self.believes = bool(self.trusted) or hops is not None or bool(self.single)
        self._told: set[str] = set()
        # The same clients come repeatedly with the same headers.
        self._known = lru_cache(maxsize=8192)(self._found)
        self._peer = lru_cache(maxsize=8192)(lambda peer: self._found(peer, "", ()))

    def trusts(self, peer: str | None) -> bool:
        """Return True if this peer is a proxy that is trusted to report clients.

        Args:
            peer: The address at the other end of the connection; None for a unix socket.

        Examples:
            >>> from ratebound.http import Proxies
            >>> Proxies(["10.0.0.0/8"]).trusts("10.0.0.5"), Proxies().trusts("10.0.0.5")
            (True, False)
        """
        return self.trusted.holds(read_peer(peer)) or (self.hops is not None and not self.trusted)

    def client_address(self, peer: str | None, headers: Lines) -> ClientAddress:
        """Return the address that cannot be forged: the first one, from the peer on, that is not a trusted proxy's.

        Never raises, whatever the headers hold. If every entry is a trusted proxy's, the leftmost is the answer.

        Args:
            peer: The address at the other end of the connection; None for a unix socket.
            headers: The header lines as (name, value), in any letter case.

        Examples:
            >>> from ratebound.http import Proxies
            >>> Proxies().client_address("192.0.2.7", [("X-Forwarded-For", "203.0.113.9")]).text
            '192.0.2.7'
        """
        if not self.believes:
            return self._peer(peer) if peer is None or len(peer) <= MAX_KNOWN else self._found(peer, "", ())
        text = ",".join(lines(headers, self.forwarded))
        length = len(text) if peer is None else len(text) + len(peer)
        told: Told = ()
        if self.single:
            told = tuple([tuple(lines(headers, name)) for name in self.single])
            length += sum([len(value) + 50 for values in told for value in values])
        return self._found(peer, text, told) if length > MAX_KNOWN else self._known(peer, text, told)

    def _found(self, peer: str | None, text: str, told: Told) -> ClientAddress:
        """Return the client's address.

        `text` is the list that proxies append to; `told` has the lines of each single header.
        """
        place = read_peer(peer)
        client = ClientAddress(None, peer if place is None and peer else "unix", "peer")
        if place is not None and not isinstance(place, str):
            client = ClientAddress(place, str(place), "peer")
        if self.hops is not None:
            return self._counted(place, client, self.hops, text)
        return self._walked(place, client, text, told)

    def _walked(self, place: Place, client: ClientAddress, text: str, told: Told) -> ClientAddress:
        found = self._told_by(place, client, told)
        if found or not self.trusted.holds(place):
            return found or client
        for entry in reversed(entries(text)):
            place = self._read(entry)
            if place is None or place == "hidden":
                return client
            if place != "unix":
                client = ClientAddress(place, str(place), self.forwarded)
            found = self._told_by(place, client, told)
            if found or not self.trusted.holds(place):
                return found or client
        if client.source != "peer":
            self._tell_once(
                "every address in %s is a trusted proxy: check that no clients are in the trusted ranges",
                self.forwarded,
            )
        return client

    def _counted(self, place: Place, client: ClientAddress, hops: int, text: str) -> ClientAddress:
        if self.trusted and not self.trusted.holds(place):
            return client
        found = entries(text)
        if len(found) < hops:  # the request bypassed a proxy, so not even the leftmost entry can be trusted
            self._tell_once(
                "%s has fewer entries than the %s configured hops: check the number of proxies", self.forwarded, hops
            )
            return client
        for entry in reversed(found[-hops:]):
            place = self._read(entry)
            if place is None:
                return client
            if not isinstance(place, str):
                client = ClientAddress(place, str(place), self.forwarded)
        return client

    def _told_by(self, place: Place, client: ClientAddress, told: Told) -> ClientAddress | None:
        """Return the address that the proxy at `place` sent in a single header that it is trusted for, else None."""
        for (name, trust), values in zip(self.single.items(), told, strict=True):
            if values and trust.holds(place):
                address = parse_address(values[0].strip(" \t")) if len(values) == 1 else None
                return client if address is None else ClientAddress(address, str(address), name)
        return None

    def _tell_once(self, message: str, *values: object) -> None:
        if message not in self._told:
            self._told.add(message)
            log.warning(message, *values)


class _Trust:
    """Trusted ranges, and perhaps unix sockets. Raises ValueError for invalid or too wide ranges."""

    def __init__(self, label: str, ranges: Iterable[str]) -> None:
        if isinstance(ranges, str):
            raise ValueError(f"{label}: expected a list like ['10.0.0.0/8'], not the text {ranges!r}")
        texts = list(ranges)
        self.unix = "unix" in texts
        try:
            self.networks = Networks([text for text in texts if text not in ("unix", *EVERYONE)])
        except ValueError as error:
            raise ValueError(f"{label}: {error}") from None
        for text in [text for text in texts if text in EVERYONE] + too_wide(self.networks):
            raise ValueError(
                f"{label}: {text!r} trusts everyone, so every client could choose its own address;"
                " name the addresses of your proxies, or set hops"
            )

    def __bool__(self) -> bool:
        return self.unix or bool(self.networks)

    def holds(self, place: Place) -> bool:
        """Return True if a position of the walk is trusted."""
        if isinstance(place, str):
            return self.unix and place == "unix"
        return place is not None and place in self.networks


def too_wide(networks: Networks) -> list[str]:
    """Return the ranges that are too wide for proxies, alone or added up with others."""
    ipv4 = [network for network in networks.networks if isinstance(network, IPv4Network)]
    ipv6 = [network for network in networks.networks if isinstance(network, IPv6Network)]
    found: list[Network] = [*collapse_addresses(ipv4), *collapse_addresses(ipv6)]
    return [
        str(network)
        for network in found
        if network.prefixlen < SHORTEST[network.version]
        and not (isinstance(network, IPv6Network) and any(network.subnet_of(private) for private in PRIVATE))
    ]


def checked_hops(hops: int | None) -> int | None:
    """Return a number of hops. Raises ValueError unless it is None or 1 to 32."""
    if hops is not None and (type(hops) is not int or not 1 <= hops <= MAX_HOPS):
        raise ValueError(f"hops must be the number of proxies, a whole number from 1 to {MAX_HOPS}, not {hops!r}")
    return hops


def checked_name(name: str) -> str:
    """Return a header name in lower case. Raises ValueError unless it consists of letters, digits and hyphens."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        hint = " (WSGI confuses underscores with hyphens)" if "_" in str(name) else ""
        raise ValueError(f"{name!r} cannot be a trusted header{hint}: expected for example 'x-forwarded-for'")
    return name.lower()


def check_single(single: Mapping[str, _Trust], hops: int | None) -> None:
    """Raise ValueError unless each address is trusted for one header only: another must not replace an absent one."""
    if single and hops is not None:
        raise ValueError("hops and single were both given: hops counts entries, single names proxies; use one of them")
    seen: list[tuple[str, _Trust]] = []
    for name, trust in single.items():
        if name in ("forwarded", "x-forwarded-for"):
            raise ValueError(f"{name} is a list that proxies append to: use forwarded={name!r} instead of single")
        if not trust:
            raise ValueError(f"single[{name!r}] is empty: expected the ranges of the proxies that overwrite {name}")
        for other, others in seen:
            for a in trust.networks.networks:
                if any(a.overlaps(b) for b in others.networks.networks):
                    raise ValueError(f"{a} is trusted for {other} and for {name}: choose the one it always overwrites")
            if trust.unix and others.unix:
                raise ValueError(f"unix is trusted for {other} and for {name}: choose the one it always overwrites")
        seen.append((name, trust))


def lines(headers: Lines, wanted: str) -> list[str]:
    """Return the values of all lines of one header, in order. `wanted` is in lower case."""
    length = len(wanted)
    return [value for name, value in headers if len(name) == length and name.lower() == wanted]


def entries(text: str) -> list[str]:
    """Return the rightmost entries of a list.

    Commas separate entries even inside quotes: an unclosed quote of the client must not swallow the entries of our own
    proxies after it.
    """
    if not text:
        return []
    if len(text) > MAX_LENGTH:
        text = text[-MAX_LENGTH:].partition(",")[2]
    found = text.rsplit(",", MAX_ENTRIES)
    return [entry.strip(" \t") for entry in found[-MAX_ENTRIES:]]


def read_peer(peer: str | None) -> Place:
    """Return the address of the socket's other end. A unix socket has none; waitress reports `localhost` for it."""
    if not peer or peer in ("unix", "localhost") or peer.startswith(("unix:", "/", "@", "\0")):
        return "unix"
    return parse_address(peer)


def read_entry(entry: str) -> Place:
    """Read an entry of X-Forwarded-For. nginx writes `unix:` for a peer on a unix socket."""
    address = parse_address(entry)
    if address is None:
        if entry == "unix:":
            return "unix"
        if HIDDEN_NODE.fullmatch(entry):
            return "hidden"
    return address


def read_element(element: str) -> Place:
    """Read an element of Forwarded (RFC 7239), as a whole or not at all: a part of it may be a client's own Host."""
    if not element or not ELEMENT.fullmatch(element):
        return None
    nodes = [value for name, value in PAIR.findall(element) if name.lower() == "for"]
    if len(nodes) != 1:
        return None if nodes else "hidden"
    node: str = nodes[0]
    return read_entry(re.sub(r"\\(.)", r"\1", node[1:-1]) if node.startswith('"') else node)
