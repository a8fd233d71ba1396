"""envoyproxy/ratelimit's YAML: nested descriptors with fixed windows.

A descriptor is what Envoy was told to send of a request, under names that its operator chose. The usual names are read
as what they usually mean (`KEYS`). An entry with a value is a condition, one without has a count for each value. Of the
entries of one key one is chosen: the whole value, else the first `value*` that fits, else the one without a value.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ratebound.http.prefix import parse_network
from ratebound.limit import MAX_COUNT
from ratebound.policy.identity.source import KIND
from ratebound.policy.imports.draft import Draft, Imported, function_name, identity_name, is_true, literal, prefixed
from ratebound.policy.load.document import parse
from ratebound.policy.match.conditions import Match
from ratebound.policy.model.rule import DEFAULT
from ratebound.policy.problem import PolicyError, Problem, shown

UNITS = ("second", "minute", "hour", "day", "week", "month", "year")  # month and year are 30 and 365 days there, too
KEYS = {
    "remote_address": "address",
    "masked_remote_address": "prefix",
    "path": "path",
    ":path": "path",
    "uri": "path",
    "method": "method",
    ":method": "method",
    "host": "host",
    "authority": "host",
    ":authority": "host",
    "user": "user",
    "user_id": "user",
    "plan": "tier",
    "tier": "tier",
}
SILENT = (
    "detailed_metric",
    "value_to_metric",
    "metadata",
)  # what a metric or a response is called, not what is limited
DESCRIPTOR = {"key", "value", "rate_limit", "descriptors", "shadow_mode", "share_threshold", "quota_mode", *SILENT}
RATE = {"unit", "requests_per_unit", "unlimited", "name", "replaces"}


class DescriptorEntry(NamedTuple):
    """One step of a descriptor; without a value it stands for every value."""

    key: str
    value: str

    @property
    def kind(self) -> str:
        return KEYS.get(self.key.lower(), "")

    @property
    def label(self) -> str:
        if not self.value:
            return self.key
        return self.value if self.kind else f"{self.key}_{self.value}"

    @property
    def text(self) -> str:
        return f"{self.key}={self.value}" if self.value else self.key

    @property
    def is_wild(self) -> bool:
        return self.value.endswith("*")

    def overlaps(self, later: "DescriptorEntry") -> bool:
        """Whether some value fits both this entry and a later one of the same key."""
        mine, other = (one.value.lstrip("/").lower() if one.kind == "path" else one.value for one in (self, later))
        if not later.is_wild:
            return not later.value or mine == other
        stem = other.removesuffix("*")
        return mine.startswith(stem) or (self.is_wild and stem.startswith(mine.removesuffix("*")))


Group = list[tuple[DescriptorEntry, Mapping[str, Any]]]  # of one key, side by side


def import_envoy(text: str) -> Imported:
    """Read the configuration of one domain."""
    tree, _ = parse(text, "yaml")
    if not isinstance(tree, Mapping) or not isinstance(tree.get("descriptors"), list):
        raise PolicyError([Problem((), "expected the keys domain and descriptors, as envoyproxy/ratelimit reads them")])
    reading = _EnvoyReader()
    reading.level(tree["descriptors"], ())
    draft = reading.draft
    if draft.tiers:
        draft.settings["by"] = [*draft.identities, "user", "address"]  # in which a tier is looked for
    if tree.get("domain"):
        draft.lose(f"the domain {tree['domain']} is not in the policy: one policy is one domain")
    if draft.rules:
        draft.lose("where that service counts is in its environment: write storage: redis://… for several processes")
        draft.lose("a denied request is charged to the other limits there, and to none here")
    return draft.imported()


class _EnvoyReader:
    def __init__(self) -> None:
        self.draft = Draft("envoyproxy/ratelimit")

    def level(self, descriptors: Any, above: tuple[DescriptorEntry, ...], *, ordered: bool = True) -> None:
        """Descriptors side by side: each key is asked for itself, and of one key the entry that fits best.

        That entry ends the search for what it meets, which is right only behind all other keys: of several keys that
        need it, the last one has it. `ordered` says whether rules above allow for it at all.
        """
        groups = _groups(descriptors, above)
        in_need = [key for key, group in groups.items() if _needs_order(group, above)]
        for key in sorted(groups, key=lambda key: key in in_need[-1:]):
            self._group(groups[key], above, ordered=ordered and key in in_need[-1:])

    def _group(self, group: Group, above: tuple[DescriptorEntry, ...], *, ordered: bool) -> None:
        """The entries of one key. Single clients beside an entry for all of them are overrides of its rule."""
        single, chosen = _parted(group)
        for place, (entry, one) in enumerate(chosen):
            chain, since = (*above, entry), len(self.draft.rules)
            wider = [other for other, _ in chosen[place + 1 :] if entry.overlaps(other)]
            self._tell_rest(one, chain)
            name = self._limit(one, chain, ends=ordered and bool(wider)) if one.get("rate_limit") is not None else ""
            if one.get("descriptors"):
                self.level(one["descriptors"], chain, ordered=ordered)
            if wider and ordered:
                self._end(chain, since)
            elif wider:
                others = ", ".join(_chain((*above, other)) for other in wider)
                self.draft.lose(f"where {_chain(chain)} is matched, {others} is not asked there; here both count")
            for other, exception in single if not entry.value else ():
                self._tell_rest(exception, (*above, other))
                self._exception(exception, (*above, other), name)

    def _end(self, chain: tuple[DescriptorEntry, ...], since: int) -> None:
        """What this entry meets is not for the entries of its key that come later."""
        match = self._conditions(chain, {}, shared=True)
        if match is not None:
            self.draft.end(f"end {chain[-1].label}", match, since)

    def _tell_rest(self, one: Mapping[str, Any], chain: tuple[DescriptorEntry, ...]) -> None:
        for key in sorted(set(map(str, one)) - DESCRIPTOR):
            self.draft.lose(f"{_chain(chain)}: the key {key} is not known")
        if any(one.get(key) for key in SILENT):
            self.draft.lose(
                "detailed_metric, value_to_metric and metadata change what is reported, not what is limited"
            )
        if is_true(one.get("quota_mode")):
            self.draft.lose(f"{_chain(chain)}: quota_mode refuses only when all quotas are used up; here each refuses")
        if one.get("rate_limit") is not None and _limits_below(one):
            self.draft.lose(
                f"{_chain(chain)} has a limit, and more are nested in it: there each counts only if Envoy sends a"
                " descriptor of just its entries; here a request is charged to all that it meets, as if it sent each"
            )

    def _limit(self, one: Mapping[str, Any], chain: tuple[DescriptorEntry, ...], *, ends: bool) -> str:
        """A rule for one rate_limit. Returns its name."""
        limits, name = self._rate(one["rate_limit"], chain)
        if limits == "unlimited":
            if not ends:
                self.draft.lose(f"{_chain(chain)} is unlimited: it has no rule, and what else counts it does so here")
            return ""
        by: dict[str, None] = {}
        match = self._conditions(chain, by, shared=is_true(one.get("share_threshold")))
        if match is None:
            return ""
        return self.draft.add(
            name or "_".join(entry.label for entry in chain),
            _chain(chain),
            match=match,
            by=" + ".join(by) or "global",
            limits=limits,
            mode="shadow" if is_true(one.get("shadow_mode")) else "",
        )

    def _conditions(
        self, chain: tuple[DescriptorEntry, ...], by: dict[str, None], *, shared: bool
    ) -> dict[str, Any] | None:
        """What the entries of a chain ask of a request; None, and told, if a rule cannot."""
        match: dict[str, Any] = {}
        for entry in chain:
            if not self._entry(entry, match, by, shared=shared, chain=chain):
                return None
        try:
            Match(**match)
        except ValueError as error:
            self.draft.lose(f"{_chain(chain)} is left out: {error}")
            return None
        return match

    def _rate(self, rate: Any, chain: tuple[DescriptorEntry, ...]) -> tuple[str, str]:
        where = _chain(chain)
        if not isinstance(rate, Mapping):
            raise PolicyError([Problem((), f"{where}: rate_limit: expected unit and requests_per_unit")])
        for key in sorted(set(map(str, rate)) - RATE):
            self.draft.lose(f"{where}: the key rate_limit.{key} is not known")
        if rate.get("replaces"):
            names = ", ".join(str(one.get("name")) for one in rate["replaces"] if isinstance(one, Mapping))
            self.draft.lose(f"{where} replaces {names} where both are asked; here both count")
        name = str(rate.get("name") or "")
        if is_true(rate.get("unlimited")):
            return "unlimited", name
        unit, count = str(rate.get("unit")).lower(), rate.get("requests_per_unit")
        if unit not in UNITS or isinstance(count, bool) or not isinstance(count, int) or count < 0:
            said = f"unit {shown(rate.get('unit'))}, requests_per_unit {shown(count)}"
            raise PolicyError([Problem((), f"{where}: {said}: expected one of {', '.join(UNITS)}, and a whole number")])
        return (f"{min(count, MAX_COUNT)}/{unit} fixed-window" if count else "deny"), name

    def _exception(self, one: Mapping[str, Any], chain: tuple[DescriptorEntry, ...], rule: str) -> None:
        """Something else for one client of a rule; one that is named without a limit has none."""
        entry, limits = chain[-1], "unlimited"
        if one.get("rate_limit") is not None:
            limits, _ = self._rate(one["rate_limit"], chain)
        if not rule:
            self.draft.lose(f"{_chain(chain)} is left out: the rule for all others is, too")
        elif is_true(one.get("shadow_mode")) and one.get("rate_limit") is not None:
            self.draft.lose(f"{_chain(chain)} in shadow_mode: a single client cannot be in shadow; left out")
        elif entry.kind == "address" and not _is_address(entry.value):
            self.draft.lose(f"{_chain(chain)} is excepted from {entry.key} there; here the rule {rule} holds for it")
        else:
            client = f"user:{entry.value}" if entry.kind == "user" else entry.value
            self.draft.overrides.append({"client": client, "rules": [rule], "limits": limits})

    def _entry(
        self,
        entry: DescriptorEntry,
        match: dict[str, Any],
        by: dict[str, None],
        *,
        shared: bool,
        chain: tuple[DescriptorEntry, ...],
    ) -> bool:
        """Add one entry to a rule's match or to its `by`; False if the rule has to be left out."""
        value, kind, draft = entry.value, entry.kind, self.draft
        if not value:
            self._counted_by(entry, by, chain)
            return True
        stem = value.removesuffix("*")
        if stem != value and not shared:
            draft.lose(f"{_chain(chain)} has a count for each {entry.key}; here one for all that match")
        if kind in ("address", "prefix"):
            if not _is_address(value):
                draft.lose(f"{_chain(chain)} is left out: {value} is no address")
                return False
            match.setdefault("addresses", []).append(value)
            if kind == "address":
                by["address"] = None
        elif kind == "path":
            match["paths"] = [literal(value)] if stem == value else prefixed(stem)
        elif kind in ("method", "host"):
            if stem != value:
                draft.lose(f"{_chain(chain)} is left out: {entry.key} {value} cannot be said as a pattern")
                return False
            match[f"{kind}s"] = [value]
        elif kind == "tier":
            if not KIND.fullmatch(value.lower()) or value == DEFAULT:
                draft.lose(f"{_chain(chain)} is left out: {value} cannot be the name of a tier")
                return False
            match["tiers"] = [value]
            if value not in draft.tiers:
                draft.tiers.append(value)
            draft.lose(f"{entry.key} is read as the tier of a client: a verifier has to say it")
        elif kind == "user":
            draft.lose(f"{_chain(chain)} is left out: a rule is not for a single user; use an override")
            return False
        else:
            header = entry.key.lower().strip(":").replace("_", "-")
            match.setdefault("headers", {})[header] = value
            draft.lose(
                f"what sets {entry.key} is in Envoy's own configuration: here the header {header} is matched, which"
                " clients can leave out; match paths instead where you can"
            )
        return True

    def _counted_by(self, entry: DescriptorEntry, by: dict[str, None], chain: tuple[DescriptorEntry, ...]) -> None:
        kind, draft = entry.kind, self.draft
        if kind in ("address", "user"):
            by[kind] = None
        elif kind == "prefix":
            by["prefix"] = None
            draft.lose("how much of masked_remote_address is kept is in Envoy's own configuration: here /24 and /48")
        elif kind:
            draft.lose(f"{_chain(chain)} has a count for each {entry.key}; here one for all that match")
        else:
            name, function = identity_name(entry.key), function_name(entry.key)
            draft.identities.setdefault(name, {"call": function})
            by[name] = None
            draft.lose(
                f"what {entry.key} holds is in Envoy's own configuration: the function {function}(request) has to be"
                " written; who has none counts by address, there not at all"
            )


