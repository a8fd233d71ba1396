"""nginx's servers in the order of their hosts, so that rules choose the same server as nginx.

nginx prefers an exact name to `*.name`, and a longer `*.name` to a shorter one. A host that no server names goes to the
default server of its address and port: the one marked as default, else the first. So the default server comes last,
and its rules apply to all remaining hosts.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ratebound.policy.imports.draft import Draft
from ratebound.policy.imports.nginx_text import Directive
from ratebound.policy.match.conditions import host_matches

ANY = ("*", "0.0.0.0", "[::]")  # treated alike: most servers listen on IPv4 and IPv6


class Server(NamedTuple):
    """A server by its index in the text. Without hosts it is for all remaining hosts."""

    place: int
    hosts: tuple[str, ...] = ()

    def reaches(self, other: "Server") -> bool:
        """Return True if both servers share a host."""
        if not self.hosts or not other.hosts:
            return True
        return any(_reaches(one, name) or _reaches(name, one) for one in self.hosts for name in other.hosts)


def arrange(servers: Sequence[Directive], limited: Sequence[bool], draft: Draft) -> list[Server]:
    """Return the servers in the order in which their rules must be written. Servers that no request can reach are left
    out. `limited` says for each server whether it has a limit."""
    if len(servers) < 2:
        return [Server(place) for place in range(len(servers))]
    sockets = [_sockets(server) for server in servers]
    default = _default(servers, sockets, limited, draft)
    hosts = _distinct([_hosts(server, draft) for server in servers], servers, sockets, limited, draft)
    found = []
    for place, server in enumerate(servers):
        if place == default:
            continue
        if hosts[place]:
            found.append(Server(place, hosts[place]))
        elif not any(one.words not in (("",), ("_",)) for one in server.all("server_name")):
            draft.lose(
                f"line {server.line}: this server has no name and is not the default server, so nginx uses it only for"
                " requests without a Host; they get the limits of the default server"
            )
    found.sort(key=_width)
    found.append(Server(default))
    for after, one in enumerate(found):
        for host in hosts[one.place]:
            wide = [name for before in found[:after] for name in before.hosts if _reaches(name, host)]
            if wide:
                draft.lose(f"server_name {host} has a server of its own; in this policy it has the limits of {wide[0]}")
    return found


def _default(
    servers: Sequence[Directive], sockets: Sequence[dict[str, bool]], limited: Sequence[bool], draft: Draft
) -> int:
    """Return the index of the default server. nginx has one for each address and port, which a policy does not know:
    the first with a limit is used."""
    defaults: dict[int, None] = {}
    for socket in dict.fromkeys(socket for one in sockets for socket in one):
        places = [place for place, one in enumerate(sockets) if socket in one]
        defaults.setdefault(next((place for place in places if sockets[place][socket]), places[0]))
    found = next((place for place in defaults if limited[place]), next(iter(defaults)))
    if any(one.keys() != sockets[0].keys() for one in sockets):
        draft.lose(
            "servers on different addresses or ports are distinguished by their hosts alone; a host that none of them"
            f" names has the limits of the server on line {servers[found].line}"
        )
    return found


def _sockets(server: Directive) -> dict[str, bool]:
    """Return the addresses and ports that a server listens on, each with True if it is the default server there."""
    found: dict[str, bool] = {}
    for one in server.all("listen"):
        words = one.words or ("80",)
        address, colon, port = words[0].rpartition(":")
        if words[0].startswith("unix:"):
            socket = words[0]
        elif words[0].isdecimal():
            socket = f"*:{words[0]}"
        elif not colon or words[0].endswith("]"):
            socket = f"{words[0]}:80"
        else:
            socket = f"{address}:{port}"
        for address in ANY:
            socket = f"*{socket.removeprefix(address)}" if socket.startswith(f"{address}:") else socket
        found[socket] = found.get(socket, False) or bool({"default_server", "default"} & set(words[1:]))
    return found or {"*:80": False}


def _hosts(server: Directive, draft: Draft) -> tuple[str, ...]:
    hosts: list[str] = []
    for name in [word.lower() for one in server.all("server_name") for word in one.words]:
        if name.startswith("~") or name.endswith("*") or "$" in name:
            draft.lose(f"server_name {name} cannot be expressed as a host: it has the limits of the default server")
        elif name.startswith("."):
            hosts += [name[1:], f"*{name}"]
        elif name not in ("_", ""):
            hosts.append(name)
    return tuple(dict.fromkeys(hosts))


def _distinct(
    named: Sequence[tuple[str, ...]],
    servers: Sequence[Directive],
    sockets: Sequence[dict[str, bool]],
    limited: Sequence[bool],
    draft: Draft,
) -> list[tuple[str, ...]]:
    """Return the hosts of each server such that each host belongs to one server. Among servers on one socket it is the
    first, as in nginx; among servers on different sockets, the first with a limit."""
    owners: dict[str, int] = {}
    for place, hosts in enumerate(named):
        for host in hosts:
            other = owners.setdefault(host, place)
            if other != place and not sockets[other].keys() & sockets[place].keys():
                owners[host] = place if limited[place] and not limited[other] else other
                if limited[place] or limited[other]:
                    draft.lose(
                        f"server_name {host} has several servers on different addresses or ports; in this policy it has"
                        f" the limits of the server on line {servers[owners[host]].line}"
                    )
    return [tuple(host for host in hosts if owners[host] == place) for place, hosts in enumerate(named)]


def _width(server: Server) -> tuple[bool, int]:
    wild = [len(host) for host in server.hosts if host.startswith("*.")]
    return bool(wild), -min(wild, default=0)


def _reaches(wide: str, host: str) -> bool:
    """Return True if a name with a `*` also matches another, narrower name."""
    return wide != host and wide.startswith("*.") and host_matches(wide, host.removeprefix("*"))
