"""Envoy's rate limit service, without a server: statuses, hits, overrides, refunds, errors, and what listeners hear."""

import asyncio
import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ratebound.events import Decided, Shadowed
from ratebound.policy import Gate, Judged, Policy, PolicyFile, read_policy
from ratebound.service.engine import Engine
from ratebound.service.envoy import MAX_DESCRIPTORS, MAX_REMEMBERED, EnvoyRateLimits
from ratebound.service.envoy_messages import METHOD, RateLimitResponse
from ratebound.service.grpc import GrpcCall, GrpcError
from ratebound.storage.memory import MemoryStorage
from ratebound.testing import FakeClock, limiting_off
from tests.policy.operated import RemoteStorage
from tests.servers import Server
from tests.service.envoy_calls import OK, OVER_LIMIT, ask, call, codes, request, service

ADDRESS = {"entries": ["remote_address"], "limits": "3/minute fixed-window", "name": "address"}
LOGIN = {"entries": [{"generic_key": "login"}, "remote_address"], "limits": "2/hour fixed-window", "name": "login"}


def client(value: str = "192.0.2.1") -> dict[str, str]:
    return {"remote_address": value}


def login(value: str = "192.0.2.1") -> dict[str, str]:
    return {"generic_key": "login", **client(value)}


@pytest.fixture
def storage(clock: FakeClock) -> MemoryStorage:
    return MemoryStorage(clock=clock)


def test_each_value_of_an_entry_without_one_has_a_count_of_its_own() -> None:
    limits = service([ADDRESS])
    assert [ask(limits, client()).overall_code for _ in range(4)] == [OK, OK, OK, OVER_LIMIT]
    assert ask(limits, client("192.0.2.2")).overall_code == OK


def test_a_status_tells_the_limit(storage: MemoryStorage, clock: FakeClock) -> None:
    limits = service([ADDRESS], storage=storage)
    clock.advance(0.5)
    (status,) = ask(limits, client()).statuses
    told = status.current_limit
    assert (told.requests_per_unit, told.unit, told.name) == (3, 2, "address")
    assert status.limit_remaining == 2
    assert 0 < status.duration_until_reset.seconds <= 60
    assert status.duration_until_reset.nanos == 0


@pytest.mark.parametrize(
    ("text", "count", "unit"),
    [
        ("5/second fixed-window", 5, 1),
        ("5/week fixed-window", 5, 7),
        ("5/month fixed-window", 5, 5),
        ("5/year fixed-window", 5, 6),
        ("5/30 seconds", 5, 0),
        ("10/second burst 600", 600, 2),
        ("5/calendar-day", 5, 4),
        ("200/hour", 200, 3),
        ("5/minute leaky-bucket", 5, 2),
    ],
)
def test_the_unit_is_that_in_which_the_quota_comes_back(text: str, count: int, unit: int) -> None:
    (status,) = ask(service([{**ADDRESS, "limits": text}]), client()).statuses
    assert (status.current_limit.requests_per_unit, status.current_limit.unit) == (count, unit)


def test_seconds_are_rounded_up(storage: MemoryStorage, clock: FakeClock) -> None:
    limits = service([{**ADDRESS, "limits": "1/10 seconds gcra"}], storage=storage)
    assert ask(limits, client()).statuses[0].duration_until_reset.seconds == 10
    clock.advance(8.5)
    denied = ask(limits, client()).statuses[0]
    assert (denied.code, denied.duration_until_reset.seconds) == (OVER_LIMIT, 2)


def test_a_denied_request_charges_no_descriptor_and_says_which_denied() -> None:
    limits = service([{**ADDRESS, "limits": "9/hour"}, {**LOGIN, "limits": "1/hour"}])
    assert codes(ask(limits, client(), login())) == [OK, OK]
    denied = ask(limits, client(), login())
    assert (denied.overall_code, codes(denied)) == (OVER_LIMIT, [OK, OVER_LIMIT])
    assert denied.statuses[0].limit_remaining == 8
    assert ask(limits, client()).statuses[0].limit_remaining == 7


