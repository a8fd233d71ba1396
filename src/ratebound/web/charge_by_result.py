"""The cost of a request, once its result is known.

At least one unit is charged before the work begins, so that no number of requests at once can pass for the price of
one; the excess is given back when the response is complete. Requests that disconnect, time out or crash stay charged.
"""

import inspect
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from ratebound.policy.functions import check_takes


class FinishedResponse(NamedTuple):
    """A complete response: its status, the bytes of its body, and the cost that was charged before. `failed` is the
    handler's own judgement (see `Passed.failed`), else True for a status of 400 or above."""

    status: int
    sent: int
    cost: int
    failed: bool = False


Charge = Literal["failure", "success"] | Callable[[FinishedResponse], int]


def _failure(response: FinishedResponse) -> int:
    return response.cost if response.failed else 0


def _success(response: FinishedResponse) -> int:
    return 0 if response.failed else response.cost


CHARGES: dict[str, Callable[[FinishedResponse], int]] = {"failure": _failure, "success": _success}


def charge_function(charge: Any) -> Callable[[FinishedResponse], int] | None:
    """Return a charge as a function: 'failure' charges requests that failed, 'success' the others. None stays None."""
    if inspect.iscoroutinefunction(charge):
        raise ValueError(
            f"charge={charge!r} is an async function, and cannot be awaited: let the handler set the cost, with"
            " request.state.ratebound.charge(cost)"
        )
    if callable(charge):
        check_takes(charge, "the FinishedResponse", option="charge")
        return charge  # type: ignore[no-any-return]
    if charge is None:
        return None
    if isinstance(charge, str) and charge in CHARGES:
        return CHARGES[charge]
    raise ValueError(f"expected charge='failure', 'success' or a function of a FinishedResponse, not {charge!r}")
