"""A rule for the descriptors that Envoy sends: their domain, their entries, and limits.

Descriptors are no HTTP requests, so these rules stand in a list of their own: a rule of `rules` without conditions
matches every request, and one with conditions on descriptors would have none.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from ratebound.limit import Failure
from ratebound.policy.model.rule import DEFAULT, Computed, Mode, Plan, Rule
from ratebound.policy.problem import Problems, as_texts, check_choice, shown

DescriptorOver = Literal["deny", "allow", "charge"]

MAX_ENTRIES = 20  # of one descriptor
ENTRY_KEYS = ("key", "value", "shared")


class EntryMatch(NamedTuple):
    """A condition on one entry of a descriptor.

    Attributes:
        key: The key of the entry.
        value: The value that it must have. Text that ends in `*` stands for every value that begins so, and empty text
            for every value.
        shared: True if all values that match have one count. Else what `value` does not say is counted by itself, value
            by value.
    """

    key: str
    value: str = ""
    shared: bool = False

    @property
    def is_wild(self) -> bool:
        """True if the value ends in a wildcard."""
        return self.value.endswith("*")

    @property
    def is_counted(self) -> bool:
        """True if each value that matches has a count of its own."""
        return not self.shared and (self.is_wild or not self.value)

    def __str__(self) -> str:
        return f"{self.key}={self.value}" if self.value else self.key


@dataclass(frozen=True, slots=True, eq=False)
class DescriptorRule:
    """A rule for descriptors of Envoy's rate limit service. Checked at construction.

    A descriptor matches if it has exactly these entries, in this order.

    Args:
        name: The name, at most 40 characters. It is part of the keys of states.
        domain: The domain that Envoy sends.
        entries: Each a key, or a mapping of one key to its value: `["remote_address"]`, `[{"generic_key": "login"},
            "remote_address"]`, `[{"path": "/api/*"}]`. The long form `{"key": "path", "value": "/api/*", "shared":
            True}` gives all values that match one count.
        limits: Text, limits, 'deny' or 'unlimited'. Slots and distinct values are not for descriptors.
        cost: The units that one hit costs.
        mode: `"shadow"` for a rule that is evaluated and reported, and never denies.
        failure: What is decided while the storage is out of reach: `"local"`, `"open"`, `"closed"` or `"raise"`. Empty
            means the policy's.
        message: The text of rejections. Empty means the policy's.
        documentation: The link in rejections. Empty means the policy's.
        warn: The share of a limit, like 0.8 or `"80%"`, at which listeners receive `Warned`. None means never.
        slice: Lets each process take a part of every limit from a shared storage at once: True, a share like `"5%"`, or
            a mapping of `share` and `for`. A limit that has a slice of its own keeps it.
        deny_cache: True lets a process repeat a denial for up to a second without asking the storage.
        over: 'allow' for a metered rule, as in a Rule. With 'charge', hits that exceed the limits are denied and
            still charged: this is for hits that are known only when the response has been sent.
        replaces: The names of rules that do not count if this one matches another descriptor of the same request.

    Raises:
        PolicyError: The policy is invalid. It has every error, with its place.

    Examples:
        >>> from ratebound.policy import DescriptorRule, Policy
        >>> rule = DescriptorRule("login", "edge", [{"path": "/login"}, "remote_address"], "5/minute")
        >>> policy = Policy(descriptors=[rule])
    """

    name: str
    domain: str
    entries: Any
    limits: Any
    cost: int = 1
    mode: Mode = "enforce"
    failure: Failure | Literal[""] = ""
    message: str = ""
    documentation: str = ""
    warn: Any = None
    slice: Any = None
    deny_cache: bool = False
    over: DescriptorOver = "deny"
    replaces: Sequence[str] = ()

    conditions: tuple[EntryMatch, ...] = field(init=False, repr=False)  # of `entries`
    rule: Rule = field(init=False, repr=False)  # the same limits and options, as rules for requests have them

    def __post_init__(self) -> None:
        problems, put = Problems(), object.__setattr__
        put(self, "conditions", ())
        if not isinstance(self.domain, str) or not self.domain:
            problems.add(("domain",), f"expected the domain that Envoy sends, like 'edge', not {shown(self.domain)}")
        with problems.at("entries"):
            put(self, "conditions", _read_entries(self.entries, problems))
        with problems.at("replaces"):
            put(self, "replaces", as_texts("replaces", self.replaces))
        if isinstance(self.limits, Mapping | Computed) or callable(self.limits):
            problems.add(
                ("limits",),
                f"expected limits like '100/minute', 'deny' or 'unlimited', not {shown(self.limits)}: descriptors have"
                " no tiers and no functions",
            )
        if isinstance(self.cost, bool) or not isinstance(self.cost, int):
            problems.add(("cost",), f"expected a whole number, not {shown(self.cost)}")
        with problems.at("over"):
            check_choice("over", self.over, get_args(DescriptorOver))
        has_limits = not any(problem.place == ("limits",) for problem in problems.found)
        with problems.at():
            put(self, "rule", self._as_rule() if has_limits else Rule(self.name, "unlimited"))
            for limit in self.plan if isinstance(self.plan, tuple) else ():
                if limit.has_slots:
                    problems.add(
                        ("limits",), f"'{limit.text}' is not for descriptors: Envoy does not say when a request ends"
                    )
        problems.check()

    def _as_rule(self) -> Rule:
        return Rule(
            self.name,
            self.limits,
            cost=self.cost if isinstance(self.cost, int) else 1,
            mode=self.mode,
            failure=self.failure,
            message=self.message,
            documentation=self.documentation,
            warn=self.warn,
            slice=self.slice,
            deny_cache=self.deny_cache,
            over="allow" if self.over == "allow" else "deny",
        )

    @property
    def plan(self) -> Plan:
        """The limits, under names of this rule."""
        return self.rule.plans[DEFAULT]


def _read_entries(given: Any, problems: Problems) -> tuple[EntryMatch, ...]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise ValueError(f"expected a list like [remote_address] or [{{generic_key: login}}], not {shown(given)}")
    found: list[EntryMatch] = []
    for place, one in enumerate(given):
        with problems.at("entries", place):
            found.append(_read_entry(one))
    if not 0 < len(found) <= MAX_ENTRIES and not problems.found:
        raise ValueError(f"expected 1 to {MAX_ENTRIES} entries, not {len(found)}")
    return tuple(found)


def _read_entry(given: Any) -> EntryMatch:
    if isinstance(given, EntryMatch):
        return given
    shared: Any = False
    if isinstance(given, Mapping) and len(given) > 1:
        unknown = [name for name in given if name not in ENTRY_KEYS]
        if unknown or "key" not in given:
            raise ValueError(f"expected one key with its value, or key, value and shared, not {shown(dict(given))}")
        key, value, shared = given["key"], given.get("value", ""), given.get("shared", False)
    elif isinstance(given, Mapping) and given:
        ((key, value),) = given.items()
    else:
        key, value = given, ""
    if value is None:
        value = ""
    elif isinstance(value, int) and not isinstance(value, bool):
        value = str(value)  # YAML reads 1 as a number
    if not isinstance(key, str) or not key:
        raise ValueError(f"expected a key like remote_address, not {shown(key)}")
    if not isinstance(value, str):
        raise ValueError(f"expected a string as the value of {key}, not {shown(value)}: write it in quotes")
    if not isinstance(shared, bool) or (shared and value and not value.endswith("*")):
        raise ValueError("'shared' is true or false, and for values that end in * or an entry without a value")
    return EntryMatch(str.__str__(key), str.__str__(value), shared)