def test_statuses_are_in_the_order_of_the_descriptors_and_free_ones_have_no_limit() -> None:
    limits = service([ADDRESS, {**LOGIN, "limits": "unlimited"}])
    answer = ask(limits, {"nobody": "knows"}, client(), login(), {}, {"remote_address": "a", "more": "b"})
    assert codes(answer) == [OK] * 5
    assert [status.HasField("current_limit") for status in answer.statuses] == [False, True, False, False, False]


def test_an_unknown_domain_is_free() -> None:
    answer = ask(service([{**ADDRESS, "limits": "deny"}]), client(), login(), domain="other")
    assert (answer.overall_code, codes(answer)) == (OK, [OK, OK])


def test_the_nearest_limit_of_a_rule_is_told() -> None:
    limits = service([{**ADDRESS, "limits": "1/minute; 5/hour"}])
    assert ask(limits, client()).statuses[0].current_limit.name == "address/minute"
    assert ask(limits, client()).statuses[0].code == OVER_LIMIT


def test_headers_of_the_policy_are_added() -> None:
    answer = ask(service([ADDRESS]), client())
    assert {header.key for header in answer.response_headers_to_add} == {"RateLimit", "RateLimit-Policy"}
    assert not answer.raw_body
    assert not ask(service([ADDRESS], headers=[]), client()).response_headers_to_add


def test_a_denial_has_the_body_of_the_policy() -> None:
    limits = service([{**ADDRESS, "limits": "1/hour", "message": "Slow down.", "documentation": "https://example.org"}])
    ask(limits, client())
    denied = ask(limits, client())
    headers = {header.key: header.value for header in denied.response_headers_to_add}
    body = json.loads(denied.raw_body)
    assert headers["Content-Type"] == "application/problem+json"
    assert headers["Retry-After"] == str(denied.statuses[0].duration_until_reset.seconds) == str(body["retry_after"])
    assert (body["status"], body["detail"], body["documentation"]) == (429, "Slow down.", "https://example.org")


def test_a_rule_that_denies_all_charges_nobody() -> None:
    limits = service([ADDRESS, {**LOGIN, "limits": "deny", "message": "Closed."}])
    denied = ask(limits, client(), login())
    assert (denied.overall_code, codes(denied)) == (OVER_LIMIT, [OK, OVER_LIMIT])
    assert json.loads(denied.raw_body)["detail"] == "Closed."
    assert json.loads(denied.raw_body)["status"] == 429
    assert ask(limits, client()).statuses[0].limit_remaining == 2


def test_two_descriptors_of_one_rule_count_twice() -> None:
    limits = service([ADDRESS])
    assert codes(ask(limits, client(), client())) == [OK, OK]
    assert ask(limits, client(), client()).overall_code == OVER_LIMIT
    assert ask(limits, client()).statuses[0].limit_remaining == 0


def test_hits_of_the_request_and_the_cost_of_the_rule() -> None:
    limits = service([{**ADDRESS, "limits": "20/hour", "cost": 2}])
    assert ask(limits, client(), hits=3).statuses[0].limit_remaining == 14
    assert ask(limits, client()).statuses[0].limit_remaining == 12
    assert ask(limits, client(), hits=7).overall_code == OVER_LIMIT


def test_hits_that_no_limit_can_have_are_always_denied() -> None:
    made = request(client())
    made.descriptors[0].hits_addend.value = 2**64 - 1
    answer = call(service([ADDRESS]), made.SerializeToString())
    assert answer.overall_code == OVER_LIMIT
    assert answer.statuses[0].duration_until_reset.seconds == 60, "the period: Envoy turns no time into one second"
    assert "Retry-After" not in {header.key for header in answer.response_headers_to_add}


