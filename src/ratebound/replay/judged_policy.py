"""The part of a policy that an access log can judge, and the reasons why the rest cannot be judged.

A log has addresses, paths, methods and statuses, and perhaps users, hosts and some headers. It has no bodies, no
credentials, and no end of a request to release a slot. A rule that needs such a thing would be decided wrongly, so it
decides nothing: it still matches, as if an operator had switched it off, and the report names it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from ratebound.limit import Limit
from ratebound.policy.identity.identify import Alternatives, IdentityKind
from ratebound.policy.match.request_value import RequestValue
from ratebound.policy.model.policy import Policy
from ratebound.policy.model.rule import DEFAULT, Rule, WrittenLimits
from ratebound.policy.problem import PolicyError
from ratebound.policy.runtime.switched_policy import NOTHING

IN_LOGS: Final = ("address", "prefix", "global", "user", "agent", "path", "query")  # identities that a log may have
USER_AGENT: Final = "user-agent"
# Options that a rule may not be able to have without some of its limits. As few as possible are left out.
LESS: Final[tuple[dict[str, Any], ...]] = (
    {"retry": None, "warn": None},
    {"retry": None, "warn": None, "distinct": None},
    {"retry": None, "warn": None, "distinct": None, "penalty": "", "strike": None},
)


class Unjudged(NamedTuple):
    """A part of a policy that was not judged, and why. `rule` is empty for the whole policy; `part` is a limit, or
    empty for the whole rule."""

    rule: str
    part: str
    reason: str


def judged_policy(policy: Policy, headers: Collection[str] = ()) -> tuple[Policy, list[Unjudged]]:
    """Return the policy as a log can judge it, and what is left out. `headers` are the headers that the log has, in
    lower case. States are kept in memory."""
    known = frozenset(headers) | {USER_AGENT}
    unjudged: list[Unjudged] = []
    rules = [_judged_rule(rule, policy, known, unjudged) for rule in policy.rules]
    overrides = []
    for override in policy.overrides:
        if isinstance(override.limits, str) and "concurrent" in override.limits:
            unjudged.append(Unjudged("", f"override of {override.client}", NO_DURATIONS))
        else:
            overrides.append(override)
    if policy.pressure is not None or policy.concurrent is not None:
        unjudged.append(Unjudged("", "adaptive, concurrent", "the log does not tell how busy the server was"))
    if policy.descriptors:
        unjudged.append(Unjudged("", "descriptors", "they are for Envoy's calls, which access logs do not show"))
    named = {kind for one in (policy.members, policy.overridden) for kind in one.kinds}
    for kind in sorted(named - {"user"}):
        unjudged.append(Unjudged("", f"clients named by {kind}", "the log does not tell who they are"))
    made = replace(
        policy,
        rules=rules,
        overrides=overrides,
        storage="memory://",
        adaptive=None,
        concurrent=None,
        descriptors=(),
        headers=policy.response_headers,
        rejection=policy.rejection_format,
        trusted=policy.proxies,
    )
    return made, unjudged


NO_DURATIONS: Final = "the log does not tell when slots are free again"


def _judged_rule(rule: Rule, policy: Policy, headers: frozenset[str], unjudged: list[Unjudged]) -> Rule:
    reason = next(_obstacles(rule, policy, headers), "")
    if reason:
        unjudged.append(Unjudged(rule.name, "", reason))
        return replace(rule, **NOTHING)
    left_out: dict[str, str] = {}
    limits = {tier: _judged_limits(written, rule, headers, left_out) for tier, written in rule.written.items()}
    candidate = rule.candidate
    for plan in rule.candidates.values():
        wrong = [_obstacle_of(limit, rule, headers) for limit in (plan if isinstance(plan, tuple) else ())]
        if any(wrong):
            candidate = None
            left_out["candidate"] = next(filter(None, wrong))
    if not left_out:
        return rule
    unjudged += [Unjudged(rule.name, part, why) for part, why in left_out.items()]
    given: Any = limits[DEFAULT] if list(limits) == [DEFAULT] else limits
    for less in LESS:
        try:
            return replace(rule, limits=given, candidate=candidate, **less)
        except PolicyError:
            continue
    return replace(rule, **NOTHING)


def _judged_limits(written: WrittenLimits, rule: Rule, headers: frozenset[str], left_out: dict[str, str]) -> Any:
    if isinstance(written, str):
        return written
    kept: list[Limit] = []
    for limit, _ in written:
        reason = _obstacle_of(limit, rule, headers)
        if reason:
            left_out[limit.text] = reason
        else:
            kept.append(limit)
    return tuple(kept) if any(not limit.is_penalty for limit in kept) or (kept and rule.strike) else "unlimited"


def _obstacle_of(limit: Limit, rule: Rule, headers: frozenset[str]) -> str:
    """Return why a log cannot judge a limit; "" if it can."""
    if limit.has_slots:
        return NO_DURATIONS
    if limit.is_distinct:
        source = rule.sources.get(limit.values)
        if isinstance(source, RequestValue):
            part, _, name = source.text.partition(".")
            if part in ("body", "cookie") or (part == "header" and name.lower() not in headers):
                return f"the log does not have {source.text}"
        elif isinstance(source, str):
            return "" if source.partition(":")[0] in IN_LOGS else f"the log does not have {source}"
        elif is_unknown(source):
            return "the function that finds its values is not known"
    return ""


def _obstacles(rule: Rule, policy: Policy, headers: frozenset[str]) -> Iterator[str]:
    """Yield why a log cannot judge a rule at all."""
    for header in rule.match.header_matches:
        if header.name not in headers:
            yield f"it matches by the header {header.name}. {_hint(header.name)}"
    yield from _identity_obstacles(policy.rule_by[rule.name], policy, headers)
    if callable(rule.cost) and is_unknown(rule.cost):
        yield "its cost is found by a function, or from the body"
    if rule.computed is not None and is_unknown(rule.computed.function):
        yield "its limits are found by a function"
    if rule.charge is not None and not (
        rule.charge in ("failure", "success") or (isinstance(rule.charge, Mapping) and "status" in rule.charge)
    ):
        yield "it charges by the response's bytes or headers"


def _identity_obstacles(by: Alternatives, policy: Policy, headers: frozenset[str]) -> Iterator[str]:
    for kind in [kind for parts in by for kind in parts]:
        source = policy.identities.get(kind.source) or policy.identities.get(kind.name)
        if source is None:
            if kind.base == "call" and is_unknown(*kind.functions):
                yield "it counts by a function"
            elif kind.base not in (*IN_LOGS, "call"):
                yield f"it counts by {kind.name}, which the log does not have"
            continue
        header = source.header or _usual_header(kind)
        if header and header not in headers:
            yield f"it counts by {kind.name}. {_hint(header)}"
        elif source.cookie or kind.base in ("cookie", "session"):
            yield f"it counts by {kind.name}, which is in a cookie"
        elif is_unknown(*[one for one in (source.verify, source.call) if one is not None]):
            yield f"it counts by {kind.name}, which a function finds. Name its module with --functions"


def _usual_header(kind: IdentityKind) -> str:
    base, _, detail = kind.source.partition(":")
    usual = {"api-key": "x-api-key", "tenant": "x-tenant", "bearer": "authorization", "jwt": "authorization"}
    return detail.lower() if base == "header" else usual.get(base, "")


def _hint(header: str) -> str:
    return f"Name the field of the log that has it: --header {header}=FIELD"


def is_unknown(*functions: Callable[..., Any] | Any) -> bool:
    """Return True if one of these functions only replaces another, or reads the body."""
    return any(getattr(one, "is_stub", False) or getattr(one, "reads_body", False) for one in functions)


def counts_by_user(policy: Policy) -> Sequence[str]:
    """Return the names of the rules that count by the user before anything else."""
    return [name for name, by in policy.rule_by.items() if any(kind.name == "user" for kind in by[0])]
