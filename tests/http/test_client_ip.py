"""Who is asking: what proxies say is believed as far as they are trusted, and no further."""

import logging

import pytest

from ratebound import Limiter
from ratebound.http import ClientAddress, Proxies, parse_address
from ratebound.http.client_ip import MAX_HOPS, MAX_KNOWN, MAX_LENGTH

CDN = ["173.245.48.0/20", "2400:cb00::/32"]
CHAIN = Proxies(["10.0.0.0/8", "fd00::/8"])


def xff(*lines: str) -> list[tuple[str, str]]:
    return [("Host", "example.org"), *(("X-Forwarded-For", line) for line in lines)]


def found(proxies: Proxies, peer: str | None, headers: list[tuple[str, str]]) -> str:
    client = proxies.client_address(peer, headers)
    assert client.ip is None or parse_address(client.text) == client.ip
    return client.text


def test_nothing_is_trusted_by_default() -> None:
    headers = [*xff("1.1.1.1"), ("Forwarded", "for=1.1.1.1"), ("X-Real-IP", "1.1.1.1"), ("CF-Connecting-IP", "1.1.1.1")]
    assert Proxies().client_address("10.0.0.1", headers) == ClientAddress(parse_address("10.0.0.1"), "10.0.0.1", "peer")
    assert not Proxies().trusts("10.0.0.1")
    assert not Proxies().trusts(None)


