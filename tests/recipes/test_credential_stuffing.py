"""The recipe "Stop credential stuffing" at a gate, on memory and on Redis: who gets through, and who is locked out."""

import itertools
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from ratebound import MemoryStorage
from ratebound.policy import RequestView
from ratebound.storage.redis.storage import RedisStorage
from ratebound.testing import FakeClock
from ratebound.web import Rejected, WebGate
from tests.recipes.pages import code, recipe

LONG = os.environ.get("RATEBOUND_LONG") == "1"
OFFICE = "203.0.113.1"
runs = itertools.count()


class Site:
    """A login that knows who has the right password, behind the policy of the page."""

    def __init__(self, storage: Any, clock: FakeClock, **more: Any) -> None:
        self.clock = clock
        self.gate = WebGate({**recipe("guides/abuse.md", "Stop credential stuffing"), **more}, storage=storage)

    def ask(self, view: RequestView, status: int) -> Rejected | None:
        """Send a request that the application would answer with `status`. Return its rejection, None if it passed."""
        answer = self.gate.before(view)
        if isinstance(answer, Rejected):
            return answer
        self.gate.after(answer, status, 0)
        return None

    def login(self, name: str, address: str, *, right: bool = False, cookie: str = "") -> Rejected | None:
        headers = [("content-type", "application/json"), ("cookie", f"device={cookie}")]
        body = json.dumps({"username": name, "password": "x"}).encode()
        return self.ask(RequestView("POST", "/login", peer=address, headers=headers, body=body), 200 if right else 401)


