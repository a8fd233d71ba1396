"""What a request has cost, once its result is known.

At least one unit is charged before the work begins, so that no number of requests at once can pass for the price of
one; what is too much is given back when the response is complete. Whoever disconnects, times out or crashes has paid.
"""

import inspect
from collections.abc import Callable
from typing import Any, Literal, NamedTuple


class Outcome(NamedTuple):
    """A complete response: its status, the bytes of its body, and what was charged before."""

    status: int
    sent: int
    cost: int


Charge = Literal["failure", "success"] | Callable[[Outcome], int]


def _failure(outcome: Outcome) -> int:
    return outcome.cost if outcome.status >= 400 else 0


def _success(outcome: Outcome) -> int:
    return outcome.cost if outcome.status < 400 else 0


CHARGES: dict[str, Callable[[Outcome], int]] = {"failure": _failure, "success": _success}


def charge_function(charge: Any) -> Callable[[Outcome], int] | None:
    """'failure' charges those that went wrong, status 400 and above; 'success' the others; a function says how much."""
    if inspect.iscoroutinefunction(charge):
        raise ValueError(
            "a charge cannot be awaited: let the handler say it, with request.state.ratekeeper.charge(cost)"
        )
    if charge is None or callable(charge):
        return charge  # type: ignore[no-any-return]
    if isinstance(charge, str) and charge in CHARGES:
        return CHARGES[charge]
    raise ValueError(f"a charge is 'failure', 'success' or a function of an Outcome, not {charge!r}")
