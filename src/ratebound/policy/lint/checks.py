"""Checks for common mistakes in valid policies: pure functions from a policy to named warnings.

The texts are in known_mistakes.py; the checks of logins are in credentials.py, those of slices and deny caches in
local_decisions.py.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from ipaddress import ip_network

from ratebound.http.prefix import parse_network
from ratebound.limit import MAX_VALUES, UNITS, Limit
from ratebound.lowered import lowered_limit
from ratebound.policy.identity.identify import IdentityKind
from ratebound.policy.lint.credentials import check_credentials, kinds_of, limits_something, plans_of
from ratebound.policy.lint.known_mistakes import PolicyAdvice, advice
from ratebound.policy.lint.local_decisions import check_local_decisions
from ratebound.policy.lint.redundant_limit import is_redundant
from ratebound.policy.match.conditions import Match
from ratebound.policy.match.coverage import covers, first_literal
from ratebound.policy.match.request_value import TARGETS
from ratebound.policy.model.descriptor_rule import EntryMatch
from ratebound.policy.model.policy import Policy
from ratebound.policy.model.rule import DEFAULT, Plan, Rule
from ratebound.policy.problem import Place

HEALTH = ("/health", "/healthz", "/healthcheck", "/ready", "/readyz", "/live", "/livez", "/ping", "/-/healthy", "/up")
USUAL = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"}
PROBE = UNITS["second"]  # the shortest usual time between two health checks
PASSED_ON = ("true-client-ip", "x-client-ip", "fastly-client-ip", "x-azure-clientip")
CLIENTS_OWN = (
    "authorization",
    "x-api-key",
    "cookie",
    "user-agent",
    "referer",
    "origin",
    "accept-language",
    "x-forwarded-for",
)
LOG = 1_000  # requests per client up to which a sliding log is fast
AT_ONCE = 1_000
LONG_CACHE = 3600  # seconds
SHORT_LEASE = 5 * UNITS["second"]
LONG_BLOCK = UNITS["hour"]
SHARED = {"address", "prefix", "agent", "fingerprint"}  # identities that many people may share
WIDE = {4: 16, 6: 32}  # prefixes shorter than these span several organisations


def advise(policy: Policy, *, workers: int = 1) -> list[PolicyAdvice]:
    """Return every warning about a policy, in the order of the file. `workers` is the number of processes that will run
    it."""
    found = [warning for check in CHECKS for warning in check(policy)]
    if workers > 1 and policy.storage.startswith("memory:"):
        found.append(advice("memory-with-workers", ("storage",), f"{workers} workers each count in memory"))
    return sorted(dict.fromkeys(found), key=_order)


def _order(warning: PolicyAdvice) -> tuple[bool, int, str]:
    """Return a sort key: warnings about the whole policy first, then rule by rule."""
    rule = warning.place[1] if warning.place[:1] == ("rules",) and len(warning.place) > 1 else -1
    return warning.place[:1] == ("rules",), rule if isinstance(rule, int) else -1, warning.name


def _is_broad(rule: Rule) -> bool:
    """Return True if a rule applies to every path and host."""
    return not rule.match.paths and rule.match.is_plain and not rule.match.hosts


def _address_alone(policy: Policy) -> Iterator[PolicyAdvice]:
    limiting = [rule for rule in policy.rules if limits_something(rule)]
    alone = all(kinds_of(policy.rule_by[rule.name]) <= {*SHARED, "global", *TARGETS} for rule in limiting)
    knows_shared = any(override.limits is not None for override in policy.overrides)
    if alone and not knows_shared and any(_is_broad(rule) for rule in limiting):
        yield advice("address-alone", ("rules",), "every rule counts by address, none by user or another identity")


def _one_limit(policy: Policy) -> Iterator[PolicyAdvice]:
    limiting = [(place, rule) for place, rule in enumerate(policy.rules) if limits_something(rule)]
    if len(limiting) != 1:
        return
    place, rule = limiting[0]
    if rule.match == Match() and isinstance(rule.cost, int) and rule.computed is None and len(rule.plans) == 1:
        yield advice(
            "one-limit-for-everything",
            ("rules", place),
            f"rule {rule.name!r} is the only one, and matches all requests",
        )


def _health_check(policy: Policy) -> Iterator[PolicyAdvice]:
    for place, rule in enumerate(policy.rules):
        for path in rule.match.paths:
            if path.rstrip("/").lower() in HEALTH and limits_something(rule):
                yield advice("health-check-limited", ("rules", place, "match"), f"rule {rule.name!r} limits {path}")
                return
    if policy.allow or any(_is_free(path, policy) for path in HEALTH):
        return
    for place, rule in enumerate(policy.rules):
        denying = [limit for _, plan in plans_of(rule) for limit in _denying(plan)]
        slow = [limit for limit in denying if limit.period_us > limit.count * PROBE]
        if slow and _is_broad(rule) and (not rule.match.methods or "GET" in rule.match.methods):
            wrong = f"rule {rule.name!r} with '{slow[0].text}' also limits health checks; none of their usual paths is"
            wrong += " exempt"
            yield advice("health-check-limited", ("rules", place), wrong)
            return


def _is_free(path: str, policy: Policy) -> bool:
    free = [match for match in policy.exempt if match.paths]
    free += [rule.match for rule in policy.rules if rule.final and set(rule.plans.values()) == {"unlimited"}]
    return any(pattern.is_exact(path) for match in free for pattern in match.patterns)


def _trust(policy: Policy) -> Iterator[PolicyAdvice]:
    for name in policy.proxies.single:
        if name in PASSED_ON:
            yield advice("spoofable-header", ("trusted", "single", name), f"the header {name} is trusted")
    if policy.proxies.hops is not None and not policy.proxies.trusted:
        yield advice("hops-without-proxies", ("trusted",), "'hops' is applied to every peer, proxy or not")
    for name, source in policy.identities.items():
        header = source.header or {"api-key": "x-api-key"}.get(name, name.partition(":")[2])
        if source.proxy and header in CLIENTS_OWN:
            wrong = f"the identity {name} is the unverified header {header}"
            yield advice("identity-not-verified", ("identities", name), wrong)
        if source.cache > LONG_CACHE:
            wrong = f"the identity {name} is cached for {source.cache / 60:g} minutes"
            yield advice("long-verify-cache", ("identities", name, "verify"), wrong)


def _unlimited_by_header(policy: Policy) -> Iterator[PolicyAdvice]:
    """Yield a warning where a header or a host makes a request unlimited. It makes no difference if the match asks for
    the header or for its absence: a client controls both."""
    for place, match in enumerate(policy.exempt):
        if (match.header_matches or match.hosts) and not match.addresses:
            what = "a header" if match.header_matches else "a host"
            yield advice("unlimited-by-header", ("exempt", place), f"requests with {what} are exempt")
    for place, rule in enumerate(policy.rules):
        names = [header.name for header in rule.match.header_matches] + ["host"] * bool(rule.match.hosts)
        if not names or rule.match.addresses or rule.mode != "enforce":
            continue
        releases = rule.final or (not rule.default and _keeps_defaults_away(rule, policy))
        if releases and all(plan == "unlimited" for plan in rule.plans.values()):
            wrong = f"rule {rule.name!r} makes requests unlimited by {', '.join(names)}"
            yield advice("unlimited-by-header", ("rules", place, "match"), wrong)


def _keeps_defaults_away(rule: Rule, policy: Policy) -> bool:
    return any(other.default and other.stage == rule.stage for other in policy.rules)


def _limits(plan: Plan) -> tuple[Limit, ...]:
    return plan if isinstance(plan, tuple) else ()


def _denying(plan: Plan) -> list[Limit]:
    """Return the rates and quotas of a plan that can deny."""
    return [limit for limit in _limits(plan) if not limit.metered and limit.takes_cost]


def _redundant_limits(policy: Policy) -> Iterator[PolicyAdvice]:
    companions = _CompanionRules(policy)
    for place, rule in enumerate(policy.rules):
        for tier, plan in plans_of(rule):
            at: Place = ("rules", place, "limits", *([tier] if len(rule.plans) > 1 else []))
            redundant: set[Limit] = set()
            for weak in _limits(plan):
                for strict in _limits(plan):
                    if strict is weak or strict in redundant or not is_redundant(weak, strict, alike=True):
                        continue
                    redundant.add(weak)
                    wrong = f"'{weak.text}' of rule {rule.name!r} never denies: '{strict.text}' always denies first"
                    yield advice("redundant-limit", at, wrong)
                    break
            for strict_place, strict_rule in companions.stricter(place):
                for weak in [limit for limit in _limits(plan) if limit not in redundant]:
                    strict_plan = strict_rule.plans.get(tier, strict_rule.plans.get(DEFAULT, "unlimited"))
                    alike = covers(rule.match, strict_rule.match)
                    # Of two equal limits, the warning is for the later one.
                    equals = alike and strict_place > place
                    for strict in _limits(strict_plan):
                        is_later = equals and is_redundant(strict, weak, alike=True)
                        if is_redundant(weak, strict, alike=alike) and not is_later:
                            wrong = (
                                f"'{weak.text}' of rule {rule.name!r} never denies: '{strict.text}' of rule"
                                f" {strict_rule.name!r}, which counts by the same key, always denies first"
                            )
                            redundant.add(weak)
                            yield advice("redundant-limit", at, wrong)
                            break


class _CompanionRules:
    """An index of rules that are certain to be evaluated whenever another rule is. It is keyed by the first step of the
    path, so that many rules do not take quadratic time."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._by_key: dict[object, dict[str | None, list[int]]] = {}
        first: dict[str, int] = {}  # the first final rule of each stage: rules after it may not be evaluated
        for place, rule in enumerate(policy.rules):
            if rule.mode == "enforce" and rule.computed is None and place <= first.get(rule.stage, place):
                begins = self._by_key.setdefault(self._key(rule), {})
                for begin in {first_literal(pattern) for pattern in rule.match.patterns} or {None}:
                    begins.setdefault(begin, []).append(place)
            if rule.final:
                first.setdefault(rule.stage, place)

    def _key(self, rule: Rule) -> object:
        by = tuple(tuple(kind.source for kind in parts) for parts in self._policy.rule_by[rule.name])
        return rule.stage, rule.default, by

    def stricter(self, place: int) -> Iterator[tuple[int, Rule]]:
        """Yield the rules, with their indexes, that count by the same key, match every request of this rule, and charge
        at least its cost."""
        policy, rule = self._policy, self._policy.rules[place]
        if rule.computed is not None or any(override.limits is not None for override in policy.overrides):
            return
        begins = self._by_key.get(self._key(rule), {})
        begin = first_literal(rule.match.patterns[0]) if rule.match.patterns else None
        for other_place in dict.fromkeys([*begins.get(None, ()), *begins.get(begin, ())]):
            other = policy.rules[other_place]
            if other is rule or set(other.plans) - {DEFAULT} - set(rule.plans):
                continue
            if rule.by_result is not None or other.by_result is not None:
                continue  # the result of a request decides what each of them charges
            if isinstance(other.cost, int) and isinstance(rule.cost, int):
                charges_enough = other.cost >= rule.cost
            else:
                charges_enough = other.cost is rule.cost
            if charges_enough and covers(other.match, rule.match):
                yield other_place, other


