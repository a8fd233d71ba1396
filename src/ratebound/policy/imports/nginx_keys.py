"""The keys of nginx's zones as identities: from the variables of a zone to the `by` of a rule."""

import re
from typing import NamedTuple

from ratebound.policy.imports.draft import Draft, function_name, identity_name
from ratebound.policy.imports.nginx_text import Directive

VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
ADDRESS = ("binary_remote_addr", "remote_addr", "realip_remote_addr", "proxy_protocol_addr")
CLAIMED_ADDRESS = ("http_x_forwarded_for", "http_x_real_ip", "http_cf_connecting_ip", "http_true_client_ip")
CONSTANT = ("server_name", "server_addr", "server_port", "scheme", "hostname")
REQUEST_PARTS = (
    "uri",
    "request_uri",
    "document_uri",
    "request",
    "host",
    "http_host",
    "request_method",
    "args",
    "query_string",
)


class ZoneKey(NamedTuple):
    """The key of a zone: the identity that it counts by, and the clients and methods that it leaves out."""

    by: str
    unlimited: tuple[str, ...] = ()  # address ranges that are not counted
    methods: tuple[str, ...] = ()  # the only methods that are counted; empty for all
    per_server: bool = False  # each server has a count of its own


class ZoneKeyReader:
    """A reader of keys. It looks up the variables that `map` and `geo` blocks define."""

    def __init__(self, tops: list[Directive], draft: Draft) -> None:
        self._draft = draft
        self._maps = {one.words[1].lstrip("$"): one for one in tops if one.name == "map" and len(one.words) == 2}
        self._geos = {one.words[-1].lstrip("$"): one for one in tops if one.name == "geo" and one.words}

    def read(self, text: str, zone: str) -> ZoneKey:
        """Return the key of a zone; `text` is the first argument of its directive."""
        names = [one or other for one, other in VARIABLE.findall(text)]
        if len(names) == 1 and names[0] in self._maps and VARIABLE.fullmatch(text):
            return self._map_key(self._maps[names[0]], zone)
        return ZoneKey(self._by(names, zone), per_server="server_name" in names)

    def _map_key(self, block: Directive, zone: str) -> ZoneKey:
        """Return the key of a `map $a $key { … }`. nginx does not count requests with an empty key."""
        entries = {one.name: one.words[0] if one.words else "" for one in block.inner or ()}
        counted = {value for value in entries.values() if value}
        if len(counted) != 1:
            self._draft.lose(
                f"zone {zone} counts by different keys (map ${block.words[1].lstrip('$')}); this policy counts by"
                " address"
            )
            return ZoneKey("address")
        by = self._by([one or other for one, other in VARIABLE.findall(counted.pop())], zone)
        source = block.words[0].lstrip("$")
        empty = [name for name, value in entries.items() if not value and name != "default"]
        if source in self._geos and entries.get("default", "-") != "":
            return ZoneKey(by, unlimited=self._ranges(self._geos[source], empty))
        methods = tuple(name for name, value in entries.items() if value and name != "default")
        if source == "request_method" and not entries.get("default") and not any("~" in name for name in methods):
            return ZoneKey(by, methods=methods)
        self._draft.lose(
            f"zone {zone} does not count requests for which the map of ${source} gives an empty key; this policy counts"
            " them"
        )
        return ZoneKey(by)

    def _ranges(self, geo: Directive, values: list[str]) -> tuple[str, ...]:
        if any(one.name in ("proxy", "include", "ranges", "delete") for one in geo.inner or ()):
            self._draft.lose("proxy, include, ranges and delete in a geo block are ignored")
        return tuple(
            one.name
            for one in geo.inner or ()
            if one.words and one.words[0] in values and re.fullmatch(r"[0-9a-fA-F.:]+(?:/\d+)?", one.name)
        )

    def _by(self, names: list[str], zone: str) -> str:
        parts = dict.fromkeys(part for part in (self._part(name, zone) for name in names) if part)
        return " + ".join(parts) or "global"

    def _part(self, name: str, zone: str) -> str:
        draft = self._draft
        if name in ADDRESS:
            return "address"
        if name in CLAIMED_ADDRESS:
            draft.lose(
                f"zone {zone} counts by ${name}, which clients can forge; this policy counts by address: list your"
                " proxies under 'trusted'"
            )
            return "address"
        if name in CONSTANT:
            return ""
        if name in REQUEST_PARTS:
            draft.lose(f"zone {zone} has a count for each ${name}; this policy has one count per rule")
            return ""
        if name == "remote_user":
            return "user"
        kind, _, rest = name.partition("_")
        text = rest.replace("_", "-")
        if name.startswith("jwt_claim_"):
            return self._claim("jwt:" + name.removeprefix("jwt_claim_"), "jwt", "read_token")
        if name == "http_authorization":
            return self._claim("bearer", "bearer", "find_token")
        if kind == "http" and rest:
            return self._claim(f"header:{text}", f"header:{text}", f"find_{rest}")
        if kind == "cookie" and rest:
            return self._claim(f"cookie:{rest}", f"cookie:{rest}", f"find_{rest}")
        identity, function = identity_name(name), function_name(name)
        draft.identities.setdefault(identity, {"call": function})
        draft.lose(f"only nginx knows the value of ${name}: write a function {function}(request) that returns it")
        return identity

    def _claim(self, kind: str, source: str, function: str) -> str:
        self._draft.identities.setdefault(source, {"verify": function})
        self._draft.lose(
            f"nginx accepts any value of {kind} and does not count clients that send none: write a function"
            f" {function}(text) that verifies it; other clients count by address"
        )
        return kind
