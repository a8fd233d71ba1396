"""The importer for nginx: `limit_req` and `limit_conn` with their zones, by server and location.

`limit_conn` counts the requests that a server is working on, whatever connections they came on: HTTP/2 and HTTP/3 have
several on one. So it is a limit of concurrent requests. `limit_req` is a rate.

`burst=N` in nginx admits N requests besides the one that the rate allows, so it is `burst N+1` in a policy. With
`nodelay` they are served at once, a token bucket; without it they wait, a leaky bucket. nginx applies the limits of one
location only, hence `final` rules.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from ratebound.limit import MAX_SLOTS
from ratebound.policy.imports.draft import Draft, Imported, from_regex, literal, prefixed
from ratebound.policy.imports.nginx_keys import ZoneKey, ZoneKeyReader
from ratebound.policy.imports.nginx_servers import Server, arrange
from ratebound.policy.imports.nginx_text import Directive, parse_nginx
from ratebound.policy.match.conditions import Match
from ratebound.policy.problem import PolicyError, Problem

RATE = re.compile(r"rate=([0-9]{1,12})r/([sm])")
RANKS = {"=": 0, "^~": 1, "~": 2, "~*": 2, "": 3}
EVERYTHING = 4
DEFAULT_STATUS = 503
# Directives that are not imported, with the reason.
OTHERS = {
    "limit_rate": "limit_rate limits the bandwidth of a response",
    "auth_request": "auth_request sends a request to another server",
    "stream": "limits of TCP and UDP connections, in stream, are left out",
    "include": "include names another file: import that file too, or merge the files first",
}


class NginxZone(NamedTuple):
    """A zone: its key, and its rate, which is empty for the zone of a limit_conn."""

    key: ZoneKey
    rate: str = ""


class ZoneUse(NamedTuple):
    """One limit_req or limit_conn: its zone, and its limits in the notation of a policy. `dry` is True if rejections
    are only logged."""

    zone: str
    limits: str
    dry: bool = False


class LevelLimits(NamedTuple):
    """The limits at one level of the configuration. nginx inherits limit_req and limit_conn separately."""

    requests: tuple[ZoneUse, ...] = ()
    connections: tuple[ZoneUse, ...] = ()
    dry_requests: bool = False
    dry_connections: bool = False

    @property
    def uses(self) -> tuple[ZoneUse, ...]:
        """Return all limits of the level."""
        return (
            *(use._replace(dry=self.dry_requests) for use in self.requests),
            *(use._replace(dry=self.dry_connections) for use in self.connections),
        )


class Location(NamedTuple):
    """A location of a server, or the server outside all locations. nginx chooses by rank, then by longest prefix."""

    rank: int
    paths: tuple[str, ...]
    prefix: str
    level: LevelLimits
    hosts: tuple[str, ...] = ()

    @property
    def limited(self) -> bool:
        """Return True if the location has any limit."""
        return bool(self.level.uses)

    def reaches(self, other: "Location") -> bool:
        """Return True if its patterns may match some paths of the other location."""
        if self.rank in (EVERYTHING, 2) or other.rank in (EVERYTHING, 2):
            return self.rank != 0
        return self.rank != 0 and other.prefix.startswith(self.prefix)


def import_nginx(text: str) -> Imported:
    """Return the policy of a whole configuration, or of a part that holds the zones and their uses.

    Args:
        text: The configuration.

    Raises:
        PolicyError: It cannot be read.

    Examples:
        >>> from ratebound.policy.imports import import_nginx
        >>> zone = "limit_req_zone $binary_remote_addr zone=one:10m rate=10r/s;"
        >>> imported = import_nginx(f"http {{ {zone} server {{ location / {{ limit_req zone=one burst=20; }} }} }}")
        >>> "10/second" in imported.text
        True
    """
    return _NginxReader(parse_nginx(text)).imported()


class _NginxReader:
    """A reader of one configuration that writes its limits into a draft."""

    def __init__(self, root: Directive) -> None:
        self.draft = Draft("nginx")
        self.servers: list[tuple[Directive, LevelLimits]] = []
        tops = [root, *root.all("http")]
        inner = [one for top in tops for one in top.inner or ()]
        self.keys = ZoneKeyReader(inner, self.draft)
        self.zones: dict[str, NginxZone] = {}
        self.statuses: dict[str, set[int]] = {"limit_req": set(), "limit_conn": set()}
        for one in inner:
            if one.name in ("limit_req_zone", "limit_conn_zone"):
                self._zone(one)
        self.top = LevelLimits()
        for top in tops:
            self.top = self._level(top, self.top)
            self.servers += [(server, self.top) for server in top.all("server")]
        self.tops = tops
        self._note_ignored(root)

    def imported(self) -> Imported:
        """Write the rules, and return the policy."""
        draft = self.draft
        self._real_ip()
        places = [self._server_locations(server, level) for server, level in self.servers]
        limited = [any(place.limited for place in one) for one in places]
        order = arrange([server for server, _ in self.servers], limited, draft)
        loose = [place for top in self.tops for place in self._locations(top, self.top)]
        if loose or not order:
            order.append(Server(len(places)))
            places.append([*loose, Location(EVERYTHING, (), "", self.top)])
            limited.append(any(place.limited for place in places[-1]))
        zones = [
            zone for one in order for zone in {use.zone for place in places[one.place] for use in place.level.uses}
        ]
        several = [zone for zone in dict.fromkeys(zones) if zones.count(zone) > 1]
        for zone in (zone for zone in several if not self.zones[zone].key.per_server):
            draft.lose(f"zone {zone} counts several servers together; this policy counts each server separately")
        for number, server in enumerate(order):
            ends = any(limited[later.place] and server.reaches(later) for later in order[number + 1 :])
            self._write([place._replace(hosts=server.hosts) for place in places[server.place]], ends=ends)
        self._status({"limit_req" if self.zones[zone].rate else "limit_conn" for zone in zones})
        if draft.rules:
            draft.lose(
                "nginx's workers share their zones, but processes do not share memory://: with several processes, write"
                " storage: shm://api, or redis://… for several hosts"
            )
        return draft.imported()

    def _zone(self, one: Directive) -> None:
        words = {word.partition("=")[0]: word for word in one.words[1:]}
        rate = RATE.fullmatch(words.get("rate", ""))
        name = words.get("zone", "").removeprefix("zone=").partition(":")[0]
        if one.name == "limit_conn_zone":
            if not name:
                raise PolicyError([Problem((), "limit_conn_zone: expected a key and zone=name:size", one.line)])
            self.zones[name] = NginxZone(self.keys.read(one.words[0], name))
            return
        if rate is None or not name:
            raise PolicyError([Problem((), "limit_req_zone: expected a key, zone=name:size and rate=10r/s", one.line)])
        if int(rate.group(1)) < 1:
            raise PolicyError([Problem((), "limit_req_zone: the rate cannot be zero", one.line)])
        unit = "second" if rate.group(2) == "s" else "minute"
        self.zones[name] = NginxZone(self.keys.read(one.words[0], name), f"{int(rate.group(1))}/{unit}")

    def _level(self, block: Directive, above: LevelLimits) -> LevelLimits:
        """Return the limits at one level. A level with a limit_req of its own inherits no limit_req from above, and one
        with a limit_conn no limit_conn."""
        requests = tuple(dict.fromkeys(self._request(one) for one in block.all("limit_req")))
        connections = tuple(dict.fromkeys(self._connection(one) for one in block.all("limit_conn")))
        for name, statuses in self.statuses.items():
            for one in block.all(f"{name}_status"):
                if one.words and one.words[0].isdecimal():
                    statuses.add(int(one.words[0]))
        return LevelLimits(
            requests or above.requests,
            connections or above.connections,
            _is_on(block, "limit_req_dry_run", above.dry_requests),
            _is_on(block, "limit_conn_dry_run", above.dry_connections),
        )

    def _connection(self, one: Directive) -> ZoneUse:
        name, count, *_ = (*one.words, "", "")
        if name not in self.zones or self.zones[name].rate:
            raise PolicyError(
                [Problem((), f"limit_conn: this text has no limit_conn_zone {name!r}: import both together", one.line)]
            )
        if not (count.isascii() and count.isdecimal() and len(count) < 13 and int(count)):
            raise PolicyError(
                [
                    Problem(
                        (),
                        "limit_conn: expected a zone and a whole number of at least 1: 'limit_conn addr 10'",
                        one.line,
                    )
                ]
            )
        if int(count) > MAX_SLOTS:
            self.draft.lose(
                f"line {one.line}: limit_conn {name} {count} is imported as {MAX_SLOTS}, the most of a policy"
            )
        return ZoneUse(name, f"{min(int(count), MAX_SLOTS)} concurrent")

    def _request(self, one: Directive) -> ZoneUse:
        words = {word.partition("=")[0]: word.partition("=")[2] for word in one.words}
        name = words.get("zone", "")
        if name not in self.zones or not self.zones[name].rate:
            raise PolicyError(
                [Problem((), f"limit_req: this text has no limit_req_zone {name!r}: import both together", one.line)]
            )
        texts = {key: words.get(key, "0") for key in ("burst", "delay")}
        if not all(text.isascii() and text.isdecimal() and len(text) < 13 for text in texts.values()):
            raise PolicyError([Problem((), "limit_req: expected whole numbers for burst and delay", one.line)])
        burst, delay = int(texts["burst"]), int(texts["delay"])
        at_once = "nodelay" in words or burst == 0 or ("delay" in words and delay >= burst)
        if 0 < delay < burst:
            self.draft.lose(
                f"line {one.line}: delay={delay} serves the first {delay} requests of a burst at once; in this policy"
                " they wait too"
            )
        limits = f"{self.zones[name].rate} burst {burst + 1}{'' if at_once else ' leaky-bucket'}"
        return ZoneUse(name, limits)

    def _server_locations(self, server: Directive, above: LevelLimits) -> list[Location]:
        """Return the locations of a server in the order in which nginx chooses them, at last the server itself."""
        level = self._level(server, above)
        places = self._locations(server, level)
        everything = [place for place in places if place.rank == 3 and place.prefix == "/"]
        places = [place for place in places if place not in everything]
        whole = everything[0].level if everything else level
        return [*sorted(places, key=_precedence), Location(EVERYTHING, (), "", whole)]

    def _locations(self, block: Directive, above: LevelLimits) -> list[Location]:
        found = []
        for one in block.all("location"):
            mark, path = one.words if len(one.words) == 2 else ("", one.words[0] if one.words else "/")
            level = self._level(one, above)
            found += self._locations(one, level)
            if path.startswith("@") or any(True for _ in one.all("internal")):
                continue  # clients cannot request it
            paths: list[str] | None
            if mark in ("~", "~*"):
                paths = from_regex(path)
                if paths is None:
                    if level != above or level.uses:
                        self.draft.lose(
                            f"line {one.line}: location {mark} {path} is left out: it cannot be expressed as a pattern"
                        )
                    continue
                self.draft.lose(f"line {one.line}: location {mark} {path} is imported as {', '.join(paths)}")
            else:
                paths = [literal(path)] if mark == "=" else prefixed(path)
            try:
                Match(paths=tuple(paths))
            except ValueError as error:
                self.draft.lose(f"line {one.line}: location {path} is left out: {error}")
                continue
            found.append(Location(RANKS.get(mark, 3), tuple(paths), path, level))
        return [self._ranked(place, found) for place in found]

    def _ranked(self, place: Location, places: list[Location]) -> Location:
        """Return a location with the rank that rules can express. `^~` wins over regular expressions in nginx, but a
        longer prefix wins over `^~`."""
        inner = any(one.rank == RANKS[""] and one.prefix.startswith(place.prefix) for one in places)
        if place.rank != RANKS["^~"] or not inner:
            return place
        if any(one.rank == RANKS["~"] for one in places):
            self.draft.lose(
                f"location ^~ {place.prefix} contains longer locations; in this policy, regular"
                " expressions come before it"
            )
        return place._replace(rank=RANKS[""])

    def _write(self, places: list[Location], *, ends: bool) -> None:
        """Write the rules of one server.

        A location with fewer limits than one around it must come first and end the search. All other locations are
        charged by every rule that matches them, so that a zone stays one count. At the end, the search ends for all
        hosts of the server if the rules of a later server might match them.
        """
        since = len(self.draft.rules)
        ahead = [inner for inner in places if any(_lacks(inner, outer) for outer in places)]
        for place in reversed(places):  # a location that one of them would match must come before it
            if any(one.reaches(place) and _precedence(place) < _precedence(one) for one in ahead):
                ahead = [one for one in places if one in ahead or one is place]
        together = [place for place in places if place not in ahead]
        counted = [use.zone for place in ahead for use in place.level.uses]
        uses = dict.fromkeys(use for place in together for use in place.level.uses)
        counted += [use.zone for use in uses]  # two bursts are two rules, and thus two counts
        for zone in dict.fromkeys(zone for zone in counted if counted.count(zone) > 1):
            self.draft.lose(
                f"zone {zone} counts several locations together; this policy counts some of them separately, so a"
                " client that requests several of them gets more"
            )
        for place in ahead:
            self._write_ahead(place, last=place is places[-1])
        # The rules for the whole server come last: the last one may end the search.
        for use in sorted(uses, key=lambda one: one in places[-1].level.uses):
            holding = [place for place in together if use in place.level.uses]
            whole = any(place.rank == EVERYTHING for place in holding)
            paths = [] if whole else [path for place in holding for path in place.paths]
            self._rule(use, dict.fromkeys(paths), holding[-1])
        if ends:
            self.draft.end(f"end {'-'.join(places[-1].hosts[:1])}", _match((), places[-1].hosts), since)

    def _write_ahead(self, place: Location, *, last: bool) -> None:
        for use in place.level.uses[:-1]:
            self._rule(use, place.paths, place)
        if place.limited:
            self._rule(place.level.uses[-1], place.paths, place, final=not last)
        elif not last:
            match = _match(place.paths, place.hosts)
            self.draft.add(f"free {place.prefix}", match=match, limits="unlimited", final=True)

    def _rule(self, use: ZoneUse, paths: Iterable[str], place: Location, *, final: bool = False) -> None:
        key = self.zones[use.zone].key
        partly = use.dry or bool(key.methods)  # it cannot end the search for every request of the location
        match = _match(paths, place.hosts) | ({"methods": list(key.methods)} if key.methods else {})
        name = self.draft.add(
            use.zone,
            match=match,
            by=key.by,
            limits=use.limits,
            mode="shadow" if use.dry else "",
            final=final and not partly,
        )
        if final and partly:
            self.draft.add(f"end {use.zone}", match=_match(paths, place.hosts), limits="unlimited", final=True)
        for network in key.unlimited if name else ():
            known = next((one for one in self.draft.overrides if one["client"] == network), None)
            if known is None:
                self.draft.overrides.append({"client": network, "rules": [name], "limits": "unlimited"})
            else:
                known["rules"].append(name)

    def _real_ip(self) -> None:
        trusted, header, recursive = [], "X-Real-IP", False
        for block in [*self.tops, *(server for server, _ in self.servers)]:
            trusted += [one.words[0] for one in block.all("set_real_ip_from") if one.words]
            for one in block.all("real_ip_header"):
                header = one.words[0] if one.words else header
            recursive = recursive or any(one.words == ("on",) for one in block.all("real_ip_recursive"))
        if not trusted:
            return
        ranges = list(dict.fromkeys("unix" if one == "unix:" else one for one in trusted))
        if header.lower() == "x-forwarded-for":
            self.draft.settings["trusted"] = ranges
            if not recursive:
                self.draft.lose(
                    "real_ip_recursive off uses the rightmost address; this policy uses the rightmost one that is not a"
                    " trusted proxy"
                )
        elif header.lower() == "proxy_protocol":
            self.draft.lose("the server must read the PROXY protocol; this policy uses the peer's address")
        else:
            self.draft.settings["trusted"] = {"single": {header.lower(): ranges}}

    def _status(self, names: set[str]) -> None:
        """Set the status of rejections. A policy has one; nginx may have another at each level."""
        found = {status for name in names for status in self.statuses[name] or {DEFAULT_STATUS}}
        if not any(self.statuses.values()):
            self.draft.lose(f"nginx rejects with status {DEFAULT_STATUS} by default; this policy uses 429")
        elif len(found) == 1:
            self.draft.settings["rejection"] = {"status": found.pop()}
        else:
            self.draft.lose(
                f"limit_req_status and limit_conn_status are {sorted(found)} in different places; this policy uses 429"
            )

    def _note_ignored(self, block: Directive) -> None:
        for one in block.inner or ():
            if one.name in OTHERS and (one.name != "stream" or _has(one, "limit_conn")):
                self.draft.lose(f"line {one.line}: {OTHERS[one.name]}")
            self._note_ignored(one)


def _has(block: Directive, name: str) -> bool:
    return any(one.name == name or _has(one, name) for one in block.inner or ())


def _lacks(inner: Location, outer: Location) -> bool:
    """Return True if the rules of the outer location would limit the inner one more than nginx does."""
    nested = inner is not outer and outer.reaches(inner) and _precedence(inner) < _precedence(outer)
    return nested and bool(set(outer.level.uses) - set(inner.level.uses))


def _is_on(block: Directive, name: str, above: bool) -> bool:
    for one in block.all(name):
        above = one.words[:1] == ("on",)
    return above


def _precedence(place: Location) -> tuple[int, int]:
    return place.rank, 0 if place.rank == RANKS["~"] else -len(place.prefix)


def _match(paths: Iterable[str], hosts: tuple[str, ...]) -> dict[str, list[str]]:
    found = {"paths": list(paths), "hosts": list(hosts)}
    return {key: value for key, value in found.items() if value}
