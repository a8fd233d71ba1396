"""nginx's variables as identities: what a `limit_req_zone` counts by, said in a policy."""

import re
from typing import NamedTuple

from ratebound.policy.imports.draft import Draft, function_name, identity_name
from ratebound.policy.imports.nginx_text import Directive

VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
ADDRESS = ("binary_remote_addr", "remote_addr", "realip_remote_addr", "proxy_protocol_addr")
CLAIMED_ADDRESS = ("http_x_forwarded_for", "http_x_real_ip", "http_cf_connecting_ip", "http_true_client_ip")
CONSTANT = ("server_name", "server_addr", "server_port", "scheme", "hostname")
PLACES = (
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
    """By whom a zone counts, whom it does not count, and the methods that it counts only."""

    by: str
    free: tuple[str, ...] = ()  # address ranges
    methods: tuple[str, ...] = ()


class ZoneKeyReader:
    """Reads keys; the variables of `map` and `geo` blocks are looked into."""

    def __init__(self, tops: list[Directive], draft: Draft) -> None:
        self._draft = draft
        self._maps = {one.words[1].lstrip("$"): one for one in tops if one.name == "map" and len(one.words) == 2}
        self._geos = {one.words[-1].lstrip("$"): one for one in tops if one.name == "geo" and one.words}

    def read(self, text: str, zone: str) -> ZoneKey:
        names = [one or other for one, other in VARIABLE.findall(text)]
        if len(names) == 1 and names[0] in self._maps and VARIABLE.fullmatch(text):
            return self._mapped(self._maps[names[0]], zone)
        return ZoneKey(self._by(names, zone))

    def _mapped(self, block: Directive, zone: str) -> ZoneKey:
        """`map $a $key { … "" }`: where the key is empty nothing is counted."""
        entries = {one.name: one.words[0] if one.words else "" for one in block.inner or ()}
        counted = {value for value in entries.values() if value}
        if len(counted) != 1:
            self._draft.lose(
                f"zone {zone} counts by different keys (map ${block.words[1].lstrip('$')}): the address is taken"
            )
            return ZoneKey("address")
        by = self._by([one or other for one, other in VARIABLE.findall(counted.pop())], zone)
        source = block.words[0].lstrip("$")
        empty = [name for name, value in entries.items() if not value and name != "default"]
        if source in self._geos and entries.get("default", "-") != "":
            return ZoneKey(by, free=self._ranges(self._geos[source], empty))
        methods = tuple(name for name, value in entries.items() if value and name != "default")
        if source == "request_method" and not entries.get("default") and not any("~" in name for name in methods):
            return ZoneKey(by, methods=methods)
        self._draft.lose(
            f"zone {zone} counts nothing where the map of ${source} gives an empty key: here all requests are counted"
        )
        return ZoneKey(by)

    def _ranges(self, geo: Directive, values: list[str]) -> tuple[str, ...]:
        if any(one.name in ("proxy", "include", "ranges", "delete") for one in geo.inner or ()):
            self._draft.lose("a geo block with proxy, include, ranges or delete is read without these")
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
            draft.lose(f"zone {zone} counts by ${name}, which clients can forge: here by address; set 'trusted'")
            return "address"
        if name in CONSTANT:
            return ""
        if name in PLACES:
            draft.lose(f"zone {zone} has a count for each ${name}: here all that a rule matches is one count")
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
        draft.lose(f"what ${name} holds is known to nginx: the function {function}(request) has to be written")
        return identity

    def _claim(self, kind: str, source: str, function: str) -> str:
        self._draft.identities.setdefault(source, {"verify": function})
        self._draft.lose(
            f"nginx believes whatever a client sends as {kind}, and does not count who sends nothing: here the function"
            f" {function}(text) has to verify it, and who is not verified counts by address"
        )
        return kind
