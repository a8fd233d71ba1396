"""Access logs that look real, for tests and benchmarks: `python -m benchmarks.made_logs combined 1000000 access.log`.

A few clients send most of the requests, traffic follows the hour of the day, some clients come in bursts, and paths
hold ids. The same seed gives the same log. Lines are in the order in which requests end, as servers write them.
"""

import heapq
import json
import math
import sys
import time
from bisect import bisect
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import NamedTuple
from urllib.parse import quote

START = 1_794_787_200  # 16 November 2026, 00:00 UTC
DAY = 86_400.0
ENDPOINTS = (  # method, path, share of the requests, status, usual duration in seconds
    ("GET", "/api/users/{id}", 22, 200, 0.02),
    ("GET", "/api/users/{id}/orders?page={page}", 14, 200, 0.06),
    ("GET", "/api/products?category={page}&sort=price", 12, 200, 0.09),
    ("GET", "/api/products/{id}", 18, 200, 0.02),
    ("POST", "/api/orders", 4, 201, 0.15),
    ("PATCH", "/api/orders/{id}", 3, 200, 0.08),
    ("DELETE", "/api/orders/{id}", 1, 204, 0.05),
    ("POST", "/login", 3, 200, 0.25),
    ("GET", "/search?q=term{page}", 7, 200, 0.3),
    ("GET", "/health", 5, 200, 0.001),
    ("GET", "/static/app.js", 8, 304, 0.001),
    ("GET", "/wp-login.php", 3, 404, 0.002),
)
AGENTS = (
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/131.0.0.0 Safari/537.36",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_1 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Mobile/15E148",
    "python-requests/2.32.3",
    "curl/8.11.0",
    "okhttp/4.12.0",
    "Go-http-client/2.0",
)


class MadeRequest(NamedTuple):
    """A request of a log that was made up."""

    end: float  # seconds since the epoch, to the millisecond
    duration: float  # seconds, to the millisecond
    address: str
    method: str
    target: str
    status: int
    size: int
    user: str
    agent: str
    host: str

    @property
    def arrival(self) -> int:
        """Return when the request came, in microseconds."""
        return round((self.end - self.duration) * 1000) * 1000


class _MadeClient(NamedTuple):
    address: str
    user: str
    agent: str


def made_requests(count: int, *, seed: int = 1, clients: int = 5_000, rate: float = 150.0) -> Iterator[MadeRequest]:
    """Yield requests in the order of their ends. `rate` is the mean number of requests per second."""
    random = Random(seed)
    people = [_made_client(random, number) for number in range(clients)]
    weights = list(accumulate(1 / (rank + 2) for rank in range(clients)))  # Zipf's law
    shares = list(accumulate(share for _, _, share, _, _ in ENDPOINTS))
    running: list[MadeRequest] = []
    now = float(START)
    burst: _MadeClient | None = None
    left = 0
    for _ in range(count):
        daily = 1 - 0.7 * math.cos((now % DAY) / DAY * 2 * math.pi)  # quiet at night
        if left:
            left -= 1
            now += random.expovariate(rate * daily * 4)
        else:
            now += random.expovariate(rate * daily)
            burst = None
            if random.random() < 0.0005:
                burst, left = people[int(random.random() * clients)], 20 + int(random.random() * 200)
        client = burst or people[bisect(weights, random.random() * weights[-1])]
        method, path, _, status, usual = ENDPOINTS[bisect(shares, random.random() * shares[-1])]
        target = path.replace("{id}", str(int(random.random() ** 3 * 100_000))).replace(
            "{page}", str(int(random.random() ** 2 * 20))
        )
        if random.random() < 0.01:
            status = 500 if random.random() < 0.2 else 403
        duration = round(min(usual * random.lognormvariate(0, 0.8), 30), 3)
        end = round(now + duration, 3)
        size = int(random.random() * 20_000)
        made = MadeRequest(end, duration, client.address, method, target, status, size, client.user, client.agent, HOST)
        heapq.heappush(running, made)
        while running and running[0].end <= now:
            yield heapq.heappop(running)
    while running:
        yield heapq.heappop(running)


HOST = "api.example.com"


def _made_client(random: Random, number: int) -> _MadeClient:
    if number % 20 == 0:
        address = f"2001:db8:{random.randrange(65536):x}::{random.randrange(1, 65536):x}"
    else:
        address = f"198.{18 + number % 2}.{random.randrange(256)}.{random.randrange(1, 255)}"
    user = f"user{number}" if random.random() < 0.3 else ""
    return _MadeClient(address, user, AGENTS[int(random.random() ** 2 * len(AGENTS))])


@lru_cache(2)
def _local(second: int) -> str:
    return time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(second))


