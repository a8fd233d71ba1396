"""A rule: the requests that it matches, the identity that it counts by, and its limits."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, get_args

from ratebound.clock import SECOND
from ratebound.errors import InvalidLimit
from ratebound.http.rejection import is_sendable
from ratebound.limit import (
    MAX_LEASE,
    SLICES_IN_PERIOD,
    VALUE_NAME,
    Failure,
    Limit,
    Over,
    Slice,
    checked_cost,
    default_algorithm,
    limit_set,
)
from ratebound.notation import parse_limits
from ratebound.policy.duration_text import read_seconds
from ratebound.policy.functions import check_takes
from ratebound.policy.match.conditions import Match
from ratebound.policy.match.request import RequestView
from ratebound.policy.match.request_value import RequestValue, part_of
from ratebound.policy.model.charge_by_result import ByResult, read_charge, read_strike
from ratebound.policy.model.slice_option import read_slice
from ratebound.policy.problem import Problems, check_choice, nearest, shown
from ratebound.share import read_share

Mode = Literal["enforce", "shadow"]
Stage = Literal["early", "late"]
Priority = Literal["low", "normal", "high", "critical"]
FAILURES = ("", *get_args(Failure))

Plan = tuple[Limit, ...] | Literal["deny", "unlimited"]
EXEMPT: Final = object()  # limits that a function returns for a request which the rule leaves alone, penalties included
WrittenLimit = tuple[Limit, bool]  # a limit, and True if no algorithm was written
WrittenLimits = tuple[WrittenLimit, ...] | Literal["deny", "unlimited"]
Window = tuple[str, int]  # a limit's own name, if it has one, and its period
Cost = int | Callable[[RequestView], Any]
# Where a limit of distinct values finds a value: a part of the request, the name of an identity, or a function.
ValueSource = RequestValue | str | Callable[[RequestView], Any]

RULE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,39}")
DEFAULT = "default"  # in limits by tier: the key for clients of every other tier


class RuleTerms(NamedTuple):
    """The terms of a rule for all its limits: their failure mode, metering, the time to retry for a slot, the share at
    which they warn, and how they are decided without the storage.

    `is_computed` is True for limits that a function returned: those that cannot be decided without the storage are left
    as they are. It is an error of all others."""

    failure: str = ""
    over: str = "deny"
    retry_us: int = 0
    warn: float = 0.0
    slice: Slice | None = None
    deny_cache: bool = False
    is_computed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """Limits that a function returns for each request. The function may be async for an AsyncGate.

    Args:
        function: A function of the RequestView. It returns what a rule's `limits` may be: text, limits, 'deny' or
            'unlimited'.
        otherwise: The limits if it returns None or raises.

    Raises:
        ValueError: The function cannot be called.

    Examples:
        >>> from ratebound.policy import Computed, Gate, Policy, RequestView, Rule
        >>> limits = Computed(lambda request: "1000/minute" if request.user == "42" else None, otherwise="10/minute")
        >>> gate = Gate(Policy(rules=[Rule("api", limits)]))
        >>> gate.decide(RequestView("GET", "/orders", user="42")).decision.remaining
        999
    """

    function: Callable[[RequestView], Any]
    otherwise: Any

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ValueError(f"expected a function, not {shown(self.function)}")


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """One rule of a policy: which requests it matches, who shares a quota, and the limits. Checked at construction.

    Limits written without an algorithm get the same algorithm in all tiers, so that a client who changes tier keeps its
    count: the sliding counter if one of them has a count so large that this is its default, else the sliding log. A
    Limit does not record how it was written: one that has its default algorithm counts as written without.

    Args:
        name: The name, at most 40 characters. It is part of the keys of states.
        limits: Text, limits, 'deny', 'unlimited', any of these by tier, or `Computed`.
        match: The requests that it applies to. An empty match matches all.
        by: The identity that shares a quota: the name of one, or several, of which the first that is known counts. None
            means the policy's `by`.
        cost: The units that a request costs, or a function of the RequestView that returns them.
        mode: `"shadow"` for a rule that is evaluated and reported, and never denies.
        candidate: Limits that are evaluated and reported beside the rule's own, and never deny.
        failure: What is decided while the storage is out of reach: `"local"`, `"open"`, `"closed"` or `"raise"`. Empty
            means the policy's.
        stage: 'early' for a rule that is evaluated before authentication.
        default: True for a rule that applies if no other rule matched.
        final: True for a rule that ends the search.
        message: The text of rejections. Empty means the policy's.
        documentation: The link in rejections. Empty means the policy's.
        over: 'allow' for a metered rule: it counts what exceeds its limits, and denies nothing. All of its limits must
            have windows. Its candidate is not metered, so it reports what enforcing it would deny.
        retry: The time after which a client without a slot is told to try again: seconds, a timedelta, or text like '5
            seconds'.
        warn: The share of a limit, like 0.8 or `"80%"`, at which listeners receive `Warned`. None means never.
        priority: For a policy with `adaptive`: while the process is overloaded, limits of rules with a low priority are
            lowered first, and those of critical rules never.
        charge: What a request costs once its result is known: 'failure', 'success', 'bytes', {'status': [401]},
            {'bytes': '1 KB'}, {'header': 'x-cost'}, or a function of a FinishedResponse.
        strike: The results that are strikes of the rule's penalties: 'failure' or {'status': [401]}.
        distinct: Where the values of limits like '20 distinct account/hour' come from: {"account": "body.username"}. A
            source is a part of the request (body.FIELD, path.NAME, query.NAME, header.NAME, cookie.NAME), the name of
            an identity, or a function of the RequestView.
        penalty: The name of an entry of the policy's `penalties`: a denial by this rule is a strike.
        slice: Lets each process take a part of every limit from a shared storage at once: True, a share like `"5%"`, or
            a mapping of `share` and `for`. A limit that has a slice of its own keeps it.
        deny_cache: True lets a process repeat a denial for up to a second without asking the storage.

    Raises:
        PolicyError: The policy is invalid. It has every error, with its place.

    Examples:
        >>> from ratebound.policy import Match, Rule
        >>> rule = Rule("search", {"pro": "100/minute", "default": "10/minute"}, Match(paths=["/search"]), by="user")
    """

    name: str
    limits: Any
    match: Match = field(default_factory=Match)
    by: Any = None
    cost: Cost = 1
    mode: Mode = "enforce"
    candidate: Any = None
    failure: Failure | Literal[""] = ""
    stage: Stage = "late"
    default: bool = False
    final: bool = False
    message: str = ""
    documentation: str = ""
    over: Over = "deny"
    retry: Any = None  # stored in seconds
    warn: Any = None  # stored as a number
    priority: Priority = "normal"
    charge: Any = None
    strike: Any = None
    distinct: Any = None
    penalty: str = ""
    slice: Any = None  # stored as a Slice
    deny_cache: bool = False

    plans: Mapping[str, Plan] = field(init=False, repr=False)  # by tier; DEFAULT for all others
    computed: Computed | None = field(init=False, repr=False)
    candidates: Mapping[str, Plan] = field(init=False, repr=False)
    written: Mapping[str, WrittenLimits] = field(init=False, repr=False)  # the plans before they get their algorithms
    counter_windows: frozenset[Window] = field(init=False, repr=False)  # see find_counter_windows
    by_result: ByResult | None = field(init=False, repr=False)  # what `charge` and `strike` decide
    sources: Mapping[str, ValueSource] = field(init=False, repr=False)  # of `distinct`

    def __post_init__(self) -> None:
        problems, put = Problems(), object.__setattr__
        if not isinstance(self.name, str) or not RULE_NAME.fullmatch(self.name):
            problems.add(
                ("name",),
                f"{shown(self.name)}: expected 1 to 40 of the characters A-Z a-z 0-9 _ . : - beginning with a letter or"
                " a digit",
            )
            put(self, "name", "rule")
        if not isinstance(self.match, Match):
            problems.add(("match",), f"expected a Match, not {shown(self.match)}")
        choices = (("mode", Mode), ("stage", Stage), ("over", Over), ("priority", Priority))
        for name, known in (("failure", FAILURES), *((name, get_args(choice)) for name, choice in choices)):
            with problems.at(name):
                check_choice(name, getattr(self, name), known)
        if self.failure not in FAILURES:
            put(self, "failure", "")  # so that it is reported once, and not for each limit
        with problems.at("retry"):
            given, retry = self.retry, None
            put(self, "retry", None)
            if given is not None:
                retry = read_seconds(given)
                if not 0 < retry * SECOND <= MAX_LEASE:
                    raise ValueError(f"expected more than 0 and at most a day, like '5 seconds', not {shown(given)}")
            put(self, "retry", retry)
        with problems.at("warn"):
            warn = self.warn
            put(self, "warn", None)  # so that it is reported once
            put(self, "warn", None if warn is None else read_share(warn))
        with problems.at("slice"):
            sliced = self.slice
            put(self, "slice", None)  # so that it is reported once
            put(self, "slice", read_slice(sliced))
        flags = ("default", "final", "deny_cache")
        for name, kind in (*((flag, bool) for flag in flags), ("message", str), ("documentation", str)):
            if not isinstance(getattr(self, name), kind):
                expected = "a string" if kind is str else "true or false"
                problems.add((name,), f"expected {expected}, not {shown(getattr(self, name))}")
            elif kind is str and not is_sendable(getattr(self, name)):
                problems.add((name,), "half of a surrogate pair cannot be sent as UTF-8: remove it")
        put(self, "sources", {})
        with problems.at("distinct"):
            put(self, "sources", _read_sources(self.distinct, self.match, problems))
        with problems.at("penalty"):
            if not isinstance(self.penalty, str):
                raise ValueError(f"expected the name of an entry of 'penalties', not {shown(self.penalty)}")
        put(self, "plans", {})
        with problems.at("limits"):
            self._read_limits()
        with problems.at("candidate"):
            wrong = Problems()
            written = {} if self.candidate is None else _read_by_tier(self.candidate, wrong)
            windows = find_counter_windows(written.values())
            options = self._options()._replace(over="deny", warn=0.0)
            put(self, "candidates", self._plans(written, windows, wrong, "candidate.", options))
            if any(plan == "unlimited" for plan in self.candidates.values()):
                wrong.add((), "an unlimited candidate reports nothing: write limits, or leave it out")
            wrong.check()
        with problems.at("cost"):
            if callable(self.cost):
                check_takes(self.cost, "the RequestView")
            else:
                put(self, "cost", checked_cost(self.cost))
        if self.final and self.mode == "shadow":
            problems.add(
                ("final",), "a rule with 'mode: shadow' cannot be final: it would skip the enforced rules after it"
            )
        if isinstance(self.cost, int):
            self._check_cost(self.cost, problems)
        is_read = not any(problem.place[:1] in (("limits",), ("candidate",)) for problem in problems.found)
        if self.retry and is_read and self.computed is None and not self._has_slots():
            problems.add(
                ("retry",),
                "it is for slots, and this rule has none: leave it out, or add a limit like '3 concurrent'; other"
                " limits know when a request passes",
            )
        if self.warn and is_read and self.computed is None and not self._has_watched_limits():
            problems.add(
                ("warn",),
                "this rule has no limit to warn of: leave it out, or add limits like '100/minute' to the rule",
            )
        self._read_by_result(problems, is_read=is_read)
        if is_read:
            self._check_local(problems)
        if is_read and not any(problem.place[:1] == ("distinct",) for problem in problems.found):
            self._check_values(problems)
            self._check_strikes(problems)
        problems.check()

    def _read_by_result(self, problems: Problems, *, is_read: bool) -> None:
        charge = strikes = None
        with problems.at("charge"):
            charge = read_charge(self.charge)
        with problems.at("strike"):
            strikes = read_strike(self.strike)
            if strikes is not None and is_read and self.computed is None and not self._has_penalty():
                raise ValueError(
                    "it is for penalties, and this rule has none: leave it out, or name one with 'penalty', or add a"
                    " limit like '3 strikes/hour block 5 minutes'"
                )
        found = charge if strikes is None else (charge or ByResult())._replace(strikes=strikes)
        object.__setattr__(self, "by_result", found)

    def _check_local(self, problems: Problems) -> None:
        """Check that the rule can have the slices and the deny cache that it asks for, or that its limits have."""
        by_penalty = (
            "a rule with a penalty cannot have it: the storage counts strikes and blocks, so it must see every request"
        )
        by_result = (
            "a rule with 'charge' or 'strike' cannot have it: the result of a request changes what is denied; leave"
            " one of them out"
        )
        limits = list(self._limits())
        for key, asked in (("slice", self.slice is not None), ("deny_cache", self.deny_cache is True)):
            own = any(getattr(limit, key) for limit in limits)
            if asked and not limits and self.computed is None:
                problems.add((key,), "this rule has no limits: leave it out, or add limits like '100/minute'")
            elif not (asked or own):
                continue
            elif self.penalty:
                problems.add((key if asked else "limits",), by_penalty)
            elif key == "deny_cache" and self.by_result is not None:
                problems.add((key if asked else "limits",), by_result)

    def _has_penalty(self) -> bool:
        own = any(limit.is_penalty for plan in self.plans.values() if isinstance(plan, tuple) for limit in plan)
        return own or bool(self.penalty)

    def _read_limits(self) -> None:
        computed = self.limits if isinstance(self.limits, Computed) else None
        if computed is None and callable(self.limits):
            raise ValueError(
                "a function needs limits for when it fails: write Computed(function, otherwise='10/minute')"
            )
        if computed is not None:
            check_takes(computed.function, "the RequestView")
        put, wrong = object.__setattr__, Problems()
        put(self, "computed", computed)
        put(self, "written", _read_by_tier(self.limits if computed is None else computed.otherwise, wrong))
        put(self, "counter_windows", find_counter_windows(self.written.values()))
        put(self, "plans", self._plans(self.written, self.counter_windows, wrong))
        wrong.check()

    def _options(self, *, is_computed: bool = False) -> RuleTerms:
        retry_us = round((self.retry or 0) * SECOND)
        local = self.slice, self.deny_cache is True, is_computed
        return RuleTerms(self.failure, self.over, retry_us, self.warn or 0.0, *local)

    def _has_slots(self) -> bool:
        return any(limit.has_slots for limit in self._limits())

    def _limits(self) -> Iterator[Limit]:
        """Yield all limits that are written in the rule."""
        for plan in (*self.plans.values(), *self.candidates.values()):
            yield from plan if isinstance(plan, tuple) else ()

    def _check_values(self, problems: Problems) -> None:
        wanted = {limit.values: limit for limit in self._limits() if limit.is_distinct}
        for name, limit in wanted.items():
            if name not in self.sources:
                problems.add(("limits",), self._no_source(limit))
        for name in self.sources:
            if name not in wanted and self.computed is None:
                hint = nearest(name, wanted) if wanted else ""
                known = f"{hint} Or add" if hint.endswith("?") else f"{hint}, or add" if hint else "add"
                problems.add(
                    ("distinct", name),
                    f"no limit of this rule counts {name!r}: {known} one like '20 distinct {name}/hour'",
                )

    def _no_source(self, limit: Limit) -> str:
        return (
            f"'{limit.text}' needs to know where {limit.values!r} is: write for example 'distinct:"
            f" {{{limit.values}: body.{limit.values}}}' in rule {self.name!r}"
        )

    def _check_strikes(self, problems: Problems) -> None:
        own = [limit for limit in self._limits() if limit.is_penalty]
        if not (self.penalty or own) or self.strikes_by_result or self.computed is not None:
            return
        if not any(limit.is_distinct or (limit.takes_cost and not limit.metered) for limit in self._limits()):
            problems.add(
                ("penalty",) if self.penalty else ("limits",),
                "nothing is a strike here: add a limit that denies, like '5/minute'; slots and metered limits give no"
                " strikes",
            )

    @property
    def strikes_by_result(self) -> bool:
        """True if results of requests are strikes, so that a penalty is of use without a limit."""
        return bool(self.strike)

    @property
    def reads_body(self) -> bool:
        """True if a source of distinct values reads the body."""
        return any(getattr(source, "reads_body", False) for source in self.sources.values())

    def _has_watched_limits(self) -> bool:
        return any(limit.warn for plan in self.plans.values() if isinstance(plan, tuple) for limit in plan)

    def _plans(
        self,
        written: Mapping[str, WrittenLimits],
        windows: frozenset[Window],
        problems: Problems,
        prefix: str = "",
        options: RuleTerms | None = None,
    ) -> dict[str, Plan]:
        plans = {}
        options = options or self._options()
        for tier, one in written.items():
            with problems.at(*([] if len(written) == 1 and tier == DEFAULT else [tier])):
                plans[tier] = _plan(self.name, one, windows, prefix, options)
        return plans

    def plans_with(self, counter_windows: frozenset[Window]) -> Mapping[str, Plan]:
        """Return the plans with sliding counters in these windows too: overrides may add some.

        Args:
            counter_windows: The windows that the sliding counter counts.
        """
        if counter_windows <= self.counter_windows:
            return self.plans
        problems = Problems()
        plans = self._plans(self.written, counter_windows, problems)
        problems.check()
        return plans

    def plan(self, limits: Any, counter_windows: frozenset[Window] | None = None, *, is_computed: bool = False) -> Plan:
        """Return limits under names of this rule, so that two rules with equal limits never share a state.

        Args:
            limits: The limits, as they were written.
            counter_windows: The windows that the sliding counter counts.
            is_computed: True for limits that a function returned; see `RuleTerms`.

        Raises:
            ValueError: They cannot be read, or the rule cannot have them.
        """
        windows = self.counter_windows if counter_windows is None else counter_windows
        options = self._options(is_computed=is_computed)
        if isinstance(limits, str):
            plan = _plan_of_text(self.name, str.__str__(limits), windows, options)
        else:
            plan = _plan(self.name, read_limits(limits), windows, "", options)
        for limit in plan if isinstance(plan, tuple) else ():
            if limit.is_distinct and limit.values not in self.sources:
                raise ValueError(self._no_source(limit))
        return plan

    def _check_cost(self, cost: int, problems: Problems) -> None:
        for tier, plan in self.plans.items():
            for limit in plan if isinstance(plan, tuple) else ():
                if exceeds(cost, limit):
                    tiers = "" if tier == DEFAULT else f" of tier {tier}"
                    problems.add(
                        ("cost",),
                        f"{cost} can never pass '{limit}'{tiers}, which allows at most {limit.burst} at once: lower the"
                        " cost or raise the limit",
                    )


def exceeds(cost: int, limit: Limit) -> bool:
    """Return True if a request of this cost can never pass the limit."""
    return cost > limit.burst and not limit.metered and limit.takes_cost


def _read_sources(given: Any, match: Any, problems: Problems) -> dict[str, ValueSource]:
    """Return where values come from, and add a problem for each source that cannot be read."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ValueError(f"expected names with their sources, like {{account: body.username}}, not {shown(given)}")
    patterns = match.patterns if isinstance(match, Match) else ()
    found: dict[str, ValueSource] = {}
    for name, source in given.items():
        with problems.at("distinct", str(name)):
            if not isinstance(name, str) or not VALUE_NAME.fullmatch(name):
                raise ValueError(f"expected a name like 'account' or 'user_id', not {shown(name)}")
            if callable(source):
                check_takes(source, "the RequestView")
                found[name] = source
            elif isinstance(source, str) and source.strip():
                text = str.__str__(source).strip()
                found[name] = RequestValue(text, patterns) if part_of(text) else text
            else:
                raise ValueError(
                    f"expected a source like 'body.username', 'path.id', 'address' or 'user', or a function, not"
                    f" {shown(source)}"
                )
    return found


