"""Fingerprints: which requests are one client, which are two, and how little an inventive client gains."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratebound.policy import Identity, Policy, PolicyError, RequestView, Rule
from ratebound.policy.identity.fingerprint import CLASSES, ORDERED, behaviour_class
from tests.policy.gates import decide, gate_of, request

CURL = [("host", "a.test"), ("user-agent", "curl/8.5.0"), ("accept", "*/*")]
BROWSER = [
    ("host", "a.test"),
    ("user-agent", "Mozilla/5.0"),
    ("accept", "text/html"),
    ("accept-language", "de-DE"),
    ("accept-encoding", "gzip, br"),
]


def who(headers: list[tuple[str, str]], peer: str = "192.0.2.1", by: str = "fingerprint", salt: str = "s") -> Identity:
    policy = Policy(rules=[Rule("a", "5/minute", by=by)], salt=salt)
    identity = decide(gate_of(policy), request(headers=headers, peer=peer)).identity
    assert identity is not None
    return identity


def test_two_programs_behind_one_address_are_two_clients() -> None:
    assert who(CURL) != who(BROWSER)
    assert who(CURL) == who(CURL)


@pytest.mark.parametrize("name", ["user-agent", "accept", "accept-language", "accept-encoding"])
def test_each_compared_header_counts(name: str) -> None:
    others = [(key, value) for key, value in BROWSER if key != name]
    found = {behaviour_class(request(headers=[*others, (name, f"v{n}")]), "s") for n in range(20)}
    assert len(found) > 10


def test_the_order_of_headers_counts() -> None:
    found = set()
    for turn in range(len(BROWSER)):
        found.add(behaviour_class(request(headers=BROWSER[turn:] + BROWSER[:turn]), "s"))
    assert len(found) > 2


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["cookie", "authorization", "content-length", "x-forwarded-for", "referer"]), st.text()
        )
    ),
    st.integers(0, len(BROWSER)),
)
def test_headers_that_come_and_go_do_not_count(others: list[tuple[str, str]], place: int) -> None:
    assert not {name for name, _ in others} & ORDERED
    mixed = BROWSER[:place] + others + BROWSER[place:]
    assert behaviour_class(request(headers=mixed), "s") == behaviour_class(request(headers=BROWSER), "s")


def test_a_client_that_moves_inside_its_network_stays_the_same() -> None:
    assert who(CURL, "192.0.2.1") == who(CURL, "192.0.2.99")
    assert who(CURL, "192.0.2.1") != who(CURL, "192.0.3.1")
    assert who(CURL, "2001:db8:1::1") == who(CURL, "2001:db8:1:ffff::1")
    assert who(CURL, "192.0.2.1", "fingerprint:32/64") != who(CURL, "192.0.2.99", "fingerprint:32/64")


def test_the_salt_changes_it() -> None:
    assert who(CURL, salt="a") != who(CURL, salt="b")


def test_it_shows_neither_the_address_nor_the_headers() -> None:
    identity = who(CURL)
    assert identity.kind == "fingerprint"
    assert len(identity.value) == 32
    assert set(identity.value) <= set("0123456789abcdef")


def test_a_client_that_invents_headers_gains_a_bounded_number_of_quotas() -> None:
    gate = gate_of(Policy(rules=[Rule("all", "1/hour", by="fingerprint")], salt="s"))
    granted = sum(bool(decide(gate, request(headers={"user-agent": f"a{n}"}))) for n in range(5000))
    assert 0 < granted <= CLASSES


@given(st.lists(st.tuples(st.sampled_from(sorted(ORDERED)), st.text(max_size=2000)), max_size=20))
def test_any_headers_have_a_class(headers: list[tuple[str, str]]) -> None:
    view = RequestView("GET", "/", headers=headers)
    assert 0 <= behaviour_class(view, "s") < CLASSES


def test_a_request_without_an_address_or_headers_has_one() -> None:
    policy = Policy(rules=[Rule("a", "5/minute", by="fingerprint")])
    identity = decide(gate_of(policy), request(peer=None)).identity
    assert identity is not None
    assert identity.kind == "fingerprint"


def test_it_stands_last_in_by_and_with_others() -> None:
    Policy(rules=[Rule("a", "5/minute", by=["user", "fingerprint"])])
    Policy(rules=[Rule("a", "5/minute", by="address + fingerprint")])
    with pytest.raises(PolicyError, match="fingerprint is always present"):
        Policy(rules=[Rule("a", "5/minute", by=["fingerprint", "user"])])
    with pytest.raises(PolicyError, match="out of range"):
        Policy(rules=[Rule("a", "5/minute", by="fingerprint:99/1")])
    with pytest.raises(PolicyError, match="salt: expected a string, not 7"):
        Policy(rules=[Rule("a", "5/minute")], salt=7)  # type: ignore[arg-type]
