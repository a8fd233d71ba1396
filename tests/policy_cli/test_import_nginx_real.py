"""A real nginx beside the policy that is imported from its configuration: both admit the same.

Requests come in bursts that are short beside the rates, each from an address of its own (127.0.0.0/8), so that neither
the speed of the machine nor an earlier burst makes a difference. A burst that took too long is sent again. Where
concurrent requests count, the response is a file that nginx sends slowly: a request ends when its client goes away.
"""

import itertools
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from h2.connection import H2Connection
from h2.events import ResponseReceived

from ratebound.policy import PolicyError
from ratebound.policy.imports import import_nginx
from ratebound.testing import FakeClock
from tests.policy.gates import decide, gate_of, passes, request
from tests.policy_cli.test_import_choice import ASKED, PREFIXES
from tests.servers import HOST, dying_with_us, free_port

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not on the PATH: install nginx-light")

ZONES = "".join(f"limit_req_zone $binary_remote_addr zone={name}:1m rate=1r/s;" for name in "abc")
ONE = "limit_req_zone $binary_remote_addr zone=z:1m rate=RATE; server { listen PORT; limit_req zone=z USE; }"
BURST = 0.4  # seconds that a burst may take: at 1r/s less than half a request leaks away
Start = Callable[[str], int]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts nginx on what may stand in `http`, with PORT for a free port; returns the port."""
    with ExitStack() as running:
        numbers = itertools.count()
        yield lambda http: running.enter_context(_nginx(http, tmp_path / str(next(numbers))))


@contextmanager
def _nginx(http: str, folder: Path) -> Iterator[int]:
    assert NGINX is not None
    folder.mkdir()
    (folder / "file").write_bytes(bytes(1_000_000))
    port = free_port()
    temporary = "".join(f"{kind}_temp_path {folder};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (folder / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/log; events {{ }}\n"
        f"http {{ access_log off; {temporary} root {folder}; {http.replace('PORT', f'{HOST}:{port}')} }}"
    )
    process = subprocess.Popen(
        dying_with_us([NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "log")]),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(process, port, folder / "log")
        yield port
    finally:
        process.kill()
        process.wait()


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection((HOST, port), 1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"nginx does not run: {log.read_text() if log.exists() else ''}")
            time.sleep(0.01)


_clients = (f"127.{a}.{b}.{c}" for a in range(1, 255) for b in range(1, 255) for c in range(1, 255))


class Asked:
    """One request that was sent to nginx; the answer may take its time."""

    def __init__(self, port: int, client: str, path: str, host: str | None) -> None:
        self.socket = socket.create_connection((HOST, port), 20, source_address=(client, 0))
        lines = [f"GET {path} HTTP/1.0", *([] if host is None else [f"Host: {host}"]), "", ""]
        self.at = time.monotonic()
        self.socket.sendall("\r\n".join(lines).encode())

    def admitted(self) -> bool:
        """503 is limit_req's; that there is no such file is found out later."""
        with self.socket:
            answer = self.socket.recv(64)
        self.after = time.monotonic() - self.at
        assert answer.startswith(b"HTTP/1."), answer
        assert answer.split()[1] in (b"200", b"403", b"404", b"503"), answer
        return answer.split()[1] != b"503"


def burst(port: int, count: int, path: str = "/", host: str | None = "x.example") -> list[bool]:
    return asked_in_turn(port, [path] * count, host)


def asked_in_turn(port: int, paths: list[str], host: str | None = "x.example") -> list[bool]:
    """One after the other from a new client, until a burst was quick enough."""
    for client in itertools.islice(_clients, 20):
        began = time.monotonic()
        answers = [Asked(port, client, path, host).admitted() for path in paths]
        if time.monotonic() - began < BURST:
            return answers
    pytest.skip(f"{len(paths)} requests took more than {BURST} s, 20 times")


def ours(text: str, count: int, path: str = "/", host: str = "x.example") -> list[bool]:
    gate = gate_of(text)
    return [bool(decide(gate, request(path, host=host))) for _ in range(count)]


@pytest.mark.parametrize("rate", ["1r/s", "30r/m", "7r/m"])
@pytest.mark.parametrize("use", ["", "burst=1 nodelay", "burst=4 nodelay", "burst=4 delay=4"])
def test_a_burst_is_admitted_as_by_nginx(start: Start, rate: str, use: str) -> None:
    http = ONE.replace("RATE", rate).replace("USE", use)
    theirs = burst(start(http), 10)
    assert theirs == ours(import_nginx(http).text, 10)
    assert True in theirs
    assert False in theirs


