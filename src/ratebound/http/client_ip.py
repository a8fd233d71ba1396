"""Who is asking: the address of the client behind proxies, from the right, as far as it can be trusted.

Each proxy appends the address that it saw, so the text of a header is true only from the right end up to the first
address that is not one of our own proxies; all that stands left of it is the client's own text. An entry that cannot
be read ends the walk there: the last address that is certain is the answer, never anything further left.
"""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, collapse_addresses
from typing import Literal, NamedTuple

from ratebound.http.prefix import Address, Network, Networks, parse_address, prefix_key, prefix_keys

log = logging.getLogger("ratebound")

MAX_LENGTH = 8192  # of a header, its lines together: what is left of that is not looked at
MAX_ENTRIES = 64
MAX_KNOWN = 512  # longer ones are worked out each time: memory is not the client's to fill
MAX_HOPS = 32
EVERYONE = ("*", "all", "any", "everyone")
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
# Colons and brackets outside of quotes are not RFC 7239, but what many proxies write.
VALUE = rf"(?:[!#$%&'*+.^_`|~0-9A-Za-z:\[\]-]+|{QUOTED})"
PAIR = re.compile(rf"({TOKEN})=({VALUE})")
# Blanks are taken whole (`*+`): a regex that could share them out in many ways would try all of them.
ELEMENT = re.compile(rf"(?:{TOKEN}={VALUE})?(?:[ \t]*+;[ \t]*+(?:{TOKEN}={VALUE})?)*")

Lines = Sequence[tuple[str, str]]
# Where the walk stands: an address, a unix socket, one who hides on purpose, or text that nobody can read.
Told = tuple[tuple[str, ...], ...]
Place = Address | Literal["unix", "hidden"] | None


class ClientAddress(NamedTuple):
    """Where a request comes from. `ip` is None for a unix socket, and for a peer that is not an address."""

    ip: Address | None
    text: str
    source: str  # "peer", or the header that it was read in

    def key(self, ipv6: int = 64, ipv4: int = 32) -> str:
        """The text to count by; see `prefix_key`."""
        return f"peer:{self.text}" if self.ip is None else prefix_key(self.ip, ipv6, ipv4)

    def keys(self, ipv6: Sequence[int] = (64, 56, 48), ipv4: int = 32) -> tuple[str, ...]:
        """Several prefixes at once; see `prefix_keys`."""
        return (f"peer:{self.text}",) if self.ip is None else prefix_keys(self.ip, ipv6, ipv4)


