"""Adaptive policies: limits that are lowered while the process is overloaded."""

import asyncio
import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

from ratebound import MemoryStorage
from ratebound.adaptive import CpuUse, ErrorRate, Latency, LoopLag, Pressure
from ratebound.events import Decided, PressureChanged
from ratebound.http.denial import REDUCED_CAPACITY, longest_wait
from ratebound.lowered import LoweredLimits, configured
from ratebound.policy import AsyncGate, Gate, Override, Policy, PolicyError, PolicyFile, Rule, Verdict, read_policy
from ratebound.policy.runtime.fast_path import Asked
from ratebound.testing import FakeClock
from tests.adaptive.gauges import Gauge, lower, pressure_of
from tests.policy.gates import decide, gate_of, passes, request


class Overload:
    """A gate whose pressure a test drives by hand."""

    def __init__(self, *rules: Rule, floor: float = 0.5, **more: Any) -> None:
        self.gauge = Gauge()
        self.clock = FakeClock()
        self.pressure = pressure_of(self.gauge, floor=floor)
        listeners = more.pop("listeners", ())
        self.gate = gate_of(Policy(rules=rules, adaptive=self.pressure, **more), self.clock, listeners=listeners)

    def lower(self, samples: int = 100) -> None:
        lower(self.pressure, self.gauge, samples)

    def recover(self) -> None:
        for _ in range(400):
            self.pressure.sample()
        assert self.pressure.is_calm


@pytest.mark.parametrize(
    "limits",
    [
        "20/minute",
        "20/minute fixed-window",
        "20/minute sliding-counter",
        "20/minute burst 20",
        "20/minute leaky-bucket",
    ],
)
def test_a_lowered_rate_allows_its_part_and_keeps_its_state(limits: str) -> None:
    overload = Overload(Rule("api", limits))
    assert passes(overload.gate, request()) == 20
    overload.clock.advance(120)
    overload.lower()
    assert passes(overload.gate, request()) == 10
    overload.recover()
    left = passes(overload.gate, request())
    # A bucket that is empty stays empty. Windows count units, so the other half is left.
    assert left == (0 if "burst" in limits or "leaky" in limits else 10)


def test_slots_are_lowered_and_quotas_are_not() -> None:
    overload = Overload(Rule("slots", "4 concurrent"), Rule("quota", "30/calendar-day"))
    overload.lower()
    assert passes(overload.gate, request()) == 2
    overload = Overload(Rule("quota", "30/calendar-day; 30/day fixed-window over allow"))
    overload.lower()
    verdict = decide(overload.gate, request())
    assert verdict.decision is not None
    assert not any(isinstance(ask[1], LoweredLimits) for ask in verdict.decision.asks)


def test_a_shed_request_is_a_503_that_says_when_to_come_back() -> None:
    overload = Overload(Rule("api", "2/minute"))
    overload.lower()
    assert passes(overload.gate, request()) == 1
    waits = set()
    for _ in range(40):
        overload.clock.advance(0.000_37)
        verdict = decide(overload.gate, request())
        assert verdict.shed
        assert verdict.decision is not None
        response = verdict.policy.rejection_format.respond(verdict.decision)
        assert response.status == 503
        assert b"temporary-reduced-capacity" in response.body
        headers = dict(response.headers)
        assert "RateLimit" not in headers
        assert f'"retry_after":{headers["Retry-After"]}'.encode() in response.body
        waits.add(int(headers["Retry-After"]))
    assert waits == {2, 3, 4, 5}


def test_jitter_lengthens_the_wait_of_an_overload() -> None:
    overload = Overload(Rule("api", "20/minute"))
    overload.lower()
    assert passes(overload.gate, request()) == 10
    verdict = decide(overload.gate, request())
    assert verdict.decision is not None
    wait = longest_wait(verdict.decision, REDUCED_CAPACITY)
    assert wait is not None
    assert longest_wait(verdict.decision, REDUCED_CAPACITY, 2.0) == 2 * wait


def test_headers_tell_the_configured_quota_and_what_is_left_of_the_lowered_one() -> None:
    overload = Overload(Rule("api", "20/minute"), Rule("all", "40/minute burst 40", by="global"))
    overload.lower()
    verdict = decide(overload.gate, request())
    assert verdict.allowed
    assert verdict.decision is not None
    headers = dict(verdict.policy.response_headers.pairs(verdict.decision))
    assert headers["RateLimit-Policy"] == '"api/minute";q=20;w=60, "all/minute";q=40;w=60'
    assert headers["RateLimit"] == '"api/minute";r=9;t=60, "all/minute";r=19;t=3'  # one of 20 a minute takes 3 seconds
    assert [usage.quota for usage in overload.gate.usage(request())] == [20, 40]


