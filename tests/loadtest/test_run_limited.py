"""Runs against real servers with Ratebound's own middleware."""

from collections import Counter
from pathlib import Path

import pytest

from ratebound.loadtest.identities import Clients, parse_identity
from tests.loadtest.plans import ran
from tests.web.serving import serving

POLICY = """
trusted: [127.0.0.1]
rules:
  - name: all
    limits: {limit}
    by: address
"""


@pytest.mark.parametrize("limit", ["3/second burst 3", "3/second fixed-window", "3/second sliding-log"])
def test_obeying_retry_after_passes(limit: str, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.format(limit=limit))
    with serving("uvicorn", policy=str(policy)) as web:
        run = ran(web.url, "60/s", 2.5, clients=Clients(3, [parse_identity("forwarded")]), obey=True, probe_within=1.5)
    assert run.due == 150 == run.sent + run.held
    probes = [answer for answer in run.answers if answer.probe]
    assert {probe.client for probe in probes} == {0, 1, 2}
    assert all(probe.status < 400 for probe in probes)
    refused = [answer for answer in run.answers if answer.status == 429]
    assert refused
    assert all(answer.retry_after == 1.0 for answer in refused)
    assert all(answer.quotas[0].remaining is not None for answer in run.answers)
    granted = Counter(answer.client for answer in run.answers if answer.status < 400)
    assert all(3 <= granted[client] <= 3 + 3 * (run.elapsed + 1) for client in range(3))


def test_a_run_that_does_not_obey_finds_the_limit_of_each_client(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.format(limit="7/hour fixed-window"))
    with serving("uvicorn", policy=str(policy)) as web:
        clients = Clients(5, [parse_identity("forwarded")], assignment="zipf")
        run = ran(web.url, "poisson 300/s", 1.0, clients=clients)
    sent = Counter(answer.client for answer in run.answers)
    granted = Counter(answer.client for answer in run.answers if answer.status < 400)
    assert sum(sent.values()) == run.sent
    assert granted == {client: min(count, 7) for client, count in sent.items()}
