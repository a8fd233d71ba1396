"""A policy's gate in memory: the cost of a whole request, and of many rules.

A request is a new RequestView with the headers of a browser. The gate finds the client's address behind a trusted
proxy, verifies an API key, matches the rules, decides and writes the header fields of the response. The bare
`Limiter.hit` has one limit of the same algorithm. Rules differ by their paths, and then by each other condition of a
match. CPU time, interleaved; ratios are within each round.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from benchmarks.contenders import Block, Contender, counting
from benchmarks.measure import Case, Done, Spread, measure, ratios, spread
from ratebound import Limiter
from ratebound.policy import Gate, Identity, Match, Policy, RequestView, Rule, Source

MOST_BARE, MOST_MANY = 15.0, 1.5
LIMIT = "1000000/minute"
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


class Judged(NamedTuple):
    """A required value, the measured one, and the verdict."""

    what: str
    threshold: str
    found: Spread
    passed: bool


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


def _contender(how: str, make: Callable[[], Block]) -> Contender:
    return Contender("gate:", how, "", make)


def _label(rules: str, kind: str) -> str:
    return f"{WHOLE}, {rules} by {kind}"


CASE = Case(
    "gate",
    [
        _contender(BARE, _bare),
        *(
            _contender(_label(rules, kind), partial(_whole, count, kind))
            for kind in KINDS
            for rules, count in ((FEW, 10), (MANY, 1_000))
        ),
    ],
)


@dataclass(slots=True)
class Gating:
    """The results: CPU seconds per request."""

    times: dict[str, list[float]] = field(default_factory=dict)  # CPU seconds per request of every round, by who

    def of(self, how: str) -> list[float]:
        """Return the times of one contender."""
        return self.times[f"gate: {how}"]

    def verdicts(self) -> list[Judged]:
        """Return one verdict for each required value."""
        if not self.times:
            return []
        bare = spread(ratios(self.of(BARE), self.of(_label(MANY, "path"))))
        more = {kind: spread(ratios(self.of(_label(FEW, kind)), self.of(_label(MANY, kind)))) for kind in KINDS}
        return [
            Judged(f"gate, {MANY}: times {BARE}", f"below {MOST_BARE:g}", bare, bare.median < MOST_BARE),
            *(
                Judged(f"gate: {MANY} in times {FEW}, by {kind}", f"at most {MOST_MANY:g}", found, passed)
                for kind, found in more.items()
                for passed in (found.median <= MOST_MANY,)
            ),
        ]

    def rows(self) -> list[tuple[str, Spread, Spread]]:
        """Return (contender, CPU seconds per request, times a bare hit)."""
        return [(who, spread(times), spread(ratios(self.of(BARE), times))) for who, times in self.times.items()]

    def as_json(self) -> list[dict[str, Any]]:
        """Return the results for the JSON file."""
        return [{"who": who, "time": time._asdict(), "times_bare": bare._asdict()} for who, time, bare in self.rows()]


def steps(rounds: int) -> int:
    """Return how many times `done` is called."""
    return rounds * len(CASE.contenders)


def measure_gate(gating: Gating, rounds: int, each: int, done: Done) -> None:
    """Measure the gate and add the times to `gating`."""
    gating.times = measure(CASE, rounds, each, done)