@pytest.mark.parametrize(
    "ranges",
    [
        ["*"], ["all"], ["0.0.0.0/0"], ["::/0"], ["10.0.0.0/8", "0.0.0.0/0"], ["0.0.0.0/1", "128.0.0.0/1"],
        ["::/1", "8000::/1"], ["2000::/3"], ["::ffff:0:0/96"], ["::ffff:0.0.0.0/97", "::ffff:128.0.0.0/97"],
        [f"{n}.0.0.0/8" for n in range(256)], ["unix", "*"],
    ],
)  # fmt: skip
def test_trusting_everyone_is_refused(ranges: list[str]) -> None:
    with pytest.raises(ValueError, match="trusted: .* trusts everyone"):
        Proxies(ranges)
    with pytest.raises(ValueError, match="cf-connecting-ip: .* trusts everyone"):
        Proxies(single={"cf-connecting-ip": ranges})


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"trusted": "10.0.0.0/8"}, "list"),
        ({"trusted": ["10.0.0.1/8"]}, "trusted: .*did you mean '10.0.0.0/8'"),
        ({"hops": 0}, "hops"),
        ({"hops": True}, "hops"),
        ({"hops": MAX_HOPS + 1}, "hops"),
        ({"hops": "1"}, "hops"),
        ({"hops": 1, "single": {"x-real-ip": ["10.0.0.1"]}}, "use one of them"),
        ({"forwarded": "x-real-ip", "trusted": ["10.0.0.1"]}, "single="),
        ({"forwarded": "X_Forwarded_For"}, "underscores"),
        ({"forwarded": "a b"}, "cannot be a trusted header"),
        ({"single": {"x-forwarded-for": ["10.0.0.1"]}}, "forwarded='x-forwarded-for'"),
        ({"single": {"x-real-ip": []}}, "is empty"),
        ({"single": {"x-real-ip": ["10.0.0.0/8"], "true-client-ip": ["10.1.0.0/16"]}}, "always overwrites"),
        ({"single": {"x-real-ip": ["unix"], "true-client-ip": ["unix"]}}, "always overwrites"),
        ({"single": {"x real ip": ["10.0.0.0/8"]}}, "cannot be a trusted header"),
    ],
)
def test_a_configuration_that_cannot_be_meant_is_refused(options: dict[str, object], hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        Proxies(**options)  # type: ignore[arg-type]


def test_as_many_hops_as_are_allowed_are_counted() -> None:
    line = ", ".join(f"203.0.113.{n}" for n in range(MAX_HOPS + 1))
    assert found(Proxies(hops=MAX_HOPS), "192.0.2.1", xff(line)) == "203.0.113.1"


def test_headers_of_one_address_are_told_by_different_proxies() -> None:
    proxies = Proxies(
        single={"x-real-ip": ["10.0.0.1"], "true-client-ip": ["10.0.0.2", "2001:db8::2"], "fly-client-ip": ["unix"]}
    )
    told = [("X-Real-IP", "203.0.113.1"), ("True-Client-IP", "203.0.113.2"), ("Fly-Client-IP", "203.0.113.3")]
    answers = [found(proxies, peer, told) for peer in ("10.0.0.1", "10.0.0.2", "2001:db8::2", None, "10.0.0.3")]
    assert answers == ["203.0.113.1", "203.0.113.2", "203.0.113.2", "203.0.113.3", "10.0.0.3"]


def test_private_ranges_may_be_wide() -> None:
    assert Proxies(["fc00::/7", "10.0.0.0/8", "fe80::/10"]).trusts("fd12::1")


# Bypasses that are known from others, by name.


def test_bypass_a_spoofed_header_from_an_untrusted_peer_is_ignored() -> None:
    assert found(CHAIN, "203.0.113.9", xff("1.1.1.1")) == "203.0.113.9"


def test_bypass_a_new_leftmost_address_for_each_request_is_no_new_bucket() -> None:
    limiter = Limiter("1/hour")
    decisions = []
    for n in range(5):
        client = CHAIN.client_address("10.0.0.1", xff(f"1.1.1.{n}, 203.0.113.9"))
        decisions.append(bool(limiter.hit(client.key())))
    assert decisions == [True, False, False, False, False]


def test_bypass_a_second_header_line_does_not_hide_the_first() -> None:
    assert found(CHAIN, "10.0.0.1", xff("1.1.1.1", "203.0.113.9")) == "203.0.113.9"
    assert found(CHAIN, "10.0.0.1", xff("1.1.1.1", "203.0.113.9, 10.0.0.2")) == "203.0.113.9"
    assert found(CHAIN, "10.0.0.1", xff("1.1.1.1, 203.0.113.9", "10.0.0.3", "10.0.0.2")) == "203.0.113.9"


def test_bypass_the_whole_header_is_never_the_key() -> None:
    text = ", ".join(["6.6.6.6"] * 3 + ["203.0.113.9"])
    assert CHAIN.client_address("10.0.0.1", xff(text)).key() == "ip4:203.0.113.9"


def test_bypass_an_underscore_spelling_is_another_header() -> None:
    assert found(CHAIN, "10.0.0.1", [("X_Forwarded_For", "1.1.1.1"), ("X-Forwarded-For ", "1.1.1.1")]) == "10.0.0.1"


def test_bypass_only_the_configured_header_is_read() -> None:
    headers = [("Forwarded", "for=1.1.1.1"), ("X-Real-IP", "1.1.1.1"), ("Client-IP", "1.1.1.1"), *xff("203.0.113.9")]
    assert found(CHAIN, "10.0.0.1", headers) == "203.0.113.9"


def test_bypass_garbage_ends_the_walk_at_the_last_trusted_address() -> None:
    for garbage in ("unknown", "_hidden", "", "x", "1.1.1.1%eth0", "999.1.1.1", "\xff", "1" * 5000, "unix:", "0.0.0.0"):
        assert found(CHAIN, "10.0.0.1", xff(f"6.6.6.6, {garbage}, 10.0.0.2")) == "10.0.0.2"
        assert found(CHAIN, "10.0.0.1", xff(f"6.6.6.6, {garbage}")) == "10.0.0.1"


def test_bypass_a_megabyte_of_header_is_not_an_address_and_no_work() -> None:
    assert found(CHAIN, "10.0.0.1", xff("6" * 1_000_000)) == "10.0.0.1"
    assert found(CHAIN, "10.0.0.1", xff("6.6.6.6," * 200_000 + "203.0.113.9")) == "203.0.113.9"
    assert found(CHAIN, "10.0.0.1", xff("6.6.6.6," + "10.0.0.9," * 200 + "10.0.0.2")) == "10.0.0.9"
    assert found(CHAIN, "10.0.0.1", xff(*["6.6.6.6"] * 10_000, "203.0.113.9")) == "203.0.113.9"


def test_bypass_a_client_cannot_lock_another_out_in_its_name() -> None:
    limiter = Limiter("1/hour")
    for _ in range(3):
        limiter.hit(CHAIN.client_address("10.0.0.1", xff("198.51.100.77, 203.0.113.9")).key())
    assert limiter.hit(CHAIN.client_address("10.0.0.1", xff("198.51.100.77")).key())


def test_bypass_long_headers_fill_no_memory() -> None:
    proxies = Proxies(["10.0.0.0/8"], single={"x-real-ip": ["10.0.0.2"]})
    for n in range(50):
        assert found(proxies, "10.0.0.1", xff(f"{n}" * 600 + ", 203.0.113.9")) == "203.0.113.9"
        assert found(proxies, "10.0.0.2", [("X-Real-IP", f"{n}" * 600)]) == "10.0.0.2"
        assert found(proxies, "10.0.0.2", [("X-Real-IP", f"{n}")] * 20) == "10.0.0.2"
    remembered = proxies._known.cache_info()
    assert remembered.currsize == 0
    assert remembered.maxsize == 8192


@pytest.mark.parametrize(
    ("peer", "headers"),
    [
        (MAX_KNOWN, []),
        (0, xff("x" * MAX_KNOWN)),
        (0, [("X-Real-IP", "x" * (MAX_KNOWN - 50))]),  # a line has a weight of its own
        (100, [*xff("x" * (MAX_KNOWN - 200)), ("X-Real-IP", "x" * 50)]),
    ],
)
def test_bypass_what_is_remembered_of_one_request_is_bounded(peer: int, headers: list[tuple[str, str]]) -> None:
    for length, remembered in ((peer, 1), (peer + 1, 0)):
        proxies = Proxies(["10.0.0.0/8"], single={"x-real-ip": ["192.0.2.1"]})
        proxies.client_address("p" * length, headers)
        assert proxies._known.cache_info().currsize == remembered


def test_bypass_a_long_peer_is_not_remembered_where_nobody_is_trusted() -> None:
    proxies = Proxies()
    for peer, remembered in (("p" * (MAX_KNOWN + 1), 0), ("p" * MAX_KNOWN, 1), (None, 2), ("192.0.2.1", 3)):
        proxies.client_address(peer, [])
        assert proxies._peer.cache_info().currsize == remembered


def test_what_lies_beyond_the_length_of_a_header_is_not_looked_at() -> None:
    for more, client in ((0, "203.0.113.9"), (1, "10.0.0.2")):
        text = "203.0.113.9," + "10.0.0.2".rjust(MAX_LENGTH - 12 + more)
        assert len(text) == MAX_LENGTH + more
        assert found(CHAIN, "10.0.0.1", xff(text)) == client


def test_bypass_ipv6_rotation_inside_a_prefix_is_one_client() -> None:
    keys = {CHAIN.client_address("10.0.0.1", xff(f"2001:db8:1:2::{n:x}")).key() for n in range(1, 100)}
    assert keys == {"ip6:2001:db8:1:2::/64"}
    wide = {CHAIN.client_address("10.0.0.1", xff(f"2001:db8:1:{n:x}::1")).keys()[2] for n in range(1, 100)}
    assert wide == {"ip6:2001:db8:1::/48"}


def test_bypass_mapped_addresses_do_not_collapse_into_one_bucket() -> None:
    one, other = (CHAIN.client_address(f"::ffff:192.0.2.{n}", []).key(ipv6=56) for n in (1, 2))
    assert (one, other) == ("ip4:192.0.2.1", "ip4:192.0.2.2")
    assert CHAIN.client_address("2001:db8::1.2.3.4", []).key() == "ip6:2001:db8::/64"


def test_bypass_a_mapped_proxy_is_still_a_proxy() -> None:
    assert found(CHAIN, "::ffff:10.0.0.1", xff("203.0.113.9, ::ffff:a00:2")) == "203.0.113.9"


def test_bypass_a_zone_is_no_new_client() -> None:
    keys = {CHAIN.client_address("10.0.0.1", xff(f"fe80::1%{zone}")).key() for zone in ("a", "b", "eth0", "1")}
    assert keys == {"ip6:fe80::/64"}
    assert found(CHAIN, "10.0.0.1", xff("fe80::1%a b:c")) == "10.0.0.1"


def test_bypass_nat64_cannot_dress_up_as_a_trusted_proxy() -> None:
    assert found(CHAIN, "64:ff9b::10.0.0.1", xff("1.1.1.1")) == "64:ff9b::a00:1"


def test_bypass_spellings_of_one_address_are_one_client() -> None:
    texts = ("203.0.113.9", "203.0.113.9:1", "::ffff:203.0.113.9", "[::ffff:cb00:7109]:99")
    assert {CHAIN.client_address("10.0.0.1", xff(text)).key() for text in texts} == {"ip4:203.0.113.9"}
    more = ("2001:db8::1", "2001:DB8:0::1", "[2001:db8::1]", "[2001:db8:0:0::0:1]:443", "2001:db8::1%x")
    assert {CHAIN.client_address("10.0.0.1", xff(text)).key(128) for text in more} == {"ip6:2001:db8::1"}


def test_bypass_a_single_address_header_counts_only_from_those_who_overwrite_it() -> None:
    proxies = Proxies(["10.0.0.0/8"], single={"CF-Connecting-IP": CDN})
    spoofed = [("CF-Connecting-IP", "1.1.1.1")]
    assert found(proxies, "203.0.113.9", spoofed) == "203.0.113.9"
    assert found(proxies, "10.0.0.1", [*spoofed, *xff("203.0.113.9")]) == "203.0.113.9"
    assert found(proxies, "10.0.0.1", [*spoofed, *xff("173.245.48.7, 203.0.113.9")]) == "203.0.113.9"
    assert found(proxies, "10.0.0.1", spoofed) == "10.0.0.1"


def test_bypass_a_single_address_header_with_two_lines_or_two_values_is_not_believed() -> None:
    proxies = Proxies(single={"x-real-ip": ["10.0.0.1"]})
    assert found(proxies, "10.0.0.1", [("X-Real-IP", "1.1.1.1"), ("x-real-ip", "203.0.113.9")]) == "10.0.0.1"
    assert found(proxies, "10.0.0.1", [("X-Real-IP", "1.1.1.1, 203.0.113.9")]) == "10.0.0.1"
    assert found(proxies, "10.0.0.1", [("X-Real-IP", "nonsense")]) == "10.0.0.1"


def test_bypass_fewer_entries_than_hops_is_the_peer_not_the_leftmost() -> None:
    proxies = Proxies(hops=3)
    assert found(proxies, "203.0.113.9", xff("1.1.1.1")) == "203.0.113.9"
    assert found(proxies, "203.0.113.9", xff("1.1.1.1, 2.2.2.2")) == "203.0.113.9"
    assert found(proxies, "203.0.113.9", []) == "203.0.113.9"


FORWARDED = Proxies(["10.0.0.0/8"], forwarded="Forwarded")


def seen(*lines: str, proxies: Proxies = FORWARDED) -> str:
    return found(proxies, "10.0.0.1", [("forwarded", line) for line in lines])


def test_bypass_an_unclosed_quote_does_not_swallow_what_the_proxy_wrote() -> None:
    assert seen('for="1.1.1.1, for=203.0.113.9') == "203.0.113.9"
    assert seen('for="1.1.1.1', "for=203.0.113.9") == "203.0.113.9"
    assert seen('for=1.1.1.1;x="\\, for=203.0.113.9') == "203.0.113.9"


def test_bypass_a_host_with_commas_and_quotes_is_not_an_element() -> None:
    assert seen('for=203.0.113.9;host="a,for=6.6.6.6"') == "10.0.0.1"
    assert seen('for=203.0.113.9;host="a,for=6.6.6.6;x=b"') == "10.0.0.1"
    assert seen('for=203.0.113.9;host="\\", for=6.6.6.6;x=\\""') == "10.0.0.1"
    assert seen('for=203.0.113.9;host="a;for=6.6.6.6"') == "203.0.113.9"
    counted = Proxies(hops=3, forwarded="forwarded")  # the second of three proxies repeats the client's Host
    assert seen('for=203.0.113.9, for=10.0.0.3;host="a,for=6.6.6.6,b", for=10.0.0.2', proxies=counted) == "10.0.0.2"


def test_bypass_no_text_keeps_the_parser_busy() -> None:
    for text in ("; " * 4000 + "\x00", ";\t " * 2700 + "=", 'for="' + "\\" * 8000, "a=b;" * 2000 + " " * 100 + "x"):
        assert seen(text) == "10.0.0.1"


# What honest proxies write.


def test_the_walk_goes_left_over_trusted_proxies_to_the_first_other_address() -> None:
    client = CHAIN.client_address("10.0.0.1", xff("1.1.1.1, 203.0.113.9,10.0.0.3\t,  fd00::2"))
    assert client == ClientAddress(parse_address("203.0.113.9"), "203.0.113.9", "x-forwarded-for")


def test_a_header_is_found_in_any_case() -> None:
    assert found(CHAIN, "10.0.0.1", [("x-fOrWaRdEd-FoR", "203.0.113.9")]) == "203.0.113.9"


def test_without_a_header_the_proxy_itself_is_asking() -> None:
    assert found(CHAIN, "10.0.0.1", []) == "10.0.0.1"
    assert found(CHAIN, "10.0.0.1", xff("")) == "10.0.0.1"


def test_where_all_are_trusted_the_leftmost_is_the_client_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    proxies = Proxies(["10.0.0.0/8"])
    with caplog.at_level(logging.WARNING, "ratebound"):
        for n in range(3):
            assert found(proxies, "10.0.0.1", xff(f"10.0.0.{n + 7}, 10.0.0.2")) == f"10.0.0.{n + 7}"
    assert [record.getMessage() for record in caplog.records] == [
        "every address in x-forwarded-for is a trusted proxy: check that no clients are in the trusted ranges"
    ]


@pytest.mark.parametrize("peer", [None, "", "unix:", "unix:/run/app.sock", "/run/app.sock", "@abstract", "localhost"])
def test_a_unix_socket_is_believed_only_if_it_is_trusted(peer: str | None) -> None:
    assert CHAIN.client_address(peer, xff("203.0.113.9")) == ClientAddress(None, "unix", "peer")
    assert CHAIN.client_address(peer, []).key() == "peer:unix"
    assert CHAIN.client_address(peer, []).keys() == ("peer:unix",)
    proxies = Proxies(["unix", "10.0.0.0/8"])
    assert proxies.trusts(peer)
    assert found(proxies, peer, xff("1.1.1.1, 203.0.113.9, unix:, 10.0.0.2")) == "203.0.113.9"
    assert found(proxies, peer, []) == "unix"
    assert found(Proxies(single={"x-real-ip": ["unix"]}), peer, [("X-Real-IP", "203.0.113.9")]) == "203.0.113.9"


def test_a_peer_that_is_no_address_stands_for_itself() -> None:
    for proxies in (Proxies(), Proxies(["10.0.0.0/8"]), Proxies(["unix"])):
        answer = proxies.client_address("testclient", xff("1.1.1.1"))
        assert answer == ClientAddress(None, "testclient", "peer")


def test_hops_count_from_the_right() -> None:
    line = xff("1.1.1.1, 203.0.113.9", "198.51.100.1, 198.51.100.2")
    assert [found(Proxies(hops=n), "192.0.2.1", line) for n in (1, 2, 3)] == [
        "198.51.100.2", "198.51.100.1", "203.0.113.9",
    ]  # fmt: skip


def test_hops_with_trusted_ranges_believe_those_peers_only() -> None:
    proxies = Proxies(["10.0.0.0/8"], hops=1)
    assert found(proxies, "10.0.0.1", xff("1.1.1.1, 203.0.113.9")) == "203.0.113.9"
    assert found(proxies, "192.0.2.1", xff("1.1.1.1, 203.0.113.9")) == "192.0.2.1"
    assert (proxies.trusts("10.0.0.1"), proxies.trusts("192.0.2.1")) == (True, False)
    assert Proxies(hops=1).trusts("192.0.2.1")


def test_a_hop_that_hides_is_counted_and_one_that_cannot_be_read_ends_the_count() -> None:
    assert found(Proxies(hops=2), "192.0.2.1", xff("203.0.113.9, unknown")) == "203.0.113.9"
    assert found(Proxies(hops=2), "192.0.2.1", xff("203.0.113.9, unix:")) == "203.0.113.9"
    assert found(Proxies(hops=2), "192.0.2.1", xff("_hidden, 198.51.100.2")) == "198.51.100.2"
    assert found(Proxies(hops=2), "192.0.2.1", xff("203.0.113.9, <garbage>")) == "192.0.2.1"


def test_a_hop_without_a_node_hides_and_one_with_two_cannot_be_read() -> None:
    counted = Proxies(hops=2, forwarded="forwarded")
    assert seen("for=203.0.113.9, proto=https", proxies=counted) == "203.0.113.9"
    assert seen("for=203.0.113.9, for=6.6.6.6;for=7.7.7.7", proxies=counted) == "10.0.0.1"
    assert seen("for=203.0.113.9, ", proxies=counted) == "10.0.0.1"


def test_a_cdn_in_front_of_a_load_balancer_is_believed_in_its_own_header() -> None:
    proxies = Proxies(["10.0.0.0/8"], single={"cf-connecting-ip": CDN})
    headers = [("CF-Connecting-IP", " 203.0.113.9 "), *xff("1.1.1.1, 203.0.113.9, 173.245.48.7")]
    client = proxies.client_address("10.0.0.1", headers)
    assert client == ClientAddress(parse_address("203.0.113.9"), "203.0.113.9", "cf-connecting-ip")
    assert found(proxies, "10.0.0.1", xff("1.1.1.1, 203.0.113.9, 173.245.48.7")) == "173.245.48.7"
    assert found(proxies, "2400:cb00::1", [("CF-Connecting-IP", "2001:db8::1")]) == "2001:db8::1"


@pytest.mark.parametrize(
    ("line", "client"),
    [
        ("for=203.0.113.9", "203.0.113.9"),
        ("For=203.0.113.9;proto=https;by=10.0.0.1", "203.0.113.9"),
        ('proto=http; for="203.0.113.9:4711" ;by="_proxy"', "203.0.113.9"),
        ('for="[2001:db8:cafe::17]:4711"', "2001:db8:cafe::17"),
        ('for="[2001:db8:cafe::17]:_port"', "2001:db8:cafe::17"),
        ('for="\\203.0.113.\\9"', "203.0.113.9"),
        ("for=[2001:db8::1]", "2001:db8::1"),  # not quoted, as many do
        ("for=6.6.6.6, for=203.0.113.9, for=10.0.0.2", "203.0.113.9"),
        ("for=6.6.6.6, for=unknown", "10.0.0.1"),
        ("for=6.6.6.6, for=_hidden, for=10.0.0.2", "10.0.0.2"),
        ("for=6.6.6.6, proto=https", "10.0.0.1"),
        ("for=6.6.6.6, for=203.0.113.9;for=7.7.7.7", "10.0.0.1"),
        ("for=6.6.6.6, for = 203.0.113.9", "10.0.0.1"),
        ("for=6.6.6.6, 203.0.113.9", "10.0.0.1"),
        ("for=6.6.6.6,", "10.0.0.1"),
        ('for=6.6.6.6, for="', "10.0.0.1"),
        ("", "10.0.0.1"),
        (";;for=203.0.113.9;", "203.0.113.9"),
    ],
)
def test_forwarded_is_read_as_its_rfc_says(line: str, client: str) -> None:
    assert seen(line) == client
