"""The command `ratebound policy explain`: one request through the rules, in words. It counts in a memory of its own."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from ratebound.cli.local_decisions import DENIALS, has_deny_cache, slice_effects
from ratebound.cli.policy_functions import is_stub
from ratebound.errors import RateboundError
from ratebound.http.rejection import Response
from ratebound.limit import UNITS, Ask, Group, Limit
from ratebound.policy import (
    Explanation,
    Gate,
    Identity,
    Policy,
    RequestView,
    Rule,
    RuleReport,
    Source,
    Verdict,
    explain,
)
from ratebound.policy.identity.identify import RequestIdentities
from ratebound.policy.model.rule import Stage
from ratebound.policy.problem import nearest
from ratebound.report.page import visible
from ratebound.storage.memory import MemoryStorage
from ratebound.web.verdict_response import verdict_response

KINDS = {
    "limited": "the matching rules count it",
    "unlimited": "the matching rules do not limit this client",
    "unmatched": "no rule matches, so it is not limited",
    "exempt": "it is exempt, so nothing is counted",
    "allow": "the client is on the allow list, so nothing is counted",
    "block": "the client is on the block list, so it is denied",
    "deny": "a rule denies it",
    "off": "the switch is off, so nothing is limited",
}


PRIORITIES = {
    "low": "low: lowered first under overload",
    "normal": "normal: lowered under overload, after low",
    "high": "high: lowered under overload, after low and normal",
    "critical": "critical: never lowered",
}


class GivenRequest(NamedTuple):
    """A request as given on the command line."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    peer: str
    host: str
    user: str | None
    tier: str | None
    identities: dict[str, str]
    body: str | None

    def view(self) -> RequestView:
        """Return the request as the gate sees it."""
        path, _, query = self.path.partition("?")
        host = self.host or next((value for name, value in self.headers if name == "host"), "")
        headers = list(self.headers)
        if any(kind.startswith("jwt:") for kind in self.identities):
            headers.append(("authorization", "Bearer -"))  # the stand-in verifier needs a token to verify
        return RequestView(
            self.method.upper(),
            path,
            query=query,
            host=host,
            headers=headers,
            peer=self.peer,
            user=None if self.user is None else Identity("user", self.user, self.tier),
            body=None if self.body is None else self.body.encode(),
        )


class ExplainAnswer(NamedTuple):
    """The answer of one stage: each rule, the first decision, and the rejection once all units are used."""

    stage: str
    policy: Policy
    explanation: Explanation
    found: RequestIdentities
    verdict: Verdict
    headers: list[tuple[str, str]]
    rejection: Response | None


