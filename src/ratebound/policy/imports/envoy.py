"""The importers for envoyproxy/ratelimit: nested descriptors with fixed windows.

`import_envoy_descriptors` writes rules for the same descriptors, for the service that Envoy asks. `import_envoy` writes
rules for requests, for programs that are behind no Envoy.

A descriptor holds the values that Envoy sends for a request, under keys that its operator chose. The usual keys are
read with their usual meaning (`KEYS`). An entry with a value is a condition; one without has a count for each value.
Among the entries of one key the service chooses one: the equal value, else the first `value*` that matches, else the
entry without a value.
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

UNITS = (
    "second",
    "minute",
    "hour",
    "day",
    "week",
    "month",
    "year",
)  # in the service, too, 30 and 365 days
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
REPORTING = ("detailed_metric", "value_to_metric", "metadata")  # keys that do not change the limits
DESCRIPTOR = {"key", "value", "rate_limit", "descriptors", "shadow_mode", "share_threshold", "quota_mode", *REPORTING}
RATE = {"unit", "requests_per_unit", "unlimited", "name", "replaces"}


class DescriptorEntry(NamedTuple):
    """One entry of a descriptor: a key and a value. Without a value it stands for every value."""

    key: str
    value: str

    @property
    def kind(self) -> str:
        """Return the meaning of the key in a policy, "" if it has none."""
        return KEYS.get(self.key.lower(), "")

    @property
    def label(self) -> str:
        """Return the part that the entry adds to the name of a rule."""
        if not self.value:
            return self.key
        return self.value if self.kind else f"{self.key}_{self.value}"

    @property
    def text(self) -> str:
        """Return the entry as `key=value`, for notes."""
        return f"{self.key}={self.value}" if self.value else self.key

    @property
    def is_wild(self) -> bool:
        """Return True if the value ends in a wildcard."""
        return self.value.endswith("*")

    def overlaps(self, later: "DescriptorEntry") -> bool:
        """Return True if some value matches both this entry and a later one of the same key."""
        mine, other = (one.value.lstrip("/").lower() if one.kind == "path" else one.value for one in (self, later))
        if not later.is_wild:
            return not later.value or mine == other
        stem = other.removesuffix("*")
        return mine.startswith(stem) or (self.is_wild and stem.startswith(mine.removesuffix("*")))


def _read_rate(rate: Any, where: str, draft: Draft) -> tuple[str, str, list[str]]:
    """Return the limits of a rate_limit, its name, and the names that it replaces. Raises PolicyError."""
    if not isinstance(rate, Mapping):
        raise PolicyError([Problem((), f"{where}: rate_limit: expected unit and requests_per_unit")])
    for key in sorted(set(map(str, rate)) - RATE):
        draft.lose(f"{where}: unknown key rate_limit.{key}")
    name = str(rate.get("name") or "")
    replaced = [str(one.get("name")) for one in rate.get("replaces") or () if isinstance(one, Mapping)]
    if is_true(rate.get("unlimited")):
        return "unlimited", name, replaced
    unit, count = str(rate.get("unit")).lower(), rate.get("requests_per_unit")
    if unit not in UNITS or isinstance(count, bool) or not isinstance(count, int) or count < 0:
        given = f"unit {shown(rate.get('unit'))}, requests_per_unit {shown(count)}"
        expected = f"expected one of {', '.join(UNITS)}, and a whole number"
        raise PolicyError([Problem((), f"{where}: {given}: {expected}")])
    return (f"{min(count, MAX_COUNT)}/{unit} fixed-window" if count else "deny"), name, replaced


def _note_ignored(one: Mapping[str, Any], chain: tuple[DescriptorEntry, ...], draft: Draft) -> None:
    """Note the keys of a descriptor that have no effect in a policy."""
    for key in sorted(set(map(str, one)) - DESCRIPTOR):
        draft.lose(f"{_chain(chain)}: unknown key {key}")
    if any(one.get(key) for key in REPORTING):
        draft.lose("detailed_metric, value_to_metric and metadata are left out: they do not change the limits")
    if is_true(one.get("quota_mode")):
        draft.lose(
            f"{_chain(chain)}: quota_mode denies only if all quotas are used up; in this policy each quota denies"
        )


Group = list[tuple[DescriptorEntry, Mapping[str, Any]]]  # the descriptors of one key at one level


def import_envoy(text: str) -> Imported:
    r"""Return the policy of one domain, with rules for requests.

    Args:
        text: A configuration of envoyproxy/ratelimit, in YAML.

    Raises:
        PolicyError: It cannot be read.

    Examples:
        >>> from ratebound.policy.imports import import_envoy
        >>> limit = "{unit: minute, requests_per_unit: 60}"
        >>> text = f"domain: edge\ndescriptors: [{{key: remote_address, rate_limit: {limit}}}]"
        >>> "60/minute" in import_envoy(text).text
        True
    """
    tree, _ = parse(text, "yaml")
    if not isinstance(tree, Mapping) or not isinstance(tree.get("descriptors"), list):
        raise PolicyError([Problem((), "expected the keys domain and descriptors of envoyproxy/ratelimit")])
    reader = _EnvoyReader()
    reader.level(tree["descriptors"], ())
    draft = reader.draft
    if draft.tiers:
        draft.settings["by"] = [*draft.identities, "user", "address"]  # the identities that are searched for a tier
    if tree.get("domain"):
        draft.lose(f"the domain {tree['domain']} is not in the policy: a policy is one domain")
    if draft.rules:
        draft.lose("the service's storage is set in its environment: with several processes, write storage: redis://…")
        draft.lose("the service charges a denied request to its other limits; this policy charges it to none")
    return draft.imported()


def import_envoy_descriptors(text: str) -> Imported:
    r"""Return the policy of one domain, with rules for its descriptors.

    Args:
        text: A configuration of envoyproxy/ratelimit, in YAML.

    Raises:
        PolicyError: It cannot be read.

    Examples:
        >>> from ratebound.policy.imports import import_envoy_descriptors
        >>> limit = "{unit: minute, requests_per_unit: 60}"
        >>> text = f"domain: edge\ndescriptors: [{{key: remote_address, rate_limit: {limit}}}]"
        >>> "60/minute" in import_envoy_descriptors(text).text
        True
    """
    tree, _ = parse(text, "yaml")
    if not isinstance(tree, Mapping) or not isinstance(tree.get("descriptors"), list) or not tree.get("domain"):
        raise PolicyError([Problem((), "expected the keys domain and descriptors of envoyproxy/ratelimit")])
    reader = _DescriptorReader(str(tree["domain"]))
    reader.level(tree["descriptors"], (), ())
    reader.replace()
    reader.draft.lose("envoyproxy/ratelimit charges a denied request to all its limits; this policy charges it to none")
    return reader.draft.imported()


class _DescriptorReader:
    """A reader of descriptors that writes rules for the same descriptors into a draft."""

    def __init__(self, domain: str) -> None:
        self.draft = Draft("envoyproxy/ratelimit")
        self._domain = domain
        self._named: dict[str, list[str]] = {}  # names of rules by the name of their rate_limit
        self._replaced: dict[str, list[str]] = {}  # names of rate_limits by the rule that replaces them

    def level(self, descriptors: Any, above: tuple[DescriptorEntry, ...], written: tuple[Any, ...]) -> None:
        """Write the rules of the descriptors at one level. `written` are the entries above as a policy has them."""
        for group in _groups(descriptors, above).values():
            for entry, one in group:
                chain = (*above, entry)
                entries = (*written, _entry_text(entry, shared=is_true(one.get("share_threshold"))))
                _note_ignored(one, chain, self.draft)
                if one.get("rate_limit") is not None:
                    self._limit(one, chain, entries)
                elif not one.get("descriptors"):
                    self._add("", chain, entries, "unlimited")
                if one.get("descriptors"):
                    self.level(one["descriptors"], chain, entries)

    def replace(self) -> None:
        """Write which rules are replaced by others, once all are known."""
        for rule in self.draft.descriptors:
            names = [name for wanted in self._replaced.get(rule["name"], ()) for name in self._named.get(wanted, ())]
            if names:
                rule["replaces"] = [name for name in names if name != rule["name"]]
            for wanted in self._replaced.get(rule["name"], ()):
                if wanted not in self._named:
                    self.draft.lose(f"{rule['name']} replaces {wanted}, which no rate_limit is named")

    def _limit(self, one: Mapping[str, Any], chain: tuple[DescriptorEntry, ...], entries: tuple[Any, ...]) -> None:
        limits, name, replaced = _read_rate(one["rate_limit"], _chain(chain), self.draft)
        rule = self._add(name, chain, entries, limits, "shadow" if is_true(one.get("shadow_mode")) else "")
        if name:
            self._named.setdefault(name, []).append(rule)
        if replaced and limits != "unlimited":
            self._replaced[rule] = replaced

    def _add(
        self, name: str, chain: tuple[DescriptorEntry, ...], entries: tuple[Any, ...], limits: str, mode: str = ""
    ) -> str:
        return self.draft.add_descriptor(
            name or "_".join(entry.label for entry in chain),
            _chain(chain),
            domain=self._domain,
            entries=list(entries),
            limits=limits,
            mode=mode,
        )


def _entry_text(entry: DescriptorEntry, *, shared: bool) -> Any:
    """Return an entry as a rule for descriptors has it."""
    if shared and entry.is_wild:
        return {"key": entry.key, "value": entry.value, "shared": True}
    return {entry.key: entry.value} if entry.value else entry.key


class _EnvoyReader:
    """A reader of descriptors that writes their limits into a draft."""

    def __init__(self) -> None:
        self.draft = Draft("envoyproxy/ratelimit")

    def level(self, descriptors: Any, above: tuple[DescriptorEntry, ...], *, ordered: bool = True) -> None:
        """Write the rules of the descriptors at one level. Each key applies by itself, with its best entry.

        That entry must end the search, so that the key's other entries do not apply as well. This is right only after
        the rules of all other keys: among several keys that need it, only the last one can have it. `ordered` is False
        if the levels above do not allow it either.
        """
        groups = _groups(descriptors, above)
        need_order = [key for key, group in groups.items() if _needs_order(group, above)]
        for key in sorted(groups, key=lambda key: key in need_order[-1:]):
            self._group(groups[key], above, ordered=ordered and key in need_order[-1:])

    def _group(self, group: Group, above: tuple[DescriptorEntry, ...], *, ordered: bool) -> None:
        """Write the rules of one key. Single clients, next to an entry for all clients, are overrides of its rule."""
        single, chosen = _split_overrides(group)
        for place, (entry, one) in enumerate(chosen):
            chain, since = (*above, entry), len(self.draft.rules)
            wider = [other for other, _ in chosen[place + 1 :] if entry.overlaps(other)]
            self._note_ignored(one, chain)
            name = self._limit(one, chain, ends=ordered and bool(wider)) if one.get("rate_limit") is not None else ""
            if one.get("descriptors"):
                self.level(one["descriptors"], chain, ordered=ordered)
            if wider and ordered:
                self._end_search(chain, since)
            elif wider:
                others = ", ".join(_chain((*above, other)) for other in wider)
                self.draft.lose(
                    f"where {_chain(chain)} matches, the service does not check {others}; in this policy both count"
                )
            for other, exception in single if not entry.value else ():
                self._note_ignored(exception, (*above, other))
                self._override(exception, (*above, other), name)

    def _end_search(self, chain: tuple[DescriptorEntry, ...], since: int) -> None:
        """End the search for requests of this entry: the later entries of its key do not apply to them."""
        match = self._conditions(chain, {}, shared=True)
        if match is not None:
            self.draft.end(f"end {chain[-1].label}", match, since)

    def _note_ignored(self, one: Mapping[str, Any], chain: tuple[DescriptorEntry, ...]) -> None:
        _note_ignored(one, chain, self.draft)
        if one.get("rate_limit") is not None and _limits_below(one):
            self.draft.lose(
                f"{_chain(chain)} has a limit, and more are nested in it: in Envoy each counts only if a descriptor"
                " with exactly its entries is sent; this policy charges a request to every one that it matches"
            )

    def _limit(self, one: Mapping[str, Any], chain: tuple[DescriptorEntry, ...], *, ends: bool) -> str:
        """Add a rule for one rate_limit. Return its name, "" if it has none."""
        limits, name = self._rate(one["rate_limit"], chain)
        if limits == "unlimited":
            if not ends:
                self.draft.lose(f"{_chain(chain)} is unlimited, so it has no rule; other rules may still limit it")
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
        """Return the match for the entries of a chain, and add to `by`; None, with a note, if a rule cannot do so."""
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
        limits, name, replaced = _read_rate(rate, _chain(chain), self.draft)
        if replaced:
            self.draft.lose(
                f"{_chain(chain)} replaces {', '.join(replaced)} where both apply; in this policy both count"
            )
        return limits, name

    def _override(self, one: Mapping[str, Any], chain: tuple[DescriptorEntry, ...], rule: str) -> None:
        """Add an override for one client of a rule. A client that is named without a limit is unlimited."""
        entry, limits = chain[-1], "unlimited"
        if one.get("rate_limit") is not None:
            limits, _ = self._rate(one["rate_limit"], chain)
        if not rule:
            self.draft.lose(f"{_chain(chain)} is left out, like the rule for all other clients")
        elif is_true(one.get("shadow_mode")) and one.get("rate_limit") is not None:
            self.draft.lose(f"{_chain(chain)} is left out: a single client cannot have shadow_mode in a policy")
        elif entry.kind == "address" and not _is_address(entry.value):
            self.draft.lose(
                f"{_chain(chain)} is an exception to {entry.key}; in this policy the rule {rule} applies to it"
            )
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
        """Add one entry to a rule's match or to its `by`. Return False if the rule must be left out."""
        value, kind, draft = entry.value, entry.kind, self.draft
        if not value:
            self._add_by(entry, by, chain)
            return True
        stem = value.removesuffix("*")
        if stem != value and not shared:
            draft.lose(f"{_chain(chain)} has a count for each {entry.key}; this policy has one for all that match")
        if kind in ("address", "prefix"):
            if not _is_address(value):
                draft.lose(f"{_chain(chain)} is left out: {value} is not an address")
                return False
            match.setdefault("addresses", []).append(value)
            if kind == "address":
                by["address"] = None
        elif kind == "path":
            match["paths"] = [literal(value)] if stem == value else prefixed(stem)
        elif kind in ("method", "host"):
            if stem != value:
                draft.lose(f"{_chain(chain)} is left out: {entry.key} {value} cannot be expressed as a pattern")
                return False
            match[f"{kind}s"] = [value]
        elif kind == "tier":
            if not KIND.fullmatch(value.lower()) or value == DEFAULT:
                draft.lose(f"{_chain(chain)} is left out: {value} cannot be the name of a tier")
                return False
            match["tiers"] = [value]
            draft.tiers.setdefault(value, [])
            draft.lose(f"{entry.key} is imported as the tier of a client: a verifier must return it")
        elif kind == "user":
            draft.lose(f"{_chain(chain)} is left out: a rule cannot match a single user; use an override")
            return False
        else:
            header = entry.key.lower().strip(":").replace("_", "-")
            match.setdefault("headers", {})[header] = value
            draft.lose(
                f"{entry.key} is set in Envoy's own configuration; this policy matches the header {header}, which"
                " clients can leave out: match paths instead where you can"
            )
        return True

    def _add_by(self, entry: DescriptorEntry, by: dict[str, None], chain: tuple[DescriptorEntry, ...]) -> None:
        kind, draft = entry.kind, self.draft
        if kind in ("address", "user"):
            by[kind] = None
        elif kind == "prefix":
            by["prefix"] = None
            draft.lose(
                "the prefix lengths of masked_remote_address are set in Envoy's own configuration; this policy uses /24"
                " and /48"
            )
        elif kind:
            draft.lose(f"{_chain(chain)} has a count for each {entry.key}; this policy has one for all that match")
        else:
            name, function = identity_name(entry.key), function_name(entry.key)
            draft.identities.setdefault(name, {"call": function})
            by[name] = None
            draft.lose(
                f"{entry.key} is set in Envoy's own configuration: write a function {function}(request) that returns"
                " it; clients without it count by address, which Envoy does not count"
            )