@pytest.mark.parametrize(("rate", "pause"), [("1r/s", 1.5), ("60r/m", 2.5)])
def test_after_a_pause_as_many_are_admitted_as_by_nginx(start: Start, rate: str, pause: float) -> None:
    http = ONE.replace("RATE", rate).replace("USE", "burst=4 nodelay")
    port, clock, client = start(http), FakeClock(), next(_clients)
    gate, began = gate_of(import_nginx(http).text, clock), clock.now
    first: float | None = None
    for wait in (0.0, pause):
        time.sleep(wait)
        for _ in range(8):
            asked = Asked(port, client, "/", "x.example")
            first = asked.at if first is None else first
            clock.now = began + int((asked.at - first) * 1_000_000)
            assert asked.admitted() == bool(decide(gate, request())), asked.at - first


def test_without_nodelay_nginx_keeps_them_waiting_as_long_as_they_are_told(start: Start) -> None:
    http = ONE.replace("RATE", "2r/s").replace("USE", "burst=4")
    port, client, gate = start(http), next(_clients), gate_of(import_nginx(http).text)
    asked = [Asked(port, client, "/", "x.example") for _ in range(9)]
    if asked[-1].at - asked[0].at > BURST / 2:
        pytest.skip("the machine is too busy for a burst")
    waited = sorted(one.after for one in asked if one.admitted())
    verdicts = [decide(gate, request()) for _ in asked]
    told = [verdict.decision.delay for verdict in verdicts if verdict and verdict.decision]
    assert told == pytest.approx([0, 0.5, 1, 1.5, 2])
    assert len(waited) == len(told)
    for real, expected in zip(waited, told, strict=True):
        assert expected - BURST / 2 < real < expected + 5


SERVERS = {
    "the first is the default": "server { listen PORT; server_name one.example; limit_req zone=a burst=1 nodelay; }"
    "server { listen PORT; server_name .two.example; limit_req zone=b burst=3 nodelay; }"
    "server { listen PORT; server_name free.example; }",
    "a marked default with a name": "server { listen PORT; server_name one.example; limit_req zone=a burst=1 nodelay; }"
    "server { listen PORT default_server; server_name two.example; limit_req zone=b burst=3 nodelay;"
    " location /free/ { limit_req zone=c burst=7 nodelay; } }"
    "server { listen PORT; server_name free.example; }",
    "a default without a limit": "server { listen PORT default_server; }"
    "server { listen PORT; server_name one.example; limit_req zone=a burst=1 nodelay; }",
    "a default for the rest": "server { listen PORT; server_name one.example; limit_req zone=a burst=1 nodelay;"
    " location = / { limit_req zone=b burst=2 nodelay; } }"
    "server { listen PORT default_server; server_name _; limit_req zone=c burst=4 nodelay; }",
    "whole names before others": "server { listen PORT; server_name x.example; }"
    "server { listen PORT; server_name *.two.example; limit_req zone=a burst=1 nodelay; }"
    "server { listen PORT; server_name *.www.two.example; limit_req zone=b burst=2 nodelay; }"
    "server { listen PORT; server_name www.two.example; limit_req zone=c burst=3 nodelay; }",
    "one name twice": "server { listen PORT; server_name one.example; limit_req zone=a burst=1 nodelay; }"
    "server { listen PORT; server_name one.example free.example; limit_req zone=b burst=2 nodelay; }",
}
HOSTS = ["one.example", "two.example", "WWW.two.example", "a.www.two.example:99", "free.example", "unknown.example"]


@pytest.mark.parametrize("servers", SERVERS.values(), ids=SERVERS)
def test_the_server_is_that_of_nginx(start: Start, servers: str) -> None:
    """None: no Host at all, as HTTP/1.0 has it. An empty one nginx refuses with 400."""
    http = ZONES + servers
    port, text = start(http), import_nginx(http).text
    for path, host in itertools.product(("/", "/free/x"), (*HOSTS, None)):
        assert burst(port, 10, path, host) == ours(text, 10, path, host or ""), (path, host, text)


