"""Eight processes call one API with one limit, each as fast as its library lets it: the share of the allowed rate that
they use, and the requests that are refused.

The server is our middleware. Ours learns the limit from headers and shares it, over shared memory or Redis; with a
configured limit it does not need the headers. aiolimiter has no shared state: each process gets an eighth of the limit,
as its documentation says. requests-ratelimiter shares its count over Redis.
"""

import asyncio
import http.client
import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

import aiohttp
import redis
from aiolimiter import AsyncLimiter
from pyrate_limiter import RedisBucket
from requests_ratelimiter import LimiterSession

from benchmarks.builds import Done, Worker, run_together
from ratebound.client import Pacer

RATE = 200  # per second
PROCESSES = 8
LEARNING, MEASURED = 2.0, 4.0  # seconds
LIMITS = {"token bucket": f"{RATE}/second burst {RATE}", "fixed window": f"{RATE}/second fixed-window"}

Answers = list[tuple[float, int]]  # when each answer came, in seconds since the epoch, and its status


class RateFound(NamedTuple):
    """What all processes together reached, after the first answers."""

    share: float  # of the allowed rate
    refused: int
    refused_first: int  # in the time of learning


def reach_rate(contender: str, url: str, shared: str, workers: Sequence[Worker]) -> RateFound:
    """Let all workers call the server, and return what they reached. `shared` is the URL of a storage."""
    begin = math.ceil(time.time() + 0.5)  # windows begin with whole seconds
    found = run_together(workers, call_until, contender, url, shared, float(begin), begin + LEARNING + MEASURED)
    answers = [answer for each in found for answer in each]
    late = [status for when, status in answers if begin + LEARNING <= when < begin + LEARNING + MEASURED]
    first = [status for when, status in answers if when < begin + LEARNING]
    share = late.count(200) / (RATE * MEASURED)
    return RateFound(share, len(late) - late.count(200), len(first) - first.count(200))


def be_ready(_: Done) -> None:
    """Do nothing: a worker that returns from this has imported everything."""


def call_until(number: int, contender: str, url: str, shared: str, begin: float, end: float, _: Done) -> Answers:
    """Return the answers of one process. Workers run this."""
    time.sleep(max(begin - time.time(), 0))
    return PACED[contender](url, shared, end)


def _ours(limits: str | None, url: str, shared: str, end: float) -> Answers:
    answers: Answers = []
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    with Pacer(limits, storage=shared, name="benchmark") as pacer:
        while time.time() < end:
            turn = pacer.wait(url)
            connection.request("GET", "/")
            response = connection.getresponse()
            body = response.read()
            answers.append((time.time(), response.status))
            turn.answered(response.status, response.getheaders(), body)
    return answers


def _learned(url: str, shared: str, end: float) -> Answers:
    return _ours(None, url, shared, end)


def _configured(url: str, shared: str, end: float) -> Answers:
    return _ours(f"{RATE}/second", url, shared, end)


def _aiolimiter(url: str, shared: str, end: float) -> Answers:
    async def run() -> Answers:
        answers: Answers = []
        limiter = AsyncLimiter(RATE // PROCESSES, 1)
        async with aiohttp.ClientSession() as session:
            while time.time() < end:
                async with limiter, session.get(url) as response:
                    await response.read()
                    answers.append((time.time(), response.status))
        return answers

    return asyncio.run(run())


def _requests_ratelimiter(url: str, shared: str, end: float) -> Answers:
    answers: Answers = []
    client = redis.Redis.from_url(shared)
    with LimiterSession(per_second=RATE, bucket_class=RedisBucket, bucket_kwargs={"redis": client}) as session:
        while time.time() < end:
            status = session.get(url, timeout=30).status_code
            answers.append((time.time(), status))
    client.close()
    return answers


PACED: dict[str, Callable[[str, str, float], Answers]] = {
    "ratebound, learned, shared memory": _learned,
    "ratebound, learned, Redis": _learned,
    "ratebound, configured, shared memory": _configured,
    "aiolimiter, an eighth each": _aiolimiter,
    "requests-ratelimiter, Redis": _requests_ratelimiter,
}
JUDGED = ("ratebound, learned, shared memory", "ratebound, learned, Redis")