def _limit_shapes(policy: Policy) -> Iterator[PolicyAdvice]:
    """Yield the warnings about bursts, periods and algorithms within the limits of one rule."""
    spreading = [rule for rule in policy.rules if _spreads(rule)]
    for place, rule in enumerate(policy.rules):
        for tier, plan in plans_of(rule):
            at: Place = ("rules", place, "limits", *([tier] if len(rule.plans) > 1 else []))
            limits = _denying(plan)
            slots = [limit for limit in _limits(plan) if limit.has_slots]
            for limit in slots:
                if limit.period_us < SHORT_LEASE:
                    wrong = f"a slot of '{limit.text}' of rule {rule.name!r} is lost after {limit.period_us / 1e6:g} s"
                    yield advice("short-lease", at, wrong)
            for limit in limits:
                smaller = [other for other in limits if other.burst < limit.burst]
                shorter = [other for other in smaller if other.period_us < limit.period_us]
                if limit.burst != limit.count and (shorter or (smaller and limit.burst > limit.count)):
                    least = min(smaller, key=lambda other: other.burst)
                    wrong = f"the burst of '{limit.text}' is never reached: '{least.text}' admits {least.burst} at once"
                    yield advice("burst-out-of-reach", at, wrong)
                if limit.algorithm == "sliding-log" and limit.count > LOG:
                    wrong = f"'{limit.text}' of rule {rule.name!r} stores up to {limit.count} requests of each client"
                    yield advice("large-log", at, wrong)
            if limits and not slots and min(limit.burst for limit in limits) >= AT_ONCE:
                quick = min(limits, key=lambda limit: limit.period_us)
                if quick.period_us >= UNITS["hour"] and not _is_covered(rule, spreading):
                    wrong = f"'{quick.text}' is the limit of rule {rule.name!r} with the shortest period"
                    yield advice("all-at-once", at, wrong)


