"""The cost of a limiter on a request of a small application: ours beside slowapi and Flask-Limiter, in one process.

Each application has one route and returns a few bytes of JSON. It is called as a server calls it, with a new scope or
environ for each request, by 100 clients with their own addresses; storage in memory, or in shared memory where that is
said; headers on. The cost is the time above the same application without a limiter, within each round. On Redis, the
commands that reach the server are counted.
"""

import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import flask
import flask_limiter
import redis
import slowapi
from flask_limiter.util import get_remote_address as flask_address
from slowapi.middleware import SlowAPIASGIMiddleware
from slowapi.util import get_remote_address
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from tests.servers import redis_server

from benchmarks.builds import COMPILED, PURE, Done, Worker
from benchmarks.measure import (
    AsyncBlock,
    AsyncContender,
    Block,
    Case,
    Contender,
    Spread,
    Times,
    measure,
    ratios,
    spread,
    steps_of,
)
from benchmarks.verdict import Verdict, at_least
from benchmarks.zones import own_zone
from ratebound.storage.shared_memory.storage import SharedMemoryStorage
from ratebound.web.asgi import RateLimitMiddleware
from ratebound.web.fastapi import RateLimits
from ratebound.web.flask import RateLimits as FlaskLimits

LIMIT = "1000000/minute"
HEADERS = {
    "host": "api.example.com",
    "user-agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36",
    "accept": "application/json",
    "accept-language": "en",
    "accept-encoding": "gzip, br",
}
RAW = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
VARIABLES = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in HEADERS.items()}
BARE = "without a limiter"
SMALL_ZONE = 1 << 20  # bytes; each block makes one
WARM_UP, EACH = 2, 10  # requests of each client; a difference of two times needs short blocks, close to each other
# Build, case, peer, ours, and how many times less ours must add than the peer.
REQUIRED = (
    (PURE, "asgi", "slowapi, ASGI middleware", "ratebound, ASGI middleware", 5.0),
    (PURE, "flask", "Flask-Limiter, default limits", "ratebound, Flask extension", 5.0),
    (COMPILED, "asgi", "slowapi, ASGI middleware", "ratebound, ASGI middleware", 10.0),
    (COMPILED, "asgi", "slowapi, decorator", "ratebound, decorator", 5.0),
    (COMPILED, "flask", "Flask-Limiter, default limits", "ratebound, Flask extension", 10.0),
)
PEERS = {
    "asgi": "slowapi, ASGI middleware",
    "asgi, by decorator": "slowapi, decorator",
    "flask": "Flask-Limiter, default limits",
    "flask, by decorator": "Flask-Limiter, decorator",
}


def address(key: str) -> str:
    """Return the address of the client with this key."""
    number = int(key.rpartition(":")[2])
    return f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


def checked(who: str, names: Sequence[str]) -> None:
    """Raise AssertionError unless rate-limit headers are present, or absent from the bare application."""
    if (BARE in who) == any("ratelimit" in name.lower() for name in names):
        raise AssertionError(f"{who} answered with {', '.join(names)}")


async def receive() -> dict[str, Any]:
    """Return an empty ASGI request body."""
    return {"type": "http.request", "body": b"", "more_body": False}


def asgi(who: str, make: Callable[[], Any]) -> AsyncContender:
    """Return a contender for an ASGI application."""

    def start() -> AsyncBlock:
        app = make()

        async def block(keys: Sequence[str]) -> int:
            started: dict[str, Any] = {}
            denied = 0

            async def send(message: Any) -> None:
                if message["type"] == "http.response.start":
                    started.update(message)

            for key in keys:
                scope = {
                    "type": "http",
                    "asgi": {"version": "3.0"},
                    "http_version": "1.1",
                    "method": "GET",
                    "scheme": "http",
                    "path": "/items/7",
                    "raw_path": b"/items/7",
                    "query_string": b"",
                    "root_path": "",
                    "headers": RAW.copy(),
                    "client": (address(key), 4000),
                    "server": ("127.0.0.1", 80),
                    "state": {},
                }
                await app(scope, receive, send)
                denied += started["status"] != 200
            checked(who, [name.decode() for name, _ in started["headers"]])
            return denied

        return block

    return AsyncContender("asgi:", who, "", start)


def wsgi(who: str, make: Callable[[], Any]) -> Contender:
    """Return a contender for a WSGI application."""

    def start() -> Block:
        app = make()

        def block(keys: Sequence[str]) -> int:
            started: list[Any] = []
            denied = 0

            def start_response(*arguments: Any) -> None:
                started[:] = arguments

            for key in keys:
                body = app(environ(key), start_response)
                b"".join(body)
                getattr(body, "close", bool)()
                denied += not started[0].startswith("200")
            checked(who, [name for name, _ in started[1]])
            return denied

        return block

    return Contender("flask:", who, "", start)


