"""A policy: rules, clients and settings in one object, checked as a whole before it runs.

rule.py checks each rule by itself. This file checks what depends on several parts: names, tiers, identities, lists.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar, get_args

from ratebound.adaptive import Pressure
from ratebound.adaptive.in_flight import InFlight
from ratebound.http.client_ip import Proxies
from ratebound.http.headers import Headers
from ratebound.http.rejection import RejectionFormat
from ratebound.limit import Failure, Limit
from ratebound.policy.identity.identify import ELSEWHERE, Alternatives, IdentityKinds, choosable
from ratebound.policy.identity.source import KIND, OWN, read_source
from ratebound.policy.match.conditions import Match
from ratebound.policy.match.coverage import covers
from ratebound.policy.model.client_list import ClientList, client_of
from ratebound.policy.model.descriptor_rule import DescriptorRule
from ratebound.policy.model.penalty import read_penalty
from ratebound.policy.model.pressure import read_pressure
from ratebound.policy.model.rule import (
    DEFAULT,
    FAILURES,
    RULE_NAME,
    Computed,
    Plan,
    Rule,
    Window,
    exceeds,
    find_counter_windows,
    read_limits,
)
from ratebound.policy.problem import Place, Problems, as_texts, check_choice, nearest, shown
from ratebound.storage.urls import check_storage_url

T = TypeVar("T")
Switch = Literal["on", "off", "shadow"]
SWITCHES = get_args(Switch)
IN_FLIGHT_OPTIONS = ("least", "most", "first")


@dataclass(frozen=True, slots=True, eq=False)
class Override:
    """Another tier, or other limits, for one client. Checked at construction.

    Args:
        client: An address, a range or an identity like `user:42`.
        limits: The other limits: text, limits, 'deny' or 'unlimited'.
        tier: The other tier, in place of limits.
        rules: The names of the rules that get the limits. Empty means all rules.

    Raises:
        PolicyError: The policy is invalid. It has every error, with its place.

    Examples:
        >>> from ratebound.policy import Override, Policy, Rule
        >>> policy = Policy(rules=[Rule("api", "100/minute")], overrides=[Override("user:42", "1000/minute")])
    """

    client: str
    limits: Any = None
    tier: str | None = None
    rules: Sequence[str] = ()

    def __post_init__(self) -> None:
        problems = Problems()
        if (self.limits is None) == (self.tier is None):
            given = "neither" if self.limits is None else "both"
            problems.add((), f"an override needs limits or a tier; this one has {given}")
        elif self.tier is not None and self.rules:
            problems.add((), "an override's tier applies to all rules: leave out 'rules', or write limits instead")
        if isinstance(self.limits, Mapping) or callable(self.limits) or isinstance(self.limits, Computed):
            problems.add(
                ("limits",),
                f"expected limits like '100/minute', 'deny' or 'unlimited', not {shown(self.limits)}: an override has"
                " no limits by tier and no function",
            )
        with problems.at("rules"):
            object.__setattr__(self, "rules", as_texts("rules", self.rules))
        problems.check()


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Policy:
    """A complete policy: rules, clients and settings. It is checked at construction, and never changes afterwards.

    Args:
        rules: The rules, in the order in which they are searched.
        storage: The URL of the storage.
        failure: What is decided while the storage is out of reach: `"local"` counts in this process, `"open"` allows,
            `"closed"` denies, `"raise"` raises StorageError.
        switch: 'on', 'off' (nothing is asked) or 'shadow' (nothing is denied).
        headers: The styles of header fields, or a mapping with the options of `Headers`.
        rejection: The format of rejections, or a mapping with the options of `RejectionFormat`.
        trusted: The addresses of trusted proxies, or a mapping with the options of `Proxies`.
        ipv6: The length of the prefix, from 32 to 128 bits, that counts as one client.
        concurrent: "auto", or a mapping of options of `InFlight`: web adapters then shed requests that an overloaded
            process cannot work on at once.
        salt: Text that is mixed into fingerprints. All processes need the same.
        by: The identity that rules without their own `by` count by.
        identities: The sources of identities by name: each a `Source`, or a mapping with the keys of one.
        tiers: Names, or names with the clients that belong to them.
        default_tier: The tier of every other client.
        exempt: Matches whose requests are not counted. Only a path in exactly the spelling of the pattern is exempt.
        allow: Clients that are never limited.
        block: Clients that are always refused. It wins over `allow`.
        overrides: Other limits or tiers for single clients.
        adaptive: A `Pressure`, or a mapping like {"cpu": "85%", "latency": "500 ms"}: it lowers limits while the
            process is overloaded.
        penalties: Entries that rules name by `penalty`: each a `Penalty`, a mapping with its keys, or text.
        descriptors: Rules for Envoy's rate limit service. They never apply to requests, nor `rules` to descriptors.

    Raises:
        PolicyError: The policy is invalid. It has every error, with its place.

    Examples:
        >>> from ratebound.policy import Match, Policy, Rule
        >>> policy = Policy(
        ...     rules=[
        ...         Rule("login", "5/minute", Match(paths=["/login"]), by="address"),
        ...         Rule("api", "100/minute", default=True),
        ...     ],
        ...     block=["203.0.113.0/24"],
        ... )
    """

    rules: Sequence[Rule] = ()
    storage: str = field(default="memory://", repr=False)  # it may hold a password
    failure: Failure = "local"
    switch: Switch = "on"
    headers: Any = "draft-11"
    rejection: Any = "problem+json"
    trusted: Any = ()
    ipv6: int = 64
    concurrent: Any = None
    salt: str = field(default="", repr=False)
    by: Any = ("user", "address")
    identities: Mapping[str, Any] = field(default_factory=dict)
    tiers: Any = ()
    default_tier: str | None = None
    exempt: Sequence[Match] = ()
    allow: Sequence[str] = ()
    block: Sequence[str] = ()
    overrides: Sequence[Override] = ()
    adaptive: Any = None
    penalties: Mapping[str, Any] = field(default_factory=dict)
    descriptors: Sequence[DescriptorRule] = ()

    pressure: Pressure | None = field(init=False, repr=False)
    proxies: Proxies = field(init=False, repr=False)
    response_headers: Headers = field(init=False, repr=False)
    rejection_format: RejectionFormat = field(init=False, repr=False)
    kinds: IdentityKinds = field(init=False, repr=False)
    alternatives: Alternatives = field(init=False, repr=False)  # of `by`
    rule_by: Mapping[str, Alternatives] = field(init=False, repr=False)  # by name of the rule
    counter_windows: Mapping[str, frozenset[Window]] = field(init=False, repr=False)  # by name of rule, with overrides
    penalty_limits: Mapping[str, Limit] = field(init=False, repr=False)  # by name of the entry
    tier_names: tuple[str, ...] = field(init=False, repr=False)
    members: ClientList[str] = field(init=False, repr=False)  # tiers by client
    overridden: ClientList[tuple[Override, Mapping[str, Plan]]] = field(init=False, repr=False)  # plans by rule

    def __post_init__(self) -> None:
        problems, put = Problems(), object.__setattr__
        for name in ("rules", "exempt", "allow", "block", "overrides", "descriptors"):
            value = getattr(self, name)
            if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
                problems.add((name,), f"expected a list, not {shown(value)}")
                value = ()
            put(self, name, tuple(value))
        kinds: dict[str, type[Any]] = {
            "rules": Rule,
            "exempt": Match,
            "overrides": Override,
            "descriptors": DescriptorRule,
        }
        for name, kind in kinds.items():
            for place, one in enumerate(getattr(self, name)):
                if not isinstance(one, kind):
                    hint = ": read_policy takes a whole policy as dicts" if isinstance(one, Mapping) else ""
                    problems.add((name, place), f"expected a {kind.__name__}, not {shown(one)}{hint}")
        with problems.at("failure"):
            check_choice("failure", self.failure, FAILURES[1:])
        with problems.at("switch"):
            check_choice("switch", self.switch, SWITCHES)
        with problems.at("storage"):
            _check_storage(self.storage)
        with problems.at("headers"):
            put(self, "response_headers", _construct(Headers, self.headers, _HEADERS))
        with problems.at("rejection"):
            headers = getattr(self, "response_headers", None)
            put(self, "rejection_format", _construct(RejectionFormat, self.rejection, _REJECTION, headers=headers))
        put(self, "proxies", Proxies())
        with problems.at("trusted"):
            put(self, "proxies", _construct(Proxies, self.trusted, _TRUSTED))
        put(self, "pressure", None)
        with problems.at("adaptive"):
            put(self, "pressure", read_pressure(self.adaptive))
        if type(self.ipv6) is not int or not 32 <= self.ipv6 <= 128:
            problems.add(("ipv6",), f"expected a prefix length from 32 to 128, not {shown(self.ipv6)}")
            put(self, "ipv6", 64)
        if not isinstance(self.salt, str):
            problems.add(("salt",), f"expected a string, not {shown(self.salt)}")
            put(self, "salt", "")
        with problems.at("concurrent"):
            put(self, "concurrent", _in_flight_options(self.concurrent))
        self._check_identities(problems)
        self._check_tiers(problems)
        self._check_penalties(problems)
        self._check_rules(problems)
        self._check_descriptors(problems)
        self._check_lists(problems)
        problems.check()

    def _check_identities(self, problems: Problems) -> None:
        put = object.__setattr__
        given: Any = self.identities
        if not isinstance(given, Mapping):
            problems.add(("identities",), f"expected a mapping of names to sources, not {shown(given)}")
            given = {}
        wrong = [name for name in given if not isinstance(name, str)]
        for name in wrong:
            problems.add(("identities", str(name)), f"expected a string as name, not {shown(name)}")
        sources = {
            name: read_source(source, ("identities", name), {}, problems)
            for name, source in given.items()
            if name not in wrong
        }
        put(self, "identities", sources)
        put(self, "kinds", IdentityKinds(sources, self.proxies, self.ipv6, self.salt))
        for name, source in sources.items():
            with problems.at("identities", name):
                base, _, detail = name.partition(":")
                if not KIND.fullmatch(base) or (detail and base not in ("header", "cookie")):
                    raise ValueError(
                        f"invalid name {name!r}: expected small letters, digits, _ and -, or 'header:x-name' or"
                        " 'cookie:name'"
                    )
                if base in ELSEWHERE:
                    raise ValueError(f"{base!r} means the address in other packages: choose another name")
                if base in OWN or (base == "user" and source.call is None):
                    raise ValueError(
                        f"{base!r} is built in: choose another name" + ", or give it a 'call'" * (base == "user")
                    )
                if source.proxy and not self.trusts_someone:
                    raise ValueError(
                        "no proxy is trusted, so this header is always ignored: list the proxies under 'trusted'"
                    )
                if source.proxy and self.proxies.single and not self.proxies.trusted:
                    raise ValueError(
                        "this header is always ignored: 'single' trusts proxies about addresses only; list the proxies"
                        " that set it under 'trusted: {proxies: …}'"
                    )
                self.kinds.kind("jwt:sub" if name == "jwt" else name)
        put(self, "alternatives", ())
        with problems.at("by"):
            found = self.kinds.alternatives(self.by)
            for kind in [kind for parts in found for kind in parts if kind.is_target]:
                raise ValueError(f"{kind.name!r} does not identify clients: write it in the 'by' of a rule")
            put(self, "alternatives", found)

    @property
    def reads_body(self) -> bool:
        """Return True if an adapter must read the body before it asks for a decision: a rule counts a field of it, or
        a function for a cost, limits, a value or an identity has a true attribute `reads_body`."""
        if any(rule.reads_body for rule in self.rules):
            return True
        functions = [
            function for rule in self.rules for function in (rule.cost, rule.computed and rule.computed.function)
        ]
        functions += [source.call for source in self.identities.values()]
        for by in (self.alternatives, *self.rule_by.values()):
            functions += [function for parts in by for kind in parts for function in kind.functions]
        return any(getattr(function, "reads_body", False) for function in functions)

    @property
    def trusts_someone(self) -> bool:
        """Return True if `trusted` names any proxy."""
        return isinstance(self.trusted, Proxies) or bool(self.trusted)

    def _check_tiers(self, problems: Problems) -> None:
        put = object.__setattr__
        put(self, "tier_names", ())
        put(self, "members", ClientList([], self.kinds))
        with problems.at("tiers"):
            tiers = self.tiers if isinstance(self.tiers, Mapping) else dict.fromkeys(as_texts("tiers", self.tiers), ())
            for tier in tiers:
                if not isinstance(tier, str) or not KIND.fullmatch(tier.lower()) or tier == DEFAULT:
                    problems.add(
                        ("tiers",),
                        f"{shown(tier)} cannot be a tier: expected letters, digits, _ and -, and not 'default'",
                    )
            if any(one.place == ("tiers",) for one in problems.found):
                return
            put(self, "tier_names", tuple(tiers))
            listed, good = [], []
            for tier, clients in tiers.items():
                with problems.at("tiers", tier):
                    listed += [(tier, place, client) for place, client in enumerate(_clients(clients))]
            for tier, place, client in listed:
                with problems.at("tiers", tier, place):
                    client_of(client, self.kinds)
                    good.append((client, tier))
            put(self, "members", ClientList(good, self.kinds))
        if self.default_tier is not None:
            self._check_tier(problems, ("default_tier",), self.default_tier)

    def _check_tier(self, problems: Problems, place: Place, tier: str) -> None:
        if tier not in self.tier_names and not any(one.place == ("tiers",) for one in problems.found):
            problems.add(place, f"unknown tier {shown(tier)}: {nearest(tier, self.tier_names)}")

    def _check_penalties(self, problems: Problems) -> None:
        limits: dict[str, Limit] = {}
        given: Any = self.penalties
        if not isinstance(given, Mapping):
            problems.add(("penalties",), f"expected a mapping of names to penalties, not {shown(given)}")
            given = {}
        for name, one in given.items():
            with problems.at("penalties", str(name)):
                if not isinstance(name, str) or not RULE_NAME.fullmatch(name):
                    raise ValueError(
                        f"{shown(name)}: expected 1 to 40 of the characters A-Z a-z 0-9 _ . : - beginning with a letter"
                        " or a digit"
                    )
                limits[name] = read_penalty(name, one)
        object.__setattr__(self, "penalty_limits", limits)

    def _check_abuse(self, problems: Problems, at: Place, rule: Rule, by: Alternatives) -> None:
        """Check what rules with penalties, and with limits of distinct values, need."""
        given = self.penalties if isinstance(self.penalties, Mapping) else {}
        if rule.penalty and rule.penalty not in given:
            hint = nearest(rule.penalty, given) if given else "add it to 'penalties'"
            problems.add((*at, "penalty"), f"unknown penalty {rule.penalty!r}: {hint}")
        for name, source in rule.sources.items():
            if isinstance(source, str):
                with problems.at(*at, "distinct", name):
                    self.kinds.check_source_of_values(source)
        plans = [*rule.plans.values(), *rule.candidates.values()]
        if rule.penalty or any(map(needs_verified, plans)):
            wrong = choosable(by)
            if wrong:
                place = "by" if rule.by is not None else "penalty" if rule.penalty else "limits"
                problems.add((*at, place), f"a rule with {_abuse_limits(rule)} {wrong}")

    def _check_rules(self, problems: Problems) -> None:
        if not self.rules and not self.block and not self.descriptors:
            problems.add(("rules",), "a policy without rules limits nothing: add at least one rule")
        names: dict[str, int] = {}
        alternatives: dict[str, Alternatives] = {}
        rules = self._of_kind("rules", Rule)
        for place, rule in rules:
            at: Place = ("rules", place)
            if names.setdefault(rule.name, place) != place:
                problems.add(
                    (*at, "name"), f"{rule.name!r} is also the name of rules[{names[rule.name]}]: choose another name"
                )
            with problems.at(*at, "by"):
                by = self._by_of(rule)
                alternatives[rule.name] = by
                early = all(kind.early for parts in by for kind in parts)
                if rule.stage == "early" and not early:
                    raise ValueError(
                        "an early rule is evaluated before clients are identified: count by address, prefix or global"
                    )
            self._check_abuse(problems, at, rule, alternatives.get(rule.name, ()))
            for tier in rule.match.tiers:
                self._check_tier(problems, (*at, "match", "tiers"), tier)
            for key, plans in (("limits", rule.plans), ("candidate", rule.candidates)):
                self._check_plans(problems, (*at, key), plans, rule)
            with problems.at(*at, "limits"):
                for plan in rule.plans.values():
                    _check_names(rule, plan)
            if rule.stage == "early" and (rule.match.tiers or {*rule.plans, *rule.candidates} - {DEFAULT}):
                problems.add(
                    (*at, "stage"),
                    "an early rule is evaluated before clients are identified, so it cannot use tiers: write 'stage:"
                    " late', or leave out the tiers",
                )
            for earlier, before in rules:
                if (
                    earlier < place
                    and before.final
                    and not before.default
                    and before.stage == rule.stage
                    and covers(before.match, rule.match)
                ):
                    problems.add(
                        at,
                        f"never reached: the final rule {before.name!r} before it matches the same requests; move this"
                        " rule before it",
                    )
                    break
        object.__setattr__(self, "rule_by", alternatives)

    def _check_descriptors(self, problems: Problems) -> None:
        names = {rule.name: f"rules[{place}]" for place, rule in self._of_kind("rules", Rule)}
        entries: dict[Any, str] = {}
        rules = self._of_kind("descriptors", DescriptorRule)
        for place, rule in rules:
            at: Place = ("descriptors", place)
            here = f"descriptors[{place}]"
            if names.setdefault(rule.name, here) != here:
                problems.add(
                    (*at, "name"), f"{rule.name!r} is also the name of {names[rule.name]}: choose another name"
                )
            same = rule.domain, tuple(condition[:2] for condition in rule.conditions)
            if entries.setdefault(same, rule.name) != rule.name:
                problems.add(
                    (*at, "entries"),
                    f"never matched: {entries[same]!r} has the same domain and entries; leave out one of them",
                )
            with problems.at(*at, "limits"):
                _check_names(rule.rule, rule.plan)
        known = {rule.name for _, rule in rules}
        for place, rule in rules:
            for name in rule.replaces:
                if name not in known or name == rule.name:
                    hint = nearest(name, known - {rule.name})
                    problems.add(("descriptors", place, "replaces"), f"unknown rule {name!r}: {hint}")

    def _of_kind(self, name: str, kind: type[T]) -> list[tuple[int, T]]:
        """Return the entries of a list that have the expected type, each with its index."""
        return [(place, one) for place, one in enumerate(getattr(self, name)) if isinstance(one, kind)]

    def _by_of(self, rule: Rule) -> Alternatives:
        if rule.by is not None:
            return self.kinds.alternatives(rule.by, rule.match.patterns if isinstance(rule.match, Match) else ())
        return self.kinds.alternatives("address") if rule.stage == "early" else self.alternatives

    def _check_plans(self, problems: Problems, at: Place, plans: Mapping[str, Plan], rule: Rule) -> None:
        for tier in plans:
            if tier != DEFAULT:
                self._check_tier(problems, (*at, tier), tier)
        if not plans or DEFAULT in plans:
            return
        possible = rule.match.tiers or self.tier_names
        for tier in possible:
            if tier not in plans:
                problems.add(at, f"tier {tier!r} would be unlimited: add limits for it, or '{DEFAULT}'")
        if self.default_tier is None and not rule.match.tiers:
            problems.add(at, f"clients without a tier would be unlimited: add '{DEFAULT}', or set default_tier")

    def _check_lists(self, problems: Problems) -> None:
        for name in ("allow", "block"):
            for place, client in enumerate(getattr(self, name)):
                with problems.at(name, place):
                    client_of(client, self.kinds)
        for place, match in self._of_kind("exempt", Match):
            if match.tiers:
                problems.add(
                    ("exempt", place, "tiers"),
                    "exempt is evaluated before clients are identified, so it cannot use tiers: write a rule with"
                    " 'limits: unlimited' instead",
                )
            if not match.paths and not match.addresses:
                problems.add(
                    ("exempt", place),
                    "expected paths or addresses: any client can choose its method, host and headers",
                )
        known = {rule.name: rule for _, rule in self._of_kind("rules", Rule)}
        windows = self._windows_with_overrides()
        object.__setattr__(self, "counter_windows", windows)
        entries = []
        for place, override in self._of_kind("overrides", Override):
            at: Place = ("overrides", place)
            with problems.at(*at, "client"):
                client_of(override.client, self.kinds)
            if override.tier is not None:
                self._check_tier(problems, (*at, "tier"), override.tier)
            plans: dict[str, Plan] = {}
            named = override.rules if override.limits is not None else ()
            for name in named:
                if name not in known:
                    problems.add((*at, "rules"), f"unknown rule {name!r}: {nearest(name, known)}")
            with problems.at(*at, "limits"):
                if override.limits is not None:
                    read_limits(override.limits)  # reports errors even if none of the override's rules exists
                for name in (named or known) if override.limits is not None else ():
                    if name in known:
                        plans[name] = known[name].plan(override.limits, windows[name])
                        check_overridden(known[name], plans[name], self.rule_by.get(name, ()))
            entries.append((override.client, (override, plans)))
        object.__setattr__(
            self, "overridden", ClientList(entries, self.kinds) if not problems.found else ClientList([], self.kinds)
        )

    def _windows_with_overrides(self) -> dict[str, frozenset[Window]]:
        """Return the counter windows of each rule, those of overrides included: a client that has an override for one
        request and none for the next must keep its count."""
        windows = {rule.name: rule.counter_windows for _, rule in self._of_kind("rules", Rule)}
        for _, override in self._of_kind("overrides", Override):
            with Problems().at():  # dropped here: _check_lists reports it
                limits = override.limits
                more = frozenset[Window]() if limits is None else find_counter_windows([read_limits(limits)])
                for name in override.rules or windows if more else ():
                    if name in windows:
                        windows[name] |= more
        return windows


def check_overridden(rule: Rule, plan: Plan, by: Alternatives) -> None:
    """Raise ValueError if a rule that counts by `by` cannot have the plan of an override."""
    _check_cost(rule, plan)
    _check_names(rule, plan)
    wrong = choosable(by) if needs_verified(plan) else ""
    if wrong:
        raise ValueError(f"rule {rule.name!r} cannot have these limits: {wrong}")


def _check_cost(rule: Rule, plan: Plan) -> None:
    for limit in plan if isinstance(plan, tuple) else ():
        if isinstance(rule.cost, int) and exceeds(rule.cost, limit):
            raise ValueError(
                f"the cost {rule.cost} of rule {rule.name!r} can never pass '{limit}', which allows at most"
                f" {limit.burst} at once: raise the limit"
            )


def _check_names(rule: Rule, plan: Plan) -> None:
    """Raise ValueError for the name of a candidate: an enforced limit would share the state of a candidate."""
    for limit in plan if isinstance(plan, tuple) else ():
        if limit.name.startswith(f"{rule.name}/candidate."):
            raise ValueError(f"'{limit.text}': names that begin with 'candidate.' are reserved: choose another name")


def _in_flight_options(given: Any) -> Mapping[str, int] | None:
    """Return the options of InFlight; None if there is none. Raises ValueError."""
    if given is None:
        return None
    options = {} if given == "auto" else given
    if not isinstance(options, Mapping):
        is_number = isinstance(given, int) and not isinstance(given, bool)
        fixed = f": for a fixed number write '{given} concurrent' in a rule with 'by: global'" if is_number else ""
        known = ", ".join(IN_FLIGHT_OPTIONS)
        raise ValueError(f"expected 'auto', or a mapping with {known}, not {shown(given)}{fixed}")
    for name in options:
        if name not in IN_FLIGHT_OPTIONS:
            raise ValueError(f"unknown key {shown(name)}: {nearest(name, IN_FLIGHT_OPTIONS)}")
    InFlight(**options)
    return dict(options)


def needs_verified(plan: Plan) -> bool:
    """Return True if a plan may count only by an identity that no client can choose: it blocks, or counts values."""
    return isinstance(plan, tuple) and any(limit.is_distinct or limit.is_penalty for limit in plan)


def _abuse_limits(rule: Rule) -> str:
    plans = [plan for plan in (*rule.plans.values(), *rule.candidates.values()) if isinstance(plan, tuple)]
    has_penalty = rule.penalty or any(limit.is_penalty for plan in plans for limit in plan)
    what = "a penalty" if has_penalty else "distinct values"
    return f"{what} counts only by address, prefix or a verified identity:"


def _check_storage(url: object) -> None:
    if not isinstance(url, str):
        raise ValueError(
            f"expected a URL like 'shm://api' or 'redis://host:6379/0', not a value of type {type(url).__name__}"
        )
    check_storage_url(url)


def _clients(listed: Any) -> tuple[Any, ...]:
    """Return the clients of a tier, which may be written as nothing, one string or a list."""
    if listed is None or isinstance(listed, str):
        return (listed,) if listed else ()
    if not isinstance(listed, Iterable) or isinstance(listed, bytes | Mapping):
        raise ValueError(f"expected a client or a list of clients, not {shown(listed)}")
    return tuple(listed)


def _names(names: Any) -> Any:
    if not isinstance(names or {}, Mapping) or not all(
        isinstance(text, str) for pair in (names or {}).items() for text in pair
    ):
        raise ValueError(f"names must map the names of limits to the names that clients see, not {shown(names)}")
    return names


def _format(format: Any) -> Any:
    if isinstance(format, str) or callable(format):
        return format
    raise ValueError(f"expected a format like 'problem+json', or a function, not {shown(format)}")


def _single(single: Any) -> Any:
    """Return the option `single` with its ranges as strings: `ipaddress` would read a number as an address."""
    if single is not None and not isinstance(single, Mapping):
        raise ValueError(f"single must map names of headers to the proxies that set them, not {shown(single)}")
    return {name: as_texts("the ranges of a header", one) for name, one in (single or {}).items()}


# Functions for options that may be written in several ways, by name. The first option may be given without its name.
Readers = Mapping[str, Callable[[Any], Any]]
_HEADERS: Readers = {"styles": partial(as_texts, "styles"), "names": _names}
_REJECTION: Readers = {"format": _format}
_TRUSTED: Readers = {"trusted": partial(as_texts, "proxies"), "single": _single}


def _construct(kind: Any, given: Any, readers: Readers, **more: Any) -> Any:
    """Return `given` if it is an object of this kind already. Else construct one from a mapping of its arguments, or
    from its first argument alone. Raises PolicyError with every error."""
    if isinstance(given, kind):
        return given
    if not isinstance(given, Mapping):
        return kind(next(iter(readers.values()))(given), **more)
    problems, arguments = Problems(), {}
    for key, one in given.items():
        name = str(key).replace("-", "_")
        with problems.at("proxies" if kind is Proxies and name == "trusted" else name):
            arguments[name] = readers[name](one) if name in readers else one
            kind(**{name: arguments[name]})  # each by itself, so that an error in one does not hide the next
    problems.check()
    return kind(**arguments, **more)
