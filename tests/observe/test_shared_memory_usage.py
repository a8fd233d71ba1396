"""Metrics of memory also watch shared memory."""

from pathlib import Path

from fastapi import FastAPI
from flask import Flask

from ratebound import AsyncLimiter, Limiter
from ratebound.observe.memory_usage import MemoryUse, WatchedMemory
from ratebound.policy import Gate, read_policy
from ratebound.storage.shared_memory.storage import SharedMemoryStorage
from ratebound.web.asgi import RateLimitMiddleware as ASGIMiddleware
from ratebound.web.fastapi import RateLimits as FastAPILimits
from ratebound.web.flask import RateLimits as FlaskLimits
from ratebound.web.wsgi import RateLimitMiddleware as WSGIMiddleware


def test_a_limiter_on_shared_memory_reports_its_zone(tmp_path: Path) -> None:
    storage = SharedMemoryStorage("watched", size=1 << 20, directory=str(tmp_path))
    limiter = Limiter("5/minute", storage=storage)
    watched = WatchedMemory()
    watched.watch(limiter, "here")
    watched.watch(AsyncLimiter("5/minute", storage=storage), "tasks")
    for number in range(3):
        limiter.hit(f"k{number}")
    assert watched.now() == [MemoryUse(name, 3, storage.max_keys, 0, 0) for name in ("here", "tasks")]


def test_the_limits_of_a_web_application_report_their_zone(tmp_path: Path) -> None:
    storage = SharedMemoryStorage("watched", size=1 << 20, directory=str(tmp_path))
    owners = [
        Gate(read_policy("rules: [{name: all, limits: 5/minute}]"), storage=storage),
        FlaskLimits(Flask("here"), "5/minute", storage=storage),
        FastAPILimits("5/minute", app=FastAPI(), storage=storage),
        ASGIMiddleware(FastAPI(), "5/minute", storage=storage),
        WSGIMiddleware(Flask("there"), "5/minute", storage=storage),
    ]
    watched = WatchedMemory()
    for number, owner in enumerate(owners):
        watched.watch(owner, str(number))
    Limiter("5/minute", storage=storage).hit("k")
    assert watched.now() == [MemoryUse(str(number), 1, storage.max_keys, 0, 0) for number in range(len(owners))]


def test_dropped_states_are_reported(tmp_path: Path) -> None:
    storage = SharedMemoryStorage("full", size=1 << 20, directory=str(tmp_path))
    limiter = Limiter("5/hour fixed-window", storage=storage)
    watched = WatchedMemory()
    watched.watch(limiter, "here")
    for number in range(2 * storage.max_keys):
        limiter.hit(f"k{number}")
    (use,) = watched.now()
    assert use.evicted > 0
    assert use.keys + use.evicted == 2 * storage.max_keys