def test_tiers_with_equal_limits_after_lowering_keep_their_own_headers() -> None:
    overload = Overload(Rule("api", {"pro": "20/minute", "default": "10/minute"}), tiers={"pro": ["192.0.2.9"]})
    decide(overload.gate, request())
    overload.lower()
    told = []
    for peer in ("192.0.2.1", "192.0.2.9"):
        verdict = decide(overload.gate, request(peer=peer))
        assert verdict.decision is not None
        told.append(dict(verdict.policy.response_headers.pairs(verdict.decision)))
    assert [headers["RateLimit-Policy"] for headers in told] == ['"api/minute";q=10;w=60', '"api/minute";q=20;w=60']
    assert [headers["RateLimit"] for headers in told] == ['"api/minute";r=3;t=60', '"api/minute";r=9;t=60']


def test_what_a_limit_that_is_not_lowered_denies_stays_a_429() -> None:
    overload = Overload(Rule("low", "20/minute", priority="low"), Rule("day", "3/calendar-day"))
    overload.lower()
    assert passes(overload.gate, request()) == 3
    verdict = decide(overload.gate, request())
    assert not verdict.shed
    assert verdict.decision is not None
    assert verdict.policy.rejection_format.respond(verdict.decision).status == 429


def test_a_cost_that_never_passes_stays_a_429() -> None:
    overload = Overload(Rule("api", "20/minute", cost=lambda view: 21))
    overload.lower()
    assert not decide(overload.gate, request()).shed


def test_one_request_of_the_rules_own_cost_always_passes_an_untouched_limit() -> None:
    overload = Overload(Rule("api", "20/minute", cost=15), Rule("bucket", "60/minute burst 15", cost=15), floor=0.05)
    overload.lower()
    assert passes(overload.gate, request()) == 1
    assert decide(overload.gate, request()).shed


def test_a_cost_that_a_function_finds_passes_an_untouched_limit_too() -> None:
    costs = iter([1, 15, 15, 15])
    overload = Overload(Rule("api", "20/minute", cost=lambda view: next(costs)), floor=0.05)
    overload.lower()
    assert decide(overload.gate, request()).allowed
    overload.clock.advance(60)
    assert decide(overload.gate, request()).allowed
    assert decide(overload.gate, request()).shed
    overload.clock.advance(60)
    assert decide(overload.gate, request()).allowed


def test_low_falls_before_normal_and_critical_never() -> None:
    rules = [Rule(name, "20/minute", by="global", priority=name) for name in ("low", "normal", "high", "critical")]
    overload = Overload(*rules)

    def counts() -> list[int]:
        verdict = decide(overload.gate, request())
        assert verdict.decision is not None
        return [limit.count for limit in verdict.decision.limits]

    seen = [counts()]
    for _ in range(4):
        overload.lower(1)
        seen.append(counts())
    assert seen == [[20, 20, 20, 20], [10, 20, 20, 20], [10, 10, 20, 20], [10, 10, 10, 20], [10, 10, 10, 20]]


def test_a_policy_that_has_only_normal_rules_falls_at_once() -> None:
    overload = Overload(Rule("api", "20/minute"), Rule("shadow", "5/minute", mode="shadow", priority="low"))
    overload.lower(1)
    assert overload.pressure.factors["normal"] == 0.5


def test_shadows_and_candidates_are_never_lowered() -> None:
    overload = Overload(Rule("api", "20/minute", candidate="12/minute"), Rule("shadow", "16/minute", mode="shadow"))
    overload.lower()
    verdict = decide(overload.gate, request())
    counts = [shadow.decision.limit.count for shadow in verdict.shadows if shadow.decision is not None]
    assert sorted(counts) == [12, 16]


def test_overrides_and_computed_limits_are_lowered_too() -> None:
    override = Override("192.0.2.9", "40/minute")
    overload = Overload(Rule("api", "20/minute"), overrides=[override])
    overload.lower()
    assert passes(overload.gate, request(peer="192.0.2.9")) == 20
    assert passes(overload.gate, request()) == 10


