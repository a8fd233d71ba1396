"""The differences between two policies: what a person has changed, and what that does to counts.

Every field that can be written is compared, so a dry run never hides a change. Passwords, salts and credentials in
header conditions are never part of a description.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Literal, NamedTuple

from ratebound.limit import Limit
from ratebound.policy.identity.source import Source
from ratebound.policy.match.conditions import Match
from ratebound.policy.model.descriptor_rule import DescriptorRule
from ratebound.policy.model.policy import Override, Policy
from ratebound.policy.model.rule import DEFAULT, Computed, Rule, read_limits
from ratebound.policy.problem import as_texts
from ratebound.storage.secrecy import hidden

NOT_SHOWN = "(not shown)"
LONGEST = 300  # characters of one value
MOST_NAMES = 10  # in one description
# What most rules have: it is left out of the description of a new one
DEFAULTS = {"cost": 1, "mode": "enforce", "stage": "late", "over": "deny", "priority": "normal", "cache": 0}
# The option that a setting means if it is not written as a mapping
FIRST_OPTIONS = {"headers": "styles", "rejection": "format", "trusted": "trusted"}
SECRET_HEADER = re.compile("auth|token|key|secret|cookie|passw|session|signature", re.IGNORECASE)

Comparison = Callable[..., Iterable["PolicyChange"]]


def is_secret_header(name: str) -> bool:
    """Return True if the values of a header may be credentials."""
    return SECRET_HEADER.search(name) is not None


class PolicyChange(NamedTuple):
    """One difference between two policies.

    Attributes:
        where: The part that differs: 'rule search', 'switch', 'block list'.
        what: 'added', 'removed' or 'changed'.
        detail: The difference, in words.
        starts_anew: True if counts are lost by it.
    """

    where: str
    what: Literal["added", "removed", "changed"]
    detail: str
    starts_anew: bool = False

    def __str__(self) -> str:
        return f"{self.where} {self.what}: {self.detail}" if self.what != "changed" else f"{self.where}: {self.detail}"


class Consequence(NamedTuple):
    """An effect of a change on counts, or the need of a restart."""

    where: str
    detail: str
    starts_anew: bool = False

    @property
    def is_removal(self) -> bool:
        """True if the part does not exist any more."""
        return self.detail.startswith("is gone")

    def __str__(self) -> str:
        return f"{self.where}{' ' if self.is_removal else ': '}{self.detail}"


def described_changes(old: Policy, new: Policy) -> list[PolicyChange]:
    """Return every difference between two policies, and what starts anew because of them.

    A part that is an object and no text, such as a Pressure, counts as changed unless it is the same object.

    Args:
        old: The policy before.
        new: The policy after.

    Examples:
        >>> from ratebound.policy import Policy, Rule, described_changes
        >>> old, new = Policy(rules=[Rule("api", "100/minute")]), Policy(rules=[Rule("api", "100/hour")])
        >>> any(change.starts_anew for change in described_changes(old, new))
        True
    """
    found: list[PolicyChange] = []
    for one in fields(Policy):
        if one.init:
            compare: Comparison = _PARTS.get(one.name, _changed_setting)
            found += compare(one.name, getattr(old, one.name), getattr(new, one.name), old, new)
    found += [
        PolicyChange(one.where, "changed", one.detail, one.starts_anew)
        for one in consequences(old, new)
        if not one.is_removal  # listed as removed
    ]
    return found


def changes_between(old: Policy, new: Policy) -> Iterator[str]:
    """Yield what a new policy makes start anew, and what it changes only after a restart."""
    return map(str, consequences(old, new))


def consequences(old: Policy, new: Policy) -> Iterator[Consequence]:
    """Yield what a new policy makes start anew or keeps, and what it changes only after a restart."""
    before, after = _limits_of(old), _limits_of(new)
    for name, limits in after.items():
        if name in before:
            known = {limit.scope: limit for limit in before[name]}
            metered = {(limit.name, limit.period_us): limit.metered for limit in before[name]}
            for limit in limits:
                old_limit = known.get(limit.scope)
                if old_limit is not None:
                    yield from _kept(f"rule {name}", old_limit, limit)
                    continue
                why = "its algorithm or its period has changed"
                if metered.get((limit.name, limit.period_us), limit.metered) != limit.metered:
                    why = "it is metered now" if limit.metered else "it is no longer metered"
                yield Consequence(f"rule {name}", f"'{limit.text}' starts anew: {why}", starts_anew=True)
    for name in before.keys() - after.keys():
        yield Consequence(f"rule {name}", "is gone: what it has counted is forgotten")
    yield from _penalty_changes(old, new)
    if old.storage != new.storage:
        yield Consequence("storage", "a change takes a restart; the old one stays in use")
    if old.ipv6 != new.ipv6:
        told = f"clients are told apart by /{new.ipv6} from now on; rules by address start anew for IPv6"
        yield Consequence("ipv6", told, starts_anew=True)
    if old.concurrent != new.concurrent:
        yield Consequence("concurrent", "a change takes a restart")
    if old.salt != new.salt:
        yield Consequence("salt", "fingerprints change; rules that count by them start anew", starts_anew=True)
    counted = {rule.name: _counted_values(rule) for rule in old.descriptors}
    for one in new.descriptors:
        if counted.get(one.name, _counted_values(one)) != _counted_values(one):
            told = "counts by other entries from now on, and starts anew"
            yield Consequence(f"descriptors {one.name}", told, starts_anew=True)
    for rule in new.rules:
        if rule.name in old.rule_by and _counts_by(rule.name, old) != _counts_by(rule.name, new):
            told = f"counts by {rule.by or new.by} from now on, and starts anew"
            yield Consequence(f"rule {rule.name}", told, starts_anew=True)


def _penalty_changes(old: Policy, new: Policy) -> Iterator[Consequence]:
    for name, limit in new.penalty_limits.items():
        if name in old.penalty_limits and old.penalty_limits[name] != limit:
            told = f"keeps its strikes and blocks; '{limit.text}' is for strikes from now on"
            yield Consequence(f"penalty {name}", told)
    for name in old.penalty_limits.keys() - new.penalty_limits.keys():
        yield Consequence(f"penalty {name}", "is gone: nobody is blocked by it any more")


def _kept(where: str, old: Limit, new: Limit) -> Iterator[Consequence]:
    """Yield what is kept although a limit counts in other windows, or has another lease."""
    told = ""
    if old.calendar != new.calendar:
        told = "keeps its count: only the beginning and the end of its windows have changed"
    elif new.has_slots and old.period_us != new.period_us:
        told = "keeps its slots: the new lease is for those taken or renewed from now on"
    elif new.is_penalty and old != new:
        told = "keeps its strikes and blocks, and is for strikes from now on"
    if told:
        yield Consequence(where, f"'{new.text}' {told}")


def _counted_values(rule: DescriptorRule) -> list[str]:
    return [condition.key for condition in rule.conditions if condition.is_counted]


def _counts_by(rule: str, policy: Policy) -> list[list[str]]:
    return [[kind.name for kind in parts] for parts in policy.rule_by[rule]]


def _limits_of(policy: Policy) -> dict[str, list[Limit]]:
    return {
        rule.name: [
            limit
            for plan in rule.plans_with(policy.counter_windows[rule.name]).values()
            if isinstance(plan, tuple)
            for limit in plan
        ]
        for rule in policy.rules
    } | {rule.name: list(rule.plan) if isinstance(rule.plan, tuple) else [] for rule in policy.descriptors}


# One function for each shape of a field: each takes the field's name, its two values and the two policies.


def _changed_setting(name: str, old: Any, new: Any, *policies: Policy) -> Iterator[PolicyChange]:
    before, after = _setting(name, old), _setting(name, new)
    if before != after:
        yield PolicyChange(name, "changed", f"{_shown(before)} -> {_shown(after)}")


def _setting(name: str, value: Any) -> Any:
    """Return a setting in one form, however it was written: `draft-11` is `{styles: [draft-11]}`."""
    if name == "by":
        return _by_form(value)
    first = FIRST_OPTIONS.get(name)
    if first is None or value is None or _is_opaque(value):
        return _plain(value)
    given = {str(key).replace("-", "_"): one for key, one in value.items()} if isinstance(value, Mapping) else None
    options = {first: value} if given is None else given
    if first in options and first != "format":
        options[first] = list(as_texts(first, options[first]))
    return _plain(options)


def _by_form(by: Any) -> list[Any]:
    return [_plain(one) for one in (by if isinstance(by, list | tuple) else [by])]


def _changed_storage(name: str, old: str, new: str, *policies: Policy) -> Iterator[PolicyChange]:
    if old != new:
        before, after = hidden(old), hidden(new)
        detail = f"{before} -> {after}" if before != after else f"{after} with another password or other options"
        yield PolicyChange(name, "changed", detail)


def _changed_secret(name: str, old: str, new: str, *policies: Policy) -> Iterator[PolicyChange]:
    if old != new:
        yield PolicyChange(name, "changed", NOT_SHOWN)


def _changed_rules(
    name: str, old: Sequence[Rule | DescriptorRule], new: Sequence[Rule | DescriptorRule], *policies: Policy
) -> Iterator[PolicyChange]:
    label = "rule" if name == "rules" else "descriptors"
    before, after = {rule.name: rule for rule in old}, {rule.name: rule for rule in new}
    for place, (one, rule) in enumerate(after.items(), 1):
        if one not in before:
            yield PolicyChange(
                f"{label} {one}", "added", f"as {place} of {len(after)}: {_shown(_brief(_rule_form(rule)))}"
            )
        else:
            yield from _changed_fields(f"{label} {one}", _rule_form(before[one]), _rule_form(rule))
            yield from _changed_options_of_limits(f"{label} {one}", before[one], rule)
    for one in before:
        if one not in after:
            yield PolicyChange(f"{label} {one}", "removed", "what it has counted is forgotten")
    kept = [one for one in before if one in after], [one for one in after if one in before]
    if kept[0] != kept[1]:
        moved = [place for place, pair in enumerate(zip(*kept, strict=True)) if pair[0] != pair[1]]
        first, last = moved[0], moved[-1] + 1
        yield PolicyChange(name, "changed", f"order: {_names(kept[0][first:last])} -> {_names(kept[1][first:last])}")


def _names(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _rule_form(rule: Rule | DescriptorRule) -> dict[str, Any]:
    form = _form_of(rule, leave_out=("name",))
    for name in ("limits", "candidate"):
        if form.get(name) is not None:
            form[name] = _limits_form(getattr(rule, name))
    if form.get("by") is not None:
        form["by"] = _by_form(form["by"])
    if isinstance(rule, DescriptorRule):
        form["entries"] = [f"{one} shared" if one.shared else str(one) for one in rule.conditions]
    return form


def _limits_form(limits: Any) -> Any:
    """Return limits as texts, by tier if they are written so."""
    if isinstance(limits, Computed):
        return {"call": _plain(limits.function), "otherwise": _limits_form(limits.otherwise)}
    if isinstance(limits, Mapping):
        plain = {str(tier): _limits_form(one) for tier, one in limits.items()}
        return plain[DEFAULT] if list(plain) == [DEFAULT] else plain
    read = read_limits(limits)
    return read if isinstance(read, str) else "; ".join(str(limit) for limit, _ in read)


def _changed_options_of_limits(
    where: str, old: Rule | DescriptorRule, new: Rule | DescriptorRule
) -> Iterator[PolicyChange]:
    """Yield limits that have other options and the same text: limits that are objects may have a slice of their own."""
    before, after = _own_limits(old), _own_limits(new)
    if list(map(str, before)) == list(map(str, after)):
        # By repr: two limits are equal if they count alike, whatever their options
        texts = [f"'{one}'" for known, one in zip(before, after, strict=True) if repr(known) != repr(one)]
        if texts:
            yield PolicyChange(where, "changed", f"limits: {', '.join(texts)}: other options")


def _own_limits(rule: Rule | DescriptorRule) -> list[Limit]:
    written = rule.rule.written if isinstance(rule, DescriptorRule) else rule.written
    return [limit for one in written.values() if not isinstance(one, str) for limit, _ in one]


def _changed_identities(
    name: str, old: Mapping[str, Source], new: Mapping[str, Source], *policies: Policy
) -> Iterator[PolicyChange]:
    before, after = ({key: _form_of(one) for key, one in given.items()} for given in (old, new))
    yield from _changed_entries("identity", before, after)


def _changed_penalties(name: str, old: object, new: object, *policies: Policy) -> Iterator[PolicyChange]:
    before, after = ({key: one.text for key, one in policy.penalty_limits.items()} for policy in policies)
    yield from _changed_entries("penalty", before, after)


def _changed_entries(label: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[PolicyChange]:
    for name, value in new.items():
        if name not in old:
            yield PolicyChange(f"{label} {name}", "added", _entry(value))
        elif isinstance(value, dict):
            yield from _changed_fields(f"{label} {name}", old[name], value)
        elif old[name] != value:
            yield PolicyChange(f"{label} {name}", "changed", f"{_shown(old[name])} -> {_shown(value)}")
    for name, value in old.items():
        if name not in new:
            yield PolicyChange(f"{label} {name}", "removed", _entry(value))


def _entry(value: Any) -> str:
    return _shown(_brief(value) if isinstance(value, dict) else value)


def _changed_tiers(name: str, old: Any, new: Any, *policies: Policy) -> Iterator[PolicyChange]:
    before, after = _clients_by_tier(old), _clients_by_tier(new)
    for tier in after.keys() - before.keys():
        yield PolicyChange(f"tier {tier}", "added", _names(after[tier]) or "no clients listed")
    for tier in before.keys() - after.keys():
        yield PolicyChange(f"tier {tier}", "removed", _names(before[tier]) or "no clients listed")
    for tier in after:
        if tier in before:
            yield from _changed_members(f"tier {tier}", before[tier], after[tier])


def _clients_by_tier(tiers: Any) -> dict[str, list[str]]:
    if not isinstance(tiers, Mapping):
        return {name: [] for name in as_texts("tiers", tiers)}
    return {name: [clients] if isinstance(clients, str) else list(clients or ()) for name, clients in tiers.items()}


def _changed_clients(name: str, old: Sequence[str], new: Sequence[str], *policies: Policy) -> Iterator[PolicyChange]:
    yield from _changed_members(f"{name} list", old, new)


def _changed_exempt(name: str, old: Sequence[Match], new: Sequence[Match], *policies: Policy) -> Iterator[PolicyChange]:
    yield from _changed_forms(name, list(map(_match_form, old)), list(map(_match_form, new)))


def _changed_forms(where: str, old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> Iterator[PolicyChange]:
    """Yield what a list of forms has more and less. Forms are compared as they are: what is shown may hide a secret."""
    left = list(old)
    for form in new:
        if form in left:
            left.remove(form)
        else:
            yield PolicyChange(where, "added", _shown(_brief(form)))
    for form in left:
        yield PolicyChange(where, "removed", _shown(_brief(form)))


def _changed_members(where: str, old: Sequence[str], new: Sequence[str]) -> Iterator[PolicyChange]:
    """Yield what a list has more and less. Its order does not matter."""
    before, after = Counter(old), Counter(new)
    for what, members in (("added", after - before), ("removed", before - after)):
        for member in members:
            yield PolicyChange(where, what, member)  # type: ignore[arg-type]


def _changed_overrides(
    name: str, old: Sequence[Override], new: Sequence[Override], *policies: Policy
) -> Iterator[PolicyChange]:
    before, after = _overrides_by_client(old), _overrides_by_client(new)
    for client in dict.fromkeys((*after, *before)):
        was, now = before.get(client, []), after.get(client, [])
        if len(was) == len(now) == 1:
            yield from _changed_fields(f"override {client}", was[0], now[0])
        elif was != now:
            members = list(_changed_forms(f"override {client}", was, now))
            order = "; ".join(_shown(_brief(form)) for form in now)
            yield from members or [PolicyChange(f"override {client}", "changed", f"order: {order}")]


def _overrides_by_client(overrides: Iterable[Override]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for one in overrides:
        form = _form_of(one, leave_out=("client",))
        if one.limits is not None:
            form["limits"] = _limits_form(one.limits)
        found.setdefault(one.client, []).append(form)
    return found


_PARTS: dict[str, Comparison] = {
    "rules": _changed_rules,
    "descriptors": _changed_rules,
    "storage": _changed_storage,
    "salt": _changed_secret,
    "identities": _changed_identities,
    "penalties": _changed_penalties,
    "tiers": _changed_tiers,
    "allow": _changed_clients,
    "block": _changed_clients,
    "exempt": _changed_exempt,
    "overrides": _changed_overrides,
}


# Forms of values that can be compared and shown


def _changed_fields(
    where: str, old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = ""
) -> Iterator[PolicyChange]:
    for name in dict.fromkeys((*old, *new)):
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _changed_fields(where, before, after, f"{prefix}{name}.")
        else:
            shown = _shown(before), _shown(after)
            told = f"{shown[0]} -> {shown[1]}" if shown[0] != shown[1] else f"changed {NOT_SHOWN}"
            yield PolicyChange(where, "changed", f"{prefix}{name}: {told}")


def _form_of(given: Any, leave_out: Sequence[str] = ()) -> dict[str, Any]:
    """Return the fields of an object that can be written."""
    form = {}
    for one in fields(given):
        if one.init and one.name not in leave_out:
            value = getattr(given, one.name)
            form[one.name] = _match_form(value) if isinstance(value, Match) else _plain(value)
    return form


def _brief(form: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a form that say something: those that are empty, or as they are by default, do not."""
    return {
        name: _brief(value) if isinstance(value, dict) else value
        for name, value in form.items()
        if value not in (None, "", [], {}, False, DEFAULTS.get(name)) and (not isinstance(value, dict) or _brief(value))
    }