def _groups(descriptors: Any, above: tuple[DescriptorEntry, ...]) -> dict[str, Group]:
    """Return the descriptors by key, in the order of the text."""
    if not isinstance(descriptors, list) or len(above) > 20:
        raise PolicyError([Problem((), f"descriptors below {_chain(above) or 'the top'}: expected a list")])
    groups: dict[str, Group] = {}
    for one in descriptors:
        if not isinstance(one, Mapping) or not isinstance(one.get("key"), str) or not one["key"]:
            raise PolicyError([Problem((), f"a descriptor needs a key, a string, not {shown(one)}")])
        value = one.get("value")
        text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        entry = DescriptorEntry(one["key"], text)
        groups.setdefault(entry.key, []).append((entry, one))
    return groups


def _split_overrides(group: Group) -> tuple[Group, Group]:
    """Return the single clients that overrides can express, and all others in the order in which the service tries
    them."""
    whole = [one for entry, one in group if not entry.value]
    plain = bool(whole) and all(one.get("rate_limit") is not None and not one.get("descriptors") for one in whole)
    single: Group = []
    chosen: Group = []
    for entry, one in group:
        client = entry.value and entry.kind in ("address", "user") and not entry.is_wild
        (single if plain and client and not one.get("descriptors") else chosen).append((entry, one))
    return single, sorted(chosen, key=lambda each: (not each[0].value, each[0].is_wild))


def _needs_order(group: Group, above: tuple[DescriptorEntry, ...]) -> bool:
    """Return True if two entries of the group, or of one below it, can match the same request."""
    _, chosen = _split_overrides(group)
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