def test_a_denial_while_lowered_is_no_strike() -> None:
    overload = Overload(Rule("login", "4/minute; 2 strikes/hour block 5 minutes"))
    overload.lower()
    assert passes(overload.gate, request()) == 2
    for _ in range(5):
        overload.clock.advance(2)
        assert decide(overload.gate, request()).shed
    overload.recover()
    overload.clock.advance(120)
    assert passes(overload.gate, request()) == 4
    for _ in range(2):
        overload.clock.advance(2)
        assert not decide(overload.gate, request()).shed
    verdict = decide(overload.gate, request())
    assert verdict.decision is not None
    assert verdict.decision.blocked


def test_a_blocked_client_stays_blocked_and_is_told_so() -> None:
    overload = Overload(Rule("login", "1/minute; 1 strike/hour block 5 minutes"))
    for _ in range(2):
        decide(overload.gate, request())
    overload.lower()
    verdict = decide(overload.gate, request())
    assert verdict.decision is not None
    assert (verdict.decision.blocked, verdict.shed) == (True, False)


def test_what_was_charged_while_lowered_is_settled_and_undone_by_the_same_numbers() -> None:
    for limits in ("20/minute burst 20", "20/minute", "20/minute sliding-counter"):
        overload = Overload(Rule("api", limits))
        overload.lower()
        verdict = decide(overload.gate, request())
        overload.gate.undo(verdict)
        overload.recover()
        assert passes(overload.gate, request()) == 20


def test_a_calm_pressure_leaves_the_fast_path_open() -> None:
    overload = Overload(Rule("api", "20/minute"))
    compiled = overload.gate.current()
    assert not isinstance(compiled.straight(request(), "late"), Asked)  # nobody has begun to sample
    decide(overload.gate, request())
    assert isinstance(compiled.straight(request(), "late"), Asked)
    overload.lower()
    assert not isinstance(compiled.straight(request(), "late"), Asked)
    overload.recover()
    assert isinstance(compiled.straight(request(), "late"), Asked)


def test_lowered_limits_are_made_once_for_each_step() -> None:
    overload = Overload(Rule("api", "20/minute"))
    overload.lower()
    first, second = decide(overload.gate, request()), decide(overload.gate, request())
    assert first.decision is not None
    assert second.decision is not None
    assert first.decision.asks[0][1] is second.decision.asks[0][1]


def test_exempt_and_unmatched_requests_are_as_before() -> None:
    overload = Overload(Rule("api", "1/minute"))
    policy = read_policy("rules: [{name: a, limits: 1/minute, match: {paths: [/a]}}]\nexempt: [{paths: [/free]}]")
    overload.gate.use(Policy(rules=policy.rules, exempt=policy.exempt, adaptive=overload.pressure))
    overload.lower()
    assert decide(overload.gate, request("/free")).kind == "exempt"
    assert decide(overload.gate, request("/other")).kind == "unmatched"


def test_a_verdict_of_lowered_limits_can_be_pickled_and_copied() -> None:
    overload = Overload(Rule("api", "2/minute"))
    overload.lower()
    passes(overload.gate, request())
    decision = decide(overload.gate, request()).decision
    assert decision is not None
    for made in (pickle.loads(pickle.dumps(decision)), copy.deepcopy(decision)):
        assert made.shed
        assert configured(made.asks[0][1])[0].count == 2


def test_tasks_are_decided_alike() -> None:
    gauge = Gauge()
    pressure = pressure_of(gauge, floor=0.5)
    gate = AsyncGate(Policy(rules=[Rule("api", "20/minute")], adaptive=pressure), storage=MemoryStorage())

    async def main() -> list[Verdict]:
        lower(pressure, gauge)
        return [await gate.decide(request()) for _ in range(11)]

    verdicts = asyncio.run(main())
    assert [verdict.allowed for verdict in verdicts] == [True] * 10 + [False]
    assert verdicts[-1].shed


def test_listeners_hear_of_the_factors_and_of_what_was_shed() -> None:
    heard: list[Any] = []
    overload = Overload(Rule("api", "2/minute"), listeners=[heard.append])
    decide(overload.gate, request())
    overload.lower()
    decide(overload.gate, request())
    factors = [event.factors["normal"] for event in heard if isinstance(event, PressureChanged)]
    assert factors == [1.0, 0.5]
    assert [event.decision.shed for event in heard if isinstance(event, Decided)] == [False, True]


