"""A policy's gate in memory: the cost of a whole request, and of many rules.

A request is a new RequestView with the headers of a browser. The gate finds the client's address behind a trusted
proxy, verifies an API key, matches the rules, decides and writes the header fields of the response. It is compared with
a hit of limits' fixed window, which our own core cannot change, and beside a bare `Limiter.hit` with one limit of the
same algorithm. Rules differ by their paths, and then by each other condition of a match. CPU time, interleaved; ratios
are within each round.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks.builds import BUILDS, PURE, Done, Worker
from benchmarks.contenders import Rate, limits_hit
from benchmarks.measure import Block, Case, Contender, Spread, Times, counting, measure, ratios, spread, steps_of
from benchmarks.verdict import Verdict, at_most
from ratebound import Limiter
from ratebound.policy import Gate, Identity, Match, Policy, RequestView, Rule, Source

MOST_PEER, MOST_MANY = 5.5, 1.5
LIMIT = "1000000/minute"
PEER = limits_hit("FixedWindow", Rate(1_000_000, "minute"))
HEADERS = [
    ("host", "api.example.com"),
    ("user-agent", "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36"),
    ("accept", "application/json"),
    ("accept-language", "en"),
    ("accept-encoding", "gzip, br"),
    ("x-forwarded-for", "198.51.100.7, 10.1.2.3"),
]
BARE, WHOLE = "a bare Limiter.hit", "identity, match, decision and header text"
FEW, MANY = "10 rules", "1000 rules"
# What tells the rules apart: the matches of those that no request here meets, and the match of the one that all meet.
KINDS: dict[str, tuple[Callable[[int], Match], Match]] = {
    "path": (
        lambda n: Match(paths=(f"/v1/things-{n}/{{id}}",), methods=("GET", "POST")),
        Match(paths=("/v1/orders/{id}",), methods=("GET",)),
    ),
    "part of a path": (lambda n: Match(paths=(f"/v1/{{x}}-{n}/{{id}}",)), Match(paths=("/v1/{x}ders/{id}",))),
    "method": (lambda n: Match(methods=(f"M{n}",)), Match(methods=("GET",))),
    "host": (lambda n: Match(hosts=(f"h{n}.example.com",)), Match(hosts=("api.example.com",))),
    "range": (
        lambda n: Match(addresses=(f"10.{n // 250}.{n % 250}.0/24",)),
        Match(addresses=("198.51.100.0/24",)),
    ),
    "header that is there": (lambda n: Match(headers={f"x-flag-{n}": True}), Match(headers={"accept-language": True})),
    "value of a header": (
        lambda n: Match(headers={"accept": f"application/x-{n}"}),
        Match(headers={"accept": "application/json"}),
    ),
    "begin of a header": (
        lambda n: Match(headers={"user-agent": f"agent-{n}/*"}),
        Match(headers={"user-agent": "Mozilla/*"}),
    ),
    "words in a header": (
        lambda n: Match(headers={"user-agent": f"*robot-{n};*"}),
        Match(headers={"user-agent": "*Linux*"}),
    ),
}


def _policy(rules: int, kind: str) -> Policy:
    """Return a policy with rules that match no request here, and in their middle one that matches all."""
    other, met = KINDS[kind]
    others = [Rule(f"rule-{number}", "50/minute", match=other(number)) for number in range(rules - 1)]
    orders = Rule("orders", LIMIT, match=met)
    middle = len(others) // 2
    return Policy(
        rules=[*others[:middle], orders, *others[middle:]],
        by=("api-key", "address"),
        identities={"api-key": Source(header="x-api-key", verify=lambda key: Identity("client", key))},
        trusted=("10.0.0.0/8",),
    )


def _bare() -> Block:
    hit = Limiter(LIMIT).hit
    return counting(lambda key: hit(key).allowed)


def _whole(rules: int, kind: str) -> Block:
    gate = Gate(_policy(rules, kind))
    decide, fields = gate.decide, gate.policy.response_headers.pairs

    def allows(key: str) -> bool:
        headers = [*HEADERS, ("x-api-key", key)]
        verdict = decide(
            RequestView("GET", f"/v1/orders/{key}", headers=headers, peer="10.1.2.4", host="api.example.com")
        )
        return verdict.decision is not None and bool(fields(verdict.decision)) and verdict.allowed

    return counting(allows)


def _contender(how: str, make: Callable[[], Block], builds: tuple[str, ...] = BUILDS) -> Contender:
    return Contender("gate:", how, "", make, builds)


def _label(rules: str, kind: str) -> str:
    return f"{WHOLE}, {rules} by {kind}"


CASES = (
    Case(
        "gate",
        [
            PEER,
            _contender(BARE, _bare),
            *(
                _contender(_label(rules, kind), partial(_whole, count, kind), BUILDS if kind == "path" else (PURE,))
                for kind in KINDS
                for rules, count in ((FEW, 10), (MANY, 1_000))
            ),
        ],
    ),
)


@dataclass(slots=True)
class Gating:
    """The results: CPU seconds per request."""

    times: Times = field(default_factory=dict)

    def verdicts(self) -> list[Verdict]:
        """Return one verdict for each required value that was measured."""
        times = self.times.get(PURE)
        if times is None:
            return []
        whole = spread(ratios(times[PEER.name], times[f"gate: {_label(MANY, 'path')}"]))
        more = {
            kind: spread(ratios(times[f"gate: {_label(FEW, kind)}"], times[f"gate: {_label(MANY, kind)}"]))
            for kind in KINDS
        }
        what = f"gate, {MANY}: times a hit of {PEER.name}"
        return [
            Verdict(PURE, what, f"below {MOST_PEER:g}", whole, whole.median < MOST_PEER),
            *(
                at_most(PURE, f"gate: {MANY} in times {FEW}, by {kind}", MOST_MANY, found)
                for kind, found in more.items()
            ),
        ]

    def rows(self) -> list[tuple[str, str, Spread, Spread]]:
        """Return (build, contender, CPU seconds per request, times a hit of limits)."""
        return [
            (build, who, spread(seconds), spread(ratios(times[PEER.name], seconds)))
            for build, times in self.times.items()
            for who, seconds in times.items()
        ]

    def as_json(self) -> list[dict[str, Any]]:
        """Return the results for the JSON file."""
        return [
            {"build": build, "who": who, "time": time._asdict(), "times_limits_hit": peer._asdict()}
            for build, who, time, peer in self.rows()
        ]


def steps(builds: Sequence[str], rounds: int) -> int:
    """Return how many times `done` is called."""
    return sum(steps_of(case, builds, rounds) for case in CASES)


def measure_gate(workers: Sequence[Worker], rounds: int, each: int, done: Done) -> Gating:
    """Measure the gate."""
    return Gating(measure(__name__, CASES[0], workers, rounds, each, done))
