"""Requests of made-up clients to the example service, about 40 in a second: most pass, some are limited.

It asks the HTTP port as a program would, in one thread over one connection, and ends when its standard input is closed:
run.py and the processes of the service hold the other end.
"""

import http.client
import json
import math
import os
import random
import sys
import threading
import time
from typing import Any
from urllib.parse import urlsplit

RATE = 40  # requests in a second, on average
WAVE = 60  # seconds from one peak to the next
SHOPPERS = [f"198.51.100.{number}" for number in range(1, 41)]
SCRAPER, GUESSER = "192.0.2.66", "192.0.2.13"
PRO = ("ann", "ben")

Request = dict[str, Any]


def search(address: str, user: str | None = None) -> Request:
    """Return a search for something."""
    word = random.choice(["shoes", "hats", "coats", "scarves"])
    return {"method": "GET", "path": f"/search/{word}", "address": address, "user": user}


def some_request() -> Request:
    """Return the next request: what kind of client it is from is drawn."""
    shopper = random.choice(SHOPPERS)
    drawn = random.random()
    if drawn < 0.40:
        return search(shopper)
    if drawn < 0.65:
        return search(SCRAPER)  # about 10 in a second: half of them are denied
    if drawn < 0.75:
        return search(shopper, random.choice(PRO))
    if drawn < 0.78:
        return {"method": "POST", "path": "/login", "address": GUESSER}  # struck, then blocked for a while
    if drawn < 0.80:
        return {"method": "POST", "path": "/login", "address": shopper}
    if drawn < 0.82:
        return {"method": "POST", "path": "/export", "address": shopper, "user": random.choice(PRO)}
    if drawn < 0.92:
        return {"method": "GET", "path": "/downloads/catalogue.pdf", "address": random.choice(SHOPPERS[:3])}
    return {"method": "GET", "path": f"/items/{random.randrange(1000)}", "address": shopper}


class Caller:
    """A caller of the HTTP API that connects again if its connection is closed."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, path: str, body: Request) -> Request | None:
        """Return the answer; None if the service does not answer now."""
        if self._connection is None:
            self._connection = http.client.HTTPConnection(self._host, timeout=5)
        try:
            self._connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            answer: Request = json.load(self._connection.getresponse())
        except (OSError, ValueError, http.client.HTTPException):
            self._connection.close()
            self._connection = None
            return None
        return answer


def send_for_ever(host: str) -> None:
    """Send requests, and release slots some seconds after they were taken."""
    caller = Caller(host)
    held: list[tuple[float, str]] = []
    while True:
        now = time.monotonic()
        answer = caller.ask("/v1/decide", some_request())
        if answer is None:
            time.sleep(0.5)
        elif answer.get("release"):
            held.append((now + random.uniform(1, 6), answer["release"]))
        for due, token in [one for one in held if one[0] <= now]:
            held.remove((due, token))
            caller.ask("/v1/release", {"release": token})
        rate = RATE * (1 + 0.5 * math.sin(2 * math.pi * now / WAVE))
        time.sleep(random.expovariate(rate))


def main() -> None:
    """Send requests until the standard input ends."""
    threading.Thread(target=send_for_ever, args=[urlsplit(sys.argv[1]).netloc], daemon=True).start()
    try:
        while sys.stdin.buffer.read(1):
            pass
    except KeyboardInterrupt:  # Ctrl-C is for the service
        pass
    os._exit(0)  # without waiting for an answer


if __name__ == "__main__":
    main()