@lru_cache(4)
def _iso(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def _iso_fraction(seconds: float, digits: int) -> str:
    whole = round(seconds * 1_000_000)
    return f"{_iso(whole // 1_000_000)}.{f'{whole % 1_000_000:06}'[:digits]}Z"


def _common(made: MadeRequest) -> str:
    return (
        f'{made.address} - {made.user or "-"} [{_local(int(made.end))}] "{made.method} {made.target} HTTP/1.1" '
        f"{made.status} {made.size}"
    )


def _combined(made: MadeRequest) -> str:
    return f'{_common(made)} "-" "{made.agent}"'


def _nginx_timed(made: MadeRequest) -> str:
    return f"{_combined(made)} {made.duration:.3f} {made.end:.3f}"


def _vhost_combined(made: MadeRequest) -> str:
    return f"{made.host}:443 {_combined(made)}"


def _envoy(made: MadeRequest) -> str:
    start = _iso_fraction(made.arrival / 1_000_000, 3)
    return (
        f'[{start}] "{made.method} {made.target} HTTP/1.1" {made.status} - 0 {made.size} {round(made.duration * 1000)} '
        f'{round(made.duration * 1000)} "{made.address}" "{made.agent}" "5d8c0a6e-0000-4000-8000-2f0f5d1c7a11" '
        f'"{made.host}" "10.0.0.7:8080"'
    )


def _alb(made: MadeRequest) -> str:
    path, _, query = made.target.partition("?")
    url = f"https://{made.host}:443{path}" + (f"?{query}" if query else "")
    return (
        f"h2 {_iso_fraction(made.end, 6)} app/web/50dc6c495c0c9188 {made.address}:40123 10.0.0.1:80 0.000 "
        f'{made.duration:.3f} 0.000 {made.status} {made.status} 512 {made.size} "{made.method} {url} HTTP/2.0" '
        f'"{made.agent}" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 arn:aws:elasticloadbalancing:eu-west-1:123456789012:'
        f'targetgroup/web/943f017f100becff "Root=1-58337327-72bd00b0343d75b906739c42" "{made.host}" "session-reused" 0 '
        f'{_iso_fraction(made.arrival / 1_000_000, 6)} "forward" "-" "-" "10.0.0.1:80" "{made.status}" "-" "-" TID_1'
    )


def _cloudfront(made: MadeRequest) -> str:
    path, _, query = made.target.partition("?")
    date, _, clock = _iso(int(made.end)).partition("T")
    agent = quote(made.agent, safe="/()';:,.")
    return "\t".join(
        (
            *(
                date,
                clock,
                "FRA56-P3",
                str(made.size),
                made.address,
                made.method,
                "d1.cloudfront.net",
                path,
            ),
            *(
                str(made.status),
                "-",
                agent,
                query or "-",
                "-",
                "Miss",
                "SOX4xwn4XV6Q4rgb7XiVGOHms",
            ),
            *(made.host, "https", "512", f"{made.duration:.3f}", "-", "TLSv1.3", "TLS_AES_128_GCM_SHA256", "Miss"),
            *(
                "HTTP/2.0",
                "-",
                "-",
                "11040",
                f"{made.duration:.3f}",
                "Miss",
                "text/html",
                str(made.size),
                "-",
                "-",
            ),
        )
    )


def _caddy(made: MadeRequest) -> str:
    request = {
        "remote_ip": made.address,
        "remote_port": "41342",
        "client_ip": made.address,
        "proto": "HTTP/2.0",
        "method": made.method,
        "host": made.host,
        "uri": made.target,
        "headers": {"User-Agent": [made.agent], "Accept": ["*/*"]},
    }
    line = {
        "level": "info",
        "ts": made.end,
        "logger": "http.log.access.log0",
        "msg": "handled request",
        "request": request,
        "bytes_read": 0,
        "user_id": made.user,
        "duration": made.duration,
        "size": made.size,
        "status": made.status,
        "resp_headers": {"Server": ["Caddy"]},
    }
    return json.dumps(line, separators=(",", ":"))


def _json(made: MadeRequest) -> str:
    line = {
        "time": _iso_fraction(made.end, 3),
        "remote_addr": made.address,
        "method": made.method,
        "path": made.target,
        "status": made.status,
        "bytes": made.size,
        "duration_ms": round(made.duration * 1000),
        "host": made.host,
        "user": made.user or None,
        "user_agent": made.agent,
    }
    return json.dumps(line)


NGINX_TIMED = (  # a log_format that has what replay uses best: the time of the end and the duration, in milliseconds
    '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent" '
    "$request_time $msec"
)
WRITERS: dict[str, Callable[[MadeRequest], str]] = {
    "combined": _combined,
    "common": _common,
    "vhost_combined": _vhost_combined,
    "nginx": _nginx_timed,
    "envoy": _envoy,
    "alb": _alb,
    "cloudfront": _cloudfront,
    "caddy": _caddy,
    "json": _json,
}
CLOUDFRONT_FIELDS = (
    "date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer) cs(User-Agent) "
    "cs-uri-query cs(Cookie) x-edge-result-type x-edge-request-id x-host-header cs-protocol cs-bytes time-taken "
    "x-forwarded-for ssl-protocol ssl-cipher x-edge-response-result-type cs-protocol-version fle-status "
    "fle-encrypted-fields c-port time-to-first-byte x-edge-detailed-result-type sc-content-type sc-content-len "
    "sc-range-start sc-range-end"
)


def write_log(path: Path, format: str, count: int, *, seed: int = 1, rate: float = 150.0) -> None:
    """Write a log of this many requests. `format` is a key of WRITERS."""
    line_of = WRITERS[format]
    with path.open("w", encoding="utf-8") as file:
        if format == "cloudfront":
            file.write(f"#Version: 1.0\n#Fields: {CLOUDFRONT_FIELDS}\n")
        file.writelines(f"{line_of(made)}\n" for made in made_requests(count, seed=seed, rate=rate))


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in WRITERS:
        raise SystemExit(f"usage: python -m benchmarks.made_logs {'|'.join(WRITERS)} LINES FILE")
    write_log(Path(sys.argv[3]), sys.argv[1], int(sys.argv[2]))
