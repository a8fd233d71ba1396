"""The rules for descriptors of Envoy's rate limit service, compiled into a tree for each domain.

Among the entries of one level a descriptor takes the one with its value, else the first wildcard in the order of the
policy that its value begins with, else the one without a value. It never goes back: this is how envoyproxy/ratelimit
reads its configuration. Keys and values are bytes here, as they come from the wire.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import blake2b

from ratebound.clock import SECOND
from ratebound.decision import Plan as PlanOfKey
from ratebound.limit import LOG_COUNT, UNITS, Failure, Limit
from ratebound.policy.match.request import Identity
from ratebound.policy.model.descriptor_rule import DescriptorRule, EntryMatch
from ratebound.policy.model.policy import Policy
from ratebound.policy.model.rule import DEFAULT, Plan, Rule
from ratebound.policy.runtime.compiled_rules import SHADOW, with_failure

Entries = Sequence[tuple[bytes, bytes]]

KIND = "descriptor"  # the kind of the identities that these rules count
OVERRIDE = "descriptor-override"  # the same for limits that a descriptor brings, where no rule has such a limit
MAX_KEY = 200  # characters of a key
MAX_OVERRIDES = 1024  # plans of one rule


class CompiledDescriptor:
    """A rule for descriptors with its limits as it enforces them. `cost` is the cost of one hit.

    `plan` is 'deny', 'unlimited' or the limits of `of_key`. `counted` are the places of the entries whose values have
    counts of their own. `charges_denied` is True if hits that exceed the limits are still charged. `is_off` is
    True if an operator has switched the rule off: then limits that a descriptor brings are not asked either.
    """

    __slots__ = (
        "_failure",
        "_overrides",
        "charges_denied",
        "cost",
        "counted",
        "in_shadow",
        "is_off",
        "of_key",
        "plan",
        "queues",
        "replaces",
        "rule",
    )

    def __init__(
        self,
        rule: Rule,
        plan: Plan,
        counted: Sequence[int] = (),
        replaces: Iterable[str] = (),
        *,
        failure: Failure,
        in_shadow: bool = False,
        charges_denied: bool = False,
        is_off: bool = False,
    ) -> None:
        self.is_off = is_off
        self._failure = failure
        self.rule = rule
        self.cost: int = rule.cost if isinstance(rule.cost, int) else 1
        self.plan = plan
        self.counted = counted
        self.replaces = frozenset(replaces)
        self.in_shadow = in_shadow
        self.charges_denied = charges_denied
        self.of_key = PlanOfKey(plan) if isinstance(plan, tuple) else None
        self.queues = isinstance(plan, tuple) and any(limit.queues for limit in plan)
        self._overrides: dict[tuple[int, str], CompiledDescriptor | None] = {}

    def identity(self, entries: Entries) -> Identity:
        """Return what this rule counts: the values of its entries that are not fixed."""
        counted = self.counted
        if len(counted) == 1:
            return _identity(KIND, (entries[counted[0]][1],))
        return _identity(KIND, [entries[place][1] for place in counted])

    def overridden(self, count: int, unit: str) -> "CompiledDescriptor | None":
        """Return this rule with another count for its limit per `unit`, which keeps its state. Return None if it has no
        such limit. An override is enforced even if the rule is in shadow."""
        found = self._overrides.get((count, unit))
        if found is None and (count, unit) not in self._overrides:
            if len(self._overrides) >= MAX_OVERRIDES:
                self._overrides.clear()
            found = self._overrides[count, unit] = self._with_count(count, unit)
        return found

    def _with_count(self, count: int, unit: str) -> "CompiledDescriptor | None":
        written = self.rule.plans[DEFAULT]  # a plan in shadow has another failure mode
        for limit in written if isinstance(written, tuple) else ():
            if not limit.takes_cost or limit.metered or _unit_of(limit) != unit:
                continue
            if limit.algorithm == "sliding-log" and count > LOG_COUNT:
                return None  # a log stores each request, and its rule was not written for so many
            plan: Plan = "deny"
            if count:
                plan = with_failure((replace(limit, count=count, burst=count, large=True),), self._failure)
            return CompiledDescriptor(
                self.rule, plan, self.counted, self.replaces, failure=self._failure, charges_denied=self.charges_denied
            )
        return None


class _Level:
    """The entries that may follow those before them, and the rule of a descriptor that ends here."""

    __slots__ = ("any", "exact", "found", "wild")

    def __init__(self) -> None:
        self.exact: dict[tuple[bytes, bytes], _Level] = {}
        self.wild: dict[bytes, list[tuple[bytes, _Level]]] = {}  # by key, in the order of the policy
        self.any: dict[bytes, _Level] = {}
        self.found: CompiledDescriptor | None = None

    def below(self, condition: EntryMatch) -> "_Level":
        """Return the level after an entry; create it if there is none."""
        key, value = _bytes(condition.key), _bytes(condition.value)
        if not value:
            return self.any.setdefault(key, _Level())
        if not condition.is_wild:
            return self.exact.setdefault((key, value), _Level())
        stem, known = value[:-1], self.wild.setdefault(key, [])
        for other, level in known:
            if other == stem:
                return level
        known.append((stem, _Level()))
        return known[-1][1]

    def after(self, entry: tuple[bytes, bytes]) -> "_Level | None":
        """Return the level after an entry of a descriptor; None if no rule has such an entry."""
        found = self.exact.get(entry)
        if found is not None:
            return found
        key, value = entry
        for stem, level in self.wild.get(key, ()) if self.wild else ():
            if value.startswith(stem):
                return level
        return self.any.get(key)


class DescriptorTable:
    """All rules for descriptors of one policy. `off` are the names of those that operators have switched off."""

    __slots__ = ("_domains", "_failure", "_off", "_overrides")

    def __init__(self, policy: Policy, off: frozenset[str] = frozenset()) -> None:
        self._failure = policy.failure
        self._off = off
        self._domains: dict[bytes, _Level] = {}
        self._overrides: dict[tuple[int, str], CompiledDescriptor] = {}
        for one in policy.descriptors:
            level = self._domains.setdefault(_bytes(one.domain), _Level())
            for condition in one.conditions:
                level = level.below(condition)
            level.found = self._compiled(one)
            if isinstance(level.found.plan, tuple):
                policy.response_headers.prepare(level.found.plan)

    def _compiled(self, one: DescriptorRule) -> CompiledDescriptor:
        counted = [place for place, condition in enumerate(one.conditions) if condition.is_counted]
        in_shadow = one.mode == "shadow"
        plan = with_failure(one.plan, SHADOW if in_shadow else self._failure)
        charges = one.over == "charge"
        return CompiledDescriptor(
            one.rule,
            plan,
            counted,
            one.replaces,
            failure=self._failure,
            in_shadow=in_shadow,
            charges_denied=charges,
            is_off=one.name in self._off,
        )

    def knows(self, domain: bytes) -> bool:
        """Return True if there is a rule of this domain."""
        return domain in self._domains

    def find(self, domain: bytes, entries: Entries) -> CompiledDescriptor | None:
        """Return the rule that a descriptor matches; None if there is none."""
        level = self._domains.get(domain)
        for entry in entries:
            if level is None:
                return None
            level = level.after(entry)
        return None if level is None else level.found

    def override(self, count: int, unit: str) -> CompiledDescriptor:
        """Return the limit that a descriptor brings, where no rule has one for the same unit.

        Windows are fixed, as in envoyproxy/ratelimit.
        """
        found = self._overrides.get((count, unit))
        if found is None:
            if len(self._overrides) >= MAX_OVERRIDES:
                self._overrides.clear()
            rule = Rule(OVERRIDE, f"{count}/{unit} fixed-window" if count else "deny")
            plan = with_failure(rule.plans[DEFAULT], self._failure)
            found = self._overrides[count, unit] = CompiledDescriptor(rule, plan, failure=self._failure)
        return found


def override_identity(domain: bytes, entries: Entries) -> Identity:
    """Return what a limit counts that a descriptor brings: all of its entries."""
    return _identity(OVERRIDE, [domain, *(part for entry in entries for part in entry)])


def _identity(kind: str, values: Sequence[bytes]) -> Identity:
    """Return an identity for values that a client may have chosen. Different values never have the same key (law 10):
    a separator in a value is escaped, and values that are long, or no text, are replaced by a digest of their own
    kind."""
    try:
        if len(values) == 1:
            text = values[0].decode()
        else:
            text = "|".join([value.decode().replace("\\", "\\\\").replace("|", "\\|") for value in values])
        if len(text) <= MAX_KEY:
            return Identity(kind, text)
    except UnicodeDecodeError:
        pass
    digest = blake2b(digest_size=16)
    for value in values:
        digest.update(len(value).to_bytes(8, "big") + value)
    return Identity(f"{kind}-digest", digest.hexdigest())


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _unit_of(limit: Limit) -> str:
    """Return the unit of a limit's period; "" if it is another period."""
    if limit.calendar is not None:
        return ""
    return next((unit for unit, length in UNITS.items() if length == limit.period_us and length >= SECOND), "")
