"""The calls of operators on real gates: for threads and for tasks, with the rules of endpoints, and on storages that
keep no documents or do not answer."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ratebound.admin.calls import CALLS, OF_SITE, AdminCall
from ratebound.admin.operations import Operations
from ratebound.errors import StorageError
from ratebound.flow import run, run_async
from ratebound.policy import AsyncGate, Gate, Policy, RequestView, Rule
from ratebound.storage.guard.guarded import GuardedStorage
from ratebound.storage.memory import MemoryStorage
from ratebound.web.gate import AsyncWebGate, WebGate
from ratebound.web.route_limit import Endpoint, RouteLimit
from tests.admin.sites import (
    READ_TOKEN,
    UNSEEN,
    WRITE_TOKEN,
    Answered,
    GivenFigures,
    a_policy,
    a_site,
    body_of,
    path_of,
    read,
    request_of,
)

Ask = Callable[..., Answered]


class Asked:
    """A site on one kind of gate, and its calls with the token that writes."""

    def __init__(self, make: Callable[..., Any], **options: Any) -> None:
        self.gate = make(a_policy(), **options)
        self.site = a_site(self.gate)

    def __call__(self, method: str, path: str, body: Any = None, token: str = WRITE_TOKEN) -> Answered:
        flow = self.site.answer(request_of(method, path, body, token=token))
        is_async = isinstance(self.gate, AsyncGate | AsyncWebGate)
        return read(asyncio.run(run_async(flow)) if is_async else run(flow))

    def decide(self, request: RequestView) -> Any:
        gate = getattr(self.gate, "gate", self.gate)
        found = gate.decide(request)
        return asyncio.run(found) if asyncio.iscoroutine(found) else found


@pytest.fixture(params=[Gate, AsyncGate, WebGate, AsyncWebGate], ids=lambda kind: kind.__name__)
def asked(request: pytest.FixtureRequest) -> Asked:
    return Asked(request.param)


def request(path: str = "/", peer: str = "203.0.113.7", user: str | None = None, method: str = "GET") -> RequestView:
    return RequestView(method, path, peer=peer, user=user)


def test_every_call_of_the_table_is_carried_out_somewhere() -> None:
    operations = Operations(Gate(a_policy()), GivenFigures())
    assert {*operations._methods} == {call.name for call in CALLS} - {*OF_SITE}


def test_the_rules_in_force_are_described(asked: Asked) -> None:
    found = asked("GET", "api/rules", token=READ_TOKEN).json
    assert (found["state"], found["switch"]) == ("on", None)
    rules = {rule["name"]: rule for rule in found["rules"]}
    assert list(rules) == ["login", "search", "trial", "month", "export", "all"]
    assert rules["login"] == {
        "name": "login",
        "limits": {"default": "5/minute"},
        "by": ["address"],
        "match": {
            "paths": ["/login"],
            "methods": ["POST"],
            "hosts": [],
            "headers": {},
            "tiers": [],
            "addresses": [],
        },
        "mode": "enforce",
        "state": "on",
        "switch": None,
        "candidate": None,
        "penalty": "guessing",
        "priority": "normal",
        "stage": "late",
        "default": False,
        "final": False,
        "cost": "1",
        "charge": "",
        "over": "deny",
        "endpoint": False,
    }
    assert rules["all"]["limits"] == {"free": "100/minute sliding-counter", "default": "1000/minute"}
    assert rules["all"]["by"] == ["user", "address"]
    assert rules["search"]["candidate"] == {"default": "3/minute"}
    assert rules["trial"]["state"] == "shadow"
    assert rules["export"]["match"]["headers"] == {"x-kind": ["a", "b"]}
    (edge,) = found["descriptors"]
    assert edge["entries"] == ["generic_key=login", "remote_address"]
    assert (edge["domain"], edge["limits"], edge["state"]) == ("edge", "5/minute", "on")


def test_functions_and_charges_are_described_in_words() -> None:
    policy = Policy(
        rules=[
            Rule("costly", "100/minute", cost=lambda request: 2, charge="failure"),
            Rule("statuses", "100/minute", charge={"status": [401, 403]}),
        ]
    )
    rules = read(run(a_site(Gate(policy)).answer(request_of("GET", "api/rules", token=READ_TOKEN)))).json["rules"]
    assert [(rule["cost"], rule["charge"]) for rule in rules] == [("a function", "failure"), ("1", "status: 401, 403")]


@pytest.mark.parametrize("switch", ["off", "shadow"])
def test_the_switch_of_the_process_is_the_state_of_all_rules(asked: Asked, switch: Any) -> None:
    asked.gate.switch = switch
    found = asked("GET", "api/rules").json
    assert found["state"] == switch
    assert {rule["state"] for rule in found["rules"]} == {switch}


def test_rules_of_endpoints_are_listed_and_can_be_asked_for() -> None:
    gate = WebGate(a_policy())
    endpoint = Endpoint("download", (RouteLimit(limits="2/minute", key="address", name="download"),))
    gate.before(request("/download"), endpoint)
    site = a_site(gate)
    rules = read(run(site.answer(request_of("GET", "api/rules", token=READ_TOKEN)))).json["rules"]
    assert [rule["name"] for rule in rules if rule["endpoint"]] == ["download"]
    path = "api/usage?client=203.0.113.7&rule=download"
    (usage,) = read(run(site.answer(request_of("GET", path, token=READ_TOKEN)))).json["usage"]
    assert (usage["rule"], usage["used"], usage["remaining"]) == ("download", 1, 1)


def test_the_usage_of_a_client(asked: Asked) -> None:
    asked.decide(request("/search", user="42"))
    usage = {one["rule"]: one for one in asked("GET", "api/usage?client=user:42", token=READ_TOKEN).json["usage"]}
    assert (usage["search"]["used"], usage["search"]["remaining"], usage["search"]["limit"]) == (1, 9, "10/minute")
    assert usage["month"]["quota"] == 1000
    assert datetime.fromisoformat(usage["search"]["resets_at"]) > datetime.now(UTC) - timedelta(minutes=2)
    free = asked("GET", "api/usage?client=user:42&rule=all&tier=free").json["usage"]
    assert [one["quota"] for one in free] == [100]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("client=nothing", "client"),
        ("client=api-key:acme", "client"),
        ("client=user:42&rule=serch", "rule"),
        ("client=user:42&tier=gold", "tier"),
        ("client=user:42&rule=login", "rule"),
        ("client=address:nowhere", "client"),
    ],
)
def test_usage_of_what_does_not_exist_names_the_field(asked: Asked, query: str, field: str) -> None:
    for path in (f"api/usage?{query}",) + ((f"api/holders?{query}",) if "tier" not in query else ()):
        answer = asked("GET", path)
        assert (answer.status, answer.fields) == (422, [field]), answer


def test_holders_of_slots(asked: Asked) -> None:
    view = RequestView("GET", "/", peer="203.0.113.7", user="42", headers=[("x-kind", "a")])
    asked.decide(view)
    (holder,) = asked("GET", "api/holders?client=user:42", token=READ_TOKEN).json["holders"]
    assert holder["limit"].startswith("export")
    assert isinstance(holder["id"], str)  # 53 bits: more than some readers of JSON keep


def test_a_grant_adds_units_and_is_recorded(asked: Asked) -> None:
    answer = asked("POST", "api/grants", {"client": "user:42", "units": 5})
    quota = {one["rule"]: one["quota"] for one in answer.json["usage"]}
    assert quota["month"] == 1005
    (change,) = asked("GET", "api/changes").json["changes"]
    assert (change["by"], change["action"], change["target"]) == ("ann", "grant", "user:42")
    assert "5" in change["detail"]


def test_a_grant_that_cannot_be_is_not_recorded(asked: Asked) -> None:
    assert asked("POST", "api/grants", {"client": "203.0.113.7", "units": 5, "rule": "login"}).status == 422
    assert asked("POST", "api/grants", {"client": "user:42", "units": 5, "rule": "none"}).fields == ["rule"]
    assert asked("POST", "api/resets", {"client": "user:42", "rule": "none"}).fields == ["rule"]
    assert asked("GET", "api/changes").json["changes"] == []


def test_a_reset_forgets_what_was_spent_and_is_recorded(asked: Asked) -> None:
    asked.decide(request("/search", user="42"))
    assert asked("POST", "api/resets", {"client": "user:42", "rule": "search"}).json == {"done": True}
    (usage,) = asked("GET", "api/usage?client=user:42&rule=search").json["usage"]
    assert usage["used"] == 0
    assert [change["action"] for change in asked("GET", "api/changes").json["changes"]] == ["reset"]


def test_a_block_holds_until_it_is_taken_back(asked: Asked) -> None:
    body = {"client": "203.0.113.7", "for": "1 hour", "reason": "scraping"}
    block = asked("POST", "api/blocks", body).json
    assert (block["client"], block["reason"], block["by"]) == ("203.0.113.7", "scraping", "ann")
    length = datetime.fromisoformat(block["until"]) - datetime.fromisoformat(block["since"])
    assert length == timedelta(hours=1)
    assert asked("GET", "api/blocks", token=READ_TOKEN).json == {"blocks": [block]}
    assert not asked.decide(request()).allowed
    assert asked("DELETE", "api/blocks?client=203.0.113.7").json == {"removed": True}
    assert asked("DELETE", "api/blocks?client=203.0.113.7").json == {"removed": False}
    assert asked.decide(request()).allowed
    changes = asked("GET", "api/changes").json["changes"]
    assert [(one["action"], one["by"], one["target"]) for one in changes] == [
        ("unblock", "ann", "203.0.113.7"),
        ("block", "ann", "203.0.113.7"),
    ]


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({"client": "nobody"}, ["client"]),
        ({"client": "203.0.113.7/33"}, ["client"]),
        ({"client": "api-key:acme", "for": "5 eons"}, ["client", "for"]),
        ({"client": "address:203.0.113.7"}, ["client"]),
        ({"client": "path.id:5"}, ["client"]),
    ],
)
def test_a_block_that_cannot_be_names_its_fields(asked: Asked, body: Any, fields: list[str]) -> None:
    answer = asked("POST", "api/blocks", body)
    assert (answer.status, answer.fields) == (422, fields)
    assert asked("GET", "api/blocks").json == {"blocks": []}


@pytest.mark.parametrize(
    ("digest", "client"),
    [("a1", "203.0.113.7"), ("a2", "user:42"), ("a5", "2001:db8::/64")],
)
def test_a_client_of_the_figures_is_blocked_by_its_digest(asked: Asked, digest: str, client: str) -> None:
    assert asked("POST", "api/blocks", {"digest": f"{digest:0>16}"}).json["client"] == client


def test_a_digest_that_this_instance_has_not_seen_is_404(asked: Asked) -> None:
    answer = asked("POST", "api/blocks", {"digest": UNSEEN})
    assert answer.status == 404
    assert "has not seen that client" in answer.json["detail"]


@pytest.mark.parametrize(("digest", "word"), [("a3", "several identities"), ("a4", "global")])
def test_what_is_no_single_client_cannot_be_blocked(asked: Asked, digest: str, word: str) -> None:
    answer = asked("POST", "api/blocks", {"digest": f"{digest:0>16}"})
    assert (answer.status, answer.fields) == (422, ["digest"])
    assert word in answer.json["detail"]


def test_an_override_gives_a_client_limits_of_its_own(asked: Asked) -> None:
    body = {"client": "user:42", "limits": "1/minute", "rules": ["search"], "for": 600, "reason": "a bug"}
    override = asked("POST", "api/overrides", body).json
    assert (override["limits"], override["rules"], override["tier"]) == ("1/minute", ["search"], None)
    assert asked("GET", "api/overrides", token=READ_TOKEN).json == {"overrides": [override]}
    assert asked.decide(request("/search", user="42")).allowed
    assert not asked.decide(request("/search", user="42")).allowed
    assert asked("DELETE", "api/overrides?client=user:42&rule=search").json == {"removed": True}
    assert asked.decide(request("/search", user="42")).allowed
    assert [one["action"] for one in asked("GET", "api/changes").json["changes"]] == ["remove override", "override"]


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({"client": "x", "limits": "often", "rules": ["serch"], "for": "5 eons"}, ["client", "for", "limits", "rules"]),
        ({"client": "user:42", "tier": "gold"}, ["tier"]),
        ({"client": "user:42", "limits": "5/minute", "tier": "free"}, ["limits"]),
    ],
)
def test_an_override_that_cannot_be_names_every_field(asked: Asked, body: Any, fields: list[str]) -> None:
    answer = asked("POST", "api/overrides", body)
    assert (answer.status, answer.fields) == (422, fields)


def test_a_tier_that_is_given_to_all_rules_takes_no_rules(asked: Asked) -> None:
    answer = asked("POST", "api/overrides", {"client": "user:42", "tier": "free", "rules": ["all"]})
    assert answer.status == 422
    assert asked("POST", "api/overrides", {"client": "user:42", "tier": "free"}).json["tier"] == "free"


def test_a_rule_is_switched_off_and_back(asked: Asked) -> None:
    body = {"rule": "search", "state": "off", "for": "10 minutes", "reason": "too strict"}
    switch = asked("PUT", "api/switches", body).json
    assert (switch["rule"], switch["state"], switch["by"], switch["stale"]) == ("search", "off", "ann", False)
    assert asked("GET", "api/switches", token=READ_TOKEN).json == {"switches": [switch]}
    rules = {rule["name"]: rule for rule in asked("GET", "api/rules").json["rules"]}
    assert (rules["search"]["state"], rules["search"]["switch"]) == ("off", switch)
    assert rules["login"]["state"] == "on"
    assert asked("DELETE", "api/switches?rule=search").json == {"removed": True}
    assert asked("GET", "api/switches").json == {"switches": []}


def test_all_rules_are_switched_at_once(asked: Asked) -> None:
    switch = asked("PUT", "api/switches", {"state": "off"}).json
    assert switch["rule"] is None
    found = asked("GET", "api/rules").json
    assert (found["state"], found["switch"]) == ("off", switch)
    assert {rule["state"] for rule in found["rules"]} == {"off"}
    assert asked("DELETE", "api/switches").json == {"removed": True}
    assert asked("GET", "api/rules").json["state"] == "on"


@pytest.mark.parametrize(("rule", "state"), [("search", "candidate"), ("trial", "on")])
def test_a_candidate_and_a_shadow_are_promoted(asked: Asked, rule: str, state: str) -> None:
    switch = asked("POST", "api/promotions", {"rule": rule, "reason": "a week without surprises"}).json
    assert (switch["rule"], switch["state"], switch["stale"]) == (rule, state, False)
    rules = {one["name"]: one for one in asked("GET", "api/rules").json["rules"]}
    assert rules[rule]["state"] == state


def test_a_rule_without_a_candidate_cannot_be_promoted(asked: Asked) -> None:
    answer = asked("POST", "api/promotions", {"rule": "login"})
    assert (answer.status, answer.fields) == (422, ["rule"])


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({"rule": "search", "state": "off", "for": "99999999 weeks"}, ["for"]),
        ({"rule": "serch", "state": "off", "for": "99999999 weeks"}, ["for", "rule"]),
        ({"rule": "edge", "state": "off", "for": 10**10}, ["for"]),
    ],
)
def test_a_switch_that_cannot_be_names_its_fields(asked: Asked, body: Any, fields: list[str]) -> None:
    answer = asked("PUT", "api/switches", body)
    assert (answer.status, answer.fields) == (422, fields)


def test_rules_for_descriptors_are_switched_by_name(asked: Asked) -> None:
    assert asked("PUT", "api/switches", {"rule": "edge", "state": "shadow"}).json["problem"] == ""
    (edge,) = asked("GET", "api/rules").json["descriptors"]
    assert edge["state"] == "shadow"


def test_entries_without_effect_say_why(asked: Asked) -> None:
    core = getattr(asked.gate, "gate", asked.gate)
    asked("POST", "api/promotions", {"rule": "search"})
    asked("POST", "api/overrides", {"client": "user:42", "limits": "5/minute", "rules": ["search"]})
    core.use(Policy(rules=[Rule("login", "5/minute")]))
    (switch,) = asked("GET", "api/switches").json["switches"]
    assert switch["stale"] is True
    assert "unknown rule 'search'" in switch["problem"]
    (override,) = asked("GET", "api/overrides").json["overrides"]
    assert "search" in override["problem"]
    for client in ("user:42", "user:43", "203.0.113.7", "2001:db8::1"):
        asked("POST", "api/blocks", {"client": client})
        asked("POST", "api/overrides", {"client": client, "limits": "7/minute"})
    problems = [one["problem"] for one in asked("GET", "api/blocks").json["blocks"]]
    problems += [one["problem"] for one in asked("GET", "api/overrides").json["overrides"][1:]]
    assert problems == [""] * 8
    assert asked("GET", "api/rules").json["rules"][0]["state"] == "on"


def test_a_rule_that_does_not_exist_cannot_be_switched(asked: Asked) -> None:
    for method, path, body in (
        ("PUT", "api/switches", {"rule": "serch", "state": "off"}),
        ("POST", "api/promotions", {"rule": "serch"}),
    ):
        answer = asked(method, path, body)
        assert (answer.status, answer.fields) == (422, ["rule"])
        assert "did you mean 'search'?" in answer.json["detail"]


def test_names_of_clients_are_shown_and_that_is_recorded(asked: Asked) -> None:
    digests = asked("GET", "api/top", token=READ_TOKEN).json["top"]
    assert not any("name" in one for one in digests)
    names = {one["client"]: one.get("name") for one in asked("GET", "api/top?names=yes").json["top"]}
    assert names["00000000000000a2"] == "user:42"
    assert names["00000000000000a1"] == "203.0.113.7", "as operators write it"
    assert names[UNSEEN] is None
    (change,) = asked("GET", "api/changes").json["changes"]
    assert (change["action"], change["by"]) == ("show names", "ann")


def test_figures_are_shown_although_a_document_is_damaged() -> None:
    class Damaged(MemoryStorage):
        def read_document(self, name: str) -> tuple[int, bytes]:
            if name == "blocks":
                raise StorageError("not ours", undone=True, outage=False)
            return super().read_document(name)

    asked = Asked(Gate, storage=GuardedStorage(Damaged()))
    before = asked("GET", "api/figures", token=READ_TOKEN)
    assert before.status == 200
    assert asked("PUT", "api/switches", {"state": "shadow"}).status == 200
    assert asked("GET", "api/figures", token=READ_TOKEN).json["revision"] != before.json["revision"]
    assert asked("GET", "api/blocks", token=READ_TOKEN).status == 503


def test_the_revision_of_the_figures_changes_with_every_change_of_an_operator(asked: Asked) -> None:
    before = asked("GET", "api/figures", token=READ_TOKEN).json["revision"]
    assert asked("GET", "api/figures", token=READ_TOKEN).json["revision"] == before
    seen = {before}
    for method, path, body in (
        ("POST", "api/blocks", {"client": "203.0.113.7"}),
        ("PUT", "api/switches", {"state": "shadow"}),
        ("POST", "api/overrides", {"client": "user:42", "tier": "free"}),
        ("POST", "api/resets", {"client": "user:42"}),
    ):
        assert asked(method, path, body).status == 200
        seen.add(asked("GET", "api/figures", token=READ_TOKEN).json["revision"])
    assert len(seen) == 5


def test_what_may_have_changed_something_is_logged_once(asked: Asked, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ratebound.audit")
    asked("GET", "api/blocks")
    asked("POST", "api/blocks", {"client": "nobody"})
    asked("GET", "api/top")
    assert caplog.records == []
    asked("POST", "api/resets", {"client": "user:42"})
    asked("GET", "api/top?names=yes")
    found = [(vars(one)["ratebound_by"], vars(one)["ratebound_action"]) for one in caplog.records]
    assert found == [("ann", "reset"), ("ann", "top")]


def test_the_shadow_report_is_that_of_the_figures(asked: Asked) -> None:
    (report,) = asked("GET", "api/shadow", token=READ_TOKEN).json["shadow"]
    assert (report["rule"], report["allowed"], report["denied"]) == ("search", 9, 1)


def test_health_names_every_problem() -> None:
    class Ill(GivenFigures):
        def view(self) -> dict[str, Any]:
            node = {"node": "cache-1", "is_open": True, "calls": 0.0, "errors": 1.0, "p99": None}
            return {
                **super().view(),
                "problem": "The storage does not answer: refused.",
                "storage": {"nodes": [node, {**node, "node": "", "is_open": False}], "keys": None, "max_keys": None},
            }

    site = a_site(figures=Ill())
    found = read(run(site.answer(request_of("GET", "api/health", token=READ_TOKEN)))).json
    assert found["healthy"] is False
    assert found["problems"] == [
        "The storage does not answer: refused.",
        "The storage node cache-1 is not asked: its breaker is open.",
    ]


class WithoutDocuments:
    """A storage with nothing but what a storage must have."""

    def __init__(self) -> None:
        memory = MemoryStorage()
        self.evaluate, self.reset, self.close = memory.evaluate, memory.reset, memory.close


DOCUMENT_CALLS = [
    call
    for call in CALLS
    if call.name in ("blocks", "block", "unblock", "overrides", "override", "remove_override", "changes")
    or call.name in ("switches", "set_switch", "remove_switch", "promote", "holders")
]


@pytest.mark.parametrize("call", DOCUMENT_CALLS, ids=lambda call: call.name)
def test_a_storage_that_cannot_do_it_is_501(call: AdminCall) -> None:
    site = a_site(Gate(a_policy(), storage=WithoutDocuments()))
    answer = read(run(site.answer(request_of(call.method, path_of(call), body_of(call), token=WRITE_TOKEN))))
    assert answer.status == 501, answer
    assert answer.json["detail"]


@pytest.mark.parametrize("name", ["figures", "rules", "usage", "grant", "reset", "top", "policy", "health", "shadow"])
def test_the_rest_works_without_documents(name: str) -> None:
    site = a_site(Gate(a_policy(), storage=WithoutDocuments()))
    call = next(call for call in CALLS if call.name == name)
    assert (
        read(run(site.answer(request_of(call.method, path_of(call), body_of(call), token=WRITE_TOKEN)))).status == 200
    )


class Failing(MemoryStorage):
    """A storage whose documents cannot be reached, or change all the time."""

    def __init__(self, error: StorageError | None) -> None:
        super().__init__()
        self.error = error

    def read_document(self, name: str) -> tuple[int, bytes]:
        if self.error is not None:
            raise self.error
        return super().read_document(name)

    def write_document(self, name: str, content: bytes, version: int) -> bool:
        return False


def test_a_storage_that_does_not_answer_is_503_with_a_time() -> None:
    site = a_site(Gate(a_policy(), storage=Failing(StorageError("connection refused"))))
    answer = read(run(site.answer(request_of("GET", "api/blocks", token=READ_TOKEN))))
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert answer.json["detail"] == "The storage could not answer: connection refused"
    figures = read(run(site.answer(request_of("GET", "api/figures", token=READ_TOKEN))))
    assert figures.status == 200  # the page must say that the storage is away
    assert read(run(site.answer(request_of("GET", "api/rules", token=READ_TOKEN)))).json["state"] == "on"


def test_switches_that_were_read_last_are_shown_while_the_storage_is_away() -> None:
    storage = Failing(None)
    storage.write_document = MemoryStorage.write_document.__get__(storage)  # type: ignore[method-assign]
    gate = Gate(a_policy(), storage=storage)
    site = a_site(gate)
    gate.set_switch("off", rule="search")
    storage.error = StorageError("connection refused")
    rules = read(run(site.answer(request_of("GET", "api/rules", token=READ_TOKEN)))).json["rules"]
    assert {rule["name"]: rule["state"] for rule in rules}["search"] == "off"


def test_a_document_that_others_change_all_the_time_is_409() -> None:
    site = a_site(Gate(a_policy(), storage=Failing(None)))
    answer = read(run(site.answer(request_of("POST", "api/blocks", {"client": "user:42"}, token=WRITE_TOKEN))))
    assert answer.status == 409
    assert "try again" in answer.json["detail"]


def test_a_site_of_a_gate_for_tasks_says_that_it_is_async() -> None:
    kinds: list[Any] = [Gate, AsyncGate, WebGate, AsyncWebGate]
    assert [Operations(make(a_policy()), GivenFigures()).is_async for make in kinds] == [False, True, False, True]