def _is_covered(rule: Rule, others: Sequence[Rule]) -> bool:
    """Return True if one of the others applies to every request of the rule."""
    return any(
        other is not rule and (not other.default or rule.default) and covers(other.match, rule.match)
        for other in others
    )


def _spreads(rule: Rule) -> bool:
    """Return True if a rule lets no client spend a large quota within a second, whatever its tier."""
    plans = [_limits(plan) for plan in rule.plans.values()]
    return rule.mode == "enforce" and all(
        any(
            limit.has_slots or (limit.takes_cost and limit.period_us < UNITS["hour"] and not limit.metered)
            for limit in limits
        )
        for limits in plans
    )


def _metered_alone(policy: Policy) -> Iterator[PolicyAdvice]:
    limiting = [rule for rule in policy.rules if limits_something(rule)]
    for place, rule in enumerate(policy.rules):
        metered = [limit for _, plan in plans_of(rule) for limit in _limits(plan) if limit.metered]
        if metered and rule not in limiting and not _is_covered(rule, limiting):
            wrong = f"rule {rule.name!r} meters '{metered[0].text}', and no other rule limits the same requests"
            yield advice("metered-alone", ("rules", place), wrong)


def _fingerprints(policy: Policy) -> Iterator[PolicyAdvice]:
    for place, rule in enumerate(policy.rules):
        if not policy.salt and any(kind.base == "fingerprint" for parts in policy.rule_by[rule.name] for kind in parts):
            at = ("rules", place, "by") if rule.by is not None else ("rules", place)
            yield advice(
                "fingerprint-without-salt", at, f"rule {rule.name!r} counts by fingerprint, and 'salt' is empty"
            )


