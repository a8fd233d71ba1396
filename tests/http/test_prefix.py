"""Addresses are read in one form, and cut to what is one client."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratebound.http import Networks, parse_address, prefix_key, prefix_keys
from ratebound.http.prefix import MAX_TEXT, _parsed

ADDRESSES = st.one_of(
    st.ip_addresses(v=4),
    st.ip_addresses(v=6),
    st.sampled_from(["::ffff:1.2.3.4", "64:ff9b::1.2.3.4", "2002:102:304::1", "2001::1", "fe80::1"]).map(ip_address),
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("192.0.2.1:8080", "192.0.2.1"),
        ("192.0.2.1:_hidden", "192.0.2.1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("[2001:db8::1]:443", "2001:db8::1"),
        ("2001:DB8:0:0:0:0:0:1", "2001:db8::1"),
        ("2001:db8::1.2.3.4", "2001:db8::102:304"),
        ("fe80::1%eth0", "fe80::1"),
        ("[fe80::1%25]:80", "fe80::1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("::ffff:c000:201", "192.0.2.1"),
        ("[::FFFF:192.0.2.1]:80", "192.0.2.1"),
        ("64:ff9b::8.8.8.8", "8.8.8.8"),
        ("64:ff9b::10.0.0.1", "64:ff9b::a00:1"),
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
    ],
)
def test_an_address_is_read_in_every_spelling(text: str, address: str) -> None:
    assert str(parse_address(text)) == address


def test_the_longest_address_is_read_and_what_is_longer_is_not_remembered() -> None:
    longest = f"[0000:0000:0000:0000:0000:ffff:192.168.100.228%{'z' * 32}]:_{'p' * 32}"
    assert len(longest) == MAX_TEXT
    assert str(parse_address(longest)) == "192.168.100.228"
    _parsed.cache_clear()
    assert parse_address("1" * (MAX_TEXT + 1)) is None
    assert _parsed.cache_info().currsize == 0


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "unknown", "_hidden", "localhost", "192.0.2", "192.0.2.256", "127.0.0.01", "0x7f.0.0.1", "2130706433",
        "192.0.2.1 ", " 192.0.2.1", "192.0.2.1\n", "192.0.2.1:", "192.0.2.1:123456", "192.0.2.1:８０", "１.2.3.4",
        "[192.0.2.1]", "192.0.2.1%eth0", "[2001:db8::1", "2001:db8::1]", "[2001:db8::1]443", "2001:db8::1::",
        "fe80::1%", "fe80::1%a b:c", "fe80::1%" + "x" * 33, "0.0.0.0", "::", "::ffff:0.0.0.0", "1" * 1_000_000,
        '"192.0.2.1"', "192.0.2.0/24", "192.0.2.1,192.0.2.2", "\x00",
    ],
)  # fmt: skip
def test_what_is_not_an_address_is_none(text: str) -> None:
    assert parse_address(text) is None


@given(st.text(st.characters(max_codepoint=255), max_size=60))
def test_any_text_is_an_address_or_none(text: str) -> None:
    address = parse_address(text)
    assert address is None or parse_address(str(address)) == address


@given(ADDRESSES)
def test_a_canonical_address_reads_back(address: IPv4Address | IPv6Address) -> None:
    found = parse_address(str(address))
    assert found is None if address.is_unspecified else parse_address(str(found)) == found


@given(st.lists(st.tuples(ADDRESSES, st.integers(0, 128)), max_size=8), ADDRESSES)
def test_ranges_hold_what_the_standard_library_says(
    ranges: list[tuple[IPv4Address | IPv6Address, int]], address: IPv4Address | IPv6Address
) -> None:
    texts = [f"{a}/{min(length, a.max_prefixlen)}" for a, length in ranges]
    networks = [ip_network(text, strict=False) for text in texts]
    kept = [n for n in networks if not (n.version == 6 and str(n).startswith(("::", "64:ff9b::")))]
    held = Networks([str(network) for network in kept])
    assert (address in held) == any(address in network for network in kept if network.version == address.version)
    assert all(network.network_address in held for network in kept)


def test_a_mapped_range_is_a_range_of_ipv4() -> None:
    networks = Networks(["::ffff:10.0.0.0/104"])
    assert networks.ranges == ("10.0.0.0/8",)
    assert ip_address("10.1.2.3") in networks
    assert ip_address("11.1.2.3") not in networks


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("10.0.0.1/8", "did you mean '10.0.0.0/8'"),
        ("10.0.0.0/33", "expected for example"),
        ("example.org", "expected for example"),
        ("", "expected for example"),
        ("fe80::%eth0/64", "zone|expected"),
        ("64:ff9b::/96", "NAT64"),
        (167772160, "text"),
    ],
)
def test_a_range_that_cannot_be_read_is_named(text: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint) as caught:
        Networks([text])
    assert repr(text) in str(caught.value)


def test_one_text_is_not_a_list_of_ranges() -> None:
    with pytest.raises(ValueError, match="list"):
        Networks("10.0.0.0/8")


@pytest.mark.parametrize(
    ("address", "ipv6", "ipv4", "key"),
    [
        ("192.0.2.7", 64, 32, "ip4:192.0.2.7"),
        ("192.0.2.7", 64, 24, "ip4:192.0.2.0/24"),
        ("192.0.2.7", 1, 1, "ip4:128.0.0.0/1"),
        ("2001:db8:1:2:3:4:5:6", 64, 32, "ip6:2001:db8:1:2::/64"),
        ("2001:db8:1:2ff:3:4:5:6", 56, 32, "ip6:2001:db8:1:200::/56"),
        ("2001:db8:1:2:3:4:5:6", 128, 32, "ip6:2001:db8:1:2:3:4:5:6"),
        ("2002:c000:201:7::1", 64, 32, "ip6:2002:c000:201::/48"),  # 6to4: a site has one IPv4 address
        ("2002:c000:201:7::1", 32, 32, "ip6:2002:c000::/32"),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", 64, 32, "ip6:2001::/32"),  # Teredo
    ],
)
def test_the_prefix_that_is_one_client(address: str, ipv6: int, ipv4: int, key: str) -> None:
    assert prefix_key(ip_address(address), ipv6, ipv4) == key


def test_several_prefixes_come_narrowest_first_and_ipv4_has_one() -> None:
    assert prefix_keys(ip_address("2001:db8:1:2ff::5"), (48, 64, 56)) == (
        "ip6:2001:db8:1:2ff::/64",
        "ip6:2001:db8:1:200::/56",
        "ip6:2001:db8:1::/48",
    )
    assert prefix_keys(ip_address("192.0.2.7")) == ("ip4:192.0.2.7",)
    assert prefix_keys(ip_address("192.0.2.7"), (64,), 24) == ("ip4:192.0.2.0/24",)


@given(st.ip_addresses(v=6), st.integers(1, 128), st.integers(0, 2**128 - 1))
def test_all_addresses_of_a_prefix_have_one_key(address: IPv6Address, length: int, noise: int) -> None:
    other = IPv6Address(int(address) ^ (noise & ((1 << (128 - length)) - 1)))
    assert prefix_key(address, length) == prefix_key(other, length)


@given(st.ip_addresses(v=4), st.ip_addresses(v=4))
def test_two_ipv4_addresses_never_share_a_key(one: IPv4Address, other: IPv4Address) -> None:
    assert (prefix_key(one) == prefix_key(other)) == (one == other)


@pytest.mark.parametrize(("ipv6", "ipv4"), [(0, 32), (129, 32), (64, 0), (64, 33), (64.0, 32), (True, 32)])
def test_a_prefix_of_impossible_length_is_refused(ipv6: int, ipv4: int) -> None:
    prefix_key(ip_address("2001:db8::1"), 64, 32)
    prefix_key(ip_address("2001:db8::1"), 1, 32)
    with pytest.raises(ValueError, match="bits"):
        prefix_key(ip_address("2001:db8::1"), ipv6, ipv4)
    with pytest.raises(ValueError, match="at least one"):
        prefix_keys(ip_address("2001:db8::1"), ())
