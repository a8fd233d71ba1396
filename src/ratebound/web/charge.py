"""What a request has cost, once its result is known.

At least one unit is charged before the work begins, so that no number of requests at once can pass for the price of
one; what is too much is given back when the response is complete. Whoever disconnects, times out or crashes has paid.
"""

import inspect
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from ratebound.policy.functions import check_takes


class Outcome(NamedTuple):
    """A complete response: its status, the bytes of its body, and what was charged before. `failed` is what the
    handler said of it (see `Passed.failed`), else whether the status is 400 or above."""

    status: int
    sent: int
    cost: int
    failed: bool = False


Charge = Literal["failure", "success"] | Callable[[Outcome], int]


def _failure(outcome: Outcome) -> int:
    return outcome.cost if outcome.failed else 0


def _success(outcome: Outcome) -> int:
    return 0 if outcome.failed else outcome.cost


CHARGES: dict[str, Callable[[Outcome], int]] = {"failure": _failure, "success": _success}


def charge_function(charge: Any) -> Callable[[Outcome], int] | None:
    """'failure' charges requests that failed, 'success' the others; a function says how much."""
    if inspect.iscoroutinefunction(charge):
        raise ValueError(
            "a charge cannot be awaited: let the handler say it, with request.state.ratebound.charge(cost)"
        )
    if callable(charge):
        check_takes(charge, "the Outcome", option="charge")
        return charge  # type: ignore[no-any-return]
    if charge is None:
        return None
    if isinstance(charge, str) and charge in CHARGES:
        return CHARGES[charge]
    raise ValueError(f"a charge is 'failure', 'success' or a function of an Outcome, not {charge!r}")