class _Secret(NamedTuple):
    """A value that is compared and never shown."""

    value: Any

    def __repr__(self) -> str:
        return NOT_SHOWN


def _match_form(match: Match) -> dict[str, Any]:
    form = _form_of(match)
    for name, value in form.get("headers", {}).items():
        if is_secret_header(name) and not isinstance(value, bool):
            form["headers"][name] = _Secret(value)
    return form


class _Named(NamedTuple):
    """A function or an object, shown by its name. Two are equal if they are the same; functions also if both have the
    same name in the same module, because a module may be loaded again."""

    shown: str
    identity: object

    def __repr__(self) -> str:
        return self.shown


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Limit):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(_plain, value), key=repr)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value) if one.init}
    if callable(value):
        name = getattr(value, "__qualname__", "<")
        shown = getattr(value, "__name__", f"a {type(value).__name__}")
        return _Named(shown, id(value) if "<" in name else (value.__module__, name))
    return _Named(f"a {type(value).__name__}", id(value))


def _is_opaque(value: Any) -> bool:
    return isinstance(_plain(value), _Named) and not callable(value)


def _shown(value: Any) -> str:
    """Return a value for people: the fields of a mapping without braces, cut short if they are many."""
    text = _written(value)
    text = text[1:-1] if isinstance(value, dict) else text
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {_written(one)}' for name, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    if value is None or isinstance(value, bool):
        return "none" if value is None else "true" if value else "false"
    return repr(value)