def test_a_reload_keeps_the_factors(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("adaptive: {latency: 500 ms}\nrules: [{name: api, limits: 20/minute}]")
    file = PolicyFile(path, every=0)
    gate = Gate(file, storage=MemoryStorage(clock=FakeClock()))
    old = gate.policy.pressure
    assert old is not None
    for _ in range(100):
        old.finished(9.0, False)
    old.sample()
    path.write_text("adaptive: {latency: 500 ms, floor: 20%}\nrules: [{name: api, limits: 40/minute}]")
    assert file.reload()
    new = gate.policy.pressure
    assert new is not old
    assert new is not None
    assert new.factors["normal"] == 0.5
    assert passes(gate, request()) == 20


def test_a_file_says_it_in_a_line() -> None:
    policy = read_policy(
        """
        adaptive: {cpu: 85%, lag: 100 ms, latency: 0.5, errors: 0.1, floor: 12%}
        rules:
          - {name: search, limits: 10/second, priority: low}
          - {name: pay, limits: 10/second, priority: critical}
          - {name: rest, limits: 10/second}
        """
    )
    assert [rule.priority for rule in policy.rules] == ["low", "critical", "normal"]
    pressure = policy.pressure
    assert pressure is not None
    assert [type(signal) for signal in pressure.signals] == [CpuUse, LoopLag, Latency, ErrorRate]
    assert pressure.floor == pytest.approx(0.15)
    assert Policy(rules=policy.rules, adaptive={"errors": "10%"}).pressure is not None
    assert Policy(rules=policy.rules).pressure is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("adaptive: 85%", "adaptive: expected a mapping like {cpu: 85%, latency: 500 ms}, or a Pressure, not '85%'"),
        ("adaptive: {}", "adaptive: expected at least one signal: cpu, lag, latency, errors; for example 'cpu: 85%'"),
        ("adaptive: {floor: 10%}", "adaptive: expected at least one signal"),
        ("adaptive: {cpu: 85}", "adaptive.cpu: expected a share like '85%' or 0.85, above 0 and at most 100%, not 85"),
        ("adaptive: {cpu: 120%}", "adaptive.cpu: expected a share like '85%' or 0.85"),
        ("adaptive: {cpu: true}", "adaptive.cpu: expected a share"),
        ("adaptive: {errors: 0%}", "adaptive.errors: expected a share"),
        ("adaptive: {latency: soon}", "adaptive.latency: cannot read 'soon'"),
        ("adaptive: {lag: 100}", "adaptive.lag: 100 is 100 seconds: write the unit, like '100 ms' or '100 seconds'"),
        ("adaptive: {latency: 500}", "adaptive.latency: 500 is 500 seconds: write the unit, like '500 ms'"),
        ("concurrent: automatic", "concurrent: expected 'auto', or a mapping with least, most, first, not 'automatic'"),
        ("concurrent: 100", "for a fixed number write '100 concurrent' in a rule with 'by: global'"),
        ("concurrent: {max: 5}", "concurrent: unknown key 'max': expected one of first, least, most"),
        ("concurrent: {last: 5}", "concurrent: unknown key 'last': did you mean 'least'?"),
        ("adaptive: {lag: 0}", "adaptive.lag: expected more than 0 and at most an hour, like '500 ms', not 0"),
        ("adaptive: {cpu: 85%, floor: -1}", "adaptive.floor: expected a share"),
        ("adaptive: {cpus: 85%}", "adaptive.cpus: unknown key 'cpus': did you mean 'cpu'?"),
    ],
)
def test_errors_of_a_file_say_what_to_write(text: str, expected: str) -> None:
    with pytest.raises(PolicyError) as raised:
        read_policy(f"{text}\nrules: [{{name: api, limits: 1/minute}}]")
    assert expected in str(raised.value)


def test_errors_are_reported_together() -> None:
    with pytest.raises(PolicyError) as raised:
        read_policy("adaptive: {cpu: 2, lag: x}\nrules: [{name: api, limits: 1/minute, priority: urgent}]")
    assert [problem.where for problem in raised.value.problems] == [
        "adaptive.cpu",
        "adaptive.lag",
        "rules[0].priority",
    ]


def test_two_policies_may_share_a_pressure() -> None:
    gauge = Gauge()
    pressure = pressure_of(gauge, floor=0.5)
    gates = [gate_of(Policy(rules=[Rule("api", "20/minute")], adaptive=pressure)) for _ in range(2)]
    lower(pressure, gauge)
    assert [passes(gate, request()) for gate in gates] == [10, 10]
    assert isinstance(pressure, Pressure)