def test_hits_of_a_descriptor_win_and_zero_only_checks() -> None:
    limits = service([ADDRESS, LOGIN])
    made = request(client(), login(), hits=5)
    made.descriptors[0].hits_addend.value = 2
    made.descriptors[1].hits_addend.value = 0
    first = call(limits, made.SerializeToString())
    assert [status.limit_remaining for status in first.statuses] == [1, 2]
    checked = request(client())
    checked.descriptors[0].hits_addend.value = 0
    for _ in range(3):
        assert call(limits, checked.SerializeToString()).statuses[0].limit_remaining == 1


def test_a_check_that_denies_leaves_the_rest_uncharged() -> None:
    limits = service([ADDRESS, {**LOGIN, "limits": "1/hour"}])
    assert ask(limits, login()).overall_code == OK
    made = request(client(), login())
    made.descriptors[1].hits_addend.value = 0
    denied = call(limits, made.SerializeToString())
    assert (denied.overall_code, codes(denied)) == (OVER_LIMIT, [OK, OVER_LIMIT])
    assert ask(limits, client()).statuses[0].limit_remaining == 2


def test_refunds_are_refused_unless_they_are_turned_on() -> None:
    made = request(client())
    made.descriptors[0].is_negative_hits = True
    with pytest.raises(GrpcError, match=r"descriptors\[0\].is_negative_hits") as caught:
        call(service([ADDRESS]), made.SerializeToString())
    assert caught.value.status == 3


@pytest.mark.parametrize("text", ["5/hour fixed-window", "5/hour gcra", "500/hour", "5/calendar-day"])
def test_negative_hits_are_given_back(text: str) -> None:
    limits = service([{**ADDRESS, "limits": text}], negative_hits=True)
    before = ask(limits, client(), hits=4).statuses[0].limit_remaining
    made = request(client())
    made.descriptors[0].hits_addend.value = 3
    made.descriptors[0].is_negative_hits = True
    answer = call(limits, made.SerializeToString())
    assert (answer.overall_code, answer.statuses[0].code) == (OK, OK)
    assert answer.statuses[0].limit_remaining == before + 3
    for _ in range(3):  # never above what the limit gives
        call(limits, made.SerializeToString())
    assert ask(limits, client()).statuses[0].limit_remaining == before + 3


def test_a_sliding_log_refuses_a_refund_and_says_what_to_write() -> None:
    made = request(client())
    made.descriptors[0].is_negative_hits = True
    with pytest.raises(GrpcError, match="fixed-window"):
        call(service([{**ADDRESS, "limits": "5/hour"}], negative_hits=True), made.SerializeToString())


def test_a_denied_request_refunds_nothing() -> None:
    limits = service([ADDRESS, {**LOGIN, "limits": "1/hour"}], negative_hits=True)
    ask(limits, client(), login())
    made = request(client(), login())
    made.descriptors[0].is_negative_hits = True
    assert call(limits, made.SerializeToString()).overall_code == OVER_LIMIT
    assert ask(limits, client()).statuses[0].limit_remaining == 1


def test_hits_that_exceed_are_charged_where_the_rule_says_so() -> None:
    rule = {**ADDRESS, "limits": "100/hour fixed-window", "over": "charge"}
    limits = service([rule])
    assert ask(limits, client(), hits=90).overall_code == OK
    assert ask(limits, client(), hits=80).overall_code == OVER_LIMIT
    made = request(client())
    made.descriptors[0].hits_addend.value = 0
    denied = call(limits, made.SerializeToString())
    assert (denied.overall_code, denied.statuses[0].limit_remaining) == (OVER_LIMIT, 0)
    charged_nothing = service([{**rule, "over": "deny"}])
    assert ask(charged_nothing, client(), hits=90).overall_code == OK
    assert ask(charged_nothing, client(), hits=80).overall_code == OVER_LIMIT
    assert call(charged_nothing, made.SerializeToString()).statuses[0].limit_remaining == 10


def test_a_metered_rule_denies_nothing() -> None:
    limits = service([{**ADDRESS, "over": "allow"}])
    assert [ask(limits, client()).overall_code for _ in range(5)] == [OK] * 5