class Proxies:
    """Which proxies are believed about the client's address. By default none, and the peer is the client.

    `trusted` are the proxies' own addresses and ranges, and the word `unix` for peers on a unix socket. `hops` is for
    proxies whose addresses are not known: so many of them append to the header, and the application can be reached
    in no other way; with `trusted` as well, only those peers are believed. `single` names headers of one address, each
    with the ranges of the proxies that always overwrite it.
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
                f"{forwarded} holds one address, to which no proxy appends: name the proxies that overwrite it,"
                f" single={{{self.forwarded!r}: ['192.0.2.0/24']}}"
            )
        self.single = {checked_name(name): _Trust(name, ranges) for name, ranges in (single or {}).items()}
        check_single(self.single, hops)
        self._read = read_element if self.forwarded == "forwarded" else read_entry
        self.believes = bool(self.trusted) or hops is not None or bool(self.single)
        self._told: set[str] = set()
        # The same clients come again and again with the same headers.
        self._known = lru_cache(maxsize=8192)(self._found)
        self._peer = lru_cache(maxsize=8192)(lambda peer: self._found(peer, "", ()))

    def trusts(self, peer: str | None) -> bool:
        """Whether this peer is one of the proxies that may speak for clients."""
        return self.trusted.holds(read_peer(peer)) or (self.hops is not None and not self.trusted)

    def client_address(self, peer: str | None, headers: Lines) -> ClientAddress:
        """The address that cannot be forged: the first, from the peer on, that is not a trusted proxy's.

        Never raises, whatever the headers hold. Where every entry is a trusted proxy's, the leftmost is the answer.
        """
        if not self.believes:
            return self._peer(peer) if peer is None or len(peer) <= MAX_KNOWN else self._found(peer, "", ())
        text = ",".join(lines(headers, self.forwarded))
        told = tuple([tuple(lines(headers, name)) for name in self.single]) if self.single else ()
        if len(peer or "") + len(text) + sum([len(value) + 50 for values in told for value in values]) > MAX_KNOWN:
            return self._found(peer, text, told)
        return self._known(peer, text, told)

    def _found(self, peer: str | None, text: str, told: Told) -> ClientAddress:
        """`text` is the list that proxies append to; `told` has the lines of each header of one address."""
        place = read_peer(peer)
        client = ClientAddress(None, peer if place is None and peer else "unix", "peer")
        if place is not None and not isinstance(place, str):
            client = ClientAddress(place, str(place), "peer")
        if self.hops is not None:
            client = self._counted(place, client, self.hops, text)
        else:
            client = self._walked(place, client, text, told)
        if client.ip is None:
            self._tell_once("requests from peer %r have no address: they all count as one client", client.text)
        return client

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
            self._tell_once("all of %s are trusted proxies: are there clients in the trusted ranges?", self.forwarded)
        return client

    def _counted(self, place: Place, client: ClientAddress, hops: int, text: str) -> ClientAddress:
        if self.trusted and not self.trusted.holds(place):
            return client
        found = entries(text)
        if len(found) < hops:  # it did not come through all of them: not even the leftmost entry is to be believed
            self._tell_once("%s has fewer entries than the %s hops that were configured", self.forwarded, hops)
            return client
        for entry in reversed(found[-hops:]):
            place = self._read(entry)
            if place is None:
                return client
            if not isinstance(place, str):
                client = ClientAddress(place, str(place), self.forwarded)
        return client

    def _told_by(self, place: Place, client: ClientAddress, told: Told) -> ClientAddress | None:
        """What the proxy at `place` says in a header of one address, if it is trusted for one and sent it."""
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
    """Ranges, and perhaps unix sockets, that are believed."""

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
                f"{label}: {text!r} trusts everyone, and lets every client choose its own address;"
                " name the addresses of your proxies, or give hops"
            )

    def __bool__(self) -> bool:
        return self.unix or bool(self.networks)

    def holds(self, place: Place) -> bool:
        if isinstance(place, str):
            return self.unix and place == "unix"
        return place is not None and place in self.networks


def too_wide(networks: Networks) -> list[str]:
    """What is no longer the address of proxies but half of the world, in one range or in several that add up to it."""
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
    if hops is not None and (type(hops) is not int or not 1 <= hops <= MAX_HOPS):
        raise ValueError(f"hops must be the number of proxies in front, 1 to {MAX_HOPS}, not {hops!r}")
    return hops


def checked_name(name: str) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        hint = " (with underscores it can be confused with another header: WSGI does)" if "_" in str(name) else ""
        raise ValueError(f"{name!r} is not a header to be trusted{hint}: expected for example 'x-forwarded-for'")
    return name.lower()


def check_single(single: Mapping[str, _Trust], hops: int | None) -> None:
    """An address must be trusted for one header: an absent one must not be made up for by another."""
    if single and hops is not None:
        raise ValueError("hops counts entries and single names proxies by address: give one of them")
    seen: list[tuple[str, _Trust]] = []
    for name, trust in single.items():
        if name in ("forwarded", "x-forwarded-for"):
            raise ValueError(f"{name} is a list, to which proxies append: give it as forwarded={name!r}")
        if not trust:
            raise ValueError(f"single[{name!r}] names nobody who is trusted for it: expected ranges of addresses")
        for other, others in seen:
            for a in trust.networks.networks:
                if any(a.overlaps(b) for b in others.networks.networks):
                    raise ValueError(f"{a} is trusted for {other} and for {name}: choose the one it always overwrites")
            if trust.unix and others.unix:
                raise ValueError(f"unix is trusted for {other} and for {name}: choose the one it always overwrites")
        seen.append((name, trust))


def lines(headers: Lines, wanted: str) -> list[str]:
    """The values of all lines of one header, in order. `wanted` is in lower case."""
    length = len(wanted)
    return [value for name, value in headers if len(name) == length and name.lower() == wanted]


def entries(text: str) -> list[str]:
    """The rightmost entries of a list. Commas divide, even between quotes: an unclosed quote in the client's part must
    not swallow what our own proxies wrote behind it."""
    if not text:
        return []
    if len(text) > MAX_LENGTH:
        text = text[-MAX_LENGTH:].partition(",")[2]
    found = text.rsplit(",", MAX_ENTRIES)
    return [entry.strip(" \t") for entry in found[-MAX_ENTRIES:]]


def read_peer(peer: str | None) -> Place:
    """Return the address of the socket's other end. On a unix socket it has none; waitress says `localhost` there."""
    if not peer or peer in ("unix", "localhost") or peer.startswith(("unix:", "/", "@", "\0")):
        return "unix"
    return parse_address(peer)


def read_entry(entry: str) -> Place:
    """An entry of X-Forwarded-For. nginx writes `unix:` for a peer on a unix socket."""
    address = parse_address(entry)
    if address is None:
        if entry == "unix:":
            return "unix"
        if HIDDEN_NODE.fullmatch(entry):
            return "hidden"
    return address


def read_element(element: str) -> Place:
    """An element of Forwarded (RFC 7239). It is read whole or not at all: half of one may be a client's own Host."""
    if not element or not ELEMENT.fullmatch(element):
        return None
    nodes = [value for name, value in PAIR.findall(element) if name.lower() == "for"]
    if len(nodes) != 1:
        return None if nodes else "hidden"
    node: str = nodes[0]
    return read_entry(re.sub(r"\\(.)", r"\1", node[1:-1]) if node.startswith('"') else node)
