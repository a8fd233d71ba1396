"""Whatever a client writes, it does not choose its own address.

The oracle builds a request the way it travels: the client's own text first, then what each honest proxy appends. What
must come out is known before anything is parsed.
"""

from ipaddress import IPv4Address, IPv6Address
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ratebound.http import Proxies

TRUSTED = ["10.0.0.0/8", "fd00::/8"]
Address = IPv4Address | IPv6Address
OURS = st.one_of(st.ip_addresses(network="10.0.0.0/8"), st.ip_addresses(network="fd00::/8"))
CLIENTS = st.one_of(
    st.ip_addresses(network="198.51.100.0/24"), st.ip_addresses(network="203.0.113.0/24"),
    st.ip_addresses(network="2001:db8::/32"),
)  # fmt: skip
ANY = st.text(st.characters(max_codepoint=255), max_size=40)
CUNNING = st.lists(
    st.sampled_from(
        ["6.6.6.6", "10.0.0.9", ",", ", ", '"', "\\", ";", "for=", 'for="', "for=6.6.6.6", "unknown", "_x", ":", "[",
         "]", " ", "\t", "::ffff:6.6.6.6", "%", "host=", "=", "unix:"]
    ),
    max_size=12,
).map("".join)  # fmt: skip
CLIENT_LINES = st.lists(st.one_of(ANY, CUNNING), max_size=3)


def written(address: Address, form: str, port: int | None) -> str:
    mapped = f"::ffff:{address}" if form == "mapped" and address.version == 4 else str(address)
    if port is None:
        return mapped
    return f"[{mapped}]:{port}" if ":" in mapped else f"{mapped}:{port}"


SPELLINGS = st.tuples(st.sampled_from(["plain", "mapped"]), st.none() | st.integers(0, 65535))


def append(draw: Any, lines: list[str], entry: str) -> None:
    """To the last line, as most proxies do, or as a line of its own."""
    if lines and draw(st.booleans()):
        lines[-1] += draw(st.sampled_from([",", ", ", " ,\t"])) + entry
    else:
        lines.append(entry)


@st.composite
def journeys(draw: st.DrawFn, forwarded: bool = False, least: int = 1) -> tuple[Address, list[Address], list[str]]:
    """(client, our proxies from the outermost on, the lines that arrive). The last proxy is the peer."""
    client, proxies = draw(CLIENTS), draw(st.lists(OURS, min_size=least, max_size=4))
    lines = draw(CLIENT_LINES)
    for address in [client, *proxies[:-1]]:
        entry = written(address, *draw(SPELLINGS))
        if forwarded:
            entry = f'for="{entry}"' if ":" in entry or draw(st.booleans()) else f"for={entry}"
            entry = draw(st.sampled_from(["", "proto=https;", 'by="[fd00::1]:80"; '])) + entry
        append(draw, lines, entry)
    return client, proxies, lines


@given(journeys())
def test_the_client_is_found_behind_any_text_of_its_own(journey: tuple[Address, list[Address], list[str]]) -> None:
    client, proxies, lines = journey
    headers = [("X-Forwarded-For", line) for line in lines]
    peer = str(proxies[-1])
    assert Proxies(TRUSTED).client_address(peer, headers).ip == client
    assert Proxies(hops=len(proxies)).client_address(peer, headers).ip == client
    assert Proxies(TRUSTED, hops=len(proxies)).client_address(peer, headers).ip == client


@given(journeys(forwarded=True))
def test_the_client_is_found_in_forwarded_too(journey: tuple[Address, list[Address], list[str]]) -> None:
    client, proxies, lines = journey
    headers = [("Forwarded", line) for line in lines]
    peer = str(proxies[-1])
    assert Proxies(TRUSTED, forwarded="forwarded").client_address(peer, headers).ip == client
    assert Proxies(hops=len(proxies), forwarded="forwarded").client_address(peer, headers).ip == client


@given(
    CLIENTS,
    st.lists(OURS, min_size=1, max_size=4),
    CLIENT_LINES,
    st.data(),
    st.sampled_from(["unknown", "_gazonk", "<garbage>", "", "300.1.1.1", '"']),
)
def test_where_a_proxy_hides_an_address_nothing_further_left_is_believed(
    client: Address, proxies: list[Address], lines: list[str], data: st.DataObject, hidden: str
) -> None:
    """The answer is the proxy that hid it. With a count of hops, one that hides on purpose still counts as one."""
    place = data.draw(st.integers(0, len(proxies) - 1))
    entries = [str(address) for address in [client, *proxies[:-1]]]
    entries[place] = hidden
    headers = [("X-Forwarded-For", line) for line in [*lines, "6.6.6.6", *entries]]
    peer = str(proxies[-1])
    assert Proxies(TRUSTED).client_address(peer, headers).ip == proxies[place]
    counted = place > 0 and hidden in ("unknown", "_gazonk")
    assert Proxies(hops=len(proxies)).client_address(peer, headers).ip == (client if counted else proxies[place])


@given(CLIENTS, st.lists(OURS, min_size=1, max_size=3), CLIENT_LINES, st.one_of(ANY, CUNNING))
def test_a_host_that_proxies_repeat_chooses_nothing(
    client: Address, proxies: list[Address], lines: list[str], host: str
) -> None:
    """Each proxy quotes the client's Host as the RFC asks. A comma in it may hide the client, never choose one."""
    escaped = host.replace("\\", "\\\\").replace('"', '\\"')
    text = ",".join([*lines, *(f'for="[{a}]";host="{escaped}"' if a.version == 6 else f'for={a};host="{escaped}"'
                               for a in [client, *proxies[:-1]])])  # fmt: skip
    for answer in (Proxies(TRUSTED, forwarded="forwarded"), Proxies(hops=len(proxies), forwarded="forwarded")):
        assert answer.client_address(str(proxies[-1]), [("Forwarded", text)]).ip in {client, *proxies}


@given(CLIENTS, CLIENT_LINES, st.sampled_from(["forwarded", "x-forwarded-for"]))
def test_a_client_without_a_proxy_is_its_own_peer(client: Address, lines: list[str], forwarded: str) -> None:
    proxies = Proxies(TRUSTED, forwarded=forwarded, single={"x-real-ip": ["10.0.0.1"]})
    headers = [(name, line) for line in lines for name in (forwarded, "x-real-ip")]
    answer = proxies.client_address(str(client), headers)
    assert (answer.ip, answer.source) == (client, "peer")


@given(
    st.one_of(st.none(), ANY, OURS.map(str), CLIENTS.map(str)),
    st.lists(st.tuples(st.one_of(ANY, st.sampled_from(["X-Forwarded-For", "FORWARDED", "x-real-ip"])), ANY | CUNNING)),
    st.sampled_from(
        [Proxies(TRUSTED), Proxies(hops=2), Proxies(["unix"], forwarded="forwarded"), Proxies(),
         Proxies(["unix", *TRUSTED], single={"x-real-ip": ["10.0.0.0/9", "unix"]})]
    ),
)  # fmt: skip
def test_any_headers_give_an_address_or_the_peer(
    peer: str | None, headers: list[tuple[str, str]], proxies: Proxies
) -> None:
    answer = proxies.client_address(peer, headers)
    if answer.ip is None:
        assert answer.source == "peer"
        assert answer.text in ("unix", peer)
    else:
        assert answer.text == str(answer.ip)
        assert not answer.ip.is_unspecified
    assert answer.key()
    assert proxies.client_address(peer, headers) == answer