def environ(key: str) -> dict[str, Any]:
    """Return a new WSGI environ for a client."""
    return {
        "REQUEST_METHOD": "GET",
        "SCRIPT_NAME": "",
        "PATH_INFO": "/items/7",
        "RAW_URI": "/items/7",
        "QUERY_STRING": "",
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": address(key),
        **VARIABLES,
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }


async def item(request: Request) -> JSONResponse:
    """Answer a request with a few bytes of JSON."""
    return JSONResponse({"id": 7})


def starlette(endpoint: Any = item) -> Starlette:
    """Return a Starlette application."""
    return Starlette(routes=[Route("/items/{id}", endpoint)])


def slowapi_limiter(**options: Any) -> Any:
    """Return slowapi's limiter."""
    return slowapi.Limiter(key_func=get_remote_address, headers_enabled=True, **options)


def slowapi_middleware() -> Starlette:
    """Return an application with slowapi's middleware."""
    app = starlette()
    app.state.limiter = slowapi_limiter(default_limits=[LIMIT])
    app.add_middleware(SlowAPIASGIMiddleware)
    return app


def slowapi_decorator() -> Starlette:
    """Return an application with slowapi's decorator."""
    limiter = slowapi_limiter()
    app = starlette(limiter.limit(LIMIT)(item))
    app.state.limiter = limiter
    return app


def our_middleware() -> Starlette:
    """Return an application with our ASGI middleware."""
    app = starlette()
    app.add_middleware(RateLimitMiddleware, policy=LIMIT)
    return app


def our_middleware_on_shm() -> Starlette:
    """Return an application with our ASGI middleware on shared memory."""
    app = starlette()
    app.add_middleware(RateLimitMiddleware, policy=LIMIT, storage=own_zone(SMALL_ZONE))
    return app


def our_limits() -> Starlette:
    """Return an application with our RateLimits."""
    app = starlette()
    RateLimits(LIMIT, app=app)
    return app


def our_decorator() -> Starlette:
    """Return an application with our decorator."""
    limits = RateLimits()

    @limits.limit(LIMIT)
    async def limited(request: Request) -> JSONResponse:
        return JSONResponse({"id": 7})

    app = starlette(limited)
    limits.install(app)
    return app


def flask_app(decorate: Callable[[Any], Any] = lambda view: view) -> flask.Flask:
    """Return a Flask application."""
    app = flask.Flask("benchmark")

    def view(id: int) -> dict[str, int]:
        return {"id": id}

    app.get("/items/<int:id>")(decorate(view))
    return app


def flask_limiter_of(**options: Any) -> Any:
    """Return Flask-Limiter's limiter for an application."""
    return flask_limiter.Limiter(flask_address, headers_enabled=True, **options)


def flask_limiter_defaults(storage: str = "memory://", limits: Sequence[str] = (LIMIT,)) -> flask.Flask:
    """Return an application with Flask-Limiter's default limits."""
    app = flask_app()
    flask_limiter_of(app=app, default_limits=list(limits), storage_uri=storage)
    return app


def flask_limiter_decorator() -> flask.Flask:
    """Return an application with Flask-Limiter's decorator."""
    limiter = flask_limiter_of(storage_uri="memory://")
    app = flask_app(limiter.limit(LIMIT))
    limiter.init_app(app)
    return app


def our_flask(storage: str | SharedMemoryStorage = "memory://", limits: str = LIMIT) -> flask.Flask:
    """Return a Flask application with our RateLimits."""
    app = flask_app()
    FlaskLimits(app, limits, storage=storage)
    return app


def our_flask_decorator() -> flask.Flask:
    """Return a Flask application with our decorator."""
    keeper = FlaskLimits()
    app = flask_app(keeper.limit(LIMIT))
    keeper.init_app(app)
    return app


CASES = (
    Case(
        "asgi",
        [
            asgi(BARE, starlette),
            asgi("slowapi, ASGI middleware", slowapi_middleware),
            asgi("slowapi, decorator", slowapi_decorator),
            asgi("ratebound, ASGI middleware", our_middleware),
            asgi("ratebound, ASGI middleware on shm", our_middleware_on_shm),
            asgi("ratebound, RateLimits", our_limits),
            asgi("ratebound, decorator", our_decorator),
        ],
        warm_up=WARM_UP,
    ),
    Case(
        "flask",
        [
            wsgi(BARE, flask_app),
            wsgi("Flask-Limiter, default limits", flask_limiter_defaults),
            wsgi("Flask-Limiter, decorator", flask_limiter_decorator),
            wsgi("ratebound, Flask extension", our_flask),
            wsgi("ratebound, Flask extension on shm", lambda: our_flask(own_zone(SMALL_ZONE))),
            wsgi("ratebound, decorator", our_flask_decorator),
        ],
        warm_up=WARM_UP,
    ),
)