def _groups(descriptors: Any, above: tuple[DescriptorEntry, ...]) -> dict[str, Group]:
    """Descriptors by key, in the order of the text."""
    if not isinstance(descriptors, list) or len(above) > 20:
        raise PolicyError([Problem((), f"descriptors below {_chain(above) or 'the top'}: expected a list")])
    groups: dict[str, Group] = {}
    for one in descriptors:
        if not isinstance(one, Mapping) or not isinstance(one.get("key"), str) or not one["key"]:
            raise PolicyError([Problem((), f"a descriptor needs a key: {shown(one)}")])
        entry = DescriptorEntry(one["key"], "" if one.get("value") is None else str(one["value"]))
        groups.setdefault(entry.key, []).append((entry, one))
    return groups


def _parted(group: Group) -> tuple[Group, Group]:
    """The single clients that overrides can say, and all others in the order in which the service looks for them."""
    whole = [one for entry, one in group if not entry.value]
    plain = bool(whole) and all(one.get("rate_limit") is not None and not one.get("descriptors") for one in whole)
    single: Group = []
    chosen: Group = []
    for entry, one in group:
        client = entry.value and entry.kind in ("address", "user") and not entry.is_wild
        (single if plain and client and not one.get("descriptors") else chosen).append((entry, one))
    return single, sorted(chosen, key=lambda each: (not each[0].value, each[0].is_wild))


def _needs_order(group: Group, above: tuple[DescriptorEntry, ...]) -> bool:
    _, chosen = _parted(group)
    if any(entry.overlaps(other) for place, (entry, _) in enumerate(chosen) for other, _ in chosen[place + 1 :]):
        return True
    return any(
        _needs_order(inner, (*above, entry))
        for entry, one in chosen
        if one.get("descriptors")
        for inner in _groups(one["descriptors"], (*above, entry)).values()
    )


def _limits_below(one: Mapping[str, Any]) -> bool:
    inner = one.get("descriptors")
    return isinstance(inner, list) and any(
        isinstance(each, Mapping) and (each.get("rate_limit") is not None or _limits_below(each)) for each in inner
    )


def _chain(chain: tuple[DescriptorEntry, ...]) -> str:
    return " / ".join(entry.text for entry in chain)


def _is_address(text: str) -> bool:
    try:
        parse_network(text)
    except ValueError:
        return False
    return True
