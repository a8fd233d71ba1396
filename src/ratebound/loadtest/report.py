"""The report of a load test: the verdict on every check, and the figures behind it."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ratebound.clock import SECOND
from ratebound.limit import Limit
from ratebound.loadtest.answer import Answer
from ratebound.loadtest.assertion import Assertion
from ratebound.loadtest.bounds import can_be_judged, contradictions
from ratebound.loadtest.check import FAIL, PASS, UNKNOWN, LoadCheck
from ratebound.loadtest.cost import answers_in_requests, limit_in_requests
from ratebound.loadtest.expected_limit import (
    ExpectedLimits,
    can_be_meant,
    limits_of_headers,
    told_quotas,
    told_words,
)
from ratebound.loadtest.fairness import Fairness, fairness_check, fairness_of
from ratebound.loadtest.found_limit import FoundLimit, find_limit
from ratebound.loadtest.judge import EVERYONE, REFUSED, TOLERANCE, ClientVerdict, judge_clients, spans_by_client
from ratebound.loadtest.latency import SHARES, Latencies, latencies_of
from ratebound.loadtest.run import LoadRun
from ratebound.loadtest.truthful import ClientAnswers, truthful_checks

BARS = 60  # of the picture over time, at most
ERROR_SHARE = 0.01  # a larger share of errors is a failure
MOST_CLIENTS = 1_000  # in JSON
KEPT = "The limit was kept"


class LoadBin(NamedTuple):
    """The answers of one stretch of time, which begins `begin` seconds after the start."""

    begin: float
    granted: int
    refused: int
    errors: int


class LoadReport(NamedTuple):
    """Everything that a load test has shown."""

    target: str  # method and URL, without its query
    load: str
    started: float  # Unix time
    elapsed: float
    clients: int
    sent: int
    statuses: dict[int, int]
    errors: dict[str, int]
    expected: ExpectedLimits
    told: str
    found: FoundLimit
    shared: bool
    verdicts: list[ClientVerdict]
    checks: list[LoadCheck]
    latencies: Latencies
    fairness: Fairness
    timeline: list[LoadBin]
    bin_seconds: float
    late: float  # the delay of the sender that 99 % of the requests did not exceed, in seconds
    notes: tuple[str, ...]

    @property
    def granted(self) -> int:
        """The number of granted requests."""
        return sum(verdict.granted for verdict in self.verdicts)

    @property
    def refused(self) -> int:
        """The number of refused requests."""
        return sum(verdict.refused for verdict in self.verdicts)

    @property
    def exit_status(self) -> int:
        """0: all checks passed. 1: one failed. 3: the test cannot say whether the limit was kept."""
        if any(check.outcome == FAIL for check in self.checks):
            return 1
        return 3 if any(check.outcome == UNKNOWN and check.name in DECISIVE for check in self.checks) else 0

    @property
    def verdict(self) -> str:
        """The whole result in one word."""
        return {0: PASS, 1: FAIL}.get(self.exit_status, UNKNOWN)


ANSWERED = "The server answered"
ON_TIME = "The load was sent on time"
DECISIVE = (KEPT, ANSWERED, ON_TIME)


def make_report(
    run: LoadRun,
    *,
    limits: Sequence[Limit] = (),
    shared: bool = False,
    refused: frozenset[int] = REFUSED,
    assertions: Sequence[Assertion] = (),
    load: str = "",
    cost: int = 1,
) -> LoadReport:
    """Judge a run. Without `limits`, those that the server's headers name are expected.

    `shared` is True if all clients share the limits. `refused` are the statuses that mean a refusal. The server charges
    `cost` units for each request; the report counts requests. Raises InvalidLimit if a limit cannot be counted so.
    """
    limits = [limit_in_requests(limit, cost) for limit in limits]
    answers = list(run.answers if cost == 1 else answers_in_requests(run.answers, cost))
    seen = spans_by_client(answers, refused=refused, shared=shared)
    found = find_limit(seen, started=run.started)
    quotas = told_quotas(answers)
    expected = ExpectedLimits(tuple(limits), "--limit") if limits else limits_of_headers(quotas, found, seen)
    judged = [limit for limit in expected.limits if can_be_judged(limit)]
    verdicts = judge_clients(judged, seen) if judged else _unjudged(seen)
    if not limits:
        verdicts = [
            one._replace(settled=one.settled and not can_be_meant(quotas, seen[one.client])) if one.is_wrong else one
            for one in verdicts
        ]
    by_client = spans_by_client(answers, refused=refused) if shared else seen
    fairness = fairness_of(by_client)
    latencies = latencies_of(answers, refused)
    statuses = Counter(answer.status for answer in answers if answer.status)
    errors = Counter(answer.error for answer in answers if not answer.status)
    used = [spans for spans in seen.values() if spans.used_before]
    fresh = not used
    got_all = any(
        spans.refused and not contradictions(judged, spans._replace(used_before=0)).total for spans in used if judged
    )
    checks = [
        _answered(statuses, errors, refused),
        _on_time(run),
        _kept(expected, judged, verdicts, fresh=fresh, is_told=not limits),
        *_headers_agree(limits, quotas, told_words(quotas)),
        *truthful_checks(list(_by_client(answers, refused, shared)), limits, fresh=fresh, got_all=got_all),
        fairness_check(fairness, len(by_client)),
    ]
    figures = _figures(latencies, fairness, verdicts, sum(errors.values()), run.sent)
    checks += [assertion.check(figures) for assertion in assertions]
    bins, length = _timeline(answers, refused)
    return LoadReport(
        _target(run),
        load if cost == 1 else f"{load}, {cost} units each: limits are shown in requests",
        run.started,
        run.elapsed,
        run.plan.clients.count,
        run.sent + run.probes,
        dict(sorted(statuses.items())),
        dict(sorted(errors.items())),
        expected,
        told_words(quotas),
        found,
        shared,
        verdicts,
        checks,
        latencies,
        fairness,
        bins,
        length,
        run.delay.p99,
        run.notes,
    )


def _target(run: LoadRun) -> str:
    """Return the first URL without its query, which may hold secrets."""
    first = run.plan.targets[0]
    parts = urlsplit(first.url)
    more = f" and {len(run.plan.targets) - 1} more" if len(run.plan.targets) > 1 else ""
    return f"{first.method} {parts.scheme}://{parts.netloc}{parts.path}{more}"


def _unjudged(seen: dict[int, Any]) -> list[ClientVerdict]:
    """Return counts without a judgement."""
    return [
        ClientVerdict(
            client,
            len(spans.granted),
            len(spans.refused),
            len(spans.unknown),
            at_least=0,
            at_most=len(spans.granted) + len(spans.refused),
            too_many=0,
            too_few=0,
            settled=False,
            evidence=(),
        )
        for client, spans in seen.items()
    ]


def _by_client(answers: Sequence[Answer], refused: frozenset[int], shared: bool) -> Iterator[ClientAnswers]:
    found: dict[int, list[Answer]] = {}
    for answer in answers:
        found.setdefault(EVERYONE if shared else answer.client, []).append(answer)
    for client, theirs in sorted(found.items()):
        yield ClientAnswers(client, theirs, refused, TOLERANCE)


def _answered(statuses: Counter[int], errors: Counter[str], refused: frozenset[int]) -> LoadCheck:
    answered = sum(statuses.values())
    failed = sum(many for status, many in statuses.items() if status >= 500 and status not in refused)
    failed += sum(errors.values())
    kinds = [f"{many:,} x {kind}" for kind, many in errors.most_common()]
    kinds += [f"{many:,} x {status}" for status, many in statuses.items() if status >= 500 and status not in refused]
    if not answered:
        return LoadCheck(ANSWERED, UNKNOWN, f"no request was answered ({', '.join(kinds) or 'none was sent'})")
    if failed > ERROR_SHARE * (answered + sum(errors.values())):
        return LoadCheck(ANSWERED, FAIL, f"{failed:,} errors: {', '.join(kinds)}")
    shown = ", ".join(f"{many:,} x {status}" for status, many in sorted(statuses.items()))
    return LoadCheck(ANSWERED, PASS, shown + (f"; {failed} errors: {', '.join(kinds)}" if failed else ""))


def _on_time(run: LoadRun) -> LoadCheck:
    late = f"99 % were sent within {run.delay.p99 * 1000:.1f} ms of their due time"
    if run.kept_schedule:
        return LoadCheck(ON_TIME, PASS, late)
    return LoadCheck(ON_TIME, UNKNOWN, f"this machine is too slow for the load: {late}. Lower --rate")


def _kept(
    expected: ExpectedLimits, judged: Sequence[Limit], verdicts: Sequence[ClientVerdict], *, fresh: bool, is_told: bool
) -> LoadCheck:
    if not expected.limits:
        return LoadCheck(KEPT, UNKNOWN, expected.source)
    others = [limit for limit in expected.limits if limit not in judged]
    if others:
        names = ", ".join(limit.text for limit in others)
        return LoadCheck(KEPT, UNKNOWN, f"only rates can be judged, and {names} is none")
    if not any(verdict.granted or verdict.refused for verdict in verdicts):
        return LoadCheck(KEPT, UNKNOWN, "no request was granted or refused")
    if not any(verdict.granted for verdict in verdicts):
        why = "every request was refused: the limit was used up before the test, or the server refuses everything"
        return LoadCheck(KEPT, UNKNOWN, f"{why}. Wait for one period, and test again")
    wrong = [verdict for verdict in verdicts if verdict.is_wrong]
    certain = [verdict for verdict in wrong if verdict.settled]
    text = limit_words(expected.limits)
    granted = sum(verdict.granted for verdict in verdicts)
    examples = [
        f"{client_name(verdict.client)}: {evidence}" for verdict in certain or wrong for evidence in verdict.evidence
    ][:4]
    if certain:
        many, few = sum(verdict.too_many for verdict in certain), sum(verdict.too_few for verdict in certain)
        said = [f"{many:,} too many"] * bool(many) + [f"{few:,} too few"] * bool(few)
        who = f"for {len(certain)} of {len(verdicts)} clients" if verdicts[0].client != EVERYONE else "in all"
        return LoadCheck(KEPT, FAIL, f"{text}: {' and '.join(said)} {who}", tuple(examples))
    if wrong:
        why = "the bounds of measurement leave it open whether the limit was kept"
        if is_told:
            why = "the headers leave it open which limit was to be kept: give it with --limit"
        return LoadCheck(KEPT, UNKNOWN, f"{text}: {why}", tuple(examples))
    if not any(verdict.refused for verdict in verdicts):
        return LoadCheck(
            KEPT, UNKNOWN, f"{text} was not reached: nothing was refused. Raise --rate, or test for longer"
        )
    least, most = sum(verdict.at_least for verdict in verdicts), sum(verdict.at_most for verdict in verdicts)
    used = "" if fresh else "; it was in use before the test"
    waits = [verdict.longest_wait for verdict in verdicts if verdict.longest_wait is not None]
    if waits:
        used += f"; what would have waited longer than about {min(waits):.3g} s was refused"
    who = f" for each of {len(verdicts)} clients" if len(verdicts) > 1 else ""
    allowed = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    return LoadCheck(KEPT, PASS, f"{text}{who}: granted {granted:,}, allowed {allowed}{used}")


def limit_words(limits: Sequence[Limit]) -> str:
    """Return limits in the notation, with the algorithm of each."""
    texts = [limit.text for limit in limits]
    return "; ".join(
        text if limit.algorithm in text else f"{text} {limit.algorithm}"
        for text, limit in zip(texts, limits, strict=True)
    )


def client_name(client: int) -> str:
    """Return a client in words."""
    return "all clients" if client == EVERYONE else f"client {client}"


def _headers_agree(limits: Sequence[Limit], quotas: Sequence[Any], told: str) -> Iterator[LoadCheck]:
    """Compare the configured limits with those that the headers name, if both are known."""
    name = "The headers name the limit"
    if not limits or not quotas:
        return
    given = [(limit.burst, -(-limit.refill_us // SECOND)) for limit in limits]
    text = limit_words(limits)
    for quota in quotas:
        if not any(quota.limit == burst and quota.window in (None, window) for burst, window in given):
            yield LoadCheck(name, FAIL, f"they say {told}; configured is {text}")
            return
    yield LoadCheck(name, PASS, told)


def _figures(
    latencies: Latencies, fairness: Fairness, verdicts: Sequence[ClientVerdict], errors: int, sent: int
) -> dict[str, float]:
    counts = {
        "granted": float(sum(verdict.granted for verdict in verdicts)),
        "refused": float(sum(verdict.refused for verdict in verdicts)),
        "errors": float(errors),
        "sent": float(sent),
        "jain": fairness.jain,
    }
    return {**(latencies.answered.figures() if latencies.answered.answers else {}), **counts}


def _timeline(answers: Sequence[Answer], refused: frozenset[int]) -> tuple[list[LoadBin], float]:
    """Return the answers by the time at which they came, and the length of one stretch in seconds."""
    end = max((answer.done for answer in answers), default=0.0)
    length = next((step for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60) if end / step <= BARS), end / BARS or 1.0)
    counts = [[0, 0, 0] for _ in range(math.floor(end / length) + 1)]
    for answer in answers:
        kind = 1 if answer.status in refused else 0 if 0 < answer.status < 500 else 2
        counts[math.floor(answer.done / length)][kind] += 1
    return [LoadBin(place * length, *three) for place, three in enumerate(counts)], length


def report_json(report: LoadReport) -> str:
    """Return a report as JSON."""
    found = report.found
    shape = {
        "verdict": report.verdict,
        "exit_status": report.exit_status,
        "target": report.target,
        "load": report.load,
        "started": round(report.started, 3),
        "elapsed": round(report.elapsed, 3),
        "clients": report.clients,
        "sent": report.sent,
        "granted": report.granted,
        "refused": report.refused,
        "statuses": {str(status): many for status, many in report.statuses.items()},
        "errors": report.errors,
        "checks": [check._asdict() for check in report.checks],
        "limit": {
            "expected": [str(limit) for limit in report.expected.limits],
            "source": report.expected.source,
            "headers": report.told,
            "found": [str(limit) for limit in found.limits],
            "found_in_words": found.words,
        },
        "shared": report.shared,
        "verdicts": [
            {**verdict._asdict(), "words": verdict.words} for verdict in worst_first(report.verdicts)[:MOST_CLIENTS]
        ],
        "latency_seconds": {
            "granted": report.latencies.granted.figures(),
            "refused": report.latencies.refused.figures(),
            "all": report.latencies.answered.figures(),
        },
        "fairness": report.fairness._asdict(),
        "sender_late_p99_seconds": report.late,
        "notes": list(report.notes),
    }
    return json.dumps(shape, indent=2, ensure_ascii=False)


def worst_first(verdicts: Sequence[ClientVerdict]) -> list[ClientVerdict]:
    """Return the verdicts with the most answers that contradict the limits first."""
    return sorted(verdicts, key=lambda verdict: -(verdict.too_many + verdict.too_few))


def milliseconds(seconds: float) -> str:
    """Return a latency with three digits."""
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def summary(report: LoadReport) -> str:
    """Return the report as text, one line for each check."""
    lines = [f"{report.target}: {report.load}, {report.clients} clients, {report.elapsed:.1f} s"]
    lines.append(
        f"{report.sent:,} requests: {report.granted:,} granted, {report.refused:,} refused,"
        f" {sum(report.errors.values()):,} without an answer"
    )
    lines.append("")
    lines += [f"{check.outcome:<7}  {check.name}: {check.why}" for check in report.checks]
    examples = [example for check in report.checks if check.outcome != PASS for example in check.examples]
    if examples:
        lines += ["", "Examples:", *(f"  {example}" for example in examples)]
    lines += ["", "Limit"]
    if report.expected.limits:
        text = limit_words(report.expected.limits)
        lines.append(f"  expected: {text} ({report.expected.source})")
    lines.append(f"  headers:  {report.told or 'none'}")
    lines.append(f"  found:    {report.found.words}")
    lines += ["", "Latency     " + "".join(f"{name:>9}" for name in (*SHARES, "max"))]
    for name, figures in (("granted", report.latencies.granted), ("refused", report.latencies.refused)):
        if figures.answers:
            lines.append(f"  {name:<10}" + "".join(f"{milliseconds(value):>9}" for value in figures.figures().values()))
    lines += [f"Note: {note}" for note in report.notes]
    lines += ["", f"{report.verdict}: {_conclusion(report)}"]
    return "\n".join(lines)


def _conclusion(report: LoadReport) -> str:
    failed = [check.name for check in report.checks if check.outcome == FAIL]
    if failed:
        return f"{len(failed)} of {len(report.checks)} checks failed"
    if report.exit_status:
        names = [check.name for check in report.checks if check.outcome == UNKNOWN and check.name in DECISIVE]
        return f"it cannot be said: {', '.join(name.lower() for name in names)}"
    open_ones = sum(check.outcome == UNKNOWN for check in report.checks)
    return "no check failed" + (f"; {open_ones} had nothing to look at" if open_ones else "")
