"""One process with a gate: `python -m tests.redis.operator_process url work`, started by test_operator_documents.py.

`serve` carries out the calls that it is given, a line of JSON each: the name of a method of the gate, and its
arguments. `decide` takes the address of a client and a path. `write` makes changes until it is killed, and says each
one that was acknowledged.
"""

import json
import sys
from itertools import count
from typing import Any

from ratebound import StorageError
from ratebound.policy import Gate, RequestView, read_policy

POLICY: dict[str, Any] = {
    "rules": [
        {"name": "search", "match": {"paths": ["/search"]}, "limits": "1000/minute", "candidate": "5/minute"},
        {"name": "rest", "limits": "1000/minute", "default": True},
    ]
}


def tell(answer: Any) -> None:
    print(json.dumps(answer, default=str), flush=True)  # noqa: T201


def decide(gate: Gate, peer: str, path: str) -> list[Any]:
    verdict = gate.decide(RequestView("GET", path, peer=peer))
    return [verdict.kind, [] if verdict.decision is None else [limit.count for limit in verdict.decision.limits]]


def serve(gate: Gate) -> None:
    tell("ready")
    for line in sys.stdin:
        name, arguments, options = json.loads(line)
        try:
            tell(decide(gate, *arguments) if name == "decide" else getattr(gate, name)(*arguments, **options))
        except StorageError as error:
            tell({"failed": str(error)})


def write(gate: Gate) -> None:
    for number in count():
        gate.block(f"user:{number}", by="writer")
        tell(["block", f"user:{number}"])
        gate.override(f"user:{number}", limits=f"{number + 1}/minute", by="writer")
        tell(["override", f"user:{number}"])
        gate.set_switch("off" if number % 2 else "shadow", rule="search", reason=str(number), by="writer")
        tell(["switch", str(number)])


if __name__ == "__main__":
    _, url, work = sys.argv
    with Gate(read_policy(POLICY), storage=url) as made:
        {"serve": serve, "write": write}[work](made)
