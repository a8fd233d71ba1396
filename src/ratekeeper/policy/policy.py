"""A policy: all that is said about limits in one place, checked as a whole before it runs.

What one rule can know of itself is checked in rule.py; here is what only shows when all is put together.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from ratekeeper.http.client_ip import Proxies
from ratekeeper.http.headers import Headers
from ratekeeper.http.rejection import Rejection
from ratekeeper.policy.clients import Clients, client_of
from ratekeeper.policy.cover import covers
from ratekeeper.policy.identify import ELSEWHERE, KIND, Alternatives, Kinds, Source
from ratekeeper.policy.match import Match
from ratekeeper.policy.problem import Place, Problems, as_texts, chosen, nearest, shown
from ratekeeper.policy.rule import DEFAULT, FAILURES, Computed, Failure, Plan, Rule, Window, as_written, wide_windows
from ratekeeper.storage.redis.address import parse_url
from ratekeeper.storage.urls import open_storage

Switch = Literal["on", "off", "shadow"]
SWITCHES = get_args(Switch)


@dataclass(frozen=True, slots=True, eq=False)
class Override:
    """Something else for one client: an address, a range or an identity like `user:42`. It changes the tier, or the
    limits of the named rules, or of all."""

    client: str
    limits: Any = None
    tier: str | None = None
    rules: Sequence[str] = ()

    def __post_init__(self) -> None:
        if (self.limits is None) == (self.tier is None):
            raise ValueError("an override has limits or a tier")
        if self.tier is not None and self.rules:
            raise ValueError("an override's tier holds for all rules; leave out 'rules', or give limits instead")
        if isinstance(self.limits, Mapping) or callable(self.limits) or isinstance(self.limits, Computed):
            raise ValueError("an override's limits are text, limits, 'deny' or 'unlimited'")
        object.__setattr__(self, "rules", as_texts("rules", self.rules))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Policy:
    """Everything is checked at construction; PolicyError tells all that is wrong. Nothing of it changes afterwards.

    `by` is how clients are told apart where a rule does not say. `tiers` are names, or names with the clients that
    belong to them; `default_tier` is that of everybody else. `exempt` are matches that nothing is counted for, met
    only by their exact spelling; `allow` and `block` are clients, and block wins. `ipv6` is the prefix of one client.
    """

    rules: Sequence[Rule] = ()
    storage: str = "memory://"
    failure: Failure = "local"
    switch: Switch = "on"
    headers: Any = "draft-11"
    refusal: Any = "problem+json"
    trusted: Any = ()
    ipv6: int = 64
    by: Any = ("user", "address")
    identities: Mapping[str, Source] = field(default_factory=dict)
    tiers: Any = ()
    default_tier: str | None = None
    exempt: Sequence[Match] = ()
    allow: Sequence[str] = ()
    block: Sequence[str] = ()
    overrides: Sequence[Override] = ()

    proxies: Proxies = field(init=False, repr=False)
    response_headers: Headers = field(init=False, repr=False)
    rejection: Rejection = field(init=False, repr=False)
    kinds: Kinds = field(init=False, repr=False)
    alternatives: Alternatives = field(init=False, repr=False)  # of `by`
    rule_by: Mapping[str, Alternatives] = field(init=False, repr=False)  # by name of the rule
    wide: Mapping[str, frozenset[Window]] = field(init=False, repr=False)  # `Rule.wide` with overrides, by name of rule
    tier_names: tuple[str, ...] = field(init=False, repr=False)
    members: Clients[str] = field(init=False, repr=False)  # tiers by client
    overridden: Clients[tuple[Override, Mapping[str, Plan]]] = field(init=False, repr=False)  # plans by rule

    def __post_init__(self) -> None:
        problems, put = Problems(), object.__setattr__
        for name in ("rules", "exempt", "allow", "block", "overrides"):
            value = getattr(self, name)
            if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
                problems.add((name,), f"expected a list, not {shown(value)}")
                value = ()
            put(self, name, tuple(value))
        for name, kind in (("rules", Rule), ("exempt", Match), ("overrides", Override)):
            for place, one in enumerate(getattr(self, name)):
                if not isinstance(one, kind):
                    problems.add((name, place), f"expected a {kind.__name__}, not {shown(one)}")
        problems.check()
        with problems.at("failure"):
            chosen("failure", self.failure, FAILURES[1:])
        with problems.at("switch"):
            chosen("switch", self.switch, SWITCHES)
        with problems.at("storage"):
            _check_storage(self.storage)
        with problems.at("headers"):
            put(self, "response_headers", _made(Headers, _styles(self.headers), "styles"))
        with problems.at("refusal"):
            refusal = _made(Rejection, _format(self.refusal), "format", headers=getattr(self, "response_headers", None))
            put(self, "rejection", refusal)
        put(self, "proxies", Proxies())
        with problems.at("trusted"):
            put(self, "proxies", _made(Proxies, _ranges(self.trusted), "trusted"))
        if type(self.ipv6) is not int or not 32 <= self.ipv6 <= 128:
            problems.add(("ipv6",), f"expected a length of prefix from 32 to 128, not {shown(self.ipv6)}")
            put(self, "ipv6", 64)
        self._check_identities(problems)
        self._check_tiers(problems)
        self._check_rules(problems)
        self._check_lists(problems)
        problems.check()

    def _check_identities(self, problems: Problems) -> None:
        put = object.__setattr__
        put(self, "kinds", Kinds(self.identities, self.proxies, self.ipv6))
        for name, source in self.identities.items():
            with problems.at("identities", name):
                base, _, detail = str(name).partition(":")
                if not KIND.fullmatch(base) or (detail and base not in ("header", "cookie")):
                    raise ValueError("a name is small letters, digits, _ and -; or 'header:x-name', 'cookie:name'")
                if base in ELSEWHERE:
                    raise ValueError(f"{base!r} is what others call an address: choose another name")
                if base in ("address", "agent", "global", "prefix") or (base == "user" and source.call is None):
                    raise ValueError(f"{base} is built in: choose another name" + " or a 'call'" * (base == "user"))
                if not isinstance(source, Source):
                    raise ValueError(f"expected a Source, not {shown(source)}")
                if source.proxy and not self.trusts_someone:
                    raise ValueError("no proxy is trusted, so this header never counts: say which under 'trusted'")
                if source.proxy and self.proxies.single and not self.proxies.trusted:
                    raise ValueError(
                        "this header never counts: 'single' trusts proxies about addresses only; name those that set it"
                        " under 'trusted: {proxies: …}'"
                    )
                self.kinds.kind("jwt:sub" if name == "jwt" else name)
        put(self, "alternatives", ())
        with problems.at("by"):
            put(self, "alternatives", self.kinds.alternatives(self.by))

    @property
    def reads_body(self) -> bool:
        """Whether one of its functions looks at the body, so that an adapter has to read it first: one that finds a
        cost, limits or an identity, and has an attribute `reads_body` that is true."""
        functions = [
            function for rule in self.rules for function in (rule.cost, rule.computed and rule.computed.function)
        ]
        functions += [source.call for source in self.identities.values()]
        for by in (self.alternatives, *self.rule_by.values()):
            functions += [function for parts in by for kind in parts for function in kind.functions]
        return any(getattr(function, "reads_body", False) for function in functions)

    @property
    def trusts_someone(self) -> bool:
        return isinstance(self.trusted, Proxies) or bool(self.trusted)

    def _check_tiers(self, problems: Problems) -> None:
        put = object.__setattr__
        put(self, "tier_names", ())
        put(self, "members", Clients([], self.kinds))
        with problems.at("tiers"):
            tiers = self.tiers if isinstance(self.tiers, Mapping) else dict.fromkeys(as_texts("tiers", self.tiers), ())
            for tier in tiers:
                if not isinstance(tier, str) or not KIND.fullmatch(tier.lower()) or tier == DEFAULT:
                    raise ValueError(f"{shown(tier)} cannot be a tier: letters, digits, _ and -, and not 'default'")
            put(self, "tier_names", tuple(tiers))
            listed, good = [], []
            for tier, clients in tiers.items():
                with problems.at("tiers", tier):
                    listed += [(tier, place, client) for place, client in enumerate(_clients(clients))]
            for tier, place, client in listed:
                with problems.at("tiers", tier, place):
                    client_of(client, self.kinds)
                    good.append((client, tier))
            put(self, "members", Clients(good, self.kinds))
        if self.default_tier is not None:
            self._check_tier(problems, ("default_tier",), self.default_tier)

    def _check_tier(self, problems: Problems, place: Place, tier: str) -> None:
        if tier not in self.tier_names:
            problems.add(place, f"unknown tier {shown(tier)}: {nearest(tier, self.tier_names)}")

    def _check_rules(self, problems: Problems) -> None:
        if not self.rules and not self.block:
            problems.add(("rules",), "a policy without rules limits nothing")
        names: dict[str, int] = {}
        alternatives: dict[str, Alternatives] = {}
        for place, rule in enumerate(self.rules):
            at: Place = ("rules", place)
            if names.setdefault(rule.name, place) != place:
                problems.add((*at, "name"), f"{rule.name!r} is the name of rules[{names[rule.name]}], too")
            with problems.at(*at, "by"):
                by = self._by_of(rule)
                alternatives[rule.name] = by
                early = all(kind.early for parts in by for kind in parts)
                if rule.stage == "early" and not early:
                    raise ValueError(
                        "an early rule comes before anybody is identified: count by address, prefix or global"
                    )
            for tier in rule.match.tiers:
                self._check_tier(problems, (*at, "match", "tiers"), tier)
            for key, plans in (("limits", rule.plans), ("candidate", rule.candidates)):
                self._check_plans(problems, (*at, key), plans, rule)
            with problems.at(*at, "limits"):
                for plan in rule.plans.values():
                    _check_names(rule, plan)
            if rule.stage == "early" and (rule.match.tiers or {*rule.plans, *rule.candidates} - {DEFAULT}):
                problems.add((*at, "stage"), "an early rule comes before anybody is identified: it cannot know a tier")
            for before in self.rules[:place]:
                if (
                    before.final
                    and not before.default
                    and before.stage == rule.stage
                    and covers(before.match, rule.match)
                ):
                    problems.add(
                        at, f"never reached: {before.name!r} before it is final, and matches all that it matches"
                    )
                    break
        object.__setattr__(self, "rule_by", alternatives)

    def _by_of(self, rule: Rule) -> Alternatives:
        if rule.by is not None:
            return self.kinds.alternatives(rule.by)
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
                problems.add(at, f"tier {tier!r} would be unlimited: give it limits, or add '{DEFAULT}'")
        if self.default_tier is None and not rule.match.tiers:
            problems.add(at, f"clients without a tier would be unlimited: add '{DEFAULT}', or set default_tier")

    def _check_lists(self, problems: Problems) -> None:
        for name in ("allow", "block"):
            for place, client in enumerate(getattr(self, name)):
                with problems.at(name, place):
                    client_of(client, self.kinds)
        for place, match in enumerate(self.exempt):
            if match.tiers:
                problems.add(
                    ("exempt", place, "tiers"), "exempt comes before anybody is identified: use a rule 'unlimited'"
                )
            if not match.paths and not match.addresses:
                problems.add(("exempt", place), "expected paths or addresses: else anybody can claim to be exempt")
        known = {rule.name: rule for rule in self.rules}
        wide = self._wide_with_overrides()
        object.__setattr__(self, "wide", wide)
        entries = []
        for place, override in enumerate(self.overrides):
            at: Place = ("overrides", place)
            with problems.at(*at, "client"):
                client_of(override.client, self.kinds)
                if override.tier is not None:
                    self._check_tier(problems, (*at, "tier"), override.tier)
                plans: dict[str, Plan] = {}
                for name in override.rules or known if override.limits is not None else ():
                    if name not in known:
                        problems.add((*at, "rules"), f"unknown rule {name!r}: {nearest(name, known)}")
                        continue
                    rule_problems = Problems()
                    with rule_problems.at(*at, "limits"):
                        plans[name] = known[name].plan(override.limits, wide[name])
                        _check_reach(known[name], plans[name])
                        _check_names(known[name], plans[name])
                    problems.found += rule_problems.found
                    if rule_problems.found:
                        break
                entries.append((override.client, (override, plans)))
        object.__setattr__(
            self, "overridden", Clients(entries, self.kinds) if not problems.found else Clients([], self.kinds)
        )

    def _wide_with_overrides(self) -> dict[str, frozenset[Window]]:
        """A client may have an override for one request and none for the next: it must find the same count."""
        wide = {rule.name: rule.wide for rule in self.rules}
        for override in self.overrides:
            with Problems().at():  # what is wrong is told where a plan is made of it
                more = wide_windows([as_written(override.limits)]) if override.limits is not None else frozenset()
                for name in override.rules or wide if more else ():
                    if name in wide:
                        wide[name] |= more
        return wide


def _check_reach(rule: Rule, plan: Plan) -> None:
    for limit in plan if isinstance(plan, tuple) else ():
        if isinstance(rule.cost, int) and rule.cost > limit.burst:
            raise ValueError(f"the cost {rule.cost} of rule {rule.name!r} can never pass '{limit}'")


def _check_names(rule: Rule, plan: Plan) -> None:
    """Else a live limit could share the state of a candidate."""
    for limit in plan if isinstance(plan, tuple) else ():
        if limit.name.startswith(f"{rule.name}/candidate."):
            raise ValueError(f"'{limit.text}' has the name of a candidate: choose one that begins with another word")


def _check_storage(url: object) -> None:
    if not isinstance(url, str):
        raise ValueError(f"expected a URL like 'redis://host:6379/0', not {shown(url)}")
    try:
        scheme = urlsplit(url).scheme.partition("+")[0]
    except ValueError as error:
        raise ValueError(f"cannot read this URL: {error}") from None
    if scheme in ("redis", "rediss", "unix"):
        parse_url(url)  # nothing is opened, and redis-py is not needed to look at it
    else:
        open_storage(url)


def _styles(headers: Any) -> Any:
    if isinstance(headers, Headers):
        return headers
    if not isinstance(headers, Mapping):
        return as_texts("headers", headers)
    found = dict(headers)
    if "styles" in found:
        found["styles"] = as_texts("styles", found["styles"])
    names = found.get("names") or {}
    if not isinstance(names, Mapping) or not all(isinstance(text, str) for pair in names.items() for text in pair):
        raise ValueError(f"names must be names of limits with those that clients see, not {shown(names)}")
    return found


def _format(refusal: Any) -> Any:
    format = refusal.get("format", "") if isinstance(refusal, Mapping) else refusal
    if isinstance(format, str | Rejection) or callable(format):
        return refusal
    raise ValueError(f"expected a format like 'problem+json', or a function, not {shown(format)}")


def _clients(listed: Any) -> tuple[Any, ...]:
    """Those of a tier: none, one, or several."""
    if listed is None or isinstance(listed, str):
        return (listed,) if listed else ()
    if not isinstance(listed, Iterable) or isinstance(listed, bytes | Mapping):
        raise ValueError(f"expected text or a list of texts, not {shown(listed)}")
    return tuple(listed)


def _ranges(trusted: Any) -> Any:
    """Ranges are text wherever they stand: a number would be an address to those who read them."""
    if isinstance(trusted, Proxies):
        return trusted
    if not isinstance(trusted, Mapping):
        return as_texts("trusted", trusted)
    found = dict(trusted)
    if "trusted" in found:
        found["trusted"] = as_texts("proxies", found["trusted"])
    single = found.get("single")
    if single is not None and not isinstance(single, Mapping):
        raise ValueError(f"single must be names of headers with the ranges that set them, not {shown(single)}")
    if single:
        found["single"] = {name: as_texts("the ranges of a header", one) for name, one in single.items()}
    return found


def _made(kind: Any, value: Any, first: str, **more: Any) -> Any:
    """An object as it is, or made from what a file says: its first argument, or several by name."""
    if isinstance(value, kind):
        return value
    arguments = (
        {str(name).replace("-", "_"): one for name, one in value.items()}
        if isinstance(value, Mapping)
        else {first: value}
    )
    return kind(**arguments, **more)
