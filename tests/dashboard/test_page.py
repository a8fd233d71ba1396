"""The page in a real browser, with the real site, and with figures that are hard to produce with a real service."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.dashboard.conftest import OpenPage
from tests.dashboard.fake_calls import FakeCalls
from tests.dashboard.hostile_names import HOSTILE_NAMES
from tests.dashboard.served_site import READ, WRITE, mounted, served_site, served_wsgi_site, tokens

# The contrast of every visible text with what lies behind it, as WCAG 2 counts it; the texts that have too little.
LOW_CONTRAST = """() => {
  const parse = (text) => { const m = text.match(/[\\d.]+/g).map(Number); return [...m.slice(0, 3), m[3] ?? 1]; };
  const over = (a, b) => [0, 1, 2].map((i) => a[i] * a[3] + b[i] * (1 - a[3]));
  const light = (c) => {
    const [r, g, b] = c.map((v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.textContent.trim() || !element.checkVisibility()) continue;
    if (element.closest("svg, option, .unseen, .skip")) continue;
    const behind = [];
    for (let e = element; e; e = e.parentElement) behind.unshift(parse(getComputedStyle(e).backgroundColor));
    const ground = behind.reduce((under, colour) => over(colour, under), [255, 255, 255]);
    const ink = over(parse(getComputedStyle(element).color), ground);
    const [a, b] = [light(ink), light(ground)].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < 4.5) found.push(`${contrast.toFixed(2)}: ${node.textContent.trim().slice(0, 40)}`);
  }
  return found;
}"""


@pytest.fixture
def calls() -> FakeCalls:
    made = FakeCalls()
    made.on_block({"client": "203.0.113.7", "for": "1 hour", "reason": "scans for .env"}, "maria")
    made.on_override({"client": "user:42", "limits": "1000/minute", "rules": ["api"], "for": "1 day"}, "maria")
    return made


@pytest.fixture
def url(calls: FakeCalls, servers: ExitStack) -> str:
    return servers.enter_context(served_site(calls))


def link(url: str, token: str = WRITE) -> str:
    """The URL that signs in."""
    return f"{url}#token={token}"


def tile(page: Page, title: str) -> Any:
    return page.locator(".tile", has=page.get_by_text(title, exact=True)).locator(".value")


def texts(page: Page, selector: str) -> list[str]:
    found: list[str] = page.eval_on_selector_all(selector, "all => all.map((one) => one.textContent)")
    return found


def test_a_link_signs_in_and_its_token_leaves_the_address_bar(open_page: OpenPage, url: str) -> None:
    page = open_page(link(url))
    expect(page.locator("#operator")).to_have_text("maria (write)")
    expect(page.locator("#health-words")).to_have_text("Healthy")
    assert page.url == url
    assert WRITE not in page.content()


def test_a_link_that_is_pasted_into_an_open_page_signs_in(open_page: OpenPage, url: str) -> None:
    page = open_page(url, failures=("401",))
    expect(page.get_by_label("Token")).to_be_visible()
    page.goto(link(url))
    expect(page.locator("#operator")).to_have_text("maria (write)")
    assert page.url == url
    page.goto(link(url, "a-token-of-an-earlier-run"))
    page.wait_for_url(url)
    expect(page.locator("#operator")).to_have_text("maria (write)")
    page.get_by_role("link", name="Rules").click()
    expect(page.locator("#operator")).to_have_text("maria (write)")


def test_a_token_that_is_typed_signs_in_and_signing_out_forgets_everything(open_page: OpenPage, url: str) -> None:
    page = open_page(url, failures=("401",))
    field = page.get_by_label("Token")
    expect(field).to_be_focused()
    assert (field.get_attribute("type"), field.get_attribute("autocomplete")) == ("password", "off")
    field.fill(WRITE)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("table", name="Blocks")).to_contain_text("203.0.113.7")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    expect(page.locator("#dashboard")).to_be_hidden()
    page.reload()
    expect(page.get_by_label("Token")).to_be_visible()


def test_a_wrong_token_is_refused_with_a_reason(open_page: OpenPage, url: str) -> None:
    page = open_page(link(url, "wrong-token-wrong-token"), failures=("401",))
    expect(page.get_by_role("alert")).to_have_text("There is no such token.")
    assert page.url == url
    page.get_by_label("Token").fill("another-wrong-token")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("There is no such token.")
    page.get_by_label("Token").fill(WRITE)
    page.keyboard.press("Enter")
    expect(page.locator("#health-words")).to_have_text("Healthy")


def test_a_late_answer_to_an_earlier_token_changes_nothing(open_page: OpenPage, url: str) -> None:
    page = open_page(url, failures=("401",))
    held: list[Route] = []

    def hold(route: Route) -> None:
        if "wrong-token" in (route.request.post_data or ""):
            held.append(route)
        else:
            route.continue_()

    page.route("**/api/session", hold)
    page.get_by_label("Token").fill("a-wrong-token")
    with page.expect_request("**/api/session"):
        page.keyboard.press("Enter")
    page.get_by_label("Token").fill(WRITE)
    page.keyboard.press("Enter")
    expect(page.locator("#health-words")).to_have_text("Healthy")
    with page.expect_response(lambda answer: answer.status == 401) as refused:
        held[0].continue_()
    refused.value.finished()
    page.get_by_role("link", name="Rules").click()
    expect(page.locator("#operator")).to_have_text("maria (write)")
    expect(page.get_by_role("alert")).to_be_hidden()
    page.reload()
    expect(page.locator("#operator")).to_have_text("maria (write)")


def test_all_rules_can_be_switched_before_the_first_figures_have_come(open_page: OpenPage, url: str) -> None:
    page = open_page(url, failures=("401",))
    page.route("**/api/rules", lambda _: None)
    page.route("**/api/live*", lambda _: None)
    page.get_by_label("Token").fill(WRITE)
    page.keyboard.press("Enter")
    page.get_by_role("group", name="State of All rules").get_by_role("button", name="Off").click()
    expect(page.get_by_role("button", name="Switch all off")).to_be_visible()


def test_the_read_role_sees_figures_and_no_controls(open_page: OpenPage, url: str) -> None:
    page = open_page(link(url, READ))
    expect(page.get_by_role("table", name="Rules")).to_contain_text("webhooks")
    expect(page.get_by_role("table", name="Blocks")).to_contain_text("203.0.113.7")
    expect(page.get_by_role("table", name="Rules")).to_contain_text("Shadow")
    shown = page.get_by_role("button").all_text_contents()
    assert set(shown) == {"Sign out", "2 min", "1 h", "Show usage", "Check for changes"}
    expect(page.locator("form:visible")).to_have_count(1)  # to look up a client


def test_a_mounted_page_has_no_sign_in(open_page: OpenPage, servers: ExitStack, calls: FakeCalls) -> None:
    url = servers.enter_context(served_site(calls, mounted("write")))
    page = open_page(url)
    expect(page.locator("#operator")).to_have_text("role write")
    expect(page.get_by_role("button", name="Sign out")).to_be_hidden()
    page.get_by_role("button", name="Unblock 203.0.113.7").click()
    expect(page.locator("#blocks")).not_to_contain_text("203.0.113.7")
    assert [block["client"] for block in calls.blocks] == []


def test_a_mounted_page_says_why_an_operator_is_refused(
    open_page: OpenPage, servers: ExitStack, calls: FakeCalls
) -> None:
    sign_in = mounted("read")
    url = servers.enter_context(served_site(calls, sign_in))
    page = open_page(url, failures=("401",))
    expect(page.locator("#health-words")).to_have_text("Healthy")
    sign_in._auth = lambda request: None
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.get_by_role("alert")).to_have_text("Sign in at the application first.")
    expect(page.get_by_label("Token")).to_be_hidden()


def test_a_mounted_page_knows_that_a_redirect_to_the_sign_in_is_the_end_of_a_session(
    open_page: OpenPage, url: str
) -> None:
    page = open_page(link(url))
    expect(page.locator("#health-words")).to_have_text("Healthy")

    def redirect(route: Route) -> None:
        route.fulfill(status=303, headers={"Location": "/sign-in"})

    page.route("**/api/**", redirect)
    page.get_by_role("button", name="Check for changes").click()
    expect(page.get_by_role("alert")).to_have_text("Your session has ended. Reload the page to sign in again.")
    expect(page.get_by_label("Token")).to_be_hidden()


def test_blocks_overrides_and_switches_are_one_click(open_page: OpenPage, url: str, calls: FakeCalls) -> None:
    page = open_page(link(url))
    page.get_by_role("button", name="Block 9f12c07ab3e1 for one hour").click()
    expect(page.get_by_role("table", name="Blocks")).to_contain_text("203.0.113.0")
    expect(page.locator("#notices")).to_contain_text("203.0.113.0 is blocked for one hour.")
    page.get_by_role("button", name="Undo", exact=True).click()
    expect(page.get_by_role("table", name="Blocks")).not_to_contain_text("203.0.113.0")
    page.get_by_role("button", name="Remove the override of user:42").click()
    expect(page.locator("#overrides")).to_contain_text("No overrides.")
    login = page.get_by_role("group", name="State of login")
    login.get_by_role("button", name="Shadow").click()
    expect(login.get_by_role("button", name="Shadow")).to_have_attribute("aria-pressed", "true")
    assert calls.switches["login"]["state"] == "shadow"
    login.get_by_role("button", name="On").click()
    expect(login.get_by_role("button", name="On")).to_have_attribute("aria-pressed", "true")
    assert "login" not in calls.switches, "the policy decides again"
    expect(page.get_by_role("table", name="Audit log")).to_contain_text("remove switch")


def test_switching_all_rules_off_asks_first(open_page: OpenPage, url: str, calls: FakeCalls) -> None:
    page = open_page(link(url))
    off = page.get_by_role("group", name="State of All rules").get_by_role("button", name="Off")
    off.click()
    expect(page.get_by_role("dialog")).to_contain_text("also those of blocked clients")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(off).to_be_focused()
    assert calls.switches == {}
    off.click()
    page.get_by_role("button", name="Switch all off").click()
    expect(page.locator("#health-words")).to_have_text("All rules are switched off")
    expect(page.locator("#blocks-idle")).to_have_text("Blocks have no effect while all rules are off.")
    assert calls.switches[None]["state"] == "off"
    page.get_by_role("button", name="Undo the switch of All rules").click()
    expect(page.locator("#health-words")).to_have_text("Healthy")
    expect(page.locator("#blocks-idle")).to_be_hidden()


def test_a_promotion_enforces_the_candidate(open_page: OpenPage, url: str, calls: FakeCalls) -> None:
    page = open_page(link(url))
    row = page.get_by_role("row").filter(has=page.get_by_text("search", exact=True)).first
    expect(row).to_contain_text("would deny 11 %, live denies 4.8 %")
    page.get_by_label("How long switches last").select_option("1 hour")
    page.get_by_role("button", name="Promote the candidate of search").click()
    expect(row).to_contain_text("Candidate enforced")
    expect(row.locator(".trial-box")).to_be_hidden()
    expect(row).to_contain_text("by maria, ends in 60 min")
    assert calls.switches["search"]["state"] == "candidate"


def test_names_are_shown_only_when_asked_for_and_recorded(open_page: OpenPage, url: str, calls: FakeCalls) -> None:
    page = open_page(link(url))
    top = page.get_by_role("table", name="Top limited clients")
    expect(top).to_contain_text("9f12c07ab3e1")
    assert "203.0.113.0" not in page.content()
    page.get_by_role("button", name="Show names").click()
    expect(top).to_contain_text("203.0.113.0")
    expect(page.get_by_role("table", name="Audit log")).to_contain_text("show names")
    page.get_by_role("button", name="Hide names").click()
    expect(top).not_to_contain_text("203.0.113.0")


def test_an_error_of_a_call_is_shown_with_its_fields(open_page: OpenPage, url: str) -> None:
    page = open_page(link(url), failures=("422",))
    page.locator("#override-client").fill("user:7")
    page.get_by_role("button", name="Override", exact=True).click()
    expect(page.locator(".notice.problem p")).to_have_text(re.compile("^limits: [^\n]*$"))
    expect(page.locator("#override-client")).to_have_value("user:7")


def test_usage_and_the_dry_run_of_a_policy_are_shown(open_page: OpenPage, url: str) -> None:
    page = open_page(link(url))
    page.locator("#lookup-client").fill("user:42")
    page.get_by_role("button", name="Show usage").click()
    expect(page.get_by_role("table", name="Usage of user:42")).to_contain_text("63 %")
    page.get_by_role("button", name="Check for changes").click()
    expect(page.locator("#policy-check")).to_contain_text("60/minute becomes 45/minute")


def test_units_of_a_quota_are_granted_and_slots_are_listed(open_page: OpenPage, url: str, calls: FakeCalls) -> None:
    page = open_page(link(url))
    page.locator("#lookup-client").fill("user:42")
    page.keyboard.press("Enter")
    expect(page.get_by_role("table", name="Slots of user:42")).to_contain_text("export/concurrent")
    assert page.get_by_label("Of the quota of rule").locator("option").all_inner_texts() == ["month"]
    page.get_by_label("Units").fill("500")
    page.get_by_role("button", name="Grant").click()
    expect(page.get_by_role("table", name="Usage of user:42")).to_contain_text("1,500")
    expect(page.get_by_role("table", name="Audit log")).to_contain_text("500 units of rule month")
    assert calls.granted == 500

    calls.degraded = "the storage does not answer"
    page.get_by_role("button", name="Show usage").click()
    expect(page.locator("#usage")).to_contain_text("The storage is out of reach.")


def test_the_read_role_grants_nothing(open_page: OpenPage, url: str) -> None:
    page = open_page(link(url, READ))
    page.locator("#lookup-client").fill("user:42")
    page.keyboard.press("Enter")
    expect(page.get_by_role("table", name="Slots of user:42")).to_be_visible()
    expect(page.get_by_role("button", name="Grant")).to_have_count(0)


def test_a_client_that_is_blocked_is_marked_and_not_offered_to_be_blocked_again(
    open_page: OpenPage, url: str, calls: FakeCalls
) -> None:
    page = open_page(link(url))
    row = page.get_by_role("table", name="Top limited clients").get_by_role("row", name="9f12c07ab3e1")
    row.get_by_role("button").click()
    expect(row.get_by_text("Blocked")).to_be_visible()
    expect(row.get_by_role("button")).to_be_hidden()


def test_names_of_clients_that_come_later_are_asked_for_anew(open_page: OpenPage, url: str, calls: FakeCalls) -> None:
    page = open_page(link(url))
    page.get_by_role("button", name="Show names").click()
    expect(page.get_by_role("button", name="Hide names")).to_be_visible()
    newcomer = {"client": "fedcba987654", "denials": 5000, "error": 0, "blocked": False}
    calls.change = lambda view: view["top"].insert(0, newcomer)
    expect(page.get_by_role("table", name="Top limited clients")).to_contain_text("fedcba987654")
    page.get_by_role("button", name="Show new names").click()
    expect(page.get_by_role("button", name="Hide names")).to_be_visible()
    assert [one["action"] for one in calls.changes].count("show names") == 2


def test_a_policy_that_is_refused_is_not_said_to_be_loaded(open_page: OpenPage, url: str, calls: FakeCalls) -> None:
    page = open_page(link(url))
    calls.problems = [{"where": "rules[0].limits", "message": "cannot read limit 'often'", "line": 3}]
    page.get_by_role("button", name="Reload").click()
    expect(page.locator(".notice.problem")).to_contain_text("The policy was not loaded")
    expect(page.locator("#policy-check")).to_contain_text("line 3: rules[0].limits: cannot read limit 'often'")
    expect(page.get_by_text("The policy is loaded.")).to_have_count(0)


def test_a_rule_that_an_operator_has_put_in_shadow_is_not_offered_for_promotion(
    open_page: OpenPage, url: str, calls: FakeCalls
) -> None:
    def in_shadow(view: dict[str, Any]) -> None:
        for one in view["rules"]:
            one["shadow"] = {"allowed": 1.0, "denied": 1.0}

    calls.change = in_shadow
    calls.on_set_switch({"rule": "login", "state": "shadow"}, "maria")
    page = open_page(link(url))
    row = page.get_by_role("row").filter(has=page.get_by_text("login", exact=True)).first
    expect(row).to_contain_text("would deny 50 %")
    expect(row.get_by_role("button", name="Promote")).to_be_hidden()


@pytest.mark.parametrize(("is_young", "chosen"), [(True, "2 min"), (False, "1 h")])
def test_the_chart_shows_two_minutes_until_there_is_more(
    open_page: OpenPage, url: str, calls: FakeCalls, is_young: bool, chosen: str
) -> None:
    calls.is_young = is_young
    page = open_page(link(url))
    for name in ("2 min", "1 h"):
        button = page.get_by_role("button", name=name)
        expect(button).to_have_attribute("aria-pressed", str(name == chosen).lower())


def test_words_are_explained_on_the_page(open_page: OpenPage, url: str) -> None:
    page = open_page(link(url))
    page.get_by_text("Words on this page").click()
    expect(page.get_by_text("The rule counts and reports what it would deny.")).to_be_visible()
    assert all(page.eval_on_selector_all(".tile", "tiles => tiles.map((tile) => tile.title)"))


def test_everything_works_with_the_keyboard_alone(open_page: OpenPage, url: str, calls: FakeCalls) -> None:
    page = open_page(url, failures=("401",))
    expect(page.get_by_label("Token")).to_be_focused()
    page.keyboard.type(WRITE)
    page.keyboard.press("Enter")
    expect(page.get_by_role("table", name="Blocks")).to_contain_text("203.0.113.7")

    def tab_to(name: str, role: Any = "button") -> None:
        wanted = page.get_by_role(role, name=name, exact=True)
        for _ in range(120):
            page.keyboard.press("Tab")
            if wanted.evaluate("one => one === document.activeElement"):
                outline = wanted.evaluate("one => getComputedStyle(one).outlineStyle")
                assert outline != "none", f"the focus of {name} cannot be seen"
                return
        raise AssertionError(f"{name} is not in the tab order")

    tab_to("Skip to the figures", "link")
    page.keyboard.press("Enter")
    tab_to("Moment of the chart, use the arrow keys", "slider")
    for key in ("ArrowLeft", "ArrowLeft", "Home", "End", "PageDown"):
        page.keyboard.press(key)
    expect(page.locator("#readout")).to_have_text(re.compile(r"\d\d:\d\d:\d\d: allowed .*/s, denied .*/s \(.*%\)"))
    page.keyboard.press("Escape")
    expect(page.locator("#readout")).to_have_text(re.compile("^Now:"))
    page.locator("#block-client").focus()
    page.keyboard.type("198.51.100.4")
    page.keyboard.press("Enter")
    expect(page.get_by_role("table", name="Blocks")).to_contain_text("198.51.100.4")
    expect(page.locator("#block-client")).to_be_focused()
    tab_to("Unblock 203.0.113.7")
    page.keyboard.press("Space")
    expect(page.get_by_role("table", name="Blocks")).not_to_contain_text("203.0.113.7")
    expect(page.get_by_role("button", name="Unblock 198.51.100.4")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Blocks")).to_be_focused()
    assert calls.blocks == []


def test_no_width_needs_sideways_scrolling(open_page: OpenPage, url: str, calls: FakeCalls) -> None:
    calls.on_block({"client": "user:" + "x" * 300, "reason": "y" * 200}, "maria")
    calls.on_set_switch({"rule": None, "state": "shadow", "for": "1 hour", "reason": "release"}, "maria")
    page = open_page(link(url))
    expect(page.get_by_role("button", name="Unblock 203.0.113.7")).to_be_attached()
    page.get_by_role("button", name="Check for changes").click()
    expect(page.locator("#policy-check")).to_contain_text("becomes")
    wider = "all => all.filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.id)"
    for width in (1280, 1024, 768, 360, 320):
        page.set_viewport_size({"width": width, "height": 780})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert width > 720 or page.eval_on_selector_all(".scroll", wider) == []


def test_all_texts_have_enough_contrast_in_light_and_dark(open_page: OpenPage, url: str, calls: FakeCalls) -> None:
    def lower(view: dict[str, Any]) -> None:
        view["factors"]["low"] = 0.4
        view["storage"]["nodes"][0]["is_open"] = True
        view["total"]["degraded"] = 12.0

    calls.change = lower
    calls.policy["error"] = "line 3: unknown field 'limit'"
    calls.on_set_switch({"rule": "api", "state": "off"}, "maria")
    page = open_page(link(url), reduced_motion="reduce")
    expect(page.locator("#health")).to_have_attribute("data-level", "bad")
    page.get_by_role("button", name="Unblock 203.0.113.7").click()
    expect(page.locator(".notice")).to_be_visible()
    grounds = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(LOW_CONTRAST) == []
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert grounds == ["rgb(244, 245, 247)", "rgb(14, 17, 23)"]


def test_an_outage_and_overload_are_said_in_words(open_page: OpenPage, url: str, calls: FakeCalls) -> None:
    page = open_page(link(url))
    health = page.locator("#health-words")
    expect(health).to_have_text("Healthy")

    def break_storage(view: dict[str, Any]) -> None:
        view["storage"]["nodes"][1].update(is_open=True, errors=3.0)
        view["total"]["degraded"] = 590.0

    calls.change = break_storage
    expect(health).to_have_text(re.compile("^Storage out of reach for .*: each process decides alone$"))
    expect(page.get_by_role("table", name="Nodes of the storage")).to_contain_text("open: not asked")
    calls.change = lambda view: view["factors"].update(low=0.45)
    expect(health).to_have_text("Overload: limits are lowered to 45 %")
    expect(tile(page, "Limits in force")).to_have_text("45 %")
    calls.change = lambda view: view.update(
        problem="The storage keeps no documents: figures are of this process alone."
    )
    expect(health).to_contain_text("figures are of this process alone")
    calls.change = lambda view: None
    expect(health).to_have_text("Healthy")
    calls.policy["error"] = "line 3: unknown field 'limit'"
    calls.revision += 1
    expect(health).to_contain_text("Policy file cannot be used")
    expect(page.locator("#policy")).to_contain_text("unknown field 'limit'")


def test_what_cannot_be_read_is_not_said_to_be_empty(open_page: OpenPage, url: str) -> None:
    page = open_page(url, failures=("401", "503"))
    problem = json.dumps({"status": 503, "detail": "The storage does not answer."})
    page.route("**/api/changes", lambda route: route.fulfill(status=503, body=problem))
    page.get_by_label("Token").fill(WRITE)
    page.keyboard.press("Enter")
    log = page.get_by_role("region", name="Audit log")
    expect(log).to_contain_text("The storage does not answer.")
    expect(log.get_by_text("Nobody has changed anything yet.")).to_be_hidden()
    page.unroute("**/api/changes")
    expect(log).to_contain_text("block")
    expect(log).not_to_contain_text("The storage does not answer.")


def test_an_empty_service_says_what_to_do(open_page: OpenPage, servers: ExitStack) -> None:
    def nothing(view: dict[str, Any]) -> None:
        view.update(rules=[], top=[], penalized=[], slots=[], factors={}, shadow_report=[], latency=None)
        view["total"] = dict.fromkeys(view["total"], 0.0)
        view["storage"] = {"nodes": [], "keys": 0, "max_keys": None}

    calls = FakeCalls(nothing)
    calls.rules = []
    calls.is_young = True
    url = servers.enter_context(served_site(calls))
    page = open_page(link(url))
    for text in (
        "No rules and no decisions yet.",
        "Nobody was denied lately.",
        "No client is blocked. Block one above",
        "No overrides.",
        "No rule is adaptive.",
        "No slot is held.",
        "Nobody has changed anything yet.",
        "The chart begins with the first request.",
    ):
        expect(page.get_by_text(text)).to_be_visible()
    expect(tile(page, "Decisions/s")).to_have_text("0")


def test_thousands_of_blocks_are_filtered(open_page: OpenPage, url: str, calls: FakeCalls) -> None:
    one = calls.blocks[0]
    calls.blocks = [{**one, "client": f"user:{i}"} for i in range(5000)]
    page = open_page(link(url))
    expect(page.locator("#blocks")).to_contain_text("100 of 5,001 shown")
    assert len(texts(page, "#blocks tbody tr")) == 100
    page.get_by_label("Filter blocks").fill("user:499")
    expect(page.locator("#blocks")).to_contain_text("11 of 5,001")
    assert texts(page, "#blocks td.client") == ["user:499", *(f"user:499{i}" for i in range(10))]


def test_more_clients_than_figures_have_are_not_said_to_be_all(open_page: OpenPage, url: str, calls: FakeCalls) -> None:
    one = {"limit": "guessing", "seconds": 240.0}
    calls.change = lambda view: view.update(penalized=[{**one, "client": f"{number:016x}"} for number in range(49)])
    page = open_page(link(url))
    blocked = page.locator(".tile", has=page.get_by_text("Blocked clients", exact=True))
    expect(blocked).to_contain_text("501 by hand, 49 by penalty")
    expect(page.locator("#blocks-count")).to_have_text("50")
    calls.change = lambda view: view.update(penalized=[{**one, "client": f"{number:016x}"} for number in range(50)])
    expect(blocked).to_contain_text("51+1 by hand, 50+ by penalty")
    expect(page.locator("#blocks-count")).to_have_text("51+")


def test_live_figures_move_and_stop_while_the_tab_is_hidden(open_page: OpenPage, url: str, calls: FakeCalls) -> None:
    page = open_page(link(url))
    rate = {"now": 1000.0}
    calls.change = lambda view: view["total"].update(allowed=rate["now"], denied=0.0)
    expect(tile(page, "Decisions/s")).to_have_text("1,000")
    rate["now"] = 2000.0
    expect(tile(page, "Decisions/s")).to_have_text("2,000")
    page.evaluate("""() => {
      Object.defineProperty(document, "hidden", {configurable: true, get: () => window.isHidden});
      window.isHidden = true;
      document.dispatchEvent(new Event("visibilitychange"));
    }""")
    rate["now"] = 3000.0
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(2500)
    expect(tile(page, "Decisions/s")).to_have_text("2,000")
    assert asked == []
    page.evaluate("() => { window.isHidden = false; document.dispatchEvent(new Event('visibilitychange')); }")
    expect(tile(page, "Decisions/s")).to_have_text("3,000")


def test_a_server_without_events_is_polled(open_page: OpenPage, servers: ExitStack, calls: FakeCalls) -> None:
    url = servers.enter_context(served_wsgi_site(calls))
    page = open_page(link(url))
    calls.change = lambda view: view["total"].update(allowed=1234.0, denied=0.0)
    expect(tile(page, "Decisions/s")).to_have_text("1,234")
    calls.on_block({"client": "192.0.2.44"}, "jon")
    expect(page.get_by_role("table", name="Blocks")).to_contain_text("192.0.2.44")
    page.get_by_role("button", name="Unblock 192.0.2.44").click()
    expect(page.get_by_role("table", name="Blocks")).not_to_contain_text("192.0.2.44")


def test_a_proxy_that_breaks_events_is_polled_around(open_page: OpenPage, url: str, calls: FakeCalls) -> None:
    page = open_page(url, failures=("401", "502"))
    page.route("**/api/live", lambda route: route.fulfill(status=502, body="Bad Gateway"))
    page.get_by_label("Token").fill(WRITE)
    page.keyboard.press("Enter")
    calls.change = lambda view: view["total"].update(allowed=4321.0, denied=0.0)
    expect(tile(page, "Decisions/s")).to_have_text("4,321")


def test_old_figures_are_said_to_be_old(open_page: OpenPage, url: str) -> None:
    page = open_page(link(url), failures=("ERR_",))
    expect(page.locator("#health-words")).to_have_text("Healthy")
    page.context.set_offline(True)
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.route("**/api/*", lambda route: route.abort())
    page.evaluate("dispatchEvent(new Event('online'))")
    expect(page.locator("#old")).to_contain_text(re.compile(r"No answer for \d+\ss\. The figures below are old"))
    expect(page.locator("#health")).to_have_attribute("data-level", "bad")
    page.unroute("**/api/*")
    page.context.set_offline(False)
    expect(page.locator("#old")).to_be_hidden()
    expect(page.locator("#health-words")).to_have_text("Healthy")


def test_rows_are_rows_also_where_they_look_like_cards(open_page: OpenPage, url: str) -> None:
    page = open_page(link(url), viewport={"width": 360, "height": 780})
    row = page.get_by_role("table", name="Blocks").get_by_role("row", name=re.compile("203.0.113.7"))
    expect(row.get_by_role("cell")).to_have_count(5)
    assert row.evaluate("one => getComputedStyle(one).display") == "grid"


def test_history_has_no_gap_for_a_second_that_was_missed(open_page: OpenPage, url: str) -> None:
    page = open_page(url, failures=("401",))
    found = page.evaluate("""async () => {
      const history = new (await import("./history.js")).History();
      const view = (at, allowed) => ({at, total: {allowed, denied: 0, degraded: 0, shed: 0}, latency: null, rules: []});
      for (const one of [[100, 1], [101.2, 3], [103.9, 5], [120, 7], [119, 99]]) history.add(view(...one));
      const first = (series) => series.points.map((point) => (point ? point[0] : null));
      const recent = first(history.recent), hour = first(history.hour);
      history.add(view(1000, 8));
      return [recent, hour, first(history.recent).length, history.recent.timeOf(119)];
    }""")
    assert found == [[1, 3, 5, 5, *[None] * 16, 7], [3, None, 7], 120, 1000]


def test_numbers_are_short_and_exact_enough(open_page: OpenPage, url: str) -> None:
    page = open_page(url, failures=("401",))
    found = page.evaluate(r"""async () => {
      const {duration, milliseconds, percent, rate, visible} = await import("./elements.js");
      return {
        rate: [0, 0.01, 0.26, 9.94, 99.96, 12345.6].map(rate),
        percent: [0, 0.0001, 0.0123, 0.5, 0.9996, 1].map(percent),
        milliseconds: [0.000021, 0.00091, 0.0042, 0.25, 12, null].map(milliseconds),
        duration: [0, 45, 600, 7200, 8640000].map(duration),
        visible: [
          ...["a b", "a\u202eb", "a\u0000b", "a\nb"],
          ...["a\u061cb", "a\u3164", "a\u034f", "a\ufe0f", "a\u{e0041}", "a\ud800", "a\u{1f600}", "ä\u00e9e\u0301"],
        ].map(visible),
      };
    }""")
    assert {name: [text.replace("\u00a0", " ") for text in texts] for name, texts in found.items()} == {
        "rate": ["0", "< 0.1", "0.3", "9.9", "100", "12,346"],
        "percent": ["0 %", "< 0.1 %", "1.2 %", "50 %", "> 99.9 %", "100 %"],
        "milliseconds": ["21 µs", "0.91 ms", "4.2 ms", "250 ms", "12.0 s", "–"],
        "duration": ["0 s", "45 s", "10 min", "2 h", "100 days"],
        "visible": [
            *("a b", "a\\u202eb", "a\\u0000b", "a\nb"),
            *("a\\u061cb", "a\\u3164", "a\\u034f", "a\\ufe0f", "a\\u{e0041}", "a\\ud800", "a\U0001f600", "äée\u0301"),
        ],
    }


@contextmanager
def served_hostile() -> Iterator[str]:
    """A site in which everything that can be named has a hostile name."""

    def spoil(view: dict[str, Any]) -> None:
        figures = {"allowed": 5.0, "denied": 1.0, "used": 0.5}
        view["rules"] = [{"rule": name, **figures, "shadow": None, "candidate": None} for name in HOSTILE_NAMES]
        view["processes"] = [{"name": name, "age": 9.0, "is_local": False} for name in HOSTILE_NAMES]
        node = {"is_open": False, "calls": 1.0, "errors": 0.0, "p99": None}
        view["storage"]["nodes"] = [{"node": name, **node} for name in HOSTILE_NAMES]
        view["factors"] = dict.fromkeys(HOSTILE_NAMES, 1.0)
        view["slots"] = [{"limit": name, "held": 1} for name in HOSTILE_NAMES]
        view["top"] = [{"client": name, "denials": 5, "error": 1} for name in HOSTILE_NAMES[:10]]
        view["penalized"] = [{"client": name, "limit": name, "seconds": 5.0} for name in HOSTILE_NAMES]
        view["problem"] = HOSTILE_NAMES[2]
        report = view["shadow_report"][0]
        view["shadow_report"] = [{**report, "rule": name} for name in HOSTILE_NAMES]

    calls = FakeCalls(spoil)
    block, override = calls.on_block({"client": "x"}, "x"), calls.on_override({"client": "x", "limits": "x"}, "x")
    rule, change = calls.rules[0], calls.changes[0]
    calls.blocks = [{**block, "client": name, "reason": name, "by": name} for name in HOSTILE_NAMES]
    spoiled = [{"client": name, "limits": name, "rules": [name], "reason": name, "by": name} for name in HOSTILE_NAMES]
    calls.overrides = [{**override, **one} for one in spoiled]
    calls.rules = [
        {**rule, "name": name, "limits": {name: name}, "by": [name], "candidate": {name: name}}
        for name in HOSTILE_NAMES
    ]
    for name in HOSTILE_NAMES:
        calls.on_set_switch({"rule": name, "state": "shadow", "reason": name}, name)
    calls.changes = [{**change, "by": name, "action": name, "target": name, "detail": name} for name in HOSTILE_NAMES]
    calls.policy.update(source=HOSTILE_NAMES[0], error=HOSTILE_NAMES[1], storage=HOSTILE_NAMES[2])
    with served_site(calls, tokens(HOSTILE_NAMES[4])) as url:
        yield url


def test_hostile_names_are_text(open_page: OpenPage, servers: ExitStack) -> None:
    assert len(HOSTILE_NAMES) >= 30
    url = servers.enter_context(served_hostile())
    page = open_page(link(url), failures=("422",))  # the digest of a client is no name
    expect(page.get_by_role("table", name="Blocks")).to_contain_text(HOSTILE_NAMES[0])
    shown = page.evaluate("async (names) => names.map((await import('./elements.js')).visible)", list(HOSTILE_NAMES))
    expect(page.locator("#blocks td.client")).to_have_count(2 * len(shown))  # those by penalties come with the figures
    clients = texts(page, "#blocks td.client")
    assert clients == [*shown, *shown], "blocks, and those by penalties"
    page.locator("#changes > button").click()
    page.get_by_role("button", name="Show names").click()
    page.get_by_role("button", name="Check for changes").click()
    page.locator("#lookup-client").fill(HOSTILE_NAMES[3])
    page.get_by_role("button", name="Show usage").click()
    expect(page.locator("#usage")).to_contain_text(HOSTILE_NAMES[3])
    assert sorted(texts(page, "#rules .rule-name")) == sorted(shown)
    assert texts(page, "#overrides td.client") == shown
    assert texts(page, "#slots td.name") == shown
    assert texts(page, "#factors td.name") == shown
    assert texts(page, "#storage td.client") == shown
    assert texts(page, "#changes td.client")[1:] == shown, "after the names that were shown"
    assert texts(page, "#processes, .processes code")[1:] == shown
    page.locator("#blocks td button").first.click()
    page.locator("#rules .segments button", has_text="Off").first.click()
    page.locator("#top td button").first.click()
    expect(page.locator(".notice")).not_to_have_count(0)
    page.wait_for_timeout(500)
    assert page.evaluate("window.__hit") is None
    markup = (
        "#dashboard :is(img, script, iframe, object, link, style, base, meta, a, video, template, details:not(.card))"
    )
    assert page.locator(markup).count() == 0
    assert page.url == url
    assert "\u202e" not in (page.locator("#dashboard").text_content() or "")


def test_answers_hold_no_markup(url: str) -> None:
    """The page is not the only reader: a browser that opens an answer directly finds no tag in it."""
    import httpx

    with served_hostile() as hostile:
        for path in ("figures", "blocks", "overrides", "rules", "changes", "policy"):
            answer = httpx.get(f"{hostile}api/{path}", headers={"Authorization": f"Bearer {WRITE}"}, trust_env=False)
            assert answer.status_code == 200
            assert "<" not in answer.text
            assert json.loads(answer.text)