def _priorities(policy: Policy) -> Iterator[PolicyAdvice]:
    for place, rule in enumerate(policy.rules):
        if policy.pressure is None:
            if rule.priority != "normal":
                wrong = f"rule {rule.name!r} has the priority {rule.priority!r}, and the policy has no 'adaptive'"
                yield advice("priority-without-adaptive", ("rules", place, "priority"), wrong)
        elif rule.priority != "critical" and rule.mode == "enforce":
            found = [limit for _, plan in plans_of(rule) for limit in _denying(plan) if not limit.has_slots]
            long = [limit for limit in found if limit.refill_us >= UNITS["hour"] and lowered_limit(limit, 1) != limit]
            if long:
                yield advice("lowered-for-long", ("rules", place), f"rule {rule.name!r} has '{long[0].text}'")


def _penalties(policy: Policy) -> Iterator[PolicyAdvice]:
    """Yield the warnings about penalties: of entries, and of rules that name one or have one in their limits."""
    named = {rule.penalty for rule in policy.rules}
    for name in policy.penalty_limits:
        if name not in named:
            yield advice("unused-penalty", ("penalties", name), f"no rule names the penalty {name!r}")
    for place, rule in enumerate(policy.rules):
        own = [limit for plan in rule.plans.values() for limit in _limits(plan) if limit.is_penalty]
        entry = policy.penalty_limits.get(rule.penalty)
        penalties = own if entry is None else [*own, entry]
        if not penalties:
            continue
        longest = max(penalties, key=lambda limit: max(limit.blocks_us))
        if max(longest.blocks_us) > LONG_BLOCK and kinds_of(policy.rule_by[rule.name]) <= SHARED:
            wrong = f"rule {rule.name!r} blocks addresses: '{longest.text}'"
            yield advice("long-block-by-address", ("rules", place, "penalty" if longest is entry else "limits"), wrong)
        if (rule.failure or policy.failure) == "open":
            where: Place = ("rules", place, "failure") if rule.failure else ("failure",)
            wrong = f"rule {rule.name!r} has a penalty and the failure mode open"
            yield advice("penalty-with-open-failure", where, wrong)


