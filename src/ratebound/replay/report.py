"""The result of a replay: plain values, and JSON. Names of clients and paths are as the log has them, so
texts that show them must escape them."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ratebound.replay.engine import PolicyRun
from ratebound.replay.entry import MalformedLine
from ratebound.replay.instant_text import time_text
from ratebound.replay.judged_policy import Unjudged, counts_by_user
from ratebound.replay.log_replay import LogReplay
from ratebound.replay.outcome_counts import ClientCounts
from ratebound.replay.read_log import LogReader
from ratebound.replay.suggest import Suggestion, suggest

SCHEMA = 1  # of the JSON: fields may be added, but none changes its meaning without a new number
TOP = 10
SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE


class LimitOutcome(NamedTuple):
    """The answers of one limit, or of a whole rule if `limit` is empty. A `shadow` denies nothing: its denials are what
    it would have denied."""

    rule: str
    limit: str
    shadow: bool
    allowed: int
    denied: int


class PolicyOutcome(NamedTuple):
    """The decisions of one policy. `kinds` has the number of requests by how they were decided."""

    name: str
    allowed: int
    denied: int
    kinds: Mapping[str, int]
    rules: tuple[LimitOutcome, ...]
    limits: tuple[LimitOutcome, ...]
    unjudged: tuple[Unjudged, ...]
    notes: tuple[str, ...]


class ClientOutcome(NamedTuple):
    """The requests of a client. Times are ISO 8601; "" if there is none. Counts may miss up to `missed` requests and
    `missed_denied` denials."""

    client: str
    requests: int
    denied: int
    denied_before: int
    newly_denied: int
    freed: int
    shadow_denied: int
    first_denied: str
    last_denied: str
    denied_seconds: float
    missed: int
    missed_denied: int


class EndpointOutcome(NamedTuple):
    """The requests to an endpoint."""

    endpoint: str
    requests: int
    denied: int
    denied_before: int
    shadow_denied: int


class TimeOutcome(NamedTuple):
    """The requests from one instant on."""

    start: str
    requests: int
    denied: int
    denied_before: int
    shadow_denied: int


class ReplayReport(NamedTuple):
    """The result of a replay. `policy` is None without one, `before` unless two policies are compared.

    `refused` are requests that were answered 429 already; `skipped` says that they were left out. `statuses` are those
    of denied requests in the log. `clients` is an estimate if `is_estimate`.
    """

    files: tuple[str, ...]
    format: str
    lines: int
    malformed: int
    samples: tuple[MalformedLine, ...]
    late: int
    warnings: tuple[str, ...]
    requests: int
    empty: int
    refused: int
    skipped: bool
    spread: bool
    first: str
    last: str
    clients: int
    denied_clients: int
    is_estimate: bool
    policy: PolicyOutcome | None
    before: PolicyOutcome | None
    newly_denied: int
    freed: int
    shadow_denied: int
    statuses: Mapping[str, int]
    top: tuple[ClientOutcome, ...]
    others: ClientOutcome
    newly_denied_clients: tuple[ClientOutcome, ...]
    freed_clients: tuple[ClientOutcome, ...]
    endpoints: tuple[EndpointOutcome, ...]
    bucket_seconds: int
    timeline: tuple[TimeOutcome, ...]
    suggestion: Suggestion | None

    @property
    def denied_share(self) -> float:
        """The share of the requests that the policy denies; 0 without a policy."""
        return 0.0 if self.policy is None or not self.requests else self.policy.denied / self.requests


class GivenPolicy(NamedTuple):
    """A policy at work, the name of its file, and what it cannot judge."""

    name: str
    run: PolicyRun
    unjudged: Sequence[Unjudged]


def _short_log(replay: LogReplay) -> Iterator[str]:
    """Warn if limits are suggested for an hour that the log does not cover."""
    covered = replay.last - replay.first
    if replay.peaks is not None and 0 <= covered < HOUR:
        length = f"{covered // MINUTE} min" if covered >= MINUTE else f"{covered // SECOND} s"
        yield (
            f"The log covers {length}, less than an hour. So the figures for one hour are too low:"
            " suggest limits from a log of a day or more."
        )


def make_report(
    reader: LogReader,
    replay: LogReplay,
    *,
    files: Sequence[str],
    policy: GivenPolicy | None = None,
    before: GivenPolicy | None = None,
    skipped: bool = False,
    spread: bool = True,
    top: int = TOP,
) -> ReplayReport:
    """Return the result of a replay that has ended. `top` is how many clients and endpoints it names."""
    clients = replay.clients
    known = list(clients.by_name.values())
    endpoints = sorted(replay.endpoints(), key=lambda one: (-one.denied, -one.requests, one.name))
    return ReplayReport(
        tuple(files),
        reader.format,
        reader.lines,
        reader.malformed,
        tuple(reader.samples),
        reader.late,
        (*reader.warnings, *_short_log(replay)),
        replay.requests,
        replay.empty,
        replay.refused,
        skipped,
        spread and reader.resolution >= SECOND,
        time_text(replay.first),
        time_text(replay.last),
        clients.clients,
        clients.denied_clients,
        bool(clients.dropped),
        _policy(policy, replay, replay.denied),
        _policy(before, replay, replay.denied_before),
        replay.newly_denied,
        replay.freed,
        replay.shadow_denied,
        {str(status) if status else "none": many for status, many in sorted(replay.statuses.items())},
        _top(known, top, lambda one: (one.denied, one.shadow_denied, one.requests)),
        client_outcome(clients.others),
        _top([one for one in known if one.newly_denied], top, lambda one: (one.newly_denied, one.requests)),
        _top([one for one in known if one.freed], top, lambda one: (one.freed, one.requests)),
        tuple(
            EndpointOutcome(one.name, one.requests, one.denied, one.denied_before, one.shadow_denied)
            for one in endpoints[:top]
        ),
        replay.timeline.width // SECOND,
        tuple(
            TimeOutcome(time_text(one.start), one.requests, one.denied, one.denied_before, one.shadow_denied)
            for one in replay.timeline.ordered()
        ),
        None if replay.peaks is None else suggest(replay.peaks, clients),
    )


def _top(
    clients: Sequence[ClientCounts], many: int, weight: Callable[[ClientCounts], tuple[int, ...]]
) -> tuple[ClientOutcome, ...]:
    ranked = sorted(clients, key=lambda one: ([-part for part in weight(one)], one.name))
    return tuple(map(client_outcome, ranked[:many]))


def client_outcome(client: ClientCounts) -> ClientOutcome:
    """Return the counts of a client as plain values."""
    return ClientOutcome(
        client.name,
        client.requests,
        client.denied,
        client.denied_before,
        client.newly_denied,
        client.freed,
        client.shadow_denied,
        time_text(client.first_denied),
        time_text(client.last_denied),
        client.denied_us / SECOND,
        client.missed,
        client.missed_denied,
    )


def _policy(given: GivenPolicy | None, replay: LogReplay, denied: int) -> PolicyOutcome | None:
    if given is None:
        return None
    run = given.run
    rules, limits = run.tallies()
    notes = []
    by_user = counts_by_user(run.policy)
    if by_user and not replay.users:
        notes.append(
            f"The log has no users, so these rules counted clients by address: {', '.join(by_user)}. If a field has the"
            " user, name it with --user-field."
        )
    by_host = [rule.name for rule in run.policy.rules if rule.match.hosts]
    if by_host and replay.requests and not replay.hosts:
        notes.append(
            f"The log has no hosts, so these rules matched nothing: {', '.join(by_host)}. Log it, for example with"
            " nginx's $host, and give the format."
        )
    if run.policy.tier_names:
        notes.append("Tiers are known only for the clients that the policy lists.")
    if run.evicted:
        notes.append(
            f"More clients came at once than fit in memory: {run.evicted:,} states were dropped, so denials may be"
            " missing."
        )
    return PolicyOutcome(
        given.name,
        replay.requests - denied,
        denied,
        {kind: many for kind, many in run.kinds.items() if many},
        tuple(LimitOutcome(one.rule, "", one.is_shadow, one.allowed, one.denied) for one in rules),
        tuple(LimitOutcome(one.rule, one.limit, one.is_shadow, one.allowed, one.denied) for one in limits),
        tuple(given.unjudged),
        tuple(notes),
    )


def report_notes(report: ReplayReport) -> list[str]:
    """Return what a reader of the result should know, in sentences. Names in them are as the log has them."""
    notes = [note for policy in (report.policy, report.before) if policy is not None for note in policy.notes]
    if report.refused:
        told = "They were left out." if report.skipped else "They are counted; --skip-429 leaves them out."
        notes.append(f"{report.refused:,} requests were answered 429 already. {told}")
    if report.spread:
        notes.append("The log has whole seconds: the requests of each second are spread over it evenly.")
    if report.empty:
        notes.append(f"{report.empty:,} lines have no request and were not counted.")
    if report.late:
        notes.append(f"{report.late:,} lines came too late to be sorted, and got the time of the line before.")
    notes += report.warnings
    notes += [f"Malformed line {one.line} of {one.file}: {one.text}" for one in report.samples]
    return list(dict.fromkeys(notes))


def report_json(report: ReplayReport) -> str:
    """Return the report as JSON."""
    return json.dumps({"schema": SCHEMA, **_plain(report)}, ensure_ascii=True, indent=2)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: _plain(getattr(value, name)) for name in value._fields}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return value
