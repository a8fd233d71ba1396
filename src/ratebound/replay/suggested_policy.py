"""A suggestion as a policy file, with comments that tell the evidence. The file is checked before it is returned.

Paths come from clients, so a path becomes a rule only if it is a plain pattern, and is written as quoted text.
"""

import json
import re
from typing import NamedTuple

from ratebound.policy import read_policy
from ratebound.replay.instant_text import time_text
from ratebound.replay.suggest import ALGORITHM, GroupEvidence, Suggestion

MOST_RULES = 5  # for endpoints
FEWEST_CLIENTS = 5  # of an endpoint that gets a rule
WRITES = ("POST", "PUT", "PATCH", "DELETE")
PLAIN = re.compile(r"/(?:(?:[A-Za-z0-9._~-]+|\{id\})/?)*")
DOTS = re.compile(r"/\.\.?(?:/|$)")  # resolved before rules see a path


class SuggestedRule(NamedTuple):
    """A rule for all requests, or for one method and path."""

    name: str
    limits: str
    evidence: GroupEvidence
    method: str = ""
    path: str = ""

    def as_mapping(self) -> dict[str, object]:
        """Return the rule as `read_policy` takes it."""
        match = {"match": {"paths": [self.path], "methods": [self.method]}} if self.path else {}
        return {"name": self.name, **match, "limits": self.limits}

    def lines(self) -> list[str]:
        """Return the rule as YAML, with the evidence as comments."""
        group = self.evidence
        peaks = ", ".join(
            f"{one.peaks.p999:,} in {'an' if one.period == 'hour' else 'a'} {one.period}" for one in group.periods
        )
        return [
            f"  # {group.requests:,} requests of {group.clients:,} clients. 99.9 % of the honest ones sent at most",
            f"  # {peaks}.",
            *(
                []
                if self.path
                else [f"  # It touches {group.honest_touched:,} honest clients, and {group.others_touched:,} others."]
            ),
            f"  - name: {self.name}",
            *([f"    match: {{paths: [{json.dumps(self.path)}], methods: [{self.method}]}}"] if self.path else []),
            f"    limits: {self.limits}",
        ]


def policy_text(suggestion: Suggestion, *, first: int, last: int, requests: int) -> str:
    """Return a policy file with the suggested limits. `first` and `last` are microseconds: the time of the log.

    Raises ValueError if the log has no requests.
    """
    if not suggestion.everything.limits:
        raise ValueError("the log has no requests: there is nothing to suggest limits from")
    rules = [SuggestedRule("everything", suggestion.everything.text, suggestion.everything)]
    for group in suggestion.endpoints:
        method, _, path = group.endpoint.partition(" ")
        minute = [count for count, period in group.limits if period == "minute"]
        is_plain = method in WRITES and PLAIN.fullmatch(path) is not None and not DOTS.search(path)
        if is_plain and minute and group.clients >= FEWEST_CLIENTS and len(rules) <= MOST_RULES:
            limits = f"{minute[0]}/minute {ALGORITHM}"
            rules.append(SuggestedRule(f"endpoint-{len(rules)}", limits, group, method, _numbered(path)))
    read_policy({"rules": [rule.as_mapping() for rule in rules]})  # raises if a rule is wrong
    head = [
        "# Limits suggested by `ratebound replay` from an access log. Read them before you use them.",
        f"# The log: {requests:,} requests, {_time(first)} to {_time(last)} UTC.",
        f"# Honest clients: {suggestion.honest:,}. Left out: {suggestion.too_heavy:,} that are too heavy, and"
        f" {suggestion.mostly_refused:,} whose requests were mostly refused.",
        *_wrapped(suggestion.criterion),
        "# Each limit is what 99.9 % of the honest clients did not exceed, plus a quarter, rounded up.",
        "rules:",
    ]
    return "\n".join([*head, *(line for rule in rules for line in rule.lines()), ""])


def _numbered(path: str) -> str:
    """Return a path in which each parameter has a name of its own."""
    first, *rest = path.split("{id}")
    return first + "".join(f"{{id{place or ''}}}{part}" for place, part in enumerate(rest))


def _time(at: int) -> str:
    return time_text(at)[:16].replace("T", " ")


def _wrapped(text: str) -> list[str]:
    lines, line = [], "#"
    for word in text.split():
        if len(line) + len(word) > 110:
            lines.append(line)
            line = "#"
        line += f" {word}"
    return [*lines, line]