@dataclass(slots=True)
class Webbing:
    """The results: CPU seconds per request by case; commands to Redis per request by build and contender."""

    times: dict[str, Times] = field(default_factory=dict)
    trips: dict[str, dict[str, float]] = field(default_factory=dict)

    def added(self, build: str, case: str, who: str) -> list[float]:
        """Return the seconds above the bare application, in each round."""
        times = self.times[case][build]
        return [time - bare for time, bare in zip(times[f"{case}: {who}"], times[f"{case}: {BARE}"], strict=True)]

    def less(self, build: str, case: str, peer: str, ours: str) -> Spread:
        """Return how many times less ours adds than the peer."""
        return spread(ratios(self.added(build, case, ours), self.added(build, case, peer)))

    def verdicts(self) -> list[Verdict]:
        """Return one verdict for each required value that was measured."""
        judged = []
        for build, case, peer, ours, times in REQUIRED:
            if build in self.times.get(case, ()):
                found = self.less(build, case, peer, ours)
                judged.append(at_least(build, f"{ours}: times less than {peer}", times, found))
        for build, counted in self.trips.items():
            for who, trips in counted.items():
                if "ratebound" in who:
                    found = Spread(trips, trips, trips)
                    judged.append(Verdict(build, f"{who}: commands to Redis", "exactly 1", found, trips == 1))
        return judged

    def rows(self) -> list[tuple[str, str, str, Spread, Spread, Spread | None]]:
        """Return (case, build, contender, time, added, times less than the peer)."""
        found = []
        for case, builds in self.times.items():
            for build, times in builds.items():
                for name, one in times.items():
                    who = name.partition(": ")[2]
                    peer = PEERS[f"{case}, by decorator" if "decorator" in who else case]
                    less = self.less(build, case, peer, who) if "ratebound" in who else None
                    found.append((case, build, who, spread(one), spread(self.added(build, case, who)), less))
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the results for the JSON file."""
        return {
            "added": [
                {"case": case, "build": build, "who": who, "time": time._asdict(), "added": added._asdict()}
                for case, build, who, time, added, _ in self.rows()
            ],
            "trips": self.trips,
        }


def steps(builds: Sequence[str], rounds: int) -> int:
    """Return how many times `done` is called."""
    return sum(steps_of(case, builds, rounds) for case in CASES) + len(builds) * len(TRIPS)


def measure_web(workers: Sequence[Worker], rounds: int, done: Done) -> Webbing:
    """Measure the applications."""
    return Webbing(
        {case.name: measure(__name__, case, workers, rounds, EACH, done) for case in CASES},
        {worker.build: worker.run(count_all_trips, done=done) for worker in workers},
    )


def count_all_trips(done: Done) -> dict[str, float]:
    """Return the commands to Redis per request, by contender. Workers run this."""
    trips = {}
    with redis_server() as server:
        for who, make in TRIPS.items():
            trips[who] = count_trips(server.url, make)
            done()
    return trips


TWO = ("1000000/minute", "1000000/hour")
TRIPS: dict[str, Callable[[str], flask.Flask]] = {
    "Flask-Limiter, one limit": lambda url: flask_limiter_defaults(url),
    "ratebound, one limit": lambda url: our_flask(url),
    "Flask-Limiter, two limits": lambda url: flask_limiter_defaults(url, TWO),
    "ratebound, two limits": lambda url: our_flask(url, "; ".join(TWO)),
}


def count_trips(url: str, make: Callable[[str], flask.Flask]) -> float:
    """Return the commands per request that the server received over the wire.

    Scripts are loaded and connections made before. Commands inside a script do not count.
    """
    app, requests = make(url), 200

    def request() -> None:
        body = app(environ("client:1"), lambda *_: bytes)
        getattr(body, "close", bool)()

    for _ in range(5):
        request()
    client = redis.Redis.from_url(url)
    other = redis.Redis.from_url(url)
    other.ping()  # its connection is made before the others are watched
    with client.monitor() as seen:  # type: ignore[no-untyped-call]
        for _ in range(requests):
            request()
        other.echo("done")
        trips = 0
        for command in seen.listen():
            if command["command"].startswith("ECHO done"):
                return trips / requests
            trips += command["client_type"] != "lua"
    raise AssertionError("the server stopped to tell")
