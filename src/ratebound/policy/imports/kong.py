"""The importer for Kong's declarative configuration: the plugins rate-limiting and, in part, rate-limiting-advanced.

Among the plugins that apply to a request Kong runs only the most specific one: consumer, then route, service, global.
So rules are written in that order and are final. Windows are fixed and aligned to the clock.

A consumer with a plugin of its own is counted by the `limit_by` of that plugin, not by that of the rule for the others.
So there are rules for such consumers, which are unlimited except by override, and overrides that make these consumers
unlimited in the other rules.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ratebound.policy.imports.draft import Draft, Imported, from_regex, literal, number, prefixed
from ratebound.policy.imports.kong_plugin import KongPlugin, SharedSettings, read_plugin
from ratebound.policy.load.document import parse
from ratebound.policy.match.conditions import Match
from ratebound.policy.problem import PolicyError, Problem, shown

OLD_PLAIN = re.compile(r"[A-Za-z0-9._~/%-]*")  # before Kong 3, every other path was a regular expression
TARGETS = ("route", "service", "consumer", "consumer_group")
CONSUMER_GROUPS = "limits of consumer groups are left out: write them as limits by tier"


class ConsumerPlugin(NamedTuple):
    """The plugin of one consumer: on a route or a service, such as `route login`, or everywhere if `place` is empty."""

    consumer: str
    place: str
    plugin: KongPlugin


class KongRoute(NamedTuple):
    """A route with its match as in a policy. `owner` is the level of its plugin: route, service, global or ""."""

    name: str
    service: str
    match: dict[str, Any]
    owner: str
    plugin: KongPlugin | None
    prefixes: tuple[str, ...]  # the paths as Kong writes them
    regex_priority: float = 0.0

    @property
    def precedence(self) -> tuple[int, bool, float, int]:
        """Return a sort key in the order of Kong's router: more kinds of conditions first, then regular expressions by
        their priority, then longer paths."""
        has_regex = any(prefix.startswith("~") for prefix in self.prefixes)
        length = max(map(len, self.prefixes), default=0)
        return -len(self.match), not has_regex, -self.regex_priority if has_regex else 0.0, -length

    @property
    def conditions(self) -> dict[str, Any]:
        """Return the match without its paths."""
        return {key: value for key, value in self.match.items() if key != "paths"}


def import_kong(text: str) -> Imported:
    """Return the policy of a declarative configuration. A plugin or a list of plugins alone is enough.

    Args:
        text: The configuration, in YAML or JSON.

    Raises:
        PolicyError: It cannot be read.

    Examples:
        >>> from ratebound.policy.imports import import_kong
        >>> imported = import_kong('{"name": "rate-limiting", "config": {"minute": 60, "policy": "local"}}')
        >>> "60/minute" in imported.text
        True
    """
    tree, _ = parse(text, "yaml")
    if isinstance(tree, list):
        tree = {"plugins": tree}
    if not isinstance(tree, Mapping):
        raise PolicyError([Problem((), f"expected Kong's declarative configuration, not {shown(tree)}")])
    if "plugins" not in tree and "config" in tree:
        tree = {"plugins": [tree]}
    return _KongReader(tree).imported()


class _KongReader:
    """A reader of one configuration that writes its plugins into a draft."""

    def __init__(self, tree: Mapping[str, Any]) -> None:
        self.draft = Draft("Kong")
        self.shared = SharedSettings()
        self.scoped: dict[tuple[str, str], KongPlugin] = {}  # by kind and name; ("global", "") is for all
        self.consumers: list[ConsumerPlugin] = []
        self.unlimited: list[dict[str, Any]] = []  # overrides that must come after all others of their client
        self.routes: list[KongRoute] = []
        self._is_old = str(tree.get("_format_version") or "3")[:1] in ("1", "2")
        for entity in _listed(tree, "plugins"):
            self._plugin(entity)
        services = [
            (service, _name(service) or f"service-{place}")
            for place, service in enumerate(_listed(tree, "services"), 1)
        ]
        routes = [(route, service_name) for service, service_name in services for route in _listed(service, "routes")]
        routes += [(route, _reference(route.get("service"))) for route in _listed(tree, "routes")]
        for service, name in services:
            self._nested_plugins("service", name, service)
        for place, (route, service_name) in enumerate(routes, 1):
            name = _name(route) or f"route-{place}"
            self._nested_plugins("route", name, route)
            self._route(name, route, service_name)
        for consumer in _listed(tree, "consumers"):
            name = str(consumer.get("username") or consumer.get("custom_id") or "")
            self._nested_plugins("consumer", name, consumer)
        if any(_listed(group, "plugins") for group in _listed(tree, "consumer_groups")):
            self.draft.lose(CONSUMER_GROUPS)
        known = {("service", name) for _, name in services} | {("route", route.name) for route in self.routes}
        for kind, name in self.scoped.keys() - known - {("global", "")}:
            self.draft.lose(f"the plugin for the {kind} {name} is left out: this text has no such {kind}")

    def imported(self) -> Imported:
        """Write the rules, and return the policy."""
        order = sorted(self.routes, key=lambda route: route.precedence)
        everyone = self.scoped.get(("global", ""))
        everywhere, varying = self._consumers_everywhere()
        done: set[str] = set()
        for place, route in enumerate(order):
            together = [route]
            if route.owner == "service":
                together = self._routes_of_service(route, order)
                if route.service in done and len(together) > 1:
                    continue
                done.add(route.service)
            elif (
                route.owner != "route"
                and not self._consumers_at([route])
                and not _may_match_later(route, order[place + 1 :])
            ):
                continue  # needs no rule of its own: the global rule applies, or none
            elif route.owner == "global":
                self.draft.lose(
                    f"Kong counts the route {route.name} together with all others; this policy counts it separately"
                )
            match = dict(route.match)
            if "paths" in match:
                match["paths"] = list(dict.fromkeys(path for one in together for path in one.match["paths"]))
            wanted = route.service if route.owner == "service" else route.name
            last = everyone is None and not varying and place + len(together) >= len(order)
            consumers = [*self._consumers_at(together), *varying]
            self._rules(route.plugin, wanted, match, final=not last, consumers=consumers)
        if everyone is not None:
            self._rules(everyone, "all", {}, final=False, consumers=varying)
        else:
            self._consumer_rules("others", {}, varying)
        self._add_unlimited(everywhere + varying)
        self._settings()
        return self.draft.imported()

    def _plugin(self, entity: Mapping[str, Any]) -> None:
        """Read a plugin at the top level, which names its route, service or consumer."""
        plugin = read_plugin(entity, self.draft, self.shared)
        if plugin is None:
            return
        self._put(plugin, {kind: _reference(entity.get(kind)) for kind in TARGETS})

    def _put(self, plugin: KongPlugin, targets: Mapping[str, str]) -> None:
        """Keep a plugin for its route, service or consumer, or for everything. The first one counts."""
        kind = "route" if targets["route"] else "service"
        place = f"{kind} {targets[kind]}" if targets[kind] else ""
        scope = (kind, targets[kind]) if targets[kind] else ("global", "")
        consumer = targets["consumer"]
        if targets["consumer_group"]:
            self.draft.lose(CONSUMER_GROUPS)
        elif scope in self.scoped if not consumer else (consumer, place) in {one[:2] for one in self.consumers}:
            owner = f"consumer {consumer}" if consumer else place or "everything"
            self.draft.lose(f"several plugins limit {owner}: only the first of them is imported")
        elif consumer:
            self.consumers.append(ConsumerPlugin(consumer, place, plugin))
        else:
            self.scoped[scope] = plugin

    def _nested_plugins(self, kind: str, name: str, entity: Mapping[str, Any]) -> None:
        """Read the plugins inside a service, a route or a consumer. They may name more that they are for."""
        for one in _listed(entity, "plugins"):
            plugin = read_plugin(one, self.draft, self.shared)
            if plugin is not None and not name:
                self.draft.lose(f"the plugin of a {kind} without a name is left out")
            elif plugin is not None:
                self._put(plugin, {target: _reference(one.get(target)) for target in TARGETS} | {kind: name})

    def _route(self, name: str, route: Mapping[str, Any], service: str) -> None:
        match: dict[str, Any] = {}
        paths: list[str] = []
        prefixes = tuple(
            f"~{path}" if self._is_old and not OLD_PLAIN.fullmatch(path) else path
            for path in _texts(route.get("paths"))
        )
        for path in prefixes:
            if path.startswith("~"):
                found = from_regex("^" + path[1:].removeprefix("^"))
                if found is None:
                    self.draft.lose(f"route {name}: the path {path} is left out: it cannot be expressed as a pattern")
                    continue
                self.draft.lose(f"route {name}: the path {path} is imported as {', '.join(found)}")
                paths += found
            else:
                paths += prefixed(path) if path != "/" else ["/{rest*}"]
        if route.get("paths") and not paths:
            return
        if paths:
            match["paths"] = paths
        match |= {key: _texts(route[key]) for key in ("methods", "hosts") if route.get(key)}
        for place, host in enumerate(match.get("hosts", ())):
            bare, colon, _ = host.rpartition(":")
            if colon and not host.endswith("]"):
                self.draft.lose(f"route {name}: the port of {host} is left out")
                match["hosts"][place] = bare
        if isinstance(route.get("headers"), Mapping):
            match["headers"] = {str(key): _texts(value) for key, value in route["headers"].items()}
        for key in ("snis", "sources", "destinations", "expression"):
            if route.get(key):
                self.draft.lose(f"route {name}: {key} is left out")
        try:
            Match(**match)
        except ValueError as error:
            self.draft.lose(f"route {name} is left out: {error}")
            return
        priority = number(route.get("regex_priority")) or 0.0
        for owner, target in (("route", name), ("service", service), ("global", "")):
            if (owner, target) in self.scoped:
                plugin = self.scoped[owner, target]
                self.routes.append(KongRoute(name, service, match, owner, plugin, prefixes, priority))
                return
        self.routes.append(KongRoute(name, service, match, "", None, prefixes, priority))

    def _routes_of_service(self, route: KongRoute, order: Sequence[KongRoute]) -> list[KongRoute]:
        """Return the routes that share a service's count, if one rule can match them all; else this one alone."""
        mine = [one for one in order if one.owner == "service" and one.service == route.service]
        between = order[order.index(mine[0]) : order.index(mine[-1])]
        mixed = any(one.conditions != route.conditions or not one.match.get("paths") for one in mine)
        if len(mine) > 1 and (mixed or any(one not in mine for one in between)):
            self.draft.lose(
                f"Kong counts the routes of service {route.service} together; this policy counts each separately"
            )
            return [route]
        return mine

    def _rules(
        self,
        plugin: KongPlugin | None,
        wanted: str,
        match: dict[str, Any],
        *,
        final: bool,
        consumers: Sequence[ConsumerPlugin],
    ) -> None:
        """Add the rules of one place, after the rules of consumers that have a plugin of their own there."""
        excepted = self._consumer_rules(wanted, match, consumers)
        names = []
        if plugin is None:
            names.append(self.draft.add(wanted, "no plugin", match=match, limits="unlimited", final=True))
        else:
            keys: dict[str, Any] = {"limits": plugin.limits, "message": plugin.message, "failure": plugin.failure}
            if plugin.path:
                path = match | {"paths": [literal(plugin.path)]}
                names.append(self.draft.add(f"{wanted}-path", match=path, by="global", **keys, final=True))
            names.append(self.draft.add(wanted, match=match, by=plugin.by, **keys, final=final))
        rules = [name for name in names if name]
        if rules:
            self.unlimited += [{"client": f"user:{name}", "rules": rules, "limits": "unlimited"} for name in excepted]

    def _consumers_everywhere(self) -> tuple[list[ConsumerPlugin], list[ConsumerPlugin]]:
        """Return the plugins of consumers that have one limit everywhere, which is one rule; and those of consumers
        that have another limit somewhere, which are a rule at each place."""
        known = {f"route {route.name}" for route in self.routes} | {f"service {route.service}" for route in self.routes}
        for one in self.consumers:
            if not one.consumer:
                self.draft.lose("the plugin of a consumer without a name is left out")
            elif one.place and one.place not in known:
                self.draft.lose(
                    f"the limit of consumer {one.consumer} on {one.place} is left out: this text has no {one.place}"
                )
            if one.plugin.path:
                self.draft.lose(f"limit_by: path in the plugin of consumer {one.consumer} is imported as ip")
        self.consumers = [one for one in self.consumers if one.consumer and (not one.place or one.place in known)]
        placed = [one.consumer for one in self.consumers if one.place]
        whole = [one for one in self.consumers if not one.place]
        everywhere = [one for one in whole if one.consumer not in placed]
        self._consumer_rules("all", {}, everywhere)
        varying = [one for one in whole if one.consumer in placed]
        for one in varying:
            self.draft.lose(
                f"Kong has one count for consumer {one.consumer} everywhere; this policy has one per route or service"
            )
        return everywhere, varying

    def _consumers_at(self, routes: Sequence[KongRoute]) -> list[ConsumerPlugin]:
        """Return the plugins of consumers on these routes, which share a rule; those of routes come first."""
        found = []
        for one in self.consumers:
            if one.place in {f"route {route.name}" for route in routes}:
                found.append(one)
                if len(routes) > 1:
                    others = ", ".join(route.name for route in routes)
                    self.draft.lose(
                        f"the limit of consumer {one.consumer} on {one.place} applies to all of {others} in this policy"
                    )
        service = f"service {routes[0].service}"
        if sum(route.service == routes[0].service for route in self.routes) > len(routes):
            for one in self.consumers:
                if one.place == service:
                    self.draft.lose(
                        f"Kong has one count for consumer {one.consumer} on {service}; in this policy some of its"
                        " routes have their own"
                    )
        return [*found, *(one for one in self.consumers if one.place == service)]

    def _consumer_rules(self, wanted: str, match: dict[str, Any], consumers: Sequence[ConsumerPlugin]) -> list[str]:
        """Add rules and overrides for consumers; the first plugin of each consumer counts. Return the consumers that
        have one."""
        rules: dict[tuple[str, ...], str] = {}
        done: dict[str, None] = {}
        for one in consumers:
            plugin = one.plugin
            if one.consumer in done:
                continue
            key = (str(plugin.by), plugin.message, plugin.failure)
            if key not in rules:
                rules[key] = self.draft.add(
                    f"{wanted}-consumers",
                    "for consumers that have their own limits, as overrides",
                    match=match,
                    by=plugin.by,
                    limits="unlimited",
                    message=plugin.message,
                    failure=plugin.failure,
                )
            if rules[key]:
                done.setdefault(one.consumer)
                override = {"client": f"user:{one.consumer}", "rules": [rules[key]], "limits": plugin.limits}
                self.draft.overrides.append(override)
        return list(done)

    def _add_unlimited(self, everywhere: Sequence[ConsumerPlugin]) -> None:
        """Add the overrides that make consumers unlimited. They come last: the first override for a rule applies."""
        clients = dict.fromkeys(f"user:{one.consumer}" for one in everywhere)
        self.draft.overrides += [one for one in self.unlimited if one["client"] not in clients]
        self.draft.overrides += [{"client": client, "limits": "unlimited"} for client in clients]

    def _settings(self) -> None:
        shared, draft = self.shared, self.draft
        if len(shared.storages) > 1:
            draft.lose(
                f"Kong counts in several Redis servers ({', '.join(shared.storages)}); this policy counts in the first"
            )
        if shared.storages:
            draft.settings["storage"] = next(iter(shared.storages.values()))
        draft.settings["headers"] = "none" if shared.headers == {True} else "kong"
        if len(shared.headers) > 1:
            draft.lose("hide_client_headers differs between plugins; this policy always sends the headers")
        if len(shared.statuses) == 1:
            draft.settings["rejection"] = {"format": "json", "status": shared.statuses.pop()}
        elif shared.statuses:
            draft.lose(f"error_code is {sorted(shared.statuses)} in different plugins; this policy uses 429")


def _may_match_later(route: KongRoute, later: Sequence[KongRoute]) -> bool:
    """Return True if the rule of a later route may match requests of this one."""
    return any(other.owner in ("route", "service") and _reaches(other, route) for other in later)


def _reaches(outer: KongRoute, inner: KongRoute) -> bool:
    if not outer.prefixes or not inner.prefixes:
        return True
    return any(
        one.startswith("~") or other.startswith(("~", one)) for one in outer.prefixes for other in inner.prefixes
    )


def _listed(tree: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = tree.get(key) or []
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise PolicyError([Problem((), f"{key}: expected a list of entities, not {shown(value)}")])
    return value


def _name(entity: Mapping[str, Any]) -> str:
    return str(entity.get("name") or entity.get("id") or "")


def _reference(value: Any) -> str:
    """Return the name in a reference, which is a name or an entity with a name."""
    if isinstance(value, Mapping):
        return str(next((value[key] for key in ("name", "username", "custom_id", "id") if value.get(key)), ""))
    return str(value or "")


def _texts(value: Any) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else [str(value)] if value else []
