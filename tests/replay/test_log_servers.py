"""Logs that real servers write, read with the format that is detected."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ratebound.replay.entry import Entry
from ratebound.replay.read_log import LogReader
from tests.proxies import ask, program
from tests.replay.test_log_reader import entries_of
from tests.servers import HOST, dying_with_us, free_port, wait_until

AGENT = 'odd "agent" \\ with ж'
NGINX_FORMAT = (
    '$remote_addr "$request" $status [$time_iso8601] $msec $request_time "$http_user_agent" $host $request_id'
)


def nginx(folder: Path, port: int) -> list[str]:
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/log; events {{ }}\n"
        f"http {{ {temporary} log_format own '{NGINX_FORMAT}'; access_log {folder}/access.log; "
        f"access_log {folder}/own.log own; server {{ listen {HOST}:{port}; location / {{ return 200 'hello'; }} }} }}"
    )
    return [program("nginx"), "-p", str(folder), "-c", str(config), "-e", str(folder / "log")]


def caddy(folder: Path, port: int) -> list[str]:
    config = folder / "Caddyfile"
    config.write_text(
        "{\n admin off\n auto_https off\n}\n"
        f"http://:{port} {{\n bind {HOST}\n log {{\n output file {folder}/access.log\n }}\n respond hello\n}}\n"
    )
    return [program("caddy"), "run", "--adapter", "caddyfile", "--config", str(config)]


def traefik(folder: Path, port: int) -> list[str]:
    (folder / "routes.yaml").write_text(
        "http:\n routers:\n  ping:\n   rule: PathPrefix(`/`)\n   service: ping@internal\n   entryPoints: [web]\n"
    )
    return [
        program("traefik"),
        f"--entrypoints.web.address={HOST}:{port}",
        f"--providers.file.filename={folder}/routes.yaml",
        "--ping=true",
        "--ping.manualrouting=true",
        "--global.checknewversion=false",
        "--global.sendanonymoususage=false",
        "--accesslog=true",
        "--accesslog.addinternals=true",
        f"--accesslog.filepath={folder}/access.log",
        "--accesslog.format=json",
        "--accesslog.fields.headers.names.User-Agent=keep",
    ]


def envoy(folder: Path, port: int) -> list[str]:
    file = {"@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog"}
    fields = {
        "start_time": "%START_TIME%",
        "method": "%REQ(:METHOD)%",
        "path": "%REQ(:PATH)%",
        "response_code": "%RESPONSE_CODE%",
        "duration": "%DURATION%",
        "user_agent": "%REQ(USER-AGENT)%",
        "authority": "%REQ(:AUTHORITY)%",
        "downstream_remote_address": "%DOWNSTREAM_REMOTE_ADDRESS%",
    }
    logs = [
        {**file, "path": f"{folder}/access.log"},
        {**file, "path": f"{folder}/own.log", "log_format": {"json_format": fields}},
    ]
    hello = {"match": {"prefix": "/"}, "direct_response": {"status": 200, "body": {"inline_string": "hello"}}}
    router = {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}
    network = "type.googleapis.com/envoy.extensions.filters.network"
    manager = {
        "@type": f"{network}.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "edge",
        "use_remote_address": True,
        "access_log": [{"name": "file", "typed_config": log} for log in logs],
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [hello]}]},
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": router}],
    }
    listener = {
        "address": {"socket_address": {"address": HOST, "port_value": port}},
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }
    config = folder / "envoy.json"
    config.write_text(json.dumps({"static_resources": {"listeners": [listener]}}))
    flush = ["--file-flush-interval-msec", "100"]
    return [program("envoy"), "--concurrency", "1", "--disable-hot-restart", "-l", "warning", *flush, "-c", str(config)]


@contextmanager
def running(command: Callable[[Path, int], list[str]], folder: Path) -> Iterator[int]:
    """Start a server, and stop it whatever happens. Its port is given."""
    port = free_port()
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            dying_with_us(command(folder, port)), cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )

    def is_up() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"it ended with {process.returncode}: {(folder / 'output').read_text(errors='replace')}")
        try:
            return ask(port, "/is-up").status == 200
        except OSError:
            return False

    try:
        wait_until(is_up, 60, "the server is up")
        yield port
    finally:
        process.kill()
        process.wait()


def _text_of(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def logged(command: Callable[[Path, int], list[str]], folder: Path, files: dict[str, str]) -> dict[str, list[Entry]]:
    """Send some requests to a server, and read its logs. `files` gives the format of each."""
    started = time.time()
    with running(command, folder) as port:
        ask(port, "/users/1?a=b%20c", headers=[("User-Agent", AGENT.encode().decode("latin-1"))])
        ask(port, "/users/%22x%22", method="POST", source="127.0.0.9", body=b"x", host="other.example")
        ask(port, "/last")
        logs = [folder / name for name in files]
        wait_until(lambda: all("/last" in _text_of(log) for log in logs), 30, "the logs are written")
    found = {}
    for name, format in files.items():
        reader = LogReader([folder / name], format=format, fields=())
        entries = [entry for entry in entries_of(reader) if "/is-up" not in entry.target]
        assert reader.malformed == 0, reader.samples
        for entry in entries:
            assert started - 2 <= entry.at / 1_000_000 <= time.time() + 2
        assert entries[0].at <= entries[1].at <= entries[2].at
        assert [(entry.method, entry.target) for entry in entries] == [
            ("GET", "/users/1?a=b%20c"),
            ("POST", "/users/%22x%22"),
            ("GET", "/last"),
        ]
        assert {entry.status for entry in entries} == {200}
        if reader.format != "envoy":  # it logs the address of its own machine for local clients
            assert [entry.address for entry in entries] == ["127.0.0.1", "127.0.0.9", "127.0.0.1"]
        found[reader.format] = entries
    return found


def test_nginx_writes_what_is_read(tmp_path: Path) -> None:
    found = logged(nginx, tmp_path, {"access.log": "auto", "own.log": NGINX_FORMAT})
    assert set(found) == {"combined", "nginx"}
    assert found["combined"][0].agent == found["nginx"][0].agent == AGENT
    assert [entry.host for entry in found["nginx"]] == ["api.example", "other.example", "api.example"]


def test_caddy_writes_what_is_read(tmp_path: Path) -> None:
    found = logged(caddy, tmp_path, {"access.log": "auto"})
    assert set(found) == {"caddy"}
    assert found["caddy"][0].agent == AGENT
    assert [entry.host for entry in found["caddy"]] == ["api.example", "other.example", "api.example"]


def test_traefik_writes_what_is_read(tmp_path: Path) -> None:
    found = logged(traefik, tmp_path, {"access.log": "auto"})
    assert set(found) == {"traefik"}
    assert found["traefik"][0].agent == AGENT
    assert [entry.host for entry in found["traefik"]] == ["api.example", "other.example", "api.example"]


def test_envoy_writes_what_is_read(tmp_path: Path) -> None:
    found = logged(envoy, tmp_path, {"access.log": "envoy", "own.log": "auto"})
    assert set(found) == {"envoy", "json"}
    assert found["envoy"][0].agent == found["json"][0].agent == AGENT
    assert [entry.host for entry in found["envoy"]] == ["api.example", "other.example", "api.example"]