def _read_by_tier(limits: Any, problems: Problems) -> dict[str, WrittenLimits]:
    """Return the limits that can be read, by tier, and add a problem for each of the others."""
    found = {}
    if not isinstance(limits, Mapping):
        with problems.at():
            found[DEFAULT] = read_limits(limits)
        return found
    for tier, one in limits.items():
        with problems.at(str(tier)):
            found[str(tier)] = read_limits(one)
    if not limits:
        problems.add((), "expected limits for at least one tier")
    return found


def read_limits(limits: Any) -> WrittenLimits:
    """Return the limits of a text, a Limit or a list of both; or the word 'deny' or 'unlimited'. Raises PolicyError
    with the index of each limit that cannot be read."""
    if isinstance(limits, str):
        return _read_text(str.__str__(limits))
    if isinstance(limits, Limit):
        limits = [limits]
    if not isinstance(limits, Iterable) or isinstance(limits, bytes | Mapping):
        raise ValueError(f"expected limits like '100/minute', 'deny' or 'unlimited', not {shown(limits)}")
    problems = Problems()
    found: list[WrittenLimit] = []
    for place, limit in enumerate(limits):
        with problems.at(place):
            if isinstance(limit, Limit):
                found.append((limit, limit.algorithm == default_algorithm(limit.count, burst=False)))
            elif isinstance(limit, str):
                found += _limits_of_text(str.__str__(limit))
            else:
                raise ValueError(f"expected a limit like '100/minute', not {shown(limit)}")
    problems.check()
    return tuple(found)


