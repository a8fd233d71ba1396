"""Kong's declarative configuration: the plugin rate-limiting, and what of rate-limiting-advanced is the same.

Of all plugins that are set for a request Kong runs the most specific one: consumer before route before service before
global. So rules are written in that order and are final. Windows are fixed, aligned to the clock.

What a consumer has of its own is counted by what its own plugin says, not by what the rule for the others counts by. So
there are rules for consumers, which limit nobody but by override, and overrides that free these of the other rules.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ratebound.policy.imports.draft import Draft, Imported, from_regex, literal, prefixed
from ratebound.policy.imports.kong_plugin import KongPlugin, Whole, read_plugin
from ratebound.policy.load.document import parse
from ratebound.policy.match.conditions import Match
from ratebound.policy.problem import PolicyError, Problem, shown


class Own(NamedTuple):
    """The plugin of one consumer: on a route or a service (`route login`), or wherever it goes."""

    consumer: str
    place: str
    plugin: KongPlugin


class KongRoute(NamedTuple):
    """What requests come this way, in the words of a policy. `owner` is whose plugin holds: route, service, global."""

    name: str
    service: str
    match: dict[str, Any]
    owner: str
    plugin: KongPlugin | None
    prefixes: tuple[str, ...]  # its paths as Kong has them

    @property
    def precedence(self) -> tuple[int, int]:
        """More kinds of conditions first, then longer paths: as Kong's router chooses."""
        return -len(self.match), -max(map(len, self.prefixes), default=0)

    @property
    def conditions(self) -> dict[str, Any]:
        return {key: value for key, value in self.match.items() if key != "paths"}


def import_kong(text: str) -> Imported:
    """Read a declarative configuration, YAML or JSON; a plugin or a list of plugins alone is enough."""
    tree, _ = parse(text, "yaml")
    if isinstance(tree, list):
        tree = {"plugins": tree}
    if not isinstance(tree, Mapping):
        raise PolicyError([Problem((), f"expected Kong's declarative configuration, not {shown(tree)}")])
    if "plugins" not in tree and "config" in tree:
        tree = {"plugins": [tree]}
    return _KongReader(tree).imported()


