"""Redis over TLS: a real server with certificates of a real, if small, authority."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import trustme

from ratebound import Limiter, StorageError
from ratebound.storage.redis import connect
from ratebound.storage.redis.address import parse_url
from tests.redis.bare import KINDS, bare_limiter
from tests.servers import HOST, Server, free_port, redis_server

SLOW = "timeout=5&connect_timeout=5"
CLIENTS: dict[str, Any] = {"threads": redis.Redis, "tasks": redis.asyncio.Redis}


@dataclass
class Files:
    """Paths, as options want them."""

    authority: str
    other_authority: str
    certificate: str
    key: str
    clients_certificate: str
    clients_key: str


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("certificates")

    def written(name: str, blob: trustme.Blob) -> str:
        path: Path = folder / name
        blob.write_to_path(path)
        return str(path)

    authority, other = trustme.CA(), trustme.CA()
    server, client = authority.issue_cert(HOST, "localhost"), authority.issue_cert("limiter.example")
    return Files(
        written("authority.pem", authority.cert_pem),
        written("other.pem", other.cert_pem),
        written("server.pem", server.cert_chain_pems[0]),
        written("server.key", server.private_key_pem),
        written("client.pem", client.cert_chain_pems[0]),
        written("client.key", client.private_key_pem),
    )


@contextmanager
def started(files: Files, clients: str) -> Iterator[Server]:
    """With a port for TLS beside the plain one; `clients`: whether it wants certificates of them."""
    with redis_server() as probe, probe.client() as client:
        if not client.config_get("tls-port"):
            pytest.skip("this redis-server was built without TLS")
    port = str(free_port())
    certificates = ("--tls-cert-file", files.certificate, "--tls-key-file", files.key)
    authority = ("--tls-ca-cert-file", files.authority, "--tls-auth-clients", clients)
    with redis_server("--tls-port", port, *certificates, *authority) as server:
        yield server


def tls_port(server: Server) -> int:
    with server.client() as client:
        found: Any = client.config_get("tls-port")
    return int(found["tls-port"])


@pytest.fixture(scope="module")
def server(files: Files) -> Iterator[Server]:
    with started(files, "no") as server:
        yield server


@pytest.fixture(scope="module")
def strict_server(files: Files) -> Iterator[Server]:
    with started(files, "yes") as server:
        yield server


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def limiter_at(kind: str, server: Server, options: str, host: str = HOST) -> Limiter:
    url = f"rediss://{host}:{tls_port(server)}/0?{SLOW}&prefix={kind}-&{options}"
    return bare_limiter("5/day burst 5", storage=KINDS[kind](url))


def test_a_server_of_a_known_authority_is_spoken_to_in_private(kind: str, server: Server, files: Files) -> None:
    with limiter_at(kind, server, f"ssl_ca_certs={files.authority}") as limiter:
        assert [limiter.hit("k").remaining for _ in range(3)] == [4, 3, 2]
        with server.client() as client:
            ours: Any = client.client_list()
            assert any(each["laddr"].endswith(f":{tls_port(server)}") for each in ours)


def test_a_connection_is_kept_and_one_that_was_closed_is_not_used(kind: str, server: Server, files: Files) -> None:
    def received(client: redis.Redis) -> int:
        stats: Any = client.info("stats")
        return int(stats["total_connections_received"])

    with limiter_at(kind, server, f"ssl_ca_certs={files.authority}") as limiter, server.client() as client:
        limiter.hit("kept")
        before = received(client)
        assert [limiter.hit("kept").remaining for _ in range(3)] == [3, 2, 1]
        assert received(client) == before
        if kind == "threads":
            client.execute_command("CLIENT KILL", "TYPE", "normal", "SKIPME", "yes")
            assert limiter.hit("kept").remaining == 0


@pytest.mark.parametrize("authority", ["the system's", "another"])
def test_a_server_of_an_unknown_authority_is_not_spoken_to(
    authority: str, kind: str, server: Server, files: Files
) -> None:
    options = f"ssl_ca_certs={files.other_authority}" if authority == "another" else ""
    with limiter_at(kind, server, options) as limiter:
        for _ in range(2):
            with pytest.raises(StorageError, match="(?i)certificate"):
                limiter.hit("unknown")
    with limiter_at(kind, server, "ssl_cert_reqs=none&ssl_check_hostname=false") as limiter:
        assert limiter.hit("unknown").remaining == 4, "unless it is told not to look"
        limiter.reset("unknown")


def test_a_server_of_another_name_is_not_spoken_to(kind: str, server: Server, files: Files) -> None:
    known = f"ssl_ca_certs={files.authority}"
    with limiter_at(kind, server, known, host="127.0.0.2") as limiter, pytest.raises(StorageError):
        limiter.hit("name")
    with limiter_at(kind, server, known, host="localhost") as limiter:
        assert limiter.hit("name")


def test_a_server_that_wants_a_certificate_of_its_clients_is_shown_one(
    kind: str, strict_server: Server, files: Files
) -> None:
    known = f"ssl_ca_certs={files.authority}"
    with (
        limiter_at(kind, strict_server, known) as limiter,
        pytest.raises(StorageError, match="communication with Redis failed"),
    ):
        limiter.hit("k")
    shown = f"{known}&ssl_certfile={files.clients_certificate}&ssl_keyfile={files.clients_key}"
    with limiter_at(kind, strict_server, shown) as limiter:
        assert limiter.hit("k").remaining == 4


def test_a_plain_url_to_a_port_of_tls_and_the_other_way_round_are_storage_errors(
    kind: str, server: Server, files: Files
) -> None:
    plain = f"redis://{HOST}:{tls_port(server)}/0?timeout=1&connect_timeout=1"
    secret = f"rediss://{HOST}:{server.port}/0?timeout=1&connect_timeout=1&ssl_ca_certs={files.authority}"
    for url in (plain, secret):
        with bare_limiter("5/day", storage=KINDS[kind](url)) as limiter, pytest.raises(StorageError):
            limiter.hit("k")


def test_a_client_that_the_user_has_lends_its_certificates(kind: str, strict_server: Server, files: Files) -> None:
    theirs = CLIENTS[kind](
        host=HOST,
        port=tls_port(strict_server),
        ssl=True,
        ssl_ca_certs=files.authority,
        ssl_certfile=files.clients_certificate,
        ssl_keyfile=files.clients_key,
    )
    with bare_limiter(
        "5/day", storage=KINDS[kind](theirs, prefix=f"theirs-{kind}-", timeout=5, connect_timeout=5)
    ) as limiter:
        assert limiter.hit("k").remaining == 4


@pytest.mark.parametrize("tls", [True, False])
def test_sentinels_are_spoken_to_as_the_servers_are(tls: bool) -> None:
    address = parse_url(f"{'rediss' if tls else 'redis'}+sentinel://127.0.0.1:1,127.0.0.1:2/main")
    for made in (connect.Connector(address), connect.AsyncConnector(address)):
        server, *sentinels = connect.pools(made._client)
        kinds = [pool.connection_class.__name__ for pool in (server, *sentinels)]
        assert len(kinds) == 3
        assert all(("SSL" in kind) == tls for kind in kinds), kinds


def test_the_name_of_a_server_is_looked_at_unless_its_certificate_is_not() -> None:
    for options, looked_at in (("", True), ("?ssl_cert_reqs=none", False), ("?ssl_check_hostname=false", False)):
        made = connect.Connector(parse_url(f"rediss://127.0.0.1:1{options}"))
        assert made._options["ssl_check_hostname"] is looked_at