def overriding(count: int, unit: int, *descriptors: Mapping[str, str]) -> bytes:
    made = request(*descriptors)
    for descriptor in made.descriptors:
        descriptor.limit.requests_per_unit, descriptor.limit.unit = count, unit
    return bytes(made.SerializeToString())


def test_an_override_of_the_same_unit_keeps_the_count() -> None:
    limits = service([ADDRESS])
    ask(limits, client(), hits=2)
    (status,) = call(limits, overriding(10, 2, client())).statuses
    assert (status.current_limit.requests_per_unit, status.current_limit.unit) == (10, 2)
    assert status.limit_remaining == 7
    assert ask(limits, client()).overall_code == OVER_LIMIT


def test_an_override_needs_no_rule_but_a_domain() -> None:
    limits = service([{**ADDRESS, "mode": "shadow"}])
    for descriptor in (client(), {"other": "x"}):
        assert [call(limits, overriding(1, 4, descriptor)).overall_code for _ in range(2)] == [OK, OVER_LIMIT]
    assert call(limits, overriding(1, 4, {"other": "y"})).overall_code == OK
    assert call(limits, overriding(0, 1, {"other": "y"})).overall_code == OVER_LIMIT
    free = request({"other": "x"}, domain="unknown")
    free.descriptors[0].limit.requests_per_unit = 0
    assert call(limits, free.SerializeToString()).overall_code == OK


def test_an_override_of_an_unknown_unit_is_refused() -> None:
    made = request(client(), client())
    made.descriptors[0].limit.unit = 1
    made.descriptors[1].limit.requests_per_unit = 1
    with pytest.raises(GrpcError, match=r"descriptors\[1\].limit.unit") as caught:
        call(service([ADDRESS]), made.SerializeToString())
    assert caught.value.status == 3


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (b"\xff", "RateLimitRequest"),
        (b"", "domain"),
        (request().SerializeToString(), "descriptors"),
        (request(*[client()] * (MAX_DESCRIPTORS + 1)).SerializeToString(), "descriptors"),
        (request(client(), domain="").SerializeToString(), "domain"),
    ],
)
def test_an_invalid_request_is_refused_with_the_field(message: bytes, field: str) -> None:
    with pytest.raises(GrpcError, match=field) as caught:
        call(service([ADDRESS]), message)
    assert caught.value.status == 3


def test_no_value_can_forge_the_count_of_another() -> None:
    limits = service([{"entries": ["a", "b"], "limits": "1/hour"}])
    pairs = [("x|y", "z"), ("x", "y|z"), ("x\\", "|y"), ("x\\|", "y"), ("", "x|y|z"), ("x|y|z", "")]
    pairs += [("k" * 300, "z"), ("k" * 299, "kz"), ("k" * 300 + "z", ""), ("descriptor:x", "y"), ("é", "ü")]
    for first, second in pairs:
        assert ask(limits, {"a": first, "b": second}).overall_code == OK, (first, second)
        assert ask(limits, {"a": first, "b": second}).overall_code == OVER_LIMIT


def test_values_that_are_no_text_count_like_others() -> None:
    limits = service([{"entries": ["a"], "limits": "1/hour"}])
    for value in (b"\xff\xfe", b"\xff\xfd", b"\xed\xa0\x80", b"\x00"):
        assert [ask(limits, {"a": value}).overall_code for _ in range(2)] == [OK, OVER_LIMIT]


def test_a_rule_in_shadow_counts_and_never_denies() -> None:
    told: list[Any] = []
    limits = service([{**ADDRESS, "mode": "shadow"}, LOGIN], listeners=[told.append])
    for _ in range(4):
        assert ask(limits, client()).overall_code == OK
    assert [event for event in told if isinstance(event, Shadowed)] == [
        Shadowed("address", False, allowed) for allowed in (True, True, True, False)
    ]
    assert codes(ask(limits, client(), login())) == [OK, OK]


