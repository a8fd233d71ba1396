"""Every adapter in every server, with every option for a path prefix, against requests of every shape.

Two laws hold in each cell. A limited handler never runs more often than its limit. An exemption frees only what it
names. Only runs of handlers count: what a server or a framework answers by itself is its own affair.
RATEBOUND_LONG=1 runs the whole matrix, else a part in which every server, option and adapter occurs.
"""

import os
from collections import Counter
from collections.abc import Iterator
from itertools import cycle, islice
from urllib.parse import quote

import pytest

from tests.web.matrix import sites
from tests.web.matrix.attack import GET, PREFLIGHT, VERBS, Client, Shape, Verb, shapes
from tests.web.matrix.serving import SERVERS, Nursery, Option, nursery
from tests.web.matrix.sites import Adapter

LONG = os.environ.get("RATEBOUND_LONG") == "1"
ADAPTERS = {"asgi": sites.ASGI, "wsgi": sites.WSGI}
SHORT = 3  # adapters for each server
MANY = sites.RUNS + 2  # requests, where fewer are allowed
FIRST = 10  # shapes that are sent with every method
PARTS = 4 if LONG else 24  # into which the shapes are divided
Cell = tuple[str, str, str]  # server, adapter, policy


def full_prefix(option: Option, adapter: Adapter) -> str:
    """Return the whole prefix in front of an application's routes; an application's own setting replaces others."""
    return adapter.prefix if adapter.replaces else option.prefix + adapter.prefix


def policies(option: Option, adapter: Adapter) -> Iterator[str]:
    yield from ("bound", "default")
    if adapter.frees and not adapter.only_own and full_prefix(option, adapter):
        yield f"full {full_prefix(option, adapter)}"


def cells() -> Iterator[Cell]:
    """Yield every combination; in a short run the adapters in turn, so that each occurs with a few servers."""
    turns = {interface: cycle(adapters.items()) for interface, adapters in ADAPTERS.items()}
    place = 0
    for server, option in SERVERS.items():
        adapters = ADAPTERS[option.interface]
        for name, adapter in adapters.items() if LONG else islice(turns[option.interface], SHORT):
            found, place = list(policies(option, adapter)), place + 1
            chosen = found if LONG else (found[-1:], found[:1], found[:1], found[1:2])[place % 4]
            yield from ((server, name, policy) for policy in chosen)


CELLS = list(cells())


@pytest.fixture(scope="module")
def servers() -> Iterator[Nursery]:
    with nursery() as started:
        yield started


@pytest.fixture(scope="module")
def ports() -> dict[str, int]:
    return {}


class Visitor:
    """Sends requests to one cell, and keeps those that ran a limited handler too often."""

    def __init__(self, port: int, cell: Cell) -> None:
        server, name, policy = cell
        self.adapter = ADAPTERS[SERVERS[server].interface][name]
        self.prefix, at_once = SERVERS[server].prefix, SERVERS[server].at_once
        self.base = self._base(Client(port, f"{name} | bound", at_once))
        self.client = Client(port, f"{name} | {policy}", at_once)
        self.before = Counter(self.client.counts(self.prefix))
        self.escaped: list[str] = []

    def _base(self, client: Client) -> str:
        """Find out below which of the prefixes this server and this adapter answer together."""
        own = self.adapter.prefix
        for base in dict.fromkeys((self.prefix + own, own, self.prefix, "")):
            if client.send(Shape(f"{base}/open/7".encode())) == "door":
                return base
        raise AssertionError("no prefix leads to the application")

    def plain(self, name: str) -> int:
        """Send the request that a handler is for, more often than the limit; return how often it ran."""
        request = Shape((self.base + quote(path_of(name))).encode()), Verb(sites.PATHS[name][1][0].encode())
        return self.client.send_all([request] * MANY).count(name)

    def attack(self, requests: list[tuple[Shape, Verb]]) -> None:
        for (shape, verb), ran in zip(requests, self.client.send_all(requests), strict=True):
            if ran in self.adapter.limited:
                self.escaped.append(f"{ran}: {verb} {shape}")

    def runs(self) -> Counter[str]:
        """Return how often each handler has run since the visitor came."""
        return Counter(self.client.counts(self.prefix)) - self.before


def path_of(name: str) -> str:
    return sites.PATHS[name][0].replace("{rest}", "7")


def attacks(name: str, base: str, turn: int, *, whole: bool) -> Iterator[tuple[Shape, Verb]]:
    """Yield requests for one handler: the plain one with every method, then shapes, every second also as a preflight.

    `whole` takes all shapes, and the first of them with every method; else it is the turn of a part of them, which is
    larger for the handler `login`.
    """
    is_first = name == "login"
    for verb in VERBS if LONG or is_first or name == "erase" else (GET, PREFLIGHT):
        yield Shape((base + quote(path_of(name))).encode()), verb
    for place, shape in enumerate(shapes(path_of(name), base or "/api")):
        if whole and place < FIRST:
            yield from ((shape, verb) for verb in VERBS)
        elif whole or (place + turn) % (3 if is_first else PARTS) == 0:
            yield shape, GET
            if place % 2:
                yield shape, PREFLIGHT


@pytest.mark.parametrize("cell", CELLS, ids=" | ".join)
def test_no_request_escapes_its_limit_by_its_shape(cell: Cell, servers: Nursery, ports: dict[str, int]) -> None:
    server, _, policy = cell
    if server not in ports:
        ports[server] = servers.start(server)
    visitor = Visitor(ports[server], cell)
    by_path = policy != "default"
    names = [name for name in visitor.adapter.limited if by_path or name in ("login", "own")]

    # On a fresh quota: a handler that answers preflights itself is given nothing back for them.
    for name in sites.CORS:
        if name in names:
            shape = Shape((visitor.base + path_of(name)).encode())
            ran = visitor.client.send_all([(shape, PREFLIGHT)] * MANY).count(name)
            if ran > sites.RUNS:
                visitor.escaped.append(f"{name} ran {ran} times: {PREFLIGHT} {shape}")

    # The quotas are there, and are used up; what is free is free.
    for name in names:
        ran = visitor.plain(name)
        if ran > sites.RUNS:
            visitor.escaped.append(f"{name} ran {ran} times: the plain request")
        if name not in sites.CORS and (by_path or name == "login"):
            assert ran >= sites.RUNS, name
    if visitor.adapter.frees and not visitor.adapter.only_own:
        assert {name: visitor.plain(name) for name in sites.FREE} == dict.fromkeys(sites.FREE, MANY)
    used = visitor.runs()

    # From here on no limited handler may run.
    for turn, name in enumerate(names, CELLS.index(cell)):
        visitor.attack(list(attacks(name, visitor.base, turn, whole=LONG and by_path and name == "login")))
    more = visitor.runs() - used
    assert not visitor.escaped, f"{len(visitor.escaped)} escaped:\n" + "\n".join(visitor.escaped)
    assert not [name for name in visitor.adapter.limited if more[name]], more