@pytest.fixture(params=["memory", "redis"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    clock = FakeClock()
    if request.param == "memory":
        yield Site(MemoryStorage(clock=clock), clock)
        return
    server = request.getfixturevalue("redis_url_server")
    prefix = f"stuffing{os.getpid()}-{next(runs)}-"
    storage = RedisStorage(f"{server.url}?timeout=5&connect_timeout=5&prefix={prefix}", clock=clock)
    yield Site(storage, clock)
    storage.close()


# One attack runs on Redis by default, and all of them in the long run.
MOSTLY_IN_MEMORY = pytest.mark.parametrize("site", ["memory", "redis"] if LONG else ["memory"], indirect=True)


@pytest.fixture
def memory() -> Site:
    clock = FakeClock()
    return Site(MemoryStorage(clock=clock), clock)


def test_of_ten_thousand_accounts_from_five_addresses_250_are_tried(site: Site) -> None:
    tried: dict[str, int] = {}
    last: dict[str, Rejected | None] = {}
    for number in range(10_000):
        address = f"198.51.100.{number % 5}"
        last[address] = site.login(f"account-{number}", address)
        tried[address] = tried.get(address, 0) + (last[address] is None)
        if number % 5 == 4:
            site.clock.advance(1)
    assert tried == {f"198.51.100.{number}": 50 for number in range(5)}
    for rejected in last.values():
        assert rejected is not None
        assert rejected.decision is not None
        assert rejected.decision.blocked
    assert site.login("ann", "198.51.100.77", right=True) is None, "nobody else is affected"


def test_a_faster_attack_gets_no_more(memory: Site) -> None:
    passed = 0
    for number in range(10_000):
        passed += memory.login(f"account-{number}", f"198.51.100.{number % 5}") is None
        memory.clock.advance(0.001)
    assert passed == 250


@pytest.mark.parametrize(("every", "most"), [(10, 1050), (72, 1200)], ids=["flooding", "just below the limit"])
def test_in_a_day_one_address_tries_1200_accounts_at_most(memory: Site, every: int, most: int) -> None:
    passed = 0
    for number in range(86_400 // every):
        passed += memory.login(f"account-{number}", "198.51.100.1") is None
        memory.clock.advance(every)
    assert passed == most


def test_many_passwords_for_few_accounts_are_bounded_by_the_account_and_the_address(memory: Site) -> None:
    guesses = [memory.login(f"account-{number % 20}", "198.51.100.1") for number in range(1000)]
    assert guesses.count(None) == 100
    assert [memory.login("ann", "198.51.100.2") for _ in range(50)].count(None) == 10


def test_an_account_of_their_own_gives_no_guesses_back(memory: Site) -> None:
    passed = 0
    for number in range(200):
        memory.login("mallory", "198.51.100.1", right=True)
        passed += memory.login(f"account-{number}", "198.51.100.1") is None
    assert passed == 50


def attack(site: Site, seconds: int) -> int:
    """Attack one account from 1000 addresses, once a second. Return how many guesses reached the application."""
    passed = 0
    for second in range(seconds):
        passed += site.login("victim", f"198.18.{second % 1000 // 250}.{second % 250}") is None
        site.clock.advance(1)
    return passed


@MOSTLY_IN_MEMORY
def test_one_account_attacked_from_a_thousand_addresses_takes_thirty_guesses_an_hour(site: Site) -> None:
    assert attack(site, 3601) == 30
    assert attack(site, 3600) == 20


@MOSTLY_IN_MEMORY
def test_a_correct_login_during_the_attack_is_denied_and_passes_three_minutes_after_it_at_the_latest(
    site: Site,
) -> None:
    longest = 0
    for moment in (600, 181, 240, 359):
        attack(site, moment)
        denied = site.login("victim", OFFICE, right=True)
        waited = 0
        while site.login("victim", OFFICE, right=True) is not None:
            site.clock.advance(1)
            waited += 1
        if denied is not None:
            assert denied.status == 429
            assert denied.retry_after is not None
            assert waited - 1 < denied.retry_after <= waited
            assert denied.decision is not None
            assert not denied.decision.blocked, "an attack on an account strikes nobody but the attackers"
        longest = max(longest, waited)
        attack(site, 600)
    assert 0 < longest <= 180


def test_after_a_burst_the_owner_waits_for_three_minutes(memory: Site) -> None:
    for number in range(1000):
        memory.login("victim", f"198.18.{number // 250}.{number % 250}")
    assert memory.login("victim", OFFICE, right=True) is not None
    memory.clock.advance(179)
    assert memory.login("victim", OFFICE, right=True) is not None
    memory.clock.advance(1)
    assert memory.login("victim", OFFICE, right=True) is None


@pytest.fixture
def with_devices() -> tuple[Site, Any]:
    """The recipe with the rule that knows devices, and its function that makes a cookie."""
    functions = code("guides/abuse.md", "Let the owner in during an attack")
    more = recipe("guides/abuse.md", "Stop credential stuffing", 1)
    more["identities"]["device"]["call"] = functions["known_device"]
    replaced = {rule["name"]: rule for rule in more["rules"]}
    rules = recipe("guides/abuse.md", "Stop credential stuffing")["rules"]
    more["rules"] = [replaced.get(rule["name"], rule) for rule in rules]
    clock = FakeClock()
    return Site(MemoryStorage(clock=clock), clock, **more), functions["device_cookie"]


def test_a_known_device_logs_in_during_the_attack(with_devices: tuple[Site, Any]) -> None:
    site, cookie = with_devices
    assert attack(site, 600) == 13
    assert site.login("victim", OFFICE, right=True) is not None
    for name in ("victim", "Victim "):
        assert site.login(name, OFFICE, right=True, cookie=cookie("victim")) is None


def test_a_device_gives_no_guesses_for_other_accounts(with_devices: tuple[Site, Any]) -> None:
    site, cookie = with_devices
    passed = 0
    for number in range(200):
        address = f"198.18.0.{number}"
        passed += site.login("victim", address, cookie=[cookie("mallory"), "\u00e9", "", "x"][number % 4]) is None
    assert passed == 10
    stolen = [site.login("victim", f"198.18.1.{number}", cookie=cookie("victim")) for number in range(200)]
    assert stolen.count(None) == 10


def test_the_owner_who_tries_again_and_again_is_not_blocked(memory: Site) -> None:
    attack(memory, 600)
    for _ in range(30):
        memory.login("victim", OFFICE, right=True)
        memory.clock.advance(2)
    assert memory.login("colleague", OFFICE, right=True) is None


def test_two_hundred_people_behind_one_address_log_in_with_typing_errors(site: Site) -> None:
    """One every ten seconds. Every fifth mistypes once, and every twentieth three times."""
    for number in range(200):
        name = f"person-{number}"
        for _ in range(3 if number % 20 == 0 else int(number % 5 == 0)):
            assert site.login(name, OFFICE) is None, name
            site.clock.advance(2)
        assert site.login(name, OFFICE, right=True) is None, name
        site.clock.advance(8)


def test_two_hundred_people_log_in_while_others_attack(memory: Site) -> None:
    for number in range(200):
        for attacker in range(5):
            memory.login(f"account-{number}-{attacker}", f"198.51.100.{attacker}")
        memory.login("victim", f"198.18.0.{number}")
        if number % 5 == 0:
            assert memory.login(f"person-{number}", OFFICE) is None
        assert memory.login(f"person-{number}", OFFICE, right=True) is None
        memory.clock.advance(10)


def test_fifty_accounts_of_one_address_may_be_checked_at_the_same_moment(memory: Site) -> None:
    def begin(number: int) -> Any:
        body = json.dumps({"username": f"person-{number}"}).encode()
        return memory.gate.before(RequestView("POST", "/login", peer=OFFICE, body=body))

    begun = [begin(number) for number in range(60)]
    assert [isinstance(one, Rejected) for one in begun] == [False] * 50 + [True] * 10
    for passed in begun[:50]:
        memory.gate.after(passed, 200, 0)
    assert not isinstance(begin(60), Rejected)


def test_with_a_charge_by_status_an_outage_of_the_application_locks_nobody_out() -> None:
    clock = FakeClock()
    rules = recipe("guides/abuse.md", "Stop credential stuffing")["rules"]
    for rule in rules[2:]:
        assert rule["charge"] == "failure"
        rule["charge"] = {"status": "4xx"}
    site = Site(MemoryStorage(clock=clock), clock, rules=rules)
    for number in range(300):
        body = json.dumps({"username": f"person-{number % 150}"}).encode()
        assert site.ask(RequestView("POST", "/login", peer=OFFICE, body=body), 500) is None
        clock.advance(4)
    assert [site.login(f"account-{number}", OFFICE) for number in range(60)].count(None) == 50


def test_networks_of_ipv6_are_bounded_by_a_rule_by_prefix() -> None:
    clock = FakeClock()
    tree = recipe("guides/abuse.md", "Stop credential stuffing")
    wider = {**tree["rules"][2], "name": "network", "by": "prefix:32/48"}
    wider["limits"] = "400/hour; 200 distinct account/hour"
    site = Site(MemoryStorage(clock=clock), clock, rules=[*tree["rules"], wider])
    passed = [site.login(f"account-{number}", f"2001:db8:0:{number:x}::1") for number in range(1000)]
    assert passed.count(None) == 200


def test_only_failures_of_an_address_are_counted(memory: Site) -> None:
    for number in range(1000):
        assert memory.login(f"person-{number}", OFFICE, right=True) is None
        memory.clock.advance(3.1)


def test_one_address_that_hammers_at_one_account_is_blocked(site: Site) -> None:
    passed = 0
    for _ in range(203):
        passed += site.login("victim", "198.51.100.1") is None
        site.clock.advance(1.1)
    assert passed == 11, "10 at once, and one after three minutes"
    rejected = site.login("somebody else", "198.51.100.1")
    assert rejected is not None
    assert rejected.decision is not None
    assert rejected.decision.blocked
    assert site.login("ann", OFFICE, right=True) is None


def test_an_operator_lets_an_address_and_an_account_in_again(memory: Site) -> None:
    for number in range(60):
        memory.login(f"account-{number}", OFFICE)
        memory.clock.advance(2)
    assert memory.login("ann", OFFICE, right=True) is not None
    memory.gate.gate.reset(OFFICE)
    assert memory.login("ann", OFFICE, right=True) is None
    attack(memory, 60)
    assert memory.login("victim", OFFICE, right=True) is not None
    memory.gate.gate.reset("body.username:victim")
    assert memory.login("victim", OFFICE, right=True) is None


@pytest.mark.parametrize("spell", ["{0}", "{0} ", " {0}", "\u00a0{0}"])
def test_spellings_of_one_account_give_no_more_guesses(memory: Site, spell: str) -> None:
    names = ["victim", "Victim", "VICTIM", "\uff56ictim", "victim\t"]
    passed = 0
    for number in range(200):
        passed += memory.login(spell.format(names[number % len(names)]), f"198.18.0.{number}") is None
    assert passed == 10


@pytest.mark.parametrize("name", ["vic\u200btim", "victim\x00", "vic\u00adtim", "\u202evictim", "v" * 1025, "\ud800"])
def test_a_name_with_invisible_characters_is_denied(memory: Site, name: str) -> None:
    rejected = memory.login(name, OFFICE)
    assert rejected is not None
    assert rejected.status == 403


def test_pages_of_other_sites_cannot_get_a_visitor_blocked(memory: Site) -> None:
    for number in range(200):
        body = f"username=account-{number}&password=x".encode()
        headers = [("content-type", "application/x-www-form-urlencoded"), ("sec-fetch-site", "cross-site")]
        rejected = memory.ask(RequestView("POST", "/login", peer=OFFICE, headers=headers, body=body), 401)
        assert rejected is not None
        assert rejected.status == 403
        memory.clock.advance(1)
    assert memory.login("ann", OFFICE, right=True) is None
    assert memory.login("eve", OFFICE) is None


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "GET"])
def test_other_methods_are_no_logins(memory: Site, method: str) -> None:
    for number in range(200):
        assert memory.ask(RequestView(method, "/login", peer=OFFICE, query=f"username=a{number}"), 200) is None
    for _ in range(200):
        assert memory.login("ann", OFFICE, right=True) is None


@pytest.mark.parametrize("path", ["/Login", "/login/", "//login", "/%6cogin", "/x/../login"])
def test_another_spelling_of_the_path_gives_no_more_guesses(memory: Site, path: str) -> None:
    passed = 0
    for number in range(200):
        body = json.dumps({"username": f"account-{number}"}).encode()
        passed += memory.ask(RequestView("POST", path if number % 2 else "/login", peer=OFFICE, body=body), 401) is None
    assert passed == 50


def test_fields_and_names_that_are_absent_count_as_one_account(memory: Site) -> None:
    passed = 0
    for number in range(200):
        body = [b"", b"{}", b'{"username": null}', b'{"username": ""}'][number % 4]
        passed += memory.ask(RequestView("POST", "/login", peer=OFFICE, body=body), 422) is None
    assert passed == 10