@pytest.mark.parametrize("switch", ["off", "shadow"])
def test_the_switch_of_the_policy_holds(switch: str) -> None:
    limits = service([{**ADDRESS, "limits": "1/hour"}, {**LOGIN, "limits": "deny"}], switch=switch)
    assert [ask(limits, client(), login()).overall_code for _ in range(3)] == [OK] * 3


def test_the_switch_of_the_gate_holds_from_the_next_call_on() -> None:
    limits = service([{**ADDRESS, "limits": "1/hour"}])
    gate = limits._engine.gate
    assert [ask(limits, client()).overall_code for _ in range(2)] == [OK, OVER_LIMIT]
    gate.switch = "off"
    assert ask(limits, client()).overall_code == OK
    gate.switch = None
    assert ask(limits, client()).overall_code == OVER_LIMIT


@pytest.mark.parametrize("kind", [MemoryStorage, RemoteStorage])
def test_rules_follow_the_switches_of_operators(kind: Any, clock: FakeClock) -> None:
    storage = kind(clock=clock)
    limits = service([{**ADDRESS, "limits": "1/hour"}], storage=storage)
    operator = Gate(limits._engine.policy, storage=storage)

    def found() -> list[int]:
        clock.advance(1)
        return [ask(limits, client()).overall_code for _ in range(2)]

    assert found() == [OK, OVER_LIMIT]
    operator.set_switch("off", rule="address")
    assert found() == [OK, OK]
    with_limit = request(client())
    with_limit.descriptors[0].limit.requests_per_unit = 0
    with_limit.descriptors[0].limit.unit = 2
    assert call(limits, with_limit.SerializeToString()).overall_code == OK  # a limit that it brings is not asked either
    operator.set_switch("shadow", rule="address")
    assert found() == [OK, OK]
    operator.remove_switch("address")
    assert found() == [OVER_LIMIT, OVER_LIMIT]
    operator.set_switch("off")
    assert found() == [OK, OK]


def test_a_test_can_turn_limiting_off() -> None:
    limits = service([{**ADDRESS, "limits": "1/hour"}])
    with limiting_off():
        assert [ask(limits, client(), login()).overall_code for _ in range(3)] == [OK] * 3


def test_a_rule_that_replaces_another_leaves_it_uncharged() -> None:
    rules = [
        {"name": "all", "entries": [{"generic_key": "all"}], "limits": "1/hour"},
        {"name": "vip", "entries": [{"generic_key": "vip"}], "limits": "9/hour", "replaces": ["all"]},
    ]
    limits = service(rules)
    for _ in range(3):
        answer = ask(limits, {"generic_key": "all"}, {"generic_key": "vip"})
        assert answer.overall_code == OK
        assert not answer.statuses[0].HasField("current_limit")
    assert [ask(limits, {"generic_key": "all"}).overall_code for _ in range(2)] == [OK, OVER_LIMIT]


def test_listeners_hear_of_every_decision() -> None:
    told: list[Any] = []
    limits = service([ADDRESS, LOGIN, {"entries": ["closed"], "limits": "deny"}], listeners=[told.append])
    for descriptors in ([client()], [client(), login()], [login()], [login()], [{"closed": "x"}]):
        ask(limits, *descriptors)
    assert [event.decision.allowed for event in told if isinstance(event, Decided)] == [True, True, True, False]
    verdicts = [event.verdict for event in told if isinstance(event, Judged)]
    assert [verdict.allowed for verdict in verdicts] == [True, True, True, False, False]
    assert [[rule.name for rule in verdict.asked] for verdict in verdicts] == [
        ["address"],
        ["address", "login"],
        ["login"],
        ["login"],
        ["rule-2"],
    ]
    assert verdicts[3].rule is not None
    assert verdicts[3].rule.name == "login"


