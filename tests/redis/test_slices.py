"""Slices of four real processes on a real Redis, in real time. RATEBOUND_LONG=1 makes it last a minute."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ratebound import AsyncLimiter, Limiter, parse_limits
from tests.property.fleet import most
from tests.servers import Server

ROOT = Path(__file__).parents[2]
SECONDS = 60 if os.environ.get("RATEBOUND_LONG") == "1" else 3
FOR_US = 500_000
KINDS = ["60/5 seconds", "120/10 seconds sliding-counter", "600/minute burst 40", "100/5 seconds fixed-window"]


def passed_in(url: str, limits: str) -> list[tuple[int, int, bool]]:
    """Let four processes hit one key, and return what has passed in all of them."""
    command = [sys.executable, "-m", "tests.redis.sliced_process", url, limits, "0.2", str(FOR_US / 1e6), str(SECONDS)]
    processes = [
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    try:
        for process in processes:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
        answers = []
        for process in processes:
            assert process.stdin
            process.stdin.write("\n")
            process.stdin.flush()
        for process in processes:
            out, _ = process.communicate(timeout=SECONDS + 60)
            answers.append(json.loads(out))
        return [(before, after, is_sliced) for answer in answers for before, after, is_sliced in answer]
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize("limits", KINDS)
def test_four_processes_pass_no_more_than_the_limit_gives_in_the_time_and_that_of_a_slice(
    limits: str, redis_url_server: Server
) -> None:
    url = f"{redis_url_server.url}?timeout=5&connect_timeout=5&prefix=slices-"
    (limit,) = parse_limits(limits)
    passed = sorted(passed_in(url, limits))
    assert any(is_sliced for *_, is_sliced in passed)
    # An instant of a pass lies between the instants before and after it. Only passes that are wholly in a time count.
    begins = sorted({before for before, *_ in passed})
    for begin in begins[:: max(1, len(begins) // 300)]:
        inside = sorted(after for before, after, _ in passed if before >= begin)
        for number, end in enumerate(inside, 1):
            assert number <= most(limit, end - begin + 1 + FOR_US)
    assert len(passed) >= min(limit.count, limit.burst) // 2  # most of what the limit gives was used


def test_a_hot_key_makes_few_trips(redis_url_server: Server) -> None:
    client = redis_url_server.client()

    def calls() -> int:
        stats: dict[str, dict[str, int]] = client.info("commandstats")
        return sum(stats[name]["calls"] for name in stats if name.startswith(("cmdstat_evalsha", "cmdstat_fcall")))

    with Limiter("100000/hour", storage=f"{redis_url_server.url}?prefix=hot-", slice={"for": 60}) as limiter:
        before = calls()
        assert [limiter.hit("k").remaining for _ in range(2000)] == list(range(99_999, 97_999, -1))
        assert calls() - before < 30


async def _hits(url: str) -> list[int]:
    async with AsyncLimiter("100000/hour", storage=url, slice=True) as limiter:
        return [(await limiter.hit("k")).remaining for _ in range(500)]


def test_tasks_decide_from_slices(redis_url_server: Server) -> None:
    found = asyncio.run(_hits(f"{redis_url_server.url}?prefix=tasks-"))
    assert found[0] == 99_999
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == 500
