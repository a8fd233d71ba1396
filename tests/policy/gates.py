"""Gates on a clock that stands still, and requests for them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ratebound import MemoryStorage
from ratebound.policy import Gate, Policy, RequestView, Verdict, load_policy, read_policy
from ratebound.policy.model.rule import Stage
from ratebound.testing import FakeClock

EXAMPLES = Path(__file__).parents[2] / "examples" / "policies"


def request(
    path: str = "/",
    method: str = "GET",
    *,
    peer: str | None = "192.0.2.1",
    headers: Mapping[str, str] | list[tuple[str, str]] | None = None,
    **more: Any,
) -> RequestView:
    pairs = list(headers.items()) if isinstance(headers, Mapping) else headers or []
    return RequestView(method, path, peer=peer, headers=pairs, **more)


def gate_of(policy: Policy | str, clock: FakeClock | None = None, **more: Any) -> Gate:
    """A gate for a policy, or for the text of one."""
    if isinstance(policy, str):
        policy = read_policy(policy, functions=more.pop("functions", None), environ=more.pop("environ", {}))
    return Gate(policy, storage=MemoryStorage(clock=clock or FakeClock()), **more)


def example_gate(name: str, clock: FakeClock | None = None, **functions: Any) -> Gate:
    return gate_of(load_policy(EXAMPLES / name, functions=functions, environ={}), clock)


def passes(gate: Gate, *requests: RequestView, most: int = 200, stage: Stage = "late") -> int:
    """How many of the same requests, in turn, go ahead before the first is refused."""
    for count in range(most):
        if not decide(gate, requests[count % len(requests)], stage):
            return count
    return most


def decide(gate: Gate, view: RequestView, stage: Stage = "late") -> Verdict:
    view.found = None  # as if it had just come
    return gate.decide(view, stage)