def header_pairs(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Return headers from 'Name: value' lines. Raises RateboundError."""
    found = []
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise RateboundError(f"--header {line!r}: expected 'Name: value'")
        found.append((name.strip().lower(), value.strip()))
    return found


def stages_of(policy: Policy) -> list[Stage]:
    """Return both stages if the policy has early rules, because each stage is its own decision; else the late one."""
    return ["early", "late"] if any(rule.stage == "early" for rule in policy.rules) else ["late"]


def explain_request(policy: Policy, asked: GivenRequest, stage: Stage) -> ExplainAnswer:
    """Return the rules' answer to a request, against an empty storage and against one without remaining units.

    Raises RateboundError if the path, the tier or an identity is invalid.
    """
    if not asked.path.startswith("/"):
        raise RateboundError(f"--path {asked.path!r}: expected a path that begins with '/'")
    policy = _as_if(policy, asked)
    view = asked.view()
    explanation = explain(policy, view, stage)
    day = time.time_ns() // 1000 // UNITS["day"] * UNITS["day"]  # the beginning of the clock's windows
    storage = MemoryStorage(clock=lambda: day)
    gate = Gate(policy, storage=storage)
    verdict = gate.decide(asked.view(), stage)
    decision = verdict.decision
    headers = [] if decision is None else policy.response_headers.pairs(decision)
    denied = verdict
    if decision is not None and decision.allowed:
        if any(_can_use_up(limit) for limit in decision.limits):
            gate.settle(verdict, cost=[_whole_quota(ask) for ask in decision.asks])
        else:
            gate.undo(verdict)  # a value that is counted already would pass
            storage.evaluate([_all_entries(ask) for ask in decision.asks], "force")
        denied = gate.decide(asked.view(), stage)
    rejection = None if denied.allowed else verdict_response(denied, view)
    return ExplainAnswer(stage, policy, explanation, view.found, verdict, headers, rejection)


def _can_use_up(limit: Limit) -> bool:
    return limit.takes_cost and not limit.metered


def _whole_quota(ask: Ask) -> int:
    """Return the cost that uses up the smallest quota of an ask that can deny."""
    return min((limit.burst for limit in ask[1] if _can_use_up(limit)), default=ask[2])


def _all_entries(ask: Ask) -> Group:
    """Return what to force to hold all the slots of an ask, and to have seen all the values that it allows."""
    key, limits, *_ = ask
    counted = [limit for limit in limits if limit.has_slots or limit.is_distinct]
    return [(key, (limit,), 1, None, [(i, 0, 0, 0)]) for limit in counted for i in range(limit.count)]


def _as_if(policy: Policy, asked: GivenRequest) -> Policy:
    """Return the policy with verifiers that find the identities of the command line."""
    if asked.tier is not None and asked.tier not in policy.tier_names:
        raise RateboundError(f"--tier {asked.tier!r}: {nearest(asked.tier, policy.tier_names)}")
    sources = dict(policy.identities)
    claims: dict[str, Any] = {}
    for kind, value in asked.identities.items():
        if kind.startswith("jwt:") and "jwt" in sources:
            claims[kind.removeprefix("jwt:")] = value
            if sources["jwt"].tier and asked.tier:
                claims[sources["jwt"].tier] = asked.tier
            sources["jwt"] = Source(verify=lambda _: claims, tier=sources["jwt"].tier)
        elif kind in sources and kind != "jwt":
            given = _always(Identity("", value, asked.tier))
            sources[kind] = Source(call=given, kinds=sources[kind].kinds, verified=True)
        elif giving := [name for name, source in sources.items() if kind in source.kinds]:
            found = _always(Identity(kind, value, asked.tier))
            sources.update((name, Source(call=found, kinds=sources[name].kinds, verified=True)) for name in giving)
        else:
            known = [name if name != "jwt" else "jwt:sub" for name in sources]
            raise RateboundError(f"--identity {kind}: the policy has no such identity: {nearest(kind, known)}")
    # Cost functions that are not loaded cannot be called, so the request costs 1.
    rules = tuple(replace(rule, cost=_one) if is_stub(rule.cost) else rule for rule in policy.rules)
    return replace(policy, rules=rules, identities=sources, default_tier=asked.tier or policy.default_tier)


def _one(request: RequestView) -> int:
    return 1


def _always(identity: Identity) -> Any:
    return lambda request: identity


def show_answers(asked: GivenRequest, answers: Sequence[ExplainAnswer], console: Console, *, as_json: bool) -> None:
    """Print the answers, as text or JSON."""
    if as_json:
        told = json.dumps([_as_json(answer) for answer in answers], ensure_ascii=False, indent=2)
        console.print(Text(told), soft_wrap=True)
        return
    first = answers[0].explanation
    where = first.address + (f" (from {first.source})" if first.source != "peer" else "")
    path = visible(asked.path)  # it may come from a log: a terminal would obey what a client hid in it
    text = Text(f"{asked.method.upper()} {path}", style="bold").append(f" from {where}", style="not bold")
    if len(first.paths) > 1:
        text.append(f"\n   readings of the path: {', '.join(map(visible, first.paths))}", style="not bold")
    if first.tier is not None:
        text.append(f"\n   tier {first.tier}", style="not bold")
    console.print(text)
    for answer in answers:
        _show_stage(answer, console, titled=len(answers) > 1 or answer.stage == "early")


def _show_stage(answer: ExplainAnswer, console: Console, *, titled: bool) -> None:
    stage = f"stage {answer.stage}: " if titled else ""
    console.print(Text(f"\n{stage}{KINDS[answer.verdict.kind]}", style="bold"))
    for report in answer.explanation.rules:
        if titled and report.rule.stage != answer.stage:
            continue
        if not report.applies:
            console.print(Text(f"   no   {report.rule.name}: {report.why}", style="dim"))
            continue
        console.print(Text("   yes  ", style="green").append(f"{report.rule.name}: {_why(report)}", style="not green"))
        for label, words in _facts(report, answer):
            _show_fact(label, words, console)
    if answer.headers:
        console.print(Text("\nallowed, with the headers" if answer.verdict.allowed else "\ndenied, with the headers"))
        for name, value in answer.headers:
            console.print(Text(f"   {name}: {value}"), soft_wrap=True)
    if answer.rejection is not None:
        when = "denied, once the limit is used up" if answer.verdict.allowed else "denied"
        console.print(Text(f"\n{when}: {answer.rejection.status}"))
        for name, value in answer.rejection.headers:
            console.print(Text(f"   {name}: {value}"), soft_wrap=True)
        console.print(Text(f"\n   {answer.rejection.body.decode(errors='replace').rstrip()}"), soft_wrap=True)


def _show_fact(label: str, words: str, console: Console) -> None:
    margin = " " * 20
    lines = wrap(visible(words), max(console.width, 50) - len(margin), break_long_words=False, break_on_hyphens=False)
    text = Text(f"{'':<10}{label:<10}", style="dim").append(f"\n{margin}".join(lines), style="not dim")
    console.print(text, soft_wrap=True)


def _why(report: RuleReport) -> str:
    """Return the conditions that hold, in the words of the file."""
    match = report.rule.match
    told = [
        f"{label} {', '.join(values)}"
        for label, values in (
            ("path", match.paths),
            ("method", match.methods),
            ("host", match.hosts),
            ("header", tuple(header.name for header in match.header_matches)),
            ("address", match.addresses),
            ("tier", match.tiers),
        )
        if values
    ]
    why = "" if report.why == "matched" else f"; {report.why}"
    if not told:
        return ("no other rule matched" if report.rule.default else "it matches every request") + why
    return "; ".join(told) + why


def _facts(report: RuleReport, answer: ExplainAnswer) -> list[tuple[str, str]]:
    rule, plan = report.rule, report.plan
    tried = []
    for parts in answer.policy.rule_by[rule.name]:
        names = " + ".join(kind.name for kind in parts)
        if all(answer.found.identities.get(kind.name) is not None for kind in parts):
            break
        tried.append(names)
    who = "nobody" if report.identity is None else report.identity.key
    facts = [("counts by", who + (f" (not found: {', '.join(tried)})" if tried else ""))]
    if isinstance(plan, tuple):
        facts += [("limit", f"{limit.text}, {_kind(limit)}, named {limit.name}") for limit in plan]
        facts += [
            ("value", f"{limit.values} is {_source(rule, limit.values)}; absent is one value")
            for limit in plan
            if limit.is_distinct
        ]
        for limit in plan:
            if limit.is_penalty:
                facts += [("strike", _strikes(rule)), ("block", _blocks(limit))]
    else:
        facts.append(("limit", str(plan)))
    if rule.retry and isinstance(plan, tuple) and any(limit.has_slots for limit in plan):
        facts.append(("retry", f"after {rule.retry:g} s, if no slot is free"))
    if rule.warn and isinstance(plan, tuple):
        facts.append(("warn", f"listeners, when {rule.warn * 100:g}% of a limit are used"))
    facts += _local_facts(report, answer)
    cost = "computed by a function" if report.cost is None else str(report.cost)
    facts.append(("cost", cost))
    if rule.charge is not None:
        facts.append(("charge", f"by result: {_result(rule.charge)}"))
    facts.append(("mode", "shadow: only reported" if rule.mode == "shadow" else rule.mode))
    facts.append(("failure", rule.failure or answer.policy.failure))
    if answer.policy.pressure is not None:
        facts.append(("priority", PRIORITIES[rule.priority]))
    if rule.candidates:
        facts.append(("candidate", "evaluated as well, and only reported"))
    return facts


def _local_facts(report: RuleReport, answer: ExplainAnswer) -> Iterator[tuple[str, str]]:
    """Yield what slices and a deny cache do to this request, and which other rule keeps them from doing it."""
    plan = report.plan if isinstance(report.plan, tuple) else ()
    yield from (("slice", words) for words in slice_effects(plan))
    if has_deny_cache(plan):
        yield "denials", DENIALS
    for label, key in (("slice", "slice"), ("denials", "deny_cache")):
        if any(getattr(limit, key) for limit in plan):
            for other in [one for one in answer.explanation.rules if one.applies and isinstance(one.plan, tuple)]:
                if not all(getattr(limit, key) for limit in other.plan or ()):
                    yield label, f"saves no trip for this request: rule {other.rule.name!r} has none"


def _source(rule: Rule, name: str) -> str:
    source = rule.sources[name]
    return getattr(source, "text", None) or (source if isinstance(source, str) else "found by a function")


def _strikes(rule: Rule) -> str:
    """Return what is a strike, in words."""
    results = f"; also a result: {_result(rule.strike)}" if rule.strikes_by_result else ""
    return f"a denial by this rule, but not because no slot is free; one a second at most{results}"


def _result(given: Any) -> str:
    """Return the `charge` or `strike` of a rule in words."""
    if not isinstance(given, Mapping):
        return given if isinstance(given, str) else "found by a function"
    ((key, value),) = given.items()
    listed = value if isinstance(value, list | tuple | set | frozenset | range) else [value]
    return f"{key}: {', '.join(map(str, listed))}"


def _by_result(given: Any) -> Any:
    """Return the `charge` or `strike` of a rule for JSON."""
    return _result(given) if callable(given) else dict(given) if isinstance(given, Mapping) else given


def _slice_json(rule: Rule) -> dict[str, float] | None:
    return None if rule.slice is None else {"share": rule.slice.share, "for": rule.slice.for_us / UNITS["second"]}


def _blocks(limit: Limit) -> str:
    """Return what a penalty does, in words."""
    strikes, _, times = limit.text.partition(" block ")
    first, *more = times.partition(" forget ")[0].split(" then ")
    longer = "".join(f", then {one}" for one in more) + (", which repeats" if more else "")
    days = limit.forget_us / UNITS["day"]
    return f"at {strikes} for {first}{longer}; forgotten {days:g} day{'' if days == 1 else 's'} after a block or strike"


def _kind(limit: Limit) -> str:
    return f"{limit.algorithm}, metered: it denies nothing" if limit.metered else limit.algorithm


def _as_json(answer: ExplainAnswer) -> dict[str, Any]:
    said, rejection = answer.explanation, answer.rejection
    return {
        "stage": answer.stage,
        "kind": answer.verdict.kind,
        "allowed": answer.verdict.allowed,
        "address": said.address,
        "address_from": said.source,
        "tier": said.tier,
        "paths": said.paths,
        "rules": [
            {
                "name": report.rule.name,
                "applies": report.applies,
                "why": _why(report) if report.applies else report.why,
                "identity": None if report.identity is None else report.identity.key,
                "limits": [str(limit) for limit in report.plan] if isinstance(report.plan, tuple) else report.plan,
                "penalty": report.rule.penalty or None,
                "distinct": {name: _source(report.rule, name) for name in report.rule.sources},
                "cost": report.cost,
                "charge": _by_result(report.rule.charge),
                "strike": _by_result(report.rule.strike),
                "mode": report.rule.mode,
                "failure": report.rule.failure or answer.policy.failure,
                "priority": report.rule.priority,
                "slice": _slice_json(report.rule),
                "deny_cache": report.rule.deny_cache,
            }
            for report in said.rules
        ],
        "headers": [list(pair) for pair in answer.headers],
        "rejection": None
        if rejection is None
        else {
            "status": rejection.status,
            "headers": [list(pair) for pair in rejection.headers],
            "body": rejection.body.decode(errors="replace"),
        },
    }