def test_a_leaky_bucket_has_no_queue_here() -> None:
    limits = service([{**ADDRESS, "limits": "1/minute burst 5 leaky-bucket"}])
    check = request(client())
    check.descriptors[0].hits_addend.value = 0
    assert call(limits, check.SerializeToString()).overall_code == OK
    assert [ask(limits, client()).overall_code for _ in range(2)] == [OK, OVER_LIMIT]
    assert call(limits, check.SerializeToString()).overall_code == OVER_LIMIT


def test_a_penalty_blocks_and_is_not_named() -> None:
    limits = service([{**ADDRESS, "limits": "1/minute; 1 strike/hour block 1 hour"}])
    ask(limits, client())
    denied = [ask(limits, client()) for _ in range(2)][-1]
    assert (denied.overall_code, denied.statuses[0].duration_until_reset.seconds) == (OVER_LIMIT, 3600)
    assert not denied.statuses[0].HasField("current_limit")


def test_requests_that_are_remembered_are_bounded() -> None:
    limits = service([ADDRESS])
    for number in range(MAX_REMEMBERED + 10):
        ask(limits, client(str(number)))
    ask(limits, client("long" * 1000))
    assert len(limits._matched._known) <= MAX_REMEMBERED
    assert max(map(len, limits._matched._known)) < 1100


def test_a_new_policy_of_the_file_is_in_force_from_the_next_call_on(tmp_path: Path) -> None:
    def write(text: str) -> None:
        rule = {"name": "address", "domain": "edge", "entries": ["remote_address"], "limits": text}
        (tmp_path / "new.json").write_text(json.dumps({"descriptors": [rule]}))
        (tmp_path / "new.json").replace(path)

    path = tmp_path / "policy.json"
    write("1/hour")
    file = PolicyFile(path, every=0)
    limits = EnvoyRateLimits(Engine(file))
    assert [ask(limits, client()).overall_code for _ in range(2)] == [OK, OVER_LIMIT]
    write("3/hour fixed-window")
    file.reload()
    assert ask(limits, client()).statuses[0].current_limit.requests_per_unit == 3


def test_memory_needs_no_event_loop_whatever_is_asked() -> None:
    limits = service([ADDRESS, {**LOGIN, "mode": "shadow"}], negative_hits=True)
    made = request(client(), login(), client("b"), client("c"))
    made.descriptors[2].hits_addend.value = 0
    made.descriptors[3].is_negative_hits = True
    assert isinstance(limits.methods[METHOD](GrpcCall(made.SerializeToString(), [], 0.1, None)), bytes)


def named(**changes: Any) -> dict[str, Any]:
    """A rule with a name of its own, so that tests on one server do not meet."""
    return {**ADDRESS, "name": f"a-{uuid.uuid4().hex[:8]}", **changes}


def test_redis_decides_the_same(redis_url_server: Server) -> None:
    async def run() -> list[Any]:
        rules = [named(), named(entries=["b"], limits="2/hour gcra"), named(entries=["s"], mode="shadow")]
        limits = service(rules, storage=redis_url_server.url, deadline=5.0, negative_hits=True)

        async def asked(made: Any) -> Any:
            answer = limits.methods[METHOD](GrpcCall(made.SerializeToString(), [], 5.0, None))
            return RateLimitResponse.FromString(answer if isinstance(answer, bytes) else await answer)

        both = request(client(), {"b": "x"}, {"s": "x"})
        found = [await asked(both) for _ in range(3)]
        check = request(client(), {"b": "x"})
        check.descriptors[0].hits_addend.value = check.descriptors[1].hits_addend.value = 0
        found.append(await asked(check))
        refund = request(client(), {"b": "x"})
        for descriptor in refund.descriptors:
            descriptor.is_negative_hits = True
        found += [await asked(refund), await asked(both), await asked(request(client(), client()))]
        await limits._engine.close()
        return found

    found = asyncio.run(run())
    assert [answer.overall_code for answer in found] == [OK, OK, OVER_LIMIT, OVER_LIMIT, OK, OK, OVER_LIMIT]
    assert codes(found[2]) == [OK, OVER_LIMIT, OK]
    assert [status.limit_remaining for status in found[4].statuses] == [2, 1]
    assert [status.limit_remaining for status in found[5].statuses] == [1, 0, 0]
    assert found[6].overall_code == OVER_LIMIT, "one is left for two descriptors"