def _read_text(text: str) -> WrittenLimits:
    word = text.strip().lower()
    if word == "deny":
        return "deny"
    return "unlimited" if word == "unlimited" else _limits_of_text(text)


def _limits_of_text(text: str) -> tuple[WrittenLimit, ...]:
    # A limit that changes with the default algorithm was written without one.
    pairs = zip(parse_limits(text), parse_limits(text, default="fixed-window"), strict=True)
    return tuple((limit, limit.algorithm != other.algorithm) for limit, other in pairs)


def find_counter_windows(written: Iterable[WrittenLimits]) -> frozenset[Window]:
    """Return the windows in which limits written without an algorithm must be sliding counters: one of them has a count
    so large that the sliding counter is its default, and the others must count alike."""
    return frozenset(
        _window(limit)
        for limits in written
        if not isinstance(limits, str)
        for limit, is_open in limits
        if is_open and limit.algorithm == "sliding-counter"
    )


def _window(limit: Limit) -> Window:
    return limit.name if limit.named else "", limit.period_us


@lru_cache(maxsize=4096)
def _plan_of_text(rule: str, text: str, windows: frozenset[Window], options: RuleTerms) -> Plan:
    return _plan(rule, _read_text(text), windows, "", options)


def _plan(rule: str, written: WrittenLimits, windows: frozenset[Window], prefix: str, options: RuleTerms) -> Plan:
    if isinstance(written, str):
        return written
    limits = [_with_options(rule, limit, options) for limit in _with_algorithms(written, windows)]
    return named_limits(rule, limits, prefix)


