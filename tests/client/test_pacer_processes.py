"""Eight processes that share what they learn of a real server: nothing is refused after the first answers."""

import os

import pytest

from tests.client.paced_server import serving_limit
from tests.client.paced_worker import run_processes
from tests.servers import Server
from tests.zones import fresh_zone_url

LONG = os.environ.get("RATEBOUND_LONG") == "1"
LIMITS = ("50/second burst 50", "50/second fixed-window")


@pytest.mark.parametrize("limit", LIMITS)
def test_processes_share_a_limit_over_shared_memory(limit: str) -> None:
    with serving_limit(limit) as url, fresh_zone_url() as zone:
        ran = run_processes(url, zone, 4.0)
    assert ran.refused_after(2.5) == 0
    assert len(ran.answers) > 50  # more than one burst: they went on


@pytest.mark.skipif(not LONG, reason="takes a minute: set RATEBOUND_LONG=1")
@pytest.mark.parametrize("limit", [*LIMITS, "100/5 seconds burst 100", "100/5 seconds fixed-window"])
def test_processes_share_a_limit_over_redis(limit: str, fresh_redis: Server) -> None:
    with serving_limit(limit) as url:
        ran = run_processes(url, fresh_redis.url, 20.0)
    assert ran.refused_after(5.0) == 0
    assert len(ran.answers) > 300