class _KongReader:
    def __init__(self, tree: Mapping[str, Any]) -> None:
        self.draft = Draft("Kong")
        self.whole = Whole()
        self.scoped: dict[tuple[str, str], KongPlugin] = {}  # by kind and name; ("global", "") is for all
        self.consumers: list[Own] = []
        self.freed: list[dict[str, Any]] = []  # overrides that come behind all others of their client
        self.routes: list[KongRoute] = []
        for entity in _listed(tree, "plugins"):
            self._plugin(entity)
        services = _listed(tree, "services")
        routes = [(route, _name(service)) for service in services for route in _listed(service, "routes")]
        routes += [(route, _reference(route.get("service"))) for route in _listed(tree, "routes")]
        for service in services:
            self._inner("service", service)
        for route, service_name in routes:
            self._inner("route", route)
            self._route(route, service_name)
        for consumer in _listed(tree, "consumers"):
            self._inner("consumer", consumer)
        if any(_listed(group, "plugins") for group in _listed(tree, "consumer_groups")):
            self.draft.lose("limits of consumer groups: write them as limits by tier")
        known = {("service", _name(service)) for service in services} | {("route", route.name) for route in self.routes}
        for kind, name in self.scoped.keys() - known - {("global", "")}:
            self.draft.lose(f"a plugin for the {kind} {name}, which is not in this text, is left out")

    def imported(self) -> Imported:
        order = sorted(self.routes, key=lambda route: route.precedence)
        everyone = self.scoped.get(("global", ""))
        everywhere, apart = self._own_everywhere()
        done: set[str] = set()
        for place, route in enumerate(order):
            together = [route]
            if route.owner == "service":
                together = self._together(route, order)
                if route.service in done and len(together) > 1:
                    continue
                done.add(route.service)
            elif route.owner != "route" and not self._own_at([route]) and not _is_caught(route, order[place + 1 :]):
                continue  # the rule for all holds, or none
            elif route.owner == "global":
                self.draft.lose(f"the route {route.name} is counted with all others there, and by itself here")
            match = dict(route.match)
            if "paths" in match:
                match["paths"] = list(dict.fromkeys(path for one in together for path in one.match["paths"]))
            wanted = route.service if route.owner == "service" else route.name
            last = everyone is None and not apart and place + len(together) >= len(order)
            self._rules(route.plugin, wanted, match, final=not last, own=[*self._own_at(together), *apart])
        if everyone is not None:
            self._rules(everyone, "all", {}, final=False, own=apart)
        else:
            self._own_rules("others", {}, apart)
        self._free(everywhere + apart)
        self._settings()
        return self.draft.imported()

    def _plugin(self, entity: Mapping[str, Any]) -> None:
        """A plugin at the top, which says what it is for."""
        plugin = read_plugin(entity, self.draft, self.whole)
        if plugin is None:
            return
        if entity.get("consumer_group"):
            self.draft.lose("limits of consumer groups: write them as limits by tier")
            return
        targets = {kind: _reference(entity.get(kind)) for kind in ("route", "service", "consumer")}
        kind = "route" if targets["route"] else "service"
        if targets["consumer"]:
            place = f"{kind} {targets[kind]}" if targets[kind] else ""
            self.consumers.append(Own(targets["consumer"], place, plugin))
        elif targets[kind]:
            self.scoped[kind, targets[kind]] = plugin
        else:
            self.scoped["global", ""] = plugin

    def _inner(self, kind: str, entity: Mapping[str, Any]) -> None:
        """The plugins inside of a service, a route or a consumer."""
        for one in _listed(entity, "plugins"):
            plugin = read_plugin(one, self.draft, self.whole)
            if plugin is not None and kind == "consumer":
                self.consumers.append(Own(str(entity.get("username") or entity.get("custom_id") or ""), "", plugin))
            elif plugin is not None and _reference(one.get("consumer")):
                self.consumers.append(Own(_reference(one["consumer"]), f"{kind} {_name(entity)}", plugin))
            elif plugin is not None:
                self.scoped[kind, _name(entity)] = plugin

    def _route(self, route: Mapping[str, Any], service: str) -> None:
        name = _name(route) or f"route-{len(self.routes) + 1}"
        match: dict[str, Any] = {}
        paths: list[str] = []
        for path in _texts(route.get("paths")):
            if path.startswith("~"):
                found = from_regex("^" + path[1:].removeprefix("^"))
                if found is None:
                    self.draft.lose(f"route {name}: the path {path} cannot be said as a pattern: left out")
                    continue
                self.draft.lose(f"route {name}: the path {path} is read as {', '.join(found)}")
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
        prefixes = tuple(_texts(route.get("paths")))
        for owner, target in (("route", name), ("service", service), ("global", "")):
            if (owner, target) in self.scoped:
                self.routes.append(KongRoute(name, service, match, owner, self.scoped[owner, target], prefixes))
                return
        self.routes.append(KongRoute(name, service, match, "", None, prefixes))

    def _together(self, route: KongRoute, order: Sequence[KongRoute]) -> list[KongRoute]:
        """The routes that share a service's count, if one rule can say them all; else this one alone."""
        mine = [one for one in order if one.owner == "service" and one.service == route.service]
        between = order[order.index(mine[0]) : order.index(mine[-1])]
        mixed = any(one.conditions != route.conditions or not one.match.get("paths") for one in mine)
        if len(mine) > 1 and (mixed or any(one not in mine for one in between)):
            self.draft.lose(f"the routes of service {route.service} have one count there; here each counts by itself")
            return [route]
        return mine

    def _rules(
        self, plugin: KongPlugin | None, wanted: str, match: dict[str, Any], *, final: bool, own: Sequence[Own]
    ) -> None:
        """The rules for one place, behind those for the consumers that have something of their own there."""
        theirs = self._own_rules(wanted, match, own)
        names = []
        if plugin is None:
            names.append(self.draft.add(wanted, "no plugin", match=match, limits="unlimited", final=True))
        else:
            said: dict[str, Any] = {"limits": plugin.limits, "message": plugin.message, "failure": plugin.failure}
            if plugin.path:
                path = match | {"paths": [literal(plugin.path)]}
                names.append(self.draft.add(f"{wanted}-path", match=path, by="global", **said, final=True))
            names.append(self.draft.add(wanted, match=match, by=plugin.by, **said, final=final))
        rules = [name for name in names if name]
        if rules:
            self.freed += [{"client": f"user:{name}", "rules": rules, "limits": "unlimited"} for name in theirs]

    def _own_everywhere(self) -> tuple[list[Own], list[Own]]:
        """Consumers with one limit for all that they ask for, which is one rule; and those that have another limit
        somewhere, for whom each place has a rule."""
        known = {f"route {route.name}" for route in self.routes} | {f"service {route.service}" for route in self.routes}
        for one in self.consumers:
            if not one.consumer:
                self.draft.lose("the limit of a consumer without a name is left out")
            elif one.place and one.place not in known:
                self.draft.lose(f"the limit of consumer {one.consumer} on {one.place}, which is not here, is left out")
            if one.plugin.path:
                self.draft.lose(f"limit_by: path in the plugin of consumer {one.consumer} is read as ip")
        self.consumers = [one for one in self.consumers if one.consumer and (not one.place or one.place in known)]
        placed = [one.consumer for one in self.consumers if one.place]
        whole = [one for one in self.consumers if not one.place]
        everywhere = [one for one in whole if one.consumer not in placed]
        self._own_rules("all", {}, everywhere)
        apart = [one for one in whole if one.consumer in placed]
        for one in apart:
            self.draft.lose(
                f"what consumer {one.consumer} has everywhere is one count there; here each place has its own"
            )
        return everywhere, apart

    def _own_at(self, routes: Sequence[KongRoute]) -> list[Own]:
        """What consumers have on these routes, which share a rule; on a route before on its service."""
        found = []
        for one in self.consumers:
            if one.place in {f"route {route.name}" for route in routes}:
                found.append(one)
                if len(routes) > 1:
                    others = ", ".join(route.name for route in routes)
                    self.draft.lose(f"the limit of consumer {one.consumer} on {one.place} is for all of {others} here")
        service = f"service {routes[0].service}"
        if sum(route.service == routes[0].service for route in self.routes) > len(routes):
            for one in self.consumers:
                if one.place == service:
                    self.draft.lose(
                        f"the limit of consumer {one.consumer} on {service} is one count there; here some of its routes"
                        " have their own"
                    )
        return [*found, *(one for one in self.consumers if one.place == service)]

    def _own_rules(self, wanted: str, match: dict[str, Any], own: Sequence[Own]) -> list[str]:
        """Rules for consumers, of which the first plugin of each is taken. Returns the consumers that have one."""
        rules: dict[tuple[str, ...], str] = {}
        done: dict[str, None] = {}
        for one in own:
            plugin = one.plugin
            if one.consumer in done:
                continue
            key = (str(plugin.by), plugin.message, plugin.failure)
            if key not in rules:
                rules[key] = self.draft.add(
                    f"{wanted}-consumers",
                    "for consumers with limits of their own, which are overrides",
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

    def _free(self, whole: Sequence[Own]) -> None:
        """Of several overrides of a client the first that names a rule holds for it."""
        clients = dict.fromkeys(f"user:{one.consumer}" for one in whole)
        self.draft.overrides += [one for one in self.freed if one["client"] not in clients]
        self.draft.overrides += [{"client": client, "limits": "unlimited"} for client in clients]

    def _settings(self) -> None:
        whole, draft = self.whole, self.draft
        if len(whole.storages) > 1:
            draft.lose(f"counts are in several Redis servers ({', '.join(whole.storages)}); here all are in the first")
        if whole.storages:
            draft.settings["storage"] = next(iter(whole.storages.values()))
        draft.settings["headers"] = "none" if whole.headers == {True} else "kong"
        if len(whole.headers) > 1:
            draft.lose("hide_client_headers differs from plugin to plugin; here headers are always sent")
        if len(whole.statuses) == 1:
            draft.settings["refusal"] = {"format": "json", "status": whole.statuses.pop()}
        elif whole.statuses:
            draft.lose(f"error_code is {sorted(whole.statuses)} in different plugins; here 429")


def _is_caught(route: KongRoute, later: Sequence[KongRoute]) -> bool:
    """Whether a rule of another route may hold for this one, too."""
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
    """A name, or an entity with one."""
    if isinstance(value, Mapping):
        return str(next((value[key] for key in ("name", "username", "custom_id", "id") if value.get(key)), ""))
    return str(value or "")


def _texts(value: Any) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else [str(value)] if value else []
