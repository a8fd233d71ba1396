"""The origin of a policy, for operators, where it comes from a URL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ratebound import MemoryStorage
from ratebound.admin.messages import CallError
from ratebound.admin.policy_source import GatePolicySource
from ratebound.policy import Gate, PolicyError, PolicyFile, PolicyUrl
from tests.policy.policy_server import PolicyServer, respond, serving

FIVE = "rules: [{name: a, limits: 5/minute}]\n"
SIX = FIVE.replace("5", "6")
CHANGE = {"where": "rule a", "what": "changed", "detail": "limits: '5/minute' -> '6/minute'", "starts_anew": False}


@pytest.fixture
def server() -> Iterator[PolicyServer]:
    with serving(FIVE) as found:
        yield found


def source_of(server: PolicyServer, folder: Path) -> GatePolicySource:
    policy = PolicyUrl(server.url, keep=folder / "policy.yaml", every=0)
    return GatePolicySource(Gate(policy, storage=MemoryStorage()))


def test_a_dry_run_fetches_and_changes_nothing(server: PolicyServer, tmp_path: Path) -> None:
    source = source_of(server, tmp_path)
    server.text = SIX
    assert source.check(None, None) == [CHANGE]
    assert source.check(None, None) == [CHANGE], "nothing has changed by it"
    assert (tmp_path / "policy.yaml").read_text() == FIVE
    assert source.check("rules: [{name: a, limits: 5/minute}]", "yaml") == []
    origin = source.describe()
    assert (origin.source, origin.text, origin.format, origin.error) == (server.url, FIVE, "yaml", "")


def test_a_reload_fetches_and_says_what_has_changed(server: PolicyServer, tmp_path: Path) -> None:
    source = source_of(server, tmp_path)
    server.text = SIX
    assert source.reload() == [CHANGE]
    assert source.describe().text == SIX


def test_a_server_that_fails_is_an_answer_and_a_mistake_is_another(server: PolicyServer, tmp_path: Path) -> None:
    source = source_of(server, tmp_path)
    server.answer = lambda handler: respond(handler, 500)
    for ask in (lambda: source.check(None, None), source.reload):
        with pytest.raises(CallError, match="status 500") as found:
            ask()
        assert found.value.status == 502
    assert "status 500" in source.describe().error
    server.answer, server.text = None, "rules: [{name: a, limits: five}]"
    for ask in (lambda: source.check(None, None), source.reload):
        with pytest.raises(PolicyError, match="cannot read limit"):
            ask()


def test_a_file_is_read_in_the_same_way(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(FIVE)
    source = GatePolicySource(Gate(PolicyFile(file, every=0), storage=MemoryStorage()))
    file.write_text(SIX)
    assert source.check(None, None) == [CHANGE]
    assert source.reload() == [CHANGE]
    assert source.describe().format == "yaml"