def _with_options(rule: str, limit: Limit, options: RuleTerms) -> Limit:
    """Return a limit as the rule wants it. Raises InvalidLimit if it cannot be metered, or not be decided without the
    storage."""
    changes: dict[str, Any] = {}
    if options.failure:
        changes["failure"] = options.failure
    if options.retry_us and limit.has_slots:
        changes["retry_us"] = options.retry_us
    if options.warn and not limit.is_penalty:
        changes["warn"] = options.warn
    if options.over == "allow":
        if limit.calendar is None and limit.algorithm != "fixed-window":
            raise InvalidLimit(
                f"rule {rule!r} has 'over: allow', which needs windows, and '{limit.text}' has none: write for example"
                " '10000/calendar-month' or '1000/day fixed-window', or move this limit to a rule of its own"
            )
        changes["over"] = "allow"
    if changes:
        limit = _changed(limit, **changes)
    if options.slice is not None and limit.slice is None:
        limit = _with_local(rule, limit, options, "slice", options.slice)
    return _with_local(rule, limit, options, "deny_cache", True) if options.deny_cache else limit


def _changed(limit: Limit, **changes: Any) -> Limit:
    return replace(limit, name=limit.name if limit.named else "", large=True, **changes)


def _with_local(rule: str, limit: Limit, options: RuleTerms, key: str, value: Slice | bool) -> Limit:
    """Return a limit with a slice or a deny cache."""
    try:
        return _changed(limit, **{key: value})
    except InvalidLimit as error:
        if options.is_computed:
            return limit
        wrong, shorter = error, ""
    if isinstance(value, Slice) and value.for_us > limit.period_us // SLICES_IN_PERIOD >= 1000:
        longest = limit.period_us // SLICES_IN_PERIOD / 1000
        shorter = f": write 'slice: {{for: {longest:g} ms}}', or leave out 'slice'"
    raise InvalidLimit(f"rule {rule!r}: {wrong}{shorter}")


