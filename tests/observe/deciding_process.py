"""A process that decides, with figures that it publishes: `python -m tests.observe.deciding_process URL`. It writes a
line when it has published its figures once."""

import sys
import time

from ratebound.flow import run
from ratebound.observe.gate_figures import GateFigures
from ratebound.observe.shared_figures import SharedFigures
from ratebound.policy import Gate, read_policy
from tests.policy.gates import request

POLICY = {
    "rules": [
        {"name": "login", "match": {"paths": ["/login"]}, "by": "address", "limits": "3/hour"},
        {
            "name": "search",
            "match": {"paths": ["/search"]},
            "by": "address",
            "limits": "9000/second",
            "candidate": "5/second",
        },
    ]
}


def decide(url: str) -> None:
    with Gate(read_policy(POLICY), storage=url) as gate:
        figures = GateFigures(gate)
        figures.begin()
        while not run(SharedFigures(gate.storage).reading()):
            time.sleep(0.01)
        sys.stdout.write("begun\n")
        sys.stdout.flush()
        while True:
            gate.decide(request("/login"))
            gate.decide(request("/search"))
            time.sleep(0.02)


if __name__ == "__main__":
    decide(sys.argv[1])