@pytest.mark.parametrize("seed", range(12))
def test_the_location_is_that_of_nginx(start: Start, seed: int) -> None:
    dice = random.Random(seed)

    def uses() -> str:
        zones = dice.sample("abc", dice.choice([0, 1, 1, 2]))
        return "".join(f"limit_req zone={zone} burst={dice.randrange(1, 9)} nodelay;" for zone in zones)

    places: dict[tuple[str, str], str] = {}
    for _ in range(5):
        mark, path = dice.choice(["", "", "=", "^~"]), dice.choice(PREFIXES)
        places.setdefault((mark.replace("^~", ""), path), f"location {mark} {path} {{ {uses()} }}")
    http = f"{ZONES} server {{ listen PORT; {uses()} {''.join(places.values())} }}"
    try:
        text = import_nginx(http).text
    except PolicyError:
        text = "rules: [{name: free, limits: unlimited}]"
    port = start(http)
    for path in ASKED:
        assert burst(port, 12, path) == ours(text, 12, path), (path, http, text)


USES = ["limit_req zone=a;", "limit_req zone=a burst=3 nodelay;", "limit_req zone=b burst=2 nodelay;", ""]


@pytest.mark.parametrize("whole", USES)
@pytest.mark.parametrize(("first", "second"), list(itertools.product(USES, repeat=2)))
def test_a_zone_in_several_locations_is_one_count_or_it_is_told(
    start: Start, whole: str, first: str, second: str
) -> None:
    http = f"{ZONES} server {{ listen PORT; {whole} location = /1 {{ {first} }} location = /2 {{ {second} }} }}"
    try:
        imported = import_nginx(http)
    except PolicyError:
        return
    port = start(http)
    for paths in (["/1"] * 3 + ["/2"] * 3, ["/2", "/1"] * 3, ["/", "/1", "/2"] * 2):
        gate = gate_of(imported.text)
        here = [bool(decide(gate, request(path, host="x.example"))) for path in paths]
        if asked_in_turn(port, paths) != here:
            assert any("counts several locations together" in line for line in imported.lost), (paths, http)


SLOW = "limit_rate_after 8k; limit_rate 1k; try_files /file =404;"
CONNECTIONS = "".join(f"limit_conn_zone $binary_remote_addr zone={name}:1m;" for name in "abc")


class Held:
    """A request whose response goes on until it is closed, unless it was rejected."""

    def __init__(self, port: int, client: str, path: str = "/", host: str = "x.example") -> None:
        self.asked = Asked(port, client, path, host)
        answer = self.asked.socket.recv(64).split()
        assert answer[1] in (b"200", b"503"), answer
        self.admitted = answer[1] == b"200"
        if not self.admitted:
            self.close()

    def close(self) -> None:
        self.asked.socket.close()