def _strikes_without_rate(policy: Policy) -> Iterator[PolicyAdvice]:
    limiting = [rule for rule in policy.rules if any(_denying(plan) for _, plan in plans_of(rule))]
    for place, rule in enumerate(policy.rules):
        if rule.strikes_by_result and rule not in limiting and not _is_covered(rule, limiting):
            wrong = f"results of rule {rule.name!r} are strikes, and no rate limits the same requests"
            yield advice("strikes-without-rate", ("rules", place, "strike"), wrong)


def _distinct(policy: Policy) -> Iterator[PolicyAdvice]:
    for place, rule in enumerate(policy.rules):
        for limit in [limit for plan in rule.plans.values() for limit in _limits(plan) if limit.is_distinct]:
            if limit.count > MAX_VALUES:
                wrong = f"'{limit.text}' of rule {rule.name!r} stores up to {limit.count} values of each client"
                yield advice("large-distinct", ("rules", place, "limits"), wrong)


def _target_alone(policy: Policy) -> Iterator[PolicyAdvice]:
    counting = [
        rule
        for rule in policy.rules
        if limits_something(rule) and any(_says_who(parts) for parts in policy.rule_by[rule.name][:1])
    ]
    for place, rule in enumerate(policy.rules):
        targets = [kind.name for parts in policy.rule_by[rule.name] for kind in parts if kind.is_target]
        if targets and rule not in counting and limits_something(rule) and not _is_covered(rule, counting):
            wrong = f"rule {rule.name!r} counts by {targets[0]}, and no other rule counts who sends the same requests"
            yield advice("target-alone", ("rules", place, "by"), wrong)


def _says_who(parts: Sequence[IdentityKind]) -> bool:
    return any(kind.is_verified for kind in parts) and not any(kind.is_target for kind in parts)


def _missing_default(policy: Policy) -> Iterator[PolicyAdvice]:
    if not policy.rules:
        return
    broad = [rule for rule in policy.rules if _is_broad(rule) and rule.mode == "enforce"]
    methods = {method for rule in broad for method in rule.match.methods}
    if all(rule.match.methods for rule in broad) and not methods >= USUAL:
        yield advice("missing-default", ("rules",), "no rule applies to requests that match none of the others")


def _ipv6(policy: Policy) -> Iterator[PolicyAdvice]:
    if policy.ipv6 > 64:
        yield advice("ipv6-single-address", ("ipv6",), f"each IPv6 /{policy.ipv6} counts as a client of its own")
    for place, rule in enumerate(policy.rules):
        names = {kind.name for parts in policy.rule_by[rule.name] for kind in parts}
        for name in sorted(names):
            length = name.rpartition("/")[2].removeprefix("prefix.")
            if name.startswith("prefix.") and length.isdecimal() and int(length) > 64:
                yield advice("ipv6-single-address", ("rules", place, "by"), f"rule {rule.name!r} counts by /{length}")
    for place, client in enumerate(policy.block):
        with suppress(ValueError):  # an identity
            network = parse_network(client)
            if network.version == 6 and network.prefixlen > 64:
                yield advice("ipv6-single-address", ("block", place), f"{client} is one of many addresses of a client")


