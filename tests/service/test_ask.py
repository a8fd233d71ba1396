"""`ratebound ask`: a running service asked from a terminal."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from ratebound.cli.ask import GRPC, HTTP, RESP
from ratebound.cli.ask import ask as ask_command
from ratebound.service.settings import SETTINGS
from tests.service.running_service import RunningService, running_service

TOKEN = "a-token-of-callers-0123"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    environ = {"RATEBOUND_TOKENS": TOKEN}
    with running_service("--grpc", "0", "--resp", "0", environ=environ) as running:
        yield running


def ask(service: RunningService, wire: str, *words: str, token: str = TOKEN) -> tuple[int, str, str]:
    return run(wire, *words, "--to", service.address(wire), token=token)


def run(*words: str, token: str = "") -> tuple[int, str, str]:
    done = CliRunner().invoke(ask_command, words, env={"RATEBOUND_TOKEN": token or None})
    assert isinstance(done.exception, SystemExit | None)
    return done.exit_code, done.stdout, done.stderr


def test_the_exit_status_tells_allowed_denied_and_mistaken(service: RunningService) -> None:
    assert ask(service, "http", "hit", "a", "1/hour")[0] == 0
    status, out, _ = ask(service, "http", "hit", "a", "1/hour")
    assert (status, out.splitlines()[0]) == (3, "denied")
    status, _, error = ask(service, "http", "hit", "a", "1/houx")
    assert (status, error.startswith("the service answered 422: ")) == (2, True)
    assert ask(service, "http", "peek", "b", "1/hour")[0] == 0
    assert ask(service, "http", "reset", "a", "1/hour")[0] == 0
    assert ask(service, "resp", "hit", "a", "1/hour")[0] == 0
    assert ask(service, "resp", "hit", "a", "1/hour")[0] == 3
    status, _, error = ask(service, "resp", "hit", "a")
    assert (status, error.startswith("the service answered: ")) == (2, True)


def test_json_is_the_whole_answer(service: RunningService) -> None:
    _, out, _ = ask(service, "http", "decide", "--path", "/x?y=1", "--address", "203.0.113.1", "--json")
    assert json.loads(out)["status"] == 200
    _, out, _ = ask(service, "resp", "throttle", "c", "15", "30", "60", "--json")
    assert json.loads(out) == {"limited": 0, "limit": 16, "remaining": 15, "retry_after": -1, "reset_after": 2}
    _, out, _ = ask(service, "grpc", "edge", "a=b", "--json")
    assert json.loads(out)["overall_code"] == "OK"


def test_a_denial_says_which_limit_denies_and_what_the_client_is_told(service: RunningService) -> None:
    words = ("http", "decide", "--method", "POST", "--path", "/login", "--address", "203.0.113.2")
    for _ in range(3):
        status, out, _ = ask(service, *words)
    assert status == 3
    assert "limit: 2/hour (login/hour)" in out
    assert '"detail":"Too many requests: try again in ' in out


def test_a_descriptor_without_a_rule_is_said_to_have_none(service: RunningService) -> None:
    status, out, _ = ask(service, "grpc", "edge", "a=b")
    assert (status, out) == (0, "allowed\n  OK, no rule limits this descriptor\n")


def test_tls_with_a_service_that_has_none_is_an_error_that_says_so(service: RunningService) -> None:
    status, _, error = ask(service, "http", "hit", "a", "1/hour", "--tls")
    assert status == 2
    assert f"{service.address('http')} does not use TLS: " in error


@pytest.mark.parametrize(
    "words", [("http", "hit", "a", "1/hour"), ("grpc", "edge", "a=b"), ("resp", "hit", "a", "1/s")]
)
def test_a_wrong_or_missing_token_is_an_error(service: RunningService, words: tuple[str, ...]) -> None:
    for token in ("", "wrong-token-wrong"):
        status, out, error = ask(service, *words, token=token)
        assert (status, out) == (2, "")
        assert "Set RATEBOUND_TOKEN or --token-file." in error
        assert "wrong-token" not in error
    assert service.log.count(f"{words[0]}: a caller was refused, because it sent no valid token") == 1
    if words[0] == "grpc":
        assert service.metrics()['ratebound_service_requests_total{result="16",wire="grpc"}'] == 2


def test_a_token_may_be_in_a_file(service: RunningService, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    words = ("http", "hit", "d", "1/hour", "--token-file", str(tmp_path / "token"))
    assert ask(service, *words, token="")[0] == 0


@pytest.mark.parametrize("words", [("http", "hit", "a", "1/hour"), ("resp", "hit", "a", "1/hour")])
def test_a_service_that_is_away_is_an_error_that_says_what_to_do(words: tuple[str, ...]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        status, _, error = run(*words, "--to", address)
    assert status == 2
    assert error.startswith(f"no service answers at {address}: Connection refused. Start one with")


def test_a_service_that_does_not_answer_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        status, _, error = run("http", "hit", "a", "1/hour", "--to", address, "--timeout", "0.2")
    assert (status, error) == (2, f"{address} did not answer within 0.2 s\n")


def test_a_mistaken_address_is_an_error() -> None:
    status, _, error = run("http", "hit", "a", "1/hour", "--to", "nowhere")
    assert status == 2
    assert error.startswith("option --to: 'nowhere' is no address")


def test_the_default_addresses_are_those_of_the_service() -> None:
    defaults = {setting.name: setting.default for setting in SETTINGS}
    assert (defaults["http"], defaults["grpc"], defaults["resp"]) == (HTTP, GRPC, RESP)


def test_certificates_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    status, _, error = run("http", "hit", "a", "1/hour", "--ca", str(tmp_path / "missing.pem"))
    assert (status, error) == (2, f"option --ca: {tmp_path}/missing.pem: No such file or directory\n")
    (tmp_path / "empty.pem").write_text("no certificate")
    status, _, error = run("http", "hit", "a", "1/hour", "--ca", str(tmp_path / "empty.pem"))
    assert status == 2
    assert error.startswith(f"option --ca: {tmp_path}/empty.pem: ")