Hold = Callable[..., Held]


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Sends requests that go on until the end of the test."""
    with ExitStack() as running:
        yield lambda port, client, host="x.example": running.enter_context(closing(Held(port, client, host=host)))


def held(port: int, paths: Iterable[str]) -> list[bool]:
    """Which requests nginx admits while those before them go on."""
    client = next(_clients)
    with ExitStack() as running:
        sent = [running.enter_context(closing(Held(port, client, path))) for path in paths]
        return [one.admitted for one in sent]


@pytest.mark.parametrize("count", [1, 3, 10])
def test_as_many_run_at_once_as_in_nginx(start: Start, count: int) -> None:
    http = f"{CONNECTIONS} server {{ listen PORT; limit_conn a {count}; {SLOW} }}"
    theirs = held(start(http), ["/"] * (count + 3))
    assert theirs == ours(import_nginx(http).text, count + 3) == [True] * count + [False] * 3


def test_a_request_that_has_ended_makes_room_as_in_nginx(start: Start, hold: Hold) -> None:
    http = f"{CONNECTIONS} server {{ listen PORT; limit_conn a 3; {SLOW} }}"
    port, client, gate = start(http), next(_clients), gate_of(import_nginx(http).text)
    theirs = [hold(port, client) for _ in range(4)]
    mine = [decide(gate, request()) for _ in range(4)]
    assert [one.admitted for one in theirs] == [bool(one) for one in mine]
    for place in (0, 2):
        theirs[place].close()
        decision = mine[place].decision
        assert decision is not None
        gate._decider.release(decision)
    deadline = time.monotonic() + 20
    running = [theirs[1]]
    while len(running) < 3 and time.monotonic() < deadline:  # nginx takes a moment to see that a client has gone
        running += [one for one in [hold(port, client)] if one.admitted]
    assert len(running) == 3
    assert not hold(port, client).admitted
    assert passes(gate, request()) == 2


def test_several_counts_apply_at_once_as_in_nginx(start: Start, hold: Hold) -> None:
    http = (
        f"{CONNECTIONS} limit_conn_zone $server_name zone=site:1m; limit_conn site 5;"
        f"server {{ listen PORT; server_name one.example; limit_conn site 5; limit_conn a 2; {SLOW} }}"
        f"server {{ listen PORT; server_name two.example; {SLOW} }}"
    )
    port, gate = start(http), gate_of(import_nginx(http).text)
    running = []
    for number, host in enumerate(["one.example", "two.example", "one.example", "one.example", "two.example"]):
        client, peer = next(_clients), f"192.0.2.{number}"
        running += [hold(port, client, host) for _ in range(4)]
        mine = [bool(decide(gate, request(host=host, peer=peer))) for _ in range(4)]
        assert [one.admitted for one in running[-4:]] == mine, (number, host)
    assert sum(one.admitted for one in running) == 10


@pytest.mark.parametrize("seed", range(12))
def test_the_concurrent_requests_of_a_location_are_those_of_nginx(start: Start, seed: int) -> None:
    dice = random.Random(seed)

    def uses() -> str:
        zones = dice.sample("abc", dice.choice([0, 1, 1, 2]))
        requests = dice.choice(["", "", f"limit_req zone=r burst={dice.randrange(1, 9)} nodelay;"])
        return "".join(f"limit_conn {zone} {dice.randrange(1, 9)};" for zone in zones) + requests

    places: dict[tuple[str, str], str] = {}
    for _ in range(5):
        mark, path = dice.choice(["", "", "=", "^~"]), dice.choice(PREFIXES)
        places.setdefault((mark.replace("^~", ""), path), f"location {mark} {path} {{ {uses()} {SLOW} }}")
    rate = "limit_req_zone $binary_remote_addr zone=r:1m rate=1r/m;"
    http = f"{CONNECTIONS} {rate} server {{ listen PORT; {uses()} {SLOW} {''.join(places.values())} }}"
    try:
        text = import_nginx(http).text
    except PolicyError:
        text = "rules: [{name: free, limits: unlimited}]"
    port = start(http)
    for path in ASKED:
        assert held(port, [path] * 11) == ours(text, 11, path), (path, http, text)


CONN_USES = ["limit_conn a 1;", "limit_conn a 3;", "limit_conn b 2;", "limit_conn a 3; limit_conn_dry_run on;", ""]


@pytest.mark.parametrize("whole", CONN_USES)
@pytest.mark.parametrize(("first", "second"), list(itertools.product(CONN_USES, repeat=2)))
def test_concurrent_requests_of_several_locations_are_one_count_or_it_is_told(
    start: Start, whole: str, first: str, second: str
) -> None:
    http = (
        f"{CONNECTIONS} server {{ listen PORT; {whole} {SLOW}"
        f" location = /1 {{ {first} {SLOW} }} location = /2 {{ {second} {SLOW} }} }}"
    )
    try:
        imported = import_nginx(http)
    except PolicyError:
        return
    port = start(http)
    for paths in (["/1"] * 3 + ["/2"] * 3, ["/2", "/1"] * 3, ["/", "/1", "/2"] * 2):
        gate = gate_of(imported.text)
        here = [bool(decide(gate, request(path, host="x.example"))) for path in paths]
        if held(port, paths) != here:
            assert any("counts several locations together" in line for line in imported.lost), (paths, http)


def test_each_request_of_an_http_2_connection_counts_in_nginx(start: Start) -> None:
    http = f"{CONNECTIONS} server {{ listen PORT http2; limit_conn a 3; {SLOW} }}"
    connection, statuses = H2Connection(), dict[int, bytes]()
    connection.initiate_connection()
    for stream in (1, 3, 5, 7, 9):
        headers = [(":method", "GET"), (":path", "/"), (":scheme", "http"), (":authority", "x.example")]
        connection.send_headers(stream, headers, end_stream=True)
    with socket.create_connection((HOST, start(http)), 20, source_address=(next(_clients), 0)) as sent:
        sent.sendall(connection.data_to_send())
        while len(statuses) < 5:
            received = sent.recv(65536)
            assert received, "nginx closed the connection"
            for event in connection.receive_data(received):
                if isinstance(event, ResponseReceived):
                    statuses[event.stream_id] = dict(event.headers)[b":status"]
    theirs = [statuses[stream] == b"200" for stream in sorted(statuses)]
    assert theirs == ours(import_nginx(http).text, 5) == [True] * 3 + [False] * 2