def _with_algorithms(written: Sequence[WrittenLimit], windows: frozenset[Window]) -> Iterator[Limit]:
    """Yield the limits with sliding counters in these windows, unless the same counter is among them already."""
    taken = {limit.scope for limit, _ in written}
    for limit, is_open in written:
        if is_open and limit.algorithm == "sliding-log" and _window(limit) in windows:
            counter = replace(limit, algorithm="sliding-counter", name=limit.name if limit.named else "")
            yield limit if counter.scope in taken else counter
        else:
            yield limit


def named_limits(rule: str, limits: Iterable[Limit], prefix: str = "") -> tuple[Limit, ...]:
    """Return the limits under names of the rule, such as `login/minute`. A limit's own name takes the place of its
    period. Raises InvalidLimit if two limits get one name, or if a name is too long."""
    found: dict[str, Limit] = {}
    for limit in limit_set(limits):
        name = f"{rule}/{prefix}{limit.name if limit.named else _period(limit)}"
        if name in found:
            name += f"-{limit.algorithm}"
        if name in found:
            raise InvalidLimit(
                f"'{found[name].text}' and '{limit.text}' have the same name: name one of them, '{limit.text} as other'"
            )
        try:
            found[name] = replace(limit, name=name, large=True)
        except InvalidLimit as error:
            raise InvalidLimit(f"{limit}: {error}; shorten the name of the rule or of the limit") from None
    return tuple(found.values())


def _period(limit: Limit) -> str:
    if limit.has_slots or limit.is_penalty:
        return limit.algorithm
    if limit.is_distinct:
        return f"{limit.values}-{_length(limit)}"
    return _length(limit)


def _length(limit: Limit) -> str:
    first, second, *_ = [*limit.text.partition("/")[2].split(), ""]
    return f"{first}-{second}" if first.isdecimal() else first