def _global_alone(policy: Policy) -> Iterator[PolicyAdvice]:
    for place, rule in enumerate(policy.rules):
        if not limits_something(rule) or kinds_of(policy.rule_by[rule.name]) != {"global"}:
            continue
        fair = any(
            limits_something(other)
            and kinds_of(policy.rule_by[other.name]) != {"global"}
            and (other.default == rule.default or rule.default)
            and covers(other.match, rule.match)
            for other in policy.rules
        )
        if not fair:
            yield advice("global-alone", ("rules", place, "by"), f"rule {rule.name!r} has one quota for all clients")


def _lists(policy: Policy) -> Iterator[PolicyAdvice]:
    for place, match in enumerate(policy.exempt):
        wide = [pattern.text for pattern in match.patterns if not pattern.whole]
        if wide and not match.addresses:
            yield advice("wide-exempt", ("exempt", place, "paths"), f"{wide[0]} exempts every path below it")
    for place, client in enumerate(policy.allow):
        try:
            network = parse_network(client)
        except ValueError:
            continue  # an identity
        private = ip_network(str(network)).is_private
        if network.prefixlen < WIDE[network.version] and not private:
            yield advice("wide-allow", ("allow", place), f"{client} holds {network.num_addresses:,} addresses")


def _nothing_enforced(policy: Policy) -> Iterator[PolicyAdvice]:
    if policy.switch != "on":
        yield advice("nothing-enforced", ("switch",), f"the switch is {policy.switch!r}")
    elif policy.rules and {rule.mode for rule in policy.rules} | {rule.mode for rule in policy.descriptors} == {
        "shadow"
    }:
        yield advice("nothing-enforced", ("rules",), "every rule has 'mode: shadow'")


def _hidden_descriptors(policy: Policy) -> Iterator[PolicyAdvice]:
    """Yield a warning for each rule with an entry that an earlier wildcard at the same place always takes first."""
    wildcards: dict[tuple[object, ...], list[str]] = {}  # by the entries before them and their key
    for rule in policy.descriptors:
        before: tuple[object, ...] = (rule.domain,)
        for condition in rule.conditions:
            known = wildcards.setdefault((*before, condition.key), [])
            if condition.is_wild and condition.value not in known:
                known.append(condition.value)
            before = (*before, condition[:2])
    for place, rule in enumerate(policy.descriptors):
        before = (rule.domain,)
        for condition in rule.conditions:
            known = wildcards[*before, condition.key]
            hiding = [value for value in known if _takes_first(value, condition, known)]
            if hiding:
                wrong = f"rule {rule.name!r}: {condition.key}={hiding[0]} takes every value of '{condition}'"
                yield advice("descriptor-never-matched", ("descriptors", place, "entries"), wrong)
                break
            before = (*before, condition[:2])


def _takes_first(value: str, condition: EntryMatch, known: Sequence[str]) -> bool:
    """Return True if a wildcard takes every value that a condition on the same entry could match."""
    if not condition.value:
        return value == "*"
    if not condition.is_wild or value == condition.value:
        return False
    return known.index(value) < known.index(condition.value) and condition.value.startswith(value[:-1])


CHECKS: tuple[Callable[[Policy], Iterator[PolicyAdvice]], ...] = (
    check_credentials,
    _address_alone,
    _one_limit,
    _health_check,
    _trust,
    _unlimited_by_header,
    _redundant_limits,
    _limit_shapes,
    _metered_alone,
    _fingerprints,
    _priorities,
    _penalties,
    _strikes_without_rate,
    _distinct,
    _target_alone,
    _missing_default,
    _ipv6,
    _global_alone,
    _lists,
    _nothing_enforced,
    _hidden_descriptors,
    check_local_decisions,
)
