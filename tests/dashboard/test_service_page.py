"""The page of the real service, with real traffic: what an operator does there holds for clients."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.dashboard.conftest import OpenPage
from tests.dashboard.hostile_names import HOSTILE_NAMES
from tests.servers import free_port, wait_until
from tests.service.running_service import CLIENT, RunningService, running_service

WRITE, READ = "a-token-that-may-write", "a-token-that-may-read"
TOKENS = {"RATEBOUND_ADMIN_TOKENS": f"ann={WRITE}", "RATEBOUND_ADMIN_READ_TOKENS": f"guest={READ}"}
POLICY = """
rules:
  - {name: login, match: {paths: /login}, by: address, limits: 2/hour}
  - {name: search, match: {paths: /search}, by: address, limits: 1000/hour, candidate: 1/hour}
  - {name: trial, match: {paths: /trial}, by: address, mode: shadow, limits: 1/hour}
  - {name: rest, default: true, by: [user, address], limits: 100000/hour}
"""


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    with running_service(policy=POLICY, environ=TOKENS) as running:
        yield running


def link(service: RunningService, token: str = WRITE) -> str:
    return f"{service.url('admin')}/#token={token}"


def allows(service: RunningService, path: str, address: str, user: str | None = None) -> bool:
    return bool(service.ask("/v1/decide", {"path": path, "address": address, "user": user})["allowed"])


def eventually(service: RunningService, expected: bool, *request: str) -> None:
    wait_until(lambda: allows(service, *request) is expected, 20, f"{request} allowed: {expected}")


def number(page: Page, title: str) -> float:
    text = page.locator(".tile", has=page.get_by_text(title, exact=True)).locator(".value").text_content() or ""
    found = re.search(r"[\d,.]+", text)
    return float(found[0].replace(",", "")) if found else 0.0


@contextmanager
def traffic(service: RunningService, path: str, address: str) -> Iterator[None]:
    """Ask for the same client again and again, meanwhile."""
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.wait(0.01):
            allows(service, path, address)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(20)


def test_figures_move_with_traffic_and_a_limited_client_is_blocked_and_freed(
    open_page: OpenPage, service: RunningService
) -> None:
    page = open_page(link(service))
    expect(page.locator("#health-words")).to_have_text("Healthy")
    with traffic(service, "/login", "203.0.113.20"):
        rules = page.get_by_role("table", name="Rules")
        expect(rules).to_contain_text(re.compile("login.*2/hour"))
        page.wait_for_function("() => parseFloat(document.querySelector('.tile .value').textContent) > 1")
        assert number(page, "Denied") > 0
        expect(page.locator("#chart .denied-line")).not_to_have_attribute("d", "")
        page.get_by_role("button", name="2 min").click()
        expect(page.locator("#chart .denied-line")).not_to_have_attribute("d", "")
        page.get_by_role("button", name=re.compile("Block .* for one hour")).first.click()
        blocks = page.get_by_role("table", name="Blocks")
        expect(blocks).to_contain_text("203.0.113.20")
    assert not allows(service, "/other", "203.0.113.20"), "blocked before any rule"
    page.get_by_role("button", name="Show names").click()
    expect(page.get_by_role("table", name="Top limited clients")).to_contain_text("203.0.113.20")
    page.get_by_role("button", name="Unblock 203.0.113.20").click()
    expect(page.locator("#blocks")).not_to_contain_text("203.0.113.20")
    eventually(service, True, "/other", "203.0.113.20")
    log = page.get_by_role("table", name="Audit log")
    for action in ("block", "unblock", "show names"):
        expect(log.get_by_role("cell", name=action, exact=True).first).to_be_visible()


def test_a_block_by_form_holds_and_another_page_sees_it_at_once(open_page: OpenPage, service: RunningService) -> None:
    page, other = open_page(link(service)), open_page(link(service, READ))
    expect(other.locator("#health-words")).to_have_text("Healthy")
    page.locator("#block-client").fill("user:mallory")
    page.locator("#block-reason").fill("stolen card")
    page.locator("#block-for").select_option("1 day")
    page.get_by_role("button", name="Block", exact=True).click()
    for one in (page, other):
        expect(one.get_by_role("table", name="Blocks")).to_contain_text("user:mallorystolen cardannin 24 h")
    assert not allows(service, "/other", "203.0.113.21", "mallory")
    page.get_by_role("button", name="Unblock user:mallory").click()
    expect(other.locator("#blocks")).not_to_contain_text("user:mallory")
    eventually(service, True, "/other", "203.0.113.21", "mallory")


def test_an_override_gives_a_client_more_until_it_ends(open_page: OpenPage, service: RunningService) -> None:
    client = "203.0.113.30"
    assert [allows(service, "/login", client) for _ in range(3)] == [True, True, False]
    page = open_page(link(service))
    page.locator("#override-client").fill(client)
    page.locator("#override-limits").fill("5/hour")
    page.locator("#override-rules").fill("login")
    page.locator("#override-for").select_option("10 minutes")
    page.get_by_role("button", name="Override", exact=True).click()
    expect(page.get_by_role("table", name="Overrides")).to_contain_text(re.compile(r"5/hourloginann.*in 10\smin"))
    eventually(service, True, "/login", client)
    page.get_by_role("button", name=f"Remove the override of {client}").click()
    expect(page.locator("#overrides")).to_contain_text("No overrides.")
    eventually(service, False, "/login", client)


def test_a_rule_is_switched_to_shadow_off_and_back(open_page: OpenPage, service: RunningService) -> None:
    client = "203.0.113.40"
    assert [allows(service, "/login", client) for _ in range(3)] == [True, True, False]
    page = open_page(link(service))
    switch = page.get_by_role("group", name="State of login")
    for state, expected in (("Shadow", True), ("On", False), ("Off", True), ("On", False)):
        switch.get_by_role("button", name=state).click()
        expect(switch.get_by_role("button", name=state)).to_have_attribute("aria-pressed", "true")
        eventually(service, expected, "/login", client)


def test_a_candidate_and_a_shadow_are_promoted(open_page: OpenPage, service: RunningService) -> None:
    clients = {"/search": "203.0.113.50", "/trial": "203.0.113.51"}
    for path, client in clients.items():
        assert all(allows(service, path, client) for _ in range(4))
    page = open_page(link(service))
    expect(page.get_by_role("table", name="Rules")).to_contain_text(re.compile("Candidate 1/hour.*would deny"))
    page.get_by_role("button", name="Promote the candidate of search").click()
    expect(page.get_by_role("table", name="Rules")).to_contain_text("Candidate enforced")
    page.get_by_role("button", name="Promote trial").click()
    trial = page.get_by_role("group", name="State of trial")
    expect(trial.get_by_role("button", name="On")).to_have_attribute("aria-pressed", "true")
    for path, client in clients.items():
        eventually(service, False, path, client)
    for rule in ("search", "trial"):
        page.get_by_role("button", name=f"Undo the switch of {rule}").click()
        expect(page.get_by_role("button", name=f"Undo the switch of {rule}")).to_be_hidden()
    eventually(service, True, "/trial", clients["/trial"])


def test_all_rules_are_switched_off_and_on_again(open_page: OpenPage, service: RunningService) -> None:
    client = "203.0.113.60"
    assert [allows(service, "/login", client) for _ in range(3)] == [True, True, False]
    page = open_page(link(service))
    page.get_by_role("group", name="State of All rules").get_by_role("button", name="Off").click()
    page.get_by_role("button", name="Switch all off").click()
    expect(page.locator("#health-words")).to_have_text("All rules are switched off")
    eventually(service, True, "/login", client)
    page.get_by_role("group", name="State of All rules").get_by_role("button", name="On").click()
    expect(page.locator("#health-words")).to_have_text("Healthy")
    eventually(service, False, "/login", client)


def test_usage_is_looked_up_and_reset(open_page: OpenPage, service: RunningService) -> None:
    client = "203.0.113.70"
    assert [allows(service, "/login", client) for _ in range(3)] == [True, True, False]
    page = open_page(link(service))
    page.locator("#lookup-client").fill(client)
    page.get_by_role("button", name="Show usage").click()
    expect(page.get_by_role("table", name=f"Usage of {client}")).to_contain_text("login2/hour")
    page.get_by_role("button", name="Reset all counts").click()
    expect(page.locator("#notices")).to_contain_text("start anew")
    eventually(service, True, "/login", client)


def test_the_read_role_sees_everything_and_may_change_nothing(open_page: OpenPage, service: RunningService) -> None:
    page = open_page(link(service, READ))
    expect(page.locator("#operator")).to_have_text("guest (read)")
    expect(page.get_by_role("table", name="Rules")).to_contain_text("login")
    shown = {text for text in page.get_by_role("button").all_text_contents() if not text.startswith("Show all")}
    assert shown == {"Sign out", "2 min", "1 h", "Show usage", "Check for changes"}


def test_a_wrong_token_is_refused(open_page: OpenPage, service: RunningService) -> None:
    page = open_page(link(service, "a-token-that-nobody-has"), failures=("401",))
    expect(page.get_by_role("alert")).to_have_text("There is no such token.")
    expect(page.locator("#dashboard")).to_be_hidden()


def test_the_keyboard_alone_signs_in_blocks_and_unblocks(open_page: OpenPage, service: RunningService) -> None:
    page = open_page(f"{service.url('admin')}/", failures=("401",))
    expect(page.get_by_label("Token")).to_be_focused()
    page.keyboard.type(WRITE)
    page.keyboard.press("Enter")
    expect(page.get_by_role("table", name="Rules")).to_contain_text("login")

    def tab_until(selector: str) -> None:
        for _ in range(150):
            page.keyboard.press("Tab")
            if page.evaluate("selector => document.activeElement.matches(selector)", selector):
                return
        raise AssertionError(f"{selector} is not in the tab order")

    tab_until("#block-client")
    page.keyboard.type("203.0.113.80")
    page.keyboard.press("Enter")
    expect(page.get_by_role("table", name="Blocks")).to_contain_text("203.0.113.80")
    assert not allows(service, "/other", "203.0.113.80")
    tab_until("[aria-label='Unblock 203.0.113.80']")
    page.keyboard.press("Space")
    expect(page.locator("#blocks")).not_to_contain_text("203.0.113.80")
    eventually(service, True, "/other", "203.0.113.80")


def test_hostile_names_of_clients_are_text(open_page: OpenPage, service: RunningService) -> None:
    headers = {"authorization": f"Bearer {WRITE}"}
    accepted = []
    for name in HOSTILE_NAMES:
        client = f"user:{name}"
        body = {"client": client, "reason": name if len(name) < 200 and name.isprintable() else ""}
        answer = CLIENT.post(f"{service.url('admin')}/api/blocks", json=body, headers=headers)
        assert answer.status_code in (200, 422), answer.text
        accepted += [client] if answer.status_code == 200 else []
    assert len(accepted) >= 30
    page = open_page(link(service))
    for name in accepted[:3]:
        expect(page.get_by_role("table", name="Blocks")).to_contain_text(name)
    page.get_by_role("button", name=f"Unblock {accepted[0]}", exact=True).click()
    expect(page.locator(".notice")).to_contain_text(f"{accepted[0]} is not blocked any more.")
    assert page.evaluate("window.__hit") is None
    assert page.locator("#dashboard :is(img, script, iframe, object, link, style, base, meta, a)").count() == 0
    for client in accepted[1:]:
        CLIENT.delete(f"{service.url('admin')}/api/blocks", params={"client": client}, headers=headers)
    expect(page.locator("#blocks")).to_contain_text("No client is blocked.")


def test_the_page_comes_back_after_a_restart_of_the_service(open_page: OpenPage, tmp_path: Path) -> None:
    options = ("--admin", str(free_port()))
    environ = {**TOKENS, "RATEBOUND_SECRET": "a-secret-that-outlives-the-service"}
    with running_service(*options, policy=POLICY, environ=environ) as first:
        page = open_page(link(first), failures=("ERR_",))
        expect(page.locator("#health-words")).to_have_text("Healthy")
    expect(page.locator("#health-words")).to_contain_text("No answer for")
    with running_service(*options, policy=POLICY, environ=environ) as second, traffic(second, "/login", "203.0.113.90"):
        expect(page.locator("#health-words")).to_have_text("Healthy")
        page.wait_for_function("() => parseFloat(document.querySelector('.tile .value').textContent) > 1")
        page.context.close()