@pytest.mark.parametrize("text", ["5/hour fixed-window", "5/hour gcra", "500/hour", "5/calendar-day"])
def test_redis_gives_back_and_overdraws(text: str, redis_url_server: Server) -> None:
    async def run() -> list[tuple[int, int]]:
        rules = [named(limits=text, over="charge")]
        limits = service(rules, storage=redis_url_server.url, deadline=5.0, negative_hits=True)
        found = []
        whole = 500 if text.startswith("500") else 5
        for hits, negative in ((whole - 1, False), (2, True), (whole, False), (0, False)):
            made = request(client())
            made.descriptors[0].hits_addend.value, made.descriptors[0].is_negative_hits = hits, negative
            answer = limits.methods[METHOD](GrpcCall(made.SerializeToString(), [], 5.0, None))
            assert not isinstance(answer, bytes)
            response = RateLimitResponse.FromString(await answer)
            found.append((int(response.overall_code), int(response.statuses[0].limit_remaining)))
        await limits._engine.close()
        return found

    assert asyncio.run(run()) == [(OK, 1), (OK, 3), (OVER_LIMIT, 3), (OVER_LIMIT, 0)]


def test_shared_memory_decides_the_same(zone_url: str) -> None:
    async def run() -> list[int]:
        limits = service([ADDRESS, LOGIN], storage=zone_url)
        found = []
        for made in [request(client())] * 2 + [request(client(), login())] * 2:
            answer = limits.methods[METHOD](GrpcCall(made.SerializeToString(), [], 5.0, None))
            written = answer if isinstance(answer, bytes) else await answer
            found.append(RateLimitResponse.FromString(written).overall_code)
        await limits._engine.close()
        return found

    assert asyncio.run(run()) == [OK, OK, OK, OVER_LIMIT]


@pytest.mark.parametrize(("failure", "code"), [("open", OK), ("local", OK), ("closed", 14), ("raise", 14)])
def test_without_a_storage_the_failure_mode_decides(failure: str, code: int, fresh_redis: Server) -> None:
    async def run() -> int:
        limits = service([ADDRESS, LOGIN], storage=fresh_redis.url, failure=failure, deadline=0.2)
        try:
            answer = limits.methods[METHOD](GrpcCall(request(client(), login()).SerializeToString(), [], 5.0, None))
            written = answer if isinstance(answer, bytes) else await answer
            return int(RateLimitResponse.FromString(written).overall_code)
        except GrpcError as error:
            return error.status
        finally:
            await limits._engine.close()

    fresh_redis.kill()
    assert asyncio.run(run()) == code


@pytest.mark.parametrize("by_header", [False, True])
def test_the_storage_is_waited_for_no_longer_than_envoy_waits(by_header: bool, fresh_redis: Server) -> None:
    async def run() -> GrpcError:
        limits = service([ADDRESS], storage=fresh_redis.url, deadline=60.0)
        metadata = [(b"x-envoy-expected-rq-timeout-ms", b"50")] if by_header else []
        answer = limits.methods[METHOD](
            GrpcCall(request(client()).SerializeToString(), metadata, None if by_header else 0.05, None)
        )
        assert not isinstance(answer, bytes)
        with pytest.raises(GrpcError) as caught:
            await answer
        fresh_redis.resume()
        await limits._engine.close()
        return caught.value

    fresh_redis.pause()
    assert asyncio.run(run()).status == 4


def test_a_policy_of_descriptors_alone_limits_no_request() -> None:
    policy = read_policy({"descriptors": [{**ADDRESS, "domain": "edge", "limits": "deny"}]})
    assert isinstance(policy, Policy)
    assert not policy.rules
